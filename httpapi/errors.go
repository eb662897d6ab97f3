package httpapi

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/receive"
)

// A failure is an answer other than success.
type failure struct {
	status     int
	classifier string
	message    string
	violations violations

	header, value string // one more response header, if set

	details []cardvault.Failure // why there is no cryptogram
}

// The table of failures. Each error is answered by one of these.
var (
	malformedRequest    = &failure{status: 400, classifier: "MALFORMED_REQUEST", message: "The request cannot be read."}
	badIdempotencyKey   = &failure{status: 400, classifier: "MALFORMED_REQUEST", message: "The idempotency key must be 1 to 255 printable ASCII characters, given once."}
	bodyMissing         = &failure{status: 400, classifier: "MALFORMED_REQUEST", message: "The request needs a JSON body."}
	unsupportedVersion  = &failure{status: 400, classifier: "UNSUPPORTED_VERSION", message: "The version must be 1.0."}
	unauthorized        = &failure{status: 401, classifier: "UNAUTHORIZED", message: "The header x-api-key must hold a valid API key.", header: "WWW-Authenticate", value: `ApiKey realm="cardvault"`}
	accountFrozen       = &failure{status: 403, classifier: "ACCOUNT_FROZEN", message: "The account is frozen."}
	insufficientScope   = &failure{status: 403, classifier: "INSUFFICIENT_SCOPE", message: "The API key lacks a scope."}
	notAKey             = &failure{status: 403, classifier: "INSUFFICIENT_SCOPE", message: "Managing API keys requires an API key of the vault."}
	importNotApproved   = &failure{status: 403, classifier: "IMPORT_NOT_APPROVED", message: "The account is not approved to import card numbers."}
	integrationDisabled = &failure{status: 403, classifier: "INTEGRATION_NOT_ENABLED", message: "The provider integration is not enabled."}
	webhooksDisabled    = &failure{status: 403, classifier: "INTEGRATION_NOT_ENABLED", message: "Webhooks are not enabled."}
	forwardsDisabled    = &failure{status: 403, classifier: "INTEGRATION_NOT_ENABLED", message: "Forwarding is not enabled."}
	auditDisabled       = &failure{status: 403, classifier: "INTEGRATION_NOT_ENABLED", message: "The audit log is not enabled."}
	destinationRefused  = &failure{status: 403, classifier: "DESTINATION_NOT_ALLOWED", message: "The operator does not allow this request to this URL."}
	originNotAllowed    = &failure{status: 403, classifier: "ORIGIN_NOT_ALLOWED", message: "Pages of this origin may not use the account's sessions."}
	notFound            = &failure{status: 404, classifier: "NOT_FOUND", message: "There is no such resource."}
	methodNotAllowed    = &failure{status: 405, classifier: "METHOD_NOT_ALLOWED", message: "The resource does not support this method.", header: "Allow"}
	sessionCompleted    = &failure{status: 409, classifier: "SESSION_COMPLETED", message: "The session is already completed."}
	idempotencyPending  = &failure{status: 409, classifier: "IDEMPOTENCY_IN_PROGRESS", message: "A request with this idempotency key is in progress.", header: "Retry-After", value: "1"}
	networkTokenState   = &failure{status: 409, classifier: "NETWORK_TOKEN_STATE_CONFLICT", message: "The state of the network token does not allow this."}
	cardReplaced        = &failure{status: 409, classifier: "CARD_REPLACED", message: "Another request has replaced the card meanwhile."}
	cardDataStale       = &failure{status: 409, classifier: "CARD_DATA_STALE", message: "The scheme has replaced the stored card number."}
	tokenInvalidated    = &failure{status: 409, classifier: "TOKEN_INVALIDATED", message: "The scheme has invalidated the card."}
	codeNotAvailable    = &failure{status: 409, classifier: "SECURITY_CODE_NOT_AVAILABLE", message: "The security code of the token is not available."}
	cryptogramDeclined  = &failure{status: 409, classifier: "CRYPTOGRAM_DECLINED", message: "There is no cryptogram for this payment."}
	noWebhook           = &failure{status: 409, classifier: "WEBHOOK_STATE_CONFLICT", message: "No enabled webhook subscribes to the event."}
	quotaExceeded       = &failure{status: 409, classifier: "QUOTA_EXCEEDED"}
	tooManySecrets      = &failure{status: 409, classifier: "WEBHOOK_STATE_CONFLICT", message: fmt.Sprintf("The webhook already has %d active secrets. Wait until one expires.", receive.MaxSecrets)}
	keyTooDeep          = &failure{status: 409, classifier: "QUOTA_EXCEEDED", message: "The API key is at the maximum depth and cannot create other keys."}
	payloadTooLarge     = &failure{status: 413, classifier: "PAYLOAD_TOO_LARGE", message: "The body is too large."}
	unsupportedMedia    = &failure{status: 415, classifier: "UNSUPPORTED_MEDIA_TYPE", message: "The body must be application/json."}
	validationFailed    = &failure{status: 422, classifier: "VALIDATION_FAILED"}
	idempotencyReused   = &failure{status: 422, classifier: "IDEMPOTENCY_KEY_REUSED", message: "The idempotency key was already used for a different request."}
	testInProgress      = &failure{status: 429, classifier: "RATE_LIMITED", message: "A test of this webhook is already in progress.", header: "Retry-After", value: "5"}
	rateLimited         = &failure{status: 429, classifier: "RATE_LIMITED", message: "Too many requests.", header: "Retry-After"}
	tooManyNumbers      = &failure{status: 429, classifier: "RATE_LIMITED", message: "Too many different card numbers with the same first and last digits were sent today.", header: "Retry-After"}
	internalError       = &failure{status: 500, classifier: "INTERNAL_ERROR", message: "Something went wrong."}
	providerUnavailable = &failure{status: 502, classifier: "PROVIDER_UNAVAILABLE", message: "The provider could not be reached, or its response could not be understood. It may or may not have received the request."}
	unreachable         = &failure{status: 502, classifier: "PROVIDER_UNAVAILABLE", message: "The destination could not be reached. It has received nothing."}
	forwardUnknown      = &failure{status: 502, classifier: "PROVIDER_UNAVAILABLE", message: "Outcome unknown: the destination may or may not have received the request."}
	forwardTimeout      = &failure{status: 504, classifier: "PROVIDER_TIMEOUT", message: "Outcome unknown: the destination did not respond in time. It may or may not have received the request."}
	serviceUnavailable  = &failure{status: 503, classifier: "SERVICE_UNAVAILABLE", message: "The service is unavailable.", header: "Retry-After", value: "5"}
	outcomeUnknown      = &failure{status: 503, classifier: "SERVICE_UNAVAILABLE", message: "The service failed during a write. The request may or may not have taken effect.", header: "Retry-After", value: "5"}
	ledgerBehind        = &failure{status: 503, classifier: "SERVICE_UNAVAILABLE", message: "The deletion has taken effect. A restored backup may undo it until its record is kept elsewhere.", header: "Retry-After", value: "5"}
	providerTimeout     = &failure{status: 504, classifier: "PROVIDER_TIMEOUT", message: "The provider did not respond in time. It may or may not have received the request."}
	insufficientStorage = &failure{status: 503, classifier: "SERVICE_UNAVAILABLE", message: "The service is out of storage space.", header: "Retry-After", value: "5"}
)

