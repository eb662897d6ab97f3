// Package familytest proves on any store that what ends a family of records takes as long
// whatever hangs below: a revocation, a deletion, a lapse.
package familytest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Most rows that a transaction may write, and read, however large the family is that ends.
const (
	mostWrites = 96 // 48 API keys, each with its last use
	mostReads  = 1100
)

// A family of this size is compared with a large one. It is too large to go in one
// transaction.
const (
	small     = 2000
	smallKeys = 1600
)

// mostKeys bounds the API keys below one key, through the limit of an account.
const mostKeys = 100_000 - 1

// Kinds of records of a vault, as they are numbered for good.
const (
	kindAPIKey      store.Kind = 4
	kindToken       store.Kind = 5
	kindAnswer      store.Kind = 8
	kindPaymentData store.Kind = 15
	kindDelivery    store.Kind = 22
	kindRemains     store.Kind = 24
)

// A family is a record with much below it.
type family struct {
	of    store.Key    // the record
	child store.Kind   // of the family's children
	more  func(n int)  // puts so many more below it; nil: they are cloned
	end   func() error // ends it
	gone  func(when string)
}

// An act makes a vault with a family of one child, for the test to clone.
type act func(a *stage) *family

var acts = []struct {
	name string
	act
}{
	{"APIKeys", apiKeys},
	{"PaymentData", paymentData},
	{"Answers", answers},
	{"Deliveries", deliveries},
	{"Lapse", lapse},
}

// Run ends families of n on stores that open returns, each new and empty; Run closes them.
func Run(t *testing.T, open func(t testing.TB) store.Store, n int) {
	for _, a := range acts {
		t.Run(a.name, func(t *testing.T) {
			of := [2]int{small, n}
			if a.name == "APIKeys" { // they are made one by one
				of = [2]int{smallKeys, min(max(smallKeys+500, n/4), mostKeys)}
			}

			few, many := play(t, open, a.act, of[0]), play(t, open, a.act, of[1])
			if few != many {
				t.Errorf("what ends a family depends on how large it is:\n%d: %+v\n%d: %+v", of[0], few, of[1], many)
			}
			t.Logf("whatever its size: %+v", many)
		})
	}
	t.Run("Restored", func(t *testing.T) { restored(t, open) })
}

// A stage is a vault in a bubble whose store counts.
type stage struct {
	*testing.T
	*cardvault.Vault
	store *counter
}

// on runs f on a stage.
func on(t *testing.T, open func(t testing.TB) store.Store, f func(*stage)) {
	t.Helper()
	inner := open(t)
	defer func() {
		if err := inner.Close(); err != nil {
			t.Error(err)
		}
	}()

	s := bubble.Outside(t, inner)
	bubble.Test(t, func(t *testing.T) {
		a := &stage{T: t, store: &counter{Store: s}}
		a.restart()
		f(a)

		a.store.mu.Lock()
		defer a.store.mu.Unlock()
		if most := a.store.most; most.Writes > mostWrites || most.Reads > mostReads {
			t.Errorf("a transaction touched %+v", most)
		}
	})
}

// restart opens the vault as another process does.
func (a *stage) restart() {
	a.Helper()
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	a.must(err)
	a.Vault, err = cardvault.New(a.Context(), a.store, keys, &cardvault.Options{
		Mode:     cardvault.Sandbox,
		Webhooks: nowhere{},
		Purposes: []string{"test"},
		Quotas:   cardvault.Quotas{APIKeys: mostKeys + 1, PaymentData: 1_000_000},
	})
	a.must(err)
	a.Cleanup(func() { a.Vault.Close() })
}

