package reference

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// A node is a value of a JSON document. A nil node is an absent value.
type node struct {
	raw     json.RawMessage
	members []member // of an object, in their order
	items   []*node  // of a list
}

type member struct {
	name  string
	value *node
}

// parse reads a value with all that is in it.
func parse(raw json.RawMessage) (*node, error) {
	n := &node{raw: raw}
	d := json.NewDecoder(bytes.NewReader(raw))
	opening, err := d.Token()
	if err != nil {
		return nil, err
	}

	for opening == json.Delim('{') || opening == json.Delim('[') {
		if !d.More() {
			break
		}
		name := ""
		if opening == json.Delim('{') {
			t, err := d.Token()
			if err != nil {
				return nil, err
			}
			name, _ = t.(string) // the Decoder takes nothing else
		}

		var inner json.RawMessage
		if err := d.Decode(&inner); err != nil {
			return nil, err
		}
		value, err := parse(inner)
		if err != nil {
			return nil, err
		}
		if opening == json.Delim('{') {
			n.members = append(n.members, member{name, value})
		} else {
			n.items = append(n.items, value)
		}
	}
	return n, nil
}

// get returns the value at a path of names.
func (n *node) get(path ...string) *node {
	for _, name := range path {
		if n == nil {
			return nil
		}
		var found *node
		for _, m := range n.members {
			if m.name == name {
				found = m.value
			}
		}
		n = found
	}
	return n
}

// all returns the members of an object.
func (n *node) all() []member {
	if n == nil {
		return nil
	}
	return n.members
}

// list returns the items of a list.
func (n *node) list() []*node {
	if n == nil {
		return nil
	}
	return n.items
}

// text returns a string as it is, and other values as JSON. An absent value has the text "".
func (n *node) text() string {
	if n == nil {
		return ""
	}
	var s string
	if json.Unmarshal(n.raw, &s) == nil && n.raw[0] == '"' {
		return s
	}
	return string(n.raw)
}

// texts returns the items of a list, or the value itself, as text.
func (n *node) texts() (all []string) {
	if n == nil {
		return nil
	}
	if n.raw[0] != '[' {
		return []string{n.text()}
	}
	for _, item := range n.items {
		all = append(all, item.text())
	}
	return all
}

// pretty returns a value as JSON, in lines and in one.
func (n *node) pretty() (lines, line string) {
	var indented, compact bytes.Buffer
	if n == nil || json.Indent(&indented, n.raw, "", "  ") != nil || json.Compact(&compact, n.raw) != nil {
		return "", ""
	}
	return indented.String(), compact.String()
}

// A document is an OpenAPI document in which references can be followed.
type document struct{ root *node }

var errNoDocument = errors.New("reference: not an OpenAPI document in JSON")

func parseDocument(text []byte) (*document, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoDocument, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errNoDocument
	}
	root, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoDocument, err)
	}
	if root.get("openapi") == nil || root.get("paths") == nil {
		return nil, errNoDocument
	}
	return &document{root}, nil
}

// maxReferences bounds a chain of references, which could be a circle.
const maxReferences = 10

// follow returns what a node refers to, and the last name of the reference. Members beside
// $ref replace the members of the target.
func (d *document) follow(n *node) (target *node, name string) {
	for range maxReferences {
		ref := n.get("$ref")
		if ref == nil {
			return n, name
		}
		path := strings.Split(strings.TrimPrefix(ref.text(), "#/"), "/")
		for i, segment := range path {
			path[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(segment)
		}
		if name == "" {
			name = path[len(path)-1]
		}

		target := d.root.get(path...)
		if target == nil {
			return nil, name
		}
		n = overlaid(target, n)
	}
	return nil, name
}

// overlaid returns an object with the members of over in place of its own, without $ref.
func overlaid(under, over *node) *node {
	n := &node{raw: under.raw}
	for _, m := range under.members {
		if over.get(m.name) == nil {
			n.members = append(n.members, m)
		}
	}
	for _, m := range over.members {
		if m.name != "$ref" {
			n.members = append(n.members, m)
		}
	}
	return n
}
