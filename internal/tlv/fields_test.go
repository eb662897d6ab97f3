package tlv_test

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/tlv"
)

type name string

type record struct {
	text  name
	small uint8
	wide  int
	yes   bool
	at    time.Time
	array [4]byte
	id    [16]byte
	raw   []byte
	inner *record
	items []item
}

// An item may lack all but one of its fields.
type item struct {
	text string
	n    int
}

func (i *item) fields(f *tlv.Fields) {
	tlv.Text(f, 11, &i.text)
	tlv.Uint(f, 12, &i.n)
}

func (r *record) fields(f *tlv.Fields) {
	tlv.Text(f, 1, &r.text)
	tlv.Uint(f, 2, &r.small)
	tlv.Uint(f, 3, &r.wide)
	f.Bool(4, &r.yes)
	f.Time(5, &r.at)
	f.Array(6, r.array[:])
	tlv.ID(f, 7, &r.id)
	r.raw = f.Value(8, r.raw)
	if f.Has(9, r.inner != nil) {
		if r.inner == nil {
			r.inner = new(record)
		}
		tlv.Text(f, 9, &r.inner.text)
		tlv.Uint(f, 10, &r.inner.wide)
	}
	tlv.Items(f, 11, 12, &r.items, (*item).fields)
}

func TestFields(t *testing.T) {
	full := record{"text", 200, 1 << 30, true, time.UnixMicro(1).UTC(), [4]byte{3: 1}, [16]byte{1}, []byte("raw"), &record{text: "inner", wide: 1},
		[]item{{"a", 1}, {"b", 0}, {"c", 2}, {"", 3}}}
	var want []byte
	want = tlv.Append(want, 1, "text")
	want = tlv.AppendUint(want, 2, 200)
	want = tlv.AppendUint(want, 3, 1<<30)
	want = tlv.AppendBool(want, 4, true)
	want = tlv.AppendTime(want, 5, full.at)
	want = tlv.Append(want, 6, full.array[:])
	want = tlv.Append(want, 7, full.id[:])
	want = tlv.Append(want, 8, "raw")
	want = tlv.Append(want, 9, "inner")
	want = tlv.AppendUint(want, 10, 1)
	for _, i := range full.items {
		want = tlv.AppendUint(tlv.Append(want, 11, i.text), 12, uint64(i.n))
	}

	for _, test := range []struct {
		record
		bytes []byte
	}{
		{full, want},
		{record{}, tlv.Append(nil, 6, make([]byte, 4))},
	} {
		var w, r tlv.Fields
		w.To([]byte("before"))
		test.fields(&w)
		if got := bytes.TrimPrefix(w.Bytes(), []byte("before")); !bytes.Equal(got, test.bytes) {
			t.Errorf("wrote %x, want %x", got, test.bytes)
		}

		var got record
		r.From(tlv.Pad(append(tlv.Append(nil, 200, "unknown"), test.bytes...), 64, 0))
		got.fields(&r)
		if r.Err() != nil || !reflect.DeepEqual(got, test.record) {
			t.Errorf("read %+v, want %+v: %v", got, test.record, r.Err())
		}
	}
}

func TestMalformedFields(t *testing.T) {
	for _, data := range [][]byte{{1}, {1, 2, 0}, tlv.Append(nil, 3, make([]byte, 9)), tlv.Append(nil, 5, make([]byte, 9)), tlv.Append(nil, 12, make([]byte, 9))} {
		var f tlv.Fields
		f.From(data)
		new(record).fields(&f)
		if !errors.Is(f.Err(), tlv.ErrMalformed) {
			t.Errorf("%x: %v", data, f.Err())
		}
	}
}
