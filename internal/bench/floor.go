package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// A shape lists what bbolt has to put for one call: its records, with their places in
// indexes. The record of the token is first.
type shape []put

// A put is one key with its value in a bucket of its own.
type put struct {
	random bool // the keys have no order
	value  int  // in bytes
}

// shapeOf returns what an import puts. options may be nil; otherwise it returns the
// options of each import.
func shapeOf(ctx context.Context, options func() *cardvault.ImportOptions) (shape, error) {
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		return nil, err
	}
	r := &recorder{Store: memstore.New()}
	v, err := cardvault.New(ctx, r, keys, nil)
	if err != nil {
		return nil, err
	}

	// Keys that ascend from call to call by chance do so a thousand times less often.
	var calls [10][]store.Record
	for i := range calls {
		r.put = nil
		var opts *cardvault.ImportOptions
		if options != nil {
			opts = options()
		}
		if _, err := v.Import(ctx, testCard(0), opts); err != nil {
			return nil, err
		}
		calls[i] = r.put
	}
	return shapeOfRecords(calls[1:]), nil // the first also puts records of the account
}

// shapeOfRecords returns the shape of calls that put records of the same kinds.
func shapeOfRecords(calls [][]store.Record) (all shape) {
	for i, r := range calls[0] {
		ascending := slices.IsSortedFunc(calls, func(a, b []store.Record) int { return slices.Compare(a[i].ID[:], b[i].ID[:]) })
		// Kind, id, account, class and version beside the sealed columns.
		all = append(all, put{!ascending, 16 + 16 + 1 + 1 + 8 + len(r.Shown) + len(r.Secret)})
		if !r.Due.IsZero() {
			all = append(all, put{false, 17})
		}
		for range r.Lookup {
			all = append(all, put{true, 0})
		}
	}
	return all
}

// A recorder is a store that remembers the records which were put.
type recorder struct {
	store.Store
	put []store.Record
}

func (r *recorder) Update(ctx context.Context, fn func(store.Tx) error) error {
	return r.Store.Update(ctx, func(tx store.Tx) error { return fn(&recorderTx{tx, r}) })
}

type recorderTx struct {
	store.Tx
	r *recorder
}

func (tx *recorderTx) Put(r *store.Record) {
	tx.r.put = append(tx.r.put, *r)
	tx.Tx.Put(r)
}

// A floor puts rows of a shape with bbolt: one goroutine commits everything that is queued.
// Nothing durable on bbolt can be faster.
type floor struct {
	db     *bbolt.DB
	shape  shape
	value  []byte
	rows   uint64
	queue  chan chan error
	closed chan struct{}
}

// newFloor returns a floor that holds rows of tokens already.
func newFloor(path string, s shape, rows int) (*floor, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, InitialMmapSize: 1 << 30})
	if err != nil {
		return nil, err
	}

	longest := slices.MaxFunc(s, func(a, b put) int { return a.value - b.value })
	f := &floor{db, s, make([]byte, longest.value), 0, make(chan chan error, 1024), make(chan struct{})}
	rand.Read(f.value)
	for left := rows; left > 0; left -= 10000 {
		if err := f.append(min(left, 10000), s[:1]); err != nil {
			return nil, err
		}
	}
	go f.write()
	return f, nil
}

// append commits n rows of a shape.
func (f *floor) append(n int, s shape) error {
	return f.db.Update(func(tx *bbolt.Tx) error {
		buckets := make([]*bbolt.Bucket, len(s))
		for i, p := range s {
			var err error
			if buckets[i], err = tx.CreateBucketIfNotExists(fmt.Append(nil, "rows", i)); err != nil {
				return err
			}
			if !p.random {
				buckets[i].FillPercent = 1
			}
		}

		for range n {
			f.rows++
			for i, p := range s {
				var key uuid.UUID
				if p.random {
					key = uuid.New()
				}
				if !p.random {
					binary.BigEndian.PutUint64(key[:], f.rows)
				}
				if err := buckets[i].Put(key[:], f.value[:p.value]); err != nil {
					return err
				}
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
		err := f.append(len(group), f.shape)
		for _, done := range group {
			done <- err
		}
	}
}

func (f *floor) close() error {
	close(f.queue)
	<-f.closed
	return f.db.Close()
}

// contender returns the floor as one.
func (f *floor) contender() contender {
	return contender{name: "append-only bbolt loop", run: func(int) error { return f.put() }}
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
