package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestRun: the provider receives the card, and the program sees it masked.
func TestRun(t *testing.T) {
	psp := httptest.NewServer(http.HandlerFunc(charge))
	defer psp.Close()
	var out strings.Builder
	if err := run(t.Context(), t.TempDir(), psp.URL, &out); err != nil {
		t.Fatal(err)
	}
	const want = `200 OK
{"status":"succeeded","received":{"number":"424242******4242","month":12,"year":2030,"amount":1999}}
`
	if out.String() != want {
		t.Errorf("output is %s", out.String())
	}
}
