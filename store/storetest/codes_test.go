package storetest_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
)

// A codeMutant is a cache with a fault in one of its methods. A nil method is the cache's
// own.
type codeMutant struct {
	store.CodeCache
	put    func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error
	get    func(ctx context.Context, id uuid.UUID) ([]byte, error)
	delete func(ctx context.Context, id uuid.UUID) error
	close  func() error
}

func (m *codeMutant) Put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
	if m.put != nil {
		return m.put(ctx, id, value, ttl)
	}
	return m.CodeCache.Put(ctx, id, value, ttl)
}

func (m *codeMutant) Get(ctx context.Context, id uuid.UUID) ([]byte, error) {
	if m.get != nil {
		return m.get(ctx, id)
	}
	return m.CodeCache.Get(ctx, id)
}

func (m *codeMutant) Delete(ctx context.Context, id uuid.UUID) error {
	if m.delete != nil {
		return m.delete(ctx, id)
	}
	return m.CodeCache.Delete(ctx, id)
}

func (m *codeMutant) Close() error {
	if m.close != nil {
		return m.close()
	}
	return m.CodeCache.Close()
}

// taken returns a value and erases it.
func (m *codeMutant) taken(ctx context.Context, id uuid.UUID) ([]byte, error) {
	value, err := m.CodeCache.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return value, m.CodeCache.Delete(ctx, id)
}

// valued makes Put change the values.
func (m *codeMutant) valued(edit func(value []byte) []byte) {
	m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
		return m.CodeCache.Put(ctx, id, edit(value), ttl)
	}
}

// timed makes Put change the times.
func (m *codeMutant) timed(edit func(ttl time.Duration) time.Duration) {
	m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
		return m.CodeCache.Put(ctx, id, value, edit(ttl))
	}
}

// under makes every call under another id.
func (m *codeMutant) under(edit func(id uuid.UUID) uuid.UUID) {
	m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
		return m.CodeCache.Put(ctx, edit(id), value, ttl)
	}
	m.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) { return m.CodeCache.Get(ctx, edit(id)) }
	m.delete = func(ctx context.Context, id uuid.UUID) error { return m.CodeCache.Delete(ctx, edit(id)) }
}

// ignoresContext makes the chosen calls ignore their context's end.
func (m *codeMutant) ignoresContext(put, get, delete bool) {
	if put {
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			return m.CodeCache.Put(context.WithoutCancel(ctx), id, value, ttl)
		}
	}
	if get {
		m.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
			return m.CodeCache.Get(context.WithoutCancel(ctx), id)
		}
	}
	if delete {
		m.delete = func(ctx context.Context, id uuid.UUID) error {
			return m.CodeCache.Delete(context.WithoutCancel(ctx), id)
		}
	}
}

