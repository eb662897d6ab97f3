package cardvault

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/adapter"
	"github.com/cardvault/cardvault/internal/auditlog"
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

	// Since is the ID of the base of an increment, zero for a full backup. Unchanged counts the
	// records that the base has, or a backup before it, and the increment leaves out.
	Since     uuid.UUID
	Unchanged int64

	Bytes  int64    // of the stream
	Chunks uint64   // parts of the stream
	Terms  []uint32 // of the keys under which its records are sealed, see [Vault.KeyReport]

	// Unrecorded says that the audit log has no record of the backup: the record could not be
	// stored, and the backup was made all the same. False without an audit log, and after Restore.
	Unrecorded bool
}

// A RestoreReport describes a restored vault.
type RestoreReport struct {
	ID     uuid.UUID // for [Options.Thaw]
	Backup BackupReport

	// Bases describes the earlier backups of a chain, in their order: Backup is then the last of
	// RestoreOptions.Increments.
	Bases []BackupReport

	// Deleted is the number of objects that were deleted again: see [RestoreOptions.Ledger].
	// Lost counts the other calls after the backup by their operations in the ledger, such as
	// "token.import". Both are zero without a ledger.
	Deleted int64
	Lost    map[string]int64

	// NotInLedger are the accounts without a checkpoint in the ledger and in the backup. They have
	// had nothing to record, or their part of the ledger is lost, and with it their deletions.
	NotInLedger []uuid.UUID
}

// BackupOptions are the optional parts of [Vault.Backup].
type BackupOptions struct {
	// Progress is called after each part of the stream, of a mebibyte or so, and should return
	// soon. If nil, nothing is reported.
	Progress func(BackupProgress)

	// Since is the manifest of an earlier backup of the vault. The new backup is then an
	// increment, which has only the records of changed groups: see [RestoreOptions.Increments]. It is
	// read twice. If nil, the backup is full.
	Since io.ReadSeeker

	// Manifest takes the manifest of this backup, for Since of the next one: the hashes of its
	// records in groups of about eight, in a fortieth of the size of a full backup. Only a whole
	// backup has a whole manifest, and an incomplete one is refused. If nil, none is written.
	Manifest io.Writer
}

// RestoreOptions are the optional parts of [Restore].
type RestoreOptions struct {
	Progress func(BackupProgress) // see BackupOptions

	// Increments are the backups since, in their order: each was made with the manifest of the one
	// before it as BackupOptions.Since. The vault is restored as the last one has it, and keys has
	// to have the key-encryption key of that time alone. If nil, the backup is restored alone.
	Increments []io.Reader

	// Ledger names the deletions after the backup. They are repeated before the vault can be
	// thawed. If nil, the objects are there again.
	Ledger *DeletionLedger
}

// A DeletionLedger is the audit log of a vault, from the time of a backup or before it. Tokens,
// API keys and webhooks whose deletion it has are deleted again, and accounts closed, frozen or thawed.
type DeletionLedger struct {
	// Exports are of [Vault.ExportAudit] or [AuditOptions.Ledger]: for each account of the backup
	// one, or several that follow each other without a gap, in any order. An account without a
	// checkpoint in the backup and in Kept needs none: see RestoreReport.NotInLedger. They are
	// read four times. Calls that two of them have count twice in RestoreReport.Lost.
	Exports []io.ReadSeeker

	// PublicKeys are the audit keys that began after the backup: see [Vault.AuditPublicKeys].
	// The former ones are in the backup.
	PublicKeys []ed25519.PublicKey

	// Kept are checkpoints of [AuditOptions.Sink], which prove that no export ends too soon.
	Kept []*audit.Checkpoint

	// Known are gaps that [audit.Verify] has reported of the exports, and that were looked into.
	// An export with any other [audit.Break] is refused: a deletion whose proof is missing there
	// is not repeated.
	Known []audit.Gap
}

func reported(to func(BackupProgress)) func(backup.Progress) {
	if to == nil {
		return nil
	}
	return func(p backup.Progress) { to(BackupProgress(p)) }
}

