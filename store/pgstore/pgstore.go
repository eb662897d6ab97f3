// Package pgstore keeps the records of a vault in PostgreSQL.
package pgstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
)

// Options are the optional parts of [New] and [Migrate].
type Options struct {
	// Schema holds the tables. One vault has one schema. Empty: "cardvault".
	Schema string

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

	queue   chan *call
	closing chan struct{} // closed by Close
	stopped chan struct{} // closed when the writing goroutine has ended
	once    sync.Once

	mu       sync.RWMutex // held to read by Views
	isClosed bool

	memory memory
	long   chan listKey // lists whose end is long

	// The rest belongs to the writing goroutine.
	again      []*call // to run before what is queued
	writer     uuid.UUID
	turn       int64 // of the last group
	registered bool  // writer has a row
	grown      map[listKey]int
	later      map[listKey]bool // to arrange: all of it, or its end
}

var _ store.Store = (*Store)(nil)

// New returns a store on a database that [Migrate] has prepared. The pool stays the caller's,
// who closes the store first. New refuses a server that is a standby, that could lose
// what it acknowledges or whose clock is not that of this machine.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Store, error) {
	if opts == nil {
		opts = new(Options)
	}
	s := &Store{
		pool: pool, sql: statementsOf(opts.schema()), locks: newLocker(opts.schema()), log: opts.Logger,
		queue: make(chan *call, queueLength), closing: make(chan struct{}), stopped: make(chan struct{}),
		memory: memory{rows: map[key]*row{}}, long: make(chan listKey, 16),
		grown: map[listKey]int{}, later: map[listKey]bool{},
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

// askPool puts a question on any connection.
func (s *Store) askPool(ctx context.Context, q *question) (*answer, error) {
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
