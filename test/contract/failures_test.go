package main

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// testFailures causes the answers of each operation that random requests rarely meet.
func (c *checker) testFailures(t *testing.T) {
	transcript.InBubble(t, func(t *testing.T) {
		w := c.newWorld(t)
		for _, pool := range []string{"tokens", "sessions", "webhooks", "api-keys", "events", "art_id", "payment_data_id"} {
			w.pools[pool] = []string{uuid.NewString()}
		}
		f := failures{c, w, &generator{Rand: rand.New(rand.NewPCG(1, 1)), c: c}}
		f.around(t)
		f.rare(t)
		f.unchanged(t)
		f.stores(t)
		f.limits(t)
		f.quotas(t)
		f.providers(t)
		f.inProgress(t)
		f.overtaken(t)
	})
}

type failures struct {
	c *checker
	w *world
	g *generator
}

// each calls f with each operation and a valid request of it.
func (f failures) each(t *testing.T, call func(o *operation, r *request)) {
	for _, o := range f.c.operations() {
		r := f.w.request(t, f.g, o, false)
		r.method = o.method
		call(o, r)
	}
}

// around spoils the headers or the whole body of each request, sent as if from a page.
func (f failures) around(t *testing.T) {
	f.each(t, func(o *operation, r *request) {
		for _, spoiled := range []struct {
			status        int
			body          string
			header, value string
		}{
			{400, r.body, "X-Api-Version", "2.0"},
			{400, "[]", "X-Nothing", ""},
			{413, strings.Repeat(" ", 1<<20+1), "X-Nothing", ""},
			{415, "{}", "Content-Type", "text/plain"},
			{422, `{"unknown":1}`, "X-Nothing", ""},
		} {
			headers := []string{spoiled.header, spoiled.value, "Origin", shop, "X-Api-Key", f.w.keys[0]}
			a := transcript.Send(t, f.w.checked, o.method, r.target, spoiled.body, headers...)
			ignored := o.lax && (spoiled.body == "[]" || spoiled.status == 422)
			if a.Status != spoiled.status && !ignored && a.Status != 404 {
				t.Errorf("%s is answered with %d, not %d", o.id, a.Status, spoiled.status)
			}
		}
	})
}

// numberOf returns the card number of a scheme for a scenario of the simulator.
func numberOf(scheme card.Scheme, scenario int) (number string) {
	simnet.ScenarioPAN(scheme, scenario).Expose(func(digits []byte) { number = string(digits) })
	return number
}

// rare causes the answers, and uses the parameters, that random requests rarely meet.
func (f failures) rare(t *testing.T) {
	send := func(method, path, body string, headers ...string) *transcript.Answer {
		t.Helper()
		a := transcript.Send(t, f.w.checked, method, path, body, append(headers, "X-Api-Key", f.w.keys[0])...)
		if a.Status != 200 {
			t.Errorf("%s %s is answered with %d %s", method, path, a.Status, a.Body)
		}
		return a
	}

	for _, scheme := range []card.Scheme{card.VISA, card.UnionPay} {
		token := idOf(t, send("POST", "/cde-import", `{"account_number":"`+numberOf(scheme, 0)+`","expiry_month":4,"expiry_year":2031}`))
		time.Sleep(10 * time.Second)
		path := "/tokens/" + token + "/payment-data"
		a := send("POST", path, `{"amount":1,"currency_code":"EUR","reference":"r"}`)
		if failed := strings.Contains(a.Body, `"scheme_not_enabled"`); failed != (scheme == card.UnionPay) {
			t.Errorf("payment data of %v: %s", scheme, a.Body)
		}
		send("GET", path+"/"+idOf(t, a), "", "X-Api-Version", "1.0", "X-Request-Id", "1")
	}

	var begun struct {
		ID string `json:"session_id"`
	}
	if err := json.Unmarshal([]byte(send("POST", "/tokens/session", "").Body), &begun); err != nil {
		t.Fatal(err)
	}
	path := "/sessions/" + begun.ID
	claims := `{"account_number":"` + numberOf(card.UnionPay, 0) + `","expiry_month":4,"expiry_year":2031,"security_code":"737"}`
	payload := transcript.Encrypt(t, send("GET", path, ""), claims, begun.ID)
	a := send("POST", path+"/complete-action", `{"action":"tokenize_card","result":{"enc_payload":"`+payload+`"}}`)
	if !strings.Contains(a.Body, `"unsupported_scheme"`) {
		t.Errorf("the session is %s", a.Body)
	}
}

