package cardvault

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/outbox"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/internal/transition"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A networkToken is the vault's state of the network token of a token, and its pending
// work: provision it, poll, reconcile. Its record has the row key of the token and is due
// when there is work. The status is the token's; the number of the network token is never
// kept.
type networkToken struct {
	scheme  card.Scheme
	network string // Name of the Network
	id      string // the network's handle; "" until it is known

	// attempt numbers the provisionings: it is in the idempotency key, and rises
	// once the outcome of the former one is known. unsure is whether the network may
	// have seen the key in a call that has ended, with an outcome that is unknown.
	attempt uint64
	unsure  bool

	tries uint64    // calls made for the present step
	since time.Time // when polling began
	slot  bool      // due when the rate limit allows it

	news
	suspendedBy network.Owners
	card        network.CardState // the network's last report

	art   string    // the network's id of the art
	artID uuid.UUID // of the art that the token shows

	problem Reason // last transient failure: Code and SchemeCode
}

// news is the time of the latest known change to each part of a network token, by the clock
// of the network. Each owner suspends on its own.
type news struct {
	stateAt, cardAt, artAt time.Time
	ownerAt                [ownerCount]time.Time
}

const (
	networkScheme = iota + 1
	networkName
	networkID
	networkAttempt
	networkCalled // of a former state of this version: a call may be under way
	networkUnsure
	networkTries
	networkSince
	networkSlot
	networkSuspendedBy
	networkStateAt
	networkCardAt
	networkArtAt
	networkLastFour
	networkMonth
	networkYear
	networkArt
	networkArtID
	networkProblem
	networkProblemCode
	networkOwnerAt // one for each owner; ownerCount numbers
)

func (n *networkToken) fields(f *tlv.Fields) {
	tlv.Uint(f, networkScheme, &n.scheme)
	tlv.Text(f, networkName, &n.network)
	tlv.Text(f, networkID, &n.id)

	tlv.Uint(f, networkAttempt, &n.attempt)
	f.Bool(networkUnsure, &n.unsure)
	tlv.Uint(f, networkTries, &n.tries)
	f.Time(networkSince, &n.since)
	f.Bool(networkSlot, &n.slot)

	tlv.Uint(f, networkSuspendedBy, &n.suspendedBy)
	f.Time(networkStateAt, &n.stateAt)
	f.Time(networkCardAt, &n.cardAt)
	f.Time(networkArtAt, &n.artAt)

	tlv.Text(f, networkLastFour, &n.card.LastFour)
	tlv.Uint(f, networkMonth, &n.card.Expiry.Month)
	tlv.Uint(f, networkYear, &n.card.Expiry.Year)
	tlv.Text(f, networkArt, &n.art)
	tlv.ID(f, networkArtID, &n.artID)

	tlv.Text(f, networkProblem, &n.problem.Code)
	tlv.Text(f, networkProblemCode, &n.problem.SchemeCode)
	for o := range n.ownerAt {
		f.Time(networkOwnerAt+byte(o), &n.ownerAt[o])
	}
}

func (n *networkToken) encode(b []byte) []byte {
	var f tlv.Fields
	f.To(b)
	n.fields(&f)
	return f.Bytes()
}

func decodeNetworkToken(plain []byte) (*networkToken, error) {
	var f tlv.Fields
	f.From(plain)
	n, called := new(networkToken), false
	n.fields(&f)
	f.Bool(networkCalled, &called)
	n.unsure = n.unsure || called && n.id == ""
	return n, ledger.FieldsError(&f)
}

// provisionKey is the idempotency key of the current provisioning.
func (n *networkToken) provisionKey(token uuid.UUID) string {
	return token.String() + ":" + strconv.FormatUint(n.attempt, 10)
}

func (n *networkToken) ref(token uuid.UUID) network.Ref {
	return network.Ref{Network: n.network, ID: n.id, IdempotencyKey: n.provisionKey(token)}
}

// A progress is the state of a network token as the vault works on it. The next
// state follows from it and an answer alone, without store, network or vault.
type progress struct {
	status        network.Status
	reason        *Reason   // of status; never changed in place
	invalidatedAt time.Time // zero while the card is alive
	networkToken
	pause // until the next call
}

