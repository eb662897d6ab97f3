// Package keytest proves that a [cardvault.KeyWrapper] keeps its contract.
//
// The author of one writes one test, against a key of a KMS that is for tests:
//
//	func TestKey(t *testing.T) {
//		keytest.Run(t, keytest.Harness{
//			Open:  func(testing.TB) cardvault.KeyWrapper { return mykms.New(client, "test-key") },
//			Other: func(testing.TB) cardvault.KeyWrapper { return mykms.New(client, "another-key") },
//		})
//	}
//
// Each subtest is one rule. When it fails it says the rule and why a vault depends on it.
package keytest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/contract"
)

// A Harness says how to test a KeyWrapper. Open is required.
type Harness struct {
	// Open returns a wrapper of the key, as a program does after each start. It may skip or
	// fail the test that it is given, and uses its Cleanup.
	Open func(t testing.TB) cardvault.KeyWrapper

	// Other returns a wrapper of another key. If nil, that is not tested.
	Other func(t testing.TB) cardvault.KeyWrapper

	// Unbound says that the KMS has no associated data, such as RSA. The rule AAD lets
	// Unwrap ignore it then.
	Unbound bool
}

// Run checks every rule of the contract.
func Run(t *testing.T, h Harness) { contract.Run(t, rules, h.suite) }

// A suite is a wrapper under test.
type suite struct {
	Harness
	key cardvault.KeyWrapper
}

func (h Harness) suite(t testing.TB) *suite {
	if h.Open == nil {
		t.Fatal("keytest: Harness.Open is missing")
	}
	s := &suite{Harness: h, key: h.Open(t)}
	if s.key == nil {
		t.Fatal("keytest: Harness.Open returned nil")
	}
	return s
}

// aad has the length of a vault's.
var aad = bytes.Repeat([]byte("keytest "), 12)

var rules = []contract.Rule[*suite]{{
	Name: "KeyID",
	Why: `KeyID is 1 to 255 bytes and always the same, even after a restart. It is stored next to the
wrapped keys, and a vault that finds another name does not open.`,
	Check: keyID,
}, {
	Name:  "RoundTrip",
	Why:   `Unwrap returns the plaintext of Wrap. Otherwise nothing in the store could ever be read again.`,
	Check: roundTrip,
}, {
	Name: "Size",
	Why: `Wrap makes 1 to MaxWrapped bytes of a data key. They are stored with the vault's keys, in a
record of limited size.`,
	Check: size,
}, {
	Name: "Restart",
	Why: `A data key wrapped by one wrapper is unwrapped by another wrapper of the same key: nothing else of
the first survives a restart.`,
	Check: restart,
}, {
	Name: "AAD",
	Why: `Unwrap with other associated data is ErrWrongKey. The associated data contains the mode, the
account, the generation of the keys and the id of this key: so the log of a KMS shows what it
unwraps, and its policy may refuse. A KMS without associated data (Harness.Unbound) may return
the data key all the same: the vault's keys are bound under it too.`,
	Check: bound,
}, {
	Name: "Altered",
	Why: `Unwrap of anything except a result of Wrap is ErrWrongKey, and never another key: the vault
would seal records that could not be read again.`,
	Check: altered,
}, {
	Name: "OtherKey",
	Why: `Unwrap of a data key wrapped by another key is ErrWrongKey. This tells an operator to look for the
right key; after any other error a program waits and tries again.`,
	Check: otherKey,
}, {
	Name: "Sealed",
	Why: `The result of Wrap does not contain the plaintext in any form: it is stored where anyone may
read it. Nor does an error.`,
	Check: sealed,
}, {
	Name: "Memory",
	Why: `Wrap and Unwrap neither change nor keep their arguments, and their results belong to the
caller: the vault wipes the data key once it is wrapped.`,
	Check: memory,
}, {
	Name: "ContextEnded",
	Why: `A call whose context has ended returns at once with the error of the context, and never with
ErrWrongKey: the operator would look for another key.`,
	Check: contextEnded,
}, {
	Name:  "Concurrency",
	Why:   `All methods may be called concurrently: processes and calls meet a new keyring at the same time.`,
	Check: concurrency,
}}

func keyID(t testing.TB, s *suite) {
	id := s.key.KeyID()
	if id == "" || len(id) > 255 {
		t.Errorf("KeyID has %d bytes, want 1 to 255", len(id))
	}
	s.wrap(t, s.key, random())
	if s.key.KeyID() != id || s.Open(t).KeyID() != id {
		t.Error("KeyID changes")
	}
}

// random returns a data key.
func random() []byte {
	b := make([]byte, cardvault.KeySize)
	rand.Read(b)
	return b
}

// noise returns n bytes that nothing has wrapped.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func (s *suite) wrap(t testing.TB, key cardvault.KeyWrapper, plain []byte) []byte {
	t.Helper()
	wrapped, err := key.Wrap(t.Context(), plain, aad)
	if err != nil {
		t.Fatalf("Wrap: %v", err)
	}
	return wrapped
}

func roundTrip(t testing.TB, s *suite) {
	plain := random()
	s.unwraps(t, s.key, s.wrap(t, s.key, plain), plain)
}

func size(t testing.TB, s *suite) {
	if n := len(s.wrap(t, s.key, random())); n == 0 || n > cardvault.MaxWrapped {
		t.Errorf("a data key is wrapped in %d bytes, want 1 to %d", n, cardvault.MaxWrapped)
	}
}

