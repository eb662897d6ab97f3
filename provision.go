package cardvault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/internal/transition"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Provision asks for a network token for a token whose network token failed or is not
// available, and returns the token, which is pending then. The rest is done by [Vault.Run];
// see [Options.ProvisionWait]. A network token that is pending or active stays as it is. So
// does a token that expires, which cannot have one. If the configuration still allows none,
// the reason is renewed. opts may be nil.
//
// Errors: ErrNetworkTokenState, ErrNotFound, ErrIdempotencyKeyReused.
func (v *Vault) Provision(ctx context.Context, id uuid.UUID, opts *CallOptions) (_ *Token, err error) {
	defer v.doing(ctx, "provision network token", &err, id)
	call := replay.Request{Operation: opProvision, Object: id, Key: opts.key()}
	again := func(answer []byte) (*Token, error) { return v.decodeAnswer(ctx, answer) }
	return once(ctx, v, call, again, func(c *replay.Call) (*Token, error) { return provision(ctx, v, id, c) })
}

func provision(ctx context.Context, v *Vault, id uuid.UUID, c *replay.Call) (*Token, error) {
	row := v.rows.Unmask(kindToken, id)
	var freed *store.Record // the release of the network token that it had
	t, err := v.change(ctx, opProvision, row, func(h *holding) (also func(store.Tx) error, err error) {
		h.call = c
		freed, err = v.request(ctx, h)
		if err != nil || freed == nil {
			return nil, err
		}
		return func(tx store.Tx) error { tx.Put(freed); return nil }, nil
	})

	switch {
	case errors.Is(err, ErrNetworkTokenState) && c != nil:
		err = storeRefusal(ctx, v, id, c)
	case errors.Is(err, ErrNetworkTokenState):
		v.rows.Wrote(ctx, opProvision, id, err)
	}
	if err != nil {
		return nil, err
	}
	v.jobs.Due(freed)
	return v.provisioned(ctx, t)
}

// storeRefusal stores and returns ErrNetworkTokenState, the only error that a repetition
// returns again.
func storeRefusal(ctx context.Context, v *Vault, id uuid.UUID, c *replay.Call) error {
	row := v.rows.Unmask(kindToken, id)
	if err := c.SealRefusal(row); err != nil {
		return err
	}
	err := v.rows.Write(ctx, opProvision, id, func(tx store.Tx) error {
		if _, err := v.rows.Find(tx, kindToken, row); err != nil {
			return err
		}
		return c.Put(tx)
	})
	return cmp.Or(err, ErrNetworkTokenState)
}

// provisioned waits for a pending token, if ProvisionWait is set.
func (v *Vault) provisioned(ctx context.Context, t *Token) (*Token, error) {
	if v.opts.ProvisionWait == 0 || t.NetworkTokenStatus != network.Pending {
		return t, nil
	}

	until := time.NewTimer(v.opts.ProvisionWait)
	defer until.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()

	for {
		select {
		case <-ctx.Done():
			return t, nil // the request is fulfilled
		case <-until.C:
			return t, nil
		case <-look.C:
		}

		latest, err := v.Get(ctx, t.ID)
		switch {
		case ctx.Err() != nil:
			return t, nil
		case err != nil || latest.NetworkTokenStatus != network.Pending:
			return latest, err
		}
	}
}

// request makes h pending if it can be, and due. It returns the record by which
// a network token that h had before is deleted at the network, or nil.
func (v *Vault) request(ctx context.Context, h *holding) (*store.Record, error) {
	t, n := h.token, h.net

	_, ok := transition.Next(t.NetworkTokenStatus, transition.Requested)
	if !ok || t.Status == StatusInvalid {
		return nil, ErrNetworkTokenState
	}
	if !t.ExpiresAt.IsZero() { // never provisioned, as its reason says
		return nil, nil
	}
	if t.NetworkTokenStatus == network.Pending || t.NetworkTokenStatus == network.Active {
		return nil, nil
	}

	reason, err := v.unavailable(ctx, t, now())
	if err != nil {
		return nil, err
	}
	if reason != nil {
		t.NetworkTokenStatus, t.NetworkTokenStatusReason = network.NotAvailable, reason
		h.due = time.Time{}
		return nil, nil
	}

	// A network token of before, or a call to a network that is no longer the
	// configured one, is left to its release.
	var freed *store.Record
	name := v.opts.powers.For(t.Scheme)
	if n.leaves(name) {
		if freed, err = v.newRelease(n.network, n.ref(t.ID), now()); err != nil {
			return nil, err
		}
	}

	n.scheme = t.Scheme
	v.answered(h, networkAnswer{kind: answerRequested, network: name}, now())
	return freed, nil
}

