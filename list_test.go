package cardvault_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
)

// TestListOfTooMany: a business key of too many tokens is refused only when it is listed.
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
	shared := &cardvault.TokenListOptions{BusinessKey: "shared"}
	if page, err := v.List(t.Context(), shared); err != nil || page.TotalItems != 1 {
		t.Errorf("List = %+v, %v, want one token", page, err)
	}
	fill(store.MaxShared, store.MaxShared+1)
	refused := func(name string, err error) {
		t.Helper()
		if e := (*cardvault.FieldError)(nil); !errors.As(err, &e) || e.Field != "BusinessKey" || e.Code != "out_of_range" {
			t.Errorf("%s = %v, want out_of_range of query.business_key", name, err)
		}
	}
	_, err := v.List(t.Context(), shared)
	refused("List", err)
	for token, err := range v.All(t.Context(), shared) {
		refused("All", err)
		if token != nil {
			t.Error("All yields a token with an error")
		}
	}
	if _, err := v.Import(t.Context(), visa, card); err != nil {
		t.Errorf("Import = %v", err)
	}
	if page, err := v.List(t.Context(), nil); err != nil || page.TotalItems != 2 {
		t.Errorf("List of all = %+v, %v, want two tokens", page, err)
	}
}

// A torn store cannot read a few records, as the contract of List allows.
type torn struct {
	store.Store
	rows map[uuid.UUID]bool // set before the vault reads
}

type tornTx struct {
	store.ReadTx
	s *torn
}

func (s *torn) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(tornTx{tx, s}) })
}

func (tx tornTx) List(q *store.Query) (*store.List, error) {
	list, err := tx.ReadTx.List(q)
	for i, r := range list.Records {
		if tx.s.rows[r.ID] {
			list.Records[i] = &store.Record{Kind: r.Kind, ID: r.ID, Account: r.Account, Parent: r.Parent}
		}
	}
	return list, err
}

// TestRowsWithoutContent: the error for an unreadable row names its key, wherever the row is
// on a page. Pages and iterators continue after it.
func TestRowsWithoutContent(t *testing.T) {
	s := &torn{Store: memstore.New()}
	var rows []uuid.UUID
	v := vaultOn(t, s)
	var ids []uuid.UUID
	for range 4 {
		token, err := v.Import(t.Context(), visa, nil)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, token.ID)
	}
	err := s.View(t.Context(), func(tx store.ReadTx) error {
		found, err := tx.Scan(kindToken, uuid.Nil, 10)
		for _, r := range found {
			rows = append(rows, r.ID)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	s.rows = map[uuid.UUID]bool{rows[1]: true, rows[2]: true, rows[3]: true}
	named := func(id uuid.UUID) cardvault.DamagedRecord { return cardvault.DamagedRecord{Kind: "token", ID: id} }
	for page, want := range [][]cardvault.DamagedRecord{{named(ids[1])}, {named(ids[2]), named(ids[3])}} {
		p, err := v.List(t.Context(), &cardvault.TokenListOptions{Limit: 2, Page: page + 1, Ascending: true})
		if p == nil || p.TotalItems != 4 || p.TotalPages != 2 || len(p.Items) != 2-len(want) || !slices.Equal(cardvault.Damaged(err), want) {
			t.Errorf("page %d: %+v, %v", page+1, p, err)
		}
	}

	var reported []cardvault.DamagedRecord
	tokens := 0
	for token, err := range v.All(t.Context(), nil) {
		if token != nil {
			tokens++
		}
		reported = append(reported, cardvault.Damaged(err)...)
	}
	if want := []cardvault.DamagedRecord{named(ids[3]), named(ids[2]), named(ids[1])}; tokens != 1 || !slices.Equal(reported, want) {
		t.Errorf("All yields %d tokens and %v, want %v", tokens, reported, want)
	}
}
