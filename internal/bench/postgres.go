package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bench/table"
	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/pgstore"
)

// schema holds the records of pgstore; the table of raw pgx is in another beside it. Both
// are dropped.
const schema = "cardvault_bench"

// postgres compares pgstore with raw pgx on one database.
type postgres struct {
	*bench
	pool  *pgxpool.Pool
	store *pgstore.Store
	vault *cardvault.Vault
	ids   rowKeys

	summed *cardvault.Vault // keeps sums of its records
}

// postgreSQL runs a server, unless there is a URL of one, and compares on it.
func (b *bench) postgreSQL(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	url, err := b.server(&open)
	if realtest.Missing(err) {
		b.notRun(err.Error(), "pgstore", "raw pgx", nil, "postgres-import/1", "postgres-import/64", "postgres-get/64", "postgres-list")
		return nil
	}
	if err == nil {
		err = b.loadKeys()
	}
	if err != nil {
		return err
	}

	p := &postgres{bench: b}
	if err := p.open(ctx, url, &open); err != nil {
		return err
	}
	for _, compare := range []func(context.Context) error{p.imports, p.reads, p.overHTTP, p.pages, p.held} {
		if err := compare(ctx); err != nil {
			return err
		}
	}
	return nil
}

// server returns the URL of a database, on a server of its own unless one is given.
func (b *bench) server(open *closers) (url string, err error) {
	if b.postgres != "" {
		return b.postgres, nil
	}

	// As it is installed, durable.
	server, err := realtest.StartPostgreSQL(&realtest.PostgreSQLOptions{Settings: map[string]string{
		"shared_buffers": "1GB", "max_wal_size": "8GB", "max_connections": "300",
	}})
	if err != nil {
		return "", err
	}
	open.later(server.Close)
	return server.URL("postgres"), nil
}

// open makes both schemas, and a vault.
func (p *postgres) open(ctx context.Context, url string, open *closers) (err error) {
	if p.pool, err = pooled(ctx, url, open); err != nil {
		return err
	}

	drop := func() error {
		_, err := p.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+schema+", "+schema+"_raw, "+schema+"_sums CASCADE")
		return err
	}
	if err := drop(); err != nil {
		return err
	}
	open.later(drop)
	if err := p.raw(ctx); err != nil {
		return err
	}

	if p.store, p.vault, err = p.inSchema(ctx, schema, open); err != nil {
		return err
	}
	if _, p.summed, err = p.inSchema(ctx, schema+"_sums", open); err != nil {
		return err
	}
	return p.summed.BeginSums(ctx, nil)
}

// inSchema makes a vault in a schema.
func (p *postgres) inSchema(ctx context.Context, name string, open *closers) (*pgstore.Store, *cardvault.Vault, error) {
	opts := &pgstore.Options{Schema: name, AllowPlaintext: true}
	if err := pgstore.Migrate(ctx, p.pool, opts); err != nil {
		return nil, nil, err
	}
	s, err := pgstore.New(ctx, p.pool, opts)
	if err != nil {
		return nil, nil, err
	}
	open.later(s.Close)
	v, err := cardvault.New(ctx, s, p.keys, nil)
	return s, v, err
}

// raw makes the table of the comparison: as many indexes as a first sketch has.
func (p *postgres) raw(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, `CREATE SCHEMA `+schema+`_raw; CREATE TABLE `+schema+`_raw.tokens (
		id uuid PRIMARY KEY, account uuid NOT NULL, status smallint NOT NULL, business_key bytea, fingerprint bytea NOT NULL,
		created_at timestamptz NOT NULL, sealed bytea NOT NULL);
		CREATE INDEX ON `+schema+`_raw.tokens (account, created_at);
		CREATE INDEX ON `+schema+`_raw.tokens (account, status);
		CREATE INDEX ON `+schema+`_raw.tokens (account, business_key);
		CREATE INDEX ON `+schema+`_raw.tokens (account, fingerprint)`)
	return err
}

// rowKeys makes row rowKeys as a vault does: 60 bits of time, then random bits.
type rowKeys struct{ last atomic.Int64 }

