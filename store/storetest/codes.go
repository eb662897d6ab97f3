package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
)

// RunCodes checks every observable rule of the contract of a [store.CodeCache] for which
// the harness has the functions. It cannot observe that a value is overwritten, and never
// written to a disk: prove that where you can look inside.
//
// The suite waits on the real clock, for a second in all, and judges a slow cache
// leniently: it fails a cache that keeps a value too long or loses it well before its time.
func RunCodes(t *testing.T, h CodesHarness) {
	for _, r := range codeRules {
		t.Run(r.name, func(t *testing.T) {
			c := h.Open(t)
			t.Cleanup(func() {
				if err := c.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
				if t.Failed() {
					t.Logf("The rule: %s", r.why)
				}
			})
			r.check(t, c)
		})
	}
	for _, r := range codesHarnessRules {
		t.Run(r.name, func(t *testing.T) { r.run(t, h, &codesStand{t, h}) })
	}
}

type codeRule struct {
	name  string
	why   string
	check func(t testing.TB, c store.CodeCache)
}

var codeRules = []codeRule{
	{"RoundTrip", "A value is returned exactly as it was put, any number of times. Sealed codes are arbitrary bytes.", roundTripOfCodes},
	{"TooLong", "More than MaxCode bytes are refused, without a change and without showing them: memory must stay bounded.", tooLong},
	{"Absent", "An absent value is ErrNotFound and never an empty one: the vault then says that it has no code.", absent},
	{"Overwrite", "Put replaces the old value: a shopper who enters a code again means the new one.", overwrite},
	{"IDsApart", "Ids are compared in all their bits: a code must never go out with another card.", idsApart},
	{"Delete", "Delete erases, and also succeeds for an absent value.", deleteCodes},
	{"DeleteRace", "Once Delete has returned, no call that begins later returns the value: the vault then reports it as erased.", deleteRace},
	{"Expiry", "From the instant of its expiry a value is not returned, however often it was read: PCI DSS forbids keeping it.", expiry},
	{"TTLOfEach", "Each value has a ttl of its own.", ttlOfEach},
	{"TTLZero", "With a ttl of zero or less Put only erases the old value: the new one has already expired.", ttlZero},
	{"TTLExtremes", "Every other ttl works, from a nanosecond to centuries.", ttlExtremes},
	{"OldTime", "The ttl of a value ends with it: it does not erase the value that replaced it.", oldTime},
	{"Slices", "The cache neither keeps nor changes slices it is given, and returned slices belong to the caller: either may be cleared at once.", slicesApart},
	{"Concurrent", "Concurrent calls do not disturb each other.", concurrent},
	{"SameID", "When values are put under one id concurrently, one of them stays, whole.", sameID},
	{"EndedContext", "A call whose context has ended returns its error and changes nothing.", endedContext},
	{"Closed", "After Close every call returns ErrClosed; closing again returns nil.", codesClosed},
	{"CloseAmidCalls", "A call during Close works or returns ErrClosed, and never hangs.", closeAmidCodes},
}

const (
	ample = time.Hour              // is not over before the test is
	brief = 200 * time.Millisecond // is waited for
	grace = 20 * time.Millisecond  // for clocks that tick in milliseconds, and for a network
)

// keep puts a value.
func keep(t testing.TB, c store.CodeCache, id uuid.UUID, value []byte, ttl time.Duration) {
	t.Helper()
	if err := c.Put(background, id, value, ttl); err != nil {
		t.Fatalf("Put of %d bytes for %v: %v", len(value), ttl, err)
	}
}

