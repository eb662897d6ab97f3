package cardvault

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/internal/enum"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/listing"
	"github.com/cardvault/cardvault/internal/outbox"
	"github.com/cardvault/cardvault/internal/plausible"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Token stands for a stored card. Empty text and zero times are absent. Its JSON is the
// REST API's and has the cardholder's name and the fingerprint: do not log it.
type Token struct {
	ID             uuid.UUID `wire:"id"` // version 4
	CardholderName card.Name `wire:"cardholder_name"`

	// CardArtURL is the URL of an image of the card, "" without one or if Options.BaseURL
	// is not set.
	CardArtURL string `wire:"card_art_url"`

	CreatedAt time.Time   `wire:"created_at"` // in UTC and whole microseconds, like all times here
	Expiry    card.Expiry `wire:"expiry_month+expiry_year"`

	// ExpiresAt is when the token expires and is deleted. Zero unless it was created with an
	// expiration time that no update has removed.
	ExpiresAt     time.Time `wire:"expires_at"`
	InvalidatedAt time.Time `wire:"invalidated_at"` // zero while Status is StatusActive

	IIN                 string `wire:"issuer_identification_number"` // first six digits; eight with Options.IINLength
	LastFour            string `wire:"account_number_last_four"`
	AccountNumberLength int    `wire:"account_number_length"` // digits
	MaskedAccountNumber string `wire:"masked_account_number"` // first six and last four digits, the rest "*"

	// BankName, Segment, Type and CountryCode are from a network.BINProvider.
	BankName    string `wire:"bank_name"`
	Segment     string `wire:"segment"` // business, consumer, commercial or other
	Status      Status `wire:"status"`
	Type        string `wire:"type"`         // credit or debit
	CountryCode string `wire:"country_code"` // ISO 3166-1 alpha-2

	NetworkTokenStatus network.Status `wire:"network_token_status"`
	// NetworkTokenStatusReason is nil while the network token is active or pending.
	NetworkTokenStatusReason *Reason `wire:"network_token_status_reason"`

	Scheme         card.Scheme        `wire:"scheme"`
	Identification idv.Identification `wire:"identity_and_verification"`

	// Authentication is the result of the identification, nil unless Identification is
	// idv.Checked.
	Authentication *idv.Authentication `wire:"authentication_data,empty"`

	// SupportsDeviceBinding is reported by the network.
	SupportsDeviceBinding bool `wire:"supports_device_binding"`

	// BusinessKey is the key under which the card was known at ImportProvider.
	// It need not be unique.
	BusinessKey    string `wire:"business_key"`
	ImportProvider string `wire:"import_provider"`

	// AccountNumberStale is whether the scheme has replaced the card number, so that the
	// stored one is of no use. [Vault.Replace] stores the new one.
	AccountNumberStale bool      `wire:"account_number_stale"`
	UpdatedAt          time.Time `wire:"updated_at"` // of the last change that an event reports; CreatedAt before the first

	// Fingerprint is the same for two tokens of an account if their cards have the same
	// number. It changes when its key is rotated: see [SeriesFingerprint]. With the masked number it would confirm a guess of the number: events do not
	// have it, and package httpapi shows it only to keys with ScopeFingerprintsRead.
	Fingerprint Fingerprint `wire:"fingerprint"`

	// PaymentAccountReference is the PAR of EMVCo: the same for the card number and every
	// network token and wallet that stands for it, shown like the fingerprint. "" if the
	// network has not reported it.
	PaymentAccountReference string `wire:"payment_account_reference"`

	// Replayed is whether Import, Replace or Provision was called before under its key:
	// the token is as that call returned it then. See the package comment.
	Replayed bool

	artID       uuid.UUID // of CardArtURL
	lastEvent   uuid.UUID // row key of its last event
	toldVersion uint64    // version of its record that deliveries of that event contain; 0: none do

	// codes numbers the security codes of the token. It rises when a code is consumed or
	// replaced: a former code that a cache keeps, or brings back, is of no use.
	codes uint64

	session SessionID // in which the card was entered; zero if it was passed in

	prints seal.Prints // of the number: Fingerprint, and another one while the key is rotated

	// edition names the card number. It is random, and sealed with the number too, so that no
	// other number is taken for it, such as a former one of a restored row. 0: the first.
	edition uint64
	former  string // last four digits of the number before; of a stale one, its own

	// staleExpiry is of a stale number, whose token shows the new expiry. Zero if that came
	// before there was this field.
	staleExpiry card.Expiry
}

// A Fingerprint is a keyed hash of a card number, under a key of the account. Zero means
// absent.
type Fingerprint [32]byte

// String returns 64 hexadecimal digits.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// MarshalText returns what String does.
func (f Fingerprint) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, f[:]), nil }

// UnmarshalText reads what MarshalText writes.
func (f *Fingerprint) UnmarshalText(text []byte) error {
	var read Fingerprint
	if n, err := hex.Decode(read[:], text[:min(len(text), 2*len(f))]); err != nil || n != len(f) || len(text) != 2*len(f) {
		return errors.New("cardvault: text is not a fingerprint")
	}
	*f = read
	return nil
}

// A Status says whether the card of a token is valid.
type Status uint8

const (
	StatusActive  Status = iota + 1
	StatusInvalid        // the scheme invalidated the instrument, until [Vault.Replace] gives the token another
)

// String returns the name that the REST API uses.
func (s Status) String() string { return statusNames.Of(uint8(s)) }

var statusNames = enum.Names{StatusActive: "active", StatusInvalid: "invalid"}

// MarshalText returns the name, nothing for zero, and an error for a number without a name.
func (s Status) MarshalText() ([]byte, error) { return enum.Text(s, Status.String) }

