package backup_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault/internal/backup"
	"github.com/cardvault/cardvault/internal/backuptest"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/ledgertest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

func bolt(t testing.TB) store.Store {
	t.Helper()
	s, err := boltstore.Open(t.Context(), filepath.Join(t.TempDir(), "vault.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A backup that is made beside writes has the records of one instant.
func TestBesideWrites(t *testing.T) {
	for name, most := range map[string]int{"changes one by one": 0, "changes in spans": 300} {
		t.Run(name+", memory", func(t *testing.T) {
			backuptest.BesideWrites(t, memstore.New(), most, memstore.New(), bolt(t))
		})
		t.Run(name+", bbolt", func(t *testing.T) {
			backuptest.BesideWrites(t, bolt(t), most, bolt(t), memstore.New())
		})
	}
}

// Increments of random changes end in the records of the last one.
func TestChain(t *testing.T) {
	for seed := range uint64(12) {
		from, into := store.Store(memstore.New()), []store.Store{memstore.New()}
		if seed%6 == 0 {
			from, into = bolt(t), append(into, bolt(t))
		}
		backuptest.Chain(t, seed, from, into...)
	}
}

// A record that comes while a backup is made, and is deleted before the next one, leaves its block as
// the first one has read it. It stays deleted.
func TestChainTouched(t *testing.T) {
	for name, most := range map[string]int{"one by one": 0, "as spans": 2} {
		s := memstore.New()
		l := ledgertest.On(t, s, ledger.Families{})
		id := func(n int) uuid.UUID { return uuid.UUID{1, byte(n >> 8), byte(n)} }
		change := func(change func(tx store.Tx, n int), from, step int) {
			t.Helper()
			err := s.Update(t.Context(), func(tx store.Tx) error {
				for n := from; n < 2000; n += step {
					change(tx, n)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		put := func(tx store.Tx, n int) {
			tx.Put(&store.Record{Kind: 9, ID: id(n), Version: 1, Secret: []byte("secret")})
		}
		change(put, 0, 2)

		var full, manifest, increment bytes.Buffer
		changed := false
		_, err := backup.Make(t.Context(), backup.Config{Ledger: l, Most: most, Manifest: &manifest, Progress: func(p backup.Progress) {
			if !changed && p.Records > 400 { // in the midst of them
				change(put, 1, 100)
				changed = true
			}
		}}, &full)
		if err != nil {
			t.Fatal(err)
		}
		change(func(tx store.Tx, n int) { tx.Delete(9, id(n)) }, 1, 100)
		report, err := backup.Make(t.Context(), backup.Config{Ledger: l, Since: bytes.NewReader(manifest.Bytes())}, &increment)
		if err != nil {
			t.Fatal(err)
		}
		if !changed || most == 0 && report.Unchanged < 500 || most > 0 && report.Unchanged > 100 {
			t.Errorf("%s: %+v", name, report)
		}

		place := memstore.New()
		if _, err := backup.Restore(t.Context(), place, ledgertest.Ring(), []io.Reader{&full, &increment}, false, nil); err != nil {
			t.Fatal(err)
		}
		is := backuptest.Records(t, place)
		for n := range 2000 {
			if r := is[store.Key{Kind: 9, ID: id(n)}]; (r != nil) != (n%2 == 0) {
				t.Errorf("%s: record %d is %v", name, n, r)
			}
		}
	}
}

// A frugalStore measures the Views of a store.
type frugalStore struct {
	*memstore.Store
	rows, bytes int // most in a View
}

func (s *frugalStore) View(ctx context.Context, fn func(store.ReadTx) error) error {
	tx := &frugalTx{}
	err := s.Store.View(ctx, func(in store.ReadTx) error {
		*tx = frugalTx{ReadTx: in}
		return fn(tx)
	})
	s.rows, s.bytes = max(s.rows, tx.rows), max(s.bytes, tx.bytes)
	return err
}

type frugalTx struct {
	store.ReadTx
	rows, bytes int
}

func (tx *frugalTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r, err := tx.ReadTx.Get(kind, id)
	if err == nil {
		tx.rows, tx.bytes = tx.rows+1, tx.bytes+len(r.Shown)+len(r.Secret)
	}
	return r, err
}

func (tx *frugalTx) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	rs, err := tx.ReadTx.Scan(kind, after, limit)
	for _, r := range rs {
		tx.rows, tx.bytes = tx.rows+1, tx.bytes+len(r.Shown)+len(r.Secret)
	}
	return rs, err
}

// No View reads more than a few hundred records and megabytes, and no chunk is larger than
// readers take.
func TestBounds(t *testing.T) {
	for name, size := range map[string]int{"small": 10, "large": store.MaxRecord} {
		t.Run(name, func(t *testing.T) {
			s := &frugalStore{Store: memstore.New()}
			l := ledgertest.On(t, s, ledger.Families{})
			put := func(from, to int) {
				err := s.Update(t.Context(), func(tx store.Tx) error {
					for n := from; n < to; n++ {
						tx.Put(&store.Record{Kind: 9, ID: uuid.UUID{1, byte(n >> 8), byte(n)}, Version: 1, Secret: make([]byte, size)})
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			put(0, 700)
			s.rows, s.bytes = 0, 0
			calls := 0
			var out bytes.Buffer
			_, err := backup.Make(t.Context(), backup.Config{Ledger: l, Progress: func(backup.Progress) {
				if calls++; calls == 3 { // in the midst of it
					put(800, 1400)
				}
			}}, &out)
			if err != nil {
				t.Fatal(err)
			}
			if s.rows > 512 || s.bytes > 1<<20+256*store.MaxRecord {
				t.Errorf("a View has read %d records of %d bytes", s.rows, s.bytes)
			}
			place := memstore.New()
			if _, err := backup.Restore(t.Context(), place, ledgertest.Ring(), []io.Reader{&out}, false, nil); err != nil {
				t.Fatal(err)
			}
			if n := len(backuptest.Records(t, place)); n < 1300 {
				t.Errorf("%d records were restored", n)
			}
		})
	}
}

// A record that the store cannot read is missing, and the backup says so.
func TestUnreadable(t *testing.T) {
	s := &unreadableStore{Store: memstore.New(), id: uuid.UUID{12}}
	l := ledgertest.On(t, s, ledger.Families{})
	err := s.Update(t.Context(), func(tx store.Tx) error {
		for n := range 3 {
			tx.Put(&store.Record{Kind: 9, ID: uuid.UUID{byte(n + 11)}, Version: 1})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	report, err := backup.Make(t.Context(), backup.Config{Ledger: l}, &out)
	if !errors.Is(err, ledger.ErrDamaged) || report == nil || report.Damaged != 1 {
		t.Fatalf("Make = %+v, %v", report, err)
	}
	place := memstore.New()
	restored, err := backup.Restore(t.Context(), place, ledgertest.Ring(), []io.Reader{&out}, false, nil)
	if err != nil || restored.Damaged != 1 {
		t.Fatalf("Restore = %+v, %v", restored, err)
	}
	all := backuptest.Records(t, place)
	if all[store.Key{Kind: 9, ID: uuid.UUID{11}}] == nil || all[store.Key{Kind: 9, ID: uuid.UUID{13}}] == nil || all[store.Key{Kind: 9, ID: uuid.UUID{12}}] != nil {
		t.Errorf("restored %v", all)
	}
}

// An unreadableStore cannot read one record.
type unreadableStore struct {
	*memstore.Store
	id uuid.UUID
}

func (s *unreadableStore) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(&unreadableTx{tx, s.id}) })
}

type unreadableTx struct {
	store.ReadTx
	id uuid.UUID
}

func (tx *unreadableTx) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	rs, err := tx.ReadTx.Scan(kind, after, limit)
	for i, r := range rs {
		if r.ID == tx.id {
			rs[i] = &store.Record{Kind: kind, ID: r.ID}
		}
	}
	return rs, err
}

// A backup that falls behind ends: where records change again and again, and where new ones come
// as fast as they are read.
func TestSlow(t *testing.T) {
	for name, appends := range map[string]bool{"changes": false, "new records": true} {
		t.Run(name, func(t *testing.T) {
			s := bolt(t)
			l := ledgertest.On(t, s, ledger.Families{})
			calls := uint64(0)
			put := func(backup.Progress) {
				calls++
				err := s.Update(t.Context(), func(tx store.Tx) error {
					for n := range 600 {
						r := &store.Record{Kind: 9, ID: uuid.UUID{1, 0, 0, byte(n >> 8), byte(n)}, Version: calls}
						if appends {
							r.ID[1], r.ID[2], r.Version = byte(calls>>8), byte(calls), 1
						}
						tx.Put(r)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
			put(backup.Progress{})
			if _, err := backup.Make(t.Context(), backup.Config{Ledger: l, Progress: put, Most: 300}, io.Discard); !errors.Is(err, backup.ErrSlow) {
				t.Errorf("Make = %v", err)
			}
		})
	}
}
