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
	"github.com/jackc/pgx/v5/pgxpool"
)

// What a transaction writes is bounded: a group takes no other call once it has groupBytes,
// or about groupLocks locks, and one call has at most mostWrites and mostBytes.
const (
	groupBytes = 4 << 20
	mostWrites = 1 << 16
	mostBytes  = 64 << 20

	optimistic = 3                // attempts before a group locks out everybody
	attempts   = 12               // before it is given up
	patience   = 5 * time.Second  // for a server that takes writes
	resolving  = 10 * time.Second // for the outcome of a commit whose answer was lost
	answering  = 15 * time.Second // for a server to answer anything
	pause      = 50 * time.Millisecond

	// A machine that dies holds its locks for no longer than the last. None of these cuts
	// short the wait of a commit for the standby.
	timeouts = `SELECT pg_catalog.set_config('statement_timeout', '10s', true), pg_catalog.set_config('lock_timeout', '3s', true),
		pg_catalog.set_config('idle_in_transaction_session_timeout', '3s', true)`

	addLocks   = 8               // that add can take
	groupsKept = 256             // rows of groups whose outcome is known
	groupsTidy = 16 * groupsKept // that are deleted at once
)

// step makes one group of calls. It returns false when the store is closing. A function
// that calls runtime.Goexit ends step amid a group, which the next step goes on with.
func (s *Store) step() bool {
	if s.group == nil {
		s.group = s.collect()
	}
	g := s.group
	if g == nil {
		return false
	}

	s.execute(g)
	if g.conn != nil {
		g.conn.Release()
	}
	s.group = nil
	s.queue.Again(g.next...)
	s.keep(g)
	s.notify()

	if s.turn-s.tidied >= groupsKept {
		select {
		case s.settled <- s.turn:
			s.tidied = s.turn
		default: // the last are still being deleted
		}
	}
	return true
}

// collect waits for a call and returns a group of all that are there, or nil when the
// store is closing.
func (s *Store) collect() *group {
	c, ok := s.queue.Next(nil, s.wakeTimer())
	for !ok {
		select {
		case <-s.queue.Closing():
			return nil
		default:
			s.notify()
			c, ok = s.queue.Next(nil, s.wakeTimer())
		}
	}

	g := s.newGroup()
	for g.lonely = c.Alone; ok; c, ok = s.queue.Next(g.pending, nil) {
		g.pending = append(g.pending, c)
	}
	return g
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
		tried := time.Now()
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
			if v = s.resolve(g); v == done {
				g.remember()
				s.dueNow(g)
				g.answer(nil)
				return
			}
		}
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "55P03" { // lock_not_available
			s.blame(g)
		}
		if v == unavailable && time.Since(tried) > patience && !g.silent {
			g.silent, g.began = true, time.Now() // it may be the connection, not the server
		}
		calls := len(g.calls) + len(g.pending)
		switch {
		case (v == broken || v == full) && calls > 1:
			// One of them may be to blame, or find room where the others do not.
			g.again()
			for _, c := range g.pending {
				c.Alone = true
			}
			g.next, g.pending = append(g.pending, g.next...), nil
			return
		case v == broken, v == full, v == unknown,
			v == unavailable && time.Since(g.began) > patience,
			time.Since(g.began) > answering, g.attempt >= attempts:
			g.answer(failed(v, err))
			return
		case v == unavailable:
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
			c.Fail(err)
		} else {
			c.Answer()
		}
	}
	g.calls, g.pending = nil, nil
}

// try runs the calls and makes their writes.
func (s *Store) try(g *group) (verdict, error) {
	v, err := s.attempt(g)
	if err != nil {
		if g.conn != nil && (v == unknown || readOnly(err) || s.rollback(g) != nil || !idle(g.conn)) {
			s.abandon(g.conn, err)
			g.conn = nil
		}
		g.open = false
	}
	return v, err
}

// idle reports whether a connection can take another transaction.
func idle(conn *pgxpool.Conn) bool {
	c := conn.Conn().PgConn()
	return !c.IsClosed() && !c.IsBusy() && c.TxStatus() == 'I'
}

