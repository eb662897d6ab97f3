package vaultsuite

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var apiKeyBehaviours = []behaviour{
	{"APIKeyAddresses", apiKeyAddresses},
	{"APIKeyAddressRules", apiKeyAddressRules},
	{"APIKeyAddressChanges", apiKeyAddressChanges},
	{"APIKeyLiveEnd", apiKeyLiveEnd},
	{"APIKeyLastUse", apiKeyLastUse},
}

// callerAt returns a context of a caller at an address.
func callerAt(t testing.TB, address string) context.Context {
	return cardvault.WithActor(t.Context(), cardvault.Actor{Address: address})
}

func ranges(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func keyFrom(t testing.TB, v *cardvault.Vault, creator uuid.UUID, in ...string) *cardvault.APIKey {
	t.Helper()
	return must(v.CreateAPIKey(t.Context(), canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{Creator: creator, AddressRanges: ranges(in...)}))(t)
}

// apiKeyAddresses: a key is of no use outside its address ranges, in any process, whether or
// not it was used inside before.
func apiKeyAddresses(t *testing.T, s store.Store) {
	a, b := vaultOn(t, s, nil), vaultOn(t, s, nil)
	key := keyFrom(t, a, uuid.Nil, "192.0.2.0/24", "2001:db8::/32")
	child := keyFrom(t, a, key.ID)
	narrow := keyFrom(t, a, key.ID, "192.0.2.7/32")

	inside, outside := []string{"192.0.2.7", "::ffff:192.0.2.7"}, []string{"192.0.3.7", "", "unknown", "2001:db9::1", "192.0.2.7:80", "2001:db8::1%eth0"}
	for range 2 { // the second time principals are kept
		for _, v := range []*cardvault.Vault{a, b} {
			for _, k := range []*cardvault.APIKey{key, child, narrow} {
				for _, address := range outside {
					fails(t, "from "+address, errorOf(v.Authenticate(callerAt(t, address), k.Text.Text())), cardvault.ErrUnauthenticated)
				}
				for _, address := range inside {
					must(v.Authenticate(callerAt(t, address), k.Text.Text()))(t)
				}
			}
			must(v.Authenticate(callerAt(t, "2001:db8::1"), child.Text.Text()))(t)
			fails(t, "outside the narrower range", errorOf(v.Authenticate(callerAt(t, "2001:db8::1"), narrow.Text.Text())), cardvault.ErrUnauthenticated)
		}
	}

	// A caller that changes its principal does not change the next one's.
	p := must(a.Authenticate(callerAt(t, inside[0]), key.Text.Text()))(t)
	p.Key.AddressRanges[0] = netip.MustParsePrefix("0.0.0.0/0")
	fails(t, "after a principal was changed", errorOf(a.Authenticate(callerAt(t, outside[0]), key.Text.Text())), cardvault.ErrUnauthenticated)

	for _, k := range append(must(b.ListAPIKeys(t.Context(), nil))(t).Items, must(b.APIKey(t.Context(), narrow.ID))(t)) {
		want := key.AddressRanges
		if k.ID == narrow.ID {
			want = narrow.AddressRanges
		}
		if !slices.Equal(k.AddressRanges, want) {
			t.Errorf("the key has %v, want %v", k.AddressRanges, want)
		}
	}
}

// apiKeyAddressRules: no key below another gains an address.
func apiKeyAddressRules(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, nil), t.Context()
	key, free := keyFrom(t, v, uuid.Nil, "192.0.2.0/24"), keyFrom(t, v, uuid.Nil)
	create := func(creator uuid.UUID, in ...netip.Prefix) error {
		return errorOf(v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{Creator: creator, AddressRanges: in}))
	}

	for _, wider := range []string{"192.0.2.0/23", "0.0.0.0/0", "::/0", "198.51.100.7/32", "2001:db8::/32"} {
		refuses(t, "a wider range "+wider, create(key.ID, ranges("192.0.2.7/32", wider)...), "AddressRanges out_of_range")
	}
	refuses(t, "too many", create(uuid.Nil, slices.Repeat(ranges("192.0.2.0/24"), cardvault.MaxAddressRanges+1)...), "AddressRanges too_long")
	refuses(t, "bits beyond the length", create(uuid.Nil, ranges("192.0.2.7/24")...), "AddressRanges invalid_format")
	refuses(t, "mapped", create(uuid.Nil, ranges("::ffff:192.0.2.7/128")...), "AddressRanges invalid_format")
	refuses(t, "no range", create(uuid.Nil, netip.Prefix{}), "AddressRanges invalid_format")
	noError(t, create(free.ID, ranges("10.0.0.0/8")...))

	text, o := cardvault.GenerateAPIKeyText(v.Mode()), cardvault.APIKeyOptions{AddressRanges: ranges("192.0.2.0/24", "10.0.0.0/8")}
	ensure := func(in ...netip.Prefix) error {
		o.AddressRanges = in
		return errorOf(v.EnsureAPIKey(ctx, text, canary, cardvault.AllScopes(), &o))
	}
	noError(t, ensure(o.AddressRanges...))
	noError(t, ensure(ranges("10.0.0.0/8", "192.0.2.0/24", "10.0.0.0/8")...))
	for _, in := range [][]netip.Prefix{nil, ranges("10.0.0.0/8"), ranges("10.0.0.0/9", "192.0.2.0/24")} {
		fails(t, "ensured with other ranges", ensure(in...), cardvault.ErrAPIKeyDiffers)
	}
	text, o.Creator = cardvault.GenerateAPIKeyText(v.Mode()), key.ID
	noError(t, ensure())
	noError(t, ensure()) // it has the ranges of its creator
	fails(t, "ensured with a narrower range", ensure(ranges("192.0.2.7/32")...), cardvault.ErrAPIKeyDiffers)

	o = cardvault.APIKeyOptions{IdempotencyKey: idemKey, AddressRanges: ranges("10.0.0.0/8")}
	must(v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &o))(t)
	must(v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &o))(t)
	o.AddressRanges = ranges("10.0.0.0/9")
	fails(t, "another range under an idempotency key", errorOf(v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &o)), cardvault.ErrIdempotencyKeyReused)
}

