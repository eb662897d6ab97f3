package cardvault

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store/memstore"
)

// A lastKey finds whether the bytes of a key are still in memory that something can reach.
// After that the runtime uses them again: Go offers no more, except in a build with
// GOEXPERIMENT=runtimesecret. To overwrite them would have calls that still work with the former
// keys seal under zeros.
type lastKey struct {
	name string
	at   weak.Pointer[byte]
}

func lastOf(name string, k seal.Key) lastKey { return lastKey{name, weak.Make(&hiding.Of(k)[0])} }

func (k lastKey) gone(t *testing.T, want bool) {
	t.Helper()
	for range 3 { // what a sync.Pool has goes with the second
		runtime.GC()
	}
	if gone := k.at.Value() == nil; gone != want {
		t.Errorf("the %s is gone: %t, want %t", k.name, gone, want)
	}
}

// deriveAll has a vault derive keys of all purposes.
func deriveAll(t *testing.T, v *Vault) {
	t.Helper()
	token, err := v.Import(t.Context(), Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2060}}, &ImportOptions{BusinessKey: "order"})
	if err == nil {
		err = v.Use(t.Context(), token.ID, "test", func(context.Context, *UsedCard) error { return nil })
	}
	if err == nil {
		err = v.ExportAudit(t.Context(), io.Discard, time.Time{}, time.Time{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestDestroyedKeysGone: the vault holds no reference to a key that was destroyed, nor to any key
// once it is closed and the program has let go of it.
func TestDestroyedKeysGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx := t.Context()
		keys, err := KeyBytes(bytes.Repeat([]byte{1}, KeySize))
		if err != nil {
			t.Fatal(err)
		}
		v, err := New(ctx, memstore.New(), keys, &Options{Mode: Sandbox, Audit: &AuditOptions{}, Purposes: []string{"test"}})
		if err != nil {
			t.Fatal(err)
		}
		deriveAll(t, v)
		k := v.ledger.Box.Keys()
		master, audits, ids := lastOf("master key", k.Masters[0].Key), lastOf("audit key", k.Audits[0].Key), lastOf("id key", k.IDs[0].Key)
		k = nil
		audits.gone(t, false)

		if _, err := v.RotateSeries(ctx, SeriesAudit, nil); err != nil {
			t.Fatal(err)
		}
		deriveAll(t, v)
		audits.gone(t, true)
		master.gone(t, false)

		if _, err := v.RotateKeys(ctx, nil); err != nil {
			t.Fatal(err)
		}
		deriveAll(t, v)
		_ = v.RetireTerm(ctx, 1)
		if err := v.Drain(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(25 * time.Hour)
		master.gone(t, false)
		if err := v.RetireTerm(ctx, 1); err != nil {
			t.Fatal(err)
		}
		deriveAll(t, v)
		master.gone(t, true)

		present := lastOf("present master key", v.ledger.Box.Keys().Masters[1].Key)
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		runtime.KeepAlive(v)
		v = nil
		time.Sleep(time.Minute) // work that had begun has ended
		present.gone(t, true)
		ids.gone(t, true)
	})
}

// A hoarder is a key provider that keeps each slice with a data key that it was given, or gave.
type hoarder struct {
	KeyWrapper
	mu   sync.Mutex
	kept [][]byte
}

func (h *hoarder) keep(b []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = append(h.kept, b)
}

func (h *hoarder) Wrap(ctx context.Context, plain, aad []byte) ([]byte, error) {
	h.keep(plain)
	return h.KeyWrapper.Wrap(ctx, plain, aad)
}

func (h *hoarder) Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
	plain, err := h.KeyWrapper.Unwrap(ctx, wrapped, aad)
	h.keep(plain)
	return plain, err
}

// TestDataKeysOverwritten: no data key is left in a slice that a key provider and the vault have
// shared, whether the vault is made, opened, changed to another key, or opened under the wrong one.
func TestDataKeysOverwritten(t *testing.T) {
	var hoarders []*hoarder
	keyring := func(b byte) *Keyring {
		k, err := KeyBytes(bytes.Repeat([]byte{b}, KeySize))
		if err != nil {
			t.Fatal(err)
		}
		h := &hoarder{KeyWrapper: k.held[0].wrapper}
		hoarders = append(hoarders, h)
		return WrappedBy(h)
	}
	first, second, s := keyring(1), keyring(2), memstore.New()
	for i, keys := range []*Keyring{first, first, second} {
		v, err := New(t.Context(), s, keys, &Options{Mode: Sandbox})
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			if err := v.ChangeKeyring(t.Context(), second); err != nil {
				t.Fatal(err)
			}
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := New(t.Context(), s, first, &Options{Mode: Sandbox}); err == nil {
		t.Error("the vault opens under its former key")
	}

	for i, h := range hoarders {
		for n, b := range h.kept {
			if !bytes.Equal(b, make([]byte, len(b))) {
				t.Errorf("provider %d has a data key in slice %d of %d", i+1, n+1, len(h.kept))
			}
		}
		if len(h.kept) < 3 {
			t.Errorf("provider %d was called %d times", i+1, len(h.kept))
		}
	}
}
