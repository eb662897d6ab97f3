// Command bench compares pgstore with raw pgx on one database, in one run:
//
//	go run ./bench [-n 1000000] [-time 3s] [-rounds 5] postgres://… [import get held list]
//
// It makes two schemas of its own and drops them. Without a selection it does all.
package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/pgstore"
)

const schema = "cardvault_bench"

func main() {
	log.SetFlags(0)
	n := flag.Int("n", 1_000_000, "records listed")
	span := flag.Duration("time", 2*time.Second, "time for each figure of a round")
	rounds := flag.Int("rounds", 5, "rounds, of which the median counts")
	held := flag.Int("held", 0, "groups of writes while a snapshot is held")
	flag.Parse()
	if flag.NArg() < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, cancel := context.WithCancel(context.Background()) // as that of a request
	defer cancel()
	if err := run(ctx, flag.Arg(0), flag.Args()[1:], *n, *held, *span, *rounds); err != nil {
		log.Fatal(err)
	}
}

type bench struct {
	pool   *pgxpool.Pool
	store  *pgstore.Store
	vault  *cardvault.Vault
	ids    keys
	span   time.Duration
	rounds int
}

func run(ctx context.Context, url string, only []string, n, held int, span time.Duration, rounds int) error {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	config.MaxConns = 66
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()

	drop := func() error {
		_, err := pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+schema+" CASCADE; DROP SCHEMA IF EXISTS "+schema+"_raw CASCADE")
		return err
	}
	if err := drop(); err != nil {
		return err
	}

	opts := &pgstore.Options{Schema: schema, AllowPlaintext: true}
	if err := pgstore.Migrate(ctx, pool, opts); err != nil {
		return err
	}
	s, err := pgstore.New(ctx, pool, opts)
	if err != nil {
		return err
	}

	b := &bench{pool: pool, store: s, span: span, rounds: rounds}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"", b.raw},
		{"", b.open},
		{"import", b.imports},
		{"get", b.gets},
		{"held", func(ctx context.Context) error { return b.held(ctx, held) }},
		{"list", func(ctx context.Context) error { return b.pages(ctx, n) }},
	} {
		if step.name != "" && len(only) > 0 && !slices.Contains(only, step.name) {
			continue
		}
		if err = step.do(ctx); err != nil {
			break
		}
	}

	return cmp.Or(err, s.Close(), drop())
}

// raw makes the table of the comparison: as many indexes as a first sketch has.
func (b *bench) raw(ctx context.Context) error {
	_, err := b.pool.Exec(ctx, `CREATE SCHEMA `+schema+`_raw; CREATE TABLE `+schema+`_raw.tokens (
		id uuid PRIMARY KEY, account uuid NOT NULL, status smallint NOT NULL, business_key bytea, fingerprint bytea NOT NULL,
		created_at timestamptz NOT NULL, sealed bytea NOT NULL);
		CREATE INDEX ON `+schema+`_raw.tokens (account, created_at);
		CREATE INDEX ON `+schema+`_raw.tokens (account, status);
		CREATE INDEX ON `+schema+`_raw.tokens (account, business_key);
		CREATE INDEX ON `+schema+`_raw.tokens (account, fingerprint)`)
	return err
}

func (b *bench) open(ctx context.Context) error {
	ring, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		return err
	}
	b.vault, err = cardvault.New(ctx, b.store, ring, nil)
	return err
}

// keys makes row keys as a vault does: 60 bits of time, then random bits.
type keys struct{ last atomic.Int64 }