// apiKeyAddressChanges: other ranges hold for the next call in each process, for the keys
// below too. No key gains an address that the keys above it do not have.
func apiKeyAddressChanges(t *testing.T, s store.Store) {
	a, b, ctx := vaultOn(t, s, nil), vaultOn(t, s, nil), t.Context()
	root := keyFrom(t, a, uuid.Nil, "192.0.2.0/24", "10.0.0.0/8")
	child := keyFrom(t, a, root.ID)
	grandchild := keyFrom(t, a, child.ID, "192.0.2.0/25")
	sister, stranger := keyFrom(t, a, root.ID), keyFrom(t, a, uuid.Nil)
	update := func(k *cardvault.APIKey, in ...string) error {
		return errorOf(a.UpdateAPIKey(ctx, k.ID, cardvault.APIKeyUpdate{AddressRanges: ranges(in...)}))
	}
	updateBy := func(by uuid.UUID, k *cardvault.APIKey, in ...string) error {
		return errorOf(a.UpdateAPIKeyBy(ctx, by, k.ID, cardvault.APIKeyUpdate{AddressRanges: ranges(in...)}))
	}
	admitted := func(k *cardvault.APIKey, want string) {
		t.Helper()
		for _, v := range []*cardvault.Vault{a, b, a, b} {
			got := ""
			for i, address := range []string{"192.0.2.7", "192.0.2.200", "10.1.2.3", "198.51.100.7"} {
				if _, err := v.Authenticate(callerAt(t, address), k.Text.Text()); err == nil {
					got += string(rune('1' + i))
				} else {
					fails(t, "from "+address, err, cardvault.ErrUnauthenticated)
				}
			}
			if got != want {
				t.Errorf("the key is of use from the addresses %q, want %q", got, want)
			}
		}
	}
	admitted(root, "123")
	admitted(child, "123")
	admitted(grandchild, "1")

	// A narrower creator narrows the keys below it, which keep ranges of their own.
	noError(t, update(child, "10.0.0.0/8"))
	admitted(child, "3")
	admitted(grandchild, "")
	fails(t, "no address is left", errorOf(a.Authenticate(callerAt(t, ""), grandchild.Text.Text())), cardvault.ErrUnauthenticated)
	refuses(t, "a key outside its creator", errorOf(a.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{Creator: grandchild.ID, AddressRanges: ranges("192.0.2.7/32")})), "AddressRanges out_of_range")
	noError(t, update(child, "192.0.2.0/24"))
	admitted(child, "12")
	admitted(grandchild, "1")

	// Within the ranges of all keys above it, whichever key asks.
	for _, k := range []*cardvault.APIKey{child, grandchild} {
		refuses(t, "a wider range", update(k, "192.0.2.0/24", "198.51.100.0/24"), "AddressRanges out_of_range")
		refuses(t, "a wider range by its root", updateBy(root.ID, k, "198.51.100.0/24"), "AddressRanges out_of_range")
		fails(t, "by itself", updateBy(k.ID, k, "192.0.2.7/32"), cardvault.ErrNotFound)
	}
	refuses(t, "its own former range", updateBy(root.ID, grandchild, "10.0.0.0/8"), "AddressRanges out_of_range")
	noError(t, updateBy(root.ID, child, "10.0.0.0/8", "192.0.2.0/24"))
	noError(t, updateBy(child.ID, grandchild, "10.1.0.0/16"))
	admitted(grandchild, "3")
	noError(t, updateBy(root.ID, grandchild)) // the ranges of its creator
	admitted(grandchild, "123")

	for name, by := range map[string]uuid.UUID{"below": grandchild.ID, "beside": sister.ID, "a stranger": stranger.ID, "no key": uuid.Nil, "unknown": uuid.New()} {
		fails(t, name, updateBy(by, child, "192.0.2.7/32"), cardvault.ErrNotFound)
	}
	fails(t, "an unknown id", updateBy(root.ID, &cardvault.APIKey{ID: uuid.New()}), cardvault.ErrNotFound)
	refuses(t, "bits beyond the length", update(root, "192.0.2.7/24"), "AddressRanges invalid_format")
	noError(t, update(root)) // everywhere
	admitted(root, "1234")
	admitted(child, "123")

	// All else stays as it is.
	got := must(b.UpdateAPIKey(ctx, grandchild.ID, cardvault.APIKeyUpdate{AddressRanges: ranges("10.1.0.0/16", "10.1.0.0/16")}))(t)
	if got.Label != grandchild.Label || !slices.Equal(got.Scopes, grandchild.Scopes) || got.Root != root.ID || got.LastUsedAt.IsZero() != must(b.APIKey(ctx, grandchild.ID))(t).LastUsedAt.IsZero() || len(got.AddressRanges) != 1 {
		t.Errorf("the changed key is %+v", got)
	}
	noError(t, a.DeleteAPIKey(ctx, child.ID))
	fails(t, "below a revoked key", update(grandchild, "10.1.0.0/16"), cardvault.ErrNotFound)
}

