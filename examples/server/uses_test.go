//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/examples/internal/registers"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
)

// TestAbsenceOfUses lends cards, network tokens and cryptograms to functions that return,
// fail and panic, in a process of its own. Then it searches the traces of the process: its
// memory, a dump of it, its output and its files.
func TestAbsenceOfUses(t *testing.T) {
	if dir := os.Getenv(usesIn); dir != "" {
		uses(t, dir)
		return
	}
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAbsenceOfUses$")
	cmd.Env = append(os.Environ(), usesIn+"="+dir)
	output := newOutput()
	cmd.Stdout, cmd.Stderr = output, output
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the process says:\n%s", output.content())
		}
	})

	b := newBrood()
	for i := range 200 {
		what := []string{lendCard, lendCredential}[i%2]
		if _, err := io.WriteString(stdin, what+b.fill("PAN CODE", what)); err != nil {
			t.Fatal(err)
		}
	}
	s := newSearch(b.all)
	// What is really kept is found every time, what a register has kept is not.
	const rounds = 10
	for round := 1; round <= rounds; round++ {
		step := toCollect
		if round == 1 {
			step = toWork
		}
		if _, err := io.WriteString(stdin, step+b.fill("PAN CODE", "")); err != nil { // as long as the others
			t.Fatal(err)
		}
		output.wait(t, "did as told", 200+round)
		most := strayCards
		if round == rounds {
			most = 0
		}
		left := s.inMemory(t, cmd.Process.Pid)
		found := append(left.found(b.code), left.found(b.card)...)
		t.Logf("memory, step %d: %d of %d, of %v", round, len(found), len(s.canaries), found)
		if len(found) == 0 && round > 1 {
			break
		}
		if len(found) > most {
			t.Errorf("memory, step %d: %d left", round, len(found))
		}
	}
	if _, err := exec.LookPath("gcore"); err == nil {
		core := s.inCore(t, cmd.Process.Pid)
		if found := append(core.found(b.code), core.found(b.card)...); len(found) > 0 {
			t.Errorf("core dump: %v", found)
		}
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	vaulttest.AssertNoLeak(t, []string{b.code, b.card}, output.content(), os.DirFS(dir))
	if n := bytes.Count(output.content(), []byte("card used")); n < 200 {
		t.Errorf("%d uses are logged", n)
	}
}

const usesIn = "CARDVAULT_USES_IN" // a directory; in the environment of the process

// Orders of the process, each before a card number and a text of 24 digits.
const (
	lendCard       = "u"
	lendCredential = "c"
	toWork         = "w"
	toCollect      = "g"
)

// uses does as the lines on its standard input say.
func uses(t *testing.T, dir string) {
	ctx := context.Background()
	sim, err := simnet.New(ctx, memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	minted := &minting{Provider: sim}
	keys, err := cardvault.KeyFile(filepath.Join(dir, "keys", "vault.key"), nil)
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.Open(ctx, filepath.Join(dir, "vault"), keys, &cardvault.Options{
		Mode:     cardvault.Sandbox,
		Network:  minted,
		Purposes: []string{"test"},
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	paying, err := v.Import(ctx, cardvault.Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2030}}, nil)
	if err == nil {
		err = v.Drain(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}

	var line [1 + 16 + 1 + 24]byte
	for i := 0; ; i++ {
		if _, err := io.ReadFull(os.Stdin, line[:]); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		number, code := line[1:17], line[18:]
		switch string(line[:1]) {
		case lendCard:
			c := cardvault.Card{PAN: card.NewPAN(number), Expiry: card.Expiry{Month: 12, Year: 2030}}
			token, err := v.Import(ctx, c, nil)
			c.Wipe()
			if err != nil {
				t.Fatal(err)
			}
			ends(t, i, func(f func() error) error {
				return v.Use(ctx, token.ID, "test", func(_ context.Context, c *cardvault.UsedCard) error {
					expect(t, 16, c.PAN.Expose)
					return f()
				})
			})
		case lendCredential:
			minted.number, minted.value = card.NewPAN(number), card.NewCryptogramValue(code)
			ends(t, i, func(f func() error) error {
				order := cardvault.PaymentRequest{Amount: 1, Currency: "EUR", Reference: "1"}
				return v.UseCredential(ctx, paying.ID, "test", order, func(_ context.Context, c *receive.Credential) error {
					expect(t, 16, c.Number.Expose)
					expect(t, 24, c.Cryptogram.Expose)
					return f()
				})
			})
		case toWork:
			registers.Overwrite()
		case toCollect:
			registers.Overwrite()
			runtime.GC()
			runtime.GC() // what sync.Pool holds outlives one
		}
		clear(line[:])
		fmt.Println("did as told")
	}
	if err := errors.Join(v.Close(), sim.Close()); err != nil {
		t.Fatal(err)
	}
}

// ends makes the i-th use, whose function returns, fails or panics.
func ends(t *testing.T, i int, use func(f func() error) error) {
	failure := errors.New("failure")
	defer func() {
		if p := recover(); (p != nil) != (i/2%3 == 2) {
			t.Errorf("use %d panics: %v", i, p)
		}
	}()
	err := use(func() error {
		switch i / 2 % 3 {
		case 1:
			return failure
		case 2:
			panic("of the function")
		}
		return nil
	})
	if (i/2%3 == 1) != errors.Is(err, failure) || i/2%3 == 0 && err != nil {
		t.Errorf("use %d: %v", i, err)
	}
}

// expect checks the length of a value that a function has.
func expect(t *testing.T, n int, expose func(func([]byte))) {
	expose(func(b []byte) {
		if len(b) != n {
			t.Errorf("the function has %d bytes", len(b))
		}
	})
}

// A minting network makes the credentials that it is told.
type minting struct {
	network.Provider
	number card.PAN
	value  card.CryptogramValue
}

func (m *minting) Unwrap() network.Provider { return m.Provider }

func (m *minting) Cryptogram(_ context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
	return &network.Cryptogram{TokenID: r.Token.ID, Number: m.number, Expiry: card.Expiry{Month: 12, Year: 2030}, Value: m.value, ECI: "07"}, nil
}
