package forward_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// TestPlaces: the destination decodes exactly the card, wherever it stands.
func TestPlaces(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		var c capture
		l := open(t, c.serve, func(d *forward.Destination) { d.HTTP2 = http2 })
		values := map[string]string{"n": number, "m": "04", "y": "2088", "yy": "88", "h": holder, "c": code}
		names := map[string]string{"n": "account_number", "m": "expiry_month", "y": "expiry_year", "yy": "expiry_yy", "h": "cardholder_name", "c": "security_code"}

		var inJSON, inForm, inXML []string
		for k, name := range names {
			inJSON = append(inJSON, fmt.Sprintf(`"%s":"{{ %s }}"`, k, name))
			inForm = append(inForm, k+"="+url.QueryEscape("{{ "+name+" }}"))
			inXML = append(inXML, fmt.Sprintf(`<%s a="{{ %s }}">{{%s}}</%s>`, k, name, name, k))
		}
		for contentType, body := range map[string]string{
			jsonType:                            "{" + strings.Join(inJSON, ",") + "}",
			"application/x-www-form-urlencoded": strings.Join(inForm, "&"),
			"text/xml; charset=utf-8":           "<x>" + strings.Join(inXML, "") + "</x>",
		} {
			r := l.request(contentType, body)
			r.URL += "?a=b"
			r.Header["X-Card"] = []string{"{{account_number}}/{{ expiry_month }}"}
			a, err := l.Do(t.Context(), l.token, r, nil)
			if err != nil || a.StatusCode != 200 || string(a.Body) != `{"ok":true}` || a.Redacted {
				t.Fatalf("answer is %+v, %v", a, err)
			}
			got := c.got()
			if int64(len(got.body)) != got.length || got.uri != "/v1/charges?a=b" || got.header.Get("X-Card") != number+"/04" {
				t.Errorf("%s, %v: %d of %d bytes", got.uri, got.header, len(got.body), got.length)
			}
			if (got.proto == "HTTP/2.0") != http2 {
				t.Errorf("protocol is %s", got.proto)
			}
			for k, want := range values {
				if v := decoded(t, contentType, got.body, k); v != want {
					t.Errorf("%s, %s is %q", contentType, k, v)
				}
			}
		}
	}
}

// TestNameInHeader: the name of a cardholder cannot end a header, and arrives as it is.
func TestNameInHeader(t *testing.T) {
	var c capture
	l := open(t, c.serve, nil)
	for _, name := range []string{"A\r\nX-Injected: 1", "A\nX-Injected: 1", "A\rB", "A\x00B", "A\x7fB", "A\u0085B"} {
		bad := testCard()
		bad.Name = card.NewName([]byte(name))
		if _, err := l.vault.Import(t.Context(), bad, nil); len(cardvault.FieldErrors(err)) != 1 {
			t.Errorf("%q is a name: %v", name, err)
		}
	}

	r := l.request(jsonType, "")
	r.Header["X-Name"] = []string{"{{ cardholder_name }}"}
	if _, err := l.Do(t.Context(), l.token, r, nil); err != nil || c.got().header.Get("X-Name") != holder {
		t.Errorf("header is %q, %v", c.got().header.Get("X-Name"), err)
	}
}

