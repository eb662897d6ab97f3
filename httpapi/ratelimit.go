package httpapi

import (
	"math"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"
)

// A RateLimit is a token bucket.
type RateLimit struct {
	PerSecond float64 // requests a second in the long run; 0: no limit
	Burst     int     // requests at once; 0 means as many as PerSecond, at least 1
}

// maxLimited bounds the keys whose requests are counted at a time.
const maxLimited = 10000

// A limiter counts the requests of each API key. A nil limiter has no limit.
type limiter struct {
	limit RateLimit
	mu    sync.Mutex
	keys  map[uuid.UUID]*rate.Limiter
}

func newLimiter(l RateLimit) *limiter {
	if l.PerSecond == 0 {
		return nil
	}
	if l.Burst == 0 {
		l.Burst = max(1, int(l.PerSecond))
	}
	return &limiter{limit: l, keys: map[uuid.UUID]*rate.Limiter{}}
}

// wait counts a request. If it is one too many, it returns after how many
// seconds the next may come.
func (l *limiter) wait(key uuid.UUID) (seconds int) {
	if l == nil {
		return 0
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	bucket := l.keys[key]
	if bucket == nil {
		if len(l.keys) >= maxLimited {
			l.forget(now)
		}
		bucket = rate.NewLimiter(rate.Limit(l.limit.PerSecond), l.limit.Burst)
		l.keys[key] = bucket
	}
	r := bucket.ReserveN(now, 1)
	if delay := r.DelayFrom(now); delay > 0 {
		r.CancelAt(now)
		return int(math.Ceil(delay.Seconds()))
	}
	return 0
}

// forget drops the keys that have made no request for so long that counting
// anew is the same, and all if that is not enough.
func (l *limiter) forget(now time.Time) {
	for key, bucket := range l.keys {
		if bucket.TokensAt(now) >= float64(l.limit.Burst) {
			delete(l.keys, key)
		}
	}
	if len(l.keys) >= maxLimited {
		clear(l.keys)
	}
}
