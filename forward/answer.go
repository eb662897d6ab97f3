package forward

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/forward/internal/exchange"
	"github.com/cardvault/cardvault/forward/internal/redact"
	"github.com/cardvault/cardvault/internal/erase"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/google/uuid"
)

// An Answer is what the destination has answered, whatever the status, without card data.
type Answer struct {
	ID      uuid.UUID // of the forward; the same in a repetition
	TokenID uuid.UUID

	StatusCode int
	Header     http.Header // without Set-Cookie and the headers of a connection and an encoding
	Body       []byte      // decompressed; nil for an empty body

	Truncated bool // the body is left out: too long, or in an encoding that cannot be searched
	Redacted  bool // something is masked
	Replayed  bool // the answer of an earlier call under the idempotency key
	Duration  time.Duration
}

// dropped are the headers of an answer that the caller does not get.
var dropped = append([]string{"Content-Encoding", "Content-Length", "Set-Cookie", "Set-Cookie2"}, notForwarded...)

// read reads an answer and masks it.
func (c *call) read(ctx context.Context, resp *http.Response, r *redact.Redactor) (*Answer, error) {
	a := &Answer{ID: uuid.New(), StatusCode: resp.StatusCode, Header: http.Header{}}
	defer func() {
		resp.Close = resp.Close || a.Redacted || a.Truncated // TLS keeps the last that it has read
		_ = resp.Body.Close()                                // waits until the request is not in use any more
		erase.Registers()
	}()
	listed := strings.FieldsFunc(strings.Join(resp.Header["Connection"], ","), func(c rune) bool { return c == ',' || c == ' ' })
	for name, values := range resp.Header {
		if slices.Contains(dropped, name) || slices.ContainsFunc(listed, func(s string) bool { return strings.EqualFold(s, name) }) {
			continue
		}
		name = a.mask(r, name)
		for _, value := range values {
			a.Header[name] = append(a.Header[name], a.mask(r, value))
		}
	}

	body, ok, err := readBody(resp, c.to.MaxAnswer)
	switch {
	case err != nil:
		clear(body)
		return nil, exchange.BodyError(ctx, err)
	case !ok || !readable(resp.Header.Get("Content-Type"), body):
		clear(body)
		a.Truncated = true
		return a, nil
	case len(body) == 0:
		return a, nil
	}

	masked, redacted := r.Text(body, isJSON(body))
	if redacted {
		clear(body)
		a.Redacted = true
	}
	a.Body = masked
	return a, nil
}

func (a *Answer) mask(r *redact.Redactor, text string) string {
	masked, redacted := r.Text([]byte(text), false)
	if !redacted {
		return text
	}
	a.Redacted = true
	return string(masked)
}

// readBody reads the body of an answer, decompressed. ok is false if it is longer than most
// bytes, or cannot be decompressed. The error is of the connection.
func readBody(resp *http.Response, most int) (body []byte, ok bool, err error) {
	room := 512
	if n := resp.ContentLength; n >= 0 && n <= int64(most) {
		room = int(n) + 1
	}
	encoding := strings.ToLower(strings.Join(resp.Header["Content-Encoding"], ","))
	switch encoding {
	case "", "identity", "gzip", "x-gzip":
	default:
		return nil, false, nil
	}

	body, err = readAll(resp.Body, min(room, most+1), most)
	switch {
	case err != nil || len(body) > most:
		return body, false, err
	case strings.HasSuffix(encoding, "gzip") && len(body) > 0: // 0 of HEAD, and with 204
		defer clear(body)
		text, ok := unzip(body, most)
		return text, ok, nil
	}
	return body, true, nil
}

// readAll reads up to one byte more than most. A buffer that is too small is erased: it may
// hold a card.
func readAll(from io.Reader, room, most int) (read []byte, err error) {
	read = make([]byte, 0, room)
	for err == nil && len(read) <= most {
		if len(read) == cap(read) {
			grown := make([]byte, len(read), min(2*cap(read), most+1))
			copy(grown, read)
			clear(read)
			read = grown
		}
		var n int
		n, err = from.Read(read[len(read):cap(read)])
		read = read[:len(read)+n]
	}
	if err == io.EOF {
		err = nil
	}
	return read, err
}

