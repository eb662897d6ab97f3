package vaulttest

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/cardvault/cardvault/internal/iin"
)

const (
	maxSink  = 256 << 20 // bytes of a reader or file
	shortest = 6         // bytes of a needle: a shorter one is found in random data by chance
)

// AssertNoLeak fails t for every secret that is in a sink. It reports which secret, in what
// form and where, and does not show it.
//
// A sink is a string, a []byte, an io.Reader, an error, an fs.FS such as
// os.DirFS(dir), of which every file and its name is read, or any other value,
// which is looked at as package fmt prints it and encoding/json encodes it.
// A reader or file of more than 256 MiB fails t.
//
// A secret is found as it is, in any case of ASCII letters; with its digits in
// groups; reversed; as hexadecimal; as base64 of either alphabet, alone or
// within something longer; as a printed list of bytes; as UTF-16; of digits, as
// packed BCD; and each of these also behind the escapes of JSON, Go and URLs.
//
// A secret of fewer than 6 bytes, such as a security code, occurs by chance: it
// is looked for in sinks that are text, as a word of its own. Words joined by a
// dash or dot, as in a UUID, are one.
func AssertNoLeak(t testing.TB, secrets []string, sinks ...any) {
	t.Helper()
	if len(secrets) == 0 || slices.Contains(secrets, "") {
		t.Fatal("vaulttest: no secret, or an empty one, to look for")
	}
	for name, content := range contents(t, sinks) {
		views := viewsOf(content)
		for i, secret := range secrets {
			if form, offset := findSecret(views, secret); form != "" {
				t.Errorf("secret %d leaks into %s, as %s at offset %d", i+1, name, form, offset)
			}
		}
	}
}

// AssertNoCardNumber fails t for every sink that seems to hold a card number: 12 to 19
// digits, together or in the groups that are printed on cards, that pass the Luhn check.
// They must also have the prefix and a length of a scheme that the vault knows. Numbers in
// allow may show. Sinks are as in [AssertNoLeak]; escapes of JSON, Go and URLs are decoded,
// other encodings are not.
//
// UUIDs, timestamps, hashes and numbers with a fraction are not taken for card
// numbers. A test that knows its secrets is better served by AssertNoLeak.
func AssertNoCardNumber(t testing.TB, allow []string, sinks ...any) {
	t.Helper()
	for name, content := range contents(t, sinks) {
		for _, v := range viewsOf(withoutUUIDs(content)) {
			if offset := findNumber(v.text, allow); offset >= 0 {
				t.Errorf("a card number leaks into %s, %s at offset %d", name, v.name, v.source(offset))
				break
			}
		}
	}
}

// contents yields the name and content of everything that sinks hold.
func contents(t testing.TB, sinks []any) iter.Seq2[string, []byte] {
	t.Helper()
	return func(yield func(string, []byte) bool) {
		for i, sink := range sinks {
			name := fmt.Sprintf("sink %d (%T)", i+1, sink)

			switch s := sink.(type) {
			case nil:
			case string:
				if !yield(name, []byte(s)) {
					return
				}
			case []byte:
				if !yield(name, s) {
					return
				}
			case io.Reader:
				if !yield(name, readAll(t, name, s)) {
					return
				}
			case error:
				if !yield(name, []byte(strings.Join(printedTree(s), "\n"))) {
					return
				}
			case fs.FS:
				for path, content := range files(t, name, s) {
					if !yield(name+", name of a file", []byte(path)) || !yield(name+", "+path, content) {
						return
					}
				}
			default:
				if !yield(name, []byte(strings.Join(printed(s), "\n"))) {
					return
				}
			}
		}
	}
}

func readAll(t testing.TB, name string, r io.Reader) []byte {
	t.Helper()
	b, err := io.ReadAll(io.LimitReader(r, maxSink+1))
	if err != nil {
		t.Fatalf("vaulttest: reading %s: %v", name, err)
	}
	if len(b) > maxSink {
		t.Fatalf("vaulttest: %s is longer than %d bytes", name, maxSink)
	}
	return b
}

func files(t testing.TB, name string, fsys fs.FS) iter.Seq2[string, []byte] {
	t.Helper()
	return func(yield func(string, []byte) bool) {
		found := false
		err := fs.WalkDir(fsys, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}

			f, err := fsys.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			found = true
			if !yield(path, readAll(t, name+", "+path, f)) {
				return fs.SkipAll
			}
			return nil
		})

		if err != nil {
			t.Fatalf("vaulttest: reading %s: %v", name, err)
		}
		if !found {
			t.Errorf("%s has no file: the test proves nothing", name)
		}
	}
}

// printed returns how a value comes to be in a log or an answer.
func printed(v any) []string {
	texts := []string{fmt.Sprintf("%v", v), fmt.Sprintf("%+v", v), fmt.Sprintf("%#v", v)}
	if b, err := json.Marshal(v); err == nil {
		texts = append(texts, string(b))
	}
	return texts
}