// An answer has one of these kinds. Those after answerOutdated are not the
// network's.
type answerKind uint8

const (
	answerNothing   answerKind = iota // an error, a timeout, a panic or garbage: the outcome is unknown
	answerToken                       // there is a network token
	answerRefusal                     // no network token, for now or for good
	answerUnknown                     // of a look-up: no network token, and never will be under that key
	answerReleasing                   // a network token that is about to be deleted
	answerOutdated                    // of a look-up: a notice that came meanwhile may be newer
	answerRequested                   // a caller asks for a network token
	answerForbidden                   // the vault's own configuration allows none
	answerElsewhere                   // it belongs to a network other than the one of its scheme
	answerSuspended                   // the network has suspended it on behalf of the cardholder
	answerResumed                     // the network has ended that
	answerKinds     = 11
)

// A networkAnswer is one piece of news about a network token.
type networkAnswer struct {
	kind       answerKind
	provisions bool           // it answers Provision, else Lookup
	repeats    bool           // the call may have been made before, with an outcome that was not stored
	asked      time.Time      // when the call began
	token      *network.Token // of answerToken
	refusal    *network.Error // of answerRefusal
	unmade     bool           // a look-up after the refusal found that no network token was made
	err        error          // why there is no network token
	reason     *Reason        // of answerForbidden
	network    string         // of answerRequested and answerElsewhere: the one of the scheme, "" for none
}

// receive makes a the answer to a call that returned a network token or an error.
func (a *networkAnswer) receive(got *network.Token, err error) {
	a.kind, a.token, a.refusal, a.err = answerNothing, got, nil, err
	switch {
	case err == nil:
		a.kind = answerToken
	case errors.As(err, &a.refusal):
		a.kind = answerRefusal
	case errors.Is(err, network.ErrUnknown) && !a.provisions:
		a.kind = answerUnknown
	}
}

// A scaling shortens delays in the sandbox.
type scaling func(time.Duration) time.Duration

// A pause leaves a network token alone for some time. The zero pause keeps the
// time at which it is due.
type pause struct {
	kind        pauseKind
	wait, least time.Duration
	sooner      bool // unless it is due before that already
}

type pauseKind uint8

const (
	pauseKept  pauseKind = iota
	pauseEver            // there is nothing to do
	pauseExact           // for wait
	pauseMixed           // for about wait
	pausePaced           // for about wait and at least for least; both are shortened in the sandbox
)

// dueAfter returns when a network token is due that was due at a time.
func (c *core) dueAfter(p pause, at, was time.Time) time.Time {
	var next time.Time
	switch p.kind {
	case pauseKept:
		return was
	case pauseEver:
		return time.Time{}
	case pauseExact:
		next = at.Add(p.wait)
	case pauseMixed:
		next = at.Add(jobs.Jitter(p.wait))
	case pausePaced:
		next = at.Add(max(c.capped(p.least), c.pace(p.wait)))
	}

	if p.sooner && !was.IsZero() && was.Before(next) {
		return was
	}
	return next
}

// progress returns how far h is.
func (h *holding) progress() progress {
	return progress{
		status:        h.token.NetworkTokenStatus,
		reason:        h.token.NetworkTokenStatusReason,
		invalidatedAt: h.token.InvalidatedAt,
		networkToken:  *h.net,
	}
}

// proceed makes p the progress of h.
func (c *core) proceed(h *holding, p progress, at time.Time) {
	t := h.token
	t.NetworkTokenStatus, t.NetworkTokenStatusReason = p.status, p.reason
	if t.InvalidatedAt = p.invalidatedAt; !t.InvalidatedAt.IsZero() {
		t.Status = StatusInvalid
	}

	*h.net = p.networkToken
	h.due = c.dueAfter(p.pause, at, h.due)
}

// answered applies an answer to h.
func (c *core) answered(h *holding, a networkAnswer, at time.Time) {
	c.proceed(h, h.progress().after(a, at, c.scale), at)
}

