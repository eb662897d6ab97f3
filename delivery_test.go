package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// vaultsuite.Run tests deliveries on any store. The tests here take time, or let something
// fail in between.

// A post is a Sender that records its deliveries, and answers as the test says. It fails the
// test if two deliveries of a token or more than eight in all are sent to a URL at the same
// time.
type post struct {
	t      testing.TB
	mu     sync.Mutex
	sent   []sending
	busy   map[string]int
	answer func(context.Context, *cardvault.Delivery) (int, error) // nil answers 200
	after  time.Duration                                           // Retry-After of each answer other than success
	most   int                                                     // highest number of simultaneous attempts for one URL
	crowds bool                                                    // several processes are killed, and may send at the same time
}

// A sending is one finished call of Send.
type sending struct {
	*cardvault.Delivery
	at      time.Time
	code    int
	secrets []string
}

func (s sending) String() string { return fmt.Sprint(s.Event.Type, " ", s.Event.Reason) }

// url is the address of the usual receiver.
const url = "https://receiver.example/"

func (p *post) Check(t *cardvault.Target) error {
	if !strings.HasPrefix(t.URL, "https://") {
		return errors.New("must be an https URL")
	}
	return nil
}

func (p *post) Send(ctx context.Context, d *cardvault.Delivery) (got *cardvault.SendResult, err error) {
	s := sending{Delivery: d, at: time.Now()}
	for _, secret := range d.Secrets {
		secret.Expose(func(b []byte) { s.secrets = append(s.secrets, string(b)) })
	}
	if end, ok := ctx.Deadline(); !ok || time.Until(end) != 15*time.Second {
		p.t.Errorf("an attempt has its deadline in %v", time.Until(end))
	}
	if d.Event != nil && (d.Event.ID != d.ID || !d.Event.CreatedAt.Equal(d.CreatedAt)) {
		p.t.Errorf("delivery %v contains event %v", d.ID, d.Event.ID)
	}
	token := d.URL + d.ID.String()
	if d.Event != nil {
		token = d.URL + d.Event.TokenID.String()
	}
	p.mu.Lock()
	answer := p.answer
	if p.busy == nil {
		p.busy = map[string]int{}
	}
	p.busy[d.URL]++
	p.busy[token]++
	p.most = max(p.most, p.busy[d.URL])
	if p.busy[token] > 1 && !p.crowds {
		p.t.Errorf("two deliveries of a token are sent to %s at the same time", d.URL)
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.busy[d.URL]--
		p.busy[token]--
		p.sent = append(p.sent, s)
	}()
	s.code = 200
	if answer != nil {
		s.code = 0 // in case of a panic
		s.code, err = answer(ctx, d)
	}
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &cardvault.SendResult{StatusCode: s.code}
	if s.code/100 != 2 {
		r.RetryAfter = p.after
	}
	return r, nil
}

func (p *post) set(answer func(context.Context, *cardvault.Delivery) (int, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

// says makes the post answer with a status.
func (p *post) says(code int) {
	p.set(func(context.Context, *cardvault.Delivery) (int, error) { return code, nil })
}

// tried returns the attempts to deliver to a URL, in the order in which they ended.
func (p *post) tried(url string) []sending {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.sent), func(s sending) bool { return s.URL != url })
}

// took returns the successful deliveries to a URL.
func (p *post) took(url string) []sending {
	return slices.DeleteFunc(p.tried(url), func(s sending) bool { return s.code/100 != 2 })
}

// forget clears the record of deliveries.
func (p *post) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent, p.most = nil, 0
}

// has checks which events of a token were delivered to a URL, and their order.
func (p *post) has(url string, token uuid.UUID, want ...string) {
	p.t.Helper()
	var got []string
	for _, s := range p.took(url) {
		if s.Event.TokenID == token {
			got = append(got, s.String())
		}
	}
	if !slices.Equal(got, want) {
		p.t.Errorf("delivered\n got %q\nwant %q", got, want)
	}
}

// inPost runs f in a lab with a post and a webhook for all events. Cards get no network
// token.
func inPost(t *testing.T, opts cardvault.Options, f func(l *lab, post *post, hook *cardvault.Webhook)) {
	t.Helper()
	post := &post{t: t}
	opts.Webhooks = post
	inLab(t, &opts, func(l *lab) {
		l.net.ineligible = func(card.Scheme) error { return configurationError("merchant_not_enrolled") }
		f(l, post, l.hook(url))
		post.mu.Lock()
		defer post.mu.Unlock()
		if post.most > 8 && !post.crowds {
			t.Errorf("%d simultaneous attempts to deliver", post.most)
		}
	})
}

var (
	sandboxPost = cardvault.Options{Mode: cardvault.Sandbox}
	livePost    = cardvault.Options{Mode: cardvault.Live}
)

// hook registers a webhook.
func (l *lab) hook(url string, events ...receive.EventType) *cardvault.Webhook {
	l.Helper()
	w, err := l.CreateWebhook(l.Context(), url, &cardvault.WebhookOptions{Events: events})
	l.must(err)
	return w
}

// deliveries returns the log of a webhook, oldest event first.
func (l *lab) deliveries(w *cardvault.Webhook) []*cardvault.DeliveryRecord {
	l.Helper()
	page, err := l.ListDeliveries(l.Context(), w.ID, &cardvault.ListOptions{Limit: cardvault.MaxLimit, Ascending: true})
	l.must(err)
	return page.Items
}

// statuses checks the log of a webhook.
func (l *lab) statuses(w *cardvault.Webhook, want ...cardvault.DeliveryStatus) {
	l.Helper()
	var got []cardvault.DeliveryStatus
	for _, d := range l.deliveries(w) {
		got = append(got, d.Status)
	}
	if !slices.Equal(got, want) {
		l.Errorf("deliveries are %v, want %v", got, want)
	}
}

const (
	underWay  = cardvault.DeliveryPending
	delivered = cardvault.DeliveryDelivered
	lost      = cardvault.DeliveryFailed
)

// These are kinds of stored records.
const (
	kindWebhook   store.Kind = 20
	kindQueue     store.Kind = 21
	kindDelivery  store.Kind = 22
	kindPast      store.Kind = 23
	kindRemains   store.Kind = 24
	kindSinkQueue store.Kind = 27
)

// A ledger is a store that knows which records were put. It can return damaged records for a
// while.
type ledger struct {
	store.Store
	mu   sync.Mutex
	keys map[store.Kind]map[uuid.UUID]bool
	bad  func(*store.Record) bool   // reports whether a record is damaged; nil for none
	part func(*store.Record) []byte // the part to damage; nil for the shown part
}

func (s *ledger) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(&ledgerReadTx{tx, s}) })
}

func (s *ledger) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error {
		return fn(&ledgerTx{ledgerReadTx{tx, s}, tx})
	})
}

// damage selects the damaged records.
func (s *ledger) damage(bad func(*store.Record) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad = bad
}

// read damages the selected records among those just read.
func (s *ledger) read(records ...*store.Record) []*store.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		if s.bad != nil && r != nil && s.bad(r) {
			part := r.Shown
			if s.part != nil {
				part = s.part(r)
			}
			if len(part) > 0 { // records of a list have no secret parts
				part[len(part)-1] ^= 1
			}
		}
	}
	return records
}

type ledgerReadTx struct {
	store.ReadTx
	ledger *ledger
}

func (tx *ledgerReadTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r, err := tx.ReadTx.Get(kind, id)
	return tx.ledger.read(r)[0], err
}

func (tx *ledgerReadTx) List(q *store.Query) (*store.List, error) {
	list, err := tx.ReadTx.List(q)
	if err == nil {
		tx.ledger.read(list.Records...)
	}
	return list, err
}

func (tx *ledgerReadTx) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	all, err := tx.ReadTx.Lookup(kind, hash, limit)
	return tx.ledger.read(all...), err
}

func (tx *ledgerReadTx) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	all, err := tx.ReadTx.Due(kind, shards, until, limit)
	return tx.ledger.read(all...), err
}

type ledgerTx struct {
	ledgerReadTx
	tx store.Tx
}

func (tx *ledgerTx) Put(r *store.Record) {
	tx.ledger.mu.Lock()
	defer tx.ledger.mu.Unlock()
	if tx.ledger.keys[r.Kind] == nil {
		tx.ledger.keys[r.Kind] = map[uuid.UUID]bool{}
	}
	tx.ledger.keys[r.Kind][r.ID] = true
	tx.tx.Put(r)
}

func (tx *ledgerTx) Delete(kind store.Kind, id uuid.UUID) { tx.tx.Delete(kind, id) }

// keepBooks lets l know which records are stored from now on.
func (l *lab) keepBooks() *ledger {
	books := &ledger{Store: l.store.on(), keys: map[store.Kind]map[uuid.UUID]bool{}}
	l.store.rests(books)
	return books
}

// keepBooksWithout deletes a webhook with all its records, and keeps books from then on.
func (l *lab) keepBooksWithout(hook *cardvault.Webhook) *ledger {
	l.Helper()
	l.must(l.DeleteWebhook(l.Context(), hook.ID))
	l.drain()
	return l.keepBooks()
}

// stored returns the records of a kind that were put since the books were begun and still
// exist, ordered by id.
func (l *lab) stored(kind store.Kind) (all []*store.Record) {
	l.Helper()
	s := l.store.on().(*ledger)
	s.mu.Lock()
	ids := slices.Collect(maps.Keys(s.keys[kind]))
	s.mu.Unlock()
	l.must(s.View(l.Context(), func(tx store.ReadTx) error {
		for _, id := range ids {
			r, err := tx.Get(kind, id)
			if err == nil {
				all = append(all, r)
			} else if !errors.Is(err, store.ErrNotFound) {
				return err
			}
		}
		return nil
	}))
	slices.SortFunc(all, func(a, b *store.Record) int { return slices.Compare(a.ID[:], b.ID[:]) })
	return all
}

