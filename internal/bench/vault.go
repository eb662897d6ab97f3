package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/webhook"
)

// prefixes of the schemes in the filled vault, with their share in 1000.
var prefixes = []struct {
	share  int
	digits string
	scheme card.Scheme
}{
	{600, "411111000000000", card.VISA},
	{300, "555555000000000", card.Mastercard},
	{89, "601111000000000", card.Discover},
	{10, "356600000000000", card.JCB},
	{1, "620000000000000", card.UnionPay},
}

// testCard returns a card of the n-th of 1000 parts.
func testCard(n int) cardvault.Card {
	for _, p := range prefixes {
		if n -= p.share; n < 0 {
			d := []byte(p.digits)
			for i := 6; i < len(d); i++ {
				d[i] = byte('0' + rand.IntN(10))
			}

			return cardvault.Card{
				PAN:    card.NewPAN(append(d, luhn(d))),
				Expiry: card.Expiry{Month: 1 + rand.IntN(12), Year: 2030},
				Name:   card.NewName([]byte("A Customer")),
			}
		}
	}
	panic("the shares do not add up to 1000")
}

func luhn(d []byte) byte {
	sum := 0
	for i := range d {
		n := int(d[len(d)-1-i] - '0')
		if i%2 == 0 {
			if n *= 2; n > 9 {
				n -= 9
			}
		}
		sum += n
	}
	return byte('0' + (10-sum%10)%10)
}

// bulk is for cards that were not guessed.
var bulk = &cardvault.ImportOptions{Bulk: true}

// loadKeys reads the keys of all vaults, or makes them.
func (b *bench) loadKeys() (err error) {
	b.keys, err = cardvault.KeyFile(filepath.Join(b.dir, "keys", "vault.key"), nil)
	return err
}

func (b *bench) open(ctx context.Context) (err error) {
	if err := b.loadKeys(); err != nil {
		return err
	}
	b.vault, err = cardvault.Open(ctx, filepath.Join(b.dir, "vault"), b.keys, &cardvault.Options{
		Webhooks: webhook.New(&webhook.Options{AllowPrivateTargets: true}),
	})
	return err
}

// fill makes the vault with its tokens.
func (b *bench) fill(ctx context.Context) error {
	if err := b.open(ctx); err != nil {
		return err
	}
	var err error
	if b.shape, err = shapeOf(ctx, nil); err != nil {
		return err
	}

	start := time.Now()
	tokens := b.table.Tokens
	var mu sync.Mutex
	var left atomic.Int64
	left.Store(int64(tokens))
	err = parallel(256, func(int) error {
		for n := left.Add(-1); n >= 0; n = left.Add(-1) {
			t, err := b.vault.Import(ctx, testCard(int(n%1000)), bulk)
			if err != nil {
				return err
			}
			if n%max(1, int64(tokens/10000)) == 0 {
				mu.Lock()
				b.ids = append(b.ids, t.ID)
				mu.Unlock()
			}
		}
		return nil
	})

	took := time.Since(start)
	fmt.Printf("%d tokens imported by 256 goroutines at %.0f a second; a record is %d bytes\n",
		tokens, float64(tokens)/took.Seconds(), b.rowBytes())
	return err
}

// rowBytes returns the size of the record of a token.
func (b *bench) rowBytes() int { return b.shape[0].value }
