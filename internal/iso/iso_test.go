package iso_test

import (
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/iso"
)

// letters calls f with every string of n upper-case letters.
func letters(n int, f func(string)) {
	var walk func(string)
	walk = func(s string) {
		if len(s) == n {
			f(s)
			return
		}
		for c := 'A'; c <= 'Z'; c++ {
			walk(s + string(c))
		}
	}
	walk("")
}

// The counts match the list published on 2026-09-17.
func TestCurrencies(t *testing.T) {
	byMinor := map[int8]int{}
	byNumber := map[uint16]string{}
	letters(3, func(code string) {
		u, ok := iso.Currency(code)
		if !ok {
			if u != (iso.Unit{}) {
				t.Errorf("%s is unknown, but %v", code, u)
			}
			return
		}
		byMinor[u.Minor]++
		if u.Code != code {
			t.Errorf("%s has code %q", code, u.Code)
		}
		if u.Number == 0 || u.Number > 999 {
			t.Errorf("%s has number %d", code, u.Number)
		}
		if other, ok := byNumber[u.Number]; ok {
			t.Errorf("%s and %s share number %d", code, other, u.Number)
		}
		byNumber[u.Number] = code
	})
	if len(byNumber) != 178 {
		t.Errorf("%d currencies, want 178", len(byNumber))
	}
	for minor, want := range map[int8]int{-1: 13, 0: 17, 2: 139, 3: 7, 4: 2} {
		if byMinor[minor] != want {
			t.Errorf("%d currencies of %d decimals, want %d", byMinor[minor], minor, want)
		}
	}
}

func TestCurrency(t *testing.T) {
	for _, want := range []iso.Unit{
		{"AED", 784, 2}, {"ALL", 8, 2}, {"EUR", 978, 2}, {"USD", 840, 2}, {"GBP", 826, 2}, {"CHF", 756, 2},
		{"ZWG", 924, 2}, // the newest

		// Currencies whose number of decimals is easily mistaken.
		{"JPY", 392, 0}, {"KRW", 410, 0}, {"ISK", 352, 0}, {"CLP", 152, 0}, {"UGX", 800, 0}, {"XOF", 952, 0},
		{"HUF", 348, 2}, {"IDR", 360, 2}, {"COP", 170, 2}, {"IRR", 364, 2}, {"MGA", 969, 2}, {"RSD", 941, 2},
		{"BHD", 48, 3}, {"IQD", 368, 3}, {"JOD", 400, 3}, {"KWD", 414, 3}, {"LYD", 434, 3}, {"OMR", 512, 3},
		{"TND", 788, 3}, {"CLF", 990, 4}, {"UYW", 927, 4},

		// Added in recent years.
		{"MRU", 929, 2}, {"SLE", 925, 2}, {"STN", 930, 2}, {"VED", 926, 2}, {"VES", 928, 2}, {"XAD", 396, 2},
		{"XCG", 532, 2},

		{"XAU", 959, -1}, {"XDR", 960, -1}, {"XTS", 963, -1}, {"XXX", 999, -1},
	} {
		if got, ok := iso.Currency(want.Code); !ok || got != want {
			t.Errorf("%s is %v, %v; want %v", want.Code, got, ok, want)
		}
	}
}

func TestNoCurrency(t *testing.T) {
	dead := `ANG BGN BYR CUC DEM EEK FRF GHC HRK LTL LVL MRO MZM ROL SKK SLL STD TRL USS VEB VEF XEU XFU
		YUM ZMK ZWD ZWL ZWR`
	for _, code := range append(strings.Fields(dead),
		"", "E", "EU", "EURO", "eur", "Eur", " EUR", "EUR ", "978", "AAA", "ZZZ", "\xff\xff\xff", "ＥＵＲ") {
		if u, ok := iso.Currency(code); ok {
			t.Errorf("%q is %v", code, u)
		}
	}
}

func TestCountries(t *testing.T) {
	n := 0
	letters(2, func(code string) {
		if iso.Country(code) {
			n++
		}
	})
	if n != 249 {
		t.Errorf("%d countries, want 249", n)
	}
	for _, code := range strings.Fields("AD AX BL BQ CW DE GB GR MF OM PS QA SS SX TL TW UM US VA XK ZW") {
		if want := code != "XK"; iso.Country(code) != want {
			t.Errorf("Country(%s) = %v", code, !want)
		}
	}
	for _, code := range []string{
		"AN", "CS", "DD", "SU", "TP", "YU", "ZR", // withdrawn
		"AC", "CQ", "EU", "EZ", "FX", "TA", "UK", "UN", // reserved
		"AA", "QM", "XX", "ZZ", // for users
		"", "D", "DEU", "de", "De", "D ", "276", "\xff\xff", "D\x00", "[A", "@A",
	} {
		if iso.Country(code) {
			t.Errorf("%q is a country", code)
		}
	}
}

func TestAllocations(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		iso.Currency("ZWG")
		iso.Country("ZW")
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkCurrency(b *testing.B) {
	for b.Loop() {
		iso.Currency("EUR")
	}
}

func BenchmarkCountry(b *testing.B) {
	for b.Loop() {
		iso.Country("ZW")
	}
}
