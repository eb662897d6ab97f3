package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// An audited vault is one with an audit log, on a store that tests look into.
type audited struct {
	*cardvault.Vault
	t     *testing.T
	store store.Store
}

func openAudited(t *testing.T, s store.Store, a *cardvault.AuditOptions, mode cardvault.Mode) *audited {
	t.Helper()
	v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{Mode: mode, Audit: a, Purposes: []string{"test"}})
	if err != nil {
		t.Fatal(err)
	}
	return &audited{v, t, s}
}

func (a *audited) card() cardvault.Card {
	return cardvault.Card{PAN: card.NewPAN([]byte("4242424242424242")), Expiry: card.Expiry{Month: 12, Year: 2060}}
}

func (a *audited) importCard() *cardvault.Token {
	a.t.Helper()
	token, err := a.Import(a.t.Context(), a.card(), nil)
	if err != nil {
		a.t.Fatal(err)
	}
	return token
}

func (a *audited) export() []byte {
	a.t.Helper()
	var b bytes.Buffer
	if err := a.ExportAudit(a.t.Context(), &b, time.Time{}, time.Time{}); err != nil {
		a.t.Fatal(err)
	}
	return b.Bytes()
}

// verify verifies the log, and returns the report and all records that have a checkpoint.
func (a *audited) verify(kept ...*audit.Checkpoint) (report *audit.Report, records []*audit.Record, err error) {
	a.t.Helper()
	report, err = audit.Verify(bytes.NewReader(a.export()), &audit.VerifyOptions{
		PublicKeys: a.AuditPublicKeys(), Kept: kept,
		Each: func(r *audit.Record) error { records = append(records, r); return nil },
	})
	return report, records, err
}

// verified is verify of a log without a fault.
func (a *audited) verified(kept ...*audit.Checkpoint) (*audit.Report, []*audit.Record) {
	a.t.Helper()
	report, records, err := a.verify(kept...)
	if err != nil {
		a.t.Fatal(err)
	}
	return report, records
}

// ops returns operation, outcome and classifier of records.
func ops(records []*audit.Record) (all []string) {
	for _, r := range records {
		all = append(all, strings.TrimSpace(r.Operation+" "+r.Outcome.String()+" "+r.Error))
	}
	return all
}

// digitsOfUUID is a UUID whose digits would pass for a card number, as one in eighty would.
const digitsOfUUID = "a2424242-4242-4424-8242-424242424242"

