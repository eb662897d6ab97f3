package cardvault

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cardvault/cardvault/internal/backup"
	"github.com/cardvault/cardvault/internal/layers"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/invalid"
	"github.com/google/uuid"
)

// Errors of calls that concern one object.
var (
	// ErrNotFound is returned for an id that the account does not have: never issued,
	// deleted, expired, or of another account. The error is the same for all.
	ErrNotFound = ledger.ErrNotFound

	// ErrAccountFrozen is returned by all calls inside an account that is frozen: see
	// [Vault.FreezeAccount]. Sessions and card art are ErrNotFound meanwhile for callers who
	// have nothing but their ids.
	ErrAccountFrozen = ledger.ErrAccountFrozen

	// ErrSessionCompleted is returned by Tokenize and RefreshSecurityCode for a session
	// that has served its purpose.
	ErrSessionCompleted = errors.New("cardvault: session is completed")

	// ErrSessionKind is returned by Tokenize for a session in which a security code is
	// entered again, and by RefreshSecurityCode for a session that makes a token.
	ErrSessionKind = errors.New("cardvault: session is for another purpose")

	// ErrIdentificationPending is returned by Tokenize while the cardholder is
	// identified. See Session.
	ErrIdentificationPending = errors.New("cardvault: identification of the cardholder is pending")

	// ErrIdentificationFailed is returned by Tokenize if the cardholder was not
	// identified. There is no token, and the session has failed.
	ErrIdentificationFailed = errors.New("cardvault: cardholder was not identified")

	// ErrIdempotencyKeyReused is returned for an idempotency key that was used
	// for another request.
	ErrIdempotencyKeyReused = replay.ErrReused

	// ErrIdempotencyInProgress is returned while the call under this idempotency
	// key is being made. Repeat it in a second.
	ErrIdempotencyInProgress = replay.ErrInProgress

	// ErrTooManyNumbers is returned by Import, Replace, Tokenize and CompleteSession for a card
	// number if too many others with the same masked form were passed in since the UTC day
	// began: an attacker may be guessing the hidden digits. The limit is a thousandth of
	// the numbers that can be behind the mask, at least 3 and at most 100, divided by
	// [Options.Replicas]. A number that was accepted on that day may come again, until one
	// is refused. From then on, until the day ends, all numbers with the mask are refused.
	// Otherwise callers could find out which were accepted before.
	ErrTooManyNumbers = errors.New("cardvault: too many card numbers with the same mask")

	// ErrNetworkTokenState is returned by Provision for a network token that cannot be
	// provisioned any more, and for a token that cannot have one: inactive, deleted,
	// ephemeral, or of an invalidated card.
	ErrNetworkTokenState = errors.New("cardvault: state of the network token does not allow this")

	// ErrNoWebhook is returned by Redeliver for an event to which no enabled webhook
	// subscribes.
	ErrNoWebhook = errors.New("cardvault: no enabled webhook subscribes to the event")

	// ErrTooManySecrets is returned by RotateWebhookSecret while [receive.MaxSecrets] secrets
	// are active. Repeat it when the first of them has expired, WebhookSecretOverlap after it
	// was rotated.
	ErrTooManySecrets = errors.New("cardvault: webhook has too many active secrets")

	// ErrTestInProgress is returned by TestWebhook while another test of the webhook is
	// running. Repeat it in a few seconds.
	ErrTestInProgress = errors.New("cardvault: test of the webhook is in progress")

	// ErrNotEnabled comes with the error of a call for which the vault is not set up. The
	// error names the option.
	ErrNotEnabled = errors.New("cardvault: not enabled")

	// ErrProviderAccount is returned by ObtainPPAN for an account at the provider to which
	// the vault's account sends no cards: see [Account.ProviderAccounts].
	ErrProviderAccount = errors.New("cardvault: account sends no cards for this account at the provider")

	// ErrTokenInvalidated is returned by ObtainPPAN and Use for a token whose card the
	// scheme has invalidated. [Vault.Replace] gives the token another.
	ErrTokenInvalidated = errors.New("cardvault: card of the token was invalidated")

	// ErrCardDataStale is returned by ObtainPPAN and Use for a token whose card has a new
	// number that the vault does not know. [Vault.Replace] stores it.
	ErrCardDataStale = errors.New("cardvault: card number was replaced by the scheme")

	// ErrCardReplaced is returned by Replace, Tokenize and CompleteSession, by Update for an
	// expiry, and by package forward, for a token whose card another call, or an account updater,
	// has replaced meanwhile. Nothing was changed: see which card it has.
	ErrCardReplaced = errors.New("cardvault: card of the token was replaced by another call")

	// ErrCryptogramDeclined comes as a [*DeclinedError].
	ErrCryptogramDeclined = errors.New("cardvault: there is no cryptogram")

	// ErrProviderUnavailable is returned by ObtainPPAN if the provider could not be reached
	// or gave an answer that cannot be understood. It may or may not have received the
	// request.
	ErrProviderUnavailable = errors.New("cardvault: provider is unavailable")

	// ErrProviderTimeout is returned by ObtainPPAN if the provider did not answer within
	// Options.PPANTimeout. It may or may not have received the request.
	ErrProviderTimeout = errors.New("cardvault: provider did not answer in time")

	// ErrQuotaExceeded comes as a [*QuotaError], which names the quota.
	ErrQuotaExceeded = errors.New("cardvault: quota of the account is used up")

	// ErrAPIKeyDepth is returned for an API key that would be below the depth of
	// [MaxAPIKeyDepth].
	ErrAPIKeyDepth = errors.New("cardvault: creator of the API key is at the maximum depth")

	// ErrInsufficientScope is returned for an API key whose creator lacks a scope
	// that it should have.
	ErrInsufficientScope = errors.New("cardvault: creator of the API key lacks a scope")

	// ErrAPIKeyRevoked is returned by EnsureAPIKey for the text of a key that was revoked
	// or has expired. A new key needs another text.
	ErrAPIKeyRevoked = errors.New("cardvault: API key with this text was revoked or has expired: generate another text")

	// ErrAPIKeyDiffers is returned by EnsureAPIKey for the text of a key that has another
	// account, another creator, other scopes or other address ranges. The key stays as it is:
	// revoke it and make another text, or change its ranges by UpdateAPIKey.
	ErrAPIKeyDiffers = errors.New("cardvault: API key with this text has another account, another creator, other scopes or other address ranges")

	// ErrUnauthenticated is returned by Authenticate for any text that is not a valid API
	// key: malformed, unknown, revoked or expired.
	ErrUnauthenticated = errors.New("cardvault: no valid API key")
)

