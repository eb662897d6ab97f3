package cardvault

import (
	"testing"

	"github.com/google/uuid"
)

// TestListening: what is known of the webhooks of accounts is bounded, and read anew
// beyond that.
func TestListening(t *testing.T) {
	var all listening
	last := uuid.Nil
	for range 3 * maxListening / 2 {
		last = uuid.New()
		all.set(last, new(listeners))
		if len(all.m) > maxListening {
			t.Fatalf("the listeners of %d accounts are kept", len(all.m))
		}
	}
	if all.of(last) == nil || all.of(uuid.New()) != nil {
		t.Error("the listeners are not those of the account")
	}
	all.forget(last)
	if all.of(last) != nil {
		t.Error("listeners are known that were forgotten")
	}
}
