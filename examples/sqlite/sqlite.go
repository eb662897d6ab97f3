// Package sqlite is a store on SQLite: an example of how to write and prove a backend.
//
// A backend is two things: rows with a few indexes, and transactions that are serializable
// and durable. SQLite has both, so that this file holds little more than queries. It keeps
// the whole contract of package store except for one rule on cost: a total is counted row
// by row. Use it for vaults of at most some ten thousand cards.
package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
	"modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"
)

// The columns of a record are those by which it is found. The hashes of a record are in a
// table of their own, which leads to it, and beside it, where they are read.
const schema = `
CREATE TABLE IF NOT EXISTS records (
	kind INTEGER NOT NULL, id BLOB NOT NULL, account BLOB NOT NULL, parent BLOB,
	class INTEGER NOT NULL, due INTEGER, shard INTEGER NOT NULL, version INTEGER NOT NULL,
	hashes TEXT NOT NULL, shown BLOB, secret BLOB,
	PRIMARY KEY (kind, id)
) STRICT;
CREATE INDEX IF NOT EXISTS by_account ON records (kind, account, id, class, due) WHERE class > 0 AND parent IS NULL;
CREATE INDEX IF NOT EXISTS by_parent ON records (kind, parent, id, class, due) WHERE class > 0 AND parent IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_due ON records (kind, due, id, shard) WHERE due IS NOT NULL;
CREATE INDEX IF NOT EXISTS children ON records (parent, kind, id) WHERE parent IS NOT NULL;
CREATE TABLE IF NOT EXISTS hashes (
	kind INTEGER NOT NULL, hash BLOB NOT NULL, id BLOB NOT NULL,
	PRIMARY KEY (kind, hash, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS of_record ON hashes (kind, id);
PRAGMA user_version = 1;`

const format = 1 // of the schema

var _ store.Store = (*Store)(nil)

// A Store is a [store.Store] in one file of SQLite, which other processes may have open too.
// Get one from [Open].
type Store struct {
	path          string
	reads, writes *sql.DB
	turn          chan struct{} // holds a value while an Update runs

	open   sync.RWMutex // held for reading by every call
	closed bool
}

// Open opens the store in a file, and makes the file if it does not exist. Writes are on
// disk before they are acknowledged, and deleted data is overwritten.
func Open(ctx context.Context, path string) (*Store, error) {
	options := url.Values{
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)", "secure_delete(ON)"},
		"_txlock": {"immediate"},
	}
	name := "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + options.Encode()
	writes, err := sql.Open("sqlite", name)
	if err != nil {
		return nil, err
	}
	reads, err := sql.Open("sqlite", name+"&_pragma=query_only(ON)")
	if err != nil {
		return nil, errors.Join(err, writes.Close())
	}
	writes.SetMaxOpenConns(1)
	reads.SetMaxOpenConns(8)

	s := &Store{path: path, reads: reads, writes: writes, turn: make(chan struct{}, 1)}
	var version int
	err = writes.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version)
	switch {
	case err == nil && version > format:
		err = store.ErrFormat
	case err == nil && version < format:
		_, err = writes.ExecContext(ctx, "BEGIN IMMEDIATE;"+schema+"COMMIT;")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, failure(err)), s.Close())
	}
	return s, nil
}

// View implements [store.Store].
func (s *Store) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.open.RLock()
	defer s.open.RUnlock()
	if s.closed {
		return store.ErrClosed
	}

	t, err := s.reads.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return failure(err)
	}
	defer t.Rollback() // of a transaction that has written nothing
	return fn(&reader{t})
}

// Update implements [store.Store].
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := ctx.Err(); err != nil { // both were ready and select took the turn
		return err
	}
	s.open.RLock()
	defer s.open.RUnlock()
	if s.closed {
		return store.ErrClosed
	}

	t, err := s.writes.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return failure(err)
	}
	defer t.Rollback() // after Commit it does nothing
	w := &writer{reader: reader{t}}
	if err := fn(w); err != nil {
		return err
	}

	for _, write := range w.collected {
		if err := write(); err != nil {
			return failure(err)
		}
	}
	if err := t.Commit(); err != nil {
		return errors.Join(store.ErrOutcomeUnknown, failure(err))
	}
	return nil
}

// Close implements [store.Store].
func (s *Store) Close() error {
	s.open.Lock()
	defer s.open.Unlock()
	s.closed = true
	return errors.Join(s.reads.Close(), s.writes.Close())
}

