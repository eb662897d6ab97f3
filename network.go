package cardvault

import (
	"time"

	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/network"
)

// How many owners and states package network has. Their numbers are stored.
const (
	ownerCount           = network.OwnerCardholder + 1
	networkTokenStatuses = network.Failed + 1
)

// A Reason explains a network token status other than active and pending.
type Reason struct {
	Source network.Source `json:"source"`
	// Code is, of network.SourceScheme,
	//   - card_not_eligible, card_not_allowed, card_verification_failed, declined,
	//     invalid_card_data, provision_not_allowed: failed for good
	//   - provision_data_expired, issuer_unavailable, scheme_unavailable, timeout:
	//     failed, after some tries
	//   - suspended_by_issuer, suspended_by_scheme, suspended_by_cardholder
	//   - deleted_by_issuer, deleted_by_scheme, account_closed
	//
	// and, of network.SourceConfiguration, network_tokens_not_activated, no_network,
	// scheme_not_enabled, merchant_not_enrolled, ephemeral_token, card_expired,
	// stale_account_number or invalid_request.
	Code       string    `json:"code"`
	Message    string    `json:"message"` // for humans
	Retryable  bool      `json:"retryable"`
	SchemeCode string    `json:"scheme_code"` // what the network said, "" if it said nothing
	OccurredAt time.Time `json:"occurred_at"`
}

// codeOf returns the code of a refusal and the network's own. A code that is
// not one of the source counts as scheme_unavailable or invalid_request.
func codeOf(e *network.Error, source network.Source) (code, schemeCode string) {
	code, schemeCode = e.Code, e.SchemeCode
	if s := network.SourceOf(code); s == 0 || s != source {
		if schemeCode == "" {
			schemeCode = code
		}
		code = "scheme_unavailable"
		if source == network.SourceConfiguration {
			code = "invalid_request"
		}
	}
	return code, schemeText(schemeCode)
}

// Each code of a [Reason] with its text, and whether the cause may pass.
var reasons = map[string]struct {
	retryable bool
	text      string
}{
	"card_not_eligible":        {false, "The issuer does not allow tokens for this card."},
	"card_not_allowed":         {false, "The issuer allows no further tokens for this card."},
	"card_verification_failed": {false, "The issuer could not verify the card."},
	"declined":                 {false, "The issuer declined the request."},
	"invalid_card_data":        {false, "The issuer does not know the card by this data."},
	"provision_not_allowed":    {false, "The issuer does not allow provisioning for this card."},

	"provision_data_expired": {true, "The data of the provisioning has expired."},
	"issuer_unavailable":     {true, "The issuer is unavailable."},
	"scheme_unavailable":     {true, "The scheme is unavailable."},
	"timeout":                {true, "The scheme did not answer in time."},

	"suspended_by_issuer":     {false, "The issuer has suspended the network token."},
	"suspended_by_scheme":     {false, "The scheme has suspended the network token."},
	"suspended_by_cardholder": {false, "The network token was suspended on behalf of the cardholder."},
	"deleted_by_issuer":       {false, "The issuer has deleted the network token."},
	"deleted_by_scheme":       {false, "The scheme has deleted the network token."},
	"account_closed":          {false, "The card is no longer valid."},

	"network_tokens_not_activated": {false, "Network tokens are not activated for the account."},
	"no_network":                   {false, "No network is configured."},
	"scheme_not_enabled":           {false, "Network tokens are not enabled for the scheme."},
	"merchant_not_enrolled":        {false, "The merchant is not enrolled for network tokens."},
	"ephemeral_token":              {false, "A token that expires gets no network token."},
	"card_expired":                 {false, "The card has expired."},
	"stale_account_number":         {false, "The card has a new number that is not known."},
	"invalid_request":              {false, "The network cannot use the request."},
}

// schemeText returns a code of the network as it may be kept.
func schemeText(code string) string {
	if checkText("scheme_code", []byte(code)) != nil || leak.MayHoldPAN(code) {
		return ""
	}
	return code
}