// codeMutants lists faults, each with a rule that must detect it.
var codeMutants = []struct {
	fault string
	rule  string
	seed  func(m *codeMutant)
}{
	{"values end at a zero byte", "RoundTrip", func(m *codeMutant) {
		m.valued(func(value []byte) []byte { before, _, _ := bytes.Cut(value, []byte{0}); return before })
	}},
	{"values are trimmed", "RoundTrip", func(m *codeMutant) { m.valued(bytes.TrimSpace) }},
	{"values are text", "RoundTrip", func(m *codeMutant) {
		m.valued(func(value []byte) []byte { return bytes.ToValidUTF8(value, []byte("?")) })
	}},
	{"the longest value does not fit", "RoundTrip", func(m *codeMutant) {
		m.valued(func(value []byte) []byte { return value[:min(len(value), store.MaxCode-1)] })
	}},
	{"an empty value is dropped", "RoundTrip", func(m *codeMutant) {
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			if len(value) == 0 {
				ttl = 0
			}
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
	}},
	{"Get deletes", "RoundTrip", func(m *codeMutant) { m.get = m.taken }},
	{"values are cut", "TooLong", func(m *codeMutant) {
		m.valued(func(value []byte) []byte { return value[:min(len(value), store.MaxCode)] })
	}},
	{"a ttl of zero skips the check", "TooLong", func(m *codeMutant) {
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			if ttl <= 0 {
				return m.CodeCache.Delete(ctx, id)
			}
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
	}},
	{"the error quotes the value", "TooLong", func(m *codeMutant) {
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			if err := m.CodeCache.Put(ctx, id, value, ttl); err != nil {
				return fmt.Errorf("%w: %q", err, value)
			}
			return nil
		}
	}},
	{"a refused Put erases", "TooLong", func(m *codeMutant) {
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			err := m.CodeCache.Put(ctx, id, value, ttl)
			if errors.Is(err, store.ErrInvalid) {
				err = errors.Join(err, m.CodeCache.Delete(ctx, id))
			}
			return err
		}
	}},
	{"absent values are nil without an error", "Absent", func(m *codeMutant) {
		m.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
			value, err := m.CodeCache.Get(ctx, id)
			if errors.Is(err, store.ErrNotFound) {
				return nil, nil
			}
			return value, err
		}
	}},
	{"Get of an absent value returns another error", "Absent", func(m *codeMutant) {
		m.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
			value, err := m.CodeCache.Get(ctx, id)
			if errors.Is(err, store.ErrNotFound) {
				err = store.ErrUnavailable
			}
			return value, err
		}
	}},
	{"the first value stays", "Overwrite", func(m *codeMutant) {
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			if _, err := m.CodeCache.Get(ctx, id); err == nil && ttl > 0 {
				return nil
			}
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
	}},
	{"Delete restores the old value", "Overwrite", func(m *codeMutant) {
		var under sync.Map
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			if old, err := m.CodeCache.Get(ctx, id); err == nil {
				under.Store(id, old)
			}
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
		m.delete = func(ctx context.Context, id uuid.UUID) error {
			if old, ok := under.LoadAndDelete(id); ok {
				return m.CodeCache.Put(ctx, id, old.([]byte), time.Hour)
			}
			return m.CodeCache.Delete(ctx, id)
		}
	}},
	{"ids are masked as in UUIDv4", "IDsApart", func(m *codeMutant) {
		m.under(func(id uuid.UUID) uuid.UUID { id[6] = id[6]&0x0f | 0x40; return id })
	}},
	{"the last byte of an id is ignored", "IDsApart", func(m *codeMutant) {
		m.under(func(id uuid.UUID) uuid.UUID { id[15] = 0; return id })
	}},
	{"ids are compared as text without case", "IDsApart", func(m *codeMutant) {
		m.under(func(id uuid.UUID) uuid.UUID { copy(id[:], bytes.ToLower(id[:])); return id })
	}},
	{"a deleted id can never be put again", "Delete", func(m *codeMutant) {
		var deleted sync.Map
		m.delete = func(ctx context.Context, id uuid.UUID) error {
			deleted.Store(id, true)
			return m.CodeCache.Delete(ctx, id)
		}
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			if _, ok := deleted.Load(id); ok {
				return nil
			}
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
	}},
	{"Delete does nothing", "Delete", func(m *codeMutant) {
		m.delete = func(context.Context, uuid.UUID) error { return nil }
	}},
	{"Delete of an absent value fails", "Delete", func(m *codeMutant) {
		m.delete = func(ctx context.Context, id uuid.UUID) error {
			_, err := m.taken(ctx, id)
			return err
		}
	}},
	{"Delete returns before it is done", "DeleteRace", func(m *codeMutant) {
		var group sync.WaitGroup
		m.delete = func(ctx context.Context, id uuid.UUID) error {
			group.Go(func() { <-time.After(time.Millisecond); _ = m.CodeCache.Delete(ctx, id) })
			return nil
		}
		m.close = func() error { group.Wait(); return m.CodeCache.Close() }
	}},
	{"Get deletes the value and puts it back", "DeleteRace", func(m *codeMutant) {
		m.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
			value, err := m.taken(ctx, id)
			if err != nil {
				return nil, err
			}
			<-time.After(time.Millisecond)
			return value, m.CodeCache.Put(ctx, id, value, time.Hour)
		}
	}},
	{"times are in seconds, rounded up", "Expiry", func(m *codeMutant) {
		m.timed(func(ttl time.Duration) time.Duration { return (ttl + time.Second - 1).Truncate(time.Second) })
	}},
	{"a ttl below a second is zero", "Expiry", func(m *codeMutant) {
		m.timed(func(ttl time.Duration) time.Duration { return ttl.Truncate(time.Second) })
	}},
	{"Get extends the ttl", "Expiry", func(m *codeMutant) {
		m.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
			value, err := m.CodeCache.Get(ctx, id)
			if err != nil {
				return nil, err
			}
			return value, m.CodeCache.Put(ctx, id, value, time.Hour)
		}
	}},
	{"an expired value is empty", "Expiry", func(m *codeMutant) {
		var known sync.Map
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			known.Store(id, true)
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
		m.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
			value, err := m.CodeCache.Get(ctx, id)
			if _, ok := known.Load(id); ok && errors.Is(err, store.ErrNotFound) {
				return nil, nil
			}
			return value, err
		}
	}},
	{"all values have the ttl of the first", "TTLOfEach", func(m *codeMutant) {
		var first atomic.Int64
		m.timed(func(ttl time.Duration) time.Duration {
			first.CompareAndSwap(0, int64(ttl))
			return time.Duration(first.Load())
		})
	}},
	{"all values have the ttl of the last", "TTLOfEach", func(m *codeMutant) {
		var mu sync.Mutex
		values := map[uuid.UUID][]byte{}
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			mu.Lock()
			defer mu.Unlock()
			values[id] = bytes.Clone(value)
			for id, value := range values {
				if err := m.CodeCache.Put(ctx, id, value, ttl); err != nil {
					return err
				}
			}
			return nil
		}
	}},
	{"a zero ttl never expires", "TTLZero", func(m *codeMutant) {
		m.timed(func(ttl time.Duration) time.Duration {
			if ttl == 0 {
				ttl = 1<<63 - 1
			}
			return ttl
		})
	}},
	{"a negative ttl is an error", "TTLZero", func(m *codeMutant) {
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			if ttl < 0 {
				return store.ErrInvalid
			}
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
	}},
	{"a zero ttl keeps the old value", "TTLZero", func(m *codeMutant) {
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			if ttl <= 0 {
				return nil
			}
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
	}},
	{"a ttl below a millisecond is an error", "TTLExtremes", func(m *codeMutant) {
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			if ttl > 0 && ttl < time.Millisecond {
				return errors.New("ERR invalid expire time")
			}
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
	}},
	{"a ttl below a millisecond is an hour", "TTLExtremes", func(m *codeMutant) {
		m.timed(func(ttl time.Duration) time.Duration {
			if ttl > 0 && ttl < time.Millisecond {
				ttl = time.Hour
			}
			return ttl
		})
	}},
	{"milliseconds have 32 bits", "TTLExtremes", func(m *codeMutant) {
		m.timed(func(ttl time.Duration) time.Duration {
			return time.Duration(int32(ttl.Milliseconds()))*time.Millisecond + ttl%time.Millisecond
		})
	}},
	{"an old timer erases a later value", "OldTime", func(m *codeMutant) {
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			if ttl > 0 {
				time.AfterFunc(ttl, func() { _ = m.CodeCache.Delete(context.Background(), id) })
			}
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
	}},
	{"the first ttl of an id is kept", "OldTime", func(m *codeMutant) {
		var until sync.Map
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			if at, ok := until.LoadOrStore(id, time.Now().Add(ttl)); ok && ttl > 0 {
				ttl = time.Until(at.(time.Time))
			}
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
	}},
	{"Put keeps the slice", "Slices", func(m *codeMutant) {
		var given sync.Map
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			given.Store(id, value)
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
		m.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
			value, err := m.CodeCache.Get(ctx, id)
			if kept, ok := given.Load(id); ok && err == nil {
				value = bytes.Clone(kept.([]byte))
			}
			return value, err
		}
	}},
	{"Put clears its argument", "Slices", func(m *codeMutant) {
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			defer clear(value)
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
	}},
	{"Get returns the cache's own memory", "Slices", func(m *codeMutant) {
		var mu sync.Mutex
		held := map[uuid.UUID][]byte{}
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			mu.Lock()
			defer mu.Unlock()
			held[id] = bytes.Clone(value)
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
		m.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			if _, err := m.CodeCache.Get(ctx, id); err != nil {
				return nil, err
			}
			return held[id], nil
		}
	}},
	{"Close clears returned values", "Slices", func(m *codeMutant) {
		var returned [][]byte
		m.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
			value, err := m.CodeCache.Get(ctx, id)
			returned = append(returned, value)
			return value, err
		}
		m.close = func() error {
			for _, value := range returned {
				clear(value)
			}
			return m.CodeCache.Close()
		}
	}},
	{"calls share a buffer", "Concurrent", func(m *codeMutant) { sharedBuffer(m) }},
	{"a full cache drops new values", "Concurrent", func(m *codeMutant) {
		var mu sync.Mutex
		ids := map[uuid.UUID]bool{}
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			mu.Lock()
			defer mu.Unlock()
			if ids[id] = true; len(ids) > 8 {
				return nil
			}
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
	}},
	{"calls share a buffer", "SameID", func(m *codeMutant) { sharedBuffer(m) }},
	{"a Put during another fails", "SameID", func(m *codeMutant) {
		var busy atomic.Bool
		m.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
			if !busy.CompareAndSwap(false, true) {
				return store.ErrConflict
			}
			defer busy.Store(false)
			<-time.After(time.Millisecond)
			return m.CodeCache.Put(ctx, id, value, ttl)
		}
	}},
	{"Put ignores ctx", "EndedContext", func(m *codeMutant) { m.ignoresContext(true, false, false) }},
	{"Get ignores ctx", "EndedContext", func(m *codeMutant) { m.ignoresContext(false, true, false) }},
	{"Delete ignores ctx", "EndedContext", func(m *codeMutant) { m.ignoresContext(false, false, true) }},
	{"an error of ctx hides an erasure", "EndedContext", func(m *codeMutant) {
		m.delete = func(ctx context.Context, id uuid.UUID) error {
			return errors.Join(m.CodeCache.Delete(context.WithoutCancel(ctx), id), ctx.Err())
		}
	}},
	{"closing again fails", "Closed", func(m *codeMutant) {
		var closed atomic.Bool
		m.close = func() error {
			if closed.Swap(true) {
				return store.ErrClosed
			}
			return m.CodeCache.Close()
		}
	}},
	{"Close does nothing", "Closed", func(m *codeMutant) { m.close = func() error { return nil } }},
	{"a closed cache has nothing to delete", "Closed", func(m *codeMutant) {
		m.delete = func(ctx context.Context, id uuid.UUID) error {
			if err := m.CodeCache.Delete(ctx, id); !errors.Is(err, store.ErrClosed) {
				return err
			}
			return nil
		}
	}},
	{"a closed cache is unavailable", "CloseAmidCalls", func(m *codeMutant) {
		m.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
			value, err := m.CodeCache.Get(ctx, id)
			if errors.Is(err, store.ErrClosed) {
				err = store.ErrUnavailable
			}
			return value, err
		}
	}},
}

