package vaultsuite_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// An op is one step of a random history. Its numbers choose among the objects that exist
// when it runs, so that a history can be shrunk.
type op struct {
	kind            string
	account, object int
	number          string
	key, name       string
	seconds         int
	list            cardvault.TokenListOptions
	from, to        int // the token whose time bounds a list, or -1
	shift           time.Duration
}

var numbers = []string{visa, mastercard, "378282246310005", "6011000000000004", "36227206271667", "3528000000000007"}

func texts(prefix string) *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"", prefix + "1", prefix + "2"})
}

func ops(t *rapid.T) op {
	return op{
		kind: rapid.SampledFrom([]string{
			"import", "import", "repeat", "update", "delete", "session", "tokenize", "tokenize", "wait", "drain", "list", "list", "all", "get", "rotate",
		}).Draw(t, "kind"),
		account: rapid.IntRange(0, 1).Draw(t, "account"),
		object:  rapid.IntRange(0, 20).Draw(t, "object"),
		number:  rapid.SampledFrom(numbers).Draw(t, "number"),
		key:     texts("key ").Draw(t, "key"),
		name:    texts("name ").Draw(t, "name"),
		seconds: rapid.SampledFrom([]int{0, 1, 5, 5, 100}).Draw(t, "seconds"),
		list: cardvault.TokenListOptions{
			Limit:              rapid.IntRange(1, 6).Draw(t, "limit"),
			Page:               rapid.IntRange(1, 3).Draw(t, "page"),
			Ascending:          rapid.Bool().Draw(t, "ascending"),
			Scheme:             rapid.SliceOfN(rapid.Custom(func(t *rapid.T) card.Scheme { return card.Scheme(rapid.IntRange(0, 7).Draw(t, "scheme")) }), 0, 4).Draw(t, "schemes"),
			NetworkTokenStatus: rapid.SampledFrom([][]network.Status{nil, nil, {network.NotAvailable, network.Active}, {network.Pending}}).Draw(t, "statuses"),
			BusinessKey:        rapid.SampledFrom([]string{"", "", "key 1", "key 2", "key 3"}).Draw(t, "filter"),
		},
		from:  rapid.IntRange(-3, 10).Draw(t, "from"),
		to:    rapid.IntRange(-3, 10).Draw(t, "to"),
		shift: rapid.SampledFrom([]time.Duration{0, 0, -time.Microsecond, time.Microsecond, 1, -1}).Draw(t, "shift"),
	}
}

// A modelToken is the model's view of a token.
type modelToken struct {
	id        uuid.UUID
	created   time.Time
	expires   time.Time
	last      string
	name, key string
	scheme    card.Scheme
}

func (m *modelToken) lives() bool { return m.expires.IsZero() || time.Now().Before(m.expires) }

type modelSession struct {
	id      uuid.UUID
	end     time.Time
	seconds int
	done    bool
}

// A modelAccount is an account in as few lines as possible: its objects, in the order of
// creation. Only deletions remove objects.
type modelAccount struct {
	v        *cardvault.Vault
	tokens   []*modelToken
	sessions []*modelSession
	repeats  map[string]*modelToken // by idempotency key; in tokens unless deleted
}

func (a *modelAccount) live() []*modelToken {
	return slices.DeleteFunc(slices.Clone(a.tokens), func(m *modelToken) bool { return !m.lives() })
}

func (a *modelAccount) add(token *cardvault.Token, o op, expires time.Duration) (*modelToken, error) {
	m := &modelToken{
		id: token.ID, created: token.CreatedAt, last: o.number[len(o.number)-4:], name: o.name, key: token.BusinessKey, scheme: token.Scheme,
	}
	if expires > 0 {
		m.expires = token.CreatedAt.Add(expires)
	}
	a.tokens = append(a.tokens, m)
	return m, m.differs(token)
}

