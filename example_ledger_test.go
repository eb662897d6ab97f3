package cardvault_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A folder is an audit.Ledger: a file for each part, which is never changed. Put it on another
// disk, or do the same with the objects of an object store. The lock holds in one process: without
// it a part may be there twice, which a restore accepts.
type folder struct {
	dir string
	mu  sync.Mutex
}

func (f *folder) Append(ctx context.Context, p *audit.Part) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, err := f.Last(ctx, p.VaultID, p.AccountID)
	if err != nil || p.Last.Number <= last.Number {
		return err
	}
	name := fmt.Sprintf("%s_%d_%d_%x.jsonl", p.AccountID, p.First, p.Last.Number, p.Last.Hash)
	return write(filepath.Join(f.dir, p.VaultID.String()), name, p.Export)
}

// write makes a file whole or not at all, and returns once a power cut does not take it away.
func write(dir, name string, data []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, ".part-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(data)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}

	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

func (f *folder) Last(ctx context.Context, vault, account uuid.UUID) (last audit.Mark, err error) {
	names, err := filepath.Glob(filepath.Join(f.dir, vault.String(), account.String()+"_*.jsonl"))
	if err != nil || ctx.Err() != nil {
		return last, errors.Join(err, ctx.Err())
	}
	for _, name := range names {
		fields := strings.Split(strings.TrimSuffix(filepath.Base(name), ".jsonl"), "_")
		if len(fields) != 4 {
			return last, fmt.Errorf("%s is not a part", name)
		}
		number, err := strconv.ParseUint(fields[2], 10, 64)
		hash, also := hex.DecodeString(fields[3])
		if err := errors.Join(err, also); err != nil {
			return last, err
		}
		if number > last.Number {
			last.Number = number
			copy(last.Hash[:], hash)
		}
	}
	return last, nil
}

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
		Audit: &cardvault.AuditOptions{Ledger: &folder{dir: dir}, LedgerSync: 10_000_000_000}, // 10 s
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

	names, err := filepath.Glob(filepath.Join(dir, "*", "*.jsonl"))
	if err != nil {
		log.Fatal(err)
	}
	ledger := new(cardvault.DeletionLedger)
	for _, name := range names {
		part, err := os.ReadFile(name)
		if err != nil {
			log.Fatal(err)
		}
		ledger.Exports = append(ledger.Exports, bytes.NewReader(part))
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
