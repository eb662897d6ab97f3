package outbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
)

var (
	stateAt   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	stateLast = stateAt.Add(-time.Hour)
	stateDue  = stateAt.Add(30 * time.Minute)
)

// stateSchedule is a schedule without jitter.
func stateSchedule(retention time.Duration) schedule {
	return schedule{stateAt, func(d time.Duration) time.Duration { return d }, retention}
}

// deliveryStates holds deliveries in each class.
func deliveryStates() map[string]Delivery {
	of := func(class uint8, attempts, tries uint64, unordered bool) Delivery {
		d := Delivery{Type: 2, Reason: "patched", Token: uuid.UUID{1}, Class: class, Attempts: attempts, tries: tries, unordered: unordered}
		if attempts > 0 {
			d.Last, d.Code = stateLast, 500
		}
		if class >= Retried {
			d.Due = stateDue
		}
		return d
	}
	return map[string]Delivery{
		"erased":             of(0, 0, 0, false),
		"new":                of(Ready, 0, 0, false),
		"ready again":        of(Ready, 2, 2, false),
		"ready, unordered":   of(Ready, 4, 4, true),
		"ready, last try":    of(Ready, 9, 9, true),
		"held":               of(Held, 0, 0, false),
		"retried":            of(Retried, 2, 2, false),
		"retried, unordered": of(Retried, 5, 4, true),
		"done":               of(Done, 3, 3, false),
		"done, unordered":    of(Done, 5, 5, true),
		"failed":             of(Failed, 10, 10, true),
	}
}

