package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/examples/internal/sandboxtest"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/webhook/webhooktest"
	"github.com/google/uuid"
)

// A visitor has loaded the page.
type visitor struct {
	*process
	cookie *http.Cookie
	seen   bytes.Buffer // every byte of the answers
}

func visit(t *testing.T, p *process) *visitor {
	t.Helper()
	v := &visitor{process: p}
	_, h, _ := v.send(t, v.request(t, "GET", "/", ""))
	cookies := (&http.Response{Header: h}).Cookies()
	if len(cookies) != 1 {
		t.Fatalf("the page sets %d cookies", len(cookies))
	}
	v.cookie = cookies[0]
	return v
}

func (v *visitor) request(t *testing.T, method, path, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(method, v.BaseURL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if v.cookie != nil {
		r.AddCookie(&http.Cookie{Name: v.cookie.Name, Value: v.cookie.Value})
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

func (v *visitor) send(t *testing.T, r *http.Request) (int, http.Header, []byte) {
	t.Helper()
	status, h, body := send(t, r)
	if err := h.Write(&v.seen); err != nil {
		t.Fatal(err)
	}
	v.seen.Write(body)
	return status, h, body
}

// want makes a call of the page. Refusals contain a sentence.
func (v *visitor) want(t *testing.T, status int, r *http.Request) (answer map[string]any) {
	t.Helper()
	got, h, body := v.send(t, r)
	if len(body) > 0 {
		if err := json.Unmarshal(body, &answer); err != nil || h.Get("Content-Type") != "application/json" {
			t.Fatalf("%s %s answers %q: %v", r.Method, r.URL.Path, h.Get("Content-Type"), err)
		}
	}
	if got != status {
		t.Fatalf("%s %s answers %d %v, want %d", r.Method, r.URL.Path, got, answer, status)
	}
	if message, _ := answer["message"].(string); got >= 400 && (answer["status"] != fmt.Sprint(got) || !strings.HasSuffix(message, ".")) {
		t.Errorf("%s %s is refused with %v", r.Method, r.URL.Path, answer)
	}
	if h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" ||
		h.Get("Cross-Origin-Resource-Policy") != "same-origin" || h.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%s %s answers with %v", r.Method, r.URL.Path, h)
	}
	return answer
}

func (v *visitor) call(t *testing.T, status int, method, path, body string) map[string]any {
	t.Helper()
	return v.want(t, status, v.request(t, method, path, body))
}

// live asks for news until the expected events arrive.
func (v *visitor) live(t *testing.T, query string, there func(codes map[string]any, events []any) bool) {
	t.Helper()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	end := time.After(time.Minute)
	for {
		news := v.call(t, 200, "GET", "/sandbox/live?"+query, "")
		if there(news["security_codes"].(map[string]any), news["events"].([]any)) {
			return
		}
		select {
		case <-look.C:
		case <-end:
			t.Fatalf("still %v", news)
		}
	}
}

// hasEvent reports whether events contain one of a type about a token.
func hasEvent(events []any, id, kind string) bool {
	for _, x := range events {
		if e := x.(map[string]any); e["token_id"] == id && e["event_type"] == kind {
			return true
		}
	}
	return false
}

// TestPage does everything that the page can do.
func TestPage(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir)
	v := visit(t, p)
	if c := v.cookie; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/sandbox" || c.MaxAge != 8*60*60 || len(c.Value) < 26 || c.Domain != "" {
		t.Errorf("the cookie is %v", c)
	}
	if other := visit(t, p); other.cookie.Value == v.cookie.Value {
		t.Error("two visits have the same cookie")
	}
	status, h, html := v.send(t, v.request(t, "GET", "/", ""))
	if status != 200 || h.Get("Content-Type") != "text/html; charset=utf-8" || !bytes.Contains(html, []byte("This is a sandbox")) {
		t.Errorf("the page answers %d %v", status, h)
	}
	if got, want := h.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "+
		"img-src 'self'; frame-src 'self' "+p.BaseURL+"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"; got != want {
		t.Errorf("its policy is %q", got)
	}
	if status, got, html := v.send(t, v.request(t, "GET", "/reference", "")); status != 200 || !bytes.Contains(html, []byte(`id="operation/listTokens"`)) ||
		got.Get("Content-Security-Policy") != h.Get("Content-Security-Policy") || len(got["Set-Cookie"]) != 1 {
		t.Errorf("the reference answers %d %v", status, got)
	}
	for _, file := range []string{"page.css", "page.js", "icon.svg", "reference.css", "reference.js"} {
		if status, got, body := v.send(t, v.request(t, "GET", "/sandbox/"+file, "")); status != 200 || len(body) == 0 {
			t.Errorf("%s answers %d %v", file, status, got)
		}
	}
	if status, _, body := v.send(t, v.request(t, "HEAD", "/", "")); status != 200 || len(body) > 0 {
		t.Errorf("HEAD answers %d with %d bytes", status, len(body))
	}
	for name, mediaType := range map[string]string{"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"} {
		if !bytes.Contains(html, []byte(`"/sandbox/`+name+`"`)) {
			t.Errorf("the page does not have %s", name)
		}
		status, h, body := v.send(t, v.request(t, "GET", "/sandbox/"+name, ""))
		if status != 200 || len(body) == 0 || !strings.HasPrefix(h.Get("Content-Type"), mediaType) {
			t.Errorf("%s answers %d %q", name, status, h.Get("Content-Type"))
		}
	}

	session := v.call(t, 200, "POST", "/sandbox/api/tokens/session", `{"bypass_identification":true}`)["session_id"].(string)
	if open := p.Want(t, 200, "", "GET", "/sessions/"+session, ""); open["next_action"] != "tokenize_card" {
		t.Errorf("the session of the page is %v", open)
	}

	k := sandboxtest.Token(p.Want(t, 200, p.Accounts[0].APIKey, "POST", "/cde-import",
		`{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030,"security_code":"737"}`))
	id, api := k.ID(), "/sandbox/api/tokens/"+k.ID()
	list := v.call(t, 200, "GET", "/sandbox/api/tokens?limit=1", "")["data"].([]any)
	if len(list) != 1 || list[0].(map[string]any)["id"] != id {
		t.Fatalf("the page lists %v", list)
	}
	p.Follow(t, k, "pending", "active")
	v.live(t, "token="+id, func(codes map[string]any, events []any) bool {
		return codes[id] != nil && hasEvent(events, id, "token.created") && hasEvent(events, id, "token.updated")
	})
	latest := 0.0
	v.live(t, "", func(_ map[string]any, events []any) bool {
		for _, e := range events {
			if n := e.(map[string]any)["number"].(float64); n <= latest {
				t.Errorf("event %v comes after %v", n, latest)
			} else {
				latest = n
			}
		}
		return true
	})
	v.live(t, fmt.Sprintf("after=%v", latest), func(_ map[string]any, events []any) bool {
		if len(events) > 0 {
			t.Errorf("events are repeated: %v", events)
		}
		return true
	})

	const payment = `{"amount":1999,"currency_code":"EUR","reference":"order 7"}`
	record := v.call(t, 200, "POST", api+"/payment-data", payment)
	jwe := record["encrypted_authentication_data"].(string)
	opened := v.call(t, 200, "POST", "/sandbox/open", `{"encrypted_authentication_data":"`+jwe+`"}`)
	want, err := receive.OpenPaymentData(jwe, receive.NewSharedSecret([]byte(p.Accounts[0].PaymentSecret)))
	if err != nil {
		t.Fatal(err)
	}
	number := ""
	want.Number.Expose(func(digits []byte) { number = string(digits) })
	cryptogram := ""
	want.Cryptogram.Expose(func(text []byte) { cryptogram = string(text) })
	n := opened["network_token"].(map[string]any)
	if n["token"] != number || n["expiry_month"] != float64(want.Expiry.Month) || n["expiry_year"] != float64(want.Expiry.Year) ||
		opened["cryptogram"] != cryptogram || opened["eci"] != "07" {
		t.Errorf("payment data opens to %v", opened)
	}
	if records := v.call(t, 200, "GET", api+"/payment-data?limit=5", "")["data"].([]any); len(records) != 1 || records[0].(map[string]any)["id"] != record["id"] {
		t.Errorf("the payment data of the token is %v", records)
	}
	v.call(t, 422, "POST", api+"/payment-data", `{"amount":-1,"currency_code":"XXX","reference":""}`)
	v.call(t, 422, "POST", "/sandbox/open", `{"encrypted_authentication_data":"`+jwe[:len(jwe)-1]+`"}`)
	v.call(t, 422, "POST", "/sandbox/open", `{}`)
	v.call(t, 400, "POST", "/sandbox/open", `{"encrypted_authentication_data":1}`)
	v.call(t, 400, "POST", "/sandbox/open", `{"encrypted_authentication_data":"`+strings.Repeat("x", 8<<10)+`"}`)
	other := sandboxtest.Token(p.Want(t, 200, p.Accounts[0].APIKey, "POST", "/cde-import", strings.Replace(sandboxtest.CardJSON, "4242424242424242", "4111110000000450", 1)))
	p.Follow(t, other, "pending", "active")
	without := p.PaymentData(t, other.ID())["encrypted_authentication_data"].(string)
	if opened := v.call(t, 200, "POST", "/sandbox/open", `{"encrypted_authentication_data":"`+without+`"}`); opened["eci"] != nil {
		t.Errorf("payment data without ECI opens to %v", opened)
	}

	if again := v.call(t, 200, "POST", api+"/provisions", ""); again["network_token_status"] != "active" {
		t.Errorf("provisions answers %v", again)
	}
	simulator := "/sandbox/api/simulator/tokens/" + id
	v.call(t, 202, "POST", simulator+"/suspend", "")
	k = p.Follow(t, k, "active", "inactive suspended_by_issuer")
	v.call(t, 202, "POST", simulator+"/resume", "")
	p.Follow(t, k, "inactive suspended_by_issuer", "active")

	session = v.call(t, 200, "POST", api+"/refresh-session", "")["session_id"].(string)
	if open := p.Want(t, 200, "", "GET", "/sessions/"+session, ""); open["next_action"] != "refresh_security_code" {
		t.Errorf("the session for a code is %v", open)
	}
	session = v.call(t, 200, "POST", api+"/replace-session", "")["session_id"].(string)
	if open := p.Want(t, 200, "", "GET", "/sessions/"+session, ""); open["next_action"] != "replace_card" {
		t.Errorf("the session for another card is %v", open)
	}
	v.call(t, 204, "POST", api+"/consume", "")
	v.live(t, "token="+id, func(codes map[string]any, _ []any) bool {
		if len(codes) > 0 {
			t.Errorf("consumed, the code is still there: %v", codes)
		}
		return true
	})

	// The cookie allows less than an API key.
	v.call(t, 403, "GET", "/sandbox/api/api-keys", "")
	v.call(t, 403, "POST", "/sandbox/api/api-keys", `{"label":"mine","scopes":["tokens:read"]}`)
	v.call(t, 403, "POST", "/sandbox/api/cde-import", sandboxtest.CardJSON)
	v.call(t, 403, "POST", api+"/replace", sandboxtest.CardJSON)
	p.Want(t, 401, v.cookie.Value, "GET", "/tokens", "")

	v.call(t, 204, "DELETE", api, "")
	for _, x := range [][3]string{
		{"GET", api, ""}, {"DELETE", api, ""}, {"POST", api + "/provisions", ""},
		{"GET", api + "/payment-data", ""}, {"POST", api + "/payment-data", payment},
		{"POST", api + "/refresh-session", ""}, {"POST", api + "/replace-session", ""}, {"POST", api + "/consume", ""}, {"GET", api + "/security-code", ""},
		{"POST", simulator + "/suspend", ""},
		{"GET", "/sandbox/", ""}, {"GET", "/sandbox/index.html", ""}, {"POST", "/sandbox/live", ""}, {"GET", "/sandbox/open", ""},
	} {
		v.call(t, 404, x[0], x[1], x[2])
	}
	v.live(t, "token="+id, func(_ map[string]any, events []any) bool { return hasEvent(events, id, "token.deleted") })
	v.call(t, 422, "GET", "/sandbox/live?"+strings.Repeat("token=x&", 51), "")

	for _, a := range p.Accounts {
		if bytes.Contains(v.seen.Bytes(), []byte(a.APIKey)) || bytes.Contains(v.seen.Bytes(), []byte(a.PaymentSecret)) {
			t.Errorf("the page or an answer to it contains a key or secret of the account %s", a.Name)
		}
	}
	if regexp.MustCompile(`vk_(test|live)_[0-9a-f]{8}`).Match(v.seen.Bytes()) {
		t.Error("the page or an answer to it contains an API key")
	}

	p.stop(t)
	again := visit(t, start(t, dir))
	again.cookie.Value = v.cookie.Value
	again.call(t, 401, "GET", "/sandbox/live", "")
}

