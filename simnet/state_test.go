package simnet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// One key makes one network token, however often and wherever it is used, even after a
// restart.
func TestIdempotency(t *testing.T) {
	dir := t.TempDir()
	r := request(card.VISA, 0)
	ids := make(chan string, 64)
	ask := func(calls int) {
		n, err := simnet.Open(t.Context(), dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		for range calls {
			group.Go(func() {
				got, err := n.Provision(t.Context(), r)
				if err != nil {
					t.Errorf("Provision = %v", err)
					return
				}
				ids <- got.ID
			})
		}
		group.Wait()
		if err := errors.Join(n.Close(), n.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Provision(t.Context(), r); !errors.Is(err, store.ErrClosed) {
			t.Errorf("Provision after Close = %v", err)
		}
	}
	ask(32)
	ask(1)
	close(ids)
	want := <-ids
	for id := range ids {
		if id != want {
			t.Errorf("the network token is %s and %s", want, id)
		}
	}
	if n := len(ids); n != 0 {
		t.Errorf("%d answers left", n)
	}
}

// A repeated call returns the present state of the network token, and the card as first
// sent: the vault compares it with its own.
func TestRepeatedLater(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	for code, want := range map[int]network.Status{1: active, 30: inactive, 32: deleted, 34: active} {
		r := request(card.Mastercard, code)
		first := provision(t, n, r)
		n.Advance(2 * time.Second)
		if got := provision(t, n, r); got.ID != first.ID || got.State != want || *got.Card != *first.Card {
			t.Errorf("%03d: repeated %+v, first %+v", code, got, first)
		}
	}
}

func TestShared(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNetwork(t, memstore.New(), &simnet.Options{Shared: true})
		m := &mailbox{start: time.Now()}
		feed(t, n, m.sink)
		a, b, other := request(card.VISA, 0), request(card.VISA, 0), request(card.Mastercard, 0)
		first := provision(t, n, a)
		for range 2 {
			if provision(t, n, b).ID != first.ID {
				t.Error("tokens of one card have two network tokens")
			}
		}
		if provision(t, n, other).ID == first.ID {
			t.Error("tokens of two cards share a network token")
		}
		if err := n.Control().Suspend(t.Context(), b.TokenID); err != nil {
			t.Fatal(err)
		}
		if got, err := n.Lookup(t.Context(), network.Ref{IdempotencyKey: b.IdempotencyKey}); err != nil || got.ID != first.ID || got.State != inactive {
			t.Errorf("Lookup by the second key = %+v, %v", got, err)
		}
		synctest.Wait()
		if got := m.take(); !slices.Equal(got, []string{"suspended@0s"}) {
			t.Errorf("notices are %v", got)
		}
		if err := n.Delete(t.Context(), network.Ref{ID: first.ID}); err != nil {
			t.Fatal(err)
		}
		if got := provision(t, n, again(a, 2)); got.ID == first.ID || got.State != active {
			t.Errorf("after the deletion there is %+v", got)
		}
		var group sync.WaitGroup
		ids := make([]string, 16)
		for i := range ids {
			group.Go(func() {
				r := request(card.Discover, 0)
				if got, err := n.Provision(t.Context(), r); err == nil {
					ids[i] = got.ID
				}
			})
		}
		group.Wait()
		if ids = slices.Compact(ids); len(ids) != 1 || ids[0] == "" {
			t.Errorf("concurrent calls have made %q", ids)
		}
	})
	n := newNetwork(t, memstore.New(), nil)
	first := provision(t, n, request(card.VISA, 0)).ID
	if second := provision(t, n, request(card.VISA, 0)).ID; second == first {
		t.Error("network tokens are shared without the option")
	}
}