// unavailable says why the configuration allows no network token for t at a
// time, or nil.
func (v *Vault) unavailable(ctx context.Context, t *Token, at time.Time) (*Reason, error) {
	return unavailableFrom(ctx, v, v.opts.powers.For(t.Scheme), t, at)
}

// unavailableFrom is unavailable for the network of a name.
func unavailableFrom(ctx context.Context, v *Vault, name string, t *Token, at time.Time) (*Reason, error) {
	var code network.Code
	schemeCode := ""
	switch {
	case !t.ExpiresAt.IsZero():
		code = network.CodeEphemeralToken
	case t.Expiry.Expired(at):
		code = network.CodeCardExpired
	case t.AccountNumberStale:
		code = network.CodeStaleAccountNumber
	case v.opts.Network == nil:
		code = network.CodeNoNetwork
	default:
		a, err := v.approved(ctx)
		if err != nil {
			return nil, err
		}
		if !a.active {
			code = network.CodeNetworkTokensNotActivated
			break
		}
		code, schemeCode = v.ineligible(name, t.Scheme, a.merchant)
	}

	if code == "" {
		return nil, nil
	}
	return newReason(network.SourceConfiguration, code, schemeCode, at), nil
}

// ineligible returns the code of the reason why a network takes no cards of a scheme for a
// merchant, and the network's own, or "".
func (v *Vault) ineligible(name string, s card.Scheme, merchant uuid.UUID) (code network.Code, schemeCode string) {
	err := v.guard("network", func() error {
		return v.opts.Network.Eligible(&network.EligibilityRequest{Network: name, Scheme: s, Merchant: merchant})
	})
	if err == nil {
		return "", ""
	}
	var e *network.Error
	if !errors.As(err, &e) {
		v.log.Error("network did not report whether a scheme is eligible", "scheme", s, "error", leak.Printable(err))
		e = &network.Error{Source: network.SourceConfiguration, Code: network.CodeInvalidRequest}
	}
	return codeOf(e, network.SourceConfiguration)
}

func newReason(source network.Source, code network.Code, schemeCode string, at time.Time) *Reason {
	return &Reason{Source: source, Code: code, Message: code.Message(), Retryable: code.Retryable(), SchemeCode: schemeCode, OccurredAt: at}
}

// A networkCall is a call to the network about a network token, with its answer.
type networkCall struct {
	vault  *Vault
	job    *jobs.Job
	asked  *holding // as it was read before the call
	news   news     // of asked
	answer networkAnswer

	image *art      // that the answer names
	at    time.Time // when the answer had come
}

// untried reports whether no network has been asked for the network token.
func (c *networkCall) untried() bool {
	h := c.asked
	return h.token.NetworkTokenStatus == network.Pending && h.net.id == "" && !h.net.unsure && !c.job.Doubtful
}

// provision asks the network for the network token, and stores the outcome.
func (c *networkCall) provision(ctx context.Context) error {
	v, h := c.vault, c.asked
	c.answer = networkAnswer{provisions: true, repeats: c.job.Doubtful, asked: now()}
	name := h.net.network
	if c.untried() {
		name = v.opts.powers.For(h.token.Scheme)
	}
	reason, err := unavailableFrom(ctx, v, name, h.token, c.answer.asked)
	if err != nil {
		return err
	}
	if reason != nil {
		c.answer.kind, c.answer.reason = answerForbidden, reason
		return c.conclude(ctx)
	}

	may, err := v.approved(ctx)
	if err != nil {
		return err
	}
	err = c.send(ctx, may.merchant)
	if errors.Is(err, ErrNotFound) {
		return nil // the token was deleted meanwhile
	}
	if err != nil {
		return err
	}

	// The answer of an overloaded network, or of a gateway in front of it, may leave the
	// outcome open. A look-up shows whether there is a network token.
	if e := c.answer.refusal; e != nil && !isFinal(e) && (h.net.unsure || c.answer.repeats || e.Source != network.SourceConfiguration) {
		got, err := v.callLookup(ctx, h.net.ref(h.token.ID), h.token.LastFour)
		switch {
		case errors.Is(err, network.ErrUnknown):
			c.answer.unmade = true
		case err == nil:
			c.answer.receive(got, nil)
		}
	}
	return c.conclude(ctx)
}

