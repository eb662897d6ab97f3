package ledger

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// OpRetireTerm is the operation of writes that close terms, or destroy their keys.
var OpRetireTerm = Ends("keys.retire")

// Errors of CloseTerm. Package cardvault says what to do.
var (
	ErrTermActive  = errors.New("cardvault: records are sealed under the key term: call RotateKeys first")
	ErrTermUnknown = errors.New("cardvault: the vault has no such key term")
)

// CloseTerm closes a former term, and returns its key: no transaction that begins afterwards
// writes anything under it. A term that is closed or destroyed stays as it is.
func (l *Ledger) CloseTerm(ctx context.Context, number uint32) (is *seal.Term, err error) {
	closes := false
	err = l.alter(ctx, &alteration{
		op: OpRetireTerm,
		next: func(k *seal.Keys, _ *meta) (*seal.Keys, error) {
			is, closes = k.Masters.Term(number), false
			switch {
			case is == nil:
				return nil, ErrTermUnknown
			case is.State == seal.Active:
				return nil, ErrTermActive
			case is.State != seal.Readable:
				return nil, nil
			}
			next := k.Close(number, Now())
			is, closes = next.Masters.Term(number), true
			return next, nil
		},
		also: func(tx store.Tx, former, _ *seal.Keys) error {
			tx.Delete(KindMeta, countOf(former, number))
			return l.config.Rotated(tx)
		},
	})

	if closes && err == nil {
		l.config.Log.Info("a key term was closed", "term", number)
	}
	return is, err
}

// DestroyTerms destroys the keys of those terms that are closed, and calls also in its
// transaction.
func (l *Ledger) DestroyTerms(ctx context.Context, numbers []uint32, also func(store.Tx) error) error {
	return l.alter(ctx, &alteration{
		op: OpRetireTerm,
		next: func(k *seal.Keys, _ *meta) (*seal.Keys, error) {
			closed := slices.DeleteFunc(slices.Clone(numbers), func(n uint32) bool {
				t := k.Masters.Term(n)
				return t == nil || t.State != seal.Closed
			})
			if len(closed) == 0 {
				return nil, nil
			}
			return k.Destroy(Now(), closed...), nil
		},
		also: func(tx store.Tx, _, _ *seal.Keys) error { return also(tx) },
	})
}

// A lateSeal is the error of a transaction that puts a part under a term whose count of seals
// is not there: the term is closed, or a rotation of hashes has moved the count. With term 0 a
// record has hashes of other keys than the transaction.
type lateSeal struct {
	term    uint32
	keys    *seal.Keys      // of the transaction
	records []*store.Record // all that it puts
}

func (*lateSeal) Error() string { return "cardvault: key term of the record is closed" }

// sealedInTime returns a lateSeal for a transaction that puts a part under a closed term, or
// with keys of before a step of a rotation of hashes. So a process that was stopped after it
// had sealed a record cannot commit the record, however much later it goes on.
func (c *checkedCall) sealedInTime() error {
	c.open = c.open[:0]
	for _, r := range c.puts {
		if c.tx.s.outdated(c.keys, r) {
			return &lateSeal{0, c.keys, slices.Clone(c.puts)}
		}

		for _, part := range [...][]byte{r.Shown, r.Secret} {
			term, sealed := seal.TermOf(part)
			if !sealed || term == c.vouched || slices.Contains(c.open, term) {
				continue
			}
			switch _, err := c.tx.Get(KindMeta, countOf(c.keys, term)); {
			case errors.Is(err, store.ErrNotFound):
				return &lateSeal{term, c.keys, slices.Clone(c.puts)}
			case err != nil:
				return &unnamed{err, store.Record{Kind: KindMeta}}
			}
			c.open = append(c.open, term)
		}
	}
	return nil
}

// vouch says that a transaction replaces the keyring of keys: their active term is open then.
func vouch(tx store.Tx, keys *seal.Keys) {
	tx.(*checkedTx).call.vouched = keys.Masters.Active().Number
}

