package outbox

import (
	"testing"

	"github.com/google/uuid"
)

// TestRoll: the receivers of a limited number of accounts are kept in memory, and those
// beyond are read again.
func TestRoll(t *testing.T) {
	var all roll
	last := uuid.Nil
	for range 3 * maxKnown / 2 {
		last = uuid.New()
		all.set(last, new(Receivers))
		if len(all.m) > maxKnown {
			t.Fatalf("the receivers of %d accounts are kept", len(all.m))
		}
	}
	if all.of(last) == nil || all.of(uuid.New()) != nil {
		t.Error("the receivers belong to another account")
	}
	all.forget(last)
	if all.of(last) != nil {
		t.Error("forgotten receivers are still known")
	}
}