// lookup asks the network for the state of the network token, and stores it.
func (c *networkCall) lookup(ctx context.Context) error {
	v, h := c.vault, c.asked
	ref := h.net.ref(h.token.ID)
	c.answer = networkAnswer{asked: now()}
	lastFour := "" // of a network token that is known the card may have been replaced
	if ref.ID == "" {
		lastFour = h.token.LastFour
	}
	c.answer.receive(v.callLookup(ctx, ref, lastFour))
	return c.conclude(ctx)
}

// send opens the card and passes it to the network. An error is a failure of the
// vault, before the network was called.
func (c *networkCall) send(ctx context.Context, merchant uuid.UUID) error {
	v, h := c.vault, c.asked
	pan, err := v.openPAN(ctx, h.card, h.token)
	if err != nil {
		return err
	}
	defer pan.Wipe()
	code, _, err := v.securityCode(ctx, h.token)
	if err != nil {
		return err
	}
	defer code.Wipe()
	contact, err := v.openContact(ctx, h.record)
	if err != nil {
		return err
	}
	defer contact.Wipe()

	got, failure := v.callProvision(ctx, h, &network.ProvisionRequest{
		Network:        h.net.network,
		IdempotencyKey: h.net.provisionKey(h.token.ID),
		TokenID:        h.token.ID,
		Merchant:       merchant,
		Scheme:         h.token.Scheme,
		PAN:            pan,
		Expiry:         h.token.Expiry,
		Name:           h.token.CardholderName,
		SecurityCode:   code,
		Contact:        contact,
		Identification: h.token.Identification,
	})
	c.answer.receive(got, plausible.Withhold(failure, pan, hiding.Of(code)))
	return nil
}

// conclude stores the outcome of a call.
func (c *networkCall) conclude(ctx context.Context) error {
	v, a, ref := c.vault, &c.answer, c.asked.net.ref(c.asked.token.ID)
	if a.kind == answerToken && (ref.ID == "" || a.token.Art != c.asked.net.art) {
		c.image = v.art(ctx, ref.Network, a.token.Art)
	}
	c.at = now()

	for read := c.asked; ; read = nil {
		var stray *store.Record
		_, err := v.changeHeld(ctx, opNetworkToken, c.asked.card.ID, read, func(h *holding) (put func(store.Tx) error, err error) {
			switch {
			case !c.overtaken(h, ref):
				put, err = c.absorb(ctx, h)
				return c.held(put), err
			case a.provisions && a.kind == answerToken && (a.token.ID != h.net.id || ref.Network != h.net.network):
				stray, put, err = v.releaseLater(ref, a.token.ID)
			}
			return put, err
		})

		switch {
		case errors.Is(err, errArtGone):
			c.image = v.art(ctx, ref.Network, a.token.Art)
		case errors.Is(err, errReleasing):
			a.kind, a.token, a.err = answerReleasing, nil, err
		case errors.Is(err, ErrNotFound) && a.provisions && a.kind == answerToken:
			return c.releaseStray(ctx, ref)
		case errors.Is(err, ErrNotFound):
			return nil
		default:
			if err == nil {
				v.jobs.Due(stray)
			}
			return err
		}
	}
}

