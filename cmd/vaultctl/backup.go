package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"filippo.io/age"
	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

func (c *cli) backup() *cobra.Command {
	var file, since, manifest, recipientsFile string
	var recipients []string
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "Write a backup of the vault",
		Long: "Backup writes all records of the vault as they are at one instant, to a new file or to standard output. " +
			"They stay sealed, and the key file is not among them: keep a copy of it apart from all backups.\n\n" +
			"With --manifest the next backup can be an increment, which has only what has changed: name that manifest with --since. " +
			"A manifest has hashes, ids and numbers of records, and is not encrypted. Restore needs the full backup and all increments since.\n\n" +
			"With a recipient the backup is encrypted once more, by age, and restore needs the identity file of one of them. This is outside of FIPS 140-3.\n\n" +
			"The exit status is 3 if records cannot be read: the backup is whole without them. Keep an older one too.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			to, err := readRecipients(recipients, recipientsFile)
			if err != nil {
				return err
			}
			stream := c.out
			if file == "-" {
				if isTerminal(c.out) {
					return misuseError{errors.New("a backup is not for a terminal: use --out FILE, or redirect standard output")}
				}
				c.out = c.errs // the result goes beside the backup
			}
			for flag, path := range map[string]string{"--out": file, "--manifest": manifest} {
				if _, err := os.Lstat(path); err == nil && path != "-" {
					return fmt.Errorf("%s %s: %w", flag, path, fs.ErrExist)
				}
			}

			return c.either(func(ctx context.Context, v operator.Vault) error {
				b := &backupJob{vault: v, to: to, progress: c.progress("", 0)}
				if since != "" {
					f, err := os.Open(since)
					if err != nil {
						return fmt.Errorf("--since: %w", err)
					}
					defer f.Close()
					b.since = f
				}

				write := func() error { return b.write(ctx, &patient{ctx: ctx, Writer: stream}) }
				if file != "-" {
					write = func() error { return newFile(file, func(w io.Writer) error { return b.write(ctx, w) }) }
				}
				if manifest == "" {
					err = write()
				} else { // it appears after the backup
					err = newFile(manifest, func(w io.Writer) error {
						b.manifest = w
						return write()
					})
				}
				b.progress.end()
				if err != nil {
					return err
				}
				return errors.Join(c.showBackup(b, file, manifest), b.damaged)
			})(cmd, args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "out", "-", "`file` to make; - is standard output")
	f.StringVar(&since, "since", "", "manifest `file` of an earlier backup: write an increment of it")
	f.StringVar(&manifest, "manifest", "", "`file` to make for --since of the next backup")
	f.StringArrayVar(&recipients, "recipient", nil, "age recipient to encrypt the backup to, such as `age1…`; may be repeated")
	f.StringVar(&recipientsFile, "recipients-file", "", "`file` with an age recipient in each line")
	return cmd
}

// showBackup prints the report of a backup.
func (c *cli) showBackup(b *backupJob, file, manifest string) error {
	r := b.report
	since, text := "", fmt.Sprintf("backup %s of %s: %d records, %s\n", r.ID, date(r.At), r.Records, size(r.Bytes))
	if r.Since != uuid.Nil {
		since = r.Since.String()
		text += fmt.Sprintf("It is an increment of %s, and leaves out %d unchanged records.\n", r.Since, r.Unchanged)
	}
	if r.Unrecorded {
		c.note("The audit log has no record of this backup: it could not be stored.")
	}
	return c.show(object{
		"file": file, "manifest": manifest, "backup_id": r.ID, "since": since, "at": r.At, "records": r.Records, "unchanged": r.Unchanged,
		"deleted": r.Deleted, "damaged": r.Damaged, "bytes": r.Bytes, "chunks": r.Chunks, "terms": r.Terms, "encrypted": len(b.to) > 0,
		"unrecorded": r.Unrecorded,
	}, text)
}

// A backupJob makes one backup.
type backupJob struct {
	vault    operator.Vault
	to       []age.Recipient
	progress *progress
	since    io.ReadSeeker // nil: the backup is full
	manifest io.Writer     // nil: none

	report  *cardvault.BackupReport
	damaged error // of a whole backup without some records
}

func (b *backupJob) write(ctx context.Context, w io.Writer) (err error) {
	var sealed io.WriteCloser
	if len(b.to) > 0 {
		if sealed, err = age.Encrypt(w, b.to...); err != nil {
			return fmt.Errorf("encrypting the backup: %w", err)
		}
		w = sealed
	}
	b.report, err = b.vault.Backup(ctx, w, &cardvault.BackupOptions{Progress: b.progress.moved, Since: b.since, Manifest: b.manifest})
	if b.report != nil && errors.Is(err, cardvault.ErrDamaged) {
		b.damaged, err = err, nil
	}
	if err == nil && sealed != nil {
		err = sealed.Close()
	}
	return err
}

