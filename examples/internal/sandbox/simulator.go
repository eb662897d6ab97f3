package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/updater"
	"github.com/google/uuid"
)

// A simulator answers POST /simulator/tokens/{id}/{action}: it does to a card of
// the caller's account what its scheme would, or has the account updater report
// something about it. Any API key will do.
type simulator struct {
	callers httpapi.Authenticator
	vault   *cardvault.Vault
	control *simnet.Control
	actions map[string]simulation
	log     *slog.Logger
}

func newSimulator(callers httpapi.Authenticator, v *cardvault.Vault, c *simnet.Control, log *slog.Logger) *simulator {
	s := &simulator{callers, v, c, map[string]simulation{
		"suspend":    atScheme(c.Suspend),
		"resume":     atScheme(c.Resume),
		"delete":     atScheme(c.Delete),
		"invalidate": atScheme(c.Invalidate),
		"replace":    atScheme(c.Replace),
		"renew":      atScheme(c.Renew),
	}, log}
	for k := updater.Updated; k <= updater.NoMatch; k++ {
		s.actions["report/"+k.String()] = func(ctx context.Context, v *cardvault.Vault, t *cardvault.Token) error {
			return s.report(ctx, v, t, k)
		}
	}
	return s
}

// A simulation happens to the card of a token, in the account of the vault.
type simulation func(context.Context, *cardvault.Vault, *cardvault.Token) error

// atScheme returns what a scheme does to a network token, by the id of its token.
func atScheme(do func(context.Context, uuid.UUID) error) simulation {
	return func(ctx context.Context, _ *cardvault.Vault, t *cardvault.Token) error { return do(ctx, t.ID) }
}

// reportPurpose is the purpose for which the simulator uses cards that have no payment
// account reference.
const reportPurpose = "account-updater-simulator"

// report has the account updater report something about a card. A card whose number is stale
// has a payment account reference: it had a network token.
func (s *simulator) report(ctx context.Context, v *cardvault.Vault, t *cardvault.Token, k updater.Kind) error {
	if t.PaymentAccountReference != "" {
		return s.control.ReportAccount(ctx, t.PaymentAccountReference, k)
	}
	return v.Use(ctx, t.ID, reportPurpose, func(ctx context.Context, c *cardvault.UsedCard) error {
		return s.control.Report(ctx, c.PAN, k)
	})
}

func (s *simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Api-Version", "1.0")
	requestID := r.Header.Get("X-Request-Id")
	if !leak.RequestID(requestID) {
		requestID = uuid.NewString()
	}
	h.Set("X-Request-Id", requestID)

	err := s.act(r)
	var f *failure
	switch {
	case err == nil:
		w.WriteHeader(http.StatusAccepted)
		return
	case errors.As(err, &f):
	case errors.Is(err, cardvault.ErrUnauthenticated):
		f = unauthorized
	case errors.Is(err, cardvault.ErrNotFound):
		f = notFound
	case errors.Is(err, simnet.ErrUnknownToken):
		f = noNetworkToken
	case errors.Is(err, cardvault.ErrTokenInvalidated):
		f = tokenInvalidated
	case errors.Is(err, cardvault.ErrCardDataStale):
		f = cardDataStale
	default:
		s.log.Error("simulator", "request_id", requestID, "error", err)
		f = internalError
	}

	f.write(w)
}

// act checks a request in the order of the REST API and performs it.
func (s *simulator) act(r *http.Request) error {
	path, ok := strings.CutPrefix(r.URL.Path, "/simulator/tokens/")
	token, action, _ := strings.Cut(path, "/")
	do := s.actions[action]
	if !ok || token == "" || do == nil || r.URL.RawPath != "" {
		return notFound
	}
	if r.Method != http.MethodPost {
		return methodNotAllowed
	}

	p, err := s.callers.Authenticate(r)
	if err != nil {
		return err
	}

	id, _ := parseID(token) // if malformed, zero, which no token has
	v := s.vault.In(p.Account.ID)
	t, err := v.Get(r.Context(), id)
	if err != nil {
		return err
	}
	return do(r.Context(), v, t)
}

// challenges are the pages on which shoppers confirm or refuse an identification: GET and
// POST /simulator/identifications/{reference}. Any shop may frame them. The reference is
// enough to answer.
type challenges struct {
	network *simnet.Network
	log     *slog.Logger
	mux     http.ServeMux
}

