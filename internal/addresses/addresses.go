// Package addresses holds the ranges of IP addresses from which a key may be used.
package addresses

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/invalid"
)

// Max bounds the ranges of a key.
const Max = 32

// Parse reads a range in CIDR notation, or a single address. It returns the zero Prefix for
// another text.
func Parse[T ~string | ~[]byte](text T) netip.Prefix {
	if len(text) > len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255/128") {
		return netip.Prefix{}
	}
	s := string(text)
	if strings.ContainsRune(s, '/') {
		p, _ := netip.ParsePrefix(s)
		return p
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, a.BitLen())
}

// Tidy returns ranges in their order, each once. A range with bits behind its length is
// refused: it was meant to be another. So is an IPv4 address written as IPv6: such
// addresses are compared as IPv4.
func Tidy(ranges []netip.Prefix) ([]netip.Prefix, *rule.Broken) {
	if len(ranges) > Max {
		return nil, &rule.Broken{Code: invalid.TooLong, Message: fmt.Sprintf("must have at most %d ranges", Max)}
	}
	for _, p := range ranges {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			return nil, &rule.Broken{Code: invalid.Format, Message: "must be ranges of IPv4 or IPv6 addresses without bits beyond their length, such as 192.0.2.0/24"}
		}
	}
	tidy := slices.SortedFunc(slices.Values(ranges), netip.Prefix.Compare)
	return slices.Compact(tidy), nil
}

// Within reports whether each range lies in one of outer, or outer is empty and bounds
// nothing. No ranges at all are everywhere.
func Within(ranges, outer []netip.Prefix) bool {
	if len(outer) == 0 {
		return true
	}
	return len(ranges) > 0 && !slices.ContainsFunc(ranges, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(outer, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
	})
}

// Admit reports whether the text of an address lies in one of the ranges. Without ranges it
// is true. Text other than an address lies in none. Nor does an address with a zone: a zone
// does not name the network of the caller.
func Admit(ranges []netip.Prefix, text string) bool {
	if len(ranges) == 0 {
		return true
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return false
	}
	a = a.Unmap()
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}
