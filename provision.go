package cardvault

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Provision asks for a network token for a token whose network token failed or
// is not available, and returns the token, which is pending then. The rest is
// done by [Vault.Run]; see [Options.ProvisionWait]. A network token that is
// pending or active stays as it is. If the configuration still allows none, the
// reason is renewed.
//
// Errors: ErrNetworkTokenState, ErrNotFound, ErrIdempotencyKeyReused.
func (v *Vault) Provision(ctx context.Context, id uuid.UUID) (*Token, error) {
	once, answer, err := v.once(ctx, opProvision, id, func() []byte { return nil })
	switch {
	case err != nil:
		return nil, err
	case answer != nil:
		return v.decodeAnswer(answer)
	}
	row := v.unmask(kindToken, id)
	var release *store.Record
	t, err := v.change(ctx, opProvision, row, func(h *holding) (also func(store.Tx) error, err error) {
		if release, err = v.request(ctx, h); err != nil {
			return nil, err
		}
		if once != nil {
			if err := once.seal(v, h.token.encode(bytes.Clone(row[:])), row); err != nil {
				return nil, err
			}
		}
		if once == nil && release == nil {
			return nil, nil
		}
		return func(tx store.Tx) error {
			if release != nil {
				tx.Put(release)
			}
			return once.put(tx)
		}, nil
	})
	switch {
	case errors.Is(err, ErrNetworkTokenState) && once != nil:
		// The one error that a repetition gets again.
		if err := once.sealRefusal(v, row); err != nil {
			return nil, err
		}
		err = v.write(ctx, opProvision, id, func(tx store.Tx) error {
			if _, err := v.find(tx, kindToken, row); err != nil {
				return err
			}
			return once.put(tx)
		})
		if err == nil {
			err = ErrNetworkTokenState
		}
	case errors.Is(err, ErrNetworkTokenState):
		v.wrote(ctx, opProvision, v.account, id, err)
	}
	if errors.Is(err, errRepeated) {
		return v.Provision(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	v.workDue(release)
	return v.provisioned(ctx, t)
}

// provisioned waits for a token that is pending, if it is to be waited for.
func (v *Vault) provisioned(ctx context.Context, t *Token) (*Token, error) {
	if v.opts.ProvisionWait == 0 || t.NetworkTokenStatus != NetworkTokenPending {
		return t, nil
	}
	until := time.NewTimer(v.opts.ProvisionWait)
	defer until.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return t, nil // what was asked for is done
		case <-until.C:
			return t, nil
		case <-look.C:
		}
		now, err := v.Get(ctx, t.ID)
		switch {
		case ctx.Err() != nil:
			return t, nil
		case err != nil || now.NetworkTokenStatus != NetworkTokenPending:
			return now, err
		}
	}
}

// request makes h pending if it can be, and due. It returns the record by which
// a network token that h had before is deleted at the network, or nil.
func (v *Vault) request(ctx context.Context, h *holding) (*store.Record, error) {
	t, n := h.token, h.net
	_, ok := t.NetworkTokenStatus.after(requested)
	if !ok || t.Status == StatusInvalid || !t.ExpiresAt.IsZero() {
		return nil, ErrNetworkTokenState
	}
	if t.NetworkTokenStatus == NetworkTokenPending || t.NetworkTokenStatus == NetworkTokenActive {
		return nil, nil
	}
	reason, err := v.unavailable(ctx, t, now())
	if err != nil {
		return nil, err
	}
	if reason != nil {
		t.NetworkTokenStatus, t.NetworkTokenStatusReason = NetworkTokenNotAvailable, reason
		h.due = time.Time{}
		return nil, nil
	}
	var release *store.Record
	if n.id != "" || n.unsure && n.network != v.opts.Network.Name() {
		if release, err = v.newRelease(n.network, n.ref(t.ID), now()); err != nil {
			return nil, err
		}
		n.id, n.unsure = "", false
	}
	if !n.unsure {
		n.attempt++ // what came of the former one is known
		n.called = false
	}
	n.scheme, n.network = t.Scheme, v.opts.Network.Name()
	n.tries, n.slot, n.problem = 0, false, Reason{}
	h.move(requested, nil)
	h.due = now()
	return release, nil
}

