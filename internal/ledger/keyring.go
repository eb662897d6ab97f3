package ledger

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Wrapper holds a key-encryption key: see cardvault.KeyWrapper.
type Wrapper interface {
	KeyID() string
	Wrap(ctx context.Context, key, aad []byte) ([]byte, error)
	Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error)
}

// A KEK is a key-encryption key.
type KEK struct {
	Wrapper
	Source string // where it comes from, for an error: "" or " of ..."
}

// A Ring holds the key-encryption keys that a process has. The first is to wrap the keys of
// the vault; each may have wrapped them. Their ids differ.
type Ring []KEK

// find returns the key of an id, or nil.
func (r Ring) find(id string) *KEK {
	i := slices.IndexFunc(r, func(k KEK) bool { return k.KeyID() == id })
	if i < 0 {
		return nil
	}
	return &r[i]
}

// and returns a Ring with the keys of others behind those of r.
func (r Ring) and(others Ring) Ring {
	all := slices.Clone(r)
	for _, k := range others {
		if all.find(k.KeyID()) == nil {
			all = append(all, k)
		}
	}
	return all
}

// String names the keys, for an error.
func (r Ring) String() string {
	names := make([]string, len(r))
	for i, k := range r {
		names[i] = fmt.Sprintf("%q%s", k.KeyID(), k.Source)
	}
	return strings.Join(names, " or ")
}

// providerTime bounds a call of a key provider.
const providerTime = 10 * time.Second

// call calls a key provider, and marks an error that may pass.
func (k *KEK) call(ctx context.Context, doing string, method func(ctx context.Context, b, aad []byte) ([]byte, error), b, aad []byte) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, providerTime)
	defer cancel()
	out, err := method(limited, b, aad)
	if err == nil {
		return out, nil
	}
	err = fmt.Errorf("cardvault: %s by key %q: %w", doing, k.KeyID(), err)
	if errors.Is(err, ErrWrongKey) || ctx.Err() != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// MaxWrapped bounds what a Wrapper makes of a data key: see cardvault.MaxWrapped.
const MaxWrapped = 8 << 10

// wrap returns a data key, wrapped. A key provider that cannot unwrap what it has wrapped
// would lose every card: it is asked for that too.
func (k *KEK) wrap(ctx context.Context, dataKey, aad []byte) ([]byte, error) {
	wrapped, err := k.call(ctx, "wrapping the keys", k.Wrap, dataKey, aad)
	if err == nil && (len(wrapped) == 0 || len(wrapped) > MaxWrapped) {
		err = fmt.Errorf("cardvault: key %q wraps a data key in %d bytes: it has 1 to %d", k.KeyID(), len(wrapped), MaxWrapped)
	}
	if err != nil {
		return nil, err
	}

	unwrapped, err := k.call(ctx, "unwrapping what was wrapped", k.Unwrap, wrapped, aad)
	defer clear(unwrapped)
	if err == nil && !bytes.Equal(unwrapped, dataKey) {
		err = fmt.Errorf("%w: key %q unwraps another data key than it has wrapped", ErrWrongKey, k.KeyID())
	}
	return wrapped, err
}

// meta describes a vault. The associated data of its sealed keys and of their data key
// authenticates it.
type meta struct {
	format     uint64
	mode       uint8
	account    uuid.UUID // the default one
	vault      uuid.UUID
	generation uint32
	keyID      string // of the key-encryption key
	wrapped    []byte // the data key; in format 1 the keys themselves
	sealed     []byte // the keys, under the data key
	version    uint64 // of the record
	lost       bool   // it was not unwrapped, and is not the one that is in use
}

var metaID = uuid.UUID{15: 1}

// Formats of the keyring. Format 1 is replaced when a vault is opened. Format 3 is format 2 with
// more than one lookup key, so that a program that would search with one of them for all refuses
// it. Format 4 has had a fence, so that a program that does not know fences refuses it. Format 5 has
// begun sums: a program that does not know them would write records without.
const (
	metaFormat  = 2
	metaFormat3 = 3
	metaFormat4 = 4
	metaFormat5 = 5
)