func TestControl(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNetwork(t, memstore.New(), nil)
		m := &mailbox{start: time.Now()}
		feed(t, n, m.sink)
		c := n.Control()
		r := request(card.Discover, 0)
		first := provision(t, n, r)
		var last time.Time
		for _, step := range []struct {
			name   string
			f      func(context.Context, uuid.UUID) error
			notice string // "" means no effect
			state  network.Status
			expiry int
		}{
			{"Resume", c.Resume, "", active, 2030},
			{"Suspend", c.Suspend, "suspended@0s", inactive, 2030},
			{"Suspend again", c.Suspend, "", inactive, 2030},
			{"Renew", c.Renew, "renewed@0s", inactive, 2033},
			{"Resume", c.Resume, "resumed@0s", active, 2033},
			{"Replace", c.Replace, "replaced@0s", active, 2037},
			{"Invalidate", c.Invalidate, "invalidated@0s", deleted, 2037},
		} {
			if err := step.f(t.Context(), r.TokenID); err != nil {
				t.Fatalf("%s = %v", step.name, err)
			}
			synctest.Wait()
			// In a bubble all of this happens at the same instant.
			for _, notice := range m.got {
				if !notice.OccurredAt.After(last) {
					t.Errorf("%s is not later than the step before", step.name)
				}
				last = notice.OccurredAt
			}
			var want []string
			if step.notice != "" {
				want = []string{step.notice}
			}
			if got := m.take(); !slices.Equal(got, want) {
				t.Errorf("%s: notices are %v, want %v", step.name, got, want)
			}
			if got := lookup(t, n, first.ID); got.State != step.state || got.Card.Expiry.Year != step.expiry {
				t.Errorf("%s: %+v, %+v", step.name, got, got.Card)
			}
		}
		for _, f := range []func(context.Context, uuid.UUID) error{c.Suspend, c.Resume, c.Delete, c.Invalidate, c.Replace, c.Renew} {
			if err := f(t.Context(), r.TokenID); !errors.Is(err, simnet.ErrUnknownToken) {
				t.Errorf("on a deleted network token: %v", err)
			}
			if err := f(t.Context(), uuid.New()); !errors.Is(err, simnet.ErrUnknownToken) {
				t.Errorf("on an unknown token: %v", err)
			}
		}
		_, err := n.Provision(t.Context(), again(r, 2))
		if err == nil {
			err = c.Delete(t.Context(), r.TokenID)
		}
		synctest.Wait()
		if got := m.take(); err != nil || !slices.Equal(got, []string{"deleted@0s"}) {
			t.Errorf("Delete of the second network token = %v, notices %v", err, got)
		}
		// A refused provisioning leaves nothing to control.
		refused := request(card.VISA, 13)
		if _, err := n.Provision(t.Context(), refused); err == nil {
			t.Error("Provision of 013 succeeded at once")
		}
		if err := c.Suspend(t.Context(), refused.TokenID); !errors.Is(err, simnet.ErrUnknownToken) {
			t.Errorf("on a refused token: %v", err)
		}
	})
}

// Issuer and cardholder suspend independently.
func TestSuspender(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	r := request(card.VISA, 0)
	ref := network.Ref{ID: provision(t, n, r).ID}
	both := network.OwnersOf(network.OwnerIssuer, network.OwnerCardholder)
	for i, step := range []struct {
		f     func() error
		by    network.Owners
		state network.Status
	}{
		{func() error { return n.Suspend(t.Context(), ref) }, network.OwnersOf(network.OwnerCardholder), inactive},
		{func() error { return n.Suspend(t.Context(), ref) }, network.OwnersOf(network.OwnerCardholder), inactive},
		{func() error { return n.Control().Suspend(t.Context(), r.TokenID) }, both, inactive},
		{func() error { return n.Resume(t.Context(), ref) }, network.OwnersOf(network.OwnerIssuer), inactive},
		{func() error { return n.Resume(t.Context(), ref) }, network.OwnersOf(network.OwnerIssuer), inactive},
		{func() error { return n.Control().Resume(t.Context(), r.TokenID) }, 0, active},
		{func() error { return n.Delete(t.Context(), ref) }, 0, deleted},
		{func() error { return n.Delete(t.Context(), ref) }, 0, deleted},
	} {
		if err := step.f(); err != nil {
			t.Fatalf("step %d = %v", i, err)
		}
		if got := lookup(t, n, ref.ID); got.State != step.state || got.SuspendedBy != step.by {
			t.Errorf("step %d: %v, suspended by %b", i, got.State, got.SuspendedBy)
		}
	}
	wantRefusal(t, "Suspend of a deleted one", n.Suspend(t.Context(), ref), network.SourceScheme, "declined")
	waiting := provision(t, n, request(card.VISA, 1)).ID
	wantRefusal(t, "Suspend of a pending one", n.Suspend(t.Context(), network.Ref{ID: waiting}), network.SourceScheme, "declined")
}

