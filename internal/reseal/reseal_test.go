package reseal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/reseal"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

const (
	kindRow   store.Kind = 10
	kindWork  store.Kind = 11
	kindRound store.Kind = 12
)

// A wrapper does not encrypt the keys.
type wrapper struct{}

func (wrapper) KeyID() string                                         { return "test" }
func (wrapper) Wrap(_ context.Context, b, _ []byte) ([]byte, error)   { return bytes.Clone(b), nil }
func (wrapper) Unwrap(_ context.Context, b, _ []byte) ([]byte, error) { return bytes.Clone(b), nil }

// A faulty store counts the rows that are written, and fails as the test says.
type faulty struct {
	store.Store
	full    atomic.Bool
	before  func() // called before each Update of rows, one at a time, if set
	calling sync.Mutex
	lost    uuid.UUID    // id of a record that cannot be read
	largest atomic.Int64 // number of rows in one Update
}

func (s *faulty) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(faultyReads{tx, s}) })
}

func (s *faulty) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.before != nil && s.rows(ctx, fn) > 0 {
		s.calling.Lock()
		s.before()
		s.calling.Unlock()
	}
	return s.Store.Update(ctx, func(tx store.Tx) error {
		w := &faultyWrites{Tx: tx}
		err := fn(w)
		if s.full.Load() && w.all > 0 && err == nil {
			return store.ErrFull
		}
		s.largest.Store(max(s.largest.Load(), w.rows))
		return err
	})
}

// rows returns how many rows of kindRow an Update would write.
func (s *faulty) rows(ctx context.Context, fn func(store.Tx) error) int64 {
	w := new(faultyWrites)
	_ = s.Store.Update(ctx, func(tx store.Tx) error {
		*w = faultyWrites{Tx: tx}
		_ = fn(w)
		return errors.New("not now")
	})
	return w.rows
}

type faultyReads struct {
	store.ReadTx
	s *faulty
}

func (tx faultyReads) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	found, err := tx.ReadTx.Scan(kind, after, limit)
	for i, r := range found {
		if r.ID == tx.s.lost {
			found[i] = &store.Record{Kind: kind, ID: r.ID}
		}
	}
	return found, err
}

type faultyWrites struct {
	store.Tx
	all, rows int64 // rows of kindRow
}

func (tx *faultyWrites) Put(r *store.Record) {
	tx.all++
	if r.Kind == kindRow {
		tx.rows++
	}
	tx.Tx.Put(r)
}

// A lab is a ledger whose records are sealed anew, in a bubble.
type lab struct {
	*testing.T
	*ledger.Ledger
	store  *faulty
	engine *jobs.Engine
	sealer *reseal.Sealer
	log    *lines

	mu   sync.Mutex
	busy map[uuid.UUID]bool // guarded by mu
}

