package pgstore_test

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store/pgstore"
)

// A replica of a vault on PostgreSQL. All replicas run this code.
func ExampleNew() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	s, err := pgstore.New(ctx, pool, &pgstore.Options{Listen: pool.Config().ConnConfig})
	if err != nil {
		log.Fatal(err)
	}
	keys, err := cardvault.KeyFile("vault.key", nil)
	if err != nil {
		log.Fatal(err)
	}

	v, err := cardvault.New(ctx, s, keys, &cardvault.Options{Replicas: 3})
	if err != nil {
		log.Fatal(err)
	}
	err = v.Run(ctx)
	if err = errors.Join(err, v.Close(), s.Close()); err != nil {
		log.Fatal(err)
	}
}

// During deployment, a role that may create tables brings the schema up to date.
func ExampleMigrate() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_OWNER_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := pgstore.Migrate(ctx, pool, nil); err != nil {
		log.Fatal(err)
	}
}
