package cardvault

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cardvault/cardvault/internal/adapter"
	"github.com/cardvault/cardvault/internal/auditlog"
	"github.com/cardvault/cardvault/internal/backup"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// MoveOptions are the optional parts of [Move].
type MoveOptions struct {
	Progress func(BackupProgress) // of each copy: see BackupOptions

	// Audit is [Options.Audit] of the programs that use the vault. The log has the move in the
	// former place, and the thaw in the new one. If nil, it has neither.
	Audit *AuditOptions

	// Anchor is [Options.Anchor] of the programs that use the vault. A former place that was rolled
	// back is ErrRolledBack, and the anchor has the new place when Move returns. If nil, the former
	// place is not compared, and the anchor follows when a program opens the new one.
	Anchor Anchor

	Logger *slog.Logger // as Options.Logger
}

// A MoveReport describes a vault that has moved.
type MoveReport struct {
	ID      uuid.UUID // of the move
	Records int64     // in the new place, without the keyring's
	Copied  int64     // of these, by the last copy
	Pause   time.Duration
}

// Move moves a vault from one store to another, which is empty. It copies the records while the
// vault works, fences the former place, and copies the changes made meanwhile. It then compares the
// two places, and thaws the new one if they agree. The new place has a new term of the keys.
//
// From the fence on, which is durable, the former place refuses each write in its transaction, and
// each read a second later and once the process has opened the new keyring. Calls there return
// [ErrMoved], or [ErrUnavailable] in a process that cannot open it, and so does Open. Run returns
// ErrMoved too. MoveReport.Pause is the time between the fence and the thaw, when no place works:
// start the programs anew with the new store.
//
// If Move ends early, repeat it with the same stores: it goes on. Instead, before the last
// step, [Options.Thaw] takes it back: the error of the former place names the ID. The vault works in
// one place at most, unless [Options.Thaw] opens a new place whose move was taken back.
//
// A vault with records that its store cannot read does not move. from may be the store of a
// vault that is open in this process. opts may be nil.
//
// Errors: as of Open for from; ErrNotEmpty, before anything is fenced, for a store that is not
// empty; ErrNotEnabled for stores that [Vault.Backup] or [Restore] refuse; ErrDamaged if records
// cannot be read, or the places differ; ErrMoved for a vault that has moved elsewhere, or whose
// move was taken back meanwhile.
func Move(ctx context.Context, from, to store.Store, keys *Keyring, opts *MoveOptions) (_ *MoveReport, err error) {
	defer doing("move", &err)
	switch {
	case adapter.IsNil(from), adapter.IsNil(to):
		return nil, required("Store")
	}
	if err := keys.check(); err != nil {
		return nil, err
	}
	if opts == nil {
		opts = new(MoveOptions)
	}

	m := &move{from: from, to: to, keys: keys, opts: opts}
	err = m.open(ctx, Live)
	if errors.Is(err, ErrWrongMode) {
		err = m.open(ctx, Sandbox)
	}
	if err != nil {
		return nil, err
	}
	defer m.ledger.Close()
	err = m.run(ctx)
	if errors.Is(err, backup.ErrStore) || errors.Is(err, backup.ErrNoLoader) {
		err = notEnabled("stores of which one can be backed up, and whose other one's Tx is a store.Loader")
	}
	if err != nil {
		return nil, err
	}
	return &m.report, nil
}

// The vault is copied while it works until a copy takes little time, as the last one will.
const (
	mostCopies = 4
	quickCopy  = 5 * time.Second
)

// A move is one call of Move.
type move struct {
	from, to store.Store
	keys     *Keyring
	opts     *MoveOptions
	options  Options // of the vault
	ledger   *ledger.Ledger
	audit    *auditlog.Log // nil without MoveOptions.Audit
	mover    *backup.Mover
	report   MoveReport
}

