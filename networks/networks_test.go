package networks_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/networks"
	"github.com/cardvault/cardvault/networktest"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
)

func TestMain(m *testing.M) { goroutines.Verify(m) }

func simulator(t testing.TB, name string) *simnet.Network {
	t.Helper()
	sim, err := simnet.New(t.Context(), memstore.New(), &simnet.Options{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return sim
}

// TestContract: a route of two networks keeps the contract of a network, for the cards of each,
// also if one of the networks can do less.
func TestContract(t *testing.T) {
	for _, scheme := range []card.Scheme{card.VISA, card.Mastercard} {
		t.Run(scheme.String(), func(t *testing.T) {
			t.Parallel()
			expiry := card.Expiry{Month: 12, Year: 2040}
			networktest.Run(t, networktest.Harness{
				Open: func(t testing.TB) network.Provider {
					return networks.Route(map[card.Scheme]network.Provider{
						card.VISA:       simulator(t, "one"),
						card.Mastercard: less{simulator(t, "two")},
					})
				},
				Scheme:  scheme,
				Card:    cardvault.Card{PAN: simnet.ScenarioPAN(scheme, 0), Expiry: expiry},
				Refused: cardvault.Card{PAN: simnet.ScenarioPAN(scheme, 10), Expiry: expiry},
			})
		})
	}
}

// less is a network that has none of the optional interfaces.
type less struct{ network.Provider }

func (n less) Info() network.Info {
	said := n.Provider.Info()
	return network.Info{Name: said.Name, SandboxOnly: said.SandboxOnly}
}

// A layer is a decorator that keeps what its network can do.
type layer struct{ network.Provider }

func (l layer) Unwrap() network.Provider { return l.Provider }

// A listed network cannot be compared.
type listed struct {
	network.Provider
	names []string
}

// TestInfo: a route names its networks with their schemes, and can do what one of them can.
func TestInfo(t *testing.T) {
	one, two, three := simulator(t, "one"), less{simulator(t, "two")}, simulator(t, "three")
	r := networks.Route(map[card.Scheme]network.Provider{
		card.VISA: one, card.Mastercard: two, card.AmericanExpress: two,
		card.Discover: layer{networks.Route(map[card.Scheme]network.Provider{card.Discover: three, card.JCB: one})},
	}, one, less{simulator(t, "four")})
	said := r.Info()
	if said.Name != "" || !said.SandboxOnly || !said.Suspender || !said.Feeder || !said.ArtFetcher || !said.Credentialer {
		t.Errorf("%+v", said)
	}

	got := map[string][]card.Scheme{}
	for _, m := range said.Members {
		got[m.Name] = m.Schemes
		if can := m.Name == "one" || m.Name == "three"; m.Suspender != can || m.Feeder != can || m.ArtFetcher != can || m.Credentialer != can {
			t.Errorf("%s: %+v", m.Name, m)
		}
	}
	if !slices.Equal(got["one"], []card.Scheme{card.VISA}) || !slices.Equal(got["two"], []card.Scheme{card.Mastercard, card.AmericanExpress}) ||
		!slices.Equal(got["three"], []card.Scheme{card.Discover}) || len(got["four"]) != 0 || len(got) != 4 {
		t.Errorf("schemes %v", got)
	}
	for scheme, want := range map[card.Scheme]string{card.VISA: "one", card.AmericanExpress: "two", card.Discover: "three", card.UnionPay: ""} {
		if name := said.For(scheme); name != want {
			t.Errorf("%v: %q, want %q", scheme, name, want)
		}
	}

	said.Members[0].Name, said.Members[0].Schemes[0] = "changed", card.UnionPay
	if again := r.Info(); again.Members[0].Name == "changed" || again.Members[0].Schemes[0] == card.UnionPay {
		t.Error("the answer of Info is shared")
	}
	if _, ok := network.As[network.Suspender](networks.Route(map[card.Scheme]network.Provider{card.VISA: two})); ok {
		t.Error("a route whose networks are no Suspender is one")
	}
}

// TestRefused: a vault does not open with a route that cannot work.
func TestRefused(t *testing.T) {
	one := simulator(t, "one")
	open := func(n network.Provider, mode cardvault.Mode) error {
		keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
		if err != nil {
			t.Fatal(err)
		}
		v, err := cardvault.New(t.Context(), memstore.New(), keys, &cardvault.Options{Mode: mode, Network: n})
		if err == nil {
			err = v.Close()
		}
		return err
	}
	route := func(visa, mastercard network.Provider) network.Provider {
		return networks.Route(map[card.Scheme]network.Provider{card.VISA: visa, card.Mastercard: mastercard})
	}

	for name, test := range map[string]struct {
		n    network.Provider
		want string
	}{
		"none":               {networks.Route(nil), "no network"},
		"nil":                {route(one, nil), "[Mastercard] is nil"},
		"a nil pointer":      {route((*simnet.Network)(nil), one), "[VISA] is nil"},
		"two of one name":    {route(one, simulator(t, "one")), `named "one"`},
		"not comparable":     {route(listed{less{one}, nil}, listed{less{one}, nil}), `named "one"`},
		"without name":       {route(one, less{simulator(t, "my network")}), "Info.Name"},
		"power that is lost": {route(struct{ network.Provider }{one}, simulator(t, "two")), "Unwrap"},
		"below a decorator":  {layer{route(one, nil)}, "[Mastercard] is nil"},
		"in a route":         {route(simulator(t, "two"), route(one, nil)), "[Mastercard] is nil"},
	} {
		if err := open(test.n, cardvault.Sandbox); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := open(layer{route(layer{one}, simulator(t, "two"))}, cardvault.Sandbox); err != nil {
		t.Error(err)
	}

	// A live vault sees a simulator behind a decorator behind a route.
	shown := live{one}
	if err := open(layer{route(shown, shown)}, cardvault.Live); !errors.Is(err, cardvault.ErrWrongMode) {
		t.Errorf("a live vault: %v", err)
	}
}

// live is a decorator that does not say that its network is a simulator.
type live struct{ network.Provider }

func (n live) Info() network.Info { return network.Info{Name: "live"} }

func (n live) Unwrap() network.Provider { return n.Provider }

// TestUnnamed: a request without the name of a network of the route reaches none, and is not
// refused in the name of a network.
func TestUnnamed(t *testing.T) {
	r := networks.Route(map[card.Scheme]network.Provider{card.VISA: simulator(t, "one"), card.Mastercard: less{simulator(t, "two")}})
	suspender, _ := network.As[network.Suspender](r)
	feeder, _ := network.As[network.Feeder](r)
	art, _ := network.As[network.ArtFetcher](r)
	credentialer, _ := network.As[network.Credentialer](r)
	ctx := t.Context()

	for _, name := range []string{"", "three", "two"} {
		ref := network.Ref{Network: name, ID: "x", IdempotencyKey: "y"}
		errs := map[string]error{
			"Suspend":    suspender.Suspend(ctx, ref),
			"Resume":     suspender.Resume(ctx, ref),
			"Feed":       feeder.Feed(ctx, &network.FeedRequest{Network: name}, func(context.Context, *network.Notice) error { return nil }),
			"CardArt":    errorOf(art.CardArt(ctx, &network.ArtRequest{Network: name, ID: "x"})),
			"Credential": errorOf(credentialer.Credential(ctx, &network.CredentialRequest{Token: ref})),
		}
		if name != "two" {
			errs["Provision"] = errorOf(r.Provision(ctx, &network.ProvisionRequest{Network: name, Scheme: card.VISA, IdempotencyKey: "y"}))
			errs["Lookup"] = errorOf(r.Lookup(ctx, ref))
			errs["Cryptogram"] = errorOf(r.Cryptogram(ctx, &network.CryptogramRequest{Token: ref}))
			errs["Delete"] = r.Delete(ctx, ref)
		}
		for what, err := range errs {
			var refusal *network.Error
			if err == nil || errors.As(err, &refusal) || errors.Is(err, network.ErrUnknown) || errors.Is(err, errors.ErrUnsupported) != (name == "two") {
				t.Errorf("%s at %q: %v", what, name, err)
			}
		}
	}
	var refusal *network.Error
	if err := r.Eligible(&network.EligibilityRequest{Scheme: card.JCB}); !errors.As(err, &refusal) || refusal.Code != network.CodeSchemeNotEnabled {
		t.Errorf("a scheme without a network: %v", err)
	}
}

func errorOf[T any](_ T, err error) error { return err }
