package simnet

import (
	"cmp"
	"context"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// An attempt is the outcome of the provisioning under one idempotency key: a refusal, a
// network token, or one that another key has made.
type attempt struct {
	Refused bool      `json:"refused,omitzero"`
	Of      uuid.UUID `json:"of,omitzero"` // the attempt that has made it
	Token   *token    `json:"token,omitzero"`
}

// A token is a network token. Times are microseconds of the simulator's clock.
type token struct {
	Scheme   scheme `json:"scheme"`
	Scenario int    `json:"scenario,omitzero"`
	Made     int64  `json:"made"`

	First numbered `json:"first"` // as it was provisioned
	Card  numbered `json:"card"`
	Art   int      `json:"art"` // which of the scheme

	Expiry     card.Expiry `json:"expiry"`              // of the network token
	Generation int         `json:"generation,omitzero"` // of its number

	State       status `json:"state"`
	StateAt     int64  `json:"state_at"`
	SuspendedBy owners `json:"suspended_by,omitzero"`
	Invalidated bool   `json:"invalidated,omitzero"`

	Refusals int      `json:"refusals,omitzero"` // of cryptograms
	Changes  int      `json:"changes,omitzero"`  // that were ever made or planned
	Last     int64    `json:"last"`              // when the last of them was made
	Timeline []change `json:"timeline,omitzero"` // planned ones, in order
	Outbox   []notice `json:"outbox,omitzero"`   // in the order of delivery
	Tries    int      `json:"tries,omitzero"`    // failed deliveries of the first of them
	Again    int64    `json:"again,omitzero"`    // when it is delivered again, if Tries is not 0
}

// Stored as numbers, not as text.
type (
	scheme     card.Scheme
	status     network.Status
	noticeKind network.NoticeKind
	owner      uint8 // a network.Owner less one
	owners     network.Owners
)

const (
	pending  = status(network.Pending)
	active   = status(network.Active)
	inactive = status(network.Inactive)
	deleted  = status(network.Deleted)
)

// A numbered card is known by the end of its number. It is kept in the clear.
type numbered struct {
	LastFour  string      `json:"last_four"`
	Expiry    card.Expiry `json:"expiry"`
	Reference string      `json:"reference,omitzero"` // its PAR, which outlives the number
}

// A change happens to a network token, and a notice reports it.
type change struct {
	N    int        `json:"n"` // numbers the changes of a network token
	Kind noticeKind `json:"kind"`
	By   owner      `json:"by,omitzero"`
	At   int64      `json:"at"`
}

func (o owner) owner() network.Owner { return network.OwnerIssuer + network.Owner(o) }

// A notice reports a change from a time on.
type notice struct {
	Due int64 `json:"due"`
	change
}

// backlog bounds the pending notices of a network token. The oldest are dropped; Lookup
// shows their changes.
const backlog = 100

const (
	lastYear     = 2099
	replaceYears = 4
	renewYears   = 3
)

// newLastFours are the last four digits that a replaced card has in turn.
var newLastFours = [...]string{"4242", "2424"}

// newToken returns the network token for a card.
func newToken(of card.Scheme, code int, c numbered, now int64) *token {
	t := &token{
		Scheme: scheme(of), Scenario: code, Made: now, First: c, Card: c, Art: 1, Expiry: c.Expiry,
		State: active, StateAt: now, Last: now,
	}
	if of != card.VISA {
		t.Expiry = after(c.Expiry, 3)
	}

	s := scenarios[code]
	if s.pending {
		t.State = pending
	}

	for _, st := range s.steps {
		c := t.next(st.kind, network.OwnerIssuer, now+st.after.Microseconds())
		t.Timeline = append(t.Timeline, c)
		switch {
		case s.silent:
		case s.reversed:
			end := now + s.steps[len(s.steps)-1].after.Microseconds()
			t.Outbox = slices.Insert(t.Outbox, 0, notice{end, c}, notice{end, c})
		default:
			t.Outbox = append(t.Outbox, notice{c.At, c})
		}
	}
	return t
}

// after returns an expiry some years later.
func after(e card.Expiry, years int) card.Expiry {
	return card.Expiry{Month: e.Month, Year: min(e.Year+years, lastYear)}
}

// next returns a change at a time, or just after the last change: vaults drop notices older
// than their state.
func (t *token) next(what network.NoticeKind, by network.Owner, at int64) change {
	t.Changes++
	return change{t.Changes, noticeKind(what), owner(by - network.OwnerIssuer), max(at, t.Last+1)}
}

// settle makes the changes that are due.
func (t *token) settle(now int64) {
	for len(t.Timeline) > 0 && t.Timeline[0].At <= now {
		c := t.Timeline[0]
		t.Timeline = t.Timeline[1:]
		t.apply(c)
	}
}

// happen makes a change now, adds a notice, and reports whether the change makes sense.
func (t *token) happen(what network.NoticeKind, by network.Owner, now int64) bool {
	c := t.next(what, by, now)
	if !t.apply(c) {
		return false
	}
	i, _ := slices.BinarySearchFunc(t.Outbox, now+1, func(o notice, due int64) int { return cmp.Compare(o.Due, due) })
	t.Outbox = slices.Insert(t.Outbox, i, notice{now, c})
	if len(t.Outbox) > backlog {
		t.Outbox, t.Tries = t.Outbox[1:], 0
	}
	return true
}

// apply makes a change and reports whether it means something in this state.
func (t *token) apply(c change) bool {
	what, by := network.NoticeKind(c.Kind), owners(network.OwnersOf(c.By.owner()))
	current, suspended := t.State, t.SuspendedBy
	switch what {
	case network.NoticeActivated:
		if current != pending {
			return false
		}
		current = active
	case network.NoticeSuspended:
		if current == pending || current == deleted || suspended&by != 0 {
			return false
		}
		current, suspended = inactive, suspended|by
	case network.NoticeResumed:
		if suspended&by == 0 {
			return false
		}
		if suspended &^= by; suspended == 0 {
			current = active
		}
	case network.NoticeDeleted, network.NoticeInvalidated:
		if current == deleted {
			return false
		}
		current, suspended = deleted, 0
		t.Invalidated = what == network.NoticeInvalidated
		t.Outbox = slices.DeleteFunc(t.Outbox, func(o notice) bool { return o.Due > c.At })
	default:
		if current == deleted {
			return false
		}
		t.renew(what)
	}

	if current != t.State || suspended != t.SuspendedBy {
		t.State, t.SuspendedBy, t.StateAt = current, suspended, c.At
	}
	t.Last = c.At
	return true
}

// renew changes what there is beside the state.
func (t *token) renew(what network.NoticeKind) {
	switch what {
	case network.NoticeCardReplaced:
		four := newLastFours[0]
		if t.Card.LastFour == four {
			four = newLastFours[1]
		}
		t.Card = numbered{four, after(t.Card.Expiry, replaceYears), t.Card.Reference}
	case network.NoticeCardRenewed:
		t.Card.Expiry = after(t.Card.Expiry, renewYears)
	case network.NoticeTokenRenewed:
		t.Generation++
		t.Expiry = after(t.Expiry, renewYears)
	case network.NoticeArtChanged:
		t.Art = artVersions + 1 - t.Art
	}
}

// due is when Feed has something to do, the zero time if never.
func (t *token) due() time.Time {
	switch {
	case len(t.Outbox) == 0:
		return time.Time{}
	case t.Tries > 0:
		return time.UnixMicro(t.Again)
	}
	return time.UnixMicro(t.Outbox[0].Due)
}

// view returns a network token and its card as the vault sees them.
func (t *token) view(row uuid.UUID, c numbered) *network.Token {
	reason := ""
	switch {
	case t.State == inactive:
		reason = schemeCodes[network.NoticeSuspended]
	case t.Invalidated:
		reason = schemeCodes[network.NoticeInvalidated]
	case t.State == deleted:
		reason = schemeCodes[network.NoticeDeleted]
	}

	return &network.Token{
		ID:                    tokenID(row),
		State:                 network.Status(t.State),
		StateAt:               time.UnixMicro(t.StateAt).UTC(),
		SuspendedBy:           network.Owners(t.SuspendedBy),
		Reason:                reason,
		Invalidated:           t.Invalidated,
		Card:                  c.state(),
		Art:                   artID(card.Scheme(t.Scheme), t.Art),
		SupportsDeviceBinding: scenarios[t.Scenario].binding,

		PaymentAccountReference: c.Reference,
	}
}

func (c numbered) state() *network.CardState {
	return &network.CardState{LastFour: c.LastFour, Expiry: c.Expiry}
}

// schemeCodes are reasons as a scheme gives them.
var schemeCodes = map[network.NoticeKind]string{
	network.NoticeSuspended:   "SUSPECTED_FRAUD",
	network.NoticeDeleted:     "OTHER",
	network.NoticeInvalidated: "ACCOUNT_CLOSED",
}

// notice returns a notice as the vault receives it.
func (t *token) notice(row uuid.UUID, o notice) *network.Notice {
	what := network.NoticeKind(o.Kind)
	m := &network.Notice{
		ID:         tokenID(row) + "-" + strconv.Itoa(o.N),
		Kind:       what,
		OccurredAt: time.UnixMicro(o.At).UTC(),
		Token:      network.Ref{ID: tokenID(row)},
		By:         o.By.owner(),
		SchemeCode: schemeCodes[what],
	}
	switch what {
	case network.NoticeCardReplaced, network.NoticeCardRenewed:
		m.Card = t.Card.state()
	case network.NoticeArtChanged:
		m.Art = artID(card.Scheme(t.Scheme), t.Art)
	}
	return m
}

// ids has an alphabet with few digits: an id never looks like a card number.
var ids = base32.StdEncoding.WithPadding(base32.NoPadding)

// tokenID is the id of a network token, as the vault knows it.
func tokenID(row uuid.UUID) string { return ids.EncodeToString(row[:]) }

func rowOf(id string) (row uuid.UUID, ok bool) {
	b, err := ids.DecodeString(id)
	if err != nil || len(b) != len(row) {
		return row, false
	}
	return uuid.UUID(b), true
}

// A held token is one with its record. token is nil if the attempt was refused.
type held struct {
	record *store.Record
	token  *token
}

// find returns the network token of an attempt as it is now, or store.ErrNotFound
// if there is no such attempt.
func (n *Network) find(tx store.ReadTx, row uuid.UUID, now int64) (*held, error) {
	for range 2 { // the network token of another attempt is its own
		r, err := tx.Get(kindAttempt, row)
		if err != nil {
			return nil, err
		}
		var a attempt
		if err := decode(r, &a); err != nil {
			return nil, err
		}
		if a.Of == uuid.Nil {
			if a.Token != nil {
				a.Token.settle(now)
			}
			return &held{r, a.Token}, nil
		}
		row = a.Of
	}
	return nil, fmt.Errorf("simnet: %w", store.ErrDamaged)
}

// share returns the network token that a card number has, or assigns row's to the number
// and returns nil.
func (n *Network) share(tx store.Tx, cardID, row uuid.UUID, now int64) (*held, error) {
	r, err := tx.Get(kindCard, cardID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		r = &store.Record{Kind: kindCard, ID: cardID}
	case err != nil:
		return nil, err
	default:
		of, err := uuid.FromBytes(r.Shown)
		if err != nil {
			return nil, fmt.Errorf("simnet: %w", store.ErrDamaged)
		}
		h, err := n.find(tx, of, now)
		if err != nil || h.token != nil && h.token.State != deleted {
			return h, err
		}
	}

	r.Shown = row[:]
	r.Version++
	tx.Put(r)
	return nil, nil
}

// rowOfRef returns which attempt a ref means.
func (n *Network) rowOfRef(ref network.Ref) (row uuid.UUID, ok bool) {
	if ref.ID != "" {
		return rowOf(ref.ID)
	}
	return n.row(ref.IdempotencyKey), true
}

// look returns a network token as it is now, or network.ErrUnknown.
func (n *Network) look(ctx context.Context, ref network.Ref) (h *held, err error) {
	row, ok := n.rowOfRef(ref)
	if !ok {
		return nil, network.ErrUnknown
	}
	now := n.now()
	err = n.store.View(ctx, func(tx store.ReadTx) (err error) {
		h, err = n.find(tx, row, now)
		return err
	})
	if errors.Is(err, store.ErrNotFound) || err == nil && h.token == nil {
		return nil, network.ErrUnknown
	}
	return h, err
}

// update lets f change a network token and stores it if f has. f may run more than
// once.
func (n *Network) update(ctx context.Context, row uuid.UUID, f func(*token) (changed bool, err error)) error {
	now := n.now()
	err := n.store.Update(ctx, func(tx store.Tx) error {
		h, err := n.find(tx, row, now)
		if err != nil {
			return err
		}
		if h.token == nil {
			return network.ErrUnknown
		}

		changed, err := f(h.token)
		if err != nil || !changed {
			return err
		}
		return put(tx, h.record, &attempt{Token: h.token})
	})

	if errors.Is(err, store.ErrNotFound) {
		return network.ErrUnknown
	}
	return err
}

func (n *Network) updateRef(ctx context.Context, ref network.Ref, f func(*token) (changed bool, err error)) error {
	row, ok := n.rowOfRef(ref)
	if !ok {
		return network.ErrUnknown
	}
	return n.update(ctx, row, f)
}

// put writes an attempt into its record. The token does not find it any more once
// the network token is deleted.
func put(tx store.Tx, r *store.Record, a *attempt) (err error) {
	r.Version++
	if a.Token != nil {
		r.Due = a.Token.due()
		if a.Token.State == deleted {
			r.Lookup = nil
		}
	}
	if r.Shown, err = json.Marshal(a); err != nil {
		return err
	}
	tx.Put(r)
	return nil
}

// decode reads what a record shows.
func decode(r *store.Record, v any) error {
	if err := json.Unmarshal(r.Shown, v); err != nil {
		return fmt.Errorf("simnet: %w", store.ErrDamaged)
	}
	return nil
}