// TestDeliveryRetries: after ten attempts in three days the delivery has failed, and can be
// redelivered.
func TestDeliveryRetries(t *testing.T) {
	h := time.Hour
	for mode, want := range map[cardvault.Mode][]time.Duration{
		cardvault.Live: {5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * h, 5 * h, 10 * h, 14 * h, 20 * h, 24 * h},
		cardvault.Sandbox: {50 * time.Millisecond, 3 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second,
			5 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second},
	} {
		t.Run(mode.String(), func(t *testing.T) {
			inPost(t, cardvault.Options{Mode: mode}, func(l *lab, post *post, hook *cardvault.Webhook) {
				post.says(503)
				id := l.imports(visa)
				l.run(func() {
					l.pass(time.Second)
					d := l.deliveries(hook)[0]
					if n := len(post.tried(url)); d.Status != underWay || d.Attempts != n || d.LastStatusCode != 503 ||
						d.NextAttemptAt.Before(time.Now()) || d.LastAttemptAt.IsZero() || d.TokenID != id || d.EventType != receive.TokenCreated {
						t.Errorf("%d attempts: %+v", n, d)
					}
					l.pass(100 * h)
				})
				var calls []call
				for _, s := range post.tried(url) {
					calls = append(calls, call{at: s.at})
					if s.ID != post.tried(url)[0].ID {
						t.Error("the id of the event changes when it is sent again")
					}
				}
				if len(calls) != 10 {
					t.Fatalf("%d attempts, want 10", len(calls))
				}
				// A running turn looks for more events every ten milliseconds.
				if pause := calls[1].at.Sub(calls[0].at); pause < want[0]*4/5 || pause > want[0]*6/5+15*time.Millisecond {
					t.Errorf("the first pause is %v, want %v", pause, want[0])
				}
				within(t, "delivery", calls[1:], want[1:]...)
				d := l.deliveries(hook)[0]
				if d.Status != lost || d.Attempts != 10 || !d.NextAttemptAt.IsZero() {
					t.Errorf("%+v", d)
				}
				post.set(nil)
				l.pass(2 * time.Hour) // the pause that the webhook asked for
				l.must2(l.Redeliver(l.Context(), d.EventID, nil))
				want := *d // a redelivery changes only the schedule in the log
				want.Status = underWay
				if again := *l.deliveries(hook)[0]; again != want {
					t.Errorf("redelivered: %+v, want %+v", again, want)
				}
				l.run(func() { l.pass(time.Second) })
				post.has(url, id, createdEvent)
				if again := l.deliveries(hook); len(again) != 1 || again[0].ID != d.ID || again[0].Status != delivered || again[0].Attempts != 11 {
					t.Errorf("%+v", again[0])
				}
				if post.took(url)[0].ID != d.EventID {
					t.Error("the id of the event changes when it is redelivered")
				}
			})
		})
	}
}

// inOrder checks that the events of each token were delivered to a URL in order. It returns
// the number of events delivered, and the number delivered again.
func (p *post) inOrder(url string) (events, again int) {
	p.t.Helper()
	last := map[uuid.UUID]uint64{}
	seen := map[uuid.UUID]bool{}
	swapped := 0
	for _, s := range p.took(url) {
		if seen[s.ID] {
			again++
			continue
		}
		seen[s.ID] = true
		if s.Event.Sequence <= last[s.Event.TokenID] {
			swapped++
		}
		last[s.Event.TokenID] = s.Event.Sequence
	}
	if swapped > 0 {
		p.t.Errorf("among %d events, %d are out of order", len(seen), swapped)
	}
	return len(seen), again
}

var errDown = errors.New("connection refused")

// TestReceiverDown: while a receiver is down for six hours, no event is lost. Afterwards the
// events of each token arrive in order.
func TestReceiverDown(t *testing.T) {
	const hours = 6
	tokens, events := 200, 4000
	if testing.Short() {
		tokens, events = 100, 1000
	}
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		l.keepBooks()
		post.set(func(context.Context, *cardvault.Delivery) (int, error) { return 0, errDown })
		l.run(func() {
			ids := l.crowd(tokens, visa)
			for n := tokens; n < events; n++ {
				if n%25 == 0 {
					l.pass(hours * time.Hour * 25 / time.Duration(events))
				}
				patch(l, ids[rand.IntN(tokens)], "a")
			}
			l.pass(time.Minute) // the receiver does not recover between two events of a token
			if n := len(post.took(url)); n > 0 {
				t.Errorf("a receiver that is down accepted %d events", n)
			}
			t.Logf("%d attempts while the receiver was down", len(post.tried(url)))
			post.set(nil)
			l.pass(15 * time.Hour)
		})
		if n, again := post.inOrder(url); n != events || again > 0 {
			t.Errorf("%d events have arrived, want %d; %d of them again", n, events, again)
		}
		page, err := l.ListDeliveries(l.Context(), hook.ID, &cardvault.ListOptions{Limit: 500})
		l.must(err)
		if page.TotalItems != int64(events) || slices.ContainsFunc(page.Items, func(d *cardvault.DeliveryRecord) bool { return d.Status != delivered }) {
			t.Errorf("%d deliveries in the log, want %d, all of them delivered", page.TotalItems, events)
		}
		l.run(func() { l.pass(8 * 24 * time.Hour) })
		if n := len(l.stored(kindDelivery)); n > 0 {
			t.Errorf("%d deliveries are left after a week", n)
		}
	})
}

// A mortal is a process's view of a store. Once the process is dead, it can no longer use
// the store.
type mortal struct {
	store.Store
	dead atomic.Bool
}

func (s *mortal) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if s.dead.Load() {
		return store.ErrClosed
	}
	return s.Store.View(ctx, fn)
}

func (s *mortal) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.dead.Load() {
		return store.ErrClosed
	}
	return s.Store.Update(ctx, fn)
}

// born starts a process on the store of l, and returns a function that kills it.
func (l *lab) born() (kill func()) {
	l.Helper()
	s := &mortal{Store: l.store}
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	l.must(err)
	v, err := cardvault.New(l.Context(), s, keys, &l.opts)
	l.must(err)
	ctx, stop := context.WithCancel(l.Context())
	ended := make(chan struct{})
	go func() {
		_ = v.Run(ctx)
		close(ended)
	}()
	l.Cleanup(func() {
		stop()
		<-ended
	})
	return func() {
		s.dead.Store(true)
		stop()
	}
}

// TestKilledWhileSending kills one of two processes two hundred times.
func TestKilledWhileSending(t *testing.T) {
	const tokens, events, kills = 100, 4000, 200
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		var refused sync.Map // after three refusals an event would let later ones pass
		post.set(func(_ context.Context, d *cardvault.Delivery) (int, error) {
			<-time.After(rand.N(3 * time.Second))
			if _, again := refused.LoadOrStore(d.ID, true); !again && rand.IntN(20) == 0 {
				return 500, nil
			}
			return 200, nil
		})
		ids := l.crowd(tokens, visa)
		killers := []func(){l.born(), l.born()}
		n := tokens
		for range kills {
			for ; n < events && rand.IntN(events/kills) > 0; n++ {
				patch(l, ids[rand.IntN(tokens)], "a")
			}
			l.pass(rand.N(40 * time.Second))
			which := rand.IntN(2)
			killers[which]()
			killers[which] = l.born()
		}
		for ; n < events; n++ {
			patch(l, ids[rand.IntN(tokens)], "a")
		}
		l.pass(24 * time.Hour)
		arrived, again := post.inOrder(url)
		if arrived != events {
			t.Errorf("%d events have arrived, want %d", arrived, events)
		}
		if again == 0 || again > 8*kills {
			t.Errorf("%d events have arrived again", again)
		}
		t.Logf("%d of %d events have arrived again", again, events)
	})
}

// TestKilledFreesItsWork: an event claimed by a killed process is sent again under the same
// id, once the lease has ended and not before.
func TestKilledFreesItsWork(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		id := l.imports(visa)
		patch(l, id, "a")
		taken, dead := make(chan struct{}), make(chan struct{})
		post.set(func(context.Context, *cardvault.Delivery) (int, error) {
			post.set(nil)
			close(taken)
			<-dead
			return 200, nil
		})
		kill := l.born()
		<-taken
		kill()
		close(dead) // the event was accepted, but not recorded
		l.born()
		l.pass(30 * time.Second)
		post.has(url, id, createdEvent)
		l.pass(40 * time.Second)
		post.has(url, id, createdEvent, createdEvent, patchedEvent)
		if sent := post.took(url); sent[0].ID != sent[1].ID || !sent[0].CreatedAt.Equal(sent[1].CreatedAt) {
			t.Error("the event changes when it is sent again")
		}
	})
}

// TestOutcomeOfASettlementUnknown: a delivery is processed again if storing its outcome may
// have failed.
func TestOutcomeOfASettlementUnknown(t *testing.T) {
	for _, test := range []struct {
		done  bool
		times int
	}{{false, 2}, {true, 1}} {
		t.Run(fmt.Sprint("done ", test.done), func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				id := l.imports(visa)
				post.set(func(context.Context, *cardvault.Delivery) (int, error) {
					post.set(nil)
					l.store.set(store.ErrOutcomeUnknown, test.done)
					return 200, nil
				})
				l.run(func() {
					l.pass(time.Second)
					l.store.set(nil, false)
					l.pass(2 * time.Minute)
				})
				post.has(url, id, slices.Repeat([]string{createdEvent}, test.times)...)
				l.statuses(hook, delivered)
			})
		})
	}
}