// decoded returns a value of a body.
func decoded(t *testing.T, contentType, body, name string) string {
	t.Helper()
	switch {
	case contentType == jsonType:
		var v map[string]string
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		return v[name]
	case strings.HasPrefix(contentType, "text/xml"):
		d := xml.NewDecoder(strings.NewReader(body))
		for {
			token, err := d.Token()
			if err != nil {
				t.Fatal(err)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == name {
				text, err := d.Token()
				if err != nil || string(text.(xml.CharData)) != e.Attr[0].Value {
					t.Errorf("text and attribute of %s differ: %v", name, err)
				}
				return e.Attr[0].Value
			}
		}
	}
	v, err := url.ParseQuery(body)
	if err != nil {
		t.Fatal(err)
	}
	return v.Get(name)
}

// TestUntouched: a body without placeholders goes out byte for byte, whatever it is.
func TestUntouched(t *testing.T) {
	var c capture
	l := open(t, c.serve, nil)
	for _, body := range []string{"{", "\x00\xff\x1f\x8b", strings.Repeat("x", forward.MaxBody)} {
		if _, err := l.Do(t.Context(), l.token, l.request("multipart/form-data; boundary=b", body), nil); err != nil {
			t.Fatal(err)
		}
		if got := c.got(); got.body != body {
			t.Errorf("%d bytes became %d", len(body), len(got.body))
		}
	}
}

// TestLarge: a body is streamed, and bounded before and after the card is in it.
func TestLarge(t *testing.T) {
	var c capture
	l := open(t, c.serve, nil)
	filler := strings.Repeat("x", 900_000)
	if _, err := l.do(t, `{"a":"`+filler+`","n":"{{ account_number }}"}`, nil); err != nil {
		t.Fatal(err)
	}
	if got := c.got(); got.body != `{"a":"`+filler+`","n":"`+number+`"}` {
		t.Errorf("%d bytes arrived", len(got.body))
	}

	many := `["` + strings.Repeat("{{eci}}", 10) + strings.Repeat("{{cardholder_name}}", forward.MaxBody/20) + `"]`
	for name, body := range map[string]string{
		"a body that grows":           `["` + strings.Repeat("{{cardholder_name}}", forward.MaxBody/20) + `"]`,
		"a body that is too large":    strings.Repeat("x", forward.MaxBody+1),
		"one that needs payment data": many,
	} {
		before := l.requests.Load()
		_, err := l.do(t, body, nil)
		if !errors.Is(err, forward.ErrTooLarge) && len(cardvault.FieldErrors(err)) == 0 || l.requests.Load() != before {
			t.Errorf("%s: %v", name, err)
		}
	}

	// As many placeholders as there is room for.
	body := `["` + strings.Repeat("{{account_number}}", forward.MaxBody/18-1) + `"]`
	if _, err := l.do(t, body, nil); err != nil {
		t.Fatal(err)
	}
	if got := c.got(); got.body != `["`+strings.Repeat(number, forward.MaxBody/18-1)+`"]` {
		t.Errorf("%d bytes arrived", len(got.body))
	}
}

// TestRefused: nothing is sent for a request that breaks a rule, and all broken rules are
// named at once.
func TestRefused(t *testing.T) {
	l := open(t, echo, nil)
	for _, c := range []struct {
		name   string
		change func(*forward.Request)
		field  string
		code   invalid.Code
	}{
		{"placeholder in the URL", func(r *forward.Request) { r.URL += "/{{account_number}}" }, "URL", invalid.PlaceholderNotAllowed},
		{"encoded in the URL", func(r *forward.Request) { r.URL += "?n=%7B%7Baccount_number%7D%7D" }, "URL", invalid.PlaceholderNotAllowed},
		{"unknown in the URL", func(r *forward.Request) { r.URL += "?n={{pan}}" }, "URL", invalid.UnknownPlaceholder},
		{"in a key", func(r *forward.Request) { r.Body = []byte(`{"{{ account_number }}":1}`) }, "Body", invalid.PlaceholderNotAllowed},
		{"in the name of a header", func(r *forward.Request) { r.Header["{{account_number}}"] = []string{"1"} }, "Header", invalid.PlaceholderNotAllowed},
		{"unknown", func(r *forward.Request) { r.Body = []byte(`{"a":"{{ pan }}"}`) }, "Body", invalid.UnknownPlaceholder},
		{"without payment data", func(r *forward.Request) { r.Body = []byte(`{"a":"{{ cryptogram }}"}`) }, "Body", invalid.UnknownPlaceholder},
		{"without payment data, header", func(r *forward.Request) { r.Header["X"] = []string{"{{eci}}"} }, "Header", invalid.UnknownPlaceholder},
		{"multipart", func(r *forward.Request) {
			r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
			r.Body = []byte("--b\r\n\r\n{{ account_number }}\r\n--b--")
		}, "Body", invalid.PlaceholderNotAllowed},
		{"two media types", func(r *forward.Request) { r.Header["content-type"] = []string{jsonType} }, "Body", invalid.PlaceholderNotAllowed},
		{"line break in a header", func(r *forward.Request) { r.Header["X"] = []string{"a\r\nHost: b"} }, "Header", invalid.Format},
		{"bad header name", func(r *forward.Request) { r.Header["X Y"] = []string{"a"} }, "Header", invalid.Format},
		{"a key of the vault", func(r *forward.Request) { r.Header["X-Api-Key"] = []string{"vk_test_x"} }, "Header", invalid.Format},
		{"a key of the vault behind a word", func(r *forward.Request) { r.Header["Authorization"] = []string{"Bearer vk_live_x"} }, "Header", invalid.Format},
		{"half an escape", func(r *forward.Request) { r.Header["X"] = []string{"%4{{ account_number }}"} }, "Header", invalid.PlaceholderNotAllowed},
		{"too many headers", func(r *forward.Request) { r.Header["X"] = make([]string, 101) }, "Header", invalid.TooLong},
		{"too many credentials", func(r *forward.Request) {
			for i := range 9 {
				r.Header["X"] = append(r.Header["X"], fmt.Sprintf("{{ destination.key%d }}", i))
			}
		}, "Header", invalid.TooLong},
		{"credential that is not there", func(r *forward.Request) { r.Header["X"] = []string{"{{ destination.key }}"} }, "Header", invalid.UnknownPlaceholder},
		{"method", func(r *forward.Request) { r.Method = "CONNECT" }, "Method", invalid.Enum},
		{"no method", func(r *forward.Request) { r.Method = "" }, "Method", invalid.Required},
		{"no URL", func(r *forward.Request) { r.URL = "" }, "URL", invalid.Required},
		{"user", func(r *forward.Request) { r.URL = strings.Replace(r.URL, "//", "//a:b@", 1) }, "URL", invalid.Format},
		{"dots", func(r *forward.Request) { r.URL += "/../x" }, "URL", invalid.Format},
		{"encoded dots", func(r *forward.Request) { r.URL += "/%2e%2e/x" }, "URL", invalid.Format},
		{"dots with a parameter", func(r *forward.Request) { r.URL += "/..;a/x" }, "URL", invalid.Format},
		{"encoded slash", func(r *forward.Request) { r.URL += "%2Fx" }, "URL", invalid.Format},
		{"backslash", func(r *forward.Request) { r.URL += "%5cx" }, "URL", invalid.Format},
		{"encoded percent", func(r *forward.Request) { r.URL += "/%252e%252e/x" }, "URL", invalid.Format},
		{"empty segment", func(r *forward.Request) { r.URL += "//x" }, "URL", invalid.Format},
		{"dots and blanks", func(r *forward.Request) { r.URL += "/..%20/x" }, "URL", invalid.Format},
		{"overlong dots", func(r *forward.Request) { r.URL += "/%c0%ae%c0%ae/x" }, "URL", invalid.Format},
		{"segment that is a parameter", func(r *forward.Request) { r.URL += "/;a/x" }, "URL", invalid.Format},
		{"fragment", func(r *forward.Request) { r.URL += "#x" }, "URL", invalid.Format},
		{"scheme", func(r *forward.Request) { r.URL = "ftp" + strings.TrimPrefix(r.URL, "https") }, "URL", invalid.Format},
		{"relative", func(r *forward.Request) { r.URL = "/v1/charges" }, "URL", invalid.Format},
		{"non-ASCII", func(r *forward.Request) { r.URL += "/é" }, "URL", invalid.Format},
	} {
		r := l.request(jsonType, charge)
		c.change(r)
		_, err := l.Do(t.Context(), l.token, r, nil)
		if got := codeOf(t, err, c.field); got != c.code {
			t.Errorf("%s: %s", c.name, got)
		}
		if strings.Contains(fmt.Sprint(err), "a:b") {
			t.Errorf("%s: the error repeats its input", c.name)
		}
	}

	_, err := l.Do(t.Context(), l.token, &forward.Request{Method: "X", URL: "x", Header: http.Header{"X": {"\n"}}, Body: []byte("{{eci}}")},
		&forward.CallOptions{Marker: "short", IdempotencyKey: "\x00"})
	if n := len(cardvault.FieldErrors(err)); n != 5 {
		t.Errorf("%d errors: %v", n, err)
	}
	if n := l.requests.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// TestDestinations: the longest prefix counts, with its methods and accounts.
func TestDestinations(t *testing.T) {
	l := open(t, echo, nil)
	other, err := l.vault.CreateAccount(t.Context(), "other", nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := forward.New(l.vault, []forward.Destination{
		{Name: "psp", URL: l.server.URL + "/v1", Roots: l.roots(), Methods: []string{"POST", "GET"}},
		{Name: "refunds", URL: l.server.URL + "/v1/refunds/", Roots: l.roots()},
		{Name: "others", URL: l.server.URL + "/v2", Roots: l.roots(), Accounts: []uuid.UUID{other.ID}},
	}, &forward.Options{AllowLoopback: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Timeout() != 30*time.Second {
		t.Errorf("timeout is %v", f.Timeout())
	}

	for _, c := range []struct {
		method, path string
		ok           bool
	}{
		{"POST", "/v1", true}, {"GET", "/v1/x", true}, {"POST", "/v1/refunds", true}, {"POST", "/%761/x", true},
		{"GET", "/v1/refunds", false}, {"GET", "/v1/%72efunds/1", false}, {"PUT", "/v1", false},
		{"POST", "/v10", false}, {"POST", "/", false}, {"POST", "", false}, {"POST", "/V1", false}, {"POST", "/v2", false},
		// Some systems take these for /v1/refunds and for /v2.
		{"POST", "/v1/Refunds", false}, {"POST", "/v1/refunds;a=b/1", false}, {"POST", "/v1/refunds%20/1", false}, {"POST", "/v1/refunds./1", false},
		{"POST", "/v1;a/x", false}, {"POST", "/v1/x;a=b", true}, {"POST", "/v1/X.", true},
	} {
		r := l.request(jsonType, "")
		r.Method, r.URL = c.method, l.server.URL+c.path
		_, err := f.Do(t.Context(), l.token, r, nil)
		if c.ok && err != nil || !c.ok && !errors.Is(err, forward.ErrDestination) {
			t.Errorf("%s %s: %v", c.method, c.path, err)
		}
	}
	for _, elsewhere := range []string{"https://127.0.0.1/v1", "https://psp.example/v1", strings.Replace(l.server.URL, "https", "http", 1) + "/v1"} {
		r := l.request(jsonType, charge)
		r.URL = elsewhere
		if _, err := f.Do(t.Context(), l.token, r, nil); !errors.Is(err, forward.ErrDestination) {
			t.Errorf("%s: %v", elsewhere, err)
		}
	}

	// A token of another account, and a destination of another account.
	theirs := l.add(t, l.vault.In(other.ID))
	r := l.request(jsonType, charge)
	if _, err := f.Do(t.Context(), theirs, r, nil); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("token of another account: %v", err)
	}
	if _, err := f.In(other.ID).Do(t.Context(), theirs, r, nil); err != nil {
		t.Errorf("token of the account: %v", err)
	}
	r.URL = l.server.URL + "/v2/x"
	if _, err := f.In(other.ID).Do(t.Context(), theirs, r, nil); err != nil {
		t.Errorf("destination of the account: %v", err)
	}
	if _, err := f.Do(t.Context(), uuid.New(), r, nil); !errors.Is(err, forward.ErrDestination) {
		t.Errorf("destination of another account comes before the token: %v", err)
	}
}

// TestNew: what could not be safe, or is a mistake, is refused.
func TestNew(t *testing.T) {
	v := vaulttest.New(t)
	live := vaulttest.NewWith(t, &cardvault.Options{Mode: cardvault.Live})
	good := forward.Destination{Name: "psp", URL: "https://psp.example/v1"}
	with := func(change func(*forward.Destination)) []forward.Destination {
		d := good
		change(&d)
		return []forward.Destination{d}
	}
	for name, all := range map[string][]forward.Destination{
		"no name":          with(func(d *forward.Destination) { d.Name = "" }),
		"bad name":         with(func(d *forward.Destination) { d.Name = "A" }),
		"http":             with(func(d *forward.Destination) { d.URL = "http://psp.example" }),
		"query":            with(func(d *forward.Destination) { d.URL += "?a" }),
		"user":             with(func(d *forward.Destination) { d.URL = "https://a@psp.example" }),
		"dots":             with(func(d *forward.Destination) { d.URL += "/.." }),
		"method":           with(func(d *forward.Destination) { d.Methods = []string{"TRACE"} }),
		"timeout":          with(func(d *forward.Destination) { d.Timeout = 3 * time.Minute }),
		"answer":           with(func(d *forward.Destination) { d.MaxAnswer = 1 << 30 }),
		"the same name":    {good, {Name: "psp", URL: "https://other.example"}},
		"the same URL":     {good, {Name: "x", URL: "https://PSP.example:443/v1/"}},
		"loopback in http": with(func(d *forward.Destination) { d.URL = "http://127.0.0.1" }),
	} {
		if _, err := forward.New(v, all, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := forward.New(live, nil, &forward.Options{AllowLoopback: true}); !errors.Is(err, cardvault.ErrWrongMode) {
		t.Errorf("loopback in live mode: %v", err)
	}
	if _, err := forward.New(nil, nil, nil); err == nil {
		t.Error("no vault: no error")
	}
	if _, err := forward.New(live, []forward.Destination{good}, nil); err != nil {
		t.Error(err)
	}
}

// TestHeaders: those of a connection are never the caller's.
func TestHeaders(t *testing.T) {
	var c capture
	l := open(t, c.serve, nil)
	r := l.request(jsonType, charge)
	for name, value := range map[string]string{
		"host": "evil.example", "Content-Length": "1", "connection": "close, X-Api-Key", "Transfer-Encoding": "chunked", "Expect": "100-continue",
		"Accept-Encoding": "br", "x-api-key": "theirs", "Idempotency-Key": "k", "TE": "trailers", "Upgrade": "h2c", "Cookie": "a=b",
		// They would undo the methods and the prefix of the destination, or hide the card in the answer.
		"X-HTTP-Method-Override": "DELETE", "x_http_method_override": "DELETE", "X-Method-Override": "DELETE", "X-HTTP-Method": "DELETE",
		"X-Original-URL": "/admin", "X-Rewrite-URL": "/admin", "Transfer_Encoding": "chunked", "Proxy": "http://evil.example",
		"Accept-Charset": "utf-16", "Range": "bytes=0-9", "Forwarded": "host=evil.example", "X-Forwarded-Prefix": "/admin",
		"X_Forwarded_Uri": "/admin", "X-Original-Host": "evil.example", "X-HTTP-Path-Override": "/admin", "X-Host": "evil.example",
	} {
		r.Header[name] = []string{value}
	}
	if _, err := l.Do(t.Context(), l.token, r, nil); err != nil {
		t.Fatal(err)
	}
	want := http.Header{
		"X-Api-Key": {"theirs"}, "Idempotency-Key": {"k"}, "Cookie": {"a=b"}, "Content-Type": {jsonType},
		"Accept-Encoding": {"gzip"}, "User-Agent": {"cardvault"}, "Content-Length": {fmt.Sprint(len(c.got().body))},
	}
	if got := c.got(); fmt.Sprint(got.header) != fmt.Sprint(want) {
		t.Errorf("headers are %v", got.header)
	}
}

// TestSign: the signature covers what is sent, and Sign adds nothing that is not a header.
func TestSign(t *testing.T) {
	var c capture
	mac := func(body []byte) string {
		m := hmac.New(sha256.New, []byte("a key as long as FIPS wants"))
		m.Write(body)
		return hex.EncodeToString(m.Sum(nil))
	}
	sign := func(r *http.Request, body []byte) error {
		if r.URL.Path != "/v1/charges" || r.Method != "POST" || r.Header.Get("X-Card") != "{{ account_number }}" {
			return errors.New("not the request")
		}
		r.Header.Set("X-Signature", mac(body))
		r.Header.Set("X-Text", "{{ account_number }}")
		r.Header.Set("Host", "evil.example")
		return nil
	}
	l := open(t, c.serve, func(d *forward.Destination) {
		d.Sign = func(r *http.Request, body []byte) error { return sign(r, body) }
	})
	r := l.request(jsonType, charge)
	r.Header["X-Card"] = []string{"{{ account_number }}"}
	if _, err := l.Do(t.Context(), l.token, r, nil); err != nil {
		t.Fatal(err)
	}
	got := c.got()
	if got.header.Get("X-Signature") != mac([]byte(got.body)) || !strings.Contains(got.body, number) ||
		got.header.Get("X-Card") != number || got.header.Get("X-Text") != "{{ account_number }}" {
		t.Errorf("signed %v, %s", got.header, got.body)
	}

	before := l.requests.Load()
	for name, bad := range map[string]func(*http.Request, []byte) error{
		"error":      func(_ *http.Request, body []byte) error { return fmt.Errorf("cannot sign %s", body) },
		"panic":      func(_ *http.Request, body []byte) error { panic(string(body)) },
		"bad header": func(r *http.Request, _ []byte) error { r.Header["X"] = []string{"a\r\nb: c"}; return nil },
	} {
		sign = bad
		_, err := l.Do(t.Context(), l.token, r, nil)
		if err == nil || strings.Contains(err.Error(), middle) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if l.requests.Load() != before {
		t.Error("a request was sent without a signature")
	}
}

// TestCertificate: the destination sees the client's certificate.
func TestCertificate(t *testing.T) {
	l := open(t, echo, nil)
	seen := make(chan int, 1)
	l.serve(t, func(_ http.ResponseWriter, r *http.Request) { seen <- len(r.TLS.PeerCertificates) })
	l.server.TLS.ClientAuth = tls.RequireAnyClientCert
	l.forwardTo(t, func(d *forward.Destination) { d.Certificate = &l.server.TLS.Certificates[0] })
	if _, err := l.do(t, charge, nil); err != nil || <-seen != 1 {
		t.Errorf("error is %v", err)
	}
	l.forwardTo(t, func(d *forward.Destination) { d.Roots = x509.NewCertPool() })
	if _, err := l.do(t, charge, nil); !is(err, cardvault.ErrProviderUnavailable) || is(err, forward.ErrOutcomeUnknown) {
		t.Errorf("unknown authority: %v", err)
	}
}

// TestCredential: the caller names a credential that only the operator has.
func TestCredential(t *testing.T) {
	const key = "sk_live_9bQ4xY7"
	var asked []string
	given, fail := forward.NewCredential([]byte(key)), error(nil)
	l := open(t, func(w http.ResponseWriter, r *http.Request) { // in a case of its own
		fmt.Fprintf(w, `{"error":"bad key %s"}`, strings.ToLower(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")))
	}, func(d *forward.Destination) {
		d.Credential = func(_ context.Context, account uuid.UUID, name string) (forward.Credential, error) {
			asked = append(asked, name)
			if account == uuid.Nil {
				return forward.Credential{}, errors.New("no account")
			}
			return given, fail
		}
	})
	r := l.request(jsonType, "")
	r.Header["Authorization"] = []string{"Bearer {{ destination.secret-key }}"}
	a, err := l.Do(t.Context(), l.token, r, nil)
	if err != nil || string(a.Body) != `{"error":"bad key ***************"}` || !a.Redacted || fmt.Sprint(asked) != "[secret-key]" {
		t.Errorf("%v: %+v, %v", asked, a, err)
	}

	before := l.requests.Load()
	fail = errors.New("key manager is away")
	if _, err := l.Do(t.Context(), l.token, r, nil); err == nil || !strings.Contains(err.Error(), "key manager") {
		t.Errorf("error is %v", err)
	}
	fail, given = nil, forward.NewCredential(bytes.Repeat([]byte("k"), 1000))
	r.Header["X"] = []string{strings.Repeat("{{ destination.key }}", 100)}
	if _, err := l.Do(t.Context(), l.token, r, nil); !errors.Is(err, forward.ErrTooLarge) {
		t.Errorf("100 kB of headers: %v", err)
	}
	delete(r.Header, "X")
	given = forward.Credential{}
	_, err = l.Do(t.Context(), l.token, r, nil)
	if got := codeOf(t, err, "Header"); got != invalid.UnknownPlaceholder {
		t.Errorf("unknown credential: %s", got)
	}
	given = forward.NewCredential([]byte("a\r\nHost: b"))
	if _, err := l.Do(t.Context(), l.token, r, nil); err == nil {
		t.Error("a credential with a line break is sent")
	}
	l.forwardTo(t, nil)
	_, err = l.Do(t.Context(), l.token, r, nil)
	if got := codeOf(t, err, "Header"); got != invalid.UnknownPlaceholder {
		t.Errorf("a destination without credentials: %s", got)
	}

	r.Body = []byte(`{"a":"{{ destination.key }}"}`)
	_, err = l.Do(t.Context(), l.token, r, nil)
	if got := codeOf(t, err, "Body"); got != invalid.PlaceholderNotAllowed || l.requests.Load() != before {
		t.Errorf("in the body: %s", got)
	}
}

// TestStoredCredential: a credential that the vault keeps is one account's and one
// destination's, is replaced at once, and is never shown.
func TestStoredCredential(t *testing.T) {
	const first, second, given = "sk_live_9bQ4xY7", "sk_live_Zs2fHc8k1", "sk_live_function"
	l := open(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %d", r.Header.Get("Authorization"), len(r.Header.Get("Authorization")))
	}, nil)
	other, err := l.vault.CreateAccount(t.Context(), "other", nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs := l.add(t, l.vault.In(other.ID))
	expect := func(what string, f *forward.Forwarder, token uuid.UUID, want string) {
		t.Helper()
		r := l.request(jsonType, "")
		r.Header["Authorization"] = []string{"{{ destination.key }}"}
		a, err := f.Do(t.Context(), token, r, nil)
		if want == "" {
			if got := codeOf(t, err, "Header"); got != invalid.UnknownPlaceholder {
				t.Errorf("%s: %s", what, got)
			}
			return
		}
		if err != nil || string(a.Body) != fmt.Sprint(strings.Repeat("*", len(want)), " ", len(want)) {
			t.Errorf("%s: %s, %v", what, a.Body, err)
		}
	}
	set := func(name, text string) error {
		return l.SetCredential(t.Context(), "psp", name, forward.NewCredential([]byte(text)))
	}

	expect("none", l.Forwarder, l.token, "")
	for _, text := range []string{first, second} {
		if err := set("key", text); err != nil {
			t.Fatal(err)
		}
		expect("stored", l.Forwarder, l.token, text)
	}
	expect("of another account", l.In(other.ID), theirs, "")
	if err := set("Key", first); err != nil {
		t.Fatal(err)
	}
	expect("beside one of another name", l.Forwarder, l.token, second)

	for name, err := range map[string]error{
		"no name":    set("", first),
		"bad name":   set("a b", first),
		"no text":    set("key", ""),
		"line break": set("key", first+"\r\nHost: b"),
	} {
		if len(cardvault.FieldErrors(err)) != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := l.SetCredential(t.Context(), "psp2", "key", forward.NewCredential([]byte(first))); !errors.Is(err, forward.ErrDestination) {
		t.Errorf("another destination: %v", err)
	}
	if err := l.In(uuid.New()).SetCredential(t.Context(), "psp", "key", forward.NewCredential([]byte(first))); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("no account: %v", err)
	}

	ofFunction := forward.NewCredential([]byte(given))
	l.forwardTo(t, func(d *forward.Destination) {
		d.Credential = func(context.Context, uuid.UUID, string) (forward.Credential, error) { return ofFunction, nil }
	})
	expect("the function comes first", l.Forwarder, l.token, given)
	ofFunction = forward.Credential{}
	expect("the function has none", l.Forwarder, l.token, second)

	if err := l.DeleteCredential(t.Context(), "psp", "key"); err != nil {
		t.Error(err)
	}
	expect("deleted", l.Forwarder, l.token, "")
	if err := l.DeleteCredential(t.Context(), "psp", "key"); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	vaulttest.AssertNoLeak(t, []string{first, second, given}, l.log.String())
}

// TestWith: random placeholders work in any library, and what a shopper typed is text.
func TestWith(t *testing.T) {
	var c capture
	l := open(t, c.serve, nil)
	client := l.Client(uuid.Nil, nil)
	ctx, p := l.With(t.Context(), l.token, nil)
	form := url.Values{"number": {p.AccountNumber}, "cvc": {p.SecurityCode}, "name": {"{{ account_number }} " + strings.ToLower(p.AccountNumber)}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.server.URL+"/v1/x", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); string(body) != `{"ok":true}` || resp.ContentLength != int64(len(body)) || err != nil {
		t.Errorf("answer is %s, %v", body, err)
	}
	got, err := url.ParseQuery(c.got().body)
	if err != nil || got.Get("number") != number || got.Get("cvc") != code || got.Get("name") != form.Get("name") {
		t.Errorf("form is %v, %v", got, err)
	}

	if _, err := client.Get(l.server.URL + "/v1/x"); err == nil {
		t.Error("a request without a token is sent")
	}
	ctx, p = l.With(t.Context(), l.token, nil)
	r, _ = http.NewRequestWithContext(ctx, http.MethodPost, l.server.URL+"/v1/"+p.AccountNumber, nil)
	if _, err := client.Do(r); len(cardvault.FieldErrors(err)) != 1 {
		t.Errorf("in the URL: %v", err)
	}
}

// TestMarker: with a marker only its placeholders count.
func TestMarker(t *testing.T) {
	var c capture
	l := open(t, c.serve, nil)
	_, err := l.do(t, `{"n":"{{ 0123456789abcdef.account_number }}","name":"{{ account_number }}"}`, &forward.CallOptions{Marker: "0123456789abcdef"})
	if got := c.got().body; err != nil || got != `{"n":"`+number+`","name":"{{ account_number }}"}` {
		t.Errorf("body is %s, %v", got, err)
	}
}

// TestStates: what a card must be to be forwarded.
func TestStates(t *testing.T) {
	l := open(t, echo, nil)
	if _, err := l.Do(t.Context(), uuid.New(), l.request(jsonType, charge), nil); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("unknown token: %v", err)
	}
	withCode := `{"cvc":"{{ security_code }}"}`
	a, err := l.do(t, withCode, &forward.CallOptions{Consume: true})
	if err != nil || string(a.Body) != `{"cvc":"***"}` {
		t.Errorf("answer is %+v, %v", a, err)
	}
	before := l.requests.Load()
	if _, err := l.do(t, withCode, nil); !errors.Is(err, forward.ErrNoSecurityCode) || l.requests.Load() != before {
		t.Errorf("consumed code: %v", err)
	}
	if _, err := l.do(t, charge, nil); err != nil {
		t.Errorf("without the code: %v", err)
	}
	if err := l.vault.Delete(t.Context(), l.token); err != nil {
		t.Fatal(err)
	}
	if _, err := l.do(t, charge, nil); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("deleted token: %v", err)
	}
}

// TestConsumeOnSuccess: a refused payment leaves the code.
func TestConsumeOnSuccess(t *testing.T) {
	l := open(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(402) }, nil)
	for range 2 {
		if a, err := l.do(t, `{"cvc":"{{ security_code }}"}`, &forward.CallOptions{Consume: true}); err != nil || a.StatusCode != 402 || a.Body != nil {
			t.Errorf("answer is %+v, %v", a, err)
		}
	}
}

// TestBodyOfTransport: the body of a request is read whole, closed, and bounded.
func TestBodyOfTransport(t *testing.T) {
	l := open(t, echo, nil)
	client := l.Client(l.token, nil)
	for _, c := range []struct {
		body io.Reader
		ok   bool
	}{
		{bytes.NewReader(make([]byte, forward.MaxBody)), true},
		{bytes.NewReader(make([]byte, forward.MaxBody+1)), false},
		{io.LimitReader(endless{}, 10<<30), false},
		{io.MultiReader(strings.NewReader("a"), failing{}), false},
	} {
		resp, err := client.Post(l.server.URL+"/v1/x", "text/plain", c.body)
		if (err == nil) != c.ok {
			t.Errorf("error is %v", err)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("no more") }

// TestDial: connections come from Dial, and TLS is above them.
func TestDial(t *testing.T) {
	v := vaulttest.New(t)
	token, err := v.Import(t.Context(), testCard(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var to string
	near, far := net.Pipe()
	f, err := forward.New(v, []forward.Destination{{Name: "psp", URL: "https://psp.example"}}, &forward.Options{
		Dial: func(_ context.Context, _, address string) (net.Conn, error) {
			to = address
			return near, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	hello := make(chan byte, 1)
	go func() {
		var first [1]byte
		_, _ = io.ReadFull(far, first[:])
		hello <- first[0]
		_ = far.Close()
	}()
	_, err = f.Do(t.Context(), token.ID, &forward.Request{Method: "POST", URL: "https://psp.example/x"}, nil)
	if !is(err, cardvault.ErrProviderUnavailable) || is(err, forward.ErrOutcomeUnknown) || to != "psp.example:443" {
		t.Errorf("dials %s: %v", to, err)
	}
	if b := <-hello; b != 22 { // a record of a handshake: RFC 8446, section 5.1
		t.Errorf("the first byte is %d", b)
	}
}

// TestMerchantInitiated: a payment that the merchant initiates has a network token and an
// empty ECI, and a request that names its cryptogram is refused before anything is sent.
func TestMerchantInitiated(t *testing.T) {
	var sent url.Values
	n := vaulttest.NewNetwork(t)
	token, err := n.Vault.Import(t.Context(), testCard(), nil)
	if err == nil {
		err = n.Vault.Drain(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{vault: n.Vault, token: token.ID}
	l.serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent, _ = url.ParseQuery(string(body))
	})
	l.forwardTo(t, nil)
	opts := &forward.CallOptions{Payment: &cardvault.PaymentRequest{
		Amount: 1999, Currency: "EUR", Reference: "order 1", Initiator: cardvault.InitiatorMerchant, NetworkTransactionID: "015221743720861",
	}}

	const form = "application/x-www-form-urlencoded"
	named := l.request(form, "cryptogram={{cryptogram}}")
	inHeader := l.request(form, "token={{network_token}}")
	inHeader.Header.Set("X-Cryptogram", "{{ cryptogram }}")
	for field, r := range map[string]*forward.Request{"Body": named, "Header": inHeader} {
		_, err := l.Do(t.Context(), l.token, r, opts)
		if got := codeOf(t, err, field); got != invalid.PlaceholderNotAllowed {
			t.Errorf("a cryptogram in %s: %v", field, err)
		}
	}
	if page, err := l.vault.ListPaymentData(t.Context(), l.token, nil); sent != nil || err != nil || page.TotalItems != 0 {
		t.Errorf("something was sent or recorded: %v, %v", page, err)
	}

	a, err := l.Do(t.Context(), l.token, l.request(form, "token={{network_token}}&y={{network_token_expiry_year}}&eci={{eci}}."), opts)
	if err != nil || a.StatusCode != 200 || len(sent.Get("token")) < 13 || len(sent.Get("y")) != 4 || sent.Get("eci") != "." {
		t.Errorf("answer %+v, %v; sent %v", a, err, sent)
	}
	page, err := l.vault.ListPaymentData(t.Context(), l.token, nil)
	if err != nil || page.TotalItems != 1 || page.Items[0].Initiator != cardvault.InitiatorMerchant {
		t.Errorf("recorded %+v, %v", page, err)
	}
}
