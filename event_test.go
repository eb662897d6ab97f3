package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// vaultsuite.Run tests events on any store. The tests here take time, or let something fail
// in between.

// A listener is a sink that records its calls and their times, and answers as the test says.
// It fails the test if it is called for two events of a token at the same time.
type listener struct {
	t        testing.TB
	mu       sync.Mutex
	finished []passing
	busy     map[uuid.UUID]bool
	answer   func(context.Context, *cardvault.Event) error // nil accepts all events
}

// A passing is one call of a sink.
type passing struct {
	*cardvault.Event
	at  time.Time
	err error
}

func (p passing) String() string { return fmt.Sprint(p.Type, " ", p.Reason) }

var errNotNow = errors.New("not now")

func (l *listener) Event(ctx context.Context, e *cardvault.Event) (err error) {
	p := passing{e, time.Now(), errNotNow}
	l.mu.Lock()
	answer := l.answer
	if l.busy == nil {
		l.busy = map[uuid.UUID]bool{}
	}
	if l.busy[e.TokenID] {
		l.t.Errorf("%v is passed while another event of its token is still being passed", p)
	}
	l.busy[e.TokenID] = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.busy, e.TokenID)
		p.err = err
		l.finished = append(l.finished, p)
	}()
	if d, ok := ctx.Deadline(); !ok || time.Until(d) != 15*time.Second {
		l.t.Errorf("%v has a deadline in %v", p, time.Until(d))
	}
	if answer == nil {
		return nil
	}
	err = errNotNow // in case of a panic
	return answer(ctx, e)
}

func (l *listener) set(answer func(context.Context, *cardvault.Event) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = answer
}

// passed returns the finished calls, in the order in which they ended.
func (l *listener) passed() []passing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.finished)
}

// took checks which events of a token were accepted, and their order.
func (l *listener) took(token uuid.UUID, want ...string) {
	l.t.Helper()
	var got []string
	for _, p := range l.passed() {
		if p.TokenID == token && p.err == nil {
			got = append(got, p.String())
		}
	}
	if !slices.Equal(got, want) {
		l.t.Errorf("accepted\n got %q\nwant %q", got, want)
	}
}

const (
	createdEvent = "token.created imported"
	patchedEvent = "token.updated patched"
	deletedEvent = "token.deleted requested"
	expiredEvent = "token.deleted expired"
)

// withSink runs f in a lab with a listener. Cards get no network token unless l.net.ineligible
// is set to nil.
func withSink(t *testing.T, mode cardvault.Mode, f func(l *lab, sink *listener)) {
	t.Helper()
	sink := &listener{t: t}
	inLab(t, &cardvault.Options{Mode: mode, Events: sink}, func(l *lab) {
		l.net.ineligible = func(card.Scheme) error { return configurationError("merchant_not_enrolled") }
		f(l, sink)
	})
}

// patch causes an update event.
func patch(l *lab, id uuid.UUID, key string) {
	l.Helper()
	_, err := l.Update(l.Context(), id, cardvault.TokenUpdate{BusinessKey: &key})
	l.must(err)
}

// TestSinkNeverEnds: a sink that ignores its deadline holds back the events of one token. It
// does not delay other tokens for long.
func TestSinkNeverEnds(t *testing.T) {
	withSink(t, cardvault.Live, func(l *lab, sink *listener) {
		hangs := l.imports(visa)
		ended := make(chan struct{})
		sink.set(func(_ context.Context, e *cardvault.Event) error {
			if e.TokenID == hangs {
				<-ended
			}
			return nil
		})
		l.run(func() {
			l.pass(time.Second)
			l.must(l.Vault.Delete(l.Context(), hangs))
			l.pass(2 * time.Hour)
			other := l.imports(visa)
			l.pass(time.Second)
			sink.took(other, createdEvent)
			close(ended)
			l.pass(time.Minute)
			sink.took(hangs, createdEvent, deletedEvent)
		})
	})
}

