//go:build cardvault_canary

package cardvault

import "time"

// A build for one test, which searches a process for security codes: three
// digits occur everywhere by chance, twenty-four do not.
const (
	minSecurityCode, maxSecurityCode = 3, 24
	minSecurityCodeTTL               = time.Second
)
