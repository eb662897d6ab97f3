package cardvault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/credential"
	"github.com/cardvault/cardvault/internal/enum"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/listing"
	"github.com/cardvault/cardvault/internal/paymentdata"
	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// An Initiator is the party that starts a payment.
type Initiator uint8

const (
	InitiatorCustomer Initiator = iota // who is present, such as in a checkout
	InitiatorMerchant                  // by itself, such as to renew a subscription
)

// String returns "customer" or "merchant".
func (i Initiator) String() string { return initiatorNames.Of(uint8(i)) }

var initiatorNames = enum.Names{InitiatorCustomer: "customer", InitiatorMerchant: "merchant"}

// MarshalText returns the name, or an error for a number without one.
func (i Initiator) MarshalText() ([]byte, error) { return enum.Text(i, Initiator.String) }

// UnmarshalText reads what MarshalText writes.
func (i *Initiator) UnmarshalText(text []byte) error { return enum.Read(text, i, Initiator.String) }

// A PaymentRequest asks for a cryptogram for one payment.
type PaymentRequest struct {
	Amount    int64     // in minor units of Currency, 0 to 9007199254740991: 2^53 - 1, the largest integer that JSON carries everywhere
	Currency  string    // an active code of ISO 4217, such as "EUR"
	Reference string    // of the caller: 1 to 255 characters
	Merchant  uuid.UUID // zero: the account's primary merchant

	// Initiator is InitiatorCustomer unless set. A payment that the merchant initiates has the
	// number of the network token and no cryptogram, if the network is a
	// [network.Credentialer].
	Initiator Initiator

	// NetworkTransactionID is the id that the scheme gave to the customer's first payment, if
	// the merchant initiates this one: 1 to 64 printable ASCII characters. It is recorded.
	NetworkTransactionID string

	IdempotencyKey string // see the package comment
}

const maxTransactionID = 64

const maxAmount = 1<<53 - 1

// Check returns a FieldError for each rule that RequestPaymentData would report
// before it looks at the token, or nil.
func (r *PaymentRequest) Check() error {
	var errs []error
	if r.Amount < 0 || r.Amount > maxAmount {
		errs = append(errs, &FieldError{"Amount", invalid.OutOfRange, fmt.Sprintf("must be between 0 and %d", int64(maxAmount))})
	}
	errs = append(errs, broken("Currency", rule.Currency(r.Currency)), checkText("Reference", []byte(r.Reference)))

	if r.Initiator > InitiatorMerchant {
		errs = append(errs, &FieldError{"Initiator", invalid.Enum, "must be an initiator"})
	}
	if id := r.NetworkTransactionID; id != "" {
		errs = append(errs, broken("NetworkTransactionID", rule.ASCII(id, maxTransactionID)))
		if r.Initiator == InitiatorCustomer {
			errs = append(errs, &FieldError{"Initiator", invalid.DependsOn, "must be merchant with NetworkTransactionID"})
		}
	}
	return errors.Join(errs...)
}

// canonical returns what must be the same for a request to be a repetition.
func (r *PaymentRequest) canonical() []byte {
	b := tlv.AppendUint(nil, 1, uint64(r.Amount))
	b = tlv.Append(b, 2, r.Currency)
	b = tlv.Append(b, 3, r.Reference)
	b = tlv.Append(b, 4, r.Merchant[:])
	if r.Initiator == InitiatorCustomer {
		return b
	}
	b = tlv.AppendUint(b, 5, uint64(r.Initiator))
	return tlv.Append(b, 6, r.NetworkTransactionID)
}

// A PaymentData is the record of a request for a cryptogram, whether or not there is one.
type PaymentData struct {
	ID        uuid.UUID `wire:"id"`
	Amount    int64     `wire:"amount"`
	Currency  string    `wire:"currency_code"`
	CreatedAt time.Time `wire:"created_at"`

	// Encrypted is a JWE in compact form, which [receive.OpenPaymentData] opens with the
	// shared secret of the merchant. It is "" unless Success, and once
	// [Options.PaymentDataRetention] has passed, 24 hours by default: the payment is made
	// by then, and the record shows that it could be. It is also "" once its secret is none
	// of [Merchant.Secrets] any more.
	Encrypted string `wire:"encrypted_authentication_data"`

	// Failures give the reasons for a missing cryptogram. Empty if Success.
	Failures []Failure `wire:"failure_details"`

	Merchant  uuid.UUID `wire:"merchant_id"`
	Reference string    `wire:"reference"`

	// Success is whether there was a cryptogram, or the network token of a payment that the
	// merchant initiates. It stays true when Encrypted is erased.
	Success bool      `wire:"success"`
	TokenID uuid.UUID `wire:"token_id"`

	Initiator            Initiator `wire:"initiator"`
	NetworkTransactionID string    `wire:"network_transaction_id"` // as it was requested; may be ""

	Replayed bool // RequestPaymentData has asked for it before: see the package comment
}

