// Package bubble is testing/synctest for tests that also run in FIPS 140-3 mode.
package bubble

import (
	"crypto/fips140"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
)

// Test is [synctest.Test]. In FIPS 140-3 mode randomness comes from the jitter
// of the clock, which stands still in a bubble: it is a fixed sequence there
// instead, and the test must not be parallel.
//
// What runs in a bubble must not wait for timers of no time: two at once crash the race
// detector (golang.org/issue/78156).
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if fips140.Enabled() {
		cryptotest.SetGlobalRandom(t, 1)
	}
	synctest.Test(t, f)
}
