package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	codecache "github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// A verifier is an idv.Provider whose answers the test sets.
type verifier struct {
	mu     sync.Mutex
	answer func(ctx context.Context) (*idv.Result, error)
	asked  []string // idempotency keys, and references
	cards  []string // number, code, name and contact
}

func (p *verifier) Info() idv.Info { return idv.Info{Name: "verifier"} }

func (p *verifier) Identify(ctx context.Context, r *idv.Request) (*idv.Result, error) {
	var digits []string
	for _, e := range []interface{ Expose(func([]byte)) }{r.PAN, r.SecurityCode, r.Name, r.Contact} {
		e.Expose(func(b []byte) { digits = append(digits, string(b)) })
	}
	digits = append(digits, r.Scheme.String(), fmt.Sprint(r.Expiry))
	return p.note(ctx, r.IdempotencyKey, strings.Join(digits, "|"))
}

func (p *verifier) LookupIdentification(ctx context.Context, r *idv.LookupRequest) (*idv.Result, error) {
	return p.note(ctx, r.Reference, "")
}

func (p *verifier) note(ctx context.Context, key, digits string) (*idv.Result, error) {
	p.mu.Lock()
	p.asked, p.cards = append(p.asked, key), append(p.cards, digits)
	answer := p.answer
	p.mu.Unlock()
	if _, ok := ctx.Deadline(); !ok {
		return nil, errors.New("a call without a deadline")
	}
	return answer(ctx)
}

func (p *verifier) says(r idv.Result, err error) {
	p.hook(func(context.Context) (*idv.Result, error) {
		answer := r
		return &answer, err
	})
}

