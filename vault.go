// Package cardvault is a payment-card vault as a package.
//
// A program stores card data in exchange for a [Token] and does not handle the
// card number again:
//
//	keys, err := cardvault.KeyFile("keys/vault.key", nil)
//	v, err := cardvault.Open(ctx, "vault", keys, nil)
//	defer v.Close()
//	t, err := v.Import(ctx, cardvault.Card{
//		PAN:    cardvault.NewPAN([]byte("4242424242424242")),
//		Expiry: cardvault.Expiry{Month: 12, Year: 2030},
//	}, nil)
//
// Most programs need [Open], [KeyFile] and the methods of [Vault]. Those that
// serve the REST surface mount httpapi.NewHandler; tests take the real vault in
// memory from vaulttest.New; who outgrows one machine calls [New] with another
// [store.Store].
//
// # What is kept where
//
// Every record is sealed with AES-256-GCM before it reaches the store. A token
// has two sealed parts: what a read or a list shows, and the card number. No
// method returns a card number, and reading and listing never decrypt one. The
// vault's own keys are stored wrapped by the key-encryption key of a [Keyring],
// which is never in the store: without it nothing can be read. A security code is
// kept in memory alone, sealed, for the minutes of [Options.SecurityCodeTTL], and
// goes with [Vault.Consume].
//
// # Accounts
//
// Everything belongs to an [Account], and every call works inside one: the
// default account that is made with the vault, or the one of [Vault.In].
//
// # Network tokens
//
// With [Options.Network], every card that can have one gets a network token,
// the substitute number of its scheme. [Token.NetworkTokenStatus] tells how far
// it is; what it needs is done in the background, and an import never waits for
// it. [Vault.RequestPaymentData] asks for a cryptogram with which one payment is
// made, encrypted for the merchant, who opens it with [OpenPaymentData]. Package
// simnet simulates a network; an adapter of a real one implements [Network].
//
// # Sessions and security codes
//
// In a session of [Vault.CreateSession] somebody else enters a card: a browser, over
// httpapi, with a payload that it encrypts for [Vault.CompleteSession], or the program
// with [Vault.Tokenize]. The security code that comes with a card is used by the
// network and by the provider of [Vault.ObtainPPAN] while it is there;
// [Vault.RefreshSession] is for entering it anew.
//
// # Background work
//
// Call [Vault.Run] in a goroutine of its own, or [Vault.Drain] now and then. It
// provisions network tokens and keeps them up to date, passes events to
// [Options.Events], and erases tokens with an expiration time, sessions, API
// keys and idempotency keys: these are invisible from the instant they lapse on.
//
// # Errors
//
// Bad input is a [*FieldError], or several: see [FieldErrors]. All else is one
// of the package's errors, to be tested with errors.Is. No error holds a value
// that was passed in.
//
// A program that embeds a vault handles card data and is in scope of PCI DSS.
package cardvault

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/google/uuid"
)

// A Vault works on one account, the default one unless it came from In.
// Authenticate, the calls on accounts, Run, Drain, Close and the care of keys
// act on the whole vault, whichever handle they are called on. All methods may
// be called concurrently.
type Vault struct {
	*core
	account uuid.UUID
}

// core is what all handles of a vault share.
type core struct {
	store     *checkedStore
	gate      gate
	owned     bool // the store is closed with the vault
	keys      *Keyring
	first     uuid.UUID // the default account
	opts      Options
	log       *slog.Logger
	box       *seal.Box
	rowkeys   rowkey.Generator
	known     accountSet
	approvals sync.Map // of accounts: *approval
	limited   sync.Map // of accounts: *limits
	crowds    sync.Map // of accounts: *crowd
	listening listening
	shifts    sync.Map // of queues: *inflow of the shift that is under way
	testing   sync.Map // row keys of webhooks to which a test is under way
	closed    atomic.Bool
	work      work
	nobody    *nobody

	sessionKeys sessionKeys
	unwrapping  unwrapping

	codes     store.CodeCache
	codeKey   *seal.CodeKey // nil if codes is shared
	codesTold seldom        // of a warning about it

	identificationTold seldom
	mistrusted         seldom

	guesses   guesses
	repeating turns       // of those who repeat calls under idempotency keys
	uncounted atomic.Bool // that such a call could not be counted
}

// A seldom bounds how often something is logged.
type seldom struct{ last atomic.Int64 }

