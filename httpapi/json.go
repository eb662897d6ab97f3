package httpapi

import (
	"bytes"
	"math"
	"slices"
	"strings"

	"github.com/cardvault/cardvault/internal/jsontext"
	"github.com/cardvault/cardvault/invalid"
	"github.com/google/uuid"
)

// A presence says what the absence of a member means.
type presence uint8

const (
	required presence = iota
	optional          // null is the same as absent; null separates them
	nonNull           // may be absent but not null
)

// fields reads the members of an object by name and notes their faults. Its methods report
// whether there is a value to use.
type fields struct {
	members    []jsontext.Value
	prefix     string // of the names of its members: "result."
	violations *violations
	lenient    bool // Options.IgnoreUnknown: members that are not asked for are dropped
}

// Marks that fields leaves on a value.
const (
	asked  = 1 << iota // by a method
	opened             // by object
)

// readJSON reads a request body. What its methods return points into the body.
func readJSON(body []byte, v *violations) (fields, error) {
	values, err := jsontext.Parse(body)
	if err != nil {
		return fields{}, err
	}
	return fields{members: values[1:], violations: v}, nil
}

func (f fields) refuse(name string, code invalid.Code, limits ...any) {
	f.violations.add(f.prefix+name, code, limits...)
}

// wanted names the kinds that get is asked for.
var wanted = map[string]string{
	`"`:  "a string",
	"0":  "an integer",
	"tf": "true or false",
	"[":  "a list of strings",
	"{":  "an object",
	"":   "null",
}

// get returns the value of a member and those inside it, or nil.
func (f fields) get(name string, need presence, kinds string) []jsontext.Value {
	i := jsontext.Find(f.members, name)
	if i < 0 {
		if need == required {
			f.refuse(name, invalid.Required)
		}
		return nil
	}

	n := &f.members[i]
	n.Mark |= asked
	switch {
	case n.Kind == 'n':
		if need != optional {
			f.refuse(name, invalid.Null)
		}
	case strings.IndexByte(kinds, n.Kind) < 0:
		f.refuse(name, invalid.Type, wanted[kinds])
	default:
		return f.members[i : i+n.Size]
	}
	return nil
}

// has reports whether a member is given, if only as null.
func (f fields) has(name string) bool {
	return jsontext.Find(f.members, name) >= 0
}

// empty reports whether no member is given, or all were dropped. It is asked after all else.
func (f fields) empty() bool {
	if !f.lenient {
		return len(f.members) == 0
	}
	return !slices.ContainsFunc(f.members, func(m jsontext.Value) bool { return m.Mark&asked != 0 })
}

// null reports whether a member is given as null.
func (f fields) null(name string) bool {
	i := jsontext.Find(f.members, name)
	return i >= 0 && f.members[i].Kind == 'n'
}

// text reads a string of min to max characters.
func (f fields) text(name string, need presence, min, max int) ([]byte, bool) {
	n := f.get(name, need, `"`)
	if n == nil || !f.violations.checkText(f.prefix+name, n[0].Text, min, max) {
		return nil, false
	}
	return n[0].Text, true
}

// integer reads a number from min to max.
func (f fields) integer(name string, need presence, min, max int64) (int64, bool) {
	n := f.get(name, need, "0")
	if n == nil {
		return 0, false
	}
	if !isDigits(bytes.TrimPrefix(n[0].Text, []byte("-"))) {
		f.refuse(name, invalid.NotAnInteger)
		return 0, false
	}
	i, ok := parseInt(n[0].Text)
	if !ok || i < min || i > max {
		f.refuse(name, invalid.OutOfRange, min, max)
		return 0, false
	}
	return i, true
}

func isDigits[T ~string | ~[]byte](s T) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) > 0
}