// unavailable says why the configuration allows no network token for t at a
// time, or nil. The order is that of decisions, chapter 6.
func (v *Vault) unavailable(ctx context.Context, t *Token, at time.Time) (*Reason, error) {
	code, schemeCode := "", ""
	switch {
	case !t.ExpiresAt.IsZero():
		code = "ephemeral_token"
	case t.Expiry.Expired(at):
		code = "card_expired"
	case t.stale:
		code = "stale_account_number"
	case v.opts.Network == nil:
		code = "no_network"
	default:
		a, err := v.approved(ctx)
		if err != nil {
			return nil, err
		}
		if !a.active {
			code = "network_tokens_not_activated"
			break
		}
		code, schemeCode = v.ineligible(t.Scheme, a.merchant)
	}
	if code == "" {
		return nil, nil
	}
	return newReason(SourceConfiguration, code, schemeCode, at), nil
}

// ineligible returns the code of the reason why the network takes no cards of a
// scheme for a merchant, and the network's own, or "".
func (v *Vault) ineligible(s Scheme, merchant uuid.UUID) (code, schemeCode string) {
	err := v.guard("network", func() error { return v.opts.Network.Eligible(s, merchant) })
	if err == nil {
		return "", ""
	}
	var e *NetworkError
	if !errors.As(err, &e) {
		v.log.Error("network says neither that a scheme is eligible nor why not", "scheme", s, "error", printable(err))
		e = &NetworkError{Source: SourceConfiguration, Code: "invalid_request"}
	}
	return e.reason(SourceConfiguration)
}

// Reasons: decisions, chapter 6. Each code with its source and text, and whether
// what it explains may pass.
var reasons = map[string]struct {
	source    Source
	retryable bool
	text      string
}{
	"card_not_eligible":        {SourceScheme, false, "The issuer does not allow tokens for this card."},
	"card_not_allowed":         {SourceScheme, false, "The issuer allows no further tokens for this card."},
	"card_verification_failed": {SourceScheme, false, "The issuer could not verify the card."},
	"declined":                 {SourceScheme, false, "The issuer declined the request."},
	"invalid_card_data":        {SourceScheme, false, "The issuer does not know the card by this data."},
	"provision_not_allowed":    {SourceScheme, false, "The issuer does not allow provisioning for this card."},

	"provision_data_expired": {SourceScheme, true, "The data of the provisioning has expired."},
	"issuer_unavailable":     {SourceScheme, true, "The issuer is unavailable."},
	"scheme_unavailable":     {SourceScheme, true, "The scheme is unavailable."},
	"timeout":                {SourceScheme, true, "The scheme did not answer in time."},

	"suspended_by_issuer":     {SourceScheme, false, "The issuer has suspended the network token."},
	"suspended_by_scheme":     {SourceScheme, false, "The scheme has suspended the network token."},
	"suspended_by_cardholder": {SourceScheme, false, "The network token was suspended on behalf of the cardholder."},
	"deleted_by_issuer":       {SourceScheme, false, "The issuer has deleted the network token."},
	"deleted_by_scheme":       {SourceScheme, false, "The scheme has deleted the network token."},
	"account_closed":          {SourceScheme, false, "The card is no longer valid."},

	"network_tokens_not_activated": {SourceConfiguration, false, "Network tokens are not activated for the account."},
	"no_network":                   {SourceConfiguration, false, "No network is configured."},
	"scheme_not_enabled":           {SourceConfiguration, false, "Network tokens are not enabled for the scheme."},
	"merchant_not_enrolled":        {SourceConfiguration, false, "The merchant is not enrolled for network tokens."},
	"ephemeral_token":              {SourceConfiguration, false, "A token that expires gets no network token."},
	"card_expired":                 {SourceConfiguration, false, "The card has expired."},
	"stale_account_number":         {SourceConfiguration, false, "The card has a new number that is not known."},
	"invalid_request":              {SourceConfiguration, false, "The network cannot use the request."},
}

