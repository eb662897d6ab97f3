// Package store says what a backend of cardvault does.
//
// A [Store] keeps sealed records and the few columns by which they are found.
// It knows nothing of cards: what a record means, who may see it and how it is
// encrypted is decided above. A new kind of record must not need a new version
// of a backend.
//
// Programs that use a vault need this package only to choose a backend:
// boltstore (one file, the default), memstore (tests) or another. Authors of a
// backend implement Store and prove it with storetest.Run.
package store

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Errors that a backend returns, bare or wrapped.
var (
	// ErrNotFound is returned by Get for an absent record.
	ErrNotFound = errors.New("store: record not found")

	// ErrConflict is returned by Update when a Put did not carry the version
	// that follows the stored one. Nothing was written. The caller reads again.
	ErrConflict = errors.New("store: record has changed since it was read")

	// ErrInvalid is returned by Update for a record that breaks a rule of
	// [Record]. Nothing was written.
	ErrInvalid = errors.New("store: invalid record")

	// ErrClosed is returned after Close.
	ErrClosed = errors.New("store: closed")

	// ErrUnavailable is returned while the backend cannot be used.
	// A later call may succeed.
	ErrUnavailable = errors.New("store: unavailable")

	// ErrOutcomeUnknown is returned by Update when the write failed in a way
	// that leaves open whether it is durable. A backend never reports such a
	// write as undone.
	ErrOutcomeUnknown = errors.New("store: write failed with unknown outcome")

	// ErrFull comes with the error of an Update for which there was no room. Reads and
	// deletions continue.
	ErrFull = errors.New("store: no space left")

	// ErrTooMany is returned by List for a Query.Lookup that more than
	// [MaxShared] records share.
	ErrTooMany = errors.New("store: too many records share a hash")

	// ErrDamaged is returned when stored data cannot be read in its expected form.
	ErrDamaged = errors.New("store: damaged")

	// ErrLocked is returned when opening a store that another process has open.
	ErrLocked = errors.New("store: in use by another process")

	// ErrFormat is returned when opening a store written by a newer version.
	ErrFormat = errors.New("store: unknown format")
)

// Limits of a [Record], the same in every backend.
const (
	MaxRecord  = 64 << 10 // bytes of Shown, Secret and Lookup together
	MaxLookups = 8        // hashes a record
	MaxLookup  = 64       // bytes a hash
)

// MaxShared limits how many records of a kind may share a hash that List is asked for. A
// store that keeps accounts apart may count only some of the other accounts' records. Any
// number may be put, and found by Lookup.
const MaxShared = 10_000

// A Kind is a sort of record; ids are unique within one. Zero is not a valid kind.
type Kind uint8

// A Key names a record.
type Key struct {
	Kind Kind
	ID   uuid.UUID
}

// A Record is one row. Kind, ID, Account and Parent never change while it exists.
type Record struct {
	Kind    Kind
	ID      uuid.UUID // row key, not zero; creation order where the kind orders its keys
	Account uuid.UUID // the owner; zero for records of the whole vault

	// Parent, if set, is the id of the record that this one belongs to. A store
	// finds the children of an id and does no more about it: there need not be a
	// record with that id, and to delete it leaves them. Listed children of a parent belong
	// to one account.
	Parent uuid.UUID

	// Class, if not zero, puts the record in a list: the list of its parent if it has one,
	// else the list of its account. Lists filter and count by class.
	Class uint8

	// Due is when the record expires or its work is due, truncated to microseconds. A time
	// before the year -4000 or after 200000 may be ErrInvalid. Zero: never.
	Due time.Time

	// Lookup holds keyed hashes by which the record is found within its kind.
	// Several records may share one.
	Lookup [][]byte

	// Version counts the writes of this record: 1 on the first, then one more
	// each time. Any other, zero included, is ErrConflict.
	Version uint64

	Shown  []byte // sealed: what an answer or a list needs
	Secret []byte // sealed: the rest
}

