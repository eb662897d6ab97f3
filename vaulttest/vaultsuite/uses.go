package vaultsuite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/use"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

var useBehaviours = []behaviour{
	{"Use", useCard},
	{"UseRefused", useRefused},
	{"UsePanics", usePanics},
	{"UseRace", useRace},
	{"UseReplaced", useReplaced},
	{"UseCredential", useCredential},
	{"ForwardOnce", forwardOnce},
	{"ForwardUnsent", forwardUnsent},
	{"ForwardDeleted", forwardDeleted},
	{"ForwardRace", forwardRace},
	{"ForwardBeside", forwardBeside},
	{"ForwardNeeds", forwardNeeds},
	{"ForwardCredentials", forwardCredentials},
}

const purpose = "fraud-check"

// using returns a sandbox on s that uses cards, and has a till.
func using(t testing.TB, s store.Store, n *till) *cardvault.Vault {
	t.Helper()
	return vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Purposes: []string{purpose}, Network: n, PPAN: desk{}})
}

// spelled returns all that a used card holds.
func spelled(c *cardvault.UsedCard) (text string) {
	c.PAN.Expose(func(b []byte) { text = fmt.Sprintf("%s %d %d", b, c.Expiry.Month, c.Expiry.Year) })
	c.Name.Expose(func(b []byte) { text = strings.TrimSpace(fmt.Sprintf("%s %s", text, b)) })
	c.SecurityCode.Expose(func(b []byte) { text = strings.TrimSpace(fmt.Sprintf("%s %s", text, b)) })
	return text
}

// useCard: the function has the card, and only until it returns.
func useCard(t *testing.T, s store.Store) {
	v, ctx := using(t, s, new(till)), t.Context()
	c := coded(1, "737")
	c.Name = holder(canary + "name")
	token := importCard(t, v, c, nil)
	number := cardNumber(canaryNumber, 16, 1)

	var kept *cardvault.UsedCard
	var copied cardvault.UsedCard
	failure := errors.New("failure")
	err := v.Use(ctx, token.ID, purpose, func(ctx context.Context, c *cardvault.UsedCard) error {
		if want := number + " 12 2090 " + canary + "name 737"; spelled(c) != want || c.Masked != token.MaskedAccountNumber {
			t.Error("the function does not have the card that was imported")
		}
		vaulttest.AssertNoLeak(t, []string{number, "name 737"}, fmt.Sprintf("%v %+v %#v %v", c, c, c, *c))
		kept, copied = c, *c
		hasCode(t, "during the use", v, token.ID, "737")
		noError(t, c.Consume(ctx))
		hasCode(t, "once it is consumed", v, token.ID, "")
		if !strings.HasSuffix(spelled(c), " 737") {
			t.Error("the function lost the code before it returned")
		}
		return failure
	})
	fails(t, "Use", err, failure)
	if kept.Consume != nil || kept.Masked != "" || !kept.PAN.IsZero() {
		t.Error("the card can be used when the function has returned")
	}
	vaulttest.AssertNoLeak(t, []string{number, canary + "name"}, spelled(kept), spelled(&copied))

	noError(t, v.Use(ctx, token.ID, purpose, func(_ context.Context, c *cardvault.UsedCard) error {
		if !c.SecurityCode.IsZero() {
			t.Error("a code that was consumed is used")
		}
		return nil
	}))
}

