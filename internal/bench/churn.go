package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// hours of a day, half of which delete the oldest tokens.
const hours = 24

// churn compresses a day of imports and deletions to a minute or two. Each hour three tenths
// of the tokens are deleted while as many are imported, and a quiet time follows. Then nine
// tenths are deleted. The file is compared with the keys and values in it.
func (b *bench) churn(ctx context.Context) (err error) {
	before := heap() // that of other parts
	var open closers
	defer open.close(&err)
	c, err := b.newChurn(ctx, &open)
	if err != nil {
		return err
	}

	n := min(b.table.Tokens, 100_000)
	if err := c.turnOver(ctx, n, 0, nil); err != nil {
		return err
	}
	for _, phase := range []struct {
		name, what string
		victim     func(live int) int
	}{
		{"oldest", "the oldest tokens are deleted, 30 % an hour", func(int) int { return 0 }},
		{"random", "then any tokens", rand.IntN},
	} {
		var size int64 // the largest after an hour
		c.peak = 0
		for range hours / 2 {
			if err := c.turnOver(ctx, n*3/10, n*3/10, phase.victim); err != nil {
				return err
			}
			settled, err := c.settle(ctx, b.span)
			if err != nil {
				return err
			}
			size = max(size, settled)
		}
		if err := b.filed(ctx, c, phase.name, phase.what, size); err != nil {
			return err
		}
	}

	if err := c.turnOver(ctx, n/100, n*9/10, rand.IntN); err != nil {
		return err
	}
	size, err := c.settle(ctx, 15*b.span)
	if err != nil {
		return err
	}
	if err := b.filed(ctx, c, "emptied", "nine tenths of the tokens were deleted", size); err != nil {
		return err
	}

	b.figures("churn/transaction", "ms", most(20), "longest write transaction of the day", milliseconds(time.Duration(c.store.longest.Load())))
	b.figures("churn/pause", "ms", most(50), "longest read of a token", milliseconds(c.slowest))
	b.figures("churn/heap", "MB", most(32), "heap at the end of the day, more than before", max(0, heap()-before)/1e6)
	return nil
}

// heap returns the bytes on the heap that are in use.
func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what sync.Pool holds outlives one
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// filed adds rows for the content of the file, which it closes and opens again.
func (b *bench) filed(ctx context.Context, c *churn, name, what string, size int64) error {
	if err := c.close(); err != nil {
		return err
	}
	f, err := look(c.path)
	if err != nil {
		return err
	}
	goal := most(2)
	if b.table.Tokens < 100_000 {
		goal = reported // a few megabytes are not compacted
	}
	b.figures("churn/"+name, "", goal, "file at the end of an hour / its keys and values: "+what, float64(size)/float64(f.live))
	b.figures("churn/"+name+"-peak", "", reported, "the same, at any time of a day that lasts a minute", float64(max(c.peak, size))/float64(f.live))
	b.figures("churn/"+name+"-free", "B", reported, "freelist, which each commit writes", float64(8*f.free))
	return c.open(ctx)
}

// A churn is a vault whose tokens come and go.
type churn struct {
	path  string
	keys  *cardvault.Keyring
	store *watched
	vault *cardvault.Vault

	mu   sync.Mutex
	live []uuid.UUID // tokens, the oldest first

	slowest time.Duration // read of a token
	peak    int64         // largest size of the file
}

func (b *bench) newChurn(ctx context.Context, open *closers) (c *churn, err error) {
	if err := b.loadKeys(); err != nil {
		return nil, err
	}
	c = &churn{path: filepath.Join(b.dir, "churn.db"), keys: b.keys}
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	open.later(func() error { return c.close() })
	return c, nil
}

func (c *churn) open(ctx context.Context) error {
	s, err := boltstore.Open(ctx, c.path, nil)
	if err != nil {
		return err
	}
	longest := int64(0)
	if c.store != nil {
		longest = c.store.longest.Load()
	}
	c.store = &watched{Store: s}
	c.store.longest.Store(longest)
	c.vault, err = cardvault.New(ctx, c.store, c.keys, nil)
	return err
}

func (c *churn) close() error { return errors.Join(c.vault.Close(), c.store.Close()) }

