package iin_test

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/iin"
)

// rules are the prefix rules as published, including domestic ranges that lie in no other
// scheme's range.
var rules = []struct {
	scheme   iin.Scheme
	lengths  string
	prefixes string
}{
	{iin.VISA, "13 16 19", "4"},
	{iin.Mastercard, "16", "51-55 2221-2720"},
	{iin.Mastercard, "12-19", "5018 5020 5038 56-58 6304 67"},
	{iin.AmericanExpress, "15", "34 37"},
	{iin.JCB, "16-19", "3528-3589"},
	{iin.DinersClub, "14-19", "300-305 3095 36 38 39"},
	{iin.Discover, "16-19", "6011 644-649 65"},
	{iin.UnionPay, "16-19", "62 81 622126-622925"},
	{iin.Unknown, "12-19", "2200-2204"},                             // Mir
	{iin.Unknown, "12-19", "5085-5089 606985-608500 652150-653149"}, // RuPay
	{iin.Unknown, "12-19", "589562 402918 527572"},                  // Naranja
	{iin.Unknown, "12-19", "606282"},                                // Hipercard
	{iin.Unknown, "12-19", `506099-506127 506129 506133-506150 506158-506163 506166 506168 506170
		506173 506176-506180 506184 506187-506188 506191 506195 506197 507865 507866 507868-507877
		507880-507888 507900 507941`}, // Verve
	{iin.Unknown, "12-19", `401178 401179 438935 457631 457632 431274 451416 457393 504175
		506699-506778 509000-509999 627780 636297 636368 650031-650033 650035-650051 650405-650439
		650485-650538 650541-650598 650700-650718 650720-650727 650901-650978 651652-651679
		655000-655019 655021-655058`}, // Elo
	{iin.Unknown, "12-19", `9792 650052 650082-650083 650092 650161 650170 650173 650175 650268
		650271 650273-650274 650456-650457 650836 650846-650850 650923 650987 650990 654997 657366
		657998 658758 658767-658768 65083700-65083704 65085800-65085804 65085900-65085901 65086000
		65086100-65086105 65086200-65086203 65875000-65875003 65875009 65875101-65875104 65875200
		65875501 65875601 65875900 65876000-65876002 65876100-65876103 65876110 65876115-65876116
		65876200-65876201 65876500 65876504-65876505 65876600-65876602 65877100-65877101
		65877600-65877602 65877700 65877801-65877802 65878200-65878202 65878300-65878311
		65878400-65878405 65878500-65878505 65878600-65878601 65879800 65880800 65880900`}, // Troy
}

// expand calls f with every number of a list of numbers and ranges.
func expand(t *testing.T, list string, f func(string)) {
	t.Helper()
	for _, item := range strings.Fields(list) {
		low, high, isRange := strings.Cut(item, "-")
		if !isRange {
			high = low
		}
		a, err := strconv.Atoi(low)
		b, err2 := strconv.Atoi(high)
		if err != nil || err2 != nil || a > b || len(low) != len(high) {
			t.Fatalf("malformed rule %q", item)
		}
		for ; a <= b; a++ {
			f(strconv.Itoa(a))
		}
	}
}

type outcome struct {
	scheme  iin.Scheme
	lengths [20]bool
}

// naive finds the longest matching prefix by trying each length.
type naive map[string]outcome

func newNaive(t *testing.T) naive {
	n := naive{}
	for _, r := range rules {
		o := outcome{scheme: r.scheme}
		expand(t, r.lengths, func(s string) {
			i, _ := strconv.Atoi(s)
			o.lengths[i] = true
		})
		expand(t, r.prefixes, func(p string) {
			if old, ok := n[p]; ok && old != o {
				t.Fatalf("prefix %s has two rules", p)
			}
			n[p] = o
		})
	}
	rest := outcome{scheme: iin.Unknown}
	expand(t, "12-19", func(s string) {
		i, _ := strconv.Atoi(s)
		rest.lengths[i] = true
	})
	n[""] = rest
	return n
}

func (n naive) detect(digits []byte) outcome {
	for i := 8; ; i-- {
		if o, ok := n[string(digits[:i])]; ok {
			return o
		}
	}
}

