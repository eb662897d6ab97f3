package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
)

const (
	uuidForm = `"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"`
	timeForm = `"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"`
)

// tokenTable lists each member of a token, the form of its value, and whether it may be
// null.
var tokenTable = []struct {
	name, form string
	nullable   bool
}{
	{"id", uuidForm, false},
	{"cardholder_name", `".+"`, true},
	{"card_art_url", `"https?://.+"`, true},
	{"created_at", timeForm, false},
	{"expiry_month", `[1-9]|1[0-2]`, false},
	{"expiry_year", `20\d\d`, false},
	{"expires_at", timeForm, true},
	{"invalidated_at", timeForm, true},
	{"issuer_identification_number", `"(\d{6}|\d{8})"`, false},
	{"account_number_last_four", `"\d{4}"`, true},
	{"account_number_length", `1[2-9]`, true},
	{"masked_account_number", `"\d{6}\*{2,9}\d{4}"`, false},
	{"bank_name", `".+"`, true},
	{"segment", `"(business|consumer|commercial|other)"`, true},
	{"status", `"(active|invalid)"`, true},
	{"type", `"(credit|debit)"`, true},
	{"country_code", `"[A-Z]{2}"`, true},
	{"network_token_status", `"(active|inactive|pending|deleted|failed|not_available)"`, true},
	{"network_token_status_reason", `\{"source":"(scheme|configuration)","code":"[a-z_]+","message":".+","retryable":(true|false),"scheme_code":(".+"|null),"occurred_at":` + timeForm + `\}`, true},
	{"scheme", `"(VISA|Mastercard|American Express|Discover|Diners Club|JCB|UnionPay|Unknown)"`, false},
	{"identity_and_verification", `"(none|checked|skipped)"`, true},
	{"authentication_data", `\{\}`, false},
	{"supports_device_binding", `true|false`, false},
	{"business_key", `".+"`, true},
	{"import_provider", `".+"`, true},
	{"account_number_stale", `true|false`, false},
	{"updated_at", timeForm, false},
	{"fingerprint", `"[0-9a-f]{64}"`, true},
	{"payment_account_reference", `"[0-9A-Z]{29}"`, true},
}

// checkToken checks a token member by member. The members in null must be null; all others
// must have a value.
func checkToken(t *testing.T, body string, null ...string) {
	t.Helper()
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &members); err != nil {
		t.Fatal(err)
	}
	absent := map[string]bool{}
	for _, name := range null {
		absent[name] = true
	}
	if len(members) != len(tokenTable) {
		t.Errorf("%d members, not %d: %s", len(members), len(tokenTable), body)
	}
	for _, m := range tokenTable {
		value, ok := members[m.name]
		switch {
		case !ok:
			t.Errorf("no %s in %s", m.name, body)
		case absent[m.name] && (!m.nullable || string(value) != "null"):
			t.Errorf("%s is %s, not null", m.name, value)
		case !absent[m.name] && !regexp.MustCompile(`^(?:`+m.form+`)$`).Match(value):
			t.Errorf("%s is %s", m.name, value)
		}
	}
}

func TestTokenMembers(t *testing.T) {
	bin := &network.BIN{BankName: "Bank \"of\" <Ö>\u2028", Segment: "consumer", Type: "prepaid", CountryCode: "AT"}
	r := newRig(t, &cardvault.Options{IINLength: 8, BIN: binProvider(func(context.Context, *network.BINRequest) (*network.BIN, error) { return bin, nil })}, nil)
	const never = "card_art_url invalidated_at expires_at payment_account_reference"
	full := r.do(t, "POST", "/cde-import", `{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2099,"cardholder_name":"Zoë \u0022Q\u0022 \\ <b> \ud83d\ude00","business_key":"k/1","import_provider":"p"}`)
	full.want(t, 200)
	checkToken(t, full.body, strings.Fields(never)...)
	want := map[string]any{
		"cardholder_name": "Zoë \"Q\" \\ <b> 😀", "bank_name": bin.BankName, "segment": "consumer", "type": "debit", "country_code": "AT",
		"issuer_identification_number": "42424242", "masked_account_number": "424242******4242", "account_number_last_four": "4242",
		"account_number_length": 16.0, "business_key": "k/1", "import_provider": "p", "scheme": "VISA", "status": "active",
		"identity_and_verification": "none", "expiry_month": 12.0, "expiry_year": 2099.0,
	}
	for name, value := range want {
		if got := full.object(t)[name]; got != value {
			t.Errorf("%s is %q, not %q", name, got, value)
		}
	}
	*bin = network.BIN{}
	bare := r.do(t, "POST", "/cde-import", cardBody)
	bare.want(t, 200)
	checkToken(t, bare.body, strings.Fields(never+" cardholder_name bank_name segment type country_code business_key import_provider")...)

	// All endpoints answer with the same shape.
	for _, a := range []*answer{full, bare} {
		got := r.do(t, "GET", "/tokens/"+a.member(t, "id"), "")
		if got.body != a.body {
			t.Errorf("GET answers %s, the import %s", got.body, a.body)
		}
	}
	list := r.do(t, "GET", "/tokens", "")
	if want := `{"data":[` + bare.body + "," + full.body + `],"pagination":{"current_page":1,"page_size":50,"total_items":2,"total_pages":1}}`; list.body != want {
		t.Errorf("list %s, not %s", list.body, want)
	}
	patched := r.do(t, "PATCH", "/tokens/"+full.member(t, "id"), `{"cardholder_name":null}`)
	if want := regexp.MustCompile(`"cardholder_name":"(\\.|[^"\\])*"`).ReplaceAllString(full.body, `"cardholder_name":null`); patched.body != strings.Replace(want, `"updated_at":"`+full.member(t, "updated_at"), `"updated_at":"`+patched.member(t, "updated_at"), 1) {
		t.Errorf("patched %s, not %s", patched.body, want)
	}
}

