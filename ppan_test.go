package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

const portalHash = "72a4a5acd535aa5eb87bee93f288b8016fb44134"

func portal() ppan.Account {
	return ppan.Account{AID: "22222", MID: "11111", PortalID: "3333333", Hash: ppan.NewHash([]byte(portalHash))}
}

// A providerFunc is a provider of pseudo card numbers.
type providerFunc func(context.Context, *ppan.Request) (*ppan.Answer, error)

func (providerFunc) Info() ppan.Info { return ppan.Info{Name: "func"} }

func (f providerFunc) ObtainPPAN(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
	return f(ctx, r)
}

// numbered sets the pseudo card number of an answer.
func numbered(digits string) func(*ppan.Answer) {
	return func(p *ppan.Answer) { p.PseudoPAN = ppan.NewPseudoPAN([]byte(digits)) }
}

func valid() *ppan.Answer {
	return &ppan.Answer{
		Status: ppan.Valid, PseudoPAN: ppan.NewPseudoPAN([]byte("9410010000038248746")), TruncatedPAN: "424242XXXXXX4242",
		CardType: "V", CardExpiry: "3012",
	}
}

func TestPPAN(t *testing.T) {
	var answer *ppan.Answer
	var sent string
	provider := providerFunc(func(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
		if d, ok := ctx.Deadline(); !ok || time.Until(d) != 10*time.Second {
			t.Errorf("the deadline is in %v", time.Until(d))
		}
		sent = fmt.Sprint(r.Sandbox, " ", r.Expiry, " ", r.Account.AID, " ", r.Account.MID, " ", r.Account.PortalID)
		r.PAN.Expose(func(d []byte) { sent += " " + string(d) })
		r.SecurityCode.Expose(func(d []byte) { sent += " " + string(d) })
		r.Account.Hash.Expose(func(text []byte) { sent += " " + string(text) })
		return answer, nil
	})
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, PPAN: provider}, func(l *lab) {
		id := l.imports(coded(visa, "737"))
		for _, status := range []ppan.Status{ppan.Valid, ppan.Invalid, ppan.Error} {
			answer = valid()
			if answer.Status = status; status != ppan.Valid {
				answer.PseudoPAN, answer.ErrorCode, answer.ErrorMessage = ppan.PseudoPAN{}, "43", strings.Repeat("ü", 255)
			}
			if status == ppan.Invalid {
				answer.TruncatedPAN = "42424242XXXX4242"
			}
			got, err := l.ObtainPPAN(l.Context(), id, portal())
			l.must(err)
			if fmt.Sprint(*got, got.PseudoPAN.Text()) != fmt.Sprint(*answer, answer.PseudoPAN.Text()) {
				l.Errorf("answer %+v, want %+v", got, answer)
			}
			if want := "true {12 2030} 22222 11111 3333333 4242424242424242 737 " + portalHash; sent != want {
				l.Errorf("sent %s, want %s", sent, want)
			}
		}
		l.hasCode(id, true)
		l.must2(l.Consume(l.Context(), id, nil))
		_, err := l.ObtainPPAN(l.Context(), id, portal())
		l.must(err)
		if strings.Contains(sent, "737 ") {
			l.Error("a consumed code is sent")
		}
		vaulttest.AssertNoLeak(t, []string{portalHash}, portal(), fmt.Sprintf("%+v %#v", portal(), portal()), l.log.text())
	})
}

