package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

func (c *cli) verify() *cobra.Command {
	var opts cardvault.VerifyOptions
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Look for damage in all records and indexes",
		Long: "Verify reads every record of the vault, opens its sealed parts, and looks whether its account and the record to which it belongs exist. " +
			"On a folder it compares the indexes with the records too. It changes nothing.\n\n" +
			"Each damaged record is named, with the calls that fail, the parts that still work, and the remedy. The exit status is 3 then.\n\n" +
			"If it is interrupted, it prints a report of the records so far, and a position. With --position another verify goes on there, and reports the rest alone.\n\n" +
			"Without sums it does not see a record that was lost with all of its index entries, or a former version of a record that was put back: see the command sums. The audit log has a command of its own: audit verify.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.Rate < 0 || opts.Most < 1 {
				return misuseError{errors.New("--rate must not be negative, and --most must be at least 1")}
			}
			return c.either(func(ctx context.Context, v operator.Vault) error {
				p := c.progress("", 0)
				opts.Progress = p.verified
				r, err := v.Verify(ctx, &opts)
				p.end()
				switch {
				case len(cardvault.FieldErrors(err)) > 0:
					return misuseError{errors.New("--position must be one that verify has printed")}
				case r == nil:
					return err
				}
				return errors.Join(c.show(verifyObject(r), verifyText(r, opts.Position != "")), err, damageOf(r))
			})(cmd, args)
		},
	}

	f := cmd.Flags()
	f.StringVar(&opts.Position, "position", "", "`position` of a verify that has ended early: go on there")
	f.IntVar(&opts.Rate, "rate", 0, "most records and index entries a second (default: no limit)")
	f.IntVar(&opts.Most, "most", 100, "findings to list of each problem; all are counted")
	return cmd
}

// damageOf returns the finding of a report, nil if no record is damaged and all was compared.
func damageOf(r *cardvault.VerifyReport) error {
	var counts []string
	for _, p := range r.Problems {
		counts = append(counts, fmt.Sprintf("%d %s", p.Count, p.Kind))
	}
	switch {
	case counts == nil && r.SumsMissed:
		return errors.New("the records were not compared with their sums: they have changed too fast, or in another process. Verify once more")
	case counts == nil:
		return nil
	}
	return finding{fmt.Errorf("damaged: %s", strings.Join(counts, ", "))}
}

func verifyObject(r *cardvault.VerifyReport) object {
	return object{"records": r.Records, "problems": problemObjects(r.Problems), "position": r.Position, "indexes_compared": r.Indexes, "sums_compared": r.Sums, "sums_missed": r.SumsMissed}
}

func problemObjects(all []cardvault.Problem) []object {
	problems := []object{}
	for _, p := range all {
		findings := []object{}
		for _, f := range p.Findings {
			findings = append(findings, object{"kind": f.Kind, "id": idText(f.ID), "account_id": idText(f.AccountID), "index": f.Index, "surplus": f.Surplus})
		}
		problems = append(problems, object{"kind": p.Kind, "count": p.Count, "findings": findings, "hurt": p.Hurt, "safe": p.Safe, "remedy": p.Remedy})
	}
	return problems
}

// verifyText returns a report as text. A resumed verification knows only the rest of the vault.
func verifyText(r *cardvault.VerifyReport, resumed bool) string {
	var b strings.Builder
	records := fmt.Sprintf("%d records", r.Records)
	if r.Sums {
		records += ", and their sums"
	}
	switch {
	case r.Position != "":
		fmt.Fprintf(&b, "Verify has ended early: %d records were read.\n", r.Records)
	case len(r.Problems) > 0:
		fmt.Fprintf(&b, "%d records were read.\n", r.Records)
	case r.SumsMissed:
		fmt.Fprintf(&b, "No damage in %s. They were not compared with their sums.\n", records)
	case resumed:
		fmt.Fprintf(&b, "The rest of the vault is whole: %s.\n", records)
	default:
		fmt.Fprintf(&b, "The vault is whole: %s.\n", records)
	}

	switch {
	case r.Position != "":
		fmt.Fprintf(&b, "To verify the rest: --position %s\n", r.Position)
	case !r.Indexes:
		b.WriteString("The indexes were not compared with the records: the store cannot do that.\n")
	}

	for _, p := range r.Problems {
		b.WriteString(problemText(p))
	}
	return b.String()
}

func problemText(p cardvault.Problem) string {
	return fmt.Sprintf("\n%s: %d\nfails: %s\nworks: %s\nremedy: %s\n%s", p.Kind, p.Count, p.Hurt, p.Safe, p.Remedy, findingsText(p))
}

func findingsText(p cardvault.Problem) string {
	sums := p.Kind == cardvault.ProblemSum
	rows := [][]string{{"RECORD", "ID", "ACCOUNT", "INDEX"}}
	if sums {
		rows = [][]string{{"RECORD", "ACCOUNT", "SURPLUS"}}
	}
	for _, f := range p.Findings {
		account := cmp.Or(idText(f.AccountID), "-")
		row := []string{f.Kind, cmp.Or(idText(f.ID), "-"), account, cmp.Or(string(f.Index), "-")}
		if sums {
			row = []string{f.Kind, account, fmt.Sprintf("%+d", f.Surplus)}
		}
		rows = append(rows, row)
	}

	text := table(rows...)
	if more := p.Count - int64(len(p.Findings)); more > 0 {
		text += fmt.Sprintf("and %d more: see --most\n", more)
	}
	return text
}

// idText returns an id as text, "" for none.
func idText(id uuid.UUID) string {
	if id == uuid.Nil {
		return ""
	}
	return id.String()
}
