// Package httpapi serves a vault over HTTP: the documented REST API.
//
// [NewHandler] returns an [http.Handler] that is mounted on any mux, under any
// prefix:
//
//	h, err := httpapi.NewHandler(v, nil)
//	http.Handle("/vault/", http.StripPrefix("/vault", h))
//
// It answers every request that reaches it in JSON, or with the requested image,
// and never redirects (as http.ServeMux does with unclean paths before it calls a
// handler). It sets its own deadlines and limits, so that it is safe on a server
// that sets none, except for ReadHeaderTimeout and MaxHeaderBytes, which only the
// server can set. It must be reached over TLS: requests carry card numbers.
//
// A request is authenticated by the header x-api-key, with a key of the vault unless
// [Options.Authenticator] says otherwise, and acts in the account of that key. Card art
// needs no key, see [Options.CardArtRequiresKey]. Nor do the calls that a browser makes in
// a session, whose id is the credential, see [Options.AllowedOrigins]. Answers to errors
// come from one table and never repeat the request.
package httpapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/httpapi/cardentry"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/google/uuid"
)

// Options are the optional parts of a handler.
type Options struct {
	// Authenticator says who makes a request. Defaults to [APIKeys].
	Authenticator Authenticator

	// Challenge is the header WWW-Authenticate of an answer 401, such as
	// `Bearer realm="vault"` for an Authenticator that takes those. Defaults to
	// `ApiKey realm="cardvault"`.
	Challenge string

	// RateLimit bounds the requests of each account, over all of its keys. The zero value
	// sets no limit. Rates count for this handler alone, not for others on the same store,
	// and only for requests with a valid key. DELETE /api-keys/{id} does not count: each
	// key has a separate limit for it, so that a key that uses up the others can be
	// revoked.
	RateLimit RateLimit

	// KeyRateLimit bounds the requests of each API key within RateLimit, together with the
	// requests of all its descendants, and of each other [Principal]. The zero value sets
	// no limit. Principal.RateLimit takes precedence.
	KeyRateLimit RateLimit

	// TrustedProxies are the addresses of the proxies in front of the handler. Each must add
	// its peer at the end of the header X-Forwarded-For. The client is the last address there
	// that is not of a trusted proxy. From any other peer the header is ignored: a client
	// could claim any address. Name no network in which there are clients. If empty, the
	// client is the peer of the connection.
	TrustedProxies []netip.Prefix

	// ClientAddr returns the address of the client in place of TrustedProxies, which must be
	// empty then. The address is for the log, for the limit of 30 failed completions of a
	// session a minute, and for API keys that are bound to addresses. The zero Addr means
	// unknown: all unknown clients share one limit, and no bound key is accepted. A function
	// that believes a header lets every client that can reach the handler choose its address.
	ClientAddr func(*http.Request) netip.Addr

	// Timeout bounds the work on one request, reading and writing included. If
	// it is not longer than cardvault.Options.NetworkTimeout, a network that does
	// not answer in time is a failure of the service, not one in the record. A forward has
	// the longest timeout of its destinations in addition. Defaults to 30 seconds.
	Timeout time.Duration

	// ProviderName is the name of the payment provider of
	// POST /integrations/provider/obtain-ppan: 1 to 40 of a-z, 0-9 and "-",
	// beginning with a letter or digit. The same is served under it then, at
	// POST /integrations/NAME/obtain-ppan with the headers x-NAME-aid, x-NAME-hash,
	// x-NAME-mid and x-NAME-portalid. If "", only under the neutral one.
	ProviderName string

	// CardArtRequiresKey restricts card art to API keys of its account with the scope
	// tokens:read. An <img> cannot send a key. Defaults to false: the id, which cannot be
	// guessed, is enough.
	CardArtRequiresKey bool

	// AllowedOrigins are the origins whose pages may load the card-entry component, hold its
	// frame and make the calls of a session from a browser, as browsers send them:
	// "https://shop.example". Shoppers enter cards there: name only your own. http is only
	// for localhost and 127.0.0.1. Defaults to only the origin of the vault.
	AllowedOrigins []string

	// AccountOrigins returns the AllowedOrigins of an account: only their pages may make
	// the calls of its sessions, themselves or from the frame that they hold. It is
	// called concurrently, for each of these calls with the header Origin or
	// X-Page-Origin, which browsers always send and other clients need not. If nil, each
	// account has all of AllowedOrigins.
	AccountOrigins func(account uuid.UUID) []string

	// Forward makes the requests of POST /forward. If nil, that is INTEGRATION_NOT_ENABLED.
	Forward *forward.Forwarder

	// MaxForwards limits the forwards of this handler that are under way, at least 128. An
	// account may have a quarter. A forward with a body over 64 KiB counts once more for
	// each 64 KiB. Beyond it the answer is 429. Defaults to 256.
	MaxForwards int

	// OmitAbsent leaves members that are null out of every answer, for clients that do not
	// accept null. An item of a list stays. Deliveries to webhooks are the vault's, and keep
	// null. Defaults to false.
	OmitAbsent bool

	// IgnoreUnknown drops members of bodies and parameters of queries that an endpoint does
	// not have, for clients that send more. All else is refused as before: a body that is too
	// large, too deep or has a member twice, and a known member that is not valid. The values
	// of dropped members do not count in the comparison under an idempotency key. A misspelt
	// member is dropped too: an API key without its address_ranges works everywhere, a rotation
	// without its revoke_previous revokes nothing, and a list without its filter contains
	// everything. Defaults to false.
	IgnoreUnknown bool

	// Logger receives failures of the service and lists with damaged items at error level,
	// requests answered with 401 or 403 at info level, and all others at debug level. A
	// line has the pattern of the path without its ids, the id of the request, the address
	// of the client, and account and key if they are known. An error may name damaged
	// records by their ids, the first five of a list. Defaults to discarding.
	Logger *slog.Logger
}

