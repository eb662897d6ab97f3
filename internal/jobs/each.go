package jobs

import (
	"errors"
	"sync"
)

// together is the number of pieces of a job that are worked on at a time, so that they
// share commits.
const together = 32

// Each calls fn with each of some items, a few at a time, and returns all errors once the
// last call has returned.
func Each[T any](items []T, fn func(T) error) error {
	free := make(chan struct{}, together)
	errs := make([]error, len(items))
	var group sync.WaitGroup
	for i, item := range items {
		free <- struct{}{}
		group.Go(func() {
			defer func() { <-free }()
			errs[i] = fn(item)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
