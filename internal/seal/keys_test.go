package seal_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/google/uuid"
)

func TestNewKeys(t *testing.T) {
	seen := map[string]bool{string(make([]byte, seal.KeySize)): true}
	vaults := map[uuid.UUID]bool{uuid.Nil: true}
	for range 100 {
		k := seal.NewKeys()
		if len(k.Masters) != 1 || k.Masters[0].Term != 1 || k.Generation != 0 {
			t.Fatalf("not the first term: %d masters, generation %d", len(k.Masters), k.Generation)
		}

		for _, key := range []seal.Key{k.Masters[0].Key, k.ID, k.Fingerprint, k.Lookup, k.Audit} {
			key := string(hiding.Of(key))
			if seen[key] || len(key) != seal.KeySize {
				t.Fatal("two keys are the same, or one is zero")
			}
			seen[key] = true
		}

		if vaults[k.Vault] {
			t.Fatal("two vaults are the same")
		}
		vaults[k.Vault] = true
	}
}

func TestNext(t *testing.T) {
	k := seal.NewKeys()
	before := k.Marshal()
	one, two := k.Next(), k.Next()
	if !bytes.Equal(k.Marshal(), before) {
		t.Error("Next changed the keys that it is called on")
	}
	key := func(k *seal.Keys, i int) string { return string(hiding.Of(k.Masters[i].Key)) }
	if key(one, 1) == key(two, 1) || key(one, 1) == key(k, 0) {
		t.Error("two new master keys are the same")
	}

	for i := range 10 {
		next := one.Next()
		if n := uint32(len(next.Masters)); next.Generation != uint32(i+2) || next.Masters[n-1].Term != n {
			t.Fatalf("generation %d, %d masters, the last of term %d", next.Generation, n, next.Masters[n-1].Term)
		}
		rest := *next
		rest.Generation, rest.Masters = one.Generation, next.Masters[:len(one.Masters)]
		if !bytes.Equal(rest.Marshal(), one.Marshal()) {
			t.Fatal("a former master key or another field changed")
		}
		one = next
	}
}

// TestKeysHide: no way of printing keys shows any part of them.
func TestKeysHide(t *testing.T) {
	k := &seal.Keys{
		Vault: uuid.Max, Masters: []seal.Master{{Term: 1, Key: seal.NewKey(bytes.Repeat([]byte("M"), seal.KeySize))}},
		ID: seal.NewKey(bytes.Repeat([]byte("I"), seal.KeySize)),
	}
	text, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{string(text), fmt.Sprintf("%v %+v %#v %x %d", k, *k, k, k, k), fmt.Sprint(k.Masters, struct{ k seal.Keys }{*k})} {
		for _, key := range []string{"MMMM", "IIII", "77, 77", "77 77", "73 73", "4d4d", "0x4d", "0x49", "TU1N", "SUlJ"} {
			if strings.Contains(shown, key) {
				t.Errorf("%s shows %s", shown, key)
			}
		}
	}
}

func TestKeysRoundTrip(t *testing.T) {
	k := seal.NewKeys()
	for range 20 {
		data := k.Marshal()
		parsed, err := seal.ParseKeys(data)
		if err != nil {
			t.Fatal(err)
		}
		clear(data) // the result must not refer to it
		if !bytes.Equal(parsed.Marshal(), k.Marshal()) {
			t.Fatalf("%d masters do not survive a round trip", len(k.Masters))
		}
		k = parsed.Next()
	}
}

// TestParseKeysSkipsUnknownTags: a tag of a later version is skipped, so that an older
// version can still read the keys.
func TestParseKeysSkipsUnknownTags(t *testing.T) {
	k := seal.NewKeys()
	parsed, err := seal.ParseKeys(tlv.Append(k.Marshal(), 200, "later"))
	if err != nil || !bytes.Equal(parsed.Marshal(), k.Marshal()) {
		t.Errorf("%v", err)
	}
}

func TestParseKeysRefuses(t *testing.T) {
	const vault, generation, term, master, id, fingerprint, lookup, audit = 1, 2, 3, 4, 5, 6, 7, 8
	key := bytes.Repeat([]byte{7}, seal.KeySize)
	type field struct {
		tag   byte
		value []byte
	}
	whole := []field{
		{vault, key[:16]}, {generation, []byte{9}}, {term, []byte{1}}, {master, key}, {term, []byte{2}}, {master, key},
		{id, key}, {fingerprint, key}, {lookup, key}, {audit, key},
	}

	parse := func(fields []field) error {
		var b []byte
		for _, f := range fields {
			b = tlv.Append(b, f.tag, f.value)
		}
		_, err := seal.ParseKeys(b)
		return err
	}

	if err := parse(whole); err != nil {
		t.Fatal(err)
	}

	with := func(i int, fields ...field) []field {
		return append(append(append([]field{}, whole[:i]...), fields...), whole[i+1:]...)
	}

	for name, fields := range map[string][]field{
		"nothing":                   nil,
		"no vault":                  with(0),
		"zero vault":                with(0, field{vault, make([]byte, 16)}),
		"short vault":               with(0, field{vault, key[:15]}),
		"long vault":                with(0, field{vault, key[:17]}),
		"large generation":          with(1, field{generation, []byte{1, 0, 0, 0, 0}}),
		"huge generation":           with(1, field{generation, make([]byte, 9)}),
		"no term":                   with(2),
		"large term":                with(2, field{term, []byte{1, 0, 0, 0, 1}}),
		"same term twice":           with(4),
		"falling terms":             with(2, field{term, []byte{3}}),
		"short master":              with(3, field{master, key[:31]}),
		"long master":               with(3, field{master, append([]byte{1}, key...)}),
		"no master":                 append(append([]field{}, whole[:2]...), whole[6:]...),
		"no id key":                 with(6),
		"short id key":              with(6, field{id, key[:31]}),
		"long id key":               with(6, field{id, append([]byte{1}, key...)}),
		"no fingerprint key":        with(7),
		"no lookup key":             with(8),
		"no audit key":              with(9),
		"two id keys, no audit key": with(9, field{id, key}),
		"two id keys":               with(6, field{id, key}, field{id, key}),
		"two vaults":                with(0, field{vault, key[:16]}, field{vault, key[:16]}),
	} {
		if err := parse(fields); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}

	data := seal.NewKeys().Next().Marshal()
	for n := range len(data) {
		if _, err := seal.ParseKeys(data[:n]); err == nil {
			t.Errorf("cut to %d of %d bytes: accepted", n, len(data))
		}
	}
}

func FuzzParseKeys(f *testing.F) {
	k := seal.NewKeys()
	f.Add(k.Marshal())
	f.Add(k.Next().Next().Marshal())
	f.Add([]byte{1, 16})

	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := seal.ParseKeys(data)
		if err != nil {
			return
		}

		for i, m := range k.Masters {
			if m.Term == 0 || i > 0 && m.Term <= k.Masters[i-1].Term {
				t.Fatalf("terms do not increase: %d", m.Term)
			}
		}

		again, err := seal.ParseKeys(k.Marshal())
		if err != nil || !bytes.Equal(again.Marshal(), k.Marshal()) {
			t.Fatalf("the parsed keys do not survive a round trip: %v", err)
		}
		if next := k.Next(); len(next.Masters) != len(k.Masters)+1 {
			t.Fatal("no next term")
		}
	})
}
