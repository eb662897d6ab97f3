package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

type notice = network.Notice

// at returns a time at the network: minutes after the network token was requested.
func at(l *lab, minutes int) time.Time {
	return l.net.asked("Provision")[0].at.Add(time.Duration(minutes) * time.Minute)
}

// TestNotices: each kind of notice in each state.
func TestNotices(t *testing.T) {
	states := []network.Status{pending, active, inactive, deleted}
	type outcome struct {
		status network.Status
		code   string
	}
	for what, test := range map[string]struct {
		notice notice
		want   [4]outcome // in these states; a zero outcome changes nothing
	}{
		"activated": {notice{Kind: network.NoticeActivated}, [4]outcome{{active, ""}}},
		"refused": {notice{Kind: network.NoticeRefused, Failure: &network.Error{Source: network.SourceScheme, Code: "declined"}},
			[4]outcome{{failed, "declined"}}},
		"refused for now": {notice{Kind: network.NoticeRefused, Failure: &network.Error{Source: network.SourceScheme, Code: "provision_data_expired"}},
			[4]outcome{{failed, "provision_data_expired"}}},
		"refused by configuration": {notice{Kind: network.NoticeRefused, Failure: &network.Error{Source: network.SourceConfiguration, Code: "merchant_not_enrolled"}},
			[4]outcome{{notAvailable, "merchant_not_enrolled"}}},
		"suspended by the issuer": {notice{Kind: network.NoticeSuspended},
			[4]outcome{{}, {inactive, "suspended_by_issuer"}}},
		"suspended by the scheme": {notice{Kind: network.NoticeSuspended, By: network.OwnerScheme},
			[4]outcome{{}, {inactive, "suspended_by_scheme"}}},
		"suspended by the cardholder": {notice{Kind: network.NoticeSuspended, By: network.OwnerCardholder},
			[4]outcome{{}, {inactive, "suspended_by_cardholder"}}},
		"resumed": {notice{Kind: network.NoticeResumed}, [4]outcome{{}, {}, {active, ""}}},
		"deleted by the issuer": {notice{Kind: network.NoticeDeleted},
			[4]outcome{{deleted, "deleted_by_issuer"}, {deleted, "deleted_by_issuer"}, {deleted, "deleted_by_issuer"}}},
		"deleted by the scheme": {notice{Kind: network.NoticeDeleted, By: network.OwnerScheme},
			[4]outcome{{deleted, "deleted_by_scheme"}, {deleted, "deleted_by_scheme"}, {deleted, "deleted_by_scheme"}}},
		"invalidated": {notice{Kind: network.NoticeInvalidated},
			[4]outcome{{deleted, "account_closed"}, {deleted, "account_closed"}, {deleted, "account_closed"}}},
		"replaced":      {notice: notice{Kind: network.NoticeCardReplaced, Card: &network.CardState{LastFour: "1111"}}},
		"renewed":       {notice: notice{Kind: network.NoticeCardRenewed, Card: &network.CardState{Expiry: card.Expiry{Month: 1, Year: 2040}}}},
		"token renewed": {notice: notice{Kind: network.NoticeTokenRenewed}},
		"art changed":   {notice: notice{Kind: network.NoticeArtChanged, Art: "a"}},
	} {
		t.Run(what, func(t *testing.T) {
			for i, state := range states {
				inLab(t, nil, func(l *lab) {
					id := l.become(state)
					before := l.get(id)
					l.pass(time.Minute)
					n := test.notice
					n.SchemeCode = "R1"
					l.notify(n)
					after := l.get(id)
					want := test.want[i]
					if want == (outcome{}) {
						if after.NetworkTokenStatus != state || before.NetworkTokenStatusReason != nil &&
							*after.NetworkTokenStatusReason != *before.NetworkTokenStatusReason {
							t.Errorf("%v: became %v for %+v", state, after.NetworkTokenStatus, after.NetworkTokenStatusReason)
						}
					} else {
						l.is(id, want.status, want.code)
						r := after.NetworkTokenStatusReason
						if r != nil && !r.OccurredAt.Equal(time.Now()) {
							t.Errorf("%v: reason %+v", state, r)
						}
						if r != nil && n.Failure == nil && r.SchemeCode != "R1" {
							t.Errorf("%v: reason %+v", state, r)
						}
					}
					invalid := n.Kind == network.NoticeInvalidated
					if got := after.Status == cardvault.StatusInvalid; got != invalid || after.InvalidatedAt.IsZero() == invalid {
						t.Errorf("%v: status %v since %v", state, after.Status, after.InvalidatedAt)
					}
					if invalid {
						if _, err := l.Provision(l.Context(), id, nil); !errors.Is(err, cardvault.ErrNetworkTokenState) {
							t.Errorf("Provision of an invalid token: %v", err)
						}
					}
				})
			}
		})
	}
}