// holdsCode checks that the cache returns a value.
func holdsCode(t testing.TB, c store.CodeCache, what string, id uuid.UUID, want []byte) {
	t.Helper()
	if err := checkCode(c, id, want); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func checkCode(c store.CodeCache, id uuid.UUID, want []byte) error {
	got, err := c.Get(background, id)
	return same(got, err, want)
}

// same compares the answer of a Get with the value that was put.
func same(got []byte, err error, want []byte) error {
	if err != nil {
		return fmt.Errorf("Get: %w", err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("Get returns %d other bytes than the %d that were put", len(got), len(want))
	}
	return nil
}

// lacksCode checks that the cache has no value.
func lacksCode(t testing.TB, c store.CodeCache, what string, id uuid.UUID) {
	t.Helper()
	if err := checkNoCode(c, id); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func checkNoCode(c store.CodeCache, id uuid.UUID) error {
	got, err := c.Get(background, id)
	if !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("Get = %v, want %v", err, store.ErrNotFound)
	}
	if got != nil {
		return errors.New("Get returns ErrNotFound and a value")
	}
	return nil
}

// over waits until a ttl that began at or before now has passed.
func over(ttl time.Duration) { <-time.After(ttl + grace) }

// filled returns n bytes that identify their value.
func filled(n int, with byte) []byte { return bytes.Repeat([]byte{with}, n) }

func roundTripOfCodes(t testing.TB, c store.CodeCache) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	values := [][]byte{
		every, nil, {}, {0}, {0, 0}, {' '}, filled(store.MaxCode-1, 0xff), filled(store.MaxCode, 0),
		[]byte("\x00737"), []byte("737\x00"), []byte(" 737\n"), []byte("$-1\r\n"), []byte("\xff\xfe\xc3"), []byte("0737"), []byte("nil"),
	}
	for i, value := range values {
		keep(t, c, idOf(i), value, ample)
	}

	for range 2 {
		for i, value := range values {
			holdsCode(t, c, fmt.Sprintf("value %d", i), idOf(i), value)
		}
	}
}

func tooLong(t testing.TB, c store.CodeCache) {
	keep(t, c, idOf(1), []byte("before"), ample)
	for _, ttl := range []time.Duration{ample, 0} {
		for i := range 2 {
			err := c.Put(background, idOf(1+i), filled(store.MaxCode+1, 'x'), ttl)
			if !errors.Is(err, store.ErrInvalid) {
				t.Errorf("Put of %d bytes for %v = %v, want ErrInvalid", store.MaxCode+1, ttl, err)
			} else if strings.Contains(err.Error(), "xxx") {
				t.Error("the error of Put shows the value")
			}
		}
	}
	holdsCode(t, c, "before a refused Put", idOf(1), []byte("before"))
	lacksCode(t, c, "a refused Put", idOf(2))
}

func absent(t testing.TB, c store.CodeCache) {
	lacksCode(t, c, "never put", idOf(1))
	keep(t, c, idOf(1), []byte("737"), ample)
	lacksCode(t, c, "another id", idOf(2))
	holdsCode(t, c, "a miss later", idOf(1), []byte("737"))
}

func overwrite(t testing.TB, c store.CodeCache) {
	for _, value := range []string{"737", "a longer one", "9", "", "1234"} {
		keep(t, c, idOf(1), []byte(value), ample)
		holdsCode(t, c, "put over another", idOf(1), []byte(value))
	}
	if err := c.Delete(background, idOf(1)); err != nil {
		t.Errorf("Delete: %v", err)
	}
	lacksCode(t, c, "the last deleted", idOf(1))
}

func idsApart(t testing.TB, c store.CodeCache) {
	ids := []uuid.UUID{uuid.Max}
	for bit := range 128 {
		near := uuid.UUID{6: 0x40, 8: 0x80}
		near[bit/8] ^= 1 << (bit % 8)
		ids = append(ids, near)
	}

	for _, text := range []string{"%%%%%%%%%%%%%%%%", "****************", "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n", "{}{}{}{}{}{}{}{}", "                ", "AAAAAAAAAAAAAAAA", "aaaaaaaaaaaaaaaa"} {
		ids = append(ids, uuid.UUID([]byte(text)))
	}
	for i, id := range ids {
		keep(t, c, id, []byte{byte(i)}, ample)
	}
	for i, id := range ids {
		holdsCode(t, c, fmt.Sprintf("id %d", i), id, []byte{byte(i)})
	}

	for i, id := range ids {
		if i%2 == 0 {
			if err := c.Delete(background, id); err != nil {
				t.Fatalf("Delete: %v", err)
			}
		}
	}

	for i, id := range ids {
		if i%2 == 0 {
			lacksCode(t, c, fmt.Sprintf("deleted id %d", i), id)
		} else {
			holdsCode(t, c, fmt.Sprintf("id %d, whose neighbours are deleted", i), id, []byte{byte(i)})
		}
	}
}

func deleteCodes(t testing.TB, c store.CodeCache) {
	keep(t, c, idOf(2), []byte("two"), ample)
	for range 2 {
		for range 2 {
			if err := c.Delete(background, idOf(1)); err != nil {
				t.Errorf("Delete of an absent value: %v", err)
			}
		}
		keep(t, c, idOf(1), []byte("one"), ample)
		holdsCode(t, c, "put after Delete", idOf(1), []byte("one"))
		if err := c.Delete(background, idOf(1)); err != nil {
			t.Errorf("Delete: %v", err)
		}
		lacksCode(t, c, "deleted", idOf(1))
	}
	holdsCode(t, c, "its neighbour deleted", idOf(2), []byte("two"))
}

func deleteRace(t testing.TB, c store.CodeCache) {
	const racers, rounds = 16, 200
	for n := range rounds {
		value := fmt.Appendf(nil, "value %d", n)
		keep(t, c, idOf(n), value, ample)
		parallel(t, racers, func(i int) error {
			switch {
			case i == n%racers: // which of them starts first depends on its number
				if err := c.Delete(background, idOf(n)); err != nil {
					return fmt.Errorf("Delete: %w", err)
				}
				return checkNoCode(c, idOf(n))
			case i%4 == 0:
				return c.Put(background, idOf(rounds+i), value, ample)
			}
			got, err := c.Get(background, idOf(n))
			if errors.Is(err, store.ErrNotFound) {
				return nil
			}
			return same(got, err, value)
		})

		lacksCode(t, c, "deleted during other calls", idOf(n))
	}
}

func expiry(t testing.TB, c store.CodeCache) {
	begin := time.Now()
	for n := range 3 {
		keep(t, c, idOf(n), []byte("737"), brief)
	}

	stored := time.Now()
	for _, at := range []time.Duration{0, brief / 2} {
		<-time.After(time.Until(stored.Add(at)))
		if err := checkCode(c, idOf(0), []byte("737")); err != nil && time.Since(begin) < brief*3/4 {
			t.Errorf("with %v of %v left: %v", brief-time.Since(begin), brief, err)
		}
	}

	over(time.Until(stored.Add(brief)))
	for n := range 3 {
		if got, err := c.Get(background, idOf(n)); !errors.Is(err, store.ErrNotFound) || got != nil {
			t.Errorf("%v after its time: %d bytes, %v, want %v", time.Since(stored)-brief, len(got), err, store.ErrNotFound)
		}
	}

	if err := c.Delete(background, idOf(0)); err != nil {
		t.Errorf("Delete of an expired value: %v", err)
	}
	keep(t, c, idOf(1), []byte("999"), ample)
	holdsCode(t, c, "put after another expired", idOf(1), []byte("999"))
}

func ttlOfEach(t testing.TB, c store.CodeCache) {
	keep(t, c, idOf(1), []byte("one"), ample)
	keep(t, c, idOf(2), []byte("two"), brief)
	keep(t, c, idOf(3), []byte("three"), 2*ample)
	keep(t, c, idOf(4), []byte("four"), brief/2)
	over(brief)
	holdsCode(t, c, "put before one that expired", idOf(1), []byte("one"))
	lacksCode(t, c, "expired", idOf(2))
	holdsCode(t, c, "put between two that expired", idOf(3), []byte("three"))
	lacksCode(t, c, "expired", idOf(4))
}

func ttlZero(t testing.TB, c store.CodeCache) {
	keep(t, c, idOf(2), []byte("two"), ample)
	for _, ttl := range []time.Duration{0, -1, -time.Millisecond, -time.Hour, math.MinInt64} {
		keep(t, c, idOf(1), []byte("one"), ample)
		keep(t, c, idOf(1), []byte("another"), ttl)
		lacksCode(t, c, fmt.Sprintf("over a value, for %v", ttl), idOf(1))
		keep(t, c, idOf(1), []byte("one"), ttl)
		lacksCode(t, c, fmt.Sprintf("for %v", ttl), idOf(1))
	}
	holdsCode(t, c, "its neighbour erased", idOf(2), []byte("two"))
}

func ttlExtremes(t testing.TB, c store.CodeCache) {
	tiny := []time.Duration{1, time.Microsecond, time.Millisecond - 1, time.Millisecond, time.Millisecond + 1}
	for n, ttl := range tiny {
		keep(t, c, idOf(n), []byte("old"), ample)
		keep(t, c, idOf(n), []byte("new"), ttl)
	}
	over(tiny[len(tiny)-1])
	for n, ttl := range tiny {
		lacksCode(t, c, fmt.Sprintf("after %v", ttl), idOf(n))
	}
	for n, ttl := range []time.Duration{15 * time.Minute, 25 * 24 * time.Hour, math.MaxInt64 - 1, math.MaxInt64} {
		keep(t, c, idOf(n), []byte("737"), ttl)
		holdsCode(t, c, fmt.Sprintf("for %v", ttl), idOf(n), []byte("737"))
	}
}

func oldTime(t testing.TB, c store.CodeCache) {
	ways := []struct {
		what string
		end  func(id uuid.UUID) error
	}{
		{"overwritten", func(uuid.UUID) error { return nil }},
		{"deleted", func(id uuid.UUID) error { return c.Delete(background, id) }},
		{"erased by a ttl of zero", func(id uuid.UUID) error { return c.Put(background, id, nil, 0) }},
	}

	for n, way := range ways {
		keep(t, c, idOf(n), []byte("old"), brief)
		if err := way.end(idOf(n)); err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: %v", way.what, err)
		}
		keep(t, c, idOf(n), []byte("new"), ample)
	}

	over(brief)
	for n, way := range ways {
		holdsCode(t, c, "put in place of a value that had been "+way.what, idOf(n), []byte("new"))
	}
}

