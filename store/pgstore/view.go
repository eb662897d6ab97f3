package pgstore

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
)

// A reader is a store.ReadTx that puts questions.
type reader struct {
	sql   *statements
	ask   func(*question) (*answer, error)
	ended bool
}

var _ store.ReadTx = (*reader)(nil)

// end makes later use panic.
func (r *reader) end() { r.ended = true }

func (r *reader) mustLive() {
	if r.ended {
		panic("pgstore: transaction used after its function has returned")
	}
}

func (r *reader) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	found, err := r.records(r.sql.ofGet(kind, id))
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, store.ErrNotFound
	}
	return found[0], nil
}

func (r *reader) List(q *store.Query) (*store.List, error) {
	r.mustLive()
	a, err := r.ask(r.sql.ofList(q))
	if err != nil {
		return nil, err
	}
	if a.total == tooMany {
		return nil, store.ErrTooMany
	}
	l := &store.List{Records: make([]*store.Record, len(a.rows))}
	for i, row := range a.rows {
		l.Records[i] = row.record(false)
	}
	if q.Count {
		l.Total = a.total
	}
	return l, nil
}

func (r *reader) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	r.mustLive()
	if limit <= 0 {
		return nil, nil
	}
	return r.records(r.sql.ofLookup(kind, hash, limit))
}

func (r *reader) Due(kind store.Kind, until time.Time, limit int) ([]*store.Record, error) {
	r.mustLive()
	if limit <= 0 {
		return nil, nil
	}
	return r.records(r.sql.ofDue(kind, until, limit, false))
}

func (r *reader) Next(kind store.Kind) (time.Time, error) {
	r.mustLive()
	a, err := r.ask(r.sql.ofNext(kind))
	if err != nil || !a.next.Valid {
		return time.Time{}, err
	}
	return a.next.Time.UTC(), nil
}

func (r *reader) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	r.mustLive()
	if limit <= 0 {
		return nil, nil
	}
	return r.records(r.sql.ofScan(kind, after, limit))
}

func (r *reader) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	r.mustLive()
	if limit <= 0 || parent == uuid.Nil {
		return nil, nil
	}
	a, err := r.ask(r.sql.ofChildren(parent, limit))
	if err != nil {
		return nil, err
	}
	return slices.Clone(a.keys), nil
}

func (r *reader) Empty() (bool, error) {
	r.mustLive()
	a, err := r.ask(r.sql.ofEmpty())
	if err != nil {
		return false, err
	}
	return a.total == 0, nil
}

func (r *reader) records(q *question) ([]*store.Record, error) {
	r.mustLive()
	a, err := r.ask(q)
	if err != nil || len(a.rows) == 0 {
		return nil, err
	}
	records := make([]*store.Record, len(a.rows))
	for i, row := range a.rows {
		records[i] = row.record(true)
	}
	return records, nil
}

// A view is one View. Its first read is a statement of its own, which is all that most
// views need. A second one begins a transaction, and asks the first again in it: if that
// has another answer by now, the function runs once more.
type view struct {
	s      *Store
	ctx    context.Context
	conn   *pgxpool.Conn // once a transaction is open
	first  *question
	answer *answer
	lost   int   // connections
	again  bool  // what the function goes by does not hold: it is to run once more
	err    error // of a read: nothing is read after it
}

const viewsLost = 3 // connections that a view may lose

// View implements [store.Store]. It runs fn once more if what fn has read first has
// changed when it reads on, or if the connection is lost amid several reads. A ReadTx
// used after fn has returned panics.
func (s *Store) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.isClosed {
		return store.ErrClosed
	}
	v := &view{s: s, ctx: ctx}
	defer v.end()
	for {
		again, err := v.run(fn)
		if !again {
			return err
		}
	}
}

// run calls fn and reports whether it has to be called once more, whatever fn has made
// of the panic that says so.
func (v *view) run(fn func(store.ReadTx) error) (again bool, err error) {
	r := &reader{sql: v.s.sql, ask: v.ask}
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
	err = fn(r)
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
		a, err = v.s.askPool(ctx, q)
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
	v.s.noticed(q, a)
	return a, nil
}

// begin opens a transaction and asks the first question again and then q.
func (v *view) begin(ctx context.Context, q *question) (a *answer, same bool, err error) {
	v.conn, err = patiently(ctx, func() (*pgxpool.Conn, error) { return v.s.acquire(ctx) })
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

// ask puts a question on a connection.
func ask(ctx context.Context, conn *pgx.Conn, q *question) (*answer, error) {
	rows, err := conn.Query(ctx, q.sql, q.args...)
	if err != nil {
		return nil, err
	}
	return q.read(rows)
}