func (p *verifier) hook(answer func(context.Context) (*idv.Result, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

var (
	pendingIDV   = idv.Result{State: idv.Pending, Reference: "idv-7"}
	challengeIDV = idv.Result{State: idv.Pending, Reference: "idv-7", ChallengeURL: "https://acs.example/c?id=7"}
	failedIDV    = idv.Result{State: idv.Failed}
	passedIDV    = idv.Result{State: idv.Passed, Authentication: &idv.Authentication{
		Method: "three_ds", Status: "Y", ECI: "05", DSTransactionID: "8a880dc0-d2d2-4067-bcb1-b08d1690b26e",
		At: time.Date(2000, 1, 1, 0, 4, 5, 6000, time.UTC),
	}}
)

// An idvLab is a lab with a verifier, and with a cache that tests can inspect.
type idvLab struct {
	*lab
	idv   *verifier
	cache *countedCodes
}

func identifying(t *testing.T, opts cardvault.Options, f func(l *idvLab)) {
	t.Helper()
	judge := new(verifier)
	cache := &countedCodes{CodeCache: codecache.New(100, nil), ids: map[uuid.UUID]bool{}}
	opts.Mode, opts.IDV, opts.Codes = cardvault.Sandbox, judge, cache
	inLab(t, &opts, func(l *lab) { f(&idvLab{l, judge, cache}) })
}

// enters enters the usual card in a new session.
func (l *idvLab) enters() (cardvault.SessionID, *cardvault.Session) {
	l.Helper()
	id, s := l.session(nil)
	return id, l.completes(id, encrypts(l, s, entered, nil))
}

// holds checks how many codes the cache holds, and how many sessions hold a card.
func (l *idvLab) holds(what string, codes, cards int) {
	l.Helper()
	const kindSession store.Kind = 6
	found := 0
	l.must(l.store.View(l.Context(), func(tx store.ReadTx) error {
		rows, err := tx.Due(kindSession, store.AllShards, time.Now().AddDate(1, 0, 0), 100)
		for _, r := range rows {
			if len(r.Secret) > 0 {
				found++
			}
		}
		return err
	}))
	if n := l.cache.left(l.lab); n != codes || found != cards {
		l.Errorf("%s: %d codes and %d cards are stored, want %d and %d", what, n, found, codes, cards)
	}
}

func (l *idvLab) tokens(want int64) {
	l.Helper()
	if p, err := l.List(l.Context(), nil); err != nil || p.TotalItems != want {
		l.Errorf("%d tokens, want %d; %v", p.TotalItems, want, err)
	}
}

func TestIdentification(t *testing.T) {
	identifying(t, cardvault.Options{Schemes: []card.Scheme{card.VISA}}, func(l *idvLab) {
		l.idv.says(passedIDV, nil)
		_, done := l.enters()
		token := l.get(done.TokenID)
		if done.State != cardvault.SessionSucceeded || token.Identification != idv.Checked ||
			token.Authentication == nil || *token.Authentication != *passedIDV.Authentication {
			l.Errorf("passed: %+v, %+v", done, token)
		}
		if want := "4242424242424242|737|||VISA|{12 2030}"; l.idv.cards[0] != want {
			l.Errorf("the provider was asked about %q, want %q", l.idv.cards[0], want)
		}
		l.holds("passed at once", 1, 0) // the code of the token

		l.idv.says(idv.Result{State: idv.NotNeeded}, nil)
		_, done = l.enters()
		if token := l.get(done.TokenID); token.Identification != idv.None || token.Authentication != nil {
			l.Errorf("not needed: %+v", token)
		}
		l.holds("not needed", 2, 0)

		l.idv.says(failedIDV, nil)
		id, dead := l.enters()
		if dead.State != cardvault.SessionFailed || dead.ReasonCode != "identification_failed" || *l.sees(id) != *dead {
			l.Errorf("failed: %+v", dead)
		}
		l.holds("failed", 2, 0)
		l.tokens(2)

		// The provider is not asked about bypassed sessions, imports and refreshes.
		asked := len(l.idv.asked)
		id, s := l.session(&cardvault.SessionOptions{BypassIdentification: true})
		done = l.completes(id, encrypts(l, s, entered, nil))
		if token := l.get(done.TokenID); token.Identification != idv.Skipped || token.Authentication != nil {
			l.Errorf("bypassed: %+v", token)
		}
		if token := l.get(l.imports(visa)); token.Identification != idv.None {
			l.Errorf("imported: %+v", token)
		}
		refresh, err := l.RefreshSession(l.Context(), done.TokenID, nil)
		l.must(err)
		l.completes(refresh.ID, encrypts(l, l.sees(refresh.ID), `{"security_code":"999"}`, nil))
		if len(l.idv.asked) != asked {
			l.Errorf("%d more identifications", len(l.idv.asked)-asked)
		}
		l.idv.says(pendingIDV, nil)
		id, s = l.session(nil)
		for _, bad := range []string{`"4242424242424241"`, `"5555555555554444"`} {
			if got := l.completes(id, encrypts(l, s, strings.Replace(entered, `"4242424242424242"`, bad, 1), nil)); got.ReasonCode == "" {
				l.Errorf("a refused card: %+v", got)
			}
		}
		if len(l.idv.asked) != asked {
			l.Error("the provider was asked about a card that was refused")
		}
		vaulttest.AssertNoLeak(t, []string{"4242424242424242", "737", id.UUID().String()}, l.log.text())
	})
}

// TestIdentificationCourse: wait, challenge, wait, and the provider's final answer.
func TestIdentificationCourse(t *testing.T) {
	for _, end := range []idv.Result{passedIDV, failedIDV} {
		identifying(t, cardvault.Options{SecurityCodeTTL: 2 * time.Minute}, func(l *idvLab) {
			l.idv.says(pendingIDV, nil)
			id, s := l.enters()
			if (*s != cardvault.Session{State: cardvault.SessionIdentifying, Kind: cardvault.SessionTokenizes}) {
				t.Fatalf("pending: %+v", s)
			}
			l.holds("pending", 1, 1)
			l.tokens(0)

			// For one second the state stays the same. The session accepts no other card.
			l.idv.says(challengeIDV, nil)
			for range 3 {
				if got := l.sees(id); *got != *s {
					l.Errorf("at once: %+v", got)
				}
			}
			l.pass(time.Second)
			s = l.sees(id)
			if s.State != cardvault.SessionIdentifying || s.ChallengeURL != challengeIDV.ChallengeURL {
				l.Errorf("challenged: %+v", s)
			}
			for _, other := range []string{"", "x", strings.Repeat("x", 9000)} {
				if got := l.completes(id, other); *got != *s {
					l.Errorf("another card meanwhile: %+v", got)
				}
			}
			if _, err := l.Tokenize(l.Context(), id, visa); !errors.Is(err, cardvault.ErrIdentificationPending) {
				l.Errorf("another card in a program: %v", err)
			}
			l.restart()
			l.idv.says(pendingIDV, nil)
			l.pass(time.Minute)
			if got := l.sees(id); got.ChallengeURL != "" || got.State != cardvault.SessionIdentifying {
				l.Errorf("waiting again: %+v", got)
			}
			l.idv.says(end, nil)
			l.pass(10 * time.Second)
			s = l.sees(id)
			passed := end.State == idv.Passed
			if passed != (s.State == cardvault.SessionSucceeded) || !passed && s.ReasonCode != "identification_failed" {
				t.Fatalf("in the end: %+v", s)
			}
			if want := "|idv-7|idv-7|idv-7"; strings.TrimPrefix(strings.Join(l.idv.asked, "|"), l.idv.asked[0]) != want {
				l.Errorf("asked %q, want Identify%s", l.idv.asked, want)
			}
			if *l.sees(id) != *s {
				l.Error("the final state changes")
			}
			if _, err := l.In(uuid.Nil).CompleteSession(l.Context(), id, nil); !errors.Is(err, cardvault.ErrSessionCompleted) {
				l.Errorf("completing an ended session: %v", err)
			}
			if !passed {
				l.tokens(0)
				l.holds("failed", 0, 0)
				return
			}
			l.holds("passed", 1, 0)
			// The code expires as if it had been stored when it was entered.
			if until := l.hasCode(s.TokenID, true); time.Until(until) > 50*time.Second {
				l.Errorf("the code is kept %v longer", time.Until(until))
			}
			l.drain()
			l.is(s.TokenID, active, "")
			if codes := l.net.codes; len(codes) != 1 || codes[0] != "737" {
				l.Errorf("the network got codes %q", codes)
			}
			l.pass(time.Minute)
			l.hasCode(s.TokenID, false)
		})
	}
}

// TestIdentificationUnanswered: a provider that leaves the outcome of a call open is asked
// again under the same key, for up to a minute.
func TestIdentificationUnanswered(t *testing.T) {
	long := strings.Repeat("x", 256)
	bad := func(change func(*idv.Result)) func(context.Context) (*idv.Result, error) {
		return func(context.Context) (*idv.Result, error) {
			r := challengeIDV
			a := *passedIDV.Authentication
			r.Authentication = &a
			change(&r)
			return &r, nil
		}
	}
	for what, answer := range map[string]func(context.Context) (*idv.Result, error){
		"error": func(context.Context) (*idv.Result, error) {
			return nil, errors.New("card 4242 4242 4242 4242, 737")
		},
		"nothing":                   func(context.Context) (*idv.Result, error) { return nil, nil },
		"panic":                     func(context.Context) (*idv.Result, error) { panic("4242424242424242") },
		"hang":                      func(ctx context.Context) (*idv.Result, error) { <-ctx.Done(); return nil, ctx.Err() },
		"no state":                  bad(func(r *idv.Result) { r.State = 0 }),
		"a later state":             bad(func(r *idv.Result) { r.State = idv.Failed + 1 }),
		"no reference":              bad(func(r *idv.Result) { r.Reference = "" }),
		"long reference":            bad(func(r *idv.Result) { r.Reference = long }),
		"card as reference":         bad(func(r *idv.Result) { r.Reference = "4242-4242-4242-4242" }),
		"card in the URL":           bad(func(r *idv.Result) { r.ChallengeURL += "4242424242424242" }),
		"http":                      bad(func(r *idv.Result) { r.ChallengeURL = "http://acs.example/" }),
		"script":                    bad(func(r *idv.Result) { r.ChallengeURL = "javascript:alert(1)" }),
		"no host":                   bad(func(r *idv.Result) { r.ChallengeURL = "https:///x" }),
		"user":                      bad(func(r *idv.Result) { r.ChallengeURL = "https://bank.example@acs.example/" }),
		"blank":                     bad(func(r *idv.Result) { r.ChallengeURL = "https://acs.example/ x" }),
		"long URL":                  bad(func(r *idv.Result) { r.ChallengeURL += strings.Repeat(long, 8) }),
		"passed without a proof":    bad(func(r *idv.Result) { r.State, r.Authentication = idv.Passed, nil }),
		"passed by another method":  bad(func(r *idv.Result) { r.State = idv.Passed; r.Authentication.Method = "sms" }),
		"passed with a long status": bad(func(r *idv.Result) { r.State = idv.Passed; r.Authentication.Status = "YY" }),
		"passed with another ECI":   bad(func(r *idv.Result) { r.State = idv.Passed; r.Authentication.ECI = "5" }),
		"passed with a number": bad(func(r *idv.Result) {
			r.State = idv.Passed
			r.Authentication.DSTransactionID = "4242424242424242"
		}),
		"passed with a lower-case status": bad(func(r *idv.Result) { r.State = idv.Passed; r.Authentication.Status = "y" }),
		"passed with the card as id": bad(func(r *idv.Result) {
			r.State = idv.Passed
			r.Authentication.DSTransactionID = "42424242-4242-4242-8000-000000000000"
		}),
		"passed in the future": bad(func(r *idv.Result) {
			r.State = idv.Passed
			r.Authentication.At = time.Now().Add(25 * time.Hour)
		}),
		"only a port":           bad(func(r *idv.Result) { r.ChallengeURL = "https://:443/x" }),
		"passed without a time": bad(func(r *idv.Result) { r.State = idv.Passed; r.Authentication.At = time.Time{} }),
	} {
		t.Run(what, func(t *testing.T) {
			identifying(t, cardvault.Options{}, func(l *idvLab) {
				l.idv.hook(answer)
				began := time.Now()
				id, s := l.enters()
				for n := 0; s.State == cardvault.SessionIdentifying && n < 100; n++ {
					if s.ChallengeURL != "" {
						t.Fatalf("%+v", s)
					}
					l.pass(2 * time.Second)
					s = l.sees(id)
				}
				if took := time.Since(began); s.ReasonCode != "identification_failed" || took < time.Minute || took > 75*time.Second {
					t.Errorf("after %v: %+v", took, s)
				}
				for _, key := range l.idv.asked {
					if key != l.idv.asked[0] {
						t.Errorf("asked under %q and %q", key, l.idv.asked[0])
					}
				}
				l.holds("in the end", 0, 0)
				l.tokens(0)
				vaulttest.AssertNoLeak(t, []string{"4242424242424242", "4242 4242", id.UUID().String(), "737"}, l.log.text())

				// The next answer may come in time.
				_, s = l.enters()
				if s.State != cardvault.SessionIdentifying {
					t.Fatalf("again: %+v", s)
				}
			})
		})
	}
	identifying(t, cardvault.Options{}, func(l *idvLab) {
		// A pending identification may take any time, even through an outage.
		l.idv.says(challengeIDV, nil)
		id, _ := l.enters()
		l.idv.says(idv.Result{}, errors.New("503"))
		l.pass(10 * time.Minute)
		if s := l.sees(id); s.State != cardvault.SessionIdentifying || s.ChallengeURL == "" {
			l.Errorf("an outage: %+v", s)
		}
		l.idv.says(passedIDV, nil)
		l.pass(time.Second)
		if s := l.sees(id); s.State != cardvault.SessionSucceeded {
			l.Errorf("after an outage: %+v", s)
		}
	})
}

// TestIdentificationLapses: the card is erased with its session, whatever the provider
// answers later.
func TestIdentificationLapses(t *testing.T) {
	identifying(t, cardvault.Options{SessionTTL: 5 * time.Minute}, func(l *idvLab) {
		l.idv.says(challengeIDV, nil)
		id, _ := l.enters()
		l.holds("pending", 1, 1)
		l.idv.says(passedIDV, nil)
		l.pass(5 * time.Minute)
		if _, err := l.In(uuid.Nil).Session(l.Context(), id); !errors.Is(err, cardvault.ErrNotFound) {
			l.Errorf("ended: %v", err)
		}
		l.drain()
		l.holds("ended", 0, 0)
		l.tokens(0)
	})
}

// TestIdentificationRace: a provider is never called twice at the same time, and one of the
// cards becomes the only token.
func TestIdentificationRace(t *testing.T) {
	identifying(t, cardvault.Options{}, func(l *idvLab) {
		var now, most int
		l.idv.hook(func(context.Context) (*idv.Result, error) {
			l.idv.mu.Lock()
			now++
			most = max(most, now)
			answer := challengeIDV
			if len(l.idv.asked) > 3 {
				answer = passedIDV
			}
			l.idv.mu.Unlock()
			<-time.After(2 * time.Second) // longer than the polling interval
			l.idv.mu.Lock()
			now--
			l.idv.mu.Unlock()
			return &answer, nil
		})
		id, s := l.session(nil)
		payloads := make([]string, 8)
		for i := range payloads {
			payloads[i] = encrypts(l, s, strings.Replace(entered, "737", fmt.Sprint(100+i), 1), nil)
		}
		var all sync.WaitGroup
		for _, p := range payloads {
			all.Go(func() {
				if _, err := l.In(uuid.Nil).CompleteSession(l.Context(), id, []byte(p)); err != nil {
					l.Error(err)
				}
			})
		}
		all.Wait()
		l.holds("of eight cards", 1, 1)
		for range 5 {
			l.pass(2 * time.Second)
			for range 8 {
				all.Go(func() { l.sees(id) })
			}
			all.Wait()
		}
		if most != 1 || len(l.idv.asked) != 4 {
			l.Errorf("the provider was asked %d times, up to %d at the same time", len(l.idv.asked), most)
		}
		if s := l.sees(id); s.State != cardvault.SessionSucceeded {
			l.Errorf("in the end: %+v", s)
		}
		l.tokens(1)
		l.holds("in the end", 1, 0)
	})
}

// TestIdentificationFaults: whatever fails in between, and even if the caller leaves, there
// is one identification and one token.
func TestIdentificationFaults(t *testing.T) {
	for at := range 6 {
		for _, done := range []bool{false, true} {
			full := errors.New("disk full")
			if done {
				full = store.ErrOutcomeUnknown
			}
			identifying(t, cardvault.Options{}, func(l *idvLab) {
				l.idv.says(challengeIDV, nil)
				id, s := l.session(nil)
				payload := []byte(encrypts(l, s, entered, nil))
				writes := 0
				l.store.set(nil, done)
				l.store.hook(func() error {
					if writes++; writes == at+1 {
						return full
					}
					return nil
				})
				for range 40 {
					if s, err := l.In(uuid.Nil).Session(l.Context(), id); err == nil && s.State == cardvault.SessionOpen {
						_, err = l.In(uuid.Nil).CompleteSession(l.Context(), id, payload)
						if err != nil && !errors.Is(err, full) && !errors.Is(err, cardvault.ErrOutcomeUnknown) {
							l.Error(err)
						}
					}
					l.pass(2 * time.Second)
					if len(l.idv.asked) > 1 {
						l.idv.says(passedIDV, nil)
					}
				}
				if s := l.sees(id); s.State != cardvault.SessionSucceeded {
					l.Errorf("a fault at write %d, done %v: %+v", at, done, s)
				}
				l.tokens(1)
				want := 1
				if done && (at == 0 || at == 5) { // the code of a card that may have been stored is erased
					want = 0
				}
				l.holds(fmt.Sprintf("a fault at write %d, done %v", at, done), want, 0)
			})
		}
	}
	// An identification continues even if its caller leaves.
	identifying(t, cardvault.Options{IDVTimeout: 5 * time.Second}, func(l *idvLab) {
		for _, late := range []bool{false, true} {
			l.idv.asked = nil
			ctx, leave := context.WithCancel(l.Context())
			l.idv.hook(func(ctx context.Context) (*idv.Result, error) {
				leave()
				select {
				case <-time.After(3 * time.Second):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				if late {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				answer := passedIDV
				return &answer, nil
			})
			id, s := l.session(nil)
			_, _ = l.In(uuid.Nil).CompleteSession(ctx, id, []byte(encrypts(l, s, entered, nil)))
			l.idv.says(passedIDV, nil)
			l.pass(2 * time.Second)
			if s := l.sees(id); s.State != cardvault.SessionSucceeded || late != (len(l.idv.asked) > 1) {
				l.Errorf("after the caller left, late %v: %+v, asked %q", late, s, l.idv.asked)
			}
		}
	})
}

// TestIdentificationEnds: a session that ends while the provider is asked makes no token. A
// code entered late in a session is kept for its full time.
func TestIdentificationEnds(t *testing.T) {
	identifying(t, cardvault.Options{SessionTTL: time.Minute}, func(l *idvLab) {
		l.idv.hook(func(context.Context) (*idv.Result, error) {
			<-time.After(5 * time.Second)
			answer := passedIDV
			return &answer, nil
		})
		id, s := l.session(nil)
		payload := encrypts(l, s, entered, nil)
		l.pass(58 * time.Second)
		if _, err := l.In(uuid.Nil).CompleteSession(l.Context(), id, []byte(payload)); !errors.Is(err, cardvault.ErrNotFound) {
			l.Errorf("an answer after the session: %v", err)
		}
		l.tokens(0)
		l.holds("ended", 0, 1)
		l.drain()
		l.holds("swept", 0, 0)

		id, s = l.session(nil)
		payload = encrypts(l, s, entered, nil)
		l.pass(50 * time.Second)
		done := l.completes(id, payload)
		if until := l.hasCode(done.TokenID, true); time.Until(until) < 9*time.Minute {
			l.Errorf("the code is kept for %v", time.Until(until))
		}
	})
}

// TestIdentificationSchemes: the scheme that a BIN provider reports is checked only once.
func TestIdentificationSchemes(t *testing.T) {
	bins := new(fickle)
	identifying(t, cardvault.Options{BIN: bins, Schemes: []card.Scheme{card.VISA}}, func(l *idvLab) {
		l.idv.says(pendingIDV, nil)
		id, s := l.session(nil)
		l.completes(id, encrypts(l, s, entered, nil))
		bins.scheme = card.Mastercard
		l.idv.says(passedIDV, nil)
		l.pass(time.Second)
		if s := l.sees(id); s.State != cardvault.SessionSucceeded {
			l.Errorf("accepted, and then another scheme: %+v", s)
		}
		l.holds("in the end", 1, 0)
	})
}

// A fickle network.BINProvider changes its answer.
type fickle struct{ scheme card.Scheme }

func (f *fickle) LookupBIN(context.Context, *network.BINRequest) (*network.BIN, error) {
	scheme := max(f.scheme, card.VISA)
	return &network.BIN{Scheme: &scheme}, nil
}

// TestTokenizeIdentifies: cards that a program enters itself are identified too.
func TestTokenizeIdentifies(t *testing.T) {
	identifying(t, cardvault.Options{}, func(l *idvLab) {
		tokenize := func() (cardvault.SessionID, *cardvault.Token, error) {
			id, err := l.CreateSession(l.Context(), nil)
			l.must(err)
			token, err := l.Tokenize(l.Context(), id.ID, coded(visa, "737"))
			return id.ID, token, err
		}
		l.idv.says(passedIDV, nil)
		if _, token, err := tokenize(); err != nil || token.Identification != idv.Checked {
			l.Errorf("passed: %v, %v", token, err)
		}
		l.idv.says(failedIDV, nil)
		id, _, err := tokenize()
		if _, again := l.Tokenize(l.Context(), id, visa); !errors.Is(err, cardvault.ErrIdentificationFailed) || !errors.Is(again, cardvault.ErrSessionCompleted) {
			l.Errorf("failed: %v, again %v", err, again)
		}
		l.idv.says(pendingIDV, nil)
		id, _, err = tokenize()
		if !errors.Is(err, cardvault.ErrIdentificationPending) {
			l.Errorf("pending: %v", err)
		}
		l.idv.says(passedIDV, nil)
		l.pass(time.Second)
		if s := l.sees(id); s.State != cardvault.SessionSucceeded {
			l.Errorf("passed later: %+v", s)
		}
		l.tokens(2)
	})
}

// TestContact: contact data entered with the card reaches provider and network, and is not
// kept afterwards.
func TestContact(t *testing.T) {
	const contact = `{"billing_address_city":"Zürich & <Co>","billing_address_line_1":"Quix 7\"","email":"zoe@example.com"}`
	claims := strings.Replace(entered, "{", `{"phone":"1","billing_address_none":null,"billing_address_empty":" ",`+contact[1:len(contact)-1]+",", 1)
	// The record is found by its due time, before the network token exists. Later it is no
	// longer due.
	row := func(l *idvLab) (row uuid.UUID) {
		l.must(l.store.View(l.Context(), func(tx store.ReadTx) error {
			rows, err := tx.Due(kindNetworkToken, store.AllShards, time.Now().AddDate(1, 0, 0), 100)
			if len(rows) != 1 {
				l.Fatalf("%d network tokens, %v", len(rows), err)
			}
			row = rows[0].ID
			return err
		}))
		return row
	}
	has := func(l *idvLab, what string, row uuid.UUID, want bool) {
		l.Helper()
		l.must(l.store.View(l.Context(), func(tx store.ReadTx) error {
			r, err := tx.Get(kindNetworkToken, row)
			if err == nil && (len(r.Secret) > 0) != want {
				l.Errorf("%s: contact data is stored: %v", what, !want)
			}
			return err
		}))
	}
	var got []string
	for what, after := range map[string]func(l *idvLab){
		"at once":          func(l *idvLab) {},
		"after a refusal":  func(l *idvLab) { l.net.script(refuse("Provision", schemeError("issuer_unavailable")), nil) },
		"refused for good": func(l *idvLab) { l.net.script(refuse("Provision", schemeError("declined")), nil) },
		"pending":          func(l *idvLab) { l.net.like.State = network.Pending },
	} {
		identifying(t, cardvault.Options{}, func(l *idvLab) {
			l.idv.says(passedIDV, nil)
			l.net.contact = func(text string) { got = append(got, text) }
			after(l)
			id, s := l.session(nil)
			done := l.completes(id, encrypts(l, s, claims, nil))
			if want := "|" + contact + "|"; !strings.Contains(l.idv.cards[0], want) {
				l.Errorf("the provider got %s", l.idv.cards[0])
			}
			job := row(l)
			has(l, "before", job, true)
			got = nil
			l.drain()
			if what == "after a refusal" {
				has(l, "refused once", job, true)
				l.net.script(nil, nil)
				l.pass(time.Minute)
				l.drain()
			}
			for _, text := range got {
				if text != contact {
					l.Errorf("%s: the network got %q", what, text)
				}
			}
			if len(got) == 0 {
				l.Errorf("%s: the network got nothing", what)
			}
			has(l, what, job, false)
			vaulttest.AssertNoLeak(t, []string{"zoe@example.com", "Quix"}, l.log.text(), fmt.Sprint(l.get(done.TokenID)))
		})
	}
	inLab(t, nil, func(l *lab) {
		for what, object := range map[string]string{
			"no JSON": "x", "a list": `[]`, "a number": `{"email":7}`, "an object": `{"billing_address_a":{}}`,
			"control": `{"email":"a\r\nBcc: b"}`, "empty": `{"email":""}`, "blank": `{"email":" "}`,
			"a card": `{"billing_address_x":"4242424242424242"}`, "long": `{"email":"` + strings.Repeat("x", 256) + `"}`,
			"another member": `{"phone":"1"}`, "twice": `{"email":"a","email":"b"}`, "too long": `{"email":"` + strings.Repeat("x", 4<<10) + `"}`,
		} {
			c := visa
			c.Contact = card.NewContact([]byte(object))
			if _, err := l.Import(l.Context(), c, nil); len(cardvault.FieldErrors(err)) != 1 || cardvault.FieldErrors(err)[0].Field != "Contact" {
				l.Errorf("%s: %v", what, err)
			}
		}
		id, s := l.session(nil)
		for what, claim := range map[string]string{
			"control": `"email":"a\r\nb"`, "a card": `"email":"4242424242424242"`,
			"a number": `"email":7`, "a list": `"billing_address_x":[]`, "too much": `"email":"` + strings.Repeat("x", 4<<10) + `"`,
		} {
			l.refuses(what, id, encrypts(l, s, strings.Replace(entered, "{", "{"+claim+",", 1), nil), "invalid_format")
		}
	})
}

// TestIdentificationRows: sealed data of a session is bound to that session.
func TestIdentificationRows(t *testing.T) {
	identifying(t, cardvault.Options{}, func(l *idvLab) {
		const kindSession store.Kind = 6
		l.idv.says(challengeIDV, nil)
		first, _ := l.enters()
		second, _ := l.enters()
		l.must(l.store.Update(l.Context(), func(tx store.Tx) error {
			rows, err := tx.Due(kindSession, store.AllShards, time.Now().AddDate(1, 0, 0), 100)
			if err != nil {
				return err
			}
			for i, r := range rows {
				other, err := tx.Get(kindSession, rows[1-i].ID)
				if err != nil {
					return err
				}
				if bytes.Contains(other.Secret, []byte("4242")) {
					l.Error("a card is stored in clear text")
				}
				r.Version++
				r.Secret = other.Secret
				tx.Put(r)
			}
			return nil
		}))
		l.idv.says(passedIDV, nil)
		l.pass(time.Second)
		synctest.Wait()
		for _, id := range []cardvault.SessionID{first, second} {
			if _, err := l.In(uuid.Nil).Session(l.Context(), id); !errors.Is(err, cardvault.ErrDamaged) {
				l.Errorf("with the card of another session: %v", err)
			}
		}
		l.tokens(0)
	})
}

func TestIDVOptions(t *testing.T) {
	if _, err := newVault(t, &cardvault.Options{IDV: sandboxVerifier{new(verifier)}}); !errors.Is(err, cardvault.ErrWrongMode) {
		t.Errorf("a live vault with a provider for sandboxes: %v", err)
	}
	for _, d := range []time.Duration{-1, time.Millisecond, time.Minute} {
		if _, err := newVault(t, &cardvault.Options{IDVTimeout: d}); err == nil {
			t.Errorf("a timeout of %v is accepted", d)
		}
	}
}

type sandboxVerifier struct{ *verifier }

func (sandboxVerifier) Info() idv.Info { return idv.Info{Name: "sandbox", SandboxOnly: true} }

// TestChallengeOnLoopback: a page without TLS is shown only in a sandbox, and only if it is
// on the same machine.
func TestChallengeOnLoopback(t *testing.T) {
	for _, mode := range []cardvault.Mode{cardvault.Live, cardvault.Sandbox} {
		for url, local := range map[string]bool{
			"http://127.0.0.1:8080/x": true, "http://localhost/x": true, "http://[::1]/x": true,
			"http://127.0.0.1.evil.example/": false, "http://10.0.0.1/": false,
		} {
			judge := new(verifier)
			inLab(t, &cardvault.Options{Mode: mode, IDV: judge}, func(l *lab) {
				challenge := pendingIDV
				challenge.ChallengeURL = url
				judge.says(challenge, nil)
				id, s := l.session(nil)
				want := ""
				if local && mode == cardvault.Sandbox {
					want = url
				}
				if s = l.completes(id, encrypts(l, s, entered, nil)); s.State != cardvault.SessionIdentifying || s.ChallengeURL != want {
					l.Errorf("%v: a challenge at %s shows as %+v", mode, url, s)
				}
			})
		}
	}
}

// TestIdentificationOfReplaced: a session whose card the scheme replaces or invalidates while its
// holder is identified has failed: the shopper has entered the card of before. A session that
// another replacement overtakes replaces that card.
func TestIdentificationOfReplaced(t *testing.T) {
	for kind, want := range map[network.NoticeKind]error{
		network.NoticeCardReplaced: cardvault.ErrCardDataStale,
		network.NoticeInvalidated:  cardvault.ErrTokenInvalidated,
	} {
		identifying(t, cardvault.Options{}, func(l *idvLab) {
			token := l.become(active)
			made := func() cardvault.SessionID {
				s, err := l.ReplaceSession(l.Context(), token, nil)
				l.must(err)
				return s.ID
			}
			happens := func() {
				l.notify(network.Notice{Kind: kind, Token: network.Ref{ID: fmt.Sprint("network-token-", l.net.made)}})
			}
			then := func(f func()) {
				l.idv.hook(func(context.Context) (*idv.Result, error) { f(); r := passedIDV; return &r, nil })
			}
			refused := func(id cardvault.SessionID) {
				l.Helper()
				for range 2 {
					if s := l.sees(id); s.State != cardvault.SessionFailed || s.ReasonCode != cardvault.RefusedAccountNumber {
						l.Errorf("%v: the session is %+v", kind, s)
					}
				}
				l.holds("refused", 0, 0)
			}

			l.idv.says(pendingIDV, nil)
			id := made()
			l.completes(id, encrypts(l, l.sees(id), entered, nil))
			l.holds("entered", 1, 1)
			happens()
			l.pass(time.Minute)
			l.idv.says(passedIDV, nil)
			refused(id)

			l.must2(l.Replace(l.Context(), token, mastercard, nil))
			l.drain()
			then(happens)
			id = made()
			if _, err := l.Tokenize(l.Context(), id, mastercard); !errors.Is(err, want) {
				l.Errorf("%v: Tokenize: %v, want %v", kind, err, want)
			}
			refused(id)

			l.must2(l.Replace(l.Context(), token, visa, nil))
			l.drain()
			then(happens)
			id = made()
			if s := l.completes(id, encrypts(l, l.sees(id), entered, nil)); s.State != cardvault.SessionFailed {
				l.Errorf("%v: completed: %+v", kind, s)
			}
			refused(id)

			l.idv.says(pendingIDV, nil)
			id = made()
			l.must2(l.Replace(l.Context(), token, mastercard, nil))
			l.completes(id, encrypts(l, l.sees(id), entered, nil))
			l.pass(time.Minute)
			l.store.hook(func() error { // between the read and the write of the replacement, after the lease
				l.store.hook(func() error {
					l.store.hook(nil)
					l.must2(l.Replace(l.Context(), token, amex, nil))
					return nil
				})
				return nil
			})
			l.idv.says(passedIDV, nil)
			if s := l.sees(id); s.State != cardvault.SessionIdentifying {
				l.Errorf("%v: overtaken: %+v", kind, s)
			}
			l.pass(2 * time.Second)
			if s := l.sees(id); s.State != cardvault.SessionSucceeded || l.get(token).Scheme != card.VISA {
				l.Errorf("%v: after it was overtaken: %+v", kind, s)
			}
		})
	}
}
