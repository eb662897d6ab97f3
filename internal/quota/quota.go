// Package quota bounds how many listed records of a kind an account has.
//
// A call that makes one more takes a place, and looks in its transaction whether there is
// room. The transaction counts the records that are stored, which costs the same however
// many these are.
package quota

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// ErrFull is returned in a transaction that finds as many records as the quota allows. Some
// of them may have lapsed.
var ErrFull = fmt.Errorf("%w: the quota is used up", store.ErrConflict)

// Counts bounds the records of the accounts of one vault. The zero value is ready. All
// methods may be called concurrently.
type Counts struct {
	crowds sync.Map // of crowded kinds, by crowdOf: *crowd
}

type crowdOf struct {
	account uuid.UUID
	kind    store.Kind
}

// A Place is for one record more. It is for one goroutine.
type Place struct {
	rows  ledger.Account
	kind  store.Kind
	limit int

	crowd *crowd    // nil: each transaction counts
	spare bool      // there was so much room when it was taken that no transaction needs to count
	taken time.Time // if spare
}

// Take returns a place for a record of a kind that is limited to limit per account. The
// caller leaves it once its transaction has ended. A kind is crowded if many calls make
// such records at a time, which are then not counted each time: see crowd.
func (c *Counts) Take(ctx context.Context, rows ledger.Account, kind store.Kind, limit int, crowded bool) (*Place, error) {
	p := &Place{rows: rows, kind: kind, limit: limit, taken: time.Now()}
	slack := max(limit/8, leastSlack)
	if !crowded || limit <= slack {
		return p, nil
	}

	known, _ := c.crowds.LoadOrStore(crowdOf{rows.ID, kind}, new(crowd))
	p.crowd = known.(*crowd)
	n, err := p.crowd.enter(ctx, p)
	if err != nil {
		p.crowd.leave()
		return nil, err
	}
	p.spare = n <= int64(limit-slack)
	return p, nil
}

// Room returns ErrFull in a transaction if there is no room for the record.
func (p *Place) Room(tx store.ReadTx) error {
	// However much room there was, others may have filled it up while this call waited.
	if p.spare && time.Since(p.taken) < crowdWait {
		return nil
	}
	return Room(tx, p.rows.ID, p.kind, p.limit)
}

// Leave ends a place.
func (p *Place) Leave() {
	if p.crowd != nil {
		p.crowd.leave()
	}
}

// Room returns ErrFull in a transaction that finds limit records of a kind in an account.
func Room(tx store.ReadTx, account uuid.UUID, kind store.Kind, limit int) error {
	n, err := count(tx, account, kind)
	if err == nil && n >= int64(limit) {
		err = ErrFull
	}
	return err
}

func count(tx store.ReadTx, account uuid.UUID, kind store.Kind) (int64, error) {
	all, err := tx.List(&store.Query{Kind: kind, Account: account, Count: true})
	if err != nil {
		return 0, err
	}
	return all.Total, nil
}

const (
	leastSlack = 8192            // records that other processes may make meanwhile
	crowdFresh = time.Second     // how long a count is good for
	crowdWait  = 5 * time.Second // how long a call may wait for its transaction on it
)

// A crowd bounds the records of a kind in an account without counting them each time: on a
// store that commits in groups, two transactions that count a list to which both add cannot
// be in one group. It is exact for the records that this process makes. Others could pass a
// quota by it only by making an eighth of it, and no less than leastSlack, within the
// seconds that a count and a call on it are good for. Beyond the rest of the quota each
// transaction counts. The zero value is ready.
type crowd struct {
	mu           sync.Mutex // guards the following fields
	begun, ended int64      // calls of this process that make a record, also in vain
	base         int64      // a count, less the calls that had ended before it
	counted      time.Time  // when that was begun
}

// enter returns the upper bound of the number of records, including the new one. The caller
// leaves, also after an error.
func (c *crowd) enter(ctx context.Context, p *Place) (int64, error) {
	c.mu.Lock()
	c.begun++
	at, ended := time.Now(), c.ended
	fresh := at.Sub(c.counted) < crowdFresh
	c.mu.Unlock()

	if !fresh {
		var n int64
		err := p.rows.View(ctx, func(tx store.ReadTx) (err error) {
			n, err = count(tx, p.rows.ID, p.kind)
			return err
		})
		if err != nil {
			return 0, err
		}
		c.mu.Lock()
		c.base, c.counted = n-ended, at
		c.mu.Unlock()
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	return c.base + c.begun, nil
}

func (c *crowd) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended++
}
