package keytest_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/keytest"
)

// A key is a wrapper that keeps every rule.
type key struct {
	id   string
	aead cipher.AEAD
}

func newKey(n byte) *key {
	block, err := aes.NewCipher(slices.Repeat([]byte{n}, 32))
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return &key{fmt.Sprint("key/", n), aead}
}

func (k *key) KeyID() string { return k.id }

func (k *key) Wrap(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
	return k.aead.Seal(nil, nil, plaintext, aad), ctx.Err()
}

func (k *key) Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	plain, err := k.aead.Open(nil, nil, wrapped, aad)
	if err != nil {
		return nil, fmt.Errorf("%w: not opened", cardvault.ErrWrongKey)
	}
	return plain, nil
}

var madeAnew atomic.Uint32 // keys

// A mutant is a key with a fault. A nil method is the key's own.
type mutant struct {
	*key
	id     func() string
	wrap   func(ctx context.Context, plaintext, aad []byte) ([]byte, error)
	unwrap func(ctx context.Context, wrapped, aad []byte) ([]byte, error)
}

func (m *mutant) KeyID() string {
	if m.id != nil {
		return m.id()
	}
	return m.key.KeyID()
}

func (m *mutant) Wrap(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
	if m.wrap != nil {
		return m.wrap(ctx, plaintext, aad)
	}
	return m.key.Wrap(ctx, plaintext, aad)
}

func (m *mutant) Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
	if m.unwrap != nil {
		return m.unwrap(ctx, wrapped, aad)
	}
	return m.key.Unwrap(ctx, wrapped, aad)
}

var errDown = errors.New("mutant: 400 Bad Request")

// faults lists faults, each with a rule that must detect it.
var faults = []struct {
	fault, rule string
	seed        func(m *mutant)
}{
	{"there is no id", "KeyID", func(m *mutant) { m.id = func() string { return "" } }},
	{"the id is long", "KeyID", func(m *mutant) { m.id = func() string { return strings.Repeat("x", 256) } }},
	{"the id changes", "KeyID", func(m *mutant) {
		n := 0
		m.id = func() string { n++; return fmt.Sprint(n) }
	}},
	{"it unwraps to something else", "RoundTrip", func(m *mutant) {
		m.unwrap = func(_ context.Context, wrapped, _ []byte) ([]byte, error) { return wrapped, nil }
	}},
	{"it encrypts 16 bytes", "RoundTrip", func(m *mutant) {
		m.wrap = func(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
			return m.key.Wrap(ctx, plaintext[:min(16, len(plaintext))], aad)
		}
	}},
	{"the result is long", "Size", func(m *mutant) {
		m.wrap = func(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
			wrapped, err := m.key.Wrap(ctx, plaintext, aad)
			return append(wrapped, make([]byte, cardvault.MaxWrapped)...), err
		}
	}},
	{"the key is made anew", "Restart", func(m *mutant) {
		m.key = newKey(byte(madeAnew.Add(1)) | 128)
		m.unwrap = func(ctx context.Context, wrapped, aad []byte) ([]byte, error) { return m.key.Unwrap(ctx, wrapped, aad) }
	}},
	{"aad is ignored", "AAD", func(m *mutant) {
		m.wrap = func(ctx context.Context, plaintext, _ []byte) ([]byte, error) { return m.key.Wrap(ctx, plaintext, nil) }
		m.unwrap = func(ctx context.Context, wrapped, _ []byte) ([]byte, error) { return m.key.Unwrap(ctx, wrapped, nil) }
	}},
	{"other aad is an unknown error", "AAD", func(m *mutant) {
		m.unwrap = func(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
			plain, err := m.key.Unwrap(ctx, wrapped, aad)
			if err != nil {
				err = errDown
			}
			return plain, err
		}
	}},
	{"it is not authenticated", "Altered", func(m *mutant) {
		m.unwrap = func(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
			plain, err := m.key.Unwrap(ctx, wrapped, aad)
			if err != nil {
				return make([]byte, cardvault.KeySize), nil
			}
			return plain, nil
		}
	}},
	{"another key is an unknown error", "OtherKey", func(m *mutant) {
		m.unwrap = func(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
			plain, err := m.key.Unwrap(ctx, wrapped, aad)
			if err != nil {
				err = errDown
			}
			return plain, err
		}
	}},
	{"it wraps nothing", "Sealed", func(m *mutant) {
		m.wrap = func(_ context.Context, plaintext, _ []byte) ([]byte, error) { return slices.Clone(plaintext), nil }
	}},
	{"the error quotes the plaintext", "Sealed", func(m *mutant) {
		var last []byte
		m.wrap = func(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
			last = slices.Clone(plaintext)
			return m.key.Wrap(ctx, plaintext, aad)
		}
		m.unwrap = func(context.Context, []byte, []byte) ([]byte, error) { return nil, fmt.Errorf("%w: %x", errDown, last) }
	}},
	{"it wipes its argument", "Memory", func(m *mutant) {
		m.wrap = func(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
			defer clear(plaintext)
			return m.key.Wrap(ctx, plaintext, aad)
		}
	}},
	{"it reuses its buffer", "Memory", func(m *mutant) {
		var buffer []byte
		m.wrap = func(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
			wrapped, err := m.key.Wrap(ctx, plaintext, aad)
			buffer = append(buffer[:0], wrapped...)
			return buffer, err
		}
	}},
	{"it waits", "ContextEnded", func(m *mutant) {
		m.unwrap = func(context.Context, []byte, []byte) ([]byte, error) {
			<-time.After(30 * time.Second)
			return nil, errDown
		}
	}},
	{"the end of the context is reported as a wrong key", "ContextEnded", func(m *mutant) {
		m.unwrap = func(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
			plain, err := m.key.Unwrap(ctx, wrapped, aad)
			if err != nil {
				err = cardvault.ErrWrongKey
			}
			return plain, err
		}
	}},
	{"calls share their answer", "Concurrency", func(m *mutant) {
		answers := make(chan []byte, 1)
		m.wrap = func(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
			wrapped, err := m.key.Wrap(ctx, plaintext, aad)
			select {
			case answers <- wrapped:
				return wrapped, err
			case other := <-answers:
				return other, err
			}
		}
	}},
}

