package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var mastercard = cardvault.Card{
	PAN:    card.NewPAN([]byte("5555555555554444")),
	Expiry: card.Expiry{Month: 12, Year: 2030},
}

// crowd imports n cards.
func (l *lab) crowd(n int, c cardvault.Card) []uuid.UUID {
	l.Helper()
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = l.imports(c)
	}
	return ids
}

// count returns how many tokens have a state.
func (l *lab) count(status network.Status) int64 {
	l.Helper()
	page, err := l.List(l.Context(), &cardvault.TokenListOptions{Limit: 1, NetworkTokenStatus: []network.Status{status}})
	l.must(err)
	return page.TotalItems
}

// TestActivation: activating network tokens for an account queues all its eligible tokens. A
// crash does not stop this.
func TestActivation(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash %v", crash), func(t *testing.T) {
			inLab(t, &cardvault.Options{Mode: cardvault.Live, NetworkRate: 1e6}, func(l *lab) {
				l.activate(false)
				const n = 1000
				ids := l.crowd(n, visa)
				expired := visa
				expired.Expiry = card.Expiry{Month: 12, Year: 2000}
				l.crowd(3, expired)
				a, err := l.CreateAccount(l.Context(), "another", nil)
				l.must(err)
				other, err := l.In(a.ID).Import(l.Context(), visa, nil)
				l.must(err)
				l.pass(400 * 24 * time.Hour) // until after 2000
				l.net.ineligible = func(s card.Scheme) error {
					if s == card.Mastercard {
						return configurationError("scheme_not_enabled")
					}
					return nil
				}
				l.crowd(2, mastercard)
				if calls := l.net.asked(); len(calls) > 0 || l.count(notAvailable) != n+5 {
					t.Fatalf("%d calls, %d tokens not available", len(calls), l.count(notAvailable))
				}
				session, err := l.CreateSession(l.Context(), &cardvault.SessionOptions{TokenTTL: 1000 * 1000 * time.Second})
				l.must(err)
				ephemeral, err := l.Tokenize(l.Context(), session.ID, visa)
				l.must(err)

				l.activate(true)
				during := l.imports(visa)
				if crash {
					// Each process dies after changing a few hundred tokens.
					for range 4 {
						var updates atomic.Int64
						l.store.hook(func() error {
							if updates.Add(1) > 400 {
								return store.ErrUnavailable
							}
							return nil
						})
						l.run(func() { l.pass(time.Second) })
						l.restart()
					}
				}
				l.run(func() { l.pass(10 * time.Minute) })
				for _, id := range append(ids, during) {
					if got := l.get(id).NetworkTokenStatus; got != active {
						t.Fatalf("a token is %v", got)
					}
				}
				if l.count(active) != n+1 || l.count(notAvailable) != 6 {
					t.Errorf("%d tokens active, %d not available", l.count(active), l.count(notAvailable))
				}
				l.is(ephemeral.ID, notAvailable, "ephemeral_token")
				l.held(n + 1)
				keys := map[string]bool{}
				for _, c := range l.net.asked("Provision") {
					keys[c.key] = true
				}
				if len(keys) != n+1 {
					t.Errorf("%d keys", len(keys))
				}
				l.Vault = l.In(a.ID)
				l.is(other.ID, notAvailable, "network_tokens_not_activated")
			})
		})
	}
}

// A watched store calls then, if it is set, after a View.
type watched struct {
	store.Store
	then func()
}

func (s *watched) View(ctx context.Context, fn func(store.ReadTx) error) error {
	err := s.Store.View(ctx, fn)
	if s.then != nil {
		s.then()
	}
	return err
}

// TestActivationWhileImporting: a token is found even if its import began before the
// activation and was stored after it.
func TestActivationWhileImporting(t *testing.T) {
	inLab(t, live, func(l *lab) {
		l.activate(false)
		l.pass(time.Hour)
		w := &watched{Store: l.store.on()}
		l.store.rests(w)
		w.then = func() { // the import has checked the account, and has stored nothing yet
			w.then = nil
			l.activate(true)
			l.must(l.Drain(l.Context()))
		}
		id := l.imports(visa)
		l.is(id, notAvailable, "network_tokens_not_activated")
		l.run(func() { l.pass(5 * time.Minute) })
		l.is(id, active, "")
	})
}

