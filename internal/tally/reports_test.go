package tally_test

import (
	"testing"

	"github.com/cardvault/cardvault/internal/tally"
)

func TestReports(t *testing.T) {
	var r tally.Reports
	one, other := [16]byte{1}, [16]byte{2}
	for key := range uint64(64) {
		if ok, last := r.Take(1, one, key); !ok || last != (key == 63) {
			t.Fatalf("key %d: %v, last %v", key, ok, last)
		}
		if ok, _ := r.Take(1, one, key); ok {
			t.Fatalf("key %d is reported twice", key)
		}
	}
	if ok, _ := r.Take(1, one, 64); ok {
		t.Error("one report too many for an owner")
	}
	if ok, _ := r.Take(1, other, 64); !ok {
		t.Error("another owner is not reported")
	}
	if ok, _ := r.Take(2, one, 0); !ok {
		t.Error("nothing is reported on the next day")
	}
}
