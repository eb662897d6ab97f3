package addresses_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/addresses"
)

func ranges(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, addresses.Parse(t))
	}
	return all
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.0/24": "192.0.2.0/24", "192.0.2.7": "192.0.2.7/32", "2001:db8::/32": "2001:db8::/32", "2001:DB8::1": "2001:db8::1/128",
		"0.0.0.0/0": "0.0.0.0/0", "::/0": "::/0", "192.0.2.1/24": "192.0.2.1/24",
		"": "", "x": "", "192.0.2.0/33": "", "192.0.2.0/-1": "", "192.0.2.0/024": "", "192.0.2": "", "192.168.01.1": "", "fe80::1%eth0": "", "fe80::%eth0/64": "",
		"192.0.2.0/24 ": "", "192.0.2.0/255.255.255.0": "", "localhost": "", "192.0.2.0/24,10.0.0.0/8": "", strings.Repeat("1", 1<<20): "",
	} {
		got := addresses.Parse(text)
		if got.IsValid() != (want != "") || got.IsValid() && got.String() != want {
			t.Errorf("%.40q is %v, want %q", text, got, want)
		}
	}
}

func TestTidy(t *testing.T) {
	got, broken := addresses.Tidy(ranges("192.0.2.7", "10.0.0.0/8", "2001:db8::/32", "192.0.2.7/32", "::/0"))
	if want := ranges("10.0.0.0/8", "192.0.2.7", "::/0", "2001:db8::/32"); broken != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, broken)
	}
	if got, broken := addresses.Tidy(nil); len(got) != 0 || broken != nil {
		t.Errorf("none: %v, %v", got, broken)
	}
	for _, text := range []string{"", "192.0.2.1/24", "2001:db8::1/64", "::ffff:192.0.2.7", "::ffff:192.0.2.0/120", "::ffff:0:0/96"} {
		if got, broken := addresses.Tidy(ranges("10.0.0.0/8", text)); broken == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
	if _, broken := addresses.Tidy([]netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 40)}); broken == nil {
		t.Error("a length of 40 bits was taken")
	}
	many := slices.Repeat(ranges("10.0.0.0/8"), addresses.Max)
	if _, broken := addresses.Tidy(many); broken != nil {
		t.Errorf("%d ranges: %v", len(many), broken)
	}
	if _, broken := addresses.Tidy(append(many, many[0])); broken == nil {
		t.Errorf("%d ranges were taken", len(many)+1)
	}
}

// A key below another never gains an address.
func TestWithin(t *testing.T) {
	outer := ranges("10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32")
	for _, inner := range [][]netip.Prefix{outer, ranges("10.1.0.0/16"), ranges("10.0.0.0/8", "192.0.2.255"), ranges("2001:db8:1::/48")} {
		if !addresses.Within(inner, outer) {
			t.Errorf("%v is not within %v", inner, outer)
		}
	}
	for _, inner := range [][]netip.Prefix{nil, ranges("0.0.0.0/0"), ranges("10.0.0.0/7"), ranges("::/0"), ranges("2001:db8::/31"), ranges("10.0.0.0/8", "11.0.0.0/8"),
		ranges("192.0.2.0/23"), ranges("::a00:0/104"), ranges("::/1")} {
		if addresses.Within(inner, outer) {
			t.Errorf("%v is within %v", inner, outer)
		}
	}
	if !addresses.Within(nil, nil) || !addresses.Within(outer, nil) {
		t.Error("no ranges bound something")
	}
}

func TestAdmit(t *testing.T) {
	in := ranges("192.0.2.0/24", "2001:db8::/32", "fe80::/10")
	for _, a := range []string{"192.0.2.0", "192.0.2.255", "::ffff:192.0.2.7", "2001:db8::7", "fe80::1"} {
		if !addresses.Admit(in, a) {
			t.Errorf("%s is outside", a)
		}
	}
	for _, a := range []string{"", "x", "192.0.3.0", "192.0.2.7:443", "192.0.2.7, 10.0.0.1", "::192.0.2.7", "2001:db9::", "fe80::1%eth0", "2001:db8::7%1", "64:ff9b::192.0.2.7"} {
		if addresses.Admit(in, a) {
			t.Errorf("%s is inside", a)
		}
	}
	if !addresses.Admit(nil, "") || !addresses.Admit(nil, "x") {
		t.Error("a key without ranges has some")
	}
}
