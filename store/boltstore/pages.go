package boltstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault/store"
)

// bbolt trusts the pointers in its pages: a cycle would send it round until memory is
// exhausted, and no recover can help then. So the tree of pages is checked before bbolt
// walks it.
//
// A page begins with its number (8 bytes), its type (2), how many elements it
// has (2) and how many pages more it extends over (4). Each element of a branch
// is the place of its key (4) and its size (4), then the number of the page
// below (8); of a leaf, flags (4), the place of its key (4), the sizes of key
// and value (4, 4). Places count from the element. Numbers are in the byte
// order of the machine.
const (
	pageHeader  = 16
	pageElement = 16
	branchPage  = 1
	leafPage    = 2

	smallFile = 16 << 20 // bytes: the headers of its leaves are read when it is opened

	maxHeight = 32      // of a tree of pages
	maxExtent = 1 << 12 // pages that a page extends over
)

// A pageChecker reads the pages of a file.
type pageChecker struct {
	file   io.ReaderAt
	size   int64
	end    uint64 // of the pages in use
	seen   []uint64
	leaves bool // look at these too: all of the file is read

	header [pageHeader]byte // of a leaf
}

// checkPages checks that the pages of every bucket form a tree.
func checkPages(file io.ReaderAt, tx *bolt.Tx, leaves bool) error {
	size := int64(tx.DB().Info().PageSize)
	p := &pageChecker{file: file, size: size, end: uint64(tx.Size() / size), leaves: leaves}
	p.seen = make([]uint64, p.end/64+1)
	if err := p.tree(uint64(tx.Cursor().Bucket().Root())); err != nil {
		return err
	}
	return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		switch {
		case bytes.Equal(name, spentBucket): // nothing reads it
			return nil
		case bytes.Equal(name, rebuildBucket) && b != nil:
			if err := p.bucket(b); err != nil {
				return err
			}
			return b.ForEachBucket(func(k []byte) error { return p.bucket(b.Bucket(k)) })
		}
		return p.bucket(b)
	})
}

// bucket checks the tree of a bucket.
func (p *pageChecker) bucket(b *bolt.Bucket) error {
	if b == nil || b.Root() == 0 { // the bucket is inside the page of its name
		return nil
	}
	return p.tree(uint64(b.Root()))
}

// tree checks the tree below a page. All its leaves are equally far below.
func (p *pageChecker) tree(root uint64) error {
	height := 0
	for id := root; ; height++ {
		page, err := p.read(id)
		if err != nil {
			return err
		}
		if pageType(page) == leafPage {
			break
		}
		if height == maxHeight {
			return badPage(id)
		}
		id = binary.NativeEndian.Uint64(page[pageHeader+8:])
	}
	return p.check(root, height)
}

func (p *pageChecker) check(id uint64, height int) error {
	if id < p.end && p.seen[id/64]&(1<<(id%64)) != 0 {
		return badPage(id)
	}
	if height == 0 && !p.leaves && id < p.end {
		p.seen[id/64] |= 1 << (id % 64)
		return p.leaf(id)
	}

	page, err := p.read(id)
	if err != nil {
		return err
	}
	for i := range uint64(len(page)) / uint64(p.size) {
		p.seen[(id+i)/64] |= 1 << ((id + i) % 64)
	}
	if (pageType(page) == leafPage) != (height == 0) {
		return badPage(id)
	}

	for i := range int(binary.NativeEndian.Uint16(page[10:])) {
		at := pageHeader + i*pageElement
		element := page[at : at+pageElement]
		word := func(n int) int { return int(binary.NativeEndian.Uint32(element[4*n:])) }
		if height == 0 {
			if word(2) == 0 || at+word(1)+word(2)+word(3) > len(page) {
				return badPage(id)
			}
			continue
		}
		if word(1) == 0 || at+word(0)+word(1) > len(page) {
			return badPage(id)
		}
		if err := p.check(binary.NativeEndian.Uint64(element[8:]), height-1); err != nil {
			return err
		}
	}

	return nil
}

// leaf returns an error in a small file if bbolt would take a page for a branch where it needs a leaf:
// one of before, of which a write was lost, can lead back there. Any other damage bbolt meets itself.
// In a large file that would take too long.
func (p *pageChecker) leaf(id uint64) error {
	if int64(p.end)*p.size > smallFile {
		return nil
	}
	_, err := p.file.ReadAt(p.header[:], int64(id)*p.size)
	if err == nil && binary.NativeEndian.Uint64(p.header[:]) == id && pageType(p.header[:]) != leafPage {
		return badPage(id)
	}
	return nil
}

func pageType(page []byte) uint16 { return binary.NativeEndian.Uint16(page[8:]) }

// read returns a branch or leaf with its overflow pages. Its elements fit.
func (p *pageChecker) read(id uint64) ([]byte, error) {
	if id < 2 || id >= p.end {
		return nil, badPage(id)
	}
	page := make([]byte, p.size)
	if _, err := p.file.ReadAt(page, int64(id)*p.size); err != nil {
		return nil, fmt.Errorf("%w: page %d cannot be read: %w", store.ErrDamaged, id, err)
	}

	count, extent := int(binary.NativeEndian.Uint16(page[10:])), binary.NativeEndian.Uint32(page[12:])
	if binary.NativeEndian.Uint64(page) != id || pageType(page) != branchPage && pageType(page) != leafPage ||
		extent > maxExtent || id+uint64(extent) >= p.end || pageType(page) == branchPage && count == 0 {
		return nil, badPage(id)
	}

	if extent > 0 {
		page = make([]byte, int64(extent+1)*p.size)
		if _, err := p.file.ReadAt(page, int64(id)*p.size); err != nil {
			return nil, fmt.Errorf("%w: page %d cannot be read: %w", store.ErrDamaged, id, err)
		}
	}

	if pageHeader+count*pageElement > len(page) {
		return nil, badPage(id)
	}
	return page, nil
}

func badPage(id uint64) error {
	return fmt.Errorf("%w: page %d is not of the kind that its reference says", store.ErrDamaged, id)
}