// unwraps checks what Unwrap returns.
func (s *suite) unwraps(t testing.TB, key cardvault.KeyWrapper, wrapped, want []byte) {
	t.Helper()
	got, err := key.Unwrap(t.Context(), wrapped, aad)
	if err != nil {
		t.Fatalf("Unwrap of the result of Wrap: %v", err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("Unwrap returns another data key, of %d bytes", len(got))
	}
}

func restart(t testing.TB, s *suite) {
	plain := random()
	wrapped := s.wrap(t, s.key, plain)
	s.unwraps(t, s.Open(t), wrapped, plain)
}

// refuses checks that Unwrap is ErrWrongKey.
func refuses(t testing.TB, key cardvault.KeyWrapper, what string, wrapped, associated []byte) {
	t.Helper()
	got, err := key.Unwrap(t.Context(), wrapped, associated)
	switch {
	case err == nil:
		t.Errorf("Unwrap of %s returns %d bytes, want an error that is ErrWrongKey", what, len(got))
	case !errors.Is(err, cardvault.ErrWrongKey):
		t.Errorf("Unwrap of %s = %v, want an error that is ErrWrongKey", what, err)
	}
}

func bound(t testing.TB, s *suite) {
	plain := random()
	wrapped := s.wrap(t, s.key, plain)
	other := slices.Clone(aad)
	other[len(other)-1] ^= 1
	for what, associated := range map[string][]byte{
		"other associated data":   other,
		"shorter associated data": aad[:len(aad)-1],
		"no associated data":      nil,
	} {
		if got, err := s.key.Unwrap(t.Context(), wrapped, associated); s.Unbound && err == nil && bytes.Equal(got, plain) {
			continue
		}
		refuses(t, s.key, "a wrapped data key, with "+what, wrapped, associated)
	}
}

func altered(t testing.TB, s *suite) {
	wrapped := s.wrap(t, s.key, random())
	for _, i := range []int{0, len(wrapped) / 2, len(wrapped) - 1} {
		edited := slices.Clone(wrapped)
		edited[i] ^= 1
		refuses(t, s.key, fmt.Sprintf("a wrapped data key, with another byte %d", i), edited, aad)
	}
	refuses(t, s.key, "a wrapped data key, without its end", wrapped[:len(wrapped)-1], aad)
	refuses(t, s.key, "random bytes", noise(len(wrapped)), aad)
	refuses(t, s.key, "nothing", nil, aad)
}

func otherKey(t testing.TB, s *suite) {
	if s.Other == nil {
		t.Log("not checked: there is no Harness.Other")
		return
	}
	refuses(t, s.key, "a data key wrapped by another key", s.wrap(t, s.Other(t), random()), aad)
}

func sealed(t testing.TB, s *suite) {
	plain := random()
	wrapped := s.wrap(t, s.key, plain)
	if shows(wrapped, plain) {
		t.Error("the result of Wrap holds the plaintext")
	}
	_, err := s.key.Unwrap(t.Context(), wrapped, nil)
	if err != nil && shows([]byte(err.Error()), plain) {
		t.Error("the error of Unwrap holds the plaintext")
	}
}

// shows reports whether text holds a part of secret, raw or encoded.
func shows(text, secret []byte) bool {
	const part = 24
	for i := 0; i+part <= len(secret); i += 3 {
		p := secret[i : i+part]
		for _, form := range []string{string(p), hex.EncodeToString(p), fmt.Sprintf("%X", p), base64.StdEncoding.EncodeToString(p), base64.URLEncoding.EncodeToString(p)} {
			if bytes.Contains(text, []byte(form)) {
				return true
			}
		}
	}
	return false
}

func memory(t testing.TB, s *suite) {
	plain, associated := random(), slices.Clone(aad)
	before := slices.Clone(plain)
	wrapped, err := s.key.Wrap(t.Context(), plain, associated)
	if err != nil {
		t.Fatalf("Wrap = %v", err)
	}
	if !bytes.Equal(plain, before) || !bytes.Equal(associated, aad) {
		t.Error("Wrap changes its arguments")
	}

	kept := slices.Clone(wrapped)
	clear(plain)
	s.wrap(t, s.key, random())
	if !bytes.Equal(wrapped, kept) {
		t.Error("the result of Wrap changes with the next call or with the plaintext")
	}

	got, err := s.key.Unwrap(t.Context(), wrapped, associated)
	if err != nil || !bytes.Equal(got, before) {
		t.Fatalf("Unwrap does not return the plaintext as it was: %v", err)
	}
	if !bytes.Equal(wrapped, kept) || !bytes.Equal(associated, aad) {
		t.Error("Unwrap changes its arguments")
	}
	clear(got)
	s.unwraps(t, s.key, kept, before)
}

func contextEnded(t testing.TB, s *suite) {
	wrapped := s.wrap(t, s.key, random())
	contract.Ended(t, "Wrap", func(ctx context.Context) error {
		_, err := s.key.Wrap(ctx, random(), aad)
		return err
	})
	contract.Ended(t, "Unwrap", func(ctx context.Context) error {
		_, err := s.key.Unwrap(ctx, wrapped, aad)
		return err
	})
}

func concurrency(t testing.TB, s *suite) {
	contract.Parallel(t, 16, func(int) error {
		plain := random()
		wrapped, err := s.key.Wrap(t.Context(), plain, aad)
		if err != nil {
			return err
		}
		got, err := s.key.Unwrap(t.Context(), wrapped, aad)
		if err == nil && !bytes.Equal(got, plain) {
			err = errors.New("a call of Unwrap returns the plaintext of another")
		}
		return err
	})
}
