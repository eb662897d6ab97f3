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

// Text returns the name of a number, for Read. It returns no text for a zero without a name,
// and an error for another number without one.
func Text[T ~uint8](n T, name func(T) string) ([]byte, error) {
	text := []byte(name(n))
	if n == 0 && string(text) == unknown {
		text = nil
	}
	var read T
	if err := Read(text, &read, name); err != nil || read != n {
		return nil, errors.New("cardvault: number has no name in the enumeration")
	}
	return text, nil
}

// Read sets the number that text names, by the function that returns the name of a number:
// zero without text, unless zero has a name. Its error does not hold the text.
func Read[T ~uint8](text []byte, to *T, name func(T) string) error {
	if len(text) == 0 && name(0) == unknown {
		*to = 0
		return nil
	}
	for n := range 256 {
		if s := name(T(n)); s == string(text) && s != unknown {
			*to = T(n)
			return nil
		}
	}
	return errors.New("cardvault: text is not a name of the enumeration")
}
