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
