package httpapi_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/google/uuid"
)

const (
	shop    = "https://shop.example"
	entered = `{"account_number":"` + pan + `","expiry_month":4,"expiry_year":2031,"security_code":"737"}`
	refused = `{"account_number":"` + secretPAN + `","expiry_month":13,"expiry_year":2031,"security_code":"` + secretCode + `"}`
)

// newSession makes a session and returns its path.
func (r *rig) newSession(t testing.TB) string {
	t.Helper()
	id, err := r.vault.CreateSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return "/sessions/" + id.ID.UUID().String()
}

// completion returns the body with which a browser completes a session, from the answer of
// its GET. An sid may be "".
func completion(t testing.TB, session *answer, claims, sid string) string {
	t.Helper()
	return fmt.Sprintf(`{"action":%q,"result":{"enc_payload":%q}}`, session.member(t, "next_action"), encrypt(t, session, claims, sid))
}

// encrypt returns claims as a compact JWE under the key of a session.
func encrypt(t testing.TB, session *answer, claims, sid string) string {
	t.Helper()
	return transcript.Encrypt(t, session.transcript(), claims, sid)
}

// clients is an Options.ClientAddr that gives each request an address of its own.
func clients() func(*http.Request) netip.Addr {
	var n atomic.Uint32
	return func(*http.Request) netip.Addr {
		i := n.Add(1)
		return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	}
}

// A browser needs no key, even where card art does.
func TestSession(t *testing.T) {
	for _, opts := range []*httpapi.Options{nil, {CardArtRequiresKey: true, RateLimit: httpapi.RateLimit{PerSecond: 1e-6}}} {
		inBubble(t, func(t *testing.T) {
			r := newRig(t, nil, opts)
			path := r.newSession(t)
			do := func(method, target, body string, headers ...string) *answer {
				t.Helper()
				a := send(t, r.handler, method, target, body, headers...)
				checkCommon(t, method, a)
				transcript.NoEcho(t, target, headerText(a.header), a.body, r.log.take())
				return a
			}
			open := do("GET", path, "")
			do("HEAD", path, "").want(t, 200)
			a := do("POST", path+"/complete-action", completion(t, open, refused, path[len("/sessions/"):]), "Idempotency-Key", "", "X-Api-Key", "x")
			if want := `{"data":{"reason":"The expiry date is not valid.","reason_code":"invalid_expiry_date"},"status":"failed","next_action":"tokenize_card"}`; a.body != want {
				t.Errorf("%s, not %s", a.body, want)
			}
			if again := do("GET", path, ""); again.body != open.body {
				t.Errorf("after a refused card: %s", again.body)
			}
			done := do("POST", path+"/complete-action", completion(t, open, entered, ""), "Idempotency-Key", "k")
			id := done.object(t)["data"].(map[string]any)["token_id"].(string)
			if want := `{"data":{"token_id":"` + id + `"},"status":"success"}`; done.body != want {
				t.Errorf("%s, not %s", done.body, want)
			}
			tok, err := r.vault.Get(t.Context(), parseUUID(t, id))
			if err != nil || tok.MaskedAccountNumber != "424242******4242" {
				t.Errorf("token %+v, %v", tok, err)
			}
			if again := do("GET", path, ""); again.body != done.body {
				t.Errorf("afterwards: %s", again.body)
			}
			time.Sleep(15 * time.Minute)
			do("GET", path, "").want(t, 404, "NOT_FOUND")
		})
	}
}

// A session makes a token in its own account, whichever key is sent.
func TestSessionAccount(t *testing.T) {
	r := newRig(t, nil, nil)
	other := r.newAccount(t, nil)
	session, err := other.CreateSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	path := "/sessions/" + session.ID.UUID().String()
	r.do(t, "POST", path+"/complete-action", completion(t, r.do(t, "GET", path, ""), entered, "")).want(t, 200)
	p, err := other.List(t.Context(), nil)
	if total := r.total(t); err != nil || p.TotalItems != 1 || total != 0 {
		t.Errorf("%d tokens of the account, %d of another, %v", p.TotalItems, total, err)
	}
}