// A token with a lifetime has expires_at, and expires at that instant.
func TestEphemeralToken(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		session := r.do(t, "POST", "/tokens/session", `{"expiration_time":60,"bypass_identification":true}`)
		session.want(t, 200)
		tok, err := r.vault.Tokenize(t.Context(), cardvault.NewSessionID(parseUUID(t, session.member(t, "session_id"))), cardvault.Card{
			PAN: card.NewPAN([]byte(pan)), Expiry: card.Expiry{Month: 4, Year: 2031},
		})
		if err != nil {
			t.Fatal(err)
		}
		path := "/tokens/" + tok.ID.String()
		a := r.do(t, "GET", path, "")
		checkToken(t, a.body, strings.Fields("card_art_url invalidated_at payment_account_reference cardholder_name bank_name segment type country_code business_key import_provider")...)
		created, expires := a.member(t, "created_at"), a.member(t, "expires_at")
		begin, err1 := time.Parse(time.RFC3339, created)
		end, err2 := time.Parse(time.RFC3339, expires)
		if err1 != nil || err2 != nil || end.Sub(begin) != time.Minute {
			t.Errorf("created at %s, expires at %s", created, expires)
		}
		if !strings.Contains(a.body, `"code":"ephemeral_token"`) || a.member(t, "identity_and_verification") != "skipped" {
			t.Error(a.body)
		}
		time.Sleep(time.Until(end) - time.Microsecond)
		r.do(t, "GET", path, "").want(t, 200)
		time.Sleep(time.Microsecond)
		r.do(t, "GET", path, "").want(t, 404)
		r.do(t, "PATCH", path, `{"cardholder_name":"A"}`).want(t, 404)
		r.do(t, "DELETE", path, "").want(t, 404)
		if a := r.do(t, "GET", "/tokens", ""); !strings.HasPrefix(a.body, `{"data":[],"pagination":{"current_page":1,"page_size":50,"total_items":0,"total_pages":0}}`) {
			t.Error(a.body)
		}
	})
}

// Every scheme and network token status is a value of its filter.
func TestFilterNames(t *testing.T) {
	r := newRig(t, nil, nil)
	for parameter, names := range map[string]string{
		"scheme":               "VISA,Mastercard,American+Express,Discover,Diners+Club,JCB,UnionPay,Unknown",
		"network_token_status": "active,inactive,pending,deleted,failed,not_available",
	} {
		for name := range strings.SplitSeq(names, ",") {
			r.do(t, "GET", "/tokens?"+parameter+"="+name, "").want(t, 200)
		}
		a := r.do(t, "GET", "/tokens?"+parameter+"=x", "")
		a.want(t, 422)
		for name := range strings.SplitSeq(names, ",") {
			if name = strings.ReplaceAll(name, "+", " "); !strings.Contains(a.body, name) {
				t.Errorf("%s is not named in %s", name, a.body)
			}
		}
	}
}

// An inbound request id is adopted if it needs no quotes and holds no card number.
func TestRequestID(t *testing.T) {
	r := newRig(t, nil, nil)
	seen := map[string]bool{}
	for _, test := range []struct {
		id   string
		same bool
	}{
		{"9b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11", true},
		{"019aa4d8-7c2e-7000-8a00-1d2f9ddc2b11", true},
		{"9B2D3A52-6F0E-4D0B-8A43-0D2F9DDC2B11", true},
		{"Root_1-67891233.abcdef0123456789a2345678", true},
		{"x", true},
		{strings.Repeat("x", 64), true},
		{strings.Repeat("x", 65), false},
		{"{9b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11}", false},
		{"a b", false},
		{"737", false},
		{"7373", false},
		{"73737", true},
		{"a,b", false},
		{"é", false},
		{"4242424242424242", false},
		{"bf424242-4242-4242-8242-42c970b7e2f1", true},
		{"42424242-4242-4242-8242-424242424242", false},
		{"order-4242.4242_4242-4242", false},
		{"", false},
	} {
		for _, path := range []string{"/tokens", "/nothing"} {
			got := r.do(t, "GET", path, "", "X-Request-Id", test.id).header["X-Request-Id"]
			if len(got) != 1 || (got[0] == test.id) != test.same || !test.same && seen[got[0]] {
				t.Errorf("%q is answered with %q", test.id, got)
			}
			seen[got[0]] = true
			if !test.same && !regexp.MustCompile(`^`+uuidForm+`$`).MatchString(`"`+got[0]+`"`) {
				t.Errorf("%q is not a UUIDv4", got)
			}
		}
	}
}

