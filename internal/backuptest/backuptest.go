// Package backuptest tests backups of any store, and restores them into any other.
package backuptest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/backup"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/ledgertest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

const (
	writers   = 4
	kinds     = 5
	firstKind = store.Kind(10)
	clock     = store.Kind(200) // has one record of each writer, with the number of its Updates
)

// patience limits how long a test waits for a writer.
const patience = 2 * time.Minute

// A writer changes records of its own, and remembers how.
type writer struct {
	id     int
	random *rand.Rand
	rows   map[store.Key]*store.Record   // as they are
	past   []map[store.Key]*store.Record // the writes of each Update; nil: deleted
	done   atomic.Int64
}

// record returns a random record of the writer, of a version.
func (w *writer) record(k store.Key, version uint64) *store.Record {
	r := &store.Record{Kind: k.Kind, ID: k.ID, Account: uuid.UUID{1, byte(w.id % 2)}, Class: uint8(k.Kind % 3), Version: version}
	if k.Kind == firstKind+1 {
		r.Parent = uuid.UUID{2, byte(w.id)}
	}
	if w.random.IntN(3) == 0 {
		r.Due = time.UnixMicro(1e15 + int64(w.random.IntN(1000))).UTC()
	}
	for n := range w.random.IntN(3) {
		r.Lookup = append(r.Lookup, []byte{byte(n), byte(w.random.IntN(20))})
	}
	r.Shown, r.Secret = w.bytes(), w.bytes()
	return r
}

func (w *writer) bytes() []byte {
	b := make([]byte, 1+w.random.IntN(300))
	for i := range b {
		b[i] = byte(w.random.Uint32())
	}
	return b
}

