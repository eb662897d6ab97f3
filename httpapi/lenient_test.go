package httpapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
)

// Unknown members count towards the limits of a body, and known members keep their rules.
func TestIgnoreUnknownKeepsLimits(t *testing.T) {
	r := newRig(t, &cardvault.Options{Webhooks: &sender{}}, &httpapi.Options{IgnoreUnknown: true})
	id := r.importCard(t)
	hook := r.newWebhook(t, r.vault)
	imported := func(more string) string { return strings.TrimSuffix(cardBody, "}") + more + "}" }

	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"m%d":0`, i)
		}
		return b.String()
	}

	for _, test := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"POST", "/cde-import", imported(`,"unknown":1,"Account_Number":"x"`), 200, ""},
		{"POST", "/cde-import", imported(many(253)), 200, ""},
		{"POST", "/cde-import", imported(many(254)), 400, "MALFORMED_REQUEST"},
		{"POST", "/cde-import", imported(`,"unknown":1,"unknown":1`), 400, "MALFORMED_REQUEST"},
		{"POST", "/cde-import", imported(`,"unknown":1,"\u0065xpiry_month":4`), 400, "MALFORMED_REQUEST"},
		{"POST", "/cde-import", imported(`,"unknown":` + strings.Repeat("[", 7) + strings.Repeat("]", 7)), 200, ""},
		{"POST", "/cde-import", imported(`,"unknown":` + strings.Repeat("[", 8) + strings.Repeat("]", 8)), 400, "MALFORMED_REQUEST"},
		{"POST", "/cde-import", imported(`,"unknown":"` + strings.Repeat("x", 64<<10) + `"`), 413, "PAYLOAD_TOO_LARGE"},
		{"POST", "/cde-import", imported(`,"unknown":1,"security_code":7`), 422, `"field":"security_code","code":"wrong_type"`},
		{"POST", "/cde-import", `{"unknown":1}`, 422, `"field":"account_number","code":"required"`},
		{"POST", "/cde-import", "", 400, "MALFORMED_REQUEST"},
		{"POST", "/tokens/session", `{"unknown":{"expiration_time":0}}`, 200, ""},
		{"PATCH", "/tokens/" + id, `{"unknown":1}`, 422, `"field":"body","code":"empty_patch"`},
		{"PATCH", "/tokens/" + id, `{"unknown":1,"cardholder_name":7}`, 422, `[{"field":"cardholder_name","code":"wrong_type"`},
		{"PATCH", "/tokens/" + id, `{"unknown":1,"expiry_month":7}`, 422, `[{"field":"expiry_year","code":"depends_on"`},
		{"PATCH", "/tokens/" + id, `{"unknown":1,"cardholder_name":"A"}`, 200, ""},
		{"PATCH", "/webhooks/" + hook, `{"unknown":1}`, 422, `"field":"body","code":"empty_patch"`},
		{"PATCH", "/webhooks/" + hook, `{"unknown":1,"description":null}`, 200, ""},
		{"GET", "/tokens?unknown=1&unknown=2&limit=1", `{"unknown":1}`, 200, ""},
		{"GET", "/tokens?unknown=1&limit=1&limit=1", "", 422, "duplicate_parameter"},
		{"GET", "/tokens?unknown=1&limit=0", "", 422, "out_of_range"},
		{"GET", "/tokens?unknown=%ff", "", 400, "MALFORMED_REQUEST"},
		{"GET", "/tokens?" + strings.Repeat("unknown&", 255), "", 200, ""},
		{"GET", "/tokens?" + strings.Repeat("unknown&", 256), "", 400, "MALFORMED_REQUEST"},
	} {
		a := r.do(t, test.method, test.path, test.body)
		if a.status != test.status || !strings.Contains(a.body, test.code) {
			t.Errorf("%s %s %.90s: %d %s", test.method, test.path, test.body, a.status, a.body)
		}
	}
}

// Nothing of an unknown member is kept, not even a hash under an idempotency key. It may be
// a security code that only another API knows.
func TestIgnoreUnknownComparesWhatIsKnown(t *testing.T) {
	r := newRig(t, nil, &httpapi.Options{IgnoreUnknown: true})
	first := r.do(t, "POST", "/cde-import", strings.Replace(cardBody, "{", `{ "cvc": "737" ,"security_code":"123", `, 1), "Idempotency-Key", "k")
	first.want(t, 200)

	for body, status := range map[string]int{
		strings.Replace(cardBody, "{", `{ "cvc": {"secret":[9137]} ,"security_code":"\u0034567", `, 1):                  200,
		strings.Replace(cardBody, "{", `{ "cvc": null ,"security_code":"", `, 1):                                        422,
		strings.Replace(cardBody, "{", `{ "cvc": "737" ,"security_code":"123", `, 1) + " ":                              422,
		strings.Replace(strings.Replace(cardBody, "{", `{ "cvc": "" ,"security_code":"123", `, 1), "2031", "2032", 1):   422,
		strings.Replace(strings.Replace(cardBody, "{", `{ "cvc": "" ,"security_code":"123", `, 1), `:4,`, `: 4,`, 1):    422,
		strings.Replace(strings.Replace(cardBody, "{", `{ "cvv": "737" ,"security_code":"123", `, 1), `:4,`, `: 4,`, 1): 422,
	} {
		a := r.do(t, "POST", "/cde-import", body, "Idempotency-Key", "k")
		if a.status != status {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
		if replayed := a.header.Get("Idempotency-Replayed") != ""; replayed != (status == 200) || replayed && a.body != first.body {
			t.Errorf("%s: replayed %t: %s", body, replayed, a.body)
		}
	}
}

// IgnoreUnknown lets a browser set nothing more in a session.
func TestIgnoreUnknownInASession(t *testing.T) {
	r := newRig(t, nil, &httpapi.Options{IgnoreUnknown: true})
	session := r.newSession(t)
	body := completion(t, r.do(t, "GET", session, ""), entered, "")
	body = strings.Replace(body, `{"enc_payload"`, `{"business_key":"mine","enc_payload"`, 1)
	body = `{"business_key":"mine","import_provider":"mine","expiration_time":5,"bypass_identification":true,` + body[1:]
	r.do(t, "POST", session+"/complete-action?business_key=mine", body).want(t, 200)

	tokens := r.do(t, "GET", "/tokens", "")
	for _, want := range []string{`"total_items":1`, `"business_key":null`, `"import_provider":null`, `"expires_at":null`} {
		if !strings.Contains(tokens.body, want) {
			t.Errorf("no %s: %s", want, tokens.body)
		}
	}
}
