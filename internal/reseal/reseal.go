// Package reseal seals the records of former terms anew under the present one.
//
//	Sealer     the work of one vault
//	 └ round   the job that goes through all records, one at a time in all processes
//
// A record that is sealed anew is its next version, with the same content. It is written only
// if nothing else has written it since it was read. A record that has changed meanwhile is
// under the present term already.
//
// A round goes through the records of every kind in the order of their row keys, in passes. It
// ends with a pass that has left nothing and that began after all processes have the present
// term.
package reseal

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	longest  = 45 * time.Second // of a step of a round
	stepTime = 20 * time.Second // after which a step stores its place

	readRows  = 128  // read at a time
	writeRows = 64   // written in one transaction
	readKinds = 16   // looked for in one transaction
	perSecond = 2000 // rows written while Run works, at most
	yield     = 2    // how much longer than a batch the rest after it is

	settled   = 2 * time.Minute // after which every process has the present term
	pauseMin  = time.Minute     // before the next pass of a round that has left records
	pauseMost = time.Hour

	namedMost = 5 // damaged records of a pass that are logged one by one
)

// A Care says what records of a kind need besides being sealed. The zero value needs nothing.
type Care struct {
	// Busy reports whether a record, whose shown part is plain, is in use as it is, besides
	// jobs that were claimed. Such a record is left to a later pass. Its use ends with a
	// write, or in time.
	Busy func(ctx context.Context, r *store.Record, plain []byte) (bool, error)

	// Next returns the shown part of the next version of a record, whose shown part is plain.
	// It may change plain. If prints is true its fingerprints become those of the present keys.
	Next func(ctx context.Context, r *store.Record, plain []byte, prints bool) ([]byte, error)

	// Prints returns the terms of the fingerprints in a record, which stays as it is.
	Prints func(ctx context.Context, r *store.Record) ([]uint32, error)

	// First says that version 1 of a record means something: it stays version 1.
	First bool
}

// A Config says what a Sealer works with. All fields are needed.
type Config struct {
	Ledger *ledger.Ledger
	Log    *slog.Logger
	Round  store.Kind // of the job, which is one record in a vault
	Cares  map[store.Kind]Care
	Named  []store.Kind // whose records have a hash of the first lookup key that never changes

	// Keep is the time for which a cache, or the caller of an idempotency key, may need the key
	// of a term after the term was closed.
	Keep time.Duration
}

// A Sealer seals the records of one vault anew.
type Sealer struct {
	Config
	jobs *jobs.Engine // set by Attach
}

// New returns the Sealer of a vault. Call Attach before anything else except Kind and Begin.
func New(c Config) *Sealer { return &Sealer{Config: c} }

// Kind returns the background work that seals records anew.
func (s *Sealer) Kind() jobs.Kind {
	return jobs.Kind{Records: s.Round, Workers: 1, Longest: longest, Open: s.open, Do: s.step}
}

// roundID is the id of the round.
var roundID = uuid.UUID{15: 1}

// Begin has a new round begin, in the transaction that starts a term or closes one. It seals
// nothing, because the former term may have no seals left: an empty record stands for a round
// that has not begun.
func (s *Sealer) Begin(tx store.Tx) error { return s.begin(tx, ledger.Now()) }

