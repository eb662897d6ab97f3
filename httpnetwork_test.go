package cardvault_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/networktest"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// This file tests faults between a vault and a token service. The adapter is like a real
// one, and the service fails in every way in which a server can.

// An httpNetwork is a Network over JSON and HTTP.
type httpNetwork struct {
	client *http.Client
	base   string // URL
}

func newHTTPNetwork(base string, transport *http.Transport) *httpNetwork {
	return &httpNetwork{base: base, client: &http.Client{
		Transport: transport,
		// The card number is in the body, and must go to no other server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

type (
	wireRequest struct {
		RequestID string     `json:"request_id"`
		Key       string     `json:"idempotency_key"`
		ID        string     `json:"id,omitempty"`
		Number    string     `json:"number,omitempty"`
		Expiry    wireExpiry `json:"expiry,omitzero"`
		Amount    int64      `json:"amount,omitempty"`
		Currency  string     `json:"currency,omitempty"`
	}
	wireAnswer struct {
		RequestID  string          `json:"request_id"`
		Unknown    bool            `json:"unknown,omitempty"`
		Refused    *wireRefusal    `json:"refused,omitempty"`
		Token      *wireToken      `json:"token,omitempty"`
		Cryptogram *wireCryptogram `json:"cryptogram,omitempty"`
	}
	wireRefusal struct {
		Configuration bool   `json:"configuration"`
		Code          string `json:"code"`
	}
	wireToken struct {
		ID       string `json:"id"`
		State    string `json:"state"`
		LastFour string `json:"last_four"`
	}
	wireCryptogram struct {
		TokenID string     `json:"token_id"`
		Number  string     `json:"number"`
		Expiry  wireExpiry `json:"expiry"`
		Value   string     `json:"value"`
		ECI     string     `json:"eci"`
	}
	wireExpiry struct {
		Month int `json:"month"`
		Year  int `json:"year"`
	}
)

// maxAnswer limits how much of an answer is read, in bytes.
const maxAnswer = 64 << 10

// ask posts q. Its errors contain nothing of the answer, which may repeat the request.
func (n *httpNetwork) ask(ctx context.Context, path string, q wireRequest) (*wireAnswer, error) {
	q.RequestID = uuid.NewString()
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := n.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("service answers with status %d", resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	var a wireAnswer
	if len(text) > maxAnswer || json.Unmarshal(text, &a) != nil || a.RequestID != q.RequestID {
		return nil, errors.New("service gives an answer to another request")
	}
	if r := a.Refused; r != nil {
		source := network.SourceScheme
		if r.Configuration {
			source = network.SourceConfiguration
		}
		return nil, &network.Error{Source: source, Code: network.Code(r.Code)}
	}
	if a.Unknown {
		return nil, network.ErrUnknown
	}
	return &a, nil
}

func (a *wireAnswer) token() (*network.Token, error) {
	if a.Token == nil {
		return nil, errors.New("service answers without a token")
	}
	var state network.Status
	if state.UnmarshalText([]byte(a.Token.State)) != nil {
		return nil, errors.New("service answers with an unknown state")
	}
	return &network.Token{
		ID: a.Token.ID, State: state, Card: &network.CardState{LastFour: a.Token.LastFour},
	}, nil
}

func (*httpNetwork) Info() network.Info { return network.Info{Name: "http"} }

func (*httpNetwork) Eligible(r *network.EligibilityRequest) error {
	if r.Scheme != card.VISA {
		return configurationError("scheme_not_enabled")
	}
	return nil
}

func (n *httpNetwork) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	q := wireRequest{Key: r.IdempotencyKey, Expiry: wireExpiry{r.Expiry.Month, r.Expiry.Year}}
	r.PAN.Expose(func(d []byte) { q.Number = string(d) })
	a, err := n.ask(ctx, "/provision", q)
	if err != nil {
		return nil, err
	}
	return a.token()
}

func (n *httpNetwork) Lookup(ctx context.Context, ref network.Ref) (*network.Token, error) {
	a, err := n.ask(ctx, "/lookup", wireRequest{Key: ref.IdempotencyKey, ID: ref.ID})
	if err != nil {
		return nil, err
	}
	return a.token()
}

func (n *httpNetwork) Cryptogram(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
	a, err := n.ask(ctx, "/cryptogram", wireRequest{
		Key: r.IdempotencyKey, ID: r.Token.ID, Amount: r.Amount, Currency: r.Currency,
	})
	if err != nil {
		return nil, err
	}
	c := a.Cryptogram
	if c == nil {
		return nil, errors.New("service answers without a cryptogram")
	}
	return &network.Cryptogram{
		TokenID: c.TokenID,
		Number:  card.NewPAN([]byte(c.Number)),
		Expiry:  card.Expiry{Month: c.Expiry.Month, Year: c.Expiry.Year},
		Value:   card.NewCryptogramValue([]byte(c.Value)),
		ECI:     c.ECI,
	}, nil
}

func (n *httpNetwork) Delete(ctx context.Context, ref network.Ref) error {
	_, err := n.ask(ctx, "/delete", wireRequest{Key: ref.IdempotencyKey, ID: ref.ID})
	return err
}

// A service is a token service. It makes one network token per idempotency key, for VISA
// cards whose number does not end in 0002.
type service struct {
	mu      sync.Mutex
	state   string           // of new network tokens
	faults  map[string]fault // by path
	asked   []wireAsked
	tokens  map[string]*wireToken // by id
	keys    map[string]string     // ids by idempotency key
	numbers []string              // issued network token numbers and cryptograms
}

// A wireAsked is a request received.
type wireAsked struct{ path, key string }

// A fault serves a request in a faulty way. answer does the request, and returns the correct
// answer.
type fault func(w http.ResponseWriter, r *http.Request, answer func() *wireAnswer)

func newService() *service {
	return &service{state: "active", faults: map[string]fault{}, tokens: map[string]*wireToken{}, keys: map[string]string{}}
}

// goes sets the fault for later requests to a path; nil ends it.
func (s *service) goes(path string, f fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[path] = f
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q wireRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil { // otherwise r.Context does not end with the connection
		return
	}
	s.mu.Lock()
	s.asked = append(s.asked, wireAsked{r.URL.Path, q.Key})
	f := s.faults[r.URL.Path]
	s.mu.Unlock()
	answer := func() *wireAnswer {
		s.mu.Lock()
		defer s.mu.Unlock()
		a := s.do(r.URL.Path, &q)
		a.RequestID = q.RequestID
		return a
	}
	if f == nil {
		f = altered(func(*wireAnswer) {})
	}
	f(w, r, answer)
}

// do does the request q; s is locked.
func (s *service) do(path string, q *wireRequest) *wireAnswer {
	t := s.tokens[q.ID]
	if q.ID == "" {
		t = s.tokens[s.keys[q.Key]]
	}
	switch path {
	case "/provision":
		if t == nil {
			if !iin.Luhn([]byte(q.Number)) || strings.HasSuffix(q.Number, "0002") {
				return &wireAnswer{Refused: &wireRefusal{Code: "card_not_eligible"}}
			}
			t = &wireToken{fmt.Sprint("token-", len(s.tokens)+1), s.state, q.Number[len(q.Number)-4:]}
			s.tokens[t.ID], s.keys[q.Key] = t, t.ID
		}
	case "/delete":
		if t != nil {
			t.State = "deleted"
		}
		return &wireAnswer{}
	case "/cryptogram":
		if t == nil || t.State != "active" {
			return &wireAnswer{Refused: &wireRefusal{Code: "declined"}}
		}
		sum := sha256.Sum256([]byte(q.Key))
		c := &wireCryptogram{t.ID, "4895370000000007", wireExpiry{11, 2090}, base64.StdEncoding.EncodeToString(sum[:20]), "07"}
		s.numbers = append(s.numbers, c.Number, c.Value)
		return &wireAnswer{Cryptogram: c}
	}
	if t == nil {
		return &wireAnswer{Unknown: true}
	}
	state := *t
	return &wireAnswer{Token: &state}
}

// requests returns the requests for a path.
func (s *service) requests(path string) (all []wireAsked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.asked {
		if a.path == path {
			all = append(all, a)
		}
	}
	return all
}

// only checks that there are n network tokens, all in one state.
func (s *service) only(t testing.TB, n int, state string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	states := map[string]int{}
	for _, t := range s.tokens {
		states[t.State]++
	}
	if len(s.tokens) != n || states[state] != n {
		t.Errorf("network tokens by state: %v, want %d in state %s", states, n, state)
	}
}

// issued returns the network token numbers and cryptograms issued so far.
func (s *service) issued() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.numbers)
}

// sendWire ignores errors, since the client may be gone.
func sendWire(w http.ResponseWriter, b []byte) { _, _ = w.Write(b) }

func wireText(a *wireAnswer) []byte {
	b, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	return b
}

// answering edits the text of the correct answer.
func answering(edit func(right []byte) []byte) fault {
	return func(w http.ResponseWriter, _ *http.Request, answer func() *wireAnswer) {
		sendWire(w, edit(wireText(answer())))
	}
}

// altered edits the correct answer.
func altered(edit func(*wireAnswer)) fault {
	return func(w http.ResponseWriter, _ *http.Request, answer func() *wireAnswer) {
		a := answer()
		edit(a)
		sendWire(w, wireText(a))
	}
}

// answersStatus gives the correct answer under an error status.
func answersStatus(code int) fault {
	return func(w http.ResponseWriter, _ *http.Request, answer func() *wireAnswer) {
		a := answer()
		w.WriteHeader(code)
		sendWire(w, wireText(a))
	}
}

var wireFaults = map[string]fault{
	"hangs": func(_ http.ResponseWriter, r *http.Request, _ func() *wireAnswer) { <-r.Context().Done() },
	"hangs after doing it": func(_ http.ResponseWriter, r *http.Request, answer func() *wireAnswer) {
		answer()
		<-r.Context().Done()
	},
	"hangs within its answer": func(w http.ResponseWriter, r *http.Request, answer func() *wireAnswer) {
		b := wireText(answer())
		sendWire(w, b[:len(b)/2])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	},
	"late": func(w http.ResponseWriter, _ *http.Request, answer func() *wireAnswer) {
		a := answer()
		<-time.After(11 * time.Second)
		sendWire(w, wireText(a))
	},
	"answers twice":           answering(func(b []byte) []byte { return append(b, b...) }),
	"answers another request": altered(func(a *wireAnswer) { a.RequestID = uuid.NewString() }),
	"answers for another token": altered(func(a *wireAnswer) {
		if a.Token != nil {
			a.Token.ID, a.Token.LastFour = "token-of-another", "0000"
		}
		if a.Cryptogram != nil {
			a.Cryptogram.TokenID = "token-of-another"
		}
	}),
	"answers 10 MB": answering(func(b []byte) []byte { return append(bytes.Repeat([]byte(" "), 10<<20), b...) }),
	"answers far too much": func(w http.ResponseWriter, r *http.Request, _ func() *wireAnswer) {
		for range 256 << 10 { // 1 GiB
			if _, err := w.Write(make([]byte, 4<<10)); err != nil {
				return
			}
		}
	},
	"answers garbage":         answering(func([]byte) []byte { return []byte("\x00<html>4242424242424242") }),
	"answers half":            answering(func(b []byte) []byte { return b[:len(b)/2] }),
	"answers nothing":         answering(func([]byte) []byte { return nil }),
	"answers null":            answering(func([]byte) []byte { return []byte("null") }),
	"answers wrong types":     answering(func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(`":"`), []byte(`":7,"x":"`)) }),
	"answers an empty object": altered(func(a *wireAnswer) { *a = wireAnswer{} }),
	"fails":                   answersStatus(http.StatusInternalServerError),
	"is unavailable":          answersStatus(http.StatusServiceUnavailable),
	"forbids":                 answersStatus(http.StatusForbidden),
	"redirects": func(w http.ResponseWriter, r *http.Request, _ func() *wireAnswer) {
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	},
	"closes the connection": func(http.ResponseWriter, *http.Request, func() *wireAnswer) { panic(http.ErrAbortHandler) },
	"closes the connection after doing it": func(_ http.ResponseWriter, _ *http.Request, answer func() *wireAnswer) {
		answer()
		panic(http.ErrAbortHandler)
	},
}