// parseInt reads an integer out of JSON; ok is false past 63 bits. It stands in
// for strconv, which needs a string and puts it into its error.
func parseInt(text []byte) (n int64, ok bool) {
	digits, negative := bytes.CutPrefix(text, []byte("-"))
	for _, c := range digits {
		d := int64(c - '0')
		if n > (math.MaxInt64-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	if negative {
		n = -n
	}
	return n, true
}

// boolean reads true or false.
func (f fields) boolean(name string, need presence) (value, ok bool) {
	n := f.get(name, need, "tf")
	return n != nil && n[0].Kind == 't', n != nil
}

// id reads a UUID as the vault writes them, or in capitals.
func (f fields) id(name string, need presence) (uuid.UUID, bool) {
	text, ok := f.text(name, need, 0, math.MaxInt)
	if !ok {
		return uuid.Nil, false
	}
	id, ok := parseID(text)
	if !ok {
		f.refuse(name, invalid.Format, "a UUID of version 4")
	}
	return id, ok
}

// parseID takes only the canonical form of a UUIDv4, in either case, as RFC 9562 has it:
// Swift and SQL Server print capitals. uuid.Parse takes braces, prefixes and every version.
func parseID[T ~string | ~[]byte](s T) (id uuid.UUID, ok bool) {
	if len(s) != 36 {
		return uuid.Nil, false
	}

	for i := range len(s) {
		switch c := s[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			ok = c == '-'
		case i == 14:
			ok = c == '4'
		case i == 19:
			ok = c == '8' || c == '9' || c|' ' == 'a' || c|' ' == 'b'
		default:
			ok = '0' <= c && c <= '9' || 'a' <= c|' ' && c|' ' <= 'f'
		}
		if !ok {
			return uuid.Nil, false
		}
	}

	id, err := uuid.Parse(string(s))
	return id, err == nil
}

// literals reads a list of strings out of a closed set, each once. Its results come from
// the set.
func literals[T ~string](f fields, name string, need presence, set []T) ([]T, bool) {
	n := f.get(name, need, "[")
	if n == nil {
		return nil, false
	}
	chosen := make([]T, 0, len(set))
	for i := 1; i < len(n); i += n[i].Size {
		if n[i].Kind != '"' {
			f.refuse(name, invalid.Type, wanted["["])
			return nil, false
		}
		var ok bool
		if chosen, ok = choose(f.violations, f.prefix+name, n[i].Text, set, chosen); !ok {
			return nil, false
		}
	}
	return chosen, true
}

// choose appends a member of a closed set to those chosen before, unless it is
// among them.
func choose[T ~string](v *violations, field string, item []byte, set, chosen []T) ([]T, bool) {
	if len(item) == 0 {
		v.add(field, invalid.EmptyListItem)
		return nil, false
	}

	for _, literal := range set {
		if string(literal) != string(item) {
			continue
		}
		if !slices.Contains(chosen, literal) {
			chosen = append(chosen, literal)
		}
		return chosen, true
	}

	names := make([]string, len(set))
	for i, literal := range set {
		names[i] = string(literal)
	}
	v.add(field, invalid.Enum, strings.Join(names, ", "))
	return nil, false
}

// object reads an object. Without one it returns fields that nothing may be
// asked of.
func (f fields) object(name string, need presence) (fields, bool) {
	n := f.get(name, need, "{")
	if n == nil {
		return fields{}, false
	}
	n[0].Mark |= opened
	return fields{n[1:], f.prefix + name + ".", f.violations, f.lenient}, true
}

// done reports every member that was never asked for, in objects that were
// opened too. It is called once, on the outer object, after all else.
func (f fields) done() {
	for i := 0; i < len(f.members); i += f.members[i].Size {
		switch n := f.members[i]; {
		case n.Mark&asked == 0:
			f.refuse(shown(n.Name), invalid.UnknownField)
		case n.Mark&opened != 0:
			fields{f.members[i+1 : i+n.Size], f.prefix + string(n.Name) + ".", f.violations, false}.done()
		}
	}
}
