package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/keyfile"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/spf13/cobra"
)

// initVault returns the command init, a name that Go keeps for itself.
func (c *cli) initVault() *cobra.Command {
	var mode cardvault.Mode
	var sealed bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a vault, and its key file if that is missing",
		Long: "Init makes a vault, and its key file if that is missing. It changes nothing where a vault is.\n\n" +
			"On PostgreSQL it makes the tables too, which takes a role that may create a schema.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx := c.actor(cmd.Context())
			if err := errors.Join(c.checkPlace(), c.checkKey(c.key)); err != nil {
				return err
			}
			s, err := c.openStore(ctx, true)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()

			switch none, err := empty(ctx, s); {
			case err != nil:
				return err
			case !none:
				return errors.New("there is a vault already: it stays as it is")
			}

			keys, err := c.firstKeys(ctx, sealed)
			if err != nil {
				return err
			}
			v, err := c.openVault(ctx, s, keys, mode)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, v.Close()) }()

			a, err := v.Account(ctx)
			if err != nil {
				return err
			}
			c.note("The vault was made. Copy %s to a place apart from its backups: without the key, every card is lost.", c.key)
			return c.show(object{"mode": mode, "account_id": a.ID, "key_file": c.key}, fmt.Sprintf("account %s\n", a.ID))
		},
	}
	cmd.Flags().TextVar(&mode, "mode", cardvault.Live, "live or sandbox, for good")
	sealFlag(cmd, &sealed)
	return cmd
}

// firstKeys returns the keyring of a new vault. It makes the key file if that is missing.
func (c *cli) firstKeys(ctx context.Context, sealed bool) (*cardvault.Keyring, error) {
	key, err := c.makeKey(ctx, sealed)
	if errors.Is(err, fs.ErrExist) {
		return c.keyring(ctx, c.key, c.passphraseFile)
	}
	if err != nil {
		return nil, err
	}
	return cardvault.WrappedBy(key), nil
}

// sealFlag adds the flag that seals a new key file.
func sealFlag(cmd *cobra.Command, sealed *bool) {
	cmd.Flags().BoolVar(sealed, "passphrase", false, "ask for the passphrase of a new key file; --passphrase-file sets it too")
}

func (c *cli) keygen() *cobra.Command {
	var sealed bool
	cmd := &cobra.Command{
		Use:   "keygen",
		Short: "Make a key file",
		Long:  "Keygen makes the key file of --key, with a random key. It never replaces a file.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.checkKey(c.key); err != nil {
				return err
			}
			key, err := c.makeKey(cmd.Context(), sealed)
			if err != nil {
				return err
			}
			return c.show(object{"key_file": c.key, "key_id": key.KeyID()}, fmt.Sprintf("key %s\n", key.KeyID()))
		},
	}
	sealFlag(cmd, &sealed)
	return cmd
}

// makeKey makes the key file of the flags. The error is fs.ErrExist if there is one.
func (c *cli) makeKey(ctx context.Context, sealed bool) (*keyfile.Key, error) {
	path, err := filepath.Abs(c.key)
	if err != nil {
		return nil, err
	}
	exists := fmt.Errorf("key file %s: %w, and stays as it is", c.key, fs.ErrExist)
	switch _, err := os.Lstat(path); {
	case err == nil:
		return nil, exists
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}

	var passphrase []byte
	if sealed || c.passphraseFile != "" {
		if passphrase, err = c.newPassphrase(ctx, c.passphraseFile, c.key); err != nil {
			return nil, err
		}
		defer clear(passphrase)
	}

	key, made, err := keyfile.Open(path, passphrase)
	switch {
	case err != nil:
		return nil, fmt.Errorf("key file %s: %w", c.key, err)
	case !made: // by a faster process
		return nil, exists
	}
	return key, nil
}

