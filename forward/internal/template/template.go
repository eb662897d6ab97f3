package template

import (
	"bytes"
	"fmt"
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/invalid"
)

// A Template is a text with the places of its placeholders.
type Template struct {
	text  []byte
	slots []slot
	Names Names // that it has placeholders of

	// Credentials are the names behind "destination.", each once.
	Credentials []string

	// CodeElsewhere is whether a security code stands in a field whose name is not that of
	// one. A system could answer with it as something else, such as an amount.
	CodeElsewhere bool
}

// A slot is a place of a template that a value takes.
type slot struct {
	start, end int32 // in the text, with the quotes around a number
	name       Name
	place      place
	credential int32 // index in Credentials
}

// A place says how a value is encoded.
type place uint8

const (
	inHeader place = iota
	inJSON
	inJSONNumber
	inForm
	inXML

	places
)

// None returns the rule that text, such as a URL, has no placeholder. where names the text.
func (s Syntax) None(text []byte, where string) *rule.Broken {
	f, ok := s.find(text, 0, true)
	if !ok {
		return nil
	}
	if !f.known {
		return unknown()
	}
	return notAllowed("in " + where)
}

func unknown() *rule.Broken {
	return &rule.Broken{Code: invalid.UnknownPlaceholder, Message: "has a placeholder of an unknown name"}
}

func notAllowed(where string) *rule.Broken {
	return &rule.Broken{Code: invalid.PlaceholderNotAllowed, Message: "must not have a placeholder " + where}
}

// Header returns the template of the value of a header. The text is not copied.
func (s Syntax) Header(name string, value []byte) (*Template, *rule.Broken) {
	t := &Template{text: value}
	broken := t.fill(s, span{0, len(value)}, inHeader)
	t.CodeElsewhere = t.CodeElsewhere && !namesCode([]byte(name))
	return t, broken
}

// Body returns the template of a body of a media type, as the header Content-Type has it. A
// body without placeholders may be of any. The text is not copied.
func (s Syntax) Body(contentType string, text []byte) (*Template, *rule.Broken) {
	t := &Template{text: text}
	of, broken := kindOf(contentType)
	f, ok := s.find(text, 0, of == isForm)
	switch {
	case !ok:
		return t, nil
	case !f.known:
		return nil, unknown()
	case broken != nil:
		return nil, broken
	}

	if !utf8.Valid(text) { // the other side could read other characters in place of digits
		return nil, malformed("UTF-8")
	}
	switch of {
	case isJSON:
		broken = t.json(s)
	case isForm:
		broken = t.form(s)
	case isXML:
		broken = t.xml(s)
	}
	return t, broken
}

// A kind is what a body is made of.
type kind uint8

const (
	isOther kind = iota
	isJSON
	isForm
	isXML
)

// kindOf returns the kind of a media type, and how a body of it with placeholders breaks
// the rule.
func kindOf(contentType string) (kind, *rule.Broken) {
	media, parameters, err := mime.ParseMediaType(contentType)
	if err != nil {
		return isOther, notAllowed("in a body without a media type")
	}

	k := isOther
	switch {
	case media == "application/json" || strings.HasSuffix(media, "+json"):
		k = isJSON
	case media == "application/x-www-form-urlencoded":
		k = isForm
	case media == "application/xml" || media == "text/xml" || strings.HasSuffix(media, "+xml"):
		k = isXML
	case strings.HasPrefix(media, "multipart/"):
		return isOther, notAllowed("in a multipart body: send JSON, a form or XML")
	default:
		return isOther, notAllowed("in a body of this media type: send JSON, a form or XML")
	}

	if charset, ok := parameters["charset"]; ok && !isCharset(charset) {
		return k, notAllowed("in a body that is not UTF-8")
	}
	return k, nil
}

// isCharset reports whether a charset is UTF-8 or a part of it.
func isCharset(name string) bool {
	return strings.EqualFold(name, "utf-8") || strings.EqualFold(name, "us-ascii")
}

// A span is a part of a text: one value.
type span struct{ start, end int }

