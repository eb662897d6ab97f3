package cardvault

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/auditlog"
	"github.com/cardvault/cardvault/internal/enum"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/invalid"
	"github.com/google/uuid"
)

// AuditOptions configure the audit log, which package audit describes. The zero value keeps
// records for ever and records no reads.
type AuditOptions struct {
	// Reads also records calls that read tokens and other objects, and lists. Uses of a
	// card, and calls that were refused or have failed, are always recorded.
	Reads bool

	// Failure says what happens to a call whose record cannot be written, and to all calls
	// while Sink has kept nothing for a minute. Defaults to AuditRefuse in live mode and to
	// AuditContinue in sandbox mode.
	Failure AuditFailure

	// Retention is the age at which records are erased, at least 365 days in live mode and an
	// hour in sandbox mode. [Vault.Run] erases them. Defaults to for ever.
	Retention time.Duration

	// Sink keeps checkpoints elsewhere. If nil, Verify does not notice that a log was cut
	// off, or restored from a backup.
	Sink audit.Sink

	// Ledger keeps the whole log elsewhere, within seconds, for RestoreOptions.Ledger. If nil,
	// deletions after the last export are undone by a restore.
	Ledger audit.Ledger

	// LedgerSync limits the wait of Delete, DeleteAPIKey, DeleteAPIKeyBy, DeleteWebhook and
	// CloseAccount for Ledger, 100 milliseconds to a minute: they return nil only once it has their
	// record, and ErrLedgerBehind if it does not in time. Failure has to be AuditRefuse. If zero,
	// they do not wait.
	LedgerSync time.Duration
}

// An AuditFailure says what happens to a call whose audit record cannot be written.
type AuditFailure uint8

const (
	AuditRefuse   AuditFailure = iota + 1 // it returns ErrUnavailable
	AuditContinue                         // it goes on, and a later record counts such calls
)

var auditFailures = enum.Names{AuditRefuse: "refuse", AuditContinue: "continue"}

// String returns "refuse" or "continue".
func (f AuditFailure) String() string { return auditFailures.Of(uint8(f)) }

// MarshalText returns the name, or an error for a number without one.
func (f AuditFailure) MarshalText() ([]byte, error) { return enum.Text(f, AuditFailure.String) }

// UnmarshalText reads what MarshalText writes.
func (f *AuditFailure) UnmarshalText(text []byte) error {
	return enum.Read(text, f, AuditFailure.String)
}

// Retention of audit records in live mode is at least that of PCI DSS 10.5.1.
const minAuditRetention = 365 * 24 * time.Hour

func (o *Options) completeAudit() error {
	if o.Audit == nil {
		return nil
	}

	a := *o.Audit
	least, failure := minAuditRetention, AuditRefuse
	if o.Mode == Sandbox {
		least, failure = time.Hour, AuditContinue
	}
	if a.Failure == 0 {
		a.Failure = failure
	}
	if a.Failure > AuditContinue {
		return errors.New("cardvault: Options.Audit.Failure must be AuditRefuse or AuditContinue")
	}
	if a.Retention != 0 && a.Retention < least {
		return fmt.Errorf("cardvault: Options.Audit.Retention must be at least %v", least)
	}
	switch {
	case a.LedgerSync == 0:
	case a.LedgerSync < 100*time.Millisecond || a.LedgerSync > time.Minute:
		return errors.New("cardvault: Options.Audit.LedgerSync must be between 100ms and 1m")
	case a.Ledger == nil || a.Failure != AuditRefuse:
		return errors.New("cardvault: Options.Audit.LedgerSync needs Options.Audit.Ledger and AuditRefuse")
	}
	o.Audit = &a
	return nil
}

var auditKinds = auditlog.Kinds{Record: kindAuditRecord, Checkpoint: kindAuditCheckpoint, Chain: kindAuditChain, Segment: kindAuditSegment}

// newAudit returns the audit log, nil without Options.Audit.
func newAudit(c *core) *auditlog.Log {
	o := c.opts.Audit
	if o == nil {
		return nil
	}
	return auditlog.New(auditlog.Config{
		Ledger: c.ledger, Log: c.log,
		Kinds:    auditKinds,
		Continue: o.Failure == AuditContinue, Reads: o.Reads, Retention: o.Retention, Sink: o.Sink, Export: o.Ledger,
		Actor: auditActor, Classify: classify,
	})
}

// A LedgerReport says how far [AuditOptions.Ledger] is behind the vault, as this process knows.
type LedgerReport struct {
	Accounts int       // whose last records the ledger lacks
	Since    time.Time // of the longest wait, or of its last progress; zero: it lacks nothing
}