// A cramped store is out of space while full is set: it can only delete. It counts the
// records of each kind that it was asked to put, even if it refused.
type cramped struct {
	store.Store
	mu   sync.Mutex
	full bool
	puts map[store.Kind]int
}

func (s *cramped) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error {
		c := &crampedTx{tx, s, 0}
		err := fn(c)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil && s.full && c.puts > 0 {
			return store.ErrFull
		}
		return err
	})
}

type crampedTx struct {
	store.Tx
	of   *cramped
	puts int
}

func (tx *crampedTx) Put(r *store.Record) {
	tx.of.mu.Lock()
	defer tx.of.mu.Unlock()
	tx.puts++
	if tx.of.puts == nil {
		tx.of.puts = map[store.Kind]int{}
	}
	tx.of.puts[r.Kind]++
	tx.Tx.Put(r)
}

// TestLapsedWhereStorageIsFull: a lapsed card is erased, even though its deletion event
// cannot be stored.
func TestLapsedWhereStorageIsFull(t *testing.T) {
	inPost(t, sandboxPost, func(l *lab, post *post, hook *cardvault.Webhook) {
		id := dying(l, 60)
		kept := l.imports(visa)
		l.drain()
		s := &cramped{Store: l.store.on(), full: true}
		l.store.rests(s)
		l.run(func() {
			l.pass(2 * time.Minute)
			l.must(l.store.View(l.Context(), func(tx store.ReadTx) error {
				due, err := tx.Due(kindToken, store.AllShards, time.Now(), 10)
				if len(due) > 0 {
					t.Error("a lapsed card still exists")
				}
				return err
			}))
			l.get(kept)
			if log := l.log.text(); !strings.Contains(log, "erased without their events") {
				t.Errorf("the log does not mention it:\n%s", log)
			}
			s.mu.Lock()
			s.full = false
			s.mu.Unlock()
			l.pass(time.Minute)
			post.has(url, id, "token.created tokenized")
			l.must(l.Vault.Delete(l.Context(), kept))
			l.pass(time.Minute)
			post.has(url, kept, createdEvent, deletedEvent)
		})
	})
}

// TestLapsedWhileOneRegisters: a webhook of another account costs deliveries only for that
// account's tokens.
func TestLapsedWhileOneRegisters(t *testing.T) {
	const tokens = 100
	inPost(t, sandboxPost, func(l *lab, post *post, hook *cardvault.Webhook) {
		for range tokens {
			dying(l, 60)
		}
		l.drain()
		a, err := l.CreateAccount(l.Context(), "", nil)
		l.must(err)
		theirs := l.In(a.ID)
		session, err := theirs.CreateSession(l.Context(), &cardvault.SessionOptions{TokenTTL: 2 * time.Minute})
		l.must(err)
		_, err = theirs.Tokenize(l.Context(), session.ID, visa)
		l.must(err)
		_, err = l.open().In(a.ID).CreateWebhook(l.Context(), "https://theirs.example/", nil)
		l.must(err)
		l.pass(5 * time.Minute)
		s := &cramped{Store: l.store.on()}
		l.store.rests(s)
		post.forget()
		l.drain()
		if n := s.puts[kindDelivery] - len(post.took(url)) - len(post.took("https://theirs.example/")); n != tokens+1 {
			t.Errorf("%d deliveries were made, want %d", n, tokens+1)
		}
		if n, m := len(post.took(url)), len(post.took("https://theirs.example/")); n != tokens || m != 1 {
			t.Errorf("%d and %d deletions were delivered, want %d and 1", n, m, tokens)
		}
	})
}

// dying returns a token that expires after the given number of seconds.
func dying(l *lab, seconds int) uuid.UUID {
	l.Helper()
	session, err := l.CreateSession(l.Context(), &cardvault.SessionOptions{TokenTTL: time.Duration(seconds) * time.Second})
	l.must(err)
	token, err := l.Tokenize(l.Context(), session.ID, visa)
	l.must(err)
	return token.ID
}

