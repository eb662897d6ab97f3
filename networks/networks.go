// Package networks makes one network of several, such as the token services of two schemes:
//
//	v, err := cardvault.Open(ctx, "vault", keys, &cardvault.Options{
//		Network: networks.Route(map[card.Scheme]network.Provider{
//			card.VISA:            visa,
//			card.Mastercard:      mastercard,
//			card.AmericanExpress: aggregator,
//			card.Discover:        aggregator,
//		}),
//	})
//
// A network token belongs to the network that made it, whose Name the vault stores. Its
// cryptograms, look-ups, suspensions and deletion go there, also after its scheme was given
// to another network. A provisioning that may have reached a network is repeated there. A
// provisioning that has not begun goes to the network of the scheme at that time.
//
// A network that is left out is not asked, and no network is asked in its place. Its network
// tokens cannot pay, and wait for it. To give its schemes to another network and keep its
// network tokens in use, pass it to [Route] without a scheme.
package networks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/adapter"
	"github.com/cardvault/cardvault/network"
)

// Route returns a network that asks, for the cards of each scheme, the network of that
// scheme. Other schemes have no network tokens. The former networks receive no new cards,
// and serve the network tokens that they have made. A network may have several schemes.
//
// The result is a [network.Suspender], say, if any of its networks is. The vault still refuses
// to suspend a network token whose own network is not. No vault opens with two networks of
// the same Name, and no live vault with a network for sandboxes.
func Route(schemes map[card.Scheme]network.Provider, former ...network.Provider) network.Provider {
	r := &route{members: map[string]*member{}}
	for _, s := range slices.Sorted(maps.Keys(schemes)) {
		r.add(schemes[s], s)
	}
	for _, p := range former {
		r.add(p)
	}
	return r.withPowers()
}

// A route asks the network that a request names.
type route struct {
	info    network.Info
	members map[string]*member
	errs    []error // of networks that cannot be members
}

// A member is a network of a route.
type member struct {
	provider network.Provider
	powers   adapter.Powers
}

// add adds a network, or each network of another route, for the cards of schemes.
func (r *route) add(p network.Provider, schemes ...card.Scheme) {
	if adapter.IsNil(p) {
		r.errs = append(r.errs, fmt.Errorf("networks: the network of %v is nil", schemes))
		return
	}
	powers, err := adapter.Network(p, false)
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("networks: the network of %v: %w", schemes, err))
		return
	}

	for _, info := range powers.Networks() {
		i := slices.IndexFunc(r.info.Members, func(m network.Member) bool { return m.Name == info.Name })
		switch {
		case i < 0:
			i = len(r.info.Members)
			info.SandboxOnly = info.SandboxOnly || powers.SandboxOnly
			r.info.Members = append(r.info.Members, network.Member{Info: info})
			r.members[info.Name] = &member{p, powers}
			r.allow(info)
		case !same(r.members[info.Name].provider, p):
			r.errs = append(r.errs, fmt.Errorf("networks: two networks are named %q", info.Name))
			continue
		}

		for _, s := range schemes {
			if powers.For(s) == info.Name {
				r.info.Members[i].Schemes = append(r.info.Members[i].Schemes, s)
			}
		}
	}
}

// allow adds the capabilities of a network.
func (r *route) allow(info network.Info) {
	r.info.SandboxOnly = r.info.SandboxOnly || info.SandboxOnly
	r.info.Suspender = r.info.Suspender || info.Suspender
	r.info.Feeder = r.info.Feeder || info.Feeder
	r.info.ArtFetcher = r.info.ArtFetcher || info.ArtFetcher
	r.info.Credentialer = r.info.Credentialer || info.Credentialer
}

// same reports whether two networks are one.
func same(a, b network.Provider) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// Check returns the errors of the networks, for a vault that is opened with r.
func (r *route) Check() error {
	if len(r.info.Members) == 0 && r.errs == nil {
		return errors.New("networks: Route has no network")
	}
	return errors.Join(r.errs...)
}

// Info implements [network.Provider].
func (r *route) Info() network.Info {
	info := r.info
	info.Members = slices.Clone(info.Members)
	for i := range info.Members {
		info.Members[i].Schemes = slices.Clone(info.Members[i].Schemes)
	}
	return info
}

// Eligible implements [network.Provider].
func (r *route) Eligible(q *network.EligibilityRequest) error {
	name := q.Network
	if name == "" {
		name = r.info.For(q.Scheme)
	}
	m, err := r.of(name)
	if err != nil {
		return &network.Error{Source: network.SourceConfiguration, Code: network.CodeSchemeNotEnabled}
	}
	return m.provider.Eligible(q)
}

// Provision implements [network.Provider].
func (r *route) Provision(ctx context.Context, q *network.ProvisionRequest) (*network.Token, error) {
	m, err := r.of(q.Network)
	if err != nil {
		return nil, err
	}
	return m.provider.Provision(ctx, q)
}

// Lookup implements [network.Provider].
func (r *route) Lookup(ctx context.Context, ref network.Ref) (*network.Token, error) {
	m, err := r.of(ref.Network)
	if err != nil {
		return nil, err
	}
	return m.provider.Lookup(ctx, ref)
}

// Cryptogram implements [network.Provider].
func (r *route) Cryptogram(ctx context.Context, q *network.CryptogramRequest) (*network.Cryptogram, error) {
	m, err := r.of(q.Token.Network)
	if err != nil {
		return nil, err
	}
	return m.provider.Cryptogram(ctx, q)
}

// Delete implements [network.Provider].
func (r *route) Delete(ctx context.Context, ref network.Ref) error {
	m, err := r.of(ref.Network)
	if err != nil {
		return err
	}
	return m.provider.Delete(ctx, ref)
}

// errUnnamed is not a refusal: nothing was asked.
var errUnnamed = errors.New("networks: the request names no network of the route")

// of returns the network of a name.
func (r *route) of(name string) (*member, error) {
	m := r.members[name]
	if m == nil {
		return nil, errUnnamed
	}
	return m, nil
}
