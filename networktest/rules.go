package networktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

var rules = []rule{{
	"Info",
	`Info is always the same. Its Name is 1 to 40 of a-z, 0-9, "_" and "-", beginning with a letter
or digit. It is stored with every network token, and a vault never asks a network about tokens
with another name. Info declares the optional interfaces: the vault uses only these, and does
not open if one is missing. Members of a Provider of several have names and schemes of their own.`,
	info,
}, {
	"Eligible",
	`Eligible answers by configuration alone, at once: every import calls it. It returns nil or a
*network.Error of SourceConfiguration, even for an unknown scheme or merchant.`,
	eligible,
}, {
	"Provision",
	`Provision returns a network token for the requested card, with an ID and a possible state. It
keeps no part of the request: the vault wipes the card afterwards.`,
	func(s *suite) { s.active() },
}, {
	"ProvisionAgain",
	`Under an idempotency key that was used before, Provision returns the same network token. A
vault that lost the answer asks again, and would otherwise pay for a token without a holder.`,
	provisionAgain,
}, {
	"ProvisionAtOnce",
	`The same holds for concurrent calls: after a deadline the vault repeats a call that the
network may still be processing.`,
	provisionAtOnce,
}, {
	"ProvisionAnother",
	`Another idempotency key is another attempt, even for the same card and if the keys differ only
at the end. The answer is a network token, either a new one or one shared by both.`,
	provisionAnother,
}, {
	"ProvisionAfterTimeout",
	`A call that ended with its context is repeated under the same key, and then returns the same
as every later call.`,
	provisionAfterTimeout,
}, {
	"Refused",
	`A refusal is a *network.Error with a Source and a Code of package network, and is repeated
under the same key. Any other error means an unknown outcome, and the vault retries for hours.`,
	refused,
}, {
	"Lookup",
	`Lookup finds a network token by its ID, and by the idempotency key alone: so a vault finds a
network token whose answer was lost.`,
	lookup,
}, {
	"LookupUnknown",
	`Lookup of a network token that does not exist is ErrUnknownNetworkToken, by ID and by key. The
vault then stops asking; after any other error it asks again.`,
	lookupUnknown,
}, {
	"Cryptogram",
	`A cryptogram names its network token, and has the number and expiry of that token, never of
the card.`,
	cryptogram,
}, {
	"CryptogramKeys",
	`Each idempotency key is one cryptogram, for one payment. A reused key returns the same
cryptogram or is refused. Another key, even if it differs only at the end, returns another
one.`,
	cryptogramKeys,
}, {
	"CryptogramUnknown",
	`A network token that does not exist has no cryptogram. The error is a *network.Error, since
asking again is useless.`,
	cryptogramUnknown,
}, {
	"Delete",
	`Delete is final: Lookup reports deleted or unknown, and cryptograms are refused. The key that
made the network token never makes another; a new key may.`,
	deleted,
}, {
	"DeleteAgain",
	`Delete of a deleted or unknown network token returns nil. The vault repeats Delete until it
has succeeded, and has no other way to know.`,
	deleteAgain,
}, {
	"ContextEnded",
	`A call whose context has ended returns its error at once. It returns neither a *network.Error
nor ErrUnknownNetworkToken, which a vault takes for an answer of the network and acts on.`,
	contextEnded,
}, {
	"ContextEnds",
	`The same holds when the context ends during the call: the vault bounds each call with
Options.NetworkTimeout, and has few workers to wait for a hanging network.`,
	contextEnds,
}, {
	"NoCardData",
	`No error and no answer contains the card number: errors are logged, and ids are stored
where they can be read. All rules check this. This rule makes calls that the network must refuse.`,
	noCardData,
}, {
	"Concurrency",
	`All methods may be called concurrently. No call returns another call's result.`,
	concurrency,
}, {
	"Suspender",
	`After Suspend a network token is inactive, suspended by OwnerCardholder, and has no
cryptograms until Resume. Repeating either is not an error. Lookup reports the change at once,
since the vault calls it next.`,
	suspender,
}, {
	"ArtFetcher",
	`Card art is a PNG or JPEG of at most MaxCardArt bytes, as its media type says. An id always
has the same art: browsers keep it for a year.`,
	artFetcher,
}, {
	"Credentialer",
	`Credential returns the number and expiry that the next cryptogram of an active network token
has, and a *network.Error for a network token that cannot pay.`,
	credentialer,
}, {
	"Feeder",
	`Feed passes valid notices of the network that the request names, and returns nil soon after
its context ends: Vault.Run waits for it.`,
	feeder,
}}