// onService runs f in a bubble, on a vault whose network is a service.
func onService(t *testing.T, opts *cardvault.Options, f func(l *lab, s *service)) {
	inLab(t, opts, func(l *lab) {
		s := newService()
		pipes := bubble.Listen()
		server := &http.Server{Handler: s}
		served := make(chan error, 1)
		go func() { served <- server.Serve(pipes) }()
		transport := &http.Transport{DialContext: pipes.Dial}
		l.opts.Network = newHTTPNetwork("http://service", transport)
		l.restart()
		f(l, s)
		transport.CloseIdleConnections()
		l.must(server.Shutdown(l.Context())) // also waits for late answers
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		if len(s.requests("/elsewhere")) > 0 {
			t.Error("a card number was sent elsewhere")
		}
		vaulttest.AssertNoLeak(t, append(s.issued(), visaNumber), l.log.text())
	})
}

const visaNumber = "4242424242424242"

// TestHTTPNetwork: the adapter itself satisfies the contract. Only the service fails below.
func TestHTTPNetwork(t *testing.T) {
	server := httptest.NewServer(newService())
	defer server.Close()
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	expiry := card.Expiry{Month: 12, Year: 2090}
	networktest.Run(t, networktest.Harness{
		Open:    func(testing.TB) network.Provider { return newHTTPNetwork(server.URL, transport) },
		Scheme:  card.VISA,
		Card:    cardvault.Card{PAN: card.NewPAN([]byte(visaNumber)), Expiry: expiry},
		Refused: cardvault.Card{PAN: card.NewPAN([]byte("4000000000000002")), Expiry: expiry},
	})
}

