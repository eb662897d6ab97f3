// Package template finds the placeholders in a request and puts values in their place, each
// encoded for where it stands. It reads a template once: values are never searched for
// placeholders.
package template

// A Name says what a placeholder stands for.
type Name uint8

// The names. Credential stands for all names of credentials that the operator holds.
const (
	AccountNumber Name = iota
	ExpiryMonth
	ExpiryYear
	ExpiryYY
	CardholderName
	SecurityCode
	NetworkToken
	NetworkTokenExpiryMonth
	NetworkTokenExpiryYear
	Cryptogram
	ECI
	Credential

	names // how many there are
)

// String returns the name as it stands in a placeholder.
func (n Name) String() string { return words[n].fixed }

// words are the texts of the names. The text that stands behind a random marker has letters
// alone, so that no encoder of a client changes it, and none is the beginning of another.
var words = [names]struct{ fixed, bare string }{
	AccountNumber:           {"account_number", "accountnumber"},
	ExpiryMonth:             {"expiry_month", "expirymonth"},
	ExpiryYear:              {"expiry_year", "expiryyear"},
	ExpiryYY:                {"expiry_yy", "expiryyy"},
	CardholderName:          {"cardholder_name", "cardholdername"},
	SecurityCode:            {"security_code", "securitycode"},
	NetworkToken:            {"network_token", "networktokennumber"},
	NetworkTokenExpiryMonth: {"network_token_expiry_month", "networktokenexpirymonth"},
	NetworkTokenExpiryYear:  {"network_token_expiry_year", "networktokenexpiryyear"},
	Cryptogram:              {"cryptogram", "cryptogram"},
	ECI:                     {"eci", "eci"},
	Credential:              {"destination", "destination"},
}

// named returns the name of a text, unless it is Credential.
func named(text []byte) (Name, bool) {
	for n := range Credential {
		if words[n].fixed == string(text) {
			return n, true
		}
	}
	return 0, false
}

// number reports whether n may be made a number of JSON.
func (n Name) number() bool {
	switch n {
	case ExpiryMonth, ExpiryYear, ExpiryYY, NetworkTokenExpiryMonth, NetworkTokenExpiryYear:
		return true
	}
	return false
}

// Names is a set of names.
type Names uint16

// Of returns the set of names.
func Of(list ...Name) (s Names) {
	for _, n := range list {
		s |= 1 << n
	}
	return s
}

// Any reports whether the sets share a name.
func (s Names) Any(of Names) bool { return s&of != 0 }
