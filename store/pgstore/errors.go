package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cardvault/cardvault/store"
)

// Errors of [New].
var (
	// ErrUnsafe is returned for a server that may lose acknowledged writes, with fsync or
	// full_page_writes off.
	ErrUnsafe = errors.New("pgstore: the server may lose acknowledged writes")

	// ErrClock is returned if the clocks of the server and of this machine differ by
	// more than a second.
	ErrClock = errors.New("pgstore: the clock is off")

	// ErrIsolation is returned if transactions do not begin as read committed: what a
	// group reads under its locks would be older than these.
	ErrIsolation = errors.New("pgstore: default_transaction_isolation is not read committed")
)

// ErrPlaintext is returned for a connection that leaves the host, unless it is TLS with a
// certificate that is verified. See Options.AllowPlaintext.
var ErrPlaintext = errors.New("pgstore: a connection that leaves the host needs TLS, with a verified certificate")

// ErrOwner is returned by Migrate if others may replace what the vault executes. A role that owns
// the schema or a table or function in it, or may create in it, has to be a superuser, the role
// of the pool, or a role with that as a member. If the pool is a superuser's, only superusers
// count. The error names the others, PUBLIC for every role. Drop the schema. If you trust all its
// contents, make the role of the pool their owner, and revoke CREATE.
var ErrOwner = errors.New("pgstore: other roles own the schema or something in it, or may create in it")

// ErrNotMigrated is returned by New for a database without the tables of this version.
// Call Migrate first.
var ErrNotMigrated = errors.New("pgstore: the database is not migrated")

// errNoPrimary and errOldPrimary are of servers whose state is not the latest.
var (
	errNoPrimary  = errors.New("pgstore: the server is a standby")
	errOldPrimary = errors.New("pgstore: another server has been promoted since this one was the primary")
)

// unfit reports whether a server answers and must not be used.
func unfit(err error) bool {
	return errors.Is(err, ErrUnsafe) || errors.Is(err, ErrPlaintext) || errors.Is(err, ErrIsolation) || errors.Is(err, errNoPrimary) || errors.Is(err, errOldPrimary)
}

// plain returns an error without what PostgreSQL says in words: that may quote a value.
func plain(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return nil
	case ok:
		return fmt.Errorf("pgstore: PostgreSQL refuses with SQLSTATE %s", pg.Code)
	case unfit(err), errors.Is(err, errStale), errors.Is(err, ErrOwner), errors.Is(err, ErrPartitions),
		errors.Is(err, store.ErrDamaged), errors.Is(err, store.ErrFormat), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	if connect, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		err = connect // names hosts and the user, never the password
	}
	return fmt.Errorf("pgstore: no answer from PostgreSQL: %w", err)
}

// A verdict classifies the outcome of a transaction that an error has ended.
type verdict int

const (
	done        verdict = iota // committed
	broken                     // this transaction can never succeed
	stale                      // not done: a row that was read has changed, or is being changed
	full                       // not done: no room
	unavailable                // not done: there is no server that takes writes
	unknown                    // perhaps done
)

// errStale is returned when the server reports CV001.
var errStale = errors.New("pgstore: a row that was read has changed")

// judge classifies an error that came in place of the outcome of a transaction. A server
// reports the outcome unless it ends the session: a backend that is ended while it waits
// for the standby has committed. A pooler does not know the fate of commands that it has
// passed on. It is recognized by an error code of its own, or by an error without an
// unlocalized severity.
func judge(err error) verdict {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		switch {
		case errors.Is(err, errStale):
			return stale
		case errors.Is(err, store.ErrDamaged):
			return broken
		}
		if _, ok := errors.AsType[*pgconn.ConnectError](err); ok || pgconn.SafeToRetry(err) {
			return unavailable
		}
		return unknown
	}

	switch code := pg.Code; {
	case pg.SeverityUnlocalized != "ERROR", strings.HasPrefix(code, "08"), strings.HasPrefix(code, "57P"),
		code == "40003": // statement_completion_unknown
		return unknown
	case code == "CV001",
		code == "23505", // unique_violation: another process was faster
		code == "40001", // serialization_failure
		code == "40P01", // deadlock_detected
		code == "55P03", // lock_not_available: lock_timeout
		code == "53200": // out_of_memory: of locks
		return stale

	case code == "53100": // disk_full
		return full
	case code == "25006", // read_only_sql_transaction: a standby
		code == "57014", // query_canceled: statement_timeout
		strings.HasPrefix(code, "53"):
		return unavailable
	}

	return broken
}

// verdictOfRead is that on an error before anything could be committed.
func verdictOfRead(err error) verdict {
	if v := judge(err); v != unknown {
		return v
	}
	return unavailable
}

// readOnly reports whether a server takes no writes: it was the primary, or never was.
func readOnly(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "25006"
}

// failed returns the error of a call that was not done.
func failed(v verdict, err error) error {
	switch v {
	case full:
		return fmt.Errorf("%w: %w", store.ErrFull, plain(err))
	case broken:
		return plain(err)
	case unknown:
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, plain(err))
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, plain(err))
}