// apiKeyLiveEnd: every new key of a live vault ends within 90 days.
func apiKeyLiveEnd(t *testing.T, s store.Store) {
	v, ctx := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Live}), t.Context()
	create := func(o *cardvault.APIKeyOptions) error {
		return errorOf(v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), o))
	}
	soon := time.Now().Add(time.Hour)
	refuses(t, "no options", create(nil), "TTL required")
	refuses(t, "no end", create(&cardvault.APIKeyOptions{}), "TTL required")
	refuses(t, "a long life", create(&cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL + 1}), "TTL out_of_range")
	refuses(t, "a late end", create(&cardvault.APIKeyOptions{NotAfter: soon.Add(cardvault.MaxAPIKeyTTL)}), "NotAfter out_of_range")
	noError(t, create(&cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL}))
	noError(t, create(&cardvault.APIKeyOptions{NotAfter: soon}))
	noError(t, create(&cardvault.APIKeyOptions{TTL: time.Minute, NotAfter: soon.Add(cardvault.MaxAPIKeyTTL)}))
	creator := must(v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: time.Hour}))(t)
	refuses(t, "no end below a key with one", create(&cardvault.APIKeyOptions{Creator: creator.ID}), "TTL required")

	text := cardvault.GenerateAPIKeyText(v.Mode())
	ensure := func(o *cardvault.APIKeyOptions) error {
		return errorOf(v.EnsureAPIKey(ctx, text, canary, cardvault.AllScopes(), o))
	}
	refuses(t, "ensured without an end", ensure(nil), "TTL required")
	noError(t, ensure(&cardvault.APIKeyOptions{NotAfter: soon}))
	noError(t, ensure(nil)) // it is there
	for _, k := range must(v.ListAPIKeys(ctx, nil))(t).Items {
		if k.ExpiresAt.IsZero() || k.ExpiresAt.After(time.Now().Add(cardvault.MaxAPIKeyTTL)) {
			t.Errorf("a key ends at %v", k.ExpiresAt)
		}
	}
}

