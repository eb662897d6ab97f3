package shares

import (
	"context"
	"fmt"

	"github.com/cardvault/cardvault"
)

// maxWrong limits the texts in a row that are not a further share of the set.
const maxWrong = 10

// A Prompt says which share is entered next.
type Prompt struct {
	// Entered is the number of shares that were entered.
	Entered int

	// Needed is the number of shares that the set needs, 0 before the first share.
	Needed int

	// Numbers are the numbers of the shares that were entered, in the order of their entry.
	Numbers []int

	// Set names the set, "" before the first share.
	Set string

	// Problem is the reason why the text before was not taken, nil if it was. It wraps
	// ErrMistyped, ErrOtherSet or ErrTwice, and holds nothing of the text.
	Problem error
}

// Collect asks for the shares of a set, one after another, and returns the keyring of their
// key. Only the keyring has the key then.
//
// ask has one custodian enter the text of one share, unseen by the others. Whatever shows the
// text is gone when ask returns: a screen is cleared before the next custodian comes. Collect
// erases the text. A text that is not taken is asked for again, with the reason in the
// prompt. After ten such texts in a row Collect returns the last reason. An error of ask, or
// the end of ctx, ends Collect.
//
// Collect returns [ErrForged] if the shares do not give the key of their set. It does not
// know which of them is forged.
func Collect(ctx context.Context, ask func(ctx context.Context, p Prompt) ([]byte, error)) (*cardvault.Keyring, error) {
	var taken []Share
	defer func() {
		for _, s := range taken {
			s.Wipe()
		}
	}()

	p, wrong := Prompt{}, 0
	for p.Needed == 0 || p.Entered < p.Needed {
		if wrong == maxWrong {
			return nil, fmt.Errorf("shares: %d texts in a row were not taken: %w", wrong, p.Problem)
		}
		s, problem, err := enter(ctx, ask, p)
		if err != nil {
			return nil, err
		}
		if problem == nil {
			problem = fits(s, taken)
		}
		if p.Problem = problem; problem != nil {
			wrong++
			s.Wipe()
			continue
		}

		wrong = 0
		taken = append(taken, s)
		p.Entered, p.Needed, p.Set = len(taken), s.Needed(), s.Set()
		p.Numbers = append(p.Numbers, s.Number())
	}

	key, err := combine(taken)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	return cardvault.KeyBytes(key)
}

// enter asks for a share. The problem is with its text, the error ends the ceremony.
func enter(ctx context.Context, ask func(context.Context, Prompt) ([]byte, error), p Prompt) (s Share, problem, err error) {
	if err := ctx.Err(); err != nil {
		return Share{}, nil, err
	}
	p.Numbers = append([]int(nil), p.Numbers...)
	text, err := ask(ctx, p)
	defer clear(text)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return Share{}, nil, err
	}
	s, problem = Parse(text)
	return s, problem, nil
}

// fits returns an error unless s is another share of the set.
func fits(s Share, taken []Share) error {
	for _, other := range taken {
		switch {
		case s.Set() != other.Set() || s.Needed() != other.Needed() || s.Total() != other.Total():
			return fmt.Errorf("%w: %v, not set %s", ErrOtherSet, s.Set(), other.Set())
		case s.Number() == other.Number():
			return fmt.Errorf("%w: number %d", ErrTwice, s.Number())
		}
	}
	return nil
}
