package vaultsuite

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

func rotateLookups(t testing.TB, v *cardvault.Vault) {
	t.Helper()
	must(v.RotateSeries(t.Context(), cardvault.SeriesLookup, nil))(t)
}

// lookupTerms returns the states of the lookup keys, and the records of a kind under each.
func lookupTerms(t testing.TB, v *cardvault.Vault, kind string) (all []cardvault.TermState, records []int64) {
	t.Helper()
	for _, term := range must(v.KeyReport(t.Context()))(t).Others {
		if term.Series == cardvault.SeriesLookup {
			all, records = append(all, term.State), append(records, term.Records[kind])
		}
	}
	return all, records
}

// findables are records that are found by hashes.
type findables struct {
	bureau   *bureau
	merchant uuid.UUID
	tokens   []uuid.UUID
}

func (f *findables) add(t testing.TB, v *cardvault.Vault) {
	t.Helper()
	opts := &cardvault.ImportOptions{BusinessKey: canary, IdempotencyKey: "one"}
	first := importCard(t, v, testCard(1), opts)
	if len(f.tokens) > 0 && !first.Replayed {
		t.Error("an idempotency key is forgotten")
	}
	if len(f.tokens) == 0 {
		f.tokens = []uuid.UUID{first.ID}
	}
	f.tokens = append(f.tokens, importCard(t, v, testCard(1+len(f.tokens)), &cardvault.ImportOptions{BusinessKey: canary}).ID)
	importCard(t, v, testCard(1+len(f.tokens)), &cardvault.ImportOptions{BusinessKey: "another"})
}

// found checks that each of some processes finds everything, and that names stay unique.
func (f *findables) found(t testing.TB, vaults ...*cardvault.Vault) {
	t.Helper()
	for _, v := range vaults {
		f.listed(t, v)
		f.named(t, v)
		f.notified(t, v)
	}
}

func (f *findables) listed(t testing.TB, v *cardvault.Vault) {
	t.Helper()
	if found := must(collect(t.Context(), v, &cardvault.TokenListOptions{BusinessKey: canary}))(t); len(found) != len(f.tokens) {
		t.Errorf("%d tokens of %d are found by their business key", len(found), len(f.tokens))
	}
}

func (f *findables) named(t testing.TB, v *cardvault.Vault) {
	t.Helper()
	m := must(v.EnsureMerchant(t.Context(), canary, nil))(t)
	if f.merchant == uuid.Nil {
		f.merchant = m.ID
	}
	if m.ID != f.merchant {
		t.Error("a second merchant has a name")
	}
}

func (f *findables) notified(t testing.TB, v *cardvault.Vault) {
	t.Helper()
	for _, id := range f.bureau.left() {
		notice := suspended(0, time.Now(), id)
		notice.ID = uuid.NewString()
		noError(t, v.Notify(t.Context(), notice))
	}
}

// intact checks that Verify finds nothing.
func (f *findables) intact(t testing.TB, v *cardvault.Vault) {
	t.Helper()
	if p := problems(t, v); len(p) > 0 {
		t.Errorf("Verify finds %+v", p)
	}
}

