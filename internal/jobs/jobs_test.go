package jobs_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

const kindWork store.Kind = 10

// A wrapper does not encrypt the keys.
type wrapper struct{}

func (wrapper) KeyID() string { return "test" }
func (wrapper) Wrap(_ context.Context, b, _ []byte) ([]byte, error) {
	return append([]byte{}, b...), nil
}
func (wrapper) Unwrap(_ context.Context, b, _ []byte) ([]byte, error) {
	return append([]byte{}, b...), nil
}

// A bench is a ledger with an engine that does one kind of work.
type bench struct {
	*testing.T
	*ledger.Ledger
	engine *jobs.Engine
	kind   jobs.Kind
	store  *counted

	mu   sync.Mutex
	done []string // the texts of the jobs that were done; guarded by mu for writing
}

// A counted store counts calls of Update, and cannot read the record damaged.
type counted struct {
	store.Store
	updates atomic.Int64
	begin   func()    // called before each Update, if set
	damaged uuid.UUID // id of the unreadable record
}

func (s *counted) Update(ctx context.Context, fn func(store.Tx) error) error {
	s.updates.Add(1)
	if s.begin != nil {
		s.begin()
	}
	return s.Store.Update(ctx, fn)
}

func (s *counted) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(damagedTx{tx, s.damaged}) })
}

// A damagedTx cannot read the record id.
type damagedTx struct {
	store.ReadTx
	id uuid.UUID
}

func (tx damagedTx) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	found, err := tx.ReadTx.Scan(kind, after, limit)
	if slices.ContainsFunc(found, func(r *store.Record) bool { return r.ID == tx.id }) {
		return nil, store.ErrDamaged
	}
	return found, err
}

func (tx damagedTx) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	due, err := tx.ReadTx.Due(kind, shards, until, limit+1)
	due = slices.DeleteFunc(due, func(r *store.Record) bool { return r.ID == tx.id })
	return due[:min(len(due), limit)], err
}

