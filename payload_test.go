package cardvault_test

import (
	"context"
	"crypto/fips140"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
)

const entered = `{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030,"security_code":"737"}`

// encrypts returns claims as a browser encrypts them for a session.
func encrypts(t testing.TB, s *cardvault.Session, claims string, header map[jose.HeaderKey]any) string {
	t.Helper()
	key := &rsa.PublicKey{N: new(big.Int).SetBytes(s.Key.N), E: 65537}
	var payload string
	var err error
	fips140.WithoutEnforcement(func() {
		var e jose.Encrypter
		options := &jose.EncrypterOptions{ExtraHeaders: header}
		if e, err = jose.NewEncrypter(jose.A256GCM, jose.Recipient{Algorithm: jose.RSA_OAEP_256, Key: key, KeyID: s.Key.ID}, options); err != nil {
			return
		}
		var jwe *jose.JSONWebEncryption
		if jwe, err = e.Encrypt([]byte(claims)); err == nil {
			payload, err = jwe.CompactSerialize()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// session creates a session and reads it as a browser does, on a vault without an account.
func (l *lab) session(opts *cardvault.SessionOptions) (cardvault.SessionID, *cardvault.Session) {
	l.Helper()
	id, err := l.CreateSession(l.Context(), opts)
	l.must(err)
	return id.ID, l.sees(id.ID)
}

func (l *lab) sees(id cardvault.SessionID) *cardvault.Session {
	l.Helper()
	s, err := l.In(uuid.Nil).Session(l.Context(), id)
	l.must(err)
	return s
}

func (l *lab) completes(id cardvault.SessionID, payload string) *cardvault.Session {
	l.Helper()
	s, err := l.In(uuid.Nil).CompleteSession(l.Context(), id, []byte(payload))
	l.must(err)
	return s
}

// refuses checks that a payload is refused with a FieldError of a code, and that it changes
// nothing.
func (l *lab) refuses(what string, id cardvault.SessionID, payload, code string) {
	l.Helper()
	before := *l.sees(id)
	_, err := l.In(uuid.Nil).CompleteSession(l.Context(), id, []byte(payload))
	if e := cardvault.FieldErrors(err); len(e) != 1 || e[0].Field != "Payload" || string(e[0].Code) != code {
		l.Errorf("%s: %v, want %s", what, err, code)
	}
	if after := l.sees(id); !reflect.DeepEqual(*after, before) {
		l.Errorf("%s: the session becomes %+v", what, after)
	}
}

func TestCompleteSession(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id, s := l.session(&cardvault.SessionOptions{BypassIdentification: true})
		if s.State != cardvault.SessionOpen || s.Kind != cardvault.SessionTokenizes || s.Key == nil || len(s.Key.N) != 256 || s.ReasonCode != "" {
			l.Fatalf("an open session: %+v", s)
		}
		payload := encrypts(l, s, strings.Replace(entered, "{", `{"cardholder_name":"Ada","email":"a@example.com","unknown":[1],`, 1), map[jose.HeaderKey]any{"sid": id.UUID().String(), "typ": "JWE"})
		done := l.completes(id, payload)
		if done.State != cardvault.SessionSucceeded || done.Key != nil {
			l.Fatalf("completed: %+v", done)
		}
		token := l.get(done.TokenID)
		if token.MaskedAccountNumber != "424242******4242" || token.Identification != idv.Skipped || token.CardholderName.IsZero() {
			l.Errorf("token %+v", token)
		}
		l.hasCode(done.TokenID, true)
		if again := l.sees(id); fmt.Sprint(*again) != fmt.Sprint(*done) {
			l.Errorf("afterwards: %+v", again)
		}
		if _, err := l.CompleteSession(l.Context(), id, []byte(payload)); !errors.Is(err, cardvault.ErrSessionCompleted) {
			l.Errorf("completing again: %v", err)
		}

		refresh, err := l.RefreshSession(l.Context(), done.TokenID, nil)
		l.must(err)
		s = l.sees(refresh.ID)
		if s.State != cardvault.SessionOpen || s.Kind != cardvault.SessionRefreshes || s.MaskedAccountNumber != "424242******4242" || s.Scheme != card.VISA {
			l.Errorf("an open refresh: %+v", s)
		}
		l.must2(l.Consume(l.Context(), done.TokenID, nil))
		if done := l.completes(refresh.ID, encrypts(l, s, `{"security_code":"999","account_number":7}`, nil)); done.State != cardvault.SessionSucceeded || done.TokenID != token.ID {
			l.Errorf("refreshed: %+v", done)
		}
		l.hasCode(token.ID, true)
		replayed, err := l.RefreshSession(l.Context(), done.TokenID, nil)
		l.must(err)
		code := encrypts(l, s, `{"security_code":"999"}`, nil)
		l.completes(replayed.ID, code)
		replayed, err = l.RefreshSession(l.Context(), done.TokenID, nil)
		l.must(err)
		l.refuses("a code of another session", replayed.ID, code, "undecryptable")

		l.pass(15 * time.Minute)
		for _, id := range []cardvault.SessionID{id, refresh.ID, cardvault.NewSessionID(uuid.New()), {}} {
			if _, err := l.In(uuid.Nil).Session(l.Context(), id); !errors.Is(err, cardvault.ErrNotFound) {
				l.Errorf("an ended session: %v", err)
			}
			if _, err := l.In(uuid.Nil).CompleteSession(l.Context(), id, []byte(payload)); !errors.Is(err, cardvault.ErrNotFound) {
				l.Errorf("completing an ended session: %v", err)
			}
		}
		vaulttest.AssertNoLeak(t, []string{"4242424242424242", id.UUID().String()}, l.log.text())
	})
}

func TestRefusedCards(t *testing.T) {
	for claims, reason := range map[string]string{
		`{"account_number":"4242424242424241","expiry_month":12,"expiry_year":2030,"security_code":"737"}`: "invalid_account_number",
		`{"account_number":"","expiry_month":12,"expiry_year":2030,"security_code":"737"}`:                 "invalid_account_number",
		`{"account_number":"4242424242424242","expiry_month":13,"expiry_year":2030,"security_code":"737"}`: "invalid_expiry_date",
		`{"account_number":"4242424242424242","expiry_month":1,"expiry_year":20300,"security_code":"737"}`: "invalid_expiry_date",
		`{"account_number":"4242424242424242","expiry_month":1,"expiry_year":2000,"security_code":"73"}`:   "invalid_security_code",
		`{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030,"security_code":""}`:    "invalid_security_code",
		`{"account_number":"5555555555554444","expiry_month":12,"expiry_year":2030,"security_code":"737"}`: "unsupported_scheme",
	} {
		inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Schemes: []card.Scheme{card.VISA}}, func(l *lab) {
			id, s := l.session(nil)
			payload := encrypts(l, s, claims, nil)
			for i := range 5 {
				want, state := reason, cardvault.SessionOpen
				if i == 4 {
					want, state = "too_many_attempts", cardvault.SessionFailed
				}
				got := l.completes(id, payload)
				if got.State != state || string(got.ReasonCode) != want || (got.Key != nil) != (state == cardvault.SessionOpen) {
					l.Errorf("%s, card %d: %+v, want %v for %s", claims, i+1, got, state, want)
				}
				if seen := l.sees(id); state == cardvault.SessionOpen && seen.ReasonCode != "" {
					l.Errorf("the session shows a refused card: %+v", seen)
				}
			}
			if seen := l.sees(id); seen.State != cardvault.SessionFailed || seen.ReasonCode != "too_many_attempts" {
				l.Errorf("afterwards: %+v", seen)
			}
			if _, err := l.CompleteSession(l.Context(), id, []byte(encrypts(l, s, entered, nil))); !errors.Is(err, cardvault.ErrSessionCompleted) {
				l.Errorf("a card after too many attempts: %v", err)
			}
			if p, err := l.List(l.Context(), nil); err != nil || p.TotalItems != 0 {
				l.Errorf("%d tokens, %v", p.TotalItems, err)
			}
		})
	}
	inLab(t, nil, func(l *lab) {
		id, s := l.session(nil)
		for range 4 {
			l.completes(id, encrypts(l, s, strings.Replace(entered, "737", "7", 1), nil))
		}
		l.refuses("no card", id, "e30", "undecryptable") // is not counted
		if done := l.completes(id, encrypts(l, s, entered, nil)); done.State != cardvault.SessionSucceeded {
			l.Errorf("the fifth card: %+v", done)
		}
		// A card is valid through the end of its last month anywhere on earth.
		january := strings.NewReplacer("12", "1", "2030", "2000").Replace(entered)
		l.pass(time.Until(time.Date(2000, 2, 1, 11, 59, 59, 0, time.UTC)))
		id, s = l.session(nil)
		if got := l.completes(id, encrypts(l, s, january, nil)); got.ReasonCode != "" {
			l.Errorf("a card valid until this month: %+v", got)
		}
		l.pass(time.Second)
		id, s = l.session(nil)
		if got := l.completes(id, encrypts(l, s, january, nil)); got.ReasonCode != "card_expired" {
			l.Errorf("a card valid until last month: %+v", got)
		}
	})
}

