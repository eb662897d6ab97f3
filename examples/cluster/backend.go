package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/pgstore"
	"github.com/cardvault/cardvault/store/valkeycodes"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/valkey-io/valkey-go"
)

// simulatorSchema is where the simulator keeps its state, beside that of the vault.
const simulatorSchema = "cardvault_simulator"

// A backend is where replicas keep what they share.
type backend struct {
	simulator store.Store // one for all: the scheme is none of the replicas

	// open opens the store and the cache of security codes of one replica.
	open  func(context.Context) (*opened, error)
	close func() error
}

// opened is what one replica has of a backend.
type opened struct {
	store store.Store
	codes store.CodeCache
	close func() error
}

func openBackend(ctx context.Context, c *config, log *slog.Logger) (*backend, error) {
	openRecords, closeRecords := openPostgres(c.store, "", log), func() error { return nil }
	if c.store == "memory" {
		records := memstore.New()
		openRecords, closeRecords = fixed[store.Store](records), records.Close
	}
	openCodes, closeCodes := openValkey(c.codes), func() error { return nil }
	if c.codes == "memory" {
		cache := codes.New(1<<16, nil)
		openCodes, closeCodes = fixed[store.CodeCache](cache), cache.Close
	}
	openSimulator := openPostgres(c.store, simulatorSchema, log)
	if c.store == "memory" {
		simulator := memstore.New()
		openSimulator = func(context.Context) (store.Store, func() error, error) { return simulator, simulator.Close, nil }
	}
	if c.store != "memory" && c.migrate {
		if err := migrate(ctx, c.store); err != nil {
			return nil, err
		}
	}
	simulator, closeSimulator, err := openSimulator(ctx)
	if err != nil {
		return nil, errors.Join(err, closeRecords(), closeCodes())
	}
	return &backend{
		simulator: simulator,
		open: func(ctx context.Context) (*opened, error) {
			records, closeStore, err := openRecords(ctx)
			if err != nil {
				return nil, err
			}
			cache, closeCache, err := openCodes(ctx)
			if err != nil {
				return nil, errors.Join(err, closeStore())
			}
			return &opened{records, cache, func() error { return errors.Join(closeCache(), closeStore()) }}, nil
		},
		close: func() error { return errors.Join(closeSimulator(), closeRecords(), closeCodes()) },
	}, nil
}

// An opener returns something with what closes it.
type opener[T any] = func(context.Context) (T, func() error, error)

// fixed opens what is open.
func fixed[T any](v T) opener[T] {
	return func(context.Context) (T, func() error, error) { return v, func() error { return nil }, nil }
}

// migrate brings the schemas of the vault and the simulator up to date.
func migrate(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("-store: %w", err)
	}
	defer pool.Close()
	for _, schema := range []string{"", simulatorSchema} {
		if err := pgstore.Migrate(ctx, pool, &pgstore.Options{Schema: schema}); err != nil {
			return err
		}
	}
	return nil
}

// openPostgres opens stores in a schema, each on a pool of its own.
func openPostgres(url, schema string, log *slog.Logger) opener[store.Store] {
	return func(ctx context.Context) (store.Store, func() error, error) {
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return nil, nil, fmt.Errorf("-store: %w", err)
		}
		s, err := pgstore.New(ctx, pool, &pgstore.Options{Schema: schema, Logger: log})
		if err != nil {
			pool.Close()
			return nil, nil, err
		}
		return s, func() error {
			defer pool.Close()
			return s.Close()
		}, nil
	}
}

// openValkey opens caches on a server, each with a connection of its own.
func openValkey(url string) opener[store.CodeCache] {
	return func(ctx context.Context) (store.CodeCache, func() error, error) {
		options, err := valkey.ParseURL(url)
		if err != nil {
			return nil, nil, errors.New("-codes: not a URL of redis, rediss or valkey")
		}
		c, err := valkeycodes.Open(ctx, options, &valkeycodes.Options{AllowPlaintext: true}) // of test cards; rediss is TLS
		if err != nil {
			return nil, nil, err
		}
		return c, c.Close, nil
	}
}
