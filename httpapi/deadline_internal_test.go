package httpapi

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
)

// The context of a request ends as one of package context would, whether or not a call has
// asked for Done before.
func TestDeadlineEnds(t *testing.T) {
	type key struct{}
	for name, test := range map[string]struct {
		end  func(cancel func(), d *deadline)
		want error
	}{
		"the time has passed":    {func(func(), *deadline) { time.Sleep(time.Minute) }, context.DeadlineExceeded},
		"the client is gone":     {func(cancel func(), _ *deadline) { cancel() }, context.Canceled},
		"the request is over":    {func(_ func(), d *deadline) { d.end() }, context.Canceled},
		"the time is over first": {func(_ func(), d *deadline) { time.Sleep(time.Minute); synctest.Wait(); _ = d.Err(); d.end() }, context.DeadlineExceeded},
	} {
		for _, waits := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					request, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, name))
					defer cancel()
					d := &deadline{Context: request, at: time.Now().Add(time.Minute)}
					defer d.end()

					child := context.Context(context.WithoutCancel(d))
					if waits {
						var stop func()
						child, stop = context.WithCancel(d)
						defer stop()
					}
					at, ok := d.Deadline()
					if d.Err() != nil || child.Err() != nil || !ok || !at.Equal(d.at) || d.Value(key{}) != name || child.Value(key{}) != name {
						t.Fatalf("before its end: error %v, deadline %v", d.Err(), at)
					}

					test.end(cancel, d)
					synctest.Wait()
					if waits && !errors.Is(child.Err(), test.want) {
						t.Errorf("its child ends with %v, want %v", child.Err(), test.want)
					}
					if !errors.Is(d.Err(), test.want) {
						t.Errorf("it ends with %v, want %v", d.Err(), test.want)
					}
					<-d.Done()
				})
			})
		}
	}
}

// A request that has an earlier deadline keeps it.
func TestDeadlineOfRequest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		early := time.Now().Add(time.Second)
		request, cancel := context.WithDeadline(t.Context(), early)
		defer cancel()
		d := &deadline{Context: request, at: early.Add(time.Second)}
		defer d.end()
		if at, _ := d.Deadline(); !at.Equal(early) {
			t.Errorf("deadline %v, want %v", at, early)
		}
		<-d.Done()
		if err := d.Err(); err != context.DeadlineExceeded || time.Now().After(early) {
			t.Errorf("it ends with %v at %v", err, time.Now())
		}
	})
}