// apiKeyLastUse: uses cost one write an hour for a key, however many there are and in however
// many processes.
func apiKeyLastUse(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	a, b, ctx := vaultOn(t, spy, nil), vaultOn(t, spy, nil), t.Context()
	key, unused, brief, gone := keyFrom(t, a, uuid.Nil), keyFrom(t, a, uuid.Nil), keyFrom(t, a, uuid.Nil), keyFrom(t, a, uuid.Nil)
	hour := time.Now().UTC().Truncate(time.Hour)
	sameHour := func() bool { return time.Now().UTC().Truncate(time.Hour).Equal(hour) }
	use := func(v *cardvault.Vault, k *cardvault.APIKey) {
		t.Helper()
		for range 50 {
			if p := must(v.Authenticate(ctx, k.Text.Text()))(t); !p.Key.LastUsedAt.IsZero() {
				t.Error("a principal has a last use")
			}
		}
	}
	last := func(v *cardvault.Vault, k *cardvault.APIKey) time.Time {
		t.Helper()
		one := must(v.APIKey(ctx, k.ID))(t)
		for _, listed := range must(v.ListAPIKeys(ctx, nil))(t).Items {
			if listed.ID == k.ID && !listed.LastUsedAt.Equal(one.LastUsedAt) {
				t.Errorf("last used at %v, listed with %v", one.LastUsedAt, listed.LastUsedAt)
			}
		}
		return one.LastUsedAt
	}

	if n := spy.wrote(func() { use(a, key); use(b, key) }); n != 0 {
		t.Errorf("uses have written %d times", n)
	}
	if n := spy.wrote(func() { noError(t, a.Drain(ctx)); noError(t, b.Drain(ctx)) }); n != 1 && sameHour() {
		t.Errorf("two processes have written a use %d times", n)
	}
	if at := last(b, key); at.Before(key.CreatedAt) || at.After(time.Now()) || !at.Equal(key.CreatedAt) && at.Before(hour) {
		t.Errorf("last used at %v, made at %v", at, key.CreatedAt)
	}
	if at := last(a, unused); !at.IsZero() {
		t.Errorf("a key that was never used: %v", at)
	}

	// A wrong secret is no use of the key, and a use of a revoked key leaves nothing.
	text := []byte(unused.Text.Text())
	fails(t, "a wrong text", errorOf(a.Authenticate(ctx, string(text[:len(text)-1]))), cardvault.ErrUnauthenticated)
	use(a, gone)
	noError(t, a.DeleteAPIKey(ctx, gone.ID))
	if n := spy.wrote(func() { noError(t, a.Drain(ctx)) }); n != 0 && sameHour() {
		t.Errorf("the use of a revoked key has written %d times", n)
	}

	// A key leaves nothing, and neither do the keys below it.
	before := recordsIn(t, s)
	root := keyFrom(t, a, uuid.Nil)
	use(a, root)
	use(a, keyFrom(t, a, root.ID))
	noError(t, a.Drain(ctx))
	if n := recordsIn(t, s); n != before+4 {
		t.Errorf("two keys that were used have %d records, want 4", n-before)
	}
	noError(t, a.DeleteAPIKey(ctx, root.ID))
	if n := recordsIn(t, s); n != before {
		t.Errorf("revoked keys leave %d records", n-before)
	}

	// Closing a vault keeps what it has noted.
	c := vaultOn(t, spy, nil)
	use(c, brief)
	noError(t, c.Close())
	if last(a, brief).IsZero() {
		t.Error("a use is forgotten when the vault is closed")
	}
	noError(t, a.DeleteAPIKey(ctx, key.ID))
	fails(t, "a revoked key", errorOf(a.APIKey(ctx, key.ID)), cardvault.ErrNotFound)
}

// recordsIn returns the number of records in a store.
func recordsIn(t testing.TB, s store.Store) (n int) {
	t.Helper()
	noError(t, s.View(t.Context(), func(tx store.ReadTx) error {
		n = 0
		for kind := store.Kind(1); kind != 0; kind++ {
			found, err := tx.Scan(kind, uuid.Nil, 1000)
			if err != nil {
				return err
			}
			n += len(found)
		}
		return nil
	}))
	return n
}