// unchanged requests each file again.
func (f failures) unchanged(t *testing.T) {
	f.each(t, func(o *operation, r *request) {
		if !o.lax || o.method != "GET" {
			return
		}
		a := transcript.Send(t, f.w.checked, "GET", o.path, "")
		for _, origin := range []string{shop, "null"} {
			if a := transcript.Send(t, f.w.checked, "GET", o.path, "", "If-None-Match", a.Header.Get("Etag"), "Origin", origin); a.Status != 304 {
				t.Errorf("%s is answered with %d", o.id, a.Status)
			}
		}
	})
}

// A failingStore fails once an error is set.
type failingStore struct {
	store.Store
	err atomic.Pointer[error]
}

func (s *failingStore) View(ctx context.Context, f func(store.ReadTx) error) error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return s.Store.View(ctx, f)
}

// stores uses vaults whose store is unavailable or faulty.
func (f failures) stores(t *testing.T) {
	for _, err := range []error{store.ErrUnavailable, errors.New("fault")} {
		s := &failingStore{Store: memstore.New()}
		v := vaultOn(t, s, cardvault.Options{PPAN: transcript.Provider{}, Webhooks: f.c.sender(t)})
		key := newKey(t, v, cardvault.AllScopes()...)
		s.err.Store(&err)
		h := f.c.wrap(t, serve(t, v, &httpapi.Options{AllowedOrigins: []string{shop}}), nil)
		f.each(t, func(o *operation, r *request) {
			if o.lax {
				return
			}
			r.headers = nil
			if f.c.requestSchema(o) == nil {
				r.body = "" // else it may be refused first
			}
			if o.id == "getCardArt" {
				r.target = "/tokens/card-art/" + uuid.NewString() // what is no id is looked for nowhere
			}
			if a := r.send(t, h, "X-Api-Key", key, "Origin", shop); a.Status < 500 {
				t.Errorf("%s is answered with %d %s", o.id, a.Status, a.Body)
			}
		})
	}
}

// limits exceeds the rate limits of a strict operator, and omits the keys and scopes that
// are required.
func (f failures) limits(t *testing.T) {
	strict := f.c.wrap(t, serve(t, f.w.vault, &httpapi.Options{
		RateLimit: httpapi.RateLimit{PerSecond: 1e-3}, AllowedOrigins: []string{shop}, CardArtRequiresKey: true,
	}), nil)
	f.each(t, func(o *operation, r *request) {
		if o.lax {
			return
		}
		r.headers = nil
		if a := r.send(t, strict); a.Status != 401 && o.object["security"].([]any) != nil && len(o.object["security"].([]any)) > 0 {
			t.Errorf("%s without a key is answered with %d", o.id, a.Status)
		}
		limited, n := false, 100
		for range n {
			limited = limited || r.send(t, strict, "X-Api-Key", f.w.keys[0], "Origin", shop).Status == 429
		}
		if !limited {
			t.Errorf("%s is never limited", o.id)
		}
	})

	generous := f.c.wrap(t, serve(t, f.w.vault, &httpapi.Options{CardArtRequiresKey: true}), nil)
	none := newKey(t, f.w.vault, cardvault.ScopeForwardCreate)
	f.each(t, func(o *operation, r *request) {
		if security, _ := o.object["security"].([]any); len(security) == 0 {
			return
		}
		a := r.send(t, generous, "X-Api-Key", none)
		if a.Status != 403 && !slices.Contains(r.headers, "X-Api-Key") {
			t.Errorf("%s without a scope is answered with %d", o.id, a.Status)
		}
		f.scope(t, generous, o, r)
	})
}

