package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/network"
	"github.com/google/uuid"
)

// TestNetworkTokenAtCreation: a new card receives a network token, or the first applicable
// reason for having none. Only background work calls the network.
func TestNetworkTokenAtCreation(t *testing.T) {
	expired := visa
	expired.Expiry = card.Expiry{Month: 1, Year: 1999 + 1} // the bubble begins in January 2000
	future := visa
	future.Expiry = card.Expiry{Month: 1, Year: 2031}
	for _, test := range []struct {
		name       string
		card       cardvault.Card
		ttl        time.Duration // TTL of an ephemeral token, made in a session
		none       bool
		inactive   bool // whether the account is inactive
		ineligible error
		want       string
		schemeCode string
	}{
		{name: "all is well", card: future},
		{name: "ephemeral, and everything else", card: future, ttl: time.Minute, none: true, inactive: true, want: "ephemeral_token"},
		{name: "ephemeral", card: future, ttl: time.Minute, want: "ephemeral_token"},
		{name: "expired, and everything else", card: expired, none: true, inactive: true, want: "card_expired"},
		{name: "expired", card: expired, want: "card_expired"},
		{name: "no network, and not activated", card: future, none: true, inactive: true, want: "no_network"},
		{name: "no network", card: future, none: true, want: "no_network"},
		{name: "not activated, and not eligible", card: future, inactive: true,
			ineligible: configurationError("scheme_not_enabled"), want: "network_tokens_not_activated"},
		{name: "not activated", card: future, inactive: true, want: "network_tokens_not_activated"},
		{name: "scheme", card: future, ineligible: configurationError("scheme_not_enabled"), want: "scheme_not_enabled"},
		{name: "merchant", card: future, ineligible: configurationError("merchant_not_enrolled"), want: "merchant_not_enrolled"},
		{name: "an unknown code", card: future, want: "invalid_request", schemeCode: "E77",
			ineligible: configurationError("E77")},
		{name: "a code of the scheme", card: future, want: "invalid_request", schemeCode: "declined",
			ineligible: schemeError("declined")},
		{name: "an error without details", card: future, ineligible: errors.New("oops"), want: "invalid_request"},
		{name: "a panic", card: future, ineligible: errPanic, want: "invalid_request"},
	} {
		for _, mode := range []cardvault.Mode{cardvault.Live, cardvault.Sandbox} {
			t.Run(test.name+" "+mode.String(), func(t *testing.T) {
				inLab(t, &cardvault.Options{Mode: mode}, func(l *lab) {
					l.pass(40 * 24 * time.Hour) // until January 2000 has ended
					if test.none {
						l.opts.Network = nil
						l.restart()
					}
					l.activate(!test.inactive)
					if test.ineligible != nil {
						l.net.ineligible = func(card.Scheme) error { return test.ineligible }
					}
					var token *cardvault.Token
					var err error
					if test.ttl > 0 {
						session, sessionErr := l.CreateSession(l.Context(), &cardvault.SessionOptions{TokenTTL: test.ttl})
						l.must(sessionErr)
						token, err = l.Tokenize(l.Context(), session.ID, test.card)
					} else {
						token, err = l.Import(l.Context(), test.card, nil)
					}
					l.must(err)
					status := notAvailable
					if test.want == "" {
						status = pending
					}
					for _, got := range []*cardvault.Token{token, l.is(token.ID, status, test.want)} {
						if got.NetworkTokenStatus != status {
							t.Errorf("created as %v", got.NetworkTokenStatus)
						}
						r := got.NetworkTokenStatusReason
						if (r == nil) != (test.want == "") || r != nil && (string(r.Code) != test.want || r.Source != network.SourceConfiguration ||
							r.Retryable || r.SchemeCode != test.schemeCode || !r.OccurredAt.Equal(token.CreatedAt)) {
							t.Errorf("reason %+v", r)
						}
					}
					page, err := l.List(l.Context(), &cardvault.TokenListOptions{NetworkTokenStatus: []network.Status{status}})
					l.must(err)
					if page.TotalItems != 1 {
						t.Errorf("the list has %d tokens in state %v", page.TotalItems, status)
					}
					if calls := l.net.asked(); len(calls) > 0 {
						t.Errorf("creating called the network: %v", calls)
					}
					l.drain()
					if test.want == "" {
						status = active
					} else if len(l.net.asked()) > 0 {
						t.Error("the network was asked without need")
					}
					l.is(token.ID, status, test.want)
				})
			})
		}
	}
}

