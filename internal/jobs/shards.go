package jobs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	sharePause = 2 * time.Second        // between two looks for processes that wait for shards
	takePause  = 100 * time.Millisecond // between two looks for shards that others held
	restPause  = 100 * time.Millisecond // without work until shards are given back
	leftMost   = 4096                   // jobs of one kind that are under way or have failed
	leftFew    = Batch / 2              // jobs that have failed and stay due

	waitersMax = 64 // processes that wait for shards and are counted
)

// ErrLeft is returned by Kind.Do for a job that it leaves as it is. The job is left alone
// for the time of a lease, and nothing is logged.
var ErrLeft = errors.New("jobs: the job is left to others")

// Leases are this process's leases on the shards of one kind of work. A process that holds
// a shard does its jobs without a claim, and writes only outcomes. The lease ends with its
// time: jobs that were due before that may have been begun, and are in doubt.
type leases struct {
	engine  *Engine
	kind    *Kind
	process uuid.UUID // names this process in leases

	sharing sync.Mutex    // held while leases are read and written
	waits   *store.Record // says that this process waits, as last written; nil: it does not; guarded by sharing
	warned  bool          // that processes which wait cannot be read; guarded by sharing

	mu     sync.Mutex // guards what follows
	users  int        // calls of Run and Drain
	held   [store.ShardCount]*lease
	left   map[uuid.UUID]*attempt // by job: running and failed ones
	looked time.Time              // when leases were last read
	began  time.Time              // when a job was last begun
	ended  time.Time              // when a job last ended
}

// A lease is the right of this process to a shard. Its fields are guarded by leases.mu.
type lease struct {
	record, next *store.Record // as stored, and as it is being written; nil: it is not
	end, nextEnd time.Time     // of record and of next
	doubt        time.Time     // jobs due until then may have been begun before
	running      int           // jobs under way
	leaving      bool          // the shard is to go to another process: no job is begun
}

// An attempt is a job that this process has begun. Its fields are guarded by leases.mu.
type attempt struct {
	until   time.Time // it is not begun again before that
	running bool
}

func newLeases(e *Engine, k *Kind) *leases {
	return &leases{engine: e, kind: k, process: uuid.New(), left: map[uuid.UUID]*attempt{}}
}

// length returns how long a lease is.
func (s *leases) length() time.Duration { return s.engine.Lease(s.kind.Records) }

// A place is the record of a shard as it was read.
type place struct {
	record  *store.Record // has only the version if it cannot be read; nil: absent
	damaged bool          // nothing of the record can be read
	mine    bool
	holder  uuid.UUID // zero: the shard was given back
	end     time.Time
	doubt   time.Time
}

const (
	leaseHolder = iota + 1
	leaseEnd
	leaseDoubt
)

// encode returns what the record of a lease holds.
func (p *place) encode() []byte {
	b := tlv.Append(nil, leaseHolder, p.holder[:])
	b = tlv.AppendTime(b, leaseEnd, p.end)
	return tlv.Pad(tlv.AppendTime(b, leaseDoubt, p.doubt), 64, 0)
}

func (p *place) decode(plain []byte) error {
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case leaseHolder:
			copy(p.holder[:], r.Value)
		case leaseEnd:
			p.end = r.Time()
		case leaseDoubt:
			p.doubt = r.Time()
		}
	}
	return ledger.ReadError(&r)
}

// shardRow returns the id of the record of a shard. Processes that wait have records with
// random ids, which are due when they wait no longer.
func shardRow(shard int) uuid.UUID { return uuid.UUID{15: byte(shard) + 1} }

// is reports whether a record is the lease's. A version alone could be written by another
// process too.
func (l *lease) is(r *store.Record) bool { return identical(r, l.record) || identical(r, l.next) }

func identical(r, of *store.Record) bool {
	return r != nil && of != nil && r.Version == of.Version && bytes.Equal(r.Shown, of.Shown)
}

// Holds reports whether this process still has the lease under which the job was begun. A
// job asks in the transaction that writes its outcome, and writes nothing if it is lost.
func (j *Job) Holds(tx store.ReadTx) (bool, error) {
	if j.lease == nil {
		return true, nil
	}
	r, err := tx.Get(j.leases.kind.Leases, shardRow(int(store.ShardOf(j.Record.ID))))
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	j.leases.mu.Lock()
	defer j.leases.mu.Unlock()
	return err == nil && j.lease.is(r), err
}

