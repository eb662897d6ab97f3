package forward_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// each writes a value with an escape for every character.
func each(format, value string) (s string) {
	for _, c := range []byte(value) {
		s += fmt.Sprintf(format, c)
	}
	return s
}

// formsOf returns a value in every form in which an answer may repeat it.
func formsOf(value string) map[string]string {
	forms := map[string]string{
		"plain":       value,
		"JSON":        each(`\u%04x`, value),
		"percent":     each("%%%02x", value),
		"entities":    each("&#%d;", value),
		"hexadecimal": hex.EncodeToString([]byte(value)),
		"base64":      base64.StdEncoding.EncodeToString([]byte(value)),
		"base64url":   base64.RawURLEncoding.EncodeToString([]byte(value)),
		"form":        url.QueryEscape(value),
		"HTML":        html.EscapeString(value),
	}
	if len(value) > 12 && strings.Trim(value, "0123456789") == "" {
		forms["spaces"] = value[:4] + " " + value[4:8] + " " + value[8:12] + " " + value[12:]
		forms["dashes"] = value[:4] + "-" + value[4:8] + "-" + value[8:12] + "-" + value[12:]
	}
	return forms
}

// TestEcho: an answer with number, code, network token and cryptogram in any form, in body and
// headers, compressed or not, shows none of them.
func TestEcho(t *testing.T) {
	n := vaulttest.NewNetwork(t)
	token, err := n.Vault.Import(t.Context(), testCard(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Vault.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}

	var zip bool
	var sent url.Values
	l := &lab{vault: n.Vault, token: token.ID}
	l.serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent, _ = url.ParseQuery(string(body))
		var members []string
		for _, name := range []string{"number", "cvc", "token", "cryptogram"} {
			for form, text := range formsOf(sent.Get(name)) {
				members = append(members, fmt.Sprintf(`"%s %s":"%s"`, name, form, text))
				w.Header().Add("X-Echo", text)
			}
		}
		w.Header().Set("X-"+sent.Get("number"), "name of a header")
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Content-Type", jsonType)
		answer := fmt.Sprintf(`{%s,"%s":1,"n":%s,"f":%s.0,"list":[%s],"id":"ch_3Mtw739","amount":739}`,
			strings.Join(members, ","), sent.Get("number"), sent.Get("number"), sent.Get("number"), sent.Get("token"))
		if zip {
			w.Header().Set("Content-Encoding", "gzip")
			answer = compressed(answer)
		}
		w.WriteHeader(402)
		_, _ = io.WriteString(w, answer)
	})
	l.forwardTo(t, nil)

	for _, zip = range []bool{false, true} {
		a, err := l.Do(t.Context(), l.token, l.request("application/x-www-form-urlencoded",
			"number={{account_number}}&cvc={{security_code}}&token={{network_token}}&cryptogram={{cryptogram}}&m={{network_token_expiry_month}}&y={{network_token_expiry_year}}&eci={{eci}}"),
			&forward.CallOptions{Payment: &cardvault.PaymentRequest{Amount: 1999, Currency: "EUR", Reference: "order 1"}})
		if err != nil || a.StatusCode != 402 || !a.Redacted || a.Header["Set-Cookie"] != nil || a.Header["Content-Encoding"] != nil {
			t.Fatalf("answer is %+v, %v", a, err)
		}
		if sent.Get("number") != number || sent.Get("cvc") != code || len(sent.Get("token")) < 12 || len(sent.Get("cryptogram")) < 20 || sent.Get("y") == "" {
			t.Fatalf("sent %v", sent)
		}
		text := string(a.Body) + fmt.Sprint(a.Header)
		vaulttest.AssertNoLeak(t, []string{sent.Get("number"), sent.Get("token"), sent.Get("cryptogram")}, text)
		for _, name := range []string{"number", "token", "cryptogram"} {
			for form, value := range formsOf(sent.Get(name)) {
				if strings.Contains(text, value) {
					t.Errorf("%s shows as %s", name, form)
				}
			}
		}
		for form, value := range formsOf(code) {
			if strings.Contains(text, `"`+value+`"`) || strings.Contains(text, " "+value+" ") {
				t.Errorf("code shows as %s", form)
			}
		}
		for _, kept := range []string{`"id":"ch_3Mtw739"`, `"amount":739`, `"n":"424242******4242"`, `"f":"424242******4242.0"`} {
			if !strings.Contains(text, kept) {
				t.Errorf("answer lacks %s: %s", kept, text)
			}
		}
	}

	page, err := n.Vault.ListPaymentData(t.Context(), l.token, nil)
	if err != nil || len(page.Items) != 2 || page.Items[0].Encrypted != "" {
		t.Errorf("payment data is %+v, %v", page, err)
	}
}

