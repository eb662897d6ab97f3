package cardvault_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// TestSinkProcessDies: events wait at most half a minute for another process. The lease of
// the working process costs a write every four seconds.
func TestSinkProcessDies(t *testing.T) {
	withSink(t, cardvault.Live, func(l *lab, sink *listener) {
		puts := &counting{Store: l.store.on(), kind: kindSinkQueue}
		mortal := &frail{base: puts}
		v := l.on(mortal)
		ctx, stop := context.WithCancel(l.Context())
		var running sync.WaitGroup
		running.Go(func() { l.try(v.Run(ctx)) })
		synctest.Wait()
		for range 400 { // keeps the shift busy
			_, err := v.Import(l.Context(), visa, nil)
			l.must(err)
			l.pass(50 * time.Millisecond)
		}
		if n := puts.n.Load(); n > 2+20/4 {
			t.Errorf("the queue was written %d times in 20 seconds", n)
		}

		sink.set(func(ctx context.Context, _ *cardvault.Event) error { <-ctx.Done(); return ctx.Err() })
		_, err := v.Import(l.Context(), visa, nil)
		l.must(err)
		l.pass(500 * time.Millisecond)
		mortal.set(errors.New("dead"), false)
		stop()
		running.Wait()
		sink.set(nil)
		id := l.imports(visa)
		l.run(func() { l.pass(25 * time.Second) })
		sink.took(id, createdEvent)
	})
}

// A counting store counts the Puts of one kind.
type counting struct {
	store.Store
	kind store.Kind
	n    atomic.Int64
}

type countingTx struct {
	store.Tx
	s *counting
}

func (tx countingTx) Put(r *store.Record) {
	if r.Kind == tx.s.kind {
		tx.s.n.Add(1)
	}
	tx.Tx.Put(r)
}

func (s *counting) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(countingTx{tx, s}) })
}

// TestSinkOfTwoProcesses: while one process passes events on, however slowly, another
// process passes none.
func TestSinkOfTwoProcesses(t *testing.T) {
	withSink(t, cardvault.Live, func(l *lab, sink *listener) {
		sink.set(func(context.Context, *cardvault.Event) error { time.Sleep(14 * time.Second); return nil })
		const events = 700
		for range events {
			l.imports(visa)
		}
		other := l.on(l.store)
		ctx, stop := context.WithCancel(l.Context())
		var running sync.WaitGroup
		running.Go(func() { l.try(other.Run(ctx)) })
		l.run(func() { l.pass(10 * time.Minute) })
		stop()
		running.Wait()
		if n := len(sink.passed()); n != events {
			t.Errorf("%d events were passed on, want %d", n, events)
		}
	})
}