// enter counts a call of Run or Drain.
func (s *leases) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	s.looked = time.Time{}
}

// leave gives all shards back when the last call of Run or Drain has ended, and waits for
// none any longer.
func (s *leases) leave(ctx context.Context) error {
	s.sharing.Lock()
	defer s.sharing.Unlock()
	s.mu.Lock()
	s.users--
	p := new(plan)
	for shard, l := range s.held {
		if l != nil && s.users == 0 {
			p.give(s, shard, l)
		}
	}
	if s.users == 0 {
		p.withdraw(s)
	}
	s.mu.Unlock()
	return s.write(context.WithoutCancel(ctx), p)
}

// rest gives all shards back when no job was begun for a while: another process that stores
// work need not wait for this one to hear of it. Nor does this one wait for a shard.
func (s *leases) rest(ctx context.Context, at time.Time) error {
	s.sharing.Lock()
	defer s.sharing.Unlock()
	s.mu.Lock()
	p := new(plan)
	for shard, l := range s.held {
		if l != nil && at.Sub(s.began) >= restPause && l.running == 0 {
			p.give(s, shard, l)
		}
	}
	p.withdraw(s)
	s.mu.Unlock()
	return s.write(ctx, p)
}

// idles reports whether this process has the lease of a shard and no job under way.
func (s *leases) idles() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := false
	for _, l := range s.held {
		if l != nil && l.running > 0 {
			return false
		}
		has = has || l != nil
	}
	return has
}

// doubts reports whether a job may have been begun before, as far as is known now.
func (s *leases) doubts(r *store.Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.held[store.ShardOf(r.ID)]
	return s.left[r.ID] != nil || l == nil || !r.Due.After(l.doubt)
}

// usable returns the shards whose jobs may be begun, and all others.
func (s *leases) usable(at time.Time) (mine, others store.Shards) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for shard, l := range s.held {
		if l != nil && !l.leaving && l.end.Sub(at) >= s.kind.Longest {
			mine.Add(uint8(shard))
		} else {
			others.Add(uint8(shard))
		}
	}
	return mine, others
}

// shares reports whether it is time to look at leases: work waits in a shard that this
// process cannot use, a lease needs renewal, or others may wait for shards.
func (s *leases) shares(at time.Time, waits bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := at.Sub(s.looked)
	if since >= sharePause || waits && since >= takePause {
		return true
	}
	for _, l := range s.held {
		if l != nil && !l.leaving && l.end.Sub(at) < s.length()*5/6 && since >= time.Second {
			return true
		}
	}
	return false
}

// share takes free shards, renews leases, and gives back the shares of others: each process
// that works or waits has the same number. renews reports whether this process makes
// progress with its jobs.
func (s *leases) share(ctx context.Context, at time.Time, renews bool) error {
	s.sharing.Lock()
	defer s.sharing.Unlock()
	places, waiters, err := s.read(ctx, at)
	if err != nil {
		return err
	}
	err = s.write(ctx, s.plan(places, waiters, at, renews))
	if errors.Is(err, store.ErrConflict) { // it is looked at again
		return nil
	}
	return err
}

// A waiter is a process that waits for a shard.
type waiter struct {
	record *store.Record
	end    time.Time
}