func (k *keys) next() (id uuid.UUID) {
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

// A contender does one operation.
type contender struct {
	name string
	do   func(ctx context.Context) error
}

// compare runs contenders in turn, in rounds, and prints their medians and ratios to the last.
func (b *bench) compare(ctx context.Context, what string, workers int, contenders ...contender) error {
	rates := make([][]float64, len(contenders))
	for round := range b.rounds + 1 {
		for i, c := range contenders {
			rate, err := b.rate(ctx, workers, c.do)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if round > 0 { // the first warms up
				rates[i] = append(rates[i], rate)
			}
		}
	}

	last := median(rates[len(rates)-1])
	for i, c := range contenders {
		fmt.Printf("%-8s %3d  %-34s %10.0f /s  %5.2f\n", what, workers, c.name, median(rates[i]), median(rates[i])/last)
	}
	return nil
}

func (b *bench) rate(ctx context.Context, workers int, do func(context.Context) error) (float64, error) {
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var group sync.WaitGroup
	start := time.Now()

	for range workers {
		group.Go(func() {
			for time.Since(start) < b.span && failed.Load() == nil {
				if err := do(ctx); err != nil {
					failed.Store(&err)
					return
				}
				done.Add(1)
			}
		})
	}

	group.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(done.Load()) / time.Since(start).Seconds(), nil
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

const kind store.Kind = 100 // none of the vault's

var owner = uuid.UUID{0: 1}

func (b *bench) record(id uuid.UUID) *store.Record {
	r := &store.Record{Kind: kind, ID: id, Account: owner, Class: id[15]%7 + 1, Version: 1, Shown: make([]byte, 300), Secret: make([]byte, 200)}
	binary.BigEndian.PutUint64(r.Shown, rand.Uint64())
	return r
}

func (b *bench) imports(ctx context.Context) error {
	account := &store.Record{Kind: kind, ID: owner, Version: 1, Shown: make([]byte, 128)}
	if err := b.store.Update(ctx, func(tx store.Tx) error { tx.Put(account); return nil }); err != nil {
		return err
	}

	given := cardvault.Card{PAN: card.NewPAN([]byte("4111111111111111")), Expiry: card.Expiry{Month: 12, Year: 2090}}
	for _, workers := range []int{1, 16, 64} {
		err := b.compare(ctx, "import", workers,
			contender{"Vault.Import", func(ctx context.Context) error {
				_, err := b.vault.Import(ctx, given, nil)
				return err
			}},
			contender{"Update: read account, put record", func(ctx context.Context) error {
				r := b.record(b.ids.next())
				return b.store.Update(ctx, func(tx store.Tx) error {
					_, err := tx.Get(kind, owner)
					tx.Put(r)
					return err
				})
			}},
			contender{"raw pgx INSERT, 5 indexes, 500 B", func(ctx context.Context) error {
				sealed, print, key := make([]byte, 500), uuid.New(), uuid.New()
				binary.BigEndian.PutUint64(sealed, rand.Uint64())
				_, err := b.pool.Exec(ctx, `INSERT INTO `+schema+`_raw.tokens (id, account, status, business_key, fingerprint, created_at, sealed)
					VALUES ($1, $2, $3, $4, $5, $6, $7)`, uuid.New(), owner, 1, key[:], print[:], time.Now(), sealed)
				return err
			}},
		)
		if err != nil {
			return err
		}
	}

	return nil
}

// held makes groups of one write each while a transaction holds a snapshot, as a backup
// does, and compares the last tenth with the first.
func (b *bench) held(ctx context.Context, groups int) error {
	tx, err := b.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, "SELECT 1"); err != nil {
		return err
	}

	var tenths [10]time.Duration
	for i := range tenths {
		start := time.Now()
		for range groups / 10 {
			r := b.record(b.ids.next())
			if err := b.store.Update(ctx, func(tx store.Tx) error { tx.Put(r); return nil }); err != nil {
				return err
			}
		}
		tenths[i] = time.Since(start)
	}

	if groups >= 10 {
		fmt.Printf("held          %d groups, the last tenth took %.2f of the first\n", groups, tenths[9].Seconds()/tenths[0].Seconds())
	}
	return nil
}

func (b *bench) gets(ctx context.Context) error {
	var ids []uuid.UUID
	_, err := b.pool.Exec(ctx, `INSERT INTO `+schema+`_raw.tokens (id, account, status, business_key, fingerprint, created_at, sealed)
		SELECT gen_random_uuid(), $1, 1, uuid_send(gen_random_uuid()), uuid_send(gen_random_uuid()), now(), convert_to(repeat('x', 500), 'UTF8')
		FROM generate_series(1, 20000)`, owner)
	if err != nil {
		return err
	}

	rows, err := b.pool.Query(ctx, `SELECT id FROM `+schema+`_raw.tokens LIMIT 20000`)
	if err != nil {
		return err
	}
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	err = b.store.Update(ctx, func(tx store.Tx) error {
		for _, id := range ids {
			tx.Put(&store.Record{Kind: kind + 1, ID: id, Account: owner, Version: 1, Shown: make([]byte, 300), Secret: make([]byte, 200)})
		}
		return nil
	})
	if err != nil {
		return err
	}

	for _, workers := range []int{1, 16, 64} {
		err := b.compare(ctx, "get", workers,
			contender{"View: Get", func(ctx context.Context) error {
				id := ids[rand.IntN(len(ids))]
				return b.store.View(ctx, func(tx store.ReadTx) error {
					_, err := tx.Get(kind+1, id)
					return err
				})
			}},
			contender{"raw pgx SELECT by primary key", func(ctx context.Context) error {
				var account uuid.UUID
				var status int16
				var key, print, sealed []byte
				var at time.Time
				return b.pool.QueryRow(ctx, `SELECT account, status, business_key, fingerprint, created_at, sealed FROM `+schema+`_raw.tokens WHERE id = $1`,
					ids[rand.IntN(len(ids))]).Scan(&account, &status, &key, &print, &at, &sealed)
			}},
		)
		if err != nil {
			return err
		}
	}

	return nil
}

// pages compares a page far down a list with the first.
func (b *bench) pages(ctx context.Context, n int) error {
	fill := uuid.UUID{0: 2}
	start := time.Now()
	var group sync.WaitGroup
	var failed atomic.Pointer[error]

	for range 4 {
		group.Go(func() {
			for done := 0; done < n/4; done += 500 {
				err := b.store.Update(ctx, func(tx store.Tx) error {
					for range 500 {
						r := b.record(b.ids.next())
						r.Account = fill
						tx.Put(r)
					}
					return nil
				})
				if err != nil {
					failed.Store(&err)
					return
				}
			}
		})
	}

	group.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	fmt.Printf("list          %d records loaded in %v\n", n, time.Since(start).Round(time.Second))
	page := func(offset int64) func(context.Context) error {
		return func(ctx context.Context) error {
			q := &store.Query{Kind: kind, Account: fill, Desc: true, Offset: offset, Limit: 50, Count: true, Live: time.Now()}
			return b.store.View(ctx, func(tx store.ReadTx) error {
				l, err := tx.List(q)
				if err == nil && len(l.Records) != 50 {
					err = fmt.Errorf("%d records on a page", len(l.Records))
				}
				return err
			})
		}
	}

	far := int64(min(10_000, n/50-1)) * 50
	return b.compare(ctx, "list", 1, contender{fmt.Sprintf("page %d of %d", far/50, n/50), page(far)}, contender{"page 1", page(0)})
}
