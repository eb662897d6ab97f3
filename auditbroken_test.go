package cardvault_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

const (
	auditChains   store.Kind = 36
	auditSegments store.Kind = 37
)

// An unreadable store has records whose rows cannot be read at all.
type unreadable struct {
	store.Store
	rows sync.Map // of store.Key
}

func (s *unreadable) lost(kind store.Kind, id uuid.UUID) bool {
	_, is := s.rows.Load(store.Key{Kind: kind, ID: id})
	return is
}

func (s *unreadable) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(unreadableTx{tx, s}) })
}

func (s *unreadable) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(unreadableWrites{unreadableTx{tx, s}, tx}) })
}

type unreadableTx struct {
	store.ReadTx
	s *unreadable
}

func (tx unreadableTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	if tx.s.lost(kind, id) {
		return nil, store.ErrDamaged
	}
	return tx.ReadTx.Get(kind, id)
}

func (tx unreadableTx) List(q *store.Query) (*store.List, error) {
	list, err := tx.ReadTx.List(q)
	if list != nil {
		tx.blank(list.Records)
	}
	return list, err
}

func (tx unreadableTx) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	found, err := tx.ReadTx.Scan(kind, after, limit)
	tx.blank(found)
	return found, err
}

func (tx unreadableTx) blank(records []*store.Record) {
	for i, r := range records {
		if tx.s.lost(r.Kind, r.ID) {
			records[i] = &store.Record{Kind: r.Kind, ID: r.ID, Account: r.Account}
		}
	}
}

type unreadableWrites struct {
	unreadableTx
	tx store.Tx
}

func (tx unreadableWrites) Put(r *store.Record) { tx.tx.Put(r) }

// Delete of a row that cannot be read makes room for another.
func (tx unreadableWrites) Delete(kind store.Kind, id uuid.UUID) {
	tx.s.rows.Delete(store.Key{Kind: kind, ID: id})
	tx.tx.Delete(kind, id)
}

// overwrite writes a record again, which makes its seal wrong: that binds the version.
func (a *audited) overwrite(r *store.Record) {
	a.t.Helper()
	r = r.Clone()
	r.Version++
	noErr(a.t, a.store.Update(a.t.Context(), func(tx store.Tx) error { tx.Put(r); return nil }))
}

// plant puts rows in the places of checkpoints.
func (a *audited) plant(numbers ...uint64) {
	a.t.Helper()
	for _, n := range numbers {
		r := a.of(auditCheckpoints)[0].Clone()
		binary.BigEndian.PutUint64(r.ID[8:], n)
		a.put(r)
	}
}

// broken returns the break that Verify names, and the report.
func (a *audited) broken(kept ...*audit.Checkpoint) *audit.Report {
	a.t.Helper()
	report, _, err := a.verify(kept...)
	var found *audit.VerifyError
	if !errors.As(err, &found) || found.Fault != audit.Broken || len(report.Gaps) == 0 || found.Checkpoint != report.Gaps[0].Checkpoint {
		a.t.Fatalf("Verify returned %v, report %+v", err, report)
	}
	if _, err := audit.Verify(bytes.NewReader(a.export()), &audit.VerifyOptions{PublicKeys: a.AuditPublicKeys(), Known: report.Gaps}); err != nil {
		a.t.Errorf("a known break: %v", err)
	}
	return report
}