// TestFaultsWhileProvisioning: however a service fails, a network token stays pending until
// the same request has been answered. Only one network token is made.
func TestFaultsWhileProvisioning(t *testing.T) {
	for name, fault := range wireFaults {
		t.Run(name, func(t *testing.T) {
			onService(t, nil, func(l *lab, s *service) {
				s.goes("/provision", fault)
				id := l.imports(visa)
				l.run(func() {
					l.pass(12 * time.Second) // one deadline passes, with tries left
					l.is(id, pending, "")
					s.goes("/provision", nil)
					l.pass(time.Minute)
				})
				l.is(id, active, "")
				keys := map[string]bool{}
				for _, a := range s.requests("/provision") {
					keys[a.key] = true
				}
				if n := len(s.requests("/provision")); n < 2 || len(keys) != 1 {
					t.Errorf("%d requests under %d keys, want several under one", n, len(keys))
				}
				s.only(t, 1, "active")
			})
		})
	}
}

// TestFaultsWhilePolling: an accepted network token stays pending until the service reports
// its state.
func TestFaultsWhilePolling(t *testing.T) {
	for name, fault := range wireFaults {
		t.Run(name, func(t *testing.T) {
			onService(t, nil, func(l *lab, s *service) {
				s.state = "pending"
				s.goes("/lookup", fault)
				id := l.imports(visa)
				l.run(func() {
					l.pass(15 * time.Second)
					l.is(id, pending, "")
					s.mu.Lock()
					s.tokens["token-1"].State = "active"
					s.mu.Unlock()
					l.pass(15 * time.Second)
					l.is(id, pending, "")
					s.goes("/lookup", nil)
					l.pass(time.Minute)
				})
				l.is(id, active, "")
				s.only(t, 1, "active")
				if n := len(s.requests("/lookup")); n < 3 {
					t.Errorf("%d lookups", n)
				}
			})
		})
	}
}

