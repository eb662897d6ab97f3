package payload_test

import (
	"crypto/fips140"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"log/slog"
	"math/big"
	"testing"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/ledgertest"
	"github.com/cardvault/cardvault/internal/payload"
	"github.com/cardvault/cardvault/store"
	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
)

const (
	kindKey store.Kind = iota + 10
	kindUsed
)

// encrypted returns the payload of a text under a key, as a browser makes it.
func encrypted(t *testing.T, k *payload.Key, session uuid.UUID, named bool) []byte {
	t.Helper()
	public := &rsa.PublicKey{N: new(big.Int).SetBytes(k.N()), E: 65537}
	to := jose.Recipient{Algorithm: jose.RSA_OAEP_256, Key: public}
	if named {
		to.KeyID = k.ID
	}
	opts := (&jose.EncrypterOptions{}).WithType("JOSE")
	if session != uuid.Nil {
		opts = opts.WithHeader("sid", session.String())
	}
	e, err := jose.NewEncrypter(jose.A256GCM, to, opts)
	if err != nil {
		t.Fatal(err)
	}
	var sealed *jose.JSONWebEncryption
	fips140.WithoutEnforcement(func() { // browsers do not enforce FIPS mode
		sealed, err = e.Encrypt([]byte(rand.Text()))
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := sealed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return []byte(text)
}

func TestOpen(t *testing.T) {
	l := ledgertest.New(t, nil)
	log := slog.New(slog.DiscardHandler)
	open := func() *payload.Keys {
		return payload.New(payload.Config{Ledger: l, Jobs: jobs.New(l, log, nil, nil), Log: log, Keys: kindKey, Used: kindUsed})
	}
	keys, others := open(), open()
	key, err := keys.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if k, err := others.Current(t.Context()); err != nil || k.ID != key.ID {
		t.Fatalf("another process hands out key %v, %v", k, err)
	}

	one, other := payload.Session{ID: uuid.New(), Row: uuid.New()}, payload.Session{ID: uuid.New(), Row: uuid.New()}
	bound := one
	bound.MustBind = true
	for _, test := range []struct {
		name    string
		text    []byte
		session payload.Session
		err     error
	}{
		{"under a named key", encrypted(t, key, uuid.Nil, true), one, nil},
		{"under an unnamed key", encrypted(t, key, uuid.Nil, false), one, nil},
		{"bound", encrypted(t, key, one.ID, true), bound, nil},
		{"bound to another session", encrypted(t, key, one.ID, true), other, payload.ErrUndecryptable},
		{"not bound", encrypted(t, key, uuid.Nil, true), bound, payload.ErrUnbound},
		{"in another form", []byte("a.b.c.d.e"), one, payload.ErrUndecryptable},
		{"too long", make([]byte, payload.MaxSize+1), one, payload.ErrTooLong},
	} {
		t.Run(test.name, func(t *testing.T) {
			plain, used, err := others.Open(t.Context(), test.session, test.text)
			if !errors.Is(err, test.err) || err == nil && (len(plain) != 26 || len(used) != 1) {
				t.Errorf("%q, %d records, %v", plain, len(used), err)
			}
		})
	}
}

// TestUsed: once its use is stored, a payload is valid in one session only.
func TestUsed(t *testing.T) {
	l := ledgertest.New(t, nil)
	log := slog.New(slog.DiscardHandler)
	keys := payload.New(payload.Config{Ledger: l, Jobs: jobs.New(l, log, nil, nil), Log: log, Keys: kindKey, Used: kindUsed})
	key, err := keys.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one, other, text := payload.Session{ID: uuid.New(), Row: uuid.New()}, payload.Session{ID: uuid.New(), Row: uuid.New()}, encrypted(t, key, uuid.Nil, true)

	_, used, err := keys.Open(t.Context(), one, text)
	if err != nil || len(used) != 1 {
		t.Fatal(used, err)
	}
	if err := l.In(uuid.Nil).Put(t.Context(), ledger.Step, uuid.Nil, used[0]); err != nil {
		t.Fatal(err)
	}

	if _, used, err := keys.Open(t.Context(), one, text); err != nil || len(used) != 0 {
		t.Errorf("in the same session: %d records, %v", len(used), err)
	}
	if _, _, err := keys.Open(t.Context(), other, text); !errors.Is(err, payload.ErrUndecryptable) {
		t.Errorf("in another session: %v", err)
	}
}
