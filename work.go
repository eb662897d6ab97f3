package cardvault

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// lapsing are the kinds whose records are erased when they are due.
var lapsing = []store.Kind{kindToken, kindSession, kindAPIKey, kindIdempotency, kindAnswer}

const (
	sweepBatch = 500              // records erased in one transaction
	workPause  = 30 * time.Second // longest pause of Run: what another process stored is found then
)

// work is the state of background work.
type work struct {
	running atomic.Int32  // calls of Run
	warned  atomic.Bool   // that work waits and nobody runs it
	opened  time.Time     // when the vault was opened
	wake    chan struct{} // holds one token when something was stored that is due soon
	done    chan struct{} // closed with the vault
	once    sync.Once
}

func (w *work) init() {
	w.opened = time.Now()
	w.wake = make(chan struct{}, 1)
	w.done = make(chan struct{})
}

func (w *work) stop() { w.once.Do(func() { close(w.done) }) }

// workDue tells Run that something stored is due before it would look.
func (v *Vault) workDue(due time.Time) {
	if time.Until(due) < workPause {
		select {
		case v.work.wake <- struct{}{}:
		default:
		}
	}
	if v.work.running.Load() == 0 && time.Since(v.work.opened) > time.Minute && !v.work.warned.Swap(true) {
		v.log.Warn("background work waits and nobody runs it: call Run or Drain")
	}
}

// Run does the background work of the vault until ctx ends: it erases what has
// lapsed within seconds. It returns nil then, and ErrClosed if the vault is
// closed first. Failures are logged and tried again. Several processes may run
// on one store.
func (v *Vault) Run(ctx context.Context) error {
	v.work.running.Add(1)
	defer v.work.running.Add(-1)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-v.work.done:
			return ErrClosed
		case <-timer.C:
		case <-v.work.wake:
		}
		pause := workPause
		err := v.Drain(ctx)
		if err == nil {
			var next time.Time
			if next, err = v.nextDue(ctx); !next.IsZero() {
				pause = min(pause, max(0, time.Until(next)))
			}
		}
		switch {
		case errors.Is(err, ErrClosed):
			return ErrClosed
		case err != nil && ctx.Err() == nil:
			v.log.Error("background work failed and will be tried again", "error", err)
			pause = time.Second
		}
		timer.Reset(pause)
	}
}

// Drain does the background work that is due and returns.
func (v *Vault) Drain(ctx context.Context) error {
	var errs []error
	for _, kind := range lapsing {
		for n := sweepBatch; n == sweepBatch; {
			var err error
			if n, err = v.sweep(ctx, kind); err != nil {
				errs = append(errs, err) // what is damaged keeps nothing else from being erased
			}
		}
	}
	return errors.Join(errs...)
}

// nextDue returns when something lapses next, or the zero time.
func (v *Vault) nextDue(ctx context.Context) (next time.Time, err error) {
	err = v.view(ctx, func(tx store.ReadTx) error {
		next = time.Time{}
		for _, kind := range lapsing {
			t, err := tx.Next(kind)
			if err != nil {
				return err
			}
			if next.IsZero() || !t.IsZero() && t.Before(next) {
				next = t
			}
		}
		return nil
	})
	return next, err
}

// sweep erases one batch of lapsed records of a kind and returns how many.
func (v *Vault) sweep(ctx context.Context, kind store.Kind) (int, error) {
	var due []*store.Record
	at := now()
	// Looking first costs a write only when there is something to erase.
	err := v.view(ctx, func(tx store.ReadTx) (err error) {
		due, err = tx.Due(kind, at, 1)
		return err
	})
	if err != nil || len(due) == 0 {
		return 0, err
	}
	err = wrapped(v.store.Update(ctx, func(tx store.Tx) (err error) {
		if due, err = tx.Due(kind, at, sweepBatch); err != nil {
			return err
		}
		for _, r := range due {
			// The index that was asked is not authenticated.
			if r.Due.IsZero() || lives(r, at) {
				return fmt.Errorf("%w: something is listed as lapsed that has not", ErrDamaged)
			}
			tx.Delete(kind, r.ID)
		}
		return nil
	}))
	if err != nil {
		v.wrote(ctx, opExpire, uuid.Nil, uuid.Nil, err)
		return 0, err
	}
	for _, r := range due {
		var object uuid.UUID // of a session it is a credential
		if kind == kindToken || kind == kindAPIKey {
			object = v.In(r.Account).mask(kind, r.ID)
		}
		v.wrote(ctx, opExpire, r.Account, object, nil)
	}
	return len(due), nil
}