func TestPayloads(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id, s := l.session(nil)
		good := encrypts(l, s, entered, nil)
		parts := strings.Split(good, ".")
		with := func(i int, part string) string {
			p := strings.Split(good, ".")
			p[i] = part
			return strings.Join(p, ".")
		}
		other := *s.Key
		other.ID = uuid.NewString()
		for what, payload := range map[string]string{
			"nothing":                       "",
			"no JWE":                        "hello",
			"four parts":                    strings.Join(parts[:4], "."),
			"six parts":                     good + ".x",
			"another header":                with(0, "e30"),
			"no header":                     with(0, ""),
			"another content key":           with(1, strings.Repeat("A", len(parts[1]))),
			"another text":                  with(3, "AAAA"+parts[3][4:]),
			"another tag":                   with(4, strings.Repeat("A", len(parts[4]))),
			"an unknown key":                encrypts(l, &cardvault.Session{Key: &other}, entered, nil),
			"an empty key id":               encrypts(l, s, entered, map[jose.HeaderKey]any{"kid": ""}),
			"a null key id":                 encrypts(l, s, entered, map[jose.HeaderKey]any{"kid": nil}),
			"another session's":             encrypts(l, s, entered, map[jose.HeaderKey]any{"sid": uuid.NewString()}),
			"a session id that is a number": encrypts(l, s, entered, map[jose.HeaderKey]any{"sid": 7}),
			"an extra header":               encrypts(l, s, entered, map[jose.HeaderKey]any{"x5u": "https://example.com"}),
			"padding":                       with(0, parts[0]+"="),
			"a line break":                  good[:20] + "\n" + good[20:],
		} {
			l.refuses(what, id, payload, "undecryptable")
		}
		l.refuses("a long payload", id, encrypts(l, s, `{"x":"`+strings.Repeat("x", 8<<10)+`"}`, nil), "too_long")
		for what, claims := range map[string]string{
			"no claims":             `{}`,
			"not an object":         `[]`,
			"not JSON":              `4242424242424242`,
			"no security code":      `{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030}`,
			"a number as a number":  strings.Replace(entered, `"4242424242424242"`, `4242424242424242`, 1),
			"a month as a text":     strings.Replace(entered, `12`, `"12"`, 1),
			"a fractional month":    strings.Replace(entered, `12`, `12.0`, 1),
			"a negative month":      strings.Replace(entered, `12`, `-1`, 1),
			"a code that is null":   strings.Replace(entered, `"737"`, `null`, 1),
			"a name that is a card": strings.Replace(entered, `{`, `{"cardholder_name":"4242424242424242",`, 1),
			"no name":               strings.Replace(entered, `{`, `{"cardholder_name":"",`, 1),
			"a name that is a list": strings.Replace(entered, `{`, `{"cardholder_name":["A"],`, 1),
			"a claim twice":         strings.Replace(entered, `{`, `{"security_code":"737",`, 1),
		} {
			l.refuses(what, id, encrypts(l, s, claims, nil), "invalid_format")
		}
		if done := l.completes(id, good); done.State != cardvault.SessionSucceeded {
			l.Errorf("after all that: %+v", done)
		}
	})
}

