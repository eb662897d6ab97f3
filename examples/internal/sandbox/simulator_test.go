package sandbox

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// TestReports: the account updater reports what a caller has decided, of a card that it knows
// at once, and of a new one within three minutes.
func TestReports(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sim, err := simnet.New(t.Context(), memstore.New(), nil)
		if err != nil {
			t.Fatal(err)
		}
		around := &Sandbox{opts: Options{Network: sim, UpdaterPeriod: time.Hour, Log: slog.New(slog.DiscardHandler)}, recent: new(events), kept: Checkpoints(t.TempDir())}
		options := around.Vault()
		options.PPAN, options.Webhooks = nil, nil // they reach out of the bubble
		keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
		if err != nil {
			t.Fatal(err)
		}
		v, err := cardvault.New(t.Context(), memstore.New(), keys, options)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		key, err := v.CreateAPIKey(t.Context(), "test", cardvault.AllScopes(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- v.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()

		control := sim.Control()
		handler := newSimulator(httpapi.APIKeys(v), v, control, around.opts.Log)
		report := func(id uuid.UUID, outcome string, want int) {
			t.Helper()
			r := httptest.NewRequest(http.MethodPost, "/simulator/tokens/"+id.String()+"/report/"+outcome, nil)
			r.Header.Set("X-Api-Key", key.Text.Text())
			w := httptest.NewRecorder()
			if handler.ServeHTTP(w, r); w.Code != want {
				t.Errorf("%s: %d %s", outcome, w.Code, w.Body)
			}
		}
		imports := func(of card.Scheme, n int) uuid.UUID {
			t.Helper()
			token, err := v.Import(ctx, cardvault.Card{PAN: simnet.ScenarioPAN(of, n), Expiry: card.Expiry{Month: 12, Year: 2080}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return token.ID
		}
		get := func(id uuid.UUID) *cardvault.Token {
			t.Helper()
			token, err := v.Get(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			return token
		}
		soon, submitted := func() { time.Sleep(time.Second) }, func() { time.Sleep(3*time.Minute + 5*time.Second) }

		soon() // the first round of the updater has ended
		// JCB cards have no network token here, and so no payment account reference.
		for _, of := range []card.Scheme{card.VISA, card.JCB} {
			updated, renewed, closed, asked, early := imports(of, 0), imports(of, 1), imports(of, 2), imports(of, 3), imports(of, 4)
			soon()
			report(early, "closed", 202)
			submitted()
			if got := get(early); got.Status != cardvault.StatusInvalid {
				t.Errorf("%v: the card that was new is %v", of, got.Status)
			}
			report(updated, "updated", 202)
			report(renewed, "expiry_changed", 202)
			report(closed, "closed", 202)
			before := *get(asked)
			for _, outcome := range []string{"contact_cardholder", "no_match", "opted_out"} {
				report(asked, outcome, 202)
			}
			soon()
			if got := get(updated); got.LastFour != "4242" || got.Expiry.Year != 2084 || got.AccountNumberStale {
				t.Errorf("%v: updated: %v %v", of, got.MaskedAccountNumber, got.Expiry)
			}
			if got := get(renewed); got.Expiry.Year != 2083 {
				t.Errorf("%v: expiry changed: %v", of, got.Expiry)
			}
			if got := get(closed); got.Status != cardvault.StatusInvalid || got.InvalidatedAt.IsZero() {
				t.Errorf("%v: closed: %v", of, got.Status)
			}
			if got := get(asked); !got.UpdatedAt.Equal(before.UpdatedAt) {
				t.Errorf("%v: an outcome that changes nothing: %+v", of, got)
			}
			report(updated, "perhaps", 404)
		}

		// Of a card whose number the scheme has replaced, the updater has the new number.
		stale := imports(card.VISA, 5)
		submitted()
		if err := control.Replace(ctx, stale); err != nil {
			t.Fatal(err)
		}
		soon()
		if !get(stale).AccountNumberStale {
			t.Error("the number is not stale")
		}
		report(stale, "updated", 202)
		soon()
		if got := get(stale); got.AccountNumberStale {
			t.Errorf("updated, the card is still stale: %+v", got)
		}

		invalid := imports(card.JCB, 6)
		submitted()
		report(invalid, "closed", 202)
		soon()
		report(invalid, "closed", 409)
	})
}
