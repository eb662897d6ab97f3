package main

import (
	"bytes"
	"testing"

	"github.com/cardvault/cardvault/httpapi"
)

// TestCommitted compares the JSON that is committed, and served, with what the YAML gives.
func TestCommitted(t *testing.T) {
	text, made := httpapi.OpenAPI()
	want, err := convert(text)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made, want) {
		t.Error("httpapi/openapi.json is not what httpapi/openapi.yaml gives: go run -C test ./contract")
	}
}