func info(s *suite) {
	said := s.network.Info()
	s.names(said)
	s.power(said.Suspender, has[network.Suspender](s), "Suspender")
	s.power(said.Feeder, has[network.Feeder](s), "Feeder")
	s.power(said.ArtFetcher, has[network.ArtFetcher](s), "ArtFetcher")
	s.power(said.Credentialer, has[network.Credentialer](s), "Credentialer")

	s.active()
	if !reflect.DeepEqual(s.network.Info(), said) || !reflect.DeepEqual(s.Open(s).Info(), said) {
		s.Error("Info changes")
	}
}

// names checks the names of the network, or of its members, and what these can do.
func (s *suite) names(said network.Info) {
	s.Helper()
	names, schemes := map[string]bool{}, map[card.Scheme]bool{}
	for _, i := range said.Networks() {
		switch {
		case !regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}$`).MatchString(i.Name):
			s.Error("Name is not 1 to 40 of a-z, 0-9, _ and -, beginning with a letter or digit")
		case names[i.Name]:
			s.Error("two Members have one Name: the network tokens of one would be asked for at the other")
		case i.SandboxOnly && !said.SandboxOnly, i.Suspender && !said.Suspender, i.Feeder && !said.Feeder,
			i.ArtFetcher && !said.ArtFetcher, i.Credentialer && !said.Credentialer:
			s.Error("Info does not say what it says of a Member")
		}
		names[i.Name] = true
	}

	for _, m := range said.Members {
		for _, scheme := range m.Schemes {
			if schemes[scheme] {
				s.Errorf("two Members have the scheme %v", scheme)
			}
			schemes[scheme] = true
		}
	}
}

// has reports whether the network, or a network that it wraps, is a T.
func has[T any](s *suite) bool {
	_, ok := network.As[T](s.network)
	return ok
}

// power checks that Info says of an optional interface whether there is one.
func (s *suite) power(said, found bool, name string) {
	s.Helper()
	switch {
	case said && !found:
		s.Errorf("Info says that it is a %s, but neither it nor a network that it wraps is one", name)
	case found && !said:
		s.Errorf("it is a %s, and Info does not say so: a vault does not use it", name)
	}
}

func eligible(s *suite) {
	if err := s.network.Eligible(&network.EligibilityRequest{Network: s.asked.Name, Scheme: s.Scheme, Merchant: s.Merchant}); err != nil {
		s.Errorf("Eligible of Harness.Scheme and Harness.Merchant = %v", err)
	}
	s.promptly("Eligible, 520 times", func() {
		for scheme := range 260 {
			for _, merchant := range []uuid.UUID{s.Merchant, uuid.New()} {
				err := s.network.Eligible(&network.EligibilityRequest{Scheme: card.Scheme(scheme), Merchant: merchant})
				var e *network.Error
				if err != nil && (!errors.As(err, &e) || e.Source != network.SourceConfiguration || checkRefusal(err) != nil) {
					s.Errorf("Eligible of %v: no network.Error of SourceConfiguration with one of its codes: %v", card.Scheme(scheme), err)
					return
				}
			}
		}
	})
}

func provisionAgain(s *suite) {
	ref, token := s.provisioned()
	for range 2 {
		got, err := s.provision(s.Context(), s.request(s.Card, token, 1))
		if err != nil {
			s.Fatalf("Provision under the same key: %v", err)
		}
		if got.ID != ref.ID {
			s.Fatal("Provision under the same key made another network token")
		}
	}
}

// provisioned returns a network token that may be pending, and its token.
func (s *suite) provisioned() (network.Ref, uuid.UUID) {
	s.Helper()
	r := s.request(s.Card, uuid.New(), 1)
	got, err := s.provision(s.Context(), r)
	if err != nil {
		s.Fatalf("Provision of Harness.Card: %v", err)
	}
	return s.ref(got.ID, r.IdempotencyKey), r.TokenID
}

func provisionAtOnce(s *suite) {
	token := uuid.New()
	ids := make([]string, 16)
	s.parallel(len(ids), func(i int) error {
		got, err := s.provision(s.Context(), s.request(s.Card, token, 1))
		if err == nil {
			ids[i] = got.ID
		}
		return err
	})
	if n := len(slices.Compact(slices.Sorted(slices.Values(ids)))); n != 1 {
		s.Errorf("%d calls of Provision at once under one key made %d network tokens", len(ids), n)
	}
}

// parallel calls f n times at once and reports its errors.
func (s *suite) parallel(n int, f func(i int) error) {
	s.Helper()
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = f(i) })
	}
	group.Wait()
	for i, err := range errs {
		if err != nil {
			s.Fatalf("call %d of %d at once: %v", i+1, n, err) // the others most likely failed in the same way
		}
	}
}

func provisionAnother(s *suite) {
	first, token := s.provisioned()
	r := s.request(s.Card, token, 2)
	got, err := s.provision(s.Context(), r)
	if err != nil {
		s.Fatalf("Provision under another key: %v", err)
	}
	for _, ref := range []network.Ref{first, s.ref(got.ID, r.IdempotencyKey)} {
		found, err := s.lookup(s.Context(), s.ref("", ref.IdempotencyKey))
		if err != nil {
			s.Fatalf("Lookup by one of two keys: %v", err)
		}
		if found.ID != ref.ID {
			s.Error("Lookup by one of two keys returns the network token of the other")
		}
	}
}

func provisionAfterTimeout(s *suite) {
	token := uuid.New()
	for _, d := range []time.Duration{0, time.Millisecond} {
		ctx, cancel := context.WithTimeout(s.Context(), d)
		s.promptly("Provision", func() { _, _ = s.provision(ctx, s.request(s.Card, token, 1)) })
		cancel()
	}

	ids := make([]string, 2)
	for i := range ids {
		got, err := s.provision(s.Context(), s.request(s.Card, token, 1))
		if err != nil {
			s.Fatalf("Provision, repeated after a timeout: %v", err)
		}
		ids[i] = got.ID
	}

	got, err := s.lookup(s.Context(), s.ref("", key(token, 1)))
	if err != nil {
		s.Fatalf("Lookup by the key of a call that was repeated: %v", err)
	}
	if ids[0] != ids[1] || got.ID != ids[0] {
		s.Error("a call that was repeated after a timeout has made several network tokens")
	}
}

func refused(s *suite) {
	if s.Refused.PAN.IsZero() {
		s.Log("not checked: there is no Harness.Refused")
		return
	}

	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()

	token := uuid.New()
	var first *network.Error
	for range 2 {
		r := s.request(s.Refused, token, 1)
		got, err := s.provision(ctx, r)
		if err == nil {
			_, err = s.settled(ctx, got, s.ref(got.ID, r.IdempotencyKey))
		}
		if err := checkRefusal(err); err != nil {
			s.Fatalf("Provision of Harness.Refused: %v", err)
		}
		var e *network.Error
		errors.As(err, &e)

		if first == nil {
			first = e
		} else if e.Source != first.Source || e.Code != first.Code {
			s.Error("Provision under the same key is refused for another reason")
		}
	}
}

func lookup(s *suite) {
	ref := s.active()
	for what, ref := range map[string]network.Ref{
		"ID and key": ref,
		"key alone":  s.ref("", ref.IdempotencyKey),
	} {
		got, err := s.lookup(s.Context(), ref)
		if err != nil {
			s.Errorf("Lookup by %s: %v", what, err)
		} else if got.State != network.Active {
			s.Errorf("Lookup by %s: State is %v, want active", what, got.State)
		}
	}
	got, err := s.lookup(s.Context(), s.ref("", ref.IdempotencyKey))
	if err == nil && got.ID != ref.ID {
		s.Error("Lookup by the key returns another network token")
	}
}

// unknown returns refs of network tokens that do not exist.
func (s *suite) unknown() map[string]network.Ref {
	ref, _ := s.provisioned()
	strange := key(uuid.New(), 1)
	return map[string]network.Ref{
		"ID":  s.ref(other(ref.ID), strange),
		"key": s.ref("", strange),
	}
}

// other returns an id that differs from one in a character.
func other(id string) string {
	i, digit := len(id)/2, "2"
	if id[i] == '2' {
		digit = "3"
	}
	return id[:i] + digit + id[i+1:]
}

func lookupUnknown(s *suite) {
	for what, ref := range s.unknown() {
		if got, err := s.lookup(s.Context(), ref); !errors.Is(err, network.ErrUnknown) {
			s.Errorf("Lookup of an unknown %s = %v, %v, want ErrUnknownNetworkToken", what, state(got), err)
		}
	}
}

func cryptogram(s *suite) {
	ref := s.active()
	if _, err := s.cryptogram(s.Context(), ref, key(uuid.New(), 1)); err != nil {
		s.Error(err)
	}
}

func cryptogramKeys(s *suite) {
	ref, payment := s.active(), uuid.New()
	var values []string
	for _, k := range []string{key(payment, 1), key(payment, 2), key(uuid.New(), 1)} {
		value, err := s.cryptogram(s.Context(), ref, k)
		if err != nil {
			s.Fatal(err)
		}
		if slices.Contains(values, value) {
			s.Error("two keys return the same cryptogram")
		}
		values = append(values, value)
	}

	again, err := s.cryptogram(s.Context(), ref, key(payment, 1))
	var e *network.Error
	switch {
	case err == nil && again != values[0]:
		s.Error("a reused key returns another cryptogram")
	case err != nil && !errors.As(err, &e):
		s.Errorf("a reused key: %v, want the same cryptogram or a *network.Error", err)
	}
}

func cryptogramUnknown(s *suite) {
	s.none("an unknown ID", s.unknown()["ID"])
}

// none checks that a network token has no cryptograms.
func (s *suite) none(what string, ref network.Ref) {
	s.Helper()
	_, err := s.cryptogram(s.Context(), ref, key(uuid.New(), 1))
	var e *network.Error
	if !errors.As(err, &e) || codes[e.Source] == nil || e.Code == "" {
		s.Errorf("Cryptogram of %s = %v, want a *network.Error with Source and Code", what, err)
	}
}

func deleted(s *suite) {
	ref := s.active()
	token := uuid.MustParse(ref.IdempotencyKey[:36])
	if err := s.delete(s.Context(), ref); err != nil {
		s.Fatalf("Delete = %v", err)
	}
	s.gone(ref)
	s.none("a deleted network token", ref)

	got, err := s.provision(s.Context(), s.request(s.Card, token, 1))
	var e *network.Error
	switch {
	case err == nil && (got.ID != ref.ID || got.State != network.Deleted):
		s.Error("Provision under the key of a deleted network token makes another, or brings it back")
	case err != nil && !errors.As(err, &e):
		s.Errorf("Provision under the key of a deleted network token = %v", err)
	}
	s.gone(ref)

	got, err = s.provision(s.Context(), s.request(s.Card, token, 2))
	if err != nil || got.ID == ref.ID || got.State == network.Deleted {
		s.Errorf("Provision under another key, after the network token of the card was deleted: %v, %v, want a new one", state(got), err)
	}
}

// gone checks that a network token is deleted.
func (s *suite) gone(ref network.Ref) {
	s.Helper()
	got, err := s.lookup(s.Context(), ref)
	if errors.Is(err, network.ErrUnknown) {
		return
	}
	if err != nil || got.State != network.Deleted {
		s.Errorf("Lookup of a deleted network token = %v, %v", state(got), err)
	}
}

func deleteAgain(s *suite) {
	for what, ref := range s.unknown() {
		if err := s.delete(s.Context(), ref); err != nil {
			s.Errorf("Delete of an unknown %s = %v", what, err)
		}
	}
	ref := s.active()
	for range 3 {
		if err := s.delete(s.Context(), ref); err != nil {
			s.Fatalf("Delete, repeated = %v", err)
		}
	}
	s.gone(ref)
}

// A call is a method of the network with its request.
type call struct {
	method string
	do     func(ctx context.Context) error
}

// calls returns all that have a context, in an order in which each can succeed.
func (s *suite) calls() []call {
	ref := s.active()
	all := []call{
		{"Provision", func(ctx context.Context) error {
			_, err := s.provision(ctx, s.request(s.Card, uuid.New(), 1))
			return err
		}},
		{"Lookup", func(ctx context.Context) error { _, err := s.lookup(ctx, ref); return err }},
		{"Lookup by key", func(ctx context.Context) error {
			_, err := s.lookup(ctx, s.ref("", ref.IdempotencyKey))
			return err
		}},
		{"Cryptogram", func(ctx context.Context) error {
			_, err := s.cryptogram(ctx, ref, key(uuid.New(), 1))
			return err
		}},
	}

	if art, ok := network.As[network.ArtFetcher](s.network); ok && s.asked.ArtFetcher {
		if got, err := s.lookup(s.Context(), ref); err == nil && got.Art != "" {
			all = append(all, call{"CardArt", func(ctx context.Context) error {
				_, err := art.CardArt(ctx, &network.ArtRequest{Network: s.asked.Name, ID: got.Art})
				return err
			}})
		}
	}

	if n, ok := network.As[network.Credentialer](s.network); ok && s.asked.Credentialer {
		all = append(all, call{"Credential", func(ctx context.Context) error { _, err := s.credential(ctx, n, ref); return err }})
	}

	// These change whether the network token can pay, so they come last.
	if n, ok := network.As[network.Suspender](s.network); ok && s.asked.Suspender {
		all = append(all,
			call{"Suspend", func(ctx context.Context) error { return n.Suspend(ctx, ref) }},
			call{"Resume", func(ctx context.Context) error { return n.Resume(ctx, ref) }})
	}

	return append(all, call{"Delete", func(ctx context.Context) error { return s.delete(ctx, ref) }})
}

func contextEnded(s *suite) {
	cancelled, cancel := context.WithCancel(s.Context())
	cancel()
	expired, cancel := context.WithTimeout(s.Context(), 0)
	defer cancel()
	for _, c := range s.calls() {
		for _, ctx := range []context.Context{cancelled, expired} {
			s.promptly(c.method, func() {
				if err := c.do(ctx); err == nil {
					s.Errorf("%s with a context that has ended succeeds", c.method)
				} else {
					s.unanswered(ctx, c.method, err)
				}
			})
		}
	}
}

func contextEnds(s *suite) {
	for _, c := range s.calls() {
		s.promptly(c.method, func() {
			ctx, cancel := context.WithTimeout(s.Context(), time.Millisecond)
			defer cancel()
			if err := c.do(ctx); err != nil {
				s.unanswered(ctx, c.method, err)
			}
		})
	}
}

// unanswered checks that an error says that a context has ended, and no more.
func (s *suite) unanswered(ctx context.Context, method string, err error) {
	var e *network.Error
	switch {
	case errors.As(err, &e), errors.Is(err, network.ErrUnknown):
		s.Errorf("%s without an answer of the network = %v: that error is for an answer", method, err)
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		s.Errorf("%s = %v, want an error that is %v", method, err, ctx.Err())
	}
}

func noCardData(s *suite) {
	pan := digits(s.Card.PAN)
	wrong := slices.Clone(pan)
	wrong[len(wrong)-1] = '0' + (wrong[len(wrong)-1]-'0'+1)%10

	with := func(edit func(*cardvault.Card)) cardvault.Card {
		given := s.Card
		edit(&given)
		return given
	}

	s.numbers = append(s.numbers, string(wrong), string(pan)[:len(pan)-1])
	for what, given := range map[string]cardvault.Card{
		"number that fails the Luhn check": with(func(c *cardvault.Card) { c.PAN = card.NewPAN(wrong) }),
		"number that is too short":         with(func(c *cardvault.Card) { c.PAN = card.NewPAN(pan[:len(pan)-1]) }),
		"card that has expired":            with(func(c *cardvault.Card) { c.Expiry.Year = 2001 }),
		"card without expiry":              with(func(c *cardvault.Card) { c.Expiry = card.Expiry{} }),
	} {

		r := s.request(given, uuid.New(), 1)
		if _, err := s.provision(s.Context(), r); err != nil {
			s.Logf("a %s: %v", what, err)
		}
		if _, err := s.lookup(s.Context(), s.ref("", r.IdempotencyKey)); err != nil {
			s.Logf("Lookup of it: %v", err)
		}
	}

	r := s.request(s.Card, uuid.New(), 1)
	r.Scheme = 200
	if _, err := s.provision(s.Context(), r); err != nil {
		s.Logf("an unknown scheme: %v", err)
	}
}

func concurrency(s *suite) {
	const callers = 32
	shared, payment := s.active(), uuid.New()
	values := make([]string, callers)
	s.parallel(callers, func(i int) (err error) {
		if err := s.network.Eligible(&network.EligibilityRequest{Network: s.asked.Name, Scheme: s.Scheme, Merchant: s.Merchant}); err != nil {
			return err
		}

		r := s.request(s.Card, uuid.New(), 1)
		got, err := s.provision(s.Context(), r)
		if err != nil {
			return err
		}

		found, err := s.lookup(s.Context(), s.ref("", r.IdempotencyKey))
		if err != nil {
			return err
		}
		if found.ID != got.ID {
			return errors.New("look-up by a key returns the network token of another")
		}

		if _, err := s.lookup(s.Context(), shared); err != nil {
			return err
		}
		if err := s.delete(s.Context(), s.ref(other(shared.ID), key(uuid.New(), 1))); err != nil {
			return err
		}

		values[i], err = s.cryptogram(s.Context(), shared, key(payment, i))
		return err
	})

	if n := len(slices.Compact(slices.Sorted(slices.Values(values)))); n != callers {
		s.Errorf("%d payments at once have %d cryptograms", callers, n)
	}
}

func suspender(s *suite) {
	n, ok := network.As[network.Suspender](s.network)
	if !ok || !s.asked.Suspender {
		s.Log("not checked: the network is not a Suspender")
		return
	}

	ref := s.active()
	for _, step := range []struct {
		name   string
		do     func(context.Context, network.Ref) error
		state  network.Status
		owners network.Owners
	}{
		{"Suspend", n.Suspend, network.Inactive, network.OwnersOf(network.OwnerCardholder)},
		{"Suspend, repeated", n.Suspend, network.Inactive, network.OwnersOf(network.OwnerCardholder)},
		{"Resume", n.Resume, network.Active, 0},
		{"Resume, repeated", n.Resume, network.Active, 0},
	} {

		ctx, cancel := context.WithTimeout(s.Context(), patience)
		err := step.do(ctx, ref)
		cancel()
		vaulttest.AssertNoLeak(s, s.numbers, err)
		if err != nil {
			s.Fatalf("%s = %v", step.name, err)
		}

		got, err := s.lookup(s.Context(), ref)
		if err != nil {
			s.Fatalf("Lookup after %s: %v", step.name, err)
		}
		if got.State != step.state || got.SuspendedBy != step.owners {
			s.Errorf("after %s: State %v, SuspendedBy %03b, want %v, %03b", step.name, got.State, got.SuspendedBy, step.state, step.owners)
		}

		if step.state == network.Inactive {
			s.none("a suspended network token", ref)
		} else if _, err := s.cryptogram(s.Context(), ref, key(uuid.New(), 1)); err != nil {
			s.Errorf("Cryptogram after %s: %v", step.name, err)
		}
	}
}

func credentialer(s *suite) {
	n, ok := network.As[network.Credentialer](s.network)
	if !ok || !s.asked.Credentialer {
		s.Log("not checked: the network is not a Credentialer")
		return
	}

	ref := s.active()
	got, err := s.credential(s.Context(), n, ref)
	if err != nil {
		s.Fatalf("Credential: %v", err)
	}
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	paid, err := s.network.Cryptogram(ctx, s.payment(ref, key(uuid.New(), 1)))
	if err != nil {
		s.Fatalf("Cryptogram: %v", err)
	}
	if !bytes.Equal(digits(got.Number), digits(paid.Number)) || got.Expiry != paid.Expiry {
		s.Error("Credential has another number or expiry than a cryptogram")
	}

	gone := s.active()
	if err := s.delete(s.Context(), gone); err != nil {
		s.Fatalf("Delete = %v", err)
	}
	for what, ref := range map[string]network.Ref{"an unknown ID": s.unknown()["ID"], "a deleted network token": gone} {
		_, err := s.credential(s.Context(), n, ref)
		var e *network.Error
		if !errors.As(err, &e) || codes[e.Source] == nil || e.Code == "" {
			s.Errorf("Credential of %s = %v, want a *network.Error with Source and Code", what, err)
		}
	}
}

func artFetcher(s *suite) {
	n, ok := network.As[network.ArtFetcher](s.network)
	if !ok || !s.asked.ArtFetcher {
		s.Log("not checked: the network is not an ArtFetcher")
		return
	}
	got, err := s.lookup(s.Context(), s.active())
	if err != nil {
		s.Fatalf("Lookup: %v", err)
	}
	if got.Art == "" {
		s.Log("not checked: the network token of Harness.Card has no art")
		return
	}

	fetch := func() (string, []byte) {
		s.Helper()
		ctx, cancel := context.WithTimeout(s.Context(), patience)
		defer cancel()
		answer, err := n.CardArt(ctx, &network.ArtRequest{Network: s.asked.Name, ID: got.Art})
		if err != nil || answer == nil {
			s.Fatalf("CardArt: %v, want an image or an error", err)
		}
		return answer.MediaType, answer.Image
	}

	mediaType, image := fetch()
	magic := map[string]string{"image/png": "\x89PNG\r\n\x1a\n", "image/jpeg": "\xff\xd8\xff"}[mediaType]

	switch {
	case magic == "":
		s.Error("CardArt: the media type must be image/png or image/jpeg")
	case !strings.HasPrefix(string(image), magic):
		s.Errorf("CardArt: the image is not %s", mediaType)
	case len(image) > network.MaxCardArt:
		s.Errorf("CardArt: %d bytes, want at most %d", len(image), network.MaxCardArt)
	}

	before := bytes.Clone(image)
	clear(image)
	if again, image := fetch(); again != mediaType || !bytes.Equal(image, before) {
		s.Error("CardArt of one id changes")
	}

	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	if _, err := n.CardArt(ctx, &network.ArtRequest{Network: s.asked.Name, ID: uuid.NewString()}); err == nil {
		s.Error("CardArt of an unknown id succeeds")
	}
}

func feeder(s *suite) {
	n, ok := network.As[network.Feeder](s.network)
	if !ok || !s.asked.Feeder {
		s.Log("not checked: the network is not a Feeder")
		return
	}
	feed := func(ctx context.Context) <-chan struct{} {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			err := n.Feed(ctx, &network.FeedRequest{Network: s.asked.Name}, func(_ context.Context, m *network.Notice) error {
				vaulttest.AssertNoLeak(s, s.numbers, m)
				if err := checkNotice(m); err != nil {
					s.Error(err)
				} else if m.Token.Network != "" && m.Token.Network != s.asked.Name {
					s.Error("Feed passes a notice of another network: a vault drops it")
				}
				return nil
			})
			if err != nil {
				s.Errorf("Feed, whose context has ended, = %v", err)
			}
		}()
		return ended
	}

	ctx, cancel := context.WithCancel(s.Context())
	ended := feed(ctx)
	ref := s.active()
	if n, ok := network.As[network.Suspender](s.network); ok && s.asked.Suspender { // a change to report
		if err := n.Suspend(ctx, ref); err != nil {
			s.Errorf("Suspend = %v", err)
		}
	}

	select {
	case <-ended:
		s.Error("Feed returned before its context ended")
	case <-time.After(250 * time.Millisecond): // long enough for one that does not wait at all
	}

	cancel()
	s.await(ended, "Feed, after its context")
	s.await(feed(ctx), "Feed, with a context that has ended")
}

// checkNotice returns an error for a wrong notice.
func checkNotice(n *network.Notice) error {
	switch {
	case n == nil:
		return errors.New("networktest: Feed passes no notice")
	case n.ID == "" || len(n.ID) > maxText:
		return errors.New("networktest: notice: ID must have 1 to 255 bytes")
	case n.Kind < network.NoticeActivated || n.Kind > network.NoticeArtChanged:
		return errors.New("networktest: notice: Kind is unknown")
	case n.OccurredAt.IsZero():
		return errors.New("networktest: notice: OccurredAt is missing")
	case n.Token.ID == "" && n.Token.IdempotencyKey == "":
		return errors.New("networktest: notice: Token is missing")
	case n.By > network.OwnerCardholder, n.By == 0 && n.Kind.HasOwner():
		return errors.New("networktest: notice: By is not an owner")
	case n.Kind == network.NoticeRefused:
		if n.Failure == nil {
			return errors.New("networktest: notice: Failure is missing")
		}
		if err := checkRefusal(n.Failure); err != nil {
			return fmt.Errorf("networktest: notice: %w", err)
		}
	}

	return nil
}
