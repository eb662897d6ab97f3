package network

import "testing"

// Every code has its source and text, and there are no other codes.
func TestReasons(t *testing.T) {
	rows := []struct {
		source    Source
		retryable bool
		codes     []Code
	}{
		{SourceScheme, false, []Code{
			"card_not_eligible", "card_not_allowed", "card_verification_failed", "declined", "invalid_card_data", "provision_not_allowed",
			"suspended_by_issuer", "suspended_by_scheme", "suspended_by_cardholder",
			"deleted_by_issuer", "deleted_by_scheme", "account_closed",
		}},
		{SourceScheme, true, []Code{"provision_data_expired", "issuer_unavailable", "scheme_unavailable", "timeout"}},
		{SourceConfiguration, false, []Code{
			"network_tokens_not_activated", "no_network", "scheme_not_enabled", "merchant_not_enrolled",
			"ephemeral_token", "card_expired", "stale_account_number", "invalid_request",
		}},
		{0, true, []Code{"network_token_pending"}},
		{0, false, []Code{
			"network_token_inactive", "network_token_failed", "network_token_deleted", "token_invalidated", "cryptogram_declined", "no_encryption_key", "not_supported",
		}},
	}
	n := 0
	for _, row := range rows {
		for _, code := range row.codes {
			n++
			if SourceOf(code) != row.source || code.Retryable() != row.retryable || code.Message() == "" {
				t.Errorf("%s: %+v", code, codes[code])
			}
		}
	}
	if n != len(codes) {
		t.Errorf("%d codes, want %d", len(codes), n)
	}
}
