package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// A generator makes values that schemas accept.
type generator struct {
	*rand.Rand
	c *checker

	// known returns a value with a meaning in the vault, for the name of a member or
	// parameter, or false.
	known func(name string) (value string, ok bool)
}

func (g *generator) oneIn(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g *generator, from []T) T { return from[g.IntN(len(from))] }

// value returns a value that a schema accepts. It ignores rules that are only in words.
func (g *generator) value(t testing.TB, name string, node any) any {
	t.Helper()
	schema := g.c.resolve(node)
	if all := words(schema); all != nil {
		return pick(g, all)
	}
	kinds, ok := schema["type"].([]any)
	if !ok {
		kinds = []any{schema["type"]}
	}
	kind := kinds[0]
	if len(kinds) > 1 && g.oneIn(8) {
		kind = pick(g, kinds)
	}

	switch kind {
	case "null":
		return nil
	case "boolean":
		return g.oneIn(2)
	case "integer":
		return g.integer(schema)
	case "string":
		if value, ok := g.known(name); ok && !g.oneIn(8) {
			return value
		}
		return g.text(t, schema)
	case "array":
		list := make([]any, 1+g.IntN(3))
		for i := range list {
			list[i] = g.value(t, name, schema["items"])
		}
		return list
	case "object":
		return g.object(t, schema)
	}
	t.Fatalf("%s has the type %v", name, kind)
	return nil
}

func (g *generator) integer(schema map[string]any) any {
	low, high := int64(schema["minimum"].(float64)), int64(math.MaxInt32)
	if most, ok := schema["maximum"].(float64); ok {
		high = int64(most)
	}
	switch g.IntN(6) {
	case 0:
		return json.Number(strconv.FormatInt(low, 10))
	case 1:
		return json.Number(strconv.FormatInt(high, 10))
	}
	return json.Number(strconv.FormatInt(low+g.Int64N(high-low+1), 10))
}

func (g *generator) object(t testing.TB, schema map[string]any) map[string]any {
	t.Helper()
	object := map[string]any{}
	properties, _ := schema["properties"].(map[string]any) // none if the names are the caller's
	names := slices.Sorted(maps.Keys(properties))
	required, _ := schema["required"].([]any)
	for _, name := range names {
		if slices.Contains(required, any(name)) || g.oneIn(2) {
			object[name] = g.value(t, name, properties[name])
		}
	}
	if least, ok := schema["minProperties"].(float64); ok && len(object) < int(least) {
		name := pick(g, names)
		object[name] = g.value(t, name, properties[name])
	}

	depends, _ := schema["dependentRequired"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(depends)) {
		for _, other := range depends[name].([]any) {
			if _, ok := object[name]; ok && object[other.(string)] == nil {
				object[other.(string)] = g.value(t, other.(string), properties[other.(string)])
			}
		}
	}
	return object
}

// text returns a text that matches the pattern and length of a schema.
func (g *generator) text(t testing.TB, schema map[string]any) string {
	t.Helper()
	least, most := 0, 64
	if n, ok := schema["minLength"].(float64); ok {
		least = int(n)
	}
	if n, ok := schema["maxLength"].(float64); ok {
		most = int(n)
	}
	pattern, _ := schema["pattern"].(string)
	if pattern == "" {
		pattern = "^[ -~]+$"
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		t.Fatal(err)
	}

	want := least + g.IntN(min(most, least+24)-least+1)
	if g.oneIn(20) {
		want = most
	}
	for range 1000 {
		var b strings.Builder
		g.match(&b, parsed, want)
		text := b.String()
		if n := utf8.RuneCountInString(text); n > most {
			text = string([]rune(text)[:most])
		} else if n < least {
			continue
		}
		return text
	}
	t.Fatalf("nothing of %d to %d characters matches %s", least, most, pattern)
	return ""
}

