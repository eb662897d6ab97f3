package pgstore

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	resolving = 10 * time.Second // for the outcome of a commit whose answer was lost

	groupsKept = 256             // rows of groups whose outcome is known
	groupsTidy = 16 * groupsKept // that are deleted at once
)

// An outcomes looks up in the table groups whether a group of its Store was committed.
type outcomes struct {
	*server
	id      uuid.UUID  // of the Store
	settled chan int64 // for tidy: up to this turn outcomes are known
}

// resolve finds out whether the transaction of a turn was committed, and if not, sees to
// it that it never will be: the server may still have to come to it. began is when the
// group was first tried.
func (o *outcomes) resolve(turn int64, began time.Time) verdict {
	for deadline := time.Now().Add(resolving); time.Now().Before(deadline); time.Sleep(pause) {
		// Rows of groups are deleted after a day, for which a machine may have been suspended.
		if time.Now().Round(0).Sub(began.Round(0)) > time.Hour {
			return unknown
		}

		switch committed, err := o.settle(turn); {
		case err != nil:
		case committed:
			return done
		default:
			return unavailable
		}
	}
	return unknown
}

// settle ends the group of a turn, and reports whether it was committed.
func (o *outcomes) settle(turn int64) (committed bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), resolving/4)
	defer cancel()
	conn, err := o.acquire(ctx)
	if err != nil {
		return false, err
	}
	if err := conn.QueryRow(ctx, o.sql.settle, pgUUID(o.id), turn).Scan(&committed); err != nil {
		o.abandon(conn, err)
		return false, err
	}
	conn.Release()
	return committed, nil
}

// tidy deletes rows of groups until ctx ends: its own rows once their outcome is known and,
// now and then, the rows of stores that are gone.
func (o *outcomes) tidy(ctx context.Context) {
	var tidied int64
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var b pgx.Batch
		b.Queue(`SELECT pg_catalog.set_config('synchronous_commit', 'off', true)`)
		select {
		case <-ctx.Done():
			return
		case to := <-o.settled:
			b.Queue(o.sql.tidy, pgUUID(o.id), max(tidied, to-groupsTidy), to)
			tidied = to // a row that is missed is deleted after a day
		case <-timer.C:
			b.Queue(o.sql.old)
			timer.Reset(time.Hour)
		}

		ctx, cancel := context.WithTimeout(ctx, answering)
		if conn, err := o.acquire(ctx); err == nil {
			if err := conn.SendBatch(ctx, &b).Close(); err != nil {
				discard(conn)
			} else {
				conn.Release()
			}
		}
		cancel()
	}
}
