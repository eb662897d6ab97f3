package httpapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	secretPAN  = transcript.SecretPAN
	secretCode = transcript.SecretCode
)

func headerText(h http.Header) string { return fmt.Sprint(h) }

// Input is never echoed, wherever a request carries a card number or security code.
func TestNoEcho(t *testing.T) {
	r, _ := newNetworkRig(t, &wrapped{art: "png"}, &cardvault.Options{PPAN: &provider{}, Webhooks: &sender{}}, &httpapi.Options{ProviderName: "acme", ClientAddr: clients(), AllowedOrigins: []string{shop}})
	id := r.activate(t)
	webhook := "/webhooks/" + r.newWebhook(t, r.vault)
	type endpoint struct{ method, path, body string }
	endpoints := []endpoint{
		{"POST", "/tokens/session", `{"bypass_identification":true,"expiration_time":5}`},
		{"POST", "/cde-import", `{"account_number":"4242424242424242","expiry_month":4,"expiry_year":2031,"cardholder_name":"A","security_code":"123","business_key":"b","import_provider":"p"}`},
		{"GET", "/tokens", ""},
		{"GET", "/tokens/" + id, ""},
		{"PATCH", "/tokens/" + id, `{"cardholder_name":"A","business_key":"b","import_provider":"p","expiry_month":4,"expiry_year":2031}`},
		{"DELETE", "/tokens/x", ""},
		{"POST", "/tokens/" + id + "/provisions", ""},
		{"POST", "/tokens/" + id + "/payment-data", `{"amount":5,"currency_code":"EUR","merchant_id":"` + primaryMerchant(t, r.vault) + `","reference":"r","initiator":"merchant","network_transaction_id":"n"}`},
		{"GET", "/tokens/" + id + "/payment-data", ""},
		{"GET", "/tokens/card-art/" + id, ""},
		{"GET", "/tokens/" + id + "/security-code", ""},
		{"POST", "/tokens/" + id + "/refresh-session", "{}"},
		{"POST", "/tokens/" + id + "/replace", `{"account_number":"4242424242424242","expiry_month":4,"expiry_year":2031,"cardholder_name":"A","security_code":"123"}`},
		{"POST", "/tokens/" + id + "/replace-session", "{}"},
		{"POST", "/tokens/" + id + "/consume", "{}"},
		{"POST", ppanPath, tokenBody(id)},
		{"POST", "/integrations/acme/obtain-ppan", tokenBody(id)},
		{"GET", "/sessions/fresh", ""},
		{"POST", "/sessions/fresh/complete-action", `{"action":"tokenize_card","result":{"enc_payload":"x"}}`},
		{"OPTIONS", "/sessions/fresh/complete-action", ""},
		{"POST", "/api-keys", `{"label":"l","scopes":["tokens:read"],"expiration_time":5}`},
		{"GET", "/api-keys", ""},
		{"DELETE", "/api-keys/x", ""},
		{"POST", "/webhooks", `{"url":"https://hook.example/204","events":["token.created"],"description":"d","legacy_hmac":true}`},
		{"GET", "/webhooks", ""},
		{"GET", webhook, ""},
		{"PATCH", webhook, `{"url":"https://hook.example/204","events":["token.created"],"description":"d","legacy_hmac":true,"status":"enabled"}`},
		{"DELETE", "/webhooks/x", ""},
		{"POST", webhook + "/rotate-secret", ""},
		{"POST", webhook + "/test", ""},
		{"GET", webhook + "/deliveries", ""},
		{"POST", "/events/x/redeliver", ""},
	}
	// stored matches the members that are returned on purpose.
	stored := regexp.MustCompile(`"(business_key|import_provider|label|cardholder_name|reference|network_transaction_id|url|description)":"[^"]*"|"(current_page|amount)":\d+|"[\w-]+(\.[\w-]+){4}"`)
	member := regexp.MustCompile(`"(\w+)":("[^"]*"|\[[^]]*\]|\w+)`)
	sent := 0
	try := func(where, method, target, body string, headers ...string) *answer {
		t.Helper()
		sent++
		r.log.take()
		if strings.HasPrefix(target, "/integrations/") {
			for i := 0; i < len(ppanHeaders); i += 2 {
				if !slices.Contains(headers, ppanHeaders[i]) {
					headers = append(headers, ppanHeaders[i], ppanHeaders[i+1], strings.Replace(ppanHeaders[i], "Provider", "Acme", 1), ppanHeaders[i+1])
				}
			}
		}
		target = strings.Replace(target, "/sessions/fresh", r.newSession(t), 1)
		a := r.do(t, method, target, body, headers...)
		where = method + " " + where
		log := r.log.take()
		if log == "" {
			t.Errorf("%s was not logged", where)
		}
		body = a.body
		if a.status == 200 {
			body = stored.ReplaceAllString(body, "")
		}
		transcript.NoEcho(t, where, headerText(a.header), body, log)
		return a
	}
	for _, secret := range []string{secretPAN, secretCode} {
		for _, e := range endpoints {
			for _, target := range []string{
				"/" + secret, e.path + "/" + secret, "/tokens/" + secret, "/api-keys/" + secret, e.path + "%2F" + secret, e.path + "/" + secret + "/x/y",
				e.path + "?" + secret, e.path + "?" + secret + "=1", e.path + "?x=" + secret, e.path + "?" + secret + "=%zz", e.path + "?a;b=" + secret, e.path + "?" + secret + "&" + secret,
				e.path + "?card=" + secret,
				e.path + "?limit=" + secret, e.path + "?page=" + secret, e.path + "?sort=" + secret, e.path + "?from=" + secret, e.path + "?to=" + secret,
				e.path + "?scheme=" + secret, e.path + "?network_token_status=VISA," + secret, e.path + "?business_key=" + secret, e.path + "?limit=" + secret + "&limit=" + secret,
			} {
				if secret == secretCode && strings.Contains(target, "?"+secret) || strings.Contains(target, "&"+secret) {
					continue // a name of four digits is accepted as a name
				}
				try(target, e.method, target, e.body)
			}
			try("method", "M"+secret, e.path, e.body)
			for _, header := range []string{
				"X-Api-Version", "X-Request-Id", "Content-Type", "Idempotency-Key", "X-Idempotency-Key",
				"Authorization", "Cookie", "User-Agent", "Referer", "Origin", "X-Forwarded-For", "Forwarded", "Accept", "X-" + secret,
				"X-Provider-Aid", "X-Provider-Hash", "X-Provider-Mid", "X-Provider-Portalid", "X-Acme-Hash", "X-Provider-" + secret,
			} {
				try("header "+header, e.method, e.path, e.body, header, secret)
			}
			try("second key", e.method, e.path, e.body, "X-Api-Key", secret)
			try("both idempotency keys", e.method, e.path, e.body, "Idempotency-Key", secret, "X-Idempotency-Key", "x")
			try("media type", e.method, e.path, e.body, "Content-Type", "application/json; charset="+secret)

			values := []string{`"` + secret + `"`, secret, "-" + secret, secret + ".5", secret + "e3", `[` + secret + `]`, `["` + secret + `"]`, `{"a":"` + secret + `"}`, `[[{"` + secret[:4] + `":["` + secret + `"]}]]`, `"4111111111111111 ` + secret + `"`, `"\u0000` + secret + `"`}
			bodies := []string{secret, `"` + secret + `"`, `[` + secret + `]`, `{` + secret + `}`, `{"a":` + secret, `{"a":"` + secret, `{"a":"` + secret + `"}` + secret, `{"a":` + secret + `,"a":1}`, `{"a":0` + secret + `}`, `{"security_code":"` + secret + `"}`}
			for _, m := range member.FindAllStringSubmatch(e.body, -1) {
				for _, value := range values {
					bodies = append(bodies, strings.Replace(e.body, m[0], `"`+m[1]+`":`+value, 1))
				}
			}
			for _, value := range values {
				bodies = append(bodies, `{"a":`+value+`}`, `{"account_number":`+value+`}`)
			}
			if secret == secretPAN {
				bodies = append(bodies, `{"`+secret+`":1}`, `{"card `+secret+`":1}`, `{"a":{"`+secret+`":1}}`, `{"`+secret[:8]+`\u003`+secret[8:9]+`":{}}`, `{"`+strings.Repeat("x", 30)+secret+`":1}`)
			}
			for _, body := range bodies {
				try("body "+body, e.method, e.path, body)
				try("body "+body+" twice", e.method, e.path, body, "Idempotency-Key", fmt.Sprint("k", sent))
			}
		}
	}
	if sent < 1000 {
		t.Errorf("only %d requests", sent)
	}
	// The check can fail: a business key is returned, and the check sees it.
	a := try("control", "POST", "/cde-import", `{"account_number":"`+secretPAN+`","expiry_month":4,"expiry_year":2031,"business_key":"`+secretPAN+`"}`)
	if !strings.Contains(a.body, secretPAN) {
		t.Errorf("a business key is not given back: %s", a.body)
	}
}

