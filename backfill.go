package cardvault

import (
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A backfill goes through the tokens of an account and asks for network tokens for those
// eligible.
type backfill struct {
	from  uuid.UUID // row key to go on from
	began time.Time
	again bool // for tokens that were imported while it began
}

const (
	backfillFrom = iota + 1
	backfillBegan
	backfillAgain
)

func (b *backfill) fields(f *tlv.Fields) {
	f.Array(backfillFrom, b.from[:])
	f.Time(backfillBegan, &b.began)
	f.Bool(backfillAgain, &b.again)
}

func (b *backfill) encode() []byte { return tlv.Encode(b.fields) }

func decodeBackfill(plain []byte) (*backfill, error) {
	b := new(backfill)
	return b, ledger.Decode(plain, b.fields)
}

// newBackfill returns the job that asks for network tokens for all tokens of the
// account, from the first.
func (v *Vault) newBackfill(ctx context.Context) (*store.Record, error) {
	return v.onlyJob(ctx, kindBackfill, func(at time.Time) []byte { return (&backfill{began: at}).encode() })
}

// backfillBatch limits the tokens of one run of the job.
const backfillBatch = 256

// backfill does a part of the job and stores how far it has come.
func (v *Vault) backfill(ctx context.Context, j *jobs.Job, b *backfill) error {
	rec := j.Record
	q := &store.Query{Kind: kindToken, Account: v.rows.ID, Min: b.from, Live: now(), Limit: backfillBatch}
	q.Classes = classes(nil, []network.Status{network.NotAvailable}, nil)
	list, err := v.rows.List(ctx, q)
	if list == nil { // beside a list, err is of rows that say they are another account's
		return err
	}

	err = jobs.Each(list.Records, func(r *store.Record) error {
		_, err := v.change(ctx, opProvision, r.ID, func(h *holding) (func(store.Tx) error, error) {
			if h.token.NetworkTokenStatus != network.NotAvailable || !h.token.ExpiresAt.IsZero() {
				return nil, nil
			}
			if reason, err := v.unavailable(ctx, h.token, now()); reason != nil || err != nil {
				return nil, err
			}
			freed, err := v.request(ctx, h)
			if freed == nil {
				return nil, err
			}
			return func(tx store.Tx) error { tx.Put(freed); return nil }, err
		})
		switch {
		case errors.Is(err, ErrNotFound):
			return nil
		case errors.Is(err, ErrDamaged): // it keeps no other from its network token
			v.log.Error("token cannot be provisioned", "token", v.rows.Mask(kindToken, r.ID), "error", err)
			return nil
		}
		return err
	})
	if err != nil {
		return err // after the lease it goes on from where it was
	}

	rec.Due = now()

	switch n := len(list.Records); {
	case n == backfillBatch:
		b.from = rowkey.Above(list.Records[n-1].ID)
	case b.again:
		return v.jobs.Finish(ctx, rec)
	default:
		b.again = true
		b.from = rowkey.First(b.began.Add(-time.Minute))
		rec.Due = rec.Due.Add(time.Minute)
	}

	return v.jobs.Again(ctx, rec, b.encode())
}

// slot takes a place under the rate limit of a scheme, unless n has one, and returns how
// long n has to wait for it.
func (v *Vault) slot(n *networkToken, at time.Time) (wait time.Duration) {
	if !n.slot {
		wait, n.slot = v.rate.Take(uint8(n.scheme), at, n.reconciles())
	}
	return wait
}

// postpone leaves alone a network token of a network that is not configured. A token that
// has not been provisioned yet moves to the network of its scheme.
func (c *networkCall) postpone(ctx context.Context) error {
	v := c.vault
	_, err := v.change(ctx, opNetworkToken, c.asked.card.ID, func(h *holding) (func(store.Tx) error, error) {
		v.answered(h, networkAnswer{kind: answerElsewhere, network: v.opts.powers.For(h.token.Scheme), repeats: c.job.Doubtful}, now())
		if !v.opts.powers.Has(h.net.network) {
			v.log.Warn("the network of a network token is not configured", "token", h.token.ID)
		}
		return c.held(nil), nil
	})
	return err
}
