// Package iso holds the code lists of ISO: currencies of 4217, countries of 3166-1.
package iso

import (
	"slices"
	"strings"
)

// A Unit is what ISO 4217 says of a currency.
type Unit struct {
	Code   string
	Number uint16 // numeric code, written with three digits
	Minor  int8   // decimal places of the minor unit; -1 where the list says N.A.
}

// Currency returns the unit of an active code, in upper case. The whole of list
// one is active, so funds (such as CLF), metals (XAU), the test code (XTS) and
// XXX are among them; codes that have gone to list three (such as BGN) are not.
func Currency(code string) (u Unit, ok bool) {
	i, ok := slices.BinarySearchFunc(currencies[:], code, func(u Unit, code string) int {
		return strings.Compare(u.Code, code)
	})
	if !ok {
		return Unit{}, false
	}
	return currencies[i], true
}

// Country reports whether code is an officially assigned alpha-2 code, in upper
// case. Reserved codes (such as EU, UK) and user-assigned ones (XK) are not.
func Country(code string) bool {
	return len(code) == 2 && code[0] <= 'Z' && strings.IndexByte(countries[code[0]], code[1]) >= 0
}

// currencies is list one of ISO 4217 as of 2024-06-25 (currency-codes 2.2.0) with
// amendments 176 (XCG for ANG, 2025-03-31), 178 (CUC out, 2025-02), 179 (XAD, 2025-05-12)
// and 180 (BGN out, 2026-01-01). It was compared in 2026-11 with two accounts of the list
// that SIX published on 2026-09-17. One has the same number of codes, and of codes with
// each number of decimals. The other has the same codes and decimals, funds and N.A. left
// out.
var currencies = [...]Unit{
	{"AED", 784, 2}, {"AFN", 971, 2}, {"ALL", 8, 2}, {"AMD", 51, 2}, {"AOA", 973, 2},
	{"ARS", 32, 2}, {"AUD", 36, 2}, {"AWG", 533, 2}, {"AZN", 944, 2},
	{"BAM", 977, 2}, {"BBD", 52, 2}, {"BDT", 50, 2}, {"BHD", 48, 3}, {"BIF", 108, 0},
	{"BMD", 60, 2}, {"BND", 96, 2}, {"BOB", 68, 2}, {"BOV", 984, 2}, {"BRL", 986, 2},
	{"BSD", 44, 2}, {"BTN", 64, 2}, {"BWP", 72, 2}, {"BYN", 933, 2}, {"BZD", 84, 2},
	{"CAD", 124, 2}, {"CDF", 976, 2}, {"CHE", 947, 2}, {"CHF", 756, 2}, {"CHW", 948, 2},
	{"CLF", 990, 4}, {"CLP", 152, 0}, {"CNY", 156, 2}, {"COP", 170, 2}, {"COU", 970, 2},
	{"CRC", 188, 2}, {"CUP", 192, 2}, {"CVE", 132, 2}, {"CZK", 203, 2},
	{"DJF", 262, 0}, {"DKK", 208, 2}, {"DOP", 214, 2}, {"DZD", 12, 2},
	{"EGP", 818, 2}, {"ERN", 232, 2}, {"ETB", 230, 2}, {"EUR", 978, 2},
	{"FJD", 242, 2}, {"FKP", 238, 2},
	{"GBP", 826, 2}, {"GEL", 981, 2}, {"GHS", 936, 2}, {"GIP", 292, 2}, {"GMD", 270, 2},
	{"GNF", 324, 0}, {"GTQ", 320, 2}, {"GYD", 328, 2},
	{"HKD", 344, 2}, {"HNL", 340, 2}, {"HTG", 332, 2}, {"HUF", 348, 2},
	{"IDR", 360, 2}, {"ILS", 376, 2}, {"INR", 356, 2}, {"IQD", 368, 3}, {"IRR", 364, 2},
	{"ISK", 352, 0},
	{"JMD", 388, 2}, {"JOD", 400, 3}, {"JPY", 392, 0},
	{"KES", 404, 2}, {"KGS", 417, 2}, {"KHR", 116, 2}, {"KMF", 174, 0}, {"KPW", 408, 2},
	{"KRW", 410, 0}, {"KWD", 414, 3}, {"KYD", 136, 2}, {"KZT", 398, 2},
	{"LAK", 418, 2}, {"LBP", 422, 2}, {"LKR", 144, 2}, {"LRD", 430, 2}, {"LSL", 426, 2},
	{"LYD", 434, 3},
	{"MAD", 504, 2}, {"MDL", 498, 2}, {"MGA", 969, 2}, {"MKD", 807, 2}, {"MMK", 104, 2},
	{"MNT", 496, 2}, {"MOP", 446, 2}, {"MRU", 929, 2}, {"MUR", 480, 2}, {"MVR", 462, 2},
	{"MWK", 454, 2}, {"MXN", 484, 2}, {"MXV", 979, 2}, {"MYR", 458, 2}, {"MZN", 943, 2},
	{"NAD", 516, 2}, {"NGN", 566, 2}, {"NIO", 558, 2}, {"NOK", 578, 2}, {"NPR", 524, 2},
	{"NZD", 554, 2},
	{"OMR", 512, 3},
	{"PAB", 590, 2}, {"PEN", 604, 2}, {"PGK", 598, 2}, {"PHP", 608, 2}, {"PKR", 586, 2},
	{"PLN", 985, 2}, {"PYG", 600, 0},
	{"QAR", 634, 2},
	{"RON", 946, 2}, {"RSD", 941, 2}, {"RUB", 643, 2}, {"RWF", 646, 0},
	{"SAR", 682, 2}, {"SBD", 90, 2}, {"SCR", 690, 2}, {"SDG", 938, 2}, {"SEK", 752, 2},
	{"SGD", 702, 2}, {"SHP", 654, 2}, {"SLE", 925, 2}, {"SOS", 706, 2}, {"SRD", 968, 2},
	{"SSP", 728, 2}, {"STN", 930, 2}, {"SVC", 222, 2}, {"SYP", 760, 2}, {"SZL", 748, 2},
	{"THB", 764, 2}, {"TJS", 972, 2}, {"TMT", 934, 2}, {"TND", 788, 3}, {"TOP", 776, 2},
	{"TRY", 949, 2}, {"TTD", 780, 2}, {"TWD", 901, 2}, {"TZS", 834, 2},
	{"UAH", 980, 2}, {"UGX", 800, 0}, {"USD", 840, 2}, {"USN", 997, 2}, {"UYI", 940, 0},
	{"UYU", 858, 2}, {"UYW", 927, 4}, {"UZS", 860, 2},
	{"VED", 926, 2}, {"VES", 928, 2}, {"VND", 704, 0}, {"VUV", 548, 0},
	{"WST", 882, 2},
	{"XAD", 396, 2}, {"XAF", 950, 0}, {"XAG", 961, -1}, {"XAU", 959, -1}, {"XBA", 955, -1},
	{"XBB", 956, -1}, {"XBC", 957, -1}, {"XBD", 958, -1}, {"XCD", 951, 2}, {"XCG", 532, 2},
	{"XDR", 960, -1}, {"XOF", 952, 0}, {"XPD", 964, -1}, {"XPF", 953, 0}, {"XPT", 962, -1},
	{"XSU", 994, -1}, {"XTS", 963, -1}, {"XUA", 965, -1}, {"XXX", 999, -1},
	{"YER", 886, 2},
	{"ZAR", 710, 2}, {"ZMW", 967, 2}, {"ZWG", 924, 2},
}

