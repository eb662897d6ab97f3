package audit

import (
	"context"
	"crypto/sha256"

	"github.com/google/uuid"
)

// A Ledger keeps the whole log of each account outside the reach of everyone who can write to the
// store. A vault passes it on by itself, in parts, so that a restored backup can repeat the
// deletions of the time after it.
type Ledger interface {
	// Append keeps a part, durably once it returns nil. The parts of an account come in the order
	// of their numbers, and each begins at the latest behind the one before. A part may come
	// again, and again with more checkpoints, or overlap with a part of another process: keep
	// both, or a part alone that ends later. A part that ends no later than what is kept changes
	// nothing, and is not an error. ctx ends after 10 seconds. After an error, a panic or a late
	// return the vault tries again. It is called concurrently for different accounts.
	Append(ctx context.Context, p *Part) error

	// Last returns the mark of the part that ends last, of those that are kept for an account,
	// and the zero Mark without any. A vault asks once for each account and process, and goes
	// on from there.
	Last(ctx context.Context, vault, account uuid.UUID) (Mark, error)
}

// A Mark names a checkpoint of an account.
type Mark struct {
	Number uint64
	Hash   [sha256.Size]byte // Checkpoint.Hash
}

// A Part is a piece of the log of an account: some checkpoints and their records, at most a few
// megabytes.
type Part struct {
	VaultID   uuid.UUID
	AccountID uuid.UUID
	First     uint64 // the number of its first checkpoint
	Last      Mark   // its last checkpoint

	// Export is the part as lines of JSON, an export of its own that [Verify] reads. The vault
	// does not change it afterwards.
	Export []byte
}
