package template

import (
	"bytes"
	"regexp"
	"strconv"
	"unicode/utf8"

	"github.com/cardvault/cardvault/internal/rule"
)

// xml finds the placeholders in the text and the attributes of XML.
func (t *Template) xml(s Syntax) *rule.Broken {
	begin := bytes.TrimLeft(bytes.TrimPrefix(t.text, []byte("\ufeff")), " \t\r\n")
	if !bytes.HasPrefix(begin, []byte("<")) || bytes.IndexByte(t.text, 0) >= 0 {
		return malformed("XML in UTF-8") // parsers guess an encoding from its first bytes
	}
	for pos := 0; pos < len(t.text); {
		open := bytes.IndexByte(t.text[pos:], '<')
		if open < 0 {
			return t.fill(s, span{pos, len(t.text)}, inXML)
		}
		if broken := t.fill(s, span{pos, pos + open}, inXML); broken != nil {
			return broken
		}
		end, broken := t.markup(s, pos+open)
		if broken != nil {
			return broken
		}
		pos = end
	}
	return nil
}

// isAttribute reports whether a value is one of an attribute.
func (t *Template) isAttribute(value span) bool {
	return value.start > 0 && t.text[value.start-1] != '>'
}

// isElement reports whether a text is all that is between a tag and its end tag. A comment
// or CDATA beside it would not separate it from more text.
func (t *Template) isElement(value span) bool {
	before, after := t.text[:value.start], t.text[value.end:]
	for _, end := range []string{"-->", "?>", "]]>", "/>"} {
		if bytes.HasSuffix(before, []byte(end)) {
			return false
		}
	}
	open := bytes.LastIndexByte(before, '<')
	return open >= 0 && before[open+1] != '/' && bytes.HasPrefix(after, []byte("</"))
}

// encoding finds the encoding in the declaration of XML.
var encoding = regexp.MustCompile(`encoding\s*=\s*["']([^"']*)["']`)

// isUTF8 reports whether the declaration of XML, or a processing instruction, has no other
// encoding.
func isUTF8(declaration []byte) bool {
	if !bytes.Contains(bytes.ToLower(declaration), []byte("encoding")) {
		return true
	}
	all := encoding.FindAllSubmatch(declaration, -1)
	return len(all) == 1 && isCharset(string(all[0][1]))
}

// markup reads what begins with a < and returns its end.
func (t *Template) markup(s Syntax, start int) (int, *rule.Broken) {
	for _, m := range []struct{ begin, end, where string }{
		{"<!--", "-->", "in a comment of XML"},
		{"<![CDATA[", "]]>", "in CDATA of XML: use text"},
		{"<?", "?>", "in a processing instruction of XML"},
	} {
		if !bytes.HasPrefix(t.text[start:], []byte(m.begin)) {
			continue
		}
		inside := start + len(m.begin)
		n := bytes.Index(t.text[inside:], []byte(m.end))
		if n < 0 {
			return 0, malformed("XML")
		}
		if m.begin == "<?" && !isUTF8(t.text[inside:inside+n]) {
			return 0, notAllowed("in a body that is not UTF-8")
		}
		return inside + n + len(m.end), t.refuse(s, span{inside, inside + n}, false, m.where)
	}

	if bytes.HasPrefix(t.text[start:], []byte("<!")) {
		return 0, notAllowed("in XML with a document type") // whose entities could be anything
	}
	return t.tag(s, start)
}

// tag reads a tag and returns its end.
func (t *Template) tag(s Syntax, pos int) (int, *rule.Broken) {
	for {
		n := bytes.IndexAny(t.text[pos:], `>"'`)
		if n < 0 {
			return 0, malformed("XML")
		}
		outside := span{pos, pos + n}
		if broken := t.refuse(s, outside, false, "in the name of an element or attribute of XML"); broken != nil {
			return 0, broken
		}
		quote := t.text[outside.end]
		pos = outside.end + 1
		if quote == '>' {
			return pos, nil
		}

		if n = bytes.IndexByte(t.text[pos:], quote); n < 0 {
			return 0, malformed("XML")
		}
		if broken := t.fill(s, span{pos, pos + n}, inXML); broken != nil {
			return 0, broken
		}
		pos += n + 1
	}
}

// appendXML appends a value as text or attribute of XML, in ASCII.
func appendXML(to, value []byte) []byte {
	for len(value) > 0 {
		r, n := utf8.DecodeRune(value)
		value = value[n:]
		if r >= ' ' && r < 0x7f && !bytes.ContainsRune([]byte(`<>&"'`), r) {
			to = append(to, byte(r))
			continue
		}
		to = append(to, '&', '#')
		to = strconv.AppendInt(to, int64(r), 10)
		to = append(to, ';')
	}
	return to
}