// maxBody bounds a request body, in bytes.
const maxBody = 64 << 10

// NewHandler returns the REST API of a vault, for all of its accounts. opts may be
// nil. It starts nothing and needs no closing: close the vault when the server has
// stopped.
func NewHandler(v *cardvault.Vault, opts *Options) (http.Handler, error) {
	if v == nil {
		return nil, errors.New("httpapi: NewHandler needs a vault")
	}
	h := &handler{vault: v, routes: routes, audited: v.AuditPublicKeys() != nil}
	if opts != nil {
		h.opts = *opts
	}
	o := &h.opts

	if strings.ContainsFunc(o.Challenge, func(r rune) bool { return r < ' ' || r > '~' }) {
		return nil, errors.New("httpapi: Options.Challenge must be printable ASCII")
	}
	if !o.RateLimit.valid() || !o.KeyRateLimit.valid() || o.Timeout < 0 {
		return nil, errors.New("httpapi: Options holds a limit that is negative or not a number")
	}
	if name := o.ProviderName; name != "" && name != neutralProvider {
		if !isProviderName(name) {
			return nil, errors.New("httpapi: Options.ProviderName must be 1 to 40 of a-z, 0-9 and -, beginning with a letter or digit")
		}
		h.routes = append(slices.Clip(routes), ppanRoute(name))
	}
	for _, origin := range o.AllowedOrigins {
		if !isOrigin(origin) {
			return nil, errors.New("httpapi: Options.AllowedOrigins must hold exact origins such as https://shop.example")
		}
	}
	o.AllowedOrigins = slices.Clone(o.AllowedOrigins)

	if o.Authenticator == nil {
		o.Authenticator = APIKeys(v)
	}
	h.unauthorized = unauthorized.with(cmp.Or(o.Challenge, unauthorized.value))
	if _, ok := o.Authenticator.(apiKeys); !ok {
		h.unauthorized.message = "Valid credentials are required."
	}
	if err := o.completeClientAddr(); err != nil {
		return nil, err
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}

	if o.MaxForwards == 0 {
		o.MaxForwards = 256
	}
	if o.MaxForwards < minForwards {
		return nil, fmt.Errorf("httpapi: Options.MaxForwards must be at least %d", minForwards)
	}
	h.forwards, h.streams = newRoom(o.MaxForwards), newRoom(maxStreams)

	revocations := o.RateLimit
	if revocations.PerSecond == 0 {
		revocations = o.KeyRateLimit
	}
	h.entry = cardentry.NewHandler(o.AllowedOrigins)
	h.accounts = newLimiter[uuid.UUID](o.RateLimit)
	h.callers = newLimiter[caller](o.KeyRateLimit)
	h.revocations = newLimiter[accountKey](revocations)
	h.reads = newLimiter[sessionHash](sessionReads)
	h.unfailed = newLimiter[sessionHash](firstFailure)
	h.failures = newLimiter[netip.Addr](failedCompletions)
	h.strangers = newLimiter[netip.Addr](failedCompletions)
	return h, nil
}