func (k *rowKeys) next() (id uuid.UUID) {
	now := time.Now().UnixMicro()
	for {
		last := k.last.Load()
		now = max(now, last+1)
		if k.last.CompareAndSwap(last, now) {
			break
		}
	}
	id = uuid.New()
	binary.BigEndian.PutUint64(id[:], uint64(now)<<4)
	return id
}

const kind store.Kind = 100 // none of the vault's

var owner = uuid.UUID{0: 1}

func newRecord(k store.Kind, account, id uuid.UUID) *store.Record {
	r := &store.Record{Kind: k, ID: id, Account: account, Class: id[15]%7 + 1, Version: 1, Shown: make([]byte, 300), Secret: make([]byte, 200)}
	binary.BigEndian.PutUint64(r.Shown, rand.Uint64())
	return r
}

// imports compares imports with an INSERT of as many bytes.
func (p *postgres) imports(ctx context.Context) error {
	account := &store.Record{Kind: kind, ID: owner, Version: 1, Shown: make([]byte, 128)}
	if err := p.store.Update(ctx, func(tx store.Tx) error { tx.Put(account); return nil }); err != nil {
		return err
	}

	update := contender{name: "Update: read account, put record", run: func(int) error {
		r := newRecord(kind, owner, p.ids.next())
		return p.store.Update(ctx, func(tx store.Tx) error {
			_, err := tx.Get(kind, owner)
			tx.Put(r)
			return err
		})
	}}
	insert := contender{name: "pgx INSERT, 5 indexes, 500 B", run: func(int) error {
		sealed, print, key := make([]byte, 500), uuid.New(), uuid.New()
		binary.BigEndian.PutUint64(sealed, rand.Uint64())
		_, err := p.pool.Exec(ctx, `INSERT INTO `+schema+`_raw.tokens (id, account, status, business_key, fingerprint, created_at, sealed)
			VALUES ($1, $2, $3, $4, $5, $6, $7)`, uuid.New(), owner, 1, key[:], print[:], time.Now(), sealed)
		return err
	}}

	goals := map[int]table.Goal{1: least(.75), 64: least(2.5)}
	for _, n := range []int{1, 16, 64} {
		lanes, err := p.race(n, p.importing("Import", p.vault, nil), update, insert, p.importing("Import with sums", p.summed, nil))
		if err != nil {
			return err
		}
		p.ratio(fmt.Sprintf("postgres-import/%d", n), n, goals[n], lanes[0], lanes[2])
		p.ratio(fmt.Sprintf("postgres-update/%d", n), n, reported, lanes[1], lanes[2])
		p.ratio(fmt.Sprintf("postgres-sums/%d", n), n, reported, lanes[3], lanes[0])
	}
	return nil
}

// reads compares reads with a SELECT of as many bytes.
func (p *postgres) reads(ctx context.Context) error {
	const rows = 20_000
	_, err := p.pool.Exec(ctx, `INSERT INTO `+schema+`_raw.tokens (id, account, status, business_key, fingerprint, created_at, sealed)
		SELECT gen_random_uuid(), $1, 1, uuid_send(gen_random_uuid()), uuid_send(gen_random_uuid()), now(), convert_to(repeat('x', 500), 'UTF8')
		FROM generate_series(1, $2)`, owner, rows)
	if err != nil {
		return err
	}

	ids, err := p.rawIDs(ctx, rows)
	if err != nil {
		return err
	}
	err = p.store.Update(ctx, func(tx store.Tx) error {
		for _, id := range ids {
			tx.Put(newRecord(kind+1, owner, id))
		}
		return nil
	})
	if err != nil {
		return err
	}

	var tokens supply[uuid.UUID]
	err = tokens.fill(rows/4, func() (uuid.UUID, error) {
		t, err := p.vault.Import(ctx, testCard(0), bulk)
		if err != nil {
			return uuid.Nil, err
		}
		return t.ID, nil
	})
	if err != nil {
		return err
	}

	view := contender{name: "View of a record", run: func(int) error {
		id := ids[rand.IntN(len(ids))]
		return p.store.View(ctx, func(tx store.ReadTx) error {
			_, err := tx.Get(kind+1, id)
			return err
		})
	}}
	get := contender{name: "Get", run: func(int) error {
		_, err := p.vault.Get(ctx, tokens.items[rand.IntN(len(tokens.items))])
		return err
	}}
	query := contender{name: "pgx SELECT by primary key", run: func(int) error {
		var account uuid.UUID
		var status int16
		var key, print, sealed []byte
		var at time.Time
		return p.pool.QueryRow(ctx, `SELECT account, status, business_key, fingerprint, created_at, sealed FROM `+schema+`_raw.tokens WHERE id = $1`,
			ids[rand.IntN(len(ids))]).Scan(&account, &status, &key, &print, &at, &sealed)
	}}
	for _, n := range []int{1, 16, 64} {
		lanes, err := p.race(n, view, get, query)
		if err != nil {
			return err
		}
		p.ratio(fmt.Sprintf("postgres-view/%d", n), n, least(.9), lanes[0], lanes[2])
		p.ratio(fmt.Sprintf("postgres-get/%d", n), n, reported, lanes[1], lanes[2])
	}
	return nil
}

