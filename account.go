package cardvault

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/enum"
	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/listing"
	"github.com/cardvault/cardvault/internal/removal"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// An Account owns tokens, merchants and API keys. No account sees anything of another.
// Its approvals, ImportApproved and NetworkTokensActive, are the operator's.
type Account struct {
	ID        uuid.UUID
	CreatedAt time.Time
	Name      string // for the operator; 1 to 255 characters, or "" for none

	// ImportApproved allows POST /cde-import. It is enforced only over REST: a Go program
	// that calls Import is its own operator.
	ImportApproved bool

	// NetworkTokensActive allows network tokens.
	NetworkTokensActive bool

	// ProviderAccounts lists the accounts at the provider for which ObtainPPAN sends cards. A
	// live vault sends cards for no others. In sandbox mode an empty list is filled with the
	// first account for which a card is sent.
	ProviderAccounts []ProviderAccount

	// Quotas are the effective ones: from UpdateAccount, else from Options.Quotas.
	Quotas Quotas

	// TokenRetention is the age at which tokens are deleted, counted from their import, in
	// whole hours. 0: they are kept.
	TokenRetention time.Duration

	State AccountState
	Since time.Time // when State began; zero if it was always AccountOpen

	Replayed  bool   // CreateAccount has made it before: see the package comment
	overrides Quotas // 0: as Options.Quotas
}

// A ProviderAccount names an account at the provider for which cards may be sent: three
// fields of a ppan.Account.
type ProviderAccount struct {
	AID      string
	MID      string
	PortalID string
}

// AccountOptions are the optional parts of a new account.
type AccountOptions struct {
	IdempotencyKey string // unique within the vault: see the package comment

	// Grants of the operator to the account. nil means granted only in a sandbox.
	ImportApproved, NetworkTokensActive *bool
}

// CreateAccount makes an account with a primary merchant. opts may be nil.
//
// Errors: FieldErrors; ErrIdempotencyKeyReused.
func (v *Vault) CreateAccount(ctx context.Context, name string, opts *AccountOptions) (_ *Account, err error) {
	defer v.whole().doing(ctx, "create account", &err)
	if name != "" {
		if err := checkText("Name", []byte(name)); err != nil {
			return nil, err
		}
	}

	if opts == nil {
		opts = new(AccountOptions)
	}
	sandbox := v.opts.Mode == Sandbox
	a := Account{Name: name, State: AccountOpen, ImportApproved: sandbox, NetworkTokensActive: sandbox}
	set(&a.ImportApproved, opts.ImportApproved)
	set(&a.NetworkTokensActive, opts.NetworkTokensActive)

	whole := v.whole()
	call := replay.Request{Operation: opCreateAccount, Key: opts.IdempotencyKey, Body: func() []byte {
		return tlv.AppendBool(tlv.AppendBool(tlv.Append(nil, 1, name), 2, a.ImportApproved), 3, a.NetworkTokensActive)
	}}
	again := replay.Reopen(ctx, whole.rows, kindAccount, whole.openAccount, func(a *Account) { a.Replayed = true })
	return once(ctx, whole, call, again, func(c *replay.Call) (*Account, error) {
		records, err := a.complete(v)
		if err != nil {
			return nil, err
		}
		if err := c.Seal(records[0].ID[:], uuid.Nil); err != nil {
			return nil, err
		}
		return &a, v.of(v.rows.ID).rows.Write(ctx, opCreateAccount, a.ID, func(tx store.Tx) error {
			for _, r := range records {
				tx.Put(r)
			}
			return c.Put(tx)
		})
	})
}

// complete gives a new account its id and returns its records: its own and its primary
// merchant's.
func (a *Account) complete(v *Vault) ([]*store.Record, error) {
	whole := v.whole()
	row, err := v.rows.NewRow()
	if err != nil {
		return nil, err
	}
	a.ID, a.CreatedAt, a.Quotas = whole.rows.Mask(kindAccount, row), rowkey.Time(row), v.opts.Quotas

	account := whole.rows.NewRecord(kindAccount, row)
	m := &Merchant{Name: "primary", Primary: true}
	merchant, err := merchants{v.ledger.In(a.ID)}.add(m)
	if err != nil {
		return nil, err
	}

	if err := v.rows.SealShown(account, tlv.Encode(a.fields)); err != nil {
		return nil, err
	}
	return []*store.Record{account, merchant}, nil
}

