package vaultsuite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/updater"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

var replaceBehaviours = []behaviour{
	{"Replace", replaceCard},
	{"ReplaceStale", replaceStale},
	{"ReplaceShown", replaceShown},
	{"ReplaceProvisioning", replaceProvisioning},
	{"ReplaceTwice", replaceTwice},
	{"ReplaceRace", replaceRace},
	{"ReplaceCodeRace", replaceCodeRace},
	{"ReplaceKilled", replaceKilled},
	{"ReplaceMixed", replaceMixed},
	{"ReplaceSession", replaceSession},
	{"ReplaceIdentified", replaceIdentified},
	{"ReplaceAbsence", replaceAbsence},
	{"ReplaceResealed", replaceResealed},
}

// A clerk is a bureau that gives cryptograms.
type clerk struct {
	bureau
	asks func(r *network.CryptogramRequest) // runs while Cryptogram is under way
}

func (n *clerk) Cryptogram(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
	if n.asks != nil {
		n.asks(r)
	}
	return new(till).Cryptogram(ctx, r)
}

// replacing returns a sandbox on s with a clerk, whose events go to sink.
func replacing(t testing.TB, s store.Store, n network.Provider, sink cardvault.EventSink) *cardvault.Vault {
	t.Helper()
	return vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Purposes: []string{purpose}, Network: n, PPAN: desk{}, Events: sink})
}

// cardIn returns all that a use of a token's card receives.
func cardIn(t testing.TB, v *cardvault.Vault, id uuid.UUID) (text string) {
	t.Helper()
	noError(t, v.Use(t.Context(), id, purpose, func(_ context.Context, c *cardvault.UsedCard) error {
		text = spelled(c)
		return nil
	}))
	return text
}

// spelledOf returns what cardIn returns for the n-th card.
func spelledOf(n int) string { return cardNumber(canaryNumber, 16, n) + " 12 2090" }

// replacements returns the events of replacements of a token's card.
func replacements(sink *vaulttest.Recorder, id uuid.UUID) (events []*cardvault.Event) {
	for _, e := range sink.Events() {
		if e.Reason == receive.ReasonCardReplaced && e.TokenID == id {
			events = append(events, e)
		}
	}
	return events
}