// TestAuditChainDamaged: the log of an account goes on behind a damaged record of its chain, with
// a break that Verify names. Other accounts do not notice.
func TestAuditChainDamaged(t *testing.T) {
	for name, c := range map[string]struct {
		damage           func(*audited, *unreadable)
		missing, records uint64
	}{
		"changed": {func(a *audited, _ *unreadable) { a.overwrite(a.of(auditChains)[0]) }, 0, 0},
		"unreadable": {func(a *audited, s *unreadable) {
			s.rows.Store(store.Key{Kind: auditChains, ID: a.of(auditChains)[0].ID}, true)
		}, 0, 0},
		"removed": {func(a *audited, _ *unreadable) { a.remove(a.of(auditChains)[0]) }, 0, 0},
		"put back": {func(a *audited, s *unreadable) {
			former := a.of(auditChains)[0].Clone()
			a.importCard()
			time.Sleep(2 * time.Second)
			a.remove(a.of(auditChains)[0])
			noErr(a.t, s.Store.Update(a.t.Context(), func(tx store.Tx) error { tx.(store.Loader).Load(former); return nil }))
		}, 0, 0},
		"of another account": {func(a *audited, _ *unreadable) {
			r := a.of(auditChains)[0].Clone()
			r.Account, r.Version = uuid.New(), 1
			a.put(r)
		}, 0, 0},
		"removed with the last checkpoints": {func(a *audited, _ *unreadable) {
			a.remove(a.of(auditChains)[0])
			for _, r := range a.of(auditCheckpoints)[3:] {
				a.remove(r)
			}
		}, 0, 6},
		"changed with the last checkpoints": {func(a *audited, _ *unreadable) {
			a.overwrite(a.of(auditChains)[0])
			a.spoil(a.of(auditCheckpoints)[3:]...)
		}, 3, 6},
		"removed, and rows planted far behind": {func(a *audited, _ *unreadable) {
			a.remove(a.of(auditChains)[0])
			a.plant(1<<21, 1<<40, 1<<40+1, 1<<63)
		}, 0, 0},
		"removed, and rows planted around the last number that counts": {func(a *audited, _ *unreadable) {
			a.remove(a.of(auditChains)[0])
			a.plant(6+1<<20, 7+1<<20)
		}, 1 << 20, 0},
		"all of it": {func(a *audited, _ *unreadable) {
			a.remove(a.of(auditChains)[0])
			a.spoil(a.of(auditCheckpoints)...)
		}, 6, 13},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := &unreadable{Store: memstore.New()}
				v := openAudited(t, s, &cardvault.AuditOptions{Failure: cardvault.AuditRefuse}, cardvault.Sandbox)
				other, err := v.CreateAccount(t.Context(), "other", nil)
				noErr(t, err)
				neighbour := &audited{v.In(other.ID), t, s}
				for range 6 {
					for range 2 { // row keys of one microsecond may not rise, and then a segment ends
						time.Sleep(time.Millisecond)
						v.importCard()
					}
					time.Sleep(2 * time.Second)
				}
				c.damage(v, s)
				neighbour.importCard()
				neighbour.verified()

				for range 3 {
					v.importCard()
					time.Sleep(2 * time.Second)
				}
				report := v.broken()
				if g := report.Gaps; len(g) != 1 || g[0].Missing != c.missing || g[0].Records != c.records {
					t.Errorf("gaps are %+v, want %d checkpoints and %d records", g, c.missing, c.records)
				}
				if report.Open != 0 || report.Last.Number < report.Gaps[0].Checkpoint+3 {
					t.Errorf("report is %+v", report)
				}
				v.remove(last(v.of(auditRecords))) // damage behind the break is found too
				var found *audit.VerifyError
				if _, _, err := v.verify(); !errors.As(err, &found) || found.Fault != audit.Removed || found.Checkpoint <= report.Gaps[0].Checkpoint {
					t.Errorf("Verify returned %v", err)
				}
				noErr(t, v.Close())
			})
		})
	}
}

