package storetest_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/storetest"
)

func TestMain(m *testing.M) {
	storetest.Child(func(place string) (store.Store, error) {
		how, path, _ := strings.Cut(place, " ")
		return openLog(path, &logFaults{buffered: how == "buffered"})
	})
	os.Exit(m.Run())
}

// A logStore appends each Update to a file, syncs the file, and keeps all records in
// memory.
type logStore struct {
	mutant
	path   string
	faults *logFaults

	mu         sync.Mutex // guards the fields below
	log        *os.File
	buffer     *bufio.Writer
	full, lost bool
	spoiled    store.Key // under mu; the record that is damaged
}

// logFaults seeds faults into a logStore, and sets how it fails.
type logFaults struct {
	noSync, buffered, closeDeletes, forgetsDeletions bool

	full           error // defaults to store.ErrFull
	fullKeepsFirst bool
	fullForAll     bool // deletions, too

	lost      func(error) error
	lostHalf  bool
	damages   func(*reads)
	neverMend bool

	neverRepairs, hidesDamaged bool
	passesOver, searchesOver   bool // a lost record: all searches, or Lookup alone

	damageFails, damageStays, damageGoes bool // an Update with a damaged record: its reads, deletions and Puts
}

// A logWrite is a Put, or a Delete of a key.
type logWrite struct {
	Put    *store.Record
	Delete store.Key
}

func (w logWrite) apply(tx store.Tx) {
	if w.Put != nil {
		tx.Put(w.Put)
	} else {
		tx.Delete(w.Delete.Kind, w.Delete.ID)
	}
}

type logTx struct {
	store.Tx
	s      *logStore
	writes []logWrite
	failed error // of a read
}

func (tx *logTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	if (store.Key{Kind: kind, ID: id}) != tx.s.spoiled {
		return tx.Tx.Get(kind, id)
	}
	if tx.s.faults.damageFails {
		tx.failed = store.ErrDamaged
	}
	return nil, store.ErrDamaged
}

// spoils reports whether writes put a record over a damaged one, and replaces whether they delete
// that.
func (tx *logTx) spoils(spoiled store.Key) (puts, deletes bool) {
	for _, w := range tx.writes {
		switch {
		case w.Put == nil:
			deletes = deletes || w.Delete == spoiled
		case (store.Key{Kind: w.Put.Kind, ID: w.Put.ID}) == spoiled:
			puts = puts || !deletes
		}
	}
	return puts, deletes
}

func (tx *logTx) Put(r *store.Record) { tx.writes = append(tx.writes, logWrite{Put: r.Clone()}) }
func (tx *logTx) Delete(kind store.Kind, id uuid.UUID) {
	tx.writes = append(tx.writes, logWrite{Delete: store.Key{Kind: kind, ID: id}})
}

func openLog(path string, faults *logFaults) (*logStore, error) {
	log, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	s := &logStore{mutant: mutant{Store: memstore.New()}, path: path, log: log, buffer: bufio.NewWriter(log), faults: faults}
	var whole int64
	for in := bufio.NewReader(log); ; {
		var size int
		var line string
		var writes []logWrite
		if line, err = in.ReadString('\n'); err == nil {
			_, err = fmt.Sscanln(line, &size)
		}
		b := make([]byte, size)
		if err == nil {
			_, err = io.ReadFull(in, b)
		}

		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return s, log.Truncate(whole) // the cut write was not acknowledged
		}
		if err == nil {
			err = gob.NewDecoder(bytes.NewReader(b)).Decode(&writes)
		}
		if err == nil {
			err = s.Store.Update(background, func(tx store.Tx) error {
				for _, w := range writes {
					w.apply(tx)
				}
				return nil
			})
		}
		if err != nil {
			return nil, errors.Join(store.ErrDamaged, err, log.Close())
		}
		whole += int64(len(line) + size)
	}
}

