package httpapi_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/google/uuid"
)

func TestNewHandlerErrors(t *testing.T) {
	r := newRig(t, nil, nil)
	if _, err := httpapi.NewHandler(nil, nil); err == nil {
		t.Error("a nil vault is accepted")
	}
	for _, o := range []httpapi.Options{
		{Timeout: -1},
		{RateLimit: httpapi.RateLimit{PerSecond: -1}},
		{RateLimit: httpapi.RateLimit{PerSecond: 1, Burst: -1}},
		{KeyRateLimit: httpapi.RateLimit{PerSecond: math.NaN()}},
	} {
		if h, err := httpapi.NewHandler(r.vault, &o); err == nil || h != nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// A handler serves all accounts of the vault, whichever account its handle works on.
func TestHandleDoesNotMatter(t *testing.T) {
	r := newRig(t, nil, nil)
	id := r.importCard(t)
	h := newHandler(t, r.newAccount(t, nil), nil)
	send(t, h, "GET", "/tokens/"+id, "", "X-Api-Key", r.key).want(t, 200)
}

// RateLimit limits an account with all its keys; KeyRateLimit limits a key.
func TestRateLimit(t *testing.T) {
	for _, test := range []struct {
		limit httpapi.RateLimit
		burst int
		retry int // seconds
	}{
		{httpapi.RateLimit{}, 1000, 0},
		{httpapi.RateLimit{Burst: 5}, 1000, 0},
		{httpapi.RateLimit{PerSecond: 2}, 2, 1},
		{httpapi.RateLimit{PerSecond: 0.5}, 1, 2},
		{httpapi.RateLimit{PerSecond: 0.3, Burst: 3}, 3, 4},
		{httpapi.RateLimit{PerSecond: 100, Burst: 7}, 7, 1},
		{httpapi.RateLimit{PerSecond: 0.1, Burst: 10}, 10, 10},
	} {
		for what, opts := range map[string]*httpapi.Options{"account": {RateLimit: test.limit}, "key": {KeyRateLimit: test.limit}} {
			inBubble(t, func(t *testing.T) {
				r := newRig(t, nil, opts)
				_, second := r.newKey(t, r.vault, 0, cardvault.AllScopes()...)
				_, foreign := r.newKey(t, r.newAccount(t, nil), 0, cardvault.AllScopes()...)
				get := func(key string) *answer { return send(t, r.handler, "GET", "/tokens", "", "X-Api-Key", key) }
				for range test.burst {
					get(r.key).want(t, 200)
				}
				if test.retry == 0 {
					return
				}
				a := get(r.key)
				a.want(t, 429, "RATE_LIMITED")
				if got := a.header.Get("Retry-After"); got != strconv.Itoa(test.retry) {
					t.Errorf("%s %+v: Retry-After is %s", what, test.limit, got)
				}
				if got := get(second).status; (got == 429) != (what == "account") {
					t.Errorf("%s %+v: the other key of the account is answered %d", what, test.limit, got)
				}
				// An account is not limited by another, and an unknown key counts for none.
				get(foreign).want(t, 200)
				get("x").want(t, 401)
				// A refused request costs nothing.
				for range 100 {
					get(r.key).want(t, 429)
				}
				time.Sleep(time.Duration(test.retry) * time.Second)
				get(r.key).want(t, 200)
				// After a long time the burst is full again, and no larger.
				time.Sleep(time.Hour)
				for range test.burst {
					get(r.key).want(t, 200)
				}
				get(r.key).want(t, 429)
			})
		}
	}
}

// A key and its descendants share one limit.
func TestRateLimitOfChildren(t *testing.T) {
	limit := httpapi.RateLimit{PerSecond: 1, Burst: 5}
	for what, opts := range map[string]*httpapi.Options{"account": {RateLimit: limit}, "key": {KeyRateLimit: limit}} {
		inBubble(t, func(t *testing.T) {
			r := newRig(t, nil, opts)
			get := func(key string) int { return send(t, r.handler, "GET", "/tokens", "", "X-Api-Key", key).status }
			keys := []string{r.key}
			creator := r.principal.ID
			for i := range 100 {
				child, err := r.vault.CreateAPIKey(t.Context(), "child", cardvault.AllScopes(), &cardvault.APIKeyOptions{Creator: creator})
				if err != nil {
					t.Fatal(err)
				}
				keys = append(keys, child.Text.Text())
				if i == 50 { // the others are made by this one
					creator = child.ID
				}
			}
			answered := 0
			for range 10 {
				for _, key := range keys {
					if get(key) == 200 {
						answered++
					}
				}
				time.Sleep(time.Second)
			}
			if answered != 5+9 {
				t.Errorf("%s: in ten seconds a key and its descendants had %d answers", what, answered)
			}
			_, other := r.newKey(t, r.vault, 0, cardvault.ScopeTokensRead)
			if got := get(other); what == "key" && got != 200 {
				t.Errorf("an unrelated key is answered %d", got)
			}
		})
	}
}

// A key that uses up the limit of its account can still be revoked.
func TestRevocationBesideALimit(t *testing.T) {
	for what, opts := range map[string]*httpapi.Options{
		"account": {RateLimit: httpapi.RateLimit{PerSecond: 1, Burst: 5}},
		"key":     {KeyRateLimit: httpapi.RateLimit{PerSecond: 1, Burst: 5}},
	} {
		inBubble(t, func(t *testing.T) {
			r := newRig(t, nil, opts)
			stolen, err := r.vault.CreateAPIKey(t.Context(), "stolen", cardvault.AllScopes(), &cardvault.APIKeyOptions{Creator: r.principal.ID})
			if err != nil {
				t.Fatal(err)
			}
			call := func(key, method, path string) int {
				return send(t, r.handler, method, path, "", "X-Api-Key", key).status
			}
			for range 10 { // use up the limit, and the limit of revocations
				call(stolen.Text.Text(), "GET", "/tokens")
				call(stolen.Text.Text(), "DELETE", "/api-keys/"+uuid.NewString())
			}
			if got := call(stolen.Text.Text(), "DELETE", "/api-keys/"+uuid.NewString()); got != 429 {
				t.Errorf("%s: revocations have no limit: %d", what, got)
			}
			if got := call(r.key, "GET", "/tokens"); got != 429 {
				t.Errorf("%s: the limit is not used up: %d", what, got)
			}
			if got := call(r.key, "DELETE", "/api-keys/"+stolen.ID.String()); got != 204 {
				t.Errorf("%s: the key cannot be revoked: %d", what, got)
			}
		})
	}
}

// The limit of an account also holds for a key that is below its own limit. A request that
// the account's limit refuses does not count for the key.
func TestRateLimitOfKeyInAccount(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		account, err := r.vault.Account(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h := newHandler(t, r.vault, &httpapi.Options{
			RateLimit:    httpapi.RateLimit{PerSecond: 1, Burst: 4},
			KeyRateLimit: httpapi.RateLimit{PerSecond: 0.1, Burst: 2},
			Authenticator: authenticator(func(_ context.Context, key string) (*httpapi.Principal, error) {
				return &httpapi.Principal{Name: key, Account: account}, nil
			}),
		})
		want := func(key string, status int, retry string) {
			t.Helper()
			a := send(t, h, "GET", "/tokens", "", "X-Api-Key", key)
			if a.status != status || a.header.Get("Retry-After") != retry {
				t.Errorf("%s: %d after %q, want %d after %q", key, a.status, a.header.Get("Retry-After"), status, retry)
			}
		}
		want("a", 403, "")
		want("a", 403, "")
		want("a", 429, "10")
		want("b", 403, "")
		want("b", 403, "")
		want("c", 429, "1")
		time.Sleep(2 * time.Second)
		want("c", 403, "")
		want("c", 403, "")
		want("c", 429, "10")
	})
}

// The memory for limits is bounded, for any number of keys and accounts.
func TestRateLimitOfManyKeys(t *testing.T) {
	few := httpapi.RateLimit{PerSecond: 0.001}
	for what, opts := range map[string]*httpapi.Options{"account": {RateLimit: few}, "key": {KeyRateLimit: few}} {
		inBubble(t, func(t *testing.T) {
			r := newRig(t, nil, nil)
			// Each text is a key of its own, in an account of its own.
			opts.Authenticator = authenticator(func(_ context.Context, key string) (*httpapi.Principal, error) {
				var id uuid.UUID
				copy(id[:], key)
				return &httpapi.Principal{Key: &cardvault.APIKey{ID: id, Account: id}, Account: &cardvault.Account{ID: id}}, nil
			})
			h := newHandler(t, r.vault, opts)
			get := func(key string) int { return send(t, h, "GET", "/tokens", "", "X-Api-Key", key).status }
			if get("first") != 403 || get("first") != 429 {
				t.Fatal("the limit does not work")
			}
			const generation = 32 << 10
			for i := range 2*generation - 1 {
				if get(strconv.Itoa(i)) != 403 {
					t.Fatal("a fresh key is limited")
				}
			}
			last := strconv.Itoa(2*generation - 2)
			if get("0") != 429 || get(last) != 429 {
				t.Errorf("%s: limits are forgotten while there is room", what)
			}
			// Now the first generation is forgotten, except recent keys.
			if get("first") != 403 {
				t.Errorf("%s: limits grow without bound", what)
			}
			if get("0") != 429 || get(last) != 429 {
				t.Errorf("%s: recent limits are forgotten with the oldest", what)
			}
		})
	}
}

func TestAuthenticator(t *testing.T) {
	r := newRig(t, nil, nil)
	account, err := r.vault.Account(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	asked := ""
	secret := "the key is " + secretPAN
	h := newHandler(t, r.vault, &httpapi.Options{Authenticator: authenticator(func(ctx context.Context, key string) (*httpapi.Principal, error) {
		asked = key
		if _, ok := ctx.Deadline(); !ok {
			t.Error("no deadline")
		}
		switch key {
		case "reader":
			return &httpapi.Principal{Scopes: []cardvault.Scope{cardvault.ScopeTokensRead}, Account: account}, nil
		case "importer":
			live := *account
			live.ImportApproved = false
			return &httpapi.Principal{Scopes: cardvault.AllScopes(), Account: &live}, nil
		case "down":
			return nil, errors.Join(cardvault.ErrUnavailable, errors.New(secret))
		case "broken":
			return nil, errors.New(secret)
		case "refused":
			return nil, errors.Join(errors.New(secret), cardvault.ErrUnauthenticated)
		}
		return nil, cardvault.ErrUnauthenticated
	})})
	for _, test := range []struct {
		key, method, path, body string
		status                  int
	}{
		{"reader", "GET", "/tokens", "", 200},
		{"reader", "POST", "/cde-import", cardBody, 403},
		{"importer", "POST", "/cde-import", cardBody, 403},
		{"importer", "POST", "/tokens/session", "", 200},
		{"down", "GET", "/tokens", "", 503},
		{"broken", "GET", "/tokens", "", 500},
		{"refused", "GET", "/tokens", "", 401},
		{r.key, "GET", "/tokens", "", 401},
		{strings.Repeat("k", 5000), "GET", "/tokens", "", 401},
		{"reader", "GET", "/nothing", "", 404},
		{"reader", "PUT", "/tokens", "", 405},
	} {
		asked = "nobody"
		a := send(t, h, test.method, test.path, test.body, "X-Api-Key", test.key)
		a.want(t, test.status)
		checkCommon(t, test.method, a)
		transcript.NoEcho(t, test.key, a.body, headerText(a.header))
		if want := test.key; asked != want && test.status != 404 && test.status != 405 {
			t.Errorf("asked for %q", asked)
		}
	}
	// A value that cannot be a key is refused without asking the authenticator.
	asked = "nobody"
	send(t, h, "GET", "/tokens", "").want(t, 401)
	send(t, h, "GET", "/tokens", "", "X-Api-Key", "").want(t, 401)
	send(t, h, "GET", "/tokens", "", "X-Api-Key", "reader", "X-Api-Key", "reader").want(t, 401)
	send(t, h, "GET", "/nothing", "", "X-Api-Key", "reader").want(t, 404)
	if asked != "nobody" {
		t.Errorf("asked for %q", asked)
	}
}

// A key that is revoked during the call makes no key. A key of another Authenticator cannot
// pass on scopes that the vault does not know for it.
func TestCreatorOfAPIKey(t *testing.T) {
	r := newRig(t, nil, nil)
	account, err := r.vault.Account(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	narrow, _ := r.newKey(t, r.vault, 0, cardvault.ScopeAPIKeysWrite)
	revoked, _ := r.newKey(t, r.vault, 0, cardvault.AllScopes()...)
	for _, test := range []struct {
		name   string
		id     uuid.UUID
		status int
	}{
		{"revoked", revoked.ID, 401},
		{"unknown", uuid.New(), 401},
		{"narrow", narrow.ID, 403},
		{"known", r.principal.ID, 200},
	} {
		h := newHandler(t, r.vault, &httpapi.Options{Authenticator: authenticator(func(ctx context.Context, _ string) (*httpapi.Principal, error) {
			if test.name == "revoked" {
				if err := r.vault.DeleteAPIKey(ctx, revoked.ID); err != nil {
					t.Error(err)
				}
			}
			return &httpapi.Principal{Key: &cardvault.APIKey{ID: test.id, Account: account.ID, Scopes: cardvault.AllScopes()}, Account: account}, nil
		}), Challenge: "Bearer"})
		a := send(t, h, "POST", "/api-keys", `{"label":"l","scopes":["tokens:read"]}`, "X-Api-Key", "x")
		if a.status != test.status {
			t.Errorf("%s: %d %s", test.name, a.status, a.body)
		}
		if got := a.header.Get("WWW-Authenticate"); test.status == 401 && got != "Bearer" {
			t.Errorf("%s: the challenge is %q", test.name, got)
		}
	}
}

// The log names the client's address, key and request.
func TestClientAddr(t *testing.T) {
	r := newRig(t, nil, nil)
	r.log.take()
	request := "9b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"
	r.do(t, "POST", "/cde-import", cardBody, "X-Request-Id", request, "X-Forwarded-For", "198.51.100.7")
	log := r.log.take()
	for _, want := range []string{"operation=token.import", "address=192.0.2.1", "key_id=" + r.principal.ID.String(), "request_id=" + request} {
		if !strings.Contains(log, want) {
			t.Errorf("no %s in %s", want, log)
		}
	}
	for name, test := range map[string]struct {
		addr netip.Addr
		want string
	}{
		"IPv4": {netip.MustParseAddr("198.51.100.7"), "address=198.51.100.7 "},
		"IPv6": {netip.MustParseAddr("2001:db8::1"), "address=2001:db8::1 "},
		"none": {netip.Addr{}, `address="" `},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHandler(t, r.vault, &httpapi.Options{ClientAddr: func(*http.Request) netip.Addr { return test.addr }})
			r.log.take()
			send(t, h, "POST", "/cde-import", cardBody, "X-Api-Key", r.key).want(t, 200)
			if log := r.log.take(); !strings.Contains(log, test.want) {
				t.Errorf("no %s in %s", test.want, log)
			}
		})
	}
}

// The log names the endpoint's path, never the id in it.
func TestLog(t *testing.T) {
	r := newRig(t, nil, nil)
	id := r.importCard(t)
	for path, want := range map[string]string{
		"/tokens/" + id: "path=/tokens/* status=200", "/tokens?business_key=secret": "path=/tokens status=200",
		"/nothing/secret": `path="" status=404`, "/tokens/secret": "path=/tokens/* status=404",
		"/tokens/" + id + "/security-code": "path=/tokens/*/security-code status=200", ppanPath + "/" + id: `path="" status=404`,
		"/tokens/" + id + "/payment-data": "path=/tokens/*/payment-data status=200", "/tokens/card-art/" + id: "path=/tokens/card-art/* status=404",
		"/webhooks/" + id: "path=/webhooks/* status=404", "/webhooks/" + id + "/deliveries": "path=/webhooks/*/deliveries status=404", "/events/" + id + "/redeliver": `path=/events/*/redeliver status=405`,
	} {
		r.log.take()
		r.do(t, "GET", path, "")
		log := r.log.take()
		if !strings.Contains(log, want) || !strings.Contains(log, "level=DEBUG") || strings.Contains(log, id) || strings.Contains(log, "secret") {
			t.Errorf("%s is logged as %s", path, log)
		}
	}
}

// A key of a frozen account is refused by name, a wrong one as ever; shoppers learn nothing. A
// key of a closed account is no key.
func TestAccountEnds(t *testing.T) {
	r := newRig(t, nil, nil)
	created, err := r.vault.CreateSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	session := "/sessions/" + created.ID.UUID().String()
	r.do(t, "GET", session, "").want(t, 200)
	if _, err := r.vault.FreezeAccount(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.do(t, "GET", "/tokens", "").want(t, 403, "ACCOUNT_FROZEN")
	r.do(t, "POST", "/cde-import", cardBody).want(t, 403, "ACCOUNT_FROZEN")
	r.do(t, "GET", session, "").want(t, 404, "NOT_FOUND")

	if _, err := r.vault.ThawAccount(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.do(t, "GET", "/tokens", "").want(t, 200)
	r.do(t, "GET", session, "").want(t, 200)
	if _, err := r.vault.CloseAccount(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.do(t, "GET", "/tokens", "").want(t, 401, "UNAUTHORIZED")
	r.do(t, "GET", session, "").want(t, 404, "NOT_FOUND")
}

// Approval is looked up on each request.
func TestApproval(t *testing.T) {
	r := newRig(t, nil, nil)
	for _, approved := range []bool{false, true} {
		if _, err := r.vault.UpdateAccount(t.Context(), cardvault.AccountUpdate{ImportApproved: &approved}); err != nil {
			t.Fatal(err)
		}
		a := r.do(t, "POST", "/cde-import", cardBody)
		if (a.status == 200) != approved || !approved && a.member(t, "classifier") != "IMPORT_NOT_APPROVED" {
			t.Errorf("approved: %v, answer %d %s", approved, a.status, a.body)
		}
		r.do(t, "GET", "/tokens", "").want(t, 200)
	}
}

func TestClose(t *testing.T) {
	r := newRig(t, &cardvault.Options{PPAN: &provider{}, Webhooks: &sender{}}, nil)
	id, session := r.importCard(t), r.newSession(t)
	webhook := "/webhooks/" + r.newWebhook(t, r.vault)
	if err := r.vault.Close(); err != nil {
		t.Fatal(err)
	}
	for _, e := range []struct{ method, path, body string }{
		{"GET", "/tokens", ""}, {"GET", "/tokens/" + id, ""}, {"POST", "/cde-import", cardBody}, {"DELETE", "/tokens/" + id, ""}, {"POST", "/tokens/session", ""},
		{"POST", "/tokens/" + id + "/provisions", ""}, {"POST", "/tokens/" + id + "/payment-data", payment}, {"GET", "/tokens/" + id + "/payment-data", ""}, {"GET", "/tokens/card-art/" + id, ""},
		{"GET", "/tokens/" + id + "/security-code", ""}, {"POST", "/tokens/" + id + "/refresh-session", ""}, {"POST", "/tokens/" + id + "/consume", ""}, {"POST", ppanPath, tokenBody(id)},
		{"POST", "/tokens/" + id + "/replace", cardBody}, {"POST", "/tokens/" + id + "/replace-session", ""},
		{"GET", session, ""}, {"POST", session + "/complete-action", "{}"},
		{"GET", "/webhooks", ""}, {"POST", "/webhooks", hook}, {"GET", webhook, ""}, {"PATCH", webhook, `{"legacy_hmac":true}`}, {"DELETE", webhook, ""},
		{"POST", webhook + "/rotate-secret", ""}, {"POST", webhook + "/test", ""}, {"GET", webhook + "/deliveries", ""}, {"POST", "/events/" + id + "/redeliver", ""},
	} {
		a := r.do(t, e.method, e.path, e.body, ppanHeaders...)
		a.want(t, 503, "SERVICE_UNAVAILABLE")
		if a.header.Get("Retry-After") != "5" {
			t.Error("no Retry-After")
		}
	}
	r.do(t, "GET", "/nothing", "").want(t, 404)
}

// A request whose client has gone changes nothing and is not logged as an error.
func TestCancelled(t *testing.T) {
	r := newRig(t, nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.do(t, "GET", "/tokens", "") // the first request logs that its ResponseWriter has no deadlines
	r.log.take()
	sendContext(t, ctx, r.handler, "POST", "/cde-import", cardBody, "X-Api-Key", r.key).want(t, 503)
	if n := r.total(t); n != 0 {
		t.Errorf("%d tokens", n)
	}
	if log := r.log.take(); strings.Contains(log, "level=ERROR") {
		t.Errorf("logged as an error: %s", log)
	}
}

// TestNoDeadlines: a ResponseWriter without deadlines is logged as an error, once.
func TestNoDeadlines(t *testing.T) {
	for name, test := range map[string]struct {
		wrap func(http.ResponseWriter) http.ResponseWriter
		want int
	}{
		"net/http":    {func(w http.ResponseWriter) http.ResponseWriter { return w }, 0},
		"with Unwrap": {func(w http.ResponseWriter) http.ResponseWriter { return unwrapper{w} }, 0},
		"without it":  {func(w http.ResponseWriter) http.ResponseWriter { return struct{ http.ResponseWriter }{w} }, 1},
	} {
		log := new(logBuffer)
		r := newRig(t, nil, &httpapi.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.handler.ServeHTTP(test.wrap(w), q) }))
		for range 3 {
			answer, err := s.Client().Post(s.URL+"/tokens/session", "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
		}
		s.Close()
		if said := log.take(); strings.Count(said, "no deadlines") != test.want {
			t.Errorf("%s: %s", name, said)
		}
	}
}

type unwrapper struct{ http.ResponseWriter }

func (u unwrapper) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// Refusals are logged at info level, with the caller and without the credential or id.
func TestRefusalsAreLogged(t *testing.T) {
	log := new(logBuffer)
	r := newRig(t, nil, &httpapi.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	k, reads := r.newKey(t, r.vault, 0, cardvault.ScopeTokensRead)
	id := r.importCard(t)
	account := "account=" + r.principal.Account.String()
	for _, test := range []struct {
		method, target, key string
		status              int
		want                []string
	}{
		{"GET", "/tokens/" + id, reads, 200, nil},
		{"GET", "/tokens/" + uuid.NewString(), reads, 404, nil},
		{"DELETE", "/tokens/" + id, reads, 403, []string{"path=/tokens/*", account, "key_id=" + k.ID.String()}},
		{"GET", "/tokens/" + id, reads[:len(reads)-1], 401, []string{"path=/tokens/*"}},
		{"GET", "/tokens/" + id, "", 401, []string{"path=/tokens/*"}},
	} {
		log.take()
		send(t, r.handler, test.method, test.target, "", "X-Api-Key", test.key).want(t, test.status)
		line := log.take()
		if (line != "") != (test.want != nil) {
			t.Errorf("%s %d: logged %q", test.method, test.status, line)
			continue
		}
		if test.want == nil {
			continue
		}
		for _, want := range append(test.want, "level=INFO", "status="+strconv.Itoa(test.status), "address=192.0.2.1", "request_id=") {
			if !strings.Contains(line, want) {
				t.Errorf("%s %d: %q lacks %s", test.method, test.status, line, want)
			}
		}
		if strings.Contains(line, reads[len(reads)-20:]) || strings.Contains(line, id) || test.key == "" && strings.Contains(line, "key_id") {
			t.Errorf("%s %d: logged %q", test.method, test.status, line)
		}
	}
}
