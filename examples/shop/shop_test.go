package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// A process is one life of a shop in a directory.
type process struct {
	*shop
	t       *testing.T
	http    http.Handler
	log     *bytes.Buffer
	charged []string           // cryptograms that the acquirer has charged
	orders  map[uuid.UUID]bool // charged orders: charging again changes nothing
	lost    error              // the acquirer's answer
}

func live(t *testing.T, dir string, do func(p *process)) {
	t.Helper()
	p := &process{t: t, log: new(bytes.Buffer), orders: map[uuid.UUID]bool{}}
	err := with(t.Context(), dir, slog.New(slog.NewTextHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug})), func(s *shop) (err error) {
		p.shop = s
		s.acquire = func(_ context.Context, order uuid.UUID, cents int64, c *receive.Credential) error {
			if !p.orders[order] {
				c.Cryptogram.Expose(func(value []byte) { p.charged = append(p.charged, string(value)) })
			}
			p.orders[order] = true
			if cents != price || c.Number.IsZero() {
				t.Errorf("charged %d cents", cents)
			}
			return p.lost
		}
		p.http, err = s.handler()
		if err == nil {
			do(p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// want makes a request and checks its status.
func (p *process) want(status int, method, path string, header ...string) string {
	p.t.Helper()
	r, w := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	p.http.ServeHTTP(w, r)
	if w.Code != status {
		p.t.Errorf("%s %s: status %d, want %d: %s", method, path, w.Code, status, w.Body)
	}
	return w.Body.String()
}

// enter takes an order whose card is entered in its session, as from a browser, and does
// the background work.
func (p *process) enter(order, number string) {
	p.t.Helper()
	text := strings.TrimSuffix(strings.TrimPrefix(p.want(http.StatusOK, "POST", "/orders/"+order), `{"session":"`), `"}`)
	id, err := uuid.Parse(text)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.vault.Tokenize(p.t.Context(), cardvault.NewSessionID(id), cardOf(number)); err != nil {
		p.t.Fatal(err)
	}
	p.drain()
}

func (p *process) drain() {
	p.t.Helper()
	if err := p.vault.Drain(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) sales() (n int) {
	p.t.Helper()
	if err := p.db.QueryRow(`SELECT count(*) FROM sales`).Scan(&n); err != nil {
		p.t.Fatal(err)
	}
	return n
}

const visa = "4242424242424242"

func cardOf(number string) cardvault.Card {
	return cardvault.Card{PAN: card.NewPAN([]byte(number)), Expiry: card.Expiry{Month: 12, Year: 2090}}
}

// TestCrash: a process ends after each step, and the next one pays with the same
// cryptogram. Nothing of the card is in the shop's database or in a log.
func TestCrash(t *testing.T) {
	dir, order := filepath.Join(t.TempDir(), "data of mine?"), uuid.NewString()
	key := cardvault.GenerateAPIKeyText(cardvault.Sandbox).Text()
	t.Setenv("SHOP_API_KEY", key)
	var charged []string
	live(t, dir, func(p *process) {
		p.want(http.StatusNotFound, "POST", "/orders/4242/pay")
		p.want(http.StatusNotFound, "POST", "/orders/"+order+"/pay")
		p.want(http.StatusOK, "POST", "/orders/"+order)
		p.want(http.StatusConflict, "POST", "/orders/"+order+"/pay")
	})
	live(t, dir, func(p *process) {
		if _, err := p.db.Exec(`DELETE FROM secrets`); err != nil { // as if it had ended before storing that
			t.Fatal(err)
		}
	})
	live(t, dir, func(p *process) { p.enter(order, visa) })
	live(t, dir, func(p *process) {
		p.lost = errors.New("answer was lost")
		p.want(http.StatusServiceUnavailable, "POST", "/orders/"+order+"/pay")
		charged = p.charged
		vaulttest.AssertNoLeak(t, append(charged, visa, p.secret.Text(), key), p.log)
	})

	live(t, dir, func(p *process) {
		for range 2 {
			p.want(http.StatusNoContent, "POST", "/orders/"+order+"/pay")
		}
		if len(charged) != 1 || len(p.charged) != 1 || p.charged[0] != charged[0] || p.sales() != 1 {
			t.Errorf("charged %d and %d times, the same: %v; %d sales", len(charged), len(p.charged), p.charged[0] == charged[0], p.sales())
		}
		if tokens := p.want(http.StatusOK, "GET", "/vault/tokens", "x-api-key", key); !strings.Contains(tokens, order) {
			t.Errorf("the back office reads %s", tokens)
		}
	})
	orders, err := os.ReadFile(filepath.Join(dir, "shop.db"))
	if err != nil {
		t.Fatal(err)
	}
	vaulttest.AssertNoLeak(t, append(charged, visa), orders)
}

// TestDeclined: an order whose first card is declined can be paid with another card, or
// later with the same card if its scheme was unreachable.
func TestDeclined(t *testing.T) {
	live(t, t.TempDir(), func(p *process) {
		order := uuid.NewString()
		simnet.ScenarioPAN(card.VISA, 40).Expose(func(digits []byte) { p.enter(order, string(digits)) })
		for range 2 {
			p.want(http.StatusPaymentRequired, "POST", "/orders/"+order+"/pay")
		}
		p.enter(order, visa)
		p.want(http.StatusNoContent, "POST", "/orders/"+order+"/pay")

		order = uuid.NewString()
		simnet.ScenarioPAN(card.VISA, 44).Expose(func(digits []byte) { p.enter(order, string(digits)) })
		for _, status := range []int{http.StatusServiceUnavailable, http.StatusServiceUnavailable, http.StatusNoContent} {
			p.want(status, "POST", "/orders/"+order+"/pay")
		}
		if strings.Contains(p.log.String(), "request failed") {
			t.Error("an unreachable scheme is an error of the shop")
		}

		order, p.lost = uuid.NewString(), errors.New("answer was lost")
		p.enter(order, visa)
		p.want(http.StatusServiceUnavailable, "POST", "/orders/"+order+"/pay")
		p.enter(order, visa)
		p.lost = nil
		p.want(http.StatusNoContent, "POST", "/orders/"+order+"/pay")
		if p.sales() != 3 || len(p.charged) != 3 {
			t.Errorf("%d sales, charged %d times", p.sales(), len(p.charged))
		}
	})
}

// TestDeleted: an order whose card is deleted has none, even before the event arrives, and
// accepts another.
func TestDeleted(t *testing.T) {
	live(t, t.TempDir(), func(p *process) {
		order := uuid.NewString()
		p.enter(order, visa)
		var token uuid.UUID
		if err := p.db.QueryRow(`SELECT token FROM orders`).Scan(&token); err != nil {
			t.Fatal(err)
		}
		if err := p.vault.Delete(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		p.want(http.StatusConflict, "POST", "/orders/"+order+"/pay")
		p.drain()
		var left int
		if err := p.db.QueryRow(`SELECT count(token) FROM orders`).Scan(&left); err != nil || left != 0 {
			t.Errorf("%d orders have the token: %v", left, err)
		}

		p.enter(order, visa)
		p.want(http.StatusNoContent, "POST", "/orders/"+order+"/pay")
	})
}

// TestStrangers: a card of another account is in no order, whatever its business key.
func TestStrangers(t *testing.T) {
	live(t, t.TempDir(), func(p *process) {
		order := uuid.NewString()
		p.want(http.StatusOK, "POST", "/orders/"+order)
		other, err := p.vault.CreateAccount(t.Context(), "other", nil)
		if err != nil {
			t.Fatal(err)
		}
		opts := &cardvault.ImportOptions{BusinessKey: order, ImportProvider: provider}
		if _, err := p.vault.In(other.ID).Import(t.Context(), cardOf(visa), opts); err != nil {
			t.Fatal(err)
		}
		p.drain()
		p.want(http.StatusConflict, "POST", "/orders/"+order+"/pay")
	})
}

// TestServe: a shop starts, answers, and ends with its context. Without TLS it listens on
// this machine only.
func TestServe(t *testing.T) {
	if _, err := listen(config{addr: ":0"}); err == nil {
		t.Error("it listens on a network without TLS")
	}
	live(t, t.TempDir(), func(p *process) {
		l, err := listen(config{addr: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.serve(ctx, l, p.http) }()
		w, err := http.Get("http://" + l.Addr().String() + "/health")
		if err != nil || w.StatusCode != http.StatusNoContent {
			t.Errorf("GET /health: %v, %v", w, err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
