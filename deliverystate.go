package cardvault

import (
	"time"

	"github.com/google/uuid"
)

// Classes of deliveries in the list of their queue. The zero class is that of a
// delivery which is to be erased.
const (
	deliveryReady   = iota + 1 // to be attempted
	deliveryHeld               // waits for an earlier delivery of the same token
	deliveryRetried            // has failed; due when it is to be ready again
	deliveryDone               // delivered; due when it leaves the log
	deliveryFailed             // failed for good; due likewise
)

// A delivery is one event on its way to one receiver. It holds nothing of the token but
// its row key.
type delivery struct {
	typ     EventType
	reason  EventReason
	account uuid.UUID // of the token
	token   uuid.UUID // row key

	class uint8     // of the record
	due   time.Time // likewise

	attempts  uint64    // all that were made
	last      time.Time // when the last one began
	code      uint64    // its HTTP status; 0: no answer
	tries     uint64    // attempts of the present schedule: a redelivery begins another
	throttled uint64    // tries of which the reply asked for a pause
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
	ripe                        // the pause after a failure is over
	redelivered                 // a caller wants the event to be delivered again
	outOfLog                    // the time in the log is over
	occasions   = 8
)

// A reply is the result of one attempt.
type reply struct {
	began time.Time
	code  int           // HTTP status; 0: no answer
	after time.Duration // pause that the receiver asks for, 0 if it does not
}

func (a *reply) success() bool { return a.code >= 200 && a.code < 300 }

// gone reports whether the receiver wants nothing any more.
func (a *reply) gone() bool { return a.code == 410 }

// throttled reports whether the receiver wants a pause from all deliveries.
func (a *reply) throttled() bool {
	return a.code == 429 || a.code >= 502 && a.code <= 504 || !a.success() && a.after > 0
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
func (d delivery) after(o occasion, a *reply, s schedule) (next delivery, ok bool) {
	over := d.class == deliveryDone || d.class == deliveryFailed
	sendable := d.class == deliveryReady || d.class == deliveryRetried
	next = d

	switch o {
	case attempted:
		if ok = sendable; ok {
			next = d.answered(a, s)
		}
	case notWanted:
		next.end(deliveryFailed, s)
		ok = sendable
	case tokenGone:
		next.class, next.due = 0, time.Time{}
		ok = sendable || d.class == deliveryHeld
	case heldBack:
		next.class = deliveryHeld
		ok = d.class == deliveryReady
	case released:
		next.class = deliveryReady
		ok = d.class == deliveryHeld
	case ripe:
		next.class, next.due = deliveryReady, time.Time{}
		ok = d.class == deliveryRetried
	case redelivered:
		// A delivery that is ready or held is attempted anyway.
		next.class, next.due = deliveryReady, time.Time{}
		next.tries, next.throttled = 0, 0
		next.unordered = d.unordered || over
		ok = over || d.class == deliveryRetried
	case outOfLog:
		next.class, next.due = 0, time.Time{}
		ok = over
	}
	if !ok {
		return d, false
	}
	return next, true
}

// answered returns the state after an attempt.
func (d delivery) answered(a *reply, s schedule) delivery {
	scheduled := d.class == deliveryReady
	d.attempts++
	d.last, d.code = a.began, uint64(a.code)

	switch {
	case a.success():
		d.end(deliveryDone, s)
	case a.gone():
		d.end(deliveryFailed, s)
	case !scheduled:
		// It was attempted beside its schedule, which goes on as it was.
	case d.tries == uint64(len(eventRetries)):
		d.tries++
		d.end(deliveryFailed, s)
	default:
		d.tries++
		if a.throttled() {
			d.throttled++
		}
		d.unordered = d.unordered || d.tries-d.throttled >= eventHolds
		d.class = deliveryRetried
		d.due = s.at.Add(max(s.pace(eventRetries[d.tries-1]), min(a.after, maxSendRetryAfter)))
	}
	return d
}

// end gives the delivery its last class, or none if there is no log.
func (d *delivery) end(as uint8, s schedule) {
	d.class, d.due = as, s.at.Add(s.retention)
	if s.retention == 0 {
		d.class, d.due = 0, time.Time{}
	}
}

// holdsBack reports whether later deliveries of the token wait for this one. A delivery
// that holds them back and does so no longer releases the next.
func (d *delivery) holdsBack() bool {
	return d.class > 0 && d.class < deliveryDone && !d.unordered
}
