package networktest

import "testing"

// Check runs the named rule.
func Check(t testing.TB, name string, h Harness) {
	for _, r := range rules {
		if r.name == name {
			r.check(newSuite(t, h))
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
