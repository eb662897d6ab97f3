package iin

// A span is a range of first eight digits, both ends included.
type span struct{ low, high uint32 }

// lengths is a set of numbers of digits: bit n for n digits.
type lengths uint32

const (
	only15     lengths = 1 << 15
	only16     lengths = 1 << 16
	from12to19 lengths = 1<<20 - 1<<12
	from14to19 lengths = 1<<20 - 1<<14
	from16to19 lengths = 1<<20 - 1<<16
)

type issuer struct {
	span
	scheme  Scheme
	lengths lengths
}

// lookUp returns the scheme of the longest prefix that iin begins with. Spans
// of one table do not overlap, and every domestic prefix is longer than the one
// of a scheme around it, so the first match is the longest. The tables are
// short and sorted: a scan that stops early beats a binary search.
func lookUp(iin uint32) (Scheme, lengths) {
	for _, spans := range domestic {
		for _, s := range spans {
			if iin <= s.high {
				if iin >= s.low {
					return Unknown, from12to19
				}
				break
			}
		}
	}

	for _, r := range issuers {
		if iin <= r.high {
			if iin >= r.low {
				return r.scheme, r.lengths
			}
			break
		}
	}
	return Unknown, from12to19
}

// The tables hold prefixes filled up to eight digits, in order.

// issuers are the ranges of the schemes. Sources, read in
// 2026-11: braintree/credit-card-type fbd8ed8 (2026-06-30) and Wikipedia's "Payment
// card number". Left out: JCB's old 2131 and 1800, and 18 digits of VISA. All of 62 and 81 is UnionPay, also 622126
// to 622925, which Discover's network accepts by alliance.
var issuers = [...]issuer{
	{span{2221_0000, 2720_9999}, Mastercard, only16},
	{span{300_00000, 305_99999}, DinersClub, from14to19},
	{span{3095_0000, 3095_9999}, DinersClub, from14to19},
	{span{34_000000, 34_999999}, AmericanExpress, only15},
	{span{3528_0000, 3589_9999}, JCB, from16to19},
	{span{36_000000, 36_999999}, DinersClub, from14to19},
	{span{37_000000, 37_999999}, AmericanExpress, only15},
	{span{38_000000, 39_999999}, DinersClub, from14to19},
	{span{4_0000000, 4_9999999}, VISA, 1<<13 | 1<<16 | 1<<19},
	{span{5018_0000, 5018_9999}, Mastercard, from12to19}, // Maestro
	{span{5020_0000, 5020_9999}, Mastercard, from12to19}, // Maestro
	{span{5038_0000, 5038_9999}, Mastercard, from12to19}, // Maestro
	{span{51_000000, 55_999999}, Mastercard, only16},
	{span{56_000000, 58_999999}, Mastercard, from12to19}, // Maestro
	{span{6011_0000, 6011_9999}, Discover, from16to19},
	{span{62_000000, 62_999999}, UnionPay, from16to19},
	{span{6304_0000, 6304_9999}, Mastercard, from12to19}, // Maestro
	{span{644_00000, 649_99999}, Discover, from16to19},
	{span{65_000000, 65_999999}, Discover, from16to19},
	{span{67_000000, 67_999999}, Mastercard, from12to19}, // Maestro
	{span{81_000000, 81_999999}, UnionPay, from16to19},
}

// domestic holds the ranges of domestic schemes inside the ranges of issuers. Mir, Verve,
// Hipercard and the rest of Elo, Troy and RuPay lie outside of them and need no row.
var domestic = [...][]span{elo, troy, naranja, rupay}

// Elo, Brazil. Source: credit-card-type 10.3.0 of 2026-07-10.
var elo = []span{
	{401178_00, 401179_99}, {431274_00, 431274_99}, {438935_00, 438935_99}, {451416_00, 451416_99},
	{457393_00, 457393_99}, {457631_00, 457632_99}, {627780_00, 627780_99}, {650031_00, 650033_99},
	{650035_00, 650051_99}, {650405_00, 650439_99}, {650485_00, 650538_99}, {650541_00, 650598_99},
	{650700_00, 650718_99}, {650720_00, 650727_99}, {650901_00, 650978_99}, {651652_00, 651679_99},
	{655000_00, 655019_99}, {655021_00, 655058_99},
}

// Troy, Türkiye. Source: credit-card-type 10.3.0 of 2026-07-10.
var troy = []span{
	{650052_00, 650052_99}, {650082_00, 650083_99}, {650092_00, 650092_99}, {650161_00, 650161_99},
	{650170_00, 650170_99}, {650173_00, 650173_99}, {650175_00, 650175_99}, {650268_00, 650268_99},
	{650271_00, 650271_99}, {650273_00, 650274_99}, {650456_00, 650457_99}, {650836_00, 650836_99},
	{650837_00, 650837_04}, {650846_00, 650850_99}, {650858_00, 650858_04}, {650859_00, 650859_01},
	{650860_00, 650860_00}, {650861_00, 650861_05}, {650862_00, 650862_03}, {650923_00, 650923_99},
	{650987_00, 650987_99}, {650990_00, 650990_99}, {654997_00, 654997_99}, {657366_00, 657366_99},
	{657998_00, 657998_99}, {658750_00, 658750_03}, {658750_09, 658750_09}, {658751_01, 658751_04},
	{658752_00, 658752_00}, {658755_01, 658755_01}, {658756_01, 658756_01}, {658758_00, 658758_99},
	{658759_00, 658759_00}, {658760_00, 658760_02}, {658761_00, 658761_03}, {658761_10, 658761_10},
	{658761_15, 658761_16}, {658762_00, 658762_01}, {658765_00, 658765_00}, {658765_04, 658765_05},
	{658766_00, 658766_02}, {658767_00, 658768_99}, {658771_00, 658771_01}, {658776_00, 658776_02},
	{658777_00, 658777_00}, {658778_01, 658778_02}, {658782_00, 658782_02}, {658783_00, 658783_11},
	{658784_00, 658784_05}, {658785_00, 658785_05}, {658786_00, 658786_01}, {658798_00, 658798_00},
	{658808_00, 658808_00}, {658809_00, 658809_00},
}

// Naranja, Argentina. Source: credit-card-type 10.3.0 of 2026-07-10.
var naranja = []span{{402918_00, 402918_99}, {527572_00, 527572_99}, {589562_00, 589562_99}}

// RuPay, India, inside Discover's 65. Source: this project's validation rules,
// 2026-11; no list of NPCI was at hand.
var rupay = []span{{652150_00, 653149_99}}