// UnmarshalText reads what MarshalText writes.
func (s *Status) UnmarshalText(text []byte) error { return enum.Read(text, s, Status.String) }

// ImportOptions are the optional parts of an Import.
type ImportOptions struct {
	// BusinessKey is the key of the card in the system it comes from, 1 to 255
	// characters; "" for none. Tokens can be listed by it.
	BusinessKey string

	// ImportProvider names that system: 1 to 40 of a-z, 0-9, "_" and "-",
	// beginning with a letter or digit. Needs BusinessKey.
	ImportProvider string

	// TokenTTL is the time until the token expires, a second to [MaxTokenTTL]. 0: never. A
	// token that expires has no network token. An update can remove the expiry:
	// [TokenUpdate.ExpiresAt].
	TokenTTL time.Duration

	// Bulk marks cards that the program imports of its own accord, as in a migration, and
	// not for a caller who may be guessing: the number is not counted towards
	// [ErrTooManyNumbers]. Package httpapi never sets it.
	Bulk bool

	IdempotencyKey string // see the package comment
}

// Check returns a FieldError for each rule that an Import of these values
// would report, or nil. It needs no store.
func (v *Vault) Check(c Card, opts *ImportOptions) (err error) {
	defer v.doing(context.Background(), "check card", &err)
	errs := c.check(make([]error, 0, 12), v.opts.AllowNonLuhn) // of a known size it costs no allocation
	if opts != nil {
		errs = append(errs, checkOrigin(opts.BusinessKey, opts.ImportProvider)...)
		errs = append(errs, checkTTL("TokenTTL", opts.TokenTTL, MaxTokenTTL))
	}
	return errors.Join(errs...)
}

// checkOrigin checks business key and provider of a new token.
func checkOrigin(businessKey, provider string) (errs []error) {
	if businessKey != "" {
		if err := checkText("BusinessKey", []byte(businessKey)); err != nil {
			errs = append(errs, err)
		}
	}
	if provider != "" {
		if err := checkProvider(provider); err != nil {
			errs = append(errs, err)
		} else if businessKey == "" {
			errs = append(errs, dependsOnBusinessKey())
		}
	}
	return errs
}

func checkProvider(slug string) error { return broken("ImportProvider", rule.Slug(slug)) }

func dependsOnBusinessKey() error {
	return &FieldError{"BusinessKey", invalid.DependsOn, "is required with ImportProvider"}
}

// Import stores a card and returns its token. opts may be nil. The card's
// expiry may be past, as in a migration. Importing a number twice makes two
// tokens with the same Fingerprint.
//
// Errors: FieldErrors, ErrTooManyNumbers, ErrIdempotencyKeyReused, and ErrNotFound for a
// handle on an account that does not exist.
func (v *Vault) Import(ctx context.Context, c Card, opts *ImportOptions) (_ *Token, err error) {
	defer v.doing(ctx, "import card", &err)
	if opts == nil {
		opts = new(ImportOptions)
	}
	if err := v.Check(c, opts); err != nil {
		return nil, err
	}

	r := replay.Request{Operation: opImport, Key: opts.IdempotencyKey}
	if r.Key != "" {
		given := *opts
		r.Body = func() []byte { return given.canonical(c) }
	}
	r = r.At(ctx)
	return ledger.Retry(ctx, func() (*Token, error) { return v.importCard(ctx, c, opts, r) })
}

// importCard is Import of a card that was checked. It returns store.ErrConflict or
// ledger.ErrAgain if the same call, or a change of webhooks, was faster.
func (v *Vault) importCard(ctx context.Context, c Card, opts *ImportOptions, r replay.Request) (*Token, error) {
	call, answer, err := v.calls.BeginKeyed(ctx, v.rows, r)
	if answer != nil && err == nil {
		return v.decodeAnswer(ctx, answer) // the caller of the repetition knew the number
	}

	// The number counts also if the key was used for another request: else numbers
	// could be tried out under it.
	t := &Token{BusinessKey: opts.BusinessKey, ImportProvider: opts.ImportProvider}
	t.print(v, c.PAN)
	if !opts.Bulk {
		err = cmp.Or(v.takeNumber(ctx, c.PAN, t.Fingerprint), err)
	}
	if err != nil {
		return nil, err
	}

	records, event, err := v.newToken(ctx, c, t, opts.TokenTTL.Truncate(time.Microsecond), receive.ReasonImported)
	if err != nil {
		return nil, err
	}

	if call != nil {
		row := records[0].ID
		if err := call.Seal(t.encode(row[:]), row); err != nil {
			return nil, err
		}
	}

	err = v.writeToken(ctx, opImport, t, c.SecurityCode, time.Time{}, func(tx store.Tx) error {
		if err := t.printed(tx); err != nil {
			return err
		}
		for _, r := range records {
			tx.Put(r)
		}
		if err := event.Put(tx); err != nil {
			return err
		}
		return call.Put(tx)
	})
	if err != nil {
		return nil, err
	}

	v.jobs.Due(records...)
	event.Written()
	return t, nil
}

// print makes the fingerprints of a number.
func (t *Token) print(v *Vault, p card.PAN) {
	keys := v.ledger.Box.Keys()
	t.prints = v.ledger.Box.Prints(keys, v.rows.ID, hiding.Of(p))
	t.Fingerprint = t.prints.Shown(keys)
}

// printed returns an error in a transaction that writes a new token with fingerprints under
// former keys.
func (t *Token) printed(tx store.Tx) error { return ledger.Printed(tx, t.prints.Terms()) }

