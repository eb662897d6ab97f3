package pgstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cardvault/cardvault/store/internal/queue"
)

const (
	optimistic = 3  // attempts before a group locks out all others
	attempts   = 12 // before it is given up

	blamePause = 10 * time.Second // between two looks for sessions that hold locks
)

// A writer makes the Updates of a Store. All of it is owned by the writing goroutine,
// except for the queue.
type writer struct {
	*server
	locks    locker
	memory   *memory
	outcomes *outcomes
	notifier *notifier
	queue    *queue.Queue[*call]
	summer   summer

	group  *group // that is being executed
	spare  *group // that was answered
	turn   int64  // of the latest attempt to write a group
	tidied int64  // the last turn that tidy was given
	grown  map[listKey]int
	blamed time.Time // when blame has last looked
}

// step makes one group of calls. It returns false when the store is closing. A function
// that calls runtime.Goexit ends step amid a group, which the next step goes on with.
func (w *writer) step() bool {
	if w.group == nil {
		w.group = w.collect()
	}
	g := w.group
	if g == nil {
		return false
	}

	w.execute(g)
	g.release()
	w.group = nil
	w.queue.Again(g.next...)
	w.keep(g)
	w.notifier.notify()

	if w.turn-w.tidied >= groupsKept {
		select {
		case w.outcomes.settled <- w.turn:
			w.tidied = w.turn
		default: // the last are still being deleted
		}
	}
	return true
}

// collect waits for a call and returns a group of all that are there, or nil when the
// store is closing.
func (w *writer) collect() *group {
	c, ok := w.queue.Next(nil, w.notifier.timer())
	for !ok {
		select {
		case <-w.queue.Closing():
			return nil
		default:
			w.notifier.notify()
			c, ok = w.queue.Next(nil, w.notifier.timer())
		}
	}

	g := w.spare
	w.spare = nil
	if g == nil {
		g = newGroup(w.server, w.locks, w.memory)
	}
	g.began = time.Now()
	for ; ok; c, ok = w.queue.Next(g.pending, nil) {
		g.pending = append(g.pending, c)
	}
	g.begins()
	return g
}

// keep keeps an answered group for the next one.
func (w *writer) keep(g *group) {
	if len(g.known) > queue.GroupCalls {
		return // clearing a map costs as much as it has ever held
	}
	g.reset()
	w.spare = g
}

// execute runs a group until its outcome is known, and answers its calls.
func (w *writer) execute(g *group) {
	for {
		tried := time.Now()
		v, err := w.try(g)
		if v == unknown {
			w.log.Warn("the answer to a commit is lost", "error", plain(err))
			v = w.outcomes.resolve(w.turn, g.began)
		}
		if v == done {
			w.committed(g, err)
			return
		}

		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "55P03" { // lock_not_available
			w.blame(g)
		}
		if v == unavailable && time.Since(tried) > patience && g.chance == firstChance {
			g.chance, g.began = lastChance, time.Now()
		}
		if !w.retry(g, v, err) {
			return
		}
		g.again()
	}
}

// committed answers a group that was written. err is set if the answer to its commit was
// lost: then its lists were not looked at.
func (w *writer) committed(g *group, err error) {
	w.summer.committed()
	g.remember()
	if err == nil {
		w.count(g)
	}
	w.notifier.note(g)
	g.answer(nil)
}

// retry prepares another attempt after a verdict. It reports false if no attempt is left:
// the calls are answered, or run again in groups of their own.
func (w *writer) retry(g *group, v verdict, err error) bool {
	calls := len(g.calls) + len(g.pending)
	switch {
	case (v == broken || v == full) && calls > 1:
		// One of them may be to blame, or find room where the others do not.
		g.again()
		for _, c := range g.pending {
			c.Alone = true
		}
		g.next, g.pending = append(g.pending, g.next...), nil
		return false

	case v == broken, v == full, v == unknown,
		v == unavailable && time.Since(g.began) > patience,
		time.Since(g.began) > answering, g.attempt >= attempts:
		g.answer(failed(v, err))
		return false

	case v == unavailable:
		time.Sleep(pause)
	case v == stale && g.attempt >= optimistic:
		g.mode = modeExclusive
	case v == stale && g.alone():
		time.Sleep(rand.N(5 * time.Millisecond)) // it may not have waited for a lock
	}

	return true
}

// try runs the calls and makes their writes. Without an error the verdict is done.
func (w *writer) try(g *group) (verdict, error) {
	v, err := w.attempt(g)
	if err != nil {
		g.end(v, err)
	}
	return v, err
}

func (w *writer) attempt(g *group) (verdict, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answering)
	defer cancel()
	if g.mode == modeExclusive {
		var b pgx.Batch
		g.begin(&b)
		b.Queue(w.sql.lock, true, []int64{w.locks.all()}, []bool{true})
		if err := g.send(ctx, &b); err != nil {
			return verdictOfRead(err), err
		}
	}

	g.ctx = ctx
	for len(g.pending) > 0 {
		g.round()
		if g.failed != nil {
			return verdictOfRead(g.failed), g.failed
		}
		if len(g.wantRows)+len(g.wantAnswers) > 0 {
			if err := g.fetch(); err != nil {
				return verdictOfRead(err), err
			}
		}
	}

	return w.commit(ctx, g)
}

