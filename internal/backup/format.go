// Package backup writes the records of a vault to a stream while the vault is in use, and
// restores them into an empty store.
//
// A stream is the text "cardvault backup" and chunks, numbered from 0:
//
//	length of body (4) | body | MAC (32)
//
// The MAC is HMAC-SHA-256 of the number in eight bytes, the length and the body. Its key
// derives from the keys of the vault, for this backup alone: see seal.Keys.BackupMAC. So a
// chunk cannot be changed, moved, or be of another backup. The first byte of a body is its
// sort:
//
//	1 head | fields 1 format | 2 id of the backup | 3 vault | 4 began | 5 record of the keyring
//	       | 6 id of the base | 7 MAC of its last chunk
//	2 span | kind (1) | id (16) | id (16) | records
//	3 changes | records
//	4 end | fields 1 time | 2 chunks before | 3 SHA-256 of their MACs | 4 unreadable records
//	      | 5 kind, 6 records and 7 deletions, for each kind | 8 term, for each
//
// Chunk 0 is the head, and the last one the end. A span holds all records of a kind whose ids
// come after the first id, up to and including the second. Changes hold single records. Later
// chunks replace what earlier ones say. An increment, of format 2, names the backup before it as
// its base, and leaves out blocks that this one has: see manifest.go. A record is a length as
// uvarint, and fields:
//
//	1 kind | 2 id | 3 account | 4 parent | 5 class | 6 due (8) | 7 version
//	8 lookups, each a length (1) and the hash | 9 shown | 10 secret
//
// as the store has them: sealed parts stay sealed. One without a version does not exist. Fields
// are of package tlv, and integers big-endian.
package backup

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	magic      = "cardvault backup"
	formatFull = 1
	format     = 2 // of an increment, and the highest

	chunkBytes = 1 << 20            // after which a chunk has no further record
	maxChunk   = chunkBytes + 1<<17 // bytes of a body: a record has half of the rest at most
	maxRows    = 1 << 12            // in a chunk
)

// Sorts of chunks.
const (
	sortHead = iota + 1
	sortSpan
	sortChanges
	sortEnd
	sortBlocks  // of a manifest
	sortTouched // of a manifest
)

// A head is what a stream begins with.
type head struct {
	format  int
	backup  uuid.UUID
	vault   uuid.UUID
	began   time.Time
	keyring []byte // a record

	base    uuid.UUID // zero: the backup is full
	baseEnd []byte
}

func (h *head) fields(f *tlv.Fields) {
	tlv.Uint(f, 1, &h.format)
	tlv.ID(f, 2, &h.backup)
	tlv.ID(f, 3, &h.vault)
	f.Time(4, &h.began)
	h.keyring = f.Value(5, h.keyring)
	tlv.ID(f, 6, &h.base)
	h.baseEnd = f.Value(7, h.baseEnd)
}

// An end is what a stream ends with.
type end struct {
	at      time.Time
	chunks  uint64
	digest  []byte
	damaged int64
	counts  []count
	terms   []term
}

// A count is the number of records of a kind in a stream.
type count struct {
	kind          store.Kind
	records, gone int64
}

type term uint32

func (e *end) fields(f *tlv.Fields) {
	f.Time(1, &e.at)
	tlv.Uint(f, 2, &e.chunks)
	e.digest = f.Value(3, e.digest)
	tlv.Uint(f, 4, &e.damaged)
	tlv.Items(f, 5, 7, &e.counts, func(c *count, f *tlv.Fields) {
		tlv.Uint(f, 5, &c.kind)
		tlv.Uint(f, 6, &c.records)
		tlv.Uint(f, 7, &c.gone)
	})
	tlv.Items(f, 8, 8, &e.terms, func(t *term, f *tlv.Fields) { tlv.Uint(f, 8, t) })
}

func bodyOf(sort byte, fields func(*tlv.Fields)) []byte {
	var f tlv.Fields
	f.To([]byte{sort})
	fields(&f)
	return f.Bytes()
}

// Fields of a record.
const (
	rowKind = iota + 1
	rowID
	rowAccount
	rowParent
	rowClass
	rowDue
	rowVersion
	rowLookups
	rowShown
	rowSecret
)

