package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// rowBytes returns the size of the record of a token.
func rowBytes(ctx context.Context) (int, error) {
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		return 0, err
	}
	r := &recorder{Store: memstore.New()}
	v, err := cardvault.New(ctx, r, keys, nil)
	if err != nil {
		return 0, err
	}
	r.size = 0
	_, err = v.Import(ctx, testCard(0), nil)
	return r.size, err
}

// bulk is for cards that were not guessed.
var bulk = &cardvault.ImportOptions{Bulk: true}

// imports compares durable imports with raw bbolt writing the same bytes.
func (b *bench) imports(ctx context.Context) error {
	appending, err := newFloor(filepath.Join(b.dir, "floor.db"), b.rowBytes, b.tokens)
	if err != nil {
		return err
	}
	defer appending.close()
	naive, err := bbolt.Open(filepath.Join(b.dir, "naive.db"), 0o600, nil)
	if err != nil {
		return err
	}
	defer naive.Close()

	value := make([]byte, b.rowBytes)
	visa := testCard(0)
	for _, n := range []int{1, 16, 64, 256} {
		err := b.compare(n,
			contender{"vault, one account", func(int) error {
				_, err := b.vault.Import(ctx, visa, nil)
				return err
			}},
			contender{"append-only bbolt with group commit", func(int) error { return appending.put() }},
			contender{"bbolt Batch, random key and three indexes", func(int) error { return batch(naive, value) }},
		)
		if err != nil {
			return err
		}
	}
	return b.importsApart(ctx)
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
	err := b.compare(64,
		contender{"vault, different cards, counted under their masks", func(int) error {
			_, err := b.vault.Import(ctx, testCard(int(turn.Add(1)%1000)), nil)
			return err
		}},
		contender{"vault, different cards, in bulk", func(int) error {
			_, err := b.vault.Import(ctx, testCard(int(turn.Add(1)%1000)), bulk)
			return err
		}},
	)
	if err != nil {
		return err
	}

	visa, coded := testCard(0), testCard(0)
	coded.SecurityCode = card.NewSecurityCode([]byte("737"))
	return b.compare(64,
		contender{"vault, one account", func(int) error {
			_, err := b.vault.Import(ctx, visa, nil)
			return err
		}},
		contender{"vault, 1000 accounts", func(int) error {
			_, err := accounts[turn.Add(1)%1000].Import(ctx, visa, nil)
			return err
		}},
		contender{"vault, a security code with every card", func(int) error {
			_, err := b.vault.Import(ctx, coded, nil)
			return err
		}},
		contender{"vault, business_key on every token", func(int) error {
			_, err := b.vault.Import(ctx, visa, &cardvault.ImportOptions{BusinessKey: uuid.NewString()})
			return err
		}},
	)
}

// batch stores a value under a random key with three random index entries, as
// a first sketch of a vault would.
func batch(db *bbolt.DB, value []byte) error {
	return db.Batch(func(tx *bbolt.Tx) error {
		rows, err := tx.CreateBucketIfNotExists([]byte("rows"))
		if err != nil {
			return err
		}

		id := uuid.New()
		if err := rows.Put(id[:], value); err != nil {
			return err
		}

		for _, name := range []string{"business_key", "fingerprint", "status"} {
			index, err := tx.CreateBucketIfNotExists([]byte(name))
			if err != nil {
				return err
			}
			key := uuid.New()
			if err := index.Put(key[:], id[:]); err != nil {
				return err
			}
		}
		return nil
	})
}

// A floor appends rows to one bbolt bucket: one goroutine commits whatever is
// queued. Nothing durable on bbolt can be faster.
type floor struct {
	db     *bbolt.DB
	value  []byte
	rows   uint64
	queue  chan chan error
	closed chan struct{}
}

// newFloor returns a floor that holds rows of a size already.
func newFloor(path string, size, rows int) (*floor, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, InitialMmapSize: 1 << 30})
	if err != nil {
		return nil, err
	}
	f := &floor{db, make([]byte, size), 0, make(chan chan error, 1024), make(chan struct{})}
	rand.Read(f.value)
	for left := rows; left > 0; left -= 10000 {
		if err := f.append(min(left, 10000)); err != nil {
			return nil, err
		}
	}
	go f.write()
	return f, nil
}

// append commits n rows.
func (f *floor) append(n int) error {
	return f.db.Update(func(tx *bbolt.Tx) error {
		rows, err := tx.CreateBucketIfNotExists([]byte("rows"))
		if err != nil {
			return err
		}
		rows.FillPercent = 1

		for range n {
			f.rows++
			var key [16]byte
			binary.BigEndian.PutUint64(key[:], f.rows)
			if err := rows.Put(key[:], f.value); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *floor) put() error {
	done := make(chan error, 1)
	f.queue <- done
	return <-done
}

func (f *floor) write() {
	defer close(f.closed)
	for first := range f.queue {
		group := []chan error{first}
		for len(group) < 256 && len(f.queue) > 0 {
			group = append(group, <-f.queue)
		}
		err := f.append(len(group))
		for _, done := range group {
			done <- err
		}
	}
}

func (f *floor) close() {
	close(f.queue)
	<-f.closed
	f.db.Close()
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
