package boltstore

import (
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

// A stray is an index entry whose row is missing or disagrees with it, left behind by a
// lost row. Reads pass over it, and the writing goroutine mends it.
type stray interface {
	of() (kind store.Kind, index string)

	// mend makes the indexes agree with the row, if they still do not.
	mend(w *writer)
}

const (
	straysAtOnce = 512         // that one read notes, and one call mends
	reportPause  = time.Minute // between two lines about one kind, and after a mending that failed
)

// pass notes a stray.
func (r *reader) pass(s stray) {
	if len(r.strays) < straysAtOnce {
		r.strays = append(r.strays, s)
	}
}

type strayDue struct {
	key   dueKey
	list  listKey
	class uint8
}

func (s strayDue) of() (store.Kind, string) { return store.Kind(s.key[0]), "due" }

func (s strayDue) mend(w *writer) {
	kind, id := store.Kind(s.key[0]), uuid.UUID(s.key[9:])
	r, ok := w.legible(kind, id)
	if !ok {
		return
	}
	if r.raw == nil && w.lister.has(s.list, id, s.class) {
		w.lister.remove(s.list, id, s.class) // the entry in its list, which Due hid
	}
	old := row{hasDue: true, due: dueOfKey(s.key[:])}
	w.setDue(kind, id, &old, &r)
	w.wrote = true
}

type strayLookup struct {
	kind store.Kind
	hash []byte
	id   uuid.UUID
}

func (s strayLookup) of() (store.Kind, string) { return s.kind, "lookup" }

func (s strayLookup) mend(w *writer) {
	if r, ok := w.legible(s.kind, s.id); ok && !r.hasLookup(s.hash) {
		w.lookup.remove(append(appendLookupKey(nil, s.kind, s.hash), s.id[:]...))
		w.wrote = true
	}
}

// A strayEntry is one of the list of a parent.
type strayEntry struct {
	list  listKey
	id    uuid.UUID
	class uint8
}

func (s strayEntry) of() (store.Kind, string) { return store.Kind(s.list[17]), "list" }

func (s strayEntry) mend(w *writer) {
	kind := store.Kind(s.list[17])
	r, ok := w.legible(kind, s.id)
	if ok && (r.raw == nil || keyOfList(kind, r.account, r.parent) != s.list) && w.lister.has(s.list, s.id, s.class) {
		w.lister.remove(s.list, s.id, s.class)
		w.wrote = true
	}
}

// An unreadable row is where an index says that it is. It is reported, and stays.
type unreadable struct{ kind store.Kind }

func (s unreadable) of() (store.Kind, string) { return s.kind, "due" }
func (s unreadable) mend(*writer)             {}

// legible returns a row, or an empty one if it is absent, and false if it cannot be read.
func (w *writer) legible(kind store.Kind, id uuid.UUID) (row, bool) {
	raw := w.raw(kind, id)
	if raw == nil {
		return row{}, true
	}
	r, err := decodeRow(raw)
	return r, err == nil
}

// passed reports what a read has passed over, and has the writing goroutine mend it. It
// waits for nothing: the next read passes over the same.
func (s *Store) passed(strays []stray) {
	if len(strays) == 0 {
		return
	}

	now := time.Now().UnixNano()
	lost := false
	for _, one := range strays {
		kind, index := one.of()
		if _, stays := one.(unreadable); !stays {
			lost = true
		}
		last := s.reported[kind].Load()
		if now-last >= int64(reportPause) && s.reported[kind].CompareAndSwap(last, now) {
			s.log.Error("an index names records that are lost or damaged; they are skipped", "index", index, "kind", kind)
		}
	}

	if !lost || now < s.mendAt.Load() || s.mending.Swap(true) {
		return
	}
	answered := func(err error) {
		if err != nil {
			s.log.Error("an index cannot be repaired", "error", err)
			s.mendAt.Store(time.Now().Add(reportPause).UnixNano())
		}
		s.mending.Store(false)
	}

	if !s.queue.Offer(&call{strays: strays}, answered) {
		s.mending.Store(false)
	}
}

// mend makes the indexes agree with the rows.
func (w *writer) mend(strays []stray) error {
	return guarded(func() error {
		for _, s := range strays {
			s.mend(w)
		}
		return nil
	})
}
