package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Wrapper holds a key-encryption key: see cardvault.KeyWrapper.
type Wrapper interface {
	KeyID() string
	Wrap(ctx context.Context, plaintext, aad []byte) ([]byte, error)
	Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error)
}

// metaTries bounds how often the keyring is read or written again because it has changed in
// between. Each try calls the key provider twice at most.
const metaTries = 3

// Load reads the keys of the vault, or makes a vault if the store is empty: first returns
// its default account, and the records to write with the keyring, at most two of them
// sealed.
func (l *Ledger) Load(ctx context.Context, first func() (uuid.UUID, []*store.Record, error)) error {
	for range metaTries {
		m, err := l.loadMeta(ctx)
		switch {
		case err != nil:
			return err
		case m == nil:
			err = l.initialize(ctx, first)
		default:
			if err = l.newest(ctx, m); err == nil {
				return l.ours(ctx)
			}
		}
		if err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: the keyring changes with every read: find out which program writes to the store", ErrDamaged)
}

// meta describes a vault. It is authenticated as the associated data of the wrapped keys.
type meta struct {
	mode       uint8
	account    uuid.UUID // the default one
	vault      uuid.UUID
	generation uint32
	keyID      string // of the key-encryption key
	wrapped    []byte // the keys
	version    uint64 // of the record
}

var metaID = uuid.UUID{15: 1}

const (
	metaMode = iota + 1
	metaAccount
	metaVault
	metaGeneration
	metaKeyID
	metaWrapped
)

func (m *meta) associated() []byte {
	b := []byte("cardvault keyring\x00")
	b = tlv.Append(b, metaMode, []byte{m.mode})
	b = tlv.Append(b, metaAccount, m.account[:])
	b = tlv.Append(b, metaVault, m.vault[:])
	b = tlv.AppendUint(b, metaGeneration, uint64(m.generation))
	return tlv.Append(b, metaKeyID, m.keyID)
}

func (m *meta) record() *store.Record {
	b := tlv.AppendUint(nil, metaMode, uint64(m.mode))
	b = tlv.Append(b, metaAccount, m.account[:])
	b = tlv.Append(b, metaVault, m.vault[:])
	b = tlv.AppendUint(b, metaGeneration, uint64(m.generation))
	b = tlv.Append(b, metaKeyID, m.keyID)
	b = tlv.Append(b, metaWrapped, m.wrapped)
	return &store.Record{Kind: KindMeta, ID: metaID, Version: m.version, Shown: b}
}

func parseMeta(rec *store.Record) (*meta, error) {
	m := &meta{version: rec.Version}
	r := tlv.Read(rec.Shown)
	for r.Next() {
		switch r.Tag {
		case metaMode:
			m.mode = uint8(r.Uint())
		case metaAccount:
			copy(m.account[:], r.Value)
		case metaVault:
			copy(m.vault[:], r.Value)
		case metaGeneration:
			m.generation = uint32(r.Uint())
		case metaKeyID:
			m.keyID = string(r.Value)
		case metaWrapped:
			m.wrapped = r.Value
		}
	}
	return m, ReadError(&r)
}

// MaxWrapped is how much a Wrapper takes: see cardvault.MaxWrapped. Of that mendReserve is for
// writing a lost keyring anew, which takes a term too.
const (
	MaxWrapped  = 16 << 10
	mendReserve = 1 << 10
)

// wrap sets m.wrapped to keys, wrapped, unless they are longer than most.
func (l *Ledger) wrap(ctx context.Context, m *meta, keys *seal.Keys, most int) error {
	m.vault, m.generation, m.keyID = keys.Vault, keys.Generation, l.config.Wrapper.KeyID()
	plain := keys.Marshal()
	defer clear(plain)
	if len(plain) > most {
		return fmt.Errorf("cardvault: another term would make the keys longer than the %d bytes that a key provider accepts", MaxWrapped)
	}

	w, err := l.config.Wrapper.Wrap(ctx, plain, m.associated())
	if err != nil {
		return unavailable(fmt.Errorf("cardvault: wrapping the keys: %w", err))
	}
	m.wrapped = w
	return nil
}

// errKeyringLost is returned when the store does not have the keyring that is in use, or a
// later one of the same vault.
var errKeyringLost = fmt.Errorf("%w: the keyring in the store is missing, outdated or foreign: RotateKeys writes it again", ErrDamaged)

// loadMeta reads the vault's keys from the store, and makes or updates the box.
// It returns nil if there is no keyring. A meta that comes with errKeyringLost, or that it
// did not have to unwrap, is not authenticated.
func (l *Ledger) loadMeta(ctx context.Context) (*meta, error) {
	var known *seal.Keys // before the store is read: it is not behind this
	if l.Box != nil {
		known = l.Box.Keys()
	}

	var rec *store.Record
	err := l.View(ctx, func(tx store.ReadTx) (err error) {
		rec, err = tx.Get(KindMeta, metaID)
		return err
	})
	switch {
	case errors.Is(err, ErrNotFound) && known != nil:
		return new(meta), errKeyringLost
	case errors.Is(err, ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}

	m, err := parseMeta(rec)
	switch {
	case known != nil && (err != nil || m.mode != l.config.Mode || m.account != l.First || m.vault != known.Vault || m.generation < known.Generation):
		return m, errKeyringLost
	case known != nil && m.generation == known.Generation:
		return m, nil // nothing new to unwrap
	case err != nil:
		return nil, err
	case m.mode != l.config.Mode:
		return nil, fmt.Errorf("%w: it was made in %s mode and is opened in %s mode", ErrWrongMode, l.config.ModeName(m.mode), l.config.ModeName(l.config.Mode))
	}
	if id := l.config.Wrapper.KeyID(); m.keyID != id {
		return nil, fmt.Errorf("%w: the vault needs key %q, not %q%s", ErrWrongKey, m.keyID, id, l.config.KeySource)
	}

	select {
	case l.unwrapping.turn <- struct{}{}:
		defer func() { <-l.unwrapping.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	switch {
	case known != nil && l.Box.Keys().Generation >= m.generation:
		return m, nil // another call has unwrapped it
	case known != nil && time.Since(l.unwrapping.failed) < unwrapPause:
		return nil, l.unwrapping.err
	}

	keys, err := l.unwrap(ctx, m)
	if err != nil {
		if ctx.Err() == nil {
			l.unwrapping.failed, l.unwrapping.err = time.Now(), err
		}
		return nil, err
	}
	if l.Box == nil {
		l.First, l.Box = m.account, seal.NewBox(keys, l.grant)
	} else {
		l.Box.SetKeys(keys)
	}
	return m, nil
}

func (l *Ledger) unwrap(ctx context.Context, m *meta) (*seal.Keys, error) {
	plain, err := l.config.Wrapper.Unwrap(ctx, m.wrapped, m.associated())
	if err != nil {
		return nil, unavailable(fmt.Errorf("cardvault: unwrapping the keys: %w", err))
	}
	defer clear(plain)
	keys, err := seal.ParseKeys(plain)
	if err != nil || keys.Vault != m.vault || keys.Generation != m.generation {
		return nil, fmt.Errorf("%w: keyring cannot be read", ErrDamaged)
	}
	return keys, nil
}

// An unwrapping bounds the calls of the key provider while the vault is open: an attacker
// who writes to the store must not make each read one.
type unwrapping struct {
	turn chan struct{} // holds a token while a keyring is unwrapped

	// The holder of the token owns these fields.
	failed time.Time // when a keyring could not be unwrapped
	err    error
}

// unwrapPause is the pause before the next attempt to unwrap a keyring after a failure.
const unwrapPause = time.Second

// ours returns ErrDamaged if the store does not have the account that was made with the
// keyring: then another vault's keyring has taken its place.
func (l *Ledger) ours(ctx context.Context) error {
	_, err := l.In(uuid.Nil).Get(ctx, KindAccount, l.First)
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w: the keyring belongs to another vault, or the default account is lost: restore it from a backup", ErrDamaged)
	}
	return err
}

// newest returns ErrDamaged if a count of seals says that there was a later term than the
// last one of the keyring: then a former keyring was put back. It returns
// store.ErrConflict if the keyring is not m any more.
func (l *Ledger) newest(ctx context.Context, m *meta) error {
	id := countID(l.Box.Keys())

	var rec *store.Record
	var later []*store.Record
	err := l.View(ctx, func(tx store.ReadTx) (err error) {
		if rec, err = tx.Get(KindMeta, metaID); err != nil {
			return err
		}
		later, err = tx.Scan(KindMeta, id, 1)
		return err
	})

	switch {
	case errors.Is(err, ErrNotFound) || err == nil && rec.Version != m.version:
		return store.ErrConflict
	case err == nil && len(later) > 0:
		err = fmt.Errorf("%w: the keyring is from before a rotation: restore the latest one, from a backup or by RotateKeys of a vault that still has it open", ErrDamaged)
	}
	return err
}

// initialize writes a new vault with its default account, if the store is empty. It
// returns store.ErrConflict if another process was faster.
func (l *Ledger) initialize(ctx context.Context, first func() (uuid.UUID, []*store.Record, error)) error {
	if err := l.View(ctx, untouched); err != nil {
		return err
	}

	keys := seal.NewKeys()
	l.Box = seal.NewBox(keys, l.grant)
	defer func() { l.Box = nil }() // the stored keyring counts, whichever process wrote it
	l.Box.Grant(keys, 2)           // for the records of first
	account, records, err := first()
	if err != nil {
		return err
	}

	m := &meta{mode: l.config.Mode, account: account, version: 1}
	if err := l.wrap(ctx, m, keys, MaxWrapped); err != nil {
		return err
	}
	records = append(records, m.record(), countRecord(keys, 2, 1))
	return l.In(uuid.Nil).Update(ctx, OpRotateKeys, func(tx store.Tx) error {
		if err := untouched(tx); err != nil {
			return err
		}
		for _, r := range records {
			tx.Put(r)
		}
		return nil
	})
}

// untouched returns an error unless the store is empty: store.ErrConflict if it has a
// keyring. A store that has lost its keyring must not become another vault.
func untouched(tx store.ReadTx) error {
	switch empty, err := tx.Empty(); {
	case err != nil || empty:
		return err
	}
	switch _, err := tx.Get(KindMeta, metaID); {
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("%w: the store holds records without a keyring: restore the keyring from a backup", ErrDamaged)
	case err != nil:
		return err
	}
	return store.ErrConflict
}

// OpRotateKeys is the operation of writes to the keyring and to counts of seals.
var OpRotateKeys = Ends("keys.rotate")

// RotateKeys starts a new term: see cardvault.Vault.RotateKeys. It calls also in its
// transaction.
func (a Account) RotateKeys(ctx context.Context, also func(store.Tx) error) error {
	var last uint32 // generation of the keyring at the last try
	for same := 0; same < metaTries; {
		m, err := a.loadMeta(ctx)
		lost := errors.Is(err, errKeyringLost)
		switch {
		case err != nil && !lost:
			return err
		case lost:
			a.config.Log.Error("writing the keyring again", "error", err)
		default:
			err = a.newest(ctx, m)
			if err != nil && !errors.Is(err, store.ErrConflict) {
				return err
			}
		}

		// A new generation is progress of another process. It was unwrapped, while a
		// version can be anything.
		if same++; a.Box.Keys().Generation != last {
			same, last = 1, a.Box.Keys().Generation
		}
		if errors.Is(err, store.ErrConflict) {
			continue
		}

		most := MaxWrapped
		if !lost {
			most -= mendReserve
		}
		next := a.Box.Keys().Next()
		m = &meta{mode: a.config.Mode, account: a.First, version: m.version + 1} // the stored one was not unwrapped
		if err := a.wrap(ctx, m, next, most); err != nil {
			return err
		}
		rec, count := m.record(), countRecord(next, 0, 1)
		err = a.Write(ctx, OpRotateKeys, uuid.Nil, func(tx store.Tx) error {
			tx.Put(rec)
			tx.Put(count)
			return also(tx)
		})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil {
			a.Box.SetKeys(next)
		}
		return err
	}
	return fmt.Errorf("%w: the keyring cannot be replaced: find out which program writes to the store", ErrDamaged)
}

// Seals are granted in blocks, so that counting them costs no write each. A crash loses the
// rest of a block: never too few are counted. The limits follow NIST SP 800-38D for random
// nonces, with half of them as reserve. They count all keys derived from a master key
// together.
const (
	grantBlock  = 1 << 16
	rotateAfter = 1 << 31
	sealLimit   = 1 << 32
)

// grant allows the box more seals, and starts a new term in time.
func (l *Ledger) grant() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	whole := l.In(uuid.Nil)

	var last uuid.UUID // of the count, at the last try
	var most uint64
	for same := 0; same < metaTries; {
		keys := l.Box.Keys()
		id := countID(keys)

		var rec *store.Record
		err := l.View(ctx, func(tx store.ReadTx) (err error) {
			rec, err = tx.Get(KindMeta, id)
			return err
		})
		if errors.Is(err, ErrNotFound) {
			return errCount
		}
		if err != nil {
			return err
		}

		used, err := readCount(keys, rec)
		if err != nil {
			return err
		}
		if same++; id != last || used > most { // another process was faster
			same, last, most = 1, id, used
		}

		if used >= rotateAfter {
			err := whole.RotateKeys(ctx, func(store.Tx) error { return nil })
			if err == nil {
				continue
			}
			l.config.Log.Error("starting a new key term failed", "error", err)
		}
		if used > sealLimit-grantBlock {
			return seal.ErrExhausted
		}

		next := countRecord(keys, used+grantBlock, rec.Version+1)
		err = whole.Update(ctx, OpRotateKeys, func(tx store.Tx) error {
			tx.Put(next)
			return nil
		})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil {
			l.Box.Grant(keys, grantBlock)
		}
		return err
	}
	return errCount
}

// errCount is returned when it is not known how much the present term has sealed.
var errCount = fmt.Errorf("%w: count of seals cannot be read: RotateKeys starts a new one", ErrDamaged)

// countID is the id of the record that counts the seals of the last term.
func countID(k *seal.Keys) uuid.UUID {
	id := uuid.UUID{0: 1}
	term := k.Masters[len(k.Masters)-1].Term
	for i := range 4 {
		id[15-i] = byte(term >> (8 * i))
	}
	return id
}

func countRecord(k *seal.Keys, count uint64, version uint64) *store.Record {
	term := k.Masters[len(k.Masters)-1].Term
	b := tlv.AppendUint(nil, 1, count)
	b = tlv.Append(b, 2, k.CountMAC(term, count))
	return &store.Record{Kind: KindMeta, ID: countID(k), Version: version, Shown: b}
}

func readCount(k *seal.Keys, rec *store.Record) (uint64, error) {
	var count uint64
	var mac []byte
	r := tlv.Read(rec.Shown)
	for r.Next() {
		switch r.Tag {
		case 1:
			count = r.Uint()
		case 2:
			mac = r.Value
		}
	}
	if !k.ValidCount(k.Masters[len(k.Masters)-1].Term, count, mac) {
		return 0, errCount
	}
	return count, nil
}
