package jobs

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	// Batch bounds the records that are claimed in one transaction.
	Batch = 128

	lookMost = 1 << 16 // records examined to find a readable one

	shortWait   = 20 * time.Microsecond // for a processor, which a machine at rest may need too
	longestRest = 10 * time.Millisecond // of a job that gives way
)

// A Job is a record that is due, as it is claimed.
type Job struct {
	// Record is written to claim the job: Due is the end of the lease. Claim may set another
	// time, and other columns.
	Record *store.Record

	Plain []byte    // of the shown part of Record, sealed after Claim
	Was   time.Time // when the job was due, before it was claimed

	// Wait is set by Claim for a job that is put off until Record.Due and not begun.
	Wait bool

	// Confirm is set by Claim to look once more in the transaction that claims the job. It
	// may be called more than once.
	Confirm func(store.ReadTx) (Verdict, error)

	// Doubtful says of a job that was not claimed that it may have been begun before, with
	// an outcome that was not stored.
	Doubtful bool

	// Ending is closed when Run is to end.
	Ending <-chan struct{}

	pool    *pool
	leases  *leases // of a job that is not claimed, as are the next two
	lease   *lease
	attempt *attempt
}

// A Verdict decides about the claim of a job.
type Verdict uint8

const (
	Take  Verdict = iota
	Leave         // as it is: something has changed, and it is looked at again
	Drop          // the job: it is not needed any more
)

// Spare reports whether a worker for jobs of this kind is free.
func (j *Job) Spare() bool { return len(j.pool.busy) < cap(j.pool.busy) }

// A pool bounds the jobs that are done at a time.
type pool struct {
	busy    chan struct{} // holds one token for each worker that is
	running sync.WaitGroup
}

func newPool(workers int) *pool { return &pool{busy: make(chan struct{}, workers)} }

// ReadDue has use look at due records of a kind, until it has taken most of them. It
// returns the first error of unreadable records. These stay due for ever, so it looks past
// them, within a bound. Any other error ends it. The index of a store decides which records
// are due, so use opens each record.
func (e *Engine) ReadDue(ctx context.Context, kind store.Kind, at time.Time, most int, use func(*store.Record) error) (damaged error) {
	return e.readDue(ctx, kind, store.AllShards, at, most, 0, use)
}

// errPassed is returned by a function that does not use a record which can be read.
var errPassed = errors.New("jobs: record is skipped")

// readDue is ReadDue for some shards; passed is the number of records that use passes over.
func (e *Engine) readDue(ctx context.Context, kind store.Kind, shards store.Shards, at time.Time, most, passed int, use func(*store.Record) error) (damaged error) {
	if shards == 1<<store.ShardCount-1 {
		shards = store.AllShards // one walk of a store's index in place of sixteen
	}
	for limit := most + passed; ; limit *= 2 {
		var due []*store.Record
		err := e.ledger.View(ctx, func(tx store.ReadTx) (err error) {
			due, err = tx.Due(kind, shards, at, limit)
			return err
		})
		switch {
		case err != nil && !errors.Is(err, ledger.ErrDamaged):
			return err
		case damaged == nil:
			damaged = err
		}

		// Records that were stored one after the other leave the vault in another order.
		rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })

		used := 0
		for _, r := range due {
			switch err := use(r); {
			case err == nil:
				used++
			case errors.Is(err, errPassed):
			case !errors.Is(err, ledger.ErrDamaged):
				return err
			case damaged == nil:
				damaged = err
			}
			if used == most {
				return damaged
			}
		}
		if used > 0 || err == nil && len(due) < limit || limit >= lookMost+passed {
			return damaged
		}
	}
}

// claim takes jobs of a kind that are due, starts them, and returns how many
// records it has written. It waits for workers to be free.
func (e *Engine) claim(ctx context.Context, p *pool, k *Kind) (int, error) {
	most := Batch
	if k.Spare {
		select {
		case p.busy <- struct{}{}:
			<-p.busy
		case <-ctx.Done():
			return 0, nil
		}
		most = cap(p.busy) - len(p.busy)
	}

	var due []*Job
	at := ledger.Now()
	damaged := e.ReadDue(ctx, k.Records, at, most, func(r *store.Record) error {
		j, err := e.prepare(ctx, k, r, at, false)
		if err == nil {
			j.Ending, j.pool = ctx.Done(), p
			due = append(due, j)
		}
		return err
	})
	if len(due) == 0 {
		return 0, damaged
	}

	claimed, wrote, err := e.write(ctx, due)
	if err != nil {
		return 0, errors.Join(damaged, err)
	}
	if _, all := e.start(ctx, k, claimed); !all {
		return 0, nil
	}
	return wrote, damaged
}

