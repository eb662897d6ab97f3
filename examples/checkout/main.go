// Checkout is a shop that takes cards through a vault over REST, and never sees one.
//
//	go run ./examples/server &
//	go run ./examples/checkout [-addr 127.0.0.1:8090] [-sandbox ./cardvault-data/sandbox.json] [-forward | -subscription 1m]
//
// The shop makes a session and puts its id on the page, where the shopper enters
// the card in fields of the vault. It asks the vault which token came of the
// session, waits for the network token, has a cryptogram made for this one payment
// and gives both to its acquirer. The vault must allow the origin of the shop.
//
// With -forward the shop pays with the card itself: the vault forwards it to the payment
// provider of the shop, here at /psp/ of the shop's address. The sandbox server has that
// address as a destination.
//
// With -subscription an order is paid in three payments, one each period. The shopper makes
// the first, with a cryptogram. The shop makes the others alone: it asks the vault for
// payment data of the initiator merchant, which has no cryptogram.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/receive/endpoint"
	"github.com/google/uuid"
)

const (
	price, currency, priceTag = 1999, "EUR", "€19.99"

	callTimeout  = 15 * time.Second // a vault waits 10 seconds for the network
	readyTimeout = 12 * time.Second // for a network token; most are there at once
	payTimeout   = 40 * time.Second
	maxBody      = 64 << 10
	kept         = 10_000 // orders, and ids of webhooks
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8090", "`address` to listen on; the vault must allow its origin")
	sandboxFile := flag.String("sandbox", "./cardvault-data/sandbox.json", "`file` written by the sandbox server")
	forward := flag.Bool("forward", false, "pay through a forward to the payment provider, not with a cryptogram")
	period := flag.Duration("subscription", 0, "sell a subscription of three payments, one each `period`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr, *sandboxFile, *forward, *period); err != nil {
		fmt.Fprintln(os.Stderr, "checkout:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr, sandboxFile string, forward bool, period time.Duration) error {
	if forward && period != 0 || period < 0 {
		return errors.New("a subscription has a period, and is not paid through a forward")
	}
	data, err := os.ReadFile(sandboxFile)
	if err != nil {
		return fmt.Errorf("start the sandbox server first: %w", err)
	}

	var sandbox struct {
		BaseURL  string    `json:"base_url"`
		Accounts []account `json:"accounts"`
	}
	if err := json.Unmarshal(data, &sandbox); err != nil || len(sandbox.Accounts) == 0 {
		return fmt.Errorf("%s is not the sandbox.json of the sandbox server", sandboxFile)
	}

	s, err := newShop(sandbox.BaseURL, sandbox.Accounts[0], slog.Default())
	if err != nil {
		return err
	}

	s.period = period

	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	if forward {
		s.psp = "http://" + listener.Addr().String() + "/psp/charges"
	}
	return s.serve(ctx, listener)
}

// An account holds the credentials that the operator of the vault has given to the shop.
// Key and secret stay on the server: together they are enough to pay with every card in the
// vault.
type account struct {
	APIKey        string `json:"api_key"`
	MerchantID    string `json:"merchant_id"`
	PaymentSecret string `json:"payment_secret"`
}

type shop struct {
	account
	vault  string // base URL
	policy string // Content-Security-Policy
	client *http.Client
	log    *slog.Logger

	// acquire charges a card with the shop's acquirer, and returns the scheme's id of the
	// payment.
	acquire func(context.Context, *charge) (transaction string, err error)

	psp    string        // URL of the payment provider, if it is paid through a forward
	period time.Duration // between the payments of a subscription; 0: an order has one payment

	hook http.Handler // nil if the vault has no webhooks

	mu            sync.Mutex
	orders        map[string]*order
	subscriptions map[string]*subscription // that have not ended, by order
	eventIDs      map[uuid.UUID]bool       // ids of events
	waiting       map[string]chan struct{} // payments, by the token whose news they wait for
}

// An order is one article for one shopper.
type order struct {
	id     string // no secret
	cookie string // entitles its browser to pay the order

	mu      sync.Mutex // held while the order is paid or receives another session
	session string
	token   string // "" until the outcome of the session is known
	old     string // a token whose card the next session replaces; "" for none
	attempt int    // of payments that were refused
	paid    *answer
}

func newShop(vault string, a account, log *slog.Logger) (*shop, error) {
	u, err := url.Parse(vault)
	if err != nil || u.Host == "" {
		return nil, errors.New("the base URL of the vault is not a URL")
	}
	origin := u.Scheme + "://" + u.Host
	return &shop{
		account: a,
		vault:   strings.TrimSuffix(vault, "/"),
		// A script that is injected into this page could replace the vault's fields with
		// its own. So nothing inline is allowed, and only the two origins. Issuers that
		// identify the cardholder on pages of their own need frame-src https: as well.
		policy: "default-src 'none'; script-src 'self' " + origin + "; frame-src " + origin + "; style-src 'self'; connect-src 'self'; " +
			"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		// A redirect would take the API key along, wherever it leads.
		client: &http.Client{Timeout: callTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		log:    log, acquire: newAcquirer().charge,
		orders: map[string]*order{}, subscriptions: map[string]*subscription{}, eventIDs: map[uuid.UUID]bool{}, waiting: map[string]chan struct{}{},
	}, nil
}

// serve sells until ctx ends, and then finishes the payments that are under way.
func (s *shop) serve(ctx context.Context, listener net.Listener) error {
	shopURL := "http://" + listener.Addr().String()
	hook := s.register(ctx, shopURL+"/webhooks")
	server := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      payTimeout + 5*time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if s.period > 0 {
		var billing sync.WaitGroup
		defer billing.Wait()
		billing.Go(func() { s.bill(ctx) })
	}
	s.log.Info("the shop is open", "url", shopURL, "vault", s.vault)
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}

	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), payTimeout)
	defer cancel()
	err = errors.Join(err, server.Shutdown(closing))
	if hook != "" {
		if late := s.call(closing, "DELETE", "/webhooks/"+hook, "", nil, nil); late != nil {
			s.log.Warn("the webhook of the shop could not be deleted", "error", late)
		}
	}
	return err
}