func newReason(source Source, code, schemeCode string, at time.Time) *Reason {
	r := reasons[code]
	return &Reason{Source: source, Code: code, Message: r.text, Retryable: r.retryable, SchemeCode: schemeCode, OccurredAt: at}
}

// reason returns the code of a refusal and the network's own. A code that is
// not one of the source counts as scheme_unavailable or invalid_request.
func (e *NetworkError) reason(source Source) (code, schemeCode string) {
	code, schemeCode = e.Code, e.SchemeCode
	if r, ok := reasons[code]; !ok || r.source != source {
		if schemeCode == "" {
			schemeCode = code
		}
		code = "scheme_unavailable"
		if source == SourceConfiguration {
			code = "invalid_request"
		}
	}
	return code, schemeText(schemeCode)
}

// check returns errGarbage unless got can be the answer for a card whose last
// four digits are known.
func (got *NetworkToken) check(lastFour string) error {
	ok := got != nil && len(got.ID) >= 1 && len(got.ID) <= maxText && len(got.Art) <= maxText
	if ok {
		switch got.State {
		case NetworkTokenPending, NetworkTokenActive, NetworkTokenInactive, NetworkTokenDeleted:
		default:
			ok = false
		}
	}
	if ok && got.Card != nil {
		ok = got.Card.check() && (lastFour == "" || got.Card.LastFour == "" || got.Card.LastFour == lastFour)
	}
	if !ok {
		return errGarbage
	}
	return nil
}

func (c *CardState) check() bool {
	four := c.LastFour == "" || len(c.LastFour) == 4 && allDigits([]byte(c.LastFour))
	return four && (c.Expiry == Expiry{} || len(checkExpiry(c.Expiry)) == 0)
}

// provision asks the network for the network token of h, and stores what came
// of it.
func (v *Vault) provision(ctx context.Context, h *holding) error {
	row, id, key := h.card.ID, h.token.ID, h.net.provisionKey(h.token.ID)
	reason, err := v.unavailable(ctx, h.token, now())
	if err != nil {
		return err
	}
	asked := now()
	var failure error
	var got *NetworkToken
	if reason == nil {
		a, err := v.approved(ctx)
		if err != nil {
			return err
		}
		pan, err := v.openPAN(ctx, h.card)
		if err != nil {
			return err
		}
		defer pan.Wipe()
		code, _, err := v.securityCode(ctx, id)
		if errors.Is(err, ErrNotFound) {
			return nil // deleted meanwhile
		}
		if err != nil {
			return err
		}
		defer code.Wipe()
		contact, err := v.openContact(ctx, h.record)
		if err != nil {
			return err
		}
		defer contact.Wipe()
		got, failure = v.callProvision(ctx, h, &ProvisionRequest{
			IdempotencyKey: key,
			TokenID:        id,
			Merchant:       a.merchant,
			Scheme:         h.token.Scheme,
			PAN:            pan,
			Expiry:         h.token.Expiry,
			Name:           h.token.CardholderName,
			SecurityCode:   code,
			Contact:        contact,
			Identification: h.token.Identification,
		})
		failure = withhold(failure, pan, code.get())
	}
	settled := false
	var refusal *NetworkError
	passing := errors.As(failure, &refusal) && !refusal.final() &&
		(h.net.unsure || refusal.Source != SourceConfiguration)
	if passing {
		// What an overloaded network says, or a gateway in front of it, may tell
		// nothing of what came of the call. Whether there is a network token does.
		found, err := v.callLookup(ctx, NetworkTokenRef{IdempotencyKey: key}, h.token.LastFour)
		switch {
		case errors.Is(err, ErrUnknownNetworkToken):
			settled = true
		case err == nil:
			got, failure = found, nil
		}
	}
	var art *art
	if got != nil {
		art = v.art(ctx, got.Art)
	}
	var release *store.Record
	at := now()
	store := func(h *holding) (func(store.Tx) error, error) {
		n, status := h.net, h.token.NetworkTokenStatus
		switch {
		case status != NetworkTokenPending && (status != NetworkTokenFailed || got == nil),
			n.id != "", n.provisionKey(id) != key:
			// It has gone another way meanwhile.
			if got == nil || got.ID == n.id {
				return nil, nil
			}
			var put func(store.Tx) error
			var err error
			release, put, err = v.releaseLater(key, got.ID)
			return put, err
		case reason != nil:
			h.move(notAvailable, reason)
			n.called = n.unsure // not this time
			h.due = time.Time{}
			return nil, nil
		case failure != nil:
			n.unsure = (n.unsure || passing) && !settled
			v.failed(h, failure, at)
			return nil, nil
		}
		repeated := n.unsure
		also, err := v.attach(ctx, h, got, art, asked)
		if repeated {
			h.due = at.Add(polls[0]) // the answer may be that of the first call
		}
		return also, err
	}
	for {
		_, stored := v.change(ctx, opNetworkToken, row, store)
		switch {
		case errors.Is(stored, errArtGone):
			art = v.art(ctx, got.Art)
		case errors.Is(stored, errReleasing):
			got, failure = nil, errReleasing
		case errors.Is(stored, ErrNotFound) && got != nil:
			// The token was deleted meanwhile.
			release, put, err := v.releaseLater(key, got.ID)
			if err == nil {
				err = v.write(ctx, opRelease, id, put)
			}
			if err == nil {
				v.workDue(release)
			}
			return err
		case errors.Is(stored, ErrNotFound):
			return nil
		default:
			if stored == nil {
				v.workDue(release)
			}
			return stored
		}
	}
}

