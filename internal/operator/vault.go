package operator

import (
	"context"
	"errors"
	"io"
	"iter"

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

	FreezeAccount(ctx context.Context, id uuid.UUID) (*cardvault.Account, error)
	ThawAccount(ctx context.Context, id uuid.UUID) (*cardvault.Account, error)
	CloseAccount(ctx context.Context, id uuid.UUID) (*cardvault.Account, error)

	// Accounts and APIKeys return the items that can be read, oldest first, and an error for the
	// others. The zero id is the first account.
	Accounts(context.Context) ([]*cardvault.Account, error)
	APIKeys(ctx context.Context, account uuid.UUID) ([]*cardvault.APIKey, error)
	DeleteAPIKey(ctx context.Context, account, id uuid.UUID) error
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

// APIKeys implements Vault.
func (l Local) APIKeys(ctx context.Context, account uuid.UUID) ([]*cardvault.APIKey, error) {
	return Collect(l.of(account).AllAPIKeys(ctx, &cardvault.ListOptions{Ascending: true}))
}

// DeleteAPIKey implements Vault.
func (l Local) DeleteAPIKey(ctx context.Context, account, id uuid.UUID) error {
	return l.of(account).DeleteAPIKey(ctx, id)
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
