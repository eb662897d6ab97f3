package vaultsuite

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A series of tokens of one card is found by its fingerprint.
type series struct {
	ids []uuid.UUID
}

func (c *series) add(t testing.TB, v *cardvault.Vault) *cardvault.Token {
	t.Helper()
	token := importCard(t, v, testCard(1), nil)
	c.ids = append(c.ids, token.ID)
	importCard(t, v, testCard(2), nil)
	return token
}

// seen checks that each of some fingerprints finds all tokens of the card, and so does that of the
// first token, which all of them show. It returns that.
func (c *series) seen(t testing.TB, v *cardvault.Vault, by ...cardvault.Fingerprint) cardvault.Fingerprint {
	t.Helper()
	ctx := t.Context()
	fingerprint := must(v.Get(ctx, c.ids[0]))(t).Fingerprint
	for _, by := range append(by, fingerprint) {
		found := must(collect(ctx, v, &cardvault.TokenListOptions{Fingerprint: by, Ascending: true}))(t)
		if len(found) != len(c.ids) {
			t.Fatalf("a fingerprint finds %d tokens of %d", len(found), len(c.ids))
		}
		for _, token := range found {
			if !slices.Contains(c.ids, token.ID) || token.Fingerprint != fingerprint {
				t.Errorf("token %v shows %v, and another %v", token.ID, token.Fingerprint, fingerprint)
			}
		}
	}
	return fingerprint
}

func rotatePrints(t testing.TB, v *cardvault.Vault) {
	t.Helper()
	must(v.RotateSeries(t.Context(), cardvault.SeriesFingerprint, nil))(t)
}

// printTerms returns the states of the fingerprint keys, and the tokens of each.
func printTerms(t testing.TB, v *cardvault.Vault) (all []cardvault.TermState, tokens []int64) {
	t.Helper()
	for _, term := range must(v.KeyReport(t.Context()))(t).Others {
		if term.Series == cardvault.SeriesFingerprint {
			all, tokens = append(all, term.State), append(tokens, term.Records["token"])
		}
	}
	return all, tokens
}

// rotateFingerprint: while the fingerprint key is rotated and one of two processes does not
// follow, the fingerprint of a card finds all of its tokens at each step. In between all
// tokens show the present one, which changes once. The former one finds them for two minutes
// more, also if another round begins meanwhile.
func rotateFingerprint(t *testing.T, s store.Store) {
	inBubble(t, s, func(t *testing.T, s store.Store) {
		ctx := t.Context()
		v, slow := vaultOn(t, s, nil), vaultOn(t, s, nil)
		other := v.In(must(v.CreateAccount(ctx, canary, &cardvault.AccountOptions{ImportApproved: new(true)}))(t).ID)
		first := importCard(t, v, testCard(1), importUnderKey)
		card := &series{ids: []uuid.UUID{first.ID}}
		former := first.Fingerprint
		card.add(t, v)
		card.add(t, slow)
		elsewhere := importCard(t, other, testCard(1), nil)
		card.seen(t, v)

		rotatePrints(t, v)
		fails(t, "another rotation", errorOf(slow.RotateSeries(ctx, cardvault.SeriesFingerprint, nil)), cardvault.ErrRotating)
		card.add(t, v)
		card.add(t, slow)
		if card.seen(t, v) != former || card.seen(t, slow) != former {
			t.Error("the fingerprint has changed before all tokens have the new one")
		}

		slower := vaultOn(t, s, nil)
		drain(t, v)
		present := card.seen(t, v, former)
		if present == former || card.seen(t, slower, present) != former {
			t.Error("the fingerprint has not changed, or for a process that does not know the key")
		}
		if is, n := printTerms(t, v); !slices.Equal(is, []cardvault.TermState{"closed", "active"}) || n[0] != n[1] {
			t.Errorf("before the former fingerprints are erased: %v, %v", is, n)
		}

		goOn(time.Minute)
		must(v.RotateKeys(ctx, nil))(t) // has another round begin at once
		drain(t, v)
		for _, v := range []*cardvault.Vault{v, slow, slower} {
			if card.seen(t, v, former) != present { // a former one is not erased yet: processes may show it
				t.Error("the present key term does not bring the present fingerprint key")
			}
		}

		goOn(5 * time.Minute)
		drain(t, v)
		card.add(t, slower)
		for _, v := range []*cardvault.Vault{v, slow, slower, vaultOn(t, s, nil)} {
			if card.seen(t, v) != present {
				t.Error("processes show two fingerprints")
			}
			if found := must(collect(ctx, v, &cardvault.TokenListOptions{Fingerprint: former}))(t); len(found) > 0 {
				t.Errorf("%d tokens have a former fingerprint", len(found))
			}
		}
		if is := must(other.Get(ctx, elsewhere.ID))(t); is.Fingerprint == elsewhere.Fingerprint || is.Fingerprint == present || !is.UpdatedAt.Equal(elsewhere.UpdatedAt) {
			t.Errorf("a token of another account: %+v", is)
		}
		if again := must(v.Import(ctx, testCard(1), importUnderKey))(t); !again.Replayed || again.ID != first.ID {
			t.Errorf("a repetition: %+v", again)
		}
		if is, n := printTerms(t, v); !slices.Equal(is, []cardvault.TermState{"destroyed", "active"}) || n[0] != 0 || n[1] != int64(2*len(card.ids)) {
			t.Errorf("after the rotation: %v, %v", is, n)
		}
		rotatePrints(t, v)
	})
}

