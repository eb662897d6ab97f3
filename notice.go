package cardvault

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/internal/spread"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/internal/transition"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Notify applies a notice of the network to every token that has the network token, in any
// account. Once it has returned nil the effect is durable, and the network may receive its
// acknowledgement. A notice for more than a thousand tokens is stored, and applied by
// [Vault.Run]. A notice that was applied before, or that is older than the known state,
// changes nothing and returns nil.
//
// Errors: FieldErrors; ErrNotFound if no token has the network token, which can
// also be because the vault has not stored it yet: let the network deliver the
// notice again later.
func (v *Vault) Notify(ctx context.Context, n *network.Notice) (err error) {
	defer v.doing(ctx, "apply notice", &err)
	if err := checkNotice(n); err != nil {
		return err
	}
	name := cmp.Or(n.Token.Network, v.opts.powers.Name)
	if v.opts.Network != nil && !v.opts.powers.Has(name) {
		return &FieldError{"Token", invalid.Enum, "must name a network of Options.Network"}
	}
	v = v.of(v.rows.ID) // it is about the vault's network tokens, whatever the state of an account
	n = bound(n, name)
	seen := &store.Record{
		Kind:    kindNotice,
		ID:      uuid.UUID(v.rows.Box.Stable(uuid.Nil, "notice", []byte(name+"\x00"+n.ID))[:16]),
		Due:     now().Add(noticeTTL),
		Version: 1,
	}

	a := &arrival{vault: v, notice: n, seen: seen}
	if _, err := ledger.Retry(ctx, func() (any, error) { return nil, a.read(ctx) }); err != nil {
		return err
	}
	switch {
	case a.known != nil:
		_, err := v.rows.OpenShown(ctx, a.known)
		return err
	case len(a.holders) == 0:
		return a.unheld(ctx)
	}

	if err := v.rows.SealShown(seen, tlv.Pad(nil, 16, 16)); err != nil {
		return err
	}
	if len(a.holders) > noticeHolders {
		return v.notifyMany(ctx, &spread.Spread{Notice: bare(n)}, seen)
	}
	return a.apply(ctx)
}

// bound returns a notice of a network that names it.
func bound(n *network.Notice, name string) *network.Notice {
	b := *n
	b.Token.Network = name
	return &b
}

// handleOf returns the name by which a network token is found: the network's, or the
// idempotency key while that is not known.
func handleOf(r network.Ref) string { return cmp.Or(r.ID, r.IdempotencyKey) }

// An arrival is a received notice, with the affected records.
type arrival struct {
	vault  *Vault
	notice *network.Notice
	seen   *store.Record // of its receipt, for storing

	known   *store.Record   // that it had come before; nil if it had not
	holders []*store.Record // the network tokens it is about, one more than are notified at once
	damaged error           // of a holder that cannot be read: it keeps the notice from no other
}

// hash returns the hash by which the network token is found.
func (a *arrival) hash() []byte {
	return a.vault.networkHash(a.notice.Token.Network, handleOf(a.notice.Token))
}

func (a *arrival) read(ctx context.Context) error {
	err := a.vault.rows.View(ctx, func(tx store.ReadTx) (err error) {
		a.known, err = tx.Get(kindNotice, a.seen.ID)
		if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		a.holders, err = tx.Lookup(kindNetworkToken, a.hash(), noticeHolders+1)
		return err
	})
	if errors.Is(err, ErrDamaged) && a.known == nil {
		a.damaged, err = err, nil
	}
	return err
}

// unheld is the answer if no token has the network token: nil if it is about to be
// deleted at the network, or belongs to another network, else ErrNotFound.
func (a *arrival) unheld(ctx context.Context) error {
	for _, other := range a.vault.opts.powers.Networks() {
		name, handle := a.notice.Token.Network, handleOf(a.notice.Token)
		if other.Name == name {
			continue
		}
		found := false
		err := a.vault.rows.FindBy(ctx, kindNetworkToken, a.vault.networkHash(other.Name, handle), 1, func(*store.Record, bool) bool {
			found = true
			return false
		})
		if err != nil {
			return err
		}
		if found {
			a.vault.log.Error("a notice of a network names a network token of another and is dropped", "network", name, "other", other.Name)
			return nil
		}
	}

	releasing := false // a record that cannot be read is not a release
	err := a.vault.rows.FindBy(ctx, kindRelease, a.hash(), maxReleases, func(_ *store.Record, readable bool) bool {
		releasing = readable
		return !readable
	})
	if err = errors.Join(a.damaged, err); err == nil && !releasing {
		return ErrNotFound
	}
	return err
}