const (
	metaMode = iota + 1
	metaAccount
	metaVault
	metaGeneration
	metaKeyID1  // of the key-encryption key in format 1, and laterFormat since
	metaWrapped // in format 1
	metaFormatNumber
	metaKeyID
	metaDataKey
	metaSealed
)

// laterFormat stands where a program of format 1 looks for the id of the key: that is what
// it says, then, when it refuses the keyring.
const laterFormat = "none: a later version of cardvault has written this keyring, in format 2"

// What the associated data of a meta begins with.
const (
	forKeyring = "cardvault 2 keyring\x00"
	forDataKey = "cardvault 2 data key\x00"
	forFormat1 = "cardvault keyring\x00"
)

func (m *meta) associated(purpose string) []byte {
	b := tlv.Append([]byte(purpose), metaMode, []byte{m.mode})
	b = tlv.Append(b, metaAccount, m.account[:])
	b = tlv.Append(b, metaVault, m.vault[:])
	b = tlv.AppendUint(b, metaGeneration, uint64(m.generation))
	return tlv.Append(b, metaKeyID1, m.keyID)
}

func (m *meta) record() *store.Record {
	b := tlv.AppendUint(nil, metaMode, uint64(m.mode))
	b = tlv.Append(b, metaAccount, m.account[:])
	b = tlv.Append(b, metaVault, m.vault[:])
	b = tlv.AppendUint(b, metaGeneration, uint64(m.generation))
	b = tlv.Append(b, metaKeyID1, laterFormat)
	b = tlv.AppendUint(b, metaFormatNumber, m.format)
	b = tlv.Append(b, metaKeyID, m.keyID)
	b = tlv.Append(b, metaDataKey, m.wrapped)
	b = tlv.Append(b, metaSealed, m.sealed)
	return &store.Record{Kind: KindMeta, ID: metaID, Version: m.version, Shown: b}
}

func parseMeta(rec *store.Record) (*meta, error) {
	m := &meta{format: 1, version: rec.Version}
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
		case metaFormatNumber:
			m.format = r.Uint()
		case metaKeyID1, metaKeyID: // in this order
			m.keyID = string(r.Value)
		case metaWrapped, metaDataKey:
			m.wrapped = r.Value
		case metaSealed:
			m.sealed = r.Value
		}
	}

	if err := ReadError(&r); err != nil {
		return m, err
	}
	if m.format > metaFormat5 {
		return m, fmt.Errorf("%w: the keyring has format %d, and this program reads up to %d", ErrFormat, m.format, metaFormat5)
	}
	return m, nil
}

// seal sets m to keys, sealed under a new data key that a key-encryption key wraps.
func (m *meta) seal(ctx context.Context, keys *seal.Keys, kek *KEK) (err error) {
	m.vault, m.generation, m.keyID = keys.Vault, keys.Generation, kek.KeyID()
	switch m.format = metaFormat; {
	case keys.SumSteps > 0:
		m.format = metaFormat5
	case keys.Fences > 0:
		m.format = metaFormat4
	case len(keys.Lookups) > 1:
		m.format = metaFormat3
	}
	dataKey := make([]byte, seal.KeySize)
	defer clear(dataKey)
	rand.Read(dataKey)
	m.sealed = seal.SealKeys(dataKey, keys, m.associated(forKeyring)) // before the key provider, which may wipe the data key
	m.wrapped, err = kek.wrap(ctx, dataKey, m.associated(forDataKey))
	return err
}

