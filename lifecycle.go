package cardvault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A trigger is what can move a network token to another state.
type trigger uint8

const (
	requested    trigger = iota // a caller asks for it, and the configuration allows it
	issued                      // the network has one that can be used
	notAvailable                // the network refuses by configuration
	refused                     // a final refusal, or transient failures used up
	suspended                   // by one more owner
	resumed                     // and nobody suspends it any longer
	deleted                     // by issuer or scheme
	invalidated                 // the instrument is dead
	cardChanged                 // renewed or replaced
	triggers     = 9
)

// after is the state machine of decisions, chapter 7: the state that follows s,
// and whether the trigger means something in s. If not, s stays: a caller is
// refused, what the network says is dropped.
func (s NetworkTokenStatus) after(t trigger) (next NetworkTokenStatus, ok bool) {
	const (
		none     = NetworkTokenNotAvailable
		pending  = NetworkTokenPending
		active   = NetworkTokenActive
		inactive = NetworkTokenInactive
		gone     = NetworkTokenDeleted
		failed   = NetworkTokenFailed
	)
	switch t {
	case requested:
		switch s {
		case none, failed:
			return pending, true
		case pending, active:
			return s, true
		}
	case issued:
		switch s {
		case pending, failed, active:
			return active, true
		}
	case notAvailable:
		if s == pending {
			return none, true
		}
	case refused:
		if s == pending {
			return failed, true
		}
	case suspended:
		switch s {
		case active, inactive:
			return inactive, true
		}
	case resumed:
		switch s {
		case active, inactive:
			return active, true
		}
	case deleted:
		switch s {
		case pending, active, inactive:
			return gone, true
		}
	case invalidated:
		return gone, s != gone
	case cardChanged:
		switch s {
		case active, inactive:
			return s, true
		}
	}
	return s, false
}

// A networkToken is what the vault knows of the network token of a token, and
// what it is about to do: provision it, poll, reconcile. Its record has the row
// key of the token and is due when there is something to do. The state is the
// token's; the number of the network token is never kept.
type networkToken struct {
	scheme  Scheme
	network string // Name of the Network
	id      string // the network's handle; "" until it is known

	// attempt numbers the provisionings: it is in the idempotency key, and rises
	// once the outcome of the former one is known. called is whether the network
	// may have seen the key, unsure whether what came of it is unknown.
	attempt        uint64
	called, unsure bool

	tries uint64    // calls made for what is being done now
	since time.Time // when polling began
	slot  bool      // due when the rate limit allows it

	news
	suspendedBy Owners
	card        CardState // what the network said last

	art   string    // the network's id of the art
	artID uuid.UUID // of the art that the token shows

	problem Reason // last transient failure: Code and SchemeCode
}

// news is when what is known of a network token came to pass, by the clock of
// the network. Each owner suspends on its own.
type news struct {
	stateAt, cardAt, artAt time.Time
	ownerAt                [ownerCount]time.Time
}