// isOf reports whether a token has a card number. It is not known to a process that lacks the
// keys of the token's fingerprints.
func (t *Token) isOf(v *Vault, p card.PAN) (same, known bool) {
	return v.ledger.Box.Compare(&t.prints, v.rows.ID, hiding.Of(p))
}

func (v *Vault) fingerprint(p card.PAN) Fingerprint {
	return Fingerprint(v.rows.Box.Fingerprint(v.rows.ID, hiding.Of(p)))
}

// canonical returns what must be the same for an Import to be a repetition.
func (o *ImportOptions) canonical(c Card) []byte {
	// Without the security code, and never grown: nothing is left behind.
	b := make([]byte, 0, 128+len(hiding.Of(c.Name))+len(o.BusinessKey)+len(hiding.Of(c.Contact)))
	b = tlv.Append(b, 1, hiding.Of(c.PAN))
	b = tlv.AppendUint(b, 2, uint64(c.Expiry.Month))
	b = tlv.AppendUint(b, 3, uint64(c.Expiry.Year))
	b = tlv.Append(b, 4, hiding.Of(c.Name))
	b = tlv.Append(b, 6, o.BusinessKey)
	b = tlv.Append(b, 7, o.ImportProvider)
	b = tlv.Append(b, 8, hiding.Of(c.Contact))
	return tlv.AppendUint(b, 9, uint64(o.TokenTTL))
}

// newToken completes t, the token of a card that was checked. It returns the token's
// record, its network token's record if it is eligible, and its event. A ttl of 0 is for
// ever.
func (v *Vault) newToken(ctx context.Context, c Card, t *Token, ttl time.Duration, why receive.EventReason) (records []*store.Record, event *outbox.Parcel, err error) {
	if err := v.rows.Exists(ctx); err != nil {
		return nil, nil, err
	}

	bin := plausible.BIN(ctx, v.opts.BIN, c.PAN, v.log)
	row, err := v.rows.NewRow()
	if err != nil {
		return nil, nil, err
	}

	t.ID = v.rows.Mask(kindToken, row)
	t.CreatedAt, t.UpdatedAt, t.Status = rowkey.Time(row), rowkey.Time(row), StatusActive
	if ttl > 0 {
		t.ExpiresAt = t.CreatedAt.Add(ttl)
	}
	t.CardholderName, t.Expiry = card.NewName(hiding.Of(c.Name)), c.Expiry
	t.describe(hiding.Of(c.PAN), v.opts.IINLength, bin)
	if t.prints == (seal.Prints{}) {
		t.print(v, c.PAN)
	}

	reason, err := v.unavailable(ctx, t, t.CreatedAt)
	if err != nil {
		return nil, nil, err
	}
	if t.NetworkTokenStatusReason = reason; reason == nil {
		t.NetworkTokenStatus = network.Pending
	}

	r := &store.Record{Kind: kindToken, ID: row, Account: v.rows.ID}
	if err := sealNumber(v.rows, r, c.PAN, t.edition); err != nil {
		return nil, nil, err
	}

	records = []*store.Record{r}
	if event, err = v.newEvent(ctx, r, t, receive.TokenCreated, why); err != nil {
		return nil, nil, err
	}
	if err := v.sealToken(r, t); err != nil || reason != nil {
		return records, event, err
	}

	// The job that asks for its network token is stored with the token.
	h := &holding{token: t, card: r, record: newNetworkRecord(r), due: now()}
	h.net = &networkToken{scheme: t.Scheme, network: v.opts.powers.For(t.Scheme), attempt: 1}
	h.due = h.due.Add(v.slot(h.net, t.CreatedAt))
	if err := v.sealNetworkToken(h); err != nil {
		return nil, nil, err
	}
	return append(records, h.record), event, sealContact(v.rows, h.record, c.Contact)
}

// sealNumber seals a card number and its edition as the secret part of a token.
func sealNumber(rows ledger.Account, r *store.Record, p card.PAN, edition uint64) error {
	buf := plaintexts.Get().(*[]byte)
	digits := tlv.AppendUint(tlv.Append((*buf)[:0], cardNumber, hiding.Of(p)), cardEdition, edition)
	digits = tlv.Pad(digits, 32, 0) // the length of the sealed text must not reveal the number's
	err := rows.SealSecret(r, digits)
	*buf = digits
	wipe(buf)
	return err
}

// sealContact seals a contact, if there is one, as the secret part of a network token.
func sealContact(rows ledger.Account, r *store.Record, c card.Contact) error {
	contact := hiding.Of(c)
	if len(contact) == 0 {
		return nil
	}
	plain := tlv.Pad(tlv.Append(make([]byte, 0, len(contact)+128), jobContact, contact), 64, 0)
	defer clear(plain)
	return rows.SealSecret(r, plain)
}

// schemeOf returns what the token of a card would have for its scheme.
func (o *Options) schemeOf(ctx context.Context, p card.PAN) card.Scheme {
	var t Token
	t.describe(hiding.Of(p), o.IINLength, plausible.BIN(ctx, o.BIN, p, o.Logger))
	return t.Scheme
}

// writeToken writes a new token and keeps its security code, for the usual time or until
// the given time, if that is earlier. The code comes first: readers of the token, such as
// its provisioning, find the code. fn calls printed.
func (v *Vault) writeToken(ctx context.Context, op ledger.Operation, t *Token, code card.SecurityCode, until time.Time, fn func(store.Tx) error) error {
	if code.IsZero() {
		return v.rows.Write(ctx, op, t.ID, fn)
	}
	if end := v.opts.codeUntil(t.ExpiresAt); until.IsZero() || until.After(end) {
		until = end
	}
	_ = v.codes.Keep(ctx, v.rows, t.ID, codes.NewCode(hiding.Of(code), t.codes, until), codes.Aside) // logged; the card is stored all the same
	err := v.rows.Write(ctx, op, t.ID, fn)
	if err != nil {
		v.codes.Drop(ctx, t.ID)
	}
	return err
}

