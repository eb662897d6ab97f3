//go:build goexperiment.runtimesecret

package erase

import "runtime/secret"

// Do calls f. What f allocates is erased once it is garbage: what is to stay
// is allocated by the caller.
func Do(f func()) { secret.Do(f) }
