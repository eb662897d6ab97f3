//go:build linux

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/fips140"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cardvault/cardvault/examples/internal/sandboxtest"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
)

// TestAbsence sends security codes through every path of a server. Then it searches the
// server's traces: its memory, a dump of it, its output and its files. The codes have 24
// digits, since three occur everywhere by chance.
func TestAbsence(t *testing.T) {
	t.Parallel()
	h := startHunt(t)
	h.obtain("hangs", 504)
	for h.pairs < 200 {
		h.round()
	}
	h.misplace()
	last := h.token("left to expire, the last request")
	<-time.After(codeTTL + time.Second)
	// Which signal has saved registers amid a copy is chance: more do on a busy machine.
	h.ask(syscall.SIGUSR1, "registers overwritten", 1)
	s := newSearch(append(h.all, h.mark))
	h.expectInProcess(0, strayCards, "memory, 1 s after their time", s.inMemory(t, h.Process.Pid))
	t.Run("core", func(t *testing.T) {
		if _, err := exec.LookPath("gcore"); err != nil {
			t.Skip("gcore is not installed")
		}
		h.expectInProcess(0, strayCards, "core dump", s.inCore(t, h.Process.Pid))
	})
	if answer := h.send(200, h.request("GET", last+"/security-code", "")); answer["security_code_available"] != false {
		t.Errorf("the expired security code of a token: %v", answer)
	}
	h.client.CloseIdleConnections()
	h.provider.CloseClientConnections()
	// A code that is really kept is found every time. One in memory that is free is not, once
	// the server has worked.
	var left *remains
	for round := range 3 {
		h.ask(syscall.SIGUSR2, "garbage collected", round+1)
		if left = s.inMemory(t, h.Process.Pid); len(left.found(h.code)) == 0 {
			break
		}
		t.Logf("garbage collected %d times: a code, of %s", round+1, left.found(h.code))
	}
	h.expectInProcess(0, strayCards, "memory, connections closed and garbage collected", left)

	h.stop(t)
	output, files := s.begin(), s.begin()
	for _, o := range [][]byte{h.stdout.content(), h.stderr.content()} {
		if err := output.read(bytes.NewReader(o)); err != nil {
			t.Fatal(err)
		}
	}
	h.expect(0, 0, "stdout and stderr", output)
	data := os.DirFS(h.dir)
	err := fs.WalkDir(data, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() { // a socket has no content
			return err
		}
		f, err := data.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		return files.read(f)
	})
	if err != nil {
		t.Fatal(err)
	}
	h.expect(0, 0, "files", files)
	// All codes share a prefix, and so do all cards. This looks for the prefixes in every
	// form that anyone might write.
	vaulttest.AssertNoLeak(t, []string{h.code, h.card, h.bomb, h.lostCode, h.lostCard}, h.stdout.content(), h.stderr.content(), data)
	t.Logf("%d security codes with cards by %d paths; found of them, whole or in part:\n%-49s %5s %5s %5s %8s%s",
		h.pairs, len(h.paths), "", "codes", "cards", "lost", "KiB", &h.report)
}

const (
	codeTTL = 15 * time.Second // a path takes less, also on a busy machine

	// The number of cards allowed in memory: where a hash has left one on a stack. One run in
	// ten finds one.
	strayCards = 2
)

// A hunt is a server, and the canaries sent to it.
type hunt struct {
	*process
	t              *testing.T
	dir            string
	stdout, stderr *output
	provider       *httptest.Server
	client         *http.Client // with one connection

	brood
	mark   canary // is in the environment of the server, so in its memory
	report strings.Builder

	jwk      jose.JSONWebKey // the key that encrypts cards
	hanging  chan struct{}   // requests that the provider leaves unanswered
	mu       sync.Mutex
	received map[string]bool // security codes that the provider received
}