// callProvision asks the network for a network token of h.
func (v *Vault) callProvision(ctx context.Context, h *holding, r *ProvisionRequest) (got *NetworkToken, err error) {
	err = v.ask(ctx, func(ctx context.Context) (err error) {
		got, err = v.opts.Network.Provision(ctx, r)
		return err
	})
	if err == nil {
		err = got.check(h.token.LastFour)
	}
	if err != nil {
		return nil, err
	}
	return got, nil
}

// callLookup asks the network for the state of a network token, of a card whose
// last four digits are known unless they are "".
func (v *Vault) callLookup(ctx context.Context, ref NetworkTokenRef, lastFour string) (got *NetworkToken, err error) {
	err = v.ask(ctx, func(ctx context.Context) (err error) {
		got, err = v.opts.Network.Lookup(ctx, ref)
		return err
	})
	if err == nil {
		err = got.check(lastFour)
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

// openContact returns the contact that is to be passed to the network, or none.
func (v *Vault) openContact(ctx context.Context, job *store.Record) (c Contact, err error) {
	if len(job.Secret) == 0 {
		return Contact{}, nil
	}
	plain, err := v.openSecretCopy(ctx, job)
	if err != nil {
		return Contact{}, err
	}
	defer clear(plain)
	fields := tlv.Read(plain)
	for fields.Next() {
		if fields.Tag == jobContact {
			c = NewContact(fields.Value)
		}
	}
	return c, nil
}

// openSecretCopy opens the secret part of a record, which stays as it is.
func (v *Vault) openSecretCopy(ctx context.Context, r *store.Record) ([]byte, error) {
	c := *r
	c.Secret = bytes.Clone(r.Secret)
	return v.openSecret(ctx, &c)
}

// openPAN returns the number of a card. The record stays as it is.
func (v *Vault) openPAN(ctx context.Context, card *store.Record) (PAN, error) {
	plain, err := v.openSecretCopy(ctx, card)
	if err != nil {
		return PAN{}, err
	}
	defer clear(plain)
	fields := tlv.Read(plain)
	for fields.Next() {
		if fields.Tag == cardNumber {
			return NewPAN(fields.Value), nil
		}
	}
	return PAN{}, fmt.Errorf("%w: card cannot be read", ErrDamaged)
}

// attach makes what the network answered the network token of h, and returns
// what is to be stored with it.
func (v *Vault) attach(ctx context.Context, h *holding, got *NetworkToken, art *art, asked time.Time) (func(store.Tx) error, error) {
	n, at := h.net, now()
	n.id, n.unsure, n.called, n.tries, n.since = got.ID, false, true, 0, at
	n.problem, n.news, n.suspendedBy = Reason{}, news{}, 0
	also := v.observe(h, got, art, asked)
	v.schedule(h, at)

	// Another token of the same card may have been its last holder. A release that
	// cannot be read is never worked on, so it is in nobody's way.
	hash := v.networkHash(n.network, n.id)
	known, err := v.glimpses(ctx, kindRelease, hash, maxReleases)
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
			case was.version != r.Version:
				return store.ErrConflict // it came since, or has changed
			case !was.readable:
			case r.Version > 1:
				return errReleasing
			default:
				tx.Delete(kindRelease, r.ID)
			}
		}
		return also(tx)
	}, nil
}

