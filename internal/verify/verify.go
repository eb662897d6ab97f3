// Package verify looks through all records of a vault for damage, while the vault works.
//
// Each page of records is read in one transaction, and with it the records to which they
// belong. So a record that changes between two pages does not look damaged. Its parts are opened
// outside of the transaction. If that fails, the record is read once more, because it may have
// changed, or been sealed anew and its former term destroyed, in between.
//
// The records come first, kind by kind in the order of their row keys, then the indexes of a store
// that is a store.Checker, and then the sums of a vault that keeps them.
package verify

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	pageRows  = 128  // read in one transaction: 8 MiB at most
	pageKinds = 16   // looked for in one transaction
	pageIndex = 1024 // records and entries that are compared in one transaction
	pageMend  = 256  // for which indexes are made anew in one transaction
	jobsMost  = 256  // erasures that are read with a page
	looks     = 3    // at a record that changes each time
)

// A Problem is a sort of damage.
type Problem uint8

// The problems, the gravest first.
const (
	Unreadable      Problem = iota + 1 // the store cannot read a record, or all records of a range
	Altered                            // a part or a column is not as the vault wrote it
	UnknownTerm                        // a part is sealed under a term that the keyring does not have
	MissingPart                        // a part is empty that a record of the kind has
	MissingAccount                     // the account of a record does not exist
	MissingParent                      // the record to which a record belongs does not exist
	ClosedAccount                      // the account of a record is closed, which leaves none of its kind
	Sum                                // the records of an account and kind are not those that the vault wrote
	IndexUnreadable                    // a part of an index cannot be read
	IndexMissing                       // an index lacks a record
	IndexOrder                         // a list is out of order, or counts wrongly
	IndexStray                         // an entry of an index leads to no record that has it
)

// A Finding is one problem.
type Finding struct {
	Problem Problem
	Record  store.Record // Kind, ID and Account; without an ID if no single record is concerned
	Index   store.Index  // of a problem with an index

	Surplus int64 // of a Sum: records that there are more than the vault wrote; negative: less
}

// A Config says what to verify with.
type Config struct {
	Ledger   *ledger.Ledger
	Families ledger.Families

	// Same has kinds whose records belong to the record of another kind with the same id.
	Same map[store.Kind]store.Kind

	// Secrets are kinds whose records always have a secret part. In a record of Bare kinds the
	// shown part may be missing.
	Secrets, Bare []store.Kind

	Erasures store.Kind // of jobs that erase what belongs to deleted records
	Closings store.Kind // of jobs that erase accounts

	Erased func(store.Kind) bool // whether a closed account has no record of a kind

	// Erases returns the deleted records of a job of Erasures.
	Erases func(context.Context, *store.Record) (store.Kind, []uuid.UUID, error)
}

// Options belong to one call.
type Options struct {
	From     *Place // nil: the beginning
	Rate     int    // records and entries a second at most; 0: no limit
	Sums     bool   // compare them, if the vault has some
	Found    func(Finding)
	Progress func(*Place)
}

// Run looks through the vault from a place on, and returns the place that it has come to. That
// is Done after the last, and a later call may go on from any other. A record that cannot be
// read fails nothing. The error is one of the store, or of ctx.
func (c *Config) Run(ctx context.Context, o Options) (*Place, error) {
	at := &Place{Kind: ledger.KindMeta}
	v := &verifier{Config: c, Options: o}
	if o.From != nil {
		*at = *o.From
	} else if err := v.keyring(ctx); err != nil {
		return at, err
	}

	for !at.Done() {
		began, before := time.Now(), at.Looked
		if err := v.step(ctx, at); err != nil {
			return at, err
		}
		if o.Progress != nil {
			o.Progress(at)
		}
		if at.Done() {
			break
		}
		if err := rest(ctx, began, at.Looked-before, o.Rate); err != nil {
			return at, err
		}
	}
	return at, nil
}

