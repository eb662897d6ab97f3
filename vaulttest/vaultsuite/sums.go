package vaultsuite

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/google/uuid"
)

// Sums is the part of Run about sums, for a store.Summer that its harness wraps. It calls no more
// of the harness than Open.
func Sums(t *testing.T, h storetest.Harness) {
	for _, b := range []struct {
		name  string
		check func(t *testing.T, open func() store.Store)
	}{{"Find", sumsFind}, {"WhileUsed", sumsWhileUsed}, {"Anew", sumsAnew}} {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			b.check(t, func() store.Store {
				s := h.Open(t)
				t.Cleanup(func() { noError(t, s.Close()) })
				return s
			})
		})
	}
}

// contents are all records of a store.
type contents map[store.Key]*store.Record

func allRows(t testing.TB, s store.Store) contents {
	t.Helper()
	all := contents{}
	for kind := store.Kind(1); kind != 0; kind++ {
		for _, r := range scanned(t, s, kind) {
			all[store.Key{Kind: kind, ID: r.ID}] = r
		}
	}
	return all
}

// into writes the records into an empty store.
func (all contents) into(t testing.TB, s store.Store) {
	t.Helper()
	for part := range slices.Chunk(slices.Collect(maps.Values(all)), 200) {
		noError(t, s.Update(t.Context(), func(tx store.Tx) error {
			for _, r := range part {
				inAccount(tx, r.Account).(store.Loader).Load(r.Clone())
			}
			return nil
		}))
	}
}

// A surplus is what sums find in an account.
type surplus struct {
	account uuid.UUID
	records int64
}

// sumsOf returns how often Verify finds each surplus in an account.
func sumsOf(t testing.TB, v *cardvault.Vault) map[surplus]int {
	t.Helper()
	report := must(v.Verify(t.Context(), &cardvault.VerifyOptions{Most: 1000}))(t)
	if !report.Sums {
		t.Fatal("Verify has compared no sums")
	}
	found := map[surplus]int{}
	for _, p := range report.Problems {
		for _, f := range p.Findings {
			if p.Kind == cardvault.ProblemSum {
				found[surplus{f.AccountID, f.Surplus}]++
			}
		}
	}
	return found
}

// Verify finds by their sums that records were lost, added, or put back in a former version, of
// every kind.
func sumsFind(t *testing.T, open func() store.Store) {
	s := open()
	fillKinds(t, s)
	v := vaultOn(t, s, nil)
	if report := must(v.Verify(t.Context(), nil))(t); report.Sums {
		t.Error("Verify has compared sums that were not begun")
	}
	noError(t, v.BeginSums(t.Context(), nil))
	if found := sumsOf(t, v); len(found) > 0 {
		t.Fatalf("a vault that is whole has %v", found)
	}

	before := allRows(t, s)
	must(v.RotateKeys(t.Context(), nil))(t)
	drain(t, v)
	importCard(t, v, testCard(78), nil)
	after := allRows(t, s)
	finds := func(name string, change func(all contents, kind store.Kind) (account uuid.UUID, done bool), more int64) {
		t.Helper()
		all, want := maps.Clone(after), map[surplus]int{}
		for _, kind := range fullKinds {
			account, done := change(all, kind)
			if !done {
				t.Errorf("no record of kind %d is %s", kind, name)
			}
			want[surplus{account, more}]++
		}
		to := open()
		all.into(t, to)
		if found := sumsOf(t, vaultOn(t, to, nil)); !maps.Equal(found, want) {
			t.Errorf("of records that are %s, sums find %v, want %v", name, found, want)
		}
	}

	// The last one: the vault does not open without its first account.
	last := func(all contents, kind store.Kind) (last *store.Record) {
		for _, r := range all {
			if r.Kind == kind && (last == nil || slices.Compare(r.ID[:], last.ID[:]) > 0) {
				last = r
			}
		}
		return last
	}
	finds("lost", func(all contents, kind store.Kind) (uuid.UUID, bool) {
		r := last(all, kind)
		delete(all, store.Key{Kind: kind, ID: r.ID})
		return r.Account, true
	}, -1)
	finds("put back", func(all contents, kind store.Kind) (uuid.UUID, bool) {
		for k, r := range all {
			if former := before[k]; k.Kind == kind && former != nil && string(former.Shown)+string(former.Secret) != string(r.Shown)+string(r.Secret) {
				all[k] = former
				return r.Account, true
			}
		}
		return uuid.Nil, false
	}, 0)

	// The store shows these deletions, as it shows deletions of a vault.
	var gone []*store.Record
	for _, kind := range fullKinds {
		gone = append(gone, last(after, kind))
		removeRow(t, s, gone[len(gone)-1])
	}
	after = allRows(t, s)
	finds("added", func(all contents, kind store.Kind) (uuid.UUID, bool) {
		i := slices.IndexFunc(gone, func(r *store.Record) bool { return r.Kind == kind })
		all[store.Key{Kind: kind, ID: gone[i].ID}] = gone[i]
		return gone[i].Account, true
	}, 1)
}

