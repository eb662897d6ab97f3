package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
)

// auditSpan is long enough for several checkpoints.
const auditSpan = 3 * time.Second

// audits compares imports into a vault that has an audit log with imports into one that has
// none, of one account and of many.
func (b *bench) audits(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	if err := b.loadKeys(); err != nil {
		return err
	}

	const accounts = 1000
	var vaults [2][]*cardvault.Vault
	for i, opts := range []*cardvault.Options{nil, {Audit: &cardvault.AuditOptions{Sink: unkept{}}}} {
		v, err := cardvault.Open(ctx, filepath.Join(b.dir, fmt.Sprint("audit-", i)), b.keys, opts)
		if err != nil {
			return err
		}
		open.later(v.Close)
		vaults[i] = append(vaults[i], v)
		for range accounts {
			a, err := v.CreateAccount(ctx, "", nil)
			if err != nil {
				return err
			}
			vaults[i] = append(vaults[i], v.In(a.ID))
		}
	}

	into := func(name string, vaults []*cardvault.Vault) contender {
		return contender{name: name, run: func(int) error {
			_, err := vaults[rand.IntN(len(vaults))].Import(ctx, testCard(rand.IntN(1000)), bulk)
			return err
		}}
	}
	// settled waits for the checkpoints, so that the next vault has the machine to itself.
	settled := func(c contender) contender {
		c.settle = func(int) error { return vaults[1][0].ExportAudit(ctx, io.Discard, time.Now(), time.Time{}) }
		return c
	}
	for _, row := range []struct {
		name, of string
		part     func(all []*cardvault.Vault) []*cardvault.Vault
		goal     float64
	}{
		{"audit", "", func(all []*cardvault.Vault) []*cardvault.Vault { return all[:1] }, .85},
		{"audit-accounts", " into 1,000 accounts", func(all []*cardvault.Vault) []*cardvault.Vault { return all[1:] }, 0},
	} {
		lanes, err := b.raceFor(max(b.span, auditSpan), 64,
			settled(into("Import"+row.of+" with an audit log", row.part(vaults[1]))), into("Import"+row.of, row.part(vaults[0])))
		if err != nil {
			return err
		}
		b.ratio(row.name+"/64", 64, least(row.goal), lanes[0], lanes[1])
	}
	return nil
}

// unkept is a sink that keeps nothing.
type unkept struct{}

func (unkept) Keep(context.Context, *audit.Checkpoint) error { return nil }