// TestLookAlikes: all numbers behind the mask become the same, so the mask does not show which
// of them is the card's.
func TestLookAlikes(t *testing.T) {
	l := open(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		_, _ = io.WriteString(w, `["x"`)
		for n := range 60_000 {
			_, _ = fmt.Fprintf(w, `,"424242%06d4242"`, n*7%1_000_000)
		}
		_, _ = io.WriteString(w, `]`)
	}, func(d *forward.Destination) { d.MaxAnswer = 2 << 20 })
	a, err := l.do(t, charge, nil)
	if err != nil || string(a.Body) != `["x"`+strings.Repeat(`,"424242******4242"`, 60_000)+`]` {
		t.Errorf("%d bytes, %v", len(a.Body), err)
	}
}

// TestLimits: an answer that is too long, or cannot be searched, has no body.
func TestLimits(t *testing.T) {
	var served atomic.Int64
	zeros := make([]byte, 8<<20)
	compressedZeros := compressed(string(zeros))
	for name, c := range map[string]struct {
		header http.Header
		body   func(w io.Writer)
		status int
		whole  string
	}{
		"10 GB": {nil, func(w io.Writer) {
			for n := int64(0); n < 10<<30; n += 64 << 10 {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					served.Store(n)
					return
				}
			}
		}, 200, ""},
		"10 GB compressed": {http.Header{"Content-Encoding": {"gzip"}}, func(w io.Writer) {
			for range 10 << 10 / 8 { // of 8 MiB each
				if _, err := io.WriteString(w, compressedZeros); err != nil {
					return
				}
			}
		}, 200, ""},
		"nothing, compressed without end": {http.Header{"Content-Encoding": {"gzip"}}, func(w io.Writer) {
			empty := strings.Repeat(compressed(""), 1000)
			for range 10_000 {
				if _, err := io.WriteString(w, empty); err != nil {
					return
				}
			}
		}, 200, ""},
		"another encoding":  {http.Header{"Content-Encoding": {"br"}}, func(w io.Writer) { _, _ = io.WriteString(w, number) }, 201, ""},
		"two encodings":     {http.Header{"Content-Encoding": {"gzip, gzip"}}, func(w io.Writer) { _, _ = io.WriteString(w, number) }, 200, ""},
		"compressed twice":  {http.Header{"Content-Encoding": {"gzip"}}, func(w io.Writer) { _, _ = io.WriteString(w, compressed(compressed(number))) }, 200, ""},
		"not compressed":    {http.Header{"Content-Encoding": {"gzip"}}, func(w io.Writer) { _, _ = io.WriteString(w, number) }, 200, ""},
		"another charset":   {http.Header{"Content-Type": {"text/plain; charset=ibm037"}}, func(w io.Writer) { _, _ = io.WriteString(w, "x") }, 200, ""},
		"UTF-16":            {http.Header{"Content-Type": {"application/json; charset=utf-16"}}, func(w io.Writer) { _, _ = io.WriteString(w, "\x00\"\x007\x003\x009\x00\"") }, 200, ""},
		"UTF-16, unnamed":   {http.Header{"Content-Type": {"text/xml"}}, func(w io.Writer) { _, _ = io.WriteString(w, "<\x00a\x00>\x007\x003\x009\x00") }, 200, ""},
		"as long as may be": {nil, func(w io.Writer) { _, _ = w.Write(make([]byte, 1<<20)) }, 200, string(make([]byte, 1<<20))},
		"a byte longer":     {nil, func(w io.Writer) { _, _ = w.Write(make([]byte, 1<<20+1)) }, 200, ""},
		"compressed":        {http.Header{"Content-Encoding": {"gzip"}}, func(w io.Writer) { _, _ = io.WriteString(w, compressed("abc")) }, 200, "abc"},
		"not text":          {http.Header{"Content-Type": {"application/pdf"}}, func(w io.Writer) { _, _ = w.Write([]byte("\x00\xff")) }, 200, "\x00\xff"},
	} {
		l := open(t, func(w http.ResponseWriter, r *http.Request) {
			for name, values := range c.header {
				w.Header()[name] = values
			}
			w.WriteHeader(c.status)
			c.body(w)
		}, nil)
		a, err := l.do(t, charge, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if a.StatusCode != c.status || string(a.Body) != c.whole || a.Truncated != (c.whole == "") {
			t.Errorf("%s: %d bytes, truncated: %v, %v", name, len(a.Body), a.Truncated, err)
		}
		if c.whole == "" {
			resp, err := l.Client(l.token, nil).Post(l.server.URL+"/v1/x", jsonType, strings.NewReader(charge))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(resp.Body); !errors.Is(err, forward.ErrTruncated) {
				t.Errorf("%s: reading gives %v", name, err)
			}
		}
		l.Close()
		l.server.Close()
	}
	if served := served.Load(); served > 64<<20 {
		t.Errorf("%d bytes were read of 10 GB", served)
	}
}

