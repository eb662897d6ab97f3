package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/google/uuid"
)

// openReseal opens the vault in a file of reseal, whose store writes to log. Both are closed together.
func (b *bench) openReseal(ctx context.Context, open *closers, file string, log *slog.Logger) (*cardvault.Vault, error) {
	if err := b.loadKeys(); err != nil {
		return nil, err
	}
	s, err := boltstore.Open(ctx, filepath.Join(b.dir, file), &boltstore.Options{Logger: log})
	if err != nil {
		return nil, err
	}
	open.later(s.Close)
	v, err := cardvault.New(ctx, s, b.keys, nil)
	if err == nil {
		open.later(v.Close)
	}
	return v, err
}

// idsFile has the ids of the tokens that the killed processes read.
func (b *bench) idsFile() string { return filepath.Join(b.dir, "reseal.ids") }

// killReseals kills processes amid the sealing of tokens, each beside imports and reads. Each
// begins another key term, because a killed round is left alone for a minute otherwise. No read of
// theirs may fail. At last every token that was imported before or acknowledged by them is read,
// and no record may be left under any former term.
func (b *bench) killReseals(ctx context.Context, ids []uuid.UUID) (err error) {
	raw := make([]byte, 0, 16*len(ids))
	for _, id := range ids {
		raw = append(raw, id[:]...)
	}
	if err := os.WriteFile(b.idsFile(), raw, 0o600); err != nil {
		return err
	}
	before := len(ids)
	for kill := range b.kills {
		acknowledged, err := b.resealAndKill()
		if err != nil {
			return fmt.Errorf("kill %d: %w", kill+1, err)
		}
		ids = append(ids, acknowledged...)
	}

	var open closers
	defer open.close(&err)
	v, err := b.openReseal(ctx, &open, "reseal.db", nil)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := v.Get(ctx, id); err != nil {
			return fmt.Errorf("after %d kills a token cannot be read: %w", b.kills, err)
		}
	}
	report, err := v.KeyReport(ctx)
	if err != nil {
		return err
	}
	former, _ := recordsOf(report)
	if _, err := v.RotateKeys(ctx, nil); err != nil {
		return err
	}
	if err := v.Reseal(ctx); err != nil {
		return err
	}
	if _, err := underOneTerm(ctx, v); err != nil {
		return err
	}
	b.figures("reseal/kills", "", reported, "kills amid that, which lose no token, fail no read and leave no record under a former term in the end", float64(b.kills))
	b.figures("reseal/kills-imports", "", reported, "imports that the killed processes acknowledged, all read afterwards", float64(len(ids)-before))
	b.figures("reseal/kills-left", "", reported, "records under former terms after the last kill, before they are sealed anew", float64(former))
	return nil
}

// resealAndKill lets another process seal tokens anew, kills it in up to four seconds, mostly
// sooner, and returns the ids of the tokens that it has imported.
func (b *bench) resealAndKill() (ids []uuid.UUID, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-reseal-until-killed", b.dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}

	// The child imports once it has begun to seal.
	for {
		var id uuid.UUID
		if _, err := io.ReadFull(out, id[:]); err != nil { // the last one may be cut off
			break
		}
		if ids = append(ids, id); len(ids) == 1 {
			u := rand.Float64()
			time.AfterFunc(time.Duration(u*u*u*4*float64(time.Second)), func() { _ = cmd.Process.Kill() })
		}
	}
	_ = cmd.Wait() // says that it was killed
	if code := cmd.ProcessState.ExitCode(); len(ids) == 0 || code >= 0 {
		return nil, fmt.Errorf("the process was not killed: it has imported %d tokens and ended with %d", len(ids), code)
	}
	return ids, nil
}

// resealUntilKilled begins a key term, seals tokens anew, and meanwhile reads tokens and imports
// others, whose ids it prints once they are stored.
func (b *bench) resealUntilKilled() (err error) {
	ctx := context.Background()
	raw, err := os.ReadFile(b.idsFile())
	if err != nil {
		return err
	}
	r := new(resealing)
	for ; len(raw) >= 16; raw = raw[16:] {
		r.ids = append(r.ids, uuid.UUID(raw))
	}
	var open closers
	defer open.close(&err)
	if r.vault, err = b.openReseal(ctx, &open, "reseal.db", nil); err != nil {
		return err
	}

	failed := make(chan error)
	keepUp := func(f func() error) {
		go func() {
			for {
				if err := f(); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	seal := func() error {
		_, err := r.vault.RotateKeys(ctx, nil)
		return errors.Join(err, r.vault.Reseal(ctx))
	}
	if _, err := r.vault.RotateKeys(ctx, nil); err != nil {
		return err
	}
	keepUp(seal)
	for range 2 {
		keepUp(func() error { return r.get(ctx) })
	}
	for range 8 {
		keepUp(func() error {
			t, err := r.vault.Import(ctx, testCard(rand.IntN(1000)), bulk)
			if err == nil {
				_, err = os.Stdout.Write(t.ID[:])
			}
			return err
		})
	}
	return <-failed
}

// underOneTerm returns the number of records of a vault, and an error if any are under a former key
// term or cannot be read.
func underOneTerm(ctx context.Context, v *cardvault.Vault) (all int64, err error) {
	report, err := v.KeyReport(ctx)
	if err != nil {
		return 0, err
	}
	former, all := recordsOf(report)
	if former+report.Unreadable > 0 {
		return 0, fmt.Errorf("%d records are left under former key terms, %d cannot be read", former, report.Unreadable)
	}
	return all, nil
}

// recordsOf returns how many records of a report are under former terms, and how many there are.
func recordsOf(report *cardvault.KeyReport) (former, all int64) {
	for i, term := range report.Terms {
		for _, n := range term.Records {
			if i < len(report.Terms)-1 {
				former += n
			}
			all += n
		}
	}
	return former, all
}
