package pgstore

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

// A locker names the advisory locks of a schema. Names are hashes, so two things may share
// a lock, which costs no more than a wait. Any role that may connect to the database may
// take any advisory lock. So the hash includes the seed of the schema, which only the role
// of the vault can read: one name does not reveal another.
//
// All groups of all processes share the lock of all, or one group takes it exclusively and
// needs no other. A group locks exclusively the ids of the rows that it changes, the births
// where it has found nothing, and its questions. It shares the ids of the rows that it only
// reads and of the parents of the rows that it writes. It also shares the births, lists,
// hashes and due times that its writes touch: with other writers, but not with readers. A
// question for children takes the id of the parent exclusively. A scan of a kind takes all
// its births, and the question whether the store is empty takes the lock of all. A question
// for a hash or a list also shares the lock of the whole kind, which a large group takes
// exclusively in place of each that it touches.
type locker uuid.UUID

// A server has room for some ten thousand locks, as it is installed, for all groups
// together.
const (
	groupLocks = 1024 // of a group of several calls
	mostLocks  = 4096 // of one call: one with more has its turn alone
	births     = 16   // of a kind
)

func (l locker) of(what byte, kind store.Kind, b []byte) int64 {
	text := make([]byte, 0, len(l)+2+store.MaxLookup)
	sum := sha256.Sum256(append(append(append(text, l[:]...), what, byte(kind)), b...))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

func (l locker) all() int64                   { return l.of('a', 0, nil) }
func (l locker) channel() string              { return fmt.Sprintf("cardvault %x", uint64(l.of('n', 0, nil))) }
func (l locker) large() int64                 { return l.of('g', 0, nil) }
func (l locker) id(id uuid.UUID) int64        { return l.of('r', 0, id[:]) }
func (l locker) birth(k key) int64            { return l.of('b', k.kind, []byte{k.id[15] % births}) }
func (l locker) hash(h hashKey) int64         { return l.of('h', h.kind, []byte(h.hash)) }
func (l locker) hashes(kind store.Kind) int64 { return l.of('k', kind, nil) }
func (l locker) due(kind store.Kind) int64    { return l.of('d', kind, nil) }
func (l locker) lists(kind store.Kind) int64  { return l.of('s', kind, nil) }
func (l locker) list(k listKey) int64 {
	if k.child {
		return l.of('c', k.kind, k.scope[:])
	}
	return l.of('l', k.kind, k.scope[:])
}

// A lockSet holds the locks that a group takes, and which of them it has to itself.
type lockSet map[int64]bool

func (s lockSet) add(name int64, exclusive bool) { s[name] = s[name] || exclusive }

// sorted returns the locks in the order in which all groups take them.
func (s lockSet) sorted() (names []int64, exclusive []bool) {
	names = slices.Sorted(maps.Keys(s))
	for _, name := range names {
		exclusive = append(exclusive, s[name])
	}
	return names, exclusive
}