func newChallenges(n *simnet.Network, log *slog.Logger) *challenges {
	const at = "/simulator/identifications/"
	c := &challenges{network: n, log: log}
	for _, name := range []string{"challenge.css", "icon.svg"} {
		c.mux.HandleFunc("GET "+at+name, pageFile(pageFiles, "page/"+name))
	}
	c.mux.HandleFunc("GET "+at+"{reference}", c.show)
	c.mux.HandleFunc("POST "+at+"{reference}", c.answer)
	c.mux.HandleFunc(at, func(w http.ResponseWriter, _ *http.Request) { notFound.write(w) })
	return c
}

func (c *challenges) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'")
	h.Set("Cross-Origin-Embedder-Policy", "require-corp") // for pages that demand it
	h.Set("Cross-Origin-Resource-Policy", "cross-origin")
	h.Set("Referrer-Policy", "same-origin") // the form needs its origin
	h.Set("X-Content-Type-Options", "nosniff")
	switch {
	case foreign(r.Host):
		foreignHost.write(w)
	case r.Method == http.MethodPost && !sameOrigin(r):
		crossOrigin.write(w)
	default:
		c.mux.ServeHTTP(w, r)
	}
}

func (c *challenges) show(w http.ResponseWriter, r *http.Request) {
	state, err := c.network.Control().Identification(r.Context(), r.PathValue("reference"))
	if err != nil {
		c.fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if err := pageTemplates.ExecuteTemplate(w, "challenge.html", state.ChallengeURL != ""); err != nil {
		c.log.Debug("simulator", "error", err) // the client is gone
	}
}

var noAnswer = &failure{422, "VALIDATION_FAILED", "The answer must be confirm or refuse.", "", ""}

func (c *challenges) answer(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 1<<10)
	answer := r.PostFormValue("answer")
	if answer != "confirm" && answer != "refuse" {
		noAnswer.write(w)
		return
	}
	if err := c.network.Control().EndIdentification(r.Context(), r.PathValue("reference"), answer == "confirm"); err != nil {
		c.fail(w, err)
		return
	}
	http.Redirect(w, r, r.URL.Path, http.StatusSeeOther)
}

func (c *challenges) fail(w http.ResponseWriter, err error) {
	if errors.Is(err, simnet.ErrUnknownIdentification) {
		notFound.write(w)
		return
	}
	c.log.Error("simulator", "error", err)
	internalError.write(w)
}

// parseID parses the canonical form alone, in either case: uuid.Parse takes others.
func parseID(s string) (uuid.UUID, bool) {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != 36 {
		return uuid.Nil, false
	}
	return id, true
}

// A failure has the form of the REST API's.
type failure struct {
	Status     int    `json:"status,string"`
	Classifier string `json:"classifier"`
	Message    string `json:"message"`

	header, value string // one more response header, if set
}

var (
	unauthorized     = &failure{401, "UNAUTHORIZED", "The header x-api-key must hold a valid API key.", "WWW-Authenticate", `ApiKey realm="cardvault"`}
	notFound         = &failure{404, "NOT_FOUND", "There is no such resource.", "", ""}
	methodNotAllowed = &failure{405, "METHOD_NOT_ALLOWED", "The resource does not support this method.", "Allow", http.MethodPost}
	noNetworkToken   = &failure{409, "NETWORK_TOKEN_STATE_CONFLICT", "The network has no network token for this card.", "", ""}
	tokenInvalidated = &failure{409, "TOKEN_INVALIDATED", "The scheme has invalidated the card.", "", ""}
	cardDataStale    = &failure{409, "CARD_DATA_STALE", "The scheme has replaced the stored card number.", "", ""}
	internalError    = &failure{500, "INTERNAL_ERROR", "Something went wrong.", "", ""}
)

func (f *failure) Error() string { return f.Classifier }

func (f *failure) write(w http.ResponseWriter) {
	body, err := json.Marshal(f)
	if err != nil {
		panic(err) // it is a number and two texts
	}
	h := w.Header()
	if f.header != "" {
		h.Set(f.header, f.value)
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(f.Status)
	_, _ = w.Write(body) // the client is gone if this fails
}
