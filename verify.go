package cardvault

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/verify"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// VerifyOptions are the optional parts of [Vault.Verify].
type VerifyOptions struct {
	// Position is [VerifyReport.Position] of a call that has ended early, and goes on there. If
	// empty, Verify begins anew.
	Position string

	// Rate limits the records and index entries that are read in a second. If not positive, nothing
	// limits them except the store.
	Rate int

	Most int // findings that the report lists of each problem; all are counted. If not positive, 100

	// Progress is called after each page and should return soon. If nil, nothing is reported.
	Progress func(VerifyProgress)
}

// VerifyProgress reports how far [Vault.Verify] has come.
type VerifyProgress struct {
	Records int64 // that were read
	Found   int64 // problems
	Indexes bool  // all records were read, and the indexes are being compared with them
	Sums    bool  // so they were, and the sums are being compared with the records
}

// A VerifyReport says what [Vault.Verify] has found.
type VerifyReport struct {
	Records  int64     // that were read by this call
	Problems []Problem // none of a vault that is whole, the gravest first

	// Position is where a further call goes on: see [VerifyOptions.Position]. It is empty once
	// all was looked at. It has keys of rows and hashes, as the store shows them.
	Position string

	// Indexes is whether the store can compare its indexes with its records: see
	// [store.Checker]. It is false as long as Position is not empty. Behind a part of an index
	// that is reported as unreadable, the rest of that index may not have been compared.
	Indexes bool

	// Sums is whether the records were compared with their sums: see [Vault.BeginSums]. It is false
	// as long as Position is not empty, and if the vault has no sums.
	Sums bool

	// SumsMissed is whether the vault has sums that were not compared, although Position is empty:
	// records cannot be read, or change faster than they are added up. Verify once more then.
	SumsMissed bool
}

// A ProblemKind is a sort of damage.
type ProblemKind string

// The sorts of damage, the gravest first.
const (
	ProblemUnreadable      ProblemKind = "unreadable"       // the store cannot read a record, or several; see ID
	ProblemAltered         ProblemKind = "altered"          // a record is not as the vault wrote it
	ProblemUnknownTerm     ProblemKind = "unknown_term"     // a record is sealed under a key that the keyring does not have
	ProblemMissingPart     ProblemKind = "missing_part"     // a record lacks a sealed part
	ProblemMissingAccount  ProblemKind = "missing_account"  // the account of a record does not exist
	ProblemMissingParent   ProblemKind = "missing_parent"   // the record to which a record belongs does not exist
	ProblemClosedAccount   ProblemKind = "closed_account"   // a record of a closed account is there, which erased all: see [Vault.CloseAccount]
	ProblemSum             ProblemKind = "sum"              // records of an account and kind were lost, added or put back; see Surplus
	ProblemIndexUnreadable ProblemKind = "index_unreadable" // a part of an index cannot be read
	ProblemIndexMissing    ProblemKind = "index_missing"    // an index does not lead to a record
	ProblemIndexOrder      ProblemKind = "index_order"      // a list is out of order, or counts wrongly
	ProblemIndexStray      ProblemKind = "index_stray"      // an index leads to a record that is not there
)

// A Problem is a sort of damage with the records that have it.
type Problem struct {
	Kind     ProblemKind
	Count    int64     // of all findings
	Findings []Finding // the first of them

	Hurt   string // what does not work
	Safe   string // what works all the same
	Remedy string // what to do
}

// A Finding names a damaged record.
type Finding struct {
	Kind  string      // of the record, such as "token"
	ID    uuid.UUID   // as calls return it; zero if they return none, or it is not known
	Index store.Index // that has the damage; "" if the record itself has it

	// AccountID is the account that the record, or the entry of the index, names; zero for a
	// record of the whole vault, and if neither can be read.
	AccountID uuid.UUID

	// Surplus is the number of records of the kind that the account has more than the vault wrote, for
	// [ProblemSum]. It is negative if some were lost, and zero if one was put back as it was before,
	// or as many were added as lost.
	Surplus int64
}