// TestSinkShares: an account whose events all hang does not hold up other accounts. Its own
// events arrive in order.
func TestSinkShares(t *testing.T) {
	withSink(t, cardvault.Live, func(l *lab, sink *listener) {
		b, err := l.CreateAccount(l.Context(), "", nil)
		l.must(err)
		sink.set(func(ctx context.Context, e *cardvault.Event) error {
			if e.Account != b.ID {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		var hang []uuid.UUID
		for range 1000 {
			hang = append(hang, l.imports(visa))
		}

		l.run(func() {
			for range 10 {
				l.pass(7 * time.Second)
				began := time.Now()
				token, err := l.In(b.ID).Import(l.Context(), visa, nil)
				l.must(err)
				key := "again"
				_, err = l.In(b.ID).Update(l.Context(), token.ID, cardvault.TokenUpdate{BusinessKey: &key})
				l.must(err)
				patch(l, hang[0], "again")
				l.pass(5 * time.Second)
				sink.took(token.ID, createdEvent, patchedEvent)
				for _, p := range sink.passed() {
					if p.TokenID == token.ID && p.at.Sub(began) > 3*time.Second {
						t.Errorf("%v was passed on after %v", p, p.at.Sub(began))
					}
				}
			}
			sink.set(nil)
			l.pass(2 * time.Hour)
		})
		if n := sink.ordered(); n != len(hang)+10 {
			t.Errorf("events of %d tokens were accepted", n)
		}
	})
}

// ordered checks that the events of each token were accepted in order, and returns the
// number of tokens.
func (l *listener) ordered() int {
	l.t.Helper()
	last := map[uuid.UUID]uint64{}
	for _, p := range l.passed() {
		if p.err == nil {
			if p.Sequence < last[p.TokenID] {
				l.t.Errorf("%v of %v came after a later one", p, p.TokenID)
			}
			last[p.TokenID] = p.Sequence
		}
	}
	return len(last)
}

// TestSinkBehindACrowd: the events of an account are passed on in time. It does not matter
// how many events of a slow account come before them, or on which pages they are.
func TestSinkBehindACrowd(t *testing.T) {
	for what, test := range map[string]struct {
		before, between, after int           // slow tokens first, slow tokens between fast ones, fast tokens at the end
		slow, fast             time.Duration // time per event
		within                 time.Duration
	}{
		"many before":              {before: 11_000, after: 1, slow: time.Second, within: 4 * time.Second},
		"a few more before":        {before: 180, after: 1, slow: 15 * time.Second, within: time.Second},
		"many behind":              {before: 500, after: 900, slow: 15 * time.Second, within: 4 * time.Second},
		"more of both than places": {between: 300, slow: 15 * time.Second, fast: 100 * time.Millisecond, within: 3 * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			withSink(t, cardvault.Live, func(l *lab, sink *listener) {
				b, err := l.CreateAccount(l.Context(), "", nil)
				l.must(err)
				sink.set(func(ctx context.Context, e *cardvault.Event) error {
					takes := test.slow
					if e.Account == b.ID {
						takes = test.fast
					}
					time.Sleep(takes)
					return ctx.Err()
				})
				var ids []uuid.UUID
				other := func() {
					token, err := l.In(b.ID).Import(l.Context(), visa, nil)
					l.must(err)
					ids = append(ids, token.ID)
				}

				l.crowd(test.before, visa)
				for range test.between {
					l.imports(visa)
					other()
				}
				l.run(func() {
					began := time.Now()
					l.pass(3 * time.Second)
					for range test.after {
						began = time.Now()
						other()
					}
					for _, id := range ids {
						key := "again"
						_, err = l.In(b.ID).Update(l.Context(), id, cardvault.TokenUpdate{BusinessKey: &key})
						l.must(err)
					}
					l.pass(20 * time.Second)

					created, latest := 0, time.Duration(0)
					for _, p := range sink.passed() {
						if p.Account == b.ID && p.Type == receive.TokenCreated && p.err == nil {
							created++
							latest = max(latest, p.at.Sub(began))
						}
					}
					if created != len(ids) || latest > test.within {
						t.Errorf("%d of %d events were passed on, the last one after %v", created, len(ids), latest)
					}
					sink.set(nil)
					l.pass(10 * time.Minute)
				})
				if n := sink.ordered(); n != len(ids)+test.before+test.between {
					t.Errorf("events of %d tokens were accepted", n)
				}
			})
		})
	}
}

// A misfiled store, once it is on, lists an old delivery of a webhook as ready, as if its
// class had been edited.
type misfiled struct {
	store.Store
	on atomic.Bool
}

type misfiledTx struct{ store.Tx }
type misfiledReadTx struct{ store.ReadTx }

func misfile(q *store.Query, list func(*store.Query) (*store.List, error)) (*store.List, error) {
	ready, err := list(q)
	if err != nil || q.Kind != kindDelivery || q.Classes == (store.Classes{}) {
		return ready, err
	}
	all := *q
	all.Classes, all.Limit = store.Classes{}, 1
	first, err := list(&all)
	if err == nil && len(first.Records) == 1 && len(ready.Records) < q.Limit {
		ready.Records = append(first.Records, ready.Records...)
	}
	return ready, err
}

func (tx misfiledReadTx) List(q *store.Query) (*store.List, error) {
	return misfile(q, tx.ReadTx.List)
}
func (tx misfiledTx) List(q *store.Query) (*store.List, error) { return misfile(q, tx.Tx.List) }

func (s *misfiled) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error {
		if s.on.Load() {
			tx = misfiledReadTx{tx}
		}
		return fn(tx)
	})
}

func (s *misfiled) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error {
		if s.on.Load() {
			tx = misfiledTx{tx}
		}
		return fn(tx)
	})
}

// TestDeliveriesBehindALongLog: a delivery with an edited class stops no other delivery,
// even in a long log.
func TestDeliveriesBehindALongLog(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, _ *cardvault.Webhook) {
		s := &misfiled{Store: l.store.on()}
		l.store.rests(s)
		for range 1200 {
			l.imports(visa)
		}
		l.drain()
		s.on.Store(true)
		id := l.imports(visa)
		l.run(func() { l.pass(time.Minute) })
		post.has(url, id, createdEvent)
	})
}