// useRefused: a purpose that is not listed, and a token that is not there, are refused
// without a call of the function.
func useRefused(t *testing.T, s store.Store) {
	v, ctx := using(t, s, new(till)), t.Context()
	token := importCard(t, v, testCard(1), nil)
	gone := importCard(t, v, testCard(2), nil)
	noError(t, v.Delete(ctx, gone.ID))
	lapsed := importCard(t, v, testCard(3), &cardvault.ImportOptions{TokenTTL: time.Second})
	other := v.In(must(v.CreateAccount(ctx, canary, nil))(t).ID)
	foreign := importCard(t, other, testCard(4), nil)
	time.Sleep(time.Until(lapsed.ExpiresAt))

	never := func(context.Context, *cardvault.UsedCard) error { t.Error("the function is called"); return nil }
	neither := func(context.Context, *receive.Credential) error { t.Error("the function is called"); return nil }
	for what, id := range map[string]uuid.UUID{"unknown": uuid.New(), "deleted": gone.ID, "lapsed": lapsed.ID, "of another account": foreign.ID} {
		ofCard, ofCredential := v.Use(ctx, id, purpose, never), v.UseCredential(ctx, id, purpose, examplePayment, neither)
		fails(t, what, ofCard, cardvault.ErrNotFound)
		fails(t, what, ofCredential, cardvault.ErrNotFound)
		if want := "cardvault: use card: not found"; ofCard.Error() != want {
			t.Errorf("%s: %v, want %s", what, ofCard, want)
		}
	}

	refuses(t, "another purpose", v.Use(ctx, token.ID, "export", never), "Purpose invalid_enum")
	refuses(t, "no purpose", v.UseCredential(ctx, token.ID, "", examplePayment, neither), "Purpose invalid_enum")
	bad := examplePayment
	bad.IdempotencyKey, bad.Currency = "key", "EU"
	refuses(t, "a bad payment", v.UseCredential(ctx, token.ID, purpose, bad, neither), "Currency invalid_format", "IdempotencyKey invalid_format")

	none := vaultOn(t, s, nil)
	for _, err := range []error{none.Use(ctx, token.ID, purpose, never), none.UseCredential(ctx, token.ID, purpose, examplePayment, neither)} {
		fails(t, "without purposes", err, cardvault.ErrNotEnabled)
		if !strings.Contains(err.Error(), "Options.Purposes") {
			t.Errorf("the error does not name the option: %v", err)
		}
	}
}

// usePanics: a panic goes through, and leaves nothing of the card.
func usePanics(t *testing.T, s store.Store) {
	v, ctx := using(t, s, new(till)), t.Context()
	token := usable(t, v, 1)
	var kept cardvault.UsedCard
	var credential receive.Credential

	for _, call := range []func() error{
		func() error {
			return v.Use(ctx, token.ID, purpose, func(_ context.Context, c *cardvault.UsedCard) error { kept = *c; panic("of the function") })
		},
		func() error {
			return v.UseCredential(ctx, token.ID, purpose, examplePayment, func(_ context.Context, c *receive.Credential) error { credential = *c; panic("of the function") })
		},
	} {
		func() {
			defer func() {
				if p := recover(); p != "of the function" {
					t.Errorf("panics with %v", p)
				}
			}()
			t.Error("Use returns", call())
		}()
	}
	var left string
	credential.Number.Expose(func(b []byte) { left += string(b) })
	credential.Cryptogram.Expose(func(b []byte) { left += string(b) })
	vaulttest.AssertNoLeak(t, []string{cardNumber(canaryNumber, 16, 1), tillNumber, canary}, spelled(&kept), left)
	must(v.Get(ctx, token.ID))(t)
}

// useRace: beside deletions and consumptions a use has the whole card or none, and a code
// that was consumed before it is not used.
func useRace(t *testing.T, s store.Store) {
	ctx := t.Context()
	v := using(t, s, new(till))
	for i := range 10 {
		token := importCard(t, v, coded(i, "737"), nil)
		number := cardNumber(canaryNumber, 16, i)
		var consumed, deleted atomic.Bool

		parallel(t, 6, func(worker int) error {
			switch worker {
			case 0:
				_, err := v.Consume(ctx, token.ID, nil)
				consumed.Store(err == nil)
				if errors.Is(err, cardvault.ErrNotFound) {
					err = nil
				}
				return err
			case 1:
				err := v.Delete(ctx, token.ID)
				deleted.Store(true)
				return err
			}
			wasConsumed, wasDeleted := consumed.Load(), deleted.Load()
			err := v.Use(ctx, token.ID, purpose, func(_ context.Context, c *cardvault.UsedCard) error {
				text := spelled(c)
				switch {
				case wasDeleted:
					return errors.New("a deleted card is used")
				case wasConsumed && !c.SecurityCode.IsZero():
					return errors.New("a consumed code is used")
				case text != number+" 12 2090 737" && text != number+" 12 2090":
					return errors.New("part of a card is used")
				}
				return nil
			})
			if errors.Is(err, cardvault.ErrNotFound) {
				return nil
			}
			return err
		})
	}
}

