package bubble

import (
	"context"
	"testing"
	"time"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// lines bounds the calls of an Outside store that are under way.
const lines = 64

// Outside returns a store that works as s does, but outside of every bubble: a bubble
// can use it though s waits for other processes and has goroutines and a clock of its
// own. The functions of View and Update run in the bubble. Time stands still there
// during a call, and contexts that end later do not end it.
//
// Call it before the bubble begins. It ends with the test, and leaves s open.
func Outside(t testing.TB, s store.Store) store.Store {
	o := outside{s, make(chan *line, lines)}
	for range lines {
		// Channels of a bubble cannot be used outside, but the other way round they can.
		l := &line{make(chan bool), make(chan event), make(chan step), make(chan any)}
		o.free <- l
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.serve(s)
		}()
		t.Cleanup(func() {
			close(l.calls)
			<-ended
		})
	}
	return o
}

type outside struct {
	store store.Store
	free  chan *line
}

// A line leads to a goroutine outside that makes one call at a time.
type line struct {
	calls  chan bool  // whether it is Update
	answer chan event // to the caller
	steps  chan step  // from the caller, between an event that begins fn and its end
	done   chan any   // a step was done, or has panicked with this
}

// An event requests a run of fn, or reports the end of the call.
type event struct {
	over    bool
	err     error
	escaped any // what fn panicked with
}

// A step is a call of fn, or its end.
type step struct {
	do      func(store.ReadTx)
	err     error
	escaped any
}

// serve makes calls until there are no more.
func (l *line) serve(s store.Store) {
	for update := range l.calls {
		l.answer <- l.call(s, update)
	}
}

func (l *line) call(s store.Store, update bool) (e event) {
	e.over = true
	e.escaped = escaped(func() {
		if update {
			e.err = s.Update(context.Background(), func(tx store.Tx) error { return l.run(tx) })
		} else {
			e.err = s.View(context.Background(), l.run)
		}
	})
	return e
}

// run has the caller run its function.
func (l *line) run(tx store.ReadTx) error {
	l.answer <- event{}
	for s := range l.steps {
		switch {
		case s.escaped != nil:
			panic(s.escaped)
		case s.do == nil:
			return s.err
		}
		l.done <- escaped(func() { s.do(tx) })
	}
	return nil
}

// escaped runs f and returns what it panics with: a store may end a function this way to
// run it again.
func escaped(f func()) (p any) {
	defer func() { p = recover() }()
	f()
	return nil
}

func (o outside) make(ctx context.Context, update bool, fn func(crossing) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l := <-o.free
	defer func() { o.free <- l }()
	l.calls <- update
	for {
		switch e := <-l.answer; {
		case e.escaped != nil:
			panic(e.escaped)
		case e.over:
			return e.err
		}
		l.steps <- run(crossing{l}, fn)
	}
}

// run runs fn and returns how it ended.
func run(tx crossing, fn func(crossing) error) (s step) {
	s.escaped = escaped(func() { s.err = fn(tx) })
	return s
}

func (o outside) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return o.make(ctx, false, func(tx crossing) error { return fn(tx) })
}

func (o outside) Update(ctx context.Context, fn func(store.Tx) error) error {
	return o.make(ctx, true, func(tx crossing) error { return fn(tx) })
}

// Close does nothing: the opener of the store closes it.
func (o outside) Close() error { return nil }

// A crossing is a transaction that is outside.
type crossing struct{ line *line }

func (c crossing) do(f func(store.ReadTx)) {
	c.line.steps <- step{do: f}
	if p := <-c.line.done; p != nil {
		panic(p)
	}
}

func (c crossing) Get(kind store.Kind, id uuid.UUID) (r *store.Record, err error) {
	c.do(func(tx store.ReadTx) { r, err = tx.Get(kind, id) })
	return r, err
}

func (c crossing) List(q *store.Query) (l *store.List, err error) {
	c.do(func(tx store.ReadTx) { l, err = tx.List(q) })
	return l, err
}

func (c crossing) Lookup(kind store.Kind, hash []byte, limit int) (found []*store.Record, err error) {
	c.do(func(tx store.ReadTx) { found, err = tx.Lookup(kind, hash, limit) })
	return found, err
}

func (c crossing) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) (due []*store.Record, err error) {
	c.do(func(tx store.ReadTx) { due, err = tx.Due(kind, shards, until, limit) })
	return due, err
}

func (c crossing) Next(kind store.Kind, shards store.Shards) (at time.Time, err error) {
	c.do(func(tx store.ReadTx) { at, err = tx.Next(kind, shards) })
	return at, err
}

func (c crossing) Scan(kind store.Kind, after uuid.UUID, limit int) (found []*store.Record, err error) {
	c.do(func(tx store.ReadTx) { found, err = tx.Scan(kind, after, limit) })
	return found, err
}

func (c crossing) Children(parent uuid.UUID, limit int) (keys []store.Key, err error) {
	c.do(func(tx store.ReadTx) { keys, err = tx.Children(parent, limit) })
	return keys, err
}

func (c crossing) Empty() (empty bool, err error) {
	c.do(func(tx store.ReadTx) { empty, err = tx.Empty() })
	return empty, err
}

func (c crossing) Put(r *store.Record) {
	c.do(func(tx store.ReadTx) { tx.(store.Tx).Put(r) })
}

func (c crossing) Delete(kind store.Kind, id uuid.UUID) {
	c.do(func(tx store.ReadTx) { tx.(store.Tx).Delete(kind, id) })
}
