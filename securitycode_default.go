//go:build !cardvault_canary

package cardvault

import "time"

// Bounds of security codes. American Express prints four digits, every other scheme three.
const (
	minSecurityCode, maxSecurityCode = 3, 4 // digits
	minSecurityCodeTTL               = time.Minute
)