func TestAudit(t *testing.T) {
	v := openAudited(t, memstore.New(), &cardvault.AuditOptions{}, cardvault.Sandbox)
	defer v.Close()
	key := uuid.New()
	ctx := cardvault.WithActor(t.Context(), cardvault.Actor{KeyID: key, Address: "192.0.2.7", RequestID: digitsOfUUID, Name: "4242 4242 4242 4242"})

	token, err := v.Import(ctx, v.card(), nil)
	noErr(t, err)
	name := "B"
	_, err = v.Update(ctx, token.ID, cardvault.TokenUpdate{BusinessKey: &name})
	noErr(t, err)
	noErr(t, v.Use(ctx, token.ID, "test", func(context.Context, *cardvault.UsedCard) error { return nil }))
	if err := v.Use(ctx, token.ID, "other", nil); err == nil {
		t.Error("an unknown purpose is allowed")
	}
	_, err = v.Get(ctx, token.ID) // not recorded
	noErr(t, err)
	if _, err := v.Get(ctx, uuid.New()); !errors.Is(err, cardvault.ErrNotFound) {
		t.Error(err)
	}
	noErr(t, v.Delete(ctx, token.ID))
	if _, err := v.Authenticate(ctx, "vk_test_nothing"); err == nil {
		t.Error("a text is an API key")
	}

	report, records := v.verified()
	want := []string{"token.import success", "token.update success", "token.delete success", "audit.export success", // at once
		"card.use success", "card.use refused VALIDATION_FAILED", "token.read refused NOT_FOUND"}
	if got := ops(records); !slices.Equal(got, want) {
		t.Errorf("records are %q", got)
	}
	if report.Open != 0 || report.AccountID == uuid.Nil {
		t.Errorf("report is %+v", report)
	}
	for i, r := range slices.Delete(slices.Clone(records[:6]), 3, 4) {
		if r.ObjectID != token.ID || r.Actor != (audit.Actor{KeyID: key, Address: "192.0.2.7", RequestID: digitsOfUUID, Name: "withheld"}) || r.AccountID != report.AccountID {
			t.Errorf("record %d is %+v", i, r)
		}
	}
	if r := records[4]; r.Purpose != "test" {
		t.Errorf("purpose is %q", r.Purpose)
	}

	// The log of the whole vault has what belongs to no account, another account has nothing.
	whole := &audited{v.In(uuid.Nil), t, v.store}
	if _, records := whole.verified(); !slices.Equal(ops(records), []string{"audit.export success", "audit.start success", "authenticate refused UNAUTHORIZED"}) {
		t.Errorf("records of the vault are %q", ops(records))
	}
	other, err := v.CreateAccount(ctx, "other", nil)
	noErr(t, err)
	if _, records := (&audited{v.In(other.ID), t, v.store}).verified(); !slices.Equal(ops(records), []string{"audit.export success"}) {
		t.Errorf("records of another account are %q", ops(records))
	}

	noErr(t, v.Close())
	whole.Vault = openAudited(t, v.store, &cardvault.AuditOptions{}, cardvault.Sandbox).In(uuid.Nil)
	defer whole.Close()
	_, records = whole.verified()
	if got := ops(records); !slices.Contains(got, "audit.stop success") || strings.Count(strings.Join(got, ","), "audit.start success") != 2 {
		t.Errorf("records of the vault after a restart are %q", got)
	}
}

func noErr(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAuditRecords(t *testing.T) {
	v := openAudited(t, memstore.New(), &cardvault.AuditOptions{Reads: true}, cardvault.Sandbox)
	defer v.Close()
	ctx := t.Context()
	var ids []uuid.UUID
	for range 7 {
		ids = append(ids, v.importCard().ID)
	}
	_, err := v.Get(ctx, ids[3])
	noErr(t, err)
	v.export() // writes what waits

	for name, c := range map[string]struct {
		query cardvault.AuditQuery
		want  int
	}{
		"all":               {cardvault.AuditQuery{Limit: 3}, 9},
		"oldest first":      {cardvault.AuditQuery{Limit: 2, Ascending: true}, 9},
		"of an operation":   {cardvault.AuditQuery{Operation: "token.import", Limit: 3}, 7},
		"of an object":      {cardvault.AuditQuery{ObjectID: ids[3]}, 2},
		"of an hour before": {cardvault.AuditQuery{To: time.Now().Add(-time.Hour)}, 0},
		"since an hour":     {cardvault.AuditQuery{From: time.Now().Add(-time.Hour)}, 9},
	} {
		t.Run(name, func(t *testing.T) {
			v := &audited{v.Vault, t, v.store}
			var at []time.Time
			var all []*audit.Record
			for r, err := range v.AllAuditRecords(ctx, &c.query) {
				noErr(t, err)
				all = append(all, r)
				if r.Operation != "audit.read" { // of the other subtests
					at = append(at, r.At)
				}
			}
			if len(at) != c.want {
				t.Errorf("%d records: %q", len(at), ops(all))
			}
			if !slices.IsSortedFunc(at, func(a, b time.Time) int {
				if c.query.Ascending {
					return a.Compare(b)
				}
				return b.Compare(a)
			}) && c.query.Operation != "" {
				t.Error("records are out of order")
			}
		})
	}
	for _, q := range []cardvault.AuditQuery{{Limit: -1}, {Limit: 501}, {After: uuid.UUID{1}}, {From: time.Now(), To: time.Now().Add(-time.Hour)}} {
		if _, err := v.AuditRecords(ctx, &q); len(cardvault.FieldErrors(err)) == 0 {
			t.Errorf("%+v: %v", q, err)
		}
	}

	off := openAudited(t, memstore.New(), nil, cardvault.Sandbox)
	defer off.Close()
	if _, err := off.AuditRecords(ctx, nil); !errors.Is(err, cardvault.ErrNotEnabled) {
		t.Error(err)
	}
	if err := off.ExportAudit(ctx, new(bytes.Buffer), time.Time{}, time.Time{}); !errors.Is(err, cardvault.ErrNotEnabled) {
		t.Error(err)
	}
}

// A killable store is lost to a process that is killed.
type killable struct {
	store.Store
	dead atomic.Bool
}

func (m *killable) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if m.dead.Load() {
		return store.ErrUnavailable
	}
	return m.Store.View(ctx, fn)
}