// Errors that concern the whole vault.
var (
	// ErrClosed is returned by every call after Close.
	ErrClosed = ledger.ErrClosed

	// ErrUnavailable comes with errors of the store or of the key provider that a later
	// call may not meet. Nothing was changed. Calls that use the security-code cache return
	// it too; their comments say what was done.
	ErrUnavailable = ledger.ErrUnavailable

	// ErrLedgerBehind is returned by a deletion that has taken effect, cannot be undone, and has
	// its record in the audit log, but not in [AuditOptions.Ledger] yet: see
	// AuditOptions.LedgerSync. The vault goes on trying. Until then a restore from a backup may
	// undo it.
	ErrLedgerBehind = errors.New("cardvault: deleted, and the ledger has no record of it yet")

	// ErrOutcomeUnknown comes with the error of a write whose commit failed in
	// a way that leaves open whether it took place. Repeat it under the same
	// idempotency key, or look.
	ErrOutcomeUnknown = ledger.ErrOutcomeUnknown

	// ErrDamaged comes with errors about stored data that differs from the data written: a
	// damaged file, or a row that was changed or moved. [Damaged] returns the records that
	// such an error names.
	ErrDamaged = ledger.ErrDamaged

	// ErrStorageFull comes with the error of a write for which there was no room. Reads and
	// deletions continue.
	ErrStorageFull = ledger.ErrStorageFull

	// ErrLocked is returned by Open for a directory that another process has open.
	ErrLocked = ledger.ErrLocked

	// ErrFormat is returned by Open and New for data written by a later version.
	ErrFormat = ledger.ErrFormat

	// ErrWrongKey is returned by Open and New for a key that is not the vault's, and by an
	// open vault that needs a key which another process has changed to: see ChangeKeyring.
	ErrWrongKey = ledger.ErrWrongKey

	// ErrWrongMode is returned by Open and New for a vault made in the other mode,
	// and for a live vault with an adapter that is for sandboxes.
	ErrWrongMode = ledger.ErrWrongMode

	// ErrFrozen is returned by Open and New for a vault that was restored from a backup, until
	// [Options.Thaw], and for a store into which one is being restored.
	ErrFrozen = ledger.ErrFrozen

	// ErrMoved is returned by every call, Open and New included, on the place from which a vault
	// moves to another, or has moved: see [Move].
	ErrMoved = ledger.ErrMoved

	// ErrRolledBack is returned by Open and New for a store that is older than its
	// [Options.Anchor], mostly as a [*RollbackError].
	ErrRolledBack = ledger.ErrRolledBack

	// ErrAnchor is returned by Open and New for an edited text of an anchor, for the text of another
	// vault, and for an [AnchorDir] inside the folder of the vault.
	ErrAnchor = ledger.ErrAnchor

	// ErrNotEmpty is returned by [Restore] and [Move] for a store that has records.
	ErrNotEmpty = backup.ErrNotEmpty

	// ErrChain is returned by [Restore] for increments that do not follow each other, and by
	// [Vault.Backup] for the manifest of another vault. The error names the backups.
	ErrChain = backup.ErrChain

	// ErrKeyFile comes with errors about a key file that cannot be used.
	ErrKeyFile = errors.New("cardvault: key file")

	// ErrKeyExhausted is returned by writes once the key of the current term
	// has sealed as much as is safe and no new term could be started.
	ErrKeyExhausted = ledger.ErrKeyExhausted

	// ErrTermActive is returned by RetireTerm for the term under which records are sealed.
	// RotateKeys starts another.
	ErrTermActive = ledger.ErrTermActive

	// ErrTermInUse comes as a [*TermInUseError].
	ErrTermInUse = errors.New("cardvault: key term is closed and its key is still needed")

	// ErrTermUnknown is returned by RetireTerm for a number that no key term has: see
	// [Vault.KeyReport].
	ErrTermUnknown = ledger.ErrTermUnknown

	// ErrRotating is returned by RotateSeries for a series whose last rotation is under way:
	// [Vault.Run] ends it.
	ErrRotating = ledger.ErrRotating
)

