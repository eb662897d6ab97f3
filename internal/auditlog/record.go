package auditlog

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"encoding/json"
	"slices"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	tagLane = iota + 1
	tagFirst
	tagSequence
	tagAt
	tagKey
	tagName
	tagAddress
	tagRequest
	tagOperation
	tagObject
	tagPurpose
	tagDetail
	tagOutcome
	tagError
	tagCalls
	tagMAC
)

// appendRecord appends what a record seals. Its account is in its columns, and its time in its row
// key unless it was noted before.
func appendRecord(b []byte, r *audit.Record, first uint64, row uuid.UUID) []byte {
	b = tlv.Append(b, tagLane, r.Lane[:])
	b = tlv.AppendUint(b, tagFirst, first)
	b = tlv.AppendUint(b, tagSequence, r.Sequence)
	if !r.At.Equal(rowkey.Time(row)) {
		b = tlv.AppendTime(b, tagAt, r.At)
	}

	for _, id := range [...]struct {
		tag byte
		id  uuid.UUID
	}{{tagKey, r.Actor.KeyID}, {tagObject, r.ObjectID}} {
		if id.id != uuid.Nil {
			b = tlv.Append(b, id.tag, id.id[:])
		}
	}
	for _, t := range [...]struct {
		tag  byte
		text string
	}{
		{tagName, r.Actor.Name}, {tagAddress, r.Actor.Address}, {tagRequest, r.Actor.RequestID},
		{tagOperation, r.Operation}, {tagPurpose, r.Purpose}, {tagDetail, r.Detail}, {tagError, r.Error},
	} {
		if t.text != "" {
			b = tlv.Append(b, t.tag, t.text)
		}
	}
	b = tlv.AppendUint(b, tagOutcome, uint64(r.Outcome))
	if r.Calls != 1 {
		b = tlv.AppendUint(b, tagCalls, r.Calls)
	}
	return tlv.Append(b, tagMAC, r.MAC[:])
}

// An opened record was read from the store.
type opened struct {
	audit.Record
	first uint64 // of its segment
	row   uuid.UUID
}

// open opens a stored record, and verifies its MAC.
func (l *Log) open(ctx context.Context, rows ledger.Account, rec *store.Record) (*opened, error) {
	r, err := rows.Read(ctx, rec)
	if err != nil {
		return nil, err
	}

	o := &opened{row: rec.ID}
	o.At, o.AccountID, o.Calls = rowkey.Time(rec.ID), rec.Account, 1
	texts := map[byte]*string{
		tagName: &o.Actor.Name, tagAddress: &o.Actor.Address, tagRequest: &o.Actor.RequestID,
		tagOperation: &o.Operation, tagPurpose: &o.Purpose, tagDetail: &o.Detail, tagError: &o.Error,
	}

	for r.Next() {
		switch r.Tag {
		case tagLane:
			copy(o.Lane[:], r.Value)
		case tagFirst:
			o.first = r.Uint()
		case tagSequence:
			o.Sequence = r.Uint()
		case tagAt:
			o.At = r.Time()
		case tagKey:
			copy(o.Actor.KeyID[:], r.Value)
		case tagObject:
			copy(o.ObjectID[:], r.Value)
		case tagOutcome:
			o.Outcome = audit.Outcome(r.Uint())
		case tagCalls:
			o.Calls = r.Uint()
		case tagMAC:
			copy(o.MAC[:], r.Value)
		default:
			if text := texts[r.Tag]; text != nil {
				*text = string(r.Value)
			}
		}
	}
	return o, l.Ledger.Named(rec, ledger.ReadError(r))
}

// A promised is what a promise seals.
type promised struct {
	lane  uuid.UUID
	first uint64
}

func (p *promised) encode() []byte {
	return tlv.AppendUint(tlv.Append(nil, tagLane, p.lane[:]), tagFirst, p.first)
}

func (l *Log) openPromise(ctx context.Context, rec *store.Record) (*promised, error) {
	r, err := l.Ledger.Read(ctx, rec)
	if err != nil {
		return nil, err
	}
	p := new(promised)
	for r.Next() {
		switch r.Tag {
		case tagLane:
			copy(p.lane[:], r.Value)
		case tagFirst:
			p.first = r.Uint()
		}
	}
	return p, l.Ledger.Named(rec, ledger.ReadError(r))
}

// A chain is the end of the chain of an account.
type chain struct {
	number uint64
	hash   [32]byte
	erased uint64 // the last checkpoint that was erased because of its age
	swept  uint64 // the last checkpoint without a trace in the store

	// latest is the latest time of a checkpoint, and late by how much that was later than the
	// first record of one, at most. So no checkpoint that is left has a record from before the
	// time of the last erased one less late.
	latest time.Time
	late   time.Duration

	// signers are the keys that have signed checkpoints, from which one on. A chain from
	// before that was kept has none: the first key has signed it.
	signers []signer

	record *store.Record // as it was read, opened
}

