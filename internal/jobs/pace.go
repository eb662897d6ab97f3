package jobs

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// Missed is the tolerated delay of a job against its place under a Rate.
	Missed = 10 * time.Second

	mixed = 5 * time.Second // how far a place is moved to mix up a queue
)

// Jitter returns d, up to a fifth longer or shorter.
func Jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}

// A Rate gives jobs places, so that no more than some begin in a second. It may be nil.
type Rate struct {
	pause time.Duration

	mu   sync.Mutex
	next map[uint8]time.Time // the next place of each sort of jobs; guarded by mu
}

// NewRate returns a Rate of so many jobs of a sort a second, nil if that is 0.
func NewRate(perSecond float64) *Rate {
	if perSecond == 0 {
		return nil
	}
	return &Rate{pause: time.Duration(float64(time.Second) / perSecond), next: map[uint8]time.Time{}}
}

// Take takes a place for a job of some sort, and returns the time until that place. Places
// within a few seconds are shuffled, so that cards of one issuer that were imported one
// after the other do not come to the network like that. Farther apart they stay in order,
// because due records are indexed by time. A job that can wait takes no place in a long
// queue: it must not keep others waiting.
func (r *Rate) Take(sort uint8, at time.Time, canWait bool) (wait time.Duration, taken bool) {
	if r == nil {
		return 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	next := r.next[sort]
	if next.Before(at) {
		next = at
	}
	wait = next.Sub(at)
	if canWait && wait > Missed {
		return Jitter(time.Hour), false
	}

	r.next[sort] = next.Add(r.pause)
	mix := min(wait/5, mixed)
	return wait - mix + rand.N(2*mix+1), true
}
