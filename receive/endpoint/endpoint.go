// Package endpoint is the receiver of a webhook as an http.Handler.
package endpoint

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/cardvault/cardvault/receive"
)

// New returns the handler of a webhook with its secrets: one, or several during a rotation.
// It reads at most [receive.MaxBody], verifies the delivery, calls take with the event, and
// answers
//
//	204 once take has returned nil
//	500 if take has returned an error: the vault delivers the event again
//	400, 405 or 413 to a request that is not from the vault; take is not called
//
// take is called concurrently, and again with the same Event.ID when an event arrives
// again. It ignores types that it does not know, and has about 15 seconds: then the vault
// closes the connection, which ends its context, and delivers the event again. Its errors
// are not reported anywhere, so it logs them itself. The answers hold nothing but a status.
//
// The error is receive.ErrSecret. Serve the handler with http.Server.ReadTimeout, which ends
// bodies that stall.
func New(take func(ctx context.Context, e *receive.Event) error, secrets ...receive.WebhookSecret) (http.Handler, error) {
	// A delivery without anything shows whether there are good secrets.
	if _, err := receive.Verify(nil, nil, secrets...); errors.Is(err, receive.ErrSecret) {
		return nil, err
	}

	h := &handler{take: take} // with copies: the caller may wipe its secrets
	for _, secret := range secrets {
		secret.Expose(func(text []byte) { h.secrets = append(h.secrets, receive.NewWebhookSecret(text)) })
	}
	return h, nil
}

type handler struct {
	take    func(context.Context, *receive.Event) error
	secrets []receive.WebhookSecret
}

// ServeHTTP takes a delivery.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { w.WriteHeader(h.serve(w, r)) }

// serve returns the status of the answer.
func (h *handler) serve(w http.ResponseWriter, r *http.Request) int {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return http.StatusMethodNotAllowed
	}

	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, receive.MaxBody))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return http.StatusRequestEntityTooLarge
	}
	if err != nil {
		return http.StatusBadRequest
	}

	e, err := receive.Verify(r.Header, body, h.secrets...)
	if err != nil {
		return http.StatusBadRequest
	}
	if err := h.take(r.Context(), e); err != nil {
		return http.StatusInternalServerError
	}
	return http.StatusNoContent
}
