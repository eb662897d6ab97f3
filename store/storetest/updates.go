package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault/store"
)

var updateRules = []rule{{
	"ReadsSeeTheStateBefore",
	`Reads in an Update do not see the writes of the same fn. If one backend showed them, a vault
could come to rely on that and fail on another.`,
	readsSeeTheStateBefore,
}, {
	"ErrorOfFn",
	`View and Update return the error of fn unchanged, and an Update whose fn failed leaves no
trace. The vault's refusals travel this way.`,
	errorOfFn,
}, {
	"PanicOfFn",
	`An Update whose fn panics drops its writes and panics with that value in its caller. No lock
stays behind: one bad request must not stop the vault.`,
	panicOfFn,
}, {
	"GoexitOfFn",
	`An fn that ends its goroutine (runtime.Goexit, which is what FailNow of a test calls)
leaves no trace and no lock, and Update does not report success.`,
	goexitOfFn,
}, {
	"FailingNeighbours",
	`Updates that fail, in whatever way, do not disturb concurrent ones, even if the backend
commits several together.`,
	failingNeighbours,
}, {
	"VisibleAfterReturn",
	`When Update returns nil its writes are visible to every later View of any caller. A client
that has its answer may ask at once, through another connection.`,
	visibleAfterReturn,
}, {
	"Changes",
	`If the store is a Counter: what a View has read is still so as long as Changes returns what
it returned before. An API key that was revoked must not be remembered.`,
	changes,
}}

var contextRules = []rule{{
	"CancelledBefore",
	`An Update whose ctx ends before its turn returns the error of ctx, and an error of ctx means
that nothing was written.`,
	cancelledBefore,
}, {
	"CancelledInQueue",
	`ctx is observed while an Update waits for its turn, even among more callers than any queue
holds. Callers that keep waiting get their turn.`,
	cancelledInQueue,
}, {
	"CancelledAfterStart",
	`Once fn has started, Update waits for the outcome even if ctx ends: a caller that received an
error of ctx would repeat finished work.`,
	cancelledAfterStart,
}}

var closeRules = []rule{{
	"Closed",
	`After Close every call returns ErrClosed without calling fn; closing again returns nil. A
Counter returns 0: others may open the store, and revoke an API key.`,
	closed,
}, {
	"CloseWaits",
	`Close waits for running calls, and their true outcome is reported.`,
	closeWaits,
}, {
	"CloseAmidCalls",
	`Close may be called at any time and more than once: each concurrent call either succeeds or
returns ErrClosed.`,
	closeAmidCalls,
}}

func readsSeeTheStateBefore(t testing.TB, s store.Store) {
	early, late := time.UnixMicro(10), time.UnixMicro(20)
	before := row(1, hashes("old"), due(late))
	put(t, s, before, row(2, hashes("old")))
	update(t, s, func(tx store.Tx) error {
		tx.Put(row(1, version(2), hashes("new"), due(early), class(2)))
		tx.Put(row(3, hashes("new"), due(early)))
		tx.Delete(kindA, idOf(2))

		if r, err := tx.Get(kindA, idOf(1)); err != nil || differs(r, before) != "" {
			t.Errorf("Get of a record just put = %v, want it as it was before", err)
		}
		if _, err := tx.Get(kindA, idOf(2)); err != nil {
			t.Errorf("Get of a record just deleted = %v, want it as it was before", err)
		}
		if _, err := tx.Get(kindA, idOf(3)); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Get of a record just created = %v, want ErrNotFound", err)
		}

		l, err := tx.List(&store.Query{Kind: kindA, Account: alice, Classes: set(1), Limit: 9, Count: true})
		if err != nil {
			return err
		}
		is(t, "List", l.Records, 1, 2)
		if l.Total != 2 {
			t.Errorf("Total = %d, want 2", l.Total)
		}
		old, err := tx.Lookup(kindA, []byte("old"), 9)
		if err != nil {
			return err
		}

		is(t, "Lookup of a hash just removed", old, 1, 2)
		fresh, err := tx.Lookup(kindA, []byte("new"), 9)
		if err != nil {
			return err
		}
		is(t, "Lookup of a hash just written", fresh)
		ready, err := tx.Due(kindA, store.AllShards, late, 9)
		if err != nil {
			return err
		}

		is(t, "Due", ready, 1)
		at, err := tx.Next(kindA, store.AllShards)
		if !at.Equal(late) {
			t.Errorf("Next = %v, want %v", at, late)
		}
		return err
	})

	lists(t, s, "list afterwards", store.Query{Kind: kindA, Account: alice}, 1, 3)
	next(t, s, kindA, early)
}

