package enum_test

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
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

// names checks that each number from first to last has a name, and that the name is read
// back as the number. The next number must have none.
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

	beyond := last + 1
	if name, err := text(beyond).MarshalText(); err == nil {
		t.Errorf("%T %d is called %q", beyond, beyond, name)
	}

	for _, text := range []string{"unknown", "4242424242424242"} {
		read := last
		if err := P(&read).UnmarshalText([]byte(text)); err == nil || read != last {
			t.Errorf("%T: %q is read as %d, %v", last, text, read, err)
		}
	}
}

func TestNames(t *testing.T) {
	names(t, cardvault.Live, cardvault.Sandbox, func(m cardvault.Mode) enumeration { return m })
	names(t, cardvault.StatusActive, cardvault.StatusInvalid, func(s cardvault.Status) enumeration { return s })
	names(t, cardvault.InitiatorCustomer, cardvault.InitiatorMerchant, func(i cardvault.Initiator) enumeration { return i })
	names(t, cardvault.SessionOpen, cardvault.SessionFailed, func(s cardvault.SessionState) enumeration { return s })
	names(t, cardvault.DeliveryPending, cardvault.DeliveryFailed, func(s cardvault.DeliveryStatus) enumeration { return s })
	names(t, card.VISA, card.UnionPay, func(s card.Scheme) enumeration { return s })
	names(t, idv.None, idv.Skipped, func(i idv.Identification) enumeration { return i })
	names(t, idv.Pending, idv.Failed, func(s idv.State) enumeration { return s })
	names(t, network.NotAvailable, network.Failed, func(s network.Status) enumeration { return s })
	names(t, network.SourceScheme, network.SourceConfiguration, func(s network.Source) enumeration { return s })
	names(t, network.OwnerIssuer, network.OwnerCardholder, func(o network.Owner) enumeration { return o })
	names(t, network.NoticeActivated, network.NoticeArtChanged, func(k network.NoticeKind) enumeration { return k })
	names(t, ppan.Valid, ppan.Error, func(s ppan.Status) enumeration { return s })
}

// TestZero: a zero is printed as unknown, and JSON preserves it.
func TestZero(t *testing.T) {
	type all struct {
		Status   cardvault.Status
		State    cardvault.SessionState
		Delivery cardvault.DeliveryStatus
		IDV      idv.State
		Source   network.Source
		Owner    network.Owner
		Notice   network.NoticeKind
		PPAN     ppan.Status
	}
	var zero all
	for v := range reflect.ValueOf(zero).NumField() {
		if v := reflect.ValueOf(zero).Field(v).Interface(); fmt.Sprint(v) != "unknown" {
			t.Errorf("a zero %T is called %q", v, v)
		}
	}

	text, err := json.Marshal(zero)
	read := all{cardvault.StatusInvalid, cardvault.SessionFailed, cardvault.DeliveryFailed, idv.Failed, network.SourceScheme, network.OwnerScheme, network.NoticeResumed, ppan.Error}
	if err != nil || json.Unmarshal(text, &read) != nil || read != zero {
		t.Errorf("%s, %v is read as %+v", text, err, read)
	}

	for _, named := range []encoding.TextUnmarshaler{new(cardvault.Mode), new(card.Scheme), new(idv.Identification), new(network.Status)} {
		if named.UnmarshalText(nil) == nil {
			t.Errorf("empty text is read as %v", named)
		}
	}
}

func TestOwners(t *testing.T) {
	for n := range network.Owners(1 << 3) {
		var read network.Owners
		if text, err := n.MarshalText(); err != nil || string(text) != n.String() || read.UnmarshalText(text) != nil || read != n {
			t.Errorf("%03b is %q, %v, and read as %03b", n, text, err, read)
		}
	}
	if got := network.OwnersOf(network.OwnerIssuer, network.OwnerCardholder); got != 0b101 || got.String() != "issuer cardholder" || got.Has(network.OwnerScheme) || got.Has(0) {
		t.Errorf("issuer and cardholder are %03b, %v", got, got)
	}

	read := network.Owners(1)
	if _, err := network.Owners(8).MarshalText(); err == nil || read.UnmarshalText([]byte("issuer nobody")) == nil || read != 1 {
		t.Errorf("an unknown owner is accepted: %v", read)
	}
}
