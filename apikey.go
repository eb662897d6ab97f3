package cardvault

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/addresses"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/keytext"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/listing"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Scope is what an API key allows.
type Scope string

// The scopes.
const (
	ScopeSessionsCreate         Scope = "sessions:create"
	ScopeTokensImport           Scope = "tokens:import"
	ScopeTokensRead             Scope = "tokens:read"
	ScopeTokensUpdate           Scope = "tokens:update"
	ScopeTokensDelete           Scope = "tokens:delete"
	ScopeNetworkTokensProvision Scope = "network-tokens:provision"
	ScopePaymentDataCreate      Scope = "payment-data:create"
	ScopePaymentDataRead        Scope = "payment-data:read"
	ScopeFingerprintsRead       Scope = "fingerprints:read"
	ScopeSecurityCodeRead       Scope = "security-code:read"
	ScopeSecurityCodeRefresh    Scope = "security-code:refresh"
	ScopeSecurityCodeConsume    Scope = "security-code:consume"
	ScopePPANCreate             Scope = "ppan:create"
	ScopeForwardCreate          Scope = "forward:create"
	ScopeWebhooksRead           Scope = "webhooks:read"
	ScopeWebhooksWrite          Scope = "webhooks:write"
	ScopeAPIKeysRead            Scope = "api-keys:read"
	ScopeAPIKeysWrite           Scope = "api-keys:write"
	ScopeMerchantsRead          Scope = "merchants:read"

	// ScopeAuditRead reads the audit log of the account: what every key of it has done, when
	// and from where.
	ScopeAuditRead Scope = "audit:read"

	// ScopePaymentSecretsWrite rotates payment secrets. Its holder receives the new secret, and
	// can open payment data that is encrypted under it.
	ScopePaymentSecretsWrite Scope = "payment-secrets:write"
)

// allScopes is in the order in which keys store their scopes: new ones go last.
var allScopes = []Scope{
	ScopeSessionsCreate, ScopeTokensImport, ScopeTokensRead, ScopeTokensUpdate, ScopeTokensDelete,
	ScopeNetworkTokensProvision, ScopePaymentDataCreate, ScopePaymentDataRead,
	ScopeSecurityCodeRead, ScopeSecurityCodeRefresh, ScopeSecurityCodeConsume,
	ScopePPANCreate, ScopeForwardCreate, ScopeWebhooksRead, ScopeWebhooksWrite,
	ScopeAPIKeysRead, ScopeAPIKeysWrite, ScopeFingerprintsRead, ScopeMerchantsRead, ScopePaymentSecretsWrite,
	ScopeAuditRead,
}

// AllScopes returns every scope.
func AllScopes() []Scope { return slices.Clone(allScopes) }

// An APIKey authenticates calls of one account over REST. Only a hash of its secret is
// stored.
type APIKey struct {
	ID        uuid.UUID `wire:"id"`
	Label     string    `wire:"label"`
	CreatedAt time.Time `wire:"created_at"`
	ExpiresAt time.Time `wire:"expires_at"` // zero: never
	Scopes    []Scope   `wire:"scopes"`

	// AddressRanges are the only networks from which the key may be used. Empty: everywhere.
	// The ranges of its creators bound it too.
	AddressRanges []netip.Prefix `wire:"address_ranges"`

	// LastUsedAt is when the key last authenticated, rounded down to the hour but not below
	// CreatedAt, and known a minute later. Zero: never. Only [Vault.APIKey] and lists have it.
	LastUsedAt time.Time `wire:"last_used_at"`

	Account uuid.UUID

	// Root is the id of the first key of the chain of creators: its own id if no key made it.
	// Calls of a key are counted for its root, so that a key gains nothing by making others.
	Root uuid.UUID

	// Text authenticates as the key. It is set only by the CreateAPIKey that has made the
	// key: a replay has none.
	Text     APIKeyText
	Replayed bool // CreateAPIKey has made it before, or EnsureAPIKey has found it

	row      uuid.UUID
	creators []uuid.UUID      // row keys of the keys that made it, the root first; authenticated
	above    [][]netip.Prefix // ranges of each creator, once these are read
	digest   hidden           // SHA-256 of the 43 characters that carry the 256-bit secret
}

// Has reports whether the key allows scope.
func (k *APIKey) Has(scope Scope) bool { return slices.Contains(k.Scopes, scope) }

