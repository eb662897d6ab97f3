package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// ErrMoved is returned by every call on the place from which a vault moves, or has moved.
var ErrMoved = errors.New("cardvault: vault has moved")

// OpMove is the operation of the write that fences the vault.
var OpMove = Ends("vault.move")

// OpMoveBack is the operation of the write that takes a fence away again.
var OpMoveBack = Ends("vault.move_back")

// Fence keeps everybody out of the vault but ledgers with Config.Moving, from its transaction on.
// It returns the present fence of a vault that has one.
//
// The fence is in the keyring. Its transaction moves the counts of seals, as a step of a rotation
// of hashes does: every Update looks for one, so none is committed by a process that has not heard
// of the fence.
func (l *Ledger) Fence(ctx context.Context) (*seal.Fence, error) {
	err := l.alter(ctx, &alteration{
		op: OpMove,
		next: func(k *seal.Keys, _ *meta) (*seal.Keys, error) {
			if k.Fence != nil {
				return nil, nil
			}
			return k.Fenced(seal.Fence{Move: uuid.New(), At: Now()}), nil
		},
		also: moveCounts,
	})
	return l.Box.Keys().Fence, err
}

// Leave makes a fence final: the move cannot be taken back any more. opener is what thaws the new
// place. It returns ErrMoveEnded unless the fence is that of the move, and not another final one.
func (l *Ledger) Leave(ctx context.Context, move, opener uuid.UUID) error {
	return l.alter(unaudited(ctx), &alteration{ // no record would reach the new place
		op: OpMove,
		next: func(k *seal.Keys, _ *meta) (*seal.Keys, error) {
			switch f := k.Fence; {
			case f == nil || f.Move != move || f.Opener != uuid.Nil && f.Opener != opener:
				return nil, ErrMoveEnded
			case f.Opener == opener:
				return nil, nil
			default:
				return k.Fenced(seal.Fence{Move: move, At: f.At, Opener: opener}), nil
			}
		},
		also: func(store.Tx, *seal.Keys, *seal.Keys) error { return nil },
	})
}

// ErrMoveEnded is returned for a move that was taken back, or has ended in another place.
var ErrMoveEnded = fmt.Errorf("%w: the move was taken back, or has ended in another place", ErrMoved)

// back takes away the fence that Config.Thaw names, when the vault is opened.
func (l *Ledger) back(ctx context.Context) error {
	f := l.Box.Keys().Fence
	if f == nil || l.config.Moving || f.Opener != uuid.Nil || f.Move != l.config.Thaw {
		return l.Moved()
	}

	l.passing.Store(true)
	defer l.passing.Store(false)
	err := l.alter(ctx, &alteration{
		op: OpMoveBack,
		next: func(k *seal.Keys, _ *meta) (*seal.Keys, error) {
			if k.Fence == nil || k.Fence.Move != f.Move || k.Fence.Opener != uuid.Nil {
				return nil, ErrMoveEnded
			}
			return k.Unfenced(), nil
		},
		also: func(store.Tx, *seal.Keys, *seal.Keys) error { return nil },
	})
	if err == nil {
		l.config.Log.Warn("a move of the vault was taken back", "move", f.Move)
	}
	return err
}

// Moved returns ErrMoved if this process knows that the vault is fenced.
func (l *Ledger) Moved() error {
	if l.Box == nil || l.passing.Load() {
		return nil
	}
	f := l.Box.Keys().Fence
	switch {
	case f == nil:
		return nil
	case f.Opener == uuid.Nil:
		return fmt.Errorf("%w: a move to another place began at %v: repeat it unless it has ended, or set Options.Thaw to %v to take it back", ErrMoved, f.At.Format(time.RFC3339), f.Move)
	}
	return fmt.Errorf("%w: open its new place, with Options.Thaw %v if that is frozen", ErrMoved, f.Opener)
}

// A lookout notices that another process has fenced the vault.
type lookout struct {
	at      atomic.Int64  // when it has looked last
	changes atomic.Uint64 // of a store that counts them, before it has looked

	// barred is set while the keyring has changed as a fence changes it, and this process cannot
	// open it. Nothing is read then: the vault may be at work elsewhere.
	barred atomic.Bool

	// opening is there while a keyring that has changed like that is opened, and closed at the
	// end. Reads wait for it, since a key provider may take long.
	opening atomic.Pointer[chan struct{}]
}

