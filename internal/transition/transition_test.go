package transition_test

import (
	"testing"

	"github.com/cardvault/cardvault/internal/transition"
	"github.com/cardvault/cardvault/network"
)

const (
	triggers = 9
	states   = network.Failed + 1
)

// TestStateMachine: each row is a state, a trigger and the resulting state. A pair without a
// row changes nothing.
func TestStateMachine(t *testing.T) {
	const (
		none     = network.NotAvailable
		pending  = network.Pending
		active   = network.Active
		inactive = network.Inactive
		gone     = network.Deleted
		failed   = network.Failed
	)
	type pair struct {
		from network.Status
		on   transition.Trigger
	}
	rows := map[pair]network.Status{
		{pending, transition.Issued}: active, // the network answers with a token

		{pending, transition.NotAvailable}: none, // the network refuses by configuration

		{pending, transition.Refused}: failed, // final refusal, or transient failures used up

		{failed, transition.Requested}: pending, // POST provisions, configuration allows
		{none, transition.Requested}:   pending,

		{pending, transition.Requested}: pending, // unchanged, 200, no call to the network
		{active, transition.Requested}:  active,

		// inactive, deleted: 409

		{active, transition.Suspended}:   inactive, // suspend and resume notice
		{inactive, transition.Resumed}:   active,
		{inactive, transition.Suspended}: inactive, // by a further owner
		{active, transition.Resumed}:     active,   // by the last of several notices
		{active, transition.Issued}:      active,   // issued again

		{active, transition.Deleted}:   gone, // by issuer or scheme, final
		{inactive, transition.Deleted}: gone,
		{pending, transition.Deleted}:  gone,

		{none, transition.Invalidated}:     gone, // from any state except deleted
		{pending, transition.Invalidated}:  gone,
		{active, transition.Invalidated}:   gone,
		{inactive, transition.Invalidated}: gone,
		{failed, transition.Invalidated}:   gone,

		{failed, transition.Issued}: active, // the network reports success late

		{active, transition.CardChanged}:   active, // renewed or replaced: unchanged
		{inactive, transition.CardChanged}: inactive,
	}
	for from := range states {
		for on := range transition.Trigger(triggers) {
			want, means := rows[pair{from, on}]
			if !means {
				want = from
			}
			if got, ok := transition.Next(from, on); got != want || ok != means {
				t.Errorf("%v after trigger %d: %v, %v; want %v, %v", from, on, got, ok, want, means)
			}
		}
	}
}

// TestStateMachineIsComplete: the table covers every state and every trigger.
func TestStateMachineIsComplete(t *testing.T) {
	names := map[string]bool{}
	for s := range network.Status(255) {
		name := s.String()
		if known := name != "unknown"; known != (s < states) {
			t.Errorf("state %d is %q", s, name)
		}
		names[name] = true
	}
	if len(names) != int(states)+1 || network.Failed != states-1 {
		t.Errorf("%d names of %d states", len(names)-1, states)
	}
	if transition.CardChanged != triggers-1 {
		t.Errorf("the last trigger is %d of %d", transition.CardChanged, triggers)
	}
	for t2 := transition.Trigger(triggers); t2 != 0; t2++ {
		if got, ok := transition.Next(network.Active, t2); ok || got != network.Active {
			t.Errorf("trigger %d, which does not exist, changes the state", t2)
		}
	}
	for on := range transition.Trigger(triggers) {
		if got, ok := transition.Next(states, on); ok && on != transition.Invalidated {
			t.Errorf("state %d, which does not exist, moves to %v on trigger %d", states, got, on)
		}
	}
}
