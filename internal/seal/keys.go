package seal

import (
	"bytes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/erase"
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

// Keys are the secret keys of one vault. They are stored sealed under a data key, which a
// key-encryption key wraps: see [SealKeys]. They are in clear only in memory.
//
// They are encoded as fields of package tlv, by these tags:
//
//	1 vault | 2 generation
//	9 master key | 10 id key | 11 fingerprint key | 12 lookup key | 13 audit key, each number once:
//		1 number | 2 state | 3 key | 4 created | 5 closed | 6 destroyed | 7 public key
//	14 wrapping, the present one last:
//		1 id of the key-encryption key | 2 since
//	15 number of fences | 16 fence: 1 move | 2 at | 3 opener | 17 steps of sums
//
// Numbers and states are big-endian, times in microseconds since 1970. A field that is zero is
// left out.
type Keys struct {
	Vault      uuid.UUID // random, made with the vault
	Generation uint32    // counts the changes of Keys

	// Masters are the master keys. Records are sealed under keys derived from the active
	// one, and opened under any.
	Masters Series

	// IDs mask row keys. There is one, which never changes: ids that the world holds
	// depend on it.
	IDs Series

	// Fingerprints and Lookups key the hashes by which cards and business keys are found.
	// They change apart from the master keys, and from each other. The first of Lookups also
	// keys hashes that cannot change, such as ids, so it is never destroyed.
	Fingerprints, Lookups Series

	// Audits are the keys of the audit log. What it needs is derived from one by HKDF, as
	// record keys are: purpose "audit mac" for the MAC of a record, and "audit signing"
	// for the seed of the Ed25519 key that signs checkpoints.
	Audits Series

	// Wrappings are the key-encryption keys that wrapped Keys, the present one last. At
	// most MaxWrappings are kept.
	Wrappings []Wrapping

	// Fence is not nil while the vault moves to another place, and once it has moved. Fences
	// counts the fences of before too.
	Fence  *Fence
	Fences uint32

	// SumSteps counts the steps of sums: see [Keys.Summed].
	SumSteps uint32
}

// A Series holds the keys of one purpose by number, rising from 1. One of them is active.
type Series []Term

// A Term is one key of a Series.
type Term struct {
	Number  uint32
	State   State
	Key     Key       // empty once it is destroyed
	Created time.Time // zero for a key of format 1: it counts as old as the vault

	Closed    time.Time // when it became Closed; zero before
	Destroyed time.Time // when it became Destroyed; zero before

	// Public is the public key of a destroyed key of the audit log, which verifies what that
	// has signed. It is nil for all others.
	Public ed25519.PublicKey
}

// A State says what a key is used for. Keys become what stands further down.
type State uint8

const (
	// Pending: hashes are made under it too, beside those under the active key, which are shown.
	// Only the last key of a Series is pending.
	Pending State = iota + 1

	// Active: records are sealed, and hashes made, under it.
	Active

	// Readable: it opens and finds. A process that has not followed yet may still use it as
	// the active one. Of Lookups: hashes are made under it too, beside those under the active key,
	// which are searched.
	Readable

	// Closed: it opens and finds, and no transaction writes anything under it any more.
	Closed

	// Destroyed: the key is gone. Its number and its times are kept.
	Destroyed
)

// A Wrapping is the time of a key-encryption key.
type Wrapping struct {
	KeyID string
	Since time.Time // zero for the key of a vault of format 1
}

// Limits of Keys, which make them fit into a record beside their wrapped data key.
const (
	MaxTerms     = 500 // of all Series together
	MaxWrappings = 32
	maxKeyID     = 255
)

// NewKeys makes the keys of a new vault, in their first term.
func NewKeys(at time.Time) *Keys {
	first := func() Series { return Series{{Number: 1, State: Active, Key: randomKey(), Created: at}} }
	return &Keys{Vault: uuid.New(), Masters: first(), IDs: first(), Fingerprints: first(), Lookups: first(), Audits: first()}
}

// Active returns the key under which is written.
func (s Series) Active() *Term {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i].State == Active {
			return &s[i]
		}
	}
	return nil // ParseKeys refuses such a Series
}

// key returns the active key of a Series.
func (s Series) key() []byte { return hiding.Of(s.Active().Key) }

// Next returns a copy of k with a master key for one more term, or nil if there is no room.
func (k *Keys) Next(at time.Time, room int) *Keys {
	if k.terms() >= room {
		return nil
	}
	next := k.after()
	next.Masters.Active().State = Readable
	next.Masters.begin(Active, at)
	return next
}

// NextAudit returns a copy of k with a key for one more term of the audit log, or nil if there
// is no room. The former key is destroyed: nothing needs it any more but its public key.
func (k *Keys) NextAudit(at time.Time, room int) *Keys {
	if k.terms() >= room {
		return nil
	}
	next := k.after()
	last := next.Audits.Active()
	last.Public = last.signer(k.Vault).Public().(ed25519.PublicKey)
	last.State, last.Key, last.Destroyed = Destroyed, Key{}, at
	next.Audits.begin(Active, at)
	return next
}