// sharedBuffer makes each Get return the value read last by any of them.
func sharedBuffer(m *codeMutant) {
	var buffer atomic.Pointer[[]byte]
	m.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
		value, err := m.CodeCache.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		buffer.Store(&value)
		<-time.After(time.Millisecond)
		return append(slices.Clone(*buffer.Load()), value[min(len(value), len(*buffer.Load())):]...), nil
	}
}

// Every rule must detect its faults.
func TestCodeRulesCanFail(t *testing.T) {
	noticed := contract.Faults(t, storetest.CodeNames())
	for _, c := range codeMutants {
		noticed(c.rule, c.fault, func(t *testing.T) []string {
			m := &codeMutant{CodeCache: codes.New(1000, nil)}
			t.Cleanup(func() {
				if err := m.CodeCache.Close(); err != nil {
					t.Error(err)
				}
			})
			c.seed(m)
			return contract.Record(t, func(t testing.TB) { storetest.CheckCodes(t, c.rule, m) })
		})
	}
}

// A mutant without a fault passes, so that a failure is due to the fault.
func TestCodeRulesPassWithoutFault(t *testing.T) {
	storetest.RunCodes(t, sharedCodes())
}

// A sharedCache shares its values with others, as caches on one server do.
type sharedCache struct {
	codeMutant
	down *atomic.Bool // true while the server is down
}

