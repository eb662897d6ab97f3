package lastuse_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/lastuse"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/ledgertest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

const (
	kindKey store.Kind = iota + 10
	kindUse
)

var families = ledger.Families{kindUse: {Beside: kindKey}}

// A counted store counts transactions, or refuses Updates.
type counted struct {
	store.Store
	views, updates atomic.Int64
	fails          atomic.Bool
	before         atomic.Pointer[func()] // called once, before the next Update
}

func (s *counted) View(ctx context.Context, fn func(store.ReadTx) error) error {
	s.views.Add(1)
	return s.Store.View(ctx, fn)
}

func (s *counted) Update(ctx context.Context, fn func(store.Tx) error) error {
	if f := s.before.Swap(nil); f != nil {
		(*f)()
	}
	if s.fails.Load() {
		return store.ErrUnavailable
	}
	s.updates.Add(1)
	return s.Store.Update(ctx, fn)
}

// A logged text may be written while it is read.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A rig has the Times of a vault in a store.
type rig struct {
	*lastuse.Times
	t     *testing.T
	store *counted
	of    ledger.Account
	log   logged
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, store: &counted{Store: memstore.New()}}
	l := ledgertest.On(t, r.store, families)
	r.of = l.In(l.First)
	r.Times = r.process()
	return r
}

// process returns the Times of another process of the vault.
func (r *rig) process() *lastuse.Times {
	return lastuse.New(lastuse.Config{Ledger: r.of.Ledger, Log: slog.New(slog.NewTextHandler(&r.log, nil)), Keys: kindKey, Uses: kindUse})
}

// in runs a test in a bubble, half an hour after an hour has begun.
func in(t *testing.T, test func(t *testing.T, r *rig)) {
	bubble.Test(t, func(t *testing.T) {
		time.Sleep(30 * time.Minute)
		r := newRig(t)
		test(t, r)
		r.Close()
	})
}

// key stores a key.
func (r *rig) key() uuid.UUID {
	r.t.Helper()
	row, err := r.of.NewRow()
	if err != nil {
		r.t.Fatal(err)
	}
	key := r.of.NewRecord(kindKey, row)
	if err := errors.Join(r.of.SealShown(key, nil), r.of.Update(r.t.Context(), ledger.Step, func(tx store.Tx) error {
		tx.Put(key)
		return nil
	})); err != nil {
		r.t.Fatal(err)
	}
	return row
}

// record returns the stored record of the uses of a key, nil if there is none.
func (r *rig) record(key uuid.UUID) *store.Record {
	r.t.Helper()
	read := map[uuid.UUID]*store.Record{}
	if err := r.of.View(r.t.Context(), func(tx store.ReadTx) error {
		return r.Read(tx, &store.List{Records: []*store.Record{{ID: key, Account: r.of.ID}}}, read)
	}); err != nil {
		r.t.Fatal(err)
	}
	return read[key]
}

// is checks which time of a use is stored.
func (r *rig) is(key uuid.UUID, want time.Time) {
	r.t.Helper()
	if got, err := r.Open(r.t.Context(), r.record(key)); err != nil || !got.Equal(want) {
		r.t.Errorf("last used at %v, %v, want %v", got, err, want)
	}
}

// use notes uses of keys now.
func (r *rig) use(of *lastuse.Times, keys ...uuid.UUID) {
	for _, key := range keys {
		of.Note(r.of.ID, key, time.Now())
	}
}

func thisHour() time.Time { return time.Now().UTC().Truncate(time.Hour) }

// TestOneWriteAnHour: uses are written together, a minute later and without a call, once an hour
// for each key.
func TestOneWriteAnHour(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		keys := []uuid.UUID{r.key(), r.key(), r.key()}
		before := r.store.updates.Load()
		for range 1000 {
			r.use(r.Times, keys[0], keys[1])
		}
		time.Sleep(59 * time.Second)
		r.is(keys[0], time.Time{})
		time.Sleep(2 * time.Second)
		looked := r.store.views.Load()
		r.use(r.Times, keys[0])
		time.Sleep(2 * time.Minute)
		if n := r.store.views.Load() - looked; n > 0 {
			t.Errorf("a use in an hour that is written has read %d times", n)
		}
		r.is(keys[0], thisHour())
		r.is(keys[1], thisHour())
		r.is(keys[2], time.Time{})
		if n := r.store.updates.Load() - before; n != 1 {
			t.Errorf("%d writes in an hour", n)
		}

		former := thisHour()
		time.Sleep(time.Hour)
		r.use(r.Times, keys[0])
		r.Note(r.of.ID, keys[0], former) // by a call that was slow
		time.Sleep(61 * time.Second)
		r.is(keys[0], thisHour())
		r.is(keys[1], former)
		if n := r.store.updates.Load() - before; n != 2 {
			t.Errorf("%d writes in two hours", n)
		}
	})
}

// TestManyKeys: the uses of many keys are written in few transactions, all of them.
func TestManyKeys(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		var keys []uuid.UUID
		for range 250 {
			keys = append(keys, r.key())
		}
		before := r.store.updates.Load()
		r.use(r.Times, keys...)
		time.Sleep(61 * time.Second)
		if n := r.store.updates.Load() - before; n != 3 {
			t.Errorf("%d writes for 250 keys", n)
		}
		for _, key := range keys {
			r.is(key, thisHour())
		}
	})
}

