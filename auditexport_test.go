package cardvault_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A viewed store calls act before one of the reads that follow.
type viewed struct {
	store.Store

	mu   sync.Mutex
	left int // reads until then
	act  func()
}

func (s *viewed) View(ctx context.Context, fn func(store.ReadTx) error) error {
	s.mu.Lock()
	s.left--
	act := s.act
	if s.left != 0 || act == nil {
		act = func() {}
	}
	s.mu.Unlock()
	act()
	return s.Store.View(ctx, fn)
}

// TestAuditExportMeanwhile: an export has each record that was stored when it began, also if
// another process writes the checkpoint of it before any of the reads of the export.
func TestAuditExportMeanwhile(t *testing.T) {
	reached := true
	for read := 1; reached; read++ {
		t.Run(fmt.Sprint(read), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := &viewed{Store: memstore.New()}
				v, other := openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox), openAudited(t, s.Store, &cardvault.AuditOptions{}, cardvault.Sandbox)
				v.export()
				token := other.importCard()
				reached = false
				s.left, s.act = read, func() {
					reached = true
					other.export()
				}

				var imported []uuid.UUID
				each := func(r *audit.Record) error {
					if r.Operation == "token.import" {
						imported = append(imported, r.ObjectID)
					}
					return nil
				}
				export := v.export()
				s.left = 0 // what follows is not of the export
				_, err := audit.Verify(bytes.NewReader(export), &audit.VerifyOptions{PublicKeys: v.AuditPublicKeys(), Each: each, Open: each})
				if err != nil || !slices.Equal(imported, []uuid.UUID{token.ID}) {
					t.Errorf("the export has the imports %v of %v, %v", imported, token.ID, err)
				}
				if !reached && read < 4 {
					t.Errorf("an export makes %d reads", read-1)
				}
				noErr(t, v.Close())
				noErr(t, other.Close())
			})
		})
	}
}