func slicesApart(t testing.TB, c store.CodeCache) {
	original := []byte("737")
	given := bytes.Clone(original)
	keep(t, c, idOf(1), given, ample)
	clear(given)
	holdsCode(t, c, "what was put is cleared", idOf(1), original)

	got, err := c.Get(background, idOf(1))
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	clear(got)
	_ = append(got, "xxxxxxxx"...)
	holdsCode(t, c, "what Get returned is cleared", idOf(1), original)

	given = bytes.Clone(original)
	kept := [][]byte{given}
	for n, ttl := range []time.Duration{ample, ample, ample, ample, brief} {
		keep(t, c, idOf(n), given, ttl)
		got, err := c.Get(background, idOf(n))
		if errors.Is(err, store.ErrNotFound) && ttl == brief {
			continue // slow
		}
		if err := same(got, err, original); err != nil {
			t.Fatal(err)
		}
		kept = append(kept, got)
	}

	keep(t, c, idOf(0), []byte("999"), ample)
	keep(t, c, idOf(1), []byte("999"), ample)
	keep(t, c, idOf(2), nil, 0)
	if err := c.Delete(background, idOf(3)); err != nil {
		t.Errorf("Delete: %v", err)
	}
	over(brief) // for 4
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}

	for n, b := range kept {
		if !bytes.Equal(b, original) {
			t.Errorf("slice %d has changed", n)
		}
	}
}

