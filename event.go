package cardvault

import (
	"context"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/outbox"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/receive"
	"github.com/google/uuid"
)

// An Event reports a change of a token. It holds no card number, security code or
// cryptogram.
type Event struct {
	ID        uuid.UUID           `wire:"id"` // of the event; the same when it is delivered again
	CreatedAt time.Time           `wire:"created_at"`
	Type      receive.EventType   `wire:"event_type"`
	Reason    receive.EventReason `wire:"reason"`

	// Sequence rises in the order in which the events of an account come about. It has
	// gaps.
	Sequence uint64 `wire:"sequence"`

	// Token is the token as it was then, nil for [receive.TokenDeleted]. It has no Fingerprint.
	Token *Token `wire:"token,id=TokenID"`

	// PreviousLastFour is of the card number before, for [receive.ReasonCardReplaced] and
	// [receive.ReasonCardUpdatedByIssuer], else "".
	PreviousLastFour string `wire:"previous_account_number_last_four,left_out"`

	TokenID uuid.UUID
	Account uuid.UUID // like Session it is in no JSON: receivers of one account need neither

	// Session is the session in which the card of Token was entered, zero of one passed in. It is
	// completed and accepts no other card, so a program can look up the session's purpose by
	// it.
	Session SessionID
}

// An EventSink receives the events of all accounts, from [Vault.Run] and
// [Vault.Drain].
type EventSink interface {
	// Event takes an event, which it may keep. It has 15 seconds, the deadline of
	// ctx, and is called concurrently: for up to 64 tokens of an account, and 128 in all.
	//
	// Every event arrives at least once. It arrives again, with the same ID, when Event
	// has returned an error, panicked or taken too long, or the process has died.
	// After failures the pauses are 5 s, 5 min, 30 min, 2, 5, 10, 14, 20 and 24 h,
	// in sandbox mode 5 s at most. An event that has failed ten times is dropped,
	// with an error in the log.
	//
	// The events of a token arrive in their order, one by one. An event that has failed
	// three times no longer holds back the later ones. Deleting a token drops its
	// undelivered events, except the event of the deletion. That event waits for a call
	// in progress in this process. A call in progress in another process may still return
	// after it.
	//
	// Undelivered events stay stored until a vault with a sink runs on the store. One
	// process at a time passes them on. If it dies, all wait until its lease ends: half a
	// minute at most.
	Event(ctx context.Context, e *Event) error
}

// An AccountSink is an [EventSink] that also hears of the end of accounts. Give it to every process
// that calls Run: a process without it ends accounts silently.
type AccountSink interface {
	EventSink

	// AccountClosed is called after [Vault.CloseAccount], once nothing of the account is left and its
	// network tokens are deleted. Account.State is [AccountClosed] as soon as it has returned nil.
	// Undelivered events of the account were erased: this is the only one that still comes.
	//
	// It has 15 seconds, the deadline of ctx. It is called again, a minute later or more, when it has
	// returned an error, panicked or taken too long, or the process has died: the account is closing
	// until then. It does the same again for an account that comes again.
	AccountClosed(ctx context.Context, account uuid.UUID) error
}

// eventTypes are the types of events by their stored numbers. The outbox knows the number
// of a deletion.
var eventTypes = [4]receive.EventType{
	1:              receive.TokenCreated,
	2:              receive.TokenUpdated,
	outbox.Deleted: receive.TokenDeleted,
}

// eventType returns the type that is stored as a number, or "".
func eventType(n uint64) receive.EventType {
	if n < uint64(len(eventTypes)) {
		return eventTypes[n]
	}
	return ""
}

// typeNumber returns the number of a type, 0 if it has none.
func typeNumber(t receive.EventType) uint8 { return uint8(max(0, slices.Index(eventTypes[:], t))) }

// reasonOf returns the reason of the change from was to is.
func reasonOf(was, is *Token) receive.EventReason {
	switch {
	case was.Status != is.Status:
		return receive.ReasonInvalidated
	case was.NetworkTokenStatus != is.NetworkTokenStatus,
		was.NetworkTokenStatusReason != is.NetworkTokenStatusReason:
		return receive.ReasonNetworkTokenStatusChanged
	}
	return receive.ReasonCardUpdated
}

// shows makes t the token of e, as it was then.
func (e *Event) shows(t *Token) {
	t.Fingerprint, t.prints, t.PaymentAccountReference = Fingerprint{}, seal.Prints{}, ""
	e.Token, e.Session = t, t.session
	if e.Reason == receive.ReasonCardReplaced || e.Reason == receive.ReasonCardUpdatedByIssuer {
		e.PreviousLastFour = t.former
	}
}

// event returns an event without its token.
func (v *Vault) event(row uuid.UUID, typ receive.EventType, reason receive.EventReason, token uuid.UUID) *Event {
	return &Event{
		ID:        v.rows.Mask(kindEvent, row),
		CreatedAt: rowkey.Time(row),
		Account:   v.rows.ID,
		Type:      typ,
		Reason:    reason,
		Sequence:  rowkey.Sequence(row),
		TokenID:   v.rows.Mask(kindToken, token),
	}
}
