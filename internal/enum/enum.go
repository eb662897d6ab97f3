// Package enum writes and reads the names of enumerations.
package enum

import "errors"

// unknown is what the numbers without a name are called.
const unknown = "unknown"

// Names are the names of an enumeration, by number.
type Names []string

// Of returns the name of a number.
func (all Names) Of(n uint8) string {
	if int(n) < len(all) && all[n] != "" {
		return all[n]
	}
	return unknown
}

// Read sets the number that text names, by the function that returns the name of a number.
// Its error does not hold the text.
func Read[T ~uint8](text []byte, to *T, name func(T) string) error {
	for n := range 256 {
		if s := name(T(n)); s == string(text) && s != unknown {
			*to = T(n)
			return nil
		}
	}
	return errors.New("cardvault: text is not a name of the enumeration")
}
