package renewal

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/google/uuid"
)

const period = 30 * 24 * time.Hour

// begun returns a round that follows another.
func begun(r *round, at time.Time) *round {
	next, _ := r.end(period)
	next.began = at
	return next
}

// TestTurns: whenever rounds begin, each token has its turn once in each period, and for the
// first time in the round after it was made.
func TestTurns(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		made := start.Add(time.Duration(random.Int64N(int64(200 * 24 * time.Hour)))).Truncate(time.Microsecond)
		r := begun(new(round), start)
		var turns []time.Time
		for r.began.Before(start.Add(500 * 24 * time.Hour)) {
			if r.wait(made, period) == 0 {
				turns = append(turns, r.began)
			}
			r = begun(r, r.began.Add(time.Duration(1+random.Int64N(int64(3*24*time.Hour)))))
		}

		if len(turns) == 0 || turns[0].Sub(made) > 3*24*time.Hour+margin {
			t.Fatalf("made at %v, turns at %v", made, turns)
		}
		for i, turn := range turns {
			if n := turn.Sub(made) / period; int(n) != i {
				t.Errorf("turn %d is in period %d", i, n)
			}
		}
	}
}

// TestFirstRound: all tokens have their turn in the first round of a vault, and in a round
// after a pause of more than a period.
func TestFirstRound(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	first := begun(new(round), at)
	for _, r := range []*round{first, begun(first, at.Add(3*period))} {
		for age := range 100 {
			if wait := r.wait(r.began.Add(-time.Duration(age)*31*time.Hour-margin), period); wait != 0 {
				t.Errorf("a token of %d hours waits for %v", 31*age, wait)
			}
		}
		if wait := r.wait(r.began.Add(time.Microsecond), period); wait >= 0 {
			t.Errorf("a token that was made after the round began waits for %v", wait)
		}
		if wait := r.wait(r.began.Add(-margin/2), period); wait != 0 && r == first || wait >= 0 && r != first {
			t.Errorf("a token that was made just before waits for %v", wait)
		}
	}
}

// TestWait: the next token that has its turn is found, and none is passed over.
func TestWait(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	r := begun(begun(new(round), at), at.Add(24*time.Hour))
	for range 1000 {
		made := r.began.Add(-time.Duration(random.Int64N(int64(400 * 24 * time.Hour)))).Truncate(time.Microsecond)
		wait := r.wait(made, period)
		if wait == 0 {
			continue
		}
		if before := r.wait(made.Add(wait-time.Microsecond), period); before != time.Microsecond {
			t.Errorf("a microsecond too early: %v", before)
		}
		if got := r.wait(made.Add(wait), period); got != 0 {
			t.Errorf("in time: %v", got)
		}
	}
}

func TestStored(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &round{updater: "vau", last: at, began: at.Add(1), at: place{uuid.New(), uuid.New(), uuid.New(), 2, time.Time{}}, cards: 3}
	for i := range mostWaiting {
		r.waiting = append(r.waiting, place{uuid.New(), uuid.New(), uuid.New(), uint64(i), at.Add(time.Duration(i) * time.Second)})
	}
	r.began = r.began.Truncate(time.Microsecond)
	if got, err := decodeRound(r.encode()); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := decodeRound([]byte{1, 200}); err == nil {
		t.Error("damage is not noticed")
	}

	s := &submission{updater: "vau"}
	for i := range 100 {
		s.cards = append(s.cards, entry{uuid.New(), Card{uint64(i), card.Scheme(i % 3), card.Expiry{Month: 1 + i%12, Year: 2030 + i}}})
	}
	var f tlv.Fields
	f.From(tlv.Encode(s.fields))
	got := new(submission)
	got.fields(&f)
	if f.Err() != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("%+v, %v", got, f.Err())
	}
}