// readRecipients returns the recipients of a backup, none without flags.
func readRecipients(texts []string, file string) (all []age.Recipient, err error) {
	for _, text := range texts {
		r, err := age.ParseRecipients(strings.NewReader(text))
		if err != nil || len(r) != 1 {
			return nil, misuseError{errors.New("--recipient must be an age recipient, such as age1…")} // it may be an identity, which is secret
		}
		all = append(all, r...)
	}
	if file == "" {
		return all, nil
	}

	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := age.ParseRecipients(f)
	if err != nil {
		return nil, fmt.Errorf("--recipients-file %s: %w", file, err)
	}
	return append(all, r...), nil
}

func (c *cli) restore() *cobra.Command {
	var identities string
	var proof proofFlags
	cmd := &cobra.Command{
		Use:   "restore FILE [INCREMENT]...",
		Short: "Restore a backup into an empty place",
		Long: "Restore writes the records of a backup into the place of --vault or --store, which must be empty, and prints the id that thaws the vault. FILE may be - for standard input. " +
			"The place may be of another sort than the one that was backed up. --key is the key file of the time of the backup.\n\n" +
			"Name the increments of the backup behind it, all and in their order: the vault is restored as the last one has it, and --key is of the time of that one. One that is missing, or in another's place, is refused by its id.\n\n" +
			"Each part is verified before it is written. The exit status is 3 if the backup was changed or cut off. After any error restore can be repeated with the same files.\n\n" +
			"The vault is frozen until thaw. What was deleted or revoked after the backup is there again, unless --ledger names the folder of the server's ledger, or of audit export --all from after it: " +
			"tokens, API keys and webhooks whose deletion it has are deleted again. A ledger that was edited or cut off is refused, and one with breaks unless --known-break names them.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			ctx := c.actor(cmd.Context())
			keys, err := c.keyring(ctx, c.key, c.passphraseFile)
			if err != nil {
				return err
			}
			opts := new(cardvault.RestoreOptions)
			if c.ledger != "" {
				if opts.Ledger, err = openLedger(ctx, c.ledger, &proof); err != nil {
					return err
				}
			}
			var chain []*source
			var streams []io.Reader
			for _, path := range args {
				in, err := c.openBackup(ctx, path)
				if err != nil {
					return err
				}
				defer in.Close()
				stream, err := in.plain(ctx, identities)
				if err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
				chain, streams = append(chain, in), append(streams, stream)
			}

			opts.Increments = streams[1:]
			return c.restoreFrom(ctx, keys, chain, streams[0], opts)
		},
	}
	cmd.Flags().StringVar(&identities, "identity", "", "age identity `file` that opens an encrypted backup, such as /dev/fd/3")
	proof.add(cmd, "; needed only for those of a rotation after the backup")
	return cmd
}

// restoreFrom restores a backup into the place of the flags.
func (c *cli) restoreFrom(ctx context.Context, keys *cardvault.Keyring, chain []*source, stream io.Reader, opts *cardvault.RestoreOptions) (err error) {
	s, err := c.openStore(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	total := int64(0) // 0: unknown
	for _, in := range chain {
		if total += in.size; in.size == 0 {
			total = 0
			break
		}
	}
	p := c.progress("bytes of the backup", total)
	defer p.end()
	opts.Progress = func(at cardvault.BackupProgress) {
		left := total
		for _, in := range chain {
			left -= in.read
		}
		if total == 0 {
			p.moved(at)
		} else {
			p.left(left)
		}
	}
	restored, err := cardvault.Restore(ctx, s, keys, stream, opts)
	if err != nil {
		return err
	}
	if total > 0 {
		p.left(0)
	}
	p.end()

	b := restored.Backup
	bases := []uuid.UUID{}
	for _, base := range restored.Bases {
		b.Records, b.Bytes, b.Chunks = b.Records+base.Records, b.Bytes+base.Bytes, b.Chunks+base.Chunks
		bases = append(bases, base.ID)
	}
	records := fmt.Sprintf("%d records", b.Records)
	if len(bases) > 0 {
		records += fmt.Sprintf(" in %d backups, some in several of them, the last", len(bases)+1)
	}
	c.note("%s of %s. The vault is frozen: make sure that the one which was backed up works no more, then thaw it with the id below.", records, date(b.At))
	if opts.Ledger != nil {
		c.note("Objects deleted again: %d.", restored.Deleted)
		for _, operation := range slices.Sorted(maps.Keys(restored.Lost)) {
			c.note("lost: %d %s", restored.Lost[operation], operation)
		}
		for _, account := range restored.NotInLedger {
			c.note("The ledger has nothing of account %v: it has had nothing to record, or its folder is lost.", account)
		}
	}
	return c.show(object{
		"id": restored.ID, "deleted_again": restored.Deleted, "lost": restored.Lost, "not_in_ledger": append([]uuid.UUID{}, restored.NotInLedger...),
		"backup_id": b.ID, "bases": bases, "at": b.At, "records": b.Records, "deleted": b.Deleted, "damaged": b.Damaged,
		"bytes": b.Bytes, "chunks": b.Chunks, "terms": b.Terms,
	}, restored.ID.String()+"\n")
}

// openLedger returns the exports in a folder.
func openLedger(ctx context.Context, dir string, proof *proofFlags) (l *cardvault.DeletionLedger, err error) {
	of, err := proof.read()
	if err != nil {
		return nil, err
	}
	l = &cardvault.DeletionLedger{PublicKeys: of.PublicKeys, Kept: of.Kept, Known: of.Known}
	if l.Exports, err = audit.NewLedgerDir(dir).Exports(ctx); err != nil {
		return nil, fmt.Errorf("--ledger: %w", err)
	}
	return l, nil
}

// A source is a backup that is read.
type source struct {
	io.Reader
	file *os.File
	size int64 // 0: unknown
	read int64
	err  error // of the last Read
}

// openBackup opens a backup, or standard input.
func (c *cli) openBackup(ctx context.Context, path string) (*source, error) {
	s := &source{file: c.in}
	if path != "-" {
		var err error
		if s.file, err = await(ctx, func() (*os.File, error) { return os.Open(path) }); err != nil {
			return nil, err
		}
		if info, err := s.file.Stat(); err == nil && info.Mode().IsRegular() {
			s.size = info.Size()
		}
	}
	s.Reader = &patient{ctx: ctx, Reader: s.file}
	return s, nil
}

func (s *source) Close() error { return s.file.Close() }

func (s *source) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	s.read += int64(n)
	s.err = err
	return n, err
}