// TestActivationAgain: repeating an activation starts nothing, and withdrawing it stops the
// work.
func TestActivationAgain(t *testing.T) {
	inLab(t, live, func(l *lab) {
		l.net.ineligible = func(card.Scheme) error { return configurationError("scheme_not_enabled") }
		ids := l.crowd(300, visa)
		l.net.ineligible = nil
		for range 3 {
			l.activate(true)
		}
		l.run(func() { l.pass(5 * time.Minute) })
		if n := len(l.net.asked()); n > 0 {
			t.Errorf("%d calls", n)
		}
		// It is activated and withdrawn at once, so no network tokens are requested.
		l.activate(false)
		l.activate(true)
		l.activate(false)
		l.run(func() { l.pass(5 * time.Minute) })
		if n := len(l.net.asked()); n > 0 {
			t.Errorf("%d calls", n)
		}
		// Requests still pending at the withdrawal are not sent.
		l.activate(true)
		l.run(func() { l.pass(5 * time.Minute) })
		l.is(ids[299], active, "")
		id := l.imports(visa)
		l.activate(false)
		calls := len(l.net.asked())
		l.run(func() { l.pass(time.Minute) })
		l.is(id, notAvailable, "network_tokens_not_activated")
		if n := len(l.net.asked()); n != calls {
			t.Errorf("%d calls", n-calls)
		}
		l.must(l.Vault.Delete(l.Context(), id))
		l.drain()
		if n := len(l.net.asked()); n != calls {
			t.Errorf("%d calls after the deletion", n-calls)
		}
	})
}

// TestActivationOfDamagedTokens: a damaged token does not keep others from their network
// tokens.
func TestActivationOfDamagedTokens(t *testing.T) {
	inLab(t, live, func(l *lab) {
		l.activate(false)
		ids := l.crowd(600, visa)
		l.must(l.store.on().Update(l.Context(), func(tx store.Tx) error {
			a, err := l.Account(l.Context())
			if err != nil {
				return err
			}
			list, err := tx.List(&store.Query{Kind: kindToken, Account: a.ID, Limit: 600})
			if err != nil {
				return err
			}
			for i := range 3 {
				r := list.Records[100+200*i]
				r, err := tx.Get(kindToken, r.ID)
				if err != nil {
					return err
				}
				r.Version++
				r.Shown[20] ^= 1
				tx.Put(r)
			}
			return nil
		}))
		l.activate(true)
		l.run(func() { l.pass(10 * time.Minute) })
		if n := l.count(active); n != int64(len(ids)-3) {
			t.Errorf("%d tokens are active", n)
		}
		if n := strings.Count(l.log.text(), "cannot be provisioned"); n < 3 || n > 6 {
			t.Errorf("%d log entries about damage", n)
		}
	})
}

