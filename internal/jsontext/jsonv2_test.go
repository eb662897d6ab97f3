//go:build goexperiment.jsonv2

package jsontext_test

import (
	"bytes"
	v2 "encoding/json/jsontext"
	"io"
	"slices"
	"testing"

	"github.com/cardvault/cardvault/internal/jsontext"
)

// FuzzParseAgainstV2 compares the parser with encoding/json/v2, whose defaults are as
// strict. Both accept the same bodies and read the same values. The exceptions are an outer
// value other than an object, and our limits of depth and number.
func FuzzParseAgainstV2(f *testing.F) {
	for _, body := range slices.Concat(within, outside, beyond) {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		want, depth, err := readV2(body)
		fits := err == nil && want[0].Kind == '{' && depth <= jsontext.MaxDepth && len(want) <= jsontext.MaxValues+1
		got, err := jsontext.Parse(bytes.Clone(body))
		if accepted := err == nil; accepted != fits {
			t.Fatalf("accepted = %v, by json/v2 %v: %q", accepted, fits, body)
		}
		if !fits {
			return
		}
		if len(got) != len(want) {
			t.Fatalf("%d values, want %d", len(got), len(want))
		}
		for i, n := range got {
			w := want[i]
			if n.Kind != w.Kind || n.Size != w.Size || !bytes.Equal(n.Name, w.Name) || !bytes.Equal(n.Text, w.Text) {
				t.Errorf("value %d of %q: got %+v, want %+v", i, body, n, w)
			}
		}
	})
}

// readV2 reads exactly one value, and returns how deep it is nested.
func readV2(body []byte) (values []jsontext.Value, depth int, err error) {
	d := v2.NewDecoder(bytes.NewReader(body))
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
			values[first].Size = len(values) - first
		default:
			n := jsontext.Value{Kind: kind, Size: 1, Name: pending}
			if kind == '"' || kind == '0' {
				n.Text = []byte(token.String())
			}
			if kind == '{' || kind == '[' {
				open = append(open, len(values))
			}
			values = append(values, n)
		}
		depth = max(depth, len(open))
		if len(open) == 0 {
			break
		}
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, 0, io.ErrUnexpectedEOF
	}
	return values, depth, nil
}

// inName reports whether the next token of an object is a name.
func inName(d *v2.Decoder) bool {
	kind, length := d.StackIndex(d.StackDepth())
	return kind == '{' && length%2 == 0
}