// The value of a panic may hold card data: it is neither answered nor logged.
func TestPanics(t *testing.T) {
	values := map[string]any{
		"string": "card " + secretPAN + " " + secretCode,
		"error":  errors.New(secretPAN),
		"struct": struct{ PAN, Code string }{secretPAN, secretCode},
		"number": int64(4000056655665556),
		"bytes":  []byte(secretPAN),
	}
	for name, value := range values {
		explode := func() { panic(value) }
		for where, opts := range map[string]struct {
			vault cardvault.Options
			http  httpapi.Options
		}{
			"Authenticator": {http: httpapi.Options{Authenticator: authenticator(func(context.Context, string) (*httpapi.Principal, error) {
				explode()
				return nil, nil
			})}},
			"ClientAddr": {http: httpapi.Options{ClientAddr: func(*http.Request) netip.Addr {
				explode()
				return netip.Addr{}
			}}},
			"BINProvider": {vault: cardvault.Options{BIN: binProvider(func(context.Context, *network.BINRequest) (*network.BIN, error) {
				explode()
				return nil, nil
			})}},
		} {
			t.Run(where+"/"+name, func(t *testing.T) {
				r := newRig(t, &opts.vault, &opts.http)
				a := r.do(t, "POST", "/cde-import", strings.ReplaceAll(cardBody, pan, secretPAN))
				a.want(t, 500, "INTERNAL_ERROR")
				checkCommon(t, "POST", a)
				log := r.log.take()
				if !strings.Contains(log, "panic") || !strings.Contains(log, "stack=") || !strings.Contains(log, a.header.Get("X-Request-Id")) {
					t.Errorf("the panic was not logged: %s", log)
				}
				transcript.NoEcho(t, where, log, a.body, headerText(a.header))
			})
		}
	}
}