// A Failure is a reason why there is no cryptogram.
type Failure struct {
	Source     network.Source `wire:"source"`
	Code       network.Code   `wire:"code"`
	Message    string         `wire:"message"`     // for humans
	Retryable  bool           `wire:"retryable"`   // the same request may succeed later
	SchemeCode string         `wire:"scheme_code"` // the network's own code, "" without one
}

// A DeclinedError is returned by UseCredential if there is no cryptogram. It is
// ErrCryptogramDeclined.
type DeclinedError struct {
	PaymentData *PaymentData // the record, whose Failures say why
}

func (e *DeclinedError) Error() string { return ErrCryptogramDeclined.Error() }

// Unwrap returns ErrCryptogramDeclined.
func (e *DeclinedError) Unwrap() error { return ErrCryptogramDeclined }

func newFailure(code network.Code, schemeCode string) *Failure {
	source := network.SourceOf(code)
	switch {
	case code == network.CodeNoEncryptionKey, code == network.CodeNotSupported:
		source = network.SourceConfiguration
	case source == 0: // the state of card and network token
		source = network.SourceScheme
	}
	return &Failure{source, code, code.Message(), code.Retryable(), schemeCode}
}

// RequestPaymentData asks the network for a cryptogram and returns its record. Every call
// asks anew: a cryptogram is for one payment. A refused cryptogram is not an error: check
// Success. The record gives the reason, and is kept and listed like any other.
//
// If ctx ends during the call of the network, nothing is kept. The network may or may not
// have made a cryptogram then; under the same idempotency key it makes no second.
//
// Errors: FieldErrors, with the code unknown_merchant for a merchant that the
// account does not have; ErrNotFound; ErrIdempotencyKeyReused;
// ErrIdempotencyInProgress.
func (v *Vault) RequestPaymentData(ctx context.Context, id uuid.UUID, r PaymentRequest) (_ *PaymentData, err error) {
	defer v.doing(ctx, "request payment data", &err, id)
	if err := checkPayment(ctx, v, r); err != nil {
		return nil, err
	}

	again := func(answer []byte) (*PaymentData, error) {
		t, err := tokenAt(ctx, v, v.rows.Unmask(kindToken, id))
		if err != nil {
			return nil, err
		}
		return paymentsOf(v.rows, t.edition).repeated(ctx, answer)
	}
	call := replay.Request{Operation: opPaymentData, Object: id, Key: r.IdempotencyKey, Body: r.canonical}
	return once(ctx, v, call, again, func(c *replay.Call) (*PaymentData, error) {
		h, err := readHolding(ctx, v, v.rows.Unmask(kindToken, id))
		if err != nil {
			return nil, err
		}
		p, err := v.pay(ctx, h, &r, c, nil)
		if err != nil && !errors.Is(err, replay.ErrRepeated) {
			c.Abandon(ctx)
		}
		return p, err
	})
}

