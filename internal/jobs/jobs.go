// Package jobs does the background work of a vault: records that are stored with a due
// time. It knows no sort of work by name: a table of kinds lists the work.
//
// A job is a record. To claim it, an Engine writes it as due after a lease: other processes
// leave it alone until then, and when the process dies the job is due again. A job that is
// done is deleted, or written with the time at which it is due next.
package jobs

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
)

// Pause is the longest pause of Run: it finds the work then that another process has stored.
const Pause = 30 * time.Second

// A Kind is one sort of background work, done job by job.
type Kind struct {
	Records store.Kind
	Workers int           // jobs done at a time; 0: this vault is not set up to do them
	Longest time.Duration // how long a job takes at most; its lease is half as long again

	// Spare leaves jobs to other processes for which no worker is free here.
	Spare bool

	// Leases, if set, is the kind of the records by which processes divide these jobs by
	// shards. No job is claimed then: Do asks Job.Holds when it writes the outcome, and
	// each job that is done is written with another Due, or deleted.
	Leases store.Kind

	// Open opens the record of a job in place. If nil, it is ledger.OpenShown.
	Open func(context.Context, *store.Record) ([]byte, error)

	// Claim prepares a job before it is claimed, as the fields of Job allow. Such a job is
	// not claimed yet: Claim calls no other system. It may be nil.
	Claim func(context.Context, *Job) error

	// Do does a job that was claimed, and writes how far it came with Finish or Again. It
	// returns an error only if it has not changed Record and Plain of a job without claim.
	Do func(context.Context, *Job) error
}

// A Sweep is background work on the records of some kinds, done in batches.
type Sweep struct {
	Records []store.Kind

	// Step works on a batch of due records, and returns the number of records it has
	// written. An error about one record does not keep others from being worked on.
	Step func(context.Context) (int, error)
}

// An Engine does the background work of one vault.
type Engine struct {
	ledger *ledger.Ledger
	log    *slog.Logger
	kinds  map[store.Kind]*Kind
	tasks  []*task
	wakes  map[store.Kind]chan struct{}
	leases map[store.Kind]*leases

	running  atomic.Int32 // calls of Run
	draining atomic.Int32 // calls of Drain
	neglect  neglect

	done chan struct{} // closed by Stop
	once sync.Once
}

// A task is a Kind or a Sweep.
type task struct {
	records []store.Kind
	workers int // of a Kind
	step    func(context.Context, *pool) (int, error)
	leases  *leases // nil if jobs are claimed
}

// New returns an Engine that does the work of sweeps and kinds. Each of them is on its own:
// work that waits for another system holds up no other.
func New(l *ledger.Ledger, log *slog.Logger, sweeps []Sweep, kinds []Kind) *Engine {
	e := &Engine{
		ledger: l,
		log:    log,
		kinds:  map[store.Kind]*Kind{},
		wakes:  map[store.Kind]chan struct{}{},
		leases: map[store.Kind]*leases{},
		done:   make(chan struct{}),
	}

	for _, s := range sweeps {
		e.add(&task{records: s.Records, step: func(ctx context.Context, _ *pool) (int, error) { return s.Step(ctx) }})
	}
	for _, k := range kinds {
		e.kinds[k.Records] = &k
		switch {
		case k.Workers == 0:
		case k.Leases != 0:
			s := newLeases(e, &k)
			e.leases[k.Records] = s
			e.add(&task{records: []store.Kind{k.Records}, workers: k.Workers, leases: s, step: func(ctx context.Context, p *pool) (int, error) {
				return e.serve(ctx, p, &k, s)
			}})
		default:
			e.add(&task{records: []store.Kind{k.Records}, workers: k.Workers, step: func(ctx context.Context, p *pool) (int, error) {
				return e.claim(ctx, p, &k)
			}})
		}
	}
	return e
}

func (e *Engine) add(t *task) {
	e.tasks = append(e.tasks, t)
	due := make(chan struct{}, 1)
	for _, kind := range t.records {
		e.wakes[kind] = due
	}
}

// Stop ends Run.
func (e *Engine) Stop() { e.once.Do(func() { close(e.done); e.neglect.stop() }) }

// Running reports whether Run works at the moment, so that other work waits for its turn.
func (e *Engine) Running() bool { return e.running.Load() > 0 }

// Rest waits for a while, in which others work, or until ending is closed. It returns at once in
// Drain, where nothing else runs.
func (e *Engine) Rest(d time.Duration, ending <-chan struct{}) {
	if d <= 0 || !e.Running() { // no timer of no time: golang.org/issue/78156
		return
	}
	select {
	case <-ending:
	case <-time.After(d):
	}
}

