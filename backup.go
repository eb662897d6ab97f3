package cardvault

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/cardvault/cardvault/internal/adapter"
	"github.com/cardvault/cardvault/internal/backup"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A BackupProgress reports how far [Vault.Backup] or [Restore] has come.
type BackupProgress struct {
	Records int64 // in the stream so far; see BackupReport
	Bytes   int64 // of the stream so far
}

// A BackupReport describes a backup. Records that changed while it was made are in its stream
// again, and count again.
type BackupReport struct {
	ID      uuid.UUID // random
	At      time.Time // whose records it has
	Records int64     // in the stream
	Deleted int64     // in the stream: records that were deleted while it was made
	Damaged int64     // that the store could not read, and that are missing
	Bytes   int64     // of the stream
	Chunks  uint64    // parts of the stream
	Terms   []uint32  // of the keys under which its records are sealed, see [Vault.KeyReport]
}

// A RestoreReport describes a restored vault.
type RestoreReport struct {
	ID     uuid.UUID // for [Options.Thaw]
	Backup BackupReport
}

// BackupOptions are the optional parts of [Vault.Backup] and [Restore].
type BackupOptions struct {
	// Progress is called after each part of the stream, of a mebibyte or so, and should return
	// soon. If nil, nothing is reported.
	Progress func(BackupProgress)
}

func (o *BackupOptions) progress() func(backup.Progress) {
	if o == nil || o.Progress == nil {
		return nil
	}
	return func(p backup.Progress) { o.Progress(BackupProgress(p)) }
}

// Backup writes all records of the vault to w, which may be slow, while the vault is in use.
// The records are those of one instant, BackupReport.At: on a store that is a
// [store.Snapshotter], such as pgstore, soon after Backup was called, else when Backup is about
// to end. Records stay sealed as they are stored. The stream is authenticated, and [Restore]
// verifies it. It has the wrapped keys of the vault, and never the key-encryption key. It shows
// who has it as much as the store shows: numbers and times of records, but no card.
//
// Several backups may be made at a time. opts may be nil.
//
// Errors: [ErrUnavailable] if records change faster than w takes the stream, ErrNotEnabled for a
// store that is neither a Snapshotter nor a [store.Watcher], or one of w. Then the stream is
// incomplete. ErrDamaged with a report is returned for a complete stream, in which records
// are missing because the store cannot read them.
func (v *Vault) Backup(ctx context.Context, w io.Writer, opts *BackupOptions) (_ *BackupReport, err error) {
	defer v.doing(ctx, "back up", &err)
	if adapter.IsNil(w) {
		return nil, required("Writer")
	}
	if err := v.whole().rows.Note(ctx, opBackup, uuid.Nil, nil); err != nil {
		return nil, err
	}
	report, err := backup.Make(ctx, backup.Config{Ledger: v.ledger, Progress: opts.progress()}, w)
	if errors.Is(err, backup.ErrStore) {
		err = notEnabled("a store.Store that is a store.Snapshotter or a store.Watcher")
	}
	v.whole().rows.Logged(ctx, opBackup, uuid.Nil, err)
	return (*BackupReport)(report), err
}

// Restore writes the backup that r reads into the empty store s, of any sort that is able to
// (see [store.Loader]): so a vault moves from one store to another. Each part is verified
// before it is written. keys has to have the key-encryption key of the time of the backup.
//
// The restored vault has a new term of its keys and is frozen: Open and New return ErrFrozen
// until [Options.Thaw] is the ID of the report. A vault and its restored twin must not both
// work: each would deliver the events, provision the network tokens and count the card
// numbers of the other. What was deleted, revoked or changed after BackupReport.At is there
// again as it was.
//
// After an error the store is not a vault. Repeat Restore with the same backup, which goes on
// where it has ended, or begin with another empty store. opts may be nil.
//
// Errors: ErrNotEmpty, ErrWrongKey, ErrFormat, ErrDamaged for a backup that is cut off or was
// changed, with the number of the part, or one of the store or of r.
func Restore(ctx context.Context, s store.Store, keys *Keyring, r io.Reader, opts *BackupOptions) (_ *RestoreReport, err error) {
	defer doing("restore", &err)
	switch {
	case adapter.IsNil(s):
		return nil, required("Store")
	case adapter.IsNil(r):
		return nil, required("Reader")
	}
	if err := keys.check(); err != nil {
		return nil, err
	}
	restored, err := backup.Restore(ctx, s, keys.ring(), r, opts.progress())
	switch {
	case errors.Is(err, backup.ErrNoLoader):
		return nil, notEnabled("a store.Store whose Tx is a store.Loader")
	case err != nil:
		return nil, err
	}
	return &RestoreReport{restored.ID, BackupReport(restored.Report)}, nil
}

// RestoreDir is Restore into the folder dir, for [Open]. The last element of dir is made if it
// is missing.
func RestoreDir(ctx context.Context, dir string, keys *Keyring, r io.Reader, opts *BackupOptions) (_ *RestoreReport, err error) {
	defer doing("restore", &err)
	s, err := keys.openDir(ctx, dir, nil)
	if err != nil {
		return nil, err
	}
	report, err := Restore(ctx, s, keys, r, opts)
	return report, errors.Join(err, ledger.Translate(s.Close()))
}