// replaceCard: the token keeps its id and context, and all else is the new card's. The
// network token of before is deleted at the network.
func replaceCard(t *testing.T, s store.Store) {
	n, sink := new(clerk), new(vaulttest.Recorder)
	v, ctx := replacing(t, s, n, sink), t.Context()
	c := coded(1, "737")
	c.Name = holder(canary + "name")
	old := importCard(t, v, c, &cardvault.ImportOptions{BusinessKey: canary, ImportProvider: "p"})
	drain(t, v)
	former := n.left()

	other := cardOf(cardNumber("34", 15, 1))
	other.Expiry = card.Expiry{Month: 1, Year: 2091}
	got := must(v.Replace(ctx, old.ID, other, nil))(t)
	want := *old
	want.Scheme, want.IIN, want.AccountNumberLength, want.LastFour = card.AmericanExpress, "340000", 15, cardNumber("34", 15, 1)[11:]
	want.MaskedAccountNumber = "340000*****" + want.LastFour
	want.Expiry, want.Fingerprint, want.UpdatedAt = other.Expiry, got.Fingerprint, got.UpdatedAt
	same(t, "replaced", got, &want)
	same(t, "read", must(v.Get(ctx, old.ID))(t), got)
	if got.Fingerprint == old.Fingerprint || !got.UpdatedAt.After(old.UpdatedAt) {
		t.Error("the fingerprint is the former one, or updated_at")
	}
	lists(t, v, cardvault.TokenListOptions{BusinessKey: canary, Scheme: []card.Scheme{card.AmericanExpress}}, []*cardvault.Token{got})
	hasCode(t, "replaced", v, old.ID, "")
	if text := cardIn(t, v, old.ID); text != cardNumber("34", 15, 1)+" 1 2091 "+canary+"name" {
		t.Errorf("the card is %s", text)
	}

	drain(t, v)
	checkState(t, v, old.ID, network.Active, "")
	if left := n.left(); len(left) != 1 || slices.Equal(left, former) {
		t.Errorf("the network holds %q, before that %q", left, former)
	}
	events := replacements(sink, old.ID)
	if len(events) != 1 || events[0].PreviousLastFour != old.LastFour || events[0].Token.LastFour != want.LastFour {
		t.Errorf("events %+v", events)
	}
	for _, e := range sink.Events() {
		if (e.PreviousLastFour != "") != (e.Reason == receive.ReasonCardReplaced) {
			t.Errorf("%s: last four digits %q", e.Reason, e.PreviousLastFour)
		}
	}

	c = coded(2, "999")
	c.Name = holder(canary + "other")
	must(v.Replace(ctx, old.ID, c, nil))(t)
	hasCode(t, "replaced again", v, old.ID, "999")
	if text := cardIn(t, v, old.ID); text != spelledOf(2)+" "+canary+"other 999" {
		t.Errorf("the card is %s", text)
	}

	refuses(t, "a bad card", errorOf(v.Replace(ctx, old.ID, cardvault.Card{}, nil)), "PAN required", "Expiry.Month out_of_range", "Expiry.Year out_of_range")
	fails(t, "an unknown token", errorOf(v.Replace(ctx, uuid.New(), testCard(3), nil)), cardvault.ErrNotFound)
	noError(t, v.Delete(ctx, old.ID))
	fails(t, "a deleted token", errorOf(v.Replace(ctx, old.ID, testCard(3), nil)), cardvault.ErrNotFound)
	fails(t, "a session for it", errorOf(v.ReplaceSession(ctx, old.ID, nil)), cardvault.ErrNotFound)
	drain(t, v)
	n.remains(t, 0)
}

// replaceStale: a number that the scheme has replaced, or a card that it has invalidated, is
// shown, listed and counted as such until there is another. The same number is no other.
func replaceStale(t *testing.T, s store.Store) {
	n, sink := new(clerk), new(vaulttest.Recorder)
	v, ctx := replacing(t, s, n, sink), t.Context()
	token, intact := importCard(t, v, testCard(1), nil), importCard(t, v, testCard(2), nil)
	drain(t, v)
	yes, no := true, false
	filtered := func(what string, stale bool) {
		t.Helper()
		token, intact = must(v.Get(ctx, token.ID))(t), must(v.Get(ctx, intact.ID))(t)
		if token.AccountNumberStale != stale || intact.AccountNumberStale {
			t.Errorf("%s: stale %t and %t", what, token.AccountNumberStale, intact.AccountNumberStale)
		}
		for _, o := range []cardvault.TokenListOptions{{AccountNumberStale: &yes}, {AccountNumberStale: &no}, {},
			{AccountNumberStale: &yes, Scheme: []card.Scheme{card.VISA}}, {AccountNumberStale: &no, NetworkTokenStatus: []network.Status{token.NetworkTokenStatus}}} {
			lists(t, v, o, []*cardvault.Token{token, intact})
		}
	}
	filtered("intact", false)

	notice := suspended(1, time.Now(), canary+"token 1")
	for i := range n.left() { // jobs run side by side
		notice.ID, notice.Token.ID, notice.Kind = fmt.Sprint(canary, i), fmt.Sprint(canary, "token ", i+1), network.NoticeCardReplaced
		notice.Card = &network.CardState{LastFour: "9876", Expiry: card.Expiry{Month: 1, Year: 2095}}
		noError(t, v.Notify(ctx, notice))
		if must(v.Get(ctx, token.ID))(t).AccountNumberStale {
			break
		}
		must(v.Replace(ctx, intact.ID, testCard(4), nil))(t)
	}
	drain(t, v)
	filtered("replaced by the scheme", true)
	fails(t, "a use", v.Use(ctx, token.ID, purpose, nil), cardvault.ErrCardDataStale)
	fails(t, "the same number", errorOf(v.Replace(ctx, token.ID, testCard(1), nil)), cardvault.ErrCardDataStale)
	filtered("the same number", true)

	must(v.Replace(ctx, token.ID, testCard(3), nil))(t)
	drain(t, v)
	filtered("with the new number", false)
	if text := cardIn(t, v, token.ID); text != spelledOf(3) {
		t.Errorf("the card is %s", text)
	}
	events := replacements(sink, token.ID)
	if e := events[len(events)-1]; e.PreviousLastFour != cardNumber(canaryNumber, 16, 1)[12:] {
		t.Errorf("the number before ended with %s", e.PreviousLastFour)
	}

	for _, id := range n.left() {
		dead := suspended(0, time.Now(), id)
		dead.ID, dead.Kind = canary+id, network.NoticeInvalidated
		noError(t, v.Notify(ctx, dead))
	}
	checkState(t, v, token.ID, network.Deleted, "account_closed")
	fails(t, "the same card", errorOf(v.Replace(ctx, token.ID, testCard(3), nil)), cardvault.ErrTokenInvalidated)
	got := must(v.Replace(ctx, token.ID, testCard(5), nil))(t)
	if got.Status != cardvault.StatusActive || !got.InvalidatedAt.IsZero() || got.NetworkTokenStatus != network.Pending {
		t.Errorf("of an invalid card: %+v", flat(got))
	}
	drain(t, v)
	checkState(t, v, token.ID, network.Active, "")
}

