package pgstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cardvault/cardvault/store"
)

var _ store.Waker = (*Store)(nil)

const (
	wakePause   = 10 * time.Millisecond // between two notifications of a store
	listenPause = time.Second           // between attempts to listen
	listenCheck = 30 * time.Second      // after which a silent connection is tried
)

// Wakes implements [store.Waker] by LISTEN, on a connection of its own. It returns at
// once if Options.Listen is nil, and goes on when the connection is lost.
func (s *Store) Wakes(ctx context.Context, wake func(store.Kind)) error {
	if s.opts.Listen == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.queue.Closing():
			cancel()
		case <-ctx.Done():
		}
	}()
	for told := false; ; {
		err := s.listen(ctx, wake)
		if ctx.Err() != nil {
			return nil
		}
		if !told {
			told = true
			s.log.Warn("the connection that listens is lost and will be made again", "error", plain(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenPause):
		}
	}
}

// listen passes on notifications until the connection fails.
func (s *Store) listen(ctx context.Context, wake func(store.Kind)) error {
	dial, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	conn, err := pgx.ConnectConfig(dial, s.opts.Listen)
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(end) // it may be lost
	}()
	if !s.opts.private(conn) {
		return ErrPlaintext
	}
	if _, err := conn.Exec(dial, "LISTEN "+pgx.Identifier{s.locks.channel()}.Sanitize()); err != nil {
		return err
	}
	wake(0) // what was missed
	for {
		wait, cancel := context.WithTimeout(ctx, listenCheck)
		n, err := conn.WaitForNotification(wait)
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
		from, kinds, _ := strings.Cut(n.Payload, " ")
		if from == s.id.String() {
			continue
		}
		for kind := range strings.SplitSeq(kinds, " ") {
			if k, err := strconv.ParseUint(kind, 10, 8); err == nil && k != 0 {
				wake(store.Kind(k))
			}
		}
	}
}

// dueNow notes the kinds of which a group has written records that are due.
func (s *Store) dueNow(g *group) {
	now := time.Now()
	for k, r := range g.overlay {
		if r != nil && r.due.Valid && !r.due.Time.After(now) && r != g.known[k] {
			s.wakes[k.kind] = true
		}
	}
}

// notify tells other processes of these kinds. It is a transaction of its own: NOTIFY
// holds a lock of the whole server until its commit, which therefore waits for no disk.
func (s *Store) notify() {
	if len(s.wakes) == 0 || time.Since(s.notified) < wakePause {
		return
	}
	s.notified = time.Now()
	payload := s.id.String()
	for _, kind := range slices.Sorted(maps.Keys(s.wakes)) {
		payload += fmt.Sprintf(" %d", kind)
	}
	clear(s.wakes)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // writes wait for it
	defer cancel()
	conn, err := s.acquire(ctx)
	if err != nil {
		return // others look without being told
	}
	if _, err := conn.Exec(ctx, `SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify($1, $2)`, s.locks.channel(), payload); err != nil {
		discard(conn)
		return
	}
	conn.Release()
}
