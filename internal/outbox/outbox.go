// Package outbox passes the events of a vault on to their receivers: the webhooks of its
// accounts, and the event sink. It knows nothing of cards, and cannot ask for one.
//
//	Outbox     packs events as they happen, and does the background work that sends them
//	 ├ Parcel  the records that are written with one event
//	 └ shift   the time in which this process alone sends the deliveries of one queue
//
// A delivery is one event on its way to one receiver. [Delivery] is its state, and one pure
// function decides each next state. Each receiver has a queue, a record that is due when
// there is something to send, and whose children are the deliveries.
//
// The sink is one more receiver. Its queue belongs to the whole vault, and so do the
// deliveries in it: one shift passes on the events of all accounts. The sink has no log: a
// delivery that has ended is erased.
package outbox

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Kinds of records that an outbox uses. A number is never given a second meaning.
const (
	KindToken     store.Kind = 5
	KindEvent     store.Kind = 17 // the id of an event, which has no record
	KindWebhook   store.Kind = 20
	KindQueue     store.Kind = 21 // pending events of a webhook; its children are the deliveries
	KindDelivery  store.Kind = 22 // of an event to a receiver; child of its queue
	KindPast      store.Kind = 23 // the state of a token at an event that has deliveries, if it has changed since; its child
	KindSinkQueue store.Kind = 27 // pending events of the sink; its children are deliveries
)

// Deleted is the type of the event after which there is no token.
const Deleted = 3

// A Source is what an outbox asks of its vault. Nothing that a method returns, or that a
// function in it returns, holds bytes or text: a card cannot come this way.
type Source interface {
	// Receivers returns the webhooks of an account.
	Receivers(ctx context.Context, account uuid.UUID) (*Receivers, error)

	// Webhook returns the receiver of the record of a webhook.
	Webhook(ctx context.Context, r *store.Record) (*Receiver, error)

	// LastEvent returns the row key of the last event of a token, zero for a record that
	// cannot be read.
	LastEvent(ctx context.Context, token *store.Record) (uuid.UUID, error)
}

// Receivers are the webhooks of an account.
type Receivers struct {
	Account uuid.UUID      // row key of its record
	Version uint64         // of that
	None    bool           // the account has no webhook, also none that is disabled
	Of      [4][]uuid.UUID // row keys of webhooks that are enabled, by the type of event that they take
}

// A Receiver is a webhook as it was read, or the sink.
type Receiver struct {
	Version  uint64    // of its record
	Since    time.Time // when it was enabled, or got its URL
	Disabled bool
	Types    Types // of events that it takes

	// Message reads the event of a delivery and returns a function that makes one attempt
	// to send it. token is the record of its token, and past the state of the token at the
	// event if it has changed since; each may be nil.
	Message func(ctx context.Context, d *Delivery, token, past *store.Record) (send func(context.Context) *Reply, err error)

	// Disable disables the webhook, unless its URL or state has changed since it was read.
	Disable func(ctx context.Context, why string) error
}

// Reasons to disable a webhook.
const (
	Gone    = "gone"    // it has answered 410
	Failing = "failing" // it was too long without success
)

// Types is a set of types of events.
type Types uint8

// Any holds all types.
const Any = ^Types(0)

// Add adds a type.
func (t *Types) Add(typ uint8) { *t |= 1 << typ }

// Has reports whether a type is in the set.
func (t Types) Has(typ uint8) bool { return t>>typ&1 == 1 }

// A Config says what an Outbox works with.
type Config struct {
	Ledger *ledger.Ledger
	Log    *slog.Logger
	Source Source

	Webhooks    bool // the vault can send to webhooks; if not, their deliveries wait for a vault that can
	MaxWebhooks int  // of an account

	// Claim puts off the queue of a webhook whose account is frozen: see jobs.Kind.
	Claim func(context.Context, *jobs.Job) error

	// Sink takes the events of all accounts. If nil, there is no sink.
	Sink *Receiver

	Pace     func(time.Duration) time.Duration // the pause between two tries, of one as it is planned
	TypeName func(typ uint8) string            // of a type of events, for the log
}

// An Outbox passes on the events of one vault. All methods may be called concurrently once
// Attach has returned.
type Outbox struct {
	config Config
	ledger *ledger.Ledger
	log    *slog.Logger
	jobs   *jobs.Engine // set by Attach
	known  roll
	unread unread   // records that are due and could not be read
	shifts sync.Map // of queues: *inflow of the shift that is under way
}

// New returns an Outbox. Call Attach before anything else except Sweeps and Kinds.
func New(c Config) *Outbox { return &Outbox{config: c, ledger: c.Ledger, log: c.Log} }

// Attach sets the engine that does the work of Sweeps and Kinds.
func (o *Outbox) Attach(e *jobs.Engine) { o.jobs = e }

// Sweeps returns the background work that is done in batches.
func (o *Outbox) Sweeps() []jobs.Sweep {
	return []jobs.Sweep{
		{Records: []store.Kind{KindDelivery}, Step: o.ripen},
		{Records: []store.Kind{KindPast}, Step: o.erasePast},
	}
}

// Kinds returns the background work that runs job by job: sending from a queue.
func (o *Outbox) Kinds() []jobs.Kind {
	const longest = shiftTime + SendTimeout + 15*time.Second
	sinks, hooks := 0, 0
	if o.config.Sink != nil {
		sinks = sinkShifts
	}
	if o.config.Webhooks {
		hooks = hookShifts
	}
	return []jobs.Kind{
		{Records: KindSinkQueue, Workers: sinks, Longest: sinkLease * 2 / 3, Spare: true, Open: o.openQueue, Do: o.deliver},
		{Records: KindQueue, Workers: hooks, Longest: longest, Spare: true, Open: o.openQueue, Claim: o.config.Claim, Do: o.deliver},
	}
}

// sinkQueue is the row key of the queue of the sink.
var sinkQueue = uuid.UUID{15: 2}

// sinkRow stands for the sink where webhooks have a row key.
var sinkRow = Beside(sinkQueue)

// queueKind returns the kind of the record of a queue. The sink's queue is claimed by
// vaults that have a sink, whether they have a Sender for webhooks or not.
func queueKind(row uuid.UUID) store.Kind {
	if row == sinkQueue {
		return KindSinkQueue
	}
	return KindQueue
}
