package ledger

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Times of an anchor.
const (
	anchorPause    = 10 * time.Second // between a commit and the round that follows it, at most
	anchorTime     = 5 * time.Second  // of a call of the anchor
	anchorPatience = 5 * time.Second  // of a call of the vault for a round
	anchorTries    = 64               // of a round: a process of the vault may be faster at each
)

// opAnchor is the operation of writes of points. No round follows them, and none follows opSums.
var opAnchor = Ends("vault.anchor")

// An anchoring has the anchor follow the commits of this process, in rounds. A round that begins
// after a commit writes a point, so that the store says it has come further, and then has the
// anchor advance to that. A process that is killed in between leaves a store that is ahead.
type anchoring struct {
	begun   atomic.Bool
	dirty   atomic.Bool // something was committed, and no round has begun since
	failing Seldom

	mu     sync.Mutex
	next   *round // has not begun; nil: none waits
	busy   bool   // a round is under way
	timer  *time.Timer
	closed bool
}

// A round is one advance of the anchor.
type round struct {
	done chan struct{} // closed when it has ended
	err  error         // of the round
}

// FollowAnchor has the anchor follow, from a first round on, whose error it returns.
func (l *Ledger) FollowAnchor(ctx context.Context) error {
	if l.config.Anchor == nil {
		return nil
	}
	err := l.advance(ctx)
	if err == nil {
		l.anchoring.begun.Store(true)
	}
	return err
}

// committed is called after each Update that may have written.
func (l *Ledger) committed(op Operation, err error) {
	a := &l.anchoring
	if !a.begun.Load() || op == opAnchor || op == opSums || err != nil && !errors.Is(err, store.ErrOutcomeUnknown) || a.dirty.Load() || a.dirty.Swap(true) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	l.later()
}

// later has a round begin after a while. The caller holds the lock.
func (l *Ledger) later() {
	a := &l.anchoring
	if a.timer != nil || a.closed {
		return
	}
	a.timer = time.AfterFunc(anchorPause, func() {
		a.mu.Lock()
		a.timer = nil
		closed := a.closed
		a.mu.Unlock()
		if a.dirty.Load() && !closed {
			l.round()
		}
	})
}

// round returns the next round, which begins at once, or after the present one.
func (l *Ledger) round() *round {
	a := &l.anchoring
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next == nil {
		a.next = &round{done: make(chan struct{})}
	}
	r := a.next
	if !a.busy {
		a.busy = true
		go l.rounds()
	}
	return r
}

// rounds does the rounds that wait.
func (l *Ledger) rounds() {
	a := &l.anchoring
	for {
		a.mu.Lock()
		r := a.next
		a.next, a.busy = nil, r != nil
		a.mu.Unlock()
		if r == nil {
			return
		}

		r.err = l.advance(context.Background())
		if r.err != nil && !gone(r.err) {
			a.dirty.Store(true)
			a.mu.Lock()
			l.later()
			a.mu.Unlock()
			l.notAnchored(r.err)
		}
		close(r.done)
	}
}

func (l *Ledger) notAnchored(err error) {
	if l.anchoring.failing.Now() {
		l.config.Log.Error("the anchor does not follow the vault: a rollback to this time would not be noticed", "error", err)
	}
}

