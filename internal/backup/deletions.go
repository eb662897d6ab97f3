package backup

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/google/uuid"
)

// clocks is how far the clocks of the processes that share a vault may be apart.
const clocks = time.Hour

// A Deleter repeats the deletions of the time after a backup in the restored vault.
type Deleter struct {
	Exports    []io.ReadSeeker // of the audit log, one for each account
	PublicKeys []ed25519.PublicKey
	Kept       []*audit.Checkpoint
	Known      []audit.Gap // breaks that exports may have

	At       time.Time   // of the backup
	Accounts []uuid.UUID // of the vault

	// Last returns the last checkpoint of an account in the backup, or nil.
	Last func(ctx context.Context, account uuid.UUID) (*audit.Checkpoint, error)

	// Delete deletes an object, if the operation did. It returns ledger.ErrNotFound for an object
	// that is not there.
	Delete func(ctx context.Context, operation string, account, object uuid.UUID) (is bool, err error)
}

// Deletions are what a Deleter has found.
type Deletions struct {
	Repeated int64            // deletions
	Lost     map[string]int64 // other calls after the backup, by operation
}

// Repeat verifies all exports before it deletes anything. They have to continue the logs of the
// backup, without a gap: so an export from before the backup is refused, and one of another
// vault.
func (d *Deleter) Repeat(ctx context.Context) (*Deletions, error) {
	var accounts []uuid.UUID
	for i, export := range d.Exports {
		account, err := d.verify(ctx, export)
		if err == nil && slices.Contains(accounts, account) {
			err = fmt.Errorf("%w: it is the second one of account %v", ledger.ErrDamaged, account)
		}
		if err != nil {
			return nil, fmt.Errorf("export %d of the ledger: %w", i+1, err)
		}
		accounts = append(accounts, account)
	}
	for _, a := range d.Accounts {
		if !slices.Contains(accounts, a) {
			return nil, fmt.Errorf("%w: the ledger has no export of account %v", ledger.ErrDamaged, a)
		}
	}

	found := &Deletions{Lost: map[string]int64{}}
	again := func(r *audit.Record) error { return d.again(ctx, r, found) }
	for i, export := range d.Exports {
		if err := d.read(export, audit.VerifyOptions{Each: again, Open: again}, nil); err != nil {
			return nil, fmt.Errorf("export %d of the ledger: %w", i+1, err)
		}
	}
	return found, nil
}

// verify verifies an export, and returns its account.
func (d *Deleter) verify(ctx context.Context, export io.ReadSeeker) (uuid.UUID, error) {
	var header audit.Report
	_ = d.read(export, audit.VerifyOptions{Each: func(*audit.Record) error { return io.EOF }}, &header) // the error comes up below
	kept := d.Kept
	last, err := d.Last(ctx, header.AccountID)
	if err != nil {
		return uuid.Nil, err
	}
	number := uint64(0)
	if last != nil {
		number, kept = last.Number, append(slices.Clip(kept), last)
	}

	var whole audit.Report
	if err := d.read(export, audit.VerifyOptions{Kept: kept}, &whole); err != nil {
		return uuid.Nil, err
	}
	if whole.First > number+1 {
		return uuid.Nil, fmt.Errorf("%w: it begins with checkpoint %d, and the backup ends with %d", ledger.ErrDamaged, whole.First, number)
	}
	return whole.AccountID, nil
}

// read reads an export from its beginning.
func (d *Deleter) read(export io.ReadSeeker, opts audit.VerifyOptions, report *audit.Report) error {
	if _, err := export.Seek(0, io.SeekStart); err != nil {
		return err
	}
	opts.PublicKeys, opts.Known = d.PublicKeys, d.Known
	r, err := audit.Verify(export, &opts)
	if report != nil {
		*report = *r
	}
	if _, ok := errors.AsType[*audit.VerifyError](err); ok {
		err = fmt.Errorf("%w: %w", ledger.ErrDamaged, err)
	}
	return err
}

// again repeats the call of a record, if that has deleted something.
func (d *Deleter) again(ctx context.Context, r *audit.Record, found *Deletions) error {
	if r.Outcome != audit.Success || r.At.Before(d.At.Add(-clocks)) {
		return nil
	}
	is, err := d.Delete(ctx, r.Operation, r.AccountID, r.ObjectID)
	switch {
	case errors.Is(err, ledger.ErrNotFound): // it was made after the backup, or deleted before
	case err != nil:
		return err
	case is:
		found.Repeated++
	case r.At.After(d.At):
		found.Lost[r.Operation] += int64(r.Calls)
	}
	return nil
}