// pay asks the network for the cryptogram of a request, and stores and returns the record.
// take gets the cryptogram; if it is nil, the record has it, encrypted for the merchant.
func (v *Vault) pay(ctx context.Context, h *holding, r *PaymentRequest, c *replay.Call, take func(*network.Cryptogram)) (*PaymentData, error) {
	a, err := v.approved(ctx)
	if err != nil {
		return nil, err
	}
	m, err := merchants{v.rows}.payee(ctx, r.Merchant, a)
	if err != nil {
		return nil, err
	}

	row := c.Row()
	if row == uuid.Nil {
		if row, err = v.rows.NewRow(); err != nil {
			return nil, err
		}
	}
	p := &PaymentData{
		ID:        v.rows.Mask(kindPaymentData, row),
		CreatedAt: rowkey.Time(row),
		TokenID:   h.token.ID,
		Merchant:  m.ID,
		Amount:    r.Amount,
		Currency:  r.Currency,
		Reference: r.Reference,

		Initiator:            r.Initiator,
		NetworkTransactionID: r.NetworkTransactionID,
	}

	var got *network.Cryptogram // that the merchant has to open
	if f := v.forbids(h, a, p, m.secret(now()) != nil || take != nil); f != nil {
		p.Failures = []Failure{*f}
	} else if err = c.Claim(ctx, row); err == nil {
		if take == nil {
			take = func(c *network.Cryptogram) { got = c }
		}
		err = v.askCryptogram(ctx, h, p, take)
	}

	if err == nil {
		err = m.address(ctx, v, p, got, func(current func(store.ReadTx) error) error {
			return paymentsOf(v.rows, h.token.edition).store(ctx, v, h.card, row, p, a.quotas.PaymentData, current, c)
		})
	}
	if errors.Is(err, store.ErrConflict) { // no reason to ask the network again
		err = fmt.Errorf("%w: %v", ErrUnavailable, err)
	}
	if err != nil {
		return nil, err
	}

	// A decline may be the first sign of a suspended or deleted network token.
	if !p.Success && p.Failures[0].Code == network.CodeCryptogramDeclined {
		lookSoon(ctx, v, h.card.ID)
	}
	return p, nil
}

// errRotated is returned in a transaction that finds the secrets of a merchant changed.
var errRotated = fmt.Errorf("%w: secrets of the merchant have changed", ledger.ErrAgain)

// address encrypts a cryptogram for the merchant into p, if there is one, and calls put. The
// transaction of put calls current, so that a secret is not used once it is revoked: the
// network may have taken seconds to answer.
func (m *Merchant) address(ctx context.Context, v *Vault, p *PaymentData, c *network.Cryptogram, put func(current func(store.ReadTx) error) error) error {
	for {
		if c != nil {
			secret := m.secret(now())
			if secret == nil {
				return fmt.Errorf("%w: merchant without a secret", ErrDamaged) // it had one, and none loses its last
			}
			var err error
			if p.Encrypted, err = encrypt(c, secret); err != nil {
				return err
			}
		}

		err := put(func(tx store.ReadTx) error {
			if c == nil {
				return nil
			}
			is, err := v.rows.Find(tx, kindMerchant, m.row)
			if err == nil && is.Version != m.version {
				err = errRotated
			}
			return err
		})
		if !errors.Is(err, errRotated) || ctx.Err() != nil {
			return err
		}
		if _, m, err = (merchants{v.rows}).get(ctx, m.ID); err != nil {
			return err
		}
	}
}

// checkPayment returns a FieldError for each value that breaks a rule, an unknown merchant
// among them.
func checkPayment(ctx context.Context, v *Vault, r PaymentRequest) error {
	err := r.Check()
	if r.Merchant == uuid.Nil {
		return err
	}
	_, unknown := v.rows.Get(ctx, kindMerchant, r.Merchant)
	if errors.Is(unknown, ErrNotFound) {
		unknown = unknownMerchant()
	}
	return errors.Join(err, unknown)
}

func unknownMerchant() error {
	return &FieldError{"Merchant", invalid.UnknownMerchant, "must be a merchant of the account"}
}

// payee returns the merchant of a request.
func (s merchants) payee(ctx context.Context, id uuid.UUID, a *standing) (*Merchant, error) {
	if id == uuid.Nil {
		id = a.merchant
	}
	_, m, err := s.get(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return nil, unknownMerchant()
	}
	return m, err
}

// secret returns the shared secret that is used at a time, or nil.
func (m *Merchant) secret(at time.Time) *PaymentSecret {
	for i := len(m.Secrets) - 1; i >= 0; i-- {
		if !m.Secrets[i].ActivateAt.After(at) {
			return &m.Secrets[i]
		}
	}
	return nil
}