// failure returns an error of SQLite as one of package store. It leaves others as they are.
func failure(err error) error {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	switch e.Code() & 0xff {
	case codes.SQLITE_FULL:
		return errors.Join(store.ErrFull, store.ErrUnavailable, err)
	case codes.SQLITE_CORRUPT, codes.SQLITE_NOTADB:
		return errors.Join(store.ErrDamaged, err)
	}
	return errors.Join(store.ErrUnavailable, err)
}

// A reader is a [store.ReadTx].
type reader struct{ tx *sql.Tx }

const (
	columns = "kind, id, account, parent, class, due, version, hashes, shown, secret"
	listed  = "kind, id, account, parent, class, due, version, hashes, shown, x''"
)

// records runs a query for records. In place of a record that cannot be read it takes the
// result of damaged, if that is not nil. Without damaged it returns ErrDamaged.
func (t *reader) records(damaged func(*store.Record) *store.Record, query string, args ...any) (found []*store.Record, err error) {
	rows, err := t.tx.Query(query, args...)
	if err != nil {
		return nil, failure(err)
	}
	defer rows.Close()

	for rows.Next() {
		var r store.Record
		var hashes, parent []byte
		var due sql.NullInt64
		err := rows.Scan(&r.Kind, &r.ID, &r.Account, &parent, &r.Class, &due, &r.Version, &hashes, &r.Shown, &r.Secret)
		copy(r.Parent[:], parent)
		if due.Valid {
			r.Due = time.UnixMicro(due.Int64)
		}
		if err == nil {
			err = json.Unmarshal(hashes, &r.Lookup)
		}

		switch {
		case err == nil:
			found = append(found, &r)
		case damaged == nil:
			return nil, errors.Join(store.ErrDamaged, err)
		default:
			if r := damaged(&r); r != nil {
				found = append(found, r)
			}
		}
	}
	return found, failure(rows.Err())
}

// skip passes over a record that cannot be read.
func skip(*store.Record) *store.Record { return nil }

func (t *reader) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	found, err := t.records(nil, "SELECT "+columns+" FROM records WHERE kind = ? AND id = ?", kind, id[:])
	if err == nil && len(found) == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

func (t *reader) List(q *store.Query) (list *store.List, err error) {
	where, args := "kind = ? AND class > 0 AND parent IS NULL AND account = ?", []any{q.Kind, q.Account[:]}
	if q.Parent != uuid.Nil {
		where, args = "kind = ? AND class > 0 AND parent = ?", []any{q.Kind, q.Parent[:]}
	}
	and := func(condition string, values ...any) {
		where += " AND " + condition
		args = append(args, values...)
	}
	and("id >= ?", q.Min[:])
	if q.Max != uuid.Nil {
		and("id <= ?", q.Max[:])
	}
	if q.Classes != (store.Classes{}) {
		in := ""
		for class := range 256 {
			if q.Classes.Has(uint8(class)) {
				in += fmt.Sprint(",", class)
			}
		}
		and("class IN (" + in[1:] + ")")
	}
	if !q.Live.IsZero() {
		and("(due IS NULL OR due > ?)", q.Live.UnixMicro())
	}
	if q.Lookup != nil {
		var shared int
		err := t.tx.QueryRow("SELECT count(*) FROM (SELECT 1 FROM hashes WHERE kind = ? AND hash = ? LIMIT ?)",
			q.Kind, q.Lookup, store.MaxShared+1).Scan(&shared)
		switch {
		case err != nil:
			return nil, failure(err)
		case shared > store.MaxShared:
			return nil, store.ErrTooMany
		}
		and("id IN (SELECT id FROM hashes WHERE kind = ? AND hash = ?)", q.Kind, q.Lookup)
	}

	list = new(store.List)
	if q.Count {
		if err := t.tx.QueryRow("SELECT count(*) FROM records WHERE "+where, args...).Scan(&list.Total); err != nil {
			return nil, failure(err)
		}
	}
	order := map[bool]string{true: " DESC"}[q.Desc]
	damaged := func(r *store.Record) *store.Record {
		return &store.Record{Kind: q.Kind, ID: r.ID, Account: r.Account, Parent: r.Parent}
	}
	list.Records, err = t.records(damaged, "SELECT "+listed+" FROM records WHERE "+where+" ORDER BY id"+order+" LIMIT ? OFFSET ?",
		append(args, max(q.Limit, 0), q.Offset)...)
	return list, err
}

