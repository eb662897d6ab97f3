package seal_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
		k := seal.NewKeys(made)
		if k.Generation != 0 {
			t.Fatalf("generation %d", k.Generation)
		}

		for _, s := range []seal.Series{k.Masters, k.IDs, k.Fingerprints, k.Lookups, k.Audits} {
			if len(s) != 1 || s[0].Number != 1 || s[0].State != seal.Active || !s[0].Created.Equal(made) {
				t.Fatalf("not a first key: %+v", s)
			}
			key := string(hiding.Of(s[0].Key))
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
	k := seal.NewKeys(made)
	before := k.Marshal()
	one, two := k.Next(made, seal.MaxTerms), k.Next(made, seal.MaxTerms)
	if !bytes.Equal(k.Marshal(), before) {
		t.Error("Next changed the keys that it is called on")
	}
	key := func(k *seal.Keys, i int) string { return string(hiding.Of(k.Masters[i].Key)) }
	if key(one, 1) == key(two, 1) || key(one, 1) == key(k, 0) {
		t.Error("two new master keys are the same")
	}

	for i := range 10 {
		next := one.Next(made, seal.MaxTerms)
		if n := uint32(len(next.Masters)); next.Generation != uint32(i+2) || next.Masters[n-1].Number != n {
			t.Fatalf("generation %d, %d masters, the last of term %d", next.Generation, n, next.Masters[n-1].Number)
		}
		rest := *next
		rest.Generation, rest.Masters = one.Generation, slices.Clone(next.Masters[:len(one.Masters)])
		rest.Masters[len(rest.Masters)-1].State = seal.Active
		if !bytes.Equal(rest.Marshal(), one.Marshal()) {
			t.Fatal("a former master key or another field changed")
		}
		one = next
	}

	for ; one != nil; one = one.Next(made, seal.MaxTerms) {
		k = one
	}
	if got := len(k.Masters) + 4; got != seal.MaxTerms {
		t.Errorf("%d keys are the most", got)
	}
	for i := range k.Masters {
		k.Masters[i].Closed, k.Masters[i].Destroyed = made, made
	}
	k.Wrappings = slices.Repeat([]seal.Wrapping{{KeyID: strings.Repeat("x", 255), Since: made}}, seal.MaxWrappings)
	if size := len(k.Marshal()); size > 48<<10 { // of 64 KiB, with a wrapped data key
		t.Errorf("the most keys take %d bytes of a record", size)
	}
}

// TestNextAudit: the former audit key is gone, and its public key stays.
func TestNextAudit(t *testing.T) {
	k := seal.NewKeys(made)
	before, former := k.Marshal(), k.AuditSigner()
	next := k.NextAudit(made, seal.MaxTerms).NextAudit(made, seal.MaxTerms)
	if !bytes.Equal(k.Marshal(), before) {
		t.Error("NextAudit changed the keys that it is called on")
	}
	if a := next.Audits; len(a) != 3 || next.Generation != 2 || a[0].State != seal.Destroyed || !a[0].Key.IsZero() || !a[0].Destroyed.Equal(made) || a[2].State != seal.Active {
		t.Errorf("terms are %+v", next.Audits)
	}

	parsed, err := seal.ParseKeys(next.Marshal())
	if err != nil {
		t.Fatal(err)
	}
	public := parsed.AuditPublic()
	if len(public) != 3 || !former.Public().(ed25519.PublicKey).Equal(public[0]) || !parsed.AuditSigner().Public().(ed25519.PublicKey).Equal(public[2]) || public[1].Equal(public[2]) {
		t.Errorf("public keys are %x", public)
	}
	rest := *next
	rest.Generation, rest.Audits = 0, k.Audits
	if !bytes.Equal(rest.Marshal(), before) {
		t.Error("another field changed")
	}
	if k.NextAudit(made, 5) != nil {
		t.Error("there is no room, and a term")
	}

	// An audit log has MACs under the present key alone.
	box := boxOf(k)
	mac := box.AuditMAC(k.Vault, []byte("content"))
	if box.SetKeys(next); mac == box.AuditMAC(k.Vault, []byte("content")) {
		t.Error("a MAC was made with a destroyed key")
	}
}

// TestWrappedBy: keys remember which key-encryption keys wrapped them, up to a limit.
func TestWrappedBy(t *testing.T) {
	k := seal.NewKeys(made).WrappedBy("a", made).WrappedBy("b", made)
	if again := k.WrappedBy("b", made); len(again.Wrappings) != 2 || again.Generation != 3 {
		t.Errorf("wrapped by the same key: %v, generation %d", again.Wrappings, again.Generation)
	}
	if !k.HadKey("a") || !k.HadKey("b") || k.HadKey("c") || k.KeyID() != "b" {
		t.Errorf("wrapped by %v", k.Wrappings)
	}
	for range 100 {
		k = k.WrappedBy("x", made).WrappedBy("y", made)
	}
	if len(k.Wrappings) != seal.MaxWrappings || k.KeyID() != "y" || k.HadKey("a") {
		t.Errorf("%d wrappings, the last by %s", len(k.Wrappings), k.KeyID())
	}
}

