package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

const (
	kindParent store.Kind = iota + 10
	kindChild
	kindMaker
)

var opSet = ledger.Adds("test.set")

// A wrapper does not encrypt the keys.
type wrapper struct{}

func (wrapper) KeyID() string { return "test" }
func (wrapper) Wrap(_ context.Context, b, _ []byte) ([]byte, error) {
	return append([]byte{}, b...), nil
}
func (wrapper) Unwrap(_ context.Context, b, _ []byte) ([]byte, error) {
	return append([]byte{}, b...), nil
}

// open returns the ledger of an account on a new store, and the errors that Wrote was called
// with.
func open(t *testing.T) (ledger.Account, *[]error) {
	t.Helper()
	return openOn(t, memstore.New())
}

func openOn(t *testing.T, s store.Store) (ledger.Account, *[]error) {
	t.Helper()
	var reported []error
	l := ledger.New(ledger.Config{
		Store:    s,
		Ring:     ledger.Ring{{Wrapper: wrapper{}}},
		ModeName: func(m uint8) string { return fmt.Sprint(m) },
		Families: ledger.Families{
			kindChild: {Parent: kindParent},
			kindMaker: {Made: func(row uuid.UUID) []byte { return row[:] }},
		},
		Names: map[store.Kind]ledger.Name{kindParent: {Kind: "parent", Printed: kindParent}},
		Log:   slog.New(slog.DiscardHandler),
		Wrote: func(_ context.Context, _ ledger.Operation, _, _ uuid.UUID, err error) {
			reported = append(reported, err)
		},
		Mistrust: func(answer string) { t.Error("the store returned", answer) },
	})
	first := func() (uuid.UUID, []*store.Record, error) {
		whole := l.In(uuid.Nil)
		row, err := l.NewRow()
		if err != nil {
			return uuid.Nil, nil, err
		}
		r := whole.NewRecord(ledger.KindAccount, row)
		return whole.Mask(ledger.KindAccount, row), []*store.Record{r}, l.SealShown(r, nil)
	}
	if err := l.Load(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	return l.In(l.First), &reported
}

// add stores a record after change has edited it, and returns its row key.
func add(t *testing.T, a ledger.Account, kind store.Kind, change func(*store.Record)) uuid.UUID {
	t.Helper()
	row, err := a.NewRow()
	if err != nil {
		t.Fatal(err)
	}
	r := a.NewRecord(kind, row)
	if change != nil {
		change(r)
	}
	if err := errors.Join(a.SealShown(r, []byte("old")), a.Put(t.Context(), opSet, uuid.Nil, r)); err != nil {
		t.Fatal(err)
	}
	return row
}

// set reads a record, calls between, and writes the next version with a text.
func set(ctx context.Context, a ledger.Account, row uuid.UUID, text string, between func()) error {
	r, err := a.GetRow(ctx, kindParent, row)
	if err != nil {
		return err
	}
	between()
	r.Version++
	if err := a.SealShown(r, []byte(text)); err != nil {
		return err
	}
	return a.Put(ctx, opSet, uuid.Nil, r)
}

// TestRetry: a slower call reads and writes again, and only its last write is reported as an
// outcome.
func TestRetry(t *testing.T) {
	a, reported := open(t)
	row := add(t, a, kindParent, nil)
	*reported = nil
	tries := 0
	_, err := ledger.Retry(t.Context(), func() (int, error) {
		tries++
		return tries, set(t.Context(), a, row, "slow", func() {
			if tries == 1 {
				if err := set(t.Context(), a, row, "fast", func() {}); err != nil {
					t.Fatal(err)
				}
			}
		})
	})
	if err != nil || tries != 2 || len(*reported) != 2 {
		t.Errorf("%v after %d tries and %d outcomes", err, tries, len(*reported))
	}
	r, err := a.GetRow(t.Context(), kindParent, row)
	if err != nil || r.Version != 3 {
		t.Fatal(r, err)
	}
	if plain, err := a.OpenShown(t.Context(), r); err != nil || string(plain) != "slow" {
		t.Errorf("%s, %v", plain, err)
	}
}

// TestRetryEnds: endless conflicts do not keep a call going after its context has ended. Any
// other error ends the call at once.
func TestRetryEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	_, err := ledger.Retry(ctx, func() (int, error) {
		switch tries++; {
		case tries == 3:
			cancel()
		case tries > 3:
			t.Fatal("Retry goes on after its context has ended")
		}
		return 0, fmt.Errorf("%w: again", ledger.ErrAgain)
	})
	if !errors.Is(err, context.Canceled) || tries != 3 {
		t.Errorf("%v after %d tries", err, tries)
	}
	if _, err := ledger.Retry(t.Context(), func() (int, error) { return 0, ledger.ErrNotFound }); err != ledger.ErrNotFound {
		t.Error(err)
	}
}

