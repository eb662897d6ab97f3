package remote_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/keytest"
	"github.com/cardvault/cardvault/kms/internal/remote"
)

var errRefused = errors.New("400 Bad Request")

// A service has a key, and one error for everything.
type service struct{ aead cipher.AEAD }

func newService(n byte) *service {
	block, err := aes.NewCipher(bytes.Repeat([]byte{n}, 32))
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return &service{aead}
}

func (s *service) encrypt(ctx context.Context, text, aad []byte) ([]byte, error) {
	return s.aead.Seal(nil, nil, text, aad), ctx.Err()
}

func (s *service) decrypt(ctx context.Context, text, aad []byte) ([]byte, error) {
	plaintext, err := s.aead.Open(nil, nil, text, aad)
	if err != nil {
		return nil, errRefused
	}
	return plaintext, ctx.Err()
}

func (s *service) known(ctx context.Context, text, aad []byte) ([]byte, error) {
	plaintext, err := s.decrypt(ctx, text, aad)
	if errors.Is(err, errRefused) {
		err = remote.WrongKey(err)
	}
	return plaintext, err
}

func TestContract(t *testing.T) {
	ours, other := newService(1), newService(2)
	for name, open := range map[string]func(*service) cardvault.KeyWrapper{
		"known errors": func(s *service) cardvault.KeyWrapper { return remote.New("key", s.encrypt, s.known) },
		"opaque errors": func(s *service) cardvault.KeyWrapper {
			return remote.New("key", s.encrypt, remote.Opaque(s.encrypt, s.decrypt))
		},
	} {
		t.Run(name, func(t *testing.T) {
			keytest.Run(t, keytest.Harness{
				Open:  func(testing.TB) cardvault.KeyWrapper { return open(ours) },
				Other: func(testing.TB) cardvault.KeyWrapper { return open(other) },
			})
		})
	}
}

var (
	dataKey = bytes.Repeat([]byte{7}, 32)
	aad     = []byte("live")
	errDown = errors.New("connection refused")
)

// TestUnusable: Wrap returns nothing that would not be unwrapped, and its error does not
// send the operator to look for another key.
func TestUnusable(t *testing.T) {
	s, other := newService(1), newService(2)
	for what, f := range map[string]struct {
		encrypt, decrypt remote.Func
		says             string
	}{
		"wrapped by another key": {other.encrypt, s.known, "refuses a text that it has just wrapped"},
		"unwraps another text": {s.encrypt, func(ctx context.Context, text, aad []byte) ([]byte, error) {
			return make([]byte, 32), nil
		}, "unwraps another text"},
		"ignores associated data": {
			func(ctx context.Context, text, _ []byte) ([]byte, error) { return s.encrypt(ctx, text, nil) },
			func(ctx context.Context, text, _ []byte) ([]byte, error) { return s.known(ctx, text, nil) },
			"ignores associated data",
		},
		"nothing": {func(context.Context, []byte, []byte) ([]byte, error) { return nil, nil }, s.known, "in 0 bytes"},
		"too long": {func(context.Context, []byte, []byte) ([]byte, error) {
			return make([]byte, cardvault.MaxWrapped+1), nil
		}, s.known, "in 8193 bytes"},
		"down": {func(context.Context, []byte, []byte) ([]byte, error) { return nil, errDown }, s.known, "connection refused"},
		"down afterwards": {s.encrypt, func(context.Context, []byte, []byte) ([]byte, error) {
			return nil, errDown
		}, "connection refused"},
	} {
		wrapped, err := remote.New("key", f.encrypt, f.decrypt).Wrap(t.Context(), dataKey, aad)
		if err == nil || errors.Is(err, cardvault.ErrWrongKey) || !strings.Contains(err.Error(), f.says) {
			t.Errorf("%s: %d bytes, %v", what, len(wrapped), err)
		}
	}
}

// TestCheckedOnce: the check of associated data is one refused request, which a log shows.
func TestCheckedOnce(t *testing.T) {
	s, refused := newService(1), 0
	w := remote.New("key", s.encrypt, func(ctx context.Context, text, aad []byte) ([]byte, error) {
		plaintext, err := s.known(ctx, text, aad)
		if err != nil {
			refused++
		}
		return plaintext, err
	})
	for range 3 {
		if _, err := w.Wrap(t.Context(), dataKey, aad); err != nil {
			t.Fatal(err)
		}
	}
	if refused != 1 {
		t.Errorf("%d refused requests", refused)
	}
}

