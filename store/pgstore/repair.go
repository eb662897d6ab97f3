package pgstore

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cardvault/cardvault/store"
)

// mendTimeouts bound a transaction that mends: all others of the vault wait for it.
const mendTimeouts = `SELECT pg_catalog.set_config('statement_timeout', '5s', true), pg_catalog.set_config('lock_timeout', '3s', true)`

// Repair implements [store.Repairer]. It compares as Check does, without a lock, and mends the
// rows that do not agree in a transaction for which all others of the vault wait. What is not
// damaged is not written. The blocks of a list that are not where they may be are taken from it, from
// its end on, by about limit rows at a time: the list is one block for a while, and its pages take longer.
func (s *Store) Repair(ctx context.Context, place []byte, limit int) (next []byte, err error) {
	var p *piece
	err = s.View(ctx, func(tx store.ReadTx) (err error) {
		p, next, err = readerOf(tx).pieceAt(place, limit)
		return err
	})
	if err != nil {
		return nil, err
	}

	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, store.ErrClosed
	}
	b, further := s.mends(p, max(1, limit))
	if further {
		next = place
	}
	if b.Len() > 0 {
		err = s.mend(ctx, b)
	}
	return next, err
}

// readerOf returns the reader of a View.
func readerOf(tx store.ReadTx) *reader {
	if d, ok := tx.(dividedReader); ok {
		return d.reader
	}
	return tx.(*reader)
}

// mends returns the statements that mend a piece, and whether to look at it once more: then a part
// of a list is mended.
func (s *Store) mends(p *piece, limit int) (b *pgx.Batch, further bool) {
	b = new(pgx.Batch)
	sql := s.server.checkOf(int(p.part))
	var kinds []int16
	var hashes, lookups [][]byte
	var ids []pgtype.UUID
	add := func(l *looked, hash []byte) {
		kinds, hashes, ids, lookups = append(kinds, l.kind), append(hashes, hash), append(ids, pgUUID(l.id)), append(lookups, l.lookup)
	}

	uncounted := map[listKey]bool{}
	for i := range p.rows {
		l := &p.rows[i]
		scope, first := pgUUID(l.list.scope), pgUUID(l.first)
		switch {
		case l.fault == store.FaultMissing:
			for _, hash := range l.missing {
				add(l, hash)
			}
		case l.fault == store.FaultStray:
			add(l, l.hash)
		case l.fault == store.FaultOrder && l.shape && !uncounted[l.list]:
			uncounted[l.list] = true
			b.Queue(sql.uncount, scope, l.list.child, l.kind, count(limit))
			b.Queue(sql.unleveled, scope, l.list.child, l.kind, count(limit))
			further = true
			s.memory.lists.note(listKey{kind: l.list.kind, child: l.list.child, part: p.part, scope: l.list.scope}, uuid.Nil)
		case l.fault == store.FaultOrder && !uncounted[l.list]:
			b.Queue(sql.recount, scope, l.list.child, l.kind, l.level, first)
			if l.level == 1 { // its run may agree with the wrong counts
				b.Queue(sql.recount, scope, l.list.child, l.kind, int16(2), first)
			}
		}
	}

	switch {
	case len(kinds) == 0:
	case p.phase == checkRecords:
		b.Queue(sql.on, kinds, hashes, ids, lookups)
	default:
		b.Queue(sql.off, kinds, hashes, ids, lookups)
	}
	return b, further
}

// mend runs sql while no other transaction of the vault writes.
func (s *Store) mend(ctx context.Context, sql *pgx.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	conn, err := s.server.acquire(ctx)
	if err != nil {
		return failed(verdictOfRead(err), err)
	}

	var lock pgx.Batch
	lock.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	lock.Queue(mendTimeouts)
	lock.Queue(s.server.sql.lock, true, []int64{s.notifier.locks.all()}, []bool{true})
	for _, b := range []*pgx.Batch{&lock, sql} { // to prepare a statement takes locks, too
		if err := conn.SendBatch(ctx, b).Close(); err != nil {
			discard(conn)
			return failed(verdictOfRead(err), err)
		}
	}
	if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
		discard(conn)
		return failed(judge(err), err)
	}
	conn.Release()
	return nil
}