// A losing store cannot read one record of a kind in a writing transaction, once the record
// is set.
type losing struct {
	store.Store
	kind store.Kind
	id   atomic.Pointer[uuid.UUID]
}

type losingTx struct {
	store.Tx
	s *losing
}

func (tx losingTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	if lost := tx.s.id.Load(); lost != nil && kind == tx.s.kind && id == *lost {
		return nil, store.ErrDamaged
	}
	return tx.Tx.Get(kind, id)
}

func (s *losing) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(losingTx{tx, s}) })
}

// notYet imports n tokens, whose events the webhook refuses at first. It returns their
// deliveries by due time.
func notYet(l *lab, post *post, n int) []*store.Record {
	l.Helper()
	l.keepBooks()
	post.says(500)
	for range n {
		l.imports(visa)
	}
	l.drain()
	post.set(nil)
	all := l.stored(kindDelivery)
	slices.SortFunc(all, func(a, b *store.Record) int { return a.Due.Compare(b.Due) })
	return all
}

// TestRetriesBesideALostDelivery: an unreadable delivery does not keep others from being
// retried, or from leaving the log.
func TestRetriesBesideALostDelivery(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, _ *cardvault.Webhook) {
		const n = 20
		lost := notYet(l, post, n)[0].ID
		books := l.store.on()
		s := &losing{Store: books, kind: kindDelivery}
		s.id.Store(&lost)
		l.store.rests(s)
		l.run(func() { l.pass(time.Hour) })
		if got := len(post.took(url)); got != n-1 {
			t.Errorf("%d deliveries have arrived, want %d", got, n-1)
		}

		l.run(func() { l.pass(9 * 24 * time.Hour) })
		l.store.rests(books)
		if left := l.stored(kindDelivery); len(left) != 1 || left[0].ID != lost {
			t.Errorf("%d deliveries are still in the log after a week", len(left)-1)
		}
	})
}

// TestRetriesBehindDamagedDeliveries: damaged due deliveries do not use up places in each
// batch.
func TestRetriesBehindDamagedDeliveries(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, _ *cardvault.Webhook) {
		const n, damaged = 427, 127
		for _, r := range notYet(l, post, n)[:damaged] {
			l.must(l.store.Update(l.Context(), func(tx store.Tx) error {
				is, err := tx.Get(kindDelivery, r.ID)
				if err != nil {
					return err
				}
				is.Version++
				is.Shown[len(is.Shown)-1] ^= 1
				tx.Put(is)
				return nil
			}))
		}
		s := &dueCounting{Store: l.store.on()}
		l.store.rests(s)
		l.pass(time.Minute)
		l.run(func() { l.pass(10 * time.Second) })
		if got := len(post.took(url)); got != n-damaged {
			t.Errorf("%d deliveries have arrived, want %d", got, n-damaged)
		}
		if got := s.n.Load(); got > 50 {
			t.Errorf("due deliveries were read %d times", got)
		}
	})
}

// A dueCounting store counts the reads of due deliveries.
type dueCounting struct {
	store.Store
	n atomic.Int64
}

type dueCountingTx struct {
	store.ReadTx
	s *dueCounting
}

func (tx dueCountingTx) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	if kind == kindDelivery {
		tx.s.n.Add(1)
	}
	return tx.ReadTx.Due(kind, shards, until, limit)
}

func (s *dueCounting) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(dueCountingTx{tx, s}) })
}

// TestPastBesideALostOne: an unreadable past state does not keep others from being erased.
func TestPastBesideALostOne(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, _ *cardvault.Webhook) {
		l.keepBooks()
		for range 3 {
			patch(l, l.imports(visa), "a")
		}
		l.drain()
		lost := l.stored(kindPast)[0].ID
		s := &losing{Store: l.store.on(), kind: kindPast}
		s.id.Store(&lost)
		books := l.store.on()
		l.store.rests(s)
		l.run(func() { l.pass(9 * 24 * time.Hour) })
		l.store.rests(books)
		if left := l.stored(kindPast); len(left) != 1 || left[0].ID != lost {
			t.Errorf("%d past states are left, want 1", len(left))
		}
	})
}