// observe applies what the network says of the network token of h since it was
// asked, and returns what is to be stored with it.
func (v *Vault) observe(h *holding, got *NetworkToken, art *art, asked time.Time) func(store.Tx) error {
	t, n := h.token, h.net
	stateAt := networkTime(got.StateAt)
	if got.StateAt.IsZero() {
		stateAt = asked
		if latest := n.latest(); latest.After(asked) { // its clock is ahead of ours
			stateAt = latest
		}
	}
	if !stateAt.Before(n.latest()) || got.State == NetworkTokenDeleted {
		n.stateAt, n.ownerAt = stateAt, [ownerCount]time.Time{}
		switch {
		case got.Invalidated:
			h.invalidate(stateAt, got.Reason)
		case got.State == NetworkTokenDeleted:
			h.move(deleted, newReason(SourceScheme, "deleted_by_scheme", schemeText(got.Reason), stateAt))
		case got.State == NetworkTokenInactive:
			owners := got.SuspendedBy & (1<<ownerCount - 1)
			if owners == 0 {
				owners = OwnersOf(OwnerScheme)
			}
			h.move(issued, nil) // it was active before
			same := n.suspendedBy == owners && t.NetworkTokenStatus == NetworkTokenInactive
			if !same && h.move(suspended, suspensionReason(owners, got.Reason, stateAt)) {
				n.suspendedBy = owners
			}
		case got.State == NetworkTokenActive:
			n.suspendedBy = 0
			if !h.move(issued, nil) {
				h.move(resumed, nil)
			}
		}
	}
	if got.Card != nil {
		// Only what the network says anew: what the caller has changed stays.
		var change CardState
		if got.Card.LastFour != t.LastFour {
			change.LastFour = got.Card.LastFour
		}
		switch n.card.Expiry {
		case Expiry{}:
			n.card.Expiry = got.Card.Expiry
		case got.Card.Expiry:
		default:
			change.Expiry = got.Card.Expiry
		}
		if change != (CardState{}) {
			h.renew(&change, change.LastFour != "")
		}
		if asked.After(n.cardAt) {
			n.cardAt = asked
		}
	}
	t.SupportsDeviceBinding = got.SupportsDeviceBinding
	return v.show(h, got.Art, art)
}