// TestActivatedByDefault: in live mode an account has no network tokens until they are
// activated. In a sandbox it has them from the start.
func TestActivatedByDefault(t *testing.T) {
	inLab(t, nil, func(l *lab) { l.is(l.imports(visa), pending, "") })
	inLab(t, live, func(l *lab) {
		a, err := l.CreateAccount(l.Context(), "another", nil)
		l.must(err)
		l.Vault = l.In(a.ID)
		l.is(l.imports(visa), notAvailable, "network_tokens_not_activated")
	})
}

// TestProvisionRequest: Import returns while the network hangs, and the request contains all
// that the network needs.
func TestProvisionRequest(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		rec := &recorder{scripted: l.net}
		l.opts.Network = rec
		l.restart()
		l.net.script(func(ctx context.Context, _ call) error { <-ctx.Done(); return ctx.Err() }, nil)
		l.run(func() {
			before := time.Now()
			id := l.imports(visa)
			if took := time.Since(before); took > 0 {
				t.Errorf("Import took %v", took)
			}
			synctest.Wait()
			r := rec.last()
			merchant, err := l.PrimaryMerchant(l.Context())
			l.must(err)
			if r == nil || r.TokenID != id || r.Merchant != merchant.ID || r.Scheme != card.VISA || r.Expiry != visa.Expiry ||
				r.IdempotencyKey != id.String()+":1" || r.Identification != idv.None {
				t.Errorf("request %+v", r)
			}
			if rec.pan != "4242424242424242" || rec.name != "A Customer" {
				t.Error("the card differs")
			}
		})
	})
}

// A recorder keeps the last request, and the card as text for the duration of the call.
type recorder struct {
	*scripted
	mu        sync.Mutex
	request   *network.ProvisionRequest
	pan, name string
}

func (n *recorder) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	n.mu.Lock()
	n.request = r
	r.PAN.Expose(func(d []byte) { n.pan = string(d) })
	r.Name.Expose(func(b []byte) { n.name = string(b) })
	n.mu.Unlock()
	return n.scripted.Provision(ctx, r)
}

func (n *recorder) last() *network.ProvisionRequest {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.request
}

// TestProvisionStates: the effect of Provision in every state.
func TestProvisionStates(t *testing.T) {
	for _, test := range []struct {
		state, want network.Status
		refused     bool
		called      int // additional calls of Provision at the network
	}{
		{state: notAvailable, want: pending, called: 1},
		{state: failed, want: pending, called: 1},
		{state: pending, want: pending},
		{state: active, want: active},
		{state: inactive, want: inactive, refused: true},
		{state: deleted, want: deleted, refused: true},
	} {
		t.Run(test.state.String(), func(t *testing.T) {
			inLab(t, nil, func(l *lab) {
				id := l.become(test.state)
				before, calls := l.get(id), len(l.net.asked("Provision"))
				token, err := l.Provision(l.Context(), id, nil)
				if test.refused {
					if !errors.Is(err, cardvault.ErrNetworkTokenState) || token != nil {
						t.Errorf("Provision: %v", err)
					}
				} else if l.must(err); token.NetworkTokenStatus != test.want || token.NetworkTokenStatusReason != nil {
					t.Errorf("Provision returns %v for %+v", token.NetworkTokenStatus, token.NetworkTokenStatusReason)
				}
				after := l.get(id)
				if after.NetworkTokenStatus != test.want {
					t.Errorf("afterwards it is %v", after.NetworkTokenStatus)
				}
				if test.refused && *after.NetworkTokenStatusReason != *before.NetworkTokenStatusReason {
					t.Error("the reason was changed")
				}
				l.drain()
				if n := len(l.net.asked("Provision")) - calls; n != test.called {
					t.Errorf("%d calls", n)
				}
				if test.called > 0 {
					l.is(id, active, "")
				}
				l.held(min(l.net.made, 1))
			})
		})
	}
	t.Run("ephemeral", func(t *testing.T) {
		inLab(t, nil, func(l *lab) {
			session, err := l.CreateSession(l.Context(), &cardvault.SessionOptions{TokenTTL: time.Minute})
			l.must(err)
			token, err := l.Tokenize(l.Context(), session.ID, visa)
			l.must(err)
			asked, err := l.Provision(l.Context(), token.ID, nil)
			if l.must(err); *asked.NetworkTokenStatusReason != *token.NetworkTokenStatusReason {
				t.Errorf("Provision returns %+v", asked.NetworkTokenStatusReason)
			}
			l.is(token.ID, notAvailable, "ephemeral_token")
		})
	})
	t.Run("unknown", func(t *testing.T) {
		inLab(t, nil, func(l *lab) {
			id := l.become(active)
			a, err := l.CreateAccount(l.Context(), "another", nil)
			l.must(err)
			_, other := l.In(a.ID).Provision(l.Context(), id, nil)
			_, unknown := l.Provision(l.Context(), uuid.New(), nil)
			l.must(l.Vault.Delete(l.Context(), id))
			_, gone := l.Provision(l.Context(), id, nil)
			for _, err := range []error{other, unknown, gone} {
				if !errors.Is(err, cardvault.ErrNotFound) {
					t.Errorf("Provision: %v", err)
				}
			}
		})
	})
}

