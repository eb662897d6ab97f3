package cardvault

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// lapsing are the kinds whose records are erased when they are due.
var lapsing = []store.Kind{kindToken, kindSession, kindAPIKey, kindIdempotency, kindAnswer, kindNotice, kindPaymentJWE, kindSessionKey, kindPayload, kindMistakes, kindEvent}

const (
	sweepBatch = 500              // records erased in one transaction
	sweepRows  = 1000             // rows of events written with them
	workPause  = 30 * time.Second // longest pause of Run: what another process stored is found then
	claimBatch = 128              // jobs claimed in one transaction
	claimMost  = 1 << 16          // jobs looked at to find one that can be read
)

// work is the state of background work.
type work struct {
	running atomic.Int32 // calls of Run
	warned  atomic.Bool  // that work waits and nobody runs it
	opened  time.Time    // when the vault was opened
	wakes   map[store.Kind]chan struct{}
	done    chan struct{} // closed with the vault
	once    sync.Once

	mu    sync.Mutex
	slots [schemes]time.Time // when the rate limit allows the next call for a scheme
}

func (w *work) init() {
	w.opened = time.Now()
	w.done = make(chan struct{})
	w.wakes = map[store.Kind]chan struct{}{}
	for _, kind := range []store.Kind{kindNetworkToken, kindRelease, kindBackfill, kindDelivery, kindQueue, kindSinkQueue, kindRemains, kindSpread} {
		w.wakes[kind] = make(chan struct{}, 1)
	}
	lapse := make(chan struct{}, 1)
	for _, kind := range lapsing {
		w.wakes[kind] = lapse
	}
}

