package pgstore

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	queueLength = 1024
	groupCalls  = 256
	groupBytes  = 4 << 20
	groupLocks  = 512 // a group that needs more locks out everybody

	optimistic = 3                // attempts before a group locks out everybody
	attempts   = 12               // before it is given up
	patience   = 5 * time.Second  // for a server that takes writes
	resolving  = 10 * time.Second // for the outcome of a commit whose answer was lost
	answering  = 15 * time.Second // for a server to answer anything
	pause      = 50 * time.Millisecond

	timeouts = `SELECT set_config('statement_timeout', '10s', true), set_config('lock_timeout', '3s', true)`
)

// run is the writing goroutine. A function that calls runtime.Goexit ends the goroutine
// it is called in; another goes on in its place with the same group.
func (s *Store) run() {
	ended := false
	defer func() {
		if !ended {
			go s.run()
		}
	}()
	for {
		if s.group == nil {
			s.group = s.collect()
		}
		g := s.group
		if g == nil {
			break
		}
		s.execute(g)
		if g.conn != nil {
			g.conn.Release()
		}
		s.group = nil
		s.again = append(g.next, s.again...)
		s.keep(g)
		s.keepHouse()
	}
	ended = true
	close(s.stopped)
}

// collect waits for a call and returns a group of all that are there, or nil when the
// store is closing.
func (s *Store) collect() *group {
	var first *call
	if len(s.again) == 0 {
		if first = s.take(); first == nil {
			return nil
		}
	}
	g := s.newGroup()
	if first != nil {
		g.pending = append(g.pending, first)
	}
	for len(s.again) > 0 && len(g.pending) < groupCalls {
		c := s.again[0]
		if c.alone && len(g.pending) > 0 {
			break
		}
		s.again = s.again[1:]
		g.pending = append(g.pending, c)
		if c.alone {
			g.lonely = true
			return g
		}
	}
	for len(g.pending) < groupCalls {
		select {
		case c := <-s.queue:
			if c.state.CompareAndSwap(queued, started) {
				g.pending = append(g.pending, c)
			}
			continue
		default:
		}
		break
	}
	return g
}

// take waits for a call. It returns nil when the store is closing.
func (s *Store) take() *call {
	for {
		select {
		case <-s.closing:
			return nil
		default:
		}
		select {
		case <-s.closing:
			return nil
		case c := <-s.queue:
			if c.state.CompareAndSwap(queued, started) {
				return c
			}
		case list := <-s.long:
			s.arrange(list, true)
		case <-s.wakeTimer():
			s.notify()
		}
	}
}

// wakeTimer fires when there is something to notify of and it is time to.
func (s *Store) wakeTimer() <-chan time.Time {
	if len(s.wakes) == 0 {
		return nil
	}
	return time.After(time.Until(s.notified.Add(wakePause)))
}

// execute runs a group until its outcome is known, and answers its calls.
func (s *Store) execute(g *group) {
	for {
		v, err := s.try(g)
		if err == nil {
			g.remember()
			s.count(g)
			s.dueNow(g)
			g.answer(nil)
			return
		}
		if v == unknown {
			s.log.Warn("the answer to a commit is lost", "error", plain(err))
			if v = s.resolve(); v == done {
				g.remember()
				s.dueNow(g)
				g.answer(nil)
				return
			}
		}
		calls := len(g.calls) + len(g.pending)
		switch {
		case (v == broken || v == full) && calls > 1:
			// One of them may be to blame, or find room where the others do not.
			g.again()
			for _, c := range g.pending {
				c.alone = true
			}
			g.next, g.pending = append(g.pending, g.next...), nil
			return
		case v == broken, v == full, v == unknown,
			v == unavailable && time.Since(g.began) > patience,
			time.Since(g.began) > answering, g.attempt >= attempts:
			g.answer(failed(v, err))
			return
		case v == unavailable:
			s.pool.Reset() // what is in it is most likely lost too
			time.Sleep(pause)
		case v == stale && g.attempt >= optimistic:
			g.exclusive = true
		case v == stale && g.lonely:
			time.Sleep(rand.N(5 * time.Millisecond)) // it may not have waited for a lock
		}
		g.again()
	}
}