// TestProvisionStillForbidden: while the configuration still forbids it, Provision renews
// the reason.
func TestProvisionStillForbidden(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		l.net.ineligible = func(card.Scheme) error { return configurationError("scheme_not_enabled") }
		id := l.imports(visa)
		created := l.is(id, notAvailable, "scheme_not_enabled").NetworkTokenStatusReason.OccurredAt
		l.pass(time.Hour)
		l.net.ineligible = func(card.Scheme) error { return configurationError("merchant_not_enrolled") }
		token, err := l.Provision(l.Context(), id, nil)
		l.must(err)
		if r := l.is(id, notAvailable, "merchant_not_enrolled").NetworkTokenStatusReason; r.OccurredAt.Sub(created) != time.Hour ||
			*token.NetworkTokenStatusReason != *r {
			t.Errorf("reason %+v, returned %+v", r, token.NetworkTokenStatusReason)
		}
		expiry := card.Expiry{Month: 12, Year: 1999 + 1}
		_, err = l.Update(l.Context(), id, cardvault.TokenUpdate{Expiry: &expiry})
		l.must(err)
		l.net.ineligible = nil
		l.pass(400 * 24 * time.Hour)
		_, err = l.Provision(l.Context(), id, nil)
		l.must(err)
		l.is(id, notAvailable, "card_expired")
		l.drain()
		if calls := l.net.asked(); len(calls) != 0 {
			t.Errorf("the network was asked: %v", calls)
		}
	})
}

// TestProvisionRefused: each code of a refusal, and the final state of the token.
func TestProvisionRefused(t *testing.T) {
	for code, retryable := range map[string]bool{
		"card_not_eligible": false, "card_not_allowed": false, "card_verification_failed": false, "declined": false,
		"invalid_card_data": false, "provision_not_allowed": false,
		"provision_data_expired": true, "issuer_unavailable": true, "scheme_unavailable": true, "timeout": true,
		"E99": true,
	} {
		t.Run(code, func(t *testing.T) {
			inLab(t, live, func(l *lab) {
				want, schemeCode := code, "05"
				if code == "E99" {
					want, schemeCode = "scheme_unavailable", "E99"
				}
				refusal := &network.Error{Source: network.SourceScheme, Code: network.Code(code), SchemeCode: schemeCode}
				l.net.script(refuse("Provision", fmt.Errorf("wrapped: %w", refusal)), nil)
				id := l.imports(visa)
				l.run(func() { l.pass(10 * time.Hour) })
				token := l.is(id, failed, want)
				if r := token.NetworkTokenStatusReason; r.Source != network.SourceScheme || r.Retryable != retryable || r.SchemeCode != schemeCode {
					t.Errorf("reason %+v", r)
				}
				keys := map[string]bool{}
				for _, c := range l.net.asked() {
					keys[c.method+c.key] = true
				}
				calls := 1
				if retryable {
					calls = 12 // each call is followed by a look-up
				}
				if got := l.net.asked(); len(got) != calls || len(keys) != calls {
					t.Errorf("%d calls under %d keys, want %d: %v", len(got), len(keys), calls, got)
				}
				// Deleting the token calls nothing, since nothing is left at the network.
				l.must(l.Vault.Delete(l.Context(), id))
				l.drain()
				if got := l.net.asked(); len(got) != calls {
					t.Errorf("the deletion called %v", got[calls:])
				}
			})
		})
	}
	for code, want := range map[string]string{
		"merchant_not_enrolled": "merchant_not_enrolled", "scheme_not_enabled": "scheme_not_enabled",
		"invalid_request": "invalid_request", "declined": "invalid_request", "E99": "invalid_request",
	} {
		t.Run("configuration "+code, func(t *testing.T) {
			inLab(t, live, func(l *lab) {
				l.net.script(refuse("Provision", configurationError(code)), nil)
				id := l.imports(visa)
				l.run(func() { l.pass(10 * time.Hour) })
				r := l.is(id, notAvailable, want).NetworkTokenStatusReason
				if r.Source != network.SourceConfiguration || r.Retryable || len(l.net.asked()) != 1 {
					t.Errorf("reason %+v after %d calls", r, len(l.net.asked()))
				}
			})
		})
	}
}

