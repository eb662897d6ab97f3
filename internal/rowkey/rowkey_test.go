package rowkey_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/big"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func prf(t testing.TB, key []byte) cipher.Block {
	t.Helper()
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	return block
}

func randomPRF(t testing.TB) cipher.Block {
	key := make([]byte, 32)
	rand.Read(key)
	return prf(t, key)
}

var anyKey = rapid.Custom(func(t *rapid.T) uuid.UUID {
	key := uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key"))
	key[6] = key[6]&0x0f | 7<<4
	key[8] = key[8]&0x3f | 0x80
	return key
})

func TestMaskIsABijection(t *testing.T) {
	block := randomPRF(t)
	rapid.Check(t, func(t *rapid.T) {
		key, kind := anyKey.Draw(t, "key"), rapid.Byte().Draw(t, "kind")
		id := rowkey.Mask(block, kind, key)
		if id.Version() != 4 || id.Variant() != uuid.RFC4122 {
			t.Fatalf("%v has version %d, variant %v", id, id.Version(), id.Variant())
		}
		if got := rowkey.Unmask(block, kind, id); got != key {
			t.Fatalf("%v is restored as %v", key, got)
		}
		// The other way around: every version 4 is the id of one row key.
		id = key
		id[6] = id[6]&0x0f | 4<<4
		row := rowkey.Unmask(block, kind, id)
		if row.Version() != 7 || row.Variant() != uuid.RFC4122 {
			t.Fatalf("%v has version %d, variant %v", row, row.Version(), row.Variant())
		}
		if got := rowkey.Mask(block, kind, row); got != id {
			t.Fatalf("%v is restored as %v", id, got)
		}
	})
}

// TestMaskHidesTheTime: the ids of consecutive keys reveal neither their order nor their
// time.
func TestMaskHidesTheTime(t *testing.T) {
	const n = 10_000
	block := randomPRF(t)
	var g rowkey.Generator
	var rising int
	var ones [64]int
	var last uuid.UUID
	for range n {
		id := rowkey.Mask(block, 1, g.New())
		if bytes.Compare(id[:], last[:]) > 0 {
			rising++
		}
		last = id
		head := binary.BigEndian.Uint64(id[:8])
		for bit := range ones {
			ones[bit] += int(head >> bit & 1)
		}
	}
	// Eight standard deviations of a fair coin.
	tolerance := 4 * int(math.Sqrt(n))
	fair := func(count int) bool { return count > n/2-tolerance && count < n/2+tolerance }
	if !fair(rising) {
		t.Errorf("%d of %d ids are larger than the one before", rising, n)
	}
	for bit, count := range ones {
		if version := bit >= 12 && bit < 16; !version && !fair(count) {
			t.Errorf("bit %d is set in %d of %d ids", bit, count, n)
		}
	}
}

func TestForeignIDsAreImplausible(t *testing.T) {
	const n = 100_000
	mine, other := randomPRF(t), randomPRF(t)
	from, to := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Now().AddDate(10, 0, 0)
	var g rowkey.Generator
	for name, next := range map[string]func() uuid.UUID{
		"random id":        uuid.New,
		"other account":    func() uuid.UUID { return rowkey.Mask(other, 5, g.New()) },
		"other kind":       func() uuid.UUID { return rowkey.Mask(mine, 6, g.New()) },
		"changed bit":      func() uuid.UUID { id := rowkey.Mask(mine, 5, g.New()); id[15] ^= 1; return id },
		"row key, unknown": g.New,
	} {
		plausible := 0
		for range n {
			if rowkey.Plausible(rowkey.Unmask(mine, 5, next()), from, to) {
				plausible++
			}
		}
		if plausible > n/100 {
			t.Errorf("%s: %d of %d are plausible", name, plausible, n)
		}
		t.Logf("%s: %.3f %% are plausible", name, 100*float64(plausible)/n)
	}
	for range 1000 {
		if key := rowkey.Unmask(mine, 5, rowkey.Mask(mine, 5, g.New())); !rowkey.Plausible(key, from, to) {
			t.Fatalf("%v is not plausible", key)
		}
	}
}

