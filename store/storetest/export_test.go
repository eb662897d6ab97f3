package storetest

import (
	"testing"

	"github.com/cardvault/cardvault/store"
)

// Check runs the named rule.
func Check(t testing.TB, name string, s store.Store) {
	for _, r := range rules {
		if r.name == name {
			r.check(t, s)
			return
		}
	}
	panic("no rule " + name)
}

// Names returns the names of all rules.
func Names() []string {
	var names []string
	for _, r := range rules {
		names = append(names, r.name)
	}
	return names
}

// CheckCodes runs the named rule on a cache of security codes.
func CheckCodes(t testing.TB, name string, c store.CodeCache) {
	for _, r := range codeRules {
		if r.name == name {
			r.check(t, c)
			return
		}
	}
	panic("no rule " + name)
}

// CodeNames returns the names of all rules of caches.
func CodeNames() []string {
	var names []string
	for _, r := range codeRules {
		names = append(names, r.name)
	}
	return names
}

// CheckHarness runs the named rule, which needs more of a harness than Open.
func CheckHarness(t testing.TB, name string, h Harness) {
	for _, r := range harnessRules {
		if r.name == name {
			r.check(&stand{t, h})
			return
		}
	}
	panic("no rule " + name)
}

// HarnessNames returns the names of these rules.
func HarnessNames() []string {
	var names []string
	for _, r := range harnessRules {
		names = append(names, r.name)
	}
	return names
}

// CheckCodesHarness is CheckHarness for caches of security codes.
func CheckCodesHarness(t testing.TB, name string, h CodesHarness) {
	for _, r := range codesHarnessRules {
		if r.name == name {
			r.check(&codesStand{t, h})
			return
		}
	}
	panic("no rule " + name)
}

// CodesHarnessNames returns the names of these rules.
func CodesHarnessNames() []string {
	var names []string
	for _, r := range codesHarnessRules {
		names = append(names, r.name)
	}
	return names
}