// after returns the progress after an answer that came at a time.
func (p progress) after(a networkAnswer, at time.Time, scale scaling) progress {
	switch a.kind {
	case answerRequested:
		p.request(a.network)
	case answerForbidden:
		p.unsure = p.unsure || a.repeats
		p.move(transition.NotAvailable, a.reason)
		p.slot, p.pause = false, pause{kind: pauseEver}
	case answerElsewhere:
		p.postpone(a.network, a.repeats)

	case answerSuspended, answerResumed:
		p.suspend(a.kind == answerSuspended, at)
	case answerOutdated:
		p.pause = pause{kind: pauseExact} // look again

	default:
		p.slot = false
		if a.provisions {
			p.unsure = p.unsure || a.repeats
			p.provisioned(a, at, scale)
		} else {
			p.lookedUp(a, at, scale)
		}
	}
	return p
}

// move applies a trigger and reports whether it makes sense in this state. reason belongs
// to the new state, nil for active and pending.
func (p *progress) move(t transition.Trigger, reason *Reason) bool {
	next, ok := transition.Next(p.status, t)
	if ok {
		p.status, p.reason = next, reason
	}
	return ok
}

// leaves reports whether a request to a network of that name leaves something
// behind: a network token, or a call to another network with an unknown outcome.
func (n *networkToken) leaves(name string) bool {
	return n.id != "" || n.unsure && n.network != name
}

// request begins a provisioning. While the outcome of the former one is unknown
// it is the same, under the same key.
func (p *progress) request(name string) {
	if p.leaves(name) {
		p.id, p.unsure = "", false
	}
	if !p.unsure {
		p.attempt++
	}

	p.network = name
	p.tries, p.slot, p.problem = 0, false, Reason{}
	p.move(transition.Requested, nil)
	p.pause = pause{kind: pauseExact}
}

// postpone leaves alone a network token of a network other than the one of its scheme. A
// token that was not requested yet moves to that one.
func (p *progress) postpone(name string, repeats bool) {
	if p.network == name {
		return // it was requested again meanwhile
	}
	p.slot = false
	p.unsure = p.unsure || repeats && p.id == ""
	if name != "" && p.status == network.Pending && p.id == "" && !p.unsure {
		p.network = name
		p.pause = pause{kind: pauseExact}
		return
	}
	p.pause = pause{kind: pauseMixed, wait: reconcileAfter}
}

// provisioned applies the answer to Provision.
func (p *progress) provisioned(a networkAnswer, at time.Time, scale scaling) {
	switch a.kind {
	case answerToken:
		repeated := p.unsure
		p.attach(a, at, scale)
		if repeated { // the answer may repeat the first call's
			p.pause = pause{kind: pauseExact, wait: polls[0]}
		} else { // the network has taken the number: what it knew of the card before is past
			p.cardAt = a.asked
		}
	case answerRefusal:
		p.declined(a, at, scale)

	case answerReleasing:
		// By the next attempt it has been deleted, and there is another.
		p.unsure = false
		p.attempt++
		p.problem = Reason{Code: network.CodeSchemeUnavailable}
		p.retry(0, at, scale)

	default:
		p.unsure = true
		p.problem = Reason{Code: network.CodeSchemeUnavailable}
		if errors.Is(a.err, context.DeadlineExceeded) {
			p.problem.Code = network.CodeTimeout
		}
		p.retry(0, at, scale)
	}
}

// declined applies a refusal to provision.
func (p *progress) declined(a networkAnswer, at time.Time, scale scaling) {
	e := a.refusal
	// A transient refusal says nothing of whether a network token was made,
	// nor does one of the set-up of a call that was made before.
	p.unsure = !isFinal(e) && !a.unmade && (p.unsure || e.Source != network.SourceConfiguration)

	if isFinal(e) || e.Source == network.SourceConfiguration {
		p.refusedBy(e, at)
		p.pause = pause{kind: pauseEver}
		return
	}
	if !p.unsure {
		p.attempt++
	}
	p.problem.Code, p.problem.SchemeCode = codeOf(e, network.SourceScheme)
	p.retry(e.RetryAfter, at, scale)
}

