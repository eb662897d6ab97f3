package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/spf13/cobra"
)

func (c *cli) repair() *cobra.Command {
	var opts cardvault.RepairOptions
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Make damaged indexes anew from the records",
		Long: "Repair looks for damage as verify does. If an index does not agree with the records, it makes the indexes anew from these: lists, totals, due times and lookups. It changes no record.\n\n" +
			"Damaged records stay as they are and are named, with the remedy. The exit status is 3 then, and also if an index entry led to no record: that record may have been lost.\n\n" +
			"If it is interrupted, it prints a report and a position. With --position another repair goes on there, within 24 hours: what lies before is not looked at again. Nothing is lost if it is killed.\n\n" +
			"Back up first if the vault can be backed up. The audit log has the repair, unless it is damaged too.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.Rate < 0 || opts.Most < 1 {
				return misuseError{errors.New("--rate must not be negative, and --most must be at least 1")}
			}
			c.auditFailure = cardvault.AuditContinue // its own indexes may be damaged
			return c.either(func(ctx context.Context, v operator.Vault) error {
				p := c.progress("", 0)
				opts.Progress = p.repaired
				r, err := v.Repair(ctx, &opts)
				p.end()
				switch {
				case len(cardvault.FieldErrors(err)) > 0:
					return misuseError{errors.New("--position must be a position that repair has printed for this vault in the last 24 hours: without it, repair begins anew")}
				case r == nil:
					return err
				}
				return errors.Join(c.show(repairObject(r), repairText(r)), err, damageLeft(r))
			})(cmd, args)
		},
	}

	f := cmd.Flags()
	f.StringVar(&opts.Position, "position", "", "`position` of a repair that has ended early: go on there")
	f.IntVar(&opts.Rate, "rate", 0, "most records and index entries a second (default: no limit)")
	f.IntVar(&opts.Most, "most", 100, "findings to list of each problem; all are counted")
	return cmd
}

// damageLeft returns the finding of a report, nil if the vault is whole now.
func damageLeft(r *cardvault.RepairReport) error {
	var counts []string
	for _, p := range r.Left {
		counts = append(counts, fmt.Sprintf("%d %s", p.Count, p.Kind))
	}
	if counts != nil {
		return finding{fmt.Errorf("damaged still: %s", strings.Join(counts, ", "))}
	}
	for _, p := range r.Found {
		if p.Kind == cardvault.ProblemIndexStray {
			return finding{fmt.Errorf("%d index entries have led to no record: look for the ids in a backup", p.Count)}
		}
	}
	return nil
}

func repairObject(r *cardvault.RepairReport) object {
	return object{"records": r.Records, "found": problemObjects(r.Found), "left": problemObjects(r.Left), "position": r.Position, "mended": r.Mended}
}

func repairText(r *cardvault.RepairReport) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d records were read.\n", r.Records)
	switch {
	case r.Position != "":
		fmt.Fprintf(&b, "Repair has ended early. To repair the rest: --position %s\n", r.Position)
	case len(r.Found)+len(r.Left) == 0:
		b.WriteString("Nothing had to be repaired.\n")
	case r.Mended:
		b.WriteString("The indexes agree with the records.\n")
	}

	for _, p := range r.Found {
		if len(p.Findings) == 0 || p.Findings[0].Index == "" {
			continue // it is left, and shown there
		}
		fmt.Fprintf(&b, "\nfound %s: %d\n%s", p.Kind, p.Count, findingsText(p))
		if p.Kind == cardvault.ProblemIndexStray {
			fmt.Fprintf(&b, "remedy: %s\n", p.Remedy)
		}
	}
	for _, p := range r.Left {
		b.WriteString(problemText(p))
	}
	return b.String()
}
