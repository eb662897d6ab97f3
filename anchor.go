package cardvault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/internal/anchordir"
	"github.com/cardvault/cardvault/internal/keyfile"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/google/uuid"
)

// An Anchor keeps one text outside of the store, such as in another volume, in a database of
// another operator, or in a log to which can only be added. The text says how far the vault has
// come. Open and New compare the store with it, so that a store that was rolled back is not taken
// for the present one: a former file, a snapshot of a disk, a standby that lacks the last writes.
//
// The vault numbers its points. After a commit it writes the next point into the store, and then
// has the anchor advance to it: ten seconds after the commit at most, and before calls answer that
// rotate or revoke keys and secrets, freeze, close or change an account, or close the vault. A
// rollback to a state within these ten seconds is not noticed. If the anchor does not answer, those
// calls return after five seconds all the same, since their changes are durable: the error log says
// so, and the vault tries again each ten seconds. [Vault.Close] returns the error.
//
// The text is authenticated under a key of the vault, and bound to it. It has no secret. A rollback
// of the anchor together with the store is not noticed. Single records that are put back beside the
// newest point are only noticed by [Vault.Verify], in a vault with sums; if these were put back
// too, by Open. So keep the anchor where the operator of the store has no access.
//
// Several processes on one store share one anchor. Methods may be called concurrently, have five
// seconds, and should return when ctx ends. [AnchorDir] is an Anchor.
type Anchor interface {
	// Load returns the text of the last Advance, of any process, or nothing before the first one.
	// An anchor that cannot be reached is an error, and never nothing.
	Load(ctx context.Context) ([]byte, error)

	// Advance stores a text, unless one with the same or a higher number is stored: then it does
	// nothing. The text is durable when Advance returns nil, and is Load's from then on, in every
	// process. It has up to 256 bytes of A-Z, a-z, 0-9, "-" and "_".
	Advance(ctx context.Context, number uint64, text []byte) error
}

// AnchorDir returns an Anchor in a folder, as a file of mode 0600. Several processes may use it,
// also over a file system that they share. The folder has to be there: so a volume that is not
// mounted is an error, and not an anchor that is empty. Use an anchor that is not copied, restored and
// rolled back together with the store. Open refuses one inside the folder of the vault.
func AnchorDir(dir string) Anchor { return anchordir.New(dir) }

// anchorApart returns ErrAnchor for an AnchorDir inside the folder of the vault, which would be
// rolled back with it.
func anchorApart(a Anchor, dir string) error {
	d, ok := a.(*anchordir.Dir)
	if !ok || dir == "" {
		return nil
	}
	if d.Path() == "" {
		return fmt.Errorf("%w: its folder has no name", ErrAnchor)
	}
	if keyfile.Below(d.Path(), dir) {
		return fmt.Errorf("%w: it is in the folder of the vault, which would be rolled back with it: take another", ErrAnchor)
	}
	return nil
}

// A RollbackError says how a store differs from its anchor. It wraps ErrRolledBack.
//
// If the store is not the latest one, find that and open it. If it does not exist any more, such as after a
// restore from a backup or a failover to a standby that was behind, set [Options.AcceptRollback] to
// ID: the vault goes on from here, the audit log has vault.accept_rollback, and the commits
// between the two points are lost, deletions and revocations too. A store that went on apart from
// this one is refused from then on.
type RollbackError struct {
	ID     uuid.UUID
	Reason string // such as "it is older than its anchor"

	// Stored and Anchored are the numbers of the last point in the store and in the anchor, 0 if
	// there is none. StoredAt and AnchoredAt are the times at which they were made, by the clocks
	// of their processes.
	Stored, Anchored     uint64
	StoredAt, AnchoredAt time.Time
}

func (e *RollbackError) Error() string { return (*ledger.Rollback)(e).Error() }

func (e *RollbackError) Unwrap() error { return ErrRolledBack }

// rolledBack returns a RollbackError for one of the ledger.
func rolledBack(err error) error {
	if r, ok := errors.AsType[*ledger.Rollback](err); ok {
		return (*RollbackError)(r)
	}
	return err
}
