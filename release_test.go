package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// TestKilledWhileProvisioning: a process that dies during a provisioning leaves neither a
// second network token nor one without a holder.
func TestKilledWhileProvisioning(t *testing.T) {
	for _, test := range []struct {
		what   string
		before bool // the network does not receive the call
		fail   error
		done   bool
	}{
		{"before the network is asked", true, store.ErrUnavailable, false},
		{"before the answer is stored", false, store.ErrUnavailable, false},
		{"while the answer is stored, undone", false, store.ErrOutcomeUnknown, false},
		{"while the answer is stored, done", false, store.ErrOutcomeUnknown, true},
	} {
		for _, then := range []string{"goes on", "is deleted", "is forbidden, deleted", "is forbidden, asked for again"} {
			t.Run(test.what+" "+then, func(t *testing.T) {
				inLab(t, live, func(l *lab) {
					die := func(_ context.Context, c call) error {
						l.store.set(test.fail, test.done)
						if test.before && c.method == "Provision" {
							return errors.New("never sent")
						}
						return nil
					}
					if test.before {
						l.net.script(die, nil)
					} else {
						l.net.script(nil, die)
					}
					id := l.imports(visa)
					ctx, kill := context.WithCancel(l.Context())
					ended := make(chan error)
					go func() { ended <- l.Run(ctx) }()
					l.pass(time.Second)
					kill()
					<-ended
					l.net.script(nil, nil)
					l.restart()
					if strings.Contains(then, "forbidden") {
						l.net.ineligible = func(card.Scheme) error { return configurationError("merchant_not_enrolled") }
						l.run(func() { l.pass(time.Minute) })
						if then == "is forbidden, asked for again" {
							l.net.ineligible = nil
							_, err := l.Provision(l.Context(), id, nil)
							l.must(err)
						}
					}
					if strings.HasSuffix(then, "deleted") {
						l.must(l.Vault.Delete(l.Context(), id))
					}
					l.run(func() { l.pass(time.Minute) })
					if l.net.made > 1 {
						t.Errorf("%d network tokens were made", l.net.made)
					}
					if !strings.HasSuffix(then, "deleted") {
						l.is(id, active, "")
						l.held(1)
						l.must(l.Vault.Delete(l.Context(), id))
						l.drain()
					}
					l.held(0)
				})
			})
		}
	}
}

// TestDeleteWhilePending: whenever a pending token is deleted, nothing is left at the
// network.
func TestDeleteWhilePending(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed %v", restart), func(t *testing.T) {
			t.Run("before the call", func(t *testing.T) {
				inLab(t, live, func(l *lab) {
					id := l.imports(visa)
					l.must(l.Vault.Delete(l.Context(), id))
					l.run(func() { l.pass(time.Hour) })
					calls := l.net.asked()
					if len(calls) != 1 || calls[0].method != "Lookup" || calls[0].key != id.String()+":1" {
						t.Errorf("calls %v, want one look-up by the key of the provisioning", calls)
					}
				})
			})
			for _, point := range []string{"before the network acts", "after the network has acted"} {
				t.Run(point, func(t *testing.T) {
					inLab(t, live, func(l *lab) {
						id := l.imports(visa)
						hook := func(_ context.Context, c call) error {
							if c.method == "Provision" {
								l.try(l.Vault.Delete(l.Context(), id))
								if restart {
									l.store.set(store.ErrUnavailable, false)
								}
							}
							return nil
						}
						if point == "before the network acts" {
							l.net.script(hook, nil)
						} else {
							l.net.script(nil, hook)
						}
						before := time.Now()
						l.run(func() {
							if restart {
								l.pass(time.Second)
								l.restart()
							} else {
								l.pass(time.Second)
								l.held(0) // at once
							}
						})
						l.run(func() { l.pass(time.Minute) })
						l.held(0)
						if l.net.made != 1 {
							t.Errorf("%d network tokens were made", l.net.made)
						}
						for _, c := range l.net.asked("Delete") {
							if late := c.at.Sub(before); late > time.Minute {
								t.Errorf("deleted after %v, beyond the lease", late)
							}
						}
					})
				})
			}
			t.Run("another process does the due work", func(t *testing.T) {
				inLab(t, live, func(l *lab) {
					id := l.imports(visa)
					l.net.script(func(_ context.Context, c call) error {
						if c.method == "Provision" {
							l.try(l.Vault.Delete(l.Context(), id))
							l.try(l.open().Drain(l.Context()))
							if restart {
								l.store.set(store.ErrUnavailable, false)
							}
						}
						return nil
					}, nil)
					l.run(func() { l.pass(time.Second) })
					l.restart()
					l.run(func() { l.pass(time.Hour) })
					l.held(0)
				})
			})
			t.Run("while it is pending at the network", func(t *testing.T) {
				inLab(t, live, func(l *lab) {
					l.net.like.State = pending
					id := l.imports(visa)
					l.drain()
					l.held(1)
					l.must(l.Vault.Delete(l.Context(), id))
					if restart {
						l.restart()
					}
					l.drain()
					l.held(0)
				})
			})
			t.Run("between tries of unknown outcome", func(t *testing.T) {
				inLab(t, live, func(l *lab) {
					l.net.script(nil, refuse("Provision", errors.New("lost")))
					id := l.imports(visa)
					l.run(func() { l.pass(time.Hour) }) // the next attempt is far off
					l.held(1)
					l.must(l.Vault.Delete(l.Context(), id))
					if restart {
						l.restart()
					}
					l.run(func() { l.pass(time.Minute) })
					l.held(0)
				})
			})
		})
	}
}

