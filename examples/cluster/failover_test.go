//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// TestFailover kills the primary under writes, promotes its synchronous standby and makes a
// new standby of it, again and again: FAULTS times, 5 by default. Nothing acknowledged is
// lost, nothing deleted returns, nothing is done twice. It prints how long vaults could not
// write: make faults.
func TestFailover(t *testing.T) {
	t.Parallel()
	rounds := 5
	if n := os.Getenv("FAULTS"); n != "" {
		var err error
		if rounds, err = strconv.Atoi(n); err != nil {
			t.Fatal(err)
		}
	}
	primary := realtest.PostgreSQL(t, &realtest.PostgreSQLOptions{Settings: map[string]string{
		// By default a standby that has just lost its primary may sleep for five seconds
		// before it notices its promotion.
		"wal_retrieve_retry_interval": "100ms",
	}})
	primary.SQL(t, "postgres", "CREATE DATABASE vault")
	standby := primary.Standby(t)
	url := fmt.Sprintf("postgres://cardvault@%s,%s/vault?sslmode=disable&target_session_attrs=read-write&connect_timeout=2", primary.Addr(), standby.Addr())

	h := newHistory(t, url)
	var recoveries []time.Duration
	for range rounds {
		h.await(t, 200)
		// The standby receives nothing from now on, so nothing more may be acknowledged.
		// Otherwise an asynchronous standby would pass too, since it is never behind here.
		standby.Link.Hang()
		<-time.After(100 * time.Millisecond)
		killed := time.Now()
		primary.Kill()
		standby.Link.Cut()
		h.dead()
		standby.Promote(t)
		promoted := time.Since(killed)
		recovery := h.recovered(t).Sub(killed)
		recoveries = append(recoveries, recovery)
		t.Logf("promoted after %v, written by all after %v", promoted.Round(time.Millisecond), recovery.Round(time.Millisecond))
		primary.Follow(t, standby)
		primary, standby = standby, primary
	}
	h.end()
	lost, resurrected, doubled := h.check(t)
	slices.Sort(recoveries)
	p50, p99 := recoveries[len(recoveries)/2], recoveries[(len(recoveries)*99+99)/100-1]
	t.Logf("%d fail-overs, %d imports, %d updates and %d deletions acknowledged: %d tokens lost, %d resurrected, %d effects doubled; recovery p50 %v, p99 %v",
		rounds, h.imports, h.updates, h.deletions, lost, resurrected, doubled, p50.Round(time.Millisecond), p99.Round(time.Millisecond))
	if lost+resurrected+doubled > 0 {
		t.Error("writes were lost or done twice")
	}
	if os.Getenv("FAULTS") != "" && p99 > 3*time.Second { // other tests may slow the machine down
		t.Errorf("recovery took %v", p99)
	}
}

// A history records the acknowledgements of writers that run until its end. They retry
// every failure, imports under the same idempotency key.
type history struct {
	vaults  []*cardvault.Vault
	sent    *recorder
	network *schemeLog
	ending  chan struct{}
	writers sync.WaitGroup

	mu        sync.Mutex
	writes    int                  // acknowledged
	died      time.Time            // when the last primary was gone
	again     []time.Time          // by vault: the first acknowledgement of a write begun later
	names     map[uuid.UUID]string // business keys of existing tokens
	gone      map[uuid.UUID]bool
	retried   map[uuid.UUID]bool // tokens whose update was retried
	imports   int
	updates   int
	deletions int
	more      chan struct{} // closed and replaced with each write
}

const writersEach = 8 // of a vault

