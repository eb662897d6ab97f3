package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// States of an account. They are the classes of its record, so that a transaction sees them
// where nothing is opened.
const (
	Standing uint8 = iota + 1
	Frozen
	Closing // its records are being erased
	Closed  // its records are erased
)

// ErrAccountFrozen is returned for calls inside a frozen account.
var ErrAccountFrozen = errors.New("cardvault: account is frozen")

// trusted is the time for which a process goes by the state of an account that it has read,
// where the store does not count changes.
const trusted = time.Second

// Guarded returns the ledger for calls of callers inside the account. They read and write
// nothing unless it stands: ErrAccountFrozen while it is frozen, ErrNotFound once it is closed,
// or if it is not there. Background work and the operator have a ledger that is not guarded.
func (a Account) Guarded() Account {
	a.guarded = a.ID != uuid.Nil
	return a
}

// A sight is the state of an account as it was read.
type sight struct {
	state   uint8
	at      time.Time // before it was read
	changes uint64    // of a store that counts them, before it was read; 0: unknown
}

// fresh reports whether the account is still as it was read, or was within trusted.
func (s *sight) fresh(l *Ledger) bool {
	if c, ok := l.store.Store.(store.Counter); ok {
		return s.changes != 0 && c.Changes(KindAccount) == s.changes
	}
	return time.Since(s.at) < trusted
}

// State returns the state of the account. That it stands may be a second old.
func (a Account) State(ctx context.Context) (uint8, error) {
	if known, ok := a.known.Load(a.ID); ok && known.(*sight).state == Standing && known.(*sight).fresh(a.Ledger) {
		return Standing, nil
	}
	s := &sight{at: time.Now()}
	if c, ok := a.store.Store.(store.Counter); ok {
		s.changes = c.Changes(KindAccount)
	}
	r, err := a.In(uuid.Nil).Get(ctx, KindAccount, a.ID)
	if err != nil {
		return 0, err
	}
	s.state = r.Class
	a.known.Store(a.ID, s)
	return s.state, nil
}

// Usable returns why calls of callers inside the account are refused, or nil.
func (a Account) Usable(ctx context.Context) error {
	state, err := a.State(ctx)
	if err != nil {
		return err
	}
	return refused(state)
}

func refused(state uint8) error {
	switch state {
	case Standing:
		return nil
	case Frozen:
		return ErrAccountFrozen
	}
	return ErrNotFound
}

// A guard lets a transaction write nothing unless an account stands. The zero guard lets all.
type guard struct {
	whole Account   // without an account
	row   uuid.UUID // of the account; zero: there can be none
}

// guard returns the guard of a transaction: nothing is decrypted in it.
func (a Account) guard() (g guard) {
	if a.guarded {
		g.whole = a.In(uuid.Nil)
		g.row = g.whole.Unmask(KindAccount, a.ID)
	}
	return g
}

// admits also returns the record of the account, if it has read that.
func (g *guard) admits(tx store.ReadTx) (*store.Record, error) {
	switch {
	case g.whole.Ledger == nil:
		return nil, nil
	case g.row == uuid.Nil:
		return nil, ErrNotFound
	}
	r, err := tx.Get(KindAccount, g.row)
	if err == nil {
		err = refused(r.Class)
	}
	return r, g.whole.unnamed(KindAccount, g.row, err)
}

// Noticed waits until every process goes by the state of accounts that was written before.
// Writes go by it from their commit on. It does not end with a context, as it takes a second
// at most.
func (l *Ledger) Noticed() {
	if _, ok := l.store.Store.(store.Counter); !ok {
		time.Sleep(trusted)
	}
}