// TestNetworkRate: the rate limit spaces the calls for a scheme, and delays no other scheme.
func TestNetworkRate(t *testing.T) {
	for _, activation := range []bool{false, true} {
		t.Run(fmt.Sprintf("activation %v", activation), func(t *testing.T) {
			inLab(t, &cardvault.Options{Mode: cardvault.Live, NetworkRate: 5}, func(l *lab) {
				const n = 300
				var began time.Time
				if activation {
					l.activate(false)
					l.crowd(n, visa)
					l.crowd(3, mastercard)
					began = time.Now()
					l.activate(true)
				} else {
					began = time.Now()
					l.crowd(n, visa)
					l.crowd(3, mastercard)
				}
				l.run(func() { l.pass(10 * time.Minute) })
				var visas, others []call
				for _, c := range l.net.asked("Provision") {
					if c.scheme == card.VISA {
						visas = append(visas, c)
					} else {
						others = append(others, c)
					}
				}
				if len(visas) != n || len(others) != 3 || l.count(active) != n+3 {
					t.Fatalf("%d and %d calls", len(visas), len(others))
				}
				for _, c := range others {
					if late := c.at.Sub(began); late > 2*time.Second {
						t.Errorf("the other scheme waited %v", late)
					}
				}
				// The rate is kept over the long run, and roughly over short times.
				if took := visas[n-1].at.Sub(began); took < 50*time.Second || took > 70*time.Second {
					t.Errorf("%d calls took %v", n, took)
				}
				for i, c := range visas {
					within := 0
					for _, d := range visas[i:] {
						if d.at.Sub(c.at) < 10*time.Second {
							within++
						}
					}
					if within > 2*50 {
						t.Errorf("%d calls in ten seconds", within)
						break
					}
				}
				// The order is shuffled, yet no card is far from its place.
				order := map[uuid.UUID]int{}
				for i, c := range visas {
					order[uuid.MustParse(c.key[:36])] = i
				}
				page, err := l.List(l.Context(), &cardvault.TokenListOptions{Ascending: true, Limit: n, Scheme: []card.Scheme{card.VISA}})
				l.must(err)
				inversions, far, last := 0, 0, -1
				for i, token := range page.Items {
					place := order[token.ID]
					if place < last {
						inversions++
					}
					last = place
					far = max(far, place-i, i-place)
				}
				if inversions < n/10 {
					t.Errorf("only %d of %d come out of order", inversions, n)
				}
				if !activation && far > n/2 {
					t.Errorf("a card is %d places away", far)
				}
			})
		})
	}
}

// TestNetworkRateOfOne: a single card does not wait.
func TestNetworkRateOfOne(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Live, NetworkRate: 0.01}, func(l *lab) {
		l.run(func() {
			id := l.imports(visa)
			synctest.Wait()
			l.pass(time.Millisecond)
			l.is(id, active, "")
			second := l.imports(visa)
			l.pass(70 * time.Second)
			l.is(second, pending, "")
			l.pass(60 * time.Second)
			l.is(second, active, "")
		})
	})
}

// TestLease: one process works on a job, and another one does if that process is gone.
func TestLease(t *testing.T) {
	inLab(t, live, func(l *lab) {
		id := l.imports(visa)
		l.net.script(func(ctx context.Context, _ call) error {
			<-ctx.Done()
			<-time.After(time.Hour) // an adapter that does not return
			return ctx.Err()
		}, nil)
		first := l.Vault
		ctx, stop := context.WithCancel(l.Context())
		ended := make(chan error)
		go func() { ended <- first.Run(ctx) }()
		l.pass(time.Second)
		if n := len(l.net.asked()); n != 1 {
			t.Fatalf("%d calls", n)
		}
		l.net.script(nil, nil)
		l.Vault = l.open()
		l.run(func() {
			l.pass(28 * time.Second)
			if n := len(l.net.asked()); n != 1 {
				t.Errorf("%d calls before the lease ends", n)
			}
			l.pass(35 * time.Second)
		})
		l.is(id, active, "")
		calls := l.net.asked("Provision")
		if len(calls) != 2 || calls[0].key != calls[1].key {
			t.Errorf("calls %v", calls)
		} else if pause := calls[1].at.Sub(calls[0].at); pause < 30*time.Second || pause > time.Minute {
			t.Errorf("taken over after %v", pause)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		l.is(id, active, "")
		l.held(1)
	})
}

// TestAnswerAfterTheLease: an answer is accepted even after the token has failed.
func TestAnswerAfterTheLease(t *testing.T) {
	inLab(t, live, func(l *lab) {
		id := l.imports(visa)
		l.net.script(nil, func(_ context.Context, c call) error {
			if c.method == "Provision" && len(l.net.asked("Provision")) == 1 {
				<-time.After(12 * time.Hour) // an adapter without a deadline
				return nil
			}
			return errors.New("down")
		})
		first := l.Vault
		ctx, stop := context.WithCancel(l.Context())
		ended := make(chan error)
		go func() { ended <- first.Run(ctx) }()
		l.pass(time.Second)
		l.Vault = l.open()
		l.run(func() {
			l.pass(10 * time.Hour)
			l.is(id, failed, "scheme_unavailable")
			l.pass(3 * time.Hour)
			l.is(id, active, "")
		})
		stop()
		l.must(<-ended)
		l.held(1)
	})
}

// TestAnswerOfALostLease: an answer is not stored if another process has taken over the
// shard. The call of that process, under the same key, may have had another outcome.
func TestAnswerOfALostLease(t *testing.T) {
	inLab(t, live, func(l *lab) {
		id := l.imports(visa)
		l.pass(time.Second)
		l.net.script(func(_ context.Context, c call) error {
			if c.method == "Provision" && len(l.net.asked("Provision")) == 1 {
				<-time.After(2 * time.Minute)
				return schemeError("declined")
			}
			return nil
		}, func(_ context.Context, c call) error {
			if c.method == "Provision" && len(l.net.asked("Provision")) == 2 {
				return errors.New("lost")
			}
			return nil
		})
		ended := make(chan error, 1)
		first := l.Vault
		go func() { ended <- first.Drain(l.Context()) }()
		l.pass(time.Minute)
		l.Vault = l.open()
		l.drain()
		l.held(1)
		l.is(id, pending, "")
		l.must(<-ended)
		l.run(func() { l.pass(10 * time.Minute) })
		l.is(id, active, "")
		l.held(1)
		for _, c := range l.net.asked("Provision") {
			if c.key != id.String()+":1" {
				t.Errorf("a call under the key %s", c.key)
			}
		}
	})
}

// TestSharedWork: several processes on one store share the work.
func TestSharedWork(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		l.crowd(500, visa)
		var busy, most atomic.Int64
		l.net.script(func(context.Context, call) error {
			for n := busy.Add(1); ; {
				if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			<-time.After(time.Second)
			busy.Add(-1)
			return nil
		}, nil)
		other := l.open()
		ctx, stop := context.WithCancel(l.Context())
		ended := make(chan error)
		go func() { ended <- other.Run(ctx) }()
		l.run(func() { l.pass(time.Minute) })
		stop()
		l.must(<-ended)
		if n := len(l.net.asked("Provision")); n != 500 || l.count(active) != 500 {
			t.Errorf("%d calls", n)
		}
		if most.Load() <= 64 || most.Load() > 128 {
			t.Errorf("up to %d calls at the same time", most.Load())
		}
	})
}

