package template

import (
	"io"
	"slices"

	"github.com/cardvault/cardvault/internal/erase"
)

// Values are what takes the place of placeholders.
type Values struct {
	Of          [Credential][]byte // by name
	Credentials map[string][]byte  // by the name behind "destination."
}

// maxGrowth limits the encoded bytes for one byte of a value.
const maxGrowth = 8

// A Filled is a template with values. Its Reader reads them from one buffer, so that a body
// of any length is never in memory as a whole.
type Filled struct {
	template    *Template
	buffer      []byte // holds all values below
	values      [Credential][places][]byte
	credentials [][]byte
	size        int64
}

// Fill encodes a value for each placeholder. A missing value is empty. Wipe erases them.
func (t *Template) Fill(v *Values) *Filled {
	f := &Filled{template: t, size: int64(len(t.text))}
	room := 0
	for _, value := range v.Of {
		room += int(places) * maxGrowth * len(value)
	}
	for _, name := range t.Credentials {
		room += len(v.Credentials[name])
	}
	f.buffer = make([]byte, 0, room) // never grows, which would leave a copy behind

	for _, name := range t.Credentials {
		f.credentials = append(f.credentials, f.encode(inHeader, v.Credentials[name]))
	}
	for i := range t.slots {
		s := &t.slots[i]
		if s.name != Credential && f.values[s.name][s.place] == nil {
			f.values[s.name][s.place] = f.encode(s.place, v.Of[s.name])
		}
		f.size += int64(len(f.value(s))) - int64(s.end-s.start)
	}
	return f
}

// encode appends a value to the buffer and returns it.
func (f *Filled) encode(at place, value []byte) []byte {
	start := len(f.buffer)
	switch at {
	case inHeader:
		f.buffer = append(f.buffer, value...)
	case inJSON:
		f.buffer = appendJSON(f.buffer, value)
	case inJSONNumber:
		f.buffer = appendNumber(f.buffer, value)
	case inForm:
		f.buffer = appendForm(f.buffer, value)
	case inXML:
		f.buffer = appendXML(f.buffer, value)
	}
	return f.buffer[start:len(f.buffer):len(f.buffer)]
}

func (f *Filled) value(s *slot) []byte {
	if s.name == Credential {
		return f.credentials[s.credential]
	}
	return f.values[s.name][s.place]
}

// Size returns the length of the text in bytes.
func (f *Filled) Size() int64 { return f.size }

// Wipe erases the values. No Reader may be in use.
func (f *Filled) Wipe() {
	clear(f.buffer[:cap(f.buffer)])
	erase.Registers()
}

// Bytes returns the whole text, which the caller erases.
func (f *Filled) Bytes() []byte {
	text := slices.Grow([]byte(nil), int(f.size))[:f.size]
	_, _ = io.ReadFull(f.Reader(), text) // no error: it is as long as that
	return text
}

// Reader returns a reader of the text from its beginning.
func (f *Filled) Reader() io.Reader { return &reader{filled: f} }

type reader struct {
	filled *Filled
	slot   int    // the next one
	pos    int    // in the text of the template
	rest   []byte // of a value
}

func (r *reader) Read(p []byte) (n int, err error) {
	t := r.filled.template
	for n < len(p) {
		if len(r.rest) > 0 {
			copied := copy(p[n:], r.rest)
			r.rest, n = r.rest[copied:], n+copied
			continue
		}
		end := len(t.text)
		if r.slot < len(t.slots) {
			end = int(t.slots[r.slot].start)
		}
		copied := copy(p[n:], t.text[r.pos:end])
		r.pos, n = r.pos+copied, n+copied
		if r.pos < end {
			continue // p is full
		}

		if r.slot == len(t.slots) {
			if n == 0 {
				return 0, io.EOF
			}
			break
		}
		s := &t.slots[r.slot]
		r.slot, r.pos, r.rest = r.slot+1, int(s.end), r.filled.value(s)
	}
	return n, nil
}