// commit makes the writes of the group if its reads still hold.
func (w *writer) commit(ctx context.Context, g *group) (verdict, error) {
	if err := w.summer.sum(g); err != nil {
		return broken, err
	}
	changes := g.writes()
	if len(g.relied) == 0 && len(g.asked) == 0 && !changes.any && !g.open {
		return done, nil
	}

	if err := g.connect(ctx); err != nil {
		return verdictOfRead(err), err
	}
	if changes.any {
		w.turn++ // each attempt has its own
	}

	keys, exclusive := g.lockSet().sorted()
	if len(g.asked) > 0 {
		if v, err := w.askAgain(ctx, g, keys, exclusive); err != nil {
			return v, err
		}
		keys, exclusive = nil, nil
	}

	var large []int32
	var err error
	if g.open {
		large, err = w.writeAndCommit(ctx, g, changes, keys, exclusive)
	} else {
		large, err = w.writeAtOnce(ctx, g, changes, keys, exclusive)
	}
	if err != nil {
		return changes.judge(err), err
	}
	for _, i := range large {
		if int(i) <= len(changes.lists) && i > 0 {
			w.memory.lists.note(changes.lists[i-1], changes.least[i-1])
		}
	}
	return done, nil
}

// writeAtOnce makes a transaction of one statement. It returns which lists have a block
// that has grown too large.
func (w *writer) writeAtOnce(ctx context.Context, g *group, changes *writes, keys []int64, exclusive []bool) (large []int32, err error) {
	stamp := rand.Int64()
	if a := changes.addArgs(g, w.outcomes.id, w.turn, stamp, keys, exclusive); a != nil {
		err = g.conn.QueryRow(ctx, w.sql.add, a.args(w.divided())...).Scan(&large)
		return large, err
	}
	a := changes.applyArgs(g, w.outcomes.id, w.turn, stamp)
	a.patient, a.keys, a.exclusive = true, keys, exclusive
	err = g.conn.QueryRow(ctx, w.sql.apply, a.args(w.divided())...).Scan(&large)
	return large, err
}

// writeAndCommit makes the writes in the open transaction, and commits it. It returns which lists
// have a block that has grown too large.
func (w *writer) writeAndCommit(ctx context.Context, g *group, changes *writes, keys []int64, exclusive []bool) (large []int32, err error) {
	a := changes.applyArgs(g, w.outcomes.id, w.turn, rand.Int64())
	a.keys, a.exclusive = keys, exclusive
	var b pgx.Batch
	b.Queue(w.sql.apply, a.args(w.divided())...)
	b.Queue("COMMIT")

	results := g.conn.SendBatch(ctx, &b)
	if err := results.QueryRow().Scan(&large); err != nil {
		_ = results.Close() // the same error
		return nil, err
	}
	if err := results.Close(); err != nil {
		return nil, err
	}

	g.open = false
	return large, nil
}

// askAgain takes the locks of the group and checks that its questions have the same answers.
func (w *writer) askAgain(ctx context.Context, g *group, keys []int64, exclusive []bool) (v verdict, err error) {
	var b pgx.Batch
	patient := !g.open
	skip := 1 + g.begin(&b)
	b.Queue(w.sql.lock, patient, keys, exclusive)
	for _, q := range g.asked {
		b.Queue(q.sql, q.args...)
	}

	results := g.conn.SendBatch(ctx, &b)
	defer func() {
		if e := results.Close(); err == nil && e != nil {
			v, err = verdictOfRead(e), e
		}
	}()

	if err := pass(results, skip); err != nil {
		return verdictOfRead(err), err
	}
	for _, q := range g.asked {
		a, err := q.of(results)
		if err != nil {
			return verdictOfRead(err), err
		}
		if !a.same(g.answers[q.name()]) {
			return stale, errStale
		}
	}

	return done, nil
}

// count counts the records that a group has added to lists.
func (w *writer) count(g *group) {
	for k, r := range g.overlay {
		if r == nil || r.class == 0 || g.known[k] != nil {
			continue
		}
		list := w.list(r)
		if w.grown[list]++; w.grown[list] >= longTail {
			delete(w.grown, list)
			w.memory.lists.note(list, uuid.Max)
		}
	}
	if len(w.grown) > listsSeen {
		clear(w.grown) // reading a long list notes it again
	}
}

// blame logs which sessions hold locks that a group has waited for in vain. That is at
// most eight, and no more often than each blamePause.
func (w *writer) blame(g *group) {
	if time.Since(w.blamed) < blamePause {
		return
	}
	w.blamed = time.Now()
	keys, _ := g.lockSet().sorted()
	if g.mode == modeExclusive {
		keys = []int64{w.locks.all()}
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // writes wait for it
	defer cancel()
	conn, err := w.acquire(ctx)
	if err != nil {
		return
	}

	var pid pgtype.Int4 // null: of a prepared transaction
	var role pgtype.Text
	rows, _ := conn.Query(ctx, w.sql.holders, keys, w.opts.schema()) // rows have the error
	_, err = pgx.ForEachRow(rows, []any{&pid, &role}, func() error {
		w.log.Warn("writes wait for a lock that a session holds", "pid", pid.Int32, "role", role.String)
		return nil
	})
	if err != nil {
		discard(conn)
		return
	}
	conn.Release()
}