// TestMixedBatch: cards are not sent in the order in which they were imported.
func TestMixedBatch(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		ids := l.crowd(128, visa)
		l.pass(time.Second)
		l.net.script(func(context.Context, call) error {
			<-time.After(time.Second)
			return nil
		}, nil)
		l.run(func() {
			first := map[string]bool{}
			for _, c := range l.net.asked() {
				first[c.key[:36]] = true
			}
			early := 0
			for _, id := range ids[:64] {
				if first[id.String()] {
					early++
				}
			}
			if len(first) != 64 || early > 55 {
				t.Errorf("%d of the first %d calls are for the first 64 cards", early, len(first))
			}
		})
	})
}

// TestClaimedTooEarly: a job may wait so long for a worker that its lease could end during
// the call. It is then left to the next claim, so that no card is sent twice at the same
// time.
func TestClaimedTooEarly(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		l.crowd(128, visa)
		l.pass(time.Second)
		var mu sync.Mutex
		busy := map[string]int{}
		l.net.script(func(_ context.Context, c call) error {
			mu.Lock()
			if busy[c.key]++; busy[c.key] > 1 {
				l.Errorf("two calls at the same time under %s", c.key)
			}
			mu.Unlock()
			<-time.After(40 * time.Second) // an adapter without a deadline
			mu.Lock()
			busy[c.key]--
			mu.Unlock()
			return nil
		}, nil)
		other := l.open()
		ctx, stop := context.WithCancel(l.Context())
		ended := make(chan error)
		l.run(func() {
			go func() { ended <- other.Run(ctx) }()
			l.pass(10 * time.Minute)
		})
		stop()
		l.must(<-ended)
		if l.count(active) != 128 {
			t.Errorf("%d tokens are active", l.count(active))
		}
	})
}