type handler struct {
	vault        *cardvault.Vault
	audited      bool // the vault has an audit log
	opts         Options
	routes       []route
	accounts     *limiter[uuid.UUID]   // requests of an account
	callers      *limiter[caller]      // of an API key and all below it, or of another principal
	revocations  *limiter[accountKey]  // by an API key alone
	reads        *limiter[sessionHash] // of a session
	unfailed     *limiter[sessionHash] // completions of a session, until one fails
	failures     *limiter[netip.Addr]  // of sessions that have failed, by client
	strangers    *limiter[netip.Addr]  // of sessions that never were, by client
	unauthorized *failure              // with Options.Challenge
	entry        http.Handler          // the card-entry component
	forwards     *room                 // that are under way
	streams      *room                 // likewise
	endless      sync.Once             // a ResponseWriter without deadlines was logged
}

// An accountKey is an API key in an account.
type accountKey struct{ account, key uuid.UUID }

// A caller is the unit of rate limits: the first key of a chain, or a name, in an account,
// with one limit. Principals of the same chain with another limit have a bucket of their
// own, so that a narrow limit takes nothing from a wide one.
type caller struct {
	accountKey
	name  string
	limit RateLimit
}

// A sessionHash stands for the id of a session, which is a credential.
type sessionHash [sha256.Size]byte

// Values of headers that every answer has, shared so that they cost nothing.
var (
	jsonType   = []string{"application/json"}
	noStore    = []string{"no-store"}
	noSniff    = []string{"nosniff"}
	apiVersion = []string{"1.0"}
	beta       = []string{"beta"}
)

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	ctx := &deadline{Context: r.Context(), at: start.Add(h.timeout(r))}
	defer ctx.end()

	// The embedding server may have no deadlines. net/http ends these: the one for
	// reading when the body is read, both before the next request of the connection.
	rc := http.NewResponseController(w)
	late := rc.SetWriteDeadline(ctx.at.Add(time.Second))
	if r.ContentLength != 0 {
		// Also for a body that is not read: net/http drops it before it answers.
		late = cmp.Or(late, rc.SetReadDeadline(earliest(ctx.at, start.Add(bodyTimeout))))
	}
	if errors.Is(late, http.ErrNotSupported) {
		h.endless.Do(func() {
			h.opts.Logger.Error("the http.ResponseWriter has no deadlines, so a slow client holds a connection for as long as it likes: a middleware that wraps it needs Unwrap")
		})
	}

	requestID := r.Header.Get("X-Request-Id")
	if !leak.RequestID(requestID) {
		requestID = newRequestID()
	}
	header := w.Header()
	header["Cache-Control"] = noStore
	header["X-Content-Type-Options"] = noSniff
	header["X-Request-Id"] = []string{requestID}
	header["X-Api-Version"] = apiVersion

	b := pool.Get().(*buffers)
	defer b.free()
	c := &b.call
	*c = call{ctx: ctx, request: r, requestID: requestID, buffers: b, answer: b.answer[:0], contentType: jsonType, header: header, opts: &h.opts, unauthorized: h.unauthorized}
	defer func() {
		if c.leave != nil {
			c.leave()
		}
	}()
	err := h.serve(c)
	h.record(c, err)
	b.drop(r)

	var status int
	if c.component {
		recorder := &statusRecorder{w, http.StatusOK}
		h.entry.ServeHTTP(recorder, r)
		status = recorder.status
	} else {
		status = c.write(w, err)
	}

	// Written out while the deadline holds.
	_ = rc.Flush()
	h.log(c, status, time.Since(start), err)
}

