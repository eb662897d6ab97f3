//go:build !cardvault_canary

package cardvault

import "time"

// Bounds of security codes: decisions, chapters 3 and 10.
const (
	minSecurityCode, maxSecurityCode = 3, 4 // digits
	minSecurityCodeTTL               = time.Minute
)
