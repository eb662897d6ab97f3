// Package seal encrypts records: key derivation, record format, associated data.
//
//	master key of a term
//	 └ HKDF-SHA256(master key, purpose | vault | account) → AES-256-GCM key
//
// A sealed part is
//
//	format(1) | algorithm(1) | term(4) | nonce(12) | ciphertext | tag(16)
//
// with format 1, and algorithm 1 for AES-256-GCM with a random nonce. Format,
// algorithm and term say which key opens it; no other is tried. The associated
// data binds it to its place, and the shown part also to the columns of its
// row that can change, so that nothing can be moved to another row, part,
// account or vault, and no column be edited, without the next read failing:
//
//	"CV" | format(1) | algorithm(1) | term(4) | schema(2) | part(1)
//	     | vault(16) | kind(1) | account(16) | id(16) | parent(16)
//	shown part only:
//	     | class(1) | due(8) | version(8) | { length(1) | lookup hash }…
//
// due is in microseconds since 1970, two's complement; the lowest value stands
// for none. All integers are big-endian.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/erase"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var (
	// ErrIntegrity is returned for a sealed part that does not belong where it
	// was found, or that was changed.
	ErrIntegrity = errors.New("seal: record failed authentication")

	// ErrUnknownTerm is returned for a part sealed under a term that the keys
	// do not have. Keys loaded anew may have it.
	ErrUnknownTerm = errors.New("seal: unknown key term")

	// ErrExhausted is returned once the seals granted to a Box are used up.
	ErrExhausted = errors.New("seal: key has reached its limit of seals")
)

const (
	format    = 1
	aesGCM    = 1
	schema    = 1
	header    = 6
	overhead  = header + 12 + 16
	partShown = 1
	// partSecret binds only what never changes, so that a change of state
	// leaves the card alone.
	partSecret = 2
)

// A Box seals and opens the records of one vault. It is safe for concurrent use.
type Box struct {
	current atomic.Pointer[current]
	refill  func() error

	setting   sync.Mutex
	refilling chan struct{} // holds one while a refill is under way: unlike a Mutex, a wait for it lets the clock of a bubble go on
	failed    error         // of the last refill
	failedAt  time.Time
	mu        sync.Mutex
	accounts  map[uuid.UUID]*accountKeys

	// recent has the keys last used of the accounts whose ids end alike, read without a lock.
	recent [256]atomic.Pointer[accountKeys]
}

// current is the working state of a Box. Its keys never change, so that seals granted for
// some keys cannot be spent on others.
type current struct {
	keys    *Keys
	granted atomic.Int64 // seals that may still be made under the last term
}

// maxAccounts bounds the derived keys kept beside recent, about 4 KiB an account. Beyond it
// all are derived anew, which costs some microseconds each.
const maxAccounts = 4096

// NewBox returns a Box that works with k. It calls refill, never twice at a
// time, when the seals granted by Grant are used up; refill calls Grant or
// returns why it cannot.
func NewBox(k *Keys, refill func() error) *Box {
	b := &Box{refill: refill, refilling: make(chan struct{}, 1), accounts: map[uuid.UUID]*accountKeys{}}
	b.current.Store(&current{keys: k})
	return b
}

// Keys returns the keys that b works with. They must not be changed.
func (b *Box) Keys() *Keys { return b.current.Load().keys }

// SetKeys makes b work with k, if that is a later generation of its keys. Grants of the
// former term are void then.
func (b *Box) SetKeys(k *Keys) {
	b.setting.Lock()
	defer b.setting.Unlock()
	if k.Generation <= b.Keys().Generation {
		return
	}
	b.current.Store(&current{keys: k})

	// Keys derived from a destroyed key must not stay in memory.
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.accounts)
	for i := range b.recent {
		b.recent[i].Store(nil)
	}
}

