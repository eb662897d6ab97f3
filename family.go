package cardvault

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A family is a record and those that belong to it: its children, or the API keys below
// an API key. However many these are, the record alone is deleted at once, and with it
// they are dead: whoever reads one looks in the same transaction whether what it belongs
// to is there and lives. A small family goes as a whole; of a large one, what is left is
// erased by a job. No child has children of its own.

const (
	familyRows  = 512  // children that go in the transaction that deletes their parent, at most
	familyKeys  = 1000 // likewise, API keys below one
	eraseRows   = 256  // rows that the job erases in one transaction, at most
	erasePlaces = 64   // deleted records of which it looks for what is left in one transaction, at most
)

// parentKind returns of what kind the parents of records of a kind are, 0 if they have none.
func parentKind(kind store.Kind) store.Kind {
	switch kind {
	case kindAnswer, kindPaymentData, kindPaymentJWE, kindEvent, kindPast:
		return kindToken
	case kindCardArtPart:
		return kindCardArt
	case kindDelivery:
		return kindQueue
	}
	return 0
}

// belongs returns ErrNotFound unless that to which a record belongs is there and lives.
func (v *Vault) belongs(tx store.ReadTx, r *store.Record) error {
	if r.Kind == kindPaymentJWE { // which belongs to the token, and to the record beside it
		if _, err := tx.Get(kindPaymentData, r.ID); err != nil {
			return err
		}
	}
	return v.parent(tx, parentKind(r.Kind), r.Parent)
}

// parent returns ErrNotFound unless the parent with an id is there and lives. The zero id
// is that of no parent.
func (v *Vault) parent(tx store.ReadTx, kind store.Kind, id uuid.UUID) error {
	if id == uuid.Nil {
		return nil
	}
	if kind == kindQueue { // a queue that is missing is made anew, as long as there is its webhook
		kind, id = kindWebhook, beside(id)
	}
	_, err := v.find(tx, kind, id)
	return err
}

// remains are what is left of records of one kind that were deleted.
type remains struct {
	kind store.Kind
	of   []uuid.UUID // row keys of those records, at most sweepBatch
}

const (
	remainsKind = iota + 1
	remainsOf
)

func (m *remains) encode() []byte {
	b := tlv.AppendUint(make([]byte, 0, 64+20*len(m.of)), remainsKind, uint64(m.kind))
	for _, row := range m.of {
		b = tlv.Append(b, remainsOf, row[:])
	}
	return tlv.Pad(b, 64, 0)
}

func decodeRemains(plain []byte) (*remains, error) {
	m := new(remains)
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case remainsKind:
			m.kind = store.Kind(r.Uint())
		case remainsOf:
			var row uuid.UUID
			copy(row[:], r.Value)
			m.of = append(m.of, row)
		}
	}
	return m, readError(&r)
}

// newRemains returns the job that erases what is left of records. It is sealed before
// they are deleted, and written with that if something is left.
func (v *Vault) newRemains(kind store.Kind, of ...uuid.UUID) (*store.Record, error) {
	r := &store.Record{Kind: kindRemains, ID: uuid.New(), Account: v.account, Version: 1, Due: now()}
	return r, wrapped(v.box.SealShown(r, (&remains{kind, of}).encode()))
}

// deleteFamily deletes a record and what belongs to it. If that is too much for one
// transaction it writes left, the job that erases the rest, and returns true. Of the API
// keys below one it deletes those that were read before.
func deleteFamily(tx store.Tx, kind store.Kind, row uuid.UUID, left *store.Record, read map[uuid.UUID]glimpse) (large bool, err error) {
	tx.Delete(kind, row)
	most := familyRows
	if kind == kindAPIKey {
		most = familyKeys
	}
	all, _, err := deleteSome(tx, kind, row, most, read)
	if err == nil && !all {
		tx.Put(left)
	}
	return !all, err
}

// deleteSome deletes at most so many records that belong to one, and reports whether these
// are all, and how many it has deleted.
func deleteSome(tx store.Tx, kind store.Kind, row uuid.UUID, most int, read map[uuid.UUID]glimpse) (all bool, deleted int, err error) {
	below, unread, err := familyOf(tx, kind, row, most+1, read)
	if err != nil {
		return false, 0, err
	}
	deleted = min(len(below), most)
	for _, k := range below[:deleted] {
		tx.Delete(k.Kind, k.ID)
	}
	return deleted == len(below) && !unread, deleted, nil
}

