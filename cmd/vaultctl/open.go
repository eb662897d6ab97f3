package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/keyfile"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/pgstore"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// boltFile is the file of a vault in its folder.
const boltFile = "cardvault.db"

// with returns a command that opens the vault, does something and closes it.
func (c *cli) with(do func(context.Context, *cardvault.Vault) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		ctx := c.actor(cmd.Context())
		keys, err := c.keyring(ctx, c.key, c.passphraseFile)
		if err != nil {
			return err
		}
		return c.on(ctx, keys, do)
	}
}

// on opens the vault with keys, does something and closes it.
func (c *cli) on(ctx context.Context, keys *cardvault.Keyring, do func(context.Context, *cardvault.Vault) error) (err error) {
	s, err := c.openStore(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	switch none, err := empty(ctx, s); {
	case err != nil:
		return err
	case none:
		return errNoVault
	}

	v, err := c.openVault(ctx, s, keys, cardvault.Live)
	if errors.Is(err, cardvault.ErrWrongMode) {
		v, err = c.openVault(ctx, s, keys, cardvault.Sandbox)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	return do(ctx, v)
}

var errNoVault = errors.New("there is no vault: is the path right? init makes one")

// openVault opens the vault in a store, or makes it. The audit log is on: it has what an
// operator does.
func (c *cli) openVault(ctx context.Context, s store.Store, keys *cardvault.Keyring, mode cardvault.Mode) (*cardvault.Vault, error) {
	opts := &cardvault.Options{Mode: mode, CryptoPeriod: c.cryptoPeriod, Thaw: c.thawed, Logger: c.log()}
	var err error
	if opts.Audit, err = c.auditOptions(); err != nil {
		return nil, err
	}
	if opts.Anchor, err = c.anchorIn(c.vault); err != nil {
		return nil, err
	}
	if c.rollback != "" {
		if opts.AcceptRollback, err = parseID(c.rollback); err != nil {
			return nil, misuseError{fmt.Errorf("--accept-rollback %w", err)}
		}
	}

	v, err := cardvault.New(ctx, s, keys, opts)
	if r, ok := errors.AsType[*cardvault.RollbackError](err); ok {
		err = fmt.Errorf("%w. Here that is --accept-rollback %v", err, r.ID)
	}
	if err != nil && strings.Contains(err.Error(), "Options.Thaw") {
		err = fmt.Errorf("%w. Here that is the command thaw", err)
	}
	return v, err
}

// auditOptions returns the options of the audit log. Without --ledger the server's ledger has the
// records once a server works again.
func (c *cli) auditOptions() (*cardvault.AuditOptions, error) {
	o := &cardvault.AuditOptions{Failure: c.auditFailure}
	if c.ledger == "" {
		return o, nil
	}
	if _, err := os.Stat(c.ledger); err != nil {
		return nil, fmt.Errorf("--ledger: %w", err)
	}
	o.Ledger = audit.NewLedgerDir(c.ledger)
	return o, nil
}

// anchorIn returns the anchor that the flags name for a vault in a folder, nil if they name none.
func (c *cli) anchorIn(vault string) (cardvault.Anchor, error) {
	switch {
	case c.anchor == "" && c.rollback != "":
		return nil, misuseError{errors.New("--accept-rollback needs --anchor")}
	case c.anchor == "":
		return nil, nil
	case vault != "" && keyfile.Below(c.anchor, vault):
		return nil, misuseError{errors.New("--anchor is in the folder of the vault, which would be rolled back with it: take another")}
	}
	return cardvault.AnchorDir(c.anchor), nil
}

// actor returns a context for calls on behalf of the operator.
func (c *cli) actor(ctx context.Context) context.Context {
	name := "vaultctl"
	if u, err := user.Current(); err == nil {
		name += " of " + u.Username
	}
	return cardvault.WithActor(ctx, cardvault.Actor{Name: name})
}

// empty reports whether a store has no vault.
func empty(ctx context.Context, s store.Store) (none bool, err error) {
	err = s.View(ctx, func(tx store.ReadTx) error {
		rows, err := tx.Scan(ledger.KindMeta, uuid.Nil, 1)
		none = len(rows) == 0
		return err
	})
	return none, err
}

// openStore opens the store of the vault. With prepare it makes the file or the tables if they
// are missing.
func (c *cli) openStore(ctx context.Context, prepare bool) (store.Store, error) {
	if err := c.checkPlace(); err != nil {
		return nil, err
	}
	if c.store != "" {
		return c.openPostgres(ctx, prepare)
	}

	file := filepath.Join(c.vault, boltFile)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && !prepare {
		return nil, errNoVault
	}
	s, err := boltstore.Open(ctx, file, &boltstore.Options{Logger: c.log(), AcceptUndone: c.undone})
	if err != nil && strings.Contains(err.Error(), "AcceptUndone") {
		err = fmt.Errorf("%w. Here that is --accept-undone", err)
	}
	if errors.Is(err, store.ErrLocked) {
		return nil, fmt.Errorf("another process, such as a server, has %s open: stop it, and repeat this", file)
	}
	return s, err
}

// checkPlace returns an error unless the flags name one place of a vault, and no password.
func (c *cli) checkPlace() error {
	if (c.vault == "") == (c.store == "") {
		return misuseError{errors.New("name the vault: --vault DIR or --store URL")}
	}
	if c.store == "" {
		return nil
	}
	if c.undone {
		return misuseError{errors.New("--accept-undone is for --vault: a database has no such head")}
	}

	// An error of url.Parse would repeat the URL.
	u, err := url.Parse(c.store)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return misuseError{errors.New("--store must be a URL postgres://…")}
	}
	_, secret := u.User.Password()
	for name := range u.Query() {
		secret = secret || strings.Contains(strings.ToLower(name), "password")
	}
	if secret {
		return misuseError{errors.New("--store has a password, which every user of this machine can see: use ~/.pgpass or PGPASSWORD, and change the password")}
	}
	return nil
}

// A pooled store closes its pool. It has all powers of the store.
type pooled struct {
	*pgstore.Store
	pool *pgxpool.Pool
}

func (p pooled) Close() error {
	defer p.pool.Close()
	return p.Store.Close()
}

func (c *cli) openPostgres(ctx context.Context, prepare bool) (store.Store, error) {
	pool, err := pgxpool.New(ctx, c.store)
	if err != nil {
		return nil, fmt.Errorf("--store: %w", err)
	}

	opts := &pgstore.Options{Schema: c.schema, Logger: c.log()}
	if prepare {
		err = pgstore.Migrate(ctx, pool, opts)
	}
	var s *pgstore.Store
	if err == nil {
		s, err = pgstore.New(ctx, pool, opts)
	}
	if err != nil {
		pool.Close()
		if errors.Is(err, pgstore.ErrNotMigrated) {
			err = errNoVault
		}
		return nil, err
	}
	return pooled{s, pool}, nil
}

// keyring returns the keyring of an existing key file.
func (c *cli) keyring(ctx context.Context, path, passphraseFile string) (*cardvault.Keyring, error) {
	if err := errors.Join(c.checkPlace(), c.checkKey(path)); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(path); err != nil { // KeyFile would make it
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("is missing: keygen makes one")
		}
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}

	passphrase, err := readPassphrase(ctx, passphraseFile)
	if err != nil {
		return nil, err
	}
	keys, err := cardvault.KeyFile(path, passphrase)
	if errors.Is(err, keyfile.ErrSealed) {
		if passphrase, err = c.ask(ctx, "Passphrase of "+path); err != nil {
			return nil, err
		}
		keys, err = cardvault.KeyFile(path, passphrase)
	}
	clear(passphrase)
	return keys, err
}