// held returns put for a process that still has the lease under which the network was
// asked. Any other process writes nothing: the new holder asks again, under the same key,
// unless the token was deleted, which ErrNotFound reports.
func (c *networkCall) held(put func(store.Tx) error) func(store.Tx) error {
	return func(tx store.Tx) error {
		switch holds, err := c.job.Holds(tx); {
		case err != nil:
			return err
		case !holds:
			_, err := c.vault.rows.Find(tx, kindToken, c.asked.card.ID)
			return cmp.Or(err, jobs.ErrLeft)
		case put == nil:
			return nil
		}
		return put(tx)
	}
}

// overtaken reports whether h has gone another way since the network was asked
// about ref.
func (c *networkCall) overtaken(h *holding, ref network.Ref) bool {
	if h.net.ref(h.token.ID) != ref {
		return true
	}
	switch status := h.token.NetworkTokenStatus; {
	case !c.answer.provisions, status == network.Pending:
		return false
	default: // a provisioning that was given up may still succeed
		return status != network.Failed || c.answer.kind != answerToken
	}
}

// absorb applies the answer to h, and returns a function that stores what belongs
// to it.
func (c *networkCall) absorb(ctx context.Context, h *holding) (func(store.Tx) error, error) {
	v, a, attaches := c.vault, c.answer, h.net.id == ""
	if a.kind == answerToken && !attaches && h.net.news != c.news {
		a.kind = answerOutdated
	}
	v.answered(h, a, c.at)
	if a.kind != answerToken {
		c.logFailure(h, a)
		return nil, nil
	}

	put := v.observe(h, a.token, c.image, a.asked)
	if !attaches {
		return put, nil
	}
	withdraw, err := v.withdrawReleases(ctx, v.networkHash(h.net.network, h.net.id))
	if err != nil {
		return nil, err
	}
	return func(tx store.Tx) error {
		if err := withdraw(tx); err != nil {
			return err
		}
		return put(tx)
	}, nil
}

// logFailure logs an answer after which h has no network token, or its state is
// not known, unless that is the ordinary course.
func (c *networkCall) logFailure(h *holding, a networkAnswer) {
	log := c.vault.log
	switch e := a.refusal; {
	case a.kind == answerForbidden, a.kind == answerOutdated:
	case a.provisions && a.kind == answerNothing:
		log.Warn("provisioning has an unknown outcome and will be repeated", "token", h.token.ID, "error", leak.Printable(a.err))
	case a.provisions && e != nil && e.Source == network.SourceConfiguration:
		code, schemeCode := codeOf(e, network.SourceConfiguration)
		log.Error("network refused by configuration", "scheme", h.token.Scheme, "code", code, "scheme_code", schemeCode)
	case a.provisions:
	case a.kind == answerNothing, !h.due.IsZero(): // otherwise it has ended
		log.Warn("network token could not be looked up", "token", h.token.ID, "error", leak.Printable(a.err))
	}
}

// releaseStray has a network token deleted whose token was deleted meanwhile.
func (c *networkCall) releaseStray(ctx context.Context, ref network.Ref) error {
	stray, put, err := c.vault.releaseLater(ref, c.answer.token.ID)
	if err == nil {
		err = c.vault.rows.Write(ctx, opRelease, c.asked.token.ID, put)
	}
	if err == nil {
		c.vault.jobs.Due(stray)
	}
	return err
}

// callProvision asks the network for a network token of h.
func (v *Vault) callProvision(ctx context.Context, h *holding, r *network.ProvisionRequest) (got *network.Token, err error) {
	err = v.ask(ctx, func(ctx context.Context) (err error) {
		got, err = v.opts.Network.Provision(ctx, r)
		return err
	})
	if err == nil {
		err = plausible.NetworkToken(got, h.token.LastFour)
	}
	if err != nil {
		return nil, err
	}
	return got, nil
}

// callLookup asks the network for the state of a network token, of a card whose
// last four digits are known unless they are "".
func (v *Vault) callLookup(ctx context.Context, ref network.Ref, lastFour string) (got *network.Token, err error) {
	err = v.ask(ctx, func(ctx context.Context) (err error) {
		got, err = v.opts.Network.Lookup(ctx, ref)
		return err
	})
	if err == nil {
		err = plausible.NetworkToken(got, lastFour)
	}
	if err == nil && ref.ID != "" && got.ID != ref.ID {
		err = errGarbage
	}
	if err != nil {
		return nil, err
	}
	return got, nil
}