// done is the verdict on a transaction that was committed.
const done verdict = -1

// answer ends the calls of a group with their outcomes, or all with err: what fails a
// group also leaves open whether what it has read was so.
func (g *group) answer(err error) {
	for _, c := range slices.Concat(g.calls, g.pending) {
		if err != nil {
			c.err, c.panicked, c.exited = err, nil, false
		}
		close(c.done)
	}
	g.calls, g.pending = nil, nil
}

// try runs the calls and makes their writes.
func (s *Store) try(g *group) (verdict, error) {
	v, err := s.attempt(g)
	if err != nil && g.conn != nil {
		_, refused := errors.AsType[*pgconn.PgError](err)
		if v == unavailable || v == unknown || !refused && err != errStale || s.rollback(g) != nil {
			discard(g.conn)
			g.conn = nil
		}
		g.open = false
	}
	return v, err
}

var errStale = errors.New("pgstore: what was read has changed")

func (s *Store) rollback(g *group) error {
	if !g.open {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := g.conn.Exec(ctx, "ROLLBACK")
	return err
}

func (s *Store) attempt(g *group) (verdict, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answering)
	defer cancel()
	if g.exclusive {
		var b pgx.Batch
		s.begin(g, &b)
		b.Queue(s.sql.lock, true, []int64{s.locks.all()}, []bool{true})
		if err := s.send(ctx, g, &b); err != nil {
			return verdictOfRead(err), err
		}
	}
	g.ctx = ctx
	for len(g.pending) > 0 {
		g.round()
		if g.failed != nil {
			return verdictOfRead(g.failed), g.failed
		}
		if len(g.wantRows)+len(g.wantFamilies)+len(g.wantAnswers) > 0 {
			if err := s.fetch(ctx, g); err != nil {
				return verdictOfRead(err), err
			}
		}
	}
	return s.commit(ctx, g)
}

// connect gives the group a connection.
func (s *Store) connect(ctx context.Context, g *group) (err error) {
	if g.conn == nil {
		g.conn, err = s.acquire(ctx)
	}
	return err
}

// begin opens the transaction of the group, if it is not open.
func (s *Store) begin(g *group, b *pgx.Batch) {
	if !g.open {
		b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
		b.Queue(timeouts)
		g.open = true
	}
}

// send sends a batch whose results do not matter.
func (s *Store) send(ctx context.Context, g *group, b *pgx.Batch) error {
	if err := s.connect(ctx, g); err != nil {
		return err
	}
	return g.conn.SendBatch(ctx, b).Close()
}