func (m *killable) Update(ctx context.Context, fn func(store.Tx) error) error {
	if m.dead.Load() {
		return store.ErrUnavailable
	}
	return m.Store.Update(ctx, fn)
}

// kinds of the records of the log.
const (
	auditRecords     store.Kind = 34
	auditCheckpoints store.Kind = 35
)

// rows returns the stored records of a kind.
func (a *audited) rows(kind store.Kind) (all []*store.Record) {
	a.t.Helper()
	noErr(a.t, a.store.View(a.t.Context(), func(tx store.ReadTx) (err error) {
		all, err = tx.Scan(kind, uuid.Nil, 10000)
		return err
	}))
	return all
}

func (a *audited) remove(r *store.Record) {
	a.t.Helper()
	noErr(a.t, a.store.Update(a.t.Context(), func(tx store.Tx) error { tx.Delete(r.Kind, r.ID); return nil }))
}

// TestAuditAfterKill: the records of a process that was killed before its checkpoint get one,
// without an alarm, and a record that is removed then is one.
func TestAuditAfterKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		dying := &killable{Store: s}
		first := openAudited(t, dying, &cardvault.AuditOptions{}, cardvault.Sandbox)
		first.importCard()
		time.Sleep(2500 * time.Millisecond)
		for range 5 {
			first.importCard()
		}
		dying.dead.Store(true)

		v := openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox)
		v.importCard()
		report, _ := v.verified()
		if report.Open != 5 {
			t.Errorf("before: %+v", report)
		}
		time.Sleep(3 * time.Minute)
		noErr(t, v.Drain(t.Context()))
		report, records := v.verified()
		if report.Open != 0 || report.Records != 9 {
			t.Errorf("after: %+v, %q", report, ops(records))
		}

		var victim *store.Record
		for _, r := range v.rows(auditRecords) {
			if r.Account == report.AccountID {
				victim = r // the last one
			}
		}
		v.remove(victim)
		var found *audit.VerifyError
		if _, _, err := v.verify(); !errors.As(err, &found) || found.Fault != audit.Removed || found.Sequence == 0 {
			t.Errorf("Verify returned %v", err)
		}
		noErr(t, v.Close())
		_ = first.Close()
	})
}