// useReplaced: a use under way has the card of before, and consumes no code but that card's.
func useReplaced(t *testing.T, s store.Store) {
	v, ctx := using(t, s, new(till)), t.Context()
	token := importCard(t, v, coded(1, "737"), nil)
	noError(t, v.Use(ctx, token.ID, purpose, func(ctx context.Context, c *cardvault.UsedCard) error {
		must(v.Replace(ctx, token.ID, coded(2, "738"), nil))(t)
		if spelled(c) != cardNumber(canaryNumber, 16, 1)+" 12 2090 737" {
			t.Error("the function has another card")
		}
		return c.Consume(ctx)
	}))
	hasCode(t, "of the card that replaced it", v, token.ID, "738")
}

// useCredential: the function has the network token with a new cryptogram, and the request
// is recorded.
func useCredential(t *testing.T, s store.Store) {
	n := new(till)
	v, ctx := using(t, s, n), t.Context()
	token := usable(t, v, 1)
	var ids []string
	for range 2 {
		var kept *receive.Credential
		noError(t, v.UseCredential(ctx, token.ID, purpose, examplePayment, func(_ context.Context, c *receive.Credential) error {
			c.Number.Expose(func(b []byte) {
				if string(b) != tillNumber || c.Expiry != tillExpiry || c.ECI != tillECI {
					t.Error("the credential differs from the answer of the network")
				}
			})
			c.Cryptogram.Expose(func(b []byte) { ids = append(ids, strings.TrimPrefix(string(b), canary)) })
			kept = c
			return nil
		}))
		if !kept.Number.IsZero() || !kept.Cryptogram.IsZero() || kept.ECI != "" {
			t.Error("the credential can be used when the function has returned")
		}
	}

	p := must(v.ListPaymentData(ctx, token.ID, nil))(t)
	if len(p.Items) != 2 || ids[0] == ids[1] || p.Items[0].ID.String() != ids[1] || p.Items[1].ID.String() != ids[0] {
		t.Fatalf("the records are %+v, the cryptograms of %v", p.Items, ids)
	}
	if d := p.Items[0]; !d.Success || d.Encrypted != "" || d.Amount != examplePayment.Amount || d.Reference != examplePayment.Reference {
		t.Errorf("the record is %+v", d)
	}

	n.refuse = &network.Error{Code: network.CodeDeclined}
	err := v.UseCredential(ctx, token.ID, purpose, examplePayment, func(context.Context, *receive.Credential) error { t.Error("the function is called"); return nil })
	fails(t, "a declined cryptogram", err, cardvault.ErrCryptogramDeclined)
	var declined *cardvault.DeclinedError
	if !errors.As(err, &declined) {
		t.Fatal(err)
	}
	got := must(v.PaymentData(ctx, token.ID, declined.PaymentData.ID))(t)
	if got.Success || len(got.Failures) != 1 || !equalPayments(got, declined.PaymentData) {
		t.Errorf("the record is %+v, the error has %+v", got, declined.PaymentData)
	}
}

// A branch is a system outside. It answers with the number of its calls.
type branch struct {
	mu    sync.Mutex
	calls int
	fail  func(ctx context.Context, n int) (*use.Sent, error) // in place of an answer, if not nil
}

// call returns a call of the branch under an idempotency key.
func (b *branch) call(key, request string) *use.Call {
	return &use.Call{
		Purpose: "forward:branch",
		Admit:   func(uuid.UUID) error { return nil },
		Key:     key,
		Request: func() []byte { return []byte(request) },
		Timeout: time.Minute,
		Send: func(ctx context.Context, _ *card.Used, _ *receive.Credential) (*use.Sent, error) {
			b.mu.Lock()
			b.calls++
			n, fail := b.calls, b.fail
			b.mu.Unlock()
			if fail != nil {
				return fail(ctx, n)
			}
			return outcomeOf(n), nil
		},
	}
}

func outcomeOf(n int) *use.Sent {
	return &use.Sent{Answer: func() []byte { return fmt.Append(nil, canary, n) }}
}