// appendRow appends the fields of a record.
func appendRow(b []byte, r *store.Record) []byte {
	appendID := func(tag byte, id uuid.UUID) {
		if id != uuid.Nil {
			b = tlv.Append(b, tag, id[:])
		}
	}
	b = tlv.AppendUint(b, rowKind, uint64(r.Kind))
	appendID(rowID, r.ID)
	appendID(rowAccount, r.Account)
	appendID(rowParent, r.Parent)
	b = tlv.AppendUint(b, rowClass, uint64(r.Class))
	if !r.Due.IsZero() {
		b = tlv.Append(b, rowDue, binary.BigEndian.AppendUint64(nil, uint64(r.Due.UnixMicro())))
	}
	b = tlv.AppendUint(b, rowVersion, r.Version)

	var lookups []byte
	for _, h := range r.Lookup {
		lookups = append(append(lookups, byte(len(h))), h...)
	}
	b = tlv.Append(b, rowLookups, lookups)
	b = tlv.Append(b, rowShown, r.Shown)
	return tlv.Append(b, rowSecret, r.Secret)
}

var errRow = errors.New("a record is malformed")

// parseRow reads what appendRow has written. The record points into data.
func parseRow(data []byte) (*store.Record, error) {
	var bad bool
	r := new(store.Record)
	f := tlv.Read(data)
	id := func(to *uuid.UUID) {
		bad = bad || len(f.Value) != len(to)
		copy(to[:], f.Value)
	}
	small := func() byte {
		n := f.Uint()
		bad = bad || n > 255
		return byte(n)
	}

	for f.Next() {
		switch f.Tag {
		case rowKind:
			r.Kind = store.Kind(small())
		case rowID:
			id(&r.ID)
		case rowAccount:
			id(&r.Account)
		case rowParent:
			id(&r.Parent)
		case rowClass:
			r.Class = small()
		case rowDue:
			if bad = bad || len(f.Value) != 8; !bad {
				r.Due = time.UnixMicro(int64(binary.BigEndian.Uint64(f.Value))).UTC()
			}
		case rowVersion:
			r.Version = f.Uint()
		case rowLookups:
			bad = bad || !parseLookups(r, f.Value)
		case rowShown:
			r.Shown = f.Value
		case rowSecret:
			r.Secret = f.Value
		}
	}
	if bad || f.Err() != nil || r.Kind == 0 || r.ID == uuid.Nil {
		return nil, errRow
	}
	return r, nil
}

func parseLookups(r *store.Record, b []byte) bool {
	for len(b) > 0 {
		n := 1 + int(b[0])
		if n > len(b) {
			return false
		}
		r.Lookup = append(r.Lookup, b[1:n])
		b = b[n:]
	}
	return true
}

// parseRows reads the records of a chunk.
func parseRows(b []byte) (rows []*store.Record, err error) {
	for len(b) > 0 {
		n, w := binary.Uvarint(b)
		if w <= 0 || n > uint64(len(b)-w) || len(rows) == maxRows {
			return nil, errRow
		}
		r, err := parseRow(b[w : w+int(n)])
		if err != nil {
			return nil, err
		}
		rows, b = append(rows, r), b[w+int(n):]
	}
	return rows, nil
}

// A span is the records of a kind in a stretch of ids.
type span struct {
	kind           store.Kind
	after, through uuid.UUID
}

const spanHead = 1 + 1 + 16 + 16 // bytes

// head begins the body of a chunk, with room for rows of a size.
func (s *span) head(size int) []byte {
	b := make([]byte, 0, spanHead+min(size, chunkBytes+chunkBytes/8))
	return append(append(append(b, sortSpan, byte(s.kind)), s.after[:]...), s.through[:]...)
}

// has reports whether an id is in the span.
func (s *span) has(id uuid.UUID) bool {
	return bytes.Compare(s.after[:], id[:]) < 0 && bytes.Compare(id[:], s.through[:]) <= 0
}

var errSpan = errors.New("a span is malformed")