// open returns the keys of m. A key provider that ignores the associated data, or that did
// not wrap this data key, hands out one under which nothing here opens.
func (m *meta) open(ctx context.Context, kek *KEK) (*seal.Keys, error) {
	if m.format == 1 {
		return m.openFormat1(ctx, kek)
	}

	dataKey, err := kek.call(ctx, "unwrapping the keys", kek.Unwrap, m.wrapped, m.associated(forDataKey))
	if errors.Is(err, ErrWrongKey) {
		err = fmt.Errorf("%w, although it has the name that the vault needs: the keyring in the store may be damaged", err)
	}
	if err != nil {
		return nil, err
	}
	defer clear(dataKey)
	if len(dataKey) != seal.KeySize {
		return nil, fmt.Errorf("%w: key %q unwraps %d bytes, and not a data key", ErrWrongKey, m.keyID, len(dataKey))
	}
	keys, err := seal.OpenKeys(dataKey, m.sealed, m.associated(forKeyring))
	if err != nil {
		return nil, fmt.Errorf("%w: the keyring does not open under the data key that key %q unwraps: the row was edited, or the key provider has answered with another key", ErrDamaged, m.keyID)
	}
	return keys, m.confirm(keys)
}

// openFormat1 is open for a keyring that a key provider wrapped whole, or wrapped a data key
// for itself: package envelope did that, which is gone. Its text is the length of the
// wrapped data key in two bytes, that data key, and the sealed keys.
func (m *meta) openFormat1(ctx context.Context, kek *KEK) (*seal.Keys, error) {
	aad := m.associated(forFormat1)
	plain, err := kek.call(ctx, "unwrapping the keys", kek.Unwrap, m.wrapped, aad)
	defer clear(plain)
	keys, bad := seal.ParseFormat1(plain, m.keyID)

	if b := m.wrapped; err != nil && ctx.Err() == nil && len(b) > 2 {
		if end := 2 + int(b[0])<<8 + int(b[1]); end < len(b) {
			dataKey, failed := kek.call(ctx, "unwrapping the keys", kek.Unwrap, b[2:end], aad)
			defer clear(dataKey)
			if failed == nil && len(dataKey) == seal.KeySize {
				keys, bad = seal.OpenFormat1(dataKey, b[end:], aad, m.keyID)
				err = nil
			}
		}
	}
	switch {
	case err != nil:
		return nil, err
	case bad != nil:
		return nil, errUnreadable
	}
	return keys, m.confirm(keys)
}

var errUnreadable = fmt.Errorf("%w: keyring cannot be read", ErrDamaged)

// confirm returns ErrDamaged unless keys are those of m.
func (m *meta) confirm(keys *seal.Keys) error {
	if keys.Vault != m.vault || keys.Generation != m.generation || keys.KeyID() != m.keyID {
		return errUnreadable
	}
	return nil
}