// TestCodeInText: only in JSON are the strings all that is searched for a security code.
func TestCodeInText(t *testing.T) {
	for _, c := range []struct{ contentType, answer, want string }{
		{"text/plain", "[error] code 739 is wrong", "[error] code *** is wrong"},
		{jsonType, "code 739 is wrong", "code *** is wrong"},
		{jsonType, `{"error":"code 739`, `{"error":"code ***`},
		{jsonType, `{"error":739}` + "\n" + `{"error":739}`, `{"error":***}` + "\n" + `{"error":***}`},
		{"application/problem+json", ` {"status":739,"error":"739"}`, ` {"status":739,"error":"***"}`},
	} {
		l := open(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", c.contentType)
			_, _ = io.WriteString(w, c.answer)
		}, nil)
		a, err := l.do(t, `{"cvc":"{{ security_code }}"}`, nil)
		if err != nil || string(a.Body) != c.want {
			t.Errorf("%s, %s becomes %s, %v", c.contentType, c.answer, a.Body, err)
		}
		l.server.Close()
	}
}

// TestCodeElsewhere: a code in a field that is not for one could come back as a number. Then
// numbers are masked too.
func TestCodeElsewhere(t *testing.T) {
	l := open(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		_, _ = io.WriteString(w, `{"amount":739,"list":[739, -739],"status":"739","year":2088,"739":1}`)
	}, nil)
	const form, text = "application/x-www-form-urlencoded", "text/xml"
	for _, c := range []struct {
		contentType, body, header string
		numbers                   bool // are masked
	}{
		{form, "amount=1&card%5Bcvc%5D={{ security_code }}", "", false},
		{form, "amount={{ security_code }}&cvc=1", "", true},
		{form, "cvc={{ security_code }}&amount={{ security_code }}", "", true},
		{jsonType, `{"card": {"securityCode" : "{{ security_code }}"}}`, "", false},
		{jsonType, `{"cvc":"1","amount":"{{ security_code }}"}`, "", true},
		{jsonType, `{"cvc":["{{ security_code }}"]}`, "", true},
		{jsonType, `"{{ security_code }}"`, "", true},
		{text, `<a><cvc>{{ security_code }}</cvc><amount>1</amount></a>`, "", false},
		{text, `<a amount="1" card-cvv2 = " {{ security_code }}"/>`, "", false},
		{text, `<a><cvc>1</cvc><amount>{{ security_code }}</amount></a>`, "", true},
		{text, `<cvc amount='{{ security_code }}'/>`, "", true},
		{jsonType, `{}`, "X-CVC", false},
		{jsonType, `{}`, "X-Amount", true},
	} {
		r := l.request(c.contentType, c.body)
		if c.header != "" {
			r.Header[c.header] = []string{"{{ security_code }}"}
		}
		want := `{"amount":739,"list":[739, -739],"status":"***","year":2088,"739":1}`
		if c.numbers {
			want = `{"amount":"***","list":["***", "-***"],"status":"***","year":2088,"***":1}`
		}
		a, err := l.Do(t.Context(), l.token, r, nil)
		if err != nil || string(a.Body) != want {
			t.Errorf("%s %s: %s, %v", c.body, c.header, a.Body, err)
		}
	}
}