func (b *branch) called(t testing.TB, want int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls != want {
		t.Errorf("%d calls, want %d", b.calls, want)
	}
}

// answers checks the answer to a call.
func answers(t testing.TB, what string, sent *use.Sent, err error, n int, replayed bool) {
	t.Helper()
	noError(t, err)
	if want := fmt.Sprint(canary, n); string(sent.Answer()) != want || sent.Replayed != replayed {
		t.Errorf("%s: answer %q, replayed %t; want %q, %t", what, sent.Answer(), sent.Replayed, want, replayed)
	}
}

// forwardOnce: a call under a key is made once, whatever comes of it.
func forwardOnce(t *testing.T, s store.Store) {
	v, ctx := using(t, s, new(till)), t.Context()
	token, second := importCard(t, v, testCard(1), nil), importCard(t, v, testCard(2), nil)
	b := new(branch)
	for i := range 2 {
		sent, err := v.Forward(ctx, token.ID, b.call("key", "a"), nil)
		answers(t, "repeated", sent, err, 1, i > 0)
	}
	sent, err := vaultOn(t, s, nil).Forward(ctx, token.ID, b.call("key", "a"), nil)
	answers(t, "repeated elsewhere", sent, err, 1, true)
	fails(t, "another request", errorOf(v.Forward(ctx, token.ID, b.call("key", "b"), nil)), cardvault.ErrIdempotencyKeyReused)
	fails(t, "another token", errorOf(v.Forward(ctx, second.ID, b.call("key", "a"), nil)), cardvault.ErrIdempotencyKeyReused)
	b.called(t, 1)

	sent, err = v.Forward(ctx, token.ID, b.call("", "a"), nil)
	answers(t, "without a key", sent, err, 2, false)

	failure := errors.New("connection lost")
	b.fail = func(_ context.Context, n int) (*use.Sent, error) { return outcomeOf(n), failure }
	fails(t, "an unknown outcome", errorOf(v.Forward(ctx, token.ID, b.call("unknown", "a"), nil)), failure)
	sent, err = v.Forward(ctx, token.ID, b.call("unknown", "a"), nil)
	answers(t, "an unknown outcome, repeated", sent, err, 3, true)
	b.called(t, 3)
}

// forwardUnsent: a call that has not reached the other system is made anew, and a caller
// that leaves does not end a call under a key.
func forwardUnsent(t *testing.T, s store.Store) {
	v, ctx := using(t, s, new(till)), t.Context()
	token := importCard(t, v, testCard(1), nil)
	failure := errors.New("no connection")
	b := &branch{fail: func(context.Context, int) (*use.Sent, error) { return nil, failure }}
	for range 2 {
		fails(t, "no connection", errorOf(v.Forward(ctx, token.ID, b.call("key", "a"), nil)), failure)
	}
	b.fail = func(context.Context, int) (*use.Sent, error) { return nil, store.ErrConflict } // never made again by itself
	fails(t, "a conflict", errorOf(v.Forward(ctx, token.ID, b.call("key", "a"), nil)), cardvault.ErrUnavailable)
	b.called(t, 3)

	leaving, leave := context.WithCancel(ctx)
	b.fail = func(ctx context.Context, n int) (*use.Sent, error) {
		leave()
		return outcomeOf(n), ctx.Err()
	}
	sent, err := v.Forward(leaving, token.ID, b.call("key", "a"), nil)
	answers(t, "the caller leaves", sent, err, 4, false)
	sent, err = v.Forward(ctx, token.ID, b.call("key", "a"), nil)
	answers(t, "the caller returns", sent, err, 4, true)

	_, err = v.Forward(leaving, token.ID, b.call("", "a"), nil)
	fails(t, "without a key", err, context.Canceled)
}

