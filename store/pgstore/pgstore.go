// Package pgstore keeps the records of a vault in PostgreSQL 13 or later: for whoever
// has outgrown one machine. Any number of processes may use one database, each with a
// Store of its own, and lose nothing when a machine dies.
//
//	pool, err := pgxpool.New(ctx, "postgres://host1,host2/vault?target_session_attrs=read-write")
//	err = pgstore.Migrate(ctx, pool, nil) // on deployment, by a role that may create tables
//	s, err := pgstore.New(ctx, pool, nil)
//
// # Order
//
// Behaviour is strictly serializable, over all processes. One goroutine of a Store makes
// all its writes, whatever is queued in one transaction. The functions run on rows that
// were read before, or are remembered; the transaction takes advisory locks for all that
// they have read and write, checks that it is still so, and writes, in one round trip.
// The locks last until the commit, so commits have the order of a serial run, and every
// snapshot is the state after some of them. Groups that do not touch each other commit at
// the same time. A group that has read what has changed meanwhile runs again; after three
// attempts it locks out everybody, so that it succeeds.
//
// A View of one read is one statement. One of several reads is a transaction that is
// repeatable read; see [Store.View] for when its function runs twice.
//
// # Tables
//
// The schema is in [Migrations]. records holds every kind, by kind and row key; it is
// also the index of lists, by parent or account. lookups holds the hashes. counts holds
// how many records of a class are in a stretch of a list, as rows that are only added
// and now and then summed up, so that nobody waits for a counter; the end of a list is
// in no stretch. A total, or a page however far down, adds up some hundred rows. writers
// has a row for each Store with the number of its last group: if the answer to a commit
// is lost, the Store learns from it what became of the group, or sees to it that it
// never will be committed. So store.ErrOutcomeUnknown is returned only when no server
// answers for ten seconds.
//
// # What the server has to be
//
// fsync and full_page_writes on, which New checks; synchronous_commit may be anything, as
// each commit waits for the disk, and for the synchronous standby if there is one. With
// none, what was acknowledged is lost with the machine, and New warns. After a fail-over
// the promoted server has all that was acknowledged only if it was the synchronous one.
// The isolation level of sessions is read committed, as installed. The clock may differ
// by a second. statement_timeout and lock_timeout are set for each transaction.
//
// # PgBouncer
//
// In session mode everything works. In transaction mode of 1.21 and later, with
// max_prepared_statements, so does the default of pgx. Before that, or without it, set
// pgx's DefaultQueryExecMode to QueryExecModeExec or QueryExecModeCacheDescribe; the other
// modes do not work. Statement mode does not. [Options.Listen] goes past the pooler.
//
// # Beyond one server
//
// Nothing in a vault spans two accounts but the keys, so accounts can be divided among
// several vaults by a hash of their id, each with a schema on a server of its own, and
// moved by hand: stop the writes of an account, copy its rows of records, those that are
// children of these, and their lookups; delete them in the old schema; leave counts empty
// in the new one, where they are made again. Within one server records can be partitioned
// by hash of (kind, id), and lookups by hash of (kind, hash).
//
// A distributed database that speaks the protocol of PostgreSQL serves if it has
// PL/pgSQL, arrays and unnest, read committed with a new snapshot for each statement of a function,
// repeatable read snapshots that are the latest, transaction-level advisory locks that
// hold on all nodes and are released after the commit is visible, FOR UPDATE SKIP LOCKED,
// and partial indexes; LISTEN is optional. Where advisory locks do nothing, as in
// CockroachDB, it is not serializable: do not use it there.
package pgstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
)

// Options are the optional parts of [New] and [Migrate].
type Options struct {
	// Schema holds the tables. One vault has one schema. Empty: "cardvault".
	Schema string

	// Listen is how to reach the server past any pooler, for LISTEN. Vaults then hear
	// of each other's work at once. If nil they look for it, twice a minute.
	Listen *pgx.ConnConfig

	// Logger is told what an operator should see. If nil, nothing is logged.
	Logger *slog.Logger
}

func (o *Options) schema() string {
	if o == nil || o.Schema == "" {
		return "cardvault"
	}
	return o.Schema
}

// Errors of [New].
var (
	// ErrUnsafe is returned for a server that acknowledges what it may forget:
	// with fsync or full_page_writes off.
	ErrUnsafe = errors.New("pgstore: the server does not keep what it acknowledges")

	// ErrClock is returned if the clocks of the server and of this machine differ by
	// more than a second.
	ErrClock = errors.New("pgstore: the clock is off")

	// ErrIsolation is returned if transactions do not begin as read committed: what a
	// group reads under its locks would be older than these.
	ErrIsolation = errors.New("pgstore: default_transaction_isolation is not read committed")
)

// A Store is a [store.Store] in PostgreSQL. Get one from [New].
type Store struct {
	pool  *pgxpool.Pool
	sql   *statements
	locks locker
	log   *slog.Logger

	listenTo *pgx.ConnConfig
	channel  string // of notifications
	name     string // in notifications

	queue   chan *call
	closing chan struct{} // closed by Close
	stopped chan struct{} // closed when the writing goroutine has ended
	once    sync.Once

	mu       sync.RWMutex // held to read by Views
	isClosed bool

	memory memory
	long   chan listKey // lists whose end is long

	// The rest belongs to the writing goroutine.
	group      *group  // that is being executed
	again      []*call // to run before what is queued
	spare      *group
	writer     uuid.UUID
	turn       int64 // of the last group
	registered bool  // writer has a row
	grown      map[listKey]int
	later      map[listKey]bool    // to arrange: all of it, or its end
	wakes      map[store.Kind]bool // to notify of
	notified   time.Time
}

