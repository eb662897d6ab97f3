package networks

import (
	"context"
	"errors"
	"fmt"

	"github.com/cardvault/cardvault/network"
)

// A route has the methods of an optional interface only if one of its networks has them. So
// each interface is a decorator of its own.
type (
	suspender struct {
		network.Provider
		route *route
	}
	feeder struct {
		network.Provider
		route *route
	}
	artFetcher struct {
		network.Provider
		route *route
	}
	credentialer struct {
		network.Provider
		route *route
	}
)

// withPowers returns r with the optional interfaces that its Info names.
func (r *route) withPowers() network.Provider {
	p := network.Provider(r)
	if r.info.Suspender {
		p = suspender{p, r}
	}
	if r.info.Feeder {
		p = feeder{p, r}
	}
	if r.info.ArtFetcher {
		p = artFetcher{p, r}
	}
	if r.info.Credentialer {
		p = credentialer{p, r}
	}
	return p
}

// Unwrap returns the network below.
func (s suspender) Unwrap() network.Provider    { return s.Provider }
func (f feeder) Unwrap() network.Provider       { return f.Provider }
func (a artFetcher) Unwrap() network.Provider   { return a.Provider }
func (c credentialer) Unwrap() network.Provider { return c.Provider }

// Suspend implements [network.Suspender].
func (s suspender) Suspend(ctx context.Context, ref network.Ref) error {
	return s.call(ref, func(n network.Suspender) error { return n.Suspend(ctx, ref) })
}

// Resume implements [network.Suspender].
func (s suspender) Resume(ctx context.Context, ref network.Ref) error {
	return s.call(ref, func(n network.Suspender) error { return n.Resume(ctx, ref) })
}

func (s suspender) call(ref network.Ref, f func(network.Suspender) error) error {
	m, err := s.route.of(ref.Network)
	if err == nil && m.powers.Suspender == nil {
		err = lacks(ref.Network, "Suspender")
	}
	if err != nil {
		return err
	}
	return f(m.powers.Suspender)
}

// Feed implements [network.Feeder].
func (f feeder) Feed(ctx context.Context, q *network.FeedRequest, sink func(context.Context, *network.Notice) error) error {
	m, err := f.route.of(q.Network)
	if err == nil && m.powers.Feeder == nil {
		err = lacks(q.Network, "Feeder")
	}
	if err != nil {
		return err
	}
	return m.powers.Feeder.Feed(ctx, q, sink)
}

// CardArt implements [network.ArtFetcher].
func (a artFetcher) CardArt(ctx context.Context, q *network.ArtRequest) (*network.Art, error) {
	m, err := a.route.of(q.Network)
	if err == nil && m.powers.ArtFetcher == nil {
		err = lacks(q.Network, "ArtFetcher")
	}
	if err != nil {
		return nil, err
	}
	return m.powers.ArtFetcher.CardArt(ctx, q)
}

// Credential implements [network.Credentialer].
func (c credentialer) Credential(ctx context.Context, q *network.CredentialRequest) (*network.Credential, error) {
	m, err := c.route.of(q.Token.Network)
	if err == nil && m.powers.Credentialer == nil {
		err = lacks(q.Token.Network, "Credentialer")
	}
	if err != nil {
		return nil, err
	}
	return m.powers.Credentialer.Credential(ctx, q)
}

func lacks(name, power string) error {
	return fmt.Errorf("networks: %w: the network %q is not a network.%s", errors.ErrUnsupported, name, power)
}