// forwardDeleted: what an answer holds ends with the token, and the call is not made again.
func forwardDeleted(t *testing.T, s store.Store) {
	v, ctx := using(t, s, new(till)), t.Context()
	b := new(branch)
	token := importCard(t, v, testCard(1), nil)
	must(v.Forward(ctx, token.ID, b.call("before", "a"), nil))(t)
	b.fail = func(ctx context.Context, n int) (*use.Sent, error) {
		noError(t, v.Delete(ctx, token.ID))
		return outcomeOf(n), nil
	}
	sent, err := v.Forward(ctx, token.ID, b.call("during", "a"), nil)
	answers(t, "deleted during the call", sent, err, 2, false)
	for _, key := range []string{"before", "during", "after", ""} {
		fails(t, "key "+key, errorOf(v.Forward(ctx, token.ID, b.call(key, "a"), nil)), cardvault.ErrNotFound)
	}
	b.called(t, 2)
}

// forwardRace: of calls under one key side by side, in two processes, one is made. The
// others have its answer, or meet it in progress.
func forwardRace(t *testing.T, s store.Store) {
	ctx := t.Context()
	vaults := []*cardvault.Vault{using(t, s, new(till)), using(t, s, new(till))}
	token := importCard(t, vaults[0], testCard(1), nil)
	for i := range 5 {
		b := new(branch)
		key := fmt.Sprint("key ", i)
		parallel(t, 12, func(worker int) error {
			sent, err := vaults[worker%2].Forward(ctx, token.ID, b.call(key, "a"), nil)
			switch {
			case errors.Is(err, cardvault.ErrIdempotencyInProgress):
				return nil
			case err == nil && string(sent.Answer()) != canary+"1":
				return errors.New("another answer")
			}
			return err
		})
		b.called(t, 1)
	}
}

// forwardBeside: beside a deletion, of another process, or a replacement, and a consumption, a
// call has a whole card, or is not made. None has a card after its end, and none is repeated
// for a deleted token.
func forwardBeside(t *testing.T, s store.Store) {
	ctx := t.Context()
	v, elsewhere := using(t, s, new(till)), using(t, s, new(till))
	whole := func(i int, code string) string { return cardNumber(canaryNumber, 16, i) + " 12 2090 " + code }
	for i := range 20 {
		token := importCard(t, v, coded(i, "737"), nil)
		b := new(branch)
		var consumed, ended atomic.Bool
		call := func(worker int) *use.Call {
			c, none, late := b.call(fmt.Sprint("key ", i, worker), "a"), consumed.Load(), ended.Load()
			send := c.Send
			c.Number, c.Code = true, true
			c.Send = func(ctx context.Context, u *card.Used, p *receive.Credential) (*use.Sent, error) {
				before, after := spelled(u) == whole(i, "737"), spelled(u) == whole(i+100, "738")
				switch {
				case before && (none || late):
					t.Error("a card is used after its end")
				case !before && !after:
					t.Error("part of a card is used")
				}
				return send(ctx, u, p)
			}
			return c
		}

		parallel(t, 6, func(worker int) error {
			err := error(nil)
			switch {
			case worker == 0:
				_, err = v.Consume(ctx, token.ID, nil)
				consumed.Store(true)
			case worker == 1 && i%2 == 0:
				err = elsewhere.Delete(ctx, token.ID)
				ended.Store(true)
			case worker == 1:
				_, err = v.Replace(ctx, token.ID, coded(i+100, "738"), nil)
				ended.Store(true)
			default:
				_, err = v.Forward(ctx, token.ID, call(worker), nil)
			}
			if errors.Is(err, cardvault.ErrNotFound) || errors.Is(err, use.ErrNoCode) {
				return nil
			}
			return err
		})

		made := b.calls
		if i%2 > 0 {
			noError(t, elsewhere.Delete(ctx, token.ID))
		}
		for worker := 2; worker < 6; worker++ {
			fails(t, "the deleted token", errorOf(v.Forward(ctx, token.ID, call(worker), nil)), cardvault.ErrNotFound)
		}
		b.called(t, made)
	}
}

