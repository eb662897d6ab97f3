package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var faultRules = []harnessRule[*stand]{{
	"Full", "Fault",
	`An Update without enough room returns ErrFull, and leaves no trace unless it also returns
ErrOutcomeUnknown. Reads and deletions continue: a full vault still erases expired cards.`,
	fullStore,
}, {
	"OutcomeUnknown", "Fault",
	`An Update that cannot find out whether its writes are durable returns ErrOutcomeUnknown. Once
the store works again, all of its writes exist, or none.`,
	outcomeUnknown,
}, {
	"Damaged", "Fault",
	`An unreadable record is ErrDamaged, which differs from an absent and from an empty record. It
hides no other record: other cards are found, listed and erased in time. An Update that reads it
goes on, and can delete it. Else nothing but a restoration would remove it.`,
	damagedRecord,
}, {
	"Lost", "Fault",
	`A record that is lost is not passed over where an index leads to it: Lookup returns ErrDamaged
beside the others, and lists keep its place, until a repair. Else a live token is unknown, and
nobody hears of it.`,
	lostRecord,
}, {
	"RepairDamaged", "Fault",
	`A Repairer makes its indexes agree with its records, while others write. A record that cannot
be read keeps its place in lists. Otherwise damage to an index costs a restoration.`,
	repairsItself,
}}

// fault brings a fault upon a store, if the harness can.
func (s *stand) fault(open store.Store, f Fault) (mend func(), ok bool) {
	s.Helper()
	mend = s.Fault(s, open, f)
	if mend == nil {
		s.Log("Not proved, because the harness cannot cause this fault")
	}
	return mend, mend != nil
}

// recovers waits until an Update of a store succeeds again.
func (s *stand) recovers(open store.Store, fn func(store.Tx) error) {
	s.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		err := open.Update(background, fn)
		if err == nil {
			return
		}
		if !errors.Is(err, store.ErrUnavailable) || time.Now().After(deadline) {
			s.Fatalf("Update after the fault was mended = %v", err)
		}
	}
}

func fullStore(s *stand) {
	open := s.fresh()
	put(s, open, row(1), row(2), row(3))
	mend, ok := s.fault(open, Fault{Kind: NoRoom})
	if !ok {
		return
	}

	large := row(4, shown(string(make([]byte, store.MaxRecord/2))))
	for range 3 {
		err := open.Update(background, putting(large, row(3, version(2))))
		if !errors.Is(err, store.ErrFull) {
			s.Errorf("Update = %v, want ErrFull", err)
		}
		if !errors.Is(err, store.ErrOutcomeUnknown) {
			lacks(s, open, large)
			holds(s, open, row(3))
		}
	}
	holds(s, open, row(1), row(2))
	update(s, open, deleting(row(2)))
	lacks(s, open, row(2))

	mend()
	s.recovers(open, putting(row(5, shown(string(large.Shown)))))
	holds(s, open, row(1), row(5, shown(string(large.Shown))))
	lacks(s, open, row(2))
}

func outcomeUnknown(s *stand) {
	open := s.fresh()
	put(s, open, row(1))
	mend, ok := s.fault(open, Fault{Kind: LostAnswer})
	if !ok {
		return
	}
	if err := open.Update(background, putting(row(2), row(3))); !errors.Is(err, store.ErrOutcomeUnknown) {
		s.Errorf("Update = %v, want ErrOutcomeUnknown", err)
	}

	mend()
	s.recovers(open, putting(row(4)))
	holds(s, open, row(1), row(4))
	if a, b := get(s, open, row(2)), get(s, open, row(3)); (a == nil) != (b == nil) {
		s.Error("half of an Update whose outcome was unknown is there")
	}
}

func damagedRecord(s *stand) {
	at := func(n int) func(*store.Record) { return due(time.UnixMicro(int64(n))) }
	open := s.fresh()
	for n := 1; n <= 3; n++ {
		put(s, open, row(n, hashes("h"), at(n)))
	}
	if _, ok := s.fault(open, Fault{Kind: DamagedRecord, Record: store.Key{Kind: kindA, ID: idOf(2)}}); !ok {
		return
	}

	err := open.View(background, func(tx store.ReadTx) error { _, err := tx.Get(kindA, idOf(2)); return err })
	if !errors.Is(err, store.ErrDamaged) {
		s.Errorf("Get of a damaged record = %v, want ErrDamaged", err)
	}
	holds(s, open, row(1, hashes("h"), at(1)), row(3, hashes("h"), at(3)))

	l := list(s, open, store.Query{Kind: kindA, Account: alice, Limit: 9, Count: true})
	is(s, "List", l.Records, 1, 2, 3)
	if len(l.Records) == 3 && (l.Records[1].Version != 0 || l.Total != 3) {
		s.Errorf("List = %d records, in place of the damaged one %+v; want 3, and one with Version 0", l.Total, l.Records[1])
	}
	l = list(s, open, store.Query{Kind: kindA, Account: alice, Lookup: []byte("h"), Limit: 9})
	is(s, "List by a hash", slices.DeleteFunc(l.Records, func(r *store.Record) bool { return r.Version == 0 }), 1, 3)
	view(s, open, func(tx store.ReadTx) error {
		ready, err := tx.Due(kindA, store.AllShards, time.UnixMicro(9), 9)
		is(s, "Due", ready, 1, 3)
		return err
	})
	view(s, open, func(tx store.ReadTx) error {
		all, err := tx.Scan(kindA, uuid.Nil, 9)
		is(s, "Scan", all, 1, 2, 3)
		if len(all) == 3 && (all[1].Kind != kindA || all[1].Version != 0) {
			s.Errorf("Scan = in place of the damaged one %+v; want its key and Version 0", all[1])
		}
		return err
	})
	update(s, open, deleting(row(1)))
	put(s, open, row(4))
	replacesDamaged(s, open)
}