// TestFinalNotices: a deleted network token or an invalid token stays so, whatever comes
// later. A repeated notice changes nothing.
func TestFinalNotices(t *testing.T) {
	for _, last := range []network.NoticeKind{network.NoticeDeleted, network.NoticeInvalidated} {
		inLab(t, nil, func(l *lab) {
			id := l.become(active)
			l.notify(notice{ID: "last", Kind: last})
			want := l.get(id)
			l.pass(time.Hour)
			for kind := network.NoticeActivated; kind <= network.NoticeArtChanged; kind++ {
				if last == network.NoticeDeleted && kind == network.NoticeInvalidated {
					continue
				}
				l.notify(notice{Kind: kind, Failure: &network.Error{Source: network.SourceScheme, Code: "declined"},
					Card: &network.CardState{LastFour: "1111"}, Art: "a"})
			}
			l.run(func() { l.pass(30 * time.Hour) })
			if got := l.get(id); got.NetworkTokenStatus != want.NetworkTokenStatus || got.Status != want.Status ||
				*got.NetworkTokenStatusReason != *want.NetworkTokenStatusReason || got.LastFour != want.LastFour ||
				!got.InvalidatedAt.Equal(want.InvalidatedAt) {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
	// The card can become invalid after its network token, whose reason stays.
	inLab(t, nil, func(l *lab) {
		id := l.become(deleted)
		l.notify(notice{Kind: network.NoticeInvalidated})
		if token := l.is(id, deleted, "deleted_by_issuer"); token.Status != cardvault.StatusInvalid {
			t.Error("the token is still valid")
		}
	})
}

// TestOldAnswers: a look-up that reports a time is as old as that time. A deletion is
// accepted in any case.
func TestOldAnswers(t *testing.T) {
	for _, when := range []int{5, 15} {
		inLab(t, live, func(l *lab) {
			id := l.become(active)
			look := func(state network.Status, since time.Time) {
				l.net.set("network-token-1", func(t *network.Token) { t.State, t.StateAt = state, since })
				l.notify(notice{Kind: network.NoticeArtChanged, Art: "a", OccurredAt: time.Now()})
				l.drain()
			}
			l.pass(time.Hour)
			l.notify(notice{Kind: network.NoticeSuspended, OccurredAt: at(l, 10)})
			look(active, at(l, when))
			if when < 10 {
				l.is(id, inactive, "suspended_by_issuer")
			} else {
				l.is(id, active, "")
			}
			l.notify(notice{Kind: network.NoticeResumed, OccurredAt: at(l, 16)})
			l.notify(notice{Kind: network.NoticeSuspended, OccurredAt: at(l, 14)})
			l.is(id, active, "")
			look(deleted, at(l, 1))
			l.is(id, deleted, "deleted_by_scheme")
		})
	}
	// A notice from before the look-up is old when it arrives after the look-up.
	inLab(t, live, func(l *lab) {
		id := l.become(active)
		l.run(func() { l.pass(29 * time.Hour) })
		l.notify(notice{Kind: network.NoticeSuspended, OccurredAt: at(l, 1)})
		l.is(id, active, "")
	})
	// These times do not apply to another network token, which may be older.
	inLab(t, live, func(l *lab) {
		l.pass(time.Hour)
		id := l.become(pending)
		l.pass(time.Hour)
		l.notify(notice{Kind: network.NoticeRefused, Failure: &network.Error{Source: network.SourceScheme, Code: "declined"}})
		l.is(id, failed, "declined")
		l.net.like.StateAt = time.Now().Add(-2 * time.Hour)
		l.must2(l.Provision(l.Context(), id, nil))
		l.drain()
		l.is(id, active, "")
	})
}

// TestReversedNotices: a refusal and a success in the wrong order.
func TestReversedNotices(t *testing.T) {
	refusal := &network.Error{Source: network.SourceScheme, Code: "declined"}
	inLab(t, nil, func(l *lab) {
		l.pass(time.Hour)
		id := l.become(pending)
		l.notify(notice{Kind: network.NoticeRefused, Failure: refusal, OccurredAt: at(l, -1)})
		l.is(id, pending, "") // the notice is older than the request
		l.pass(time.Hour)
		l.notify(notice{Kind: network.NoticeRefused, Failure: refusal, OccurredAt: at(l, 10)})
		l.is(id, failed, "declined")
		l.notify(notice{Kind: network.NoticeActivated, OccurredAt: at(l, 9)})
		l.is(id, failed, "declined")
		l.notify(notice{Kind: network.NoticeActivated, OccurredAt: at(l, 11)})
		l.is(id, active, "")
	})
}

// TestLateSuccess: a token has failed, and the network reports success later.
func TestLateSuccess(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id := l.become(pending)
		l.notify(notice{Kind: network.NoticeRefused, Failure: &network.Error{Source: network.SourceScheme, Code: "declined"}})
		l.is(id, failed, "declined")
		l.pass(time.Minute)
		l.notify(notice{Kind: network.NoticeActivated})
		l.is(id, active, "")
		l.must(l.Vault.Delete(l.Context(), id))
		l.drain()
		l.held(0)
	})
}

// TestOldNotices: an applied notice is dropped when it comes again. A notice older than the
// known state is dropped too.
func TestOldNotices(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id := l.become(active)
		l.pass(time.Hour)
		twice := notice{ID: "twice", Kind: network.NoticeSuspended, OccurredAt: at(l, 10)}
		l.notify(twice)
		l.notify(notice{ID: "other", Kind: network.NoticeResumed, OccurredAt: at(l, 20)})
		l.is(id, active, "")
		twice.OccurredAt = at(l, 30) // the same notice, whatever its new time
		l.notify(twice)
		l.is(id, active, "")
		l.notify(notice{Kind: network.NoticeSuspended, OccurredAt: at(l, 19)})
		l.is(id, active, "")
		l.notify(notice{Kind: network.NoticeSuspended, OccurredAt: at(l, 20)})
		l.is(id, inactive, "suspended_by_issuer")
		l.notify(notice{Kind: network.NoticeResumed, OccurredAt: at(l, 19)})
		l.is(id, inactive, "suspended_by_issuer")
		l.notify(notice{Kind: network.NoticeActivated, OccurredAt: at(l, 1)})
		l.is(id, inactive, "suspended_by_issuer")
		l.notify(notice{Kind: network.NoticeRefused, OccurredAt: at(l, 40),
			Failure: &network.Error{Source: network.SourceScheme, Code: "declined"}})
		l.is(id, inactive, "suspended_by_issuer")
		l.notify(notice{Kind: network.NoticeResumed, OccurredAt: at(l, 21)})
		l.is(id, active, "")
	})
	// A duplicate is recognized for a month, also in another process.
	inLab(t, nil, func(l *lab) {
		id := l.become(active)
		l.notify(notice{ID: "n", Kind: network.NoticeSuspended})
		l.notify(notice{ID: "m", Kind: network.NoticeResumed})
		l.pass(29 * 24 * time.Hour)
		l.drain()
		l.restart()
		l.notify(notice{ID: "n", Kind: network.NoticeSuspended})
		l.is(id, active, "")
		l.pass(48 * time.Hour)
		l.drain()
		l.notify(notice{ID: "n", Kind: network.NoticeSuspended})
		l.is(id, inactive, "suspended_by_issuer")
	})
}

