package reference

import (
	"html/template"
	"slices"
	"strings"
)

// A field is a parameter, a header, a member of an object, or a whole body.
type field struct {
	Name, In    string
	Required    bool
	Type        string // in words
	Schema      string // the name of its schema among the components, "" if it has none
	Description template.HTML
	Facts       []string // limits, in words
	Pattern     string
	Values      []string // all there are, if they are few
	Default     string
	Example     string
	Fields      []*field // of an object, or of the objects of a list
	Variants    []*field // alternatives
}

// maxFields bounds how deep objects are shown in each other.
const maxFields = 6

// maxPattern bounds what of a pattern helps a reader.
const maxPattern = 80

// field reads a schema as a field.
func (d *document) field(name string, schema *node, depth int) *field {
	s, called := d.follow(schema)
	s = d.merged(s)
	f := &field{
		Name:        name,
		Schema:      called,
		Description: markdown(s.get("description").text()),
		Pattern:     s.get("pattern").text(),
		Values:      slices.DeleteFunc(s.get("enum").texts(), func(v string) bool { return v == "null" }),
		Default:     s.get("default").text(),
		Facts:       facts(s),
	}
	if s.get("format") != nil || len(f.Pattern) > maxPattern {
		f.Pattern = "" // the format says it, or it is unreadable
	}
	if constant := s.get("const"); constant != nil {
		f.Values = []string{constant.text()}
	}
	if depth == 0 {
		return f
	}

	types := s.get("type").texts()
	nullable := slices.Contains(types, "null")
	types = slices.DeleteFunc(types, func(t string) bool { return t == "null" })
	switch {
	case s.get("oneOf") != nil:
		nullable = d.variants(f, s.get("oneOf").list(), depth)
	case s.get("items") != nil:
		item := d.field("", s.get("items"), depth-1)
		f.Type = "list of " + item.Type
		f.Fields, f.Values = item.Fields, item.Values
		if f.Schema == "" {
			f.Schema = item.Schema
		}
	case s.get("properties") != nil:
		f.Type = "object"
		required := s.get("required").texts()
		for _, m := range s.get("properties").all() {
			inner := d.field(m.name, m.value, depth-1)
			inner.Required = slices.Contains(required, m.name)
			f.Fields = append(f.Fields, inner)
		}
	case len(types) > 0:
		f.Type = strings.Join(types, " or ")
		if format := s.get("format").text(); format != "" {
			f.Type += " (" + format + ")"
		}
	case s.get("const") != nil:
		f.Type = typeOf(s.get("const"))
	case len(f.Values) > 0:
		f.Type = "string"
	}

	switch {
	case nullable && f.Type == "":
		f.Type = "null"
	case nullable:
		f.Type += " or null"
	}
	return f
}

// typeOf returns the type of a constant.
func typeOf(constant *node) string {
	switch constant.raw[0] {
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	}
	return "integer"
}

// variants reads the alternatives of a field, and reports whether null is among them.
func (d *document) variants(f *field, of []*node, depth int) (nullable bool) {
	var left []*node
	for _, v := range of {
		if v.get("type").text() == "null" {
			nullable = true
			continue
		}
		left = append(left, v)
	}

	if len(left) == 1 {
		only := d.field(f.Name, left[0], depth)
		if f.Description == "" {
			f.Description = only.Description
		}
		f.Type, f.Schema, f.Fields, f.Values = only.Type, only.Schema, only.Fields, only.Values
		return nullable
	}

	f.Type = "one of these"
	for _, v := range left {
		f.Variants = append(f.Variants, d.field("", v, depth-1))
	}
	return nullable
}

// merged returns a schema with its allOf resolved. Later parts replace earlier ones.
func (d *document) merged(s *node) *node {
	for _, part := range s.get("allOf").list() {
		p, _ := d.follow(part)
		if p == nil {
			continue
		}

		properties := p.get("properties")
		if have := s.get("properties"); have != nil && properties != nil {
			both := overlaid(have, properties)
			for i, m := range both.members {
				if under := have.get(m.name); under != nil {
					both.members[i].value = overlaid(under, m.value)
				}
			}
			properties = both
		}

		s = overlaid(s, p)
		if properties != nil {
			s = overlaid(s, &node{members: []member{{"properties", properties}}})
		}
	}
	return s
}

// facts returns the limits of a schema.
func facts(s *node) (all []string) {
	between := func(least, most, unit string) {
		low, high := s.get(least).text(), s.get(most).text()
		switch {
		case low != "" && high != "":
			all = append(all, low+" to "+high+unit+"s")
		case low == "1" && unit != "":
			all = append(all, "at least one"+unit)
		case low != "":
			all = append(all, "at least "+low+unit+"s")
		case high != "":
			all = append(all, "at most "+high+unit+"s")
		}
	}

	between("minLength", "maxLength", " character")
	between("minItems", "maxItems", " item")
	between("minProperties", "maxProperties", " member")
	switch low, high := s.get("minimum").text(), s.get("maximum").text(); {
	case low != "" && high != "":
		all = append(all, "from "+low+" to "+high)
	case low != "":
		all = append(all, "at least "+low)
	case high != "":
		all = append(all, "at most "+high)
	}
	return all
}
