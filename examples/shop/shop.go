package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/receive"
	"github.com/google/uuid"
)

const price, currency = 1999, "EUR" // of the one article

// provider marks the tokens whose business keys are ids of orders.
const provider = "shop"

var (
	errNoCard   = errors.New("shop: order has no card yet")
	errDeclined = errors.New("shop: payment was declined")
	errLater    = errors.New("shop: payment may succeed later")
)

const schema = `
CREATE TABLE IF NOT EXISTS orders (
	id TEXT PRIMARY KEY, cents INTEGER NOT NULL,
	token TEXT,                           -- in the vault
	sequence INTEGER NOT NULL DEFAULT 0,  -- of the event that brought it
	attempt INTEGER NOT NULL DEFAULT 0,   -- to pay
	paid INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS sales (order_id TEXT PRIMARY KEY REFERENCES orders, cents INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT;`

type shop struct {
	db    *sql.DB
	vault *cardvault.Vault
	log   *slog.Logger

	account, merchant uuid.UUID // of the shop in the vault
	secret            receive.SharedSecret

	// acquire charges an order once, however often it is called.
	acquire func(ctx context.Context, order uuid.UUID, cents int64, c *receive.Credential) error
}

// acquire stands for the call of an acquirer.
func acquire(context.Context, uuid.UUID, int64, *receive.Credential) error { return nil }

// bootstrap makes what the shop needs, unless it is there.
func (s *shop) bootstrap(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, schema); err != nil {
		return err
	}
	account, err := s.vault.Account(ctx)
	if err != nil {
		return err
	}
	merchant, err := s.vault.EnsureMerchant(ctx, "shop", nil)
	if err != nil {
		return err
	}
	s.account, s.merchant = account.ID, merchant.ID

	if text := os.Getenv("SHOP_API_KEY"); text != "" {
		scopes := []cardvault.Scope{cardvault.ScopeTokensRead}
		if _, err := s.vault.EnsureAPIKey(ctx, cardvault.NewAPIKeyText([]byte(text)), "back office", scopes, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL}); err != nil {
			return err
		}
	}
	return s.loadSecret(ctx)
}

// loadSecret loads the payment secret, which the vault shows once. If a crash kept the shop
// from storing it, another one takes its place. A secret manager is a better place for it.
func (s *shop) loadSecret(ctx context.Context) error {
	var text string
	err := s.db.QueryRowContext(ctx, `SELECT text FROM secrets WHERE name = 'payment'`).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		var made *cardvault.PaymentSecret
		made, err = s.vault.RotatePaymentSecret(ctx, s.merchant, &cardvault.PaymentSecretOptions{ActivateAt: time.Now()})
		if err != nil {
			return err
		}
		text = made.Secret.Text()
		_, err = s.db.ExecContext(ctx, `INSERT INTO secrets VALUES ('payment', ?)`, text)
	}
	s.secret = receive.NewSharedSecret([]byte(text))
	return err
}