// unnamed returns the session without the id of its key. Payloads of the protocol's public
// SDKs have only alg and enc in their header.
func unnamed(s *cardvault.Session) *cardvault.Session {
	key := *s.Key
	key.ID = ""
	return &cardvault.Session{Key: &key}
}

// TestPayloadNamesNoKey: a payload that names no key is opened with any key still honoured.
func TestPayloadNamesNoKey(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id, first := l.session(nil)
		payload := encrypts(l, unnamed(first), entered, nil)
		header, err := base64.RawURLEncoding.DecodeString(strings.Split(payload, ".")[0])
		l.must(err)
		if string(header) != `{"alg":"RSA-OAEP-256","enc":"A256GCM"}` {
			l.Fatalf("header %s", header)
		}
		token := l.completes(id, payload)
		if token.State != cardvault.SessionSucceeded || l.get(token.TokenID).MaskedAccountNumber != "424242******4242" {
			l.Errorf("completed: %+v", token)
		}
		other, _ := l.session(nil)
		l.refuses("accepted by another session", other, payload, "undecryptable")
		l.refuses("with another header", other, encrypts(l, unnamed(first), entered, map[jose.HeaderKey]any{"cty": "json"}), "undecryptable")

		// The error does not depend on whether the payload names a key, nor on the cause of
		// the failure.
		wrong := func(s *cardvault.Session) error {
			parts := strings.Split(encrypts(l, s, entered, nil), ".")
			parts[4] = strings.Repeat("A", len(parts[4]))
			_, err := l.CompleteSession(l.Context(), other, []byte(strings.Join(parts, ".")))
			return err
		}
		stranger, err := rsa.GenerateKey(rand.Reader, 2048)
		l.must(err)
		unknown := &cardvault.Session{Key: &cardvault.SessionKey{N: stranger.N.Bytes()}}
		for what, s := range map[string]*cardvault.Session{"another tag": unnamed(first), "another key": unknown} {
			if got, want := wrong(s), wrong(first); !reflect.DeepEqual(got, want) {
				l.Errorf("%s: %v, not %v", what, got, want)
			}
		}

		// The former key is tried as well, even by a process that has seen neither key.
		l.pass(24*time.Hour - time.Minute)
		late, former := l.session(nil)
		again, _ := l.session(nil)
		l.pass(2 * time.Minute)
		fresh, second := l.session(nil)
		if former.Key.ID != first.Key.ID || second.Key.ID == first.Key.ID {
			l.Fatal("the key has not changed")
		}
		l.restart()
		for id, s := range map[uuid.UUID]*cardvault.Session{late.UUID(): former, fresh.UUID(): second} {
			if done := l.completes(cardvault.NewSessionID(id), encrypts(l, unnamed(s), entered, nil)); done.State != cardvault.SessionSucceeded {
				l.Errorf("completed: %+v", done)
			}
		}
		// An unreadable key is skipped, and is not an error of its own.
		l.spoil(kindSessionKey, func(r *store.Record) bool { return r.Due.After(time.Now().Add(2 * time.Hour)) }, 1)
		l.restart()
		if done := l.completes(again, encrypts(l, unnamed(former), entered, nil)); done.State != cardvault.SessionSucceeded {
			l.Errorf("with a damaged key: %+v", done)
		}
		id, third := l.session(nil)
		if third.Key.ID == second.Key.ID {
			l.Fatal("a damaged key is handed out")
		}
		l.completes(id, encrypts(l, unnamed(third), entered, nil))

		// A key no longer honoured opens nothing.
		l.pass(time.Hour)
		id, _ = l.session(nil)
		l.refuses("under an expired key", id, encrypts(l, unnamed(former), entered, nil), "undecryptable")
	})
}

