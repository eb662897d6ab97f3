package httpapi_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// importWithCode imports a card with secretCode and returns the token's id.
func (r *rig) importWithCode(t testing.TB) string {
	t.Helper()
	a := r.do(t, "POST", "/cde-import", strings.Replace(cardBody, "{", `{"security_code":"`+secretCode+`",`, 1))
	a.want(t, 200)
	return a.member(t, "id")
}

// wantCode checks the announced end of a token's security code. "" means that no code is
// available.
func (r *rig) wantCode(t testing.TB, id, until string) {
	t.Helper()
	want := `{"security_code_available":false,"expires_at":null}`
	if until != "" {
		want = `{"security_code_available":true,"expires_at":"` + until + `"}`
	}
	a := r.do(t, "GET", "/tokens/"+id+"/security-code", "")
	checkCommon(t, "GET", a)
	if a.status != 200 || a.body != want {
		t.Errorf("%d %s, not %s", a.status, a.body, want)
	}
}

// A security code expires at the announced instant, not before and not after.
func TestSecurityCodeExpiry(t *testing.T) {
	for _, test := range []struct {
		ttl, life time.Duration // of code and token; 0 means the default for the code, no expiry for the token
		until     string
		after     time.Duration
	}{
		{0, 0, "2026-11-21T00:10:00.000000Z", 10 * time.Minute},
		{time.Minute, 0, "2026-11-21T00:01:00.000000Z", time.Minute},
		{15 * time.Minute, 0, "2026-11-21T00:15:00.000000Z", 15 * time.Minute},
		{0, 5 * time.Minute, "2026-11-21T00:05:00.000000Z", 5 * time.Minute},
		{0, time.Second, "2026-11-21T00:00:01.000000Z", time.Second},
		{0, time.Hour, "2026-11-21T00:10:00.000000Z", 10 * time.Minute},
	} {
		inBubble(t, func(t *testing.T) {
			r := newRig(t, &cardvault.Options{SecurityCodeTTL: test.ttl}, nil)
			var id string
			if test.life == 0 {
				id = r.importWithCode(t)
			} else {
				session, err := r.vault.CreateSession(t.Context(), &cardvault.SessionOptions{TokenTTL: test.life})
				if err != nil {
					t.Fatal(err)
				}
				tok, err := r.vault.Tokenize(t.Context(), session.ID, cardvault.Card{
					PAN: card.NewPAN([]byte(pan)), Expiry: card.Expiry{Month: 4, Year: 2031}, SecurityCode: card.NewSecurityCode([]byte(secretCode)),
				})
				if err != nil {
					t.Fatal(err)
				}
				id = tok.ID.String()
			}
			r.wantCode(t, id, test.until)
			time.Sleep(test.after - 1)
			r.wantCode(t, id, test.until)
			time.Sleep(time.Nanosecond)
			if test.after == test.life {
				r.do(t, "GET", "/tokens/"+id+"/security-code", "").want(t, 404, "NOT_FOUND")
				return
			}
			r.wantCode(t, id, "")
			time.Sleep(time.Hour)
			if test.life == 0 {
				r.wantCode(t, id, "")
			}
		})
	}
}

// A refresh replaces the code, and a repeated consume does not erase the new one.
func TestRefreshAfterConsume(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := &provider{}
		r := newPPANRig(t, p, nil)
		id := r.importWithCode(t)
		refresh := func(code string) {
			t.Helper()
			a := r.do(t, "POST", "/tokens/"+id+"/refresh-session", "")
			a.want(t, 200)
			tok, err := r.vault.RefreshSecurityCode(t.Context(), cardvault.NewSessionID(parseUUID(t, a.member(t, "session_id"))), card.NewSecurityCode([]byte(code)))
			if err != nil {
				t.Fatal(err)
			}
			if tok.ID.String() != id {
				t.Errorf("another token: %v", tok.ID)
			}
		}
		consume := func(key string) *answer {
			t.Helper()
			a := r.do(t, "POST", "/tokens/"+id+"/consume", "", "Idempotency-Key", key)
			a.want(t, 204)
			checkCommon(t, "POST", a)
			return a
		}
		sends := func(code string) {
			t.Helper()
			r.obtain(t, id).want(t, 200)
			if sent := p.take(); len(sent) != 1 || sent[0].code != code {
				t.Errorf("%d requests, or another code than %q", len(sent), code)
			}
		}
		sends(secretCode)
		time.Sleep(time.Minute)
		refresh("246")
		r.wantCode(t, id, "2026-11-21T00:11:00.000000Z")
		sends("246")
		if consume("a").header["Idempotency-Replayed"] != nil {
			t.Error("the first consume is a replay")
		}
		r.wantCode(t, id, "")
		sends("")
		time.Sleep(time.Minute)
		refresh("135")
		if consume("a").header.Get("Idempotency-Replayed") != "true" {
			t.Error("not replayed")
		}
		r.wantCode(t, id, "2026-11-21T00:12:00.000000Z")
		sends("135")
		consume("b")
		r.wantCode(t, id, "")
	})
}

