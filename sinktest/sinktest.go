// Package sinktest proves that a [cardvault.EventSink] keeps its contract.
//
// The author of one writes one test:
//
//	func TestSink(t *testing.T) {
//		sinktest.Run(t, sinktest.Harness{
//			Open:  func(testing.TB) cardvault.EventSink { return billing.NewSink(db) },
//			Count: func(ctx context.Context, id uuid.UUID) (int, error) { return billing.Handled(ctx, db, id) },
//		})
//	}
//
// Each subtest is one rule. When it fails it says the rule and why a vault depends on it.
package sinktest

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/google/uuid"
)

// A Harness says how to test a sink. Open is required.
type Harness struct {
	// Open returns the sink, a new one or the same each time: all work on the same state.
	// It may skip or fail the test that it is given, and uses its Cleanup.
	Open func(t testing.TB) cardvault.EventSink

	// Count returns how often the effect of an event has come about, by the id of the
	// event. If nil, only what Event returns is tested.
	Count func(ctx context.Context, id uuid.UUID) (int, error)

	// Effects are the types of events that have an effect. If empty, all have. Events of
	// other types are accepted, and not counted.
	Effects []receive.EventType
}

// Run checks every rule of the contract.
func Run(t *testing.T, h Harness) { contract.Run(t, rules, h.suite) }

// A suite is a sink under test.
type suite struct {
	Harness
	sink     cardvault.EventSink
	account  uuid.UUID
	sequence uint64
}

func (h Harness) suite(t testing.TB) *suite {
	if h.Open == nil {
		t.Fatal("sinktest: Harness.Open is missing")
	}
	s := &suite{Harness: h, sink: h.Open(t), account: uuid.New()}
	if s.sink == nil {
		t.Fatal("sinktest: Harness.Open returned nil")
	}
	return s
}

var rules = []contract.Rule[*suite]{{
	Name: "Takes",
	Why: `Event accepts events of each type and reason, about tokens in any state. The event of a
deletion has no Token. After an error or a panic an event is repeated for two days, and holds
back later ones.`,
	Check: takes,
}, {
	Name: "Unknown",
	Why: `Event accepts an event of an unknown type and reason: later versions have more. An event that
is refused ten times is dropped, after holding back the others.`,
	Check: unknown,
}, {
	Name: "Again",
	Why: `A repeated event is accepted, and has its effect only once. Every event arrives at least once,
and again if the process dies before the vault has recorded its acceptance.`,
	Check: again,
}, {
	Name: "AtOnce",
	Why: `The same holds for concurrent calls: a process whose lease has ended may still be handling an
event that another process passes on.`,
	Check: atOnce,
}, {
	Name: "Restart",
	Why: `After a restart the sink still knows the events that it accepted: once Event has returned nil,
the vault forgets the event.`,
	Check: restart,
}, {
	Name: "Late",
	Why: `An older event of a token is accepted after a later one: an event that has failed three times
no longer holds back the others.`,
	Check: late,
}, {
	Name: "ContextEnded",
	Why: `A call whose context has ended returns at once, with an error, or with nil if the event was
accepted. A hanging call takes a place from other accounts, and is repeated meanwhile.`,
	Check: contextEnded,
}, {
	Name:  "Concurrency",
	Why:   `Event is called concurrently, for up to 64 tokens of an account.`,
	Check: concurrency,
}}

// event returns an event of a token that may be new.
func (s *suite) event(token uuid.UUID, typ receive.EventType, reason receive.EventReason, status network.Status) *cardvault.Event {
	s.sequence++
	e := &cardvault.Event{
		ID:        uuid.New(),
		CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
		Account:   s.account,
		Type:      typ,
		Reason:    reason,
		TokenID:   token,
		Sequence:  s.sequence,
	}

	if typ != receive.TokenDeleted {
		e.Token = &cardvault.Token{
			ID:                  token,
			CreatedAt:           e.CreatedAt,
			Scheme:              card.VISA,
			Expiry:              card.Expiry{Month: 12, Year: time.Now().Year() + 3},
			IIN:                 "411111",
			LastFour:            "1111",
			MaskedAccountNumber: "411111******1111",
			NetworkTokenStatus:  status,
		}
	}
	return e
}

// effective returns an event of a new token, of a type that has an effect.
func (s *suite) effective() *cardvault.Event {
	switch {
	case s.counts(receive.TokenCreated):
		return s.event(uuid.New(), receive.TokenCreated, receive.ReasonImported, network.Pending)
	case s.counts(receive.TokenUpdated):
		return s.event(uuid.New(), receive.TokenUpdated, receive.ReasonCardUpdated, network.Active)
	}
	return s.event(uuid.New(), receive.TokenDeleted, receive.ReasonExpired, 0)
}