// printedLate: a process has made the fingerprints of a number, and the key is rotated before it
// stores them. It stores none of the former key.
func printedLate(t *testing.T, s store.Store) {
	inBubble(t, s, func(t *testing.T, s store.Store) {
		n := &notary{Store: s, wrote: map[uint32]bool{}}
		late, other, ctx := vaultOn(t, n, nil), vaultOn(t, s, nil), t.Context()
		token := importCard(t, late, testCard(0), nil)

		for i, steps := range []func(){func() {}, func() { drain(t, other) }} {
			session := must(late.CreateSession(ctx, nil))(t)
			for name, call := range map[string]func() error{
				"Import":   func() error { return errorOf(late.Import(ctx, testCard(1), nil)) },
				"Tokenize": func() error { return errorOf(late.Tokenize(ctx, session.ID, testCard(2))) },
				"Replace":  func() error { return errorOf(late.Replace(ctx, token.ID, testCard(3+i), nil)) },
			} {
				n.before = func() {
					rotatePrints(t, other)
					steps()
				}
				if err := call(); err != nil || n.before != nil {
					t.Fatalf("%s: %v", name, err)
				}
				drain(t, other)
				if is, tokens := printTerms(t, other); is[len(is)-2] != cardvault.TermClosed || tokens[len(is)-1] != howManyTokens(t, other) {
					t.Errorf("%s: keys %v, with %v of %d tokens", name, is, tokens, howManyTokens(t, other))
				}
				goOn(3 * time.Minute)
				drain(t, other)
				if is, tokens := printTerms(t, other); is[len(is)-2] != cardvault.TermDestroyed || tokens[len(is)-2] != 0 || tokens[len(is)-1] != howManyTokens(t, other) {
					t.Errorf("%s, at the end: keys %v, with %v of %d tokens", name, is, tokens, howManyTokens(t, other))
				}
			}
		}
	})
}

func howManyTokens(t testing.TB, v *cardvault.Vault) int64 {
	t.Helper()
	return int64(must(v.List(t.Context(), nil))(t).TotalItems)
}

// A jostler is a store in which something happens just before a token is written.
type jostler struct {
	store.Store
	jostle func() // called once
}

var errJostled = errors.New("first this")

func (m *jostler) Update(ctx context.Context, fn func(store.Tx) error) error {
	if m.jostle == nil {
		return m.Store.Update(ctx, fn)
	}
	err := m.Store.Update(ctx, func(tx store.Tx) error {
		w := &notaryTx{Tx: tx}
		err := fn(w)
		if err == nil && slices.ContainsFunc(w.put, func(r *store.Record) bool { return r.Kind == kindToken }) {
			err = errJostled
		}
		return err
	})
	if errors.Is(err, errJostled) {
		jostle := m.jostle
		m.jostle = nil
		jostle()
		return m.Store.Update(ctx, fn)
	}
	return err
}

// printRace: a caller changes a token after a round has read it. The change stays, and the keys
// change only once the token has the new fingerprint too.
func printRace(t *testing.T, s store.Store) {
	inBubble(t, s, func(t *testing.T, s store.Store) {
		ctx, m := t.Context(), &jostler{Store: s}
		v, other := vaultOn(t, m, nil), vaultOn(t, s, nil)
		card := new(series)
		former := card.add(t, v).Fingerprint
		card.add(t, v)
		rotatePrints(t, v)
		text := canary
		m.jostle = func() {
			must(other.Update(ctx, card.ids[1], cardvault.TokenUpdate{BusinessKey: &text}))(t)
		}
		drain(t, v)
		if m.jostle != nil {
			t.Fatal("the round has written no token")
		}
		if card.seen(t, v) != former {
			t.Error("the keys have changed, and a token lacks the new fingerprint")
		}

		goOn(10 * time.Minute)
		drain(t, v)
		if card.seen(t, v, former) == former || must(v.Get(ctx, card.ids[1]))(t).BusinessKey != text {
			t.Error("the next pass does not end it, or a change is lost")
		}
	})
}

// rotateAndRetire: one process rotates the fingerprint key, and another retires a key term at the
// same time. Both end.
func rotateAndRetire(t *testing.T, s store.Store) {
	inBubble(t, s, func(t *testing.T, s store.Store) {
		v, other := vaultOn(t, s, nil), vaultOn(t, s, nil)
		card := new(series)
		former := card.add(t, v).Fingerprint
		card.add(t, other)
		stop, stopOther := runs(t, v), runs(t, other)
		goOn(time.Minute)

		must(other.RotateKeys(t.Context(), nil))(t)
		rotatePrints(t, v)
		inUse(t, other.RetireTerm(t.Context(), 1))
		card.add(t, v)
		goOn(time.Second)
		card.add(t, other)
		goOn(15 * time.Minute)
		if is, n := printTerms(t, other); !slices.Equal(is, []cardvault.TermState{"destroyed", "active"}) || n[0] != 0 {
			t.Errorf("fingerprint keys %v, of %v tokens", is, n)
		}
		rotatePrints(t, other)
		goOn(15 * time.Minute)
		stop()
		stopOther()
		goOn(24 * time.Hour) // nothing is due
		stop, stopOther = runs(t, v), runs(t, other)
		goOn(time.Hour)
		stop()
		stopOther()
		if is := states(t, v); !slices.Equal(is, []cardvault.TermState{"destroyed", "active"}) {
			t.Errorf("terms %v", is)
		}
		if is, n := printTerms(t, other); !slices.Equal(is, []cardvault.TermState{"destroyed", "destroyed", "active"}) || n[2] != int64(2*len(card.ids)) {
			t.Errorf("fingerprint keys %v, of %v tokens", is, n)
		}
		for _, v := range []*cardvault.Vault{v, other, vaultOn(t, s, nil)} {
			if card.seen(t, v) == former {
				t.Error("the fingerprint has not changed")
			}
		}
	})
}
