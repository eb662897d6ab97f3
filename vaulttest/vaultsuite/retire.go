package vaultsuite

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var retireBehaviours = []behaviour{
	{"RetireLate", retiredLate},
	{"RetireRace", retireRace},
}

// inUse checks that a term is closed and still needed, and returns why.
func inUse(t testing.TB, err error) *cardvault.TermInUseError {
	t.Helper()
	var e *cardvault.TermInUseError
	if !errors.As(err, &e) || !errors.Is(err, cardvault.ErrTermInUse) {
		t.Fatalf("error %v, want a TermInUseError", err)
	}
	return e
}

// states returns the states of the terms of a vault.
func states(t testing.TB, v *cardvault.Vault) (all []cardvault.TermState) {
	t.Helper()
	for _, term := range must(v.KeyReport(t.Context()))(t).Terms {
		all = append(all, term.State)
	}
	return all
}

// retired: a former term is closed at once, and its key is destroyed when no record and no
// time needs it, by a repeated call or in the background. Another vault on the store follows.
func retired(t *testing.T, s store.Store) {
	inBubble(t, s, func(t *testing.T, s store.Store) {
		v, other, ctx := vaultOn(t, s, nil), vaultOn(t, s, nil), t.Context()
		stop := runs(t, other)
		tokens := []*cardvault.Token{importCard(t, v, testCard(0), nil)}
		goOn(time.Second)
		tokens = append(tokens, importCard(t, v, testCard(1), nil))
		goOn(time.Second)
		stop()
		fails(t, "the active term", v.RetireTerm(ctx, 1), cardvault.ErrTermActive)
		fails(t, "a term that never was", v.RetireTerm(ctx, 7), cardvault.ErrTermUnknown)
		must(v.RotateKeys(ctx, nil))(t)

		sealed := int64(0)
		for _, n := range must(v.KeyReport(ctx))(t).Terms[0].Records {
			sealed += n
		}
		closedAt := time.Now()
		if e := inUse(t, v.RetireTerm(ctx, 1)); e.Term != 1 || e.Records != sealed || e.Unreadable != 0 || e.Until.Sub(closedAt).Round(time.Hour) != 24*time.Hour {
			t.Errorf("%+v, want %d records", e, sealed)
		}
		tokens = append(tokens, importCard(t, other, testCard(2), nil)) // it has not followed
		drain(t, v)
		if e := inUse(t, v.RetireTerm(ctx, 1)); e.Records != 0 {
			t.Errorf("after all was sealed anew: %+v", e)
		}
		is := must(v.KeyReport(ctx))(t).Terms[0]
		if is.State != cardvault.TermClosed || is.ClosedAt.Sub(closedAt).Abs() > time.Minute || !is.DestroyedAt.IsZero() || len(is.Records) != 0 {
			t.Errorf("the closed term: %+v", is)
		}

		goOn(24*time.Hour + time.Minute)
		noError(t, v.RetireTerm(ctx, 1))
		noError(t, other.RetireTerm(ctx, 1))
		is = must(other.KeyReport(ctx))(t).Terms[0]
		if is.State != cardvault.TermDestroyed || is.DestroyedAt.IsZero() || is.Age != is.DestroyedAt.Sub(is.CreatedAt) {
			t.Errorf("the destroyed term: %+v", is)
		}

		// The next two by Run of the other vault.
		must(v.RotateKeys(ctx, nil))(t)
		must(v.RotateKeys(ctx, nil))(t)
		inUse(t, v.RetireTerm(ctx, 3))
		inUse(t, v.RetireTerm(ctx, 2))
		goOn(22 * time.Hour)
		stop = runs(t, other)
		goOn(time.Hour)
		if is := states(t, v); !slices.Equal(is, []cardvault.TermState{"destroyed", "closed", "closed", "active"}) {
			t.Errorf("after 23 hours: %v", is)
		}
		goOn(2 * time.Hour)
		stop()
		if is := states(t, v); !slices.Equal(is, []cardvault.TermState{"destroyed", "destroyed", "destroyed", "active"}) {
			t.Errorf("after 25 hours: %v", is)
		}
		for _, v := range []*cardvault.Vault{v, other, vaultOn(t, s, nil)} {
			checkListed(t, v, tokens...)
		}
	})
}

// A notary is a store that notes under which terms parts are written.
type notary struct {
	store.Store
	before func() // called once, before the next Update
	wrote  map[uint32]bool
}

type notaryTx struct {
	store.Tx
	put []*store.Record
}

func (tx *notaryTx) Put(r *store.Record) {
	tx.put = append(tx.put, r)
	tx.Tx.Put(r)
}

func (n *notary) Update(ctx context.Context, fn func(store.Tx) error) error {
	if f := n.before; f != nil {
		n.before = nil
		f()
	}

	var put []*store.Record
	err := n.Store.Update(ctx, func(tx store.Tx) error {
		w := &notaryTx{Tx: tx}
		err := fn(w)
		put = w.put
		return err
	})
	if err != nil {
		return err
	}

	for _, r := range put {
		for _, part := range [][]byte{r.Shown, r.Secret} {
			if r.Kind > 1 && len(part) > 6 {
				n.wrote[binary.BigEndian.Uint32(part[2:])] = true
			}
		}
	}
	return nil
}

