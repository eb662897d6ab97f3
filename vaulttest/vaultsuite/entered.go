package vaultsuite

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/fips140"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"math/big"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var enteredBehaviours = []behaviour{
	{"Entered", entered},
	{"EnteredRace", enteredRace},
	{"Identified", identified},
}

// encrypted returns claims as a browser sends them for a session: a compact JWE,
// RFC 7516, with RSA-OAEP-256 and A256GCM.
func encrypted(t testing.TB, s *cardvault.Session, claims string) []byte {
	t.Helper()
	text := func(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
	header := text([]byte(`{"alg":"RSA-OAEP-256","enc":"A256GCM","kid":"` + s.Key.ID + `"}`))
	key, iv := make([]byte, 32), make([]byte, 12)
	rand.Read(key)
	rand.Read(iv)
	public := &rsa.PublicKey{N: new(big.Int).SetBytes(s.Key.N), E: 65537}
	wrapped := must(rsa.EncryptOAEP(sha256.New(), rand.Reader, public, key, nil))(t)
	var sealed []byte
	fips140.WithoutEnforcement(func() { // an IV that is a part of its own, as JWE has it
		gcm := must(cipher.NewGCM(must(aes.NewCipher(key))(t)))(t)
		sealed = gcm.Seal(nil, iv, []byte(claims), []byte(header))
	})
	tag := len(sealed) - 16
	return []byte(header + "." + text(wrapped) + "." + text(iv) + "." + text(sealed[:tag]) + "." + text(sealed[tag:]))
}

// claimsOf returns the claims of the n-th card.
func claimsOf(n int, code string) string {
	return `{"account_number":"` + cardNumber(canaryNumber, 16, n) + `","expiry_month":12,"expiry_year":2090,` +
		`"security_code":"` + code + `","cardholder_name":"` + canary + `name"}`
}

// entered: a card that a browser enters in a session becomes a token, and a code that it
// enters for a token becomes its security code.
func entered(t *testing.T, s store.Store) {
	v, ctx := coding(t, s, nil), t.Context()
	browser := vaultOn(t, s, nil).In(uuid.Nil) // of another vault on the store
	id := must(v.CreateSession(ctx, nil))(t)
	open := must(browser.Session(ctx, id.ID))(t)
	for i := range 4 {
		refused := must(browser.CompleteSession(ctx, id.ID, encrypted(t, open, claimsOf(i, "7"))))(t)
		if refused.State != cardvault.SessionOpen || refused.ReasonCode != "invalid_security_code" {
			t.Errorf("a refused card: %+v", refused)
		}
	}

	payload := encrypted(t, open, claimsOf(1, "737"))
	done := must(v.CompleteSession(ctx, id.ID, payload))(t)
	if done.State != cardvault.SessionSucceeded {
		t.Fatalf("completed: %+v", done)
	}

	token := must(v.Get(ctx, done.TokenID))(t)
	if imported := importCard(t, v, testCard(1), nil); imported.Fingerprint != token.Fingerprint || token.CardholderName.IsZero() {
		t.Errorf("token %+v", flat(token))
	}

	hasCode(t, "entered", v, token.ID, "737")
	if seen := must(browser.Session(ctx, id.ID))(t); *seen != *done {
		t.Errorf("afterwards: %+v", seen)
	}

	_, err := browser.CompleteSession(ctx, id.ID, payload)
	fails(t, "completing again", err, cardvault.ErrSessionCompleted)

	// The payload is of no use elsewhere, even after rotations and in other vaults.
	noError(t, errorOf(v.RotateKeys(ctx, nil)))
	other := must(v.CreateSession(ctx, nil))(t)
	_, err = browser.CompleteSession(ctx, other.ID, payload)
	refuses(t, "a payload of another session", err, "Payload undecryptable")
	if done := must(browser.CompleteSession(ctx, other.ID, encrypted(t, open, claimsOf(2, "737"))))(t); done.State != cardvault.SessionSucceeded {
		t.Errorf("under the same key: %+v", done)
	}

	renewal := must(v.RefreshSession(ctx, token.ID, nil))(t)
	open = must(browser.Session(ctx, renewal.ID))(t)
	if open.Kind != cardvault.SessionRefreshes || open.MaskedAccountNumber != token.MaskedAccountNumber || open.Scheme != token.Scheme {
		t.Errorf("a session for a code: %+v", open)
	}

	must(v.CompleteSession(ctx, renewal.ID, encrypted(t, open, `{"security_code":"999"}`)))(t)
	hasCode(t, "entered again", v, token.ID, "999")
	renewal = must(v.RefreshSession(ctx, token.ID, nil))(t)
	noError(t, v.Delete(ctx, token.ID))
	_, err = browser.Session(ctx, renewal.ID)
	fails(t, "a session whose token was deleted", err, cardvault.ErrNotFound)

	account := must(v.CreateAccount(ctx, canary, nil))(t)
	_, err = v.In(account.ID).Session(ctx, other.ID)
	fails(t, "a session of another account", err, cardvault.ErrNotFound)
	if n := everything(t, s, time.Now().Add(48*time.Hour)); n == 0 {
		t.Error("no record of the sessions lapses")
	}
}

// enteredRace: if several calls complete a session at a time one succeeds, and each refused
// card counts.
func enteredRace(t *testing.T, s store.Store) {
	v, ctx := coding(t, s, nil), t.Context()
	id := must(v.CreateSession(ctx, nil))(t)
	open := must(v.Session(ctx, id.ID))(t)
	payloads := make([][]byte, 32)
	for i := range payloads {
		payloads[i] = encrypted(t, open, claimsOf(i, "737"))
	}

	var won atomic.Int32
	parallel(t, len(payloads), func(i int) error {
		_, err := v.CompleteSession(ctx, id.ID, payloads[i])
		switch {
		case err == nil:
			won.Add(1)
		case !errors.Is(err, cardvault.ErrSessionCompleted):
			return err
		}
		return nil
	})

	if p := must(v.List(ctx, nil))(t); won.Load() != 1 || p.TotalItems != 1 {
		t.Errorf("%d calls completed the same session, and made %d tokens", won.Load(), p.TotalItems)
	}

	id = must(v.CreateSession(ctx, nil))(t)
	for i := range payloads {
		payloads[i] = encrypted(t, open, claimsOf(i, "7"))
	}

	var refused, failed atomic.Int32
	parallel(t, len(payloads), func(i int) error {
		s, err := v.CompleteSession(ctx, id.ID, payloads[i])
		switch {
		case errors.Is(err, cardvault.ErrSessionCompleted):
			return nil
		case err != nil:
			return err
		case s.State == cardvault.SessionFailed:
			failed.Add(1)
		default:
			refused.Add(1)
		}
		return nil
	})

	if refused.Load() != 4 || failed.Load() != 1 {
		t.Errorf("%d cards were refused, and %d were one too many; want 4 and 1", refused.Load(), failed.Load())
	}
}

// A judge is an idv.Provider whose identifications are pending at first, and then have the
// state that it says.
type judge struct{ says idv.State }

func (judge) Info() idv.Info { return idv.Info{Name: "judge"} }

func (judge) Identify(_ context.Context, r *idv.Request) (*idv.Result, error) {
	return &idv.Result{State: idv.Pending, Reference: r.IdempotencyKey}, nil
}

func (j judge) LookupIdentification(context.Context, *idv.LookupRequest) (*idv.Result, error) {
	r := &idv.Result{State: j.says}
	if j.says == idv.Passed {
		r.Authentication = &idv.Authentication{Method: "three_ds", Status: "Y", ECI: "05", At: time.Now()}
	}
	return r, nil
}

// identified: a card whose holder is identified waits in the session, sealed, and
// another vault on the store goes on. It becomes one token, or nothing is left of it.
func identified(t *testing.T, s store.Store) {
	ctx := t.Context()
	for _, says := range []idv.State{idv.Passed, idv.Failed} {
		opts := &cardvault.Options{Mode: cardvault.Sandbox, IDV: judge{says}}
		v, browser := vaultOn(t, s, opts), vaultOn(t, s, opts).In(uuid.Nil)
		id := must(v.CreateSession(ctx, nil))(t)
		payload := encrypted(t, must(browser.Session(ctx, id.ID))(t), claimsOf(int(says), "737"))
		if waiting := must(browser.CompleteSession(ctx, id.ID, payload))(t); waiting.State != cardvault.SessionIdentifying {
			t.Fatalf("pending: %+v", waiting)
		}

		noError(t, errorOf(v.RotateKeys(ctx, nil)))
		before := must(v.List(ctx, nil))(t).TotalItems
		done := must(v.Session(ctx, id.ID))(t)
		for n := 0; done.State == cardvault.SessionIdentifying; n++ {
			if n == 100 {
				t.Fatal("an identification does not end")
			}
			<-time.After(100 * time.Millisecond) // the provider is asked once a second
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() { _, _ = browser.Session(ctx, id.ID) })
			}
			all.Wait()
			done = must(v.Session(ctx, id.ID))(t)
		}

		made := must(v.List(ctx, nil))(t).TotalItems - before
		if says == idv.Failed {
			if done.ReasonCode != "identification_failed" || made != 0 {
				t.Errorf("failed: %+v, %d tokens", done, made)
			}
			continue
		}

		if done.State != cardvault.SessionSucceeded || made != 1 {
			t.Fatalf("passed: %+v, %d tokens", done, made)
		}

		token := must(v.Get(ctx, done.TokenID))(t)
		if token.Identification != idv.Checked || token.Authentication == nil || token.Authentication.ECI != "05" {
			t.Errorf("token %+v", flat(token))
		}
	}
}
