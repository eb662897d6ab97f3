// Package orders is a shop with a database of its own beside the vault's. A row of an order
// and a token share no transaction, and need none:
//
//  1. The order comes first: [Shop.Order] inserts it.
//  2. The card is stored under the id of the order as its business key: by [Shop.TakeCard], or
//     in a session of [Shop.Session] if a browser enters it, which cannot change the key. The
//     token is provisional: it expires after [Provisional].
//  3. The vault writes the event of a token with the token, and passes it to [Sink] until that
//     has taken it. The sink writes the token into the row of its order.
//  4. [Shop.Place] places an order that has a token, and then lifts the expiry of the token.
//
// A process that dies between any two steps leaves something that heals:
//
//	after 1        an order without a card: the shopper enters it again, or never
//	during 2       a token that the order lacks: the same call returns it again
//	after 2        an order that lacks its token: the next process passes the event on
//	at the end of 3  an event that was not taken: it comes again and writes the same
//	during 4       a placed order whose token would expire: [Shop.Recover] goes on
//
// Unfinished work expires: the token is deleted, and its event takes it out of the order. A
// sink receives the events of all accounts, and handles only the shop's: another account
// may use the id of an order as a business key.
package orders

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/receive"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Provisional limits how long the card of an unplaced order is kept.
const Provisional = time.Hour

// provider marks the tokens whose business keys are ids of orders.
const provider = "orders"

// Schema makes the table of the orders, unless it exists.
const Schema = `CREATE TABLE IF NOT EXISTS orders (
	id       uuid PRIMARY KEY,
	cents    bigint NOT NULL,
	token    uuid UNIQUE,                     -- in the vault
	sequence bigint NOT NULL DEFAULT 0,       -- of the event that has brought it
	placed   boolean NOT NULL DEFAULT false,
	kept     boolean NOT NULL DEFAULT false   -- the expiry of the token is lifted
)`

// ErrNoCard is returned by Place for an order that has no card, or whose card has expired.
var ErrNoCard = errors.New("orders: order has no card")

// A Sink writes tokens into the rows of their orders. It is made before the vault, as its
// Options.Events, and its Account is set before Vault.Run or Vault.Drain is called.
type Sink struct {
	DB      *pgxpool.Pool
	Account uuid.UUID // of the shop, from Vault.Account: the events of others change nothing
}

var _ cardvault.EventSink = (*Sink)(nil)

// Event implements [cardvault.EventSink]. It does the same again for an event that comes again.
// Of several cards for an order the last one counts, until the order is placed.
func (s *Sink) Event(ctx context.Context, e *cardvault.Event) error {
	if e.Account != s.Account {
		return nil
	}
	if e.Type == receive.TokenDeleted {
		_, err := s.DB.Exec(ctx, `UPDATE orders SET token = NULL, placed = placed AND kept WHERE token = $1`, e.TokenID)
		return err
	}
	if e.Type != receive.TokenCreated || e.Token.ImportProvider != provider {
		return nil
	}
	order, err := uuid.Parse(e.Token.BusinessKey)
	if err != nil {
		return nil // a repetition would find no order either
	}
	_, err = s.DB.Exec(ctx, `UPDATE orders SET token = $1, sequence = $2 WHERE id = $3 AND sequence < $2 AND NOT placed`,
		e.TokenID, int64(e.Sequence), order)
	return err
}

// A Shop takes orders.
type Shop struct {
	DB    *pgxpool.Pool
	Vault *cardvault.Vault // with a Sink on the same database
}

// Order inserts an order, unless it is there.
func (s *Shop) Order(ctx context.Context, id uuid.UUID, cents int64) error {
	_, err := s.DB.Exec(ctx, `INSERT INTO orders (id, cents) VALUES ($1, $2) ON CONFLICT DO NOTHING`, id, cents)
	return err
}

// TakeCard stores the card of an order. Called again with the same card, it returns the same
// token. Each other card is another attempt.
func (s *Shop) TakeCard(ctx context.Context, order uuid.UUID, attempt int, c cardvault.Card) (*cardvault.Token, error) {
	return s.Vault.Import(ctx, c, &cardvault.ImportOptions{
		BusinessKey: order.String(), ImportProvider: provider, TokenTTL: Provisional,
		IdempotencyKey: fmt.Sprintf("order:%v:%d", order, attempt),
	})
}

// Session makes a session in which a browser enters the card of an order. It needs no
// idempotency key: an unused session expires by itself.
func (s *Shop) Session(ctx context.Context, order uuid.UUID) (*cardvault.CreatedSession, error) {
	return s.Vault.CreateSession(ctx, &cardvault.SessionOptions{BusinessKey: order.String(), ImportProvider: provider, TokenTTL: Provisional})
}

// Place places an order that has a card. It can be called again.
func (s *Shop) Place(ctx context.Context, order uuid.UUID) error {
	token, err := s.place(ctx, order)
	if err != nil {
		return err
	}
	return s.keep(ctx, order, token)
}

// place records that an order is placed: the intention is stored before the act.
func (s *Shop) place(ctx context.Context, order uuid.UUID) (token uuid.UUID, err error) {
	err = s.DB.QueryRow(ctx, `UPDATE orders SET placed = true WHERE id = $1 AND token IS NOT NULL RETURNING token`, order).Scan(&token)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNoCard
	}
	return token, err
}

// keep lifts the expiry of the token of an order that is placed.
func (s *Shop) keep(ctx context.Context, order, token uuid.UUID) error {
	_, err := s.Vault.Update(ctx, token, cardvault.TokenUpdate{ExpiresAt: new(time.Time)})
	if errors.Is(err, cardvault.ErrNotFound) { // it had expired: the order is open again
		_, err = s.DB.Exec(ctx, `UPDATE orders SET placed = false, token = NULL WHERE id = $1 AND token = $2`, order, token)
		return errors.Join(ErrNoCard, err)
	}
	if err == nil {
		_, err = s.DB.Exec(ctx, `UPDATE orders SET kept = true WHERE id = $1`, order)
	}
	return err
}

// Recover finishes what a process that died has begun. A program calls it when it starts,
// and now and then.
func (s *Shop) Recover(ctx context.Context) error {
	rows, err := s.DB.Query(ctx, `SELECT id, token FROM orders WHERE placed AND NOT kept AND token IS NOT NULL LIMIT 1000`)
	if err != nil {
		return err
	}
	type begun struct{ ID, Token uuid.UUID }
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[begun])
	if err != nil {
		return err
	}

	var errs []error
	for _, o := range all {
		if err := s.keep(ctx, o.ID, o.Token); !errors.Is(err, ErrNoCard) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
