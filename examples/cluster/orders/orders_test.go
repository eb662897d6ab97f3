//go:build unix

package orders

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store/pgstore"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestMain(m *testing.M) { os.Exit(postgres.Main(m).Run()) }

var postgres = realtest.SharedPostgreSQL(nil)

// patience limits the wait for anything in progress.
const patience = 5 * time.Minute

var visa = cardvault.Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2090}}

// A world holds the state that outlives a process: two databases and a key.
type world struct {
	t             *testing.T
	orders, vault string      // URLs
	key           string      // path
	lost          atomic.Bool // the next answer of the sink
}

func newWorld(t *testing.T) *world {
	p := postgres.Get(t)
	n := time.Now().UnixNano()
	w := &world{t: t, key: filepath.Join(t.TempDir(), "vault.key")}
	for _, db := range []struct {
		name string
		url  *string
	}{{"orders", &w.orders}, {"vault", &w.vault}} {
		name := fmt.Sprint(db.name, n)
		p.SQL(t, "postgres", "CREATE DATABASE "+name)
		*db.url = p.URL(name)
	}
	w.exec(Schema)

	pool := w.pool(w.vault)
	defer pool.Close()
	if err := pgstore.Migrate(t.Context(), pool, nil); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) pool(url string) *pgxpool.Pool {
	w.t.Helper()
	pool, err := pgxpool.New(w.t.Context(), url)
	if err != nil {
		w.t.Fatal(err)
	}
	return pool
}

func (w *world) exec(sql string) {
	w.t.Helper()
	pool := w.pool(w.orders)
	defer pool.Close()
	if _, err := pool.Exec(w.t.Context(), sql); err != nil {
		w.t.Fatal(err)
	}
}

// A forgetful sink takes an event, and loses its own answer if the world says so.
type forgetful struct {
	*Sink
	*world
}

func (f *forgetful) Event(ctx context.Context, e *cardvault.Event) error {
	if err := f.Sink.Event(ctx, e); err != nil || !f.lost.CompareAndSwap(true, false) {
		return err
	}
	return errors.New("lost")
}