// shares returns a cache that shares values with others.
func shares(values store.CodeCache, down *atomic.Bool) *sharedCache {
	c := &sharedCache{codeMutant{CodeCache: values}, down}
	var ended atomic.Bool
	reach := func(ctx context.Context) error {
		switch {
		case ended.Load():
			return store.ErrClosed
		case down.Load():
			return cmp.Or(ctx.Err(), store.ErrUnavailable)
		}
		return nil
	}
	c.put = func(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
		if err := reach(ctx); err != nil {
			return err
		}
		return values.Put(ctx, id, value, ttl)
	}
	c.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
		if err := reach(ctx); err != nil {
			return nil, err
		}
		return values.Get(ctx, id)
	}
	c.delete = func(ctx context.Context, id uuid.UUID) error {
		if err := reach(ctx); err != nil {
			return err
		}
		return values.Delete(ctx, id)
	}
	c.close = func() error { ended.Store(true); return nil }
	return c
}

// sharedCodes is the harness of caches that share values in memory.
func sharedCodes() storetest.CodesHarness {
	return storetest.CodesHarness{
		Open: func(testing.TB) store.CodeCache { return shares(codes.New(1000, nil), new(atomic.Bool)) },
		Reopen: func(testing.TB, store.CodeCache) (store.CodeCache, error) {
			return shares(codes.New(1000, nil), new(atomic.Bool)), nil
		},
		Second: func(_ testing.TB, c store.CodeCache) (store.CodeCache, error) {
			return shares(c.(*sharedCache).CodeCache, c.(*sharedCache).down), nil
		},
		Fault: func(_ testing.TB, c store.CodeCache) func() {
			down := c.(*sharedCache).down
			down.Store(true)
			return func() { down.Store(false) }
		},
	}
}