// TestRunEnds: Run ends with its context, after the calls in progress, whose outcome is
// stored. So does Drain. TestMain checks that no goroutine is left.
func TestRunEnds(t *testing.T) {
	for what, slow := range map[string]time.Duration{"a slow network": 5 * time.Second, "one that hangs": time.Hour} {
		for _, how := range []string{"Run", "Drain", "Close"} {
			t.Run(what+" "+how, func(t *testing.T) {
				inLab(t, nil, func(l *lab) {
					ids := l.crowd(200, visa)
					l.pass(time.Millisecond)
					l.net.script(func(ctx context.Context, _ call) error {
						select {
						case <-time.After(slow):
							return nil
						case <-ctx.Done():
							return ctx.Err()
						}
					}, nil)
					ctx, stop := context.WithCancel(l.Context())
					defer stop()
					ended := make(chan error)
					go func() {
						if how == "Drain" {
							ended <- l.Drain(ctx)
						} else {
							ended <- l.Run(ctx)
						}
					}()
					l.pass(time.Second)
					before := time.Now()
					if how == "Close" {
						l.must(l.Vault.Close())
					} else {
						stop()
					}
					err := <-ended
					if took := time.Since(before); took > 10*time.Second {
						t.Errorf("it took %v", took)
					}
					switch how {
					case "Run":
						l.must(err)
					case "Drain":
						if !errors.Is(err, context.Canceled) {
							t.Errorf("Drain: %v", err)
						}
					case "Close":
						if !errors.Is(err, cardvault.ErrClosed) {
							t.Errorf("Run: %v", err)
						}
						l.restart()
					}
					if how != "Close" && slow < time.Minute && l.count(active) != 64 {
						t.Errorf("%d of the calls in progress are stored", l.count(active))
					}
					l.net.script(nil, nil)
					l.run(func() { l.pass(time.Minute) })
					for _, id := range ids {
						l.is(id, active, "")
					}
					l.held(len(ids))
				})
			})
		}
	}
}

// TestDrain: Drain does all due work, including the work that this causes.
func TestDrain(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		ids := l.crowd(300, visa)
		l.drain()
		if n := l.count(active); n != 300 {
			t.Errorf("%d tokens are active", n)
		}
		for _, id := range ids {
			l.must(l.Vault.Delete(l.Context(), id))
		}
		l.drain()
		l.held(0)
		if n := len(l.net.asked("Provision")); n != 300 {
			t.Errorf("%d calls of Provision", n)
		}
		l.drain()
		if n := len(l.net.asked()); n != 600 {
			t.Errorf("%d calls", n)
		}
		l.activate(false)
		l.crowd(300, visa)
		l.activate(true)
		l.drain()
		if n := l.count(active); n != 300 {
			t.Errorf("%d tokens are active", n)
		}
	})
}

// A feeding network passes on notices, and fails as the test says.
type feeding struct {
	*scripted
	feed func(ctx context.Context, sink func(context.Context, *network.Notice) error) error
}

func (n *feeding) Info() network.Info { return network.Info{Name: "scripted", Feeder: true} }

func (n *feeding) Feed(ctx context.Context, _ *network.FeedRequest, sink func(context.Context, *network.Notice) error) error {
	return n.feed(ctx, sink)
}

