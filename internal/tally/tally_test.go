package tally_test

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault/internal/tally"
	"pgregory.net/rapid"
)

func hash(parts ...any) [16]byte {
	sum := sha256.Sum256(fmt.Appendln(nil, parts...))
	return [16]byte(sum[:])
}

// key returns the first half of a hash, as a key.
func key(parts ...any) uint64 { return first(hash(parts...)) }

func first(h [16]byte) uint64 { return binary.BigEndian.Uint64(h[:]) }

// alike returns hashes that often collide in a small table.
func alike(n int) (h [16]byte) {
	binary.BigEndian.PutUint64(h[:], uint64(n)<<13)
	binary.BigEndian.PutUint64(h[8:], uint64(n)<<13)
	return h
}

// TestNeverTooFew: the limit is never exceeded, whatever collides or is forgotten. A new
// value passes only if fewer values passed under its key on that day.
func TestNeverTooFew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var counted tally.Tally
		type place struct{ owner, key int }
		let, closed := map[place]map[int]bool{}, map[place]bool{}
		hashed := rapid.SampledFrom([]func(int) [16]byte{alike, func(n int) [16]byte { return hash(n) }}).Draw(t, "hash")
		limit := rapid.IntRange(0, 20).Draw(t, "limit")
		owners, keys, values := rapid.IntRange(1, 5).Draw(t, "owners"), rapid.IntRange(1, 300).Draw(t, "keys"), rapid.IntRange(1, 5000).Draw(t, "values")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))

		day := int64(1)
		for range rapid.IntRange(0, 6000).Draw(t, "calls") {
			if random.IntN(5000) == 0 {
				day++
				clear(let)
				clear(closed)
			}

			at := place{random.IntN(owners), random.IntN(keys)}
			value := random.IntN(values)
			before := let[at]
			if before == nil {
				before = map[int]bool{}
				let[at] = before
			}

			known := before[value]
			may := counted.Take(day, hash("owner", at.owner), first(hashed(at.owner*1000+at.key)), hashed((1+at.owner)*1e9+value*1000+at.key), limit)
			if may && !known && len(before) >= limit {
				t.Fatalf("%d values pass under a limit of %d", len(before)+1, limit)
			}
			if may && closed[at] {
				t.Fatal("a value passes after one was refused")
			}

			closed[at] = closed[at] || !may
			before[value] = before[value] || may
		}
	})
}

// TestLimits: this holds at the highest limit too, and with a table that many owners use.
func TestLimits(t *testing.T) {
	var counted tally.Tally
	for n := range 200_000 { // fills several layers and dedicated tables
		counted.Take(1, hash(n%2), key("key", n%5000), hash(n), 100)
	}

	for _, limit := range []int{0, 1, 3, 100, tally.MaxLimit, 1000} {
		let := 0
		for n := range 1000 {
			if counted.Take(1, hash(0), key("fresh", limit), hash("fresh", limit, n), limit) {
				let++
			}
		}
		if want := min(limit, tally.MaxLimit); let > want || let < want-2 {
			t.Errorf("%d pass under a limit of %d", let, limit)
		}
	}
}

// TestTake: a counted value passes until one value exceeds the limit. Then all are refused,
// since otherwise a caller could find out which values were counted. Owners are counted
// separately.
func TestTake(t *testing.T) {
	var counted tally.Tally
	take := func(day int64, owner, of, value int) bool {
		return counted.Take(day, hash("owner", owner), key("key", owner, of), hash("value", owner, value), 2)
	}

	for i, step := range []struct {
		day               int64
		owner, key, value int
		want              bool
	}{
		{5, 1, 1, 1, true}, {5, 1, 1, 2, true}, {5, 1, 1, 1, true}, {5, 1, 1, 2, true},
		{5, 1, 1, 3, false}, {5, 1, 1, 3, false}, {5, 1, 1, 1, false}, {5, 1, 1, 2, false},
		{5, 1, 2, 4, true}, {5, 2, 1, 1, true}, {5, 2, 1, 3, true}, {5, 2, 1, 4, false},
		{6, 1, 1, 3, true}, {6, 1, 1, 4, true}, {6, 1, 1, 1, false},
		{5, 1, 1, 5, false}, {6, 1, 1, 5, false}, // a clock that steps back over midnight
		{4, 1, 1, 5, true}, {5, 1, 1, 5, true}, {5, 1, 1, 6, true}, {5, 1, 1, 7, false}, {1 << 40, 1, 1, 7, true}, {5, 1, 1, 7, true},
	} {
		if got := take(step.day, step.owner, step.key, step.value); got != step.want {
			t.Errorf("step %d: %t", i, got)
		}
	}
}

