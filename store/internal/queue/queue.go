// Package queue passes the Updates of a store to the one goroutine that writes.
//
// A backend embeds [Call] in a type of its own, for one Update each. The goroutine of
// the caller queues it and waits ([Queue.Do]). The writing goroutine fetches one call
// after the other ([Queue.Next]), calls its function ([Call.Run]), and answers all
// calls of a transaction once that has ended ([Call.Answer], [Call.Fail]).
package queue

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/store"
)

// Bounds of every queue.
const (
	Length     = 1024 // calls that wait, and patient ones; further callers wait for room
	GroupCalls = 256  // calls that share a transaction
)

// A Call is one Update. Its exported fields and its methods are for the writing
// goroutine alone.
type Call struct {
	Err   error // outcome of the function, or of its writes
	Alone bool  // wants a group of its own

	panicked any  // value of a panic in the function
	exited   bool // the function called runtime.Goexit

	state    atomic.Int32
	done     chan struct{}   // closed when the fields above are set for the caller
	answered func(err error) // instead of done, for a call of the store itself
}

// States of a call. Its caller and the writing goroutine race for the first change.
const (
	queued = iota
	started
	abandoned
)

func (c *Call) call() *Call { return c }

// Run calls fn and keeps its outcome for the caller. It reports whether fn has returned.
// If fn calls runtime.Goexit, the goroutine ends here; [Queue.Start] says how work goes on.
func (c *Call) Run(fn func() error) (returned bool) {
	c.Err, c.panicked, c.exited = nil, nil, false
	defer func() {
		if returned {
			return
		}
		if c.panicked = recover(); c.panicked == nil {
			c.exited = true
		}
	}()

	c.Err = fn()
	return true
}

// Returned reports whether the function has returned when it was last run.
func (c *Call) Returned() bool { return c.panicked == nil && !c.exited }

// Answer ends the call with its outcome.
func (c *Call) Answer() {
	if c.answered != nil {
		c.answered(c.Err)
		return
	}
	close(c.done)
}

// Fail ends the call with err instead of its outcome.
func (c *Call) Fail(err error) {
	c.Err, c.panicked, c.exited = err, nil, false
	c.Answer()
}

// A Caller is a type that embeds [Call].
type Caller interface{ call() *Call }

// A Queue holds the calls of a store until they are written.
type Queue[C Caller] struct {
	calls   chan C
	patient chan C        // calls with a context of store.Patient
	closing chan struct{} // closed by Close
	stopped chan struct{} // closed when the writing goroutine has ended

	// The rest is owned by the writing goroutine.
	again  []C         // these come before calls
	hasty  bool        // a call that is not patient was fetched since the last group began
	seen   time.Time   // when the last group with such a call had ended
	passed int         // groups with such a call, in a row, that have left patient calls waiting
	resume *time.Timer // for patient calls without company
}

// New returns an empty queue.
func New[C Caller]() *Queue[C] {
	return &Queue[C]{
		calls: make(chan C, Length), patient: make(chan C, Length),
		closing: make(chan struct{}), stopped: make(chan struct{}),
	}
}

// Start starts the writing goroutine, which calls step until step returns false. If the
// function of a call ends that goroutine with runtime.Goexit, another one takes its
// place and calls step again: the state of step must outlive it.
func (q *Queue[C]) Start(step func() bool) { go q.run(step) }

func (q *Queue[C]) run(step func() bool) {
	ended := false
	defer func() {
		if !ended {
			go q.run(step)
		}
	}()

	for step() {
	}
	ended = true
	close(q.stopped)
}

// Do queues a call and waits for its answer. It returns the outcome, panics with the
// value of the function's panic, or calls runtime.Goexit as the function did. While
// the call waits for its turn, Do returns early if ctx ends or the queue is closed.
func (q *Queue[C]) Do(ctx context.Context, each C) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := each.call()
	c.done = make(chan struct{})
	if err := q.add(ctx, each); err != nil {
		return err
	}

	select {
	case <-c.done:
	case <-q.stopped:
		select {
		case <-c.done:
		default:
			return store.ErrClosed
		}
	case <-ctx.Done():
		if c.state.CompareAndSwap(queued, abandoned) {
			return ctx.Err()
		}
		<-c.done
	}

	switch {
	case c.panicked != nil:
		panic(c.panicked)
	case c.exited:
		runtime.Goexit()
	}
	return c.Err
}