// TestFamily: a record is not found without its parent, and a family is deleted with its
// parent.
func TestFamily(t *testing.T) {
	a, _ := open(t)
	parent := add(t, a, kindParent, nil)
	child := add(t, a, kindChild, func(r *store.Record) { r.Parent = parent })
	orphan := add(t, a, kindChild, func(r *store.Record) { r.Parent = uuid.New() })
	maker := add(t, a, kindMaker, nil)
	made := add(t, a, kindMaker, func(r *store.Record) { r.Lookup = [][]byte{maker[:]} })
	get := func(kind store.Kind, row uuid.UUID) error {
		_, err := a.GetRow(t.Context(), kind, row)
		return err
	}
	if err := get(kindChild, child); err != nil {
		t.Error(err)
	}
	if err := get(kindChild, orphan); err != ledger.ErrNotFound {
		t.Errorf("an orphan: %v", err)
	}

	for kind, row := range map[store.Kind]uuid.UUID{kindParent: parent, kindMaker: maker} {
		glimpses, err := a.Made(t.Context(), kind, ledger.FamilyMade, row)
		if err != nil {
			t.Fatal(err)
		}
		err = a.Update(t.Context(), opSet, func(tx store.Tx) error {
			large, err := a.DeleteFamily(tx, kind, row, nil, glimpses)
			if large {
				t.Errorf("kind %d: a family of two is called large", kind)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := get(kindChild, child); err != ledger.ErrNotFound {
		t.Errorf("a child: %v", err)
	}
	if err := get(kindMaker, made); err != ledger.ErrNotFound {
		t.Errorf("a record that was made: %v", err)
	}
}

// TestOtherAccount: an account finds none of another account's records.
func TestOtherAccount(t *testing.T) {
	a, _ := open(t)
	row := add(t, a, kindParent, nil)
	other := a.In(uuid.New())
	if _, err := other.GetRow(t.Context(), kindParent, row); err != ledger.ErrNotFound {
		t.Error(err)
	}
	if id := a.Mask(kindParent, row); other.Unmask(kindParent, id) == row || a.Unmask(kindParent, id) != row {
		t.Error("a masked id means the same in another account")
	}
	if err := other.Exists(t.Context()); err != ledger.ErrNotFound {
		t.Error(err)
	}
}

func TestTranslate(t *testing.T) {
	for _, c := range []struct{ from, to error }{
		{nil, nil},
		{store.ErrNotFound, ledger.ErrNotFound},
		{store.ErrClosed, ledger.ErrClosed},
		{store.ErrFull, ledger.ErrStorageFull},
		{store.ErrUnavailable, ledger.ErrUnavailable},
		{store.ErrDamaged, ledger.ErrDamaged},
		{seal.ErrIntegrity, ledger.ErrDamaged},
		{seal.ErrExhausted, ledger.ErrKeyExhausted},
		{errors.Join(store.ErrFull, store.ErrOutcomeUnknown), ledger.ErrOutcomeUnknown},
		{context.Canceled, context.Canceled},
	} {
		once := ledger.Translate(c.from)
		if !errors.Is(once, c.to) {
			t.Errorf("%v: %v", c.from, once)
		}
		if twice := ledger.Translate(once); fmt.Sprint(twice) != fmt.Sprint(once) {
			t.Errorf("%v: %v", once, twice)
		}
	}
}

// TestDamageIsNamed: the error for a damaged record contains the record's kind and the id
// that its account sees. A missing keyring does not make the records that need it damaged.
func TestDamageIsNamed(t *testing.T) {
	a, _ := open(t)
	opened := func(kind store.Kind, at int) (uuid.UUID, error) {
		t.Helper()
		row := add(t, a, kind, nil)
		r, err := a.GetRow(t.Context(), kind, row)
		if err != nil {
			t.Fatal(err)
		}
		r.Shown[at] ^= 1
		_, err = a.OpenShown(t.Context(), r)
		return a.Mask(kind, row), err
	}

	const last, term = 20, 5 // indexes into the sealed bytes
	id, err := opened(kindParent, last)
	var d *ledger.Damage
	if !errors.As(err, &d) || d.Kind != "parent" || d.ID != id || !errors.Is(err, ledger.ErrDamaged) || !ledger.RowDamaged(err) ||
		!strings.HasPrefix(err.Error(), "cardvault: parent "+id.String()+": ") {
		t.Errorf("a record: %v, want parent %v", err, id)
	}
	if _, err = opened(kindChild, last); !errors.As(err, &d) || d.Kind != fmt.Sprint("record of kind ", kindChild) || d.ID != uuid.Nil {
		t.Errorf("a record of a kind without a name: %v", err)
	}

	if _, err = opened(kindParent, term); !ledger.RowDamaged(err) {
		t.Errorf("a record of an unknown term: %v", err)
	}
	if err := a.Update(t.Context(), opSet, func(tx store.Tx) error { tx.Delete(ledger.KindMeta, uuid.UUID{15: 1}); return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err = opened(kindParent, term); !errors.Is(err, ledger.ErrDamaged) || ledger.RowDamaged(err) {
		t.Errorf("a record of an unknown term, without a keyring: %v", err)
	}
}

// A torn store cannot read the row, once that is set.
type torn struct {
	store.Store
	row uuid.UUID
}

type tornReadTx struct {
	store.ReadTx
	s *torn
}

type tornTx struct {
	store.Tx
	s *torn
}

func (s *torn) get(kind store.Kind, row uuid.UUID, get func(store.Kind, uuid.UUID) (*store.Record, error)) (*store.Record, error) {
	if row == s.row {
		return nil, store.ErrDamaged
	}
	return get(kind, row)
}

func (tx tornReadTx) Get(kind store.Kind, row uuid.UUID) (*store.Record, error) {
	return tx.s.get(kind, row, tx.ReadTx.Get)
}

func (tx tornTx) Get(kind store.Kind, row uuid.UUID) (*store.Record, error) {
	return tx.s.get(kind, row, tx.Tx.Get)
}

func (s *torn) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(tornReadTx{tx, s}) })
}

func (s *torn) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(tornTx{tx, s}) })
}

