package removal_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/ledgertest"
	"github.com/cardvault/cardvault/internal/removal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	kindParent store.Kind = iota + 10
	kindChild
	kindLetter // written when a parent ends
	kindRemains
)

// A bench is an account with a parent that has children.
type bench struct {
	*testing.T
	ledger.Account
	eraser *removal.Eraser
	engine *jobs.Engine
	ends   letters
}

// letters writes a record for each parent that ends. A parent listed as busy is refused
// once.
type letters struct {
	due     []*store.Record
	busy    map[uuid.UUID]bool
	written int
}

func (l *letters) Begin()    {}
func (l *letters) Rows() int { return 0 }
func (l *letters) Written()  { l.written++ }

func (l *letters) Put(tx store.Tx, i int) (bool, error) {
	if l.busy[l.due[i].ID] {
		delete(l.busy, l.due[i].ID)
		return false, nil
	}
	tx.Put(&store.Record{Kind: kindLetter, ID: l.due[i].ID, Account: l.due[i].Account, Version: 1, Shown: []byte{1}})
	return true, nil
}

func inBench(t *testing.T, f func(b *bench)) {
	bubble.Test(t, func(t *testing.T) {
		l := ledgertest.New(t, ledger.Families{kindChild: {Parent: kindParent}})
		b := &bench{T: t, Account: l.In(l.First)}
		log := slog.New(slog.DiscardHandler)
		b.eraser = removal.New(removal.Config{
			Ledger: l, Log: log, Remains: kindRemains, Longest: time.Minute,
			Lapsing: []removal.Lapsing{{Kind: kindParent, Named: true, Endings: func(_ context.Context, due []*store.Record) (removal.Endings, error) {
				b.ends.due = due
				return &b.ends, nil
			}}},
		})
		b.engine = jobs.New(l, log, []jobs.Sweep{b.eraser.Sweep()}, []jobs.Kind{b.eraser.Kind()})
		b.eraser.Attach(b.engine)
		f(b)
	})
}

// parent stores a parent that lapses at due and has the given number of children. It returns
// its id.
func (b *bench) parent(due time.Time, children int) uuid.UUID {
	b.Helper()
	row, err := b.NewRow()
	if err != nil {
		b.Fatal(err)
	}
	p := b.NewRecord(kindParent, row)
	p.Due = due
	all := []*store.Record{p}
	for range children {
		all = append(all, &store.Record{Kind: kindChild, ID: uuid.New(), Account: b.ID, Parent: row, Version: 1})
	}

	for _, r := range all {
		if err := b.SealShown(r, nil); err != nil {
			b.Fatal(err)
		}
	}
	err = b.Update(b.Context(), ledger.Step, func(tx store.Tx) error {
		for _, r := range all {
			tx.Put(r)
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return b.Mask(kindParent, row)
}

// counts returns whether the parent exists, how many of its children are left (counting up
// to 2,000), and whether its letter exists.
func (b *bench) counts(parent uuid.UUID) (is bool, children int, letter bool) {
	b.Helper()
	row := b.Unmask(kindParent, parent)
	err := b.View(b.Context(), func(tx store.ReadTx) error {
		_, none := tx.Get(kindParent, row)
		_, noLetter := tx.Get(kindLetter, row)
		is, letter = none == nil, noLetter == nil
		keys, err := tx.Children(row, 2000)
		children = len(keys)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return is, children, letter
}

var opDelete = ledger.Takes("test.delete")

func TestDelete(t *testing.T) {
	inBench(t, func(b *bench) {
		small, large := b.parent(time.Time{}, 10), b.parent(time.Time{}, 1500)
		for _, id := range []uuid.UUID{small, large} {
			if err := b.eraser.Delete(b.Context(), b.Account, opDelete, kindParent, id, nil); err != nil {
				b.Fatal(err)
			}
		}
		if err := b.eraser.Delete(b.Context(), b.Account, opDelete, kindParent, small, nil); !errors.Is(err, ledger.ErrNotFound) {
			b.Error("deleted again:", err)
		}

		if is, children, _ := b.counts(small); is || children != 0 {
			b.Errorf("small family: %v, %d children", is, children)
		}
		if is, children, _ := b.counts(large); is || children == 0 {
			b.Errorf("large family: %v, %d children", is, children)
		}
		if err := b.engine.Drain(b.Context()); err != nil {
			b.Fatal(err)
		}
		if _, children, _ := b.counts(large); children != 0 {
			b.Errorf("large family after Drain: %d children", children)
		}
	})
}

func TestDeleteWith(t *testing.T) {
	inBench(t, func(b *bench) {
		id, wrong := b.parent(time.Time{}, 1), errors.New("wrong")
		also := func(_ store.Tx, row uuid.UUID) error {
			if row != b.Unmask(kindParent, id) {
				b.Error("another row key")
			}
			return wrong
		}
		if err := b.eraser.Delete(b.Context(), b.Account, opDelete, kindParent, id, also); !errors.Is(err, wrong) {
			b.Error(err)
		}
		if is, children, _ := b.counts(id); !is || children != 1 {
			b.Errorf("%v, %d children", is, children)
		}
	})
}

func TestLapse(t *testing.T) {
	inBench(t, func(b *bench) {
		soon, busy, later := b.parent(time.Now().Add(time.Minute), 600), b.parent(time.Now().Add(time.Minute), 1), b.parent(time.Now().Add(time.Hour), 1)
		b.ends.busy = map[uuid.UUID]bool{b.Unmask(kindParent, busy): true}
		time.Sleep(2 * time.Minute)
		if err := b.engine.Drain(b.Context()); err != nil {
			b.Fatal(err)
		}

		for _, id := range []uuid.UUID{soon, busy} {
			if is, children, letter := b.counts(id); is || children != 0 || !letter {
				b.Errorf("lapsed: %v, %d children, letter %v", is, children, letter)
			}
		}
		if is, children, letter := b.counts(later); !is || children != 1 || letter {
			b.Errorf("not lapsed: %v, %d children, letter %v", is, children, letter)
		}
		if b.ends.written != 2 {
			b.Errorf("%d transactions", b.ends.written)
		}
	})
}

// TestLapseAgain: a record whose ending could not be written is processed again at once.
func TestLapseAgain(t *testing.T) {
	inBench(t, func(b *bench) {
		id := b.parent(time.Now().Add(time.Minute), 0)
		b.ends.busy = map[uuid.UUID]bool{b.Unmask(kindParent, id): true}
		time.Sleep(2 * time.Minute)
		if err := b.engine.Drain(b.Context()); err != nil {
			b.Fatal(err)
		}
		if is, _, letter := b.counts(id); is || !letter {
			b.Errorf("%v, letter %v", is, letter)
		}
	})
}
