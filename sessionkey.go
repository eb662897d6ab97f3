package cardvault

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
)

// A SessionKey is the public key under which a browser encrypts what is entered in
// a session: RSA of 2048 bits with the exponent 65537, for RSA-OAEP-256.
type SessionKey struct {
	ID string // of the key, for the header kid
	N  []byte // modulus, big-endian
}

const (
	sessionKeyLife = 24 * time.Hour // how long a key is given out
	maxSessionTTL  = time.Hour      // how much longer it is honoured, whatever SessionTTL is
	clockSkew      = time.Minute    // a key from farther ahead is not given out
)

// A sessionKey is a key of the whole vault, shared through the store by all who
// work on it: making one takes a tenth of a second, so sessions have none of their
// own.
type sessionKey struct {
	id        string
	made, due time.Time // it is honoured until due
	private   *rsa.PrivateKey
}

// current reports whether the key may be given out.
func (k *sessionKey) current() bool {
	at := now()
	return k != nil && at.Before(k.made.Add(sessionKeyLife)) && !k.made.After(at.Add(clockSkew))
}

// sessionKeys are those that were seen and are honoured.
type sessionKeys struct {
	turn  chan struct{}   // holds a token while somebody looks for a key to give out
	spare *rsa.PrivateKey // that could not be stored; for whose turn it is

	mu     sync.Mutex
	latest *sessionKey
	byID   map[string]*sessionKey
}

func (s *sessionKeys) init() {
	s.turn = make(chan struct{}, 1)
	s.byID = map[string]*sessionKey{}
}

// get returns a key that was seen, or nil. It forgets those that are over.
func (s *sessionKeys) get(id string) *sessionKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := now()
	for id, k := range s.byID {
		if !k.due.After(at) {
			delete(s.byID, id)
		}
	}
	return s.byID[id]
}

func (s *sessionKeys) add(k *sessionKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[k.id] = k
	if k.current() && (!s.latest.current() || k.made.After(s.latest.made)) {
		s.latest = k
	}
}

// giveOut returns the key to give out, or nil.
func (s *sessionKeys) giveOut() *sessionKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.latest.current() {
		s.latest = nil
	}
	return s.latest
}

