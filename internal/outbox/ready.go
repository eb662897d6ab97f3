package outbox

import (
	"context"
	"errors"
	"slices"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A page holds deliveries to attempt, in the order of their events. Of a damaged one it may
// hold the id alone.
type page struct {
	records []*store.Record
	next    uuid.UUID // row key from which the next page begins; zero: this is the last
	late    bool      // it is not the first: see shift.missed
}

// page reads deliveries that are ready, from a row key on. The webhook may be gone: each
// attempt looks at it.
func (s *shift) page(ctx context.Context, from uuid.UUID) (p *page, err error) {
	err = s.rows.View(ctx, func(tx store.ReadTx) (err error) {
		p, err = s.ready(tx, from, sendBatch)
		return err
	})
	return p, err
}

// ready returns a page of at most limit deliveries. The list of those that are ready is
// refused as a whole for one record that has another class than its list. Then s is torn, and
// those that are ready are looked for among all.
func (s *shift) ready(tx store.ReadTx, from uuid.UUID, limit int) (*page, error) {
	q := &store.Query{Kind: KindDelivery, Account: s.rows.ID, Parent: s.id, Min: from, Limit: limit}
	q.Classes.Add(Ready)
	list, err := tx.List(q)
	if list == nil && ledger.Unreadable(err) {
		s.torn.Store(true)
		q.Classes = store.Classes{}
		list, err = tx.List(q)
	}
	if list == nil {
		return nil, err
	}

	p := &page{late: from != uuid.Nil}
	if len(list.Records) == limit {
		p.next = rowkey.Above(list.Records[limit-1].ID)
	}
	p.records = slices.DeleteFunc(list.Records, func(r *store.Record) bool { return r.Version > 0 && r.Class != Ready })
	return p, nil
}

// start works on deliveries that are ready, except those of a token that is worked on
// already: they are late, and so are the later ones of that token. It returns how many
// tokens it has started. An account without a place for them comes last.
func (s *shift) start(ctx context.Context, ready *page) (started int) {
	crowded, started, err := s.startSome(ctx, ready)
	if err != nil {
		s.fail(err)
		return started
	}

	for _, chain := range crowded {
		s.passed[chain[0].Account] = true
	}
	for _, chain := range crowded {
		of := s.shareOf(chain[0].Account)
		if !s.waits(ctx, of) {
			return started
		}
		s.begin(ctx, of, chain)
		started++
	}
	return started
}

// startSome works on those deliveries for whose account there is a place, and returns the
// others by token.
func (s *shift) startSome(ctx context.Context, ready *page) (crowded [][]*pending, started int, err error) {
	chains, err := s.chains(ctx, ready)
	if err != nil {
		return nil, 0, err
	}

	for _, chain := range chains {
		if s.delayed(chain[0].Token, chain[len(chain)-1].rec) {
			continue
		}
		if of := s.shareOf(chain[0].Account); s.enters(of) {
			s.begin(ctx, of, chain)
			started++
		} else {
			crowded = append(crowded, chain)
		}
	}
	return crowded, started, nil
}

// begin works on deliveries of a token that has a place.
func (s *shift) begin(ctx context.Context, of *share, chain []*pending) {
	token := chain[0].Token
	s.mu.Lock()
	s.busy[token] = chain[len(chain)-1].rec
	s.mu.Unlock()
	s.group.Go(func() { s.work(ctx, of, token, chain) })
}

// chains opens deliveries and returns them by token, in their order.
func (s *shift) chains(ctx context.Context, ready *page) (chains [][]*pending, err error) {
	places := map[uuid.UUID]int{} // in chains, by token
	for _, r := range ready.records {
		if s.skips(r) {
			continue
		}

		p, err := s.outbox.openDelivery(ctx, r)
		next := []*pending{p}
		if errors.Is(err, ledger.ErrDamaged) {
			s.damaged.add(r)
			next, err = s.outbox.releaseFirst(ctx, s.rows, s.damaged, r.Lookup...)
		}
		if err != nil {
			return nil, err
		}

		for _, p := range next {
			p.late = ready.late
			place, known := places[p.Token]
			if !known {
				place = len(chains)
				places[p.Token] = place
				chains = append(chains, nil)
			}
			chains[place] = append(chains[place], p)
		}
	}
	return chains, nil
}

// delayed reports whether a token is worked on, or is late. It is late from now on if a
// delivery of it is not worked on.
func (s *shift) delayed(token uuid.UUID, last *store.Record) bool {
	s.mu.Lock()
	worked, busy := s.busy[token]
	s.mu.Unlock()
	if busy && before(worked, last) {
		s.late[token] = true
	}
	return busy || s.late[token]
}

// work attempts deliveries of a token, in a goroutine of its own.
func (s *shift) work(ctx context.Context, of *share, token uuid.UUID, chain []*pending) {
	if err := s.attemptAll(ctx, of, chain); err != nil {
		s.fail(err)
	}

	s.leaves(of)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, token)
	select {
	case s.ended <- struct{}{}:
	default:
	}
}