// rest waits until a number of records has taken as long as a rate says.
func rest(ctx context.Context, began time.Time, looked int64, rate int) error {
	if rate <= 0 {
		return ctx.Err()
	}
	d := time.Duration(looked)*time.Second/time.Duration(rate) - time.Since(began)
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Resting returns a function that waits until a number of records has taken as long as a rate says.
func Resting(rate int) func(ctx context.Context, began time.Time, records int) error {
	return func(ctx context.Context, began time.Time, records int) error {
		return rest(ctx, began, int64(records), rate)
	}
}

type verifier struct {
	*Config
	Options
}

// keyring verifies the keyring, on which all else depends.
func (v *verifier) keyring(ctx context.Context) error {
	_, err := v.Ledger.KeyringRecord(ctx)
	if ledger.Unreadable(err) {
		v.found(Altered, &store.Record{Kind: ledger.KindMeta})
		return nil
	}
	return err
}

func (v *verifier) step(ctx context.Context, at *Place) error {
	switch {
	case at.Kind != 0:
		return v.rows(ctx, at)
	case at.Sums:
		return v.sums(ctx, at)
	}
	return v.indexes(ctx, at)
}

func (v *verifier) found(p Problem, r *store.Record) {
	v.Found(Finding{Problem: p, Record: store.Record{Kind: r.Kind, ID: r.ID, Account: r.Account}})
}

// rows verifies the next records, and moves the place behind them.
func (v *verifier) rows(ctx context.Context, at *Place) error {
	// One row more than is verified: only a later id shows that one is not too large.
	kind, p, err := v.read(ctx, at.Kind, at.After, pageRows+1)
	if ledger.Unreadable(err) {
		return v.skip(ctx, at, kind, err)
	}
	if err != nil {
		return err
	}

	n := min(len(p.rows), pageRows)
	if err := v.look(ctx, p, n); err != nil {
		return err
	}
	at.Kind, at.After = kind, uuid.Nil
	if n > 0 {
		at.After = p.rows[n-1].ID
	}
	at.Looked += int64(n)
	at.Records += int64(n)
	return nil
}

// look verifies the first rows of a page.
func (v *verifier) look(ctx context.Context, p *page, n int) error {
	for i, r := range p.rows[:n] {
		if p.stray[i] != 0 {
			erased, err := v.erased(ctx, p, r)
			if err == nil && p.stray[i] == ClosedAccount {
				// An account whose record was altered is found as such, and may be open.
				var altered Problem
				altered, err = v.parts(ctx, p.known[v.account(r)].account.Clone())
				erased = erased || altered != 0
			}
			if err != nil {
				return err
			}
			if !erased {
				v.found(p.stray[i], r)
			}
		}
		if err := v.open(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// A page holds records of one kind, and what their belonging depends on.
type page struct {
	rows     []*store.Record
	stray    []Problem       // of each, by where it belongs; 0: none
	erasures []*store.Record // jobs, if any is stray
	closings []*store.Record
	known    map[store.Key]known // records that others belong to
}

// A known record was looked up.
type known struct {
	there   bool
	account *store.Record // of accounts alone; nil if it cannot be read
}

// read reads the next records in one transaction, of the kind that it returns. Without any, that
// is the next kind to look at, 0 after the last.
func (v *verifier) read(ctx context.Context, kind store.Kind, after uuid.UUID, most int) (_ store.Kind, p *page, err error) {
	first, from := kind, after
	err = v.Ledger.View(ctx, func(tx store.ReadTx) (err error) {
		p, kind, after = &page{known: map[store.Key]known{}}, first, from
		for range pageKinds {
			p.rows, err = tx.Scan(kind, after, most)
			if err != nil {
				return err
			}
			if len(p.rows) > 0 {
				return v.belong(tx, p)
			}
			if kind, after = kind+1, uuid.Nil; kind == 0 {
				return nil
			}
		}
		return nil
	})
	return kind, p, err
}

// belong notes which records of a page belong to none.
func (v *verifier) belong(tx store.ReadTx, p *page) (err error) {
	p.stray = make([]Problem, len(p.rows))
	strays := false

	for i, r := range p.rows {
		if r.Version == 0 {
			continue
		}
		if p.stray[i], err = v.strayed(tx, p, r); err != nil {
			return err
		}
		strays = strays || p.stray[i] != 0
	}
	if !strays {
		return nil
	}

	var unread error
	p.erasures, err = tx.Scan(v.Erasures, uuid.Nil, jobsMost)
	p.closings, unread = tx.Scan(v.Closings, uuid.Nil, jobsMost)
	if err = errors.Join(err, unread); ledger.Unreadable(err) {
		return nil // found when these kinds are looked at
	}
	return err
}

// strayed returns whether a record lacks a record to which it belongs.
func (v *verifier) strayed(tx store.ReadTx, p *page, r *store.Record) (Problem, error) {
	if r.Account != uuid.Nil {
		key := v.account(r)
		if there, err := p.there(ledger.Within(tx, uuid.Nil), key); !there || err != nil {
			return MissingAccount, err
		}
		if a := p.known[key].account; a != nil && a.Class == ledger.Closed && v.Erased(r.Kind) {
			return ClosedAccount, nil
		}
	}

	f, in := v.Families[r.Kind], ledger.Within(tx, r.Account)
	for _, kind := range []store.Kind{f.Beside, v.Same[r.Kind]} {
		if kind == 0 {
			continue
		}
		if there, err := p.there(in, store.Key{Kind: kind, ID: r.ID}); !there || err != nil {
			return MissingParent, err
		}
	}
	if r.Parent == uuid.Nil || f.Parent == 0 || r.Account == uuid.Nil {
		return 0, nil // what belongs to no account has a parent that is made anew
	}
	there, err := p.there(in, store.Key{Kind: f.Parent, ID: r.Parent})
	if stands := v.Families[f.Parent].Stands; !there && err == nil && stands != nil {
		kind, id := stands(r.Parent)
		there, err = p.there(in, store.Key{Kind: kind, ID: id})
	}
	if !there && err == nil {
		return MissingParent, nil
	}
	return 0, err
}

// there reports whether a record exists, also if it cannot be read.
func (p *page) there(tx store.ReadTx, k store.Key) (bool, error) {
	is, looked := p.known[k]
	if !looked {
		r, err := tx.Get(k.Kind, k.ID)
		switch {
		case err == nil && k.Kind == ledger.KindAccount:
			is.account = r
		case err != nil && !errors.Is(err, store.ErrNotFound) && !ledger.Unreadable(err):
			return false, err
		}
		is.there = !errors.Is(err, store.ErrNotFound)
		p.known[k] = is
	}
	return is.there, nil
}

// account returns the key of the account that a record names.
func (v *verifier) account(r *store.Record) store.Key {
	return store.Key{Kind: ledger.KindAccount, ID: v.Ledger.In(uuid.Nil).Unmask(ledger.KindAccount, r.Account)}
}

// erased reports whether a record belongs to a deleted one and is being erased: a job for that
// was there in the same transaction.
func (v *verifier) erased(ctx context.Context, p *page, r *store.Record) (bool, error) {
	closes := func(j *store.Record) bool { return j.Account == r.Account }
	if len(p.erasures) == jobsMost || slices.ContainsFunc(p.closings, closes) {
		return true, nil // of so many erasures, one may be for it
	}
	for _, j := range p.erasures {
		kind, of, err := v.Erases(ctx, j)
		if ledger.Unreadable(err) {
			continue // reported as a record of its own
		}
		if err != nil {
			return false, err
		}
		if kind == v.Families[r.Kind].Parent && slices.Contains(of, r.Parent) {
			return true, nil
		}
	}
	return false, nil
}

// open verifies the parts of a record, and with them its columns.
func (v *verifier) open(ctx context.Context, r *store.Record) error {
	var problem Problem
	for range looks {
		was := r.Version
		var err error
		if problem, err = v.parts(ctx, r); problem == 0 || err != nil {
			return err
		}

		is, err := v.again(ctx, r)
		switch {
		case errors.Is(err, ledger.ErrNotFound):
			return nil
		case err != nil && !ledger.Unreadable(err):
			return err
		case err == nil && is.Version != was:
			r = is
			continue
		}
		v.found(problem, r)
		return nil
	}
	return nil // it changes faster than it is looked at: the vault reads and writes it
}

func (v *verifier) again(ctx context.Context, r *store.Record) (is *store.Record, err error) {
	err = v.Ledger.View(ctx, func(tx store.ReadTx) (err error) {
		is, err = ledger.Again(tx, r)
		return err
	})
	return is, err
}

// parts opens both parts of a record in place, and erases them.
func (v *verifier) parts(ctx context.Context, r *store.Record) (Problem, error) {
	switch {
	case r.Version == 0:
		return Unreadable, nil
	case r.Kind == ledger.KindMeta:
		return 0, nil // the keyring was opened, and counts and marks are not sealed
	case ledger.OfSums(r.Kind):
		return 0, nil // they are opened when they are compared
	case len(r.Shown) == 0 && !slices.Contains(v.Bare, r.Kind):
		return MissingPart, nil
	case len(r.Secret) == 0 && slices.Contains(v.Secrets, r.Kind):
		return MissingPart, nil
	}

	for _, part := range []struct {
		sealed []byte
		open   func(context.Context, *store.Record) ([]byte, error)
	}{{r.Shown, v.Ledger.OpenShown}, {r.Secret, v.Ledger.OpenSecret}} {
		if len(part.sealed) == 0 {
			continue
		}
		plain, err := part.open(ctx, r)
		clear(plain)
		switch {
		case errors.Is(err, seal.ErrUnknownTerm):
			return UnknownTerm, nil
		case ledger.Unreadable(err):
			return Altered, nil
		case err != nil:
			return 0, err
		}
	}
	return 0, nil
}

// skip moves the place behind a range of rows that the store cannot read. Up to there, the rows
// of the page are read one by one. If ids are out of order, the store may lead each of these
// reads past the damage, so the cause counts too.
func (v *verifier) skip(ctx context.Context, at *Place, kind store.Kind, cause error) error {
	if at.Kind != kind {
		at.Kind, at.After = kind, uuid.Nil
	}
	readable := func(after uuid.UUID) (*page, bool, error) {
		_, p, err := v.read(ctx, kind, after, 2) // the second shows whether the first is too large
		if ledger.Unreadable(err) && !errors.Is(err, ledger.ErrOrder) {
			_, p, err = v.read(ctx, kind, after, 1)
		}
		if ledger.Unreadable(err) {
			return nil, false, nil
		}
		return p, err == nil, err
	}
	for walked := 0; ; walked++ {
		p, ok, err := readable(at.After)
		switch {
		case err != nil:
			return err
		case ok && (len(p.rows) == 0 || p.rows[0].Kind != kind || walked == pageRows):
			if errors.Is(cause, ledger.ErrOrder) {
				v.found(Unreadable, &store.Record{Kind: kind})
			}
			return nil // it is readable after all
		case ok:
			if err := v.look(ctx, p, 1); err != nil {
				return err
			}
			at.After = p.rows[0].ID
			at.Looked, at.Records = at.Looked+1, at.Records+1
			continue
		}
		break
	}

	v.found(Unreadable, &store.Record{Kind: kind})
	// Gallop to the first id after which rows are readable again, in steps of powers of two.
	bad := at.After
	for step := range 128 {
		next, over := plus(at.After, step)
		if over {
			next = uuid.Max
		}
		_, ok, err := readable(next)
		if err != nil {
			return err
		}
		if ok {
			at.After = next
			return v.nearest(at, bad, readable)
		}
		bad = next
		if over {
			break
		}
	}
	at.Kind, at.After = kind+1, uuid.Nil
	return nil
}

// nearest moves the place back to the first readable id after bad.
func (v *verifier) nearest(at *Place, bad uuid.UUID, readable func(uuid.UUID) (*page, bool, error)) error {
	for range 128 {
		mid := middle(bad, at.After)
		if mid == bad {
			return nil
		}
		_, ok, err := readable(mid)
		switch {
		case err != nil:
			return err
		case ok:
			at.After = mid
		default:
			bad = mid
		}
	}
	return nil
}

// indexes verifies the next part of the indexes.
func (v *verifier) indexes(ctx context.Context, at *Place) error {
	found, next, able, err := v.Ledger.Check(ctx, at.Index, pageIndex)
	if errors.Is(err, store.ErrInvalid) {
		err = ErrPlace
	}
	if err != nil {
		return err
	}
	at.Unable = !able
	for _, d := range found {
		if d.Fault == store.FaultUnreadable && d.Index == store.IndexRows {
			continue // found as rows
		}
		v.Found(Finding{Problem: faults[d.Fault], Record: store.Record{Kind: d.Key.Kind, ID: d.Key.ID, Account: d.Account}, Index: d.Index})
	}
	at.Index, at.Looked = next, at.Looked+pageIndex
	at.Sums = next == nil && v.Sums && v.Ledger.SumsStand()
	at.over = next == nil && !at.Sums
	return nil
}

// sums compares the records with their sums. If it cannot, the rest of the report is true all the
// same.
func (v *verifier) sums(ctx context.Context, at *Place) error {
	c, err := v.Ledger.CompareSums(ctx, func(ctx context.Context, began time.Time, n int) error {
		at.Looked += int64(n)
		if v.Progress != nil {
			v.Progress(at)
		}
		return rest(ctx, began, int64(n), v.Rate)
	})
	if errors.Is(err, ledger.ErrSumsBusy) || ledger.Unreadable(err) {
		at.over = true
		return nil
	}
	if err != nil {
		return err
	}

	for _, r := range c.Unread {
		if r.Version != 0 { // the others were found as unreadable
			v.found(Altered, r)
		}
	}
	if at.Summed, at.over = c.Known(), true; !at.Summed {
		return nil
	}
	for _, place := range c.Surplus.Places() {
		if c.Doubtful(place) {
			continue
		}
		v.Found(Finding{Problem: Sum, Record: store.Record{Kind: place.Kind, Account: place.Account}, Surplus: c.Surplus[place].Count})
	}
	return nil
}

var faults = map[store.Fault]Problem{
	store.FaultMissing: IndexMissing, store.FaultStray: IndexStray, store.FaultOrder: IndexOrder, store.FaultUnreadable: IndexUnreadable,
}

// ErrPlace is returned for a wrong place.
var ErrPlace = fmt.Errorf("%w: not a place of Verify", store.ErrInvalid)

// plus returns an id plus a power of two, and whether that is above all ids.
func plus(id uuid.UUID, power int) (uuid.UUID, bool) {
	carry := uint16(1) << (power % 8)
	for i := 15 - power/8; i >= 0 && carry > 0; i-- {
		sum := uint16(id[i]) + carry
		id[i], carry = byte(sum), sum>>8
	}
	return id, carry > 0
}

// middle returns the id in the middle of two.
func middle(a, b uuid.UUID) (m uuid.UUID) {
	ahi, alo := halves(a)
	bhi, blo := halves(b)
	lo, carry := bits.Add64(alo, blo, 0)
	hi, carry := bits.Add64(ahi, bhi, carry)
	lo, hi = lo>>1|hi<<63, hi>>1|carry<<63
	for i := range 8 {
		m[7-i], m[15-i] = byte(hi>>(8*i)), byte(lo>>(8*i))
	}
	return m
}

func halves(id uuid.UUID) (hi, lo uint64) {
	for i := range 8 {
		hi, lo = hi<<8|uint64(id[i]), lo<<8|uint64(id[8+i])
	}
	return hi, lo
}