// forwardNeeds: a call has only what it needs, and is not made without it.
func forwardNeeds(t *testing.T, s store.Store) {
	n := new(till)
	v, ctx := using(t, s, n), t.Context()
	token := usable(t, v, 1)
	plain := importCard(t, v, coded(2, "737"), nil)
	b := new(branch)
	refused := errors.New("not of this account")

	c := b.call("key", "a")
	c.Admit = func(account uuid.UUID) error {
		if account != must(v.Account(ctx))(t).ID {
			t.Error("another account is asked for")
		}
		return refused
	}
	fails(t, "not admitted", errorOf(v.Forward(ctx, uuid.New(), c, nil)), refused)

	c = b.call("key", "a")
	c.Code = true
	fails(t, "no code", errorOf(v.Forward(ctx, token.ID, c, nil)), use.ErrNoCode)
	n.refuse = &network.Error{Code: network.CodeDeclined}
	fails(t, "no cryptogram", errorOf(v.Forward(ctx, token.ID, b.call("key", "a"), &examplePayment)), cardvault.ErrCryptogramDeclined)
	n.refuse = nil
	bad := examplePayment
	bad.IdempotencyKey = "key"
	refuses(t, "a payment with a key", errorOf(v.Forward(ctx, token.ID, b.call("key", "a"), &bad)), "IdempotencyKey invalid_format")
	b.called(t, 0)

	send := func(number, code bool, r *cardvault.PaymentRequest, id uuid.UUID, check func(*card.Used, *receive.Credential)) {
		t.Helper()
		c := b.call("", "a")
		c.Number, c.Code = number, code
		c.Send = func(_ context.Context, u *card.Used, p *receive.Credential) (*use.Sent, error) {
			check(u, p)
			return &use.Sent{Consume: code}, nil
		}
		must(v.Forward(ctx, id, c, r))(t)
	}
	send(false, false, nil, plain.ID, func(u *card.Used, p *receive.Credential) {
		if !u.PAN.IsZero() || !u.SecurityCode.IsZero() || p != nil || u.Masked != plain.MaskedAccountNumber {
			t.Error("a call without needs has more than the masked number")
		}
	})
	send(true, true, nil, plain.ID, func(u *card.Used, _ *receive.Credential) {
		if spelled(u) != cardNumber(canaryNumber, 16, 2)+" 12 2090 737" {
			t.Error("the call does not have the card")
		}
	})
	hasCode(t, "after a call that has consumed it", v, plain.ID, "")
	send(false, false, &examplePayment, token.ID, func(u *card.Used, p *receive.Credential) {
		if !u.PAN.IsZero() || p == nil || p.Expiry != tillExpiry {
			t.Error("the call does not have the credential alone")
		}
	})
}

// forwardCredentials: a stored credential is one account's, and another process has what was
// set last.
func forwardCredentials(t *testing.T, s store.Store) {
	v, elsewhere, ctx := using(t, s, new(till)), using(t, s, new(till)), t.Context()
	other := v.In(must(v.CreateAccount(ctx, canary, nil))(t).ID)
	is := func(what string, v *cardvault.Vault, want string) {
		t.Helper()
		got, err := v.ForwardCredentials().Get(ctx, "psp", "key")
		if want == "" {
			fails(t, what, err, cardvault.ErrNotFound)
			return
		}
		if noError(t, err); string(got) != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}

	is("none", v, "")
	for _, text := range []string{canary, canary + "2", strings.Repeat(canary, 1000)} {
		noError(t, v.ForwardCredentials().Set(ctx, "psp", "key", []byte(text)))
		is("set elsewhere", elsewhere, text)
		is("of another account", other, "")
	}
	fails(t, "another system", errorOf(v.ForwardCredentials().Get(ctx, "ps", "pkey")), cardvault.ErrNotFound)
	fails(t, "no account", v.In(uuid.New()).ForwardCredentials().Set(ctx, "psp", "key", []byte(canary)), cardvault.ErrNotFound)

	fails(t, "delete that of another account", other.ForwardCredentials().Delete(ctx, "psp", "key"), cardvault.ErrNotFound)
	parallel(t, 4, func(worker int) error {
		return []*cardvault.Vault{v, elsewhere}[worker%2].ForwardCredentials().Set(ctx, "psp", "key", []byte(canary))
	})
	is("set four times at once", v, canary)
	must(v.RotateKeys(ctx, nil))(t)
	is("when keys are rotated", elsewhere, canary)
	noError(t, elsewhere.ForwardCredentials().Delete(ctx, "psp", "key"))
	is("deleted", v, "")
	noError(t, v.ForwardCredentials().Set(ctx, "psp", "key", []byte(canary)))
	is("set anew", v, canary)
}
