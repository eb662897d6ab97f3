package httpapi

import (
	"math"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A RateLimit is a token bucket.
type RateLimit struct {
	PerSecond float64 // requests a second in the long run; 0: no limit
	Burst     int     // requests at once; 0 means as many as PerSecond, at least 1
}

// What is always limited: decisions, chapter 15.
var (
	sessionReads      = RateLimit{PerSecond: 1, Burst: 60}   // of a session
	failedCompletions = RateLimit{PerSecond: 0.5, Burst: 30} // of a client
)

// maxLimited bounds the keys of a generation of a limiter.
const maxLimited = 32 << 10

// A limiter counts for each key on its own. It knows two generations of keys: when
// the younger one is full, the other one is forgotten. A nil limiter has no limit.
type limiter[K comparable] struct {
	limit      RateLimit
	mu         sync.Mutex
	young, old map[K]*rate.Limiter
}

func newLimiter[K comparable](l RateLimit) *limiter[K] {
	if l.PerSecond == 0 {
		return nil
	}
	if l.Burst == 0 {
		l.Burst = max(1, int(l.PerSecond))
	}
	return &limiter[K]{limit: l, young: map[K]*rate.Limiter{}}
}

// take counts one of a key. If it is one too many, it is not counted, and take
// returns after how many seconds the next may come.
func (l *limiter[K]) take(key K) (seconds int) { return l.ask(key, true) }

// wait is take without counting.
func (l *limiter[K]) wait(key K) (seconds int) { return l.ask(key, false) }

func (l *limiter[K]) ask(key K, count bool) (seconds int) {
	if l == nil {
		return 0
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.bucket(key).ReserveN(now, 1)
	delay := r.DelayFrom(now)
	if delay > 0 || !count {
		r.CancelAt(now)
	}
	return int(math.Ceil(delay.Seconds()))
}

// count counts one of a key also if it is one too many: the next waits longer.
func (l *limiter[K]) count(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bucket(key).ReserveN(time.Now(), 1)
}

// bucket returns what counts for a key. The caller holds the lock.
func (l *limiter[K]) bucket(key K) *rate.Limiter {
	if b := l.young[key]; b != nil {
		return b
	}
	b := l.old[key]
	if b == nil {
		b = rate.NewLimiter(rate.Limit(l.limit.PerSecond), l.limit.Burst)
	}
	if len(l.young) == maxLimited {
		l.young, l.old = map[K]*rate.Limiter{}, l.young
	}
	l.young[key] = b
	return b
}

// network returns what counts as one client: an IPv4 address, or the /64 network
// of an IPv6 address, which is what a household gets. The zero Addr stays that.
func network(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is6() {
		p, _ := a.Prefix(64) // of an IPv6 address there always is one
		return p.Addr()
	}
	return a
}