// add puts a call into the queue, and waits for room if it is full.
func (q *Queue[C]) add(ctx context.Context, each C) error {
	select {
	case <-q.closing:
		return store.ErrClosed
	default:
	}

	calls := q.calls
	if store.IsPatient(ctx) {
		calls = q.patient
	}
	select {
	case calls <- each:
		return nil
	default:
	}
	select {
	case calls <- each:
		return nil
	case <-q.closing:
		return store.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Offer queues a call of the store itself, whose answer goes to a function that the writing
// goroutine calls. It reports false if the queue is full. A call that is still queued when
// the queue is closed is never answered.
func (q *Queue[C]) Offer(each C, answered func(err error)) bool {
	each.call().answered = answered
	select {
	case q.calls <- each:
		return true
	default:
		return false
	}
}

// Next returns the next call for a group, which the caller adds to it. For an empty
// group Next waits, and reports false when the queue is closing or wake fires. For
// another one it reports false when no call is ready or the group takes no more.
func (q *Queue[C]) Next(group []C, wake <-chan time.Time) (next C, ok bool) {
	if len(group) >= GroupCalls || len(group) > 0 && group[0].call().Alone {
		return next, false
	}
	if len(q.again) > 0 && (len(group) == 0 || !q.again[0].call().Alone) {
		next, q.again = q.again[0], q.again[1:]
		return next, true
	}

	for {
		select {
		case <-q.closing:
			return next, false
		default:
		}
		if len(group) == 0 {
			next, ok = q.wait(wake)
		} else {
			next, ok = q.poll(len(group))
		}
		if !ok || next.call().state.CompareAndSwap(queued, started) {
			return next, ok
		}
	}
}

// wait returns the first call of a group. A patient call comes first only if no other call
// was fetched for store.Patience, or if four groups had no place for it: large calls fill a
// group alone, and in a backend that fails each call is a group.
func (q *Queue[C]) wait(wake <-chan time.Time) (first C, ok bool) {
	if q.hasty {
		q.hasty, q.seen = false, time.Now()
		q.passed++
	}
	if len(q.patient) == 0 {
		q.passed = 0
	}

	patient, resume := q.patient, (<-chan time.Time)(nil)
	if rest := store.Patience - time.Since(q.seen); rest > 0 && q.passed < 4 {
		if q.resume == nil {
			q.resume = time.NewTimer(rest)
		}
		q.resume.Reset(rest)
		patient, resume = nil, q.resume.C
	}

	for {
		select {
		case <-q.closing:
			return first, false
		case <-wake:
			return first, false
		case first = <-q.calls:
			q.hasty = true
			return first, true
		case first = <-patient:
			q.passed = 0
			return first, true
		case <-resume:
			patient, resume = q.patient, nil
		}
	}
}

// poll returns a further call for a group of n, if one is ready. Every fourth is a patient
// one, if both are.
func (q *Queue[C]) poll(n int) (next C, ok bool) {
	if n%4 == 3 {
		select {
		case next = <-q.patient:
			q.passed = 0
			return next, true
		default:
		}
	}

	select {
	case next = <-q.calls:
		q.hasty = true
		return next, true
	default:
	}
	select {
	case next = <-q.patient:
		q.passed = 0
		return next, true
	default:
		return next, false
	}
}

// Again puts calls that were fetched before all that are queued. Only the writing
// goroutine calls it.
func (q *Queue[C]) Again(calls ...C) { q.again = append(calls, q.again...) }

// Len returns how many calls are queued.
func (q *Queue[C]) Len() int { return len(q.calls) + len(q.patient) }

// Closing is closed when the queue is being closed.
func (q *Queue[C]) Closing() <-chan struct{} { return q.closing }

// Close ends the writing goroutine and waits for it. The calls that are still queued
// get store.ErrClosed. Close may be called once.
func (q *Queue[C]) Close() {
	close(q.closing)
	<-q.stopped
}
