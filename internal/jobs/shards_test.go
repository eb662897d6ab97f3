package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const kindLease store.Kind = 11

// outcome writes the outcome of a job: a text, and due again in an hour. If the lease is
// lost, it writes nothing.
func (b *bench) outcome(ctx context.Context, j *jobs.Job, text string) error {
	next := *j.Record
	next.Version++
	next.Due = ledger.Now().Add(time.Hour)
	if err := b.SealShown(&next, []byte(text)); err != nil {
		return err
	}
	return b.In(uuid.Nil).Update(ctx, ledger.Step, func(tx store.Tx) error {
		holds, err := j.Holds(tx)
		if err == nil && !holds {
			return jobs.ErrLeft
		}
		tx.Put(&next)
		return err
	})
}

// text returns the text of a job.
func (b *bench) text(id uuid.UUID) string {
	b.Helper()
	plain, err := b.OpenShown(b.Context(), b.record(id))
	if err != nil {
		b.Fatal(err)
	}
	return string(plain)
}

// drainOf does the due work in another process.
func (b *bench) drainOf(e *jobs.Engine, done int) {
	b.Helper()
	if err := e.Drain(b.Context()); err != nil {
		b.Error(err)
	}
	if b.begun() != done {
		b.Errorf("the jobs done are %q, want %d of them", b.done, done)
	}
}

// begun returns how many jobs were begun.
func (b *bench) begun() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.done)
}

// inShards is like inBench, for jobs divided into shards. It passes the bench to do.
func inShards(t *testing.T, workers int, do func(*bench, context.Context, *jobs.Job) error, f func(*bench)) {
	var b *bench
	k := jobs.Kind{Workers: workers, Longest: 10 * time.Second, Leases: kindLease, Do: func(ctx context.Context, j *jobs.Job) error { return do(b, ctx, j) }}
	inBench(t, k, func(is *bench) {
		b = is
		f(b)
	})
}

// TestOneWrite: each job costs one write, of its outcome. All jobs together cost two more,
// to take the shards and to give them back. An idle vault writes nothing.
func TestOneWrite(t *testing.T) {
	do := func(b *bench, ctx context.Context, j *jobs.Job) error {
		if j.Doubtful {
			b.Error("a job that no process has begun is doubtful")
		}
		return b.outcome(ctx, j, "done")
	}
	inShards(t, 1, do, func(b *bench) {
		for n := range 300 {
			b.add(fmt.Sprint(n))
		}
		before := b.store.updates.Load()
		b.drain(300)
		if n := b.store.updates.Load() - before; n != 302 {
			b.Errorf("%d writes, want 302", n)
		}
		before = b.store.updates.Load()
		b.drain(300)
		if n := b.store.updates.Load() - before; n > 0 {
			b.Errorf("%d writes by an idle vault", n)
		}
	})
}

// TestLostLease: a process that hangs keeps its shards for one lease. Then another process
// does the jobs, which are doubtful, and later writes of the first process are not stored.
func TestLostLease(t *testing.T) {
	var first *jobs.Job
	texts := map[uuid.UUID]bool{}
	do := func(b *bench, ctx context.Context, j *jobs.Job) error {
		if first == nil {
			first = j
			time.Sleep(time.Minute)
			err := b.outcome(ctx, j, "mine")
			if !errors.Is(err, jobs.ErrLeft) {
				b.Errorf("the outcome under a lost lease: %v", err)
			}
			return err
		}
		texts[j.Record.ID] = j.Doubtful
		return b.outcome(ctx, j, "theirs")
	}
	inShards(t, 1, do, func(b *bench) {
		ids := []uuid.UUID{b.add("a"), b.add("b"), b.add("c")}
		ended := make(chan error, 1)
		go func() { ended <- b.engine.Drain(b.Context()) }()
		other := b.another()
		time.Sleep(15*time.Second - 1)
		synctest.Wait()
		b.drainOf(other, 1)
		time.Sleep(time.Microsecond)
		b.drainOf(other, 4)
		if err := <-ended; err != nil {
			b.Error(err)
		}
		for _, id := range ids {
			if b.text(id) != "theirs" || !texts[id] {
				b.Errorf("%q is stored, doubtful: %v", b.text(id), texts[id])
			}
		}
	})
}