// TestAuditChainDamagedRetention: records behind a damaged chain go at their age, of keys that were
// rotated too, and what stays is whole except for the break. Then the break has gone as well.
func TestAuditChainDamagedRetention(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const retention = time.Hour
		s := memstore.New()
		v := openAudited(t, s, &cardvault.AuditOptions{Retention: retention}, cardvault.Sandbox)
		for i := range 4 {
			for range 3 {
				v.importCard()
				time.Sleep(6 * time.Minute)
				noErr(t, v.Drain(t.Context()))
			}
			if i < 3 {
				_, err := v.RotateSeries(t.Context(), cardvault.SeriesAudit, nil)
				noErr(t, err)
			}
		}
		v.overwrite(v.of(auditChains)[0])
		for range 2 { // the first one begins the chain anew
			noErr(t, v.Drain(t.Context()))
		}
		v.importCard()
		time.Sleep(2 * time.Second)
		if report := v.broken(); len(report.Keys) != 4 || report.Keys[3].First >= report.Last.Number {
			t.Errorf("keys are %+v", report.Keys)
		}

		for range 30 {
			time.Sleep(6 * time.Minute)
			noErr(t, v.Drain(t.Context()))
			for _, r := range v.of(auditRecords) {
				if age := time.Since(rowkey.Time(r.ID)); age > retention+7*time.Minute {
					t.Fatalf("a record of %v is left", age)
				}
			}
		}
		v.verified()
		noErr(t, v.Close())
	})
}

// TestAuditEndBehindDamage: more checkpoints are damaged than are read at a time, and the record of
// the chain is removed. The last readable checkpoint is found behind them.
func TestAuditEndBehindDamage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		v := openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox)
		for range 160 {
			v.importCard()
			time.Sleep(2 * time.Second)
		}
		all := v.of(auditCheckpoints)
		end := binary.BigEndian.Uint64(last(all).ID[8:])
		for _, r := range all[2 : len(all)-5] {
			v.overwrite(r)
		}
		v.remove(v.of(auditChains)[0])
		v.importCard()
		time.Sleep(2 * time.Second)
		if text := fmt.Sprintf(`"last":%d`, end); !strings.Contains(string(v.export()), text) {
			t.Errorf("no checkpoint has %s", text)
		}
		noErr(t, v.Close())
	})
}

// A partial store fails the writes of checkpoints of some accounts.
type partial struct {
	*memstore.Store
	of   atomic.Value // of map[uuid.UUID]bool
	kind store.Kind   // if not zero, of these records instead of checkpoints
	err  error        // if not nil, instead of store.ErrUnavailable
}

func (s *partial) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error {
		of, _ := s.of.Load().(map[uuid.UUID]bool)
		w := &partialTx{Tx: tx, of: of, kind: cmp.Or(s.kind, auditCheckpoints)}
		if err := fn(w); err != nil {
			return err
		}
		if w.failed {
			return cmp.Or(s.err, store.ErrUnavailable)
		}
		return nil
	})
}

type partialTx struct {
	store.Tx
	of     map[uuid.UUID]bool
	kind   store.Kind
	failed bool
}

func (tx *partialTx) Put(r *store.Record) {
	tx.failed = tx.failed || r.Kind == tx.kind && tx.of[r.Account]
	tx.Tx.Put(r)
}

// TestAuditNeighbour: an account whose checkpoints cannot be written has no export. The exports
// and writes of another account go on.
func TestAuditNeighbour(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, s := t.Context(), &partial{Store: memstore.New()}
		v := openAudited(t, s, &cardvault.AuditOptions{Failure: cardvault.AuditRefuse, Reads: true}, cardvault.Sandbox)
		other, err := v.CreateAccount(ctx, "other", nil)
		noErr(t, err)
		neighbour := &audited{v.In(other.ID), t, s}
		token, theirs := v.importCard(), neighbour.importCard()
		account, err := v.Account(ctx)
		noErr(t, err)

		s.of.Store(map[uuid.UUID]bool{account.ID: true})
		for range 5 {
			_, err = v.Get(ctx, token.ID)
			noErr(t, err)
			v.importCard()
			time.Sleep(2 * time.Second)
		}
		_, err = neighbour.Get(ctx, theirs.ID)
		noErr(t, err)
		neighbour.importCard()
		neighbour.verified()
		if err := v.ExportAudit(ctx, new(bytes.Buffer), time.Time{}, time.Time{}); !errors.Is(err, cardvault.ErrUnavailable) {
			t.Errorf("ExportAudit returned %v", err)
		}

		s.of.Store(map[uuid.UUID]bool{})
		time.Sleep(3 * time.Second)
		v.verified()
		noErr(t, v.Close())
	})
}