func concurrent(t testing.TB, c store.CodeCache) {
	parallel(t, 16, func(i int) error {
		id := idOf(i)
		for n := range 50 {
			value := fmt.Appendf(nil, "value %d of %d", n, i)
			if err := c.Put(background, id, value, ample); err != nil {
				return err
			}
			if err := checkCode(c, id, value); err != nil {
				return err
			}

			if n%2 == 0 {
				continue // put over it
			}
			if err := c.Delete(background, id); err != nil {
				return err
			}
			if err := checkNoCode(c, id); err != nil {
				return err
			}
		}

		return nil
	})
}

func sameID(t testing.TB, c store.CodeCache) {
	whole := func(got []byte, err error) error {
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err == nil && len(got) == 0 {
			return errors.New("Get returns a value that was never put")
		}
		return same(got, err, filled(len(got), byte(len(got))))
	}

	parallel(t, 16, func(i int) error {
		for range 100 {
			if err := c.Put(background, idOf(1), filled(i+1, byte(i+1)), ample); err != nil {
				return err
			}
			got, err := c.Get(background, idOf(1))
			if err := whole(got, err); err != nil {
				return err
			}
			if i%4 == 0 {
				if err := c.Delete(background, idOf(1)); err != nil {
					return err
				}
			}
		}
		return c.Put(background, idOf(1), filled(i+1, byte(i+1)), ample)
	})

	got, err := c.Get(background, idOf(1))
	if err != nil {
		t.Errorf("Get after all Puts: %v", err)
	} else if err := whole(got, nil); err != nil {
		t.Error(err)
	}
}

