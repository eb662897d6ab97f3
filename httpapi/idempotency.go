package httpapi

import (
	"errors"
	"net/http"
	"slices"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/jsontext"
)

// serveOnce serves a call of a repeatable endpoint: under an idempotency key, if the
// request has one, it is answered as it was the first time.
func (c *call) serveOnce() error {
	key, err := idempotencyKey(c.request.Header)
	if err != nil {
		return err
	}
	if key == "" {
		return c.endpoint.serve(c)
	}

	raw := withoutCode([]byte(c.request.Method+" "+c.pattern+" "+c.pathID+"\n"), c.body)
	once := &cardvault.Idempotency{Key: key, Request: cardvault.NewIdempotentRequest(raw)}
	clear(raw)
	defer once.Request.Wipe()

	c.ctx = cardvault.WithIdempotency(c.ctx, once)
	err = c.endpoint.serve(c)
	if once.Replayed() && (err == nil || errors.Is(err, cardvault.ErrNetworkTokenState)) {
		c.header.Set("Idempotency-Replayed", "true")
	}
	return err
}

// withoutCode appends a body as it was received without the value of security_code, which
// is to leave nothing behind, not even a hash. It is a copy, because strings are unescaped
// in place. A body that cannot be read is refused before it is compared with another.
func withoutCode(b, body []byte) []byte {
	b = slices.Grow(b, len(body))
	if start, end, ok := jsontext.Member(body, "security_code"); ok {
		return append(append(b, body[:start]...), body[end:]...)
	}
	return append(b, body...)
}

// idempotencyKey returns the key of a request, or "" if it has none.
func idempotencyKey(h http.Header) (string, error) {
	keys := h["Idempotency-Key"]
	if alias := h["X-Idempotency-Key"]; len(alias) > 0 {
		if len(keys) > 0 && (len(keys) > 1 || len(alias) > 1 || keys[0] != alias[0]) {
			return "", badIdempotencyKey
		}
		keys = alias
	}

	if len(keys) == 0 {
		return "", nil
	}
	if len(keys) > 1 || len(keys[0]) < 1 || len(keys[0]) > 255 {
		return "", badIdempotencyKey
	}
	for _, c := range []byte(keys[0]) {
		if c < ' ' || c > '~' {
			return "", badIdempotencyKey
		}
	}
	return keys[0], nil
}
