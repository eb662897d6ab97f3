package cardvault_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// TestEventRetriedBesideOthers: a failed event is retried in time, even while more events
// come than the sink can handle.
func TestEventRetriedBesideOthers(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		first := l.imports(visa)
		n := 0
		sink.set(func(_ context.Context, e *cardvault.Event) error {
			if e.TokenID == first {
				if n++; n == 1 {
					return errNotNow
				}
				return nil
			}
			time.Sleep(time.Second)
			return nil
		})
		for range 300 {
			l.imports(visa)
		}

		began := time.Now()
		l.run(func() {
			for range 40 {
				for range 70 { // slightly more than the 64 a second that the sink handles
					l.imports(visa)
				}
				l.pass(time.Second)
			}
		})
		var after time.Duration
		for _, p := range sink.passed() {
			if p.TokenID == first && p.err == nil {
				after = p.at.Sub(began)
			}
		}
		if after == 0 || after > 30*time.Second {
			l.Errorf("the event was tried again after %v", after)
		}
	})
}

// TestEventsAfterAnOutage: a brief failure of the store stops events briefly, not for the
// length of a lease.
func TestEventsAfterAnOutage(t *testing.T) {
	withSink(t, cardvault.Live, func(l *lab, sink *listener) {
		l.run(func() {
			sink.set(func(context.Context, *cardvault.Event) error { time.Sleep(time.Second); return nil })
			l.imports(visa)
			l.pass(500 * time.Millisecond)
			l.store.set(errors.New("down"), false)
			l.pass(2 * time.Second)
			l.store.set(nil, false)

			other := l.imports(visa)
			l.pass(15 * time.Second)
			sink.took(other, createdEvent)
		})
	})
}

// A blind store, once it is on, cannot read the records of one kind.
type blind struct {
	store.Store
	kind store.Kind
	on   atomic.Bool
}
type blindTx struct {
	store.Tx
	s *blind
}
type blindReadTx struct {
	store.ReadTx
	s *blind
}

func (x blindReadTx) Get(k store.Kind, id uuid.UUID) (*store.Record, error) {
	if x.s.on.Load() && k == x.s.kind {
		return nil, store.ErrDamaged
	}
	return x.ReadTx.Get(k, id)
}
func (x blindTx) Get(k store.Kind, id uuid.UUID) (*store.Record, error) {
	if x.s.on.Load() && k == x.s.kind {
		return nil, store.ErrDamaged
	}
	return x.Tx.Get(k, id)
}
func (s *blind) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(blindReadTx{tx, s}) })
}
func (s *blind) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(blindTx{tx, s}) })
}

// TestEventsBesideAnUnreadableQueue: imports and deletions succeed while the store cannot
// read the sink's queue. Their events are passed on once it can.
func TestEventsBesideAnUnreadableQueue(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		s := &blind{Store: l.store, kind: kindSinkQueue}
		v := l.on(s)
		l.imports(visa)
		l.drain()

		s.on.Store(true)
		token, err := v.Import(l.Context(), visa, nil)
		l.must(err)
		s.on.Store(false)
		l.imports(visa)
		l.run(func() { l.pass(time.Minute) })
		sink.took(token.ID, createdEvent)
	})
}

// TestEventsBesideAnEditedQueue: an edited record of the sink's queue stops no events.
func TestEventsBesideAnEditedQueue(t *testing.T) {
	for what, edit := range map[string]func(*store.Record){
		"as far as a pause": func(r *store.Record) { r.Due = time.Now().Add(119 * time.Minute).UTC().Truncate(time.Microsecond) },
		"far away":          func(r *store.Record) { r.Due = time.Now().AddDate(1, 0, 0).UTC().Truncate(time.Microsecond) },
		"another account":   func(r *store.Record) { r.Account = uuid.UUID{1: 7} },
	} {
		t.Run(what, func(t *testing.T) {
			withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
				l.imports(visa)
				l.drain()
				var edited *store.Record
				l.must(l.store.on().Update(l.Context(), func(tx store.Tx) error {
					r, err := tx.Get(kindSinkQueue, uuid.UUID{15: 2})
					if err != nil {
						return err
					}
					edited = r.Clone()
					tx.Delete(r.Kind, r.ID)
					return nil
				}))
				edit(edited)
				edited.Version = 1
				l.must(l.store.on().Update(l.Context(), func(tx store.Tx) error { tx.Put(edited); return nil }))

				other := l.imports(visa)
				l.run(func() {
					l.pass(10 * time.Minute)
					another := l.imports(visa)
					l.pass(10 * time.Minute)
					sink.took(other, createdEvent)
					sink.took(another, createdEvent)
				})
			})
		})
	}
}

// TestEventRetriedBesideAnUnreadableQueue: an event is retried even though the queue of a
// webhook with a due delivery is unreadable.
func TestEventRetriedBesideAnUnreadableQueue(t *testing.T) {
	sink := &listener{t: t}
	inPost(t, cardvault.Options{Mode: cardvault.Sandbox, Events: sink}, func(l *lab, post *post, _ *cardvault.Webhook) {
		s := &blind{Store: l.store.on(), kind: kindQueue}
		l.store.rests(s)
		post.says(500)
		tries := map[uuid.UUID]int{}
		sink.set(func(_ context.Context, e *cardvault.Event) error {
			if tries[e.TokenID]++; tries[e.TokenID] <= 4 {
				return errNotNow
			}
			return nil
		})
		l.run(func() {
			id := l.imports(visa)
			l.pass(time.Second)
			s.on.Store(true)
			l.pass(48 * time.Hour)
			sink.took(id, createdEvent)
		})
	})
}