// TestGarbage: nothing that cannot be a wrapped text is sent to the service.
func TestGarbage(t *testing.T) {
	w := remote.New("key", nil, nil)
	for _, size := range []int{0, cardvault.MaxWrapped + 1} {
		if _, err := w.Unwrap(t.Context(), make([]byte, size), aad); !errors.Is(err, cardvault.ErrWrongKey) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// TestNothing: an answer without a plaintext is not a key.
func TestNothing(t *testing.T) {
	s := newService(1)
	w := remote.New("key", s.encrypt, func(context.Context, []byte, []byte) ([]byte, error) { return nil, nil })
	if got, err := w.Unwrap(t.Context(), dataKey, aad); err == nil || errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("%x, %v", got, err)
	}
}

// TestDeadline: a service that hangs ends the call, not the vault. The error is that of the
// context, whatever the service says of its end.
func TestDeadline(t *testing.T) {
	hang := func(ctx context.Context, _, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, remote.WrongKey(errRefused)
	}
	bubble.Test(t, func(t *testing.T) {
		begin, w := time.Now(), remote.New("key", hang, hang)
		_, wrapping := w.Wrap(t.Context(), dataKey, aad)
		_, unwrapping := w.Unwrap(t.Context(), dataKey, aad)
		for _, err := range []error{wrapping, unwrapping} {
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, cardvault.ErrWrongKey) {
				t.Error(err)
			}
		}
		if time.Since(begin) != 2*remote.Timeout {
			t.Errorf("after %v", time.Since(begin))
		}
	})
}

// TestOpaque: an outage is not a wrong key, whichever of the calls it hits.
func TestOpaque(t *testing.T) {
	s := newService(1)
	wrapped, _ := s.encrypt(t.Context(), dataKey, aad)
	foreign, _ := newService(2).encrypt(t.Context(), dataKey, aad)
	for _, c := range []struct {
		what      string
		text      []byte
		down      string // which calls fail
		unwrapped bool
		wrong     bool
	}{
		{"all is well", wrapped, "", true, false},
		{"the first call fails", wrapped, "1", true, false},
		{"two calls fail", wrapped, "12", false, false},
		{"a probe fails", wrapped, "13", false, false},
		{"everything fails", wrapped, "1234", false, false},
		{"text of another key", foreign, "", false, true},
		{"text of another key, and a probe fails", foreign, "2", false, false},
		{"text of another key, and the other part of the probe fails", foreign, "3", false, false},
	} {
		calls := '0'
		fails := func(f remote.Func) remote.Func {
			return func(ctx context.Context, text, aad []byte) ([]byte, error) {
				if calls++; strings.ContainsRune(c.down, calls) {
					return nil, errDown
				}
				return f(ctx, text, aad)
			}
		}
		got, err := remote.Opaque(fails(s.encrypt), fails(s.decrypt))(t.Context(), c.text, aad)
		if (err == nil && bytes.Equal(got, dataKey)) != c.unwrapped || errors.Is(err, cardvault.ErrWrongKey) != c.wrong {
			t.Errorf("%s: %x, %v", c.what, got, err)
		}
	}
}

// TestOpaqueEnded: a service that is cut off while it works out the reason is not asked
// again.
func TestOpaqueEnded(t *testing.T) {
	s := newService(1)
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	_, err := remote.Opaque(s.encrypt, func(context.Context, []byte, []byte) ([]byte, error) {
		calls++
		cancel()
		return nil, errRefused
	})(ctx, dataKey, aad)
	if calls != 1 || errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("after %d calls: %v", calls, err)
	}
}

// TestCalls: calls that hang are as many as there are places, and their results are erased.
func TestCalls(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		calls, release := make(remote.Calls, 2), make(chan struct{})
		late := [][]byte{bytes.Clone(dataKey), bytes.Clone(dataKey), bytes.Clone(dataKey)}
		var running atomic.Int32
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := calls.Do(ctx, func() ([]byte, error) {
				result := late[running.Add(1)-1]
				<-release
				return result, nil
			}); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
		}
		if n := running.Load(); n != 2 {
			t.Errorf("%d calls are under way", n)
		}
		close(release)
		synctest.Wait()
		if got, err := calls.Do(t.Context(), func() ([]byte, error) { return dataKey, nil }); err != nil || !bytes.Equal(got, dataKey) {
			t.Errorf("%x, %v", got, err)
		}
		for _, result := range late[:2] {
			if !bytes.Equal(result, make([]byte, len(result))) {
				t.Error("a result that came too late is not erased")
			}
		}
	})
}
