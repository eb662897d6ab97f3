package template

import (
	"bytes"
	"slices"
)

// field returns the name of the field that has a value, or nil for none.
func (t *Template) field(value span, at place) []byte {
	before, after := t.text[:value.start], t.text[value.end:]

	switch {
	case at == inForm:
		pair := before[bytes.LastIndexByte(before, '&')+1:]
		return unescaped(pair)
	case at == inJSON:
		member, ok := cutSuffix(before[:len(before)-1], ':')
		if !ok {
			return nil
		}
		name, _ := cutSuffix(member, '"')
		return name[bytes.LastIndexByte(name, '"')+1:]
	case at == inXML && !t.isAttribute(value):
		name, _, _ := bytes.Cut(bytes.TrimPrefix(after, []byte("</")), []byte(">"))
		return name
	case at == inXML:
		name, _ := cutSuffix(before[:len(before)-1], '=')
		return name[bytes.LastIndexAny(name, " \t\r\n")+1:]
	}
	return nil
}

// cutSuffix returns text without a byte, and white space around it, at its end.
func cutSuffix(text []byte, end byte) ([]byte, bool) {
	const white = " \t\r\n"
	text, ok := bytes.CutSuffix(bytes.TrimRight(text, white), []byte{end})
	if end != '"' {
		text = bytes.TrimRight(text, white)
	}
	return text, ok
}

// codeNames are parts of the names that systems give to security codes.
var codeNames = [][]byte{
	[]byte("cvc"), []byte("cvv"), []byte("cv2"), []byte("cvd"), []byte("cvn"), []byte("csc"),
	[]byte("securitycode"), []byte("cardcode"), []byte("verification"),
}

// namesCode reports whether the name of a field is that of a security code.
func namesCode(name []byte) bool {
	var plain []byte
	for _, c := range bytes.ToLower(name) {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' {
			plain = append(plain, c)
		}
	}
	return string(plain) == "cid" || slices.ContainsFunc(codeNames, func(part []byte) bool { return bytes.Contains(plain, part) })
}
