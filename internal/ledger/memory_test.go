package ledger_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
)

// A plain store is not a store.Counter.
type plain struct{ store.Store }

func TestMemory(t *testing.T) {
	a, _ := open(t)
	m := ledger.NewMemory[int](a.Ledger, kindParent, kindChild)
	one, other := sha256.Sum256([]byte("one")), sha256.Sum256([]byte("other"))
	reads := 0
	read := func() (int, error) { reads++; return reads, nil }
	ctx := t.Context()

	recall := func(what string, ctx context.Context, key [sha256.Size]byte, want int) {
		t.Helper()
		if n, err := m.Of(ctx, key, read); err != nil || n != want {
			t.Errorf("%s: got the value of read %d (%v), want that of %d", what, n, err, want)
		}
	}
	recall("first", ctx, one, 1)
	recall("kept", ctx, one, 1)
	recall("another key", ctx, other, 2)

	add(t, a, kindMaker, nil)
	recall("after a write of another kind", ctx, one, 1)
	for i, kind := range []store.Kind{kindParent, kindChild} {
		add(t, a, kind, nil)
		recall("after a write", ctx, one, 3+i)
		recall("kept again", ctx, one, 3+i)
	}

	ended, cancel := context.WithCancel(ctx)
	cancel()
	recall("with an ended context", ended, one, 5)
	recall("which was not kept", ctx, one, 4)

	failure := errors.New("failure")
	add(t, a, kindParent, nil)
	if _, err := m.Of(ctx, one, func() (int, error) { return 0, failure }); err != failure {
		t.Errorf("got %v, want the error of read", err)
	}
	recall("after a read that failed", ctx, one, 6)

	a.Close()
	recall("closed", ctx, one, 7)
}

func TestMemoryOfPlainStore(t *testing.T) {
	a, _ := openOn(t, plain{memstore.New()})
	m := ledger.NewMemory[int](a.Ledger, kindParent)
	for want := range 2 {
		if n, _ := m.Of(t.Context(), [sha256.Size]byte{}, func() (int, error) { return want, nil }); n != want {
			t.Errorf("got the value of read %d, want that of %d", n, want)
		}
	}
}