// networkTime returns a time of the network as it is stored. What is far ahead
// counts as of now: it must not shut out what comes later.
func networkTime(t time.Time) time.Time {
	if at := now(); t.After(at.Add(time.Hour)) {
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

// suspensionReason names one of the owners: the issuer before the scheme.
func suspensionReason(owners Owners, schemeCode string, at time.Time) *Reason {
	code := "suspended_by_cardholder"
	switch {
	case owners&OwnersOf(OwnerIssuer) != 0:
		code = "suspended_by_issuer"
	case owners&OwnersOf(OwnerScheme) != 0:
		code = "suspended_by_scheme"
	}
	return newReason(SourceScheme, code, schemeText(schemeCode), at)
}

// schemeText returns a code of the network as it may be kept.
func schemeText(code string) string {
	if checkText("scheme_code", []byte(code)) != nil || mayHoldPAN(code) {
		return ""
	}
	return code
}

// invalidate makes the token invalid, for good.
func (h *holding) invalidate(at time.Time, schemeCode string) {
	if h.token.Status == StatusInvalid {
		return
	}
	h.token.Status, h.token.InvalidatedAt = StatusInvalid, at
	h.move(invalidated, newReason(SourceScheme, "account_closed", schemeText(schemeCode), at))
}

// renew applies what the network says of the card. The number of a card that
// was replaced is not told: the one that is stored is stale then.
func (h *holding) renew(c *CardState, replaced bool) bool {
	t, n := h.token, h.net
	if !h.move(cardChanged, t.NetworkTokenStatusReason) {
		return false
	}
	if c.LastFour != "" {
		n.card.LastFour = c.LastFour
	}
	if (c.Expiry != Expiry{}) {
		t.Expiry, n.card.Expiry = c.Expiry, c.Expiry
	}
	if replaced {
		t.stale = true
		if c.LastFour != "" {
			m, iin := t.MaskedAccountNumber, t.IIN
			t.setMasked(m[:len(m)-4] + c.LastFour)
			t.IIN = iin
		}
	}
	return true
}

// failed stores in h that a provisioning has failed, for good or for now.
func (v *Vault) failed(h *holding, err error, at time.Time) {
	n := h.net
	var e *NetworkError
	switch {
	case errors.Is(err, errReleasing):
		// By the next attempt it has been deleted, and there is another.
		n.unsure, e = false, &NetworkError{Source: SourceScheme, Code: "scheme_unavailable"}
	case !errors.As(err, &e):
		n.unsure = true
		n.problem = Reason{Code: "scheme_unavailable"}
		if errors.Is(err, context.DeadlineExceeded) {
			n.problem.Code = "timeout"
		}
		v.log.Warn("provisioning has an unknown outcome and will be repeated", "token", h.token.ID, "error", printable(err))
		v.retry(h, 0, at)
		return
	}
	if e.final() || !n.unsure {
		n.unsure, n.called = false, false
	}
	if e.Source == SourceConfiguration {
		code, schemeCode := e.reason(SourceConfiguration)
		v.log.Error("network refused by configuration", "scheme", h.token.Scheme, "code", code, "scheme_code", schemeCode)
		h.move(notAvailable, newReason(SourceConfiguration, code, schemeCode, at))
		h.due = time.Time{}
		return
	}
	code, schemeCode := e.reason(SourceScheme)
	if !reasons[code].retryable {
		h.move(refused, newReason(SourceScheme, code, schemeCode, at))
		h.due = time.Time{}
		return
	}
	if !n.unsure {
		n.attempt++
	}
	n.problem = Reason{Code: code, SchemeCode: schemeCode}
	v.retry(h, e.RetryAfter, at)
}

// retries are the pauses after each transient failure: decisions, chapter 7.
var retries = []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour}

// retry makes h due again after a failure that may pass, or gives up.
func (v *Vault) retry(h *holding, after time.Duration, at time.Time) {
	n := h.net
	n.tries++
	if n.tries <= uint64(len(retries)) {
		after = min(after, maxRetryAfter)
		h.due = at.Add(max(v.capped(after), v.pace(max(retries[n.tries-1], after))))
		return
	}
	h.move(refused, newReason(SourceScheme, n.problem.Code, n.problem.SchemeCode, at))
	n.tries, n.since = 0, at
	v.schedule(h, at)
}

// final reports whether the refusal of a provisioning is the last word on it. A
// network that is overloaded, or set up wrongly, may know more later.
func (e *NetworkError) final() bool {
	code, _ := e.reason(SourceScheme)
	return e.Source != SourceConfiguration && !reasons[code].retryable
}

// maxRetryAfter bounds how long a network can make the vault wait.
const maxRetryAfter = 24 * time.Hour

// schedule sets when h is to be looked up next.
func (c *core) schedule(h *holding, at time.Time) {
	n := h.net
	h.due = time.Time{}
	switch h.token.NetworkTokenStatus {
	case NetworkTokenPending:
		if pause, ok := c.poll(n.tries, at.Sub(n.since)); ok {
			n.tries++
			h.due = at.Add(pause)
			return
		}
		// A notice may still make it active.
		h.move(refused, newReason(SourceScheme, cmp.Or(n.problem.Code, "timeout"), n.problem.SchemeCode, at))
	case NetworkTokenActive, NetworkTokenInactive:
		n.tries = 0
		h.due = at.Add(jitter(reconcileAfter))
	case NetworkTokenFailed:
		// What became of a call whose outcome is unknown, or of a provisioning
		// that was thought to have failed and is going on.
		if (n.unsure || n.id != "") && at.Sub(n.since) < c.scale(pollsEnd) {
			h.due = at.Add(c.pace(time.Hour))
		}
	}
}

// reconcileAfter is how often the vault asks whether it has missed a notice.
const reconcileAfter = 24 * time.Hour

// reconciles reports whether all that is due is to see that nothing was missed.
func (n *networkToken) reconciles() bool { return n.id != "" && n.tries == 0 }

// polls are the first pauses of polling: decisions, chapter 19.
var polls = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second}