// currentKey returns the key that is given out now. Of several processes that find
// none one makes it.
func (v *Vault) currentKey(ctx context.Context) (*sessionKey, error) {
	v = v.whole()
	keys := &v.sessionKeys
	if k := keys.giveOut(); k != nil {
		return k, nil
	}

	select {
	case keys.turn <- struct{}{}:
		defer func() { <-keys.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	if k := keys.giveOut(); k != nil {
		return k, nil
	}

	// Each turn but the last somebody else has made a key.
	for {
		q := newestKeys(8)
		list, err := v.listKeys(ctx, q)
		if err != nil {
			return nil, err
		}

		for _, r := range list {
			k, err := v.loadKey(ctx, r.ID)
			switch {
			case errors.Is(err, ErrDamaged):
				v.log.Error("session key cannot be read: another is made", "error", err)
			case err != nil && !errors.Is(err, ErrNotFound):
				return nil, err
			case err == nil && k.current():
				return k, nil
			}
		}

		k, err := v.newKey(ctx, q, list)
		if !errors.Is(err, errKeyMade) {
			return k, err
		}
	}
}

// newestKeys selects the newest keys that are honoured. What a clock that was ahead has
// made sorts last, and is passed over.
func newestKeys(limit int) *store.Query {
	at := now()
	return &store.Query{Kind: kindSessionKey, Live: at, Max: rowkey.Last(at.Add(clockSkew)), Desc: true, Limit: limit}
}

func (v *Vault) listKeys(ctx context.Context, q *store.Query) ([]*store.Record, error) {
	if v.ledger.Closed() {
		return nil, ErrClosed
	}
	var list *store.List
	err := v.rows.View(ctx, func(tx store.ReadTx) (err error) {
		list, err = tx.List(q)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list.Records, nil
}

// maxTried bounds the keys that are tried on a payload which names none: each costs an
// RSA decryption. There are the one of the day, for an hour the one before, and perhaps
// one that cannot be read.
const maxTried = 3

// honouredKeys returns the keys that may open a payload which names none, newest first.
func (v *Vault) honouredKeys(ctx context.Context) ([]*sessionKey, error) {
	v = v.whole()
	list, err := v.listKeys(ctx, newestKeys(maxTried))
	if err != nil {
		return nil, err
	}

	var keys []*sessionKey
	for _, r := range list {
		k, err := v.keyOf(ctx, v.rows.Mask(kindSessionKey, r.ID).String())
		switch {
		case err == nil:
			keys = append(keys, k)
		case !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNotFound):
			return nil, err
		}
	}
	return keys, nil
}

var errKeyMade = fmt.Errorf("%w: another process has made a session key", ledger.ErrAgain)

// newKey makes a key and stores it, unless there is another newest one by now than in
// the list that q selected.
func (v *Vault) newKey(ctx context.Context, q *store.Query, known []*store.Record) (*sessionKey, error) {
	row, err := v.rows.NewRow()
	if err != nil {
		return nil, err
	}

	keys := &v.sessionKeys
	if keys.spare == nil {
		if keys.spare, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			return nil, fmt.Errorf("cardvault: making a session key: %w", err)
		}
	}

	r := v.rows.NewRecord(kindSessionKey, row)
	r.Due = rowkey.Time(row).Add(sessionKeyLife + maxSessionTTL)
	if err := v.rows.SealShown(r, nil); err != nil {
		return nil, err
	}

	der, err := x509.MarshalPKCS8PrivateKey(keys.spare)
	if err != nil {
		return nil, fmt.Errorf("cardvault: making a session key: %w", err)
	}
	defer clear(der)
	if err := v.rows.SealSecret(r, der); err != nil {
		return nil, err
	}

	err = v.rows.Write(ctx, opSessionKey, uuid.Nil, func(tx store.Tx) error {
		newest, err := tx.List(q)
		if err != nil {
			return err
		}
		if len(newest.Records) > 0 && (len(known) == 0 || newest.Records[0].ID != known[0].ID) {
			return errKeyMade
		}
		tx.Put(r)
		return nil
	})
	if err != nil {
		return nil, err
	}

	v.jobs.Due(r)
	k := &sessionKey{v.rows.Mask(kindSessionKey, row).String(), rowkey.Time(row), r.Due, keys.spare}
	keys.spare = nil
	keys.add(k)
	return k, nil
}

// keyOf returns the key of an id, or ErrNotFound.
func (v *Vault) keyOf(ctx context.Context, id string) (*sessionKey, error) {
	v = v.whole()
	if k := v.sessionKeys.get(id); k != nil {
		return k, nil
	}
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.String() != id {
		return nil, ErrNotFound
	}
	row := v.rows.Unmask(kindSessionKey, parsed)
	if row == uuid.Nil {
		return nil, ErrNotFound
	}
	return v.loadKey(ctx, row)
}

// loadKey reads a key from the store.
func (v *Vault) loadKey(ctx context.Context, row uuid.UUID) (*sessionKey, error) {
	r, err := v.rows.GetRow(ctx, kindSessionKey, row)
	if err != nil {
		return nil, err
	}

	// The shown part holds nothing, but vouches for when the key is due.
	if _, err := v.rows.OpenShown(ctx, r); err != nil {
		return nil, err
	}

	der, err := v.rows.OpenSecret(ctx, r)
	if err != nil {
		return nil, err
	}
	defer clear(der)

	private, err := x509.ParsePKCS8PrivateKey(der)
	key, ok := private.(*rsa.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("%w: session key cannot be read", ErrDamaged)
	}

	k := &sessionKey{v.rows.Mask(kindSessionKey, row).String(), rowkey.Time(row), r.Due, key}
	v.sessionKeys.add(k)
	return k, nil
}

// DecryptKey opens the content-encryption key of a payload, and keeps it.
func (d *decryption) DecryptKey(encrypted []byte, _ jose.Header) (key []byte, err error) {
	if key, err = rsa.DecryptOAEP(sha256.New(), nil, d.key.private, encrypted, nil); err == nil && len(key) != 32 {
		err = errUndecryptable
	}
	d.contentKey = key
	return key, err
}

// A decryption opens one payload.
type decryption struct {
	key        *sessionKey
	contentKey []byte
}

var errUndecryptable = errors.New("cardvault: payload cannot be decrypted")
