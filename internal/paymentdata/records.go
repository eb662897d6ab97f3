// Package paymentdata keeps the payment data of tokens.
package paymentdata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Classes of payment data in the list of their token.
const (
	succeeded = iota + 1
	failed
)

// trimmed bounds the records that are erased to make room for one. It is more than one in
// case the quota was higher before.
const trimmed = 4

// Tags of the record of a JWE, which is apart so that it can be erased on its own.
const (
	tagJWE = iota + 1
	tagEdition
)

// Records keeps the payment data of an account. Each is a child of its token. The JWE has a
// record of its own with the same row key, which lapses.
type Records struct {
	ledger.Account
	Data, JWEs store.Kind

	// Edition names the card number of the token. A JWE of another edition is not kept any
	// more: its card was replaced.
	Edition uint64
}

// An Entry is payment data to store.
type Entry struct {
	Token   *store.Record // as it was read
	Row, ID uuid.UUID     // of the payment data
	Plain   []byte
	Success bool
	JWE     string               // may be ""
	Until   time.Time            // end of the time for which the JWE is kept; zero: it is not
	Most    int                  // quota of the token
	Also    func(store.Tx) error // writes what belongs to it
}

// errMoved is returned in a transaction that finds another version of the token.
var errMoved = fmt.Errorf("%w: token", ledger.ErrAgain)

// Store writes an entry, unless its token was deleted meanwhile. The JWE is left out if the
// token has another card by then, as edition says. If the token has as many as Most, older ones
// make room.
func (s Records) Store(ctx context.Context, op ledger.Operation, e *Entry, edition func(context.Context, *store.Record) (uint64, error)) error {
	token, until := e.Token, e.Until
	for {
		records, err := s.seal(e, until)
		if err != nil {
			return err
		}
		err = s.Write(ctx, op, e.ID, func(tx store.Tx) error {
			switch is, err := s.Find(tx, token.Kind, token.ID); {
			case err != nil:
				return err
			case is.Version != token.Version:
				return errMoved
			}
			if err := s.trim(tx, token.ID, e.Most); err != nil {
				return err
			}
			for _, r := range records {
				tx.Put(r)
			}
			return e.Also(tx)
		})
		if !errors.Is(err, errMoved) {
			return err
		}

		if token, err = s.GetRow(ctx, token.Kind, token.ID); err != nil {
			return err
		}
		switch is, err := edition(ctx, token); {
		case err != nil:
			return err
		case is != s.Edition:
			until = time.Time{}
		}
	}
}

// seal returns the records of an entry, whose JWE is kept until a time.
func (s Records) seal(e *Entry, until time.Time) ([]*store.Record, error) {
	data := s.NewRecord(s.Data, e.Row)
	data.Parent, data.Class = e.Token.ID, failed
	if e.Success {
		data.Class = succeeded
	}
	if err := s.SealShown(data, e.Plain); err != nil {
		return nil, err
	}
	if e.JWE == "" || until.IsZero() {
		return []*store.Record{data}, nil
	}

	kept := s.NewRecord(s.JWEs, e.Row)
	kept.Parent, kept.Due = e.Token.ID, until
	plain := tlv.AppendUint(tlv.Append(make([]byte, 0, len(e.JWE)+128), tagJWE, e.JWE), tagEdition, s.Edition)
	return []*store.Record{data, kept}, s.SealShown(kept, tlv.Pad(plain, 64, 0))
}

