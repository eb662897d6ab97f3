package cardvault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
)

// What an adapter may not do: it must not pass for an answer.
var (
	errPanic   = errors.New("cardvault: adapter panicked")
	errGarbage = errors.New("cardvault: adapter gave an answer that cannot be right")
)

// ask calls the network with a deadline.
func (c *core) ask(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.NetworkTimeout)
	defer cancel()
	return c.guard("network", func() error { return f(ctx) })
}

// guard calls the network or another adapter. A panic, and a refusal that is nil,
// are no answer.
func (c *core) guard(who string, f func() error) (err error) {
	defer func() {
		if recover() != nil { // the value may hold anything
			c.log.Error(who+" panicked", "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	err = f()
	var refusal *NetworkError
	if errors.As(err, &refusal) && refusal == nil {
		return errGarbage
	}
	return err
}

// printable returns an error of an adapter or provider as it may be logged:
// whole, unless it could hold a card number.
func printable(err error) string {
	text := err.Error()
	if mayHoldPAN(text) {
		return fmt.Sprintf("%T, whose text could hold a card number", err)
	}
	return text
}

// A withheld error is one whose text holds what was sent.
type withheld struct{ cause error }

func (e *withheld) Error() string { return fmt.Sprintf("%T, whose text holds what was sent", e.cause) }

func (e *withheld) Unwrap() error { return e.cause }

// withhold returns err without its text if that holds a card number or one of
// secrets. The code of a refusal is shown and stored: there a security code counts
// if it is a number by itself.
func withhold(err error, pan PAN, secrets ...[]byte) error {
	if e, ok := errors.AsType[*NetworkError](err); ok && e != nil {
		for _, s := range secrets {
			if holdsRun(e.Code, s) || holdsRun(e.SchemeCode, s) {
				refusal := *e
				if refusal.SchemeCode = ""; holdsRun(e.Code, s) {
					refusal.Code = ""
				}
				return &refusal
			}
		}
		return err
	}

	if err == nil {
		return nil
	}

	bad := holdsNumber(err.Error(), pan.get())
	for _, s := range secrets {
		bad = bad || len(s) > 0 && bytes.Contains([]byte(err.Error()), s)
	}

	if bad {
		return &withheld{err}
	}
	return err
}

// holdsNumber reports whether the digits of text, whatever is between them, hold
// those of a card number.
func holdsNumber(text string, digits []byte) bool {
	var found []byte
	for _, c := range []byte(text) {
		if c >= '0' && c <= '9' {
			found = append(found, c)
		}
	}
	defer clear(found)
	return len(digits) > 0 && bytes.Contains(found, digits)
}

// holdsRun reports whether text has digits as a number by itself.
func holdsRun(text string, digits []byte) bool {
	for run := range strings.FieldsFuncSeq(text, func(r rune) bool { return r < '0' || r > '9' }) {
		if run == string(digits) {
			return true
		}
	}
	return false
}

// mayHoldPAN reports whether text has as many digits in a row as a card number,
// also with blanks, dots, hyphens, underscores and slashes in between. The check digit does not count.
func mayHoldPAN(text string) bool {
	digits := 0
	for _, c := range text {
		switch {
		case c >= '0' && c <= '9':
			if digits++; digits >= minPAN {
				return true
			}
		case !strings.ContainsRune(" -._/", c):
			digits = 0
		}
	}
	return false
}
