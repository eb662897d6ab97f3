package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
)

// small makes trees of several levels from a few records.
var small = config{fanout: fanout{block: 4, node: 3}, sync: (*os.File).Sync, rename: os.Rename, remove: os.Remove, syncDir: syncDir, room: roomIn}

func openSmall(t testing.TB, c config) *Store {
	t.Helper()
	s, err := openWith(t.Context(), filepath.Join(t.TempDir(), "vault.db"), nil, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Check(context.Background()); err != nil && !errors.Is(err, store.ErrClosed) {
			t.Errorf("Check: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func number(n int) (id uuid.UUID) {
	id[0] = 1
	binary.BigEndian.PutUint32(id[4:], uint32(n))
	return id
}

// A model answers queries from a plain map.
type model map[modelKey]*store.Record

type modelKey struct {
	kind store.Kind
	id   uuid.UUID
}

func (m model) list(q *store.Query) (ids []uuid.UUID, total int64) {
	for k, r := range m {
		inList := r.Parent == q.Parent && (q.Parent != uuid.Nil || r.Account == q.Account)
		if k.kind == q.Kind && inList && r.Class != 0 && q.Classes.Has(r.Class) &&
			bytes.Compare(k.id[:], q.Min[:]) >= 0 &&
			(q.Max == uuid.Nil || bytes.Compare(k.id[:], q.Max[:]) <= 0) &&
			(q.Live.IsZero() || r.Due.IsZero() || r.Due.After(q.Live)) &&
			(q.Lookup == nil || slices.ContainsFunc(r.Lookup, func(h []byte) bool { return bytes.Equal(h, q.Lookup) })) {
			ids = append(ids, k.id)
		}
	}
	slices.SortFunc(ids, compareIDs)
	if q.Desc {
		slices.Reverse(ids)
	}
	total = int64(len(ids))
	ids = ids[min(int(q.Offset), len(ids)):]
	return ids[:min(q.Limit, len(ids))], total
}

// TestModel compares a store of tiny nodes with a plain map under random writes. It writes
// in and out of order, changes classes, lets records lapse, and deletes parents and whole
// ranges. Transactions have several writes, and a few are refused.
func TestModel(t *testing.T) {
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		c := small
		c.noSync = true
		c.fanout = fanout{block: rapid.IntRange(2, 24).Draw(t, "block"), node: rapid.IntRange(2, 20).Draw(t, "node")}
		s, err := openWith(context.Background(), filepath.Join(outer.TempDir(), "vault.db"), nil, c)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}()
		m, next := model{}, 1000
		parents := []uuid.UUID{uuid.Nil, uuid.Nil, uuid.Nil, number(5), number(1100)}
		accounts := []uuid.UUID{{}, {1}, number(5)}
		kinds := []store.Kind{1, 2, 255}

		put := func(tx store.Tx, m model, ordered bool) {
			k := modelKey{rapid.SampledFrom(kinds).Draw(t, "kind"), number(rapid.IntRange(1, 2000).Draw(t, "id"))}
			if ordered {
				next++
				k = modelKey{1, number(next)}
			}
			r := &store.Record{
				Kind: k.kind, ID: k.id, Version: 1,
				Account: rapid.SampledFrom(accounts).Draw(t, "account"),
				Parent:  rapid.SampledFrom(parents).Draw(t, "parent"),
				Class:   uint8(rapid.IntRange(0, 3).Draw(t, "class")),
				Shown:   []byte("shown"), Secret: []byte("secret"),
			}
			if r.Parent == r.ID {
				r.Parent = uuid.Nil
			}
			if old := m[k]; old != nil {
				r.Version, r.Account, r.Parent = old.Version+1, old.Account, old.Parent
			}
			if due := rapid.IntRange(0, 30).Draw(t, "due"); due < 10 {
				r.Due = time.UnixMicro(int64(due - 5)).UTC()
			}
			for range rapid.IntRange(0, 2).Draw(t, "hashes") {
				r.Lookup = append(r.Lookup, []byte{byte(rapid.IntRange(0, 3).Draw(t, "hash"))})
			}
			tx.Put(r)
			m[k] = r
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				after := model{}
				for k, r := range m {
					after[k] = r
				}
				var want error
				err := s.Update(context.Background(), func(tx store.Tx) error {
					ordered := rapid.Bool().Draw(t, "ordered")
					for range rapid.IntRange(1, 30).Draw(t, "writes") {
						put(tx, after, ordered)
					}
					if rapid.IntRange(0, 9).Draw(t, "refuse") == 0 {
						tx.Put(&store.Record{Kind: 1, ID: number(1), Version: 77})
						want = store.ErrConflict
					}
					return nil
				})
				if !errors.Is(err, want) {
					t.Fatalf("Update: %v, want %v", err, want)
				}
				if want == nil {
					m = after
				}
			},
			"delete": func(t *rapid.T) {
				from := rapid.IntRange(1, 2000).Draw(t, "from")
				to := from + rapid.IntRange(0, 400).Draw(t, "length")
				err := s.Update(context.Background(), func(tx store.Tx) error {
					for n := from; n <= to; n++ {
						for _, kind := range kinds {
							tx.Delete(kind, number(n))
							delete(m, modelKey{kind, number(n)})
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if err := s.Check(context.Background()); err != nil {
					t.Fatal(err)
				}
				q := &store.Query{
					Kind:    rapid.SampledFrom(kinds).Draw(t, "kind"),
					Account: rapid.SampledFrom(accounts).Draw(t, "account"),
					Parent:  rapid.SampledFrom(parents).Draw(t, "parent"),
					Desc:    rapid.Bool().Draw(t, "desc"),
					Offset:  int64(rapid.IntRange(0, 100).Draw(t, "offset")),
					Limit:   rapid.IntRange(0, 40).Draw(t, "limit"),
					Count:   true,
				}
				if rapid.Bool().Draw(t, "filtered") {
					q.Classes.Add(uint8(rapid.IntRange(0, 3).Draw(t, "class")))
				}
				if rapid.Bool().Draw(t, "bounded") {
					q.Min = number(rapid.IntRange(0, 1500).Draw(t, "min"))
					q.Max = number(rapid.IntRange(0, 2500).Draw(t, "max"))
				}
				if rapid.Bool().Draw(t, "live") {
					q.Live = time.UnixMicro(int64(rapid.IntRange(-6, 6).Draw(t, "now")))
				}
				if rapid.IntRange(0, 4).Draw(t, "by lookup") == 0 {
					q.Lookup = []byte{byte(rapid.IntRange(0, 3).Draw(t, "hash"))}
				}
				ids, total := m.list(q)
				err := s.View(context.Background(), func(tx store.ReadTx) error {
					l, err := tx.List(q)
					if err != nil {
						return err
					}
					var got []uuid.UUID
					for _, r := range l.Records {
						got = append(got, r.ID)
						if w := m[modelKey{q.Kind, r.ID}]; r.Class != w.Class || r.Version != w.Version || !r.Due.Equal(w.Due) {
							return fmt.Errorf("record %v, want %v", r, w)
						}
					}
					if !slices.Equal(got, ids) || l.Total != total {
						return fmt.Errorf("query %+v: %d records of %d, want %d of %d", q, len(got), l.Total, len(ids), total)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

// The cost is the number of pages that a transaction changes or empties, and of its writes.
func TestDeletions(t *testing.T) {
	c := defaults
	c.noSync = true
	s := openSmall(t, c)
	storetest.Deletions(t, s, func(fn func(store.Tx) error) (pages int) {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			b := tx.(*updater).tx
			b.OnCommit(func() {
				stats := b.Stats()
				pages = int(stats.GetNodeCount() + stats.GetPageCount())
			})
			return fn(tx)
		})
		if err != nil {
			t.Error(err)
		}
		return pages
	})
}

// The file has zeros beyond its last page, and no more of them than it is long. Where they
// cannot be written, writes go on without.
func TestPave(t *testing.T) {
	s, ctx := openSmall(t, small), t.Context()
	next := 0
	grow := func(inside func(pages, file int64)) {
		t.Helper()
		err := s.Update(ctx, func(tx store.Tx) error { // by the goroutine that paves
			info, err := s.h.file.Stat()
			if err == nil {
				inside(tx.(*updater).tx.Size(), info.Size())
			}
			for range 8 {
				next++
				tx.Put(&store.Record{Kind: 1, ID: number(next), Version: 1, Shown: bytes.Repeat([]byte("x"), 4096)})
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	ahead := false
	for range 64 {
		grow(func(pages, file int64) {
			if s.h.pavedTo > file {
				t.Fatalf("zeros to %d, and the file has %d bytes", s.h.pavedTo, file)
			}
			if s.h.pavedTo <= pages {
				return
			}
			ahead = true
			beyond := make([]byte, s.h.pavedTo-pages)
			if _, err := s.h.file.ReadAt(beyond, pages); err != nil || len(bytes.Trim(beyond, "\x00")) > 0 {
				t.Errorf("%d bytes beyond the last page are not all zeros: %v", len(beyond), err)
			}
		})
	}
	if !ahead {
		t.Error("there are no zeros beyond the last page")
	}

	locked := s.h.file
	readOnly, err := os.Open(s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	for range 32 {
		grow(func(int64, int64) { s.h.file = readOnly })
	}
	grow(func(int64, int64) {
		if s.h.file = locked; s.h.pavedTo != math.MaxInt64 {
			t.Errorf("zeros to %d after a failure", s.h.pavedTo)
		}
	})
}

// Calls of goroutines that can run share a transaction, also if each of them wakes the
// writing goroutine.
func TestGroupOfGoroutinesThatCanRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c := defaults
	c.noSync = true
	s := openSmall(t, c)

	const callers, calls = 64, 4
	put := func(n int) error {
		r := &store.Record{Kind: 1, ID: number(n), Class: 1, Version: 1}
		return s.Update(t.Context(), func(tx store.Tx) error { tx.Put(r); return nil })
	}
	first := s.h.lastID()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for n := range calls {
				if err := put(1 + i*calls + n); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := s.h.lastID() - first; n > callers*calls/4 {
		t.Errorf("%d calls took %d transactions", callers*calls, n)
	}
}

// TestSnapshots has Views use the transactions of others, and holds that each sees every
// commit that was answered before it began, however Views and commits overlap.
func TestSnapshots(t *testing.T) {
	c := small
	c.mmapSize = 1 << 20 // a commit would wait for the View to map more of the file
	s, err := openWith(t.Context(), filepath.Join(t.TempDir(), "vault.db"), nil, c)
	if err != nil {
		t.Fatal(err)
	}
	version := func() (v uint64) {
		t.Helper()
		err := s.View(t.Context(), func(tx store.ReadTx) error {
			r, err := tx.Get(1, number(1))
			if err == nil {
				v = r.Version
			}
			return err
		})
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
		return v
	}
	resting := func() int {
		s.h.resting.mu.Lock()
		defer s.h.resting.mu.Unlock()
		return len(s.h.resting.all)
	}

	for n := range uint64(20) {
		// One View rests before the commit, one is open beside it.
		version()
		open, end, ended := make(chan struct{}), make(chan struct{}), make(chan error)
		go func() {
			ended <- s.View(t.Context(), func(tx store.ReadTx) error {
				close(open)
				<-end
				return nil
			})
		}()
		<-open
		version()
		if resting() == 0 {
			t.Fatal("no transaction is kept for the next View")
		}
		r := numbered(1)
		r.Version = n + 1
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			s.h.wake() // for another transaction, which cannot begin
			s.h.writes(nil)
			if got := version(); got != n {
				t.Errorf("version %d inside the Update of version %d", got, n+1)
			}
			tx.Put(r)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if resting() != 0 {
			t.Error("a transaction from before a commit is kept")
		}
		close(end)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if got := version(); got != n+1 {
			t.Errorf("version %d after the Update of version %d", got, n+1)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRecall: calls of one group that read, write and delete the same rows see each other's writes,
// and none of a call that was refused.
func TestRecall(t *testing.T) {
	s, err := openWith(t.Context(), filepath.Join(t.TempDir(), "vault.db"), nil, small)
	if err != nil {
		t.Fatal(err)
	}
	rise := func(tx store.Tx) error {
		for n := range 20 { // more than are recalled
			r, err := tx.Get(1, number(n))
			if errors.Is(err, store.ErrNotFound) {
				r, err = numbered(n), nil
				r.Version = 0
			}
			if err != nil {
				return err
			}
			if r.Version%5 == 4 && n%2 == 0 {
				tx.Delete(1, r.ID)
				continue
			}
			r.Version++
			r.Shown = []byte{byte(r.Version)}
			tx.Put(r)
		}
		return nil
	}
	refused := func(tx store.Tx) error {
		err := rise(tx)
		tx.Put(&store.Record{Kind: 1, ID: number(100), Version: 7})
		return err
	}

	var calls sync.WaitGroup
	for i := range 60 {
		calls.Go(func() {
			fn, want := rise, error(nil)
			if i%3 == 2 {
				fn, want = refused, store.ErrConflict
			}
			if err := s.Update(t.Context(), fn); !errors.Is(err, want) {
				t.Errorf("call %d: %v, want %v", i, err, want)
			}
		})
	}
	calls.Wait()
	if err := s.View(t.Context(), func(tx store.ReadTx) error {
		for n := range 20 {
			want := uint64(40)
			if n%2 == 0 {
				want = 0 // every fifth call deletes it
			}
			r, err := tx.Get(1, number(n))
			switch {
			case want == 0 && !errors.Is(err, store.ErrNotFound):
				t.Errorf("record %d: %v, %v, want none", n, r, err)
			case want > 0 && (err != nil || r.Version != want || !bytes.Equal(r.Shown, []byte{byte(want)})):
				t.Errorf("record %d: %v, %v, want version %d", n, r, err, want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
