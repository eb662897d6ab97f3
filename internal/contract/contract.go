// Package contract runs the rules that an adapter of a vault keeps, and says of each that
// is broken why a vault depends on it.
package contract

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
)

// Promptness limits how long a call outlasts its context: a minute, on a busy machine, and
// less where Record expects one that hangs.
func Promptness(t testing.TB) time.Duration {
	if _, broken := t.(*recorder); broken {
		return 15 * time.Second
	}
	return time.Minute
}

// A Rule is a sentence of a contract and a check that fails where it is broken.
type Rule[S any] struct {
	Name, Why string
	Check     func(t testing.TB, s S)
}

// Run checks all rules, each on what open returns.
func Run[S any](t *testing.T, rules []Rule[S], open func(testing.TB) S) {
	for _, r := range rules {
		t.Run(r.Name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("The rule: %s", r.Why)
				}
			})
			r.Check(t, open(t))
		})
	}
}

// Names returns the names of rules.
func Names[S any](rules []Rule[S]) (names []string) {
	for _, r := range rules {
		names = append(names, r.Name)
	}
	return names
}

// Failures checks one rule and returns how it is broken, without failing t.
func Failures[S any](t testing.TB, rules []Rule[S], name string, open func(testing.TB) S) []string {
	i := slices.IndexFunc(rules, func(r Rule[S]) bool { return r.Name == name })
	if i < 0 {
		t.Fatalf("there is no rule %s", name)
	}
	return Record(t, func(t testing.TB) { rules[i].Check(t, open(t)) })
}

// Record calls check and returns its failures, a panic included, without failing t.
func Record(t testing.TB, check func(t testing.TB)) []string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if value := recover(); value != nil {
				r.fail(fmt.Sprintf("panic: %v", value))
			}
		}()
		check(r)
	}()
	<-done
	return r.failures()
}

// Faults returns a function that checks in a subtest whether a rule notices a fault: whether
// there are failures. Each rule must have a fault before t ends. A subtest is a bubble: a call that
// a fault delays goes on after all others, whatever else the machine does.
func Faults(t *testing.T, rules []string) (noticed func(rule, fault string, failures func(*testing.T) []string)) {
	unproved := slices.Clone(rules)
	t.Cleanup(func() {
		if len(unproved) > 0 {
			t.Errorf("no fault proves that these rules can fail: %v", unproved)
		}
	})

	return func(rule, fault string, failures func(*testing.T) []string) {
		unproved = slices.DeleteFunc(unproved, func(name string) bool { return name == rule })
		t.Run(rule+"/"+fault, func(t *testing.T) {
			var all []string
			now := time.Now()
			bubble.Test(t, func(t *testing.T) {
				<-time.After(time.Until(now)) // a bubble begins in 2000, when no card has expired
				all = failures(t)
				<-time.After(time.Minute) // in which faults that hang end
			})
			if len(all) == 0 {
				t.Errorf("%s did not notice that %s", rule, fault)
			}
			for _, failure := range all[:min(3, len(all))] {
				t.Log(failure)
			}
		})
	}
}

// A recorder is a test that may fail without failing the one it is part of.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	messages []string
}

func (r *recorder) Helper()                           {}
func (r *recorder) Log(...any)                        {}
func (r *recorder) Logf(string, ...any)               {}
func (r *recorder) Error(args ...any)                 { r.fail(fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.fail(fmt.Sprintf(format, args...)) }
func (r *recorder) Failed() bool                      { return len(r.failures()) > 0 }

func (r *recorder) Fatal(args ...any) {
	r.fail(fmt.Sprint(args...))
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.fail(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (r *recorder) fail(message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, message)
}

func (r *recorder) failures() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages)
}

// Parallel calls f n times at once and fails t with the first error.
func Parallel(t testing.TB, n int, f func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = f(i) })
	}
	group.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("call %d of %d at once: %v", i+1, n, err) // the others most likely failed in the same way
		}
	}
}

// Ended checks that a call with a context that has ended returns soon, with an error that
// is the context's, or with success if it can do without waiting.
func Ended(t testing.TB, what string, call func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	select {
	case err := <-done:
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a context that has ended = %v, want an error that is %v", what, err, context.Canceled)
		}
	case <-time.After(Promptness(t)):
		t.Fatalf("%s with a context that has ended: still waiting after %v", what, Promptness(t))
	}
}
