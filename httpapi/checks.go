package httpapi

import (
	"cmp"
	"net/http"
	"runtime/debug"
	"strconv"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// checks are made of every call, in the documented order. The endpoint goes on with
// syntax, field rules, existence and state.
var checks = []func(*handler, *call) error{
	(*handler).checkPath,    // and method
	(*handler).checkCaller,  // API key, and limits
	(*handler).checkVersion, // of the API
	(*handler).checkScope,   // and approval
	(*handler).checkSetup,   // of handler and vault
	(*handler).checkRoom,    // for a forward or a stream
	(*handler).checkBody,    // content type and size
}

// serve lets the endpoint of a call answer, if the call passes the checks.
func (h *handler) serve(c *call) (err error) {
	defer h.recoverPanic(c, &err)
	defer func() {
		if c.answered != nil {
			c.answered(err)
		}
	}()
	if c.client = h.opts.ClientAddr(c.request); c.client.IsValid() {
		c.address = c.client.String()
	}

	for _, check := range checks {
		if err := check(h, c); err != nil {
			return err
		}
	}

	h.enter(c)
	if c.endpoint.repeatable {
		return c.serveOnce()
	}
	return c.endpoint.serve(c)
}

// recoverPanic is deferred: a call that panics is answered as a failure of the service.
func (h *handler) recoverPanic(c *call, err *error) {
	p := recover()
	switch p {
	case nil:
	case http.ErrAbortHandler:
		panic(p)
	default:
		// The value is not logged: it may hold anything.
		h.opts.Logger.Error("panic", "path", c.route.pattern(), "request_id", c.requestID, "stack", string(debug.Stack()))
		*err = internalError
	}
}

// checkPath finds the endpoint of a call by its path and method, and sets the headers
// that all answers on the path have.
func (h *handler) checkPath(c *call) error {
	found, e, ids, err := h.route(c.request)
	if c.route = found; found != nil {
		switch found.path[0] {
		case "integrations":
			c.header["X-Api-Stability"] = beta
		case "sessions", "openapi.yaml", "openapi.json":
			h.allowOrigin(c, found)
		}
	}
	if err != nil {
		return err
	}

	c.endpoint = e
	c.open = e.public && (e != getCardArt || !h.opts.CardArtRequiresKey)
	c.pathID = ids[0]
	c.id, _ = parseID(ids[0])
	c.partID, _ = parseID(ids[1])
	return nil
}

// checkCaller finds the principal of a call and counts the call, or holds it to the
// limits of its session if it needs no API key.
func (h *handler) checkCaller(c *call) (err error) {
	if !c.open {
		return h.authenticate(c)
	}
	c.answered, err = h.limitSession(c, prefixOf(c.client))
	return err
}

// authenticate finds the principal of a call, and counts the call against the limits of
// account and principal.
func (h *handler) authenticate(c *call) error {
	c.ctx = cardvault.WithActor(c.ctx, c.actor()) // a key may be bound to addresses
	p, err := h.principalOf(c)
	if err != nil {
		return err
	}
	c.principal = p

	// Revocations have a limit of their own, so that a key that uses up the others can
	// be revoked.
	account := p.Account.ID
	if c.endpoint == deleteAPIKey && c.endpoint.admits(p) == nil {
		return tooMany(h.revocations.take(accountKey{account, p.Key.ID}))
	}

	limit := h.opts.KeyRateLimit
	if p.RateLimit.PerSecond > 0 {
		limit = p.RateLimit
	}
	by := caller{accountKey: accountKey{account, p.root()}, limit: limit.withBurst()}
	if p.Key == nil {
		by.name = p.Name
	}
	if retry := h.callers.takeWithin(limit, by); retry > 0 {
		return tooMany(retry)
	}
	retry := h.accounts.take(account)
	if retry > 0 {
		h.callers.giveWithin(limit, by)
	}
	return tooMany(retry)
}

// tooMany refuses a call that may come again after a number of seconds. It returns nil if
// that number is 0.
func tooMany(seconds int) error {
	if seconds == 0 {
		return nil
	}
	return rateLimited.with(strconv.Itoa(seconds))
}

// root returns the id of the first key of the chain that made the key of a principal, the
// key's own if an Authenticator knows no chains, or zero if it has no key.
func (p *Principal) root() uuid.UUID {
	if p.Key == nil {
		return uuid.Nil
	}
	return cmp.Or(p.Key.Root, p.Key.ID)
}

func (h *handler) checkVersion(c *call) error {
	if v := c.request.Header["X-Api-Version"]; len(v) > 1 || len(v) == 1 && v[0] != "1.0" {
		return unsupportedVersion
	}
	return nil
}

func (h *handler) checkScope(c *call) error {
	if c.open {
		return nil
	}
	return c.endpoint.admits(c.principal)
}

// admits returns why a principal may not use the endpoint, or nil.
func (e *endpoint) admits(p *Principal) error {
	for _, s := range []cardvault.Scope{e.scope, e.also} {
		if s != "" && !p.has(s) {
			return lacksScope(s)
		}
	}
	if e.ofKeys && p.Key == nil {
		return notAKey
	}
	if e.approved != nil {
		return e.approved(p.Account)
	}
	return nil
}

func (h *handler) checkSetup(c *call) error {
	if c.endpoint.enabled == nil {
		return nil
	}
	return c.endpoint.enabled(h)
}

// checkRoom admits a forward or a stream if not too many are under way.
func (h *handler) checkRoom(c *call) error {
	of, weight := h.streams, 1
	switch {
	case c.endpoint == forwardCard:
		of, weight = h.forwards, weigh(c.request.ContentLength, c.endpoint.maxBody)
	case c.endpoint != listAuditRecords || !acceptsLines(c.request):
		return nil
	}
	account := c.principal.Account.ID
	if !of.take(account, weight) {
		return tooMany(1)
	}
	c.leave = func() { of.leave(account, weight) }
	return nil
}

func (h *handler) checkBody(c *call) (err error) {
	if c.body, err = readBody(c.request, c.buffers, cmp.Or(c.endpoint.maxBody, maxBody)); err != nil {
		return err
	}
	if c.endpoint.needsBody && len(c.body) == 0 {
		return bodyMissing
	}
	return nil
}

// enter lets a call that passed the checks act in the account of its principal.
func (h *handler) enter(c *call) {
	var account uuid.UUID
	if !c.open {
		account = c.principal.Account.ID
	}
	c.vault = h.vault.In(account)
	c.ctx = cardvault.WithActor(c.ctx, c.actor())
}

// actor returns on whose behalf a call is made, as far as the checks have found it.
func (c *call) actor() cardvault.Actor {
	actor := cardvault.Actor{RequestID: c.requestID}
	if p := c.principal; p != nil && !c.open {
		actor.RootKeyID, actor.Name = p.root(), p.Name
		if p.Key != nil {
			actor.KeyID = p.Key.ID
		}
	}
	actor.Address = c.address
	return actor
}
