package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// ErrFrozen is returned by Load for a vault that was restored, and for a place into which one is
// being restored.
var ErrFrozen = errors.New("cardvault: vault is frozen")

// A Restoration marks a store into which a vault is restored, until Thaw removes it.
type Restoration struct {
	ID     uuid.UUID // random
	Backup uuid.UUID
	Chunks uint64 // of the backup, that are in the store
	Ended  bool   // the vault is whole

	// Deletes says that the deletions of the time after the backup have still to be repeated.
	Deletes bool

	// Vault is the vault that moves into the store. It is zero for a vault from a backup.
	Vault uuid.UUID

	version uint64 // of the record; 0: it is not stored
}

var restorationID = numbered(3, 0)

// RestorationOf returns the mark of a store, or nil.
func RestorationOf(tx store.ReadTx) (*Restoration, error) {
	rec, err := tx.Get(KindMeta, restorationID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &Restoration{version: rec.Version}
	return r, Decode(rec.Shown, r.fields)
}

func (r *Restoration) fields(f *tlv.Fields) {
	tlv.ID(f, 1, &r.ID)
	tlv.ID(f, 2, &r.Backup)
	tlv.Uint(f, 3, &r.Chunks)
	f.Bool(4, &r.Ended)
	f.Bool(5, &r.Deletes)
	tlv.ID(f, 6, &r.Vault)
}

// Next returns the record of the mark for its next Put. It conflicts if another restoration
// has put one meanwhile.
func (r *Restoration) Next() *store.Record {
	r.version++
	return &store.Record{Kind: KindMeta, ID: restorationID, Version: r.version, Shown: tlv.Encode(r.fields)}
}

// IsRestoration reports whether a record is the mark.
func IsRestoration(r *store.Record) bool { return r.Kind == KindMeta && r.ID == restorationID }

// frozen returns ErrFrozen for a vault that was restored and that Config.Thaw does not name.
func (l *Ledger) frozen(tx store.ReadTx) error {
	r, err := RestorationOf(tx)
	switch {
	case err != nil || r == nil:
		return err
	case !r.Ended && r.Vault != uuid.Nil:
		return fmt.Errorf("%w: a vault is being moved into the store, or that has failed: repeat the move", ErrFrozen)
	case !r.Ended:
		return fmt.Errorf("%w: a backup is being restored into the store, or that has failed: repeat Restore with the same backup", ErrFrozen)
	case r.Deletes && l.config.Restoring:
		return nil
	case r.Deletes:
		return fmt.Errorf("%w: the deletions after its backup have still to be repeated: repeat Restore with the same backup and the same ledger", ErrFrozen)
	case r.ID != l.config.Thaw && r.Vault != uuid.Nil:
		return fmt.Errorf("%w: the move into it has not ended: repeat it. If the former place is lost for good, set Options.Thaw to %v", ErrFrozen, r.ID)
	case r.ID != l.config.Thaw:
		return fmt.Errorf("%w: it was restored from a backup: make sure that the vault which was backed up works no more, and set Options.Thaw to %v", ErrFrozen, r.ID)
	}
	return nil
}

// Deleted ends the time in which only Config.Restoring opens the vault.
func (l *Ledger) Deleted(ctx context.Context) error {
	return l.In(uuid.Nil).Update(ctx, Step, func(tx store.Tx) error {
		r, err := RestorationOf(tx)
		if err != nil || r == nil {
			return err
		}
		r.Deletes = false
		tx.Put(r.Next())
		return nil
	})
}

// OpThaw is the operation of the write after which a restored vault is open to all.
var OpThaw = Ends("vault.thaw")

// Thaw removes the mark of a vault that Config.Thaw names.
func (l *Ledger) Thaw(ctx context.Context) error {
	if l.config.Thaw == uuid.Nil {
		return nil
	}
	whole := l.In(uuid.Nil)
	var r *Restoration
	err := whole.View(ctx, func(tx store.ReadTx) (err error) {
		r, err = RestorationOf(tx)
		return err
	})
	if err != nil || r == nil {
		return err
	}

	err = whole.Write(ctx, OpThaw, uuid.Nil, func(tx store.Tx) error {
		// A copy that has begun meanwhile makes the place incomplete.
		if is, err := RestorationOf(tx); err != nil {
			return err
		} else if is != nil && is.version != r.version {
			return store.ErrConflict
		}
		tx.Delete(KindMeta, restorationID)
		return nil
	})
	if err == nil {
		l.config.Log.Warn("a restored vault was thawed", "restoration", r.ID, "backup", r.Backup)
	}
	return err
}
