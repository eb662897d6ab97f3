//go:build cardvault_canary && linux

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
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/examples/internal/registers"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/payone"
)

// instrument makes this the server that a test searches for values it must not keep. Its
// payment provider is the test's, identifications end by the expiry of the card, it panics
// over cards of a range, and signals have it overwrite its registers (SIGUSR1) or collect its
// garbage after some work (SIGUSR2).
func instrument(o *cardvault.Options) error {
	provider, err := payone.New(os.Getenv("CARDVAULT_CANARY_PROVIDER"), nil)
	if err != nil {
		return err
	}

	o.PPAN, o.PPANTimeout = provider, 10*time.Second
	o.IDV = verifier{}
	o.BIN = explosive(os.Getenv("CARDVAULT_CANARY_PANIC"))

	// Where only parents may look into a process, gcore may look into this one. It is an
	// error where any process may.
	const setPtracer, anybody = 0x59616d61, ^uintptr(0)
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setPtracer, anybody, 0)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1, syscall.SIGUSR2)

	go func() {
		for s := range asked {
			if s == syscall.SIGUSR1 {
				registers.Overwrite()
				o.Logger.Info("registers overwritten")
				continue
			}
			work()
			runtime.GC()
			runtime.GC() // what sync.Pool holds outlives one
			o.Logger.Info("garbage collected")
		}
	}()
	return nil
}

// work does what the next requests would: it copies, is interrupted, and uses memory again that is
// free.
func work() {
	registers.Overwrite()
	var garbage [][]byte
	for size := 16; size <= 32<<10; size *= 2 {
		for n := 0; n < 8<<20; n += size {
			garbage = append(garbage, make([]byte, size))
		}
	}

	runtime.KeepAlive(garbage)
}

// An explosive is a range of cards, by its first digits.
type explosive string

func (e explosive) LookupBIN(_ context.Context, r *network.BINRequest) (*network.BIN, error) {
	if bytes.HasPrefix(r.IIN, []byte(e)) {
		panic("a card of the range that panics")
	}
	return nil, nil
}

// A verifier identifies the holders of cards that expire in 2031: it passes January,
// fails February, does not understand March, and never ends otherwise.
type verifier struct{}

func (verifier) Info() idv.Info { return idv.Info{Name: "verifier"} }

func (verifier) Identify(_ context.Context, r *idv.Request) (*idv.Result, error) {
	got := &idv.Result{State: idv.Pending, Reference: "pending"}
	switch r.Expiry {
	case card.Expiry{Month: 1, Year: 2031}:
		got.State = idv.Passed
		got.Authentication = &idv.Authentication{Method: "otp", At: time.Now()}
	case card.Expiry{Month: 2, Year: 2031}:
		got.State = idv.Failed
	case card.Expiry{Month: 3, Year: 2031}:
		r.SecurityCode.Expose(func(code []byte) { got.Reference, got.ChallengeURL = "pending", "code:"+string(code[:3]) })
	default:
		if r.Expiry.Year != 2031 {
			got.State = idv.NotNeeded
		}
	}
	return got, nil
}

func (verifier) LookupIdentification(context.Context, *idv.LookupRequest) (*idv.Result, error) {
	return &idv.Result{State: idv.Pending, Reference: "pending"}, nil
}