// jobContact is the tag of a Contact in the secret part of a network token's record:
// it is there until the network has it.
const jobContact = 1

// openContact returns the contact to pass to the network, if there is one.
func (v *Vault) openContact(ctx context.Context, r *store.Record) (c card.Contact, err error) {
	if len(r.Secret) == 0 {
		return card.Contact{}, nil
	}

	plain, err := v.rows.CopySecret(ctx, r)
	if err != nil {
		return card.Contact{}, err
	}
	defer clear(plain)

	fields := tlv.Read(plain)
	for fields.Next() {
		if fields.Tag == jobContact {
			c = card.NewContact(fields.Value)
		}
	}
	return c, nil
}

// openPAN returns the card number of a token, of the edition that the token names. Its record
// stays as it is.
func (v *Vault) openPAN(ctx context.Context, rec *store.Record, t *Token) (number card.PAN, err error) {
	plain, err := v.rows.CopySecret(ctx, rec)
	if err != nil {
		return card.PAN{}, err
	}
	defer clear(plain)

	edition := uint64(0)
	fields := tlv.Read(plain)
	for fields.Next() {
		switch fields.Tag {
		case cardNumber:
			number = card.NewPAN(fields.Value)
		case cardEdition:
			edition = fields.Uint()
		}
	}
	if number.IsZero() || edition != t.edition {
		number.Wipe()
		return card.PAN{}, v.rows.Named(rec, fmt.Errorf("%w: card cannot be read", ErrDamaged))
	}
	return number, nil
}

// withdrawReleases returns a function that deletes the releases of a network token
// which has a holder again: another token of the same card may have been its last.
// A release that cannot be read is never worked on, and stays.
func (v *Vault) withdrawReleases(ctx context.Context, hash []byte) (func(store.Tx) error, error) {
	known, err := v.rows.Glimpses(ctx, kindRelease, hash, maxReleases)
	if err != nil {
		return nil, err
	}

	return func(tx store.Tx) error {
		releases, err := tx.Lookup(kindRelease, hash, maxReleases)
		if err != nil && !errors.Is(err, ErrDamaged) {
			return err
		}
		for _, r := range releases {
			switch was := known[r.ID]; {
			case was.Version != r.Version:
				return store.ErrConflict // it came since, or has changed
			case !was.Readable:
			case r.Version > 1:
				return errReleasing
			default:
				ledger.Delete(tx, r)
			}
		}
		return nil
	}, nil
}

// observe applies the network's news of the card behind the network token of h,
// and returns a function that stores its art.
func (v *Vault) observe(h *holding, got *network.Token, image *art, asked time.Time) func(store.Tx) error {
	t, n := h.token, h.net

	if got.Card != nil {
		// Only news count: values that the caller has changed stay.
		var change network.CardState
		if got.Card.LastFour != t.LastFour {
			change.LastFour = got.Card.LastFour
		}

		switch n.card.Expiry {
		case card.Expiry{}:
			n.card.Expiry = got.Card.Expiry
		case got.Card.Expiry:
		default:
			change.Expiry = got.Card.Expiry
		}

		if change != (network.CardState{}) {
			h.renew(&change, change.LastFour != "")
		}

		if asked.After(n.cardAt) {
			n.cardAt = asked
		}
	}

	t.SupportsDeviceBinding = got.SupportsDeviceBinding
	if reference := got.PaymentAccountReference; plausible.AccountReference(reference) {
		t.PaymentAccountReference = reference // of the number: it outlives the network token
	} else if reference != "" {
		v.log.Warn("network returned a payment account reference that cannot be one", "token", t.ID)
	}
	return v.show(h, got.Art, image)
}