// TestRetries: the pauses between the attempts of a provisioning.
func TestRetries(t *testing.T) {
	first := map[time.Duration]bool{} // pauses
	minutes := []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour}
	hundredth := []time.Duration{300 * time.Millisecond, 1200 * time.Millisecond, 5 * time.Second, 5 * time.Second, 5 * time.Second}
	for what, answer := range map[string]error{
		"known":   schemeError("issuer_unavailable"),
		"unknown": errors.New("connection reset"),
	} {
		for mode, pauses := range map[cardvault.Mode][]time.Duration{cardvault.Live: minutes, cardvault.Sandbox: hundredth} {
			t.Run(what+" "+mode.String(), func(t *testing.T) {
				inLab(t, &cardvault.Options{Mode: mode}, func(l *lab) {
					l.net.script(refuse("Provision", answer), nil)
					id := l.imports(visa)
					l.run(func() { l.pass(10 * time.Hour) })
					calls := l.net.asked("Provision")
					if within(t, what, calls, pauses...); len(calls) != 6 {
						l.Fatalf("%d calls, want 6", len(calls))
					}
					first[calls[1].at.Sub(calls[0].at)*time.Duration(30*time.Second/pauses[0])] = true
					keys := map[string]bool{}
					for _, c := range l.net.asked("Provision") {
						keys[c.key] = true
					}
					if what == "unknown" && len(keys) != 1 || what == "known" && len(keys) != 6 {
						t.Errorf("keys %v", slices.Collect(maps.Keys(keys)))
					}
					code := map[string]string{"known": "issuer_unavailable", "unknown": "scheme_unavailable"}[what]
					if r := l.is(id, failed, code).NetworkTokenStatusReason; !r.Retryable {
						t.Error("the reason is not retryable")
					}
				})
			})
		}
	}
	if len(first) == 1 {
		t.Error("all pauses are the same")
	}
}

// TestRetryAfter: a network that names a time is not asked earlier. A time that is too far
// off is cut.
func TestRetryAfter(t *testing.T) {
	for after, want := range map[time.Duration]time.Duration{
		-5 * time.Minute: 30 * time.Second,
		29 * time.Second: 30 * time.Second,
		90 * time.Second: 90 * time.Second,
		2 * time.Hour:    2 * time.Hour,
		1000 * time.Hour: 24 * time.Hour,
	} {
		for range 5 { // pauses are random
			inLab(t, live, func(l *lab) {
				l.net.script(refuse("Provision", &network.Error{
					Source: network.SourceScheme, Code: "scheme_unavailable", RetryAfter: after}), nil)
				l.imports(visa)
				l.run(func() { l.pass(want * 6 / 5) })
				calls := l.net.asked("Provision")
				if within(t, after.String(), calls, want); t.Failed() {
					return
				}
				if pause := calls[1].at.Sub(calls[0].at); pause < min(after, 24*time.Hour) {
					t.Errorf("asked to wait %v, waited %v", after, pause)
				}
			})
		}
	}
}

