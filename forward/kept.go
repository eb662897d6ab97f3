package forward

import (
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/use"
	"github.com/google/uuid"
)

const defaultKept = 1 << 30

// An allowance bounds what accounts keep of answers under idempotency keys.
type allowance struct {
	daily int64 // bytes of an account

	mu   sync.Mutex // guards the following fields
	day  int64
	kept map[uuid.UUID]int64 // on that day
}

// take reports whether an account keeps so many bytes more today, and counts them then.
func (a *allowance) take(account uuid.UUID, n int) bool {
	day := time.Now().Unix() / int64((24 * time.Hour).Seconds())
	a.mu.Lock()
	defer a.mu.Unlock()
	if day != a.day {
		a.day, a.kept = day, map[uuid.UUID]int64{}
	}
	if a.kept[account]+int64(n) > a.daily {
		return false
	}
	a.kept[account] += int64(n)
	return true
}

// encoded returns the answer as it is kept, and whether the allowance had no room for all of it.
func (c *call) encoded() (kept []byte, short bool) {
	if kept = c.answer.encode(use.MaxAnswer); c.kept.take(c.account, len(kept)) {
		return kept, false
	}
	return c.answer.encode(0), true
}