// now reports whether a minute has passed since it last did.
func (s *seldom) now() bool {
	at := time.Now().UnixNano()
	last := s.last.Load()
	return at-last > int64(time.Minute) && s.last.CompareAndSwap(last, at)
}

// accountSet remembers accounts that were seen to exist.
type accountSet struct{ m sync.Map }

func (s *accountSet) has(id uuid.UUID) bool { _, ok := s.m.Load(id); return ok }
func (s *accountSet) add(id uuid.UUID)      { s.m.Store(id, struct{}{}) }

// Kinds of records. A number is never given a second meaning.
const (
	kindMeta store.Kind = iota + 1
	kindAccount
	kindMerchant
	kindAPIKey
	kindToken
	kindSession
	kindIdempotency
	kindAnswer
	kindNetworkToken // id and account are those of the token
	kindRelease      // a network token that is to be deleted at the network
	kindNotice       // that a notice was applied
	kindBackfill     // an account whose tokens are to be provisioned
	kindCardArt      // its parts are its children
	kindCardArtPart
	kindPaymentData
	kindPaymentJWE // id and parent are those of its payment data
	kindEvent      // child of its token, if that is left
	kindSessionKey // of the whole vault
	kindPayload    // that a payload was used in a session
	kindWebhook
	kindQueue    // what is to be sent to a webhook; its children are the deliveries
	kindDelivery // of an event to a webhook; child of its queue
	kindPast     // what deliveries of an event tell of a token that has changed since; its child
	kindRemains  // records that were deleted, to which others belong that are to be erased
	kindSpread   // a notice that is to be applied to many tokens
	kindMistakes // how often a root API key was used for other requests under an idempotency key
)

// Open opens the vault in the folder dir, or makes one there: one bbolt file
// that a single process uses at a time. The last element of dir is made if it
// is missing. opts may be nil.
//
// Errors: ErrLocked, ErrWrongKey, ErrWrongMode, ErrDamaged, ErrFormat,
// ErrKeyFile for a key file inside dir, ErrUnavailable for a key provider that
// does not answer, or one of the file system. What was stored is untouched then.
func Open(ctx context.Context, dir string, keys *Keyring, opts *Options) (*Vault, error) {
	if _, err := opts.withDefaults(); err != nil {
		return nil, err
	}
	if err := keys.check(); err != nil {
		return nil, err
	}
	if dir == "" {
		return nil, errors.New("cardvault: the path of the vault is empty")
	}
	if err := keys.apartFrom(dir); err != nil {
		return nil, err
	}
	var bolt boltstore.Options
	if opts != nil {
		bolt.Logger = opts.Logger
	}
	s, err := boltstore.Open(ctx, filepath.Join(dir, "cardvault.db"), &bolt)
	if err != nil {
		return nil, wrapped(err)
	}
	v, err := New(ctx, s, keys, opts)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	v.owned = true
	return v, nil
}

// New returns the vault in s, or makes one there if s is empty. The caller
// closes s after the vault. Several vaults, also in other processes, may work
// on one store that allows it. opts may be nil. Errors as of Open.
func New(ctx context.Context, s store.Store, keys *Keyring, opts *Options) (*Vault, error) {
	o, err := opts.withDefaults()
	if err == nil {
		err = keys.check()
	}
	if err != nil {
		return nil, err
	}
	c := &core{keys: keys, opts: o, log: o.Logger, guesses: guesses{seed: maphash.MakeSeed()}}
	c.store = &checkedStore{Store: s, told: c.mistrusts}
	c.work.init()
	c.sessionKeys.init()
	if c.codes = o.Codes; c.codes == nil {
		c.codeKey = seal.NewCodeKey()
		c.codes = codes.New(o.SecurityCodeCapacity, c.codesEvicted)
	}
	v := &Vault{core: c}
	if err := v.load(ctx); err != nil {
		return nil, err
	}
	c.nobody, err = v.newNobody()
	return v, err
}

// metaTries bounds how often the keyring is read or written again because it is not what
// it was a moment ago. Each try calls the key provider twice at most.
const metaTries = 3