// A signer is a key that signs the checkpoints of a chain from a number on.
type signer struct {
	term  uint32
	first uint64
}

const (
	tagNumber = iota + 1
	tagHash
	tagErased
	tagSwept
	tagSigner // a term in four bytes, and a number
	tagLatest
	tagLate // microseconds
)

func (c *chain) encode() []byte {
	b := tlv.AppendUint(nil, tagNumber, c.number)
	b = tlv.Append(b, tagHash, c.hash[:])
	b = tlv.AppendUint(b, tagErased, c.erased)
	b = tlv.AppendUint(b, tagSwept, c.swept)
	b = tlv.AppendTime(b, tagLatest, c.latest)
	b = tlv.AppendUint(b, tagLate, uint64(c.late.Microseconds()))
	for _, s := range c.signers {
		b = tlv.Append(b, tagSigner, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, s.term), s.first))
	}
	return b
}

// signedBy notes the key that signs the next checkpoint.
func (c *chain) signedBy(term uint32) {
	if n := len(c.signers); n == 0 || c.signers[n-1].term != term {
		c.signers = append(c.signers, signer{term, c.number + 1})
	}
}

// dated notes the times of the next checkpoint.
func (c *chain) dated(k *kept) {
	if k.At.After(c.latest) {
		c.latest = k.At
	}
	if k.low != uuid.Nil {
		c.late = max(c.late, c.latest.Sub(rowkey.Time(k.low)))
	}
}

// keys returns the public keys of the vault, each with the first checkpoint that it signs.
func (c *chain) keys(k *seal.Keys) []audit.Signer {
	all := make([]audit.Signer, len(k.Audits))
	for i, public := range k.AuditPublic() {
		all[i] = audit.Signer{PublicKey: [ed25519.PublicKeySize]byte(public), First: c.number + 1}
		at := slices.IndexFunc(c.signers, func(s signer) bool { return s.term >= k.Audits[i].Number })
		switch {
		case i == 0:
			all[i].First = 1
		case at >= 0: // a key that has signed nothing ends where it begins
			all[i].First = c.signers[at].first
		}
	}
	return all
}

// chainID returns the row key of the chain of an account.
func chainID(account uuid.UUID) uuid.UUID {
	if account == uuid.Nil {
		return uuid.UUID{15: 1}
	}
	return account
}

// readChain returns the chain of an account, a new one if it has none. A lost one is begun anew:
// see lostChain.
func (l *Log) readChain(ctx context.Context, rows ledger.Account) (*chain, error) {
	rec, err := l.get(ctx, rows, l.Kinds.Chain, chainID(rows.ID))
	if err != nil {
		return nil, l.lostChain(ctx, rows, nil, err)
	}
	return l.whole(ctx, rows, rec)
}

// whole opens the record of a chain. If it is damaged, or missing while there are checkpoints, the
// chain is lost.
func (l *Log) whole(ctx context.Context, rows ledger.Account, rec *store.Record) (*chain, error) {
	c, err := l.openChain(ctx, rows, rec)
	if err == nil && rec == nil {
		var number uint64
		if number, err = l.present(ctx, rows, 0); number > 0 {
			err = l.Ledger.Named(c.record, ledger.ErrDamaged)
		}
	}
	return c, l.lostChain(ctx, rows, rec, err)
}

// openChain opens the record of a chain. A nil one is that of a new chain.
func (l *Log) openChain(ctx context.Context, rows ledger.Account, rec *store.Record) (*chain, error) {
	c := new(chain)
	if rec == nil {
		c.record = rows.NewRecord(l.Kinds.Chain, chainID(rows.ID))
		c.record.Class, c.record.Version = 0, 0
		return c, nil
	}
	r, err := rows.Read(ctx, rec)
	if err != nil {
		return nil, err
	}

	for r.Next() {
		switch r.Tag {
		case tagNumber:
			c.number = r.Uint()
		case tagHash:
			copy(c.hash[:], r.Value)
		case tagErased:
			c.erased = r.Uint()
		case tagSwept:
			c.swept = r.Uint()
		case tagLatest:
			c.latest = r.Time()
		case tagLate:
			c.late = time.Duration(r.Uint()) * time.Microsecond
		case tagSigner:
			if len(r.Value) != 12 {
				return nil, l.Ledger.Named(rec, ledger.ErrDamaged)
			}
			c.signers = append(c.signers, signer{binary.BigEndian.Uint32(r.Value), binary.BigEndian.Uint64(r.Value[4:])})
		}
	}
	c.record = rec
	return c, l.Ledger.Named(rec, ledger.ReadError(r))
}

