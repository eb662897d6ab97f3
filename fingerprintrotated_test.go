package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// fingerprintTerms returns the states of the fingerprint keys, and the tokens under each.
func fingerprintTerms(t *testing.T, v *cardvault.Vault) (states []cardvault.TermState, tokens []int64) {
	t.Helper()
	report, err := v.KeyReport(t.Context())
	noErr(t, err)
	for _, k := range report.Others {
		if k.Series == cardvault.SeriesFingerprint {
			states, tokens = append(states, k.State), append(tokens, k.Records["token"])
		}
	}
	return states, tokens
}

func rotateFingerprints(t *testing.T, v *cardvault.Vault) {
	t.Helper()
	_, err := v.RotateSeries(t.Context(), cardvault.SeriesFingerprint, nil)
	noErr(t, err)
}

// numbered returns the card of a number.
func numberedCard(n int) cardvault.Card {
	return cardvault.Card{PAN: card.NewPAN([]byte(resealed(n))), Expiry: card.Expiry{Month: 12, Year: 2060}}
}

// A ledgerOfTokens is what has to be found while fingerprint keys are rotated.
type ledgerOfTokens struct {
	mu     sync.Mutex
	cardOf map[uuid.UUID]int // tokens that exist
}

func (l *ledgerOfTokens) of(card int) map[uuid.UUID]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[uuid.UUID]bool{}
	for id, n := range l.cardOf {
		if n == card {
			all[id] = true
		}
	}
	return all
}

func (l *ledgerOfTokens) set(id uuid.UUID, card int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cardOf[id] = card
}

func (l *ledgerOfTokens) drop(r *rand.Rand, anchors []uuid.UUID) (uuid.UUID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := slices.SortedFunc(maps.Keys(l.cardOf), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	ids = slices.DeleteFunc(ids, func(id uuid.UUID) bool { return slices.Contains(anchors, id) })
	if len(ids) == 0 {
		return uuid.Nil, false
	}
	id := ids[r.IntN(len(ids))]
	delete(l.cardOf, id)
	return id, true
}

// TestFingerprintsRotated: while two processes import, replace and delete cards, and keys are
// rotated one after the other, the fingerprint of a card finds all of its tokens and no others, at every
// moment. All that exist at a time show one fingerprint a card.
func TestFingerprintsRotated(t *testing.T) {
	const cards, rotations = 3, 3
	seeds := uint64(4)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		bubble.Test(t, func(t *testing.T) {
			s := memstore.New()
			var vaults []*cardvault.Vault
			for range 2 {
				v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{Mode: cardvault.Sandbox})
				noErr(t, err)
				vaults = append(vaults, v)
			}
			known := &ledgerOfTokens{cardOf: map[uuid.UUID]int{}}
			var anchors []uuid.UUID
			for n := range cards {
				token, err := vaults[0].Import(t.Context(), numberedCard(n), nil)
				noErr(t, err)
				anchors = append(anchors, token.ID)
				known.set(token.ID, n)
			}

			ctx, stop := context.WithCancel(t.Context())
			var group sync.WaitGroup
			for _, v := range vaults {
				group.Go(func() { _ = v.Run(ctx) })
			}
			for worker := range 6 {
				group.Go(func() {
					r, v := rand.New(rand.NewPCG(seed, uint64(worker))), vaults[worker%2]
					for ctx.Err() == nil {
						time.Sleep(time.Duration(r.IntN(9000)) * time.Millisecond)
						if err := step(t.Context(), v, r, known, anchors, cards); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}

			for n := range rotations {
				time.Sleep(time.Duration(seed) * 7 * time.Second)
				rotateFingerprints(t, vaults[n%2])
				if _, err := vaults[1].RotateSeries(t.Context(), cardvault.SeriesFingerprint, nil); !errors.Is(err, cardvault.ErrRotating) {
					t.Error("two rotations at a time:", err)
				}
				time.Sleep(10 * time.Minute)
				states, tokens := fingerprintTerms(t, vaults[0])
				if len(states) != n+2 || states[n] != cardvault.TermDestroyed || tokens[n] != 0 || states[n+1] != cardvault.TermActive || tokens[n+1] < cards {
					t.Errorf("after rotation %d: %v, %v", n, states, tokens)
				}
			}
			stop()
			group.Wait()
			for _, v := range vaults {
				noErr(t, v.Close())
			}
		})
	}
}

// step makes one call, or checks what all tokens of a card show.
func step(ctx context.Context, v *cardvault.Vault, r *rand.Rand, known *ledgerOfTokens, anchors []uuid.UUID, cards int) error {
	n := r.IntN(cards)
	switch r.IntN(4) {
	case 0:
		token, err := v.Import(ctx, numberedCard(n), &cardvault.ImportOptions{Bulk: true})
		if err == nil {
			known.set(token.ID, n)
		}
		return err
	case 1:
		if id, ok := known.drop(r, anchors); ok {
			if r.IntN(2) == 0 {
				return v.Delete(ctx, id)
			}
			_, err := v.Replace(ctx, id, numberedCard(n), nil)
			if err == nil {
				known.set(id, n)
			}
			return err
		}
		return nil
	}

	before := known.of(n)
	anchor, err := v.Get(ctx, anchors[n])
	if err != nil {
		return err
	}
	found := map[uuid.UUID]bool{}
	for token, err := range v.All(ctx, &cardvault.TokenListOptions{Fingerprint: anchor.Fingerprint}) {
		if err != nil {
			return err
		}
		if found[token.ID] = true; token.Fingerprint != anchor.Fingerprint {
			if again, err := v.Get(ctx, anchors[n]); err == nil && again.Fingerprint == anchor.Fingerprint {
				return fmt.Errorf("two tokens of a card show %v and %v", token.Fingerprint, anchor.Fingerprint)
			}
		}
	}
	if again, err := v.Get(ctx, anchors[n]); err != nil || again.Fingerprint != anchor.Fingerprint {
		return err
	}
	for id := range known.of(n) {
		if before[id] && !found[id] {
			return fmt.Errorf("the fingerprint of card %d does not find token %v", n, id)
		}
	}
	return nil
}

// A stoppedStore stops its process before a transaction, until it is let go on.
type stoppedStore struct {
	store.Store
	stop chan chan struct{} // receives what stops the next transaction
}

func (s stoppedStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	select {
	case stopped := <-s.stop:
		<-stopped
	default:
	}
	return s.Store.Update(ctx, fn)
}

// TestFingerprintOfStopped: a process that is stopped between making a fingerprint and storing
// it, for as long as a whole rotation takes, stores none of a former key.
func TestFingerprintOfStopped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		halted := stoppedStore{s, make(chan chan struct{}, 1)}
		open := func(s store.Store) *cardvault.Vault {
			v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{Mode: cardvault.Sandbox})
			noErr(t, err)
			return v
		}
		v, slow := open(s), open(halted)
		first := imported(t, slow) // which grants it seals
		number := cardvault.Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: visa.Expiry}

		stopped := make(chan struct{})
		halted.stop <- stopped
		made := make(chan *cardvault.Token, 1)
		go func() {
			token, err := slow.Import(t.Context(), number, nil)
			if err != nil {
				t.Error(err)
			}
			made <- token
		}()
		time.Sleep(time.Second)

		rotateFingerprints(t, v)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		noErr(t, v.Run(ctx))
		close(stopped)
		token := <-made

		again, err := v.Import(t.Context(), number, nil)
		noErr(t, err)
		if token == nil || again.Fingerprint != token.Fingerprint {
			t.Error("a stopped process has stored a fingerprint of a former key")
		}
		if states, tokens := fingerprintTerms(t, v); !slices.Equal(states, []cardvault.TermState{cardvault.TermDestroyed, cardvault.TermActive}) || !slices.Equal(tokens, []int64{0, 3}) {
			t.Errorf("%v, %v", states, tokens)
		}
		if is, err := v.Get(t.Context(), first.ID); err != nil || is.Fingerprint == first.Fingerprint || !is.UpdatedAt.Equal(first.UpdatedAt) {
			t.Errorf("%v, %+v", err, is)
		}
		noErr(t, slow.Close())
		noErr(t, v.Close())
	})
}

