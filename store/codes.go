package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// MaxCode bounds the values of a [CodeCache], in bytes.
const MaxCode = 1 << 10

// A CodeCache keeps sealed security codes for the minutes that they are needed,
// in memory and nowhere else: a cache that writes to disk, also as a snapshot,
// a log or swap, is none. All methods may be called concurrently, honour ctx,
// and neither keep nor change the slices they are given, also when they return
// because ctx has ended. What they return belongs to the caller. A call that does
// not return when ctx has ended holds up the vault.
//
// A value may go early, such as when there is no room. It must not stay late:
// from the instant its time is over it is not returned any more, and what
// held it is overwritten or given back soon after, without a further call.
// That counts to the millisecond.
type CodeCache interface {
	// Put keeps value, which may be empty, under id for the time ttl, which may
	// be shorter than a millisecond. It replaces and erases what was there. With
	// a ttl of zero or less it only does that. More than [MaxCode] bytes are
	// ErrInvalid and change nothing.
	Put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error

	// Get returns the value of id, or ErrNotFound.
	Get(ctx context.Context, id uuid.UUID) ([]byte, error)

	// Delete erases the value of id, if there is one. Once it has returned no
	// call that begins later gets it.
	Delete(ctx context.Context, id uuid.UUID) error

	// Close frees what the cache holds; one in the memory of this process
	// erases all values. Later calls return ErrClosed; closing again returns nil.
	Close() error
}
