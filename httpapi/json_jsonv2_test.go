//go:build goexperiment.jsonv2

package httpapi

import (
	"bytes"
	"encoding/json/jsontext"
	"io"
	"slices"
	"testing"
)

// FuzzJSONAgainstV2 holds the parser against encoding/json/v2, whose defaults
// are as strict: what one accepts the other does, with the same values, but
// for an outer value that is no object and for our limits of depth and number.
func FuzzJSONAgainstV2(f *testing.F) {
	for _, body := range slices.Concat(within, outside, beyond) {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		want, depth, err := readV2(body)
		fits := err == nil && want[0].kind == '{' && depth <= maxDepth && len(want) <= maxValues+1
		got, err := parseJSON(bytes.Clone(body))
		if accepted := err == nil; accepted != fits {
			t.Fatalf("accepted = %v, by json/v2 %v: %q", accepted, fits, body)
		}
		if !fits {
			return
		}
		if len(got) != len(want) {
			t.Fatalf("%d nodes, want %d", len(got), len(want))
		}
		for i, n := range got {
			w := want[i]
			if n.kind != w.kind || n.size != w.size || !bytes.Equal(n.name, w.name) || !bytes.Equal(n.text, w.text) {
				t.Errorf("node %d of %q: got %+v, want %+v", i, body, n, w)
			}
		}
	})
}

// readV2 makes nodes of exactly one value, and says how deep they are nested.
func readV2(body []byte) (nodes []node, depth int, err error) {
	d := jsontext.NewDecoder(bytes.NewReader(body))
	var open []int
	for {
		name := d.StackDepth() > 0 && inName(d)
		token, err := d.ReadToken()
		if err != nil {
			return nil, 0, err
		}
		kind := byte(token.Kind())
		var pending []byte
		if name && kind == '"' {
			pending = []byte(token.String())
			if token, err = d.ReadToken(); err != nil {
				return nil, 0, err
			}
			kind = byte(token.Kind())
		}
		switch kind {
		case '}', ']':
			first := open[len(open)-1]
			open = open[:len(open)-1]
			nodes[first].size = len(nodes) - first
		default:
			n := node{kind: kind, size: 1, name: pending}
			if kind == '"' || kind == '0' {
				n.text = []byte(token.String())
			}
			if kind == '{' || kind == '[' {
				open = append(open, len(nodes))
			}
			nodes = append(nodes, n)
		}
		depth = max(depth, len(open))
		if len(open) == 0 {
			break
		}
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, 0, io.ErrUnexpectedEOF
	}
	return nodes, depth, nil
}

// inName reports whether the next token of an object is a name.
func inName(d *jsontext.Decoder) bool {
	kind, length := d.StackIndex(d.StackDepth())
	return kind == '{' && length%2 == 0
}