// TestSuspensionOwners: suspensions and resumptions lead to the same state in every order of
// arrival. The state is active only if no owner suspends.
func TestSuspensionOwners(t *testing.T) {
	by := func(kind network.NoticeKind, owner network.Owner, minute int) notice {
		return notice{ID: fmt.Sprint(minute), Kind: kind, By: owner, Token: network.Ref{IdempotencyKey: fmt.Sprint(minute)}}
	}
	const suspended, resumed = network.NoticeSuspended, network.NoticeResumed
	const issuer, scheme, holder = network.OwnerIssuer, network.OwnerScheme, network.OwnerCardholder
	codes := map[string]string{"suspended_by_issuer": "code issuer", "suspended_by_scheme": "code scheme", "suspended_by_cardholder": "code cardholder"}
	for what, test := range map[string]struct {
		notices []notice
		want    string
	}{
		"two suspend, one resumes":         {[]notice{by(suspended, issuer, 1), by(suspended, holder, 2), by(resumed, issuer, 3)}, "suspended_by_cardholder"},
		"two suspend, both resume":         {[]notice{by(suspended, issuer, 1), by(suspended, scheme, 2), by(resumed, issuer, 3), by(resumed, scheme, 4)}, ""},
		"one suspends twice":               {[]notice{by(suspended, scheme, 1), by(suspended, scheme, 2), by(resumed, scheme, 3)}, ""},
		"on and off and on":                {[]notice{by(suspended, holder, 1), by(resumed, holder, 2), by(suspended, holder, 3)}, "suspended_by_cardholder"},
		"another resumes":                  {[]notice{by(suspended, issuer, 1), by(resumed, scheme, 2), by(resumed, holder, 3)}, "suspended_by_issuer"},
		"the scheme before the cardholder": {[]notice{by(suspended, holder, 1), by(suspended, scheme, 2)}, "suspended_by_scheme"},
		"the issuer before all":            {[]notice{by(suspended, holder, 1), by(suspended, issuer, 2), by(suspended, scheme, 3)}, "suspended_by_issuer"},
	} {
		for order := range permutations(len(test.notices)) {
			inLab(t, nil, func(l *lab) {
				id := l.become(active)
				l.pass(time.Hour)
				for _, i := range order {
					n := test.notices[i]
					n.OccurredAt, n.Token = at(l, i+1), network.Ref{ID: "network-token-1"}
					n.SchemeCode = fmt.Sprint("code ", n.By)
					l.notify(n)
				}
				status := inactive
				if test.want == "" {
					status = active
				}
				token := l.is(id, status, test.want)
				if r := token.NetworkTokenStatusReason; r != nil && r.SchemeCode != "" && r.SchemeCode != codes[test.want] {
					l.Errorf("reason %s has scheme code %q", test.want, r.SchemeCode)
				}
			})
			if t.Failed() {
				t.Fatalf("%s, in the order %v", what, order)
			}
		}
	}
}

