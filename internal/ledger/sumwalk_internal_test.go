package ledger

import (
	"testing"

	"github.com/cardvault/cardvault/internal/sums"
	"github.com/google/uuid"
)

// TestDrain: of the changes in a log those behind the position are added that are stored. A change
// that a later stored one follows is decided, and the others wait.
func TestDrain(t *testing.T) {
	one, other, behind, ahead := uuid.UUID{1}, uuid.UUID{2}, position{order: 3}, position{order: 5}
	place := func(n byte) sums.Place { return sums.Place{Account: uuid.UUID{n}} }
	change := func(n byte, at position, id uuid.UUID, version uint64) sumEntry {
		return sumEntry{at: at, place: place(n), sum: sums.Of([16]byte{n}), id: id, version: version}
	}
	w := &sumWalk{Comparison: Comparison{Surplus: sums.Set{}}, summing: new(summing), at: position{order: 4}}
	w.log = &sumLog{entries: []sumEntry{
		change(1, behind, one, 1),
		change(2, ahead, one, 1),
		change(3, behind, one, 2), // its commit has failed, so that another record was begun
		change(4, behind, other, 1),
		change(5, behind, other, 2),
		change(6, behind, uuid.Nil, 0), // of the transaction under way
	}, from: 5}

	if err := w.drain(map[uuid.UUID]uint64{one: 1, other: 1}); err != nil {
		t.Fatal(err)
	}
	for n := byte(1); n <= 6; n++ {
		if _, added := w.Surplus[place(n)]; added != (n == 1 || n == 4) {
			t.Errorf("change %d was added: %t", n, added)
		}
	}
	if left := w.log.entries; len(left) != 2 || left[0].place != place(5) || w.log.from != 1 {
		t.Errorf("left are %+v, from %d on", left, w.log.from)
	}

	w.log.end(other, 3)
	if err := w.drain(map[uuid.UUID]uint64{one: 1, other: 3}); err != nil || len(w.Surplus) != 4 || len(w.log.entries) != 0 {
		t.Errorf("%v, %d places, %d changes are left", err, len(w.Surplus), len(w.log.entries))
	}
}
