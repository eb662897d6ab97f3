// Package tlv encodes the plaintexts of sealed records: fields as tag, length and value.
//
// A field that is absent costs nothing, one with an unknown tag is skipped, and
// a zero tag ends the data, so that a plaintext can be padded with zeros.
package tlv

import (
	"encoding/binary"
	"errors"
	"time"
)

// ErrMalformed is returned for data that is not a sequence of fields.
var ErrMalformed = errors.New("tlv: malformed data")

// Append appends a field. An empty value is left out: it reads as absent.
func Append[T ~string | ~[]byte](b []byte, tag byte, value T) []byte {
	if len(value) == 0 {
		return b
	}
	b = append(b, tag)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}

// AppendUint appends a number in as few bytes as it needs. Zero is left out.
func AppendUint(b []byte, tag byte, n uint64) []byte {
	if n == 0 {
		return b
	}
	var v [8]byte
	binary.BigEndian.PutUint64(v[:], n)
	i := 0
	for v[i] == 0 {
		i++
	}
	return Append(b, tag, v[i:])
}

// AppendBool appends a 1 for true. False is left out.
func AppendBool(b []byte, tag byte, value bool) []byte {
	if !value {
		return b
	}
	return Append(b, tag, []byte{1})
}

// AppendTime appends a time in microseconds since 1970. The zero time is left out.
func AppendTime(b []byte, tag byte, t time.Time) []byte {
	if t.IsZero() {
		return b
	}
	return AppendUint(b, tag, uint64(t.UnixMicro()))
}

// Pad appends zeros until the length is a multiple of step and at least min.
func Pad(b []byte, step, min int) []byte {
	n := (max(len(b), min) + step - 1) / step * step
	for len(b) < n {
		b = append(b, 0)
	}
	return b
}

// A Reader walks over fields. The zero value reads nothing.
type Reader struct {
	Tag   byte   // of the current field
	Value []byte // of the current field; points into the data
	rest  []byte
	err   error
}

// Read returns a Reader of data.
func Read(data []byte) Reader { return Reader{rest: data} }

// Next moves to the next field and reports whether there is one.
func (r *Reader) Next() bool {
	if r.err != nil || len(r.rest) == 0 || r.rest[0] == 0 {
		return false
	}
	n, w := binary.Uvarint(r.rest[1:])
	if w <= 0 || n > uint64(len(r.rest)-1-w) {
		r.err = ErrMalformed
		return false
	}
	r.Tag = r.rest[0]
	r.Value = r.rest[1+w : 1+w+int(n)]
	r.rest = r.rest[1+w+int(n):]
	return true
}

// Uint returns the current field as a number. One of more than 8 bytes makes
// Err report malformed data.
func (r *Reader) Uint() uint64 {
	if len(r.Value) > 8 {
		r.err = ErrMalformed
		return 0
	}
	var n uint64
	for _, b := range r.Value {
		n = n<<8 | uint64(b)
	}
	return n
}

// Bool reports whether the current field is the number 1.
func (r *Reader) Bool() bool { return r.Uint() == 1 }

// Time returns the current field as a time in UTC.
func (r *Reader) Time() time.Time { return time.UnixMicro(int64(r.Uint())).UTC() }

// Err returns what stopped Next, or nil at the end of the data.
func (r *Reader) Err() error { return r.err }