func (s *shop) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.front)
	mux.HandleFunc("GET /shop.js", file("text/javascript", script))
	mux.HandleFunc("GET /shop.css", file("text/css", style))
	mux.HandleFunc("POST /orders/{id}/pay", s.forOrder(s.settle))
	mux.HandleFunc("POST /orders/{id}/session", s.forOrder(s.renew))
	mux.HandleFunc("POST /webhooks", s.webhook)
	if s.psp != "" {
		mux.Handle("POST /psp/charges", newPSP())
	}
	guarded := http.NewCrossOriginProtection().Handler(mux) // no page of others makes a shopper pay
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", s.policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store") // the page holds a session
		guarded.ServeHTTP(w, r)
	})
}

func file(mediaType, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaType+"; charset=utf-8")
		_, _ = io.WriteString(w, text) // the shopper is gone if this fails
	}
}

// front shows the article with an order of its own.
func (s *shop) front(w http.ResponseWriter, r *http.Request) {
	o := &order{id: rand.Text()[:10], cookie: rand.Text()}
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	if _, err := s.renew(ctx, o); err != nil {
		s.log.Error("a session could not be created", "error", err)
		http.Error(w, "The shop cannot reach its vault. Please try again later.", http.StatusBadGateway)
		return
	}
	s.mu.Lock()
	keep(s.orders, o.id, o)
	s.mu.Unlock()
	// Sent with this order alone. Over TLS, which a shop has, it is Secure too.
	http.SetCookie(w, &http.Cookie{
		Name: "order", Value: o.cookie, Path: "/orders/" + o.id, MaxAge: 3600, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = page.Execute(w, map[string]string{"Vault": s.vault, "Order": o.id, "Session": o.session, "Price": priceTag, "Terms": s.terms()}) // fails if the shopper is gone
}

// An answer reports the state of an order to the page.
type answer struct {
	State   string      `json:"state,omitempty"` // paid, declined, or neither yet
	Message string      `json:"message,omitempty"`
	Next    string      `json:"next,omitempty"` // what may help: retry, or new_session and another card
	Facts   [][2]string `json:"facts,omitempty"`
	Session string      `json:"session_id,omitempty"`
}

// forOrder finds the order of a request of its shopper, and works on one at a time.
func (s *shop) forOrder(do func(context.Context, *order) (*answer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		o := s.orders[r.PathValue("id")]
		s.mu.Unlock()
		cookie, err := r.Cookie("order")
		if o == nil || err != nil || subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(o.cookie)) == 0 {
			reply(w, http.StatusNotFound, &answer{Message: "This order is no longer available. Please reload the page."})
			return
		}

		if !o.mu.TryLock() {
			reply(w, http.StatusConflict, &answer{Message: "This order is being processed. Please wait a moment.", Next: "retry"})
			return
		}
		defer o.mu.Unlock()

		// A shopper who closes the page does not stop a payment halfway.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), payTimeout)
		defer cancel()

		a, err := do(ctx, o)
		var refused *refusal
		switch {
		case err == nil:
			reply(w, http.StatusOK, a)
		case errors.As(err, &refused) && refused.status == http.StatusNotFound:
			// The session or the token has expired.
			reply(w, http.StatusOK, &answer{State: "declined", Message: "That took too long. Please enter your card again.", Next: "new_session"})
		default:
			s.log.Error("an order could not be paid yet", "order", o.id, "error", err)
			reply(w, http.StatusBadGateway, &answer{Message: "The payment cannot be made right now. You were not charged.", Next: "retry"})
		}
	}
}

func reply(w http.ResponseWriter, status int, a *answer) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // the shopper is gone if this fails
}