// TestAuditPromiseDamaged: the promise of a process that has died is damaged. Its segment is found
// by its first record. Without that, Verify names a break.
func TestAuditPromiseDamaged(t *testing.T) {
	changed := func(a *audited, _ *unreadable, r *store.Record) { a.overwrite(r) }
	lost := func(_ *audited, s *unreadable, r *store.Record) {
		s.rows.Store(store.Key{Kind: r.Kind, ID: r.ID}, true)
	}
	for name, c := range map[string]struct {
		damage func(*audited, *unreadable, *store.Record)
		first  bool // the first record is there
		sweep  bool // a sweep sees the promise
	}{
		"changed":                         {changed, true, true},
		"changed without first record":    {changed, false, true},
		"unreadable":                      {lost, true, false},
		"unreadable without first record": {lost, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := &unreadable{Store: memstore.New()}
				dying := &killable{Store: s}
				first := openAudited(t, dying, &cardvault.AuditOptions{}, cardvault.Sandbox)
				for range 5 {
					time.Sleep(time.Millisecond)
					first.importCard()
				}
				dying.dead.Store(true)
				v := openAudited(t, s, &cardvault.AuditOptions{Failure: cardvault.AuditRefuse}, cardvault.Sandbox)
				promise := v.of(auditSegments)[0]
				c.damage(v, s, promise)
				if !c.first {
					v.remove(v.of(auditRecords)[0])
				}

				open := 0
				if c.first {
					open = 5
				}
				if report, _ := v.verified(); report.Open != int64(open) {
					t.Errorf("before: %+v", report)
				}
				time.Sleep(3 * time.Minute)
				if c.sweep {
					noErr(t, v.Drain(t.Context()))
					if n := len(v.of(auditSegments)); n != 0 {
						t.Errorf("%d promises are left", n)
					}
				}
				if !c.first {
					if report := v.broken(); report.Gaps[0].Missing != 0 || report.Gaps[0].Records != 4 {
						t.Errorf("gaps are %+v", report.Gaps)
					}
				} else if report, _ := v.verified(); report.Open+report.Records < 6 {
					t.Errorf("after: %+v", report)
				}
				noErr(t, v.Close())
				_ = first.Close()
			})
		})
	}
}

// TestAuditPromisePutBack: a promise that is put back, or garbage in its place, makes no second
// checkpoint of its records.
func TestAuditPromisePutBack(t *testing.T) {
	for _, garbage := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			s := memstore.New()
			dying := &killable{Store: s}
			first := openAudited(t, dying, &cardvault.AuditOptions{}, cardvault.Sandbox)
			first.importCard()
			dying.dead.Store(true)
			v := openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox)
			promise := v.of(auditSegments)[0].Clone()
			time.Sleep(3 * time.Minute)
			noErr(t, v.Drain(t.Context()))
			if n := len(v.of(auditSegments)); n != 0 {
				t.Fatalf("%d promises are left", n)
			}
			v.verified()

			if garbage {
				promise.Version++
			}
			noErr(t, s.Update(t.Context(), func(tx store.Tx) error { tx.(store.Loader).Load(promise); return nil }))
			v.importCard()
			time.Sleep(2 * time.Second)
			noErr(t, v.Drain(t.Context()))
			if n := len(v.of(auditSegments)); n != 0 {
				t.Errorf("%d promises are left", n)
			}
			if report, _ := v.verified(); len(report.Gaps) > 0 { // records that are there twice are a fault
				t.Errorf("gaps are %+v", report.Gaps)
			}
			noErr(t, v.Close())
			_ = first.Close()
		})
	}
}

