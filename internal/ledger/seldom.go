package ledger

import (
	"sync/atomic"
	"time"
)

// A Seldom bounds how often something is logged. The zero value is ready.
type Seldom struct{ last atomic.Int64 }

// Now reports whether a minute has passed since it last did.
func (s *Seldom) Now() bool {
	at := time.Now().UnixNano()
	last := s.last.Load()
	return at-last > int64(time.Minute) && s.last.CompareAndSwap(last, at)
}
