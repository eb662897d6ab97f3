package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/familytest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// familySize returns the size of families in tests. It is CARDVAULT_FAMILY, or a default
// that takes a few seconds.
func familySize(t *testing.T) int {
	t.Helper()
	text := os.Getenv("CARDVAULT_FAMILY")
	if text == "" {
		return 4000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2001 {
		t.Fatal("CARDVAULT_FAMILY must be a number above 2000")
	}
	return n
}

// TestFamilies: ending a family takes the same time, however many records are below it.
func TestFamilies(t *testing.T) {
	t.Run("Mem", func(t *testing.T) {
		familytest.Run(t, func(testing.TB) store.Store { return memstore.New() }, 4000)
	})
	t.Run("Bolt", func(t *testing.T) {
		familytest.Run(t, func(t testing.TB) store.Store {
			s, err := boltstore.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}, familySize(t))
	})
}

// TestFamiliesWhereStorageIsFull: a large family can be erased even without room to note the
// part that is left.
func TestFamiliesWhereStorageIsFull(t *testing.T) {
	const n = 1100
	refresh := func(ctx context.Context, v *cardvault.Vault, id uuid.UUID) {
		for i := range n { // each leaves an answer, which is deleted with the token
			if _, err := v.RefreshSession(ctx, id, &cardvault.CallOptions{IdempotencyKey: strconv.Itoa(i)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("Deleted", func(t *testing.T) {
		s := &cramped{Store: memstore.New()}
		v := vaultOn(t, s)
		token := imported(t, v)
		refresh(t.Context(), v, token.ID)
		root, _ := keyWithBelow(t, v, n)
		s.full = true
		if err := v.DeleteAPIKey(t.Context(), root.ID); err != nil {
			t.Error(err)
		}
		if err := v.Delete(t.Context(), token.ID); err != nil {
			t.Error(err)
		}
		if _, err := v.Authenticate(t.Context(), root.Text.Text()); !errors.Is(err, cardvault.ErrUnauthenticated) {
			t.Errorf("a revoked key: %v", err)
		}
		if _, err := v.Get(t.Context(), token.ID); !errors.Is(err, cardvault.ErrNotFound) {
			t.Errorf("a deleted token: %v", err)
		}
		if keys, err := v.ListAPIKeys(t.Context(), nil); err != nil || keys.TotalItems != 0 {
			t.Errorf("%d keys are left, %v", keys.TotalItems, err)
		}
	})
	t.Run("Lapsed", func(t *testing.T) {
		inLab(t, nil, func(l *lab) {
			id := dying(l, 60)
			refresh(l.Context(), l.Vault, id)
			l.store.rests(&cramped{Store: l.store.on(), full: true})
			l.pass(2 * time.Minute)
			l.drain()
			l.must(l.store.View(l.Context(), func(tx store.ReadTx) error {
				tokens, err := tx.Scan(kindToken, uuid.Nil, 1)
				answers, err2 := tx.Scan(kindAnswer, uuid.Nil, n)
				if len(tokens)+len(answers) > 0 {
					t.Errorf("%d tokens and %d answers are left", len(tokens), len(answers))
				}
				return errors.Join(err, err2)
			}))
		})
	})
}

// keyWithBelow returns an API key with n others below it, and the texts of these.
func keyWithBelow(t *testing.T, v *cardvault.Vault, n int) (root *cardvault.APIKey, texts []string) {
	t.Helper()
	root, err := v.CreateAPIKey(t.Context(), "root", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.UpdateAccount(t.Context(), cardvault.AccountUpdate{Quotas: cardvault.QuotaUpdate{APIKeys: new(2 * n)}}); err != nil {
		t.Fatal(err)
	}

	all := make([]*cardvault.APIKey, n)
	var next atomic.Int64
	var makers sync.WaitGroup
	for range 20 {
		makers.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				k, err := v.CreateAPIKey(t.Context(), "made", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL, Creator: root.ID})
				if err != nil {
					t.Error(err)
					return
				}
				all[i] = k
			}
		})
	}
	makers.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, k := range all {
		texts = append(texts, k.Text.Text())
	}
	return root, texts
}

// TestFamilyWithDamage: a key that cannot be read is left, and keeps none of the others.
func TestFamilyWithDamage(t *testing.T) {
	s := memstore.New()
	v := vaultOn(t, s)
	root, _ := keyWithBelow(t, v, 1100)
	err := s.Update(t.Context(), func(tx store.Tx) error {
		keys, err := tx.Scan(kindAPIKey, uuid.Nil, 10)
		if err != nil {
			return err
		}
		r := keys[slices.IndexFunc(keys, func(r *store.Record) bool {
			return slices.ContainsFunc(r.Lookup, func(hash []byte) bool { return bytes.HasPrefix(hash, []byte("by")) })
		})].Clone()
		r.Shown[len(r.Shown)-1] ^= 1
		r.Version++
		tx.Put(r)
		return nil
	})
	if err := errors.Join(err, v.DeleteAPIKey(t.Context(), root.ID), v.Drain(t.Context())); err != nil {
		t.Fatal(err)
	}

	if err := s.View(t.Context(), func(tx store.ReadTx) error {
		keys, err := tx.Scan(kindAPIKey, uuid.Nil, 100)
		if len(keys) != 1 {
			t.Errorf("%d keys are left, want the one that is damaged", len(keys))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestPaymentDataQuota: the number of payment data records of a token is limited. Failures
// are dropped first, then records whose JWE has expired. No payment is refused because of
// the limit.
func TestPaymentDataQuota(t *testing.T) {
	opts := &cardvault.Options{Mode: cardvault.Sandbox, PaymentDataRetention: time.Hour, Quotas: cardvault.Quotas{PaymentData: 5}}
	atTill(t, opts, func(till *till) {
		id := till.become(active)
		good := func() *cardvault.PaymentData {
			till.answers(nil)
			p := till.pay(id)
			if !p.Success {
				t.Errorf("no cryptogram: %+v", p.Failures)
			}
			return p
		}
		bad := func() *cardvault.PaymentData {
			till.fails(schemeError("declined"))
			return till.pay(id)
		}
		first := good()
		under := purchase
		under.IdempotencyKey = "failed"
		till.fails(schemeError("declined"))
		_, err := till.RequestPaymentData(till.Context(), id, under)
		till.must(err)
		second := bad()
		third, fourth := good(), good()
		fifth := good()
		till.lists(id, fifth, fourth, third, second, first)
		if _, err := till.RequestPaymentData(till.Context(), id, under); !errors.Is(err, cardvault.ErrNotFound) {
			t.Errorf("a dropped failure is replayed: %v", err)
		}
		sixth := bad()
		till.lists(id, sixth, fifth, fourth, third, first)
		seventh := good()
		till.lists(id, seventh, fifth, fourth, third, first)
		eighth := good() // all records have a JWE
		till.lists(id, eighth, seventh, fifth, fourth, third, first)
		till.pass(2 * time.Hour)
		ninth := good()
		for _, p := range []*cardvault.PaymentData{fourth, fifth, seventh, eighth} {
			p.Encrypted = ""
		}
		till.lists(id, ninth, eighth, seventh, fifth, fourth)
		if n := len(till.stored(kindPaymentJWE)); n > 5 {
			t.Errorf("%d JWEs are stored", n)
		}
	})
}

// A beaten store erases API keys once, between the moment a job finds them and the moment it
// erases them. The job of a key above or below may do the same.
type beaten struct {
	store.Store
	armed atomic.Bool
}

type beatenTx struct {
	store.ReadTx
	found *[]*store.Record
}

func (tx beatenTx) Lookup(kind store.Kind, hash []byte, limit int) (found []*store.Record, err error) {
	found, err = tx.ReadTx.Lookup(kind, hash, limit)
	if kind == kindAPIKey && bytes.HasPrefix(hash, []byte("by")) {
		*tx.found = found
	}
	return found, err
}

func (s *beaten) View(ctx context.Context, fn func(store.ReadTx) error) error {
	var found []*store.Record
	err := s.Store.View(ctx, func(tx store.ReadTx) error { return fn(beatenTx{tx, &found}) })
	if len(found) == 0 || !s.armed.CompareAndSwap(true, false) {
		return err
	}
	return errors.Join(err, s.Update(ctx, func(tx store.Tx) error {
		for _, r := range found {
			tx.Delete(r.Kind, r.ID)
		}
		return nil
	}))
}

// TestFamilyOfTwoJobs: records that two jobs have to erase are erased, whichever job comes
// first.
func TestFamilyOfTwoJobs(t *testing.T) {
	s := &beaten{Store: memstore.New()}
	v := vaultOn(t, s)
	if _, err := v.UpdateAccount(t.Context(), cardvault.AccountUpdate{Quotas: cardvault.QuotaUpdate{APIKeys: new(3000)}}); err != nil {
		t.Fatal(err)
	}
	root, err := v.CreateAPIKey(t.Context(), "root", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	if err != nil {
		t.Fatal(err)
	}
	for range 1800 {
		if _, err := v.CreateAPIKey(t.Context(), "made", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL, Creator: root.ID}); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.DeleteAPIKey(t.Context(), root.ID); err != nil {
		t.Fatal(err)
	}
	s.armed.Store(true)
	if err := v.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keys, err := v.ListAPIKeys(t.Context(), nil); s.armed.Load() || err != nil || keys.TotalItems != 0 {
		t.Errorf("%d keys are left for good, %v", keys.TotalItems, err)
	}
}

// TestFamilyWithAStranger: a foreign record that claims a token as its parent blocks neither
// the deletion of that token nor other deletions.
func TestFamilyWithAStranger(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		ids := []uuid.UUID{dying(l, 60), dying(l, 60), dying(l, 60)}
		for _, id := range ids {
			_, err := l.RefreshSession(l.Context(), id, &cardvault.CallOptions{IdempotencyKey: "answer"})
			l.must(err)
		}
		l.must(l.store.Update(l.Context(), func(tx store.Tx) error {
			tokens, err := tx.Scan(kindToken, uuid.Nil, 3)
			for i, r := range tokens {
				if i != 1 {
					tx.Put(&store.Record{Kind: 3, ID: uuid.New(), Account: r.Account, Parent: r.ID, Version: 1})
				}
			}
			return err
		}))
		l.must(l.Vault.Delete(l.Context(), ids[2]))
		l.pass(2 * time.Minute)
		l.drain()
		if n := len(l.all(kindAnswer)); n > 0 {
			t.Errorf("%d answers are left", n)
		}
		if n := len(l.all(kindToken)); n > 0 {
			t.Errorf("%d tokens are left", n)
		}
	})
}
