package pgstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
)

// A server is the PostgreSQL of a Store, and holds checked connections to it. All
// goroutines of the Store use it.
type server struct {
	pool     *pgxpool.Pool
	opts     Options
	sql      *statements   // for all accounts
	parts    []*statements // for those of each partition; none: the tables are whole
	log      *slog.Logger
	timeline atomic.Int64 // the latest that a server has had; -1: servers do not say
}

// divided reports whether the tables have partitions.
func (s *server) divided() bool { return len(s.parts) > 0 }

// part returns the number of the partition of an account.
func (s *server) part(account uuid.UUID) int {
	if !s.divided() {
		return 0
	}
	return partitionOf(account, len(s.parts))
}

// at returns the statements for records of an account.
func (s *server) at(account uuid.UUID) *statements {
	if !s.divided() {
		return s.sql
	}
	return s.parts[s.part(account)]
}

// listOf names the list of a parent, or of an account.
func (s *server) listOf(kind store.Kind, account, parent uuid.UUID) listKey {
	list := listKey{kind: kind, child: parent != uuid.Nil, scope: account}
	if list.child {
		list.scope = parent
	}
	list.part = uint8(s.part(account))
	return list
}

// list names the list in which a row is if it has a class.
func (s *server) list(r *row) listKey { return s.listOf(r.kind, r.account, r.parent) }

const (
	patience  = 5 * time.Second  // for a server that takes writes
	answering = 15 * time.Second // for a server to answer anything
	pause     = 50 * time.Millisecond

	// A machine that dies holds its locks for no longer than the last. None of these cuts
	// short the wait of a commit for the standby.
	timeouts = `SELECT pg_catalog.set_config('statement_timeout', '10s', true), pg_catalog.set_config('lock_timeout', '3s', true),
		pg_catalog.set_config('idle_in_transaction_session_timeout', '3s', true)`
)

const (
	clockOff   = time.Second
	watchPause = 5 * time.Second // between two looks at the server
)

// check refuses a server that must not be used, and returns by how much its clock is
// off at least.
func (s *server) check(ctx context.Context, conn *pgx.Conn) (off time.Duration, err error) {
	var fsync, pages, isolation string
	var recovers bool
	var now time.Time
	if !s.opts.allows(conn) {
		return 0, ErrPlaintext
	}
	began := time.Now()
	err = conn.QueryRow(ctx, `SELECT pg_catalog.clock_timestamp(), pg_catalog.current_setting('fsync'), pg_catalog.current_setting('full_page_writes'),
		pg_catalog.current_setting('default_transaction_isolation'), pg_catalog.pg_is_in_recovery()`).Scan(&now, &fsync, &pages, &isolation, &recovers)
	took := time.Since(began)

	switch {
	case err != nil:
		return 0, err
	case recovers:
		return 0, errNoPrimary
	case fsync != "on" || pages != "on":
		return 0, fmt.Errorf("%w: fsync is %s, full_page_writes is %s", ErrUnsafe, fsync, pages)
	case isolation != "read committed":
		return 0, ErrIsolation
	}

	return max(0, now.Sub(began.Add(took/2)).Abs()-took/2), s.checkTimeline(ctx, conn)
}

// checkTimeline refuses a server that was the primary before the last one it has seen.
// Servers that are only compatible with PostgreSQL may have no timeline.
func (s *server) checkTimeline(ctx context.Context, conn *pgx.Conn) error {
	seen := s.timeline.Load()
	if seen < 0 {
		return nil
	}
	var timeline int64
	err := conn.QueryRow(ctx, builtIn("SELECT ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint")).Scan(&timeline)
	if _, ok := errors.AsType[*pgconn.PgError](err); ok && seen == 0 && !conn.IsClosed() {
		s.timeline.CompareAndSwap(0, -1)
		return nil
	}
	if err != nil {
		return err
	}

	for ; seen < timeline; seen = s.timeline.Load() {
		s.timeline.CompareAndSwap(seen, timeline)
	}
	if seen > timeline {
		return errOldPrimary
	}
	return nil
}