// permutations yields every order of n things.
func permutations(n int) func(yield func([]int) bool) {
	return func(yield func([]int) bool) {
		var next func(order []int) bool
		next = func(order []int) bool {
			if len(order) == n {
				return yield(order)
			}
			for i := range n {
				if !slices.Contains(order, i) && !next(append(slices.Clone(order), i)) {
					return false
				}
			}
			return true
		}
		next(nil)
	}
}

// TestSuspendedWhilePending: a suspension reported before the network token was seen active
// is found.
func TestSuspendedWhilePending(t *testing.T) {
	inLab(t, live, func(l *lab) {
		l.net.like.State = pending
		id := l.imports(visa)
		l.drain()
		l.net.set("network-token-1", func(t *network.Token) {
			t.State, t.SuspendedBy, t.StateAt = inactive, network.OwnersOf(network.OwnerCardholder), time.Now()
		})
		l.notify(notice{Kind: network.NoticeSuspended, By: network.OwnerCardholder})
		l.notify(notice{Kind: network.NoticeActivated, OccurredAt: time.Now().Add(-time.Second)}) // in reversed order
		l.drain()
		l.is(id, inactive, "suspended_by_cardholder")
	})
}

// TestClocks: whichever clock is ahead, a look-up brings news, unless a notice came during
// the look-up.
func TestClocks(t *testing.T) {
	for what, ahead := range map[string]time.Duration{"ours": 0, "ahead": 10 * time.Minute, "behind": -10 * time.Minute, "in another century": 90 * 365 * 24 * time.Hour} {
		t.Run(what, func(t *testing.T) {
			inLab(t, live, func(l *lab) {
				id := l.become(active)
				l.pass(time.Hour)
				l.notify(notice{Kind: network.NoticeSuspended, OccurredAt: time.Now().Add(ahead)})
				l.is(id, inactive, "suspended_by_issuer")
				// The notice of the resumption is lost. Another notice makes the vault look up
				// the token.
				l.notify(notice{Kind: network.NoticeArtChanged, Art: "a", OccurredAt: time.Now().Add(ahead)})
				l.drain()
				l.is(id, active, "")
				l.pass(20 * time.Minute)
				l.notify(notice{Kind: network.NoticeSuspended, OccurredAt: time.Now().Add(ahead)})
				l.is(id, inactive, "suspended_by_issuer")
				l.pass(time.Minute)
				if ahead > time.Hour { // the network's clock is corrected
					ahead = 0
				}
				l.notify(notice{Kind: network.NoticeResumed, OccurredAt: time.Now().Add(ahead)})
				l.is(id, active, "")
			})
		})
	}
	for when, hook := range map[string]func(l *lab, notify func(context.Context, call) error){
		"before it answers":     func(l *lab, notify func(context.Context, call) error) { l.net.script(notify, nil) },
		"after it has answered": func(l *lab, notify func(context.Context, call) error) { l.net.script(nil, notify) },
	} {
		t.Run(when, func(t *testing.T) {
			inLab(t, live, func(l *lab) {
				id := l.become(active)
				hook(l, func(_ context.Context, c call) error {
					if len(l.net.asked("Lookup")) > 1 {
						return errors.New("down")
					}
					<-time.After(time.Second)
					l.try(l.Notify(l.Context(), l.notice(notice{Kind: network.NoticeSuspended})))
					<-time.After(time.Second)
					return nil
				})
				l.run(func() { l.pass(29 * time.Hour) })
				l.is(id, inactive, "suspended_by_issuer")
				// It is looked up again, because either the notice or the answer may be newer.
				if calls := l.net.asked("Lookup"); len(calls) < 2 || calls[1].at.Sub(calls[0].at) > 3*time.Second {
					t.Errorf("look-ups %v", calls)
				}
			})
		})
	}
	// A notice that could not be applied during the call is delivered again. It is not too
	// old then.
	inLab(t, live, func(l *lab) {
		var sent *notice
		l.net.script(nil, func(_ context.Context, c call) error {
			if c.method == "Provision" {
				<-time.After(time.Second)
				sent = l.notice(notice{Kind: network.NoticeSuspended})
				if err := l.Notify(l.Context(), sent); !errors.Is(err, cardvault.ErrNotFound) {
					l.Errorf("Notify: %v", err)
				}
				<-time.After(time.Second)
			}
			return nil
		})
		id := l.imports(visa)
		l.drain()
		l.is(id, active, "")
		l.must(l.Notify(l.Context(), sent))
		l.is(id, inactive, "suspended_by_issuer")
	})
}

// TestRepeatedAnswerIsLookedUp: the answer to a repeated call may be the first call's
// answer, so the token is looked up.
func TestRepeatedAnswerIsLookedUp(t *testing.T) {
	inLab(t, live, func(l *lab) {
		l.opts.Network = &replaying{l.net, map[string]*network.Token{}}
		l.restart()
		l.net.script(nil, refuse("Provision", errors.New("lost")))
		id := l.imports(visa)
		l.drain()
		l.net.script(nil, nil)
		l.net.set("network-token-1", func(t *network.Token) { t.State = inactive })
		l.run(func() { l.pass(time.Minute) })
		l.is(id, inactive, "suspended_by_scheme")
	})
}

