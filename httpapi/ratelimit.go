package httpapi

import (
	"math"
	"net/netip"
	"sync"
	"time"
)

// A RateLimit is a token bucket.
type RateLimit struct {
	PerSecond float64 // requests a second in the long run; 0: no limit
	Burst     int     // requests at once; 0 means as many as PerSecond, at least 1
}

// withBurst returns l with the default of Burst.
func (l RateLimit) withBurst() RateLimit {
	if l.Burst == 0 {
		l.Burst = max(1, int(l.PerSecond))
	}
	return l
}

func (l RateLimit) valid() bool { return l.PerSecond >= 0 && l.PerSecond <= 1e9 && l.Burst >= 0 }

// Limits that always apply, in addition to those of Options.
var (
	sessionReads      = RateLimit{PerSecond: 1, Burst: 60}   // of a session
	failedCompletions = RateLimit{PerSecond: 0.5, Burst: 30} // of a client, see limitCompletion
	firstFailure      = RateLimit{PerSecond: 1e-9, Burst: 1} // of a session: it lives for an hour at most
)

const (
	maxLimited = 32 << 10    // keys of a generation of a limiter
	maxDebt    = time.Minute // longest wait for limits that always apply, whatever was counted
)

// A limiter counts for each key on its own. It knows two generations of keys: when
// the younger one is full, the other one is forgotten.
type limiter[K comparable] struct {
	limit      RateLimit
	mu         sync.Mutex
	young, old map[K]*bucket
}

// A bucket has as many tokens as requests may come at once. Fewer than none is a debt.
type bucket struct {
	tokens float64
	at     time.Time // when it had them
}

func newLimiter[K comparable](l RateLimit) *limiter[K] {
	return &limiter[K]{limit: l, young: map[K]*bucket{}}
}

// take counts one of a key. If it is one too many, it is not counted, and take returns the
// number of seconds until the next may come.
func (l *limiter[K]) take(key K) (seconds int) { return l.takeWithin(l.limit, key) }

// takeWithin is take with a limit of the key's own.
func (l *limiter[K]) takeWithin(limit RateLimit, key K) (seconds int) {
	if limit.PerSecond == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket(limit, key)
	// A microsecond is what adding up parts of tokens may be off.
	if wait := (1-b.tokens)/limit.PerSecond - 1e-6; wait > 0 {
		return int(math.Ceil(min(wait, math.MaxInt32)))
	}
	b.tokens--
	return 0
}

// give takes back that one of a key was counted.
func (l *limiter[K]) give(key K) { l.giveWithin(l.limit, key) }

// giveWithin is give with a limit of the key's own.
func (l *limiter[K]) giveWithin(limit RateLimit, key K) {
	if limit.PerSecond == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket(limit, key)
	b.tokens = min(b.tokens+1, float64(limit.withBurst().Burst))
}

// count counts one of a key also if it is one too many: the next waits longer, but
// never longer than maxDebt.
func (l *limiter[K]) count(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket(l.limit, key)
	b.tokens = max(b.tokens-1, 1-maxDebt.Seconds()*l.limit.PerSecond)
}

// bucket returns what counts for a key with a limit, as it is now. The caller holds the
// lock.
func (l *limiter[K]) bucket(limit RateLimit, key K) *bucket {
	now, burst := time.Now(), float64(limit.withBurst().Burst)
	b := l.young[key]
	if b == nil {
		if b = l.old[key]; b == nil {
			b = &bucket{burst, now}
		}
		if len(l.young) == maxLimited {
			l.young, l.old = map[K]*bucket{}, l.young
		}
		l.young[key] = b
	}
	if passed := now.Sub(b.at).Seconds(); passed > 0 {
		b.tokens += passed * limit.PerSecond
		b.at = now
	}
	b.tokens = min(b.tokens, burst)
	return b
}

// prefixOf returns the network that is treated as one client: an IPv4 address, or the /64
// network of an IPv6 address, as assigned to a household. The zero Addr stays zero.
func prefixOf(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is6() {
		p, _ := a.Prefix(64) // of an IPv6 address there always is one
		return p.Addr()
	}
	return a
}
