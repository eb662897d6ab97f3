package cardentry_test

import (
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/httpapi/cardentry"
)

var shops = []string{"https://shop.example", "http://localhost:8090"}

// shared lists the files that pages of other origins read. own lists the files of the
// frame.
var (
	shared = []string{"card-entry.js", "card-entry.d.ts", "custom-elements.json"}
	own    = []string{"frame.html", "frame.js", "frame.css"}
)

// get asks for a file. header holds pairs of names and values.
func get(h http.Handler, method, name string, header ...string) *http.Response {
	r := httptest.NewRequest(method, "/sdk/v1/"+name, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFiles(t *testing.T) {
	h := cardentry.NewHandler(shops)
	for name, contentType := range map[string]string{
		"card-entry.js":        "text/javascript; charset=utf-8",
		"card-entry.d.ts":      "text/plain; charset=utf-8",
		"custom-elements.json": "application/json",
		"frame.html":           "text/html; charset=utf-8",
		"frame.js":             "text/javascript; charset=utf-8",
		"frame.css":            "text/css; charset=utf-8",
	} {
		r := get(h, "GET", name)
		text := body(t, r)
		if r.StatusCode != 200 || len(text) < 1000 {
			t.Errorf("%s: status %d, %d bytes", name, r.StatusCode, len(text))
		}
		for key, want := range map[string]string{
			"Content-Type":                 contentType,
			"Cache-Control":                "no-cache",
			"Cross-Origin-Resource-Policy": "cross-origin",
			"Referrer-Policy":              "no-referrer",
			"X-Content-Type-Options":       "nosniff",
		} {
			if got := r.Header.Get(key); got != want {
				t.Errorf("%s: %s is %q, want %q", name, key, got, want)
			}
		}
		tag := r.Header.Get("ETag")
		if !regexp.MustCompile(`^"[0-9a-f]{32}"$`).MatchString(tag) {
			t.Errorf("%s: ETag %q", name, tag)
		}
		if r := get(h, "HEAD", name); r.StatusCode != 200 || r.ContentLength != int64(len(text)) || body(t, r) != "" || r.Header.Get("ETag") != tag {
			t.Errorf("%s: HEAD answers %d, %d bytes, %v", name, r.StatusCode, r.ContentLength, r.Header)
		}
		if r := get(h, "GET", name, "If-None-Match", tag); r.StatusCode != 304 || body(t, r) != "" || r.Header.Get("ETag") != tag {
			t.Errorf("%s: status %d for the version that the client has", name, r.StatusCode)
		}
		for _, part := range []string{"bytes=0-1", "bytes=9999999-"} {
			if r := get(h, "GET", name, "Range", part); r.StatusCode != 200 || r.Header.Get("Accept-Ranges") != "" || body(t, r) != text {
				t.Errorf("%s: status %d for a range", name, r.StatusCode)
			}
		}
		if r := get(h, "GET", name, "If-None-Match", `"x"`); r.StatusCode != 200 {
			t.Errorf("%s: status %d for another version", name, r.StatusCode)
		}
	}
}

func TestMethodsAndPaths(t *testing.T) {
	h := cardentry.NewHandler(nil)
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
		if r := get(h, method, "frame.html"); r.StatusCode != 405 || r.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %d, Allow %q", method, r.StatusCode, r.Header.Get("Allow"))
		}
	}
	for _, name := range []string{"", "frame.html/", "../v1/frame.html", "frame", "dist/frame.html", "element.ts", "FRAME.HTML"} {
		if r := get(h, "GET", name); r.StatusCode != 404 {
			t.Errorf("%q: status %d", name, r.StatusCode)
		}
	}
}

// TestOtherOrigins reads files from pages of other origins. Allowed origins can read the
// script and its descriptions; all other reads are refused.
func TestOtherOrigins(t *testing.T) {
	h := cardentry.NewHandler(shops)
	for _, name := range slices.Concat(shared, own) {
		for origin, allowed := range map[string]bool{
			"https://shop.example":       true,
			"http://localhost:8090":      true,
			"https://evil.example":       false,
			"https://shop.example.evil":  false,
			"HTTPS://shop.example":       false,
			"null":                       false,
			"https://shop.example, null": false,
			"":                           false,
		} {
			r := get(h, "GET", name, "Origin", origin)
			want := ""
			if allowed && slices.Contains(shared, name) {
				want = origin
			}
			if got := r.Header.Get("Access-Control-Allow-Origin"); got != want || r.Header.Get("Access-Control-Allow-Credentials") != "" {
				t.Errorf("%s for %q: %q", name, origin, got)
			}
		}
		if r := get(h, "GET", name, "Origin", shops[0], "Origin", shops[1]); r.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s is allowed for two origins at once", name)
		}
	}
	for _, name := range shared {
		if r := get(h, "GET", name); r.Header.Get("Vary") != "Origin" {
			t.Errorf("%s: Vary %q", name, r.Header.Get("Vary"))
		}
	}
}

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'; frame-ancestors 'self'"