// TestOneSessionKey: when several processes find no key at the same time, only one makes a
// key. So there are few keys to try on a payload.
func TestOneSessionKey(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id, err := l.CreateSession(l.Context(), nil)
		l.must(err)
		for day := range 3 {
			var mu sync.Mutex
			var group sync.WaitGroup
			seen := map[string]bool{}
			for range 6 {
				v := l.open()
				group.Go(func() {
					s, err := v.Session(l.Context(), id.ID)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						l.Error(err)
						return
					}
					seen[s.Key.ID] = true
				})
			}
			group.Wait()
			if len(seen) != 1 {
				l.Errorf("%[2]d keys on day %[1]d", day, len(seen))
			}
			l.pass(24 * time.Hour)
			id, err = l.CreateSession(l.Context(), nil)
			l.must(err)
		}
	})
}

// TestSessionBinding: where binding is required, a payload is valid only for the session
// named in its header.
func TestSessionBinding(t *testing.T) {
	for _, required := range []bool{false, true} {
		opts := &cardvault.Options{Mode: cardvault.Sandbox, RequireSessionBinding: required}
		inLab(t, opts, func(l *lab) {
			id, s := l.session(nil)
			other, err := l.CreateAccount(l.Context(), "other", nil)
			l.must(err)
			theirs, err := l.In(other.ID).CreateSession(l.Context(), nil)
			l.must(err)
			seen := encrypts(l, s, entered, nil) // intercepted on its way
			if !required {
				if done := l.completes(theirs.ID, seen); done.State != cardvault.SessionSucceeded {
					l.Errorf("without a session: %+v", done)
				}
				return
			}
			l.refuses("one that names no session", theirs.ID, seen, "undecryptable")
			l.refuses("one that names no session", id, seen, "undecryptable")
			l.refuses("one that names neither session nor key", id, encrypts(l, unnamed(s), entered, nil), "undecryptable")
			bound := encrypts(l, s, entered, map[jose.HeaderKey]any{"sid": id.UUID().String()})
			l.refuses("one that names another session", theirs.ID, bound, "undecryptable")
			if done := l.completes(id, bound); done.State != cardvault.SessionSucceeded {
				l.Errorf("with its session: %+v", done)
			}
		})
	}
}

