package ledger

import (
	"context"
	"fmt"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
)

// Snapshot calls fn with one state of the store, which it may read for as long as ctx lasts.
// It reports false if the store keeps none.
func (l *Ledger) Snapshot(ctx context.Context, fn func(store.ReadTx) error) (able bool, err error) {
	s, able := l.store.Store.(store.Snapshotter)
	if !able {
		return false, nil
	}
	return true, l.outcome(s.Snapshot(ctx, func(tx store.ReadTx) error {
		reads := checkedReadTx{s: &l.store}
		reads.begin(tx)
		return fn(reads)
	}))
}

// Watch is the method of store.Watcher. It reports false if the store does not have it.
func (l *Ledger) Watch(changing func([]store.Key) (changed func())) (stop func(), able bool) {
	w, able := l.store.Store.(store.Watcher)
	if !able {
		return nil, false
	}
	return w.Watch(changing), true
}

// KeyringRecord returns the record of the keyring, which a key of the vault opens.
func (l *Ledger) KeyringRecord(ctx context.Context) (*store.Record, error) {
	if _, err := l.loadMeta(ctx); err != nil {
		return nil, err
	}
	var rec *store.Record
	err := l.View(ctx, func(tx store.ReadTx) (err error) {
		rec, err = tx.Get(KindMeta, metaID)
		return err
	})
	if err != nil {
		return nil, err
	}
	k, err := OpenKeyring(ctx, *l.ring.Load(), rec)
	if err == nil && k.Keys.Vault != l.Box.Keys().Vault {
		err = errKeyringLost
	}
	return rec, err
}

// IsKeyring reports whether a record is that of the keyring.
func IsKeyring(r *store.Record) bool { return r.Kind == KindMeta && r.ID == metaID }

// A StoredKeyring holds the keys of a record.
type StoredKeyring struct {
	Keys *seal.Keys
	meta *meta
	kek  *KEK
}

// OpenKeyring opens the record of a keyring by a key of the ring.
func OpenKeyring(ctx context.Context, ring Ring, rec *store.Record) (*StoredKeyring, error) {
	m, err := parseMeta(rec)
	if err != nil {
		return nil, err
	}
	k := &StoredKeyring{meta: m, kek: ring.find(m.keyID)}
	if k.kek == nil {
		return nil, fmt.Errorf("%w: the vault needs key %q, not %v", ErrWrongKey, m.keyID, ring)
	}
	k.Keys, err = m.open(ctx, k.kek)
	return k, err
}

// Renewed returns the records of the keyring with a new term, under the same key-encryption
// key, and the key of a record that they replace: two vaults would count the seals of one
// term separately. A keyring without room for a term stays as it is. The records have no fence.
func (k *StoredKeyring) Renewed(ctx context.Context) (records []*store.Record, replaced store.Key, err error) {
	next := k.Keys.Next(Now(), seal.MaxTerms)
	count := next != nil
	switch {
	case count:
		next.Fence = nil
	case k.Keys.Fence == nil:
		return []*store.Record{k.meta.record()}, store.Key{}, nil
	default:
		next = k.Keys.Unfenced()
	}
	m := &meta{mode: k.meta.mode, account: k.meta.account, version: k.meta.version + 1}
	if err := m.seal(ctx, next, k.kek); err != nil {
		return nil, store.Key{}, err
	}
	if records = []*store.Record{m.record(), mark(next)}; count {
		records = append(records, countRecord(next, 0, 1))
	}
	return records, store.Key{Kind: KindMeta, ID: markID(k.Keys.Generation)}, nil
}

// Scrub is the method of store.Scrubber. It reports false if the store does not have it.
func (l *Ledger) Scrub(ctx context.Context) (able bool, err error) {
	s, able := l.store.Store.(store.Scrubber)
	if !able {
		return false, l.View(ctx, func(store.ReadTx) error { return nil })
	}
	return true, l.outcome(s.Scrub(ctx))
}

// Check is the method of store.Checker, in a transaction of its own. It reports false if the
// transactions of the store do not have it.
func (l *Ledger) Check(ctx context.Context, place []byte, limit int) (found []store.Disagreement, next []byte, able bool, err error) {
	if l.closed.Load() {
		return nil, nil, false, ErrClosed
	}
	err = l.outcome(l.store.Store.View(ctx, func(tx store.ReadTx) (err error) {
		var c store.Checker
		if c, able = tx.(store.Checker); able {
			found, next, err = c.Check(place, limit)
		}
		return err
	}))
	return found, next, able, err
}

// Repair is the method of store.Repairer. It reports false if the store does not have it.
func (l *Ledger) Repair(ctx context.Context, place []byte, limit int) (next []byte, able bool, err error) {
	if l.closed.Load() {
		return nil, false, ErrClosed
	}
	r, able := l.store.Store.(store.Repairer)
	if !able {
		return nil, false, l.View(ctx, func(store.ReadTx) error { return nil })
	}
	next, err = r.Repair(ctx, place, limit)
	return next, true, l.outcome(err)
}