// Tags of the secret part of a token.
const (
	cardNumber  = iota + 1
	cardEdition // of the number
)

// describe sets the fields that follow from a card number.
func (t *Token) describe(pan []byte, iinLength int, bin *network.BIN) {
	iinLength = shownIIN(pan, iinLength)
	scheme, _ := iin.Detect(pan)
	t.AccountNumberLength = len(pan)
	t.setMasked(rule.Mask(pan))
	if iinLength > 6 {
		t.IIN = string(pan[:iinLength])
	}
	t.Scheme = card.Scheme(scheme)
	t.BankName, t.Segment, t.Type, t.CountryCode = "", "", "", ""
	if bin == nil {
		return
	}
	if bin.Scheme != nil && *bin.Scheme < schemes {
		t.Scheme = *bin.Scheme
	}
	t.BankName, t.Segment, t.Type, t.CountryCode = bin.BankName, bin.Segment, bin.Type, bin.CountryCode
}

// shownIIN returns how many first digits of a number a token shows.
func shownIIN(pan []byte, iinLength int) int {
	if len(pan) < 16 {
		return 6
	}
	return iinLength
}

// setMasked sets the masked number and what can be read in it.
func (t *Token) setMasked(m string) {
	t.MaskedAccountNumber = m
	t.IIN, t.LastFour = m[:6], m[len(m)-4:]
}

// Get returns a token. The error is ErrNotFound for an id that the account does
// not have.
func (v *Vault) Get(ctx context.Context, id uuid.UUID) (_ *Token, err error) {
	defer v.doing(ctx, "get token", &err, id)
	r, err := v.rows.Get(ctx, kindToken, id)
	if err != nil {
		return nil, err
	}
	return v.openTokenAs(ctx, r, id)
}

// TokenListOptions are [ListOptions] for tokens. Values of one field are alternatives;
// fields add up. Empty: any.
type TokenListOptions struct {
	Limit, Page int
	Ascending   bool
	From, To    time.Time

	NetworkTokenStatus []network.Status
	Scheme             []card.Scheme
	BusinessKey        string // exact; of at most [store.MaxShared] tokens
	AccountNumberStale *bool  // nil: any

	// Fingerprint selects the tokens with the same card number, by [Vault.All] alone. No
	// index leads to them: it reads every token that the other fields select.
	Fingerprint Fingerprint
}

// check returns a FieldError for each rule of tokens alone that o breaks.
func (o *TokenListOptions) check() error {
	var errs []error
	// No classes would select the classes of all schemes.
	if slices.ContainsFunc(o.Scheme, func(s card.Scheme) bool { return s >= schemes }) {
		errs = append(errs, &FieldError{"Scheme", invalid.Enum, "must name known schemes"})
	}
	if slices.ContainsFunc(o.NetworkTokenStatus, func(s network.Status) bool { return s >= networkTokenStatuses }) {
		errs = append(errs, &FieldError{"NetworkTokenStatus", invalid.Enum, "must name known statuses"})
	}
	return errors.Join(errs...)
}

// List returns one page of the account's tokens. opts may be nil. A page past
// the end is empty. If tokens are damaged, the page comes with an error: see [Page].
func (v *Vault) List(ctx context.Context, opts *TokenListOptions) (_ *Page[*Token], err error) {
	defer v.doing(ctx, "list tokens", &err)
	l := listedTokens(v, opts)
	if l.Keep != nil {
		l.invalid = errors.Join(l.invalid, &FieldError{"Fingerprint", invalid.OutOfRange, "must be empty: only All selects by fingerprint"})
	}
	return l.page(ctx)
}

// All iterates over the account's tokens that opts select, which may be nil. Like the other
// iterators of a vault it holds no transaction while the caller works. An item that is
// deleted meanwhile may still be seen; a lapsed item is not. For a damaged item it yields
// the error, which wraps [ErrDamaged] and names the item, and continues with the next. It
// ends after any other error.
func (v *Vault) All(ctx context.Context, opts *TokenListOptions) iter.Seq2[*Token, error] {
	return iterate(ctx, v, func() *listed[*Token] { return listedTokens(v, opts) })
}

func listedTokens(v *Vault, opts *TokenListOptions) *listed[*Token] {
	var o TokenListOptions
	if opts != nil {
		o = *opts
	}
	l := listedBy(&ListOptions{o.Limit, o.Page, o.Ascending, o.From, o.To}, "list tokens", listing.List[*Token]{
		Rows: v.rows, Kind: kindToken, Open: v.openToken,
		Narrow: func(_ context.Context, q *store.Query) error {
			if len(o.Scheme) > 0 || len(o.NetworkTokenStatus) > 0 || o.AccountNumberStale != nil {
				q.Classes = classes(o.Scheme, o.NetworkTokenStatus, o.AccountNumberStale)
			}
			if o.BusinessKey != "" {
				q.Lookup = v.rows.Box.Lookup(v.rows.ID, businessKeyPurpose, []byte(o.BusinessKey))
			}
			return nil
		},
		Failed: func(err error) error {
			if errors.Is(err, store.ErrTooMany) {
				return &FieldError{"BusinessKey", invalid.OutOfRange, fmt.Sprintf("must belong to at most %d tokens", store.MaxShared)}
			}
			return err
		},
	})

	l.invalid = errors.Join(l.invalid, o.check())
	if o.Fingerprint != (Fingerprint{}) {
		l.Keep = func(t *Token) bool { return t.prints.Has(o.Fingerprint) }
	}
	return l
}