// TestKinds: answers that real providers give.
func TestKinds(t *testing.T) {
	var serve http.HandlerFunc
	l := open(t, func(w http.ResponseWriter, r *http.Request) { serve(w, r) }, func(d *forward.Destination) {
		d.Methods = []string{"POST", "GET", "HEAD", "DELETE"}
	})
	for _, c := range []struct {
		name, method string
		serve        http.HandlerFunc
		status       int
		body         string
	}{
		{"chunked", "POST", func(w http.ResponseWriter, r *http.Request) {
			for range 3 {
				_, _ = io.WriteString(w, "abc")
				w.(http.Flusher).Flush()
			}
		}, 200, "abcabcabc"},
		{"no content", "DELETE", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) }, 204, ""},
		{"HEAD", "HEAD", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Length", "100") }, 200, ""},
		{"HEAD, compressed", "HEAD", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Length", "100")
		}, 200, ""},
		{"early hints", "GET", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(103); _, _ = io.WriteString(w, "x") }, 200, "x"},
		{"continue", "POST", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(100); echo(w, r) }, 200, "{}"},
		{"not modified", "GET", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(304) }, 304, ""},
		{"server error", "POST", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "down", http.StatusServiceUnavailable) }, 503, "down\n"},
	} {
		serve = c.serve
		r := l.request(jsonType, "")
		if r.Method = c.method; c.method == "POST" {
			r.Body = []byte("{}")
		}
		a, err := l.Do(t.Context(), l.token, r, nil)
		if err != nil || a.StatusCode != c.status || string(a.Body) != c.body || a.Truncated {
			t.Errorf("%s: %+v, %v", c.name, a, err)
		}
	}
}

// TestRedirect: a redirect is the answer, also for a client that would follow it.
func TestRedirect(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		l := open(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/v1/elsewhere", status)
		}, func(d *forward.Destination) { d.Methods = []string{"POST", "GET"} })
		a, err := l.do(t, charge, nil)
		if err != nil || a.StatusCode != status || a.Header.Get("Location") != "/v1/elsewhere" {
			t.Errorf("%d: %+v, %v", status, a, err)
		}
		for _, client := range []*http.Client{l.Client(l.token, nil), {Transport: l.RoundTripper(l.token, nil)}} {
			resp, err := client.Post(l.server.URL+"/v1/charges", jsonType, strings.NewReader(charge))
			if err == nil {
				_ = resp.Body.Close()
			}
			if following := client.CheckRedirect == nil; (err == nil) == following {
				t.Errorf("%d, following: %v: %v", status, following, err)
			}
		}
		if n := l.requests.Load(); n != 3 {
			t.Errorf("%d: %d requests", status, n)
		}
	}
}

// TestAnswerOfTransport: an unmodified client reads an answer as from the destination.
func TestAnswerOfTransport(t *testing.T) {
	l := open(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("X-A", "1")
		w.Header().Add("X-A", "2")
		w.WriteHeader(402)
		_, _ = io.WriteString(w, "no")
	}, nil)
	resp, err := l.Client(l.token, nil).Post(l.server.URL+"/v1/x", jsonType, strings.NewReader(charge))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.Status != "402 Payment Required" || string(body) != "no" || resp.ContentLength != 2 || !reflect.DeepEqual(resp.Header["X-A"], []string{"1", "2"}) {
		t.Errorf("answer is %+v, %s, %v", resp, body, err)
	}
}

// TestReason: the words of a status line are not the destination's.
func TestReason(t *testing.T) {
	l := open(t, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad "+number+"\r\nContent-Length: 0\r\n\r\n")
		_ = conn.Close()
	}, nil)
	resp, err := l.Client(l.token, nil).Post(l.server.URL+"/v1/x", jsonType, strings.NewReader(charge))
	if err != nil || resp.Status != "400 Bad Request" {
		t.Errorf("status is %v, %v", resp, err)
	}
}