// forbids says why the network is not asked for a cryptogram, or nil. addressed is whether
// a receiver can open it.
func (v *Vault) forbids(h *holding, a *standing, p *PaymentData, addressed bool) *Failure {
	status, reason := h.token.NetworkTokenStatus, h.token.NetworkTokenStatusReason
	issuer, known := v.opts.powers.Of(h.net.network)

	switch {
	case h.token.Status == StatusInvalid:
		return newFailure(network.CodeTokenInvalidated, "")
	case status == network.NotAvailable && reason != nil:
		return &Failure{reason.Source, reason.Code, reason.Message, reason.Retryable, reason.SchemeCode}
	case status != network.Active:
		return newFailure(network.Code("network_token_"+status.String()), "") // pending, inactive, failed or deleted
	case !a.active:
		return newFailure(network.CodeNetworkTokensNotActivated, "")
	case !known:
		return newFailure(network.CodeNoNetwork, "")
	case p.Initiator == InitiatorMerchant && !issuer.Credentialer:
		return newFailure(network.CodeNotSupported, "")
	case !addressed:
		return newFailure(network.CodeNoEncryptionKey, "")
	}
	if code, schemeCode := v.ineligible(issuer.Name, h.token.Scheme, p.Merchant); code != "" {
		return newFailure(code, schemeCode)
	}
	return nil
}

