package adapter_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/adapter"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/updater"
)

// A net is a network whose Info is given. It has no other methods.
type net struct {
	network.Provider
	info network.Info
}

func (n net) Info() network.Info { return n.info }

func (n net) Unwrap() network.Provider { return n.Provider }

type suspends struct{ network.Suspender }

type suspender struct {
	net
	suspends
}

type payer struct {
	ppan.Provider
	info ppan.Info
}

func (p payer) Info() ppan.Info { return p.info }

func (p payer) Unwrap() ppan.Provider { return p.Provider }

type verifier struct {
	idv.Provider
	info idv.Info
}

func (p verifier) Info() idv.Info { return p.info }

func (p verifier) Unwrap() idv.Provider { return p.Provider }

type renewer struct {
	updater.Provider
	info updater.Info
}

func (p renewer) Info() updater.Info { return p.info }

func (p renewer) Unwrap() updater.Provider { return p.Provider }

func TestNetwork(t *testing.T) {
	can := network.Info{Name: "n", Suspender: true}
	for name, test := range map[string]struct {
		p    network.Provider
		want string // in the error, "" for none
	}{
		"none":                             {nil, ""},
		"without powers":                   {net{info: network.Info{Name: "n"}}, ""},
		"with a power":                     {suspender{net: net{info: can}}, ""},
		"with a power below":               {net{net{suspender{net: net{info: can}}, can}, can}, ""},
		"an undeclared power":              {suspender{net: net{info: network.Info{Name: "n"}}}, ""},
		"a declared power that is missing": {net{info: can}, "network.Suspender"},
		"without a name":                   {net{}, "Info.Name of Options.Network"},
		"with another name":                {net{info: network.Info{Name: "my network"}}, "Info.Name of Options.Network"},
	} {
		got, err := adapter.Network(test.p, true)
		if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if unused := name == "an undeclared power"; (len(got.Unused) == 1) != unused {
			t.Errorf("%s: unused: %q", name, got.Unused)
		}
		if said := test.p != nil && test.p.Info().Suspender; err == nil && (got.Suspender != nil) != said {
			t.Errorf("%s: found a Suspender: %v", name, got.Suspender != nil)
		}
	}
}

// A loop is a network that unwraps to itself.
type loop struct{ net }

func (l *loop) Unwrap() network.Provider { return l }

// TestOpaque: adapters whose layers cannot be unwrapped to the end are refused. The error
// names the option.
func TestOpaque(t *testing.T) {
	deep := network.Provider(net{nil, network.Info{Name: "n", SandboxOnly: true}})
	for range 16 {
		deep = net{deep, network.Info{Name: "n"}}
	}
	for name, p := range map[string]network.Provider{
		"a ring":    &loop{net{info: network.Info{Name: "n"}}},
		"17 layers": deep,
		"nothing":   struct{ network.Provider }{},
	} {
		for _, live := range []bool{true, false} {
			if _, err := adapter.Network(p, live); err == nil || !strings.Contains(err.Error(), "Options.Network") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if err := adapter.PPAN(struct{ ppan.Provider }{}, true); err == nil || !strings.Contains(err.Error(), "Options.PPAN") {
		t.Errorf("PPAN: %v", err)
	}
}

// TestSandboxOnly: an outer layer does not hide that an inner one is for sandboxes only.
func TestSandboxOnly(t *testing.T) {
	for name, check := range map[string]func(live bool) error{
		"network": func(live bool) error {
			_, err := adapter.Network(net{net{nil, network.Info{Name: "n", SandboxOnly: true}}, network.Info{Name: "n"}}, live)
			return err
		},
		"PPAN": func(live bool) error {
			return adapter.PPAN(payer{payer{nil, ppan.Info{Name: "n", SandboxOnly: true}}, ppan.Info{Name: "n"}}, live)
		},
		"IDV": func(live bool) error {
			return adapter.IDV(verifier{verifier{nil, idv.Info{Name: "n", SandboxOnly: true}}, idv.Info{Name: "n"}}, live)
		},
		"updater": func(live bool) error {
			return adapter.Updater(renewer{renewer{nil, updater.Info{Name: "n", SandboxOnly: true}}, updater.Info{Name: "n"}}, live)
		},
	} {
		if err := check(false); err != nil {
			t.Errorf("%s, in a sandbox: %v", name, err)
		}
		if err := check(true); !errors.Is(err, ledger.ErrWrongMode) {
			t.Errorf("%s, live: %v", name, err)
		}
	}

	if err := errors.Join(adapter.PPAN(nil, true), adapter.IDV(nil, true), adapter.Updater(nil, true)); err != nil {
		t.Error(err)
	}
	if adapter.Updater(renewer{}, false) == nil || adapter.PPAN(payer{}, false) == nil || adapter.IDV(verifier{}, false) == nil {
		t.Error("a provider without a name is accepted")
	}
}
