package networks_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/networks"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// vaultsuite.Run tests several networks on any store. The tests here take time.

// A logged text can be written concurrently.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// running lets a vault on s run for some time, after f has had it.
func running(t *testing.T, s store.Store, n network.Provider, out *logged, d time.Duration, f func(*cardvault.Vault)) {
	t.Helper()
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{7}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Mode: cardvault.Sandbox, Network: n, Logger: slog.New(slog.NewTextHandler(out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- v.Run(ctx) }()
	f(v)
	time.Sleep(d)
	cancel()
	if err := errors.Join(<-done, v.Close()); err != nil {
		t.Error(err)
	}
}

func importCard(t *testing.T, v *cardvault.Vault, scheme card.Scheme) uuid.UUID {
	t.Helper()
	token, err := v.Import(t.Context(), cardvault.Card{PAN: simnet.ScenarioPAN(scheme, 0), Expiry: card.Expiry{Month: 12, Year: 2090}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(10 * time.Second)
	return token.ID
}

// is checks the status of a network token.
func is(t *testing.T, v *cardvault.Vault, id uuid.UUID, want network.Status) {
	t.Helper()
	token, err := v.Get(t.Context(), id)
	if err != nil || token.NetworkTokenStatus != want {
		t.Errorf("network token is %v, want %v: %v", token.NetworkTokenStatus, want, err)
	}
}

// A faulty network is a simulator whose methods the test replaces, and which counts calls.
type faulty struct {
	*simnet.Network
	provision func(error) error // the error after Provision
	feed      func(sink func(*network.Notice) error) error

	mu    sync.Mutex
	calls []string // idempotency keys
}

func (n *faulty) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	n.note(r.IdempotencyKey)
	got, err := n.Network.Provision(ctx, r)
	if n.provision != nil {
		err = n.provision(err)
	}
	return got, err
}

func (n *faulty) Lookup(ctx context.Context, ref network.Ref) (*network.Token, error) {
	n.note(ref.IdempotencyKey)
	return n.Network.Lookup(ctx, ref)
}

func (n *faulty) note(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, key)
}

func (n *faulty) Feed(ctx context.Context, r *network.FeedRequest, sink func(context.Context, *network.Notice) error) error {
	if n.feed != nil {
		return n.feed(func(m *network.Notice) error { return sink(ctx, m) })
	}
	return n.Network.Feed(ctx, r, sink)
}

// TestFeeds: each network has a feed of its own. A feed that fails interrupts no other, and a
// notice that names another network is dropped.
func TestFeeds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		one, other, out := simulator(t, "one"), &faulty{Network: simulator(t, "other")}, new(logged)
		var named atomic.Pointer[network.Notice]
		other.feed = func(sink func(*network.Notice) error) error {
			if n := named.Load(); n != nil {
				if err := sink(n); err != nil {
					t.Errorf("a notice of another network: %v", err)
				}
			}
			return errors.New("connection reset")
		}
		r := networks.Route(map[card.Scheme]network.Provider{card.VISA: one, card.Mastercard: other})

		running(t, memstore.New(), r, out, time.Minute, func(v *cardvault.Vault) {
			visa, master := importCard(t, v, card.VISA), importCard(t, v, card.Mastercard)
			is(t, v, visa, network.Active)
			is(t, v, master, network.Active)
			got, err := one.Lookup(t.Context(), network.Ref{IdempotencyKey: visa.String() + ":1"})
			if err != nil {
				t.Fatal(err)
			}
			named.Store(&network.Notice{ID: "1", Kind: network.NoticeDeleted, By: network.OwnerIssuer, OccurredAt: time.Now(), Token: network.Ref{Network: "one", ID: got.ID}})
			<-time.After(5 * time.Minute)
			is(t, v, visa, network.Active)

			if err := one.Control().Suspend(t.Context(), visa); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
			is(t, v, visa, network.Inactive)
			is(t, v, master, network.Active)
		})
		if out.count("names a network other than its own") == 0 || out.count("will be restarted") < 3 || out.count("network=one") > 0 {
			t.Errorf("log: %s", out.text.String())
		}
	})
}

// TestPutBack: a provisioning whose answer is lost waits for its network while that is left
// out, also when its scheme has another network, and continues under the same key.
func TestPutBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, out := memstore.New(), new(logged)
		one, other := &faulty{Network: simulator(t, "one")}, &faulty{Network: simulator(t, "other")}
		route := func(visa network.Provider) network.Provider {
			return networks.Route(map[card.Scheme]network.Provider{card.VISA: visa})
		}

		one.provision = func(error) error { return errors.New("connection reset") }
		var id uuid.UUID
		running(t, s, route(one), out, 0, func(v *cardvault.Vault) {
			token, err := v.Import(t.Context(), cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, 0), Expiry: card.Expiry{Month: 12, Year: 2090}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			id = token.ID
			<-time.After(100 * time.Millisecond)
		})
		before := len(one.calls)
		one.provision = nil

		running(t, s, route(other), out, 3*24*time.Hour, func(v *cardvault.Vault) {
			<-time.After(time.Hour)
			is(t, v, id, network.Pending)
		})
		if before == 0 || len(one.calls) != before || len(other.calls) != 0 {
			t.Errorf("while its network is left out: %d calls, then %d, %d of another network", before, len(one.calls), len(other.calls))
		}

		running(t, s, route(one), out, 0, func(v *cardvault.Vault) {
			<-time.After(30 * time.Hour)
			is(t, v, id, network.Active)
		})
		for _, key := range one.calls {
			if key != id.String()+":1" {
				t.Errorf("asked under %s", key)
			}
		}
	})
}
