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

// TestSnippets runs the functions in JavaScript that the introduction shows, on the vectors
// that it shows.
func TestSnippets(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node.js is not installed (apt-get install nodejs)")
	}
	_, text := httpapi.OpenAPI()
	c := newChecker(t, text)
	introduction := c.root["info"].(map[string]any)["description"].(string)

	var script strings.Builder
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
`)
	file := filepath.Join(t.TempDir(), "snippets.mjs")
	if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), node, file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