// fetch reads what calls want to know.
func (s *Store) fetch(ctx context.Context, g *group) (err error) {
	if err := s.connect(ctx, g); err != nil {
		return err
	}
	var b pgx.Batch
	claims := slices.ContainsFunc(slices.Collect(maps.Values(g.wantAnswers)), func(q *question) bool { return q.claims })
	skip := 0
	if claims && !g.open {
		s.begin(g, &b)
		skip = 2
	}
	if len(g.wantRows) > 0 {
		kinds, ids := columnsOf(slices.Collect(maps.Keys(g.wantRows)))
		b.Queue(s.sql.rows, kinds, ids)
	}
	if len(g.wantFamilies) > 0 {
		var ids []pgtype.UUID
		for id := range g.wantFamilies {
			ids = append(ids, pgUUID(id))
		}
		b.Queue(s.sql.family, ids)
	}
	questions := slices.Collect(maps.Values(g.wantAnswers))
	for _, q := range questions {
		b.Queue(q.sql, q.args...)
	}
	results := g.conn.SendBatch(ctx, &b)
	defer func() {
		if e := results.Close(); err == nil {
			err = e
		}
	}()
	for range skip {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	plainRows := new(question)
	if len(g.wantRows) > 0 {
		a, err := plainRows.of(results)
		if err != nil {
			return err
		}
		for k := range g.wantRows {
			if r := g.known[k]; r == nil || r.outline {
				g.known[k] = nil
			}
		}
		g.learn(a.rows)
	}
	if len(g.wantFamilies) > 0 {
		a, err := plainRows.of(results)
		if err != nil {
			return err
		}
		for id := range g.wantFamilies {
			g.families[id] = []key{}
		}
		for _, r := range a.rows {
			if g.families[r.id] == nil {
				g.families[r.id] = []key{}
			}
			g.families[r.parent] = append(g.families[r.parent], r.key)
		}
		g.learn(a.rows)
	}
	for _, q := range questions {
		a, err := q.of(results)
		if err != nil {
			return err
		}
		g.answers[q.name()] = a
		if !q.claims {
			g.asked = append(g.asked, q)
		}
		if q.list == nil {
			for _, r := range a.rows {
				g.relied[r.key] = struct{}{}
			}
			g.learn(a.rows)
		}
		s.noticed(q, a)
	}
	clear(g.wantRows)
	clear(g.wantFamilies)
	clear(g.wantAnswers)
	return nil
}

// learn takes rows for what is stored, unless that is known.
func (g *group) learn(rows []*row) {
	for _, r := range rows {
		if old := g.known[r.key]; old == nil || old.outline && old.stamp == r.stamp {
			g.known[r.key] = r
		}
	}
}

func columnsOf(keys []key) (kinds []int16, ids []pgtype.UUID) {
	for _, k := range keys {
		kinds, ids = append(kinds, int16(k.kind)), append(ids, pgUUID(k.id))
	}
	return kinds, ids
}

// commit makes the writes of the group, if what it has read is still so.
func (s *Store) commit(ctx context.Context, g *group) (verdict, error) {
	w := g.writes()
	if len(g.relied) == 0 && len(g.asked) == 0 && !w.any {
		return done, nil
	}
	if err := s.connect(ctx, g); err != nil {
		return verdictOfRead(err), err
	}
	if w.any && !s.registered {
		id := uuid.New()
		if _, err := g.conn.Exec(ctx, s.sql.register, pgUUID(id)); err != nil {
			return verdictOfRead(err), err
		}
		s.writer, s.turn, s.registered = id, 0, true
	}
	w.encode(g, s.writer, s.turn+1, rand.Int64())
	keys, exclusive := g.locks()
	if len(g.asked) > 0 {
		if v, err := s.askAgain(ctx, g, keys, exclusive); err != nil {
			return v, err
		}
		keys, exclusive = nil, nil
	}
	var large []int32
	args := append([]any{!g.open, keys, exclusive}, w.args...)
	if !g.open {
		if err := g.conn.QueryRow(ctx, s.sql.apply, args...).Scan(&large); err != nil {
			return w.judge(err), err
		}
	} else {
		var b pgx.Batch
		b.Queue(s.sql.apply, args...)
		// The wait for a standby is not to be cut short: the commit would stand.
		b.Queue(`SELECT set_config('statement_timeout', '0', true)`)
		b.Queue("COMMIT")
		results := g.conn.SendBatch(ctx, &b)
		if err := results.QueryRow().Scan(&large); err != nil {
			_ = results.Close() // the same error
			return w.judge(err), err
		}
		if err := results.Close(); err != nil {
			return w.judge(err), err
		}
		g.open = false
	}
	if w.any {
		s.turn++
	}
	for _, i := range large {
		if int(i) <= len(w.lists) && i > 0 {
			s.later[w.lists[i-1]] = true
		}
	}
	return done, nil
}

// askAgain takes the locks of the group and checks that its questions have the same answers.
func (s *Store) askAgain(ctx context.Context, g *group, keys []int64, exclusive []bool) (v verdict, err error) {
	var b pgx.Batch
	patient, skip := !g.open, 1
	if !g.open {
		s.begin(g, &b)
		skip = 3
	}
	b.Queue(s.sql.lock, patient, keys, exclusive)
	for _, q := range g.asked {
		b.Queue(q.sql, q.args...)
	}
	results := g.conn.SendBatch(ctx, &b)
	defer func() {
		if e := results.Close(); err == nil && e != nil {
			v, err = verdictOfRead(e), e
		}
	}()
	for range skip {
		if _, err := results.Exec(); err != nil {
			return verdictOfRead(err), err
		}
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

// verdictOfRead is that on an error before anything could be committed.
func verdictOfRead(err error) verdict {
	if v := judge(err); v != unknown {
		return v
	}
	return unavailable
}

// resolve finds out whether the last transaction was committed, and if
// not, sees to it that it never will be: the server may still have to come to it.
func (s *Store) resolve() verdict {
	turn := s.turn + 1
	for deadline := time.Now().Add(resolving); time.Now().Before(deadline); time.Sleep(pause) {
		s.pool.Reset()
		was, err := s.settle(turn)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			s.registered = false
			return unknown
		case err != nil:
			continue
		}
		s.turn = turn
		if was == turn {
			return done
		}
		return unavailable
	}
	s.registered = false // whatever becomes of that turn
	return unknown
}

// settle takes a turn if it is free, and returns the last one before.
func (s *Store) settle(turn int64) (was int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), resolving/4)
	defer cancel()
	conn, err := s.acquire(ctx)
	if err != nil {
		return 0, err
	}
	if err := conn.QueryRow(ctx, s.sql.settle, pgUUID(s.writer), turn).Scan(&was); err != nil {
		if errors.Is(err, pgx.ErrNoRows) {
			conn.Release()
		} else {
			discard(conn)
		}
		return 0, err
	}
	conn.Release()
	return was, nil
}

