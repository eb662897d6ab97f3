package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// The tests of the life cycle of network tokens run in bubbles of synctest, on a scripted
// network and a store that can fail.

// A scripted network does as the test says, and records its calls. Its zero value makes
// every card active.
type scripted struct {
	mu      sync.Mutex
	shared  bool // cards with one number share a network token
	tokens  map[string]*network.Token
	keys    map[string]string // ids by idempotency key
	cards   map[string]string // ids by number, if shared
	calls   []call
	codes   []string     // security codes received with provisionings
	contact func(string) // called with contact data received, if set
	made    int

	// The template for new network tokens. The zero State is active.
	like network.Token

	ineligible func(card.Scheme) error

	// The hooks before and after run before a call has an effect and after it. Their errors
	// are the answer. They may be nil, and may block.
	before, after func(ctx context.Context, c call) error

	images map[string][]byte // card art, image/png
}

// A call is one call of a network.
type call struct {
	method, key, id string
	scheme          card.Scheme
	at              time.Time
}

func (n *scripted) Info() network.Info { return network.Info{Name: "scripted", ArtFetcher: true} }

func (n *scripted) Eligible(r *network.EligibilityRequest) error {
	if r.Merchant == uuid.Nil {
		return errors.New("no merchant")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ineligible == nil {
		return nil
	}
	err := n.ineligible(r.Scheme)
	if err == errPanic {
		panic("4242424242424242")
	}
	return err
}

// errPanic makes a scripted network panic.
var errPanic = errors.New("panic")

// call remembers c and asks the hooks around do.
func (n *scripted) call(ctx context.Context, c call, do func() error) error {
	c.at = time.Now()
	n.mu.Lock()
	n.calls = append(n.calls, c)
	before, after := n.before, n.after
	n.mu.Unlock()
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("a call without a deadline")
	}
	if before != nil {
		if err := before(ctx, c); err != nil {
			return err
		}
	}
	n.mu.Lock()
	err := do()
	n.mu.Unlock()
	if err == nil && after != nil {
		err = after(ctx, c)
	}
	return err
}

func (n *scripted) Provision(ctx context.Context, r *network.ProvisionRequest) (got *network.Token, err error) {
	if n.contact != nil {
		r.Contact.Expose(func(object []byte) { n.contact(string(object)) })
	}
	err = n.call(ctx, call{method: "Provision", key: r.IdempotencyKey, scheme: r.Scheme}, func() error {
		var pan string
		r.PAN.Expose(func(d []byte) { pan = string(d) })
		r.SecurityCode.Expose(func(d []byte) { n.codes = append(n.codes, string(d)) })
		id := n.keys[r.IdempotencyKey]
		if id == "" && n.shared {
			id = n.cards[pan]
			if t := n.tokens[id]; t != nil && t.State == network.Deleted {
				id = ""
			}
		}
		if id == "" {
			if n.tokens == nil {
				n.tokens, n.keys, n.cards = map[string]*network.Token{}, map[string]string{}, map[string]string{}
			}
			n.made++
			id = fmt.Sprint("network-token-", n.made)
			t := n.like
			t.ID = id
			if t.State == 0 {
				t.State = network.Active
			}
			n.tokens[id], n.cards[pan] = &t, id
		}
		n.keys[r.IdempotencyKey] = id
		t := *n.tokens[id]
		got = &t
		return nil
	})
	if err != nil {
		return nil, err
	}
	return got, nil
}

func (n *scripted) Lookup(ctx context.Context, ref network.Ref) (got *network.Token, err error) {
	err = n.call(ctx, call{method: "Lookup", key: ref.IdempotencyKey, id: ref.ID}, func() error {
		id := ref.ID
		if id == "" {
			id = n.keys[ref.IdempotencyKey]
		}
		if n.tokens[id] == nil {
			return network.ErrUnknown
		}
		t := *n.tokens[id]
		got = &t
		return nil
	})
	if err != nil {
		return nil, err
	}
	return got, nil
}

func (n *scripted) Cryptogram(context.Context, *network.CryptogramRequest) (*network.Cryptogram, error) {
	return nil, errors.New("not supported by this network")
}

func (n *scripted) Delete(ctx context.Context, ref network.Ref) error {
	return n.call(ctx, call{method: "Delete", key: ref.IdempotencyKey, id: ref.ID}, func() error {
		if t := n.tokens[ref.ID]; t != nil {
			t.State = network.Deleted
		}
		return nil
	})
}

func (n *scripted) CardArt(ctx context.Context, r *network.ArtRequest) (got *network.Art, err error) {
	err = n.call(ctx, call{method: "CardArt", id: r.ID}, func() error {
		if n.images[r.ID] == nil {
			return errors.New("no such art")
		}
		got = &network.Art{MediaType: "image/png", Image: n.images[r.ID]}
		return nil
	})
	return got, err
}