// Due changes continue in the next process with the state.
func TestRestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		n := newNetwork(t, s, nil)
		m := &mailbox{start: time.Now()}
		stop := feed(t, n, m.sink)
		first := provision(t, n, request(card.VISA, 31))
		early := provision(t, n, request(card.VISA, 1))
		<-time.After(3 * time.Second)
		synctest.Wait()
		stop()
		if got := m.take(); !slices.Equal(got, []string{"suspended@2s", "activated@2s"}) && !slices.Equal(got, []string{"activated@2s", "suspended@2s"}) {
			t.Errorf("notices at first are %v", got)
		}
		n = newNetwork(t, s, nil)
		if a, b := lookup(t, n, first.ID).State, lookup(t, n, early.ID).State; a != inactive || b != active {
			t.Errorf("states are %v and %v", a, b)
		}
		feed(t, n, m.sink)
		<-time.After(10 * time.Second)
		if got := m.take(); !slices.Equal(got, []string{"resumed@4s"}) {
			t.Errorf("notices later are %v", got)
		}
		if got := lookup(t, n, first.ID).State; got != active {
			t.Errorf("state is %v", got)
		}
	})
}

func TestAdvance(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNetwork(t, memstore.New(), nil)
		m := &mailbox{start: time.Now()}
		feed(t, n, m.sink)
		first := provision(t, n, request(card.VISA, 31))
		synctest.Wait()
		n.Advance(3 * time.Second)
		synctest.Wait()
		if got := m.take(); !slices.Equal(got, []string{"suspended@0s"}) {
			t.Errorf("notices are %v", got)
		}
		if got := lookup(t, n, first.ID); got.State != inactive || !got.StateAt.Equal(time.Now().Add(2*time.Second)) {
			t.Errorf("%v since %v", got.State, got.StateAt)
		}
		<-time.After(time.Second)
		synctest.Wait()
		if got := m.take(); !slices.Equal(got, []string{"resumed@1s"}) {
			t.Errorf("notices are %v", got)
		}
	})
}

// A notice that sink fails for is repeated after 0.1, 0.2, … 5 s. It delays later notices
// of its network token only.
func TestFeedRetries(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNetwork(t, memstore.New(), nil)
		bad := provision(t, n, request(card.VISA, 31)).ID
		good := provision(t, n, request(card.VISA, 31)).ID
		m := &mailbox{start: time.Now()}
		failures := 0
		var tries []time.Duration
		feed(t, n, func(ctx context.Context, notice *network.Notice) error {
			if notice.Token.ID == bad && failures < 13 {
				failures++
				tries = append(tries, time.Since(m.start))
				return errors.New("store: unavailable")
			}
			if err := m.sink(ctx, notice); err != nil {
				return err
			}
			m.got[len(m.got)-1].SchemeCode = map[string]string{bad: "bad", good: "good"}[notice.Token.ID]
			return nil
		})
		<-time.After(time.Minute)
		synctest.Wait()
		var got []string
		for i, notice := range m.got {
			got = append(got, fmt.Sprintf("%s %s@%v", notice.SchemeCode, kinds[notice.Kind], m.at[i]))
		}
		want := []string{"good suspended@2s", "good resumed@4s", "bad suspended@43.3s", "bad resumed@43.3s"}
		if !slices.Equal(got, want) {
			t.Errorf("notices are %v, want %v", got, want)
		}
		var pauses []time.Duration
		for i := 1; i < len(tries); i++ {
			pauses = append(pauses, (tries[i]-tries[i-1])/time.Millisecond)
		}
		if want := []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000, 5000, 5000}; !slices.Equal(pauses, want) {
			t.Errorf("pauses are %d, want %d", pauses, want)
		}
	})
}

