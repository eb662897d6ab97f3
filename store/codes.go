package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// MaxCode bounds the values of a [CodeCache], in bytes.
const MaxCode = 1 << 10

// A CodeCache keeps sealed security codes for the minutes that they are needed, in memory
// only. A cache that writes to disk, be it a snapshot, a log or swap, does not qualify. All
// methods may be called concurrently and honour ctx. They neither keep nor change the
// slices they are given, even when they return because ctx has ended. Returned values
// belong to the caller. A call that does not return when ctx has ended holds up the vault.
//
// A value may be dropped early, for example when there is no room. It must not stay late:
// once its time has passed it is no longer returned, and its memory is overwritten or freed
// soon after, without a further call. Times are exact to the millisecond.
type CodeCache interface {
	// Put keeps value, which may be empty, under id for the time ttl, which may be shorter
	// than a millisecond. It replaces and erases the previous value. With a ttl of zero or
	// less it only erases. A value of more than [MaxCode] bytes is ErrInvalid and changes
	// nothing.
	Put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error

	// Get returns the value of id, or ErrNotFound.
	Get(ctx context.Context, id uuid.UUID) ([]byte, error)

	// Delete erases the value of id, if there is one. No call that begins after Delete has
	// returned finds the value.
	Delete(ctx context.Context, id uuid.UUID) error

	// Close frees what the cache holds; one in the memory of this process
	// erases all values. Later calls return ErrClosed; closing again returns nil.
	Close() error
}