// TestEventsOfALife: a token goes through every change that has an event.
func TestEventsOfALife(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		l.net.ineligible = nil
		secrets := []string{secretNumber, secretName, secretCode}
		l.store.rests(storetest.Canary(t, l.store.on(), []byte(secretNumber), []byte(secretName), []byte(secretCode)))
		var id uuid.UUID
		l.run(func() {
			id = l.imports(secretCard())
			l.pass(time.Second)
			for _, n := range []network.Notice{
				{Kind: network.NoticeSuspended, By: network.OwnerIssuer},
				{Kind: network.NoticeResumed, By: network.OwnerIssuer},
				{Kind: network.NoticeCardRenewed, Card: &network.CardState{LastFour: "0366", Expiry: card.Expiry{Month: 1, Year: 2099}}},
				{Kind: network.NoticeInvalidated},
			} {
				l.notify(n)
				l.pass(time.Second)
			}
			l.must(l.Vault.Delete(l.Context(), id))
			l.pass(time.Second)
		})
		const changed = "token.updated network_token_status_changed"
		sink.took(id, createdEvent, changed, changed, changed, "token.updated card_updated", "token.updated invalidated", deletedEvent)
		var states []string
		for _, p := range sink.passed() {
			if p.Token != nil {
				states = append(states, fmt.Sprint(p.Token.Status, " ", p.Token.NetworkTokenStatus, " ", p.Token.Expiry.Year))
			}
			vaulttest.AssertNoLeak(t, []string{secretNumber, secretCode}, p, p.Event, p.Token) // whose JSON has the name
			vaulttest.AssertNoLeak(t, secrets, fmt.Sprintf("%v %+v %#v", p, p.Event, p.Token))
		}
		vaulttest.AssertNoLeak(t, secrets, l.log.text())
		if want := []string{"active pending 2090", "active active 2090", "active inactive 2090", "active active 2090",
			"active active 2099", "invalid deleted 2099"}; !slices.Equal(states, want) {
			t.Errorf("states %q, want %q", states, want)
		}
	})
}

// TestEventRetries: ten attempts in three days, then the event is dropped.
func TestEventRetries(t *testing.T) {
	h := time.Hour
	for mode, want := range map[cardvault.Mode][]time.Duration{
		cardvault.Live: {5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * h, 5 * h, 10 * h, 14 * h, 20 * h, 24 * h},
		cardvault.Sandbox: {50 * time.Millisecond, 3 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second,
			5 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second},
	} {
		t.Run(mode.String(), func(t *testing.T) {
			withSink(t, mode, func(l *lab, sink *listener) {
				sink.set(func(context.Context, *cardvault.Event) error {
					return errors.New("4242424242424242 was passed to me")
				})
				id := l.imports(visa)
				l.run(func() { l.pass(200 * h) })
				var calls []call
				for _, p := range sink.passed() {
					calls = append(calls, call{at: p.at})
					if p.ID != sink.passed()[0].ID {
						t.Error("the id of the event changes when it is passed again")
					}
				}
				// A running shift looks for more events every ten milliseconds.
				if pause := calls[1].at.Sub(calls[0].at); pause < want[0]*4/5 || pause > want[0]*6/5+15*time.Millisecond {
					t.Errorf("the first pause is %v, want %v", pause, want[0])
				}
				within(t, "event", calls[1:], want[1:]...)
				if n := strings.Count(l.log.text(), "level=ERROR"); n != 1 {
					t.Errorf("%d errors in the log, want 1", n)
				}
				vaulttest.AssertNoLeak(t, []string{"4242424242424242"}, l.log.text())
				sink.set(nil)
				patch(l, id, "a")
				l.run(func() { l.pass(200 * h) })
				sink.took(id, patchedEvent)
			})
		})
	}
}

