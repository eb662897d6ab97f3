package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A liar is a store that was edited: its answers are changed.
type liar struct {
	store.Store
	list   func(*store.Query)
	due    func(store.Kind, []*store.Record) ([]*store.Record, error)
	update error // of every Update
	seen   func(*store.Record)
}

func (l *liar) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return l.Store.View(ctx, func(tx store.ReadTx) error { return fn(liarReadTx{tx, l}) })
}

func (l *liar) Update(ctx context.Context, fn func(store.Tx) error) error {
	if l.update != nil {
		return l.update
	}
	return l.Store.Update(ctx, func(tx store.Tx) error { return fn(liarTx{tx, l}) })
}

type liarReadTx struct {
	store.ReadTx
	l *liar
}

func (tx liarReadTx) List(q *store.Query) (*store.List, error) {
	other := *q
	if tx.l.list != nil {
		tx.l.list(&other)
	}
	return tx.ReadTx.List(&other)
}

func (tx liarReadTx) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	due, err := tx.ReadTx.Due(kind, shards, until, limit)
	if err == nil && tx.l.due != nil {
		return tx.l.due(kind, due)
	}
	return due, err
}

type liarTx struct {
	store.Tx
	l *liar
}

func (tx liarTx) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	return liarReadTx{tx.Tx, tx.l}.Due(kind, shards, until, limit)
}

func (tx liarTx) Put(r *store.Record) {
	if tx.l.seen != nil {
		tx.l.seen(r)
	}
	tx.Tx.Put(r)
}

