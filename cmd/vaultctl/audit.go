package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/spf13/cobra"
)

func (c *cli) audit() *cobra.Command {
	return group("audit", "Export and verify the audit log", c.auditExport(), c.auditKeys(), c.auditVerify())
}

func (c *cli) auditExport() *cobra.Command {
	var account, file string
	var whole, all bool
	var from, to time.Time
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the audit log of an account to a file",
		Long:  "Export writes the audit log of an account as lines of JSON, to a new file or to standard output.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := accountOf(account)
			switch {
			case err != nil:
				return err
			case whole && account != "" || all && (whole || account != ""):
				return misuseError{errors.New("--whole, --account and --all exclude each other")}
			case all && file == "-":
				return misuseError{errors.New("name a folder for --all: --out DIR")}
			}

			log := operator.AuditLog{Account: id, Whole: whole, From: from, To: to}
			return c.either(func(ctx context.Context, v operator.Vault) error {
				if all {
					return c.exportAll(ctx, v, file, log)
				}
				export := func(w io.Writer) error { return v.ExportAudit(ctx, w, log) }
				if file == "-" {
					c.shown = true
					return export(c.out)
				}
				if err := newFile(file, export); err != nil {
					return err
				}
				return c.show(object{"file": file}, "")
			})(cmd, args)
		},
	}

	f := cmd.Flags()
	f.StringVar(&account, "account", "", "`id` of the account (default: the first account)")
	f.BoolVar(&whole, "whole", false, "the log of the whole vault and of unknown callers instead")
	f.BoolVar(&all, "all", false, "the logs of all accounts, each in a file of the folder --out, which is made: a ledger for restore")
	f.TimeVar(&from, "from", from, []string{time.RFC3339, time.DateOnly}, "leave out what was recorded before")
	f.TimeVar(&to, "to", to, []string{time.RFC3339, time.DateOnly}, "leave out what was recorded after")
	f.StringVar(&file, "out", "-", "`file` to make; - is standard output")
	return cmd
}

// exportAll writes the log of each account into a new folder.
func (c *cli) exportAll(ctx context.Context, v operator.Vault, dir string, log operator.AuditLog) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	accounts, err := v.Accounts(ctx)
	if err != nil {
		return err
	}
	for _, a := range accounts {
		log.Account = a.ID
		err := newFile(filepath.Join(dir, a.ID.String()+".jsonl"), func(w io.Writer) error { return v.ExportAudit(ctx, w, log) })
		if err != nil {
			return err
		}
	}
	return c.show(object{"folder": dir, "accounts": len(accounts)}, "")
}

// newFile makes a file, whole and durable or not at all. It never replaces one.
func newFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil || runtime.GOOS == "windows" { // where a folder cannot be synced
		return err
	}

	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (c *cli) auditKeys() *cobra.Command {
	return &cobra.Command{
		Use:   "public-keys",
		Short: "Print the keys that verify the audit log",
		Long:  "Public-keys prints the keys that verify the checkpoints of the vault, the present one last. Keep them apart from the vault, for audit verify.",
		Args:  cobra.NoArgs,
		RunE: c.either(func(ctx context.Context, v operator.Vault) error {
			all, err := v.AuditPublicKeys(ctx)
			if err != nil {
				return err
			}
			var keys []string
			for _, k := range all {
				keys = append(keys, hex.EncodeToString(k))
			}
			return c.show(object{"public_keys": keys}, strings.Join(keys, "\n")+"\n")
		}),
	}
}

func (c *cli) auditVerify() *cobra.Command {
	var proof proofFlags
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Verify an export, without the vault",
		Long: "Verify reads an export of the audit log and verifies it, without vault and key. FILE may be - for standard input.\n\n" +
			"It names the first record that was edited, removed, swapped or added. The exit status is 3 then.\n\n" +
			"A break is a place where the vault had lost the end of its log through damage, and says so. It is a fault too, until --known-break names it.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts, err := proof.read()
			if err != nil {
				return err
			}
			return c.verifyExport(cmd.Context(), args[0], opts)
		},
	}

	proof.add(cmd, "; without any, the export is compared with itself")
	return cmd
}

// proofFlags name what exports are compared with.
type proofFlags struct{ keys, kept, known []string }

func (p *proofFlags) add(cmd *cobra.Command, more string) {
	cmd.Flags().StringArrayVar(&p.keys, "public-key", nil, "`keys` of the vault, as audit public-keys prints them"+more)
	cmd.Flags().StringArrayVar(&p.kept, "checkpoints", nil, "`path` of checkpoints that a sink has kept: a file of JSON objects, or a folder of such files")
	cmd.Flags().StringArrayVar(&p.known, "known-break", nil, "`break` that was looked into, as audit verify names it, each with a flag")
}