// renew gives an order a session in which a card can be entered. The order continues: an
// expired session or a declined card is no reason to start over.
func (s *shop) renew(ctx context.Context, o *order) (*answer, error) {
	if o.paid != nil {
		return o.paid, nil
	}
	var session struct {
		ID string `json:"session_id"`
	}
	// The token has the order as its business key, even if this process dies. The token
	// of a replaced card stays, with one session for the new card.
	path, in := "/tokens/session", any(map[string]string{"business_key": o.id})
	if o.old != "" {
		path, in = "/tokens/"+o.old+"/replace-session", nil
		o.old = ""
	}
	if err := s.call(ctx, "POST", path, rand.Text(), in, &session); err != nil {
		return nil, err
	}

	// The page receives the id, which entitles it to enter one card. The shop keeps it, to
	// ask for the outcome itself.
	o.session, o.token = session.ID, ""
	return &answer{Session: o.session}, nil
}

// settle pays an order with the card of its session. It can be repeated: an order is
// paid once.
func (s *shop) settle(ctx context.Context, o *order) (*answer, error) {
	if o.paid != nil {
		return o.paid, nil
	}
	if o.token == "" {
		if a, err := s.findToken(ctx, o); a != nil || err != nil {
			return a, err
		}
	}

	if s.psp != "" {
		return s.forward(ctx, o)
	}
	return s.pay(ctx, o)
}

// pay pays an order with a cryptogram for the network token of its card.
func (s *shop) pay(ctx context.Context, o *order) (*answer, error) {
	t, err := s.ready(ctx, o.token)
	switch {
	case err != nil:
		return nil, err
	case t.NetworkTokenStatus == receive.NetworkTokenPending:
		return &answer{Message: "Your bank is taking longer than usual. You were not charged.", Next: "retry"}, nil
	case t.NetworkTokenStatus != receive.NetworkTokenActive:
		return declined(reasonOf(t), "new_session"), nil
	}

	credential, why, err := s.credential(ctx, o.token, fmt.Sprintf("%s-%d", o.id, o.attempt), o.id, "")
	if err != nil {
		return nil, err
	}
	if why != nil {
		o.attempt++
		next := "new_session"
		if why.Retryable {
			next = "retry"
		}
		return declined(*why, next), nil
	}
	defer credential.Wipe()

	transaction, err := s.acquire(ctx, &charge{reference: o.id, cents: price, credential: credential})
	// The acquirer has answered, so the security code has done its work: the card
	// industry forbids to keep it any longer, and only the shop knows that this is the
	// moment. The payment stands without this: the vault forgets the code in minutes.
	if late := s.call(ctx, "POST", "/tokens/"+o.token+"/consume", o.id, nil, nil); late != nil {
		s.log.Warn("a security code could not be erased: it will expire", "order", o.id, "error", late)
	}
	if err != nil {
		o.attempt++ // a cryptogram is for one try
		return declined(reason{Message: "Your bank declined the payment."}, "new_session"), nil
	}

	// The token may stay for the shopper's next order; a shop that keeps no cards
	// deletes it now.
	if s.period > 0 {
		s.subscribe(o, transaction)
	}
	o.paid = &answer{State: "paid", Message: "Thank you. Your order is paid.", Facts: [][2]string{
		{"Card", t.Scheme + " ···· " + t.LastFour},
		{"ECI", cmp.Or(credential.ECI, "none")},
		{"Cryptogram", shape(credential.Cryptogram)},
		{"Order", o.id},
	}}

	s.log.Info("an order is paid", "order", o.id, "eci", credential.ECI)
	return o.paid, nil
}