// TestDeliveriesHeldBack: the events of a token wait behind a failing one until it has
// failed three times. Then it is retried before each later event. Events of other tokens do
// not wait, and waiting costs no writes.
func TestDeliveriesHeldBack(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		var writes atomic.Int64
		l.store.hook(func() error { writes.Add(1); return nil })
		held := l.imports(visa)
		fails := func(_ context.Context, d *cardvault.Delivery) (int, error) {
			if d.Event.TokenID == held && d.Event.Type == receive.TokenCreated {
				return 500, nil
			}
			return 200, nil
		}
		post.set(fails)
		created := func() (n int) {
			for _, s := range post.tried(url) {
				if s.Event.TokenID == held && s.Event.Type == receive.TokenCreated {
					n++
				}
			}
			return n
		}
		l.run(func() {
			l.pass(time.Second)
			patch(l, held, "a")
			patch(l, held, "b")
			other := l.imports(visa)
			l.pass(10 * time.Second) // the second failure
			post.has(url, held)
			post.has(url, other, createdEvent)
			l.statuses(hook, underWay, underWay, underWay, delivered)
			before := writes.Load()
			l.pass(3 * time.Minute)
			if n := writes.Load() - before; n != 0 {
				t.Errorf("%d writes while nothing is due", n)
			}
			patch(l, held, "c")
			l.pass(4 * time.Minute) // the third failure
			post.has(url, held, patchedEvent, patchedEvent, patchedEvent)
			sent := post.tried(url)
			for i, s := range sent[len(sent)-3:] {
				if s.Event.Token.BusinessKey != string("abc"[i]) {
					t.Errorf("event %d has business key %q", i, s.Event.Token.BusinessKey)
				}
			}
			if failure := sent[len(sent)-4]; failure.code != 500 || sent[len(sent)-1].at.Sub(failure.at) > time.Second {
				t.Errorf("the later events came %v after the third failure", sent[len(sent)-1].at.Sub(failure.at))
			}
			if n := created(); n != 3 {
				t.Errorf("%d attempts of the first event, want 3", n)
			}
			due := l.deliveries(hook)[0].NextAttemptAt
			patch(l, held, "d")
			l.pass(time.Second)
			post.has(url, held, slices.Repeat([]string{patchedEvent}, 4)...)
			d := l.deliveries(hook)[0]
			if n := created(); n != 4 || d.Attempts != 4 || !d.NextAttemptAt.Equal(due) {
				t.Errorf("%d attempts, want one before the later event: %+v; it was due at %v", n, d, due)
			}
			post.set(nil)
			patch(l, held, "e")
			l.pass(time.Second)
			post.has(url, held, patchedEvent, patchedEvent, patchedEvent, patchedEvent, createdEvent, patchedEvent)
			l.pass(time.Hour)
			if n := len(post.took(url)); n != 7 {
				t.Errorf("%d events have arrived, want 7", n)
			}
		})
		if n := writes.Load(); n > 80 {
			t.Errorf("%d writes", n)
		}
	})
}

// TestManyPoisonedEvents: an event that a webhook never accepts costs its own attempts, and
// holds up no good event.
func TestManyPoisonedEvents(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		post.set(func(_ context.Context, d *cardvault.Delivery) (int, error) {
			if d.Event.Token.BusinessKey == "poison" {
				return 422, nil
			}
			return 200, nil
		})
		id := l.imports(visa)
		l.run(func() {
			for i := range 40 {
				key := "poison"
				if i%4 == 3 {
					key = fmt.Sprint(i)
				}
				patch(l, id, key)
			}
			l.pass(100 * time.Hour)
		})
		n, again := post.inOrder(url)
		if n != 11 || again != 0 {
			t.Errorf("%d events have arrived, %d of them again, want 11", n, again)
		}
		if n := len(post.tried(url)); n > 700 {
			t.Errorf("%d attempts", n)
		}
		for _, d := range l.deliveries(hook) {
			if d.Status == underWay {
				t.Errorf("%+v", d)
			}
		}
	})
}

// TestEarlierOneBecomesDueMeanwhile: an event retried before a later one, and due at that
// moment, is sent only once.
func TestEarlierOneBecomesDueMeanwhile(t *testing.T) {
	for what, meanwhile := range map[string]func(*lab, uuid.UUID){
		"due":         func(*lab, uuid.UUID) {},
		"redelivered": func(l *lab, event uuid.UUID) { l.try(errorOf(l.Redeliver(l.Context(), event, nil))) },
	} {
		t.Run(what, func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				post.says(500)
				id := l.imports(visa)
				l.run(func() {
					l.pass(20 * time.Minute)
					d := l.deliveries(hook)[0]
					if d.Attempts != 3 {
						t.Fatalf("%+v", d)
					}
					l.pass(time.Until(d.NextAttemptAt) - 5*time.Second)
					post.set(func(_ context.Context, d *cardvault.Delivery) (int, error) {
						if d.Event.Type == receive.TokenCreated {
							<-time.After(3 * time.Second)
							meanwhile(l, d.ID)
							<-time.After(7 * time.Second)
						}
						return 200, nil
					})
					patch(l, id, "a")
					l.pass(time.Minute)
				})
				if what == "due" {
					post.has(url, id, createdEvent, patchedEvent)
				} else {
					post.has(url, id, createdEvent, createdEvent, patchedEvent)
				}
				l.statuses(hook, delivered, delivered)
			})
		})
	}
}

// TestSlowReceivers: receivers that answer slowly delay only their own deliveries.
func TestSlowReceivers(t *testing.T) {
	const slow = "https://slow.example/"
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		post.set(func(ctx context.Context, d *cardvault.Delivery) (int, error) {
			if d.URL != url {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return 200, nil
		})
		mine := l.hook(slow)
		var others []*cardvault.Vault
		for range 150 {
			a, err := l.CreateAccount(l.Context(), "", nil)
			l.must(err)
			v := l.In(a.ID)
			_, err = v.CreateWebhook(l.Context(), "https://other.example/"+a.ID.String(), nil)
			l.must(err)
			others = append(others, v)
		}
		l.run(func() {
			for round := range 4 {
				for _, v := range others {
					_, err := v.Import(l.Context(), visa, nil)
					l.must(err)
				}
				l.crowd(200, visa)
				l.pass(time.Second)
				if n := len(post.took(url)); n != 200*(round+1) {
					t.Errorf("round %d: %d events have arrived at the quick receiver, want %d", round, n, 200*(round+1))
				}
			}
			l.pass(3 * time.Minute)
			tried := len(post.tried(slow))
			if tried < 50 || tried > 8*13 {
				t.Errorf("%d attempts for the slow receiver in 3 minutes", tried)
			}
		})
		tried := 0
		for _, d := range l.deliveries(mine) {
			if d.Attempts > 0 { // which ones depends on when the shift looked
				tried++
			}
			if d.Status != underWay || d.LastStatusCode != 0 {
				t.Errorf("%+v", d)
			}
		}
		if tried == 0 {
			t.Error("no delivery to the slow receiver has an attempt")
		}
	})
}

// TestOneTokenHangs: a webhook that hangs for one token still receives the events of other
// tokens, including later ones.
func TestOneTokenHangs(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		hung, slow := l.imports(visa), l.imports(visa)
		post.set(func(ctx context.Context, d *cardvault.Delivery) (int, error) {
			if d.Event.TokenID == hung || d.Event.TokenID == slow && d.Event.Type == receive.TokenUpdated {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return 200, nil
		})
		patch(l, hung, "a")
		l.run(func() {
			l.pass(time.Second)
			post.forget()
			for i := range 50 { // for several turns
				if i == 9 {
					patch(l, slow, "a") // hangs when the turn has ended
				}
				l.crowd(20, visa)
				l.pass(1100 * time.Millisecond)
				if n := len(post.took(url)); n != 20*(i+1) {
					t.Errorf("%d events of other tokens have arrived, want %d", n, 20*(i+1))
				}
			}
		})
		post.has(url, hung)
	})
}

// TestManyWebhooksHang: each webhook has its turn, however many events wait for others.
func TestManyWebhooksHang(t *testing.T) {
	const hooks, cards = 260, 24 // more than are handled at the same time
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		post.set(func(ctx context.Context, _ *cardvault.Delivery) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
		for i := range hooks {
			a, err := l.CreateAccount(l.Context(), "", nil)
			l.must(err)
			v := l.In(a.ID)
			_, err = v.CreateWebhook(l.Context(), fmt.Sprint(url, i), nil)
			l.must(err)
			for range cards {
				_, err := v.Import(l.Context(), visa, nil)
				l.must(err)
			}
		}
		l.run(func() { l.pass(time.Minute) })
		for i := range hooks {
			if len(post.tried(fmt.Sprint(url, i))) == 0 {
				t.Errorf("nothing was sent to webhook %d", i)
			}
		}
	})
}

// TestEventsAreSentAtOnce: an event is sent at once if its webhook is idle, has just been
// idle, or waits for an answer.
func TestEventsAreSentAtOnce(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		soon := func(what string) {
			t.Helper()
			post.forget()
			id := l.imports(visa)
			l.pass(20 * time.Millisecond)
			if len(post.took(url)) != 1 {
				t.Errorf("%s: an event is not sent within 20 ms", what)
			}
			post.has(url, id, createdEvent)
		}
		l.run(func() {
			soon("nothing to do")
			soon("just done")
			l.pass(time.Hour)
			soon("nothing to do for an hour")
			l.pass(time.Hour)
			post.set(func(ctx context.Context, _ *cardvault.Delivery) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
			l.imports(visa)
			l.pass(5 * time.Second)
			post.set(nil)
			soon("waiting for an answer")
			soon("still waiting for an answer")
		})
	})
}

// TestManyEventsOfOneToken: more events than are read at once arrive in order and without a
// pause, while another token hangs.
func TestManyEventsOfOneToken(t *testing.T) {
	const events = 1000
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		hung, busy := l.imports(visa), l.imports(visa)
		post.set(func(ctx context.Context, d *cardvault.Delivery) (int, error) {
			if d.Event.TokenID == hung {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			<-time.After(time.Millisecond)
			return 200, nil
		})
		for range events - 1 {
			patch(l, busy, "a")
		}
		l.run(func() { l.pass(2 * time.Second) })
		if n, again := post.inOrder(url); n != events || again != 0 {
			t.Errorf("%d events have arrived, want %d; %d of them again", n, events, again)
		}
	})
}