func (a *stage) must(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

func (a *stage) fails(what string, err, want error) {
	a.Helper()
	if !errors.Is(err, want) {
		a.Errorf("%s: error %v, want %v", what, err, want)
	}
}

// play ends a family of n and returns the cost. The background erases the rest even if a
// transaction of it fails, and even if its process dies.
func play(t *testing.T, open func(t testing.TB) store.Store, begin act, n int) (cost Cost) {
	on(t, open, func(a *stage) {
		f := begin(a)
		if more := n - a.below(f, 10); f.more != nil {
			f.more(more)
		} else {
			a.clone(f, more)
		}
		if got := a.below(f, n+1); got != n {
			a.Fatalf("the family has %d below it, want %d", got, n)
		}

		a.store.take()
		a.must(f.end())
		cost = a.store.take()
		f.gone("at that instant")

		// The process goes on after a failed transaction.
		a.store.failAfter(2, 1)
		_ = a.Drain(a.Context())
		a.store.failAfter(0, 0)
		f.gone("after a transaction has failed")
		if a.below(f, 1) == 0 {
			a.Error("nothing is left for the next process: the test proves nothing")
		}

		// The process dies in the middle, and another one goes on.
		time.Sleep(3 * time.Minute)
		a.store.failAfter(2, 1<<30)
		_ = a.Drain(a.Context())
		a.store.failAfter(0, 0)
		a.restart()
		f.gone("after the process has died")
		if a.below(f, 1) == 0 {
			a.Error("nothing is left for the next process: the test proves nothing")
		}

		// The next attempt ends it.
		time.Sleep(3 * time.Minute)
		a.must(a.Drain(a.Context()))
		f.gone("in the end")
		if left := a.below(f, n); left > 0 {
			a.Errorf("%d of the family are left", left)
		}
		if jobs := a.kinds(kindRemains); jobs > 0 {
			a.Errorf("%d jobs are left", jobs)
		}

		if f.child == kindAPIKey {
			p, err := a.ListAPIKeys(a.Context(), nil)
			a.must(err)
			if p.TotalItems != 0 {
				a.Errorf("%d keys are listed in the end", p.TotalItems)
			}
		}
	})
	return cost
}

// below returns how many records are below the one of a family, at most so many.
func (a *stage) below(f *family, most int) (n int) {
	a.Helper()
	a.must(a.store.Store.View(a.Context(), func(tx store.ReadTx) error {
		n = 0
		if f.child == kindAPIKey {
			keys, err := tx.Lookup(kindAPIKey, append([]byte("by"), f.of.ID[:]...), most)
			n = len(keys)
			return err
		}
		keys, err := tx.Children(f.of.ID, most)
		n = len(keys)
		return err
	}))
	return n
}

func (a *stage) kinds(kind store.Kind) (n int) {
	a.Helper()
	a.must(a.store.Store.View(a.Context(), func(tx store.ReadTx) error {
		found, err := tx.Scan(kind, uuid.Nil, 10)
		n = len(found)
		return err
	}))
	return n
}

// clone puts n records beside the last child of a family. Their sealed columns cannot be
// read, which is never needed.
func (a *stage) clone(f *family, n int) {
	a.Helper()
	r := a.store.last(f.child)
	if r == nil {
		a.Fatal("there is nothing to clone")
	}

	for done := 0; done < n; {
		batch := min(1000, n-done)
		a.must(a.store.Store.Update(a.Context(), func(tx store.Tx) error {
			for i := range batch {
				c := *r
				c.Version = 1
				binary.BigEndian.PutUint64(c.ID[8:], uint64(done+i)) // before the readable one
				tx.Put(&c)
			}
			return nil
		}))
		done += batch
	}
}

func apiKeys(a *stage) *family {
	scopes := cardvault.AllScopes()
	root, err := a.CreateAPIKey(a.Context(), "root", scopes, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	a.must(err)
	row := a.store.last(kindAPIKey).ID
	child, err := a.CreateAPIKey(a.Context(), "child", scopes, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL, Creator: root.ID})
	a.must(err)
	deep, err := a.CreateAPIKey(a.Context(), "grandchild", scopes, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL, Creator: child.ID})
	a.must(err)

	return &family{
		of: store.Key{Kind: kindAPIKey, ID: row}, child: kindAPIKey,
		more: func(n int) { // only readable ones are erased
			var group sync.WaitGroup
			next := make(chan struct{})
			for range 48 {
				group.Go(func() {
					for range next {
						if _, err := a.CreateAPIKey(a.Context(), "one more", scopes, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL, Creator: root.ID}); err != nil {
							a.Error(err)
						}
					}
				})
			}
			for range n {
				next <- struct{}{}
			}
			close(next)
			group.Wait()
		},
		end: func() error { return a.DeleteAPIKey(a.Context(), root.ID) },
		gone: func(when string) {
			a.Helper()
			for _, text := range []cardvault.APIKeyText{root.Text, child.Text, deep.Text} {
				_, err := a.Authenticate(a.Context(), text.Text())
				a.fails(when+": a key", err, cardvault.ErrUnauthenticated)
			}
			_, err := a.CreateAPIKey(a.Context(), "more", scopes, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL, Creator: child.ID})
			a.fails(when+": a key as creator", err, cardvault.ErrNotFound)
			a.fails(when+": revoking", a.DeleteAPIKey(a.Context(), root.ID), cardvault.ErrNotFound)
		},
	}
}

