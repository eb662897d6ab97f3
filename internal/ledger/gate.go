package ledger

import (
	"container/list"
	"context"
	"sync"

	"github.com/google/uuid"
)

// gateWidth bounds the concurrent Updates of a vault at its store: two groups, for stores
// that commit in groups of 256, so that the next is ready when one is done.
const gateWidth = 512

// A lane is a queue of writes. An account has one for its ordinary writes, one for its
// deletions, and one for ending rights. So the erasure of a card does not wait behind a
// flood from a stolen key, and the revocation of that key does not wait behind erasures.
// The zero account stands for the records of the whole vault.
type lane struct {
	account uuid.UUID
	urgency urgency
}

// A gate lets gateWidth Updates through to the store. Lanes with further ones take
// turns, one call each, and within a lane the first comes first: a call waits for no
// more than one of each other lane, besides those before it in its own. The queue of a
// lane is the calls that are being made: each is a goroutine of its caller, which waits
// here as it would wait at a store whose queue is full. The zero value is ready.
type gate struct {
	mu     sync.Mutex
	inside int
	open   bool // for all: the vault is closed

	// Once it is open, entered is called before a call is alone inside, and left when none is. The
	// caller holds mu.
	entered, left func()

	lanes map[lane]*queueAtGate
	turns list.List // of *queueAtGate, none of them empty; there is one only if inside is gateWidth
}

type queueAtGate struct {
	lane    lane
	turn    *list.Element // of gate.turns
	waiting list.List     // of *atGate
}

// An atGate is a call that waits.
type atGate struct {
	admitted chan struct{}
	err      error // set before admitted is closed
}

// enter waits for a turn. Who got one leaves.
func (g *gate) enter(ctx context.Context, l lane) error {
	g.mu.Lock()
	if g.inside < gateWidth || g.open {
		if g.open && g.inside == 0 {
			g.entered()
		}
		g.inside++
		g.mu.Unlock()
		return nil
	}
	q := g.lanes[l]
	if q == nil {
		if g.lanes == nil {
			g.lanes = map[lane]*queueAtGate{}
		}
		q = &queueAtGate{lane: l}
		q.turn = g.turns.PushBack(q)
		g.lanes[l] = q
	}
	w := &atGate{admitted: make(chan struct{})}
	place := q.waiting.PushBack(w)
	g.mu.Unlock()

	select {
	case <-w.admitted:
		return w.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-w.admitted: // just now: the turn is the next one's
		if w.err == nil {
			g.next()
		}
	default:
		g.remove(q, place)
	}
	return ctx.Err()
}

// leave ends the turn of a call that has entered.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next()
}

// next gives a turn that has ended to the lane that is due.
func (g *gate) next() {
	first := g.turns.Front()
	if first == nil {
		if g.inside--; g.open && g.inside == 0 {
			g.left()
		}
		return
	}
	q := first.Value.(*queueAtGate)
	g.turns.MoveToBack(first)
	w := g.remove(q, q.waiting.Front())
	close(w.admitted)
}

func (g *gate) remove(q *queueAtGate, place *list.Element) *atGate {
	w := q.waiting.Remove(place).(*atGate)
	if q.waiting.Len() == 0 {
		g.turns.Remove(q.turn)
		delete(g.lanes, q.lane)
	}
	return w
}

// close ends all waiting calls with ErrClosed. Running jobs may still store their results,
// if the store is open: entered and left frame them.
func (g *gate) close(entered, left func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open, g.entered, g.left = true, entered, left
	for _, q := range g.lanes {
		for q.waiting.Len() > 0 {
			w := q.waiting.Remove(q.waiting.Front()).(*atGate)
			w.err = ErrClosed
			close(w.admitted)
		}
	}
	g.lanes = nil
	g.turns.Init()
	if g.inside == 0 {
		left()
	}
}