// TestAuditSweepPasses: due promises whose checkpoints cannot be written, more than a batch of
// them, do not keep a later one from its checkpoint.
func TestAuditSweepPasses(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &partial{Store: memstore.New()}
		failing := map[uuid.UUID]bool{}
		dying := &killable{Store: s}
		first := openAudited(t, dying, &cardvault.AuditOptions{}, cardvault.Sandbox)
		accounts := make([]uuid.UUID, 70)
		for i := range accounts {
			a, err := first.CreateAccount(t.Context(), "other", nil)
			noErr(t, err)
			accounts[i], failing[a.ID] = a.ID, true
		}
		time.Sleep(2 * time.Second)
		for _, id := range accounts {
			time.Sleep(time.Millisecond)
			_, err := first.In(id).Import(t.Context(), first.card(), nil)
			noErr(t, err)
		}
		time.Sleep(time.Millisecond)
		first.importCard() // the last due record
		dying.dead.Store(true)
		s.of.Store(failing)

		v := openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox)
		time.Sleep(3 * time.Minute)
		_ = v.Drain(t.Context())
		if n := len(v.of(auditSegments)); n != 0 {
			t.Errorf("%d promises of a sound account are left", n)
		}
		s.of.Store(map[uuid.UUID]bool{})
		noErr(t, v.Drain(t.Context()))
		for _, id := range accounts {
			(&audited{v.In(id), t, s}).verified()
		}
		noErr(t, v.Close())
		_ = first.Close()
	})
}

// TestAuditBackupUnrecorded: with AuditContinue the report says whether the log has the backup.
func TestAuditBackupUnrecorded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &partial{Store: memstore.New(), kind: auditRecords, err: store.ErrUnavailable}
		v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{
			Mode: cardvault.Sandbox, Audit: &cardvault.AuditOptions{Failure: cardvault.AuditContinue},
		})
		noErr(t, err)
		defer v.Close()
		for _, lost := range []bool{false, true, false} {
			s.of.Store(map[uuid.UUID]bool{uuid.Nil: lost})
			report, err := v.Backup(t.Context(), io.Discard, nil)
			noErr(t, err)
			if report.Unrecorded != lost {
				t.Errorf("the log has lost the record: %v, the report %+v", lost, report)
			}
		}
	})
}

// TestAuditBackupOfDamaged: a backup is made although its record cannot be stored, if the store is
// damaged or full. It is logged, and the log counts it later. Nothing else that leaves a vault does.
func TestAuditBackupOfDamaged(t *testing.T) {
	for cause, goesOn := range map[error]bool{store.ErrDamaged: true, store.ErrFull: true, store.ErrUnavailable: false} {
		t.Run(cause.Error(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				log := new(sharedLog)
				s := &partial{Store: memstore.New(), kind: auditRecords, err: cause}
				v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{
					Mode: cardvault.Sandbox, Audit: &cardvault.AuditOptions{Failure: cardvault.AuditRefuse}, Logger: slog.New(slog.NewTextHandler(log, nil)),
				})
				noErr(t, err)
				a := &audited{v, t, s}
				a.importCard()
				time.Sleep(2 * time.Second)

				s.of.Store(map[uuid.UUID]bool{uuid.Nil: true})
				w := new(firstByte)
				report, err := v.Backup(t.Context(), w, nil)
				if (err == nil) != goesOn || (w.n > 0) != goesOn || goesOn && (report.Records == 0 || !report.Unrecorded) {
					t.Errorf("Backup returned %+v, %v, %d bytes", report, err, w.n)
				}
				if !goesOn && !errors.Is(err, cardvault.ErrUnavailable) {
					t.Error(err)
				}
				if strings.Contains(log.String(), "a backup is made without its record") != goesOn {
					t.Errorf("the log is %s", log)
				}
				if err := v.In(uuid.Nil).ExportAudit(t.Context(), w, time.Time{}, time.Time{}); err == nil {
					t.Error("an export goes on without its record")
				}

				s.of.Store(map[uuid.UUID]bool{})
				time.Sleep(2 * time.Second)
				a.importCard()
				time.Sleep(2 * time.Second)
				lost := uint64(0)
				_, records := (&audited{v.In(uuid.Nil), t, s}).verified()
				for _, r := range records {
					if r.Operation == "audit.lost" {
						lost += r.Calls
					}
				}
				if lost != 2 {
					t.Errorf("%d calls are counted", lost)
				}
				noErr(t, v.Close())
			})
		})
	}
}
