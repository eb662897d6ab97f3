//go:build unix

package pgstore_test

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cardvault/cardvault/store"
)

// Totals and pages by the blocks are those of a scan, after thousands of insertions at
// the end and in the middle of a list, changes of class and deletions, by two stores.
func TestCounts(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	stores := []store.Store{open(t, p, name), open(t, p, name)}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	stored := map[int]*store.Record{}
	var numbers []int
	last := 1 << 20
	for range 18 { // so that blocks fill some of level 2
		var rs []*store.Record
		for range 2000 {
			last++
			stored[last] = record(last)
			rs = append(rs, stored[last])
			numbers = append(numbers, last)
		}
		if err := put(stores[0], rs...); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 40 {
		for _, s := range stores {
			var puts []*store.Record
			var gone []int
			touched := map[int]bool{}
			for range 300 {
				n := random.IntN(last)
				if round%8 < 5 { // mostly at the end
					last++
					n = last
				}
				if len(numbers) > 0 && random.IntN(4) == 0 {
					n = numbers[random.IntN(len(numbers))]
				}
				if touched[n] {
					continue
				}
				touched[n] = true
				old := stored[n]
				if old != nil && random.IntN(2) == 0 {
					delete(stored, n)
					gone = append(gone, n)
					continue
				}
				r := record(n)
				r.Class = uint8(random.IntN(4))
				if old != nil {
					r.Version = old.Version + 1
				} else {
					numbers = append(numbers, n)
				}
				stored[n] = r
				puts = append(puts, r)
			}
			err := s.Update(t.Context(), func(tx store.Tx) error {
				for _, r := range puts {
					tx.Put(r)
				}
				for _, n := range gone {
					tx.Delete(kind, id(n))
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		compare(t, stores[round%2], stored, random, last)
		if t.Failed() {
			return
		}
	}
	hot := 1<<20 + 1 // in a closed block, if it is there at all
	if stored[hot] == nil {
		stored[hot] = record(hot)
		stored[hot].Version = 0
	}
	for i := range 400 {
		r := *stored[hot]
		r.Version++
		r.Class = uint8(1 + i%3)
		if err := put(stores[0], &r); err != nil {
			t.Fatal(err)
		}
		stored[hot] = &r
	}
	compare(t, stores[0], stored, random, last)
	var blocks, runs, most int
	err := p.QueryRow(t.Context(), strings.ReplaceAll(`SELECT count(*) FILTER (WHERE level = 1), count(*) FILTER (WHERE level = 2), max(n)
		FROM (SELECT level, count(*) AS n FROM "s".counts GROUP BY level, first) AS b`,
		`"s"`, pgx.Identifier{name}.Sanitize())).Scan(&blocks, &runs, &most)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d records in %d blocks and %d of level 2, at most %d rows for one", len(stored), blocks, runs, most)
	if blocks < 100 || runs < 2 {
		t.Error("too few blocks: nothing is proved")
	}
	if most > 500 {
		t.Errorf("%d rows for a block: nobody folds them", most)
	}
}

// compare asks some questions whose answers a scan gives too.
func compare(t *testing.T, s store.Store, stored map[int]*store.Record, random *rand.Rand, last int) {
	t.Helper()
	for range 6 {
		q := &store.Query{Kind: kind, Account: account, Count: true, Desc: random.IntN(2) == 0, Limit: 5}
		low, high := 0, 1<<30
		if random.IntN(2) == 0 {
			low = random.IntN(last)
			q.Min = id(low)
		}
		if random.IntN(2) == 0 {
			high = random.IntN(last)
			q.Max = id(high)
		}
		classes := map[uint8]bool{1: true, 2: true, 3: true}
		if random.IntN(2) == 0 {
			c := uint8(1 + random.IntN(3))
			classes = map[uint8]bool{c: true}
			q.Classes.Add(c)
		}
		want := int64(0)
		for n, r := range stored {
			if n >= low && n <= high && classes[r.Class] {
				want++
			}
		}
		if want > 0 {
			q.Offset = random.Int64N(want)
		}
		l := list(t, s, q)
		if l.Total != want {
			t.Errorf("Total = %d, want %d", l.Total, want)
			return
		}
		before := int64(0) // how many come before the first of the page
		for n, r := range stored {
			if n < low || n > high || !classes[r.Class] || len(l.Records) == 0 {
				continue
			}
			if first := numberOf(l.Records[0].ID); q.Desc && n > first || !q.Desc && n < first {
				before++
			}
		}
		if want > 0 && (before != q.Offset || int64(len(l.Records)) != min(5, want-q.Offset)) {
			t.Errorf("a page of %d records begins at %d of %d, want %d", len(l.Records), before, want, q.Offset)
		}
	}
}

func numberOf(u uuid.UUID) int { return int(binary.BigEndian.Uint64(u[:])) }
