package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/audit"
)

// audited exports the audit log of the first account of a stopped server, verifies it as
// docs/audit.md says, and checks that each of the calls has a record, by their operation and the
// ids of tokens.
func (p *process) audited(t *testing.T, dir string, calls map[string][]string) {
	t.Helper()
	vaultctl := filepath.Join(t.TempDir(), "vaultctl")
	if out, err := exec.Command("go", "build", "-C", "../../cmd/vaultctl", "-o", vaultctl, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(vaultctl, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("vaultctl %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	log, at := filepath.Join(t.TempDir(), "log"), filepath.Join(dir, "audit")
	run("--vault", filepath.Join(dir, "vault"), "--key", filepath.Join(dir, "keys", "vault.key"),
		"audit", "export", "--account", p.Accounts[0].AccountID.String(), "--out", log)
	key, err := os.ReadFile(filepath.Join(at, "public-keys"))
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := filepath.Glob(filepath.Join(at, "checkpoints", p.Accounts[0].AccountID.String()+"-*.json")); len(kept) != 1 || err != nil {
		t.Errorf("checkpoints are %q, %v", kept, err)
	}
	said := run("audit", "verify", log, "--public-key", strings.TrimSpace(string(key)), "--checkpoints", filepath.Join(at, "checkpoints"))
	if !strings.Contains(said, "is whole") || strings.Contains(said, "itself") {
		t.Errorf("vaultctl says %s", said)
	}

	export, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string]bool{}
	for line := range bytes.Lines(export) {
		var l struct{ Record, Open *audit.Record } // those of the last kill have no checkpoint yet
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatal(err)
		}
		if r := cmp.Or(l.Record, l.Open); r != nil && r.Outcome == audit.Success {
			recorded[r.Operation+" "+r.ObjectID.String()] = true
		}
	}
	for operation, ids := range calls {
		for _, id := range ids {
			if !recorded[operation+" "+id] {
				t.Errorf("%s of %s has no record", operation, id)
			}
		}
	}
}
