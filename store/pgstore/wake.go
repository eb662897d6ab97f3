package pgstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cardvault/cardvault/store"
)

const (
	wakePause   = 10 * time.Millisecond // between two notifications of a store
	listenPause = time.Second           // between attempts to listen
	listenCheck = 30 * time.Second      // after which a silent connection is tried
)

// A notifier notifies other processes of records that are due, and receives their
// notifications.
type notifier struct {
	*server
	locks locker
	id    uuid.UUID // of the Store: it is not woken by itself

	// Owned by the writing goroutine.
	wakes    map[store.Kind]bool // to notify of
	notified time.Time
}

// wait calls wake for due records of other processes until ctx ends. It listens on
// a connection of its own, and makes another one when that is lost.
func (n *notifier) wait(ctx context.Context, wake func(store.Kind)) {
	for warned := false; ; {
		err := n.listen(ctx, wake)
		if ctx.Err() != nil {
			return
		}
		if !warned {
			warned = true
			n.log.Warn("the listening connection is lost and will be reopened", "error", plain(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(listenPause):
		}
	}
}

// listen passes on notifications until the connection fails.
func (n *notifier) listen(ctx context.Context, wake func(store.Kind)) error {
	dial, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	conn, err := pgx.ConnectConfig(dial, n.opts.Listen)
	if err != nil {
		return err
	}

	defer func() {
		end, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(end) // it may be lost
	}()

	if !n.opts.allows(conn) {
		return ErrPlaintext
	}
	if _, err := conn.Exec(dial, "LISTEN "+pgx.Identifier{n.locks.channel()}.Sanitize()); err != nil {
		return err
	}

	wake(0) // for notifications that were missed
	for {
		wait, cancel := context.WithTimeout(ctx, listenCheck)
		notification, err := conn.WaitForNotification(wait)
		silent := wait.Err() != nil && ctx.Err() == nil
		cancel()
		if silent {
			check, cancel := context.WithTimeout(ctx, answering)
			err = conn.Ping(check)
			cancel()
			if err == nil {
				continue
			}
		}

		if err != nil {
			return err
		}
		n.pass(notification.Payload, wake)
	}
}

// pass calls wake for the kinds of a notification, unless it is one of its own.
func (n *notifier) pass(payload string, wake func(store.Kind)) {
	from, kinds, _ := strings.Cut(payload, " ")
	if from == n.id.String() {
		return
	}
	for kind := range strings.SplitSeq(kinds, " ") {
		if k, err := strconv.ParseUint(kind, 10, 8); err == nil && k != 0 {
			wake(store.Kind(k))
		}
	}
}

// note notes the kinds with due records in the writes of a group.
func (n *notifier) note(g *group) {
	now := time.Now()
	for k, r := range g.overlay {
		if r != nil && r.due.Valid && !r.due.Time.After(now) && r != g.known[k] {
			n.wakes[k.kind] = true
		}
	}
}

// timer fires when there is something to notify of and it is time to.
func (n *notifier) timer() <-chan time.Time {
	if len(n.wakes) == 0 {
		return nil
	}
	return time.After(time.Until(n.notified.Add(wakePause)))
}

// notify notifies other processes of these kinds. It is a transaction of its own: NOTIFY
// holds a lock of the whole server until its commit, which therefore waits for no disk.
func (n *notifier) notify() {
	if len(n.wakes) == 0 || time.Since(n.notified) < wakePause {
		return
	}
	n.notified = time.Now()
	payload := n.id.String()
	for _, kind := range slices.Sorted(maps.Keys(n.wakes)) {
		payload += fmt.Sprintf(" %d", kind)
	}
	clear(n.wakes)

	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // writes wait for it
	defer cancel()
	conn, err := n.acquire(ctx)
	if err != nil {
		return // other processes also look on their own
	}
	if _, err := conn.Exec(ctx, `SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify($1, $2)`, n.locks.channel(), payload); err != nil {
		discard(conn)
		return
	}
	conn.Release()
}