// check compares all 16-digit numbers that start with prefix, continue with any combination
// of further digits, and repeat the digit last to the end.
func (n naive) check(t *testing.T, prefix string, further int, last string) {
	d := []byte(prefix + strings.Repeat("0", further))
	d = append(d, strings.Repeat(last, 16-len(d))...)
	free := d[len(prefix):][:further]
	for {
		want := n.detect(d)
		if s, ok := iin.Detect(d); s != want.scheme || ok != want.lengths[16] {
			t.Fatalf("%s… is %v, %v; want %v, %v", d[:8], s, ok, want.scheme, want.lengths[16])
		}
		i := len(free) - 1
		for ; i >= 0 && free[i] == '9'; i-- {
			free[i] = '0'
		}
		if i < 0 {
			return
		}
		free[i]++
	}
}

func TestEveryPrefix(t *testing.T) {
	n := newNaive(t)
	n.check(t, "", 6, "0")
	n.check(t, "", 6, "9")
	n.check(t, "65", 6, "0") // the only prefixes that eight digits decide
}

func TestEveryLength(t *testing.T) {
	n := newNaive(t)
	for prefix, o := range n {
		d := append([]byte(prefix), bytes.Repeat([]byte{'0'}, 40)...)
		if n.detect(d) != o {
			continue // a longer rule applies
		}
		for length := range 40 {
			s, ok := iin.Detect(d[:length])
			want, wantOK := o.scheme, length < 20 && o.lengths[min(length, 19)]
			if length < 8 {
				want = iin.Unknown
			}
			if s != want || ok != wantOK {
				t.Errorf("%d digits from %q: %v, %v; want %v, %v", length, prefix, s, ok, want, wantOK)
			}
		}
	}
}

func TestBoundaries(t *testing.T) {
	for _, c := range []struct {
		prefix string
		want   iin.Scheme
	}{
		{"2220", iin.Unknown}, {"2221", iin.Mastercard}, {"2720", iin.Mastercard}, {"2721", iin.Unknown},
		{"2204", iin.Unknown}, {"2131", iin.Unknown}, {"1800", iin.Unknown},
		{"299", iin.Unknown}, {"300", iin.DinersClub}, {"305", iin.DinersClub}, {"306", iin.Unknown},
		{"3094", iin.Unknown}, {"3095", iin.DinersClub}, {"3096", iin.Unknown},
		{"33", iin.Unknown}, {"34", iin.AmericanExpress}, {"35", iin.Unknown},
		{"3527", iin.Unknown}, {"3528", iin.JCB}, {"3589", iin.JCB}, {"3590", iin.Unknown},
		{"36", iin.DinersClub}, {"37", iin.AmericanExpress}, {"38", iin.DinersClub}, {"39", iin.DinersClub},
		{"401177", iin.VISA}, {"401178", iin.Unknown}, {"401179", iin.Unknown}, {"401180", iin.VISA},
		{"402918", iin.Unknown}, {"4", iin.VISA}, {"49", iin.VISA},
		{"50", iin.Unknown}, {"5018", iin.Mastercard}, {"5019", iin.Unknown}, {"5085", iin.Unknown},
		{"51", iin.Mastercard}, {"55", iin.Mastercard}, {"56", iin.Mastercard}, {"58", iin.Mastercard},
		{"589562", iin.Unknown}, {"59", iin.Unknown},
		{"6010", iin.Unknown}, {"6011", iin.Discover}, {"6012", iin.Unknown}, {"606985", iin.Unknown},
		{"61", iin.Unknown}, {"62", iin.UnionPay}, {"622125", iin.UnionPay}, {"622126", iin.UnionPay},
		{"622925", iin.UnionPay}, {"622926", iin.UnionPay}, {"627779", iin.UnionPay},
		{"627780", iin.Unknown}, {"627781", iin.UnionPay}, {"629", iin.UnionPay},
		{"6303", iin.Unknown}, {"6304", iin.Mastercard}, {"6305", iin.Unknown},
		{"643", iin.Unknown}, {"644", iin.Discover}, {"649", iin.Discover}, {"65", iin.Discover},
		{"650030", iin.Discover}, {"650031", iin.Unknown}, {"650034", iin.Discover},
		{"65083704", iin.Unknown}, {"65083705", iin.Discover},
		{"652149", iin.Discover}, {"652150", iin.Unknown}, {"653149", iin.Unknown}, {"653150", iin.Discover},
		{"66", iin.Unknown}, {"67", iin.Mastercard}, {"68", iin.Unknown},
		{"80", iin.Unknown}, {"81", iin.UnionPay}, {"82", iin.Unknown}, {"9792", iin.Unknown},
		{"0", iin.Unknown}, {"9", iin.Unknown},
	} {
		d := append([]byte(c.prefix), bytes.Repeat([]byte{'0'}, 16-len(c.prefix))...)
		if s, _ := iin.Detect(d); s != c.want {
			t.Errorf("%s is %v, want %v", c.prefix, s, c.want)
		}
	}
}

