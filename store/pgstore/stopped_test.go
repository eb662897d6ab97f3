//go:build unix

package pgstore_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
)

// A stopping store stops its process once: before an Update, when its records are sealed, or
// after the function of the Update, before the commit.
type stopping struct {
	store.Store
	before, after bool
}

func stop(once *bool) {
	if !*once {
		return
	}
	*once = false
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	<-goesOn // the signal may reach this goroutine's thread late
}

func (s *stopping) Update(ctx context.Context, fn func(store.Tx) error) error {
	stop(&s.before)
	return s.Store.Update(ctx, func(tx store.Tx) error {
		err := fn(tx)
		stop(&s.after)
		return err
	})
}

func stoppedVault(t *testing.T, s store.Store) *cardvault.Vault {
	t.Helper()
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{5}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

var stoppedCard = cardvault.Card{PAN: card.NewPAN([]byte("4111111111111111")), Expiry: card.Expiry{Month: 12, Year: 2090}}

// TestRetireStopped: a process is stopped in the middle of an import, and meanwhile its term is
// closed, or destroyed. Then it writes nothing under that term.
func TestRetireStopped(t *testing.T) {
	const child = "CARDVAULT_TEST_STOPPED"
	if text, ok := os.LookupEnv(child); ok {
		where, rest, _ := strings.Cut(text, " ")
		url, schema, _ := strings.Cut(rest, " ")
		s := &stopping{Store: open(t, pool(t, url), schema)}
		v := stoppedVault(t, s)
		if _, err := v.Import(t.Context(), stoppedCard, nil); err != nil { // its term is remembered then
			t.Fatal(err)
		}
		s.before, s.after = where == "before", where == "after"
		for range 100 {
			token, err := v.Import(t.Context(), stoppedCard, nil)
			if err == nil {
				fmt.Println("imported", token.ID)
				return
			}
			if !errors.Is(err, cardvault.ErrUnavailable) {
				t.Fatal(err)
			}
			fmt.Println("unavailable")
		}
		return
	}

	for _, where := range []string{"before", "after"} {
		for _, destroyed := range []bool{false, true} {
			t.Run(fmt.Sprint(where, " ", destroyed), func(t *testing.T) {
				url := postgres.Get(t).URL("postgres")
				p := pool(t, url)
				name := schema(t, p)
				s := open(t, p, name)
				v := stoppedVault(t, s)

				process := exec.Command(os.Args[0], "-test.run=^TestRetireStopped$")
				process.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", child, where, url, name))
				process.Stderr = os.Stderr
				out, err := process.StdoutPipe()
				if err == nil {
					err = process.Start()
				}
				if err != nil {
					t.Fatal(err)
				}
				var status syscall.WaitStatus
				if _, err := syscall.Wait4(process.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
					t.Fatalf("the process is not stopped: %v, %v", status, err)
				}

				if err := retired(t, v, s, destroyed); err != nil {
					t.Error(err)
				}
				if err := process.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				id, failures := outcome(t, out)
				if err := process.Wait(); err != nil {
					t.Fatal(err)
				}
				if !destroyed && failures > 0 {
					t.Errorf("the import has failed %d times", failures)
				}
				if _, err := v.Get(t.Context(), id); err != nil {
					t.Error(err)
				}
				former := int64(1) // was there before
				if destroyed {
					former = 0
				}
				if r, err := v.KeyReport(t.Context()); err != nil || r.Terms[0].Records["token"] != former || r.Terms[1].Records["token"] != 2-former {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
	}
}

// retired closes the first term of a vault. If the key is to be destroyed, it seals all records
// anew too: closing the term in a bubble, which is long ago, takes the waiting out.
func retired(t *testing.T, v *cardvault.Vault, s store.Store, destroyed bool) error {
	t.Helper()
	closes := func(v *cardvault.Vault) error {
		if _, err := v.RotateKeys(t.Context(), nil); err != nil {
			return err
		}
		if err := v.RetireTerm(t.Context(), 1); !errors.Is(err, cardvault.ErrTermInUse) {
			return fmt.Errorf("closing: %w", err)
		}
		return nil
	}
	if !destroyed {
		return closes(v)
	}

	var err error
	outside := bubble.Outside(t, s)
	bubble.Test(t, func(t *testing.T) { err = closes(stoppedVault(t, outside)) })
	if err == nil {
		err = v.Drain(t.Context())
	}
	if err == nil {
		err = v.RetireTerm(t.Context(), 1)
	}
	return err
}

// outcome returns what the process has imported, and how often it has failed before.
func outcome(t *testing.T, out io.Reader) (id uuid.UUID, failures int) {
	t.Helper()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		text, imported := strings.CutPrefix(lines.Text(), "imported ")
		switch {
		case lines.Text() == "unavailable":
			failures++
		case imported:
			id = uuid.MustParse(text)
		}
	}
	return id, failures
}
