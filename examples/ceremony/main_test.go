package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/kms/shares"
)

const clearing = "\x1b[H\x1b[2J\x1b[3J"

var written = regexp.MustCompile(`(?:(?:[0-9A-Z]{4} ){4}[0-9A-Z]{4}\n?){4}`)

// A custodian reads a share from the screen, types it back, and leaves with it.
type custodians struct {
	out    bytes.Buffer
	in     bytes.Buffer
	papers []string
}

func (c *custodians) Read(p []byte) (int, error) {
	if c.in.Len() == 0 {
		screens := strings.Split(c.out.String(), clearing)
		text := screens[len(screens)-1]
		switch paper := written.FindString(text); {
		case paper != "":
			c.papers = append(c.papers, strings.TrimSpace(paper))
			c.in.WriteString("\n")
		case strings.Contains(text, "Type it back"):
			c.in.WriteString(c.papers[len(c.papers)-1] + "\n\n")
		default:
			c.in.WriteString("\n")
		}
	}
	return c.in.Read(p)
}

// TestCeremony: five custodians get shares, and any three of them open the vault. No two
// shares are on one screen, and none is left on it.
func TestCeremony(t *testing.T) {
	var c custodians
	if err := (screen{&c, &c.out}).deal(t.Context(), 5, 3); err != nil {
		t.Fatal(err)
	}
	screens := strings.Split(c.out.String(), clearing)
	for _, text := range screens {
		if n := len(written.FindAllString(text, -1)); n > 1 {
			t.Errorf("%d shares are on one screen: %s", n, text)
		}
	}
	if last := screens[len(screens)-1]; last != "" || len(c.papers) != 5 {
		t.Fatalf("%d shares were written down, and the screen shows %q", len(c.papers), last)
	}

	dir := filepath.Join(t.TempDir(), "vault")
	open := func(papers ...string) (string, error) {
		var out bytes.Buffer
		err := screen{strings.NewReader(strings.Join(papers, "\n\n") + "\n\n"), &out}.open(t.Context(), dir)
		return out.String(), err
	}
	for _, order := range [][]int{{0, 1, 2}, {4, 2, 1}} {
		out, err := open(c.papers[order[0]], c.papers[order[1]], c.papers[order[2]])
		if err != nil || !strings.HasSuffix(out, clearing+"The vault is open, in live mode.\n") {
			t.Errorf("%v: %v, %q", order, err, out)
		}
	}

	mistyped := strings.Replace(c.papers[1], c.papers[1][:1], "Z", 1)
	out, err := open(c.papers[0], mistyped, c.papers[0], c.papers[3])
	if !errors.Is(err, io.EOF) || !strings.Contains(out, "mistyped") || !strings.Contains(out, "entered before: number 1") || !strings.Contains(out, "shares [1 4] were entered, and 1 more are needed") {
		t.Errorf("%v, %s", err, out)
	}
	for _, paper := range c.papers {
		if strings.Contains(out, paper[5:19]) {
			t.Error("the screen shows what was typed")
		}
	}
}

// TestWrittenWrongly: a share that was written down wrongly is shown again.
func TestWrittenWrongly(t *testing.T) {
	all, err := shares.Generate(2, 2)
	if err != nil {
		t.Fatal(err)
	}
	wrong := append([]byte("Z"), all[0].Text()[1:]...)
	in := "\n\n" + string(wrong) + "\n\n\n" + string(all[1].Text()) + "\n\n\n" + string(all[0].Text()) + "\n\n"
	var out bytes.Buffer
	if err := (screen{strings.NewReader(in), &out}).hand(t.Context(), all[0]); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "This is not the share"); n != 2 {
		t.Errorf("%d texts were refused", n)
	}
}

func TestEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (screen{strings.NewReader("\n"), io.Discard}).open(ctx, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for _, typed := range []string{strings.Repeat("A", 600), strings.Repeat("AAAA\n", 200), "AAAA"} {
		if err := (screen{strings.NewReader(typed), io.Discard}).open(t.Context(), t.TempDir()); err == nil || errors.Is(err, cardvault.ErrWrongKey) {
			t.Errorf("%.10s…: %v", typed, err)
		}
	}
}