// refusedBy makes a refusal the state.
func (p *progress) refusedBy(e *network.Error, at time.Time) {
	source, on := network.SourceScheme, transition.Refused
	if e.Source == network.SourceConfiguration {
		source, on = network.SourceConfiguration, transition.NotAvailable
	}
	code, schemeCode := codeOf(e, source)
	p.move(on, newReason(source, code, schemeCode, at))
}

// lookedUp applies the answer to Lookup.
func (p *progress) lookedUp(a networkAnswer, at time.Time, scale scaling) {
	e := a.refusal
	switch {
	case a.kind == answerToken && p.id == "":
		p.attach(a, at, scale)
		return
	case a.kind == answerToken:
		p.problem = Reason{}
		p.adopt(a.token, a.asked, at)
		p.schedule(at, scale)
		return
	case p.id == "" && p.status == network.Pending:
		return // it was requested again meanwhile: that call finds out
	case p.id == "" && (a.kind == answerUnknown || e != nil && isFinal(e)):
		p.outcomeKnown()
		return
	case e != nil && p.status == network.Pending:
		if isFinal(e) || e.Source == network.SourceConfiguration {
			p.refuse(e, at)
			return
		}
		p.problem.Code, p.problem.SchemeCode = codeOf(e, network.SourceScheme)
	}

	p.schedule(at, scale)
	if p.status == network.Active || p.status == network.Inactive {
		p.pause = pause{kind: pauseMixed, wait: time.Hour}
	}
}

// attach takes over the network token of an answer.
func (p *progress) attach(a networkAnswer, at time.Time, scale scaling) {
	p.id, p.unsure, p.tries, p.since = a.token.ID, false, 0, at
	p.problem, p.news, p.suspendedBy = Reason{}, news{}, 0
	p.adopt(a.token, a.asked, at)
	p.schedule(at, scale)
}

// adopt applies the state in which the network token was at the network when it
// was asked. A state older than the known one is dropped, except the last one.
func (p *progress) adopt(got *network.Token, asked, at time.Time) {
	stateAt := networkTime(got.StateAt, at)
	if got.StateAt.IsZero() {
		stateAt = asked
		if latest := p.latest(); latest.After(asked) { // its clock is ahead of ours
			stateAt = latest
		}
	}
	if stateAt.Before(p.latest()) && got.State != network.Deleted {
		return
	}
	p.stateAt, p.ownerAt = stateAt, [ownerCount]time.Time{}

	switch {
	case got.Invalidated:
		p.invalidate(stateAt, got.Reason)
	case got.State == network.Deleted:
		p.move(transition.Deleted, newReason(network.SourceScheme, network.CodeDeletedByScheme, schemeText(got.Reason), stateAt))
	case got.State == network.Inactive:
		owners := got.SuspendedBy & (1<<ownerCount - 1)
		if owners == 0 {
			owners = network.OwnersOf(network.OwnerScheme)
		}
		p.move(transition.Issued, nil) // it was active before
		known := p.suspendedBy == owners && p.status == network.Inactive
		if !known && p.move(transition.Suspended, suspensionReason(owners, got.Reason, stateAt)) {
			p.suspendedBy = owners
		}
	case got.State == network.Active:
		p.suspendedBy = 0
		if !p.move(transition.Issued, nil) {
			p.move(transition.Resumed, nil)
		}
	}
}

// networkTime returns a time of the network in its stored form. A time far ahead is
// replaced by the present: it must not shut out later news.
func networkTime(t, at time.Time) time.Time {
	if t.After(at.Add(time.Hour)) {
		return at
	}
	return t.UTC().Truncate(time.Microsecond)
}

// latest is when the network token took the state that is known.
func (n *networkToken) latest() time.Time {
	latest := n.stateAt
	for _, at := range n.ownerAt {
		if at.After(latest) {
			latest = at
		}
	}
	return latest
}

// refuse ends a provisioning that the network refuses after it had accepted it.
func (p *progress) refuse(e *network.Error, at time.Time) {
	p.refusedBy(e, at)
	p.outcomeKnown()
}

// outcomeKnown ends a provisioning whose outcome is known. A network token that it
// has left at the network is deleted with the token.
func (p *progress) outcomeKnown() {
	p.unsure = false
	p.pause = pause{kind: pauseEver}
}

