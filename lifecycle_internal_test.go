package cardvault

import "testing"

// The rows of decisions, chapter 7, in their order. A pair that no row names
// means nothing: the state stays.
func TestStateMachine(t *testing.T) {
	const (
		none     = NetworkTokenNotAvailable
		pending  = NetworkTokenPending
		active   = NetworkTokenActive
		inactive = NetworkTokenInactive
		gone     = NetworkTokenDeleted
		failed   = NetworkTokenFailed
	)
	type pair struct {
		from NetworkTokenStatus
		on   trigger
	}
	rows := map[pair]NetworkTokenStatus{
		{pending, issued}: active, // the network answers with a token

		{pending, notAvailable}: none, // the network refuses by configuration

		{pending, refused}: failed, // final refusal, or transient failures used up

		{failed, requested}: pending, // POST provisions, configuration allows
		{none, requested}:   pending,

		{pending, requested}: pending, // unchanged, 200, no call to the network
		{active, requested}:  active,

		// inactive, deleted: 409

		{active, suspended}:   inactive, // suspend and resume notice
		{inactive, resumed}:   active,
		{inactive, suspended}: inactive, // by one more owner
		{active, resumed}:     active,   // by the last of several notices
		{active, issued}:      active,   // told again

		{active, deleted}:   gone, // by issuer or scheme, final
		{inactive, deleted}: gone,
		{pending, deleted}:  gone,

		{none, invalidated}:     gone, // any but deleted
		{pending, invalidated}:  gone,
		{active, invalidated}:   gone,
		{inactive, invalidated}: gone,
		{failed, invalidated}:   gone,

		{failed, issued}: active, // the network reports success late

		{active, cardChanged}:   active, // renewed or replaced: unchanged
		{inactive, cardChanged}: inactive,
	}
	for from := range NetworkTokenStatus(networkTokenStatuses) {
		for on := range trigger(triggers) {
			want, means := rows[pair{from, on}]
			if !means {
				want = from
			}
			if got, ok := from.after(on); got != want || ok != means {
				t.Errorf("%v after trigger %d: %v, %v; want %v, %v", from, on, got, ok, want, means)
			}
		}
	}
}

// The table is complete: no state and no trigger is left out of its bounds.
func TestStateMachineIsComplete(t *testing.T) {
	names := map[string]bool{}
	for s := range NetworkTokenStatus(255) {
		name := s.String()
		if known := name != "unknown"; known != (s < networkTokenStatuses) {
			t.Errorf("state %d is %q", s, name)
		}
		if got, ok := ParseNetworkTokenStatus(name); s < networkTokenStatuses && (got != s || !ok) {
			t.Errorf("%q is parsed as %v, %v", name, got, ok)
		}
		names[name] = true
	}
	if len(names) != networkTokenStatuses+1 || NetworkTokenFailed != networkTokenStatuses-1 {
		t.Errorf("%d names of %d states", len(names)-1, networkTokenStatuses)
	}
	if cardChanged != triggers-1 {
		t.Errorf("the last trigger is %d of %d", cardChanged, triggers)
	}
	for t2 := trigger(triggers); t2 != 0; t2++ {
		if got, ok := NetworkTokenActive.after(t2); ok || got != NetworkTokenActive {
			t.Errorf("trigger %d, which there is not, means something", t2)
		}
	}
	for on := range trigger(triggers) {
		if got, ok := NetworkTokenStatus(networkTokenStatuses).after(on); ok && on != invalidated {
			t.Errorf("state %d, which there is not, moves to %v on trigger %d", networkTokenStatuses, got, on)
		}
	}
}

// Every code of decisions, chapter 6, has its source and text, and there is no
// other.
func TestReasons(t *testing.T) {
	rows := []struct {
		source    Source
		retryable bool
		codes     []string
	}{
		{SourceScheme, false, []string{
			"card_not_eligible", "card_not_allowed", "card_verification_failed", "declined", "invalid_card_data", "provision_not_allowed",
			"suspended_by_issuer", "suspended_by_scheme", "suspended_by_cardholder",
			"deleted_by_issuer", "deleted_by_scheme", "account_closed",
		}},
		{SourceScheme, true, []string{"provision_data_expired", "issuer_unavailable", "scheme_unavailable", "timeout"}},
		{SourceConfiguration, false, []string{
			"network_tokens_not_activated", "no_network", "scheme_not_enabled", "merchant_not_enrolled",
			"ephemeral_token", "card_expired", "stale_account_number", "invalid_request",
		}},
	}
	n := 0
	for _, row := range rows {
		for _, code := range row.codes {
			n++
			if r := reasons[code]; r.source != row.source || r.retryable != row.retryable || r.text == "" {
				t.Errorf("%s: %+v", code, r)
			}
		}
	}
	if n != len(reasons) {
		t.Errorf("%d codes, want %d", len(reasons), n)
	}
}