// begin appends a new key.
func (s *Series) begin(state State, at time.Time) {
	number := (*s)[len(*s)-1].Number + 1
	*s = append(*s, Term{Number: number, State: state, Key: randomKey(), Created: at})
}

// WrappedBy returns a copy of k that a key-encryption key wraps.
func (k *Keys) WrappedBy(keyID string, at time.Time) *Keys {
	next := k.after()
	if keyID != k.KeyID() {
		next.Wrappings = append(next.Wrappings, Wrapping{keyID, at})
		next.Wrappings = next.Wrappings[max(0, len(next.Wrappings)-MaxWrappings):]
	}
	return next
}

// KeyID returns the id of the key-encryption key that wraps k.
func (k *Keys) KeyID() string {
	if len(k.Wrappings) == 0 {
		return "" // of keys that are never stored
	}
	return k.Wrappings[len(k.Wrappings)-1].KeyID
}

// HadKey reports whether a key-encryption key wraps k, or did.
func (k *Keys) HadKey(id string) bool {
	return slices.ContainsFunc(k.Wrappings, func(w Wrapping) bool { return w.KeyID == id })
}

// after returns a copy of k, of the next generation.
func (k *Keys) after() *Keys {
	next := *k
	next.Generation++
	next.Wrappings = slices.Clone(k.Wrappings)
	for _, s := range next.series() {
		*s.of = slices.Clone(*s.of)
	}
	return &next
}

// terms returns how many keys there are.
func (k *Keys) terms() (n int) {
	for _, s := range k.series() {
		n += len(*s.of)
	}
	return n
}

const (
	tagVault      = 1
	tagGeneration = 2
	// 3 to 8 are of format 1.
	tagMaster      = 9
	tagID          = 10
	tagFingerprint = 11
	tagLookup      = 12
	tagAudit       = 13
	tagWrapping    = 14
	tagFences      = 15
	tagFence       = 16
	tagSumSteps    = 17
)

// Fields of a Term.
const (
	termNumber = iota + 1
	termState
	termKey
	termCreated
	termClosed
	termDestroyed
	termPublic
)

// Fields of a Wrapping.
const (
	wrappingKeyID = iota + 1
	wrappingSince
)

// longest bounds what a Term takes.
const longest = 80

type tagged struct {
	tag byte
	of  *Series
}

func (k *Keys) series() []tagged {
	return []tagged{
		{tagMaster, &k.Masters}, {tagID, &k.IDs}, {tagFingerprint, &k.Fingerprints}, {tagLookup, &k.Lookups}, {tagAudit, &k.Audits},
	}
}

// Marshal returns k in clear, to be sealed at once.
func (k *Keys) Marshal() []byte {
	b := make([]byte, 0, 160+longest*k.terms()+(maxKeyID+16)*len(k.Wrappings)) // never grown: nothing is left behind
	b = tlv.Append(b, tagVault, k.Vault[:])
	b = tlv.AppendUint(b, tagGeneration, uint64(k.Generation))

	term := make([]byte, 0, longest)
	defer func() { clear(term[:cap(term)]) }()
	for _, s := range k.series() {
		for _, t := range *s.of {
			term = t.append(term[:0])
			b = tlv.Append(b, s.tag, term)
		}
	}

	for _, w := range k.Wrappings {
		b = tlv.Append(b, tagWrapping, tlv.AppendTime(tlv.Append(nil, wrappingKeyID, w.KeyID), wrappingSince, w.Since))
	}
	b = tlv.AppendUint(b, tagFences, uint64(k.Fences))
	if k.Fence != nil {
		b = tlv.Append(b, tagFence, tlv.Encode(k.Fence.fields))
	}
	return tlv.AppendUint(b, tagSumSteps, uint64(k.SumSteps))
}

func (t *Term) append(b []byte) []byte {
	b = tlv.AppendUint(b, termNumber, uint64(t.Number))
	b = tlv.AppendUint(b, termState, uint64(t.State))
	b = tlv.Append(b, termKey, hiding.Of(t.Key))
	b = tlv.AppendTime(b, termCreated, t.Created)
	b = tlv.AppendTime(b, termClosed, t.Closed)
	b = tlv.AppendTime(b, termDestroyed, t.Destroyed)
	return tlv.Append(b, termPublic, t.Public)
}

// SealKeys returns k sealed under a data key of KeySize bytes that seals nothing else,
// bound to aad.
func SealKeys(dataKey []byte, k *Keys, aad []byte) (sealed []byte) {
	plain := k.Marshal()
	defer clear(plain)
	erase.Do(func() { sealed = dataAEAD(dataKey).Seal(nil, nil, plain, aad) })
	return sealed
}

