package cardvault

import "time"

// A NetworkTokenStatus is the state of the network token of a token:
// chapter 3.2 of the interface document.
type NetworkTokenStatus uint8

const (
	NetworkTokenNotAvailable NetworkTokenStatus = iota // cannot be provisioned with the current configuration
	NetworkTokenPending                                // being provisioned
	NetworkTokenActive                                 // can be used
	NetworkTokenInactive                               // cannot be used now, such as while suspended
	NetworkTokenDeleted                                // final
	NetworkTokenFailed                                 // provisioning failed
	networkTokenStatuses     = 6
)

var networkTokenStatusNames = [networkTokenStatuses]string{
	"not_available", "pending", "active", "inactive", "deleted", "failed",
}

// String returns the name that the interface document uses.
func (s NetworkTokenStatus) String() string {
	if int(s) < len(networkTokenStatusNames) {
		return networkTokenStatusNames[s]
	}
	return "unknown"
}

// MarshalText returns what String does.
func (s NetworkTokenStatus) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// ParseNetworkTokenStatus returns the status of a name that String gives.
func ParseNetworkTokenStatus(name string) (NetworkTokenStatus, bool) {
	for s, n := range networkTokenStatusNames {
		if n == name {
			return NetworkTokenStatus(s), true
		}
	}
	return 0, false
}

// A Source says who caused a failure.
type Source uint8

const (
	SourceScheme        Source = iota + 1 // the network or the issuer judged this card
	SourceConfiguration                   // the request never had a chance because of the set-up
)

// String returns "scheme" or "configuration".
func (s Source) String() string {
	switch s {
	case SourceScheme:
		return "scheme"
	case SourceConfiguration:
		return "configuration"
	}
	return "unknown"
}

// MarshalText returns what String does.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// A Reason explains a network token status other than active and pending.
type Reason struct {
	Source     Source
	Code       string // from a closed list, such as "no_network"
	Message    string // for humans
	Retryable  bool
	SchemeCode string // what the network said, "" if it said nothing
	OccurredAt time.Time
}

// reasonMessages has a text for each code that the vault itself gives.
var reasonMessages = map[string]string{
	"ephemeral_token": "A token that expires gets no network token.",
	"card_expired":    "The card has expired.",
	"no_network":      "No network is configured.",
}

// unavailableReason says why a new token of a card gets no network token. The
// order is that of the decisions, chapter 6.
func unavailableReason(t *Token) *Reason {
	code := "no_network"
	switch {
	case !t.ExpiresAt.IsZero():
		code = "ephemeral_token"
	case t.Expiry.Expired(t.CreatedAt):
		code = "card_expired"
	}
	return &Reason{
		Source:     SourceConfiguration,
		Code:       code,
		Message:    reasonMessages[code],
		OccurredAt: t.CreatedAt,
	}
}