// credential asks the vault for the network token and, if the shopper pays, for a cryptogram.
// For a later payment of a subscription, first is the scheme's id of the first payment.
// Without a credential, credential returns the reason.
func (s *shop) credential(ctx context.Context, token, key, reference, first string) (*receive.Credential, *reason, error) {
	request := map[string]any{"amount": price, "currency_code": currency, "merchant_id": s.MerchantID, "reference": reference}
	if first != "" {
		request["initiator"], request["network_transaction_id"] = "merchant", first
	}

	var data struct {
		Success   bool
		Encrypted string    `json:"encrypted_authentication_data"`
		Failures  [1]reason `json:"failure_details"`
	}
	// If the answer is lost, a second call under the same key returns the same cryptogram,
	// not a new one. After a refusal it is another attempt.
	if err := s.call(ctx, "POST", "/tokens/"+token+"/payment-data", key, request, &data); err != nil {
		return nil, nil, err
	}
	if !data.Success {
		return nil, &data.Failures[0], nil
	}

	c, err := receive.OpenPaymentData(data.Encrypted, receive.NewSharedSecret([]byte(s.PaymentSecret)))
	return c, nil, err
}

// findToken finds the token that the session of an order has created. Without a token it
// returns an answer instead.
func (s *shop) findToken(ctx context.Context, o *order) (*answer, error) {
	// A browser could name another shopper's token, so the session names it.
	var session struct {
		Status string
		Data   struct {
			TokenID string `json:"token_id"`
		}
	}
	if err := s.call(ctx, "GET", "/sessions/"+o.session, "", nil, &session); err != nil {
		return nil, err
	}

	switch session.Status {
	case "success":
		o.token = session.Data.TokenID
	case "failed":
		return declined(reason{Message: "This card cannot be used."}, "new_session"), nil
	default:
		return &answer{Message: "Please enter your card first.", Next: "new_session"}, nil
	}
	return nil, nil
}

// A reason is why there is no network token or no cryptogram.
type reason struct {
	Code, Message string
	Retryable     bool
}

// reasonOf returns why a token has no active network token.
func reasonOf(t *receive.Token) reason {
	r := t.NetworkTokenStatusReason
	if r == nil {
		return reason{}
	}
	return reason{r.Code, r.Message, r.Retryable}
}

func declined(r reason, next string) *answer {
	advice := map[string]string{"retry": "Please try again.", "new_session": "Please use another card."}[next]
	a := &answer{State: "declined", Message: r.Message + " You were not charged. " + advice, Next: next}
	if r.Code != "" {
		a.Facts = [][2]string{{"Reason", r.Code}}
	}
	return a
}

// ready returns a token once its network token is no longer pending, or as it is when that
// takes too long. Webhooks come late, twice, or not at all, so they only say when to look:
// the vault's answer counts.
func (s *shop) ready(ctx context.Context, id string) (*receive.Token, error) {
	news := make(chan struct{}, 1)
	s.mu.Lock()
	s.waiting[id] = news // before the first look: nothing happens unseen between the two
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.waiting, id)
		s.mu.Unlock()
	}()

	late := time.After(readyTimeout)
	for pause := time.Second / 4; ; pause = min(2*pause, time.Second) {
		t := new(receive.Token)
		if err := s.call(ctx, "GET", "/tokens/"+id, "", nil, t); err != nil || t.NetworkTokenStatus != receive.NetworkTokenPending {
			return t, err
		}
		select {
		case <-news:
		case <-time.After(pause):
		case <-late:
			return t, nil
		}
	}
}