// Load reads the keys of the vault, or makes a vault if the store is empty: first returns
// its default account, and the records to write with the keyring, at most two of them
// sealed. A keyring of an earlier format, or of a key-encryption key that is not the first
// any more, is replaced.
func (l *Ledger) Load(ctx context.Context, first func() (uuid.UUID, []*store.Record, error)) error {
	for range metaTries {
		m, err := l.loadMeta(ctx)
		switch {
		case err != nil:
			return err
		case m == nil:
			if err = l.vacant(ctx); err == nil {
				err = l.initialize(ctx, first)
			}
		default:
			if err = l.openSums(ctx); err == nil { // first: settle may write
				err = l.settle(ctx, m)
			}
			if err == nil {
				return l.keepSums(ctx)
			}
		}

		if err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: the keyring changes with every read: find out which program writes to the store", ErrDamaged)
}

// settle checks that the keyring m, which was loaded, is the last one and of this store, and
// renews it.
func (l *Ledger) settle(ctx context.Context, m *meta) error {
	if err := l.back(ctx); err != nil {
		return err
	}
	if err := l.View(ctx, l.frozen); err != nil {
		return err
	}
	if err := l.newest(ctx, m); err != nil {
		return err
	}
	if err := l.ours(ctx); err != nil {
		return err
	}
	if err := l.settled(ctx); err != nil {
		return err
	}
	return l.renew(ctx, m)
}

// metaTries bounds how often the keyring is read or written again because it has changed in
// between. Each try calls the key provider three times at most.
const metaTries = 3

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
	err := l.viewUnbarred(ctx, func(tx store.ReadTx) (err error) {
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
	case errors.Is(err, ErrFormat):
		return nil, err
	case known != nil && (err != nil || m.mode != l.config.Mode || m.account != l.First || m.vault != known.Vault || m.generation < known.Generation):
		return m, errKeyringLost
	case known != nil && m.generation == known.Generation:
		return m, nil // nothing new to unwrap
	case err != nil:
		return nil, err
	case m.mode != l.config.Mode:
		return nil, fmt.Errorf("%w: it was made in %s mode and is opened in %s mode", ErrWrongMode, l.config.ModeName(m.mode), l.config.ModeName(l.config.Mode))
	}
	return m, l.unwrap(ctx, m, known)
}

// unwrap sets the keys of the box to those of m, which are later than known.
func (l *Ledger) unwrap(ctx context.Context, m *meta, known *seal.Keys) error {
	select {
	case l.unwrapping.turn <- struct{}{}:
		defer func() { <-l.unwrapping.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}

	ring := *l.ring.Load()
	kek := ring.find(m.keyID)
	switch {
	case known != nil && l.Box.Keys().Generation >= m.generation:
		return nil // another call has unwrapped it
	case kek == nil:
		return fmt.Errorf("%w: the vault needs key %q, not %v", ErrWrongKey, m.keyID, ring)
	case known != nil && time.Since(l.unwrapping.failed) < unwrapPause:
		return l.unwrapping.err
	}

	keys, err := m.open(ctx, kek)
	if err != nil {
		if ctx.Err() == nil {
			l.unwrapping.failed, l.unwrapping.err = time.Now(), err
		}
		return err
	}
	if l.Box == nil {
		l.First, l.Box = m.account, seal.NewBox(keys, l.grant)
	} else {
		l.Box.SetKeys(keys)
		l.config.Log.Info("keys of another process were loaded", "generation", m.generation, "key", m.keyID)
	}
	return nil
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

// followPause is the pause between looks for a later keyring. With the time of a call of a
// key provider, a process has it within 30 seconds.
const followPause = 20 * time.Second

// Follow loads the keyrings that other processes write, until ctx ends.
func (l *Ledger) Follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(followPause):
			l.Look(ctx)
			if err := l.keepSums(ctx); err != nil { // another process has begun them
				l.sumsFailed(ctx, err)
			}
		}
	}
}

// Look loads the keyring if another process has written a later one. A process that cannot
// goes on with the keys that it has, and says so.
func (l *Ledger) Look(ctx context.Context) {
	if err := l.reload(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrMoved) && l.behind.Now() {
		l.config.Log.Error("the keyring in the store cannot be loaded", "error", err)
	}
}

// ours returns ErrDamaged if the store does not have the account that was made with the
// keyring: then another vault's keyring has taken its place.
func (l *Ledger) ours(ctx context.Context) error {
	_, err := l.In(uuid.Nil).Get(ctx, KindAccount, l.First)
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w: the keyring belongs to another vault, or the default account is lost: restore it from a backup", ErrDamaged)
	}
	return err
}

// markID is the id of the record that says which keyring was the last one. It is written
// with the keyring, and takes the place of the former one.
func markID(generation uint32) uuid.UUID { return numbered(2, generation) }

// numbered returns the id of a record of KindMeta: the sort of it, and its number.
func numbered(sort byte, n uint32) uuid.UUID {
	id := uuid.UUID{0: sort}
	for i := range 4 {
		id[15-i] = byte(n >> (8 * i))
	}
	return id
}