// serve does jobs of a kind that are due in the shards of this process. It claims none of
// them, and returns how many it has begun or put off.
func (e *Engine) serve(ctx context.Context, p *pool, k *Kind, s *leases) (int, error) {
	at := ledger.Now()
	mine, err := e.shared(ctx, p, k, s, at)
	if err != nil || mine == store.AllShards {
		return 0, err
	}

	resting := s.resting(at)
	if len(resting) >= leftMost {
		return 0, nil // until leases of failed jobs have ended
	}
	var due, waiting []*Job
	damaged := e.readDue(ctx, k.Records, mine, at, Batch, len(resting), func(r *store.Record) error {
		if resting[r.ID] {
			return errPassed
		}
		j, err := e.prepare(ctx, k, r, at, s.doubts(r))
		if err != nil {
			return err
		}
		j.Ending, j.pool, j.leases = ctx.Done(), p, s
		if j.Wait {
			waiting = append(waiting, j)
		} else {
			due = append(due, j)
		}
		return nil
	})

	wrote := 0
	if len(waiting) > 0 {
		if _, wrote, err = e.write(ctx, waiting); err != nil {
			return 0, errors.Join(damaged, err)
		}
	}
	began, all := e.start(ctx, k, due)
	if !all {
		return 0, nil
	}
	return began + wrote, damaged
}

// shared returns the shards whose jobs this process may begin, after it has taken its
// share. It returns store.AllShards if it has none. A vault at rest writes nothing.
func (e *Engine) shared(ctx context.Context, p *pool, k *Kind, s *leases, at time.Time) (mine store.Shards, err error) {
	mine, others := s.usable(at)
	any, waits := false, false
	due := func(tx store.ReadTx, shards store.Shards) (bool, error) {
		next, err := tx.Next(k.Records, shards)
		return err == nil && !next.IsZero() && !next.After(at), err
	}
	err = e.ledger.View(ctx, func(tx store.ReadTx) (err error) {
		if any, err = due(tx, store.AllShards); any && err == nil && others != store.AllShards {
			waits, err = due(tx, others)
		}
		return err
	})
	if err == nil && !any && !s.busy() {
		return store.AllShards, s.rest(ctx, at)
	}
	if err != nil {
		return store.AllShards, err
	}

	if s.shares(at, waits) {
		if err := s.share(ctx, at, s.moves(p, at)); err != nil {
			return store.AllShards, err
		}
		mine, _ = s.usable(at)
	}
	return mine, nil
}

// prepare returns the job of a record as it is written to claim it.
func (e *Engine) prepare(ctx context.Context, k *Kind, r *store.Record, at time.Time, doubtful bool) (*Job, error) {
	open := k.Open
	if open == nil {
		open = e.ledger.OpenShown
	}
	plain, err := open(ctx, r)
	if err != nil {
		return nil, err
	}

	j := &Job{Record: r, Plain: plain, Was: r.Due, Doubtful: doubtful}
	if k.Leases == 0 {
		r.Version++
		r.Due = at.Add(e.Lease(r.Kind))
	}
	if k.Claim != nil {
		if err := k.Claim(ctx, j); err != nil {
			return nil, err
		}
	}
	switch {
	case k.Leases == 0:
	case j.Wait:
		r.Version++
	default:
		return j, nil // it is not written before its outcome
	}
	return j, e.ledger.SealShown(r, j.Plain)
}

// write claims jobs, except jobs that have changed since they were read. It returns the
// claimed jobs, and the number of records it has written.
func (e *Engine) write(ctx context.Context, due []*Job) (claimed []*Job, wrote int, err error) {
	err = e.ledger.In(uuid.Nil).Update(ctx, ledger.Step, func(tx store.Tx) error {
		claimed, wrote = claimed[:0], 0
		for _, j := range due {
			was := *j.Record
			was.Version--
			if same, err := ledger.Same(tx, &was); err != nil {
				return err
			} else if !same {
				continue // another process was faster
			}

			verdict, err := Take, error(nil)
			if j.Confirm != nil {
				verdict, err = j.Confirm(tx)
			}
			switch {
			case err != nil:
				return err
			case verdict == Leave:
				continue
			case verdict == Drop:
				ledger.Delete(tx, j.Record)
			default:
				tx.Put(j.Record)
				claimed = append(claimed, j)
			}
			wrote++
		}
		return nil
	})
	return claimed, wrote, err
}

