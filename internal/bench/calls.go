package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// calls compares calls in process that write with the append-only loop.
func (b *bench) calls(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	appending, err := newFloor(filepath.Join(b.dir, "calls.db"), b.shape[:1], 0)
	if err != nil {
		return err
	}
	open.later(appending.close)
	payment, stop, err := b.paymentContender(ctx)
	if err != nil {
		return err
	}
	open.later(stop)

	var tokens supply[uuid.UUID]
	remove := contender{name: "Delete",
		ready: func(calls int) error { return tokens.fill(calls, b.newToken(ctx)) },
		run: func(int) error {
			id, err := tokens.take()
			if err != nil {
				return err
			}
			return b.vault.Delete(ctx, id)
		}}

	for _, n := range []int{1, 64} {
		lanes, err := b.race(n, remove, b.completing(ctx), payment, appending.contender())
		if err != nil {
			return err
		}
		for i, name := range []string{"delete", "complete", "payment"} {
			b.ratio(fmt.Sprintf("calls-%s/%d", name, n), n, reported, lanes[i], lanes[3])
		}
	}
	return nil
}

// completing completes sessions with cards that were encrypted before.
func (b *bench) completing(ctx context.Context) contender {
	type entry struct {
		id      cardvault.SessionID
		payload []byte
	}
	var sessions supply[entry]

	return contender{name: "CompleteSession",
		ready: func(calls int) error {
			return sessions.fill(calls, func() (entry, error) {
				id, payload, err := entered(ctx, b.vault)
				return entry{id, payload}, err
			})
		},
		run: func(int) error {
			s, err := sessions.take()
			if err != nil {
				return err
			}
			_, err = b.vault.CompleteSession(ctx, s.id, s.payload)
			return err
		}}
}

// paymentContender requests payment data in process.
func (b *bench) paymentContender(ctx context.Context) (c contender, stop func() error, err error) {
	s, ids, err := b.paying(ctx, "calls")
	if err != nil {
		return c, nil, err
	}
	return contender{name: "RequestPaymentData", run: func(int) error {
		_, err := s.vault.RequestPaymentData(ctx, ids[rand.IntN(len(ids))], cardvault.PaymentRequest{Amount: 1999, Currency: "EUR", Reference: "order 1"})
		return err
	}}, s.shut, nil
}