// TestUnknownOutcome: a call with an unknown outcome is repeated under the same key, then
// looked up. A second network token is never made, and a late success is accepted.
func TestUnknownOutcome(t *testing.T) {
	for what, answer := range map[string]func(context.Context, call) error{
		"answer lost": refuse("Provision", errors.New("connection reset")),
		"panic": func(_ context.Context, c call) error {
			if c.method == "Provision" {
				panic("4242424242424242")
			}
			return nil
		},
		"deadline": func(ctx context.Context, c call) error {
			if c.method != "Provision" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(what, func(t *testing.T) {
			inLab(t, live, func(l *lab) {
				code := map[bool]string{true: "timeout", false: "scheme_unavailable"}[what == "deadline"]
				l.net.script(refuse("Lookup", errors.New("down too")), answer)
				id := l.imports(visa)
				l.run(func() {
					l.pass(10 * time.Hour)
					l.is(id, failed, code)
					l.held(1)
					l.net.script(nil, nil)
					l.pass(2 * time.Hour)
				})
				l.is(id, active, "")
				l.held(1)
				keys := map[string]bool{}
				for _, c := range l.net.asked("Provision") {
					keys[c.key] = true
				}
				if len(keys) != 1 || l.net.made != 1 {
					t.Errorf("%d keys, %d network tokens made", len(keys), l.net.made)
				}
				l.must(l.Vault.Delete(l.Context(), id))
				l.drain()
				l.held(0)
				if strings.Contains(l.log.text(), "4242424242424242") {
					t.Error("the log contains the value of an adapter's panic")
				}
			})
		})
	}
}

// TestGarbageAnswers: an impossible answer is treated as no answer.
func TestGarbageAnswers(t *testing.T) {
	type token = network.Token
	for what, spoil := range map[string]func(*token){
		"no id":         func(t *token) { t.ID = "" },
		"a long id":     func(t *token) { t.ID = strings.Repeat("x", 256) },
		"no state":      func(t *token) { t.State = notAvailable },
		"failed":        func(t *token) { t.State = failed },
		"state 77":      func(t *token) { t.State = 77 },
		"another card":  func(t *token) { t.Card = &network.CardState{LastFour: "1111"} },
		"bad digits":    func(t *token) { t.Card = &network.CardState{LastFour: "42x2"} },
		"three digits":  func(t *token) { t.Card = &network.CardState{LastFour: "242"} },
		"bad expiry":    func(t *token) { t.Card = &network.CardState{Expiry: card.Expiry{Month: 13, Year: 2030}} },
		"half a expiry": func(t *token) { t.Card = &network.CardState{Expiry: card.Expiry{Month: 12}} },
		"a long art":    func(t *token) { t.Art = strings.Repeat("x", 256) },
	} {
		t.Run(what, func(t *testing.T) {
			inLab(t, nil, func(l *lab) {
				l.opts.Network = &spoiled{l.net, spoil}
				l.restart()
				id := l.imports(visa)
				l.drain()
				l.is(id, pending, "")
				l.run(func() { l.pass(time.Minute) })
				l.is(id, failed, "scheme_unavailable")
				l.must(l.Vault.Delete(l.Context(), id))
			})
		})
	}
	t.Run("nothing", func(t *testing.T) {
		inLab(t, nil, func(l *lab) {
			l.opts.Network = &spoiled{l.net, nil}
			l.restart()
			id := l.imports(visa)
			l.drain()
			l.is(id, pending, "")
		})
	})
}

// A spoiled network gives wrong answers, as a faulty adapter would.
type spoiled struct {
	*scripted
	spoil func(*network.Token) // nil gives no answer at all
}

func (n *spoiled) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	t, err := n.scripted.Provision(ctx, r)
	if n.spoil == nil || err != nil {
		return nil, err
	}
	n.spoil(t)
	return t, nil
}

func (n *spoiled) Lookup(ctx context.Context, ref network.Ref) (*network.Token, error) {
	t, err := n.scripted.Lookup(ctx, ref)
	if n.spoil == nil || err != nil {
		return nil, err
	}
	n.spoil(t)
	return t, nil
}

// TestPolling: a pending network token is polled, and found active even though the notice
// was lost.
func TestPolling(t *testing.T) {
	for mode, by := range map[cardvault.Mode]time.Duration{cardvault.Live: 1, cardvault.Sandbox: 100} {
		t.Run(mode.String(), func(t *testing.T) {
			inLab(t, &cardvault.Options{Mode: mode}, func(l *lab) {
				l.net.like.State = pending
				id := l.imports(visa)
				l.run(func() { l.pass(72 * time.Hour) })
				l.is(id, failed, "timeout")
				calls := l.net.asked()
				if len(calls) < 50 {
					l.Fatalf("%d calls", len(calls))
				}
				want := []time.Duration{time.Second, 2 * time.Second / by, 5 * time.Second / by, 10 * time.Second / by, 30 * time.Second / by}
				within(t, "polls", calls, want...)
				if first := calls[1].at.Sub(calls[0].at); first != time.Second {
					t.Errorf("the first poll after %v", first)
				}
				began := calls[0].at
				for i := 6; i < len(calls); i++ {
					since, pause := calls[i-1].at.Sub(began), time.Hour/by
					if since < 5*time.Minute/by {
						pause = time.Minute / by
					}
					if mode == cardvault.Sandbox {
						pause = min(pause, 5*time.Second)
					}
					within(t, since.String(), calls[i-1:i+1], pause)
				}
				if last := calls[len(calls)-1].at.Sub(began); last < 46*time.Hour/by || last > 50*time.Hour/by {
					t.Errorf("the last poll after %v", last)
				}
				// A notice can still make it active.
				l.notify(network.Notice{Kind: network.NoticeActivated})
				l.is(id, active, "")
			})
		})
	}
	// The reason is the network's last answer.
	for _, recovers := range []bool{false, true} {
		inLab(t, nil, func(l *lab) {
			l.net.like.State = pending
			l.net.script(refuse("Lookup", schemeError("issuer_unavailable")), nil)
			id := l.imports(visa)
			want := "issuer_unavailable"
			l.run(func() {
				l.pass(time.Minute)
				if recovers {
					l.net.script(nil, nil)
					want = "timeout"
				}
				l.pass(time.Hour)
			})
			l.is(id, failed, want)
		})
	}
	inLab(t, live, func(l *lab) {
		l.net.like.State = pending
		id := l.imports(visa)
		l.run(func() {
			l.pass(20 * time.Second)
			l.is(id, pending, "")
			l.net.set("network-token-1", func(t *network.Token) { t.State = active })
			l.pass(time.Minute)
			l.is(id, active, "")
		})
	})
}