func newHistory(t *testing.T, url string) *history {
	c := config{store: url, codes: "memory", migrate: true}
	b, err := openBackend(t.Context(), &c, quiet)
	if err != nil {
		t.Fatal(err)
	}
	sim, err := simnet.New(t.Context(), memstore.New(), nil) // the scheme does not fail
	if err != nil {
		t.Fatal(err)
	}
	h := &history{
		sent:    &recorder{events: map[uuid.UUID]map[string]map[uuid.UUID]bool{}},
		network: &schemeLog{Network: sim, keys: map[uuid.UUID]map[string]bool{}},
		ending:  make(chan struct{}),
		names:   map[uuid.UUID]string{},
		gone:    map[uuid.UUID]bool{},
		retried: map[uuid.UUID]bool{},
		more:    make(chan struct{}),
	}
	running, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	t.Cleanup(func() {
		h.end()
		stop()
		group.Wait()
		for _, v := range h.vaults {
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		o, err := b.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := o.close(); err != nil {
				t.Error(err)
			}
		})
		keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
		if err != nil {
			t.Fatal(err)
		}
		v, err := cardvault.New(t.Context(), o.store, keys, &cardvault.Options{
			Mode: cardvault.Sandbox, Network: h.network, Webhooks: h.sent, Codes: o.codes,
		})
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			if err := v.Run(running); err != nil {
				t.Error(err)
			}
		})
		h.vaults = append(h.vaults, v)
		h.again = append(h.again, time.Time{})
	}
	if _, err := h.vaults[0].CreateWebhook(t.Context(), "https://hook.example", nil); err != nil {
		t.Fatal(err)
	}
	for n, v := range h.vaults {
		for w := range writersEach {
			h.writers.Go(func() { h.writer(t, n, v, fmt.Sprintf("%d/%d", n, w)) })
		}
	}
	return h
}

// end ends the writers.
func (h *history) end() {
	select {
	case <-h.ending:
	default:
		close(h.ending)
	}
	h.writers.Wait()
}

// until repeats a call until it is acknowledged, as a careful caller does. It returns the
// number of attempts, or 0 after a permanent failure.
func (h *history) until(t *testing.T, n int, call func(context.Context) error) int {
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	end := time.Now().Add(patience)
	for tries := 1; ; tries++ {
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := call(ctx)
		cancel()
		if err == nil {
			h.acknowledged(n, began)
			return tries
		}
		if !errors.Is(err, cardvault.ErrUnavailable) && !errors.Is(err, cardvault.ErrOutcomeUnknown) &&
			!errors.Is(err, cardvault.ErrIdempotencyInProgress) && !errors.Is(err, context.DeadlineExceeded) || time.Now().After(end) {
			t.Errorf("a write failed permanently: %v", err)
			return 0
		}
		<-pause.C
	}
}

// acknowledged records the acknowledgement of a write by a vault.
func (h *history) acknowledged(n int, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writes++
	if began.After(h.died) && h.again[n].IsZero() {
		h.again[n] = time.Now()
	}
	close(h.more)
	h.more = make(chan struct{})
}

func (h *history) writer(t *testing.T, n int, v *cardvault.Vault, name string) {
	given := cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, 0), Expiry: card.Expiry{Month: 12, Year: 2030}}
	for i := 0; !t.Failed(); i++ {
		select {
		case <-h.ending:
			return
		default:
		}
		key := fmt.Sprintf("%s/%d", name, i)
		var id uuid.UUID
		if h.until(t, n, func(ctx context.Context) error {
			token, err := v.Import(ctx, given, &cardvault.ImportOptions{BusinessKey: "new", IdempotencyKey: key})
			if err == nil {
				id = token.ID
			}
			return err
		}) == 0 {
			return
		}
		h.note(func() { h.names[id] = "new"; h.imports++ })
		if i%2 == 0 {
			tries := h.until(t, n, func(ctx context.Context) error {
				_, err := v.Update(ctx, id, cardvault.TokenUpdate{BusinessKey: &key})
				return err
			})
			if tries == 0 {
				return
			}
			h.note(func() { h.names[id] = key; h.updates++; h.retried[id] = tries > 1 })
		}
		if i%3 == 0 {
			if h.until(t, n, func(ctx context.Context) error {
				err := v.Delete(ctx, id)
				if errors.Is(err, cardvault.ErrNotFound) { // an unanswered attempt
					return nil
				}
				return err
			}) == 0 {
				return
			}
			h.note(func() { delete(h.names, id); h.gone[id] = true; h.deletions++ })
		}
	}
}

