package ledger

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Family says how records of one kind belong together with records of other kinds.
//
// Records belong to a record as its children, or because it has made them. However many
// these are, the record alone is deleted at once, and with it they are dead: a reader
// looks in the same transaction whether the record is there and lives. A small family is
// deleted as a whole. The rest of a large one is erased by a job. No child has children of
// its own.
type Family struct {
	Parent store.Kind // of their parents; 0: they have none

	// Listed is whether the list of the account has each of them: see [Account.Find].
	Listed bool

	// Beside is another kind to which they belong: a record of it has the same id. 0: none.
	Beside store.Kind

	// With is another kind: a record of it with the same id is deleted with one of this kind.
	// 0: none.
	With store.Kind

	// Stands returns the record that stands for one of this kind as a parent, because that
	// may be missing. If nil, a parent stands for itself.
	Stands func(id uuid.UUID) (store.Kind, uuid.UUID)

	// Made returns the hash that the records of this kind carry which a record has made.
	// They belong to it, and it has no children. If nil, it makes none.
	Made func(row uuid.UUID) []byte
}

// Families holds the family of each kind that has one.
type Families map[store.Kind]Family

const (
	FamilyRows = 512  // children that are deleted in the transaction that deletes their parent, at most
	FamilyMade = 1000 // likewise, records that a record has made
)

// Belongs returns ErrNotFound unless the records to which a record belongs are there and
// live.
func (a Account) Belongs(tx store.ReadTx, r *store.Record) error {
	f := a.config.Families[r.Kind]
	if f.Beside != 0 {
		if _, err := tx.Get(f.Beside, r.ID); err != nil {
			return a.unnamed(f.Beside, r.ID, err)
		}
	}
	return a.parent(tx, f.Parent, r.Parent)
}

// parent returns ErrNotFound unless the parent with an id is there and lives. The zero id
// stands for no parent.
func (a Account) parent(tx store.ReadTx, kind store.Kind, id uuid.UUID) error {
	if id == uuid.Nil {
		return nil
	}
	if stands := a.config.Families[kind].Stands; stands != nil {
		kind, id = stands(id)
	}
	_, err := a.Find(tx, kind, id)
	return err
}

// Stands reports whether there is a record to which others may belong.
func (l *Ledger) Stands(tx store.ReadTx, kind store.Kind, row uuid.UUID) (bool, error) {
	_, err := tx.Get(kind, row)
	if stands := l.config.Families[kind].Stands; stands != nil && errors.Is(err, store.ErrNotFound) {
		_, err = tx.Get(stands(row))
	}
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// DeleteFamily deletes a record and those that belong to it. If these are too many for one
// transaction, or some have changed since they were read, it deletes none of them, writes left, the
// job that does, and returns true: all are dead at once, and a large transaction would keep others
// waiting. It deletes only those records made by row that are in made: see Made.
func (l *Ledger) DeleteFamily(tx store.Tx, kind store.Kind, row uuid.UUID, left *store.Record, made map[uuid.UUID]Glimpse) (large bool, err error) {
	l.Delete(tx, kind, row)
	most := FamilyRows
	if l.config.Families[kind].Made != nil {
		most = FamilyMade
	}
	below, unread, err := l.FamilyOf(tx, kind, row, most+1, made)
	switch {
	case err != nil:
		return false, err
	case unread || len(below) > most:
		tx.Put(left)
		return true, nil
	}

	for _, k := range below {
		l.Delete(tx, k.Kind, k.ID)
	}
	return false, nil
}

// Delete deletes a record, and the record of [Family.With] beside it.
func (l *Ledger) Delete(tx store.Tx, kind store.Kind, row uuid.UUID) {
	tx.Delete(kind, row)
	if with := l.config.Families[kind].With; with != 0 {
		tx.Delete(with, row)
	}
}

// DeleteSome deletes at most so many records that belong to one. It reports whether these
// are all, and how many it has deleted.
func (l *Ledger) DeleteSome(tx store.Tx, kind store.Kind, row uuid.UUID, most int, made map[uuid.UUID]Glimpse) (all bool, deleted int, err error) {
	below, unread, err := l.FamilyOf(tx, kind, row, most+1, made)
	if err != nil {
		return false, 0, err
	}
	deleted = min(len(below), most)
	for _, k := range below[:deleted] {
		l.Delete(tx, k.Kind, k.ID)
	}
	return deleted == len(below) && !unread, deleted, nil
}

// Made reads at most so many of the records that each of the given rows has made; nothing
// if their kind makes none. Such a record itself names its maker, and a transaction does
// not trust that, since nothing is opened there.
func (l *Ledger) Made(ctx context.Context, kind store.Kind, most int, rows ...uuid.UUID) (map[uuid.UUID]Glimpse, error) {
	hash := l.config.Families[kind].Made
	if hash == nil {
		return nil, nil
	}
	made := map[uuid.UUID]Glimpse{}
	for _, row := range rows {
		below, err := l.Glimpses(ctx, kind, hash(row), most)
		if err != nil {
			return nil, err
		}
		maps.Copy(made, below)
	}
	return made, nil
}

// familyTx returns the transaction in which to look for children of a record of a kind.
func familyTx(tx store.ReadTx, kind store.Kind) store.ReadTx {
	switch c := tx.(type) {
	case *checkedReadTx:
		return checkedReadTx{tx: c.at(kind), s: c.s}
	case *checkedTx:
		return checkedReadTx{tx: c.at(kind), s: c.s}
	}
	return tx
}

// FamilyOf returns the keys of at most limit records that belong to a record, and whether
// there may be more: records that it has made and that are not in made, or beyond those that
// it leaves out. These are records that cannot be read, and those of a kind that cannot belong
// to it.
func (l *Ledger) FamilyOf(tx store.ReadTx, kind store.Kind, row uuid.UUID, limit int, made map[uuid.UUID]Glimpse) (keys []store.Key, unread bool, err error) {
	if hash := l.config.Families[kind].Made; hash != nil {
		found, err := tx.Lookup(kind, hash(row), limit)
		if err != nil && !errors.Is(err, ErrDamaged) { // a record found by mistake keeps no other from being deleted
			return nil, false, err
		}
		for _, r := range found {
			switch was := made[r.ID]; {
			case was.Version != r.Version:
				unread = true
			case was.Readable:
				keys = append(keys, store.Key{Kind: kind, ID: r.ID})
			}
		}
		return keys, unread || len(found) == limit && 0 < len(keys) && len(keys) < limit, nil
	}

	children, err := familyTx(tx, kind).Children(row, limit)
	full := len(children) == limit
	// No vault has made a child of another kind. It stays, and keeps nothing from being erased.
	keys = slices.DeleteFunc(children, func(k store.Key) bool { return l.config.Families[k.Kind].Parent != kind })
	return keys, full && 0 < len(keys) && len(keys) < limit, err
}