// checkKey returns an error for a key file without a name, or in the folder of the vault.
func (c *cli) checkKey(path string) error {
	if path == "" {
		return misuseError{errors.New("name the key file: --key FILE")}
	}
	if c.vault == "" {
		return nil
	}
	if err := keyfile.Apart(path, c.vault); err != nil {
		return fmt.Errorf("key file %s: %w", path, err)
	}
	return nil
}

const maxPassphrase = 1 << 10 // bytes

// readPassphrase returns the first line of a file, nothing without a file.
func readPassphrase(ctx context.Context, path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}

	text, err := await(ctx, func() ([]byte, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return io.ReadAll(io.LimitReader(f, maxPassphrase+1))
	})
	if err != nil {
		return nil, fmt.Errorf("passphrase: %w", err)
	}

	line, _, _ := bytes.Cut(text, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) == 0 || len(line) > maxPassphrase {
		return nil, fmt.Errorf("passphrase: the first line of %s is empty or too long", path)
	}
	return line, nil
}

// newPassphrase returns the passphrase of a new file: from a file, or typed twice.
func (c *cli) newPassphrase(ctx context.Context, path, of string) ([]byte, error) {
	if path != "" {
		return readPassphrase(ctx, path)
	}
	first, err := c.ask(ctx, "New passphrase of "+of)
	if err != nil {
		return nil, err
	}
	again, err := c.ask(ctx, "The same again")
	defer clear(again)
	if err == nil && !bytes.Equal(first, again) {
		err = errors.New("the two passphrases differ")
	}
	return first, err
}

// ask asks for a line at the terminal, which does not show it.
func (c *cli) ask(ctx context.Context, question string) ([]byte, error) {
	terminal := int(c.in.Fd())
	before, err := term.GetState(terminal)
	if err != nil {
		return nil, errors.New("a passphrase is needed, and there is no terminal to ask at: use --passphrase-file, which can be /dev/fd/3")
	}
	fmt.Fprint(c.errs, question+": ")
	defer fmt.Fprintln(c.errs)
	defer func() { _ = term.Restore(terminal, before) }() // also while a signal leaves it reading
	return await(ctx, func() ([]byte, error) { return term.ReadPassword(terminal) })
}

// await calls a function that does not end with ctx, and returns when ctx has ended.
func await[T any](ctx context.Context, call func() (T, error)) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	got := make(chan answer, 1)
	go func() {
		result, err := call()
		got <- answer{result, err}
	}()
	select {
	case a := <-got:
		return a.result, a.err
	case <-ctx.Done():
		return result, ctx.Err()
	}
}
