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
// attempts it locks out everybody, so that it succeeds. So does an Update of more than
// four thousand records; one of more than 65,536 writes or 64 MB is store.ErrInvalid.
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
// in no stretch, until a goroutine of a Store cuts it, some thousand records at a time. A
// total, or a page however far down, adds up some hundred rows for each million. groups
// has a row for each group of writes, by its Store and a number: if the answer to a commit
// is lost, the Store learns from it what became of the group, or puts a row there so that
// it never will be committed. So store.ErrOutcomeUnknown is returned only when no server
// answers for ten seconds. Rows that are not needed go soon, those of a Store that is gone
// after a day.
//
// The role of the pool needs USAGE on the schema, SELECT on migrations and seed, and SELECT,
// INSERT, UPDATE and DELETE on the other tables. Everybody may call the functions, which do
// what their caller may do. No search path matters, as all SQL names pg_catalog, and no
// session is told one: the pool may be used for other things, and PgBouncer refuses a
// search_path at the start of a session.
//
// Give a vault a database of its own, to which no other role may connect: New warns if
// PUBLIC may. Advisory locks need no right but that. Their names follow from the random
// number in seed, which is for the role of the vault alone; but pg_locks shows everybody
// the names of those that are in use, and a session that holds one stops writes for as
// long as it lives. The log then says which.
//
// # TLS
//
// A connection that leaves the host has to be TLS with a certificate that is verified:
// sslmode=verify-full, or verify-ca with a root certificate that signs for nobody else.
// sslmode=require encrypts for whoever answers, and prefer and allow, which is what pgx
// does if nothing is set, do without: all of these are refused with ErrPlaintext, by each
// host that the URL names and again by where each connection has led. Loopback and Unix
// sockets need no TLS. See Options.AllowPlaintext.
//
// # What the server has to be
//
// A primary, with fsync and full_page_writes on: New checks that, and the Store on each
// new connection and every five seconds. synchronous_commit may be anything, as
// each commit waits for the disk, and for the synchronous standby if there is one. With
// none, what was acknowledged is lost with the machine, and New warns. After a fail-over
// the promoted server has all that was acknowledged only if it was the synchronous one.
// The isolation level of sessions is read committed, as installed. The clock may differ
// by a second. As installed, max_locks_per_transaction has room for five busy Stores.
//
// With several hosts in the URL target_session_attrs has to be read-write. A Store that
// has seen the promoted server does not go back to the old one, nor to a new cluster that
// was made of a dump: open another Store for that. Nothing else tells it
// that a server which still answers is the primary no more: an old primary that waits
// for a standby acknowledges no write, but a Store that reaches it alone reads what
// was, such as a key that has been revoked. So whoever promotes a server fences the old
// one first, as Patroni does with a watchdog.
//
// # Timeouts
//
// A transaction of several statements sets statement_timeout, lock_timeout and
// idle_in_transaction_session_timeout, so that the locks of a machine that dies are free
// after three seconds. A statement that is one by itself is cancelled after fifteen, by its
// Store; for the case that this has died give the role a statement_timeout, of any length.
// It does not cut short the wait of a commit for the standby. Set tcp_user_timeout on the
// server to some seconds too, or tcp_keepalives_idle and its like: a session that cannot
// send its answer is in no statement. Set TCP_USER_TIMEOUT in DialFunc of the pool's
// ConnConfig, also to some seconds: a connection that falls silent without an end, as when
// the machine at its other end dies, otherwise holds up the writes of its Store for
// fifteen seconds, until they are made on another one. If nothing answers at all, they
// end after half a minute.
//
// Whatever ends the wait for the standby early, be it pg_cancel_backend or a Store after
// its fifteen seconds, leaves a commit that others see and the standby does not have. The
// Store does not acknowledge it; the one whose statement pg_cancel_backend ends does, as
// PostgreSQL tells it of success: so leave those that wait alone.
//
// # PgBouncer
//
// In session mode everything works. In transaction mode set pgx's DefaultQueryExecMode to
// QueryExecModeExec or QueryExecModeCacheDescribe; its default works there only from
// PgBouncer 1.21 on, with max_prepared_statements, and is not tested. Statement mode does
// not work. [Options.Listen] goes past the pooler.
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
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/internal/queue"
)