const pollsEnd = 48 * time.Hour

// poll returns the n-th pause, or that polling since then is enough.
func (c *core) poll(n uint64, since time.Duration) (time.Duration, bool) {
	switch {
	case n == 0:
		return polls[0], true // also in the sandbox
	case n < uint64(len(polls)):
		return c.pace(polls[n]), true
	case since < c.scale(5*time.Minute):
		return c.pace(time.Minute), true
	}
	return c.pace(time.Hour), since < c.scale(pollsEnd)
}

// lookup asks the network for the state of h, and stores it.
func (v *Vault) lookup(ctx context.Context, h *holding) error {
	row, ref := h.card.ID, h.net.ref(h.token.ID)
	asked, known := now(), h.net.news
	lastFour := ""
	if ref.ID == "" {
		lastFour = h.token.LastFour
	}
	got, err := v.callLookup(ctx, ref, lastFour)
	var art *art
	if err == nil && got.Art != "" && got.Art != h.net.art {
		art = v.art(ctx, got.Art)
	}
	at := now()
	store := func(h *holding) (func(store.Tx) error, error) {
		if h.net.ref(h.token.ID) != ref {
			return nil, nil // it has gone another way meanwhile
		}
		var e *NetworkError
		switch {
		case err == nil && ref.ID == "":
			return v.attach(ctx, h, got, art, asked)
		case err == nil && h.net.news != known:
			h.due = at // a notice that came meanwhile may be newer: look again
			return nil, nil
		case err == nil:
			h.net.problem = Reason{}
			also := v.observe(h, got, art, asked)
			v.schedule(h, at)
			return also, nil
		case errors.Is(err, ErrUnknownNetworkToken) && ref.ID == "":
			h.settle()
			return nil, nil
		case errors.As(err, &e) && e.final() && ref.ID == "":
			h.settle()
			return nil, nil
		case errors.As(err, &e) && h.token.NetworkTokenStatus == NetworkTokenPending:
			if e.final() || e.Source == SourceConfiguration {
				h.refuse(e, at)
				return nil, nil
			}
			code, schemeCode := e.reason(SourceScheme)
			h.net.problem = Reason{Code: code, SchemeCode: schemeCode}
		}
		v.log.Warn("network token could not be looked up", "token", h.token.ID, "error", printable(err))
		v.schedule(h, at)
		if h.token.NetworkTokenStatus == NetworkTokenActive || h.token.NetworkTokenStatus == NetworkTokenInactive {
			h.due = at.Add(jitter(time.Hour))
		}
		return nil, nil
	}
	for {
		_, stored := v.change(ctx, opNetworkToken, row, store)
		switch {
		case errors.Is(stored, errArtGone):
			art = v.art(ctx, got.Art)
		case errors.Is(stored, errReleasing):
			got, err = nil, errReleasing // looked up again when it has been deleted
		case errors.Is(stored, ErrNotFound):
			return nil
		default:
			return stored
		}
	}
}

