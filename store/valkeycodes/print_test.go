package valkeycodes_test

import (
	"reflect"
	"testing"

	"github.com/cardvault/cardvault/internal/printtest"
	"github.com/cardvault/cardvault/store/valkeycodes"
)

// No exported type prints a secret.
func TestPrint(t *testing.T) {
	printtest.Run(t, ".", "store/valkeycodes", map[string]string{
		"store/valkeycodes.Options.Prefix": "begins each key",
		"store/valkeycodes.*":              "that prefix, and ids of tokens",
	},
		reflect.TypeFor[valkeycodes.Cache](), reflect.TypeFor[valkeycodes.Options]())
}