// Logs name neither a session nor the data entered there.
func TestSessionLog(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		path := r.newSession(t)
		id := path[len("/sessions/"):]
		r.log.take()
		open := send(t, r.handler, "GET", path, "")
		for _, claims := range []string{refused, entered, entered} {
			send(t, r.handler, "POST", path+"/complete-action", completion(t, open, claims, id))
		}
		send(t, r.handler, "POST", path+"/complete-action/", "{}")
		r.store.view.Store(pointer(io.ErrUnexpectedEOF))
		send(t, r.handler, "GET", path, "").want(t, 500)
		log := r.log.take()
		for _, want := range []string{"path=/sessions/* status=200", "path=/sessions/*/complete-action status=200", "path=/sessions/*/complete-action status=409",
			"path=/sessions/* status=500", "operation=session.refuse", "operation=token.tokenize"} {
			if !strings.Contains(log, want) {
				t.Errorf("no %s in %s", want, log)
			}
		}
		if strings.Contains(log, id[:8]) || strings.Contains(log, pan) {
			t.Errorf("the log names the session or its card: %s", log)
		}
		transcript.NoEcho(t, "log", log)
	})
}

// One of many concurrent completions succeeds, and makes one token.
func TestCompletionRace(t *testing.T) {
	r := newRig(t, nil, nil)
	s := newServer(t, r.handler, false)
	const n = 32
	s.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = n
	path := r.newSession(t)
	open := send(t, r.handler, "GET", path, "")
	var statuses [600]atomic.Int32
	var group sync.WaitGroup
	for range n {
		body := completion(t, open, entered, "")
		group.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+path+"/complete-action", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			statuses[resp.StatusCode].Add(1)
		})
	}
	group.Wait()
	// A late completion may be refused by the limit of failures.
	if done, late := statuses[200].Load(), statuses[409].Load()+statuses[429].Load(); done != 1 || late != n-1 {
		t.Errorf("%d completions succeed, %d are late", done, late)
	}
	if total := r.total(t); total != 1 {
		t.Errorf("%d tokens", total)
	}
}

// A script with only WebCrypto and fetch completes a session.
func TestSessionInNode(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node.js is not installed: make deps")
	}
	r := newRig(t, nil, nil)
	s := newServer(t, r.handler, false)
	first := r.newSession(t)
	second := r.newSession(t)
	third := r.newSession(t)
	for _, test := range []struct{ url, header, claims, want string }{
		{first, "", refused, `{"data":{"reason":"The expiry date is not valid.","reason_code":"invalid_expiry_date"},"status":"failed","next_action":"tokenize_card"}`},
		{first, "", entered, `{"data":{"token_id":"`},
		{third, "bare", entered, `{"data":{"token_id":"`},
		{second, "", strings.Replace(entered, "{", `{"cardholder_name":"Zoë Ω","email":"z@example.com",`, 1), `{"data":{"token_id":"`},
	} {
		cmd := exec.CommandContext(t.Context(), node, filepath.Join("testdata", "complete.mjs"), s.URL+test.url, test.header)
		cmd.Stdin = bytes.NewReader([]byte(test.claims))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), test.want) {
			t.Errorf("%v: %s", err, out)
		}
	}
	p, err := r.vault.List(t.Context(), nil)
	if err != nil || len(p.Items) != 3 {
		t.Fatalf("%+v, %v", p, err)
	}
	p.Items[0].CardholderName.Expose(func(name []byte) {
		if string(name) != "Zoë Ω" {
			t.Error("another name")
		}
	})
}