// readable reports whether a body is text in which card data can be found, or no text at all.
func readable(mediaType string, body []byte) bool {
	if bytes.HasPrefix(body, []byte{0x1f, 0x8b}) { // compressed once more
		return false
	}
	media, parameters, err := mime.ParseMediaType(mediaType)
	text := media == "" || strings.HasPrefix(media, "text/") || strings.HasSuffix(media, "json") || strings.HasSuffix(media, "xml")
	if text && bytes.IndexByte(body, 0) >= 0 { // UTF-16, whatever it is called
		return false
	}
	if err != nil {
		return true
	}

	charset := strings.ToLower(parameters["charset"])
	for _, known := range []string{"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-", "latin1", "windows-125"} {
		if strings.HasPrefix(charset, known) {
			return true
		}
	}
	return charset == ""
}

// isJSON reports whether a body is an object or array of JSON. Text in which only strings
// were searched for a security code could have it elsewhere.
func isJSON(body []byte) bool {
	start := bytes.TrimLeft(body, " \t\r\n")
	return len(start) > 0 && (start[0] == '{' || start[0] == '[') && json.Valid(start)
}

// The tags of an answer that is kept under an idempotency key.
const (
	tagID = iota + 1
	tagStatus
	tagName
	tagValue // of the header named before
	tagBody
	tagTruncated
	tagRedacted
	tagDuration
	tagFailed // in place of all others
)

// How a call has failed that is kept.
const (
	failedUnavailable = iota + 1
	failedTimeout
)

// encode returns an answer as it is kept in so many bytes: without the body, and then without
// the headers, if it has no room. The rest is always kept.
func (a *Answer) encode(room int) []byte {
	b := tlv.Append(nil, tagID, a.ID[:])
	b = tlv.AppendUint(b, tagStatus, uint64(a.StatusCode))
	b = tlv.AppendBool(b, tagRedacted, a.Redacted)
	b = tlv.AppendUint(b, tagDuration, uint64(a.Duration))

	var head []byte
	for name, values := range a.Header {
		for _, value := range values {
			head = tlv.Append(head, tagName, name)
			head = tlv.Append(head, tagValue, "="+value) // an empty field would be left out
		}
	}
	fits := func(n int) bool { return len(b)+n < room-16 }
	if fits(len(head)) {
		b = append(b, head...)
	}
	if fits(len(a.Body)) && !a.Truncated {
		return tlv.Append(b, tagBody, a.Body)
	}
	return tlv.AppendBool(b, tagTruncated, true)
}

func encodeFailure(kind int) []byte { return tlv.AppendUint(nil, tagFailed, uint64(kind)) }

// decodeAnswer returns a kept answer or failure.
func decodeAnswer(kept []byte) (*Answer, error) {
	a := &Answer{Header: http.Header{}}
	name := ""
	r := tlv.Read(kept)

	for r.Next() {
		switch r.Tag {
		case tagID:
			copy(a.ID[:], r.Value)
		case tagStatus:
			a.StatusCode = int(r.Uint())
		case tagName:
			name = string(r.Value)
		case tagValue:
			a.Header[name] = append(a.Header[name], strings.TrimPrefix(string(r.Value), "="))
		case tagBody:
			a.Body = bytes.Clone(r.Value)
		case tagTruncated:
			a.Truncated = r.Bool()
		case tagRedacted:
			a.Redacted = r.Bool()
		case tagDuration:
			a.Duration = time.Duration(r.Uint())
		case tagFailed:
			again := errors.New("the first call had no answer")
			if r.Uint() == failedTimeout {
				return nil, unknown(cardvault.ErrProviderTimeout, again)
			}
			return nil, unknown(cardvault.ErrProviderUnavailable, again)
		}
	}

	if err := r.Err(); err != nil || a.StatusCode == 0 {
		return nil, fmt.Errorf("%w: answer cannot be read", cardvault.ErrDamaged)
	}
	return a, nil
}