// A replaying network answers a repeated Provision with its first answer.
type replaying struct {
	*scripted
	first map[string]*network.Token
}

func (n *replaying) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	_, err := n.scripted.Provision(ctx, r)
	if n.first[r.IdempotencyKey] == nil {
		n.mu.Lock()
		first := *n.tokens[n.keys[r.IdempotencyKey]]
		n.mu.Unlock()
		n.first[r.IdempotencyKey] = &first
	}
	if err != nil {
		return nil, err
	}
	return n.first[r.IdempotencyKey], nil
}

// TestUnknownNotice: notices for network tokens that the vault does not have, or not yet.
func TestUnknownNotice(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		unknown := func(what string, ref network.Ref, want error) {
			t.Helper()
			if err := l.Notify(l.Context(), l.notice(notice{Kind: network.NoticeDeleted, Token: ref})); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		unknown("unknown id", network.Ref{ID: "x"}, cardvault.ErrNotFound)
		unknown("unknown key", network.Ref{IdempotencyKey: "x"}, cardvault.ErrNotFound)
		id := l.become(active)
		l.must(l.Vault.Delete(l.Context(), id))
		unknown("while the deletion is due", network.Ref{ID: "network-token-1"}, nil)
		l.drain()
		unknown("just after the deletion", network.Ref{ID: "network-token-1"}, nil)
		l.pass(time.Hour)
		l.drain()
		unknown("long after the deletion", network.Ref{ID: "network-token-1"}, cardvault.ErrNotFound)
		l.opts.Network = nil
		l.restart()
		unknown("without a network", network.Ref{ID: "x"}, cardvault.ErrNotFound)
		l.Vault.Close()
		unknown("closed vault", network.Ref{ID: "x"}, cardvault.ErrClosed)
	})
	// A notice for a token not yet known is applied when it is delivered again.
	inLab(t, nil, func(l *lab) {
		early := l.notice(notice{ID: "early", Kind: network.NoticeSuspended, OccurredAt: time.Now().Add(time.Minute)})
		if err := l.Notify(l.Context(), early); !errors.Is(err, cardvault.ErrNotFound) {
			t.Errorf("Notify: %v", err)
		}
		id := l.become(active)
		l.must(l.Notify(l.Context(), early))
		l.is(id, inactive, "suspended_by_issuer")
	})
}

// TestNoticeByIdempotencyKey: a network token whose answer was lost is found by its
// idempotency key.
func TestNoticeByIdempotencyKey(t *testing.T) {
	inLab(t, live, func(l *lab) {
		l.net.script(nil, refuse("Provision", errors.New("lost")))
		id := l.imports(visa)
		l.drain()
		l.net.script(nil, nil)
		l.notify(notice{Kind: network.NoticeActivated, Token: network.Ref{IdempotencyKey: id.String() + ":1"}})
		l.drain()
		l.is(id, active, "")
		l.held(1)
	})
	inLab(t, live, func(l *lab) {
		l.net.script(refuse("Provision", errors.New("lost")), nil)
		id := l.imports(visa)
		l.drain()
		ref := network.Ref{IdempotencyKey: id.String() + ":1"}
		l.notify(notice{Kind: network.NoticeRefused, Token: ref, Failure: &network.Error{Source: network.SourceScheme, Code: "declined"}})
		l.is(id, failed, "declined")
		l.net.script(nil, nil)
		l.must2(l.Provision(l.Context(), id, nil))
		l.drain()
		l.is(id, active, "")
		if calls := l.net.asked("Provision"); calls[len(calls)-1].key == ref.IdempotencyKey {
			t.Error("the outcome is known, and the key is the same")
		}
	})
}