// apply applies the notice to all holders, each in a transaction of its own. If one
// fails the notice is delivered again: holders that had it find it stale then.
func (a *arrival) apply(ctx context.Context) error {
	var errs []error
	if a.damaged != nil {
		errs = append(errs, a.damaged)
	}
	for i, r := range a.holders {
		var also func(store.Tx) error
		if i == len(a.holders)-1 && len(errs) == 0 { // every holder has it
			also = func(tx store.Tx) error { return putNew(tx, a.seen) }
		}
		if err := a.vault.notifyOne(ctx, r, a.notice, also); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// putNew writes records, unless there is one like the first.
func putNew(tx store.Tx, records ...*store.Record) error {
	_, err := tx.Get(records[0].Kind, records[0].ID)
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	for _, r := range records {
		tx.Put(r)
	}
	return nil
}

// notifyOne applies a notice to the token of a network token, unless that is another one
// by now.
func (v *Vault) notifyOne(ctx context.Context, r *store.Record, n *network.Notice, also func(store.Tx) error) error {
	_, err := v.of(r.Account).change(ctx, opNotice, r.ID, func(h *holding) (func(store.Tx) error, error) {
		if is := h.net.ref(h.token.ID); is.Network != n.Token.Network || n.Token.ID != "" && is.ID != n.Token.ID || n.Token.ID == "" && is.IdempotencyKey != n.Token.IdempotencyKey {
			return nil, nil
		}
		v.applyNotice(h, n)
		return also, nil
	})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

const (
	noticeTTL     = 30 * 24 * time.Hour // how long a notice is known to be applied
	noticeHolders = 1000                // tokens of one network token that are updated at once; more are left to a job
	noticeBatch   = 256                 // network tokens that the job reads at a time
)

// bare returns what applyNotice looks at of a notice.
func bare(n *network.Notice) network.Notice {
	b := *n
	b.SchemeCode = schemeText(b.SchemeCode)
	b.Art = b.Art[:min(len(b.Art), maxText+1)] // no art has a longer id
	if e := b.Failure; e != nil {
		code, schemeCode := codeOf(e, e.Source)
		b.Failure = &network.Error{Source: e.Source, Code: code, SchemeCode: schemeCode}
	}
	return b
}

// notifyMany stores the job that applies a notice, with the record that it was seen.
func (v *Vault) notifyMany(ctx context.Context, s *spread.Spread, seen *store.Record) error {
	row, err := v.rows.NewRow()
	if err != nil {
		return err
	}
	r := &store.Record{Kind: kindSpread, ID: row, Due: now(), Version: 1}
	if err := v.rows.SealShown(r, s.Encode()); err != nil {
		return err
	}
	err = v.rows.Write(ctx, opNotice, uuid.Nil, func(tx store.Tx) error { return putNew(tx, seen, r) })
	if errors.Is(err, store.ErrConflict) { // the same notice was stored meanwhile
		return nil
	}
	if err == nil {
		v.jobs.Due(r)
	}
	return err
}

// spreadOn goes on with a spread until it is done or the claim is nearly over.
func (v *Vault) spreadOn(ctx context.Context, j *jobs.Job, s *spread.Spread) error {
	for time.Until(j.Record.Due) > sendTimeout {
		select {
		case <-j.Ending:
			j.Record.Due = now()
			return v.jobs.Again(ctx, j.Record, s.Encode())
		default:
		}

		var all []*store.Record
		err := v.rows.View(ctx, func(tx store.ReadTx) (err error) {
			all, err = tx.Scan(kindNetworkToken, s.From, noticeBatch)
			return err
		})
		if err != nil {
			return err // after the lease it goes on from where it was
		}

		hash := v.networkHash(s.Notice.Token.Network, handleOf(s.Notice.Token))
		err = jobs.Each(all, func(r *store.Record) error {
			if !ledger.Carries(r, hash) {
				return nil
			}
			err := v.notifyOne(ctx, r, &s.Notice, nil)
			if errors.Is(err, ErrDamaged) { // other tokens get the notice all the same
				v.log.Error("a notice cannot be applied", "token", v.In(r.Account).rows.Mask(kindToken, r.ID), "error", err)
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}

		if len(all) < noticeBatch {
			return v.jobs.Finish(ctx, j.Record)
		}

		s.From = all[len(all)-1].ID
	}

	j.Record.Due = now()
	return v.jobs.Again(ctx, j.Record, s.Encode())
}

func checkNotice(n *network.Notice) error {
	if n == nil {
		return required("Notice")
	}
	var errs []error

	if len(n.ID) < 1 || len(n.ID) > maxText {
		errs = append(errs, &FieldError{"ID", invalid.OutOfRange, "must have 1 to 255 bytes"})
	}
	if len(n.Token.ID) > maxText || len(n.Token.IdempotencyKey) > maxText || handleOf(n.Token) == "" {
		errs = append(errs, &FieldError{"Token", invalid.OutOfRange, "must have 1 to 255 bytes"})
	}
	if n.Kind < network.NoticeActivated || n.Kind > network.NoticeArtChanged {
		errs = append(errs, &FieldError{"Kind", invalid.Enum, "must be a kind of notice"})
	}
	if n.OccurredAt.IsZero() || n.OccurredAt.Before(ledger.FirstTime) || n.OccurredAt.After(ledger.LastTime) {
		errs = append(errs, &FieldError{"OccurredAt", invalid.OutOfRange, "must be a time of this century"})
	}
	if n.By > ownerCount || n.By == 0 && n.Kind.HasOwner() {
		errs = append(errs, &FieldError{"By", invalid.Enum, "must be an owner"})
	}
	if n.Card != nil && !plausible.CardState(n.Card) {
		errs = append(errs, &FieldError{"Card", invalid.Format, "must have four digits and an expiry"})
	}
	if n.Kind == network.NoticeRefused && n.Failure == nil {
		errs = append(errs, required("Failure"))
	}

	return errors.Join(errs...)
}

// applyNotice applies a notice to h.
func (c *core) applyNotice(h *holding, n *network.Notice) {
	at := now()
	occurredAt := networkTime(n.OccurredAt, at)
	if n.Kind == network.NoticeCardReplaced || n.Kind == network.NoticeCardRenewed {
		h.cardNoticed(n, occurredAt)
		return
	}
	c.proceed(h, h.progress().noticed(n, occurredAt, at, c.scale), at)
}

// cardNoticed applies that the card has a new number or expiry.
func (h *holding) cardNoticed(n *network.Notice, at time.Time) {
	if at.Before(h.net.cardAt) {
		return
	}
	var card network.CardState
	if n.Card != nil {
		card = *n.Card
	}
	if h.renew(&card, n.Kind == network.NoticeCardReplaced) {
		h.net.cardAt = at
	}
}

// notices is the effect of each kind of notice, by the time at which it occurred. Notices
// about the card are not here: they change the token.
var notices = map[network.NoticeKind]func(p *progress, n *network.Notice, at time.Time){
	network.NoticeActivated:    (*progress).activateNoticed,
	network.NoticeRefused:      (*progress).refuseNoticed,
	network.NoticeSuspended:    (*progress).ownersNoticed,
	network.NoticeResumed:      (*progress).ownersNoticed,
	network.NoticeDeleted:      (*progress).deleteNoticed,
	network.NoticeInvalidated:  func(p *progress, n *network.Notice, at time.Time) { p.invalidate(at, n.SchemeCode) },
	network.NoticeTokenRenewed: func(*progress, *network.Notice, time.Time) {}, // its number and expiry come with each cryptogram
	network.NoticeArtChanged:   (*progress).artNoticed,
}

// noticed returns the progress after a notice. A state that it has led to is
// looked up in time, unless the notice says when itself.
func (p progress) noticed(n *network.Notice, occurredAt, at time.Time, scale scaling) progress {
	former := p.status
	notices[n.Kind](&p, n, occurredAt)
	if p.status != former && p.pause.kind == pauseKept {
		p.schedule(at, scale)
		p.sooner = true // a look-up that was due before stays due
	}
	return p
}

func (p *progress) activateNoticed(_ *network.Notice, at time.Time) {
	switch {
	case at.Before(p.latest()):
	case p.id == "": // the answer was lost: it is looked up
		p.pause = pause{kind: pauseExact}
	case p.move(transition.Issued, nil):
		p.stateAt = at
	}
}

func (p *progress) refuseNoticed(n *network.Notice, at time.Time) {
	if at.Before(p.latest()) || p.status != network.Pending {
		return
	}
	p.stateAt = at
	p.refuse(n.Failure, at)
}

// ownersNoticed applies that one owner suspends the network token or no longer
// does.
func (p *progress) ownersNoticed(n *network.Notice, at time.Time) {
	if at.Before(p.stateAt) || at.Before(p.ownerAt[n.By-1]) {
		return
	}
	if _, ok := transition.Next(p.status, transition.Suspended); !ok {
		if _, ok := transition.Next(p.status, transition.Issued); ok { // it has become active meanwhile: its state is looked up
			p.pause = pause{kind: pauseExact}
		}
		return
	}

	owners, schemeCode := p.suspendedBy&^network.OwnersOf(n.By), ""
	if n.Kind == network.NoticeSuspended {
		owners, schemeCode = p.suspendedBy|network.OwnersOf(n.By), n.SchemeCode
	}
	p.ownerAt[n.By-1] = at
	if owners == p.suspendedBy {
		return
	}

	p.suspendedBy = owners
	if owners == 0 {
		p.move(transition.Resumed, nil)
		return
	}
	reason := suspensionReason(owners, schemeCode, at)
	if p.reason != nil && p.reason.Code == reason.Code {
		reason = p.reason // by one more owner
	}
	p.move(transition.Suspended, reason)
}

func (p *progress) deleteNoticed(n *network.Notice, at time.Time) {
	code := network.CodeDeletedByIssuer
	if n.By == network.OwnerScheme {
		code = network.CodeDeletedByScheme
	}
	p.move(transition.Deleted, newReason(network.SourceScheme, code, schemeText(n.SchemeCode), at))
}

func (p *progress) artNoticed(n *network.Notice, at time.Time) {
	if at.Before(p.artAt) || n.Art != "" && n.Art == p.art {
		return
	}
	if p.status == network.Active || p.status == network.Inactive {
		p.artAt = at
		p.pause = pause{kind: pauseExact} // it is fetched in the background
	}
}
