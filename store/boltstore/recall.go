package boltstore

import (
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A recall knows where the calls of a group have found rows. Almost every call reads the same few:
// of its account, and of the key terms under which its records are sealed.
type recall struct {
	rows [16]recalled
	next int // is replaced next
}

type recalled struct {
	kind store.Kind
	id   uuid.UUID
	raw  []byte // as it is in the file, until it is written; nil: none here
}

// find returns a row, nil if it is not known.
func (c *recall) find(kind store.Kind, id uuid.UUID) []byte {
	for i := range c.rows {
		if r := &c.rows[i]; r.raw != nil && r.id == id && r.kind == kind {
			return r.raw
		}
	}
	return nil
}

func (c *recall) keep(kind store.Kind, id uuid.UUID, raw []byte) {
	c.rows[c.next] = recalled{kind, id, raw}
	c.next = (c.next + 1) % len(c.rows)
}

// forget is called before a row is written.
func (c *recall) forget(kind store.Kind, id uuid.UUID) {
	for i := range c.rows {
		if r := &c.rows[i]; r.id == id && r.kind == kind {
			r.raw = nil
		}
	}
}