// untouched checks that the store holds row 1 as it was put, and that neither
// of the changes of spoiling was made, and that it still works.
func untouched(t testing.TB, s store.Store) {
	t.Helper()
	holds(t, s, row(1, hashes("h")))
	lacks(t, s, row(2))
	found(t, s, kindA, "h", 9, 1)
	lists(t, s, "list", store.Query{Kind: kindA, Account: alice}, 1)
	put(t, s, row(3))
	update(t, s, deleting(row(3)))
}

// spoiling makes writes that untouched would find.
func spoiling(tx store.Tx) {
	tx.Put(row(2, hashes("h")))
	tx.Delete(kindA, idOf(1))
}

func errorOfFn(t testing.TB, s store.Store) {
	put(t, s, row(1, hashes("h")))
	// An error that says "conflict" must not make the store try again for ever.
	for _, want := range []error{
		errors.New("no"), fmt.Errorf("mine: %w", store.ErrConflict), store.ErrClosed, context.Canceled,
	} {
		if err := s.Update(background, func(tx store.Tx) error { spoiling(tx); return want }); err != want {
			t.Errorf("Update = %v, want the error of fn itself: %v", err, want)
		}
		if err := s.View(background, func(store.ReadTx) error { return want }); err != want {
			t.Errorf("View = %v, want the error of fn itself: %v", err, want)
		}
		untouched(t, s)
	}
}

// catch returns the value with which f panics, or nil.
func catch(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

func panicOfFn(t testing.TB, s store.Store) {
	put(t, s, row(1, hashes("h")))
	want := errors.New("a value")
	for range 3 {
		got := catch(func() {
			err := s.Update(background, func(tx store.Tx) error { spoiling(tx); panic(want) })
			t.Errorf("Update = %v after a panic of fn", err)
		})
		if got != want {
			t.Errorf("Update panics with %v, want %v", got, want)
		}
		if got := catch(func() { s.View(background, func(store.ReadTx) error { panic(want) }) }); got != want {
			t.Errorf("View panics with %v, want %v", got, want)
		}
		untouched(t, s)
	}
}

func goexitOfFn(t testing.TB, s store.Store) {
	put(t, s, row(1, hashes("h")))
	// The backend decides what the caller sees, as long as it is not success.
	ends := func(call func() error) {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer func() { _ = recover() }()
			if call() == nil {
				t.Error("a call whose fn never returned reports success")
			}
		}()
		await(t, ended, "call whose fn ended its goroutine")
	}

	for range 3 {
		ends(func() error {
			return s.Update(background, func(tx store.Tx) error { spoiling(tx); runtime.Goexit(); return nil })
		})
		ends(func() error {
			return s.View(background, func(store.ReadTx) error { runtime.Goexit(); return nil })
		})
		untouched(t, s)
	}
}

func failingNeighbours(t testing.TB, s store.Store) {
	const workers, rounds = 16, 25
	put(t, s, row(1))
	no := errors.New("no")
	numberOf := func(worker, round int) int { return 100 + worker*rounds + round }
	parallel(t, workers, func(w int) error {
		for i := range rounds {
			r := row(numberOf(w, i), hashes("h"))
			var want error
			var fn func(store.Tx) error
			switch w % 5 {
			case 0, 1:
				fn = putting(r)
			case 2:
				fn, want = func(tx store.Tx) error { tx.Put(r); return no }, no
			case 3:
				fn, want = putting(r, row(1)), store.ErrConflict
			case 4:
				value := catch(func() {
					_ = s.Update(background, func(tx store.Tx) error { tx.Put(r); tx.Delete(kindA, idOf(1)); panic(no) })
				})
				if value != no {
					return fmt.Errorf("Update panics with %v, want %v", value, no)
				}
				continue
			}

			if err := s.Update(background, fn); !errors.Is(err, want) {
				return fmt.Errorf("Update = %v, want %v", err, want)
			}
		}

		return nil
	})

	want := []int{}
	for w := range workers {
		for i := range rounds {
			if w%5 < 2 {
				want = append(want, numberOf(w, i))
			}
		}
	}

	found(t, s, kindA, "h", workers*rounds, want...)
	holds(t, s, row(1))
}

