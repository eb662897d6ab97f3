package outbox

import (
	"time"

	"github.com/google/uuid"
)

// Classes of deliveries in the list of their queue. The zero class marks a delivery for
// erasure.
const (
	Ready   = iota + 1 // to be attempted
	Held               // waits for an earlier delivery of the same token
	Retried            // has failed; due when it becomes ready again
	Done               // delivered; due when it leaves the log
	Failed             // failed for good; due likewise
)

// A Delivery is one event on its way to one receiver. It holds nothing of the token but
// its row key.
type Delivery struct {
	Event   uuid.UUID // row key
	Type    uint8     // of the event
	Reason  string    // likewise
	Account uuid.UUID // of the token
	Token   uuid.UUID // row key
	Former  uuid.UUID // row key of the token's event before this one; zero: none, or the token is deleted

	Class uint8     // of the record
	Due   time.Time // likewise

	Attempts  uint64    // all that were made
	Last      time.Time // when the last one began
	Code      uint64    // its HTTP status; 0: no answer
	tries     uint64    // attempts of the present schedule: a redelivery begins another
	throttled uint64    // tries whose reply asked for a pause
	unordered bool      // has failed too often to hold back later deliveries, or was redelivered
}

// eventRetries are the pauses after each failure of a delivery.
var eventRetries = []time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
	10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

const (
	eventHolds        = 3              // failures until an event no longer holds back later ones
	maxSendRetryAfter = 24 * time.Hour // longest pause between two tries that a reply can ask for
)

// An occasion is something that happens to a delivery.
type occasion uint8

const (
	attempted   occasion = iota // it was sent
	notWanted                   // the receiver is disabled, or does not take events of the type
	tokenGone                   // the token was deleted before the delivery was sent
	heldBack                    // an earlier delivery of the token has to go first
	released                    // that one is out of the way
	ripe                        // the pause after a failure has ended
	redelivered                 // a caller wants the event to be delivered again
	outOfLog                    // the time in the log has ended
	occasions   = 8
)

// A Reply is the result of one attempt.
type Reply struct {
	Began time.Time
	Code  int           // HTTP status; 0: no answer
	After time.Duration // pause that the receiver asks for, 0 if it does not
}

func (a *Reply) success() bool { return a.Code >= 200 && a.Code < 300 }

// gone reports whether the receiver wants nothing any more.
func (a *Reply) gone() bool { return a.Code == 410 }

// throttled reports whether the receiver wants a pause from all deliveries.
func (a *Reply) throttled() bool {
	return a.Code == 429 || a.Code >= 502 && a.Code <= 504 || !a.success() && a.After > 0
}

// A schedule says when a delivery is tried again, and how long it stays in the log.
type schedule struct {
	at        time.Time
	pace      func(time.Duration) time.Duration // pause between two tries, of one of eventRetries
	retention time.Duration                     // 0: a delivery that has ended is erased
}

// after is the state machine of deliveries: it returns the state that follows d, and
// whether the occasion means something in d. If it does not, d stays. a is the reply to
// an attempt, else nil.
func (d Delivery) after(o occasion, a *Reply, s schedule) (next Delivery, ok bool) {
	over := d.Class == Done || d.Class == Failed
	sendable := d.Class == Ready || d.Class == Retried
	next = d

	switch o {
	case attempted:
		if ok = sendable; ok {
			next = d.answered(a, s)
		}
	case notWanted:
		next.end(Failed, s)
		ok = sendable
	case tokenGone:
		next.Class, next.Due = 0, time.Time{}
		ok = sendable || d.Class == Held
	case heldBack:
		next.Class = Held
		ok = d.Class == Ready
	case released:
		next.Class = Ready
		ok = d.Class == Held
	case ripe:
		next.Class, next.Due = Ready, time.Time{}
		ok = d.Class == Retried
	case redelivered:
		// A delivery that is ready or held is attempted anyway.
		next.Class, next.Due = Ready, time.Time{}
		next.tries, next.throttled = 0, 0
		next.unordered = d.unordered || over
		ok = over || d.Class == Retried
	case outOfLog:
		next.Class, next.Due = 0, time.Time{}
		ok = over
	}
	if !ok {
		return d, false
	}
	return next, true
}

// answered returns the state after an attempt.
func (d Delivery) answered(a *Reply, s schedule) Delivery {
	scheduled := d.Class == Ready
	d.Attempts++
	d.Last, d.Code = a.Began, uint64(a.Code)

	switch {
	case a.success():
		d.end(Done, s)
	case a.gone():
		d.end(Failed, s)
	case !scheduled:
		// It was attempted beside its schedule, which goes on as it was.
	case d.tries == uint64(len(eventRetries)):
		d.tries++
		d.end(Failed, s)
	default:
		d.tries++
		if a.throttled() {
			d.throttled++
		}
		d.unordered = d.unordered || d.tries-d.throttled >= eventHolds
		d.Class = Retried
		d.Due = s.at.Add(max(s.pace(eventRetries[d.tries-1]), min(a.After, maxSendRetryAfter)))
	}
	return d
}

// end gives the delivery its last class, or none if there is no log.
func (d *Delivery) end(as uint8, s schedule) {
	d.Class, d.Due = as, s.at.Add(s.retention)
	if s.retention == 0 {
		d.Class, d.Due = 0, time.Time{}
	}
}

// holdsBack reports whether later deliveries of the token wait for this one. A delivery
// that holds them back and does so no longer releases the next.
func (d *Delivery) holdsBack() bool {
	return d.Class > 0 && d.Class < Done && !d.unordered
}
