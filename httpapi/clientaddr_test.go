package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/google/uuid"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// A request from peer, with the given lines of X-Forwarded-For.
func ask(h http.Handler, key, peer string, lines ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", "/tokens", nil)
	r.RemoteAddr = peer
	r.Header["X-Api-Key"] = []string{key}
	r.Header["X-Forwarded-For"] = lines
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestTrustedProxies: an address counts only if a trusted proxy has seen it. Everything
// before it is the client's own words.
func TestTrustedProxies(t *testing.T) {
	r := newRig(t, nil, &httpapi.Options{TrustedProxies: prefixes("10.0.0.0/24", "2001:db8:a::/48", "10.1.2.3/16")})
	for _, test := range []struct {
		peer  string
		lines []string
		want  string
	}{
		{"198.51.100.7:80", nil, "198.51.100.7"},
		{"198.51.100.7:80", []string{"192.0.2.1"}, "198.51.100.7"}, // past the proxy
		{"[2001:db8::1]:80", []string{"192.0.2.1"}, "2001:db8::1"},
		{"10.0.1.1:80", []string{"192.0.2.1"}, "10.0.1.1"},
		{"10.0.0.1:80", []string{"192.0.2.1"}, "192.0.2.1"},
		{"10.1.9.9:80", []string{"192.0.2.1"}, "192.0.2.1"}, // bits beyond the length do not count
		{"[::ffff:10.0.0.1]:80", []string{"::ffff:192.0.2.1"}, "192.0.2.1"},
		{"[2001:db8:a::1]:80", []string{"2001:db8::9"}, "2001:db8::9"},
		{"10.0.0.1:80", []string{"192.0.2.1, 203.0.113.5"}, "203.0.113.5"}, // the client has sent 192.0.2.1
		{"10.0.0.1:80", []string{"192.0.2.1", "203.0.113.5"}, "203.0.113.5"},
		{"10.0.0.1:80", []string{"10.0.0.9, 203.0.113.5"}, "203.0.113.5"}, // and the address of a proxy
		{"10.0.0.1:80", []string{"192.0.2.1, 203.0.113.5, 10.0.0.2"}, "203.0.113.5"},
		{"10.0.0.1:80", []string{"192.0.2.1,203.0.113.5", " 10.0.0.2 , 10.0.0.3"}, "203.0.113.5"},
		{"10.0.0.1:80", []string{"203.0.113.5:443"}, "203.0.113.5"},
		{"10.0.0.1:80", []string{"[2001:db8::9]:443"}, "2001:db8::9"},
		{"10.0.0.1:80", []string{"[2001:db8::9]"}, "2001:db8::9"},
		{"10.0.0.1:80", nil, "10.0.0.1"},
		{"10.0.0.1:80", []string{"10.0.0.2"}, "10.0.0.2"},
		{"10.0.0.1:80", []string{""}, "10.0.0.1"},
		{"10.0.0.1:80", []string{"192.0.2.1, unknown"}, ""},
		{"10.0.0.1:80", []string{"192.0.2.1,"}, ""},
		{"10.0.0.1:80", []string{"192.0.2.1, x, 10.0.0.2"}, ""},
		{"10.0.0.1:80", []string{strings.Repeat("10.0.0.2,", 100) + "10.0.0.2"}, ""},
		{"pipe", []string{"192.0.2.1"}, ""},
		{"@", nil, ""},
	} {
		r.log.take()
		if w := ask(r.handler, r.key, test.peer, test.lines...); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		log := r.log.take()
		if want := " address=" + test.want + " "; !strings.Contains(log, want) == (test.want != "") || test.want == "" && strings.Contains(log, " address=") {
			t.Errorf("%s, %q: not %q in %s", test.peer, test.lines, test.want, log)
		}
	}

	for name, o := range map[string]*httpapi.Options{
		"both":     {TrustedProxies: prefixes("10.0.0.0/24"), ClientAddr: func(*http.Request) netip.Addr { return netip.Addr{} }},
		"no range": {TrustedProxies: []netip.Prefix{{}}},
		"mapped":   {TrustedProxies: prefixes("::ffff:10.0.0.0/120")},
		"all IPv4": {TrustedProxies: prefixes("10.0.0.0/24", "0.0.0.0/0")},
		"all IPv6": {TrustedProxies: prefixes("::/0")},
	} {
		if _, err := httpapi.NewHandler(r.vault, o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestAddressRanges: a key from outside its ranges has the answer of an unknown key, byte
// for byte, and is in the log.
func TestAddressRanges(t *testing.T) {
	r := newRig(t, nil, nil)
	key, err := r.vault.CreateAPIKey(t.Context(), "bound", cardvault.AllScopes(), &cardvault.APIKeyOptions{AddressRanges: prefixes("192.0.2.0/24")})
	if err != nil {
		t.Fatal(err)
	}
	text := key.Text.Text()
	other := newRig(t, nil, nil)
	unknown := ask(r.handler, other.key, "203.0.113.5:80")

	for range 2 {
		r.log.take()
		for _, lines := range [][]string{nil, {"192.0.2.1"}} { // nobody is trusted
			w := ask(r.handler, text, "203.0.113.5:80", lines...)
			w.Header().Del("X-Request-Id")
			unknown.Header().Del("X-Request-Id")
			if w.Code != 401 || w.Body.String() != unknown.Body.String() || headerText(w.Header()) != headerText(unknown.Header()) {
				t.Errorf("from outside: %d %s", w.Code, w.Body)
			}
		}
		if log := r.log.take(); strings.Contains(log, text) {
			t.Error("the log has the key")
		}
		if w := ask(r.handler, text, "192.0.2.9:80"); w.Code != 200 {
			t.Errorf("from inside: %d %s", w.Code, w.Body)
		}
	}

	// An Authenticator that passes requests on is as safe.
	h := newHandler(t, r.vault, &httpapi.Options{Authenticator: passedOn{httpapi.APIKeys(r.vault)}})
	if in, out := ask(h, text, "192.0.2.9:80"), ask(h, text, "203.0.113.5:80"); in.Code != 200 || out.Code != 401 {
		t.Errorf("passed on: %d from inside, %d from outside", in.Code, out.Code)
	}
}

type passedOn struct{ to httpapi.Authenticator }

func (p passedOn) Authenticate(r *http.Request) (*httpapi.Principal, error) {
	return p.to.Authenticate(r)
}

// TestStolenKeyIsLogged: a right key from a wrong address is a sign of theft. A flood of it
// is in the log once a minute.
func TestStolenKeyIsLogged(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		key, err := r.vault.CreateAPIKey(t.Context(), "bound", cardvault.AllScopes(), &cardvault.APIKeyOptions{AddressRanges: prefixes("192.0.2.0/24")})
		if err != nil {
			t.Fatal(err)
		}
		r.log.take()
		for want := 1; want <= 2; want++ {
			for range 100 {
				ask(r.handler, key.Text.Text(), "203.0.113.5:80")
			}
			log := r.log.take()
			if n := strings.Count(log, "outside its address ranges"); n != 1 || !strings.Contains(log, "key="+key.ID.String()) || !strings.Contains(log, "address=203.0.113.5") {
				t.Errorf("%d lines: %.300s", n, log)
			}
			time.Sleep(2 * time.Minute)
		}
	})
}

// TestLiveKeyNeedsEnd: a live vault makes no key without an end, for a creator with one too.
func TestLiveKeyNeedsEnd(t *testing.T) {
	r := newLiveRig(t, nil)
	for body, status := range map[string]int{
		`{"label":"l","scopes":["tokens:read"]}`:                            422,
		`{"label":"l","scopes":["tokens:read"],"expiration_time":null}`:     422,
		`{"label":"l","scopes":["tokens:read"],"expiration_time":31536001}`: 422,
		`{"label":"l","scopes":["tokens:read"],"expiration_time":3600}`:     200,
	} {
		a := send(t, r.handler, "POST", "/api-keys", body, "X-Api-Key", r.key)
		if a.status != status || status == 422 && !strings.Contains(a.body, `"field":"expiration_time"`) {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
}

// TestLastUseOfAccount: no key sees when a key of another account is used.
func TestLastUseOfAccount(t *testing.T) {
	r := newRig(t, nil, nil)
	theirs, text := r.newKey(t, r.newAccount(t, nil), 0, cardvault.AllScopes()...)
	if err := r.vault.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	send(t, r.handler, "GET", "/tokens", "", "X-Api-Key", text).want(t, 200)
	if err := r.vault.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, absent := r.do(t, "GET", "/api-keys/"+theirs.ID.String(), ""), r.do(t, "GET", "/api-keys/"+uuid.NewString(), "")
	if a.status != 404 || a.body != absent.body {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := r.do(t, "GET", "/api-keys", ""); strings.Contains(a.body, theirs.ID.String()) {
		t.Error("a list has the key of another account")
	}
	if a := send(t, r.handler, "GET", "/api-keys/"+theirs.ID.String(), "", "X-Api-Key", text); a.member(t, "last_used_at") == "" {
		t.Errorf("no last use in %s", a.body)
	}
}
