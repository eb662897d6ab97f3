// Vaultctl is the operator's tool for a vault: it makes vaults and key files, rotates and
// reports keys, looks for damage, backs up, restores and moves, changes approvals and API keys, and
// verifies audit logs. docs/vaultctl.md is its manual.
//
//	vaultctl --vault DIR --key FILE COMMAND
//	vaultctl --store postgres://HOST/DATABASE --key FILE COMMAND
//	vaultctl --key FILE move --from PLACE --to PLACE
//
// It never takes a secret as an argument, and prints one only when it has made it, once.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Exit statuses.
const (
	failed = 1
	misuse = 2
	found  = 3 // damage, or what a report looks for
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run runs a command line, and returns the exit status.
func run(args []string, in *os.File, out, errs io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	return runUntil(ctx, args, in, out, errs)
}

// runUntil runs a command line until ctx ends, which stands for a signal.
func runUntil(ctx context.Context, args []string, in *os.File, out, errs io.Writer) int {
	c := &cli{in: in, out: out, errs: errs}
	root := c.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}

	if ctx.Err() != nil {
		err = fmt.Errorf("stopped by a signal: %w", err)
	}
	fmt.Fprintln(errs, "vaultctl:", err)
	if c.json && !c.shown {
		_ = c.show(object{"error": err.Error()}, "") // the status says it too
	}
	return c.status(err)
}

// status returns the exit status for an error.
func (c *cli) status(err error) int {
	_, misused := errors.AsType[misuseError](err)
	_, finds := errors.AsType[finding](err)
	switch {
	case misused || !c.began || len(cardvault.FieldErrors(err)) > 0:
		return misuse
	case finds || errors.Is(err, cardvault.ErrDamaged) || errors.Is(err, store.ErrDamaged):
		return found
	}
	return failed
}

// A misuseError is the error of a command line that nothing was done for.
type misuseError struct{ error }

// A finding is what a command was to find, such as an overdue key.
type finding struct{ error }

// A cli is one run of the program.
type cli struct {
	in        *os.File
	out, errs io.Writer

	vault, store, schema string
	key, passphraseFile  string
	anchor, rollback     string // the folder; what may be accepted
	undone               bool   // so may the loss of the last transaction of a file
	ledger               string // the folder
	json, verbose        bool
	cryptoPeriod         time.Duration
	thawed               uuid.UUID // for Options.Thaw
	auditFailure         cardvault.AuditFailure

	began   bool // the command line was right
	shown   bool // a result was written
	damaged atomic.Int64
}

// root returns the tree of commands.
func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "vaultctl",
		Short: "Operate a vault of payment cards",
		Long: "Vaultctl operates a vault: its keys, backups, accounts, API keys and audit log.\n\n" +
			"The vault is a folder (--vault) or a PostgreSQL database (--store). On a folder, the server must be stopped first, unless it offers its socket to the command.\n\n" +
			"Exit status: 0 done, 1 failed, 2 wrong usage, 3 damage or a finding.",
		SilenceUsage:     true,
		SilenceErrors:    true,
		PersistentPreRun: func(*cobra.Command, []string) { c.began = true },
	}
	f := root.PersistentFlags()
	f.StringVar(&c.vault, "vault", "", "`folder` of the vault")
	f.StringVar(&c.store, "store", "", "`URL` of the vault's PostgreSQL database, without a password: PGPASSWORD and ~/.pgpass are read")
	f.StringVar(&c.schema, "schema", "", "`name` of the schema in the database (default \"cardvault\")")
	f.StringVar(&c.key, "key", "", "key `file` of the vault, outside of its folder")
	f.StringVar(&c.passphraseFile, "passphrase-file", "", "`file` whose first line is the passphrase of --key, such as /dev/fd/3; without it, a sealed key asks at the terminal")
	f.StringVar(&c.anchor, "anchor", "", "`folder` of the vault's anchor, by which a vault that was rolled back is refused")
	f.StringVar(&c.rollback, "accept-rollback", "", "`ID` of a rollback, as the error names it: the vault is opened all the same")
	f.BoolVar(&c.undone, "accept-undone", false, "open a file although the head of its last transaction may be damaged, so that this one is undone")
	f.StringVar(&c.ledger, "ledger", "", "`folder` of the vault's ledger, which keeps the audit log for restores")
	f.BoolVar(&c.json, "json", false, "print one JSON object")
	f.BoolVarP(&c.verbose, "verbose", "v", false, "log what the vault does, not only its errors")

	root.AddCommand(c.initVault(), c.keygen(), c.passphrase(), c.rotate(), c.reseal(), c.retire(), c.report(), c.verify(), c.repair(), c.changeKey(),
		c.backup(), c.restore(), c.thaw(), c.move(), c.scrub(), c.sums(), c.accounts(), c.approve(), c.freeze(), c.unfreeze(), c.closeAccount(), c.merchants(), c.apiKeys(), c.audit(), c.man())
	countArguments(root)
	return root
}

// countArguments has the commands below cmd that have none below them refuse a wrong number of
// arguments by how they are used. The arguments are not repeated: one may be a URL with a password.
func countArguments(cmd *cobra.Command) {
	for _, below := range cmd.Commands() {
		countArguments(below)
	}
	if cmd.HasSubCommands() {
		return
	}
	count := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if count(cmd, args) != nil {
			return fmt.Errorf("wrong number of arguments: the usage is %s, where --vault or --store names the vault", cmd.UseLine())
		}
		return nil
	}
}

// group returns a command that has only others below it.
func group(use, short string, below ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return misuseError{fmt.Errorf("%s needs one of its commands: see %[1]s --help", cmd.CommandPath())}
	}}
	g.AddCommand(below...)
	return g
}

// An object is the result of a command with --json.
type object = map[string]any

// show writes the result of a command, as an object or as text.
func (c *cli) show(result any, text string) (err error) {
	c.shown = true
	if c.json {
		err = json.NewEncoder(c.out).Encode(result)
	} else {
		_, err = io.WriteString(c.out, text)
	}
	if err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

// note writes a line for people beside the result.
func (c *cli) note(format string, args ...any) {
	if !c.json {
		fmt.Fprintf(c.errs, format+"\n", args...)
	}
}

// table returns rows as text, in columns.
func table(rows ...[]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a Builder takes all
	return b.String()
}

// date returns a time as tables show it.
func date(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.DateOnly + " " + time.TimeOnly + "Z")
}

// instant returns a time for JSON, null if it is zero.
func instant(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// log returns the log of a vault. It counts the errors that report damage.
func (c *cli) log() *slog.Logger {
	level := slog.LevelError
	if c.verbose {
		level = slog.LevelInfo
	}
	return slog.New(&damageHandler{slog.NewTextHandler(c.errs, &slog.HandlerOptions{Level: level}), &c.damaged})
}

// A damageHandler counts the lines that have an error of damage.
type damageHandler struct {
	slog.Handler
	count *atomic.Int64
}

func (h *damageHandler) Handle(ctx context.Context, r slog.Record) error {
	for a := range r.Attrs {
		if err, ok := a.Value.Any().(error); ok && errors.Is(err, cardvault.ErrDamaged) {
			h.count.Add(1)
		}
	}
	return h.Handler.Handle(ctx, r)
}

// man returns the command that writes manual pages.
func (c *cli) man() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write manual pages",
		Long:  "Man writes a manual page for each command into a folder, which it makes.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // the same pages each time
			header := &doc.GenManHeader{Section: "1", Source: "Cardvault", Manual: "Cardvault", Date: new(time.Time)}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return err
			}
			return c.show(object{"folder": args[0]}, "")
		},
	}
}
