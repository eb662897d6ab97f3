package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/ledgertest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// An uncounted store does not count changes, as one that several processes share.
type uncounted struct{ store.Store }

// TestFence: a process that has not heard of a fence writes nothing from its commit on, and reads
// nothing a second later.
func TestFence(t *testing.T) {
	var sealed *store.Record
	update := func(fn func(store.Tx)) func(context.Context, *ledger.Ledger) error {
		return func(ctx context.Context, l *ledger.Ledger) error {
			return l.In(l.First).Update(ctx, opSet, func(tx store.Tx) error { fn(tx); return nil })
		}
	}
	for name, call := range map[string]func(context.Context, *ledger.Ledger) error{
		"sealed":   update(func(tx store.Tx) { tx.Put(sealed) }),
		"unsealed": update(func(tx store.Tx) { tx.Put(&store.Record{Kind: kindChild, ID: uuid.UUID{1}, Version: 1}) }),
		"deletion": update(func(tx store.Tx) { tx.Delete(kindChild, uuid.UUID{1}) }),
		"rotation": func(ctx context.Context, l *ledger.Ledger) error {
			return l.RotateKeys(ctx, func(store.Tx) error { return nil })
		},
		"read": func(ctx context.Context, l *ledger.Ledger) error {
			time.Sleep(time.Second)
			return l.View(ctx, func(store.ReadTx) error { return nil })
		},
	} {
		bubble.Test(t, func(t *testing.T) {
			for _, s := range []store.Store{memstore.New(), uncounted{memstore.New()}} {
				stale, mover := ledgertest.On(t, s, nil), ledgertest.Mover(t, s)
				row, err := stale.NewRow()
				noErr(t, err)
				sealed = stale.In(stale.First).NewRecord(kindParent, row)
				noErr(t, stale.SealShown(sealed, []byte("secret")))
				noErr(t, stale.View(t.Context(), func(store.ReadTx) error { return nil }))
				_, err = mover.Fence(t.Context())
				noErr(t, err)
				if err := call(t.Context(), stale); !errors.Is(err, ledger.ErrMoved) {
					t.Errorf("%s = %v", name, err)
				}
			}
		})
	}
}

// A faultyKey unwraps by fault, once that is set.
type faultyKey struct {
	fault atomic.Pointer[func(context.Context) ([]byte, error)]
}

func (*faultyKey) KeyID() string { return "test" }

func (*faultyKey) Wrap(_ context.Context, b, _ []byte) ([]byte, error) { return bytes.Clone(b), nil }

func (k *faultyKey) Unwrap(ctx context.Context, b, _ []byte) ([]byte, error) {
	if fault := k.fault.Load(); fault != nil {
		return (*fault)(ctx)
	}
	return bytes.Clone(b), nil
}

// TestFenceWithoutKey: a process that cannot open the keyring with the fence reads nothing, and a
// process without its key that meets another change goes on.
func TestFenceWithoutKey(t *testing.T) {
	for name, fault := range map[string]func(context.Context) ([]byte, error){
		"no key":      func(context.Context) ([]byte, error) { return nil, errors.New("no key") },
		"another key": func(context.Context) ([]byte, error) { return make([]byte, 32), nil },
	} {
		bubble.Test(t, func(t *testing.T) {
			for _, s := range []store.Store{memstore.New(), uncounted{memstore.New()}} {
				key := new(faultyKey)
				stale := ledgertest.OnRing(t, s, ledger.Ring{{Wrapper: key}})
				other, mover := ledgertest.On(t, s, nil), ledgertest.Mover(t, s)
				read := func() error {
					time.Sleep(2 * time.Second)
					return stale.View(t.Context(), func(store.ReadTx) error { return nil })
				}
				noErr(t, read())
				key.fault.Store(&fault)
				noErr(t, other.RotateKeys(t.Context(), func(store.Tx) error { return nil }))
				noErr(t, read())
				_, err := mover.Fence(t.Context())
				noErr(t, err)
				for range 3 {
					if err := read(); !errors.Is(err, ledger.ErrUnavailable) {
						t.Errorf("%s: a read = %v", name, err)
					}
					if err := stale.View(t.Context(), func(store.ReadTx) error { return nil }); !errors.Is(err, ledger.ErrUnavailable) {
						t.Errorf("%s: a read right after = %v", name, err)
					}
				}
				key.fault.Store(nil)
				if err := read(); !errors.Is(err, ledger.ErrMoved) {
					t.Errorf("%s: a read with the key again = %v", name, err)
				}
			}
		})
	}
}