// APIKeyOptions are the optional parts of an API key.
type APIKeyOptions struct {
	// TTL limits how long the key lives, a second to [MaxAPIKeyTTL]. 0: no end, which only a
	// sandbox allows. A live vault needs TTL or NotAfter.
	TTL time.Duration

	// Creator is the id of the key that makes this one, if one does. The new
	// key can hold no scope that its creator lacks, ends with it at the latest,
	// and is revoked with it.
	Creator uuid.UUID

	// NotAfter, if set, is the latest end of the key, in a live vault at most [MaxAPIKeyTTL]
	// from now unless TTL is set. A key with a past end never authenticates.
	NotAfter time.Time

	// AddressRanges are the only networks from which the key may be used, at most
	// [MaxAddressRanges]: Authenticate compares [Actor.Address]. Each must lie in one of the
	// creator's, if it has any. Empty: the creator's, or everywhere.
	AddressRanges []netip.Prefix

	IdempotencyKey string // see the package comment
}

// checkAPIKey returns a FieldError for each value that breaks a rule.
func checkAPIKey(label string, scopes []Scope, opts *APIKeyOptions) error {
	var errs []error
	errs = append(errs, checkText("Label", []byte(label)))

	switch {
	case len(scopes) == 0:
		errs = append(errs, &FieldError{"Scopes", invalid.TooShort, "must name at least one scope"})
	case slices.ContainsFunc(scopes, func(s Scope) bool { return !slices.Contains(allScopes, s) }):
		errs = append(errs, &FieldError{"Scopes", invalid.Enum, "must name known scopes"})
	}
	if opts != nil {
		_, ranges := addresses.Tidy(opts.AddressRanges)
		errs = append(errs, checkTTL("TTL", opts.TTL, MaxAPIKeyTTL), broken("AddressRanges", ranges))
	}

	return errors.Join(errs...)
}

// checkEnd returns a FieldError for a new key of a live vault without an end, or whose end
// is too far away.
func (o *APIKeyOptions) checkEnd(m Mode) error {
	switch {
	case m != Live || o.TTL != 0:
		return nil
	case o.NotAfter.IsZero():
		return &FieldError{"TTL", invalid.Required, "is required in live mode, or NotAfter"}
	case time.Until(o.NotAfter) > MaxAPIKeyTTL:
		return &FieldError{"NotAfter", invalid.OutOfRange, fmt.Sprintf("must be at most %v from now", MaxAPIKeyTTL)}
	}
	return nil
}

// An APIKeyText authenticates as an API key: it is the value of the header x-api-key.
// However it is printed, logged or encoded, nothing of it shows. The zero value is empty.
type APIKeyText struct{ hidden }

// NewAPIKeyText returns an APIKeyText of a copy of text, such as one from a secret manager.
// EnsureAPIKey checks it.
func NewAPIKeyText(text []byte) APIKeyText { return APIKeyText{hiding.New(text)} }

// GenerateAPIKeyText returns a new text for EnsureAPIKey, with 256 random bits.
func GenerateAPIKeyText(m Mode) APIKeyText {
	return NewAPIKeyText([]byte(keytext.Generate(m.keyPrefix())))
}

// Text returns the text itself, which nothing hides from then on.
func (t APIKeyText) Text() string { return string(hiding.Of(t)) }

// CreateAPIKey makes an API key of the account and returns it with its text,
// which is shown only here. opts may be nil.
//
// Errors: FieldErrors; ErrNotFound for a creator that does not exist or was revoked,
// ErrInsufficientScope for a creator that lacks a scope, and ErrAPIKeyDepth for a creator
// at the end of the longest chain; ErrQuotaExceeded; ErrIdempotencyKeyReused.
func (v *Vault) CreateAPIKey(ctx context.Context, label string, scopes []Scope, opts *APIKeyOptions) (_ *APIKey, err error) {
	defer v.doing(ctx, "create API key", &err)
	if opts == nil {
		opts = new(APIKeyOptions)
	}
	if err := errors.Join(checkAPIKey(label, scopes, opts), opts.checkEnd(v.opts.Mode)); err != nil {
		return nil, err
	}

	asked := newAPIKey(label, scopes, opts)
	call := replay.Request{Operation: opCreateAPIKey, Key: opts.IdempotencyKey, Body: func() []byte { return asked.canonical(opts) }}
	again := replay.Reopen(ctx, v.rows, kindAPIKey, apiKeys{v.rows}.living, func(k *APIKey) { k.Replayed = true })
	return once(ctx, v, call, again, func(c *replay.Call) (*APIKey, error) {
		k := asked
		row, err := k.complete(ctx, v, opts)
		if err != nil {
			return nil, err
		}
		if err := c.Seal(row[:], uuid.Nil); err != nil {
			return nil, err
		}

		text, secret := keytext.New(v.opts.Mode.keyPrefix(), k.ID)
		k.Text = NewAPIKeyText([]byte(text))
		return &k, k.store(ctx, v, row, keytext.Short(k.ID), secret, c.Put)
	})
}

