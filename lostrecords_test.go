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
	for _, kind := range kinds {
		changeLast(t, dir, kind, nil)
	}
}

// changeLast changes the last row of a kind in a file, or without change deletes it, and leaves what the
// indexes say of it.
func changeLast(t *testing.T, dir string, kind byte, change func(row []byte)) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(dir, "cardvault.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		rows := tx.Bucket([]byte{'r', 'o', 'w', 's', kind})
		last, row := rows.Cursor().Last()
		if change == nil {
			return rows.Delete(bytes.Clone(last))
		}
		row = bytes.Clone(row)
		change(row)
		return rows.Put(bytes.Clone(last), row)
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

// TestFlippedAccounts: a token whose row names another account after a flipped bit is damaged for a search
// by its business key, and not absent. Searches for other tokens, and by another account, are right.
func TestFlippedAccounts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &furnished{t: t, dir: filepath.Join(t.TempDir(), "vault"), opts: cardvault.Options{Mode: cardvault.Sandbox}}
		v, err := f.open()
		f.must(err)
		ctx := t.Context()
		var accounts []uuid.UUID
		for _, name := range []string{"one", "two"} {
			a, err := v.CreateAccount(ctx, name, nil)
			f.must(err)
			accounts = append(accounts, a.ID)
			_, err = v.In(a.ID).Import(ctx, visa, &cardvault.ImportOptions{BusinessKey: "other"})
			f.must(err)
		}
		_, err = v.In(accounts[0]).Import(ctx, visa, &cardvault.ImportOptions{BusinessKey: "order"})
		f.must(err)
		f.must(v.Close())
		const columns = 3 // bytes of a row before its account
		for name, wrong := range map[string]uuid.UUID{"existing": accounts[1], "unknown": flipped(accounts[0])} {
			changeLast(t, f.dir, tokenKind, func(row []byte) {
				copy(row[columns:], wrong[:])
			})
			v, err := f.open()
			f.must(err)
			found := func(account uuid.UUID, key string) (*cardvault.Page[*cardvault.Token], error) {
				return v.In(account).List(ctx, &cardvault.TokenListOptions{BusinessKey: key})
			}
			if page, err := found(accounts[0], "order"); !errors.Is(err, cardvault.ErrDamaged) || page == nil || page.TotalItems != 1 || len(page.Items) > 0 {
				t.Errorf("%s: the token that is damaged: %+v, %v", name, page, err)
			}
			for _, err := range v.In(accounts[0]).All(ctx, &cardvault.TokenListOptions{BusinessKey: "order"}) {
				if !errors.Is(err, cardvault.ErrDamaged) {
					t.Errorf("%s: All: %v", name, err)
				}
			}
			for _, a := range accounts {
				if page, err := found(a, "other"); err != nil || page.TotalItems != 1 || len(page.Items) != 1 {
					t.Errorf("%s: another token of account %v: %+v, %v", name, a, page, err)
				}
			}
			if page, err := found(accounts[1], "order"); err != nil || page.TotalItems != 0 {
				t.Errorf("%s: the other account learns of the token: %+v, %v", name, page, err)
			}
			f.must(v.Close())
		}
	})
}

// flipped returns an id with one bit flipped.
func flipped(id uuid.UUID) uuid.UUID {
	id[9] ^= 1 << 4
	return id
}