// A notice about a network token that the vault does not know is dropped after 30 s. A
// vault that stores the network token in time receives it.
func TestFeedNotFound(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNetwork(t, memstore.New(), nil)
		unknown := provision(t, n, request(card.VISA, 30)).ID
		m := &mailbox{start: time.Now()}
		calls, last := 0, time.Duration(0)
		feed(t, n, func(ctx context.Context, notice *network.Notice) error {
			if notice.Token.ID == unknown || time.Since(m.start) < 20*time.Second {
				calls++
				last = time.Since(m.start)
				return fmt.Errorf("vault: %w", cardvault.ErrNotFound)
			}
			return m.sink(ctx, notice)
		})
		late := provision(t, n, request(card.VISA, 1)).ID
		<-time.After(time.Hour)
		synctest.Wait()
		if len(m.got) != 1 || m.got[0].Token.ID != late || m.at[0] > 26*time.Second {
			t.Errorf("notices are %v", m.take())
		}
		if last < 32*time.Second || last > 37*time.Second || calls > 40 {
			t.Errorf("%d calls, the last after %v", calls, last)
		}
		if got := lookup(t, n, unknown).State; got != inactive {
			t.Errorf("state is %v", got)
		}
	})
}

// After a vault deletes a network token there are no more notices about it.
func TestFeedAfterDelete(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNetwork(t, memstore.New(), nil)
		m := &mailbox{start: time.Now()}
		stop := feed(t, n, m.sink)
		for _, code := range []int{1, 30, 33} {
			if err := n.Delete(t.Context(), network.Ref{ID: provision(t, n, request(card.VISA, code)).ID}); err != nil {
				t.Fatal(err)
			}
		}
		r := request(card.VISA, 31)
		provision(t, n, r)
		<-time.After(time.Second)
		if err := n.Control().Delete(t.Context(), r.TokenID); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if got := m.take(); !slices.Equal(got, []string{"deleted@1s"}) {
			t.Errorf("notices are %v", got)
		}
		stop()
		r = request(card.VISA, 0)
		ref := network.Ref{ID: provision(t, n, r).ID}
		if err := errors.Join(n.Control().Suspend(t.Context(), r.TokenID), n.Delete(t.Context(), ref)); err != nil {
			t.Fatal(err)
		}
		feed(t, n, m.sink)
		synctest.Wait()
		if got := m.take(); got != nil {
			t.Errorf("notices are %v", got)
		}
	})
}

// A notice delivered as ctx ended is not repeated. Others are delivered by the next Feed at
// once.
func TestFeedEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNetwork(t, memstore.New(), nil)
		r := request(card.VISA, 0)
		provision(t, n, r)
		if err := errors.Join(n.Control().Suspend(t.Context(), r.TokenID), n.Control().Resume(t.Context(), r.TokenID)); err != nil {
			t.Fatal(err)
		}
		for _, answer := range []error{nil, context.Canceled} {
			ctx, cancel := context.WithCancel(t.Context())
			err := n.Feed(ctx, nil, func(context.Context, *network.Notice) error {
				cancel()
				return answer
			})
			if err != nil {
				t.Errorf("Feed = %v", err)
			}
		}
		m := &mailbox{start: time.Now()}
		feed(t, n, m.sink)
		synctest.Wait()
		if got := m.take(); !slices.Equal(got, []string{"resumed@0s"}) {
			t.Errorf("notices are %v", got)
		}
	})
}

// Two vaults that feed from one simulator lose nothing, and a slow vault delays only
// itself.
func TestTwoFeeds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNetwork(t, memstore.New(), nil)
		m := &mailbox{start: time.Now()}
		slow := make(chan struct{})
		defer close(slow)
		feed(t, n, func(ctx context.Context, _ *network.Notice) error {
			select {
			case <-slow:
			case <-ctx.Done():
			}
			return errors.New("gone")
		})
		feed(t, n, m.sink)
		want := map[string]bool{}
		for range 200 {
			want[provision(t, n, request(card.VISA, 1)).ID] = true
		}
		<-time.After(time.Minute)
		synctest.Wait()
		for _, notice := range m.got {
			delete(want, notice.Token.ID)
		}
		if len(want) != 0 {
			t.Errorf("%d notices are lost", len(want))
		}
	})
}