// newRequestID returns a random UUID. Package uuid takes one more allocation.
func newRequestID() string {
	var id uuid.UUID
	rand.Read(id[:])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4
	return id.String()
}

// timeout returns how long the work on a request may take.
func (h *handler) timeout(r *http.Request) time.Duration {
	if h.opts.Forward != nil && r.URL.Path == "/forward" {
		return h.opts.Timeout + h.opts.Forward.Timeout()
	}
	return h.opts.Timeout
}

// write writes the answer to a call that ended with err, and returns its status.
func (c *call) write(w http.ResponseWriter, err error) (status int) {
	status = http.StatusOK
	if err != nil {
		f := failed(err)
		status = f.status
		c.answer = appendFailure(c.answer[:0], f)
		if f.header != "" {
			c.header.Set(f.header, f.value)
		}
	}
	c.buffers.answer = c.answer
	switch {
	case err == nil && c.lines != nil:
		return c.stream(w)
	case err == nil && c.file != nil:
		c.answer = c.file
	case c.opts.OmitAbsent:
		c.answer = omitNull(c.answer)
	}

	switch {
	case c.unchanged && len(c.answer) == 0:
		status = http.StatusNotModified
		w.WriteHeader(status)
	case len(c.answer) == 0:
		status = http.StatusNoContent
		w.WriteHeader(status)
	default:
		c.header["Content-Type"] = c.contentType
		c.header["Content-Length"] = []string{strconv.Itoa(len(c.answer))}
		w.WriteHeader(status)
		if c.request.Method != http.MethodHead {
			_, _ = w.Write(c.answer) // the client is gone if this fails
		}
	}
	return status
}

// A statusRecorder records the status of an answer.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (w *statusRecorder) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// log reports a call that was answered with status and ended with err.
func (h *handler) log(c *call, status int, took time.Duration, err error) {
	level := slog.LevelDebug
	err = cmp.Or(err, c.damaged)
	clientGone := errors.Is(err, context.Canceled) && c.request.Context().Err() != nil
	switch {
	case (status >= 500 || c.damaged != nil) && !clientGone:
		level = slog.LevelError
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		level = slog.LevelInfo
	}
	if !h.opts.Logger.Enabled(c.ctx, level) {
		return
	}

	method := c.request.Method
	if !slices.Contains(methods, method) {
		method = "?" // any word is a method
	}
	attrs := append(make([]slog.Attr, 0, 9),
		slog.String("method", method), slog.String("path", c.route.pattern()),
		slog.Int("status", status), slog.Duration("took", took),
		slog.String("request_id", c.requestID))
	if c.client.IsValid() {
		attrs = append(attrs, slog.String("address", c.address))
	}
	if p := c.principal; p != nil {
		attrs = append(attrs, slog.Any("account", p.Account.ID))
		if p.Key != nil {
			attrs = append(attrs, slog.Any("key_id", p.Key.ID))
		} else {
			attrs = append(attrs, slog.String("principal", p.Name))
		}
	}
	h.opts.Logger.LogAttrs(c.ctx, level, "request", append(attrs, slog.Any("error", err))...)
}