// EnsureAPIKey makes an API key of the account from a text that the operator has, such as a
// text of GenerateAPIKeyText, unless the key exists. It returns the key without its text.
// If several calls come at once, in several processes too, one makes the key. opts may be
// nil, and can have no IdempotencyKey; label and end of an existing key stay as they are.
//
// A text never makes a second key: once the first is revoked or has expired the error is
// ErrAPIKeyRevoked. Text of CreateAPIKey is refused, and so is text that evidently lacks
// 256 random bits.
//
// Errors: as for CreateAPIKey; ErrAPIKeyRevoked; ErrAPIKeyDiffers.
func (v *Vault) EnsureAPIKey(ctx context.Context, text APIKeyText, label string, scopes []Scope, opts *APIKeyOptions) (_ *APIKey, err error) {
	defer v.doing(ctx, "ensure API key", &err)
	if opts == nil {
		opts = new(APIKeyOptions)
	}
	short, secret, err := keytext.ParseGiven(v.opts.Mode.keyPrefix(), text.Text())
	if err != nil {
		err = &FieldError{"Text", invalid.Format, err.Error()}
	}
	if err := errors.Join(err, checkAPIKey(label, scopes, opts), noIdempotencyKey(opts.IdempotencyKey)); err != nil {
		return nil, err
	}

	asked := newAPIKey(label, scopes, opts)
	digest := sha256.Sum256([]byte(secret))
	given := &store.Record{Kind: kindGivenKey, ID: uuid.UUID(v.rows.Box.Stable(uuid.Nil, "given_key", digest[:])), Account: v.rows.ID, Version: 1}
	return ledger.Retry(ctx, func() (*APIKey, error) {
		is, err := apiKeys{v.rows}.given(ctx, given.ID)
		switch {
		case err != nil:
			return nil, err
		case is != nil && (!slices.Equal(is.Scopes, asked.Scopes) || !is.bounded(&asked, opts.Creator) || apiKeys{v.rows}.maker(is) != opts.Creator):
			return nil, ErrAPIKeyDiffers
		case is != nil:
			return is, nil
		}
		if err := opts.checkEnd(v.opts.Mode); err != nil {
			return nil, err
		}

		k := asked
		row, err := k.complete(ctx, v, opts)
		if err != nil {
			return nil, err
		}
		if err := v.rows.SealShown(given, row[:]); err != nil {
			return nil, err
		}
		return &k, k.store(ctx, v, row, short, secret, func(tx store.Tx) error {
			tx.Put(given) // a conflict if another call was faster
			return nil
		})
	})
}

// bounded reports whether a key has the address ranges that are asked for. Without any, a
// key below another has the ranges of its creator.
func (k *APIKey) bounded(asked *APIKey, creator uuid.UUID) bool {
	inherits := len(asked.AddressRanges) == 0 && creator != uuid.Nil
	return inherits || slices.Equal(k.AddressRanges, asked.AddressRanges)
}

// newAPIKey returns a key that is not described yet, with its scopes and ranges in order.
func newAPIKey(label string, scopes []Scope, opts *APIKeyOptions) APIKey {
	k := APIKey{Label: label}
	k.AddressRanges, _ = addresses.Tidy(opts.AddressRanges)
	for _, s := range allScopes {
		if slices.Contains(scopes, s) {
			k.Scopes = append(k.Scopes, s)
		}
	}
	return k
}

// canonical returns what must be the same for a CreateAPIKey to be a repetition.
func (k *APIKey) canonical(opts *APIKeyOptions) []byte {
	b := tlv.Append(nil, 1, k.Label)
	for _, s := range k.Scopes {
		b = tlv.Append(b, 2, s)
	}
	b = tlv.AppendUint(b, 3, uint64(opts.TTL))
	b = tlv.Append(b, 4, opts.Creator[:])
	b = tlv.AppendTime(b, 5, opts.NotAfter)
	for _, p := range k.AddressRanges {
		b = tlv.Append(b, 6, p.String())
	}
	return b
}

// complete sets what a new key is beyond label and scopes, and returns its row key.
func (k *APIKey) complete(ctx context.Context, v *Vault, opts *APIKeyOptions) (uuid.UUID, error) {
	if err := v.rows.Exists(ctx); err != nil {
		return uuid.Nil, err
	}
	row, err := v.rows.NewRow()
	if err != nil {
		return uuid.Nil, err
	}

	k.ID, k.Account, k.CreatedAt = v.rows.Mask(kindAPIKey, row), v.rows.ID, rowkey.Time(row)
	k.Root = k.ID
	if opts.TTL > 0 {
		k.ExpiresAt = k.CreatedAt.Add(opts.TTL.Truncate(time.Microsecond))
	}
	k.endBy(opts.NotAfter.UTC().Truncate(time.Microsecond))

	if opts.Creator == uuid.Nil {
		return row, nil
	}
	by, err := apiKeys{v.rows}.creator(ctx, opts.Creator)
	if err != nil {
		return uuid.Nil, err
	}
	return row, k.putBelow(by)
}

