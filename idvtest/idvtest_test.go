package idvtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/idvtest"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A mutant is the simulator with a fault in one of its methods.
type mutant struct {
	idv.Provider
	info     func() idv.Info
	identify func(ctx context.Context, r *idv.Request) (*idv.Result, error)
	lookup   func(ctx context.Context, r *idv.LookupRequest) (*idv.Result, error)
}

func (m *mutant) Info() idv.Info {
	if m.info != nil {
		return m.info()
	}
	return m.Provider.Info()
}

func (m *mutant) Identify(ctx context.Context, r *idv.Request) (*idv.Result, error) {
	if m.identify != nil {
		return m.identify(ctx, r)
	}
	return m.Provider.Identify(ctx, r)
}

func (m *mutant) LookupIdentification(ctx context.Context, r *idv.LookupRequest) (*idv.Result, error) {
	if m.lookup != nil {
		return m.lookup(ctx, r)
	}
	return m.Provider.LookupIdentification(ctx, r)
}

// answering changes results.
func answering(edit func(*idv.Result)) func(*mutant) {
	return func(m *mutant) {
		altered := func(got *idv.Result, err error) (*idv.Result, error) {
			if err == nil {
				edit(got)
			}
			return got, err
		}
		m.identify = func(ctx context.Context, r *idv.Request) (*idv.Result, error) {
			return altered(m.Provider.Identify(ctx, r))
		}
		m.lookup = func(ctx context.Context, r *idv.LookupRequest) (*idv.Result, error) {
			return altered(m.Provider.LookupIdentification(ctx, r))
		}
	}
}

// rekeyed changes idempotency keys.
func rekeyed(edit func(r *idv.Request) string) func(*mutant) {
	return func(m *mutant) {
		m.identify = func(ctx context.Context, r *idv.Request) (*idv.Result, error) {
			other := *r
			other.IdempotencyKey = edit(r)
			return m.Provider.Identify(ctx, &other)
		}
	}
}

// atOnce answers without a challenge.
func atOnce(answer func() *idv.Result) func(*mutant) {
	return func(m *mutant) {
		m.identify = func(context.Context, *idv.Request) (*idv.Result, error) { return answer(), nil }
	}
}

func proof() *idv.Result {
	return &idv.Result{State: idv.Passed, Authentication: &idv.Authentication{
		Method: "three_ds", DSTransactionID: uuid.NewString(), At: time.Now(),
	}}
}

// end returns a function whose results alternate between success and failure.
func end() func() *idv.Result {
	var calls atomic.Int64
	at := time.Now()
	return func() *idv.Result {
		if calls.Add(1)%2 == 0 {
			return &idv.Result{State: idv.Failed}
		}
		return &idv.Result{State: idv.Passed, Authentication: &idv.Authentication{Method: "otp", At: at}}
	}
}

var errDown = errors.New("mutant: no connection")