// Test numbers that schemes and processors publish.
func TestPublicNumbers(t *testing.T) {
	for scheme, list := range map[iin.Scheme]string{
		iin.VISA: "4242424242424242 4111111111111111 4000056655665556 4111141011111111116",
		iin.Mastercard: `5555555555554444 2223003122003222 2720990000000015 5500000000000004
			5200828282828210 5105105105105100 6759649826438453`,
		iin.AmericanExpress: "378282246310005 371449635398431 340000000000009 370000000000002",
		iin.Discover:        "6011111111111117 6011000990139424 6011981111111113",
		iin.DinersClub:      "3056930009020004 36227206271667 30000000000004",
		iin.JCB:             "3566002020360505 3528000000000007 3530111333300000",
		iin.UnionPay:        "6200000000000005 6200000000000047 6205500000000000004",
		iin.Unknown:         "11111111111111116",
	} {
		for _, number := range strings.Fields(list) {
			d := []byte(number)
			if s, ok := iin.Detect(d); s != scheme || !ok {
				t.Errorf("%s is %v, %v; want %v", number, s, ok, scheme)
			}
			if !iin.Luhn(d) {
				t.Errorf("%s fails the Luhn check", number)
			}
		}
	}
}

// Numbers of the simulator: prefix, zeros, three digits for the scenario, check digit.
func TestScenarioNumbers(t *testing.T) {
	for scenario, want := range map[string]string{
		"000": "4111110000000005", "001": "4111110000000013", "002": "4111110000000021",
		"010": "4111110000000104", "011": "4111110000000112", "012": "4111110000000120",
		"013": "4111110000000138", "014": "4111110000000146", "015": "4111110000000153",
		"020": "4111110000000203", "021": "4111110000000211", "030": "4111110000000302",
		"031": "4111110000000310", "032": "4111110000000328", "033": "4111110000000336",
		"034": "4111110000000344", "035": "4111110000000351", "036": "4111110000000369",
		"037": "4111110000000377", "040": "4111110000000401", "041": "4111110000000419",
		"042": "4111110000000427", "043": "4111110000000435", "044": "4111110000000443",
		"045": "4111110000000450", "050": "4111110000000500", "051": "4111110000000518",
		"060": "4111110000000609", "061": "4111110000000617", "070": "4111110000000708",
		"071": "4111110000000716", "080": "4111110000000807", "081": "4111110000000815",
		"082": "4111110000000823",
	} {
		if got := scenarioNumber("411111", 16, scenario); string(got) != want {
			t.Errorf("scenario %s is %s, want %s", scenario, got, want)
		}
		for _, c := range []struct {
			prefix string
			length int
			scheme iin.Scheme
		}{
			{"411111", 16, iin.VISA}, {"555555", 16, iin.Mastercard}, {"378282", 15, iin.AmericanExpress},
			{"601111", 16, iin.Discover}, {"362272", 14, iin.DinersClub}, {"356600", 16, iin.JCB},
			{"620000", 16, iin.UnionPay},
		} {
			d := scenarioNumber(c.prefix, c.length, scenario)
			if s, ok := iin.Detect(d); s != c.scheme || !ok || !iin.Luhn(d) {
				t.Errorf("%s is %v, %v, Luhn %v; want %v", d, s, ok, iin.Luhn(d), c.scheme)
			}
		}
	}
}