// A TokenUpdate holds the changes to a token. A nil field stays as it is; a pointer to a
// zero value clears the field.
type TokenUpdate struct {
	CardholderName *card.Name
	BusinessKey    *string
	ImportProvider *string
	Expiry         *card.Expiry // cannot be removed; may be past

	// ExpiresAt removes the expiry of the token, which then stays until it is deleted. An
	// expiry cannot be set. Like a changed Expiry it starts nothing by itself;
	// [Vault.Provision] asks for the network token.
	ExpiresAt *time.Time
}

// Check returns a FieldError for each rule that an Update with u would report
// before it looks at the token, or nil.
func (u *TokenUpdate) Check() error {
	var errs []error
	if *u == (TokenUpdate{}) {
		errs = append(errs, &FieldError{"TokenUpdate", invalid.EmptyPatch, "must change at least one field"})
	}
	if u.CardholderName != nil {
		errs = append(errs, checkName("CardholderName", *u.CardholderName))
	}
	if u.BusinessKey != nil && *u.BusinessKey != "" {
		errs = append(errs, checkText("BusinessKey", []byte(*u.BusinessKey)))
	}
	if u.ImportProvider != nil && *u.ImportProvider != "" {
		errs = append(errs, checkProvider(*u.ImportProvider))
	}

	if u.Expiry != nil {
		errs = append(errs, checkExpiry(*u.Expiry)...)
	}
	if u.ExpiresAt != nil && !u.ExpiresAt.IsZero() {
		errs = append(errs, &FieldError{"ExpiresAt", invalid.Format, "must be zero: an expiry can be removed but not set"})
	}
	return errors.Join(errs...)
}

// Update changes the stored facts about a card, and returns the token. A changed expiry is
// shown and sent from then on; it starts nothing by itself.
//
// Errors: FieldErrors; ErrNotFound; for an expiry, ErrCardReplaced if the card is replaced at the
// same time: the expiry is the former card's then.
func (v *Vault) Update(ctx context.Context, id uuid.UUID, u TokenUpdate) (_ *Token, err error) {
	defer v.doing(ctx, "update token", &err, id)
	if err := u.Check(); err != nil {
		return nil, err
	}

	var of *uint64 // edition of the card as it was first read
	return ledger.Retry(ctx, func() (*Token, error) {
		r, err := v.rows.Get(ctx, kindToken, id)
		if err != nil {
			return nil, err
		}

		t, err := v.openToken(ctx, r)
		if err != nil {
			return nil, err
		}
		if of = cmp.Or(of, &t.edition); *of != t.edition && u.Expiry != nil {
			return nil, ErrCardReplaced
		}
		if err := u.apply(t); err != nil {
			return nil, err
		}

		event, err := v.newEvent(ctx, r, t, receive.TokenUpdated, receive.ReasonPatched)
		if err != nil {
			return nil, err
		}

		former := *r
		r.Version++
		if err := v.sealToken(r, t); err != nil {
			return nil, err
		}

		err = v.rows.Write(ctx, opUpdate, id, func(tx store.Tx) error {
			if !ledger.Lives(&former, now()) {
				return ErrNotFound // else it would come back
			}
			tx.Put(r)
			return event.Put(tx)
		})
		if err != nil {
			return nil, err
		}

		event.Written()
		return t, nil
	})
}

func (u *TokenUpdate) apply(t *Token) error {
	if u.CardholderName != nil {
		t.CardholderName = card.NewName(hiding.Of(u.CardholderName))
	}
	if u.BusinessKey != nil {
		t.BusinessKey = *u.BusinessKey
	}
	if u.ImportProvider != nil {
		t.ImportProvider = *u.ImportProvider
	}
	if u.Expiry != nil {
		t.Expiry = *u.Expiry
	}
	if u.ExpiresAt != nil {
		t.ExpiresAt = time.Time{}
	}
	if t.ImportProvider != "" && t.BusinessKey == "" {
		return dependsOnBusinessKey()
	}
	return nil
}

// Delete removes a token with all that belongs to it, and has its network token deleted at
// the network unless another token holds it too. It cannot be undone. Its duration does not
// depend on the size of the family: whatever exceeds one transaction is out of reach from
// then on, and erased by [Vault.Run]. The error is ErrNotFound for an id that the account
// does not have, or no longer has, or ErrLedgerBehind.
func (v *Vault) Delete(ctx context.Context, id uuid.UUID) (err error) {
	defer v.doing(ctx, "delete token", &err, id)
	if err := v.deleteToken(ctx, deletion{id: id, row: v.rows.Unmask(kindToken, id), op: opDelete, reason: receive.ReasonRequested}); err != nil {
		return err
	}
	return inLedger(ctx, v, "delete token")
}

// deleteToken makes a deletion.
func (v *Vault) deleteToken(ctx context.Context, of deletion) error {
	_, err := ledger.Retry(ctx, func() (*deletion, error) {
		d := of
		d.vault = v
		if err := d.read(ctx); err != nil {
			return nil, err
		}
		return &d, d.run(ctx)
	})
	return err
}

// A deletion is the end of a token, as it was read.
type deletion struct {
	vault   *Vault
	id, row uuid.UUID
	op      ledger.Operation
	reason  receive.EventReason // of its event; "": there is no event
	card    *store.Record
	net     *store.Record // of its network token; nil if absent, without a version if the store cannot read it
}

