package httpapi

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// A deadline is the context of a request with the time at which it ends. Unlike the context
// of package context it starts a timer only once Done is called: most requests never wait.
type deadline struct {
	context.Context // of the request
	at              time.Time

	mu    sync.Mutex
	err   error           // what Err has returned
	timed context.Context // nil until Done is called
	stop  context.CancelFunc
}

// Deadline implements context.Context.
func (d *deadline) Deadline() (time.Time, bool) {
	if at, ok := d.Context.Deadline(); ok && at.Before(d.at) {
		return at, true
	}
	return d.at, true
}

// Done implements context.Context.
func (d *deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timed == nil {
		d.timed, d.stop = context.WithDeadline(d.Context, d.at)
		if d.err != nil {
			d.stop()
		}
	}
	return d.timed.Done()
}

// Err implements context.Context.
func (d *deadline) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.err != nil:
	case d.timed != nil:
		d.err = d.timed.Err()
	case d.Context.Err() != nil:
		d.err = d.Context.Err()
	case !time.Now().Before(d.at):
		d.err = context.DeadlineExceeded
	}
	return d.err
}

// Value implements context.Context. The timed context answers as soon as there is one, so
// that package context recognizes it as the parent of others.
func (d *deadline) Value(key any) any {
	d.mu.Lock()
	of := d.timed
	d.mu.Unlock()
	if of == nil {
		of = d.Context
	}
	return of.Value(key)
}

// end ends the context with the request.
func (d *deadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timed == nil {
		d.err = cmp.Or(d.err, context.Canceled)
		return
	}
	d.stop()
	d.err = cmp.Or(d.err, d.timed.Err())
}
