package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/wire"
	"github.com/google/uuid"
)

// VerifyOptions say what an export is compared with.
type VerifyOptions struct {
	// PublicKeys are the keys of the vault: see Vault.AuditPublicKeys. Others sign nothing. If
	// empty, the keys that the export names are used, and the result shows only that the
	// export agrees with itself.
	PublicKeys []ed25519.PublicKey

	// Kept are checkpoints that were kept elsewhere, such as by a [Sink]. Other accounts' are
	// passed over.
	Kept []*Checkpoint

	// Known are gaps of an earlier [Report] that were looked into. Any other [Break] is a fault,
	// and so is a known one that more checkpoints are missing before than then.
	Known []Gap

	// Each is called with each record whose checkpoint proves it, in the order of the
	// export. An error ends Verify, which returns it. It may be nil.
	Each func(*Record) error

	// Open is called with each record that has no checkpoint yet, likewise. Only the end of the
	// export, which comes later, proves these. It may be nil.
	Open func(*Record) error
}

// A Report describes the verified part of an export.
type Report struct {
	VaultID   uuid.UUID
	AccountID uuid.UUID
	Keys      []Signer // as the export names them

	First uint64      // number of the first checkpoint; 0: the log has none
	Last  *Checkpoint // nil: the log has none

	Records int64 // with a checkpoint
	Void    int64 // sequence numbers without a record
	Open    int64 // records without a checkpoint yet: the end proves them, not the chain

	Gaps []Gap // at most 1,000: the first that are not known, and then known ones
}

// A Gap is a place of the chain where a [Break] is.
type Gap struct {
	Checkpoint uint64            // with the break
	Hash       [sha256.Size]byte // of that checkpoint, by which VerifyOptions.Known names it
	At         time.Time         // of that checkpoint
	Missing    uint64            // checkpoints before it that the export does not have
	Records    uint64            // as Break.Records says
}

// maxGaps bounds Report.Gaps.
const maxGaps = 1000

// A Fault is a sort of damage to an export.
type Fault uint8

const (
	Malformed Fault = iota + 1 // not an export, or not as a vault writes it
	Edited                     // a record, a checkpoint or another line was changed
	Removed                    // a record or checkpoint is missing
	Swapped                    // records are in another order
	Added                      // a record that its checkpoint does not have
	Replayed                   // a checkpoint stands where another belongs
	CutOff                     // the end is missing, or what a kept checkpoint proves
	Foreign                    // of another vault or account, or signed by another key
	Broken                     // the vault says itself that proof is missing here: see Break
)

var faults = [...]string{
	Malformed: "malformed", Edited: "edited", Removed: "removed", Swapped: "swapped", Added: "added",
	Replayed: "replayed", CutOff: "cut off", Foreign: "foreign", Broken: "broken",
}

// String returns such as "edited".
func (f Fault) String() string {
	if int(f) < len(faults) && f > 0 {
		return faults[f]
	}
	return "unknown"
}

// A VerifyError names the first place of an export that is not as the vault has written it.
type VerifyError struct {
	Fault      Fault
	Line       int64     // of the export, from 1
	Checkpoint uint64    // the number of the checkpoint, or of the checkpoint of the record; 0: none
	Lane       uuid.UUID // of the record; zero: it is not a record
	Sequence   uint64    // likewise
	what       string
}

func (e *VerifyError) Error() string {
	s := fmt.Sprintf("audit: line %d: %s: %s", e.Line, e.Fault, e.what)
	if e.Sequence > 0 {
		s += fmt.Sprintf(" (record %d of lane %s)", e.Sequence, e.Lane)
	}
	if e.Checkpoint > 0 {
		s += fmt.Sprintf(" (checkpoint %d)", e.Checkpoint)
	}
	return s
}

