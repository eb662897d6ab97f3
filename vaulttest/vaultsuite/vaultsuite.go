// Package vaultsuite tests the behaviour of a vault on a [store.Store]. It is for
// authors of stores:
//
//	func TestStore(t *testing.T) { storetest.Run(t, harness) }
//	func TestVault(t *testing.T) { vaultsuite.Run(t, harness) }
//
// It comes after storetest.Run, which tests the store alone, and takes the same harness.
package vaultsuite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/google/uuid"
)

// Run checks that a vault behaves on a store as it is documented to. The store is new,
// reopened, opened twice or has lost power, as far as the harness supports that.
//
// It runs on the store alone and again on storetest.Twice, with an audit log, and watches that
// nothing sensitive reaches the store in clear. Its subtests run in parallel; together they make
// some thousand records, and wait a few seconds for tokens to lapse. With -short they run
// once, on the store alone and with an audit log.
func Run(t *testing.T, h storetest.Harness) {
	t.Run("Sums", func(t *testing.T) {
		s := h.Open(t)
		_, able := s.(store.Summer)
		noError(t, s.Close())
		if !able {
			t.Log("This store does not show its changes.")
			return
		}
		Sums(t, h)
	})
	type run struct {
		name string
		wrap func(store.Store) store.Store
	}
	alone := func(s store.Store) store.Store { return s }
	all := []run{{"Once", alone}, {"Twice", storetest.Twice}}
	if testing.Short() {
		all = []run{{"Audited", alone}}
	}

	for _, run := range all {
		t.Run(run.name, func(t *testing.T) {
			t.Parallel()
			for _, b := range behaviours {
				t.Run(b.name, func(t *testing.T) {
					t.Parallel()
					b.check(t, watch(t, h.Open(t), run.wrap))
				})
			}
			for _, b := range lastingBehaviours {
				t.Run(b.name, func(t *testing.T) {
					t.Parallel()
					b.run(t, h, run.wrap)
				})
			}
		})
	}
}

// watch returns a wrapped store that looks for values that no store may see, and is closed
// with the test.
func watch(t testing.TB, s store.Store, wrap func(store.Store) store.Store) store.Store {
	t.Helper()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("closing the store: %v", err)
		}
	})
	return direct{storetest.Canary(t, wrap(s), inClear...)}
}

// A direct store has no decorator of a test, which may count writes or act at the next one.
type direct struct{ store.Store }

// A behaviour is what a vault does, and a check on an empty store that it does.
type behaviour struct {
	name  string
	check func(t *testing.T, s store.Store)
}

var behaviours = slices.Concat(
	tokenBehaviours, resealBehaviours, retireBehaviours, verifyBehaviours, validationBehaviours, listBehaviours, sessionBehaviours, idempotencyBehaviours,
	accountBehaviours, accountEndBehaviours, apiKeyBehaviours, vaultBehaviours, damageBehaviours, raceBehaviours, eventBehaviours,
	paymentBehaviours, networkBehaviours, routeBehaviours, codeBehaviours, enteredBehaviours, webhookBehaviours, quotaBehaviours, useBehaviours, replaceBehaviours, overtakenBehaviours, renewalBehaviours, timeBehaviours(),
)

// Every number, text and name that the suite stores begins with one of these.
const (
	canary       = "canary "
	canaryNumber = "41111100000"
)

// inClear are values that no store may see.
var inClear = [][]byte{[]byte("canary"), []byte(canaryNumber)}

var suiteKey = bytes.Repeat([]byte{7}, cardvault.KeySize)

// vaultOn returns a vault on s, a sandbox if opts are nil.
func vaultOn(t testing.TB, s store.Store, opts *cardvault.Options) *cardvault.Vault {
	t.Helper()
	if opts == nil {
		opts = &cardvault.Options{Mode: cardvault.Sandbox}
	}

	opts, log := audited(t, s, opts)
	v, err := cardvault.New(t.Context(), s, keyring(t, suiteKey), opts)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if log != nil && !t.Failed() {
			log.prove(t, v)
		}
		if err := v.Close(); err != nil {
			t.Errorf("closing the vault: %v", err)
		}
	})
	return v
}

