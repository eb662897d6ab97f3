// Package cardentry serves the card-entry component: fields for a payment card that a
// shop puts into its page without getting to see the card.
//
//	<script type="module" src="https://vault.example/vault/sdk/v1/card-entry.js"></script>
//	<card-entry session-id="…"></card-entry>
//
// The first line defines the element; the second is one, in a session that the shop's
// server has made with POST /tokens/session, or with refresh-session or replace-session of
// a token. Package httpapi mounts it: the origins of the shops are its Options.AllowedOrigins.
//
//	const card = document.querySelector("card-entry");
//	card.addEventListener("success", ({ detail }) => order(detail.token_id));
//	card.addEventListener("error", ({ detail }) => {
//	  if (detail.action === "new_session") renew().then((id) => (card.sessionId = id));
//	});
//	button.addEventListener("click", () => card.submit());
//
// # Data that reaches the page
//
// The element holds one frame, of the origin of the vault. All fields are in it, because
// autofill and the keyboard can walk through a single frame. The card is encrypted there,
// for the key of the session, and sent only to the vault. The page receives the events
// ready, change, success, error, challenge and challengeend, whose details are in
// card-entry.d.ts. They hold the scheme, the faults of the fields, and in the end the id of
// a token. They hold nothing that the shopper typed, and neither does a URL, a store of the
// browser, or its console.
//
// Element and frame talk over the ends of a MessageChannel. The element sends one end to
// the exact origin of the vault; the frame takes it from its parent, if that has the
// vault's own origin or an allowed one. The URL of the frame names the origin of the page,
// and the answer allows only that origin to hold the frame: anybody looking for allowed
// origins has to guess them. A session id is a credential: it is in messages and in the
// calls of the session, never in the URL of the frame.
//
// The token id of success is what a browser says. A shop's server that needs to be sure
// of it reads it from GET /sessions/{id}.
//
// # Errors
//
// Every error names the next step: correct (the fields show the faults), retry (which is
// safe: a session makes one token), new_session (the input is kept), check_setup (if it
// always happens, check the page). The frame shows the message of an error, so that the
// shop need not.
//
// # Content Security Policy
//
// A shop's page needs script-src and frame-src for the origin of the vault, and frame-src
// for the pages of banks, where cardholders are identified and verified; style-src and
// connect-src need nothing. The frame itself has a policy that lets it load and call only
// the vault, and be embedded only by the allowed origins.
//
// # Styling
//
// Custom properties on the element, each with defaults for light and dark:
//
//	card-entry {
//	  --card-entry-font-family: Georgia, serif;
//	  --card-entry-accent-color: #0a7d4f;
//	}
//
// They are -font-family (of fonts that the shopper has), -font-size, -color, -background,
// -border-color, -border-radius, -accent-color, -error-color, -label-color,
// -placeholder-color, -gap and -padding. Lengths are best in px: rem, em and % refer to the
// frame.
//
// The sources are in src. Files in dist are made of them by test/bundle, and committed.
package cardentry

import (
	"bytes"
	"embed"
	"html"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cardvault/cardvault/internal/etag"
)

//go:embed dist
var dist embed.FS

// types are the files of dist, with their media types.
var types = map[string]string{
	"card-entry.js":        "text/javascript; charset=utf-8",
	"card-entry.d.ts":      "text/plain; charset=utf-8",
	"custom-elements.json": "application/json",
	"frame.html":           "text/html; charset=utf-8",
	"frame.js":             "text/javascript; charset=utf-8",
	"frame.css":            "text/css; charset=utf-8",
}

// A file is the content of one path.
type file struct {
	body   []byte
	header map[string]string
	shared bool // pages of other origins read it: a module script, and what describes it
}

// NewHandler returns a handler of the six files of the component, below /sdk/v1/. origins
// are the origins whose pages may use it, besides the vault's own. They are not checked:
// each must have the form that browsers send, such as "https://shop.example", which httpapi
// ensures.
func NewHandler(origins []string) http.Handler {
	h := &handler{slices.Clone(origins), make(map[string]*file, len(types))}
	for name, contentType := range types {
		body, err := dist.ReadFile("dist/" + name)
		if err != nil {
			panic(err) // the package was built without it
		}

		f := &file{body: body, header: map[string]string{
			// Requested anew every time, so that element and frame have the same version.
			"Cache-Control":                "no-cache",
			"Content-Type":                 contentType,
			"ETag":                         etag.Of(body),
			"Cross-Origin-Resource-Policy": "cross-origin",
			"Referrer-Policy":              "no-referrer",
			"X-Content-Type-Options":       "nosniff",
		}}

		if name == frame {
			// Pages that are cross-origin isolated embed nothing that does not say this.
			f.header["Cross-Origin-Embedder-Policy"] = "require-corp"
			f.header["Permissions-Policy"] = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"
		}
		if f.shared = !strings.HasPrefix(name, "frame."); f.shared {
			f.header["Vary"] = "Origin"
		}
		h.files["/sdk/v1/"+name] = f
	}
	return h
}

const (
	frame      = "frame.html"
	anyOrigins = `name="cardvault-origins" content=""`

	framePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'; " +
		"frame-ancestors 'self'"
)

// maxAsked bounds the origins in one request: a page, and the pages that hold it.
const maxAsked = 8

// asked returns the allowed origins that a query names, in its order.
func (h *handler) asked(query url.Values) (origins []string) {
	for i, origin := range query["origin"] {
		if i < maxAsked && slices.Contains(h.origins, origin) && !slices.Contains(origins, origin) {
			origins = append(origins, origin)
		}
	}
	return origins
}

// guard returns the body of the frame for pages of the origins and keeps it from others.
func guard(body []byte, header http.Header, origins []string) []byte {
	header.Set("Content-Security-Policy", strings.Join(append([]string{framePolicy}, origins...), " "))
	meta := strings.Replace(anyOrigins, `""`, `"`+html.EscapeString(strings.Join(origins, " "))+`"`, 1)
	body = bytes.Replace(body, []byte(anyOrigins), []byte(meta), 1)
	header.Set("ETag", etag.Of(body))
	return body
}

type handler struct {
	origins []string
	files   map[string]*file
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := h.files[r.URL.Path]
	if f == nil {
		http.NotFound(w, r)
		return
	}

	header := w.Header()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}

	for name, value := range f.header {
		header.Set(name, value)
	}

	body, name := f.body, path.Base(r.URL.Path)
	if name == frame {
		body = guard(body, header, h.asked(r.URL.Query()))
	}
	if origins := r.Header["Origin"]; f.shared && len(origins) == 1 && slices.Contains(h.origins, origins[0]) {
		header.Set("Access-Control-Allow-Origin", origins[0])
	}
	if etag.Match(r.Header["If-None-Match"], header.Get("ETag")) {
		header.Del("Content-Type")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client is gone if this fails
	}
}