// TestPageWebhooks does everything with webhooks that the page can do.
func TestPageWebhooks(t *testing.T) {
	p := start(t, t.TempDir())
	v := visit(t, p)
	hook := webhooktest.New()
	target := hook.Start(t) + "/hook"
	register := func(path, body string) (w map[string]any, secret string) {
		t.Helper()
		at := v.seen.Len()
		w = v.call(t, 200, "POST", "/sandbox/api/webhooks"+path, body)
		v.seen.Truncate(at) // only this answer has the secret
		secret, _ = w["signing_secret"].(string)
		if !strings.HasPrefix(secret, "whsec_") {
			t.Errorf("POST /webhooks%s answers without a secret", path)
		}
		delete(w, "signing_secret")
		return w, secret
	}
	registered, secret := register("", `{"url":"`+target+`","events":["token.created","token.deleted"]}`)
	id, _ := registered["id"].(string)
	api := "/sandbox/api/webhooks/" + id
	list := v.call(t, 200, "GET", "/sandbox/api/webhooks?limit=16", "")["data"].([]any)
	if len(list) != 1 || fmt.Sprint(list[0]) != fmt.Sprint(registered) || registered["status"] != "enabled" {
		t.Fatalf("the page lists %v, registered %v", list, registered)
	}

	// arrived returns the last of n deliveries, which must be signed with secrets.
	arrived := func(n int, secrets ...string) webhooktest.Delivery {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		all, err := hook.Wait(ctx, n)
		if err != nil {
			t.Fatalf("%d deliveries: %v", len(hook.Deliveries()), err)
		}
		d := all[n-1]
		for _, s := range secrets {
			if _, err := receive.Verify(d.Header, d.Body, receive.NewWebhookSecret([]byte(s))); err != nil {
				t.Errorf("delivery %d: %v", n, err)
			}
		}
		return d
	}
	// deliveries asks for the deliveries until the first of n is in a state.
	deliveries := func(n int, status string, code any) map[string]any {
		t.Helper()
		look := time.NewTicker(50 * time.Millisecond)
		defer look.Stop()
		end := time.After(time.Minute)
		for {
			all := v.call(t, 200, "GET", api+"/deliveries?limit=20", "")["data"].([]any)
			if len(all) == n {
				if d := all[0].(map[string]any); d["status"] == status && d["last_status_code"] == code {
					return d
				}
			}
			select {
			case <-look.C:
			case <-end:
				t.Fatalf("the deliveries are still %v", all)
			}
		}
	}

	if result := v.call(t, 200, "POST", api+"/test", ""); result["status_code"] != 204.0 {
		t.Errorf("the test event is answered with %v", result)
	}
	arrived(1, secret)
	k := p.Import(t, "4242424242424242")
	if d := arrived(2, secret); !bytes.Contains(d.Body, []byte(`"event_type":"token.created"`)) || !bytes.Contains(d.Body, []byte(k.ID())) {
		t.Errorf("the delivery of the import is %s", d.Body)
	}
	created := deliveries(1, "delivered", 204.0)
	if created["token_id"] != k.ID() || created["event_type"] != "token.created" || created["attempts"] != 1.0 {
		t.Errorf("the delivery is %v", created)
	}

	_, rotated := register("/"+id+"/rotate-secret", "")
	if rotated == secret {
		t.Error("the rotated secret is the same")
	}
	v.call(t, 204, "POST", "/sandbox/api/events/"+created["event_id"].(string)+"/redeliver", "")
	if d := arrived(3, secret, rotated); d.Header.Get("Webhook-Id") != created["event_id"] {
		t.Errorf("redelivered is %s", d.Header.Get("Webhook-Id"))
	}
	hook.Always(webhooktest.Status(500))
	v.call(t, 204, "DELETE", "/sandbox/api/tokens/"+k.ID(), "")
	failed := deliveries(2, "pending", 500.0)
	for end := time.Now().Add(time.Minute); failed["next_attempt_at"] == nil && time.Now().Before(end); { // the next attempt is under way
		failed = deliveries(2, "pending", 500.0)
	}
	if failed["event_type"] != "token.deleted" || failed["next_attempt_at"] == nil {
		t.Errorf("the delivery that failed is %v", failed)
	}

	for _, status := range []string{"disabled", "enabled"} {
		v.call(t, 200, "PATCH", api, `{"status":"`+status+`"}`)
		if now := v.call(t, 200, "GET", api, ""); now["status"] != status {
			t.Errorf("set to %s, the webhook is %v", status, now)
		}
	}
	v.call(t, 422, "POST", "/sandbox/api/webhooks", `{"url":"ftp://127.0.0.1/"}`)
	v.call(t, 204, "DELETE", api, "")
	for _, x := range [][2]string{{"GET", api}, {"GET", api + "/deliveries"}, {"POST", api + "/test"}, {"POST", "/sandbox/api/events/" + id + "/redeliver"}} {
		v.call(t, 404, x[0], x[1], "")
	}

	secrets := []string{"whsec_", "vk_test_"}
	for _, a := range p.Accounts {
		secrets = append(secrets, a.APIKey, a.PaymentSecret)
	}
	for _, d := range hook.Deliveries() {
		v.seen.Write(d.Body)
		if err := d.Header.Write(&v.seen); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range secrets {
		if bytes.Contains(v.seen.Bytes(), []byte(s)) {
			t.Errorf("answers or deliveries contain a key or secret that begins with %.6s", s)
		}
	}
}

// TestPageAlone makes the page's calls from outside the page.
func TestPageAlone(t *testing.T) {
	p := start(t, t.TempDir())
	v := visit(t, p)
	for _, path := range []string{"/sandbox/live", "/sandbox/open", "/sandbox/api/tokens", "/sandbox/api/tokens/session", "/sandbox/api/webhooks",
		"/sandbox/api/simulator/tokens/" + uuid.NewString() + "/suspend", "/sandbox/page.js", "/sandbox/"} {
		for name, c := range map[string]struct {
			status  int
			pretend func(*http.Request)
		}{
			"without a cookie": {401, func(r *http.Request) { r.Header.Del("Cookie") }},
			"another cookie": {401, func(r *http.Request) {
				r.Header.Set("Cookie", v.cookie.Name+"="+strings.Repeat("A", len(v.cookie.Value)))
			}},
			"a cookie that is cut": {401, func(r *http.Request) {
				r.Header.Set("Cookie", v.cookie.Name+"="+v.cookie.Value[:len(v.cookie.Value)-1])
			}},
			"an API key alone": {401, func(r *http.Request) {
				r.Header.Del("Cookie")
				r.Header.Set("X-Api-Key", p.Accounts[0].APIKey)
			}},
			"a foreign name":       {421, func(r *http.Request) { r.Host = "evil.example" }},
			"another site":         {403, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }},
			"another port":         {403, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }},
			"a browser of old":     {403, func(r *http.Request) { r.Method = "POST"; r.Header.Set("Origin", "http://127.0.0.1:8090") }},
			"an origin that hides": {403, func(r *http.Request) { r.Method = "POST"; r.Header.Set("Origin", "null") }},
		} {
			r := v.request(t, "GET", path, "")
			r.Header.Set("Sec-Fetch-Site", "same-origin")
			if c.status == 403 {
				r.Header.Del("Sec-Fetch-Site")
			}
			c.pretend(r)
			t.Run(name, func(t *testing.T) { v.want(t, c.status, r) })
		}
	}
	// From the page itself all of them work.
	for _, r := range []*http.Request{
		v.request(t, "GET", "/sandbox/live", ""),
		v.request(t, "POST", "/sandbox/api/tokens/session", ""),
	} {
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		r.Header.Set("Origin", v.BaseURL)
		v.want(t, 200, r)
	}
}