// set changes a network token at the network, without a notice.
func (n *scripted) set(id string, f func(*network.Token)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n.tokens[id])
}

// script sets the hooks that run before and after calls.
func (n *scripted) script(before, after func(context.Context, call) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.before, n.after = before, after
}

// asked returns the calls of the given methods, or of all.
func (n *scripted) asked(methods ...string) []call {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(n.calls), func(c call) bool {
		return len(methods) > 0 && !slices.Contains(methods, c.method)
	})
}

// left returns the ids of the network tokens that are not deleted.
func (n *scripted) left() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(func(yield func(string) bool) {
		for id, t := range n.tokens {
			if t.State != network.Deleted && !yield(id) {
				return
			}
		}
	})
}

// refuse returns a hook that refuses every call of a method.
func refuse(method string, err error) func(context.Context, call) error {
	return func(_ context.Context, c call) error {
		if c.method == method {
			return err
		}
		return nil
	}
}

func schemeError(code string) error {
	return &network.Error{Source: network.SourceScheme, Code: network.Code(code)}
}

func configurationError(code string) error {
	return &network.Error{Source: network.SourceConfiguration, Code: network.Code(code)}
}

// A frail store fails its Updates when a test says so, with or without performing them.
type frail struct {
	mu   sync.Mutex
	base store.Store
	fail func() error // called for each Update
	done bool
	then func() // called after each Update performed, if set
}

// on returns the underlying store.
func (s *frail) on() store.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base
}

// rests replaces the underlying store.
func (s *frail) rests(on store.Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base = on
}

func (s *frail) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.on().View(ctx, fn)
}

func (s *frail) Close() error { return s.on().Close() }

func (s *frail) Update(ctx context.Context, fn func(store.Tx) error) error {
	s.mu.Lock()
	hook, done, then := s.fail, s.done, s.then
	s.mu.Unlock()
	var fail error
	if hook != nil {
		fail = hook()
	}
	if fail != nil && !done {
		return fail
	}
	if err := s.on().Update(ctx, fn); err != nil {
		return err
	}
	if then != nil {
		then()
	}
	return fail
}

func (s *frail) set(fail error, done bool) {
	s.hook(func() error { return fail })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = done
}

func (s *frail) hook(fail func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// A lab is a vault on a scripted network, in a bubble.
type lab struct {
	testing.TB
	net   *scripted
	store *frail
	opts  cardvault.Options
	log   lockedBuffer
	*cardvault.Vault
}

// inLab runs f in a bubble on a vault with options. If they are nil, the vault is a sandbox
// on a scripted network. In live mode network tokens are activated.
func inLab(t *testing.T, opts *cardvault.Options, f func(l *lab)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		l := &lab{TB: t, net: new(scripted), store: &frail{base: memstore.New()}}
		l.opts.Mode = cardvault.Sandbox
		if opts != nil {
			l.opts = *opts
		}
		if l.opts.Network == nil {
			l.opts.Network = l.net
		}
		l.opts.Logger = slog.New(slog.NewTextHandler(&l.log, nil))
		l.Vault = l.open()
		if l.opts.Mode == cardvault.Live {
			l.activate(true)
			l.drain()
			l.pass(2 * time.Minute) // the activation job ends
			l.drain()
		}
		f(l)
	})
}

var live = &cardvault.Options{Mode: cardvault.Live}

// open opens the vault as another process would.
func (l *lab) open() *cardvault.Vault {
	l.Helper()
	return l.on(l.store)
}

// on opens the vault on another store.
func (l *lab) on(s store.Store) *cardvault.Vault {
	l.Helper()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	l.must(err)
	v, err := cardvault.New(l.Context(), s, keys, &l.opts)
	l.must(err)
	l.Cleanup(func() { v.Close() })
	return v
}

// restart kills the process that has the vault open and starts another one. Changes that the
// old process has not stored are lost.
func (l *lab) restart() {
	l.Helper()
	l.Vault.Close()
	l.store.set(nil, false)
	l.Vault = l.open()
}

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// activate allows or forbids network tokens for the account.
func (l *lab) activate(on bool) {
	l.Helper()
	l.change(cardvault.AccountUpdate{NetworkTokensActive: &on})
}

// change changes the account.
func (l *lab) change(u cardvault.AccountUpdate) {
	l.Helper()
	_, err := l.UpdateAccount(l.Context(), u)
	l.must(err)
}

// must2 is like must, for a call that also returns a result.
func (l *lab) must2(_ any, err error) {
	l.Helper()
	l.must(err)
}

// errorOf returns the error of a call that also returns a result.
func errorOf(_ any, err error) error { return err }

// try is like must, for code in other goroutines.
func (l *lab) try(err error) {
	if err != nil {
		l.Error(err)
	}
}

func (l *lab) imports(c cardvault.Card) uuid.UUID {
	l.Helper()
	token, err := l.Import(l.Context(), c, nil)
	l.must(err)
	return token.ID
}