func lostRecord(s *stand) {
	at := func(n int) func(*store.Record) { return due(time.UnixMicro(int64(n))) }
	open := s.fresh()
	for n := 1; n <= 3; n++ {
		put(s, open, row(n, hashes("h"), at(n)))
	}
	if _, ok := s.fault(open, Fault{Kind: LostRecord, Record: store.Key{Kind: kindA, ID: idOf(2)}}); !ok {
		return
	}

	places := func(q store.Query, want ...int) {
		s.Helper()
		q.Kind, q.Account, q.Limit, q.Count = kindA, alice, 9, true
		l := list(s, open, q)
		is(s, "List", l.Records, want...)
		for _, r := range l.Records {
			if (r.Version == 0) != (r.ID == idOf(2)) || l.Total != int64(len(want)) {
				s.Errorf("List = %d records with %+v; want %d, and Version 0 for the lost one alone", l.Total, r, len(want))
			}
		}
	}
	search := func(damaged bool, want ...int) {
		s.Helper()
		view(s, open, func(tx store.ReadTx) error {
			hits, err := tx.Lookup(kindA, []byte("h"), 9)
			is(s, "Lookup", hits, want...)
			if errors.Is(err, store.ErrDamaged) != damaged {
				s.Errorf("Lookup of a hash of a lost record: %v", err)
			}
			return nil
		})
	}
	for n := 4; n <= 5; n++ { // what a read has met is not forgotten by the next
		lacks(s, open, row(2))
		places(store.Query{}, []int{1, 2, 3, 4}[:n-1]...)
		places(store.Query{Min: idOf(2), Max: idOf(2)}, 2)
		places(store.Query{Lookup: []byte("h")}, 1, 2, 3)
		search(true, 1, 3)
		view(s, open, func(tx store.ReadTx) error {
			ready, err := tx.Due(kindA, store.AllShards, time.UnixMicro(9), 9)
			is(s, "Due", ready, 1, 3)
			return err
		})
		put(s, open, row(n))
	}

	if r, ok := open.(store.Repairer); ok {
		repaired(s, r, 5, func(int) {})
		places(store.Query{}, 1, 3, 4, 5)
		places(store.Query{Lookup: []byte("h")}, 1, 3)
		search(false, 1, 3)
	}
}

// replacesDamaged deletes the damaged record 2, and replaces a damaged record that no index has.
func replacesDamaged(s *stand, open store.Store) {
	update(s, open, func(tx store.Tx) error {
		if _, err := tx.Get(kindA, idOf(2)); !errors.Is(err, store.ErrDamaged) {
			s.Errorf("Get of a damaged record in an Update = %v, want ErrDamaged", err)
		}
		tx.Put(row(5))
		_, err := tx.Get(kindA, idOf(4))
		return err
	})
	holds(s, open, row(5))
	update(s, open, deleting(row(2)))
	lacks(s, open, row(2))
	view(s, open, func(tx store.ReadTx) error {
		hits, err := tx.Lookup(kindA, []byte("h"), 9)
		is(s, "Lookup after a damaged record was deleted", hits, 3)
		if errors.Is(err, store.ErrDamaged) {
			err = nil // the hash still leads to it, until a repair
		}
		return err
	})

	alone := func(options ...func(*store.Record)) *store.Record { return row(7, append(options, class(0))...) }
	put(s, open, alone())
	if _, ok := s.fault(open, Fault{Kind: DamagedRecord, Record: store.Key{Kind: kindA, ID: idOf(7)}}); !ok {
		return
	}
	for _, onto := range []*store.Record{alone(), alone(version(2))} {
		refused(s, open, store.ErrDamaged, putting(row(6), onto))
	}
	lacks(s, open, row(6))
	again := alone(shown("again"))
	update(s, open, func(tx store.Tx) error { tx.Delete(again.Kind, again.ID); tx.Put(again); return nil })
	holds(s, open, again, row(4), row(5))
}