// Verify reads every record of the whole vault, opens its sealed parts, and looks whether its
// account and the record to which it belongs exist, and whether the indexes of the store agree
// with the records, both ways. It takes as long as a read of the whole store, so it is for an
// operator and not for a request. It writes nothing.
//
// The vault works meanwhile, in this process and in others. Writes beside Verify are not reported
// as damage, and new or deleted records may be left out. Memory is bounded by a page of 128
// records, by 512 of erasures and by Most, whatever the size of the vault.
//
// If the vault has sums, Verify reads all records once more and compares them with these, in
// memory of about 100 bytes for each account and kind. So it finds records that were lost with all
// of their index entries, added, or put back as they were before. Without sums all of this looks
// like a whole vault: see [Vault.BeginSums]. It does not verify the chain of the audit log: package
// audit does.
//
// When ctx ends or the store fails, a report of the records so far comes with the error, and
// another call can go on at its Position. Damage does not cause an error. opts may be nil.
//
// Errors: a FieldError for a wrong Position, and errors of the store and of the key provider.
func (v *Vault) Verify(ctx context.Context, opts *VerifyOptions) (_ *VerifyReport, err error) {
	defer v.whole().doing(ctx, "verify", &err)
	opts = cmp.Or(opts, new(VerifyOptions))
	from, err := verify.ParsePlace(opts.Position)
	if err != nil {
		return nil, errPosition
	}

	found := newVerification(v, opts.Most)
	at, err := v.verifier().Run(ctx, verify.Options{From: from, Rate: opts.Rate, Sums: true, Found: found.add, Progress: func(at *verify.Place) {
		if opts.Progress != nil {
			opts.Progress(VerifyProgress{Records: at.Records, Found: found.count, Indexes: at.Kind == 0 && !at.Sums, Sums: at.Sums})
		}
	}})
	if errors.Is(err, verify.ErrPlace) {
		return nil, errPosition
	}
	return &VerifyReport{Records: at.Records, Position: at.String(), Indexes: at.Done() && !at.Unable, Sums: at.Summed, SumsMissed: at.Done() && at.Sums && !at.Summed, Problems: found.all()}, err
}

// BeginSumsOptions are the optional parts of [Vault.BeginSums].
type BeginSumsOptions struct {
	// Rate limits the records that are read in a second. If not positive, nothing limits them except
	// the store.
	Rate int
}

// BeginSums has the vault keep sums of its records from now on, by account and kind, under a key:
// each write adds to them, and [Vault.Verify] compares them with the records. It adds up the present
// records for that, which takes as long as a read of all. The vault works meanwhile. Call
// [Vault.Verify] before: records that are lost by now are not in the sums.
//
// Another call begins the sums anew: the records are right as they are. So it also ends the
// reports of a loss that was looked into. If a call ends early, there are no sums until another
// one has ended.
//
// A program of a version without sums cannot open the vault any more. Sums find an attacker who writes
// rows of the store and cannot read the keyring. They do not find a store whose rows were all
// put back, sums included: that is what [Options.Anchor] is for.
//
// The audit log has the call. opts may be nil.
//
// Errors: ErrNotEnabled if the store is not a [store.Summer]; ErrUnavailable if records change
// faster than they are read, or another process of the vault writes beside this one to a store
// without snapshots: call again; errors of the store and of the key provider.
func (v *Vault) BeginSums(ctx context.Context, opts *BeginSumsOptions) (err error) {
	defer v.whole().doing(ctx, "begin sums", &err)
	opts = cmp.Or(opts, new(BeginSumsOptions))
	err = v.ledger.BeginSums(ctx, verify.Resting(opts.Rate))
	if errors.Is(err, ledger.ErrNoSums) {
		return notEnabled("a store.Store that is a store.Summer")
	}
	return err
}

// verifier returns what says how records belong together.
func (v *Vault) verifier() *verify.Config {
	return &verify.Config{
		Ledger: v.ledger, Families: families,
		Same:     map[store.Kind]store.Kind{kindNetworkToken: kindToken},
		Secrets:  []store.Kind{kindToken, kindPast},
		Bare:     []store.Kind{v.sealer.Round, kindPast},
		Erasures: v.eraser.Kind().Records, Closings: v.closer.Records, Erases: v.eraser.Of, Erased: v.closer.Erases,
	}
}

var errPosition = &FieldError{"Position", invalid.Format, "must be the Position of a report"}

// A verification collects findings.
type verification struct {
	vault    *Vault
	most     int
	problems map[verify.Problem]*Problem
	count    int64
}

func newVerification(v *Vault, most int) *verification {
	return &verification{vault: v, most: cmp.Or(max(0, most), 100), problems: map[verify.Problem]*Problem{}}
}

// all returns the problems, the gravest first.
func (c *verification) all() (problems []Problem) {
	for sort := range verify.Problems {
		if p := c.problems[sort]; p != nil {
			problems = append(problems, *p)
		}
	}
	return problems
}

func (c *verification) add(f verify.Finding) {
	p := c.problems[f.Problem]
	if p == nil {
		a := f.Problem.Advice()
		p = &Problem{Kind: ProblemKind(a.Name), Hurt: a.Hurt, Safe: a.Safe, Remedy: a.Remedy}
		c.problems[f.Problem] = p
	}
	c.count++
	p.Count++
	if len(p.Findings) >= c.most {
		return
	}

	name := names[f.Record.Kind]
	named := Finding{Kind: cmp.Or(name.Kind, fmt.Sprint("kind ", f.Record.Kind)), AccountID: f.Record.Account, Index: f.Index, Surplus: f.Surplus}
	known := named.AccountID != uuid.Nil || homes[f.Record.Kind] != ledger.Own
	if name.Printed != 0 && f.Record.ID != uuid.Nil && known {
		named.ID = c.vault.ledger.In(named.AccountID).Mask(name.Printed, f.Record.ID)
	}
	p.Findings = append(p.Findings, named)
}