// replaceShown: what shows the former card is gone, in this and other vaults. Records of
// payment data and other idempotent answers stay.
func replaceShown(t *testing.T, s store.Store) {
	n := new(clerk)
	v, ctx := replacing(t, s, n, nil), t.Context()
	other := replacing(t, s, n, nil)
	secret := newSecret(t, v)
	token := importCard(t, v, testCard(1), importUnderKey)
	drain(t, v)
	must(v.Provision(ctx, token.ID, underKey))(t)
	session := must(v.RefreshSession(ctx, token.ID, underKey))(t)
	request := examplePayment
	request.IdempotencyKey = idemKey
	payment := must(v.RequestPaymentData(ctx, token.ID, request))(t)
	pays(t, payment, secret)
	b := new(branch)
	answers(t, "forward", must(v.Forward(ctx, token.ID, b.call("key", "a"), nil))(t), nil, 1, false)

	replaced := must(v.Replace(ctx, token.ID, testCard(2), underKey))(t)
	for _, v := range []*cardvault.Vault{v, other} {
		again := must(v.Replace(ctx, token.ID, testCard(2), underKey))(t)
		if same(t, "repeated", again, replaced); !again.Replayed {
			t.Error("a repetition replaces the card again")
		}
		fails(t, "Import repeated", errorOf(v.Import(ctx, testCard(1), importUnderKey)), cardvault.ErrNotFound)
		fails(t, "Provision repeated", errorOf(v.Provision(ctx, token.ID, underKey)), cardvault.ErrNotFound)
		if again := must(v.RefreshSession(ctx, token.ID, underKey))(t); again.ID.UUID() != session.ID.UUID() {
			t.Error("RefreshSession repeated: another session")
		}
		sent, err := v.Forward(ctx, token.ID, b.call("key", "a"), nil)
		answers(t, "forward repeated", sent, err, 1, true)

		for what, get := range map[string]func() (*cardvault.PaymentData, error){
			"repeated": func() (*cardvault.PaymentData, error) { return v.RequestPaymentData(ctx, token.ID, request) },
			"read":     func() (*cardvault.PaymentData, error) { return v.PaymentData(ctx, token.ID, payment.ID) },
			"listed": func() (*cardvault.PaymentData, error) {
				p, err := v.ListPaymentData(ctx, token.ID, nil)
				return p.Items[0], err
			},
		} {
			if p := must(get())(t); p.ID != payment.ID || !p.Success || p.Encrypted != "" {
				t.Errorf("payment data %s: %+v", what, p)
			}
		}
	}
	fails(t, "another number under the key", errorOf(v.Replace(ctx, token.ID, testCard(3), underKey)), cardvault.ErrIdempotencyKeyReused)
	code := coded(2, "123")
	if again := must(v.Replace(ctx, token.ID, code, underKey))(t); !again.Replayed {
		t.Error("a security code is part of the request")
	}

	drain(t, v)
	pays(t, pay(t, v, token), secret)
	must(v.Replace(ctx, token.ID, testCard(4), nil))(t)
	fails(t, "Replace repeated after the next", errorOf(v.Replace(ctx, token.ID, testCard(2), underKey)), cardvault.ErrNotFound)
}

