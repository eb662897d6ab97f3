//go:build unix

package pgstore_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/backuptest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A vault is backed up from a snapshot, and moves to and from other stores.
func TestBackup(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	place := func(partitions int) store.Store { return open(t, p, divided(t, p, partitions)) }
	backuptest.BesideWrites(t, place(0), 0, place(0), memstore.New())
	backuptest.BesideWrites(t, place(4), 0, place(4), place(0))
	backuptest.BesideWrites(t, memstore.New(), 300, place(4))
	backuptest.Chain(t, 1, place(4), place(0), memstore.New())
	backuptest.Chain(t, 2, memstore.New(), place(4))
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

// TestMove: a vault moves from bbolt to PostgreSQL and back. All its tokens can be used there,
// and every list has the same items and totals.
func TestMove(t *testing.T) {
	ctx := t.Context()
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{7}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	open := func(s store.Store, thaw uuid.UUID) *cardvault.Vault {
		v, err := cardvault.New(ctx, s, keys, &cardvault.Options{
			Mode: cardvault.Sandbox, Purposes: []string{"test"}, Webhooks: noSender{}, Audit: new(cardvault.AuditOptions), Thaw: thaw,
		})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	bolt := func() store.Store {
		s, err := boltstore.Open(ctx, filepath.Join(t.TempDir(), "cardvault.db"), nil)
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

	from := bolt()
	v := open(from, uuid.Nil)
	fillMoved(t, v)
	want := contentOf(t, v)
	if len(want) < 600 {
		t.Fatalf("%d lines of content", len(want))
	}
	p := pool(t, postgres.Get(t).URL("postgres"))
	for i, place := range []store.Store{openOne(t, p, divided(t, p, 4)), bolt(), openOne(t, p, schema(t, p)), bolt()} {
		if i >= 2 {
			v = restoredInto(t, v, keys, place, open)
		} else {
			v = movedInto(t, v, keys, from, place, open)
		}
		from = place
		is := contentOf(t, v)
		for n := range max(len(is), len(want)) {
			if n >= len(is) || n >= len(want) || is[n] != want[n] {
				t.Fatalf("move %d: line %d of %d differs, want %d lines", i, n, len(is), len(want))
			}
		}
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// restoredInto moves a vault by a backup.
func restoredInto(t *testing.T, v *cardvault.Vault, keys *cardvault.Keyring, place store.Store, open func(store.Store, uuid.UUID) *cardvault.Vault) *cardvault.Vault {
	t.Helper()
	var stream bytes.Buffer
	made, err := v.Backup(t.Context(), &stream, nil)
	if err == nil {
		err = v.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	restored, err := cardvault.Restore(t.Context(), place, keys, &stream, nil)
	if err != nil {
		t.Fatal(err)
	}
	if restored.Backup.Records != made.Records {
		t.Errorf("%d records of %d", restored.Backup.Records, made.Records)
	}
	return open(place, restored.ID)
}

// movedInto moves a vault that is open in another process, which then neither writes nor reads.
func movedInto(t *testing.T, v *cardvault.Vault, keys *cardvault.Keyring, from, place store.Store, open func(store.Store, uuid.UUID) *cardvault.Vault) *cardvault.Vault {
	t.Helper()
	if _, err := v.Account(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := cardvault.Move(t.Context(), from, place, keys, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := v.CreateAccount(t.Context(), "late", nil); !errors.Is(err, cardvault.ErrMoved) {
		t.Errorf("a write in the former place: %v", err)
	}
	if _, err := v.Account(t.Context()); !errors.Is(err, cardvault.ErrMoved) {
		t.Errorf("a read in the former place: %v", err)
	}
	_ = v.Close()
	return open(place, uuid.Nil)
}

// A noSender takes any target, and delivers nothing.
type noSender struct{}

func (noSender) Check(*cardvault.Target) error { return nil }

func (noSender) Send(context.Context, *cardvault.Delivery) (*cardvault.SendResult, error) {
	return nil, errors.New("nothing is sent")
}

// fillMoved makes accounts with tokens and all else that lists show.
func fillMoved(t *testing.T, v *cardvault.Vault) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"one", "two"} {
		_, err := v.CreateAccount(ctx, name, nil)
		must(err)
	}
	for a, err := range v.AllAccounts(ctx, nil) {
		must(err)
		in := v.In(a.ID)
		_, err = in.CreateMerchant(ctx, "shop", nil)
		must(err)
		_, err = in.CreateAPIKey(ctx, "root", cardvault.AllScopes(), nil)
		must(err)
		gone, err := in.CreateAPIKey(ctx, "gone", cardvault.AllScopes(), nil)
		must(err)
		must(in.DeleteAPIKey(ctx, gone.ID))
		_, err = in.CreateWebhook(ctx, "https://shop.example/hook", nil)
		must(err)
		_, err = in.CreateSession(ctx, nil)
		must(err)
		for n := range 120 {
			o := &cardvault.ImportOptions{BusinessKey: fmt.Sprint("order ", n%40)}
			if n%5 == 0 {
				o.TokenTTL = 24 * time.Hour
			}
			number := []string{"4242424242424242", "5555555555554444", "378282246310005"}[n%3]
			token, err := in.Import(ctx, cardvault.Card{PAN: card.NewPAN([]byte(number)), Expiry: card.Expiry{Month: 1 + n%12, Year: 2090}, Name: card.NewName([]byte("Jane Roe"))}, o)
			must(err)
			if n%10 == 9 {
				must(in.Delete(ctx, token.ID))
			}
		}
	}
	_, err := v.RotateKeys(ctx, nil)
	must(err)
	must(v.Drain(ctx))
}

// contentOf returns a line for each thing that a vault answers.
func contentOf(t *testing.T, v *cardvault.Vault) (lines []string) {
	t.Helper()
	ctx := t.Context()
	add := func(what string, of any, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		text, err := json.Marshal(of)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, what+" "+string(text))
	}
	var accounts []*cardvault.Account
	for a, err := range v.AllAccounts(ctx, nil) {
		add("account", a, err)
		accounts = append(accounts, a)
	}
	for _, a := range accounts {
		in := v.In(a.ID)
		for m, err := range in.AllMerchants(ctx, nil) {
			add("merchant", []any{m.ID, m.Name, m.CreatedAt, m.Primary}, err)
		}
		for k, err := range in.AllAPIKeys(ctx, nil) {
			add("API key", []any{k.ID, k.Label, k.CreatedAt, k.Scopes}, err)
		}
		for w, err := range in.AllWebhooks(ctx, nil) {
			add("webhook", []any{w.ID, w.URL, w.CreatedAt}, err)
			d, err := in.ListDeliveries(ctx, w.ID, nil)
			add("deliveries", d.TotalItems, err)
		}
		for token, err := range in.All(ctx, nil) {
			add("token", token, err)
			if err := in.Use(ctx, token.ID, "test", func(_ context.Context, c *cardvault.UsedCard) error {
				c.PAN.Expose(func(digits []byte) { lines = append(lines, fmt.Sprintf("%x", sha256.Sum256(digits))) })
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		stale := false
		for _, o := range []*cardvault.TokenListOptions{
			nil, {Ascending: true, Page: 2, Limit: 7}, {BusinessKey: "order 3"}, {BusinessKey: "none"},
			{Scheme: []card.Scheme{card.VISA}}, {Scheme: []card.Scheme{card.AmericanExpress, card.Mastercard}}, {AccountNumberStale: &stale},
		} {
			list, err := in.List(ctx, o)
			add("list", list, err)
		}
	}
	return lines
}
