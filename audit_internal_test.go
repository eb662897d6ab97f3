package cardvault

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// TestRecordedVerbs: each call that says what it was doing has an operation of the audit log under
// that verb, or a reason to have none.
func TestRecordedVerbs(t *testing.T) {
	reasons := map[string]string{
		"drain":          "background work, of which each write is recorded",
		"reseal records": "background work, of which each write is recorded",
		"run":            "background work, of which each write is recorded",
		"forward":        "internal/use records each use of a card",
		"obtain PPAN":    "records itself, as a use of the card",
		"use card":       "internal/use records each use of a card",
		"use credential": "internal/use records each use of a card",
	}
	var files []string
	for _, pattern := range []string{"*.go", "internal/use/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}

	verbs := map[string]bool{}
	verb := regexp.MustCompile(`\b[dD]oing\(ctx, "([^"]+)"`)
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range verb.FindAllSubmatch(text, -1) {
			verbs[string(m[1])] = true
		}
	}
	if len(verbs) < len(recordedCalls) {
		t.Errorf("only %d verbs were found", len(verbs))
	}
	for _, verb := range slices.Sorted(maps.Keys(verbs)) {
		if _, recorded := recordedCalls[verb]; recorded == (reasons[verb] != "") {
			t.Errorf("%q needs an operation in recordedCalls or a reason here, and not both", verb)
		}
	}
	for verb := range recordedCalls {
		if !verbs[verb] {
			t.Errorf("no call is doing %q", verb)
		}
	}
	for verb := range reasons {
		if !verbs[verb] {
			t.Errorf("no call is doing %q, which has a reason", verb)
		}
	}
}
