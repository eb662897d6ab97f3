package sandbox

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
)

// Checkpoints is a folder that keeps the last checkpoint of each account, in a file of its
// own. Processes may share it. It is an [audit.Sink] to try: the log of a vault with real cards
// is kept where nobody can write who can write its store.
type Checkpoints string

// Keep implements [audit.Sink]. The name of a file orders the checkpoints of an account. No
// process removes the last one, so that none has to wait for another.
func (dir Checkpoints) Keep(ctx context.Context, c *audit.Checkpoint) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	name := filepath.Join(string(dir), fmt.Sprintf("%v-%020d.json", c.AccountID, c.Number))
	if err := replaceFile(name, append(text, '\n')); err != nil {
		return err
	}

	all, err := filepath.Glob(filepath.Join(string(dir), c.AccountID.String()+"-*.json"))
	if err != nil {
		return err
	}
	slices.Sort(all)
	for _, earlier := range all[:max(len(all)-1, 0)] {
		if err := os.Remove(earlier); err != nil && !errors.Is(err, os.ErrNotExist) { // by another process
			return err
		}
	}
	return nil
}

// KeepPublicKeys writes the keys that verify the audit log of v into a file beside the
// checkpoints, one in each line.
func (s *Sandbox) KeepPublicKeys(v *cardvault.Vault) error {
	var lines strings.Builder
	for _, key := range v.AuditPublicKeys() {
		fmt.Fprintln(&lines, hex.EncodeToString(key))
	}
	return replaceFile(filepath.Join(auditOf(s.opts.File), "public-keys"), []byte(lines.String()))
}

// auditOf returns the folder of what verifies the audit log, beside the file of the
// credentials.
func auditOf(file string) string { return filepath.Join(filepath.Dir(file), "audit") }

// replaceFile puts a file in place whole, for its owner alone.
func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".sandbox-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
