package httpapi

import (
	"errors"
	"net/http"
	"slices"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/jsontext"
	"github.com/cardvault/cardvault/internal/replay"
)

// serveOnce serves a call of a repeatable endpoint: under an idempotency key, if the
// request has one, it is answered as it was the first time. What must be the same in a
// repetition is the request as it came, and not what the endpoint makes of it.
func (c *call) serveOnce() (err error) {
	c.idempotencyKey, err = idempotencyKey(c.request.Header)
	if err != nil {
		return err
	}
	if c.idempotencyKey == "" {
		return c.endpoint.serve(c)
	}

	raw := withoutCode([]byte(c.request.Method+" "+c.pattern+" "+c.pathID+"\n"), c.body)
	defer clear(raw)
	border := &replay.Border{Request: func() []byte { return raw }}

	c.ctx = replay.WithBorder(c.ctx, border)
	err = c.endpoint.serve(c)
	if border.Replayed && (err == nil || errors.Is(err, cardvault.ErrNetworkTokenState)) {
		c.header.Set("Idempotency-Replayed", "true")
	}
	return err
}

// options returns those of a call of the vault that has no others.
func (c *call) options() *cardvault.CallOptions {
	return &cardvault.CallOptions{IdempotencyKey: c.idempotencyKey}
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