// TestNoticeOfASharedNetworkToken: a notice is applied for every holder of a network token,
// in all accounts, and is resumed after a failure.
func TestNoticeOfASharedNetworkToken(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		l.net.shared = true
		a, err := l.CreateAccount(l.Context(), "another", nil)
		l.must(err)
		home := l.Vault
		vaults := []*cardvault.Vault{home, home, home.In(a.ID), home.In(a.ID)}
		ids := make([]uuid.UUID, len(vaults))
		for i, v := range vaults {
			l.Vault = v
			ids[i] = l.imports(visa)
			l.drain()
		}
		are := func(status network.Status, code string) {
			t.Helper()
			for i, v := range vaults {
				l.Vault = v
				l.is(ids[i], status, code)
			}
			l.Vault = home
		}
		are(active, "")
		l.notify(notice{Kind: network.NoticeSuspended})
		are(inactive, "suspended_by_issuer")

		// The store fails midway. Nothing is lost when the notice comes again.
		for fail := range 4 {
			l.pass(time.Second)
			for _, kind := range []network.NoticeKind{network.NoticeResumed, network.NoticeSuspended} {
				n := l.notice(notice{ID: fmt.Sprint(fail, kind), Kind: kind})
				updates := 0
				l.store.hook(func() error {
					if updates++; updates == fail+1 {
						return store.ErrUnavailable
					}
					return nil
				})
				if err := l.Notify(l.Context(), n); !errors.Is(err, cardvault.ErrUnavailable) {
					t.Errorf("Notify on a failing store: %v", err)
				}
				l.store.hook(nil)
				l.must(l.Notify(l.Context(), n))
				if kind == network.NoticeResumed {
					are(active, "")
				} else {
					are(inactive, "suspended_by_issuer")
				}
				n.Kind = network.NoticeDeleted // a duplicate by now
				l.must(l.Notify(l.Context(), n))
			}
		}
		l.notify(notice{Kind: network.NoticeResumed})
		are(active, "")

		// A damaged holder does not keep the notice from the others.
		l.spoil(kindNetworkToken, func(*store.Record) bool { return true }, 1)
		if err := l.Notify(l.Context(), l.notice(notice{Kind: network.NoticeSuspended})); !errors.Is(err, cardvault.ErrDamaged) {
			t.Errorf("Notify: %v", err)
		}
		applied := 0
		for i, v := range vaults {
			token, err := v.Get(l.Context(), ids[i])
			l.must(err)
			if token.NetworkTokenStatus == inactive {
				applied++
			}
		}
		if applied != 3 {
			t.Errorf("the notice was applied to %d tokens, want 3", applied)
		}
	})
}

// TestCardChanges: the card behind a network token has a new number or a new expiry.
func TestCardChanges(t *testing.T) {
	next := card.Expiry{Month: 7, Year: 2035}
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, IINLength: 8}, func(l *lab) {
		id := l.become(active)
		created := l.get(id)
		l.pass(time.Minute)
		shows := func(what, lastFour string, expiry card.Expiry) {
			t.Helper()
			token := l.is(id, active, "")
			if token.LastFour != lastFour || token.MaskedAccountNumber != "424242******"+lastFour || token.Expiry != expiry ||
				token.IIN != "42424242" || token.AccountNumberLength != 16 || token.Fingerprint != created.Fingerprint || token.Status != cardvault.StatusActive {
				t.Errorf("%s: %s, %s, %s, %v", what, token.IIN, token.LastFour, token.MaskedAccountNumber, token.Expiry)
			}
		}
		l.notify(notice{Kind: network.NoticeCardRenewed, Card: &network.CardState{Expiry: next}, OccurredAt: at(l, 10)})
		shows("renewed", "4242", next)
		l.notify(notice{Kind: network.NoticeCardRenewed, Card: &network.CardState{Expiry: visa.Expiry}, OccurredAt: at(l, 9)})
		shows("an older one", "4242", next)
		l.notify(notice{Kind: network.NoticeCardRenewed, OccurredAt: at(l, 11)})
		shows("renewed without card data", "4242", next)
		l.notify(notice{Kind: network.NoticeCardReplaced, Card: &network.CardState{LastFour: "1881", Expiry: visa.Expiry}, OccurredAt: at(l, 12)})
		shows("replaced", "1881", visa.Expiry)
		l.notify(notice{Kind: network.NoticeCardReplaced, Card: &network.CardState{LastFour: "0005"}, OccurredAt: at(l, 13)})
		shows("replaced again, without an expiry", "0005", visa.Expiry)
		l.notify(notice{Kind: network.NoticeCardReplaced, OccurredAt: at(l, 14)})
		shows("replaced without card data", "0005", visa.Expiry)
		// While it is active it stays, even though the stored number is stale.
		l.must2(l.Provision(l.Context(), id, nil))
		shows("provisioned", "0005", visa.Expiry)
		if n := len(l.net.asked("Provision")); n != 1 {
			t.Errorf("%d calls of Provision", n)
		}
		page, err := l.List(l.Context(), nil)
		l.must(err)
		if page.Items[0].MaskedAccountNumber != "424242******0005" {
			t.Error("the list shows another number")
		}
	})
}

