package httpapi

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/forward"
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

	// A copy, because strings are unescaped in place.
	line := c.request.Method + " " + c.route.pattern() + " " + strings.ToLower(c.pathID) + "\n"
	c.received = &received{head: len(line), text: slices.Concat([]byte(line), c.body)}
	defer c.received.end()
	border := &replay.Border{Request: c.received.bytes}

	c.ctx = replay.WithBorder(c.ctx, border)
	err = c.endpoint.serve(c)
	if border.Replayed && (err == nil || errors.Is(err, cardvault.ErrNetworkTokenState) || errors.Is(err, forward.ErrOutcomeUnknown)) {
		c.header.Set("Idempotency-Replayed", "true")
	}
	return err
}

// A received request is what a repetition must equal. It outlives its call, which is used
// again for other requests: whoever has kept the context finds nothing.
type received struct {
	head int // length of the line before the body
	text []byte
}

func (r *received) bytes() []byte { return r.text }

func (r *received) end() {
	clear(r.text)
	r.text = nil
}

// options returns the options of a vault's call without others.
func (c *call) options() *cardvault.CallOptions {
	return &cardvault.CallOptions{IdempotencyKey: c.idempotencyKey}
}

// forget removes the value of security_code from the request, which must leave nothing
// behind, not even a hash. It also removes dropped members, since any of them may be a
// code. f belongs to the body, and all its members have been read.
func (c *call) forget(f fields) {
	if c.received == nil {
		return
	}
	r := c.received
	head := r.head
	for i := 0; i < len(f.members); i += f.members[i].Size {
		if m := &f.members[i]; string(m.Name) == "security_code" || m.Mark&asked == 0 {
			r.text = slices.Delete(r.text, head+m.Start, head+m.End) // clears the rest
			head -= m.End - m.Start
		}
	}
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
