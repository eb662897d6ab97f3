package images_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cardvault/cardvault/internal/images"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/ledgertest"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var shelf = images.Shelf{Images: 10, Parts: 11}

func TestShelf(t *testing.T) {
	l := ledgertest.New(t, ledger.Families{shelf.Parts: {Parent: shelf.Images}})
	rows, other := l.In(l.First), l.In(uuid.New())
	for _, size := range []int{1, 60 << 10, 60<<10 + 1, images.MaxSize} {
		image, source := bytes.Repeat([]byte{byte(size), 1, 2}, size)[:size], []byte{byte(size), byte(size >> 8), 1}
		id, records, err := shelf.New(rows, "image/png", image, source)
		if err != nil {
			t.Fatal(err)
		}
		if again, _, err := shelf.New(rows, "image/png", image, source); again != id || err != nil {
			t.Errorf("%d bytes: another id, %v", size, err)
		}

		write := func(fn func(store.Tx)) {
			t.Helper()
			err := rows.Update(t.Context(), ledger.Step, func(tx store.Tx) error { fn(tx); return nil })
			if err != nil {
				t.Fatal(err)
			}
		}
		write(func(tx store.Tx) {
			for _, r := range records {
				tx.Put(r)
			}
		})
		if found, err := shelf.Find(t.Context(), rows, source); found != id || err != nil {
			t.Errorf("%d bytes: found %v, %v", size, found, err)
		}
		if found, err := shelf.Find(t.Context(), other, source); found != uuid.Nil || err != nil {
			t.Errorf("%d bytes: another account finds %v, %v", size, found, err)
		}
		if typ, got, err := shelf.Open(t.Context(), l.In(uuid.Nil), id); typ != "image/png" || !bytes.Equal(got, image) || err != nil {
			t.Errorf("%d bytes: %s, %d bytes, %v", size, typ, len(got), err)
		}
		if _, _, err := shelf.Open(t.Context(), other, id); !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%d bytes, from another account: %v", size, err)
		}

		write(func(tx store.Tx) { shelf.Delete(tx, id) })
		if _, _, err := shelf.Open(t.Context(), rows, id); !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%d bytes, once deleted: %v", size, err)
		}
	}
}