// Every rule that needs more than Open must detect its faults.
func TestCodesHarnessRulesCanFail(t *testing.T) {
	// faulty seeds a fault into the first cache, and lets Second open a faultless one.
	faulty := func(seed func(c *sharedCache)) func(h *storetest.CodesHarness) {
		return func(h *storetest.CodesHarness) {
			open := h.Open
			h.Open = func(t testing.TB) store.CodeCache {
				c := open(t)
				seed(c.(*sharedCache))
				return c
			}
		}
	}
	unproved := storetest.CodesHarnessNames()
	for _, m := range []struct {
		fault, rule string
		seed        func(h *storetest.CodesHarness)
	}{
		{"values survive a restart", "Reopened", func(h *storetest.CodesHarness) { h.Reopen = h.Second }},
		{"values are not shared", "Second", func(h *storetest.CodesHarness) { h.Second = h.Reopen }},
		{"read values are remembered", "Second", faulty(func(c *sharedCache) {
			get, remembered := c.get, map[uuid.UUID][]byte{}
			c.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
				if value, ok := remembered[id]; ok {
					return value, nil
				}
				value, err := get(ctx, id)
				if err == nil {
					remembered[id] = value
				}
				return value, err
			}
		})},
		{"Close erases shared values", "SecondCloses", faulty(func(c *sharedCache) { c.close = c.CodeCache.Close })},
		{"an unreachable value is absent", "Unreachable", faulty(func(c *sharedCache) {
			get := c.get
			c.get = func(ctx context.Context, id uuid.UUID) ([]byte, error) {
				value, err := get(ctx, id)
				if errors.Is(err, store.ErrUnavailable) {
					err = store.ErrNotFound
				}
				return value, err
			}
		})},
		{"Delete hides its failure", "Unreachable", faulty(func(c *sharedCache) {
			c.delete = func(ctx context.Context, id uuid.UUID) error { return c.CodeCache.Delete(ctx, id) }
		})},
	} {
		unproved = slices.DeleteFunc(unproved, func(name string) bool { return name == m.rule })
		t.Run(m.rule+"/"+m.fault, func(t *testing.T) {
			h := sharedCodes()
			m.seed(&h)
			failures := contract.Record(t, func(t testing.TB) { storetest.CheckCodesHarness(t, m.rule, h) })
			if len(failures) == 0 {
				t.Errorf("%s did not notice that %s", m.rule, m.fault)
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