// LedgerReport returns how far the ledger is behind. It is zero without one.
func (v *Vault) LedgerReport() (r LedgerReport) {
	if v != nil && v.core != nil && v.audit != nil {
		r.Accounts, r.Since = v.audit.Behind()
	}
	return r
}

// inLedger waits for the ledger, if deletions do.
func inLedger(ctx context.Context, v *Vault, verb string) error {
	if v.audit == nil || v.opts.Audit.LedgerSync == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, v.opts.Audit.LedgerSync)
	defer cancel()
	if err := v.audit.Exported(ctx, v.ledger.In(v.rows.ID)); err != nil {
		return &callError{verb, fmt.Errorf("%w: %w", ErrLedgerBehind, err), true} // the log has the deletion
	}
	return nil
}

const maxActor = 255 // bytes of a text of an actor in a record

// auditActor returns the actor of a call as it is recorded.
func auditActor(ctx context.Context) audit.Actor {
	a, _ := ctx.Value(actorKey{}).(Actor)
	return audit.Actor{KeyID: a.KeyID, Name: auditText(a.Name), Address: auditText(a.Address), RequestID: auditText(a.RequestID)}
}

// auditText returns a text of an actor as it is recorded.
func auditText(text string) string {
	if text == "" {
		return ""
	}
	text = strings.ToValidUTF8(text[:min(len(text), maxActor)], "")
	if leak.LooksLikePAN([]byte(text)) && !leak.RequestID(text) { // which a UUID is
		return "withheld"
	}
	return text
}

// classifiers maps errors to the classifiers of records, mostly those of the REST API.
var classifiers = []struct {
	err     error
	outcome audit.Outcome
	name    string
}{
	{ErrOutcomeUnknown, audit.Failed, "OUTCOME_UNKNOWN"},
	{ErrNotFound, audit.Refused, "NOT_FOUND"},
	{ErrUnauthenticated, audit.Refused, "UNAUTHORIZED"},
	{ErrAccountFrozen, audit.Refused, "ACCOUNT_FROZEN"},
	{ErrInsufficientScope, audit.Refused, "INSUFFICIENT_SCOPE"},
	{ErrQuotaExceeded, audit.Refused, "QUOTA_EXCEEDED"},
	{ErrAPIKeyDepth, audit.Refused, "QUOTA_EXCEEDED"},
	{ErrTooManyNumbers, audit.Refused, "RATE_LIMITED"},
	{ErrTestInProgress, audit.Refused, "RATE_LIMITED"},
	{ErrSessionCompleted, audit.Refused, "SESSION_COMPLETED"},
	{ErrSessionKind, audit.Refused, "SESSION_KIND"},
	{ErrIdentificationPending, audit.Refused, "IDENTIFICATION_PENDING"},
	{ErrIdentificationFailed, audit.Refused, "IDENTIFICATION_FAILED"},
	{ErrIdempotencyKeyReused, audit.Refused, "IDEMPOTENCY_KEY_REUSED"},
	{ErrIdempotencyInProgress, audit.Refused, "IDEMPOTENCY_IN_PROGRESS"},
	{ErrNetworkTokenState, audit.Refused, "NETWORK_TOKEN_STATE_CONFLICT"},
	{ErrNotEnabled, audit.Refused, "INTEGRATION_NOT_ENABLED"},
	{ErrProviderAccount, audit.Refused, "INTEGRATION_NOT_ENABLED"},
	{ErrTokenInvalidated, audit.Refused, "TOKEN_INVALIDATED"},
	{ErrCardDataStale, audit.Refused, "CARD_DATA_STALE"},
	{ErrCardReplaced, audit.Refused, "CARD_REPLACED"},
	{ErrTermActive, audit.Refused, "TERM_IN_USE"},
	{ErrTermInUse, audit.Refused, "TERM_IN_USE"},
	{ErrTermUnknown, audit.Refused, "NOT_FOUND"},
	{ErrRotating, audit.Refused, "ROTATION_IN_PROGRESS"},
	{ErrNoWebhook, audit.Refused, "WEBHOOK_STATE_CONFLICT"},
	{ErrTooManySecrets, audit.Refused, "WEBHOOK_STATE_CONFLICT"},
	{ErrProviderTimeout, audit.Failed, "PROVIDER_TIMEOUT"},
	{ErrProviderUnavailable, audit.Failed, "PROVIDER_UNAVAILABLE"},
	{ErrStorageFull, audit.Failed, "STORAGE_FULL"},
	{ErrDamaged, audit.Failed, "DAMAGED"},
	{ErrUnavailable, audit.Failed, "SERVICE_UNAVAILABLE"},
	{ErrClosed, audit.Failed, "SERVICE_UNAVAILABLE"},
	{ErrMoved, audit.Failed, "SERVICE_UNAVAILABLE"},
	{context.Canceled, audit.Failed, "CANCELED"},
	{context.DeadlineExceeded, audit.Failed, "TIMEOUT"},
}

