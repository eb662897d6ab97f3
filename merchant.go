package cardvault

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/keytext"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/listing"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Payment cryptograms are requested for a Merchant. Every account has a primary one.
type Merchant struct {
	ID        uuid.UUID `wire:"id"`
	CreatedAt time.Time `wire:"created_at"`
	Name      string    `wire:"name"` // 1 to 255 characters
	Primary   bool      `wire:"primary"`

	// Secrets of the merchant, oldest first: at most the current one and its successor.
	// Their values are shown once, by RotatePaymentSecret.
	Secrets []PaymentSecret `wire:"secrets"`

	Replayed bool // CreateMerchant has made it before, or EnsureMerchant has found it

	row     uuid.UUID
	version uint64 // of its record, when it was read
}

// A PaymentSecret is a shared secret under which payment data is encrypted.
type PaymentSecret struct {
	KeyID      string    `wire:"key_id"`      // as in the header kid
	ActivateAt time.Time `wire:"activate_at"` // used from then on, until the next one is

	// Secret is the secret itself, only from the RotatePaymentSecret that has made it: a
	// replay has none.
	Secret   receive.SharedSecret
	Replayed bool                 // RotatePaymentSecret has made it before: see the package comment
	value    receive.SharedSecret // what the receiver hashes: 43 base64url characters
}

// MerchantOptions are the optional parts of a new merchant.
type MerchantOptions struct {
	IdempotencyKey string // see the package comment
}

// CreateMerchant makes a merchant of the account, even if another has the same name. opts
// may be nil.
//
// Errors: FieldErrors; ErrIdempotencyKeyReused; ErrNotFound for a handle on an account
// that does not exist.
func (v *Vault) CreateMerchant(ctx context.Context, name string, opts *MerchantOptions) (_ *Merchant, err error) {
	defer v.doing(ctx, "create merchant", &err)
	if err := checkText("Name", []byte(name)); err != nil {
		return nil, err
	}
	if opts == nil {
		opts = new(MerchantOptions)
	}

	call := replay.Request{Operation: opCreateMerchant, Key: opts.IdempotencyKey, Body: func() []byte { return []byte(name) }}
	again := replay.Reopen(ctx, v.rows, kindMerchant, merchants{v.rows}.open, func(m *Merchant) { m.Replayed = true })
	return once(ctx, v, call, again, func(c *replay.Call) (*Merchant, error) {
		return merchants{v.rows}.put(ctx, name, c, c.Put)
	})
}

// EnsureMerchant returns the oldest merchant of the account with a name, and makes it if it
// does not exist. If several calls come at once, in several processes too, one makes it.
// opts may be nil, and can have no IdempotencyKey.
//
// Errors: FieldErrors; ErrDamaged if damage hides whether the merchant exists; ErrNotFound
// for a handle on an account that does not exist.
func (v *Vault) EnsureMerchant(ctx context.Context, name string, opts *MerchantOptions) (_ *Merchant, err error) {
	defer v.doing(ctx, "ensure merchant", &err)
	err = checkText("Name", []byte(name))
	if opts != nil {
		err = errors.Join(err, noIdempotencyKey(opts.IdempotencyKey))
	}
	if err != nil {
		return nil, err
	}

	s := merchants{v.rows}
	return ledger.Retry(ctx, func() (*Merchant, error) {
		m, err := s.hashed(ctx, s.nameHash(name))
		if m == nil && err == nil { // a merchant of a former version has no hash
			m, err = findMerchant(ctx, v, func(m *Merchant) bool { return m.Name == name })
		}
		switch {
		case err != nil:
			return nil, err
		case m != nil:
			m.Replayed = true
			return m, nil
		}
		return s.put(ctx, name, nil, func(tx store.Tx) error {
			found, err := tx.Lookup(kindMerchant, s.nameHash(name), 1)
			if err == nil && len(found) > 0 {
				err = ledger.ErrAgain // another call was faster
			}
			return err
		})
	})
}

