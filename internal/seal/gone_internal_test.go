package seal

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/google/uuid"
)

// TestDerivedKeysGone: with later keys a Box holds no key that was derived from former ones.
func TestDerivedKeysGone(t *testing.T) {
	k := NewKeys(time.Now())
	b := NewBox(k, func() error { return nil })
	var derived []weak.Pointer[accountKeys]
	for range 3 {
		derived = append(derived, weak.Make(b.account(k, uuid.New())))
	}
	gone := func() (n int) {
		for range 3 {
			runtime.GC()
		}
		for _, p := range derived {
			if p.Value() == nil {
				n++
			}
		}
		return n
	}
	if n := gone(); n != 0 {
		t.Errorf("%d accounts have lost keys that are in use", n)
	}
	b.SetKeys(k.Next(time.Now(), MaxTerms))
	if n := gone(); n != len(derived) {
		t.Errorf("keys of %d accounts are left", len(derived)-n)
	}
	runtime.KeepAlive(b)
}
