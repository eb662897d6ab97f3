package backup

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Changes are the records that have changed while a backup is made, and that are read again. A change that is under way stays among them until it is made: a read meanwhile does
// not see it.
type changes struct {
	most int // records in made

	mu     sync.Mutex
	made   map[store.Key]bool
	open   map[*[]store.Key]bool // under way
	spills int                   // how often made was full
	behind map[store.Kind]span   // read again as a whole, in place of more than most records
}

const mostChanges = 1 << 17 // about 8 MiB

func newChanges(most int) *changes {
	return &changes{most: most, made: map[store.Key]bool{}, open: map[*[]store.Key]bool{}, behind: map[store.Kind]span{}}
}

// changing is passed to store.Watcher.
func (c *changes) changing(keys []store.Key) (changed func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[&keys] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, &keys)
		for _, k := range keys {
			c.add(k)
		}
	}
}

func (c *changes) add(k store.Key) {
	if len(c.made) >= c.most && !c.made[k] {
		for k := range c.made {
			c.behind[k.Kind] = c.behind[k.Kind].with(k)
		}
		clear(c.made)
		c.spills++
	}
	c.made[k] = true
}

// with returns the smallest span with one more record.
func (s span) with(k store.Key) span {
	last := before(k.ID)
	switch {
	case s.kind == 0:
		return span{k.Kind, last, k.ID}
	case bytes.Compare(last[:], s.after[:]) < 0:
		s.after = last
	case bytes.Compare(k.ID[:], s.through[:]) > 0:
		s.through = k.ID
	}
	return s
}

// before returns the id before an id that is not zero.
func before(id uuid.UUID) uuid.UUID {
	for i := len(id) - 1; i >= 0; i-- {
		id[i]--
		if id[i] != 255 {
			break
		}
	}
	return id
}

// len returns how many records were changed, apart from spans, and how often they were too
// many.
func (c *changes) len() (n, spills int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.made), c.spills
}

// spans returns the spans, which are then not among the changes any more.
func (c *changes) spans() (spans []span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.behind {
		spans = append(spans, s)
	}
	clear(c.behind)
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.kind, b.kind) })
	return spans
}

// take returns at most limit records, which are then not among the changes any more. It is
// called before the read begins.
func (c *changes) take(limit int) (keys []store.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.made {
		if len(keys) == limit {
			break
		}
		keys = append(keys, k)
		delete(c.made, k)
	}
	return keys
}

// with returns all changes and some others, if they are no more than limit, and there are no
// spans. It is called in the View that reads these records: their state is the state of the
// store.
func (c *changes) with(others []store.Key, limit int) (keys []store.Key, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.made) > limit || len(c.behind) > 0 {
		return nil, false
	}

	set := map[store.Key]bool{}
	add := func(keys []store.Key) {
		for _, k := range keys {
			set[k] = true
		}
	}

	add(others)
	add(slices.Collect(maps.Keys(c.made)))
	for open := range c.open {
		add(*open)
	}
	if len(set) > limit {
		return nil, false
	}
	return slices.Collect(maps.Keys(set)), true
}
