package pgstore

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cardvault/cardvault/store"
)

// A key names a record. Without partitions, and where a record may be of any account, it
// has no account.
type key struct {
	kind    store.Kind
	id      uuid.UUID
	account uuid.UUID
}

// A listKey names the list of a parent or of an account.
type listKey struct {
	kind  store.Kind
	child bool
	part  uint8 // the partition of the account; 0 without partitions
	scope uuid.UUID
}

// A row is a record as it is stored. It is immutable: callers receive copies of records.
type row struct {
	kind            store.Kind
	id              uuid.UUID
	account, parent uuid.UUID
	class           uint8
	due             pgtype.Timestamptz
	version         uint64
	stamp           int64  // never the same for two stored states
	lookup          []byte // hashes, each after a byte with its length
	shown, secret   []byte

	// damaged: a column has a value that no Store writes. Lookup and class are then as stored
	// if they can be read, so that a deletion removes the index entries too.
	damaged bool
}

func (r *row) hashes() [][]byte {
	var hashes [][]byte
	for b := r.lookup; len(b) > 0; b = b[1+int(b[0]):] {
		hashes = append(hashes, b[1:1+int(b[0])])
	}
	return hashes
}

// size is roughly what a row takes on the way to the server.
func (r *row) size() int { return 128 + len(r.shown) + len(r.secret) + len(r.lookup) }

// rowOf returns the row of a record, or nil if it breaks a rule of [store.Record].
func rowOf(r *store.Record) *row {
	size := len(r.Shown) + len(r.Secret)
	hashes := make([]byte, 0, 64)
	for _, hash := range r.Lookup {
		if len(hash) > store.MaxLookup {
			return nil
		}
		size += len(hash)
		hashes = append(append(hashes, byte(len(hash))), hash...)
	}

	if r.Kind == 0 || r.ID == uuid.Nil || r.Due.Year() < -4000 || r.Due.Year() > 200_000 || len(r.Lookup) > store.MaxLookups || size > store.MaxRecord {
		return nil
	}
	sealed := make([]byte, 0, len(r.Shown)+len(r.Secret))
	sealed = append(append(sealed, r.Shown...), r.Secret...)
	w := &row{
		kind: r.Kind, id: r.ID, account: r.Account, parent: r.Parent, class: r.Class, version: r.Version,
		lookup: hashes, shown: sealed[:len(r.Shown):len(r.Shown)], secret: sealed[len(r.Shown):],
	}
	if !r.Due.IsZero() {
		w.due = timestamp(r.Due)
	}
	return w
}

// timestamp truncates to microseconds.
func timestamp(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: time.UnixMicro(t.UnixMicro()), Valid: true}
}

// record returns a record of its own, with its secret or not. The record of a damaged row has
// only its key, account and parent.
func (r *row) record(secret bool) *store.Record {
	if r.damaged {
		return &store.Record{Kind: r.kind, ID: r.id, Account: r.account, Parent: r.parent}
	}
	rec := &store.Record{
		Kind: r.kind, ID: r.id, Account: r.account, Parent: r.parent, Class: r.class,
		Version: r.version, Shown: bytes.Clone(r.shown),
	}
	if r.due.Valid {
		rec.Due = r.due.Time.UTC()
	}
	if secret {
		rec.Secret = bytes.Clone(r.secret)
	}
	for _, hash := range r.hashes() {
		rec.Lookup = append(rec.Lookup, bytes.Clone(hash))
	}
	return rec
}

// columns names the columns of rows, in the order of their targets.
const columns = `r.kind, r.id, r.account, r.scope, r.child, r.class, r.due, r.version, r.stamp, r.lookup, r.shown, r.secret`

// A scanner reads rows.
type scanner struct {
	row
	uuids   [3]pgtype.UUID // id, account, scope: read faster than into the row's fields
	child   bool
	k, c    int16
	v       int64
	targets []any
	lead    []any // targets of columns before these
}

// scan reads the row that rows is at, with as many columns as there are. A row whose values
// break a rule is damaged.
func (s *scanner) scan(rows pgx.Rows) (*row, error) {
	s.row = row{}
	if s.targets == nil {
		s.targets = []any{&s.k, &s.uuids[0], &s.uuids[1], &s.uuids[2], &s.child, &s.c, &s.due, &s.v, &s.stamp, &s.lookup, &s.shown, &s.secret}
	}
	n := len(rows.FieldDescriptions()) - len(s.lead)
	targets := s.targets[:n]
	if len(s.lead) > 0 {
		targets = slices.Concat(s.lead, targets)
	}
	if rows.Scan(targets...) != nil {
		return nil, store.ErrDamaged // the error would quote the value
	}

	r := s.row
	r.kind, r.class, r.version = store.Kind(s.k), uint8(s.c), uint64(s.v)
	r.id, r.account = s.uuids[0].Bytes, s.uuids[1].Bytes
	if s.child {
		r.parent = s.uuids[2].Bytes
	}
	if !wellFormed(r.lookup) || r.due.InfinityModifier != pgtype.Finite || uint16(s.k)|uint16(s.c) > 255 {
		return r.spoiled(uint16(s.c) <= 255), nil
	}

	return &r, nil
}

// spoiled returns r as a damaged row, with its class or without.
func (r *row) spoiled(class bool) *row {
	d := &row{kind: r.kind, id: r.id, account: r.account, parent: r.parent, stamp: r.stamp, due: r.due, damaged: true}
	if class {
		d.class = r.class
	}
	if wellFormed(r.lookup) {
		d.lookup = r.lookup
	}
	return d
}

// wellFormed reports whether b can be read as hashes.
func wellFormed(b []byte) bool {
	for len(b) > 0 {
		n := 1 + int(b[0])
		if n > len(b) {
			return false
		}
		b = b[n:]
	}
	return true
}

func pgUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

func columnsOf(keys []key) (kinds []int16, ids []pgtype.UUID) {
	for _, k := range keys {
		kinds, ids = append(kinds, int16(k.kind)), append(ids, pgUUID(k.id))
	}
	return kinds, ids
}

func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), slices.Compare(a.id[:], b.id[:]), slices.Compare(a.account[:], b.account[:]))
}
