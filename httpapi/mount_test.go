package httpapi_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
)

// prefixMux is the simplest possible mux: it cuts a prefix off the path.
func prefixMux(prefix string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, ok := strings.CutPrefix(r.URL.Path, prefix)
		if !ok {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		r2 := r.Clone(r.Context())
		r2.URL.Path, r2.URL.RawPath = path, strings.TrimPrefix(r.URL.RawPath, prefix)
		h.ServeHTTP(w, r2)
	})
}

func serveMux(pattern string, h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(pattern, h)
	return mux
}

// The handler works under every mux and prefix.
func TestMount(t *testing.T) {
	r := newRig(t, &cardvault.Options{PPAN: &provider{}, Webhooks: &sender{}}, nil)
	for _, test := range []struct {
		name, prefix string
		handler      http.Handler
		cleans       bool // the mux itself redirects paths that are not clean
	}{
		{"bare", "", r.handler, false},
		{"ServeMux at the root", "", serveMux("/", r.handler), true},
		{"ServeMux and StripPrefix", "/vault", serveMux("/vault/", http.StripPrefix("/vault", r.handler)), true},
		{"ServeMux with a host", "", serveMux("vault.example/", r.handler), true},
		{"StripPrefix", "/a/b", http.StripPrefix("/a/b", r.handler), false},
		{"prefix mux", "/v1/vault", prefixMux("/v1/vault", r.handler), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			do := func(method, path, body string, headers ...string) *answer {
				t.Helper()
				a := send(t, test.handler, method, test.prefix+path, body, append(headers, "X-Api-Key", r.key)...)
				checkCommon(t, method, a)
				return a
			}
			a := do("POST", "/cde-import", cardBody)
			a.want(t, 200)
			id := a.member(t, "id")
			do("GET", "/tokens/"+id, "").want(t, 200)
			do("PATCH", "/tokens/"+id, `{"cardholder_name":"A"}`).want(t, 200)
			do("GET", "/tokens?limit=1&sort=created_at+desc", "").want(t, 200)
			do("POST", "/tokens/session", "").want(t, 200)
			do("POST", "/tokens/"+id+"/provisions", "").want(t, 200)
			do("POST", "/tokens/"+id+"/payment-data", payment).want(t, 200)
			do("GET", "/tokens/"+id+"/payment-data", "").want(t, 200)
			do("GET", "/tokens/card-art/"+id, "").want(t, 404)
			do("GET", "/tokens/"+id+"/security-code", "").want(t, 200)
			do("POST", "/tokens/"+id+"/refresh-session", "").want(t, 200)
			do("POST", "/tokens/"+id+"/replace-session", "").want(t, 200)
			do("POST", "/tokens/"+id+"/replace", cardBody).want(t, 200)
			do("POST", "/tokens/"+id+"/consume", "").want(t, 204)
			do("POST", ppanPath, tokenBody(id), ppanHeaders...).want(t, 200)
			do("GET", ppanPath, "").want(t, 405)
			session := r.newSession(t)
			open := do("GET", session, "")
			do("OPTIONS", session, "").want(t, 204)
			do("POST", session+"/complete-action", completion(t, open, entered, "")).want(t, 200)
			do("POST", session+"/complete-action", "{}").want(t, 409)
			do("GET", "/api-keys", "").want(t, 200)
			hook := do("POST", "/webhooks", hook).member(t, "id")
			do("GET", "/webhooks", "").want(t, 200)
			do("GET", "/webhooks/"+hook, "").want(t, 200)
			do("PATCH", "/webhooks/"+hook, `{"legacy_hmac":true}`).want(t, 200)
			do("POST", "/webhooks/"+hook+"/rotate-secret", "").want(t, 200)
			do("POST", "/webhooks/"+hook+"/test", "").want(t, 200)
			do("GET", "/webhooks/"+hook+"/deliveries", "").want(t, 200)
			do("POST", "/events/"+hook+"/redeliver", "").want(t, 404)
			do("DELETE", "/webhooks/"+hook, "").want(t, 204)
			do("DELETE", "/tokens/"+id, "").want(t, 204)
			do("GET", "/tokens/"+id, "").want(t, 404)
			do("PUT", "/tokens", "").want(t, 405)
			odd := []string{"/", "/tokens/", "/tokens/" + id + "/", "/%74okens", "/tokens%2f" + id, "/tokens/%2e%2e", "/tokens/a%2fb", "/tokens/%00", "/nothing",
				"/integrations/provider", ppanPath + "/", "/sessions", "/sessions/", "/sessions/x/", "/sessions/x/complete-action/", "/sessions/%78", "/webhooks/", "/webhooks/x/", "/webhooks/x/test/", "/events", "/events/x", "/integrations%2fprovider/obtain-ppan"}
			if !test.cleans {
				odd = append(odd, "//tokens", "/tokens//", "/tokens/../tokens", "/./tokens", "//", "/..", "/tokens//consume", "/integrations//obtain-ppan")
				if test.prefix != "" {
					odd = append(odd, "", "tokens")
				}
			}
			for _, path := range odd {
				for _, method := range []string{"GET", "POST", "HEAD", "OPTIONS", "DELETE"} {
					if a := do(method, path, ""); a.status != 404 && a.status != 405 {
						t.Errorf("%s %s: %d %s", method, path, a.status, a.body)
					}
				}
			}
		})
	}
}