// TestFaultsWhileDeleting: a token is deleted at once, and its network token as soon as the
// service does it.
func TestFaultsWhileDeleting(t *testing.T) {
	for name, fault := range wireFaults {
		t.Run(name, func(t *testing.T) {
			onService(t, nil, func(l *lab, s *service) {
				id := l.imports(visa)
				l.run(func() {
					l.pass(time.Second)
					l.is(id, active, "")
					s.goes("/delete", fault)
					start := time.Now()
					l.must(l.Vault.Delete(l.Context(), id))
					if d := time.Since(start); d != 0 {
						t.Errorf("the deletion took %v, as if it waited for the network", d)
					}
					l.pass(15 * time.Second)
					s.goes("/delete", nil)
					l.pass(time.Minute)
				})
				s.only(t, 1, "deleted")
				asked := len(s.requests("/delete"))
				if name != "answers for another token" && asked < 2 { // the answer to a deletion names no token
					t.Errorf("%d requests, want a repetition", asked)
				}
				l.run(func() { l.pass(24 * time.Hour) })
				if n := len(s.requests("/delete")); n != asked {
					t.Error("a deleted network token is deleted again")
				}
			})
		})
	}
}

// TestFaultsWhilePaying: a payment during a fault has no cryptogram, and the next payment
// has its own.
func TestFaultsWhilePaying(t *testing.T) {
	for name, fault := range wireFaults {
		t.Run(name, func(t *testing.T) {
			onService(t, nil, func(l *lab, s *service) {
				id := l.imports(visa)
				l.drain()
				l.is(id, active, "")
				merchant, err := l.PrimaryMerchant(l.Context())
				l.must(err)
				secret, err := l.RotatePaymentSecret(l.Context(), merchant.ID, nil)
				l.must(err)
				pay := func() (*cardvault.PaymentData, time.Duration) {
					t.Helper()
					start := time.Now()
					p, err := l.RequestPaymentData(l.Context(), id, cardvault.PaymentRequest{
						Amount: 1099, Currency: "EUR", Reference: "order 8812",
					})
					l.must(err)
					return p, time.Since(start)
				}

				s.goes("/cryptogram", fault)
				bad, took := pay()
				code := "scheme_unavailable"
				if took > 0 {
					code = "timeout"
				}
				if took != 0 && took != 10*time.Second {
					t.Errorf("the answer took %v", took)
				}
				if bad.Success || bad.Encrypted != "" || len(bad.Failures) != 1 {
					t.Fatalf("payment data: %+v", bad)
				}
				if f := bad.Failures[0]; f.Source != network.SourceScheme || string(f.Code) != code || !f.Retryable || f.Message == "" {
					t.Errorf("failure %+v, want %s", f, code)
				}
				l.is(id, active, "")

				s.goes("/cryptogram", nil)
				good, _ := pay()
				if !good.Success || len(good.Failures) > 0 {
					t.Fatalf("payment data: %+v", good)
				}
				credential, err := receive.OpenPaymentData(good.Encrypted, secret.Secret)
				l.must(err)
				var got []string
				credential.Number.Expose(func(d []byte) { got = append(got, string(d)) })
				credential.Cryptogram.Expose(func(v []byte) { got = append(got, string(v)) })
				if issued := s.issued(); !slices.Equal(got, issued[len(issued)-2:]) {
					t.Error("the cryptogram is not the last one issued")
				}
				asked := s.requests("/cryptogram")
				if len(asked) != 2 || asked[0].key == asked[1].key {
					t.Errorf("requests %v, want one for each payment", asked)
				}
				list, err := l.ListPaymentData(l.Context(), id, nil)
				l.must(err)
				if list.TotalItems != 2 || list.Items[1].ID != bad.ID || list.Items[1].Failures[0].Code != network.Code(code) {
					t.Errorf("%d payment data are listed, want both", list.TotalItems)
				}
			})
		})
	}
}