var _ store.Store = (*Store)(nil)

// New returns a store on a database that [Migrate] has prepared, and starts the goroutine
// that writes. The pool stays the caller's, who closes the store first; it should have at
// least two connections, and a connect timeout of a second or two. New refuses a server
// that is a standby, that could lose what it acknowledges or whose clock is not that of
// this machine.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Store, error) {
	if opts == nil {
		opts = new(Options)
	}
	s := &Store{
		pool: pool, sql: statementsOf(opts.schema()), locks: newLocker(opts.schema()), log: opts.Logger,
		queue: make(chan *call, queueLength), closing: make(chan struct{}), stopped: make(chan struct{}),
		memory: memory{rows: map[key]*row{}}, long: make(chan listKey, 16),
		grown: map[listKey]int{}, later: map[listKey]bool{}, wakes: map[store.Kind]bool{},
		listenTo: opts.Listen, channel: "cardvault " + strconv.FormatUint(uint64(newLocker(opts.schema())), 16), name: uuid.NewString(),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.inspect(ctx, opts.schema()); err != nil {
		return nil, err
	}
	go s.run()
	return s, nil
}

const clockOff = time.Second

// inspect looks at the server.
func (s *Store) inspect(ctx context.Context, schema string) error {
	version, err := schemaVersion(ctx, s.pool, schema)
	switch {
	case err != nil:
		return failed(verdictOfRead(err), err)
	case version == 0 || version < newest:
		return ErrNotMigrated
	case version > newest:
		return fmt.Errorf("%w: the schema has version %d, this program knows %d", store.ErrFormat, version, newest)
	}
	var fsync, pages, isolation, standbys string
	var recovers bool
	var off time.Duration
	for range 3 { // the quickest answer tells the time best
		var now time.Time
		began := time.Now()
		err := s.pool.QueryRow(ctx, `SELECT clock_timestamp(), current_setting('fsync'), current_setting('full_page_writes'),
			current_setting('default_transaction_isolation'), current_setting('synchronous_standby_names'), pg_is_in_recovery()`).
			Scan(&now, &fsync, &pages, &isolation, &standbys, &recovers)
		if err != nil {
			return failed(verdictOfRead(err), err)
		}
		took := time.Since(began)
		if d := max(0, now.Sub(began.Add(took/2)).Abs()-took/2); off == 0 || d < off {
			off = d
		}
	}
	switch {
	case recovers:
		return fmt.Errorf("%w: the server is a standby", store.ErrUnavailable)
	case fsync != "on" || pages != "on":
		return fmt.Errorf("%w: fsync is %s, full_page_writes is %s", ErrUnsafe, fsync, pages)
	case isolation != "read committed":
		return ErrIsolation
	case off > clockOff:
		return fmt.Errorf("%w by %v", ErrClock, off.Round(time.Millisecond))
	}
	if strings.TrimSpace(standbys) == "" {
		s.log.Warn("PostgreSQL has no synchronous standby: what it acknowledges is lost with its disk")
	}
	return nil
}

// acquire returns a connection of the pool.
func (s *Store) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	return s.pool.Acquire(ctx)
}

// discard closes a connection and gives its place in the pool free.
func discard(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Conn().Close(ctx) // what the server hears of it does not matter
	conn.Release()
}

// askPool puts a question on any connection, and on another one if that is lost: after
// the server has gone all of the pool are, and one that takes its place is found soon.
func (s *Store) askPool(ctx context.Context, q *question) (*answer, error) {
	for began := time.Now(); ; {
		a, err := s.askOnce(ctx, q)
		if err == nil || ctx.Err() != nil || verdictOfRead(err) != unavailable || time.Since(began) > patience {
			return a, err
		}
		s.pool.Reset()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (s *Store) askOnce(ctx context.Context, q *question) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	rows, err := s.pool.Query(ctx, q.sql, q.args...)
	if err != nil {
		return nil, err
	}
	return q.read(rows)
}

// Update implements [store.Store]. It runs fn in another goroutine than the
// caller's. A Tx used after fn has returned panics.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := &call{fn: fn, done: make(chan struct{})}
	select {
	case <-s.closing:
		return store.ErrClosed
	default:
	}
	select {
	case s.queue <- c:
	default:
		select {
		case s.queue <- c:
		case <-s.closing:
			return store.ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case <-c.done:
	case <-s.stopped:
		select {
		case <-c.done:
		default:
			return store.ErrClosed
		}
	case <-ctx.Done():
		if c.state.CompareAndSwap(queued, abandoned) {
			return ctx.Err()
		}
		<-c.done
	}
	switch {
	case c.panicked != nil:
		panic(c.panicked)
	case c.exited:
		runtime.Goexit()
	}
	return c.err
}

// Close implements [store.Store]. What waits in the queue gets store.ErrClosed.
func (s *Store) Close() error {
	s.once.Do(func() {
		close(s.closing)
		<-s.stopped
		s.mu.Lock()
		defer s.mu.Unlock()
		s.isClosed = true
	})
	return nil
}
