package main

import (
	"context"
	"errors"
	"io"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// An operated vault is open in this process, or in a running server.
type operated interface {
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
	Accounts(context.Context) ([]*cardvault.Account, error)
	APIKeys(ctx context.Context, account uuid.UUID) ([]*cardvault.APIKey, error)
	DeleteAPIKey(ctx context.Context, account, id uuid.UUID) error
}

var (
	_ operated = local{}
	_ operated = (*operator.Client)(nil)
)

// A local vault is open in this process.
type local struct{ *cardvault.Vault }

// of returns a handle on an account. The zero id is the first account.
func (l local) of(account uuid.UUID) *cardvault.Vault {
	if account == uuid.Nil {
		return l.Vault
	}
	return l.In(account)
}

func (l local) FreezeAccount(ctx context.Context, id uuid.UUID) (*cardvault.Account, error) {
	return l.of(id).FreezeAccount(ctx)
}

func (l local) ThawAccount(ctx context.Context, id uuid.UUID) (*cardvault.Account, error) {
	return l.of(id).ThawAccount(ctx)
}

func (l local) CloseAccount(ctx context.Context, id uuid.UUID) (*cardvault.Account, error) {
	return l.of(id).CloseAccount(ctx)
}

func (l local) Accounts(ctx context.Context) ([]*cardvault.Account, error) {
	return collect(l.AllAccounts(ctx, &cardvault.ListOptions{Ascending: true}))
}

func (l local) APIKeys(ctx context.Context, account uuid.UUID) ([]*cardvault.APIKey, error) {
	return collect(l.of(account).AllAPIKeys(ctx, &cardvault.ListOptions{Ascending: true}))
}

func (l local) DeleteAPIKey(ctx context.Context, account, id uuid.UUID) error {
	return l.of(account).DeleteAPIKey(ctx, id)
}

// either returns a command for the vault of a running server, which needs no key, or else opens the
// vault.
func (c *cli) either(do func(context.Context, operated) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		if err := c.checkPlace(); err != nil {
			return err
		}
		if c.vault != "" {
			server, err := operator.Dial(cmd.Context(), c.vault)
			if err == nil {
				defer server.Close()
				return do(cmd.Context(), server)
			}
			if !errors.Is(err, operator.ErrNoServer) {
				return err
			}
		}
		return c.with(func(ctx context.Context, v *cardvault.Vault) error { return do(ctx, local{v}) })(cmd, args)
	}
}