func scenarioNumber(prefix string, length int, scenario string) []byte {
	zeros := strings.Repeat("0", length-len(prefix)-len(scenario)-1)
	d := []byte(prefix + zeros + scenario)
	return append(d, iin.CheckDigit(d))
}

func TestLuhn(t *testing.T) {
	for number, want := range map[string]bool{
		"": false, "0": true, "1": false, "18": true, "59": true, "00": true, "79927398713": true,
		"4242424242424242": true, "4242 4242 4242 4242": false,
		":": false, "/2": false, "１８": false,
	} {
		if got := iin.Luhn([]byte(number)); got != want {
			t.Errorf("Luhn(%q) = %v", number, got)
		}
	}
}

// TestLuhnCatches: the check digit catches every wrong digit, and every swap of neighbouring
// digits except 09 and 90.
func TestLuhnCatches(t *testing.T) {
	for _, number := range []string{"4242424242424242", "378282246310005", "6205500000000000004", "4111110000000906"} {
		d := []byte(number)
		check := d[len(d)-1]
		if got := iin.CheckDigit(d[:len(d)-1]); got != check {
			t.Fatalf("check digit of %s… is %q, want %q", d[:6], got, check)
		}
		for i, right := range d {
			for d[i] = '0'; d[i] <= '9'; d[i]++ {
				if got := iin.Luhn(d); got != (d[i] == right) {
					t.Errorf("Luhn(%s) = %v", d, got)
				}
			}
			d[i] = right
			if i == 0 || d[i] == d[i-1] {
				continue
			}
			d[i-1], d[i] = d[i], d[i-1]
			blind := d[i-1]+d[i] == '0'+'9' && (d[i] == '0' || d[i] == '9')
			if got := iin.Luhn(d); got != blind {
				t.Errorf("Luhn(%s) = %v", d, got)
			}
			d[i-1], d[i] = d[i], d[i-1]
		}
	}
}

func TestCheckDigit(t *testing.T) {
	for digits, want := range map[string]byte{
		"": '0', "0": '0', "1": '8', "7992739871": '3', "1x": 0, ":": 0, "/": 0,
	} {
		if got := iin.CheckDigit([]byte(digits)); got != want {
			t.Errorf("CheckDigit(%q) = %q, want %q", digits, got, want)
		}
	}
}

func TestNoDigits(t *testing.T) {
	for _, text := range []string{"", "4", "4111111", "411111x111111111", "/111111111111111", ":111111111111111", "-411111111111111"} {
		if s, ok := iin.Detect([]byte(text)); s != iin.Unknown || ok {
			t.Errorf("Detect(%q) = %v, %v", text, s, ok)
		}
	}
}

// Stored tokens contain the numbers, and answers of the REST API contain the names.
func TestScheme(t *testing.T) {
	for i, want := range []string{
		"Unknown", "VISA", "Mastercard", "American Express", "Discover", "Diners Club", "JCB", "UnionPay",
		"Unknown",
	} {
		if got := iin.Scheme(i).String(); got != want {
			t.Errorf("scheme %d is %q, want %q", i, got, want)
		}
	}
	order := []iin.Scheme{iin.Unknown, iin.VISA, iin.Mastercard, iin.AmericanExpress, iin.Discover, iin.DinersClub, iin.JCB, iin.UnionPay}
	for i, s := range order {
		if int(s) != i {
			t.Errorf("%v is %d, want %d", s, s, i)
		}
	}
	if got := iin.Scheme(255).String(); got != "Unknown" {
		t.Errorf("scheme 255 is %q", got)
	}
}

func TestAllocations(t *testing.T) {
	d := []byte("6588090042424242")
	if n := testing.AllocsPerRun(100, func() {
		iin.Detect(d)
		iin.Luhn(d)
		iin.CheckDigit(d)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkDetect(b *testing.B) {
	for _, number := range []string{"4111111111111111", "5555555555554444", "6588090042424242", "9999999999999999"} {
		b.Run(fmt.Sprint(number[:8]), func(b *testing.B) {
			d := []byte(number)
			for b.Loop() {
				iin.Detect(d)
			}
		})
	}
}

func BenchmarkLuhn(b *testing.B) {
	d := []byte("4111111111111111")
	for b.Loop() {
		iin.Luhn(d)
	}
}