// store stores a new key under a row key, with the short id and the secret in its text,
// in one transaction with also.
func (k *APIKey) store(ctx context.Context, v *Vault, row uuid.UUID, short, secret string, also func(store.Tx) error) error {
	r := v.rows.NewRecord(kindAPIKey, row)
	r.Lookup = [][]byte{[]byte(short)}
	for _, by := range k.creators {
		r.Lookup = append(r.Lookup, createdBy(by))
	}
	r.Due = k.ExpiresAt

	digest := sha256.Sum256([]byte(secret))
	k.digest = hiding.New(digest[:])
	if err := v.rows.SealShown(r, k.encode()); err != nil {
		return err
	}

	return v.withinQuota(ctx, opCreateAPIKey, quotaAPIKeys, kindAPIKey, func(room func(store.Tx) error) error {
		return v.rows.Write(ctx, opCreateAPIKey, k.ID, func(tx store.Tx) error {
			if _, err := (apiKeys{v.rows}).creatorsOf(tx, k); err != nil {
				return err // revoked meanwhile
			}
			if err := room(tx); err != nil {
				return err
			}
			tx.Put(r)
			return also(tx)
		})
	})
}

// endBy makes a key end at a time, unless it ends before. The zero time ends nothing.
func (k *APIKey) endBy(at time.Time) {
	if !at.IsZero() && (k.ExpiresAt.IsZero() || k.ExpiresAt.After(at)) {
		k.ExpiresAt = at
	}
}

// putBelow puts a key below its creator, which it can exceed neither in scopes nor in time
// nor in addresses.
func (k *APIKey) putBelow(by *APIKey) error {
	if slices.ContainsFunc(k.Scopes, func(s Scope) bool { return !by.Has(s) }) {
		return ErrInsufficientScope
	}
	k.endBy(by.ExpiresAt)
	if len(k.AddressRanges) == 0 {
		k.AddressRanges = by.AddressRanges
	} else if err := k.checkRanges(by.bounds()); err != nil {
		return err
	}
	if k.Root, k.creators = by.Root, by.creators; len(k.creators) >= MaxAPIKeyDepth {
		return ErrAPIKeyDepth
	}
	return nil
}

// bounds returns the ranges that a key below k cannot leave. The creators of k have been read.
func (k *APIKey) bounds() [][]netip.Prefix {
	return append(slices.Clip(k.above), k.AddressRanges)
}

// checkRanges returns a FieldError for ranges that are not within all of bounds.
func (k *APIKey) checkRanges(bounds [][]netip.Prefix) error {
	for _, outer := range bounds {
		if !addresses.Within(k.AddressRanges, outer) {
			return &FieldError{"AddressRanges", invalid.OutOfRange, "must lie within the ranges that bound the key"}
		}
	}
	return nil
}

// apiKeys are the API keys of an account.
type apiKeys struct{ ledger.Account }

// creator returns a key as the creator of another. Its own id is the last of its creators
// then, after the stored ones.
func (s apiKeys) creator(ctx context.Context, id uuid.UUID) (*APIKey, error) {
	r, err := s.Get(ctx, kindAPIKey, id)
	if err != nil {
		return nil, err
	}
	k, err := s.living(ctx, r)
	if err != nil {
		return nil, err
	}
	k.creators = append(k.creators, r.ID)
	return k, nil
}

// living opens a key. The error is ErrNotFound if a creator of it was revoked or has
// lapsed.
func (s apiKeys) living(ctx context.Context, r *store.Record) (*APIKey, error) {
	k, err := s.open(ctx, r)
	if err == nil {
		err = s.checkCreators(ctx, k)
	}
	return k, err
}

// given returns the key that was made with a text whose record has an id, nil if none was.
func (s apiKeys) given(ctx context.Context, id uuid.UUID) (*APIKey, error) {
	var r *store.Record
	err := s.View(ctx, func(tx store.ReadTx) (err error) {
		r, err = tx.Get(kindGivenKey, id)
		return err
	})
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case r.Account != s.ID:
		return nil, ErrAPIKeyDiffers
	}

	row, err := s.OpenShown(ctx, r)
	if err != nil {
		return nil, err
	}
	k, err := replay.Reopen(ctx, s.Account, kindAPIKey, s.living, func(k *APIKey) { k.Replayed = true })(row)
	if errors.Is(err, ErrNotFound) {
		err = ErrAPIKeyRevoked
	}
	return k, err
}

// maker returns the id of the key that has made k, zero if none has.
func (s apiKeys) maker(k *APIKey) uuid.UUID {
	if n := len(k.creators); n > 0 {
		return s.Mask(kindAPIKey, k.creators[n-1])
	}
	return uuid.Nil
}