func TestPlausible(t *testing.T) {
	from, to := time.UnixMicro(1_700_000_000_000_000), time.UnixMicro(1_800_000_000_000_000)
	noSuchMicrosecond := rowkey.First(from.Add(time.Second))
	binary.BigEndian.PutUint16(noSuchMicrosecond[6:], 7<<12|1000<<2)
	for _, c := range []struct {
		name string
		key  uuid.UUID
		want bool
	}{
		{"first", rowkey.First(from), true},
		{"before", rowkey.Last(from.Add(-time.Microsecond)), false},
		{"last", rowkey.Last(to), true},
		{"after", rowkey.First(to.Add(time.Microsecond)), false},
		{"999 microseconds", rowkey.Last(from.Add(999 * time.Microsecond)), true},
		{"1000 microseconds in a millisecond", noSuchMicrosecond, false},
	} {
		if got := rowkey.Plausible(c.key, from, to); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// made returns n keys, and checks the properties of every key.
func made(t *testing.T, g *rowkey.Generator, n int) []uuid.UUID {
	t.Helper()
	keys := make([]uuid.UUID, n)
	for i := range keys {
		keys[i] = g.New()
		if keys[i].Version() != 7 || keys[i].Variant() != uuid.RFC4122 {
			t.Fatalf("%v is not a UUIDv7", keys[i])
		}
		if sub := binary.BigEndian.Uint16(keys[i][6:]) >> 2 & 0x3ff; sub > 999 {
			t.Fatalf("%v has %d microseconds in a millisecond", keys[i], sub)
		}
	}
	return keys
}

func rising(keys []uuid.UUID) bool {
	return slices.IsSortedFunc(keys, func(a, b uuid.UUID) int {
		if a == b {
			return 1 // equal keys are not sorted either
		}
		return bytes.Compare(a[:], b[:])
	})
}

// TestKeysRiseWhileTheClockStands: the clock of a bubble stands still, so all keys are made
// in the same microsecond.
func TestKeysRiseWhileTheClockStands(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var g rowkey.Generator
		start := time.Now()
		keys := made(t, &g, 10_000)
		if !rising(keys) {
			t.Fatal("keys do not rise")
		}
		// Four keys share a microsecond, then the next microsecond is used in advance.
		for i, key := range keys {
			if got, want := rowkey.Time(key), start.Add(time.Duration(i/4)*time.Microsecond); !got.Equal(want) {
				t.Fatalf("key %d has the time %v, want %v", i, got, want)
			}
		}
		// The clock is still behind the keys, then overtakes them.
		time.Sleep(time.Millisecond)
		keys = append(keys, made(t, &g, 100)...)
		time.Sleep(time.Second)
		now := time.Now()
		keys = append(keys, g.New())
		if !rising(keys) {
			t.Error("keys do not rise")
		}
		if got := rowkey.Time(keys[len(keys)-1]); !got.Equal(now) {
			t.Errorf("key has the time %v, want %v", got, now)
		}
	})
}

func TestKeysRiseAcrossMilliseconds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var g rowkey.Generator
		var keys []uuid.UUID
		for range 5000 {
			now := time.Now()
			key := g.New()
			if !rowkey.Time(key).Equal(now.Truncate(time.Microsecond)) {
				t.Fatalf("key has the time %v, want %v", rowkey.Time(key), now)
			}
			keys = append(keys, key)
			time.Sleep(1234 * time.Nanosecond)
		}
		if !rising(keys) {
			t.Error("keys do not rise")
		}
	})
}

// TestClockThatStepsBackIsFollowed: a bubble begins in the year 2000. For a Generator that
// was used outside it, the clock steps back by decades.
func TestClockThatStepsBackIsFollowed(t *testing.T) {
	var g rowkey.Generator
	made(t, &g, 100)
	bubble.Test(t, func(t *testing.T) {
		start := time.Now()
		keys := made(t, &g, 8)
		if got := rowkey.Time(keys[0]); !got.Equal(start) {
			t.Errorf("first key has the time %v, want %v", got, start)
		}
		if got, want := rowkey.Time(keys[7]), start.Add(time.Microsecond); !got.Equal(want) {
			t.Errorf("eighth key has the time %v, want %v", got, want)
		}
		if !rising(keys) {
			t.Error("keys do not rise after the step")
		}
	})
	now := time.Now()
	if got := rowkey.Time(g.New()); got.Before(now.Truncate(time.Microsecond)) {
		t.Errorf("key has the time %v, want %v or later", got, now)
	}
}

