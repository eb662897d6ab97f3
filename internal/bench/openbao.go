package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/bench/table"
	"github.com/cardvault/cardvault/internal/realtest"
)

// peerGoals are the goals of the rows beside OpenBao. The vault has no features, except in
// the rows with all.
var peerGoals = map[string]table.Goal{
	"openbao-create/1": {}, "openbao-create-all/1": {}, "openbao-read/1": {},
	"openbao-create/64": least(10), "openbao-create-all/64": least(5), "openbao-read/64": least(6),
}

// peers compares imports and reads over HTTP with OpenBao: raft storage, KV version 2, one
// unseal key, no audit device.
func (b *bench) peers(ctx context.Context) (err error) {
	if b.openbao == "" {
		b.notRun("no binary: -openbao or BENCH_OPENBAO", "Cardvault", "OpenBao", peerGoals,
			"openbao-create/64", "openbao-create-all/64", "openbao-read/64")
		return nil
	}
	var open closers
	defer open.close(&err)
	bao, err := b.startOpenBao(ctx, &open)
	if err != nil {
		return fmt.Errorf("OpenBao: %w", err)
	}

	none, err := b.newSite(ctx, "peer-none", features{})
	if err != nil {
		return err
	}
	open.later(none.shut)
	all, err := b.newSite(ctx, "peer-all", everything)
	if err != nil {
		return err
	}
	open.later(all.shut)

	var created atomic.Int64
	create := contender{name: "OpenBao create", run: func(i int) error {
		_, err := bao.do(i, "POST", fmt.Sprint("/v1/secret/data/", created.Add(1)), secret)
		return err
	}}
	for _, n := range []int{1, 64} {
		lanes, err := b.race(n, none.importer("import over HTTP, no features"), all.importer("import over HTTP, all features"), create)
		if err != nil {
			return err
		}
		for i, name := range []string{"openbao-create", "openbao-create-all"} {
			name = fmt.Sprintf("%s/%d", name, n)
			b.ratio(name, n, peerGoals[name], lanes[i], lanes[2])
		}
	}
	return b.peerReads(ctx, none, bao, created.Load())
}

// peerReads compares reads. OpenBao has secrets named 1 to secrets.
func (b *bench) peerReads(ctx context.Context, s *site, bao *caller, secrets int64) error {
	t, err := s.vault.List(ctx, nil)
	if err != nil {
		return err
	}
	ours := contender{name: "GET /tokens/{id}", run: func(i int) error {
		_, err := s.caller.do(i, "GET", "/tokens/"+t.Items[rand.IntN(len(t.Items))].ID.String(), nil)
		return err
	}}
	theirs := contender{name: "OpenBao read", run: func(i int) error {
		_, err := bao.do(i, "GET", fmt.Sprint("/v1/secret/data/", 1+rand.Int64N(secrets)), nil)
		return err
	}}

	for _, n := range []int{1, 64} {
		lanes, err := b.race(n, ours, theirs)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("openbao-read/%d", n)
		b.ratio(name, n, peerGoals[name], lanes[0], lanes[1])
	}
	return nil
}

// secret is a card of about the size of a token's record.
var secret = []byte(`{"data":{"account_number":"4242424242424242","cardholder_name":"A Customer","expiry_month":12,"expiry_year":2030,` +
	`"address":{"line1":"1 Example Street","city":"Example","postal_code":"12345","country":"DE"},"email":"customer@example.com",` +
	`"scheme":"visa","status":"active","created_at":"2026-01-01T00:00:00Z","note":"about as many bytes as a token has"}}`)

// startOpenBao starts a server, unseals it and mounts a key-value engine of version 2.
func (b *bench) startOpenBao(ctx context.Context, open *closers) (*caller, error) {
	dir := filepath.Join(b.dir, "openbao")
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
		return nil, err
	}

	var at [2]string // of the API and of the cluster
	for i := range at {
		address, release, err := realtest.Reserve()
		if err != nil {
			return nil, err
		}
		at[i] = address
		open.later(func() error { release(); return nil })
	}

	config := filepath.Join(dir, "config.hcl")
	err := os.WriteFile(config, fmt.Appendf(nil, `storage "raft" {
	path = %q
	node_id = "bench"
}
listener "tcp" {
	address = %q
	cluster_address = %q
	tls_disable = true
}
api_addr = "http://%s"
cluster_addr = "https://%s"
`, filepath.Join(dir, "data"), at[0], at[1], at[0], at[1]), 0o600)
	if err != nil {
		return nil, err
	}

	cmd := exec.CommandContext(ctx, b.openbao, "server", "-config", config)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	open.later(func() error {
		err := cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
		return err
	})

	c := &caller{address: at[0], header: "X-Vault-Token"}
	open.later(func() error { c.close(); return nil })
	return c, c.unseal()
}

// unseal makes a new OpenBao ready.
func (c *caller) unseal() error {
	var made struct {
		Keys  []string `json:"keys"`
		Token string   `json:"root_token"`
	}
	err := eventually(func() error { // it does not listen yet
		answer, err := c.do(0, "PUT", "/v1/sys/init", []byte(`{"secret_shares":1,"secret_threshold":1}`))
		return cmp.Or(err, json.Unmarshal(answer, &made))
	})
	if err != nil {
		return err
	}
	if len(made.Keys) != 1 || made.Token == "" {
		return errors.New("no key and token")
	}

	if _, err := c.do(0, "PUT", "/v1/sys/unseal", fmt.Appendf(nil, `{"key":%q}`, made.Keys[0])); err != nil {
		return err
	}
	c.key = made.Token
	for _, step := range []struct{ path, body string }{
		{"/v1/sys/mounts/secret", `{"type":"kv","options":{"version":"2"}}`}, // once it leads its cluster of one
		{"/v1/secret/data/0", string(secret)},                                // once the engine is ready
	} {
		err := eventually(func() error {
			_, err := c.do(0, "POST", step.path, []byte(step.body))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// eventually calls f until it succeeds, for at most a minute.
func eventually(f func() error) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}
