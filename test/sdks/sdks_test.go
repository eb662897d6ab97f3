// Package sdks pays with stored cards through libraries of payment providers as they are
// published. Local servers with TLS answer like the providers.
package sdks_test

import (
	"compress/gzip"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
	"github.com/mercadopago/sdk-go/pkg/cardtoken"
	"github.com/mercadopago/sdk-go/pkg/config"
	"github.com/stripe/stripe-go/v85"
)

const (
	number = "4242424242424242"
	masked = "424242******4242"
	code   = "739"
	holder = `Zoë "Z" O'Neil`
	typed  = "{{ account_number }}" // by a shopper, into a field of their own
)

// A provider is a server like that of a payment provider.
type provider struct {
	*httptest.Server
	requests atomic.Int64
}

func serve(t *testing.T, h http.HandlerFunc) *provider {
	t.Helper()
	p := new(provider)
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		h(w, r)
	}))
	p.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.StartTLS()
	t.Cleanup(p.Close)
	return p
}

// stored returns a forwarder to a provider and the token of a card.
func stored(t *testing.T, p *provider) (*forward.Forwarder, uuid.UUID) {
	t.Helper()
	return storedIn(t, vaulttest.New(t), p)
}

func storedIn(t *testing.T, v *cardvault.Vault, p *provider) (*forward.Forwarder, uuid.UUID) {
	t.Helper()
	token, err := v.Import(t.Context(), cardvault.Card{
		PAN:          card.NewPAN([]byte(number)),
		Expiry:       card.Expiry{Month: 4, Year: 2088},
		SecurityCode: card.NewSecurityCode([]byte(code)),
		Name:         card.NewName([]byte(holder)),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}

	roots := x509.NewCertPool()
	roots.AddCert(p.Certificate())
	f, err := forward.New(v, []forward.Destination{{Name: "psp", URL: p.URL + "/v1", Roots: roots, Methods: []string{"POST", "GET"}}},
		&forward.Options{AllowLoopback: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f, token.ID
}

// A logger keeps everything that a library logs.
type logger struct{ strings.Builder }

func (l *logger) Debugf(format string, v ...any) { fmt.Fprintf(l, format+"\n", v...) }
func (l *logger) Infof(format string, v ...any)  { fmt.Fprintf(l, format+"\n", v...) }
func (l *logger) Warnf(format string, v ...any)  { fmt.Fprintf(l, format+"\n", v...) }
func (l *logger) Errorf(format string, v ...any) { fmt.Fprintf(l, format+"\n", v...) }

// stripeServer is a server like Stripe's. note is the metadata that it wants.
func stripeServer(t *testing.T, note string) *provider {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		form, err := url.ParseQuery(string(body))
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/v1/payment_methods":
			if form.Get("card[number]") != number || form.Get("card[cvc]") != code || form.Get("billing_details[name]") != holder || form.Get("metadata[note]") != note {
				t.Errorf("form is %v", form)
			}
			fmt.Fprintf(w, `{"id":"pm_123","object":"payment_method","card":{"last4":"4242"},"metadata":{"echo":"%s"}}`, form.Get("card[number]"))
		case "/v1/payment_intents":
			w.WriteHeader(402)
			fmt.Fprintf(w, `{"error":{"type":"card_error","code":"card_declined","message":"Your card %s was declined."}}`, number)
		}
	})
}

