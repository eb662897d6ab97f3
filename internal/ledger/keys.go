package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// OpRotateKeys is the operation of writes to the keyring and to counts of seals.
var OpRotateKeys = Ends("keys.rotate")

// mostTerms leaves room for writing a lost keyring anew.
const mostTerms = seal.MaxTerms - 20

// RotateKeys starts a new term: see cardvault.Vault.RotateKeys. It calls also in its
// transaction. The key-encryption key stays the one that wrapped the keyring last.
func (l *Ledger) RotateKeys(ctx context.Context, also func(store.Tx) error) error {
	return l.alter(ctx, &alteration{
		op: OpRotateKeys, mends: true,
		next: func(k *seal.Keys, m *meta) (*seal.Keys, error) {
			if m.lost {
				return roomFor(seal.MaxTerms, k, (*seal.Keys).Next)
			}
			return roomFor(mostTerms, k, (*seal.Keys).Next)
		},
		also: func(tx store.Tx, _, next *seal.Keys) error {
			tx.Put(countRecord(next, 0, 1))
			return cmp.Or(l.config.Rotated(tx), also(tx))
		},
	})
}

// roomFor returns what next makes of keys, or an error if they are as many as a keyring may hold.
func roomFor(most int, k *seal.Keys, next func(k *seal.Keys, at time.Time, room int) *seal.Keys) (*seal.Keys, error) {
	keys := next(k, Now(), most)
	if keys == nil {
		return nil, fmt.Errorf("cardvault: the vault has the %d keys that a keyring holds: another term has no room", most)
	}
	return keys, nil
}

// OpRotateAudit is the operation of rotations of the audit key.
var OpRotateAudit = Ends("keys.rotate_audit")

// RotateAudit starts a new term of the audit key, and destroys the former key. It calls also
// in its transaction.
func (l *Ledger) RotateAudit(ctx context.Context, also func(store.Tx) error) error {
	return l.alter(ctx, &alteration{
		op: OpRotateAudit,
		next: func(k *seal.Keys, _ *meta) (*seal.Keys, error) {
			return roomFor(mostTerms, k, (*seal.Keys).NextAudit)
		},
		also: func(tx store.Tx, _, _ *seal.Keys) error { return also(tx) },
	})
}

// OpRotateFingerprint is the operation of each step of a rotation of the fingerprint key.
var OpRotateFingerprint = Ends("keys.rotate_fingerprint")

// ErrRotating is returned for a series of keys whose last rotation is under way.
var ErrRotating = errors.New("cardvault: a rotation of these keys is under way")

// RotateFingerprint begins a rotation of the fingerprint key. It calls also in its transaction.
func (l *Ledger) RotateFingerprint(ctx context.Context, also func(store.Tx) error) error {
	return fingerprints.rotate(ctx, l, also)
}

// AdvanceFingerprint takes the next step of a rotation of the fingerprint key. It calls also in
// its transaction. It returns store.ErrConflict if no rotation is under way any more.
func (l *Ledger) AdvanceFingerprint(ctx context.Context, also func(store.Tx) error) error {
	return fingerprints.advance(ctx, l, also)
}

// OpRotateLookup is the operation of each step of a rotation of the lookup key.
var OpRotateLookup = Ends("keys.rotate_lookup")

// RotateLookup begins a rotation of the lookup key, as RotateFingerprint does.
func (l *Ledger) RotateLookup(ctx context.Context, also func(store.Tx) error) error {
	return lookups.rotate(ctx, l, also)
}

// AdvanceLookup takes the next step of a rotation of the lookup key, as AdvanceFingerprint does.
func (l *Ledger) AdvanceLookup(ctx context.Context, also func(store.Tx) error) error {
	return lookups.advance(ctx, l, also)
}

// hashing is a series of keys of hashes, which is rotated in steps.
type hashing struct {
	op       Operation
	rotating func(*seal.Keys) bool
	next     func(k *seal.Keys, at time.Time, room int) *seal.Keys
	step     func(k *seal.Keys, at time.Time) *seal.Keys
}

var (
	fingerprints = hashing{
		OpRotateFingerprint, func(k *seal.Keys) bool { return k.Fingerprints.Rotating() },
		(*seal.Keys).NextFingerprint, (*seal.Keys).AdvanceFingerprint,
	}
	lookups = hashing{OpRotateLookup, (*seal.Keys).LookupRotating, (*seal.Keys).NextLookup, (*seal.Keys).AdvanceLookup}
)

