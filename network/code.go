package network

// A Code says why a network token has its status, why there is no cryptogram, or why a
// network refuses.
type Code string

// These codes have the source SourceScheme. An [Error] may have them.
const (
	// Provisioning has failed for good.
	CodeCardNotEligible        Code = "card_not_eligible"
	CodeCardNotAllowed         Code = "card_not_allowed"
	CodeCardVerificationFailed Code = "card_verification_failed"
	CodeDeclined               Code = "declined"
	CodeInvalidCardData        Code = "invalid_card_data"
	CodeProvisionNotAllowed    Code = "provision_not_allowed"

	// Provisioning has failed after a few tries.
	CodeProvisionDataExpired Code = "provision_data_expired"
	CodeIssuerUnavailable    Code = "issuer_unavailable"
	CodeSchemeUnavailable    Code = "scheme_unavailable"
	CodeTimeout              Code = "timeout"

	// The network token is inactive.
	CodeSuspendedByIssuer     Code = "suspended_by_issuer"
	CodeSuspendedByScheme     Code = "suspended_by_scheme"
	CodeSuspendedByCardholder Code = "suspended_by_cardholder"

	// The network token is deleted.
	CodeDeletedByIssuer Code = "deleted_by_issuer"
	CodeDeletedByScheme Code = "deleted_by_scheme"
	CodeAccountClosed   Code = "account_closed"
)

// These codes have the source SourceConfiguration. An [Error] may have them.
const (
	CodeNetworkTokensNotActivated Code = "network_tokens_not_activated"
	CodeNoNetwork                 Code = "no_network"
	CodeSchemeNotEnabled          Code = "scheme_not_enabled"
	CodeMerchantNotEnrolled       Code = "merchant_not_enrolled"
	CodeEphemeralToken            Code = "ephemeral_token"
	CodeCardExpired               Code = "card_expired"
	CodeStaleAccountNumber        Code = "stale_account_number"
	CodeInvalidRequest            Code = "invalid_request"
)

// These codes are only for payments: the vault uses them, and no network does.
const (
	CodeNetworkTokenPending  Code = "network_token_pending"
	CodeNetworkTokenInactive Code = "network_token_inactive"
	CodeNetworkTokenFailed   Code = "network_token_failed"
	CodeNetworkTokenDeleted  Code = "network_token_deleted"
	CodeTokenInvalidated     Code = "token_invalidated"
	CodeCryptogramDeclined   Code = "cryptogram_declined"
	CodeNoEncryptionKey      Code = "no_encryption_key"
	CodeNotSupported         Code = "not_supported"
)

// Message returns what the code says to humans, "" for an unknown code.
func (c Code) Message() string { return codes[c].message }

// Retryable reports whether the cause is transient, so that the same request may succeed later.
func (c Code) Retryable() bool { return codes[c].retryable }

// SourceOf returns the source to which the code of a refusal or of a state belongs, 0 for
// other codes.
func SourceOf(c Code) Source { return codes[c].source }

var codes = map[Code]struct {
	source    Source
	retryable bool
	message   string
}{
	CodeCardNotEligible:        {SourceScheme, false, "The issuer does not allow tokens for this card."},
	CodeCardNotAllowed:         {SourceScheme, false, "The issuer allows no more tokens for this card."},
	CodeCardVerificationFailed: {SourceScheme, false, "The issuer could not verify the card."},
	CodeDeclined:               {SourceScheme, false, "The issuer declined the request."},
	CodeInvalidCardData:        {SourceScheme, false, "The issuer does not recognize the card data."},
	CodeProvisionNotAllowed:    {SourceScheme, false, "The issuer does not allow provisioning for this card."},

	CodeProvisionDataExpired: {SourceScheme, true, "The provisioning data has expired."},
	CodeIssuerUnavailable:    {SourceScheme, true, "The issuer is unavailable."},
	CodeSchemeUnavailable:    {SourceScheme, true, "The scheme is unavailable."},
	CodeTimeout:              {SourceScheme, true, "The scheme did not respond in time."},

	CodeSuspendedByIssuer:     {SourceScheme, false, "The issuer has suspended the network token."},
	CodeSuspendedByScheme:     {SourceScheme, false, "The scheme has suspended the network token."},
	CodeSuspendedByCardholder: {SourceScheme, false, "The network token was suspended on behalf of the cardholder."},
	CodeDeletedByIssuer:       {SourceScheme, false, "The issuer has deleted the network token."},
	CodeDeletedByScheme:       {SourceScheme, false, "The scheme has deleted the network token."},
	CodeAccountClosed:         {SourceScheme, false, "The card is no longer valid."},

	CodeNetworkTokensNotActivated: {SourceConfiguration, false, "Network tokens are not activated for the account."},
	CodeNoNetwork:                 {SourceConfiguration, false, "No network is configured."},
	CodeSchemeNotEnabled:          {SourceConfiguration, false, "Network tokens are not enabled for the scheme."},
	CodeMerchantNotEnrolled:       {SourceConfiguration, false, "The merchant is not enrolled for network tokens."},
	CodeEphemeralToken:            {SourceConfiguration, false, "A token that expires does not get a network token."},
	CodeCardExpired:               {SourceConfiguration, false, "The card has expired."},
	CodeStaleAccountNumber:        {SourceConfiguration, false, "The card has a new number that the vault does not have."},
	CodeInvalidRequest:            {SourceConfiguration, false, "The network could not process the request."},

	CodeNetworkTokenPending:  {0, true, "The network token is still being provisioned."},
	CodeNetworkTokenInactive: {0, false, "The network token is suspended."},
	CodeNetworkTokenFailed:   {0, false, "Provisioning of the network token has failed."},
	CodeNetworkTokenDeleted:  {0, false, "The network token is deleted."},
	CodeTokenInvalidated:     {0, false, "The card is no longer valid."},
	CodeCryptogramDeclined:   {0, false, "The scheme declined the request."},
	CodeNoEncryptionKey:      {0, false, "The merchant has no active payment secret."},
	CodeNotSupported:         {0, false, "The network has no payments that the merchant initiates."},
}
