package queue_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/internal/queue"
)

type call struct {
	queue.Call
	fn func() error
}

// A backend answers a group once no more calls are ready. It records the groups' sizes.
type backend struct {
	*queue.Queue[*call]
	group  []*call
	groups []int
	hold   chan struct{} // if not nil, groups are answered when it is closed
	wake   chan time.Time
	wakes  int
}

func start(t *testing.T) *backend {
	b := &backend{Queue: queue.New[*call](), wake: make(chan time.Time)}
	b.Start(b.step)
	t.Cleanup(func() {
		select {
		case <-b.Closing():
		default:
			b.Close()
		}
	})
	return b
}

func (b *backend) step() bool {
	c, ok := b.Next(b.group, b.wake)
	switch {
	case ok:
		b.group = append(b.group, c)
		c.Run(c.fn)
	case len(b.group) > 0:
		if b.hold != nil {
			<-b.hold
		}
		b.groups = append(b.groups, len(b.group))
		b.answer()
	default:
		select {
		case <-b.Closing():
			return false
		default:
			b.wakes++
		}
	}
	return true
}

// answer runs all calls of a group again, each alone, if one of several fails.
func (b *backend) answer() {
	fails := func(c *call) bool { return errors.Is(c.Err, errDisk) }
	group := b.group
	b.group = nil
	if len(group) > 1 && slices.ContainsFunc(group, fails) {
		for _, c := range group {
			c.Alone = true
		}
		b.Again(group...)
		return
	}
	for _, c := range group {
		if fails(c) {
			c.Fail(store.ErrFull)
		} else {
			c.Answer()
		}
	}
}

var errDisk = errors.New("disk")

func (b *backend) do(ctx context.Context, fn func() error) error { return b.Do(ctx, &call{fn: fn}) }

func succeed() error { return nil }

// Calls that arrive during a group share the next one, in order, up to GroupCalls of them.
func TestGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.hold = make(chan struct{})
		var wg sync.WaitGroup
		var ran []int
		for n := range queue.GroupCalls + 3 {
			wg.Go(func() {
				if err := b.do(t.Context(), func() error { ran = append(ran, n); return nil }); err != nil {
					t.Errorf("call %d: %v", n, err)
				}
			})
			synctest.Wait()
		}
		close(b.hold)
		wg.Wait()
		if want := []int{1, queue.GroupCalls, 2}; !slices.Equal(b.groups, want) {
			t.Errorf("groups have %d calls, want %d", b.groups, want)
		}
		if !slices.IsSorted(ran) {
			t.Errorf("calls have run in the order %d", ran)
		}
	})
}

// Calls that are put back run before others. Calls that must be alone run in groups of
// their own.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.hold = make(chan struct{})
		var wg sync.WaitGroup
		var ran strings.Builder
		for _, name := range []string{"a", "b", "c", "d"} {
			wg.Go(func() {
				err := b.do(t.Context(), func() error {
					ran.WriteString(name)
					if name == "c" {
						return errDisk
					}
					return nil
				})
				if full := name == "c"; errors.Is(err, store.ErrFull) != full || !full && err != nil {
					t.Errorf("call %s: %v", name, err)
				}
			})
			synctest.Wait()
		}
		close(b.hold)
		wg.Wait()
		if ran.String() != "abcdbcd" || !slices.Equal(b.groups, []int{1, 3, 1, 1, 1}) {
			t.Errorf("calls have run as %s, in groups of %d", ran.String(), b.groups)
		}
	})
}

// A queued call that must be alone lets others join the group before it.
func TestAloneWaits(t *testing.T) {
	q := queue.New[*call]()
	first, alone, later := &call{}, &call{}, &call{}
	alone.Alone = true
	q.Again(alone)
	q.Again(first) // before the other one
	if !q.Offer(later, func(error) {}) {
		t.Fatal("the queue is full")
	}
	var group []*call
	for c, ok := q.Next(group, nil); ok; c, ok = q.Next(group, nil) {
		group = append(group, c)
	}
	if !slices.Equal(group, []*call{first, later}) {
		t.Errorf("the group has %d calls, want the first and the last", len(group))
	}
	if c, ok := q.Next(nil, nil); !ok || c != alone {
		t.Errorf("Next = %v, %t, want the call that is alone", c, ok)
	}
	q.Again(later)
	if c, ok := q.Next([]*call{alone}, nil); ok {
		t.Errorf("%v joins a call that must be alone", c)
	}
}