// Account returns the account that this handle works on.
func (v *Vault) Account(ctx context.Context) (_ *Account, err error) {
	defer v.doing(ctx, "get account", &err)
	whole := v.whole()
	r, err := whole.rows.Get(ctx, kindAccount, v.rows.ID)
	if err != nil {
		return nil, err
	}
	return whole.openAccount(ctx, r)
}

// ListAccounts returns one page of all accounts. opts may be nil. If accounts are damaged,
// the page comes with an error: see [Page].
func (v *Vault) ListAccounts(ctx context.Context, opts *ListOptions) (_ *Page[*Account], err error) {
	defer v.whole().doing(ctx, "list accounts", &err)
	return listedAccounts(v, opts).page(ctx)
}

// AllAccounts iterates over all accounts, as [Vault.All] does over tokens.
func (v *Vault) AllAccounts(ctx context.Context, opts *ListOptions) iter.Seq2[*Account, error] {
	return iterate(ctx, v.whole(), func() *listed[*Account] { return listedAccounts(v, opts) })
}

func listedAccounts(v *Vault, opts *ListOptions) *listed[*Account] {
	whole := v.whole()
	return listedBy(opts, "list accounts", listing.List[*Account]{Rows: whole.rows, Kind: kindAccount, Open: whole.openAccount})
}

// An AccountUpdate holds the changes to an account. A nil field stays as it is.
type AccountUpdate struct {
	Name                *string // "": none
	ImportApproved      *bool
	NetworkTokensActive *bool
	ProviderAccounts    []ProviderAccount // nil: stays; empty: none
	Quotas              QuotaUpdate
	TokenRetention      *time.Duration // 0, or whole hours up to MaxTokenRetention
}

// UpdateAccount changes the account of this handle and returns it. Every process on the
// store follows at once. Network tokens that become active are asked for, in the
// background, for all tokens of the account that can have one. Existing objects beyond a
// new quota stay.
//
// Errors: FieldErrors; ErrNotFound.
func (v *Vault) UpdateAccount(ctx context.Context, u AccountUpdate) (_ *Account, err error) {
	defer v.doing(ctx, "update account", &err)
	if err := u.check(); err != nil {
		return nil, err
	}

	var changed *Account
	var fill, retain *store.Record
	err = v.changeAccount(ctx, opUpdateAccount, v.rows.ID, func(a *Account) (also func(store.Tx) error, err error) {
		changed, fill, retain = a, nil, nil
		var writes []*store.Record
		if u.NetworkTokensActive != nil && *u.NetworkTokensActive && !a.NetworkTokensActive {
			if fill, err = v.newBackfill(ctx); err != nil {
				return nil, err
			}
			writes = append(writes, fill)
		}
		if u.TokenRetention != nil && *u.TokenRetention != 0 {
			if retain, err = v.onlyJob(ctx, kindRetention, func(time.Time) []byte { return new(removal.Retention).Encode() }); err != nil {
				return nil, err
			}
			writes = append(writes, retain)
		}

		set(&a.Name, u.Name)
		set(&a.ImportApproved, u.ImportApproved)
		set(&a.NetworkTokensActive, u.NetworkTokensActive)
		if u.ProviderAccounts != nil {
			a.ProviderAccounts = slices.Clone(u.ProviderAccounts)
		}
		u.Quotas.apply(&a.overrides)
		a.Quotas = a.overrides
		a.Quotas.or(&v.opts.Quotas)
		set(&a.TokenRetention, u.TokenRetention)
		return func(tx store.Tx) error {
			for _, r := range writes {
				tx.Put(r)
			}
			return nil
		}, nil
	})
	if err != nil {
		return nil, err
	}
	v.jobs.Due(fill, retain)
	return changed, nil
}