// update makes some changes in one transaction.
func (w *writer) update(s store.Store, most int) error {
	written := map[store.Key]*store.Record{}
	for range 1 + w.random.IntN(most) {
		k := store.Key{Kind: firstKind + store.Kind(w.random.IntN(kinds))}
		for i := range k.ID {
			k.ID[i] = byte(w.random.Uint32())
		}
		k.ID[15] = byte(w.id)
		version := uint64(1)
		if w.random.IntN(3) > 0 {
			for old, r := range w.rows { // any
				k, version = old, r.Version+1
				break
			}
		}
		if _, again := written[k]; again {
			continue
		}
		written[k] = nil
		if version == 1 || w.random.IntN(3) > 0 {
			written[k] = w.record(k, version)
		}
	}
	at := store.Key{Kind: clock, ID: uuid.UUID{1, byte(w.id)}}
	written[at] = &store.Record{Kind: at.Kind, ID: at.ID, Version: uint64(len(w.past) + 1)}

	err := s.Update(context.Background(), func(tx store.Tx) error {
		for k, r := range written {
			if r == nil {
				tx.Delete(k.Kind, k.ID)
			} else {
				tx.Put(r)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	w.past = append(w.past, written)
	for k, r := range written {
		if k.Kind == clock {
			continue
		}
		if w.rows[k] = r; r == nil {
			delete(w.rows, k)
		}
	}
	w.done.Add(1)
	return nil
}

// state returns the records of the writer after n Updates.
func (w *writer) state(n uint64) map[store.Key]*store.Record {
	all := map[store.Key]*store.Record{}
	for _, written := range w.past[:n] {
		for k, r := range written {
			if all[k] = r; r == nil {
				delete(all, k)
			}
		}
	}
	return all
}

// A slowWriter takes a stream, and waits until others have written between two chunks.
type slowWriter struct {
	bytes.Buffer
	writers []*writer
	calls   int
	allowed atomic.Int64 // Updates of all writers, so that no machine is too slow for the backup
}

func (s *slowWriter) total() (n int64) {
	for _, w := range s.writers {
		n += w.done.Load()
	}
	return n
}

func (s *slowWriter) Write(b []byte) (int, error) {
	before := s.total()
	s.allowed.Store(before + 40)
	if s.calls++; s.calls < 30 {
		for end := time.Now().Add(patience); s.total() < before+8; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return 0, errors.New("the other writers wait for the backup")
			}
		}
	}
	return s.Buffer.Write(b)
}

// BesideWrites backs a store up while others write to it, and restores the backup into each of
// the others. They then have the records of one instant.
func BesideWrites(t *testing.T, from store.Store, most int, into ...store.Store) {
	l := ledgertest.On(t, from, ledger.Families{})
	slow := new(slowWriter)
	for i := range writers {
		w := &writer{id: i, random: rand.New(rand.NewPCG(uint64(i), 1)), rows: map[store.Key]*store.Record{}}
		for range 20 {
			if err := w.update(from, 50); err != nil {
				t.Fatal(err)
			}
		}
		slow.writers = append(slow.writers, w)
	}

	least := make([]uint64, writers)
	for i, w := range slow.writers {
		least[i] = uint64(w.done.Load())
	}
	report := duringWrites(t, from, slow, func() (*backup.Report, error) {
		return backup.Make(t.Context(), backup.Config{Ledger: l, Most: most}, slow)
	})
	if report.Bytes != int64(slow.Len()) || report.Damaged != 0 {
		t.Errorf("report %+v of a backup of %d bytes", report, slow.Len())
	}

	for i, place := range into {
		restored, err := backup.Restore(t.Context(), place, ledgertest.Ring(), []io.Reader{bytes.NewReader(slow.Bytes())}, false, nil)
		if err != nil {
			t.Fatalf("place %d: %v", i, err)
		}
		if restored.Records != report.Records || !restored.At.Equal(report.At) {
			t.Errorf("place %d: restored %+v of %+v", i, restored, report)
		}
		compare(t, place, slow.writers, least)
	}
}

// Chain makes a full backup and increments of a store that changes in between, and beside some of
// them. It restores them into each of the others, where one restoration ends early and is repeated.
// Each then has the records of the last instant, and no other.
func Chain(t *testing.T, seed uint64, from store.Store, into ...store.Store) {
	l := ledgertest.On(t, from, ledger.Families{})
	random := rand.New(rand.NewPCG(seed, 2))
	slow := new(slowWriter)
	for i := range writers {
		slow.writers = append(slow.writers, &writer{id: i, random: rand.New(rand.NewPCG(seed, uint64(i))), rows: map[store.Key]*store.Record{}})
	}

	var streams [][]byte
	var manifest []byte
	var last *backup.Report
	var least []uint64
	for range 2 + random.IntN(4) {
		for _, w := range slow.writers {
			for range 1 + random.IntN(8) {
				if err := w.update(from, 40); err != nil {
					t.Fatal(err)
				}
			}
		}
		least = nil
		for _, w := range slow.writers {
			least = append(least, uint64(w.done.Load()))
		}

		var next bytes.Buffer
		c := backup.Config{Ledger: l, Manifest: &next, Most: []int{0, 300}[random.IntN(2)]}
		if last != nil {
			c.Since = bytes.NewReader(manifest)
		}
		slow.Buffer, slow.calls = bytes.Buffer{}, 24
		before := last
		last = linkOf(t, from, slow, c, random.IntN(2) == 0)
		if before != nil && last.Since != before.ID || last.Bytes != int64(slow.Len()) {
			t.Errorf("report %+v of %d bytes, after %+v", last, slow.Len(), before)
		}
		streams, manifest = append(streams, slow.Bytes()), next.Bytes()
	}

	for i, place := range into {
		cut := random.IntN(len(streams))
		_, err := restoreChain(t, place, streams, cut, random.IntN(len(streams[cut])))
		if !errors.Is(err, ledger.ErrDamaged) {
			t.Fatalf("seed %d, place %d: link %d of %d that is cut off: %v", seed, i, cut, len(streams), err)
		}
		restored, err := restoreChain(t, place, streams, 0, len(streams[0]))
		if err != nil {
			t.Fatalf("seed %d, place %d: %v", seed, i, err)
		}
		if restored.Report.ID != last.ID || len(restored.Bases) != len(streams)-1 || !restored.At.Equal(last.At) {
			t.Errorf("seed %d, place %d: restored %+v of %+v", seed, i, restored, last)
		}
		compare(t, place, slow.writers, least)
	}
}

// linkOf makes one backup of a chain, beside writes or not.
func linkOf(t *testing.T, from store.Store, slow *slowWriter, c backup.Config, beside bool) *backup.Report {
	t.Helper()
	if beside {
		return duringWrites(t, from, slow, func() (*backup.Report, error) { return backup.Make(t.Context(), c, slow) })
	}
	report, err := backup.Make(t.Context(), c, &slow.Buffer)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// restoreChain restores backups, one of which is cut off.
func restoreChain(t *testing.T, place store.Store, streams [][]byte, cut, at int) (*backup.Restored, error) {
	t.Helper()
	var readers []io.Reader
	for i, s := range streams {
		if i == cut {
			s = s[:at]
		}
		readers = append(readers, bytes.NewReader(s))
	}
	return backup.Restore(t.Context(), place, ledgertest.Ring(), readers, false, nil)
}

// duringWrites makes a backup while the writers write.
func duringWrites(t *testing.T, s store.Store, slow *slowWriter, work func() (*backup.Report, error)) *backup.Report {
	t.Helper()
	stop := make(chan struct{})
	errs := make(chan error, writers)
	var group sync.WaitGroup
	for _, w := range slow.writers {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if slow.total() >= slow.allowed.Load() {
					time.Sleep(time.Millisecond)
					continue
				}
				if err := w.update(s, 5); err != nil {
					errs <- fmt.Errorf("writer %d: %w", w.id, err)
					return
				}
			}
		})
	}

	report, err := work()
	close(stop)
	group.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// compare checks that a store has the records of all writers at one instant.
func compare(t *testing.T, s store.Store, all []*writer, least []uint64) {
	t.Helper()
	got := Records(t, s)
	want := map[store.Key]*store.Record{}
	for i, w := range all {
		at := got[store.Key{Kind: clock, ID: uuid.UUID{1, byte(i)}}]
		if at == nil || at.Version < least[i] || at.Version > uint64(len(w.past)) {
			t.Fatalf("writer %d: the record of its time is %v, of %d to %d", i, at, least[i], len(w.past))
		}
		for k, r := range w.state(at.Version) {
			want[k] = r
		}
	}

	for k := range got {
		if k.Kind == ledger.KindMeta || k.Kind == ledger.KindAccount {
			delete(got, k)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d records, want %d", len(got), len(want))
	}
	for k, r := range want {
		if why := Differs(got[k], r); why != "" {
			t.Fatalf("record %v: %s", k, why)
		}
	}
	SameAnswers(t, s, want)
}

// Records returns all records of a store.
func Records(t testing.TB, s store.Store) map[store.Key]*store.Record {
	t.Helper()
	all := map[store.Key]*store.Record{}
	for kind := range 255 {
		for after := (uuid.UUID{}); ; {
			var found []*store.Record
			err := s.View(t.Context(), func(tx store.ReadTx) (err error) {
				found, err = tx.Scan(store.Kind(kind+1), after, 1000)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}

			for _, r := range found {
				all[store.Key{Kind: r.Kind, ID: r.ID}], after = r, r.ID
			}
			if len(found) < 1000 {
				break
			}
		}
	}
	return all
}

// Differs says in what two records differ.
func Differs(a, b *store.Record) string {
	switch {
	case a == nil || b == nil:
		return "one is missing"
	case a.Account != b.Account || a.Parent != b.Parent || a.Class != b.Class || a.Version != b.Version:
		return "columns differ"
	case !a.Due.Equal(b.Due):
		return "Due differs"
	case !slices.EqualFunc(a.Lookup, b.Lookup, bytes.Equal):
		return "Lookup differs"
	case !bytes.Equal(a.Shown, b.Shown) || !bytes.Equal(a.Secret, b.Secret):
		return "content differs"
	}
	return ""
}

// SameAnswers checks that a store lists, finds and counts records as a store in memory does
// that has them.
func SameAnswers(t *testing.T, s store.Store, records map[store.Key]*store.Record) {
	t.Helper()
	model := memstore.New()
	err := model.Update(t.Context(), func(tx store.Tx) error {
		for _, r := range records {
			tx.(store.Loader).Load(r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []store.Kind{firstKind, firstKind + 1, firstKind + 2, firstKind + 3, firstKind + 4} {
		is, want := answers(t, s, kind), answers(t, model, kind)
		for i := range want {
			if is[i] != want[i] {
				t.Errorf("kind %d: %s, want %s", kind, is[i], want[i])
			}
		}
	}
}

// answers returns what a store finds of a kind.
func answers(t testing.TB, s store.Store, kind store.Kind) (texts []string) {
	t.Helper()
	err := s.View(t.Context(), func(tx store.ReadTx) error {
		texts = nil
		ids := func(what string, rs []*store.Record, err error) error {
			text := what
			for _, r := range rs {
				text += " " + r.ID.String()[:8]
			}
			texts = append(texts, text)
			return err
		}

		var errs []error
		for n := range 4 {
			q := &store.Query{Kind: kind, Account: uuid.UUID{1, byte(n % 2)}, Limit: 100, Count: true}
			if kind == firstKind+1 {
				q.Parent = uuid.UUID{2, byte(n)}
			}
			list, err := tx.List(q)
			if err != nil {
				return err
			}
			errs = append(errs, ids(fmt.Sprint("list of ", list.Total), list.Records, nil))
			keys, err := tx.Children(uuid.UUID{2, byte(n)}, 1000)
			texts, errs = append(texts, fmt.Sprint("children ", len(keys))), append(errs, err)
		}

		for n := range 40 {
			found, err := tx.Lookup(kind, []byte{byte(n % 2), byte(n / 2)}, 100)
			errs = append(errs, ids("found", found, err))
		}
		due, err := tx.Due(kind, store.AllShards, time.UnixMicro(1e15+500), 100)
		for _, r := range due {
			texts = append(texts, fmt.Sprint("due ", r.Due))
		}
		return errors.Join(append(errs, err)...)
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}
