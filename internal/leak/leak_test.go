package leak_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/leak"
)

func TestTexts(t *testing.T) {
	const number = "4242424242424242"
	for _, test := range []struct {
		text                    string
		may, looks, holds, runs bool // runs: the result for 737
	}{
		{"", false, false, false, false},
		{"card 4242 4242 4242 4242 refused", true, true, true, false},
		{"card 4242-4242 4242_4242, code 737", true, true, true, true},
		{"order 1111 1111 1111", true, false, false, false},
		{"c4a2d4242b4242c4242", false, false, false, false},
		{"4,2,4,2,4,2,4,2,4,2,4,2,4,2,4,2", false, false, true, false},
		{"٤٢٤٢٤٢٤٢٤٢٤٢٤٢٤٢", false, true, false, false},
		{"code 7370", false, false, false, false},
	} {
		may, looks := leak.MayHoldPAN(test.text), leak.LooksLikePAN([]byte(test.text))
		holds, runs := leak.Holds(test.text, []byte(number)), leak.HoldsRun(test.text, []byte("737"))
		if may != test.may || looks != test.looks || holds != test.holds || runs != test.runs {
			t.Errorf("%q: may hold %v, looks like %v, holds %v, runs %v", test.text, may, looks, holds, runs)
		}
	}
}

func TestPrintable(t *testing.T) {
	if text := leak.Printable(errors.New("timeout")); text != "timeout" {
		t.Error(text)
	}
	if text := leak.Printable(errors.New("card 4242424242424242")); strings.Contains(text, "42") {
		t.Error(text)
	}
}