// advance writes a point, and has the anchor advance to it.
func (l *Ledger) advance(ctx context.Context) error {
	l.anchoring.dirty.Store(false) // a commit from here on has a round of its own
	if !l.settleSums(ctx) {
		l.anchoring.dirty.Store(true) // another round folds the rest
		l.anchoring.mu.Lock()
		l.later()
		l.anchoring.mu.Unlock()
	}
	for range anchorTries {
		c, err := l.compare(ctx)
		if err != nil {
			return err
		}
		switch {
		case c.rollback != nil:
			return c.rollback
		case c.stored == nil:
			return fmt.Errorf("%w: the store and the anchor have lost their numbers", ErrRolledBack)
		case c.pending: // the line begins in the anchor too
			if err := l.advanceAnchor(ctx, c.stored.number, c.row.Shown); err != nil {
				return err
			}
		}

		keys := l.Box.Keys()
		next := &point{
			vault: keys.Vault, number: c.stored.number + 1, line: c.stored.line, at: Now(),
			generation: max(keys.Generation, c.stored.generation), // another process may have a later one
			sums:       c.written(),
		}
		rec := next.record(keys, c.row.Version+1)
		err = l.In(uuid.Nil).Update(ctx, opAnchor, func(tx store.Tx) error {
			tx.Put(rec)
			return nil
		})
		switch {
		case err == nil:
			return l.advanceAnchor(ctx, next.number, rec.Shown)
		case !errors.Is(err, store.ErrConflict):
			return err
		}
	}
	return fmt.Errorf("%w: other processes write points all the time", ErrUnavailable)
}

// secure waits until the anchor has the commit of a call that must not be undone. It waits for a
// while only: the commit stands, and the log says that the anchor lacks it.
func (l *Ledger) secure(ctx context.Context) {
	if !l.anchoring.begun.Load() {
		return
	}
	if err := l.waitFor(ctx); err != nil && !gone(err) && ctx.Err() == nil {
		l.notAnchored(err)
	}
}

// gone reports whether err says that the vault does not work here any more.
func gone(err error) bool { return errors.Is(err, ErrMoved) || errors.Is(err, ErrClosed) }

func (l *Ledger) waitFor(ctx context.Context) error {
	r := l.round()
	timer := time.NewTimer(anchorPatience)
	defer timer.Stop()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return fmt.Errorf("%w: the anchor does not answer", ErrUnavailable)
	}
}

// CloseAnchor has the anchor follow for the last time. It lacks later writes.
func (l *Ledger) CloseAnchor() (err error) {
	a := &l.anchoring
	if !a.begun.Load() {
		return nil
	}
	a.mu.Lock()
	behind := (a.dirty.Load() || a.busy) && !a.closed
	a.closed = true
	if a.timer != nil {
		a.timer.Stop()
	}
	a.mu.Unlock()
	if behind {
		err = l.waitFor(context.Background())
	}
	if err == nil || gone(err) {
		return nil
	}
	return fmt.Errorf("cardvault: the vault is closed, and its anchor does not have the last changes: %w", err)
}

// Abandon is Close, and has the anchor follow no more.
func (l *Ledger) Abandon() {
	l.Close()
	a := &l.anchoring
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.timer != nil {
		a.timer.Stop()
	}
}

// loadAnchor calls Load of the anchor.
func (l *Ledger) loadAnchor(ctx context.Context) (text []byte, err error) {
	err = l.askAnchor(ctx, "reading", func(ctx context.Context) (err error) {
		text, err = l.config.Anchor.Load(ctx)
		return err
	})
	return text, err
}

func (l *Ledger) advanceAnchor(ctx context.Context, number uint64, text []byte) error {
	return l.askAnchor(ctx, "advancing", func(ctx context.Context) error { return l.config.Anchor.Advance(ctx, number, text) })
}

// askAnchor calls the anchor with a deadline. A panic is a missing answer.
func (l *Ledger) askAnchor(ctx context.Context, doing string, call func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, anchorTime)
	defer cancel()
	err := l.guardAnchor(limited, call)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w: %s the anchor: %w. Make it answer, or open the vault without Options.Anchor, and without notice of a rollback", ErrUnavailable, doing, err)
}

var errAnchorPanic = errors.New("it panicked")

func (l *Ledger) guardAnchor(ctx context.Context, call func(context.Context) error) (err error) {
	defer func() {
		if recover() != nil { // the value may hold anything
			l.config.Log.Error("anchor panicked", "stack", string(debug.Stack()))
			err = errAnchorPanic
		}
	}()
	return call(ctx)
}