// replaceProvisioning: a network token that comes for the former card is deleted at the
// network, and so is a cryptogram that comes for it not kept.
func replaceProvisioning(t *testing.T, s store.Store) {
	n := new(clerk)
	v, ctx := replacing(t, s, n, nil), t.Context()
	secret := newSecret(t, v)
	token := importCard(t, v, testCard(1), nil)
	n.during = func(ref network.Ref) {
		if ref.IdempotencyKey == token.ID.String()+":1" {
			must(v.Replace(ctx, token.ID, testCard(2), nil))(t)
		}
	}
	drain(t, v)
	drain(t, v)
	checkState(t, v, token.ID, network.Active, "")
	n.remains(t, 1)

	n.asks = func(*network.CryptogramRequest) {
		n.asks = nil
		must(v.Replace(ctx, token.ID, testCard(3), nil))(t)
	}
	p := pay(t, v, token)
	if kept := must(v.PaymentData(ctx, token.ID, p.ID))(t); !kept.Success || kept.Encrypted != "" {
		t.Errorf("payment data of the card before: %+v", kept)
	}
	drain(t, v)
	n.remains(t, 1)
	pays(t, pay(t, v, token), secret)
	if text := cardIn(t, v, token.ID); text != spelledOf(3) {
		t.Errorf("the card is %s", text)
	}
}

// replaceTwice: of two replacements at the same time one wins, with one event.
func replaceTwice(t *testing.T, s store.Store) {
	n, sink := new(clerk), new(vaulttest.Recorder)
	m := &meddler{Store: s}
	v, ctx := replacing(t, m, n, sink), t.Context()
	token := importCard(t, v, testCard(1), nil)
	drain(t, v)

	m.meddle = func() { must(v.Replace(ctx, token.ID, testCard(2), nil))(t) }
	fails(t, "the slower one", errorOf(v.Replace(ctx, token.ID, testCard(3), nil)), cardvault.ErrCardReplaced)
	m.meddle = func() { rename(t, v, token, "b") }
	got := must(v.Replace(ctx, token.ID, testCard(4), nil))(t)
	if got.BusinessKey != canary+"b" {
		t.Error("a patch was lost")
	}
	m.meddle = func() { must(v.Replace(ctx, token.ID, testCard(5), underKey))(t) }
	if again := must(v.Replace(ctx, token.ID, testCard(5), underKey))(t); !again.Replayed {
		t.Error("the same call at the same time is made twice")
	}
	m.meddle = func() { noError(t, v.Delete(ctx, token.ID)) }
	fails(t, "Replace while the token is deleted", errorOf(v.Replace(ctx, token.ID, testCard(6), nil)), cardvault.ErrNotFound)
	drain(t, v)
	n.remains(t, 0)
}

