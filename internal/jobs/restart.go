package jobs

import (
	"context"
	"errors"
	"time"
)

// A call that has lasted for so long is followed by the shortest pause.
const lasting = time.Minute

// errEnded is the error of a call that should not return.
var errEnded = errors.New("it has ended")

// Restarted returns a function that calls f again and again until its context ends: f blocks
// as long as all is well. The pauses are a second at first and a minute at last. failed is
// called with each error, or when f returns without one.
func Restarted(f func(context.Context) error, failed func(error)) func(context.Context) {
	return func(ctx context.Context) {
		for wait := time.Second; ; wait = min(2*wait, time.Minute) {
			start := time.Now()
			err := f(ctx)
			if ctx.Err() != nil {
				return
			}

			if err == nil {
				err = errEnded
			}
			failed(err)
			if time.Since(start) > lasting {
				wait = time.Second
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
	}
}
