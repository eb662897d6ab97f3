package redact

// The shortest number, and the shortest secret, in hexadecimal digits and in base64.
const (
	hexNumber, hexSecret       = 24, 2 * MinSecret
	base64Number, base64Secret = 16, 11
)

// hex looks into runs of hexadecimal digits, whose bytes may begin at each digit.
func (f *finder) hex(l *layer) {
	for start, end := range runs(l.text, isHex, f.least(hexNumber, hexSecret)) {
		for offset := range 2 {
			f.scratch = f.scratch[:0]
			for i := start + offset; i+1 < end; i += 2 {
				c, _ := hexadecimal(l.text, i, 2)
				f.scratch = append(f.scratch, byte(c))
			}
			f.plain(f.scratch, func(from, to int) {
				f.hide(l, start+offset+2*from, start+offset+2*to)
			})
		}
	}
}

// base64 looks into runs of characters of base64 and base64url, whose bytes may begin at
// each character.
func (f *finder) base64(l *layer) {
	for start, end := range runs(l.text, isBase64, f.least(base64Number, base64Secret)) {
		for offset := range 4 {
			f.scratch = appendBase64(f.scratch[:0], l.text[start+offset:end])
			f.plain(f.scratch, func(from, to int) {
				f.hide(l, start+offset+from*4/3, start+offset+(to*4+2)/3)
			})
		}
	}
}

func (f *finder) least(ofNumber, ofSecret int) int {
	if len(f.secrets) > 0 {
		return ofSecret
	}
	return ofNumber
}

// runs iterates over the runs of at least so many bytes of a sort.
func runs(text []byte, is func(byte) bool, least int) func(yield func(start, end int) bool) {
	return func(yield func(start, end int) bool) {
		for i := 0; i < len(text); i++ {
			start := i
			for i < len(text) && is(text[i]) {
				i++
			}
			if i-start >= least && !yield(start, i) {
				return
			}
		}
	}
}

func isHex(c byte) bool {
	_, ok := digitOf(c)
	return ok
}

func isBase64(c byte) bool { return sextets[c] < 64 }

// sextets are the values of the characters of both alphabets; 64 for all others.
var sextets = func() (table [256]byte) {
	for i := range table {
		table[i] = 64
	}
	for i, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") {
		table[c] = byte(i)
	}
	table['-'], table['_'] = table['+'], table['/']
	return table
}()

// appendBase64 decodes characters without padding.
func appendBase64(plain, text []byte) []byte {
	bits, have := uint(0), 0
	for _, c := range text {
		bits, have = bits<<6|uint(sextets[c]), have+6
		if have >= 8 {
			have -= 8
			plain = append(plain, byte(bits>>have))
		}
	}
	return plain
}