// differs returns an error if token differs from the model.
func (m *modelToken) differs(token *cardvault.Token) error {
	var name string
	token.CardholderName.Expose(func(b []byte) { name = string(b) })
	if token.ID != m.id || !token.CreatedAt.Equal(m.created) || !token.ExpiresAt.Equal(m.expires) || token.LastFour != m.last ||
		name != m.name || token.BusinessKey != m.key || token.Scheme != m.scheme {
		return fmt.Errorf("token %+v with the name %q, want %+v", token, name, *m)
	}
	return nil
}

// history runs a history on a vault and on the model at once and returns the first
// difference. It runs in a bubble.
func history(t *testing.T, s store.Store, history []op) error {
	v := vaultOn(t, s, nil)
	defer s.Close()
	ctx := t.Context()
	second, err := v.CreateAccount(ctx, "second", nil)
	if err != nil {
		return err
	}
	accounts := []*modelAccount{
		{v: v, repeats: map[string]*modelToken{}},
		{v: v.In(second.ID), repeats: map[string]*modelToken{}},
	}
	for i, o := range history {
		until(t, time.Now().Add(time.Microsecond)) // tokens must not share an instant
		if err := accounts[o.account].step(t, o); err != nil {
			return fmt.Errorf("step %d, %s: %w", i, o.kind, err)
		}
	}
	for i, a := range accounts {
		for _, ascending := range []bool{true, false} {
			if err := a.lists(t, op{list: cardvault.TokenListOptions{Ascending: ascending}, from: -1, to: -1}); err != nil {
				return fmt.Errorf("in the end, account %d: %w", i, err)
			}
		}
	}
	return nil
}

func unexpected(err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("error %v, want %v", err, want)
	}
	return nil
}

func (a *modelAccount) step(t *testing.T, o op) error {
	ctx, v := t.Context(), a.v
	c := testCard(o.number)
	c.Name = card.NewName([]byte(o.name))
	var chosen *modelToken
	if len(a.tokens) > 0 {
		chosen = a.tokens[o.object%len(a.tokens)]
	}
	switch o.kind {
	case "import":
		token, err := v.Import(ctx, c, &cardvault.ImportOptions{BusinessKey: o.key})
		if err != nil {
			return err
		}
		_, err = a.add(token, o, 0)
		return err
	case "repeat":
		key := fmt.Sprint("idempotency ", o.object%4, o.number, o.name)
		token, err := v.Import(ctx, c, &cardvault.ImportOptions{IdempotencyKey: key})
		first, repeated := a.repeats[key]
		switch {
		case !repeated:
			if err != nil || token.Replayed {
				return fmt.Errorf("the first call is replayed, or fails: %w", err)
			}
			a.repeats[key], err = a.add(token, o, 0)
			return err
		case !slices.Contains(a.tokens, first):
			return unexpected(err, cardvault.ErrNotFound)
		case err != nil || !token.Replayed || token.ID != first.id:
			return fmt.Errorf("the second call is not replayed, or fails: %w", err)
		}
	case "update":
		if chosen == nil {
			return nil
		}
		name := c.Name
		token, err := v.Update(ctx, chosen.id, cardvault.TokenUpdate{CardholderName: &name, BusinessKey: &o.key})
		if !chosen.lives() {
			return unexpected(err, cardvault.ErrNotFound)
		}
		if err != nil {
			return err
		}
		chosen.name, chosen.key = o.name, o.key
		return chosen.differs(token)
	case "get":
		if chosen == nil {
			return nil
		}
		token, err := v.Get(ctx, chosen.id)
		if !chosen.lives() {
			return unexpected(err, cardvault.ErrNotFound)
		}
		if err != nil {
			return err
		}
		return chosen.differs(token)
	case "delete":
		if chosen == nil {
			return nil
		}
		err := v.Delete(ctx, chosen.id)
		if !chosen.lives() {
			return unexpected(err, cardvault.ErrNotFound)
		}
		a.tokens = slices.DeleteFunc(a.tokens, func(m *modelToken) bool { return m == chosen })
		return err
	case "session":
		id, err := v.CreateSession(ctx, &cardvault.SessionOptions{TokenTTL: time.Duration(o.seconds) * time.Second})
		a.sessions = append(a.sessions, &modelSession{id: id.ID.UUID(), end: time.Now().Add(15 * time.Minute).Truncate(time.Microsecond), seconds: o.seconds})
		return err
	case "tokenize":
		if len(a.sessions) == 0 {
			return nil
		}
		s := a.sessions[o.object%len(a.sessions)]
		token, err := v.Tokenize(ctx, cardvault.NewSessionID(s.id), c)
		switch {
		case !time.Now().Before(s.end):
			return unexpected(err, cardvault.ErrNotFound)
		case s.done:
			return unexpected(err, cardvault.ErrSessionCompleted)
		case err != nil:
			return err
		}
		s.done = true
		_, err = a.add(token, o, time.Duration(s.seconds)*time.Second)
		return err
	case "wait":
		until(t, time.Now().Add(time.Duration(o.seconds)*time.Second*time.Duration(1+o.object)/4))
	case "drain":
		return v.Drain(ctx)
	case "rotate":
		_, err := v.RotateKeys(ctx, nil)
		return err
	case "list", "all":
		return a.lists(t, o)
	}
	return nil
}