// TestPolledAnswers: the network's answers to a poll.
func TestPolledAnswers(t *testing.T) {
	type token = network.Token
	for _, test := range []struct {
		what   string
		change func(*token)
		answer error
		want   network.Status
		code   string
	}{
		{"suspended before it was seen active", func(t *token) {
			t.State, t.SuspendedBy = inactive, network.OwnersOf(network.OwnerIssuer)
		}, nil, inactive, "suspended_by_issuer"},
		{"deleted", func(t *token) { t.State = deleted }, nil, deleted, "deleted_by_scheme"},
		{"invalidated", func(t *token) { t.State, t.Invalidated = deleted, true }, nil, deleted, "account_closed"},
		{"refused", nil, schemeError("declined"), failed, "declined"},
		{"refused by configuration", nil, configurationError("merchant_not_enrolled"), notAvailable, "merchant_not_enrolled"},
		{"the network is down", nil, errors.New("connection refused"), pending, ""},
		{"the network is overloaded", nil, schemeError("scheme_unavailable"), pending, ""},
		{"the network knows nothing", nil, network.ErrUnknown, pending, ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			inLab(t, live, func(l *lab) {
				l.net.like.State = pending
				id := l.imports(visa)
				l.run(func() {
					l.pass(500 * time.Millisecond)
					if test.change != nil {
						l.net.set("network-token-1", test.change)
					}
					l.net.script(refuse("Lookup", test.answer), nil)
					l.pass(time.Minute)
				})
				got := l.is(id, test.want, test.code)
				if invalid := got.Status == cardvault.StatusInvalid; invalid != (test.code == "account_closed") {
					t.Errorf("status %v", got.Status)
				}
				if test.want == pending { // polling continues
					l.net.script(nil, nil)
					l.net.set("network-token-1", func(t *token) { t.State = active })
					l.run(func() { l.pass(2 * time.Minute) })
					l.is(id, active, "")
				}
				l.must(l.Vault.Delete(l.Context(), id))
				l.net.script(nil, nil)
				l.drain()
				l.held(0)
			})
		})
	}
}

// TestReconcile: once a day the vault checks whether it has missed a notice.
func TestReconcile(t *testing.T) {
	inLab(t, live, func(l *lab) {
		id := l.become(active)
		set := func(f func(t *network.Token)) {
			l.net.set("network-token-1", f)
			before := time.Now()
			l.run(func() { l.pass(29 * time.Hour) })
			calls := l.net.asked("Lookup")
			if pause := calls[len(calls)-1].at.Sub(before); pause > 29*time.Hour {
				t.Errorf("looked up after %v", pause)
			}
		}
		set(func(t *network.Token) {
			t.State, t.SuspendedBy = inactive, network.OwnersOf(network.OwnerCardholder)
		})
		l.is(id, inactive, "suspended_by_cardholder")
		set(func(t *network.Token) {
			t.SuspendedBy = network.OwnersOf(network.OwnerCardholder, network.OwnerIssuer)
			t.Reason = "STOLEN"
		})
		if r := l.is(id, inactive, "suspended_by_issuer").NetworkTokenStatusReason; r.SchemeCode != "STOLEN" {
			t.Errorf("reason %+v", r)
		}
		set(func(t *network.Token) {
			t.SuspendedBy = 0
			t.Reason = "4242424242424242"
		})
		if r := l.is(id, inactive, "suspended_by_scheme").NetworkTokenStatusReason; r.SchemeCode != "" {
			t.Errorf("reason %+v", r)
		}
		set(func(t *network.Token) { t.State = active; t.SupportsDeviceBinding = true })
		if !l.is(id, active, "").SupportsDeviceBinding {
			t.Error("device binding is not noticed")
		}
		set(func(t *network.Token) { t.State = deleted })
		l.is(id, deleted, "deleted_by_scheme")
		calls := l.net.asked("Lookup")
		l.run(func() { l.pass(10 * 24 * time.Hour) })
		if n := len(l.net.asked("Lookup")); n != len(calls) {
			t.Errorf("%d look-ups of a deleted network token", n-len(calls))
		}
		for i := range calls[1:] {
			within(t, "reconcile", calls[i:i+2], 24*time.Hour)
		}
	})
}