// TestCardChangesFoundByLookups: card data in a look-up is applied if it is new.
func TestCardChangesFoundByLookups(t *testing.T) {
	next := card.Expiry{Month: 7, Year: 2035}
	patched := card.Expiry{Month: 1, Year: 2033}
	for what, first := range map[string]*network.CardState{
		"known at first":          {LastFour: "4242", Expiry: visa.Expiry},
		"known without expiry":    {LastFour: "4242"},
		"known without last four": {Expiry: visa.Expiry},
		"unknown at first":        nil,
	} {
		t.Run(what, func(t *testing.T) {
			inLab(t, live, func(l *lab) {
				l.net.like.Card, l.net.like.State = first, pending
				id := l.imports(visa)
				look := func(known *network.CardState) {
					l.net.set("network-token-1", func(t *network.Token) { t.Card, t.State = known, active })
					l.run(func() { l.pass(29 * time.Hour) })
				}
				shows := func(what, lastFour string, expiry card.Expiry) {
					t.Helper()
					if token := l.is(id, active, ""); token.LastFour != lastFour || token.Expiry != expiry {
						t.Errorf("%s: %s, %v", what, token.LastFour, token.Expiry)
					}
				}
				l.drain()
				look(&network.CardState{LastFour: "4242", Expiry: visa.Expiry})
				shows("the same card", "4242", visa.Expiry)
				l.must2(l.Update(l.Context(), id, cardvault.TokenUpdate{Expiry: &patched}))
				look(&network.CardState{LastFour: "4242", Expiry: visa.Expiry})
				shows("nothing new", "4242", patched)
				look(&network.CardState{LastFour: "4242"})
				shows("nothing at all", "4242", patched)
				look(nil)
				shows("less than nothing", "4242", patched)
				look(&network.CardState{Expiry: next})
				shows("renewed", "4242", next)
				look(&network.CardState{LastFour: "1881", Expiry: next})
				shows("replaced", "1881", next)
				// An earlier notice is old.
				l.notify(notice{Kind: network.NoticeCardReplaced, Card: &network.CardState{LastFour: "9999"}, OccurredAt: at(l, 60)})
				shows("an old notice", "1881", next)
			})
		})
	}
	// A look-up of the same card causes no event.
	recorder := new(vaulttest.Recorder)
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Events: recorder}, func(l *lab) {
		l.become(active)
		l.net.set("network-token-1", func(t *network.Token) {
			t.Card = &network.CardState{LastFour: "4242", Expiry: visa.Expiry}
		})
		l.run(func() { l.pass(29 * time.Hour) })
		for _, e := range recorder.Events() {
			if e.Reason == receive.ReasonCardUpdated {
				t.Errorf("%v for %v", e.Type, e.Reason)
			}
		}
	})
	// A look-up in progress when the notice came does not undo the notice.
	inLab(t, live, func(l *lab) {
		l.net.like.Card = &network.CardState{LastFour: "4242", Expiry: visa.Expiry}
		id := l.become(active)
		l.net.script(nil, func(_ context.Context, c call) error {
			if c.method == "Lookup" && len(l.net.asked("Lookup")) == 1 {
				l.try(l.Notify(l.Context(), l.notice(notice{Kind: network.NoticeCardReplaced, Card: &network.CardState{LastFour: "1881", Expiry: next}})))
				l.net.set("network-token-1", func(t *network.Token) {
					t.Card = &network.CardState{LastFour: "1881", Expiry: next}
				})
			}
			return nil
		})
		l.run(func() { l.pass(29 * time.Hour) })
		if token := l.is(id, active, ""); token.LastFour != "1881" || token.Expiry != next {
			t.Errorf("%s, %v", token.LastFour, token.Expiry)
		}
	})
}

// TestInvalidNotices: an invalid notice is refused as a whole, and the error lists every
// fault.
func TestInvalidNotices(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id := l.become(active)
		now := time.Now()
		good := notice{ID: "n", Kind: network.NoticeSuspended, By: network.OwnerIssuer, OccurredAt: now, Token: network.Ref{ID: "network-token-1"}}
		long := strings.Repeat("x", 256)
		for what, test := range map[string]struct {
			spoil func(*notice)
			want  []string
		}{
			"no id":               {func(n *notice) { n.ID = "" }, []string{"ID"}},
			"a long id":           {func(n *notice) { n.ID = long }, []string{"ID"}},
			"no token":            {func(n *notice) { n.Token = network.Ref{} }, []string{"Token"}},
			"a long token":        {func(n *notice) { n.Token.ID = long }, []string{"Token"}},
			"a long key":          {func(n *notice) { n.Token.IdempotencyKey = long }, []string{"Token"}},
			"no kind":             {func(n *notice) { n.Kind = 0 }, []string{"Kind"}},
			"kind 11":             {func(n *notice) { n.Kind = network.NoticeArtChanged + 1 }, []string{"Kind"}},
			"no time":             {func(n *notice) { n.OccurredAt = time.Time{} }, []string{"OccurredAt"}},
			"a time of 1999":      {func(n *notice) { n.OccurredAt = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC) }, []string{"OccurredAt"}},
			"a time of 2101":      {func(n *notice) { n.OccurredAt = time.Date(2101, 1, 1, 0, 0, 0, 0, time.UTC) }, []string{"OccurredAt"}},
			"an unknown owner":    {func(n *notice) { n.By = network.OwnerCardholder + 1 }, []string{"By"}},
			"suspended, no owner": {func(n *notice) { n.By = 0 }, []string{"By"}},
			"three digits":        {func(n *notice) { n.Card = &network.CardState{LastFour: "424"} }, []string{"Card"}},
			"no digits":           {func(n *notice) { n.Card = &network.CardState{LastFour: "abcd"} }, []string{"Card"}},
			"a bad expiry":        {func(n *notice) { n.Card = &network.CardState{Expiry: card.Expiry{Month: 13, Year: 2030}} }, []string{"Card"}},
			"refused, no failure": {func(n *notice) { n.Kind = network.NoticeRefused }, []string{"Failure"}},
			"many things":         {func(n *notice) { *n = notice{Card: &network.CardState{LastFour: "4"}} }, []string{"ID", "Token", "Kind", "OccurredAt", "Card"}},
			"a card number": {func(n *notice) {
				n.ID, n.Card = long+"4242424242424242", &network.CardState{LastFour: "4242424242424242"}
			}, []string{"ID", "Card"}},
		} {
			n := good
			test.spoil(&n)
			err := l.Notify(l.Context(), &n)
			var got []string
			for _, e := range cardvault.FieldErrors(err) {
				got = append(got, e.Field)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%s: %v", what, err)
			}
			if err != nil && strings.Contains(err.Error(), "4242") {
				t.Errorf("%s: the error repeats input", what)
			}
		}
		l.is(id, active, "")
		l.must(l.Notify(l.Context(), &good))
		l.is(id, inactive, "suspended_by_issuer")
	})
}

