package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/spf13/cobra"
)

// either returns a command for the vault of a running server, which needs no key, or else opens the
// vault. Anchor and ledger are the server's then: flags for others are refused, since they would have
// no effect.
func (c *cli) either(do func(context.Context, operator.Vault) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		if err := c.checkPlace(); err != nil {
			return err
		}

		if c.vault != "" {
			server, err := operator.Dial(cmd.Context(), c.vault)
			if err == nil {
				defer server.Close()
				for _, flag := range []string{"anchor", "accept-rollback", "accept-undone", "ledger"} {
					if cmd.Flags().Changed(flag) {
						return misuseError{fmt.Errorf("a server has the vault open, with an anchor and a ledger of its own if it has any: leave --%s out, or stop the server", flag)}
					}
				}
				return do(cmd.Context(), server)
			}
			if !errors.Is(err, operator.ErrNoServer) {
				return err
			}
		}
		return c.with(func(ctx context.Context, v *cardvault.Vault) error { return do(ctx, operator.Local{Vault: v}) })(cmd, args)
	}
}
