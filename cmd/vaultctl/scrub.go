package main

import (
	"context"

	"github.com/cardvault/cardvault/internal/operator"
	"github.com/spf13/cobra"
)

func (c *cli) scrub() *cobra.Command {
	return &cobra.Command{
		Use:   "scrub",
		Short: "Overwrite what deleted records have left in the file",
		Long: "Scrub overwrites the free pages of a vault in a folder, and returns when that is durable. A server does the same within a minute, without a command.\n\n" +
			"Backups and snapshots keep what they have. PostgreSQL has VACUUM for it: docs/operating.md says what that leaves.",
		Args: cobra.NoArgs,
		RunE: c.either(func(ctx context.Context, v operator.Vault) error {
			if err := v.Scrub(ctx); err != nil {
				return err
			}
			return c.show(object{"scrubbed": true}, "What was deleted is overwritten in the file.\n")
		}),
	}
}
