package httpapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cardvault/cardvault"
)

// lines appends the next lines of an answer to it, each a JSON object. It reports whether
// there are more.
type lines func(context.Context) (more bool, err error)

var linesType = []string{"application/x-ndjson"}

// acceptsLines reports whether the client of a request accepts lines of JSON.
func acceptsLines(r *http.Request) bool {
	return slices.ContainsFunc(r.Header["Accept"], func(value string) bool {
		for item := range strings.SplitSeq(value, ",") {
			if media, _, _ := strings.Cut(item, ";"); strings.EqualFold(strings.TrimSpace(media), linesType[0]) {
				return true
			}
		}
		return false
	})
}

// stream writes the lines of an answer as they are made. Each part has the time of a whole
// request: to be made, and again to be taken by the client. If one cannot be made, the last
// line is the failure.
func (c *call) stream(w http.ResponseWriter) (status int) {
	c.header["Content-Type"] = linesType
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	for more := c.request.Method != http.MethodHead; more; {
		c.answer = c.answer[:0]
		more = c.moreLines()
		c.buffers.answer = c.answer
		if c.opts.OmitAbsent {
			c.answer = omitNull(c.answer)
		}
		_ = rc.SetWriteDeadline(time.Now().Add(c.opts.Timeout)) // ServeHTTP has logged if there is none
		if _, err := w.Write(c.answer); err != nil {
			break // the client is gone, or too slow
		}
		_ = rc.Flush()
	}
	return http.StatusOK
}

func (c *call) moreLines() bool {
	ctx, cancel := context.WithTimeout(cardvault.WithActor(c.request.Context(), c.actor()), c.opts.Timeout)
	defer cancel()
	more, err := c.lines(ctx)
	if err != nil {
		c.damaged = errors.Join(c.damaged, err)
		c.answer = append(appendFailure(c.answer, failed(err)), '\n')
	}
	return more && err == nil
}
