package replay

import (
	"bytes"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// maxMistakes limits the other requests that one root may send under a key.
const maxMistakes = 5

// Tags of a key.
const (
	keyFingerprint = iota + 1
	keyLease       // end of a claim; absent once there is an answer
	keyRow
	keyRefused
	keyOnce // no call takes over the claim
)

// mistakesCount is the tag of the number in a record of mistakes.
const mistakesCount = 1

// A firstCall is the call that was made under a key, as the record of the key has it.
type firstCall struct {
	fingerprint []byte
	until       time.Time // end of its claim; zero once there is an answer
	row         uuid.UUID
	refused     bool
	once        bool // no call takes over its claim
	version     uint64
}

// repeats returns the call that was made under the key, and its result if that still
// exists, or nil if there was no call. For another request it returns ErrReused once that
// is counted: if it cannot be counted, the caller does not learn of it.
func (c *Call) repeats(ctx context.Context) (first *firstCall, result *store.Record, err error) {
	for {
		var key, count *store.Record
		key, result, count, err = c.read(ctx)
		if key == nil || err != nil {
			return nil, nil, err
		}

		if first, err = c.readFirst(ctx, key); err != nil {
			return nil, nil, err
		}
		if !key.Due.After(c.at) { // that is authenticated by now: nothing is made twice because a row says so
			c.lapsed = key.Version
			return nil, nil, nil
		}

		n, err := c.readMistakes(ctx, count)
		switch {
		case err != nil:
			return nil, nil, err
		case n >= maxMistakes:
			return nil, nil, ErrReused
		}

		// A root that was wrong before is counted in advance, because other processes may be
		// asked at the same time. So is every root while counting fails.
		advance := n > 0 || c.calls.uncounted.Load()
		if advance {
			if count, err = c.storeMistakes(ctx, key, count, n+1); errors.Is(err, store.ErrConflict) {
				continue
			} else if err != nil {
				return nil, nil, err
			}
		}

		right := subtle.ConstantTimeCompare(first.fingerprint, c.fingerprint) == 1
		switch {
		case right && advance:
			// If this fails there was one mistake more.
			_, _ = c.storeMistakes(ctx, key, count, n)
		case !right && !advance:
			if _, err = c.storeMistakes(ctx, key, count, n+1); errors.Is(err, store.ErrConflict) {
				continue
			} else if err != nil {
				return nil, nil, err
			}
		}

		if !right {
			return nil, nil, ErrReused
		}
		return first, result, nil
	}
}

// read returns the record of the key and, if it exists, the records of its result and of
// the mistakes under it. Each is nil if it is absent.
func (c *Call) read(ctx context.Context) (key, result, count *store.Record, err error) {
	err = c.rows.View(ctx, func(tx store.ReadTx) (err error) {
		if key, err = tx.Get(c.key.Kind, c.key.ID); err != nil {
			key = nil
			if errors.Is(err, store.ErrNotFound) {
				err = nil
			}
			return err
		}

		result, err = c.rows.Find(tx, c.result.Kind, c.result.ID)
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, ledger.ErrNotFound) {
			result, err = nil, nil // deleted with its parent, or lapsed
		}
		if err != nil {
			return err
		}

		count, err = tx.Get(c.calls.config.Mistakes, c.mistakes)
		if errors.Is(err, store.ErrNotFound) {
			count, err = nil, nil
		}
		return err
	})
	return key, result, count, err
}

func (c *Call) readFirst(ctx context.Context, key *store.Record) (*firstCall, error) {
	r, err := c.rows.Read(ctx, key)
	if err != nil {
		return nil, err
	}

	first := &firstCall{version: key.Version}
	for r.Next() {
		switch r.Tag {
		case keyFingerprint:
			first.fingerprint = r.Value
		case keyLease:
			first.until = r.Time()
		case keyRow:
			copy(first.row[:], r.Value)
		case keyRefused:
			first.refused = r.Bool()
		case keyOnce:
			first.once = r.Bool()
		}
	}

	if r.Err() != nil || first.fingerprint == nil {
		return nil, fmt.Errorf("%w: idempotency record cannot be read", ledger.ErrDamaged)
	}
	return first, nil
}

// Claimed reports whether a call may be under way under a key whose record holds plain. A
// call that is late by less than a claim counts as under way.
func Claimed(plain []byte) bool {
	r := tlv.Read(plain)
	for r.Next() {
		if r.Tag == keyLease {
			return r.Time().Add(claimLease).After(ledger.Now())
		}
	}
	return false
}

// readMistakes returns how many mistakes a record counts, which may be nil or lapsed.
func (c *Call) readMistakes(ctx context.Context, count *store.Record) (n uint64, err error) {
	if count == nil || !ledger.Lives(count, c.at) {
		return 0, nil
	}

	r, err := c.rows.Read(ctx, count)
	if err != nil {
		return 0, err
	}

	for r.Next() {
		if r.Tag == mistakesCount {
			n = r.Uint()
		}
	}
	return n, ledger.ReadError(r)
}

// storeMistakes stores how many mistakes there were, in place of the former count, which
// may be nil. It returns the record that it stored, and store.ErrConflict if another call
// was faster. It goes on when the caller has left.
func (c *Call) storeMistakes(ctx context.Context, key, former *store.Record, n uint64) (*store.Record, error) {
	r := &store.Record{Kind: c.calls.config.Mistakes, ID: c.mistakes, Account: c.rows.ID, Due: key.Due, Version: 1}
	if former != nil {
		r.Version = former.Version + 1
	}
	if err := c.rows.SealShown(r, tlv.AppendUint(nil, mistakesCount, n)); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := c.rows.Update(ctx, ledger.Step, func(tx store.Tx) error {
		tx.Put(r)
		return nil
	})

	if !errors.Is(err, store.ErrConflict) {
		c.calls.uncounted.Store(err != nil)
	}
	return r, err
}

// AnswersOf returns the keys of the answers that belong to a record and begin with its row key.
// It looks at no more of the record's children than most. Answers that cannot be read are
// left out.
func (c *Calls) AnswersOf(ctx context.Context, rows ledger.Account, parent uuid.UUID, most int) (keys []store.Key, err error) {
	var children []store.Key
	err = rows.View(ctx, func(tx store.ReadTx) (err error) {
		children, err = tx.Children(parent, most)
		return err
	})
	children = slices.DeleteFunc(children, func(k store.Key) bool { return k.Kind != c.config.Answers })
	for some := range slices.Chunk(children, answersAtOnce) {
		if err == nil {
			some, err = beginning(ctx, rows, some, parent)
			keys = append(keys, some...)
		}
	}
	return keys, err
}

// answersAtOnce bounds the answers that are in memory at a time: each may be as long as a record.
const answersAtOnce = 16

// beginning returns the keys of the records that begin with a row key.
func beginning(ctx context.Context, rows ledger.Account, all []store.Key, with uuid.UUID) (keys []store.Key, err error) {
	var answers []*store.Record
	err = rows.View(ctx, func(tx store.ReadTx) error {
		answers = nil
		for _, k := range all {
			if r, err := tx.Get(k.Kind, k.ID); err == nil {
				answers = append(answers, r)
			} else if !errors.Is(err, store.ErrNotFound) && !ledger.Unreadable(err) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}

	for _, r := range answers {
		plain, err := rows.OpenShown(ctx, r)
		switch {
		case err == nil && bytes.HasPrefix(plain, with[:]):
			keys = append(keys, store.Key{Kind: r.Kind, ID: r.ID})
		case err != nil && !errors.Is(err, ledger.ErrDamaged):
			return nil, err
		}
	}
	return keys, nil
}
