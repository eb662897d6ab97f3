package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
)

// A view is one View. Its first read is a statement of its own, which is all that most
// views need. A second one begins a transaction, and asks the first again in it: if that
// has another answer by now, the function runs once more.
type view struct {
	*server
	memory *memory
	ctx    context.Context
	conn   *pgxpool.Conn // once a transaction is open
	first  *question
	answer *answer
	lost   int   // connections
	again  bool  // what the function goes by does not hold: it is to run once more
	err    error // of a read: nothing is read after it
}

const viewsLost = 3 // connections that a view may lose

// run calls fn and reports whether it has to be called once more, whatever fn has made
// of the panic that says so.
func (v *view) run(fn func(store.ReadTx) error) (again bool, err error) {
	r := &reader{server: v.server, ask: v.ask}
	v.again = false
	ok := false
	defer func() {
		r.end()
		again = v.again
		if ok {
			return
		}
		if p := recover(); p != nil && !again {
			panic(p)
		}
	}()

	err = fn(r.tx())
	ok = true
	return false, err
}

// unwind ends a run of the function.
func (v *view) unwind() {
	v.again = true
	panic(unwind{})
}

func (v *view) ask(q *question) (a *answer, err error) {
	switch {
	case v.again:
		v.unwind()
	case v.err != nil:
		return nil, v.err
	}

	same, ctx := true, v.ctx
	if v.first != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(v.ctx, answering+patience)
		defer cancel()
	}

	switch {
	case v.conn != nil:
		a, err = ask(ctx, v.conn.Conn(), q)
	case v.first == nil:
		a, err = v.askPool(ctx, q)
		v.first, v.answer = q, a
	default:
		a, same, err = v.begin(ctx, q)
	}

	if err != nil {
		if v.conn != nil && v.conn.Conn().IsClosed() && ctx.Err() == nil && v.lost < viewsLost {
			v.lost++
			discard(v.conn)
			v.conn, v.first = nil, nil
			v.unwind()
		}
		if v.err = v.ctx.Err(); v.err == nil {
			v.err = failed(verdictOfRead(err), err)
		}
		return nil, v.err
	}

	if !same {
		v.unwind()
	}
	v.memory.notice(q, a)
	return a, nil
}

// begin opens a transaction and asks the first question again and then q.
func (v *view) begin(ctx context.Context, q *question) (a *answer, same bool, err error) {
	v.conn, err = patiently(ctx, func() (*pgxpool.Conn, error) { return v.acquire(ctx) })
	if err != nil {
		return nil, false, err
	}
	var b pgx.Batch
	b.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
	b.Queue(timeouts)
	b.Queue(v.first.sql, v.first.args...)
	b.Queue(q.sql, q.args...)
	results := v.conn.SendBatch(ctx, &b)
	defer func() {
		if e := results.Close(); err == nil {
			err = e
		}
	}()

	for range 2 {
		if _, err = results.Exec(); err != nil {
			return nil, false, err
		}
	}

	first, err := v.first.of(results)
	if err != nil {
		return nil, false, err
	}
	a, err = q.of(results)
	return a, err == nil && first.same(v.answer), err
}

// end closes the transaction. A connection on which it is not closed is thrown away.
func (v *view) end() {
	if v.conn == nil {
		return
	}
	if v.err != nil || v.ctx.Err() != nil {
		discard(v.conn)
		return
	}
	ctx, cancel := context.WithTimeout(v.ctx, time.Second)
	defer cancel()
	if _, err := v.conn.Exec(ctx, "COMMIT"); err != nil { // nothing was written
		discard(v.conn)
		return
	}
	v.conn.Release()
}

// snapshotIdle bounds how long a function of Snapshot does not read: no server keeps a state
// for a process that has died.
const snapshotIdle = "SET LOCAL idle_in_transaction_session_timeout = '10min'"

// Snapshot implements [store.Snapshotter]. fn reads at least once in ten minutes. It waits for
// no lock and holds none, but VACUUM keeps the rows that it can see.
func (s *Store) Snapshot(ctx context.Context, fn func(store.ReadTx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return store.ErrClosed
	}

	conn, err := patiently(ctx, func() (*pgxpool.Conn, error) { return s.server.acquire(ctx) })
	if err != nil {
		return s.snapshotFailed(ctx, err)
	}
	v := &view{server: s.server, ctx: ctx, conn: conn}
	defer v.end()
	for _, sql := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", timeouts, snapshotIdle} {
		if _, v.err = conn.Exec(ctx, sql); v.err != nil {
			return s.snapshotFailed(ctx, v.err)
		}
	}

	r := &reader{server: s.server, ask: v.askSnapshot}
	defer r.end()
	return fn(r.tx())
}

func (s *Store) snapshotFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return failed(verdictOfRead(err), err)
}

// askSnapshot asks in an open transaction. Its answers are no memory for later reads.
func (v *view) askSnapshot(q *question) (*answer, error) {
	if v.err != nil {
		return nil, v.err
	}
	ctx, cancel := context.WithTimeout(v.ctx, answering+patience)
	defer cancel()
	a, err := ask(ctx, v.conn.Conn(), q)
	if err != nil {
		if v.err = v.ctx.Err(); v.err == nil {
			v.err = failed(verdictOfRead(err), err)
		}
	}
	return a, v.err
}
