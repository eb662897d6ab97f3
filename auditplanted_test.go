package cardvault_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// TestAuditPlantedAhead: a row that is planted in the place of a later one of several checkpoints
// that are written together holds up neither the account's log nor other accounts.
func TestAuditPlantedAhead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, s := t.Context(), &partial{Store: memstore.New(), kind: auditCheckpoints, err: store.ErrUnavailable}
		v := openAudited(t, s, &cardvault.AuditOptions{Failure: cardvault.AuditRefuse}, cardvault.Sandbox)
		other, err := v.CreateAccount(ctx, "other", nil)
		noErr(t, err)
		neighbour := &audited{v.In(other.ID), t, s}
		neighbour.importCard()
		v.importCard()
		time.Sleep(2 * time.Second)
		account, err := v.Account(ctx)
		noErr(t, err)
		end := binary.BigEndian.Uint64(last(v.of(auditCheckpoints)).ID[8:])

		s.of.Store(map[uuid.UUID]bool{account.ID: true})
		for range 3 { // each is a segment that waits
			v.importCard()
			time.Sleep(1500 * time.Millisecond)
		}
		s.of.Store(map[uuid.UUID]bool{})
		v.plant(end + 2)
		time.Sleep(20 * time.Second)
		began := time.Now()
		neighbour.verified()
		if took := time.Since(began); took > time.Second {
			t.Errorf("an export of another account takes %v", took)
		}
		if now := binary.BigEndian.Uint64(last(v.of(auditCheckpoints)).ID[8:]); now <= end+2 {
			t.Errorf("no checkpoint behind %d, after %d", now, end)
		}
		v.broken()
		_ = v.Close()
	})
}

// TestAuditPromiseRemoved: records have their checkpoint although a writer of rows has removed the
// promise of it.
func TestAuditPromiseRemoved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := openAudited(t, memstore.New(), &cardvault.AuditOptions{}, cardvault.Sandbox)
		token := v.importCard()
		v.remove(v.of(auditSegments)[0])
		time.Sleep(2 * time.Second)
		v.importCard()
		time.Sleep(10 * time.Minute)
		noErr(t, v.Drain(t.Context()))
		_, records := v.verified()
		found := 0
		for _, r := range records {
			if r.ObjectID == token.ID {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%d records of the import are in the export", found)
		}
		_ = v.Close()
	})
}

// TestAuditPromisePostponed: a promise that a writer of rows has put off is kept in time, by the
// background work as by an export.
func TestAuditPromisePostponed(t *testing.T) {
	for _, drains := range []bool{true, false} {
		bubble.Test(t, func(t *testing.T) {
			s := memstore.New()
			dying := &killable{Store: s}
			first := openAudited(t, dying, &cardvault.AuditOptions{}, cardvault.Sandbox)
			for range 5 {
				time.Sleep(time.Millisecond)
				first.importCard()
			}
			dying.dead.Store(true)
			_ = first.Close()

			v := openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox)
			r := v.of(auditSegments)[0].Clone()
			r.Due = time.Time{}
			v.put(r)
			time.Sleep(3 * time.Minute)
			if drains {
				noErr(t, v.Drain(t.Context()))
			} else {
				v.verified()
			}
			v.remove(v.of(auditRecords)[3])
			if _, _, err := v.verify(); err == nil {
				t.Errorf("drained %t: a removed record of a process that has died is not missed", drains)
			}
			_ = v.Close()
		})
	}
}

// TestAuditPromiseOfNoAccount: garbage in the place of promises begins no logs of accounts that
// never were.
func TestAuditPromiseOfNoAccount(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, s, k := t.Context(), memstore.New(), new(keeper)
		v := openAudited(t, s, &cardvault.AuditOptions{Sink: k}, cardvault.Sandbox)
		v.importCard()
		r := v.of(auditSegments)[0].Clone()
		time.Sleep(2 * time.Second)
		chains, kept := len(v.rows(auditChains)), len(k.all())
		noErr(t, s.Update(ctx, func(tx store.Tx) error {
			for i := range 50 {
				p := r.Clone()
				p.ID[12], p.Account = byte(i), uuid.New()
				tx.Put(p)
			}
			return nil
		}))
		time.Sleep(5 * time.Minute)
		noErr(t, v.Drain(ctx))
		time.Sleep(5 * time.Second)
		if n := len(v.rows(auditChains)); n != chains || len(k.all()) != kept || len(v.rows(auditSegments)) > 0 {
			t.Errorf("%d chains, before %d; %d checkpoints kept, before %d; %d promises", n, chains, len(k.all()), kept, len(v.rows(auditSegments)))
		}
		_ = v.Close()
	})
}

// TestAuditPromisesDamaged: many promises of an account that are damaged together, near each other
// or years apart, become a few breaks, by the sweep as by an export. No record counts twice.
func TestAuditPromisesDamaged(t *testing.T) {
	for name, apart := range map[string]time.Duration{"near": time.Second, "far": 100 * time.Hour} {
		for _, drains := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					s := memstore.New()
					dying := &killable{Store: s}
					first := openAudited(t, dying, &cardvault.AuditOptions{}, cardvault.Sandbox)
					time.Sleep(2 * time.Second)
					for range 5 {
						time.Sleep(time.Millisecond)
						first.importCard()
					}
					dying.dead.Store(true)
					_ = first.Close()

					v := openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox)
					r := v.of(auditSegments)[0]
					v.remove(v.of(auditRecords)[0]) // so that the promise is not made again
					v.overwrite(r)
					noErr(t, s.Update(t.Context(), func(tx store.Tx) error {
						for i := range 700 {
							p := r.Clone()
							p.ID, p.Version = rowkey.First(rowkey.Time(r.ID).Add(-time.Duration(i+1)*apart)), 1
							tx.Put(p)
						}
						return nil
					}))
					time.Sleep(3 * time.Minute)
					if drains {
						noErr(t, v.Drain(t.Context()))
						if n := len(v.rows(auditSegments)); n != 0 {
							t.Errorf("%d promises are left", n)
						}
					}
					g := v.broken().Gaps
					if len(g) != 2 || g[0].Records+g[1].Records != 4 {
						t.Errorf("drained %t: breaks are %+v", drains, g)
					}
					_ = v.Close()
				})
			})
		}
	}
}
