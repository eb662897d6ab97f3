package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bench/table"
	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store/pgstore"
)

// A divided vault is in PostgreSQL, with some partitions.
type divided struct {
	name     string
	pool     *pgxpool.Pool
	vault    *cardvault.Vault
	accounts []*cardvault.Vault
	tokens   []uuid.UUID
}

// newDivided makes a vault with 100 accounts and some tokens in the first.
func (b *bench) newDivided(ctx context.Context, url string, partitions int, open *closers) (*divided, error) {
	name := fmt.Sprintf("%s_%d", schema, partitions)
	pool, err := pooled(ctx, url, open)
	if err != nil {
		return nil, err
	}
	drop := func() error {
		_, err := pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+name+" CASCADE")
		return err
	}
	if err := drop(); err != nil {
		return nil, err
	}
	open.later(drop)

	opts := &pgstore.Options{Schema: name, Partitions: partitions, AllowPlaintext: true}
	if err := pgstore.Migrate(ctx, pool, opts); err != nil {
		return nil, err
	}
	d := &divided{name: "no partitions", pool: pool}
	if partitions > 0 {
		d.name = fmt.Sprint(partitions, " partitions")
	}
	if d.vault, err = openedOn(ctx, pool, opts, open); err != nil {
		return nil, err
	}

	for range 100 {
		a, err := d.vault.CreateAccount(ctx, "bench", nil)
		if err != nil {
			return nil, err
		}
		d.accounts = append(d.accounts, d.vault.In(a.ID))
	}
	var tokens supply[uuid.UUID]
	err = tokens.fill(min(b.table.Tokens, 20_000), func() (uuid.UUID, error) {
		t, err := d.vault.Import(ctx, testCard(0), bulk)
		if err != nil {
			return uuid.Nil, err
		}
		return t.ID, nil
	})
	d.tokens = tokens.items
	return d, err
}

// pooled returns a pool with enough connections for 64 goroutines.
func pooled(ctx context.Context, url string, open *closers) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 66
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	open.later(func() error { pool.Close(); return nil })
	return pool, nil
}

// openedOn opens the vault in a schema.
func openedOn(ctx context.Context, pool *pgxpool.Pool, opts *pgstore.Options, open *closers) (*cardvault.Vault, error) {
	s, err := pgstore.New(ctx, pool, opts)
	if err != nil {
		return nil, err
	}
	open.later(s.Close)
	ring, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		return nil, err
	}
	return cardvault.New(ctx, s, ring, nil)
}

// partitions compares vaults with 16 partitions and without.
func (b *bench) partitions(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	url, err := b.server(&open)
	if realtest.Missing(err) {
		b.notRun(err.Error(), "16 partitions", "no partitions", nil, "partitions-import/64", "partitions-get/64")
		return nil
	}
	if err != nil {
		return err
	}

	var vaults []*divided
	for _, n := range []int{16, 0} {
		d, err := b.newDivided(ctx, url, n, &open)
		if err != nil {
			return err
		}
		vaults = append(vaults, d)
	}

	for _, call := range []struct {
		name, what string
		at         []int
		goal       table.Goal
		run        func(d *divided) error
	}{
		{"import", "Import", []int{1, 16, 64}, least(.95), func(d *divided) error {
			_, err := d.vault.Import(ctx, testCard(0), nil)
			return err
		}},
		{"import-accounts", "Import into 100 accounts", []int{1, 64}, least(.95), func(d *divided) error {
			_, err := d.accounts[rand.IntN(len(d.accounts))].Import(ctx, testCard(0), nil)
			return err
		}},
		{"import-keyed", "Import with an idempotency key", []int{1, 64}, reported, func(d *divided) error {
			_, err := d.vault.Import(ctx, testCard(0), keyed())
			return err
		}},
		{"get", "Get", []int{1, 64, 16}, least(.95), func(d *divided) error {
			_, err := d.vault.Get(ctx, d.tokens[rand.IntN(len(d.tokens))])
			return err
		}},
		{"list", "List of 50 from the middle", []int{1, 16}, least(.95), func(d *divided) error {
			_, err := d.vault.List(ctx, &cardvault.TokenListOptions{Page: len(d.tokens) / 100, Limit: 50})
			return err
		}},
		{"update", "Update", []int{1, 64}, reported, func(d *divided) error {
			_, err := d.vault.Update(ctx, d.tokens[rand.IntN(len(d.tokens))], cardvault.TokenUpdate{Expiry: &card.Expiry{Month: 1 + rand.IntN(12), Year: 2031 + rand.IntN(9)}})
			return err
		}},
	} {
		for _, n := range call.at {
			var sides []contender
			for _, d := range vaults {
				sides = append(sides, contender{name: call.what + ", " + d.name, run: func(int) error { return call.run(d) }})
			}
			lanes, err := b.race(n, sides...)
			if err != nil {
				return err
			}
			b.ratio(fmt.Sprintf("partitions-%s/%d", call.name, n), n, call.goal, lanes[0], lanes[1])
			if n != call.at[len(call.at)-1] {
				continue
			}
			if err := b.processor(ctx, vaults[0].pool, fmt.Sprintf("partitions-%s-core/%d", call.name, n), n, sides); err != nil {
				return err
			}
		}
	}
	return b.partitionsOverHTTP(ctx, vaults)
}

// processor compares two contenders by the time of the processor that a call takes, of this
// process and the server: other programs on the machine change it less. A round has about
// 5,000 calls, after some that open connections and prepare statements.
func (b *bench) processor(ctx context.Context, pool *pgxpool.Pool, name string, n int, sides []contender) error {
	row := &table.Row{Name: name, At: n, What: "calls a second of a core, " + sides[0].name, Against: sides[1].name}

	for range b.table.Rounds {
		var perSecond [2]float64
		for i, side := range sides {
			if err := repeated(n, 20, side.run); err != nil {
				return err
			}
			before, err := processTime()
			if err != nil {
				return err
			}
			server := serverTime(ctx, pool)

			calls := max(20, min(5000, b.table.Tokens)/n)
			if err := repeated(n, calls, side.run); err != nil {
				return err
			}
			after, err := processTime()
			if err != nil {
				return err
			}

			perSecond[i] = float64(n*calls) / (after - before + serverTime(ctx, pool) - server).Seconds()
		}
		row.Rounds = append(row.Rounds, table.Round{Figure: perSecond[0] / perSecond[1], Ours: perSecond[0], Against: perSecond[1]})
	}
	b.add(row)
	return nil
}

// repeated makes calls in n goroutines, so many in each.
func repeated(n, calls int, f func(i int) error) error {
	return parallel(n, func(i int) error {
		for range calls {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	})
}

// partitionsOverHTTP compares reads over HTTP, for which a key is looked up in all accounts.
func (b *bench) partitionsOverHTTP(ctx context.Context, vaults []*divided) error {
	var sides []contender
	for _, d := range vaults {
		c, stop, err := served(ctx, d.vault, cardvault.AccountUpdate{ImportApproved: new(true)})
		if err != nil {
			return err
		}
		defer stop()
		sides = append(sides, contender{name: "GET /tokens/{id}, " + d.name, run: func(i int) error {
			_, err := c.do(i, "GET", "/tokens/"+d.tokens[rand.IntN(len(d.tokens))].String(), nil)
			return err
		}})
	}

	for _, n := range []int{1, 64} {
		lanes, err := b.race(n, sides...)
		if err != nil {
			return err
		}
		b.ratio(fmt.Sprintf("partitions-http-read/%d", n), n, reported, lanes[0], lanes[1])
	}
	return nil
}
