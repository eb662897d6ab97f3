package keytest_test

import (
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/keytest"
)

// The whole test of a wrapper, here of keys in memory.
func ExampleRun() {
	_ = func(t *testing.T) {
		keytest.Run(t, keytest.Harness{
			Open:  func(testing.TB) cardvault.KeyWrapper { return newKey(1) },
			Other: func(testing.TB) cardvault.KeyWrapper { return newKey(2) },
		})
	}
}