func keyring(t testing.TB, key []byte) *cardvault.Keyring {
	t.Helper()
	k, err := cardvault.KeyBytes(key)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// cardNumber returns a card number that begins with prefix and ends with n and its
// Luhn digit.
func cardNumber(prefix string, length, n int) string {
	digits := fmt.Sprintf("%s%0*d", prefix, length-1-len(prefix), n)
	sum := 0
	for i := range len(digits) {
		d := int(digits[len(digits)-1-i] - '0')
		if i%2 == 0 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
	}
	return digits + string(byte('0'+(10-sum%10)%10))
}

// testCard returns the n-th card, of 10,000.
func testCard(n int) cardvault.Card { return cardOf(cardNumber(canaryNumber, 16, n)) }

func cardOf(number string) cardvault.Card {
	return cardvault.Card{PAN: card.NewPAN([]byte(number)), Expiry: card.Expiry{Month: 12, Year: 2090}}
}

func holder(text string) card.Name { return card.NewName([]byte(text)) }

func importCard(t testing.TB, v *cardvault.Vault, c cardvault.Card, opts *cardvault.ImportOptions) *cardvault.Token {
	t.Helper()
	return must(v.Import(t.Context(), c, opts))(t)
}

// must returns a value that came without an error.
func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fails checks that an error is want.
func fails(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

// refuses checks that err reports just these violations, each as field and code.
func refuses(t testing.TB, what string, err error, want ...string) {
	t.Helper()
	var got []string
	for _, e := range cardvault.FieldErrors(err) {
		got = append(got, e.Field+" "+string(e.Code))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: refused for %q, want %q", what, got, want)
	}
}

// flat returns what users see of a token, so that it can be compared.
func flat(t *cardvault.Token) any {
	var f struct {
		cardvault.Token
		name   string
		reason cardvault.Reason
	}
	to, from := reflect.ValueOf(&f.Token).Elem(), reflect.ValueOf(t).Elem()
	for field := range reflect.TypeFor[cardvault.Token]().Fields() {
		if field.IsExported() {
			to.FieldByIndex(field.Index).Set(from.FieldByIndex(field.Index))
		}
	}

	t.CardholderName.Expose(func(b []byte) { f.name = string(b) })
	f.CardholderName = card.Name{}
	if t.NetworkTokenStatusReason != nil {
		f.reason, f.NetworkTokenStatusReason = *t.NetworkTokenStatusReason, nil
	}
	return f
}

func equal(a, b *cardvault.Token) bool {
	one, other := *a, *b
	one.Replayed, other.Replayed = false, false
	return reflect.DeepEqual(flat(&one), flat(&other))
}

// same checks that two tokens do not differ.
func same(t testing.TB, what string, got, want *cardvault.Token) {
	t.Helper()
	if !equal(got, want) {
		t.Errorf("%s: token differs:\n got %+v\nwant %+v", what, flat(got), flat(want))
	}
}

// sameTold checks the token of an event, which has no fingerprint.
func sameTold(t testing.TB, what string, got, want *cardvault.Token) {
	t.Helper()
	shown := *want
	shown.Fingerprint = cardvault.Fingerprint{}
	same(t, what, got, &shown)
}

// checkListed checks that the vault lists just these tokens, oldest first.
func checkListed(t testing.TB, v *cardvault.Vault, want ...*cardvault.Token) {
	t.Helper()
	p := must(v.List(t.Context(), &cardvault.TokenListOptions{Ascending: true, Limit: cardvault.MaxLimit}))(t)
	if p.TotalItems != int64(len(want)) || len(p.Items) != len(want) {
		t.Errorf("%d tokens listed, total %d, want %d", len(p.Items), p.TotalItems, len(want))
		return
	}
	for i, token := range p.Items {
		same(t, fmt.Sprintf("listed token %d", i), token, want[i])
	}
}

// collect returns what All yields.
func collect(ctx context.Context, v *cardvault.Vault, opts *cardvault.TokenListOptions) (tokens []*cardvault.Token, err error) {
	for token, err := range v.All(ctx, opts) {
		if err != nil {
			return tokens, err
		}
		tokens = append(tokens, token)
	}
	return tokens, nil
}

func idsOf(tokens []*cardvault.Token) []uuid.UUID {
	all := make([]uuid.UUID, len(tokens))
	for i, token := range tokens {
		all[i] = token.ID
	}
	return all
}

// parallel runs f n times at once. A goroutine reports through its error.
func parallel(t testing.TB, n int, f func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = f(i) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// A watched is a store that counts Updates and keeps what the last one put.
type watched struct {
	store.Store
	updates atomic.Int64

	mu  sync.Mutex
	put []*store.Record
}

func (s *watched) Update(ctx context.Context, fn func(store.Tx) error) error {
	s.updates.Add(1)
	var put []*store.Record
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		put = nil
		return fn(watchedTx{tx, &put})
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put = put
	return err
}

// last returns copies of the records of the last Update.
func (s *watched) last() []*store.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(func(yield func(*store.Record) bool) {
		for _, r := range s.put {
			if !yield(r.Clone()) {
				return
			}
		}
	})
}

// wrote reports what f made the vault write, as a number of Updates.
func (s *watched) wrote(f func()) int64 {
	before := s.updates.Load()
	f()
	return s.updates.Load() - before
}

type watchedTx struct {
	store.Tx
	put *[]*store.Record
}

// In returns the transaction of an account if the store keeps accounts apart, else its own.
func (tx watchedTx) In(account uuid.UUID) store.ReadTx {
	if d, ok := tx.Tx.(store.Divided); ok {
		tx.Tx = d.In(account).(store.Tx)
	}
	return tx
}

func (tx watchedTx) Put(r *store.Record) {
	*tx.put = append(*tx.put, r.Clone())
	tx.Tx.Put(r)
}

// longText returns a text of n characters that are not one byte each.
func longText(n int) string { return canary + strings.Repeat("é", n-len(canary)) }
