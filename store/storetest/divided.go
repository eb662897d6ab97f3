package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

var dividedRules = []rule{{
	"Divided",
	`In an account, a store that keeps accounts apart finds and deletes no record of another and
puts none, whatever its calls have read before and whatever partition the accounts are in. Else
an id that one merchant's call contains by mistake would delete another merchant's card.`,
	divided,
}}

// divided checks a transaction that is store.Divided. Others have nothing to prove.
func divided(t testing.TB, s store.Store) {
	hers, his, ours := row(1, hashes("h")), row(2, account(bob), hashes("h")), row(3, account(uuid.Nil), hashes("h"))
	parent := idOf(9) // whose children come in the order of their ids, and so of accounts
	child := func(n int, of uuid.UUID) *store.Record {
		return row(n, ofKind(kindB), ofParent(parent), account(of), class(0))
	}
	below := []*store.Record{child(4, alice), child(5, bob), child(6, uuid.Nil), child(7, alice)}
	put(t, s, append(below, hers, his, ours)...)

	yes := false
	view(t, s, func(tx store.ReadTx) error { _, yes = tx.(store.Divided); return nil })
	if !yes {
		t.Log("The transactions of this store do not keep accounts apart.")
		return
	}

	for _, look := range []struct {
		name   string
		before func(tx store.ReadTx)
	}{
		{"at once", func(store.ReadTx) {}},
		{"after a Get without an account", func(tx store.ReadTx) { _, _ = tx.Get(kindA, hers.ID) }},
	} {
		search := func(tx store.ReadTx) (wrong []string) {
			look.before(tx)
			wrong = append(wrong, findsOwn(tx, alice, []int{1}, []int{4, 7})...)
			wrong = append(wrong, findsOwn(tx, bob, []int{2}, []int{5})...)
			wrong = append(wrong, findsOwn(tx, uuid.Nil, []int{3}, []int{6})...)
			for n := range 20 { // a few are in the partition of another
				wrong = append(wrong, findsOwn(tx, idOf(n+1), nil, nil)...)
			}
			return wrong
		}

		var inView, inUpdate []string // of the last run
		view(t, s, func(tx store.ReadTx) error { inView = search(tx); return nil })
		update(t, s, func(tx store.Tx) error {
			inUpdate = search(tx)
			for n := range 20 {
				within(tx, idOf(n+1)).Delete(kindA, hers.ID)
			}
			within(tx, bob).Delete(kindA, hers.ID)
			within(tx, alice).Delete(kindB, his.ID)
			return nil
		})
		for _, wrong := range slices.Concat(inView, inUpdate) {
			t.Errorf("%s: %s", look.name, wrong)
		}
		holds(t, s, append(below, hers, his, ours)...)

		refused(t, s, store.ErrInvalid, func(tx store.Tx) error {
			look.before(tx)
			within(tx, alice).Put(row(8))
			within(tx, bob).Put(row(10)) // alice's
			return nil
		})
		lacks(t, s, row(8), row(10))
	}

	again := row(1, version(2), shown("again"))
	update(t, s, func(tx store.Tx) error {
		within(tx, alice).Put(again)
		within(tx, alice).Put(row(8))
		within(tx, bob).Delete(kindA, his.ID)
		return nil
	})
	holds(t, s, again, row(8), ours)
	lacks(t, s, his)
}

func within(tx store.Tx, of uuid.UUID) store.Tx { return tx.(store.Divided).In(of).(store.Tx) }

// findsOwn says in which way a transaction in an account does not find just its own, of the
// records 1 to 3 with a hash, and of the children.
func findsOwn(tx store.ReadTx, of uuid.UUID, rows, below []int) (wrong []string) {
	in := tx.(store.Divided).In(of)
	for n := 1; n <= 3; n++ {
		_, err := in.Get(kindA, idOf(n))
		if slices.Contains(rows, n) && err != nil || !slices.Contains(rows, n) && !errors.Is(err, store.ErrNotFound) {
			wrong = append(wrong, fmt.Sprintf("Get of record %d in account %v = %v", n, of, err))
		}
	}
	for limit := 1; limit <= 4; limit++ {
		rs, err := in.Lookup(kindA, []byte("h"), limit)
		if want := rows[:min(limit, len(rows))]; err != nil || !slices.Equal(numbersOf(rs), want) {
			wrong = append(wrong, fmt.Sprintf("Lookup of %d in account %v = records %v, %v, want %v", limit, of, numbersOf(rs), err, want))
		}

		keys, err := in.Children(idOf(9), limit)
		var got []int
		for _, k := range keys {
			got = append(got, numbersOf([]*store.Record{{ID: k.ID}})...)
		}
		if want := below[:min(limit, len(below))]; err != nil || !slices.Equal(got, want) {
			wrong = append(wrong, fmt.Sprintf("Children, %d of them, in account %v = records %v, %v, want %v", limit, of, got, err, want))
		}
	}
	return wrong
}