// printedTree returns the texts of an error and of all errors that it wraps.
func printedTree(err error) []string {
	texts := printed(err)
	if e, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range e.Unwrap() {
			texts = append(texts, printedTree(err)...)
		}
	} else if err := errors.Unwrap(err); err != nil {
		texts = append(texts, printedTree(err)...)
	}
	return texts
}

// A view is a sink after one kind of escape is undone.
type view struct {
	name   string
	text   []byte
	folded []byte // text with ASCII letters in lower case
	steps  iter.Seq2[int, byte]
}

// source returns where in the sink the i-th byte of the text comes from.
func (v *view) source(i int) int {
	if v.steps == nil {
		return i
	}
	for from := range v.steps {
		if i--; i < 0 {
			return from
		}
	}
	return 0
}

// viewsOf returns a sink as it is, then undone. What would be the same is left out.
func viewsOf(b []byte) []view {
	views := []view{{name: "it is", text: b, folded: lower(b)}}
	for _, undo := range []struct {
		name string
		f    func([]byte) iter.Seq2[int, byte]
	}{
		{"digits in groups", ungrouped},
		{"escaped text", unescaped},
		{"URL-escaped text", unquoted},
	} {
		v := view{name: undo.name, text: make([]byte, 0, len(b)), steps: undo.f(b)}
		for _, c := range v.steps {
			v.text = append(v.text, c)
		}

		if !bytes.Equal(v.text, b) {
			v.folded = lower(v.text)
			views = append(views, v)
		}
	}
	return views
}

// ungrouped leaves out a space, dash or dot between two digits.
func ungrouped(b []byte) iter.Seq2[int, byte] {
	return func(yield func(int, byte) bool) {
		for i, c := range b {
			if (c == ' ' || c == '-' || c == '.') && i > 0 && i+1 < len(b) && isDigit(b[i-1]) && isDigit(b[i+1]) {
				continue
			}
			if !yield(i, c) {
				return
			}
		}
	}
}

// unescaped undoes \u0034, \x34 and a backslash before any other character.
func unescaped(b []byte) iter.Seq2[int, byte] {
	return func(yield func(int, byte) bool) {
		for i := 0; i < len(b); {
			char, n := b[i:i+1], 1
			if b[i] == '\\' && i+1 < len(b) {
				char, n = b[i+1:i+2], 2
				if width := map[byte]int{'u': 4, 'x': 2}[b[i+1]]; width > 0 && i+2+width <= len(b) {
					if code, err := strconv.ParseUint(string(b[i+2:i+2+width]), 16, 32); err == nil {
						if width == 4 {
							char = utf8.AppendRune(nil, rune(code))
						} else {
							char = []byte{byte(code)}
						}
						n += width
					}
				}
			}

			for _, c := range char {
				if !yield(i, c) {
					return
				}
			}
			i += n
		}
	}
}

// unquoted undoes %34 and "+" for a space, which is so between words.
func unquoted(b []byte) iter.Seq2[int, byte] {
	return func(yield func(int, byte) bool) {
		for i := 0; i < len(b); {
			c, n := b[i], 1
			switch {
			case c == '+' && i > 0 && isWord(b[i-1]):
				c = ' '
			case c == '%' && i+3 <= len(b):
				if code, err := strconv.ParseUint(string(b[i+1:i+3]), 16, 8); err == nil {
					c, n = byte(code), 3
				}
			}
			if !yield(i, c) {
				return
			}
			i += n
		}
	}
}

// A needle is one form of a secret.
type needle struct {
	form string
	text []byte
	fold bool // the case of ASCII letters does not matter
}

// findSecret returns the first form in which a secret is there, and where.
func findSecret(views []view, secret string) (form string, offset int) {
	if len(secret) < shortest {
		return findWord(views, lower([]byte(secret)))
	}

	needles := needlesOf([]byte(secret))
	for _, v := range views {
		for _, n := range needles {
			text := v.text
			if n.fold {
				text = v.folded
			}

			i := bytes.Index(text, n.text)
			switch {
			case i < 0:
			case v.steps == nil:
				return n.form, i
			case n.form == views[0].name:
				return v.name, v.source(i)
			default:
				return n.form + " in " + v.name, v.source(i)
			}
		}
	}
	return "", 0
}

// findWord looks for a secret that is short enough to occur by chance.
func findWord(views []view, word []byte) (form string, offset int) {
	for _, v := range views {
		if !utf8.Valid(v.text) {
			continue
		}
		for i := 0; ; i++ {
			j := bytes.Index(v.folded[i:], word)
			if j < 0 {
				break
			}
			i += j
			if !joined(v.folded, i-1, -1) && !joined(v.folded, i+len(word), 1) {
				return v.name, v.source(i)
			}
		}
	}
	return "", 0
}

// joined reports whether the word at i continues in the direction of step. A dash or dot
// within a word belongs to it, as in a UUID or a fraction.
func joined(text []byte, i, step int) bool {
	word := func(i int) bool { return i >= 0 && i < len(text) && isWord(text[i]) }
	return word(i) || i >= 0 && i < len(text) && (text[i] == '-' || text[i] == '.') && word(i+step)
}