// Pages of allowed origins may make these calls; other pages may not.
func TestCORS(t *testing.T) {
	r := newRig(t, nil, &httpapi.Options{AllowedOrigins: []string{shop, "http://localhost:8080"}})
	strict := newHandler(t, r.vault, nil)
	path := r.newSession(t)
	token := "/tokens/" + r.importCard(t)
	const complete = "/complete-action"
	for _, test := range []struct {
		handler                http.Handler
		method, target, origin string
		status                 int
		allowed                bool
	}{
		{r.handler, "GET", path, shop, 200, true},
		{r.handler, "HEAD", path, shop, 200, true},
		{r.handler, "GET", path, "http://localhost:8080", 200, true},
		{r.handler, "GET", path, "", 200, false},
		{r.handler, "GET", path, "null", 200, false},
		{r.handler, "GET", path, "*", 200, false},
		{r.handler, "GET", path, "http://shop.example", 200, false},
		{r.handler, "GET", path, "https://shop.example:443", 200, false},
		{r.handler, "GET", path, "https://SHOP.example", 200, false},
		{r.handler, "GET", path, "https://shop.example.evil.example", 200, false},
		{r.handler, "GET", path, "https://evil.shop.example", 200, false},
		{r.handler, "GET", path, shop + "/", 200, false},
		{r.handler, "GET", path, shop + ", " + shop, 200, false},
		{r.handler, "GET", path, "http://localhost", 200, false},
		{strict, "GET", path, shop, 200, false},
		// A page can read the error.
		{r.handler, "GET", "/sessions/x", shop, 404, true},
		{r.handler, "DELETE", path, shop, 405, true},
		{r.handler, "POST", path + complete, shop, 400, true},
		{r.handler, "GET", path + complete, shop, 405, true},
		{r.handler, "OPTIONS", path, shop, 204, true},
		{r.handler, "OPTIONS", path + complete, shop, 204, true},
		{r.handler, "OPTIONS", "/sessions/x?y", shop, 204, true},
		{r.handler, "OPTIONS", path, "https://evil.example", 204, false},
		{r.handler, "OPTIONS", path, "", 204, false},
		{strict, "OPTIONS", path + complete, shop, 204, false},
		// All other paths allow no origin.
		{r.handler, "GET", token, shop, 200, false},
		{r.handler, "GET", "/tokens", shop, 200, false},
		{r.handler, "OPTIONS", token, shop, 405, false},
		{r.handler, "OPTIONS", "/cde-import", shop, 405, false},
		{r.handler, "OPTIONS", "/sessions", shop, 404, false},
		{r.handler, "OPTIONS", path + "/x", shop, 404, false},
		{r.handler, "OPTIONS", "/tokens/card-art/" + uuid.NewString(), shop, 405, false},
	} {
		headers := []string{"X-Api-Key", r.key, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "x-api-key, authorization"}
		if test.origin != "" {
			headers = append(headers, "Origin", test.origin)
		}
		a := send(t, test.handler, test.method, test.target, "", headers...)
		where := fmt.Sprintf("%s %s from %s", test.method, test.target, test.origin)
		checkCommon(t, test.method, a)
		if a.status != test.status {
			t.Errorf("%s: status %d: %s", where, a.status, a.body)
		}
		want := map[string]string{}
		if strings.HasPrefix(test.target, "/sessions/") && !strings.HasSuffix(test.target, "/x") || test.target == "/sessions/x" {
			want["Vary"] = "Origin"
		}
		if test.allowed {
			want["Access-Control-Allow-Origin"] = test.origin
			if test.method == "OPTIONS" {
				want["Access-Control-Allow-Methods"] = "GET, HEAD, OPTIONS"
				if strings.HasSuffix(test.target, complete) {
					want["Access-Control-Allow-Methods"] = "POST, OPTIONS"
				}
				want["Access-Control-Allow-Headers"] = "content-type, x-request-id, x-api-version"
				want["Access-Control-Max-Age"] = "600"
			} else {
				want["Access-Control-Expose-Headers"] = "X-Request-Id, Retry-After"
			}
		}
		got := map[string]string{}
		for name, values := range a.header {
			if name == "Vary" || strings.HasPrefix(name, "Access-Control-") {
				got[name] = strings.Join(values, " and ")
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, not %v", where, got, want)
		}
	}
	if a := send(t, r.handler, "GET", path, "", "Origin", shop, "Origin", shop); a.header["Access-Control-Allow-Origin"] != nil {
		t.Error("two origins are allowed")
	}
}

// An account's sessions are only for the pages of its own shop, whether the page makes the
// calls itself or embeds the frame.
func TestAccountOrigins(t *testing.T) {
	const second = "https://second.example"
	shops := map[uuid.UUID][]string{}
	r := newRig(t, nil, &httpapi.Options{
		AllowedOrigins: []string{shop, second},
		AccountOrigins: func(account uuid.UUID) []string { return shops[account] },
		ClientAddr:     clients(),
	})
	other := r.newAccount(t, nil)
	shops[r.principal.Account] = []string{shop}
	account, err := other.Account(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	shops[account.ID] = []string{second}
	id, err := other.CreateSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for path, own := range map[string]string{r.newSession(t): shop, "/sessions/" + id.ID.UUID().String(): second} {
		foreign := map[string]string{shop: second, second: shop}[own]
		open := send(t, r.handler, "GET", path, "")
		open.want(t, 200) // read by the shop's server
		digits := completion(t, open, refused, "")
		for _, test := range []struct {
			what    string
			headers []string
			status  int
		}{
			{"own page", []string{"Origin", own}, 200},
			{"frame in its own page", []string{"X-Page-Origin", own, "Origin", "https://vault.example", "Sec-Fetch-Site", "same-origin"}, 200},
			{"frame in its own page, in an old browser", []string{"X-Page-Origin", own, "Origin", "https://vault.example"}, 200},
			{"page of the vault", []string{"Origin", "https://vault.example"}, 200},
			{"foreign page", []string{"Origin", foreign}, 403},
			{"frame in a foreign page", []string{"X-Page-Origin", foreign, "Sec-Fetch-Site", "same-origin"}, 403},
			{"frame in a foreign page, in an old browser", []string{"X-Page-Origin", foreign, "Origin", "https://vault.example"}, 403},
			{"own page beside a foreign one", []string{"Origin", own, "X-Page-Origin", foreign}, 403},
			{"two frames", []string{"X-Page-Origin", own, "X-Page-Origin", foreign}, 403},
			{"page without an origin", []string{"Origin", "null"}, 403},
		} {
			for _, a := range []*answer{
				send(t, r.handler, "GET", path, "", test.headers...),
				send(t, r.handler, "POST", path+"/complete-action", map[int]string{200: digits, 403: completion(t, open, entered, "")}[test.status], test.headers...),
			} {
				if a.status == 409 && test.status == 200 {
					continue // five cards were refused
				}
				if a.status != test.status || a.status == 403 && a.member(t, "classifier") != "ORIGIN_NOT_ALLOWED" {
					t.Errorf("%s: %d %s", test.what, a.status, a.body)
				}
			}
		}
		if a := send(t, r.handler, "GET", path, "", "Origin", foreign); a.header.Get("Access-Control-Allow-Origin") != foreign {
			t.Error("a page cannot read the error")
		}
		// An unknown session is answered with 404, whatever the origin.
		send(t, r.handler, "GET", "/sessions/"+uuid.NewString(), "", "Origin", foreign).want(t, 404)
	}
	if total := r.total(t); total != 0 {
		t.Errorf("%d tokens were made by foreign pages", total)
	}
}

func TestAllowedOrigins(t *testing.T) {
	r := newRig(t, nil, nil)
	for origin, ok := range map[string]bool{
		shop: true, "https://shop.example:8443": true, "https://xn--bcher-kva.example": true, "https://192.0.2.1": true, "https://localhost": true,
		"http://localhost": true, "http://localhost:3000": true, "http://127.0.0.1:65535": true, "https://shop.example:80": true,
		"": false, "*": false, "null": false, "shop.example": false, "//shop.example": false, "http://shop.example": false, "http://localhost.example": false,
		"https://": false, "https://*": false, "https://*.shop.example": false, "https://shop.example/": false, "https://shop.example/x": false,
		"https://shop.example?x": false, "https://shop.example#x": false, "https://user@shop.example": false, "https://shop.example:": false,
		"https://shop.example:443": false, "http://localhost:80": false, "https://shop.example:0": false, "https://shop.example:65536": false,
		"https://shop.example:08443": false, "https://Shop.example": false, "HTTPS://shop.example": false, "https://bücher.example": false,
		"https://shop.example,https://b.example": false, "https://shop.example ": false, " https://shop.example": false, "https://shop.example\n": false,
		"https://a b": false, "ftp://shop.example": false, "file://": false, "chrome-extension://abc": false, "http://127.0.0.11": false, "http://127.0.0.1.example": false,
	} {
		_, err := httpapi.NewHandler(r.vault, &httpapi.Options{AllowedOrigins: []string{"https://other.example", origin}})
		if (err == nil) != ok {
			t.Errorf("%q: %v", origin, err)
		}
		if len(origin) > 5 && err != nil && strings.Contains(err.Error(), origin+" ") {
			t.Errorf("the error repeats %q", origin)
		}
	}
	// Later changes to the caller's slice have no effect.
	origins := []string{shop}
	h := newHandler(t, r.vault, &httpapi.Options{AllowedOrigins: origins})
	origins[0] = "https://evil.example"
	if a := send(t, h, "OPTIONS", "/sessions/x", "", "Origin", shop); a.header.Get("Access-Control-Allow-Origin") != shop {
		t.Error("the handler shares the caller's list")
	}
}

// wantLimit checks that an answer is RATE_LIMITED, with seconds to wait.
func wantLimit(t *testing.T, a *answer, seconds int) {
	t.Helper()
	a.want(t, 429, "RATE_LIMITED")
	checkCommon(t, "GET", a)
	if got := a.header.Get("Retry-After"); got != strconv.Itoa(seconds) {
		t.Errorf("Retry-After is %s, not %d", got, seconds)
	}
}

// A session can be read 60 times a minute, known or not.
func TestSessionReads(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, nil, &httpapi.Options{AllowedOrigins: []string{shop}})
		path, second := r.newSession(t), r.newSession(t)
		for name, test := range map[string]struct {
			path   string
			status int
		}{"open": {path, 200}, "unknown": {"/sessions/" + uuid.NewString(), 404}} {
			for i := range 60 {
				method := []string{"GET", "HEAD"}[i%2]
				if a := send(t, r.handler, method, test.path, ""); a.status != test.status {
					t.Fatalf("%s: read %d is answered %d", name, i+1, a.status)
				}
			}
			a := send(t, r.handler, "GET", test.path, "", "Origin", shop, "X-Api-Version", "2.0")
			wantLimit(t, a, 1)
			if a.header.Get("Access-Control-Allow-Origin") != shop {
				t.Errorf("%s: the page cannot read the answer", name)
			}
			send(t, r.handler, "OPTIONS", test.path, "").want(t, 204)
		}
		send(t, r.handler, "GET", second, "").want(t, 200)
		for range 100 { // a malformed id is not counted
			send(t, r.handler, "GET", "/sessions/x", "").want(t, 404)
		}
		time.Sleep(time.Second)
		open := send(t, r.handler, "GET", path, "")
		open.want(t, 200)
		wantLimit(t, send(t, r.handler, "GET", path, ""), 1)
		// Completing a session is not a read.
		send(t, r.handler, "POST", path+"/complete-action", completion(t, open, entered, "")).want(t, 200)
	})
}