// replaceRace replaces a card from two vaults beside everything else that is done with it. In
// the end the token has one of the cards and one network token.
func replaceRace(t *testing.T, s store.Store) {
	n, sink := new(clerk), new(vaulttest.Recorder)
	vaults := []*cardvault.Vault{replacing(t, s, n, sink), replacing(t, s, n, sink)}
	v, ctx := vaults[0], t.Context()
	newSecret(t, v)

	for round := range 6 {
		token := importCard(t, v, testCard(round*20), nil)
		cards := []string{spelledOf(round * 20)}
		for i := range 8 {
			cards = append(cards, spelledOf(round*20+i+1))
		}
		var won atomic.Int64
		b := new(branch)
		parallel(t, 14, func(worker int) error {
			v := vaults[worker%2]
			var err error
			switch {
			case worker < 8:
				if _, err = v.Replace(ctx, token.ID, testCard(round*20+worker+1), nil); err == nil {
					won.Add(1)
				}
			case worker == 8:
				_, err = v.Provision(ctx, token.ID, nil)
			case worker == 9:
				_, err = v.RequestPaymentData(ctx, token.ID, examplePayment)
			case worker == 10:
				_, err = v.Forward(ctx, token.ID, b.call("", "a"), nil)
			case worker == 11 && round%2 == 1:
				err = v.Delete(ctx, token.ID)
			case worker == 12:
				err = v.Drain(ctx)
			default:
				err = v.Use(ctx, token.ID, purpose, func(_ context.Context, c *cardvault.UsedCard) error {
					if text := spelled(c); !slices.Contains(cards, text) || c.Masked[12:] != text[12:16] {
						return fmt.Errorf("%s is used as %s", text, c.Masked)
					}
					return nil
				})
			}
			if errors.Is(err, cardvault.ErrCardReplaced) || round%2 == 1 && errors.Is(err, cardvault.ErrNotFound) {
				return nil
			}
			return err
		})

		for range 3 { // a release may wait for a claim of the other vault
			for _, v := range vaults {
				drain(t, v)
			}
		}
		if round%2 == 1 {
			n.remains(t, 0)
			continue
		}
		if events := replacements(sink, token.ID); int64(len(events)) != won.Load() || won.Load() == 0 {
			t.Errorf("%d cards were replaced, with %d events", won.Load(), len(events))
		}
		last := must(v.Get(ctx, token.ID))(t)
		if text := cardIn(t, v, token.ID); !slices.Contains(cards, text) || text[12:16] != last.LastFour {
			t.Errorf("the card is %s, shown as %s", text, last.MaskedAccountNumber)
		}
		n.remains(t, 1)
		noError(t, v.Delete(ctx, token.ID))
		drain(t, v)
		n.remains(t, 0)
	}
}

