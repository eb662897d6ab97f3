package boltstore

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
)

// A bbolt file begins with two heads, its meta pages. Each transaction writes one of them in turn, as its
// last page, and bbolt takes the later one whose checksum is right. So damage to the later one would undo
// the last transaction, and nothing would show that a token is back or a revoked key works. A power cut
// leaves both with their checksums: what counts of a head lies in one sector, and they are synced apart.
//
// A head has a page header, magic, version, size of a page and flags (4 bytes each), the root with its
// sequence, the list of free pages, the end, the number of the transaction, and the checksum of all
// these (8 bytes each), in the byte order of the machine.
const (
	headFree     = pageHeader + 32
	headTx       = pageHeader + 48
	headChecksum = pageHeader + 56
	headEnd      = pageHeader + 64
	headMagic    = 0xED0CDAED
)

// checkHeads returns store.ErrDamaged unless both heads are whole and of successive transactions. No
// transaction of h begins behind the later one.
func checkHeads(h *handle) error {
	var txs [2]uint64
	size := int64(h.db.Info().PageSize)
	for i := range txs {
		var head [headEnd]byte
		if _, err := h.file.ReadAt(head[:], int64(i)*size); err != nil {
			return fmt.Errorf("boltstore: open: %w", err)
		}
		sum := fnv.New64a()
		_, _ = sum.Write(head[pageHeader:headChecksum])
		txs[i] = binary.NativeEndian.Uint64(head[headTx:])
		if binary.NativeEndian.Uint32(head[pageHeader:]) != headMagic || binary.NativeEndian.Uint64(head[headChecksum:]) != sum.Sum64() || txs[i]%2 != uint64(i) {
			return errHead
		}
	}
	if txs[0]+1 != txs[1] && txs[1]+1 != txs[0] {
		return errHead
	}
	h.last.Store(int64(max(txs[0], txs[1])))
	return nil
}

var errHead = fmt.Errorf("%w: one of the two heads of the file, so its last transaction may be undone: restore the file from a backup, or accept that with boltstore.Options.AcceptUndone", store.ErrDamaged)

// acceptHeads has two transactions that change nothing replace both heads.
func acceptHeads(h *handle) error {
	for range 2 {
		if err := guarded(func() error { return h.db.Update(func(*bolt.Tx) error { return nil }) }); err != nil {
			return err
		}
	}
	return checkHeads(h)
}
