package seal_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// overhead is the number of bytes that sealing adds to a plaintext: header, nonce and tag.
const overhead = 6 + 12 + 16

var errNoMore = errors.New("no more")

// boxOf returns a Box without a limit on seals.
func boxOf(k *seal.Keys) *seal.Box {
	var b *seal.Box
	b = seal.NewBox(k, func() error { b.Grant(b.Keys(), 1<<20); return nil })
	return b
}

// sealPart returns plain sealed as a part of r, and does not change r.
func sealPart(t testing.TB, b *seal.Box, r *store.Record, part string, plain []byte) []byte {
	t.Helper()
	c := *r
	var err error
	if part == "secret" {
		err = b.SealSecret(&c, plain)
	} else {
		err = b.SealShown(&c, plain)
	}
	if err != nil {
		t.Fatal(err)
	}
	return append(c.Shown, c.Secret...)
}

// open opens sealed as a part of r, and changes neither.
func open(b *seal.Box, r *store.Record, part string, sealed []byte) ([]byte, error) {
	c := *r
	if part == "secret" {
		c.Secret = bytes.Clone(sealed)
		return b.OpenSecret(&c)
	}
	c.Shown = bytes.Clone(sealed)
	return b.OpenShown(&c)
}

var bothParts = []string{"shown", "secret"}

// sample returns a record with every column set.
func sample() *store.Record {
	return &store.Record{
		Kind:    5,
		ID:      uuid.MustParse("0192f7a0-5c3e-7a11-9b2c-3d4e5f607182"),
		Account: uuid.MustParse("11111111-2222-4333-8444-555555555555"),
		Parent:  uuid.MustParse("0192f7a0-5c3e-7000-8000-000000000001"),
		Class:   3,
		Due:     time.UnixMicro(1_800_000_000_123_456),
		Lookup:  [][]byte{bytes.Repeat([]byte{0xa1}, 16), bytes.Repeat([]byte{0xb2}, 16)},
		Version: 258,
	}
}

func TestRoundTrip(t *testing.T) {
	box := boxOf(seal.NewKeys(made))
	id := rapid.Custom(func(t *rapid.T) uuid.UUID {
		return uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
	})
	rapid.Check(t, func(t *rapid.T) {
		plain := rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(t, "plain")
		r := &store.Record{
			Kind:    store.Kind(rapid.Byte().Draw(t, "kind")),
			ID:      id.Draw(t, "id"),
			Account: id.Draw(t, "account"),
			Parent:  id.Draw(t, "parent"),
			Class:   rapid.Byte().Draw(t, "class"),
			Version: rapid.Uint64().Draw(t, "version"),
			Lookup:  rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 64), 0, 8).Draw(t, "lookup"),
		}
		if rapid.Bool().Draw(t, "has due") {
			r.Due = time.UnixMicro(rapid.Int64Range(-1<<55, 1<<55).Draw(t, "due"))
		}

		if err := errors.Join(box.SealShown(r, plain), box.SealSecret(r, plain)); err != nil {
			t.Fatal(err)
		}
		for _, sealed := range [][]byte{r.Shown, r.Secret} {
			if len(sealed) != len(plain)+overhead {
				t.Fatalf("%d bytes sealed to %d", len(plain), len(sealed))
			}
			if len(plain) >= 8 && bytes.Contains(sealed, plain) {
				t.Fatal("the plaintext shows")
			}
		}

		shown, err1 := box.OpenShown(r)
		secret, err2 := box.OpenSecret(r)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(shown, plain) || !bytes.Equal(secret, plain) {
			t.Fatalf("sealed %x, opened %x and %x", plain, shown, secret)
		}
	})
}

func TestNoSealIsLikeAnother(t *testing.T) {
	box, r := boxOf(seal.NewKeys(made)), sample()
	seen := map[string]bool{}
	for range 1000 {
		seen[string(sealPart(t, box, r, "shown", []byte("the same"))[6:18])] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d nonces for 1000 seals", len(seen))
	}
}