// lines are what was logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// has reports how often a text was logged.
func (l *lines) has(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func inLab(t *testing.T, f func(l *lab)) {
	bubble.Test(t, func(t *testing.T) {
		l := &lab{T: t, store: &faulty{Store: memstore.New()}, busy: map[uuid.UUID]bool{}}
		l.open()
		f(l)
		l.engine.Stop()
	})
}

// open opens the store anew, as another process would.
func (l *lab) open() {
	l.Helper()
	if l.engine != nil {
		l.engine.Stop()
	}
	l.log = new(lines)
	log := slog.New(slog.NewTextHandler(l.log, nil))
	l.Ledger = ledger.New(ledger.Config{
		Store:    l.store,
		Ring:     ledger.Ring{{Wrapper: wrapper{}}},
		ModeName: func(uint8) string { return "test" },
		Log:      log,
		Wrote:    func(context.Context, ledger.Operation, uuid.UUID, uuid.UUID, error) {},
		Rotated:  func(tx store.Tx) error { return l.sealer.Begin(tx) },
		Mistrust: func(answer string) { l.Error("the store returned", answer) },
	})
	first := func() (uuid.UUID, []*store.Record, error) {
		row, err := l.NewRow()
		if err != nil {
			return uuid.Nil, nil, err
		}
		r := l.In(uuid.Nil).NewRecord(ledger.KindAccount, row)
		return l.In(uuid.Nil).Mask(ledger.KindAccount, row), []*store.Record{r}, l.SealShown(r, nil)
	}
	if err := l.Load(l.Context(), first); err != nil {
		l.Fatal(err)
	}
	l.sealer = reseal.New(reseal.Config{Ledger: l.Ledger, Log: log, Round: kindRound, Cares: map[store.Kind]reseal.Care{
		kindRow: {Busy: func(_ context.Context, r *store.Record, _ []byte) (bool, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.busy[r.ID], nil
		}},
	}})
	l.engine = jobs.New(l.Ledger, log, nil, []jobs.Kind{
		l.sealer.Kind(), {Records: kindWork, Workers: 0, Longest: time.Minute},
	})
	if err := l.sealer.Attach(l.Context(), l.engine); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// row returns a row key that tells the n-th row.
func row(n int) uuid.UUID { return uuid.UUID{0: byte(n >> 8), 1: byte(n), 15: 1} }

// put writes rows with both parts, from one number up to another.
func (l *lab) put(kind store.Kind, from, to int, due time.Time) {
	l.Helper()
	for n := from; n < to; n++ {
		r := &store.Record{Kind: kind, ID: row(n), Version: 1, Due: due, Lookup: [][]byte{{byte(n)}}}
		l.must(errors.Join(l.SealShown(r, fmt.Append(nil, "shown ", n)), l.SealSecret(r, fmt.Append(nil, "secret ", n))))
		l.must(l.store.Store.Update(l.Context(), func(tx store.Tx) error { tx.Put(r); return nil }))
	}
}

func (l *lab) get(kind store.Kind, n int) (rec *store.Record) {
	l.Helper()
	l.must(l.store.Store.View(l.Context(), func(tx store.ReadTx) (err error) {
		rec, err = tx.Get(kind, row(n))
		return err
	}))
	return rec
}

// terms returns how many of the rows from one number up to another have a term, and checks
// that they can be read.
func (l *lab) terms(kind store.Kind, from, to int) map[uint32]int {
	l.Helper()
	terms := map[uint32]int{}
	for n := from; n < to; n++ {
		r := l.get(kind, n)
		term, _ := seal.TermOf(r.Shown)
		if secret, _ := seal.TermOf(r.Secret); secret != term {
			l.Errorf("row %d has parts of two terms", n)
		}
		terms[term]++
		secret, err := l.CopySecret(l.Context(), r)
		l.must(err)
		shown, err := l.OpenShown(l.Context(), r)
		l.must(err)
		if string(shown) != fmt.Sprint("shown ", n) || string(secret) != fmt.Sprint("secret ", n) {
			l.Errorf("row %d is %q, %q", n, shown, secret)
		}
	}
	return terms
}

func (l *lab) all(kind store.Kind, from, to int, term uint32) {
	l.Helper()
	if terms := l.terms(kind, from, to); terms[term] != to-from {
		l.Errorf("rows by term: %v, want %d of %d", terms, to-from, term)
	}
}

func (l *lab) rotate() {
	l.Helper()
	l.must(l.RotateKeys(l.Context(), func(store.Tx) error { return nil }))
	l.sealer.Woken()
}

func (l *lab) drain() {
	l.Helper()
	l.must(l.engine.Drain(l.Context()))
}

// run runs the engine for some time.
func (l *lab) run(d time.Duration) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), d)
	defer cancel()
	l.must(l.engine.Run(ctx))
}

