package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A manifest says which blocks a backup has, so that the next one leaves them out. It is the text
// "cardvault manifest" and chunks, in the form of a backup's but under a key of their own:
//
//	1 head    | fields 1 format | 2 id of the manifest | 3 vault | 4 id of the backup
//	5 blocks  | kind (1) | last id (16) | number of records as uvarint | SHA-256 of them, for each
//	6 touched | kind (1) | id (16) | id (16), for each
//	4 end     | fields 1 chunks before | 2 SHA-256 of their MACs | 3 MAC of the last chunk of the backup
//
// A block begins where the one before it ends, or with the first id of its kind. Kinds without
// records are left out. Touched spans changed after their blocks were read: the next backup ships
// these blocks in any case.
const (
	manifestMagic  = "cardvault manifest"
	manifestFormat = 1

	manifestBytes = 1 << 16 // after which a chunk has no further entry
	touchedBytes  = 1 + 16 + 16
)

// A manifestHead is what a manifest begins with.
type manifestHead struct {
	format              int
	id, vault, ofBackup uuid.UUID
}

func (h *manifestHead) fields(f *tlv.Fields) {
	tlv.Uint(f, 1, &h.format)
	tlv.ID(f, 2, &h.id)
	tlv.ID(f, 3, &h.vault)
	tlv.ID(f, 4, &h.ofBackup)
}

// A manifestEnd is what a manifest ends with.
type manifestEnd struct {
	chunks    uint64
	digest    []byte
	backupEnd []byte
}

func (e *manifestEnd) fields(f *tlv.Fields) {
	tlv.Uint(f, 1, &e.chunks)
	e.digest = f.Value(2, e.digest)
	e.backupEnd = f.Value(3, e.backupEnd)
}

// A manifestWriter writes a manifest while a backup is made. A nil one writes nothing.
type manifestWriter struct {
	w    io.Writer
	sums *sums
	body []byte // of the next chunk
}

// begin writes the head.
func (m *manifestWriter) begin(keys *seal.Keys, backup uuid.UUID) error {
	h := &manifestHead{manifestFormat, uuid.New(), keys.Vault, backup}
	m.sums = newSums(keys, h.id)
	if err := m.writeAll([]byte(manifestMagic)); err != nil {
		return err
	}
	m.body = bodyOf(sortHead, h.fields)
	return m.flush()
}

// block adds a block as it was read.
func (m *manifestWriter) block(b *block) error {
	if m == nil || b.isEmptyKind() {
		return nil
	}
	if err := m.open(sortBlocks); err != nil {
		return err
	}
	m.body = append(append(m.body, byte(b.kind)), b.through[:]...)
	m.body = append(binary.AppendUvarint(m.body, uint64(b.records)), b.sum[:]...)
	return nil
}

// touched adds a span of records that may have changed since their blocks were read.
func (m *manifestWriter) touched(s span) error {
	if m == nil {
		return nil
	}
	if err := m.open(sortTouched); err != nil {
		return err
	}
	m.body = append(append(append(m.body, byte(s.kind)), s.after[:]...), s.through[:]...)
	return nil
}

// open begins a chunk, unless the present one is of the sort and has room.
func (m *manifestWriter) open(sort byte) error {
	if len(m.body) > 0 && m.body[0] == sort && len(m.body) < manifestBytes {
		return nil
	}
	if err := m.flush(); err != nil {
		return err
	}
	m.body = append(m.body, sort)
	return nil
}

// close writes the end, once the backup has its own.
func (m *manifestWriter) close(backupEnd []byte) error {
	if m == nil {
		return nil
	}
	if err := m.flush(); err != nil {
		return err
	}
	e := &manifestEnd{m.sums.number, m.sums.digest.Sum(nil), backupEnd}
	m.body = bodyOf(sortEnd, e.fields)
	return m.flush()
}

func (m *manifestWriter) flush() error {
	if len(m.body) == 0 {
		return nil
	}
	chunk, _ := m.sums.chunk(m.body)
	m.body = m.body[:0]
	return m.writeAll(chunk)
}

func (m *manifestWriter) writeAll(b []byte) error {
	n, err := m.w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("cardvault: writing the manifest: %w", err)
	}
	return nil
}

// A manifest was read and verified.
type manifest struct {
	r       io.ReadSeeker
	backup  uuid.UUID
	end     []byte // the MAC of the last chunk of the backup
	changed []span // in their order, and apart from each other
}

var errManifest = errors.New("a list of blocks is malformed")

// openManifest reads a manifest to its end, and keeps its touched spans.
func openManifest(keys *seal.Keys, from io.ReadSeeker) (*manifest, error) {
	m := &manifest{r: from}
	r, err := m.begin(keys)
	if err != nil {
		return nil, err
	}

	touched := &spanSet{most: mostChanges}
	for {
		number, body, err := r.next()
		if err != nil {
			return nil, err
		}
		switch body[0] {
		case sortBlocks:
			err = eachBlock(&span{}, body[1:], func(*block) {})
		case sortTouched:
			err = touched.addAll(body[1:])
		case sortEnd:
			m.changed = touched.sorted()
			return m, m.ends(r, number, body)
		default:
			err = fmt.Errorf("is of sort %d, which this program does not know", body[0])
		}
		if err != nil {
			return nil, r.damagedAt(number, "cannot be read: "+err.Error())
		}
	}
}

