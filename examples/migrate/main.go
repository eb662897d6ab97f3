// Migrate imports cards from lines of its standard input such as
//
//	customer-17,4242424242424242,12,2030,A Customer
//
// and writes to a file the key and token of each card, or the reason of a refusal. It ends at
// any other error. Started again with the same lines, it continues after the last result. It
// repeats an unfinished import under the same idempotency key, which makes no second token as
// long as the vault keeps the key (Options.IdempotencyTTL).
//
//	gpg -d cards.csv.gpg | go run ./examples/migrate VAULT KEYFILE tokens.csv
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
)

const batch = 256 // lines in memory, whose imports share the writes of the disk

var (
	isKey  = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	isCard = regexp.MustCompile(`^[^A-Za-z]*([0-9][^A-Za-z]*){12}$`) // or looks like one
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil { // ctrl-C ends it too
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 3 {
		return errors.New("usage: migrate VAULT KEYFILE tokens.csv <cards.csv")
	}
	keys, err := cardvault.KeyFile(args[1], nil)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(args[2], os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	v, err := cardvault.Open(ctx, args[0], keys, nil)
	if err != nil {
		return err
	}
	return errors.Join(migrate(ctx, v, os.Stdin, out), v.Close(), out.Close())
}

// migrate imports the lines that have no result in out.
func migrate(ctx context.Context, v *cardvault.Vault, in io.Reader, out io.ReadWriteSeeker) error {
	lines, buffer := bufio.NewScanner(in), make([]byte, bufio.MaxScanTokenSize)
	lines.Buffer(buffer, len(buffer))
	defer clear(buffer) // of card numbers
	number, end := 1, int64(0)
	for results := bufio.NewReader(out); ; number++ {
		result, err := results.ReadString('\n')
		if err == io.EOF { // what follows the last whole line is written again
			break
		}
		if err != nil || !lines.Scan() {
			return errors.Join(errors.New("the results belong to other cards"), err, lines.Err())
		}
		end += int64(len(result))
	}
	if _, err := out.Seek(end, io.SeekStart); err != nil {
		return err
	}

	for more := true; more; number += batch {
		var results [batch]string
		var errs [batch]error
		var group sync.WaitGroup
		for i := range batch {
			if more = lines.Scan(); !more {
				break
			}
			line := bytes.Clone(lines.Bytes())
			group.Go(func() { results[i], errs[i] = importLine(ctx, v, line, number+i) })
		}
		group.Wait()
		if err := cmp.Or(errs[:]...); err != nil {
			return err
		}
		if _, err := io.WriteString(out, strings.Join(results[:], "")); err != nil {
			return err
		}
	}
	return lines.Err()
}

// importLine returns the result of a line, which it wipes.
func importLine(ctx context.Context, v *cardvault.Vault, line []byte, number int) (string, error) {
	defer clear(line)
	fields := bytes.SplitN(line, []byte(","), 5)
	if len(fields) != 5 || !isKey.Match(fields[0]) || isCard.Match(fields[0]) {
		return fmt.Sprintf("line %d,refused: the key is missing, or there are not five fields\n", number), nil
	}
	key := string(fields[0])
	month, _ := strconv.Atoi(string(fields[2])) // 0 is refused
	year, _ := strconv.Atoi(string(fields[3]))
	c := cardvault.Card{PAN: card.NewPAN(fields[1]), Expiry: card.Expiry{Month: month, Year: year}, Name: card.NewName(fields[4])}

	token, err := v.Import(ctx, c, &cardvault.ImportOptions{BusinessKey: key, IdempotencyKey: "migrate:" + key, Bulk: true})
	switch {
	case err == nil:
		return fmt.Sprintf("%s,%v\n", key, token.ID), nil
	case errors.Is(err, cardvault.ErrIdempotencyKeyReused):
		return key + ",refused: the key belongs to another card\n", nil
	case len(cardvault.FieldErrors(err)) > 0:
		return fmt.Sprintf("%s,refused: %v\n", key, err), nil
	}
	return "", fmt.Errorf("line %d: %w", number, err)
}