// TestRound: a round seals all rows, in small transactions, and looks once more for rows that
// another process has sealed meanwhile.
func TestRound(t *testing.T) {
	inLab(t, func(l *lab) {
		l.put(kindRow, 0, 1000, time.Time{})
		l.rotate()
		l.drain()
		l.all(kindRow, 0, 1000, 2)
		if most := l.store.largest.Load(); most > 64 {
			l.Errorf("%d rows in one transaction", most)
		}
		if l.log.has("all records are sealed") > 0 {
			l.Error("the round ends before every process can have the term")
		}

		// A process that does not know the term yet.
		late := l.get(kindRow, 7)
		late.Version++
		keys := seal.NewBox(first(l), func() error { return nil })
		keys.Grant(keys.Keys(), 9)
		l.must(errors.Join(keys.SealShown(late, []byte("shown 7")), keys.SealSecret(late, []byte("secret 7"))))
		l.must(l.store.Store.Update(l.Context(), func(tx store.Tx) error { tx.Put(late); return nil }))
		l.run(3 * time.Minute)
		l.all(kindRow, 0, 1000, 2)
		if l.log.has("all records are sealed under the present key term") != 1 {
			l.Error("the round does not end")
		}
		l.run(24 * time.Hour)
		l.open()
		l.drain()
		if l.get(kindRow, 8).Version != 2 {
			l.Error("a row was sealed twice")
		}
	})
}

// first returns the keys of the vault as they were in the first term.
func first(l *lab) *seal.Keys {
	keys := *l.Box.Keys()
	keys.Masters = seal.Series{keys.Masters[0]}
	keys.Masters[0].State = seal.Active
	return &keys
}

// TestPace: while Run works, a round takes its time.
func TestPace(t *testing.T) {
	inLab(t, func(l *lab) {
		l.put(kindRow, 0, 4000, time.Time{})
		l.rotate()
		go l.run(time.Second)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := l.terms(kindRow, 0, 4000)[2]; n < 1000 || n > 2200 {
			l.Errorf("%d rows in a second", n)
		}
	})
}

// TestGoesOn: a process that dies leaves a round that another goes on with.
func TestGoesOn(t *testing.T) {
	inLab(t, func(l *lab) {
		l.put(kindRow, 0, 300, time.Time{})
		l.rotate()
		updates := 0
		l.store.before = func() { // after two batches nothing more is stored
			if updates++; updates > 2 {
				l.store.full.Store(true)
			}
		}
		l.drain()
		l.store.before = nil
		l.store.full.Store(false)
		if n := l.terms(kindRow, 0, 300)[2]; n != 128 {
			l.Fatalf("%d rows were sealed, want 128", n)
		}
		l.open()
		l.drain()
		if n := l.terms(kindRow, 0, 300)[2]; n != 128 {
			l.Fatalf("the round is not under a lease: %d rows", n)
		}
		time.Sleep(2 * time.Minute)
		l.drain()
		l.all(kindRow, 0, 300, 2)
	})
}

// TestFull: a full store delays a round, and nothing is lost.
func TestFull(t *testing.T) {
	inLab(t, func(l *lab) {
		l.put(kindRow, 0, 100, time.Time{})
		l.rotate()
		l.store.full.Store(true)
		if err := l.engine.Drain(l.Context()); !errors.Is(err, ledger.ErrStorageFull) {
			l.Errorf("Drain on a full store: %v", err)
		}
		l.all(kindRow, 0, 100, 1)
		l.store.full.Store(false)
		l.run(5 * time.Minute)
		l.all(kindRow, 0, 100, 2)
	})
}