// start starts jobs as workers become free, and returns how many. It returns false if ctx
// ends before: the rest is due again then.
func (e *Engine) start(ctx context.Context, k *Kind, claimed []*Job) (began int, all bool) {
	for i, j := range claimed {
		if j.Wait {
			continue
		}
		e.giveWay()
		p := j.pool
		select {
		case p.busy <- struct{}{}:
		case <-ctx.Done():
			e.giveBack(ctx, claimed[i:])
			return began, false
		}
		if j.leases == nil && time.Until(j.Record.Due) < k.Longest || j.leases != nil && !j.leases.begin(j) {
			<-p.busy
			continue
		}

		began++
		p.running.Go(func() {
			defer func() { <-p.busy }()
			// A job that has begun is ended: each of its calls has a deadline.
			e.do(context.WithoutCancel(ctx), k, j)
		})
	}
	return began, true
}

// giveBackTime bounds the writes of giveBack.
const giveBackTime = 5 * time.Second

// giveBack makes jobs due again that are claimed and not begun, because Run ends. A job that is
// not given back is left alone by all processes until its lease ends.
func (e *Engine) giveBack(ctx context.Context, claimed []*Job) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
	defer cancel()
	for _, j := range claimed {
		if j.Wait || j.leases != nil {
			continue
		}
		j.Record.Due = j.Was
		if err := e.Again(ctx, j.Record, j.Plain); err != nil {
			return
		}
	}
}

// do does a job that has begun.
func (e *Engine) do(ctx context.Context, k *Kind, j *Job) {
	err := k.Do(ctx, j)
	if err != nil && !errors.Is(err, ledger.ErrClosed) && !errors.Is(err, ErrLeft) {
		e.log.Error("background work failed and will be retried", "error", err)
	}
	if j.leases == nil {
		return
	}

	done := err == nil
	if !done && !errors.Is(err, ledger.ErrClosed) && !errors.Is(err, ErrLeft) {
		if done, err = j.leases.putOff(ctx, j); err != nil {
			e.log.Warn("background work that failed is left alone by this process only", "error", err)
		}
	}
	j.leases.end(j, done)
}

// Busy reports whether a process may be at work on a record as it is, whose shown part is
// plain: on a job that was claimed, or under a lease. A job that is due within the time of a
// lease counts as claimed.
func (e *Engine) Busy(r *store.Record, plain []byte) bool {
	at := ledger.Now()
	if k := e.kinds[r.Kind]; k != nil && k.Leases == 0 {
		return r.Due.After(at) && !r.Due.After(at.Add(e.Lease(r.Kind)))
	}
	for _, k := range e.kinds {
		if k.Leases != r.Kind {
			continue
		}
		if !r.Due.IsZero() { // of a process that waits
			return r.Due.After(at)
		}
		var p place
		return p.decode(plain) == nil && p.holder != uuid.Nil && p.end.After(at)
	}
	return false
}

// giveWay has callers come before background work. It lets everything run that is ready to, and
// then rests four times as long as that took, so that a busy machine begins few jobs. Where
// nothing waits for a processor it takes no time. Drain makes haste.
func (e *Engine) giveWay() {
	if !e.Running() {
		return
	}
	began := time.Now()
	runtime.Gosched()
	if took := time.Since(began); took > shortWait {
		time.Sleep(min(4*took, longestRest))
	}
}

// Finish deletes the record of a job that is done.
func (e *Engine) Finish(ctx context.Context, r *store.Record) error {
	return e.change(ctx, r, func(tx store.Tx) { ledger.Delete(tx, r) })
}

// Again stores how far a job came. It is due again at r.Due.
func (e *Engine) Again(ctx context.Context, r *store.Record, plain []byte) error {
	next := *r
	next.Version++
	if err := e.ledger.SealShown(&next, plain); err != nil {
		return err
	}
	return e.change(ctx, r, func(tx store.Tx) { tx.Put(&next) })
}

// change writes, unless another process has taken the job over.
func (e *Engine) change(ctx context.Context, r *store.Record, fn func(store.Tx)) error {
	err := e.ledger.In(r.Account).Update(ctx, ledger.Step, func(tx store.Tx) error {
		same, err := ledger.Same(tx, r)
		if same {
			fn(tx)
		}
		return err
	})
	if err == nil {
		e.Due(r)
	}
	return err
}
