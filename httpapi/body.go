package httpapi

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/erase"
)

// buffers hold the body of one request, its answer, and what is known of it.
type buffers struct {
	body, answer []byte
	call         call
}

var pool = sync.Pool{New: func() any {
	return &buffers{body: make([]byte, 0, 4<<10), answer: make([]byte, 0, 4<<10)}
}}

// free erases the body, which may hold a card number, and the answer, which may
// hold a new API key, and gives the buffers to the next request. An answer as
// large as a full page is not kept, nor is the body of a large forward.
func (b *buffers) free() {
	clear(b.body[:cap(b.body)])
	clear(b.answer)
	b.call = call{}
	erase.Registers()
	if cap(b.answer) > 64<<10 {
		b.answer = make([]byte, 0, 4<<10)
	}
	if cap(b.body) > maxBody+1 {
		b.body = make([]byte, 0, 4<<10)
	}
	pool.Put(b)
}

// bodyTimeout limits how long a client may take to send a body.
const bodyTimeout = 10 * time.Second

// readBody reads the body of a request, of at most some bytes. Without one it returns no
// bytes.
func readBody(r *http.Request, b *buffers, most int) ([]byte, error) {
	b.body = b.body[:0]
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil, nil
	}

	defer erase.Registers()

	typed := isJSON(r.Header["Content-Type"]) && len(r.Header["Content-Encoding"]) == 0
	if r.ContentLength > 0 && !typed {
		return nil, unsupportedMedia
	}
	if r.ContentLength > int64(most) {
		return nil, payloadTooLarge
	}

	// The buffer that is too small is erased: it may hold a card number.
	for {
		if len(b.body) == cap(b.body) {
			grown := make([]byte, len(b.body), min(2*cap(b.body), most+1))
			copy(grown, b.body)
			clear(b.body)
			b.body = grown
		}

		if len(b.body) > 0 { // the goroutine may wait, and leave its thread
			erase.Registers()
		}
		n, err := r.Body.Read(b.body[len(b.body):cap(b.body)])
		b.body = b.body[:len(b.body)+n]
		switch {
		case len(b.body) > 0 && !typed:
			return nil, unsupportedMedia // of a length that was not announced
		case len(b.body) > most:
			return nil, payloadTooLarge
		case errors.Is(err, io.EOF):
			return b.body, nil
		case err != nil:
			return nil, malformedRequest
		}
	}
}

// maxDrop bounds how much of an unused body is read, as in net/http, before
// the connection is closed instead.
const maxDrop = 256 << 10

// drop reads the rest of a body. Otherwise net/http would, into memory that it does not
// erase.
func (b *buffers) drop(r *http.Request) {
	if r.ProtoMajor != 1 || r.Body == nil || r.Body == http.NoBody || r.ContentLength > maxDrop || r.Header.Get("Expect") != "" {
		return // HTTP/2 reads no unused body; after an Expect nothing was sent
	}
	for n, err := 0, error(nil); err == nil && n <= maxDrop; {
		var m int
		m, err = r.Body.Read(b.body[:cap(b.body)])
		erase.Registers() // as in readBody
		n += m
	}
}

// isJSON reports whether a body is application/json, in UTF-8 if it says so.
func isJSON(types []string) bool {
	if len(types) != 1 {
		return false
	}
	if types[0] == "application/json" {
		return true
	}
	t, params, err := mime.ParseMediaType(types[0])
	charset, ok := params["charset"]
	return err == nil && t == "application/json" && (!ok || strings.EqualFold(charset, "utf-8"))
}