func startHunt(t *testing.T) *hunt {
	t.Helper()
	h := &hunt{
		t:        t,
		dir:      filepath.Join(t.TempDir(), "data"),
		stdout:   newOutput(),
		stderr:   newOutput(),
		client:   &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, DisableCompression: true}, Timeout: time.Minute},
		brood:    newBrood(),
		mark:     canary{digits(24), "environment"},
		hanging:  make(chan struct{}, 100),
		received: map[string]bool{},
	}
	h.provider = httptest.NewServer(http.HandlerFunc(h.answer))
	t.Cleanup(h.provider.Close)
	t.Cleanup(h.client.CloseIdleConnections)

	program := filepath.Join(t.TempDir(), "server")
	begin := time.Now()
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-tags", "cardvault_canary", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	t.Logf("built in %v", time.Since(begin).Round(time.Millisecond))
	cmd := exec.Command(program, "-addr", "127.0.0.1:0", "-data", h.dir, "-security-code-ttl", codeTTL.String(), "-log-level", "debug", "-forward", h.psp())
	cmd.Env = append(os.Environ(), "CARDVAULT_CANARY_PROVIDER="+h.provider.URL+"/"+h.mark.digits, "CARDVAULT_CANARY_PANIC="+h.bomb[:8])
	cmd.Stdout, cmd.Stderr = h.stdout, h.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.process = &process{Cmd: cmd}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	h.stdout.wait(t, sandboxtest.LastLine, 1) // it answers
	data, err := os.ReadFile(filepath.Join(h.dir, "sandbox.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &h.Credentials); err != nil {
		t.Fatal(err)
	}
	return h
}

// ask sends the server a signal and waits until it has logged so many times that it did as told.
func (h *hunt) ask(to os.Signal, done string, times int) {
	h.t.Helper()
	if err := h.Process.Signal(to); err != nil {
		h.t.Fatal(err)
	}
	h.stderr.wait(h.t, done, times)
}