func vaultOn(t *testing.T, s store.Store) *cardvault.Vault {
	t.Helper()
	v, err := cardvault.New(t.Context(), s, newKey(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func imported(t *testing.T, v *cardvault.Vault) *cardvault.Token {
	t.Helper()
	token, err := v.Import(t.Context(), visa, nil)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestListOfAnotherAccount: the lists of a store are not authenticated, and the records they
// lead to are.
func TestListOfAnotherAccount(t *testing.T) {
	l := &liar{Store: memstore.New()}
	victim := vaultOn(t, l)
	imported(t, victim)
	other, err := victim.CreateAccount(t.Context(), "other", nil)
	if err != nil {
		t.Fatal(err)
	}
	thief := victim.In(other.ID)
	account, err := victim.Account(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.list = func(q *store.Query) { q.Account = account.ID }
	if page, err := thief.List(t.Context(), nil); !errors.Is(err, cardvault.ErrDamaged) {
		t.Errorf("List gives %+v, %v", page, err)
	}
	for token, err := range thief.All(t.Context(), nil) {
		if !errors.Is(err, cardvault.ErrDamaged) || token != nil {
			t.Errorf("All gives %+v, %v", token, err)
		}
	}
	l.list = func(q *store.Query) { q.Classes = store.Classes{} }
	jcb := &cardvault.TokenListOptions{Scheme: []card.Scheme{card.JCB}}
	if page, err := victim.List(t.Context(), jcb); !errors.Is(err, cardvault.ErrDamaged) {
		t.Errorf("a list of another class gives %+v, %v", page, err)
	}
}

// TestSweepTrustsNoIndex: a due time invented by the index erases nothing. Unreadable
// records of one kind do not keep others from being erased.
func TestSweepTrustsNoIndex(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := &liar{Store: memstore.New()}
		v := vaultOn(t, l)
		token := imported(t, v)
		if _, err := v.CreateSession(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		calls := map[store.Kind]int{}
		l.due = func(kind store.Kind, due []*store.Record) ([]*store.Record, error) {
			calls[kind]++
			if len(calls) == 1 { // the first kind swept
				return []*store.Record{{Kind: kind, ID: uuid.New()}}, nil // without a due time
			}
			return due, nil
		}
		if err := v.Drain(t.Context()); !errors.Is(err, cardvault.ErrDamaged) {
			t.Errorf("Drain: %v", err)
		}
		if len(calls) < 4 {
			t.Errorf("%d kinds were swept", len(calls))
		}
		if _, err := v.Get(t.Context(), token.ID); err != nil {
			t.Errorf("the token is gone: %v", err)
		}
	})
}

// TestUnknownKeyOnFullStore: an unknown key is refused as unknown, whatever state the store
// is in.
func TestUnknownKeyOnFullStore(t *testing.T) {
	l := &liar{Store: memstore.New()}
	v := vaultOn(t, l)
	key, err := v.CreateAPIKey(t.Context(), "a key", []cardvault.Scope{cardvault.ScopeTokensRead}, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	if err != nil {
		t.Fatal(err)
	}
	principal, err := v.Authenticate(t.Context(), key.Text.Text())
	if err != nil {
		t.Fatal(err)
	}
	if err := v.DeleteAPIKey(t.Context(), principal.Key.ID); err != nil {
		t.Fatal(err)
	}
	l.update = store.ErrFull
	if _, err := v.Authenticate(t.Context(), key.Text.Text()); !errors.Is(err, cardvault.ErrUnauthenticated) {
		t.Errorf("got %v", err)
	}
}

// A reader is a store that records its reads.
type reader struct {
	store.Store
	read []string
}

func (s *reader) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(readerTx{tx, s}) })
}

// Changes lets a vault keep principals, as on the store alone.
func (s *reader) Changes(kind store.Kind) uint64 { return s.Store.(store.Counter).Changes(kind) }

type readerTx struct {
	store.ReadTx
	s *reader
}

func (tx readerTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r, err := tx.ReadTx.Get(kind, id)
	tx.s.read = append(tx.s.read, fmt.Sprint("get ", kind, " ", err))
	return r, err
}

func (tx readerTx) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	tx.s.read = append(tx.s.read, fmt.Sprint("lookup ", kind))
	return tx.ReadTx.Lookup(kind, hash, limit)
}

// TestUnknownKeyReads: an unknown API key id costs the store the same reads as a known id
// with a wrong secret. The length of the chain of creators makes no difference.
func TestUnknownKeyReads(t *testing.T) {
	s := &reader{Store: memstore.New()}
	v := vaultOn(t, s)
	var bound []netip.Prefix
	key := func(by *cardvault.APIKey) (*cardvault.APIKey, string) {
		opts := &cardvault.APIKeyOptions{TTL: time.Hour, AddressRanges: bound}
		if by != nil {
			opts.Creator = by.ID
		}
		k, err := v.CreateAPIKey(t.Context(), "a key", cardvault.AllScopes(), opts)
		if err != nil {
			t.Fatal(err)
		}
		return k, k.Text.Text()
	}
	root, text := key(nil)
	child, below := key(root)
	_, deep := key(child)
	bound = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	fenced, inside := key(root)
	_, belowFenced := key(fenced)
	// with returns a key text with the head of one key and the secret of another.
	with := func(head, secret string) string {
		text := head[:17] + secret[17:60]
		n := crc32.ChecksumIEEE([]byte(text))
		var c [6]byte
		for i := range c {
			c[5-i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[n%62]
			n /= 62
		}
		return text + string(c[:])
	}
	var want []string
	for i, test := range []string{with(text[:8]+"00000000_", text), with(text, below), with(below, text), with(deep, text)} {
		s.read = nil
		if _, err := v.Authenticate(t.Context(), test); !errors.Is(err, cardvault.ErrUnauthenticated) {
			t.Fatalf("text %d: %v", i, err)
		}
		if i == 0 {
			want = s.read
		}
		if !slices.Equal(s.read, want) {
			t.Errorf("text %d reads %q, an unknown one %q", i, s.read, want)
		}
	}

	// So does a right text from outside its address ranges, whether or not it was used inside.
	here := cardvault.WithActor(t.Context(), cardvault.Actor{Address: "192.0.2.7"})
	for i, text := range []string{inside, belowFenced} {
		for range 2 {
			s.read = nil
			if _, err := v.Authenticate(t.Context(), text); !errors.Is(err, cardvault.ErrUnauthenticated) {
				t.Fatalf("from outside, text %d: %v", i, err)
			}
			if !slices.Equal(s.read, want) {
				t.Errorf("from outside, text %d reads %q, an unknown one %q", i, s.read, want)
			}
			if _, err := v.Authenticate(here, text); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestSessionIDStaysOut: the id of a session is a credential, so the store does not see it.
func TestSessionIDStaysOut(t *testing.T) {
	l := &liar{Store: memstore.New()}
	v := vaultOn(t, l)
	var ids []uuid.UUID
	l.seen = func(r *store.Record) { ids = append(ids, r.ID) }
	session, err := v.CreateSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(ids) == 0 {
		t.Fatal("nothing was stored")
	}
	for _, id := range ids {
		if id == session.ID.UUID() {
			t.Error("the store has the id of the session as a key")
		}
	}
	if _, err := v.Tokenize(t.Context(), session.ID, visa); err != nil {
		t.Error(err)
	}
}

// TestClockFarOff: a wrong clock makes nothing that could not be found again.
func TestClockFarOff(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := vaultOn(t, memstore.New())
		token := imported(t, v)
		<-time.After(101 * 365 * 24 * time.Hour)
		if _, err := v.Import(t.Context(), visa, nil); !errors.Is(err, cardvault.ErrUnavailable) {
			t.Errorf("in 2101: %v", err)
		}
		if _, err := v.Get(t.Context(), token.ID); err != nil {
			t.Errorf("a token made before: %v", err)
		}
	})
}
