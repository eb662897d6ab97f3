package main

import (
	"bytes"
	"context"
	"crypto/fips140"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func TestMain(m *testing.M) { goroutines.Verify(m) }

const (
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	code   = "737"
)

// A rig is the shop, and a vault in memory with a simulated network, in a bubble.
type rig struct {
	*shop
	vault   *cardvault.Vault
	network *simnet.Network
	api     http.Handler
	pipes   map[string]*bubble.Listener // by host
	web     *http.Transport
	stop    func() error // the shop
	log     logBuffer

	webhooks bool     // the vault has webhooks
	forwards []string // headers and bodies that the payment provider has received
	down     atomic.Bool
	calls    calls
	charged  []string // network tokens
	firsts   []string // the first payments that they name
	decline  error    // the acquirer's answer

	seen bytes.Buffer // by the browser
}

func inBubble(t *testing.T, webhooks bool, f func(*testing.T, *rig)) {
	t.Helper()
	inBubbleEach(t, webhooks, 0, f)
}

// inBubbleEach is inBubble with a shop that sells subscriptions, paid each period.
func inBubbleEach(t *testing.T, webhooks bool, period time.Duration, f func(*testing.T, *rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)))
		f(t, newRig(t, webhooks, period))
	})
}

func newRig(t *testing.T, webhooks bool, period time.Duration) *rig {
	t.Helper()
	r := &rig{webhooks: webhooks, pipes: map[string]*bubble.Listener{"vault.example:80": bubble.Listen(), "shop.example:80": bubble.Listen(), "127.0.0.1:80": bubble.Listen()}}
	r.web = &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return r.pipes[address].Dial(ctx, "", address)
	}}
	logger := slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if r.network, err = simnet.New(t.Context(), memstore.New(), nil); err != nil {
		t.Fatal(err)
	}
	r.vault = vaulttest.NewWith(t, &cardvault.Options{
		Mode: cardvault.Sandbox, Network: r.network, NetworkTimeout: 3 * time.Second, Events: r, Logger: logger,
	})
	key, err := r.vault.CreateAPIKey(t.Context(), "shop", cardvault.AllScopes(), nil)
	if err != nil {
		t.Fatal(err)
	}
	merchant, err := r.vault.PrimaryMerchant(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	payment, err := r.vault.RotatePaymentSecret(t.Context(), merchant.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	forwarder, err := forward.New(r.vault, []forward.Destination{{Name: "psp", URL: "http://127.0.0.1/psp/"}}, &forward.Options{
		AllowLoopback: true,
		Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
			return r.pipes[address].Dial(ctx, "", address)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.api, err = httpapi.NewHandler(r.vault, &httpapi.Options{Logger: logger, Forward: forwarder}); err != nil {
		t.Fatal(err)
	}
	r.shop, err = newShop("http://vault.example", account{APIKey: key.Text.Text(), MerchantID: merchant.ID.String(), PaymentSecret: payment.Secret.Text()}, logger)
	if err != nil {
		t.Fatal(err)
	}
	r.client.Transport, r.period = r.web, period
	accept := newAcquirer().charge
	r.acquire = func(ctx context.Context, c *charge) (string, error) {
		r.firsts = append(r.firsts, c.first)
		c.credential.Number.Expose(func(number []byte) { r.charged = append(r.charged, string(number)) })
		c.credential.Cryptogram.Expose(func(value []byte) {
			if c.first != "" {
				if len(value) > 0 {
					t.Error("a payment without the shopper has a cryptogram")
				}
				return
			}
			if raw, err := base64.StdEncoding.DecodeString(string(value)); err != nil || len(raw) != 20 {
				t.Error("the cryptogram is not 20 bytes in base64")
			}
			r.calls.secret(string(value))
		})
		if r.decline != nil {
			return "", r.decline
		}
		transaction, err := accept(ctx, c)
		if err != nil {
			t.Errorf("the acquirer refuses: %v", err)
		}
		return transaction, err
	}

	provider := &http.Server{Handler: r.provider(newPSP())}
	go provider.Serve(r.pipes["127.0.0.1:80"])
	server := &http.Server{Handler: http.HandlerFunc(r.serveVault)}
	go server.Serve(r.pipes["vault.example:80"])
	working, stopWork := context.WithCancel(t.Context())
	worked := make(chan error, 1)
	go func() { worked <- r.vault.Run(working) }()
	open, closeShop := context.WithCancel(t.Context())
	shopped := make(chan error, 1)
	go func() { shopped <- r.serve(open, r.pipes["shop.example:80"]) }()
	r.stop = sync.OnceValue(func() error {
		closeShop()
		return <-shopped
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("stopping the shop: %v", err)
		}
		stopWork()
		if err := <-worked; err != nil {
			t.Error(err)
		}
		r.web.CloseIdleConnections()
		forwarder.Close()
		if err := provider.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := r.network.Close(); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return r
}

// serveVault serves the REST API, with registration of webhooks.
func (r *rig) serveVault(w http.ResponseWriter, req *http.Request) {
	r.calls.add(req)
	switch {
	case r.down.Load():
		panic(http.ErrAbortHandler)
	case r.webhooks && req.Method == "POST" && req.URL.Path == "/webhooks":
		fmt.Fprintf(w, `{"id":"endpoint","signing_secret":%q}`, secret)
	case r.webhooks && req.Method == "DELETE" && req.URL.Path == "/webhooks/endpoint":
		w.WriteHeader(http.StatusNoContent)
	default:
		r.api.ServeHTTP(w, req)
	}
}

// provider keeps what a payment provider receives.
func (r *rig) provider(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		if r.decline != nil {
			http.Error(w, "declined", http.StatusPaymentRequired)
			return
		}
		r.forwards = append(r.forwards, req.Header.Get("Idempotency-Key")+" "+string(body))
		req.Body = io.NopCloser(bytes.NewReader(body))
		h.ServeHTTP(w, req)
	})
}

// Event delivers an event from the vault to the shop.
func (r *rig) Event(ctx context.Context, e *cardvault.Event) error {
	if !r.webhooks {
		return nil
	}
	w, err := r.deliver(ctx, e.ID.String(), fmt.Sprintf(eventBody, e.ID, e.Type, e.TokenID))
	if err != nil {
		return err
	}
	if w.StatusCode != http.StatusNoContent {
		return fmt.Errorf("the shop answers %d to an event", w.StatusCode)
	}
	return nil
}

// eventBody returns an event with an id and a type, about a token.
const eventBody = `{"id":%q,"created_at":"2026-01-02T03:04:05Z","event_type":%q,"token":{"id":%q}}`

func (r *rig) deliver(ctx context.Context, id, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, "POST", "http://shop.example/webhooks", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	sign(req, id, time.Now(), body, secret)
	w, err := r.web.RoundTrip(req)
	if err == nil {
		w.Body.Close()
	}
	return w, err
}

func sign(r *http.Request, id string, at time.Time, body string, secrets ...string) {
	var signatures []string
	for _, s := range secrets {
		hook, err := standardwebhooks.NewWebhook(s)
		if err != nil {
			panic(err)
		}
		signature, err := hook.Sign(id, at, []byte(body))
		if err != nil {
			panic(err)
		}
		signatures = append(signatures, signature)
	}
	r.Header.Set("webhook-id", id)
	r.Header.Set("webhook-timestamp", fmt.Sprint(at.Unix()))
	r.Header.Set("webhook-signature", strings.Join(signatures, " "))
}

// A browser shows a page of the shop, for one order.
type browser struct {
	*rig
	http           http.Client
	html           string
	order, session string
}

var onPage = regexp.MustCompile(`data-order="([^"]+)"[^$]*session-id="([^"]+)"`)

func (r *rig) browse(t *testing.T) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{rig: r, http: http.Client{Transport: r.web, Jar: jar}}
	w, err := b.http.Get("http://shop.example/")
	if err != nil {
		t.Fatal(err)
	}
	b.html = r.read(t, w)
	found := onPage.FindStringSubmatch(b.html)
	if w.StatusCode != http.StatusOK || found == nil {
		t.Fatalf("the page of the shop: %d %s", w.StatusCode, b.html)
	}
	b.order, b.session = found[1], found[2]
	return b
}

func (r *rig) read(t *testing.T, w *http.Response) string {
	t.Helper()
	defer w.Body.Close()
	data, err := io.ReadAll(w.Body)
	if err != nil {
		t.Error(err)
	}
	r.seen.Write(data)
	return string(data)
}

// enter enters a card in the page's session, as the component does.
func (b *browser) enter(t *testing.T, scenario int) {
	t.Helper()
	if got := b.complete(t, simnet.ScenarioPAN(card.VISA, scenario)); !strings.Contains(got, `"status":"success"`) {
		t.Fatalf("entering a card: %s", got)
	}
	synctest.Wait() // its network token is being requested
}

func (b *browser) complete(t *testing.T, pan card.PAN) string {
	t.Helper()
	w, err := b.http.Get("http://vault.example/sessions/" + b.session)
	if err != nil {
		t.Fatal(err)
	}
	answer := b.read(t, w)
	if w.StatusCode != http.StatusOK {
		return answer
	}
	var open struct {
		Data struct{ JWK jose.JSONWebKey }
		Next string `json:"next_action"`
	}
	if err := json.Unmarshal([]byte(answer), &open); err != nil {
		t.Fatal(err)
	}
	var claims string
	pan.Expose(func(digits []byte) {
		claims = fmt.Sprintf(`{"account_number":%q,"expiry_month":12,"expiry_year":2030,"security_code":%q}`, digits, code)
		b.calls.secret(string(digits))
	})
	var payload string
	fips140.WithoutEnforcement(func() { // a browser is not bound by FIPS mode
		e, err := jose.NewEncrypter(jose.A256GCM, jose.Recipient{Algorithm: jose.RSA_OAEP_256, Key: open.Data.JWK}, nil)
		if err != nil {
			t.Fatal(err)
		}
		sealed, err := e.Encrypt([]byte(claims))
		if err != nil {
			t.Fatal(err)
		}
		if payload, err = sealed.CompactSerialize(); err != nil {
			t.Fatal(err)
		}
	})
	w, err = b.http.Post("http://vault.example/sessions/"+b.session+"/complete-action", "application/json",
		strings.NewReader(fmt.Sprintf(`{"action":%q,"result":{"enc_payload":%q}}`, open.Next, payload)))
	if err != nil {
		t.Fatal(err)
	}
	return b.read(t, w)
}

// ask posts to the page's order, as /shop.js does.
func (b *browser) ask(t *testing.T, what string) (int, *answer) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://shop.example/orders/"+b.order+"/"+what, nil)
	if err != nil {
		t.Error(err)
		return 0, new(answer)
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return b.send(t, r)
}

func (b *browser) send(t *testing.T, r *http.Request) (int, *answer) {
	t.Helper()
	a := new(answer)
	w, err := b.http.Do(r)
	if err != nil {
		t.Error(err)
		return 0, a
	}
	if err := json.Unmarshal([]byte(b.read(t, w)), a); err != nil {
		t.Error(err)
	}
	return w.StatusCode, a
}

func (b *browser) want(t *testing.T, what, state, next, fact string) {
	t.Helper()
	status, a := b.ask(t, what)
	if status != http.StatusOK || a.State != state || a.Next != next || !strings.Contains(fmt.Sprint(a.Facts), fact) {
		t.Errorf("%s answers %d %+v, want %s, next %q, with %q", what, status, a, state, next, fact)
	}
	if a.Session != "" {
		b.session = a.Session
	}
}

// token returns the vault's only token.
func (r *rig) token(t *testing.T) *cardvault.Token {
	t.Helper()
	p, err := r.vault.List(t.Context(), nil)
	if err != nil || len(p.Items) == 0 {
		t.Fatalf("%d tokens, %v", len(p.Items), err)
	}
	return p.Items[0]
}

func (r *rig) hasCode(t *testing.T, id uuid.UUID) bool {
	t.Helper()
	status, err := r.vault.SecurityCodeStatus(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return status.Available
}

// The answers to the shopper, in order, for cards with different fates.
func TestPay(t *testing.T) {
	const second = time.Second
	paid := [3]string{"paid", "", "07"}
	for _, c := range []struct {
		scenario int
		answers  [][3]string // state, next, fact
		from, to time.Duration
	}{
		{0, [][3]string{{"paid", "", "28 characters, 20 bytes"}, {"paid", "", "VISA ···· 0005"}}, 0, 0},
		{1, [][3]string{paid}, 2 * second, 3 * second},
		{2, [][3]string{paid}, 2 * second, 3 * second},
		{10, [][3]string{{"declined", "new_session", "card_not_eligible"}}, 0, 0},
		{20, [][3]string{{"declined", "new_session", "merchant_not_enrolled"}}, 0, 0},
		{40, [][3]string{{"declined", "new_session", "cryptogram_declined"}, {"declined", "new_session", "cryptogram_declined"}}, 0, 0},
		{42, [][3]string{paid}, 2 * second, 2 * second},
		{44, [][3]string{{"declined", "retry", "scheme_unavailable"}, {"declined", "retry", "scheme_unavailable"}, paid}, 0, 0},
		{45, [][3]string{{"paid", "", "none"}}, 0, 0},
	} {
		for _, webhooks := range []bool{true, false} {
			t.Run(fmt.Sprintf("%03d, webhooks %v", c.scenario, webhooks), func(t *testing.T) {
				inBubble(t, webhooks, func(t *testing.T, r *rig) {
					b := r.browse(t)
					b.enter(t, c.scenario)
					begin := time.Now()
					charges := 0
					for _, want := range c.answers {
						b.want(t, "pay", want[0], want[1], want[2])
						if want[0] == "paid" {
							charges = 1
						}
					}
					if took := time.Since(begin); took < c.from || took > c.to {
						t.Errorf("it took %v", took)
					}
					if len(r.charged) != charges {
						t.Errorf("charged %d times", len(r.charged))
					}
					if k := r.token(t); r.hasCode(t, k.ID) == (charges > 0) {
						t.Errorf("charged %d times, the vault has the security code: %v", charges, charges > 0)
					}
					if err := r.stop(); err != nil {
						t.Error(err)
					}
					secrets := append(r.calls.secrets, r.charged...)
					vaulttest.AssertNoLeak(t, append(secrets, r.APIKey, r.PaymentSecret), r.log.String(), r.seen.String())
					vaulttest.AssertNoLeak(t, []string{b.session, code}, r.log.String())
				})
			})
		}
	}
}

// TestForward: an order is paid with the card itself, which the payment provider receives
// from the vault, and neither the shop nor the browser.
func TestForward(t *testing.T) {
	inBubble(t, false, func(t *testing.T, r *rig) {
		r.psp = "http://127.0.0.1/psp/charges"
		b := r.browse(t)
		b.want(t, "pay", "", "new_session", "")
		b.enter(t, 0)
		r.decline = errors.New("not enough money")
		b.want(t, "pay", "declined", "new_session", "")
		r.decline = nil
		b.want(t, "pay", "paid", "", "ch_1")
		b.want(t, "pay", "paid", "", "******")
		want := fmt.Sprintf(`%s {"reference":"%s","amount":1999,"currency":"EUR","number":"%s","month":"12","year":"2030","code":"%s"}`,
			b.order, b.order, r.calls.secrets[0], code)
		if len(r.forwards) != 1 || r.forwards[0] != want {
			t.Errorf("the provider received %q, want %q", r.forwards, want)
		}
		if k := r.token(t); r.hasCode(t, k.ID) {
			t.Error("the vault still has the security code")
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		vaulttest.AssertNoLeak(t, append(r.calls.secrets, r.APIKey), r.log.String(), r.seen.String())
		vaulttest.AssertNoLeak(t, []string{code}, r.log.String())
	})
}

// TestReplaced: the scheme replaces the card of an order. The shopper enters the new card in a
// session of the same token, and the order is paid with it.
func TestReplaced(t *testing.T) {
	inBubble(t, false, func(t *testing.T, r *rig) {
		r.psp = "http://127.0.0.1/psp/charges"
		b := r.browse(t)
		b.enter(t, 34)
		time.Sleep(3 * time.Second)
		before := r.token(t)
		if !before.AccountNumberStale {
			t.Error("the scheme has not replaced the card")
		}
		b.want(t, "pay", "declined", "new_session", "")
		b.want(t, "session", "", "", "")
		b.enter(t, 0)
		b.want(t, "pay", "paid", "", "ch_1")

		after := r.token(t)
		if after.ID != before.ID || after.AccountNumberStale || after.LastFour != "0005" || after.BusinessKey != b.order {
			t.Errorf("the token was %v, %s, and is %v, %s", before.ID, before.MaskedAccountNumber, after.ID, after.MaskedAccountNumber)
		}
		if len(r.forwards) != 1 || !strings.Contains(r.forwards[0], `"number":"`+r.calls.secrets[1]+`"`) {
			t.Errorf("the provider received %q", r.forwards)
		}
		vaulttest.AssertNoLeak(t, append(r.calls.secrets, r.APIKey), r.log.String(), r.seen.String())
	})
}

// TestSubscription: the shopper makes the first of three payments, with a cryptogram. The
// shop makes the others alone, without one, and names the first.
func TestSubscription(t *testing.T) {
	const period = time.Hour
	inBubbleEach(t, false, period, func(t *testing.T, r *rig) {
		b := r.browse(t)
		if !strings.Contains(b.html, "A subscription: €19.99 now, and 2 times more") {
			t.Error("the page does not say what the shopper agrees to")
		}
		b.enter(t, 0)
		b.want(t, "pay", "paid", "", "07")
		wantPaid := func(n int) {
			t.Helper()
			synctest.Wait()
			if len(r.charged) != n {
				t.Fatalf("%d payments, want %d", len(r.charged), n)
			}
		}
		wantPaid(1)

		// The second is late: first the vault is down, then the acquirer refuses once.
		r.down.Store(true)
		time.Sleep(period + 2*billPeriod)
		wantPaid(1)
		r.down.Store(false)
		r.decline = errors.New("not enough money")
		time.Sleep(billPeriod)
		wantPaid(2)
		r.decline = nil
		time.Sleep(billPeriod)
		wantPaid(3)
		time.Sleep(5 * period)
		wantPaid(4)

		first := r.firsts[1]
		if first == "" || !slices.Equal(r.firsts, []string{"", first, first, first}) || len(slices.Compact(slices.Clone(r.charged))) != 1 {
			t.Errorf("the payments name %q", r.firsts)
		}
		if len(r.subscriptions) != 0 {
			t.Error("the subscription has not ended")
		}

		// Every record says who has made the payment.
		p, err := r.vault.ListPaymentData(t.Context(), r.token(t).ID, &cardvault.ListOptions{Ascending: true})
		if err != nil {
			t.Fatal(err)
		}
		var references []string
		for _, data := range p.Items {
			references = append(references, strings.TrimPrefix(data.Reference, b.order))
		}
		if got := strings.Join(references, " "); got != " -2 -2 -3" {
			t.Errorf("the references are %q", got)
		}

		if err := r.stop(); err != nil {
			t.Error(err)
		}
		secrets := append(r.calls.secrets, r.charged...)
		vaulttest.AssertNoLeak(t, append(secrets, r.APIKey, r.PaymentSecret), r.log.String(), r.seen.String())
	})
}

// TestSubscriptionEnds: a subscription ends when the card cannot pay any more.
func TestSubscriptionEnds(t *testing.T) {
	inBubbleEach(t, false, time.Hour, func(t *testing.T, r *rig) {
		b := r.browse(t)
		b.enter(t, 0)
		b.want(t, "pay", "paid", "", "07")
		if err := r.network.Control().Invalidate(t.Context(), r.token(t).ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if len(r.charged) != 1 || len(r.subscriptions) != 0 || !strings.Contains(r.log.String(), "token_invalidated") {
			t.Errorf("%d payments, %d subscriptions", len(r.charged), len(r.subscriptions))
		}
	})
}

// A payment that waits too long can be tried again until its outcome is known.
func TestLate(t *testing.T) {
	inBubble(t, false, func(t *testing.T, r *rig) {
		b := r.browse(t)
		b.enter(t, 51) // refused after six attempts of three seconds each, and pauses
		b.want(t, "pay", "", "retry", "")
		b.want(t, "pay", "", "retry", "")
		time.Sleep(15 * time.Second)
		b.want(t, "pay", "declined", "new_session", "timeout")
	})
}

// A webhook wakes a waiting payment: it continues as soon as the network token exists,
// before the shop looks again by itself.
func TestWoken(t *testing.T) {
	for _, webhooks := range []bool{true, false} {
		inBubble(t, webhooks, func(t *testing.T, r *rig) {
			b := r.browse(t)
			b.enter(t, 1)
			done := make(chan time.Duration)
			begin := time.Now()
			go func() {
				b.want(t, "pay", "paid", "", "07")
				done <- time.Since(begin)
			}()
			time.Sleep(1800 * time.Millisecond) // between looks at 1.75 and 3.75 seconds
			r.network.Advance(2 * time.Second)
			if took := <-done; took < 2*time.Second != webhooks {
				t.Errorf("webhooks %v: it took %v", webhooks, took)
			}
		})
	}
}

// An order is paid with the card of its own session, and only by its own shopper, whatever
// a browser sends.
func TestForged(t *testing.T) {
	inBubble(t, false, func(t *testing.T, r *rig) {
		victim, thief := r.browse(t), r.browse(t)
		victim.enter(t, 0)
		stolen := r.token(t).ID.String()

		post := func(b *browser, order, body string, cookie *http.Cookie, headers ...string) (int, *answer) {
			t.Helper()
			req, err := http.NewRequest("POST", "http://shop.example/orders/"+order+"/pay?token_id="+stolen, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if cookie != nil {
				req.AddCookie(cookie)
			}
			for i := 0; i < len(headers); i += 2 {
				req.Header.Set(headers[i], headers[i+1])
			}
			return b.send(t, req)
		}
		status, a := post(thief, thief.order, `{"token_id":"`+stolen+`"}`, nil)
		if status != http.StatusOK || a.State != "" || !strings.Contains(a.Message, "enter your card") {
			t.Errorf("with a stolen token: %d %+v", status, a)
		}
		for name, cookie := range map[string]*http.Cookie{
			"":      nil, // the thief's cookie is for another path
			"wrong": {Name: "order", Value: "wrong"},
			"empty": {Name: "order"},
			"thief": {Name: "order", Value: r.orders[thief.order].cookie},
		} {
			if status, a := post(thief, victim.order, "", cookie); status != http.StatusNotFound || a.State != "" {
				t.Errorf("another shopper's order with cookie %q: %d %+v", name, status, a)
			}
		}
		if status, _ := post(thief, "unknown", "", nil); status != http.StatusNotFound {
			t.Errorf("an unknown order: %d", status)
		}
		for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "http://evil.example"}} {
			req, err := http.NewRequest("POST", "http://shop.example/orders/"+victim.order+"/pay", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(header[0], header[1])
			w, err := victim.http.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if w.Body.Close(); w.StatusCode != http.StatusForbidden {
				t.Errorf("a foreign page, %s: %d", header, w.StatusCode)
			}
		}
		if n := r.calls.count("POST /tokens/" + stolen + "/payment-data"); n != 0 || len(r.charged) != 0 {
			t.Errorf("%d requests for payment data", n)
		}
		victim.want(t, "pay", "paid", "", "0005")
		// The token must come from its own session.
		thief.enter(t, 45)
		thief.want(t, "pay", "paid", "", "0450")
	})
}

// An order continues in a new session when the first has expired or its card is declined.
func TestRenew(t *testing.T) {
	inBubble(t, false, func(t *testing.T, r *rig) {
		b := r.browse(t)
		first := b.session
		time.Sleep(15 * time.Minute)
		if got := b.complete(t, simnet.ScenarioPAN(card.VISA, 0)); !strings.Contains(got, "NOT_FOUND") {
			t.Errorf("an expired session: %s", got)
		}
		b.want(t, "pay", "declined", "new_session", "")
		b.want(t, "session", "", "", "")
		if b.session == first {
			t.Error("the session is the same")
		}
		b.enter(t, 40)
		b.want(t, "pay", "declined", "new_session", "cryptogram_declined")
		b.want(t, "session", "", "", "")
		b.enter(t, 0)
		r.decline = io.EOF
		b.want(t, "pay", "declined", "new_session", "")
		r.decline = nil
		b.want(t, "session", "", "", "")
		b.enter(t, 0)
		b.want(t, "pay", "paid", "", b.order)
		b.want(t, "session", "paid", "", b.order) // and no new session
		if len(r.charged) != 2 {
			t.Errorf("charged %d times", len(r.charged))
		}

		b = r.browse(t)
		for range 5 {
			b.complete(t, card.NewPAN([]byte("4242424242424241")))
		}
		b.want(t, "pay", "declined", "new_session", "")

		b = r.browse(t)
		b.enter(t, 0)
		if err := r.vault.Delete(t.Context(), r.token(t).ID); err != nil {
			t.Fatal(err)
		}
		b.want(t, "pay", "declined", "new_session", "")
	})
}

// An order is paid once, even if its shopper asks twice or goes away.
func TestOnce(t *testing.T) {
	inBubble(t, false, func(t *testing.T, r *rig) {
		b := r.browse(t)
		b.enter(t, 1)
		gone, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(gone, "POST", "http://shop.example/orders/"+b.order+"/pay", nil)
		if err != nil {
			t.Fatal(err)
		}
		left := make(chan error)
		go func() {
			w, err := b.http.Do(req)
			if err == nil {
				w.Body.Close()
			}
			left <- err
		}()
		time.Sleep(time.Second)
		for _, what := range []string{"pay", "session"} {
			if status, a := b.ask(t, what); status != http.StatusConflict || a.Next != "retry" {
				t.Errorf("%s during the payment: %d %+v", what, status, a)
			}
		}
		leave()
		if err := <-left; err == nil {
			t.Error("the shopper did not go away")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(r.charged) != 1 {
			t.Fatalf("charged %d times after the shopper went away", len(r.charged))
		}
		b.want(t, "pay", "paid", "", "0013")
		if len(r.charged) != 1 {
			t.Errorf("charged %d times", len(r.charged))
		}
	})
}

// A stopping shop finishes its payments.
func TestStop(t *testing.T) {
	inBubble(t, true, func(t *testing.T, r *rig) {
		b := r.browse(t)
		b.enter(t, 1)
		done := make(chan struct{})
		go func() {
			b.want(t, "pay", "paid", "", "0013")
			close(done)
		}()
		time.Sleep(time.Second)
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		<-done
		if n := r.calls.count("DELETE /webhooks/endpoint"); n != 1 {
			t.Errorf("the endpoint was removed %d times", n)
		}
	})
}

// While the vault is down the shop says so in words, and the shopper can try again.
func TestUnanswered(t *testing.T) {
	inBubble(t, false, func(t *testing.T, r *rig) {
		b := r.browse(t)
		b.enter(t, 0)
		r.down.Store(true)
		status, a := b.ask(t, "pay")
		if status != http.StatusBadGateway || a.Next != "retry" || !strings.Contains(a.Message, "not charged") {
			t.Errorf("without the vault: %d %+v", status, a)
		}
		w, err := b.http.Get("http://shop.example/")
		if err != nil {
			t.Fatal(err)
		}
		if html := r.read(t, w); w.StatusCode != http.StatusBadGateway || !strings.Contains(html, "try again") {
			t.Errorf("the page without the vault: %d %s", w.StatusCode, html)
		}
		r.down.Store(false)
		b.want(t, "pay", "paid", "", "0005")
		if !strings.Contains(r.log.String(), "the vault did not respond") {
			t.Errorf("the log: %s", &r.log)
		}
		vaulttest.AssertNoLeak(t, []string{b.session}, r.log.String())

		// A failed consume does not stop a payment.
		b = r.browse(t)
		b.enter(t, 0)
		accept := r.acquire
		r.acquire = func(ctx context.Context, c *charge) (string, error) {
			r.down.Store(true)
			return accept(ctx, c)
		}
		b.want(t, "pay", "paid", "", "0005")
		r.down.Store(false)
		if !r.hasCode(t, r.token(t).ID) {
			t.Error("it was consumed")
		}
	})
}

// A lost answer about payment data does not lead to a second cryptogram.
func TestLost(t *testing.T) {
	inBubble(t, false, func(t *testing.T, r *rig) {
		api, lost := r.api, false
		r.api = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasSuffix(req.URL.Path, "/payment-data") && !lost {
				lost = true
				api.ServeHTTP(httptest.NewRecorder(), req)
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			api.ServeHTTP(w, req)
		})
		b := r.browse(t)
		b.enter(t, 0)
		if status, a := b.ask(t, "pay"); status != http.StatusBadGateway || a.Next != "retry" {
			t.Errorf("without an answer: %d %+v", status, a)
		}
		b.want(t, "pay", "paid", "", "0005")
		p, err := r.vault.ListPaymentData(t.Context(), r.token(t).ID, nil)
		if err != nil || p.TotalItems != 1 || !lost {
			t.Errorf("%d payment data, %v", p.TotalItems, err)
		}
		if got := p.Items[0]; got.Amount != price || got.Currency != currency || got.Reference != b.order {
			t.Errorf("payment data %+v", got)
		}
	})
}

func TestWebhook(t *testing.T) {
	inBubble(t, true, func(t *testing.T, r *rig) {
		const token = "1b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"
		of := func(n int) string {
			return fmt.Sprintf(eventBody, uuid.UUID{15: byte(n)}, receive.TokenUpdated, token)
		}
		post := func(body string, change func(*http.Request)) int {
			req := httptest.NewRequest("POST", "/webhooks", strings.NewReader(body))
			change(req)
			w := httptest.NewRecorder()
			r.handler().ServeHTTP(w, req)
			return w.Code
		}
		news := make(chan struct{}, 1)
		r.waiting[token] = news
		woken := func() bool {
			select {
			case <-news:
				return true
			default:
				return false
			}
		}
		const other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
		now := time.Now()
		for _, c := range []struct {
			name   string
			event  int
			status int
			wakes  bool
			change func(*http.Request)
		}{
			{"signed", 1, 204, true, func(r *http.Request) { sign(r, "1", now, of(1), secret) }},
			{"again", 1, 204, false, func(r *http.Request) { sign(r, "1", now, of(1), secret) }},
			{"again, later", 1, 204, false, func(r *http.Request) { sign(r, "1", now.Add(time.Minute), of(1), secret) }},
			{"two signatures", 2, 204, true, func(r *http.Request) { sign(r, "2", now, of(2), other, secret) }},
			{"a version besides", 3, 204, true, func(r *http.Request) {
				sign(r, "3", now, of(3), secret)
				r.Header.Set("webhook-signature", "v1a,AAAA "+r.Header.Get("webhook-signature"))
			}},
			{"almost old", 4, 204, true, func(r *http.Request) { sign(r, "4", now.Add(-5*time.Minute), of(4), secret) }},
			{"unsigned", 5, 400, false, func(*http.Request) {}},
			{"no signature", 5, 400, false, func(r *http.Request) { sign(r, "5", now, of(5)) }},
			{"wrong secret", 5, 400, false, func(r *http.Request) { sign(r, "5", now, of(5), other) }},
			{"wrong body", 5, 400, false, func(r *http.Request) { sign(r, "5", now, of(5)+" ", secret) }},
			{"wrong id", 5, 400, false, func(r *http.Request) {
				sign(r, "5", now, of(5), secret)
				r.Header.Set("webhook-id", "6")
			}},
			{"wrong time", 5, 400, false, func(r *http.Request) {
				sign(r, "5", now, of(5), secret)
				r.Header.Set("webhook-timestamp", fmt.Sprint(now.Unix()+1))
			}},
			{"old", 5, 400, false, func(r *http.Request) { sign(r, "5", now.Add(-5*time.Minute-time.Second), of(5), secret) }},
			{"of the future", 5, 400, false, func(r *http.Request) { sign(r, "5", now.Add(5*time.Minute+time.Second), of(5), secret) }},
			{"after refused ones", 5, 204, true, func(r *http.Request) { sign(r, "5", now, of(5), secret) }},
		} {
			if status := post(of(c.event), c.change); status != c.status || woken() != c.wakes {
				t.Errorf("%s: %d, want %d and woken %v", c.name, status, c.status, c.wakes)
			}
		}
		for body, want := range map[string]int{
			`{"id":"7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11","created_at":"2026-01-02T03:04:05Z","event_type":"webhook.test","reason":null,"token":null}`: 204,
			`{"test": 2432232314}`: 400,
			`[`:                    400,
			of(6) + strings.Repeat(" ", receive.MaxBody): 413,
		} {
			if status := post(body, func(r *http.Request) { sign(r, "7"+body[:1], now, body, secret) }); status != want || woken() {
				t.Errorf("a body of %d bytes: %d, want %d", len(body), status, want)
			}
		}
		r.hook = nil
		if status := post(of(7), func(r *http.Request) { sign(r, "8", now, of(7), secret) }); status != 404 {
			t.Errorf("to an unregistered shop: %d", status)
		}
	})
}

// The page runs only scripts of the shop and the vault, and contains no secret.
func TestPage(t *testing.T) {
	inBubble(t, false, func(t *testing.T, r *rig) {
		b := r.browse(t)
		for _, path := range []string{"/", "/shop.js", "/shop.css"} {
			w, err := b.http.Get("http://shop.example" + path)
			if err != nil {
				t.Fatal(err)
			}
			body := r.read(t, w)
			for name, want := range map[string]string{
				"Content-Security-Policy": "default-src 'none'; script-src 'self' http://vault.example; frame-src http://vault.example; style-src 'self'; " +
					"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
				"Cache-Control":          "no-store",
				"X-Content-Type-Options": "nosniff",
				"Referrer-Policy":        "same-origin",
			} {
				if got := w.Header.Get(name); got != want {
					t.Errorf("%s has %s %q", path, name, got)
				}
			}
			if strings.Contains(body, r.APIKey) || strings.Contains(body, r.PaymentSecret) {
				t.Errorf("%s contains a secret", path)
			}
		}
		for _, inline := range []string{"<style", " style=", "<script>", " onclick="} {
			if strings.Contains(b.html, inline) {
				t.Errorf("the page has %s", inline)
			}
		}
		w, err := b.http.Get("http://shop.example/")
		if err != nil {
			t.Fatal(err)
		}
		r.read(t, w)
		if c := w.Cookies(); len(c) != 1 || !c[0].HttpOnly || c[0].SameSite != http.SameSiteStrictMode || !strings.HasPrefix(c[0].Path, "/orders/") {
			t.Errorf("cookies %v", c)
		}
		for i := range kept + 10 {
			keep(r.eventIDs, uuid.UUID{byte(i), byte(i >> 8)}, true)
		}
		if len(r.eventIDs) != kept {
			t.Errorf("%d webhooks are left", len(r.eventIDs))
		}
	})
}

// A calls counts requests to the vault and collects the secrets of a test.
type calls struct {
	mu      sync.Mutex
	made    map[string]int
	secrets []string
}

func (c *calls) add(r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		c.made = map[string]int{}
	}
	c.made[r.Method+" "+r.URL.Path]++
}

func (c *calls) count(call string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made[call]
}

func (c *calls) secret(s string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.secrets = append(c.secrets, s)
}

// A logBuffer is written and read concurrently.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