// TestEventStoredLate: an event is stored after the page that should contain it was read.
// The next event of its token is on a later page. They arrive in order.
func TestEventStoredLate(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		other := l.open()  // a vault with an earlier next row key
		l.crowd(130, visa) // more than a page
		var once sync.Once
		var id uuid.UUID
		sender := l.on(&slow{l.store, func(list *store.Query) time.Duration {
			if list != nil && list.Kind == kindDelivery && list.Limit == 128 {
				once.Do(func() {
					token, err := other.Import(l.Context(), visa, nil)
					l.must(err)
					id = token.ID
					for _, key := range []string{"a", "b"} {
						patch(l, id, key)
					}
				})
			}
			return 0
		}})
		l.must(sender.Drain(l.Context()))
		if n, again := post.inOrder(url); n != 133 || again != 0 {
			t.Errorf("%d events have arrived, %d of them again, want 133", n, again)
		}
		post.has(url, id, createdEvent, patchedEvent, patchedEvent)
	})
}

// TestWebhookAsksToBeLeftAlone: a webhook is left alone on request, for the requested time
// if it exceeds the usual pause.
func TestWebhookAsksToBeLeftAlone(t *testing.T) {
	for _, test := range []struct {
		asks, pause time.Duration // pause: for the whole webhook
		first       time.Duration // until the second attempt
	}{
		{time.Minute, time.Minute, time.Minute},
		{time.Second, time.Second, 5 * time.Second},
		{3 * time.Hour, time.Hour, 3 * time.Hour},
		{1000 * time.Hour, time.Hour, 24 * time.Hour},
	} {
		t.Run(test.asks.String(), func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				post.after = test.asks
				post.says(429)
				first := l.imports(visa)
				l.run(func() {
					l.pass(100 * time.Millisecond)
					if n := len(post.tried(url)); n != 1 {
						t.Fatalf("%d attempts, want 1", n)
					}
					began := post.tried(url)[0].at
					post.set(nil)
					l.crowd(200, visa)
					l.pass(time.Until(began.Add(test.pause)) - time.Millisecond)
					if n := len(post.tried(url)); n != 1 {
						t.Errorf("%d attempts during the pause that the webhook asked for", n-1)
					}
					l.pass(2 * time.Second)
					want := 200
					if test.first == test.pause {
						want++
					}
					if n := len(post.took(url)); n != want {
						t.Errorf("%d events have arrived after the pause, want %d", n, want)
					}
					if test.first > test.pause {
						l.pass(time.Until(began.Add(test.first * 3 / 4)))
						post.has(url, first)
					}
					l.pass(time.Until(began.Add(test.first * 5 / 4)))
					post.has(url, first, createdEvent)
				})
			})
		})
	}
}

// TestThrottled: an overloaded webhook, or one down behind a proxy, is left alone as a
// whole. The pauses grow until it accepts something again.
func TestThrottled(t *testing.T) {
	for _, code := range []int{429, 502, 503, 504} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				post.set(func(context.Context, *cardvault.Delivery) (int, error) {
					<-time.After(100 * time.Millisecond)
					return code, nil
				})
				l.crowd(500, visa)
				rounds := func(most int) {
					t.Helper()
					if n := len(post.tried(url)); n <= 8*(most-1) || n > 8*most {
						t.Errorf("%d attempts, want at most %d in groups of eight", n, 8*most)
					}
				}
				l.run(func() {
					l.pass(3 * time.Second)
					rounds(1)
					l.pass(4 * time.Second) // includes the pause of 5 s
					rounds(2)
					l.pass(3 * time.Minute)
					rounds(2)
					l.pass(4 * time.Minute) // includes the pause of 5 min
					rounds(3)
					l.pass(15 * time.Minute)
					rounds(3)
					l.pass(25 * time.Minute) // includes the pause of 30 min
					rounds(4)
					post.set(nil)
					l.pass(40 * time.Minute)
					if n := len(post.took(url)); n < 450 {
						t.Errorf("%d events have arrived, want all except those attempted", n)
					}
					l.pass(10 * time.Hour)
					if n, again := post.inOrder(url); n != 500 || again != 0 {
						t.Errorf("%d events have arrived, %d of them again, want 500", n, again)
					}
					post.forget()
					post.says(code)
					l.imports(visa)
					l.pass(time.Second)
					post.set(nil)
					l.pass(10 * time.Second)
					if n := len(post.took(url)); n != 1 {
						t.Error("the first pause after a success is not the shortest")
					}
				})
			})
		})
	}
}

// TestThrottledEventHoldsBack: an event sent to a webhook that asked for a pause has not
// failed because of that. Later events wait for it.
func TestThrottledEventHoldsBack(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		post.says(503)
		id := l.imports(visa)
		l.run(func() {
			l.pass(time.Hour)
			if d := l.deliveries(hook)[0]; d.Attempts != 4 {
				t.Fatalf("%+v", d)
			}
			post.set(func(_ context.Context, d *cardvault.Delivery) (int, error) {
				if d.Event.Type == receive.TokenCreated {
					return 500, nil
				}
				return 200, nil
			})
			patch(l, id, "a")
			l.pass(8 * time.Hour) // two more attempts
			post.has(url, id)
			l.pass(16 * time.Hour) // the third attempt
			post.has(url, id, patchedEvent)
		})
	})
}

// TestLongestPauseCounts: when several answers ask for pauses, the longest one is observed,
// in whatever order they arrive.
func TestLongestPauseCounts(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		var n atomic.Int64
		post.set(func(context.Context, *cardvault.Delivery) (int, error) {
			i := n.Add(1)
			<-time.After(time.Duration(i) * time.Second)
			post.mu.Lock()
			defer post.mu.Unlock()
			post.after = 2 * time.Second // until the next answer
			if i == 3 {
				post.after = 30 * time.Minute
			}
			return 503, nil
		})
		l.crowd(100, visa)
		l.run(func() {
			l.pass(25 * time.Minute)
			if n := len(post.tried(url)); n != 8 {
				t.Errorf("%d attempts, want only those in progress", n)
			}
			l.pass(10 * time.Minute)
			if n := len(post.tried(url)); n <= 8 {
				t.Error("the pause does not end")
			}
		})
	})
}

// TestPauseEnds: a requested pause ends when the webhook has another URL, or is enabled
// again.
func TestPauseEnds(t *testing.T) {
	const moved = "https://moved.example/"
	update := func(updates ...cardvault.WebhookUpdate) func(*lab, *cardvault.Webhook) {
		return func(l *lab, w *cardvault.Webhook) {
			for _, u := range updates {
				_, err := l.UpdateWebhook(l.Context(), w.ID, u)
				l.try(err)
			}
		}
	}
	for _, test := range []struct {
		what   string
		change func(*lab, *cardvault.Webhook)
		to     string
		during bool // during the attempt
		want   []string
	}{
		{"a new URL", update(cardvault.WebhookUpdate{URL: new(moved)}), moved, false, []string{createdEvent, patchedEvent}},
		{"a new URL meanwhile", update(cardvault.WebhookUpdate{URL: new(moved)}), moved, true, []string{createdEvent, patchedEvent}},
		{"enabled again", update(cardvault.WebhookUpdate{Disabled: new(true)}, cardvault.WebhookUpdate{Disabled: new(false)}), url, false, []string{createdEvent, patchedEvent}},
		{"a new description", update(cardvault.WebhookUpdate{Description: new("x")}), url, false, nil},
		{"the same URL", update(cardvault.WebhookUpdate{URL: new(url)}), url, false, nil},
	} {
		t.Run(test.what, func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				post.after = time.Hour
				post.set(func(_ context.Context, d *cardvault.Delivery) (int, error) {
					if test.during {
						<-time.After(time.Second)
						test.change(l, hook)
					}
					post.set(nil)
					return 429, nil
				})
				id := l.imports(visa)
				l.run(func() {
					l.pass(2 * time.Second)
					other := l.imports(visa)
					patch(l, id, "a")
					l.pass(2 * time.Second)
					if !test.during {
						if n := len(post.tried(url)); n != 1 {
							t.Errorf("%d attempts during the pause", n-1)
						}
						test.change(l, hook)
						l.pass(2 * time.Second)
					}
					post.has(test.to, id, test.want...)
					if test.want != nil {
						post.has(test.to, other, createdEvent)
					}
				})
			})
		})
	}
}

// TestWebhookAnswers: answers that mean success, and answers that mean failure.
func TestWebhookAnswers(t *testing.T) {
	for code, want := range map[int]cardvault.DeliveryStatus{
		200: delivered, 202: delivered, 204: delivered, 299: delivered,
		100: underWay, 199: underWay, 300: underWay, 302: underWay, 400: underWay, 401: underWay, 404: underWay, 429: underWay, 500: underWay,
		410: lost, 0: underWay, 99: underWay, 1000: underWay, -1: underWay,
	} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				post.says(code)
				l.imports(visa)
				l.drain()
				d := l.deliveries(hook)
				if code < 100 || code > 999 {
					code = 0
				}
				if len(d) != 1 || d[0].Status != want || d[0].LastStatusCode != code {
					t.Errorf("%+v", d)
				}
			})
		})
	}
	t.Run("panic", func(t *testing.T) {
		inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
			post.set(func(context.Context, *cardvault.Delivery) (int, error) { panic("4242424242424242") })
			l.imports(visa)
			l.drain()
			l.statuses(hook, underWay)
			vaulttest.AssertNoLeak(t, []string{"4242424242424242"}, l.log.text())
			if !strings.Contains(l.log.text(), "panicked") {
				t.Error("a panic is not logged")
			}
		})
	})
	t.Run("error", func(t *testing.T) {
		inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
			post.set(func(context.Context, *cardvault.Delivery) (int, error) {
				return 0, errors.New("webhook: 4242424242424242 refused")
			})
			l.imports(visa)
			l.drain()
			l.statuses(hook, underWay)
			vaulttest.AssertNoLeak(t, []string{"4242424242424242"}, l.log.text())
		})
	})
}

