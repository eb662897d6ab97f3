package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestMain runs the server itself where a test started this binary as one.
func TestMain(m *testing.M) {
	if os.Getenv("CARDVAULT_TEST_SERVER") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// A process is a running server.
type process struct {
	*exec.Cmd
	sandbox
	output []string // lines on standard output up to the curl lines
}

// start runs a server on a directory and waits until it answers.
func start(t *testing.T, dir string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-addr", "127.0.0.1:0", "-data", dir)
	cmd.Env = append(os.Environ(), "CARDVAULT_TEST_SERVER=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	p := &process{Cmd: cmd}
	lines := bufio.NewScanner(stdout)
	for curls := 0; curls < 3; {
		if !lines.Scan() {
			cmd.Wait()
			t.Fatalf("server ended before it was ready: %s", stderr.String())
		}
		p.output = append(p.output, lines.Text())
		if strings.HasPrefix(lines.Text(), "curl ") {
			curls++
		}
	}
	go io.Copy(io.Discard, stdout)
	data, err := os.ReadFile(filepath.Join(dir, "sandbox.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &p.sandbox); err != nil {
		t.Fatal(err)
	}
	return p
}

// do makes a request and returns the status and the decoded answer.
func (p *process) do(key, method, path, body string) (int, map[string]any, error) {
	r, err := http.NewRequest(method, p.BaseURL+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("X-Api-Key", key)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer w.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(w.Body).Decode(&answer); err != nil && w.StatusCode != http.StatusNoContent {
		return 0, nil, err
	}
	return w.StatusCode, answer, nil
}

func (p *process) want(t *testing.T, status int, key, method, path, body string) map[string]any {
	t.Helper()
	got, answer, err := p.do(key, method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	if got != status {
		t.Fatalf("%s %s answers %d %v, want %d", method, path, got, answer, status)
	}
	return answer
}

const cardJSON = `{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030}`

func TestServer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir)
	if len(p.Accounts) != 2 || p.Accounts[0].Name != "sandbox" || p.Accounts[1].Name != "restricted" {
		t.Fatalf("accounts %+v", p.Accounts)
	}
	for _, a := range p.Accounts {
		if a.AccountID == uuid.Nil || a.MerchantID == uuid.Nil || len(a.PaymentSecret) != 43 || !strings.HasPrefix(a.APIKey, "vk_test_") {
			t.Errorf("account %s is not complete", a.Name)
		}
	}
	if runtime.GOOS != "windows" {
		for path, mode := range map[string]os.FileMode{
			"": 0o700, "sandbox.json": 0o600, "keys": 0o700, "keys/vault.key": 0o600, "vault": 0o700, "vault/cardvault.db": 0o600,
		} {
			info, err := os.Stat(filepath.Join(dir, path))
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != mode {
				t.Errorf("%q has mode %#o, want %#o", path, info.Mode().Perm(), mode)
			}
		}
	}
	key := p.Accounts[0].APIKey
	token := p.want(t, 200, key, "POST", "/cde-import", cardJSON)
	if token["masked_account_number"] != "424242******4242" {
		t.Errorf("token %v", token)
	}
	refused := p.want(t, 403, p.Accounts[1].APIKey, "POST", "/cde-import", cardJSON)
	if refused["classifier"] != "IMPORT_NOT_APPROVED" {
		t.Errorf("the restricted account gets %v", refused)
	}
	p.want(t, 404, p.Accounts[1].APIKey, "GET", "/tokens/"+token["id"].(string), "")

	w, err := http.Get(p.BaseURL + "/")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(w.Body)
	w.Body.Close()
	if err != nil || !bytes.Contains(page, []byte("sandbox")) {
		t.Errorf("the page says %.200s, %v", page, err)
	}
	for _, a := range p.Accounts {
		if bytes.Contains(page, []byte(a.APIKey)) || bytes.Contains(page, []byte(a.PaymentSecret)) {
			t.Error("the page holds a key or secret")
		}
	}

	// The printed lines work as they are.
	for _, line := range p.output {
		if !strings.HasPrefix(line, "curl ") {
			continue
		}
		if _, err := exec.LookPath("curl"); err != nil {
			t.Skip("curl is not installed")
		}
		out, err := exec.Command("sh", "-c", line).CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte(`id":`)) {
			t.Errorf("%s: %s, %v", line[:40], out, err)
		}
	}

	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	again := start(t, dir)
	if fmt.Sprint(again.Accounts) != fmt.Sprint(p.Accounts) {
		t.Error("a restart changed the accounts")
	}
	if got := again.want(t, 200, key, "GET", "/tokens/"+token["id"].(string), ""); got["created_at"] != token["created_at"] {
		t.Errorf("after the restart the token is %v", got)
	}
}

// TestKilled kills the server in the middle of imports and deletions: every
// acknowledged one holds.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	var (
		mu      sync.Mutex
		kept    []string
		deleted []string
		unsure  = map[string]bool{} // deletions that were not answered
		repeats = map[string]string{}
	)
	for round := range 5 {
		p := start(t, dir)
		key := p.Accounts[0].APIKey
		var workers sync.WaitGroup
		for worker := range 8 {
			workers.Go(func() {
				for n := 0; ; n++ {
					idempotency := fmt.Sprintf("%d-%d-%d", round, worker, n)
					token, err := p.importOnce(key, idempotency)
					if err != nil {
						return // killed
					}
					mu.Lock()
					kept = append(kept, token)
					repeats[idempotency] = token
					victim := ""
					if n%3 == 0 {
						victim = kept[0]
						kept = kept[1:]
						unsure[victim] = true
					}
					mu.Unlock()
					if victim == "" {
						continue
					}
					status, _, err := p.do(key, "DELETE", "/tokens/"+victim, "")
					if err != nil {
						return
					}
					mu.Lock()
					delete(unsure, victim)
					if status == http.StatusNoContent {
						deleted = append(deleted, victim)
					} else {
						t.Errorf("deletion answers %d", status)
					}
					mu.Unlock()
				}
			})
		}
		// Killed at a different point of the traffic each time.
		enough := time.NewTicker(5 * time.Millisecond)
		for range enough.C {
			mu.Lock()
			n := len(kept) + len(deleted)
			mu.Unlock()
			if n > 150*(round+1) {
				break
			}
		}
		enough.Stop()
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		p.Wait()
		workers.Wait()
	}
	p := start(t, dir)
	key := p.Accounts[0].APIKey
	for _, id := range kept {
		p.want(t, 200, key, "GET", "/tokens/"+id, "")
	}
	for _, id := range deleted {
		p.want(t, 404, key, "GET", "/tokens/"+id, "")
	}
	for idempotency, id := range repeats {
		// An error is that of a token deleted since.
		if again, err := p.importOnce(key, idempotency); err == nil && again != id {
			t.Error("repeating an import made another token")
		}
	}
	total := p.want(t, 200, key, "GET", "/tokens?limit=1", "")["pagination"].(map[string]any)["total_items"].(float64)
	// Imports that were cut off may have been stored.
	if int(total) < len(kept) || int(total) > len(kept)+len(unsure)+5*8 {
		t.Errorf("%v tokens, want about %d", total, len(kept))
	}
	t.Logf("%d imports and %d deletions acknowledged over 5 kills, all of them held", len(kept)+len(deleted), len(deleted))
}

// importOnce imports a card under an idempotency key and returns the token's id.
func (p *process) importOnce(key, idempotency string) (string, error) {
	r, err := http.NewRequest("POST", p.BaseURL+"/cde-import", strings.NewReader(cardJSON))
	if err != nil {
		return "", err
	}
	r.Header.Set("X-Api-Key", key)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", idempotency)
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer w.Body.Close()
	var token struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(w.Body).Decode(&token); err != nil {
		return "", err
	}
	if w.StatusCode != http.StatusOK {
		return "", fmt.Errorf("import answers %d", w.StatusCode)
	}
	return token.ID, nil
}
