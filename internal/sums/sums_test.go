package sums_test

import (
	"testing"

	"github.com/cardvault/cardvault/internal/sums"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

var elements = rapid.Custom(func(t *rapid.T) (e [sums.ElementSize]byte) {
	copy(e[:], rapid.SliceOfN(rapid.Byte(), len(e), len(e)).Draw(t, "element"))
	return e
})

var places = rapid.Custom(func(t *rapid.T) sums.Place {
	return sums.Place{Account: uuid.UUID{rapid.ByteMax(2).Draw(t, "account")}, Kind: store.Kind(rapid.ByteMax(3).Draw(t, "kind"))}
})

// A set depends on its records alone, and neither on their order nor on records of in between.
func TestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type member struct {
			at      sums.Place
			element [sums.ElementSize]byte
		}
		of := func(members []member) sums.Set {
			s := sums.Set{}
			for _, m := range members {
				s.Add(m.at, sums.Of(m.element))
			}
			return s
		}
		draw := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) member { return member{places.Draw(t, "at"), elements.Draw(t, "e")} }), 0, 20)
		stay, leave := draw.Draw(t, "stay"), draw.Draw(t, "leave")

		all := of(rapid.Permutation(append(stay[:len(stay):len(stay)], leave...)).Draw(t, "order"))
		parsed, err := sums.Parse(all.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		parsed.Subtract(of(leave))
		equal(t, parsed, of(stay))
		parsed.AddAll(of(leave))
		equal(t, parsed, all)
	})
}

func equal(t *rapid.T, a, b sums.Set) {
	places := a.Places()
	if len(places) != len(b) {
		t.Fatalf("%d places, want %d", len(a), len(b))
	}
	for i, at := range places {
		if a[at] != b[at] {
			t.Fatalf("sum %d differs", i)
		}
	}
}

func TestMalformed(t *testing.T) {
	s := sums.Set{{Kind: 1}: sums.Of([sums.ElementSize]byte{1})}
	text := s.Append(nil)
	for _, bad := range [][]byte{text[1:], append(text, text...)} {
		if _, err := sums.Parse(bad); err == nil {
			t.Errorf("a text of %d bytes is read", len(bad))
		}
	}
}