// invalidate makes the token invalid, until it has another card.
func (p *progress) invalidate(at time.Time, schemeCode string) {
	if !p.invalidatedAt.IsZero() {
		return
	}
	p.invalidatedAt = at
	p.move(transition.Invalidated, newReason(network.SourceScheme, network.CodeAccountClosed, schemeText(schemeCode), at))
}

// suspend applies that the network has suspended or resumed a network token on
// behalf of the cardholder.
func (p *progress) suspend(suspends bool, at time.Time) {
	switch by := network.OwnersOf(network.OwnerCardholder); {
	case suspends:
		if p.suspendedBy&by == 0 && p.move(transition.Suspended, suspensionReason(p.suspendedBy|by, "", at)) {
			p.suspendedBy |= by
		}
	case p.suspendedBy == by:
		p.suspendedBy = 0
		p.move(transition.Resumed, nil)
	case p.suspendedBy&by != 0:
		p.suspendedBy &^= by
		p.move(transition.Suspended, suspensionReason(p.suspendedBy, "", at))
	}
	p.pause = pause{kind: pauseExact} // the network knows better, such as who else suspends it
}

// suspensionReason names one of the owners: the issuer before the scheme.
func suspensionReason(owners network.Owners, schemeCode string, at time.Time) *Reason {
	code := network.CodeSuspendedByCardholder
	switch {
	case owners&network.OwnersOf(network.OwnerIssuer) != 0:
		code = network.CodeSuspendedByIssuer
	case owners&network.OwnersOf(network.OwnerScheme) != 0:
		code = network.CodeSuspendedByScheme
	}
	return newReason(network.SourceScheme, code, schemeText(schemeCode), at)
}

// retries are the pauses after each transient failure.
var retries = []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour}

// maxRetryAfter bounds how long a network can make the vault wait.
const maxRetryAfter = 24 * time.Hour

// retry waits after a transient failure, or gives up.
func (p *progress) retry(after time.Duration, at time.Time, scale scaling) {
	p.tries++
	if p.tries <= uint64(len(retries)) {
		after = min(after, maxRetryAfter)
		p.pause = pause{kind: pausePaced, wait: max(retries[p.tries-1], after), least: after}
		return
	}
	p.move(transition.Refused, newReason(network.SourceScheme, p.problem.Code, p.problem.SchemeCode, at))
	p.tries, p.since = 0, at
	p.schedule(at, scale)
}

// schedule sets the pause until the next look-up.
func (p *progress) schedule(at time.Time, scale scaling) {
	p.pause = pause{kind: pauseEver}

	switch p.status {
	case network.Pending:
		if next, ok := poll(p.tries, at.Sub(p.since), scale); ok {
			p.tries++
			p.pause = next
			return
		}
		// A notice may still make it active.
		p.move(transition.Refused, newReason(network.SourceScheme, cmp.Or(p.problem.Code, network.CodeTimeout), p.problem.SchemeCode, at))
	case network.Active, network.Inactive:
		p.tries = 0
		p.pause = pause{kind: pauseMixed, wait: reconcileAfter}
	case network.Failed:
		// The outcome of a call is unknown, or a provisioning that seemed to have failed
		// continues. A vault that was down for long has not looked yet.
		few := uint64(len(polls))
		if (p.unsure || p.id != "") && (p.tries < few || at.Sub(p.since) < scale(pollsEnd)) {
			p.tries = min(p.tries+1, few)
			p.pause = pause{kind: pausePaced, wait: time.Hour}
		}
	}
}

// reconcileAfter is the interval at which the vault checks for missed notices.
const reconcileAfter = 24 * time.Hour

// reconciles reports whether all that is due is to see that nothing was missed.
func (n *networkToken) reconciles() bool { return n.id != "" && n.tries == 0 }

// polls are the first pauses of polling. Later ones are a minute, then an hour.
var polls = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second}

const pollsEnd = 48 * time.Hour