func (s *logStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var writes []logWrite
	var noRoom, heals bool
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		l := &logTx{Tx: tx, s: s}
		if err := cmp.Or(fn(l), l.failed); err != nil {
			return err
		}
		var over bool
		over, heals = l.spoils(s.spoiled)
		if over && !s.faults.damageGoes || heals && s.faults.damageStays {
			return store.ErrDamaged
		}

		puts := slices.ContainsFunc(l.writes, func(w logWrite) bool { return w.Put != nil })
		if noRoom = s.full && (puts || s.faults.fullForAll); noRoom && !s.faults.fullKeepsFirst {
			return s.faults.full
		}
		if noRoom || s.lost && s.faults.lostHalf {
			l.writes = l.writes[:1]
		}
		if s.faults.forgetsDeletions {
			writes = slices.DeleteFunc(slices.Clone(l.writes), func(w logWrite) bool { return w.Put == nil })
		} else {
			writes = l.writes
		}
		for _, w := range l.writes {
			w.apply(tx)
		}
		return nil
	})

	if err == nil && heals {
		s.spoiled, s.reads = store.Key{}, reads{}
	}
	if err == nil && len(writes) > 0 {
		err = s.append(writes)
	}
	if err == nil && noRoom {
		return s.faults.full
	}
	if err == nil && s.lost {
		return s.faults.lost(store.ErrOutcomeUnknown)
	}
	return err
}

// append appends writes to the log.
func (s *logStore) append(writes []logWrite) error {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(writes); err != nil {
		return err
	}
	fmt.Fprintln(s.buffer, b.Len())
	s.buffer.Write(b.Bytes())
	if s.faults.buffered {
		return nil
	}
	if err := s.buffer.Flush(); err != nil || s.faults.noSync {
		return err
	}
	return s.log.Sync()
}

func (s *logStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.buffer.Flush()
	if s.faults.closeDeletes {
		err = errors.Join(err, s.log.Truncate(0))
	}
	if err = errors.Join(err, s.log.Close(), s.Store.Close()); errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}

// set makes the store fail, or ends the fault.
func (s *logStore) set(kind storetest.FaultKind, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch kind {
	case storetest.NoRoom:
		s.full = is
	case storetest.LostAnswer:
		s.lost = is
	}
}

// damage makes the store read a record as damaged.
func (s *logStore) damage(key store.Key) {
	s.spoiled = key
	mine := func(r *store.Record) bool { return r.Kind == key.Kind && r.ID == key.ID }
	s.get = func(tx store.ReadTx, kind store.Kind, id uuid.UUID) (*store.Record, error) {
		if kind == key.Kind && id == key.ID {
			return nil, store.ErrDamaged
		}
		return tx.Get(kind, id)
	}
	s.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
		l, err := tx.List(q)
		if err == nil && q.Lookup != nil {
			l.Records = slices.DeleteFunc(l.Records, mine)
		} else if err == nil {
			for i, r := range l.Records {
				if mine(r) {
					l.Records[i] = &store.Record{Kind: r.Kind, ID: r.ID, Account: r.Account}
				}
			}
		}
		return l, err
	}
	s.due = func(tx store.ReadTx, kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
		rs, err := tx.Due(kind, shards, until, limit)
		return slices.DeleteFunc(rs, mine), err
	}
	s.scan = func(tx store.ReadTx, kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
		rs, err := tx.Scan(kind, after, limit)
		for i, r := range rs {
			if mine(r) {
				rs[i] = &store.Record{Kind: r.Kind, ID: r.ID}
			}
		}
		return rs, err
	}
	if s.faults.damages != nil {
		s.faults.damages(&s.reads)
	}
}

