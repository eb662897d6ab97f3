package seal

import (
	"time"

	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/google/uuid"
)

// A Fence closes the place from which a vault moves to another.
type Fence struct {
	Move uuid.UUID // random
	At   time.Time

	// Opener thaws the new place. It is zero while the move can be taken back.
	Opener uuid.UUID
}

func (f *Fence) fields(t *tlv.Fields) {
	tlv.ID(t, 1, &f.Move)
	t.Time(2, &f.At)
	tlv.ID(t, 3, &f.Opener)
}

func parseFence(data []byte) (*Fence, error) {
	fence := new(Fence)
	var t tlv.Fields
	t.From(data)
	fence.fields(&t)
	if t.Err() != nil || fence.Move == uuid.Nil {
		return nil, errKeys
	}
	return fence, nil
}

// Fenced returns a copy of k with a fence, which may take the place of the present one.
func (k *Keys) Fenced(f Fence) *Keys {
	next := k.after()
	if k.Fence == nil {
		next.Fences++
	}
	next.Fence = &f
	return next
}

// Unfenced returns a copy of k without a fence.
func (k *Keys) Unfenced() *Keys {
	next := k.after()
	next.Fence = nil
	return next
}