// TestGivenBack: a process that ends gives its shards back, and another one takes over at
// once. Only the failed job is doubtful.
func TestGivenBack(t *testing.T) {
	var doubtful []string
	do := func(b *bench, ctx context.Context, j *jobs.Job) error {
		if j.Doubtful {
			doubtful = append(doubtful, string(j.Plain))
		}
		if b.begun() == 1 {
			return errors.New("failed")
		}
		return b.outcome(ctx, j, "done")
	}
	inShards(t, 1, do, func(b *bench) {
		b.add("a")
		b.drain(1)
		b.drain(1) // the failed job is left alone until its lease ends
		b.drainOf(b.another(), 2)
		time.Sleep(time.Second)
		b.add("b")
		b.drainOf(b.another(), 3)
		if !slices.Equal(doubtful, []string{"a"}) {
			b.Errorf("the doubtful jobs are %q", doubtful)
		}
	})
}

// TestFailedInShard: a failed job is left alone until its lease ends and is then doubtful.
// It does not keep other jobs from being done.
func TestFailedInShard(t *testing.T) {
	fails, doubtful := true, 0
	do := func(b *bench, ctx context.Context, j *jobs.Job) error {
		if j.Doubtful {
			doubtful++
		}
		if fails && string(j.Plain) == "bad" {
			return errors.New("failed")
		}
		return b.outcome(ctx, j, "done")
	}
	inShards(t, 1, do, func(b *bench) {
		b.add("bad")
		b.drain(1)
		time.Sleep(time.Second)
		b.add("good")
		b.drain(2)
		fails = false
		time.Sleep(14*time.Second - time.Nanosecond)
		b.drain(2)
		time.Sleep(time.Nanosecond)
		b.drain(3)
		if doubtful != 1 {
			b.Errorf("%d jobs are doubtful", doubtful)
		}
	})
}

// TestShares: running processes divide the shards among them within seconds, and do each job
// once.
func TestShares(t *testing.T) {
	do := func(b *bench, ctx context.Context, j *jobs.Job) error {
		time.Sleep(time.Second)
		return b.outcome(ctx, j, "done")
	}
	inShards(t, 4, do, func(b *bench) {
		for n := range 120 { // every shard has as much work
			id := uuid.New()
			id[15] = byte(n)
			b.addAs(id, fmt.Sprint(n))
		}
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 3)
		for _, e := range []*jobs.Engine{b.engine, b.another(), b.another()} {
			go func() { ended <- e.Run(ctx) }()
		}
		time.Sleep(25 * time.Second) // one process alone takes 30 seconds, three that share at once take 10
		synctest.Wait()
		if b.begun() != 120 {
			b.Errorf("%d jobs were done", b.begun())
		}
		slices.Sort(b.done)
		if n := len(slices.Compact(b.done)); n != 120 {
			b.Errorf("%d different jobs were done", n)
		}
		cancel()
		for range 3 {
			if err := <-ended; err != nil {
				b.Error(err)
			}
		}
	})
}

// TestSlowJobKeepsItsShard: the lease of a slow job is renewed as long as its process makes
// progress with other jobs.
func TestSlowJobKeepsItsShard(t *testing.T) {
	do := func(b *bench, ctx context.Context, j *jobs.Job) error {
		if string(j.Plain) == "slow" && !j.Doubtful {
			time.Sleep(time.Hour)
		}
		return b.outcome(ctx, j, "done")
	}
	inShards(t, 2, do, func(b *bench) {
		id := b.add("slow")
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.engine.Run(ctx) }()
		synctest.Wait()
		other := b.another()
		for range 20 {
			time.Sleep(7 * time.Second)
			if err := other.Drain(b.Context()); err != nil {
				b.Error(err)
			}
		}
		if b.begun() != 2 || b.text(id) != "done" { // the same process does it once more, after a lease
			b.Errorf("the jobs done are %q", b.done)
		}
		cancel()
		<-ended
	})
}