// newest returns ErrDamaged if the store has a count of seals of a later term than the last
// one of the keyring, or the mark of a later generation: then a former keyring was put
// back. It returns store.ErrConflict if the keyring is not m any more.
func (l *Ledger) newest(ctx context.Context, m *meta) error {
	keys := l.Box.Keys()
	var rec *store.Record
	var later bool
	err := l.View(ctx, func(tx store.ReadTx) (err error) {
		if rec, err = tx.Get(KindMeta, metaID); err != nil {
			return err
		}
		later = false
		for _, id := range []uuid.UUID{countID(keys), markID(keys.Generation)} {
			found, err := tx.Scan(KindMeta, id, 1)
			if err != nil {
				return err
			}
			later = later || len(found) > 0 && found[0].ID[0] == id[0]
		}
		return nil
	})

	switch {
	case errors.Is(err, ErrNotFound) || err == nil && rec.Version != m.version:
		return store.ErrConflict
	case err == nil && later:
		err = fmt.Errorf("%w: the keyring is from before a rotation or a change: restore the latest one, from a backup or by RotateKeys of a vault that still has it open", ErrDamaged)
	}
	return err
}

// initialize writes a new vault with its default account, if the store is empty. It
// returns store.ErrConflict if another process was faster.
func (l *Ledger) initialize(ctx context.Context, first func() (uuid.UUID, []*store.Record, error)) error {
	err := l.View(ctx, func(tx store.ReadTx) error {
		if err := l.frozen(tx); err != nil {
			return err
		}
		return untouched(tx)
	})
	if err != nil {
		return err
	}

	kek, at := &(*l.ring.Load())[0], Now()
	keys := seal.NewKeys(at)
	keys.Wrappings = []seal.Wrapping{{KeyID: kek.KeyID(), Since: at}}
	l.Box = seal.NewBox(keys, l.grant)
	defer func() { l.Box = nil }() // the stored keyring counts, whichever process wrote it
	l.Box.Grant(keys, 2)           // for the records of first
	account, records, err := first()
	if err != nil {
		return err
	}

	m := &meta{mode: l.config.Mode, account: account, version: 1}
	if err := m.seal(ctx, keys, kek); err != nil {
		return err
	}
	records = append(records, m.record(), mark(keys), countRecord(keys, 2, 1))
	return l.In(uuid.Nil).Update(ctx, OpRotateKeys, func(tx store.Tx) error {
		if err := untouched(tx); err != nil {
			return err
		}
		vouch(tx, keys)
		for _, r := range records {
			tx.Put(r)
		}
		return nil
	})
}

