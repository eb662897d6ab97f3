//go:build goexperiment.runtimesecret

package erase

import "runtime/secret"

// Do calls f. What f allocates is erased once it is garbage: the caller allocates any
// memory that must stay.
func Do(f func()) { secret.Do(f) }
