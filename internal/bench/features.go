package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bench/table"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/webhook"
)

// features of a vault. The network is a simulator in memory, as fast as it goes.
type features struct {
	sink, webhook, network bool

	memory bool        // for the records
	on     store.Store // for the records; nil: one in a folder
}

var everything = features{sink: true, webhook: true, network: true}

// A site is a vault with features that runs and is served over HTTP.
type site struct {
	vault  *cardvault.Vault
	caller *caller
	with   features

	taken, received atomic.Int64 // events, by the sink and by the webhook
	closers
}

// Event counts an event that the sink takes.
func (s *site) Event(context.Context, *cardvault.Event) error {
	s.taken.Add(1)
	return nil
}

// newSite makes a vault in memory, or in a folder of its own.
func (b *bench) newSite(ctx context.Context, name string, with features) (s *site, err error) {
	s = &site{with: with}
	defer func() {
		if err != nil {
			s.close(&err)
		}
	}()

	opts := &cardvault.Options{Webhooks: webhook.New(&webhook.Options{AllowPrivateTargets: true})}
	if with.sink {
		opts.Events = s
	}
	if with.network {
		opts.Mode = cardvault.Sandbox
		if opts.Network, err = simnet.New(ctx, memstore.New(), nil); err != nil {
			return s, err
		}
	}
	if with.memory {
		with.on = memstore.New()
	}
	if with.on != nil {
		s.vault, err = cardvault.New(ctx, with.on, b.keys, opts)
	} else {
		s.vault, err = cardvault.Open(ctx, filepath.Join(b.dir, "site-"+name), b.keys, opts)
	}
	if err != nil {
		return s, err
	}
	s.later(s.vault.Close)

	if with.webhook {
		if err := s.receive(ctx); err != nil {
			return s, err
		}
	}
	var stop func()
	if s.caller, stop, err = served(ctx, s.vault, cardvault.AccountUpdate{ImportApproved: new(true), NetworkTokensActive: new(true)}); err != nil {
		return s, err
	}
	s.later(func() error { stop(); return nil })

	s.later(runs(ctx, s.vault))
	return s, nil
}

// runs runs a vault until stop is called.
func runs(ctx context.Context, v *cardvault.Vault) (stop func() error) {
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- v.Run(running) }()
	return func() error { cancel(); return <-ended }
}

// receive registers a webhook whose receiver counts.
func (s *site) receive(ctx context.Context) error {
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			s.received.Add(1)
		}
	}))
	s.later(func() error { receiver.Close(); return nil })
	_, err := s.vault.CreateWebhook(ctx, receiver.URL, nil)
	return err
}

// importer returns imports over HTTP. After a measurement it waits for the events, and for
// the network tokens, of its imports.
func (s *site) importer(name string) contender {
	var imports int64
	return contender{name: name,
		run: func(i int) error {
			_, err := s.caller.do(i, importing.method, importing.path, importing.body)
			return err
		},
		settle: func(calls int) error {
			imports += int64(calls)
			events := imports
			if s.with.network {
				events *= 2 // each token is created, and then active
			}

			return until(func() (bool, error) {
				switch {
				case s.with.sink && s.taken.Load() < events, s.with.webhook && s.received.Load() < events:
					return false, nil
				case s.with.network:
					return s.none(context.Background(), network.Pending)
				}
				return true, nil
			})
		}}
}

// none reports whether no network token has a status.
func (s *site) none(ctx context.Context, status network.Status) (bool, error) {
	p, err := s.vault.List(ctx, &cardvault.TokenListOptions{Limit: 1, NetworkTokenStatus: []network.Status{status}})
	if err != nil {
		return false, err
	}
	return p.TotalItems == 0, nil
}

// active waits until n network tokens are active.
func (s *site) active(ctx context.Context, n int64) error {
	return until(func() (bool, error) {
		p, err := s.vault.List(ctx, &cardvault.TokenListOptions{Limit: 1, NetworkTokenStatus: []network.Status{network.Active}})
		if err != nil {
			return false, err
		}
		return p.TotalItems >= n, nil
	})
}

// receivesPayments gives the account's merchant a secret for payment data.
func (s *site) receivesPayments(ctx context.Context) error {
	m, err := s.vault.PrimaryMerchant(ctx)
	if err != nil {
		return err
	}
	_, err = s.vault.RotatePaymentSecret(ctx, m.ID, nil)
	return err
}

// until waits for at most five minutes.
func until(done func() (bool, error)) error {
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok, err := done(); ok || err != nil {
			return err
		}
	}
	return errors.New("the work that is left does not end")
}

