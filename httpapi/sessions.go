package httpapi

import (
	"crypto/sha256"
	"errors"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// The calls that a browser makes in a session. They need no API key: the id of the
// session entitles to them.

var getSession = &endpoint{
	public: true,
	serve: bare(func(c *call) error {
		if err := c.checkPage(); err != nil {
			return err
		}
		s, err := c.vault.Session(c.ctx, cardvault.NewSessionID(c.id))
		if err := c.state(s, err); err != nil {
			return err
		}
		// That fails while it is waited for; other cards have failed when they were sent.
		c.refused = s.ReasonCode == cardvault.RefusedIdentification
		return nil
	}),
}

var completeSession = &endpoint{
	public:    true,
	needsBody: true,
	serve: func(c *call) error {
		var payload []byte
		var s *cardvault.Session
		var dead error
		err := c.read(func(f fields, _ *query) error {
			if dead = c.checkPage(); dead != nil {
				return nil
			}
			if s, dead = c.vault.Session(c.ctx, cardvault.NewSessionID(c.id)); dead != nil {
				return nil
			}
			switch s.State {
			case cardvault.SessionSucceeded, cardvault.SessionFailed:
				dead = sessionCompleted
				return nil
			case cardvault.SessionIdentifying:
				return nil // it has a card
			}

			if action, ok := f.text("action", required, 1, math.MaxInt); ok {
				choose(f.violations, "action", action, []string{nextAction(s)}, nil)
			}
			if result, ok := f.object("result", required); ok {
				payload, _ = result.text("enc_payload", required, 1, math.MaxInt)
			}
			return nil
		})

		// An answer about the session comes before one about the fields.
		switch {
		case dead != nil:
			return dead
		case s != nil && s.State == cardvault.SessionIdentifying:
			err := c.state(s, nil)
			c.refused = true // it takes no other card
			return err
		case err != nil:
			return err
		}
		return c.state(c.vault.CompleteSession(c.ctx, cardvault.NewSessionID(c.id), payload))
	},
}

// preflight answers the request that a browser sends before a page of another origin may
// make a call. The answer is in the headers, which allowOrigin sets.
var preflight = &endpoint{
	public: true,
	serve:  func(*call) error { return nil },
}

// component is a file of the card-entry component, which makes these calls.
var component = &endpoint{
	public: true,
	serve: func(c *call) error {
		c.component = true
		return nil
	},
}

func componentRoute(name string) route {
	return route{[]string{"sdk", "v1", name}, map[string]*endpoint{"GET": component}}
}

// nextAction names the next step of a session that is not finished.
func nextAction(s *cardvault.Session) string {
	switch {
	case s.State == cardvault.SessionIdentifying && s.ChallengeURL != "":
		return "challenge"
	case s.State == cardvault.SessionIdentifying:
		return "wait"
	}
	return string(s.Kind)
}

// state answers with the state of a session.
func (c *call) state(s *cardvault.Session, err error) error {
	if err != nil {
		return err
	}
	c.refused = s.ReasonCode != ""
	c.answer = appendSession(c.answer, s)
	return nil
}

// reasons explain the codes of reasons to people.
var reasons = map[cardvault.Refusal]string{
	cardvault.RefusedAccountNumber:  "The card number is not valid.",
	cardvault.RefusedExpiryDate:     "The expiry date is not valid.",
	cardvault.RefusedExpired:        "The card has expired.",
	cardvault.RefusedSecurityCode:   "The security code is not valid.",
	cardvault.RefusedScheme:         "Cards of this scheme are not accepted.",
	cardvault.RefusedIdentification: "The cardholder could not be verified.",
	cardvault.RefusedAttempts:       "Too many cards were refused. Start a new session.",
}

// limitSession counts a call of a session, or refuses it. The caller calls answered, if it
// is not nil, with the outcome of the call.
func (h *handler) limitSession(c *call, client netip.Addr) (answered func(err error), err error) {
	id := sessionHash(sha256.Sum256(c.id[:]))
	switch c.endpoint {
	case getSession:
		if c.id == uuid.Nil {
			return nil, nil // no session has this id
		}
		if retry := h.reads.take(id); retry > 0 {
			return nil, rateLimited.with(strconv.Itoa(retry))
		}
		return func(error) {
			if c.refused && h.unfailed.take(id) == 0 { // once, however often it is read
				h.failures.count(client)
			}
		}, nil
	case completeSession:
		return h.limitCompletion(c, id, client)
	}
	return nil, nil
}

// limitCompletion lets a completion in before its body is read, in one of three ways.
// It costs one read of the store, as finding an API key does.
//
//   - A session that is open and has not failed is let in whatever else its client does,
//     one call at a time: other clients cannot shut out the shoppers behind an address.
//   - Further calls of a session that is known take a place among the failures of the
//     client, and give it back when they succeed.
//   - Unknown ids take a place in a limit of their own, so that a client that invents ids
//     uses up nothing that shoppers need.
//
// So of one client, no more bodies are read than these places and sessions allow.
func (h *handler) limitCompletion(c *call, id sessionHash, client netip.Addr) (answered func(err error), err error) {
	s, err := h.vault.In(uuid.Nil).SessionStatus(c.ctx, cardvault.NewSessionID(c.id))
	places := h.failures
	switch {
	case errors.Is(err, cardvault.ErrNotFound):
		places = h.strangers
	case err != nil:
		return nil, err
	case s.State == cardvault.SessionOpen && s.Refusals == 0 && h.unfailed.take(id) == 0:
		return func(err error) {
			if c.failed(err) {
				h.failures.count(client)
			} else {
				h.unfailed.give(id)
			}
		}, nil
	}

	// It takes a place that it gives back when it succeeds.
	if retry := places.take(client); retry > 0 {
		return nil, rateLimited.with(strconv.Itoa(retry))
	}
	return func(err error) {
		if !c.failed(err) {
			places.give(client)
		}
	}, nil
}

// failed reports whether a call of a session that was answered with err is held against
// its client: a failure of ours is not.
func (c *call) failed(err error) bool { return c.refused || err != nil && failed(err).status < 500 }

// checkPage refuses a call of a session by a page whose origin the account of the session
// does not name.
func (c *call) checkPage() error {
	if c.opts.AccountOrigins == nil {
		return nil
	}
	pages := c.pages()
	if len(pages) == 0 {
		return nil
	}
	s, err := c.vault.SessionStatus(c.ctx, cardvault.NewSessionID(c.id))
	if err != nil {
		return err
	}
	allowed := c.opts.AccountOrigins(s.Account)
	for _, origin := range pages {
		if !slices.Contains(allowed, origin) {
			return originNotAllowed
		}
	}
	return nil
}

// pages returns the origins of the pages that a call comes from, without the vault's own:
// the page that makes it, and the page that the component's frame names. Pages of other
// origins cannot set either header.
func (c *call) pages() (origins []string) {
	h := c.request.Header
	if h.Get("Sec-Fetch-Site") != "same-origin" {
		for _, origin := range h["Origin"] {
			if u, err := url.Parse(origin); err != nil || u.Host != c.request.Host {
				origins = append(origins, origin)
			}
		}
	}
	return append(origins, h["X-Page-Origin"]...)
}

// Values of headers that limit pages of other origins in a browser.
var (
	varyOrigin     = []string{"Origin"}
	exposedHeaders = []string{"X-Request-Id, Retry-After"}
	allowedHeaders = []string{"content-type, x-request-id, x-api-version"}
	preflightAge   = []string{"600"}
)

// allowOrigin lets pages of Options.AllowedOrigins make the calls of a route and
// read their answers. There are no cookies, so credentials are never allowed.
func (h *handler) allowOrigin(c *call, found *route) {
	c.header["Vary"] = varyOrigin
	origins := c.request.Header["Origin"]
	if len(origins) != 1 || !slices.Contains(h.opts.AllowedOrigins, origins[0]) {
		return
	}
	c.header["Access-Control-Allow-Origin"] = origins
	if c.request.Method != http.MethodOptions {
		c.header["Access-Control-Expose-Headers"] = exposedHeaders
		return
	}
	c.header["Access-Control-Allow-Methods"] = []string{allow(found.methods)}
	c.header["Access-Control-Allow-Headers"] = allowedHeaders
	c.header["Access-Control-Max-Age"] = preflightAge
}

var originForm = regexp.MustCompile(`^(?:https://[a-z0-9][a-z0-9_.-]*|http://(?:localhost|127\.0\.0\.1))(?::([1-9]\d{0,4}))?$`)

// isOrigin reports whether s is what a browser sends as the origin of a page: lower
// case, without the port that its scheme implies.
func isOrigin(s string) bool {
	m := originForm.FindStringSubmatch(s)
	if m == nil || m[1] == "" {
		return m != nil
	}
	port, err := strconv.ParseUint(m[1], 10, 16)
	implied := uint64(443)
	if s[:5] == "http:" {
		implied = 80
	}
	return err == nil && port != implied
}