// newServer serves a rig on a real socket, without any timeout of the server's own.
func newServer(t testing.TB, h http.Handler, http2 bool) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = http2
	if http2 {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

func TestServer(t *testing.T) {
	for _, major := range []int{1, 2} {
		t.Run(fmt.Sprint("HTTP ", major), func(t *testing.T) {
			r := newRig(t, &cardvault.Options{PPAN: &provider{}, Webhooks: &sender{}}, nil)
			s := newServer(t, r.handler, major == 2)
			do := func(method, path string, body io.Reader, headers ...string) *answer {
				t.Helper()
				req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, body)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("X-Api-Key", r.key)
				req.Header.Set("Content-Type", "application/json")
				for i := 0; i < len(headers); i += 2 {
					req.Header.Del(headers[i])
					if headers[i+1] != "" {
						req.Header[headers[i]] = strings.Split(headers[i+1], " and ")
					}
				}
				resp, err := s.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				got, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				if resp.ProtoMajor != major {
					t.Fatalf("answered in %s", resp.Proto)
				}
				a := &answer{resp.StatusCode, resp.Header, string(got)}
				checkCommon(t, method, a)
				return a
			}
			// unsized hides its length, so that it is sent in chunks.
			unsized := func(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) }
			a := do("POST", "/cde-import", strings.NewReader(cardBody))
			a.want(t, 200)
			id := a.member(t, "id")
			do("POST", "/cde-import", unsized(cardBody)).want(t, 200)
			do("GET", "/tokens/"+id, nil).want(t, 200)
			do("HEAD", "/tokens/"+id, nil).want(t, 200)
			do("PATCH", "/tokens/"+id, strings.NewReader(`{"cardholder_name":"A"}`)).want(t, 200)
			do("GET", "/tokens", nil).want(t, 200)
			do("GET", "/tokens", unsized("")).want(t, 200)
			do("GET", "/tokens", unsized("{}")).want(t, 200)
			do("POST", "/tokens/session", nil).want(t, 200)
			do("POST", "/tokens/"+id+"/provisions", nil).want(t, 200)
			do("POST", "/tokens/"+id+"/provisions", unsized("{}")).want(t, 200)
			do("POST", "/tokens/"+id+"/payment-data", unsized(payment)).want(t, 200)
			do("HEAD", "/tokens/"+id+"/payment-data", nil).want(t, 200)
			do("GET", "/tokens/"+id+"/security-code", nil).want(t, 200)
			do("HEAD", "/tokens/"+id+"/security-code", nil).want(t, 200)
			do("POST", "/tokens/"+id+"/refresh-session", unsized("{}")).want(t, 200)
			do("POST", "/tokens/"+id+"/replace-session", unsized("{}")).want(t, 200)
			do("POST", "/tokens/"+id+"/replace", unsized(cardBody)).want(t, 200)
			do("POST", "/tokens/"+id+"/consume", nil).want(t, 204)
			do("POST", "/tokens/"+id+"/consume", unsized("{}")).want(t, 204)
			do("POST", ppanPath, unsized(tokenBody(id)), ppanHeaders...).want(t, 200)
			do("POST", ppanPath, strings.NewReader(tokenBody(id)), append(ppanHeaders, "X-Provider-Mid", "1 and 1")...).want(t, 422)
			session := r.newSession(t)
			open := do("GET", session, nil)
			do("HEAD", session, unsized("")).want(t, 200)
			do("OPTIONS", session, nil).want(t, 204)
			do("POST", session+"/complete-action", unsized(completion(t, open, refused, ""))).want(t, 200)
			do("POST", session+"/complete-action", strings.NewReader(completion(t, open, entered, ""))).want(t, 200)
			hook := do("POST", "/webhooks", unsized(hook)).member(t, "id")
			do("HEAD", "/webhooks", unsized("{}")).want(t, 200)
			do("HEAD", "/webhooks/"+hook, nil).want(t, 200)
			do("PATCH", "/webhooks/"+hook, strings.NewReader(`{"legacy_hmac":true}`)).want(t, 200)
			do("POST", "/webhooks/"+hook+"/rotate-secret", unsized("")).want(t, 200)
			do("POST", "/webhooks/"+hook+"/test", unsized("{}")).want(t, 200)
			do("HEAD", "/webhooks/"+hook+"/deliveries", nil).want(t, 200)
			do("POST", "/events/"+hook+"/redeliver", unsized("{}")).want(t, 404)
			do("DELETE", "/webhooks/"+hook, unsized("")).want(t, 204)
			do("DELETE", "/tokens/"+id, nil).want(t, 204)
			for _, test := range []struct {
				name    string
				body    io.Reader
				headers []string
				status  int
			}{
				{"too large", strings.NewReader(cardBody + strings.Repeat(" ", 64<<10)), nil, 413},
				{"far too large", strings.NewReader(cardBody + strings.Repeat(" ", 1<<20)), nil, 413},
				{"too large, unsized", unsized(cardBody + strings.Repeat(" ", 64<<10)), nil, 413},
				{"far too large, unsized", unsized(cardBody + strings.Repeat(" ", 1<<20)), nil, 413},
				{"wrong type", strings.NewReader(cardBody), []string{"Content-Type", "text/plain"}, 415},
				{"wrong type, unsized", unsized(cardBody), []string{"Content-Type", "text/plain"}, 415},
				{"no type, unsized", unsized(cardBody), []string{"Content-Type", ""}, 415},
				{"no body, unsized", unsized(""), nil, 400},
				{"no key", strings.NewReader(cardBody), []string{"X-Api-Key", ""}, 401},
				{"two keys", strings.NewReader(cardBody), []string{"X-Api-Key", r.key + " and " + r.key}, 401},
				{"64 KiB", strings.NewReader(cardBody + strings.Repeat(" ", 64<<10-len(cardBody))), nil, 200},
			} {
				t.Run(test.name, func(t *testing.T) {
					do("POST", "/cde-import", test.body, test.headers...).want(t, test.status)
				})
			}
		})
	}
}