// TestSealKeys: keys open under their data key and associated data, and no others.
func TestSealKeys(t *testing.T) {
	k, dataKey, other := seal.NewKeys(made).WrappedBy("a", made), bytes.Repeat([]byte{1}, seal.KeySize), bytes.Repeat([]byte{2}, seal.KeySize)
	sealed := seal.SealKeys(dataKey, k, []byte("aad"))
	if got, err := seal.OpenKeys(dataKey, sealed, []byte("aad")); err != nil || !bytes.Equal(got.Marshal(), k.Marshal()) {
		t.Fatal(err)
	}
	edited := bytes.Clone(sealed)
	edited[40] ^= 1
	for name, open := range map[string]func() (*seal.Keys, error){
		"another data key": func() (*seal.Keys, error) { return seal.OpenKeys(other, sealed, []byte("aad")) },
		"another aad":      func() (*seal.Keys, error) { return seal.OpenKeys(dataKey, sealed, []byte("aae")) },
		"edited":           func() (*seal.Keys, error) { return seal.OpenKeys(dataKey, edited, []byte("aad")) },
		"cut":              func() (*seal.Keys, error) { return seal.OpenKeys(dataKey, sealed[:20], []byte("aad")) },
		"nothing":          func() (*seal.Keys, error) { return seal.OpenKeys(dataKey, nil, []byte("aad")) },
	} {
		if got, err := open(); got != nil || !errors.Is(err, seal.ErrIntegrity) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestKeysHide: no way of printing keys shows any part of them.
func TestKeysHide(t *testing.T) {
	k := &seal.Keys{
		Vault: uuid.Max, Masters: seal.Series{{Number: 1, State: seal.Active, Key: seal.NewKey(bytes.Repeat([]byte("M"), seal.KeySize))}},
		IDs: only(bytes.Repeat([]byte("I"), seal.KeySize)),
	}
	text, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{string(text), fmt.Sprint(k.Masters, struct{ k seal.Keys }{*k})}
	for _, verb := range []string{"%v", "%+v", "%#v", "%x", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, k), fmt.Sprintf(verb, *k))
	}
	for _, shown := range texts {
		for _, key := range []string{"MMMM", "IIII", "77, 77", "77 77", "73 73", "4d4d", "0x4d", "0x49", "TU1N", "SUlJ"} {
			if strings.Contains(shown, key) {
				t.Errorf("%s shows %s", shown, key)
			}
		}
	}
}

func TestKeysRoundTrip(t *testing.T) {
	k := seal.NewKeys(made)
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
		k = parsed.Next(made, seal.MaxTerms)
	}
}

// TestParseKeysSkipsUnknownTags: a tag of a later version is skipped, so that an older
// version can still read the keys.
func TestParseKeysSkipsUnknownTags(t *testing.T) {
	k := seal.NewKeys(made)
	parsed, err := seal.ParseKeys(tlv.Append(k.Marshal(), 200, "later"))
	if err != nil || !bytes.Equal(parsed.Marshal(), k.Marshal()) {
		t.Errorf("%v", err)
	}
}