// handler returns the shop, and the vault below /vault/.
func (s *shop) handler() (http.Handler, error) {
	api, err := httpapi.NewHandler(s.vault, &httpapi.Options{Logger: s.log})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/vault/", http.StripPrefix("/vault", api))
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		_, err := s.vault.Account(r.Context())
		s.answer(w, errors.Join(err, s.db.PingContext(r.Context())))
	})

	mux.HandleFunc("POST /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		session, err := s.order(r.Context(), r.PathValue("id"))
		if err != nil {
			s.answer(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"session":%q}`, session.ID.UUID())
	})
	mux.HandleFunc("POST /orders/{id}/pay", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, s.pay(r.Context(), r.PathValue("id")))
	})
	return mux, nil
}

// answer answers with the status of an error, and logs what is no fault of the client.
func (s *shop) answer(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	switch {
	case err == nil:
		status = http.StatusNoContent
	case errors.Is(err, sql.ErrNoRows):
		status = http.StatusNotFound
	case errors.Is(err, errNoCard), errors.Is(err, cardvault.ErrIdempotencyInProgress):
		status = http.StatusConflict
	case errors.Is(err, errDeclined):
		status = http.StatusPaymentRequired
	case errors.Is(err, errLater):
		w.Header().Set("Retry-After", "1")
	default:
		s.log.Error("request failed", "error", err)
	}
	w.WriteHeader(status)
}

// order inserts an order, unless it is there, and returns a session for its card.
func (s *shop) order(ctx context.Context, id string) (*cardvault.CreatedSession, error) {
	order, err := uuid.Parse(id)
	if err != nil {
		return nil, sql.ErrNoRows
	}
	if _, err := s.db.ExecContext(ctx, `INSERT INTO orders (id, cents) VALUES (?, ?) ON CONFLICT DO NOTHING`, order, price); err != nil {
		return nil, err
	}
	return s.vault.CreateSession(ctx, &cardvault.SessionOptions{BusinessKey: order.String(), ImportProvider: provider})
}

// Event implements [cardvault.EventSink]: it writes a new token into its order, and takes a
// deleted one out. An event that comes again changes nothing, and neither do events of other
// accounts.
func (s *shop) Event(ctx context.Context, e *cardvault.Event) error {
	if e.Account == s.account && e.Type == receive.TokenDeleted {
		_, err := s.db.ExecContext(ctx, `UPDATE orders SET token = NULL WHERE token = ?`, e.TokenID)
		return err
	}
	if e.Account != s.account || e.Type != receive.TokenCreated || e.Token.ImportProvider != provider {
		return nil
	}
	_, err := s.db.ExecContext(ctx, `UPDATE orders SET token = ?, sequence = ? WHERE id = ? AND sequence < ? AND NOT paid`,
		e.TokenID, int64(e.Sequence), e.Token.BusinessKey, int64(e.Sequence))
	return err
}

// pay pays an order. A call that ends anywhere can be repeated: the vault returns the same
// cryptogram under the same idempotency key, and the acquirer charges an order once.
func (s *shop) pay(ctx context.Context, id string) error {
	order, err := uuid.Parse(id)
	if err != nil {
		return sql.ErrNoRows
	}
	var cents, attempt int64
	var token sql.Null[uuid.UUID]
	var paid bool
	err = s.db.QueryRowContext(ctx, `SELECT cents, token, attempt, paid FROM orders WHERE id = ?`, order).Scan(&cents, &token, &attempt, &paid)
	switch {
	case err != nil || paid:
		return err
	case !token.Valid:
		return errNoCard
	}

	data, err := s.vault.RequestPaymentData(ctx, token.V, cardvault.PaymentRequest{
		Amount: cents, Currency: currency, Reference: order.String(), Merchant: s.merchant,
		IdempotencyKey: fmt.Sprintf("order:%v:%d", order, attempt),
	})
	switch {
	case errors.Is(err, cardvault.ErrNotFound): // deleted, though the event is yet to come
		return errNoCard
	case err != nil:
		return err
	case !data.Success: // the same key would return the same failure
		failed := errDeclined
		if data.Failures[0].Retryable {
			failed = errLater
		}
		_, err := s.db.ExecContext(ctx, `UPDATE orders SET attempt = attempt + 1 WHERE id = ? AND attempt = ?`, order, attempt)
		return errors.Join(fmt.Errorf("%w: %s", failed, data.Failures[0].Code), err)
	}

	credential, err := receive.OpenPaymentData(data.Encrypted, s.secret)
	if err != nil {
		return err
	}
	defer credential.Wipe()
	if err := s.acquire(ctx, order, cents, credential); err != nil {
		return err
	}
	return s.sell(ctx, order, cents)
}

// sell writes in one transaction that an order is paid, and the sale.
func (s *shop) sell(ctx context.Context, order uuid.UUID, cents int64) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after Commit it does nothing
	if _, err := tx.ExecContext(ctx, `UPDATE orders SET paid = 1 WHERE id = ?`, order); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO sales VALUES (?, ?) ON CONFLICT DO NOTHING`, order, cents); err != nil {
		return err
	}
	return tx.Commit()
}
