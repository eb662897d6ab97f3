package valkeycodes_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/valkeycodes"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// replica returns a vault on a shared store, with a cache of its own on the server of the
// security codes.
func replica(t testing.TB, s store.Store, addr string, o *valkeycodes.Options) (*cardvault.Vault, *valkeycodes.Cache) {
	t.Helper()
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{7}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, addr, o)
	v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Codes: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v, c
}

func testCard(digits string) cardvault.Card {
	return cardvault.Card{
		PAN:          card.NewPAN([]byte("4242424242424242")),
		Expiry:       card.Expiry{Month: 12, Year: 2099},
		SecurityCode: card.NewSecurityCode([]byte(digits)),
	}
}

func imports(t testing.TB, v *cardvault.Vault) uuid.UUID {
	t.Helper()
	token, err := v.Import(t.Context(), testCard("7373"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return token.ID
}

func available(t testing.TB, v *cardvault.Vault, id uuid.UUID) bool {
	t.Helper()
	if _, err := v.Get(t.Context(), id); err != nil {
		t.Errorf("Get: %v", err)
	}
	got, err := v.SecurityCodeStatus(t.Context(), id)
	if err != nil {
		t.Errorf("SecurityCodeStatus: %v", err)
		return false
	}
	return got.Available
}

// TestFaults: whatever happens to the server, tokens can be imported and read, and all
// replicas agree whether a code is available.
func TestFaults(t *testing.T) {
	for _, fault := range []struct {
		what      string
		do        func(*realtest.Server, admin)
		after     func(*realtest.Server)
		answers   bool // while the fault lasts
		remembers bool // afterwards
	}{
		{"nothing", func(*realtest.Server, admin) {}, func(*realtest.Server) {}, true, true},
		{"killed", func(s *realtest.Server, _ admin) { s.Kill() }, func(s *realtest.Server) { s.Restart(t) }, false, false},
		{"restarted", func(s *realtest.Server, _ admin) { s.Restart(t) }, func(*realtest.Server) {}, true, false},
		{"flushed", func(_ *realtest.Server, a admin) { a.run("FLUSHALL") }, func(*realtest.Server) {}, true, false},
		{"hung", func(s *realtest.Server, _ admin) { s.Stop() }, func(s *realtest.Server) { s.Continue() }, false, true},
	} {
		t.Run(fault.what, func(t *testing.T) {
			server := realtest.Redis(t, nil)
			rows := memstore.New()
			one, codes := replica(t, rows, server.Addr(), hasty)
			other, otherCodes := replica(t, rows, server.Addr(), hasty)
			// On a busy machine a server may look dead. A code that was kept too late is
			// erased, even if another replica has seen it.
			shared := func() (id uuid.UUID) {
				eventually(t, "both replicas do not have the code", func() error {
					if id = imports(t, one); !available(t, one, id) || !available(t, other, id) {
						return errors.New("not available")
					}
					return nil
				})
				return id
			}
			before := shared()

			fault.do(server, administer(t, server))
			during := imports(t, one)
			if !fault.answers {
				for _, v := range []*cardvault.Vault{one, other} {
					if available(t, v, before) || available(t, v, during) {
						t.Error("a code is available")
					}
				}
				if _, err := one.Consume(t.Context(), during, nil); !errors.Is(err, cardvault.ErrUnavailable) {
					t.Errorf("Consume = %v, want %v", err, cardvault.ErrUnavailable)
				}
			}

			fault.after(server)
			recovers(t, codes)
			recovers(t, otherCodes)
			for what, v := range map[string]*cardvault.Vault{"one": one, "other": other} {
				if fault.remembers {
					eventually(t, "in the "+what+" replica the code from before", func() error {
						if !available(t, v, before) {
							return errors.New("not available")
						}
						return nil
					})
				} else if available(t, v, before) {
					t.Errorf("in the %s replica the code from before is available", what)
				}
				if !fault.answers && available(t, v, during) {
					t.Errorf("in the %s replica an unkept code is available", what)
				}
			}
			after := shared()
			eventually(t, "Consume", func() error { _, err := other.Consume(t.Context(), after, nil); return err })
			if available(t, one, after) {
				t.Error("a code that was consumed in another replica is available")
			}
		})
	}
}

// TestSealed: the server's data reveals no code, and expires by itself.
func TestSealed(t *testing.T) {
	server := realtest.Redis(t, nil)
	v, _ := replica(t, memstore.New(), server.Addr(), nil)
	a := administer(t, server)
	var keys []string
	eventually(t, "a code is kept", func() error { // unless the machine is slow once
		imports(t, v)
		if keys = a.keys(); len(keys) != 1 {
			a.run("FLUSHALL")
			return fmt.Errorf("%d keys for a code", len(keys))
		}
		return nil
	})
	value, err := a.run("GET", keys[0]).AsBytes()
	if err != nil {
		t.Fatal(err)
	}
	vaulttest.AssertNoLeak(t, []string{"7373", "4242424242424242"}, keys, value)
	left, err := a.run("PTTL", keys[0]).AsInt64()
	if got := time.Duration(left) * time.Millisecond; err != nil || got <= 9*time.Minute || got > 10*time.Minute {
		t.Errorf("the code has %v left, %v", got, err)
	}
}