// read returns the leases of all processes, and the waiting processes. A missing or
// unreadable lease binds no process, and may have had a doubt. Leases are written together,
// so a single missing one was lost. An unreadable record of a waiting process is passed
// over.
func (s *leases) read(ctx context.Context, at time.Time) (places [store.ShardCount]*place, waiters map[uuid.UUID]waiter, err error) {
	var others []*store.Record
	var damaged error // of others
	err = s.engine.ledger.View(ctx, func(tx store.ReadTx) (err error) {
		for shard := range places {
			places[shard] = new(place)
			r, err := tx.Get(s.kind.Leases, shardRow(shard))
			switch {
			case ledger.Unreadable(err):
				places[shard].damaged = true
			case errors.Is(err, store.ErrNotFound):
			case err != nil:
				return err
			default:
				places[shard].record = r
			}
		}
		others, damaged = tx.Due(s.kind.Leases, store.AllShards, at.Add(2*s.length()), waitersMax)
		if !ledger.Unreadable(damaged) { // otherwise the readable ones are there
			err, damaged = damaged, nil
		}
		return err
	})
	if err != nil {
		return places, nil, err
	}
	if damaged != nil && !s.warned {
		s.warned = true
		s.engine.log.Warn("the records of some processes that wait for background work are unreadable", "error", damaged)
	}

	some := len(others) > 0
	for _, p := range places {
		some = some || p.record != nil || p.damaged
	}
	for shard, p := range places {
		if some && p.record == nil {
			p.doubt = at.Add(s.length())
		}
		s.recognize(ctx, shard, p, at)
	}

	waiters = map[uuid.UUID]waiter{}
	for _, r := range others {
		w := waiter{record: r}
		switch err := s.engine.ledger.Authentic(ctx, r); {
		case err == nil:
			w.end = r.Due
		case ledger.Unreadable(err): // it is deleted: its process writes another
			s.engine.log.Warn("the record of a process that waits for background work is unreadable", "error", err)
		default:
			return places, nil, err
		}
		waiters[r.ID] = w
	}
	return places, waiters, nil
}

// recognize opens the record of a shard, unless it is as this process has written it. A
// lease that is not found as it was written is lost.
func (s *leases) recognize(ctx context.Context, shard int, p *place, at time.Time) {
	s.mu.Lock()
	if l := s.held[shard]; l != nil {
		if p.mine = l.is(p.record); !p.mine {
			l.record, l.next, s.held[shard] = nil, nil, nil
			p.doubt = at.Add(s.length()) // unless the record says otherwise
		} else if identical(p.record, l.next) {
			l.record, l.end, l.next = l.next, l.nextEnd, nil
		} else {
			l.next = nil
		}
	}
	s.mu.Unlock()
	if p.mine || p.record == nil {
		return
	}

	opened := p.record.Clone()
	plain, err := s.engine.ledger.OpenShown(ctx, opened)
	if err == nil {
		err = p.decode(plain)
	}
	switch {
	case err != nil, p.end.After(at.Add(2 * s.length())): // no process can have written that
		p.holder, p.end, p.doubt = uuid.Nil, time.Time{}, at.Add(s.length())
	case p.holder != uuid.Nil && (p.holder == s.process || !p.end.After(at)):
		// It ended without being given back, or this process has lost sight of it.
		p.holder, p.doubt = uuid.Nil, later(p.doubt, p.end)
	}
}

// A plan holds the planned writes of leases.
type plan struct {
	puts   []*put
	delete []*store.Record // of waiters that are gone
	wait   *store.Record   // of this process, which waits
}

// A put is the planned record of a shard. lease is nil if the shard is given back.
type put struct {
	shard   int
	was     *store.Record // as it was read; nil: absent
	damaged bool          // it cannot be read
	record  *store.Record // as it is written
	place   place
	lease   *lease
	takes   bool
}

// still reports whether the record of the shard is as it was read.
func (w *put) still(tx store.ReadTx) (bool, error) {
	r, err := tx.Get(w.record.Kind, w.record.ID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return w.was == nil && !w.damaged, nil
	case ledger.Unreadable(err):
		return w.damaged, nil
	case err != nil:
		return false, err
	}
	return identical(r, w.was), nil
}

// give gives a shard back. Jobs that were begun and have not succeeded are in doubt.
func (p *plan) give(s *leases, shard int, l *lease) {
	doubt := l.doubt
	for id, a := range s.left {
		if int(store.ShardOf(id)) == shard && !a.running {
			doubt = later(doubt, ledger.Now())
		}
	}
	p.puts = append(p.puts, &put{shard: shard, was: l.record, place: place{doubt: doubt}})
	l.record, l.next, s.held[shard] = nil, nil, nil
}

// withdraw deletes the record which says that this process waits. Others would leave shards
// to it.
func (p *plan) withdraw(s *leases) {
	if s.waits != nil {
		p.delete = append(p.delete, s.waits)
	}
}

