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

// A page holds deliveries to attempt, in the order of their events. For a damaged one it
// may hold only the id.
type page struct {
	records []*store.Record
	end     uuid.UUID // row key behind the page
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

// ready returns a page of at most limit deliveries. The list of ready deliveries is refused
// as a whole for one record that has another class than its list. Then s is torn, and ready
// deliveries are searched for among all.
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

	p := &page{end: from, late: from != uuid.Nil}
	if n := len(list.Records); n > 0 {
		p.end = rowkey.Above(list.Records[n-1].ID)
		if n == limit {
			p.next = p.end
		}
	}
	p.records = slices.DeleteFunc(list.Records, func(r *store.Record) bool { return r.Version > 0 && r.Class != Ready })
	return p, nil
}

// start works on ready deliveries, and skips tokens with work in progress: their deliveries
// are late, and so are the later ones of the token. It returns the number of tokens that it
// has started, after it has waited for places for all.
func (s *shift) start(ctx context.Context, ready *page) (started int) {
	chains, err := s.chains(ctx, ready)
	if err != nil {
		s.fail(err)
		return 0
	}
	s.crowded = chains
	defer func() { s.crowded = nil }()

	started = s.startCrowded(ctx)
	first := map[uuid.UUID]bool{}
	for _, chain := range s.crowded {
		if account := chain[0].Account; !first[account] {
			first[account], s.passed[account] = true, chain[0].rec.ID
		}
	}
	for len(s.crowded) > 0 && s.waits(ctx) {
		started += s.startCrowded(ctx)
	}
	return started
}

// startCrowded works on the deliveries of the present page whose accounts have a free
// place, and leaves out delayed tokens. It returns the number of tokens that it has
// started.
func (s *shift) startCrowded(ctx context.Context) (started int) {
	s.crowded = slices.DeleteFunc(s.crowded, func(chain []*pending) bool {
		if s.delayed(chain) {
			return true
		}
		of := s.shareOf(chain[0].Account)
		if !s.enters(of) {
			return false
		}
		s.begin(ctx, of, chain)
		started++
		return true
	})
	return started
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
			next, err = s.outbox.releaseFirst(ctx, s.rows, s.damaged, s.outbox.ledger.Box.Keys().Searched(r.Lookup)...)
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

// delayed reports whether the token of deliveries is worked on, or is late. It is late from
// now on if one of them is not worked on.
func (s *shift) delayed(chain []*pending) bool {
	token, last := chain[0].Token, chain[len(chain)-1].rec
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