// countries has, by first letter, the second letters of the 249 codes of
// ISO 3166-1. Source: iso-codes 4.15 (2023-04), the same as tzdata 2025b; the
// last code was added in 2011 (SS).
var countries = ['Z' + 1]string{
	'A': "DEFGILMOQRSTUWXZ",
	'B': "ABDEFGHIJLMNOQRSTVWYZ",
	'C': "ACDFGHIKLMNORUVWXYZ",
	'D': "EJKMOZ",
	'E': "CEGHRST",
	'F': "IJKMOR",
	'G': "ABDEFGHILMNPQRSTUWY",
	'H': "KMNRTU",
	'I': "DELMNOQRST",
	'J': "EMOP",
	'K': "EGHIMNPRWYZ",
	'L': "ABCIKRSTUVY",
	'M': "ACDEFGHKLMNOPQRSTUVWXYZ",
	'N': "ACEFGILOPRUZ",
	'O': "M",
	'P': "AEFGHKLMNRSTWY",
	'Q': "A",
	'R': "EOSUW",
	'S': "ABCDEGHIJKLMNORSTVXYZ",
	'T': "CDFGHJKLMNORTVWZ",
	'U': "AGMSYZ",
	'V': "ACEGINU",
	'W': "FS",
	'Y': "ET",
	'Z': "AMW",
}