func (c *cli) passphrase() *cobra.Command {
	var next string
	cmd := &cobra.Command{
		Use:   "passphrase",
		Short: "Set or change the passphrase of a key file",
		Long: "Passphrase seals the key file of --key under a new passphrase. The key stays the same.\n\n" +
			"A copy of the former file still opens as before. If it may be in other hands, take a new key: keygen, then change-key.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if err := c.checkKey(c.key); err != nil {
				return err
			}
			path, err := filepath.Abs(c.key)
			if err != nil {
				return err
			}
			former, err := c.formerPassphrase(ctx, path)
			if err != nil {
				return err
			}
			defer clear(former)

			text, err := c.newPassphrase(ctx, next, c.key)
			if err != nil {
				return err
			}
			defer clear(text)
			if err := keyfile.Change(path, former, text); err != nil {
				return fmt.Errorf("key file %s: %w", c.key, err)
			}
			return c.show(object{"key_file": c.key}, "The key file has the new passphrase.\n")
		},
	}
	cmd.Flags().StringVar(&next, "new-passphrase-file", "", "`file` whose first line is the new passphrase; without it, the terminal is asked")
	return cmd
}

// formerPassphrase returns the present passphrase of a key file, none for a file in clear.
func (c *cli) formerPassphrase(ctx context.Context, path string) ([]byte, error) {
	if _, err := os.Lstat(path); err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	passphrase, err := readPassphrase(ctx, c.passphraseFile)
	if err != nil {
		return nil, err
	}
	_, _, err = keyfile.Open(path, passphrase)
	if errors.Is(err, keyfile.ErrSealed) {
		if passphrase, err = c.ask(ctx, "Present passphrase of "+c.key); err == nil {
			_, _, err = keyfile.Open(path, passphrase)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", c.key, err)
	}
	return passphrase, nil
}

func (c *cli) rotate() *cobra.Command {
	return &cobra.Command{
		Use:   "rotate [SERIES]",
		Short: "Start a new key term",
		Long: "Rotate starts a new term: records are sealed under a new master key from now on. Reseal seals the former ones.\n\n" +
			"With a SERIES it starts a term of other keys: audit for those of the audit log, fingerprint for those of fingerprints, which change then, lookup for those by which records are found. Reseal ends the rotation of the last two.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.either(func(ctx context.Context, v operator.Vault) (err error) {
				series, text := "", "A new key term has begun. Reseal, or a server that works, seals the records of former terms anew.\n"
				if len(args) == 0 {
					_, err = v.RotateKeys(ctx, nil)
				} else {
					series = args[0]
					_, err = v.RotateSeries(ctx, cardvault.KeySeries(series), nil)
				}

				switch {
				case err != nil:
					return err
				case series == string(cardvault.SeriesFingerprint), series == string(cardvault.SeriesLookup):
					text = "A rotation has begun. Reseal, or a server that works, ends it within some minutes.\n"
				case series != "":
					text = "A new key term has begun.\n"
				}
				return c.show(object{"rotated": true, "series": series}, text)
			})(cmd, args)
		},
	}
}

func (c *cli) retire() *cobra.Command {
	return &cobra.Command{
		Use:   "retire TERM",
		Short: "End a former key term, and destroy its key",
		Long: "Retire closes a former key term for good: nothing is written under it any more. Its key is destroyed once no record is sealed under it and the time of idempotency keys is over. " +
			"Until then the exit status is 3, and retire is repeated, or a server that works destroys the key.\n\n" +
			"Backups from before have the key as long as their key file exists: change-key, and destroy the former one.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			term, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil {
				return misuseError{errors.New("TERM is a number: see report")}
			}

			return c.either(func(ctx context.Context, v operator.Vault) error {
				err := v.RetireTerm(ctx, uint32(term))
				if errors.Is(err, cardvault.ErrTermInUse) {
					return finding{err}
				}
				if err != nil {
					return err
				}
				return c.show(object{"destroyed": term}, fmt.Sprintf("The key of term %d is destroyed.\n", term))
			})(cmd, args)
		},
	}
}