// read reads the records of the token. If the token is absent its record is empty: nothing
// is deleted then.
func (d *deletion) read(ctx context.Context) error {
	d.card = &store.Record{ID: d.row}
	return d.vault.rows.View(ctx, func(tx store.ReadTx) (err error) {
		switch r, err := d.vault.rows.Find(tx, kindToken, d.row); {
		case err == nil:
			d.card = r
		case !errors.Is(err, ErrNotFound) && !errors.Is(err, store.ErrNotFound):
			return err
		}
		d.net, err = tx.Get(kindNetworkToken, d.row)
		switch {
		case errors.Is(err, store.ErrNotFound):
			d.net, err = nil, nil
		case ledger.Unreadable(err):
			d.net, err = &store.Record{Kind: kindNetworkToken, ID: d.row, Account: d.vault.rows.ID}, nil
		}
		return err
	})
}

// run deletes the token. It returns store.ErrConflict if the token or its network
// token has changed since it was read.
func (d *deletion) run(ctx context.Context) error {
	v := d.vault
	var event *outbox.Parcel
	if d.reason != "" {
		var err error
		if event, err = v.newEvent(ctx, d.card, nil, receive.TokenDeleted, d.reason); err != nil {
			return err
		}
	}

	freed, drop, err := d.free(ctx)
	if err != nil {
		return err
	}
	err = v.eraser.Delete(ctx, v.rows, d.op, kindToken, d.id, func(tx store.Tx, row uuid.UUID) error {
		if err := ledger.Unchanged(tx, kindToken, row, d.card); err != nil {
			return err // perhaps there is a later event
		}
		if event != nil {
			if err := event.Put(tx); err != nil {
				return err
			}
		}
		return drop(tx)
	})

	// Erased even if the outcome is unknown: the code is of no use without its token.
	if err == nil || errors.Is(err, ErrOutcomeUnknown) {
		v.codes.Drop(ctx, d.id)
	}
	if err == nil {
		v.jobs.Due(freed)
		if event != nil {
			event.Written()
		}
	}
	return err
}

// free returns the release of the network token, nil if there is none, and the writes of its end.
func (d *deletion) free(ctx context.Context) (freed *store.Record, drop func(store.Tx) error, err error) {
	v, rest := d.vault, func(store.Tx) error { return nil }
	if d.net != nil {
		n, err := v.openNetworkToken(ctx, d.net)
		if err == nil {
			freed, rest, err = v.dropNetworkToken(ctx, d.id, d.row, n, d.net.Due)
		} else if errors.Is(err, ErrDamaged) { // damaged tokens can be removed
			v.log.Error("network token is left at the network: its record cannot be read", "token", d.id, "error", err)
			err = nil
		}
		if err != nil {
			return nil, nil, err
		}
	}

	return freed, func(tx store.Tx) error {
		if err := ledger.Unchanged(tx, kindNetworkToken, d.row, d.net); err != nil || d.net == nil {
			return err
		}
		tx.Delete(kindNetworkToken, d.row)
		return rest(tx)
	}, nil
}

// orphan deletes the network token, whose token is lost.
func (d *deletion) orphan(ctx context.Context) error {
	freed, drop, err := d.free(ctx)
	if err == nil {
		err = d.vault.rows.Update(ctx, d.op, drop)
	}
	if err == nil {
		d.vault.jobs.Due(freed)
	}
	return err
}

// dropNetworkToken returns the writes of a deletion for its network token: its release,
// unless others hold it, and the end of art that no other token shows.
func (v *Vault) dropNetworkToken(ctx context.Context, id, row uuid.UUID, n *networkToken, due time.Time) (*store.Record, func(store.Tx) error, error) {
	dropArt := v.dropArt(row, n.artID)
	if n.id == "" && !n.unsure && due.IsZero() {
		return nil, dropArt, nil
	}

	// A call for due work may be running: its network token is looked up afterwards.
	at := now()
	if n.id == "" && !due.IsZero() {
		at = at.Add(v.jobs.Lease(kindNetworkToken))
	}

	var holder *store.Record
	if n.id != "" {
		var err error
		holder, err = v.holder(ctx, v.networkHash(n.network, n.id), row)
		if err != nil && !errors.Is(err, ErrDamaged) { // the release will find the damage
			return nil, nil, err
		}
	}

	rec, err := v.newRelease(n.network, n.ref(id), at)
	return rec, func(tx store.Tx) error {
		held := false
		if holder != nil {
			var err error
			if held, err = ledger.Same(tx, holder); err != nil {
				return err
			}
		}
		if !held { // a holder that came since withdraws it
			tx.Put(rec)
		}
		return dropArt(tx)
	}, err
}

// class puts a token into a list by the fields that lists filter by. Zero is not a class.
// There is room for 21 schemes.
func class(s card.Scheme, n network.Status, stale bool) uint8 {
	c := 1 + uint8(s)*uint8(networkTokenStatuses) + uint8(n)
	if stale {
		c |= 1 << 7
	}
	return c
}

// classes returns the classes of some schemes, of some statuses, and of stale numbers or
// others. Empty: any.
func classes(of []card.Scheme, in []network.Status, stale *bool) (all store.Classes) {
	for s := range card.Scheme(schemes) {
		for n := range networkTokenStatuses {
			if len(of) > 0 && !slices.Contains(of, s) || len(in) > 0 && !slices.Contains(in, n) {
				continue
			}
			for _, is := range []bool{false, true} {
				if stale == nil || *stale == is {
					all.Add(class(s, n, is))
				}
			}
		}
	}
	return all
}

// businessKeyPurpose is the purpose of hashes of business keys.
const businessKeyPurpose = "business_key"

