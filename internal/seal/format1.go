package seal

import (
	"fmt"
	"math"

	"github.com/cardvault/cardvault/internal/tlv"
)

// Fields of keys in format 1, beside tagVault and tagGeneration. Each key stood alone, and
// nothing said when it was made.
const (
	format1Term = iota + 3
	format1Master
	format1ID
	format1Fingerprint
	format1Lookup
	format1Audit
)

// OpenFormat1 is ParseFormat1 of keys that were sealed under a data key.
func OpenFormat1(dataKey, sealed, aad []byte, keyID string) (*Keys, error) {
	plain, err := dataAEAD(dataKey).Open(nil, nil, sealed, aad)
	if err != nil {
		return nil, ErrIntegrity
	}
	defer clear(plain)
	return ParseFormat1(plain, keyID)
}

// ParseFormat1 reads keys of format 1, which the key-encryption key of an id wrapped as they
// were. It keeps no reference to data.
func ParseFormat1(data []byte, keyID string) (*Keys, error) {
	k := &Keys{Wrappings: []Wrapping{{KeyID: keyID}}}
	single := map[byte]*Series{format1ID: &k.IDs, format1Fingerprint: &k.Fingerprints, format1Lookup: &k.Lookups, format1Audit: &k.Audits}

	var generation, term uint64
	var bad error
	r := tlv.Read(data)
	for r.Next() && bad == nil {
		switch r.Tag {
		case tagVault:
			bad = k.parseVault(r.Value)
		case tagGeneration:
			generation = r.Uint()
		case format1Term:
			term = r.Uint()
		case format1Master:
			bad = k.Masters.addFormat1(term, r.Value)
		case format1ID, format1Fingerprint, format1Lookup, format1Audit:
			bad = single[r.Tag].addFormat1(1, r.Value)
		}
	}

	if bad == nil {
		bad = r.Err()
	}
	if bad != nil {
		return nil, fmt.Errorf("%w: %w", errKeys, bad)
	}
	if generation > math.MaxUint32 || !k.valid() {
		return nil, errKeys
	}
	k.Generation = uint32(generation)
	return k, nil
}

// addFormat1 appends a key, which is the active one now.
func (s *Series) addFormat1(number uint64, key []byte) error {
	if len(key) != KeySize || number > math.MaxUint32 {
		return errKeys
	}
	if n := len(*s); n > 0 {
		(*s)[n-1].State = Readable
	}
	*s = append(*s, Term{Number: uint32(number), State: Active, Key: NewKey(key)})
	return nil
}