// process is one life of the shop. Its end finishes nothing.
func (w *world) process(live func(s *Shop)) {
	w.t.Helper()
	ctx := w.t.Context()
	db, pool := w.pool(w.orders), w.pool(w.vault)
	defer db.Close()
	defer pool.Close()

	st, err := pgstore.New(ctx, pool, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer st.Close()
	keys, err := cardvault.KeyFile(w.key, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	sink := &Sink{DB: db}
	v, err := cardvault.New(ctx, st, keys, &cardvault.Options{Mode: cardvault.Sandbox, Events: &forgetful{sink, w}})
	if err != nil {
		w.t.Fatal(err)
	}
	defer v.Close()
	account, err := v.Account(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	sink.Account = account.ID
	live(&Shop{db, v})
}

// must fails the test for an error.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// passEvents passes events on until an order has its token, and returns the token.
func (w *world) passEvents(s *Shop, order uuid.UUID) (token uuid.UUID) {
	w.t.Helper()
	for end := time.Now().Add(patience); token == uuid.Nil; {
		w.must(s.Vault.Drain(w.t.Context()))
		var t *uuid.UUID
		w.must(s.DB.QueryRow(w.t.Context(), `SELECT token FROM orders WHERE id = $1`, order).Scan(&t))
		if t != nil {
			token = *t
		} else if time.Now().After(end) {
			w.t.Fatal("the order never has its token")
		}
	}
	return token
}

// enter brings the card of an order into the vault, as a program or as a browser does. A
// browser has no further part in it.
func enter(ctx context.Context, s *Shop, order uuid.UUID, browser bool) error {
	if !browser {
		_, err := s.TakeCard(ctx, order, 0, visa)
		return err
	}
	session, err := s.Session(ctx, order)
	if err != nil {
		return err
	}
	_, err = s.Vault.Tokenize(ctx, session.ID, visa)
	return err
}

// TestCrashes ends the process after each step. The next process finds or finishes the
// work.
func TestCrashes(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	for _, browser := range []bool{false, true} {
		for crash := range 6 {
			order := uuid.New()
			var token uuid.UUID
			steps := []func(s *Shop){
				func(s *Shop) { w.must(s.Order(ctx, order, 1999)) },
				func(s *Shop) { w.must(enter(ctx, s, order, browser)) },
				func(s *Shop) {
					if !browser { // the answer was lost: the shopper sends the form again
						w.must(enter(ctx, s, order, browser))
					}
				},
				func(s *Shop) { w.lost.Store(true); token = w.passEvents(s, order) },
				func(s *Shop) {
					_, err := s.place(ctx, order)
					w.must(err)
				},
				func(s *Shop) { w.must(s.Recover(ctx)) },
			}
			for _, part := range [][]func(*Shop){steps[:crash+1], steps[crash+1:]} {
				w.process(func(s *Shop) {
					for _, step := range part {
						step(s)
					}
				})
			}

			w.process(func(s *Shop) {
				w.must(s.Vault.Drain(ctx)) // the refused event
				var kept bool
				w.must(s.DB.QueryRow(ctx, `SELECT kept FROM orders WHERE id = $1`, order).Scan(&kept))
				p, err := s.Vault.List(ctx, &cardvault.TokenListOptions{BusinessKey: order.String()})
				w.must(err)
				if !kept || p.TotalItems != 1 || p.Items[0].ID != token || !p.Items[0].ExpiresAt.IsZero() || w.passEvents(s, order) != token {
					t.Errorf("browser %v, crash after step %d: kept %v, the token of the order is %v, the vault has %+v", browser, crash+1, kept, token, p.Items)
				}
			})
		}
	}
}

// TestProvisional: the last of two cards counts. The card of an abandoned order is deleted
// with its token. An order whose card is deleted cannot be placed.
func TestProvisional(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.process(func(s *Shop) {
		order := uuid.New()
		if err := s.Place(ctx, order); !errors.Is(err, ErrNoCard) {
			t.Errorf("an unknown order is placed: %v", err)
		}
		w.must(s.Order(ctx, order, 1999))
		w.must(s.Order(ctx, order, 1999))
		first, err := s.TakeCard(ctx, order, 0, visa)
		w.must(err)
		if again := w.passEvents(s, order); again != first.ID || first.ExpiresAt.Sub(first.CreatedAt) != Provisional {
			t.Errorf("token %v, want %+v", again, first)
		}
		w.must(enter(ctx, s, order, true))
		w.must(s.Vault.Drain(ctx))
		last := w.passEvents(s, order)
		if last == first.ID {
			t.Error("the first of two cards counts")
		}
		w.must((&Sink{DB: s.DB}).Event(ctx, &cardvault.Event{Type: receive.TokenCreated, Sequence: 1, TokenID: first.ID, Token: first}))
		if w.passEvents(s, order) != last {
			t.Error("a repeated event counts")
		}
		w.must(s.Vault.Delete(ctx, first.ID))
		w.must(s.Vault.Drain(ctx))
		if w.passEvents(s, order) != last {
			t.Error("the deletion of another card counts")
		}

		// Expired cards are deleted.
		_, err = s.place(ctx, order)
		w.must(err)
		w.must(s.Vault.Delete(ctx, last))
		w.must(s.Recover(ctx))
		if err := s.Place(ctx, order); !errors.Is(err, ErrNoCard) {
			t.Errorf("an order with a deleted card is placed: %v", err)
		}
		w.must(s.Vault.Drain(ctx))

		// The same, with the event before the look-up.
		w.must(enter(ctx, s, order, true))
		next := w.passEvents(s, order)
		_, err = s.place(ctx, order)
		w.must(err)
		w.must(s.Vault.Delete(ctx, next))
		w.must(s.Vault.Drain(ctx))
		w.must(enter(ctx, s, order, true))
		final := w.passEvents(s, order)
		w.must(s.Place(ctx, order))
		w.must(s.Place(ctx, order))

		w.must(enter(ctx, s, order, true))
		w.must(s.Vault.Drain(ctx))
		if w.passEvents(s, order) != final {
			t.Error("a card counts although the order was placed before")
		}
	})
}

// TestStrangers: an order accepts neither a card of another account with the order's id, nor
// a card of the shop with another business key.
func TestStrangers(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.process(func(s *Shop) {
		order := uuid.New()
		w.must(s.Order(ctx, order, 1999))
		other, err := s.Vault.CreateAccount(ctx, "other", nil)
		w.must(err)
		strange, err := (&Shop{s.DB, s.Vault.In(other.ID)}).TakeCard(ctx, order, 0, visa)
		w.must(err)
		lost, err := s.Vault.Import(ctx, visa, &cardvault.ImportOptions{BusinessKey: "no order", ImportProvider: provider})
		w.must(err)
		own, err := s.Vault.Account(ctx)
		w.must(err)
		sink := &Sink{DB: s.DB, Account: own.ID}
		w.must(sink.Event(ctx, &cardvault.Event{Type: receive.TokenCreated, Sequence: 1, Account: other.ID, TokenID: strange.ID, Token: strange}))
		w.must(sink.Event(ctx, &cardvault.Event{Type: receive.TokenCreated, Sequence: 2, Account: own.ID, TokenID: lost.ID, Token: lost}))

		var none bool
		w.must(s.DB.QueryRow(ctx, `SELECT token IS NULL FROM orders WHERE id = $1`, order).Scan(&none))
		if !none {
			t.Error("a stranger's card is in the order")
		}
		right, err := s.TakeCard(ctx, order, 0, visa)
		w.must(err)
		if w.passEvents(s, order) != right.ID {
			t.Error("the order does not have the card of the shop")
		}
	})
}