// A notice that another Feed has delivered meanwhile does not affect others.
func TestFeedOvertaken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNetwork(t, memstore.New(), nil)
		r := request(card.VISA, 0)
		provision(t, n, r)
		m := &mailbox{start: time.Now()}
		first, second, up := make(chan struct{}), make(chan struct{}), make(chan struct{})
		sink := func(gate chan struct{}) func(context.Context, *network.Notice) error {
			return func(ctx context.Context, notice *network.Notice) error {
				if notice.Kind == network.NoticeSuspended {
					<-gate
					return nil
				}
				select {
				case <-up:
					return m.sink(ctx, notice)
				default:
					return errors.New("not yet")
				}
			}
		}
		feed(t, n, sink(first))
		feed(t, n, sink(second))
		if err := n.Control().Suspend(t.Context(), r.TokenID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := n.Control().Resume(t.Context(), r.TokenID); err != nil {
			t.Fatal(err)
		}
		close(first)
		synctest.Wait()
		close(second)
		synctest.Wait()
		close(up)
		<-time.After(time.Minute)
		synctest.Wait()
		if got := m.take(); len(got) == 0 { // the other Feed may also have delivered it
			t.Errorf("notices are %v", got)
		}
	})
}

// A vault that does not feed loses the oldest notices of a network token, not the newest.
func TestBacklog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNetwork(t, memstore.New(), nil)
		r := request(card.VISA, 0)
		first := provision(t, n, r)
		for range 150 {
			for _, f := range []func(context.Context, uuid.UUID) error{n.Control().Suspend, n.Control().Resume} {
				if err := f(t.Context(), r.TokenID); err != nil {
					t.Fatal(err)
				}
			}
		}
		m := &mailbox{start: time.Now()}
		feed(t, n, m.sink)
		synctest.Wait()
		if len(m.got) != 100 {
			t.Fatalf("%d notices", len(m.got))
		}
		if last := m.got[99]; last.Kind != network.NoticeResumed || !last.OccurredAt.Equal(lookup(t, n, first.ID).StateAt) {
			t.Errorf("the last is %+v", last)
		}
	})
}

func TestClose(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n, err := simnet.Open(t.Context(), t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- n.Feed(t.Context(), nil, (&mailbox{}).sink) }()
		synctest.Wait()
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, store.ErrClosed) {
			t.Errorf("Feed = %v", err)
		}
	})
}

// A Control finds the latest of many network tokens of a token.
func TestControlLatest(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	r := request(card.VISA, 0)
	for i := range 150 {
		provision(t, n, again(r, i))
		if err := n.Control().Delete(t.Context(), r.TokenID); err != nil {
			t.Fatalf("Delete of network token %d = %v", i, err)
		}
	}
	for i := range 20 {
		provision(t, n, again(r, 1000+i))
		n.Advance(time.Second)
		last := provision(t, n, again(r, 2000+i)).ID
		if err := n.Control().Delete(t.Context(), r.TokenID); err != nil {
			t.Fatal(err)
		}
		if got := lookup(t, n, last).State; got != deleted {
			t.Fatalf("the latest network token is %v", got)
		}
		n.Advance(time.Second)
	}
	r = request(card.VISA, 32)
	provision(t, n, r)
	n.Advance(2 * time.Second)
	if err := n.Control().Suspend(t.Context(), r.TokenID); !errors.Is(err, simnet.ErrUnknownToken) {
		t.Errorf("Suspend of a network token that the issuer has deleted = %v", err)
	}
}

func BenchmarkProvision(b *testing.B) {
	n := newNetwork(b, memstore.New(), nil)
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := n.Provision(b.Context(), request(card.VISA, 0)); err != nil {
				b.Error(err)
			}
		}
	})
}