// TestDamaged: damaged rows are logged, counted and skipped.
func TestDamaged(t *testing.T) {
	inLab(t, func(l *lab) {
		l.put(kindRow, 0, 50, time.Time{})
		spoil := func(n int, change func(*store.Record)) {
			r := l.get(kindRow, n)
			change(r)
			r.Version++
			l.must(l.store.Store.Update(l.Context(), func(tx store.Tx) error { tx.Put(r); return nil }))
		}
		spoil(3, func(*store.Record) {}) // the version is authenticated
		spoil(5, func(r *store.Record) { r.Shown = []byte("never sealed") })
		spoil(7, func(r *store.Record) { r.Shown[5] = 99 }) // a term that never was
		for n := 10; n < 20; n++ {
			spoil(n, func(r *store.Record) { r.Shown[20] ^= 1 })
		}
		l.store.lost = row(49)
		l.rotate()
		l.drain()
		for _, rows := range [][2]int{{0, 3}, {4, 5}, {6, 7}, {8, 10}, {20, 49}} {
			l.all(kindRow, rows[0], rows[1], 2)
		}
		if l.log.has("count=14") != 1 || l.log.has("a record of a former key term cannot be sealed anew") != 5 {
			l.Errorf("the log has\n%s", l.log.text.String())
		}
		l.run(10 * time.Minute)
		if l.log.has("all records are sealed") != 1 {
			l.Error("damaged rows keep the round from ending")
		}
	})
}

// TestBusy: a row that is in use is left until it is not.
func TestBusy(t *testing.T) {
	inLab(t, func(l *lab) {
		l.put(kindRow, 0, 10, time.Time{})
		l.put(kindWork, 0, 1, ledger.Now().Add(40*time.Second)) // as if it were claimed
		l.put(kindWork, 1, 2, ledger.Now().Add(time.Hour))
		l.busy[row(4)] = true
		l.rotate()
		l.drain()
		l.all(kindRow, 4, 5, 1)
		l.all(kindRow, 5, 10, 2)
		l.all(kindWork, 0, 1, 1)
		l.all(kindWork, 1, 2, 2)
		l.run(20 * time.Minute)
		l.all(kindRow, 4, 5, 1)
		l.all(kindWork, 0, 1, 2)
		if l.log.has("all records are sealed") > 0 {
			l.Error("the round has ended")
		}
		l.busy = nil
		l.run(2 * time.Hour)
		l.all(kindRow, 0, 10, 2)
		if l.log.has("all records are sealed") != 1 {
			l.Error("the round has not ended")
		}
	})
}

// TestWriterWins: a row that a caller writes while it is sealed anew is the caller's.
func TestWriterWins(t *testing.T) {
	inLab(t, func(l *lab) {
		l.put(kindRow, 0, 64, time.Time{})
		l.rotate()
		updates := 0
		l.store.before = func() {
			if updates++; updates > 1 {
				return
			}
			deleted := l.get(kindRow, 8)
			r := l.get(kindRow, 9)
			r.Version++
			l.must(errors.Join(l.SealShown(r, []byte("shown 9")), l.SealSecret(r, []byte("secret 9"))))
			l.must(l.store.Store.Update(l.Context(), func(tx store.Tx) error {
				tx.Put(r)
				tx.Delete(kindRow, deleted.ID)
				return nil
			}))
		}
		l.drain()
		l.all(kindRow, 0, 8, 2)
		l.all(kindRow, 9, 64, 2)
		if v := l.get(kindRow, 9).Version; v != 2 {
			l.Errorf("the row of a caller has version %d, want 2", v)
		}
		if l.log.has("background work failed") > 0 {
			l.Error("a conflict is a failure")
		}
		if err := l.View(l.Context(), func(tx store.ReadTx) error { _, err := tx.Get(kindRow, row(8)); return err }); !errors.Is(err, ledger.ErrNotFound) {
			l.Errorf("the deleted row: %v", err)
		}
	})
}

// TestFormerVault: a vault whose terms began before there were rounds gets one when it is
// opened, and a new term ends the round of the former.
func TestFormerVault(t *testing.T) {
	inLab(t, func(l *lab) {
		l.put(kindRow, 0, 10, time.Time{})
		l.rotate()
		l.must(l.store.Store.Update(l.Context(), func(tx store.Tx) error { tx.Delete(kindRound, uuid.UUID{15: 1}); return nil }))
		l.drain()
		l.all(kindRow, 0, 10, 1)
		l.open()
		l.drain()
		l.all(kindRow, 0, 10, 2)
		l.rotate()
		l.rotate()
		l.drain()
		l.all(kindRow, 0, 10, 4)
	})
}
