package main

import (
	"context"
	"errors"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/spf13/cobra"
)

func (c *cli) sums() *cobra.Command {
	var opts cardvault.BeginSumsOptions
	cmd := &cobra.Command{
		Use:   "sums",
		Short: "Have the vault keep sums of its records, by which verify finds lost ones",
		Long: "Sums reads all records and adds them up, by account and kind, under a key of the vault. From then on each write changes the sums too, and verify compares them with the records: it finds records that were lost, added behind the vault, or put back as they were before.\n\n" +
			"Run verify first: sums accept the records as they are. Another sums accepts them again, after a loss was looked into. A program of a version without sums cannot open the vault any more.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.Rate < 0 {
				return misuseError{errors.New("--rate must not be negative")}
			}

			return c.either(func(ctx context.Context, v operator.Vault) error {
				if err := v.BeginSums(ctx, &opts); err != nil {
					return err
				}
				return c.show(object{"sums": true}, "The vault keeps sums of its records.\n")
			})(cmd, args)
		},
	}

	cmd.Flags().IntVar(&opts.Rate, "rate", 0, "most records a second (default: no limit)")
	return cmd
}