// Verify reads the export of one account and verifies it. It holds one line and one
// checkpoint at a time. opts may be nil.
//
// The error is a [*VerifyError] that names the first fault, or one of r, of Each or of Open. The
// report says how far Verify came. A break that is not Known is the error only if the export has
// no other fault: Verify reads on behind it.
func Verify(r io.Reader, opts *VerifyOptions) (*Report, error) {
	v := &verifier{in: bufio.NewReaderSize(r, maxLine), sum: sha256.New(), report: new(Report)}
	if opts != nil {
		v.opts = *opts
	}
	return v.report, v.verify()
}

type verifier struct {
	in     *bufio.Reader
	opts   VerifyOptions
	keys   []ed25519.PublicKey
	report *Report
	header header

	number int64     // of the line
	sum    hash.Hash // of all lines but the end
	raw    []byte    // the line
	again  []byte    // the line as it is written

	last        *Checkpoint // nil: none yet
	group       group       // the records of last
	checkpoints uint64
	proved      spans
	broken      *VerifyError // the first break that is not known
}

func (v *verifier) verify() error {
	l, err := v.next()
	if err != nil {
		return err
	}
	if l.Export == nil {
		return v.fault(Malformed, "an export begins with its header")
	}
	if err := v.begin(l.Export); err != nil {
		return err
	}

	for {
		l, err := v.next()
		if err != nil {
			return err
		}
		if l.Record == nil {
			if err := v.endGroup(); err != nil {
				return err
			}
		}

		switch {
		case l.Checkpoint != nil:
			err = v.checkpoint(l.Checkpoint)
		case l.Record != nil:
			err = v.record(l.Record)
		case l.Open != nil:
			err = v.open(l.Open)
		case l.End != nil:
			return v.end(l.End)
		default:
			err = v.fault(Malformed, "a second header")
		}
		if err != nil {
			return err
		}
	}
}

func (v *verifier) fault(f Fault, what string) *VerifyError {
	e := &VerifyError{Fault: f, Line: v.number, what: what}
	if v.last != nil {
		e.Checkpoint = v.last.Number
	}
	return e
}

// next reads a line.
func (v *verifier) next() (*line, error) {
	v.number++
	raw, err := v.in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, v.malformed("line is too long")
	case errors.Is(err, io.EOF):
		if err := v.endGroup(); err != nil && len(raw) == 0 {
			return nil, err
		}
		return nil, v.fault(CutOff, "the export has no end")
	case err != nil:
		return nil, err
	}

	v.raw = append(v.raw[:0], raw...)
	l := new(line)
	if wire.Read("line", v.raw[:len(v.raw)-1], l) != nil {
		return nil, v.malformed("line cannot be read")
	}
	// The line of another writer, or with a member that none of ours has, is not evidence.
	if v.again = append(wire.Append(v.again[:0], l), '\n'); !bytes.Equal(v.again, v.raw) || !l.one() {
		return nil, v.malformed("line is not as a vault writes it")
	}
	if l.End == nil {
		v.sum.Write(v.raw)
	}
	return l, nil
}

// one reports whether a line has one member.
func (l *line) one() bool {
	n := 0
	for _, is := range []bool{l.Export != nil, l.Checkpoint != nil, l.Record != nil, l.Open != nil, l.End != nil} {
		if is {
			n++
		}
	}
	return n == 1
}

// malformed names the record that was expected in the place of a line.
func (v *verifier) malformed(what string) error {
	if slot, ok := v.group.expected(); ok {
		return v.at(Edited, slot, what)
	}
	return v.fault(Malformed, what)
}

// at returns the fault of the record of a slot of the present checkpoint.
func (v *verifier) at(f Fault, slot int, what string) error {
	e := v.fault(f, what)
	e.Lane, e.Sequence = v.last.Lane, v.last.First+uint64(slot)
	return e
}

