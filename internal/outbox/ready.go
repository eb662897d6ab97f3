package outbox

import (
	"context"
	"errors"
	"slices"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// page reads deliveries that are ready, from a row key on. The webhook may be gone: each
// attempt looks at it.
func (s *shift) page(ctx context.Context, from uuid.UUID) (some []*store.Record, err error) {
	err = s.rows.View(ctx, func(tx store.ReadTx) (err error) {
		some, err = s.ready(tx, from, sendBatch)
		return err
	})
	return some, err
}

// ready returns deliveries to attempt, from a row key on. A list is refused as a whole for
// one record that somebody has edited: then the others are read one by one, and s is torn.
func (s *shift) ready(tx store.ReadTx, from uuid.UUID, limit int) ([]*store.Record, error) {
	q := &store.Query{Kind: KindDelivery, Account: s.rows.ID, Parent: s.id, Min: from, Limit: limit}
	q.Classes.Add(Ready)
	list, damage := tx.List(q)
	if damage == nil {
		return list.Records, nil
	}
	if !ledger.Unreadable(damage) {
		return nil, damage
	}

	s.torn.Store(true)
	keys, err := tx.Children(s.id, damagedMost)
	if err != nil {
		return nil, err
	}

	var some []*store.Record
	for _, k := range keys {
		if k.Kind != KindDelivery || slices.Compare(k.ID[:], from[:]) < 0 || len(some) == limit {
			continue
		}
		r, err := present(tx, KindDelivery, k.ID)
		if err != nil {
			return nil, err
		}
		if r != nil && r.Class == Ready && r.Account == s.rows.ID && r.Parent == s.id {
			some = append(some, r)
		}
	}
	if len(some) == 0 && len(keys) == damagedMost { // there may be some beyond these
		return nil, damage
	}
	return some, nil
}

// start works on deliveries that are ready, except those of a token that is worked on
// already: they are late, and so are the later ones of that token. It returns how many
// tokens it has started.
func (s *shift) start(ctx context.Context, ready []*store.Record) (started int) {
	chains, err := s.chains(ctx, ready)
	if err != nil {
		s.fail(err)
		return 0
	}

	for _, chain := range chains {
		token, last := chain[0].Token, chain[len(chain)-1].rec
		if s.delayed(token, last) {
			continue
		}
		s.tokens <- struct{}{}
		s.mu.Lock()
		s.busy[token] = last
		s.mu.Unlock()
		started++
		s.group.Go(func() { s.work(ctx, token, chain) })
	}
	return started
}

// chains opens deliveries and returns them by token, in their order.
func (s *shift) chains(ctx context.Context, ready []*store.Record) (chains [][]*pending, err error) {
	places := map[uuid.UUID]int{} // in chains, by token
	for _, r := range ready {
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
func (s *shift) work(ctx context.Context, token uuid.UUID, chain []*pending) {
	if err := s.attemptAll(ctx, chain); err != nil {
		s.fail(err)
	}

	<-s.tokens
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, token)
	select {
	case s.ended <- struct{}{}:
	default:
	}
}
