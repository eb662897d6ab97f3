package cardvault

import (
	"context"
	"errors"

	"github.com/cardvault/cardvault/internal/verify"
	"github.com/cardvault/cardvault/invalid"
	"github.com/google/uuid"
)

// RepairOptions are the optional parts of [Vault.Repair].
type RepairOptions struct {
	// Position is [RepairReport.Position] of a call that has ended early, and goes on there. If
	// empty, Repair begins anew. What lies before is not looked at again, so a Position is refused 24
	// hours after its report, and by another vault.
	Position string

	// Rate limits the records and index entries that are looked at in a second. If not positive,
	// nothing limits them except the store.
	Rate int

	Most int // findings that the report lists of each problem; all are counted. If not positive, 100

	// Progress is called after each page and should return soon. If nil, nothing is reported.
	Progress func(RepairProgress)
}

// RepairProgress reports how far [Vault.Repair] has come.
type RepairProgress struct {
	Records int64 // that were read
	Found   int64 // problems, before the indexes were made anew

	Mending bool // all was looked at, and the indexes are being made anew
	Again   bool // they were, and are being compared with the records once more
}

// A RepairReport says what [Vault.Repair] has found, and what it has left.
type RepairReport struct {
	Records int64     // that were read by this call
	Found   []Problem // by this call, of records and indexes, the gravest first

	// Left are the problems of records, which Repair does not change, and the problems of indexes
	// that were found once these had been made anew. While Position is not empty, only records
	// are in it.
	Left []Problem

	// Position is where a further call goes on: see [RepairOptions.Position]. It is empty once
	// all is done. It has keys of rows and hashes, as the store shows them.
	Position string

	Mended bool // the indexes agree with the records that Left does not name: the last comparison has ended
}

// Repair looks for damage as [Vault.Verify] does. If an index does not agree with the records,
// it makes all indexes anew from these, and compares them once more. It makes up no record and
// changes none: a record that cannot be opened stays, and the report names it.
//
// An index entry that leads to no record is removed. The record may have been lost, so Found
// names it under [ProblemIndexStray]: look for it in a backup. If the store cannot read all
// records of a kind, the indexes stay as they are, because new ones would hide the others.
//
// The vault works meanwhile, in this process and in others, also while it is frozen. Each
// transaction has some hundred rows. A crash at any time loses nothing: the vault has the former
// indexes or the new ones, and the next Repair goes on. A bbolt file has both for as long, and
// can be opened by no earlier program then.
//
// When ctx ends or the store fails, a report comes with the error, and another call can go on at
// its Position. Damage that is found does not cause an error. The audit log has the call before
// its first write. opts may be nil.
//
// Errors: a FieldError for a wrong Position; ErrNotEnabled if an index has damage and the store
// is not a [store.Repairer]; ErrDamaged if not all records can be read; errors of the store, of
// the audit log and of the key provider.
func (v *Vault) Repair(ctx context.Context, opts *RepairOptions) (_ *RepairReport, err error) {
	defer v.whole().doing(ctx, "repair", &err)
	if opts == nil {
		opts = new(RepairOptions)
	}
	at, err := verify.ParseRepairPlace(opts.Position, v.ledger.Box.Keys().Vault)
	if err != nil {
		return nil, errRepairPosition
	}
	if _, err := v.whole().rows.NoteFirst(ctx, opRepair, uuid.Nil); err != nil {
		return nil, err
	}

	found, left := newVerification(v, opts.Most), newVerification(v, opts.Most)
	note := func(f verify.Finding) {
		if at.Stage == verify.Looking {
			found.add(f)
		}
		if at.Stage != verify.Looking || f.Index == "" {
			left.add(f)
		}
	}
	var records int64
	err = v.verifier().Repair(ctx, at, verify.Options{Rate: opts.Rate, Found: note}, func(p *verify.RepairPlace) {
		records = max(records, p.At.Records)
		if opts.Progress != nil {
			opts.Progress(RepairProgress{records, found.count, p.Stage == verify.Mending, p.Stage == verify.Again})
		}
	})
	switch {
	case errors.Is(err, verify.ErrPlace):
		return nil, errRepairPosition
	case errors.Is(err, verify.ErrUnable):
		err = notEnabled("a store.Store that is a store.Repairer")
	}
	v.whole().rows.Logged(ctx, opRepair, uuid.Nil, err)
	return &RepairReport{
		Records: records, Found: found.all(), Left: left.all(), Position: at.String(), Mended: at.Stage == verify.Repaired && !at.At.Unable,
	}, err
}

var errRepairPosition = &FieldError{"Position", invalid.Format, "must be the Position of a repair of this vault, at most 24 hours old; without it, Repair begins anew"}