// Clone returns a copy that shares no memory with r.
func (r *Record) Clone() *Record {
	c := *r
	n := len(r.Shown) + len(r.Secret)
	for _, hash := range r.Lookup {
		n += len(hash)
	}
	room := make([]byte, 0, n) // one piece for all
	clone := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		from := len(room)
		room = append(room, b...)
		return room[from:len(room):len(room)]
	}

	c.Shown, c.Secret = clone(r.Shown), clone(r.Secret)
	c.Lookup = slices.Clone(r.Lookup)
	for i, hash := range c.Lookup {
		c.Lookup[i] = clone(hash)
	}
	return &c
}

// Classes is a set of classes. The zero value contains every class.
type Classes [4]uint64

// Add puts class c into the set. The first Add leaves c alone in it.
func (s *Classes) Add(c uint8) { s[c>>6] |= 1 << (c & 63) }

// Has reports whether class c is in the set.
func (s *Classes) Has(c uint8) bool {
	return s[c>>6]&(1<<(c&63)) != 0 || *s == Classes{}
}

// ShardCount is the number of shards that the records of a kind are divided into.
const ShardCount = 16

// ShardOf returns the shard of a record: the lowest bits of its id.
func ShardOf(id uuid.UUID) uint8 { return id[15] % ShardCount }

// Shards is a set of shards. Processes that share a store divide due records by shard. The
// zero value contains every shard.
type Shards uint16

// AllShards contains every shard.
const AllShards Shards = 0

// Add puts a shard into the set. The first Add leaves it alone in it.
func (s *Shards) Add(shard uint8) { *s |= 1 << (shard % ShardCount) }

// Has reports whether a shard is in the set.
func (s Shards) Has(shard uint8) bool { return s == AllShards || s&(1<<(shard%ShardCount)) != 0 }

// A Query selects listed records: those with a class.
type Query struct {
	Kind    Kind
	Account uuid.UUID // lists the records of an account that have no parent
	Parent  uuid.UUID // if set, lists the records of a parent instead, which belong to Account

	Classes  Classes   // zero: all
	Min, Max uuid.UUID // bounds of ID, both inclusive; zero Max: no upper bound
	Lookup   []byte    // if not nil, only records that have this hash, see MaxShared

	// Live leaves out records whose Due is not zero and not after it.
	// Zero: none is left out.
	Live time.Time

	Desc   bool  // order by ID, bytewise; ascending unless set
	Offset int64 // records to pass over, at least 0
	Limit  int   // most records to return; 0: none, which counts only
	Count  bool  // also count all that the query selects, whatever Offset and Limit
}

// A List answers a [Query].
//
// A damaged record, or a record that disagrees with the list, does not fail a list without a
// hash. It keeps its place there and is counted, with Version 0, its key, and the Account
// and Parent that it names. If these cannot be read, the Account and Parent of the query
// stand in.
type List struct {
	Records []*Record // without Secret
	Total   int64     // exact, at the same instant as Records; 0 unless Query.Count
}

// A ReadTx reads one consistent state of the store. It is used by one
// goroutine at a time and is invalid once its function has returned.
// Records that it returns belong to the caller and stay valid. A limit of 0 or
// less returns none.
//
// Indexes only lead to records. Where an index names a record that is absent, that disagrees with
// it or that cannot be read, Due, Next and Children pass over the record: one lost record must not
// hide the others. Children does not pass over a record that cannot be read. Lookup passes over it,
// or returns ErrDamaged beside the others, and List by a hash passes over it, or keeps its place as
// other lists do: see [List]. A store whose indexes can be damaged apart from its records does not
// pass over it in these two, since the entry is all that shows the loss: it keeps that until
// [Repairer.Repair], and logs what it met. It may mend an index of due records.
type ReadTx interface {
	// Get returns the record, or ErrNotFound. For a record that cannot be read it returns
	// ErrDamaged, which ends no transaction: the function reads and writes on.
	Get(kind Kind, id uuid.UUID) (*Record, error)

	// List answers q. The cost of a page and of a total does not depend on how
	// many records are listed, but on Limit, on how many lapsed records Live
	// leaves out and, if Lookup is set, on how many records of the kind share
	// that hash. If these are more than [MaxShared], whatever else q asks for,
	// List returns ErrTooMany.
	List(q *Query) (*List, error)

	// Lookup returns at most limit records of a kind that have the hash,
	// in the order of their ids. None is not an error. Its cost does not depend
	// on how many there are beyond limit.
	Lookup(kind Kind, hash []byte, limit int) ([]*Record, error)

	// Due returns at most limit records of a kind and of the given shards with a Due at or
	// before until, in the order of Due. None is not an error. A store that several
	// processes share may, in an Update, leave out records that another Update is working
	// on. In such a store the cost does not depend on how many records of other shards are
	// due.
	Due(kind Kind, shards Shards, until time.Time, limit int) ([]*Record, error)

	// Next returns the earliest Due of a kind in some shards, or the zero time if
	// none is set.
	Next(kind Kind, shards Shards) (time.Time, error)

	// Scan returns at most limit records of a kind whose ids come after an id,
	// in the order of their ids, whatever their account, parent and class. There
	// need not be a record with that id. None is not an error. Its cost does not
	// depend on how many there are beyond limit. A record that cannot be read keeps its
	// place, with Version 0 and its key.
	Scan(kind Kind, after uuid.UUID, limit int) ([]*Record, error)

	// Children returns the keys of at most limit records whose Parent is the id,
	// in the order of their kinds and ids, whatever their account and class, and
	// whether or not there is a record with that id. The zero id is the parent of
	// none. None is not an error. Its cost does not depend on how many there are
	// beyond limit.
	Children(parent uuid.UUID, limit int) ([]Key, error)

	// Empty reports whether the store holds no record of any kind.
	Empty() (bool, error)
}

