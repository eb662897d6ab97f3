package outbox

import (
	"testing"

	"github.com/google/uuid"
)

// TestRoll: the receivers of a bounded number of accounts are kept, and read anew beyond
// that.
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
		t.Error("the receivers are not those of the account")
	}
	all.forget(last)
	if all.of(last) != nil {
		t.Error("receivers are known that were forgotten")
	}
}