func (v *verifier) begin(h *header) error {
	v.header = *h
	v.report.VaultID, v.report.AccountID, v.report.First = h.VaultID, h.AccountID, h.First
	v.report.Keys, v.keys = h.Keys, v.opts.PublicKeys
	if h.Format != Format {
		return v.fault(Malformed, "export has another format")
	}
	if len(h.Keys) == 0 || !slices.IsSortedFunc(h.Keys, func(a, b Signer) int { return cmp.Compare(a.First, b.First) }) {
		return v.fault(Malformed, "keys of the export are missing or out of order")
	}
	if len(v.keys) == 0 {
		for _, k := range h.Keys {
			v.keys = append(v.keys, k.PublicKey[:])
		}
	}

	for _, k := range v.opts.Kept {
		if k.VaultID != h.VaultID {
			return v.fault(Foreign, "a kept checkpoint is of another vault")
		}
		if !k.SignedBy(v.keys...) {
			return v.fault(Foreign, "a kept checkpoint was not signed by the key")
		}
	}
	return nil
}

// signer returns the key that signs a checkpoint of a number, none if that is not a key of the
// vault. A former key that is in other hands proves nothing of later checkpoints.
func (v *verifier) signer(number uint64) []ed25519.PublicKey {
	var key ed25519.PublicKey
	for i := range v.header.Keys {
		if k := &v.header.Keys[i]; k.First <= number {
			key = k.PublicKey[:]
		}
	}
	if !slices.ContainsFunc(v.keys, func(k ed25519.PublicKey) bool { return k.Equal(key) }) {
		return nil
	}
	return []ed25519.PublicKey{key}
}

// checkpoint verifies the place of a checkpoint in the chain.
func (v *verifier) checkpoint(c *Checkpoint) error {
	before := v.last
	v.last = c
	v.checkpoints++
	switch {
	case c.VaultID != v.header.VaultID || c.AccountID != v.header.AccountID:
		return v.fault(Foreign, "checkpoint is of another vault or account")
	case !c.SignedBy(v.signer(c.Number)...):
		return v.fault(Edited, "checkpoint was not signed like this by the key of its time")
	}

	want := v.header.First
	if before != nil {
		want = before.Number + 1
	}
	follows := before != nil && (c.Break == nil || c.Break.Last == before.Number)
	switch {
	case c.Number > want && (c.Break == nil || c.Break.Last >= want):
		e := v.fault(Removed, "checkpoint is missing")
		e.Checkpoint = want
		return e
	case c.Number < want:
		return v.fault(Replayed, fmt.Sprintf("checkpoint %d belongs here", want))
	case c.Break != nil && c.Break.Last >= c.Number:
		return v.fault(Malformed, "checkpoint names an impossible break")
	case before == nil && c.Break == nil && v.keptBefore(c):
		return v.fault(Replayed, "checkpoint does not follow the kept one before it")
	case follows && c.Previous != before.Hash(), c.Number == 1 && c.Previous != [sha256.Size]byte{}:
		return v.fault(Replayed, "checkpoint does not follow the one before")
	case follows && c.Erased < before.Erased, c.Erased >= c.Number:
		return v.fault(Malformed, "checkpoint names an impossible erasure")
	}

	for _, k := range v.opts.Kept {
		if k.AccountID == c.AccountID && k.Number == c.Number && k.Hash() != c.Hash() {
			return v.fault(Replayed, "another checkpoint of this number was kept: the store was restored, or the key is in other hands")
		}
	}
	digests, err := c.digests()
	if err != nil {
		return v.fault(Malformed, "digests of the checkpoint cannot be read")
	}
	if !v.proved.add(c, digests) {
		return v.fault(Replayed, "an earlier checkpoint has records of this one")
	}
	v.group.begin(digests)
	if c.Break != nil {
		v.gap(c, c.Number-want)
	}
	return nil
}

// keptBefore reports whether another checkpoint was kept in the place before the first one.
func (v *verifier) keptBefore(c *Checkpoint) bool {
	return slices.ContainsFunc(v.opts.Kept, func(k *Checkpoint) bool {
		return k.AccountID == c.AccountID && k.Number+1 == c.Number && k.Hash() != c.Previous
	})
}

