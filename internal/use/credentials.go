package use

import (
	"bytes"
	"context"
	"errors"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Credentials are secrets of the operator for calls of an account, by the name of the other
// system and a name of their own. They are sealed as cards are.
type Credentials struct {
	Rows ledger.Account
	Kind store.Kind

	Sets, Deletes ledger.Operation

	Doing func(ctx context.Context, what string, err *error, object ...uuid.UUID) // adds the attempted action to an error
}

// tagCredential is the tag of the secret in a record, which is padded.
const tagCredential = 1

// Set stores a credential, in place of a former one, for each call that begins from now on.
func (c Credentials) Set(ctx context.Context, system, name string, secret []byte) (err error) {
	defer c.Doing(ctx, "set credential", &err)
	if err := c.Rows.Exists(ctx); err != nil {
		return err
	}
	plain := tlv.Pad(tlv.Append(make([]byte, 0, len(secret)+128), tagCredential, secret), 64, 64)
	defer clear(plain)

	_, err = ledger.Retry(ctx, func() (none struct{}, err error) {
		r := &store.Record{Kind: c.Kind, ID: c.row(system, name), Account: c.Rows.ID, Version: 1}
		former, err := c.Rows.GetRow(ctx, c.Kind, r.ID)
		switch {
		case err == nil:
			r.Version = former.Version + 1
		case !errors.Is(err, ledger.ErrNotFound):
			return none, err
		}
		if err := c.Rows.SealShown(r, plain); err != nil {
			return none, err
		}
		return none, c.Rows.Put(ctx, c.Sets, uuid.Nil, r)
	})
	return err
}

// Get returns a credential, for the caller to erase, or ledger.ErrNotFound.
func (c Credentials) Get(ctx context.Context, system, name string) (secret []byte, err error) {
	defer c.Doing(ctx, "get credential", &err)
	rec, err := c.Rows.GetRow(ctx, c.Kind, c.row(system, name))
	if err != nil {
		return nil, err
	}
	r, err := c.Rows.Read(ctx, rec)
	if err != nil {
		return nil, err
	}
	defer func() { clear(rec.Shown) }()

	for r.Next() {
		if r.Tag == tagCredential {
			secret = bytes.Clone(r.Value)
		}
	}
	return secret, ledger.ReadError(r)
}

// Delete deletes a credential, or returns ledger.ErrNotFound.
func (c Credentials) Delete(ctx context.Context, system, name string) (err error) {
	defer c.Doing(ctx, "delete credential", &err)
	row := c.row(system, name)
	return c.Rows.Write(ctx, c.Deletes, uuid.Nil, func(tx store.Tx) error {
		if _, err := c.Rows.Find(tx, c.Kind, row); err != nil {
			return err
		}
		tx.Delete(c.Kind, row)
		return nil
	})
}

// row returns the row key of a credential, which says nothing without the keys of the vault.
func (c Credentials) row(system, name string) uuid.UUID {
	return uuid.UUID(c.Rows.Box.Idempotency(c.Rows.ID, []byte("credential"), []byte(system), []byte(name))[:16])
}