// replaceCodeRace: a use has number and security code of one card.
func replaceCodeRace(t *testing.T, s store.Store) {
	v, ctx := replacing(t, s, nil, nil), t.Context()
	token := importCard(t, v, coded(0, "100"), nil)

	parallel(t, 4, func(worker int) error {
		for i := range 15 {
			if worker == 0 {
				if _, err := v.Replace(ctx, token.ID, coded(i+1, fmt.Sprint(101+i)), nil); err != nil {
					return err
				}
				continue
			}

			err := v.Use(ctx, token.ID, purpose, func(_ context.Context, c *cardvault.UsedCard) error {
				if c.SecurityCode.IsZero() {
					return nil
				}
				text := spelled(c)
				for n := range 16 {
					if text == fmt.Sprint(spelledOf(n), " ", 100+n) {
						return nil
					}
				}
				return errors.New("a code of another card is used: " + text)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	hasCode(t, "in the end", v, token.ID, "115")
}

// A dying store does so many Updates, and then nothing, as if its process had been killed. It
// may do the last one without an answer.
type dying struct {
	store.Store
	left atomic.Int64
	last bool
}

var errKilled = fmt.Errorf("killed: %w", store.ErrClosed)

func (d *dying) Update(ctx context.Context, fn func(store.Tx) error) error {
	switch left := d.left.Add(-1); {
	case left > 0:
		return d.Store.Update(ctx, fn)
	case left == 0 && d.last:
		return errors.Join(errKilled, d.Store.Update(ctx, fn))
	}
	return errKilled
}

// replaceKilled kills the process at each write of a replacement and of the work that follows.
// The next process finds the old card or the new one, and finishes the work.
func replaceKilled(t *testing.T, s store.Store) {
	ctx, n := t.Context(), new(clerk)
	sound := replacing(t, s, n, nil)
	for _, last := range []bool{false, true} {
		for writes := int64(1); ; writes++ {
			if writes > 40 {
				t.Fatal("a replacement writes too often")
			}
			token := importCard(t, sound, testCard(1), nil)
			drain(t, sound)

			d := &dying{Store: s, last: last}
			d.left.Store(writes)
			v := replacing(t, d, n, nil)
			_, err := v.Replace(ctx, token.ID, testCard(2), underKey)
			acknowledged := err == nil
			_ = v.Drain(ctx) // may be killed
			finished := d.left.Load() > 0

			is := must(sound.Get(ctx, token.ID))(t)
			text := cardIn(t, sound, token.ID)
			if text != spelledOf(2) && (text != spelledOf(1) || acknowledged) || text[12:16] != is.LastFour || (is.Fingerprint == token.Fingerprint) != (text == spelledOf(1)) {
				t.Errorf("after %d writes the card is %s, shown as %s; acknowledged: %t", writes, text, is.MaskedAccountNumber, acknowledged)
			}
			again := must(sound.Replace(ctx, token.ID, testCard(2), underKey))(t)
			if again.Replayed != (text == spelledOf(2)) || cardIn(t, sound, token.ID) != spelledOf(2) {
				t.Errorf("after %d writes, repeated: replayed %t", writes, again.Replayed)
			}
			noError(t, sound.Delete(ctx, token.ID))
			if finished {
				break
			}
		}
	}
}

// replaceMixed puts a former secret part beside the present shown part, and the other way
// round: neither is a card.
func replaceMixed(t *testing.T, s store.Store) {
	w := &watched{Store: s}
	v, ctx := replacing(t, w, nil, nil), t.Context()
	rowOf := func() *store.Record {
		for _, r := range w.last() {
			if len(r.Secret) > 0 && len(r.Shown) > 0 {
				return r
			}
		}
		t.Fatal("no token was put")
		return nil
	}
	token := importCard(t, v, testCard(1), nil)
	rows := []*store.Record{rowOf()}
	for n := range 2 {
		must(v.Replace(ctx, token.ID, testCard(n+2), nil))(t)
		rows = append(rows, rowOf())
	}

	for shown, one := range rows {
		for secret, other := range rows {
			row := one.Clone()
			row.Secret = other.Secret
			noError(t, s.Update(ctx, func(tx store.Tx) error { tx.Delete(one.Kind, one.ID); return nil }))
			for version := uint64(1); version <= one.Version; version++ { // a store lets nothing begin later
				row.Version = version
				noError(t, s.Update(ctx, func(tx store.Tx) error { tx.Put(row); return nil }))
			}
			err := v.Use(ctx, token.ID, purpose, func(context.Context, *cardvault.UsedCard) error { return nil })
			if shown == secret {
				noError(t, err)
			} else {
				fails(t, fmt.Sprintf("card %d with number %d", shown+1, secret+1), err, cardvault.ErrDamaged)
			}
		}
	}
}

// replaceSession: the card that is entered in a session becomes the token's, once.
func replaceSession(t *testing.T, s store.Store) {
	n, sink := new(clerk), new(vaulttest.Recorder)
	v, ctx := replacing(t, s, n, sink), t.Context()
	browser := vaultOn(t, s, nil).In(uuid.Nil)
	token := importCard(t, v, coded(1, "737"), nil)
	made := must(v.ReplaceSession(ctx, token.ID, underKey))(t)
	if again := must(v.ReplaceSession(ctx, token.ID, underKey))(t); again.ID.UUID() != made.ID.UUID() || !again.Replayed {
		t.Error("a repetition makes another session")
	}

	open := must(browser.Session(ctx, made.ID))(t)
	if open.Kind != cardvault.SessionReplaces || open.MaskedAccountNumber != token.MaskedAccountNumber || open.Scheme != token.Scheme {
		t.Errorf("a session for another card: %+v", open)
	}
	refused := must(browser.CompleteSession(ctx, made.ID, encrypted(t, open, claimsOf(2, "7"))))(t)
	if refused.State != cardvault.SessionOpen || refused.ReasonCode != "invalid_security_code" || cardIn(t, v, token.ID) != spelledOf(1)+" 737" {
		t.Errorf("a refused card: %+v", refused)
	}
	fails(t, "a code in a session for a card", errorOf(v.RefreshSecurityCode(ctx, made.ID, codeOf("123"))), cardvault.ErrSessionKind)

	var won atomic.Int64
	payloads := make([][]byte, 8)
	for i := range payloads {
		payloads[i] = encrypted(t, open, claimsOf(i+2, "999"))
	}
	parallel(t, len(payloads), func(i int) error {
		done, err := v.CompleteSession(ctx, made.ID, payloads[i])
		switch {
		case err == nil && (done.State != cardvault.SessionSucceeded || done.TokenID != token.ID):
			return fmt.Errorf("completed: %+v", done)
		case err == nil:
			won.Add(1)
		case !errors.Is(err, cardvault.ErrSessionCompleted) && !errors.Is(err, cardvault.ErrCardReplaced):
			return err
		}
		return nil
	})
	drain(t, v)
	if events := replacements(sink, token.ID); won.Load() != 1 || len(events) != 1 || events[0].Session.UUID() != made.ID.UUID() {
		t.Errorf("%d cards, events %+v", won.Load(), events)
	}
	hasCode(t, "entered", v, token.ID, "999")
	if p := must(v.List(ctx, nil))(t); p.TotalItems != 1 {
		t.Errorf("%d tokens", p.TotalItems)
	}

	// Made before another replacement it still replaces; Go can complete it too.
	late, gone := must(v.ReplaceSession(ctx, token.ID, nil))(t), must(v.ReplaceSession(ctx, token.ID, nil))(t)
	must(v.Replace(ctx, token.ID, testCard(20), nil))(t)
	if got := must(v.Tokenize(ctx, late.ID, testCard(21)))(t); got.ID != token.ID || cardIn(t, v, token.ID) != spelledOf(21)+" "+canary+"name" {
		t.Errorf("replaced: %+v", flat(got))
	}
	fails(t, "a completed session", errorOf(v.Tokenize(ctx, late.ID, testCard(22))), cardvault.ErrSessionCompleted)
	noError(t, v.Delete(ctx, token.ID))
	fails(t, "a session of a deleted token", errorOf(browser.Session(ctx, gone.ID)), cardvault.ErrNotFound)
}

// replaceIdentified: the holder of the new card is identified, as one of a new token would be,
// unless that was bypassed for the token.
func replaceIdentified(t *testing.T, s store.Store) {
	ctx := t.Context()
	v := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, IDV: judge{idv.Passed}})
	skipped := must(v.CreateSession(ctx, &cardvault.SessionOptions{BypassIdentification: true}))(t)
	bypassed := must(v.Tokenize(ctx, skipped.ID, testCard(1)))(t)
	again := must(v.ReplaceSession(ctx, bypassed.ID, nil))(t)
	if got := must(v.Tokenize(ctx, again.ID, testCard(2)))(t); got.ID != bypassed.ID || got.Identification != idv.Skipped {
		t.Errorf("bypassed: %+v", flat(got))
	}

	token := importCard(t, v, testCard(3), nil)
	session := must(v.ReplaceSession(ctx, token.ID, nil))(t)
	fails(t, "at first", errorOf(v.Tokenize(ctx, session.ID, testCard(4))), cardvault.ErrIdentificationPending)
	passed(t, time.Now().Add(1100*time.Millisecond))
	done := must(v.Session(ctx, session.ID))(t)
	got := must(v.Get(ctx, token.ID))(t)
	if done.TokenID != token.ID || got.Identification != idv.Checked || got.Authentication == nil || got.Fingerprint == token.Fingerprint {
		t.Errorf("identified: %+v, %+v", done, flat(got))
	}
	plain := must(v.Replace(ctx, token.ID, testCard(5), nil))(t)
	if plain.Identification != idv.None || plain.Authentication != nil {
		t.Errorf("the identification for another card counts: %+v", flat(plain))
	}
}

// replaceResealed replaces cards while another vault begins term after term and seals all
// records anew. No number comes back, none is lost, and outcomes of submissions from before count.
func replaceResealed(t *testing.T, s store.Store) {
	const rotations = 4
	n, o, m, cut, ctx := new(clerk), newOffice(), &meddler{Store: s}, &interrupting{Store: s, kind: kindToken}, t.Context()
	opts := cardvault.Options{Mode: cardvault.Sandbox, Purposes: []string{purpose}, Network: n, Updater: o}
	v, other := vaultOn(t, m, &opts), vaultOn(t, cut, &opts)
	var ids []uuid.UUID
	for i := range 4 {
		ids = append(ids, importCard(t, v, testCard(i), nil).ID)
	}
	drain(t, v)
	reseal := func() {
		must(other.RotateKeys(ctx, nil))(t)
		drain(t, other)
	}

	m.meddle = reseal
	must(v.Replace(ctx, ids[0], testCard(10), underKey))(t)
	if again := must(v.Replace(ctx, ids[0], testCard(10), underKey))(t); !again.Replayed || cardIn(t, v, ids[0]) != spelledOf(10) {
		t.Errorf("replaced while it is sealed anew: %s", cardIn(t, v, ids[0]))
	}
	session := must(v.ReplaceSession(ctx, ids[1], nil))(t)
	m.meddle = reseal
	must(v.Tokenize(ctx, session.ID, testCard(11)))(t)
	drain(t, other) // nothing is left to be written but what is sealed anew
	cut.then = func() { must(v.Replace(ctx, ids[3], testCard(13), nil))(t) }
	reseal()
	if cut.then != nil || cardIn(t, v, ids[3]) != spelledOf(13) {
		t.Errorf("sealed anew while it is replaced: %s", cardIn(t, v, ids[3]))
	}
	stop := runs(t, v)
	o.tells(t, "updated", o.outcome(t, 2, updater.Updated, 12, testCard(12).Expiry))
	o.tells(t, "updated, too late", o.outcome(t, 0, updater.Updated, 14, testCard(14).Expiry))
	stop()

	last := []int{10, 11, 12, 13}
	parallel(t, len(ids)+1, func(worker int) error {
		if worker == len(ids) {
			for range rotations {
				if err := errors.Join(errorOf(other.RotateKeys(ctx, nil)), other.Drain(ctx)); err != nil {
					return err
				}
			}
			return nil
		}
		v := []*cardvault.Vault{v, other}[worker%2]
		for step := range 8 {
			next := 100*(worker+1) + step
			if _, err := v.Replace(ctx, ids[worker], testCard(next), nil); err != nil {
				return err
			}
			last[worker] = next
		}
		return nil
	})

	for range 3 { // a release may wait for a claim of the other vault
		reseal()
		drain(t, v)
	}
	for k, r := range rowsOf(t, s) { // releases that are about to end stay as they are
		if term, _ := seal.TermOf(r.Secret); len(r.Secret) > 0 && term != 2+rotations+5 {
			t.Errorf("a record of kind %d is under term %d", k.Kind, term)
		}
	}
	for i, id := range ids {
		if text := cardIn(t, v, id); text != spelledOf(last[i]) {
			t.Errorf("card %d is %s, want %s", i, text, spelledOf(last[i]))
		}
		checkState(t, v, id, network.Active, "")
	}
	n.remains(t, len(ids))
}
