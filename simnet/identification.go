package simnet

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// ErrUnknownIdentification is returned for an identification that was never begun
// here.
var ErrUnknownIdentification = errors.New("simnet: unknown identification")

// An identification is under way or has ended. No card is kept with it.
type identification struct {
	Scheme scheme `json:"scheme"`
	Ends   int64  `json:"ends"`            // 0 until the shopper has answered
	Failed bool   `json:"failed,omitzero"` // by the shopper
}

// IDV returns the simulator as a provider that identifies cardholders: cards of scenario
// 070 need it, other ones do not.
func (n *Network) IDV() idv.Provider { return verifier{n} }

// A verifier is a Network as an idv.Provider.
type verifier struct{ n *Network }

func (verifier) Info() idv.Info { return idv.Info{Name: simulator, SandboxOnly: true} }

func (v verifier) Identify(ctx context.Context, r *idv.Request) (*idv.Result, error) {
	n, code := v.n, 0
	r.PAN.Expose(func(digits []byte) { code = scenarioOf(r.Scheme, digits) })
	if s := scenarios[code]; !s.identified {
		return &idv.Result{State: idv.NotNeeded}, nil
	}

	if !keyOK(r.IdempotencyKey) {
		return nil, errors.New("simnet: idempotency key must have 1 to 64 bytes")
	}

	id := random(n.mac("identification", []byte(r.IdempotencyKey)))
	fresh := identification{Scheme: scheme(r.Scheme)}
	if n.challenge == "" {
		fresh.Ends = n.now() + later.Microseconds()
	}

	return n.identification(ctx, id, func(tx store.Tx, i *identification, err error) error {
		if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		*i = fresh
		return putIdentification(tx, id, 1, i)
	})
}

func (v verifier) LookupIdentification(ctx context.Context, r *idv.LookupRequest) (*idv.Result, error) {
	got, err := v.n.Control().Identification(ctx, r.Reference)
	if errors.Is(err, ErrUnknownIdentification) {
		return &idv.Result{State: idv.Failed}, nil
	}
	return got, err
}

// Identification returns how far an identification is, by the reference that IDV gave.
//
// The error is ErrUnknownIdentification.
func (c *Control) Identification(ctx context.Context, reference string) (*idv.Result, error) {
	id, err := parseReference(reference)
	if err != nil {
		return nil, err
	}
	var i identification
	err = c.n.store.View(ctx, func(tx store.ReadTx) error {
		r, err := tx.Get(kindIdentification, id)
		if err != nil {
			return err
		}
		return decode(r, &i)
	})
	return c.n.result(id, &i, err)
}

// parseReference takes what Identify gives alone: uuid.Parse takes other forms too.
func parseReference(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id.String() != text {
		return uuid.Nil, ErrUnknownIdentification
	}
	return id, nil
}

// EndIdentification does what the shopper does on the page of the challenge: the
// identification is passed or failed two seconds later. The first answer counts.
//
// The error is ErrUnknownIdentification.
func (c *Control) EndIdentification(ctx context.Context, reference string, passed bool) error {
	id, err := parseReference(reference)
	if err != nil {
		return err
	}
	ends := c.n.now() + later.Microseconds()
	_, err = c.n.identification(ctx, id, func(tx store.Tx, i *identification, err error) error {
		if err != nil || i.Ends != 0 {
			return err
		}
		i.Ends, i.Failed = ends, !passed
		return putIdentification(tx, id, 2, i)
	})
	return err
}

// identification returns the state of an identification after fn, which receives it or the
// reason for its absence.
func (n *Network) identification(ctx context.Context, id uuid.UUID, fn func(store.Tx, *identification, error) error) (*idv.Result, error) {
	var i identification
	err := n.store.Update(ctx, func(tx store.Tx) error {
		i = identification{}
		r, err := tx.Get(kindIdentification, id)
		if err == nil {
			err = decode(r, &i)
		}
		return fn(tx, &i, err)
	})
	return n.result(id, &i, err)
}

// result returns the state of an identification that was read.
func (n *Network) result(id uuid.UUID, i *identification, err error) (*idv.Result, error) {
	if errors.Is(err, store.ErrNotFound) {
		return nil, ErrUnknownIdentification
	}
	if err != nil {
		return nil, err
	}

	got := &idv.Result{State: idv.Pending, Reference: id.String()}
	switch {
	case i.Ends == 0:
		got.ChallengeURL = n.challenge + id.String()
	case n.now() < i.Ends:
	case i.Failed:
		got.State = idv.Failed
	default:
		got.State = idv.Passed
		got.Authentication = &idv.Authentication{
			Method:          "three_ds",
			Status:          "Y",
			ECI:             "05",
			DSTransactionID: random(n.mac("transaction", id[:])).String(),
			At:              time.UnixMicro(i.Ends),
		}
		if i.Scheme == scheme(card.Mastercard) {
			got.Authentication.ECI = "02"
		}
	}

	return got, nil
}

func putIdentification(tx store.Tx, id uuid.UUID, version uint64, i *identification) error {
	shown, err := json.Marshal(i)
	if err == nil {
		tx.Put(&store.Record{Kind: kindIdentification, ID: id, Version: version, Shown: shown})
	}
	return err
}

// random returns a UUIDv4 of bytes that look random.
func random(b []byte) uuid.UUID {
	id := uuid.UUID(b[:16])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id
}