// scope tries keys with one scope each: exactly the scopes named by the contract are
// needed.
func (f failures) scope(t *testing.T, h http.Handler, o *operation, r *request) {
	r.headers = slices.DeleteFunc(r.headers, func(text string) bool { return text == "X-Api-Key" || strings.HasPrefix(text, "vk_") })
	if len(r.headers)%2 != 0 {
		r.headers = nil
	}
	security := o.object["security"].([]any)
	var needed []cardvault.Scope
	for _, scope := range security[len(security)-1].(map[string]any)["apiKey"].([]any) {
		needed = append(needed, cardvault.Scope(scope.(string)))
	}
	for _, scope := range needed {
		but := slices.DeleteFunc(cardvault.AllScopes(), func(s cardvault.Scope) bool { return s == scope })
		if a := r.send(t, h, "X-Api-Key", newKey(t, f.w.vault, but...)); a.Status != 403 || !strings.Contains(a.Body, string(scope)) {
			t.Errorf("%s without %s is answered with %d %s", o.id, scope, a.Status, a.Body)
		}
	}
	if a := r.send(t, h, "X-Api-Key", newKey(t, f.w.vault, needed...)); a.Status == 403 && !strings.Contains(a.Body, "INTEGRATION") && !strings.Contains(a.Body, "DESTINATION") && o.id != "createAPIKey" &&
		!(o.id == "forward" && strings.Contains(r.body, `"payment_data":`)) {
		t.Errorf("%s with the needed scopes is answered with %d %s", o.id, a.Status, a.Body)
	}
}

// quotas exceeds each quota of an account.
func (f failures) quotas(t *testing.T) {
	v := vaultOn(t, memstore.New(), cardvault.Options{Webhooks: f.c.sender(t), Quotas: cardvault.Quotas{APIKeys: 1, Webhooks: 1, OpenSessions: 1}})
	key := newKey(t, v, cardvault.AllScopes()...)
	h := f.c.wrap(t, serve(t, v, nil), nil)
	send := func(path, body string) *transcript.Answer {
		return transcript.Send(t, h, "POST", path, body, "X-Api-Key", key)
	}
	hook := `{"url":"https://hook.example/204"}`
	token := idOf(t, send("/cde-import", `{"account_number":"4242424242424242","expiry_month":4,"expiry_year":2031}`))
	id := idOf(t, send("/webhooks", hook))
	send("/tokens/session", "")
	for path, body := range map[string]string{
		"/tokens/session": "", "/tokens/" + token + "/refresh-session": "", "/tokens/" + token + "/replace-session": "", "/webhooks": hook,
		"/api-keys": `{"label":"x","scopes":["tokens:read"]}`,
	} {
		if a := send(path, body); a.Status != 409 {
			t.Errorf("%s beyond the quota is answered with %d %s", path, a.Status, a.Body)
		}
	}

	conflict := false
	for range 10 {
		conflict = conflict || send("/webhooks/"+id+"/rotate-secret", "").Status == 409
	}
	if !conflict {
		t.Error("a webhook has any number of secrets")
	}
}

func idOf(t *testing.T, a *transcript.Answer) string {
	t.Helper()
	var answer struct{ ID string }
	if err := json.Unmarshal([]byte(a.Body), &answer); err != nil || a.Status != 200 {
		t.Fatalf("%d %s: %v", a.Status, a.Body, err)
	}
	return answer.ID
}

// A provider answers, or fails.
type provider struct {
	answer *ppan.Answer
	err    error
}

func (provider) Info() ppan.Info { return ppan.Info{Name: "provider"} }

func (p provider) ObtainPPAN(context.Context, *ppan.Request) (*ppan.Answer, error) {
	return p.answer, p.err
}