// TestReleaseRetries: a deletion at the network is retried until it is done. The answer of
// an overloaded network does not mean that the network token is gone.
func TestReleaseRetries(t *testing.T) {
	for what, answer := range map[string]error{
		"down": errors.New("connection refused"), "overloaded": schemeError("scheme_unavailable"),
		"misconfigured": configurationError("invalid_request"), "badly misconfigured": configurationError("declined"),
	} {
		for _, known := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, id known %v", what, known), func(t *testing.T) {
				inLab(t, live, func(l *lab) {
					if !known {
						l.net.script(nil, refuse("Provision", errors.New("lost")))
					}
					id := l.imports(visa)
					l.drain()
					l.must(l.Vault.Delete(l.Context(), id))
					l.net.script(func(context.Context, call) error { return answer }, nil)
					l.run(func() { l.pass(24 * time.Hour) })
					l.held(1)
					l.net.script(nil, nil)
					l.run(func() { l.pass(30 * time.Hour) })
					l.held(0)
				})
			})
		}
	}
	// The pauses are the same as for a provisioning.
	inLab(t, live, func(l *lab) {
		id := l.become(active)
		l.must(l.Vault.Delete(l.Context(), id))
		l.net.script(refuse("Delete", errors.New("down")), nil)
		l.run(func() { l.pass(70 * time.Hour) })
		day := 24 * time.Hour
		within(t, "releases", l.net.asked("Delete"), 30*time.Second, 2*time.Minute, 10*time.Minute, time.Hour, 6*time.Hour, day, day)
		for range 50 {
			l.pass(30 * time.Hour)
			l.drain()
		}
		if n := len(l.net.asked("Delete")); n != 35 {
			t.Errorf("%d attempts", n)
		}
		if !strings.Contains(l.log.text(), "left at the network") {
			t.Error("giving up is not logged")
		}
	})
}

// TestSharedNetworkToken: tokens with the same number may share a network token, which is
// deleted with the last of them.
func TestSharedNetworkToken(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		l.net.shared = true
		a, err := l.CreateAccount(l.Context(), "another", nil)
		l.must(err)
		ids := []uuid.UUID{l.imports(visa), l.imports(visa)}
		far, err := l.In(a.ID).Import(l.Context(), visa, nil)
		l.must(err)
		l.drain()
		l.held(1)
		for _, id := range ids {
			l.is(id, active, "")
			l.must(l.Vault.Delete(l.Context(), id))
			l.must(l.store.View(l.Context(), func(tx store.ReadTx) error {
				if due, err := tx.Next(kindRelease, store.AllShards); !due.IsZero() || err != nil {
					t.Errorf("a deletion is due at %v, %v", due, err)
				}
				return nil
			}))
			l.drain()
			l.held(1)
		}
		// Another token is added, and the others are deleted.
		again := l.imports(visa)
		l.drain()
		l.must(l.In(a.ID).Delete(l.Context(), far.ID))
		l.drain()
		l.held(1)
		l.must(l.Vault.Delete(l.Context(), again))
		l.drain()
		l.held(0)
		if l.net.made != 1 {
			t.Errorf("%d network tokens were made", l.net.made)
		}
	})
}