var (
	visa    = cardvault.Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2090}}
	payment = cardvault.PaymentRequest{Amount: 1, Currency: "EUR", Reference: "a reference"}
)

// token returns a token that was imported under an idempotency key, and checks whether it
// is gone.
func (a *stage) token() (*cardvault.Token, func(when string)) {
	ctx, under := a.Context(), &cardvault.ImportOptions{IdempotencyKey: "import", BusinessKey: "order"}
	t, err := a.Import(ctx, visa, under)
	a.must(err)
	return t, func(when string) {
		a.Helper()
		a.goneToken(when, t)
		_, err := a.Import(ctx, visa, under)
		a.fails(when+": repeated import", err, cardvault.ErrNotFound)
	}
}

// goneToken checks that a token, the only one, is gone for every call.
func (a *stage) goneToken(when string, t *cardvault.Token) {
	a.Helper()
	ctx := a.Context()
	for what, call := range map[string]func() error{
		"Get": func() error { _, err := a.Get(ctx, t.ID); return err },
		"Update": func() error {
			b := "b"
			_, err := a.Update(ctx, t.ID, cardvault.TokenUpdate{BusinessKey: &b})
			return err
		},
		"Delete":             func() error { return a.Delete(ctx, t.ID) },
		"Provision":          func() error { _, err := a.Provision(ctx, t.ID, nil); return err },
		"RequestPaymentData": func() error { _, err := a.RequestPaymentData(ctx, t.ID, payment); return err },
		"ListPaymentData":    func() error { _, err := a.ListPaymentData(ctx, t.ID, nil); return err },
		"RefreshSession":     func() error { _, err := a.RefreshSession(ctx, t.ID, nil); return err },
		"SecurityCode":       func() error { _, err := a.SecurityCodeStatus(ctx, t.ID); return err },
		"Consume":            func() error { _, err := a.Consume(ctx, t.ID, nil); return err },
		"Replace":            func() error { _, err := a.Replace(ctx, t.ID, visa, nil); return err },
		"ReplaceSession":     func() error { _, err := a.ReplaceSession(ctx, t.ID, nil); return err },
		"Use": func() error {
			return a.Use(ctx, t.ID, "test", func(context.Context, *cardvault.UsedCard) error { return errors.New("the card is used") })
		},
		"UseCredential": func() error {
			return a.UseCredential(ctx, t.ID, "test", payment, func(context.Context, *receive.Credential) error { return errors.New("the card is used") })
		},
	} {
		a.fails(when+": "+what, call(), cardvault.ErrNotFound)
	}

	for _, opts := range []*cardvault.TokenListOptions{nil, {BusinessKey: "order"}} {
		p, err := a.List(ctx, opts)
		a.must(err)
		if p.TotalItems != 0 || len(p.Items) != 0 {
			a.Errorf("%s: %d tokens listed, total %d", when, len(p.Items), p.TotalItems)
		}
	}

	for _, opts := range []*cardvault.TokenListOptions{nil, {Fingerprint: t.Fingerprint}} {
		for range a.All(ctx, opts) {
			a.Errorf("%s: All yields it", when)
		}
	}
}

func paymentData(a *stage) *family {
	t, gone := a.token()
	row := a.store.last(kindToken).ID
	ctx, r := a.Context(), payment
	r.IdempotencyKey = "payment"
	_, err := a.RequestPaymentData(ctx, t.ID, r)
	a.must(err)

	return &family{
		of: store.Key{Kind: kindToken, ID: row}, child: kindPaymentData,
		end: func() error { return a.Delete(a.Context(), t.ID) },
		gone: func(when string) {
			a.Helper()
			gone(when)
			_, err := a.RequestPaymentData(ctx, t.ID, r)
			a.fails(when+": repeated payment data", err, cardvault.ErrNotFound)
		},
	}
}

