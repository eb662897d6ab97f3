package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cardvault/cardvault/store"
)

// A CodesHarness says how to test a cache of security codes. Open is required. A rule whose
// function is nil is not tested, as the log of its subtest says. The suite closes every
// cache that the functions return.
type CodesHarness struct {
	// Open returns a new, empty cache with room for a thousand values. It may skip or fail
	// the test that it is given, and use its Cleanup.
	Open func(t testing.TB) store.CodeCache

	// Reopen ends and restarts the process that holds the values of c in memory, such as a
	// server, and returns c or another cache there. No value may survive.
	Reopen func(t testing.TB, c store.CodeCache) (store.CodeCache, error)

	// Second opens the cache of c, like another process that shares it.
	Second func(t testing.TB, c store.CodeCache) (store.CodeCache, error)

	// Fault keeps c from its values until mend is called, such as by stopping a server.
	Fault func(t testing.TB, c store.CodeCache) (mend func())
}

var codesHarnessRules = []harnessRule[*codesStand]{{
	"Reopened", "Reopen",
	"No value survives the process that held it in memory: PCI DSS forbids storing it, and a disk is storage.",
	codesReopened,
}, {
	"Second", "Second",
	"A Put or Delete of one process takes effect for all at once: a code that one has consumed is gone for the others.",
	codesSecond,
}, {
	"SecondCloses", "Second",
	"A process that closes the cache takes no values from the others.",
	codesSecondCloses,
}, {
	"Unreachable", "Fault",
	"An unreachable cache returns an error, in time. A code reported as absent would be asked for again; a code reported as deleted would come back.",
	codesUnreachable,
}}

// A codesStand opens caches for a test, and closes them at its end.
type codesStand struct {
	testing.TB
	CodesHarness
}

func (s *codesStand) opened(how string, c store.CodeCache, err error) store.CodeCache {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", how, err)
	}
	s.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.Errorf("Close: %v", err)
		}
	})
	return c
}

func (s *codesStand) two() (first, second store.CodeCache) {
	s.Helper()
	first = s.opened("Open", s.Open(s), nil)
	second, err := s.Second(s, first)
	return first, s.opened("Second", second, err)
}

// recovers waits until a cache that was out of reach takes a value again.
func (s *codesStand) recovers(c store.CodeCache) {
	s.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		err := c.Put(background, idOf(99), []byte("737"), ample)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("Put when the cache can be reached again = %v", err)
		}
	}
}

func codesReopened(s *codesStand) {
	c := s.opened("Open", s.Open(s), nil)
	for n := range 3 {
		keep(s, c, idOf(n), []byte("737"), ample)
	}
	again, err := s.Reopen(s, c)
	s.opened("Reopen", again, err)
	s.recovers(again)
	for n := range 3 {
		lacksCode(s, again, "started anew", idOf(n))
	}
	holdsCode(s, again, "put afterwards", idOf(99), []byte("737"))
}

func codesSecond(s *codesStand) {
	first, second := s.two()
	caches := []store.CodeCache{first, second}
	for n := range 20 {
		one, other := caches[n%2], caches[1-n%2]
		keep(s, one, idOf(n), []byte("one"), ample)
		holdsCode(s, other, "put by another process", idOf(n), []byte("one"))
		keep(s, other, idOf(n), []byte("other"), ample)
		holdsCode(s, one, "replaced by another process", idOf(n), []byte("other"))
		if err := other.Delete(background, idOf(n)); err != nil {
			s.Errorf("Delete: %v", err)
		}
		lacksCode(s, one, "deleted by another process", idOf(n))
	}

	keep(s, first, idOf(1), []byte("737"), brief)
	over(brief)
	lacksCode(s, second, "expired, put by another process", idOf(1))
}

func codesSecondCloses(s *codesStand) {
	first, second := s.two()
	keep(s, first, idOf(1), []byte("one"), ample)
	keep(s, second, idOf(2), []byte("two"), ample)
	if err := first.Close(); err != nil {
		s.Errorf("Close: %v", err)
	}
	holdsCode(s, second, "put by a process that has closed", idOf(1), []byte("one"))
	holdsCode(s, second, "put before another process closed", idOf(2), []byte("two"))
}

func codesUnreachable(s *codesStand) {
	c := s.opened("Open", s.Open(s), nil)
	keep(s, c, idOf(1), []byte("737"), ample)
	mend := s.Fault(s, c)
	calls := map[string]func(ctx context.Context) error{
		"Get":         func(ctx context.Context) error { _, err := c.Get(ctx, idOf(1)); return err },
		"Get of none": func(ctx context.Context) error { _, err := c.Get(ctx, idOf(2)); return err },
		"Put":         func(ctx context.Context) error { return c.Put(ctx, idOf(1), []byte("999"), ample) },
		"Delete":      func(ctx context.Context) error { return c.Delete(ctx, idOf(1)) },
	}
	for what, call := range calls {
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- call(ctx) }()
		err := await(s, done, fmt.Sprintf("%s, whose context has ended,", what))
		if err == nil || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrClosed) {
			s.Errorf("%s of a cache that cannot be reached = %v", what, err)
		}
	}

	mend()
	s.recovers(c)
	holdsCode(s, c, "put when it could be reached again", idOf(99), []byte("737"))
}