// poll returns the n-th pause, or false if polling has gone on for long enough.
func poll(n uint64, since time.Duration, scale scaling) (next pause, ok bool) {
	switch {
	case n == 0:
		return pause{kind: pauseExact, wait: polls[0]}, true // also in the sandbox
	case n < uint64(len(polls)):
		return pause{kind: pausePaced, wait: polls[n]}, true
	case since < scale(5*time.Minute):
		return pause{kind: pausePaced, wait: time.Minute}, true
	}
	return pause{kind: pausePaced, wait: time.Hour}, since < scale(pollsEnd)
}

// A holding is a token with its network token, as they were read and with the changes to
// store.
type holding struct {
	token *Token
	net   *networkToken

	card, record *store.Record // of token and of net; record is nil before the first write
	due          time.Time     // when there is something to do for net; zero: never

	// Set by a change.
	why  receive.EventReason // of its event; "": as the change shows
	call *replay.Call        // whose answer is the token as it is then; may be nil

	// As they were read, for a change.
	was           *Token
	shown, stored []byte
	wasDue        time.Time
}

// hold reads a token of the account and its network token, for a change.
func (v *Vault) hold(ctx context.Context, row uuid.UUID) (*holding, error) {
	h, err := readHolding(ctx, v, row)
	if err != nil {
		return nil, err
	}
	h.was, h.wasDue = new(*h.token), h.due
	h.shown, h.stored = h.token.encode(make([]byte, 0, 512)), h.net.encode(make([]byte, 0, 256))
	return h, nil
}