// TestSchemeCodes: a network's code that cannot be stored, or might be a card number, is
// dropped.
func TestSchemeCodes(t *testing.T) {
	for code, want := range map[string]string{
		"LOST_OR_STOLEN": "LOST_OR_STOLEN", "4242424242424242": "", "pan 4242424242424242!": "", "a\x00b": "", " ": "",
		strings.Repeat("x", 255): strings.Repeat("x", 255), strings.Repeat("x", 256): "", "\xff": "",
	} {
		inLab(t, nil, func(l *lab) {
			id := l.become(active)
			l.notify(notice{Kind: network.NoticeSuspended, SchemeCode: code})
			if r := l.is(id, inactive, "suspended_by_issuer").NetworkTokenStatusReason; r.SchemeCode != want {
				t.Errorf("%q is stored as %q", code, r.SchemeCode)
			}
		})
	}
}

// TestNoticeOfManyHolders: a thousand holders in one account do not keep a notice from the
// other accounts.
func TestNoticeOfManyHolders(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		l.net.shared = true
		crowd := l.crowd(1100, visa)
		other, err := l.CreateAccount(l.Context(), "another", nil)
		l.must(err)
		good := l.In(other.ID)
		token, err := good.Import(l.Context(), visa, nil)
		l.must(err)
		l.drain()
		n := l.notice(notice{Kind: network.NoticeDeleted})
		l.must(l.Notify(l.Context(), n))
		l.must(l.Notify(l.Context(), n)) // delivered again
		// The process dies while it applies the notice.
		var updates atomic.Int64
		l.store.hook(func() error {
			if updates.Add(1) > 200 {
				return store.ErrUnavailable
			}
			return nil
		})
		_ = l.Drain(l.Context())
		l.restart()
		l.run(func() { l.pass(5 * time.Minute) })
		token, err = l.In(other.ID).Get(l.Context(), token.ID)
		l.must(err)
		if token.NetworkTokenStatus != deleted {
			t.Errorf("the network token in the other account is %v", token.NetworkTokenStatus)
		}
		for _, id := range crowd {
			if got := l.get(id).NetworkTokenStatus; got != deleted {
				t.Fatalf("a network token is %v", got)
			}
		}
		if left := l.all(kindSpread); len(left) > 0 {
			t.Errorf("%d jobs are left", len(left))
		}
	})
}

const kindSpread store.Kind = 25

// TestNoticesOfManyHolders: a notice applied by a job has the same effect as one applied at
// once. Older notices are dropped.
func TestNoticesOfManyHolders(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		l.net.shared = true
		ids := l.crowd(1001, visa)
		l.drain()
		last := func(status network.Status, code string) *cardvault.Token {
			l.Helper()
			l.drain()
			return l.is(ids[len(ids)-1], status, code)
		}
		l.notify(notice{ID: "1", Kind: network.NoticeSuspended, By: network.OwnerIssuer, OccurredAt: at(l, 10), SchemeCode: "S1"})
		if got := last(inactive, "suspended_by_issuer"); got.NetworkTokenStatusReason.SchemeCode != "S1" {
			t.Errorf("the reason is %+v", got.NetworkTokenStatusReason)
		}
		l.notify(notice{ID: "2", Kind: network.NoticeResumed, By: network.OwnerIssuer, OccurredAt: at(l, 9)})
		last(inactive, "suspended_by_issuer")
		l.notify(notice{ID: "3", Kind: network.NoticeResumed, By: network.OwnerIssuer, OccurredAt: at(l, 11)})
		last(active, "")
		l.notify(notice{ID: "4", Kind: network.NoticeCardReplaced, OccurredAt: at(l, 12),
			Card: &network.CardState{LastFour: "1881", Expiry: card.Expiry{Month: 7, Year: 2035}}})
		if got := last(active, ""); got.LastFour != "1881" || got.Expiry.Year != 2035 {
			t.Errorf("the card is %s, %v", got.LastFour, got.Expiry)
		}
		l.notify(notice{ID: "5", Kind: network.NoticeInvalidated, OccurredAt: at(l, 13)})
		last(deleted, "account_closed")
	})
}