// Options are the optional parts of [New] and [Migrate].
type Options struct {
	// Schema holds the tables. One vault has one schema. Its name has at most 63 bytes,
	// and no two dollar signs in a row. Empty: "cardvault".
	Schema string

	// Listen is how to reach the server past any pooler, for LISTEN. A vault then hears
	// of the work of others at once. If nil it looks for it, twice a minute.
	Listen *pgx.ConnConfig

	// AllowPlaintext takes a connection without TLS that leaves the host, or one whose
	// certificate is not verified. Without it only loopback and Unix sockets need none:
	// Migrate and New return ErrPlaintext if the URL has a host for which sslmode is not
	// verify-full, or verify-ca with a root certificate of your own.
	AllowPlaintext bool

	// Logger is told what an operator should see. If nil, nothing is logged.
	Logger *slog.Logger
}

func (o *Options) schema() string {
	if o == nil || o.Schema == "" {
		return "cardvault"
	}
	return o.Schema
}

// check refuses options, and settings of a pool.
func (o *Options) check(pool *pgxpool.Pool) error {
	if err := checkName(o.schema()); err != nil {
		return err
	}
	if o != nil && o.Listen != nil {
		if err := o.checkPrivate(o.Listen); err != nil {
			return err
		}
	}
	return o.checkPrivate(pool.Config().ConnConfig)
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
	opts  Options
	sql   *statements
	locks locker
	log   *slog.Logger
	id    uuid.UUID // in notifications, and of groups

	queue *queue.Queue[*call]
	once  sync.Once

	background sync.WaitGroup // of goroutines that stop ends
	stop       context.CancelFunc
	timeline   atomic.Int64 // the latest that a server has had; -1: servers do not say

	mu       sync.RWMutex // held to read by Views
	isClosed bool

	memory  memory
	long    *arranger
	settled chan int64 // for tidy: up to this turn outcomes are known

	// The rest belongs to the writing goroutine.
	group    *group // that is being executed
	spare    *group
	turn     int64 // of the last group that was to be written
	tidied   int64 // the last one that was told to tidy
	grown    map[listKey]int
	wakes    map[store.Kind]bool // to notify of
	notified time.Time
	blamed   time.Time // when blame has last looked
}

var _ store.Store = (*Store)(nil)

// New returns a store on a database that [Migrate] has prepared, and starts its
// goroutines, which Close ends. The pool stays the caller's, who closes the store first;
// it should have at least two connections, and a connect timeout of a second or two. New
// refuses a server that is a standby, that could lose what it acknowledges or whose clock
// is not that of this machine.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Store, error) {
	if opts == nil {
		opts = new(Options)
	}
	if err := opts.check(pool); err != nil {
		return nil, err
	}
	s := &Store{
		pool: pool, opts: *opts, sql: statementsOf(opts.schema()), log: opts.Logger,
		queue:  queue.New[*call](),
		memory: memory{rows: map[key]*row{}}, long: newArranger(), settled: make(chan int64),
		grown: map[listKey]int{}, wakes: map[store.Kind]bool{},
		id: uuid.New(),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.inspect(ctx); err != nil {
		return nil, err
	}
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.queue.Start(s.step)
	s.background.Go(func() { s.arrangeLists(background) })
	s.background.Go(func() { s.watch(background) })
	s.background.Go(func() { s.tidy(background) })
	return s, nil
}

const (
	clockOff   = time.Second
	watchPause = 5 * time.Second // between two looks at the server
)

