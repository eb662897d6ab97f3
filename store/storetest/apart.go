package storetest

import (
	"context"

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

func (tx accountReads) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	keys, err := tx.ReadTx.Children(parent, limit)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if _, err := tx.Get(k.Kind, k.ID); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

type accountTx struct {
	accountReads
	tx store.Tx
}

func (tx accountTx) Put(r *store.Record) {
	if r.Account != tx.id {
		tx.a.wrong(r, tx.id)
	}
	tx.tx.Put(r)
}

func (tx accountTx) Delete(kind store.Kind, id uuid.UUID) {
	if _, err := tx.Get(kind, id); err == nil {
		tx.tx.Delete(kind, id)
	}
}