func (s *Sealer) begin(tx store.Tx, due time.Time) error {
	r := &store.Record{Kind: s.Round, ID: roundID, Due: due, Version: 1}
	switch is, err := tx.Get(r.Kind, r.ID); {
	case err == nil:
		r.Version = is.Version + 1
	case ledger.Unreadable(err):
		tx.Delete(r.Kind, r.ID)
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	tx.Put(r)
	return nil
}

// Attach sets the engine that does the work of Kind. It has a round begin in a vault with
// former terms that has had none for the present one.
func (s *Sealer) Attach(ctx context.Context, e *jobs.Engine) error {
	s.jobs = e
	if s.Ledger.Terms() == 1 {
		return nil
	}
	return s.again(ctx, false)
}

// again has a round begin unless one is under way, or has ended for the present term and no
// further one is wanted.
func (s *Sealer) again(ctx context.Context, further bool) error {
	var is *store.Record
	err := s.whole().View(ctx, func(tx store.ReadTx) (err error) {
		if is, err = tx.Get(s.Round, roundID); errors.Is(err, store.ErrNotFound) || ledger.Unreadable(err) {
			is, err = nil, nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if is != nil {
		plain, err := s.open(ctx, is)
		if err != nil {
			return err
		}
		if !is.Due.IsZero() || decode(plain).term == s.Ledger.Term() && !further {
			return nil
		}
	}

	err = s.whole().Update(ctx, ledger.Step, s.Begin)
	if errors.Is(err, store.ErrConflict) { // another process was faster
		return nil
	}
	if err == nil {
		s.Woken()
	}
	return err
}

// Woken notifies Run of a round that has begun.
func (s *Sealer) Woken() {
	s.jobs.Due(&store.Record{Kind: s.Round, ID: roundID, Due: ledger.Now()})
}

func (s *Sealer) whole() ledger.Account { return s.Ledger.In(uuid.Nil) }

// open opens the record of the round. A record that was not sealed, or is damaged, stands
// for a round that has not begun.
func (s *Sealer) open(ctx context.Context, r *store.Record) ([]byte, error) {
	plain, err := s.Ledger.OpenShown(ctx, r)
	if errors.Is(err, ledger.ErrDamaged) {
		return []byte{}, nil
	}
	return plain, err
}

// step does a part of a round.
func (s *Sealer) step(ctx context.Context, j *jobs.Job) error {
	if err := s.Ledger.Reload(ctx); err != nil {
		return err
	}
	r := decode(j.Plain)
	if r.term != s.Ledger.Term() {
		r = &round{term: s.Ledger.Term(), began: ledger.Now()}
	}
	if r.clean {
		return s.destroy(ctx, j, r)
	}
	if r.pass.IsZero() {
		r.pass, r.kind = ledger.Now(), ledger.KindMeta+1
	}

	for enough := time.Now().Add(stepTime); time.Now().Before(enough); {
		select {
		case <-j.Ending:
			return s.keep(ctx, j, r, ledger.Now())
		default:
		}

		began := time.Now()
		sealed, err := s.page(ctx, r)
		switch {
		case err != nil:
			return err // after the lease it goes on from its stored place
		case r.kind == 0:
			return s.endPass(ctx, j, r)
		}
		s.jobs.Rest(max(yield*time.Since(began), time.Duration(sealed)*time.Second/perSecond), j.Ending)
	}
	return s.keep(ctx, j, r, ledger.Now())
}

// keep stores how far a round has come. A round that has ended has no due time.
func (s *Sealer) keep(ctx context.Context, j *jobs.Job, r *round, due time.Time) error {
	j.Record.Due = due
	return s.jobs.Again(ctx, j.Record, r.encode())
}

// endPass ends a pass, and the round if nothing is left.
func (s *Sealer) endPass(ctx context.Context, j *jobs.Job, r *round) error {
	if r.damaged > 0 {
		s.Log.Error("records of former key terms cannot be sealed anew", "count", r.damaged)
	}
	if r.left == 0 {
		for _, advance := range []func(context.Context, *jobs.Job, *round) (bool, error){s.advance, s.advanceLookup} {
			if further, err := advance(ctx, j, r); further || err != nil {
				return err
			}
		}
	}
	sure := r.began.Add(settled)
	for _, until := range []time.Time{shownUntil(s.Ledger.Box.Keys().Fingerprints), searchedUntil(s.Ledger.Box.Keys())} {
		if until.After(sure) {
			sure = until
		}
	}
	if r.left == 0 && !r.pass.Before(sure) {
		s.Log.Info("all records are sealed under the present key term", "term", r.term, "sealed", r.sealed)
		over := r.over()
		if !over.clean {
			return s.keep(ctx, j, over, time.Time{})
		}
		return s.destroy(ctx, j, over)
	}

	due := sure
	if r.left > 0 {
		due = ledger.Now().Add(min(pauseMin<<min(r.passes, 6), pauseMost))
	}
	r.passes++
	r.pass, r.left, r.damaged = time.Time{}, 0, 0
	return s.keep(ctx, j, r, due)
}

// page goes through the next records, and returns how many it has sealed.
func (s *Sealer) page(ctx context.Context, r *round) (sealed int, err error) {
	rows, err := s.next(ctx, r)
	if err != nil {
		return 0, err
	}
	var ready []*resealed
	for _, row := range rows {
		switch n, err := s.reseal(ctx, row, r.term); {
		case errors.Is(err, errBusy):
			r.left++
		case errors.Is(err, ledger.ErrDamaged):
			s.complain(r, err)
		case err != nil:
			return 0, err
		case n != nil:
			ready = append(ready, n)
		}
	}

	for len(ready) > 0 {
		batch := ready[:min(writeRows, len(ready))]
		ready = ready[len(batch):]
		n, err := s.write(ctx, batch, r)
		sealed += n
		r.sealed += uint64(n)
		if err != nil {
			return sealed, err
		}
	}
	return sealed, nil
}

// complain counts a damaged record, and logs the first few of a pass.
func (s *Sealer) complain(r *round, err error) {
	if r.damaged++; r.damaged <= namedMost {
		s.Log.Error("a record of a former key term cannot be sealed anew", "error", err)
	}
}

// next reads the next records, and moves the place of the round behind them. No kind is left
// once the kind of that place is 0.
func (s *Sealer) next(ctx context.Context, r *round) (rows []*store.Record, err error) {
	var kind store.Kind
	err = s.Ledger.View(ctx, func(tx store.ReadTx) (err error) {
		kind, rows = r.kind, nil
		from := r.from
		for range readKinds {
			if kind != s.Round && !ledger.OfSums(kind) { // the round is sealed whenever it is written
				rows, err = tx.Scan(kind, from, readRows)
			}
			if len(rows) > 0 || err != nil || kind == 0 {
				return err
			}
			kind, from = kind+1, uuid.Nil // 0 after the last
		}
		return nil
	})
	if err != nil {
		return nil, err
	}

	r.kind, r.from = kind, uuid.Nil
	if n := len(rows); n > 0 {
		r.from = rows[n-1].ID
	}
	return rows, nil
}

// former reports whether a part is sealed under a term other than the given one. It returns
// ErrDamaged for a part that was never sealed.
func former(part []byte, present uint32) (bool, error) {
	if len(part) == 0 {
		return false, nil
	}
	term, ok := seal.TermOf(part)
	if !ok {
		return false, ledger.ErrDamaged
	}
	return term != present, nil
}

// A resealed record is the next version of a record.
type resealed struct {
	next   *store.Record
	first  bool // it stays version 1
	hashes bool // it has other hashes or fingerprints than before
}

// errBusy is the error of a record that is in use as it is.
var errBusy = errors.New("reseal: record is in use")

// reseal returns the next version of a record, or nil if it needs none.
func (s *Sealer) reseal(ctx context.Context, r *store.Record, present uint32) (*resealed, error) {
	if r.Version == 0 {
		return nil, s.Ledger.Unread(r.Kind)
	}
	shown, err := former(r.Shown, present)
	secret, also := former(r.Secret, present)
	if err = errors.Join(err, also); err != nil {
		return nil, s.Ledger.Named(r, err)
	}
	care := s.Cares[r.Kind]
	prints, err := s.unprinted(ctx, r, care, shown || secret)
	outdated := s.Ledger.Outdated(r)
	if err != nil || !shown && !secret && !prints && !outdated {
		return nil, err
	}

	next := &resealed{next: r, first: care.First && r.Version == 1, hashes: prints || outdated}
	if err := s.resealShown(ctx, next, care, prints); err != nil || !secret {
		return next, err
	}
	plain, err := s.Ledger.OpenSecret(ctx, r)
	defer clear(plain)
	if err != nil {
		return nil, err
	}
	return next, s.Ledger.SealSecret(r, plain)
}

// resealShown makes a record its next version. Its shown part has to be sealed for that,
// whatever its term.
func (s *Sealer) resealShown(ctx context.Context, n *resealed, care Care, prints bool) (err error) {
	r := n.next
	var plain []byte
	sealed := len(r.Shown) > 0
	if sealed {
		if plain, err = s.Ledger.OpenShown(ctx, r); err != nil {
			return err
		}
		defer clear(plain)
	}
	busy := s.jobs.Busy(r, plain)
	if care.Busy != nil && !busy {
		busy, err = care.Busy(ctx, r, plain)
	}
	if busy {
		err = errBusy
	}
	if err != nil {
		return err
	}

	if care.Next != nil {
		if plain, err = care.Next(ctx, r, plain, prints); err != nil {
			return s.Ledger.Named(r, err)
		}
		defer clear(plain)
	}
	if !n.first {
		r.Version++
	}
	if !sealed {
		return nil
	}
	if s.Ledger.Outdated(r) {
		if err := s.Ledger.HashAnew(r, plain); err != nil {
			return err
		}
	}
	return s.Ledger.SealShown(r, plain)
}

// write writes records, and returns how many: all at once, or one by one if something has
// changed since they were read. Records that have changed stay as they are.
func (s *Sealer) write(ctx context.Context, batch []*resealed, r *round) (int, error) {
	err := s.whole().Update(ctx, ledger.Step, func(tx store.Tx) error {
		for _, n := range batch {
			if err := n.put(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil || !errors.Is(err, store.ErrConflict) && !ledger.Unreadable(err) {
		return len(batch), err
	}

	var wrote, damaged, left atomic.Int64
	err = jobs.Each(batch, func(n *resealed) error {
		err := s.whole().Update(ctx, ledger.Step, n.put)
		switch {
		case err == nil:
			wrote.Add(1)
		case ledger.Unreadable(err):
			damaged.Add(1)
		case !errors.Is(err, store.ErrConflict):
			return err
		case n.hashes: // whatever has changed it has copied its fingerprints
			left.Add(1)
		}
		return nil
	})
	r.left += uint64(left.Load())
	for range damaged.Load() {
		s.complain(r, ledger.ErrDamaged)
	}
	return int(wrote.Load()), err
}

// put writes a record unless it has changed: then the error is store.ErrConflict.
func (n *resealed) put(tx store.Tx) error {
	if !n.first {
		ledger.Put(tx, n.next)
		return nil
	}
	switch same, err := ledger.Same(tx, n.next); {
	case err != nil:
		return err
	case !same:
		return store.ErrConflict
	}
	ledger.Delete(tx, n.next)
	ledger.Put(tx, n.next)
	return nil
}
