package httpapi_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/httpapi"
)

// TestOpenAPI reads the contract without a key, and under a prefix, and revalidates it.
func TestOpenAPI(t *testing.T) {
	r := newRig(t, nil, &httpapi.Options{AllowedOrigins: []string{"https://docs.example"}, RateLimit: httpapi.RateLimit{PerSecond: 1e-3}})
	prefixed := http.StripPrefix("/vault", r.handler)
	yaml, contract := httpapi.OpenAPI()
	for name, want := range map[string]struct {
		mediaType string
		text      []byte
	}{
		"/openapi.yaml": {"application/yaml", yaml},
		"/openapi.json": {"application/json", contract},
	} {
		a := send(t, r.handler, "GET", name, "")
		a.want(t, 200)
		tag := a.header.Get("Etag")
		if a.body != string(want.text) || a.header.Get("Content-Type") != want.mediaType {
			t.Errorf("%s is %d bytes of %s", name, len(a.body), a.header.Get("Content-Type"))
		}
		if got := strings.Join(extraHeaders(a), "\n"); got != "Cache-Control: no-cache\nCross-Origin-Resource-Policy: cross-origin\nEtag: "+tag+"\nVary: Origin" {
			t.Errorf("%s has headers %s", name, got)
		}

		older := newHandler(t, r.vault, &httpapi.Options{OmitAbsent: true})
		first, second := new(firstByte), new(firstByte)
		older.ServeHTTP(first, httptest.NewRequest("GET", name, nil))
		older.ServeHTTP(second, httptest.NewRequest("GET", name, nil))
		if first.at == nil || first.at != second.at {
			t.Errorf("%s is copied", name)
		}
		if a := send(t, older, "GET", name, ""); a.status != 200 || a.body != string(want.text) {
			t.Errorf("%s with OmitAbsent: %d", name, a.status)
		}
		if a := send(t, prefixed, "GET", "/vault"+name, ""); a.status != 200 || a.body != string(want.text) {
			t.Errorf("%s under a prefix: %d", name, a.status)
		}
		if h := send(t, r.handler, "HEAD", name, ""); h.status != 200 || h.body != "" || h.header.Get("Content-Length") != a.header.Get("Content-Length") {
			t.Errorf("HEAD %s: %d, %v", name, h.status, h.header)
		}
		if a := send(t, r.handler, "GET", name, "", "If-None-Match", tag); a.status != 304 || a.body != "" || a.header.Get("Etag") != tag {
			t.Errorf("%s with a current If-None-Match: %d, %v", name, a.status, a.header)
		}
		send(t, r.handler, "GET", name, "", "If-None-Match", `"x"`).want(t, 200)

		a = send(t, r.handler, "POST", name, "{}")
		a.want(t, 405, "METHOD_NOT_ALLOWED")
		if allow := a.header.Get("Allow"); allow != "GET, HEAD" {
			t.Errorf("%s allows %q", name, allow)
		}
		send(t, r.handler, "GET", name+"/", "").want(t, 404, "NOT_FOUND")

		for origin, allowed := range map[string]string{"https://docs.example": "https://docs.example", "https://evil.example": ""} {
			a := send(t, r.handler, "GET", name, "", "Origin", origin)
			if got := a.header.Get("Access-Control-Allow-Origin"); got != allowed || a.header.Get("Vary") != "Origin" {
				t.Errorf("%s for %s: %v", name, origin, a.header)
			}
		}
	}
}

// A firstByte is an http.ResponseWriter that keeps the address of the answer.
type firstByte struct {
	httptest.ResponseRecorder
	at *byte
}

func (w *firstByte) Write(b []byte) (int, error) {
	w.at = &b[0]
	return len(b), nil
}

// TestOmitAbsentBelowMiddleware: nulls are omitted even if a middleware has set an ETag.
func TestOmitAbsentBelowMiddleware(t *testing.T) {
	r := newRig(t, nil, nil)
	older := newHandler(t, r.vault, &httpapi.Options{OmitAbsent: true})
	tagged := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"x"`)
		older.ServeHTTP(w, r)
	})
	if a := send(t, tagged, "GET", "/api-keys", "", "X-Api-Key", r.key); a.status != 200 || strings.Contains(a.body, "null") {
		t.Errorf("%d: %s", a.status, a.body)
	}
}

// TestOpenAPIIsACopy: a caller cannot change the served contract.
func TestOpenAPIIsACopy(t *testing.T) {
	yaml, text := httpapi.OpenAPI()
	clear(yaml)
	clear(text)
	if yaml, text := httpapi.OpenAPI(); !bytes.HasPrefix(yaml, []byte("openapi: 3.1")) || !json.Valid(text) {
		t.Error("a caller changed the contract")
	}
}
