// Ceremony divides the key of a vault among custodians, and opens the vault with the shares
// of a few of them.
//
//	ceremony -shares 5 -needed 3
//	ceremony -open vault
//
// The first line makes a key, never shows it, and shows each custodian one share, which they
// write down and type back. The second line asks a few custodians for their shares, and
// opens the vault in the folder, or makes it. docs/custody.md has the steps around it.
//
// One custodian is at the screen at a time. The screen is cleared before the next one comes,
// with the lines that the terminal keeps above it. Run it on a console that records nothing.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/kms/shares"
)

func main() {
	n := flag.Int("shares", 0, "make a key, and so many shares of it")
	k := flag.Int("needed", 3, "how many shares give the key back")
	dir := flag.String("open", "", "folder of the vault to open with shares")
	flag.Parse()
	if flag.NArg() > 0 || (*n == 0) == (*dir == "") {
		flag.Usage()
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	console := screen{os.Stdin, os.Stdout}
	defer context.AfterFunc(ctx, func() { // reading does not end with ctx
		console.clear()
		os.Exit(1)
	})()
	var err error
	if *n > 0 {
		err = console.deal(ctx, *n, *k)
	} else {
		err = console.open(ctx, *dir)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// A screen is where one custodian at a time sits.
type screen struct {
	in  io.Reader
	out io.Writer
}

// clear empties the screen, and the lines that a terminal keeps above it.
func (s screen) clear() { fmt.Fprint(s.out, "\x1b[H\x1b[2J\x1b[3J") }

// deal makes a key, and shows each share to its custodian.
func (s screen) deal(ctx context.Context, n, k int) error {
	defer s.clear()
	all, err := shares.Generate(n, k)
	if err != nil {
		return err
	}
	for _, share := range all {
		defer share.Wipe()
	}
	for _, share := range all {
		if err := s.hand(ctx, share); err != nil {
			return err
		}
	}

	s.clear()
	fmt.Fprintf(s.out, "Set %s: all %d custodians have their shares, and %d of them open the vault.\n", all[0].Set(), n, k)
	return s.pause(ctx, "The last custodian leaves. Press Enter.")
}

// hand shows a share until its custodian has typed it back: a share that was written down
// wrongly is found today, and not when it is needed.
func (s screen) hand(ctx context.Context, share shares.Share) error {
	s.clear()
	if err := s.pause(ctx, fmt.Sprintf("Custodian %d of %d comes to the screen, alone. Press Enter.", share.Number(), share.Total())); err != nil {
		return err
	}
	for {
		text := share.Text()
		fmt.Fprintf(s.out, "Share %d of %d, set %s. Write it down:\n\n", share.Number(), share.Total(), share.Set())
		_, err := fmt.Fprintf(s.out, "%s\n\n", text)
		clear(text)
		if err == nil {
			err = s.pause(ctx, "Press Enter when it is written down.")
		}
		if err != nil {
			return err
		}

		s.clear()
		typed, err := s.ask(ctx, "Type it back from the paper, then an empty line:")
		if err != nil {
			return err
		}
		got, err := shares.Parse(typed)
		clear(typed)
		right := err == nil && same(got, share)
		got.Wipe()
		if right {
			return nil
		}
		s.clear()
		fmt.Fprintln(s.out, "This is not the share. Compare it with the paper.")
	}
}

func same(a, b shares.Share) (equal bool) {
	a.Expose(func(x []byte) {
		b.Expose(func(y []byte) { equal = bytes.Equal(x, y) })
	})
	return equal
}

// open asks for shares until they give the key, and opens the vault with it.
func (s screen) open(ctx context.Context, dir string) error {
	keys, err := shares.Collect(ctx, s.enter)
	s.clear()
	if err != nil {
		return err
	}
	v, err := cardvault.Open(ctx, dir, keys, nil)
	if err != nil {
		return err
	}
	defer v.Close()
	_, err = fmt.Fprintf(s.out, "The vault is open, in %v mode.\n", v.Mode()) // and would serve now
	return err
}

// enter has one custodian enter a share.
func (s screen) enter(ctx context.Context, p shares.Prompt) ([]byte, error) {
	s.clear()
	if p.Problem != nil {
		fmt.Fprintln(s.out, p.Problem)
	}
	if p.Needed > 0 {
		fmt.Fprintf(s.out, "Set %s: shares %v were entered, and %d more are needed.\n", p.Set, p.Numbers, p.Needed-p.Entered)
	}
	return s.ask(ctx, "One custodian comes to the screen, alone, and types a share, then an empty line:")
}

func (s screen) pause(ctx context.Context, text string) error {
	fmt.Fprintln(s.out, text)
	line, err := s.line(ctx)
	clear(line)
	return err
}

// ask returns the lines before an empty one.
func (s screen) ask(ctx context.Context, question string) ([]byte, error) {
	fmt.Fprintln(s.out, question)
	text := make([]byte, 0, maxText)
	for {
		line, err := s.line(ctx)
		empty := len(bytes.TrimSpace(line)) == 0
		fits := len(text)+len(line)+1 <= maxText
		if fits {
			text = append(append(text, line...), '\n')
		}
		clear(line)
		switch {
		case err != nil:
			clear(text)
			return nil, err
		case !fits:
			clear(text)
			return nil, errors.New("a share is shorter")
		case empty && len(text) > 1:
			return text, nil
		case empty:
			text = text[:0]
		}
	}
}

// maxText limits a line, and a share with its line breaks.
const maxText = 512

// line reads a line, a byte at a time: a buffer would keep the share.
func (s screen) line(ctx context.Context) ([]byte, error) {
	line, b := make([]byte, 0, maxText), make([]byte, 1)
	for ctx.Err() == nil {
		n, err := s.in.Read(b)
		switch {
		case n == 1 && b[0] == '\n':
			return line, nil
		case n == 1 && len(line) == maxText:
			return line, errors.New("the line is too long")
		case n == 1:
			line = append(line, b[0])
		case err != nil:
			return line, err
		}
	}
	return line, ctx.Err()
}