// TestSmallStepBack: even a step smaller than the lead of the keys over the clock is
// noticed.
func TestSmallStepBack(t *testing.T) {
	var g rowkey.Generator
	run := func(after time.Duration, n int) (first time.Time) {
		bubble.Test(t, func(t *testing.T) {
			time.Sleep(after)
			first = rowkey.Time(made(t, &g, n)[0])
		})
		return first
	}
	start := run(time.Second, 1000)
	if got, want := run(time.Second-time.Microsecond, 1), start.Add(-time.Microsecond); !got.Equal(want) {
		t.Errorf("after a step back by a microsecond a key has the time %v, want %v", got, want)
	}
}

func TestConcurrentKeysDiffer(t *testing.T) {
	var g rowkey.Generator
	each := make([][]uuid.UUID, 8)
	var wg sync.WaitGroup
	for i := range each {
		wg.Go(func() {
			for range 5000 {
				each[i] = append(each[i], g.New())
			}
		})
	}
	wg.Wait()
	seen := map[uuid.UUID]bool{}
	times := map[uint64]bool{}
	for _, keys := range each {
		if !rising(keys) {
			t.Error("keys of one goroutine do not rise")
		}
		for _, key := range keys {
			seen[key] = true
			times[binary.BigEndian.Uint64(key[:8])] = true
		}
	}
	if len(seen) != 40_000 || len(times) != 40_000 {
		t.Errorf("%d different keys and %d different times among 40,000", len(seen), len(times))
	}
}

// TestGeneratorsApart: two generators share no state, and their keys differ in 62 random
// bits.
func TestGeneratorsApart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		seen := map[uuid.UUID]bool{}
		for range 10_000 {
			var g rowkey.Generator
			seen[g.New()] = true
		}
		if len(seen) != 10_000 {
			t.Errorf("%d different keys among 10,000", len(seen))
		}
	})
}

func TestBounds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var g rowkey.Generator
		now := time.Now()
		first, last := rowkey.First(now), rowkey.Last(now)
		for _, key := range made(t, &g, 4) {
			if bytes.Compare(key[:], first[:]) < 0 || bytes.Compare(key[:], last[:]) > 0 {
				t.Errorf("%v is outside %v to %v", key, first, last)
			}
		}
		fifth := g.New()
		if bytes.Compare(fifth[:], last[:]) <= 0 {
			t.Errorf("%v of the next microsecond is not above %v", fifth, last)
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		micro := rapid.Int64Range(0, 1<<48*1000-2).Draw(t, "micro")
		at := time.UnixMicro(micro)
		first, last, next := rowkey.First(at), rowkey.Last(at), rowkey.First(at.Add(time.Microsecond))
		if bytes.Compare(first[:], last[:]) >= 0 || bytes.Compare(last[:], next[:]) >= 0 {
			t.Fatalf("%v, %v, %v do not rise", first, last, next)
		}
		if !rowkey.Time(first).Equal(at) || !rowkey.Time(last).Equal(at) {
			t.Fatalf("%v and %v, want %v", rowkey.Time(first), rowkey.Time(last), at)
		}
		within := rowkey.First(at.Add(999 * time.Nanosecond))
		if within != first {
			t.Fatalf("%v within the microsecond of %v", within, first)
		}
	})
}

func TestTimesThatNoKeyCanHold(t *testing.T) {
	lowest, highest := rowkey.First(time.UnixMicro(0)), rowkey.Last(time.UnixMicro(1<<48*1000-1))
	for _, at := range []time.Time{{}, time.UnixMicro(-1), time.Unix(-1<<60, 0), time.Unix(math.MinInt64/2, 0)} {
		if got := rowkey.First(at); got != lowest {
			t.Errorf("First(%v) is %v, not %v", at, got, lowest)
		}
	}
	for _, at := range []time.Time{time.UnixMicro(1 << 48 * 1000), time.Unix(1<<60, 0), time.UnixMicro(math.MaxInt64)} {
		if got := rowkey.Last(at); got != highest {
			t.Errorf("Last(%v) is %v, not %v", at, got, highest)
		}
	}
}

func TestTimeIsUTC(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 891_234_567, time.FixedZone("", 3600))
	if got := rowkey.Time(rowkey.First(at)); got != at.Truncate(time.Microsecond).UTC() {
		t.Errorf("%v, want %v", got, at)
	}
}