const (
	networkScheme = iota + 1
	networkName
	networkID
	networkAttempt
	networkCalled
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

func (n *networkToken) encode(b []byte) []byte {
	b = tlv.AppendUint(b, networkScheme, uint64(n.scheme))
	b = tlv.Append(b, networkName, n.network)
	b = tlv.Append(b, networkID, n.id)
	b = tlv.AppendUint(b, networkAttempt, n.attempt)
	b = tlv.AppendBool(b, networkCalled, n.called)
	b = tlv.AppendBool(b, networkUnsure, n.unsure)
	b = tlv.AppendUint(b, networkTries, n.tries)
	b = tlv.AppendTime(b, networkSince, n.since)
	b = tlv.AppendBool(b, networkSlot, n.slot)
	b = tlv.AppendUint(b, networkSuspendedBy, uint64(n.suspendedBy))
	b = tlv.AppendTime(b, networkStateAt, n.stateAt)
	b = tlv.AppendTime(b, networkCardAt, n.cardAt)
	b = tlv.AppendTime(b, networkArtAt, n.artAt)
	b = tlv.Append(b, networkLastFour, n.card.LastFour)
	b = tlv.AppendUint(b, networkMonth, uint64(n.card.Expiry.Month))
	b = tlv.AppendUint(b, networkYear, uint64(n.card.Expiry.Year))
	b = tlv.Append(b, networkArt, n.art)
	if n.artID != uuid.Nil {
		b = tlv.Append(b, networkArtID, n.artID[:])
	}
	b = tlv.Append(b, networkProblem, n.problem.Code)
	b = tlv.Append(b, networkProblemCode, n.problem.SchemeCode)
	for o, at := range n.ownerAt {
		b = tlv.AppendTime(b, networkOwnerAt+byte(o), at)
	}
	return b
}

func decodeNetworkToken(plain []byte) (*networkToken, error) {
	n := new(networkToken)
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case networkScheme:
			n.scheme = Scheme(r.Uint())
		case networkName:
			n.network = string(r.Value)
		case networkID:
			n.id = string(r.Value)
		case networkAttempt:
			n.attempt = r.Uint()
		case networkCalled:
			n.called = r.Bool()
		case networkUnsure:
			n.unsure = r.Bool()
		case networkTries:
			n.tries = r.Uint()
		case networkSince:
			n.since = r.Time()
		case networkSlot:
			n.slot = r.Bool()
		case networkSuspendedBy:
			n.suspendedBy = Owners(r.Uint())
		case networkStateAt:
			n.stateAt = r.Time()
		case networkCardAt:
			n.cardAt = r.Time()
		case networkArtAt:
			n.artAt = r.Time()
		case networkLastFour:
			n.card.LastFour = string(r.Value)
		case networkMonth:
			n.card.Expiry.Month = int(r.Uint())
		case networkYear:
			n.card.Expiry.Year = int(r.Uint())
		case networkArt:
			n.art = string(r.Value)
		case networkArtID:
			copy(n.artID[:], r.Value)
		case networkProblem:
			n.problem.Code = string(r.Value)
		case networkProblemCode:
			n.problem.SchemeCode = string(r.Value)
		case networkOwnerAt, networkOwnerAt + 1, networkOwnerAt + 2:
			n.ownerAt[r.Tag-networkOwnerAt] = r.Time()
		}
	}
	return n, readError(&r)
}

// provisionKey is the idempotency key of the current provisioning.
func (n *networkToken) provisionKey(token uuid.UUID) string {
	return token.String() + ":" + strconv.FormatUint(n.attempt, 10)
}

func (n *networkToken) ref(token uuid.UUID) NetworkTokenRef {
	return NetworkTokenRef{ID: n.id, IdempotencyKey: n.provisionKey(token)}
}

// A holding is a token with its network token, as they were read, and how they
// are to be stored.
type holding struct {
	token *Token
	net   *networkToken

	card, record *store.Record // of token and of net; record is nil if there is none yet
	due          time.Time     // when there is something to do for net; zero: never

	// As they were read.
	was           Token
	shown, stored []byte
	wasDue        time.Time
}

