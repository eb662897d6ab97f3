package replay

import "context"

// A Border is a call as package httpapi has received it. It is the one thing about a call
// that comes with its context.
type Border struct {
	Request  func() []byte // what must be the same in a repetition, in place of the arguments
	Replayed bool          // set by the call: an answer or refusal that was kept is returned
}

type borderKey struct{}

// WithBorder returns a context for one call of b.
func WithBorder(ctx context.Context, b *Border) context.Context {
	return context.WithValue(ctx, borderKey{}, b)
}

func borderOf(ctx context.Context) *Border {
	b, _ := ctx.Value(borderKey{}).(*Border)
	return b
}