// faults lists faults, each with a rule that must detect it.
var faults = []struct {
	fault, rule string
	seed        func(m *mutant)
}{
	{"there is no name", "Info", func(m *mutant) { m.info = func() idv.Info { return idv.Info{} } }},
	{"the name changes", "Info", func(m *mutant) {
		n := 0
		m.info = func() idv.Info { n++; return idv.Info{Name: fmt.Sprint("n", n)} }
	}},
	{"the proof is missing", "Passed", answering(func(r *idv.Result) { r.Authentication = nil })},
	{"the method is unknown", "Passed", answering(func(r *idv.Result) {
		if r.Authentication != nil {
			r.Authentication.Method = "3DS2"
		}
	})},
	{"the time is missing", "Passed", answering(func(r *idv.Result) {
		if r.Authentication != nil {
			r.Authentication.At = time.Time{}
		}
	})},
	{"the reference is long", "Passed", answering(func(r *idv.Result) { r.Reference = strings.Repeat("x", 256) })},
	{"the challenge is in the clear", "Passed", answering(func(r *idv.Result) { r.ChallengeURL = "http://issuer.example/" })},
	{"neither result nor error", "Passed", func(m *mutant) {
		m.lookup = func(context.Context, *idv.LookupRequest) (*idv.Result, error) { return nil, nil }
	}},
	{"a failure is an error", "Failed", func(m *mutant) {
		m.lookup = func(ctx context.Context, r *idv.LookupRequest) (*idv.Result, error) {
			got, err := m.Provider.LookupIdentification(ctx, r)
			if err == nil && got.State == idv.Failed {
				return nil, errDown
			}
			return got, err
		}
	}},
	{"a failure is reported as not needed", "Failed", answering(func(r *idv.Result) {
		if r.State == idv.Failed {
			r.State = idv.NotNeeded
		}
	})},
	{"keys are ignored", "Again", rekeyed(func(*idv.Request) string { return uuid.NewString() })},
	{"the code is needed again", "Again", func(m *mutant) {
		m.identify = func(ctx context.Context, r *idv.Request) (*idv.Result, error) {
			if r.SecurityCode.IsZero() {
				return nil, errDown
			}
			return m.Provider.Identify(ctx, r)
		}
	}},
	{"each call has its own proof", "Again", atOnce(proof)},
	{"each call has its own proof", "AtOnce", atOnce(proof)},
	{"calls differ in their outcome", "Again", atOnce(end())},
	{"calls differ in their outcome", "AtOnce", atOnce(end())},
	{"keys are ignored, at once", "AtOnce", rekeyed(func(*idv.Request) string { return uuid.NewString() })},
	{"a card has one identification", "Another", rekeyed(func(r *idv.Request) string { return "one" })},
	{"it is kept in memory", "Restart", func(m *mutant) {
		known := map[string]bool{}
		m.identify = func(ctx context.Context, r *idv.Request) (*idv.Result, error) {
			got, err := m.Provider.Identify(ctx, r)
			if err == nil {
				known[got.Reference] = true
			}
			return got, err
		}
		m.lookup = func(ctx context.Context, r *idv.LookupRequest) (*idv.Result, error) {
			if !known[r.Reference] {
				return &idv.Result{State: idv.Failed}, nil
			}
			return m.Provider.LookupIdentification(ctx, r)
		}
	}},
	{"an unknown reference is not needed", "UnknownReference", func(m *mutant) {
		m.lookup = func(ctx context.Context, r *idv.LookupRequest) (*idv.Result, error) {
			got, err := m.Provider.LookupIdentification(ctx, r)
			if err == nil && got.State == idv.Failed {
				got.State = idv.NotNeeded
			}
			return got, err
		}
	}},
	{"an unknown reference is an error", "UnknownReference", func(m *mutant) {
		m.lookup = func(context.Context, *idv.LookupRequest) (*idv.Result, error) { return nil, errDown }
	}},
	{"the end of the context fails it", "ContextEnded", func(m *mutant) {
		m.lookup = func(ctx context.Context, r *idv.LookupRequest) (*idv.Result, error) {
			if ctx.Err() != nil {
				return &idv.Result{State: idv.Failed}, nil
			}
			return m.Provider.LookupIdentification(ctx, r)
		}
	}},
	{"it waits", "ContextEnded", func(m *mutant) {
		m.identify = func(context.Context, *idv.Request) (*idv.Result, error) {
			<-time.After(30 * time.Second)
			return nil, errDown
		}
	}},
	{"the reference is the card number", "NoCardData", func(m *mutant) {
		m.identify = func(ctx context.Context, r *idv.Request) (*idv.Result, error) {
			got, err := m.Provider.Identify(ctx, r)
			if err == nil {
				r.PAN.Expose(func(d []byte) { got.Reference = string(d) })
			}
			return got, err
		}
	}},
	{"all have the same reference", "Concurrency", answering(func(r *idv.Result) { r.Reference = "one" })},
}

// harness is for the simulator with a fault.
func harness(t testing.TB, edit func(*mutant)) idvtest.Harness {
	sim, err := simnet.New(t.Context(), memstore.New(), &simnet.Options{ChallengeURL: "https://issuer.example/"})
	if err != nil {
		t.Fatal(err)
	}
	return idvtest.Harness{
		Open: func(testing.TB) idv.Provider {
			m := &mutant{Provider: sim.IDV()}
			edit(m)
			return m
		},
		Scheme: card.VISA,
		Card: cardvault.Card{
			PAN:          simnet.ScenarioPAN(card.VISA, 70),
			Expiry:       card.Expiry{Month: 12, Year: 2090},
			SecurityCode: card.NewSecurityCode([]byte("737")),
		},
		Answer: func(ctx context.Context, _ idv.Provider, reference string, pass bool) error {
			err := sim.Control().EndIdentification(ctx, reference, pass)
			sim.Advance(3 * time.Second)
			return err
		},
	}
}

// Every rule must detect its faults.
func TestRulesCanFail(t *testing.T) {
	noticed := contract.Faults(t, idvtest.Names())
	for _, f := range faults {
		noticed(f.rule, f.fault, func(t *testing.T) []string {
			return idvtest.Failures(t, f.rule, harness(t, f.seed))
		})
	}
}

// The simulator passes, so that a failure is due to the fault.
func TestRulesPassWithoutFault(t *testing.T) { idvtest.Run(t, harness(t, func(*mutant) {})) }

// The zone of a time may change, for example when a database returns it.
func TestZones(t *testing.T) {
	var zones atomic.Int64
	idvtest.Run(t, harness(t, answering(func(r *idv.Result) {
		if r.Authentication != nil {
			r.Authentication.At = r.Authentication.At.In(time.FixedZone("", int(zones.Add(1))*60))
		}
	})))
}
