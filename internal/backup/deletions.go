package backup

import (
	"bytes"
	"cmp"
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
	Exports    []io.ReadSeeker // of the audit log, one for each account or more that follow each other
	PublicKeys []ed25519.PublicKey
	Kept       []*audit.Checkpoint
	Known      []audit.Gap // breaks that exports may have

	At       time.Time   // of the backup
	Accounts []uuid.UUID // of the vault

	// Last returns the last checkpoint of an account in the backup, or nil.
	Last func(ctx context.Context, account uuid.UUID) (*audit.Checkpoint, error)

	// Delete deletes an object, if the call of a record did. It returns ledger.ErrNotFound for an object
	// that is not there.
	Delete func(ctx context.Context, r *audit.Record) (is bool, err error)

	// Stand freezes or thaws an account, as it was done at a time. Stands reports whether an operation
	// does, and which.
	Stand  func(ctx context.Context, account uuid.UUID, freeze bool, at time.Time) error
	Stands func(operation string) (freeze, is bool)
}

// Deletions are what a Deleter has found.
type Deletions struct {
	Repeated int64            // deletions
	Lost     map[string]int64 // other calls after the backup, by operation
	Missing  []uuid.UUID      // accounts without an export and a checkpoint

	standing map[uuid.UUID]standing
	stood    map[laneID]uint64 // the last freeze or thaw of a lane that was noted
}

// A laneID is a process, for an account.
type laneID struct{ account, lane uuid.UUID }

// A standing is the last freeze or thaw of an account.
type standing struct {
	freeze bool
	at     time.Time
}

// stand notes a freeze or a thaw. Records come in the order of the log, and times are of the clocks of
// processes. A thaw counts if it is later by both: in doubt an account stays frozen. Exports may overlap,
// so a record may come again.
func (f *Deletions) stand(r *audit.Record, freeze bool) {
	lane := laneID{r.AccountID, r.Lane}
	if r.Sequence <= f.stood[lane] {
		return
	}
	f.stood[lane] = r.Sequence
	last, is := f.standing[r.AccountID]
	if !is || r.At.After(last.at) || freeze && !last.freeze {
		f.standing[r.AccountID] = standing{freeze, r.At}
	}
}

// Repeat verifies all exports before it deletes anything. They have to continue the logs of the
// backup, without a gap: so an export from before the backup is refused, and one of another
// vault.
func (d *Deleter) Repeat(ctx context.Context) (*Deletions, error) {
	parts, err := d.sorted()
	if err != nil {
		return nil, err
	}
	logs := map[uuid.UUID]*ledgerLog{}
	for _, p := range parts {
		if err := d.verify(ctx, p, logs); err != nil {
			return nil, fmt.Errorf("export %d of the ledger: %w", p.number, err)
		}
	}
	for account, log := range logs {
		for _, k := range log.known {
			if k.Number > log.reach {
				return nil, fmt.Errorf("export %d of the ledger: %w: cut off: account %v has a checkpoint %d, and the ledger ends with %d", log.last, ledger.ErrDamaged, account, k.Number, log.reach)
			}
		}
	}
	found := &Deletions{Lost: map[string]int64{}, standing: map[uuid.UUID]standing{}, stood: map[laneID]uint64{}}
	for _, a := range d.Accounts {
		if logs[a] != nil {
			continue
		}
		// An account without a known checkpoint may have had nothing to record until the end.
		log, err := d.known(ctx, a)
		if err != nil {
			return nil, err
		}
		if len(log.known) > 0 || len(parts) == 0 {
			return nil, fmt.Errorf("%w: the ledger has no export of account %v", ledger.ErrDamaged, a)
		}
		found.Missing = append(found.Missing, a)
	}

	again := func(r *audit.Record) error { return d.again(ctx, r, found) }
	for _, p := range parts {
		if err := d.read(p.export, audit.VerifyOptions{Each: again, Open: again}, nil); err != nil {
			return nil, fmt.Errorf("export %d of the ledger: %w", p.number, err)
		}
	}
	for account, last := range found.standing {
		if err := d.Stand(ctx, account, last.freeze, last.at); err != nil && !errors.Is(err, ledger.ErrNotFound) { // it is closed
			return nil, err
		}
	}
	return found, nil
}

// A ledgerLog follows the verified exports of an account.
type ledgerLog struct {
	known []*audit.Checkpoint // of the backup, and kept elsewhere
	end   *audit.Checkpoint   // of the exports; nil: none yet
	base  uint64              // the last checkpoint of the backup
	reach uint64              // the number of end
	last  int                 // number of the last export
}

// A part is one export of the ledger.
type part struct {
	export  io.ReadSeeker
	number  int // of Exports, from 1
	account uuid.UUID
	first   uint64
}

// sorted returns the exports in the order of their checkpoints. Nothing is verified yet.
func (d *Deleter) sorted() ([]part, error) {
	parts := make([]part, len(d.Exports))
	for i, export := range d.Exports {
		var header audit.Report
		_ = d.read(export, audit.VerifyOptions{Each: func(*audit.Record) error { return io.EOF }}, &header) // the error comes up in verify
		parts[i] = part{export, i + 1, header.AccountID, header.First}
	}
	slices.SortStableFunc(parts, func(a, b part) int {
		return cmp.Or(bytes.Compare(a.account[:], b.account[:]), cmp.Compare(a.first, b.first))
	})
	return parts, nil
}

// verify verifies an export, which must follow the exports of its account before it, or the backup.
// It reads it again to compare it with the checkpoints that are known of the same numbers.
func (d *Deleter) verify(ctx context.Context, p part, logs map[uuid.UUID]*ledgerLog) error {
	var whole audit.Report
	if err := d.read(p.export, audit.VerifyOptions{}, &whole); err != nil {
		return err
	}
	log := logs[p.account]
	if log == nil {
		var err error
		if log, err = d.known(ctx, p.account); err != nil {
			return err
		}
		logs[p.account] = log
	}
	log.last = p.number
	if reach := max(log.base, log.reach); whole.First > reach+1 {
		return fmt.Errorf("%w: it begins with checkpoint %d, and the backup or the export before it ends with %d", ledger.ErrDamaged, whole.First, reach)
	}
	if whole.Last == nil {
		return nil
	}

	var within []*audit.Checkpoint
	for _, k := range append(slices.Clip(log.known), log.end) {
		if k != nil && k.Number+1 >= whole.First && k.Number <= whole.Last.Number {
			within = append(within, k)
		}
	}
	if err := d.read(p.export, audit.VerifyOptions{Kept: within}, nil); err != nil {
		return err
	}
	if whole.Last.Number > log.reach {
		log.end, log.reach = whole.Last, whole.Last.Number
	}
	return nil
}

// known returns what is known of the log of an account before any export of it is read.
func (d *Deleter) known(ctx context.Context, account uuid.UUID) (*ledgerLog, error) {
	log := new(ledgerLog)
	last, err := d.Last(ctx, account)
	if err != nil {
		return nil, err
	}
	if last != nil {
		log.known, log.base = append(log.known, last), last.Number
	}
	for _, k := range d.Kept {
		if k.AccountID == account {
			log.known = append(log.known, k)
		}
	}
	return log, nil
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

// again repeats the call of a record, if that took something away.
func (d *Deleter) again(ctx context.Context, r *audit.Record, found *Deletions) error {
	if r.Outcome != audit.Success || r.At.Before(d.At.Add(-clocks)) {
		return nil
	}
	if freeze, is := d.Stands(r.Operation); is {
		found.stand(r, freeze)
		return nil
	}

	is, err := d.Delete(ctx, r)
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