func (h *hunt) request(method, path, body string) *http.Request {
	r, err := http.NewRequest(method, h.BaseURL+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", h.Accounts[0].APIKey)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// send makes a request and returns its answer, if that is an object.
func (h *hunt) send(status int, r *http.Request) map[string]any {
	h.t.Helper()
	w, err := h.client.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	defer w.Body.Close()
	data, err := io.ReadAll(w.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	if w.StatusCode != status {
		h.t.Fatalf("%s %s answers %d %s, want %d", r.Method, r.URL.Path, w.StatusCode, data, status)
	}
	var answer map[string]any
	if len(data) > 0 {
		if err := json.Unmarshal(data, &answer); err != nil {
			h.t.Fatal(err)
		}
	}
	return answer
}

const (
	withoutCode  = `{"account_number":"PAN","expiry_month":12,"expiry_year":2030`
	cardWithCode = withoutCode + `,"security_code":"CODE"}`
	cardLost     = withoutCode + `,"security_code":"LOST"}`
)

// imports lists requests with a security code and their statuses.
var imports = []struct {
	path   string
	status int
	body   string
	change func(*hunt, *http.Request)
}{
	{"import", 200, cardWithCode, nil},
	{"import of the restricted account", 403, cardWithCode, func(h *hunt, r *http.Request) { r.Header.Set("X-Api-Key", h.Accounts[1].APIKey) }},
	{"wrong API key", 401, cardWithCode, func(_ *hunt, r *http.Request) { r.Header.Set("X-Api-Key", "vk_test_") }},
	{"wrong content type", 415, cardWithCode, func(_ *hunt, r *http.Request) { r.Header.Set("Content-Type", "text/plain") }},
	{"wrong content type, chunked", 415, cardWithCode, func(_ *hunt, r *http.Request) {
		r.Header.Set("Content-Type", "text/plain")
		chunked(nil, r)
	}},
	{"body too large", 413, cardWithCode + strings.Repeat(" ", 65<<10), nil},
	{"body too large, chunked", 413, cardWithCode + strings.Repeat(" ", 65<<10), chunked},
	{"long body", 200, strings.Repeat(" ", 20<<10) + cardWithCode, nil},
	{"long body, chunked", 200, strings.Repeat(" ", 20<<10) + cardWithCode + strings.Repeat(" ", 20<<10), chunked},
	{"chunked", 200, cardWithCode, chunked},
	{"JSON that ends early", 400, cardWithCode[:len(cardWithCode)-1], nil},
	{"JSON that ends in the code", 400, cardWithCode[:len(cardWithCode)-2], nil},
	{"JSON with garbage after it", 400, cardWithCode + "]", nil},
	{"code twice", 400, withoutCode + `,"security_code":"CODE","security_code":"CODE"}`, nil},
	{"code escaped", 200, withoutCode + `,"security_code":"ESCAPED"}`, nil},
	{"code escaped, and an error after it", 400, withoutCode + `,"security_code":"ESCAPED",}`, nil},
	{"code as a number", 422, withoutCode + `,"security_code":CODE}`, nil},
	{"code with a letter", 422, withoutCode + `,"security_code":"CODEx"}`, nil},
	{"code that is too long", 422, withoutCode + `,"security_code":"CODE0"}`, nil},
	{"code in an unknown member", 422, withoutCode + `,"cvc":"CODE"}`, nil},
	{"code as a member's name", 422, withoutCode + `,"CODE":true}`, nil},
	{"code in an object", 422, withoutCode + `,"security_code":{"value":"CODE"}}`, nil},
	{"code in a list", 422, withoutCode + `,"security_code":["CODE"]}`, nil},
	{"code before invalid UTF-8", 400, withoutCode + `,"security_code":"CODE","cardholder_name":"` + "\xff" + `"}`, nil},
	{"month out of range", 422, strings.Replace(cardWithCode, "12", "13", 1), nil},
	{"invalid card number", 422, strings.Replace(cardWithCode, "PAN", "PANx", 1), nil},
	{"wrong path", 404, cardWithCode, func(_ *hunt, r *http.Request) { r.URL.Path += "s" }},
	{"wrong method", 405, cardWithCode, func(_ *hunt, r *http.Request) { r.Method = "PUT" }},
	{"path that takes no body", 422, cardWithCode, func(_ *hunt, r *http.Request) { r.Method, r.URL.Path = "GET", "/tokens" }},
	{"panic", 500, strings.Replace(cardWithCode, "PAN", "BOMB", 1), nil},
	{"replacement", 200, cardWithCode, replacement},
	{"replacement without a token", 404, cardWithCode, func(_ *hunt, r *http.Request) { r.URL.Path = "/tokens/" + uuid.NewString() + "/replace" }},
	{"replacement that is not valid", 422, strings.Replace(cardWithCode, "12", "13", 1), replacement},
}

// chunked hides the length of a body.
func chunked(_ *hunt, r *http.Request) {
	r.ContentLength, r.Body = -1, io.NopCloser(io.MultiReader(r.Body))
}

// replacement sends the card in place of the card of another token.
func replacement(h *hunt, r *http.Request) { r.URL.Path = h.token("replaced") + "/replace" }

// round sends a security code along every path.
func (h *hunt) round() {
	for _, x := range imports {
		r := h.request("POST", "/cde-import", h.fill(x.body, x.path))
		if x.change != nil {
			x.change(h, r)
		}
		h.send(x.status, r)
	}
	body, repeat := h.fill(cardWithCode, "import, repeated"), uuid.NewString()
	for range 2 {
		r := h.request("POST", "/cde-import", body)
		r.Header.Set("Idempotency-Key", repeat)
		h.send(200, r)
	}
	h.cut("body that is cut off", "Content-Length: 1000\r\n\r\n"+cardWithCode)
	h.cut("chunk that is cut off", "Transfer-Encoding: chunked\r\n\r\n3e8\r\n"+cardWithCode)
	// After these, net/http drops the connection with its buffers.
	h.cut("chunk without its end", "Transfer-Encoding: chunked\r\n\r\n40\r\n"+cardLost) // 64 bytes are fewer
	h.cut("body without chunks", "Transfer-Encoding: chunked\r\n\r\n"+cardLost)

	session := h.session("/tokens/session")
	h.enter(422, session, "session, without a card", `{"security_code":"CODE"}`)
	h.enter(422, session, "session, code as a number", withoutCode+`,"security_code":CODE}`)
	h.enter(200, session, "session, code that is too long", withoutCode+`,"security_code":"CODE0"}`)
	h.enter(200, session, "session", cardWithCode)
	h.enter(409, session, "session that is completed", cardWithCode)
	for month, what := range []string{"passed", "failed", "not understood", "under way"} {
		claims := strings.Replace(cardWithCode, `12,"expiry_year":2030`, fmt.Sprintf(`%d,"expiry_year":2031`, month+1), 1)
		h.enter(200, h.session("/tokens/session"), "identification, "+what, claims)
	}
	h.enter(200, h.session(h.token("refresh")+"/refresh-session"), "session for a code", `{"security_code":"CODE"}`)
	h.enter(200, h.session(h.token("another card")+"/replace-session"), "session for another card", cardWithCode)

	h.send(200, h.request("POST", h.token("provisions")+"/provisions", ""))
	h.send(200, h.request("POST", h.token("payment data")+"/payment-data", `{"amount":1,"currency_code":"EUR","reference":"1"}`))
	h.send(200, h.request("GET", h.token("read"), ""))
	h.send(200, h.request("POST", h.token("refreshed")+"/refresh-session", ""))
	h.send(204, h.request("POST", h.token("consumed")+"/consume", ""))
	h.send(204, h.request("DELETE", h.token("deleted"), ""))
	if answer := h.send(200, h.request("GET", h.token("looked for")+"/security-code", "")); answer["security_code_available"] != true {
		h.t.Errorf("the security code of a new token: %v", answer)
	}
	for _, b := range behaviours {
		h.obtain(b.name, b.status)
	}
	for i := range forwards {
		h.forward(&forwards[i])
	}
}

// A forwarding is a request that is forwarded to the provider.
type forwarding struct {
	path   string // of the canary
	status int    // of the answer; 0: the client gives up while the provider has the request
	to     string // what the provider does
	header map[string]string
	body   string
	lost   bool // net/http makes strings of it
}

const (
	formTemplate = "number={{ account_number }}&code={{ security_code }}"
	jsonTemplate = `{"number":"{{ account_number }}","code":"{{ security_code }}"}`
	xmlTemplate  = `<card code="{{ security_code }}"><number>{{ account_number }}</number></card>`
)

var forwards = []forwarding{
	{path: "JSON", status: 200, to: "answers", body: jsonTemplate},
	{path: "form", status: 200, to: "answers", body: formTemplate, header: map[string]string{"content-type": "application/x-www-form-urlencoded"}},
	{path: "XML", status: 200, to: "answers", body: xmlTemplate, header: map[string]string{"content-type": "text/xml"}},
	{path: "header", status: 200, to: "answers", header: map[string]string{"x-card": "{{ account_number }}", "x-code": "{{ security_code }}"}},
	{path: "large", status: 200, to: "answers", body: `{"a":"` + strings.Repeat("a", 200<<10) + `",` + jsonTemplate[1:]},
	{path: "refused", status: 422, to: "answers", body: `{"a":"{{ account_number }}","b":"{{ number }}"}`},
	{path: "echo", status: 200, to: "echoes", body: jsonTemplate},
	{path: "echo, long", status: 200, to: "echoes", body: `{"a":"` + strings.Repeat("a", 100<<10) + `",` + jsonTemplate[1:]},
	{path: "echo, too long", status: 200, to: "echoes-without-end", body: jsonTemplate},
	{path: "echo, compressed", status: 200, to: "compresses", body: jsonTemplate},
	{path: "echo in a header", status: 200, to: "echoes-in-a-header", body: jsonTemplate, lost: true},
	{path: "echo that is cut off", status: 502, to: "echoes-and-cuts", body: jsonTemplate},
	{path: "cut off", status: 502, to: "cuts", body: jsonTemplate},
	{path: "redirect", status: 200, to: "redirects", body: jsonTemplate},
	{path: "given up", to: "hangs", body: jsonTemplate},
}

// forward forwards a card with its code. Under an idempotency key it is answered twice.
func (h *hunt) forward(f *forwarding) {
	h.t.Helper()
	card, header := cardWithCode, f.header
	if f.lost {
		card = cardLost
	}
	if header == nil {
		header = map[string]string{"content-type": "application/json"}
	}
	id := strings.TrimPrefix(h.tokenOf(card, "forward, "+f.path), "/tokens/")
	code := h.all[len(h.all)-1].digits
	body, err := json.Marshal(map[string]any{"token_id": id, "consume": f.path == "form", "request": map[string]any{
		"method": "POST", "url": h.psp() + f.to, "headers": header, "body": f.body,
	}})
	if err != nil {
		h.t.Fatal(err)
	}

	repeat := uuid.NewString()
	request := func() *http.Request {
		r := h.request("POST", "/forward", string(body))
		if f.path != "JSON" && f.path != "given up" {
			r.Header.Set("Idempotency-Key", repeat)
		}
		return r
	}
	if f.status == 0 {
		h.giveUp(request())
	} else {
		for range 2 {
			if answer := fmt.Sprint(h.send(f.status, request())); strings.Contains(answer, code) {
				h.t.Errorf("forward, %s: the code is in the answer", f.path)
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.received[code] == (f.status == 422) {
		h.t.Errorf("forward, %s: the provider has received the code: %v", f.path, h.received[code])
	}
}

// psp is the URL of the provider to which cards are forwarded.
func (h *hunt) psp() string { return h.provider.URL + "/" + h.mark.digits + "/psp/" }

var longDigits = regexp.MustCompile(`[0-9]{24}`)

// answerForward is the handler of that provider.
func (h *hunt) answerForward(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	h.mu.Lock()
	for _, code := range longDigits.FindAllString(string(body)+r.Header.Get("X-Code"), -1) {
		h.received[code] = true
	}
	h.mu.Unlock()

	w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
	switch strings.TrimPrefix(r.URL.Path, "/"+h.mark.digits+"/psp/") {
	case "answers":
		fmt.Fprint(w, `{"id":"ch_1","status":"paid"}`)
	case "echoes":
		w.Write(body)
	case "echoes-without-end":
		w.Write(bytes.Repeat(body, 2<<20/len(body)))
	case "compresses":
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		z.Write(body)
		z.Close()
	case "echoes-in-a-header":
		w.Header().Set("X-Echo", string(body))
	case "echoes-and-cuts":
		w.Header().Set("Content-Length", "1000")
		w.Write(body)
	case "cuts":
		panic(http.ErrAbortHandler)
	case "redirects":
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	case "hangs":
		h.hanging <- struct{}{}
		<-r.Context().Done()
	}
}

// obtain sets the provider's behaviour and expects the status of obtain-ppan. With a status
// of 0 the client gives up while the provider has the request.
func (h *hunt) obtain(behaviour string, status int) {
	h.t.Helper()
	body := cardWithCode
	if strings.HasPrefix(behaviour, "echoes") {
		body = cardLost // net/http and encoding/json hold the answer too
	}
	id := strings.TrimPrefix(h.tokenOf(body, "obtain-ppan, "+behaviour), "/tokens/")
	code := h.all[len(h.all)-1].digits
	r := h.request("POST", "/integrations/provider/obtain-ppan", `{"token_id":"`+id+`"}`)
	for name, value := range map[string]string{"Aid": "1", "Mid": "1", "Portalid": "1", "Hash": behaviour} {
		r.Header.Set("X-Provider-"+name, value)
	}
	if status != 0 {
		h.send(status, r)
	} else {
		h.giveUp(r)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.received[code] {
		h.t.Errorf("%s: the code has not reached the provider", behaviour)
	}
}

// giveUp makes a request and leaves while the provider has it.
func (h *hunt) giveUp(r *http.Request) {
	h.t.Helper()
	ctx, leave := context.WithCancel(h.t.Context())
	defer leave()
	go func() {
		<-h.hanging
		leave()
	}()
	if w, err := h.client.Do(r.WithContext(ctx)); err == nil {
		w.Body.Close()
		h.t.Error("an abandoned request is answered")
	}
}

// misplace sends codes in places where the server cannot recognize them, so they stay in
// memory. Even so, they must not reach a log or file.
func (h *hunt) misplace() {
	h.send(422, h.request("GET", h.fill("/tokens?security_code=LOST", "query"), ""))
	h.send(404, h.request("GET", h.fill("/tokens/LOST", "id"), ""))
	h.send(404, h.request("GET", h.fill("/LOST", "path"), ""))
	h.send(200, h.request("POST", "/cde-import", h.fill(withoutCode+`,"business_key":"LOST"}`, "business key")))
	r := h.request("GET", "/tokens", "")
	for _, name := range []string{"X-Request-Id", "User-Agent", "Authorization", "Cookie"} {
		r.Header.Set(name, h.fill("LOST", "header "+name))
	}
	h.send(200, r)
	body, key, _ := strings.Cut(h.fill(withoutCode+"} LOST", "idempotency key"), " ")
	r = h.request("POST", "/cde-import", body)
	r.Header.Set("Idempotency-Key", key)
	h.send(200, r)
	r = h.request("GET", "/tokens", "")
	r.Header.Set("X-Api-Key", h.fill("LOST", "API key"))
	h.send(401, r)
	h.send(405, h.request(h.fill("LOST", "method"), "/tokens", ""))
}

// session makes a session and returns its path.
func (h *hunt) session(path string) string {
	h.t.Helper()
	return "/sessions/" + h.send(200, h.request("POST", path, ""))["session_id"].(string)
}

// enter sends claims for a session as a browser does.
func (h *hunt) enter(status int, session, path, claims string) {
	h.t.Helper()
	state := h.send(200, h.request("GET", session, ""))
	data, action := state["data"].(map[string]any), state["next_action"]
	if jwk, err := json.Marshal(data["jwk"]); err == nil && data["jwk"] != nil {
		h.jwk = jose.JSONWebKey{}
		if err := h.jwk.UnmarshalJSON(jwk); err != nil {
			h.t.Fatal(err)
		}
	} else {
		action = "tokenize_card"
	}
	var payload string
	fips140.WithoutEnforcement(func() {
		e, err := jose.NewEncrypter(jose.A256GCM, jose.Recipient{Algorithm: jose.RSA_OAEP_256, Key: &h.jwk}, nil)
		if err != nil {
			h.t.Fatal(err)
		}
		sealed, err := e.Encrypt([]byte(h.fill(claims, path)))
		if err != nil {
			h.t.Fatal(err)
		}
		if payload, err = sealed.CompactSerialize(); err != nil {
			h.t.Fatal(err)
		}
	})
	h.send(status, h.request("POST", session+"/complete-action",
		fmt.Sprintf(`{"action":%q,"result":{"enc_payload":%q}}`, action, payload)))
}

// token imports a card with a security code and returns the path of its token.
func (h *hunt) token(path string) string {
	h.t.Helper()
	return h.tokenOf(cardWithCode, path)
}

func (h *hunt) tokenOf(body, path string) string {
	h.t.Helper()
	return "/tokens/" + h.send(200, h.request("POST", "/cde-import", h.fill(body, path)))["id"].(string)
}

// cut sends an unfinished request on a connection of its own.
func (h *hunt) cut(path, rest string) {
	h.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.BaseURL, "http://"))
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST /cde-import HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: %s\r\nContent-Type: application/json\r\n%s",
		h.Accounts[0].APIKey, h.fill(rest, path))
	if err == nil {
		err = conn.(*net.TCPConn).CloseWrite()
	}
	if err == nil {
		_, err = io.Copy(io.Discard, conn) // until the server closes it
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// behaviours lists how the provider may behave, with the answers of obtain-ppan.
var behaviours = []struct {
	name   string
	status int
}{
	{"valid", 200},
	{"invalid", 200},
	{"hangs until given up", 0},
	{"cuts", 502},
	{"garbles", 502},
	{"redirects", 502},
	{"answers 10 MB", 502},
	{"echoes the form", 502},
	{"echoes the form in JSON", 502},
	{"echoes the form for 10 MB", 502},
}

// answer is the handler of the payment provider.
func (h *hunt) answer(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/"+h.mark.digits+"/psp/") {
		h.answerForward(w, r)
		return
	}
	form, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	values, err := url.ParseQuery(string(form))
	if err != nil || r.URL.Path != "/"+h.mark.digits {
		h.t.Errorf("the provider is sent an invalid form at %s", r.URL.Path)
	}
	h.mu.Lock()
	h.received[values.Get("cardcvc2")] = true
	h.mu.Unlock()
	switch values.Get("hash") {
	case "valid":
		fmt.Fprint(w, `{"status":"VALID","pseudocardpan":"9410010000000000001","truncatedcardpan":"411111XXXXXX0000","cardtype":"V","cardexpiredate":"3012"}`)
	case "invalid":
		fmt.Fprint(w, `{"status":"INVALID","errorcode":"880","errormessage":"refused","customermessage":"refused"}`)
	case "hangs":
		<-r.Context().Done()
	case "hangs until given up":
		h.hanging <- struct{}{}
		<-r.Context().Done()
	case "cuts":
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, `{"status":"VALID",`)
	case "garbles":
		fmt.Fprint(w, `{"status":"MAYBE"}{`)
	case "redirects":
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	case "answers 10 MB":
		w.Write(bytes.Repeat([]byte(" "), 10<<20))
	case "echoes the form":
		w.Write(form)
	case "echoes the form in JSON":
		fmt.Fprintf(w, `{"status":"INVALID","errorcode":"1","errormessage":%q,"customermessage":%q}`, form, values.Get("cardcvc2"))
	case "echoes the form for 10 MB":
		w.Write(bytes.Repeat(form, 10<<20/len(form)))
	}
}

// expect fails the test if a place holds more codes or cards than allowed, whole or in
// part. It reports the findings.
func (h *hunt) expect(mostCodes, mostCards int, place string, r *remains) {
	h.t.Helper()
	codes, cards := r.found(h.code), append(r.found(h.card), r.found(h.bomb)...)
	lost := len(r.found(h.lostCode)) + len(r.found(h.lostCard))
	fmt.Fprintf(&h.report, "\n%-49s %5d %5d %5d %8d", place, len(codes), len(cards), lost, r.searched>>10)
	if len(codes) > mostCodes {
		h.t.Errorf("%s: %d codes, of %s", place, len(codes), strings.Join(codes, ", "))
	}
	if len(cards) > mostCards {
		h.t.Errorf("%s: %d cards, of %s", place, len(cards), strings.Join(cards, ", "))
	}
	if lost > 0 && mostCards == 0 {
		h.t.Errorf("%s: %d misplaced codes", place, lost)
	}
}

// expectInProcess does the same for the memory of a process.
func (h *hunt) expectInProcess(mostCodes, mostCards int, place string, r *remains) {
	h.t.Helper()
	if len(r.found(h.mark.digits)) == 0 {
		h.t.Errorf("%s: the search does not find the mark", place)
	}
	h.expect(mostCodes, mostCards, place, r)
}

// An output collects what a process prints.
type output struct {
	mu   sync.Mutex
	text []byte
	more chan struct{} // closed when there is more
}

func newOutput() *output { return &output{more: make(chan struct{})} }

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, b...)
	close(o.more)
	o.more = make(chan struct{})
	return len(b), nil
}

func (o *output) content() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.text)
}

// wait returns when the process has printed a text a number of times.
func (o *output) wait(t *testing.T, text string, times int) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		o.mu.Lock()
		done, more := bytes.Count(o.text, []byte(text)) >= times, o.more
		o.mu.Unlock()
		if done {
			return
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("the server does not print %q", text)
		}
	}
}