// TestEventsHeldBack: the events of a token wait behind a failing one until it has failed
// three times. Events of other tokens do not wait, and waiting costs no writes.
func TestEventsHeldBack(t *testing.T) {
	withSink(t, cardvault.Live, func(l *lab, sink *listener) {
		var writes atomic.Int64
		l.store.hook(func() error { writes.Add(1); return nil })
		held := l.imports(visa)
		sink.set(func(_ context.Context, e *cardvault.Event) error {
			if e.TokenID == held && e.Type == receive.TokenCreated {
				return errNotNow
			}
			return nil
		})
		l.run(func() {
			l.pass(time.Second)
			patch(l, held, "a")
			patch(l, held, "b")
			other := l.imports(visa)
			l.pass(10 * time.Second) // the second failure
			sink.took(held)
			sink.took(other, createdEvent)
			before := writes.Load()
			l.pass(3 * time.Minute)
			if n := writes.Load() - before; n != 0 {
				t.Errorf("%d writes while nothing is due", n)
			}
			patch(l, held, "c")
			l.pass(5 * time.Minute) // the third failure
			sink.took(held, patchedEvent, patchedEvent, patchedEvent)
			calls := sink.passed()
			last := calls[len(calls)-1]
			for i, p := range calls[len(calls)-3:] {
				if p.Token.BusinessKey != string("abc"[i]) {
					t.Errorf("event %d has business key %q", i, p.Token.BusinessKey)
				}
			}
			if failure := calls[len(calls)-4]; failure.err == nil || last.at.Sub(failure.at) > time.Second {
				t.Errorf("the later events came %v after the third failure", last.at.Sub(failure.at))
			}
			sink.set(nil)
			patch(l, held, "d")
			l.pass(time.Second)
			sink.took(held, patchedEvent, patchedEvent, patchedEvent, patchedEvent)
			l.pass(40 * time.Minute)
			sink.took(held, patchedEvent, patchedEvent, patchedEvent, patchedEvent, createdEvent)
		})
		// Each failure, delivery and wait costs a write or two.
		if n := writes.Load(); n > 40 {
			t.Errorf("%d writes", n)
		}
	})
}

// TestEventSinkHangs: a call that takes too long has failed. Other tokens do not wait for
// it.
func TestEventSinkHangs(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		hung := l.imports(visa)
		sink.set(func(ctx context.Context, e *cardvault.Event) error {
			if e.TokenID != hung {
				return nil
			}
			sink.set(nil)
			<-ctx.Done()
			return ctx.Err()
		})
		l.run(func() {
			patch(l, hung, "a")
			for range 200 { // more than are claimed at once
				l.imports(visa)
			}
			l.pass(time.Second)
			if n := len(sink.passed()); n != 200 {
				t.Errorf("%d events of other tokens have arrived, want 200", n)
			}
			l.pass(15 * time.Second)
			sink.took(hung, createdEvent, patchedEvent)
		})
	})
}

// TestEventSinkPanics: a panic is a failure, and its value is not logged.
func TestEventSinkPanics(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		sink.set(func(context.Context, *cardvault.Event) error {
			sink.set(nil)
			panic("4242424242424242")
		})
		id := l.imports(visa)
		l.run(func() { l.pass(time.Second) })
		sink.took(id, createdEvent)
		if len(sink.passed()) != 2 || !strings.Contains(l.log.text(), "panicked") {
			t.Errorf("passed %v; log %s", sink.passed(), l.log.text())
		}
		vaulttest.AssertNoLeak(t, []string{"4242424242424242"}, l.log.text())
	})
}

