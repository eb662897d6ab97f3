package kms_test

import (
	"reflect"
	"testing"

	"github.com/cardvault/cardvault/internal/printtest"
	"github.com/cardvault/cardvault/kms"
)

// No exported type prints a secret.
func TestPrint(t *testing.T) {
	printtest.Run(t, ".", "kms", map[string]string{
		"kms.TransitOptions.Mount":     "a path",
		"kms.TransitOptions.Namespace": "a path",
		"kms.TransitOptions.Context":   "names a derived key, and is not a secret",
	},
		reflect.TypeFor[kms.TransitOptions]())
}