func checkProviderAccounts(allowed []ProviderAccount) error {
	if len(allowed) > MaxProviderAccounts {
		return &FieldError{"ProviderAccounts", invalid.OutOfRange, fmt.Sprintf("must be at most %d", MaxProviderAccounts)}
	}
	for _, a := range allowed {
		if err := errors.Join(checkHeader("AID", []byte(a.AID)), checkHeader("MID", []byte(a.MID)), checkHeader("PortalID", []byte(a.PortalID))); err != nil {
			return err
		}
	}
	return nil
}

func checkHeader(field string, text []byte) error { return broken(field, rule.Header(text)) }

func (u *AccountUpdate) check() error {
	errs := []error{checkProviderAccounts(u.ProviderAccounts), u.Quotas.check()}
	if u.Name != nil && *u.Name != "" {
		errs = append(errs, checkText("Name", []byte(*u.Name)))
	}
	if r := u.TokenRetention; r != nil && (*r < 0 || *r > MaxTokenRetention || *r%time.Hour != 0) {
		errs = append(errs, &FieldError{"TokenRetention", invalid.OutOfRange, "must be 0 or whole hours, at most 100 years"})
	}
	return errors.Join(errs...)
}

// changeAccount stores the account of this handle as change leaves it, and writes in the
// same transaction what change returns, unless that is nil. Every process knows by the new
// version of the record that it has to read the account again.
func (v *Vault) changeAccount(ctx context.Context, op ledger.Operation, object uuid.UUID, change func(*Account) (func(store.Tx) error, error)) error {
	_, err := ledger.Retry(ctx, func() (*Account, error) { return nil, tryAccount(ctx, v, op, object, change) })
	return err
}

// tryAccount is changeAccount without a second try.
func tryAccount(ctx context.Context, v *Vault, op ledger.Operation, object uuid.UUID, change func(*Account) (func(store.Tx) error, error)) error {
	whole := v.whole()
	r, err := whole.rows.Get(ctx, kindAccount, v.rows.ID)
	if err != nil {
		return err
	}
	a, err := whole.openAccount(ctx, r)
	if err != nil {
		return err
	}
	also, err := change(a)
	if err != nil {
		return err
	}

	r.Class = uint8(a.State)
	r.Version++
	if err := v.rows.SealShown(r, tlv.Encode(a.fields)); err != nil {
		return err
	}
	return v.rows.Write(ctx, op, object, func(tx store.Tx) error {
		tx.Put(r)
		if also == nil {
			return nil
		}
		return also(tx)
	})
}

// An AccountState says whether an account can be used.
type AccountState uint8

// The states of an account.
const (
	AccountOpen    = AccountState(ledger.Standing)
	AccountFrozen  = AccountState(ledger.Frozen)  // until [Vault.ThawAccount]
	AccountClosing = AccountState(ledger.Closing) // its records are being erased
	AccountClosed  = AccountState(ledger.Closed)  // nothing of it is left
)

var accountStates = enum.Names{AccountOpen: "open", AccountFrozen: "frozen", AccountClosing: "closing", AccountClosed: "closed"}

// String returns "open", "frozen", "closing" or "closed".
func (s AccountState) String() string { return accountStates.Of(uint8(s)) }

// MarshalText returns the name, or an error for a number without one.
func (s AccountState) MarshalText() ([]byte, error) { return enum.Text(s, AccountState.String) }

// UnmarshalText reads what MarshalText writes.
func (s *AccountState) UnmarshalText(text []byte) error {
	return enum.Read(text, s, AccountState.String)
}

// MaxTokenRetention bounds Account.TokenRetention.
const MaxTokenRetention = 100 * 365 * 24 * time.Hour

// admits returns why a valid API key of the account is refused, or nil.
func (a *Account) admits() error {
	switch a.State {
	case AccountOpen:
		return nil
	case AccountFrozen:
		return ErrAccountFrozen
	}
	return ErrUnauthenticated
}

