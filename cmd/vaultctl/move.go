package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/spf13/cobra"
)

func (c *cli) move() *cobra.Command {
	var from, to, schema string
	cmd := &cobra.Command{
		Use:   "move --from PLACE --to PLACE",
		Short: "Move the vault to another folder or database",
		Long: "Move moves the vault to an empty place, such as from a folder to a PostgreSQL database, or back. PLACE is a folder, or a URL as of --store. " +
			"It copies the records while servers on a database go on, fences the former place, copies the rest, compares all records of both places, and opens the new place.\n\n" +
			"From the fence on, every server on the former place refuses all calls: start the servers anew with the new place. Move prints how long that took.\n\n" +
			"If move ends early, repeat it: it goes on. Or thaw opens the former place again, with the ID that its error names. After move has succeeded, nothing opens it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			a, b := c.at(from, c.schema), c.at(to, schema)
			switch {
			case c.vault != "" || c.store != "":
				return misuseError{errors.New("move has --from and --to in place of --vault and --store")}
			case from == "" || to == "":
				return misuseError{errors.New("name both places: --from PLACE and --to PLACE")}
			case a.vault == b.vault && a.store == b.store && a.schema == b.schema:
				return misuseError{errors.New("--from and --to are one place")}
			}

			for flag, place := range map[string]*cli{"--from": a, "--to": b} {
				if err := errors.Join(place.checkPlace(), place.checkKey(c.key)); err != nil {
					return fmt.Errorf("%s: %w", flag, err)
				}
			}
			return c.moves(c.actor(cmd.Context()), a, b)
		},
	}

	f := cmd.Flags()
	f.StringVar(&from, "from", "", "`place` of the vault: a folder, or the URL of a PostgreSQL database without a password. --schema is of this one")
	f.StringVar(&to, "to", "", "new, empty `place`")
	f.StringVar(&schema, "to-schema", "", "`name` of the schema in the database of --to (default \"cardvault\")")
	return cmd
}

// at returns the flags for a place.
func (c *cli) at(place, schema string) *cli {
	at := &cli{in: c.in, errs: c.errs, schema: schema, key: c.key, passphraseFile: c.passphraseFile, verbose: c.verbose}
	if strings.HasPrefix(place, "postgres://") || strings.HasPrefix(place, "postgresql://") {
		at.store = place
	} else if place != "" {
		at.vault = filepath.Clean(place)
	}
	return at
}

// moves moves the vault from a place to another.
func (c *cli) moves(ctx context.Context, a, b *cli) (err error) {
	keys, err := a.keyring(ctx, c.key, c.passphraseFile)
	if err != nil {
		return err
	}
	from, err := a.openStore(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	switch none, err := empty(ctx, from); {
	case err != nil:
		return err
	case none:
		return errNoVault
	}
	to, err := b.openStore(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()

	p := c.progress("", 0)
	defer p.end()
	anchor, err := c.anchorIn("")
	if err != nil {
		return err
	}
	log, err := c.auditOptions()
	if err != nil {
		return err
	}
	moved, err := cardvault.Move(ctx, from, to, keys, &cardvault.MoveOptions{Progress: p.moved, Audit: log, Anchor: anchor, Logger: c.log()})
	if err != nil {
		return err
	}
	p.end()
	c.note("Start the servers anew with the new place. The former one refuses all calls: erase it once you trust the new one.")
	return c.show(object{"id": moved.ID, "records": moved.Records, "copied": moved.Copied, "pause_seconds": moved.Pause.Seconds()},
		fmt.Sprintf("moved: %d records, pause %v\n", moved.Records, moved.Pause.Round(time.Millisecond)))
}
