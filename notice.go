package cardvault

import (
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Notify applies a notice of the network to every token that has the network
// token, in whatever account. Once it has returned nil the effect is durable,
// and the network can be told so. A notice that was applied before, or that is
// older than what is known, changes nothing and returns nil.
//
// Errors: FieldErrors; ErrNotFound if no token has the network token, which can
// also be because the vault has not stored it yet: let the network deliver the
// notice again later.
func (v *Vault) Notify(ctx context.Context, n *Notice) error {
	if err := n.check(); err != nil {
		return err
	}
	whole, network := v.whole(), ""
	if v.opts.Network != nil {
		network = v.opts.Network.Name()
	}
	seen := &store.Record{
		Kind:    kindNotice,
		ID:      uuid.UUID(v.box.Lookup(uuid.Nil, "notice", []byte(network+"\x00"+n.ID))[:16]),
		Due:     now().Add(noticeTTL),
		Version: 1,
	}
	handle := n.Token.ID
	if handle == "" {
		handle = n.Token.IdempotencyKey
	}
	hash := v.networkHash(network, handle)
	var known *store.Record
	var holders, releases []*store.Record
	err := v.view(ctx, func(tx store.ReadTx) (err error) {
		known, err = tx.Get(kindNotice, seen.ID)
		if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if holders, err = tx.Lookup(kindNetworkToken, hash, noticeHolders+1); err != nil {
			return err
		}
		releases, err = tx.Lookup(kindRelease, hash, 1)
		return err
	})
	switch {
	case err != nil:
		return err
	case known != nil:
		_, err := v.openShown(ctx, known)
		return err
	case len(holders) == 0 && len(releases) > 0:
		return nil // it is about to be deleted
	case len(holders) == 0:
		return ErrNotFound
	case len(holders) > noticeHolders:
		v.log.Error("network token is shared by too many tokens; a notice reaches some of them", "tokens", noticeHolders)
		holders = holders[:noticeHolders]
	}
	if err := v.box.SealShown(seen, tlv.Pad(nil, 16, 16)); err != nil {
		return wrapped(err)
	}
	// Each in a transaction of its own: what was applied is found stale, or the
	// same, when the notice is delivered again after a failure in between.
	var errs []error
	for i, r := range holders {
		last := i == len(holders)-1 && len(errs) == 0
		_, err := whole.In(r.Account).change(ctx, opNotice, r.ID, func(h *holding) (func(store.Tx) error, error) {
			if h.net.id != n.Token.ID && (n.Token.ID != "" || h.net.provisionKey(h.token.ID) != handle) {
				return nil, nil // it has another one by now
			}
			v.applyNotice(h, n)
			if !last {
				return nil, nil
			}
			return func(tx store.Tx) error {
				_, err := tx.Get(kindNotice, seen.ID)
				if errors.Is(err, store.ErrNotFound) {
					tx.Put(seen)
					return nil
				}
				return err
			}, nil
		})
		if err != nil && !errors.Is(err, ErrNotFound) {
			errs = append(errs, err) // it keeps nobody else from being told
		}
	}
	return errors.Join(errs...)
}

const (
	noticeTTL     = 30 * 24 * time.Hour // how long a notice is known to be applied
	noticeHolders = 1000                // tokens of one network token that a notice reaches
)

func (n *Notice) check() error {
	if n == nil {
		return required("notice")
	}
	var errs []error
	if len(n.ID) < 1 || len(n.ID) > maxText {
		errs = append(errs, &FieldError{"id", "out_of_range", "must have 1 to 255 bytes"})
	}
	if len(n.Token.ID) > maxText || len(n.Token.IdempotencyKey) > maxText || n.Token == (NetworkTokenRef{}) {
		errs = append(errs, &FieldError{"token", "out_of_range", "must have 1 to 255 bytes"})
	}
	if n.Kind < NoticeActivated || n.Kind > NoticeArtChanged {
		errs = append(errs, &FieldError{"kind", "invalid_enum", "must be a kind of notice"})
	}
	if n.OccurredAt.IsZero() || n.OccurredAt.Before(firstRow) || n.OccurredAt.After(lastRow) {
		errs = append(errs, &FieldError{"occurred_at", "out_of_range", "must be a time of this century"})
	}
	if n.By >= ownerCount {
		errs = append(errs, &FieldError{"by", "invalid_enum", "must be an owner"})
	}
	if n.Card != nil && !n.Card.check() {
		errs = append(errs, &FieldError{"card", "invalid_format", "must have four digits and an expiry"})
	}
	if n.Kind == NoticeRefused && n.Failure == nil {
		errs = append(errs, required("failure"))
	}
	return errors.Join(errs...)
}

// applyNotice applies a notice to h.
func (c *core) applyNotice(h *holding, n *Notice) {
	t, net := h.token, h.net
	at := networkTime(n.OccurredAt)
	status := t.NetworkTokenStatus
	switch n.Kind {
	case NoticeActivated:
		if at.Before(net.latest()) {
			return
		}
		if net.id == "" {
			h.due = now() // the answer was lost: what it was is looked up
			return
		}
		if h.move(issued, nil) {
			net.stateAt = at
		}
	case NoticeRefused:
		if at.Before(net.latest()) || status != NetworkTokenPending {
			return
		}
		net.stateAt = at
		h.refuse(n.Failure, at)
		return
	case NoticeSuspended, NoticeResumed:
		if at.Before(net.stateAt) || at.Before(net.ownerAt[n.By]) {
			return
		}
		if _, ok := status.after(suspended); !ok {
			if _, ok := status.after(issued); ok {
				h.due = now() // it has become active meanwhile: what it is now is looked up
			}
			return
		}
		owners, schemeCode := net.suspendedBy&^OwnersOf(n.By), ""
		if n.Kind == NoticeSuspended {
			owners, schemeCode = net.suspendedBy|OwnersOf(n.By), n.SchemeCode
		}
		net.ownerAt[n.By] = at
		if owners == net.suspendedBy {
			return
		}
		net.suspendedBy = owners
		if owners == 0 {
			h.move(resumed, nil)
		} else {
			reason := suspensionReason(owners, schemeCode, at)
			if r := t.NetworkTokenStatusReason; r != nil && r.Code == reason.Code {
				reason = r // by one more owner
			}
			h.move(suspended, reason)
		}
	case NoticeDeleted:
		code := "deleted_by_issuer"
		if n.By == OwnerScheme {
			code = "deleted_by_scheme"
		}
		h.move(deleted, newReason(SourceScheme, code, schemeText(n.SchemeCode), at))
	case NoticeInvalidated:
		h.invalidate(at, n.SchemeCode)
	case NoticeCardReplaced, NoticeCardRenewed:
		if at.Before(net.cardAt) {
			return
		}
		card := CardState{}
		if n.Card != nil {
			card = *n.Card
		}
		if h.renew(&card, n.Kind == NoticeCardReplaced) {
			net.cardAt = at
		}
	case NoticeTokenRenewed:
		return // its number and expiry come with each cryptogram
	case NoticeArtChanged:
		if at.Before(net.artAt) || n.Art != "" && n.Art == net.art {
			return
		}
		if status == NetworkTokenActive || status == NetworkTokenInactive {
			net.artAt = at
			h.due = now() // it is fetched in the background
		}
		return
	}
	if t.NetworkTokenStatus == status {
		return
	}
	due := h.due
	c.schedule(h, now())
	if !due.IsZero() && due.Before(h.due) {
		h.due = due // what was to be looked up still is
	}
}