// sealToken sets every column of r that follows from t.
func (v *Vault) sealToken(r *store.Record, t *Token) error {
	if r.Version == 0 {
		r.Version = 1
	}
	r.Class = class(t.Scheme, t.NetworkTokenStatus, t.AccountNumberStale)
	r.Due = t.ExpiresAt
	r.Lookup = nil
	if t.BusinessKey != "" {
		r.Lookup = v.rows.Box.Lookups(v.rows.ID, businessKeyPurpose, []byte(t.BusinessKey))
	}

	// Steps hide the length of names and keys; room for the state of a network
	// token keeps the row from growing when that changes.
	const steps, room = 64, 48

	buf := plaintexts.Get().(*[]byte)
	plain := t.encode((*buf)[:0])
	grown := len(plain) + room
	if old := len(r.Shown); old >= len(plain) && r.Version > 1 {
		grown = old // r.Shown is the former plaintext, opened in place
	}
	plain = tlv.Pad(plain, steps, grown)

	err := v.rows.SealShown(r, plain)
	*buf = plain
	wipe(buf)
	return err
}

// sealAgain seals the next version of a token that has no event: no field that deliveries show
// has changed.
func sealAgain(v *Vault, r *store.Record, t *Token) error {
	if t.toldVersion == r.Version {
		t.toldVersion++
	}
	r.Version++
	return v.sealToken(r, t)
}

// wipe clears a buffer of plaintexts and puts it back.
func wipe(b *[]byte) {
	clear(*b)
	plaintexts.Put(b)
}

// plaintexts holds buffers that are sealed from, cleared. They hold the longest
// token there can be, and an event of it, so that none is left behind grown out.
var plaintexts = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

// openToken returns the token of a record.
func (v *Vault) openToken(ctx context.Context, r *store.Record) (*Token, error) {
	return v.openTokenAs(ctx, r, v.rows.Mask(kindToken, r.ID))
}

// openTokenAs is openToken for a record whose masked id is known.
func (v *Vault) openTokenAs(ctx context.Context, r *store.Record, id uuid.UUID) (*Token, error) {
	plain, err := v.rows.OpenShown(ctx, r)
	if err != nil {
		return nil, err
	}
	t, err := v.decodeToken(r.ID, id, plain)
	if err == nil && t.prints[0].Term > v.ledger.Box.Keys().Fingerprints.Active().Number { // another process has rotated the key
		v.ledger.Look(ctx)
		t.Fingerprint = t.prints.Shown(v.ledger.Box.Keys())
	}
	return t, v.rows.Named(r, err)
}

// decodeAnswer returns the token of an idempotent answer: its row key and what encode wrote.
// The error is ErrNotFound if its card was replaced since.
func (v *Vault) decodeAnswer(ctx context.Context, answer []byte) (*Token, error) {
	row, err := replay.AnsweredID(answer)
	if err != nil {
		return nil, err
	}
	t, err := v.decodeToken(row, v.rows.Mask(kindToken, row), answer[len(row):])
	if err != nil {
		return nil, err
	}
	switch is, err := tokenAt(ctx, v, row); {
	case err != nil:
		return nil, err
	case is.edition != t.edition:
		return nil, ErrNotFound
	}
	t.Replayed = true
	return t, nil
}

// tokenAt returns the token of a row key.
func tokenAt(ctx context.Context, v *Vault, row uuid.UUID) (*Token, error) {
	r, err := v.rows.GetRow(ctx, kindToken, row)
	if err != nil {
		return nil, err
	}
	return v.openToken(ctx, r)
}

// Tags of a token's shown part. A number is never given a second meaning.
const (
	tokenStatus = iota + 1
	tokenInvalidatedAt
	tokenName
	tokenMonth
	tokenYear
	tokenIIN
	tokenLastFour
	tokenLength
	tokenScheme
	tokenBankName
	tokenSegment
	tokenType
	tokenCountry
	tokenNetworkStatus
	tokenReasonSource
	tokenReasonCode
	tokenReasonMessage
	tokenReasonRetryable
	tokenReasonSchemeCode
	tokenReasonAt
	tokenIdentification
	tokenBusinessKey
	tokenImportProvider
	tokenFingerprint
	tokenExpiresAt
	tokenArt
	tokenStale
	tokenDeviceBinding
	tokenAuthMethod
	tokenAuthStatus
	tokenAuthECI
	tokenAuthTransaction
	tokenAuthAt
	_ // was the sequence of the last event
	tokenTold
	tokenToldSince
	tokenCodes
	tokenSession
	tokenAccountReference
	tokenUpdatedAt
	tokenEdition
	tokenFormer
	tokenStaleMonth
	tokenStaleYear
	tokenPrints // of the fingerprint, and the second one
)

