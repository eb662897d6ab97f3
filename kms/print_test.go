package kms_test

import (
	"reflect"
	"testing"

	"github.com/cardvault/cardvault/internal/printtest"
	"github.com/cardvault/cardvault/kms"
	"github.com/cardvault/cardvault/kms/shares"
)

// No exported type prints a secret.
func TestPrint(t *testing.T) {
	printtest.Run(t, ".", "kms", map[string]string{
		"kms.TransitOptions.Mount":     "a path",
		"kms.TransitOptions.Namespace": "a path",
		"kms.TransitOptions.Context":   "names a derived key, and is not a secret",
		"kms/shares.Prompt.Set":        "names a set of shares",
	},
		reflect.TypeFor[kms.TransitOptions](), reflect.TypeFor[shares.Share](), reflect.TypeFor[shares.Prompt]())
}
