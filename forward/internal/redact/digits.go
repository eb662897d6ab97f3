package redact

import (
	"unicode"
	"unicode/utf8"
)

// A class says what a byte is among the digits of a number.
type class uint8

const (
	foreign   class = iota // ends a number
	separator              // may stand between its digits, also NUL, as in UTF-16
	digit
	high // begins a character that is not ASCII
)

var classes = func() (table [256]class) {
	for _, c := range "\x00\t\n\r -._/,+():'" {
		table[c] = separator
	}
	for c := '0'; c <= '9'; c++ {
		table[c] = digit
	}
	for c := utf8.RuneSelf; c < len(table); c++ {
		table[c] = high
	}
	return table
}()

const (
	maxGap    = 4    // separators between two digits
	maxDigits = 19   // of a card number
	longRun   = 1024 // digits; only the last maxDigits can still begin a number
)

// A place is where a digit stands.
type place struct {
	start, end int32
	value      byte
}

// digits calls hide for each hidden digit of each number in text. A number may be among
// more digits.
func (r *Redactor) digits(text []byte, hide func(start, end int)) {
	if len(r.numbers) == 0 {
		return
	}
	run, gap := make([]place, 0, 64), 0
	for i := 0; i < len(text); {
		at, size := place{int32(i), int32(i) + 1, text[i]}, 1
		what := classes[text[i]]
		if what == high {
			what, at.value, size = classify(text[i:])
			at.end = at.start + int32(size)
		}
		i += size

		switch {
		case what == digit:
			if len(run) == longRun {
				run = append(run[:0], run[longRun-maxDigits:]...)
			}
			run, gap = append(run, at), 0
			r.numberEnds(run, hide)
		case what == separator && gap < maxGap:
			gap++
		case len(run) > 0:
			run = run[:0]
		}
	}
}

// numberEnds marks the hidden digits of each number that ends with a run of digits.
func (r *Redactor) numberEnds(run []place, hide func(start, end int)) {
	for i := range r.numbers {
		n := &r.numbers[i]
		if len(run) < n.length || run[len(run)-1].value != n.last[len(n.last)-1] {
			continue
		}
		candidate := run[len(run)-n.length:]
		if !are(candidate, n.first[:]) || !are(candidate[n.length-len(n.last):], n.last[:]) {
			continue
		}
		for _, d := range candidate[len(n.first) : n.length-len(n.last)] {
			hide(int(d.start), int(d.end))
		}
	}
}

// are reports whether a run begins with digits.
func are(run []place, digits []byte) bool {
	for i, d := range digits {
		if run[i].value != d {
			return false
		}
	}
	return true
}

const firstMathematical = '\U0001D7CE' // the first zero of the mathematical digits

// classify reads a character that is not ASCII: digits of any script count, and whatever
// separates or does not show.
func classify(text []byte) (what class, value byte, size int) {
	r, size := utf8.DecodeRune(text)
	switch {
	case r >= firstMathematical && r < firstMathematical+50: // five alphabets in a row
		return digit, '0' + byte((r-firstMathematical)%10), size
	case unicode.Is(unicode.Nd, r):
		// They come in runs of ten, from zero to nine: Unicode, section 4.6.
		for lower := r - 1; unicode.Is(unicode.Nd, lower); lower-- {
			value++
		}
		return digit, '0' + value%10, size
	case unicode.In(r, unicode.Z, unicode.Pd, unicode.Cf, unicode.Mn) || r == '·' || r == '−':
		return separator, 0, size
	}
	return foreign, 0, size
}
