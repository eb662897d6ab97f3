//go:build cardvault_canary

package main

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/payone"
)

// instrument makes this the server that a test searches for what it must not
// keep: its payment provider is that of the test, it panics over cards of a
// range, and on SIGUSR1 it collects its garbage.
func instrument(o *cardvault.Options) error {
	provider, err := payone.New(os.Getenv("CARDVAULT_CANARY_PROVIDER"), nil)
	if err != nil {
		return err
	}
	o.PPAN, o.PPANTimeout = provider, 2*time.Second
	o.BIN = explosive(os.Getenv("CARDVAULT_CANARY_PANIC"))
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		for range asked {
			runtime.GC()
			runtime.GC() // what sync.Pool holds outlives one
			o.Logger.Info("garbage collected")
		}
	}()
	return nil
}

// An explosive is a range of cards, by its first digits.
type explosive string

func (e explosive) LookupBIN(_ context.Context, iin []byte) (*cardvault.BIN, error) {
	if bytes.HasPrefix(iin, []byte(e)) {
		panic("a card of the range that panics")
	}
	return nil, nil
}