// TestSharedNetworkTokenRace: the last holder is deleted while another token is added. In
// the end the remaining token has an active network token, and no other network token is
// left.
func TestSharedNetworkTokenRace(t *testing.T) {
	for what, race := range map[string]func(l *lab, old uuid.UUID) (comes uuid.UUID){
		"deleted before the call": func(l *lab, old uuid.UUID) uuid.UUID {
			comes := l.imports(visa)
			l.must(l.Vault.Delete(l.Context(), old))
			return comes
		},
		"deleted during the call": func(l *lab, old uuid.UUID) uuid.UUID {
			l.net.script(nil, func(_ context.Context, c call) error {
				if c.method == "Provision" {
					l.net.script(nil, nil)
					l.try(l.Vault.Delete(l.Context(), old))
				}
				return nil
			})
			return l.imports(visa)
		},
		"answered while it is being deleted": func(l *lab, old uuid.UUID) uuid.UUID {
			answered, gone := make(chan struct{}), make(chan struct{})
			l.net.script(func(_ context.Context, c call) error {
				if c.method == "Delete" {
					<-answered // meanwhile the network has given it to another token
				}
				return nil
			}, func(_ context.Context, c call) error {
				if c.method == "Delete" {
					l.net.script(nil, nil)
					close(gone)
					return nil
				}
				close(answered)
				<-gone
				<-time.After(time.Second)
				return nil
			})
			l.must(l.Vault.Delete(l.Context(), old))
			return l.imports(visa)
		},
		"taken up while a lost one is looked up": func(l *lab, old uuid.UUID) uuid.UUID {
			// A token whose answer was lost is deleted together with the last holder. Its
			// network token is looked up, and then given to a third token.
			l.net.script(nil, refuse("Provision", errors.New("lost")))
			lost := l.imports(visa)
			l.drain()
			l.net.script(nil, nil)
			l.must(l.Vault.Delete(l.Context(), lost))
			l.must(l.Vault.Delete(l.Context(), old))
			return l.imports(visa)
		},
	} {
		t.Run(what, func(t *testing.T) {
			inLab(t, live, func(l *lab) {
				l.net.shared = true
				old := l.imports(visa)
				l.drain()
				comes := race(l, old)
				l.run(func() { l.pass(10 * time.Minute) })
				l.is(comes, active, "")
				l.held(1)
				l.must(l.Vault.Delete(l.Context(), comes))
				l.run(func() { l.pass(10 * time.Minute) })
				l.held(0)
			})
		})
	}
}

// TestReleaseOfALostOne: a lost network token is looked up for its deletion. It is not
// deleted if another token has taken it up meanwhile.
func TestReleaseOfALostOne(t *testing.T) {
	inLab(t, live, func(l *lab) {
		l.net.shared = true
		l.net.script(nil, refuse("Provision", errors.New("lost")))
		lost := l.imports(visa)
		l.drain()
		l.must(l.Vault.Delete(l.Context(), lost))
		var comes uuid.UUID
		// Another token is added between the answer to the look-up and the deletion.
		l.net.script(nil, func(_ context.Context, c call) error {
			if c.method == "Lookup" && comes == uuid.Nil {
				comes = l.imports(visa)
				<-time.After(time.Second)
				return l.open().Drain(l.Context())
			}
			return nil
		})
		l.run(func() { l.pass(10 * time.Minute) })
		l.is(comes, active, "")
		l.held(1)
	})
	// In the other order: the token is added between the decision and the deletion.
	inLab(t, live, func(l *lab) {
		l.net.shared = true
		l.net.script(nil, refuse("Provision", errors.New("lost")))
		lost := l.imports(visa)
		l.drain()
		l.must(l.Vault.Delete(l.Context(), lost))
		var comes uuid.UUID
		l.net.script(func(_ context.Context, c call) error {
			if c.method == "Delete" && comes == uuid.Nil {
				comes = l.imports(visa)
				<-time.After(time.Second)
				return l.open().Drain(l.Context())
			}
			return nil
		}, nil)
		l.run(func() { l.pass(10 * time.Minute) })
		l.is(comes, active, "")
		l.held(1)
	})
}

// TestDeleteDamagedNetworkToken: tokens with a damaged network token can be deleted.
func TestDeleteDamagedNetworkToken(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id, other := l.become(active), l.become(active)
		l.spoil(kindNetworkToken, func(r *store.Record) bool { return len(r.Lookup) > 0 && r.Version > 0 }, 1)
		for _, id := range []uuid.UUID{id, other} {
			if err := l.Vault.Delete(l.Context(), id); err != nil {
				t.Errorf("Delete: %v", err)
			}
			if _, err := l.Get(l.Context(), id); !errors.Is(err, cardvault.ErrNotFound) {
				t.Errorf("Get: %v", err)
			}
		}
		l.drain()
		l.held(1) // its id cannot be known
		if !strings.Contains(l.log.text(), "left at the network") {
			t.Error("the remaining network token is not logged")
		}
	})
}

