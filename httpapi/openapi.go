package httpapi

import (
	"bytes"
	_ "embed"

	"github.com/cardvault/cardvault/internal/etag"
)

// The contract is written in YAML, and go run -C test ./contract makes the JSON of it.
var (
	//go:embed openapi.yaml
	contractYAML []byte

	//go:embed openapi.json
	contractJSON []byte
)

// OpenAPI returns the contract of the REST API in OpenAPI 3.1, which the handler serves at
// /openapi.yaml and /openapi.json: the same document twice. Its addresses are relative to
// its own, under any prefix. The caller may change the slices.
func OpenAPI() (yaml, json []byte) { return bytes.Clone(contractYAML), bytes.Clone(contractJSON) }

// revalidated is the Cache-Control of files that are requested anew every time, so that a
// client never has the contract of an earlier version.
var revalidated = []string{"no-cache"}

// contractRoute is the route of the contract in one of its forms.
func contractRoute(name, mediaType string, text []byte) route {
	tag := etag.Of(text)
	get := &endpoint{public: true, serve: func(c *call) error {
		c.header["Etag"] = []string{tag}
		c.header["Cache-Control"] = revalidated
		c.header["Cross-Origin-Resource-Policy"] = anyOrigin
		if etag.Match(c.request.Header["If-None-Match"], tag) {
			c.unchanged = true
			return nil
		}
		c.contentType = []string{mediaType}
		c.file = text
		return nil
	}}
	return route{[]string{name}, map[string]*endpoint{"GET": get}}
}