// OpenKeys returns what SealKeys was given: ErrIntegrity if that was another data key, or
// other associated data.
func OpenKeys(dataKey, sealed, aad []byte) (k *Keys, err error) {
	var plain []byte
	erase.Do(func() { plain, err = dataAEAD(dataKey).Open(nil, nil, sealed, aad) })
	if err != nil {
		return nil, ErrIntegrity
	}
	defer clear(plain)
	return ParseKeys(plain)
}

func dataAEAD(dataKey []byte) cipher.AEAD {
	aead, err := cipher.NewGCMWithRandomNonce(newAES(dataKey))
	if err != nil {
		panic(err) // only for a block that is not AES
	}
	return aead
}

var errKeys = errors.New("seal: keyring is malformed")

// ParseKeys reads what Marshal wrote. It keeps no reference to data.
func ParseKeys(data []byte) (*Keys, error) {
	k := new(Keys)
	series := map[byte]*Series{}
	for _, s := range k.series() {
		series[s.tag] = s.of
	}

	var generation, fences, sumSteps uint64
	var bad error
	r := tlv.Read(data)
	for r.Next() && bad == nil {
		switch s := series[r.Tag]; {
		case s != nil:
			var t Term
			t, bad = parseTerm(r.Value)
			*s = append(*s, t)
		case r.Tag == tagVault:
			bad = k.parseVault(r.Value)
		case r.Tag == tagGeneration:
			generation = r.Uint()
		case r.Tag == tagWrapping:
			var w Wrapping
			w, bad = parseWrapping(r.Value)
			k.Wrappings = append(k.Wrappings, w)
		case r.Tag == tagFences:
			fences = r.Uint()
		case r.Tag == tagFence:
			k.Fence, bad = parseFence(r.Value)
		case r.Tag == tagSumSteps:
			sumSteps = r.Uint()
		}
	}

	if err := errors.Join(r.Err(), bad); err != nil {
		return nil, fmt.Errorf("%w: %w", errKeys, err)
	}
	if generation > math.MaxUint32 || fences > math.MaxUint32 || sumSteps > math.MaxUint32 || k.Fence != nil && fences == 0 || !k.valid() {
		return nil, errKeys
	}
	k.Generation, k.Fences, k.SumSteps = uint32(generation), uint32(fences), uint32(sumSteps)
	return k, nil
}

func (k *Keys) parseVault(value []byte) error {
	if len(value) != len(k.Vault) || k.Vault != uuid.Nil {
		return errKeys
	}
	copy(k.Vault[:], value)
	return nil
}

func parseTerm(data []byte) (Term, error) {
	var t Term
	var number, state uint64
	r := tlv.Read(data)
	for r.Next() {
		switch r.Tag {
		case termNumber:
			number = r.Uint()
		case termState:
			state = r.Uint()
		case termKey:
			if len(r.Value) != KeySize {
				return t, errKeys
			}
			t.Key = NewKey(r.Value)
		case termCreated:
			t.Created = r.Time()
		case termClosed:
			t.Closed = r.Time()
		case termDestroyed:
			t.Destroyed = r.Time()
		case termPublic:
			if len(r.Value) != ed25519.PublicKeySize {
				return t, errKeys
			}
			t.Public = bytes.Clone(r.Value)
		}
	}

	if number > math.MaxUint32 || state > uint64(Destroyed) {
		return t, errKeys
	}
	t.Number, t.State = uint32(number), State(state)
	return t, r.Err()
}

func parseWrapping(data []byte) (Wrapping, error) {
	var w Wrapping
	r := tlv.Read(data)
	for r.Next() {
		switch r.Tag {
		case wrappingKeyID:
			w.KeyID = string(r.Value)
		case wrappingSince:
			w.Since = r.Time()
		}
	}
	return w, r.Err()
}

// valid reports whether k is as NewKeys and the methods of Keys make it.
func (k *Keys) valid() bool {
	for _, s := range k.series() {
		if !s.of.valid() {
			return false
		}
		for _, t := range *s.of {
			if (t.Public != nil) != (s.tag == tagAudit && t.State == Destroyed) {
				return false
			}
		}
	}
	return k.Vault != uuid.Nil && len(k.IDs) == 1 && k.Lookups[0].State != Destroyed && k.terms() <= MaxTerms && len(k.Wrappings) <= MaxWrappings
}

// valid reports whether numbers rise, one key is active, only the last may be pending, and
// keys are there until they are destroyed.
func (s Series) valid() bool {
	active, number := 0, uint32(0)
	for i, t := range s {
		ok := t.Number > number && t.Key.IsZero() == (t.State == Destroyed)
		switch t.State {
		case Pending:
			ok = ok && active == 1 && i == len(s)-1
		case Active:
			active++
		case Readable, Closed, Destroyed:
			ok = ok && active == 0
		default:
			return false
		}
		if !ok {
			return false
		}
		number = t.Number
	}
	return active == 1
}
