package cardvault_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
)

// A business key of too many tokens is refused when it is listed, and only then.
func TestListOfTooMany(t *testing.T) {
	l := &liar{Store: memstore.New()}
	var token *store.Record
	l.seen = func(r *store.Record) {
		if len(r.Lookup) > 0 {
			token = r
		}
	}
	v := vaultOn(t, l)
	card := &cardvault.ImportOptions{BusinessKey: "shared"}
	if _, err := v.Import(t.Context(), visa, card); err != nil {
		t.Fatal(err)
	}
	l.seen = nil
	fill := func(from, to int) {
		t.Helper()
		err := l.Update(t.Context(), func(tx store.Tx) error {
			for n := from; n < to; n++ {
				tx.Put(&store.Record{Kind: token.Kind, ID: uuid.UUID{1, byte(n >> 8), byte(n)}, Version: 1, Lookup: token.Lookup})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	fill(0, store.MaxShared-1)
	shared := &cardvault.ListOptions{BusinessKey: "shared"}
	if page, err := v.List(t.Context(), shared); err != nil || page.TotalItems != 1 {
		t.Errorf("List = %+v, %v, want one token", page, err)
	}
	fill(store.MaxShared, store.MaxShared+1)
	refused := func(name string, err error) {
		t.Helper()
		if e := (*cardvault.FieldError)(nil); !errors.As(err, &e) || e.Field != "query.business_key" || e.Code != "out_of_range" {
			t.Errorf("%s = %v, want out_of_range of query.business_key", name, err)
		}
	}
	_, err := v.List(t.Context(), shared)
	refused("List", err)
	for token, err := range v.All(t.Context(), shared) {
		refused("All", err)
		if token != nil {
			t.Error("All gives a token with an error")
		}
	}
	if _, err := v.Import(t.Context(), visa, card); err != nil {
		t.Errorf("Import = %v", err)
	}
	if page, err := v.List(t.Context(), nil); err != nil || page.TotalItems != 2 {
		t.Errorf("List of all = %+v, %v, want two tokens", page, err)
	}
}