// SuspendNetworkToken has the network suspend the network token of a token, on
// behalf of the cardholder, and returns the token.
//
// Errors: ErrNotEnabled if the network is no [Suspender]; ErrNetworkTokenState
// unless the network token is active or inactive; a [*NetworkError];
// ErrUnavailable if the network gave no answer; ErrNotFound.
func (v *Vault) SuspendNetworkToken(ctx context.Context, id uuid.UUID) (*Token, error) {
	return v.suspend(ctx, id, true, Suspender.Suspend)
}

// ResumeNetworkToken ends what SuspendNetworkToken began. The network token is
// active again if nobody else suspends it. Errors are the same.
func (v *Vault) ResumeNetworkToken(ctx context.Context, id uuid.UUID) (*Token, error) {
	return v.suspend(ctx, id, false, Suspender.Resume)
}

func (v *Vault) suspend(ctx context.Context, id uuid.UUID, suspends bool, call func(Suspender, context.Context, NetworkTokenRef) error) (*Token, error) {
	h, err := v.hold(ctx, v.unmask(kindToken, id))
	if err != nil {
		return nil, err
	}
	s, ok := v.opts.Network.(Suspender)
	if !ok || h.net.id != "" && h.net.network != v.opts.Network.Name() {
		return nil, ErrNotEnabled
	}
	if _, ok := h.token.NetworkTokenStatus.after(suspended); !ok || h.token.Status == StatusInvalid {
		return nil, ErrNetworkTokenState
	}
	err = v.ask(ctx, func(ctx context.Context) error { return call(s, ctx, h.net.ref(id)) })
	var refused *NetworkError
	switch {
	case errors.As(err, &refused):
		return nil, refused
	case err != nil:
		v.log.Warn("network token could not be suspended or resumed", "token", id, "error", printable(err))
		return nil, fmt.Errorf("%w: the network gave no answer", ErrUnavailable)
	}
	t, err := v.change(ctx, opNetworkToken, h.card.ID, func(h *holding) (func(store.Tx) error, error) {
		n := h.net
		switch by := OwnersOf(OwnerCardholder); {
		case suspends:
			if n.suspendedBy&by == 0 && h.move(suspended, suspensionReason(n.suspendedBy|by, "", now())) {
				n.suspendedBy |= by
			}
		case n.suspendedBy == by:
			n.suspendedBy = 0
			h.move(resumed, nil)
		case n.suspendedBy&by != 0:
			n.suspendedBy &^= by
			h.move(suspended, suspensionReason(n.suspendedBy, "", now()))
		}
		h.due = now() // the network knows better, such as who else suspends it
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// refuse ends a provisioning that the network refuses after it had accepted it.
func (h *holding) refuse(e *NetworkError, at time.Time) {
	if e.Source == SourceConfiguration {
		code, schemeCode := e.reason(SourceConfiguration)
		h.move(notAvailable, newReason(SourceConfiguration, code, schemeCode, at))
	} else {
		code, schemeCode := e.reason(SourceScheme)
		h.move(refused, newReason(SourceScheme, code, schemeCode, at))
	}
	h.settle()
}

// settle ends a provisioning whose outcome is known. What it has left at the
// network goes with the token.
func (h *holding) settle() {
	h.net.unsure, h.net.called = false, h.net.id != ""
	h.due = time.Time{}
}

// scale shortens delays in the sandbox: decisions, chapter 7.
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
func (c *core) pace(d time.Duration) time.Duration { return jitter(c.capped(d)) }

// jitter returns d, up to a fifth longer or shorter.
func jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}