// TestFrame: the frame lists the requesting pages that may embed it, and no others.
func TestFrame(t *testing.T) {
	h := cardentry.NewHandler(shops)
	many := strings.Repeat("&origin=https://evil.example", 7)
	for query, named := range map[string]string{
		"":                             "",
		"?origin=https://evil.example": "",
		"?origin=":                     "",
		"?origin=*":                    "",
		"?origin=null":                 "",
		"?origin=https://shop.example%20https://evil.example":                       "",
		"?origin=https://shop.example;x":                                            "",
		"?origin=HTTPS://shop.example":                                              "",
		"?x=https://shop.example":                                                   "",
		"?origin=https://shop.example":                                              "https://shop.example",
		"?origin=http%3A%2F%2Flocalhost%3A8090":                                     "http://localhost:8090",
		"?origin=https://shop.example&origin=https://shop.example":                  "https://shop.example",
		"?origin=https://evil.example&origin=https://shop.example":                  "https://shop.example",
		"?origin=https://shop.example&origin=http://localhost:8090":                 "https://shop.example http://localhost:8090",
		"?" + many[1:] + "&origin=https://shop.example":                             "https://shop.example",
		"?" + many[1:] + "&origin=https://evil.example&origin=https://shop.example": "",
	} {
		r := get(h, "GET", "frame.html"+query)
		for key, want := range map[string]string{
			"Content-Security-Policy":      strings.TrimSuffix(policy+" "+named, " "),
			"Cross-Origin-Embedder-Policy": "require-corp",
			"Permissions-Policy":           "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
		} {
			if got := r.Header.Get(key); got != want {
				t.Errorf("%s: %s is %q, want %q", query, key, got, want)
			}
		}
		page := body(t, r)
		in := regexp.MustCompile(`<meta name="cardvault-origins" content="([^"]*)">`).FindStringSubmatch(page)
		if in == nil || in[1] != named {
			t.Errorf("%s: the frame lists the origins %q", query, in)
		}
		for _, shop := range shops {
			if !strings.Contains(named, shop) && strings.Contains(page, shop) {
				t.Errorf("%s: the frame names %s", query, shop)
			}
		}
	}
	// A different page has a different tag.
	if tag := get(h, "GET", "frame.html").Header.Get("ETag"); tag == get(h, "GET", "frame.html?origin=https://shop.example").Header.Get("ETag") {
		t.Error("two pages have the same tag")
	}
	// An origin is written as text, even if it looks like markup.
	r := get(cardentry.NewHandler([]string{`"><script>`}), "GET", `frame.html?origin=%22%3E%3Cscript%3E`)
	if text := body(t, r); !strings.Contains(text, html.EscapeString(`"><script>`)) || strings.Contains(text, `"><script>`) {
		t.Error("an origin is written as markup")
	}
}

// TestFrameHoldsToItsPolicy searches the frame for anything that its policy would refuse:
// inline scripts and styles, and anything from another origin.
func TestFrameHoldsToItsPolicy(t *testing.T) {
	h := cardentry.NewHandler(nil)
	page := body(t, get(h, "GET", "frame.html"))
	if s := regexp.MustCompile(`(?i)<script>|<style|\son\w+=|\sstyle=|//`).FindString(page); s != "" {
		t.Errorf("frame.html has %q", s)
	}
	for _, name := range []string{"frame.js", "card-entry.js"} {
		if s := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage|sessionStorage|indexedDB|document\.cookie|console\.|postMessage\([^)]*"\*"`).
			FindString(body(t, get(h, "GET", name))); s != "" {
			t.Errorf("%s has %q", name, s)
		}
	}
	if s := regexp.MustCompile(`@import|url\(`).FindString(body(t, get(h, "GET", "frame.css"))); s != "" {
		t.Errorf("frame.css has %q", s)
	}
}

func TestOriginsAreCopied(t *testing.T) {
	origins := []string{"https://shop.example"}
	h := cardentry.NewHandler(origins)
	origins[0] = "https://evil.example"
	if r := get(h, "GET", "card-entry.js", "Origin", "https://evil.example"); r.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("the caller's slice is used")
	}
}