// lose makes the store lack a record to which its indexes lead, until it is repaired.
func (s *logStore) lose(key store.Key) {
	s.damage(key)
	s.get = func(tx store.ReadTx, kind store.Kind, id uuid.UUID) (*store.Record, error) {
		if kind == key.Kind && id == key.ID {
			return nil, store.ErrNotFound
		}
		return tx.Get(kind, id)
	}
	s.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
		l, err := tx.List(q)
		for i, r := range l.Records {
			if r.ID == key.ID && !s.faults.passesOver {
				l.Records[i] = &store.Record{Kind: r.Kind, ID: r.ID, Account: r.Account}
			}
		}
		return l, err
	}
	s.lookup = func(tx store.ReadTx, kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
		rs, err := tx.Lookup(kind, hash, limit)
		left := slices.DeleteFunc(slices.Clone(rs), func(r *store.Record) bool { return r.ID == key.ID })
		if len(left) < len(rs) && !s.faults.passesOver && !s.faults.searchesOver {
			err = store.ErrDamaged
		}
		return left, err
	}
	s.repair = func([]byte) ([]byte, error) {
		err := s.Store.Update(background, func(tx store.Tx) error { tx.Delete(key.Kind, key.ID); return nil })
		s.get, s.list, s.lookup, s.due, s.scan = nil, nil, nil, nil, nil
		return nil, err
	}
}

// damageIndexes makes the store pass over a record in lookups, until it is repaired.
func (s *logStore) damageIndexes(key store.Key) {
	s.lookup = func(tx store.ReadTx, kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
		rs, err := tx.Lookup(kind, hash, limit)
		return slices.DeleteFunc(rs, func(r *store.Record) bool { return r.Kind == key.Kind && r.ID == key.ID }), err
	}
	s.repair = func([]byte) ([]byte, error) {
		if !s.faults.neverRepairs {
			s.lookup = nil
		}
		if s.faults.hidesDamaged {
			list := s.list
			s.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
				if list == nil {
					return tx.List(q)
				}
				l, err := list(tx, q)
				l.Records = slices.DeleteFunc(l.Records, func(r *store.Record) bool { return r.Version == 0 })
				return l, err
			}
		}
		return nil, nil
	}
}

