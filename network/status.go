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

// String returns the name that answers use.
func (s Status) String() string { return statusNames.Of(uint8(s)) }

var statusNames = enum.Names{
	NotAvailable: "not_available", Pending: "pending", Active: "active", Inactive: "inactive", Deleted: "deleted", Failed: "failed",
}

// MarshalText returns the name, or an error for a number without one.
func (s Status) MarshalText() ([]byte, error) { return enum.Text(s, Status.String) }

// UnmarshalText reads what MarshalText writes.
func (s *Status) UnmarshalText(text []byte) error { return enum.Read(text, s, Status.String) }

// A Source says who caused a failure.
type Source uint8

const (
	SourceScheme        Source = iota + 1 // the network or the issuer decided about this card
	SourceConfiguration                   // the set-up does not allow the request
)

// String returns "scheme" or "configuration".
func (s Source) String() string { return sourceNames.Of(uint8(s)) }

var sourceNames = enum.Names{SourceScheme: "scheme", SourceConfiguration: "configuration"}

// MarshalText returns the name, nothing for zero, and an error for a number without a name.
func (s Source) MarshalText() ([]byte, error) { return enum.Text(s, Source.String) }

// UnmarshalText reads what MarshalText writes.
func (s *Source) UnmarshalText(text []byte) error { return enum.Read(text, s, Source.String) }
