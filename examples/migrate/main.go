// Migrate imports cards from a file of lines such as
//
//	customer-17,4242424242424242,12,2030,A Customer
//
// and writes one line for each: its business key and its token, or the reason for a
// refusal. It may be ended at any instant and started again: written lines are done, and
// unfinished ones are imported again under the same idempotency keys, which makes no second
// token. That holds while the vault keeps the keys: start again within its
// Options.IdempotencyTTL.
//
// A key is 1 to 64 letters, digits, dots, underscores and hyphens, with fewer than 12
// digits or a letter among them, and belongs to one card. Any other text is refused and not
// written: it may be a card number.
//
//	go run ./examples/migrate -vault DIR cards.csv tokens.csv
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
)

const (
	batch   = 1000 // lines at a time
	workers = 64   // imports at a time: they share the writes of the disk
)

func main() {
	dir := flag.String("vault", "vault", "directory of the vault")
	key := flag.String("key", "keys/vault.key", "its key file, which is made on first use")
	flag.Parse()
	if flag.NArg() != 2 {
		log.Fatal("migrate [-vault DIR] [-key FILE] cards.csv tokens.csv")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *dir, *key, flag.Arg(0), flag.Arg(1)); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir, key, cards, tokens string) (err error) {
	keys, err := cardvault.KeyFile(key, nil)
	if err != nil {
		return err
	}
	v, err := cardvault.Open(ctx, dir, keys, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()

	in, err := os.Open(cards)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(tokens, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	return migrate(ctx, v, in, out)
}

// migrate goes on behind the last line that is whole in out.
func migrate(ctx context.Context, v *cardvault.Vault, in io.Reader, out io.ReadWriteSeeker) error {
	done, err := resume(out)
	if err != nil {
		return err
	}
	lines, buffer := bufio.NewScanner(in), make([]byte, bufio.MaxScanTokenSize)
	lines.Buffer(buffer, len(buffer))
	defer clear(buffer) // of card numbers
	for n := 0; ; n += batch {
		var group [][]byte
		for len(group) < batch && lines.Scan() {
			group = append(group, bytes.Clone(lines.Bytes()))
		}
		if len(group) == 0 {
			return lines.Err()
		}
		skipped := min(max(done-n, 0), len(group))
		answers, err := importAll(ctx, v, group[skipped:], n+skipped+1)
		for _, line := range group {
			clear(line)
		}
		if err != nil {
			return err
		}
		if _, err := io.WriteString(out, strings.Join(answers, "")); err != nil {
			return err
		}
	}
}

// resume returns how many lines were written, and goes to the end of the last whole one.
func resume(out io.ReadSeeker) (lines int, err error) {
	end := int64(0)
	for r := bufio.NewReader(out); ; lines++ {
		line, err := r.ReadString('\n')
		if err == io.EOF {
			_, err = out.Seek(end, io.SeekStart)
			return lines, err
		}
		if err != nil {
			return 0, err
		}
		end += int64(len(line))
	}
}

// importAll returns the output for some lines; first is the number of the first line.
func importAll(ctx context.Context, v *cardvault.Vault, lines [][]byte, first int) ([]string, error) {
	answers := make([]string, len(lines))
	errs := make([]error, len(lines))
	free := make(chan struct{}, workers)
	var group sync.WaitGroup
	for i, line := range lines {
		free <- struct{}{}
		group.Go(func() {
			answers[i], errs[i] = importLine(ctx, v, line, first+i)
			<-free
		})
	}
	group.Wait()
	return answers, errors.Join(errs...)
}

// importLine imports the card of a line. A refused card is not an error.
func importLine(ctx context.Context, v *cardvault.Vault, line []byte, number int) (string, error) {
	fields := bytes.SplitN(line, []byte(","), 5)
	if len(fields) != 5 {
		return "refused: no line of five fields\n", nil
	}
	if !isKey(fields[0]) {
		return fmt.Sprintf("refused: line %d begins with no key\n", number), nil
	}
	key := string(fields[0])
	month, _ := strconv.Atoi(string(fields[2])) // 0 is refused
	year, _ := strconv.Atoi(string(fields[3]))
	c := cardvault.Card{
		PAN:    card.NewPAN(fields[1]),
		Expiry: card.Expiry{Month: month, Year: year},
		Name:   card.NewName(fields[4]),
	}

	opts := &cardvault.ImportOptions{BusinessKey: key, IdempotencyKey: "migrate:" + key, Bulk: true}
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		token, err := v.Import(ctx, c, opts)
		switch {
		case err == nil:
			return fmt.Sprintf("%s,%s\n", key, token.ID), nil
		case len(cardvault.FieldErrors(err)) > 0:
			return fmt.Sprintf("%s,refused: %v\n", key, err), nil
		case errors.Is(err, cardvault.ErrIdempotencyKeyReused):
			return key + ",refused: the key belongs to another card\n", nil
		case !errors.Is(err, cardvault.ErrUnavailable) && !errors.Is(err, cardvault.ErrOutcomeUnknown):
			return "", err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// isKey reports whether text may be written to the output: no card number can be in it.
func isKey(text []byte) bool {
	digits, letters := 0, 0
	for _, b := range text {
		switch {
		case '0' <= b && b <= '9':
			digits++
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z':
			letters++
		case b == '.', b == '_', b == '-':
		default:
			return false
		}
	}
	return 0 < len(text) && len(text) <= 64 && (digits < 12 || letters > 0)
}
