package pgstore

import (
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options are the optional parts of [New] and [Migrate].
type Options struct {
	// Schema holds the tables. One vault has one schema. Its name has at most 63 bytes,
	// and no two dollar signs in a row. Empty: "cardvault".
	Schema string

	// Partitions divides the tables of a schema that Migrate makes by a hash of the account:
	// a power of two up to 64. Autovacuum, indexes and backups then work on smaller tables.
	// 0 and 1: none, or for a schema that exists as many as it has. Migrate returns
	// ErrPartitions if it has others. New finds the number by itself.
	Partitions int

	// Listen configures a connection to the server past any pooler, for LISTEN. A vault is
	// then notified of the work of others at once. If nil it polls, twice a minute.
	Listen *pgx.ConnConfig

	// AllowPlaintext accepts a connection without TLS that leaves the host, or one with an
	// unverified certificate. By default only loopback and Unix sockets need no TLS.
	// Migrate and New return ErrPlaintext if the URL has a host for which sslmode is not
	// verify-full, or verify-ca with a root certificate of your own. A tls.Config with checks of
	// its own has them in VerifyConnection.
	AllowPlaintext bool

	// Logger receives what an operator should see. If nil, nothing is logged.
	Logger *slog.Logger
}

func (o *Options) schema() string {
	if o == nil || o.Schema == "" {
		return "cardvault"
	}
	return o.Schema
}

func (o *Options) partitions() int {
	if o == nil {
		return 0
	}
	return o.Partitions
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

// checkPrivate refuses settings by which a connection may be made that needs TLS and has
// none.
func (o *Options) checkPrivate(c *pgx.ConnConfig) error {
	if o != nil && o.AllowPlaintext || allPrivate(c) {
		return nil
	}
	return ErrPlaintext
}

// allows reports whether a connection that was made may be used.
func (o *Options) allows(c *pgx.Conn) bool { return o.AllowPlaintext || private(c) }
