package boltstore

import (
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

// A stray is an index entry whose row is lost, cannot be read or disagrees with it. Reads report
// it. The entry of a lost row stays: nothing else shows that there was one.
type stray interface {
	of() (store.Kind, store.Index)
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

// A lostRow cannot be found or read where an index says that it is.
type lostRow struct {
	kind  store.Kind
	index store.Index
}

func (s lostRow) of() (store.Kind, store.Index) { return s.kind, s.index }

// A strayDue is the key of an entry whose row is due at another time. The writing goroutine mends
// it, so that the row is due when it says so.
type strayDue dueKey

func (s strayDue) of() (store.Kind, store.Index) { return store.Kind(s[0]), store.IndexDue }

func (s strayDue) mend(w *writer) {
	kind, id := store.Kind(s[0]), uuid.UUID(s[9:])
	r, ok := w.legible(kind, id)
	if !ok || r.raw == nil {
		return
	}
	old := row{hasDue: true, due: dueOfKey(s[:])}
	w.setDue(kind, id, &old, &r)
	w.wrote = true
}

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
	var late []strayDue
	for _, one := range strays {
		kind, index := one.of()
		if due, is := one.(strayDue); is {
			late = append(late, due)
		}
		last := s.reported[kind].Load()
		if now-last >= int64(reportPause) && s.reported[kind].CompareAndSwap(last, now) {
			s.log.Error("an index names records that are lost or damaged; repair the vault", "index", index, "kind", kind)
		}
	}

	if len(late) == 0 || now < s.mendAt.Load() || s.mending.Swap(true) {
		return
	}
	answered := func(err error) {
		if err != nil {
			s.log.Error("an index cannot be repaired", "error", err)
			s.mendAt.Store(time.Now().Add(reportPause).UnixNano())
		}
		s.mending.Store(false)
	}

	if !s.queue.Offer(&call{strays: late}, answered) {
		s.mending.Store(false)
	}
}

// mend makes the index of due rows agree with these.
func (w *writer) mend(strays []strayDue) error {
	return guarded(func() error {
		for _, s := range strays {
			s.mend(w)
		}
		return nil
	})
}