// Grant allows n more seals with the last term of k. It does nothing if b works
// with other keys by now.
func (b *Box) Grant(k *Keys, n int64) {
	if c := b.current.Load(); c.keys == k {
		c.granted.Add(n)
	}
}

// take uses up one granted seal and returns the keys that it was granted for.
func (b *Box) take() (*Keys, error) {
	for {
		c := b.current.Load()
		if c.granted.Add(-1) >= 0 {
			return c.keys, nil
		}
		c.granted.Add(1)
		if err := b.grantMore(); err != nil {
			return nil, err
		}
	}
}

func (b *Box) grantMore() error {
	b.refilling <- struct{}{}
	defer func() { <-b.refilling }()
	if b.failed != nil && time.Since(b.failedAt) < time.Second {
		return b.failed // waiting callers do not try again one by one
	}
	if b.current.Load().granted.Load() > 0 {
		return nil
	}
	b.failed, b.failedAt = b.refill(), time.Now()
	return b.failed
}

// SealShown sets r.Shown to plain, sealed. All other columns of r but Secret
// must be as they will be stored.
func (b *Box) SealShown(r *store.Record, plain []byte) (err error) {
	r.Shown, err = b.seal(r, partShown, plain)
	return err
}

// SealSecret sets r.Secret to plain, sealed.
func (b *Box) SealSecret(r *store.Record, plain []byte) (err error) {
	r.Secret, err = b.seal(r, partSecret, plain)
	return err
}

// OpenShown returns the plaintext of r.Shown. It decrypts in place: r.Shown is
// not sealed any more afterwards.
func (b *Box) OpenShown(r *store.Record) ([]byte, error) {
	return b.open(r, partShown, r.Shown)
}

// OpenSecret returns the plaintext of r.Secret, in place like OpenShown.
func (b *Box) OpenSecret(r *store.Record) ([]byte, error) {
	return b.open(r, partSecret, r.Secret)
}

func (b *Box) seal(r *store.Record, part byte, plain []byte) ([]byte, error) {
	k, err := b.take()
	if err != nil {
		return nil, err
	}
	m := k.Masters.Active()
	aead := b.account(k, r.Account).aead(k, m, part)

	dst := make([]byte, header, overhead+len(plain))
	dst[0], dst[1] = format, aesGCM
	binary.BigEndian.PutUint32(dst[2:], m.Number)

	aad := scratch.Get().(*[]byte)
	defer scratch.Put(aad)
	*aad = associated((*aad)[:0], k.Vault, r, part, dst[:header])
	erase.Do(func() { dst = aead.Seal(dst, nil, plain, *aad) })
	return dst, nil
}

func (b *Box) open(r *store.Record, part byte, sealed []byte) ([]byte, error) {
	term, ok := TermOf(sealed)
	if !ok {
		return nil, ErrIntegrity
	}

	k := b.Keys()
	m := k.master(term)
	if m == nil {
		return nil, ErrUnknownTerm
	}
	aead := b.account(k, r.Account).aead(k, m, part)

	aad := scratch.Get().(*[]byte)
	defer scratch.Put(aad)
	*aad = associated((*aad)[:0], k.Vault, r, part, sealed[:header])

	var plain []byte
	var err error
	erase.Do(func() { plain, err = aead.Open(sealed[header:header], nil, sealed[header:], *aad) })
	if err != nil {
		return nil, ErrIntegrity
	}
	return plain, nil
}

// TermOf returns the term under which a part was sealed, as it says itself. It returns false
// for bytes that no Box has sealed.
func TermOf(sealed []byte) (term uint32, ok bool) {
	if len(sealed) < overhead || sealed[0] != format || sealed[1] != aesGCM {
		return 0, false
	}
	return binary.BigEndian.Uint32(sealed[2:]), true
}

var scratch = sync.Pool{New: func() any { return new([]byte) }}