// TestDamageInATransaction: when a transaction cannot read a record, the error names that
// record. This holds too if it is the parent of the record asked for.
func TestDamageInATransaction(t *testing.T) {
	s := &torn{Store: memstore.New()}
	a, _ := openOn(t, s)
	parent := add(t, a, kindParent, nil)
	child := add(t, a, kindChild, func(r *store.Record) { r.Parent = parent })
	s.row = parent

	for kind, row := range map[store.Kind]uuid.UUID{kindParent: parent, kindChild: child} {
		find := func(tx store.ReadTx) error {
			_, err := a.Find(tx, kind, row)
			return err
		}
		_, got := a.GetRow(t.Context(), kind, row)
		for _, err := range []error{
			got,
			a.View(t.Context(), find),
			a.Update(t.Context(), opSet, func(tx store.Tx) error { return find(tx) }),
		} {
			var d *ledger.Damage
			if !errors.As(err, &d) || d.Kind != "parent" || d.ID != a.Mask(kindParent, parent) || !errors.Is(err, ledger.ErrDamaged) {
				t.Errorf("kind %d: %v", kind, err)
			}
		}
	}
}

// TestGuardedAccount: a transaction shares no record of its account with the guard, whose record
// the first Get has, nor with another Get or another run.
func TestGuardedAccount(t *testing.T) {
	again := false
	a, _ := openOn(t, twice{memstore.New(), &again})
	again = true
	row, runs := a.In(uuid.Nil).Unmask(ledger.KindAccount, a.ID), 0
	err := a.Guarded().Update(t.Context(), opSet, func(tx store.Tx) error {
		runs++
		for range 3 {
			r, err := tx.Get(ledger.KindAccount, row)
			if err != nil || r.ID != row || r.Class != ledger.Standing {
				t.Fatalf("%+v, %v", r, err)
			}
			r.Class = ledger.Closed
		}
		return nil
	})
	if err != nil || runs != 2 {
		t.Error(err, runs)
	}
}

// A twice runs the function of an Update again, if again is set.
type twice struct {
	store.Store
	again *bool
}

func (s twice) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error {
		if err := fn(tx); err != nil || !*s.again {
			return err
		}
		return fn(tx)
	})
}