// TestAnotherKeyAfterAKnownOutcome: after a known outcome the next call has another key,
// even across calls of Provision.
func TestAnotherKeyAfterAKnownOutcome(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id := l.become(failed)
		l.net.script(refuse("Provision", schemeError("card_not_allowed")), nil)
		l.must2(l.Provision(l.Context(), id, nil))
		l.drain()
		l.is(id, failed, "card_not_allowed")
		l.net.script(nil, nil)
		l.must2(l.Provision(l.Context(), id, nil))
		l.drain()
		l.is(id, active, "")
		keys := map[string]bool{}
		for _, c := range l.net.asked("Provision") {
			keys[c.key] = true
		}
		if len(keys) != 3 {
			t.Errorf("keys %v", keys)
		}
		l.held(1)
	})
}

// TestOverloadedAfterAnUnknownOutcome: the answer of an overloaded network to a repeated
// call reveals nothing about the first call. The key stays until the outcome is known.
func TestOverloadedAfterAnUnknownOutcome(t *testing.T) {
	for _, answer := range []error{
		schemeError("scheme_unavailable"), schemeError("E99"), configurationError("invalid_request"), configurationError("declined"),
	} {
		inLab(t, live, func(l *lab) {
			l.net.script(nil, refuse("Provision", errors.New("lost")))
			id := l.imports(visa)
			l.drain()
			l.net.script(refuse("Provision", answer), nil)
			l.run(func() { l.pass(5 * time.Minute) })
			l.net.script(nil, nil)
			l.must2(l.Provision(l.Context(), id, nil))
			l.run(func() { l.pass(time.Hour) })
			l.is(id, active, "")
			l.held(1)
			l.must(l.Vault.Delete(l.Context(), id))
			l.drain()
			l.held(0)
		})
	}
	// A final refusal is the outcome of the first call.
	inLab(t, live, func(l *lab) {
		l.net.script(refuse("Provision", errors.New("lost")), nil)
		id := l.imports(visa)
		l.drain()
		l.net.script(refuse("Provision", schemeError("declined")), nil)
		l.run(func() { l.pass(5 * time.Minute) })
		l.is(id, failed, "declined")
		calls := len(l.net.asked())
		l.must(l.Vault.Delete(l.Context(), id))
		l.drain()
		if n := len(l.net.asked()); n != calls {
			t.Errorf("%d calls without need", n-calls)
		}
	})
}

// TestRefusedAndMade: a network that reports a timeout may have made a network token all the
// same.
func TestRefusedAndMade(t *testing.T) {
	for _, code := range []string{"timeout", "issuer_unavailable", "scheme_unavailable"} {
		for _, down := range []bool{false, true} {
			inLab(t, live, func(l *lab) {
				l.net.script(func(_ context.Context, c call) error {
					if down && c.method == "Lookup" {
						return errors.New("down")
					}
					return nil
				}, refuse("Provision", schemeError(code)))
				id := l.imports(visa)
				l.run(func() { l.pass(time.Minute) })
				l.net.script(nil, nil)
				l.run(func() { l.pass(time.Hour) })
				l.is(id, active, "")
				if l.net.made != 1 {
					t.Errorf("%s: %d network tokens were made", code, l.net.made)
				}
				l.must(l.Vault.Delete(l.Context(), id))
				l.drain()
				l.held(0)
			})
		}
	}
}

// TestRefusalKeptUnderItsKey: a network may repeat a stored refusal under its key forever. A
// look-up then shows that the call made nothing, and the next call has another key.
func TestRefusalKeptUnderItsKey(t *testing.T) {
	inLab(t, live, func(l *lab) {
		var first string
		l.net.script(func(_ context.Context, c call) error {
			switch {
			case c.method != "Provision":
				return nil
			case first == "":
				first = c.key
				return errors.New("lost")
			case c.key == first:
				return schemeError("scheme_unavailable")
			}
			return nil
		}, nil)
		id := l.imports(visa)
		l.run(func() { l.pass(time.Hour) })
		l.is(id, active, "")
		if n := len(l.net.asked("Provision")); n != 3 {
			t.Errorf("%d calls", n)
		}
		l.held(1)
	})
}

// TestSameKeyAfterAnUnknownOutcome: a call whose outcome is unknown keeps its key when the
// caller asks again.
func TestSameKeyAfterAnUnknownOutcome(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		l.net.script(refuse("Lookup", errors.New("down")), refuse("Provision", errors.New("lost")))
		id := l.imports(visa)
		l.run(func() { l.pass(time.Minute) })
		l.is(id, failed, "scheme_unavailable")
		l.net.script(nil, nil)
		_, err := l.Provision(l.Context(), id, nil)
		l.must(err)
		l.drain()
		l.is(id, active, "")
		if l.net.made != 1 {
			t.Errorf("%d network tokens were made", l.net.made)
		}
	})
}

// A suspender is a scripted network that suspends on request.
type suspender struct{ *scripted }

func (suspender) Info() network.Info { return network.Info{Name: "scripted", Suspender: true} }