// creatorsOf returns the records of all keys that made k, one by the other. The error is
// ErrNotFound unless each is there and lives.
func (s apiKeys) creatorsOf(tx store.ReadTx, k *APIKey) (chain []*store.Record, err error) {
	for _, row := range k.creators { // at most MaxAPIKeyDepth-1
		r, err := s.Find(tx, kindAPIKey, row)
		if err != nil {
			return nil, err
		}
		chain = append(chain, r)
	}
	return chain, nil
}

// checkCreators reads the creators of a key, and returns ErrNotFound if one was revoked or
// has lapsed. This check revokes a key together with all its descendants, however many these
// are, and binds them to its ranges.
func (s apiKeys) checkCreators(ctx context.Context, k *APIKey) error {
	if len(k.creators) == 0 {
		return nil
	}

	var chain []*store.Record
	err := s.View(ctx, func(tx store.ReadTx) (err error) {
		chain, err = s.creatorsOf(tx, k)
		return err
	})
	if err != nil {
		return err
	}

	k.above = nil
	for i, r := range chain {
		by, err := s.open(ctx, r)
		if err != nil {
			return err
		}
		if !slices.Equal(by.creators, k.creators[:i]) {
			return fmt.Errorf("%w: the creators of an API key are not those of its creator", ErrDamaged)
		}
		k.above = append(k.above, by.AddressRanges)
	}
	return nil
}

// createdBy is the hash that finds the keys below a key: a key has the hash of each of its
// creators.
func createdBy(row uuid.UUID) []byte { return append([]byte("by"), row[:]...) }

// creatorRows returns the row keys of the creators of the key in a record, oldest first.
func creatorRows(r *store.Record) (rows []uuid.UUID) {
	for _, hash := range r.Lookup {
		if by, ok := bytes.CutPrefix(hash, []byte("by")); ok && len(by) == len(uuid.UUID{}) {
			rows = append(rows, uuid.UUID(by))
		}
	}
	return rows
}

// ListAPIKeys returns one page of the account's API keys. opts may be nil. If keys are
// damaged, the page comes with an error: see [Page].
func (v *Vault) ListAPIKeys(ctx context.Context, opts *ListOptions) (_ *Page[*APIKey], err error) {
	defer v.doing(ctx, "list API keys", &err)
	return listedApiKeys(v, opts).page(ctx)
}

// AllAPIKeys iterates over the account's API keys, as [Vault.All] does over tokens.
func (v *Vault) AllAPIKeys(ctx context.Context, opts *ListOptions) iter.Seq2[*APIKey, error] {
	return iterate(ctx, v, func() *listed[*APIKey] { return listedApiKeys(v, opts) })
}

func listedApiKeys(v *Vault, opts *ListOptions) *listed[*APIKey] {
	uses := map[uuid.UUID]*store.Record{} // by row key
	return listedBy(opts, "list API keys", listing.List[*APIKey]{
		Rows: v.rows, Kind: kindAPIKey,
		Open: func(ctx context.Context, r *store.Record) (*APIKey, error) {
			return shownAPIKey(ctx, v, r, uses[r.ID])
		},
		Also: []func(store.ReadTx, *store.List) error{func(tx store.ReadTx, list *store.List) error {
			clear(uses)
			return v.uses.Read(tx, list, uses)
		}},
	})
}

// APIKey returns an API key, without its text. The error is ErrNotFound for an id that the
// account does not have.
func (v *Vault) APIKey(ctx context.Context, id uuid.UUID) (_ *APIKey, err error) {
	defer v.doing(ctx, "get API key", &err, id)
	_, k, err := readAPIKey(ctx, v, id)
	return k, err
}

// readAPIKey returns an API key with its last use, and its record.
func readAPIKey(ctx context.Context, v *Vault, id uuid.UUID) (*store.Record, *APIKey, error) {
	r, err := v.rows.Get(ctx, kindAPIKey, id)
	if err != nil {
		return nil, nil, err
	}
	uses := map[uuid.UUID]*store.Record{}
	err = v.rows.View(ctx, func(tx store.ReadTx) error {
		clear(uses)
		return v.uses.Read(tx, &store.List{Records: []*store.Record{r}}, uses)
	})
	if err != nil {
		return nil, nil, err
	}
	k, err := shownAPIKey(ctx, v, r, uses[r.ID])
	return r, k, err
}

// shownAPIKey returns an API key with its last use, whose record may be nil.
func shownAPIKey(ctx context.Context, v *Vault, r, use *store.Record) (*APIKey, error) {
	k, err := apiKeys{v.rows}.open(ctx, r)
	if err != nil {
		return nil, err
	}
	if k.LastUsedAt, err = v.uses.Open(ctx, use); err == nil && !k.LastUsedAt.IsZero() && k.LastUsedAt.Before(k.CreatedAt) {
		k.LastUsedAt = k.CreatedAt // in the hour in which it was made
	}
	return k, err
}