// attended reports whether this process does the work at the moment.
func (e *Engine) attended() bool { return e.Running() || e.draining.Load() > 0 }

// attend counts a call that does the work, until the returned function is called. Once the last
// one has ended, the work is watched again.
func (e *Engine) attend(calls *atomic.Int32) (end func()) {
	calls.Add(1)
	return func() {
		if calls.Add(-1); !e.attended() {
			e.neglect.watch(patience, e.look)
		}
	}
}

// Lease returns how long a claimed job of a kind is left alone. It has begun by a third
// of that or not at all. When a process dies the job is due again after it.
func (e *Engine) Lease(kind store.Kind) time.Duration { return e.kinds[kind].Longest * 3 / 2 }

// Due wakes Run for stored records, some of which may be nil, if they are due before it
// would look.
func (e *Engine) Due(records ...*store.Record) {
	for _, r := range records {
		if r == nil || r.Due.IsZero() {
			continue
		}
		if time.Until(r.Due) < Pause {
			wake(e.wakes[r.Kind])
		}
		if !e.attended() && e.wakes[r.Kind] != nil {
			e.neglect.watch(min(time.Until(r.Due), farthest)+patience, e.look)
		}
	}
}

const (
	patience = time.Minute    // how long work is overdue before a vault warns that no process does it
	quiet    = time.Hour      // how long it does not warn again
	farthest = 24 * time.Hour // how long it does not look
)

// look warns if work is long overdue and is done neither by this process nor by another one
// on the store. It looks again while there is work; Run and Drain look again after they end.
func (e *Engine) look() {
	if e.attended() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var kinds []store.Kind
	for _, t := range e.tasks {
		kinds = append(kinds, t.records...)
	}

	next, err := e.next(ctx, kinds)
	wait := patience
	switch {
	case errors.Is(err, ledger.ErrClosed) || err == nil && next.IsZero():
		return
	case err == nil && time.Since(next) < patience:
		wait = min(time.Until(next), farthest) + patience
	case err == nil && e.neglect.warns():
		e.log.Warn("background work is overdue: call Run in at least one process, or Drain more often", "due", next)
	}
	e.neglect.watch(wait, e.look)
}

// A neglect looks after a while whether the earliest work that was stored has been done.
type neglect struct {
	mu      sync.Mutex
	timer   *time.Timer // nil: nothing to look at
	turn    int         // counts timers
	at      time.Time   // when timer fires
	quiet   time.Time   // until when it does not warn, or look
	stopped bool
}

// watch calls look after some time, unless it is called sooner for other work.
func (n *neglect) watch(after time.Duration, look func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	after = max(after, time.Until(n.quiet), 1) // not 0: golang.org/issue/78156
	at := time.Now().Add(after)
	if n.stopped || n.timer != nil && !at.Before(n.at) {
		return
	}
	if n.timer != nil {
		n.timer.Stop()
	}
	n.turn++
	turn := n.turn
	n.at, n.timer = at, time.AfterFunc(after, func() {
		n.fired(turn)
		look()
	})
}

// fired forgets the timer of a turn. A timer that fired before watch could stop it comes
// late: the timer of the next turn stays.
func (n *neglect) fired(turn int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.turn == turn {
		n.timer = nil
	}
}

// warns reports whether it may warn now, and not again for a while.
func (n *neglect) warns() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Now().Before(n.quiet) {
		return false
	}
	n.quiet = time.Now().Add(quiet)
	return true
}

// seen lets it warn again: the work is being done.
func (n *neglect) seen() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.quiet = time.Time{}
}

// stop ends what watch has begun.
func (n *neglect) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped = true
	if n.timer != nil {
		n.timer.Stop()
	}
}

// wake has Run look for work, if it does any of that sort.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wakeKind has Run look for work of a kind, or of any if it is zero.
func (e *Engine) wakeKind(kind store.Kind) {
	for k, c := range e.wakes {
		if kind == 0 || k == kind {
			wake(c)
		}
	}
}

// Run does background work until ctx ends or Stop is called, and then waits for the jobs
// under way. Beside it runs also, until its context ends. Failures are logged and tried
// again. It returns ledger.ErrClosed if the ledger is closed, and ledger.ErrMoved if the vault has moved.
func (e *Engine) Run(ctx context.Context, also ...func(context.Context)) error {
	defer e.attend(&e.running)()
	e.neglect.seen()
	running, stop := context.WithCancel(store.Patient(ctx))
	defer stop()

	var group sync.WaitGroup
	for _, t := range e.tasks {
		group.Go(func() { e.repeat(running, t) })
	}
	for _, f := range also {
		group.Go(func() { f(running) })
	}
	group.Go(func() {
		if err := e.ledger.Wakes(running, e.wakeKind); err != nil && running.Err() == nil {
			e.log.Warn("work of other processes is found only by polling", "error", err)
		}
	})

	select {
	case <-ctx.Done():
	case <-e.done:
	}
	stop()
	group.Wait()
	if e.ledger.Closed() {
		return ledger.ErrClosed
	}
	return e.ledger.Moved()
}