// TestNothingIsLeft: calls, answers, the network, the store and the process fail in any
// order. After everything has recovered, each token agrees with the network, and nothing
// else is left there.
func TestNothingIsLeft(t *testing.T) {
	for seed := range uint64(100) {
		shared := seed%3 == 0
		inLab(t, &cardvault.Options{Mode: cardvault.Mode(seed % 2), NetworkTimeout: time.Second, NetworkRate: 1e6}, func(l *lab) {
			defer func() {
				if l.Failed() {
					l.Logf("seed %d", seed)
				}
			}()
			r := rand.New(rand.NewPCG(seed, 1))
			var mu sync.Mutex
			chance := func(n int) bool {
				mu.Lock()
				defer mu.Unlock()
				return r.IntN(n) == 0
			}
			l.net.shared = shared
			var granted sync.Map // keys of calls that may still be in progress
			l.net.script(func(ctx context.Context, c call) error {
				_, known := granted.Load(c.key)
				switch {
				case chance(6):
					return errors.New("connection refused")
				case chance(10):
					return schemeError("scheme_unavailable")
				case chance(20):
					<-ctx.Done()
					return ctx.Err()
				case c.method == "Provision" && !known && chance(10):
					return schemeError("declined")
				}
				if c.method == "Provision" {
					granted.Store(c.key, true)
				}
				if chance(3) {
					<-time.After(500 * time.Millisecond)
				}
				return nil
			}, func(context.Context, call) error {
				if chance(6) {
					return errors.New("connection reset")
				}
				return nil
			})
			fail := func() error {
				switch {
				case chance(30):
					return store.ErrUnavailable
				case chance(30):
					return store.ErrOutcomeUnknown
				}
				return nil
			}
			l.store.hook(fail)

			var ids []uuid.UUID
			ctx := l.Context()
			for range 60 {
				l.store.set(nil, chance(2))
				l.store.hook(fail)
				switch r.IntN(9) {
				case 0, 1, 2:
					if token, err := l.Import(ctx, visa, nil); err == nil {
						ids = append(ids, token.ID)
					}
				case 3:
					if len(ids) > 0 {
						i := r.IntN(len(ids))
						if l.Vault.Delete(ctx, ids[i]) == nil {
							ids = slices.Delete(ids, i, i+1)
						}
					}
				case 4:
					if len(ids) > 0 {
						_, _ = l.Provision(ctx, ids[r.IntN(len(ids))], nil) // the result does not matter
					}
				case 5:
					l.happens(r)
				case 6:
					l.restart()
				case 7:
					l.net.forbids(chance(2))
				case 8:
					_, _ = l.UpdateAccount(ctx, cardvault.AccountUpdate{NetworkTokensActive: new(chance(3))})
				}
				// Sometimes a dying process interrupts the work.
				working, stop := context.WithTimeout(ctx, time.Duration(r.IntN(3000))*time.Millisecond)
				_ = l.Drain(working)
				stop()
				l.pass(time.Duration(r.IntN(600)) * time.Second)
			}

			l.net.script(nil, nil)
			l.net.forbids(false)
			l.restart()
			l.activate(true)
			for range 100 {
				l.pass(30 * time.Minute)
				l.drain()
			}
			page, err := l.List(ctx, &cardvault.TokenListOptions{Limit: 100})
			l.must(err)
			holders := map[string]bool{}
			for _, token := range page.Items {
				state, held := l.net.stateOf(token.ID)
				switch token.NetworkTokenStatus {
				case active, inactive, deleted:
					if state != token.NetworkTokenStatus {
						l.Errorf("status %v, at the network %v", token.NetworkTokenStatus, state)
					}
				case failed:
					// In the sandbox the vault soon stops looking, but only after five look-ups.
					if state != notAvailable && state != deleted && !l.lookedUp(token, 5) {
						l.Errorf("failed because of %q, at the network %v", token.NetworkTokenStatusReason.Code, state)
					}
				case pending:
					l.Errorf("a token is pending in the end")
				}
				if held != "" {
					holders[held] = true
				}
			}
			for _, id := range l.net.left() {
				if !holders[id] {
					l.Errorf("%s is at the network without a holder", id)
				}
			}
			for _, token := range page.Items {
				l.must(l.Vault.Delete(ctx, token.ID))
			}
			for range 20 {
				l.pass(10 * time.Minute)
				l.drain()
			}
			l.held(0)
		})
	}
}

