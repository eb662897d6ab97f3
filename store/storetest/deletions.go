package storetest

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cardvault/cardvault/store"
)

// Deletions proves that the cost of a deletion does not depend on the number of
// descendants, and that the cost of erasing some children does not depend on how many there
// are. measure makes an Update and returns its cost, such as the rows or pages that it has
// touched.
//
// The largest family has 20,000 children, or the number in the environment variable
// STORETEST_CHILDREN.
func Deletions(t testing.TB, s store.Store, measure func(fn func(store.Tx) error) int) {
	const small, some = 200, 100
	large := 20_000
	if text := os.Getenv("STORETEST_CHILDREN"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < small {
			t.Fatal("STORETEST_CHILDREN is not a number of children")
		}
		large = n
	}

	at := time.UnixMicro(1e15)
	start := time.Now()
	costs := make(map[int][2]int)
	for i, n := range []int{small, large} {
		first := 1 + i<<30
		of := idOf(first)
		put(t, s, row(first, hashes("h"), due(at)))
		for from := 0; from < n; from += 1000 {
			update(t, s, func(tx store.Tx) error {
				for c := from; c < min(from+1000, n); c++ {
					tx.Put(row(first+1+c, ofKind(kindB), ofParent(of), class(uint8(c%3)), hashes("h"), due(at)))
				}
				return nil
			})
		}

		var cost [2]int
		cost[0] = measure(deleting(row(first)))
		lacks(t, s, row(first))
		cost[1] = measure(func(tx store.Tx) error {
			keys, err := tx.Children(of, some)
			for _, k := range keys {
				tx.Delete(k.Kind, k.ID)
			}
			return err
		})

		holds(t, s, row(first+1+some, ofKind(kindB), ofParent(of), class(some%3), hashes("h"), due(at)))
		if total := list(t, s, store.Query{Kind: kindB, Account: alice, Parent: of, Count: true}).Total; total != listedOf(n)-listedOf(some) {
			t.Errorf("Total of a family of %d, %d of them erased = %d, want %d", n, some, total, listedOf(n)-listedOf(some))
		}
		costs[n] = cost
	}

	t.Logf("to delete the parent of %d costs %d, of %d %d; to erase %d of them %d and %d (%v)", small, costs[small][0],
		large, costs[large][0], some, costs[small][1], costs[large][1], time.Since(start).Round(time.Millisecond))
	for i, what := range []string{"delete a parent", "erase some children"} {
		few, many := costs[small][i], costs[large][i]
		if few <= 0 || many > 2*few+16 {
			t.Errorf("to %s costs %d in a family of %d, and %d in one of %d", what, many, large, few, small)
		}
	}
}

// listedOf returns how many of the first n children have a class.
func listedOf(n int) int64 { return int64(n - (n+2)/3) }
