package storetest

import (
	"reflect"
	"slices"
	"testing"

	"github.com/cardvault/cardvault/store"
)

// A Harness says how to test a store. Open is required. A rule whose function is nil is not
// tested, as the log of its subtest says.
//
// The functions receive stores that Open or another of them has returned. The suite closes
// every store that they return. They may be called concurrently, for different stores.
type Harness struct {
	// Open returns a new, empty store. It may skip or fail the test that it is given, and
	// use its Cleanup.
	Open func(t testing.TB) store.Store

	// Reopen opens s again, after s was closed or the process that had it open was killed. If
	// nil, the store keeps nothing, as one in memory, and the suite does not prove that it is
	// durable.
	Reopen func(t testing.TB, s store.Store) (store.Store, error)

	// Second opens the records of s while s is open, as another process would. A store for
	// one process returns store.ErrLocked.
	Second func(t testing.TB, s store.Store) (store.Store, error)

	// Crash opens s as a power loss would leave it. Until then s is open and idle. For a
	// store on files see [AfterPowerCut].
	Crash func(t testing.TB, s store.Store) (store.Store, error)

	// Place returns the place of s for another process, such as the path of its file. The
	// suite kills a process that writes there. That is the test binary, started again, whose
	// TestMain must call [Child]. Reopen is needed too.
	Place func(s store.Store) string

	// Fault makes s fail until mend is called. mend is nil if the harness cannot cause a
	// fault of that kind.
	Fault func(t testing.TB, s store.Store, f Fault) (mend func())
}

// A FaultKind says what fails.
type FaultKind uint8

// The faults that a harness is asked for.
const (
	// NoRoom: an Update that puts a record finds no room for it.
	NoRoom FaultKind = iota + 1

	// LostAnswer: Updates cannot find out whether their writes are durable.
	LostAnswer

	// DamagedRecord: Fault.Record cannot be decoded any more. mend only says that the fault
	// was caused.
	DamagedRecord

	// DamagedIndexes: the indexes of a store that is a [store.Repairer] do not lead to
	// Fault.Record any more, and lead to a record that is not there. mend as for DamagedRecord.
	DamagedIndexes

	// LostRecord: Fault.Record is not there any more, and the indexes still lead to it. A store
	// whose lists are its records cannot have this fault. mend as for DamagedRecord.
	LostRecord
)

// A Fault is the failure that Harness.Fault must cause.
type Fault struct {
	Kind   FaultKind
	Record store.Key // of DamagedRecord, DamagedIndexes and LostRecord
}

// A harnessRule is a rule that needs more of a harness than Open. S opens the store or
// cache under test.
type harnessRule[S any] struct {
	name  string
	needs string // a field of the harness
	why   string
	check func(s S)
}

var harnessRules = slices.Concat(durabilityRules, secondRules, faultRules)

// run checks the rule if the harness has the functions for it.
func (r *harnessRule[S]) run(t *testing.T, harness any, s S) {
	if reflect.ValueOf(harness).FieldByName(r.needs).IsNil() {
		t.Logf("Not proved, because %s is nil: %s", r.needs, r.why)
		return
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("The rule: %s", r.why)
		}
	})
	r.check(s)
}

// A stand opens stores for a test, and closes them at its end.
type stand struct {
	testing.TB
	Harness
}

func (s *stand) fresh() store.Store {
	s.Helper()
	return s.opened("Open", s.Open(s), nil)
}

// opened returns a store that was opened in the way of a name.
func (s *stand) opened(how string, opened store.Store, err error) store.Store {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", how, err)
	}
	s.Cleanup(func() { s.closes(opened) })
	return opened
}

func (s *stand) closes(open store.Store) {
	s.Helper()
	if err := open.Close(); err != nil {
		s.Errorf("Close: %v", err)
	}
}

// reopened closes a store and opens it again.
func (s *stand) reopened(old store.Store) store.Store {
	s.Helper()
	s.closes(old)
	again, err := s.Reopen(s, old)
	return s.opened("Reopen", again, err)
}

// crashed returns what a loss of power leaves of a store.
func (s *stand) crashed(old store.Store) store.Store {
	s.Helper()
	left, err := s.Crash(s, old)
	s.opened("after a loss of power", left, err)
	s.closes(old)
	return left
}
