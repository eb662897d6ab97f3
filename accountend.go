package cardvault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/removal"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// newCloser returns what erases the records of accounts that are closed.
func newCloser(v *Vault) *removal.Closer {
	// The audit log stays for its time, and the hashes of given API keys so that none is valid again.
	kept := []store.Kind{kindAuditRecord, kindAuditCheckpoint, kindAuditChain, kindAuditSegment, kindGivenKey}
	var erased []store.Kind
	for kind := kindAccount + 1; kind <= lastKind; kind++ {
		if homes[kind] != ledger.Nowhere && !slices.Contains(kept, kind) {
			erased = append(erased, kind)
		}
	}

	return removal.NewCloser(removal.Closing{
		Eraser:  v.eraser,
		Records: kindClosing,
		Awaited: []store.Kind{kindRelease},
		Kinds:   erased,
		Erase: func(ctx context.Context, r *store.Record) (bool, error) {
			if r.Kind != kindToken {
				return false, nil
			}
			of := v.of(r.Account)
			id := of.rows.Mask(kindToken, r.ID)
			err := of.deleteToken(ctx, deletion{id: id, row: r.ID, op: opDelete})
			switch {
			case errors.Is(err, ErrNotFound): // it has lapsed, and its rest is erased as any record
				return false, nil
			case errors.Is(err, ErrDamaged):
				v.log.Error("a token of a closed account cannot be read: its network token may be left at the network", "token", id, "error", err)
				return false, nil
			}
			return true, err
		},
		End: func(ctx context.Context, account uuid.UUID, also func(store.Tx) error) error {
			if err := reportClosed(ctx, v.core, account); err != nil {
				return fmt.Errorf("the end of a closed account could not be passed on: %w", err)
			}
			return v.of(account).changeAccount(ctx, opAccountClosed, account, func(a *Account) (func(store.Tx) error, error) {
				*a = Account{ID: a.ID, CreatedAt: a.CreatedAt, State: AccountClosed, Since: now()}
				return also, nil
			})
		},
	})
}

// reportClosed reports the end of an account to the sink before it is stored. The job that erases the
// account repeats the report, which needs no record of the account.
func reportClosed(ctx context.Context, v *core, account uuid.UUID) error {
	sink, ok := v.opts.Events.(AccountSink)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return v.guard("event sink", func() error {
		return cmp.Or(sink.AccountClosed(ctx, account), ctx.Err()) // it may have taken it after the vault gave up
	})
}

const (
	retentionBatch = 256       // tokens that are deleted before the job is stored again
	retentionPause = time.Hour // at most, between two looks at the oldest token
)

// A retention is the job that deletes the tokens of an account at an age.
type retention struct{ from uuid.UUID } // row key to go on from

func (r *retention) fields(f *tlv.Fields) { tlv.ID(f, 1, &r.from) }

func decodeRetention(plain []byte) (*retention, error) {
	var f tlv.Fields
	f.From(plain)
	r := new(retention)
	r.fields(&f)
	return r, ledger.FieldsError(&f)
}

// retain deletes the next tokens of the account that are older than its retention, as Delete
// does. It is done in the order of their import. A token that cannot be read stays, since an
// edited row may be another account's, and keeps no other.
func (v *Vault) retain(ctx context.Context, j *jobs.Job, job *retention) error {
	a, err := v.Account(ctx)
	if err != nil {
		return err
	}
	if a.TokenRetention == 0 {
		return v.jobs.Finish(ctx, j.Record)
	}

	at := now()
	list, err := v.rows.List(ctx, &store.Query{Kind: kindToken, Account: v.rows.ID, Min: job.from, Max: rowkey.Last(at.Add(-a.TokenRetention)), Limit: retentionBatch})
	if list == nil {
		return err
	}
	err = jobs.Each(list.Records, func(r *store.Record) error {
		if ledger.Foreign(r) {
			return nil
		}
		id := v.rows.Mask(kindToken, r.ID)
		err := v.ledger.Authentic(ctx, r)
		if err == nil {
			err = v.deleteToken(ctx, deletion{id: id, row: r.ID, op: opRetain, reason: receive.ReasonExpired})
		}
		switch {
		case errors.Is(err, ErrNotFound): // it has lapsed
			return nil
		case errors.Is(err, ErrDamaged):
			v.log.Error("a token at the end of its retention stays: it cannot be read", "token", id, "error", err)
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("tokens at the end of their retention are not all deleted: %w", err)
	}

	if n := len(list.Records); n == retentionBatch {
		j.Record.Due, job.from = at, rowkey.Above(list.Records[n-1].ID)
	} else {
		j.Record.Due, job.from = at.Add(min(retentionPause, a.TokenRetention)), uuid.Nil
	}
	return v.jobs.Again(ctx, j.Record, tlv.Encode(job.fields))
}