// plan decides about the leases.
func (s *leases) plan(places [store.ShardCount]*place, waiters map[uuid.UUID]waiter, at time.Time, renews bool) *plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked = at
	p := new(plan)

	// Each process that holds a shard or waits for one has a share.
	workers := map[uuid.UUID]bool{s.process: true}
	for _, l := range places {
		if !l.mine && l.holder != uuid.Nil {
			workers[l.holder] = true
		}
	}
	for id, w := range waiters {
		if w.end.After(at) {
			workers[id] = true
		} else {
			p.delete = append(p.delete, w.record)
		}
	}
	quota := (store.ShardCount + len(workers) - 1) / len(workers)

	// Shards with jobs under way are kept rather than others.
	order := rand.Perm(store.ShardCount)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.rank(a), s.rank(b)) })
	keeps := 0
	end := at.Add(s.length())
	for _, shard := range order {
		switch l := s.held[shard]; {
		case l == nil:
		case keeps == quota:
			if l.leaving = true; l.running == 0 {
				p.give(s, shard, l)
			}
		default:
			keeps++
			l.leaving = false
			if renews && l.end.Sub(at) < s.length()*5/6 {
				p.puts = append(p.puts, &put{shard: shard, was: l.record, place: place{holder: s.process, end: end, doubt: l.doubt}, lease: l})
			}
		}
	}

	// A shard that is free may have work that no other process looks for.
	for _, shard := range order {
		if l := places[shard]; !l.mine && l.holder == uuid.Nil {
			keeps++
			taken := place{holder: s.process, end: end, doubt: l.doubt}
			p.puts = append(p.puts, &put{shard: shard, was: l.record, place: taken, lease: new(lease), takes: true, damaged: l.damaged})
		}
	}

	if own := waiters[s.process]; keeps > 0 && own.record != nil && own.end.After(at) {
		p.delete = append(p.delete, own.record)
	} else if keeps == 0 && own.end.Sub(at) < s.length()/2 {
		p.wait = own.record
		if p.wait == nil {
			p.wait = &store.Record{Kind: s.kind.Leases, ID: s.process}
		}
		p.wait.Due = end
	}
	return p
}

// rank orders shards by how much this process is to keep them. It is called with mu held.
func (s *leases) rank(shard int) int {
	switch l := s.held[shard]; {
	case l == nil:
		return 3
	case l.leaving:
		return 2
	case l.running == 0:
		return 1
	}
	return 0
}

// seal makes the records of a plan.
func (s *leases) seal(p *plan) error {
	for _, w := range p.puts {
		w.record = &store.Record{Kind: s.kind.Leases, ID: shardRow(w.shard), Version: 1}
		if w.was != nil {
			w.record.Version = w.was.Version + 1
		}
		if err := s.engine.ledger.SealShown(w.record, w.place.encode()); err != nil {
			return err
		}
	}

	if p.wait == nil {
		return nil
	}
	s.waits = p.wait // also if the outcome of the write is unknown
	p.wait.Version++
	return s.engine.ledger.SealShown(p.wait, nil)
}

