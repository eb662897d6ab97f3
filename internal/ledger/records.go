package ledger

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// View reads in one transaction. fn may be called more than once.
func (l *Ledger) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if l.closed.Load() {
		return ErrClosed
	}
	if err := l.present(ctx); err != nil {
		return err
	}
	return l.follow(ctx, l.outcome(l.store.View(ctx, uuid.Nil, fn)))
}

// viewUnbarred is View for the keyring, whose reading ends a bar.
func (l *Ledger) viewUnbarred(ctx context.Context, fn func(store.ReadTx) error) error {
	if l.closed.Load() {
		return ErrClosed
	}
	if err := l.Moved(); err != nil {
		return err
	}
	return l.follow(ctx, l.outcome(l.store.View(ctx, uuid.Nil, fn)))
}

// View is View of a Ledger for records of the account: see [Own].
func (a Account) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if a.closed.Load() {
		return ErrClosed
	}
	if a.guarded {
		if err := a.Usable(ctx); err != nil {
			return err
		}
	}
	if err := a.present(ctx); err != nil {
		return err
	}
	return a.follow(ctx, a.outcome(a.store.View(ctx, a.ID, fn)))
}

// Get returns the record of an id, unless it has lapsed.
func (a Account) Get(ctx context.Context, kind store.Kind, id uuid.UUID) (*store.Record, error) {
	return a.GetRow(ctx, kind, a.Unmask(kind, id))
}

// GetRow returns the record of a row key, unless it has lapsed. The zero key is not found.
func (a Account) GetRow(ctx context.Context, kind store.Kind, row uuid.UUID) (*store.Record, error) {
	return a.GetOf(ctx, kind, row, uuid.Nil)
}

// GetOf is GetRow for a record that a caller says belongs to a parent: see [Account.FindOf].
func (a Account) GetOf(ctx context.Context, kind store.Kind, row, parent uuid.UUID) (*store.Record, error) {
	if a.closed.Load() {
		return nil, ErrClosed
	}
	if row == uuid.Nil {
		return nil, ErrNotFound
	}
	var rec *store.Record
	err := a.View(ctx, func(tx store.ReadTx) (err error) {
		rec, err = a.FindOf(tx, kind, row, parent)
		return err
	})
	if rec != nil && errors.Is(err, ErrNotFound) {
		err = cmp.Or(a.Authentic(ctx, rec), err) // damage may have it look as if it had lapsed
		rec = nil
	}
	if err != nil {
		err = a.Named(&store.Record{Kind: kind, ID: row, Account: a.ID}, err)
	}
	return rec, err
}

// Find returns a record of the account, unless it has lapsed, or the record to which it
// belongs has lapsed or is missing. The error is ErrDamaged, and not ErrNotFound, for a record
// of a listed kind that was lost. With ErrNotFound there may be a record, which has lapsed.
func (a Account) Find(tx store.ReadTx, kind store.Kind, row uuid.UUID) (*store.Record, error) {
	return a.FindOf(tx, kind, row, uuid.Nil)
}

// FindOf is Find for a record that a caller says belongs to a parent: only with the parent it is
// known whether such a record was lost.
func (a Account) FindOf(tx store.ReadTx, kind store.Kind, row, parent uuid.UUID) (*store.Record, error) {
	r, err := tx.Get(kind, row)
	switch {
	case errors.Is(err, store.ErrNotFound) && !Unreadable(err):
		return nil, a.lost(tx, kind, row, parent)
	case err != nil:
		return nil, a.unnamed(kind, row, err)
	case r.Account != a.ID:
		return nil, a.lost(tx, kind, row, parent)
	case !Lives(r, Now()):
		return r, ErrNotFound
	}
	return r, a.Belongs(tx, r)
}

