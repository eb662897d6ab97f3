package pgstore

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A session is the connection of a group, and the transaction on it. It is owned by the
// writing goroutine.
type session struct {
	*server
	conn *pgxpool.Conn // nil while none is needed
	open bool          // a transaction is, on conn
	wide bool          // keys have no account: the tables are whole, or calls do not name it
}

// connect opens a connection, unless there is one.
func (s *session) connect(ctx context.Context) (err error) {
	if s.conn == nil {
		s.conn, err = s.acquire(ctx)
	}
	return err
}

// begin opens the transaction, if it is not open. It returns how many results of the
// batch are its own.
func (s *session) begin(b *pgx.Batch) (results int) {
	if s.open {
		return 0
	}
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	b.Queue(timeouts)
	s.open = true
	return 2
}

// send sends a batch whose results do not matter.
func (s *session) send(ctx context.Context, b *pgx.Batch) error {
	if err := s.connect(ctx); err != nil {
		return err
	}
	return s.conn.SendBatch(ctx, b).Close()
}

// fetch reads rows, and the answers to questions in their order, in one round trip.
func (s *session) fetch(ctx context.Context, keys []key, questions []*question) (rows []*row, answers []*answer, err error) {
	if err := s.connect(ctx); err != nil {
		return nil, nil, err
	}

	// The locks of a claim last as long as the transaction.
	var b pgx.Batch
	skip := 0
	if slices.ContainsFunc(questions, func(q *question) bool { return q.claims }) {
		skip = s.begin(&b)
	}
	queries := s.ofRows(keys)
	for _, q := range slices.Concat(queries, questions) {
		b.Queue(q.sql, q.args...)
	}

	results := s.conn.SendBatch(ctx, &b)
	defer func() {
		if e := results.Close(); err == nil {
			err = e
		}
	}()

	if err := pass(results, skip); err != nil {
		return nil, nil, err
	}
	for _, q := range queries {
		a, err := q.of(results)
		if err != nil {
			return nil, nil, err
		}
		rows = append(rows, a.rows...)
	}

	for _, q := range questions {
		a, err := q.of(results)
		if err != nil {
			return nil, nil, err
		}
		answers = append(answers, a)
	}
	return rows, answers, nil
}

// ofRows asks for rows: in one question for those that may be of any account, in one for
// each partition of the others.
func (s *session) ofRows(keys []key) (queries []*question) {
	add := func(sql *statements, keys []key) {
		if len(keys) > 0 {
			kinds, ids := columnsOf(keys)
			queries = append(queries, &question{sql: sql.rows, args: []any{kinds, ids}})
		}
	}
	if s.wide {
		add(s.sql, keys)
		return queries
	}

	of := map[int][]key{}
	for _, k := range keys {
		part := s.part(k.account)
		of[part] = append(of[part], k)
	}
	for part, keys := range of {
		add(s.parts[part], keys)
	}
	return queries
}

// pass passes over results of statements that only have to succeed.
func pass(results pgx.BatchResults, n int) error {
	for range n {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	return nil
}

// end ends an attempt that has failed with err. It keeps the connection only if that can
// take another transaction.
func (s *session) end(v verdict, err error) {
	if s.conn != nil && (v == unknown || readOnly(err) || s.rollback() != nil || !idle(s.conn)) {
		s.abandon(s.conn, err)
		s.conn = nil
	}
	s.open = false
}

func (s *session) rollback() error {
	if !s.open {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := s.conn.Exec(ctx, "ROLLBACK")
	return err
}

// idle reports whether a connection can take another transaction.
func idle(conn *pgxpool.Conn) bool {
	c := conn.Conn().PgConn()
	return !c.IsClosed() && !c.IsBusy() && c.TxStatus() == 'I'
}

// release gives the connection back to the pool.
func (s *session) release() {
	if s.conn != nil {
		s.conn.Release()
		s.conn = nil
	}
}