func (c *cli) changeKey() *cobra.Command {
	var to, passphraseFile string
	cmd := &cobra.Command{
		Use:   "change-key",
		Short: "Change the vault to another key file",
		Long: "Change-key has the key of --to wrap the vault's keys, in one transaction. From then on only that key opens the vault. It may be repeated.\n\n" +
			"The former key still opens every backup from before. If it may be in other hands, rotate too, also audit, fingerprint and lookup, and reseal.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := c.actor(cmd.Context())
			if to == "" {
				return misuseError{errors.New("name the new key file: --to FILE")}
			}
			former, err := c.keyring(ctx, c.key, c.passphraseFile)
			if err != nil {
				return err
			}

			next, err := c.keyring(ctx, to, passphraseFile)
			if err != nil {
				return err
			}

			// A repetition finds the vault under the new key.
			return c.on(ctx, cardvault.JoinKeyrings(former, next), func(ctx context.Context, v *cardvault.Vault) error {
				if err := v.ChangeKeyring(ctx, next); err != nil {
					return err
				}
				return c.show(object{"key_file": to}, fmt.Sprintf("The vault opens with %s alone. Keep the former key as long as backups from before.\n", to))
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "key `file` to change to, of keygen")
	cmd.Flags().StringVar(&passphraseFile, "to-passphrase-file", "", "`file` whose first line is the passphrase of --to; without it, a sealed key asks at the terminal")
	return cmd
}

func (c *cli) report() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Report key terms, with their age and records",
		Long:  "Report counts the records of the vault by key term and kind. The exit status is 3 if a key is overdue or a record is damaged.",
		Args:  cobra.NoArgs,
		RunE: c.either(func(ctx context.Context, v operator.Vault) error {
			r, err := v.KeyReport(ctx)
			if err != nil {
				return err
			}

			rows := [][]string{{"TERM", "SERIES", "STATE", "MADE", "CLOSED", "DESTROYED", "DAYS", "RECORDS"}}
			var terms, wrappings []object
			var overdue []string
			for _, t := range slices.Concat(r.Terms, r.Others) {
				days := int(t.Age.Hours() / 24)
				terms = append(terms, object{
					"series": t.Series, "number": t.Number, "state": t.State, "created_at": t.CreatedAt, "closed_at": instant(t.ClosedAt), "destroyed_at": instant(t.DestroyedAt),
					"days": days, "overdue": t.Overdue, "records": t.Records,
				})
				rows = append(rows, []string{fmt.Sprint(t.Number), cmp.Or(string(t.Series), "-"), string(t.State), date(t.CreatedAt), date(t.ClosedAt), date(t.DestroyedAt), strconv.Itoa(days), byKind(t.Records)})
				if t.Overdue {
					overdue = append(overdue, strings.TrimSpace(fmt.Sprint(t.Series, " ", t.Number)))
				}
			}

			old := false
			for i, w := range r.Wrappings {
				days, state := int(w.Age.Hours()/24), "former"
				if i == len(r.Wrappings)-1 {
					state = "active"
				}
				wrappings = append(wrappings, object{"key_id": w.KeyID, "state": state, "since": w.Since, "days": days, "overdue": w.Overdue})
				rows = append(rows, []string{"-", "wrapping", state, date(w.Since), "-", "-", strconv.Itoa(days), w.KeyID})
				old = old || w.Overdue
			}
			err = c.show(object{"terms": terms, "wrappings": wrappings, "unreadable": r.Unreadable, "overdue": old || len(overdue) > 0}, table(rows...))

			if len(overdue) > 0 {
				err = errors.Join(err, finding{fmt.Errorf("overdue: key of term %s: rotate, then reseal", strings.Join(overdue, ", "))})
			}
			if old {
				err = errors.Join(err, finding{errors.New("overdue: key-encryption key: change-key, then destroy the former key once no backup needs it")})
			}
			if r.Unreadable > 0 {
				err = errors.Join(err, finding{fmt.Errorf("damaged: %d records, whose term cannot be read", r.Unreadable)})
			}
			return err
		}),
	}
	cmd.Flags().DurationVar(&c.cryptoPeriod, "crypto-period", 0, "age at which a key is overdue, as Options.CryptoPeriod of the server (default 8760h)")
	return cmd
}

// byKind returns the numbers of records in words.
func byKind(records map[string]int64) string {
	var counts []string
	for _, kind := range slices.Sorted(maps.Keys(records)) {
		counts = append(counts, fmt.Sprintf("%d %s", records[kind], kind))
	}
	if counts == nil {
		return "-"
	}
	return strings.Join(counts, ", ")
}