func needlesOf(b []byte) []needle {
	reversed := slices.Clone(b)
	slices.Reverse(reversed)
	ns := []needle{
		{"it is", lower(b), true},
		{"reversed text", lower(reversed), true},
		{"hexadecimal", hex.AppendEncode(nil, b), true},
	}

	for shift := range 3 {
		padded := append(make([]byte, shift), b...)
		for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			// Only characters that hold nothing of the neighbours.
			text := alphabet.EncodeToString(padded)[(8*shift+5)/6 : 8*len(padded)/6]
			ns = append(ns, needle{"base64", []byte(text), false})
		}
	}

	for _, list := range []struct{ verb, separator string }{
		{"%d", " "}, {"%d", ","}, {"%d", ", "}, {"%02x", " "}, {"0x%x", ", "}, {"0x%02x", ", "},
	} {
		items := make([]string, len(b))
		for i, c := range b {
			items[i] = fmt.Sprintf(list.verb, c)
		}
		ns = append(ns, needle{"a list of bytes", []byte(strings.Join(items, list.separator)), true})
	}

	var little, big []byte
	for _, unit := range utf16.Encode([]rune(string(b))) {
		little = binary.LittleEndian.AppendUint16(little, unit)
		big = binary.BigEndian.AppendUint16(big, unit)
	}
	ns = append(ns, needle{"UTF-16", lower(little), true}, needle{"UTF-16", lower(big), true})

	if !slices.ContainsFunc(b, func(c byte) bool { return !isDigit(c) }) {
		for start := range 2 { // whichever half of a byte it begins in
			packed, err := hex.AppendDecode(nil, b[start:start+(len(b)-start)/2*2])
			if err != nil {
				panic("digits are hexadecimal")
			}
			if len(packed) >= shortest-1 {
				ns = append(ns, needle{"BCD", packed, false})
			}
		}
	}
	return ns
}

// findNumber returns where a card number begins, or -1.
func findNumber(text []byte, allow []string) int {
	for i := 0; i < len(text); i++ {
		if !isDigit(text[i]) {
			continue
		}

		// Groups of digits with one space or dash between them.
		groups := [][2]int{{i, i}}
		for ; i < len(text); i++ {
			if !isDigit(text[i]) && !(separates(text[i]) && i+1 < len(text) && isDigit(text[i+1])) {
				break
			}
			if separates(text[i]) {
				groups = append(groups, [2]int{i + 1, i + 1})
			} else {
				groups[len(groups)-1][1] = i + 1
			}
		}

		for g := range groups {
			for _, n := range numberShape(groups[g:]) {
				from, to := groups[g][0], groups[g+n-1][1]
				if !continues(text, from, to) && isNumber(text[from:to], allow) {
					return from
				}
			}
		}
	}
	return -1
}

func separates(c byte) bool { return c == ' ' || c == '-' }

// numberShape returns how many of the first groups may be a number: one alone,
// fours, or the groups of American Express and Diners Club.
func numberShape(groups [][2]int) (counts []int) {
	size := func(i int) int { return groups[i][1] - groups[i][0] }
	if size(0) >= 12 {
		return []int{1}
	}
	for i := range groups {
		if i >= 2 && size(i) <= 4 {
			counts = append(counts, i+1)
		}
		if size(i) != 4 || i == 4 {
			break
		}
	}
	if len(groups) >= 3 && size(0) == 4 && size(1) == 6 && size(2) >= 4 && size(2) <= 5 {
		counts = append(counts, 3)
	}
	return counts
}

func isNumber(text []byte, allow []string) bool {
	digits := bytes.Map(func(r rune) rune {
		if separates(byte(r)) {
			return -1
		}
		return r
	}, text)
	if len(digits) < 12 || len(digits) > 19 || slices.Contains(allow, string(digits)) {
		return false
	}
	scheme, lengthOK := iin.Detect(digits)
	return scheme != iin.Unknown && lengthOK && iin.Luhn(digits)
}

// withoutUUIDs returns text with an x for each character of a UUID: the digits of a few in
// a hundred thousand would pass for a card number.
func withoutUUIDs(text []byte) []byte {
	const form = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
	fits := func(run []byte) bool {
		for i, c := range run {
			if digit := isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'; form[i] == '-' && c != '-' || form[i] != '-' && !digit {
				return false
			}
		}
		return true
	}
	text = bytes.Clone(text)
	for i := 0; i+len(form) <= len(text); i++ {
		if fits(text[i : i+len(form)]) {
			copy(text[i:], bytes.Repeat([]byte{'x'}, len(form)))
		}
	}
	return text
}

// continues reports whether digits are part of something longer: a hash, a
// word, a telephone number or a number with a fraction.
func continues(text []byte, from, to int) bool {
	if from > 0 {
		c := text[from-1]
		if isWord(c) || c == '+' || c == '.' && from > 1 && isDigit(text[from-2]) {
			return true
		}
	}
	return to < len(text) && (isWord(text[to]) || text[to] == '.' && to+1 < len(text) && isDigit(text[to+1]))
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isWord(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c >= 0x80
}

// lower returns b with ASCII letters in lower case and all other bytes as they are.
func lower(b []byte) []byte {
	b = bytes.Clone(b)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return b
}
