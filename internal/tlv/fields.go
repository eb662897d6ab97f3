package tlv

import "time"

// maxTags bounds the tags of Fields.
const maxTags = 48

// Fields are the fields of a value. A function that names each of them once, in their order,
// writes the value and reads it:
//
//	func (p *point) fields(f *tlv.Fields) {
//		tlv.Uint(f, 1, &p.x)
//		tlv.Uint(f, 2, &p.y)
//	}
//
// A field that is absent leaves its variable as it is, and one with an unknown tag is
// skipped. The zero Fields writes.
type Fields struct {
	out     []byte
	in      []byte
	values  [maxTags]span // in in, by tag
	reading bool
	err     error
}

// A span is a part of data. A span that ends at 0 is absent: a value follows its tag.
type span struct{ from, to uint32 }

// Bytes returns the fields that were written, appended to what To has set.
func (f *Fields) Bytes() []byte { return f.out }

// To lets f write to the end of b.
func (f *Fields) To(b []byte) { f.out = b }

// From lets f read data. Of fields with one tag the last counts.
func (f *Fields) From(data []byte) {
	f.in, f.reading = data, true
	r := Read(data)
	for r.Next() {
		if end := len(data) - len(r.rest); r.Tag < maxTags {
			f.values[r.Tag] = span{uint32(end - len(r.Value)), uint32(end)}
		}
	}
	f.err = r.Err()
}

// Encode returns the fields that a function writes, padded to a multiple of 64 bytes so that
// their length shows little.
func Encode(fields func(*Fields)) []byte {
	var f Fields
	f.To(make([]byte, 0, 256)) // as much as most need
	fields(&f)
	return Pad(f.out, 64, 0)
}

// value returns the value that is read with a tag, nil if it is absent.
func (f *Fields) value(tag byte) []byte {
	v := f.values[tag]
	if v.to == 0 {
		return nil
	}
	return f.in[v.from:v.to]
}

// Err returns ErrMalformed for data that was malformed.
func (f *Fields) Err() error { return f.err }

// Reading reports whether f reads.
func (f *Fields) Reading() bool { return f.reading }

// Has reports whether f reads a field with a tag, or writes and there is one.
func (f *Fields) Has(tag byte, is bool) bool {
	if f.reading {
		return f.values[tag].to != 0
	}
	return is
}

// Value writes a value, or returns the value read, which points into the data.
func (f *Fields) Value(tag byte, value []byte) []byte {
	if f.reading {
		return f.value(tag)
	}
	f.out = Append(f.out, tag, value)
	return value
}

// Text is a field that holds a text.
func Text[T ~string](f *Fields, tag byte, p *T) {
	if !f.reading {
		f.out = Append(f.out, tag, *p)
	} else if v := f.value(tag); v != nil {
		*p = T(v)
	}
}

// Uint is a field that holds a number.
func Uint[T ~int | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64](f *Fields, tag byte, p *T) {
	if !f.reading {
		f.out = AppendUint(f.out, tag, uint64(*p))
	} else if v := f.value(tag); v != nil {
		*p = T(f.uint(v))
	}
}

// UintFrom is Uint of a number that begins with first, which is stored as 0.
func UintFrom[T ~uint8](f *Fields, tag byte, p *T, first T) {
	var n T
	if !f.reading {
		n = *p - first
	}
	Uint(f, tag, &n)
	*p = n + first
}

func (f *Fields) uint(value []byte) uint64 {
	r := Reader{Value: value}
	n := r.Uint()
	if r.err != nil {
		f.err = r.err
	}
	return n
}

// Bool is a field that is there for true.
func (f *Fields) Bool(tag byte, p *bool) {
	if !f.reading {
		f.out = AppendBool(f.out, tag, *p)
	} else if v := f.value(tag); v != nil {
		*p = f.uint(v) == 1
	}
}

// Time is a field that holds a time in microseconds.
func (f *Fields) Time(tag byte, p *time.Time) {
	if !f.reading {
		f.out = AppendTime(f.out, tag, *p)
	} else if v := f.value(tag); v != nil {
		*p = time.UnixMicro(int64(f.uint(v))).UTC()
	}
}

// Array is a field that holds the bytes of an array, even of a zero one.
func (f *Fields) Array(tag byte, array []byte) {
	if !f.reading {
		f.out = Append(f.out, tag, array)
	} else {
		copy(array, f.value(tag))
	}
}

// ID is a field that holds an id, absent for zero.
func ID[T ~[16]byte](f *Fields, tag byte, id *T) {
	if f.reading || *id != (T{}) {
		f.Array(tag, (*id)[:])
	}
}

// Items are the fields of a list, with tags from first to last: all of one item, then all of
// the next. A tag that is not higher than the one before it begins the next item.
func Items[T any](f *Fields, first, last byte, list *[]T, fields func(*T, *Fields)) {
	if !f.reading {
		for i := range *list {
			fields(&(*list)[i], f)
		}
		return
	}

	var begins []int
	end, before := 0, last
	for r := Read(f.in); ; {
		at := len(f.in) - len(r.rest)
		if !r.Next() {
			break
		}
		if r.Tag < first || r.Tag > last {
			continue
		}
		if r.Tag <= before {
			begins = append(begins, at)
		}
		end, before = len(f.in)-len(r.rest), r.Tag
	}

	for i, begin := range begins {
		var item T
		var of Fields
		of.From(f.in[begin:append(begins, end)[i+1]])
		fields(&item, &of)
		*list = append(*list, item)
		if of.err != nil {
			f.err = of.err
		}
	}
}
