package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/examples/internal/sandboxtest"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/google/uuid"
)

// TestMain runs a server if a test started this binary as one.
func TestMain(m *testing.M) {
	switch os.Getenv("CARDVAULT_TEST_SERVER") {
	case "":
	case "plain":
		plain()
		return
	default:
		shutdownTimeout = time.Minute
		main()
		return
	}
	// These tests mostly wait, rather than compute.
	flag.Parse()
	if err := flag.Set("test.parallel", "64"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// A process is a running server.
type process struct {
	*exec.Cmd
	sandboxtest.Program
	output []string // lines on standard output
}

// start runs a server on a directory, with more environment variables, and waits until it
// answers.
func start(t *testing.T, dir string, env ...string) *process {
	t.Helper()
	return startWith(t, nil, dir, env...)
}

// startWith is start with more flags.
func startWith(t *testing.T, flags []string, dir string, env ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], append(flags, "-addr", "127.0.0.1:0", "-data", dir)...)
	cmd.Env = append(append(os.Environ(), "CARDVAULT_TEST_SERVER=1"), env...)
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
		if t.Failed() {
			t.Logf("the server says:\n%s", stderr.String())
		}
	})
	p := &process{Cmd: cmd}
	lines := bufio.NewScanner(stdout)
	for !strings.HasSuffix(strings.Join(p.output, "\n"), sandboxtest.LastLine) {
		if !lines.Scan() {
			cmd.Wait()
			t.Fatalf("server ended before it was ready: %s", stderr.String())
		}
		p.output = append(p.output, lines.Text())
	}
	go io.Copy(io.Discard, stdout)
	data, err := os.ReadFile(filepath.Join(dir, "sandbox.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &p.Credentials); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestOperated: an operator reaches the vault of a running server, and of one that was killed before.
func TestOperated(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the server offers no socket here")
	}
	dir := t.TempDir()
	start(t, dir).kill(t)
	p := start(t, dir)
	c, err := operator.Dial(t.Context(), filepath.Join(dir, "vault"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all, err := c.Accounts(t.Context())
	if err != nil || len(all) != len(p.Accounts)+1 { // and the first one, which the sandbox does not use
		t.Errorf("%d accounts, want %d, %v", len(all), len(p.Accounts)+1, err)
	}
	if r, err := c.Verify(t.Context(), new(cardvault.VerifyOptions)); err != nil || r.Records == 0 || len(r.Problems) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	p.stop(t)
	if parts, err := audit.NewLedgerDir(filepath.Join(dir, "ledger")).Exports(t.Context()); err != nil || len(parts) == 0 {
		t.Errorf("%d parts are in the ledger, %v", len(parts), err)
	}
	if _, err := operator.Dial(t.Context(), filepath.Join(dir, "vault")); !errors.Is(err, operator.ErrNoServer) {
		t.Errorf("a server that has stopped: %v", err)
	}
}

// kill ends the server as a crash would.
func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.Wait()
}

// stop ends the server as an operator does.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

func TestServer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data of 'mine'")
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
			"simulator": 0o700, "simulator/simnet.db": 0o600, "ledger": 0o700, "audit": 0o700, "audit/checkpoints": 0o700, "audit/public-keys": 0o600,
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
	token := p.Want(t, 200, key, "POST", "/cde-import", sandboxtest.CardJSON)
	if token["masked_account_number"] != "424242******4242" {
		t.Errorf("token %v", token)
	}
	refused := p.Want(t, 403, p.Accounts[1].APIKey, "POST", "/cde-import", sandboxtest.CardJSON)
	if refused["classifier"] != "IMPORT_NOT_APPROVED" {
		t.Errorf("the restricted account is answered %v", refused)
	}
	p.Want(t, 404, p.Accounts[1].APIKey, "GET", "/tokens/"+token["id"].(string), "")

	w, err := http.Get(p.BaseURL + "/")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(w.Body)
	w.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"sandbox", p.BaseURL, `href="/reference"`, "/simulator/tokens/{id}/suspend", "4111110000000302", "KEY=$("} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page does not have %s", want)
		}
	}
	for _, a := range p.Accounts {
		if bytes.Contains(page, []byte(a.APIKey)) || bytes.Contains(page, []byte(a.PaymentSecret)) {
			t.Error("the page holds a key or secret")
		}
	}

	for host, want := range map[string]int{
		"localhost:8080": 200, "[::1]:8080": 200, "192.0.2.7": 200,
		"evil.example": 421, "evil.example:8080": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example": 421,
	} {
		r, err := http.NewRequest("GET", p.BaseURL+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		w, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		w.Body.Close()
		if w.StatusCode != want {
			t.Errorf("the page under %s: status %d, want %d", host, w.StatusCode, want)
		}
	}

	said := strings.Join(p.output, "\n")
	for _, a := range p.Accounts {
		if strings.Contains(said, a.APIKey) || strings.Contains(said, a.PaymentSecret) {
			t.Errorf("a key or secret of the account %s is printed", a.Name)
		}
	}
	if !strings.Contains(said, filepath.Join(dir, "sandbox.json")) {
		t.Error("the output does not name the file of the keys")
	}

	p.stop(t)
	again := start(t, dir)
	if fmt.Sprint(again.Accounts) != fmt.Sprint(p.Accounts) {
		t.Error("a restart changed the accounts")
	}
	if got := again.Want(t, 200, key, "GET", "/tokens/"+token["id"].(string), ""); got["created_at"] != token["created_at"] {
		t.Errorf("after the restart the token is %v", got)
	}
}

