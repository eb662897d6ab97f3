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

// sessionKeyLife is how long a key is given out. It is honoured for the life of a
// session more.
const sessionKeyLife = 24 * time.Hour

// A sessionKey is a key of the whole vault, shared through the store by all who
// work on it: making one takes a tenth of a second, so sessions have none of their
// own.
type sessionKey struct {
	id        string
	made, due time.Time // it is honoured until due
	private   *rsa.PrivateKey
}

// sessionKeys are those that were seen, by their id.
type sessionKeys struct {
	mu     sync.Mutex
	latest *sessionKey
	byID   map[string]*sessionKey
}

// currentKey returns the key that is given out now. Of several processes that find
// none, each may make one.
func (v *Vault) currentKey(ctx context.Context) (*sessionKey, error) {
	v = v.whole()
	keys := &v.sessionKeys
	keys.mu.Lock()
	defer keys.mu.Unlock()
	if k := keys.latest; k != nil && now().Before(k.made.Add(sessionKeyLife)) {
		return k, nil
	}
	var list *store.List
	err := v.view(ctx, func(tx store.ReadTx) (err error) {
		list, err = tx.List(&store.Query{Kind: kindSessionKey, Live: now(), Desc: true, Limit: 1})
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(list.Records) > 0 {
		row := list.Records[0].ID
		if now().Before(rowkey.Time(row).Add(sessionKeyLife)) {
			k, err := v.loadKey(ctx, row)
			if err == nil {
				keys.latest = k
			}
			return k, err
		}
	}
	k, err := v.newKey(ctx)
	if err == nil {
		keys.latest = k
	}
	return k, err
}

// newKey makes a key and stores it.
func (v *Vault) newKey(ctx context.Context) (*sessionKey, error) {
	row, err := v.newRow()
	if err != nil {
		return nil, err
	}
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("cardvault: making a session key: %w", err)
	}
	r := v.newRecord(kindSessionKey, row)
	r.Due = rowkey.Time(row).Add(sessionKeyLife + v.opts.SessionTTL)
	if err := v.box.SealShown(r, nil); err != nil {
		return nil, wrapped(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("cardvault: making a session key: %w", err)
	}
	defer clear(der)
	if err := v.box.SealSecret(r, der); err != nil {
		return nil, wrapped(err)
	}
	if err := v.put(ctx, opSessionKey, uuid.Nil, r); err != nil {
		return nil, err
	}
	v.workDue(r)
	k := &sessionKey{v.mask(kindSessionKey, row).String(), rowkey.Time(row), r.Due, private}
	v.sessionKeys.add(k)
	return k, nil
}

// keyOf returns the key of an id, or ErrNotFound.
func (v *Vault) keyOf(ctx context.Context, id string) (*sessionKey, error) {
	v = v.whole()
	v.sessionKeys.mu.Lock()
	defer v.sessionKeys.mu.Unlock()
	if k := v.sessionKeys.byID[id]; k != nil && k.due.After(now()) {
		return k, nil
	}
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.String() != id {
		return nil, ErrNotFound
	}
	row := v.unmask(kindSessionKey, parsed)
	if row == uuid.Nil {
		return nil, ErrNotFound
	}
	return v.loadKey(ctx, row)
}

// loadKey reads a key from the store.
func (v *Vault) loadKey(ctx context.Context, row uuid.UUID) (*sessionKey, error) {
	r, err := v.getRow(ctx, kindSessionKey, row)
	if err != nil {
		return nil, err
	}
	// The shown part holds nothing, but vouches for when the key is due.
	if _, err := v.openShown(ctx, r); err != nil {
		return nil, err
	}
	der, err := v.box.OpenSecret(r)
	if err != nil {
		return nil, wrapped(err)
	}
	defer clear(der)
	private, err := x509.ParsePKCS8PrivateKey(der)
	key, ok := private.(*rsa.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("%w: session key cannot be read", ErrDamaged)
	}
	k := &sessionKey{v.mask(kindSessionKey, row).String(), rowkey.Time(row), r.Due, key}
	v.sessionKeys.add(k)
	return k, nil
}

// add keeps a key, and forgets those that are over. The caller holds the lock.
func (s *sessionKeys) add(k *sessionKey) {
	if s.byID == nil {
		s.byID = map[string]*sessionKey{}
	}
	at := now()
	for id, k := range s.byID {
		if !k.due.After(at) {
			delete(s.byID, id)
		}
	}
	s.byID[k.id] = k
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
