package cardvault_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store/memstore"
)

// The ledger has a deletion before the call returns. A backup from before it is restored, and the
// token stays deleted.
func ExampleAuditOptions() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "ledger")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // in production, a random key
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{
		Audit: &cardvault.AuditOptions{Ledger: audit.NewLedgerDir(dir), LedgerSync: 10_000_000_000}, // 10 s
	})
	if err != nil {
		log.Fatal(err)
	}
	t, err := v.Import(ctx, cardvault.Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2060}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	var backup bytes.Buffer
	if _, err := v.Backup(ctx, &backup, nil); err != nil {
		log.Fatal(err)
	}
	if err := v.Delete(ctx, t.ID); err != nil {
		log.Fatal(err)
	}

	ledger := new(cardvault.DeletionLedger)
	if ledger.Exports, err = audit.NewLedgerDir(dir).Exports(ctx); err != nil {
		log.Fatal(err)
	}
	report, err := cardvault.Restore(ctx, memstore.New(), keys, &backup, &cardvault.RestoreOptions{Ledger: ledger})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("deleted again:", report.Deleted)
	if err := v.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// deleted again: 1
}