// sealAnew seals the records of a lateSeal under the present term, before they are put again.
func (l *Ledger) sealAnew(ctx context.Context, late *lateSeal) error {
	if err := l.Reload(ctx); err != nil {
		return err
	}
	present := l.Term()
	if late.term == present && late.keys == l.Box.Keys() {
		return l.Named(&store.Record{Kind: KindMeta}, errCount)
	}

	for _, r := range late.records {
		shown, secret := *r, *r
		shown.Shown, secret.Secret = bytes.Clone(r.Shown), bytes.Clone(r.Secret)
		rehash := l.Outdated(r)
		err := errors.Join(
			anew(r.Shown, present, rehash, func() ([]byte, error) { return l.Box.OpenShown(&shown) }, func(plain []byte) error {
				if rehash {
					if err := l.HashAnew(r, plain); err != nil {
						return err
					}
				}
				return l.Box.SealShown(r, plain)
			}),
			anew(r.Secret, present, false, func() ([]byte, error) { return l.Box.OpenSecret(&secret) }, func(plain []byte) error { return l.Box.SealSecret(r, plain) }))
		if errors.Is(err, seal.ErrUnknownTerm) {
			return errKeyGone
		}
		if err != nil {
			return l.Named(r, Translate(err))
		}
	}
	return nil
}

// errKeyGone is returned by a call that was stopped, after it had sealed a record, until the
// key was destroyed, and by a call that puts records under a closed term each time.
var errKeyGone = fmt.Errorf("%w: the key term of a record was retired before the record was written: call again", ErrUnavailable)

// anew opens a part that is not under the present term, or has to be sealed again in any case,
// and seals it again.
func anew(part []byte, present uint32, always bool, open func() ([]byte, error), seals func([]byte) error) error {
	if term, sealed := seal.TermOf(part); !sealed || term == present && !always {
		return nil
	}
	plain, err := open()
	if err != nil {
		return err
	}
	defer clear(plain)
	return seals(plain)
}

// countOf is the id of the record that counts the seals of a term. It is there from the
// beginning of the term until the term is closed. Each step of a rotation of hashes moves it, each
// fence, and each beginning of sums, so a process with keys of before the step does not find it.
func countOf(k *seal.Keys, term uint32) uuid.UUID {
	id := numbered(1, term)
	begins := k.SumBegins()
	id[1], id[2], id[3] = byte(begins>>16), byte(begins>>8), byte(begins)
	binary.BigEndian.PutUint32(id[4:], k.Fences)
	binary.BigEndian.PutUint32(id[8:], k.Steps())
	return id
}

// moveCounts moves the counts of all terms that are open, in the transaction of a fence, of the
// beginning of sums, or of a step of a rotation of hashes after which nothing is written with the keys
// of before. A count that is lost
// stays so until RotateKeys begins another.
func moveCounts(tx store.Tx, former, next *seal.Keys) error {
	if former.Steps() == next.Steps() && former.Fences == next.Fences && former.SumBegins() == next.SumBegins() {
		return nil
	}
	for _, t := range former.Masters {
		if t.State != seal.Active && t.State != seal.Readable {
			continue
		}
		id := countOf(former, t.Number)
		switch rec, err := tx.Get(KindMeta, id); {
		case err == nil:
			moved := *rec
			moved.ID, moved.Version = countOf(next, t.Number), 1
			tx.Put(&moved)
		case !errors.Is(err, store.ErrNotFound) && !Unreadable(err):
			return err
		}
		tx.Delete(KindMeta, id)
	}
	return nil
}

// errRehash is the error of a transaction that writes hashes made with former keys.
var errRehash = fmt.Errorf("%w: a record has hashes of former keys", store.ErrConflict)

// Printed returns an error that wraps store.ErrConflict unless fingerprints of some terms are
// those that a transaction of Update writes for a new number. No process writes others once a
// step of a rotation is committed, however long it was stopped before the transaction, because
// sealedInTime looks with the same keys.
func Printed(tx store.Tx, terms []uint32) error {
	if !slices.Equal(terms, tx.(*checkedTx).call.keys.Fingerprints.Hashing()) {
		return errRehash
	}
	return nil
}

// Rehash reports whether err says that a write was made with former keys of hashes. It has to
// be made anew; this process has the present ones.
func Rehash(err error) bool { return errors.Is(err, errRehash) }
