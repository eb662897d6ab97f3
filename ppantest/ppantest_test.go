package ppantest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/ppantest"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

func testCard(scenario int) cardvault.Card {
	return cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, scenario), Expiry: card.Expiry{Month: 12, Year: 2090}}
}

func account(key string) ppan.Account {
	p := payone.HashParameters{AID: "22222", MID: "11111", PortalID: "3333333", Sandbox: true}
	return ppan.Account{AID: p.AID, MID: p.MID, PortalID: p.PortalID, Hash: payone.Hash(key, p)}
}

// A mutant is the simulator with a fault in one of its methods.
type mutant struct {
	ppan.Provider
	info   func() ppan.Info
	obtain func(ctx context.Context, r *ppan.Request) (*ppan.Answer, error)
}

func (m *mutant) Info() ppan.Info {
	if m.info != nil {
		return m.info()
	}
	return m.Provider.Info()
}

func (m *mutant) ObtainPPAN(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
	if m.obtain != nil {
		return m.obtain(ctx, r)
	}
	return m.Provider.ObtainPPAN(ctx, r)
}

// answering changes answers.
func answering(edit func(*ppan.Answer, *ppan.Request)) func(*mutant) {
	return func(m *mutant) {
		m.obtain = func(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
			got, err := m.Provider.ObtainPPAN(ctx, r)
			if err == nil {
				edit(got, r)
			}
			return got, err
		}
	}
}

var errDown = errors.New("mutant: no connection")

// failing replaces answers with a status by an error.
func failing(status ppan.Status) func(*mutant) {
	return func(m *mutant) {
		m.obtain = func(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
			got, err := m.Provider.ObtainPPAN(ctx, r)
			if err == nil && got.Status == status {
				return nil, errDown
			}
			return got, err
		}
	}
}

// faults lists faults, each with a rule that must detect it.
var faults = []struct {
	fault, rule string
	seed        func(m *mutant)
}{
	{"the name has a space", "Info", func(m *mutant) { m.info = func() ppan.Info { return ppan.Info{Name: "my psp"} } }},
	{"SandboxOnly changes", "Info", func(m *mutant) {
		n := 0
		m.info = func() ppan.Info { n++; return ppan.Info{Name: "psp", SandboxOnly: n%2 == 0} }
	}},
	{"there is no number", "Valid", answering(func(a *ppan.Answer, _ *ppan.Request) { a.PseudoPAN = ppan.PseudoPAN{} })},
	{"the number is short", "Valid", answering(func(a *ppan.Answer, _ *ppan.Request) { a.PseudoPAN = ppan.NewPseudoPAN([]byte("123")) })},
	{"the number is the card's", "Valid", answering(func(a *ppan.Answer, r *ppan.Request) {
		r.PAN.Expose(func(d []byte) { a.PseudoPAN = ppan.NewPseudoPAN(d) })
	})},
	{"a text is long", "Valid", answering(func(a *ppan.Answer, _ *ppan.Request) { a.CardType = strings.Repeat("x", 256) })},
	{"too many digits are shown", "Valid", answering(func(a *ppan.Answer, _ *ppan.Request) { a.TruncatedPAN = "411111000000X11" })},
	{"a text has a long number", "Valid", answering(func(a *ppan.Answer, _ *ppan.Request) { a.ErrorMessage = "case 4111 1111 1111 1112" })},
	{"neither answer nor error", "Valid", func(m *mutant) {
		m.obtain = func(context.Context, *ppan.Request) (*ppan.Answer, error) { return nil, nil }
	}},
	{"a refusal is an error", "Refused", failing(ppan.Invalid)},
	{"a refusal has no reason", "Refused", answering(func(a *ppan.Answer, _ *ppan.Request) { a.ErrorCode, a.ErrorMessage = "", "" })},
	{"an unknown account is an error", "Stranger", failing(ppan.Error)},
	{"the error quotes the card", "NoCardData", func(m *mutant) {
		m.obtain = func(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
			got, err := m.Provider.ObtainPPAN(ctx, r)
			if err == nil && got.Status == ppan.Invalid {
				r.PAN.Expose(func(d []byte) { err = fmt.Errorf("mutant: bad card %s", d) })
			}
			return got, err
		}
	}},
	{"the message quotes the hash", "NoCardData", answering(func(a *ppan.Answer, r *ppan.Request) {
		r.Account.Hash.Expose(func(text []byte) { a.ErrorMessage = string(text) })
	})},
	{"the message quotes the code", "NoCardData", answering(func(a *ppan.Answer, r *ppan.Request) {
		r.SecurityCode.Expose(func(digits []byte) { a.ErrorMessage = "Code " + string(digits) + " is wrong." })
	})},
	{"the error quotes the code", "NoCardData", func(m *mutant) {
		m.obtain = func(_ context.Context, r *ppan.Request) (_ *ppan.Answer, err error) {
			r.SecurityCode.Expose(func(digits []byte) { err = fmt.Errorf("mutant: bad code %s", digits) })
			return nil, err
		}
	}},
	{"answers share their memory", "Memory", func(m *mutant) {
		var kept ppan.Answer
		n := 0
		m.obtain = func(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
			got, err := m.Provider.ObtainPPAN(ctx, r)
			if err != nil {
				return nil, err
			}
			n++
			kept = *got
			kept.PseudoPAN = ppan.NewPseudoPAN(fmt.Appendf(nil, "94100100000000000%02d", n))
			return &kept, nil
		}
	}},
	{"it sends after the context has ended", "ContextEnded", func(m *mutant) {
		m.obtain = func(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
			return m.Provider.ObtainPPAN(context.WithoutCancel(ctx), r)
		}
	}},
	{"it waits", "ContextEnded", func(m *mutant) {
		m.obtain = func(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
			<-time.After(30 * time.Second)
			return nil, ctx.Err()
		}
	}},
	{"one at a time", "Concurrency", func(m *mutant) {
		turn := make(chan struct{}, 1)
		m.obtain = func(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
			select {
			case turn <- struct{}{}:
				defer func() { <-turn }()
			default:
				return nil, errDown
			}
			<-time.After(20 * time.Millisecond)
			return m.Provider.ObtainPPAN(ctx, r)
		}
	}},
}

func harness(t testing.TB, edit func(*mutant)) ppantest.Harness {
	sim, err := simnet.New(t.Context(), memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &mutant{Provider: sim.PPAN()}
	edit(m)
	return ppantest.Harness{
		Open:     func(testing.TB) ppan.Provider { return m },
		Account:  account(simnet.PortalKey),
		Card:     testCard(0),
		Refused:  testCard(81),
		Stranger: account("another key"),
	}
}

// Every rule must detect its faults.
func TestRulesCanFail(t *testing.T) {
	noticed := contract.Faults(t, ppantest.Names())
	for _, f := range faults {
		noticed(f.rule, f.fault, func(t *testing.T) []string {
			return ppantest.Failures(t, f.rule, harness(t, f.seed))
		})
	}
}

// The simulator passes, so that a failure is due to the fault.
func TestRulesPassWithoutFault(t *testing.T) { ppantest.Run(t, harness(t, func(*mutant) {})) }