// providers uses providers that are unreachable, do not answer, or know travel cards.
func (f failures) providers(t *testing.T) {
	for status, p := range map[int]provider{
		502: {nil, errors.New("away")},
		504: {nil, context.DeadlineExceeded},
		200: {&ppan.Answer{Status: ppan.Valid, PseudoPAN: ppan.NewPseudoPAN([]byte("9410010000038248746")), TravelCard: "yes", TravelCardProvider: "provider", TravelCardInvoice: "invoice"}, nil},
	} {
		v := vaultOn(t, memstore.New(), cardvault.Options{PPAN: p})
		key := newKey(t, v, cardvault.AllScopes()...)
		h := f.c.wrap(t, serve(t, v, nil), nil)
		token := idOf(t, transcript.Send(t, h, "POST", "/cde-import", `{"account_number":"4242424242424242","expiry_month":4,"expiry_year":2031}`, "X-Api-Key", key))
		a := transcript.Send(t, h, "POST", "/integrations/provider/obtain-ppan", `{"token_id":"`+token+`"}`, append([]string{"X-Api-Key", key}, transcript.PPANHeaders...)...)
		if a.Status != status {
			t.Errorf("the answer is %d %s", a.Status, a.Body)
		}
	}
}

// inProgress repeats a request for payment data while the network is slow.
func (f failures) inProgress(t *testing.T) {
	headers := []string{"X-Api-Key", f.w.keys[0], "Idempotency-Key", "slow"}
	token := idOf(t, transcript.Send(t, f.w.checked, "POST", "/cde-import", `{"account_number":"`+numberOf(card.VISA, 42)+`","expiry_month":4,"expiry_year":2031}`, headers...))
	time.Sleep(10 * time.Second)

	pay := request{"POST", "/tokens/" + token + "/payment-data", `{"amount":1,"currency_code":"EUR","reference":"r"}`, headers}
	slow := httptest.NewRequestWithContext(t.Context(), pay.method, pay.target, strings.NewReader(pay.body))
	slow.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		slow.Header.Set(headers[i], headers[i+1])
	}

	// The world learns only in the test's goroutine.
	h := f.c.wrap(t, f.w.plain, nil)
	first := make(chan *httptest.ResponseRecorder, 1)
	go func() {
		a := httptest.NewRecorder()
		h.ServeHTTP(a, slow)
		first <- a
	}()
	time.Sleep(time.Second)
	if a := pay.send(t, h); a.Status != 409 {
		t.Errorf("a repetition meanwhile is answered with %d %s", a.Status, a.Body)
	}
	if a := <-first; a.Code != 200 {
		t.Errorf("the first is answered with %d %s", a.Code, a.Body)
	}
}

// A meddledStore calls a function before a write, once.
type meddledStore struct {
	store.Store
	meddle func()
}

func (s *meddledStore) Update(ctx context.Context, f func(store.Tx) error) error {
	if meddle := s.meddle; meddle != nil {
		s.meddle = nil
		meddle()
	}
	return s.Store.Update(ctx, f)
}

// overtaken replaces a card while the expiry of the former one is updated.
func (f failures) overtaken(t *testing.T) {
	s := &meddledStore{Store: memstore.New()}
	v := vaultOn(t, s, cardvault.Options{})
	key := newKey(t, v, cardvault.AllScopes()...)
	h := f.c.wrap(t, serve(t, v, nil), nil)
	send := func(method, path, body string) *transcript.Answer {
		return transcript.Send(t, h, method, path, body, "X-Api-Key", key)
	}
	path := "/tokens/" + idOf(t, send("POST", "/cde-import", `{"account_number":"4242424242424242","expiry_month":4,"expiry_year":2031}`))
	s.meddle = func() {
		idOf(t, send("POST", path+"/replace", `{"account_number":"4000056655665556","expiry_month":5,"expiry_year":2032}`))
	}
	if a := send("PATCH", path, `{"expiry_month":4,"expiry_year":2033}`); a.Status != 409 {
		t.Errorf("the expiry of the former card is answered with %d %s", a.Status, a.Body)
	}
}