// open loads the keys of the vault, which may be fenced.
func (m *move) open(ctx context.Context, mode Mode) (err error) {
	m.options, err = (&Options{Mode: mode, Audit: m.opts.Audit, Anchor: m.opts.Anchor, Logger: m.opts.Logger}).withDefaults()
	if err != nil {
		return err
	}
	log := m.options.Logger
	m.ledger = ledger.New(ledger.Config{
		Store: m.from, Ring: m.keys.ring(), Mode: uint8(mode), ModeName: func(n uint8) string { return Mode(n).String() },
		Families: families, Names: names, Homes: homes, Log: log, Moving: true, Anchor: m.options.Anchor,
		Wrote: func(ctx context.Context, op ledger.Operation, _, _ uuid.UUID, err error) {
			log.DebugContext(ctx, "write", "operation", op.Name, "error", err)
		},
		Mistrust: func(answer string) { log.Error("the store was edited, or is damaged", "answer", answer) },
	})
	if m.audit = newAudit(&core{opts: m.options, log: log, ledger: m.ledger}); m.audit != nil {
		m.ledger.SetAuditor(m.audit)
	}
	err = m.ledger.Load(ctx, func() (uuid.UUID, []*store.Record, error) {
		return uuid.Nil, nil, fmt.Errorf("%w: there is no vault to move", ErrNotFound)
	})
	if err != nil {
		m.ledger.Close()
	}
	return rolledBack(err)
}

func (m *move) run(ctx context.Context) error {
	defer m.closeAudit()
	m.mover = &backup.Mover{From: m.ledger, To: m.to, Ring: m.keys.ring(), Progress: reported(m.opts.Progress)}
	fence := m.ledger.Box.Keys().Fence
	if fence != nil && fence.Opener != uuid.Nil {
		return m.follow(ctx, fence)
	}

	if err := m.mover.Occupy(ctx); err != nil {
		return err
	}
	for began, n := now(), 0; fence == nil && n < mostCopies && (n == 0 || now().Sub(began) > quickCopy); n++ {
		began = now()
		if _, err := m.mover.Copy(ctx); err != nil {
			return err
		}
	}
	fence, err := m.ledger.Fence(ctx)
	if err != nil {
		return err
	}
	m.closeAudit() // its last checkpoint moves too
	if fence.Opener != uuid.Nil {
		return m.follow(ctx, fence) // another call has left the place meanwhile
	}

	restored, err := m.mover.Copy(ctx)
	if err != nil {
		return err
	}
	if m.report.Records, err = m.mover.Compare(ctx); err != nil {
		return err
	}
	m.ledger.Noticed() // no process reads the former place any more
	if err := m.ledger.Leave(ctx, fence.Move, restored.ID); err != nil {
		return err
	}
	err = m.arrive(ctx, restored.ID)
	m.report.ID, m.report.Copied, m.report.Pause = fence.Move, restored.Records, ledger.Now().Sub(fence.At)
	return err
}

// follow ends a move whose fence is final. A second call may have begun a copy of its own before it
// knew of that, and have died: then the new place is incomplete, and is copied once more.
func (m *move) follow(ctx context.Context, fence *seal.Fence) error {
	m.report.ID = fence.Move
	mark, err := m.mover.Arrived(ctx)
	if err != nil {
		return err
	}
	if mark != nil && mark.ID == fence.Opener && !mark.Ended {
		restored, err := m.mover.Copy(ctx)
		if err != nil {
			return err
		}
		if m.report.Records, err = m.mover.Compare(ctx); err != nil {
			return err
		}
		m.report.Copied = restored.Records
	}
	return m.arrive(ctx, fence.Opener)
}

// arrive thaws the new place of a vault that has left the former one.
func (m *move) arrive(ctx context.Context, opener uuid.UUID) error {
	mark, err := m.mover.Arrived(ctx)
	switch {
	case err != nil:
		return err
	case mark != nil && mark.ID != opener:
		return fmt.Errorf("%w: into another place than this one", ErrMoved)
	}

	// Without a mark the vault was thawed, or is elsewhere: then this one is not made.
	if mark == nil {
		if err := m.mover.Here(ctx); err != nil {
			return err
		}
	}
	o := m.options
	o.Thaw = opener
	v, err := New(ctx, m.to, m.keys, &o)
	if err != nil {
		return err
	}
	return v.Close()
}

// closeAudit writes the last checkpoint of the audit log. It may be called again.
func (m *move) closeAudit() {
	if m.audit != nil {
		m.audit.Close()
	}
	m.audit = nil
}