// classify returns how a call with an error is recorded.
func classify(err error) (audit.Outcome, string) {
	if len(FieldErrors(err)) > 0 {
		return audit.Refused, "VALIDATION_FAILED"
	}
	for _, c := range classifiers {
		if errors.Is(err, c.err) {
			return c.outcome, c.name
		}
	}
	if border, ok := errors.AsType[*borderRefusal](err); ok {
		return border.outcome, border.class
	}
	return audit.Failed, "INTERNAL_ERROR"
}

// recordedCalls are the operations of the calls of a Vault by their verbs: see Vault.doing. Calls that
// use a card report that themselves.
var recordedCalls = map[string]ledger.Operation{
	"import card": opImport, "get token": ledger.Reads("token.read"), "list tokens": ledger.Reads("token.list"),
	"update token": opUpdate, "delete token": opDelete, "replace card": opReplace, "replace session": opReplaceSession,
	"provision network token": opProvision, "suspend network token": opNetworkToken, "resume network token": opNetworkToken, "apply notice": opNotice,
	"request payment data": opPaymentData, "get payment data": ledger.Reads("payment_data.read"), "list payment data": ledger.Reads("payment_data.list"),
	"create session": opCreateSession, "get session": ledger.Reads("session.read"), "get session status": ledger.Reads("session.read"),
	"complete session": opTokenize, "tokenize card": opTokenize, "refresh session": opRefreshSession, "refresh security code": opRefreshSecurityCode,
	"get security code status": ledger.Reads("security_code.read"), "consume security code": opConsume, "get card art": ledger.Reads("card_art.read"),
	"create account": opCreateAccount, "get account": ledger.Reads("account.read"), "list accounts": ledger.Reads("account.list"), "update account": opUpdateAccount,
	"freeze account": opFreezeAccount, "thaw account": opThawAccount, "close account": opCloseAccount,
	"create merchant": opCreateMerchant, "ensure merchant": opCreateMerchant, "get merchant": ledger.Reads("merchant.read"),
	"get primary merchant": ledger.Reads("merchant.read"), "list merchants": ledger.Reads("merchant.list"), "rotate payment secret": opRotateSecret,
	"revoke payment secret": opRevokeSecret, "revoke previous payment secret": opRevokeSecret, "revoke previous webhook secrets": opRevokeWebhookSecret, "get API key": ledger.Reads("api_key.read"),
	"create API key": opCreateAPIKey, "ensure API key": opCreateAPIKey, "list API keys": ledger.Reads("api_key.list"), "update API key": opUpdateAPIKey, "delete API key": opDeleteAPIKey,
	"authenticate": ledger.Adds("authenticate"), "rotate keys": ledger.OpRotateKeys, "rotate key series": ledger.OpRotateKeys, "change keyring": ledger.OpChangeKeyring, "retire term": ledger.OpRetireTerm, "report keys": ledger.Reads("keys.read"),
	"create webhook": opCreateWebhook, "get webhook": ledger.Reads("webhook.read"), "list webhooks": ledger.Reads("webhook.list"),
	"update webhook": opUpdateWebhook, "delete webhook": opDeleteWebhook, "rotate webhook secret": opRotateWebhook, "test webhook": ledger.Takes("webhook.test"),
	"list deliveries": ledger.Reads("delivery.list"), "redeliver event": opRedeliver,
	"set credential": opSetCredential, "get credential": ledger.Reads("credential.read"), "delete credential": opDeleteCredential,
	"back up": opBackup, "begin sums": ledger.OpBeginSums, "verify": ledger.Reads("vault.verify"), "scrub": ledger.Reads("vault.scrub"), "repair": opRepair, "read audit records": opReadAudit, "export audit log": opExportAudit,
}

// Reading the audit log is recorded always: PCI DSS 10.2.1.3.
var (
	opReadAudit   = ledger.Takes("audit.read")
	opExportAudit = ledger.Takes("audit.export")
	opAuditStart  = ledger.Takes("audit.start")
	opAuditStop   = ledger.Takes("audit.stop")
)

// A borderRefusal is the reason of a border for refusing a request.
type borderRefusal struct {
	outcome audit.Outcome
	class   string
}

func (r *borderRefusal) Error() string { return "cardvault: request was refused" }

// RecordRefusal records that a request for the account was refused before it became a call of
// the vault, such as for a missing scope. Package httpapi calls it. operation and classifier
// must be constants of the program. Many refusals that are alike have one record a minute.
// It does nothing without Options.Audit.
func (v *Vault) RecordRefusal(ctx context.Context, operation string, outcome audit.Outcome, classifier string) {
	if v != nil && v.core != nil {
		_ = v.rows.Note(ctx, ledger.Adds(operation), uuid.Nil, &borderRefusal{outcome, classifier}) // it is refused in any case
	}
}

