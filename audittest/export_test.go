package audittest

import (
	"testing"

	"github.com/cardvault/cardvault/internal/contract"
)

// Failures runs the named rule and returns its failures.
func Failures(t testing.TB, name string, h Harness) []string {
	return contract.Failures(t, rules, name, h.suite)
}

// Names returns the names of all rules.
func Names() []string { return contract.Names(rules) }