// TestStripe: stripe-go makes a payment method and a payment with random placeholders. Its
// errors, its log and its answers have no card.
func TestStripe(t *testing.T) {
	p := stripeServer(t, typed)
	f, token := stored(t, p)
	var logged logger
	client := stripe.NewClient("sk_test_1", stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		HTTPClient:    f.Client(uuid.Nil, nil),
		URL:           stripe.String(p.URL),
		LeveledLogger: &logged,
	})))

	ctx, c := f.With(t.Context(), token, nil)
	method, err := client.V1PaymentMethods.Create(ctx, &stripe.PaymentMethodCreateParams{
		Type:           stripe.String("card"),
		Card:           &stripe.PaymentMethodCreateCardParams{Number: &c.AccountNumber, CVC: &c.SecurityCode, ExpMonth: stripe.Int64(4), ExpYear: stripe.Int64(2088)},
		BillingDetails: &stripe.PaymentMethodCreateBillingDetailsParams{Name: &c.CardholderName},
		Metadata:       map[string]string{"note": typed},
	})
	if err != nil || method.ID != "pm_123" || method.Metadata["echo"] != masked || method.Card.Last4 != "4242" {
		t.Fatalf("payment method is %+v, %v", method, err)
	}

	_, err = client.V1PaymentIntents.Create(ctx, &stripe.PaymentIntentCreateParams{
		Amount: stripe.Int64(1999), Currency: stripe.String("eur"), PaymentMethod: &method.ID,
	})
	if e, ok := err.(*stripe.Error); !ok || e.Code != stripe.ErrorCodeCardDeclined || !strings.Contains(e.Msg, masked) {
		t.Errorf("declined: %v", err)
	}
	vaulttest.AssertNoLeak(t, []string{number}, logged.String(), err, fmt.Sprintf("%+v", method))
}

// TestStripeRepeats: stripe-go repeats a call whose connection was cut. Under an idempotency
// key of the forward the provider sees it once.
func TestStripeRepeats(t *testing.T) {
	p := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	})
	f, token := stored(t, p)
	client := stripe.NewClient("sk_test_1", stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		HTTPClient: f.Client(uuid.Nil, nil), URL: stripe.String(p.URL), LeveledLogger: &stripe.LeveledLogger{},
	})))
	ctx, c := f.With(t.Context(), token, &forward.CallOptions{IdempotencyKey: "order 1"})
	_, err := client.V1PaymentMethods.Create(ctx, &stripe.PaymentMethodCreateParams{Card: &stripe.PaymentMethodCreateCardParams{Number: &c.AccountNumber}})
	if err == nil || !strings.Contains(err.Error(), "outcome unknown") || p.requests.Load() != 1 {
		t.Errorf("%d requests, %v", p.requests.Load(), err)
	}
}

// A rewriter sends requests to a local server in place of the provider's own.
type rewriter struct {
	client *http.Client
	to     string
}

func (w rewriter) Do(r *http.Request) (*http.Response, error) {
	u, err := url.Parse(w.to + r.URL.RequestURI())
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.URL, r.Host = u, ""
	return w.client.Do(r)
}

// TestMercadoPago: a library that sends JSON, with fixed placeholders in its own structs.
func TestMercadoPago(t *testing.T) {
	p := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var sent cardtoken.Request
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			t.Error(err)
		}
		if sent.CardNumber != number || sent.SecurityCode != code || sent.ExpirationMonth != "04" || sent.ExpirationYear != "2088" || sent.Cardholder.Name != holder {
			t.Errorf("sent %+v", sent)
		}
		fmt.Fprintf(w, `{"id":"tok_1","first_six_digits":"424242","last_four_digits":"4242","public_key":"%s"}`, sent.CardNumber)
	})
	f, token := stored(t, p)
	cfg, err := config.New("access", config.WithHTTPClient(rewriter{f.Client(token, nil), p.URL}))
	if err != nil {
		t.Fatal(err)
	}
	got, err := cardtoken.NewClient(cfg).Create(context.Background(), cardtoken.Request{
		CardNumber:      "{{ account_number }}",
		ExpirationMonth: "{{ expiry_month }}",
		ExpirationYear:  "{{ expiry_year }}",
		SecurityCode:    "{{ security_code }}",
		Cardholder:      &cardtoken.CardholderRequest{Name: "{{ cardholder_name }}"},
	})
	if err != nil || got.ID != "tok_1" || got.FirstSixDigits != "424242" || strings.Contains(fmt.Sprintf("%+v", got), number) {
		t.Errorf("answer is %+v, %v", got, err)
	}
}

// inNode runs a program of Node.js, and expects its output.
func inNode(t *testing.T, library, program string, arguments []string, want string) {
	t.Helper()
	if _, err := os.Stat("node_modules/" + library); err != nil {
		t.Skip(library + " is not installed (npm ci --prefix test/sdks --ignore-scripts)")
	}
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("Node.js is not installed (Debian: apt-get install nodejs)")
	}
	out, err := exec.CommandContext(t.Context(), "node", append([]string{program}, arguments...)...).CombinedOutput()
	if err != nil || string(out) != want {
		t.Errorf("it prints %s, %v; want %s", out, err, want)
	}
}

