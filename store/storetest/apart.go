package storetest

import (
	"context"
	"slices"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Apart returns a store whose transactions are [store.Divided]. It shows callers what a
// store with partitions would not find: wrong is called when a caller asks in one account
// for a record of another. It may be called concurrently.
func Apart(s store.Store, wrong func(r *store.Record, in uuid.UUID)) store.Store {
	return apart{s, wrong}
}

type apart struct {
	store.Store
	wrong func(r *store.Record, in uuid.UUID)
}

func (a apart) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return a.Store.View(ctx, func(tx store.ReadTx) error { return fn(apartReads{tx, a}) })
}

func (a apart) Update(ctx context.Context, fn func(store.Tx) error) error {
	return a.Store.Update(ctx, func(tx store.Tx) error { return fn(apartTx{tx, a}) })
}

type apartReads struct {
	store.ReadTx
	a apart
}

func (tx apartReads) In(id uuid.UUID) store.ReadTx {
	return accountReads{tx.ReadTx, tx.a, id}
}

type apartTx struct {
	store.Tx
	a apart
}

func (tx apartTx) In(id uuid.UUID) store.ReadTx {
	return accountTx{accountReads{tx.Tx, tx.a, id}, tx.Tx}
}

type accountReads struct {
	store.ReadTx
	a  apart
	id uuid.UUID // of the account
}

func (tx accountReads) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r, err := tx.ReadTx.Get(kind, id)
	if err == nil && r.Account != tx.id {
		tx.a.wrong(r, tx.id)
		return nil, store.ErrNotFound
	}
	return r, err
}

func (tx accountReads) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	return filter(limit, func(limit int) ([]*store.Record, error) { return tx.ReadTx.Lookup(kind, hash, limit) },
		func(r *store.Record) bool { return r.Account == tx.id })
}

func (tx accountReads) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	return filter(limit, func(limit int) ([]store.Key, error) { return tx.ReadTx.Children(parent, limit) },
		func(k store.Key) bool { _, err := tx.Get(k.Kind, k.ID); return err == nil })
}

// filter returns the first results of find that match.
func filter[T any](limit int, find func(limit int) ([]T, error), matches func(T) bool) ([]T, error) {
	for most := limit; ; most *= 2 {
		results, err := find(most)
		all := len(results) < most || most <= 0
		results = slices.DeleteFunc(results, func(one T) bool { return !matches(one) })
		if err != nil || all || len(results) >= limit {
			return results[:min(len(results), max(0, limit))], err
		}
	}
}

type accountTx struct {
	accountReads
	tx store.Tx
}

func (tx accountTx) Put(r *store.Record) {
	if r.Account != tx.id {
		tx.a.wrong(r, tx.id)
		r = new(store.Record) // which is invalid
	}
	tx.tx.Put(r)
}

func (tx accountTx) Delete(kind store.Kind, id uuid.UUID) {
	if _, err := tx.Get(kind, id); err == nil {
		tx.tx.Delete(kind, id)
	}
}