// An AuditQuery selects audit records of an account. The zero value selects all, newest first.
type AuditQuery struct {
	// From and To bound the time at which records were written, both inclusive: up to a
	// second after their calls. Zero: no bound.
	From, To time.Time

	Operation string    // such as "token.import"; "": all
	ObjectID  uuid.UUID // zero: all

	Ascending bool      // oldest first
	Limit     int       // records of a page, 1 to MaxLimit; 0 means DefaultLimit
	After     uuid.UUID // Next of the page before; zero: the first page
}

// An AuditPage is a part of the audit log of an account.
type AuditPage struct {
	Records []*audit.Record

	// Next continues the list after this page; zero: this is the last page. A page has fewer
	// than Limit records if the vault has read 5,000 others to find them.
	Next uuid.UUID
}

// AuditRecords returns a page of the audit records of the account. q may be nil. The handle
// In(uuid.Nil) has those of the whole vault and of unknown callers. If records are damaged,
// the page comes with an error: see [Page]. The call itself is recorded.
//
// Errors: ErrNotEnabled without Options.Audit; FieldErrors.
func (v *Vault) AuditRecords(ctx context.Context, q *AuditQuery) (_ *AuditPage, err error) {
	defer v.doing(ctx, "read audit records", &err)
	if v.audit == nil {
		return nil, notEnabled("Options.Audit is nil")
	}
	if q == nil {
		q = new(AuditQuery)
	}
	list := ListOptions{Limit: q.Limit, From: q.From, To: q.To}
	if err := list.check(); err != nil {
		return nil, err
	}

	of := auditlog.Query{From: q.From, To: q.To, Operation: q.Operation, ObjectID: q.ObjectID, Ascending: q.Ascending, Limit: q.Limit}
	if of.Limit == 0 {
		of.Limit = DefaultLimit
	}
	if q.After != uuid.Nil {
		if of.After = v.rows.Unmask(kindAuditRecord, q.After); of.After == uuid.Nil {
			return nil, &FieldError{"After", invalid.Format, "must be Next of a page"}
		}
	}
	records, next, err := v.audit.Page(ctx, v.ledger.In(v.rows.ID), &of) // also of a frozen or closed account
	if records == nil && err != nil {
		return nil, err
	}
	p := &AuditPage{Records: records}
	if next != uuid.Nil {
		p.Next = v.rows.Mask(kindAuditRecord, next)
	}
	if err == nil {
		err = v.rows.Note(ctx, opReadAudit, uuid.Nil, nil)
	}
	return p, err
}

// AllAuditRecords iterates over the audit records of the account. q may be nil; its Limit is
// the number of records that are read at a time.
func (v *Vault) AllAuditRecords(ctx context.Context, q *AuditQuery) iter.Seq2[*audit.Record, error] {
	return func(yield func(*audit.Record, error) bool) {
		var next AuditQuery
		if q != nil {
			next = *q
		}

		for {
			p, err := v.AuditRecords(ctx, &next)
			if p != nil {
				for _, r := range p.Records {
					if !yield(r, nil) {
						return
					}
				}
			}
			if err != nil && !yield(nil, err) || p == nil || p.Next == uuid.Nil {
				return
			}
			next.After = p.Next
		}
	}
}

// ExportAudit writes the audit log of the account to w, for [audit.Verify]. from and to leave
// out what was recorded before and after; zero is no bound. Memory does not depend on the
// length of the log. The handle In(uuid.Nil) has the log of the whole vault. A damaged log is
// not an error: Verify names the damage. The call is recorded before the first byte is written.
//
// Errors: ErrNotEnabled without Options.Audit; ErrUnavailable without a record; errors of w.
func (v *Vault) ExportAudit(ctx context.Context, w io.Writer, from, to time.Time) (err error) {
	defer v.doing(ctx, "export audit log", &err)
	if v.audit == nil {
		return notEnabled("Options.Audit is nil")
	}
	if _, err := v.rows.NoteFirst(ctx, opExportAudit, uuid.Nil); err != nil {
		return err
	}
	return v.audit.Export(ctx, v.ledger.In(v.rows.ID), from, to, w)
}

// AuditPublicKeys returns the keys that verify the checkpoints of the vault, in their order:
// see [audit.VerifyOptions]. The last one signs. Keep them outside of the vault. They are nil
// without Options.Audit.
func (v *Vault) AuditPublicKeys() []ed25519.PublicKey {
	if v == nil || v.core == nil || v.audit == nil {
		return nil
	}
	return v.ledger.Box.Keys().AuditPublic()
}