// turnOver imports tokens and deletes others at the same time, while one goroutine reads.
func (c *churn) turnOver(ctx context.Context, imports, deletions int, victim func(live int) int) error {
	reading, stop := context.WithCancel(ctx)
	read := make(chan error, 1)
	go func() { read <- c.reads(reading) }()

	var toImport, toDelete atomic.Int64
	toImport.Store(int64(imports))
	toDelete.Store(int64(deletions))
	err := parallel(128, func(i int) error {
		for i%2 == 0 && toImport.Add(-1) >= 0 {
			t, err := c.vault.Import(ctx, testCard(rand.IntN(1000)), bulk)
			if err != nil {
				return err
			}
			c.mu.Lock()
			c.live = append(c.live, t.ID)
			c.mu.Unlock()
		}
		for i%2 == 1 && toDelete.Add(-1) >= 0 {
			if err := c.vault.Delete(ctx, c.take(victim)); err != nil {
				return err
			}
		}
		return nil
	})
	stop()
	return errors.Join(err, <-read)
}

// take removes a live token from the list.
func (c *churn) take(victim func(live int) int) uuid.UUID {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := victim(len(c.live))
	id := c.live[i]
	if i == 0 {
		c.live = c.live[1:]
		return id
	}
	last := len(c.live) - 1
	c.live[i] = c.live[last]
	c.live = c.live[:last]
	return id
}

// reads reads tokens until ctx ends.
func (c *churn) reads(ctx context.Context) error {
	for ctx.Err() == nil {
		c.mu.Lock()
		var id uuid.UUID
		if len(c.live) > 0 {
			id = c.live[rand.IntN(len(c.live))]
		}
		c.mu.Unlock()

		start := time.Now()
		_, err := c.vault.Get(context.WithoutCancel(ctx), id)
		if err != nil && !errors.Is(err, cardvault.ErrNotFound) {
			return err
		}
		c.slowest = max(c.slowest, time.Since(start))
		info, err := os.Stat(c.path)
		if err != nil {
			return err
		}
		c.peak = max(c.peak, info.Size())
		time.Sleep(time.Millisecond)
	}
	return nil
}

// settle imports slowly until the file has not changed its size for a while. It returns the
// size.
func (c *churn) settle(ctx context.Context, quiet time.Duration) (size int64, err error) {
	for since := time.Now(); time.Since(since) < quiet; time.Sleep(5 * time.Millisecond) {
		if _, err := c.vault.Import(ctx, testCard(0), bulk); err != nil {
			return 0, err
		}
		info, err := os.Stat(c.path)
		if err != nil {
			return 0, err
		}
		if info.Size() != size {
			size, since = info.Size(), time.Now()
		}
	}
	return size, nil
}

// A content is what a file has in it.
type content struct {
	live int64 // bytes of keys and values
	free int   // pages
}

// look measures a file of bbolt.
func look(path string) (f content, err error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return f, err
	}
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, rows *bbolt.Bucket) error {
			return rows.ForEach(func(k, v []byte) error {
				f.live += int64(len(k) + len(v))
				return nil
			})
		})
	})
	if err == nil {
		err = db.Update(func(*bbolt.Tx) error { return nil }) // which counts the free pages
	}
	f.free = db.Stats().FreePageN
	return f, errors.Join(err, db.Close())
}

// A watched store measures how long its transactions take: from when the function of an
// Update begins until it is durable.
type watched struct {
	*boltstore.Store
	longest atomic.Int64

	longestView atomic.Int64
}

func (w *watched) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return w.Store.View(ctx, func(tx store.ReadTx) error {
		begun := time.Now()
		defer func() { raise(&w.longestView, int64(time.Since(begun))) }()
		return fn(tx)
	})
}

func (w *watched) Update(ctx context.Context, fn func(store.Tx) error) error {
	var begun time.Time
	err := w.Store.Update(ctx, func(tx store.Tx) error {
		begun = time.Now()
		return fn(tx)
	})
	if begun.IsZero() {
		return err
	}
	raise(&w.longest, int64(time.Since(begun)))
	return err
}

// raise sets a number that is less than n to n.
func raise(number *atomic.Int64, n int64) {
	for now := number.Load(); now < n && !number.CompareAndSwap(now, n); now = number.Load() {
	}
}