// TestDeliveriesOfADeletion: the deletion event comes last and at once. Events not begun by
// then are not sent.
func TestDeliveriesOfADeletion(t *testing.T) {
	remove := map[string]func(*lab, uuid.UUID){
		deletedEvent: func(l *lab, id uuid.UUID) { l.must(l.Vault.Delete(l.Context(), id)) },
		expiredEvent: func(l *lab, id uuid.UUID) { l.pass(time.Until(l.get(id).ExpiresAt)) },
	}
	const tokenized = "token.created tokenized"
	for what, remove := range remove {
		t.Run(what+", while one is sent", func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				post.set(func(context.Context, *cardvault.Delivery) (int, error) {
					<-time.After(9 * time.Second)
					return 200, nil
				})
				l.run(func() {
					id := dying(l, 5)
					patch(l, id, "a")
					l.pass(2 * time.Second)
					remove(l, id)
					l.pass(time.Minute)
					post.has(url, id, tokenized, what)
				})
				l.statuses(hook, delivered, delivered)
			})
		})
		t.Run(what+", while one waits for a retry", func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				post.says(500)
				l.run(func() {
					id := dying(l, 60)
					patch(l, id, "a")
					patch(l, id, "b")
					l.pass(30 * time.Second) // the next attempt is minutes away
					post.set(nil)
					remove(l, id)
					l.pass(time.Second)
					post.has(url, id, what)
					l.statuses(hook, delivered)
					l.pass(24 * time.Hour)
					post.has(url, id, what)
				})
			})
		})
		t.Run(what+", while unordered ones are left", func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				post.says(500)
				l.run(func() {
					id := dying(l, 7200)
					patch(l, id, "a")
					l.pass(time.Hour)
					if d := l.deliveries(hook); d[0].Attempts < 3 || d[1].Attempts < 3 {
						t.Fatalf("%+v, %+v", d[0], d[1])
					}
					post.set(nil)
					remove(l, id)
					l.pass(time.Second)
					post.has(url, id, what)
					l.pass(24 * time.Hour)
					post.has(url, id, what)
					l.statuses(hook, delivered)
				})
			})
		})
	}
	t.Run("before anything is sent", func(t *testing.T) {
		inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
			id := l.imports(visa)
			patch(l, id, "a")
			l.must(l.Vault.Delete(l.Context(), id))
			l.drain()
			post.has(url, id, deletedEvent)
			l.statuses(hook, delivered)
		})
	})
}

// TestDeliveriesOfSeveralProcesses: of several processes on one store, only one sends each
// event, however long the webhook takes. The order is kept.
func TestDeliveriesOfSeveralProcesses(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		post.set(func(context.Context, *cardvault.Delivery) (int, error) {
			<-time.After(14 * time.Second)
			return 200, nil
		})
		for range 30 {
			id := l.imports(visa)
			patch(l, id, "a")
			patch(l, id, "b")
		}
		ctx, stop := context.WithCancel(l.Context())
		var running sync.WaitGroup
		for range 3 {
			v := l.open()
			running.Go(func() { l.try(v.Run(ctx)) })
		}
		l.pass(15 * time.Minute)
		stop()
		running.Wait()
		if n, again := post.inOrder(url); n != 90 || again != 0 {
			t.Errorf("%d events have arrived, want 90; %d of them again", n, again)
		}
		if post.most != 8 {
			t.Errorf("%d simultaneous attempts, want 8", post.most)
		}
	})
}

// TestNoMoreSeals: records that cannot be sealed stay unchanged until sealing works again.
func TestNoMoreSeals(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		var ids []uuid.UUID
		post.says(500)
		for range 100 {
			ids = append(ids, l.imports(visa))
		}
		l.drain()
		post.set(func(context.Context, *cardvault.Delivery) (int, error) { return 429, nil })
		post.after = time.Hour // gives the queue a due time
		ids = append(ids, l.imports(visa))
		l.drain()
		post.set(nil)
		post.after = 0
		l.pass(30 * time.Second)
		l.store.set(store.ErrUnavailable, false)
		l.ExhaustSeals()
		l.store.set(nil, false)
		if err := l.Drain(l.Context()); err == nil {
			t.Error("Drain succeeds without a seal")
		}
		l.run(func() { l.pass(10 * time.Hour) })
		for _, id := range ids {
			post.has(url, id, createdEvent)
		}
	})
}

// A slow store delays the views that late selects.
type slow struct {
	store.Store
	late func(list *store.Query) time.Duration // list is the query listed, or nil
}

func (s *slow) View(ctx context.Context, fn func(store.ReadTx) error) error {
	tx := &slowTx{}
	err := s.Store.View(ctx, func(of store.ReadTx) error {
		tx.ReadTx = of
		return fn(tx)
	})
	if d := s.late(tx.list); d > 0 {
		<-time.After(d)
	}
	return err
}

type slowTx struct {
	store.ReadTx
	list *store.Query
}

func (tx *slowTx) List(q *store.Query) (*store.List, error) {
	tx.list = q
	return tx.ReadTx.List(q)
}

// TestStoreStallsBeforeAnAttempt: an attempt that could only begin after the lease does not
// begin. Another process has sent everything by then.
func TestStoreStallsBeforeAnAttempt(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		var mu sync.Mutex
		var until time.Time
		stall := func(d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			until = time.Now().Add(d)
		}
		a, b := l.on(&slow{l.store, func(*store.Query) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return time.Until(until)
		}}), l.open()
		var begun sync.Once
		post.set(func(context.Context, *cardvault.Delivery) (int, error) {
			begun.Do(func() { stall(80 * time.Second) })
			<-time.After(50 * time.Millisecond)
			return 200, nil
		})
		l.crowd(20, visa)
		ctx, stop := context.WithCancel(l.Context())
		var running sync.WaitGroup
		running.Go(func() { l.try(a.Run(ctx)) })
		l.pass(30 * time.Second)
		running.Go(func() { l.try(b.Run(ctx)) })
		l.pass(15 * time.Minute)
		stop()
		running.Wait()
		if n, again := post.inOrder(url); n != 20 || again > 8 {
			t.Errorf("%d events have arrived, %d of them again, want 20", n, again)
		}
		sent := post.tried(url)
		for _, s := range sent {
			if s.at.Sub(sent[0].at) > 75*time.Second {
				t.Errorf("an attempt begins %v after the first, when the lease had ended", s.at.Sub(sent[0].at))
			}
		}
	})
}

// TestTurnEndsWithItsLease: a turn that cannot be renewed begins no attempt that might end
// after its lease.
func TestTurnEndsWithItsLease(t *testing.T) {
	const events = 100
	const last = 67500*time.Millisecond - 15*time.Second // the lease, minus the longest attempt
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		id := l.imports(visa)
		for range events - 1 {
			patch(l, id, "a")
		}
		post.set(func(context.Context, *cardvault.Delivery) (int, error) {
			<-time.After(time.Second)
			return 200, nil
		})
		var lists atomic.Int64
		v := l.on(&slow{l.store, func(list *store.Query) time.Duration {
			if list == nil || list.Kind != kindDelivery || list.Limit != 128 || lists.Add(1) != 2 {
				return 0
			}
			return 3 * time.Minute // keeps the turn from being renewed
		}})
		ctx, stop := context.WithCancel(l.Context())
		var running sync.WaitGroup
		began := time.Now()
		running.Go(func() { l.try(v.Run(ctx)) })
		l.pass(10 * time.Minute)
		stop()
		running.Wait()
		early := 0
		for _, s := range post.tried(url) {
			switch at := s.at.Sub(began); {
			case at <= last:
				early++
			case at < last+15*time.Second:
				t.Errorf("an attempt begins after %v, and might end after the lease", at)
			}
		}
		if early < 50 {
			t.Errorf("%d attempts within the lease", early)
		}
		if n, again := post.inOrder(url); n != events || again != 0 {
			t.Errorf("%d events have arrived, %d of them again, want %d", n, again, events)
		}
	})
}

// TestTurnThatCannotBegin: a single failure of the store at the start of a turn costs
// seconds, not the length of a lease.
func TestTurnThatCannotBegin(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		id := l.imports(visa)
		v := l.on(&failsOnce{Store: l.store, kind: kindWebhook})
		ctx, stop := context.WithCancel(l.Context())
		var running sync.WaitGroup
		running.Go(func() { l.try(v.Run(ctx)) })
		l.pass(10 * time.Second)
		post.has(url, id, createdEvent)
		stop()
		running.Wait()
	})
}

// A failsOnce store fails the first Get of a kind.
type failsOnce struct {
	store.Store
	kind store.Kind
	done atomic.Bool
}

func (s *failsOnce) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(&failsOnceTx{tx, s}) })
}

type failsOnceTx struct {
	store.ReadTx
	of *failsOnce
}

func (tx *failsOnceTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	if kind == tx.of.kind && !tx.of.done.Swap(true) {
		return nil, store.ErrUnavailable
	}
	return tx.ReadTx.Get(kind, id)
}

// A late store calls then after its n-th View.
type late struct {
	store.Store
	n    atomic.Int64
	then func()
}

func lateAfter(s store.Store, n int, then func()) *late {
	l := &late{Store: s, then: then}
	l.n.Store(int64(n))
	return l
}

func (s *late) View(ctx context.Context, fn func(store.ReadTx) error) error {
	err := s.Store.View(ctx, fn)
	if s.n.Add(-1) == 0 {
		s.then()
	}
	return err
}

