package etag_test

import (
	"testing"

	"github.com/cardvault/cardvault/internal/etag"
)

func TestMatch(t *testing.T) {
	tag := etag.Of([]byte("body"))
	if tag != etag.Of([]byte("body")) || tag == etag.Of([]byte("Body")) || len(tag) != 34 {
		t.Errorf("tag %s", tag)
	}
	for _, test := range []struct {
		values []string
		want   bool
	}{
		{nil, false},
		{[]string{""}, false},
		{[]string{"*"}, true},
		{[]string{tag}, true},
		{[]string{"W/" + tag}, true},
		{[]string{`"x",` + tag}, true},
		{[]string{`"x"`, "\t" + tag + " "}, true},
		{[]string{`"x"`}, false},
		{[]string{tag[1:33]}, false},
		{[]string{"w/" + tag}, false},
	} {
		if got := etag.Match(test.values, tag); got != test.want {
			t.Errorf("%q: %v", test.values, got)
		}
	}
}
