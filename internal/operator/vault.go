package operator

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// A Vault has the calls that are safe while a server works. It is open in this process, or in a
// running server.
type Vault interface {
	KeyReport(context.Context) (*cardvault.KeyReport, error)
	Verify(context.Context, *cardvault.VerifyOptions) (*cardvault.VerifyReport, error)
	Backup(context.Context, io.Writer, *cardvault.BackupOptions) (*cardvault.BackupReport, error)
	RotateKeys(context.Context, *cardvault.CallOptions) (*cardvault.Outcome, error)
	RotateSeries(context.Context, cardvault.KeySeries, *cardvault.CallOptions) (*cardvault.Outcome, error)
	Reseal(context.Context) error
	RetireTerm(ctx context.Context, term uint32) error
	Scrub(context.Context) error
	BeginSums(context.Context, *cardvault.BeginSumsOptions) error
	Repair(context.Context, *cardvault.RepairOptions) (*cardvault.RepairReport, error)

	CreateAccount(ctx context.Context, name string, opts *cardvault.AccountOptions) (*cardvault.Account, error)
	UpdateAccount(ctx context.Context, id uuid.UUID, u cardvault.AccountUpdate) (*cardvault.Account, error)
	FreezeAccount(ctx context.Context, id uuid.UUID) (*cardvault.Account, error)
	ThawAccount(ctx context.Context, id uuid.UUID) (*cardvault.Account, error)
	CloseAccount(ctx context.Context, id uuid.UUID) (*cardvault.Account, error)

	// Accounts, Merchants and APIKeys return the items that can be read, oldest first, and an error
	// for the others. The zero id is the first account.
	Accounts(context.Context) ([]*cardvault.Account, error)
	Merchants(ctx context.Context, account uuid.UUID) ([]*cardvault.Merchant, error)
	APIKeys(ctx context.Context, account uuid.UUID) ([]*cardvault.APIKey, error)

	RevokePaymentSecret(ctx context.Context, account, merchant uuid.UUID, keyID string) error
	RevokePreviousPaymentSecret(ctx context.Context, account, merchant uuid.UUID) error
	CreateMerchant(ctx context.Context, account uuid.UUID, name string) (*cardvault.Merchant, error)
	RotatePaymentSecret(ctx context.Context, account, merchant uuid.UUID) (*cardvault.PaymentSecret, error)
	CreateAPIKey(ctx context.Context, account uuid.UUID, label string, scopes []cardvault.Scope, opts *cardvault.APIKeyOptions) (*cardvault.APIKey, error)
	DeleteAPIKey(ctx context.Context, account, id uuid.UUID) error

	AuditPublicKeys(context.Context) ([]ed25519.PublicKey, error)
	ExportAudit(context.Context, io.Writer, AuditLog) error
}

// An AuditLog names an audit log, between two times if they are set.
type AuditLog struct {
	Account  uuid.UUID // zero: the first account
	Whole    bool      // the log of the whole vault instead
	From, To time.Time
}

var (
	_ Vault = Local{}
	_ Vault = (*Client)(nil)
)

// A Local vault is open in this process.
type Local struct{ *cardvault.Vault }

// of returns a handle on an account. The zero id is the first account.
func (l Local) of(account uuid.UUID) *cardvault.Vault {
	if account == uuid.Nil {
		return l.Vault
	}
	return l.In(account)
}

// FreezeAccount implements Vault.
func (l Local) FreezeAccount(ctx context.Context, id uuid.UUID) (*cardvault.Account, error) {
	return l.of(id).FreezeAccount(ctx)
}

// ThawAccount implements Vault.
func (l Local) ThawAccount(ctx context.Context, id uuid.UUID) (*cardvault.Account, error) {
	return l.of(id).ThawAccount(ctx)
}

// CloseAccount implements Vault.
func (l Local) CloseAccount(ctx context.Context, id uuid.UUID) (*cardvault.Account, error) {
	return l.of(id).CloseAccount(ctx)
}

// Accounts implements Vault.
func (l Local) Accounts(ctx context.Context) ([]*cardvault.Account, error) {
	return Collect(l.AllAccounts(ctx, &cardvault.ListOptions{Ascending: true}))
}

// UpdateAccount implements Vault.
func (l Local) UpdateAccount(ctx context.Context, id uuid.UUID, u cardvault.AccountUpdate) (*cardvault.Account, error) {
	return l.of(id).UpdateAccount(ctx, u)
}

// Merchants implements Vault.
func (l Local) Merchants(ctx context.Context, account uuid.UUID) ([]*cardvault.Merchant, error) {
	return Collect(l.of(account).AllMerchants(ctx, &cardvault.ListOptions{Ascending: true}))
}

// CreateMerchant implements Vault.
func (l Local) CreateMerchant(ctx context.Context, account uuid.UUID, name string) (*cardvault.Merchant, error) {
	return l.of(account).CreateMerchant(ctx, name, nil)
}

// RotatePaymentSecret implements Vault.
func (l Local) RotatePaymentSecret(ctx context.Context, account, merchant uuid.UUID) (*cardvault.PaymentSecret, error) {
	return l.of(account).RotatePaymentSecret(ctx, merchant, nil)
}

// RevokePaymentSecret implements Vault.
func (l Local) RevokePaymentSecret(ctx context.Context, account, merchant uuid.UUID, keyID string) error {
	return l.of(account).RevokePaymentSecret(ctx, merchant, keyID)
}

// RevokePreviousPaymentSecret implements Vault.
func (l Local) RevokePreviousPaymentSecret(ctx context.Context, account, merchant uuid.UUID) error {
	return l.of(account).RevokePreviousPaymentSecret(ctx, merchant)
}

// APIKeys implements Vault.
func (l Local) APIKeys(ctx context.Context, account uuid.UUID) ([]*cardvault.APIKey, error) {
	return Collect(l.of(account).AllAPIKeys(ctx, &cardvault.ListOptions{Ascending: true}))
}

// CreateAPIKey implements Vault.
func (l Local) CreateAPIKey(ctx context.Context, account uuid.UUID, label string, scopes []cardvault.Scope, opts *cardvault.APIKeyOptions) (*cardvault.APIKey, error) {
	return l.of(account).CreateAPIKey(ctx, label, scopes, opts)
}

// DeleteAPIKey implements Vault.
func (l Local) DeleteAPIKey(ctx context.Context, account, id uuid.UUID) error {
	return l.of(account).DeleteAPIKey(ctx, id)
}

// AuditPublicKeys implements Vault.
func (l Local) AuditPublicKeys(context.Context) ([]ed25519.PublicKey, error) {
	return l.Vault.AuditPublicKeys(), nil
}

// ExportAudit implements Vault.
func (l Local) ExportAudit(ctx context.Context, w io.Writer, log AuditLog) error {
	of := l.of(log.Account)
	if log.Whole {
		of = l.In(uuid.Nil)
	}
	return of.ExportAudit(ctx, w, log.From, log.To)
}

// Collect returns the items of a list that can be read, and an error for the others.
func Collect[T any](list iter.Seq2[T, error]) (all []T, err error) {
	for item, problem := range list {
		if problem != nil {
			err = errors.Join(err, problem)
			continue
		}
		all = append(all, item)
	}
	return all, err
}