// TestVectors: other implementations can run the vectors. Here the mask is computed a second
// time, from the package comment.
func TestVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		PRF     string
		Vectors []struct {
			Time           time.Time
			Counter, Kind  uint8
			Random         string
			RowKey, Public uuid.UUID
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	key, err := hex.DecodeString(file.PRF)
	if err != nil || len(file.Vectors) == 0 {
		t.Fatalf("%d vectors, %v", len(file.Vectors), err)
	}
	block := prf(t, key)
	for _, v := range file.Vectors {
		if got := rowkey.Mask(block, v.Kind, v.RowKey); got != v.Public {
			t.Errorf("Mask(%v) is %v, not %v", v.RowKey, got, v.Public)
		}
		if got := rowkey.Unmask(block, v.Kind, v.Public); got != v.RowKey {
			t.Errorf("Unmask(%v) is %v, not %v", v.Public, got, v.RowKey)
		}
		if got := rowkey.Time(v.RowKey); !got.Equal(v.Time) {
			t.Errorf("Time(%v) is %v, not %v", v.RowKey, got, v.Time)
		}

		random, err := hex.DecodeString(v.Random)
		if err != nil {
			t.Fatal(err)
		}
		micro := uint64(v.Time.UnixMicro())
		var want uuid.UUID
		binary.BigEndian.PutUint64(want[:], micro/1000<<16)
		binary.BigEndian.PutUint16(want[6:], 0x7000+uint16(micro%1000)*4+uint16(v.Counter))
		copy(want[8:], random)
		want[8] |= 0x80
		if want != v.RowKey {
			t.Errorf("row key of the vector is %v, not %v", v.RowKey, want)
		}
		pad := make([]byte, 16)
		pad[0] = v.Kind
		copy(pad[8:], want[8:])
		block.Encrypt(pad, pad)
		for i := range 8 {
			want[i] ^= pad[i]
		}
		want[6] = want[6]&0x0f | 0x40
		if want != v.Public {
			t.Errorf("id of the vector is %v, not %v", v.Public, want)
		}
	}
}

// TestSequence: a sequence orders keys by their times, and fits into a JSON number.
func TestSequence(t *testing.T) {
	epoch := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	if n := rowkey.Sequence(rowkey.First(epoch)); n != 0 {
		t.Errorf("the sequence begins at %d", n)
	}
	if n := rowkey.Sequence(rowkey.Last(time.Date(2071, 1, 1, 0, 0, 0, 0, time.UTC))); n >= 1<<53 {
		t.Errorf("the sequence is %d in 2071", n)
	}
	if n := rowkey.Sequence(rowkey.Last(epoch.Add(time.Second))); n != 4e6+3 {
		t.Errorf("the sequence is %d after a second", n)
	}
	var g rowkey.Generator
	last := g.New()
	for range 10_000 {
		key := g.New()
		if rowkey.Sequence(key) <= rowkey.Sequence(last) {
			t.Fatalf("%v has sequence %d, %v before it %d", key, rowkey.Sequence(key), last, rowkey.Sequence(last))
		}
		last = key
	}
}

// TestBeside: the key beside another has the same time, differs for every other key, and
// leads back.
func TestBeside(t *testing.T) {
	var g rowkey.Generator
	rapid.Check(t, func(t *rapid.T) {
		key, a, b := anyKey.Draw(t, "key"), anyKey.Draw(t, "a"), g.New()
		beside := rowkey.Beside(key, a)
		if beside.Version() != 7 || beside.Variant() != uuid.RFC4122 {
			t.Fatalf("%v has version %d, variant %v", beside, beside.Version(), beside.Variant())
		}
		if !bytes.Equal(beside[:8], key[:8]) {
			t.Fatalf("%v is beside %v", beside, key)
		}
		if got := rowkey.Beside(beside, a); got != key {
			t.Fatalf("%v leads back to %v, not %v", beside, got, key)
		}
		if !bytes.Equal(a[8:], b[8:]) && rowkey.Beside(key, b) == beside {
			t.Fatalf("%v and %v have the same key beside %v", a, b, key)
		}
	})
}

// TestNeighbours: Above and Below return the neighbours in byte order, across every carry.
func TestNeighbours(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var key uuid.UUID
		copy(key[:], rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0xfe, 0xff}), 16, 16).Draw(t, "key"))
		number := new(big.Int).SetBytes(key[:])
		end := new(big.Int).Lsh(big.NewInt(1), 128)
		for add, got := range map[int64]uuid.UUID{1: rowkey.Above(key), -1: rowkey.Below(key)} {
			var want uuid.UUID
			new(big.Int).Mod(new(big.Int).Add(number, big.NewInt(add)), end).FillBytes(want[:])
			if got != want {
				t.Fatalf("%v and %d is %v, want %v", key, add, got, want)
			}
		}
	})
}
