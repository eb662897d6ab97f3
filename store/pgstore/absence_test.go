package pgstore_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/realtest"
)

// TestReplaceAbsence: no file of the server, its log of writes among them, has had a card number
// in clear. Row versions of before have it sealed until they are vacuumed.
func TestReplaceAbsence(t *testing.T) {
	t.Parallel()
	server := realtest.PostgreSQL(t, nil)
	p := pool(t, server.URL("postgres"))
	s := open(t, p, schema(t, p))
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Audit: new(cardvault.AuditOptions)})
	if err != nil {
		t.Fatal(err)
	}
	numbers := []string{"4242424242424242", "5555555555554444", "4111111111111111"}
	of := func(number string) cardvault.Card {
		return cardvault.Card{PAN: card.NewPAN([]byte(number)), Expiry: card.Expiry{Month: 12, Year: 2090}}
	}
	token, err := v.Import(t.Context(), of(numbers[0]), nil)
	for _, number := range numbers[1:] {
		if err == nil {
			token, err = v.Replace(t.Context(), token.ID, of(number), nil)
		}
	}
	if err = errors.Join(err, v.Drain(t.Context()), v.Close()); err != nil {
		t.Fatal(err)
	}

	const mark = "6011000990139424"
	server.SQL(t, "postgres", "CREATE TABLE mark AS SELECT '"+mark+"' AS text; CHECKPOINT")
	data := os.DirFS(strings.TrimSpace(server.SQL(t, "postgres", "SHOW data_directory")))
	marks := 0
	err = fs.WalkDir(data, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := fs.ReadFile(data, name)
		if errors.Is(err, fs.ErrNotExist) { // the server has removed it
			return nil
		}
		marks += bytes.Count(content, []byte(mark))
		for i, number := range numbers {
			if bytes.Contains(content, []byte(number)) {
				t.Errorf("card number %d is in %s", i+1, name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if marks < 2 { // in the table and in the log of writes
		t.Errorf("the search finds %d of 2 marks", marks)
	}
}