// renew applies the network's state of the card. The notice of a replaced card has no
// number: the stored one is stale then, until [Vault.Replace] stores another.
func (h *holding) renew(c *network.CardState, replaced bool) bool {
	t, n := h.token, h.net
	if _, ok := transition.Next(t.NetworkTokenStatus, transition.CardChanged); !ok {
		return false
	}

	if replaced && !t.AccountNumberStale {
		t.former, t.staleExpiry = t.LastFour, t.Expiry
	}
	if c.LastFour != "" {
		n.card.LastFour = c.LastFour
	}
	if (c.Expiry != card.Expiry{}) {
		t.Expiry, n.card.Expiry = c.Expiry, c.Expiry
	}

	if replaced {
		t.AccountNumberStale = true
		if c.LastFour != "" {
			m, iin := t.MaskedAccountNumber, t.IIN
			t.setMasked(m[:len(m)-4] + c.LastFour)
			t.IIN = iin
		}
	}
	return true
}

// isFinal reports whether the refusal of a provisioning is the last word on it. A
// network that is overloaded, or set up wrongly, may know more later.
func isFinal(e *network.Error) bool {
	code, _ := codeOf(e, network.SourceScheme)
	return e.Source != network.SourceConfiguration && !code.Retryable()
}

// SuspendNetworkToken has the network suspend the network token of a token, on
// behalf of the cardholder, and returns the token.
//
// Errors: ErrNotEnabled if the network is not a [network.Suspender]; ErrNetworkTokenState
// unless the network token is active or inactive; a [*network.Error];
// ErrUnavailable if the network gave no answer; ErrNotFound.
func (v *Vault) SuspendNetworkToken(ctx context.Context, id uuid.UUID) (_ *Token, err error) {
	defer v.doing(ctx, "suspend network token", &err, id)
	return v.suspend(ctx, id, true, network.Suspender.Suspend)
}

// ResumeNetworkToken ends the suspension by SuspendNetworkToken. The network token is
// active again unless another owner still suspends it. Errors are the same.
func (v *Vault) ResumeNetworkToken(ctx context.Context, id uuid.UUID) (_ *Token, err error) {
	defer v.doing(ctx, "resume network token", &err, id)
	return v.suspend(ctx, id, false, network.Suspender.Resume)
}

func (v *Vault) suspend(ctx context.Context, id uuid.UUID, suspends bool, call func(network.Suspender, context.Context, network.Ref) error) (*Token, error) {
	h, err := v.hold(ctx, v.rows.Unmask(kindToken, id))
	if err != nil {
		return nil, err
	}
	issuer, known := v.opts.powers.Of(h.net.network)
	switch {
	case v.opts.powers.Suspender == nil:
		return nil, notEnabled("Options.Network is nil or not a network.Suspender")
	case h.net.id != "" && !known:
		return nil, notEnabled("the network token belongs to another network than Options.Network")
	case h.net.id != "" && !issuer.Suspender:
		return nil, notEnabled("the network of the network token is not a network.Suspender")
	}
	if _, ok := transition.Next(h.token.NetworkTokenStatus, transition.Suspended); !ok || h.token.Status == StatusInvalid {
		return nil, ErrNetworkTokenState
	}

	err = v.ask(ctx, func(ctx context.Context) error { return call(v.opts.powers.Suspender, ctx, h.net.ref(id)) })
	var refusal *network.Error
	switch {
	case errors.As(err, &refusal):
		return nil, refusal
	case err != nil:
		v.log.Warn("network token could not be suspended or resumed", "token", id, "error", leak.Printable(err))
		return nil, fmt.Errorf("%w: the network gave no answer", ErrUnavailable)
	}

	kind := answerResumed
	if suspends {
		kind = answerSuspended
	}
	asked := h.net.ref(id)
	t, err := v.change(ctx, opNetworkToken, h.card.ID, func(h *holding) (func(store.Tx) error, error) {
		if h.net.ref(id) == asked { // else its card was replaced meanwhile
			v.answered(h, networkAnswer{kind: kind}, now())
		}
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// scale shortens delays in the sandbox.
func (c *core) scale(d time.Duration) time.Duration {
	if c.opts.Mode == Sandbox {
		return d / 100
	}
	return d
}

// capped is scale with a cap in the sandbox.
func (c *core) capped(d time.Duration) time.Duration {
	if c.opts.Mode == Sandbox {
		return min(c.scale(d), 5*time.Second)
	}
	return d
}

// pace is capped with jitter.
func (c *core) pace(d time.Duration) time.Duration { return jobs.Jitter(c.capped(d)) }