// watch looks at the server every few seconds. A setting that has changed since a
// connection was made, or a server that was promoted, shows only this way.
func (s *server) watch(ctx context.Context) {
	ticker := time.NewTicker(watchPause)
	defer ticker.Stop()
	for warned := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}

		switch off, err := s.look(ctx); {
		case err != nil && !unfit(err):
			// Reads and writes report it.
		case err == nil && off <= clockOff:
			warned = false
		case warned:
		case err != nil:
			warned = true
			s.log.Error("PostgreSQL is no longer used", "error", plain(err))
		default:
			warned = true
			s.log.Error("the clocks of PostgreSQL and of this machine differ", "by", off)
		}
	}
}

// look checks a trusted connection. If it fails, no connection stays trusted.
func (s *server) look(ctx context.Context) (off time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	conn, err := s.acquire(ctx)
	if err != nil {
		return 0, err
	}
	if off, err = s.check(ctx, conn.Conn()); err != nil {
		discard(conn)
		s.pool.Reset()
		return 0, err
	}
	conn.Release()
	return off, nil
}

// trusted names the mark of a connection that was checked.
const trusted = "cardvault"

// acquire returns a connection of the pool. The server of a new one is checked: another
// may answer at the address of the one before.
func (s *server) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	known := conn.Conn().PgConn().CustomData()
	if known[trusted] == nil {
		if _, err := s.check(ctx, conn.Conn()); err != nil {
			discard(conn)
			return nil, err
		}
		known[trusted] = true
	}
	return conn, nil
}

// discard closes a connection and gives its place in the pool free.
func discard(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Conn().Close(ctx) // whether the server hears of it does not matter
	conn.Release()
}

// abandon throws a connection away. If it is lost, or leads to a server that takes no
// writes any more, so most likely are the idle ones.
func (s *server) abandon(conn *pgxpool.Conn, err error) {
	if conn.Conn().IsClosed() || readOnly(err) {
		s.pool.Reset()
	}
	discard(conn)
}

// askPool puts a question on any connection, and on another one if that is lost. After the
// server has gone all connections of the pool are lost, and a replacement is found soon.
func (s *server) askPool(ctx context.Context, q *question) (*answer, error) {
	return patiently(ctx, func() (*answer, error) { return s.askOnce(ctx, q) })
}

// patiently repeats do, which changes nothing, until a server answers.
func patiently[T any](ctx context.Context, do func() (T, error)) (T, error) {
	for began := time.Now(); ; {
		v, err := do()
		if err == nil || ctx.Err() != nil || verdictOfRead(err) != unavailable || time.Since(began) > patience {
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (s *server) askOnce(ctx context.Context, q *question) (*answer, error) {
	answered, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	conn, err := s.acquire(answered)
	if err != nil {
		return nil, err
	}
	a, err := ask(answered, conn.Conn(), q)
	if err != nil && conn.Conn().IsClosed() && ctx.Err() == nil {
		s.pool.Reset() // the others are most likely lost too
	}
	conn.Release()
	return a, err
}

// ask puts a question on a connection.
func ask(ctx context.Context, conn *pgx.Conn, q *question) (*answer, error) {
	rows, err := conn.Query(ctx, q.sql, q.args...)
	if err != nil {
		return nil, err
	}
	return q.read(rows)
}

// checkHash returns store.ErrFormat unless the server puts accounts into the partitions in
// which the Store looks for them: a server of another byte order does not.
func (s *server) checkHash(ctx context.Context) error {
	if !s.divided() {
		return nil
	}
	var accounts []pgtype.UUID
	var parts []int32
	for range 64 {
		account := uuid.New()
		accounts, parts = append(accounts, pgUUID(account)), append(parts, int32(partitionOf(account, len(s.parts))))
	}
	var same bool
	err := s.pool.QueryRow(ctx, s.sql.hash, int32(len(s.parts)), accounts, parts, s.opts.schema()).Scan(&same)
	switch {
	case err != nil:
		return failed(verdictOfRead(err), err)
	case !same:
		return fmt.Errorf("%w: the server divides accounts in another way", store.ErrFormat)
	}
	return nil
}