// TestTransplant: a part opens only in its own place. The ids of accounts, records and
// parents are the same two, so that one field could be mistaken for another.
func TestTransplant(t *testing.T) {
	first := seal.NewKeys(made)
	other := *first // differs only in the vault
	other.Vault = uuid.New()
	var vaults [2]struct{ byTerm [2]*seal.Box }
	for i, k := range []*seal.Keys{first, &other} {
		vaults[i].byTerm = [2]*seal.Box{boxOf(k)}
	}
	next := first.Next(made, seal.MaxTerms)
	vaults[0].byTerm[1] = boxOf(next)
	otherNext := *next
	otherNext.Vault = other.Vault
	vaults[1].byTerm[1] = boxOf(&otherNext)

	x, y := uuid.New(), uuid.New()
	type place struct {
		vault, term         int
		kind                store.Kind
		account, id, parent uuid.UUID
		part                string
	}
	record := func(p place) *store.Record {
		return &store.Record{Kind: p.kind, Account: p.account, ID: p.id, Parent: p.parent, Version: 1}
	}
	var places []place
	for vault := range 2 {
		for term := range 2 {
			for _, kind := range []store.Kind{1, 2} {
				for _, account := range []uuid.UUID{x, y} {
					for _, id := range []uuid.UUID{x, y} {
						for _, parent := range []uuid.UUID{uuid.Nil, x, y} {
							for _, part := range bothParts {
								places = append(places, place{vault, term, kind, account, id, parent, part})
							}
						}
					}
				}
			}
		}
	}

	moves := 0
	for _, from := range places {
		sealed := sealPart(t, vaults[from.vault].byTerm[from.term], record(from), from.part, []byte("mine"))
		for _, to := range places {
			// The keys with both terms open what the first term sealed.
			box := vaults[to.vault].byTerm[1]
			binary.BigEndian.PutUint32(sealed[2:], uint32(to.term+1))
			plain, err := open(box, record(to), to.part, sealed)
			switch {
			case to == from && (err != nil || string(plain) != "mine"):
				t.Fatalf("%+v: opened %q, %v", from, plain, err)
			case to != from && !errors.Is(err, seal.ErrIntegrity):
				t.Fatalf("moved from %+v\nto %+v: opened %q, %v", from, to, plain, err)
			case to != from:
				moves++
			}
		}
	}
	if n := len(places) * (len(places) - 1); moves != n || n < 1000 {
		t.Errorf("%d of %d moves refused", moves, n)
	}
}

// TestMutableColumns: the shown part detects a change of any column. The secret part still
// opens after changes that are normal in the life of a record.
func TestMutableColumns(t *testing.T) {
	box := boxOf(seal.NewKeys(made))
	for name, change := range map[string]func(r *store.Record){
		"class":               func(r *store.Record) { r.Class++ },
		"no class":            func(r *store.Record) { r.Class = 0 },
		"due later":           func(r *store.Record) { r.Due = r.Due.Add(time.Microsecond) },
		"due earlier":         func(r *store.Record) { r.Due = r.Due.Add(-time.Microsecond) },
		"due never":           func(r *store.Record) { r.Due = time.Time{} },
		"due 1970":            func(r *store.Record) { r.Due = time.UnixMicro(0) },
		"version before":      func(r *store.Record) { r.Version-- },
		"version after":       func(r *store.Record) { r.Version++ },
		"hash changed":        func(r *store.Record) { r.Lookup[1][3] ^= 1 },
		"first hash removed":  func(r *store.Record) { r.Lookup = r.Lookup[1:] },
		"last hash removed":   func(r *store.Record) { r.Lookup = r.Lookup[:1] },
		"no hash":             func(r *store.Record) { r.Lookup = nil },
		"hash added":          func(r *store.Record) { r.Lookup = append(r.Lookup, r.Lookup[0]) },
		"empty hash added":    func(r *store.Record) { r.Lookup = append(r.Lookup, nil) },
		"hashes swapped":      func(r *store.Record) { slices.Reverse(r.Lookup) },
		"hashes joined":       func(r *store.Record) { r.Lookup = [][]byte{slices.Concat(r.Lookup...)} },
		"byte moved forth":    func(r *store.Record) { moveByte(r, 15) },
		"byte moved back":     func(r *store.Record) { moveByte(r, 17) },
		"all moved to first":  func(r *store.Record) { moveByte(r, 32) },
		"all moved to second": func(r *store.Record) { moveByte(r, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			r := sample()
			shown, secret := sealPart(t, box, r, "shown", []byte("s")), sealPart(t, box, r, "secret", []byte("s"))
			if plain, err := open(box, r, "shown", shown); err != nil || string(plain) != "s" {
				t.Fatalf("unchanged: %q, %v", plain, err)
			}

			change(r)
			if _, err := open(box, r, "shown", shown); !errors.Is(err, seal.ErrIntegrity) {
				t.Errorf("shown part: %v", err)
			}
			if plain, err := open(box, r, "secret", secret); err != nil || string(plain) != "s" {
				t.Errorf("secret part: %q, %v", plain, err)
			}
		})
	}
}

