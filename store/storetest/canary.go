package storetest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

// Canary returns a store that keeps its records in s and fails t when a forbidden value is
// in anything that is handed to it: records, queries, hashes and ids, even if the fn
// fails later. It looks for the value as it is, reversed, in hexadecimal and in
// base64 at any alignment. Digits are also looked for packed two to a byte. The case of
// ASCII letters does not matter. The message does not show the value.
//
//	s := storetest.Canary(t, memstore.New(), pan, code, name)
//
// A value has at least four bytes: shorter ones occur in ciphertext by chance.
// It also fails t if nothing has been put when the test ends. Closing the store
// closes s.
func Canary(t testing.TB, s store.Store, forbidden ...[]byte) store.Store {
	t.Helper()
	c := &canary{Store: s, t: t}
	for i, value := range forbidden {
		if len(value) < shortest {
			t.Fatalf("forbidden value %d is shorter than %d bytes", i+1, shortest)
		}
		c.needles = append(c.needles, needles(i+1, value)...)
	}
	t.Cleanup(func() {
		if c.puts.Load() == 0 {
			t.Error("nothing was put into the store: the test proves nothing")
		}
	})
	return c
}

type canary struct {
	store.Store
	t       testing.TB
	needles []needle
	puts    atomic.Int64
}

const shortest = 4

// A needle is one form of a forbidden value.
type needle struct {
	value int // which one, from 1
	form  string
	bytes []byte
	fold  bool // ignore the case of ASCII letters
}

func needles(value int, b []byte) []needle {
	reversed := bytes.Clone(b)
	slices.Reverse(reversed)
	ns := []needle{
		{value, "it is", lower(b), true},
		{value, "reversed text", lower(reversed), true},
		{value, "hexadecimal", hex.AppendEncode(nil, b), true},
	}

	for shift := range 3 {
		padded := append(make([]byte, shift), b...)
		for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			// Only characters that hold nothing of the neighbours.
			text := alphabet.EncodeToString(padded)[(8*shift+5)/6 : 8*len(padded)/6]
			ns = append(ns, needle{value, "base64", []byte(text), false})
		}
	}

	if len(bytes.Trim(b, "0123456789")) == 0 {
		for start := range 2 { // whichever half of a byte it begins in
			digits := b[start : start+(len(b)-start)/2*2]
			packed, err := hex.AppendDecode(nil, digits)
			if err != nil {
				panic("digits are hexadecimal")
			}
			ns = append(ns, needle{value, "packed digits", packed, false})
		}
	}

	return slices.DeleteFunc(ns, func(n needle) bool { return len(n.bytes) < shortest })
}

// lower returns b with ASCII letters in lower case and all other bytes as they are.
func lower(b []byte) []byte {
	b = bytes.Clone(b)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return b
}

// look searches b, which is a part of something of a kind.
func (c *canary) look(kind store.Kind, part string, b []byte) {
	c.t.Helper()
	folded := lower(b)
	last := 0 // the last value found: one form of it is enough
	for _, n := range c.needles {
		hay := b
		if n.fold {
			hay = folded
		}
		if n.value != last && bytes.Contains(hay, n.bytes) {
			last = n.value
			c.t.Errorf("forbidden value %d reaches the store as %s, in %s of kind %d", n.value, n.form, part, kind)
		}
	}
}

func (c *canary) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return c.Store.View(ctx, func(tx store.ReadTx) error { return fn(watchedReads{tx, c}) })
}

func (c *canary) Update(ctx context.Context, fn func(store.Tx) error) error {
	return c.Store.Update(ctx, func(tx store.Tx) error { return fn(watchedTx{watchedReads{tx, c}, tx}) })
}

type watchedReads struct {
	store.ReadTx
	c *canary
}

func (w watchedReads) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	w.c.look(kind, "an id", id[:])
	return w.ReadTx.Get(kind, id)
}

func (w watchedReads) List(q *store.Query) (*store.List, error) {
	for _, b := range [][]byte{q.Account[:], q.Parent[:], q.Min[:], q.Max[:], q.Lookup} {
		w.c.look(q.Kind, "a query", b)
	}
	return w.ReadTx.List(q)
}

func (w watchedReads) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	w.c.look(kind, "a hash to look up", hash)
	return w.ReadTx.Lookup(kind, hash, limit)
}

// In returns the transaction of an account if the store keeps accounts apart, else its own.
func (w watchedReads) In(id uuid.UUID) store.ReadTx {
	if d, ok := w.ReadTx.(store.Divided); ok {
		return watchedReads{d.In(id), w.c}
	}
	return w
}

func (w watchedTx) In(id uuid.UUID) store.ReadTx {
	if d, ok := w.tx.(store.Divided); ok {
		in := d.In(id)
		return watchedTx{watchedReads{in, w.c}, in.(store.Tx)}
	}
	return w
}

type watchedTx struct {
	watchedReads
	tx store.Tx
}

func (w watchedTx) Put(r *store.Record) {
	w.c.puts.Add(1)
	w.c.look(r.Kind, "an id", r.ID[:])
	w.c.look(r.Kind, "Account", r.Account[:])
	w.c.look(r.Kind, "Parent", r.Parent[:])
	w.c.look(r.Kind, "Shown", r.Shown)
	w.c.look(r.Kind, "Secret", r.Secret)
	for _, hash := range r.Lookup {
		w.c.look(r.Kind, "Lookup", hash)
	}
	w.tx.Put(r)
}

func (w watchedTx) Delete(kind store.Kind, id uuid.UUID) {
	w.c.look(kind, "an id", id[:])
	w.tx.Delete(kind, id)
}