// refuse returns the rule that a part of the text has no placeholder.
func (t *Template) refuse(s Syntax, part span, escapes bool, where string) *rule.Broken {
	f, ok := s.find(t.text[:part.end], part.start, escapes)
	switch {
	case !ok:
		return nil
	case !f.known:
		return unknown()
	}
	return notAllowed(where)
}

// fill adds a slot for each placeholder of a value.
func (t *Template) fill(s Syntax, value span, at place) *rule.Broken {
	last := -1 // end of the slot before
	for from := value.start; from < value.end; {
		f, ok := s.find(t.text[:value.end], from, at == inForm)
		if !ok {
			break
		}
		from = f.end

		switch between := t.text[max(value.start, last):f.start]; {
		case !f.known:
			return unknown()
		case opens(between) || at == inForm && opens(unescaped(between)):
			return notAllowed("behind the beginning of an escape")
		case f.name == Credential && at != inHeader:
			return notAllowed("of a credential except in a header")
		case f.name == SecurityCode && !t.isWhole(value, f, at):
			return notAllowed("of security_code that is not a whole value")
		}

		added := slot{start: int32(f.start), end: int32(f.end), name: f.name, place: at}
		if f.number {
			if at != inJSON || f.start != value.start || f.end != value.end || !f.name.number() {
				return notAllowed("with | number, except of an expiry that is a whole string of JSON")
			}
			added.start, added.end, added.place = added.start-1, added.end+1, inJSONNumber
		}
		if f.name == Credential {
			added.credential = t.credential(f.credential)
		}
		if f.name == SecurityCode && !namesCode(t.field(value, at)) {
			t.CodeElsewhere = true
		}
		last = f.end
		t.slots = append(t.slots, added)
		t.Names |= Of(f.name)
	}
	return nil
}

func (t *Template) credential(name string) int32 {
	for i, known := range t.Credentials {
		if known == name {
			return int32(i)
		}
	}
	t.Credentials = append(t.Credentials, name)
	return int32(len(t.Credentials) - 1)
}

// isWhole reports whether a placeholder is a whole value, except for blanks. A security code is
// found in an answer only where it stands alone. Beside digits it does not, nor beside
// blanks, which the other side may remove: of "4000 {{ security_code }}" it would show the
// last four digits, as of any card number.
func (t *Template) isWhole(value span, f found, at place) bool {
	if at == inXML && !t.isAttribute(value) && !t.isElement(value) {
		return false
	}
	before, after := t.text[value.start:f.start], t.text[f.end:value.end]
	return len(bytes.TrimSpace(before)) == 0 && len(bytes.TrimSpace(after)) == 0
}

// opens reports whether text ends in an escape that is not complete: the other side would
// take a part of the value for its rest, and repeat the other part in another shape.
func opens(text []byte) bool {
	i := bytes.LastIndexAny(text, `%\&`)
	if i < 0 {
		return false
	}

	digits := text[i+1:]
	most := 0 // how many of them the escape has
	switch first := text[i]; {
	case first == '&':
		code, ok := bytes.CutPrefix(digits, []byte("#"))
		return ok && areHex(bytes.TrimPrefix(bytes.ToLower(code), []byte("x")))
	case len(digits) > 0 && digits[0]|' ' == 'u':
		digits, most = digits[1:], 4
	case first == '%':
		most = 2
	case len(digits) > 0 && digits[0] == 'x':
		digits, most = digits[1:], 2
	default:
		most = 3
	}
	return len(digits) < most && areHex(digits)
}

func areHex(text []byte) bool {
	return !bytes.ContainsFunc(text, func(c rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF", c) })
}

// unescaped decodes percent-encoding.
func unescaped(text []byte) []byte {
	if bytes.IndexByte(text, '%') < 0 {
		return text
	}
	plain := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c, ok := escaped(text[i:])
		if ok {
			i += 2
		} else {
			c = text[i]
		}
		plain = append(plain, c)
	}
	return plain
}

func malformed(what string) *rule.Broken {
	return &rule.Broken{Code: invalid.Format, Message: fmt.Sprintf("must be %s, since it has placeholders", what)}
}
