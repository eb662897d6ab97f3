package cardvault_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A stepper is a store that commits Updates only when the test says so, in groups and in
// their order of arrival.
type stepper struct {
	store.Store
	mu      sync.Mutex
	holding bool
	queue   []chan struct{} // closed when the Update may continue
	longest int             // longest queue so far
}

func (s *stepper) Update(ctx context.Context, fn func(store.Tx) error) error {
	s.mu.Lock()
	if !s.holding {
		s.mu.Unlock()
		return s.Store.Update(ctx, fn)
	}
	turn := make(chan struct{})
	s.queue = append(s.queue, turn)
	s.longest = max(s.longest, len(s.queue))
	s.mu.Unlock()
	<-turn
	return s.Store.Update(ctx, fn)
}

// step commits a group of at most 256 and waits until nothing moves.
func (s *stepper) step() {
	s.mu.Lock()
	n := min(256, len(s.queue))
	for _, turn := range s.queue[:n] {
		close(turn)
	}
	s.queue = s.queue[n:]
	s.mu.Unlock()
	synctest.Wait()
}

// steps commits groups until a call has ended, and returns their number.
func (s *stepper) steps(ended <-chan error) (n int, err error) {
	for ; n < 1000; n++ {
		select {
		case err := <-ended:
			return n, err
		default:
			s.step()
		}
	}
	return n, errors.New("the call has not ended")
}

// hold makes the store hold back Updates until the test ends.
func (s *stepper) hold(l *lab) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = true
	l.Cleanup(func() {
		for s.step(); len(s.queue) > 0; {
			s.step()
		}
	})
}

// inGate runs f in a bubble on a vault whose store is a stepper.
func inGate(t *testing.T, f func(l *lab, s *stepper)) {
	inLab(t, nil, func(l *lab) {
		s := &stepper{Store: memstore.New()}
		l.Vault = l.on(s)
		f(l, s)
	})
}

func (l *lab) newAccount() *cardvault.Vault {
	l.Helper()
	a, err := l.CreateAccount(l.Context(), "", nil)
	l.must(err)
	return l.In(a.ID)
}

// calls makes a call that writes once, and returns its result when it ends.
func calls(ctx context.Context, v *cardvault.Vault) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := v.CreateMerchant(ctx, "one more", nil)
		ended <- err
	}()
	synctest.Wait()
	return ended
}

// flood makes n calls of an account at the same time.
func (l *lab) flood(v *cardvault.Vault, n int, done func()) {
	for range n {
		go func() {
			if _, err := v.CreateMerchant(l.Context(), "flood", nil); err == nil { // fails when the test has ended
				done()
			}
		}()
	}
	synctest.Wait()
}

// TestFloodOfOne: however many calls of one account wait, calls of another account are
// served within a few groups. So is the revocation of the account's own key.
func TestFloodOfOne(t *testing.T) {
	inGate(t, func(l *lab, s *stepper) {
		loud, quiet := l.newAccount(), l.newAccount()
		key, err := loud.CreateAPIKey(l.Context(), "stolen", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
		l.must(err)
		const most = 3 // two groups are at the store, the next has one of each account
		s.hold(l)
		l.flood(loud, 4096, func() {})
		for range 3 {
			if n, err := s.steps(calls(l.Context(), quiet)); n > most || err != nil {
				l.Errorf("a call of another account took %d groups, %v", n, err)
			}
		}
		revoked := make(chan error, 1)
		go func() { revoked <- loud.DeleteAPIKey(l.Context(), key.ID) }()
		synctest.Wait()
		if n, err := s.steps(revoked); n > most || err != nil {
			l.Errorf("revoking a key of the account took %d groups, %v", n, err)
		}
		if s.longest > 512 {
			l.Errorf("%d Updates were at the store at the same time", s.longest)
		}
		if n, err := s.steps(calls(l.Context(), loud)); n < 2 || n > 4096/256+1 || err != nil {
			l.Errorf("the last call of the account took %d more groups, %v", n, err)
		}
	})
}

// TestFloodOfConsumes: a key that floods the vault with consumptions is revoked within a few
// groups too.
func TestFloodOfConsumes(t *testing.T) {
	inGate(t, func(l *lab, s *stepper) {
		loud := l.newAccount()
		key, err := loud.CreateAPIKey(l.Context(), "stolen", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
		l.must(err)
		var cards []uuid.UUID
		for range 2048 {
			card, err := loud.Import(l.Context(), visa, nil)
			l.must(err)
			cards = append(cards, card.ID)
		}
		s.hold(l)
		for _, id := range cards {
			go func() { _, _ = loud.Consume(l.Context(), id, nil) }() // the test ends first
		}
		synctest.Wait()
		revoked := make(chan error, 1)
		go func() { revoked <- loud.DeleteAPIKey(l.Context(), key.ID) }()
		synctest.Wait()
		if n, err := s.steps(revoked); n > 3 || err != nil {
			l.Errorf("revoking a key of the account took %d groups, %v", n, err)
		}
	})
}

// TestFloodOfMany: accounts take turns.
func TestFloodOfMany(t *testing.T) {
	const accounts, each = 1000, 8
	inGate(t, func(l *lab, s *stepper) {
		var vaults [accounts]*cardvault.Vault
		for i := range vaults {
			vaults[i] = l.newAccount()
		}
		quiet := l.newAccount()
		s.hold(l)
		var done [accounts]atomic.Int32
		for i, v := range vaults { // one after the other, each with all its calls
			l.flood(v, each, func() { done[i].Add(1) })
		}
		late := calls(l.Context(), quiet)

		const round = accounts/256 + 1 // groups
		for range 2 {                  // commits the Updates already at the store
			s.step()
		}
		for n := range int32(each - 1) {
			for range round {
				s.step()
			}
			for i := range done {
				if turns := done[i].Load(); turns <= n {
					l.Fatalf("account %d has had %d turns after %d rounds", i, turns, n+1)
				}
			}
			if n == 0 {
				select {
				case err := <-late:
					l.must(err)
				default:
					l.Fatal("the last account has had no turn in the first round")
				}
			}
		}
	})
}

// TestWaitingEnds: a call that waits for its turn ends with its context or with the vault,
// and passes its turn on.
func TestWaitingEnds(t *testing.T) {
	inGate(t, func(l *lab, s *stepper) {
		loud, quiet := l.newAccount(), l.newAccount()
		s.hold(l)
		l.flood(loud, 600, func() {})
		ctx, leave := context.WithCancel(l.Context())
		left, next := calls(ctx, quiet), calls(l.Context(), quiet)
		leave()
		synctest.Wait()
		select {
		case err := <-left:
			if !errors.Is(err, context.Canceled) {
				l.Errorf("a call whose caller has left: %v", err)
			}
		default:
			l.Error("a call whose caller has left still waits")
		}
		if n, err := s.steps(next); n > 3 || err != nil {
			l.Errorf("the next call took %d groups, %v", n, err)
		}
		if n, err := s.steps(calls(l.Context(), loud)); n > 3 || err != nil {
			l.Errorf("the last call took %d groups, %v", n, err)
		}

		l.flood(loud, 512, func() {})
		waits := calls(l.Context(), quiet)
		l.must(l.Close())
		synctest.Wait()
		select {
		case err := <-waits:
			if !errors.Is(err, cardvault.ErrClosed) {
				l.Errorf("a waiting call after the vault was closed: %v", err)
			}
		default:
			l.Error("a call still waits after the vault was closed")
		}
	})
}