// Totals match the pages.
func TestPagination(t *testing.T) {
	r := newRig(t, nil, nil)
	const n = 7
	var ids []string
	for range n {
		ids = append(ids, r.importCard(t))
	}
	for limit := 1; limit <= n+1; limit++ {
		var got []string
		pages := (n + limit - 1) / limit
		for page := 1; page <= pages+2; page++ {
			a := r.do(t, "GET", fmt.Sprintf("/tokens?sort=created_at+asc&limit=%d&page=%d", limit, page), "")
			a.want(t, 200)
			var body struct {
				Data       []struct{ ID string }
				Pagination json.RawMessage
			}
			if err := json.Unmarshal([]byte(a.body), &body); err != nil {
				t.Fatal(err)
			}
			for _, tok := range body.Data {
				got = append(got, tok.ID)
			}
			if want := fmt.Sprintf(`{"current_page":%d,"page_size":%d,"total_items":%d,"total_pages":%d}`, page, limit, n, pages); string(body.Pagination) != want {
				t.Errorf("pagination %s, not %s", body.Pagination, want)
			}
			if body.Data == nil {
				t.Errorf("data is not a list: %s", a.body)
			}
		}
		if strings.Join(got, " ") != strings.Join(ids, " ") {
			t.Errorf("pages of %d hold %v, not %v", limit, got, ids)
		}
	}
}

// An encoded body is not read as plain.
func TestContentEncoding(t *testing.T) {
	r := newRig(t, nil, nil)
	const body = `{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030}`
	r.do(t, "POST", "/cde-import", body).want(t, 200)
	for _, encoding := range []string{"gzip", "identity", ""} {
		r.do(t, "POST", "/cde-import", body, "Content-Encoding", encoding).want(t, 415, "UNSUPPORTED_MEDIA_TYPE")
	}
}

// A value's JSON equals the REST answer, byte for byte, and decodes to the same value.
func TestJSON(t *testing.T) {
	r := newRig(t, &cardvault.Options{Webhooks: &sender{}}, nil)
	id := r.importCard(t)
	r.do(t, "PATCH", "/tokens/"+id, `{"cardholder_name":"Zoë <Q> & \"","business_key":"a&b"}`).want(t, 200)
	r.do(t, "POST", "/tokens/"+id+"/payment-data", `{"amount":1,"currency_code":"EUR","reference":"<é>"}`).want(t, 200)
	r.do(t, "POST", "/webhooks", `{"url":"https://hook.example/204?a=1&b=2"}`).want(t, 200)

	same(t, r, "/tokens/"+id, func() (*cardvault.Token, error) { return r.vault.Get(t.Context(), parseUUID(t, id)) })
	same(t, r, "/tokens", func() (*cardvault.Page[*cardvault.Token], error) { return r.vault.List(t.Context(), nil) })
	same(t, r, "/tokens?page=7", func() (*cardvault.Page[*cardvault.Token], error) {
		return r.vault.List(t.Context(), &cardvault.TokenListOptions{Page: 7})
	})
	same(t, r, "/tokens/"+id+"/payment-data", func() (*cardvault.Page[*cardvault.PaymentData], error) {
		return r.vault.ListPaymentData(t.Context(), parseUUID(t, id), nil)
	})
	same(t, r, "/webhooks", func() (*cardvault.Page[*cardvault.Webhook], error) { return r.vault.ListWebhooks(t.Context(), nil) })
	same(t, r, "/api-keys", func() (*cardvault.Page[*cardvault.APIKey], error) { return r.vault.ListAPIKeys(t.Context(), nil) })
}

// same checks the JSON of a value against the answer on a path.
func same[T any](t *testing.T, r *rig, path string, get func() (*T, error)) {
	t.Helper()
	value, err := get()
	if err != nil {
		t.Fatal(err)
	}
	encode := func(v any) string {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			t.Error(err)
		}
		return strings.TrimSuffix(b.String(), "\n")
	}
	a := r.do(t, "GET", path, "")
	a.want(t, 200)
	if got := encode(value); got != a.body {
		t.Errorf("%s answers %s, the JSON is %s", path, a.body, got)
	}
	escaped, err := json.Marshal(value)
	if err != nil {
		t.Error(err)
	}
	for _, text := range [][]byte{[]byte(a.body), escaped} {
		var read T
		if err := json.Unmarshal(text, &read); err != nil || encode(read) != a.body {
			t.Errorf("%s reads as %s, %v", text, encode(read), err)
		}
	}
}