// TestLastEventIsTheLast: the last event shows the token's final state. This holds whatever
// happens to the token while another change is prepared, in a process whose clock is behind.
func TestLastEventIsTheLast(t *testing.T) {
	states := func(t *testing.T, post *post, id uuid.UUID, want ...string) {
		t.Helper()
		var got []string
		var last uint64
		for _, s := range post.took(url) {
			if s.Event.TokenID != id {
				continue
			}
			if s.Event.Sequence <= last {
				t.Errorf("%s has sequence %d after %d", s, s.Event.Sequence, last)
			}
			last = s.Event.Sequence
			key := "deleted"
			if s.Event.Token != nil {
				key = s.Event.Token.BusinessKey
			}
			got = append(got, key)
		}
		if !slices.Equal(got, want) {
			t.Errorf("delivered states %q, want %q", got, want)
		}
	}
	refresh := func(l *lab, by, then *cardvault.Vault, id uuid.UUID) {
		session, err := by.RefreshSession(l.Context(), id, nil)
		l.must(err)
		_, err = then.RefreshSecurityCode(l.Context(), session.ID, card.NewSecurityCode([]byte("123")))
		l.must(err)
	}
	t.Run("two processes", func(t *testing.T) {
		inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
			other := l.open() // a vault with an earlier next row key
			id := l.imports(visa)
			patch(l, id, "a")
			patch(l, id, "b")
			key := "c"
			_, err := other.Update(l.Context(), id, cardvault.TokenUpdate{BusinessKey: &key})
			l.must(err)
			refresh(l, other, other, id)
			l.must(l.open().Delete(l.Context(), id))
			l.drain()
			states(t, post, id, "deleted")
			id = l.imports(visa)
			l.drain()
			_, err = other.Update(l.Context(), id, cardvault.TokenUpdate{BusinessKey: &key})
			l.must(err)
			l.drain()
			refresh(l, l.Vault, l.open(), id)
			l.drain()
			l.must(l.open().Delete(l.Context(), id))
			l.drain()
			states(t, post, id, "", "c", "c", "deleted")
		})
	})
	for n := range 3 {
		t.Run(fmt.Sprintf("a security code, after read %d", n+1), func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				id := l.imports(visa)
				l.drain()
				session, err := l.RefreshSession(l.Context(), id, nil)
				l.must(err)
				l.store.rests(lateAfter(l.store.on(), n+1, func() { patch(l, id, "new") }))
				_, err = l.RefreshSecurityCode(l.Context(), session.ID, card.NewSecurityCode([]byte("123")))
				l.must(err)
				l.drain()
				patch(l, id, "end")
				l.drain()
				states(t, post, id, "", "new", "new", "end")
			})
		})
	}
	for n := range 2 {
		t.Run(fmt.Sprintf("a deletion, after read %d", n+1), func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				id := l.imports(visa)
				l.drain()
				l.store.rests(lateAfter(l.store.on(), n+1, func() {
					l.store.rests(l.store.on().(*late).Store)
					patch(l, id, "new")
					l.drain()
				}))
				l.must(l.Vault.Delete(l.Context(), id))
				l.drain()
				states(t, post, id, "", "new", "deleted")
			})
		})
	}
}

// TestStatesTold: every event shows its token as it was then, even when delivered late or
// again. States that only deliveries need are deleted with the last of them, or with the
// token.
func TestStatesTold(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		l.keepBooks()
		id, other := l.imports(visa), l.imports(visa)
		patch(l, id, "a")
		patch(l, other, "theirs")
		patch(l, id, "b")
		disable := func(yes bool) {
			_, err := l.UpdateWebhook(l.Context(), hook.ID, cardvault.WebhookUpdate{Disabled: &yes})
			l.must(err)
		}
		disable(true)
		patch(l, id, "unheard")
		disable(false)
		patch(l, id, "c")
		l.drain()
		events := map[string]uuid.UUID{}
		for _, s := range post.took(url) {
			if s.Event.TokenID == id {
				events[s.Event.Token.BusinessKey] = s.Event.ID
			}
		}
		redelivered := func(when string) {
			t.Helper()
			for key, event := range events {
				post.forget()
				l.must2(l.Redeliver(l.Context(), event, nil))
				l.drain()
				if got := post.took(url); len(got) != 1 || got[0].Event.Token.BusinessKey != key {
					t.Errorf("%s, %q is delivered as %v", when, key, got)
				}
			}
		}
		kept := func(when string, want int) {
			t.Helper()
			if n := len(l.stored(kindPast)); n != want {
				t.Errorf("%d states are kept %s, want %d", n, when, want)
			}
		}
		if len(events) != 4 {
			t.Errorf("delivered events %v", events)
		}
		redelivered("at once")
		kept("at once", 4)
		const day = 24 * time.Hour
		l.run(func() { l.pass(6 * day) })
		redelivered("in time")
		l.run(func() { l.pass(6 * day) })
		redelivered("after a second week has begun")
		kept("after a second week has begun", 3) // the other token's events were not redelivered
		l.must(l.Vault.Delete(l.Context(), id))
		kept("when the token is deleted", 0)

		patch(l, other, "again")
		patch(l, other, "once more")
		l.drain()
		kept("for the other token", 1) // its first state has left the log long ago
		l.run(func() { l.pass(15 * day) })
		kept("in the end", 0)
		patch(l, other, "end")
		l.drain()
		if got := post.took(url); got[len(got)-1].Event.Token.BusinessKey != "end" {
			t.Errorf("the last event is %v", got[len(got)-1])
		}
	})
}

// TestStateOfATokenThatChangesUnheard: a redelivered event shows its original state, even if
// a later change was not delivered.
func TestStateOfATokenThatChangesUnheard(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		id := l.imports(visa)
		patch(l, id, "a")
		l.drain()
		event := post.took(url)[1].Event.ID
		for _, disabled := range []bool{true, false} {
			_, err := l.UpdateWebhook(l.Context(), hook.ID, cardvault.WebhookUpdate{Disabled: &disabled})
			l.must(err)
			if disabled {
				patch(l, id, "unheard")
			}
		}
		post.forget()
		l.must2(l.Redeliver(l.Context(), event, nil))
		l.drain()
		if got := post.took(url); len(got) != 1 || got[0].Event.Token.BusinessKey != "a" {
			t.Errorf("delivered as %v", got)
		}
	})
}

// TestStatesNobodyTells: a state that no delivery needs is not kept. A state that cannot be
// checked does not keep others from being deleted.
func TestStatesNobodyTells(t *testing.T) {
	kept := func(l *lab, when string, want int) {
		l.Helper()
		if n := len(l.stored(kindPast)); n != want {
			l.Errorf("%d states are kept %s, want %d", n, when, want)
		}
	}
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		l.keepBooks()
		id, other := l.imports(visa), l.imports(visa)
		l.drain()
		weeks := func(n int) {
			for range n {
				l.pass(7 * 24 * time.Hour)
				l.drain()
			}
		}
		weeks(2)
		patch(l, id, "a")
		l.drain()
		kept(l, "for events outside the log", 0)
		patch(l, other, "b")
		patch(l, other, "c")
		state := *l.stored(kindPast)[1]
		state.ID[15] ^= 1
		state.Account[3] ^= 1
		l.must(l.store.Update(l.Context(), func(tx store.Tx) error { tx.Put(&state); return nil }))
		for range 3 {
			l.pass(7 * 24 * time.Hour)
			if err := l.Drain(l.Context()); err != nil && !errors.Is(err, cardvault.ErrDamaged) {
				l.Fatal(err)
			}
		}
		kept(l, "besides one of an unknown account", 1)
		l.must(l.store.Update(l.Context(), func(tx store.Tx) error { tx.Delete(kindPast, state.ID); return nil }))
		l.must(l.DeleteWebhook(l.Context(), hook.ID))
		patch(l, id, "d")
		kept(l, "when there is no webhook", 0)
	})
}

// TestStateIsThereAlready: restoring an old token record may leave a state of it.
func TestStateIsThereAlready(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		l.keepBooks()
		id := l.imports(visa)
		d := l.stored(kindDelivery)[0]
		queue := d.Parent
		queue[15] ^= 1 // now the id of the webhook
		l.must(l.store.Update(l.Context(), func(tx store.Tx) error {
			tx.Put(&store.Record{Kind: kindPast, ID: rowkey.Beside(d.ID, queue), Account: d.Account, Version: 1})
			return nil
		}))
		patch(l, id, "a")
		patch(l, id, "b")
		l.drain()
		if got := post.took(url); len(got) != 2 || got[1].Event.Token.BusinessKey != "b" {
			t.Errorf("delivered as %v", got)
		}
	})
}

// TestRunEndsWhileSending: Run waits for running attempts, and starts no new ones. The next
// Run continues at once.
func TestRunEndsWhileSending(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		post.set(func(context.Context, *cardvault.Delivery) (int, error) {
			<-time.After(10 * time.Second)
			return 200, nil
		})
		id := l.imports(visa)
		patch(l, id, "a")
		l.crowd(20, visa)
		began := time.Now()
		l.run(func() { l.pass(time.Second) })
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("Run ended after %v", took)
		}
		if n := len(post.took(url)); n != 8 {
			t.Errorf("%d events were sent, want 8", n)
		}
		post.set(nil)
		l.run(func() { l.pass(time.Second) })
		if n, again := post.inOrder(url); n != 22 || again != 0 {
			t.Errorf("%d events have arrived, want 22; %d of them again", n, again)
		}
	})
}

// TestSinkAndWebhooks: sink and webhooks receive every event, and neither waits for the
// other.
func TestSinkAndWebhooks(t *testing.T) {
	for what, refuse := range map[string]func(context.Context) error{
		"fails": func(context.Context) error { return errNotNow },
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(what, func(t *testing.T) {
			sink := &listener{t: t}
			inPost(t, cardvault.Options{Events: sink}, func(l *lab, post *post, hook *cardvault.Webhook) {
				down := true
				sink.set(func(ctx context.Context, _ *cardvault.Event) error {
					if down {
						return refuse(ctx)
					}
					return nil
				})
				ids := l.crowd(300, visa)
				patch(l, ids[0], "a")
				l.run(func() {
					l.pass(time.Second)
					if n, _ := post.inOrder(url); n != 301 {
						t.Errorf("%d events have arrived at the webhook, want 301", n)
					}
					down = false
					post.says(500)
					patch(l, ids[0], "b")
					l.pass(20 * time.Minute)
					sink.took(ids[0], createdEvent, patchedEvent, patchedEvent)
				})
				passed := map[uuid.UUID]*cardvault.Event{}
				for _, p := range sink.passed() {
					passed[p.ID] = p.Event
				}
				for _, s := range post.tried(url) {
					if e := passed[s.ID]; e == nil || e.Sequence != s.Event.Sequence || e.TokenID != s.Event.TokenID || !e.CreatedAt.Equal(s.CreatedAt) {
						t.Errorf("the sink was passed %+v, the webhook %+v", e, s.Event)
					}
				}
			})
		})
	}
}