// A Tx reads the state before an Update and collects its writes. Reads do not see the
// writes of the same function; these are applied together, in their order, when it returns
// nil. That is why the writes return nothing: Update reports their errors.
//
// The caller bounds what one function writes, to hundreds of records rather than
// thousands: they are one transaction, and others wait for it.
type Tx interface {
	ReadTx

	// Put writes a record whole. Version must be 1 for a new record, else one
	// more than the stored version: otherwise Update returns ErrConflict. A record that cannot
	// be read has no version: Update returns ErrDamaged, unless the function deletes it before.
	// The store keeps no reference to r or its slices after Update returns.
	Put(r *Record)

	// Delete removes one record and nothing else. Records whose Parent is its id stay, and
	// can still be found by their indexes, until they are deleted themselves. So the cost
	// of a deletion does not depend on the number of descendants, and a family of any size
	// is erased through [ReadTx.Children], a few at a time. Deleting an absent record does
	// nothing. A record that cannot be read is deleted like any other: what its columns do not
	// say stays in indexes, which report a lost record there until they are repaired. Until then a
	// Put of that id may fail if the record is in such an index.
	Delete(kind Kind, id uuid.UUID)
}

// Divided is implemented by the ReadTx of a store that keeps accounts apart, such as in
// partitions, and finds a record faster if the caller names the account. A store need not
// do so, and a caller need not ask. A decorator of a ReadTx that hides it costs speed only.
type Divided interface {
	// In returns the same transaction for the records of one account, or with the zero id
	// for those of none. It is a Tx if the receiver is. Get, Lookup and Children find
	// records of no other account, and Delete deletes none. A Put of one is ErrInvalid. The
	// caller promises that no two accounts have a record of the same kind and id. See
	// [ForeignError] for a store in which a writer of rows has broken the promise.
	In(account uuid.UUID) ReadTx
}

// A ForeignError may be returned by Get in an account ([Divided]) for a record that another
// account has. It is [ErrNotFound], and also [ErrDamaged] because no record of this account can
// be put in its place. A Put there is ErrDamaged. The place is free once the transaction in the
// other account deletes that record.
type ForeignError struct {
	Account uuid.UUID // that the record names
}

func (*ForeignError) Error() string { return "store: another account has the record" }

// Is reports whether target is ErrNotFound or ErrDamaged.
func (*ForeignError) Is(target error) bool { return target == ErrNotFound || target == ErrDamaged }

