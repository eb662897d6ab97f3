package pgstore_test

import (
	"fmt"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/realtest"
)

// TestImportAdds: a vault's import, whatever records it comes to read, is the statement for
// one added row. Without that it would take half as long again, and no other test would tell.
func TestImportAdds(t *testing.T) {
	t.Parallel()
	p := pool(t, realtest.PostgreSQL(t, nil).URL("postgres"))
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	c := cardvault.Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2090}}
	for _, partitions := range []int{0, 4} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) {
			schema := divided(t, p, partitions)
			v, err := cardvault.New(t.Context(), open(t, p, schema), keys, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()

			_, err = v.Import(t.Context(), c, nil) // counts seals too
			if err == nil {
				_, err = p.Exec(t.Context(), `DROP FUNCTION "`+schema+`".apply`)
			}
			for range 3 {
				if err == nil {
					_, err = v.Import(t.Context(), c, nil)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}
