package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// An Authenticator says who makes a request: by a client certificate, a bearer token or
// anything else that the request carries. [APIKeys] is the default.
type Authenticator interface {
	// Authenticate returns the principal of a request. A request without one is an error
	// that wraps cardvault.ErrUnauthenticated; cardvault.ErrAccountFrozen refuses valid
	// credentials of a frozen account. Other errors are answered as failures of the
	// service and logged: they must not hold a credential.
	//
	// It is called concurrently, for every request that is not public, including requests
	// without credentials. No limit has counted the request yet, so it should refuse at
	// little cost.
	//
	// The context of r has the deadline of the request. r must not be changed or kept.
	// Its Body cannot be read: the handler has not decided yet whether to take it.
	Authenticate(r *http.Request) (*Principal, error)
}

// A Principal makes requests, in one account.
type Principal struct {
	// Account is the account of the principal, as [cardvault.Vault.Account] returns it now:
	// its approvals count. Required.
	Account *cardvault.Account

	// Key is the API key of the vault by which the principal was authenticated. If nil,
	// it was by none, and the principal cannot manage API keys. It must be of Account.
	Key *cardvault.APIKey

	// Scopes are the scopes of a principal without Key. With Key, the scopes of the key
	// apply.
	Scopes []cardvault.Scope

	// Name identifies a principal without Key, in the log and for limits: at most 64
	// printable ASCII characters, not secret. The credential must prove it, as the subject
	// of a certificate, and a client must not be able to choose it: a client with many
	// names has many limits. Principals of one name in an account count as one, and so do
	// all without a name.
	Name string

	// RateLimit bounds the requests of the principal, in place of Options.KeyRateLimit and
	// within Options.RateLimit. Principals with keys of one chain, or with one name, count
	// as one if they have the same limit. If PerSecond is 0, it is Options.KeyRateLimit.
	// Keys of one chain with different limits have the sum of these.
	RateLimit RateLimit
}

// has reports whether a principal has a scope.
func (p *Principal) has(s cardvault.Scope) bool {
	if p.Key != nil {
		return p.Key.Has(s)
	}
	return slices.Contains(p.Scopes, s)
}

// check returns an error for a malformed principal of an Authenticator.
func (p *Principal) check() error {
	switch {
	case p == nil || p.Account == nil || p.Account.ID == uuid.Nil:
		return errors.New("httpapi: the Authenticator returned neither an error nor a Principal with an Account that has an ID")
	case p.Key != nil && p.Key.ID == uuid.Nil:
		return errors.New("httpapi: the Authenticator returned a Principal whose Key has no ID: leave Key nil")
	case p.Key != nil && p.Key.Account != p.Account.ID:
		return errors.New("httpapi: the Authenticator returned a Principal whose Key belongs to another Account")
	case len(p.Name) > 64 || slices.ContainsFunc([]byte(p.Name), func(c byte) bool { return c < ' ' || c > '~' }):
		return errors.New("httpapi: the Authenticator returned a Principal whose Name is not at most 64 printable ASCII characters")
	case !p.RateLimit.valid():
		return errors.New("httpapi: the Authenticator returned a Principal whose RateLimit is negative or not a number")
	}
	return nil
}

// APIKeys returns the default Authenticator of a handler: it takes the header x-api-key
// with a key of the vault. Other Authenticators pass unknown credentials on to it.
func APIKeys(v *cardvault.Vault) Authenticator { return apiKeys{v} }

type apiKeys struct{ vault *cardvault.Vault }

func (a apiKeys) Authenticate(r *http.Request) (*Principal, error) {
	return a.principal(r.Context(), r.Header)
}

func (a apiKeys) principal(ctx context.Context, h http.Header) (*Principal, error) {
	keys := h["X-Api-Key"]
	if len(keys) != 1 || keys[0] == "" {
		return nil, cardvault.ErrUnauthenticated
	}
	p, err := a.vault.Authenticate(ctx, keys[0])
	if err != nil {
		return nil, err
	}
	return &Principal{Account: p.Account, Key: p.Key}, nil
}

// principalOf asks the Authenticator who makes a call.
func (h *handler) principalOf(c *call) (*Principal, error) {
	p, err := h.ask(c)
	c.recorded = recorded(err)
	switch {
	case errors.Is(err, cardvault.ErrUnauthenticated):
		return nil, h.unauthorized
	case errors.Is(err, cardvault.ErrAccountFrozen):
		return nil, err
	case err == nil:
		err = p.check()
	}
	if err != nil && failed(err).status < http.StatusInternalServerError {
		// Not the caller's fault: errors about a call's objects do not apply here.
		err = fmt.Errorf("%w: %w", internalError, err)
	}
	return p, err
}

func (h *handler) ask(c *call) (*Principal, error) {
	if keys, ok := h.opts.Authenticator.(apiKeys); ok {
		return keys.principal(c.ctx, c.request.Header) // without a copy of the request
	}
	r := c.request.WithContext(c.ctx)
	r.Body = unreadable{}
	return h.opts.Authenticator.Authenticate(r)
}

// An unreadable is the body of a request that is shown to an Authenticator.
type unreadable struct{}

var errUnreadable = errors.New("httpapi: an Authenticator cannot read the body")

func (unreadable) Read([]byte) (int, error) { return 0, errUnreadable }

func (unreadable) Close() error { return nil }

var _ io.ReadCloser = unreadable{}
