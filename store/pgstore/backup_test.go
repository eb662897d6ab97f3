//go:build unix

package pgstore_test

import (
	"context"
	"testing"

	"github.com/cardvault/cardvault/internal/backuptest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
)

// A vault is backed up from a snapshot, and moves to and from other stores.
func TestBackup(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	place := func(partitions int) store.Store { return open(t, p, divided(t, p, partitions)) }
	backuptest.BesideWrites(t, place(0), 0, place(0), memstore.New())
	backuptest.BesideWrites(t, place(4), 0, place(4), place(0))
	backuptest.BesideWrites(t, memstore.New(), 300, place(4))
}

// A snapshot outlives the time after which the server ends other transactions that are idle.
func TestSnapshotIdles(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	s := open(t, p, schema(t, p))
	err := s.Snapshot(t.Context(), func(tx store.ReadTx) error {
		if _, err := tx.Empty(); err != nil {
			return err
		}
		// Waits as the client, which is idle for the session of the snapshot.
		if _, err := p.Exec(context.Background(), "SELECT pg_catalog.pg_sleep(4)"); err != nil {
			return err
		}
		_, err := tx.Empty()
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
