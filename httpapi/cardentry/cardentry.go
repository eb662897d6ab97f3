// Package cardentry serves the card-entry component.
package cardentry

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
)

//go:embed dist
var dist embed.FS

// A file is one that is served, with the headers that do not depend on a request.
type file struct {
	body   []byte
	header map[string]string
	shared bool // pages of other origins may read it
}

// types are the files that there are.
var types = map[string]string{
	"card-entry.js":        "text/javascript; charset=utf-8",
	"card-entry.d.ts":      "text/plain; charset=utf-8",
	"custom-elements.json": "application/json",
	"frame.html":           "text/html; charset=utf-8",
	"frame.js":             "text/javascript; charset=utf-8",
	"frame.css":            "text/css; charset=utf-8",
}

// NewHandler returns a handler of the six paths below /sdk/v1/. origins are those whose
// pages may use the component besides the vault's own: exact ones, which httpapi
// has checked.
func NewHandler(origins []string) http.Handler {
	h := handler{origins: slices.Clone(origins), files: map[string]*file{}}
	for name, contentType := range types {
		body, err := dist.ReadFile("dist/" + name)
		if err != nil {
			panic(err) // it is compiled in
		}
		f := &file{body: body, header: map[string]string{
			"Cache-Control":                "no-cache",
			"Content-Type":                 contentType,
			"Cross-Origin-Resource-Policy": "cross-origin",
			"Referrer-Policy":              "no-referrer",
			"X-Content-Type-Options":       "nosniff",
		}}
		switch {
		case name == "frame.html":
			f.frame(origins)
		case !strings.HasPrefix(name, "frame."):
			f.shared = true
			f.header["Vary"] = "Origin"
		}
		sum := sha256.Sum256(f.body)
		f.header["ETag"] = `"` + hex.EncodeToString(sum[:16]) + `"`
		h.files["/sdk/v1/"+name] = f
	}
	return &h
}

type handler struct {
	origins []string
	files   map[string]*file
}

func (f *file) frame(origins []string) {
	list := strings.Join(origins, " ")
	f.body = bytes.Replace(f.body, []byte(`name="cardvault-origins" content=""`),
		[]byte(`name="cardvault-origins" content="`+html.EscapeString(list)+`"`), 1)
	f.header["Content-Security-Policy"] = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'; " +
		strings.TrimSpace("frame-ancestors 'self' "+list)
	f.header["Cross-Origin-Embedder-Policy"] = "require-corp"
	f.header["Permissions-Policy"] = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := h.files[r.URL.Path]
	if f == nil {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	for name, value := range f.header {
		w.Header().Set(name, value)
	}
	if origins := r.Header["Origin"]; f.shared && len(origins) == 1 && slices.Contains(h.origins, origins[0]) {
		w.Header().Set("Access-Control-Allow-Origin", origins[0])
	}
	http.ServeContent(w, r, path.Base(r.URL.Path), time.Time{}, bytes.NewReader(f.body))
}
