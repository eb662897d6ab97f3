package cardvault

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/listing"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Merchant is one for whom payment cryptograms are requested. Every account
// has a primary one.
type Merchant struct {
	ID        uuid.UUID
	CreatedAt time.Time
	Name      string // 1 to 255 characters
	Primary   bool

	// Secrets of the merchant, oldest first: at most one that is used now and
	// one that will be. Their values are shown once, by RotatePaymentSecret.
	Secrets []PaymentSecret
}

// A PaymentSecret is a shared secret under which payment data is encrypted.
type PaymentSecret struct {
	KeyID      string    // as in the header kid
	ActivateAt time.Time // used from then on, until the next one is

	value receive.SharedSecret // what the receiver hashes: 43 base64url characters
}

// CreateMerchant makes a merchant of the account.
func (v *Vault) CreateMerchant(ctx context.Context, name string) (_ *Merchant, err error) {
	defer doing("create merchant", &err)
	if err := checkText("Name", []byte(name)); err != nil {
		return nil, err
	}
	if err := v.rows.Exists(ctx); err != nil {
		return nil, err
	}
	m := &Merchant{Name: name}
	r, err := merchants{v.rows}.add(m)
	if err != nil {
		return nil, err
	}
	if err := v.rows.Put(ctx, opCreateMerchant, m.ID, r); err != nil {
		return nil, err
	}
	return m, nil
}

// merchants are the merchants of an account.
type merchants struct{ ledger.Account }

// add completes a new merchant and returns its record.
func (s merchants) add(m *Merchant) (*store.Record, error) {
	row, err := s.NewRow()
	if err != nil {
		return nil, err
	}
	m.ID = s.Mask(kindMerchant, row)
	m.CreatedAt = rowkey.Time(row)
	r := s.NewRecord(kindMerchant, row)
	return r, s.SealShown(r, m.encode())
}

// ListMerchants returns one page of the account's merchants. opts may be nil. If merchants
// are damaged, the page comes with an error: see [Page].
func (v *Vault) ListMerchants(ctx context.Context, opts *ListOptions) (*Page[*Merchant], error) {
	return listedMerchants(v, opts).page(ctx)
}

// AllMerchants iterates over the account's merchants, as [Vault.All] does over tokens.
func (v *Vault) AllMerchants(ctx context.Context, opts *ListOptions) iter.Seq2[*Merchant, error] {
	return listedMerchants(v, opts).all(ctx)
}

func listedMerchants(v *Vault, opts *ListOptions) *listed[*Merchant] {
	return listedBy(opts, "list merchants", listing.List[*Merchant]{Rows: v.rows, Kind: kindMerchant, Open: merchants{v.rows}.open})
}

// PrimaryMerchant returns the account's primary merchant.
func (v *Vault) PrimaryMerchant(ctx context.Context) (_ *Merchant, err error) {
	defer doing("get primary merchant", &err)
	// It is the first, unless the clock stepped back before another was made.
	var damaged error // of another merchant, unless there is no primary one
	for m, err := range v.AllMerchants(ctx, &ListOptions{Limit: DefaultLimit, Ascending: true}) {
		if err == nil && m.Primary {
			return m, nil
		}
		damaged = cmp.Or(damaged, err)
	}
	return nil, cmp.Or(damaged, fmt.Errorf("%w: account without a primary merchant", ErrDamaged))
}

// RotatePaymentSecret makes a new shared secret for a merchant and returns it, which
// is shown only here. The first one is used at once, a
// later one from activateAt on: zero means after [SecretOverlap], a time that
// is past at once. One that waits to be used is replaced. The error is
// ErrNotFound for a merchant that the account does not have.
func (v *Vault) RotatePaymentSecret(ctx context.Context, merchant uuid.UUID, activateAt time.Time) (_ receive.SharedSecret, err error) {
	defer doing("rotate payment secret", &err)
	var random [32]byte
	rand.Read(random[:])
	text := base64.RawURLEncoding.AppendEncode(nil, random[:])
	defer clear(text)
	secret := receive.NewSharedSecret(text)

	return ledger.Retry(ctx, func() (receive.SharedSecret, error) {
		r, err := v.rows.Get(ctx, kindMerchant, merchant)
		if err != nil {
			return receive.SharedSecret{}, err
		}
		m, err := merchants{v.rows}.open(ctx, r)
		if err != nil {
			return receive.SharedSecret{}, err
		}

		// A secret that waits to be used is replaced, and so is all before the used one.
		at := now()
		m.Secrets = slices.DeleteFunc(m.Secrets, func(s PaymentSecret) bool { return s.ActivateAt.After(at) })
		m.Secrets = m.Secrets[max(0, len(m.Secrets)-1):]

		next := PaymentSecret{KeyID: uuid.NewString(), ActivateAt: at, value: secret}
		switch {
		case len(m.Secrets) == 0:
		case activateAt.IsZero():
			next.ActivateAt = at.Add(SecretOverlap)
		case activateAt.After(at):
			next.ActivateAt = activateAt.UTC().Truncate(time.Microsecond)
		default:
			m.Secrets = nil // replaced at once
		}

		m.Secrets = append(m.Secrets, next)
		r.Version++
		if err := v.rows.SealShown(r, m.encode()); err != nil {
			return receive.SharedSecret{}, err
		}

		if err := v.rows.Put(ctx, opRotateSecret, merchant, r); err != nil {
			return receive.SharedSecret{}, err
		}
		return secret, nil
	})
}

const (
	merchantName = iota + 1
	merchantPrimary
	merchantSecretID
	merchantSecretAt
	merchantSecret // ends one secret
)

func (m *Merchant) encode() []byte {
	b := tlv.Append(nil, merchantName, m.Name)
	b = tlv.AppendBool(b, merchantPrimary, m.Primary)
	for _, s := range m.Secrets {
		b = tlv.Append(b, merchantSecretID, s.KeyID)
		b = tlv.AppendTime(b, merchantSecretAt, s.ActivateAt)
		b = tlv.Append(b, merchantSecret, hiding.Of(s.value))
	}
	return tlv.Pad(b, 64, 0)
}

func (s merchants) open(ctx context.Context, rec *store.Record) (*Merchant, error) {
	m := &Merchant{ID: s.Mask(kindMerchant, rec.ID), CreatedAt: rowkey.Time(rec.ID)}
	r, err := s.Read(ctx, rec)
	if err != nil {
		return nil, err
	}

	var p PaymentSecret
	for r.Next() {
		switch r.Tag {
		case merchantName:
			m.Name = string(r.Value)
		case merchantPrimary:
			m.Primary = r.Bool()
		case merchantSecretID:
			p.KeyID = string(r.Value)
		case merchantSecretAt:
			p.ActivateAt = r.Time()
		case merchantSecret:
			p.value = receive.NewSharedSecret(r.Value)
			m.Secrets = append(m.Secrets, p)
		}
	}

	return m, s.Named(rec, ledger.ReadError(r))
}