// A FieldError reports that a value breaks a rule. It names the field and
// never holds the value.
type FieldError struct {
	// Field is the Go name of the field, from the argument on, such as "Expiry.Month" of a
	// [Card]. An argument other than a struct has the name of its type or field elsewhere,
	// such as "Payload".
	Field string
	Code  invalid.Code

	// Message says what the rule is, such as "must be between 1 and 12".
	Message string
}

func (e *FieldError) Error() string {
	return "cardvault: " + e.Field + " " + e.Message
}

// FieldErrors returns every FieldError in the tree of err, in order.
// A call that is given several bad values reports all of them.
func FieldErrors(err error) []*FieldError { return layers.Errors[*FieldError](err) }

// A DamagedRecord names a stored record that differs from the record written.
type DamagedRecord struct {
	Kind string // such as "token" or "API key"

	// ID is the id as calls and answers print it. It is zero for records whose id is never
	// printed, and for records in a list that name another account or parent than the list.
	// These are one DamagedRecord for the whole page.
	ID uuid.UUID
}

// Damaged returns every record that err names as damaged, in order. Its errors wrap
// [ErrDamaged]. A list returns at most one for each item of the page.
func Damaged(err error) (records []DamagedRecord) {
	for _, d := range layers.Errors[*ledger.Damage](err) {
		records = append(records, DamagedRecord{d.Kind, d.ID})
	}
	return records
}

// A callError says what a call was doing when it failed.
type callError struct {
	verb     string
	err      error
	recorded bool // in the audit log
}

// Error begins with the package, which the errors inside name too.
func (e *callError) Error() string {
	const pkg = "cardvault: "
	return pkg + e.verb + ": " + strings.ReplaceAll(e.err.Error(), pkg, "")
}

func (e *callError) Unwrap() error { return e.err }

// Recorded says that the audit log has the call, if the vault has one. Package httpapi asks.
func (e *callError) Recorded() {}

var errNotOpened = errors.New("cardvault: vault was not opened: use Open or New")

// notEnabled returns ErrNotEnabled with the option that the vault lacks.
func notEnabled(lacks string) error { return fmt.Errorf("%w: %s", ErrNotEnabled, lacks) }

// doing lets the error of a call say what the call was doing. Every method that can fail
// defers it. A Vault that was not opened fails where it would panic. The audit log has the call,
// with the id of its object, unless its record was written with its change.
func (v *Vault) doing(ctx context.Context, verb string, err *error, object ...uuid.UUID) {
	if v == nil || v.core == nil {
		if recover() != nil {
			*err = errNotOpened
		}
		doing(verb, err)
		return
	}
	record(ctx, v.rows, verb, err, object...)
	doing(verb, err)
}

// record records a call in the audit log that was refused, has failed or has read. A read whose
// record is refused fails.
func record(ctx context.Context, rows ledger.Account, verb string, err *error, object ...uuid.UUID) {
	op, ok := recordedCalls[verb]
	inner, within := (*err).(*callError)
	if !ok || *err == nil && !op.IsRead() || within && inner.recorded {
		return
	}
	var id uuid.UUID
	if len(object) > 0 {
		id = object[0]
	}
	refused := rows.Note(ctx, op, id, *err)
	switch {
	case *err == nil:
		*err = refused
	default:
		*err = &callError{verb, *err, true}
	}
}

// doing is for calls of an open Vault. If calls make others, the outermost counts.
func doing(verb string, err *error) {
	if *err == nil {
		return
	}
	recorded := false
	for inner, ok := (*err).(*callError); ok; inner, ok = (*err).(*callError) {
		*err, recorded = inner.err, recorded || inner.recorded
	}
	*err = &callError{verb, *err, recorded}
}