// A client may fail to complete sessions 30 times a minute, and make up as many ids.
// Neither limit keeps a fresh session from being completed.
func TestFailedCompletions(t *testing.T) {
	var client netip.Addr
	opts := &httpapi.Options{ClientAddr: func(*http.Request) netip.Addr { return client }}
	addresses := []string{"192.0.2.1", "192.0.2.2", "::ffff:192.0.2.3", "2001:db8::1", "2001:db8:0:1::1", ""}
	same := map[string]string{"::ffff:192.0.2.3": "192.0.2.3", "2001:db8::1": "2001:db8::ffff:ffff:ffff:ffff", "2001:db8:0:1::1": "2001:db8:0:1:8000::%eth0"}
	for name, test := range map[string]struct {
		stranger bool // the vault does not know the id
		fail     func(path, payload, bad string) (string, string, int)
	}{
		"refused card": {false, func(path, _, bad string) (string, string, int) { return path, bad, 200 }},
		"payload": {false, func(path, _, _ string) (string, string, int) {
			return path, `{"action":"tokenize_card","result":{"enc_payload":"x"}}`, 422
		}},
		"no session":       {true, func(_, good, _ string) (string, string, int) { return "/sessions/" + uuid.NewString(), good, 404 }},
		"no id":            {true, func(_, good, _ string) (string, string, int) { return "/sessions/x", good, 404 }},
		"no JSON":          {false, func(path, _, _ string) (string, string, int) { return path, "x", 400 }},
		"no body":          {false, func(path, _, _ string) (string, string, int) { return path, "", 400 }},
		"finished session": {false, func(_, good, _ string) (string, string, int) { return "", good, 409 }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				r := newRig(t, nil, opts)
				finished := r.newSession(t)
				client = netip.MustParseAddr("198.51.100.1")
				open := send(t, r.handler, "GET", finished, "")
				good := completion(t, open, entered, "")
				complete := func(path, body string) *answer { return send(t, r.handler, "POST", path+"/complete-action", body) }
				succeed := func() {
					t.Helper()
					a := complete(r.newSession(t), completion(t, open, entered, ""))
					a.want(t, 200)
					if a.member(t, "status") != "success" {
						t.Fatal(a.body)
					}
				}
				complete(finished, good).want(t, 200)
				var path string
				fail := func() (*answer, int) {
					p, body, status := test.fail(path, good, completion(t, open, refused, ""))
					if p == "" {
						p = finished
					}
					return complete(p, body), status
				}
				for _, address := range addresses {
					client, _ = netip.ParseAddr(address)
					for i := range 30 {
						if i%4 == 0 { // a session accepts five cards
							path = r.newSession(t)
						}
						if a, status := fail(); a.status != status {
							t.Fatalf("%s: failure %d is answered %d: %s", address, i+1, a.status, a.body)
						}
						if i == 14 {
							succeed()
						}
					}
					limited := func() {
						t.Helper()
						a, _ := fail()
						wantLimit(t, a, 2)
					}
					limited()
					if other := same[address]; other != "" {
						client = netip.MustParseAddr(other)
						limited()
					}
					succeed()
					// The two limits are separate.
					if other := complete("/sessions/x", good); (other.status == 429) != test.stranger {
						t.Errorf("%s: an id that never was is answered %d", address, other.status)
					}
					if other := complete(finished, good); (other.status == 429) == test.stranger {
						t.Errorf("%s: a finished session is answered %d", address, other.status)
					}
					send(t, r.handler, "GET", path, "").want(t, 200)
				}
				// Completions that succeed cost nothing.
				time.Sleep(2 * time.Second)
				for range 40 {
					succeed()
				}
				if a, status := fail(); a.status != status {
					t.Errorf("two seconds later: %d %s", a.status, a.body)
				}
				a, _ := fail()
				wantLimit(t, a, 2)
			})
		})
	}
}

