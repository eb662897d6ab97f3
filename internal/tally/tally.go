// Package tally counts distinct values under keys, day by day, in bounded memory. It may
// count too many and never counts too few.
package tally

import (
	"encoding/binary"
	"sync"
)

// Bounds. A layer of n slots takes 16 n bytes, so that a Tally takes 64 KiB for its first
// 2,048 values of a day, 16 MiB for as many as small owners have, and 97 MiB at most,
// besides 8 MiB for the owners.
const (
	rows      = 4  // counters of a key in a layer
	line      = 64 // counters among which a key has its own: what the processor reads at once
	ways      = 16 // slots among which a value has its place
	slots     = 1 << 20
	share     = 1 << 16 // values that an owner may add to the table of all
	maxOwners = 1 << 16
	maxOwn    = 4 // tables that belong to one owner
)

// MaxLimit is the highest limit that Take takes.
const MaxLimit = 254

// A Tally counts for many owners. The zero value is ready; it may be used concurrently.
//
// All owners share a table. An owner who has added 65,536 values on a day continues in a
// table of its own, so that it does no harm to others, unless four owners have one already.
// Then it continues in a second shared table, as does an owner who comes when 65,536 others
// are known. A value is found again by 64 bits of it: out of a million, one in 10^12 new
// values is mistaken for one of them.
type Tally struct {
	mu     sync.Mutex // guards what follows
	day    int64
	owners map[[16]byte]*owner
	own    int // tables that belong to one owner
	all    table
	rest   table
}

type owner struct {
	added int    // to the table of all
	own   *table // once that is its share; nil: the rest
}

// Take counts a value under a key, unless it was counted on that day, and reports whether
// it may pass. At the limit a counted value still passes. The first new value is refused,
// and from then on no value of that key passes, not even a counted one. Otherwise an owner
// at the limit could find out which values others have had. Key and value are keyed hashes,
// of one owner. A value that has the hash of another passes; a key that has the hash of
// another counts too many.
//
// Another day clears all counts, except by a clock that has stepped back over midnight: the
// day that it had reached continues.
func (t *Tally) Take(day int64, of [16]byte, key uint64, value [16]byte, limit int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.owners == nil || day != t.day && day != t.day-1 {
		t.day, t.own = day, 0
		t.owners = map[[16]byte]*owner{}
		t.all, t.rest = table{layers: []*layer{newLayer(slots >> 8)}}, table{}
	}

	o := t.owners[of]
	if o == nil && len(t.owners) < maxOwners {
		o = &owner{}
		t.owners[of] = o
	}
	first, last := &t.all, &t.all
	switch {
	case o == nil:
		first, last = &t.rest, &t.rest
	case o.added >= share:
		if o.own == nil && t.own < maxOwn {
			t.own++
			o.own = &table{}
		}
		if last = o.own; last == nil {
			last = &t.rest
		}
	}

	n := first.count(key)
	if first != last {
		n += last.count(key)
	}
	switch {
	case n > MaxLimit:
		return false
	case first.has(value) || last.has(value):
		return true
	case n >= min(limit, MaxLimit):
		last.close(key)
		return false
	}
	last.add(key, value)
	if last == &t.all {
		o.added++
	}
	return true
}

// A table is a small layer, which takes no more once it is half full, and a large one, which
// takes whatever comes then.
type table struct{ layers []*layer }

// A layer is a set of values and a count-min sketch of keys. The set forgets a value when
// there is no room for it.
type layer struct {
	values []uint64 // 0: none
	counts []uint8  // in lines
	added  int
}

func newLayer(n int) *layer {
	return &layer{values: make([]uint64, n), counts: make([]uint8, rows*2*n)}
}

func (t *table) has(value [16]byte) bool {
	for _, l := range t.layers {
		id, bucket := l.place(value)
		for _, have := range bucket {
			if have == id {
				return true
			}
		}
	}
	return false
}

func (t *table) count(key uint64) (n int) {
	for _, l := range t.layers {
		n += int(l.count(key))
	}
	return n
}

// top returns the layer that takes new values.
func (t *table) top() *layer {
	n := len(t.layers)
	switch {
	case n == 0:
		t.layers = append(t.layers, newLayer(slots))
	case n == 1 && len(t.layers[0].values) < slots && t.layers[0].added >= len(t.layers[0].values)/2:
		t.layers = append(t.layers, newLayer(slots))
	}
	return t.layers[len(t.layers)-1]
}

// close makes count more than MaxLimit.
func (t *table) close(key uint64) {
	counts := t.top().line(key)
	for row := range rows {
		counts[counter(row, key)] = MaxLimit + 1
	}
}

func (t *table) add(key uint64, value [16]byte) {
	l := t.top()

	// Only the lowest counters rise: the others are too high as it is.
	next := l.count(key) + 1
	counts := l.line(key)
	for row := range rows {
		c := &counts[counter(row, key)]
		*c = max(*c, next)
	}

	id, bucket := l.place(value)
	at := l.added % ways
	for i, have := range bucket {
		if have == 0 {
			at = i
			break
		}
	}
	bucket[at] = id
	l.added++
}

// place returns what a value is known by and the slots in which it may be.
func (l *layer) place(value [16]byte) (id uint64, bucket []uint64) {
	id = max(1, binary.BigEndian.Uint64(value[:]))
	i := int(binary.BigEndian.Uint32(value[8:])%uint32(len(l.values)/ways)) * ways
	return id, l.values[i : i+ways]
}

func (l *layer) count(key uint64) uint8 {
	counts := l.line(key)
	n := counts[counter(0, key)]
	for row := 1; row < rows; row++ {
		n = min(n, counts[counter(row, key)])
	}
	return n
}

// line returns the counters that include a key's.
func (l *layer) line(key uint64) *[line]uint8 {
	i := int(uint32(key>>32)%uint32(len(l.counts)/line)) * line
	return (*[line]uint8)(l.counts[i:])
}

// counter returns which of a line is the counter of a key in a row.
func counter(row int, key uint64) int {
	const width = line / rows
	return row*width + int(key>>(8*row)%width)
}