// errBarred is returned for reads of a lookout that is barred.
var errBarred = fmt.Errorf("%w: the keyring of the vault has changed, and cannot be opened", ErrUnavailable)

// present returns ErrMoved for a read of a vault that is fenced. It looks once a second, or when
// the keyring has changed on a store that counts changes.
func (l *Ledger) present(ctx context.Context) error {
	if l.Box == nil {
		return nil
	}
	if err := l.lookout.wait(ctx); err != nil {
		return err
	}
	if err := l.Moved(); err != nil {
		return err
	}
	barred, counter := l.lookout.barred.Load(), l.counter
	if barred {
		counter = nil // the next try is a matter of time, not of changes
	}
	if !l.lookout.due(counter) {
		if barred {
			return errBarred
		}
		return nil
	}

	l.look(ctx)
	if err := l.Moved(); err != nil || !l.lookout.barred.Load() {
		return err
	}
	return errBarred
}

// look loads the keyring if it has changed.
func (l *Ledger) look(ctx context.Context) {
	keys := l.Box.Keys()
	fenced := false
	err := l.store.View(ctx, uuid.Nil, func(tx store.ReadTx) error {
		_, err := tx.Get(KindMeta, markID(keys.Generation))
		if errors.Is(err, store.ErrNotFound) {
			_, counted := tx.Get(KindMeta, countID(keys))
			fenced = errors.Is(counted, store.ErrNotFound) // a fence moves it, and a rotation of hashes
		}
		return err
	})

	switch {
	case err == nil:
		l.lookout.barred.Store(false)
	case errors.Is(err, store.ErrNotFound) && fenced:
		defer l.lookout.open()()
		err = l.reload(ctx)
		l.lookout.barred.Store(err != nil && !errors.Is(err, errKeyringLost)) // a keyring that is lost or was put back has no fence
	case errors.Is(err, store.ErrNotFound):
		_ = l.reload(ctx) // those calls hear of a failure that need the keys
		l.lookout.barred.Store(false)
	}
	if err != nil && ctx.Err() != nil {
		l.lookout.again()
	}
}

// wait returns when no keyring with a fence is being opened.
func (o *lookout) wait(ctx context.Context) error {
	opening := o.opening.Load()
	if opening == nil {
		return nil
	}
	select {
	case <-*opening:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// open lets reads wait until the function that it returns is called.
func (o *lookout) open() func() {
	opening := make(chan struct{})
	o.opening.Store(&opening)
	return func() {
		o.opening.CompareAndSwap(&opening, nil)
		close(opening)
	}
}

// due reports whether it is time to look, to one caller.
func (o *lookout) due(counter store.Counter) bool {
	if counter != nil {
		n, last := counter.Changes(KindMeta), o.changes.Load()
		return (n == 0 || n != last) && o.changes.CompareAndSwap(last, n)
	}
	now, last := time.Now().UnixNano(), o.at.Load()
	return (now-last >= int64(trusted) || now < last) && o.at.CompareAndSwap(last, now)
}

// again has the next caller look: the context of the last one has ended meanwhile.
func (o *lookout) again() {
	o.changes.Store(0)
	o.at.Store(0)
}

// heard returns a lateSeal for a transaction that has not looked for a count of seals, if its
// process has not heard of a later keyring that has moved them all.
func (c *checkedCall) heard() error {
	if c.vouched != 0 || len(c.open) > 0 || c.keys == nil {
		return nil
	}
	for _, id := range []uuid.UUID{countID(c.keys), markID(c.keys.Generation)} {
		switch _, err := c.tx.Get(KindMeta, id); {
		case err == nil:
			return nil
		case errors.Is(err, store.ErrNotFound):
		case Unreadable(err): // which is not gone
			return nil
		default:
			return &unnamed{err, store.Record{Kind: KindMeta}}
		}
	}
	return &lateSeal{0, c.keys, nil}
}