// http.ErrAbortHandler is for the server.
func TestAbortHandler(t *testing.T) {
	r := newRig(t, nil, &httpapi.Options{Authenticator: authenticator(func(context.Context, string) (*httpapi.Principal, error) {
		panic(http.ErrAbortHandler)
	})})
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("recovered %v", p)
		}
	}()
	r.do(t, "GET", "/tokens", "")
	t.Error("no panic")
}

// A full ledger keeps nothing.
type fullLedger struct{ audit.Ledger }

func (fullLedger) Last(context.Context, uuid.UUID, uuid.UUID) (audit.Mark, error) {
	return audit.Mark{}, errors.New("full")
}

// A deletion that the ledger lacks has taken effect, and says so.
func TestLedgerBehind(t *testing.T) {
	r := newRig(t, &cardvault.Options{Audit: &cardvault.AuditOptions{Failure: cardvault.AuditRefuse, Ledger: fullLedger{}, LedgerSync: 100 * time.Millisecond}}, nil)
	id := r.importCard(t)
	w := r.do(t, "DELETE", "/tokens/"+id, "")
	if want := `{"status":"503","classifier":"SERVICE_UNAVAILABLE","message":"The deletion has taken effect. A restored backup may undo it until its record is kept elsewhere."}`; w.status != 503 || strings.TrimSpace(w.body) != want {
		t.Errorf("%d %s", w.status, w.body)
	}
	if w := r.do(t, "GET", "/tokens/"+id, ""); w.status != 404 {
		t.Errorf("the token: %d %s", w.status, w.body)
	}
}