// inspect looks at the schema and the server.
func (s *Store) inspect(ctx context.Context) error {
	version, err := schemaVersion(ctx, s.pool, s.opts.schema())
	switch {
	case err != nil:
		return failed(verdictOfRead(err), err)
	case version == 0 || version < newest:
		return ErrNotMigrated
	case version > newest:
		return fmt.Errorf("%w: the schema has version %d, this program knows %d", store.ErrFormat, version, newest)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return failed(verdictOfRead(err), err)
	}
	defer conn.Release()
	off := time.Duration(math.MaxInt64)
	for range 3 { // the quickest answer tells the time best
		o, err := s.check(ctx, conn.Conn())
		switch {
		case errors.Is(err, ErrUnsafe), errors.Is(err, ErrIsolation), errors.Is(err, ErrPlaintext):
			return err
		case err != nil:
			return failed(verdictOfRead(err), err)
		}
		off = min(off, o)
	}
	if off > clockOff {
		return fmt.Errorf("%w by %v", ErrClock, off.Round(time.Millisecond))
	}
	var seed pgtype.UUID
	var standbys string
	var open bool
	if err := conn.QueryRow(ctx, s.sql.seed).Scan(&seed, &standbys, &open); err != nil {
		return failed(verdictOfRead(err), err)
	}
	if !seed.Valid {
		return fmt.Errorf("%w: there is not one seed of locks", store.ErrDamaged)
	}
	s.locks = seed.Bytes
	if open {
		s.log.Warn("every role may connect to the database, where it sees the names of locks in use and can hold these: revoke CONNECT from PUBLIC")
	}
	if strings.TrimSpace(standbys) == "" {
		s.log.Warn("PostgreSQL has no synchronous standby: what it acknowledges is lost with its disk")
	}
	return nil
}

// errNoPrimary and errOldPrimary are of servers whose state is not the latest.
var (
	errNoPrimary  = errors.New("pgstore: the server is a standby")
	errOldPrimary = errors.New("pgstore: another server has been promoted since this one was the primary")
)

// unfit reports whether a server answers and must not be used.
func unfit(err error) bool {
	return errors.Is(err, ErrUnsafe) || errors.Is(err, ErrPlaintext) || errors.Is(err, ErrIsolation) || errors.Is(err, errNoPrimary) || errors.Is(err, errOldPrimary)
}

// check refuses a server that must not be used, and returns by how much its clock is
// off at least.
func (s *Store) check(ctx context.Context, conn *pgx.Conn) (off time.Duration, err error) {
	var fsync, pages, isolation string
	var recovers bool
	var now time.Time
	if !s.opts.private(conn) {
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

// checkTimeline refuses a server that was the primary before the one that it has seen
// last. Those that are only compatible with PostgreSQL may have no timeline.
func (s *Store) checkTimeline(ctx context.Context, conn *pgx.Conn) error {
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

// watch looks at the server again and again. What was set on it or promoted beside it
// since a connection was made shows only so.
func (s *Store) watch(ctx context.Context) {
	ticker := time.NewTicker(watchPause)
	defer ticker.Stop()
	for told := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		switch off, err := s.look(ctx); {
		case err != nil && !unfit(err):
			// Who reads and writes tells.
		case err == nil && off <= clockOff:
			told = false
		case told:
		case err != nil:
			told = true
			s.log.Error("PostgreSQL is not used any more", "error", plain(err))
		default:
			told = true
			s.log.Error("the clocks of PostgreSQL and of this machine differ", "by", off)
		}
	}
}

// look checks a connection that was trusted. If that is to be no more, none is.
func (s *Store) look(ctx context.Context) (off time.Duration, err error) {
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

// trusted is the name of what a connection has that was checked.
const trusted = "cardvault"

// acquire returns a connection of the pool. The server of a new one is checked: another
// may answer at the address of the one before.
func (s *Store) acquire(ctx context.Context) (*pgxpool.Conn, error) {
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
	_ = conn.Conn().Close(ctx) // what the server hears of it does not matter
	conn.Release()
}

// askPool puts a question on any connection, and on another one if that is lost: after
// the server has gone all of the pool are, and one that takes its place is found soon.
func (s *Store) askPool(ctx context.Context, q *question) (*answer, error) {
	return patiently(ctx, func() (*answer, error) { return s.askOnce(ctx, q) })
}

// patiently repeats what does nothing until there is a server that answers.
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

func (s *Store) askOnce(ctx context.Context, q *question) (*answer, error) {
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

// Update implements [store.Store]. It runs fn in another goroutine than the
// caller's. A Tx used after fn has returned panics.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.queue.Do(ctx, &call{fn: fn})
}

// Close implements [store.Store]. What waits in the queue gets store.ErrClosed.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.stop()
		s.queue.Close()
		s.background.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.isClosed = true
	})
	return nil
}