// master returns the master key of a term, unless that is unknown or destroyed.
func (k *Keys) master(term uint32) *Term {
	for i := len(k.Masters) - 1; i >= 0; i-- {
		if m := &k.Masters[i]; m.Number == term && m.State != Destroyed {
			return m
		}
	}
	return nil
}

func associated(b []byte, vault uuid.UUID, r *store.Record, part byte, head []byte) []byte {
	b = append(b, 'C', 'V')
	b = append(b, head...)
	b = binary.BigEndian.AppendUint16(b, schema)
	b = append(b, part)
	b = append(b, vault[:]...)
	b = append(b, byte(r.Kind))
	b = append(b, r.Account[:]...)
	b = append(b, r.ID[:]...)
	b = append(b, r.Parent[:]...)

	// The secret part is bound only to columns that never change.
	if part == partSecret {
		return b
	}

	due := int64(math.MinInt64)
	if !r.Due.IsZero() {
		due = r.Due.UnixMicro()
	}
	b = append(b, r.Class)
	b = binary.BigEndian.AppendUint64(b, uint64(due))
	b = binary.BigEndian.AppendUint64(b, r.Version)
	for _, h := range r.Lookup {
		b = append(b, byte(len(h)))
		b = append(b, h...)
	}
	return b
}

// accountKeys holds the keys derived for one account.
type accountKeys struct {
	id                    uuid.UUID
	of                    *Keys // from which they are derived
	prf                   cipher.Block
	fingerprints, lookups map[uint32]*keyedMAC // by term, of all keys that are not destroyed
	idempotency, audit    *keyedMAC

	mu    sync.Mutex                                 // held to replace aeads
	aeads atomic.Pointer[map[cipherName]cipher.AEAD] // never changed
}

// A cipherName names one of the ciphers of an account.
type cipherName struct {
	term uint32
	part byte
}

func (b *Box) account(k *Keys, id uuid.UUID) *accountKeys {
	recent := &b.recent[id[len(id)-1]]
	if a := recent.Load(); a != nil && a.id == id && a.of == k {
		return a
	}
	b.mu.Lock()
	a := b.accounts[id]
	if a != nil && a.of == k {
		recent.Store(a)
		b.mu.Unlock()
		return a
	}
	b.mu.Unlock()

	// Two goroutines may derive the same keys: the lock is not held for it.
	a = &accountKeys{
		id:          id,
		of:          k,
		prf:         newAES(derive(k.IDs.key(), "id", k.Vault, id)),
		lookups:     k.lookupMACs(id),
		idempotency: newMAC(derive(hiding.Of(k.Lookups[0].Key), "idempotency", k.Vault, id)),
		audit:       newMAC(derive(k.Audits.key(), "audit mac", k.Vault, id)),

		fingerprints: map[uint32]*keyedMAC{},
	}
	for _, t := range k.Fingerprints {
		if t.State != Destroyed {
			a.fingerprints[t.Number] = newMAC(derive(hiding.Of(t.Key), "fingerprint", k.Vault, id))
		}
	}
	a.aeads.Store(&map[cipherName]cipher.AEAD{})

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Keys() != k { // SetKeys, which follows or has the lock next, forgets what is kept
		return a
	}
	if len(b.accounts) >= maxAccounts {
		clear(b.accounts)
	}
	b.accounts[id] = a
	recent.Store(a)
	return a
}

func (a *accountKeys) aead(k *Keys, m *Term, part byte) cipher.AEAD {
	p := cipherName{m.Number, part}
	if aead := (*a.aeads.Load())[p]; aead != nil {
		return aead
	}
	return a.derive(k, m, p)
}