// TestKilledWhilePassingEvents: an event comes again with the same id, once the lease has
// ended, if its removal may not have been stored. Later events wait for it.
func TestKilledWhilePassingEvents(t *testing.T) {
	for _, test := range []struct {
		what  string
		fail  error
		done  bool
		times int
	}{
		{"before the removal", store.ErrUnavailable, false, 2},
		{"while it is removed, undone", store.ErrOutcomeUnknown, false, 2},
		{"while it is removed, done", store.ErrOutcomeUnknown, true, 1},
	} {
		t.Run(test.what, func(t *testing.T) {
			withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
				id := l.imports(visa)
				patch(l, id, "a")
				sink.set(func(context.Context, *cardvault.Event) error {
					sink.set(nil)
					l.store.set(test.fail, test.done)
					return nil
				})
				ctx, kill := context.WithCancel(l.Context())
				ended := make(chan error)
				go func() { ended <- l.Run(ctx) }()
				l.pass(100 * time.Millisecond)
				kill()
				<-ended
				l.restart()
				l.run(func() {
					l.pass(20 * time.Second) // the killed process might still be alive
					if n := len(sink.passed()); test.times == 2 && n != 1 {
						t.Errorf("%d events were passed within the lease", n)
					}
					l.pass(time.Minute)
				})
				want := append(slices.Repeat([]string{createdEvent}, test.times), patchedEvent)
				sink.took(id, want...)
				if calls := sink.passed(); calls[0].ID != calls[len(want)-2].ID {
					t.Error("the id of the event changes when it is passed again")
				}
			})
		})
	}
}

// TestEventsOfSeveralProcesses: of several processes on one store, only one passes each
// event, however long the sink takes. The order is kept.
func TestEventsOfSeveralProcesses(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		sink.set(func(context.Context, *cardvault.Event) error {
			<-time.After(14 * time.Second)
			return nil
		})
		var tokens []uuid.UUID
		for range 100 {
			id := l.imports(visa)
			patch(l, id, "a")
			patch(l, id, "b")
			tokens = append(tokens, id)
		}
		ctx, stop := context.WithCancel(l.Context())
		var running sync.WaitGroup
		for range 3 {
			v := l.open()
			running.Go(func() { l.try(v.Run(ctx)) })
		}
		l.pass(5 * time.Minute)
		stop()
		running.Wait()
		for _, id := range tokens {
			sink.took(id, createdEvent, patchedEvent, patchedEvent)
		}
		if n := len(sink.passed()); n != 300 {
			t.Errorf("%d events were passed, want 300", n)
		}
	})
}

// TestRunEndsWhilePassingEvents: Run waits for running calls, and starts no new ones.
func TestRunEndsWhilePassingEvents(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		sink.set(func(context.Context, *cardvault.Event) error {
			<-time.After(10 * time.Second)
			return nil
		})
		id := l.imports(visa)
		patch(l, id, "a")
		began := time.Now()
		l.run(func() { l.pass(time.Second) })
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("Run ended after %v", took)
		}
		sink.took(id, createdEvent)
		l.run(func() { l.pass(time.Hour) })
		sink.took(id, createdEvent, patchedEvent)
	})
}

// TestEventsOfADeletion: the event of a deletion comes last. Events that were not passed
// before it are dropped.
func TestEventsOfADeletion(t *testing.T) {
	for what, delete := range map[string]func(*lab, uuid.UUID){
		deletedEvent: func(l *lab, id uuid.UUID) { l.must(l.Vault.Delete(l.Context(), id)) },
		expiredEvent: func(l *lab, id uuid.UUID) { l.pass(4 * time.Second) },
	} {
		t.Run(what, func(t *testing.T) {
			withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
				sink.set(func(context.Context, *cardvault.Event) error {
					<-time.After(9 * time.Second)
					return nil
				})
				l.run(func() {
					id := dying(l, 5)
					patch(l, id, "a")
					l.pass(2 * time.Second) // the creation event is being passed
					delete(l, id)
					l.pass(time.Minute)
					sink.took(id, "token.created tokenized", what)
				})
				if strings.Contains(l.log.text(), "level=ERROR") {
					t.Errorf("log: %s", l.log.text())
				}
			})
		})
	}
}