// logHarness is the harness of logStores with faults.
func logHarness(faults *logFaults) storetest.Harness {
	if faults.full == nil {
		faults.full = store.ErrFull
	}
	if faults.lost == nil {
		faults.lost = func(err error) error { return err }
	}
	return storetest.Harness{
		Open: func(t testing.TB) store.Store {
			s, err := openLog(filepath.Join(t.TempDir(), "log"), faults)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Reopen: func(_ testing.TB, s store.Store) (store.Store, error) { return openLog(s.(*logStore).path, faults) },
		Second: func(testing.TB, store.Store) (store.Store, error) { return nil, store.ErrLocked },
		Crash: func(t testing.TB, s store.Store) (store.Store, error) {
			return openLog(filepath.Join(storetest.AfterPowerCut(t, filepath.Dir(s.(*logStore).path)), "log"), faults)
		},
		Place: func(s store.Store) string {
			how := "written"
			if faults.buffered {
				how = "buffered"
			}
			return how + " " + s.(*logStore).path
		},
		Fault: func(_ testing.TB, s store.Store, f storetest.Fault) func() {
			l := s.(*logStore)
			if f.Kind == storetest.DamagedRecord {
				l.damage(f.Record)
			}
			if f.Kind == storetest.DamagedIndexes {
				l.damageIndexes(f.Record)
			}
			if f.Kind == storetest.LostRecord {
				l.lose(f.Record)
			}
			l.set(f.Kind, true)
			return func() { l.set(f.Kind, faults.neverMend) }
		},
	}
}

// harnessMutants lists faults, each with a rule that must detect it.
var harnessMutants = []struct {
	fault string
	rule  string
	seed  func(h *storetest.Harness, f *logFaults)
}{
	{"Close deletes everything", "Reopened", func(_ *storetest.Harness, f *logFaults) { f.closeDeletes = true }},
	{"Close deletes everything", "CloseKeeps", func(_ *storetest.Harness, f *logFaults) { f.closeDeletes = true }},
	{"deletions are forgotten", "Reopened", func(_ *storetest.Harness, f *logFaults) { f.forgetsDeletions = true }},
	{"Reopen fails", "Reopened", func(h *storetest.Harness, _ *logFaults) {
		h.Reopen = func(testing.TB, store.Store) (store.Store, error) { return nil, store.ErrDamaged }
	}},
	{"nothing is synced", "PowerCut", func(_ *storetest.Harness, f *logFaults) { f.noSync = true }},
	{"deletions are forgotten", "PowerCut", func(_ *storetest.Harness, f *logFaults) { f.forgetsDeletions = true }},
	{"acknowledged writes are buffered", "Killed", func(_ *storetest.Harness, f *logFaults) { f.buffered = true }},
	{"deletions come back", "Killed", func(h *storetest.Harness, _ *logFaults) {
		again := h.Reopen
		h.Reopen = func(t testing.TB, s store.Store) (store.Store, error) {
			s, err := again(t, s)
			if err == nil {
				_ = s.Update(background, func(tx store.Tx) error {
					tx.Put(&store.Record{Kind: 1, ID: uuid.UUID{6: 0x70, 8: 0x80}, Version: 1}) // the first to be deleted
					return nil
				})
			}
			return s, err
		}
	}},
	{"a second process is not noticed", "Second", func(h *storetest.Harness, _ *logFaults) { h.Second = h.Reopen }},
	{"a lock is not ErrLocked", "Second", func(h *storetest.Harness, _ *logFaults) {
		h.Second = func(testing.TB, store.Store) (store.Store, error) { return nil, store.ErrUnavailable }
	}},
	{"the second process closes the store", "Second", func(h *storetest.Harness, _ *logFaults) {
		h.Second = func(_ testing.TB, s store.Store) (store.Store, error) {
			return nil, errors.Join(store.ErrLocked, s.Close())
		}
	}},
	{"two processes do the same job", "SecondConflicts", func(h *storetest.Harness, _ *logFaults) { h.Second = h.Reopen }},
	{"the first Close closes all", "SecondCloses", func(h *storetest.Harness, _ *logFaults) {
		h.Second = func(_ testing.TB, s store.Store) (store.Store, error) { return &mutant{Store: s}, nil }
	}},
	{"a full disk is reported as unavailable", "Full", func(_ *storetest.Harness, f *logFaults) { f.full = store.ErrUnavailable }},
	{"a full disk is an unknown error", "Full", func(_ *storetest.Harness, f *logFaults) { f.full = errors.New("no space left") }},
	{"half of an Update is kept on a full disk", "Full", func(_ *storetest.Harness, f *logFaults) { f.fullKeepsFirst = true }},
	{"a full disk prevents deletions", "Full", func(_ *storetest.Harness, f *logFaults) { f.fullForAll = true }},
	{"a full store stays full", "Full", func(_ *storetest.Harness, f *logFaults) { f.neverMend = true }},
	{"a lost answer is success", "OutcomeUnknown", func(_ *storetest.Harness, f *logFaults) {
		f.lost = func(error) error { return nil }
	}},
	{"a lost answer is reported as unavailable", "OutcomeUnknown", func(_ *storetest.Harness, f *logFaults) {
		f.lost = func(error) error { return store.ErrUnavailable }
	}},
	{"half of an Update is kept after a lost answer", "OutcomeUnknown", func(_ *storetest.Harness, f *logFaults) { f.lostHalf = true }},
	{"a damaged record is absent", "Damaged", func(_ *storetest.Harness, f *logFaults) {
		f.damages = func(r *reads) {
			get := r.get
			r.get = func(tx store.ReadTx, kind store.Kind, id uuid.UUID) (*store.Record, error) {
				got, err := get(tx, kind, id)
				if errors.Is(err, store.ErrDamaged) {
					err = store.ErrNotFound
				}
				return got, err
			}
		}
	}},
	{"a repair mends nothing", "RepairDamaged", func(_ *storetest.Harness, f *logFaults) { f.neverRepairs = true }},
	{"a repair takes a damaged record out of lists", "RepairDamaged", func(_ *storetest.Harness, f *logFaults) { f.hidesDamaged = true }},
	{"a lost record is listed as it was", "Lost", func(_ *storetest.Harness, f *logFaults) { f.passesOver = true }},
	{"a lost record is missing in a search", "Lost", func(_ *storetest.Harness, f *logFaults) { f.searchesOver = true }},
	{"a damaged record is missing in lists", "Damaged", func(_ *storetest.Harness, f *logFaults) {
		f.damages = func(r *reads) {
			list := r.list
			r.list = func(tx store.ReadTx, q *store.Query) (*store.List, error) {
				l, err := list(tx, q)
				l.Records = slices.DeleteFunc(l.Records, func(r *store.Record) bool { return r.Version == 0 })
				return l, err
			}
		}
	}},
	{"a damaged record is listed as it was", "Damaged", func(_ *storetest.Harness, f *logFaults) {
		f.damages = func(r *reads) { r.list = nil }
	}},
	{"a damaged record is missing in scans", "Damaged", func(_ *storetest.Harness, f *logFaults) {
		f.damages = func(r *reads) {
			scan := r.scan
			r.scan = func(tx store.ReadTx, kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
				rs, err := scan(tx, kind, after, limit)
				return slices.DeleteFunc(rs, func(r *store.Record) bool { return r.Version == 0 }), err
			}
		}
	}},
	{"a damaged record ends scans", "Damaged", func(_ *storetest.Harness, f *logFaults) {
		f.damages = func(r *reads) {
			r.scan = func(store.ReadTx, store.Kind, uuid.UUID, int) ([]*store.Record, error) { return nil, store.ErrDamaged }
		}
	}},
	{"an Update fails that reads a damaged record", "Damaged", func(_ *storetest.Harness, f *logFaults) { f.damageFails = true }},
	{"a damaged record cannot be deleted", "Damaged", func(_ *storetest.Harness, f *logFaults) { f.damageStays = true }},
	{"a damaged record is replaced unseen", "Damaged", func(_ *storetest.Harness, f *logFaults) { f.damageGoes = true }},
	{"a damaged record hides due records", "Damaged", func(_ *storetest.Harness, f *logFaults) {
		f.damages = func(r *reads) {
			r.due = func(store.ReadTx, store.Kind, store.Shards, time.Time, int) ([]*store.Record, error) {
				return nil, store.ErrDamaged
			}
		}
	}},
}

// Every rule must detect its faults.
func TestHarnessRulesCanFail(t *testing.T) {
	unproved := storetest.HarnessNames()
	for _, c := range harnessMutants {
		unproved = slices.DeleteFunc(unproved, func(name string) bool { return name == c.rule })
		t.Run(c.rule+"/"+c.fault, func(t *testing.T) {
			tries := 1
			if c.rule == "PowerCut" || c.rule == "Killed" {
				tries = 5 // the system may write to the disk by itself, and a process may be killed before it deletes
			}
			var failures []string
			for ; tries > 0 && len(failures) == 0 && !t.Skipped(); tries-- {
				faults := new(logFaults)
				h := logHarness(faults)
				c.seed(&h, faults)
				failures = contract.Record(t, func(t testing.TB) { storetest.CheckHarness(t, c.rule, h) })
			}
			if len(failures) == 0 && !t.Skipped() {
				t.Errorf("%s did not notice that %s", c.rule, c.fault)
			}
			for _, failure := range failures[:min(3, len(failures))] {
				t.Log(failure)
			}
		})
	}
	if len(unproved) > 0 {
		t.Errorf("no fault proves that these rules can fail: %v", unproved)
	}
}

// A store without a fault passes.
func TestHarnessRulesPassWithoutFault(t *testing.T) {
	for _, name := range storetest.HarnessNames() {
		t.Run(name, func(t *testing.T) { storetest.CheckHarness(t, name, logHarness(new(logFaults))) })
	}
}

// Parts that the harness lacks are not tested.
func TestHarnessWithoutMore(t *testing.T) {
	h := logHarness(new(logFaults))
	h.Fault = func(testing.TB, store.Store, storetest.Fault) func() { return nil }
	for _, name := range []string{"Full", "OutcomeUnknown", "Damaged", "RepairDamaged"} {
		storetest.CheckHarness(t, name, h)
	}
}
