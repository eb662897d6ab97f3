package cardvault_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/google/uuid"
)

// TestBusinessKeyOfASession: the token of a session has the session's business key and
// provider, which no store sees. Each of its events names the session, even after the token
// has changed.
func TestBusinessKeyOfASession(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		l.store.rests(storetest.Canary(t, l.store.on(), []byte("order-7-key"), []byte("a_shop_of_ours")))
		ids := map[cardvault.SessionOptions]cardvault.SessionID{}
		for _, o := range []cardvault.SessionOptions{
			{BusinessKey: "order-7-key", ImportProvider: "a_shop_of_ours"},
			{BusinessKey: "order-7-key", TokenTTL: time.Hour},
			{},
		} {
			made, err := l.CreateSession(l.Context(), &o)
			l.must(err)
			ids[o] = made.ID
		}
		l.restart() // the session stores them
		for o, id := range ids {
			token, err := l.Tokenize(l.Context(), id, visa)
			l.must(err)
			if got := l.get(token.ID); got.BusinessKey != o.BusinessKey || got.ImportProvider != o.ImportProvider || got.ExpiresAt.IsZero() != (o.TokenTTL == 0) {
				t.Errorf("%+v became %+v", o, got)
			}
			patch(l, token.ID, "another") // so that the first event shows a past state
			l.drain()
			if events := about(sink, token.ID); len(events) != 2 || events[0].Session.UUID() != id.UUID() || events[1].Session.UUID() != id.UUID() ||
				events[0].Token.BusinessKey != o.BusinessKey || events[0].Reason != receive.ReasonTokenized {
				t.Errorf("passed %v", events)
			}
			l.must(l.Vault.Delete(l.Context(), token.ID))
			l.drain()
		}

		id := l.imports(visa)
		l.drain()
		if events := about(sink, id); len(events) != 1 || !events[0].Session.IsZero() {
			t.Errorf("an import was passed as %+v", events)
		}
	})
}

// about returns the events of a token that were passed.
func about(sink *listener, token uuid.UUID) []passing {
	return slices.DeleteFunc(sink.passed(), func(p passing) bool { return p.TokenID != token })
}

// TestBusinessKeyOfAnIdentified: a token made after an identification has the business key
// too.
func TestBusinessKeyOfAnIdentified(t *testing.T) {
	identifying(t, cardvault.Options{}, func(l *idvLab) {
		l.idv.says(pendingIDV, nil)
		made, err := l.CreateSession(l.Context(), &cardvault.SessionOptions{BusinessKey: "order 7"})
		l.must(err)
		_, err = l.Tokenize(l.Context(), made.ID, visa)
		if !errors.Is(err, cardvault.ErrIdentificationPending) {
			t.Fatal(err)
		}
		l.idv.says(passedIDV, nil)
		time.Sleep(time.Minute)
		s, err := l.Session(l.Context(), made.ID)
		l.must(err)
		if token := l.get(s.TokenID); token.BusinessKey != "order 7" {
			t.Errorf("got %+v", token)
		}
	})
}

// TestExpiryLifted: a token stays once its expiry is removed. It receives a network token on
// request.
func TestExpiryLifted(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox}, func(l *lab) {
		token, err := l.Import(l.Context(), visa, &cardvault.ImportOptions{TokenTTL: time.Hour})
		l.must(err)
		if l.is(token.ID, notAvailable, "ephemeral_token"); !token.ExpiresAt.Equal(token.CreatedAt.Add(time.Hour)) {
			t.Errorf("created at %v, expires at %v", token.CreatedAt, token.ExpiresAt)
		}
		lifted, err := l.Update(l.Context(), token.ID, cardvault.TokenUpdate{ExpiresAt: new(time.Time)})
		l.must(err)
		if !lifted.ExpiresAt.IsZero() || !l.get(token.ID).ExpiresAt.IsZero() {
			t.Errorf("expires at %v", lifted.ExpiresAt)
		}
		l.run(func() { l.pass(48 * time.Hour) })
		l.is(token.ID, notAvailable, "ephemeral_token")
		l.must2(l.Provision(l.Context(), token.ID, nil))
		l.drain()
		l.is(token.ID, active, "")

		_, err = l.Update(l.Context(), token.ID, cardvault.TokenUpdate{ExpiresAt: new(time.Now())})
		if got := cardvault.FieldErrors(err); len(got) != 1 || got[0].Field != "ExpiresAt" {
			t.Errorf("setting an expiry: %v", err)
		}
	})
}

// A tardy store delays writes until a given time.
type tardy struct {
	store.Store
	until time.Time
}

func (s *tardy) Update(ctx context.Context, fn func(store.Tx) error) error {
	time.Sleep(time.Until(s.until))
	return s.Store.Update(ctx, fn)
}

// TestExpiryLiftedTooLate: an update written after the token has expired does not restore
// it.
func TestExpiryLiftedTooLate(t *testing.T) {
	for _, early := range []time.Duration{time.Microsecond, 0} {
		inLab(t, nil, func(l *lab) {
			token, err := l.Import(l.Context(), visa, &cardvault.ImportOptions{TokenTTL: time.Hour})
			l.must(err)
			l.pass(time.Minute)
			l.store.rests(&tardy{l.store.on(), token.ExpiresAt.Add(-early)})
			_, err = l.Update(l.Context(), token.ID, cardvault.TokenUpdate{ExpiresAt: new(time.Time)})
			if early > 0 && err != nil || early == 0 && !errors.Is(err, cardvault.ErrNotFound) {
				t.Errorf("updated %v before it expires: %v", early, err)
			}
			l.pass(time.Minute)
			if _, err = l.Get(l.Context(), token.ID); (err == nil) != (early > 0) {
				t.Errorf("updated %v before it expires: %v", early, err)
			}
		})
	}
}
