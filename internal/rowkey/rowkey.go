// Package rowkey makes ids that list records in the order of their creation: a row key
// inside, a UUIDv4 outside.
//
// A row key is a UUIDv7: 48 bits of milliseconds, 10 bits of microseconds within the
// millisecond, 2 bits of counter, 62 random bits. Rows are appended in the order of
// creation, and the key holds the time of creation. The world sees the same 122 bits as a
// UUIDv4 whose 60 time bits are masked with a pseudorandom function of the record's kind
// and the 62 random bits, under a key of the account. Without that key ids cannot be
// ordered or dated, and no index is needed to get back.
package rowkey

import (
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	versionBits = 0xf << 12
	randomBits  = 1<<62 - 1
	maxMilli    = 1<<48 - 1
)

// A Generator makes row keys from the clock of package time. Keys made by one
// Generator rise strictly while the clock does not step back; a clock that
// steps back is followed. The zero value is ready; it is safe for concurrent use.
type Generator struct {
	mu   sync.Mutex
	now  int64 // last reading of the clock, in microseconds
	tick int64 // last key's time, in quarters of a microsecond

	random [512]byte // as many are read at once: that costs more than the rest of a key
	left   int       // of these, not used yet
}

// New returns a row key that no other call returns.
func (g *Generator) New() uuid.UUID {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left == 0 {
		rand.Read(g.random[:])
		g.left = len(g.random)
	}
	g.left -= 8
	return compose(g.next(), binary.BigEndian.Uint64(g.random[g.left:])&randomBits)
}

// next returns the time of the next key. The caller holds g.mu.
func (g *Generator) next() int64 {
	now := time.Now().UnixMicro()
	if tick := now * 4; now < g.now || tick > g.tick {
		g.tick = tick
	} else {
		// More than one key in this microsecond, or a clock that stands still.
		g.tick++
	}
	g.now = now
	return g.tick
}

func compose(tick int64, random uint64) uuid.UUID {
	micro := tick >> 2
	milli, sub := uint64(micro/1000), uint64(micro%1000)
	var key uuid.UUID
	binary.BigEndian.PutUint64(key[:8], milli<<16|7<<12|sub<<2|uint64(tick&3))
	binary.BigEndian.PutUint64(key[8:], 1<<63|random)
	return key
}

// First returns the lowest row key of the microsecond of t, Last the highest.
// Times that no key can hold give the first or last key of all.
func First(t time.Time) uuid.UUID { return compose(clamp(t)<<2, 0) }

// Last returns the highest row key of the microsecond of t.
func Last(t time.Time) uuid.UUID { return compose(clamp(t)<<2|3, randomBits) }

func clamp(t time.Time) int64 {
	const last = maxMilli*1000 + 999
	switch { // before UnixMicro, which overflows for times far away
	case t.Before(time.UnixMicro(0)):
		return 0
	case t.After(time.UnixMicro(last)):
		return last
	}
	return t.UnixMicro()
}

// Time returns when a row key was made, in UTC and whole microseconds.
func Time(key uuid.UUID) time.Time {
	head := binary.BigEndian.Uint64(key[:8])
	return time.UnixMicro(int64(head>>16)*1000 + int64(head>>2&0x3ff)).UTC()
}

// Sequence returns a number that orders row keys as their times do: quarters of a
// microsecond since the year 2000, less than 2^53 until 2071.
func Sequence(key uuid.UUID) uint64 {
	head := binary.BigEndian.Uint64(key[:8])
	micros := int64(head>>16)*1000 + int64(head>>2&0x3ff) - epoch
	return uint64(micros)<<2 | head&3
}

// After returns key or, if its Sequence is not above former's, the next key after former
// with the same random bits as key. The zero key is before all.
func After(key, former uuid.UUID) uuid.UUID {
	sequence := Sequence(former)
	if former == uuid.Nil || Sequence(key) > sequence {
		return key
	}
	return compose(int64(sequence)+1+4*epoch, binary.BigEndian.Uint64(key[8:])&randomBits)
}

// epoch is the beginning of the year 2000, in microseconds of Unix time.
const epoch = 946684800e6

// Above returns the row key that follows key, in the order of their bytes. After the
// last one comes the first.
func Above(key uuid.UUID) uuid.UUID { return step(key, 1, 0) }

// Below returns the row key before key, in the order of their bytes. Before the first
// one comes the last.
func Below(key uuid.UUID) uuid.UUID { return step(key, 0xff, 0xff) }

// step adds to the last byte, and on to the byte before it as long as the sum is carried.
func step(key uuid.UUID, add, carried byte) uuid.UUID {
	for i := len(key) - 1; i >= 0; i-- {
		if key[i] += add; key[i] != carried {
			break
		}
	}
	return key
}

// Beside returns the row key of a record that belongs to two others. It has the time of the
// first, and random bits that follow from both.
func Beside(key, other uuid.UUID) uuid.UUID {
	for i := 8; i < len(key); i++ {
		key[i] ^= other[i]
	}
	key[8] = key[8]&0x3f | 0x80
	return key
}

// Mask returns the UUIDv4 under which the world knows a row key of a kind.
// prf is AES-256 under the id key of the account.
func Mask(prf cipher.Block, kind uint8, key uuid.UUID) uuid.UUID {
	return mask(prf, kind, key, 4)
}

// Unmask returns the row key of an id that Mask made with the same prf and kind.
// For any other id it returns a key of a random time: see [Plausible]. The
// version of id is not looked at, so ids that differ in nothing else have the
// same row key: the caller accepts version 4 alone.
func Unmask(prf cipher.Block, kind uint8, id uuid.UUID) uuid.UUID {
	return mask(prf, kind, id, 7)
}

// blocks holds blocks for ciphers, which would cost an allocation each.
var blocks = sync.Pool{New: func() any { return new([16]byte) }}

// mask flips the 60 bits outside version and variant, which undoes itself.
func mask(prf cipher.Block, kind uint8, id uuid.UUID, version uint64) uuid.UUID {
	block := blocks.Get().(*[16]byte)
	defer blocks.Put(block)
	*block = [16]byte{kind}
	copy(block[8:], id[8:])
	prf.Encrypt(block[:], block[:])
	head := binary.BigEndian.Uint64(id[:8]) ^ binary.BigEndian.Uint64(block[:8])
	binary.BigEndian.PutUint64(id[:8], head&^versionBits|version<<12)
	return id
}

// Plausible reports whether a row key can have been made between two times. An
// id that was never issued, or that belongs to another account, unmasks to a
// key that almost surely is not.
func Plausible(key uuid.UUID, from, to time.Time) bool {
	head := binary.BigEndian.Uint64(key[:8])
	if head>>2&0x3ff > 999 {
		return false
	}
	t := Time(key)
	return !t.Before(from) && !t.After(to)
}