// askCryptogram asks the network for the cryptogram of p, passes it to take, and sets the
// outcome. An error means that p has none.
func (v *Vault) askCryptogram(ctx context.Context, h *holding, p *PaymentData, take func(*network.Cryptogram)) error {
	var got *network.Cryptogram
	err := v.ask(ctx, func(ctx context.Context) (err error) {
		if got, err = v.callForPayment(ctx, h, p); err != nil {
			err = errors.Join(err, ctx.Err()) // an adapter may hide that it was the deadline
		}
		return err
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// A number that is the card's must never leave the vault.
	fits := plausible.Cryptogram(got) || p.Initiator == InitiatorMerchant && got != nil && plausible.Credential(got.Number, got.Expiry)
	if fits {
		same, known := h.token.isOf(v, got.Number)
		fits = got.TokenID == h.net.id && known && !same
	}
	if err == nil && !fits {
		err = errGarbage
	}

	if err != nil {
		p.Failures = []Failure{*p.failure(err, v.log)}
		return nil
	}

	p.Success = true
	take(got)
	return nil
}

// callForPayment asks the network for the cryptogram of p, or for the network token alone if
// the merchant initiates the payment.
func (v *Vault) callForPayment(ctx context.Context, h *holding, p *PaymentData) (*network.Cryptogram, error) {
	ref := h.net.ref(p.TokenID)
	if p.Initiator == InitiatorMerchant {
		got, err := v.opts.powers.Credentialer.Credential(ctx, &network.CredentialRequest{Token: ref, Scheme: h.token.Scheme, Merchant: p.Merchant})
		if err != nil || got == nil {
			return nil, err
		}
		return &network.Cryptogram{TokenID: got.TokenID, Number: got.Number, Expiry: got.Expiry}, nil
	}
	return v.opts.Network.Cryptogram(ctx, &network.CryptogramRequest{
		IdempotencyKey: p.ID.String(),
		Token:          ref,
		Scheme:         h.token.Scheme,
		Merchant:       p.Merchant,
		Amount:         p.Amount,
		Currency:       p.Currency,
		Reference:      p.Reference,
	})
}

// failure says what an error of the network means for a payment.
func (p *PaymentData) failure(err error, log *slog.Logger) *Failure {
	var e *network.Error
	if !errors.As(err, &e) {
		log.Warn("network returned no cryptogram", "payment_data", p.ID, "error", leak.Printable(err))
		if errors.Is(err, context.DeadlineExceeded) {
			return newFailure(network.CodeTimeout, "")
		}
		return newFailure(network.CodeSchemeUnavailable, "")
	}

	code, schemeCode := codeOf(e, e.Source)
	if e.Source == network.SourceConfiguration {
		log.Error("network refused by configuration", "payment_data", p.ID, "code", code, "scheme_code", schemeCode)
		return newFailure(code, schemeCode)
	}

	if e.SchemeCode == "" {
		schemeCode = schemeText(string(e.Code))
	}
	if e.Retryable {
		return newFailure(network.CodeSchemeUnavailable, schemeCode)
	}
	return newFailure(network.CodeCryptogramDeclined, schemeCode)
}

// encrypt returns what the merchant opens with its secret.
func encrypt(c *network.Cryptogram, secret *PaymentSecret) (string, error) {
	plain := credential.New(hiding.Of(c.Number), c.Expiry.Month, c.Expiry.Year, hiding.Of(c.Value))
	plain.ECI = c.ECI
	jwe, err := plain.Seal(hiding.Of(secret.value), secret.KeyID)
	if err != nil {
		return "", fmt.Errorf("cardvault: encrypting payment data: %w", err)
	}
	return jwe, nil
}

// lookSoon lets the background look up an active network token whose cryptogram
// was declined: it may have been suspended or deleted.
func lookSoon(ctx context.Context, v *Vault, row uuid.UUID) {
	_, err := v.change(ctx, opNetworkToken, row, func(h *holding) (func(store.Tx) error, error) {
		if h.token.NetworkTokenStatus == network.Active {
			h.due = now()
		}
		return nil, nil
	})
	if err != nil && !errors.Is(err, ErrNotFound) && ctx.Err() == nil {
		v.log.Warn("network token is not looked up before its time", "error", err)
	}
}

const (
	paymentMerchant = iota + 1
	paymentAmount
	paymentCurrency
	paymentReference
	paymentCode // begins a failure
	paymentSource
	paymentMessage
	paymentRetryable
	paymentSchemeCode
	paymentInitiator
	paymentTransaction
)

func (p *PaymentData) fields(f *tlv.Fields) {
	f.Array(paymentMerchant, p.Merchant[:])
	tlv.Uint(f, paymentAmount, &p.Amount)
	tlv.Text(f, paymentCurrency, &p.Currency)
	tlv.Text(f, paymentReference, &p.Reference)
	tlv.Uint(f, paymentInitiator, &p.Initiator)
	tlv.Text(f, paymentTransaction, &p.NetworkTransactionID)
	tlv.Items(f, paymentCode, paymentSchemeCode, &p.Failures, func(x *Failure, f *tlv.Fields) {
		tlv.Text(f, paymentCode, &x.Code)
		tlv.Uint(f, paymentSource, &x.Source)
		tlv.Text(f, paymentMessage, &x.Message)
		f.Bool(paymentRetryable, &x.Retryable)
		tlv.Text(f, paymentSchemeCode, &x.SchemeCode)
	})
}

// payments are the records of payment data of an account.
type payments struct {
	paymentdata.Records
	merchants map[uuid.UUID]*Merchant // that were read
}

// paymentsOf returns the payment data of tokens whose card numbers have an edition.
func paymentsOf(rows ledger.Account, edition uint64) payments {
	return payments{paymentdata.Records{Account: rows, Data: kindPaymentData, JWEs: kindPaymentJWE, Edition: edition}, map[uuid.UUID]*Merchant{}}
}

// open returns the payment data of a record, without the JWE.
func (s payments) open(ctx context.Context, rec *store.Record) (*PaymentData, error) {
	p := &PaymentData{
		ID:        s.Mask(kindPaymentData, rec.ID),
		CreatedAt: rowkey.Time(rec.ID),
		TokenID:   s.Mask(kindToken, rec.Parent),
	}

	err := s.ReadFields(ctx, rec, p.fields)
	p.Success = len(p.Failures) == 0
	return p, err
}

// store writes p, of a token as it was read, unless current returns an error.
func (s payments) store(ctx context.Context, v *Vault, token *store.Record, row uuid.UUID, p *PaymentData, most int, current func(store.ReadTx) error, c *replay.Call) error {
	e := &paymentdata.Entry{
		Token: token, Row: row, ID: p.ID, Plain: tlv.Encode(p.fields), Success: p.Success, JWE: p.Encrypted, Most: most,
		Also: func(tx store.Tx) error { return cmp.Or(current(tx), c.Put(tx)) },
	}
	if v.opts.PaymentDataRetention != NoRetention {
		e.Until = now().Add(v.opts.PaymentDataRetention)
	}
	if err := c.Seal(row[:], token.ID); err != nil {
		return err
	}
	return s.Store(ctx, opPaymentData, e, func(ctx context.Context, r *store.Record) (uint64, error) {
		t, err := v.openToken(ctx, r)
		if err != nil {
			return 0, err
		}
		return t.edition, nil
	})
}

// repeated returns the payment data of an idempotent answer.
func (s payments) repeated(ctx context.Context, answer []byte) (*PaymentData, error) {
	p, err := replay.Reopen(ctx, s.Account, kindPaymentData, s.open, func(p *PaymentData) { p.Replayed = true })(answer)
	if err != nil {
		return nil, err
	}
	p.Encrypted, err = s.JWE(ctx, uuid.UUID(answer[:16]), s.Unmask(kindToken, p.TokenID))
	return p, errors.Join(err, s.withhold(ctx, p))
}

// withhold removes encrypted data from p unless it can be opened with a secret that the
// merchant has still: a thief of a revoked secret must not find it.
func (s payments) withhold(ctx context.Context, p *PaymentData) error {
	if p.Encrypted == "" {
		return nil
	}
	m := s.merchants[p.Merchant]
	if m == nil {
		var err error
		if _, m, err = (merchants{s.Account}).get(ctx, p.Merchant); err != nil {
			return err
		}
		s.merchants[p.Merchant] = m
	}

	id := credential.SecretID(p.Encrypted)
	if !slices.ContainsFunc(m.Secrets, func(s PaymentSecret) bool { return s.KeyID == id }) {
		p.Encrypted = ""
	}
	return nil
}

// PaymentData returns the payment data with an id, of a token. The error is ErrNotFound
// unless the token has it: the account may not have the token, and the oldest may have been
// erased by a quota.
func (v *Vault) PaymentData(ctx context.Context, token, id uuid.UUID) (_ *PaymentData, err error) {
	defer v.doing(ctx, "get payment data", &err, id)
	parent := v.rows.Unmask(kindToken, token)
	r, err := v.rows.GetOf(ctx, kindPaymentData, v.rows.Unmask(kindPaymentData, id), parent)
	if err != nil {
		return nil, err
	}
	if r.Parent != parent {
		return nil, ErrNotFound
	}
	t, err := tokenAt(ctx, v, r.Parent)
	if err != nil {
		return nil, err
	}

	all := paymentsOf(v.rows, t.edition)
	p, err := all.open(ctx, r)
	if err != nil {
		return nil, err
	}
	if p.Encrypted, err = all.JWE(ctx, r.ID, r.Parent); err != nil {
		return nil, err
	}
	if err := all.withhold(ctx, p); err != nil {
		return nil, err
	}
	return p, nil
}

// ListPaymentData returns one page of the payment data of a token. opts may be nil. The
// error is ErrNotFound for an id that the account does not have. If payment data is
// damaged, the page comes with an error: see [Page].
func (v *Vault) ListPaymentData(ctx context.Context, token uuid.UUID, opts *ListOptions) (_ *Page[*PaymentData], err error) {
	defer v.doing(ctx, "list payment data", &err, token)
	return listedPaymentData(v, token, opts).page(ctx)
}

// AllPaymentData iterates over the payment data of a token, as [Vault.All] does over tokens.
func (v *Vault) AllPaymentData(ctx context.Context, token uuid.UUID, opts *ListOptions) iter.Seq2[*PaymentData, error] {
	return iterate(ctx, v, func() *listed[*PaymentData] { return listedPaymentData(v, token, opts) })
}

func listedPaymentData(v *Vault, token uuid.UUID, opts *ListOptions) *listed[*PaymentData] {
	all, kept := paymentsOf(v.rows, 0), map[uuid.UUID]*store.Record{} // JWEs by the row key of their payment data
	open := func(ctx context.Context, r *store.Record) (*PaymentData, error) {
		p, err := all.open(ctx, r)
		if jwe := kept[r.ID]; err == nil && jwe != nil {
			if p.Encrypted, err = all.OpenJWE(ctx, jwe); err == nil {
				err = all.withhold(ctx, p)
			}
		}
		return p, err
	}

	return listedBy(opts, "list payment data", listing.List[*PaymentData]{
		Rows: v.rows, Kind: kindPaymentData, Open: open,
		Narrow: func(ctx context.Context, q *store.Query) error {
			q.Parent = v.rows.Unmask(kindToken, token)
			t, err := tokenAt(ctx, v, q.Parent)
			if err == nil {
				all.Edition = t.edition
			}
			return err
		},
		Also: []func(store.ReadTx, *store.List) error{func(tx store.ReadTx, list *store.List) error {
			clear(kept)
			clear(all.merchants)
			return all.Kept(tx, list, kept)
		}},
	})
}