// next returns the record of the chain as it is written next, due at a time.
func (c *chain) next(rows ledger.Account, due time.Time) (*store.Record, error) {
	r := *c.record
	r.Version++
	r.Due = due
	return &r, rows.SealShown(&r, c.encode())
}

// get returns a record by its row key, nil if it is absent.
func (l *Log) get(ctx context.Context, rows ledger.Account, kind store.Kind, row uuid.UUID) (rec *store.Record, err error) {
	err = rows.View(ctx, func(tx store.ReadTx) (err error) {
		rec, err = ledger.Seek(tx, kind, row)
		if absent(err) {
			rec, err = nil, nil
		}
		return err
	})
	return rec, l.Ledger.Named(&store.Record{Kind: kind, ID: row, Account: rows.ID}, err)
}

// checkpointID returns the row key of a checkpoint. An account's lie together, in
// their order.
func checkpointID(account uuid.UUID, number uint64) uuid.UUID {
	id := chainID(account)
	if account == uuid.Nil {
		id = uuid.UUID{}
	}
	for i := range 8 {
		id[15-i] = byte(number >> (8 * i))
	}
	return id
}

// present returns the number of the first stored checkpoint of an account above a number, or 0.
// The checkpoint may be damaged.
func (l *Log) present(ctx context.Context, rows ledger.Account, above uint64) (number uint64, err error) {
	found, err := l.scan(ctx, rows, above, 1)
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return numberOf(found[0]), nil
}

// scan returns the next stored checkpoints of an account above a number. They may be damaged.
func (l *Log) scan(ctx context.Context, rows ledger.Account, above uint64, limit int) (found []*store.Record, err error) {
	after := checkpointID(rows.ID, above)
	err = rows.View(ctx, func(tx store.ReadTx) (err error) {
		found, err = tx.Scan(l.Kinds.Checkpoint, after, limit)
		if len(found) > 0 && ledger.Unreadable(err) {
			err = nil
		}
		return err
	})
	return slices.DeleteFunc(found, func(r *store.Record) bool { return !bytes.Equal(r.ID[:8], after[:8]) }), err
}

func numberOf(checkpoint *store.Record) uint64 { return binary.BigEndian.Uint64(checkpoint.ID[8:]) }

// readableOf returns the checkpoints of some records that can be read.
func (l *Log) readableOf(ctx context.Context, rows ledger.Account, found []*store.Record) (all []*kept, err error) {
	for _, rec := range found {
		k, err := l.openCheckpoint(ctx, rows, rec)
		switch {
		case err == nil && k.Number == numberOf(rec):
			all = append(all, k)
		case err != nil && !ledger.Unreadable(err):
			return nil, err
		}
	}
	return all, nil
}

const (
	tagStatement = iota + 1
	tagLow
	tagHigh
)

// A kept checkpoint is one with the bounds of the row keys of its records.
type kept struct {
	audit.Checkpoint
	low, high uuid.UUID
}

// record returns the record of a checkpoint.
func (k *kept) record(l *Log, rows ledger.Account) (*store.Record, error) {
	text, err := json.Marshal(&k.Checkpoint)
	if err != nil {
		return nil, err
	}
	r := rows.NewRecord(l.Kinds.Checkpoint, checkpointID(rows.ID, k.Number))
	r.Class = 0
	b := tlv.Append(make([]byte, 0, len(text)+64), tagStatement, text)
	b = tlv.Append(b, tagLow, k.low[:])
	b = tlv.Append(b, tagHigh, k.high[:])
	return r, rows.SealShown(r, b)
}

// readCheckpoint returns a checkpoint of an account, nil if it is absent.
func (l *Log) readCheckpoint(ctx context.Context, rows ledger.Account, number uint64) (*kept, error) {
	rec, err := l.get(ctx, rows, l.Kinds.Checkpoint, checkpointID(rows.ID, number))
	if err != nil || rec == nil {
		return nil, err
	}
	return l.openCheckpoint(ctx, rows, rec)
}

func (l *Log) openCheckpoint(ctx context.Context, rows ledger.Account, rec *store.Record) (*kept, error) {
	r, err := rows.Read(ctx, rec)
	if err != nil {
		return nil, err
	}

	k := new(kept)
	for r.Next() {
		switch r.Tag {
		case tagStatement:
			if json.Unmarshal(r.Value, &k.Checkpoint) != nil {
				return nil, l.Ledger.Named(rec, ledger.ErrDamaged)
			}
		case tagLow:
			copy(k.low[:], r.Value)
		case tagHigh:
			copy(k.high[:], r.Value)
		}
	}
	return k, l.Ledger.Named(rec, ledger.ReadError(r))
}