// TestForwardFlag: the server forwards cards to the URLs of -forward, on this machine alone.
func TestForwardFlag(t *testing.T) {
	received := make(chan string, 1)
	psp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		received <- r.URL.Path + " " + string(body)
		w.Write(body)
	}))
	defer psp.Close()
	p := startWith(t, []string{"-forward", psp.URL + "/a/," + psp.URL + "/b"}, t.TempDir())
	key := p.Accounts[0].APIKey
	token := p.Want(t, 200, key, "POST", "/cde-import", sandboxtest.CardJSON)["id"].(string)
	body := func(url string) string {
		return fmt.Sprintf(`{"token_id":%q,"request":{"method":"POST","url":%q,"headers":{"content-type":"application/json"},"body":"{\"n\":\"{{ account_number }}\"}"}}`, token, url)
	}
	for _, path := range []string{"/a/charges", "/b"} {
		answer := p.Want(t, 200, key, "POST", "/forward", body(psp.URL+path))
		if got := <-received; got != path+` {"n":"4242424242424242"}` || answer["body"] != `{"n":"424242******4242"}` {
			t.Errorf("%s: the provider received %s, the answer is %v", path, got, answer)
		}
	}
	for _, url := range []string{psp.URL + "/c", "http://127.0.0.1:8090/psp/charges"} {
		if answer := p.Want(t, 403, key, "POST", "/forward", body(url)); answer["classifier"] != "DESTINATION_NOT_ALLOWED" {
			t.Errorf("%s: %v", url, answer)
		}
	}

	for _, bad := range []string{"http://psp.example/", "ftp://127.0.0.1/", psp.URL + "," + psp.URL} {
		cmd := exec.Command(os.Args[0], "-addr", "127.0.0.1:0", "-data", t.TempDir(), "-forward", bad)
		cmd.Env = append(os.Environ(), "CARDVAULT_TEST_SERVER=1")
		if out, err := cmd.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("forward: destination")) {
			t.Errorf("-forward %s: %v, %s", bad, err, out)
		}
	}
}

// TestStopped stops the server during a request, and then during a provisioning: both are
// completed.
func TestStopped(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir)
	k := p.Follow(t, p.Import(t, "4111110000000427"), "pending", "active")

	answered := make(chan error, 1)
	served := make(chan struct{})
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got100Continue: func() { close(served) }, // the handler reads the body
	})
	r, err := http.NewRequestWithContext(ctx, "POST", p.BaseURL+"/tokens/"+k.ID()+"/payment-data",
		strings.NewReader(`{"amount":1999,"currency_code":"EUR","reference":"order 7"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", p.Accounts[0].APIKey)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Expect", "100-continue")
	go func() {
		w, err := (&http.Transport{ExpectContinueTimeout: time.Minute}).RoundTrip(r)
		if err == nil {
			defer w.Body.Close()
			var answer map[string]any
			// On a busy machine the network may be given up. The caller hears of that, too.
			if err = json.NewDecoder(w.Body).Decode(&answer); err == nil && answer["success"] != true && !strings.Contains(fmt.Sprint(answer), "timeout") {
				err = fmt.Errorf("%d %v", w.StatusCode, answer)
			}
		}
		answered <- err
	}()
	select {
	case <-served:
	case err := <-answered:
		t.Fatalf("the request ended early: %v", err)
	}
	p.stop(t)
	if err := <-answered; err != nil {
		t.Errorf("the request was cut off: %v", err)
	}

	// The network takes two of the three seconds that it has: on a busy machine it may be given up.
	for try := 1; ; try++ {
		p = start(t, dir)
		slow := p.Import(t, "4111110000000500")
		// The first import's provisioning is still in progress when a later one is done.
		p.Follow(t, p.Import(t, "4111110000000005"), "pending", "active")
		p.stop(t)
		p = start(t, dir)
		state := p.Get(t, slow.ID()).State()
		if state == "active" {
			break
		}
		if try == 10 {
			t.Fatalf("the provisioning was cut off: it is %q", state)
		}
		p.stop(t)
	}
}

// TestKilled kills the server amid imports and deletions: every acknowledged one holds, and has
// its record in the audit log, which is whole.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	var (
		mu      sync.Mutex
		kept    []string
		deleted []string
		unsure  = map[string]bool{} // unanswered deletions
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
					token, err := p.ImportOnce(key, idempotency)
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
					status, _, err := p.Do(key, "DELETE", "/tokens/"+victim, "")
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
		// Each kill is at a different point of the traffic.
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
		p.kill(t)
		workers.Wait()
	}
	p := start(t, dir)
	key := p.Accounts[0].APIKey
	for _, id := range kept {
		p.Want(t, 200, key, "GET", "/tokens/"+id, "")
	}
	for _, id := range deleted {
		p.Want(t, 404, key, "GET", "/tokens/"+id, "")
	}
	for idempotency, id := range repeats {
		// An error means that the token was deleted since.
		if again, err := p.ImportOnce(key, idempotency); err == nil && again != id {
			t.Error("repeating an import made another token")
		}
	}
	total := p.Want(t, 200, key, "GET", "/tokens?limit=1", "")["pagination"].(map[string]any)["total_items"].(float64)
	// Imports without an answer may have been stored.
	if int(total) < len(kept) || int(total) > len(kept)+len(unsure)+5*8 {
		t.Errorf("%v tokens, want about %d", total, len(kept))
	}
	p.stop(t)
	p.audited(t, dir, map[string][]string{"token.import": append(kept, deleted...), "token.delete": deleted})
	t.Logf("%d imports and %d deletions acknowledged over 5 kills, all of them held", len(kept)+len(deleted), len(deleted))
}