// An error, a panic or a runtime.Goexit of a function concerns its own caller only, not the
// other calls of its group.
func TestOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.hold = make(chan struct{})
		go b.do(t.Context(), succeed)
		synctest.Wait()

		own := errors.New("own")
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := b.do(t.Context(), func() error { return own }); err != own {
				t.Errorf("Do = %v, want the function's error", err)
			}
		})
		wg.Go(func() {
			defer func() {
				if p := recover(); p != "own" {
					t.Errorf("Do panics with %v", p)
				}
			}()
			t.Errorf("Do = %v, want a panic", b.do(t.Context(), func() error { panic("own") }))
		})
		wg.Go(func() {
			t.Errorf("Do = %v, want an exit", b.do(t.Context(), func() error { runtime.Goexit(); return nil }))
		})
		wg.Go(func() {
			if err := b.do(t.Context(), succeed); err != nil {
				t.Errorf("Do = %v", err)
			}
		})
		synctest.Wait()
		close(b.hold)
		wg.Wait()
		if !slices.Equal(b.groups, []int{1, 4}) {
			t.Errorf("groups have %d calls, want 1 and 4", b.groups)
		}
	})
}

// Fail replaces a panic, and a second run replaces the outcome of the first.
func TestOutcomeReplaced(t *testing.T) {
	var c call
	if c.Run(func() error { panic("first") }) || c.Returned() {
		t.Error("a panic is recorded as a return")
	}
	if !c.Run(succeed) || !c.Returned() || c.Err != nil {
		t.Errorf("the second run has returned: %t, with %v", c.Returned(), c.Err)
	}
	synctest.Test(t, func(t *testing.T) {
		q := queue.New[*call]()
		q.Start(func() bool {
			c, ok := q.Next(nil, nil)
			if ok {
				c.Run(c.fn)
				c.Fail(errDisk)
			}
			return ok
		})
		defer q.Close()
		if err := q.Do(t.Context(), &call{fn: func() error { panic("lost") }}); err != errDisk {
			t.Errorf("Do = %v, want the error of Fail", err)
		}
	})
}

// Before its turn, a call ends with its context, and its function is not called. Once it
// has started, it waits for the outcome.
func TestContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.hold = make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		held := true
		wg.Go(func() {
			if err := b.do(ctx, succeed); err != nil || held {
				t.Errorf("the call that has started: %v, before its outcome: %t", err, held)
			}
		})
		synctest.Wait()
		for range queue.Length + 5 { // five find no room
			wg.Go(func() {
				if err := b.do(ctx, func() error { t.Error("an abandoned call runs"); return nil }); err != context.Canceled {
					t.Errorf("a call that waits: %v", err)
				}
			})
		}
		synctest.Wait()
		if n := b.Len(); n != queue.Length {
			t.Errorf("%d calls are queued, want %d", n, queue.Length)
		}
		cancel()
		synctest.Wait()
		held = false
		close(b.hold)
		wg.Wait()
		if err := b.do(ctx, succeed); err != context.Canceled {
			t.Errorf("a call with an ended context: %v", err)
		}
	})
}

// Close lets the open group end. Queued and later calls are refused.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.hold = make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := b.do(t.Context(), succeed); err != nil {
				t.Errorf("the call that has started: %v", err)
			}
		})
		synctest.Wait()
		for range queue.Length + 1 {
			wg.Go(func() {
				if err := b.do(t.Context(), succeed); err != store.ErrClosed {
					t.Errorf("a call that waits: %v", err)
				}
			})
		}
		synctest.Wait()
		wg.Go(b.Close)
		synctest.Wait()
		close(b.hold)
		wg.Wait()
		if err := b.do(t.Context(), succeed); err != store.ErrClosed {
			t.Errorf("a call after Close: %v", err)
		}
	})
}

