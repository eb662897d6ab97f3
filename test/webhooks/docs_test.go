package webhooks_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/webhook"
	"github.com/google/uuid"
)

// TestReceiversOfDocs: each receiver in docs/webhooks.md accepts deliveries of the vault,
// and refuses those signed with another secret.
func TestReceiversOfDocs(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "webhooks.md"))
	if err != nil {
		t.Fatal(err)
	}
	modules, err := filepath.Abs(filepath.Join("..", "node_modules"))
	if err != nil {
		t.Fatal(err)
	}

	for _, test := range []struct {
		language, file, program, needs string
	}{
		{"go", "main.go", "go", ""},
		{"js", "hook.mjs", "node", filepath.Join(modules, "standardwebhooks")},
		{"python", "hook.py", "python3", ""},
	} {
		t.Run(test.language, func(t *testing.T) {
			if _, err := os.Stat(test.needs); test.needs != "" && err != nil {
				t.Skip("standardwebhooks is not installed: make deps")
			}
			program, err := exec.LookPath(test.program)
			if err != nil {
				t.Skip(test.program + " is not installed: make deps")
			}

			dir := t.TempDir()
			_, port, err := net.SplitHostPort(realtest.Address(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, test.file)
			source := strings.ReplaceAll(receiverIn(t, string(page), test.language), "8095", port)
			if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
				t.Fatal(err)
			}

			cmd := exec.Command(program, file)
			if test.language == "go" { // a child of go run would survive the kill
				built := filepath.Join(dir, "hook")
				if out, err := exec.CommandContext(t.Context(), program, "build", "-o", built, file).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				cmd = exec.Command(built)
			}
			cmd.Env = append(os.Environ(), "WEBHOOK_SECRET="+secret)
			start(t, cmd)
			dial(t, port)
			if got := deliver(t, port, secret); got != 204 {
				t.Errorf("a delivery is answered with %d", got)
			}
			if got := deliver(t, port, strings.Replace(secret, "A", "B", 1)); got != 400 {
				t.Errorf("a delivery under another secret is answered with %d", got)
			}
		})
	}
}

const secret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

// receiverIn returns the last code block of a language that listens.
func receiverIn(t *testing.T, page, language string) (block string) {
	t.Helper()
	for _, b := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(page, -1) {
		if strings.Contains(b[1], "8095") {
			block = b[1]
		}
	}
	if block == "" {
		t.Fatal("the page has no receiver")
	}
	return block
}

// dial waits until a receiver listens, which may first have to be compiled.
func dial(t *testing.T, port string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if c, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
			_ = c.Close()
			return
		}
	}
	t.Fatal("the receiver does not listen")
}

// deliver sends an event under a secret and returns the status of the answer.
func deliver(t *testing.T, port, secret string) int {
	t.Helper()
	sender := webhook.New(&webhook.Options{AllowPrivateTargets: true})
	t.Cleanup(sender.Close)
	got, err := sender.Send(t.Context(), &cardvault.Delivery{
		Event: &cardvault.Event{ID: uuid.New(), CreatedAt: time.Now(), Type: receive.TokenDeleted, Reason: receive.ReasonRequested, Sequence: 1, TokenID: uuid.New()},
		ID:    uuid.New(), CreatedAt: time.Now(), URL: "http://127.0.0.1:" + port + "/hook",
		Secrets: []receive.WebhookSecret{receive.NewWebhookSecret([]byte(secret))},
	})
	if err != nil {
		t.Fatal(err)
	}
	return got.StatusCode
}