func endedContext(t testing.TB, c store.CodeCache) {
	cancelled, cancel := context.WithCancel(background)
	cancel()
	late, cancel := context.WithDeadline(background, time.Now().Add(-time.Second))
	defer cancel()
	keep(t, c, idOf(1), []byte("before"), ample)

	for _, ended := range []context.Context{cancelled, late} {
		_, errGet := c.Get(ended, idOf(1))
		_, errAbsent := c.Get(ended, idOf(3))
		for what, err := range map[string]error{
			"Get": errGet, "Get of nothing": errAbsent,
			"Delete":                 c.Delete(ended, idOf(1)),
			"Put":                    c.Put(ended, idOf(1), []byte("after"), ample),
			"Put with a ttl of zero": c.Put(ended, idOf(1), nil, 0),
			"Put under a new id":     c.Put(ended, idOf(2), []byte("after"), ample),
		} {
			if !errors.Is(err, ended.Err()) {
				t.Errorf("%s = %v, want %v", what, err, ended.Err())
			}
		}
	}

	holdsCode(t, c, "all calls ended before they began", idOf(1), []byte("before"))
	lacksCode(t, c, "put by a call that had ended", idOf(2))
}

// codeCalls makes every call and returns their errors.
func codeCalls(c store.CodeCache, id uuid.UUID) map[string]error {
	_, errGet := c.Get(background, id)
	return map[string]error{
		"Get":                    errGet,
		"Delete":                 c.Delete(background, id),
		"Put":                    c.Put(background, id, []byte("737"), ample),
		"Put with a ttl of zero": c.Put(background, id, nil, 0),
	}
}

func codesClosed(t testing.TB, c store.CodeCache) {
	keep(t, c, idOf(1), []byte("737"), ample)
	for range 2 {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		for what, err := range codeCalls(c, idOf(1)) {
			if !errors.Is(err, store.ErrClosed) {
				t.Errorf("%s after Close = %v, want %v", what, err, store.ErrClosed)
			}
		}
	}
}

func closeAmidCodes(t testing.TB, c store.CodeCache) {
	var done atomic.Bool
	parallel(t, 8, func(i int) error {
		if i == 0 {
			defer done.Store(true)
			return c.Close()
		}

		for after := false; !after; {
			after = done.Load()
			for what, err := range codeCalls(c, idOf(i)) {
				switch {
				case errors.Is(err, store.ErrClosed):
				case after:
					return fmt.Errorf("%s once Close has returned = %w, want %w", what, err, store.ErrClosed)
				case err != nil && !errors.Is(err, store.ErrNotFound):
					return fmt.Errorf("%s during Close: %w", what, err)
				}
			}
		}

		return nil
	})
}
