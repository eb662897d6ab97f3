package pgstore_test

import (
	"reflect"
	"testing"

	"github.com/cardvault/cardvault/internal/printtest"
	"github.com/cardvault/cardvault/store/pgstore"
)

// No exported type prints a secret.
func TestPrint(t *testing.T) {
	printtest.Run(t, ".", "store/pgstore", map[string]string{
		"store/pgstore.Options.Schema": "a name",
		"store/pgstore.*":              "SQL, and rows as they are in the database, where secrets are sealed",
	},
		reflect.TypeFor[pgstore.Store](), reflect.TypeFor[pgstore.Options]())
}