// overREST returns the arguments of a program that pays at a provider over POST /forward.
func overREST(t *testing.T, p *provider) []string {
	t.Helper()
	v := vaulttest.New(t)
	f, token := storedIn(t, v, p)
	api, err := httpapi.NewHandler(v, &httpapi.Options{Forward: f})
	if err != nil {
		t.Fatal(err)
	}
	vault := httptest.NewServer(api)
	t.Cleanup(vault.Close)
	key, err := v.CreateAPIKey(t.Context(), "shop", []cardvault.Scope{cardvault.ScopeForwardCreate}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return []string{vault.URL, key.Text.Text(), token.String(), p.URL}
}

// TestStripeNode: Stripe's library for Node.js pays over POST /forward.
func TestStripeNode(t *testing.T) {
	want := "pm_123 " + masked + "\ncard_declined Your card " + masked + " was declined.\n"
	inNode(t, "stripe", "pay.js", overREST(t, stripeServer(t, "")), want)
}

// TestAdyenNode: so does Adyen's, which sends JSON.
func TestAdyenNode(t *testing.T) {
	p := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var sent struct {
			Reference     string
			PaymentMethod struct{ Number, ExpiryMonth, ExpiryYear, CVC, HolderName string }
		}
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			t.Error(err)
		}
		if m := sent.PaymentMethod; m.Number != number || m.CVC != code || m.ExpiryMonth != "04" || m.ExpiryYear != "2088" || m.HolderName != holder {
			t.Errorf("sent %+v", sent)
		}
		if !strings.HasSuffix(r.URL.Path, "/payments") || r.Header.Get("X-Api-Key") != "AQE_test_1" || r.Header.Get("Idempotency-Key") != "order 1" {
			t.Errorf("sent to %s with %v", r.URL.Path, r.Header)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"resultCode":"Authorised","pspReference":"psp_1","additionalData":{"echo":"%s"}}`, sent.PaymentMethod.Number)
	})
	inNode(t, "@adyen/api-library", "adyen.js", overREST(t, p), "Authorised psp_1 "+masked+"\n")
}

// grouped returns a number as it is printed on a card.
func grouped(n string) string { return n[:4] + " " + n[4:8] + " " + n[8:12] + " " + n[12:] }

// TestBraintreeNode: Braintree's, which sends JSON and takes compressed XML, pays through a
// relay whose transport is a forwarder.
func TestBraintreeNode(t *testing.T) {
	p := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var sent struct {
			Transaction struct {
				Amount     string
				CreditCard struct {
					Number, CVV string
					Month       string `json:"expiration_month"`
					Year        string `json:"expiration_year"`
					Name        string `json:"cardholder_name"`
				} `json:"credit_card"`
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			t.Error(err)
		}
		if c := sent.Transaction.CreditCard; c.Number != number || c.CVV != code || c.Month != "04" || c.Year != "2088" || c.Name != holder {
			t.Errorf("sent %+v", sent)
		}
		status, answer := 201, `<transaction><id>`+grouped(sent.Transaction.CreditCard.Number)+`</id><credit-card><bin>424242</bin><last-4>4242</last-4></credit-card></transaction>`
		if sent.Transaction.Amount == "2000.00" {
			status, answer = 422, `<api-error-response><errors><errors type="array"/></errors><params/><message>Do not honor `+grouped(number)+`</message></api-error-response>`
		}
		w.Header().Set("Content-Type", "application/xml; charset=utf-8")
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(status)
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, `<?xml version="1.0" encoding="UTF-8"?>`+answer)
		_ = z.Close()
	})
	f, token := stored(t, p)
	to, err := url.Parse(p.URL + "/v1")
	if err != nil {
		t.Fatal(err)
	}
	relay := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: f.RoundTripper(token, nil),
	})
	defer relay.Close()
	at := strings.Split(relay.Listener.Addr().String(), ":")

	inNode(t, "braintree", "braintree.js", append(at, "19.99"), "true 4242 42** **** 4242 "+masked+" undefined\n")
	inNode(t, "braintree", "braintree.js", append(at, "2000.00"), "false undefined undefined Do not honor 4242 42** **** 4242\n")
}