// A Store keeps records. All methods may be called concurrently.
//
// Observed behaviour is serializable: there is one order of all Views and
// Updates that explains every answer, and an Update that has returned comes
// before whatever starts afterwards.
type Store interface {
	// View calls fn with one consistent state. It returns the error of fn, or one of the
	// package's errors. fn may run more than once; the last run counts. It must not call
	// the store and should be short: no callback, no network and no waiting inside.
	View(ctx context.Context, fn func(ReadTx) error) error

	// Update calls fn and applies its writes, all or none. When Update returns
	// nil they are durable and visible to every later View.
	//
	// fn may run more than once and must have no effect except its writes: it does no I/O,
	// no cryptography and does not call the store. The writes of an fn that returns an
	// error or panics are dropped. Update returns that error or panics with that value, and
	// other Updates are not disturbed.
	//
	// ctx counts while the call waits for its turn. Once fn has started, Update waits for
	// the outcome even if ctx ends, so an error of ctx means that nothing was written.
	//
	// A store bounds its queue: a caller that finds the queue full waits.
	Update(ctx context.Context, fn func(Tx) error) error

	// Close waits for running calls and frees what the store holds. Later
	// calls return ErrClosed; closing again returns nil.
	Close() error
}

// A Waker is a Store that hears of work which other processes have written. A store
// need not be one: a vault also looks for work every 30 seconds. It finds a Waker below
// decorators that have the method Unwrap() Store.
type Waker interface {
	// Wakes calls wake, soon but not always, when another process has written a record
	// that is due at once, with its kind; and with zero when it may have missed some of
	// any kind. It returns when ctx has ended, or if there is nothing to listen to.
	Wakes(ctx context.Context, wake func(Kind)) error
}

// A Counter is a Store that counts changes, so that a vault does not read again what it has
// read. A store need not be one, and cannot be unless all writes pass this process. A
// decorator of a Counter is one only if it has the method itself.
type Counter interface {
	// Changes returns a number for the records of a kind, which never falls. What a View has
	// read of them that began after Changes returned it is their state as long as Changes
	// returns the same. It returns 0 while a change is under way and after Close, and does not
	// wait.
	Changes(kind Kind) uint64
}

// A Snapshotter is a Store that keeps one state for a long read, at no cost to others. A
// vault on a store that several processes share can be backed up only if it is one. A
// decorator of a Snapshotter is one only if it has the method itself.
type Snapshotter interface {
	// Snapshot calls fn once, with the state of the store at some instant of the call. fn may
	// take as long as ctx lasts, and may wait and do I/O: meanwhile Views and Updates go on,
	// also in fn. It returns the error of fn, or one of the package's errors.
	Snapshot(ctx context.Context, fn func(ReadTx) error) error
}

// A Watcher is a Store through which all writes of its records pass, and that names the
// records as they are written. A vault on it can be backed up while it is in use. A decorator
// of a Watcher is one only if it has the method itself.
type Watcher interface {
	// Watch has changing called with the keys of records that are being put or deleted, before
	// a View can see it. The function that changing returns is called once all later Views see
	// the change, or the writes have failed. Both may be called by several goroutines, and
	// neither calls the store or waits.
	//
	// Until stop is called, only changes are left out that every View sees which begins after
	// Watch has returned.
	Watch(changing func([]Key) (changed func())) (stop func())
}

// A Summer is a Store that shows every change of its records to a [Sums], and writes in the same
// transaction what that returns. A vault on it can keep sums of its records, by which it finds
// lost ones. A store that several processes share has to be a [Snapshotter] too. A decorator of a
// Summer needs no method of its own if it has Unwrap() Store.
type Summer interface {
	// Sum shows s the changes of each transaction from the next one on, until stop is called. Of
	// several, it shows the changes of a transaction to the first whose Begin returns true.
	// The transaction that is under way when stop is called may still be shown.
	Sum(s Sums) (stop func())
}

// A Sums adds up records. A Store calls its methods for one transaction after the other, and never
// two at a time. They do no I/O and do not call the store.
type Sums interface {
	// Begin is called when a transaction changes its first record. If it returns false, the next
	// change asks again. What the transaction before it has changed is not written, or may not
	// be, unless Committed was called.
	Begin() bool

	// Change is called with a record before and after a change, nil where it is absent. Version is
	// 0 in a record that cannot be read. Lookup need not be set, and nothing of the two is used
	// once Change has returned. A change that is taken back is a change too, and so is a write
	// that leaves the record as it was.
	Change(former, next *Record)

	// Records returns what to put in the transaction, behind its last change. These records do not
	// count as changes. Each follows its stored version, as in Put. If one does not, or cannot be
	// read, nothing may be written with them: the store begins the transaction again, or calls
	// Records once more, with anew. Then all are new records.
	Records(anew bool) []*Record

	// Committed is called once the transaction is durable.
	Committed()
}

