package httpapi

import (
	"sync"

	"github.com/google/uuid"
)

// minForwards lets an account forward the largest body.
const minForwards = 128

// A room bounds the calls that are under way, so that their bodies and answers fit in
// memory. Large bodies count more than once. An account may have a quarter.
type room struct {
	all int

	mu    sync.Mutex // guards the following fields
	taken int
	by    map[uuid.UUID]int
}

func newRoom(all int) *room { return &room{all: all, by: map[uuid.UUID]int{}} }

// weigh returns how often a body counts whose length was announced, or is -1.
func weigh(length int64, most int) int {
	if length < 0 {
		length = int64(most)
	}
	if length > int64(most) {
		length = 0 // it is not read
	}
	return 1 + int(length>>16)
}

// take reports whether there is room for a call of an account, and takes it.
func (r *room) take(account uuid.UUID, weight int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken+weight > r.all || r.by[account]+weight > r.all/4 {
		return false
	}
	r.taken += weight
	r.by[account] += weight
	return true
}

// leave gives back what take has taken.
func (r *room) leave(account uuid.UUID, weight int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken -= weight
	if r.by[account] -= weight; r.by[account] == 0 {
		delete(r.by, account)
	}
}
