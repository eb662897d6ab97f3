package tally

import "sync"

// Bounds of a day's reports: owners who exceed their count often do not flood a log, and
// use up no room for the reports of others.
const (
	maxReports    = 64      // of an owner
	maxAllReports = 1 << 14 // of all
)

// Reports bounds the reports of a day: each key once. The zero value is ready; it may be
// used concurrently.
type Reports struct {
	mu   sync.Mutex // guards the following fields
	day  int64
	made map[uint64]struct{} // keys
	of   map[[16]byte]int    // how many of them are an owner's
}

// Take reports whether a key of an owner is reported: for the first time on that day, and
// within the bounds. last is set if nothing more of the owner is reported on that day.
func (r *Reports) Take(day int64, of [16]byte, key uint64) (ok, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil || day != r.day {
		r.day, r.made, r.of = day, map[uint64]struct{}{}, map[[16]byte]int{}
	}

	_, known := r.made[key]
	if ok = !known && r.of[of] < maxReports && len(r.made) < maxAllReports; ok {
		r.made[key] = struct{}{}
		r.of[of]++
	}
	return ok, r.of[of] == maxReports || len(r.made) == maxAllReports
}