// Backup writes all records of the vault to w, which may be slow, while the vault is in use.
// The records are those of one instant, BackupReport.At: on a store that is a
// [store.Snapshotter], such as pgstore, soon after Backup was called, else when Backup is about
// to end. Records stay sealed as they are stored. The stream is authenticated, and [Restore]
// verifies it. It has the wrapped keys of the vault, and never the key-encryption key. It shows
// who has it as much as the store shows: numbers and times of records, but no card.
//
// Several backups may be made at a time. The audit log has each before its first byte. Only if the
// store is damaged or full, a backup goes on without that record, also with [AuditRefuse]: the
// report and the error log say so, and the audit log counts it as soon as it can. opts may be nil.
//
// Errors: [ErrUnavailable] without that record for another reason, or if records change faster
// than w takes the stream; ErrNotEnabled for a store that is neither a Snapshotter nor a
// [store.Watcher]; ErrDamaged or ErrChain for [BackupOptions.Since]; or one of w. Then the stream is
// incomplete. ErrDamaged with a report is returned for a complete stream, in which records are
// missing because the store cannot read them.
func (v *Vault) Backup(ctx context.Context, w io.Writer, opts *BackupOptions) (_ *BackupReport, err error) {
	defer v.whole().doing(ctx, "back up", &err)
	if adapter.IsNil(w) {
		return nil, required("Writer")
	}

	// Damage and lack of room do not pass by themselves, and a backup is the way out of both.
	unrecorded, err := v.whole().rows.NoteFirst(ctx, opBackup, uuid.Nil)
	switch {
	case errors.Is(err, ErrDamaged), errors.Is(err, ErrStorageFull):
		v.log.Error("a backup is made without its record in the audit log, which cannot be stored", "error", err)
	case err != nil:
		return nil, err
	}
	if opts == nil {
		opts = new(BackupOptions)
	}
	report, err := backup.Make(ctx, backup.Config{Ledger: v.ledger, Progress: reported(opts.Progress), Since: opts.Since, Manifest: opts.Manifest}, w)
	if report != nil {
		report.Unrecorded = unrecorded
	}
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
// numbers of the other. Changes after BackupReport.At are undone, and so are deletions and
// revocations, without [RestoreOptions.Ledger].
//
// After an error the store is not a vault that opens. Repeat Restore with the same backups and
// ledger, which goes on where it has ended, or begin with another empty store. opts may be nil.
//
// Errors: ErrNotEmpty, ErrWrongKey, ErrFormat, ErrChain, ErrDamaged for a backup that is cut off or
// was changed, with the number of the part, and for a ledger with a [*audit.VerifyError] or with a
// gap to the backup; or an error of the store, of r or of an export.
func Restore(ctx context.Context, s store.Store, keys *Keyring, r io.Reader, opts *RestoreOptions) (_ *RestoreReport, err error) {
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
	if opts == nil {
		opts = new(RestoreOptions)
	}
	for i, r := range opts.Increments {
		if adapter.IsNil(r) {
			return nil, required(fmt.Sprintf("Increments[%d]", i))
		}
	}

	restored, err := backup.Restore(ctx, s, keys.ring(), append([]io.Reader{r}, opts.Increments...), opts.Ledger != nil, reported(opts.Progress))
	switch {
	case errors.Is(err, backup.ErrNoLoader):
		return nil, notEnabled("a store.Store whose Tx is a store.Loader")
	case err != nil:
		return nil, err
	}

	report := &RestoreReport{ID: restored.ID, Backup: BackupReport(restored.Report)}
	for _, b := range restored.Bases {
		report.Bases = append(report.Bases, BackupReport(b))
	}
	if opts.Ledger != nil {
		err = report.deleteAgain(ctx, s, keys, opts.Ledger)
	}
	if err != nil {
		return nil, err
	}
	return report, nil
}

// deleteAgain deletes what the ledger says in a restored vault. The vault records nothing
// meanwhile, so that its audit log stays as it was: the ledger continues it.
func (r *RestoreReport) deleteAgain(ctx context.Context, s store.Store, keys *Keyring, l *DeletionLedger) (err error) {
	v, err := newVault(ctx, s, keys, &Options{Mode: Live}, true)
	if errors.Is(err, ErrWrongMode) {
		v, err = newVault(ctx, s, keys, &Options{Mode: Sandbox}, true)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()

	log := auditlog.New(auditlog.Config{Ledger: v.ledger, Log: v.log, Kinds: auditKinds})
	d := &backup.Deleter{
		Exports: l.Exports, PublicKeys: append(v.ledger.Box.Keys().AuditPublic(), l.PublicKeys...), Kept: l.Kept, Known: l.Known, At: r.Backup.At,
		Last: func(ctx context.Context, account uuid.UUID) (*audit.Checkpoint, error) {
			return log.Last(ctx, v.ledger.In(account))
		},
		Delete: v.repeatDeletion,
		Stands: func(op string) (bool, bool) {
			return op == opFreezeAccount.Name, op == opFreezeAccount.Name || op == opThawAccount.Name
		},
		Stand: func(ctx context.Context, account uuid.UUID, freeze bool, at time.Time) error {
			a, err := v.of(account).Account(ctx)
			if err == nil && freeze {
				_, err = v.of(account).FreezeAccount(ctx)
			} else if err == nil && at.After(a.Since) { // else the backup has a later freeze
				_, err = v.of(account).ThawAccount(ctx)
			}
			return err
		},
	}
	for a, err := range v.AllAccounts(ctx, nil) {
		if err != nil {
			return err
		}
		d.Accounts = append(d.Accounts, a.ID)
	}

	done, err := d.Repeat(ctx)
	if err != nil {
		return err
	}
	r.Deleted, r.Lost, r.NotInLedger = done.Repeated, done.Lost, done.Missing
	return v.ledger.Deleted(ctx)
}

// repeatDeletion repeats a call that was a deletion, also in an account that is frozen.
func (c *core) repeatDeletion(ctx context.Context, r *audit.Record) (is bool, err error) {
	v := c.of(r.AccountID)
	switch r.Operation {
	case opDelete.Name:
		return true, v.Delete(ctx, r.ObjectID)
	case opDeleteAPIKey.Name:
		return true, v.DeleteAPIKey(ctx, r.ObjectID)
	case opDeleteWebhook.Name:
		return true, v.DeleteWebhook(ctx, r.ObjectID)
	case opCloseAccount.Name:
		_, err := v.CloseAccount(ctx)
		return true, err
	}
	return false, nil
}

// RestoreDir is Restore into the folder dir, for [Open]. The last element of dir is made if it
// is missing.
func RestoreDir(ctx context.Context, dir string, keys *Keyring, r io.Reader, opts *RestoreOptions) (_ *RestoreReport, err error) {
	defer doing("restore", &err)
	s, err := keys.openDir(ctx, dir, nil)
	if err != nil {
		return nil, err
	}
	report, err := Restore(ctx, s, keys, r, opts)
	return report, errors.Join(err, ledger.Translate(s.Close()))
}
