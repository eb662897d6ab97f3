package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/vaulttest"
)

// A writer fails in the middle of a line, like the output of a killed process.
type writer struct {
	*os.File
	left int
}

func (w *writer) WriteString(s string) (int, error) {
	if w.left -= len(s); w.left >= 0 {
		return w.File.WriteString(s)
	}
	n, err := w.File.WriteString(s[:len(s)+w.left])
	return n, errors.Join(errors.New("killed"), err)
}

// After any number of interruptions each line of the input has one in the output, and each
// card has one token.
func TestMigrate(t *testing.T) {
	const cards = 3*batch + 17
	var in strings.Builder
	for n := range cards {
		fmt.Fprintf(&in, "customer-%d,4242424242424242,12,2090,A Customer\n", n)
	}
	in.WriteString("bad-number,4242424242424243,12,2090,A Customer\nno fields\n")
	v, path := vaulttest.New(t), filepath.Join(t.TempDir(), "tokens.csv")
	migrated := func(left int) error {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return migrate(t.Context(), v, strings.NewReader(in.String()), &writer{f, left})
	}

	for _, left := range []int{0, 1, 100, 20_000} {
		if migrated(left) == nil {
			t.Fatalf("with room for %d bytes it succeeds", left)
		}
	}
	for range 2 { // the second time nothing is left to do
		if err := migrated(1 << 30); err != nil {
			t.Fatal(err)
		}
	}

	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if migrate(t.Context(), v, strings.NewReader("customer-0,4242424242424242,12,2090,A\n"), f) == nil {
		t.Error("surplus results are not an error")
	}

	out, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	if len(lines) != cards+2 || bytes.Contains(out, []byte("424242424242")) {
		t.Errorf("%d lines, want %d without card numbers", len(lines), cards+2)
	}
	for n, line := range lines[:cards] {
		if !strings.HasPrefix(string(line), fmt.Sprintf("customer-%d,", n)) || bytes.Contains(line, []byte("refused")) {
			t.Errorf("line %d is %s", n, line)
		}
	}
	if p, err := v.List(t.Context(), nil); err != nil || p.TotalItems != cards {
		t.Errorf("%d tokens, %v; want %d", p.TotalItems, err, cards)
	}
}

// TestRefused: a refused line does not stop the others, and a column that may be a card
// number is not written.
func TestRefused(t *testing.T) {
	v, path := vaulttest.New(t), filepath.Join(t.TempDir(), "tokens.csv")
	run := func(lines ...string) string {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := migrate(t.Context(), v, strings.NewReader(strings.Join(lines, "\n")), f); err != nil {
			t.Fatal(err)
		}
		out, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}

	run("twice,4242424242424242,12,2090,A")
	const visa = ",4242424242424242,12,2090,A"
	long := strings.Repeat("k", 64)
	out := run("twice,4111111111111111,12,2090,A", "4242424242424242,twice,12,2090,A", "4242-4242-4242"+visa, "4242 4242"+visa,
		visa, long+"k"+visa, "a;b"+visa, "A_b.1-2345678901"+visa, long+visa, "0b6d6a0e-3a4e-4c0b-8f0e-1d2c3b4a5968"+visa)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 10 || lines[0] != "twice,refused: the key belongs to another card" {
		t.Fatalf("lines are %q", lines)
	}
	for i, line := range lines[1:7] {
		if want := fmt.Sprintf("line %d,refused: the key is missing, or there are not five fields", i+2); line != want {
			t.Errorf("line is %q, want %q", line, want)
		}
	}
	for i, line := range lines[7:] {
		if strings.Contains(line, "refused") {
			t.Errorf("good key %d is refused: %s", i, line)
		}
	}
}

// TestFailure: an error of the vault ends the run, names the line, and shows nothing of a
// card.
func TestFailure(t *testing.T) {
	v := vaulttest.New(t)
	v.Close()
	f, err := os.Create(filepath.Join(t.TempDir(), "tokens.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = migrate(t.Context(), v, strings.NewReader("\na,4242424242424242,12,2090,A Customer\n"), f)
	if !errors.Is(err, cardvault.ErrClosed) || !strings.HasPrefix(err.Error(), "line 2: ") {
		t.Errorf("without a vault: %v", err)
	}
	vaulttest.AssertNoLeak(t, []string{"4242424242424242", "A Customer"}, err)
}
