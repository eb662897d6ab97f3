package verify_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"testing"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/ledgertest"
	"github.com/cardvault/cardvault/internal/verify"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

const (
	kindParent store.Kind = 5 + iota
	kindChild
	kindErasure
	kindClosing
)

// A torn store cannot read the records of kindChild from one id to before another.
type torn struct {
	store.Store
	from, to uuid.UUID
}

func (s *torn) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(tornReads{tx, s}) })
}

type tornReads struct {
	store.ReadTx
	s *torn
}

func (tx tornReads) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	found, err := tx.ReadTx.Scan(kind, after, limit)
	for _, r := range found {
		if kind == kindChild && bytes.Compare(r.ID[:], tx.s.from[:]) >= 0 && bytes.Compare(r.ID[:], tx.s.to[:]) < 0 {
			return nil, fmt.Errorf("%w: a page", store.ErrDamaged)
		}
	}
	return found, err
}

func row(n int) uuid.UUID { return uuid.UUID{0: 1, 7: byte(n >> 8), 8: byte(n), 15: 1} }

func TestRows(t *testing.T) {
	s := &torn{Store: memstore.New()}
	l := ledgertest.On(t, s, ledger.Families{kindChild: {Parent: kindParent}})
	put := func(kind store.Kind, n int, parent uuid.UUID) {
		t.Helper()
		r := &store.Record{Kind: kind, ID: row(n), Account: l.First, Parent: parent, Version: 1}
		if err := l.SealShown(r, []byte{byte(n)}); err != nil {
			t.Fatal(err)
		}
		if err := s.Update(t.Context(), func(tx store.Tx) error { tx.Put(r); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	const children = 700 // some pages
	put(kindParent, 1, uuid.Nil)
	for n := range children {
		put(kindChild, n+1, row(1))
	}

	c := verify.Config{
		Ledger: l, Families: ledger.Families{kindChild: {Parent: kindParent}}, Erasures: kindErasure, Closings: kindClosing,
		Erases: func(context.Context, *store.Record) (store.Kind, []uuid.UUID, error) {
			return kindParent, []uuid.UUID{row(2), row(1)}, nil
		},
	}
	look := func() (found map[verify.Problem]int, at *verify.Place) {
		t.Helper()
		found = map[verify.Problem]int{}
		at, err := c.Run(t.Context(), verify.Options{Found: func(f verify.Finding) { found[f.Problem]++ }})
		if err != nil || !at.Done() {
			t.Fatal(at, err)
		}
		return found, at
	}
	found, whole := look()
	if len(found) > 0 || !whole.Unable {
		t.Errorf("a vault that is whole: %v, %+v", found, whole)
	}

	// Of a range that cannot be read, one finding is made, and what is behind it is read.
	for _, gap := range [][2]int{{1, 2}, {300, 301}, {300, 310}, {130, 600}, {700, 701}, {1, 701}} {
		s.from, s.to = row(gap[0]), row(gap[1])
		found, at := look()
		if lost := gap[1] - gap[0]; len(found) != 1 || found[verify.Unreadable] != 1 || whole.Records-at.Records != int64(lost) {
			t.Errorf("rows %v cannot be read: %v, and %d fewer are read", gap, found, whole.Records-at.Records)
		}
	}
	s.from, s.to = uuid.Nil, uuid.Nil

	// Children without their parent are damage, unless a job erases them.
	if err := s.Update(t.Context(), func(tx store.Tx) error { tx.Delete(kindParent, row(1)); return nil }); err != nil {
		t.Fatal(err)
	}
	if found, _ := look(); len(found) != 1 || found[verify.MissingParent] != children {
		t.Errorf("without the parent: %v", found)
	}
	put(kindErasure, 1, uuid.Nil)
	if found, _ := look(); len(found) != 0 {
		t.Errorf("while they are erased: %v", found)
	}
}

// A shuffled store has the records of kindChild in another order than that of their ids, as a
// damaged page has them. Like a tree, it looks for an id by halving.
type shuffled struct {
	store.Store
	rows  []*store.Record
	scans int
}

func (s *shuffled) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(shuffledReads{tx, s}) })
}

type shuffledReads struct {
	store.ReadTx
	s *shuffled
}

func (tx shuffledReads) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	if kind != kindChild {
		return tx.ReadTx.Scan(kind, after, limit)
	}
	if tx.s.scans++; tx.s.scans > 10_000 {
		return nil, errors.New("it does not end")
	}
	rows := tx.s.rows
	rows = rows[sort.Search(len(rows), func(i int) bool { return bytes.Compare(rows[i].ID[:], after[:]) > 0 }):]
	var found []*store.Record
	for _, r := range rows[:min(len(rows), limit)] {
		found = append(found, r.Clone())
	}
	return found, nil
}

// TestOrder: a record whose id is out of order is found, has no page read for ever, and hides
// none but its neighbour. Two behind the end of a page a search may pass over both, and nothing
// shows that.
func TestOrder(t *testing.T) {
	s := &shuffled{Store: memstore.New()}
	l := ledgertest.OnLiar(t, s, ledger.Families{})
	const children = 700
	var whole []*store.Record
	for n := range children {
		r := &store.Record{Kind: kindChild, ID: row(n + 1), Account: l.First, Version: 1}
		if err := l.SealShown(r, []byte{1}); err != nil {
			t.Fatal(err)
		}
		whole = append(whole, r)
	}
	for _, at := range []int{0, 1, 126, 127, 128, 130, 254, 255, 381, 698, 699} {
		for _, id := range []uuid.UUID{{15: 1}, {0: 255}, row(at), row(at + 300), row(max(1, at-300))} {
			s.rows, s.scans = slices.Clone(whole), 0
			s.rows[at] = whole[at].Clone()
			s.rows[at].ID = id
			rising := slices.IsSortedFunc(s.rows, func(a, b *store.Record) int { return bytes.Compare(a.ID[:], b.ID[:]) })

			damaged := 0
			place, err := (&verify.Config{Ledger: l}).Run(t.Context(), verify.Options{Found: func(f verify.Finding) {
				if f.Problem == verify.Unreadable && f.Record.Kind == kindChild {
					damaged++
				}
			}})
			if err != nil || !place.Done() {
				t.Fatalf("record %d is %v: %v", at, id, err)
			}
			if !rising && damaged == 0 {
				t.Errorf("record %d is %v: not found", at, id)
			}
			if place.Records < children-2 {
				t.Errorf("record %d is %v: %d records were read", at, id, place.Records)
			}
		}
	}
}

// No text of a place panics or passes for another.
func TestPlaces(t *testing.T) {
	for _, p := range []*verify.Place{{Kind: 1}, {Kind: 255, After: row(7)}, {}, {Index: []byte{3, 0, 1}}} {
		got, err := verify.ParsePlace(p.String())
		if err != nil || got.String() != p.String() || got.Kind != p.Kind || got.After != p.After || !bytes.Equal(got.Index, p.Index) {
			t.Errorf("%+v becomes %+v, %v", p, got, err)
		}
	}
	for _, text := range []string{"A", "AQ", "AgEAAAAAAAAAAAAAAAAAAAAA", "=", "AQEAAAAAAAAAAAAAAAAAAAAAAA"} {
		if p, err := verify.ParsePlace(text); err == nil {
			t.Errorf("%q is %+v", text, p)
		}
	}
}
