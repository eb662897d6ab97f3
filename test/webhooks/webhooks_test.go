// Package webhooks_test verifies the deliveries of the running sandbox server with an
// independent implementation of Standard Webhooks.
package webhooks_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience limits the wait for another process, on a busy machine.
const patience = 5 * time.Minute

// A process is a command with its standard output as lines.
type process struct {
	*exec.Cmd
	stdin io.WriteCloser
	lines chan string
}

func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{Cmd: cmd, lines: make(chan string, 1000)}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-read
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("%s says:\n%s", filepath.Base(cmd.Path), &stderr)
		}
	})
	return p
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	select {
	case line := <-p.lines:
		return line
	case <-time.After(patience):
		t.Fatalf("no line for %v", patience)
		return ""
	}
}

type verified struct {
	ID, Type, Reason, Token, Status string
	Sequence                        float64
	Same, Forged                    bool
}

// TestLife: a receiver written with the public library verifies every delivery of a full
// life. That includes a rotation of its secret and a redelivery.
func TestLife(t *testing.T) {
	if _, err := os.Stat(filepath.Join("..", "node_modules", "standardwebhooks")); err != nil {
		t.Skip("standardwebhooks is not installed: make deps")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node.js is not installed: make deps")
	}
	program := filepath.Join(t.TempDir(), "server")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./examples/server")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data := t.TempDir()
	server := start(t, exec.Command(program, "-addr", "127.0.0.1:0", "-data", data))
	server.line(t) // it answers
	var box struct {
		Base     string `json:"base_url"`
		Accounts []struct {
			APIKey string `json:"api_key"`
		} `json:"accounts"`
	}
	file, err := os.ReadFile(filepath.Join(data, "sandbox.json"))
	if err == nil {
		err = json.Unmarshal(file, &box)
	}
	if err != nil {
		t.Fatal(err)
	}
	call := func(method, path, body string) map[string]any {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, box.Base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Api-Key", box.Accounts[0].APIKey)
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode/100 != 2 {
			t.Fatalf("%s %s answers %d: %s, %v", method, path, a.StatusCode, text, err)
		}
		var answer map[string]any
		if len(text) > 0 {
			if err := json.Unmarshal(text, &answer); err != nil {
				t.Fatal(err)
			}
		}
		return answer
	}
	receiver := start(t, exec.Command(node, filepath.Join("testdata", "receiver.mjs")))
	hook := call("POST", "/webhooks", `{"url":"`+receiver.line(t)+`"}`)
	path := "/webhooks/" + hook["id"].(string)
	use := func(answer map[string]any) {
		t.Helper()
		if _, err := io.WriteString(receiver.stdin, answer["signing_secret"].(string)+"\n"); err != nil {
			t.Fatal(err)
		}
		if line := receiver.line(t); line != "secret" {
			t.Fatal(line)
		}
	}
	use(hook)
	var expected []verified // the expected entries of the log
	arrives := func(token, what, status string) verified {
		t.Helper()
		line := receiver.line(t)
		var v verified
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%s: %s", what, line)
		}
		if got := strings.TrimSpace(v.Type + " " + v.Reason); got != what || v.Token != token || v.Status != status || !v.Same || !v.Forged || v.ID == "" {
			t.Fatalf("got %+v, want %s of %s, %s", v, what, token, status)
		}
		return v
	}
	rises := func(v verified) {
		t.Helper()
		if n := len(expected); n > 0 && v.Sequence <= expected[n-1].Sequence || v.Sequence != float64(int64(v.Sequence)) {
			t.Errorf("sequence %v after %v", v.Sequence, expected)
		}
		expected = append(expected, v)
	}
	if test := call("POST", path+"/test", ""); test["status_code"] != 204.0 {
		t.Errorf("a test is answered %v", test)
	}
	arrives("", "webhook.test", "")

	token := call("POST", "/cde-import", `{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030}`)["id"].(string)
	created := arrives(token, "token.created imported", "pending")
	rises(created)
	rises(arrives(token, "token.updated network_token_status_changed", "active"))
	rotated := call("POST", path+"/rotate-secret", "")
	call("PATCH", "/tokens/"+token, `{"business_key":"order 6"}`)
	rises(arrives(token, "token.updated patched", "active")) // the receiver has the former secret
	use(rotated)
	call("PATCH", "/tokens/"+token, `{"business_key":"order 7"}`)
	rises(arrives(token, "token.updated patched", "active"))
	call("POST", "/events/"+created.ID+"/redeliver", "")
	if again := arrives(token, "token.created imported", "pending"); again != created {
		t.Errorf("delivered again it is %+v, was %+v", again, created)
	}
	call("DELETE", "/tokens/"+token, "")
	rises(arrives(token, "token.deleted requested", ""))

	entries := func() []any { return call("GET", path+"/deliveries?sort=created_at+asc", "")["data"].([]any) }
	log := entries()
	pending := func(d any) bool { return d.(map[string]any)["status"] == "pending" }
	for end := time.Now().Add(patience); slices.ContainsFunc(log, pending) && time.Now().Before(end); log = entries() {
		<-time.After(20 * time.Millisecond) // answers are stored a little later
	}
	if len(log) != len(expected) {
		t.Fatalf("the log has %d entries, want %d", len(log), len(expected))
	}
	for i, want := range expected {
		d, attempts := log[i].(map[string]any), 1.0
		if i == 0 {
			attempts = 2 // it was delivered again
		}
		if d["event_id"] != want.ID || d["event_type"] != want.Type || d["token_id"] != token || d["status"] != "delivered" ||
			d["attempts"] != attempts || d["last_status_code"] != 204.0 || d["last_attempt_at"] == nil || d["next_attempt_at"] != nil {
			t.Errorf("entry %d of the log is %v", i, d)
		}
	}
}
