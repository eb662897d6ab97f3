package removal

import (
	"bytes"
	"context"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	workers    = 4                // jobs that are done at a time
	batchRows  = 48               // records that a job erases in one transaction, at most
	batchOf    = 64               // deleted records whose families it looks at in one transaction, at most
	batchSpare = 15 * time.Second // of its lease, within which a job begins no batch
)

// remains lists deleted records of one kind with surviving descendants.
type remains struct {
	kind store.Kind
	of   []uuid.UUID // row keys of those records, at most lapseBatch
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

// Remains returns the sealed job that erases the descendants of deleted records. It is for
// ledger.DeleteFamily, which writes it if descendants survive.
func (e *Eraser) Remains(rows ledger.Account, kind store.Kind, of ...uuid.UUID) (*store.Record, error) {
	r := &store.Record{Kind: e.config.Remains, ID: uuid.New(), Account: rows.ID, Version: 1, Due: ledger.Now()}
	return r, rows.SealShown(r, (&remains{kind, of}).encode())
}

// Of returns the deleted records whose descendants a job erases: their kind and row keys. The
// record of the job stays as it is.
func (e *Eraser) Of(ctx context.Context, job *store.Record) (store.Kind, []uuid.UUID, error) {
	opened := *job
	opened.Shown = bytes.Clone(job.Shown)
	plain, err := e.ledger.OpenShown(ctx, &opened)
	if err != nil {
		return 0, nil, err
	}
	m, err := decodeRemains(plain)
	return m.kind, m.of, err
}

// Kind returns the background work that erases the remains of families.
func (e *Eraser) Kind() jobs.Kind {
	return jobs.Kind{Records: e.config.Remains, Workers: workers, Longest: e.config.Longest, Do: e.erase}
}

// erase is the job that erases the descendants of deleted records, in transactions of at
// most batchRows records. It can be interrupted at any point, and begins again with the
// records that may still have descendants.
func (e *Eraser) erase(ctx context.Context, j *jobs.Job) error {
	m, err := decodeRemains(j.Plain)
	if err != nil {
		return err
	}
	rows := e.ledger.In(j.Record.Account)

	for len(m.of) > 0 {
		if time.Until(j.Record.Due) < batchSpare || isClosed(j.Ending) {
			j.Record.Due = ledger.Now()
			return e.jobs.Again(ctx, j.Record, m.encode())
		}
		began := time.Now()
		n, err := e.eraseBatch(ctx, rows, m)
		if err != nil {
			return err // it is tried again after the lease
		}
		m.of = m.of[n:]
		e.jobs.Rest(time.Since(began), j.Ending) // others write for as long as the batch took
	}
	return e.jobs.Finish(ctx, j.Record)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// eraseBatch erases a part of the remains. It returns the number of records, counted from
// the first, that have none left.
func (e *Eraser) eraseBatch(ctx context.Context, rows ledger.Account, m *remains) (done int, err error) {
	of := m.of[:min(len(m.of), batchOf)]
	read, err := rows.Made(ctx, m.kind, batchRows, of...)
	if err != nil {
		return 0, err
	}

	var left [][]store.Key // of the records from the first on
	n, more := 0, false    // rows, and whether there may be more of the last record
	err = rows.View(ctx, func(tx store.ReadTx) error {
		left, n, more = left[:0], 0, false
		for len(left) < len(of) && !more {
			// Of keys that were not read, a job for a record above or below has erased those
			// before.
			keys, unread, err := e.ledger.FamilyOf(tx, m.kind, of[len(left)], batchRows-n, read)
			if err != nil {
				return err
			}
			n += len(keys)
			left = append(left, keys)
			more = unread || n >= batchRows
		}
		return nil
	})
	switch {
	case err != nil:
		return 0, err
	case n == 0 && more:
		return len(left) - 1, nil
	case n == 0:
		return len(left), nil
	}

	err = rows.Update(ctx, ledger.Step, func(tx store.Tx) error {
		done = len(left)
		for i, keys := range left {
			if len(keys) == 0 {
				continue
			}
			// Only what belongs to nothing is erased, whatever the job says.
			switch stands, err := e.ledger.Stands(tx, m.kind, of[i]); {
			case err != nil:
				return err
			case stands:
				continue
			case i == len(left)-1 && more:
				done = i
			}
			for _, k := range keys {
				e.ledger.Delete(tx, k.Kind, k.ID)
			}
		}
		return nil
	})
	return done, err
}