// hold reads a token of the account and its network token.
func (v *Vault) hold(ctx context.Context, row uuid.UUID) (*holding, error) {
	if v.closed.Load() {
		return nil, ErrClosed
	}
	if row == uuid.Nil {
		return nil, ErrNotFound
	}
	h := new(holding)
	err := v.view(ctx, func(tx store.ReadTx) (err error) {
		if h.card, err = v.find(tx, kindToken, row); err != nil {
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
	h.was = *h.token
	h.shown = h.token.encode(nil)
	h.net = new(networkToken)
	if h.record != nil {
		if h.net, err = v.openNetworkToken(ctx, h.record); err != nil {
			return nil, err
		}
		h.due, h.wasDue = h.record.Due, h.record.Due
	}
	h.stored = h.net.encode(nil)
	return h, nil
}

func (v *Vault) openNetworkToken(ctx context.Context, r *store.Record) (*networkToken, error) {
	if r.Account != v.account {
		return nil, fmt.Errorf("%w: network token is of another account", ErrDamaged)
	}
	plain, err := v.openShown(ctx, r)
	if err != nil {
		return nil, err
	}
	return decodeNetworkToken(plain)
}

// change lets fn change a token and its network token and stores both with what
// fn returns besides. fn may run more than once.
func (v *Vault) change(ctx context.Context, op operation, row uuid.UUID, fn func(*holding) (also func(store.Tx) error, err error)) (*Token, error) {
	for {
		h, err := v.hold(ctx, row)
		if err != nil {
			return nil, err
		}
		also, err := fn(h)
		if err != nil {
			return h.token, err
		}
		shown := h.token.encode(nil)
		changed := !bytes.Equal(shown, h.shown)
		clear(shown)
		clear(h.shown)
		var event *outbox
		if changed {
			if event, err = v.newEvent(ctx, h.card, h.token, TokenUpdated, reasonOf(&h.was, h.token)); err != nil {
				return nil, err
			}
			h.card.Version++
			if err := v.sealToken(h.card, h.token); err != nil {
				return nil, err
			}
		}
		moved := !bytes.Equal(h.net.encode(nil), h.stored) || !h.due.Equal(h.wasDue)
		if !changed && !moved && also == nil {
			return h.token, nil
		}
		if moved {
			if err := v.sealNetworkToken(h); err != nil {
				return nil, err
			}
		}
		err = v.write(ctx, op, h.token.ID, func(tx store.Tx) error {
			switch {
			case changed:
				tx.Put(h.card)
			case !moved:
				if _, err := v.find(tx, kindToken, row); err != nil {
					return err
				}
			}
			if moved {
				tx.Put(h.record)
			}
			if event != nil {
				if err := event.put(tx); err != nil {
					return err
				}
			}
			if also == nil {
				return nil
			}
			return also(tx)
		})
		if errors.Is(err, store.ErrConflict) {
			continue // somebody else was faster, so there is progress
		}
		if err != nil {
			return nil, err
		}
		v.workDue(h.record)
		if event != nil {
			event.written()
		}
		return h.token, nil
	}
}

// sealNetworkToken sets every column of the record that follows from h.
func (v *Vault) sealNetworkToken(h *holding) error {
	if h.record == nil {
		h.record = &store.Record{Kind: kindNetworkToken, ID: h.card.ID, Account: v.account}
	}
	r, n := h.record, h.net
	if n.id != "" || h.token.NetworkTokenStatus != NetworkTokenPending {
		r.Secret = nil // the contact: the network has it, or will not get it
	}
	r.Version++
	r.Due = h.due
	r.Lookup = v.networkLookups(h.token.ID, n)
	return wrapped(v.box.SealShown(r, tlv.Pad(n.encode(nil), 64, 0)))
}

// networkLookups are the hashes by which the network token of a token is found.
// There are none before the network has answered: importing costs no entry of a
// random key.
func (v *Vault) networkLookups(token uuid.UUID, n *networkToken) (hashes [][]byte) {
	if n.id != "" {
		hashes = append(hashes, v.networkHash(n.network, n.id))
	} else if n.unsure {
		hashes = append(hashes, v.networkHash(n.network, n.provisionKey(token)))
	}
	if n.artID != uuid.Nil {
		hashes = append(hashes, v.artHash(n.artID))
	}
	return hashes
}

// networkHash is by what a network token is found, whosever it is: the handle
// of the network, or the idempotency key while that is not known.
func (c *core) networkHash(network, id string) []byte {
	return c.box.Lookup(uuid.Nil, "network token", []byte(network+"\x00"+id))
}

// artHash is by what the tokens that show an art are found.
func (v *Vault) artHash(id uuid.UUID) []byte {
	return v.box.Lookup(v.account, "card art", id[:])
}

// move applies a trigger and reports whether it means something in this state.
// reason is that of the new state, nil for active and pending.
func (h *holding) move(t trigger, reason *Reason) bool {
	next, ok := h.token.NetworkTokenStatus.after(t)
	if !ok {
		return false
	}
	h.token.NetworkTokenStatus, h.token.NetworkTokenStatusReason = next, reason
	return true
}