// abandon throws a connection away. If it is lost, or leads to a server that takes no
// writes any more, so most likely are the idle ones.
func (s *Store) abandon(conn *pgxpool.Conn, err error) {
	if conn.Conn().IsClosed() || readOnly(err) {
		s.pool.Reset()
	}
	discard(conn)
}

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
		if len(g.wantRows)+len(g.wantAnswers) > 0 {
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
	if len(g.wantRows) > 0 {
		a, err := new(question).of(results)
		if err != nil {
			return err
		}
		g.learn(a.rows)
		for k := range g.wantRows {
			if _, known := g.known[k]; !known {
				g.known[k] = nil
			}
		}
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
	clear(g.wantAnswers)
	return nil
}

// learn takes rows for what is stored. What calls may go by already stays as it is, also
// that there is no row: whether it is so, the transaction finds out.
func (g *group) learn(rows []*row) {
	for _, r := range rows {
		if _, known := g.known[r.key]; !known {
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
	if len(g.relied) == 0 && len(g.asked) == 0 && !w.any && !g.open {
		return done, nil
	}
	if err := s.connect(ctx, g); err != nil {
		return verdictOfRead(err), err
	}
	if w.any {
		s.turn++ // each attempt has its own
	}
	keys, exclusive := g.locks()
	if len(g.asked) > 0 {
		if v, err := s.askAgain(ctx, g, keys, exclusive); err != nil {
			return v, err
		}
		keys, exclusive = nil, nil
	}
	var large []int32
	if !g.open {
		sql, args := s.sql.add, w.single(g, keys, exclusive)
		if args == nil {
			w.encode(g, s.id, s.turn, rand.Int64())
			sql, args = s.sql.apply, append([]any{true, keys, exclusive}, w.args...)
		}
		if err := g.conn.QueryRow(ctx, sql, args...).Scan(&large); err != nil {
			return w.judge(err), err
		}
	} else {
		w.encode(g, s.id, s.turn, rand.Int64())
		var b pgx.Batch
		b.Queue(s.sql.apply, append([]any{false, keys, exclusive}, w.args...)...)
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
	for _, i := range large {
		if int(i) <= len(w.lists) && i > 0 {
			s.long.note(w.lists[i-1], w.least[i-1])
		}
	}
	return done, nil
}

// single returns the parameters of add, or nil for what only apply can do. Most groups of
// a process in which little goes on at once add one row and have read one. An array costs
// the server more than all values of that row, so they take two thirds of the time.
func (w *writes) single(g *group, keys []int64, exclusive []bool) []any {
	if len(w.rows) != 1 || w.changed+len(w.gone)+len(w.off) > 0 || len(keys) > addLocks || slices.Contains(exclusive, true) {
		return nil
	}
	var read *row
	for k := range g.relied { // what is not there is what it adds, else it would not share all locks
		if r := g.known[k]; r != nil && read != nil {
			return nil
		} else if r != nil {
			read = r
		}
	}
	readKind, readID, readStamp := pgtype.Int2{}, pgtype.UUID{}, pgtype.Int8{}
	if read != nil {
		readKind = pgtype.Int2{Int16: int16(read.kind), Valid: true}
		readID, readStamp = pgUUID(read.id), pgtype.Int8{Int64: read.stamp, Valid: true}
	}
	var hashes [][]byte
	for _, l := range w.on {
		hashes = append(hashes, []byte(l.hash))
	}
	r := w.rows[0]
	r.stamp = rand.Int64()
	list := r.list()
	return []any{keys, readKind, readID, readStamp, pgUUID(g.s.id), g.s.turn, r.stamp,
		int16(r.kind), pgUUID(r.id), pgUUID(r.account), pgUUID(list.scope), list.child, int16(r.class),
		r.due, int64(r.version), r.lookup, r.shown, r.secret, hashes}
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

// resolve finds out whether the last transaction was committed, and if not, sees to it
// that it never will be: the server may still have to come to it.
func (s *Store) resolve(g *group) verdict {
	for deadline := time.Now().Add(resolving); time.Now().Before(deadline); time.Sleep(pause) {
		// Rows of groups go after a day, for which a machine may have been suspended.
		if time.Now().Round(0).Sub(g.began.Round(0)) > time.Hour {
			return unknown
		}
		switch committed, err := s.settle(); {
		case err != nil:
		case committed:
			return done
		default:
			return unavailable
		}
	}
	return unknown
}

// settle ends the last group, and reports whether it was committed.
func (s *Store) settle() (committed bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), resolving/4)
	defer cancel()
	conn, err := s.acquire(ctx)
	if err != nil {
		return false, err
	}
	if err := conn.QueryRow(ctx, s.sql.settle, pgUUID(s.id), s.turn).Scan(&committed); err != nil {
		s.abandon(conn, err)
		return false, err
	}
	conn.Release()
	return committed, nil
}

// tidy deletes rows of groups until ctx ends: those of its own whose outcome is known, and
// now and then those of stores that are gone.
func (s *Store) tidy(ctx context.Context) {
	var tidied int64
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var b pgx.Batch
		b.Queue(`SELECT pg_catalog.set_config('synchronous_commit', 'off', true)`)
		select {
		case <-ctx.Done():
			return
		case to := <-s.settled:
			b.Queue(s.sql.tidy, pgUUID(s.id), max(tidied, to-groupsTidy), to)
			tidied = to // what is missed goes after a day
		case <-timer.C:
			b.Queue(s.sql.old)
			timer.Reset(time.Hour)
		}
		ctx, cancel := context.WithTimeout(ctx, answering)
		if conn, err := s.acquire(ctx); err == nil {
			if err := conn.SendBatch(ctx, &b).Close(); err != nil {
				discard(conn)
			} else {
				conn.Release()
			}
		}
		cancel()
	}
}

// remember keeps what the group has read, and what has become of it.
func (g *group) remember() {
	for k := range g.relied {
		r, written := g.overlay[k]
		switch before := g.known[k]; {
		case !written && before != nil:
			g.s.memory.remember(before)
		case written && r != nil && before != nil:
			g.s.memory.remember(r)
		case written && before != nil:
			g.s.memory.forget(k)
		}
	}
}

// count counts what a group has put into lists.
func (s *Store) count(g *group) {
	for k, r := range g.overlay {
		if r == nil || r.class == 0 || g.known[k] != nil {
			continue
		}
		list := r.list()
		if s.grown[list]++; s.grown[list] >= longTail {
			delete(s.grown, list)
			s.long.note(list, uuid.Max)
		}
	}
	if len(s.grown) > listsSeen {
		clear(s.grown) // whoever reads a long one says so
	}
}

// noticed is told of every answer.
func (s *Store) noticed(q *question, a *answer) {
	switch {
	case q.scan != 0: // would push out what others come back to
	case q.list == nil:
		for _, r := range a.rows {
			s.memory.remember(r)
		}
	case a.tail > 2*longTail:
		s.long.note(*q.list, q.high)
	}
}