func answers(a *stage) *family {
	t, gone := a.token()
	row := a.store.last(kindToken).ID
	ctx, under := a.Context(), &cardvault.CallOptions{IdempotencyKey: "refresh"}
	session, err := a.RefreshSession(ctx, t.ID, under)
	a.must(err)

	return &family{
		of: store.Key{Kind: kindToken, ID: row}, child: kindAnswer,
		end: func() error { return a.Delete(a.Context(), t.ID) },
		gone: func(when string) {
			a.Helper()
			gone(when)
			_, err := a.RefreshSession(ctx, t.ID, under)
			a.fails(when+": repeated session", err, cardvault.ErrNotFound)

			_, err = a.Session(a.Context(), session.ID)
			a.fails(when+": session", err, cardvault.ErrNotFound)
			_, err = a.RefreshSecurityCode(a.Context(), session.ID, card.NewSecurityCode([]byte("123")))
			a.fails(when+": security code", err, cardvault.ErrNotFound)
		},
	}
}

// nowhere is a cardvault.Sender that delivers nothing.
type nowhere struct{}

func (nowhere) Check(*cardvault.Target) error { return nil }
func (nowhere) Send(context.Context, *cardvault.Delivery) (*cardvault.SendResult, error) {
	return nil, errors.New("connection refused")
}

func deliveries(a *stage) *family {
	hook, err := a.CreateWebhook(a.Context(), "https://receiver.example", nil)
	a.must(err)
	token, _ := a.token()
	r := a.store.last(kindDelivery)
	p, err := a.ListDeliveries(a.Context(), hook.ID, nil)
	a.must(err)
	event := p.Items[0].EventID

	return &family{
		of: store.Key{ID: r.Parent}, child: kindDelivery,
		end: func() error { return a.DeleteWebhook(a.Context(), hook.ID) },
		gone: func(when string) {
			a.Helper()
			ctx := a.Context()
			_, err := a.ListDeliveries(ctx, hook.ID, nil)
			a.fails(when+": log", err, cardvault.ErrNotFound)
			_, err = a.Webhook(ctx, hook.ID)
			a.fails(when+": webhook", err, cardvault.ErrNotFound)
			_, err = a.Redeliver(ctx, event, nil)
			a.fails(when+": redelivery", err, cardvault.ErrNotFound)

			p, err := a.ListWebhooks(ctx, nil)
			a.must(err)
			if p.TotalItems != 0 {
				a.Errorf("%s: %d webhooks", when, p.TotalItems)
			}
			if _, err := a.Get(ctx, token.ID); err != nil {
				a.Errorf("%s: the token: %v", when, err)
			}
		},
	}
}

func lapse(a *stage) *family {
	session, err := a.CreateSession(a.Context(), &cardvault.SessionOptions{TokenTTL: time.Minute})
	a.must(err)
	t, err := a.Tokenize(a.Context(), session.ID, visa)
	a.must(err)
	row := a.store.last(kindToken).ID

	_, err = a.RequestPaymentData(a.Context(), t.ID, payment)
	a.must(err)

	return &family{
		of: store.Key{Kind: kindToken, ID: row}, child: kindPaymentData,
		end:  func() error { time.Sleep(time.Minute); return nil },
		gone: func(when string) { a.Helper(); a.goneToken(when, t) },
	}
}

// restored puts back the row of a deleted token: the job does not take the token's children
// from it.
func restored(t *testing.T, open func(t testing.TB) store.Store) {
	on(t, open, func(a *stage) {
		f := paymentData(a)
		a.clone(f, small)

		var token *store.Record
		a.must(a.store.Store.View(a.Context(), func(tx store.ReadTx) (err error) {
			token, err = tx.Get(kindToken, f.of.ID)
			return err
		}))
		token.Shown, token.Secret = bytes.Clone(token.Shown), bytes.Clone(token.Secret)

		a.must(f.end())
		a.must(a.store.Store.Update(a.Context(), func(tx store.Tx) error { tx.Put(token); return nil }))

		before := a.below(f, 2*small)
		a.must(a.Drain(a.Context()))
		if after := a.below(f, 2*small); before == 0 || after != before {
			a.Errorf("a token that was put back has %d records, of %d", after, before)
		}
	})
}