// register subscribes the shop to token events, and returns the id of the endpoint. This
// shop subscribes while it is open; a real one registers once, and keeps the secret beside
// its API key.
func (s *shop) register(ctx context.Context, address string) (id string) {
	var hook struct {
		ID     string
		Secret string `json:"signing_secret"`
	}
	err := s.call(ctx, "POST", "/webhooks", "", map[string]any{"url": address, "events": []receive.EventType{receive.TokenUpdated}}, &hook)
	if err == nil {
		s.hook, err = endpoint.New(s.hear, receive.NewWebhookSecret([]byte(hook.Secret)))
	}
	if err != nil {
		s.log.Info("no webhook could be registered: the shop polls the vault", "error", err)
	}
	return hook.ID
}

// webhook receives a webhook. Package endpoint believes nothing that the vault has not signed,
// within five minutes.
func (s *shop) webhook(w http.ResponseWriter, r *http.Request) {
	if s.hook == nil {
		http.NotFound(w, r)
		return
	}
	s.hook.ServeHTTP(w, r)
}

// hear accepts an event, even a repeated one: otherwise it is sent again.
func (s *shop) hear(_ context.Context, e *receive.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.eventIDs[e.ID] {
		keep(s.eventIDs, e.ID, true)
		select {
		case s.waiting[e.TokenID.String()] <- struct{}{}:
		default: // no request waits, or it is notified already
		}
	}
	return nil
}

// keep puts v into a map of bounded size. A real shop has a database.
func keep[K comparable, V any](m map[K]V, key K, v V) {
	for old := range m {
		if len(m) < kept {
			break
		}
		delete(m, old)
	}
	m[key] = v
}

// A refusal is an error that the vault has answered.
type refusal struct {
	status              int
	Classifier, Message string
}

func (e *refusal) Error() string {
	return fmt.Sprintf("the vault answers %d %s: %s", e.status, e.Classifier, e.Message)
}

// call sends a request to the vault. Requests that must not happen twice have an
// idempotency key: then net/http repeats them when a connection is lost, as it does a GET.
// A shopper who tries again receives the existing result.
func (s *shop) call(ctx context.Context, method, path, key string, in, out any) error {
	var body io.Reader = http.NoBody
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}

	r, err := http.NewRequestWithContext(ctx, method, s.vault+path, body)
	if err != nil {
		return errors.New("the URL of a call to the vault is malformed") // err has the URL
	}

	r.Header.Set("X-Api-Key", s.APIKey)
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}

	w, err := s.client.Do(r)
	if err != nil {
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err // without the URL, which may hold the id of a session
		}
		return fmt.Errorf("the vault did not respond: %w", err)
	}
	defer w.Body.Close()

	data, err := io.ReadAll(io.LimitReader(w.Body, maxBody))
	if err != nil {
		return fmt.Errorf("the vault did not respond: %w", err)
	}
	if w.StatusCode >= 300 {
		refused := &refusal{status: w.StatusCode}
		_ = json.Unmarshal(data, refused) // the status says enough
		return refused
	}

	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}

var page = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Checkout – Paper &amp; Thread</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/shop.css">
<script type="module" src="{{.Vault}}/sdk/v1/card-entry.js"></script>
<script type="module" src="/shop.js"></script>
<main>
<header>
  <svg viewBox="0 0 64 80" aria-hidden="true"><rect class="cover" x="4" y="2" width="56" height="76" rx="4"/><path class="band" d="M50 2v76M14 2v76"/><path class="label" d="M22 20h20v12H22z"/></svg>
  <div><p>Paper &amp; Thread</p><h1>Dotted notebook, A5</h1><p>Bound by hand, 192 pages</p></div>
  <strong>{{.Price}}</strong>
</header>
{{with .Terms}}<p>{{.}}</p>
{{end}}<form data-order="{{.Order}}">
  <card-entry session-id="{{.Session}}" base-url="{{.Vault}}" cardholder-name="optional"></card-entry>
  <button>Pay {{.Price}}</button>
</form>
<output></output>
<dl></dl>
<footer>Your card goes to a vault, never to this shop. This is a sandbox: use test cards only.</footer>
</main>
</html>
`))

const script = `const form = document.querySelector("form");
const card = form.querySelector("card-entry");
const button = form.querySelector("button");
let entered = false; // the vault has the card

function show({ message = "", state = "", facts = [] }) {
  const output = document.querySelector("output");
  output.textContent = message;
  document.querySelector("main").dataset.state = state;
  document.querySelector("dl").replaceChildren(...facts.flatMap(([name, value]) => {
    const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
    [dt.textContent, dd.textContent] = [name, value];
    return [dt, dd];
  }));
}

