package enum_test

import (
	"encoding"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/ppan"
)

type enumeration interface {
	encoding.TextMarshaler
	String() string
}

// names checks that each number from first to last has a name, by which it is read again,
// and that the next has none.
func names[T ~uint8, P interface {
	*T
	encoding.TextUnmarshaler
}](t *testing.T, first, last T, text func(T) enumeration) {
	t.Helper()
	seen := map[string]bool{}
	for n := first; n <= last; n++ {
		name, err := text(n).MarshalText()
		if s := string(name); err != nil || s == "" || s == "unknown" || s != text(n).String() || seen[s] {
			t.Errorf("%T %d is called %q, %v", n, n, name, err)
		}
		seen[string(name)] = true

		var read T
		if err := P(&read).UnmarshalText(name); err != nil || read != n {
			t.Errorf("%T: %q is read as %d, %v, want %d", n, name, read, err, n)
		}
	}

	for _, text := range []string{"unknown", "", "4242424242424242"} {
		read := last
		if err := P(&read).UnmarshalText([]byte(text)); err == nil || read != last {
			t.Errorf("%T: %q is read as %d, %v", last, text, read, err)
		}
	}
}

func TestNames(t *testing.T) {
	names(t, cardvault.Live, cardvault.Sandbox, func(m cardvault.Mode) enumeration { return m })
	names(t, cardvault.StatusActive, cardvault.StatusInvalid, func(s cardvault.Status) enumeration { return s })
	names(t, cardvault.SessionOpen, cardvault.SessionFailed, func(s cardvault.SessionState) enumeration { return s })
	names(t, cardvault.DeliveryPending, cardvault.DeliveryFailed, func(s cardvault.DeliveryStatus) enumeration { return s })
	names(t, card.VISA, card.UnionPay, func(s card.Scheme) enumeration { return s })
	names(t, idv.None, idv.Skipped, func(i idv.Identification) enumeration { return i })
	names(t, idv.Pending, idv.Failed, func(s idv.State) enumeration { return s })
	names(t, network.NotAvailable, network.Failed, func(s network.Status) enumeration { return s })
	names(t, network.SourceScheme, network.SourceConfiguration, func(s network.Source) enumeration { return s })
	names(t, ppan.Valid, ppan.Error, func(s ppan.Status) enumeration { return s })
}

// TestZero: a zero says nothing where nothing is meant.
func TestZero(t *testing.T) {
	for _, zero := range []enumeration{
		cardvault.Status(0), cardvault.SessionState(0), cardvault.DeliveryStatus(0), idv.State(0), network.Source(0), ppan.Status(0),
	} {
		if zero.String() != "unknown" {
			t.Errorf("a zero %T is called %q", zero, zero)
		}
	}
}