func mark(k *seal.Keys) *store.Record {
	b := tlv.AppendUint(nil, 1, uint64(k.Generation)+1)
	return &store.Record{Kind: KindMeta, ID: markID(k.Generation), Version: 1, Shown: b}
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

// replace writes the keyring of the next generation over the stored one, whose record has a
// version, and calls also in its transaction. It returns store.ErrConflict if another
// process was faster.
func (l *Ledger) replace(ctx context.Context, op Operation, version uint64, next *seal.Keys, also func(store.Tx) error) error {
	kek := l.ring.Load().find(next.KeyID())
	if kek == nil {
		return fmt.Errorf("%w: the vault needs key %q, not %v", ErrWrongKey, next.KeyID(), l.ring.Load())
	}
	m := &meta{mode: l.config.Mode, account: l.First, version: version + 1}
	if err := m.seal(ctx, next, kek); err != nil {
		return err
	}

	rec, last, former := m.record(), mark(next), markID(next.Generation-1)
	present := l.Box.Keys()
	err := l.In(uuid.Nil).write(ctx, op, uuid.Nil, func(tx store.Tx) error {
		vouch(tx, present)
		tx.Put(rec)
		tx.Put(last)
		tx.Delete(KindMeta, former)
		return also(tx)
	})
	if err == nil {
		l.Box.SetKeys(next)
		l.secure(ctx) // only now, with the generation
	}
	return err
}

// renew replaces the stored keyring m, when a vault is opened, if it has an earlier format
// or a later key of the ring has wrapped it. A key that the vault was changed from does not
// wrap it again, unless ChangeKeyring says so: processes that are started with an older
// configuration would undo the change.
func (l *Ledger) renew(ctx context.Context, m *meta) error {
	keys, first := l.Box.Keys(), (*l.ring.Load())[0].KeyID()
	present := keys.KeyID()
	if first != present && keys.HadKey(first) {
		l.config.Log.Warn("the vault was changed from the first key of its Keyring to another, and stays with that", "key", present, "first", first)
		first = present
	}
	if first == present && m.format != 1 {
		return nil
	}
	err := l.replace(ctx, OpChangeKeyring, m.version, keys.WrappedBy(first, Now()), func(store.Tx) error { return nil })
	if err == nil {
		l.config.Log.Info("the keyring was wrapped anew", "key", first, "was", present, "format", max(m.format, metaFormat), "formerly", m.format)
	}
	return err
}

// OpChangeKeyring is the operation of writes of the keyring under another key-encryption key.
var OpChangeKeyring = Ends("keys.change")

// ChangeKeyring has the first key of a ring wrap the keyring, and the ring take the place of
// the present one: see cardvault.Vault.ChangeKeyring.
func (l *Ledger) ChangeKeyring(ctx context.Context, ring Ring) error {
	select {
	case l.changing <- struct{}{}:
		defer func() { <-l.changing }()
	case <-ctx.Done():
		return ctx.Err()
	}

	former, both := l.ring.Load(), ring.and(*l.ring.Load())
	l.ring.Store(&both) // for other calls, which meet the keyring before or after
	err := l.change(ctx, &ring[0])
	switch {
	case err == nil:
		l.ring.Store(&ring)
	case !errors.Is(err, ErrOutcomeUnknown):
		l.ring.Store(former)
	}
	return err
}

func (l *Ledger) change(ctx context.Context, to *KEK) error {
	from, changes := "", false
	err := l.alter(ctx, &alteration{
		op: OpChangeKeyring,
		next: func(k *seal.Keys, m *meta) (*seal.Keys, error) {
			from, changes = k.KeyID(), true
			if from == to.KeyID() && m.format != 1 { // by another process, or before
				changes = false
				_, err := m.open(ctx, to)
				return nil, err
			}
			return k.WrappedBy(to.KeyID(), Now()), nil
		},
		also: func(store.Tx, *seal.Keys, *seal.Keys) error { return nil },
	})
	if changes && err == nil {
		l.config.Log.Info("the keyring was wrapped anew", "key", to.KeyID(), "was", from)
	}
	return err
}

// An alteration makes the next generation of the keyring.
type alteration struct {
	op    Operation
	mends bool // a lost keyring too, which is written again

	// next returns the keys that take the place of k, which m has: nil if they stay. They have
	// all that k has.
	next func(k *seal.Keys, m *meta) (*seal.Keys, error)

	// also is called in the transaction.
	also func(tx store.Tx, former, next *seal.Keys) error
}

// alter replaces the keyring.
func (l *Ledger) alter(ctx context.Context, a *alteration) error {
	t := tries{ledger: l}
	for t.more() {
		m, err := l.loadMeta(ctx)
		switch {
		case err == nil:
			err = l.newest(ctx, m)
		case a.mends && errors.Is(err, errKeyringLost):
			l.config.Log.Error("writing the keyring again", "error", err)
			m.lost, err = true, nil
		}
		t.seen()
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return err
		}

		former := l.Box.Keys()
		if !m.lost && former.Generation != m.generation {
			continue // another call has loaded a later keyring meanwhile: m is not of these keys
		}
		next, err := a.next(former, m)
		if next == nil || err != nil {
			return err
		}
		err = l.replace(ctx, a.op, m.version, next, func(tx store.Tx) error { return a.also(tx, former, next) })
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return errRestless
}

var errRestless = fmt.Errorf("%w: the keyring cannot be replaced: find out which program writes to the store", ErrDamaged)

// tries bounds how often a call replaces the keyring anew because it has changed meanwhile.
// A new generation is progress of another process. It was unwrapped, while a version can be
// anything.
type tries struct {
	ledger *Ledger
	last   uint32 // generation of the keyring at the last try
	same   int    // tries at that
}

func (t *tries) more() bool { return t.same < metaTries }

func (t *tries) seen() {
	if t.same++; t.ledger.Box.Keys().Generation != t.last {
		t.same, t.last = 1, t.ledger.Box.Keys().Generation
	}
}
