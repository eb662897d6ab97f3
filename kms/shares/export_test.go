package shares

import (
	"bytes"
	"slices"

	"github.com/cardvault/cardvault/internal/hiding"
)

// Value returns the value of a share.
func Value(s Share) []byte { return bytes.Clone(hiding.Of(s.hidden)[setEnd:valueEnd]) }

// Forge returns a share with another value.
func Forge(s Share, value []byte) Share {
	b := slices.Concat(hiding.Of(s.hidden)[:setEnd], value)
	return Share{hiding.New(append(b, checksum(b)...))}
}

// Relabel returns a share with another byte in its label.
func Relabel(s Share, at, to byte) Share {
	b := bytes.Clone(hiding.Of(s.hidden)[:valueEnd])
	b[at] = to
	return Share{hiding.New(append(b, checksum(b)...))}
}
