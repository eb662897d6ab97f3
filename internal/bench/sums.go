package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"github.com/cardvault/cardvault"
)

// sums compares imports into a vault that keeps sums of its records with imports into one that has
// none, of one account and of many.
func (b *bench) sums(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	if err := b.loadKeys(); err != nil {
		return err
	}

	const accounts = 1000
	var vaults [2][]*cardvault.Vault
	for i := range vaults {
		v, err := cardvault.Open(ctx, filepath.Join(b.dir, fmt.Sprint("sums-", i)), b.keys, nil)
		if err != nil {
			return err
		}
		open.later(v.Close)
		open.later(runs(ctx, v))
		vaults[i] = append(vaults[i], v)
		for range accounts {
			a, err := v.CreateAccount(ctx, "", nil)
			if err != nil {
				return err
			}
			vaults[i] = append(vaults[i], v.In(a.ID))
		}
	}
	if err := vaults[1][0].BeginSums(ctx, nil); err != nil {
		return err
	}

	into := func(name string, vaults []*cardvault.Vault) contender {
		return contender{name: name, run: func(int) error {
			_, err := vaults[rand.IntN(len(vaults))].Import(ctx, testCard(rand.IntN(1000)), bulk)
			return err
		}}
	}
	for _, row := range []struct {
		name, of string
		part     func(all []*cardvault.Vault) []*cardvault.Vault
		goal     float64
	}{
		{"sums", "", func(all []*cardvault.Vault) []*cardvault.Vault { return all[:1] }, .92},
		{"sums-accounts", " into 1,000 accounts", func(all []*cardvault.Vault) []*cardvault.Vault { return all[1:] }, 0},
	} {
		lanes, err := b.race(64, into("Import"+row.of+" with sums", row.part(vaults[1])), into("Import"+row.of, row.part(vaults[0])))
		if err != nil {
			return err
		}
		b.ratio(row.name+"/64", 64, least(row.goal), lanes[0], lanes[1])
	}
	return nil
}