// TestFenceBesideASlowKey: while a process waits for the key that opens the keyring with the
// fence, its other reads wait as well.
func TestFenceBesideASlowKey(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, s := range []store.Store{memstore.New(), uncounted{memstore.New()}} {
			key := new(faultyKey)
			stale, mover := ledgertest.OnRing(t, s, ledger.Ring{{Wrapper: key}}), ledgertest.Mover(t, s)
			read := func() error { return stale.View(t.Context(), func(store.ReadTx) error { return nil }) }
			noErr(t, read())
			hangs := func(ctx context.Context) ([]byte, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			key.fault.Store(&hangs)
			_, err := mover.Fence(t.Context())
			noErr(t, err)
			mover.Noticed()

			var served atomic.Int32
			for range 30 {
				time.Sleep(500 * time.Millisecond)
				go func() {
					if read() == nil {
						served.Add(1)
					}
				}()
			}
			time.Sleep(time.Minute)
			if n := served.Load(); n > 0 {
				t.Errorf("%d reads were served", n)
			}
		}
	})
}

// TestFenceLookedForAgain: a reader whose context ends while it looks for a fence leaves the look
// to the next one.
func TestFenceLookedForAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, s := range []store.Store{memstore.New(), uncounted{memstore.New()}} {
			stale, mover := ledgertest.On(t, s, nil), ledgertest.Mover(t, s)
			read := func(ctx context.Context) error {
				return stale.View(ctx, func(store.ReadTx) error { return nil })
			}
			noErr(t, read(t.Context()))
			_, err := mover.Fence(t.Context())
			noErr(t, err)
			time.Sleep(2 * time.Second)
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			_ = read(ended)
			if err := read(t.Context()); !errors.Is(err, ledger.ErrMoved) {
				t.Errorf("a read after one that was given up = %v", err)
			}
		}
	})
}

// TestFenceTakenBack: a move that was taken back ends, and one that has left is not taken back.
func TestFenceTakenBack(t *testing.T) {
	s := memstore.New()
	ledgertest.On(t, s, nil)
	mover := ledgertest.Mover(t, s)
	fence, err := mover.Fence(t.Context())
	noErr(t, err)
	back, err := ledgertest.Back(t, s, fence.Move)
	noErr(t, err)
	noErr(t, back.In(back.First).Update(t.Context(), opSet, func(tx store.Tx) error {
		tx.Put(&store.Record{Kind: kindChild, ID: uuid.UUID{1}, Version: 1})
		return nil
	}))
	if err := mover.Leave(t.Context(), fence.Move, uuid.UUID{9}); !errors.Is(err, ledger.ErrMoveEnded) {
		t.Errorf("leaving a place whose move was taken back: %v", err)
	}

	second, err := ledgertest.Mover(t, s).Fence(t.Context())
	noErr(t, err)
	if second.Move == fence.Move {
		t.Error("two moves have one id")
	}
	again := ledgertest.Mover(t, s)
	noErr(t, again.Leave(t.Context(), second.Move, uuid.UUID{9}))
	noErr(t, again.Leave(t.Context(), second.Move, uuid.UUID{9}))
	if err := again.Leave(t.Context(), second.Move, uuid.UUID{8}); !errors.Is(err, ledger.ErrMoveEnded) {
		t.Errorf("leaving for a second place: %v", err)
	}
	if _, err := ledgertest.Back(t, s, second.Move); !errors.Is(err, ledger.ErrMoved) {
		t.Errorf("taking back a move that has ended: %v", err)
	}
}

func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
