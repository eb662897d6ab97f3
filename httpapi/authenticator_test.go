package httpapi_test

import (
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/google/uuid"
)

// A requester is an httpapi.Authenticator of whole requests.
type requester func(r *http.Request) (*httpapi.Principal, error)

func (f requester) Authenticate(r *http.Request) (*httpapi.Principal, error) { return f(r) }

// account returns the account of a rig.
func (r *rig) account(t testing.TB) *cardvault.Account {
	t.Helper()
	a, err := r.vault.Account(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// An authenticator sees the request and its deadline, and cannot read the body.
func TestAuthenticatorSeesRequest(t *testing.T) {
	r := newRig(t, nil, nil)
	account := r.account(t)
	h := newHandler(t, r.vault, &httpapi.Options{Authenticator: requester(func(q *http.Request) (*httpapi.Principal, error) {
		if _, ok := q.Context().Deadline(); !ok {
			t.Error("no deadline")
		}
		if body, err := io.ReadAll(q.Body); len(body) > 0 || err == nil {
			t.Errorf("the body is %q, %v", body, err)
		}
		if err := q.ParseForm(); q.Form.Has("account_number") {
			t.Errorf("the body is a form: %v", err)
		}
		token, ok := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer ")
		if !ok || token != "good" {
			return nil, cardvault.ErrUnauthenticated
		}
		return &httpapi.Principal{Account: account, Name: "shop", Scopes: cardvault.AllScopes()}, nil
	}), Challenge: `Bearer realm="vault"`})

	send(t, h, "POST", "/cde-import", cardBody, "Authorization", "Bearer good").want(t, 200)
	for _, headers := range [][]string{nil, {"Authorization", "Bearer bad"}, {"X-Api-Key", r.key}} {
		a := send(t, h, "POST", "/cde-import", cardBody, headers...)
		a.want(t, 401, "UNAUTHORIZED")
		if got := a.header.Get("WWW-Authenticate"); got != `Bearer realm="vault"` {
			t.Errorf("the challenge is %q", got)
		}
		if strings.Contains(a.body, "x-api-key") {
			t.Errorf("the answer asks for an API key: %s", a.body)
		}
	}
	if _, err := httpapi.NewHandler(r.vault, &httpapi.Options{Challenge: "a\r\nb: c"}); err == nil {
		t.Error("a challenge of two lines is accepted")
	}
}

// An invalid principal is answered with 500 and opens nothing.
func TestBadPrincipals(t *testing.T) {
	r := newRig(t, nil, nil)
	account := r.account(t)
	for name, p := range map[string]*httpapi.Principal{
		"none":           nil,
		"no account":     {Scopes: cardvault.AllScopes()},
		"zero account":   {Account: &cardvault.Account{}, Scopes: cardvault.AllScopes()},
		"key of another": {Account: account, Key: &cardvault.APIKey{ID: uuid.New(), Account: uuid.New(), Scopes: cardvault.AllScopes()}},
		"key without id": {Account: account, Key: &cardvault.APIKey{Account: account.ID, Scopes: cardvault.AllScopes()}},
		"long name":      {Account: account, Scopes: cardvault.AllScopes(), Name: strings.Repeat("x", 65)},
		"bad name":       {Account: account, Scopes: cardvault.AllScopes(), Name: "a\nb"},
		"negative limit": {Account: account, Scopes: cardvault.AllScopes(), RateLimit: httpapi.RateLimit{PerSecond: -1}},
		"no limit":       {Account: account, Scopes: cardvault.AllScopes(), RateLimit: httpapi.RateLimit{PerSecond: math.NaN()}},
	} {
		h := newHandler(t, r.vault, &httpapi.Options{Authenticator: requester(func(*http.Request) (*httpapi.Principal, error) { return p, nil })})
		for _, e := range [][3]string{{"GET", "/tokens", ""}, {"POST", "/api-keys", `{"label":"l","scopes":["tokens:read"]}`}} {
			if a := send(t, h, e[0], e[1], e[2]); a.status != 500 {
				t.Errorf("%s: %s is answered %d %s", name, e[1], a.status, a.body)
			}
		}
	}
}

// An authenticator's error is not taken for an error of the request, and does not leak into
// the answer.
func TestAuthenticatorErrors(t *testing.T) {
	r := newRig(t, nil, nil)
	for err, want := range map[error]int{
		cardvault.ErrNotFound:                     500,
		cardvault.ErrInsufficientScope:            500,
		&cardvault.FieldError{Field: "x"}:         500,
		errors.New("no word of it"):               500,
		cardvault.ErrUnavailable:                  503,
		cardvault.ErrUnauthenticated:              401,
		errors.Join(cardvault.ErrUnauthenticated): 401,
	} {
		h := newHandler(t, r.vault, &httpapi.Options{Authenticator: requester(func(*http.Request) (*httpapi.Principal, error) { return nil, err })})
		if a := send(t, h, "GET", "/tokens/"+uuid.NewString(), ""); a.status != want || strings.Contains(string(a.body), "no word") {
			t.Errorf("%v is answered %d %s", err, a.status, a.body)
		}
	}
}

// A principal has a limit of its own, within the limit of its account. Changing its name
// does not help.
func TestRateLimitOfPrincipal(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		account := r.account(t)
		own := httpapi.RateLimit{}
		h := newHandler(t, r.vault, &httpapi.Options{
			RateLimit:    httpapi.RateLimit{PerSecond: 1, Burst: 10},
			KeyRateLimit: httpapi.RateLimit{PerSecond: 0.1, Burst: 2},
			Authenticator: requester(func(q *http.Request) (*httpapi.Principal, error) {
				return &httpapi.Principal{Account: account, Name: q.Header.Get("Name"), RateLimit: own}, nil
			}),
		})
		answered := func(name string, n int) (got int) {
			for range n {
				if send(t, h, "GET", "/tokens", "", "Name", name).status == 403 {
					got++
				}
			}
			return got
		}
		check := func(what string, got, want int) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %d requests are answered, want %d", what, got, want)
			}
		}

		check("the handler's limit", answered("a", 5), 2)
		check("of those without a name", answered("", 5), 2)
		own = httpapi.RateLimit{Burst: 1000}
		check("no limit of its own", answered("b", 5), 2)
		own = httpapi.RateLimit{PerSecond: 0.1, Burst: 1}
		check("a narrow one", answered("c", 5), 1)
		own = httpapi.RateLimit{PerSecond: 1000, Burst: 1000}
		check("a wide one", answered("d", 20), 3)

		time.Sleep(time.Minute)
		all := 0
		for i := range 100 {
			all += answered(strings.Repeat("x", i%60), 1)
		}
		check("many names", all, 10)
	})
}

