package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/cardvault/cardvault"
)

// many are the accounts of a vault into which imports are measured, besides its first one.
const many = 1000

// A matchup compares imports into a vault that has something with imports into another that lacks it, of
// one account and of many.
type matchup struct {
	name, with string
	goal       float64 // of one account
	span       time.Duration
	settle     func() error // after each turn; nil: nothing
	vaults     [2][]*cardvault.Vault
}

// openMany opens a vault in the folder of a name and makes accounts in it. The first handle has the
// first account.
func (b *bench) openMany(ctx context.Context, open *closers, name string, opts *cardvault.Options) (all []*cardvault.Vault, err error) {
	v, err := cardvault.Open(ctx, filepath.Join(b.dir, name), b.keys, opts)
	if err != nil {
		return nil, err
	}
	open.later(v.Close)

	all = append(all, v)
	for range many {
		a, err := v.CreateAccount(ctx, "", nil)
		if err != nil {
			return nil, err
		}
		all = append(all, v.In(a.ID))
	}
	return all, nil
}

// play prints the two rows. The second vault has something.
func (m *matchup) play(ctx context.Context, b *bench) error {
	into := func(name string, vaults []*cardvault.Vault) contender {
		return contender{name: name, run: func(int) error {
			_, err := vaults[rand.IntN(len(vaults))].Import(ctx, testCard(rand.IntN(1000)), bulk)
			return err
		}}
	}

	for _, row := range []struct {
		suffix, of string
		part       func(all []*cardvault.Vault) []*cardvault.Vault
		goal       float64
	}{
		{"", "", func(all []*cardvault.Vault) []*cardvault.Vault { return all[:1] }, m.goal},
		{"-accounts", " into 1,000 accounts", func(all []*cardvault.Vault) []*cardvault.Vault { return all[1:] }, 0},
	} {
		has := into(fmt.Sprintf("Import%s with %s", row.of, m.with), row.part(m.vaults[1]))
		if m.settle != nil {
			has.settle = func(int) error { return m.settle() }
		}
		lanes, err := b.raceFor(m.span, 64, has, into("Import"+row.of, row.part(m.vaults[0])))
		if err != nil {
			return err
		}
		b.ratio(m.name+row.suffix+"/64", 64, least(row.goal), lanes[0], lanes[1])
	}
	return nil
}