// TestRedeliver: the deliveries of a webhook that can be sent once more.
func TestRedeliver(t *testing.T) {
	t.Run("delivered events, in any order", func(t *testing.T) {
		inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
			id := l.imports(visa)
			patch(l, id, "a")
			l.drain()
			first := post.took(url)[0].ID
			l.must2(l.Redeliver(l.Context(), first, nil))
			l.statuses(hook, underWay, delivered)
			l.must2(l.Redeliver(l.Context(), first, nil)) // has no effect, since it is on its way
			l.drain()
			post.has(url, id, createdEvent, patchedEvent, createdEvent)
			l.statuses(hook, delivered, delivered)
		})
	})
	t.Run("once under a key", func(t *testing.T) {
		inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
			id := l.imports(visa)
			l.drain()
			event := post.took(url)[0].ID
			for i := range 3 {
				done, err := l.Redeliver(l.Context(), event, &cardvault.CallOptions{IdempotencyKey: "again"})
				if l.must(err); done.Replayed != (i > 0) {
					t.Errorf("call %d: replayed is %t", i, done.Replayed)
				}
				l.drain()
			}
			post.has(url, id, createdEvent, createdEvent)
			l.must(l.Vault.Delete(l.Context(), id))
			_, err := l.Redeliver(l.Context(), event, &cardvault.CallOptions{IdempotencyKey: "again"})
			if !errors.Is(err, cardvault.ErrNotFound) {
				t.Errorf("Redeliver = %v after the token was deleted", err)
			}
		})
	})
	t.Run("a deletion, once under a key", func(t *testing.T) {
		inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
			id := l.imports(visa)
			l.drain()
			l.must(l.Vault.Delete(l.Context(), id))
			l.drain()
			event := post.took(url)[1].ID
			for i := range 3 {
				done, err := l.Redeliver(l.Context(), event, &cardvault.CallOptions{IdempotencyKey: "again"})
				if l.must(err); done.Replayed != (i > 0) {
					t.Errorf("call %d: replayed is %t", i, done.Replayed)
				}
				l.drain()
			}
			post.has(url, id, createdEvent, deletedEvent, deletedEvent)
		})
	})
	t.Run("an event on its way", func(t *testing.T) {
		inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
			post.set(func(_ context.Context, d *cardvault.Delivery) (int, error) {
				l.try(errorOf(l.Redeliver(l.Context(), d.ID, nil)))
				return 200, nil
			})
			id := l.imports(visa)
			l.drain()
			l.drain()
			post.has(url, id, createdEvent)
		})
	})
	t.Run("an event that holds back others", func(t *testing.T) {
		inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
			post.says(500)
			id := l.imports(visa)
			patch(l, id, "a")
			patch(l, id, "b")
			l.run(func() {
				l.pass(time.Second)
				d := l.deliveries(hook)
				l.must2(l.Redeliver(l.Context(), d[1].EventID, nil)) // waits for the first event
				post.set(nil)
				l.must2(l.Redeliver(l.Context(), d[0].EventID, nil))
				l.pass(100 * time.Millisecond)
				post.has(url, id, createdEvent, patchedEvent, patchedEvent)
				l.pass(24 * time.Hour)
				post.has(url, id, createdEvent, patchedEvent, patchedEvent)
			})
		})
	})
	t.Run("only to webhooks for the event", func(t *testing.T) {
		inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
			const late, other, off = "https://late.example/", "https://other.example/", "https://off.example/"
			id := l.imports(visa)
			l.drain()
			l.hook(late)
			l.hook(other, receive.TokenUpdated)
			disabled := true
			_, err := l.UpdateWebhook(l.Context(), l.hook(off).ID, cardvault.WebhookUpdate{Disabled: &disabled})
			l.must(err)
			l.must2(l.Redeliver(l.Context(), post.took(url)[0].ID, nil))
			l.drain()
			post.has(url, id, createdEvent, createdEvent)
			post.has(late, id, createdEvent)
			post.has(other, id)
			post.has(off, id)
		})
	})
	t.Run("to no webhook", func(t *testing.T) {
		inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
			post.says(410)
			id := l.imports(visa)
			l.drain()
			post.set(nil)
			event := l.deliveries(hook)[0].EventID
			l.hook("https://other.example/", receive.TokenDeleted)
			again := func() error {
				return errorOf(l.Redeliver(l.Context(), event, &cardvault.CallOptions{IdempotencyKey: "again"}))
			}
			for range 2 {
				if err := again(); !errors.Is(err, cardvault.ErrNoWebhook) {
					t.Errorf("Redeliver = %v", err)
				}
			}
			// Another process enables the webhook, which this process does not know yet.
			_, err := l.open().UpdateWebhook(l.Context(), hook.ID, cardvault.WebhookUpdate{Disabled: new(false)})
			l.must(err)
			l.must(again()) // possible, since no answer is stored yet
			l.drain()
			post.has(url, id, createdEvent)
		})
	})
	t.Run("unknown events", func(t *testing.T) {
		inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
			id := l.imports(visa)
			l.drain()
			event := post.took(url)[0].ID
			a, err := l.CreateAccount(l.Context(), "", nil)
			l.must(err)
			gone := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, cardvault.ErrNotFound) {
					t.Errorf("Redeliver of %s = %v", what, err)
				}
			}
			gone("an event of another account", errorOf(l.In(a.ID).Redeliver(l.Context(), event, nil)))
			gone("no event", errorOf(l.Redeliver(l.Context(), uuid.New(), nil)))
			gone("the zero id", errorOf(l.Redeliver(l.Context(), uuid.Nil, nil)))
			gone("a token", errorOf(l.Redeliver(l.Context(), id, nil)))
			l.must(l.Vault.Delete(l.Context(), id))
			gone("an event of a deleted token", errorOf(l.Redeliver(l.Context(), event, nil)))
			l.drain()
			last := post.took(url)[1].ID
			l.must2(l.Redeliver(l.Context(), last, nil))
			l.pass(8 * 24 * time.Hour)
			l.drain() // without a running vault until now, it is kept until it has arrived
			l.pass(8 * 24 * time.Hour)
			l.drain()
			gone("an event of last week", errorOf(l.Redeliver(l.Context(), last, nil)))
			post.has(url, id, createdEvent, deletedEvent, deletedEvent)
		})
	})
}

// TestRegisteredMeanwhile: changes stored after the registration of a webhook are delivered,
// even if they began before.
func TestRegisteredMeanwhile(t *testing.T) {
	var session, refresh cardvault.SessionID
	for what, change := range map[string]func(l *lab, id uuid.UUID){
		createdEvent: func(l *lab, _ uuid.UUID) { l.imports(visa) },
		"token.created tokenized": func(l *lab, _ uuid.UUID) {
			_, err := l.Tokenize(l.Context(), session, visa)
			l.must(err)
		},
		patchedEvent: func(l *lab, id uuid.UUID) { patch(l, id, "a") },
		"token.updated security_code_refreshed": func(l *lab, id uuid.UUID) {
			_, err := l.RefreshSecurityCode(l.Context(), refresh, card.NewSecurityCode([]byte("123")))
			l.must(err)
		},
		"token.updated network_token_status_changed": func(l *lab, id uuid.UUID) {
			_, err := l.Provision(l.Context(), id, nil)
			l.must(err)
		},
		deletedEvent: func(l *lab, id uuid.UUID) { l.must(l.Vault.Delete(l.Context(), id)) },
		expiredEvent: func(l *lab, id uuid.UUID) {
			l.must(l.Drain(l.Context()))
		},
	} {
		t.Run(what, func(t *testing.T) {
			inPost(t, sandboxPost, func(l *lab, post *post, hook *cardvault.Webhook) {
				l.must(l.DeleteWebhook(l.Context(), hook.ID))
				l.drain()
				id := l.imports(visa)
				if what == expiredEvent {
					id = dying(l, 5)
					l.pass(10 * time.Second)
				}
				made, err := l.CreateSession(l.Context(), nil)
				l.must(err)
				session = made.ID
				if what != expiredEvent {
					made, err = l.RefreshSession(l.Context(), id, nil)
					l.must(err)
					refresh = made.ID
				}
				l.net.ineligible = nil
				once := true
				l.store.hook(func() error { // the change has read the webhooks, and stored nothing yet
					if once {
						once = false
						l.hook(url)
					}
					return nil
				})
				change(l, id)
				l.store.hook(nil)
				l.drain()
				if once {
					t.Fatal("nothing was stored")
				}
				if sent := post.took(url); len(sent) == 0 || sent[0].String() != what {
					t.Errorf("sent %v, want %s", sent, what)
				}
			})
		})
	}
}

// TestNobodyListens: no delivery is stored for an event without a webhook.
func TestNobodyListens(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		l.keepBooksWithout(hook)
		off := l.hook("https://off.example/")
		disabled := true
		_, err := l.UpdateWebhook(l.Context(), off.ID, cardvault.WebhookUpdate{Disabled: &disabled})
		l.must(err)
		l.hook(url, receive.TokenDeleted)
		a, err := l.CreateAccount(l.Context(), "", nil)
		l.must(err)
		_, err = l.In(a.ID).CreateWebhook(l.Context(), "https://other.example/", nil)
		l.must(err)
		id := l.imports(visa)
		patch(l, id, "a")
		l.drain()
		if n := len(l.stored(kindDelivery)); n != 0 {
			t.Errorf("%d deliveries are stored", n)
		}
		l.must(l.Vault.Delete(l.Context(), id))
		l.drain()
		post.has(url, id, deletedEvent)
		if n := len(l.stored(kindDelivery)); n != 1 {
			t.Errorf("%d deliveries are stored, want 1", n)
		}
	})
}