// A failure of the store is answered with 503 if a retry may succeed, else with 500.
func TestStoreFailures(t *testing.T) {
	const (
		unavailable = `{"status":"503","classifier":"SERVICE_UNAVAILABLE","message":"The service is unavailable."}`
		unknown     = `{"status":"503","classifier":"SERVICE_UNAVAILABLE","message":"The service failed during a write. The request may or may not have taken effect."}`
		full        = `{"status":"503","classifier":"SERVICE_UNAVAILABLE","message":"The service is out of storage space."}`
		internal    = `{"status":"500","classifier":"INTERNAL_ERROR","message":"Something went wrong."}`
	)
	r := newRig(t, &cardvault.Options{Webhooks: &sender{}}, nil)
	webhook := "/webhooks/" + r.newWebhook(t, r.vault)
	id := r.importCard(t)
	event := r.lastEvent(t, r.vault)
	session := r.newSession(t)
	completion := completion(t, r.do(t, "GET", session, ""), refused, "")
	for _, test := range []struct {
		err  error
		body string
	}{
		{store.ErrUnavailable, unavailable},
		{store.ErrClosed, unavailable},
		{store.ErrFull, full},
		{store.ErrOutcomeUnknown, unknown},
		{errors.Join(store.ErrFull, store.ErrOutcomeUnknown), unknown},
		{store.ErrDamaged, internal},
		{store.ErrInvalid, internal},
		{store.ErrLocked, internal},
		{store.ErrFormat, internal},
		{context.Canceled, unavailable},
		{context.DeadlineExceeded, unavailable},
		{errors.New("disk on fire"), internal},
	} {
		for _, e := range []struct{ method, path, body string }{
			{"POST", "/cde-import", strings.ReplaceAll(cardBody, pan, secretPAN)},
			{"POST", "/tokens/" + id + "/refresh-session", ""},
			{"POST", "/tokens/" + id + "/consume", ""},
			{"GET", "/tokens/" + id + "/security-code", ""},
			{"POST", "/tokens/session", ""},
			{"PATCH", "/tokens/" + id, `{"cardholder_name":"A"}`},
			{"DELETE", "/tokens/" + id, ""},
			{"POST", "/tokens/" + id + "/provisions", ""},
			{"POST", "/tokens/" + id + "/payment-data", payment},
			{"GET", "/tokens/" + id + "/payment-data", ""},
			{"GET", "/tokens/card-art/" + id, ""},
			{"POST", "/api-keys", `{"label":"l","scopes":["tokens:read"]}`},
			{"DELETE", "/api-keys/" + r.principal.ID.String(), ""},
			{"GET", "/tokens", ""},
			{"GET", "/tokens/" + id, ""},
			{"GET", "/api-keys", ""},
			{"GET", session, ""},
			{"POST", session + "/complete-action", completion},
			{"POST", "/webhooks", hook},
			{"GET", "/webhooks", ""},
			{"GET", webhook, ""},
			{"PATCH", webhook, `{"legacy_hmac":true}`},
			{"DELETE", webhook, ""},
			{"POST", webhook + "/rotate-secret", ""},
			{"GET", webhook + "/deliveries", ""},
			{"POST", "/events/" + event + "/redeliver", ""},
		} {
			t.Run(fmt.Sprintf("%v/%s %s", test.err, e.method, e.path), func(t *testing.T) {
				fault := fmt.Errorf("wrapped: %w", test.err)
				fail := &r.store.update
				if e.method == "GET" {
					fail = &r.store.view
				}
				fail.Store(&fault)
				r.log.take()
				var headers []string
				if strings.HasSuffix(e.path, "/consume") { // consume writes only its idempotency key
					headers = []string{"Idempotency-Key", fmt.Sprint(test.err)}
				}
				a := r.do(t, e.method, e.path, e.body, headers...)
				fail.Store(nil)
				checkCommon(t, e.method, a)
				if a.body != test.body {
					t.Errorf("%d %s", a.status, a.body)
				}
				if retry := a.header.Get("Retry-After"); (retry == "5") != (a.status == 503) {
					t.Errorf("Retry-After is %q", retry)
				}
				log := r.log.take()
				if !strings.Contains(log, "level=ERROR") || !strings.Contains(log, a.header.Get("X-Request-Id")) {
					t.Errorf("not logged: %s", log)
				}
				transcript.NoEcho(t, e.path, a.body, log)
			})
		}
	}
}