// lost returns the error of a record that is not in its place. It is ErrDamaged if the list of the
// account, or of a parent, has it all the same: no vault deletes it from one alone.
func (a Account) lost(tx store.ReadTx, kind store.Kind, row, parent uuid.UUID) error {
	f := a.config.Families[kind]
	if row == uuid.Nil || parent == uuid.Nil && !f.Listed {
		return store.ErrNotFound
	}
	if err := a.parent(tx, f.Parent, parent); err != nil {
		return err
	}

	list, err := tx.List(&store.Query{Kind: kind, Account: a.ID, Parent: parent, Min: row, Max: row, Limit: 1})
	switch {
	case list == nil:
		return a.unnamed(kind, row, err)
	case len(list.Records) == 0:
		return store.ErrNotFound
	}
	return a.unnamed(kind, row, fmt.Errorf("%w: a list has the record, which was lost", ErrDamaged))
}

// Exists returns ErrNotFound unless the account exists. Records of accounts are never deleted,
// so that one look is enough.
func (a Account) Exists(ctx context.Context) error {
	if _, ok := a.known.Load(a.ID); ok {
		return nil
	}
	_, err := a.State(ctx)
	return err
}

// List answers a query for records of the account. The parent that the query names must
// be there. In the same transaction also reads the records that belong to the answer. The
// list comes with ErrDamaged if some of its records are Foreign. A record that cannot be
// read is found when it is opened.
func (a Account) List(ctx context.Context, q *store.Query, also ...func(store.ReadTx, *store.List) error) (list *store.List, err error) {
	if q.Kind != KindAccount { // these belong to no account
		if err := a.Exists(ctx); err != nil {
			return nil, err
		}
	}

	var damaged error
	err = a.View(ctx, func(tx store.ReadTx) error {
		if err := a.parent(tx, a.config.Families[q.Kind].Parent, q.Parent); err != nil {
			return err
		}
		if list, damaged = tx.List(q); list == nil {
			return damaged
		}
		for _, read := range also {
			if err := read(tx, list); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case slices.ContainsFunc(list.Records, Foreign): // without an id: the record may be another account's
		return list, a.damage(q.Kind, damaged)
	}
	return list, nil
}

// Siblings answers a query for records of one parent, which may be missing: users of a
// record check that.
func (l *Ledger) Siblings(ctx context.Context, q *store.Query) (list *store.List, err error) {
	err = l.View(ctx, func(tx store.ReadTx) (err error) {
		list, err = tx.List(q)
		return err
	})
	return list, err
}

// Same reports whether a record is as it was read.
func Same(tx store.ReadTx, r *store.Record) (bool, error) {
	is, err := Again(tx, r)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil && is.Version == r.Version, err
}

// Unchanged returns store.ErrConflict unless a record has the version that was read, is still
// absent if read is nil, or still cannot be read by the store if read has no version.
func Unchanged(tx store.ReadTx, kind store.Kind, row uuid.UUID, read *store.Record) error {
	switch r, err := tx.Get(kind, row); {
	case errors.Is(err, store.ErrNotFound) && read == nil:
		return nil
	case errors.Is(err, store.ErrNotFound):
		return store.ErrConflict
	case Unreadable(err) && read != nil && read.Version == 0:
		return nil
	case err != nil:
		return err
	case read == nil || r.Version != read.Version:
		return store.ErrConflict
	}
	return nil
}

// Again reads a record once more.
func Again(tx store.ReadTx, r *store.Record) (*store.Record, error) {
	return where(tx, r).Get(r.Kind, r.ID)
}

// Seek reads a record in a transaction of its account. If a record of another account has its
// place, the error is ErrDamaged: only a writer of rows can have put it there, and none of this
// account can be put there until Clear has removed it. Get says that such a record is not found,
// which is all that a caller who names its id may learn.
func Seek(tx store.ReadTx, kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r, err := tx.Get(kind, id)
	if foreign, is := errors.AsType[*store.ForeignError](err); is {
		return nil, &taken{foreign.Account}
	}
	return r, err
}

// A taken error says that a record of another account has the place of a record.
type taken struct{ account uuid.UUID }

func (*taken) Error() string { return ErrDamaged.Error() + ": another account has the record" }

func (*taken) Unwrap() error { return ErrDamaged }

// Clear deletes the record at an id, whatever its account. err comes from Seek in this transaction.
func Clear(tx store.Tx, kind store.Kind, id uuid.UUID, err error) {
	if t, is := errors.AsType[*taken](err); is {
		tx = Within(tx, t.account).(store.Tx)
	}
	tx.Delete(kind, id)
}

// Delete deletes a record that was read, whatever its account.
func Delete(tx store.Tx, r *store.Record) {
	where(tx, r).(store.Tx).Delete(r.Kind, r.ID)
}

// DeleteRead is Delete of a record that was read, whatever its account.
func (l *Ledger) DeleteRead(tx store.Tx, r *store.Record) {
	l.Delete(where(tx, r).(store.Tx), r.Kind, r.ID)
}

func where(tx store.ReadTx, r *store.Record) store.ReadTx { return Within(tx, r.Account) }

// Within returns the transaction for records of one account, whatever their kinds. It is a
// Tx if tx is.
func Within(tx store.ReadTx, account uuid.UUID) store.ReadTx {
	if d, ok := tx.(store.Divided); ok {
		return d.In(account)
	}
	return tx
}

// SealShown seals the shown part of a record.
func (l *Ledger) SealShown(r *store.Record, plain []byte) error {
	return Translate(l.Box.SealShown(r, plain))
}

// SealSecret seals the secret part of a record.
func (l *Ledger) SealSecret(r *store.Record, plain []byte) error {
	return Translate(l.Box.SealSecret(r, plain))
}

// OpenShown opens the shown part of a record in place. A term that another
// process has started is loaded.
func (l *Ledger) OpenShown(ctx context.Context, r *store.Record) ([]byte, error) {
	plain, err := l.open(ctx, func() ([]byte, error) { return l.Box.OpenShown(r) })
	if err != nil {
		return nil, l.Named(r, Translate(err))
	}
	r.Shown = plain
	return plain, nil
}

// OpenSecret opens the secret part of a record in place, as OpenShown does.
func (l *Ledger) OpenSecret(ctx context.Context, r *store.Record) ([]byte, error) {
	plain, err := l.open(ctx, func() ([]byte, error) { return l.Box.OpenSecret(r) })
	return plain, l.Named(r, Translate(err))
}

// OpenCode opens what seal.Box.SealCode has sealed under key for a record of the account.
func (a Account) OpenCode(ctx context.Context, key *seal.CodeKey, id uuid.UUID, sealed []byte) ([]byte, error) {
	return a.open(ctx, func() ([]byte, error) { return a.Box.OpenCode(key, a.ID, id, sealed) })
}

// open calls fn, and once more when the keys of a term were missing that another process
// has started.
func (l *Ledger) open(ctx context.Context, fn func() ([]byte, error)) ([]byte, error) {
	plain, err := fn()
	if !errors.Is(err, seal.ErrUnknownTerm) {
		return plain, err
	}
	if _, err := l.loadMeta(ctx); err != nil {
		return nil, l.Named(&store.Record{Kind: KindMeta}, err)
	}
	return fn()
}

// CopySecret opens the secret part of a record, which stays as it is.
func (l *Ledger) CopySecret(ctx context.Context, r *store.Record) ([]byte, error) {
	opened := *r
	opened.Secret = bytes.Clone(r.Secret)
	return l.OpenSecret(ctx, &opened)
}

// Read opens the shown part of a record that holds fields.
func (l *Ledger) Read(ctx context.Context, rec *store.Record) (*tlv.Reader, error) {
	plain, err := l.OpenShown(ctx, rec)
	r := tlv.Read(plain)
	return &r, err
}

// ReadFields opens the shown part of a record, and reads its fields.
func (l *Ledger) ReadFields(ctx context.Context, rec *store.Record, fields func(*tlv.Fields)) error {
	plain, err := l.OpenShown(ctx, rec)
	if err != nil {
		return err
	}
	return l.Named(rec, Decode(plain, fields))
}

// Decode reads fields. The error is ErrDamaged if these are none.
func Decode(plain []byte, fields func(*tlv.Fields)) error {
	var f tlv.Fields
	f.From(plain)
	fields(&f)
	return FieldsError(&f)
}

// ReadError returns ErrDamaged if a record did not hold fields.
func ReadError(r *tlv.Reader) error { return readError(r.Err()) }

// FieldsError is ReadError for fields that were read at once.
func FieldsError(f *tlv.Fields) error { return readError(f.Err()) }

func readError(err error) error {
	if err != nil {
		return fmt.Errorf("%w: record cannot be read", ErrDamaged)
	}
	return nil
}

// Authentic returns ErrDamaged for a record that is not as a vault has written it: its
// columns do not say then why it was found. The record stays sealed.
func (l *Ledger) Authentic(ctx context.Context, r *store.Record) error {
	opened := *r
	opened.Shown = bytes.Clone(r.Shown)
	plain, err := l.OpenShown(ctx, &opened)
	clear(plain)
	return err
}

// FindBy calls fn with each record of a kind that has a hash, and with whether the record
// can be read. It ends after limit records, and when fn returns false. Otherwise the error
// is ErrDamaged if a record could not be read, or did not have the hash.
func (l *Ledger) FindBy(ctx context.Context, kind store.Kind, hash []byte, limit int, fn func(r *store.Record, readable bool) bool) error {
	var found []*store.Record
	damaged := l.View(ctx, func(tx store.ReadTx) (err error) {
		found, err = tx.Lookup(kind, hash, limit)
		return err
	})
	if damaged != nil && !errors.Is(damaged, ErrDamaged) {
		return damaged
	}

	for _, r := range found {
		err := l.Authentic(ctx, r)
		if err != nil && !errors.Is(err, ErrDamaged) {
			return err
		}
		if !fn(r, err == nil) {
			return nil
		}
		if err != nil {
			damaged = err
		}
	}
	return damaged
}

// An Owned record is one with the record of its account.
type Owned struct{ Record, Account *store.Record }

// FindOwned returns at most limit records of a kind, of any account, that have a hash.
// damaged is ErrDamaged if others could not be used. For a hash without records it also
// reads the account of the row key stranger, and so takes as long.
func (l *Ledger) FindOwned(ctx context.Context, kind store.Kind, hash []byte, limit int, stranger uuid.UUID) (found []Owned, damaged, err error) {
	whole := l.In(uuid.Nil)
	err = l.View(ctx, func(tx store.ReadTx) error {
		found, damaged = nil, nil
		records, err := tx.Lookup(kind, hash, limit)
		if errors.Is(err, ErrDamaged) {
			damaged, err = err, nil
		}
		if err != nil {
			return err
		}

		for _, r := range records {
			account, err := tx.Get(KindAccount, whole.Unmask(KindAccount, r.Account))
			if errors.Is(err, store.ErrNotFound) { // no vault has written such a record
				damaged = fmt.Errorf("%w: record of no account", ErrDamaged)
				continue
			}
			if err != nil {
				return err
			}
			found = append(found, Owned{r, account})
		}

		if len(records) == 0 {
			_, err = tx.Get(KindAccount, stranger)
		}
		return err
	})
	return found, damaged, err
}

// A Glimpse holds the state of a record as it was seen before a transaction.
type Glimpse struct {
	Version  uint64
	Readable bool
}

// Glimpses returns glimpses of at most limit records of a kind that have a hash, by their
// row keys.
func (l *Ledger) Glimpses(ctx context.Context, kind store.Kind, hash []byte, limit int) (map[uuid.UUID]Glimpse, error) {
	seen := map[uuid.UUID]Glimpse{}
	err := l.FindBy(ctx, kind, hash, limit, func(r *store.Record, readable bool) bool {
		seen[r.ID] = Glimpse{r.Version, readable}
		return true
	})
	if errors.Is(err, ErrDamaged) {
		err = nil
	}
	return seen, err
}

// AuthenticSecret is Authentic for the secret part of a record.
func (l *Ledger) AuthenticSecret(ctx context.Context, r *store.Record) error {
	plain, err := l.CopySecret(ctx, r)
	clear(plain)
	return err
}