func (l *lab) get(id uuid.UUID) *cardvault.Token {
	l.Helper()
	token, err := l.Get(l.Context(), id)
	l.must(err)
	return token
}

func (l *lab) drain() {
	l.Helper()
	l.pass(100 * time.Millisecond) // an import within the current microsecond is due slightly later
	l.must(l.Drain(l.Context()))
}

// run runs the vault while f runs.
func (l *lab) run(f func()) {
	l.Helper()
	v := l.Vault
	ctx, stop := context.WithCancel(l.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, cardvault.ErrClosed) {
			l.Errorf("Run: %v", err)
		}
	}()
	synctest.Wait()
	f()
}

// pass lets time pass.
func (l *lab) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// is checks the state of a network token and the code of its reason, which is "" without a
// reason.
func (l *lab) is(id uuid.UUID, status network.Status, code string) *cardvault.Token {
	l.Helper()
	token := l.get(id)
	got := ""
	if r := token.NetworkTokenStatusReason; r != nil {
		got = string(r.Code)
		if r.Message == "" || r.OccurredAt.IsZero() || r.Source == 0 {
			l.Errorf("an incomplete reason: %+v", r)
		}
	}
	if token.NetworkTokenStatus != status || got != code {
		l.Errorf("network token is %v because of %q, want %v because of %q", token.NetworkTokenStatus, got, status, code)
	}
	return token
}

// held checks the number of network tokens at the network.
func (l *lab) held(want int) {
	l.Helper()
	if left := l.net.left(); len(left) != want {
		l.Errorf("network tokens at the network: %v, want %d", left, want)
	}
}

// notify applies a notice that must be accepted. Zero fields are filled in.
func (l *lab) notify(n network.Notice) {
	l.Helper()
	l.must(l.Notify(l.Context(), l.notice(n)))
}

func (l *lab) notice(n network.Notice) *network.Notice {
	if n.ID == "" {
		n.ID = uuid.NewString()
	}
	if n.OccurredAt.IsZero() {
		n.OccurredAt = time.Now()
	}
	if n.Token == (network.Ref{}) {
		n.Token.ID = "network-token-1"
	}
	if n.By == 0 {
		n.By = network.OwnerIssuer
	}
	return &n
}

const (
	notAvailable = network.NotAvailable
	pending      = network.Pending
	active       = network.Active
	inactive     = network.Inactive
	deleted      = network.Deleted
	failed       = network.Failed
)

// become makes a new token and brings it into a state, by answers and notices of the
// network.
func (l *lab) become(status network.Status) uuid.UUID {
	l.Helper()
	var answer error
	switch status {
	case failed:
		answer = schemeError("declined")
	case notAvailable:
		answer = configurationError("merchant_not_enrolled")
	case pending:
		l.net.like.State = pending
		defer func() { l.net.like.State = 0 }()
	}
	if answer != nil {
		l.net.script(refuse("Provision", answer), nil)
		defer l.net.script(nil, nil)
	}
	id := l.imports(visa)
	l.drain()
	handle := fmt.Sprint("network-token-", l.net.made)
	switch status {
	case inactive:
		l.notify(network.Notice{Kind: network.NoticeSuspended, Token: network.Ref{ID: handle}})
	case deleted:
		l.notify(network.Notice{Kind: network.NoticeDeleted, Token: network.Ref{ID: handle}})
	}
	if got := l.get(id).NetworkTokenStatus; got != status {
		l.Fatalf("cannot become %v: %v", status, got)
	}
	return id
}

// within checks that each pause is as long as wanted, give or take a fifth.
func within(t testing.TB, what string, calls []call, want ...time.Duration) {
	t.Helper()
	if len(calls) <= len(want) {
		t.Errorf("%s: %d calls, want %d", what, len(calls), len(want)+1)
		return
	}
	for i, pause := range want {
		got := calls[i+1].at.Sub(calls[i].at)
		if got < pause*4/5 || got > pause*6/5+time.Millisecond {
			t.Errorf("%s: pause %d is %v, want %v", what, i, got, pause)
		}
	}
}

// These are kinds of stored records.
const (
	kindNetworkToken store.Kind = 9
	kindRelease      store.Kind = 10
)

// spoil damages n records of a kind that have a due time and that choose selects.
func (l *lab) spoil(kind store.Kind, choose func(*store.Record) bool, n int) {
	l.Helper()
	l.must(l.store.on().Update(l.Context(), func(tx store.Tx) error {
		due, err := tx.Due(kind, store.AllShards, time.Now().AddDate(10, 0, 0), 10_000)
		for _, r := range due {
			if n > 0 && choose(r) {
				r.Version++
				r.Shown[len(r.Shown)-1] ^= 1
				tx.Put(r)
				n--
			}
		}
		return err
	}))
	if n > 0 {
		l.Fatalf("%d records too few to damage", n)
	}
}
