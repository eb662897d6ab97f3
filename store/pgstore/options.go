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