// TestPPANFailures: every failure of a provider is returned as one of four errors. Neither
// the error nor the log contains anything of the request.
func TestPPANFailures(t *testing.T) {
	with := func(edit func(*ppan.Answer)) providerFunc {
		return func(context.Context, *ppan.Request) (*ppan.Answer, error) {
			p := valid()
			edit(p)
			return p, nil
		}
	}
	fails := func(err error) providerFunc {
		return func(context.Context, *ppan.Request) (*ppan.Answer, error) { return valid(), err }
	}
	const pan = "4242424242424242"
	// An answer may contain parts of a hash that is too short to be real.
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, PPAN: with(func(p *ppan.Answer) {
		*p = ppan.Answer{Status: ppan.Error, ErrorCode: "2006", ErrorMessage: "hash faulty"}
	})}, func(l *lab) {
		a := portal()
		a.Hash = ppan.NewHash([]byte("6"))
		if p, err := l.ObtainPPAN(l.Context(), l.imports(visa), a); err != nil || p.Status != ppan.Error {
			l.Errorf("a one-digit hash: %+v, %v", p, err)
		}
	})
	for name, test := range map[string]struct {
		provider providerFunc
		want     error
	}{
		"no answer":                 {fails(errors.New("connection refused")), cardvault.ErrProviderUnavailable},
		"an error with the number":  {fails(errors.New("cannot send " + pan)), cardvault.ErrProviderUnavailable},
		"an error with the hash":    {fails(errors.New("hash " + portalHash + " refused")), cardvault.ErrProviderUnavailable},
		"an error with the code":    {fails(errors.New("cardcvc2=7373")), cardvault.ErrProviderUnavailable},
		"nothing":                   {func(context.Context, *ppan.Request) (*ppan.Answer, error) { return nil, nil }, cardvault.ErrProviderUnavailable},
		"panic":                     {func(context.Context, *ppan.Request) (*ppan.Answer, error) { panic(pan) }, cardvault.ErrProviderUnavailable},
		"its own deadline":          {fails(context.DeadlineExceeded), cardvault.ErrProviderTimeout},
		"no status":                 {with(func(p *ppan.Answer) { p.Status = 0 }), cardvault.ErrProviderUnavailable},
		"another status":            {with(func(p *ppan.Answer) { p.Status = 4 }), cardvault.ErrProviderUnavailable},
		"valid without a number":    {with(numbered("")), cardvault.ErrProviderUnavailable},
		"a short number":            {with(numbered("941001000003824")), cardvault.ErrProviderUnavailable},
		"a long number":             {with(numbered("94100100000382487461")), cardvault.ErrProviderUnavailable},
		"a number with a letter":    {with(numbered("941001000003824874a")), cardvault.ErrProviderUnavailable},
		"the card number as number": {with(numbered(pan)), cardvault.ErrProviderUnavailable},
		"the card number inside":    {with(numbered("99" + pan)), cardvault.ErrProviderUnavailable},
		"not truncated":             {with(func(p *ppan.Answer) { p.TruncatedPAN = pan }), cardvault.ErrProviderUnavailable},
		"not truncated, spaced":     {with(func(p *ppan.Answer) { p.TruncatedPAN = "4242 4242 4242 4242" }), cardvault.ErrProviderUnavailable},
		"the form in a message":     {with(func(p *ppan.Answer) { p.Status, p.ErrorMessage = 3, "cardpan="+pan }), cardvault.ErrProviderUnavailable},
		"underscores":               {with(func(p *ppan.Answer) { p.TruncatedPAN = "4242_4242_4242_4242" }), cardvault.ErrProviderUnavailable},
		"one digit hidden":          {with(func(p *ppan.Answer) { p.TruncatedPAN = "42424242424X4242" }), cardvault.ErrProviderUnavailable},
		"three digits hidden":       {with(func(p *ppan.Answer) { p.TruncatedPAN = "424242424XXX4242" }), cardvault.ErrProviderUnavailable},
		"the number among words":    {with(func(p *ppan.Answer) { p.CustomerMessage = "4242 and 4242, 4242: 4242" }), cardvault.ErrProviderUnavailable},
		"the code in a message":     {with(func(p *ppan.Answer) { p.ErrorMessage = "cardcvc2=7373" }), cardvault.ErrProviderUnavailable},
		"the code for the shopper":  {with(func(p *ppan.Answer) { p.CustomerMessage = "7373?" }), cardvault.ErrProviderUnavailable},
		"the hash in a message":     {with(func(p *ppan.Answer) { p.ErrorMessage = "hash=" + portalHash }), cardvault.ErrProviderUnavailable},
		"an error among words":      {fails(errors.New("4242 and 4242, 4242: 4242")), cardvault.ErrProviderUnavailable},
		"a long text":               {with(func(p *ppan.Answer) { p.CustomerMessage = strings.Repeat("x", 256) }), cardvault.ErrProviderUnavailable},
	} {
		inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, PPAN: test.provider}, func(l *lab) {
			got, err := l.ObtainPPAN(l.Context(), l.imports(coded(visa, "7373")), portal())
			if !errors.Is(err, test.want) || got != nil {
				l.Errorf("%s: %v, %v, want %v", name, got, err, test.want)
			}
			vaulttest.AssertNoLeak(t, []string{pan, portalHash, "7373"}, err, l.log.text())
			if text := l.log.text(); strings.Contains(text, "4242 and") {
				l.Errorf("%s: logged: %s", name, text)
			}
			if l.log.text() == "" {
				l.Errorf("%s: nothing is logged", name)
			}
		})
	}

	hangs := providerFunc(func(ctx context.Context, _ *ppan.Request) (*ppan.Answer, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	// After the deadline any error of a provider is a timeout.
	words := providerFunc(func(ctx context.Context, _ *ppan.Request) (*ppan.Answer, error) {
		<-ctx.Done()
		return nil, errors.New("read: connection closed")
	})
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, PPAN: words}, func(l *lab) {
		if _, err := l.ObtainPPAN(l.Context(), l.imports(visa), portal()); !errors.Is(err, cardvault.ErrProviderTimeout) {
			l.Errorf("an error in other words: %v", err)
		}
	})
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, PPAN: hangs, PPANTimeout: 3 * time.Second}, func(l *lab) {
		id, start := l.imports(visa), time.Now()
		_, err := l.ObtainPPAN(l.Context(), id, portal())
		if !errors.Is(err, cardvault.ErrProviderTimeout) || time.Since(start) != 3*time.Second {
			l.Errorf("after %v: %v, want ErrProviderTimeout after 3 seconds", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(l.Context(), time.Second)
		defer cancel()
		if _, err := l.ObtainPPAN(ctx, id, portal()); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, cardvault.ErrProviderTimeout) {
			l.Errorf("with an earlier deadline of the caller: %v", err)
		}
		leaving, leave := context.WithCancel(l.Context())
		time.AfterFunc(time.Second, leave)
		if _, err := l.ObtainPPAN(leaving, id, portal()); !errors.Is(err, context.Canceled) || errors.Is(err, cardvault.ErrProviderTimeout) {
			l.Errorf("after the caller left: %v", err)
		}
	})
}