func parseSpan(b []byte) (s span, rows []*store.Record, err error) {
	if len(b) < spanHead-1 {
		return s, nil, errSpan
	}
	s = span{store.Kind(b[0]), uuid.UUID(b[1:17]), uuid.UUID(b[17:33])}
	rows, err = parseRows(b[33:])
	rest := s
	for _, r := range rows {
		if r.Kind != s.kind || !rest.has(r.ID) || r.Version == 0 {
			return s, nil, errSpan
		}
		rest.after = r.ID
	}
	return s, rows, err
}

// sums authenticate the chunks of a stream.
type sums struct {
	mac    hash.Hash
	number uint64    // of the next chunk
	digest hash.Hash // of the MACs before
}

func newSums(keys *seal.Keys, backup uuid.UUID) *sums {
	return &sums{mac: keys.BackupMAC(backup), digest: sha256.New()}
}

// next returns the MAC of the next chunk.
func (s *sums) next(body []byte) []byte {
	var b [12]byte
	binary.BigEndian.PutUint64(b[:], s.number)
	binary.BigEndian.PutUint32(b[8:], uint32(len(body)))
	s.mac.Reset()
	s.mac.Write(b[:])
	s.mac.Write(body)
	mac := s.mac.Sum(nil)
	s.number++
	s.digest.Write(mac)
	return mac
}

// chunk returns the next chunk of a stream, with its MAC.
func (s *sums) chunk(body []byte) (chunk, mac []byte) {
	chunk = make([]byte, 0, 4+len(body)+sha256.Size)
	chunk = binary.BigEndian.AppendUint32(chunk, uint32(len(body)))
	chunk = append(chunk, body...)
	mac = s.next(body)
	return append(chunk, mac...), mac
}

// A reader reads the chunks of a stream.
type reader struct {
	r    io.Reader
	what string // that is read, as errors name it
	sums *sums  // nil before the head
	buf  []byte
	read int64 // bytes

	before []byte // SHA-256 of the MACs before the last chunk
	mac    []byte // of the last chunk, valid until the next one
}

// damaged returns the error of the next chunk.
func (r *reader) damaged(why string) error {
	n := uint64(0)
	if r.sums != nil {
		n = r.sums.number
	}
	return r.damagedAt(n, why)
}

func (r *reader) damagedAt(chunk uint64, why string) error {
	return fmt.Errorf("%w: chunk %d of %s %s", ledger.ErrDamaged, chunk, r.what, why)
}

// failed returns the error of the underlying reader.
func (r *reader) failed(err error) error { return fmt.Errorf("cardvault: reading %s: %w", r.what, err) }

// begins reads the text with which the stream begins.
func (r *reader) begins(text string) error {
	begin := make([]byte, len(text))
	if err := r.full(begin); err != nil {
		return err
	}
	if string(begin) != text {
		return r.damaged("does not begin with its text")
	}
	return nil
}

// full reads into all of b.
func (r *reader) full(b []byte) error {
	n, err := io.ReadFull(r.r, b)
	r.read += int64(n)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return r.damaged("is cut off, or missing")
	case err != nil:
		return r.failed(err)
	}
	return nil
}

// over returns an error unless the stream ends after the chunk of a number.
func (r *reader) over(number uint64) error {
	switch n, err := io.ReadFull(r.r, make([]byte, 1)); {
	case n > 0:
		return r.damagedAt(number, "is not the last: something follows")
	case err != io.EOF:
		return r.failed(err)
	}
	return nil
}

// unverified reads a chunk. Both slices are valid until the next call.
func (r *reader) unverified() (body, mac []byte, err error) {
	var length [4]byte
	if err := r.full(length[:]); err != nil {
		return nil, nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n == 0 || n > maxChunk {
		return nil, nil, r.damaged("was changed: it has no valid length")
	}
	if r.buf == nil {
		r.buf = make([]byte, maxChunk+sha256.Size)
	}
	b := r.buf[:n+sha256.Size]
	if err := r.full(b); err != nil {
		return nil, nil, err
	}
	return b[:n], b[n:], nil
}

// next reads a chunk and verifies it.
func (r *reader) next() (number uint64, body []byte, err error) {
	number, r.before = r.sums.number, r.sums.digest.Sum(nil)
	body, mac, err := r.unverified()
	if err == nil && !hmac.Equal(mac, r.sums.next(body)) {
		err = r.damagedAt(number, "was changed, or does not belong there")
	}
	r.mac = mac
	return number, body, err
}
