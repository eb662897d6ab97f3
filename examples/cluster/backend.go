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

// simulatorSchema holds the state of the simulator, beside the vault's schema.
const simulatorSchema = "cardvault_simulator"

// A backend holds the shared state of the replicas.
type backend struct {
	simulator store.Store // shared: the scheme is outside the replicas

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
	openStore, openSimulator := openPostgres(c.store, "", log), openPostgres(c.store, simulatorSchema, log)
	openCodes := openValkey(c.codes, log)
	if c.store == "memory" {
		openStore, openSimulator = inMemory[store.Store](memstore.New()), inMemory[store.Store](memstore.New())
	} else if c.migrate {
		if err := migrate(ctx, c.store); err != nil {
			return nil, err
		}
	}

	if c.codes == "memory" {
		openCodes = inMemory[store.CodeCache](codes.New(1<<16, nil))
	}

	simulator, closeSimulator, err := openSimulator(ctx)
	if err != nil {
		return nil, err
	}
	return &backend{
		simulator: simulator,
		close:     closeSimulator,
		open: func(ctx context.Context) (*opened, error) {
			s, closeStore, err := openStore(ctx)
			if err != nil {
				return nil, err
			}
			cache, closeCodes, err := openCodes(ctx)
			if err != nil {
				return nil, errors.Join(err, closeStore())
			}
			return &opened{s, cache, func() error { return errors.Join(closeCodes(), closeStore()) }}, nil
		},
	}, nil
}

// An opener returns a resource and a function that closes it.
type opener[T any] = func(context.Context) (T, func() error, error)

// inMemory opens what all replicas share, and which ends with the process.
func inMemory[T any](v T) opener[T] {
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
		if err := pgstore.Migrate(ctx, pool, &pgstore.Options{Schema: schema, AllowPlaintext: true}); err != nil {
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
		s, err := pgstore.New(ctx, pool, &pgstore.Options{
			Schema: schema, Listen: pool.Config().ConnConfig, AllowPlaintext: true, Logger: log, // of test cards; sslmode=verify-full is TLS
		})
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
func openValkey(url string, log *slog.Logger) opener[store.CodeCache] {
	return func(ctx context.Context) (store.CodeCache, func() error, error) {
		options, err := valkey.ParseURL(url)
		if err != nil {
			return nil, nil, errors.New("-codes must be a redis, rediss or valkey URL")
		}
		c, err := valkeycodes.Open(ctx, options, &valkeycodes.Options{AllowPlaintext: true, Logger: log}) // of test cards; rediss is TLS
		if err != nil {
			return nil, nil, err
		}
		return c, c.Close, nil
	}
}