// moveByte splits the bytes of both hashes again, with n of them in the first.
func moveByte(r *store.Record, n int) {
	all := slices.Concat(r.Lookup...)
	r.Lookup = [][]byte{all[:n], all[n:]}
}

func TestColumnBitFlips(t *testing.T) {
	box := boxOf(seal.NewKeys(made))
	flip := func(b []byte, bit int) { b[bit/8] ^= 1 << (bit % 8) }
	for _, c := range []struct {
		name    string
		bits    int
		mutable bool
		flip    func(r *store.Record, bit int)
	}{
		{"kind", 8, false, func(r *store.Record, bit int) { r.Kind ^= 1 << bit }},
		{"id", 128, false, func(r *store.Record, bit int) { flip(r.ID[:], bit) }},
		{"account", 128, false, func(r *store.Record, bit int) { flip(r.Account[:], bit) }},
		{"parent", 128, false, func(r *store.Record, bit int) { flip(r.Parent[:], bit) }},
		{"class", 8, true, func(r *store.Record, bit int) { r.Class ^= 1 << bit }},
		{"due", 56, true, func(r *store.Record, bit int) { r.Due = time.UnixMicro(r.Due.UnixMicro() ^ 1<<bit) }},
		{"version", 64, true, func(r *store.Record, bit int) { r.Version ^= 1 << bit }},
		{"first hash", 128, true, func(r *store.Record, bit int) { flip(r.Lookup[0], bit) }},
		{"second hash", 128, true, func(r *store.Record, bit int) { flip(r.Lookup[1], bit) }},
	} {
		r := sample()
		shown, secret := sealPart(t, box, r, "shown", []byte("s")), sealPart(t, box, r, "secret", []byte("s"))

		for bit := range c.bits {
			r := sample()
			c.flip(r, bit)
			if _, err := open(box, r, "shown", shown); !errors.Is(err, seal.ErrIntegrity) {
				t.Errorf("bit %d of %s, shown part: %v", bit, c.name, err)
			}

			var want error
			if !c.mutable {
				want = seal.ErrIntegrity
			}
			if _, err := open(box, r, "secret", secret); !errors.Is(err, want) {
				t.Errorf("bit %d of %s, secret part: %v, want %v", bit, c.name, err, want)
			}
		}
	}
}

func TestSealedBitFlips(t *testing.T) {
	keys := seal.NewKeys(made)
	box, r := boxOf(keys.Next(made, seal.MaxTerms).Next(made, seal.MaxTerms)), sample() // terms 1, 2 and 3
	for _, part := range bothParts {
		sealed := sealPart(t, box, r, part, []byte("a plaintext of some length"))
		for bit := range len(sealed) * 8 {
			sealed[bit/8] ^= 1 << (bit % 8)
			want := seal.ErrIntegrity
			if term := binary.BigEndian.Uint32(sealed[2:]); term < 1 || term > 3 {
				want = seal.ErrUnknownTerm
			}

			if plain, err := open(box, r, part, sealed); !errors.Is(err, want) || plain != nil {
				t.Errorf("%s part, bit %d: opened %q, %v; want %v", part, bit, plain, err, want)
			}
			sealed[bit/8] ^= 1 << (bit % 8)
		}

		if _, err := open(box, r, part, sealed); err != nil {
			t.Errorf("%s part, not flipped: %v", part, err)
		}
	}
}