// A call of the store itself is answered through its function, and is refused if there is
// no room.
func TestOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.hold = make(chan struct{})
		var answers []error
		offer := func() bool {
			return b.Offer(&call{fn: func() error { return errDisk }}, func(err error) { answers = append(answers, err) })
		}
		if !offer() {
			t.Error("an empty queue is full")
		}
		synctest.Wait()
		for range queue.Length {
			offer()
		}
		if offer() {
			t.Error("a full queue accepts a call")
		}
		close(b.hold)
		synctest.Wait()
		if len(answers) != queue.Length+1 || slices.ContainsFunc(answers, func(err error) bool { return err != store.ErrFull }) {
			t.Errorf("%d answers, want %d of store.ErrFull", len(answers), queue.Length+1)
		}
	})
}

// A waiting goroutine may be woken for something else.
func TestWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.wake <- time.Time{}
		synctest.Wait()
		if err := b.do(t.Context(), succeed); b.wakes != 1 || err != nil {
			t.Errorf("woken %d times, then Do = %v", b.wakes, err)
		}
	})
}

// A patient call waits for others for store.Patience at most, and only where others were.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, ctx := start(t), t.Context()
		takes := func(what string, ctx context.Context, want time.Duration) {
			t.Helper()
			began := time.Now()
			if err := b.do(ctx, succeed); err != nil || time.Since(began) != want {
				t.Errorf("%s takes %v, want %v (%v)", what, time.Since(began), want, err)
			}
		}
		takes("a patient call in an idle queue", store.Patient(ctx), 0)
		takes("another", store.Patient(ctx), 0)
		takes("a call", ctx, 0)
		takes("a patient call after it", store.Patient(ctx), store.Patience)
		takes("the next", store.Patient(ctx), 0)

		const soon = store.Patience / 3
		takes("a call", ctx, 0)
		go func() {
			time.Sleep(soon)
			takes("a call with company", ctx, 0)
		}()
		takes("a patient call before another", store.Patient(ctx), soon)

		b.Close()
		if want := []int{1, 1, 1, 1, 1, 1, 2}; !slices.Equal(b.groups, want) {
			t.Errorf("groups of %v, want %v", b.groups, want)
		}
	})
}

// Patient calls get places in every group, however many others wait.
func TestPatienceIsNotEndless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, ctx := start(t), t.Context()
		b.hold = make(chan struct{})
		var group sync.WaitGroup
		group.Go(func() { _ = b.do(ctx, succeed) })
		synctest.Wait() // the first group is held

		ran, patient := 0, 0 // by the writing goroutine
		for range 3 * queue.GroupCalls {
			group.Go(func() { _ = b.do(ctx, func() error { ran++; return nil }) })
		}
		for range 8 {
			group.Go(func() { _ = b.do(store.Patient(ctx), func() error { patient = ran; return nil }) })
		}
		synctest.Wait()
		close(b.hold)
		group.Wait()
		if patient >= queue.GroupCalls {
			t.Errorf("the last of 8 patient calls ran after %d others", patient)
		}
	})
}

// Patient calls get a place where each group has room for one call alone.
func TestPatienceBesideFullGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, ctx := queue.New[*call](), t.Context()
		fetch := func() *call {
			c, _ := q.Next(nil, nil)
			c.Answer()
			return c
		}
		do := func(ctx context.Context) *call {
			c := new(call)
			go func() { _ = q.Do(ctx, c) }()
			synctest.Wait()
			return c
		}

		do(ctx)
		fetch()
		for range 64 {
			do(ctx)
		}
		patient, at := do(store.Patient(ctx)), 0
		for at < 64 && fetch() != patient {
			at++
		}
		if at == 64 {
			t.Errorf("a patient call has waited for %d groups", at)
		}
		for q.Len() > 0 {
			fetch()
		}
	})
}
