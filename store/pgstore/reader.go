package pgstore

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

// A reader is a store.ReadTx that puts questions.
type reader struct {
	server *server
	ask    func(*question) (*answer, error)
	ended  bool
}

// A dividedReader is a reader of a store with partitions.
type dividedReader struct{ *reader }

// A partReader is a reader of the records of one account.
type partReader struct {
	*reader
	account uuid.UUID
}

var (
	_ store.Divided = dividedReader{}
	_ store.Checker = dividedReader{}
	_ store.Checker = (*reader)(nil)
)

// In implements [store.Divided].
func (r dividedReader) In(account uuid.UUID) store.ReadTx { return partReader{r.reader, account} }

// tx returns what a function of View is given.
func (r *reader) tx() store.ReadTx {
	if r.server.divided() {
		return dividedReader{r}
	}
	return r
}

// end makes later use panic.
func (r *reader) end() { r.ended = true }

func (r *reader) mustLive() {
	if r.ended {
		panic("pgstore: transaction used after its function has returned")
	}
}

func (r *reader) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	return one(r.rows(r.server.sql.ofGet(kind, id)))
}

// Get finds a record of another account in the partition, as the place is not free then.
func (r partReader) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	found, err := r.rows(r.server.at(r.account).ofGet(kind, id))
	if err == nil && len(found) > 0 && found[0].account != r.account {
		return nil, &store.ForeignError{Account: found[0].account}
	}
	return one(found, err)
}

// one returns the record that was asked for.
func one(found []*row, err error) (*store.Record, error) {
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, store.ErrNotFound
	case found[0].damaged:
		return nil, store.ErrDamaged
	}
	return found[0].record(true), nil
}

func (r *reader) List(q *store.Query) (*store.List, error) {
	r.mustLive()
	a, err := r.ask(r.server.at(q.Account).ofList(q, r.server.listOf(q.Kind, q.Account, q.Parent)))
	if err != nil {
		return nil, err
	}
	if a.total == tooMany {
		return nil, store.ErrTooMany
	}

	l := &store.List{Records: make([]*store.Record, len(a.rows))}
	for i, found := range a.rows {
		l.Records[i] = found.record(false)
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
	return readableOf(r.rows(r.server.sql.ofLookup(kind, hash, limit)))
}

func (r partReader) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	r.mustLive()
	if limit <= 0 {
		return nil, nil
	}
	return readableOf(r.rows(r.server.at(r.account).ofLookupIn(r.account, kind, hash, limit)))
}

func (r *reader) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	r.mustLive()
	if limit <= 0 {
		return nil, nil
	}
	return readyOf(r.rows(r.server.sql.ofDue(kind, shards, until, limit, false)))
}

func (r *reader) Next(kind store.Kind, shards store.Shards) (time.Time, error) {
	r.mustLive()
	a, err := r.ask(r.server.sql.ofNext(kind, shards))
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
	found, err := r.rows(r.server.sql.ofScan(kind, after, limit))
	return recordsOf(found), err
}

func (r *reader) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	return r.children(r.server.sql.ofChildren(parent, limit), limit)
}

func (r partReader) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	return r.children(r.server.at(r.account).ofChildrenIn(r.account, parent, limit), limit)
}

func (r *reader) children(q *question, limit int) ([]store.Key, error) {
	r.mustLive()
	if limit <= 0 || q.parent == uuid.Nil {
		return nil, nil
	}
	a, err := r.ask(q)
	if err != nil {
		return nil, err
	}
	return slices.Clone(a.keys), nil
}

func (r *reader) Empty() (bool, error) {
	r.mustLive()
	a, err := r.ask(r.server.sql.ofEmpty())
	if err != nil {
		return false, err
	}
	return a.total == 0, nil
}

// rows asks for rows. The damaged ones are among them.
func (r *reader) rows(q *question) ([]*row, error) {
	r.mustLive()
	a, err := r.ask(q)
	if err != nil {
		return nil, err
	}
	return a.rows, nil
}

// recordsOf returns the records of rows, and the places of the damaged ones.
func recordsOf(found []*row) []*store.Record {
	if len(found) == 0 {
		return nil
	}
	all := make([]*store.Record, len(found))
	for i, r := range found {
		all[i] = r.record(true)
	}
	return all
}

// readableOf returns the records that can be read, and ErrDamaged beside them if there are others.
func readableOf(found []*row, err error) ([]*store.Record, error) {
	if slices.ContainsFunc(found, isDamaged) {
		found, err = slices.DeleteFunc(slices.Clone(found), isDamaged), store.ErrDamaged
	}
	return recordsOf(found), err
}

// readyOf is readableOf for records that are due: what cannot be read is passed over.
func readyOf(found []*row, err error) ([]*store.Record, error) {
	if err != nil {
		return nil, err
	}
	sound, _ := readableOf(found, nil)
	return sound, nil
}

func isDamaged(r *row) bool { return r.damaged }

// unwind is the panic value by which a read ends a run.
type unwind struct{}
