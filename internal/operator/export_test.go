package operator

import (
	"log/slog"
	"net/http"
)

// NewHandler returns what answers calls for a vault of a test.
func NewHandler(v Vault, log *slog.Logger) http.Handler { return newHandler(v, log) }

// NewClient returns a Client on the connections that a test makes.
var NewClient = newClient

// MostCalls are answered at a time.
const MostCalls = mostCalls
