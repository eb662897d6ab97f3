package cardvault

import (
	"time"

	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/network"
)

// How many owners and states package network has. Their numbers are stored.
const (
	ownerCount           = network.OwnerCardholder
	networkTokenStatuses = network.Failed + 1
)

// A Reason explains a network token status other than active and pending.
type Reason struct {
	Source     network.Source `wire:"source"`
	Code       network.Code   `wire:"code"`
	Message    string         `wire:"message"` // for humans
	Retryable  bool           `wire:"retryable"`
	SchemeCode string         `wire:"scheme_code"` // the network's own code, "" without one
	OccurredAt time.Time      `wire:"occurred_at"`
}

// codeOf returns the code of a refusal and the network's own. A code outside those of the
// source is replaced with scheme_unavailable or invalid_request.
func codeOf(e *network.Error, source network.Source) (code network.Code, schemeCode string) {
	code, schemeCode = e.Code, e.SchemeCode
	if s := network.SourceOf(code); s == 0 || s != source {
		if schemeCode == "" {
			schemeCode = string(code)
		}
		code = network.CodeSchemeUnavailable
		if source == network.SourceConfiguration {
			code = network.CodeInvalidRequest
		}
	}
	return code, schemeText(schemeCode)
}

// schemeText returns a code of the network as it may be kept.
func schemeText(code string) string {
	if checkText("SchemeCode", []byte(code)) != nil || leak.MayHoldPAN(code) {
		return ""
	}
	return code
}