// overHTTP compares reads and imports over HTTP with a bare handler.
func (p *postgres) overHTTP(ctx context.Context) (err error) {
	vault, stop, err := served(ctx, p.vault, cardvault.AccountUpdate{ImportApproved: new(true)})
	if err != nil {
		return err
	}
	defer stop()
	t, err := p.vault.List(ctx, nil)
	if err != nil {
		return err
	}

	for _, l := range []load{
		{name: "postgres-read", what: "GET /tokens/{id} on PostgreSQL", next: func() (request, error) {
			return request{"GET", "/tokens/" + t.Items[rand.IntN(len(t.Items))].ID.String(), nil}, nil
		}},
		{name: "postgres-import", what: "POST /cde-import on PostgreSQL", next: func() (request, error) { return importing, nil }},
	} {
		if err := p.loaded(l, vault, []int{1, 64}); err != nil {
			return err
		}
	}
	return nil
}

// rawIDs returns ids of the table of raw pgx.
func (p *postgres) rawIDs(ctx context.Context, n int) (ids []uuid.UUID, err error) {
	rows, err := p.pool.Query(ctx, `SELECT id FROM `+schema+`_raw.tokens LIMIT $1`, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// pages compares a page far down a list with the first.
func (p *postgres) pages(ctx context.Context) error {
	// 10,000 pages, unless the vault has fewer tokens.
	fill, n := uuid.UUID{0: 2}, min(p.table.Tokens, 10_000*50+50)
	err := parallel(4, func(int) error {
		for done := 0; done < n/4; done += 500 {
			err := p.store.Update(ctx, func(tx store.Tx) error {
				for range 500 {
					tx.Put(newRecord(kind, fill, p.ids.next()))
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}

	list := func(name string, offset int64) contender {
		return contender{name: name, run: func(int) error {
			q := &store.Query{Kind: kind, Account: fill, Desc: true, Offset: offset, Limit: 50, Count: true, Live: time.Now()}
			return p.store.View(ctx, func(tx store.ReadTx) error {
				l, err := tx.List(q)
				if err == nil && len(l.Records) != 50 {
					err = fmt.Errorf("%d records on a page", len(l.Records))
				}
				return err
			})
		}}
	}

	far := int64(min(10_000, n/50-1))
	lanes, err := p.race(1, list(fmt.Sprintf("page %d", far), far*50), list("page 1", 0))
	if err != nil {
		return err
	}
	p.compared("postgres-list", 1, most(1.5), lanes[0], lanes[1], func(o, a sample) float64 { return float64(o.p50) / float64(a.p50) })
	return nil
}

// held makes groups of one write each while a transaction holds a snapshot, as a backup
// does, and compares the last tenth with the first.
func (p *postgres) held(ctx context.Context) error {
	tx, err := p.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, "SELECT 1"); err != nil {
		return err
	}

	const groups = 200 // in each tenth
	var tenths [10]time.Duration
	for i := range tenths {
		start := time.Now()
		for range groups {
			r := newRecord(kind, owner, p.ids.next())
			if err := p.store.Update(ctx, func(tx store.Tx) error { tx.Put(r); return nil }); err != nil {
				return err
			}
		}
		tenths[i] = time.Since(start)
	}
	p.figures("postgres-held", "", reported, "last / first 200 of 2,000 writes while a snapshot is held", tenths[9].Seconds()/tenths[0].Seconds())
	return nil
}