// match appends a text that matches a pattern. It repeats parts up to a limit.
func (g *generator) match(b *strings.Builder, p *syntax.Regexp, many int) {
	switch p.Op {
	case syntax.OpLiteral:
		b.WriteString(string(p.Rune))
	case syntax.OpCharClass:
		i := 2 * g.IntN(len(p.Rune)/2)
		low, high := p.Rune[i], p.Rune[i+1]
		if high > 0xd7ff && low <= 0xdfff { // no surrogates
			high = max(low, 0xd7ff)
		}
		if high-low > 0x200 && !g.oneIn(4) {
			high = low + 0x200
		}
		b.WriteRune(low + g.Int32N(high-low+1))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteRune('a' + g.Int32N(26))
	case syntax.OpStar:
		g.repeat(b, p.Sub[0], g.IntN(many+1), many)
	case syntax.OpPlus:
		g.repeat(b, p.Sub[0], max(1, many), many)
	case syntax.OpQuest:
		g.repeat(b, p.Sub[0], g.IntN(2), many)
	case syntax.OpRepeat:
		most := p.Max
		if most < 0 {
			most = p.Min + many
		}
		g.repeat(b, p.Sub[0], p.Min+g.IntN(most-p.Min+1), many)
	case syntax.OpConcat, syntax.OpCapture:
		for _, sub := range p.Sub {
			g.match(b, sub, many)
		}
	case syntax.OpAlternate:
		g.match(b, pick(g, p.Sub), many)
	}
}

func (g *generator) repeat(b *strings.Builder, p *syntax.Regexp, n, many int) {
	for range n {
		g.match(b, p, many)
	}
}

// spoil changes a body so that the contract may refuse it. A member is missing, has another
// type, is too long or doubled, or the text is not JSON.
func (g *generator) spoil(body map[string]any) []byte {
	names := slices.Sorted(maps.Keys(body))
	if inner, ok := body["result"].(map[string]any); ok && g.oneIn(2) {
		_ = json.Unmarshal(g.spoil(inner), &inner)
		body["result"] = inner
		return encode(body)
	}

	name := "unknown"
	if len(names) > 0 {
		name = pick(g, names)
	}
	switch g.IntN(12) {
	case 0:
		delete(body, name)
	case 1:
		body[name] = nil
	case 2:
		body[name] = pick(g, []any{true, 7, "7", []any{}, map[string]any{}, []any{nil}, json.Number("4.0"), json.Number("4e0"), json.Number("1e99")})
	case 3:
		body[name] = pick(g, []any{"", " ", "\u3000", "a\u0000", "a\u007fb", "\u0085", strings.Repeat("é", 256), strings.Repeat("1", 20), "4242 4242 4242 4242"})
	case 4:
		body[name] = pick(g, []any{-1, 0, 13, 1999, 2100, json.Number("9007199254740992"), json.Number("123456789012345678901234567890")})
	case 5:
		body[pick(g, []string{"unknown", "Account_Number", "account_number ", "", "4242424242424242", "é"})] = 1
	case 6:
		return bytes.Replace(encode(body), []byte("{"), []byte(`{"`+name+`":1,`), 1)
	case 7:
		text := encode(body)
		return text[:g.IntN(len(text))]
	case 8:
		return append(encode(body), pick(g, []string{"{}", "]", "\xff", ",", "\x00"})...)
	case 9:
		return []byte(pick(g, []string{"null", "[]", `"text"`, "7", "{", `{"a":"\ud800"}`, "\ufeff{}", `{"a":"` + "\xff" + `"}`, strings.Repeat("[", 40)}))
	case 10:
		body[name] = strings.Repeat("x", 70_000)
	case 11:
		if text, ok := body[name].(string); ok && text != "" {
			i := g.IntN(len(text))
			body[name] = text[:i] + pick(g, []string{"", " ", "x", "é", "\n"}) + text[i+1:]
		}
	}
	return encode(body)
}

func encode(value any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(value)
	return bytes.TrimSpace(b.Bytes())
}