// sinks compares imports over HTTP into vaults with features, among them a sink, with a
// bare handler. Deliveries and provisioning go on meanwhile; each vault has done its work
// before the next begins.
func (b *bench) sinks(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	appending, err := newFloor(filepath.Join(b.dir, "features-floor.db"), b.shape[:1], 0)
	if err != nil {
		return err
	}
	open.later(appending.close)

	cases := []struct {
		name, what string
		with       features
		goals      map[int]table.Goal // against a bare POST
	}{
		{"none", "import over HTTP, no features", features{}, map[int]table.Goal{64: least(.35)}},
		{"sink", "with a sink", features{sink: true}, nil},
		{"sink-webhook", "with a sink and one webhook", features{sink: true, webhook: true}, map[int]table.Goal{64: least(.28)}},
		{"network", "with a network", features{network: true}, nil},
		{"all", "with sink, webhook and network", everything, map[int]table.Goal{64: least(.2)}},
	}

	var contenders []contender
	var first *site
	for _, c := range cases {
		s, err := b.newSite(ctx, c.name, c.with)
		if err != nil {
			return err
		}
		open.later(s.shut)
		contenders = append(contenders, s.importer(c.what))
		if first == nil {
			first = s
		}
	}

	l := load{next: func() (request, error) { return importing, nil }}
	bare, stop, err := l.bare(first.caller)
	if err != nil {
		return err
	}
	open.later(stop)
	contenders = append(contenders, bare, appending.contender())

	for _, n := range []int{1, 64} {
		lanes, err := b.race(n, contenders...)
		if err != nil {
			return err
		}
		post, loop := lanes[len(cases)], lanes[len(cases)+1]
		for i, c := range cases {
			b.ratio(fmt.Sprintf("features-%s/%d", c.name, n), n, c.goals[n], lanes[i], post)
		}

		all := lanes[len(cases)-1]
		settled := *all
		settled.name += ", until all is delivered and active"
		b.compared(fmt.Sprintf("features-all-settled/%d", n), n, reported, &settled, post,
			func(o, a sample) float64 { return o.settled / a.perSecond })
		if n == 1 {
			b.ratio("features-all-loop/1", n, least(.5), all, loop)
		}
	}
	return nil
}

// network compares imports in process with and without a network, which answers or fails,
// and reports how fast imports become active while others continue.
func (b *bench) network(ctx context.Context) (err error) {
	sim, err := simnet.New(ctx, memstore.New(), nil)
	if err != nil {
		return err
	}
	var open closers
	defer open.close(&err)

	var contenders []contender
	for i, c := range []struct {
		name     string
		provider network.Provider
		runs     bool
	}{
		{"without a network", nil, false},
		{"with one, no work done", sim, false},
		{"with one that answers, Run beside", sim, true},
		{"with one that fails always, Run beside", &down{Provider: sim}, true},
	} {
		opts := &cardvault.Options{Mode: cardvault.Sandbox, Network: c.provider, NetworkRate: 100} // the rate of a live vault
		v, err := cardvault.Open(ctx, filepath.Join(b.dir, fmt.Sprint("network-", i)), b.keys, opts)
		if err != nil {
			return err
		}
		open.later(v.Close)
		if c.runs {
			open.later(runs(ctx, v))
		}
		contenders = append(contenders, contender{name: "Import " + c.name, run: func(int) error {
			_, err := v.Import(ctx, testCard(0), nil)
			return err
		}})
	}

	for _, n := range []int{1, 64} {
		lanes, err := b.race(n, contenders...)
		if err != nil {
			return err
		}
		for i, name := range []string{"idle", "up", "down"} {
			b.ratio(fmt.Sprintf("network-%s/%d", name, n), n, reported, lanes[i+1], lanes[0])
		}
	}
	return b.activate(ctx)
}

// activate imports without end until enough imports are active.
func (b *bench) activate(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	sim, err := simnet.Open(ctx, filepath.Join(b.dir, "simulator"), nil)
	if err != nil {
		return err
	}
	open.later(sim.Close)

	v, err := cardvault.Open(ctx, filepath.Join(b.dir, "active"), b.keys, &cardvault.Options{Mode: cardvault.Sandbox, Network: sim})
	if err != nil {
		return err
	}
	open.later(v.Close)
	open.later(runs(ctx, v))

	wanted, stop := context.WithCancel(ctx)
	var imported atomic.Int64
	begun := time.Now()
	ended := make(chan error, 1)
	go func() {
		ended <- parallel(16, func(int) error {
			for wanted.Err() == nil {
				if _, err := v.Import(ctx, testCard(0), nil); err != nil {
					return err
				}
				imported.Add(1)
			}
			return nil
		})
	}()

	s, activations := &site{vault: v}, min(10_000, b.table.Tokens)
	err = s.active(ctx, int64(activations))
	took := time.Since(begun)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	b.figures("network-active", "/s", reported, "become active, with a durable simulator, while 16 goroutines import", float64(activations)/took.Seconds())
	b.figures("network-importing", "/s", reported, "imports meanwhile", float64(imported.Load())/took.Seconds())
	return nil
}

// down is a network that is not there.
type down struct{ network.Provider }

func (n down) Unwrap() network.Provider { return n.Provider }

func (down) Provision(context.Context, *network.ProvisionRequest) (*network.Token, error) {
	return nil, errors.New("503 Service Unavailable")
}

// webhooks compares imports in process into an account with a webhook, whose deliveries go
// on meanwhile, with imports into one without.
func (b *bench) webhooks(ctx context.Context) (err error) {
	s, err := b.newSite(ctx, "webhooks", features{webhook: true})
	if err != nil {
		return err
	}
	defer s.close(&err)
	silent, err := s.vault.CreateAccount(ctx, "", nil)
	if err != nil {
		return err
	}

	into := func(name string, v *cardvault.Vault) contender {
		return contender{name: "Import " + name, run: func(int) error {
			_, err := v.Import(ctx, testCard(0), nil)
			return err
		}}
	}
	heard := into("with a webhook", s.vault)
	heard.settle = s.importer("").settle
	for _, n := range []int{1, 64, 256} {
		lanes, err := b.race(n, heard, into("without", s.vault.In(silent.ID)))
		if err != nil {
			return err
		}
		b.ratio(fmt.Sprintf("webhook/%d", n), n, reported, lanes[0], lanes[1])
	}
	return nil
}