func TestRace(t *testing.T) {
	var counted tally.Tally
	var let atomic.Int64
	var wg sync.WaitGroup
	for n := range 1000 {
		wg.Go(func() {
			if counted.Take(1, hash(1), key("key"), hash(n), 100) {
				let.Add(1)
			}
		})
	}
	if wg.Wait(); let.Load() != 100 {
		t.Errorf("%d of 1000 pass, want 100", let.Load())
	}
}

// TestMemory: memory use stays within the bounds, however many values and owners are
// counted.
func TestMemory(t *testing.T) {
	values := 5_000_000
	if testing.Short() {
		values = 500_000
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc) >> 10
	}

	var counted tally.Tally
	random := rand.New(rand.NewPCG(1, 1))
	take := func(owner int) {
		var h [3][16]byte
		binary.BigEndian.PutUint64(h[0][:], uint64(owner))
		for i := range 2 {
			binary.BigEndian.PutUint64(h[1+i][:], random.Uint64())
			binary.BigEndian.PutUint64(h[1+i][8:], random.Uint64())
		}
		counted.Take(1, h[0], first(h[1]), h[2], 100)
	}

	before := heap()
	for range 2000 {
		take(1)
	}
	if used := heap() - before; used > 100 {
		t.Errorf("the first 2,000 values take %d KiB", used)
	}

	for n := range values {
		switch n % 3 {
		case 0:
			take(n % 10) // heavy users
		default:
			take(n % 200_000)
		}
	}
	if used := heap() - before; used > 106<<10 {
		t.Errorf("the tally takes %d KiB", used)
	}

	runtime.KeepAlive(&counted)
}

// TestHonestShop: of a million different cards of an honest shop, none is refused because of
// cards with other masks.
func TestHonestShop(t *testing.T) {
	cards := 1_000_000
	if testing.Short() {
		cards = 200_000
	}

	for _, c := range []struct {
		name  string
		iins  int
		limit int
		most  float64 // share of cards that collisions may cause to be refused
	}{
		{"all over the world", 100_000, 100, 0},
		{"one country", 300, 100, 0},
		{"of one issuer", 5, 100, 0},
		{"long prefixes, three numbers a mask", 5_000, 3, 1e-3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var counted tally.Tally
			random := rand.New(rand.NewPCG(7, 7))
			zipf := rand.NewZipf(random, 1.2, 8, uint64(c.iins-1)) // few issuers have most cards

			exact := map[uint64]uint8{}
			wrongly := 0
			for range cards {
				var value [16]byte
				mask := zipf.Uint64()<<16 | uint64(random.IntN(10_000))
				sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, mask))
				masked := first([16]byte(sum[:]))
				binary.BigEndian.PutUint64(value[:], random.Uint64())
				binary.BigEndian.PutUint64(value[8:], random.Uint64())

				switch {
				case counted.Take(1, hash("shop"), masked, value, c.limit):
					exact[masked]++
				case int(exact[masked]) < c.limit:
					wrongly++
				}
			}

			if share := float64(wrongly) / float64(cards); share > c.most {
				t.Errorf("%d of %d cards are refused because of cards with other masks", wrongly, cards)
			}
		})
	}
}

func BenchmarkTake(b *testing.B) {
	var counted tally.Tally
	b.RunParallel(func(p *testing.PB) {
		random := rand.New(rand.NewPCG(rand.Uint64(), 0))
		for p.Next() {
			var h [16]byte
			binary.BigEndian.PutUint64(h[:], random.Uint64())
			binary.BigEndian.PutUint64(h[8:], random.Uint64())
			counted.Take(1, [16]byte{1}, first(h), h, 100)
		}
	})
}

// TestTablesOfTheirOwn: the count of an owner is kept when it moves to a dedicated table, or
// to the second shared table.
func TestTablesOfTheirOwn(t *testing.T) {
	var counted tally.Tally
	for owner := range 6 {
		take := func(name string, n int) bool {
			return counted.Take(1, hash(owner), key(name, owner), hash(name, owner, n), 10)
		}

		let := 0
		for n := range 6 {
			if take("key", n) {
				let++
			}
		}

		for n := range 1<<16 + 10 {
			take(fmt.Sprint("other", n), n)
		}
		for n := range 20 {
			if take("key", n) && n >= 6 {
				let++
			}
		}

		if let != 10 {
			t.Errorf("owner %d: %d pass, want 10", owner, let)
		}
	}
}
