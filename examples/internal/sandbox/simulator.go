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
	"github.com/google/uuid"
)

// A simulator answers POST /simulator/tokens/{id}/{action}: it does to a card of
// the caller's account what its scheme would. Any API key will do.
type simulator struct {
	callers httpapi.Authenticator
	vault   *cardvault.Vault
	actions map[string]func(context.Context, uuid.UUID) error
	log     *slog.Logger
}

func newSimulator(callers httpapi.Authenticator, v *cardvault.Vault, c *simnet.Control, log *slog.Logger) *simulator {
	return &simulator{callers, v, map[string]func(context.Context, uuid.UUID) error{
		"suspend":    c.Suspend,
		"resume":     c.Resume,
		"delete":     c.Delete,
		"invalidate": c.Invalidate,
		"replace":    c.Replace,
		"renew":      c.Renew,
	}, log}
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
	if _, err := s.vault.In(p.Account.ID).Get(r.Context(), id); err != nil {
		return err
	}
	return do(r.Context(), id)
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