async function ask(what) {
  try {
    const path = "/orders/" + form.dataset.order + "/" + what;
    return await (await fetch(path, { method: "POST" })).json();
  } catch {
    return { message: "The shop is not responding. Please try again.", next: "retry" };
  }
}

async function pay() {
  entered = true;
  show({ message: "One moment …", state: "busy" });
  const answer = await ask("pay");
  show(answer);
  if (answer.next === "new_session") await renew();
  button.disabled = answer.state === "paid";
}

// Another session for the same order: the page stays, and what was typed.
async function renew() {
  const answer = await ask("session");
  if (!answer.session_id) return show(answer);
  entered = false;
  card.sessionId = answer.session_id;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (button.disabled) return;
  if (!customElements.get("card-entry")) return show({ message: "The card fields cannot be loaded. Please reload the page.", state: "declined" });
  button.disabled = true;
  show({});
  if (entered) pay();
  else card.submit().catch(() => {}); // the error event tells
});
// Which token it is the shop asks the vault: what a page says can be forged.
card.addEventListener("success", pay);
card.addEventListener("error", async ({ detail }) => {
  if (detail.action === "new_session") await renew();
  if (detail.action === "correct") show({}); // is told at its field
  else if (detail.reason_code === "session_expired") show({ message: "That took a while. Please press Pay again." });
  else show({ message: detail.message, state: "declined" });
  button.disabled = false;
});
`

const style = `:root {
  color-scheme: light dark;
  font: 1rem/1.5 system-ui, sans-serif;
  --text: light-dark(#1d1d1f, #f2f0ec);
  --quiet: light-dark(#63605a, #a9a49b);
  --paper: light-dark(#fff, #1e201d);
  --desk: light-dark(#f4f1ec, #141513);
  --accent: light-dark(#1f5c4d, #7fd1b9);
}
* { box-sizing: border-box; }
body { margin: 0; color: var(--text); background: var(--desk); }
main { width: min(29rem, 100% - 2rem); margin: clamp(1rem, 8vh, 5rem) auto; padding: clamp(1.25rem, 6vw, 2.25rem); background: var(--paper); border-radius: 1.25rem; box-shadow: 0 1px 2px #0002, 0 1rem 3rem #0001; }
header { display: flex; gap: 1rem; align-items: center; margin-bottom: 1.75rem; }
header div { flex: 1; }
svg { width: 3.25rem; flex: none; }
.cover { fill: var(--accent); }
.band { fill: none; stroke: #0003; stroke-width: 2.5; }
.label { fill: var(--desk); }
h1 { margin: 0; font-size: 1.1rem; line-height: 1.3; }
p, footer { margin: 0; color: var(--quiet); font-size: .85rem; }
strong { font-size: 1.1rem; }
card-entry {
  display: block;
  --card-entry-accent-color: var(--accent);
  --card-entry-background: var(--paper);
  --card-entry-border-color: light-dark(#8c887f, #75776f);
  --card-entry-color: var(--text);
  --card-entry-label-color: var(--quiet);
  --card-entry-placeholder-color: light-dark(#75726b, #8f8b83);
}
button { width: 100%; margin-top: 1.25rem; padding: .85rem; border: 0; border-radius: .65rem; font: inherit; font-weight: 600; color: light-dark(#fff, #10211c); background: var(--accent); cursor: pointer; }
button:hover { filter: brightness(1.08); }
button:focus-visible { outline: 3px solid var(--accent); outline-offset: 3px; }
button:disabled { opacity: .55; cursor: default; }
output { display: block; margin-top: 1rem; }
output:empty, dl:empty, [data-state=paid] form { display: none; }
[data-state=declined] output { color: light-dark(#a3261b, #ff9d91); }
[data-state=paid] output { margin: 0; font-size: 1.1rem; font-weight: 600; color: var(--accent); }
dl { display: grid; grid-template-columns: auto 1fr; gap: .35rem 1.5rem; margin: 1rem 0 0; font-size: .9rem; }
dt { color: var(--quiet); }
dd { margin: 0; text-align: end; overflow-wrap: anywhere; }
footer { margin-top: 1.75rem; }
`