// TestAuditStoreEdited: rows that a DBA deletes, moves or puts back show in the export.
func TestAuditStoreEdited(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*audited)
		fault  audit.Fault
	}{
		"a record is deleted":             {func(a *audited) { a.remove(a.of(auditRecords)[2]) }, audit.Removed},
		"a checkpoint is deleted":         {func(a *audited) { a.remove(a.of(auditCheckpoints)[1]) }, audit.Removed},
		"the last checkpoint is deleted":  {func(a *audited) { a.remove(last(a.of(auditCheckpoints))) }, audit.Removed},
		"the first checkpoint is deleted": {func(a *audited) { a.remove(a.of(auditCheckpoints)[0]) }, audit.Removed},
		"records are swapped": {func(a *audited) {
			r := a.of(auditRecords)
			x, y := r[1].Clone(), r[2].Clone()
			x.Shown, y.Shown = y.Shown, x.Shown
			a.put(x, y)
		}, audit.Removed},
		"a record is edited": {func(a *audited) {
			x := a.of(auditRecords)[1].Clone()
			x.Shown[len(x.Shown)-20] ^= 1
			a.put(x)
		}, audit.Removed},
		"a lane is removed": {func(a *audited) {
			other := openAudited(a.t, a.store, &cardvault.AuditOptions{}, cardvault.Sandbox)
			all := []store.Kind{auditRecords, auditCheckpoints}
			before := map[uuid.UUID]bool{}
			for _, kind := range all {
				for _, r := range a.of(kind) {
					before[r.ID] = true
				}
			}
			other.importCard()
			noErr(a.t, other.Close())
			for _, kind := range all {
				for _, r := range a.of(kind) {
					if !before[r.ID] {
						a.remove(r)
					}
				}
			}
			a.importCard()
		}, audit.Removed},
		"a checkpoint is replayed": {func(a *audited) {
			r := a.of(auditCheckpoints)
			x := r[2].Clone()
			x.Shown = r[1].Clone().Shown
			a.put(x)
		}, audit.Removed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := openAudited(t, memstore.New(), &cardvault.AuditOptions{}, cardvault.Sandbox)
				defer v.Close()
				for range 4 {
					v.importCard()
					v.importCard()
					time.Sleep(2 * time.Second)
				}
				c.change(v)
				var found *audit.VerifyError
				if _, _, err := v.verify(); !errors.As(err, &found) || found.Fault != c.fault {
					t.Errorf("Verify returned %v", err)
				}
			})
		})
	}
}

func last(r []*store.Record) *store.Record { return r[len(r)-1] }

// of returns the stored records of a kind that are the account's.
func (a *audited) of(kind store.Kind) (all []*store.Record) {
	account, err := a.Account(a.t.Context())
	noErr(a.t, err)
	for _, r := range a.rows(kind) {
		if r.Account == account.ID {
			all = append(all, r)
		}
	}
	return all
}

// put writes records with their former versions.
func (a *audited) put(records ...*store.Record) {
	for _, r := range records {
		a.remove(r)
	}
	noErr(a.t, a.store.Update(a.t.Context(), func(tx store.Tx) error {
		for _, r := range records {
			tx.Put(r)
		}
		return nil
	}))
}

// A keeper keeps checkpoints, or hangs.
type keeper struct {
	mu    sync.Mutex
	kept  map[uuid.UUID]*audit.Checkpoint
	fails error
	hangs chan struct{} // if not nil, Keep waits for it
}

func (k *keeper) Keep(ctx context.Context, c *audit.Checkpoint) error {
	k.mu.Lock()
	fails, hangs := k.fails, k.hangs
	k.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	if fails != nil {
		return fails
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil {
		k.kept = map[uuid.UUID]*audit.Checkpoint{}
	}
	if former := k.kept[c.AccountID]; former == nil || former.Number < c.Number {
		k.kept[c.AccountID] = c
	}
	return nil
}

func (k *keeper) all() (all []*audit.Checkpoint) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.kept {
		all = append(all, c)
	}
	return all
}

// TestAuditSinkFails: calls go on for a minute while a sink fails or hangs. Then they are
// refused, or go on, until it keeps checkpoints again.
func TestAuditSinkFails(t *testing.T) {
	for _, failure := range []cardvault.AuditFailure{cardvault.AuditRefuse, cardvault.AuditContinue} {
		for _, hangs := range []bool{false, true} {
			t.Run(failure.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					k := &keeper{fails: errors.New("disk is full")}
					wait := make(chan struct{})
					if hangs {
						k = &keeper{hangs: wait}
					}
					v := openAudited(t, memstore.New(), &cardvault.AuditOptions{Sink: k, Failure: failure}, cardvault.Sandbox)
					token := v.importCard()
					time.Sleep(30 * time.Second)
					v.importCard()

					time.Sleep(time.Minute)
					_, err := v.Import(t.Context(), v.card(), nil)
					used := v.Use(t.Context(), token.ID, "test", func(context.Context, *cardvault.UsedCard) error { return nil })
					for _, err := range []error{err, used} {
						if refused := errors.Is(err, cardvault.ErrUnavailable); refused != (failure == cardvault.AuditRefuse) || !refused && err != nil {
							t.Errorf("a call returned %v", err)
						}
					}

					k.mu.Lock()
					k.fails, k.hangs = nil, nil
					k.mu.Unlock()
					close(wait)
					time.Sleep(time.Minute)
					v.importCard()
					v.verified()
					noErr(t, v.Close())
					if len(k.all()) != 2 {
						t.Errorf("the sink has %d checkpoints", len(k.all()))
					}
				})
			})
		}
	}
}

