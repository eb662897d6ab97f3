package outbox

import (
	"errors"
	"testing"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A resting transaction finds each queue at rest.
type resting struct{ store.Tx }

func (resting) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	return &store.Record{Kind: kind, ID: id, Version: 3}, nil
}

// TestWakingOfAFormerShift: a change prepared during a shift is prepared again if it arrives
// after that shift has ended. It forgets that shift, and no later one.
func TestWakingOfAFormerShift(t *testing.T) {
	o := New(Config{})
	queue := uuid.UUID{1}
	former, later := new(inflow), new(inflow)
	w := wakings{{queue: queue, shift: former}}

	for _, under := range []*inflow{former, later} {
		o.shifts.Store(queue, under)
		if err := w.put(resting{}, o); !errors.Is(err, ErrStale) {
			t.Errorf("put returns %v", err)
		}
		if kept := o.shiftOf(queue); under == later && kept != later || under == former && kept != nil {
			t.Errorf("the shift that is known is %p of %p, %p", kept, former, later)
		}
	}
}