// counts reports whether events of a type have an effect.
func (s *suite) counts(typ receive.EventType) bool {
	return len(s.Effects) == 0 || slices.Contains(s.Effects, typ)
}

// taken passes on an event as a vault does, which gives the sink one of its own.
func (s *suite) taken(t testing.TB, sink cardvault.EventSink, what string, e *cardvault.Event) {
	t.Helper()
	if err := s.pass(t.Context(), sink, e); err != nil {
		t.Fatalf("Event of %s = %v, want nil", what, err)
	}
}

func (s *suite) pass(ctx context.Context, sink cardvault.EventSink, e *cardvault.Event) error {
	const deadline = time.Minute // more than a vault gives: the machine may be slow
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	own := *e
	if e.Token != nil {
		token := *e.Token
		own.Token = &token
	}
	return sink.Event(ctx, &own)
}

// once checks that an event has had its effect once.
func (s *suite) once(t testing.TB, what string, e *cardvault.Event) {
	t.Helper()
	if s.Count == nil || !s.counts(e.Type) {
		return
	}
	n, err := s.Count(t.Context(), e.ID)
	if err != nil {
		t.Fatalf("Harness.Count: %v", err)
	}
	if n != 1 {
		t.Errorf("an event %s has had its effect %d times, want once", what, n)
	}
}

func takes(t testing.TB, s *suite) {
	token := uuid.New()
	for _, e := range []*cardvault.Event{
		s.event(token, receive.TokenCreated, receive.ReasonImported, network.Pending),
		s.event(token, receive.TokenUpdated, receive.ReasonNetworkTokenStatusChanged, network.Active),
		s.event(token, receive.TokenUpdated, receive.ReasonNetworkTokenStatusChanged, network.Inactive),
		s.event(token, receive.TokenUpdated, receive.ReasonCardUpdated, network.Active),
		s.event(token, receive.TokenUpdated, receive.ReasonInvalidated, network.Deleted),
		s.event(token, receive.TokenDeleted, receive.ReasonExpired, 0),
		s.event(uuid.New(), receive.TokenDeleted, receive.ReasonExpired, 0), // of a token whose other events were dropped
	} {
		s.taken(t, s.sink, string(e.Type)+", "+string(e.Reason), e)
		s.once(t, "of "+string(e.Type), e)
	}
}

func unknown(t testing.TB, s *suite) {
	s.taken(t, s.sink, "an unknown type", s.event(uuid.New(), "token_examined", "later_version", network.Active))
}

func again(t testing.TB, s *suite) {
	e := s.effective()
	for range 3 {
		s.taken(t, s.sink, "a token, repeated", e)
	}
	s.once(t, "that arrives three times", e)
}

func atOnce(t testing.TB, s *suite) {
	e := s.effective()
	var failed atomic.Bool
	contract.Parallel(t, 8, func(int) error {
		if s.pass(t.Context(), s.sink, e) != nil {
			failed.Store(true)
		}
		return nil
	})
	if failed.Load() {
		s.taken(t, s.sink, "a token, after concurrent calls of which some failed", e)
	}
	s.once(t, "that arrives eight times at once", e)
}

func restart(t testing.TB, s *suite) {
	e := s.effective()
	s.taken(t, s.sink, "a token", e)
	s.taken(t, s.Open(t), "a token, repeated after a restart", e)
	s.once(t, "that arrives again after a restart", e)
}

func late(t testing.TB, s *suite) {
	token := uuid.New()
	first := s.event(token, receive.TokenCreated, receive.ReasonImported, network.Pending)
	second := s.event(token, receive.TokenDeleted, receive.ReasonExpired, 0)
	for _, e := range []*cardvault.Event{second, first} {
		s.taken(t, s.sink, "a token, out of order", e)
	}
}

func contextEnded(t testing.TB, s *suite) {
	e := s.effective()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error, 1)
	go func() { done <- s.pass(ctx, s.sink, e) }()
	select {
	case err := <-done:
		if err == nil {
			s.once(t, "that was taken after its context had ended", e)
		}
	case <-time.After(contract.Promptness(t)):
		t.Fatalf("Event with a context that has ended: still waiting after %v", contract.Promptness(t))
	}
	s.taken(t, s.sink, "a token, after a call that was cut off", e)
	s.once(t, "that arrives again after a call that was cut off", e)
}

func concurrency(t testing.TB, s *suite) {
	events := make([]*cardvault.Event, 64)
	for i := range events {
		events[i] = s.effective()
	}
	contract.Parallel(t, len(events), func(i int) error { return s.pass(t.Context(), s.sink, events[i]) })
	for _, e := range slices.Backward(events) {
		s.once(t, "of one token of many", e)
	}
}
