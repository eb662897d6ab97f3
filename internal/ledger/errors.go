package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Errors of records, of the store and of the key provider. Package cardvault documents
// them: they are its own.
var (
	ErrNotFound       = errors.New("cardvault: not found")
	ErrClosed         = errors.New("cardvault: vault is closed")
	ErrUnavailable    = errors.New("cardvault: unavailable")
	ErrOutcomeUnknown = errors.New("cardvault: outcome of the write is unknown")
	ErrDamaged        = errors.New("cardvault: stored data is damaged")
	ErrStorageFull    = errors.New("cardvault: storage is full")
	ErrLocked         = errors.New("cardvault: vault is in use by another process")
	ErrFormat         = errors.New("cardvault: written by a later version")
	ErrWrongKey       = errors.New("cardvault: wrong key")
	ErrWrongMode      = errors.New("cardvault: wrong mode")
	ErrKeyExhausted   = errors.New("cardvault: key has reached its limit of seals")
)

// ErrAgain is wrapped by the error of a write after which its caller looks again. Such an
// error is not an outcome, and neither is store.ErrConflict.
var ErrAgain = errors.New("cardvault: the store has changed meanwhile")

// translations maps the errors of a store and of package seal to the errors that a caller
// of the vault sees. The first match counts.
var translations = []struct{ from, to error }{
	{store.ErrNotFound, ErrNotFound},
	{store.ErrClosed, ErrClosed},
	{store.ErrFull, ErrStorageFull},
	{store.ErrOutcomeUnknown, ErrOutcomeUnknown},
	{store.ErrUnavailable, ErrUnavailable},
	{store.ErrDamaged, ErrDamaged},
	{store.ErrLocked, ErrLocked},
	{store.ErrFormat, ErrFormat},
	{seal.ErrIntegrity, ErrDamaged},
	{seal.ErrUnknownTerm, ErrDamaged},
	{seal.ErrExhausted, ErrKeyExhausted},
}

// Translate turns an error of the store or of package seal into one of the vault's. The
// cause stays in the text and in the tree. An error of the vault stays as it is.
func Translate(err error) error {
	if err == nil {
		return nil
	}
	for _, t := range translations {
		switch {
		case !errors.Is(err, t.from):
		case t.to == ErrNotFound, t.to == ErrClosed:
			return t.to
		case errors.Is(err, t.to):
			return err
		case t.from == store.ErrFull && errors.Is(err, store.ErrOutcomeUnknown):
			return fmt.Errorf("%w: %w: %w", ErrStorageFull, ErrOutcomeUnknown, err)
		default:
			return fmt.Errorf("%w: %w", t.to, err)
		}
	}
	return err
}

// A Damage names a stored record that differs from the record written. It wraps ErrDamaged.
type Damage struct {
	Kind string    // as Config.Names calls it
	ID   uuid.UUID // as calls print it; zero if they print none

	ofRow bool // the record is not the keyring, on which all others depend
	err   error
}

func (d *Damage) Error() string {
	place := "cardvault: " + d.Kind
	if d.ID != uuid.Nil {
		place += " " + d.ID.String()
	}
	return place + ": " + d.err.Error()
}

func (d *Damage) Unwrap() error { return d.err }

// A Name says how errors name the records of a kind.
type Name struct {
	Kind    string
	Printed store.Kind // under which calls print the ids of these records; 0: they print none
}

// Named adds to ErrDamaged which record is damaged, unless it already names one. Other
// errors stay as they are. The error has the id of the account that the record names.
func (l *Ledger) Named(r *store.Record, err error) error {
	if err == nil || !errors.Is(err, ErrDamaged) || errors.As(err, new(*Damage)) {
		return err
	}
	d := l.damage(r.Kind, err)
	if printed := l.config.Names[r.Kind].Printed; printed != 0 {
		d.ID = l.In(r.Account).Mask(printed, r.ID)
	}
	return d
}

// An unnamed error reports a record which a transaction could not read. Its id is not known
// there, where nothing is encrypted.
type unnamed struct {
	error
	of store.Record
}

func (u *unnamed) Unwrap() error { return u.error }

// unnamed returns the error of a read of a record in a transaction: see outcome.
func (a Account) unnamed(kind store.Kind, row uuid.UUID, err error) error {
	if !Unreadable(err) {
		return err
	}
	return &unnamed{err, store.Record{Kind: kind, ID: row, Account: a.ID}}
}

// outcome returns the error of a transaction as one of the vault's. If a record could not
// be read in it, the error names kind and id.
func (l *Ledger) outcome(err error) error {
	if err == nil {
		return nil
	}
	err = Translate(err)
	var u *unnamed
	if errors.As(err, &u) {
		return l.Named(&u.of, err)
	}
	return err
}

// damage returns the error of a damaged record of a kind, without its id.
func (l *Ledger) damage(kind store.Kind, err error) *Damage {
	name := cmp.Or(l.config.Names[kind].Kind, fmt.Sprint("record of kind ", kind))
	return &Damage{Kind: name, ofRow: kind != KindMeta, err: err}
}

// namedMost bounds the records that the text of an error names.
const namedMost = 5

// damages are the errors of several records.
type damages []error

// JoinDamages is errors.Join for the errors of records. Its text has the first few of them,
// and how many there are more.
func JoinDamages(errs ...error) error {
	all := damages(slices.DeleteFunc(errs, func(err error) bool { return err == nil }))
	if len(all) == 0 {
		return nil
	}
	return all
}

func (d damages) Error() string {
	text := errors.Join(d[:min(len(d), namedMost)]...).Error()
	if more := len(d) - namedMost; more > 0 {
		text += fmt.Sprintf("\nand %d more", more)
	}
	return text
}

func (d damages) Unwrap() []error { return d }

// RowDamaged reports whether err says that one record is damaged, so that others may still
// be read.
func RowDamaged(err error) bool {
	var d *Damage
	return errors.As(err, &d) && d.ofRow
}

// Unreadable reports whether err says that stored data is damaged, as a vault or as its
// store says it.
func Unreadable(err error) bool {
	return errors.Is(err, ErrDamaged) || errors.Is(err, store.ErrDamaged)
}