// begin reads the head, from the beginning.
func (m *manifest) begin(keys *seal.Keys) (*reader, error) {
	r := &reader{r: m.r, what: "the manifest"}
	if _, err := m.r.Seek(0, io.SeekStart); err != nil {
		return nil, r.failed(err)
	}
	if err := r.begins(manifestMagic); err != nil {
		return nil, err
	}
	body, mac, err := r.unverified()
	if err != nil {
		return nil, err
	}

	h := new(manifestHead)
	var f tlv.Fields
	f.From(body[1:])
	h.fields(&f)
	switch {
	case body[0] != sortHead || f.Err() != nil:
		return nil, r.damaged("was changed: it is no head")
	case h.format > manifestFormat:
		return nil, fmt.Errorf("%w: the manifest has format %d, and this program reads up to %d", ledger.ErrFormat, h.format, manifestFormat)
	case h.vault != keys.Vault:
		return nil, fmt.Errorf("%w: the manifest belongs to another vault, %v", ErrChain, h.vault)
	}
	r.sums = newSums(keys, h.id)
	if !hmac.Equal(mac, r.sums.next(body)) {
		return nil, r.damagedAt(0, "was changed")
	}
	m.backup = h.ofBackup
	return r, nil
}

// ends verifies the end.
func (m *manifest) ends(r *reader, number uint64, body []byte) error {
	e := new(manifestEnd)
	var f tlv.Fields
	f.From(bytes.Clone(body[1:]))
	e.fields(&f)
	if f.Err() != nil || e.chunks != number || !bytes.Equal(e.digest, r.before) {
		return r.damagedAt(number, "does not agree with the chunks before")
	}
	m.end = e.backupEnd
	return r.over(number)
}

// eachBlock calls fn with the blocks of a chunk. last is where the block before them ends.
func eachBlock(last *span, b []byte, fn func(*block)) error {
	for len(b) > 0 {
		if len(b) < 1+16 {
			return errManifest
		}
		next := span{kind: store.Kind(b[0]), through: uuid.UUID(b[1:17])}
		n, w := binary.Uvarint(b[17:])
		if w <= 0 || n > pageRows || len(b) < 17+w+sha256.Size {
			return errManifest
		}
		if next.kind == last.kind {
			next.after = last.through
		}
		fn(&block{next, int(n), [sha256.Size]byte(b[17+w:])})
		*last, b = next, b[17+w+sha256.Size:]
	}
	return nil
}

// walk returns a walk through the blocks that the backup has for certain. It reads the manifest
// again, a chunk at a time.
func (m *manifest) walk(keys *seal.Keys) (*walk, error) {
	r, err := m.begin(keys)
	if err != nil {
		return nil, err
	}
	var last span
	var read []*block
	changed := m.changed
	return &walk{next: func(context.Context) (*block, error) {
		for {
			for len(read) > 0 {
				b := read[0]
				read = read[1:]
				for len(changed) > 0 && changed[0].endsBefore(&b.span) {
					changed = changed[1:]
				}
				if len(changed) == 0 || !changed[0].overlaps(&b.span) {
					return b, nil
				}
			}

			number, body, err := r.next()
			switch {
			case err != nil:
				return nil, err
			case body[0] == sortEnd:
				return nil, nil
			case body[0] != sortBlocks:
				continue
			}
			if err := eachBlock(&last, body[1:], func(b *block) { read = append(read, b) }); err != nil {
				return nil, r.damagedAt(number, "cannot be read: "+err.Error())
			}
		}
	}}, nil
}

// endsBefore reports whether all of s comes before another span.
func (s *span) endsBefore(other *span) bool {
	if s.kind != other.kind {
		return s.kind < other.kind
	}
	return bytes.Compare(s.through[:], other.after[:]) <= 0
}

// overlaps reports whether another span, which s does not end before, has ids of s.
func (s *span) overlaps(other *span) bool {
	return s.kind == other.kind && bytes.Compare(s.after[:], other.through[:]) < 0
}

// A spanSet collects spans. Once it has too many it keeps one of each kind, which has them all.
type spanSet struct {
	most int
	all  []span
}

func (s *spanSet) addAll(b []byte) error {
	if len(b)%touchedBytes != 0 {
		return errManifest
	}
	for ; len(b) > 0; b = b[touchedBytes:] {
		if len(s.all) >= s.most {
			s.merge(func(a, b *span) bool { return a.kind == b.kind })
		}
		s.all = append(s.all, span{store.Kind(b[0]), uuid.UUID(b[1:17]), uuid.UUID(b[17:33])})
	}
	return nil
}

// sorted returns the spans in their order, and joins spans that overlap.
func (s *spanSet) sorted() []span {
	s.merge(func(a, b *span) bool { return a.kind == b.kind && bytes.Compare(b.after[:], a.through[:]) <= 0 })
	return s.all
}

// merge sorts the spans, and joins each with the next one where join says so.
func (s *spanSet) merge(join func(a, b *span) bool) {
	slices.SortFunc(s.all, func(a, b span) int { return cmp.Or(cmp.Compare(a.kind, b.kind), bytes.Compare(a.after[:], b.after[:])) })
	merged := s.all[:0]
	for _, next := range s.all {
		if n := len(merged); n > 0 && join(&merged[n-1], &next) {
			if bytes.Compare(next.through[:], merged[n-1].through[:]) > 0 {
				merged[n-1].through = next.through
			}
			continue
		}
		merged = append(merged, next)
	}
	s.all = merged
}