// wake has Run look for work of a kind, or of any if it is zero.
func (w *work) wake(kind store.Kind) {
	for k, c := range w.wakes {
		if kind == 0 || k == kind {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
}

func (w *work) stop() { w.once.Do(func() { close(w.done) }) }

// workDue tells Run of records that were stored, of which some may be nil, if
// they are due before it would look.
func (v *Vault) workDue(records ...*store.Record) {
	for _, r := range records {
		if r == nil || r.Due.IsZero() {
			continue
		}
		if time.Until(r.Due) < workPause {
			select {
			case v.work.wakes[r.Kind] <- struct{}{}:
			default:
			}
		}
		if v.work.running.Load() == 0 && time.Since(v.work.opened) > time.Minute && !v.work.warned.Swap(true) {
			v.log.Warn("background work waits and nobody runs it: call Run or Drain")
		}
	}
}

// A task is one sort of background work.
type task struct {
	kinds   []store.Kind // whose records it works on
	workers int          // how many at a time; 0: it works by itself
	step    func(context.Context, *pool) (int, error)
}

// tasks returns what this vault is set up to do. Each is on its own: one that
// waits for somebody else holds up no other.
func (v *Vault) tasks() []*task {
	all := []*task{
		{kinds: lapsing, step: v.lapse},
		{kinds: []store.Kind{kindDelivery}, step: v.ripen},
		{kinds: []store.Kind{kindPast}, step: v.erasePast},
	}
	job := func(kind store.Kind, workers int) {
		all = append(all, &task{[]store.Kind{kind}, workers, func(ctx context.Context, p *pool) (int, error) {
			return v.claim(ctx, p, kind)
		}})
	}
	job(kindRemains, 4)
	job(kindSpread, 4)
	if v.opts.Network != nil {
		job(kindNetworkToken, 64)
		job(kindRelease, 16)
		job(kindBackfill, 4)
	}
	if v.opts.Events != nil {
		job(kindSinkQueue, sinkShifts)
	}
	if v.opts.Webhooks != nil {
		job(kindQueue, 256)
	}
	return all
}

// Run does the background work of the vault until ctx ends: it provisions
// network tokens and keeps them up to date, receives the notices of a network
// that is a [Feeder], passes events on, and erases what has lapsed within
// seconds. It returns nil when ctx has ended and what was under way is over,
// after [Options.NetworkTimeout] or so; and ErrClosed if the vault is closed
// first. Failures are logged and tried again. Several processes may run on one
// store.
func (v *Vault) Run(ctx context.Context) error {
	v.work.running.Add(1)
	defer v.work.running.Add(-1)
	running, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	for _, t := range v.tasks() {
		group.Go(func() { v.repeat(running, t) })
	}
	if f, ok := v.opts.Network.(Feeder); ok {
		group.Go(func() { v.feed(running, f) })
	}
	group.Go(func() {
		if err := v.ledger.Wakes(running, v.work.wake); err != nil && running.Err() == nil {
			v.log.Warn("work of other processes is found by looking for it only", "error", err)
		}
	})
	select {
	case <-ctx.Done():
	case <-v.work.done:
	}
	stop()
	group.Wait()
	if v.ledger.Closed() {
		return ErrClosed
	}
	return nil
}

// repeat does a task whenever something of it is due, until ctx ends.
func (v *Vault) repeat(ctx context.Context, t *task) {
	p := newPool(t.workers)
	defer p.running.Wait()
	timer := time.NewTimer(workPause)
	defer timer.Stop()
	var told time.Time // when a failure was last logged
	idle := 0          // how often in a row nothing came of what was due
	for pause := time.Duration(0); ctx.Err() == nil; {
		if pause > 0 { // not for what is due already: golang.org/issue/78156
			timer.Reset(pause)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			case <-v.work.wakes[t.kinds[0]]:
			}
		}
		pause = workPause
		began := time.Now()
		n, err := v.steps(ctx, t, p)
		took := time.Since(began)
		var next time.Time
		if err == nil {
			next, err = v.nextDue(ctx, t.kinds)
		}
		if n > 0 || next.After(began) {
			idle = 0
		}
		switch {
		case err == nil && !next.IsZero():
			pause = min(pause, max(0, time.Until(next)))
			if pause == 0 && n == 0 {
				// Others are working on it, or the store names as due what is not there.
				pause = min(time.Second, time.Millisecond<<idle)
				idle = min(idle+1, 10)
			}
		case errors.Is(err, ErrClosed):
			return
		case err != nil && ctx.Err() == nil:
			if time.Since(told) > time.Minute {
				told = time.Now()
				v.log.Error("background work failed and will be tried again", "error", err)
			}
			pause = time.Second
			if n == 0 { // looking past what cannot be read takes a tenth of the time at most
				pause = min(workPause, max(pause, 10*took))
			}
		}
	}
}

// Drain does the background work that is due and returns. It receives no
// notices, and tries nothing twice that fails.
func (v *Vault) Drain(ctx context.Context) error {
	var first error
	for {
		worked := false
		for _, t := range v.tasks() {
			p := newPool(t.workers)
			n, err := v.steps(ctx, t, p)
			p.running.Wait()
			worked = worked || n > 0
			if first == nil {
				first = err // what is damaged keeps nothing else from being done
			}
		}
		if !worked || ctx.Err() != nil {
			return errors.Join(first, ctx.Err())
		}
	}
}

// steps does a task until nothing of it is due, and returns how many records it
// has written and the first error, which keeps nothing else from being done.
func (v *Vault) steps(ctx context.Context, t *task, p *pool) (all int, first error) {
	for n := 1; n > 0 && ctx.Err() == nil; {
		var err error
		if n, err = t.step(ctx, p); first == nil {
			first = err
		}
		all += n
	}
	return all, first
}

// feed receives notices until ctx ends.
func (v *Vault) feed(ctx context.Context, f Feeder) {
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		start := time.Now()
		err := v.guard("network", func() error { return f.Feed(ctx, v.Notify) })
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it has ended")
		}
		v.log.Error("feed of the network failed and will be started again", "error", printable(err))
		if time.Since(start) > time.Minute {
			pause = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// lapse erases one batch of each kind that lapses, and returns how many records.
func (v *Vault) lapse(ctx context.Context, _ *pool) (all int, err error) {
	var errs []error
	for _, kind := range lapsing {
		n, err := v.sweep(ctx, kind)
		if err != nil {
			errs = append(errs, err) // what is damaged keeps nothing else from being erased
		}
		all += n
	}
	return all, errors.Join(errs...)
}

// nextDue returns when a record of some kinds is due next, or the zero time.
func (v *Vault) nextDue(ctx context.Context, kinds []store.Kind) (next time.Time, err error) {
	err = v.rows.View(ctx, func(tx store.ReadTx) error {
		next = time.Time{}
		for _, kind := range kinds {
			t, err := tx.Next(kind)
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

// A pool bounds what is worked on at a time.
type pool struct {
	busy    chan struct{} // holds one token for each worker that is
	running sync.WaitGroup
}

func newPool(workers int) *pool { return &pool{busy: make(chan struct{}, workers)} }

// longest is how long a job of a kind takes at most: three calls to the network,
// or a shift of a queue, and some writes.
func (c *core) longest(kind store.Kind) time.Duration {
	switch kind {
	case kindQueue, kindSinkQueue, kindRemains, kindSpread:
		return shiftTime + sendTimeout + 15*time.Second
	}
	return 3*c.opts.NetworkTimeout + 5*time.Second
}

// lease is how long a job that was claimed is left alone. It has begun by a third
// of that or not at all. When a process dies the job is due again after it.
func (c *core) lease(kind store.Kind) time.Duration { return c.longest(kind) * 3 / 2 }

// A job is a record that was claimed. Its Due is the end of the lease.
type job struct {
	rec   *store.Record
	plain []byte // what its shown part held

	// Of a release: by which holders of its network token are found, and one if there is any.
	hash   []byte
	holder *store.Record

	ending <-chan struct{} // closed when Run is to end
	pool   *pool
}

// readDue has use look at records of a kind that are due, until it has taken most of
// them, and returns the first error of those that cannot be read. These are due for
// ever: it looks past them, of which it reads claimMost at most. Any other error ends
// it. When something is due says the index of a store, so use opens each.
func (v *Vault) readDue(ctx context.Context, kind store.Kind, at time.Time, most int, use func(*store.Record) error) (damaged error) {
	for limit := most; ; limit *= 2 {
		var due []*store.Record
		err := v.rows.View(ctx, func(tx store.ReadTx) (err error) {
			due, err = tx.Due(kind, at, limit)
			return err
		})
		switch {
		case err != nil && !errors.Is(err, ErrDamaged):
			return err
		case damaged == nil:
			damaged = err
		}
		// Cards that were imported one after the other are not sent like that: see
		// slot, which does it if there is a rate limit.
		rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
		used := 0
		for _, r := range due {
			switch err := use(r); {
			case err == nil:
				used++
			case !errors.Is(err, ErrDamaged):
				return err
			case damaged == nil:
				damaged = err
			}
			if used == most {
				return damaged
			}
		}
		if used > 0 || err == nil && len(due) < limit || limit >= claimMost {
			return damaged
		}
	}
}

// claim takes jobs of a kind that are due, starts them, and returns how many
// records it has written. It waits for workers to be free.
func (v *Vault) claim(ctx context.Context, p *pool, kind store.Kind) (int, error) {
	most := claimBatch
	if kind == kindQueue || kind == kindSinkQueue { // what one process has no time for, another may have
		select {
		case p.busy <- struct{}{}:
			<-p.busy
		case <-ctx.Done():
			return 0, nil
		}
		most = cap(p.busy) - len(p.busy)
	}
	var claimed []*job
	at := now()
	damaged := v.readDue(ctx, kind, at, most, func(r *store.Record) error {
		j, err := v.prepare(ctx, r, at)
		if err == nil {
			j.ending, j.pool = ctx.Done(), p
			claimed = append(claimed, j)
		}
		return err
	})
	if len(claimed) == 0 {
		return 0, damaged
	}
	wrote := 0
	var won []*job
	err := v.whole().rows.Update(ctx, opStep, func(tx store.Tx) error {
		won, wrote = won[:0], 0
		for _, j := range claimed {
			was := *j.rec
			was.Version--
			if ok, err := ledger.Same(tx, &was); err != nil {
				return err
			} else if !ok {
				continue // somebody else was faster
			}
			if j.hash != nil {
				switch withdrawn, err := v.heldStill(tx, j.hash, j.holder); {
				case errors.Is(err, errChanged):
					continue // it is looked at again
				case err != nil:
					return err
				case withdrawn:
					wrote++
					tx.Delete(kind, j.rec.ID)
					continue
				}
			}
			wrote++
			tx.Put(j.rec)
			won = append(won, j)
		}
		return nil
	})
	if err != nil {
		return 0, errors.Join(damaged, err)
	}
	for _, j := range won {
		if j.plain == nil {
			continue // it waits for the rate limit
		}
		select {
		case p.busy <- struct{}{}:
		case <-ctx.Done():
			return 0, nil // what is left is due again after the lease
		}
		if time.Until(j.rec.Due) < v.longest(kind) {
			<-p.busy
			continue
		}
		p.running.Go(func() {
			defer func() { <-p.busy }()
			// What has been begun is ended: each call has a deadline.
			if err := v.do(context.WithoutCancel(ctx), j); err != nil && !errors.Is(err, ErrClosed) {
				v.log.Error("background work failed and will be tried again", "error", err)
			}
		})
	}
	return wrote, damaged
}

// prepare returns the job of a record as it is written to claim it.
func (v *Vault) prepare(ctx context.Context, r *store.Record, at time.Time) (*job, error) {
	open := v.rows.OpenShown
	if r.Kind == kindQueue || r.Kind == kindSinkQueue {
		open = v.openQueue
	}
	plain, err := open(ctx, r)
	if err != nil {
		return nil, err
	}
	j := &job{rec: r, plain: plain}
	due := r.Due
	r.Version++
	r.Due = at.Add(v.lease(r.Kind))
	sealed := plain
	switch r.Kind {
	case kindNetworkToken:
		n, err := decodeNetworkToken(plain)
		if err != nil {
			return nil, err
		}
		// A place that was missed is lost: what waited for a process to come back
		// does not go to the network all at once.
		n.slot = n.slot && due.After(at.Add(-missed))
		if wait := v.slot(n, at); wait > 0 {
			r.Due = at.Add(wait)
			j.plain = nil
		} else {
			n.slot = false
			if n.id == "" && n.network == v.opts.Network.Name() {
				*n = n.calling()
			}
		}
		r.Lookup = v.In(r.Account).networkLookups(v.In(r.Account).rows.Mask(kindToken, r.ID), n)
		sealed = tlv.Pad(n.encode(nil), 64, 0)
	case kindRelease:
		l, err := decodeRelease(plain)
		if err != nil {
			return nil, err
		}
		if l.ref.ID != "" {
			j.hash = v.networkHash(l.network, l.ref.ID)
			if j.holder, err = v.holder(ctx, j.hash, uuid.Nil); err != nil {
				return nil, err
			}
		}
	}
	return j, v.rows.SealShown(r, sealed)
}

// do does a job that was claimed.
func (v *Vault) do(ctx context.Context, j *job) error {
	v = v.In(j.rec.Account)
	switch j.rec.Kind {
	case kindNetworkToken:
		h, err := v.hold(ctx, j.rec.ID)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.net.network != v.opts.Network.Name() {
			return v.postpone(ctx, h)
		}
		if h.token.NetworkTokenStatus == NetworkTokenPending && h.net.id == "" {
			return v.provision(ctx, h)
		}
		return v.lookup(ctx, h)
	case kindRelease:
		l, err := decodeRelease(j.plain)
		if err != nil {
			return err
		}
		return v.releaseNow(ctx, j.rec, l)
	case kindQueue, kindSinkQueue:
		q, err := decodeQueue(j.plain)
		if err != nil {
			return err
		}
		return v.deliver(ctx, j, q)
	case kindRemains:
		return v.erase(ctx, j)
	case kindSpread:
		s, err := decodeSpread(j.plain)
		if err != nil {
			return err
		}
		return v.spreadOn(ctx, j, s)
	default:
		b, err := decodeBackfill(j.plain)
		if err != nil {
			return err
		}
		return v.backfill(ctx, j.rec, b)
	}
}

// finish deletes the record of a job that is done.
func (v *Vault) finish(ctx context.Context, rec *store.Record) error {
	return v.jobChanged(ctx, rec, func(tx store.Tx) { tx.Delete(rec.Kind, rec.ID) })
}

// again stores what a job has come to, due at rec.Due.
func (v *Vault) again(ctx context.Context, rec *store.Record, plain []byte) error {
	next := *rec
	next.Version++
	if err := v.rows.SealShown(&next, plain); err != nil {
		return err
	}
	return v.jobChanged(ctx, rec, func(tx store.Tx) { tx.Put(&next) })
}

// jobChanged writes unless somebody else has taken the job over.
func (v *Vault) jobChanged(ctx context.Context, rec *store.Record, fn func(store.Tx)) error {
	err := v.rows.Update(ctx, opStep, func(tx store.Tx) error {
		ok, err := ledger.Same(tx, rec)
		if ok {
			fn(tx)
		}
		return err
	})
	if err == nil {
		v.workDue(rec)
	}
	return err
}

// sweep erases one batch of lapsed records of a kind and returns how many. It counts those
// whose events have to be made again, so that it is called again. One that cannot be read
// stays: what it says of its end may be somebody else's.
func (v *Vault) sweep(ctx context.Context, kind store.Kind) (int, error) {
	var due []*store.Record
	damaged := v.readDue(ctx, kind, now(), sweepBatch, func(r *store.Record) error {
		err := v.rows.Authentic(ctx, r)
		if err == nil {
			due = append(due, r)
		}
		return err
	})
	if len(due) == 0 {
		return 0, damaged
	}
	ends := &endings{vault: v, events: make([]*outbox, len(due))}
	var left *store.Record
	if kind == kindToken { // events are sealed before they are written
		var err error
		if ends, err = v.endingsOf(ctx, due); err != nil {
			return 0, errors.Join(damaged, err)
		}
		rows := make([]uuid.UUID, len(due))
		for i, r := range due {
			rows[i] = r.ID
		}
		if left, err = v.whole().newRemains(kindToken, rows...); err != nil {
			return 0, errors.Join(damaged, err)
		}
	}
	erased, err := v.sweepDue(ctx, due, ends, left)
	more := ends.stale
	if kind == kindToken && errors.Is(err, store.ErrFull) {
		// There is room for what erases, and a card that has lapsed has to go.
		full := err
		if erased, more, err = v.sweepFull(ctx, due); err == nil {
			v.log.Error("the end of tokens cannot be told", "tokens", len(erased), "error", full)
		}
	}
	if err != nil {
		v.whole().rows.Wrote(ctx, opExpire, uuid.Nil, err)
		return 0, errors.Join(damaged, err)
	}
	for _, r := range erased {
		var object uuid.UUID // of a session it is a credential
		if kind == kindToken || kind == kindAPIKey {
			object = v.In(r.Account).rows.Mask(kind, r.ID)
		}
		v.ledger.In(r.Account).Wrote(ctx, opExpire, object, nil)
	}
	return len(erased) + more, damaged
}

// sweepFull is sweepDue for tokens where there is no room for anything that is written:
// their children go with them, up to ledger.FamilyRows, and a token goes once it has none left. It
// returns also how many of these it has erased.
func (v *Vault) sweepFull(ctx context.Context, due []*store.Record) (erased []*store.Record, children int, err error) {
	err = v.whole().rows.Update(ctx, opExpire, func(tx store.Tx) error {
		erased, children = nil, 0
		for _, r := range due {
			ok, err := ledger.Same(tx, r)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			all, n, err := v.ledger.DeleteSome(tx, r.Kind, r.ID, ledger.FamilyRows-children, nil)
			if children += n; err != nil {
				return err
			}
			if !all {
				break
			}
			tx.Delete(r.Kind, r.ID)
			erased = append(erased, r)
		}
		return nil
	})
	return erased, children, err
}

// sweepDue erases those of due that are as they were, writes ends, and returns what it has
// erased. Their children are left for a job, left, if they can have any. It writes at most
// sweepBatch rows, and up to sweepRows of events and those of one more.
func (v *Vault) sweepDue(ctx context.Context, due []*store.Record, ends *endings, left *store.Record) (erased []*store.Record, err error) {
	err = v.whole().rows.Update(ctx, opExpire, func(tx store.Tx) error {
		erased = erased[:0]
		ends.begin()
		for i, r := range due {
			if ends.rows >= sweepRows {
				break
			}
			ok, err := ledger.Same(tx, r)
			if ok {
				ok, err = ends.put(tx, i)
			}
			if err != nil {
				return err
			}
			if ok {
				tx.Delete(r.Kind, r.ID)
				erased = append(erased, r)
			}
		}
		if left != nil && len(erased) > 0 {
			tx.Put(left)
		}
		return nil
	})
	if err == nil {
		ends.written()
	}
	if err == nil && len(erased) > 0 {
		v.workDue(left)
	}
	return erased, err
}

// endings are the events of tokens that lapse together. They wake each queue once.
type endings struct {
	vault  *Vault
	events []*outbox // nil for one that cannot be told
	woken  map[uuid.UUID]bool
	told   []int // of events, those that were written
	queues wakings
	stale  int // events that have to be made again
	rows   int // of the events that were written
}

func (v *Vault) endingsOf(ctx context.Context, due []*store.Record) (*endings, error) {
	e := &endings{vault: v}
	for _, r := range due {
		o, err := v.In(r.Account).newEvent(ctx, r, nil, TokenDeleted, ReasonExpired)
		if errors.Is(err, ErrDamaged) || errors.Is(err, ErrNotFound) { // what has lapsed is erased all the same
			v.log.Error("the end of a token cannot be told", "account", r.Account, "error", err)
			o, err = nil, nil
		}
		if err != nil {
			return nil, err
		}
		e.events = append(e.events, o)
	}
	return e, nil
}

// begin forgets what was written in a transaction that is begun again.
func (e *endings) begin() {
	e.woken, e.told, e.queues, e.stale, e.rows = map[uuid.UUID]bool{}, nil, nil, 0, 0
}

// put writes the i-th event. It returns false if that has to be made again.
func (e *endings) put(tx store.Tx, i int) (bool, error) {
	o := e.events[i]
	if o == nil {
		return true, nil
	}
	for _, q := range o.queues {
		if e.woken[q.queue] {
			continue
		}
		err := wakings{q}.put(tx, e.vault)
		if errors.Is(err, errStale) {
			e.stale++
			return false, nil
		}
		if err != nil {
			return false, err
		}
		e.woken[q.queue] = true
		e.queues = append(e.queues, q)
	}
	alone := *o
	alone.queues = nil
	err := alone.put(tx)
	if errors.Is(err, errStale) {
		e.stale++
		return false, nil
	}
	if err == nil {
		e.told = append(e.told, i)
		e.rows += len(o.records)
	}
	return err == nil, err
}

// written tells Run of the events that were stored.
func (e *endings) written() {
	for _, i := range e.told {
		e.vault.workDue(e.events[i].records...)
	}
	e.queues.written(e.vault)
}
