package network

import "github.com/cardvault/cardvault/internal/enum"

// A Status is the state of the network token of a token.
type Status uint8

const (
	NotAvailable Status = iota // cannot be provisioned with the current configuration
	Pending                    // being provisioned
	Active                     // can be used
	Inactive                   // cannot be used now, such as while suspended
	Deleted                    // final
	Failed                     // provisioning failed
)

var statusNames = [...]string{
	"not_available", "pending", "active", "inactive", "deleted", "failed",
}

// String returns the name that answers use.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown"
}

// MarshalText returns what String does.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *Status) UnmarshalText(text []byte) error { return enum.Read(text, s, Status.String) }

// ParseStatus returns the status of a name that String gives.
func ParseStatus(name string) (Status, bool) {
	for s, n := range statusNames {
		if n == name {
			return Status(s), true
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

// UnmarshalText reads what MarshalText writes.
func (s *Source) UnmarshalText(text []byte) error { return enum.Read(text, s, Source.String) }