// lists compares a list with the model, by List or, without a page, by All.
func (a *modelAccount) lists(t *testing.T, o op) error {
	l := o.list
	if o.from >= 0 && o.from < len(a.tokens) {
		l.From = a.tokens[o.from].created.Add(o.shift)
	}
	if o.to >= 0 && o.to < len(a.tokens) {
		l.To = a.tokens[o.to].created.Add(o.shift)
	}
	if !l.From.IsZero() && !l.To.IsZero() && l.From.After(l.To) {
		l.From, l.To = l.To, l.From
	}
	wanted := slices.DeleteFunc(a.live(), func(m *modelToken) bool {
		return !(l.From.IsZero() || !m.created.Before(l.From)) || !(l.To.IsZero() || !m.created.After(l.To)) ||
			len(l.Scheme) > 0 && !slices.Contains(l.Scheme, m.scheme) ||
			len(l.NetworkTokenStatus) > 0 && !slices.Contains(l.NetworkTokenStatus, network.NotAvailable) ||
			l.BusinessKey != "" && l.BusinessKey != m.key
	})
	if !l.Ascending {
		slices.Reverse(wanted)
	}
	var got []*cardvault.Token
	if o.kind == "all" || l.Page == 0 {
		wanted = wanted[min(len(wanted), max(0, l.Page-1)*l.Limit):]
		for token, err := range a.v.All(t.Context(), &l) {
			if err != nil {
				return err
			}
			got = append(got, token)
		}
	} else {
		p, err := a.v.List(t.Context(), &l)
		if err != nil {
			return err
		}
		if p.TotalItems != int64(len(wanted)) {
			return fmt.Errorf("total %d, want %d", p.TotalItems, len(wanted))
		}
		from := min(len(wanted), (l.Page-1)*l.Limit)
		wanted = wanted[from:min(len(wanted), from+l.Limit)]
		got = p.Items
	}
	if len(got) != len(wanted) {
		return fmt.Errorf("%d tokens, want %d", len(got), len(wanted))
	}
	for i, m := range wanted {
		if err := m.differs(got[i]); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	return nil
}

// TestModel runs each random history on every store, in bubbles: waiting costs nothing.
// Histories are drawn in advance, because a bubble runs in another goroutine.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(ops), 1, 60).Draw(rt, "history")
		for name, open := range map[string]func(testing.TB) store.Store{"mem": mem, "bolt": bolt} {
			var err error
			bubble.Test(t, func(t *testing.T) { err = history(t, open(t), steps) })
			if err != nil {
				rt.Fatalf("%s: %v", name, err)
			}
		}
	})
}
