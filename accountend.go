package cardvault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/internal/enum"
	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/removal"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// An AccountState says whether an account can be used.
type AccountState uint8

// The states of an account.
const (
	AccountOpen    = AccountState(ledger.Standing)
	AccountFrozen  = AccountState(ledger.Frozen)  // until [Vault.ThawAccount]
	AccountClosing = AccountState(ledger.Closing) // what it had is being erased
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
// tokens at their networks, which has to succeed. Then it looks through the store again: State
// is AccountClosed once nothing was found. The operation account.closed in the audit log, and a
// line in the log, say so.
//
// The record of the account stays, without its name, so that its id is never given again. So do
// its audit records for their time, and the hashes of API keys whose texts the program chose.
// Closing again changes nothing. Any account can be closed, the default one too.
//
// Errors: ErrNotFound.
func (v *Vault) CloseAccount(ctx context.Context) (_ *Account, err error) {
	defer v.doing(ctx, "close account", &err)
	return v.setState(ctx, opCloseAccount, AccountClosing)
}

// setState gives the account another state, unless it is past that.
func (v *Vault) setState(ctx context.Context, op ledger.Operation, to AccountState) (*Account, error) {
	own := v.of(v.rows.ID)
	var changed *Account
	var job *store.Record
	err := own.changeAccount(ctx, op, v.rows.ID, func(a *Account) (func(store.Tx) error, error) {
		changed, job = a, nil
		switch {
		case a.State >= AccountClosing && to < AccountClosing:
			return nil, ErrNotFound
		case a.State >= to && to == AccountClosing, a.State == to:
			return nil, errUnchanged
		}
		a.State, a.Since = to, now()
		if to != AccountClosing {
			return nil, nil
		}
		var err error
		job, err = v.closer.Begin(own.rows)
		return func(tx store.Tx) error { tx.Put(job); return nil }, err
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
	v.jobs.Due(job)
	return changed, nil
}

// errUnchanged ends changeAccount without a write.
var errUnchanged = errors.New("cardvault: account stays as it is")

// newCloser returns what erases the records of accounts that are closed.
func newCloser(v *Vault) *removal.Closer {
	return removal.NewCloser(removal.Closing{
		Eraser:  v.eraser,
		Records: kindClosing,
		// Others keep what they have: the audit log for its time, and the hashes of given API keys so
		// that none of them is valid again.
		Awaited: []store.Kind{kindRemains, kindRelease},
		Kinds: []store.Kind{
			kindWebhook, kindQueue, kindDelivery, kindAPIKey, kindKeyUse, kindSession, kindCredential, kindBackfill, kindRetention,
			kindToken, kindNetworkToken, kindAnswer, kindPaymentData, kindPaymentJWE, kindEvent, kindPast, kindOptOut,
			kindCardArt, kindCardArtPart, kindSubmission, kindIdempotency, kindMistakes, kindPayload, kindMerchant,
		},
		Erase: func(ctx context.Context, r *store.Record) (bool, error) {
			if r.Kind != kindToken {
				return false, nil
			}
			of := v.of(r.Account)
			err := of.deleteToken(ctx, deletion{id: of.rows.Mask(kindToken, r.ID), row: r.ID, op: opDelete})
			if errors.Is(err, ErrNotFound) { // it has lapsed: what is left of it is erased as any record
				return false, nil
			}
			return true, err
		},
		End: func(ctx context.Context, account uuid.UUID, also func(store.Tx) error) error {
			return v.of(account).changeAccount(ctx, opAccountClosed, account, func(a *Account) (func(store.Tx) error, error) {
				*a = Account{ID: a.ID, CreatedAt: a.CreatedAt, State: AccountClosed, Since: now()}
				return also, nil
			})
		},
	})
}

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

const (
	retentionBatch = 256       // tokens that are deleted before the job is stored again
	retentionPause = time.Hour // at most, between two looks at the oldest token
)

// A retention is the job that deletes the tokens of an account at an age. It keeps nothing.
type retention struct{}

func decodeRetention([]byte) (retention, error) { return retention{}, nil }

// newRetention returns the job, due now.
func (v *Vault) newRetention(ctx context.Context) (*store.Record, error) {
	r := &store.Record{Kind: kindRetention, ID: v.rows.ID, Account: v.rows.ID, Due: now(), Version: 1}
	err := v.rows.View(ctx, func(tx store.ReadTx) error {
		former, err := tx.Get(kindRetention, v.rows.ID)
		if errors.Is(err, store.ErrNotFound) {
			r.Version = 1
			return nil
		}
		if err == nil {
			r.Version = former.Version + 1
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, v.rows.SealShown(r, tlv.Pad(nil, 64, 0))
}

// retain deletes the next tokens of the account that are older than its retention, as Delete
// does. It is done in the order of their import.
func (v *Vault) retain(ctx context.Context, j *jobs.Job, _ retention) error {
	a, err := v.Account(ctx)
	if err != nil {
		return err
	}
	if a.TokenRetention == 0 {
		return v.jobs.Finish(ctx, j.Record)
	}

	at := now()
	list, err := v.rows.List(ctx, &store.Query{Kind: kindToken, Account: v.rows.ID, Max: rowkey.Last(at.Add(-a.TokenRetention)), Limit: retentionBatch})
	if list == nil {
		return err
	}
	err = jobs.Each(list.Records, func(r *store.Record) error {
		if ledger.Foreign(r) {
			return nil
		}
		err := v.deleteToken(ctx, deletion{id: v.rows.Mask(kindToken, r.ID), row: r.ID, op: opRetain, reason: receive.ReasonExpired})
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("tokens at the end of their retention are not all deleted: %w", err)
	}

	j.Record.Due = at
	if len(list.Records) < retentionBatch {
		j.Record.Due = at.Add(min(retentionPause, a.TokenRetention))
	}
	return v.jobs.Again(ctx, j.Record, j.Plain)
}