// remember keeps what the group has read, and what has become of it.
func (g *group) remember() {
	for k := range g.relied {
		r, written := g.overlay[k]
		switch before := g.known[k]; {
		case !written && before != nil:
			g.s.memory.remember(before)
		case written && r != nil && before != nil:
			r.born = false
			g.s.memory.remember(r)
		case written && before != nil:
			g.s.memory.forget(k)
		}
	}
}

// keepHouse does a bounded piece of what keeps reads fast.
func (s *Store) keepHouse() {
	s.notify()
	select {
	case list := <-s.long:
		s.later[list] = true
	default:
	}
	for list, all := range s.later {
		delete(s.later, list)
		s.arrange(list, all)
		break
	}
}

const (
	longTail  = 512  // records put into a list before its end is cut into blocks
	listsSeen = 4096 // lists whose records are counted
)

// count counts what a group has put into lists.
func (s *Store) count(g *group) {
	for k, r := range g.overlay {
		if r == nil || r.class == 0 || g.known[k] != nil {
			continue
		}
		list := r.list()
		if s.grown[list]++; s.grown[list] >= longTail {
			delete(s.grown, list)
			if !s.later[list] {
				s.later[list] = false
			}
		}
	}
	if len(s.grown) > listsSeen {
		clear(s.grown) // whoever reads a long one says so
	}
}

// arrange cuts a list into blocks: its end, or all that have grown too large.
func (s *Store) arrange(list listKey, all bool) {
	ctx, cancel := context.WithTimeout(context.Background(), answering)
	defer cancel()
	conn, err := s.acquire(ctx)
	if err == nil {
		locks := map[int64]bool{s.locks.all(): false, s.locks.list(list): true}
		keys, exclusive := sorted(locks)
		_, err = conn.Exec(ctx, s.sql.arrange, int16(list.kind), list.child, pgUUID(list.scope), all, keys, exclusive)
		if err != nil {
			discard(conn)
		} else {
			conn.Release()
		}
	}
	if err != nil {
		s.log.Warn("a long list is not in blocks yet, so reading it takes longer", "error", plain(err))
	}
}

// noticed is told of every answer.
func (s *Store) noticed(q *question, a *answer) {
	if q.list == nil {
		for _, r := range a.rows {
			s.memory.remember(r)
		}
		return
	}
	if a.tail > 2*longTail {
		select {
		case s.long <- *q.list:
		default:
		}
	}
}