// Requests with a narrow limit take nothing from requests with a wide one, under the same
// name or key chain.
func TestRateLimitsOfOneCaller(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		account := r.account(t)
		root := uuid.New()

		for _, key := range []*cardvault.APIKey{nil, {ID: uuid.New(), Account: account.ID, Root: root}} {
			h := newHandler(t, r.vault, &httpapi.Options{Authenticator: requester(func(q *http.Request) (*httpapi.Principal, error) {
				p := &httpapi.Principal{Account: account, Key: key, Name: "shop", RateLimit: httpapi.RateLimit{PerSecond: 1000, Burst: 50}}
				if q.Header.Get("Narrow") != "" {
					p.RateLimit = httpapi.RateLimit{PerSecond: 0.1}
				}
				return p, nil
			})})
			for i := range 50 {
				send(t, h, "GET", "/tokens", "").want(t, 403)
				if a, want := send(t, h, "GET", "/tokens", "", "Narrow", "x"), []int{403, 429}[min(i, 1)]; a.status != want {
					t.Fatalf("request %d of the narrow one is answered %d, want %d", i, a.status, want)
				}
			}
			send(t, h, "GET", "/tokens", "").want(t, 429)
		}
	})
}

// Guesses under an idempotency key lock out the guessing principal only.
func TestMistakesOfPrincipals(t *testing.T) {
	r := newRig(t, nil, nil)
	account := r.account(t)
	h := newHandler(t, r.vault, &httpapi.Options{Authenticator: requester(func(q *http.Request) (*httpapi.Principal, error) {
		return &httpapi.Principal{Account: account, Name: q.Header.Get("Name"), Scopes: cardvault.AllScopes()}, nil
	})})
	call := func(name, body string) *answer {
		return send(t, h, "POST", "/cde-import", body, "Name", name, "Idempotency-Key", "k")
	}
	call("shop", cardBody).want(t, 200)
	for i := range 6 {
		call("thief", strings.Replace(cardBody, "2031", "203"+string(rune('2'+i)), 1)).want(t, 422, "IDEMPOTENCY_KEY_REUSED")
	}
	call("thief", cardBody).want(t, 422, "IDEMPOTENCY_KEY_REUSED")
	call("shop", cardBody).want(t, 200)
}

// The log names a principal that has no key.
func TestPrincipalIsLogged(t *testing.T) {
	r := newRig(t, nil, nil)
	account := r.account(t)
	h := newHandler(t, r.vault, &httpapi.Options{Logger: r.opts.Logger, Authenticator: requester(func(*http.Request) (*httpapi.Principal, error) {
		return &httpapi.Principal{Account: account, Name: "shop", Scopes: []cardvault.Scope{cardvault.ScopeTokensImport}}, nil
	})})
	r.log.take()
	send(t, h, "POST", "/cde-import", cardBody).want(t, 200)
	log := r.log.take()
	for _, want := range []string{"operation=token.import", "actor=shop", "principal=shop"} {
		if !strings.Contains(log, want) {
			t.Errorf("no %s in %s", want, log)
		}
	}
}