func TestParseKeysRefuses(t *testing.T) {
	key := seal.NewKey(bytes.Repeat([]byte{7}, seal.KeySize))
	term := func(number uint32, state seal.State) seal.Term {
		t := seal.Term{Number: number, State: state}
		if state != seal.Destroyed {
			t.Key = key
		}
		return t
	}
	parse := func(edit func(*seal.Keys)) error {
		k := seal.NewKeys(made)
		edit(k)
		_, err := seal.ParseKeys(k.Marshal())
		return err
	}

	for name, edit := range map[string]func(*seal.Keys){
		"a new vault": func(*seal.Keys) {},
		"every state": func(k *seal.Keys) {
			k.Masters = seal.Series{term(2, seal.Destroyed), term(3, seal.Closed), term(5, seal.Readable), term(6, seal.Active), term(7, seal.Pending)}
		},
		"many wrappings": func(k *seal.Keys) {
			k.Wrappings = slices.Repeat([]seal.Wrapping{{KeyID: "a", Since: made}}, seal.MaxWrappings)
		},
	} {
		if err := parse(edit); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, edit := range map[string]func(*seal.Keys){
		"no vault":           func(k *seal.Keys) { k.Vault = uuid.Nil },
		"no master":          func(k *seal.Keys) { k.Masters = nil },
		"no id key":          func(k *seal.Keys) { k.IDs = nil },
		"two id keys":        func(k *seal.Keys) { k.IDs = seal.Series{term(1, seal.Readable), term(2, seal.Active)} },
		"no fingerprint key": func(k *seal.Keys) { k.Fingerprints = nil },
		"no lookup key":      func(k *seal.Keys) { k.Lookups = nil },
		"no audit key":       func(k *seal.Keys) { k.Audits = nil },
		"no number":          func(k *seal.Keys) { k.Masters[0].Number = 0 },
		"no state":           func(k *seal.Keys) { k.Masters[0].State = 0 },
		"unknown state":      func(k *seal.Keys) { k.Masters[0].State = seal.Destroyed + 1 },
		"no key":             func(k *seal.Keys) { k.Masters[0].Key = seal.Key{} },
		"short key":          func(k *seal.Keys) { k.Masters[0].Key = seal.NewKey(make([]byte, 31)) },
		"long key":           func(k *seal.Keys) { k.Masters[0].Key = seal.NewKey(make([]byte, 33)) },
		"none active":        func(k *seal.Keys) { k.Masters[0].State = seal.Readable },
		"two active":         func(k *seal.Keys) { k.Masters = seal.Series{term(1, seal.Active), term(2, seal.Active)} },
		"same number":        func(k *seal.Keys) { k.Masters = seal.Series{term(1, seal.Readable), term(1, seal.Active)} },
		"falling":            func(k *seal.Keys) { k.Masters = seal.Series{term(2, seal.Readable), term(1, seal.Active)} },
		"readable after":     func(k *seal.Keys) { k.Masters = seal.Series{term(1, seal.Active), term(2, seal.Readable)} },
		"pending before":     func(k *seal.Keys) { k.Masters = seal.Series{term(1, seal.Pending), term(2, seal.Active)} },
		"two pending": func(k *seal.Keys) {
			k.Masters = seal.Series{term(1, seal.Active), term(2, seal.Pending), term(3, seal.Pending)}
		},
		"destroyed with key": func(k *seal.Keys) {
			k.Masters = seal.Series{{Number: 1, State: seal.Destroyed, Key: key}, term(2, seal.Active)}
		},
		"destroyed audit key without its public key": func(k *seal.Keys) {
			k.Audits = seal.Series{term(1, seal.Destroyed), term(2, seal.Active)}
		},
		"public key of another": func(k *seal.Keys) {
			k.Masters = seal.Series{{Number: 1, State: seal.Destroyed, Public: make([]byte, 32)}, term(2, seal.Active)}
		},
		"short public key": func(k *seal.Keys) {
			k.Audits = seal.Series{{Number: 1, State: seal.Destroyed, Public: make([]byte, 31)}, term(2, seal.Active)}
		},
		"too many": func(k *seal.Keys) {
			k.Masters = nil
			for n := range uint32(seal.MaxTerms) {
				k.Masters = append(k.Masters, term(n+1, seal.Readable))
			}
			k.Masters[len(k.Masters)-1].State = seal.Active
		},
		"too many wrappings": func(k *seal.Keys) {
			k.Wrappings = slices.Repeat([]seal.Wrapping{{KeyID: "a"}}, seal.MaxWrappings+1)
		},
	} {
		if err := parse(edit); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}

	data := seal.NewKeys(made).Next(made, seal.MaxTerms).Marshal()
	for n := range len(data) {
		if _, err := seal.ParseKeys(data[:n]); err == nil {
			t.Errorf("cut to %d of %d bytes: accepted", n, len(data))
		}
	}
}

func FuzzParseKeys(f *testing.F) {
	k := seal.NewKeys(made)
	f.Add(k.Marshal())
	f.Add(k.Next(made, seal.MaxTerms).Next(made, seal.MaxTerms).Marshal())
	f.Add([]byte{1, 16})

	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := seal.ParseKeys(data)
		if err != nil {
			return
		}

		for i, m := range k.Masters {
			if m.Number == 0 || i > 0 && m.Number <= k.Masters[i-1].Number {
				t.Fatalf("terms do not increase: %d", m.Number)
			}
		}

		again, err := seal.ParseKeys(k.Marshal())
		if err != nil || !bytes.Equal(again.Marshal(), k.Marshal()) {
			t.Fatalf("the parsed keys do not survive a round trip: %v", err)
		}
		if next := k.Next(made, seal.MaxTerms+1); len(next.Masters) != len(k.Masters)+1 {
			t.Fatal("no next term")
		}
	})
}
