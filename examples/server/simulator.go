package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/simnet"
	"github.com/google/uuid"
)

// A simulator answers POST /simulator/tokens/{id}/{action}: it does to a card of
// the caller's account what its scheme would. Any API key will do.
type simulator struct {
	vault   *cardvault.Vault
	actions map[string]func(context.Context, uuid.UUID) error
	log     *slog.Logger
}

func newSimulator(v *cardvault.Vault, c *simnet.Control, log *slog.Logger) *simulator {
	return &simulator{v, map[string]func(context.Context, uuid.UUID) error{
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
	requestID, ok := parseID(r.Header.Get("X-Request-Id"))
	if !ok {
		requestID = uuid.New()
	}
	h.Set("X-Request-Id", requestID.String())

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
	if f.header != "" {
		h.Set(f.header, f.value)
	}
	body, err := json.Marshal(f)
	if err != nil {
		panic(err) // it is a number and two texts
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(f.Status)
	_, _ = w.Write(body) // the client is gone if this fails
}

// act checks a request in the order of the REST surface and does what it asks for.
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
	keys := r.Header["X-Api-Key"]
	if len(keys) != 1 {
		return unauthorized
	}
	p, err := s.vault.Authenticate(r.Context(), keys[0])
	if err != nil {
		return err
	}
	id, _ := parseID(token) // zero, which no token has, if it is none
	if _, err := s.vault.In(p.Account.ID).Get(r.Context(), id); err != nil {
		return err
	}
	return do(r.Context(), id)
}

// parseID parses the canonical form alone: uuid.Parse takes others.
func parseID(s string) (uuid.UUID, bool) {
	id, err := uuid.Parse(s)
	if err != nil || id.String() != s {
		return uuid.Nil, false
	}
	return id, true
}

// A failure has the form of those of the REST surface.
type failure struct {
	Status     int    `json:"status,string"`
	Classifier string `json:"classifier"`
	Message    string `json:"message"`

	header, value string // one more response header, if set
}

var (
	unauthorized     = &failure{401, "UNAUTHORIZED", "A valid API key is needed.", "WWW-Authenticate", `ApiKey realm="cardvault"`}
	notFound         = &failure{404, "NOT_FOUND", "There is no such resource.", "", ""}
	methodNotAllowed = &failure{405, "METHOD_NOT_ALLOWED", "The resource does not have this method.", "Allow", http.MethodPost}
	noNetworkToken   = &failure{409, "NETWORK_TOKEN_STATE_CONFLICT", "The network has no network token of this card.", "", ""}
	internalError    = &failure{500, "INTERNAL_ERROR", "Something went wrong.", "", ""}
)

func (f *failure) Error() string { return f.Classifier }
