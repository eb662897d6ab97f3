package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// imports compares durable imports with raw bbolt writing the same bytes.
func (b *bench) imports(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	appending, err := newFloor(filepath.Join(b.dir, "floor.db"), b.shape[:1], b.table.Tokens)
	if err != nil {
		return err
	}
	open.later(appending.close)
	naive, err := bbolt.Open(filepath.Join(b.dir, "naive.db"), 0o600, nil)
	if err != nil {
		return err
	}
	open.later(naive.Close)

	value := make([]byte, b.rowBytes())
	for _, n := range []int{1, 16, 64, 256} {
		lanes, err := b.race(n, b.importing("Import", b.vault, nil), appending.contender(),
			contender{name: "bbolt Batch, random key and three indexes", run: func(int) error { return batch(naive, value) }})
		if err != nil {
			return err
		}
		b.ratio(fmt.Sprintf("import/%d", n), n, least(.6), lanes[0], lanes[1])
		b.ratio(fmt.Sprintf("import-batch/%d", n), n, reported, lanes[0], lanes[2])
	}
	if err := b.importsKeyed(ctx); err != nil {
		return err
	}
	return b.importsApart(ctx)
}

// importing imports one card again and again.
func (b *bench) importing(name string, v *cardvault.Vault, opts func() *cardvault.ImportOptions) contender {
	visa := testCard(0)
	return contender{name: name, run: func(int) error {
		var o *cardvault.ImportOptions
		if opts != nil {
			o = opts()
		}
		_, err := v.Import(context.Background(), visa, o)
		return err
	}}
}

// keyed returns options with an idempotency key.
func keyed() *cardvault.ImportOptions {
	return &cardvault.ImportOptions{IdempotencyKey: uuid.NewString()}
}

// importsKeyed compares imports under idempotency keys with bbolt putting the same rows,
// also the rows with random keys.
func (b *bench) importsKeyed(ctx context.Context) (err error) {
	s, err := shapeOf(ctx, keyed)
	if err != nil {
		return err
	}
	putting, err := newFloor(filepath.Join(b.dir, "keyed.db"), s, b.table.Tokens)
	if err != nil {
		return err
	}
	var open closers
	defer open.close(&err)
	open.later(putting.close)

	same := putting.contender()
	same.name = fmt.Sprintf("bbolt loop of the same %d rows and index entries", len(s))
	for _, n := range []int{1, 64, 256} {
		lanes, err := b.race(n, b.importing("Import with an idempotency key", b.vault, keyed), same)
		if err != nil {
			return err
		}
		goal := reported
		if n == 256 {
			goal = least(.6)
		}
		b.ratio(fmt.Sprintf("import-keyed/%d", n), n, goal, lanes[0], lanes[1])
	}
	return nil
}

// importsApart compares durable imports of one account with imports of many accounts, and
// with imports that do more.
func (b *bench) importsApart(ctx context.Context) error {
	accounts := make([]*cardvault.Vault, 1000)
	for i := range accounts {
		a, err := b.vault.CreateAccount(ctx, "", nil)
		if err != nil {
			return err
		}
		accounts[i] = b.vault.In(a.ID)
	}

	var turn atomic.Int64
	different := func(name string, opts *cardvault.ImportOptions) contender {
		return contender{name: name, run: func(int) error {
			_, err := b.vault.Import(ctx, testCard(int(turn.Add(1)%1000)), opts)
			return err
		}}
	}
	visa, coded := testCard(0), testCard(0)
	coded.SecurityCode = card.NewSecurityCode([]byte("737"))
	lanes, err := b.race(64,
		b.importing("Import", b.vault, nil),
		contender{name: "Import into 1,000 accounts", run: func(int) error {
			_, err := accounts[turn.Add(1)%1000].Import(ctx, visa, nil)
			return err
		}},
		contender{name: "Import with a security code", run: func(int) error {
			_, err := b.vault.Import(ctx, coded, nil)
			return err
		}},
		b.importing("Import with a business_key", b.vault, func() *cardvault.ImportOptions {
			return &cardvault.ImportOptions{BusinessKey: uuid.NewString()}
		}),
		different("Import of different cards, counted under their masks", nil),
		different("Import of different cards, in bulk", bulk))
	if err != nil {
		return err
	}
	for i, name := range []string{"accounts", "code", "business-key", "masks", "bulk"} {
		b.ratio("import-"+name+"/64", 64, reported, lanes[i+1], lanes[0])
	}
	return nil
}

// importUntilKilled imports, and prints a line for each second.
func (b *bench) importUntilKilled() error {
	ctx := context.Background()
	if err := b.open(ctx); err != nil {
		return err
	}

	go func() {
		for range time.Tick(time.Second) {
			fmt.Println("importing")
		}
	}()

	return parallel(64, func(int) error {
		for {
			if _, err := b.vault.Import(ctx, testCard(0), nil); err != nil {
				return err
			}
		}
	})
}
