package vaultsuite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

var eventBehaviours = []behaviour{
	{"Events", tokenEvents},
	{"EventsUnheard", eventsUnheard},
	{"EventsOfADeletedToken", eventsOfADeletedToken},
	{"EventsRefused", eventsRefused},
	{"EventsRepeated", eventsRepeated},
	{"EventsOfTwoVaults", eventsOfTwoVaults},
	{"EventOfAnExpiry", eventOfAnExpiry},
	{"EventsDamaged", eventsDamaged},
}

// A pickySink records the events that it takes, and rejects events by refuse.
type pickySink struct {
	vaulttest.Recorder
	mu      sync.Mutex
	refuse  func(*cardvault.Event) bool
	refused []*cardvault.Event
}

func (s *pickySink) Event(ctx context.Context, e *cardvault.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil && s.refuse(e) {
		s.refused = append(s.refused, e)
		return errors.New("not now")
	}
	return s.Recorder.Event(ctx, e)
}

// attempts returns how many events the sink was given since set.
func (s *pickySink) attempts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.refused) + len(s.Events())
}

// set changes which events are refused and returns those refused until now.
func (s *pickySink) set(refuse func(*cardvault.Event) bool) []*cardvault.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	refused := s.refused
	s.refuse, s.refused = refuse, nil
	return refused
}

// listening returns a sandbox on s whose events go to sink.
func listening(t testing.TB, s store.Store, sink cardvault.EventSink) *cardvault.Vault {
	t.Helper()
	return vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Events: sink})
}

// eventLine is the checked part of an event: token, type and reason.
func eventLine(token *cardvault.Token, typ receive.EventType, why receive.EventReason) string {
	return fmt.Sprint(token.ID, " ", typ, " ", why)
}

// checkArrived checks that events are these, in this order, and well formed.
func checkArrived(t testing.TB, what string, events []*cardvault.Event, want ...string) {
	t.Helper()
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprint(e.TokenID, " ", e.Type, " ", e.Reason))
		if e.ID.Version() != 4 || e.Account == uuid.Nil || e.CreatedAt.IsZero() || e.CreatedAt.After(time.Now()) {
			t.Errorf("%s: event %+v", what, e)
		}
		if (e.Token == nil) != (e.Type == receive.TokenDeleted) || e.Token != nil && e.Token.ID != e.TokenID {
			t.Errorf("%s: event %v of token %v has token %v", what, e.Type, e.TokenID, e.Token)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: events\n got %q\nwant %q", what, got, want)
	}
}

// rename updates a token.
func rename(t testing.TB, v *cardvault.Vault, token *cardvault.Token, key string) *cardvault.Token {
	t.Helper()
	key = canary + key
	return must(v.Update(t.Context(), token.ID, cardvault.TokenUpdate{BusinessKey: &key}))(t)
}

func tokenEvents(t *testing.T, s store.Store) {
	var sink vaulttest.Recorder
	v, ctx := listening(t, s, &sink), t.Context()
	other := must(v.CreateAccount(ctx, canary, nil))(t)

	c := testCard(1)
	c.Name = holder(canary)
	imported := importCard(t, v, c, &cardvault.ImportOptions{BusinessKey: canary})
	patched := rename(t, v, imported, "a")
	again := rename(t, v, imported, "b")
	if len(sink.Events()) != 0 {
		t.Error("events arrive before there is background work")
	}

	noError(t, v.Drain(ctx))
	got := sink.Events()
	checkArrived(t, "a token", got,
		eventLine(imported, receive.TokenCreated, receive.ReasonImported),
		eventLine(imported, receive.TokenUpdated, receive.ReasonPatched),
		eventLine(imported, receive.TokenUpdated, receive.ReasonPatched))

	for i, want := range []*cardvault.Token{imported, patched, again} {
		sameTold(t, fmt.Sprintf("the token of event %d, as it was then", i), got[i].Token, want)
	}
	if got[0].CreatedAt.Before(imported.CreatedAt) || got[0].CreatedAt.After(got[1].CreatedAt) || got[0].ID == got[1].ID {
		t.Errorf("events %+v", got)
	}

	theirs := importCard(t, v.In(other.ID), testCard(2), nil)
	noError(t, v.Drain(ctx))
	got = sink.Events()[3:]
	checkArrived(t, "another account", got, eventLine(theirs, receive.TokenCreated, receive.ReasonImported))
	if got[0].Account != other.ID {
		t.Error("an event of another account than the token's")
	}

	tokenized := must(v.Tokenize(ctx, must(v.CreateSession(ctx, nil))(t).ID, testCard(3)))(t)
	noError(t, v.Drain(ctx))
	noError(t, v.Delete(ctx, tokenized.ID))
	noError(t, v.Drain(ctx))
	checkArrived(t, "a session", sink.Events()[4:],
		eventLine(tokenized, receive.TokenCreated, receive.ReasonTokenized),
		eventLine(tokenized, receive.TokenDeleted, receive.ReasonRequested))

	// A failure, or a call that changes nothing, is not an event.
	refuses(t, "a refused card", errorOf(v.Import(ctx, cardOf("4111110000000006"), nil)), "PAN luhn")
	fails(t, "Delete of a deleted token", v.Delete(ctx, tokenized.ID), cardvault.ErrNotFound)
	once := must(v.Import(ctx, testCard(4), importUnderKey))(t)
	must(v.Import(ctx, testCard(4), importUnderKey))(t)
	noError(t, v.Drain(ctx))
	noError(t, v.Drain(ctx))
	checkArrived(t, "a replay", sink.Events()[6:], eventLine(once, receive.TokenCreated, receive.ReasonImported))
	if n := everything(t, s, time.Now().Add(time.Minute)); n != 0 {
		t.Errorf("%d records are due, although everything has arrived", n)
	}
}

