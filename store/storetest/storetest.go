// Package storetest proves that a backend keeps the contract of package store.
//
// The author of a backend writes one test:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Harness{
//			Open:   func(t testing.TB) store.Store { return open(t, filepath.Join(t.TempDir(), "vault.db")) },
//			Reopen: func(_ testing.TB, s store.Store) (store.Store, error) { return mystore.Open(s.(*mystore.Store).Path()) },
//		})
//	}
//
// A [Harness] with no more than Open proves what a store does while it is open. Its other
// functions prove that acknowledged records survive a close, a killed process and a loss of
// power, that several processes can use the store, and how it handles faults.
//
// Each subtest is one rule of the contract. When it fails it states the rule and why a
// vault depends on it. Run the suite with -race too: some rules are about memory that two
// goroutines must not share.
//
// [RunCodes] does the same for a cache of security codes, a store.CodeCache. [Deletions]
// proves that deletions are cheap, for a backend that can measure its work.
//
// [Twice], [Canary] and [Liar] wrap a store for tests of the code above it.
package storetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

// Run checks every rule of the contract for which the harness has the functions.
//
// The rule Model draws random writes and logs its seed; the environment variable
// STORETEST_SEED repeats a run.
func Run(t *testing.T, h Harness) {
	run := func(t *testing.T, suite []rule, wrap func(store.Store) store.Store) {
		for _, r := range suite {
			t.Run(r.name, func(t *testing.T) {
				s := h.Open(t)
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
					if t.Failed() {
						t.Logf("The rule: %s", r.why)
					}
				})
				r.check(t, wrap(s))
			})
		}
	}

	run(t, rules, func(s store.Store) store.Store { return s })
	t.Run("Twice", func(t *testing.T) {
		run(t, slices.Concat(recordRules, listRules, indexRules), Twice)
	})
	for _, r := range harnessRules {
		t.Run(r.name, func(t *testing.T) { r.run(t, h, &stand{t, h}) })
	}
}

// A rule is a sentence of the contract and a check that fails where it is broken.
type rule struct {
	name  string
	why   string
	check func(t testing.TB, s store.Store)
}

var rules = slices.Concat(recordRules, listRules, sharedRules, indexRules, scanRules, powerRules, modelRules, updateRules, dividedRules, isolationRules, contextRules, closeRules)

const (
	kindA store.Kind = 1
	kindB store.Kind = 2
	kindC store.Kind = 255
)

var (
	alice      = uuid.UUID{0: 0xa1, 15: 1}
	bob        = uuid.UUID{0: 0xb0, 15: 2}
	background = context.Background()
)

// patience limits how long the suite waits before it calls a store stuck.
const patience = time.Minute

// idOf returns the n-th id; order of n is order of ids.
func idOf(n int) uuid.UUID {
	u := uuid.UUID{6: 0x70, 8: 0x80}
	binary.BigEndian.PutUint32(u[:4], uint32(n))
	u[15] = byte(n) // in any shard
	return u
}

// row returns the n-th record of kind A, in the list of alice, changed by edits.
func row(n int, edits ...func(*store.Record)) *store.Record {
	r := &store.Record{
		Kind: kindA, ID: idOf(n), Account: alice, Class: 1, Version: 1,
		Shown: []byte("shown"), Secret: []byte("secret"),
	}
	for _, edit := range edits {
		edit(r)
	}
	return r
}

func due(t time.Time) func(*store.Record)      { return func(r *store.Record) { r.Due = t } }
func class(c uint8) func(*store.Record)        { return func(r *store.Record) { r.Class = c } }
func version(v uint64) func(*store.Record)     { return func(r *store.Record) { r.Version = v } }
func ofKind(k store.Kind) func(*store.Record)  { return func(r *store.Record) { r.Kind = k } }
func ofParent(p uuid.UUID) func(*store.Record) { return func(r *store.Record) { r.Parent = p } }
func account(a uuid.UUID) func(*store.Record)  { return func(r *store.Record) { r.Account = a } }
func shown(text string) func(*store.Record)    { return func(r *store.Record) { r.Shown = []byte(text) } }

func hashes(texts ...string) func(*store.Record) {
	return func(r *store.Record) {
		r.Lookup = nil
		for _, text := range texts {
			r.Lookup = append(r.Lookup, []byte(text))
		}
	}
}

// putting returns an fn that puts rs.
func putting(rs ...*store.Record) func(store.Tx) error {
	return func(tx store.Tx) error {
		for _, r := range rs {
			tx.Put(r)
		}
		return nil
	}
}