// The longest wait is a minute, after any number of failures.
func TestDebt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		var paths []string
		for range 100 {
			paths = append(paths, r.newSession(t))
		}
		for _, path := range paths {
			send(t, r.handler, "POST", path+"/complete-action", "{}").want(t, 422)
		}
		wantLimit(t, send(t, r.handler, "POST", paths[0]+"/complete-action", "{}"), 60)
		time.Sleep(time.Minute)
		send(t, r.handler, "POST", paths[0]+"/complete-action", "{}").want(t, 422)
		wantLimit(t, send(t, r.handler, "POST", paths[0]+"/complete-action", "{}"), 2)
	})
}

// A failure of the vault itself is not held against the client.
func TestFailuresOfTheVault(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		path := r.newSession(t)
		body := completion(t, send(t, r.handler, "GET", path, ""), entered, "")
		r.store.update.Store(pointer(io.ErrUnexpectedEOF))
		for range 40 {
			send(t, r.handler, "POST", path+"/complete-action", body).want(t, 500)
		}
		r.store.update.Store(nil)
		send(t, r.handler, "POST", path+"/complete-action", body).want(t, 200)
	})
}

// Of concurrent requests only as many are let in as may fail. The others are refused before
// their bodies are read.
func TestFailuresAtOnce(t *testing.T) {
	const n = 40
	for name, test := range map[string]struct {
		known  bool
		places int
		status int
	}{
		"ids that never were": {false, 30, 404},
		"one session":         {true, 31, 422}, // one more, as a session without a failure
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				r := newRig(t, nil, nil)
				path := r.newSession(t)
				if !test.known {
					path = "/sessions/" + uuid.NewString()
				}
				arrived, release := make(chan struct{}), make(chan struct{})
				statuses := make(chan int, n)
				var group sync.WaitGroup
				for range n {
					group.Go(func() {
						body := &gate{arrived: arrived, release: release}
						req, err := http.NewRequestWithContext(t.Context(), "POST", path+"/complete-action", body)
						if err != nil {
							t.Error(err)
							return
						}
						req.RemoteAddr, req.ContentLength = "192.0.2.1:1", -1
						req.ProtoMajor = 2 // which does not read an unwanted body
						req.Header.Set("Content-Type", "application/json")
						w := &statusWriter{header: http.Header{}}
						r.handler.ServeHTTP(w, req)
						statuses <- w.status
					})
				}
				for range test.places {
					<-arrived
				}
				for range n - test.places {
					if status := <-statuses; status != 429 {
						t.Errorf("while others are under way one more is answered %d", status)
					}
				}
				close(release)
				group.Wait()
				for range test.places {
					if status := <-statuses; status != test.status {
						t.Errorf("status %d", status)
					}
				}
				again := func() *answer { return send(t, r.handler, "POST", path+"/complete-action", "{}") }
				if test.known {
					wantLimit(t, again(), 4) // for the extra request too
					time.Sleep(2 * time.Second)
				}
				wantLimit(t, again(), 2)
				time.Sleep(2 * time.Second)
				again().want(t, test.status)
				wantLimit(t, again(), 2)
			})
		})
	}
}