// A Scrubber is a Store whose place keeps the bytes of deleted records until it needs their
// room. A decorator of a Scrubber is one only if it has the method itself.
type Scrubber interface {
	// Scrub overwrites what Updates that returned before have deleted or changed, in the place
	// of the store. It returns when that is durable, or with an error before. It goes on beside
	// other calls, and cannot reach what Views that began before still see: it waits for them.
	//
	// Copies that the store did not make, such as a snapshot of the file system, keep theirs.
	Scrub(ctx context.Context) error
}

// A Loader is implemented by the Tx of a store into which a backup can be restored. If the Tx
// is [Divided], the Tx of each account is one as well.
type Loader interface {
	// Load writes a record that is not in the store, whatever its version except zero. If it is,
	// or the version is zero, Update returns ErrConflict. All else is as for Put.
	Load(r *Record)
}

// A Checker is implemented by the ReadTx of a store whose indexes can be damaged apart from its
// records. A decorator of a ReadTx that hides it leaves its indexes unchecked.
type Checker interface {
	// Check compares some records and index entries with each other, both ways: each record
	// with the entries that it requires, and each entry with the record that it names. It looks
	// at about limit of them from a place on, a nil place being the first, and returns the next
	// place, which is nil after the last. A place is good in a later transaction and another
	// process too. A place that Check did not return may be ErrInvalid.
	//
	// The report is true of the transaction's state. It leaves out a record that cannot be
	// read, and entries that lead to it: [ReadTx.Scan] shows it. Damage fails no check: it is
	// reported, and next is a place behind it.
	Check(place []byte, limit int) (found []Disagreement, next []byte, err error)
}

// A Repairer is a Store that makes its indexes anew from its records. A decorator of a Repairer
// is one only if it has the method itself.
type Repairer interface {
	// Repair makes a part of the indexes agree with the records, in one transaction for about
	// limit records and entries, from a place on: a nil place is the beginning. It returns the
	// next place, which is nil once all is done, and durable. Places are like the ones of
	// [Checker.Check]: each is good in another process, also after a crash.
	//
	// Other calls go on beside it, and no record is changed. An entry of a record that is there
	// and cannot be read stays, if it can be read itself, so that lists keep the record's place.
	// An entry that leads to no record is removed. Repair returns ErrDamaged, and leaves the
	// indexes as they are, if it cannot know all records: indexes without the others would
	// hide these.
	Repair(ctx context.Context, place []byte, limit int) (next []byte, err error)
}

// A Disagreement is a fault in an index.
type Disagreement struct {
	Index Index
	Fault Fault
	Key   Key // of the record; without an ID if no single record is concerned

	Account uuid.UUID // that the record or the entry names; zero if neither does
}

// An Index is the sort of an index, as the methods of [ReadTx] use it.
type Index string

// The sorts of indexes. Rows lead to the records themselves.
const (
	IndexRows   Index = "rows"
	IndexList   Index = "list"
	IndexDue    Index = "due"
	IndexLookup Index = "lookup"
)

// A Fault is a sort of damage of an index.
type Fault uint8

const (
	// FaultMissing: the index lacks a record, or has it with another class or time.
	FaultMissing Fault = iota + 1

	// FaultStray: an entry leads to a record that is absent or disagrees with it.
	FaultStray

	// FaultOrder: a part of the index is out of order, or counts wrongly.
	FaultOrder

	// FaultUnreadable: a part of the index cannot be read, and what it leads to is not checked.
	FaultUnreadable
)

// Patience bounds how long an Update with a context of [Patient] waits for company.
const Patience = 10 * time.Millisecond

type patientKey struct{}

// Patient returns a context for Updates that no caller waits for, as those of background
// work. A store that writes several Updates together may let them wait for others to join.
// Then an Update that a caller waits for does not find the store busy with them alone.
func Patient(ctx context.Context) context.Context {
	return context.WithValue(ctx, patientKey{}, true)
}

// IsPatient reports whether ctx comes from [Patient].
func IsPatient(ctx context.Context) bool { return ctx.Value(patientKey{}) != nil }