// FreezeAccount refuses all calls inside the account of this handle with ErrAccountFrozen,
// in every process, until ThawAccount: no call commits any more, whenever it began, and none
// reads once FreezeAccount has returned. That takes a second on a store that several processes
// share. Only Account, ListAccounts, the calls that end or read a freeze, and the audit log
// work. API keys and sessions stay, and their time goes on.
//
// Meanwhile nothing is provisioned, sent to webhooks or submitted to the account updater. That
// goes on within 15 minutes of the thaw. What networks report is stored. What lapses is
// erased, and events go to [Options.Events]. Freezing again changes nothing.
//
// Errors: ErrNotFound, also for an account that was closed.
func (v *Vault) FreezeAccount(ctx context.Context) (_ *Account, err error) {
	defer v.doing(ctx, "freeze account", &err)
	return v.setState(ctx, opFreezeAccount, AccountFrozen)
}

// ThawAccount ends FreezeAccount, at once. It changes nothing if the account is not frozen.
//
// Errors: ErrNotFound, also for an account that was closed.
func (v *Vault) ThawAccount(ctx context.Context) (_ *Account, err error) {
	defer v.doing(ctx, "thaw account", &err)
	return v.setState(ctx, opThawAccount, AccountOpen)
}

// CloseAccount ends the account of this handle for ever. From then on all calls inside it are
// ErrNotFound and its API keys ErrUnauthenticated, as surely as FreezeAccount refuses them.
// [Vault.Run] erases everything that the account had, without events, and deletes its network
// tokens at their networks, which has to succeed, except for one whose record cannot be read. Then it looks through the store again: State
// is AccountClosed once nothing was found. The operation account.closed of the audit log and a line
// in the log say so. [Vault.Verify] reports records that are there later.
//
// The record of the account stays, without its name, so that its id is never given again. So do
// its audit records for their time, and the hashes of API keys whose texts the program chose.
// Closing a closed account again erases records that were put back since. Any account can be
// closed, the default one too.
//
// Errors: ErrNotFound; ErrLedgerBehind, with the account.
func (v *Vault) CloseAccount(ctx context.Context) (_ *Account, err error) {
	defer v.doing(ctx, "close account", &err)
	a, err := v.setState(ctx, opCloseAccount, AccountClosing)
	if err != nil {
		return nil, err
	}
	return a, inLedger(ctx, v, "close account")
}

// setState gives the account another state, unless it is past that.
func (v *Vault) setState(ctx context.Context, op ledger.Operation, to AccountState) (*Account, error) {
	own := v.of(v.rows.ID)
	var changed *Account
	var erasure *store.Record
	err := own.changeAccount(ctx, op, v.rows.ID, func(a *Account) (func(store.Tx) error, error) {
		changed, erasure = a, nil
		switch {
		case a.State >= AccountClosing && to < AccountClosing:
			return nil, ErrNotFound
		case a.State == to:
			return nil, errUnchanged
		}
		a.State, a.Since = to, now()
		if to != AccountClosing {
			return nil, nil
		}
		var err error
		erasure, err = v.closer.Begin(own.rows)
		return func(tx store.Tx) error { tx.Put(erasure); return nil }, err
	})

	if errors.Is(err, errUnchanged) {
		return changed, own.rows.Note(ctx, op, v.rows.ID, nil)
	}
	if err != nil {
		return nil, err
	}
	if to != AccountOpen {
		v.ledger.Noticed()
	}
	v.jobs.Due(erasure)
	return changed, nil
}

// errUnchanged ends changeAccount without a write.
var errUnchanged = errors.New("cardvault: account stays as it is")

// Bounds of the time that background work of an account waits before it looks again whether
// that is still frozen: about as long as that has been.
const (
	leastRest = time.Minute
	mostRest  = 15 * time.Minute
)