// TestDeliveryStates: each row is a state, an occasion and the resulting change. Where a
// pair has no row, the delivery stays as it is.
func TestDeliveryStates(t *testing.T) {
	const week = 7 * 24 * time.Hour
	// The changes that an answer makes in each case.
	sent := func(d *Delivery, code uint64) {
		d.Attempts++
		d.Last, d.Code = stateAt.Add(-time.Second), code
	}
	tried := func(class uint8, code uint64, due time.Duration) func(*Delivery) {
		return func(d *Delivery) {
			sent(d, code)
			d.tries++
			d.Class, d.Due = class, stateAt.Add(due)
		}
	}
	ended := func(class uint8, code uint64) func(*Delivery) {
		return func(d *Delivery) {
			sent(d, code)
			d.Class, d.Due = class, stateAt.Add(week)
		}
	}
	also := func(all ...func(*Delivery)) func(*Delivery) {
		return func(d *Delivery) {
			for _, change := range all {
				change(d)
			}
		}
	}
	throttled := func(d *Delivery) { d.throttled++ }
	unordered := func(d *Delivery) { d.unordered = true }
	beside := func(code uint64) func(*Delivery) { return func(d *Delivery) { sent(d, code) } }
	erased := func(d *Delivery) { d.Class, d.Due = 0, time.Time{} }
	moved := func(class uint8) func(*Delivery) {
		return func(d *Delivery) { d.Class, d.Due = class, time.Time{} }
	}
	unwanted := func(d *Delivery) { d.Class, d.Due = Failed, stateAt.Add(week) }
	again := func(d *Delivery) {
		d.Class, d.Due, d.tries, d.throttled = Ready, time.Time{}, 0, 0
	}

	// frees: a later delivery for the token no longer waits.
	type row struct {
		change func(*Delivery)
		frees  bool
	}
	answers := map[string]Reply{
		"200":                  {Code: 200},
		"500":                  {Code: 500},
		"none":                 {},
		"410":                  {Code: 410},
		"503":                  {Code: 503},
		"429, after a day":     {Code: 429, After: 1000 * time.Hour},
		"400, after a minute":  {Code: 400, After: time.Minute},
		"400, after 2 seconds": {Code: 400, After: 2 * time.Second},
	}
	afterAttempt := map[string]map[string]row{
		"new": {
			"200":                  {ended(Done, 200), true},
			"500":                  {tried(Retried, 500, 5*time.Second), false},
			"none":                 {tried(Retried, 0, 5*time.Second), false},
			"410":                  {ended(Failed, 410), true},
			"503":                  {also(tried(Retried, 503, 5*time.Second), throttled), false},
			"429, after a day":     {also(tried(Retried, 429, 24*time.Hour), throttled), false},
			"400, after a minute":  {also(tried(Retried, 400, time.Minute), throttled), false},
			"400, after 2 seconds": {also(tried(Retried, 400, 5*time.Second), throttled), false},
		},
		// The third failure frees the later deliveries, unless the receiver asks for a pause.
		"ready again": {
			"200":                  {ended(Done, 200), true},
			"500":                  {also(tried(Retried, 500, 30*time.Minute), unordered), true},
			"none":                 {also(tried(Retried, 0, 30*time.Minute), unordered), true},
			"410":                  {ended(Failed, 410), true},
			"503":                  {also(tried(Retried, 503, 30*time.Minute), throttled), false},
			"429, after a day":     {also(tried(Retried, 429, 24*time.Hour), throttled), false},
			"400, after a minute":  {also(tried(Retried, 400, 30*time.Minute), throttled), false},
			"400, after 2 seconds": {also(tried(Retried, 400, 30*time.Minute), throttled), false},
		},
		"ready, unordered": {
			"200":                  {ended(Done, 200), false},
			"500":                  {tried(Retried, 500, 5*time.Hour), false},
			"none":                 {tried(Retried, 0, 5*time.Hour), false},
			"410":                  {ended(Failed, 410), false},
			"503":                  {also(tried(Retried, 503, 5*time.Hour), throttled), false},
			"429, after a day":     {also(tried(Retried, 429, 24*time.Hour), throttled), false},
			"400, after a minute":  {also(tried(Retried, 400, 5*time.Hour), throttled), false},
			"400, after 2 seconds": {also(tried(Retried, 400, 5*time.Hour), throttled), false},
		},
		// The tenth try is the last, whatever the receiver says.
		"ready, last try": {
			"200":                  {ended(Done, 200), false},
			"500":                  {tried(Failed, 500, week), false},
			"none":                 {tried(Failed, 0, week), false},
			"410":                  {ended(Failed, 410), false},
			"503":                  {tried(Failed, 503, week), false},
			"429, after a day":     {tried(Failed, 429, week), false},
			"400, after a minute":  {tried(Failed, 400, week), false},
			"400, after 2 seconds": {tried(Failed, 400, week), false},
		},
		// An attempt outside the schedule changes none of that, unless it succeeds.
		"retried": {
			"200":                  {ended(Done, 200), true},
			"500":                  {beside(500), false},
			"none":                 {beside(0), false},
			"410":                  {ended(Failed, 410), true},
			"503":                  {beside(503), false},
			"429, after a day":     {beside(429), false},
			"400, after a minute":  {beside(400), false},
			"400, after 2 seconds": {beside(400), false},
		},
		"retried, unordered": {
			"200":                  {ended(Done, 200), false},
			"500":                  {beside(500), false},
			"none":                 {beside(0), false},
			"410":                  {ended(Failed, 410), false},
			"503":                  {beside(503), false},
			"429, after a day":     {beside(429), false},
			"400, after a minute":  {beside(400), false},
			"400, after 2 seconds": {beside(400), false},
		},
	}
	otherwise := map[string]map[occasion]row{
		"new": {
			notWanted: {unwanted, true},
			tokenGone: {erased, true},
			heldBack:  {moved(Held), false},
		},
		"ready again": {
			notWanted: {unwanted, true},
			tokenGone: {erased, true},
			heldBack:  {moved(Held), false},
		},
		"ready, unordered": {
			notWanted: {unwanted, false},
			tokenGone: {erased, false},
			heldBack:  {moved(Held), false},
		},
		"ready, last try": {
			notWanted: {unwanted, false},
			tokenGone: {erased, false},
			heldBack:  {moved(Held), false},
		},
		"held": {
			tokenGone: {erased, true},
			released:  {moved(Ready), false},
		},
		"retried": {
			notWanted:   {unwanted, true},
			tokenGone:   {erased, true},
			ripe:        {moved(Ready), false},
			redelivered: {again, false},
		},
		"retried, unordered": {
			notWanted:   {unwanted, false},
			tokenGone:   {erased, false},
			ripe:        {moved(Ready), false},
			redelivered: {again, false},
		},
		"done": {
			redelivered: {also(again, unordered), false},
			outOfLog:    {erased, false},
		},
		"done, unordered": {
			redelivered: {again, false},
			outOfLog:    {erased, false},
		},
		"failed": {
			redelivered: {again, false},
			outOfLog:    {erased, false},
		},
	}

	check := func(what string, from Delivery, o occasion, a *Reply, want row) {
		t.Helper()
		means := want.change != nil
		next := from
		if means {
			want.change(&next)
		}
		got, ok := from.after(o, a, stateSchedule(week))
		if got != next || ok != means {
			t.Errorf("%s:\n got %+v, %v\nwant %+v, %v", what, got, ok, next, means)
		}
		if frees := from.holdsBack() && !got.holdsBack(); frees != want.frees {
			t.Errorf("%s: frees later deliveries: %v, want %v", what, frees, want.frees)
		}

		// Without a log the same happens, except that a delivery which has ended is erased.
		got, ok = from.after(o, a, stateSchedule(0))
		if means && next.Class >= Done {
			next.Class, next.Due = 0, time.Time{}
		}
		if got != next || ok != means {
			t.Errorf("%s, without a log:\n got %+v, %v\nwant %+v, %v", what, got, ok, next, means)
		}
	}
	for state, from := range deliveryStates() {
		for o := range occasion(occasions) {
			if o == attempted {
				for name, a := range answers {
					a.Began = stateAt.Add(-time.Second)
					check(fmt.Sprintf("%s, answered %s", state, name), from, o, &a, afterAttempt[state][name])
				}
				continue
			}
			check(fmt.Sprintf("%s, occasion %d", state, o), from, o, nil, otherwise[state][o])
		}
	}
}

// TestDeliveryGivesUp: a delivery that always fails is tried ten times, with the pauses of
// eventRetries, and frees later ones after the third.
func TestDeliveryGivesUp(t *testing.T) {
	d := Delivery{Class: Ready}
	for n := 1; ; n++ {
		next, ok := d.after(attempted, &Reply{Began: stateAt, Code: 500}, stateSchedule(deliveryRetention))
		if !ok || next.Attempts != uint64(n) {
			t.Fatalf("after attempt %d: %+v, %v", n, next, ok)
		}
		if next.holdsBack() != (n < eventHolds) {
			t.Errorf("after attempt %d it holds back later ones: %v", n, next.holdsBack())
		}
		if next.Class == Failed {
			if n != len(eventRetries)+1 {
				t.Errorf("it has failed after %d attempts", n)
			}
			return
		}
		if pause := next.Due.Sub(stateAt); pause != eventRetries[n-1] {
			t.Errorf("the pause after attempt %d is %v", n, pause)
		}
		if d, ok = next.after(ripe, nil, stateSchedule(deliveryRetention)); !ok {
			t.Fatalf("after attempt %d it does not become ready: %+v", n, next)
		}
	}
}
