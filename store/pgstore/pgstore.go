// Package pgstore keeps the records of a vault in PostgreSQL 13 or later, for vaults that
// have outgrown one machine. Any number of processes may use one database, each with a
// Store of its own, and lose nothing when a machine dies.
//
//	pool, err := pgxpool.New(ctx, "postgres://host1,host2/vault?target_session_attrs=read-write")
//	err = pgstore.Migrate(ctx, pool, nil) // on deployment, by a role that may create tables
//	s, err := pgstore.New(ctx, pool, nil)
//
// # Order
//
// Behaviour is strictly serializable, over all processes. One goroutine of a Store makes
// all its writes, with all queued calls in one transaction. The functions run on rows that
// were read before, or are remembered. The transaction takes advisory locks for everything
// that they have read and written, checks that it is unchanged, and writes, in one round
// trip. The locks last until the commit, so commits have the order of a serial run, and
// every snapshot is the state after some of them.
//
// Groups that do not touch each other commit at the same time. A group that has read a row
// that has changed meanwhile runs again; after three attempts it locks out all other
// writers, so that it succeeds. So does an Update of more than four thousand records. An
// Update of more than 65,536 writes or 64 MB is store.ErrInvalid.
//
// A View of one read is one statement. One of several reads is a transaction that is
// repeatable read; see [Store.View] for when its function runs twice.
//
// # Tables
//
// The schema is in [Migrations]. records holds every kind, by kind and row key; it is also
// the index of lists, by parent or account. lookups holds the hashes. counts holds the
// number of records of a class in a stretch of a list. Its rows are only added, and now and
// then summed up, so that no writer waits for a counter. The end of a list is in no
// stretch, until a goroutine of a Store cuts it, some thousand records at a time. A total,
// or a page however far down, adds up some hundred rows for each million.
//
// groups has a row for each group of writes, by its Store and a number. If the answer to a
// commit is lost, the Store reads there whether the group was committed, or adds a row that
// prevents it for good. So store.ErrOutcomeUnknown is returned only when no server answers
// for ten seconds. Rows are deleted soon after they are no longer needed, and rows of a
// Store that is gone after a day.
//
// The role of the pool needs USAGE on the schema, SELECT on migrations and seed, and
// SELECT, INSERT, UPDATE and DELETE on the other tables. Any role may call the functions,
// which run with the rights of their caller. No search path matters, as all SQL names
// pg_catalog, and no session sets one. So the pool may be used for other things, and
// PgBouncer, which refuses a search_path at the start of a session, works.
//
// With partitions, see Options.Partitions, these also apply to the tables of each partition.
//
// Give a vault a database of its own, to which no other role may connect: New warns if
// PUBLIC may. Advisory locks need no other right. Their names derive from the random number
// in seed, which only the role of the vault may read. But pg_locks shows every role the
// names that are in use, and a session that holds one of them stops writes for as long as
// it lives. The log then says which session.
//
// # TLS
//
// A connection that leaves the host has to be TLS with a verified certificate:
// sslmode=verify-full, or verify-ca with a root certificate that signs only for you.
// sslmode=require encrypts without knowing the server. prefer, the default of pgx, and
// allow may not encrypt at all. All of these are refused with ErrPlaintext, for each host
// that the URL names and again for the address of each connection. Loopback and Unix
// sockets need no TLS. See Options.AllowPlaintext.
//
// # What the server has to be
//
// The server has to be a primary, with fsync and full_page_writes on. New checks that, and
// the Store checks each new connection and again every five seconds. synchronous_commit may
// be anything, as each commit waits for the disk, and for the synchronous standby if there
// is one. Without a standby, acknowledged writes are lost with the machine, and New warns.
// After a fail-over the promoted server has all acknowledged writes only if it was the
// synchronous standby. The isolation level of sessions is read committed, as installed. The
// clock may differ by a second. As installed, max_locks_per_transaction has room for five
// busy Stores.
//
// With several hosts in the URL target_session_attrs has to be read-write. A Store that has
// seen the promoted server does not go back to the old one, nor to a new cluster that was
// made from a dump: open another Store for that.
//
// Nothing else reveals that a server which still answers is no longer the primary. An old
// primary that waits for a standby acknowledges no write, but a Store that reaches only
// that server reads old data, such as a key that has since been revoked. So fence the old
// server before you promote another, as Patroni does with a watchdog.
//
// # Timeouts
//
// A transaction of several statements sets statement_timeout, lock_timeout and
// idle_in_transaction_session_timeout, so that the locks of a machine that dies are free
// after three seconds. A statement outside such a transaction is cancelled after fifteen,
// by its Store. In case the Store has died, give the role a statement_timeout, of any
// length. It does not cut short the wait of a commit for the standby.
//
// Set tcp_user_timeout on the server to a few seconds too, or tcp_keepalives_idle and its
// like: no timeout of statements covers a session that cannot send its answer. Set
// TCP_USER_TIMEOUT in DialFunc of the pool's ConnConfig, also to a few seconds. Otherwise a
// connection that falls silent, as when the machine at its other end dies, holds up the
// writes of its Store for fifteen seconds, until they are made on another one. If nothing
// answers at all, they end after half a minute.
//
// The wait for the standby can end early, by pg_cancel_backend or by a Store after its
// fifteen seconds. The commit is then visible to others, and the standby does not have it.
// The Store does not acknowledge a commit that it cancels. It does acknowledge one that
// pg_cancel_backend cancels, because PostgreSQL reports success: do not cancel waiting
// commits.
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
// Options.Partitions divides the tables within a server by a hash of the account. A
// transaction of a Store with partitions is a [store.Divided]: a record is found in one
// partition if the caller names the account, and else by a look at each.
//
// Only the keys span accounts, so accounts can be divided among several vaults by a hash of
// their id, each with a schema on a server of its own. An account is moved by hand. Stop
// its writes, and copy its rows of records, the rows of their children, and their lookups.
// Then delete them in the old schema, and leave counts empty in the new one, where they are
// made again.
//
// A distributed database that speaks the protocol of PostgreSQL serves if it has
// PL/pgSQL, arrays and unnest, read committed with a new snapshot for each statement of a function,
// repeatable read snapshots that are the latest, transaction-level advisory locks that
// hold on all nodes and are released after the commit is visible, FOR UPDATE SKIP LOCKED,
// and partial indexes; LISTEN is optional. Where advisory locks do nothing, as in
// older versions of CockroachDB, it is not serializable: do not use it there. docs/scale.md names
// what is known of others.
package pgstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/internal/queue"
	"github.com/cardvault/cardvault/store/internal/sums"
)

