package cardvault_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/bubble"
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
