package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
)

// loseRows takes the last row of a kind out of a file, and leaves what the indexes say of it.
func loseRows(t *testing.T, dir string, kinds ...byte) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(dir, "cardvault.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, kind := range kinds {
			rows := tx.Bucket([]byte{'r', 'o', 'w', 's', kind})
			last, _ := rows.Cursor().Last()
			if err := rows.Delete(bytes.Clone(last)); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestLostRecords: a record that was lost is damage to calls that name it, and to no other, until a
// repair. An id that was never issued, or whose record was deleted, is not found.
func TestLostRecords(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &furnished{t: t, dir: filepath.Join(t.TempDir(), "vault")}
		f.opts = cardvault.Options{Mode: cardvault.Sandbox, Network: tillNetwork{new(scripted), new(till)}, Webhooks: &post{t: t}, Purposes: []string{"test"}}
		v, err := f.open()
		f.must(err)
		ctx := t.Context()
		m, err := v.PrimaryMerchant(ctx)
		f.must(err)
		_, err = v.RotatePaymentSecret(ctx, m.ID, nil)
		f.must(err)

		// The second of each is lost.
		type pair [2]func(context.Context, *cardvault.Vault) error
		var token, card, order, key, text, merchant, hook, session, account, payment pair
		var tokens [2]uuid.UUID
		for i := range 2 {
			business := []string{"first", "second"}[i]
			a, err := v.CreateAccount(ctx, business, nil)
			f.must(err)
			one, err := v.Import(ctx, visa, &cardvault.ImportOptions{BusinessKey: business})
			f.must(err)
			tokens[i] = one.ID
			f.must(v.Drain(ctx))
			paid, err := v.RequestPaymentData(ctx, tokens[0], purchase)
			f.must(err)
			k, err := v.CreateAPIKey(ctx, business, cardvault.AllScopes(), nil)
			f.must(err)
			shop, err := v.CreateMerchant(ctx, business, nil)
			f.must(err)
			w, err := v.CreateWebhook(ctx, url, nil)
			f.must(err)
			token[i] = func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Get(ctx, one.ID)) }
			card[i] = func(ctx context.Context, v *cardvault.Vault) error {
				return v.Use(ctx, one.ID, "test", func(context.Context, *cardvault.UsedCard) error { return nil })
			}
			order[i] = func(ctx context.Context, v *cardvault.Vault) error {
				page, err := v.List(ctx, &cardvault.TokenListOptions{BusinessKey: business})
				if err == nil && len(page.Items) == 0 {
					err = cardvault.ErrNotFound
				}
				return err
			}
			key[i] = func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.APIKey(ctx, k.ID)) }
			text[i] = func(ctx context.Context, v *cardvault.Vault) error {
				return errorOf(v.Authenticate(ctx, k.Text.Text()))
			}
			merchant[i] = func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Merchant(ctx, shop.ID)) }
			hook[i] = func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.Webhook(ctx, w.ID)) }
			account[i] = func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.In(a.ID).Account(ctx)) }
			payment[i] = func(ctx context.Context, v *cardvault.Vault) error {
				return errorOf(v.PaymentData(ctx, tokens[0], paid.ID))
			}
		}
		var opened []cardvault.SessionID
		for range 2 { // row keys of sessions have no order: one of the two is lost
			s, err := v.CreateSession(ctx, nil)
			f.must(err)
			opened = append(opened, s.ID)
		}
		gone, err := v.Import(ctx, visa, nil)
		f.must(err)
		f.must(v.Delete(ctx, gone.ID))
		f.must(v.Close())

		const accountKind, merchantKind, keyKind, sessionKind, paymentKind, hookKind = 2, 3, 4, 6, 15, 20
		loseRows(t, f.dir, accountKind, merchantKind, keyKind, tokenKind, sessionKind, paymentKind, hookKind)
		if v, err = f.open(); err != nil {
			t.Fatal(err)
		}
		var lost int
		for i, id := range opened {
			session[i] = func(ctx context.Context, v *cardvault.Vault) error { return errorOf(v.SessionStatus(ctx, id)) }
			if session[i](ctx, v) != nil {
				lost = i
			}
		}
		session[0], session[1] = session[1-lost], session[lost]

		all := map[string]pair{
			"token": token, "card": card, "business key": order, "API key": key, "text of API key": text, "merchant": merchant,
			"webhook": hook, "session": session, "account": account, "payment data": payment,
		}
		for range 2 {
			for name, one := range all {
				if err := one[0](ctx, v); err != nil {
					t.Errorf("%s beside the lost one: %v", name, err)
				}
				if err := one[1](ctx, v); !errors.Is(err, cardvault.ErrDamaged) || errors.Is(err, cardvault.ErrNotFound) {
					t.Errorf("%s that was lost: %v", name, err)
				}
			}
			for name, id := range map[string]uuid.UUID{"deleted": gone.ID, "unknown": uuid.New()} {
				if _, err := v.Get(ctx, id); !errors.Is(err, cardvault.ErrNotFound) || errors.Is(err, cardvault.ErrDamaged) {
					t.Errorf("a token that is %s: %v", name, err)
				}
			}
		}
		if err := token[1](ctx, v); len(cardvault.Damaged(err)) != 1 || cardvault.Damaged(err)[0] != (cardvault.DamagedRecord{Kind: "token", ID: tokens[1]}) {
			t.Errorf("the error names %v", cardvault.Damaged(err))
		}

		report, err := v.Repair(ctx, nil)
		if err != nil || !report.Mended || len(report.Found) == 0 {
			t.Errorf("Repair = %+v, %v", report, err)
		}
		for name, one := range all {
			if err := one[1](ctx, v); !errors.Is(err, cardvault.ErrNotFound) && !errors.Is(err, cardvault.ErrUnauthenticated) {
				t.Errorf("%s after Repair: %v", name, err)
			}
		}
		f.must(v.Close())
	})
}