// TestReplayedPayload: a payload is valid for one session only, whether that session
// accepted it or not.
func TestReplayedPayload(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		first, s := l.session(nil)
		second, _ := l.session(nil)
		third, _ := l.session(nil)
		used, refused := encrypts(l, s, entered, nil), encrypts(l, s, strings.Replace(entered, "737", "7", 1), nil)
		l.completes(second, refused)
		l.completes(first, used)
		l.refuses("accepted by another session", second, used, "undecryptable")
		l.refuses("refused by another session", third, refused, "undecryptable")
		l.restart()
		l.refuses("accepted by another session before a restart", second, used, "undecryptable")
		if got := l.completes(second, refused); got.ReasonCode != "invalid_security_code" {
			l.Errorf("refused by the same session before: %+v", got)
		}
	})
}

// TestSessionRace: of several calls that complete a session at the same time, only one
// succeeds.
func TestSessionRace(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id, s := l.session(nil)
		var mu sync.Mutex
		var group sync.WaitGroup
		won := 0
		for range 32 {
			payload := encrypts(l, s, entered, nil)
			group.Go(func() {
				_, err := l.CompleteSession(l.Context(), id, []byte(payload))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won++
				case !errors.Is(err, cardvault.ErrSessionCompleted):
					l.Error(err)
				}
			})
		}
		group.Wait()
		p, err := l.List(l.Context(), nil)
		l.must(err)
		if won != 1 || p.TotalItems != 1 {
			l.Errorf("%d calls completed the session, and made %d tokens", won, p.TotalItems)
		}
		// Two sessions race for one payload.
		a, s := l.session(nil)
		b, _ := l.session(nil)
		payload := encrypts(l, s, entered, nil)
		won = 0
		for _, id := range []cardvault.SessionID{a, b} {
			group.Go(func() {
				_, err := l.CompleteSession(l.Context(), id, []byte(payload))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
				}
			})
		}
		group.Wait()
		if won != 1 {
			l.Errorf("%d sessions accepted the same payload", won)
		}
	})
}

const kindSessionKey store.Kind = 18