var errPublicKey = misuseError{errors.New("--public-key must be keys of 64 hexadecimal digits, as audit public-keys prints them")}

func (p *proofFlags) read() (*audit.VerifyOptions, error) {
	opts := new(audit.VerifyOptions)
	for _, text := range strings.Fields(strings.Join(p.keys, " ")) {
		key, err := hex.DecodeString(text)
		if err != nil || len(key) != ed25519.PublicKeySize {
			return nil, errPublicKey
		}
		opts.PublicKeys = append(opts.PublicKeys, key)
	}
	if len(p.keys) > 0 && len(opts.PublicKeys) == 0 {
		return nil, errPublicKey
	}

	for _, path := range p.kept {
		more, err := readCheckpoints(path)
		if err != nil {
			return nil, err
		}
		opts.Kept = append(opts.Kept, more...)
	}
	for _, text := range p.known {
		gap, err := readGap(text)
		if err != nil {
			return nil, err
		}
		opts.Known = append(opts.Known, gap)
	}
	return opts, nil
}

// gapText returns the text by which --known-break names a break.
func gapText(g audit.Gap) string { return fmt.Sprintf("%x:%d", g.Hash, g.Missing) }

func readGap(text string) (g audit.Gap, err error) {
	digits, missing, _ := strings.Cut(text, ":")
	hash, err := hex.DecodeString(digits)
	if err == nil {
		g.Missing, err = strconv.ParseUint(missing, 10, 64)
	}
	if err != nil || len(hash) != len(g.Hash) {
		return g, misuseError{errors.New("--known-break must be as audit verify prints it, such as 3f…:0")}
	}
	copy(g.Hash[:], hash)
	return g, nil
}

// verifyExport verifies an export, and shows what is proved.
func (c *cli) verifyExport(ctx context.Context, path string, opts *audit.VerifyOptions) error {
	in := c.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	opts.Each = func(*audit.Record) error { return ctx.Err() }
	report, err := audit.Verify(in, opts)

	fault, faulty := errors.AsType[*audit.VerifyError](err)
	if err != nil && !faulty {
		return err
	}
	result := object{
		"valid": err == nil, "vault_id": report.VaultID, "account_id": report.AccountID,
		"first_checkpoint": report.First, "records": report.Records, "void": report.Void, "open": report.Open, "compared_with_itself": opts.PublicKeys == nil,
	}
	var gaps []object
	for _, g := range report.Gaps {
		gaps = append(gaps, object{"checkpoint": g.Checkpoint, "break": gapText(g), "at": g.At, "missing_checkpoints": g.Missing, "unproved_records": g.Records})
		c.note("Break at checkpoint %d, of %s: %d checkpoints are missing before it, and %d stored records have none. --known-break %s accepts it.", g.Checkpoint, date(g.At), g.Missing, g.Records, gapText(g))
	}
	if gaps != nil {
		result["breaks"] = gaps
	}
	if faulty {
		result["fault"] = object{
			"kind": fault.Fault.String(), "line": fault.Line, "checkpoint": fault.Checkpoint, "lane": fault.Lane, "sequence": fault.Sequence, "message": fault.Error(),
		}
		return errors.Join(c.show(result, ""), finding{err})
	}

	state := "whole"
	if gaps != nil {
		state = "whole except for known breaks"
	}
	text := fmt.Sprintf("The log of account %s is %s: %d records, and %d without a checkpoint yet.\n", report.AccountID, state, report.Records, report.Open)
	if report.Last != nil {
		text += fmt.Sprintf("Its last checkpoint is %d, of %s.\n", report.Last.Number, date(report.Last.At))
	}
	if opts.PublicKeys == nil {
		c.note("Without --public-key this proves only that the export agrees with itself.")
	}
	return c.show(result, text)
}

// readCheckpoints returns the checkpoints in a file, or in the files of a folder.
func readCheckpoints(path string) (all []*audit.Checkpoint, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		files, err := f.Readdirnames(-1)
		for _, name := range files {
			if strings.HasPrefix(name, ".") { // not whole yet
				continue
			}
			more, err := readCheckpoints(filepath.Join(path, name))
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
		}
		return all, err
	}

	for from := json.NewDecoder(bufio.NewReader(f)); ; {
		one := new(audit.Checkpoint)
		switch err := from.Decode(one); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("%s: checkpoint %d cannot be read", path, len(all)+1)
		}
		all = append(all, one)
	}
}