// TestEventsOfADeletedTokenInAQueue: a claimed event that waits for its turn is not passed
// after the deletion of its token.
func TestEventsOfADeletedTokenInAQueue(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		const workers = 64
		var begun sync.Map
		sink.set(func(_ context.Context, e *cardvault.Event) error {
			begun.Store(e.TokenID, true)
			<-time.After(9 * time.Second)
			return nil
		})
		var ids []uuid.UUID
		for range workers + 10 {
			ids = append(ids, l.imports(visa))
		}
		l.run(func() {
			l.pass(time.Second)
			waiting := slices.DeleteFunc(slices.Clone(ids), func(id uuid.UUID) bool { _, ok := begun.Load(id); return ok })
			if len(waiting) != 10 {
				t.Errorf("%d events wait, want 10", len(waiting))
			}
			for _, id := range waiting {
				l.must(l.Vault.Delete(l.Context(), id))
			}
			l.pass(time.Minute)
			for _, id := range waiting {
				sink.took(id, deletedEvent)
			}
		})
	})
}

// TestEventThatHasWaitedTooLong: an event that could not be passed before its lease ended is
// left to the next process.
func TestEventThatHasWaitedTooLong(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		sink.set(func(_ context.Context, e *cardvault.Event) error {
			pause := 30 * time.Second // ignores the deadline
			if e.Type == receive.TokenDeleted {
				pause = 14 * time.Second
			}
			<-time.After(pause)
			return nil
		})
		id := l.imports(visa)
		l.run(func() {
			l.pass(time.Second)
			l.must(l.Vault.Delete(l.Context(), id))
			l.pass(time.Second)
			ctx, stop := context.WithCancel(l.Context())
			ended := make(chan error)
			other := l.open()
			go func() { ended <- other.Run(ctx) }()
			l.pass(5 * time.Minute)
			stop()
			l.must(<-ended)
		})
		sink.took(id, createdEvent, deletedEvent)
	})
}

// TestEventsOfASweep: a sweep reports each token exactly once, whatever happens between its
// reads and its writes.
func TestEventsOfASweep(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		ids := map[uuid.UUID]bool{}
		for range 700 { // more than one batch
			ids[dying(l, 5)] = true
		}
		l.drain()
		l.pass(time.Minute)
		other := l.open()
		once := true
		l.store.hook(func() error {
			if once {
				once = false
				l.try(other.Drain(l.Context()))
			}
			return nil
		})
		l.drain()
		l.store.hook(nil)
		l.drain()
		expired := sink.passed()[len(ids):]
		if len(expired) != len(ids) {
			t.Errorf("%d events, want %d", len(expired), len(ids))
		}
		for _, p := range expired {
			if p.String() != expiredEvent || !ids[p.TokenID] || p.Token != nil {
				t.Errorf("%v of token %v", p, p.TokenID)
			}
			delete(ids, p.TokenID)
		}
	})
}

// TestEventsWithoutNetwork: events do not need a network.
func TestEventsWithoutNetwork(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sink := &listener{t: t}
		v := vaulttest.NewWith(t, &cardvault.Options{Events: sink})
		token, err := v.Import(t.Context(), visa, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- v.Run(ctx) }()
		synctest.Wait()
		sink.took(token.ID, createdEvent)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestEventStoredMeanwhile: an event does not wait forever if it is stored just as its queue
// comes to rest, or as an earlier event is completed.
func TestEventStoredMeanwhile(t *testing.T) {
	// once makes f run before the n-th Update from now on.
	once := func(l *lab, n int64, f func()) {
		var updates atomic.Int64
		l.store.hook(func() error {
			if updates.Add(1) == n {
				f()
			}
			return nil
		})
	}
	for n, when := range []string{"before the queue is claimed", "before the first is erased", "before the queue rests"} {
		t.Run(when, func(t *testing.T) {
			withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
				id := l.imports(visa)
				l.pass(time.Second)
				once(l, int64(n+1), func() { patch(l, id, "a") })
				l.must(l.Drain(l.Context()))
				sink.took(id, createdEvent, patchedEvent)
			})
		})
	}
	t.Run("while the queue rests", func(t *testing.T) {
		withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
			other, id := l.open(), l.imports(visa)
			l.run(func() {
				l.pass(50 * time.Millisecond) // the shift is still waiting for more
				once(l, 1, func() { <-time.After(time.Second) })
				_, err := other.Update(l.Context(), id, cardvault.TokenUpdate{BusinessKey: new("a")})
				l.must(err)
				l.pass(time.Minute)
			})
			sink.took(id, createdEvent, patchedEvent)
		})
	})
}