// causes maps errors of the vault to failures, the first that fits.
var causes = []struct {
	err error
	*failure
}{
	{cardvault.ErrNotFound, notFound},
	{cardvault.ErrUnauthenticated, unauthorized},
	{cardvault.ErrAccountFrozen, accountFrozen},
	{cardvault.ErrInsufficientScope, insufficientScope},
	{cardvault.ErrAPIKeyDepth, keyTooDeep},
	{cardvault.ErrSessionCompleted, sessionCompleted},
	{cardvault.ErrNetworkTokenState, networkTokenState},
	{cardvault.ErrNotEnabled, integrationDisabled},
	{cardvault.ErrProviderAccount, integrationDisabled},
	{cardvault.ErrTokenInvalidated, tokenInvalidated},
	{cardvault.ErrCardDataStale, cardDataStale},
	{cardvault.ErrCardReplaced, cardReplaced},
	{forward.ErrDestination, destinationRefused},
	{forward.ErrTooLarge, payloadTooLarge},
	{forward.ErrNoSecurityCode, codeNotAvailable},
	{cardvault.ErrNoWebhook, noWebhook},
	{cardvault.ErrTooManySecrets, tooManySecrets},
	{cardvault.ErrTestInProgress, testInProgress},
	{cardvault.ErrProviderUnavailable, providerUnavailable},
	{cardvault.ErrProviderTimeout, providerTimeout},
	{cardvault.ErrIdempotencyInProgress, idempotencyPending},
	{cardvault.ErrIdempotencyKeyReused, idempotencyReused},
	{cardvault.ErrTooManyNumbers, tooManyNumbers},
	{cardvault.ErrLedgerBehind, ledgerBehind},
	{cardvault.ErrOutcomeUnknown, outcomeUnknown},
	{cardvault.ErrStorageFull, insufficientStorage},
	{cardvault.ErrUnavailable, serviceUnavailable},
	{cardvault.ErrClosed, serviceUnavailable},
	{cardvault.ErrMoved, serviceUnavailable},
	{cardvault.ErrKeyExhausted, serviceUnavailable},
	{cardvault.ErrWrongKey, serviceUnavailable}, // this process lacks a key that another has changed to
	{context.DeadlineExceeded, serviceUnavailable},
	{context.Canceled, serviceUnavailable},
}

// failed returns how an error of the vault is answered.
func failed(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}

	var v violations
	v.merge("", err)
	if len(v) > 0 {
		return unprocessable(v)
	}

	var q *cardvault.QuotaError
	if errors.As(err, &q) {
		f := *quotaExceeded
		f.message = fmt.Sprintf("The account has reached its limit for %s: %d.", fieldNames["Quotas."+q.Quota], q.Limit)
		return &f
	}

	if d, ok := errors.AsType[*cardvault.DeclinedError](err); ok {
		f := *cryptogramDeclined
		f.details = d.PaymentData.Failures
		return &f
	}

	for _, c := range causes {
		switch {
		case !errors.Is(err, c.err):
		case c.failure == tooManyNumbers:
			return tooManyNumbers.with(strconv.Itoa(untilMidnight(time.Now())))
		default:
			return c.failure
		}
	}
	return internalError
}

// untilMidnight returns the number of seconds until the UTC day has ended.
func untilMidnight(now time.Time) int {
	const day = 24 * 60 * 60
	return day - int(now.Unix()%day)
}

func unprocessable(v violations) *failure {
	f := *validationFailed
	f.violations, f.message = v, v.message()
	return &f
}

// lacksScope says which scope a key needs.
func lacksScope(s cardvault.Scope) *failure {
	f := *insufficientScope
	f.message = "The API key needs the scope " + string(s) + "."
	return &f
}

// with returns f with the value of its header.
func (f *failure) with(value string) *failure {
	g := *f
	g.value = value
	return &g
}

// Error makes a failure an error, so that handlers can return one.
func (f *failure) Error() string { return "httpapi: " + f.classifier }
