package boltstore_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
)

// A row lost from the file does not prevent the erasure of expired cards, and is not counted once
// it would have expired. A repair removes what is left of it.
func TestErasureBesideALostRow(t *testing.T) {
	const tokens = 50
	bubble.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "vault.db")
		var s *boltstore.Store
		open := func() *cardvault.Vault {
			var err error
			if s, err = boltstore.Open(t.Context(), path, nil); err != nil {
				t.Fatal(err)
			}
			keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{7}, cardvault.KeySize))
			if err != nil {
				t.Fatal(err)
			}
			v, err := cardvault.New(t.Context(), s, keys, nil)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		close := func(v *cardvault.Vault) {
			if err := errors.Join(v.Close(), s.Close()); err != nil {
				t.Fatal(err)
			}
		}
		v := open()
		for range tokens {
			session, err := v.CreateSession(t.Context(), &cardvault.SessionOptions{TokenTTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := v.Tokenize(t.Context(), session.ID, cardvault.Card{
				PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2099},
			}); err != nil {
				t.Fatal(err)
			}
		}
		close(v)

		var kind store.Kind // tokens are the first kind with that many records
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(func(tx *bolt.Tx) error {
			return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
				if bytes.HasPrefix(name, []byte("rows")) && kind == 0 && b.Inspect().KeyN >= tokens {
					kind = store.Kind(name[4])
					k, _ := b.Cursor().First()
					return b.Delete(k)
				}
				return nil
			})
		}), db.Close()); err != nil || kind == 0 {
			t.Fatalf("kind %d: %v", kind, err)
		}

		v = open()
		defer func() { close(v) }()
		<-time.After(2 * time.Minute)
		for range 2 {
			if err := v.Drain(t.Context()); err != nil {
				t.Errorf("Drain: %v", err)
			}
		}
		if err := s.View(t.Context(), func(tx store.ReadTx) error {
			left, err := tx.Scan(kind, uuid.Nil, tokens)
			if len(left) > 0 {
				t.Errorf("%d records of kind %d are left", len(left), kind)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		if page, err := v.List(t.Context(), nil); err != nil || page.TotalItems != 0 {
			t.Errorf("List = %+v, %v", page, err)
		}
		if report, err := v.Repair(t.Context(), nil); err != nil || !report.Mended {
			t.Errorf("Repair = %+v, %v", report, err)
		}
		if err := s.Check(t.Context()); err != nil {
			t.Errorf("the file: %v", err)
		}
	})
}