// write writes leases in one transaction, except for shards where another process was
// faster: these do not keep others from being written, and are looked at again.
func (s *leases) write(ctx context.Context, p *plan) error {
	if len(p.puts) == 0 && len(p.delete) == 0 && p.wait == nil {
		return nil
	}
	if err := s.seal(p); err != nil {
		return err
	}

	// Outcomes that are written meanwhile may find a lease as it was or as it will be.
	s.mu.Lock()
	for _, w := range p.puts {
		if w.lease != nil && !w.takes {
			w.lease.next, w.lease.nextEnd = w.record, w.place.end
		}
	}
	s.mu.Unlock()

	var wrote []*put
	err := s.engine.ledger.In(uuid.Nil).Update(ctx, ledger.Step, func(tx store.Tx) error {
		wrote = wrote[:0]
		for _, w := range p.puts {
			still, err := w.still(tx)
			switch {
			case err != nil:
				return err
			case !still:
				continue
			case w.damaged:
				tx.Delete(w.record.Kind, w.record.ID)
			}
			tx.Put(w.record)
			wrote = append(wrote, w)
		}
		for _, r := range p.delete {
			same, err := r.ID == s.process, error(nil)
			if !same {
				same, err = ledger.Same(tx, r)
			}
			if err != nil {
				return err
			}
			if same {
				tx.Delete(r.Kind, r.ID)
			}
		}
		if p.wait != nil {
			tx.Put(p.wait)
		}
		return nil
	})
	if err != nil {
		return err
	}

	if p.wait == nil && slices.ContainsFunc(p.delete, func(r *store.Record) bool { return r.ID == s.process }) {
		s.waits = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range wrote {
		if l := w.lease; l != nil {
			l.record, l.next, l.end = w.record, nil, w.place.end
			l.doubt = later(l.doubt, w.place.doubt) // a job may have failed meanwhile
			s.held[w.shard] = l
		}
	}
	return nil
}

// resting returns the running jobs, and the failed jobs to leave alone. A list that was
// read afterwards may be older than the outcome of one of them. It forgets attempts long
// past, whose shards are in doubt then.
func (s *leases) resting(at time.Time) map[uuid.UUID]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	forgets := len(s.left) > leftMost/2
	rest := make(map[uuid.UUID]bool, len(s.left))
	for id, a := range s.left {
		switch {
		case at.Before(a.until):
			rest[id] = true
		case forgets && !a.running:
			if l := s.held[store.ShardOf(id)]; l != nil {
				l.doubt = later(l.doubt, at)
			}
			delete(s.left, id)
		}
	}
	return rest
}

// begin notes that a job is under way. It returns false if its shard is not to be worked on
// any longer, or if it was begun already.
func (s *leases) begin(j *Job) bool {
	at := ledger.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.held[store.ShardOf(j.Record.ID)]
	former := s.left[j.Record.ID]
	if l == nil || l.leaving || l.end.Sub(at) < s.kind.Longest || former != nil && at.Before(former.until) {
		return false
	}
	l.running++
	s.began = at
	j.leases, j.lease, j.attempt = s, l, &attempt{until: at.Add(s.length()), running: true}
	j.Doubtful = former != nil || !j.Record.Due.After(l.doubt)
	s.left[j.Record.ID] = j.attempt
	return true
}

// end notes that a job has ended. A failed job is left alone for a lease, unless it was put
// off.
func (s *leases) end(j *Job, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = time.Now()
	j.lease.running--
	j.attempt.running = false
	if done && s.left[j.Record.ID] == j.attempt {
		delete(s.left, j.Record.ID)
	}
	if !slices.ContainsFunc(s.held[:], func(l *lease) bool { return l != nil && l.running > 0 }) {
		wake(s.engine.wakes[s.kind.Records]) // the shards may have to be given back
	}
}

// putOff writes a job that has failed as due when the lease ends, if a few others have failed
// before: these stay due and are listed first, so they must leave places to others. The job
// is in doubt then, and so is every job of its shard that is due until that time. The lease
// as it is stored ends no earlier, so the doubt outlives this process.
func (s *leases) putOff(ctx context.Context, j *Job) (done bool, err error) {
	s.mu.Lock()
	failed := 0
	for _, a := range s.left {
		if !a.running {
			failed++
		}
	}
	next := *j.Record
	next.Version++
	next.Due = j.lease.end
	puts := failed >= leftFew && next.Due.After(ledger.Now())
	if puts {
		j.lease.doubt = later(j.lease.doubt, next.Due)
	}
	s.mu.Unlock()
	if !puts {
		return false, nil
	}

	if err := s.engine.ledger.SealShown(&next, j.Plain); err != nil {
		return false, err
	}
	err = s.engine.ledger.In(next.Account).Update(ctx, ledger.Step, func(tx store.Tx) (err error) {
		if done, err = j.Holds(tx); done && err == nil {
			done, err = ledger.Same(tx, j.Record)
		}
		if done && err == nil {
			tx.Put(&next)
		}
		return err
	})
	return done && err == nil, err
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// busy reports whether a job is under way: its lease is renewed however long it takes.
func (s *leases) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.held[:], func(l *lease) bool { return l != nil && l.running > 0 })
}

// moves reports whether this process makes progress with its jobs: a worker is free, or was
// within a lease.
func (s *leases) moves(p *pool, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(p.busy) < cap(p.busy) || at.Sub(s.ended) < s.length()
}
