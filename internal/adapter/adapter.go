// Package adapter looks at the adapters of a vault when it is opened.
package adapter

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/layers"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/updater"
)

// Powers is what a network can do besides the methods of every [network.Provider].
type Powers struct {
	network.Info // zero if the network is absent; SandboxOnly if any layer is

	// nil if the network lacks the power
	Suspender    network.Suspender
	Feeder       network.Feeder
	ArtFetcher   network.ArtFetcher
	Credentialer network.Credentialer

	// Unused names interfaces that the network has and does not say that it has. A
	// decorator may pass on methods for whatever it wraps, so that is not an error.
	Unused []string
}

// Network checks a network and returns its powers. p may be nil.
func Network(p network.Provider, live bool) (Powers, error) {
	if p == nil {
		return Powers{}, nil
	}

	infos, err := infosOf("Network", p)
	if err != nil {
		return Powers{}, err
	}
	info := infos[0]
	info.SandboxOnly = slices.ContainsFunc(infos, func(i network.Info) bool { return i.SandboxOnly })
	if r, ok := layers.As[interface{ Check() error }](p); ok {
		if err := r.Check(); err != nil {
			return Powers{}, err
		}
	}
	if err := checkMembers(info, live); err != nil {
		return Powers{}, err
	}

	n := Powers{Info: info}
	return n, errors.Join(
		find(&n, &n.Suspender, p, info.Suspender, "Suspender"),
		find(&n, &n.Feeder, p, info.Feeder, "Feeder"),
		find(&n, &n.ArtFetcher, p, info.ArtFetcher, "ArtFetcher"),
		find(&n, &n.Credentialer, p, info.Credentialer, "Credentialer"),
	)
}

// checkMembers checks a network, or each of several.
func checkMembers(info network.Info, live bool) error {
	names, schemes := map[string]bool{}, map[card.Scheme]bool{}
	for _, i := range info.Networks() {
		if err := check("Network", i.Name, live, i.SandboxOnly || info.SandboxOnly); err != nil {
			return err
		}
		if names[i.Name] {
			return fmt.Errorf("cardvault: two networks of Options.Network are named %q", i.Name)
		}
		names[i.Name] = true
	}
	for _, m := range info.Members {
		for _, s := range m.Schemes {
			if schemes[s] {
				return fmt.Errorf("cardvault: two networks of Options.Network have the scheme %v", s)
			}
			schemes[s] = true
		}
	}
	return nil
}

// Of returns the Info of a network by its name.
func (n *Powers) Of(name string) (info network.Info, ok bool) {
	if n.Members == nil {
		return n.Info, n.Name == name && name != ""
	}
	for _, m := range n.Members {
		if m.Name == name {
			return m.Info, true
		}
	}
	return network.Info{}, false
}

// Has reports whether there is a network of a name.
func (n *Powers) Has(name string) bool {
	_, ok := n.Of(name)
	return ok
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
	infos, err := infosOf("PPAN", p)
	if err != nil {
		return err
	}
	return check("PPAN", infos[0].Name, live, slices.ContainsFunc(infos, func(i ppan.Info) bool { return i.SandboxOnly }))
}

// IDV checks a provider that identifies cardholders, which may be nil.
func IDV(p idv.Provider, live bool) error {
	if p == nil {
		return nil
	}
	infos, err := infosOf("IDV", p)
	if err != nil {
		return err
	}
	return check("IDV", infos[0].Name, live, slices.ContainsFunc(infos, func(i idv.Info) bool { return i.SandboxOnly }))
}

// Updater checks an account updater, which may be nil.
func Updater(p updater.Provider, live bool) error {
	if p == nil {
		return nil
	}
	infos, err := infosOf("Updater", p)
	if err != nil {
		return err
	}
	return check("Updater", infos[0].Name, live, slices.ContainsFunc(infos, func(i updater.Info) bool { return i.SandboxOnly }))
}

// infosOf returns what each layer of an adapter says of itself, so that no layer hides a simulator
// below it. An adapter with too many layers is refused.
func infosOf[I any, P interface{ Info() I }](option string, p P) (all []I, err error) {
	defer func() {
		if recover() != nil { // the value may hold anything
			err = fmt.Errorf("cardvault: Info of Options.%s panics: does a decorator wrap nothing?", option)
		}
	}()
	if layers.TooDeep(p) {
		return nil, fmt.Errorf("cardvault: Options.%s has more than %d layers, or unwraps to itself: a vault cannot see the layers below", option, layers.Deepest)
	}
	for layer := range layers.Of(p) {
		all = append(all, layer.Info())
	}
	return all, nil
}

// Set returns an error for an option that holds a nil pointer, func or the like: its field is
// not nil, and its methods panic. options is a struct.
func Set(options any) error {
	all := reflect.ValueOf(options)
	for i := range all.NumField() {
		if f := all.Field(i); f.Kind() == reflect.Interface && !f.IsNil() && isNil(f.Elem()) {
			return fmt.Errorf("cardvault: Options.%s is a nil %v: set it, or leave it out", all.Type().Field(i).Name, f.Elem().Type())
		}
	}
	return nil
}

// IsNil reports whether v is nil, or holds a nil pointer, func or the like.
func IsNil(v any) bool { return v == nil || isNil(reflect.ValueOf(v)) }

func isNil(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Chan, reflect.Slice:
		return v.IsNil()
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
