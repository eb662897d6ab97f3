package wire

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// An Object appends a JSON object to B, for answers that have no struct of the same
// members. Every member is always present: an absent value is null. Names are written as
// they are.
type Object struct{ B []byte }

// Open begins the object, or an object as member after Name.
func (o *Object) Open() { o.B = append(o.B, '{') }

// Close ends the object that was opened last.
func (o *Object) Close() { o.B = append(o.B, '}') }

// Reopen takes back the last Close, for further members.
func (o *Object) Reopen() { o.B = o.B[:len(o.B)-1] }

// Name begins a member, whose value the caller appends.
func (o *Object) Name(name string) {
	o.next(`"`)
	o.B = append(o.B, name...)
	o.B = append(o.B, '"', ':')
}

// next appends the beginning of a member.
func (o *Object) next(begin string) {
	if o.B[len(o.B)-1] != '{' {
		o.B = append(o.B, ',')
	}
	o.B = append(o.B, begin...)
}

// Null appends a member that is absent.
func (o *Object) Null(name string) {
	o.Name(name)
	o.B = append(o.B, "null"...)
}

// Text appends a string, null if it is empty.
func (o *Object) Text(name, value string) {
	if value == "" {
		o.Null(name)
		return
	}
	o.Name(name)
	o.B = AppendString(o.B, value)
}

// Int appends a number.
func (o *Object) Int(name string, n int64) {
	o.Name(name)
	o.B = strconv.AppendInt(o.B, n, 10)
}

// Bool appends true or false.
func (o *Object) Bool(name string, value bool) {
	o.Name(name)
	o.B = strconv.AppendBool(o.B, value)
}

// ID appends an id, null if it is zero.
func (o *Object) ID(name string, id uuid.UUID) {
	if id == uuid.Nil {
		o.Null(name)
		return
	}
	o.Name(name)
	o.B = appendID(o.B, id)
}

func appendID(b []byte, id uuid.UUID) []byte {
	text := [...]byte{0: '"', 9: '-', 14: '-', 19: '-', 24: '-', 37: '"'}
	hex.Encode(text[1:], id[:4])
	hex.Encode(text[10:], id[4:6])
	hex.Encode(text[15:], id[6:8])
	hex.Encode(text[20:], id[8:10])
	hex.Encode(text[25:], id[10:])
	return append(b, text[:]...)
}

// Time appends a time in UTC with microseconds, null if it is zero.
func (o *Object) Time(name string, t time.Time) {
	if t.IsZero() {
		o.Null(name)
		return
	}
	o.Name(name)
	o.B = appendTime(o.B, t)
}

func appendTime(b []byte, t time.Time) []byte {
	b = t.UTC().AppendFormat(append(b, '"'), time.RFC3339) // which package time has a short way for
	end := len(b) - len("Z")
	b = strconv.AppendInt(b[:end], int64(1e6+t.Nanosecond()/1e3), 10)
	b[end] = '.' // in place of the 1
	return append(b, 'Z', '"')
}

// AppendString appends a JSON string.
func AppendString[T ~string | ~[]byte](b []byte, s T) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			text, _ := json.Marshal(string(s)) // a string always has a JSON form
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
