package plausible

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/network"
)

// A withheld error is an error whose text repeats a secret of the request.
type withheld struct{ cause error }

func (e *withheld) Error() string {
	return fmt.Sprintf("%T, whose text contains data that was sent", e.cause)
}

func (e *withheld) Unwrap() error { return e.cause }

// Withhold returns err without its text if that holds a card number or one of
// secrets. The code of a refusal is shown and stored: there a security code counts
// if it is a number by itself.
func Withhold(err error, pan card.PAN, secrets ...[]byte) error {
	if e, ok := errors.AsType[*network.Error](err); ok && e != nil {
		for _, s := range secrets {
			if leak.HoldsRun(string(e.Code), s) || leak.HoldsRun(e.SchemeCode, s) {
				refusal := *e
				if refusal.SchemeCode = ""; leak.HoldsRun(string(e.Code), s) {
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

	bad := leak.Holds(err.Error(), hiding.Of(pan))
	for _, s := range secrets {
		bad = bad || len(s) > 0 && bytes.Contains([]byte(err.Error()), s)
	}

	if bad {
		return &withheld{err}
	}
	return err
}
