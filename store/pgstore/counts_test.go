//go:build unix

package pgstore_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
)

// Totals and pages from blocks equal the results of a scan. Before that two stores insert
// thousands of records at the end and in the middle of a list, change classes and delete.
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
	for range 18 { // so that blocks fill part of level 2
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
	hot := 1<<20 + 1 // in a closed block, if it exists
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
		t.Error("too few blocks: the test proves nothing")
	}
	if most > 500 {
		t.Errorf("%d rows for a block: no store folds them", most)
	}
}

// compare asks random questions and compares the answers with a scan.
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
		before := int64(0) // number of records before the page
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

// fill puts records with numbers from 1 on past the store, of class 1 except those in
// classes.
func fill(t testing.TB, p *pgxpool.Pool, schema string, n int, classes map[int]uint8) {
	t.Helper()
	table := pgx.Identifier{schema, "records"}.Sanitize()
	_, err := p.Exec(t.Context(), `INSERT INTO `+table+` (version, stamp, kind, class, child, id, account, scope, shown, secret)
		SELECT 1, n, $2, 1, false, (lpad(to_hex(n), 16, '0') || '0000000000000001')::uuid, $3, $3, '', '' FROM generate_series(1, $1::bigint) AS n`,
		n, int16(kind), account.String())
	for n, class := range classes {
		if err == nil {
			_, err = p.Exec(t.Context(), `UPDATE `+table+` SET class = $1 WHERE id = $2`, int16(class), id(n).String())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// arranged waits until a list that was read is in blocks, and returns the number of
// transactions that this took.
func arranged(t testing.TB, p *pgxpool.Pool, schema string, blocks int) (transactions int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		var n int
		err := p.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT xmin::text) FROM `+pgx.Identifier{schema, "counts"}.Sanitize()+
			` WHERE level = 1 AND class = 0`).Scan(&n, &transactions)
		if err != nil {
			t.Fatal(err)
		}
		if n >= blocks {
			return transactions
		}
	}
	t.Fatal("a long list is not in blocks")
	return 0
}

// A list without blocks is divided in pieces. While that is impossible, writers go on.
func TestArrange(t *testing.T) {
	const n = 40_000
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	fill(t, p, name, n, nil)
	s := open(t, p, name)
	release := locked(t, p, name, "counts")
	count := &store.Query{Kind: kind, Account: account, Count: true}
	if total := list(t, s, count).Total; total != n {
		t.Errorf("Total = %d, want %d", total, n)
	}
	for i := range 20 {
		if err := put(s, record(n+1+i)); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
	}
	release()
	list(t, s, count) // notes it once more: it may have been given up meanwhile
	if transactions := arranged(t, p, name, n/128-1); transactions < 4 {
		t.Errorf("%d records were divided in %d pieces", n, transactions)
	}
	if total := list(t, s, count).Total; total != n+20 {
		t.Errorf("Total = %d, want %d", total, n+20)
	}
	at := &store.Query{Kind: kind, Account: account, Offset: 30_000, Limit: 1}
	if l := list(t, s, at); len(l.Records) != 1 || numberOf(l.Records[0].ID) != 30_001 {
		t.Errorf("the record at %d is %v", at.Offset, l.Records)
	}
}

// Reading a page of a rare class does not scan the list.
func TestRareClass(t *testing.T) {
	const n = 100_000
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	rare := []int{n / 3, n / 2, n/2 + 1, n - 3000}
	classes := map[int]uint8{}
	for _, n := range rare {
		classes[n] = 9
	}
	fill(t, p, name, n, classes)
	s := open(t, p, name)
	list(t, s, &store.Query{Kind: kind, Account: account, Count: true})
	arranged(t, p, name, n/128-1)
	for _, desc := range []bool{false, true} {
		for _, count := range []bool{false, true} {
			for _, skip := range []int{0, 1} {
				q := &store.Query{Kind: kind, Account: account, Desc: desc, Count: count, Offset: int64(skip), Limit: 2, Live: time.Now()}
				q.Classes.Add(9)
				want := rare[skip : skip+2]
				if desc {
					want = []int{rare[3-skip], rare[2-skip]}
				}
				var got []int
				for _, r := range list(t, s, q).Records {
					got = append(got, numberOf(r.ID))
				}
				if !slices.Equal(got, want) {
					t.Errorf("desc %v, count %v, offset %d: %v, want %v", desc, count, skip, got, want)
				}
				var plan []struct {
					Plan struct {
						Hit  int `json:"Shared Hit Blocks"`
						Read int `json:"Shared Read Blocks"`
					}
				}
				explain := fmt.Sprintf(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM %s(%d::smallint, false, '%s', '{9}',
					'%s', '%s', NULL, %v, %d, 2, %v)`, pgx.Identifier{name, "list"}.Sanitize(), kind, account, uuid.Nil, uuid.Max, desc, skip, count)
				if err := p.QueryRow(t.Context(), explain).Scan(&plan); err != nil {
					t.Fatal(err)
				}
				if pages := plan[0].Plan.Hit + plan[0].Plan.Read; pages > 5000 {
					t.Errorf("desc %v, count %v, offset %d: looked at %d pages", desc, count, skip, pages)
				}
			}
		}
	}
}

// Records inserted one by one into the middle of a list in blocks are counted.
func TestCountsOneByOne(t *testing.T) {
	const n = 2000
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	fill(t, p, name, n, nil)
	s := open(t, p, name)
	count := &store.Query{Kind: kind, Account: account, Count: true}
	list(t, s, count)
	arranged(t, p, name, n/128-1)
	for i := range 40 {
		r := record(1 + 37*i)
		r.ID[15] = 2 // after the record with that number
		r.Class = uint8(1 + i%2)
		if err := put(s, r); err != nil {
			t.Fatal(err)
		}
	}
	if total := list(t, s, count).Total; total != n+40 {
		t.Errorf("Total = %d, want %d", total, n+40)
	}
	count.Classes.Add(2)
	if total := list(t, s, count).Total; total != 20 {
		t.Errorf("Total of a class = %d, want 20", total)
	}
	at := &store.Query{Kind: kind, Account: account, Offset: 1000, Limit: 1}
	if l := list(t, s, at); len(l.Records) != 1 || numberOf(l.Records[0].ID) != 1001-27 {
		t.Errorf("the record at %d has the number %d, want %d", at.Offset, numberOf(l.Records[0].ID), 1001-27)
	}
}
