package pgstore

import (
	"encoding/binary"
	"math/bits"

	"github.com/google/uuid"
)

// partitionOf returns the partition in which PostgreSQL puts the rows of an account: the
// remainder of its hash, as a server with little-endian words makes it.
func partitionOf(account uuid.UUID, n int) int {
	const seed, combined = 0x7A5B22367996DCFD, 0x49a0f4dd15e5a8e3
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(account[4*i:]) }

	start := 0x9e3779b9 + uint32(len(account)) + 3923095
	h := lookup3{start + seed>>32, start + seed&(1<<32-1), start}
	h.mix()
	h = lookup3{h.a + word(0), h.b + word(1), h.c + word(2)}
	h.mix()
	h.a += word(3)
	h.end()

	hash := uint64(h.b)<<32 | uint64(h.c)
	return int((hash + combined) % uint64(n))
}

// A lookup3 is the state of Bob Jenkins' hash of that name.
type lookup3 struct{ a, b, c uint32 }

func (h *lookup3) mix() {
	for _, by := range []int{4, 6, 8, 16, 19, 4} {
		h.a = (h.a - h.c) ^ bits.RotateLeft32(h.c, by)
		h.c += h.b
		h.a, h.b, h.c = h.b, h.c, h.a
	}
}

func (h *lookup3) end() {
	for _, by := range []int{14, 11, 25, 16, 4, 14, 24} {
		h.c = (h.c ^ h.b) - bits.RotateLeft32(h.b, by)
		h.a, h.b, h.c = h.b, h.c, h.a
	}
	h.a, h.b, h.c = h.c, h.a, h.b
}