// readHolding reads a token of the account and its network token. Nothing of them is changed.
func readHolding(ctx context.Context, v *Vault, row uuid.UUID) (*holding, error) {
	if v.ledger.Closed() {
		return nil, ErrClosed
	}
	if row == uuid.Nil {
		return nil, ErrNotFound
	}

	h := new(holding)
	err := v.rows.View(ctx, func(tx store.ReadTx) (err error) {
		if h.card, err = v.rows.Find(tx, kindToken, row); err != nil {
			return err
		}
		h.record, err = tx.Get(kindNetworkToken, row)
		if errors.Is(err, store.ErrNotFound) {
			h.record, err = nil, nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}

	if h.token, err = v.openToken(ctx, h.card); err != nil {
		return nil, err
	}

	h.net = new(networkToken)
	if h.record != nil {
		if h.net, err = v.openNetworkToken(ctx, h.record); err != nil {
			return nil, err
		}
		h.due = h.record.Due
	}
	return h, nil
}

func (v *Vault) openNetworkToken(ctx context.Context, r *store.Record) (*networkToken, error) {
	if r.Account != v.rows.ID {
		return nil, fmt.Errorf("%w: network token belongs to another account", ErrDamaged)
	}
	plain, err := v.rows.OpenShown(ctx, r)
	if err != nil {
		return nil, err
	}
	n, err := decodeNetworkToken(plain)
	return n, v.rows.Named(r, err)
}

// change lets fn change a token and its network token, and stores both with the additional
// writes of fn. fn may run more than once.
func (v *Vault) change(ctx context.Context, op ledger.Operation, row uuid.UUID, fn func(*holding) (also func(store.Tx) error, err error)) (*Token, error) {
	return v.changeHeld(ctx, op, row, nil, fn)
}

// changeHeld is change for a holding that was read, if h is not nil.
func (v *Vault) changeHeld(ctx context.Context, op ledger.Operation, row uuid.UUID, h *holding, fn func(*holding) (also func(store.Tx) error, err error)) (*Token, error) {
	for ; ; h = nil {
		if h == nil {
			var err error
			if h, err = v.hold(ctx, row); err != nil {
				return nil, err
			}
		}

		also, err := fn(h)
		if err != nil {
			return h.token, err
		}

		shown := h.token.encode(make([]byte, 0, 512))
		changed := !bytes.Equal(shown, h.shown)
		sealed := changed || h.card.Class != class(h.token.Scheme, h.token.NetworkTokenStatus, h.token.AccountNumberStale)
		clear(shown)
		clear(h.shown)
		var event *outbox.Parcel
		switch {
		case changed:
			why := cmp.Or(h.why, reasonOf(h.was, h.token))
			if event, err = v.newEvent(ctx, h.card, h.token, receive.TokenUpdated, why); err != nil {
				return nil, err
			}
			h.card.Version++
			err = v.sealToken(h.card, h.token)
		case sealed: // its class was written before there was one for stale numbers
			err = sealAgain(v, h.card, h.token)
		}
		if err != nil {
			return nil, err
		}

		moved := !bytes.Equal(h.net.encode(make([]byte, 0, 256)), h.stored) || !h.due.Equal(h.wasDue)

		if !sealed && !moved && also == nil && h.call == nil {
			return h.token, nil
		}
		if moved {
			if err := v.sealNetworkToken(h); err != nil {
				return nil, err
			}
		}
		if h.call != nil {
			if err := h.call.Seal(h.token.encode(bytes.Clone(row[:])), row); err != nil {
				return nil, err
			}
		}

		err = v.rows.Write(ctx, op, h.token.ID, func(tx store.Tx) error {
			if !sealed && !moved {
				if _, err := v.rows.Find(tx, kindToken, row); err != nil {
					return err
				}
			}
			return h.put(tx, sealed, moved, event, also)
		})
		if errors.Is(err, store.ErrConflict) {
			continue // another write was faster, so there is progress
		}
		if err != nil {
			return nil, err
		}

		v.jobs.Due(h.record)
		if event != nil {
			event.Written()
		}
		return h.token, nil
	}
}

// put writes the token if it was sealed, its network token if that has moved, and what belongs
// to them.
func (h *holding) put(tx store.Tx, sealed, moved bool, event *outbox.Parcel, also func(store.Tx) error) error {
	if sealed {
		tx.Put(h.card)
	}
	if moved {
		tx.Put(h.record)
	}

	if event != nil {
		if err := event.Put(tx); err != nil {
			return err
		}
	}
	if also != nil {
		if err := also(tx); err != nil {
			return err
		}
	}
	return h.call.Put(tx)
}

// newNetworkRecord returns a record for the network token of a token.
func newNetworkRecord(of *store.Record) *store.Record {
	return &store.Record{Kind: kindNetworkToken, ID: of.ID, Account: of.Account}
}

// sealNetworkToken sets every column of the record that follows from h.
func (v *Vault) sealNetworkToken(h *holding) error {
	if h.record == nil {
		h.record = newNetworkRecord(h.card)
	}
	r, n := h.record, h.net
	if n.id != "" || h.token.NetworkTokenStatus != network.Pending {
		r.Secret = nil // the contact: the network has it, or will not get it
	}
	r.Version++
	r.Due = h.due
	r.Lookup = v.networkLookups(h.token.ID, n)
	return v.rows.SealShown(r, tlv.Pad(n.encode(make([]byte, 0, 256)), 64, 0))
}

// networkLookups are the hashes that find the network token of a token. They are empty
// before the network has answered: importing costs no entry of a random key.
func (v *Vault) networkLookups(token uuid.UUID, n *networkToken) (hashes [][]byte) {
	if n.id != "" {
		hashes = v.networkHashes(n.network, n.id)
	} else if n.unsure {
		hashes = v.networkHashes(n.network, n.provisionKey(token))
	}
	if n.artID != uuid.Nil {
		hashes = append(hashes, v.rows.Box.Lookups(v.rows.ID, artPurpose, n.artID[:])...)
	}
	return hashes
}

// networkHash returns the lookup key of a network token, across accounts: the handle
// of the network, or the idempotency key while that is not known.
func (c *core) networkHash(name, id string) []byte {
	return c.ledger.Box.Lookup(uuid.Nil, networkPurpose, []byte(name+"\x00"+id))
}

// networkHashes returns all hashes by which a network token can be found: see networkHash.
func (c *core) networkHashes(name, id string) [][]byte {
	return c.ledger.Box.Lookups(uuid.Nil, networkPurpose, []byte(name+"\x00"+id))
}

// Purposes of hashes.
const (
	networkPurpose = "network token"
	artPurpose     = "card art"
)

// artHash returns the lookup key of the tokens that show an art.
func (v *Vault) artHash(id uuid.UUID) []byte {
	return v.rows.Box.Lookup(v.rows.ID, artPurpose, id[:])
}