// A countedStore counts the records that Updates read.
type countedStore struct {
	store.Store
	gets *atomic.Int64
}

type countedTx struct {
	store.Tx
	gets *atomic.Int64
}

func (tx countedTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	tx.gets.Add(1)
	return tx.Tx.Get(kind, id)
}

func (s countedStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(countedTx{tx, s.gets}) })
}

// TestImportReads: an import reads no more records in its transaction while the fingerprint key
// or the lookup key is rotated than before.
func TestImportReads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := countedStore{memstore.New(), new(atomic.Int64)}
		v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), nil)
		noErr(t, err)
		defer v.Close()
		imports := func() {
			_, err := v.Import(t.Context(), numberedCard(1), &cardvault.ImportOptions{BusinessKey: "a"})
			noErr(t, err)
		}
		before := int64(0)
		counted := func(keys string) {
			t.Helper()
			imports() // which grants it seals
			s.gets.Store(0)
			imports()
			n := s.gets.Load()
			if before == 0 {
				before = n
			}
			if n != before {
				t.Errorf("with %s: %d reads, and %d with one key", keys, n, before)
			}
		}

		counted("one key")
		for _, series := range []cardvault.KeySeries{cardvault.SeriesFingerprint, cardvault.SeriesLookup} {
			_, err := v.RotateSeries(t.Context(), series, nil)
			noErr(t, err)
			counted("a pending key of " + string(series))
			for range 3 {
				noErr(t, v.Reseal(t.Context()))
				counted("a former key of " + string(series))
				time.Sleep(3 * time.Minute)
			}
		}
	})
}