// A gate is a body that blocks its reader until released.
type gate struct{ arrived, release chan struct{} }

func (g *gate) Read(p []byte) (int, error) {
	if g.arrived == nil {
		return 0, io.EOF
	}
	g.arrived <- struct{}{}
	<-g.release
	g.arrived = nil
	return copy(p, `{}`), nil
}

type statusWriter struct {
	header http.Header
	status int
}

func (w *statusWriter) Header() http.Header         { return w.header }
func (w *statusWriter) WriteHeader(status int)      { w.status = status }
func (w *statusWriter) Write(p []byte) (int, error) { return len(p), nil }

// TestIdentificationLimits: failed identifications are limited like refused cards. A
// request to a session that already has a card is a failure too.
func TestIdentificationLimits(t *testing.T) {
	var client netip.Addr
	for what, state := range map[string]idv.State{"failed": idv.Failed, "pending": idv.Pending} {
		inBubble(t, func(t *testing.T) {
			client = netip.MustParseAddr("192.0.2.1")
			v := verifier(idv.Pending)
			r := newRig(t, &cardvault.Options{IDV: &v}, &httpapi.Options{ClientAddr: func(*http.Request) netip.Addr { return client }})
			var paths []string
			for range 30 {
				path := r.newSession(t)
				paths = append(paths, path)
				open := send(t, r.handler, "GET", path, "")
				send(t, r.handler, "POST", path+"/complete-action", completion(t, open, entered, "")).want(t, 200)
			}
			time.Sleep(time.Second)
			v = verifier(state)
			for _, path := range paths {
				if state == idv.Failed {
					for range 3 { // repeated reads are not counted
						if a := send(t, r.handler, "GET", path, ""); a.member(t, "status") != "failed" {
							t.Fatal(a.body)
						}
					}
				} else if a := send(t, r.handler, "POST", path+"/complete-action", `{"x":1}`); a.body != `{"next_action":"wait"}` {
					t.Fatal(a.body)
				}
			}
			late := r.newSession(t)
			send(t, r.handler, "POST", late+"/complete-action", `{}`).want(t, 422) // its first failure
			if a := send(t, r.handler, "POST", late+"/complete-action", `{}`); a.status != 429 {
				t.Errorf("%s: one more is answered %d", what, a.status)
			}
			client = netip.MustParseAddr("192.0.2.2")
			send(t, r.handler, "POST", late+"/complete-action", `{}`).want(t, 422)
		})
	}
}

