package tlv_test

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/tlv"
	"pgregory.net/rapid"
)

func TestRoundTrip(t *testing.T) {
	type field struct {
		tag   byte
		value []byte
	}
	rapid.Check(t, func(t *rapid.T) {
		fields := rapid.SliceOf(rapid.Custom(func(t *rapid.T) field {
			return field{
				rapid.ByteRange(1, 255).Draw(t, "tag"),
				rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "value"),
			}
		})).Draw(t, "fields")
		var b []byte
		for _, f := range fields {
			b = tlv.Append(b, f.tag, f.value)
		}
		b = tlv.Pad(b, 64, 0)
		if len(b)%64 != 0 {
			t.Fatalf("padded to %d bytes", len(b))
		}
		r := tlv.Read(b)
		for _, f := range fields {
			if !r.Next() || r.Tag != f.tag || !bytes.Equal(r.Value, f.value) {
				t.Fatalf("got %d %x, want %d %x", r.Tag, r.Value, f.tag, f.value)
			}
		}
		if r.Next() || r.Err() != nil {
			t.Fatalf("after the last field: %d, %v", r.Tag, r.Err())
		}
	})
}

func TestUint(t *testing.T) {
	for _, n := range []uint64{1, 255, 256, math.MaxUint32, math.MaxUint64} {
		r := tlv.Read(tlv.AppendUint(nil, 7, n))
		if !r.Next() || r.Uint() != n {
			t.Errorf("got %d, want %d", r.Uint(), n)
		}
	}
	if b := tlv.AppendUint(nil, 7, 0); len(b) != 0 {
		t.Errorf("zero is %x, want nothing", b)
	}
}

func TestBool(t *testing.T) {
	r := tlv.Read(tlv.AppendBool(nil, 7, true))
	if !r.Next() || !r.Bool() {
		t.Error("true is read as false")
	}
	if b := tlv.AppendBool(nil, 7, false); len(b) != 0 {
		t.Errorf("false is %x, want nothing", b)
	}
	if r = tlv.Read(tlv.AppendUint(nil, 7, 2)); !r.Next() || r.Bool() {
		t.Error("2 is read as true")
	}
}

func TestTime(t *testing.T) {
	for _, at := range []time.Time{time.UnixMicro(1).UTC(), time.Date(2026, 1, 2, 3, 4, 5, 678e3, time.UTC), time.UnixMicro(-1).UTC()} {
		r := tlv.Read(tlv.AppendTime(nil, 7, at.In(time.FixedZone("", 3600))))
		if !r.Next() || r.Time() != at {
			t.Errorf("got %v, want %v", r.Time(), at)
		}
	}
	if b := tlv.AppendTime(nil, 7, time.Time{}); len(b) != 0 {
		t.Errorf("the zero time is %x, want nothing", b)
	}
}

func TestMalformed(t *testing.T) {
	for _, data := range [][]byte{
		{1}, {1, 5, 0}, {1, 0x80}, {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0},
	} {
		r := tlv.Read(data)
		if r.Next() || r.Err() == nil {
			t.Errorf("%x: no error", data)
		}
	}
	r := tlv.Read(tlv.Append(nil, 1, make([]byte, 9)))
	if r.Next(); r.Uint() != 0 || r.Err() == nil {
		t.Error("a number of nine bytes: no error")
	}
}