// A refresh session works for its refresh only, once, while the token exists.
func TestRefreshSession(t *testing.T) {
	r := newRig(t, nil, nil)
	id := r.importWithCode(t)
	session := func() string {
		t.Helper()
		a := r.do(t, "POST", "/tokens/"+id+"/refresh-session", "", "Idempotency-Key", "k")
		a.want(t, 200)
		return a.member(t, "session_id")
	}
	first := session()
	if again := session(); again != first {
		t.Errorf("sessions %s and %s", first, again)
	}
	if r.do(t, "POST", "/tokens/"+id+"/refresh-session", "").member(t, "session_id") == first {
		t.Error("one session for two requests")
	}
	// The old code stays until the session is completed.
	if a := r.do(t, "GET", "/tokens/"+id+"/security-code", ""); !strings.HasPrefix(a.body, `{"security_code_available":true,`) {
		t.Error(a.body)
	}
	if n := r.total(t); n != 1 {
		t.Errorf("%d tokens", n)
	}
	r.do(t, "DELETE", "/tokens/"+id, "").want(t, 204)
	if _, err := r.vault.RefreshSecurityCode(t.Context(), cardvault.NewSessionID(parseUUID(t, first)), card.NewSecurityCode([]byte("246"))); err == nil {
		t.Error("the code of a deleted token is refreshed")
	}
	// A replay does not return the session of a deleted token.
	r.do(t, "POST", "/tokens/"+id+"/refresh-session", "", "Idempotency-Key", "k").want(t, 404, "NOT_FOUND")
}

// A code that the cache has lost, for example in a restart, is not available.
func TestSecurityCodeIsLost(t *testing.T) {
	r := newRig(t, nil, nil)
	id := r.importWithCode(t)
	r.handler = newHandler(t, r.open(t), nil)
	r.wantCode(t, id, "")
	r.do(t, "POST", "/tokens/"+id+"/consume", "").want(t, 204)
}

// A brokenCache is a security-code cache that fails, at once or after a delay.
type brokenCache struct {
	store.CodeCache
	hangs bool
}

func (c brokenCache) fail(ctx context.Context) error {
	if c.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return errors.New("connection of " + secretPAN + " refused")
}

func (c brokenCache) Put(ctx context.Context, _ uuid.UUID, _ []byte, _ time.Duration) error {
	return c.fail(ctx)
}

func (c brokenCache) Get(ctx context.Context, _ uuid.UUID) ([]byte, error) { return nil, c.fail(ctx) }
func (c brokenCache) Delete(ctx context.Context, _ uuid.UUID) error        { return c.fail(ctx) }

// A failing cache affects only calls about the code.
func TestBrokenCodeCache(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			p := &provider{}
			r := newRig(t, &cardvault.Options{PPAN: p, Codes: brokenCache{hangs: hangs}}, nil)
			var id string
			takes := func(what string, longest time.Duration, f func()) {
				t.Helper()
				start := time.Now()
				f()
				if took := time.Since(start); hangs && took != longest || !hangs && took != 0 {
					t.Errorf("%s took %v", what, took)
				}
			}
			takes("import", 50*time.Millisecond, func() { id = r.importWithCode(t) })
			takes("status", 50*time.Millisecond, func() { r.wantCode(t, id, "") })
			takes("obtain-ppan", 50*time.Millisecond, func() { r.obtain(t, id).want(t, 200) })
			if sent := p.take(); len(sent) != 1 || sent[0].code != "" {
				t.Errorf("sent %+v", sent)
			}
			// The code may or may not still be there.
			for range 2 {
				takes("consume", 50*time.Millisecond+time.Second, func() { // it looks for a later code first
					a := r.do(t, "POST", "/tokens/"+id+"/consume", "", "Idempotency-Key", "k")
					a.want(t, 503, "SERVICE_UNAVAILABLE")
					if checkCommon(t, "POST", a); a.header.Get("Retry-After") != "5" {
						t.Errorf("headers %v", a.header)
					}
				})
			}
			takes("refresh-session", 0, func() { r.do(t, "POST", "/tokens/"+id+"/refresh-session", "").want(t, 200) })
			takes("delete", time.Second, func() { r.do(t, "DELETE", "/tokens/"+id, "").want(t, 204) })
			transcript.NoEcho(t, "log", r.log.take())
		})
	}
}