// fields has what the shown part holds, besides the first and last digits of the number when
// it is read. Id and time of creation are the row key's.
func (t *Token) fields(f *tlv.Fields) {
	tlv.UintFrom(f, tokenStatus, &t.Status, StatusActive)
	f.Time(tokenInvalidatedAt, &t.InvalidatedAt)

	if name := f.Value(tokenName, hiding.Of(t.CardholderName)); f.Reading() {
		t.CardholderName = card.NewName(name)
	}
	tlv.Uint(f, tokenMonth, &t.Expiry.Month)
	tlv.Uint(f, tokenYear, &t.Expiry.Year)
	if !f.Reading() {
		tlv.Text(f, tokenIIN, &t.IIN)
		tlv.Text(f, tokenLastFour, &t.LastFour)
	}
	tlv.Uint(f, tokenLength, &t.AccountNumberLength)
	tlv.Uint(f, tokenScheme, &t.Scheme)
	tlv.Text(f, tokenBankName, &t.BankName)
	tlv.Text(f, tokenSegment, &t.Segment)
	tlv.Text(f, tokenType, &t.Type)
	tlv.Text(f, tokenCountry, &t.CountryCode)

	tlv.Uint(f, tokenNetworkStatus, &t.NetworkTokenStatus)
	t.NetworkTokenStatusReason = t.NetworkTokenStatusReason.fields(f)

	tlv.Uint(f, tokenIdentification, &t.Identification)
	tlv.Text(f, tokenBusinessKey, &t.BusinessKey)
	tlv.Text(f, tokenImportProvider, &t.ImportProvider)
	f.Array(tokenFingerprint, t.prints[0].Sum[:])
	if !f.Reading() {
		f.Value(tokenPrints, t.prints.Encode(nil))
	}

	tlv.ID(f, tokenArt, &t.artID)
	f.Bool(tokenStale, &t.AccountNumberStale)
	f.Bool(tokenDeviceBinding, &t.SupportsDeviceBinding)

	if f.Has(tokenAuthMethod, t.Authentication != nil) {
		if t.Authentication == nil {
			t.Authentication = new(idv.Authentication)
		}
		authenticationFields(t.Authentication, f)
	}

	tlv.ID(f, tokenTold, &t.lastEvent)
	tlv.Uint(f, tokenToldSince, &t.toldVersion)
	tlv.Uint(f, tokenCodes, &t.codes)
	if id := f.Value(tokenSession, hiding.Of(t.session)); f.Reading() {
		t.session = SessionID{hiding.New(id)}
	}
	tlv.Text(f, tokenAccountReference, &t.PaymentAccountReference)
	f.Time(tokenExpiresAt, &t.ExpiresAt)

	tlv.Uint(f, tokenEdition, &t.edition)
	tlv.Text(f, tokenFormer, &t.former)
	tlv.Uint(f, tokenStaleMonth, &t.staleExpiry.Month)
	tlv.Uint(f, tokenStaleYear, &t.staleExpiry.Year)
	if f.Has(tokenUpdatedAt, !t.UpdatedAt.Equal(t.CreatedAt)) {
		f.Time(tokenUpdatedAt, &t.UpdatedAt)
	}
}

// fields has the fields of a reason, which may be nil, and returns the reason that was
// read. The standard message of a code is not written.
func (reason *Reason) fields(f *tlv.Fields) *Reason {
	if !f.Has(tokenReasonCode, reason != nil) {
		return nil
	}
	if reason == nil {
		reason = new(Reason)
	}
	tlv.Uint(f, tokenReasonSource, &reason.Source)
	if f.Reading() && string(f.Value(tokenReasonCode, nil)) == string(network.CodeNoNetwork) {
		reason.Code = network.CodeNoNetwork // the most frequent one, without a copy
	} else {
		tlv.Text(f, tokenReasonCode, &reason.Code)
	}

	message := reason.Code.Message()
	if f.Reading() {
		reason.Message = message
	}
	if reason.Message != message || f.Reading() {
		tlv.Text(f, tokenReasonMessage, &reason.Message)
	}
	f.Bool(tokenReasonRetryable, &reason.Retryable)
	tlv.Text(f, tokenReasonSchemeCode, &reason.SchemeCode)
	f.Time(tokenReasonAt, &reason.OccurredAt)
	return reason
}

func authenticationFields(a *idv.Authentication, f *tlv.Fields) {
	tlv.Text(f, tokenAuthMethod, &a.Method)
	tlv.Text(f, tokenAuthStatus, &a.Status)
	tlv.Text(f, tokenAuthECI, &a.ECI)
	tlv.Text(f, tokenAuthTransaction, &a.DSTransactionID)
	f.Time(tokenAuthAt, &a.At)
}

// encode appends the shown part to b.
func (t *Token) encode(b []byte) []byte {
	var f tlv.Fields
	f.To(b)
	t.fields(&f)
	return f.Bytes()
}

// emptyToken returns an empty token, with a reason in the same piece of memory if it has one: all
// tokens do where there is no network.
func emptyToken(reason bool) *Token {
	if !reason {
		return new(Token)
	}
	both := new(struct {
		token  Token
		reason Reason
	})
	both.token.NetworkTokenStatusReason = &both.reason
	return &both.token
}

// decodeToken returns the token that encode wrote.
func (v *Vault) decodeToken(row, id uuid.UUID, plain []byte) (*Token, error) {
	var f tlv.Fields
	f.From(plain)
	t := emptyToken(f.Has(tokenReasonCode, false))
	t.ID, t.CreatedAt, t.UpdatedAt = id, rowkey.Time(row), rowkey.Time(row)
	t.fields(&f)
	t.CardArtURL = v.opts.artURL(t.artID)
	prints, ok := seal.DecodePrints(t.prints[0].Sum, f.Value(tokenPrints, nil))
	t.prints, t.Fingerprint = prints, prints.Shown(v.ledger.Box.Keys())

	n, prefix, lastFour := t.AccountNumberLength, f.Value(tokenIIN, nil), f.Value(tokenLastFour, nil)
	if f.Err() != nil || !ok || len(prefix) < 6 || len(lastFour) != 4 || n < minPAN || n > maxPAN {
		return nil, fmt.Errorf("%w: token cannot be read", ErrDamaged)
	}

	var digits [maxPAN]byte
	copy(digits[:], prefix)
	copy(digits[n-4:], lastFour)
	t.setMasked(rule.Mask(digits[:n]))
	if len(prefix) > 6 {
		t.IIN = string(prefix)
	}
	return t, nil
}