// Sums agree with the records while these change, also when they are begun and compared.
func sumsWhileUsed(t *testing.T, open func() store.Store) {
	v := vaultOn(t, open(), &cardvault.Options{Mode: cardvault.Sandbox, Network: new(till), Webhooks: new(mailbox)})
	newHook(t, v, receiver)
	for n := range 40 {
		importCard(t, v, testCard(n), nil)
	}

	begin := sync.OnceValue(func() error { return v.BeginSums(t.Context(), nil) })
	whileUsed(t, v, func() {
		noError(t, begin())
		report := must(v.Verify(t.Context(), nil))(t)
		if len(report.Problems) > 0 || !report.Sums {
			t.Errorf("while in use: %+v", report)
		}
	})
	if found := sumsOf(t, v); len(found) > 0 {
		t.Errorf("afterwards: %v", found)
	}
}

// Sums are begun anew: then the records are right as they are, also if sums cannot be read. A vault
// without some of its sums says so.
func sumsAnew(t *testing.T, open func() store.Store) {
	s := open()
	v := vaultOn(t, s, nil)
	account := must(v.CreateAccount(t.Context(), canary, nil))(t).ID
	other := v.In(account)
	for n := range 5 {
		importCard(t, v, testCard(n), nil)
		importCard(t, other, testCard(n), nil)
	}
	noError(t, v.BeginSums(t.Context(), nil))
	importCard(t, v, testCard(6), nil)
	noError(t, v.Close())

	const kindSum, kindSumChange store.Kind = 42, 43
	whole := allRows(t, s)
	for name, change := range map[string]func(*store.Record) bool{ // false: the record is left out
		"a token lost": func(r *store.Record) bool { return r.Kind != kindToken || r.Account == account },
		"sums edited": func(r *store.Record) bool {
			if r.Kind == kindSum {
				r.Shown[40] ^= 1
			}
			return true
		},
		"changes of sums edited": func(r *store.Record) bool {
			if r.Kind == kindSumChange {
				r.Shown[40] ^= 1
			}
			return true
		},
		"sums lost":           func(r *store.Record) bool { return r.Kind < kindSum },
		"changes of sums":     func(r *store.Record) bool { return r.Kind != kindSumChange },
		"sums of no account":  func(r *store.Record) bool { return r.Kind != kindSum || r.ID != uuid.Max },
		"sums of one account": func(r *store.Record) bool { return r.Kind != kindSum || r.ID != account },
	} {
		t.Run(name, func(t *testing.T) {
			all := contents{}
			for k, r := range whole {
				if r = r.Clone(); change(r) {
					all[k] = r
				}
			}
			to := open()
			all.into(t, to)
			v := vaultOn(t, to, nil)
			if report := must(v.Verify(t.Context(), nil))(t); len(report.Problems) == 0 {
				t.Errorf("Verify finds nothing, and has compared sums: %t", report.Sums)
			}
			importCard(t, v, testCard(7), nil)
			noError(t, v.BeginSums(t.Context(), nil))
			if found := sumsOf(t, v); len(found) > 0 {
				t.Errorf("begun anew, sums find %v", found)
			}
			if err := v.Delete(t.Context(), uuid.New()); !errors.Is(err, cardvault.ErrNotFound) {
				t.Error(err)
			}
		})
	}
}