// TestDrip: an answer that does not end is given up when the time is over.
func TestDrip(t *testing.T) {
	// On a slow machine the time may pass before the request arrives.
	for timeout := 200 * time.Millisecond; ; timeout *= 2 {
		l := open(t, func(w http.ResponseWriter, r *http.Request) {
			for {
				if _, err := w.Write([]byte(" ")); err != nil {
					return
				}
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		}, func(d *forward.Destination) { d.Timeout = timeout })
		_, err := l.do(t, charge, nil)
		if l.requests.Load() == 0 {
			continue
		}
		if !errors.Is(err, cardvault.ErrProviderTimeout) || !errors.Is(err, forward.ErrOutcomeUnknown) {
			t.Errorf("error is %v", err)
		}
		return
	}
}

// TestAnswerIsOnce: what the caller changes in an answer is not the kept one.
func TestAnswerIsOnce(t *testing.T) {
	l := open(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-Empty"] = []string{"", "x"}
		echo(w, r)
	}, nil)
	opts := &forward.CallOptions{IdempotencyKey: "once"}
	first, err := l.do(t, charge, opts)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Clone(first.Body)
	clear(first.Body)
	again, err := l.do(t, charge, opts)
	if err != nil || !bytes.Equal(again.Body, want) || !again.Replayed || again.ID != first.ID || again.Duration != first.Duration || !reflect.DeepEqual(again.Header, first.Header) {
		t.Errorf("repetition is %+v, %v; want %+v", again, err, first)
	}
}

// TestKeptAnswers: what an account keeps of answers in a day is bounded. Beyond that a
// repetition has the status, and the payment is still made once.
func TestKeptAnswers(t *testing.T) {
	day := time.Now().UTC().Day()
	err := keptAnswers(t)
	if time.Now().UTC().Day() != day { // what may be kept has begun anew
		err = keptAnswers(t)
	}
	if err != nil {
		t.Error(err)
	}
}

// keptAnswers returns a fault that may be due to a day that has begun meanwhile.
func keptAnswers(t *testing.T) error {
	t.Helper()
	l := open(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 4000)) }, nil)
	other, err := l.vault.CreateAccount(t.Context(), "other", nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs := l.add(t, l.vault.In(other.ID))
	f, err := forward.New(l.vault, []forward.Destination{{Name: "psp", URL: l.server.URL, Roots: l.roots()}},
		&forward.Options{AllowLoopback: true, KeptAnswers: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	for i := range 4 {
		opts := &forward.CallOptions{IdempotencyKey: fmt.Sprint(i)}
		for repeated := range 2 {
			a, err := f.Do(t.Context(), l.token, l.request(jsonType, charge), opts)
			if err != nil {
				t.Fatal(err)
			}
			whole := i < 2 || repeated == 0
			if a.StatusCode != 200 || a.Replayed != (repeated == 1) || a.Truncated == whole || (len(a.Body) == 4000) != whole || (len(a.Header) > 0) != whole {
				return fmt.Errorf("answer %d, repeated: %d: %d bytes, header %v, %+v", i, repeated, len(a.Body), a.Header, a)
			}
		}
	}
	if n := strings.Count(l.log.String(), "POST 200, kept in short"); n != 2 || l.requests.Load() != 4 {
		return fmt.Errorf("the log names %d answers, after %d requests", n, l.requests.Load())
	}

	opts := &forward.CallOptions{IdempotencyKey: "1"}
	for range 2 {
		if a, err := f.In(other.ID).Do(t.Context(), theirs, l.request(jsonType, charge), opts); err != nil || len(a.Body) != 4000 {
			t.Errorf("another account: %+v, %v", a, err)
		}
	}
	if _, err := forward.New(l.vault, nil, &forward.Options{KeptAnswers: -1}); err == nil {
		t.Error("a negative limit is taken")
	}
	return nil
}

// TestAllowance: it begins anew each day.
func TestAllowance(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		take, a, b := forward.Allowance(100), uuid.New(), uuid.New()
		for _, c := range []struct {
			pause   time.Duration
			account uuid.UUID
			bytes   int
			ok      bool
		}{{0, a, 60, true}, {0, a, 60, false}, {0, a, 40, true}, {23 * time.Hour, a, 1, false}, {0, b, 100, true}, {time.Hour, a, 100, true}, {0, b, 1, true}} {
			time.Sleep(c.pause)
			if ok := take(c.account, c.bytes); ok != c.ok {
				t.Errorf("%d bytes after %v: %v", c.bytes, c.pause, ok)
			}
		}
	})
}