// A Cost counts the rows that Views and Updates return or write, and the bytes of written
// rows.
type Cost struct {
	Views, Updates int
	Reads, Writes  int
	Bytes          int
}

func (c Cost) String() string {
	return fmt.Sprintf("%d views, %d updates, %d rows read, %d written, %d bytes", c.Views, c.Updates, c.Reads, c.Writes, c.Bytes)
}

// A counter is a store that counts costs, and fails on demand.
type counter struct {
	store.Store

	mu          sync.Mutex
	cost, most  Cost // since take, and of any transaction
	records     map[store.Kind]*store.Record
	good, fails int // Updates until some fail, and how many then; none if good is 0
}

var errDied = fmt.Errorf("%w: the process has died", store.ErrUnavailable)

// failAfter makes Updates fail after some: the next that would be good, and so on.
func (c *counter) failAfter(good, fails int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.good, c.fails = good, fails
}

func (c *counter) take() Cost {
	c.mu.Lock()
	defer c.mu.Unlock()
	cost := c.cost
	c.cost = Cost{}
	return cost
}

// last returns the record of a kind that was put last, nil if none was.
func (c *counter) last(kind store.Kind) *store.Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.records[kind]
}

func (c *counter) count(one Cost) {
	c.cost.Views += one.Views
	c.cost.Updates += one.Updates
	c.cost.Reads += one.Reads
	c.cost.Writes += one.Writes
	c.cost.Bytes += one.Bytes
	c.most.Reads, c.most.Writes = max(c.most.Reads, one.Reads), max(c.most.Writes, one.Writes)
}

func (c *counter) View(ctx context.Context, fn func(store.ReadTx) error) error {
	var one Cost
	err := c.Store.View(ctx, func(tx store.ReadTx) error {
		one = Cost{Views: 1}
		return fn(countedReadTx{tx, &one})
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(one)
	return err
}

func (c *counter) Update(ctx context.Context, fn func(store.Tx) error) error {
	c.mu.Lock()
	failing := c.fails > 0 && c.good <= 0
	if failing {
		c.fails--
	} else if c.fails > 0 {
		c.good--
	}
	c.mu.Unlock()
	if failing {
		return errDied
	}

	var one Cost
	var put []*store.Record
	err := c.Store.Update(ctx, func(tx store.Tx) error {
		one, put = Cost{Updates: 1}, nil
		return fn(countedTx{countedReadTx{tx, &one}, tx, &put})
	})

	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(one)
	if err != nil {
		return err
	}
	if c.records == nil {
		c.records = map[store.Kind]*store.Record{}
	}

	for _, r := range put {
		copied := *r
		copied.Shown, copied.Secret = bytes.Clone(r.Shown), bytes.Clone(r.Secret)
		c.records[r.Kind] = &copied
	}
	return nil
}

type countedReadTx struct {
	store.ReadTx
	cost *Cost
}

func (tx countedReadTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	tx.cost.Reads++
	return tx.ReadTx.Get(kind, id)
}

func (tx countedReadTx) List(q *store.Query) (*store.List, error) {
	l, err := tx.ReadTx.List(q)
	if err == nil {
		tx.cost.Reads += 1 + len(l.Records)
	}
	return l, err
}

func (tx countedReadTx) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	found, err := tx.ReadTx.Lookup(kind, hash, limit)
	tx.cost.Reads += 1 + len(found)
	return found, err
}

func (tx countedReadTx) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	found, err := tx.ReadTx.Due(kind, shards, until, limit)
	tx.cost.Reads += 1 + len(found)
	return found, err
}

func (tx countedReadTx) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	found, err := tx.ReadTx.Children(parent, limit)
	tx.cost.Reads += 1 + len(found)
	return found, err
}

type countedTx struct {
	countedReadTx
	tx  store.Tx
	put *[]*store.Record
}

func (tx countedTx) Put(r *store.Record) {
	tx.cost.Writes++
	tx.cost.Bytes += len(r.Shown) + len(r.Secret)
	*tx.put = append(*tx.put, r)
	tx.tx.Put(r)
}

func (tx countedTx) Delete(kind store.Kind, id uuid.UUID) {
	tx.cost.Writes++
	tx.tx.Delete(kind, id)
}