// trim makes room for payment data of a token that has as many as most. It erases the
// oldest failures first, then the oldest without a stored JWE. Payment data with a JWE
// stays, so there may be more than most until it has lapsed: the quota never prevents a
// payment. JWEs lapse in the order in which they were made, so the oldest show whether any
// is without.
func (s Records) trim(tx store.Tx, token uuid.UUID, most int) error {
	q := &store.Query{Kind: s.Data, Account: s.ID, Parent: token, Count: true}
	all, err := tx.List(q)
	if err != nil || all.Total < int64(most) {
		return err
	}

	room := int(min(trimmed, all.Total-int64(most)+1))
	for _, class := range []uint8{failed, succeeded} {
		if room == 0 {
			break
		}

		q := &store.Query{Kind: s.Data, Account: s.ID, Parent: token, Limit: room}
		q.Classes.Add(class)
		oldest, err := tx.List(q)
		if err != nil {
			return err
		}

		for _, r := range oldest.Records {
			switch jwe, err := tx.Get(s.JWEs, r.ID); {
			case err != nil && !errors.Is(err, store.ErrNotFound):
				return err
			case err == nil && ledger.Lives(jwe, ledger.Now()):
				continue
			}
			tx.Delete(s.Data, r.ID)
			tx.Delete(s.JWEs, r.ID)
			room--
		}
	}
	return nil
}

// Kept adds to kept the JWEs of a list of payment data, by their row keys. The payment data
// and their token are there.
func (s Records) Kept(tx store.ReadTx, list *store.List, kept map[uuid.UUID]*store.Record) error {
	damaged := func(id uuid.UUID) *store.Record { return &store.Record{Kind: s.JWEs, ID: id, Account: s.ID} } // when it is opened
	absent := map[uuid.UUID]bool{}
	q := &store.Query{Kind: s.JWEs, Account: s.ID, Limit: len(list.Records)}
	for _, r := range list.Records {
		if r.Class != succeeded {
			continue
		}
		jwe, err := tx.Get(s.JWEs, r.ID)
		switch {
		case ledger.Unreadable(err):
			kept[r.ID] = damaged(r.ID)
		case err == nil && jwe.Account == s.ID && ledger.Lives(jwe, ledger.Now()):
			kept[r.ID] = jwe
		case errors.Is(err, store.ErrNotFound):
			absent[r.ID], q.Parent = true, r.Parent
		case err != nil:
			return err
		}
	}
	if len(absent) == 0 {
		return nil
	}

	// Those that the list has all the same were lost.
	ids := slices.SortedFunc(maps.Keys(absent), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	q.Min, q.Max = ids[0], ids[len(ids)-1]
	named, err := tx.List(q)
	if named == nil {
		return err
	}
	for _, r := range named.Records {
		if absent[r.ID] {
			kept[r.ID] = damaged(r.ID)
		}
	}
	return nil
}

// JWE returns the JWE of payment data of a token, "" if it is not kept any more.
func (s Records) JWE(ctx context.Context, row, token uuid.UUID) (string, error) {
	r, err := s.GetOf(ctx, s.JWEs, row, token)
	if errors.Is(err, ledger.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return s.OpenJWE(ctx, r)
}

// OpenJWE returns the JWE in a record, "" if it has another edition.
func (s Records) OpenJWE(ctx context.Context, rec *store.Record) (jwe string, err error) {
	edition := uint64(0)
	err = s.ReadFields(ctx, rec, func(f *tlv.Fields) {
		tlv.Text(f, tagJWE, &jwe)
		tlv.Uint(f, tagEdition, &edition)
	})
	if err != nil || edition != s.Edition {
		return "", err
	}
	return jwe, nil
}

// LatestJWEs returns the keys of the JWEs of a token's latest payment data. It looks at no more
// payment data than most.
func (s Records) LatestJWEs(ctx context.Context, token uuid.UUID, most int) (keys []store.Key, err error) {
	q := &store.Query{Kind: s.Data, Account: s.ID, Parent: token, Desc: true, Limit: most}
	q.Classes.Add(succeeded)

	err = s.View(ctx, func(tx store.ReadTx) error {
		keys = nil
		latest, err := tx.List(q)
		if latest == nil {
			return err
		}
		for _, r := range latest.Records {
			switch _, err := tx.Get(s.JWEs, r.ID); {
			case err == nil, ledger.Unreadable(err):
				keys = append(keys, store.Key{Kind: s.JWEs, ID: r.ID})
			case !errors.Is(err, store.ErrNotFound):
				return err
			}
		}
		return nil
	})
	return keys, err
}