func (h *history) note(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// wait waits until a condition holds.
func (h *history) wait(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.After(patience); ; {
		h.mu.Lock()
		done, more := holds(), h.more
		h.mu.Unlock()
		if done || t.Failed() {
			return
		}
		select {
		case <-more:
		case <-end:
			t.Fatalf("gave up waiting for %s", what)
		}
	}
}

// await waits for n more writes.
func (h *history) await(t *testing.T, n int) {
	t.Helper()
	h.mu.Lock()
	from := h.writes
	h.mu.Unlock()
	h.wait(t, "writes", func() bool { return h.writes >= from+n })
}

// dead records the end of the primary: another answers the writes begun from now on.
func (h *history) dead() {
	h.note(func() {
		h.died = time.Now()
		clear(h.again)
	})
}

// recovered returns when all vaults have written again.
func (h *history) recovered(t *testing.T) time.Time {
	t.Helper()
	h.wait(t, "every vault to write", func() bool {
		return !slices.ContainsFunc(h.again, time.Time.IsZero)
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.MaxFunc(h.again, time.Time.Compare)
}

// check compares the tokens and their deliveries with the acknowledged writes.
func (h *history) check(t *testing.T) (lost, resurrected, doubled int) {
	t.Helper()
	v := h.vaults[0]
	there := map[uuid.UUID]bool{}
	for token, err := range v.All(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		there[token.ID] = true
		name, ok := h.names[token.ID]
		switch {
		case h.gone[token.ID]:
			resurrected++
		case !ok:
			doubled++ // the idempotency key has another token
		case token.BusinessKey != name:
			lost++ // an update
		}
	}
	for id := range h.names {
		if !there[id] {
			lost++
		}
	}
	if p, err := v.List(t.Context(), nil); err != nil || p.TotalItems != int64(len(there)) {
		t.Errorf("%d tokens are counted, %d are listed: %v", p.TotalItems, len(there), err)
	}
	h.sent.wait(t, h.expected())
	doubled += h.sent.doubled(h.retried) + h.network.doubled()
	return lost, resurrected, doubled
}

// expected returns the deliveries expected for each token. A deleted token's are dropped.
func (h *history) expected() map[uuid.UUID][]string {
	expected := map[uuid.UUID][]string{}
	for id, name := range h.names {
		expected[id] = []string{"token.created imported", "token.updated network_token_status_changed"}
		if name != "new" {
			expected[id] = append(expected[id], updated)
		}
	}
	for id := range h.gone {
		expected[id] = []string{"token.deleted requested"}
	}
	return expected
}

// A recorder is a webhook that records the events it receives.
type recorder struct {
	mu     sync.Mutex
	events map[uuid.UUID]map[string]map[uuid.UUID]bool // their ids, by token and by type with reason
}

const updated = "token.updated patched"

func (r *recorder) Check(*cardvault.Target) error { return nil }

func (r *recorder) Send(_ context.Context, d *cardvault.Delivery) (*cardvault.SendResult, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := d.Event
	of := r.events[e.TokenID]
	if of == nil {
		of = map[string]map[uuid.UUID]bool{}
		r.events[e.TokenID] = of
	}
	what := fmt.Sprint(e.Type, " ", e.Reason)
	if of[what] == nil {
		of[what] = map[uuid.UUID]bool{}
	}
	of[what][e.ID] = true
	return &cardvault.SendResult{StatusCode: 204}, nil
}

// wait waits for all of these events, as long as there is progress. A turn cut off by a
// fail-over starts again after its lease.
func (r *recorder) wait(t *testing.T, tokens map[uuid.UUID][]string) {
	t.Helper()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	least := 3*len(tokens) + 1
	for progress := time.Now(); time.Since(progress) < 2*patience; <-look.C {
		missing := 0
		r.mu.Lock()
		for id, events := range tokens {
			for _, what := range events {
				if len(r.events[id][what]) == 0 {
					missing++
				}
			}
		}
		r.mu.Unlock()
		if missing == 0 {
			return
		}
		if missing < least {
			least, progress = missing, time.Now()
		}
	}
	t.Errorf("the webhook did not receive %d events", least)
}

// doubled returns the number of changes reported twice: by two event ids, not in two
// deliveries. A retried update may really have been made twice.
func (r *recorder) doubled(retried map[uuid.UUID]bool) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for token, events := range r.events {
		for what, ids := range events {
			if len(ids) > 1 && !(what == updated && retried[token]) {
				n += len(ids) - 1
			}
		}
	}
	return n
}

// A schemeLog is a network that records the idempotency keys of each token's requests for a
// network token.
type schemeLog struct {
	*simnet.Network
	mu   sync.Mutex
	keys map[uuid.UUID]map[string]bool
}

func (s *schemeLog) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	s.mu.Lock()
	if s.keys[r.TokenID] == nil {
		s.keys[r.TokenID] = map[string]bool{}
	}
	s.keys[r.TokenID][r.IdempotencyKey] = true
	s.mu.Unlock()
	return s.Network.Provision(ctx, r)
}

// doubled returns the number of surplus requests for network tokens.
func (s *schemeLog) doubled() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, keys := range s.keys {
		n += len(keys) - 1
	}
	return n
}