// TestSessionKeys: all vaults on a store share a key. It changes daily, and is honoured for
// the length of one more session.
func TestSessionKeys(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		_, first := l.session(nil)
		replica := l.open()
		id, err := replica.CreateSession(l.Context(), nil)
		l.must(err)
		same, err := replica.Session(l.Context(), id.ID)
		l.must(err)
		if same.Key.ID != first.Key.ID || string(same.Key.N) != string(first.Key.N) {
			l.Error("two vaults on one store have two keys")
		}
		l.pass(24*time.Hour - time.Second)
		late, s := l.session(nil)
		if s.Key.ID != first.Key.ID {
			l.Error("the key changes within a day")
		}
		later, _ := l.session(nil)
		l.pass(time.Second)
		if now := l.sees(late); now.Key.ID == first.Key.ID || string(now.Key.N) == string(first.Key.N) {
			l.Error("the key does not change after a day")
		}
		l.pass(10 * time.Minute)
		done, err := replica.CompleteSession(l.Context(), late, []byte(encrypts(l, s, entered, nil)))
		l.must(err)
		if done.State != cardvault.SessionSucceeded {
			l.Errorf("under the former key: %+v", done)
		}
		l.pass(5 * time.Minute)
		if _, err := l.CompleteSession(l.Context(), later, nil); !errors.Is(err, cardvault.ErrNotFound) {
			l.Errorf("an ended session: %v", err)
		}

		// A session stays readable to its end, with any SessionTTL.
		l.pass(45*time.Minute - 2*time.Second)
		last, fresh := l.session(nil)
		old := encrypts(l, s, entered, nil)
		l.completes(last, encrypts(l, s, strings.Replace(entered, "737", "7", 1), nil))
		l.pass(2 * time.Second)
		l.refuses("under an expired key", last, old, "undecryptable")
		l.drain()
		if done := l.completes(last, encrypts(l, fresh, entered, nil)); done.State != cardvault.SessionSucceeded {
			l.Errorf("under the key of the day: %+v", done)
		}

		// No keys and payloads are left over.
		l.pass(25 * time.Hour)
		l.drain()
		l.must(l.store.View(l.Context(), func(tx store.ReadTx) error {
			for kind := range store.Kind(255) {
				if kind+1 == 9 {
					continue // network tokens are looked up regularly
				}
				if due, err := tx.Due(kind+1, store.AllShards, time.Now().Add(100*24*time.Hour), 1); err != nil || len(due) > 0 {
					return fmt.Errorf("%d records of kind %d are due: %w", len(due), kind+1, err)
				}
			}
			return nil
		}))
	})
}

// TestBadSessionKeys: cards can be entered even if a key is unreadable, or was made by a
// clock that was ahead.
func TestBadSessionKeys(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		_, first := l.session(nil)
		l.spoil(kindSessionKey, func(*store.Record) bool { return true }, 1)
		l.restart()
		id, second := l.session(nil)
		if second.Key.ID == first.Key.ID {
			l.Error("a damaged key is handed out")
		}
		l.completes(id, encrypts(l, second, entered, nil))
		if !strings.Contains(l.log.text(), "session key cannot be read") {
			l.Errorf("logged: %s", l.log.text())
		}
	})
	state := memstore.New() // shared by both bubbles
	inLab(t, nil, func(l *lab) {
		l.store.rests(state)
		l.Vault = l.open()
		l.pass(365 * 24 * time.Hour)
		l.session(nil)
	})
	inLab(t, nil, func(l *lab) {
		l.store.rests(state)
		l.Vault = l.open()
		id, first := l.session(nil)
		l.completes(id, encrypts(l, first, entered, nil))
		l.pass(25 * time.Hour)
		if _, second := l.session(nil); second.Key.ID == first.Key.ID {
			l.Error("a key from the future is handed out for days")
		}
	})
}

// TestSessionKeyWait: a call that waits for a key waits no longer than its context allows. A
// key that could not be stored is used again.
func TestSessionKeyWait(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id, err := l.CreateSession(l.Context(), nil)
		l.must(err)
		release := make(chan struct{})
		l.store.hook(func() error { <-release; return errors.New("disk full") })
		ended := make(chan error)
		go func() {
			_, err := l.Session(l.Context(), id.ID)
			ended <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(l.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := l.Session(ctx, id.ID); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			l.Errorf("after %v: %v", time.Since(start), err)
		}
		close(release)
		if err := <-ended; err == nil {
			l.Error("a session is read without a key")
		}
		l.store.hook(nil)
		if s := l.sees(id.ID); s.Key == nil {
			l.Errorf("afterwards: %+v", s)
		}
	})
}

// TestTokenizeScheme: the scheme of the token decides whether a card is allowed.
func TestTokenizeScheme(t *testing.T) {
	opts := &cardvault.Options{Mode: cardvault.Sandbox, Schemes: []card.Scheme{card.Mastercard}}
	inLab(t, opts, func(l *lab) {
		id, s := l.session(nil)
		_, err := l.Tokenize(l.Context(), id, visa)
		if e := cardvault.FieldErrors(err); len(e) != 1 || e[0].Field != "PAN" || e[0].Code != "invalid_enum" {
			l.Errorf("Tokenize with another scheme: %v", err)
		}
		if got := l.completes(id, encrypts(l, s, entered, nil)); got.ReasonCode != "unsupported_scheme" {
			l.Errorf("CompleteSession with another scheme: %+v", got)
		}
		if _, err := l.Import(l.Context(), visa, nil); err != nil {
			l.Errorf("an import: %v", err)
		}
	})
}