// eventsUnheard: nothing is stored without a listener, and events stored before wait for a
// new one.
func eventsUnheard(t *testing.T, s store.Store) {
	spy, ctx := &watched{Store: s}, t.Context()
	silent := vaultOn(t, spy, nil)
	token := importCard(t, silent, testCard(1), nil)
	if n := len(spy.last()); n != 1 {
		t.Errorf("an import puts %d records, want 1", n)
	}

	rename(t, silent, token, "a")
	if n := len(spy.last()); n != 1 {
		t.Errorf("an update puts %d records, want 1", n)
	}

	noError(t, silent.Delete(ctx, token.ID))
	if n := len(spy.last()); n != 0 {
		t.Errorf("a deletion puts %d records, want none", n)
	}

	var sink vaulttest.Recorder
	listener := listening(t, spy, &sink)
	importCard(t, listener, testCard(2), nil)
	if n := len(spy.last()); n != 3 {
		t.Errorf("an import puts %d records, want token, delivery and the idle queue", n)
	}
	importCard(t, listener, testCard(3), nil)
	if n := len(spy.last()); n != 2 {
		t.Errorf("another import puts %d records, want token and delivery", n)
	}

	wrote := spy.wrote(func() { noError(t, silent.Drain(ctx)) })
	if wrote != 0 || len(sink.Events()) != 0 {
		t.Errorf("a vault without a sink wrote %d times", wrote)
	}

	noError(t, listener.Drain(ctx))
	if n := len(sink.Events()); n != 2 {
		t.Errorf("%d events have arrived, want 2", n)
	}
	wrote = spy.wrote(func() { noError(t, listener.Drain(ctx)) })
	if wrote != 0 {
		t.Errorf("with nothing to do Drain wrote %d times", wrote)
	}
}

func eventsOfADeletedToken(t *testing.T, s store.Store) {
	var sink vaulttest.Recorder
	v, ctx := listening(t, s, &sink), t.Context()
	token, other := importCard(t, v, testCard(1), nil), importCard(t, v, testCard(2), nil)
	rename(t, v, token, "a")
	noError(t, v.Delete(ctx, token.ID))
	noError(t, v.Drain(ctx))
	got := sink.Events()
	slices.SortFunc(got, func(a, b *cardvault.Event) int { return strings.Compare(string(a.Type), string(b.Type)) })
	checkArrived(t, "after the deletion", got,
		eventLine(other, receive.TokenCreated, receive.ReasonImported),
		eventLine(token, receive.TokenDeleted, receive.ReasonRequested))
}