// DeleteAPIKey revokes an API key and all its descendants, at once: the keys that it made,
// and the keys that these made. The error is ErrNotFound for an id that the account does
// not have, or ErrLedgerBehind.
//
// Its duration does not depend on the number of descendants: the keys of a large family, of
// more than a thousand, never authenticate from then on, but are listed until [Vault.Run]
// has erased them.
func (v *Vault) DeleteAPIKey(ctx context.Context, id uuid.UUID) (err error) {
	defer v.doing(ctx, "delete API key", &err, id)
	if err := v.eraser.Delete(ctx, v.rows, opDeleteAPIKey, kindAPIKey, id, nil); err != nil {
		return err
	}
	return inLedger(ctx, v, "delete API key")
}

// DeleteAPIKeyBy is DeleteAPIKey on behalf of the key whose id is by: it revokes by itself
// and the keys below it. Any other id is ErrNotFound.
func (v *Vault) DeleteAPIKeyBy(ctx context.Context, by, id uuid.UUID) (err error) {
	defer v.doing(ctx, "delete API key", &err, id)
	r, err := v.rows.Get(ctx, kindAPIKey, id)
	if err != nil {
		return err
	}
	k, err := apiKeys{v.rows}.open(ctx, r) // who made it is not authenticated before
	if err != nil {
		return err
	}

	if id != by && !slices.Contains(k.creators, v.rows.Unmask(kindAPIKey, by)) {
		return ErrNotFound
	}
	return v.DeleteAPIKey(ctx, id)
}

// An APIKeyUpdate changes an API key.
type APIKeyUpdate struct {
	// AddressRanges are the ranges that the key has from now on, as in [APIKeyOptions]. They
	// must lie in the ranges of each creator. If empty, the key has the ranges of its creator, or
	// none. The change holds for the next call in each process, for the keys below too: these
	// keep ranges of their own, and a caller must be within all of them.
	AddressRanges []netip.Prefix
}

// UpdateAPIKey changes the address ranges of an API key, and returns the key.
//
// Errors: FieldErrors; ErrNotFound for an id that the account does not have, and for a key
// with a revoked creator.
func (v *Vault) UpdateAPIKey(ctx context.Context, id uuid.UUID, u APIKeyUpdate) (_ *APIKey, err error) {
	defer v.doing(ctx, "update API key", &err, id)
	return updateAPIKey(ctx, v, id, u, nil)
}

// UpdateAPIKeyBy is UpdateAPIKey on behalf of the key whose id is by: it changes the ranges of
// the keys below it. Any other id is ErrNotFound, its own too: whoever has stolen the key would
// shut its owner out.
func (v *Vault) UpdateAPIKeyBy(ctx context.Context, by, id uuid.UUID, u APIKeyUpdate) (_ *APIKey, err error) {
	defer v.doing(ctx, "update API key", &err, id)
	return updateAPIKey(ctx, v, id, u, &by)
}

func updateAPIKey(ctx context.Context, v *Vault, id uuid.UUID, u APIKeyUpdate, by *uuid.UUID) (*APIKey, error) {
	ranges, refused := addresses.Tidy(u.AddressRanges)
	if refused != nil {
		return nil, broken("AddressRanges", refused)
	}

	return ledger.Retry(ctx, func() (*APIKey, error) {
		r, k, err := readAPIKey(ctx, v, id)
		if err != nil {
			return nil, err
		}
		if err := (apiKeys{v.rows}).checkCreators(ctx, k); err != nil {
			return nil, err
		}
		if by != nil && !slices.Contains(k.creators, v.rows.Unmask(kindAPIKey, *by)) {
			return nil, ErrNotFound
		}
		if err := k.bind(ranges); err != nil {
			return nil, err
		}

		r.Version++
		if err := v.rows.SealShown(r, k.encode()); err != nil {
			return nil, err
		}
		return k, v.rows.Write(ctx, opUpdateAPIKey, id, func(tx store.Tx) error {
			if _, err := (apiKeys{v.rows}).creatorsOf(tx, k); err != nil {
				return err // revoked meanwhile
			}
			tx.Put(r)
			return nil
		})
	})
}

// bind gives a key other ranges, within the ranges of its creators, which have been read.
func (k *APIKey) bind(ranges []netip.Prefix) error {
	bounds := k.above
	if n := len(k.above); len(ranges) == 0 && n > 0 {
		ranges, bounds = k.above[n-1], nil
	}
	k.AddressRanges = ranges
	return k.checkRanges(bounds)
}

// A Principal is the caller that an API key authenticates.
type Principal struct {
	Key     *APIKey
	Account *Account
}