func (n suspender) Suspend(ctx context.Context, ref network.Ref) error {
	return n.mark(ctx, "Suspend", ref, func(by network.Owners) network.Owners {
		return by | network.OwnersOf(network.OwnerCardholder)
	})
}

func (n suspender) Resume(ctx context.Context, ref network.Ref) error {
	return n.mark(ctx, "Resume", ref, func(by network.Owners) network.Owners {
		return by &^ network.OwnersOf(network.OwnerCardholder)
	})
}

func (n suspender) mark(ctx context.Context, method string, ref network.Ref, f func(network.Owners) network.Owners) error {
	return n.call(ctx, call{method: method, id: ref.ID}, func() error {
		t := n.tokens[ref.ID]
		t.State, t.SuspendedBy = active, f(t.SuspendedBy)
		if t.SuspendedBy != 0 {
			t.State = inactive
		}
		return nil
	})
}

func TestSuspendNetworkToken(t *testing.T) {
	net := new(scripted)
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Network: suspender{net}}, func(l *lab) {
		l.net = net
		id := l.become(active)
		// The answer is applied even while look-ups fail.
		net.script(refuse("Lookup", errors.New("down")), nil)
		token, err := l.SuspendNetworkToken(l.Context(), id)
		l.must(err)
		if token.NetworkTokenStatus != inactive {
			t.Errorf("%v after the suspension", token.NetworkTokenStatus)
		}
		l.is(id, inactive, "suspended_by_cardholder")
		l.must2(l.SuspendNetworkToken(l.Context(), id))
		net.script(nil, nil)
		l.run(func() { l.pass(time.Second) })
		l.is(id, inactive, "suspended_by_cardholder")

		// The issuer suspends it too.
		l.notify(notice{Kind: network.NoticeSuspended, Token: network.Ref{ID: "network-token-1"}})
		net.set("network-token-1", func(t *network.Token) { t.SuspendedBy |= network.OwnersOf(network.OwnerIssuer) })
		l.must2(l.ResumeNetworkToken(l.Context(), id))
		l.is(id, inactive, "suspended_by_issuer")
		l.run(func() { l.pass(time.Second) })
		l.is(id, inactive, "suspended_by_issuer")
		l.notify(notice{Kind: network.NoticeResumed, Token: network.Ref{ID: "network-token-1"}})
		l.is(id, active, "")

		// A refusal or a missing answer changes nothing.
		var refused *network.Error
		net.script(refuse("Suspend", schemeError("declined")), nil)
		if _, err := l.SuspendNetworkToken(l.Context(), id); !errors.As(err, &refused) {
			t.Errorf("refused: %v", err)
		}
		net.script(refuse("Suspend", errors.New("down")), nil)
		if _, err := l.SuspendNetworkToken(l.Context(), id); !errors.Is(err, cardvault.ErrUnavailable) {
			t.Errorf("down: %v", err)
		}
		l.is(id, active, "")
		net.script(nil, nil)
		if _, err := l.SuspendNetworkToken(l.Context(), l.become(failed)); !errors.Is(err, cardvault.ErrNetworkTokenState) {
			t.Errorf("failed: %v", err)
		}
	})
	inLab(t, nil, func(l *lab) {
		if _, err := l.SuspendNetworkToken(l.Context(), l.become(active)); !errors.Is(err, cardvault.ErrNotEnabled) {
			t.Errorf("no suspender: %v", err)
		}
	})
}

// A noBIN is a network.BINProvider that fails.
type noBIN struct{ err error }

func (b noBIN) LookupBIN(context.Context, *network.BINRequest) (*network.BIN, error) {
	return nil, b.err
}

// TestLoggedErrors: an adapter's error is logged unless it might contain a card number.
func TestLoggedErrors(t *testing.T) {
	for text, logged := range map[string]bool{
		"connection refused by 10.0.0.1:8443": true,
		"card 4242424242424242 refused":       false,
		"4242 4242 4242 4242":                 false,
		"4242-4242-4242-4242":                 false,
		"field2=42424242424242421230":         false,
		"4242.4242.4242.4241":                 false,
	} {
		inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, BIN: noBIN{errors.New(text)}}, func(l *lab) {
			l.imports(visa)
			if got := strings.Contains(l.log.text(), text); got != logged {
				t.Errorf("%q of the BIN provider logged: %v", text, got)
			}
		})
		inLab(t, nil, func(l *lab) {
			l.net.script(refuse("Provision", errors.New(text)), nil)
			l.imports(visa)
			l.drain()
			if got := strings.Contains(l.log.text(), text); got != logged {
				t.Errorf("%q logged: %v", text, got)
			}
		})
	}
}