// TestDeletedKeys: a key that was deleted before its use is written, or meanwhile, leaves nothing,
// and other keys are written.
func TestDeletedKeys(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		early, late, kept := r.key(), r.key(), r.key()
		remove := func(key uuid.UUID) {
			if err := r.store.Store.Update(t.Context(), func(tx store.Tx) error { tx.Delete(kindKey, key); return nil }); err != nil {
				t.Error(err)
			}
		}
		r.use(r.Times, early, late, kept)
		remove(early)
		before := func() { remove(late) }
		r.store.before.Store(&before)
		time.Sleep(61 * time.Second)
		if r.record(early) != nil || r.record(late) != nil {
			t.Error("a deleted key has a last use")
		}
		r.is(kept, thisHour())
	})
}

// TestProcesses: of several processes the latest hour counts, and a process with a clock that
// runs ahead does not hold it for ever.
func TestProcesses(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		other, key, ahead := r.process(), r.key(), r.key()
		defer other.Close()
		former := thisHour()
		r.use(r.Times, key)
		time.Sleep(time.Hour - 40*time.Second)
		r.Note(r.of.ID, key, former) // known already
		r.use(other, key)
		if err := other.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.is(key, thisHour())
		late := r.process()
		late.Note(r.of.ID, key, former)
		if err := late.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.is(key, thisHour())

		other.Note(r.of.ID, ahead, time.Now().Add(1000*time.Hour))
		if err := other.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.use(r.Times, ahead)
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.is(ahead, thisHour())

		// Both write at the same time: the slower one does so a minute later.
		key = r.key()
		time.Sleep(time.Hour)
		r.use(r.Times, key)
		r.use(other, key)
		before := func() {
			if err := other.Flush(t.Context()); err != nil {
				t.Error(err)
			}
		}
		r.store.before.Store(&before)
		if err := r.Flush(t.Context()); err != nil {
			t.Errorf("a conflict is an error: %v", err)
		}
		time.Sleep(61 * time.Second)
		r.is(key, thisHour())
		if v := r.record(key).Version; v != 1 {
			t.Errorf("one hour was written %d times", v)
		}
	})
}

// TestStoreFails: uses outlast a store that fails. The log says so, once a minute at most and
// without a key.
func TestStoreFails(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		key := r.key()
		r.store.fails.Store(true)
		r.use(r.Times, key)
		hour := thisHour()
		time.Sleep(10*time.Minute + time.Second)
		if n := strings.Count(r.log.String(), "could not be stored and will be retried"); n == 0 || n > 10 || strings.Contains(r.log.String(), key.String()) {
			t.Errorf("the log is %s", r.log.String())
		}
		r.store.fails.Store(false)
		time.Sleep(61 * time.Second)
		r.is(key, hour)
	})
}

// TestDamagedUse: a damaged record is an error where it is read, and whole after the next hour.
func TestDamagedUse(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		key := r.key()
		r.use(r.Times, key)
		time.Sleep(61 * time.Second)
		damaged := r.record(key).Clone()
		damaged.Version++
		damaged.Shown[len(damaged.Shown)-1] ^= 1
		if err := r.store.Store.Update(t.Context(), func(tx store.Tx) error { tx.Put(damaged); return nil }); err != nil {
			t.Fatal(err)
		}
		if at, err := r.Open(t.Context(), r.record(key)); !errors.Is(err, ledger.ErrDamaged) {
			t.Errorf("a damaged record is %v, %v", at, err)
		}

		time.Sleep(time.Hour)
		r.use(r.Times, key)
		time.Sleep(61 * time.Second)
		r.is(key, thisHour())
	})
}

// TestClose: what was noted is written when the vault is closed, and what is noted afterwards
// starts nothing. A store that hangs holds it up for seconds.
func TestClose(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		key, later := r.key(), r.key()
		r.use(r.Times, key)
		r.Close()
		r.is(key, thisHour())
		before := r.store.updates.Load()
		r.use(r.Times, later)
		time.Sleep(time.Hour)
		if r.store.updates.Load() != before {
			t.Error("a closed vault writes")
		}
	})
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		var hangs atomic.Bool
		l := ledgertest.On(t, hanging{memstore.New(), &hangs}, families)
		times := lastuse.New(lastuse.Config{Ledger: l, Log: slog.New(slog.DiscardHandler), Keys: kindKey, Uses: kindUse})
		times.Note(l.First, r.key(), time.Now())
		hangs.Store(true)
		begin := time.Now()
		times.Close()
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("Close takes %v", d)
		}
	})
}

// A hanging store answers nothing, from the time that it is set.
type hanging struct {
	store.Store
	hangs *atomic.Bool
}

func (s hanging) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if s.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Store.View(ctx, fn)
}

// TestMemory: a caller that uses more keys than there is room for does not fill the memory.
func TestMemory(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		key := r.key()
		for range 1 << 15 {
			r.Note(r.of.ID, uuid.New(), time.Now())
		}
		r.use(r.Times, key)
		time.Sleep(61 * time.Second)
		r.is(key, time.Time{})
	})
}