func TestTruncation(t *testing.T) {
	box, r := boxOf(seal.NewKeys(made)), sample()
	for _, part := range bothParts {
		sealed := sealPart(t, box, r, part, []byte("a plaintext of some length"))
		for n := range len(sealed) {
			if _, err := open(box, r, part, sealed[:n]); !errors.Is(err, seal.ErrIntegrity) {
				t.Errorf("%s part cut to %d of %d bytes: %v", part, n, len(sealed), err)
			}
			if _, err := open(box, r, part, sealed[n+1:]); err == nil {
				t.Errorf("%s part without its first %d bytes opens", part, n+1)
			}
		}

		if _, err := open(box, r, part, append(sealed, 0)); !errors.Is(err, seal.ErrIntegrity) {
			t.Errorf("%s part with one more byte: %v", part, err)
		}
	}
}

func TestTerms(t *testing.T) {
	k1 := seal.NewKeys(made)
	k2 := k1.Next(made, seal.MaxTerms)
	b1, b2, r := boxOf(k1), boxOf(k2), sample()
	for _, part := range bothParts {
		old, young := sealPart(t, b1, r, part, []byte("old")), sealPart(t, b2, r, part, []byte("young"))
		if plain, err := open(b2, r, part, old); err != nil || string(plain) != "old" {
			t.Errorf("former term: %q, %v", plain, err)
		}
		if _, err := open(b1, r, part, young); !errors.Is(err, seal.ErrUnknownTerm) {
			t.Errorf("term that the keys lack: %v", err)
		}

		b := boxOf(k1)
		b.SetKeys(k2)
		if plain, err := open(b, r, part, young); err != nil || string(plain) != "young" {
			t.Errorf("after SetKeys: %q, %v", plain, err)
		}

		// An implementation that tried the other key would open this. It is sealed under the
		// first master key, but marked throughout as under the second.
		key := rawKey(hiding.Of(k1.Masters[0].Key), part, k1.Vault, r.Account)
		forged := rawSeal(key, make([]byte, 12), []byte("forged"), rawAAD(k1.Vault, r, part, 2), 2)
		if plain, err := open(b2, r, part, forged); !errors.Is(err, seal.ErrIntegrity) {
			t.Errorf("key of another term: opened %q, %v", plain, err)
		}
		forged = rawSeal(key, make([]byte, 12), []byte("forged"), rawAAD(k1.Vault, r, part, 9), 9)
		if plain, err := open(b2, r, part, forged); !errors.Is(err, seal.ErrUnknownTerm) {
			t.Errorf("unknown term: opened %q, %v", plain, err)
		}
	}
}

func TestOpenDecryptsInPlace(t *testing.T) {
	box, r := boxOf(seal.NewKeys(made)), sample()
	plain := []byte("plaintext")
	if err := errors.Join(box.SealShown(r, plain), box.SealSecret(r, plain)); err != nil {
		t.Fatal(err)
	}
	if string(plain) != "plaintext" {
		t.Error("sealing changed its input")
	}

	for _, p := range []struct {
		name   string
		open   func(*store.Record) ([]byte, error)
		sealed []byte
	}{{"shown", box.OpenShown, r.Shown}, {"secret", box.OpenSecret, r.Secret}} {
		got, err := p.open(r)
		if err != nil || string(got) != "plaintext" {
			t.Fatalf("%s part: %q, %v", p.name, got, err)
		}
		if !bytes.Contains(p.sealed, got) {
			t.Errorf("%s part was decrypted elsewhere", p.name)
		}

		clear(got)
		if bytes.Contains(p.sealed, []byte("plain")) {
			t.Errorf("clearing the plaintext of the %s part leaves some of it behind", p.name)
		}
		if _, err := p.open(r); !errors.Is(err, seal.ErrIntegrity) {
			t.Errorf("%s part opened twice: %v", p.name, err)
		}
	}
}