// refusals are errors of calls that another call of methods has left nothing to do.
var refusals = []error{cardvault.ErrNotFound, cardvault.ErrNetworkTokenState, cardvault.ErrCryptogramDeclined, cardvault.ErrSessionCompleted, cardvault.ErrNotEnabled}

// retiredLate: the term under which a call has sealed its records is closed before it writes
// them. The call succeeds, and nothing is written under that term. With -short it happens to
// every third method.
func retiredLate(t *testing.T, s store.Store) {
	n := &notary{Store: s, wrote: map[uint32]bool{}}
	late, other := paying(t, n, new(till)), paying(t, s, new(till))
	ctx := t.Context()
	calls := methods(t, late)
	term, every := uint32(1), 1
	if testing.Short() {
		every = 3
	}
	for i, name := range slices.Sorted(maps.Keys(calls)) {
		if name == "Run" || name == "RetireTerm" || strings.HasPrefix(name, "Delete") {
			continue
		}
		if i%every == 0 {
			n.before = func() {
				must(other.RotateKeys(ctx, nil))(t)
				inUse(t, other.RetireTerm(ctx, term))
				term++
				n.wrote = map[uint32]bool{}
			}
		}
		err := calls[name](ctx, late)
		refused := slices.ContainsFunc(refusals, func(r error) bool { return errors.Is(err, r) }) || len(cardvault.FieldErrors(err)) > 0
		if err != nil && !refused {
			t.Errorf("%s: %v", name, err)
		}
		for former := range term {
			if n.wrote[former] {
				t.Errorf("%s writes under term %d, which is closed", name, former)
			}
		}
	}
	if int(term)*every < 20 {
		t.Errorf("only %d calls were late", term-1)
	}

	drain(t, other)
	oneTerm(t, s, termOf(t, other))
	before := must(other.List(ctx, &cardvault.TokenListOptions{Ascending: true}))(t)
	checkListed(t, late, before.Items...)
}

// termOf returns the active term.
func termOf(t testing.TB, v *cardvault.Vault) uint32 {
	t.Helper()
	terms := must(v.KeyReport(t.Context()))(t).Terms
	return terms[len(terms)-1].Number
}

// retireRace: vaults on one store rotate and retire terms while callers write. Every call
// succeeds, if need be when it is repeated, because terms may be closed faster than it writes.
// No record is left under a closed term.
func retireRace(t *testing.T, s store.Store) {
	const n = 8
	rotations := 6
	if testing.Short() {
		rotations = 3
	}
	ctx := t.Context()
	vaults := []*cardvault.Vault{vaultOn(t, s, nil), vaultOn(t, s, nil)}
	var ids []uuid.UUID
	for i := range n {
		ids = append(ids, importCard(t, vaults[0], testCard(i), nil).ID)
	}

	var ended atomic.Int64
	parallel(t, 6, func(worker int) error {
		v := vaults[worker%2]
		if worker >= 4 {
			defer ended.Add(1)
			for range rotations {
				if err := insist(func() error { return errorOf(v.RotateKeys(ctx, nil)) }); err != nil {
					return err
				}
				for _, term := range must(v.KeyReport(ctx))(t).Terms {
					err := insist(func() error { return v.RetireTerm(ctx, term.Number) })
					if err != nil && !errors.Is(err, cardvault.ErrTermActive) && !errors.Is(err, cardvault.ErrTermInUse) {
						return err
					}
				}
			}
			return nil
		}
		for step := 0; step < 500 && ended.Load() < 2; step++ { // each leaves a record to seal anew, of the audit log
			text := canary + strings.Repeat("x", step%7)
			if err := errorOf(v.Update(ctx, ids[worker+4*(step%2)], cardvault.TokenUpdate{BusinessKey: &text})); err != nil && !errors.Is(err, cardvault.ErrUnavailable) {
				return err
			}
			made, err := v.Import(ctx, testCard(n), nil)
			if err == nil {
				err = insist(func() error { return v.Delete(ctx, made.ID) })
			}
			if err != nil && !errors.Is(err, cardvault.ErrUnavailable) {
				return err
			}
		}
		return nil
	})

	for _, v := range vaults { // their records of the audit log have been written then
		noError(t, v.Close())
	}
	v := vaultOn(t, s, nil)
	must(v.RotateKeys(ctx, nil))(t)
	drain(t, v)
	oneTerm(t, s, termOf(t, v))
	for _, term := range must(v.KeyReport(ctx))(t).Terms {
		if term.State == cardvault.TermClosed && len(term.Records) > 0 {
			t.Errorf("%+v", term)
		}
	}
	if page := must(v.List(ctx, nil))(t); page.TotalItems != n {
		t.Errorf("%d tokens, want %d", page.TotalItems, n)
	}
}

// insist repeats a call whose term is retired before it writes, a hundred times at most.
func insist(call func() error) (err error) {
	for range 100 {
		if err = call(); !errors.Is(err, cardvault.ErrUnavailable) {
			break
		}
	}
	return err
}