// load reads the keys of the vault, or makes a vault if the store is empty.
func (v *Vault) load(ctx context.Context) error {
	for range metaTries {
		m, err := v.loadMeta(ctx)
		switch {
		case err != nil:
			return err
		case m == nil:
			err = v.initialize(ctx)
		default:
			v.account = v.first
			if err = v.newest(ctx, m); err == nil {
				return v.ours(ctx)
			}
		}
		if err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: the keyring is another one whenever it is read: look who writes into the store", ErrDamaged)
}

// In returns a handle that works on an account. If there is no such account,
// calls return ErrNotFound.
func (v *Vault) In(account uuid.UUID) *Vault { return &Vault{v.core, account} }

// whole returns a handle on what belongs to no account.
func (v *Vault) whole() *Vault { return v.In(uuid.Nil) }

// Mode returns the mode of the vault.
func (v *Vault) Mode() Mode { return v.opts.Mode }

// Close makes later calls return ErrClosed. It ends Run, and closes what Open
// opened, which waits for running calls. Closing again returns nil.
func (v *Vault) Close() error {
	if v.closed.Swap(true) {
		return nil
	}
	v.work.stop()
	v.gate.close()
	var errs []error
	if v.opts.Codes == nil {
		errs = append(errs, v.codes.Close())
	}
	if v.owned {
		errs = append(errs, wrapped(v.store.Close()))
	}
	return errors.Join(errs...)
}

// meta is what a vault knows of itself. It is authenticated as the associated
// data of the wrapped keys.
type meta struct {
	mode       Mode
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
	b = tlv.Append(b, metaMode, []byte{byte(m.mode)})
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
	return &store.Record{Kind: kindMeta, ID: metaID, Version: m.version, Shown: b}
}

func parseMeta(rec *store.Record) (*meta, error) {
	m := &meta{version: rec.Version}
	r := tlv.Read(rec.Shown)
	for r.Next() {
		switch r.Tag {
		case metaMode:
			m.mode = Mode(r.Uint())
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
	return m, readError(&r)
}

// wrap sets m.wrapped to keys, wrapped.
func (c *core) wrap(ctx context.Context, m *meta, keys *seal.Keys) error {
	m.vault, m.generation, m.keyID = keys.Vault, keys.Generation, c.keys.wrapper.KeyID()
	plain := keys.Marshal()
	defer clear(plain)
	w, err := c.keys.wrapper.Wrap(ctx, plain, m.associated())
	if err != nil {
		return unavailable(fmt.Errorf("cardvault: wrapping the keys: %w", err))
	}
	m.wrapped = w
	return nil
}

// errKeyringLost is returned when the store does not have the keyring that is in use, or a
// later one of the same vault.
var errKeyringLost = fmt.Errorf("%w: the keyring in the store is gone, or a former or foreign one: RotateKeys writes it anew", ErrDamaged)

// loadMeta reads the vault's keys from the store, and makes or updates the box.
// It returns nil if there is no keyring. What it returns with errKeyringLost, or without
// having unwrapped it, is not authenticated.
func (c *core) loadMeta(ctx context.Context) (*meta, error) {
	var known *seal.Keys // before the store is read: it is not behind this
	if c.box != nil {
		known = c.box.Keys()
	}
	var rec *store.Record
	err := c.view(ctx, func(tx store.ReadTx) (err error) {
		rec, err = tx.Get(kindMeta, metaID)
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
	case known != nil && (err != nil || m.mode != c.opts.Mode || m.account != c.first || m.vault != known.Vault || m.generation < known.Generation):
		return m, errKeyringLost
	case known != nil && m.generation == known.Generation:
		return m, nil // nothing new to unwrap
	case err != nil:
		return nil, err
	case m.mode != c.opts.Mode:
		return nil, fmt.Errorf("%w: it was made in %v mode and is opened in %v mode", ErrWrongMode, m.mode, c.opts.Mode)
	}
	if id := c.keys.wrapper.KeyID(); m.keyID != id {
		return nil, fmt.Errorf("%w: the vault needs key %q, not %q%s", ErrWrongKey, m.keyID, id, c.keys.source())
	}
	over := c.unwrapping.turn.take(ctx, metaID)
	if over == nil {
		return nil, ctx.Err()
	}
	defer over()
	switch {
	case known != nil && c.box.Keys().Generation >= m.generation:
		return m, nil // somebody else has
	case known != nil && time.Since(c.unwrapping.failed) < unwrapPause:
		return nil, c.unwrapping.err
	}
	keys, err := c.unwrap(ctx, m)
	if err != nil {
		if ctx.Err() == nil {
			c.unwrapping.failed, c.unwrapping.err = time.Now(), err
		}
		return nil, err
	}
	if c.box == nil {
		c.first, c.box = m.account, seal.NewBox(keys, c.grant)
	} else {
		c.box.SetKeys(keys)
	}
	return m, nil
}

func (c *core) unwrap(ctx context.Context, m *meta) (*seal.Keys, error) {
	plain, err := c.keys.wrapper.Unwrap(ctx, m.wrapped, m.associated())
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

// An unwrapping bounds the calls of the key provider while the vault is open: whoever
// writes to the store must not make each read one. The zero value is ready.
type unwrapping struct {
	turn turns

	// What follows is of whose turn it is.
	failed time.Time // when a keyring could not be unwrapped
	err    error
}

// unwrapPause is for how long none is tried then.
const unwrapPause = time.Second

// ours returns ErrDamaged if the store does not have the account that was made with the
// keyring: then that is the keyring of another vault, in the place of its own.
func (v *Vault) ours(ctx context.Context) error {
	_, err := v.whole().get(ctx, kindAccount, v.first)
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w: the keyring is that of another vault, or the default account is lost: put it back from a backup", ErrDamaged)
	}
	return err
}

// newest returns ErrDamaged if a count of seals says that there was a later term than the
// last one of the keyring: then somebody has put back a former one. It returns
// store.ErrConflict if the keyring is not m any more.
func (c *core) newest(ctx context.Context, m *meta) error {
	id := countID(c.box.Keys())
	var rec *store.Record
	var later []*store.Record
	err := c.view(ctx, func(tx store.ReadTx) (err error) {
		if rec, err = tx.Get(kindMeta, metaID); err != nil {
			return err
		}
		later, err = tx.Scan(kindMeta, id, 1)
		return err
	})
	switch {
	case errors.Is(err, ErrNotFound) || err == nil && rec.Version != m.version:
		return store.ErrConflict
	case err == nil && len(later) > 0:
		err = fmt.Errorf("%w: the keyring is one of before a rotation: put back the latest one, from a backup or by RotateKeys of a vault that still has it open", ErrDamaged)
	}
	return err
}

// initialize writes a new vault with its default account, if the store is empty. It
// returns store.ErrConflict if somebody else was faster.
func (v *Vault) initialize(ctx context.Context) error {
	// What the keyring of a store was lost of must not become another vault.
	empty := func(tx store.ReadTx) error {
		switch empty, err := tx.Empty(); {
		case err != nil || empty:
			return err
		}
		switch _, err := tx.Get(kindMeta, metaID); {
		case errors.Is(err, store.ErrNotFound):
			return fmt.Errorf("%w: the store holds records and no keyring: put that back from a backup", ErrDamaged)
		case err != nil:
			return err
		}
		return store.ErrConflict
	}
	if err := v.view(ctx, empty); err != nil {
		return err
	}
	keys := seal.NewKeys()
	v.box = seal.NewBox(keys, v.grant)
	defer func() { v.box = nil }() // what is stored counts, whoever wrote it
	v.box.Grant(keys, 2)           // the two records below
	a, records, err := v.newAccount("default", v.defaultApprovals())
	if err != nil {
		return err
	}
	m := &meta{mode: v.opts.Mode, account: a.ID, version: 1}
	if err := v.wrap(ctx, m, keys); err != nil {
		return err
	}
	records = append(records, m.record(), countRecord(keys, 2, 1))
	return wrapped(v.whole().update(ctx, opRotateKeys, func(tx store.Tx) error {
		if err := empty(tx); err != nil {
			return err
		}
		for _, r := range records {
			tx.Put(r)
		}
		return nil
	}))
}

// RotateKeys starts a new term: records are sealed under a new master key from
// now on. What was sealed before is still read, and is sealed anew when it is
// next written. Other processes on the same store follow when they meet the
// new term.
//
// It also mends a store whose keyring is gone, or was replaced by a former one, while
// the vault is open; and a count of seals that is lost. The error is ErrDamaged, without
// another call of the key provider, if the store has a later term than the vault knows.
func (v *Vault) RotateKeys(ctx context.Context) error {
	var last uint32 // generation of the keyring at the last try
	for same := 0; same < metaTries; {
		m, err := v.loadMeta(ctx)
		lost := errors.Is(err, errKeyringLost)
		switch {
		case err != nil && !lost:
			return err
		case lost:
			v.log.Error("the keyring is written anew", "error", err)
		default:
			err = v.newest(ctx, m)
			if err != nil && !errors.Is(err, store.ErrConflict) {
				return err
			}
		}
		// Somebody else was faster, so there is progress: that was unwrapped, while a version
		// can be anybody's.
		if same++; v.box.Keys().Generation != last {
			same, last = 1, v.box.Keys().Generation
		}
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		next := v.box.Keys().Next()
		m = &meta{mode: v.opts.Mode, account: v.first, version: m.version + 1} // what is stored was not unwrapped
		if err := v.wrap(ctx, m, next); err != nil {
			return err
		}
		rec, count := m.record(), countRecord(next, 0, 1)
		err = v.write(ctx, opRotateKeys, uuid.Nil, func(tx store.Tx) error {
			tx.Put(rec)
			tx.Put(count)
			return nil
		})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil {
			v.box.SetKeys(next)
		}
		return err
	}
	return fmt.Errorf("%w: the keyring cannot be replaced: look who writes into the store", ErrDamaged)
}

// Seals are granted in blocks, so that counting them costs no write each. A
// crash loses what is left of a block: never too few are counted. The limits
// are those of NIST SP 800-38D for random nonces, with half of it as reserve.
// They count all keys derived from a master key together.
const (
	grantBlock  = 1 << 16
	rotateAfter = 1 << 31
	sealLimit   = 1 << 32
)

// grant allows the box more seals, and starts a new term in time.
func (c *core) grant() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	v := &Vault{core: c}
	var last uuid.UUID // of the count, at the last try
	var most uint64
	for same := 0; same < metaTries; {
		keys := c.box.Keys()
		id := countID(keys)
		var rec *store.Record
		err := c.view(ctx, func(tx store.ReadTx) (err error) {
			rec, err = tx.Get(kindMeta, id)
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
		if same++; id != last || used > most { // somebody else was faster
			same, last, most = 1, id, used
		}
		if used >= rotateAfter {
			err := v.RotateKeys(ctx)
			if err == nil {
				continue
			}
			c.log.Error("starting a new key term failed", "error", err)
		}
		if used > sealLimit-grantBlock {
			return seal.ErrExhausted
		}
		next := countRecord(keys, used+grantBlock, rec.Version+1)
		err = v.whole().update(ctx, opRotateKeys, func(tx store.Tx) error {
			tx.Put(next)
			return nil
		})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil {
			c.box.Grant(keys, grantBlock)
		}
		return err
	}
	return errCount
}

// errCount is returned when it is not known how much the present term has sealed.
var errCount = fmt.Errorf("%w: count of seals cannot be read: RotateKeys begins another", ErrDamaged)

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
	return &store.Record{Kind: kindMeta, ID: countID(k), Version: version, Shown: b}
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

// now returns the time in UTC and whole microseconds, as it is stored.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// lives reports whether a record has not lapsed.
func lives(r *store.Record, at time.Time) bool { return r.Due.IsZero() || r.Due.After(at) }

// mask returns the id under which the world knows a row of the account.
func (v *Vault) mask(kind store.Kind, row uuid.UUID) uuid.UUID {
	return rowkey.Mask(v.box.PRF(v.account), uint8(kind), row)
}

// unmask returns the row key of an id, or zero for one that this account
// almost surely never issued.
func (v *Vault) unmask(kind store.Kind, id uuid.UUID) uuid.UUID {
	row := rowkey.Unmask(v.box.PRF(v.account), uint8(kind), id)
	if id.Version() != 4 || id.Variant() != uuid.RFC4122 || !rowkey.Plausible(row, firstRow, lastRow) {
		return uuid.Nil
	}
	return row
}

// Row keys are made between these times alone, so that what was made is found
// whatever the clock says later. One random id in 90 falls in between.
var (
	firstRow = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // when the clock of testing/synctest starts
	lastRow  = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
)

// newRow returns a new row key.
func (c *core) newRow() (uuid.UUID, error) {
	row := c.rowkeys.New()
	if !rowkey.Plausible(row, firstRow, lastRow) {
		return uuid.Nil, fmt.Errorf("%w: the clock of this machine is off: it says %v", ErrUnavailable, rowkey.Time(row))
	}
	return row, nil
}

// newRecord returns the first version of a listed record of the account.
func (v *Vault) newRecord(kind store.Kind, row uuid.UUID) *store.Record {
	return &store.Record{Kind: kind, ID: row, Account: v.account, Class: 1, Version: 1}
}

// get returns the record of an id, unless it has lapsed.
func (v *Vault) get(ctx context.Context, kind store.Kind, id uuid.UUID) (*store.Record, error) {
	return v.getRow(ctx, kind, v.unmask(kind, id))
}

func (v *Vault) getRow(ctx context.Context, kind store.Kind, row uuid.UUID) (*store.Record, error) {
	if v.closed.Load() {
		return nil, ErrClosed
	}
	if row == uuid.Nil {
		return nil, ErrNotFound
	}
	var rec *store.Record
	err := v.view(ctx, func(tx store.ReadTx) (err error) {
		rec, err = v.find(tx, kind, row)
		return err
	})
	return rec, err
}

// find returns a record of the account that has not lapsed, and belongs to none that is
// gone or has.
func (v *Vault) find(tx store.ReadTx, kind store.Kind, row uuid.UUID) (*store.Record, error) {
	r, err := tx.Get(kind, row)
	if err != nil {
		return nil, err
	}
	if r.Account != v.account || !lives(r, now()) {
		return nil, ErrNotFound
	}
	return r, v.belongs(tx, r)
}

// remove deletes the record of an id and what belongs to it, in one transaction with what
// also does.
func (v *Vault) remove(ctx context.Context, op operation, kind store.Kind, id uuid.UUID, also func(store.Tx, uuid.UUID) error) error {
	if v.closed.Load() {
		return ErrClosed
	}
	row := v.unmask(kind, id)
	if row == uuid.Nil {
		v.wrote(ctx, op, v.account, id, ErrNotFound)
		return ErrNotFound
	}
	left, err := v.newRemains(kind, row)
	if err != nil {
		return err
	}
	for {
		below, err := v.keysBelow(ctx, kind, familyKeys+1, row)
		if err != nil {
			return err
		}
		large := false
		err = v.write(ctx, op, id, func(tx store.Tx) (err error) {
			if _, err := v.find(tx, kind, row); err != nil {
				return err
			}
			if large, err = deleteFamily(tx, kind, row, left, below); err != nil || also == nil {
				return err
			}
			return also(tx, row)
		})
		switch {
		case err == nil && large:
			v.workDue(left)
			return nil
		case !large || !errors.Is(err, store.ErrFull):
			return err
		}
		// There is no room for the job, but for what erases: the family first, until
		// it is small.
		if err := v.shrink(ctx, kind, row, below); err != nil {
			return err
		}
	}
}

// shrink erases some of what belongs to a record.
func (v *Vault) shrink(ctx context.Context, kind store.Kind, row uuid.UUID, below map[uuid.UUID]glimpse) error {
	return wrapped(v.update(ctx, opDelete, func(tx store.Tx) error {
		_, _, err := deleteSome(tx, kind, row, familyRows, below)
		return err
	}))
}

// put writes one record.
func (v *Vault) put(ctx context.Context, op operation, object uuid.UUID, r *store.Record) error {
	return v.write(ctx, op, object, func(tx store.Tx) error {
		tx.Put(r)
		return nil
	})
}

func (c *core) view(ctx context.Context, fn func(store.ReadTx) error) error {
	if c.closed.Load() {
		return ErrClosed
	}
	return wrapped(c.store.View(ctx, fn))
}

// openShown opens the shown part of a record in place. A term that another
// process has started is loaded.
func (c *core) openShown(ctx context.Context, r *store.Record) ([]byte, error) {
	plain, err := c.box.OpenShown(r)
	if errors.Is(err, seal.ErrUnknownTerm) {
		if _, err := c.loadMeta(ctx); err != nil {
			return nil, err
		}
		plain, err = c.box.OpenShown(r)
	}
	if err != nil {
		return nil, wrapped(err)
	}
	r.Shown = plain
	return plain, nil
}

// openSecret opens the secret part of a record in place, as openShown does.
func (c *core) openSecret(ctx context.Context, r *store.Record) ([]byte, error) {
	plain, err := c.box.OpenSecret(r)
	if errors.Is(err, seal.ErrUnknownTerm) {
		if _, err := c.loadMeta(ctx); err != nil {
			return nil, err
		}
		plain, err = c.box.OpenSecret(r)
	}
	return plain, wrapped(err)
}

// read opens the shown part of a record that holds fields.
func (c *core) read(ctx context.Context, rec *store.Record) (*tlv.Reader, error) {
	plain, err := c.openShown(ctx, rec)
	r := tlv.Read(plain)
	return &r, err
}

func readError(r *tlv.Reader) error {
	if r.Err() != nil {
		return fmt.Errorf("%w: record cannot be read", ErrDamaged)
	}
	return nil
}