// TestGrantInBubble: a refill that takes time ends in a bubble, although others wait for it.
func TestGrantInBubble(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var box *seal.Box
		box = seal.NewBox(seal.NewKeys(made), func() error {
			time.Sleep(time.Minute)
			box.Grant(box.Keys(), 10)
			return nil
		})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := box.SealShown(sample(), nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

func TestGrantIsNeverExceeded(t *testing.T) {
	const block, blocks, workers = 700, 100, 4
	var inside, refills atomic.Int32
	var box *seal.Box
	box = seal.NewBox(seal.NewKeys(made), func() error {
		if inside.Add(1) != 1 {
			t.Error("refill is called twice at the same time")
		}
		defer inside.Add(-1)
		if refills.Add(1) > blocks {
			return errNoMore
		}
		box.Grant(box.Keys(), block)
		return nil
	})

	var sealed atomic.Int32
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				if err := box.SealShown(sample(), nil); err != nil {
					if !errors.Is(err, errNoMore) {
						t.Error(err)
					}
					return
				}
				sealed.Add(1)
			}
		})
	}

	wg.Wait()
	if n := sealed.Load(); n != block*blocks {
		t.Errorf("%d seals with %d granted", n, block*blocks)
	}

	box.Grant(box.Keys(), 1)
	r := sample()
	if err := box.SealShown(r, nil); err != nil {
		t.Errorf("granted more: %v", err)
	}
	r.Shown = []byte("former")
	if err := box.SealShown(r, nil); !errors.Is(err, errNoMore) || r.Shown != nil {
		t.Errorf("nothing granted: sealed %x, %v", r.Shown, err)
	}
}

func TestSetKeys(t *testing.T) {
	k1 := seal.NewKeys(made)
	k2 := k1.Next(made, seal.MaxTerms)
	box := seal.NewBox(k1, func() error { return errNoMore })
	box.Grant(box.Keys(), 10)
	box.SetKeys(k1) // not a later generation: changes nothing
	if err := box.SealShown(sample(), nil); err != nil {
		t.Fatal(err)
	}

	box.SetKeys(k2)
	if box.Keys() != k2 {
		t.Error("the later generation was not taken")
	}
	if err := box.SealShown(sample(), nil); !errors.Is(err, errNoMore) {
		t.Errorf("a grant for the former term is used for the next: %v", err)
	}

	box.Grant(box.Keys(), 1)
	box.SetKeys(k1)
	if box.Keys() != k2 {
		t.Error("an earlier generation was taken")
	}

	r := sample()
	if err := box.SealShown(r, nil); err != nil {
		t.Fatal(err)
	}
	if term := binary.BigEndian.Uint32(r.Shown[2:]); term != 2 {
		t.Errorf("sealed under term %d", term)
	}
}

// TestSetKeysAmongSeals: the second term has no grant, so no seal may use it, whenever the
// keys change.
func TestSetKeysAmongSeals(t *testing.T) {
	keys := seal.NewKeys(made)
	next := keys.Next(made, seal.MaxTerms)
	for range 500 {
		box := seal.NewBox(keys, func() error { return errNoMore })
		box.Grant(box.Keys(), 1<<30)
		started := make(chan struct{})
		start := sync.OnceFunc(func() { close(started) })

		var wg sync.WaitGroup
		wg.Go(func() {
			r := sample()
			for {
				err := box.SealSecret(r, nil)
				start()
				if errors.Is(err, errNoMore) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}

				if term := binary.BigEndian.Uint32(r.Secret[2:]); term != 1 {
					t.Errorf("sealed under term %d", term)
					return
				}
			}
		})

		<-started
		box.SetKeys(next)
		wg.Wait()
	}
}

// TestConcurrentUse has more accounts than a Box keeps keys for.
func TestConcurrentUse(t *testing.T) {
	const accounts, workers = 5000, 4
	keys := seal.NewKeys(made)
	box := boxOf(keys)

	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range accounts {
				// Every worker meets every account, half of them in reverse.
				n := i
				if w%2 == 1 {
					n = accounts - 1 - i
				}

				r := sample()
				binary.BigEndian.PutUint32(r.Account[:], uint32(n))
				want := fmt.Sprint(w, n)
				if err := errors.Join(box.SealShown(r, []byte(want)), box.SealSecret(r, []byte(want))); err != nil {
					t.Error(err)
					return
				}

				shown, err1 := box.OpenShown(r)
				secret, err2 := box.OpenSecret(r)
				if err := errors.Join(err1, err2); err != nil || string(shown) != want || string(secret) != want {
					t.Errorf("account %d: %q, %q, %v", n, shown, secret, err)
					return
				}

				sum := rawHMAC(rawKey(hiding.Of(keys.Fingerprints[0].Key), "fingerprint", keys.Vault, r.Account), []byte("4242"))
				if n%100 == 0 && !bytes.Equal(box.Fingerprint(r.Account, []byte("4242")), sum) {
					t.Errorf("account %d: wrong fingerprint", n)
					return
				}
			}
		})
	}

	wg.Go(func() {
		k := keys
		for range 20 {
			k = k.Next(made, seal.MaxTerms)
			box.SetKeys(k)
		}
	})
	wg.Wait()
}

