package replay

import (
	"context"
	"sync/atomic"
)

// A Border is a call as package httpapi has received it. Nothing else about a call travels
// in its context. It belongs only to the first call under a key, since nested calls have
// the context too.
type Border struct {
	Request  func() []byte // what must be the same in a repetition, in place of the arguments
	Replayed bool          // set by the call: an answer or refusal that was kept is returned

	taken atomic.Bool
}

type borderKey struct{}

// WithBorder returns a context for one call of b.
func WithBorder(ctx context.Context, b *Border) context.Context {
	return context.WithValue(ctx, borderKey{}, b)
}

// At returns r with the Border of a context, unless another call has it. A call takes it
// once, however often it tries.
func (r Request) At(ctx context.Context) Request {
	b, _ := ctx.Value(borderKey{}).(*Border)
	if b != nil && r.Key != "" && b.taken.CompareAndSwap(false, true) {
		r.border = b
	}
	return r
}
