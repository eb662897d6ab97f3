//go:build unix

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Kinds of the audit log in the store.
const (
	auditRecords     store.Kind = 34
	auditCheckpoints store.Kind = 35
)

// TestAudit: processes on one database write one audit log, each in a lane of its own. Each
// process shows all records of the account, and a lane that is removed from the database is
// noticed and named.
func TestAudit(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	account := f.proxy.Accounts[0].AccountID
	var tokens []string
	for i := range f.replicas {
		tokens = append(tokens, f.direct(i).Import(t, "4242424242424242").ID())
	}

	var lanes []any
	for i := range f.replicas {
		p := f.direct(i)
		lanes = nil
		for _, r := range p.Want(t, 200, p.Accounts[0].APIKey, "GET", "/audit-records?operation=token.import&sort=at+asc", "")["data"].([]any) {
			r := r.(map[string]any)
			if len(lanes) >= len(tokens) || r["object_id"] != tokens[len(lanes)] || slices.Contains(lanes, r["lane"]) {
				t.Errorf("replica %d shows record %v of tokens %q", i+1, r, tokens)
			}
			lanes = append(lanes, r["lane"])
		}
		if len(lanes) != len(tokens) {
			t.Fatalf("replica %d shows %d records", i+1, len(lanes))
		}
	}

	v, s := f.open(t)
	verify := func() (*audit.Report, []*audit.Checkpoint, []*audit.Record, error) {
		t.Helper()
		kept := f.kept(t) // before the export, which may have later ones
		var export bytes.Buffer
		if err := v.In(account).ExportAudit(t.Context(), &export, time.Time{}, time.Time{}); err != nil {
			t.Fatal(err)
		}
		checkpoints, records := linesOf(t, export.Bytes())
		report, err := audit.Verify(&export, &audit.VerifyOptions{PublicKeys: v.AuditPublicKeys(), Kept: kept})
		return report, checkpoints, records, err
	}
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	report, checkpoints, records, err := verify()
	for end := time.Now().Add(patience); err == nil && report.Open > 0 && time.Now().Before(end); <-look.C {
		report, checkpoints, records, err = verify()
	}
	if err != nil || report.Open > 0 {
		t.Fatalf("report %+v, %v", report, err)
	}

	// The records of the second process are removed, then its checkpoints too.
	lane := uuid.MustParse(lanes[1].(string))
	remove := func(kind store.Kind, of func(*store.Record) bool) {
		t.Helper()
		var all []*store.Record
		err := s.View(t.Context(), func(tx store.ReadTx) (err error) {
			all, err = tx.Scan(kind, uuid.Nil, 1000)
			return err
		})
		all = slices.DeleteFunc(all, func(r *store.Record) bool { return r.Account != account || !of(r) })
		if err != nil || len(all) == 0 {
			t.Fatalf("nothing of kind %d is removed, %v", kind, err)
		}
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			for _, r := range all {
				tx.Delete(kind, r.ID)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	remove(auditRecords, func(row *store.Record) bool {
		return slices.ContainsFunc(records, func(r *audit.Record) bool { return r.Lane == lane && r.At.Equal(rowkey.Time(row.ID)) })
	})
	var found *audit.VerifyError
	if _, _, _, err := verify(); !errors.As(err, &found) || found.Fault != audit.Removed || found.Lane != lane {
		t.Errorf("without the records of lane %v: %v", lane, err)
	}

	first := uint64(0)
	remove(auditCheckpoints, func(row *store.Record) bool {
		return slices.ContainsFunc(checkpoints, func(c *audit.Checkpoint) bool {
			if c.Lane != lane || c.Number != binary.BigEndian.Uint64(row.ID[8:]) {
				return false
			}
			if first == 0 || c.Number < first {
				first = c.Number
			}
			return true
		})
	})
	if _, _, _, err := verify(); !errors.As(err, &found) || found.Fault != audit.Removed || found.Checkpoint != first {
		t.Errorf("without the checkpoints of lane %v, from %d on: %v", lane, first, err)
	}
}

// open opens the vault of a fleet once more, in this process.
func (f *fleet) open(t *testing.T) (*cardvault.Vault, store.Store) {
	t.Helper()
	open, closeStore, err := openPostgres(f.config.store, "", quiet)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := cardvault.KeyFile(filepath.Join(f.config.data, "keys", "vault.key"), nil)
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), open, keys, &cardvault.Options{Mode: cardvault.Sandbox, Audit: &cardvault.AuditOptions{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(v.Close(), closeStore()); err != nil {
			t.Error(err)
		}
	})
	return v, open
}

// kept returns the checkpoints that the processes of a fleet have kept.
func (f *fleet) kept(t *testing.T) (all []*audit.Checkpoint) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(f.config.data, "audit", "checkpoints", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // a later one has taken its place
		}
		if err != nil {
			t.Fatal(err)
		}
		c := new(audit.Checkpoint)
		if err := json.Unmarshal(text, c); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// linesOf returns the checkpoints and the records of an export.
func linesOf(t *testing.T, export []byte) (checkpoints []*audit.Checkpoint, records []*audit.Record) {
	t.Helper()
	for line := range bytes.Lines(export) {
		var l struct {
			Checkpoint *audit.Checkpoint
			Record     *audit.Record
		}
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatal(err)
		}
		if l.Checkpoint != nil {
			checkpoints = append(checkpoints, l.Checkpoint)
		}
		if l.Record != nil {
			records = append(records, l.Record)
		}
	}
	return checkpoints, records
}
