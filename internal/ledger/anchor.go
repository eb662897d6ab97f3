package ledger

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// An Anchor is a cardvault.Anchor.
type Anchor interface {
	Load(ctx context.Context) ([]byte, error)
	Advance(ctx context.Context, number uint64, text []byte) error
}

// Errors of an anchor. Package cardvault says what to do.
var (
	ErrAnchor     = errors.New("cardvault: anchor cannot be used")
	ErrRolledBack = errors.New("cardvault: vault was rolled back")
)

// A Rollback is the error of a store that lacks what its anchor says. It wraps ErrRolledBack.
type Rollback struct {
	ID                   uuid.UUID // of this difference
	Reason               string
	Stored, Anchored     uint64 // numbers; 0: none
	StoredAt, AnchoredAt time.Time
}

func (r *Rollback) Error() string {
	return fmt.Sprintf("%v: %s: the store has %s, and the anchor %s: restore the latest store, or set Options.AcceptRollback to %v to go on from here",
		ErrRolledBack, r.Reason, numberedAt(r.Stored, r.StoredAt), numberedAt(r.Anchored, r.AnchoredAt), r.ID)
}

// numberedAt returns how an error names a point.
func numberedAt(number uint64, at time.Time) string {
	if number == 0 {
		return "no number"
	}
	return fmt.Sprintf("number %d of %v", number, at.Format(time.RFC3339))
}

func (r *Rollback) Unwrap() error { return ErrRolledBack }

// A point is a moment in the life of a vault: its store has all that was committed before. The last
// point is a record of the store, and the anchor has the same or an earlier point.
//
// The text is in base64url: the format in one byte, the fields, and their MAC.
type point struct {
	vault      uuid.UUID
	number     uint64 // counts the points
	generation uint32 // of the keyring
	at         time.Time

	// line is random. A rollback that was accepted begins another line, so if two stores have
	// gone on since, neither looks like the other with more commits.
	line uuid.UUID

	// over is the SHA-256 of the text in whose place the first point of a line comes into the
	// anchor. It is nil once that has happened.
	over []byte

	// sums counts how often sums were written when the point was made: see sumTop. A store with the
	// newest point and other records of before has written them less often. 0: without sums.
	sums uint64
}

const (
	pointFormat = 2 // 1 without sums
	macSize     = sha256.Size
	maxPoint    = 1 << 10 // bytes of a text
)

var pointID = numbered(4, 0)

func (p *point) fields(f *tlv.Fields) {
	tlv.ID(f, 1, &p.vault)
	tlv.Uint(f, 2, &p.number)
	tlv.ID(f, 3, &p.line)
	tlv.Uint(f, 4, &p.generation)
	f.Time(5, &p.at)
	p.over = f.Value(6, p.over)
	if f.Has(7, p.sums != 0) {
		tlv.Uint(f, 7, &p.sums)
	}
}

func (p *point) text(k *seal.Keys) []byte {
	format := byte(pointFormat)
	if p.sums == 0 {
		format = 1
	}
	b := append([]byte{format}, tlv.Encode(p.fields)...)
	b = append(b, k.AnchorMAC("anchor", b)...)
	return base64.RawURLEncoding.AppendEncode(nil, b)
}

// parsePoint returns the point of a text. The error says what the text has suffered.
func parsePoint(k *seal.Keys, text []byte) (*point, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(string(text[:min(len(text), maxPoint)]))
	if err != nil || len(text) > maxPoint || len(b) < 1+macSize {
		return nil, errors.New("was edited or cut off")
	}
	if b[0] > pointFormat {
		return nil, fmt.Errorf("has format %d, and this program reads up to %d: %w", b[0], pointFormat, ErrFormat)
	}

	content, mac := b[:len(b)-macSize], b[len(b)-macSize:]
	p := new(point)
	var f tlv.Fields
	f.From(content[1:])
	p.fields(&f)
	switch {
	case f.Err() == nil && p.vault != uuid.Nil && p.vault != k.Vault:
		return nil, errors.New("belongs to another vault")
	case !hmac.Equal(mac, k.AnchorMAC("anchor", content)) || f.Err() != nil || p.number == 0:
		return nil, errors.New("was edited or cut off")
	}
	return p, nil
}