// A verifier is an idv.Provider whose look-ups return a fixed state.
type verifier idv.State

func (v *verifier) Info() idv.Info { return idv.Info{Name: "verifier"} }

func (v *verifier) Identify(_ context.Context, r *idv.Request) (*idv.Result, error) {
	return &idv.Result{State: idv.Pending, Reference: r.IdempotencyKey}, nil
}

func (v *verifier) LookupIdentification(_ context.Context, r *idv.LookupRequest) (*idv.Result, error) {
	return &idv.Result{State: idv.State(*v), Reference: r.Reference}, nil
}

// Each reason has a sentence for people.
func TestReasons(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, &cardvault.Options{Schemes: []card.Scheme{card.VISA}}, nil)
		var seen []string
		for reason, claims := range map[string]string{
			"invalid_account_number": strings.Replace(entered, pan, pan[:15]+"1", 1),
			"invalid_expiry_date":    strings.Replace(entered, `:4,`, `:13,`, 1),
			"card_expired":           strings.Replace(entered, "2031", "2025", 1),
			"invalid_security_code":  strings.Replace(entered, "737", "73", 1),
			"unsupported_scheme":     strings.Replace(entered, pan, "5555555555554444", 1),
		} {
			path := r.newSession(t)
			for i := range 5 {
				open := send(t, r.handler, "GET", path, "")
				a := send(t, r.handler, "POST", path+"/complete-action", completion(t, open, claims, ""))
				if i == 4 {
					reason = "too_many_attempts"
				}
				data := a.object(t)["data"].(map[string]any)
				text, _ := data["reason"].(string)
				if !strings.HasSuffix(text, ".") || data["reason_code"] != reason || len(data) != 2 || slices.Contains(seen, text) && i == 0 {
					t.Errorf("%s: %s", reason, a.body)
				}
				if _, open := a.object(t)["next_action"]; open != (i < 4) || a.member(t, "status") != "failed" {
					t.Errorf("card %d: %s", i+1, a.body)
				}
				seen = append(seen, text)
				if i == 4 {
					if dead := send(t, r.handler, "GET", path, ""); dead.body != a.body {
						t.Errorf("afterwards: %s", dead.body)
					}
					send(t, r.handler, "POST", path+"/complete-action", completion(t, open, entered, "")).want(t, 409, "SESSION_COMPLETED")
				}
			}
		}
	})
}