// gap notes a break, and how many checkpoints before it are missing.
func (v *verifier) gap(c *Checkpoint, missing uint64) {
	gap := Gap{c.Number, c.Hash(), c.At, missing, c.Break.Records}
	known := v.knows(gap)
	if len(v.report.Gaps) == maxGaps && !known {
		if at := slices.IndexFunc(v.report.Gaps, v.knows); at >= 0 {
			v.report.Gaps = slices.Delete(v.report.Gaps, at, at+1)
		}
	}
	if len(v.report.Gaps) < maxGaps {
		v.report.Gaps = append(v.report.Gaps, gap)
	}
	if v.broken == nil && !known {
		v.broken = v.fault(Broken, fmt.Sprintf("proof is missing before this checkpoint: %d checkpoints are not there, and %d stored records have none",
			missing, c.Break.Records))
	}
}

// knows reports whether VerifyOptions.Known has a gap.
func (v *verifier) knows(gap Gap) bool {
	return slices.ContainsFunc(v.opts.Known, func(k Gap) bool { return k.Hash == gap.Hash && k.Missing >= gap.Missing })
}

// spans are the sequence numbers of each lane that checkpoints have, as long as they are few: a
// lane has one span, unless a process has died.
type spans struct {
	lanes map[uuid.UUID][]span
	count int
}

// A span has the numbers from first up to end, which it does not have.
type span struct{ first, end uint64 }

const maxSpans = 1 << 18 // in memory. Beyond it they start over

// add adds the numbers of a checkpoint. It reports whether no earlier one has any of them. A
// checkpoint that says of all that they are void may be there twice: its write had an unknown
// outcome.
func (s *spans) add(c *Checkpoint, digests [][DigestSize]byte) bool {
	if !slices.ContainsFunc(digests, func(d [DigestSize]byte) bool { return d != [DigestSize]byte{} }) {
		return true
	}
	if s.lanes == nil || s.count >= maxSpans {
		*s = spans{lanes: map[uuid.UUID][]span{}}
	}
	own := span{c.First, c.First + uint64(len(digests))}
	all := s.lanes[c.Lane]
	at, _ := slices.BinarySearchFunc(all, own.first, func(x span, first uint64) int { return cmp.Compare(x.first, first) })
	if own.end < own.first || at > 0 && all[at-1].end > own.first || at < len(all) && all[at].first < own.end {
		return false
	}
	if at > 0 && all[at-1].end == own.first {
		all[at-1].end = own.end
		return true
	}
	s.lanes[c.Lane] = slices.Insert(all, at, own)
	s.count++
	return true
}

// record compares a record with the digests of its checkpoint.
func (v *verifier) record(r *Record) error {
	if v.last == nil {
		return v.fault(Added, "a record before the first checkpoint")
	}
	ok := v.group.add(r.Digest(), v.number)
	if !ok || v.opts.Each == nil {
		return nil
	}
	return v.opts.Each(r)
}

func (v *verifier) endGroup() error {
	if v.last == nil {
		return nil
	}
	fault, slot, at := v.group.end()
	if fault == 0 {
		v.report.Last = v.last
		v.report.Records += int64(v.group.found)
		v.report.Void += int64(v.group.void)
		v.group.begin(nil)
		return nil
	}

	what := map[Fault]string{
		Edited:  "the record in its place is not as the vault has written it",
		Removed: "record is missing",
		Swapped: "record stands after later ones",
		Added:   "checkpoint does not have a record that stands here",
	}[fault]
	if at > 0 {
		v.number = at
	}
	if slot < 0 {
		return v.fault(fault, what)
	}
	return v.at(fault, slot, what)
}

func (v *verifier) open(r *Record) error {
	v.report.Open++
	if r.AccountID != v.header.AccountID {
		return v.fault(Foreign, "record is of another account")
	}
	if v.opts.Open == nil {
		return nil
	}
	return v.opts.Open(r)
}