func TestHashesAreApart(t *testing.T) {
	box, other := boxOf(seal.NewKeys(made)), boxOf(seal.NewKeys(made))
	a, b := uuid.New(), uuid.New()
	value := []byte("4242424242424242")

	seen := map[string]string{}
	for name, sum := range map[string][]byte{
		"fingerprint":             box.Fingerprint(a, value)[:seal.LookupSize],
		"fingerprint of account":  box.Fingerprint(b, value)[:seal.LookupSize],
		"fingerprint of vault":    other.Fingerprint(a, value)[:seal.LookupSize],
		"lookup":                  box.Lookup(a, "x", value),
		"lookup of account":       box.Lookup(b, "x", value),
		"lookup of vault":         other.Lookup(a, "x", value),
		"lookup of purpose":       box.Lookup(a, "y", value),
		"lookup of longer":        box.Lookup(a, "x4", value[1:]),
		"idempotency":             box.Idempotency(a, value)[:seal.LookupSize],
		"idempotency of account":  box.Idempotency(b, value)[:seal.LookupSize],
		"idempotency of vault":    other.Idempotency(a, value)[:seal.LookupSize],
		"idempotency of no parts": box.Idempotency(a)[:seal.LookupSize],
		"idempotency of empty":    box.Idempotency(a, nil)[:seal.LookupSize],
	} {
		if former, ok := seen[string(sum)]; ok {
			t.Errorf("%s and %s are the same", name, former)
		}
		seen[string(sum)] = name
	}

	if !bytes.Equal(box.Lookup(a, "x", value), box.Lookup(a, "x", value)) {
		t.Error("the same value has two hashes")
	}
}

// TestIdempotencyFraming tries all sequences of up to three parts of up to two bytes,
// including parts that look like lengths. Without framing, most of them would share a hash.
func TestIdempotencyFraming(t *testing.T) {
	box, account := boxOf(seal.NewKeys(made)), uuid.New()
	var parts [][]byte
	for _, p := range []string{"", "\x00", "\x01", "\x02", "\x00\x00", "\x00\x01", "\x01\x00", "\x01\x01"} {
		parts = append(parts, []byte(p))
	}

	all := [][][]byte{{}}
	for n := 0; len(all[n]) < 3; n++ {
		for _, p := range parts {
			all = append(all, append(slices.Clip(all[n]), p))
		}
	}

	seen := map[string][][]byte{}
	for _, sequence := range all {
		sum := string(box.Idempotency(account, sequence...))
		if other, ok := seen[sum]; ok {
			t.Errorf("%q and %q have one hash", other, sequence)
		}
		seen[sum] = sequence
	}

	if want := 1 + 8 + 64 + 512; len(all) != want {
		t.Errorf("%d sequences, want %d", len(all), want)
	}
}

func TestCountMAC(t *testing.T) {
	k := seal.NewKeys(made).Next(made, seal.MaxTerms)
	mac := k.CountMAC(2, 1000)
	if !k.ValidCount(2, 1000, mac) {
		t.Error("the count that was authenticated is refused")
	}
	if k.ValidCount(1, 1000, mac) || k.ValidCount(2, 1001, mac) || k.ValidCount(2, 1000, nil) ||
		k.ValidCount(2, 1000, mac[:31]) || seal.NewKeys(made).Next(made, seal.MaxTerms).ValidCount(2, 1000, mac) {
		t.Error("a changed count, term or vault is accepted")
	}

	for bit := range len(mac) * 8 {
		mac[bit/8] ^= 1 << (bit % 8)
		if k.ValidCount(2, 1000, mac) {
			t.Errorf("bit %d flipped, accepted", bit)
		}
		mac[bit/8] ^= 1 << (bit % 8)
	}
}