// Authenticate returns the principal of an API key's text, in any account. The error is
// ErrUnauthenticated for every text that is not a valid key, and for a key with address
// ranges unless the [Actor.Address] of ctx is in one of them. It is ErrAccountFrozen for a
// valid key of a frozen account; keys of an account that was closed are not valid.
func (v *Vault) Authenticate(ctx context.Context, key string) (_ *Principal, err error) {
	defer v.whole().doing(ctx, "authenticate", &err)
	short, secret, ok := keytext.Parse(v.opts.Mode.keyPrefix(), key)
	if !ok {
		return nil, ErrUnauthenticated
	}

	// A kept principal is found by the whole text alone: a wrong one takes as long as ever.
	at := now()
	read := func() (*Principal, error) {
		return readPrincipal(ctx, v, short, sha256.Sum256([]byte(secret)), at)
	}
	p, err := v.principals.Of(ctx, sha256.Sum256([]byte(key)), read)
	if err != nil {
		return nil, err
	}
	if !p.Key.admits(ctx) {
		// It is kept for callers inside. For one outside it is read once more, which takes as
		// long as for a wrong secret.
		if _, err := read(); err != nil {
			return nil, err
		}
		return nil, ErrUnauthenticated
	}
	if end := p.Key.ExpiresAt; !end.IsZero() && !end.After(at) {
		return nil, ErrUnauthenticated
	}
	v.uses.Note(p.Key.Account, p.Key.row, at)
	return p.clone(), nil
}

// admits reports whether the caller of a context is where the key may be used, as far as the
// ranges have been read that bound it.
func (k *APIKey) admits(ctx context.Context) bool {
	a, _ := ctx.Value(actorKey{}).(Actor)
	for _, ranges := range k.above {
		if !addresses.Admit(ranges, a.Address) {
			return false
		}
	}
	return addresses.Admit(k.AddressRanges, a.Address)
}

// clone returns a copy of p that shares no memory with it that can be changed.
func (p *Principal) clone() *Principal {
	c := struct { // in one piece
		Principal
		key     APIKey
		account Account
	}{key: *p.Key, account: *p.Account}
	c.Key, c.Account = &c.key, &c.account
	c.key.Scopes, c.key.AddressRanges = slices.Clone(c.key.Scopes), slices.Clone(c.key.AddressRanges)
	c.account.ProviderAccounts = slices.Clone(c.account.ProviderAccounts)
	return &c.Principal
}

// readPrincipal returns the principal of an API key with a short id and the digest of a
// secret. A right secret from outside the ranges of its key is treated like a wrong one.
func readPrincipal(ctx context.Context, v *Vault, short string, sum [sha256.Size]byte, at time.Time) (*Principal, error) {
	found, damaged, err := v.ledger.FindOwned(ctx, kindAPIKey, []byte(short), 16, v.decoy.account)
	if err != nil {
		return nil, err
	}

	for _, c := range found {
		k, err := apiKeys{v.ledger.In(c.Record.Account)}.open(ctx, c.Record)
		if errors.Is(err, ErrDamaged) {
			damaged = err
			continue
		}
		if err != nil {
			return nil, err
		}
		if subtle.ConstantTimeCompare(hiding.Of(k.digest), sum[:]) != 1 || !ledger.Lives(c.Record, at) {
			continue
		}
		if k.admits(ctx) {
			p, err := v.principal(ctx, k, c.Account)
			if err == nil && k.admits(ctx) { // its creators too, which have been read now
				return p, p.Account.admits()
			}
			if err != nil {
				return nil, err
			}
		}
		if v.outside.Now() {
			a, _ := ctx.Value(actorKey{}).(Actor)
			v.log.Warn("API key was used from outside its address ranges", "key", k.ID, "account", k.Account, "address", a.Address, "request_id", a.RequestID)
		}
	}
	if damaged != nil {
		return nil, damaged
	}

	// An id that no key has costs what a known one does.
	if len(found) == 0 {
		if err := v.decoy.compare(v, sum[:]); err != nil {
			return nil, err
		}
	}
	return nil, ErrUnauthenticated
}

// principal returns the principal of a key whose secret was right. Its creators are checked
// only now: the time for a wrong secret does not depend on them. They existed before the
// key, so if they exist now they did when the key was read.
func (v *Vault) principal(ctx context.Context, k *APIKey, account *store.Record) (*Principal, error) {
	err := apiKeys{v.ledger.In(k.Account)}.checkCreators(ctx, k)
	if errors.Is(err, ErrNotFound) {
		return nil, ErrUnauthenticated
	}
	if err != nil {
		return nil, err
	}

	a, err := v.whole().openAccount(ctx, account)
	if err != nil {
		return nil, err
	}
	return &Principal{k, a}, nil
}

// A decoy is the API key that an unknown one is compared with, so that an unknown id takes
// as long as a known one: an account is read, and a record copied, opened and decoded. It
// is sealed under keys of its own.
type decoy struct {
	box     *seal.Box
	key     store.Record
	account uuid.UUID // row key of an existing account
}