// begin returns a pool for a task, which end ends.
func (t *task) begin() *pool {
	if t.leases != nil {
		t.leases.enter()
	}
	return newPool(t.workers)
}

// end waits for the jobs under way, and gives shards back.
func (e *Engine) end(ctx context.Context, t *task, p *pool) {
	p.running.Wait()
	if t.leases == nil {
		return
	}
	if err := t.leases.leave(ctx); err != nil && !errors.Is(err, ledger.ErrClosed) {
		e.log.Warn("background work is left to other processes only after a lease", "error", err)
	}
}

// repeat does a task whenever some of it is due, until ctx ends.
func (e *Engine) repeat(ctx context.Context, t *task) {
	p := t.begin()
	defer e.end(ctx, t, p)
	timer := time.NewTimer(Pause)
	defer timer.Stop()

	var logged time.Time // when a failure was last logged
	idle := 0            // rounds in a row without progress on due work
	for pause := time.Duration(0); ctx.Err() == nil; {
		if pause > 0 { // not for work that is due already: golang.org/issue/78156
			timer.Reset(pause)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			case <-e.wakes[t.records[0]]:
			}
		}

		began := time.Now()
		n, err := e.steps(ctx, t, p)
		took := time.Since(began)
		var next time.Time
		if err == nil {
			next, err = e.next(ctx, t.records)
		}
		if n > 0 || next.After(began) {
			idle = 0
		}

		pause = Pause
		switch {
		case err == nil && !next.IsZero():
			pause = min(pause, max(0, time.Until(next)))
			if pause == 0 && n == 0 {
				// Others are working on it, or the store reports absent records as due.
				pause = min(time.Second, time.Millisecond<<idle)
				idle = min(idle+1, 10)
			}
		case err == nil:
		case errors.Is(err, ledger.ErrClosed):
			return
		case errors.Is(err, ledger.ErrMoved):
			e.Stop()
			return
		case ctx.Err() == nil:
			if time.Since(logged) > time.Minute {
				logged = time.Now()
				e.log.Error("background work failed and will be retried", "error", err)
			}
			pause = time.Second
			if n == 0 { // looking past damaged records takes a tenth of the time at most
				pause = min(Pause, max(pause, 10*took))
			}
		}
		if t.leases != nil && t.leases.idles() {
			pause = min(pause, restPause)
		}
	}
}

// Drain does the work that is due and returns: only that of some kinds, if there are any. It
// tries nothing twice that fails. The error is the first one: a damaged record keeps nothing
// else from being done. Work that is overdue a minute after the last Drain, with no Run,
// causes a warning, once an hour.
func (e *Engine) Drain(ctx context.Context, only ...store.Kind) error {
	defer e.attend(&e.draining)()
	var first error
	for {
		worked := false
		for _, t := range e.tasks {
			if len(only) > 0 && !slices.Contains(only, t.records[0]) {
				continue
			}
			p := t.begin()
			n, err := e.steps(ctx, t, p)
			e.end(ctx, t, p)
			worked = worked || n > 0
			if first == nil {
				first = err
			}
		}
		if !worked || ctx.Err() != nil {
			return errors.Join(first, ctx.Err())
		}
	}
}

// steps does a task until nothing of it is due. It returns how many records it has
// written, and the first error, which keeps nothing else from being done.
func (e *Engine) steps(ctx context.Context, t *task, p *pool) (all int, first error) {
	for n := 1; n > 0 && ctx.Err() == nil; {
		var err error
		if n, err = t.step(ctx, p); first == nil {
			first = err
		}
		all += n
	}
	return all, first
}

// next returns when a record of some kinds is due next, or the zero time.
func (e *Engine) next(ctx context.Context, kinds []store.Kind) (next time.Time, err error) {
	err = e.ledger.View(ctx, func(tx store.ReadTx) error {
		next = time.Time{}
		for _, kind := range kinds {
			t, err := tx.Next(kind, store.AllShards)
			if err != nil {
				return err
			}
			if next.IsZero() || !t.IsZero() && t.Before(next) {
				next = t
			}
		}
		return nil
	})
	return next, err
}