// TestEditedLeases: unreadable leases bind no process, whatever they contain.
func TestEditedLeases(t *testing.T) {
	do := func(b *bench, ctx context.Context, j *jobs.Job) error { return b.outcome(ctx, j, "done") }
	inShards(t, 1, do, func(b *bench) {
		err := b.store.Update(b.Context(), func(tx store.Tx) error {
			for n := range byte(20) { // some ids belong to no shard
				tx.Put(&store.Record{Kind: kindLease, ID: uuid.UUID{15: n + 1}, Version: 1, Shown: []byte("edited")})
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		for n := range 50 {
			b.add(fmt.Sprint(n))
		}
		b.drain(50)
	})
}

// TestManyFail: failed jobs wait behind jobs that have waited longer, however many they are
// and however long they take. They are doubtful, whichever process does them again.
func TestManyFail(t *testing.T) {
	for _, test := range []struct {
		bad, workers int
		takes, turn  time.Duration
	}{{4500, 64, 0, time.Minute}, {300, 1, time.Second, 2 * time.Hour}} {
		t.Run(fmt.Sprint(test.bad), func(t *testing.T) {
			var mu sync.Mutex
			fails, sure := true, map[uuid.UUID]bool{} // guarded by mu
			do := func(b *bench, ctx context.Context, j *jobs.Job) error {
				mu.Lock()
				fails := fails
				if !fails && !j.Doubtful {
					sure[j.Record.ID] = true
				}
				mu.Unlock()
				if string(j.Plain) == "bad" && fails {
					time.Sleep(test.takes)
					return errors.New("failed")
				}
				return b.outcome(ctx, j, "done")
			}
			inShards(t, test.workers, do, func(b *bench) {
				var bad []uuid.UUID
				for range test.bad {
					bad = append(bad, b.add("bad"))
				}
				time.Sleep(time.Second)
				good := b.add("good")
				ctx, cancel := context.WithCancel(b.Context())
				ended := make(chan error, 1)
				go func() { ended <- b.engine.Run(ctx) }()
				time.Sleep(test.turn)
				if b.text(good) != "done" {
					t.Error("the good job has not had its turn")
				}
				cancel()
				<-ended

				mu.Lock()
				fails = false
				mu.Unlock()
				for range 10 {
					time.Sleep(15 * time.Second)
					if err := b.another().Drain(b.Context()); err != nil {
						t.Error(err)
					}
				}
				for _, id := range bad {
					if b.text(id) != "done" || sure[id] {
						t.Fatalf("a failed job has the text %q, certain: %v", b.text(id), sure[id])
					}
				}
			})
		})
	}
}

// waiters returns how many processes are stored as waiting for shards.
func (b *bench) waiters() (n int) {
	b.Helper()
	err := b.View(b.Context(), func(tx store.ReadTx) error {
		found, err := tx.Scan(kindLease, uuid.UUID{15: store.ShardCount}, 100)
		n = len(found)
		return err
	})
	if err != nil {
		b.Error(err)
	}
	return n
}

// TestWaiterLeaves: a process is no longer stored as waiting once it has ended, or has found
// no work left.
func TestWaiterLeaves(t *testing.T) {
	do := func(b *bench, ctx context.Context, j *jobs.Job) error {
		time.Sleep(5 * time.Second)
		return b.outcome(ctx, j, "done")
	}
	inShards(t, store.ShardCount, do, func(b *bench) {
		for shard := range byte(store.ShardCount) {
			b.addAs(uuid.UUID{0: 1, 15: shard}, "a")
		}
		ended := make(chan error, 2)
		go func() { ended <- b.engine.Drain(b.Context()) }()
		synctest.Wait()
		b.drainOf(b.another(), store.ShardCount)
		if n := b.waiters(); n != 0 {
			b.Errorf("%d ended processes are stored as waiting", n)
		}

		ctx, cancel := context.WithCancel(b.Context())
		go func() { ended <- b.another().Run(ctx) }()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := b.waiters(); n != 1 {
			b.Errorf("%d processes are waiting, want only the running one", n)
		}
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if n := b.waiters(); n != 0 {
			b.Errorf("%d processes are waiting without work", n)
		}
		cancel()
		if err := errors.Join(<-ended, <-ended); err != nil {
			b.Error(err)
		}
	})
}

// TestWaiterDamaged: a record that the store cannot read keeps no process from its share.
// Neither does an edited record, which is deleted.
func TestWaiterDamaged(t *testing.T) {
	do := func(b *bench, ctx context.Context, j *jobs.Job) error {
		time.Sleep(time.Second)
		return b.outcome(ctx, j, "done")
	}
	inShards(t, 2, do, func(b *bench) {
		b.store.damaged = uuid.UUID{1}
		err := b.store.Update(b.Context(), func(tx store.Tx) error {
			for n := range byte(2) {
				tx.Put(&store.Record{Kind: kindLease, ID: uuid.UUID{n + 1}, Version: 1, Due: ledger.Now(), Shown: []byte("edited")})
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		for n := range 120 { // every shard has as much work
			id := uuid.New()
			id[15] = byte(n)
			b.addAs(id, fmt.Sprint(n))
		}
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 2)
		go func() { ended <- b.engine.Run(ctx) }()
		time.Sleep(time.Millisecond)
		go func() { ended <- b.another().Run(ctx) }()
		time.Sleep(45 * time.Second) // one process alone takes 60 seconds, two that share at once take 30
		synctest.Wait()
		if b.begun() != 120 {
			b.Errorf("%d jobs were done", b.begun())
		}
		cancel()
		if err := errors.Join(<-ended, <-ended); err != nil {
			b.Error(err)
		}
		b.store.damaged = uuid.Nil
		if n := b.waiters(); n != 1 {
			b.Errorf("%d records are left, want only the unreadable one", n)
		}
	})
}

// TestGivenBackBesideLost: a process that lost one shard still gives back its others.
func TestGivenBackBesideLost(t *testing.T) {
	do := func(b *bench, ctx context.Context, j *jobs.Job) error {
		if b.begun() > 1 {
			return b.outcome(ctx, j, "done")
		}
		err := b.store.Update(ctx, func(tx store.Tx) error {
			r, err := tx.Get(kindLease, uuid.UUID{15: 4})
			if err == nil {
				r.Version++
				tx.Put(r)
			}
			return err
		})
		return errors.Join(err, b.outcome(ctx, j, "done"))
	}
	inShards(t, 1, do, func(b *bench) {
		b.addAs(uuid.UUID{0: 1, 15: 7}, "first")
		b.drain(1)
		for shard := range byte(store.ShardCount) {
			b.addAs(uuid.UUID{0: 2, 15: shard}, "next")
		}
		b.drainOf(b.another(), 1+store.ShardCount)
	})
}

// TestDoubtBesideRenewal: a job that fails during a renewal of its lease stays doubtful.
func TestDoubtBesideRenewal(t *testing.T) {
	var mu sync.Mutex
	fails, doubtful := true, false // guarded by mu
	do := func(b *bench, ctx context.Context, j *jobs.Job) error {
		mu.Lock()
		defer mu.Unlock()
		switch text := string(j.Plain); {
		case !fails:
			doubtful = doubtful || text == "late" && j.Doubtful
			return b.outcome(ctx, j, text+" done")
		case text == "late":
			mu.Unlock()
			time.Sleep(4 * time.Second)
			mu.Lock()
		}
		return errors.New("failed")
	}
	inShards(t, 2, do, func(b *bench) {
		for n := range byte(64) {
			b.addAs(uuid.UUID{0: n, 15: 5}, "bad") // in a shard of their own, which is doubtful
		}
		late := b.addAs(uuid.UUID{0: 1, 15: 7}, "late")
		began := time.Now()
		b.store.begin = func() {
			if d := time.Since(began); d > 2*time.Second && d < 4*time.Second { // during the renewal
				time.Sleep(3 * time.Second)
			}
		}
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.engine.Run(ctx) }()
		time.Sleep(8 * time.Second)
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
		if r := b.record(late); !r.Due.After(began.Add(8 * time.Second)) {
			b.Fatalf("the job that failed is due at %v", r.Due)
		}

		mu.Lock()
		fails = false
		mu.Unlock()
		time.Sleep(15 * time.Second)
		if err := b.another().Drain(b.Context()); err != nil {
			b.Error(err)
		}
		if b.text(late) != "late done" || !doubtful {
			b.Errorf("the job has the text %q, doubtful: %v", b.text(late), doubtful)
		}
	})
}

// unlease deletes the leases of the first shards, as an edit of the store would.
func (b *bench) unlease(shards int) {
	b.Helper()
	err := b.store.Update(b.Context(), func(tx store.Tx) error {
		for shard := range shards {
			tx.Delete(kindLease, uuid.UUID{15: byte(shard) + 1})
		}
		return nil
	})
	if err != nil {
		b.Error(err)
	}
}

// TestLeaseGone: a shard whose lease was deleted is doubtful for every process that finds
// leases of others.
func TestLeaseGone(t *testing.T) {
	var mu sync.Mutex
	calls, sure := 0, 0 // calls for the job that hangs; guarded by mu
	do := func(b *bench, ctx context.Context, j *jobs.Job) error {
		if string(j.Plain) != "hangs" {
			time.Sleep(20 * time.Second)
			return b.outcome(ctx, j, "done")
		}
		mu.Lock()
		calls++
		first := calls == 1
		if !first && !j.Doubtful {
			sure++
		}
		mu.Unlock()
		if first {
			time.Sleep(time.Hour)
		}
		return b.outcome(ctx, j, "done")
	}
	check := func(b *bench) {
		mu.Lock()
		defer mu.Unlock()
		if calls != 2 || sure != 0 {
			b.Errorf("%d calls, %d of them without doubt", calls, sure)
		}
	}

	inShards(t, 1, do, func(b *bench) {
		b.addAs(uuid.UUID{0: 1}, "hangs")
		ended := make(chan error, 1)
		go func() { ended <- b.engine.Drain(b.Context()) }()
		time.Sleep(time.Second)
		b.unlease(1)
		b.drainOf(b.another(), 2)
		check(b)
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})

	// This process takes its shards again, and leaves half of them to another process.
	calls, sure = 0, 0
	inShards(t, 32, do, func(b *bench) {
		b.addAs(uuid.UUID{0: 1}, "hangs")
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 2)
		go func() { ended <- b.engine.Run(ctx) }()
		time.Sleep(time.Second)
		b.unlease(store.ShardCount)
		time.Sleep(3 * time.Second)
		for shard := range byte(store.ShardCount / 2) {
			b.addAs(uuid.UUID{0: 2, 15: shard + store.ShardCount/2}, "long")
		}
		time.Sleep(2 * time.Second)
		go func() { ended <- b.another().Run(ctx) }()
		time.Sleep(8 * time.Second) // before the first process tries again
		synctest.Wait()
		check(b)
		cancel()
		if err := errors.Join(<-ended, <-ended); err != nil {
			b.Error(err)
		}
	})
}

// TestGivenBackAtRest: a running process gives its shards back when it has no work, and not
// before. Another process does the jobs stored then at once. Neither process writes
// afterwards.
func TestGivenBackAtRest(t *testing.T) {
	do := func(b *bench, ctx context.Context, j *jobs.Job) error {
		if string(j.Plain) == "long" {
			time.Sleep(5 * time.Second)
		}
		return b.outcome(ctx, j, "done")
	}
	inShards(t, 2, do, func(b *bench) {
		b.add("long")
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.engine.Run(ctx) }()
		other := b.another()
		time.Sleep(time.Second)
		b.add("a")
		b.drainOf(other, 1) // the owner of the shards is still working

		time.Sleep(4*time.Second + 500*time.Millisecond)
		synctest.Wait()
		if n := b.begun(); n != 2 {
			b.Errorf("%d jobs were done by the owner of the shards", n)
		}
		for shard := range byte(store.ShardCount) {
			b.addAs(uuid.UUID{0: 1, 15: shard}, "b")
		}
		b.drainOf(other, 2+store.ShardCount)

		before := b.store.updates.Load()
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if n := b.store.updates.Load() - before; n != 0 {
			b.Errorf("%d writes by an idle process", n)
		}
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
}
