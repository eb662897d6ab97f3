package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"slices"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Bounds of a View.
const (
	pageRows  = 512
	pageBytes = 1 << 20 // after which it reads no further records
	step      = 256     // records read at a time
	pageKinds = 16      // kinds without records
)

// A scanner reads the records of a store in short Views.
type scanner struct {
	view func(context.Context, func(store.ReadTx) error) error
	ends byte // an id ends a block if its hash has none of these bits
}

// A place is where a scan goes on.
type place struct {
	kind  store.Kind // 0: all were scanned
	after uuid.UUID
}

// A page is what one View has read: all records of a span.
type page struct {
	span
	rows    []*store.Record
	damaged []uuid.UUID
	next    place
}

// page reads the next records, of the first of some kinds that has any.
func (c *scanner) page(ctx context.Context, at place, kinds int) (p page, err error) {
	err = c.view(ctx, func(tx store.ReadTx) (err error) {
		p = page{next: at}
		for range kinds {
			if err = p.scan(tx); err != nil || len(p.rows) > 0 || p.next.kind == 0 {
				return err
			}
		}
		return nil
	})
	return p, err
}

// scan reads the records of a kind that come next.
func (p *page) scan(tx store.ReadTx) error {
	at := p.next
	p.span = span{at.kind, at.after, uuid.Max}
	p.next = place{kind: at.kind + 1} // 0 after the last
	for size := 0; len(p.rows) < pageRows && size < pageBytes; {
		found, err := tx.Scan(at.kind, at.after, step)
		if err != nil {
			return err
		}

		for _, r := range found {
			at.after = r.ID
			if r.Version == 0 {
				p.damaged = append(p.damaged, r.ID)
				continue
			}
			p.rows = append(p.rows, r)
			size += len(r.Shown) + len(r.Secret)
		}
		if len(found) < step {
			return nil
		}
	}
	p.through, p.next = at.after, at
	return nil
}

// A block is what a stretch of ids has. Blocks of two places begin and end at the same ids, mostly:
// an id says itself whether it ends one.
type block struct {
	span
	records int
	sum     [sha256.Size]byte // of these
}

// A fullBlock is a block with its records.
type fullBlock struct {
	block
	rows    []*store.Record
	damaged int // records that the store could not read
}

// One id of about so many ends a block. A block of a manifest is small, because one changed record
// ships all of it; the other place of a move need not keep a list of its blocks.
const (
	blockEnd = 1<<7 - 1
	fineEnd  = 1<<3 - 1
)

// none is the sum of no records.
var none = sumOf(nil)

// isEmptyKind reports whether the block is all that a kind without records has.
func (b *block) isEmptyKind() bool {
	return b.records == 0 && b.after == uuid.Nil && b.through == uuid.Max && b.sum == none
}

// blocks reads the next blocks of one kind. A page has one at least: it has as many records as a
// block has at most.
func (c *scanner) blocks(ctx context.Context, at place) (all []*fullBlock, next place, err error) {
	p, err := c.page(ctx, at, 1)
	if err != nil {
		return nil, at, err
	}

	from, size := 0, 0
	cut := func(i int, through uuid.UUID) {
		b := &fullBlock{block: block{span: span{at.kind, at.after, through}}, rows: p.rows[from:i]}
		for len(p.damaged) > 0 && b.has(p.damaged[0]) {
			b.damaged, p.damaged = b.damaged+1, p.damaged[1:]
		}
		b.records, b.sum = len(b.rows), sumOf(b.rows)
		all = append(all, b)
		from, size, at.after = i, 0, through
	}
	for i, row := range p.rows {
		size += len(row.Shown) + len(row.Secret)
		if sum := sha256.Sum256(row.ID[:]); sum[0]&c.ends == 0 || i+1-from >= pageRows || size >= pageBytes {
			cut(i+1, row.ID)
		}
	}
	if p.next.kind == at.kind && len(all) > 0 { // the rest is read again
		return all, place{at.kind, at.after}, nil
	}
	cut(len(p.rows), p.through) // the last of the kind, or one of a page that cannot be read
	return all, p.next, nil
}

func sumOf(rows []*store.Record) [sha256.Size]byte {
	h := sha256.New()
	addTo(h, rows)
	return [sha256.Size]byte(h.Sum(nil))
}

func addTo(h hash.Hash, rows []*store.Record) {
	var row, length []byte
	for _, r := range rows {
		row = appendRow(row[:0], r)
		length = binary.BigEndian.AppendUint32(length[:0], uint32(len(row)))
		h.Write(length)
		h.Write(row)
	}
}

// sum returns the sum of the records in a span, and their number. It returns ErrDamaged if one of
// them cannot be read.
func (c *scanner) sum(ctx context.Context, s span) (sum [sha256.Size]byte, records int, err error) {
	h := sha256.New()
	for over := false; !over; {
		p, err := c.page(ctx, place{s.kind, s.after}, 1)
		if err != nil {
			return sum, 0, err
		}
		if slices.ContainsFunc(p.damaged, s.has) {
			return sum, 0, fmt.Errorf("%w: a record of kind %d cannot be read", store.ErrDamaged, s.kind)
		}
		n := len(p.rows)
		for n > 0 && !s.has(p.rows[n-1].ID) {
			n--
		}
		addTo(h, p.rows[:n])
		records += n
		over, s.after = bytes.Compare(p.through[:], s.through[:]) >= 0, p.through
	}
	return [sha256.Size]byte(h.Sum(nil)), records, nil
}

// A walk goes through the blocks of a place in their order.
type walk struct {
	next func(context.Context) (*block, error) // nil after the last
	at   *block
	over bool
}

// walkOf returns a walk through the records of a store.
func walkOf(s store.Store) *walk {
	c, at := &scanner{s.View, blockEnd}, place{kind: 1}
	var read []*fullBlock
	return &walk{next: func(ctx context.Context) (b *block, err error) {
		for len(read) == 0 {
			if at.kind == 0 {
				return nil, nil
			}
			if read, at, err = c.blocks(ctx, at); err != nil {
				return nil, err
			}
		}
		b = &read[0].block
		if read[0].damaged > 0 {
			b.records = -1 // so that no block is like it
		}
		read = read[1:]
		return b, nil
	}}
}

// has reports whether the place has a block as it is. It is asked for one block after the other. The
// kind of the keyring is always written anew: Restore changes it.
func (w *walk) has(ctx context.Context, b *block) (bool, error) {
	for !w.over && (w.at == nil || w.at.before(&b.span)) {
		next, err := w.next(ctx)
		if err != nil {
			return false, err
		}
		w.at, w.over = next, next == nil
	}
	switch {
	case b.kind == ledger.KindMeta:
		return false, nil
	case w.over || w.at.kind != b.kind: // a manifest leaves kinds without records out
		return b.isEmptyKind(), nil
	}
	return *w.at == *b, nil
}

// before reports whether s begins before another span.
func (s *span) before(other *span) bool {
	if s.kind != other.kind {
		return s.kind < other.kind
	}
	return bytes.Compare(s.after[:], other.after[:]) < 0
}