func (h *hashing) rotate(ctx context.Context, l *Ledger, also func(store.Tx) error) error {
	return l.alter(ctx, &alteration{
		op: h.op,
		next: func(k *seal.Keys, _ *meta) (*seal.Keys, error) {
			if h.rotating(k) {
				return nil, ErrRotating
			}
			return roomFor(mostTerms, k, h.next)
		},
		also: func(tx store.Tx, former, next *seal.Keys) error {
			return cmp.Or(moveCounts(tx, former, next), l.config.Rotated(tx), also(tx))
		},
	})
}

func (h *hashing) advance(ctx context.Context, l *Ledger, also func(store.Tx) error) error {
	return l.alter(ctx, &alteration{
		op: h.op,
		next: func(k *seal.Keys, _ *meta) (*seal.Keys, error) {
			if !h.rotating(k) {
				return nil, store.ErrConflict
			}
			return h.step(k, Now()), nil
		},
		also: func(tx store.Tx, former, next *seal.Keys) error {
			return cmp.Or(moveCounts(tx, former, next), also(tx))
		},
	})
}

// Seals are granted in blocks, so that counting them costs no write each. A crash loses the
// rest of a block: never too few are counted. The limits follow NIST SP 800-38D for random
// nonces, with half of them as reserve. They count all keys derived from a master key
// together.
const (
	grantBlock  = 1 << 16
	rotateAfter = 1 << 31
	sealLimit   = 1 << 32
)

// grant allows the box more seals, and starts a new term in time.
func (l *Ledger) grant() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	whole := l.In(uuid.Nil)

	var last uuid.UUID // of the count, at the last try
	var most uint64
	for same := 0; same < metaTries; {
		keys := l.Box.Keys()
		id := countID(keys)

		var rec *store.Record
		err := l.View(ctx, func(tx store.ReadTx) (err error) {
			rec, err = tx.Get(KindMeta, id)
			return err
		})
		if errors.Is(err, ErrNotFound) {
			if err = l.Reload(ctx); err == nil && l.Box.Keys() == keys {
				err = errCount
			}
			if same++; err == nil { // the term was closed
				continue
			}
		}
		if err != nil {
			return err
		}

		used, err := readCount(keys, rec)
		if err != nil {
			return err
		}
		if same++; id != last || used > most { // another process was faster
			same, last, most = 1, id, used
		}

		if used >= rotateAfter {
			err := l.RotateKeys(unaudited(ctx), func(store.Tx) error { return nil }) // a record would need a seal
			if err == nil {
				_ = whole.Note(context.Background(), OpRotateKeys, uuid.Nil, nil) // no caller did it; a full log is logged
				continue
			}
			l.config.Log.Error("starting a new key term failed", "error", err)
		}
		if used > sealLimit-grantBlock {
			return seal.ErrExhausted
		}

		next := countRecord(keys, used+grantBlock, rec.Version+1)
		err = whole.Update(ctx, OpRotateKeys, func(tx store.Tx) error {
			tx.Put(next)
			return nil
		})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil {
			l.Box.Grant(keys, grantBlock)
		}
		return err
	}
	return errCount
}

// errCount is returned when it is not known how much the present term has sealed.
var errCount = fmt.Errorf("%w: count of seals cannot be read: RotateKeys starts a new one", ErrDamaged)

// countID is the id of the record that counts the seals of the active term.
func countID(k *seal.Keys) uuid.UUID { return countOf(k, k.Masters.Active().Number) }

func countRecord(k *seal.Keys, count uint64, version uint64) *store.Record {
	term := k.Masters.Active().Number
	b := tlv.AppendUint(nil, 1, count)
	b = tlv.Append(b, 2, k.CountMAC(term, count))
	return &store.Record{Kind: KindMeta, ID: countID(k), Version: version, Shown: b}
}

func readCount(k *seal.Keys, rec *store.Record) (uint64, error) {
	var count uint64
	var mac []byte
	r := tlv.Read(rec.Shown)
	for r.Next() {
		switch r.Tag {
		case 1:
			count = r.Uint()
		case 2:
			mac = r.Value
		}
	}
	if !k.ValidCount(k.Masters.Active().Number, count, mac) {
		return 0, errCount
	}
	return count, nil
}