func (p *point) record(k *seal.Keys, version uint64) *store.Record {
	return &store.Record{Kind: KindMeta, ID: pointID, Version: version, Shown: p.text(k)}
}

// A comparison has both points.
type comparison struct {
	text     []byte        // of the anchor; empty: none
	row      *store.Record // nil: none
	anchored *point        // nil: none
	stored   *point        // nil: none that can be read
	top      *sumRecord    // nil: none

	pending  bool      // the anchor has still the text whose place the stored point takes
	rollback *Rollback // nil: the store has all that the anchor says
}

// compare compares the store with its anchor. A difference counts if the anchor has not changed
// meanwhile: another process may have accepted a rollback in between.
func (l *Ledger) compare(ctx context.Context) (*comparison, error) {
	var last *comparison
	for {
		c, err := l.compareOnce(ctx)
		if err != nil || c.rollback == nil || last != nil && string(last.text) == string(c.text) {
			return c, err
		}
		last = c
	}
}

func (l *Ledger) compareOnce(ctx context.Context) (*comparison, error) {
	c := new(comparison)
	var err error
	// First the anchor: a store that is read later is not behind it only because it goes on.
	if c.text, err = l.loadAnchor(ctx); err != nil {
		return nil, err
	}
	keys := l.Box.Keys()
	if len(c.text) > 0 {
		if c.anchored, err = parsePoint(keys, c.text); err != nil {
			return nil, fmt.Errorf("%w: its text %w. If it is lost for good, give the vault an empty one", ErrAnchor, err)
		}
	}

	restored := false
	err = l.View(ctx, func(tx store.ReadTx) error {
		r, err := RestorationOf(tx)
		if err != nil {
			return err
		}
		restored = r != nil && r.Vault == uuid.Nil
		if c.row, err = tx.Get(KindMeta, pointID); errors.Is(err, store.ErrNotFound) {
			c.row, err = nil, nil
		}
		if err == nil {
			c.top, err = l.sums.top(tx)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if c.row != nil {
		c.stored, err = parsePoint(keys, c.row.Shown)
		if errors.Is(err, ErrFormat) {
			return nil, fmt.Errorf("cardvault: the text of the anchor in the store %w", err)
		}
	}
	if c.anchored != nil && c.anchored.generation > l.Box.Keys().Generation { // another process has replaced the keyring
		if err := l.Reload(ctx); err != nil {
			return nil, err
		}
	}
	c.judge(l.Box.Keys(), restored)
	return c, nil
}

// judge sets what follows from the two points.
func (c *comparison) judge(k *seal.Keys, restored bool) {
	digest := sha256.Sum256(c.text)
	c.pending = c.stored != nil && string(c.stored.over) == string(digest[:])
	reason := ""
	switch s, a := c.stored, c.anchored; {
	case c.pending, c.row == nil && a == nil:
		return
	case restored:
		reason = "it was restored from a backup"
	case a == nil:
		reason = "the anchor is empty, or another one"
	case c.row == nil:
		reason = "it is from before it had an anchor"
	case s == nil:
		reason = "its number in the store was edited"
	case s.line != a.line:
		reason = "the anchor is of a store that went on apart from this one"
	case s.number < a.number:
		reason = "it is older than its anchor"
	case k.Generation < a.generation:
		reason = fmt.Sprintf("the keyring has generation %d, and had %d", k.Generation, a.generation)
	case k.Summed() && c.written() < max(s.sums, a.sums):
		reason = "records are as they were before their sums were last written, or the count of that is lost"
	default:
		return
	}

	c.rollback = &Rollback{Reason: reason}
	if c.stored != nil {
		c.rollback.Stored, c.rollback.StoredAt = c.stored.number, c.stored.at
	}
	if c.anchored != nil {
		c.rollback.Anchored, c.rollback.AnchoredAt = c.anchored.number, c.anchored.at
	}
	c.rollback.ID = c.id(k)
}

// written returns how often sums were written, 0 if their record cannot be read: else who puts back
// all records has only to damage that one.
func (c *comparison) written() uint64 {
	if c.top == nil || c.top.unread {
		return 0
	}
	return c.top.count
}

// anchoredSums returns how often sums were written before the last point, 0 if it is absent or cannot
// be read.
func (l *Ledger) anchoredSums(tx store.ReadTx) (uint64, error) {
	r, err := getOr(tx, KindMeta, pointID)
	if r == nil || err != nil {
		return 0, err
	}
	p, err := parsePoint(l.Box.Keys(), r.Shown)
	if err != nil {
		return 0, nil
	}
	return p.sums, nil
}

// id names the difference. It is another one once the store or the anchor goes on, so an id that
// was accepted accepts nothing else.
func (c *comparison) id(k *seal.Keys) (id uuid.UUID) {
	var row []byte
	if c.row != nil {
		row = c.row.Shown
	}
	digest := sha256.Sum256(row)
	written := binary.BigEndian.AppendUint64(nil, c.written())
	copy(id[:], k.AnchorMAC("anchor difference", digest[:], written, c.text))
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8: of a hash
	return id
}

// settled checks that the store has all that its anchor says, when the vault is opened.
func (l *Ledger) settled(ctx context.Context) error {
	if l.config.Anchor == nil {
		return l.unanchored(ctx)
	}
	if f := l.Box.Keys().Fence; l.config.Moving && f != nil && f.Opener != uuid.Nil {
		return nil // the vault has left: the anchor follows the new place, which is compared when it is opened
	}
	c, err := l.compare(ctx)
	if err != nil {
		return err
	}
	if c.rollback != nil && (l.config.Moving || c.rollback.ID != l.config.AcceptRollback) {
		return c.rollback
	}
	return nil
}

// unanchored warns of a vault with an anchor that is opened without it.
func (l *Ledger) unanchored(ctx context.Context) error {
	if l.config.Moving || l.config.Restoring {
		return nil
	}
	err := l.View(ctx, func(tx store.ReadTx) error {
		_, err := tx.Get(KindMeta, pointID)
		return err
	})
	switch {
	case err == nil:
		l.config.Log.Warn("the vault has an anchor, and is opened without it: a rollback is not noticed")
	case errors.Is(err, ErrNotFound), Unreadable(err): // it is damage of the anchor alone
		return nil
	}
	return err
}

// vacant returns an error for an empty store whose anchor is not empty: the whole store was lost.
func (l *Ledger) vacant(ctx context.Context) error {
	if l.config.Anchor == nil {
		return nil
	}
	text, err := l.loadAnchor(ctx)
	if err == nil && len(text) > 0 {
		err = fmt.Errorf("%w: the store is empty, and its anchor is not: restore the vault, or give a new one an anchor of its own", ErrRolledBack)
	}
	return err
}

// OpAcceptRollback is the operation of the write with which a vault goes on that was rolled back.
var OpAcceptRollback = Ends("vault.accept_rollback")

// Accept begins a line of points, when the vault is opened: the first one, or one after the
// rollback that Config.AcceptRollback names.
func (l *Ledger) Accept(ctx context.Context) error {
	if l.config.Anchor == nil {
		return nil
	}
	for range metaTries {
		c, err := l.compare(ctx)
		if err != nil {
			return err
		}
		if c.rollback != nil && c.rollback.ID != l.config.AcceptRollback {
			return c.rollback
		}
		if c.rollback == nil && c.row != nil {
			return nil
		}
		if err := l.begin(ctx, c); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return errRestless
}

// begin writes the first point of a line.
func (l *Ledger) begin(ctx context.Context, c *comparison) error {
	keys, digest := l.Box.Keys(), sha256.Sum256(c.text)
	next := &point{vault: keys.Vault, number: 1, generation: keys.Generation, at: Now(), line: uuid.New(), over: digest[:], sums: c.written()}
	for _, p := range []*point{c.stored, c.anchored} {
		if p != nil {
			next.number = max(next.number, p.number+1)
		}
	}
	version := uint64(1)
	if c.row != nil {
		version += c.row.Version
	}

	rec, whole := next.record(keys, version), l.In(uuid.Nil)
	put := func(tx store.Tx) error {
		tx.Put(rec)
		return nil
	}
	if c.rollback == nil {
		return whole.Update(ctx, opAnchor, put)
	}
	err := whole.Write(ctx, OpAcceptRollback, uuid.Nil, put)
	if err == nil {
		r := c.rollback
		l.config.Log.Warn("a rollback of the vault was accepted", "rollback", r.ID, "reason", r.Reason, "stored", r.Stored, "anchored", r.Anchored)
	}
	return err
}