// TestFeed: Run receives notices from a network with a feed, and restarts a failed feed.
func TestFeed(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		var starts []time.Time
		l.opts.Network = &feeding{l.net, func(ctx context.Context, sink func(context.Context, *network.Notice) error) error {
			starts = append(starts, time.Now())
			switch len(starts) {
			case 1:
				return errors.New("connection reset")
			case 2:
				panic("4242424242424242")
			case 3:
				return nil // returns too early
			case 4:
				if err := sink(ctx, l.notice(notice{ID: "unknown", Kind: network.NoticeDeleted, Token: network.Ref{ID: "x"}})); !errors.Is(err, cardvault.ErrNotFound) {
					l.Errorf("a notice for an unknown network token: %v", err)
				}
				l.try(sink(ctx, l.notice(notice{Kind: network.NoticeSuspended})))
			}
			<-ctx.Done()
			return nil
		}}
		l.restart()
		id := l.become(active)
		if len(starts) > 0 {
			t.Error("Drain starts the feed")
		}
		l.run(func() { l.pass(time.Hour) })
		l.is(id, inactive, "suspended_by_issuer")
		if len(starts) != 4 {
			t.Fatalf("%d starts", len(starts))
		}
		for i := range 3 {
			if pause := starts[i+1].Sub(starts[i]); pause != time.Second<<i {
				t.Errorf("restarted after %v", pause)
			}
		}
		if text := l.log.text(); strings.Contains(text, "4242424242424242") || strings.Count(text, "will be restarted") != 3 {
			t.Errorf("log: %s", text)
		}
	})
	// The pause between restarts does not grow beyond a minute.
	inLab(t, nil, func(l *lab) {
		starts := 0
		l.opts.Network = &feeding{l.net, func(context.Context, func(context.Context, *network.Notice) error) error {
			starts++
			return errors.New("4242424242424242 was refused")
		}}
		l.restart()
		l.run(func() { l.pass(time.Hour) })
		if starts < 60 || starts > 66 {
			t.Errorf("%d starts in an hour", starts)
		}
		if strings.Contains(l.log.text(), "4242424242424242") {
			t.Error("the log holds a card number")
		}
	})
}

// TestDamagedJobs: damaged records stop no other work, however many they are, and do not
// fill the log.
func TestDamagedJobs(t *testing.T) {
	for _, n := range []int{1, 128, 700} {
		for _, how := range []string{"Run", "Drain"} {
			t.Run(fmt.Sprint(how, " ", n), func(t *testing.T) {
				inLab(t, nil, func(l *lab) {
					l.crowd(n, visa)
					l.spoil(kindNetworkToken, func(*store.Record) bool { return true }, n)
					l.pass(time.Second)
					ids := l.crowd(300, visa)
					if how == "Run" {
						l.run(func() { l.pass(2 * time.Minute) })
					} else {
						l.pass(time.Second)
						if err := l.Drain(l.Context()); !errors.Is(err, cardvault.ErrDamaged) {
							t.Errorf("Drain: %v", err)
						}
					}
					for _, id := range ids {
						l.is(id, active, "")
					}
					if lines := strings.Count(l.log.text(), "\n"); lines > 20 {
						t.Errorf("%d lines of log", lines)
					}
					if size := len(l.log.text()); size > 5000 {
						t.Errorf("%d bytes of log", size)
					}
				})
			})
		}
	}
}

// TestStoreDown: nothing is lost while a store fails.
func TestStoreDown(t *testing.T) {
	for _, done := range []bool{false, true} {
		inLab(t, nil, func(l *lab) {
			ids := l.crowd(50, visa)
			var updates atomic.Int64
			l.store.set(nil, done)
			l.store.hook(func() error {
				if updates.Add(1)%5 > 1 {
					return store.ErrOutcomeUnknown
				}
				return nil
			})
			l.run(func() { l.pass(time.Hour) })
			l.store.hook(nil)
			for _, id := range ids {
				l.is(id, active, "")
			}
			l.held(len(ids))
		})
	}
}