// After an unknown outcome a retry under the same idempotency key is replayed.
func TestOutcomeUnknown(t *testing.T) {
	r := newRig(t, nil, nil)
	r.store.update.Store(pointer(store.ErrOutcomeUnknown))
	r.store.written.Store(true)
	r.do(t, "POST", "/cde-import", cardBody, "Idempotency-Key", "k").want(t, 503)
	r.store.update.Store(nil)
	a := r.do(t, "POST", "/cde-import", cardBody, "Idempotency-Key", "k")
	a.want(t, 200)
	if a.header.Get("Idempotency-Replayed") != "true" {
		t.Error("not replayed")
	}
	if n := r.total(t); n != 1 {
		t.Errorf("%d tokens", n)
	}
}

// A spy is a body that keeps the buffers it was read into.
type spy struct {
	io.Reader
	buffers [][]byte
}

func (s *spy) Read(p []byte) (int, error) {
	s.buffers = append(s.buffers, p[:cap(p)])
	return s.Reader.Read(p)
}

func (s *spy) Close() error { return nil }

// No buffer holds a card number after its request is answered.
func TestBodyIsErased(t *testing.T) {
	r := newRig(t, nil, nil)
	imported := strings.ReplaceAll(cardBody, pan, secretPAN)
	for name, test := range map[string]struct {
		body    string
		headers []string
		status  int
	}{
		"short":     {imported, nil, 200},
		"repeated":  {imported, []string{"Idempotency-Key", "k"}, 200},
		"grown":     {imported + strings.Repeat(" ", 60<<10), nil, 200},
		"too large": {imported + strings.Repeat(" ", 70<<10), nil, 413},
		"refused":   {imported[1:], nil, 400},
		"not read":  {imported, []string{"X-Api-Key", "x"}, 401},
	} {
		t.Run(name, func(t *testing.T) {
			body := &spy{Reader: strings.NewReader(test.body)}
			req := httptest.NewRequest("POST", "/cde-import", body)
			req.Body, req.ContentLength = body, -1
			req.Header.Set("X-Api-Key", r.key)
			req.Header.Set("Content-Type", "application/json")
			for i := 0; i < len(test.headers); i += 2 {
				req.Header.Set(test.headers[i], test.headers[i+1])
			}
			w := httptest.NewRecorder()
			r.handler.ServeHTTP(w, req)
			if w.Code != test.status || len(body.buffers) == 0 && w.Code != 401 {
				t.Fatalf("status %d, %d reads", w.Code, len(body.buffers))
			}
			for i, b := range body.buffers {
				if bytes.Contains(b, []byte(secretPAN)) {
					t.Errorf("the buffer of read %d holds the number", i)
				}
			}
		})
	}
}