// Raw bytes that no HTTP client would send.
func TestRawRequests(t *testing.T) {
	r := newRig(t, nil, nil)
	s := newServer(t, r.handler, false)
	key := "X-Api-Key: " + r.key + "\r\n"
	json := "Content-Type: application/json\r\n"
	length := fmt.Sprintf("Content-Length: %d\r\n", len(cardBody))
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(cardBody), cardBody)
	spaces := strings.Repeat(" ", 64<<10)
	for _, test := range []struct {
		name, request string
		status        int
		keeps         bool // the connection can be reused
	}{
		{"two keys", "GET /tokens HTTP/1.1\r\nHost: x\r\n" + key + key + "\r\n", 401, true},
		{"two keys, cases", "GET /tokens HTTP/1.1\r\nHost: x\r\n" + key + strings.ToLower(key) + "\r\n", 401, true},
		{"key in another case", "GET /tokens HTTP/1.1\r\nHost: x\r\nx-API-key: " + r.key + "\r\n\r\n", 200, true},
		{"key on two lines", "GET /tokens HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + r.key[:20] + "\r\n " + r.key[20:] + "\r\n\r\n", 401, true},
		{"key with a comma", "GET /tokens HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + r.key + "," + r.key + "\r\n\r\n", 401, true},
		{"length and chunks", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + key + json + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked, 200, true},
		{"two lengths", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + key + json + "Content-Length: 4\r\nContent-Length: 5\r\n\r\n" + cardBody, 400, false},
		{"unknown encoding", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + key + json + "Transfer-Encoding: gzip\r\n\r\n" + cardBody, 501, false},
		{"bare line feed in a chunk", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + key + json + "Transfer-Encoding: chunked\r\n\r\n" + strings.Replace(chunked, "\r\n", "\n", 1), 400, false},
		{"chunk of no size", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + key + json + "Transfer-Encoding: chunked\r\n\r\nx\r\n", 400, false},
		{"chunks over the limit", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + key + json + "Transfer-Encoding: chunked\r\n\r\n10001\r\n " + spaces + "\r\n0\r\n\r\n", 413, true},
		{"chunks of a wrong type", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + key + "Transfer-Encoding: chunked\r\n\r\n" + chunked, 415, true},
		{"body without a length", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + key + "Content-Type: text/plain\r\n\r\n", 400, true},
		{"HTTP/1.0", "POST /cde-import HTTP/1.0\r\n" + key + json + length + "\r\n" + cardBody, 200, false},
		{"unread body", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + json + length + "\r\n" + cardBody, 401, true},
		{"unread body of no path", "POST /nothing HTTP/1.1\r\nHost: x\r\n" + json + length + "\r\n" + cardBody, 404, true},
		{"unread body of no method", "PUT /cde-import HTTP/1.1\r\nHost: x\r\n" + length + "\r\n" + cardBody, 405, true},
		{"unread body of a wrong type", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + key + length + "\r\n" + cardBody, 415, true},
		{"unread body over the limit", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + key + json + "Content-Length: 65537\r\n\r\n" + spaces + " ", 413, true},
		{"body cut off", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + key + json + "Content-Length: 100\r\n\r\n" + cardBody[:50], 400, true},
		{"expectation", "POST /cde-import HTTP/1.1\r\nHost: x\r\n" + json + length + "Expect: 100-continue\r\n\r\n", 401, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, test.request); err != nil {
				t.Fatal(err)
			}
			cutOff := test.name == "body cut off"
			if cutOff {
				if err := c.(*net.TCPConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			in := bufio.NewReader(c)
			status, keeps := readAnswer(t, in, "GET")
			if status != test.status || keeps != test.keeps {
				t.Fatalf("status %d, connection kept: %v", status, keeps)
			}
			if !keeps || cutOff {
				return
			}
			if _, err := io.WriteString(c, "GET /tokens?limit=1 HTTP/1.1\r\nHost: x\r\n"+key+"\r\n"); err != nil {
				t.Fatal(err)
			}
			if status, _ := readAnswer(t, in, "GET"); status != 200 {
				t.Errorf("the next request on the connection: status %d", status)
			}
		})
	}
}

// A large answer arrives whole, and its buffer does not disturb the next answer.
func TestLargeAnswers(t *testing.T) {
	r := newRig(t, nil, &httpapi.Options{})
	s := newServer(t, r.handler, false)
	for range 120 {
		r.importCard(t)
	}
	for range 3 {
		for _, path := range []string{"/tokens?limit=500", "/tokens?limit=1", "/tokens/x"} {
			want := r.do(t, "GET", path, "")
			req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Api-Key", r.key)
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || !bytes.Equal(got, []byte(want.body)) {
				t.Fatalf("%s: %d bytes and %v, want %d", path, len(got), err, len(want.body))
			}
		}
	}
}