// rests returns how long background work of the account waits, 0 if it need not.
func (v *Vault) rests(ctx context.Context) (time.Duration, error) {
	switch state, err := v.rows.State(ctx); {
	case errors.Is(err, ErrNotFound), err == nil && state == ledger.Standing:
		return 0, nil
	case err != nil:
		return 0, err
	case state != ledger.Frozen: // it is being closed
		return mostRest, nil
	}
	s, err := v.standing(ctx)
	if err != nil {
		return 0, err
	}
	return min(max(now().Sub(s.since), leastRest), mostRest), nil
}

// claimOfAccount puts off a job while its account is frozen.
func (v *Vault) claimOfAccount(ctx context.Context, j *jobs.Job) error {
	rest, err := v.of(j.Record.Account).rests(ctx)
	if rest > 0 {
		j.Record.Due, j.Wait = now().Add(rest), true
	}
	return err
}

// A standing holds the fields of an account that calls look at each time.
type standing struct {
	account  uuid.UUID // row key
	version  uint64    // of its record
	active   bool      // network tokens are
	since    time.Time // of its state
	quotas   Quotas
	merchant uuid.UUID // the primary one; zero unless approved has read it
}

// standing returns the present standing of the account. It costs a read. The record is
// opened only if it has changed since the last one.
func (v *Vault) standing(ctx context.Context) (*standing, error) {
	whole := v.whole()
	r, err := whole.rows.Get(ctx, kindAccount, v.rows.ID)
	if err != nil {
		return nil, err
	}
	if known, ok := v.standings.Load(v.rows.ID); ok && known.(*standing).version == r.Version {
		return known.(*standing), nil
	}

	version := r.Version
	a, err := whole.openAccount(ctx, r)
	if err != nil {
		return nil, err
	}
	s := &standing{account: r.ID, version: version, active: a.NetworkTokensActive, since: a.Since, quotas: a.Quotas}
	v.standings.Store(v.rows.ID, s)
	return s, nil
}

// approved returns the present standing of the account, with its primary merchant.
func (v *Vault) approved(ctx context.Context) (*standing, error) {
	s, err := v.standing(ctx)
	if err != nil || s.merchant != uuid.Nil {
		return s, err
	}
	m, err := v.PrimaryMerchant(ctx)
	if err != nil {
		return nil, err
	}
	with := *s
	with.merchant = m.ID
	v.standings.CompareAndSwap(v.rows.ID, s, &with)
	return &with, nil
}

const (
	accountName = iota + 1
	accountImport
	accountNetworkTokens
	accountProviderAID
	accountProviderMID
	accountProviderPortal // ends one ProviderAccount
	accountQuota          // and the numbers after it: one for each of allQuotas

	accountSince     = 32
	accountRetention = 33 // hours
)

func (a *Account) fields(f *tlv.Fields) {
	tlv.Text(f, accountName, &a.Name)
	f.Bool(accountImport, &a.ImportApproved)
	f.Bool(accountNetworkTokens, &a.NetworkTokensActive)
	tlv.Items(f, accountProviderAID, accountProviderPortal, &a.ProviderAccounts, func(p *ProviderAccount, f *tlv.Fields) {
		tlv.Text(f, accountProviderAID, &p.AID)
		tlv.Text(f, accountProviderMID, &p.MID)
		tlv.Text(f, accountProviderPortal, &p.PortalID)
	})
	for i, q := range allQuotas {
		n := q.of(&a.overrides)
		tlv.Uint(f, accountQuota+byte(i), n)
		*n = max(0, min(*n, q.most))
	}
	f.Time(accountSince, &a.Since)
	hours := a.TokenRetention / time.Hour
	tlv.Uint(f, accountRetention, &hours)
	a.TokenRetention = min(hours, MaxTokenRetention/time.Hour) * time.Hour
}

func (v *Vault) openAccount(ctx context.Context, rec *store.Record) (*Account, error) {
	a := &Account{ID: v.rows.Mask(kindAccount, rec.ID), CreatedAt: rowkey.Time(rec.ID), State: AccountState(rec.Class)}
	err := v.rows.ReadFields(ctx, rec, a.fields)
	a.Quotas = a.overrides
	a.Quotas.or(&v.opts.Quotas)
	return a, err
}
