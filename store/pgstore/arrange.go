package pgstore

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	longTail     = 512  // records put into a list before its end is cut into blocks
	listsSeen    = 4096 // lists whose records are counted
	listsWaiting = 256  // more are passed over, until their lists are read again

	arrangeTries = 5
	arrangePause = time.Second // between two
	// Writers to the list wait for as long as arrange waits for its lock.
	arrangeTimeouts = `SELECT pg_catalog.set_config('statement_timeout', '5s', true), pg_catalog.set_config('lock_timeout', '100ms', true)`
)

// An arranger knows which lists wait to be cut into blocks. A goroutine of the Store does
// it.
type arranger struct {
	*server
	locks locker
	some  chan struct{} // has a value when there may be lists

	mu    sync.Mutex
	lists map[listKey]uuid.UUID // under mu: from the block on that has this id
}

func newArranger(s *server, locks locker) *arranger {
	return &arranger{server: s, locks: locks, lists: map[listKey]uuid.UUID{}, some: make(chan struct{}, 1)}
}

// note asks for a list to be cut from the block on that has an id. The greatest id
// stands for its end.
func (a *arranger) note(list listKey, from uuid.UUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.lists[list]
	if !ok && len(a.lists) >= listsWaiting || ok && bytes.Compare(at[:], from[:]) <= 0 {
		return
	}
	a.lists[list] = from
	select {
	case a.some <- struct{}{}:
	default:
	}
}

// take returns any list.
func (a *arranger) take() (list listKey, from uuid.UUID, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for list, from := range a.lists {
		delete(a.lists, list)
		return list, from, true
	}
	return listKey{}, uuid.Nil, false
}

// run cuts the lists that are noted until ctx ends.
func (a *arranger) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.some:
		}
		for list, from, ok := a.take(); ok && ctx.Err() == nil; list, from, ok = a.take() {
			a.arrange(ctx, list, from)
		}
	}
}

// arrange cuts a list into blocks piece by piece: others write to it between these.
func (a *arranger) arrange(ctx context.Context, list listKey, from uuid.UUID) {
	at, tries := pgUUID(from), 0
	for at.Valid {
		next, err := a.arrangePiece(ctx, list, at)
		if err == nil {
			at, tries = next, 0
			continue
		}

		if tries++; tries == arrangeTries {
			a.log.Warn("a long list is not in blocks yet, so reading it takes longer", "error", plain(err))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(arrangePause):
		}
	}
}

// arrangeOf returns the statement that cuts a list.
func (a *arranger) arrangeOf(list listKey) string {
	if a.divided() {
		return a.parts[list.part].arrange
	}
	return a.sql.arrange
}

// arrangePiece cuts one piece, and returns where the next one begins.
func (a *arranger) arrangePiece(ctx context.Context, list listKey, at pgtype.UUID) (next pgtype.UUID, err error) {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	conn, err := a.acquire(ctx)
	if err != nil {
		return next, err
	}

	locks := lockSet{a.locks.all(): false, a.locks.lists(list.kind): false, a.locks.list(list): true}
	keys, exclusive := locks.sorted()
	var b pgx.Batch
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	b.Queue(arrangeTimeouts)
	b.Queue(a.arrangeOf(list), int16(list.kind), list.child, pgUUID(list.scope), at, keys, exclusive).
		QueryRow(func(r pgx.Row) error { return r.Scan(&next) })
	b.Queue("COMMIT")

	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		discard(conn)
		return next, err
	}
	conn.Release()
	return next, nil
}