func (c *cli) reseal() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "reseal",
		Short: "Seal all records under the present key term",
		Long: "Reseal seals the records of former key terms anew until none is left. It may be stopped and repeated.\n\n" +
			"A rotation of the fingerprint key or the lookup key that is under way is ended too, which takes some minutes.\n\n" +
			"A record in use, such as a delivery under way, is tried again. The exit status is 3 if damaged records are left.",
		Args: cobra.NoArgs,
		RunE: c.either(func(ctx context.Context, v operator.Vault) error {
			total, err := formerRecords(ctx, v)
			if err != nil {
				return err
			}
			p := c.progress("records sealed anew", total.records)
			defer p.end()

			changed := time.Now()
			left := total
			for left.work() {
				before := left
				if left, err = resealed(ctx, v, p); err != nil {
					return err
				}
				if left != before {
					changed = time.Now()
				}
				switch {
				case !left.work():
				case c.damaged.Load() > 0:
					return finding{fmt.Errorf("%d records of former terms are left: the lines above name the damaged ones", left.records)}
				case time.Since(changed) > wait:
					return fmt.Errorf("%d records of former terms are left, which are in use, or which another process seals%s: repeat this later", left.records, left.rotation())
				case sleep(ctx, lookAgain) != nil:
					return ctx.Err()
				}
			}
			p.end()
			if left.unreadable > 0 {
				return finding{fmt.Errorf("damaged: %d records, whose term cannot be read; all others are sealed under the present key term", left.unreadable)}
			}
			return c.show(object{"sealed": total.records}, "All records are sealed under the present key term.\n")
		}),
	}
	cmd.Flags().DurationVar(&wait, "wait", 10*time.Minute, "how long to wait for records in use")
	return cmd
}

const lookAgain = 5 * time.Second // after records were in use

// resealed seals what can be sealed, and returns how many records of former terms are left.
func resealed(ctx context.Context, v operator.Vault, p *progress) (left rest, err error) {
	sealed := make(chan error, 1)
	go func() { sealed <- v.Reseal(ctx) }()
	for pause := time.Second; ; {
		select {
		case err := <-sealed:
			if err != nil {
				return rest{}, err
			}
			left, err := formerRecords(ctx, v)
			p.left(left.records)
			return left, err

		case <-time.After(pause): // counting reads every record, so it takes a tenth of the time at most
			began := time.Now()
			if left, err := formerRecords(ctx, v); err == nil {
				p.left(left.records)
			}
			pause = max(time.Second, 10*time.Since(began))
		}
	}
}

// A rest has the work that a reseal has not done yet.
type rest struct {
	records  int64 // that are not sealed under the present term, or lack a fingerprint or another hash, or have a former one
	rotating bool  // the fingerprint key, or the lookup key

	unreadable int64 // damaged records, which no reseal changes
}

// work reports whether a reseal has something to do.
func (r rest) work() bool { return r.records > 0 || r.rotating }

func (r rest) rotation() string {
	if r.rotating {
		return ", and the fingerprint or lookup key is being rotated"
	}
	return ""
}

// formerRecords counts that work.
func formerRecords(ctx context.Context, v operator.Vault) (left rest, err error) {
	r, err := v.KeyReport(ctx)
	if err != nil {
		return rest{}, err
	}
	for _, series := range []cardvault.KeySeries{cardvault.SeriesFingerprint, cardvault.SeriesLookup} {
		of := leftOf(r, series)
		left = rest{records: left.records + of.records, rotating: left.rotating || of.rotating}
	}
	for _, t := range r.Terms {
		if t.State != cardvault.TermActive {
			left.records += sum(t.Records)
		}
	}
	left.unreadable = r.Unreadable
	return left, nil
}

// leftOf counts the work of a rotation of keys of hashes. Hashes that stay under the first lookup
// key do not count.
func leftOf(r *cardvault.KeyReport, series cardvault.KeySeries) (left rest) {
	under := map[cardvault.TermState]int64{}
	for _, t := range r.Others {
		stays := series == cardvault.SeriesLookup && t.Number == 1 && t.State != cardvault.TermReadable
		if t.Series == series && !stays {
			under[t.State] += sum(t.Records)
			left.rotating = left.rotating || t.State == cardvault.TermPending || t.State == cardvault.TermReadable || t.State == cardvault.TermClosed
		}
	}
	if left.rotating {
		left.records = under[cardvault.TermClosed]
	}
	return left
}

func sum(records map[string]int64) (n int64) {
	for _, of := range records {
		n += of
	}
	return n
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