// A full disk keeps nothing, and counts how often it is asked.
type fullDisk struct{ asked atomic.Int64 }

func (d *fullDisk) Keep(context.Context, *audit.Checkpoint) error {
	if d.asked.Add(1) > 100 {
		return nil // so that a test ends
	}
	return errors.New("disk is full")
}

// TestAuditSinkFailsToTheEnd: Close tries a sink that fails a few times, with pauses, and ends.
func TestAuditSinkFailsToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(fullDisk)
		v := openAudited(t, memstore.New(), &cardvault.AuditOptions{Sink: d}, cardvault.Sandbox)
		v.importCard()
		noErr(t, v.Close())
		time.Sleep(time.Minute)
		if n := d.asked.Load(); n == 0 || n > 20 {
			t.Errorf("the sink was asked %d times", n)
		}
	})
}

func TestAuditRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := openAudited(t, memstore.New(), &cardvault.AuditOptions{Retention: time.Hour}, cardvault.Sandbox)
		for range 5 {
			v.importCard()
			time.Sleep(20 * time.Minute)
		}
		for range 6 {
			noErr(t, v.Drain(t.Context()))
			time.Sleep(2 * time.Second)
		}
		report, records := v.verified()
		if report.First < 2 || report.Last.Erased == 0 || len(records) > 4 {
			t.Errorf("report %+v with %q", report, ops(records))
		}
		if n := len(v.of(auditRecords)); n != len(records) {
			t.Errorf("%d rows are stored, %d records exported", n, len(records))
		}

		// What was not erased because of its age is missing.
		v.remove(v.of(auditCheckpoints)[0])
		var found *audit.VerifyError
		if _, _, err := v.verify(); !errors.As(err, &found) || found.Fault != audit.Removed {
			t.Errorf("Verify returned %v", err)
		}
		noErr(t, v.Close())
	})
}

