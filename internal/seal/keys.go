package seal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/google/uuid"
)

// KeySize is the size of every secret key, in bytes.
const KeySize = 32

// hidden is embedded under this name, so that other packages cannot name the field.
type hidden = hiding.Bytes

// A Key is a secret key. However it is printed, logged or encoded, nothing of it shows.
type Key struct{ hidden }

// NewKey returns a Key of a copy of KeySize bytes.
func NewKey(b []byte) Key { return Key{hiding.New(b)} }

func randomKey() Key {
	b := make([]byte, KeySize)
	defer clear(b)
	rand.Read(b)
	return NewKey(b)
}

// Keys are the secret keys of one vault. They are stored wrapped by a
// key-encryption key and are in clear only in memory.
type Keys struct {
	Vault      uuid.UUID // random, made with the vault
	Generation uint32    // counts the changes of Keys

	// Masters are the master keys by term, rising from 1. Records are sealed
	// under keys derived from the last and opened under any.
	Masters []Master

	// ID masks row keys. It never changes: ids that the world holds depend on it.
	ID Key

	// Fingerprint and Lookup key the hashes by which cards and business keys are
	// found. They do not change with the master key's term.
	Fingerprint Key
	Lookup      Key

	// Audit keys the change detection of an audit log.
	Audit Key
}

// A Master is the master key of one term.
type Master struct {
	Term uint32
	Key  Key
}

// NewKeys makes the keys of a new vault, in their first term.
func NewKeys() *Keys {
	return &Keys{
		Vault:       uuid.New(),
		Masters:     []Master{{1, randomKey()}},
		ID:          randomKey(),
		Fingerprint: randomKey(),
		Lookup:      randomKey(),
		Audit:       randomKey(),
	}
}

// Next returns a copy of k with a master key for one more term.
func (k *Keys) Next() *Keys {
	next := *k
	next.Generation++
	m := Master{k.Masters[len(k.Masters)-1].Term + 1, randomKey()}
	next.Masters = append(k.Masters[:len(k.Masters):len(k.Masters)], m)
	return &next
}

const (
	tagVault = iota + 1
	tagGeneration
	tagTerm
	tagMaster
	tagID
	tagFingerprint
	tagLookup
	tagAudit
)

// Marshal returns k in clear, to be wrapped at once.
func (k *Keys) Marshal() []byte {
	b := make([]byte, 0, 256+64*len(k.Masters)) // never grown: nothing is left behind
	b = tlv.Append(b, tagVault, k.Vault[:])
	b = tlv.AppendUint(b, tagGeneration, uint64(k.Generation))
	for _, m := range k.Masters {
		b = tlv.AppendUint(b, tagTerm, uint64(m.Term))
		b = tlv.Append(b, tagMaster, hiding.Of(m.Key))
	}
	b = tlv.Append(b, tagID, hiding.Of(k.ID))
	b = tlv.Append(b, tagFingerprint, hiding.Of(k.Fingerprint))
	b = tlv.Append(b, tagLookup, hiding.Of(k.Lookup))
	return tlv.Append(b, tagAudit, hiding.Of(k.Audit))
}

var errKeys = errors.New("seal: keyring is malformed")

// ParseKeys reads what Marshal wrote. It keeps no reference to data.
func ParseKeys(data []byte) (*Keys, error) {
	k := new(Keys)
	var generation, term uint64
	missing := map[byte]*Key{tagID: &k.ID, tagFingerprint: &k.Fingerprint, tagLookup: &k.Lookup, tagAudit: &k.Audit}

	r := tlv.Read(data)
	for r.Next() {
		switch r.Tag {
		case tagGeneration:
			generation = r.Uint()
		case tagTerm:
			term = r.Uint()
		case tagMaster:
			last := uint64(0)
			if n := len(k.Masters); n > 0 {
				last = uint64(k.Masters[n-1].Term)
			}
			if len(r.Value) != KeySize || term <= last || term > math.MaxUint32 {
				return nil, errKeys
			}
			k.Masters = append(k.Masters, Master{uint32(term), NewKey(r.Value)})
		case tagVault:
			if len(r.Value) != len(k.Vault) || k.Vault != uuid.Nil {
				return nil, errKeys
			}
			copy(k.Vault[:], r.Value)
		case tagID, tagFingerprint, tagLookup, tagAudit:
			key, ok := missing[r.Tag]
			if !ok || len(r.Value) != KeySize {
				return nil, errKeys
			}
			*key = NewKey(r.Value)
			delete(missing, r.Tag)
		}
	}

	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", errKeys, err)
	}
	if len(missing) > 0 || len(k.Masters) == 0 || k.Vault == uuid.Nil || generation > math.MaxUint32 {
		return nil, errKeys
	}
	k.Generation = uint32(generation)
	return k, nil
}