// TestProvisionWait: Provision waits as long as configured, and no longer.
func TestProvisionWait(t *testing.T) {
	opts := func() *cardvault.Options {
		return &cardvault.Options{Mode: cardvault.Sandbox, ProvisionWait: 5 * time.Second}
	}
	for _, test := range []struct {
		what      string
		slow      time.Duration // duration of the network's call
		want      network.Status
		low, high time.Duration
	}{
		{"at once", 0, active, 0, 100 * time.Millisecond},
		{"soon", 2 * time.Second, active, 2 * time.Second, 2100 * time.Millisecond},
		{"too late", time.Minute, pending, 5 * time.Second, 5 * time.Second},
	} {
		t.Run(test.what, func(t *testing.T) {
			inLab(t, opts(), func(l *lab) {
				id := l.become(failed)
				l.net.script(func(ctx context.Context, _ call) error {
					select {
					case <-time.After(test.slow):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}, nil)
				l.run(func() {
					before := time.Now()
					token, err := l.Provision(l.Context(), id, nil)
					l.must(err)
					if took := time.Since(before); token.NetworkTokenStatus != test.want || took < test.low || took > test.high {
						t.Errorf("%v after %v", token.NetworkTokenStatus, took)
					}
					before = time.Now()
					l.imports(visa)
					if time.Since(before) > 0 {
						t.Error("Import waits")
					}
				})
			})
		})
	}
	t.Run("refused", func(t *testing.T) {
		inLab(t, opts(), func(l *lab) {
			id := l.become(failed)
			l.net.script(refuse("Provision", schemeError("card_not_allowed")), nil)
			l.run(func() {
				token, err := l.Provision(l.Context(), id, nil)
				l.must(err)
				if token.NetworkTokenStatus != failed || token.NetworkTokenStatusReason.Code != "card_not_allowed" {
					t.Errorf("%v for %+v", token.NetworkTokenStatus, token.NetworkTokenStatusReason)
				}
			})
		})
	})
	t.Run("caller gone", func(t *testing.T) {
		inLab(t, opts(), func(l *lab) {
			id := l.become(failed)
			ctx, cancel := context.WithTimeout(l.Context(), time.Second)
			defer cancel()
			before := time.Now()
			token, err := l.Provision(ctx, id, nil)
			l.must(err) // the request was stored all the same
			if token.NetworkTokenStatus != pending || time.Since(before) != time.Second {
				t.Errorf("%v after %v", token.NetworkTokenStatus, time.Since(before))
			}
			l.is(id, pending, "")
		})
	})
	t.Run("deleted meanwhile", func(t *testing.T) {
		inLab(t, opts(), func(l *lab) {
			id := l.become(failed)
			go func() {
				<-time.After(time.Second)
				l.try(l.Vault.Delete(l.Context(), id))
			}()
			if _, err := l.Provision(l.Context(), id, nil); !errors.Is(err, cardvault.ErrNotFound) {
				t.Errorf("Provision: %v", err)
			}
		})
	})
}

// TestNetworkOptions: the options about the network are checked.
func TestNetworkOptions(t *testing.T) {
	open := func(opts *cardvault.Options) error {
		v, err := cardvault.Open(t.Context(), t.TempDir(), newKey(t), opts)
		if err == nil {
			err = v.Close()
		}
		return err
	}
	for name, valid := range map[string]bool{
		"a": true, "visa-vts_2": true, strings.Repeat("x", 40): true, "0": true,
		"": false, strings.Repeat("x", 41): false, "Visa": false, "a b": false, "ä": false, "a\n": false, "-a": false, "_": false,
	} {
		if err := open(&cardvault.Options{Network: &named{name: name}}); (err == nil) != valid {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if err := open(&cardvault.Options{Network: &named{name: "n", sandbox: true}}); !errors.Is(err, cardvault.ErrWrongMode) {
		t.Errorf("a simulator in live mode: %v", err)
	}
	if err := open(&cardvault.Options{Mode: cardvault.Sandbox, Network: &named{name: "n", sandbox: true}}); err != nil {
		t.Errorf("a simulator in a sandbox: %v", err)
	}
	for _, opts := range []cardvault.Options{
		{NetworkTimeout: 99 * time.Millisecond}, {NetworkTimeout: 31 * time.Second}, {NetworkTimeout: -1},
		{NetworkRate: -1}, {NetworkRate: 2e6}, {ProvisionWait: -1}, {ProvisionWait: 11 * time.Second},
	} {
		if err := open(&opts); err == nil {
			t.Errorf("%+v is accepted", opts)
		}
	}
}

// A named network has a name of its own.
type named struct {
	scripted
	name    string
	sandbox bool
}

func (n *named) Info() network.Info { return network.Info{Name: n.name, SandboxOnly: n.sandbox} }

// TestNetworkTimeout: calls have the deadline of Options.
func TestNetworkTimeout(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Live, NetworkTimeout: 300 * time.Millisecond}, func(l *lab) {
		var mu sync.Mutex
		took := map[string]time.Duration{}
		l.net.script(func(ctx context.Context, c call) error {
			before := time.Now()
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			took[c.method] = time.Since(before)
			return ctx.Err()
		}, nil)
		id := l.imports(visa)
		l.drain()
		l.must(l.Vault.Delete(l.Context(), id))
		l.run(func() { l.pass(time.Minute) })
		mu.Lock()
		defer mu.Unlock()
		if len(took) != 2 {
			t.Errorf("calls %v", took)
		}
		for method, d := range took {
			if d != 300*time.Millisecond {
				t.Errorf("%s had a deadline of %v", method, d)
			}
		}
	})
}

// TestAnotherNetwork: another network takes over requests that were not sent yet. The others
// wait for their own network.
func TestAnotherNetwork(t *testing.T) {
	inLab(t, live, func(l *lab) {
		has, stays := l.become(active), l.become(active)
		l.net.script(nil, refuse("Provision", errors.New("lost")))
		unsure := l.imports(visa)
		l.drain()
		l.net.script(nil, nil)
		waits := l.imports(visa)
		next := &named{name: "next"}
		l.opts.Network = next
		l.restart()
		l.run(func() { l.pass(29 * time.Hour) })
		l.is(waits, active, "")
		l.is(has, active, "")
		l.is(unsure, pending, "")
		if calls := next.asked(); len(calls) == 0 || slices.ContainsFunc(calls, func(c call) bool { return !strings.HasPrefix(c.key, waits.String()) }) {
			t.Errorf("the next network was asked %v", calls)
		}
		for _, id := range []uuid.UUID{has, unsure} {
			l.must(l.Vault.Delete(l.Context(), id))
		}
		l.run(func() { l.pass(time.Hour) })
		l.held(3)
		if n := len(next.asked("Delete")); n > 0 {
			t.Errorf("the next network was asked to delete %d tokens of the other", n)
		}
		l.opts.Network = l.net
		l.restart()
		l.net.set("network-token-2", func(t *network.Token) { t.State = inactive })
		l.run(func() { l.pass(29 * time.Hour) })
		l.held(1)
		l.is(stays, inactive, "suspended_by_scheme")
	})
	// A token is requested again from another network. A network token that the first network
	// may have made is deleted once that network is back.
	inLab(t, live, func(l *lab) {
		l.net.script(refuse("Lookup", errors.New("down")), refuse("Provision", errors.New("lost")))
		id := l.imports(visa)
		l.run(func() { l.pass(10 * time.Hour) })
		l.is(id, failed, "scheme_unavailable")
		l.net.script(nil, nil)
		next := &named{name: "next"}
		l.opts.Network = next
		l.restart()
		l.must2(l.Provision(l.Context(), id, nil))
		l.run(func() { l.pass(time.Hour) })
		l.is(id, active, "")
		l.held(1)
		l.opts.Network = l.net
		l.restart()
		l.run(func() { l.pass(29 * time.Hour) })
		l.held(0)
		if left := next.left(); len(left) != 1 {
			t.Errorf("left at the next network: %v", left)
		}
	})
}

// A notified store stands for one of several processes that hear of each other's writes. kinds
// holds the kinds written.
type notified struct {
	*frail
	kinds chan store.Kind
}

func (s notified) Wakes(ctx context.Context, wake func(store.Kind)) error {
	for {
		select {
		case kind := <-s.kinds:
			wake(kind)
		case <-ctx.Done():
			return nil
		}
	}
}

// TestHeard: a running vault does at once the work that another process has written. If it
// may have missed something, it looks for all work.
func TestHeard(t *testing.T) {
	for _, kind := range []store.Kind{kindNetworkToken, 0} {
		t.Run(fmt.Sprintf("kind %d", kind), func(t *testing.T) {
			inLab(t, nil, func(l *lab) {
				writes, wakes := l.Vault, notified{l.store, make(chan store.Kind)}
				l.Vault = l.on(wakes)
				l.run(func() {
					l.pass(time.Second)
					token, err := writes.Import(l.Context(), visa, nil)
					l.must(err)
					l.pass(time.Second) // due slightly later
					l.is(token.ID, pending, "")
					wakes.kinds <- kind
					synctest.Wait()
					l.is(token.ID, active, "")
				})
			})
		})
	}
}
