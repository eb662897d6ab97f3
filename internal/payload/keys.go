package payload

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	keyLife        = 24 * time.Hour // how long a key is given out
	honouredLonger = time.Hour      // how much longer it is honoured: no session lasts longer
	clockSkew      = time.Minute    // a key from farther ahead is not given out
)

// maxTried bounds the keys that are tried on a payload that names no key: each costs an RSA
// decryption. There are today's key, for an hour the one before, and perhaps a key that
// cannot be read.
const maxTried = 3

var opMake = ledger.Adds("session_key.create")

// A Key is a key of the whole vault, shared through the store by all processes that work on
// it. Making one takes a tenth of a second, so sessions have none of their own.
type Key struct {
	ID        string
	made, due time.Time // it is honoured until due
	private   *rsa.PrivateKey
}

// N returns the modulus, big-endian. The exponent is 65537.
func (k *Key) N() []byte { return k.private.N.Bytes() }

// current reports whether the key may be given out. A nil Key may not.
func (k *Key) current() bool {
	at := ledger.Now()
	return k != nil && at.Before(k.made.Add(keyLife)) && !k.made.After(at.Add(clockSkew))
}

// known are the keys that this process has seen and that are honoured.
type known struct {
	mu     sync.Mutex // guards what follows
	latest *Key
	byID   map[string]*Key
}

// get returns a cached key, or nil. It drops keys that have lapsed.
func (s *known) get(id string) *Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := ledger.Now()
	for id, k := range s.byID {
		if !k.due.After(at) {
			delete(s.byID, id)
		}
	}
	return s.byID[id]
}

func (s *known) add(k *Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[k.ID] = k
	if k.current() && (!s.latest.current() || k.made.After(s.latest.made)) {
		s.latest = k
	}
}

// current returns the key to give out, or nil.
func (s *known) current() *Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.latest.current() {
		s.latest = nil
	}
	return s.latest
}

// making is the making of a key, by one goroutine of a process at a time.
type making struct {
	turn  chan struct{}   // holds a token while a goroutine looks for a key to give out
	spare *rsa.PrivateKey // that could not be stored; belongs to the goroutine whose turn it is
}

// Current returns the key that is given out now. If there is no key, one of several
// processes makes it.
func (k *Keys) Current(ctx context.Context) (*Key, error) {
	if key := k.known.current(); key != nil {
		return key, nil
	}

	select {
	case k.making.turn <- struct{}{}:
		defer func() { <-k.making.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if key := k.known.current(); key != nil {
		return key, nil
	}

	// In each round but the last another process has made a key.
	for {
		q := k.newest(8)
		stored, err := k.list(ctx, q)
		if err != nil {
			return nil, err
		}

		for _, r := range stored {
			key, err := k.load(ctx, r.ID)
			switch {
			case errors.Is(err, ledger.ErrDamaged):
				k.config.Log.Error("session key cannot be read: another is made", "error", err)
			case err != nil && !errors.Is(err, ledger.ErrNotFound):
				return nil, err
			case err == nil && key.current():
				return key, nil
			}
		}

		key, err := k.newKey(ctx, q, stored)
		if !errors.Is(err, errKeyMade) {
			return key, err
		}
	}
}

// honoured returns the keys that may open a payload which names none, newest first.
func (k *Keys) honoured(ctx context.Context) ([]*Key, error) {
	list, err := k.list(ctx, k.newest(maxTried))
	if err != nil {
		return nil, err
	}

	var keys []*Key
	for _, r := range list {
		key, err := k.find(ctx, k.rows.Mask(k.config.Keys, r.ID).String())
		switch {
		case err == nil:
			keys = append(keys, key)
		case !errors.Is(err, ledger.ErrDamaged) && !errors.Is(err, ledger.ErrNotFound):
			return nil, err
		}
	}
	return keys, nil
}

// newest selects the newest keys that are honoured. A key that a clock which was ahead has
// made sorts last, and is passed over.
func (k *Keys) newest(limit int) *store.Query {
	at := ledger.Now()
	return &store.Query{Kind: k.config.Keys, Live: at, Max: rowkey.Last(at.Add(clockSkew)), Desc: true, Limit: limit}
}

func (k *Keys) list(ctx context.Context, q *store.Query) ([]*store.Record, error) {
	if k.config.Ledger.Closed() {
		return nil, ledger.ErrClosed
	}
	var list *store.List
	err := k.rows.View(ctx, func(tx store.ReadTx) (err error) {
		list, err = tx.List(q)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list.Records, nil
}

// find returns the key of an id, or ledger.ErrNotFound.
func (k *Keys) find(ctx context.Context, id string) (*Key, error) {
	id = strings.ToLower(id)
	if key := k.known.get(id); key != nil {
		return key, nil
	}
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.String() != id {
		return nil, ledger.ErrNotFound
	}
	row := k.rows.Unmask(k.config.Keys, parsed)
	if row == uuid.Nil {
		return nil, ledger.ErrNotFound
	}
	return k.load(ctx, row)
}

// load reads a key from the store.
func (k *Keys) load(ctx context.Context, row uuid.UUID) (*Key, error) {
	r, err := k.rows.GetRow(ctx, k.config.Keys, row)
	if err != nil {
		return nil, err
	}

	// The shown part holds nothing, but vouches for when the key is due.
	if _, err := k.rows.OpenShown(ctx, r); err != nil {
		return nil, err
	}

	der, err := k.rows.OpenSecret(ctx, r)
	if err != nil {
		return nil, err
	}
	defer clear(der)

	parsed, err := x509.ParsePKCS8PrivateKey(der)
	private, ok := parsed.(*rsa.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("%w: session key cannot be read", ledger.ErrDamaged)
	}

	key := &Key{k.rows.Mask(k.config.Keys, row).String(), rowkey.Time(row), r.Due, private}
	k.known.add(key)
	return key, nil
}

var errKeyMade = fmt.Errorf("%w: another process has made a session key", ledger.ErrAgain)

// newKey makes a key and stores it, unless there is another newest one by now than in the
// list that q selected. It is called by the goroutine whose turn it is.
func (k *Keys) newKey(ctx context.Context, q *store.Query, stored []*store.Record) (*Key, error) {
	row, err := k.rows.NewRow()
	if err != nil {
		return nil, err
	}
	if k.making.spare == nil {
		if k.making.spare, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			return nil, fmt.Errorf("cardvault: making a session key: %w", err)
		}
	}

	r := k.rows.NewRecord(k.config.Keys, row)
	r.Due = rowkey.Time(row).Add(keyLife + honouredLonger)
	if err := k.rows.SealShown(r, nil); err != nil {
		return nil, err
	}

	der, err := x509.MarshalPKCS8PrivateKey(k.making.spare)
	if err != nil {
		return nil, fmt.Errorf("cardvault: making a session key: %w", err)
	}
	defer clear(der)
	if err := k.rows.SealSecret(r, der); err != nil {
		return nil, err
	}

	err = k.rows.Write(ctx, opMake, uuid.Nil, func(tx store.Tx) error {
		newest, err := tx.List(q)
		if err != nil {
			return err
		}
		if len(newest.Records) > 0 && (len(stored) == 0 || newest.Records[0].ID != stored[0].ID) {
			return errKeyMade
		}
		tx.Put(r)
		return nil
	})
	if err != nil {
		return nil, err
	}

	k.config.Jobs.Due(r)
	key := &Key{k.rows.Mask(k.config.Keys, row).String(), rowkey.Time(row), r.Due, k.making.spare}
	k.making.spare = nil
	k.known.add(key)
	return key, nil
}
