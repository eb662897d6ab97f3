// Package layers looks through decorators: values that wrap another of the same interface
// and return it by Unwrap. It looks through trees of errors likewise.
package layers

import (
	"errors"
	"iter"
)

// Deepest bounds how many layers are looked at, so that a ring of decorators ends.
const Deepest = 16

// Of returns v and the values of interface P that it unwraps to, from the outside in: Deepest
// at most.
func Of[P any](v P) iter.Seq[P] { return first(v, Deepest) }

// TooDeep reports whether v has layers that Of does not return.
func TooDeep[P any](v P) bool {
	n := 0
	for range first(v, Deepest+1) {
		n++
	}
	return n > Deepest
}

// first returns the outermost layers of v.
func first[P any](v P, most int) iter.Seq[P] {
	return func(yield func(P) bool) {
		for range most {
			if any(v) == nil || !yield(v) {
				return
			}
			w, ok := any(v).(interface{ Unwrap() P })
			if !ok {
				return
			}
			v = w.Unwrap()
		}
	}
}

// As returns the first layer of v that is a T.
func As[T, P any](v P) (t T, ok bool) {
	for layer := range Of(v) {
		if t, ok = any(layer).(T); ok {
			return t, true
		}
	}
	return t, false
}

// Errors returns every E in the tree of err, in order, without those inside another.
func Errors[E error](err error) []E {
	switch e := err.(type) {
	case nil:
		return nil
	case E:
		return []E{e}
	case interface{ Unwrap() []error }:
		var found []E
		for _, err := range e.Unwrap() {
			found = append(found, Errors[E](err)...)
		}
		return found
	default:
		return Errors[E](errors.Unwrap(err))
	}
}
