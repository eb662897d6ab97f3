package quota_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/ledgertest"
	"github.com/cardvault/cardvault/internal/quota"
	"github.com/cardvault/cardvault/store"
)

const kindThing store.Kind = 10

// add stores one more thing, and returns ErrFull if there are limit things already.
func add(t *testing.T, counts *quota.Counts, rows ledger.Account, limit int, crowded bool) error {
	row, err := rows.NewRow()
	if err != nil {
		t.Fatal(err)
	}
	r := rows.NewRecord(kindThing, row)
	if err := rows.SealShown(r, nil); err != nil {
		t.Fatal(err)
	}

	place, err := counts.Take(t.Context(), rows, kindThing, limit, crowded)
	if err != nil {
		t.Fatal(err)
	}
	defer place.Leave()
	return rows.Update(t.Context(), ledger.Step, func(tx store.Tx) error {
		if err := place.Room(tx); err != nil {
			return err
		}
		tx.Put(r)
		return nil
	})
}

func TestPlaces(t *testing.T) {
	for _, test := range []struct {
		name    string
		limit   int
		crowded bool
	}{
		{"counted each time", 20, false},
		{"crowded, with hardly any room", 20, true},
		{"crowded", 8192 + 20, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				l := ledgertest.New(t, nil)
				rows, counts := l.In(l.First), new(quota.Counts)
				var group sync.WaitGroup
				var mu sync.Mutex
				made := 0
				for range 64 {
					group.Go(func() {
						for {
							err := add(t, counts, rows, test.limit, test.crowded)
							if errors.Is(err, quota.ErrFull) {
								return
							}
							if err != nil {
								t.Error(err)
								return
							}
							mu.Lock()
							made++
							mu.Unlock()
						}
					})
				}
				group.Wait()
				if made != test.limit {
					t.Errorf("made %d, the quota is %d", made, test.limit)
				}

				// A count is reused for a second.
				time.Sleep(time.Minute)
				if err := add(t, counts, rows, test.limit+1, test.crowded); err != nil {
					t.Errorf("one more, under a higher quota: %v", err)
				}
			})
		})
	}
}