// deleting returns an fn that deletes the record with the kind and id of r.
func deleting(r *store.Record) func(store.Tx) error {
	return func(tx store.Tx) error {
		tx.Delete(r.Kind, r.ID)
		return nil
	}
}

func update(t testing.TB, s store.Store, fn func(store.Tx) error) {
	t.Helper()
	if err := s.Update(background, fn); err != nil {
		t.Fatalf("Update: %v", err)
	}
}

func put(t testing.TB, s store.Store, rs ...*store.Record) {
	t.Helper()
	update(t, s, putting(rs...))
}

// refused checks that an Update fails with want.
func refused(t testing.TB, s store.Store, want error, fn func(store.Tx) error) {
	t.Helper()
	if err := s.Update(background, fn); !errors.Is(err, want) {
		t.Errorf("Update = %v, want %v", err, want)
	}
}

func view(t testing.TB, s store.Store, fn func(store.ReadTx) error) {
	t.Helper()
	if err := s.View(background, fn); err != nil {
		t.Fatalf("View: %v", err)
	}
}

// get returns the record with the kind and id of r, or nil if it is absent.
func get(t testing.TB, s store.Store, r *store.Record) *store.Record {
	t.Helper()
	var got *store.Record
	view(t, s, func(tx store.ReadTx) (err error) {
		got, err = tx.Get(r.Kind, r.ID)
		if errors.Is(err, store.ErrNotFound) {
			got, err = nil, nil
		}
		return err
	})
	return got
}

// holds checks that the store has each of rs as it is.
func holds(t testing.TB, s store.Store, rs ...*store.Record) {
	t.Helper()
	for _, want := range rs {
		if got := get(t, s, want); got == nil {
			t.Errorf("kind %d, id %v: not found", want.Kind, want.ID)
		} else if field := differs(got, want); field != "" {
			t.Errorf("kind %d, id %v: other %s than was put", want.Kind, want.ID, field)
		}
	}
}

// lacks checks that the store has none of rs.
func lacks(t testing.TB, s store.Store, rs ...*store.Record) {
	t.Helper()
	for _, r := range rs {
		if get(t, s, r) != nil {
			t.Errorf("kind %d, id %v: found, but should not be there", r.Kind, r.ID)
		}
	}
}

// differs returns the name of a field in which two records differ, if any.
func differs(a, b *store.Record) string {
	switch {
	case a.Kind != b.Kind:
		return "Kind"
	case a.ID != b.ID:
		return "ID"
	case a.Account != b.Account:
		return "Account"
	case a.Parent != b.Parent:
		return "Parent"
	case a.Class != b.Class:
		return "Class"

	case !a.Due.Equal(b.Due):
		return "Due"
	case !slices.EqualFunc(a.Lookup, b.Lookup, bytes.Equal):
		return "Lookup"
	case a.Version != b.Version:
		return "Version"
	case !bytes.Equal(a.Shown, b.Shown):
		return "Shown"
	case !bytes.Equal(a.Secret, b.Secret):
		return "Secret"
	}

	return ""
}

func list(t testing.TB, s store.Store, q store.Query) *store.List {
	t.Helper()
	var l *store.List
	view(t, s, func(tx store.ReadTx) (err error) {
		l, err = tx.List(&q)
		return err
	})
	if l == nil {
		t.Fatal("List = nil without an error")
	}
	return l
}

// lists checks that q, with Count and no Limit, selects just these.
func lists(t testing.TB, s store.Store, name string, q store.Query, want ...int) {
	t.Helper()
	q.Limit, q.Count = len(want)+1, true
	l := list(t, s, q)
	is(t, name, l.Records, want...)
	if l.Total != int64(len(want)) {
		t.Errorf("%s: Total = %d, want %d", name, l.Total, len(want))
	}
}

// is checks that records are those with the ids of numbers, in this order.
func is(t testing.TB, name string, records []*store.Record, numbers ...int) {
	t.Helper()
	if got := numbersOf(records); !slices.Equal(got, numbers) {
		t.Errorf("%s: got records %v, want %v", name, got, numbers)
	}
}

func numbersOf(records []*store.Record) []int {
	var numbers []int
	for _, r := range records {
		numbers = append(numbers, int(binary.BigEndian.Uint32(r.ID[:4])))
	}
	return numbers
}

// parallel runs f n times at once and reports its errors. A goroutine may use neither t nor
// the helpers that do.
func parallel(t testing.TB, n int, f func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = f(i) })
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
			return // the others have most likely failed in the same way
		}
	}
}

// await fails the test if nothing comes from c.
func await[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: still waiting after %v", what, patience)
		panic("unreachable")
	}
}