// keysBelow reads at most so many of the API keys below each of some, if it is a kind of
// these: their records say by whom they were made, and are not believed in a transaction.
func (v *Vault) keysBelow(ctx context.Context, kind store.Kind, most int, rows ...uuid.UUID) (map[uuid.UUID]glimpse, error) {
	if kind != kindAPIKey {
		return nil, nil
	}
	read := map[uuid.UUID]glimpse{}
	for _, row := range rows {
		below, err := v.glimpses(ctx, kindAPIKey, createdBy(row), most)
		if err != nil {
			return nil, err
		}
		maps.Copy(read, below)
	}
	return read, nil
}

// familyOf returns the keys of at most limit records that belong to one, and whether there
// may be more: API keys that were not read before. It leaves out those that cannot be read,
// and what is of a kind that cannot belong to it.
func familyOf(tx store.ReadTx, kind store.Kind, row uuid.UUID, limit int, read map[uuid.UUID]glimpse) (keys []store.Key, unread bool, err error) {
	if kind == kindAPIKey {
		made, err := tx.Lookup(kindAPIKey, createdBy(row), limit)
		if err != nil && !errors.Is(err, ErrDamaged) { // what was found by mistake keeps no key from being revoked
			return nil, false, err
		}
		for _, r := range made {
			switch was := read[r.ID]; {
			case was.version != r.Version:
				unread = true
			case was.readable:
				keys = append(keys, store.Key{Kind: kindAPIKey, ID: r.ID})
			}
		}
		return keys, unread, nil
	}
	children, err := tx.Children(row, limit)
	full := len(children) == limit
	// No vault has made one of another kind. It stays, and keeps nothing from being erased.
	keys = slices.DeleteFunc(children, func(k store.Key) bool { return parentKind(k.Kind) != kind })
	return keys, full && 0 < len(keys) && len(keys) < limit, err
}

// erase is the job that erases what is left of records that were deleted, in
// transactions of at most eraseRows rows. Whatever ends it, what is erased is erased: it
// begins again with the records of which something may be left.
func (v *Vault) erase(ctx context.Context, j *job) error {
	m, err := decodeRemains(j.plain)
	if err != nil {
		return err
	}
	for len(m.of) > 0 {
		if time.Until(j.rec.Due) < sendTimeout || ended(j.ending) {
			j.rec.Due = now()
			return v.again(ctx, j.rec, m.encode())
		}
		began := time.Now()
		n, err := v.eraseBatch(ctx, m)
		if err != nil {
			return err // it is tried again after the lease
		}
		m.of = m.of[n:]
		v.rest(time.Since(began), j.ending)
	}
	return v.finish(ctx, j.rec)
}

// rest lets others write for as long as a batch took, unless nothing else is to be done: not
// in Drain.
func (v *Vault) rest(d time.Duration, ending <-chan struct{}) {
	if d <= 0 || v.work.running.Load() == 0 {
		return
	}
	select {
	case <-ending:
	case <-time.After(d):
	}
}

func ended(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// eraseBatch erases some of what is left, and returns of how many of the records, from
// the first on, nothing is left.
func (v *Vault) eraseBatch(ctx context.Context, m *remains) (done int, err error) {
	read, err := v.keysBelow(ctx, m.kind, eraseRows, m.of[:min(len(m.of), erasePlaces)]...)
	if err != nil {
		return 0, err
	}
	var left [][]store.Key // of the records from the first on
	rows, more := 0, false // whether there may be more of the last one
	err = v.view(ctx, func(tx store.ReadTx) error {
		left, rows, more = left[:0], 0, false
		for len(left) < min(len(m.of), erasePlaces) && !more {
			// Of keys that were not read somebody else has erased those before: a job for
			// one above or below.
			keys, unread, err := familyOf(tx, m.kind, m.of[len(left)], eraseRows-rows, read)
			if err != nil {
				return err
			}
			rows += len(keys)
			left = append(left, keys)
			more = unread || rows >= eraseRows
		}
		return nil
	})
	switch {
	case err != nil:
		return 0, err
	case rows == 0 && more:
		return len(left) - 1, nil
	case rows == 0:
		return len(left), nil
	}
	err = v.update(ctx, opStep, func(tx store.Tx) error {
		done = len(left)
		for i, keys := range left {
			if len(keys) == 0 {
				continue
			}
			// Only what belongs to nothing is erased, whatever the job says.
			switch stands, err := stands(tx, m.kind, m.of[i]); {
			case err != nil:
				return err
			case stands:
				continue
			case i == len(left)-1 && more:
				done = i
			}
			for _, k := range keys {
				tx.Delete(k.Kind, k.ID)
			}
		}
		return nil
	})
	return done, wrapped(err)
}

// stands reports whether there is a record to which others may belong.
func stands(tx store.ReadTx, kind store.Kind, row uuid.UUID) (bool, error) {
	_, err := tx.Get(kind, row)
	if kind == kindQueue && errors.Is(err, store.ErrNotFound) {
		_, err = tx.Get(kindWebhook, beside(row))
	}
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