// end verifies that nothing is missing before the end of the export.
func (v *verifier) end(e *end) error {
	if _, err := v.in.ReadByte(); !errors.Is(err, io.EOF) {
		v.number++
		return v.fault(Malformed, "the export goes on after its end")
	}

	sum := v.sum.Sum(nil)
	switch {
	case v.last == nil && v.header.First != 0:
		e := v.fault(Removed, "checkpoint is missing")
		e.Checkpoint = v.header.First
		return e
	case e.Checkpoints > v.checkpoints:
		return v.fault(Removed, "the last checkpoint is missing")
	case hex.EncodeToString(sum) != e.Sum || e.Checkpoints != v.checkpoints || e.Open != uint64(v.report.Open):
		return v.fault(Edited, "header, end or records without a checkpoint are not as the vault has written them")
	case !signed(v.signer(math.MaxUint64), e.content(), e.Signature[:]):
		return v.fault(Foreign, "the end was not signed by the key")
	}
	if v.last != nil && v.header.Whole && v.header.First > v.last.Erased+1 {
		e := v.fault(Removed, "checkpoint is missing, and was not erased because of its age")
		e.Checkpoint = v.last.Erased + 1
		return e
	}
	return v.kept()
}

// kept compares the last checkpoint with the kept ones.
func (v *verifier) kept() error {
	for _, k := range v.opts.Kept {
		if k.AccountID != v.header.AccountID {
			continue
		}
		if v.last == nil || k.Number > v.last.Number {
			e := v.fault(CutOff, "a checkpoint was kept that the export does not have")
			e.Checkpoint = 1
			if v.last != nil {
				e.Checkpoint = v.last.Number + 1
			}
			return e
		}
	}
	if v.broken != nil {
		return v.broken
	}
	return nil
}

// A group compares the records of a checkpoint with its digests.
type group struct {
	want        [][DigestSize]byte
	next        int    // the slot that is expected
	seen        []bool // by slot
	found, void int

	first int   // the slot that was expected at the first fault; -1: no fault
	line  int64 // of the first fault
	added bool  // a record without a digest
	extra bool  // the first fault was such a record
}

var nothing [DigestSize]byte

func (g *group) begin(want [][DigestSize]byte) {
	*g = group{want: want, seen: make([]bool, len(want)), first: -1}
	for _, d := range want {
		if d == nothing {
			g.void++
		}
	}
	g.pass()
}

// pass passes over void slots, and slots that were seen.
func (g *group) pass() {
	for g.next < len(g.want) && (g.want[g.next] == nothing || g.seen[g.next]) {
		g.next++
	}
}

// expected returns the slot of the next record, if there is one.
func (g *group) expected() (int, bool) { return g.next, g.next < len(g.want) }

// add reports whether a record stands in its place.
func (g *group) add(digest [DigestSize]byte, number int64) bool {
	if g.next < len(g.want) && digest == g.want[g.next] {
		g.seen[g.next] = true
		g.found++
		g.next++
		g.pass()
		return g.first < 0
	}

	of := -1
	for i, d := range g.want {
		if d == digest && !g.seen[i] && d != nothing {
			of = i
		}
	}
	if g.first < 0 {
		g.first, g.line, g.extra = g.next, number, of < 0
	}
	if of < 0 {
		g.added = true
		return false
	}
	g.seen[of] = true
	return false
}

// end returns the first fault of the group, with its slot and line. The slot is -1 if a
// record stands where none is expected; the line is 0 if the group ended too soon.
func (g *group) end() (f Fault, slot int, at int64) {
	if g.first < 0 {
		if g.next < len(g.want) {
			return Removed, g.next, 0
		}
		return 0, 0, 0
	}
	switch {
	case g.first >= len(g.want):
		return Added, -1, g.line
	case g.seen[g.first] && g.extra:
		return Added, -1, g.line
	case g.seen[g.first]:
		return Swapped, g.first, g.line
	case g.added:
		return Edited, g.first, g.line
	}
	return Removed, g.first, g.line
}