// rotateLookup: while the lookup key is rotated and one of two processes does not follow, each
// finds all records at each step, and names stay unique. A second rotation destroys the key
// of the first.
func rotateLookup(t *testing.T, s store.Store) {
	inBubble(t, s, func(t *testing.T, s store.Store) {
		ctx, f := t.Context(), &findables{bureau: new(bureau)}
		opts := &cardvault.Options{Mode: cardvault.Sandbox, Network: f.bureau, IdempotencyTTL: 100 * time.Hour}
		v, slow := vaultOn(t, s, opts), vaultOn(t, s, opts)
		idle := []*cardvault.Vault{vaultOn(t, s, opts), vaultOn(t, s, opts), vaultOn(t, s, opts)} // without Run and Drain
		session := must(v.CreateSession(ctx, nil))(t)
		f.add(t, v)
		f.add(t, slow)
		drain(t, v)
		f.found(t, v, slow)
		f.found(t, idle...)

		rotateLookups(t, v)
		fails(t, "another rotation", errorOf(slow.RotateSeries(ctx, cardvault.SeriesLookup, nil)), cardvault.ErrRotating)
		f.add(t, v)
		f.add(t, slow)
		f.found(t, v, slow)
		slower := vaultOn(t, s, opts)
		drain(t, v)
		if is, n := lookupTerms(t, v, "token"); !slices.Equal(is, []cardvault.TermState{"readable", "active"}) || n[0] != n[1] || n[0] == 0 {
			t.Errorf("once all are searched by the new key: %v, %v", is, n)
		}
		f.found(t, v, slow, slower)
		f.add(t, slower)
		f.found(t, v, slow, slower)
		f.intact(t, v)

		goOn(time.Minute)
		must(v.RotateKeys(ctx, nil))(t) // has another round begin at once
		drain(t, v)
		if is, _ := lookupTerms(t, v, "token"); is[0] != cardvault.TermReadable {
			t.Errorf("former hashes are given up while processes search for them: %v", is)
		}
		f.found(t, v, slow, slower)

		must(slow.Session(ctx, session.ID))(t)
		for range 3 {
			goOn(5 * time.Minute)
			for _, v := range []*cardvault.Vault{v, slow, slower} {
				drain(t, v)
			}
			f.found(t, v, slow, slower)
		}
		f.listed(t, idle[0])
		f.named(t, idle[1])
		f.notified(t, idle[2])
		f.add(t, slower)
		f.found(t, v, slow, slower, vaultOn(t, s, opts))
		f.intact(t, v)
		if is, n := lookupTerms(t, v, "token"); !slices.Equal(is, []cardvault.TermState{"closed", "active"}) || n[0] != 0 || n[1] != 2*int64(len(f.tokens))-1 {
			t.Errorf("after the rotation: %v, %v", is, n)
		}
		if _, n := lookupTerms(t, v, "idempotency key"); n[0] != 1 {
			t.Errorf("%v idempotency keys", n)
		}
		rotateLookups(t, slow)
		for range 4 {
			drain(t, slow)
			f.add(t, v)
			f.found(t, v, slow)
			f.intact(t, slow)
			goOn(5 * time.Minute)
		}
		if is, n := lookupTerms(t, v, "token"); !slices.Equal(is, []cardvault.TermState{"closed", "destroyed", "active"}) || n[0]+n[1] != 0 {
			t.Errorf("after two rotations: %v, %v", is, n)
		}
		for _, kind := range []string{"merchant", "network token of token"} {
			if _, n := lookupTerms(t, v, kind); n[0]+n[1] != 0 || n[2] == 0 {
				t.Errorf("%v under the keys: %v", kind, n)
			}
		}
	})
}

// lookupLate: a process has made the hash of a record, and the key is rotated before it stores
// the record. It is found by the present key alone, and a name stays unique. With -short each call
// meets one of the rotations.
func lookupLate(t *testing.T, s store.Store) {
	inBubble(t, s, func(t *testing.T, s store.Store) {
		n := &notary{Store: s, wrote: map[uint32]bool{}}
		late, other, ctx := vaultOn(t, n, nil), vaultOn(t, s, nil), t.Context()
		token := importCard(t, late, testCard(0), nil)

		all := func() {
			for range 4 {
				drain(t, other)
				goOn(3 * time.Minute)
			}
		}
		merchants := int64(1)
		for i, steps := range []func(){
			func() {},
			func() { drain(t, other) },
			func() { all(); must(late.KeyReport(ctx))(t) }, // which looks for a keyring
		} {
			name, named := string(rune('a'+i)), 0
			for call, do := range map[string]func() error{
				"Import": func() error {
					return errorOf(late.Import(ctx, testCard(1), &cardvault.ImportOptions{BusinessKey: name}))
				},
				"Update": func() error {
					return errorOf(late.Update(ctx, token.ID, cardvault.TokenUpdate{BusinessKey: &name}))
				},
				"EnsureMerchant": func() error { return errorOf(late.EnsureMerchant(ctx, name, nil)) },
			} {
				if testing.Short() && call != []string{"Import", "Update", "EnsureMerchant"}[i] {
					continue
				}
				for range 2 { // it follows, and then it is granted seals
					importCard(t, late, testCard(2), nil)
				}
				n.before = func() {
					rotateLookups(t, other)
					steps()
					if call == "EnsureMerchant" {
						must(other.EnsureMerchant(ctx, name, nil))(t)
					}
				}
				if err := do(); err != nil || n.before != nil {
					t.Fatalf("%s: %v", call, err)
				}
				if call == "EnsureMerchant" {
					merchants++
				} else {
					named++
				}
				for _, v := range []*cardvault.Vault{late, other} {
					if found := must(collect(ctx, v, &cardvault.TokenListOptions{BusinessKey: name}))(t); len(found) != named {
						t.Errorf("%s: %d tokens of %d are found", call, len(found), named)
					}
				}
				all()
				for kind, most := range map[string]int64{"token": howManyTokens(t, other), "merchant": int64(1 + must(other.ListMerchants(ctx, nil))(t).TotalItems)} {
					is, records := lookupTerms(t, other, kind)
					last := len(is) - 1
					if is[last] != cardvault.TermActive || is[0] != cardvault.TermClosed || last > 1 && is[last-1] != cardvault.TermDestroyed || slices.Max(records[:last]) > 0 || records[last] > most {
						t.Errorf("%s: keys %v, with %v of kind %s", call, is, records, kind)
					}
				}
			}
		}
		if m := must(other.ListMerchants(ctx, nil))(t); m.TotalItems != merchants {
			t.Errorf("%d merchants, want %d: a name was taken twice", m.TotalItems, merchants)
		}
	})
}

