package valkeycodes_test

import (
	"context"
	"errors"
	"log"
	"os"

	"github.com/valkey-io/valkey-go"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/valkeycodes"
)

// Replicas of a vault that share security codes.
func ExampleOpen() {
	_ = func(ctx context.Context, s store.Store, keys *cardvault.Keyring) {
		server, err := valkey.ParseURL(os.Getenv("CODES_URL")) // rediss://…
		if err != nil {
			log.Fatal(err)
		}
		codes, err := valkeycodes.Open(ctx, server, nil)
		if err != nil {
			log.Fatal(err)
		}
		v, err := cardvault.New(ctx, s, keys, &cardvault.Options{Codes: codes})
		if err != nil {
			log.Fatal(err)
		}
		err = v.Run(ctx)
		if err = errors.Join(err, v.Close(), codes.Close()); err != nil {
			log.Fatal(err)
		}
	}
}