func (a *accountKeys) derive(k *Keys, m *Term, p cipherName) cipher.AEAD {
	label := "shown"
	if p.part == partSecret {
		label = "secret"
	}
	aead, err := cipher.NewGCMWithRandomNonce(newAES(derive(hiding.Of(m.Key), label, k.Vault, a.id)))
	if err != nil {
		panic(err) // only for a block that is not AES
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	aeads := maps.Clone(*a.aeads.Load())
	aeads[p] = aead
	a.aeads.Store(&aeads)
	return aead
}

// derive makes the key for one purpose and account from a secret key.
func derive(secret []byte, purpose string, vault, account uuid.UUID) []byte {
	info := "cardvault 1 " + purpose + "\x00" + string(vault[:]) + string(account[:])
	key, err := hkdf.Key(sha256.New, secret, nil, info, KeySize)
	if err != nil {
		panic(err) // only for a length that HKDF cannot give
	}
	return key
}

func newAES(key []byte) cipher.Block {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // only for a key that is not of an AES size
	}
	return block
}

// PRF returns the cipher that masks the row keys of an account.
func (b *Box) PRF(id uuid.UUID) cipher.Block { return b.account(b.Keys(), id).prf }

// Fingerprint returns the keyed hash by which an account recognizes a card
// number, of 32 bytes.
func (b *Box) Fingerprint(account uuid.UUID, pan []byte) []byte {
	k := b.Keys()
	sum := b.account(k, account).fingerprints[k.Fingerprints.Active().Number].sum(pan)
	return sum[:]
}

// Idempotency returns the keyed hash of parts, of 32 bytes, which no rotation changes: see
// Stable. Different sequences of parts have different hashes.
func (b *Box) Idempotency(account uuid.UUID, parts ...[]byte) []byte {
	sum := b.account(b.Keys(), account).idempotency.compute(func(h *hasher) {
		for _, p := range parts {
			h.text = binary.AppendUvarint(h.text[:0], uint64(len(p)))
			h.Write(h.text)
			h.Write(p)
		}
	})
	return sum[:]
}

// ValidCount reports whether mac is the CountMAC of a count.
func (k *Keys) ValidCount(term uint32, count uint64, mac []byte) bool {
	return hmac.Equal(mac, k.CountMAC(term, count))
}

// CountMAC authenticates a count of the seals made under a term that k has.
func (k *Keys) CountMAC(term uint32, count uint64) []byte {
	m := k.master(term)
	mac := hmac.New(sha256.New, derive(hiding.Of(m.Key), "count", k.Vault, uuid.Nil))
	mac.Write(binary.BigEndian.AppendUint64(nil, count))
	return mac.Sum(nil)
}

// A keyedMAC computes HMAC-SHA-256 under one key, reusing its key schedule.
type keyedMAC struct{ pool sync.Pool } // of *hasher

type hasher struct {
	hash.Hash
	text []byte // scratch, as a text in a call would be an allocation
	sum  [sha256.Size]byte
}

func newMAC(key []byte) *keyedMAC {
	return &keyedMAC{sync.Pool{New: func() any { return &hasher{Hash: hmac.New(sha256.New, key)} }}}
}

func (m *keyedMAC) sum(parts ...[]byte) [sha256.Size]byte {
	return m.compute(func(h *hasher) {
		for _, p := range parts {
			h.Write(p)
		}
	})
}

// labelled is sum of a label, a zero and a value.
func (m *keyedMAC) labelled(label string, value []byte) [sha256.Size]byte {
	return m.compute(func(h *hasher) {
		h.text = append(append(h.text[:0], label...), 0)
		h.Write(h.text)
		h.Write(value)
	})
}

// compute returns the MAC of the bytes that write writes.
func (m *keyedMAC) compute(write func(*hasher)) (sum [sha256.Size]byte) {
	m.into(&sum, write)
	return sum
}

// into is compute for a key, of which it leaves no copy.
func (m *keyedMAC) into(sum *[sha256.Size]byte, write func(*hasher)) {
	h := m.pool.Get().(*hasher)
	defer m.pool.Put(h)
	erase.Do(func() {
		write(h)
		h.Sum(h.sum[:0])
		*sum = h.sum
		h.Reset() // leaves no data behind in the pool
		clear(h.sum[:])
	})
}