// TestEventsCostLittle: an event costs one row besides its token. Its row is erased together
// with others.
func TestEventsCostLittle(t *testing.T) {
	const events = 64
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		l.imports(visa)
		l.drain()
		s := &cramped{Store: l.store.on()}
		l.store.rests(s)
		var updates atomic.Int64
		l.store.hook(func() error { updates.Add(1); return nil })
		l.crowd(events, visa)
		l.pass(time.Second)
		if stored := updates.Load(); stored != events || s.puts[kindDelivery] != events || s.puts[kindSinkQueue] != 1 || len(s.puts) != 3 {
			t.Errorf("%d updates for %d imports put %v", stored, events, s.puts)
		}
		updates.Store(0)
		l.store.hook(func() error { // other events are stored meanwhile
			updates.Add(1)
			<-time.After(time.Millisecond)
			return nil
		})
		sink.set(func(context.Context, *cardvault.Event) error {
			<-time.After(time.Second)
			return nil
		})
		l.must(l.Drain(l.Context()))
		if n := len(sink.passed()); n != events+1 {
			t.Errorf("%d events were passed", n)
		}
		if n := updates.Load(); n > 8 || s.puts[kindDelivery] != events {
			t.Errorf("%d updates for passing on %d events put %v", n, events, s.puts)
		}
	})
}

// TestEventOfATokenThatChangesUnheard: a waiting event shows the token as it was, even after
// a process without a sink has changed the token. Once the event has arrived, no former
// state is kept.
func TestEventOfATokenThatChangesUnheard(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		l.keepBooks()
		opts := l.opts
		opts.Events = nil
		keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
		l.must(err)
		other, err := cardvault.New(l.Context(), l.store, keys, &opts)
		l.must(err)
		defer other.Close()
		change := func(id uuid.UUID, key string) {
			_, err := other.Update(l.Context(), id, cardvault.TokenUpdate{BusinessKey: &key})
			l.must(err)
		}

		id := l.imports(visa)
		change(id, "a")
		change(id, "b")
		l.must(other.Drain(l.Context())) // leaves events to processes with a sink
		if n := len(l.stored(kindPast)); n != 1 {
			t.Errorf("%d states are kept, want 1", n)
		}
		l.drain()
		sink.took(id, createdEvent)
		if got := sink.passed()[0].Token.BusinessKey; got != "" {
			t.Errorf("the event has business key %q", got)
		}
		if n := len(l.stored(kindDelivery)); n != 0 {
			t.Errorf("%d deliveries are left", n)
		}

		patch(l, id, "c")
		l.drain()
		patch(l, id, "d")
		l.drain()
		sink.took(id, createdEvent, patchedEvent, patchedEvent)
		if n := len(l.stored(kindPast)); n != 1 {
			t.Errorf("%d states are kept, want none for events that have arrived", n-1)
		}
		l.run(func() { l.pass(9 * 24 * time.Hour) })
		if n := len(l.stored(kindPast)); n != 0 {
			t.Errorf("%d states are kept in the end", n)
		}
	})
}