// eventsRefused: a sink that fails receives the same event again, and the events of a token
// in their order, while other tokens do not wait.
func eventsRefused(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	var sink pickySink
	v, ctx := listening(t, spy, &sink), t.Context()
	token, other := importCard(t, v, testCard(1), nil), importCard(t, v, testCard(2), nil)
	failures := 2 // the third would let the later events pass

	sink.set(func(e *cardvault.Event) bool {
		if e.TokenID != token.ID || failures == 0 {
			return false
		}
		failures--
		return true
	})

	noError(t, v.Drain(ctx))
	checkArrived(t, "another token", sink.Events(), eventLine(other, receive.TokenCreated, receive.ReasonImported))
	rename(t, v, token, "a")
	rename(t, v, token, "b")
	attempted := sink.attempts()
	wrote := spy.wrote(func() {
		for range 10 {
			noError(t, v.Drain(ctx))
		}
	})
	attempts := sink.attempts() - attempted // more than none on a slow machine
	if wrote > int64(8+3*attempts) {
		t.Errorf("%d writes and %d attempts while events are held back", wrote, attempts)
	}

	poll, patience := time.NewTicker(20*time.Millisecond), time.After(5*time.Minute)
	defer poll.Stop()
	for len(sink.Events()) < 4 {
		select {
		case <-poll.C:
			noError(t, v.Drain(ctx))
		case <-patience:
			t.Fatal("the event is not passed again")
		}
	}

	refused := sink.set(nil)
	got := sink.Events()[1:]
	checkArrived(t, "a sink that works again", got,
		eventLine(token, receive.TokenCreated, receive.ReasonImported),
		eventLine(token, receive.TokenUpdated, receive.ReasonPatched),
		eventLine(token, receive.TokenUpdated, receive.ReasonPatched))

	for _, e := range refused {
		if e.ID != refused[0].ID {
			t.Errorf("a later event was passed while the first was refused")
		}
	}

	if len(refused) == 0 || len(got) == 0 || got[0].ID != refused[0].ID || !got[0].CreatedAt.Equal(refused[0].CreatedAt) {
		t.Error("an event changes when it is passed again")
	}
	if len(got) == 3 && (got[1].Token.BusinessKey != canary+"a" || got[2].Token.BusinessKey != canary+"b") {
		t.Error("the events of a token are out of order")
	}
}

// eventsRepeated: of a process that dies between the delivery of an event and its
// removal, the event is still there.
func eventsRepeated(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	var sink vaulttest.Recorder
	v, ctx := listening(t, spy, &sink), t.Context()
	token := importCard(t, v, testCard(1), nil)
	records := spy.last()
	noError(t, v.Drain(ctx))
	noError(t, s.Update(ctx, func(tx store.Tx) error { tx.Put(records[1]); return nil }))
	rename(t, v, token, "a")
	noError(t, v.Drain(ctx))
	got := sink.Events()
	checkArrived(t, "after a crash", got,
		eventLine(token, receive.TokenCreated, receive.ReasonImported),
		eventLine(token, receive.TokenCreated, receive.ReasonImported),
		eventLine(token, receive.TokenUpdated, receive.ReasonPatched))
	if got[0].ID != got[1].ID || got[0].ID == got[2].ID {
		t.Error("the id of an event changes when it is passed again")
	}
}

// eventsOfTwoVaults: if two vaults work on one store at the same time, one passes an event,
// and the order holds.
func eventsOfTwoVaults(t *testing.T, s store.Store) {
	var sink vaulttest.Recorder
	inOrder(t, []*cardvault.Vault{listening(t, s, &sink), listening(t, s, &sink)}, sink.Events)
}

// inOrder works with tokens in two vaults on one store, which run, and checks that each
// event arrives once, and each token's in their order.
func inOrder(t *testing.T, vaults []*cardvault.Vault, arrived func() []*cardvault.Event) {
	const tokens, updates = 6, 6
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, v := range vaults {
		running.Go(func() {
			if err := v.Run(ctx); err != nil {
				t.Errorf("Run = %v", err)
			}
		})
	}

	defer running.Wait()
	defer stop()
	parallel(t, tokens, func(i int) error {
		token, err := vaults[i%2].Import(ctx, testCard(i), nil)
		for n := 0; n < updates && err == nil; n++ {
			key := fmt.Sprint(canary, n)
			_, err = vaults[(i+n)%2].Update(ctx, token.ID, cardvault.TokenUpdate{BusinessKey: &key})
		}
		return err
	})

	poll, patience := time.NewTicker(20*time.Millisecond), time.After(5*time.Minute)
	defer poll.Stop()
	for len(arrived()) < tokens*(1+updates) {
		select {
		case <-poll.C:
			for _, v := range vaults {
				noError(t, v.Drain(ctx)) // it is a third and fourth process
			}
		case <-patience:
			t.Fatalf("%d events have arrived, want %d", len(arrived()), tokens*(1+updates))
		}
	}

	stop()
	running.Wait()
	seen := map[uuid.UUID]bool{}
	next := map[uuid.UUID]int{}

	for _, e := range arrived() {
		if seen[e.ID] {
			t.Error("an event has arrived twice")
		}
		seen[e.ID] = true
		want := ""
		if n := next[e.TokenID]; n > 0 {
			want = fmt.Sprint(canary, n-1)
		}
		if e.Token.BusinessKey != want {
			t.Errorf("event %d of a token has business key %q, want %q", next[e.TokenID], e.Token.BusinessKey, want)
		}
		next[e.TokenID]++
	}
}