// lookupDamaged: as long as a damaged record lacks a hash of the next key nothing is searched with
// that, so a name stays unique. As long as one has a hash of the former key that is not destroyed.
func lookupDamaged(t *testing.T, s store.Store) {
	inBubble(t, s, func(t *testing.T, s store.Store) {
		v, ctx, f := vaultOn(t, s, nil), t.Context(), &findables{bureau: new(bureau)}
		f.add(t, v)
		f.found(t, v)
		spoil := func(kind store.Kind) (mend func()) {
			rows := scanned(t, s, kind)
			row := rows[len(rows)-1] // the default merchant comes first
			spoiled := row.Clone()
			spoiled.Shown[len(spoiled.Shown)/2] ^= 4
			loadRow(t, s, spoiled)
			return func() { loadRow(t, s, row) }
		}
		drained := func(kind string, want ...cardvault.TermState) (records []int64) {
			t.Helper()
			for range 4 {
				drain(t, v)
				goOn(3 * time.Minute)
			}
			is, n := lookupTerms(t, v, kind)
			if !slices.Equal(is, want) {
				t.Errorf("keys %v, want %v", is, want)
			}
			return n
		}

		rotateLookups(t, v)
		mend := spoil(kindMerchant)
		drained("merchant", cardvault.TermActive, cardvault.TermPending)
		fails(t, "a name of a damaged merchant", errorOf(v.EnsureMerchant(ctx, canary, nil)), cardvault.ErrDamaged)
		mend()
		must(v.RotateKeys(ctx, nil))(t)
		drained("merchant", cardvault.TermClosed, cardvault.TermActive)
		f.found(t, v)

		rotateLookups(t, v)
		drain(t, v)
		mend = spoil(kindToken)
		if n := drained("token", cardvault.TermClosed, cardvault.TermClosed, cardvault.TermActive); n[1] != 1 {
			t.Errorf("tokens under the keys: %v", n)
		}
		mend()
		must(v.RotateKeys(ctx, nil))(t)
		drained("token", cardvault.TermClosed, cardvault.TermDestroyed, cardvault.TermActive)
		f.found(t, v)
	})
}

// lookupRace: two processes rotate at once, and both ensure merchants meanwhile. Each name is
// taken once.
func lookupRace(t *testing.T, s store.Store) {
	inBubble(t, s, func(t *testing.T, s store.Store) {
		v, other := vaultOn(t, s, nil), vaultOn(t, s, nil)
		stop, stopOther := runs(t, v), runs(t, other)

		var group sync.WaitGroup
		for range 2 {
			for _, v := range []*cardvault.Vault{v, other} {
				group.Go(func() {
					for n := range 12 {
						must(v.EnsureMerchant(t.Context(), string(rune('a'+n)), nil))(t)
						time.Sleep(time.Minute)
					}
				})
			}
			_, err := v.RotateSeries(t.Context(), cardvault.SeriesLookup, nil)
			_, err2 := other.RotateSeries(t.Context(), cardvault.SeriesLookup, nil)
			if err != nil || err2 == nil {
				t.Errorf("two rotations: %v, %v", err, err2)
			}
			goOn(20 * time.Minute)
			group.Wait()
		}
		stop()
		stopOther()
		if m := must(v.ListMerchants(t.Context(), nil))(t); m.TotalItems != 13 {
			t.Errorf("%d merchants, want 13", m.TotalItems)
		}
		if is, n := lookupTerms(t, v, "merchant"); !slices.Equal(is, []cardvault.TermState{"closed", "destroyed", "active"}) || n[2] != 13 {
			t.Errorf("%v, %v", is, n)
		}
	})
}