// inBench runs f in a bubble with jobs of kind k. Its Do records each job, and then calls
// the Do of k.
func inBench(t *testing.T, k jobs.Kind, f func(b *bench)) {
	bubble.Test(t, func(t *testing.T) {
		s := &counted{Store: memstore.New()}
		l := ledger.New(ledger.Config{
			Store:    s,
			Ring:     ledger.Ring{{Wrapper: wrapper{}}},
			ModeName: func(uint8) string { return "test" },
			Log:      slog.New(slog.DiscardHandler),
			Wrote:    func(context.Context, ledger.Operation, uuid.UUID, uuid.UUID, error) {},
			Mistrust: func(answer string) { t.Error("the store returned", answer) },
		})
		first := func() (uuid.UUID, []*store.Record, error) {
			row, err := l.NewRow()
			if err != nil {
				return uuid.Nil, nil, err
			}
			r := l.In(uuid.Nil).NewRecord(ledger.KindAccount, row)
			return l.In(uuid.Nil).Mask(ledger.KindAccount, row), []*store.Record{r}, l.SealShown(r, nil)
		}
		if err := l.Load(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		b := &bench{T: t, Ledger: l, store: s}
		do := k.Do
		k.Records, k.Do = kindWork, func(ctx context.Context, j *jobs.Job) error {
			b.mu.Lock()
			b.done = append(b.done, string(j.Plain))
			b.mu.Unlock()
			return do(ctx, j)
		}
		b.kind = k
		b.engine = b.another()
		f(b)
	})
}

// another returns the engine of another process that does the same work.
func (b *bench) another() *jobs.Engine {
	return jobs.New(b.Ledger, slog.New(slog.DiscardHandler), nil, []jobs.Kind{b.kind})
}

// add stores a job with a text that is due now, and returns its id.
func (b *bench) add(text string) uuid.UUID {
	b.Helper()
	return b.addAs(uuid.New(), text)
}

// addAs is like add, with a given id.
func (b *bench) addAs(id uuid.UUID, text string) uuid.UUID {
	b.Helper()
	r := &store.Record{Kind: kindWork, ID: id, Version: 1, Due: ledger.Now()}
	if err := errors.Join(b.SealShown(r, []byte(text)), b.In(uuid.Nil).Put(b.Context(), ledger.Step, uuid.Nil, r)); err != nil {
		b.Fatal(err)
	}
	return r.ID
}

// record returns the record of a job, or nil if it does not exist.
func (b *bench) record(id uuid.UUID) (r *store.Record) {
	b.Helper()
	err := b.View(b.Context(), func(tx store.ReadTx) (err error) {
		r, err = tx.Get(kindWork, id)
		return err
	})
	if err != nil && err != ledger.ErrNotFound {
		b.Fatal(err)
	}
	return r
}

// drain does the due work, and expects that done jobs have been done in total.
func (b *bench) drain(done int) {
	b.Helper()
	if err := b.engine.Drain(b.Context()); err != nil {
		b.Error(err)
	}
	if len(b.done) != done {
		b.Errorf("the jobs done are %q, want %d of them", b.done, done)
	}
}

// TestLease: a job that fails, or whose process dies, is left alone until its lease ends and
// is then done again.
func TestLease(t *testing.T) {
	k := jobs.Kind{Workers: 1, Longest: 10 * time.Second, Do: func(context.Context, *jobs.Job) error { return errors.New("failed") }}
	inBench(t, k, func(b *bench) {
		id := b.add("a")
		b.drain(1)
		if r := b.record(id); time.Until(r.Due) != 15*time.Second || r.Version != 2 {
			b.Errorf("version %d is due in %v", r.Version, time.Until(r.Due))
		}
		time.Sleep(15*time.Second - 1)
		b.drain(1)
		time.Sleep(1 * time.Nanosecond)
		b.drain(2)
	})
}

// TestNeglectAfterDrain: an engine that was only drained warns of work that Drain has left.
func TestNeglectAfterDrain(t *testing.T) {
	k := jobs.Kind{Workers: 1, Longest: 10 * time.Second, Do: func(context.Context, *jobs.Job) error { return errors.New("failed") }}
	inBench(t, k, func(b *bench) {
		var log strings.Builder
		engine := jobs.New(b.Ledger, slog.New(slog.NewTextHandler(&log, nil)), nil, []jobs.Kind{b.kind})
		defer engine.Stop()
		b.add("a")
		if err := engine.Drain(b.Context()); err != nil {
			b.Error(err)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := strings.Count(log.String(), "work is overdue"); got != 1 {
			b.Errorf("%d warnings: %s", got, &log)
		}
	})
}

// TestFinish: a finished job is deleted, and a continued job is due again at the time it
// sets.
func TestFinish(t *testing.T) {
	var b *bench
	k := jobs.Kind{Workers: 2, Longest: time.Second, Do: func(ctx context.Context, j *jobs.Job) error {
		if string(j.Plain) == "end" {
			return b.engine.Finish(ctx, j.Record)
		}
		j.Record.Due = ledger.Now().Add(time.Hour)
		return b.engine.Again(ctx, j.Record, []byte("end"))
	}}
	inBench(t, k, func(is *bench) {
		b = is
		id := b.add("begin")
		b.drain(1)
		time.Sleep(time.Hour)
		b.drain(2)
		if b.record(id) != nil || b.done[1] != "end" {
			b.Errorf("the jobs done are %q, and the record remains", b.done)
		}
	})
}

// TestTakenOver: after another process has taken a job over, writes of the first process are
// not stored.
func TestTakenOver(t *testing.T) {
	var b *bench
	k := jobs.Kind{Workers: 1, Longest: time.Second, Do: func(ctx context.Context, j *jobs.Job) error {
		next := *j.Record
		next.Version++
		if err := errors.Join(b.SealShown(&next, []byte("theirs")), b.In(uuid.Nil).Put(ctx, ledger.Step, uuid.Nil, &next)); err != nil {
			return err
		}
		return b.engine.Finish(ctx, j.Record)
	}}
	inBench(t, k, func(is *bench) {
		b = is
		id := b.add("mine")
		b.drain(1)
		if r := b.record(id); r == nil || r.Version != 3 {
			b.Errorf("the job of another process is %+v", r)
		}
	})
}

// TestClaim: Claim can postpone a job, and Confirm decides inside the transaction.
func TestClaim(t *testing.T) {
	k := jobs.Kind{
		Workers: 1,
		Longest: time.Second,
		Claim: func(_ context.Context, j *jobs.Job) error {
			switch string(j.Plain) {
			case "wait":
				j.Wait, j.Record.Due = true, ledger.Now().Add(time.Hour)
			case "drop":
				j.Confirm = func(store.ReadTx) (jobs.Verdict, error) { return jobs.Drop, nil }
			case "leave":
				j.Confirm = func(store.ReadTx) (jobs.Verdict, error) { return jobs.Leave, nil }
			}
			return nil
		},
		Do: func(context.Context, *jobs.Job) error { return nil },
	}
	inBench(t, k, func(b *bench) {
		wait, drop, leave, take := b.add("wait"), b.add("drop"), b.add("leave"), b.add("take")
		b.drain(1)
		if b.done[0] != "take" || b.record(take).Version != 2 {
			b.Errorf("the jobs done are %q", b.done)
		}
		if r := b.record(wait); r.Version != 2 || time.Until(r.Due) != time.Hour {
			b.Errorf("the job that waits is due in %v", time.Until(r.Due))
		}
		if b.record(drop) != nil {
			b.Error("the dropped job still exists")
		}
		if b.record(leave).Version != 1 {
			b.Error("the job to be left alone was written")
		}
	})
}

// TestNoWorkers: a vault leaves alone work that it has no workers for, but knows its lease.
func TestNoWorkers(t *testing.T) {
	k := jobs.Kind{Longest: 10 * time.Second, Do: func(context.Context, *jobs.Job) error { return nil }}
	inBench(t, k, func(b *bench) {
		id := b.add("a")
		b.drain(0)
		if b.record(id).Version != 1 || b.engine.Lease(kindWork) != 15*time.Second {
			b.Error("the job was written")
		}
	})
}

// TestDamaged: an unreadable record is reported, and does not keep other jobs from being
// done.
func TestDamaged(t *testing.T) {
	k := jobs.Kind{Workers: 1, Longest: time.Second, Do: func(context.Context, *jobs.Job) error { return nil }}
	inBench(t, k, func(b *bench) {
		r := b.record(b.add("a"))
		r.Version++
		r.Shown[len(r.Shown)-1] ^= 1
		if err := b.In(uuid.Nil).Put(b.Context(), ledger.Step, uuid.Nil, r); err != nil {
			b.Fatal(err)
		}
		b.add("b")
		if err := b.engine.Drain(b.Context()); !errors.Is(err, ledger.ErrDamaged) || len(b.done) != 1 {
			b.Errorf("%v; the jobs done are %q", err, b.done)
		}
	})
}

// TestUnbegun: jobs that are claimed and not begun when Run ends are due again at once.
func TestUnbegun(t *testing.T) {
	var b *bench
	var begun, free chan struct{}
	k := jobs.Kind{Workers: 1, Longest: 10 * time.Second, Do: func(ctx context.Context, j *jobs.Job) error {
		begun <- struct{}{}
		<-free
		return b.engine.Finish(ctx, j.Record)
	}}
	inBench(t, k, func(is *bench) {
		b, begun, free = is, make(chan struct{}, 8), make(chan struct{}) // of the bubble
		for _, text := range []string{"a", "b", "c"} {
			b.add(text)
		}
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.engine.Run(ctx) }()
		<-begun
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(free)
		if err := <-ended; err != nil {
			b.Error(err)
		}
		if len(b.done) != 1 {
			b.Fatalf("the jobs done are %q", b.done)
		}
		b.drain(3)
	})
}

// TestRun: Run does jobs when they are due, notices jobs stored meanwhile, and returns when
// its context ends.
func TestRun(t *testing.T) {
	var b *bench
	k := jobs.Kind{Workers: 1, Longest: time.Second, Do: func(ctx context.Context, j *jobs.Job) error {
		return b.engine.Finish(ctx, j.Record)
	}}
	inBench(t, k, func(is *bench) {
		b = is
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		also := make(chan struct{})
		go func() {
			ended <- b.engine.Run(ctx, func(ctx context.Context) { <-ctx.Done(); close(also) })
		}()
		synctest.Wait()
		id := b.add("a")
		b.engine.Due(nil, b.record(id))
		synctest.Wait()
		if len(b.done) != 1 || !b.engine.Running() {
			b.Errorf("the jobs done are %q", b.done)
		}
		cancel()
		if err := <-ended; err != nil || b.engine.Running() {
			b.Error(err)
		}
		<-also
	})
}
