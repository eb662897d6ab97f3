package cardvault

import (
	"context"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	eraseRows   = 256 // rows that the job erases in one transaction, at most
	erasePlaces = 64  // deleted records of which it looks for what is left in one transaction, at most
)

// families says how records belong together. A kind that is missing has no parent.
var families = ledger.Families{
	kindAPIKey:      {Made: createdBy},
	kindAnswer:      {Parent: kindToken},
	kindPaymentData: {Parent: kindToken},
	kindPaymentJWE:  {Parent: kindToken, Beside: kindPaymentData},
	kindEvent:       {Parent: kindToken},
	kindPast:        {Parent: kindToken},
	kindCardArtPart: {Parent: kindCardArt},
	kindQueue:       {Stands: webhookOf},
	kindDelivery:    {Parent: kindQueue},
}

// webhookOf returns the webhook of a queue: a queue that is missing is made anew as long
// as its webhook is there.
func webhookOf(row uuid.UUID) (store.Kind, uuid.UUID) { return kindWebhook, beside(row) }

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
	return m, ledger.ReadError(&r)
}

// newRemains returns the job that erases what is left of records. It is sealed before
// they are deleted, and written with that if something is left.
func (v *Vault) newRemains(kind store.Kind, of ...uuid.UUID) (*store.Record, error) {
	r := &store.Record{Kind: kindRemains, ID: uuid.New(), Account: v.rows.ID, Version: 1, Due: now()}
	return r, v.rows.SealShown(r, (&remains{kind, of}).encode())
}

// erase is the job that erases what is left of records that were deleted, in
// transactions of at most eraseRows rows. Whatever ends it, what is erased is erased: it
// begins again with the records of which something may be left.
func (v *Vault) erase(ctx context.Context, j *jobs.Job, m *remains) error {
	for len(m.of) > 0 {
		if time.Until(j.Record.Due) < sendTimeout || isClosed(j.Ending) {
			j.Record.Due = now()
			return v.jobs.Again(ctx, j.Record, m.encode())
		}
		began := time.Now()
		n, err := v.eraseBatch(ctx, m)
		if err != nil {
			return err // it is tried again after the lease
		}
		m.of = m.of[n:]
		v.rest(time.Since(began), j.Ending)
	}
	return v.jobs.Finish(ctx, j.Record)
}

// rest lets others write for as long as a batch took, unless nothing else is to be done: not
// in Drain.
func (v *Vault) rest(d time.Duration, ending <-chan struct{}) {
	if d <= 0 || !v.jobs.Running() {
		return
	}
	select {
	case <-ending:
	case <-time.After(d):
	}
}

func isClosed(c <-chan struct{}) bool {
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
	read, err := v.rows.Made(ctx, m.kind, eraseRows, m.of[:min(len(m.of), erasePlaces)]...)
	if err != nil {
		return 0, err
	}
	var left [][]store.Key // of the records from the first on
	rows, more := 0, false // whether there may be more of the last one
	err = v.rows.View(ctx, func(tx store.ReadTx) error {
		left, rows, more = left[:0], 0, false
		for len(left) < min(len(m.of), erasePlaces) && !more {
			// Of keys that were not read somebody else has erased those before: a job for
			// one above or below.
			keys, unread, err := v.ledger.FamilyOf(tx, m.kind, m.of[len(left)], eraseRows-rows, read)
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
	err = v.rows.Update(ctx, opStep, func(tx store.Tx) error {
		done = len(left)
		for i, keys := range left {
			if len(keys) == 0 {
				continue
			}
			// Only what belongs to nothing is erased, whatever the job says.
			switch stands, err := v.ledger.Stands(tx, m.kind, m.of[i]); {
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
	return done, err
}
