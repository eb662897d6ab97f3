package cardvault

import (
	"slices"
	"testing"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
)

// A store that keeps accounts apart looks for a record without a home in each of them, and
// an Update that does so has its group for itself. These are few, and rarely looked for.
func TestHomes(t *testing.T) {
	anywhere := []store.Kind{kindEvent, kindRemains, kindMistakes, kindGivenKey, kindSubmission}
	for kind := ledger.KindMeta; kind <= lastKind; kind++ {
		if homeless := homes[kind] == ledger.Anywhere; homeless != slices.Contains(anywhere, kind) {
			t.Errorf("kind %d is looked for in all accounts: %t", kind, homeless)
		}
	}
}

// Every kind has a name in reports.
func TestNames(t *testing.T) {
	for kind := ledger.KindMeta; kind <= kindKeyUse; kind++ {
		if names[kind].Kind == "" {
			t.Errorf("kind %d has no name", kind)
		}
	}
}