// TestServiceDownForTenMinutes: a service that is down for ten minutes delays network
// tokens, and nothing else.
func TestServiceDownForTenMinutes(t *testing.T) {
	onService(t, live, func(l *lab, s *service) {
		s.goes("/provision", answersStatus(http.StatusServiceUnavailable))
		l.run(func() {
			var ids []uuid.UUID
			for minute := range 10 {
				start := time.Now()
				ids = append(ids, l.imports(visa))
				if d := time.Since(start); d != 0 {
					t.Errorf("in minute %d an import took %v, as if it waited for the network", minute, d)
				}
				l.pass(time.Minute)
			}
			for _, id := range ids {
				l.is(id, pending, "")
			}
			s.goes("/provision", nil)
			l.pass(13 * time.Minute) // the longest pause so far, plus a fifth
			for _, id := range ids {
				l.is(id, active, "")
			}
			s.only(t, len(ids), "active")
		})
	})
}

// TestServiceHangs: while a service hangs on every call, calls that do not need it succeed.
// Imports leave the network to Run, so that nothing is called without it.
func TestServiceHangs(t *testing.T) {
	onService(t, nil, func(l *lab, s *service) {
		hang := wireFaults["hangs"]
		for _, path := range []string{"/provision", "/lookup", "/delete"} {
			s.goes(path, hang)
		}
		var ids []uuid.UUID
		for range 100 {
			ids = append(ids, l.imports(visa))
		}
		l.pass(time.Minute)
		if n := len(s.requests("/provision")); n != 0 {
			t.Errorf("imports called the network %d times", n)
		}
		l.run(func() {
			l.pass(time.Second)
			if n := len(s.requests("/provision")); n == 0 {
				t.Error("Run does not call the network")
			}
			start := time.Now()
			for range 100 {
				ids = append(ids, l.imports(visa))
			}
			l.must2(l.Update(l.Context(), ids[0], cardvault.TokenUpdate{Expiry: &card.Expiry{Month: 1, Year: 2088}}))
			l.must(l.Vault.Delete(l.Context(), ids[1]))
			page, err := l.List(l.Context(), nil)
			l.must(err)
			if page.TotalItems != 199 {
				t.Errorf("%d tokens, want 199", page.TotalItems)
			}
			if d := time.Since(start); d != 0 {
				t.Errorf("calls that do not need the network took %v", d)
			}
			for _, path := range []string{"/provision", "/lookup", "/delete"} {
				s.goes(path, nil)
			}
			l.pass(time.Hour)
			for i, id := range ids {
				if i != 1 {
					l.is(id, active, "")
				}
			}
			s.only(t, 199, "active")
		})
	})
}