// newDecoy returns the decoy of a vault, given a handle on its default account.
func (v *Vault) newDecoy() (*decoy, error) {
	row, keys := rowkey.First(ledger.FirstTime), seal.NewKeys(ledger.FirstTime)
	d := &decoy{box: seal.NewBox(keys, nil), key: *v.rows.NewRecord(kindAPIKey, row), account: v.whole().rows.Unmask(kindAccount, v.rows.ID)}
	d.box.Grant(keys, 1)
	d.key.Lookup = [][]byte{[]byte(keytext.Short(row))}
	k := &APIKey{Label: "decoy", Scopes: allScopes, digest: hiding.New(make([]byte, sha256.Size))}
	return d, d.box.SealShown(&d.key, k.encode())
}

// compare takes the same steps as for a known key. It opens the record twice, which takes
// about as long as a store takes to find one.
func (d *decoy) compare(v *Vault, sum []byte) error {
	var k *APIKey
	var plain []byte
	for range 2 {
		r := d.key
		r.Shown, r.Lookup = slices.Clone(r.Shown), [][]byte{slices.Clone(r.Lookup[0])}
		var err error
		if plain, err = d.box.OpenShown(&r); err != nil {
			return err
		}
		k = apiKeys{v.ledger.In(r.Account)}.describe(&r)
	}

	err := k.decode(plain)
	subtle.ConstantTimeCompare(hiding.Of(k.digest), sum)
	return err
}

// keyPrefix begins the texts of API keys: see package keytext.
func (m Mode) keyPrefix() string {
	if m == Sandbox {
		return "vk_test_"
	}
	return "vk_live_"
}

const (
	keyExpiresAt = iota + 1
	keyLabel
	keyScopes // bytes that are indexes of allScopes
	keyDigest
	keyRange         // and its length, in binary form
	keyBoundedDigest // in place of keyDigest if there are ranges: see decode
)

func (k *APIKey) encode() []byte {
	b := tlv.AppendTime(nil, keyExpiresAt, k.ExpiresAt)
	b = tlv.Append(b, keyLabel, k.Label)
	var scopes []byte
	for i, s := range allScopes {
		if k.Has(s) {
			scopes = append(scopes, byte(i))
		}
	}
	b = tlv.Append(b, keyScopes, scopes)
	digest := byte(keyDigest)
	for _, p := range k.AddressRanges {
		text, _ := p.MarshalBinary() // a range always has a binary form
		b = tlv.Append(b, keyRange, text)
		digest = keyBoundedDigest
	}
	b = tlv.Append(b, digest, hiding.Of(k.digest))
	return tlv.Pad(b, 64, 0)
}

// describe returns the API key of a record as its columns have it.
func (s apiKeys) describe(rec *store.Record) *APIKey {
	k := &APIKey{row: rec.ID, ID: s.Mask(kindAPIKey, rec.ID), Account: rec.Account, CreatedAt: rowkey.Time(rec.ID), creators: creatorRows(rec)}
	k.Root = k.ID
	if len(k.creators) > 0 {
		k.Root = s.Mask(kindAPIKey, k.creators[0])
	}
	return k
}

func (s apiKeys) open(ctx context.Context, rec *store.Record) (*APIKey, error) {
	k := s.describe(rec)
	plain, err := s.OpenShown(ctx, rec)
	if err != nil {
		return nil, err
	}
	return k, s.Named(rec, k.decode(plain))
}

// decode reads what encode has written. The digest of a key with address ranges has a tag of
// its own: a former version, which passes over ranges, finds such a key damaged and never
// authenticates it.
func (k *APIKey) decode(plain []byte) error {
	bounded := false
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case keyExpiresAt:
			k.ExpiresAt = r.Time()
		case keyLabel:
			k.Label = string(r.Value)
		case keyScopes:
			k.Scopes = make([]Scope, 0, len(r.Value))
			for _, i := range r.Value {
				if int(i) < len(allScopes) {
					k.Scopes = append(k.Scopes, allScopes[i])
				}
			}
		case keyDigest, keyBoundedDigest:
			k.digest = hiding.New(r.Value)
			bounded = r.Tag == keyBoundedDigest
		case keyRange:
			var p netip.Prefix
			if p.UnmarshalBinary(r.Value) != nil || !p.IsValid() {
				return fmt.Errorf("%w: address range cannot be read", ErrDamaged)
			}
			k.AddressRanges = append(k.AddressRanges, p)
		}
	}

	if len(hiding.Of(k.digest)) != sha256.Size || bounded != (len(k.AddressRanges) > 0) {
		return fmt.Errorf("%w: API key cannot be read", ErrDamaged)
	}
	return ledger.ReadError(&r)
}
