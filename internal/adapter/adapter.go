// Package adapter looks at the adapters of a vault when it is opened.
package adapter

import (
	"errors"
	"fmt"

	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/layers"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/ppan"
)

// Powers is what a network can do besides the methods of every [network.Provider].
type Powers struct {
	Name string // of the network, "" if it is absent

	// nil if the network lacks the power
	Suspender  network.Suspender
	Feeder     network.Feeder
	ArtFetcher network.ArtFetcher

	// Unused names interfaces that the network has and does not say that it has. A
	// decorator may pass on methods for whatever it wraps, so that is not an error.
	Unused []string
}

// Network checks a network and returns its powers. p may be nil.
func Network(p network.Provider, live bool) (Powers, error) {
	if p == nil {
		return Powers{}, nil
	}

	info := p.Info()
	if err := check("Network", info.Name, live, sandboxed(p, func(p network.Provider) bool { return p.Info().SandboxOnly })); err != nil {
		return Powers{}, err
	}

	n := Powers{Name: info.Name}
	return n, errors.Join(
		find(&n, &n.Suspender, p, info.Suspender, "Suspender"),
		find(&n, &n.Feeder, p, info.Feeder, "Feeder"),
		find(&n, &n.ArtFetcher, p, info.ArtFetcher, "ArtFetcher"),
	)
}

// find sets power to what p or a layer below it has, if the network says that it has it.
func find[T any](n *Powers, power *T, p network.Provider, said bool, name string) error {
	if !said {
		if _, ok := p.(T); ok {
			n.Unused = append(n.Unused, "network."+name)
		}
		return nil
	}
	found, ok := network.As[T](p)
	if !ok {
		return fmt.Errorf("cardvault: Info of Options.Network says that it is a network.%s, and neither it nor a Provider that it unwraps to has the methods: a decorator needs Unwrap() network.Provider", name)
	}
	*power = found
	return nil
}

// PPAN checks a provider of pseudo card numbers, which may be nil.
func PPAN(p ppan.Provider, live bool) error {
	if p == nil {
		return nil
	}
	return check("PPAN", p.Info().Name, live, sandboxed(p, func(p ppan.Provider) bool { return p.Info().SandboxOnly }))
}

// IDV checks a provider that identifies cardholders, which may be nil.
func IDV(p idv.Provider, live bool) error {
	if p == nil {
		return nil
	}
	return check("IDV", p.Info().Name, live, sandboxed(p, func(p idv.Provider) bool { return p.Info().SandboxOnly }))
}

// sandboxed reports whether any layer of p must not see real cards: none can hide it.
func sandboxed[P any](p P, says func(P) bool) bool {
	for layer := range layers.Of(p) {
		if says(layer) {
			return true
		}
	}
	return false
}

func check(option, name string, live, sandbox bool) error {
	if name == "" || rule.Slug(name) != nil {
		return fmt.Errorf("cardvault: Info.Name of Options.%s must be 1 to 40 of a-z, 0-9, _ and -, beginning with a letter or digit", option)
	}
	if live && sandbox {
		return fmt.Errorf("%w: Options.%s is %q, which is for sandboxes, and Options.Mode is Live", ledger.ErrWrongMode, option, name)
	}
	return nil
}