func TestPPANRefused(t *testing.T) {
	asked := 0
	provider := providerFunc(func(context.Context, *ppan.Request) (*ppan.Answer, error) {
		asked++
		return valid(), nil
	})
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, PPAN: provider}, func(l *lab) {
		refused := func(what string, v *cardvault.Vault, id uuid.UUID, want error) {
			l.Helper()
			if _, err := v.ObtainPPAN(l.Context(), id, portal()); !errors.Is(err, want) || asked != 0 {
				l.Errorf("%s: %v after %d requests, want %v", what, err, asked, want)
			}
		}
		id := l.become(active)
		l.notify(network.Notice{Kind: network.NoticeCardReplaced, Card: &network.CardState{LastFour: "0000"}})
		refused("a replaced number", l.Vault, id, cardvault.ErrCardDataStale)
		l.notify(network.Notice{Kind: network.NoticeInvalidated, OccurredAt: time.Now().Add(time.Second)})
		refused("an invalid card", l.Vault, id, cardvault.ErrTokenInvalidated)
		refused("no token", l.Vault, uuid.New(), cardvault.ErrNotFound)
		refused("another account", l.In(uuid.New()), id, cardvault.ErrNotFound)

		a := portal()
		a.AID, a.MID, a.PortalID, a.Hash = "", strings.Repeat("1", 256), "33\n", ppan.NewHash([]byte("é"))
		_, err := l.ObtainPPAN(l.Context(), id, a)
		var got []string
		for _, e := range cardvault.FieldErrors(err) {
			got = append(got, e.Field+" "+string(e.Code))
		}
		want := "AID required, Hash invalid_format, MID too_long, PortalID invalid_format"
		if strings.Join(got, ", ") != want {
			l.Errorf("bad values: %v", got)
		}
	})
	inLab(t, nil, func(l *lab) {
		if _, err := l.ObtainPPAN(l.Context(), l.imports(visa), portal()); !errors.Is(err, cardvault.ErrNotEnabled) {
			l.Errorf("without a provider: %v", err)
		}
	})
	for _, d := range []time.Duration{time.Millisecond, 2 * time.Minute, -1} {
		if _, err := newVault(t, &cardvault.Options{PPANTimeout: d}); err == nil {
			t.Errorf("a timeout of %v is accepted", d)
		}
	}
	if _, err := newVault(t, &cardvault.Options{PPAN: toy{provider}}); !errors.Is(err, cardvault.ErrWrongMode) {
		t.Errorf("a live vault with a provider for sandboxes: %v", err)
	}
}

