package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
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

// An unwritable store refuses writes, while it is on.
type unwritable struct {
	*memstore.Store
	on atomic.Bool
}

func (s *unwritable) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.on.Load() {
		return store.ErrUnavailable
	}
	return s.Store.Update(ctx, fn)
}

// A firstByte calls first before it takes the first byte.
type firstByte struct {
	n     int
	first func()
}

func (w *firstByte) Write(p []byte) (int, error) {
	if w.n == 0 && len(p) > 0 && w.first != nil {
		w.first()
	}
	w.n += len(p)
	return len(p), nil
}

// leaving are the calls with which much leaves a vault, by their operations.
var leaving = map[string]func(*audited, io.Writer) error{
	"vault.backup": func(v *audited, w io.Writer) error {
		_, err := v.Backup(v.t.Context(), w, nil)
		return err
	},
	"audit.export": func(v *audited, w io.Writer) error {
		return v.In(uuid.Nil).ExportAudit(v.t.Context(), w, time.Time{}, time.Time{})
	},
}

// TestAuditFirst: a backup and an export have their record, which other processes see, before
// the first byte leaves.
func TestAuditFirst(t *testing.T) {
	for operation, call := range leaving {
		t.Run(operation, func(t *testing.T) {
			s := memstore.New()
			v, other := openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox), openAudited(t, s, nil, cardvault.Sandbox)
			defer v.Close()
			defer other.Close()
			before := len(other.rows(auditRecords))
			w := &firstByte{first: func() {
				if n := len(other.rows(auditRecords)); n <= before {
					t.Errorf("%d records are stored, as before", n)
				}
				page, err := v.In(uuid.Nil).AuditRecords(t.Context(), &cardvault.AuditQuery{Operation: operation})
				noErr(t, err)
				if got := ops(page.Records); !slices.Equal(got, []string{operation + " success"}) {
					t.Errorf("before the first byte the log has %q", got)
				}
			}}
			if err := call(v, w); err != nil || w.n == 0 {
				t.Errorf("%d bytes, %v", w.n, err)
			}
		})
	}
}

// TestAuditNothingLeaves: no byte of a backup or an export leaves a vault whose store or sink
// takes no record of it, unless calls go on without records.
func TestAuditNothingLeaves(t *testing.T) {
	for _, failure := range []cardvault.AuditFailure{cardvault.AuditRefuse, cardvault.AuditContinue} {
		for _, fails := range []string{"store", "sink"} {
			t.Run(failure.String()+"/"+fails, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					s, k := &unwritable{Store: memstore.New()}, new(keeper)
					v := openAudited(t, s, &cardvault.AuditOptions{Sink: k, Failure: failure}, cardvault.Sandbox)
					time.Sleep(2 * time.Second)
					if fails == "sink" {
						k.mu.Lock()
						k.fails = errors.New("disk is full")
						k.mu.Unlock()
						v.importCard()
						time.Sleep(2 * time.Minute)
					}
					s.on.Store(fails == "store")

					for operation, call := range leaving {
						w := new(firstByte)
						err := call(v, w)
						switch {
						case failure == cardvault.AuditRefuse:
							if !errors.Is(err, cardvault.ErrUnavailable) || w.n > 0 {
								t.Errorf("%s: %d bytes left, %v", operation, w.n, err)
							}
						case operation == "audit.export" && fails == "store": // what is exported has to be written
							if err == nil || w.n > 0 {
								t.Errorf("%s: %d bytes left, %v", operation, w.n, err)
							}
						case err != nil || w.n == 0:
							t.Errorf("%s: %d bytes left, %v", operation, w.n, err)
						}
					}
					s.on.Store(false)
					noErr(t, v.Close())
				})
			})
		}
	}
}
