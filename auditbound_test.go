package cardvault_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// TestAuditBound: 8,192 records wait for a store that takes none. Then reads and uses of a card
// are refused, or go on and are counted, and no record that waits is lost, however long the
// store fails.
func TestAuditBound(t *testing.T) {
	const most = 8192
	for _, failure := range []cardvault.AuditFailure{cardvault.AuditRefuse, cardvault.AuditContinue} {
		t.Run(failure.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ctx, s := t.Context(), &unwritable{Store: memstore.New()}
				v := openAudited(t, s, &cardvault.AuditOptions{Reads: true, Failure: failure}, cardvault.Sandbox)
				token := v.importCard()
				time.Sleep(2 * time.Second)

				s.on.Store(true)
				for range most {
					_, err := v.Get(ctx, token.ID)
					noErr(t, err)
				}
				used := false
				_, read := v.Get(ctx, token.ID)
				use := v.Use(ctx, token.ID, "test", func(context.Context, *cardvault.UsedCard) error {
					used = true
					return nil
				})
				for _, err := range []error{read, use} {
					if refused := errors.Is(err, cardvault.ErrUnavailable); refused != (failure == cardvault.AuditRefuse) || !refused && err != nil {
						t.Errorf("a call returned %v", err)
					}
				}
				if used != (failure == cardvault.AuditContinue) {
					t.Errorf("the card was used: %t", used)
				}
				if _, err := v.Get(ctx, uuid.New()); !errors.Is(err, cardvault.ErrNotFound) {
					t.Errorf("a refused call returned %v", err)
				}
				time.Sleep(time.Minute)

				s.on.Store(false)
				time.Sleep(2 * time.Second)
				_, err := v.Get(ctx, token.ID)
				noErr(t, err)
				time.Sleep(2 * time.Second)
				reads, lost := 0, uint64(0)
				_, records := v.verified()
				for _, r := range records {
					if r.Operation == "token.read" && r.Outcome == audit.Success {
						reads++
					}
				}
				_, records = (&audited{v.In(uuid.Nil), t, s}).verified()
				for _, r := range records {
					if r.Operation == "audit.lost" {
						lost += r.Calls
					}
				}
				if reads != most+1 || lost != 3 {
					t.Errorf("%d reads have a record, and %d calls are counted", reads, lost)
				}
				noErr(t, v.Close())
			})
		})
	}
}

// A stalled store has writes wait while on is set, until it is released, and then fail.
type stalled struct {
	*memstore.Store
	on      atomic.Bool
	release chan struct{}
}

func (s *stalled) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.on.Load() {
		<-s.release
		return store.ErrUnavailable
	}
	return s.Store.Update(ctx, fn)
}

// TestAuditInFlight: records that are being written keep their places, since the write may fail.
// A card that is used meanwhile would take one of them, and lose its own record.
func TestAuditInFlight(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const most = 8192
		ctx, s := t.Context(), &stalled{Store: memstore.New(), release: make(chan struct{})}
		v := openAudited(t, s, &cardvault.AuditOptions{Reads: true, Failure: cardvault.AuditRefuse}, cardvault.Sandbox)
		token := v.importCard()
		time.Sleep(2 * time.Second)

		s.on.Store(true)
		for range most {
			_, err := v.Get(ctx, token.ID)
			noErr(t, err)
		}
		time.Sleep(2 * time.Second) // they are being written
		used := false
		err := v.Use(ctx, token.ID, "test", func(context.Context, *cardvault.UsedCard) error {
			used = true
			return nil
		})
		if !errors.Is(err, cardvault.ErrUnavailable) || used {
			t.Errorf("Use returned %v, the card was used: %t", err, used)
		}

		close(s.release)
		s.on.Store(false)
		time.Sleep(5 * time.Second)
		noErr(t, v.Use(ctx, token.ID, "test", func(context.Context, *cardvault.UsedCard) error { return nil }))
		time.Sleep(2 * time.Second)
		reads, uses := 0, 0
		_, records := v.verified()
		for _, r := range records {
			if r.Outcome == audit.Success {
				switch r.Operation {
				case "token.read":
					reads++
				case "card.use":
					uses++
				}
			}
		}
		if reads != most || uses != 1 {
			t.Errorf("%d reads and %d uses have a record", reads, uses)
		}
		noErr(t, v.Close())
	})
}

// TestAuditTenantFloods: the reads of one tenant fill its own places alone. The calls of another
// are neither refused nor without a record, and neither are those of unknown callers.
func TestAuditTenantFloods(t *testing.T) {
	for _, failure := range []cardvault.AuditFailure{cardvault.AuditRefuse, cardvault.AuditContinue} {
		t.Run(failure.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ctx, s := t.Context(), &unwritable{Store: memstore.New()}
				v := openAudited(t, s, &cardvault.AuditOptions{Reads: true, Failure: failure}, cardvault.Sandbox)
				other, err := v.CreateAccount(ctx, "other", nil)
				noErr(t, err)
				neighbour := &audited{v.In(other.ID), t, s}
				token, theirs := v.importCard(), neighbour.importCard()
				time.Sleep(2 * time.Second)

				s.on.Store(true)
				refused := 0
				for range 20_000 {
					if _, err := v.Get(ctx, token.ID); err != nil {
						refused++
					}
				}
				if want := 20_000 - 8192; failure == cardvault.AuditRefuse && refused != want {
					t.Errorf("%d reads are refused, want %d", refused, want)
				}
				const calls = 1000
				for range calls {
					_, err := neighbour.Get(ctx, theirs.ID)
					noErr(t, err)
				}
				used := false
				noErr(t, neighbour.Use(ctx, theirs.ID, "test", func(context.Context, *cardvault.UsedCard) error {
					used = true
					return nil
				}))
				if _, err := v.Authenticate(ctx, "vk_test_nothing"); !errors.Is(err, cardvault.ErrUnauthenticated) {
					t.Error(err)
				}
				time.Sleep(time.Minute)

				s.on.Store(false)
				time.Sleep(3 * time.Second)
				got := map[string]int{}
				for _, of := range []*audited{neighbour, {v.In(uuid.Nil), t, s}} {
					_, records := of.verified()
					for _, r := range records {
						got[r.Operation]++
					}
				}
				if got["token.read"] != calls || got["card.use"] != 1 || got["authenticate"] != 1 || !used {
					t.Errorf("records are %v", got)
				}
				noErr(t, v.Close())
			})
		})
	}
}