// TestPPANAccounts: a live vault sends cards only for provider accounts that the operator
// has named. A sandbox sends them only for the first one, unless others were named. Each
// attempt is logged.
func TestPPANAccounts(t *testing.T) {
	var mu sync.Mutex
	var sent []string
	provider := providerFunc(func(_ context.Context, r *ppan.Request) (*ppan.Answer, error) {
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, r.Account.AID)
		if r.Account.AID == "silent" {
			return nil, errors.New("connection refused")
		}
		return valid(), nil
	})
	of := func(aid string) ppan.Account {
		a := portal()
		a.AID = aid
		return a
	}
	named := func(aids ...string) (list []cardvault.ProviderAccount) {
		for _, aid := range aids {
			list = append(list, cardvault.ProviderAccount{AID: aid, MID: portal().MID, PortalID: portal().PortalID})
		}
		return list
	}
	run := func(mode cardvault.Mode, f func(l *lab, ask func(v *cardvault.Vault, id uuid.UUID, a ppan.Account, want error))) {
		sent = nil
		inLab(t, &cardvault.Options{Mode: mode, PPAN: provider}, func(l *lab) {
			f(l, func(v *cardvault.Vault, id uuid.UUID, a ppan.Account, want error) {
				l.Helper()
				before := len(sent)
				if _, err := v.ObtainPPAN(l.Context(), id, a); !errors.Is(err, want) {
					l.Errorf("for %s: %v, want %v", a.AID, err, want)
				}
				if errors.Is(want, cardvault.ErrProviderAccount) != (len(sent) == before) {
					l.Errorf("for %s: the provider received cards for %q", a.AID, sent)
				}
			})
			vaulttest.AssertNoLeak(t, []string{portalHash, "737", "4242424242424242"}, l.log.text())
		})
	}
	run(cardvault.Live, func(l *lab, ask func(*cardvault.Vault, uuid.UUID, ppan.Account, error)) {
		replica, other := l.open(), l.newAccount()
		id := l.imports(coded(visa, "737"))
		ask(l.Vault, id, of("ATTACKER"), cardvault.ErrProviderAccount)
		l.change(cardvault.AccountUpdate{ProviderAccounts: named("one", "silent")})
		for _, v := range []*cardvault.Vault{l.Vault, replica} {
			ask(v, id, of("ATTACKER"), cardvault.ErrProviderAccount)
			for _, edit := range []func(*ppan.Account){
				func(a *ppan.Account) { a.MID += "1" },
				func(a *ppan.Account) { a.PortalID += "1" },
				func(a *ppan.Account) { a.AID, a.MID = a.MID, a.AID },
			} {
				a := of("one")
				edit(&a)
				ask(v, id, a, cardvault.ErrProviderAccount)
			}
			ask(v, id, of("one"), nil)
			ask(v, id, of("silent"), cardvault.ErrProviderUnavailable)
		}
		token, err := other.Import(l.Context(), visa, nil)
		l.must(err)
		ask(other, token.ID, of("one"), cardvault.ErrProviderAccount)
		l.change(cardvault.AccountUpdate{Quotas: cardvault.QuotaUpdate{APIKeys: new(7)}})
		if a, err := l.Account(l.Context()); err != nil || !slices.Equal(a.ProviderAccounts, named("one", "silent")) || a.Quotas.APIKeys != 7 {
			l.Errorf("the account shows %+v, %v", a, err)
		}
		l.change(cardvault.AccountUpdate{ProviderAccounts: []cardvault.ProviderAccount{}})
		ask(replica, id, of("one"), cardvault.ErrProviderAccount)

		key := uuid.New()
		l.change(cardvault.AccountUpdate{ProviderAccounts: named("one")})
		ctx := cardvault.WithActor(l.Context(), cardvault.Actor{KeyID: key})
		if _, err := l.ObtainPPAN(ctx, id, of("one")); err != nil {
			l.Error(err)
		}
		lines := strings.Split(strings.TrimSpace(l.log.text()), "\n")
		last := lines[len(lines)-1]
		account, err := l.Account(l.Context())
		l.must(err)
		for _, part := range []string{"level=INFO", account.ID.String(), key.String(), id.String(), "detail=VALID", "purpose=ppan"} {
			if !strings.Contains(last, part) {
				l.Errorf("the log lacks %s: %s", part, last)
			}
		}
		for outcome, n := range map[string]int{"sends no cards": 11, "provider is unavailable": 2, "detail=VALID": 3} {
			if got := strings.Count(l.log.text(), outcome); got != n {
				l.Errorf("%d lines say %s, want %d", got, outcome, n)
			}
		}
	})
	run(cardvault.Sandbox, func(l *lab, ask func(*cardvault.Vault, uuid.UUID, ppan.Account, error)) {
		id := l.imports(visa)
		if _, err := l.ObtainPPAN(l.Context(), uuid.New(), of("nobody")); !errors.Is(err, cardvault.ErrNotFound) {
			l.Error(err)
		}
		ask(l.Vault, id, of("silent"), cardvault.ErrProviderUnavailable)
		l.restart()
		ask(l.Vault, id, of("two"), cardvault.ErrProviderAccount)
		ask(l.Vault, id, of("silent"), cardvault.ErrProviderUnavailable)
		l.change(cardvault.AccountUpdate{ProviderAccounts: named("two", "three")})
		ask(l.Vault, id, of("silent"), cardvault.ErrProviderAccount)
		ask(l.Vault, id, of("two"), nil)
		ask(l.Vault, id, of("three"), nil)
		l.change(cardvault.AccountUpdate{ProviderAccounts: []cardvault.ProviderAccount{}})
		sent = nil
		replica := l.open()
		var group sync.WaitGroup
		for i := range 16 {
			group.Go(func() {
				v := []*cardvault.Vault{l.Vault, replica}[i%2]
				_, err := v.ObtainPPAN(l.Context(), id, of(fmt.Sprint("number ", i)))
				if err != nil && !errors.Is(err, cardvault.ErrProviderAccount) {
					l.Error(err)
				}
			})
		}
		group.Wait()
		if len(sent) != 1 {
			l.Errorf("several accounts at once: cards are sent for %q", sent)
		}
	})

	v, err := newVault(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, list := range map[string][]cardvault.ProviderAccount{
		"too many":  make([]cardvault.ProviderAccount, cardvault.MaxProviderAccounts+1),
		"nothing":   {{}},
		"too long":  named(strings.Repeat("1", 256)),
		"non-ASCII": named("é"),
	} {
		if _, err := v.UpdateAccount(t.Context(), cardvault.AccountUpdate{ProviderAccounts: list}); len(cardvault.FieldErrors(err)) == 0 {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A toy is a provider for sandboxes only.
type toy struct{ providerFunc }

func (toy) Info() ppan.Info { return ppan.Info{Name: "toy", SandboxOnly: true} }
