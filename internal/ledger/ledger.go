// Package ledger keeps the sealed records of one vault: ids, reads, lists, writes and the
// keys under which records are sealed. It knows nothing of cards.
//
//	Ledger   the vault: keys, store, gate
//	 └ Account   the same inside one account: every call on a record goes here
//
// A record is read sealed, opened by the caller, changed, sealed as its next version and
// written: see [Account.Modify]. Nothing is sealed or opened inside a transaction.
package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/layers"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Kinds of records that a ledger itself reads. All others are its user's.
const (
	KindMeta    store.Kind = 1 // the keyring, and counts of seals
	KindAccount store.Kind = 2 // belongs to no account itself

	KindSum       store.Kind = 42 // the sums of the records of an account
	KindSumChange store.Kind = 43 // how a process has changed them since
)

// A Home says of which account the records of a kind are. A store that keeps accounts apart
// looks at one for them: see [store.Divided].
type Home uint8

const (
	// Anywhere: of any account, also in a call inside another. An id is unique in the vault.
	Anywhere Home = iota

	// Own: of the account in which a call reads or deletes them. Two accounts never have the
	// same id.
	Own

	// Nowhere: of no account.
	Nowhere
)

// A Config says what a Ledger works with. All fields except Names and Rotated are needed.
type Config struct {
	Store store.Store
	Ring  Ring // one key at least

	Mode     uint8 // stored with the keyring: a vault is opened in the mode in which it was made
	ModeName func(uint8) string

	Families Families
	Hashes   map[store.Kind]Hashes // of the kinds whose Lookup has hashes of Box.Lookups
	Homes    map[store.Kind]Home
	Names    map[store.Kind]Name // for errors; a kind that is missing is named by its number
	Log      *slog.Logger

	// Wrote is called after every write that a caller asked for. object is masked.
	Wrote func(ctx context.Context, op Operation, account, object uuid.UUID, err error)

	Audit Auditor // nil: none

	// Rotated is called in the transaction that starts a term, or closes one, and of each step of
	// a rotation of hashes but the last ones. Nil: nothing seals records anew.
	Rotated func(store.Tx) error

	// Thaw is Restoration.ID of a restored vault that may be opened, or seal.Fence.Move of a move
	// that is taken back.
	Thaw      uuid.UUID
	Restoring bool // a restored vault is opened to repeat the deletions after its backup
	Moving    bool // a vault is opened to move it, whether or not it is fenced

	Anchor         Anchor    // nil: none. A vault that is opened to move it is compared with it, no more
	AcceptRollback uuid.UUID // Rollback.ID that may be opened

	// Mistrust is called for an answer of the store that cannot be right.
	Mistrust func(answer string)
}

// A Ledger holds the sealed records of one vault. All methods may be called concurrently
// once Load has returned.
type Ledger struct {
	Box   *seal.Box // set by Load
	First uuid.UUID // the default account; set by Load

	config     Config
	store      checkedStore
	gate       gate
	rowkeys    rowkey.Generator
	known      sync.Map // accounts that were seen, by their ids: *sight
	closed     atomic.Bool
	ring       atomic.Pointer[Ring]
	changing   chan struct{} // holds a token during ChangeKeyring
	unwrapping unwrapping
	behind     Seldom // that the keyring in the store cannot be loaded
	counter    store.Counter
	lookout    lookout
	passing    atomic.Bool // the fence does not keep this ledger out
	anchoring  anchoring
	sums       summing
}

// New returns a Ledger without keys. Call Load before anything else.
func New(c Config) *Ledger {
	if c.Rotated == nil {
		c.Rotated = func(store.Tx) error { return nil }
	}
	l := &Ledger{
		config:     c,
		store:      checkedStore{Store: c.Store, mistrust: c.Mistrust, homes: c.Homes, hashes: c.Hashes},
		changing:   make(chan struct{}, 1),
		unwrapping: unwrapping{turn: make(chan struct{}, 1)},
	}
	l.counter, _ = c.Store.(store.Counter)
	l.passing.Store(c.Moving)
	l.store.moved = l.Moved
	l.store.keys = func() *seal.Keys { return l.Box.Keys() }
	l.ring.Store(&c.Ring)
	l.sums.begin(l)
	return l
}

// SetAuditor sets Config.Audit, which itself needs the Ledger. Call it before Load.
func (l *Ledger) SetAuditor(a Auditor) { l.config.Audit = a }

// Close makes later calls return ErrClosed, and the calls that wait at the gate. It reports
// whether this is the first call. The store stays open.
func (l *Ledger) Close() bool {
	if l.closed.Swap(true) {
		return false
	}
	l.gate.close(func() { l.sums.open() }, l.sums.close) // calls that are at the store change sums too
	return true
}

// Closed reports whether Close was called.
func (l *Ledger) Closed() bool { return l.closed.Load() }

// Wakes calls wake when the store hears of work that another process has stored, until ctx
// ends. It returns at once if the store cannot hear of any.
func (l *Ledger) Wakes(ctx context.Context, wake func(store.Kind)) error {
	if w, ok := layers.As[store.Waker](l.store.Store); ok {
		return w.Wakes(ctx, wake)
	}
	return nil
}

// An Account is a Ledger for calls inside one account. The zero ID stands for records that
// belong to no account.
type Account struct {
	*Ledger
	ID uuid.UUID

	guarded bool
}

// In returns the ledger for calls inside an account, whatever its state: see [Account.Guarded].
func (l *Ledger) In(account uuid.UUID) Account { return Account{Ledger: l, ID: account} }

// Now returns the time in UTC and whole microseconds, as it is stored.
func Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// Lives reports whether a record has not lapsed.
func Lives(r *store.Record, at time.Time) bool { return r.Due.IsZero() || r.Due.After(at) }

// Mask returns the id under which the world knows a row of the account.
func (a Account) Mask(kind store.Kind, row uuid.UUID) uuid.UUID {
	return rowkey.Mask(a.Box.PRF(a.ID), uint8(kind), row)
}

// Unmask returns the row key of an id, or zero for an id that this account almost surely
// never issued.
func (a Account) Unmask(kind store.Kind, id uuid.UUID) uuid.UUID {
	row := rowkey.Unmask(a.Box.PRF(a.ID), uint8(kind), id)
	if id.Version() != 4 || id.Variant() != uuid.RFC4122 || !rowkey.Plausible(row, FirstTime, LastTime) {
		return uuid.Nil
	}
	return row
}

// Row keys are made between these times only, so that a stored row is found
// whatever the clock says later. One random id in 90 falls in between.
var (
	FirstTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // when the clock of testing/synctest starts
	LastTime  = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
)

// NewRow returns a new row key.
func (l *Ledger) NewRow() (uuid.UUID, error) {
	row := l.rowkeys.New()
	if !rowkey.Plausible(row, FirstTime, LastTime) {
		return uuid.Nil, fmt.Errorf("%w: the clock of this machine is wrong: it shows %v", ErrUnavailable, rowkey.Time(row))
	}
	return row, nil
}

// NewRecord returns the first version of a listed record of the account.
func (a Account) NewRecord(kind store.Kind, row uuid.UUID) *store.Record {
	return &store.Record{Kind: kind, ID: row, Account: a.ID, Class: 1, Version: 1}
}