// lookedUp reports whether the vault is a sandbox and has looked up a provisioning n times
// since giving it up.
func (l *lab) lookedUp(token *cardvault.Token, n int) bool {
	for _, c := range l.net.asked("Lookup") {
		if strings.HasPrefix(c.key, token.ID.String()) && c.at.After(token.NetworkTokenStatusReason.OccurredAt) {
			n--
		}
	}
	return n <= 0 && l.opts.Mode == cardvault.Sandbox
}

// happens changes a network token at the network. The notice may be lost, late or
// duplicated.
func (l *lab) happens(r *rand.Rand) {
	left := l.net.left()
	if len(left) == 0 {
		return
	}
	id := left[r.IntN(len(left))]
	owner := network.Owner(r.IntN(3))
	n := l.notice(network.Notice{By: owner, Token: network.Ref{ID: id}})
	l.net.set(id, func(t *network.Token) {
		switch r.IntN(5) {
		case 0, 1:
			n.Kind = network.NoticeSuspended
			t.State, t.SuspendedBy = inactive, t.SuspendedBy|network.OwnersOf(owner)
		case 2, 3:
			n.Kind = network.NoticeResumed
			if t.SuspendedBy &^= network.OwnersOf(owner); t.SuspendedBy == 0 {
				t.State = active
			}
		default:
			n.Kind = network.NoticeDeleted
			t.State = deleted
		}
	})
	for range r.IntN(3) {
		_ = l.Notify(l.Context(), n) // the network does not retry more often
	}
}

// forbids makes every card ineligible, or none.
func (n *scripted) forbids(all bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ineligible = nil
	if all {
		n.ineligible = func(card.Scheme) error { return configurationError("merchant_not_enrolled") }
	}
}

// stateOf returns the state and id of the network token from a token's last provisioning.
// The network tokens of earlier attempts are about to be deleted, or are held by another
// token of the card.
func (n *scripted) stateOf(token uuid.UUID) (network.Status, string) {
	last := ""
	for _, c := range n.asked("Provision") {
		if strings.HasPrefix(c.key, token.String()) {
			last = c.key
		}
	}

	n.mu.Lock()
	defer n.mu.Unlock()
	id := n.keys[last]
	if id == "" {
		return notAvailable, ""
	}
	return n.tokens[id].State, id
}

// TestPausedThenDeleted: a process that is slow to call the network loses its shard, and the
// token is deleted meanwhile. The network token made by its call is deleted too.
func TestPausedThenDeleted(t *testing.T) {
	inLab(t, live, func(l *lab) {
		id := l.imports(visa)
		l.net.script(func(_ context.Context, c call) error {
			if c.method == "Provision" && c.key == id.String()+":1" {
				<-time.After(10 * time.Minute)
			}
			return nil
		}, nil)

		slow, ended := l.Vault, make(chan error)
		go func() { ended <- slow.Drain(l.Context()) }()
		l.pass(time.Second)
		l.Vault = l.open()
		l.run(func() {
			l.must(l.Vault.Delete(l.Context(), id))
			for range 32 { // they wait in all shards
				l.imports(visa)
				l.pass(10 * time.Second)
			}
			l.pass(10 * time.Minute)
		})

		l.must(<-ended)
		l.run(func() { l.pass(72 * time.Hour) })
		l.held(32)
	})
}

// TestDoubtOfAJobPutOff: a process dies after its calls, and the next process postpones the
// jobs because of Options.NetworkRate. They stay doubtful, so their deletion leaves
// releases.
func TestDoubtOfAJobPutOff(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Live, NetworkRate: 0.1}, func(l *lab) {
		var ids []uuid.UUID
		for range 6 {
			ids = append(ids, l.imports(visa))
		}
		l.net.script(nil, func(context.Context, call) error {
			l.store.set(store.ErrUnavailable, false)
			return nil
		})
		ctx, kill := context.WithCancel(l.Context())
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		l.pass(time.Second)
		kill()
		<-ended

		l.net.script(nil, nil)
		l.restart()
		l.net.ineligible = func(card.Scheme) error { return configurationError("merchant_not_enrolled") }
		l.run(func() { l.pass(5 * time.Minute) })
		for _, id := range ids {
			l.must(l.Vault.Delete(l.Context(), id))
		}
		l.run(func() { l.pass(72 * time.Hour) })
		l.held(0)
	})
}