// A Store is a [store.Store] in PostgreSQL. Get one from [New].
type Store struct {
	server   *server
	memory   *memory
	notifier *notifier
	queue    *queue.Queue[*call] // to the writing goroutine, which owns a writer
	summed   *sums.List

	background sync.WaitGroup // of goroutines that stop ends
	stop       context.CancelFunc
	once       sync.Once

	mu     sync.RWMutex // held to read by Views
	closed bool         // under mu
}

var (
	_ store.Store = (*Store)(nil)
	_ store.Waker = (*Store)(nil)

	_ store.Summer      = (*Store)(nil)
	_ store.Snapshotter = (*Store)(nil)
	_ store.Repairer    = (*Store)(nil)
)

// New returns a store on a database that [Migrate] has prepared, and starts its goroutines,
// which Close ends. The pool stays the caller's, who closes the store first. It should have
// at least two connections, and a connect timeout of a second or two. New refuses a server
// that is a standby, that could lose acknowledged writes or whose clock disagrees with this
// machine's.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Store, error) {
	if opts == nil {
		opts = new(Options)
	}
	if err := opts.check(pool); err != nil {
		return nil, err
	}
	pg := &server{pool: pool, opts: *opts, log: opts.Logger}
	if pg.log == nil {
		pg.log = slog.New(slog.DiscardHandler)
	}

	locks, err := pg.inspect(ctx)
	if err != nil {
		return nil, err
	}

	id := uuid.New() // in notifications, and of groups
	lists := newArranger(pg, locks)
	ends := &outcomes{server: pg, id: id, settled: make(chan int64)}
	s := &Store{
		server: pg, queue: queue.New[*call](), summed: new(sums.List),
		memory:   &memory{lists: lists, divided: pg.divided(), rows: map[key]*row{}},
		notifier: &notifier{server: pg, locks: locks, id: id, wakes: map[store.Kind]bool{}},
	}

	w := &writer{
		server: pg, locks: locks, memory: s.memory, outcomes: ends, notifier: s.notifier,
		queue: s.queue, summer: summer{List: s.summed}, grown: map[listKey]int{},
	}

	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.queue.Start(w.step)
	s.background.Go(func() { lists.run(background) })
	s.background.Go(func() { pg.watch(background) })
	s.background.Go(func() { ends.tidy(background) })
	return s, nil
}

