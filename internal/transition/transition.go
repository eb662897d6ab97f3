// Package transition says how a network token moves from state to state.
package transition

import "github.com/cardvault/cardvault/network"

// A Trigger is what can move a network token to another state.
type Trigger uint8

const (
	Requested    Trigger = iota // a caller asks for it, and the configuration allows it
	Issued                      // the network has a usable token
	NotAvailable                // the network refuses by configuration
	Refused                     // a final refusal, or transient failures used up
	Suspended                   // by one more owner
	Resumed                     // and no suspension is left
	Deleted                     // by issuer or scheme
	Invalidated                 // the instrument is dead
	CardChanged                 // renewed or replaced
)

// Next returns the state that follows s, and whether the trigger means something
// in s. If not, s stays: a caller is refused, and news of the network are dropped.
func Next(s network.Status, t Trigger) (next network.Status, ok bool) {
	const (
		none     = network.NotAvailable
		waiting  = network.Pending
		active   = network.Active
		inactive = network.Inactive
		gone     = network.Deleted
		failed   = network.Failed
	)

	switch t {
	case Requested:
		switch s {
		case none, failed:
			return waiting, true
		case waiting, active:
			return s, true
		}
	case Issued:
		switch s {
		case waiting, failed, active:
			return active, true
		}
	case NotAvailable:
		if s == waiting {
			return none, true
		}
	case Refused:
		if s == waiting {
			return failed, true
		}
	case Suspended:
		switch s {
		case active, inactive:
			return inactive, true
		}
	case Resumed:
		switch s {
		case active, inactive:
			return active, true
		}
	case Deleted:
		switch s {
		case waiting, active, inactive:
			return gone, true
		}
	case Invalidated:
		return gone, s != gone
	case CardChanged:
		switch s {
		case active, inactive:
			return s, true
		}
	}
	return s, false
}