// eventOfAnExpiry: if two vaults sweep one store, only one reports an expiry.
func eventOfAnExpiry(t *testing.T, s store.Store) {
	var sink pickySink
	sink.set(func(e *cardvault.Event) bool { return e.Type == receive.TokenCreated })
	vaults := []*cardvault.Vault{listening(t, s, &sink), listening(t, s, &sink)}
	v, ctx := vaults[0], t.Context()
	tokens := []*cardvault.Token{ephemeral(t, v, 1, 2*time.Second), ephemeral(t, v, 2, 2*time.Second)}
	noError(t, v.Drain(ctx))
	passed(t, tokens[1].ExpiresAt)
	parallel(t, 2, func(i int) error { return vaults[i].Drain(ctx) })
	noError(t, v.Drain(ctx)) // what one vault wrote while the other was through
	got := sink.Events()
	slices.SortFunc(got, func(a, b *cardvault.Event) int { return bytes.Compare(a.TokenID[:], b.TokenID[:]) })
	slices.SortFunc(tokens, func(a, b *cardvault.Token) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	checkArrived(t, "expired tokens", got,
		eventLine(tokens[0], receive.TokenDeleted, receive.ReasonExpired),
		eventLine(tokens[1], receive.TokenDeleted, receive.ReasonExpired))
	if n := everything(t, s, time.Now().Add(time.Minute)); n != 0 {
		t.Errorf("%d records are due, although the tokens are deleted", n)
	}
}

// eventsDamaged: an event that an attacker has changed does not arrive, and does not delay
// events of another token.
func eventsDamaged(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	var sink pickySink
	v, ctx := listening(t, spy, &sink), t.Context()
	account := must(v.CreateAccount(ctx, canary, nil))(t)
	token := importCard(t, v, testCard(1), nil)
	row := spy.last()[1]
	other := importCard(t, v, testCard(2), nil)
	otherRow := spy.last()[1]
	importCard(t, v, testCard(3), nil)
	third := spy.last()[0].ID

	noError(t, v.Drain(ctx))
	arrivals := len(sink.Events())

	damage := shownDamage(row, otherRow)
	for what, change := range map[string]func(*store.Record){
		"another class":   func(r *store.Record) { r.Class++ },
		"no class":        func(r *store.Record) { r.Class = 0 },
		"a hash":          func(r *store.Record) { r.Lookup = [][]byte{[]byte("hash")} },
		"another queue":   func(r *store.Record) { r.Parent = third },
		"another account": func(r *store.Record) { r.Account = account.ID },
	} {
		damage[what] = change
	}

	for what, change := range damage {
		spoiled := row.Clone()
		change(spoiled)
		noError(t, s.Update(ctx, func(tx store.Tx) error { tx.Put(spoiled); return nil }))
		rename(t, v, other, "b")
		noError(t, v.Drain(ctx))
		checkArrived(t, what, sink.Events()[arrivals:], eventLine(other, receive.TokenUpdated, receive.ReasonPatched))
		arrivals = len(sink.Events())
		noError(t, s.Update(ctx, func(tx store.Tx) error { tx.Delete(spoiled.Kind, spoiled.ID); return nil }))
	}

	noError(t, s.Update(ctx, func(tx store.Tx) error { tx.Put(row); return nil }))
	rename(t, v, token, "a") // the queue is due with it
	noError(t, v.Drain(ctx))
	checkArrived(t, "an event that was put back", sink.Events()[arrivals:],
		eventLine(token, receive.TokenCreated, receive.ReasonImported),
		eventLine(token, receive.TokenUpdated, receive.ReasonPatched))

	// A waiting event can be settled while it waits.
	sink.set(func(*cardvault.Event) bool { return true })
	rename(t, v, token, "c")
	rename(t, v, token, "d")
	noError(t, v.Drain(ctx))
	var again time.Time // of the first

	noError(t, s.Update(ctx, func(tx store.Tx) error {
		list, err := tx.List(&store.Query{Kind: row.Kind, Account: row.Account, Parent: row.Parent, Limit: 10})
		if err != nil {
			return err
		}
		if len(list.Records) != 2 || !list.Records[1].Due.IsZero() {
			return errors.New("the second event of a token does not wait for the first")
		}
		again = list.Records[0].Due
		list.Records[1].Version++
		tx.Put(list.Records[1])
		return nil
	}))

	sink.set(nil)
	arrivals = len(sink.Events())
	passed(t, again)
	noError(t, v.Drain(ctx))
	checkArrived(t, "the first event of a token", sink.Events()[arrivals:], eventLine(token, receive.TokenUpdated, receive.ReasonPatched))
	if n := everything(t, s, time.Now().Add(time.Hour)); n != 0 {
		t.Errorf("%d records are due, although everything deliverable has arrived", n)
	}
}