// merchants are the merchants of an account.
type merchants struct{ ledger.Account }

// put stores a new merchant as the result of c, in one transaction with also.
func (s merchants) put(ctx context.Context, name string, c *replay.Call, also func(store.Tx) error) (*Merchant, error) {
	if err := s.Exists(ctx); err != nil {
		return nil, err
	}
	m := &Merchant{Name: name}
	r, err := s.add(m)
	if err != nil {
		return nil, err
	}
	if err := c.Seal(r.ID[:], uuid.Nil); err != nil {
		return nil, err
	}

	err = s.Write(ctx, opCreateMerchant, m.ID, func(tx store.Tx) error {
		tx.Put(r)
		return also(tx)
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// hashed returns the oldest merchant whose name has a hash, or nil.
func (s merchants) hashed(ctx context.Context, hash []byte) (*Merchant, error) {
	var oldest *store.Record
	err := s.FindBy(ctx, kindMerchant, hash, 1, func(r *store.Record, readable bool) bool {
		if readable {
			oldest = r
		}
		return true
	})
	if oldest == nil || err != nil {
		return nil, err
	}
	return s.open(ctx, oldest)
}

func (s merchants) nameHash(name string) []byte {
	return s.Box.Lookup(s.ID, "merchant", []byte(name))
}

func (s merchants) nameHashes(name string) [][]byte {
	return s.Box.Lookups(s.ID, "merchant", []byte(name))
}

// add completes a new merchant and returns its record.
func (s merchants) add(m *Merchant) (*store.Record, error) {
	row, err := s.NewRow()
	if err != nil {
		return nil, err
	}
	m.ID = s.Mask(kindMerchant, row)
	m.CreatedAt = rowkey.Time(row)
	r := s.NewRecord(kindMerchant, row)
	r.Lookup = s.nameHashes(m.Name)
	return r, s.SealShown(r, tlv.Encode(m.fields))
}

// ListMerchants returns one page of the account's merchants. opts may be nil. If merchants
// are damaged, the page comes with an error: see [Page].
func (v *Vault) ListMerchants(ctx context.Context, opts *ListOptions) (_ *Page[*Merchant], err error) {
	defer v.doing(ctx, "list merchants", &err)
	return listedMerchants(v, opts).page(ctx)
}

// AllMerchants iterates over the account's merchants, as [Vault.All] does over tokens.
func (v *Vault) AllMerchants(ctx context.Context, opts *ListOptions) iter.Seq2[*Merchant, error] {
	return iterate(ctx, v, func() *listed[*Merchant] { return listedMerchants(v, opts) })
}

func listedMerchants(v *Vault, opts *ListOptions) *listed[*Merchant] {
	return listedBy(opts, "list merchants", listing.List[*Merchant]{Rows: v.rows, Kind: kindMerchant, Open: merchants{v.rows}.open})
}

// Merchant returns a merchant. The error is ErrNotFound for an id that the account does
// not have.
func (v *Vault) Merchant(ctx context.Context, id uuid.UUID) (_ *Merchant, err error) {
	defer v.doing(ctx, "get merchant", &err, id)
	_, m, err := merchants{v.rows}.get(ctx, id)
	return m, err
}

// PrimaryMerchant returns the account's primary merchant.
func (v *Vault) PrimaryMerchant(ctx context.Context) (_ *Merchant, err error) {
	defer v.doing(ctx, "get primary merchant", &err)
	// It is the first, unless the clock stepped back before another was made.
	m, err := findMerchant(ctx, v, func(m *Merchant) bool { return m.Primary })
	if m == nil && err == nil {
		err = fmt.Errorf("%w: account without a primary merchant", ErrDamaged)
	}
	return m, err
}

// findMerchant returns the oldest merchant that is the right one, or nil. An error says
// that a damaged one may be it.
func findMerchant(ctx context.Context, v *Vault, right func(*Merchant) bool) (*Merchant, error) {
	var damaged error
	for m, err := range v.AllMerchants(ctx, &ListOptions{Limit: DefaultLimit, Ascending: true}) {
		if err == nil && right(m) {
			return m, nil
		}
		damaged = cmp.Or(damaged, err)
	}
	return nil, damaged
}

// PaymentSecretOptions are the options of RotatePaymentSecret.
type PaymentSecretOptions struct {
	// ActivateAt is the time from which the secret is used. The first secret of a merchant is
	// used at once. Zero means after [SecretOverlap], and a past time means at once, which
	// revokes the previous secret.
	ActivateAt time.Time

	// RevokePrevious uses the secret at once, and revokes the previous one in the same
	// transaction, as RevokePreviousPaymentSecret does. ActivateAt must not be set.
	RevokePrevious bool

	IdempotencyKey string // see the package comment
}

// RotatePaymentSecret makes a new shared secret for a merchant and returns it: its text
// is shown only here. A secret that waits to be used is replaced. opts may be nil.
//
// Errors: FieldErrors; ErrNotFound for a merchant that the account does not have;
// ErrIdempotencyKeyReused.
func (v *Vault) RotatePaymentSecret(ctx context.Context, merchant uuid.UUID, opts *PaymentSecretOptions) (_ *PaymentSecret, err error) {
	defer v.doing(ctx, "rotate payment secret", &err, merchant)
	if opts == nil {
		opts = new(PaymentSecretOptions)
	}
	if opts.RevokePrevious && !opts.ActivateAt.IsZero() {
		return nil, &FieldError{"ActivateAt", invalid.DependsOn, "must not be set with RevokePrevious"}
	}
	activateAt := opts.ActivateAt.UTC().Truncate(time.Microsecond)
	call := replay.Request{Operation: opRotateSecret, Object: merchant, Key: opts.IdempotencyKey, Body: func() []byte {
		return tlv.AppendBool(tlv.AppendTime(nil, 1, activateAt), 2, opts.RevokePrevious)
	}}

	return once(ctx, v, call, repeatedSecret, func(c *replay.Call) (*PaymentSecret, error) {
		r, m, err := merchants{v.rows}.get(ctx, merchant)
		if err != nil {
			return nil, err
		}

		at := now()
		if opts.RevokePrevious {
			activateAt = at
		}
		next := m.rotate(at, activateAt)
		r.Version++
		if err := v.rows.SealShown(r, tlv.Encode(m.fields)); err != nil {
			return nil, err
		}
		// Without its value: the answer must not be a second place of a secret.
		answer := tlv.AppendTime(tlv.Append(nil, merchantSecretID, next.KeyID), merchantSecretAt, next.ActivateAt)
		if err := c.Seal(answer, uuid.Nil); err != nil {
			return nil, err
		}

		next.Secret = next.value
		return &next, v.rows.Write(ctx, opRotateSecret, merchant, func(tx store.Tx) error {
			tx.Put(r)
			return c.Put(tx)
		})
	})
}

// RevokePreviousPaymentSecret revokes the secret before the newest one of a merchant, which
// is used from then on, without another rotation. A merchant with one secret stays as it is.
//
// From the commit on, no process encrypts under a revoked secret, and no call returns payment
// data that was encrypted under it. Payment data that a caller has received before can still
// be opened with it.
//
// The error is ErrNotFound for a merchant that the account does not have.
func (v *Vault) RevokePreviousPaymentSecret(ctx context.Context, merchant uuid.UUID) (err error) {
	defer v.doing(ctx, "revoke previous payment secret", &err, merchant)
	return merchants{v.rows}.revoke(ctx, merchant, func(all []PaymentSecret) []PaymentSecret {
		newest := all[max(0, len(all)-1):]
		if at := now(); len(all) > 1 && newest[0].ActivateAt.After(at) {
			newest[0].ActivateAt = at
		}
		return newest
	})
}

// RevokePaymentSecret takes a secret from a merchant, such as a secret whose text did not arrive. The
// others stay: without any, nothing is encrypted until the next rotation. A merchant without a secret
// of that KeyID stays as it is. Else the call is as [Vault.RevokePreviousPaymentSecret].
func (v *Vault) RevokePaymentSecret(ctx context.Context, merchant uuid.UUID, keyID string) (err error) {
	defer v.doing(ctx, "revoke payment secret", &err, merchant)
	return merchants{v.rows}.revoke(ctx, merchant, func(all []PaymentSecret) []PaymentSecret {
		return slices.DeleteFunc(all, func(s PaymentSecret) bool { return s.KeyID == keyID })
	})
}

// revoke takes from a merchant the secrets that are not left.
func (s merchants) revoke(ctx context.Context, id uuid.UUID, left func(all []PaymentSecret) []PaymentSecret) error {
	_, err := ledger.Retry(ctx, func() (*Merchant, error) {
		r, m, err := s.get(ctx, id)
		if err != nil {
			return nil, err
		}

		before := len(m.Secrets)
		if m.Secrets = left(m.Secrets); len(m.Secrets) == before {
			return m, nil
		}
		r.Version++
		if err := s.SealShown(r, tlv.Encode(m.fields)); err != nil {
			return nil, err
		}
		return m, s.Put(ctx, opRevokeSecret, id, r)
	})
	return err
}

// rotate gives the merchant a new secret and returns that.
func (m *Merchant) rotate(at, activateAt time.Time) PaymentSecret {
	text := keytext.Secret("", base64.RawURLEncoding)
	defer clear(text)
	next := PaymentSecret{KeyID: uuid.NewString(), ActivateAt: at, value: receive.NewSharedSecret(text)}

	// A secret that waits to be used is replaced, and so is all before the used one.
	m.Secrets = slices.DeleteFunc(m.Secrets, func(s PaymentSecret) bool { return s.ActivateAt.After(at) })
	m.Secrets = m.Secrets[max(0, len(m.Secrets)-1):]
	switch {
	case len(m.Secrets) == 0:
	case activateAt.IsZero():
		next.ActivateAt = at.Add(SecretOverlap)
	case activateAt.After(at):
		next.ActivateAt = activateAt
	default:
		m.Secrets = nil // replaced at once
	}

	m.Secrets = append(m.Secrets, next)
	return next
}

// repeatedSecret returns the secret of an answer, which does not have its value.
func repeatedSecret(answer []byte) (*PaymentSecret, error) {
	s := &PaymentSecret{Replayed: true}
	return s, ledger.Decode(answer, s.fields)
}

const (
	merchantName = iota + 1
	merchantPrimary
	merchantSecretID
	merchantSecretAt
	merchantSecret // ends one secret
)

func (m *Merchant) fields(f *tlv.Fields) {
	tlv.Text(f, merchantName, &m.Name)
	f.Bool(merchantPrimary, &m.Primary)
	tlv.Items(f, merchantSecretID, merchantSecret, &m.Secrets, (*PaymentSecret).fields)
}

func (s *PaymentSecret) fields(f *tlv.Fields) {
	tlv.Text(f, merchantSecretID, &s.KeyID)
	f.Time(merchantSecretAt, &s.ActivateAt)
	if value := f.Value(merchantSecret, hiding.Of(s.value)); f.Reading() {
		s.value = receive.NewSharedSecret(value)
	}
}

// get returns a merchant with its record.
func (s merchants) get(ctx context.Context, id uuid.UUID) (*store.Record, *Merchant, error) {
	r, err := s.Get(ctx, kindMerchant, id)
	if err != nil {
		return nil, nil, err
	}
	m, err := s.open(ctx, r)
	return r, m, err
}

func (s merchants) open(ctx context.Context, rec *store.Record) (*Merchant, error) {
	m := &Merchant{ID: s.Mask(kindMerchant, rec.ID), CreatedAt: rowkey.Time(rec.ID), row: rec.ID, version: rec.Version}
	return m, s.ReadFields(ctx, rec, m.fields)
}