func harness(edit func(*mutant)) keytest.Harness {
	return keytest.Harness{
		Open: func(testing.TB) cardvault.KeyWrapper {
			m := &mutant{key: newKey(1)}
			edit(m)
			return m
		},
		Other: func(testing.TB) cardvault.KeyWrapper { return newKey(2) },
	}
}

// Every rule must detect its faults.
func TestRulesCanFail(t *testing.T) {
	noticed := contract.Faults(t, keytest.Names())
	for _, f := range faults {
		noticed(f.rule, f.fault, func(t *testing.T) []string {
			return keytest.Failures(t, f.rule, harness(f.seed))
		})
	}
}

// TestUnbound: a KMS without associated data passes if it says so, unless it then returns
// another data key.
func TestUnbound(t *testing.T) {
	t.Parallel()
	unbound := func(m *mutant) {
		m.wrap = func(ctx context.Context, plaintext, _ []byte) ([]byte, error) { return m.key.Wrap(ctx, plaintext, nil) }
		m.unwrap = func(ctx context.Context, wrapped, _ []byte) ([]byte, error) { return m.key.Unwrap(ctx, wrapped, nil) }
	}
	h := harness(unbound)
	h.Unbound = true
	keytest.Run(t, h)

	h = harness(func(m *mutant) {
		unbound(m)
		m.unwrap = func(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
			plain, err := m.key.Unwrap(ctx, wrapped, nil)
			if len(aad) == 0 && err == nil {
				plain[0] ^= 1
			}
			return plain, err
		}
	})
	h.Unbound = true
	if len(keytest.Failures(t, "AAD", h)) == 0 {
		t.Error("a KMS whose data key depends on aad, without an error, passes")
	}
}

// A key without a fault passes, so that a failure is due to the fault.
func TestRulesPassWithoutFault(t *testing.T) { keytest.Run(t, harness(func(*mutant) {})) }
