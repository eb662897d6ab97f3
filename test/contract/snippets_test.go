package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/httpapi"
)

// TestSnippets runs the JavaScript functions of the introduction, on the vectors that it
// shows, and on a key of a session.
func TestSnippets(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node.js is not installed (apt-get install nodejs)")
	}
	_, text := httpapi.OpenAPI()
	c := newChecker(t, text)
	introduction := c.root["info"].(map[string]any)["description"].(string)

	var script strings.Builder
	script.WriteString(`import { generateKeyPairSync, privateDecrypt } from "node:crypto";` + "\n")
	for _, m := range regexp.MustCompile("(?s)```js\n(.*?)```").FindAllStringSubmatch(introduction, -1) {
		script.WriteString(m[1])
	}
	shown := func(pattern string) string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(introduction)
		if m == nil {
			t.Fatalf("the introduction does not show %s", pattern)
		}
		return m[1]
	}
	jwe, plain := shown(`(?m)^(eyJ[\w.-]+)$`), shown("to `({\"network_token.*})`")
	secret, id, at := shown("`(whsec_[^`]+)`"), shown("`(msg_[^`]+)`"), shown("timestamp `([0-9]+)`")
	body, signature := shown("the body `([^`]+)`"), shown("the signature `([^`]+)`")

	script.WriteString(`
const same = (what, got, want) => { if (got !== want) throw new Error(what + ": " + got); };
same("open", JSON.stringify(open("` + jwe + `", "shared-secret")), '` + plain + `');
Date.now = () => ` + at + ` * 1000;
const headers = { "webhook-id": "` + id + `", "webhook-timestamp": "` + at + `", "webhook-signature": "v1,AAAA ` + signature + `" };
same("signed", verify(headers, '` + body + `', "` + secret + `"), true);
same("changed", verify(headers, '` + body + ` ', "` + secret + `"), false);
Date.now = () => (` + at + ` + 301) * 1000;
same("late", verify(headers, '` + body + `', "` + secret + `"), false);
const { publicKey, privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
const card = await encrypt({ expiry_month: 12 }, { ...publicKey.export({ format: "jwk" }), kid: "k" }, "s");
const [head, wrapped, iv, data, tag] = card.split(".");
const key = privateDecrypt({ key: privateKey, oaepHash: "sha256" }, Buffer.from(wrapped, "base64url"));
const gcm = createDecipheriv("aes-256-gcm", key, Buffer.from(iv, "base64url")).setAAD(Buffer.from(head)).setAuthTag(Buffer.from(tag, "base64url"));
same("claims", gcm.update(data, "base64url", "utf8") + gcm.final("utf8"), '{"expiry_month":12}');
same("header", Buffer.from(head, "base64url").toString(), '{"alg":"RSA-OAEP-256","enc":"A256GCM","kid":"k","sid":"s"}');
`)
	file := filepath.Join(t.TempDir(), "snippets.mjs")
	if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), node, file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
