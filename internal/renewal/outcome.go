package renewal

import (
	"context"
	"crypto/subtle"
	"encoding/base32"
	"errors"

	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/updater"
	"github.com/google/uuid"
)

// references has an alphabet with few digits: a reference never looks like a card number.
var references = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// reference returns the reference of an entry: the masked id of its submission, and a keyed
// hash of account, submission, token and edition. It cannot be made without the key.
func (n *Renewals) reference(rows ledger.Account, row uuid.UUID, s *submission, e *entry) string {
	id := n.whole().Mask(n.Kinds.Submission, row)
	return references.EncodeToString(append(id[:], rows.Box.Stable(rows.ID, "card reference", s.bound(row, e))...))
}

// errRefused is the error of a reference that belongs to no submission.
var errRefused = errors.New("cardvault: reference is unknown")

// find returns the entry of a reference, or errRefused.
func (n *Renewals) find(ctx context.Context, reference string) (ledger.Account, *entry, error) {
	text, err := references.DecodeString(reference[:min(len(reference), 64)])
	if err != nil || len(text) != 2*len(uuid.UUID{}) {
		return ledger.Account{}, nil, errRefused
	}
	row := n.whole().Unmask(n.Kinds.Submission, uuid.UUID(text[:16]))
	if row == uuid.Nil {
		return ledger.Account{}, nil, errRefused
	}

	rows, s, err := n.submission(ctx, row)
	if errors.Is(err, ledger.ErrNotFound) || err == nil && s.updater != n.name {
		err = errRefused
	}
	if err != nil {
		return rows, nil, err
	}
	for i := range s.cards {
		e := &s.cards[i]
		if subtle.ConstantTimeCompare(rows.Box.Stable(rows.ID, "card reference", s.bound(row, e)), text[16:]) == 1 {
			return rows, e, nil
		}
	}
	return rows, nil, errRefused
}

// Feed receives outcomes until ctx ends.
func (n *Renewals) Feed(ctx context.Context) error { return n.Provider.Feed(ctx, n.Outcome) }

// Outcome applies an outcome. It returns nil once the outcome is applied, or refused for good.
func (n *Renewals) Outcome(ctx context.Context, o *updater.Outcome) error {
	select {
	case n.turns <- struct{}{}:
		defer func() { <-n.turns }()
	case <-ctx.Done():
		return ctx.Err()
	}

	err := plausible.Outcome(o, n.AllowNonLuhn, ledger.Now())
	var rows ledger.Account
	var e *entry
	if err == nil {
		rows, e, err = n.find(ctx, o.Reference)
	}
	if err == nil {
		err = n.apply(store.Patient(ctx), rows, e, o)
	}

	switch {
	case err == nil:
		n.applied(rows, e, o)
		return nil
	case errors.Is(err, plausible.ErrGarbage), errors.Is(err, errRefused), errors.Is(err, n.Late), errors.Is(err, ledger.ErrNotFound), ledger.Unreadable(err):
		refused := n.counts[0].Add(1)
		if n.warned.Now() {
			n.Log.Warn("outcomes of the account updater are refused", "updater", n.name, "count", refused, "error", leak.Printable(err))
		}
		return nil
	}
	return err
}

// applied logs and counts an outcome.
func (n *Renewals) applied(rows ledger.Account, e *entry, o *updater.Outcome) {
	count := n.counts[o.Kind].Add(1)
	log := n.Log.Info
	if o.Kind == updater.NoMatch {
		log = n.Log.Debug
	}
	id := o.ID
	if leak.MayHoldPAN(id) {
		id = ""
	}
	log("the account updater has answered", "updater", n.name, "outcome", o.Kind.String(), "count", count,
		"account", rows.ID, "token", rows.Mask(n.Kinds.Token, e.row), "id", id)
}

// apply does what an outcome says.
func (n *Renewals) apply(ctx context.Context, rows ledger.Account, e *entry, o *updater.Outcome) error {
	switch o.Kind {
	case updater.Updated, updater.ExpiryChanged, updater.Closed:
		return n.Source.Apply(ctx, rows.ID, e.row, e.Card, o)
	case updater.OptedOut:
		_, err := ledger.Retry(ctx, func() (struct{}, error) { return struct{}{}, n.optOut(ctx, rows, e) })
		return err
	}
	return nil
}

// optOut stores that the holder of a card wants no updates: it is not submitted again until
// the token has another number.
func (n *Renewals) optOut(ctx context.Context, rows ledger.Account, e *entry) error {
	token, err := rows.GetRow(ctx, n.Kinds.Token, e.row)
	if err != nil {
		return err
	}
	switch c, err := n.Source.Card(ctx, token); {
	case err != nil:
		return err
	case c == nil || c.Edition != e.Edition:
		return n.Late
	}

	r := &store.Record{Kind: n.Kinds.OptOut, ID: e.row, Account: rows.ID, Parent: e.row}
	err = rows.View(ctx, func(tx store.ReadTx) error {
		r.Version = 1
		former, err := tx.Get(r.Kind, r.ID)
		if err == nil {
			r.Version = former.Version + 1
		}
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}

	fields := func(f *tlv.Fields) { tlv.Uint(f, optOutEdition, &e.Edition) }
	if err := n.Ledger.SealShown(r, tlv.Encode(fields)); err != nil {
		return err
	}
	return rows.Write(ctx, opOptOut, rows.Mask(n.Kinds.Token, e.row), func(tx store.Tx) error {
		if _, err := rows.Find(tx, n.Kinds.Token, e.row); err != nil {
			return err
		}
		tx.Put(r)
		return nil
	})
}