// TestAuditFlood: a caller without a key does not fill the log, and one with a key does not. Ten
// refused calls that are alike have a record each, the others one. It names key and address of
// all until there are too many calls.
func TestAuditFlood(t *testing.T) {
	for name, c := range map[string]struct {
		calls, callers int
		key            bool
		single         int // records of one call
		merged         []uint64
		named          int // of the merged ones, which name their caller
	}{
		"one stranger":        {calls: 50, callers: 1, single: 10, merged: []uint64{40}, named: 1},
		"strangers":           {calls: 30000, callers: 10, single: 100, merged: []uint64{29900}},
		"a key":               {calls: 1500, callers: 1, key: true, single: 10, merged: []uint64{500, 990}, named: 1},
		"a key, a few calls":  {calls: 10, callers: 1, key: true, single: 10},
		"three, a few calls":  {calls: 45, callers: 3, single: 30, merged: []uint64{5, 5, 5}, named: 3},
		"a stranger too many": {calls: 101, callers: 101, single: 100, merged: []uint64{1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := openAudited(t, memstore.New(), &cardvault.AuditOptions{}, cardvault.Sandbox)
				of, operation, class := &audited{v.In(uuid.Nil), t, v.store}, "authenticate", "UNAUTHORIZED"
				if c.key {
					of, operation, class = v, "token.read", "INSUFFICIENT_SCOPE"
				}
				begin, key := time.Now(), uuid.New()
				callers := map[audit.Actor]int{}
				for i := range c.calls {
					actor := cardvault.Actor{Address: fmt.Sprintf("192.0.2.%d", i%c.callers)}
					if c.key {
						actor.KeyID = key
					}
					callers[audit.Actor{KeyID: actor.KeyID, Address: actor.Address}] = 0
					actor.RequestID = fmt.Sprintf("r-%d", i)
					ctx := cardvault.WithActor(t.Context(), actor)
					if c.key {
						v.RecordRefusal(ctx, operation, audit.Refused, class)
					} else if _, err := v.Authenticate(ctx, "vk_test_nothing"); !errors.Is(err, cardvault.ErrUnauthenticated) {
						t.Fatal(err)
					}
				}
				time.Sleep(2 * time.Minute)

				var single, named int
				var merged []uint64
				_, records := of.verified()
				for _, r := range records {
					if r.Operation != operation {
						continue
					}
					if r.Outcome != audit.Refused || r.Error != class || !r.At.Equal(begin) || r.ObjectID != uuid.Nil || r.Actor.Name != "" {
						t.Errorf("a record is %+v", r)
					}
					caller := audit.Actor{KeyID: r.Actor.KeyID, Address: r.Actor.Address}
					_, known := callers[caller]
					switch {
					case r.Actor.RequestID != "":
						single++
						callers[caller]++
						if !known || r.Calls != 1 {
							t.Errorf("a call has the record %+v", r)
						}
					case known:
						named++
						fallthrough
					default:
						merged = append(merged, r.Calls)
						if !known && r.Actor != (audit.Actor{}) {
							t.Errorf("many calls have the record %+v", r)
						}
					}
				}
				slices.Sort(merged)
				if single != c.single || named != c.named || !slices.Equal(merged, c.merged) {
					t.Errorf("%d records of one call, and of %d calls, %d of these with a caller", single, merged, named)
				}
				for caller, n := range callers {
					if n > 10 || n < 10 && c.callers <= 10 {
						t.Errorf("%v has %d records of one call", caller, n)
					}
				}
				noErr(t, v.Close())
			})
		})
	}
}

// TestAuditFailedUses: each use of a card that has failed names its token and its caller, also
// many alike, and in a flood of refusals of another caller.
func TestAuditFailedUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := openAudited(t, memstore.New(), &cardvault.AuditOptions{}, cardvault.Sandbox)
		by := func() context.Context {
			return cardvault.WithActor(t.Context(), cardvault.Actor{KeyID: uuid.New(), Address: "192.0.2.1"})
		}
		strong, weak := by(), by()
		for range 1500 {
			v.RecordRefusal(weak, "token.read", audit.Refused, "INSUFFICIENT_SCOPE")
		}
		lent := map[uuid.UUID]bool{}
		for range 40 {
			token, err := v.Import(strong, v.card(), nil)
			noErr(t, err)
			err = v.Use(strong, token.ID, "test", func(context.Context, *cardvault.UsedCard) error { return errors.New("no answer") })
			if err == nil {
				t.Fatal("a use has not failed")
			}
			lent[token.ID] = true
		}
		time.Sleep(2 * time.Minute)
		_, records := v.verified()
		for _, r := range records {
			if r.Purpose == "test" && r.Calls == 1 && r.Actor.Address != "" {
				delete(lent, r.ObjectID)
			}
		}
		if len(lent) > 0 {
			t.Errorf("%d of 40 failed uses are not named", len(lent))
		}
		noErr(t, v.Close())
	})
}

// TestAuditManyWriters: concurrent calls of two processes are one chain.
func TestAuditManyWriters(t *testing.T) {
	s := memstore.New()
	vaults := []*audited{openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox), openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox)}
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			v := vaults[i%2]
			for range 100 {
				if _, err := v.Import(t.Context(), v.card(), nil); err != nil {
					t.Error(err)
				}
			}
			v.export()
		})
	}
	group.Wait()
	noErr(t, vaults[0].Close())
	_, records := vaults[1].verified()
	imports := 0
	for _, r := range records {
		if r.Operation == "token.import" {
			imports++
		}
	}
	if imports != 1600 {
		t.Errorf("%d imports have a record", imports)
	}
	noErr(t, vaults[1].Close())
}