// TestDamagedDeliveries: edited records are not sent, and do not affect other tokens and
// webhooks. Once they are restored, nothing is missing.
func TestDamagedDeliveries(t *testing.T) {
	const other, cards = "https://other.example/", 150 // more than are read at once
	for _, test := range []struct {
		what   string
		kind   store.Kind
		class  int // -1 for any
		lacks  int // events missing at either webhook during the damage
		lacks2 int
	}{
		{"a delivery", kindDelivery, 1, 1, 0},
		{"a queue", kindQueue, -1, 0, 0},
		{"a webhook", kindWebhook, -1, cards, 0},
	} {
		t.Run(test.what, func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				l.hook(other)
				books := l.keepBooks()
				var victim uuid.UUID // the first match
				books.damage(func(r *store.Record) bool {
					if r.Kind != test.kind || test.class >= 0 && int(r.Class) != test.class {
						return false
					}
					if victim == uuid.Nil {
						victim = r.ID
					}
					return r.ID == victim
				})
				l.run(func() {
					for range 3 {
						l.crowd(cards/3, visa)
						l.pass(5 * time.Second)
					}
					a, _ := post.inOrder(url)
					b, _ := post.inOrder(other)
					if lacks := cards - min(a, b); lacks != test.lacks {
						t.Errorf("a webhook lacks %d events, want %d", lacks, test.lacks)
					}
					if lacks := cards - max(a, b); lacks != test.lacks2 {
						t.Errorf("the other lacks %d events, want %d", lacks, test.lacks2)
					}
					if victim == uuid.Nil || test.lacks > 0 && !strings.Contains(l.log.text(), "level=ERROR") {
						t.Error("nothing was damaged, or the log does not mention it")
					}
					books.damage(nil)
					l.pass(5 * time.Minute)
					l.crowd(1, visa)
					l.pass(time.Second)
				})
				for _, url := range []string{url, other} {
					if n, again := post.inOrder(url); n != cards+1 || again != 0 {
						t.Errorf("%d events have arrived after the repair, %d of them again, want %d", n, again, cards+1)
					}
				}
			})
		})
	}
}

// TestDamagedWebhookTakesSomeEvents: once its record is restored, the webhook receives only
// the events it asked for.
func TestDamagedWebhookTakesSomeEvents(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		const some = "https://some.example/"
		l.must(l.DeleteWebhook(l.Context(), hook.ID))
		w := l.hook(some, receive.TokenDeleted)
		books := l.keepBooks()
		books.damage(func(r *store.Record) bool { return r.Kind == kindWebhook })
		id := l.imports(visa)
		l.drain()
		books.damage(nil)
		l.pass(5 * time.Minute)
		l.drain()
		post.has(some, id)
		l.statuses(w, lost)
		l.must(l.Vault.Delete(l.Context(), id))
		l.drain()
		post.has(some, id, deletedEvent)
	})
}

// TestDamagedDeliveriesAreSetAside: an unreadable delivery holds back no other event of its
// token, and the list's error names it. It is repaired when its event is delivered once
// more. An unreadable state is usable again once it is restored.
func TestDamagedDeliveriesAreSetAside(t *testing.T) {
	const other = "https://other.example/"
	secret := func(r *store.Record) []byte { return r.Secret }
	for _, test := range []struct {
		what   string
		victim int                        // 0 for a failed delivery, 1 for one waiting behind it
		part   func(*store.Record) []byte // nil for the shown part
		more   bool                       // whether the token changes again
		want   []string                   // business keys delivered during the damage
	}{
		{"a failed one", 0, nil, false, []string{"a", "b"}},
		{"a failed one, and another change", 0, nil, true, []string{"a", "b", "c"}},
		{"the state of a failed one", 0, secret, false, []string{"a", "b"}},
		{"the state of a failed one, and another change", 0, secret, true, []string{"a", "b", "c"}},
		{"a waiting one", 1, nil, false, []string{"", "b"}},
		{"a waiting one, and another change", 1, nil, true, []string{"", "b", "c"}},
		{"the state of a waiting one", 1, secret, false, []string{"", "b"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				deliversTo := func(url string, want ...string) {
					t.Helper()
					var got []string
					for _, s := range post.took(url) {
						got = append(got, s.Event.Token.BusinessKey)
					}
					if !slices.Equal(got, want) {
						t.Errorf("delivered states %q, want %q", got, want)
					}
				}
				books := l.keepBooks()
				l.hook(other) // a receiver with undamaged events
				post.set(func(_ context.Context, d *cardvault.Delivery) (int, error) {
					if d.URL == url {
						return 500, nil
					}
					return 200, nil
				})
				id := l.imports(visa)
				patch(l, id, "a")
				patch(l, id, "b")
				l.drain()
				post.set(nil)
				of := l.deliveries(hook)[test.victim]
				event := of.EventID
				var left []*store.Record
				for _, r := range l.stored(kindDelivery) {
					if r.Class == 2 || r.Class == 3 {
						left = append(left, r)
					}
				}
				victim := left[test.victim]
				if test.part != nil {
					victim = l.stored(kindPast)[test.victim]
				}
				books.part = test.part
				books.damage(func(r *store.Record) bool {
					return r.ID == victim.ID && (test.part == nil || bytes.Equal(r.Secret, victim.Secret)) &&
						(test.part != nil || bytes.Equal(r.Shown, victim.Shown))
				})
				l.run(func() {
					if test.more {
						patch(l, id, "c")
						l.pass(100 * time.Millisecond)
						if test.victim == 0 && test.part == nil { // does not wait for the due time either
							deliversTo(url, test.want...)
						}
					}
					l.pass(time.Minute)
				})
				deliversTo(url, test.want...)
				if log := l.log.text(); strings.Count(log, "deliveries to a webhook cannot be read") == 0 && !strings.Contains(log, "damaged") {
					t.Errorf("the log does not mention it:\n%s", log)
				}
				if test.part == nil {
					page, err := l.ListDeliveries(l.Context(), hook.ID, nil)
					if page == nil || !slices.Equal(cardvault.Damaged(err), []cardvault.DamagedRecord{{Kind: "delivery", ID: of.ID}}) ||
						!strings.Contains(err.Error(), "event "+event.String()) || int(page.TotalItems) != len(page.Items)+1 {
						t.Errorf("ListDeliveries = %+v, %v", page, err)
					}
				} else {
					books.damage(nil)
				}
				l.must2(l.Redeliver(l.Context(), event, nil))
				l.drain()
				deliversTo(url, append(test.want, []string{"", "a"}[test.victim])...)
				for _, d := range l.deliveries(hook) {
					if d.Status != delivered || d.TokenID != id {
						t.Errorf("%+v", d)
					}
				}
			})
		})
	}
}

// TestQueueIsMissing: a missing queue is made again while its webhook exists.
func TestQueueIsMissing(t *testing.T) {
	for what, lose := range map[string]func(l *lab, lost func()){
		"before":    func(_ *lab, lost func()) { lost() },
		"meanwhile": func(l *lab, lost func()) { l.store.rests(lateAfter(l.store.on(), 3, lost)) },
	} {
		t.Run(what, func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, first *cardvault.Webhook) {
				l.keepBooksWithout(first)
				hook := l.hook(url)
				queue := l.stored(kindQueue)[0]
				lose(l, func() {
					l.must(l.store.Update(l.Context(), func(tx store.Tx) error {
						tx.Delete(kindQueue, queue.ID)
						return nil
					}))
				})
				id := l.imports(visa)
				patch(l, id, "a")
				l.drain()
				post.has(url, id, createdEvent, patchedEvent)
				l.statuses(hook, delivered, delivered)
			})
		})
	}
}

// A reckoner records the highest number of records listed by an Update.
type reckoner struct {
	store.Store
	most int
}

type reckoningTx struct {
	store.Tx
	s *reckoner
}

func (tx reckoningTx) List(q *store.Query) (*store.List, error) {
	tx.s.most = max(tx.s.most, q.Limit)
	return tx.Tx.List(q)
}

func (tx reckoningTx) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	tx.s.most = max(tx.s.most, limit)
	return tx.Tx.Lookup(kind, hash, limit)
}

func (s *reckoner) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(reckoningTx{tx, s}) })
}

// TestManyDamagedDeliveries: however many deliveries are damaged, no transaction goes
// through all of them. Other deliveries arrive.
func TestManyDamagedDeliveries(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		const n = 3000
		for range n {
			l.imports(visa)
		}
		for from := uuid.Nil; ; {
			var some []*store.Record
			l.must(l.store.on().Update(l.Context(), func(tx store.Tx) (err error) {
				some, err = tx.Scan(kindDelivery, from, 100)
				for _, r := range some {
					r.Version++
					r.Shown[len(r.Shown)-1] ^= 1
					tx.Put(r)
				}
				return err
			}))
			if len(some) == 0 {
				break
			}
			from = some[len(some)-1].ID
		}
		id := l.imports(visa)
		s := &reckoner{Store: l.store.on()}
		l.store.rests(s)
		l.try(l.Drain(l.Context()))
		if s.most > 1100 {
			t.Errorf("an Update listed up to %d records", s.most)
		}
		post.has(url, id, createdEvent)
	})
}

// TestQueueOfAnotherAccount: the row of a queue is edited to name another account. The queue
// is made again, and the webhook receives the next event.
func TestQueueOfAnotherAccount(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, _ *cardvault.Webhook) {
		l.keepBooks()
		l.imports(visa)
		l.drain()
		for _, r := range l.stored(kindQueue) {
			l.must(l.store.Update(l.Context(), func(tx store.Tx) error {
				changed, err := tx.Get(kindQueue, r.ID)
				if err != nil {
					return err
				}
				tx.Delete(kindQueue, r.ID)
				changed.Version, changed.Account = 1, uuid.UUID{3}
				tx.Put(changed)
				return nil
			}))
		}

		id, writes := l.imports(visa), 0
		l.store.hook(func() error {
			if writes++; writes > 100 {
				return store.ErrUnavailable
			}
			return nil
		})
		l.run(func() { l.pass(time.Hour) })
		post.has(url, id, createdEvent)
		if writes > 20 {
			l.Errorf("%d writes for one event", writes)
		}
	})
}