// inspect looks at the schema and the server, and returns how locks are named.
func (s *server) inspect(ctx context.Context) (locks locker, err error) {
	version, err := schemaVersion(ctx, s.pool, s.opts.schema())
	switch {
	case err != nil:
		return locks, failed(verdictOfRead(err), err)
	case version == 0 || version < newest:
		return locks, ErrNotMigrated
	case version > newest:
		return locks, fmt.Errorf("%w: the schema has version %d, this program knows %d", store.ErrFormat, version, newest)
	}

	n, err := partitionsOf(ctx, s.pool, s.opts.schema())
	if err != nil {
		return locks, failed(verdictOfRead(err), err)
	}
	s.sql, s.parts = sqlOf(s.opts.schema(), n)
	if err := s.checkHash(ctx); err != nil {
		return locks, err
	}

	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return locks, failed(verdictOfRead(err), err)
	}
	defer conn.Release()

	off := time.Duration(math.MaxInt64)
	for range 3 { // the quickest answer gives the best estimate
		o, err := s.check(ctx, conn.Conn())
		switch {
		case errors.Is(err, ErrUnsafe), errors.Is(err, ErrIsolation), errors.Is(err, ErrPlaintext):
			return locks, err
		case err != nil:
			return locks, failed(verdictOfRead(err), err)
		}
		off = min(off, o)
	}

	if off > clockOff {
		return locks, fmt.Errorf("%w by %v", ErrClock, off.Round(time.Millisecond))
	}

	var seed pgtype.UUID
	var standbys string
	var open bool
	if err := conn.QueryRow(ctx, s.sql.seed).Scan(&seed, &standbys, &open); err != nil {
		return locks, failed(verdictOfRead(err), err)
	}
	if !seed.Valid {
		return locks, fmt.Errorf("%w: there is not exactly one seed of locks", store.ErrDamaged)
	}

	if open {
		s.log.Warn("every role may connect to the database, where it sees the names of locks in use and can hold these: revoke CONNECT from PUBLIC")
	}
	if strings.TrimSpace(standbys) == "" {
		s.log.Warn("PostgreSQL has no synchronous standby: acknowledged writes are lost with its disk")
	}
	return seed.Bytes, nil
}

// View implements [store.Store]. It runs fn once more if what fn has read first has
// changed when it reads on, or if the connection is lost amid several reads. A ReadTx
// used after fn has returned panics.
func (s *Store) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return store.ErrClosed
	}

	v := &view{server: s.server, memory: s.memory, ctx: ctx}
	defer v.end()
	for {
		again, err := v.run(fn)
		if !again {
			return err
		}
	}
}

// Update implements [store.Store]. It runs fn in another goroutine than the
// caller's. A Tx used after fn has returned panics.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.queue.Do(ctx, &call{fn: fn})
}

// Close implements [store.Store]. Queued calls return store.ErrClosed.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.stop()
		s.queue.Close()
		s.background.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed = true
	})
	return nil
}

// Wakes implements [store.Waker] by LISTEN, on a connection of its own. It returns at
// once if Options.Listen is nil, and goes on when the connection is lost.
func (s *Store) Wakes(ctx context.Context, wake func(store.Kind)) error {
	if s.server.opts.Listen == nil {
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
	s.notifier.wait(ctx, wake)
	return nil
}
