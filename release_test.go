package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A process that dies with a provisioning under way leaves neither a second
// network token nor one that nobody knows.
func TestKilledWhileProvisioning(t *testing.T) {
	for _, test := range []struct {
		what   string
		before bool // the network does not get the call
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
						l.net.ineligible = func(cardvault.Scheme) error { return configurationError("merchant_not_enrolled") }
						l.run(func() { l.pass(time.Minute) })
						if then == "is forbidden, asked for again" {
							l.net.ineligible = nil
							_, err := l.Provision(l.Context(), id)
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

// Whenever a token is deleted that is pending, nothing is left at the network.
func TestDeleteWhilePending(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed %v", restart), func(t *testing.T) {
			t.Run("before the call", func(t *testing.T) {
				inLab(t, live, func(l *lab) {
					id := l.imports(visa)
					l.must(l.Vault.Delete(l.Context(), id))
					l.run(func() { l.pass(time.Hour) })
					if calls := l.net.asked(); len(calls) > 0 {
						t.Errorf("calls %v", calls)
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
					l.run(func() { l.pass(time.Hour) }) // the next try is far away
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

// A deletion at the network is tried until it is done, and a network that says
// that it is overloaded has not said that there is nothing.
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
	// The pauses are those of a provisioning.
	inLab(t, live, func(l *lab) {
		id := l.become(active)
		l.must(l.Vault.Delete(l.Context(), id))
		l.net.script(refuse("Delete", errors.New("down")), nil)
		l.run(func() { l.pass(60 * time.Hour) })
		day := 24 * time.Hour
		within(t, "releases", l.net.asked("Delete")[:8], 30*time.Second, 2*time.Minute, 10*time.Minute, time.Hour, 6*time.Hour, day, day)
		for range 50 {
			l.pass(30 * time.Hour)
			l.drain()
		}
		if n := len(l.net.asked("Delete")); n != 35 {
			t.Errorf("it is tried %d times", n)
		}
		if !strings.Contains(l.log.text(), "left at the network") {
			t.Error("giving up is not logged")
		}
	})
}

// Tokens of one number may share a network token: it is deleted with the last.
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
			l.drain()
			l.held(1)
		}
		// One more comes, and the others go.
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

// The last holder goes while another comes: whoever is there in the end has a
// network token that lives, and no other is left.
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
					<-answered // the network has given it to another meanwhile
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
			// A token whose answer was lost is deleted with the last holder. What
			// it had is looked up, and that very one is given to a third.
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

// A lost network token that was looked up to be deleted is not deleted once
// another token has taken it up.
func TestReleaseOfALostOne(t *testing.T) {
	inLab(t, live, func(l *lab) {
		l.net.shared = true
		l.net.script(nil, refuse("Provision", errors.New("lost")))
		lost := l.imports(visa)
		l.drain()
		l.must(l.Vault.Delete(l.Context(), lost))
		var comes uuid.UUID
		// Between what the look-up says and the deletion another comes.
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
	// The other order: it comes between the decision and the deletion.
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

// What is damaged can be removed.
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
		l.held(1) // what it was cannot be known
		if !strings.Contains(l.log.text(), "left at the network") {
			t.Error("that is not logged")
		}
	})
}
