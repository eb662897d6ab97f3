package cardvault

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// lapsing are the kinds whose records are erased when they are due.
var lapsing = []store.Kind{kindToken, kindSession, kindAPIKey, kindIdempotency, kindAnswer, kindNotice, kindPaymentJWE, kindSessionKey, kindPayload, kindMistakes, kindEvent}

const (
	sweepBatch = 500  // records erased in one transaction
	sweepRows  = 1000 // rows of events written with them
)

// work is the state of background work beside that of v.jobs.
type work struct {
	mu    sync.Mutex
	slots [schemes]time.Time // when the rate limit allows the next call for a scheme
}

// sweeps returns the background work that is done in batches.
func (v *Vault) sweeps() []jobs.Sweep {
	return []jobs.Sweep{
		{Records: lapsing, Step: v.lapse},
		{Records: []store.Kind{kindDelivery}, Step: v.ripen},
		{Records: []store.Kind{kindPast}, Step: v.erasePast},
	}
}

// kinds returns the background work that is done job by job: this table is the one place
// that a new sort of work touches, besides its own file.
func (v *Vault) kinds() []jobs.Kind {
	calls := 3*v.opts.NetworkTimeout + 5*time.Second  // three calls to the network, and some writes
	piece := shiftTime + sendTimeout + 15*time.Second // the shift of a receiver, or other work as long
	workers := func(n int, can bool) int {
		if !can {
			return 0
		}
		return n
	}
	network, sink, hooks := v.opts.Network != nil, v.opts.Events != nil, v.opts.Webhooks != nil
	return []jobs.Kind{
		{Records: kindRemains, Workers: 4, Longest: piece, Do: job(v, decodeRemains, (*Vault).erase)},
		{Records: kindSpread, Workers: 4, Longest: piece, Do: job(v, decodeSpread, (*Vault).spreadOn)},
		{Records: kindNetworkToken, Workers: workers(64, network), Longest: calls, Claim: v.claimNetworkToken, Do: v.advanceNetworkToken},
		{Records: kindRelease, Workers: workers(16, network), Longest: calls, Claim: v.claimRelease, Do: job(v, decodeRelease, (*Vault).releaseNow)},
		{Records: kindBackfill, Workers: workers(4, network), Longest: calls, Do: job(v, decodeBackfill, (*Vault).backfill)},
		{Records: kindSinkQueue, Workers: workers(sinkShifts, sink), Longest: piece, Spare: true, Open: v.openQueue, Do: job(v, decodeQueue, (*Vault).deliver)},
		{Records: kindQueue, Workers: workers(256, hooks), Longest: piece, Spare: true, Open: v.openQueue, Do: job(v, decodeQueue, (*Vault).deliver)},
	}
}

// job returns the Do of a kind: it decodes what the record of a job holds, and does the job
// on a handle of its account.
func job[T any](v *Vault, decode func([]byte) (T, error), do func(*Vault, context.Context, *jobs.Job, T) error) func(context.Context, *jobs.Job) error {
	return func(ctx context.Context, j *jobs.Job) error {
		held, err := decode(j.Plain)
		if err != nil {
			return err
		}
		return do(v.In(j.Record.Account), ctx, j, held)
	}
}

// Run does the background work of the vault until ctx ends: it provisions
// network tokens and keeps them up to date, receives the notices of a network
// that is a [Feeder], passes events on, and erases what has lapsed within
// seconds. It returns nil when ctx has ended and what was under way is over,
// after [Options.NetworkTimeout] or so; and ErrClosed if the vault is closed
// first. Failures are logged and tried again. Several processes may run on one
// store.
func (v *Vault) Run(ctx context.Context) error {
	if f, ok := v.opts.Network.(Feeder); ok {
		return v.jobs.Run(ctx, func(ctx context.Context) { v.feed(ctx, f) })
	}
	return v.jobs.Run(ctx)
}

// Drain does the background work that is due and returns. It receives no
// notices, and tries nothing twice that fails.
func (v *Vault) Drain(ctx context.Context) error { return v.jobs.Drain(ctx) }

// feed receives notices until ctx ends.
func (v *Vault) feed(ctx context.Context, f Feeder) {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
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
			wait = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// lapse erases one batch of each kind that lapses, and returns how many records.
func (v *Vault) lapse(ctx context.Context) (all int, err error) {
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

// claimNetworkToken puts a job off while the rate limit allows no call for its scheme, and
// else notes that the network may have been called.
func (v *Vault) claimNetworkToken(_ context.Context, j *jobs.Job) error {
	n, err := decodeNetworkToken(j.Plain)
	if err != nil {
		return err
	}
	v, r, at := v.In(j.Record.Account), j.Record, now()

	// A place that was missed is lost: what waited for a process to come back
	// does not go to the network all at once.
	n.slot = n.slot && j.Was.After(at.Add(-missed))
	if wait := v.slot(n, at); wait > 0 {
		r.Due, j.Wait = at.Add(wait), true
	} else {
		n.slot = false
		if n.id == "" && n.network == v.opts.Network.Name() {
			*n = n.calling()
		}
	}
	r.Lookup = v.networkLookups(v.rows.Mask(kindToken, r.ID), n)
	j.Plain = tlv.Pad(n.encode(nil), 64, 0)
	return nil
}

// advanceNetworkToken provisions the network token of a job, or looks how it is.
func (v *Vault) advanceNetworkToken(ctx context.Context, j *jobs.Job) error {
	v = v.In(j.Record.Account)
	h, err := v.hold(ctx, j.Record.ID)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err != nil:
		return err
	case h.net.network != v.opts.Network.Name():
		return v.postpone(ctx, h)
	case h.token.NetworkTokenStatus == NetworkTokenPending && h.net.id == "":
		return v.provision(ctx, h)
	}
	return v.lookup(ctx, h)
}

// claimRelease drops a release if a token holds the network token by now.
func (v *Vault) claimRelease(ctx context.Context, j *jobs.Job) error {
	l, err := decodeRelease(j.Plain)
	if err != nil || l.ref.ID == "" {
		return err
	}
	hash := v.networkHash(l.network, l.ref.ID)
	holder, err := v.holder(ctx, hash, uuid.Nil)
	j.Confirm = func(tx store.ReadTx) (jobs.Verdict, error) {
		switch withdrawn, err := v.heldStill(tx, hash, holder); {
		case errors.Is(err, errChanged):
			return jobs.Leave, nil
		case withdrawn:
			return jobs.Drop, err
		default:
			return jobs.Take, err
		}
	}
	return err
}

// sweep erases one batch of lapsed records of a kind and returns how many. It counts those
// whose events have to be made again, so that it is called again. One that cannot be read
// stays: what it says of its end may be somebody else's.
func (v *Vault) sweep(ctx context.Context, kind store.Kind) (int, error) {
	var due []*store.Record
	damaged := v.jobs.ReadDue(ctx, kind, now(), sweepBatch, func(r *store.Record) error {
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
		v.jobs.Due(left)
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
		e.vault.jobs.Due(e.events[i].records...)
	}
	e.queues.written(e.vault)
}