func (t *reader) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	return t.records(skip, "SELECT "+columns+" FROM records WHERE kind = ? AND id IN (SELECT id FROM hashes WHERE kind = ? AND hash = ? ORDER BY id LIMIT ?) ORDER BY id",
		kind, kind, hash, max(limit, 0))
}

func (t *reader) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	return t.records(skip, "SELECT "+columns+" FROM records WHERE kind = ? AND due <= ? AND (? >> shard) & 1 ORDER BY due, id LIMIT ?",
		kind, until.UnixMicro(), cmp.Or(shards, ^store.AllShards), max(limit, 0))
}

func (t *reader) Next(kind store.Kind, shards store.Shards) (time.Time, error) {
	var due sql.NullInt64
	err := t.tx.QueryRow("SELECT min(due) FROM records WHERE kind = ? AND due IS NOT NULL AND (? >> shard) & 1", kind, cmp.Or(shards, ^store.AllShards)).Scan(&due)
	if err != nil || !due.Valid {
		return time.Time{}, failure(err)
	}
	return time.UnixMicro(due.Int64), nil
}

func (t *reader) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	damaged := func(r *store.Record) *store.Record { return &store.Record{Kind: kind, ID: r.ID} }
	return t.records(damaged, "SELECT "+columns+" FROM records WHERE kind = ? AND id > ? ORDER BY id LIMIT ?", kind, after[:], max(limit, 0))
}

func (t *reader) Children(parent uuid.UUID, limit int) (keys []store.Key, err error) {
	found, err := t.records(func(r *store.Record) *store.Record { return r }, "SELECT "+listed+" FROM records WHERE parent = ? ORDER BY kind, id LIMIT ?", parent[:], max(limit, 0))
	for _, r := range found {
		keys = append(keys, store.Key{Kind: r.Kind, ID: r.ID})
	}
	return keys, err
}

func (t *reader) Empty() (empty bool, err error) {
	err = t.tx.QueryRow("SELECT NOT EXISTS (SELECT 1 FROM records)").Scan(&empty)
	return empty, failure(err)
}

// A writer is a [store.Tx]. It collects writes, which its reads must not see.
type writer struct {
	reader
	collected []func() error
}

func (w *writer) Put(r *store.Record) {
	w.collected = append(w.collected, func() error { return w.put(r) })
}

func (w *writer) Delete(kind store.Kind, id uuid.UUID) {
	w.collected = append(w.collected, func() error {
		return errors.Join(w.remove("records", kind, id), w.remove("hashes", kind, id))
	})
}

func (w *writer) remove(table string, kind store.Kind, id uuid.UUID) error {
	_, err := w.tx.Exec("DELETE FROM "+table+" WHERE kind = ? AND id = ?", kind, id[:])
	return err
}

// put writes a record if it keeps the rules of one.
func (w *writer) put(r *store.Record) error {
	size := len(r.Shown) + len(r.Secret)
	for _, hash := range r.Lookup {
		size += len(hash)
		if len(hash) > store.MaxLookup {
			return store.ErrInvalid
		}
	}
	if r.Kind == 0 || r.ID == uuid.Nil || len(r.Lookup) > store.MaxLookups || size > store.MaxRecord {
		return store.ErrInvalid
	}
	hashes, err := json.Marshal(r.Lookup)
	if err != nil {
		return err
	}

	old, err := w.Get(r.Kind, r.ID)
	if errors.Is(err, store.ErrNotFound) {
		old, err = &store.Record{Account: r.Account, Parent: r.Parent}, nil
	}
	switch {
	case err != nil:
		return err
	case r.Version != old.Version+1:
		return store.ErrConflict
	case r.Account != old.Account || r.Parent != old.Parent:
		return store.ErrInvalid
	}

	var parent, due any
	if r.Parent != uuid.Nil {
		parent = r.Parent[:]
	}
	if !r.Due.IsZero() {
		due = r.Due.UnixMicro()
	}
	if _, err := w.tx.Exec("REPLACE INTO records (shard, "+columns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		store.ShardOf(r.ID), r.Kind, r.ID[:], r.Account[:], parent, r.Class, due, int64(r.Version), string(hashes), r.Shown, r.Secret); err != nil {
		return err
	}
	if err := w.remove("hashes", r.Kind, r.ID); err != nil {
		return err
	}
	for _, hash := range r.Lookup {
		if _, err := w.tx.Exec("INSERT OR IGNORE INTO hashes VALUES (?, ?, ?)", r.Kind, append([]byte{}, hash...), r.ID[:]); err != nil {
			return err
		}
	}
	return nil
}