func visibleAfterReturn(t testing.TB, s store.Store) {
	const writers, each = 8, 40
	written := make(chan int)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				n := 1 + w*each + i
				if err := s.Update(background, putting(row(n, hashes(fmt.Sprint(n)), due(time.UnixMicro(int64(n)))))); err != nil {
					t.Errorf("Update: %v", err)
					return
				}
				written <- n
			}
		})
	}

	go func() { group.Wait(); close(written) }()
	for n := range written {
		err := s.View(background, func(tx store.ReadTx) error {
			if _, err := tx.Get(kindA, idOf(n)); err != nil {
				return fmt.Errorf("Get: %w", err)
			}
			if l, err := tx.List(&store.Query{Kind: kindA, Account: alice, Min: idOf(n), Max: idOf(n), Limit: 1, Count: true}); err != nil || len(l.Records) != 1 || l.Total != 1 {
				return fmt.Errorf("not listed (%v)", err)
			}
			if got, err := tx.Lookup(kindA, []byte(fmt.Sprint(n)), 1); err != nil || len(got) != 1 {
				return fmt.Errorf("not found by its hash (%v)", err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("record %d, acknowledged before: %v", n, err)
		}
	}
}

func changes(t testing.TB, s store.Store) {
	c, ok := s.(store.Counter)
	if !ok {
		return
	}
	before := c.Changes(kindA)
	put(t, s, row(1))
	after := c.Changes(kindA)
	if before == 0 || after <= before {
		t.Errorf("Changes = %d before a Put and %d after", before, after)
	}
	if again := c.Changes(kindA); again != after {
		t.Errorf("Changes = %d, then %d, and nothing was written", after, again)
	}

	const last = 200
	var acknowledged atomic.Uint64
	acknowledged.Store(1)
	var group sync.WaitGroup
	group.Go(func() {
		for v := uint64(2); v <= last; v++ {
			if err := s.Update(background, putting(row(1, version(v)))); err != nil {
				t.Errorf("Update: %v", err)
				break
			}
			acknowledged.Store(v)
		}
		acknowledged.Store(last)
	})

	for acknowledged.Load() < last {
		n := c.Changes(kindA)
		was := get(t, s, row(1)).Version
		later, least := get(t, s, row(1)).Version, acknowledged.Load()
		if c.Changes(kindA) == n && n != 0 && (was != later || was < least) {
			t.Errorf("Changes stays %d while a record goes from version %d to %d, of which %d was acknowledged", n, was, later, least)
			break
		}
	}
	group.Wait()

	deleted := c.Changes(kindA)
	update(t, s, func(tx store.Tx) error {
		tx.Delete(kindA, idOf(1))
		return nil
	})
	if n := c.Changes(kindA); n <= deleted {
		t.Errorf("Changes = %d before a Delete and %d after", deleted, n)
	}
}

func cancelledBefore(t testing.TB, s store.Store) {
	cancelled, cancel := context.WithCancel(background)
	cancel()
	expired, stop := context.WithDeadline(background, time.UnixMicro(0))
	defer stop()

	for range 20 { // a select among two that are ready picks either
		for _, done := range []context.Context{cancelled, expired} {
			if err := s.Update(done, putting(row(1))); !errors.Is(err, done.Err()) {
				t.Errorf("Update = %v, want %v", err, done.Err())
			}
			lacks(t, s, row(1))
			err := s.View(done, func(store.ReadTx) error { return nil })
			if err != nil && !errors.Is(err, done.Err()) {
				t.Errorf("View = %v, want nil or %v", err, done.Err())
			}
		}
	}

	put(t, s, row(1))
}

func cancelledInQueue(t testing.TB, s store.Store) {
	const callers = 1500
	started, release := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	var once sync.Once
	go func() {
		first <- s.Update(background, func(tx store.Tx) error {
			once.Do(func() { close(started) })
			<-release
			tx.Put(row(1))
			return nil
		})
	}()

	var free sync.Once
	defer free.Do(func() { close(release) })
	await(t, started, "first Update")

	impatient, cancel := context.WithCancel(background)
	defer cancel()
	type outcome struct {
		n   int
		err error
	}

	gone, stayed := make(chan outcome, callers), make(chan outcome, callers)
	for n := 2; n < 2+callers; n++ {
		c, out := background, stayed
		if n%2 == 0 {
			c, out = impatient, gone
		}
		go func() { out <- outcome{n, s.Update(c, putting(row(n)))} }()
	}

	for range callers {
		runtime.Gosched() // lets most of them reach the queue
	}
	cancel()
	outcomes := make([]outcome, 0, callers)
	for range callers / 2 {
		outcomes = append(outcomes, await(t, gone, "Update that was cancelled in the queue"))
	}

	free.Do(func() { close(release) })
	for range callers / 2 {
		o := await(t, stayed, "Update that waited in the queue")
		if o.err != nil {
			t.Errorf("Update that stayed in the queue = %v", o.err)
		}
		outcomes = append(outcomes, o)
	}

	if err := await(t, first, "first Update, now let go"); err != nil {
		t.Errorf("first Update = %v", err)
	}
	holds(t, s, row(1))
	view(t, s, func(tx store.ReadTx) error {
		for _, o := range outcomes {
			_, err := tx.Get(kindA, idOf(o.n))
			switch written := err == nil; {
			case err != nil && !errors.Is(err, store.ErrNotFound):
				return err
			case o.err != nil && !errors.Is(o.err, context.Canceled):
				t.Errorf("Update = %v, want nil or %v", o.err, context.Canceled)
			case written != (o.err == nil):
				t.Errorf("Update = %v, but written: %v", o.err, written)
			}
		}
		return nil
	})
}

func cancelledAfterStart(t testing.TB, s store.Store) {
	for n := range 20 {
		c, cancel := context.WithCancel(background)
		err := s.Update(c, func(tx store.Tx) error {
			cancel()
			if _, err := tx.Get(kindA, idOf(n+1)); !errors.Is(err, store.ErrNotFound) {
				return fmt.Errorf("Get = %w, want ErrNotFound", err)
			}
			tx.Put(row(n + 1))
			return nil
		})
		if err != nil {
			t.Errorf("Update = %v, want nil: fn had started", err)
		}
		holds(t, s, row(n+1))
	}

	c, cancel := context.WithCancel(background)
	no := errors.New("no")
	if err := s.Update(c, func(tx store.Tx) error { cancel(); return no }); err != no {
		t.Errorf("Update = %v, want the error of fn", err)
	}
}

func closed(t testing.TB, s store.Store) {
	put(t, s, row(1))
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
		err := s.View(background, func(store.ReadTx) error { t.Error("View calls fn after Close"); return nil })
		if !errors.Is(err, store.ErrClosed) {
			t.Errorf("View = %v, want ErrClosed", err)
		}
		err = s.Update(background, func(store.Tx) error { t.Error("Update calls fn after Close"); return nil })
		if !errors.Is(err, store.ErrClosed) {
			t.Errorf("Update = %v, want ErrClosed", err)
		}
		if c, ok := s.(store.Counter); ok && c.Changes(kindA) != 0 {
			t.Errorf("Changes = %d, want 0", c.Changes(kindA))
		}
	}
}

func closeWaits(t testing.TB, s store.Store) {
	put(t, s, row(1))
	release := make(chan struct{})
	var running sync.WaitGroup
	var ended atomic.Int32
	fn := func() func() {
		running.Add(1)
		started := sync.OnceFunc(running.Done)
		end := sync.OnceFunc(func() { ended.Add(1) })
		return func() { started(); <-release; end() }
	}

	results := make(chan error, 2)
	inView, inUpdate := fn(), fn()
	go func() {
		results <- s.View(background, func(tx store.ReadTx) error {
			inView()
			_, err := tx.Get(kindA, idOf(1))
			return err
		})
	}()

	go func() {
		results <- s.Update(background, func(tx store.Tx) error {
			inUpdate()
			tx.Put(row(2))
			_, err := tx.Get(kindA, idOf(1))
			return err
		})
	}()

	started := make(chan struct{})
	go func() { running.Wait(); close(started) }()
	await(t, started, "a View and an Update")

	result := make(chan error, 1)
	go func() {
		err := s.Close()
		if n := ended.Load(); n != 2 {
			t.Errorf("Close returned while %d calls were running", 2-n)
		}
		result <- err
	}()

	time.Sleep(20 * time.Millisecond) // lets a Close that does not wait return
	close(release)
	for range cap(results) {
		if err := await(t, results, "call that was running when Close came"); err != nil {
			t.Errorf("call that was running when Close came = %v", err)
		}
	}

	if err := await(t, result, "Close"); err != nil {
		t.Errorf("Close = %v", err)
	}
}

func closeAmidCalls(t testing.TB, s store.Store) {
	put(t, s, row(1))
	var calls atomic.Int64
	busy := make(chan struct{})
	enough := sync.OnceFunc(func() { close(busy) })
	parallel(t, 12, func(i int) error {
		if i < 2 {
			<-busy
			return s.Close()
		}

		defer enough()
		for n := 0; ; n++ {
			var err error
			if i%2 == 0 {
				err = s.Update(background, putting(row(i<<20+n)))
			} else {
				err = s.View(background, func(tx store.ReadTx) error {
					_, err := tx.Get(kindA, idOf(1))
					return err
				})
			}

			if errors.Is(err, store.ErrClosed) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("call while Close runs = %w", err)
			}
			if calls.Add(1) == 100 {
				enough()
			}
		}
	})
}
