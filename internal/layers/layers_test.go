package layers_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/cardvault/cardvault/internal/layers"
)

type bare struct{ io.Reader }

type wrapper struct {
	io.Reader
	name string
}

func (w wrapper) Unwrap() io.Reader { return w.Reader }

type closer struct{ io.Reader }

func (closer) Close() error { return nil }

// A ring unwraps to itself.
type ring struct{ io.Reader }

func (r *ring) Unwrap() io.Reader { return r }

func TestAs(t *testing.T) {
	c := closer{}
	for name, test := range map[string]struct {
		v    io.Reader
		want bool
	}{
		"nil":                 {nil, false},
		"itself":              {c, true},
		"below two":           {wrapper{wrapper{c, "b"}, "a"}, true},
		"below an opaque one": {bare{c}, false},
		"nothing below":       {wrapper{nil, "a"}, false},
		"a ring":              {new(ring), false},
	} {
		if _, ok := layers.As[io.Closer](test.v); ok != test.want {
			t.Errorf("%s: %v, want %v", name, ok, test.want)
		}
	}
}

// TestTooDeep: a value with more layers than As looks at is too deep.
func TestTooDeep(t *testing.T) {
	var v io.Reader = closer{}
	for n := 1; n <= layers.Deepest; n++ {
		if layers.TooDeep(v) {
			t.Errorf("%d layers are too deep", n)
		}
		v = wrapper{v, "one more"}
	}
	if !layers.TooDeep(v) || !layers.TooDeep[io.Reader](new(ring)) || layers.TooDeep[io.Reader](nil) {
		t.Error("a value that is too deep is not noticed")
	}
}

// TestOf: Of yields the layers from the outside in, and unwraps no further than the caller
// asks.
func TestOf(t *testing.T) {
	var names []string
	for layer := range layers.Of[io.Reader](wrapper{wrapper{wrapper{nil, "c"}, "b"}, "a"}) {
		if names = append(names, layer.(wrapper).name); len(names) == 2 {
			break
		}
	}
	if !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("%q", names)
	}
}

// A code is an error of a type of its own.
type code int

func (c code) Error() string { return fmt.Sprint(int(c)) }

func TestErrors(t *testing.T) {
	tree := errors.Join(code(1), io.EOF, nil, fmt.Errorf("inside: %w", errors.Join(code(2), fmt.Errorf("%w: %w", code(3), code(4)))))
	if got := layers.Errors[code](tree); !slices.Equal(got, []code{1, 2, 3, 4}) {
		t.Errorf("found %v", got)
	}
	if got := layers.Errors[code](errors.Join(io.EOF, nil)); len(got) > 0 || len(layers.Errors[code](nil)) > 0 {
		t.Errorf("found %v in other errors", got)
	}
}