// ageHeader is what files of age begin with.
const ageHeader = "age-encryption.org/"

// plain returns the backup itself, which is decrypted with an identity file if that is needed.
func (s *source) plain(ctx context.Context, identities string) (io.Reader, error) {
	in := bufio.NewReader(s)
	begin, err := in.Peek(len(ageHeader))
	if err != nil && s.err != io.EOF {
		return nil, err
	}
	switch encrypted := string(begin) == ageHeader; {
	case encrypted && identities == "":
		return nil, misuseError{errors.New("the backup is encrypted: name the identity file of a recipient with --identity")}
	case !encrypted && identities != "":
		return nil, misuseError{errors.New("the backup is not encrypted: leave --identity out if that is right")}
	case !encrypted:
		return in, nil
	}

	own, err := await(ctx, func() ([]age.Identity, error) {
		f, err := os.Open(identities)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return age.ParseIdentities(f)
	})
	if err != nil {
		return nil, fmt.Errorf("--identity: %w", err)
	}
	opened, err := age.Decrypt(in, own...)
	if _, other := errors.AsType[*age.NoIdentityMatchError](err); other {
		return nil, fmt.Errorf("--identity %s: the backup is encrypted to others", identities)
	}
	d := &decrypted{s, opened}
	return d, d.damage(err)
}

// decrypted is a backup that age decrypts.
type decrypted struct {
	from *source
	io.Reader
}

func (d *decrypted) Read(b []byte) (int, error) {
	n, err := d.Reader.Read(b)
	return n, d.damage(err)
}

// damage returns the error of a backup that was changed, unless it could not be read.
func (d *decrypted) damage(err error) error {
	if err == nil || err == io.EOF || d.from.err != nil && d.from.err != io.EOF {
		return err
	}
	return fmt.Errorf("%w: the encrypted backup was changed or cut off: %v", cardvault.ErrDamaged, err)
}

// A patient reader or writer returns when ctx has ended, also from a pipe without another end.
type patient struct {
	ctx context.Context
	io.Reader
	io.Writer
}

func (p *patient) Read(b []byte) (int, error) {
	return await(p.ctx, func() (int, error) { return p.Reader.Read(b) })
}

func (p *patient) Write(b []byte) (int, error) {
	return await(p.ctx, func() (int, error) { return p.Writer.Write(b) })
}

func (c *cli) thaw() *cobra.Command {
	return &cobra.Command{
		Use:   "thaw ID",
		Short: "Open a restored vault for use",
		Long: "Thaw opens a restored vault for use, as Options.Thaw of a program does. ID is what restore has printed.\n\n" +
			"Make sure first that the vault which was backed up works no more: both would deliver events, provision network tokens and submit cards.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseID(args[0])
			if err != nil {
				return misuseError{fmt.Errorf("ID %w", err)}
			}
			c.thawed = id
			return c.with(func(context.Context, *cardvault.Vault) error {
				return c.show(object{"thawed": id}, "The vault is not frozen any more.\n")
			})(cmd, args)
		},
	}
}
