// Package cardvault is a payment-card vault as a package.
//
// A program stores card data in exchange for a [Token] and does not handle the
// card number again:
//
//	keys, err := cardvault.KeyFile("keys/vault.key", nil)
//	v, err := cardvault.Open(ctx, "vault", keys, nil)
//	defer v.Close()
//	t, err := v.Import(ctx, cardvault.Card{
//		PAN:    card.NewPAN([]byte("4242424242424242")),
//		Expiry: card.Expiry{Month: 12, Year: 2030},
//	}, nil)
//
// Most programs need [Open], [KeyFile] and the methods of [Vault]. To serve the REST API,
// mount httpapi.NewHandler. In tests, take the real vault in memory from vaulttest.New. To
// run on several machines, call [New] with a shared [store.Store].
//
// # Stored data
//
// Every record is sealed with AES-256-GCM before it reaches the store. A token has two
// sealed parts: the data that a read or a list shows, and the card number. No method
// returns a card number, and reading and listing never decrypt one. The vault's own keys
// are stored wrapped by the key-encryption key of a [Keyring], which is never in the store:
// without it nothing can be read. [Vault.Use] lends a card to a function of the program, for
// a purpose that the operator has named. A security code is kept only in memory, sealed, for the
// minutes of [Options.SecurityCodeTTL], and is erased by [Vault.Consume].
//
// # Accounts
//
// Everything belongs to an [Account], and every call works inside one: the
// default account that is made with the vault, or the one of [Vault.In].
//
// # Network tokens
//
// With [Options.Network], every eligible card receives a network token, the substitute
// number of its scheme. [Token.NetworkTokenStatus] shows its state. The work for it is done
// in the background, and an import never waits for it. [Vault.RequestPaymentData] asks for
// a cryptogram for one payment. It is encrypted for the merchant, who opens it with
// [receive.OpenPaymentData]. Package simnet simulates a network; an adapter of a real one
// implements [network.Provider].
//
// # Sessions and security codes
//
// [Vault.CreateSession] starts a session in which a shopper enters a card. A browser sends
// it over httpapi, in a payload that it encrypts for [Vault.CompleteSession], or the
// program passes it to [Vault.Tokenize]. While the vault has the security code of a card,
// the network and the provider of [Vault.ObtainPPAN] use it. [Vault.RefreshSession] starts
// a session for entering it again.
//
// # Replaced cards
//
// Issuers replace cards. [Vault.Replace], or a session of [Vault.ReplaceSession], gives a token
// the new card, and the token keeps its id. [Token.AccountNumberStale] shows that the network
// has reported a new number.
//
// # Background work
//
// Call [Vault.Run] in a goroutine of its own, or [Vault.Drain] now and then. It provisions
// network tokens and keeps them up to date, submits cards to [Options.Updater], passes events to [Options.Events], and erases
// tokens with an expiration time, sessions, API keys and idempotency keys: these are
// invisible from the instant they lapse.
//
// # Idempotency
//
// Every call that creates or rotates something has an IdempotencyKey among its options: 1
// to 255 printable ASCII characters that the caller chooses. It is unique within the
// account, the method and the object of the call. Repeating the call with the same key has
// the effect and the result of the first call, whatever happened in between, until
// [Options.IdempotencyTTL] has passed. The field Replayed of the result is true then.
//
// The record of a key is written in the transaction of the effect. It holds a keyed hash of
// the request, never the request. Import, Replace and Provision return the token as it was,
// other calls return the present state of their object. If the object was deleted, or the card
// of a token that is returned as it was has been replaced, the error is [ErrNotFound], and
// nothing is made again. The same holds for the calls that make a session once that has
// lapsed, because its id is a credential. API keys,
// payment secrets and secrets of webhooks are shown once and not on a repetition: rotate or
// revoke a lost one. Errors are not stored, except ErrNetworkTokenState of Provision.
//
// A security code is not part of a request: repeating the call with another code does not
// reveal which one was right. Another request under the key is [ErrIdempotencyKeyReused],
// and is counted for the [Actor.RootKeyID] of the call, or its [Actor.Name], or for all
// calls without either. After five of them every call for that root is
// ErrIdempotencyKeyReused as long as the key is kept, even the right one, so that no other
// part of a request can be guessed either. Other roots are not affected.
//
// RequestPaymentData waits for the network, Consume for the cache of security codes. A
// repetition meanwhile is [ErrIdempotencyInProgress], for a minute at most after a crash.
//
// Replicas that start together call [Vault.EnsureMerchant] and [Vault.EnsureAPIKey], which
// need no key and no file.
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
	"hash/maphash"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/adapter"
	"github.com/cardvault/cardvault/internal/auditlog"
	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/lastuse"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/outbox"
	"github.com/cardvault/cardvault/internal/payload"
	"github.com/cardvault/cardvault/internal/quota"
	"github.com/cardvault/cardvault/internal/removal"
	"github.com/cardvault/cardvault/internal/renewal"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/reseal"
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
	rows ledger.Account // the records of its account
}

// core is what all handles of a vault share.
type core struct {
	ledger    *ledger.Ledger
	jobs      *jobs.Engine
	eraser    *removal.Eraser
	closer    *removal.Closer
	owned     store.Store // closed with the vault; nil: its caller does
	dir       string      // of owned
	opts      Options
	log       *slog.Logger
	standings sync.Map // of accounts: *standing
	counts    quota.Counts
	outbox    *outbox.Outbox
	audit     *auditlog.Log     // nil without Options.Audit
	testing   sync.Map          // row keys of webhooks to which a test is under way
	rate      *jobs.Rate        // of calls for a scheme
	renewals  *renewal.Renewals // nil without an account updater
	sealer    *reseal.Sealer
	decoy     *decoy

	principals *ledger.Memory[*Principal] // under the digests of their API keys' texts
	uses       *lastuse.Times             // of API keys
	outside    ledger.Seldom              // that an API key was used outside its address ranges

	payloads *payload.Keys

	codes *codes.Keeper

	identificationTold ledger.Seldom
	mistrusted         ledger.Seldom

	guesses guesses
	calls   *replay.Calls // under idempotency keys
}

// Kinds of records. A number is never given a second meaning.
const (
	kindAccount  = ledger.KindAccount
	kindMerchant = ledger.KindAccount + iota
	kindAPIKey
	kindToken   = outbox.KindToken
	kindSession = ledger.KindAccount + iota
	kindIdempotency
	kindAnswer
	kindNetworkToken // id and account are the token's
	kindRelease      // a network token awaiting deletion at the network
	kindNotice       // that a notice was applied
	kindBackfill     // an account whose tokens await provisioning
	kindCardArt      // its parts are its children
	kindCardArtPart
	kindPaymentData
	kindPaymentJWE                             // id and parent are its payment data's
	kindEvent      = outbox.KindEvent          // a former version had records of it, which are erased
	kindSessionKey = ledger.KindAccount + iota // of the whole vault
	kindPayload                                // that a payload was used in a session
	kindWebhook    = outbox.KindWebhook
	kindQueue      = outbox.KindQueue
	kindDelivery   = outbox.KindDelivery
	kindPast       = outbox.KindPast
	kindRemains    = ledger.KindAccount + iota // deleted records whose descendants await erasure
	kindSpread                                 // a notice that applies to many tokens
	kindMistakes                               // how often a root API key was used for other requests under an idempotency key
	kindSinkQueue  = outbox.KindSinkQueue
	kindLease      = ledger.KindAccount + iota // that a process does the provisionings of a shard, or waits for one
	kindGivenKey                               // that an API key was made with a text that was given, also once the key is gone
	kindCredential                             // of the operator, for forwards
	kindRound                                  // the going through all tokens for the account updater, one of the whole vault
	kindSubmission                             // the cards that were submitted to the account updater together
	kindOptOut                                 // that a cardholder wants no updates; id and parent are the token's
	kindAuditRecord
	kindAuditCheckpoint
	kindAuditChain
	kindAuditSegment
	kindReseal    // the going through all records to seal them under the present term, one of the whole vault
	kindKeyUse    // when an API key was last used; id is the key's
	kindClosing   // an account whose records are being erased; id is the account's
	kindRetention // an account whose tokens are deleted at an age; id is the account's

	kindSum       = ledger.KindSum
	kindSumChange = ledger.KindSumChange

	lastKind = kindSumChange
)

// homes says of which account records are; other kinds are Anywhere.
var homes = map[store.Kind]ledger.Home{
	ledger.KindMeta: ledger.Nowhere, kindAccount: ledger.Nowhere, kindNotice: ledger.Nowhere, kindSpread: ledger.Nowhere,
	kindSessionKey: ledger.Nowhere, kindPayload: ledger.Nowhere, kindSinkQueue: ledger.Nowhere, kindLease: ledger.Nowhere, kindRound: ledger.Nowhere, kindReseal: ledger.Nowhere,
	kindSum: ledger.Nowhere, kindSumChange: ledger.Nowhere,

	kindMerchant: ledger.Own, kindAPIKey: ledger.Own, kindToken: ledger.Own, kindSession: ledger.Own,
	kindIdempotency: ledger.Own, kindAnswer: ledger.Own, kindNetworkToken: ledger.Own, kindRelease: ledger.Own,
	kindBackfill: ledger.Own, kindCardArt: ledger.Own, kindCardArtPart: ledger.Own, kindPaymentData: ledger.Own,
	kindPaymentJWE: ledger.Own, kindWebhook: ledger.Own, kindQueue: ledger.Own, kindPast: ledger.Own, kindOptOut: ledger.Own, kindKeyUse: ledger.Own, kindClosing: ledger.Own, kindRetention: ledger.Own,
	kindCredential: ledger.Own, kindDelivery: ledger.Own, // those of the sink are of no account, and named so

	kindAuditRecord: ledger.Own, kindAuditCheckpoint: ledger.Own, kindAuditChain: ledger.Own, kindAuditSegment: ledger.Own,
}

// names says how errors and reports name records; kinds of other versions appear by number. No error has the id of
// a session, which is a credential, or of card art, which entitles to see it.
var names = map[store.Kind]ledger.Name{
	ledger.KindMeta:  {Kind: "keyring"},
	kindAccount:      {Kind: "account", Printed: kindAccount},
	kindMerchant:     {Kind: "merchant", Printed: kindMerchant},
	kindAPIKey:       {Kind: "API key", Printed: kindAPIKey},
	kindToken:        {Kind: "token", Printed: kindToken},
	kindSession:      {Kind: "session"},
	kindIdempotency:  {Kind: "idempotency key"},
	kindNetworkToken: {Kind: "network token of token", Printed: kindToken},
	kindCardArt:      {Kind: "card art"},
	kindPaymentData:  {Kind: "payment data", Printed: kindPaymentData},
	kindPaymentJWE:   {Kind: "payment data", Printed: kindPaymentData},
	kindWebhook:      {Kind: "webhook", Printed: kindWebhook},
	kindDelivery:     {Kind: "delivery", Printed: kindDelivery},
	kindPast:         {Kind: "token at event", Printed: kindEvent},
	kindCredential:   {Kind: "credential"},
	kindKeyUse:       {Kind: "last use of API key", Printed: kindAPIKey},

	kindAuditRecord:     {Kind: "audit record", Printed: kindAuditRecord},
	kindAuditCheckpoint: {Kind: "audit checkpoint"},
	kindAuditChain:      {Kind: "audit log"},
	kindAuditSegment:    {Kind: "audit segment"},

	kindAnswer:      {Kind: "answer under idempotency key"},
	kindRelease:     {Kind: "network token to be deleted"},
	kindNotice:      {Kind: "network notice"},
	kindSpread:      {Kind: "network notice"},
	kindBackfill:    {Kind: "backfill of network tokens"},
	kindCardArtPart: {Kind: "card art"},
	kindEvent:       {Kind: "event"},
	kindSessionKey:  {Kind: "session key"},
	kindPayload:     {Kind: "use of payload"},
	kindQueue:       {Kind: "queue of deliveries"},
	kindSinkQueue:   {Kind: "queue of deliveries"},
	kindRemains:     {Kind: "erasure"},
	kindMistakes:    {Kind: "mistakes under idempotency keys"},
	kindLease:       {Kind: "lease"},
	kindGivenKey:    {Kind: "text of given API key"},
	kindRound:       {Kind: "round of account updater"},
	kindSubmission:  {Kind: "submission to account updater"},
	kindOptOut:      {Kind: "opt-out of account updater"},
	kindReseal:      {Kind: "round of sealing anew"},
	kindSum:         {Kind: "sums of account"},
	kindSumChange:   {Kind: "changes of sums"},
}

// Open opens the vault in the folder dir, or makes one there: one bbolt file
// that a single process uses at a time. The last element of dir is made if it
// is missing. opts may be nil.
//
// Errors: ErrLocked, ErrWrongKey, ErrWrongMode, ErrFrozen, ErrMoved, ErrDamaged, ErrFormat, ErrKeyFile for a key
// file inside dir, ErrUnavailable for a key provider or an anchor that does not answer,
// ErrRolledBack, ErrAnchor, or one of the file system. Stored data is untouched then. A Keyring of several keys may have the vault's
// keys wrapped anew: see [JoinKeyrings].
func Open(ctx context.Context, dir string, keys *Keyring, opts *Options) (*Vault, error) {
	if _, err := opts.withDefaults(); err != nil {
		return nil, err
	}
	var bolt boltstore.Options
	if opts != nil {
		bolt.Logger = opts.Logger
		if err := anchorApart(opts.Anchor, dir); err != nil {
			return nil, err
		}
	}

	s, err := keys.openDir(ctx, dir, &bolt)
	if err != nil {
		return nil, err
	}
	v, err := New(ctx, s, keys, opts)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	v.owned, v.dir = s, dir
	return v, nil
}

// openDir opens the store in the folder of a vault.
func (k *Keyring) openDir(ctx context.Context, dir string, opts *boltstore.Options) (store.Store, error) {
	if err := k.check(); err != nil {
		return nil, err
	}
	if dir == "" {
		return nil, errors.New("cardvault: the path of the vault is empty")
	}
	if err := k.apartFrom(dir); err != nil {
		return nil, err
	}
	s, err := boltstore.Open(ctx, filepath.Join(dir, "cardvault.db"), opts)
	if err != nil {
		return nil, ledger.Translate(err)
	}
	return s, nil
}

// New returns the vault in s, or makes one there if s is empty. The caller
// closes s after the vault. Several vaults, also in other processes, may work
// on one store that allows it. opts may be nil. Errors as of Open.
func New(ctx context.Context, s store.Store, keys *Keyring, opts *Options) (*Vault, error) {
	return newVault(ctx, s, keys, opts, false)
}

// newVault is New. With restoring it opens a vault that is being restored.
func newVault(ctx context.Context, s store.Store, keys *Keyring, opts *Options, restoring bool) (*Vault, error) {
	o, err := opts.withDefaults()
	if err == nil {
		err = keys.check()
	}
	if err == nil && adapter.IsNil(s) {
		err = errors.New("cardvault: New needs a store")
	}
	if err != nil {
		return nil, err
	}
	if unused := o.powers.Unused; unused != nil {
		o.Logger.Warn("the network has capabilities that are not used, because its Info does not name them", "interfaces", unused)
	}

	c := &core{opts: o, log: o.Logger, guesses: guesses{seed: maphash.MakeSeed()}}
	c.ledger = ledger.New(ledger.Config{
		Store:    s,
		Ring:     keys.ring(),
		Mode:     uint8(o.Mode),
		ModeName: func(m uint8) string { return Mode(m).String() },
		Families: families,
		Hashes:   c.hashes(),
		Names:    names,
		Homes:    homes,
		Log:      o.Logger,
		Thaw:     o.Thaw, Restoring: restoring,
		Anchor: o.Anchor, AcceptRollback: o.AcceptRollback,
		Wrote:   c.wrote,
		Rotated: func(tx store.Tx) error { return c.sealer.Begin(tx) },
		Mistrust: func(answer string) {
			if c.mistrusted.Now() {
				c.log.Error("the store was edited, or is damaged", "answer", answer)
			}
		},
	})
	if c.audit = newAudit(c); c.audit != nil {
		c.ledger.SetAuditor(c.audit)
	}
	v, err := openCore(ctx, c)
	if err != nil { // nothing writes any more: a store that was refused stays as it is
		c.ledger.Abandon()
		if c.audit != nil {
			c.audit.Abandon()
		}
		return nil, err
	}
	return v, nil
}

// openCore opens the vault of a core that has its ledger. What it has begun goes on after an error.
func openCore(ctx context.Context, c *core) (*Vault, error) {
	o := &c.opts
	c.calls = replay.New(replay.Config{
		Keys: kindIdempotency, Answers: kindAnswer, Mistakes: kindMistakes, Keep: o.IdempotencyTTL, Log: o.Logger,
		Check: checkIdempotencyKey, Refused: ErrNetworkTokenState,
		Root: func(ctx context.Context) uuid.UUID { a, _ := ctx.Value(actorKey{}).(Actor); return a.root() },
	})

	c.principals = ledger.NewMemory[*Principal](c.ledger, kindAPIKey, kindAccount)
	c.uses = lastuse.New(lastuse.Config{Ledger: c.ledger, Log: o.Logger, Keys: kindAPIKey, Uses: kindKeyUse})
	c.codes = codes.NewKeeper(codes.Config{Shared: o.Codes, Capacity: o.SecurityCodeCapacity, Ledger: c.ledger, Log: o.Logger})
	whole := &Vault{core: c, rows: c.ledger.In(uuid.Nil)}
	if err := c.ledger.Load(ctx, whole.firstRecords); err != nil {
		return nil, rolledBack(err)
	}

	c.eraser = removal.New(removal.Config{Ledger: c.ledger, Log: o.Logger, Remains: kindRemains, Longest: workTime, Lapsing: whole.lapsing()})
	c.closer = newCloser(whole)
	c.outbox = whole.newOutbox()
	c.rate = jobs.NewRate(o.NetworkRate)
	c.renewals = newRenewals(c)
	c.sealer = newSealer(whole)
	c.jobs = jobs.New(c.ledger, c.log, whole.sweeps(), whole.kinds())
	c.eraser.Attach(c.jobs)
	c.payloads = payload.New(payload.Config{Ledger: c.ledger, Jobs: c.jobs, Log: o.Logger, Keys: kindSessionKey, Used: kindPayload})
	c.outbox.Attach(c.jobs)
	if err := errors.Join(c.renewals.Attach(ctx, c.jobs), c.sealer.Attach(ctx, c.jobs)); err != nil {
		return nil, err
	}

	for _, step := range []func(context.Context) error{c.ledger.Accept, c.ledger.Thaw, c.ledger.FollowAnchor} {
		if err := step(ctx); err != nil {
			return nil, rolledBack(err)
		}
	}

	v := whole.In(c.ledger.First)
	var err error
	if c.decoy, err = v.newDecoy(); err != nil {
		return nil, err
	}
	return v, whole.rows.Note(ctx, opAuditStart, uuid.Nil, nil)
}

// firstRecords returns the default account of a new vault and its records.
func (v *Vault) firstRecords() (uuid.UUID, []*store.Record, error) {
	sandbox := v.opts.Mode == Sandbox
	a := &Account{Name: "default", State: AccountOpen, ImportApproved: sandbox, NetworkTokensActive: sandbox}
	records, err := a.complete(v)
	if err != nil {
		return uuid.Nil, nil, err
	}
	return a.ID, records, nil
}

// RotateKeys starts a new term: records are sealed under a new master key from now on.
// Records sealed before stay readable, and are sealed anew by [Vault.Run].
// Other processes on the same store follow when they meet the new term, within 30 seconds
// in [Vault.Run]. opts may be nil; an idempotency key is unique within the vault. 475
// rotations are possible; then a rotation is an error. The key-encryption key stays the
// same: see [Vault.ChangeKeyring].
//
// Without an idempotency key RotateKeys also repairs a store whose keyring was lost, or
// replaced by a former one, while the vault is open; and a lost count of seals. The error
// is ErrDamaged, without another call of the key provider, if the store has a later term
// than the vault knows.
func (v *Vault) RotateKeys(ctx context.Context, opts *CallOptions) (_ *Outcome, err error) {
	defer v.whole().doing(ctx, "rotate keys", &err)
	made, err := rotate(ctx, v, ledger.OpRotateKeys, opts, v.ledger.RotateKeys)
	if err == nil && !made.Replayed {
		v.sealer.Woken()
	}
	return made, err
}

// rotate makes a call that rotates keys with begin, once under its idempotency key.
func rotate(ctx context.Context, v *Vault, op ledger.Operation, opts *CallOptions, begin func(ctx context.Context, also func(store.Tx) error) error) (*Outcome, error) {
	call := replay.Request{Operation: op, Key: opts.key()}
	return once(ctx, v.whole(), call, replayed, func(c *replay.Call) (*Outcome, error) {
		if err := c.Seal(nil, uuid.Nil); err != nil {
			return nil, err
		}
		return new(Outcome), begin(ctx, c.Put)
	})
}

// In returns a handle that works on an account. If there is no such account, or it was
// closed, calls return ErrNotFound; if it is frozen, ErrAccountFrozen.
func (v *Vault) In(account uuid.UUID) *Vault {
	if v == nil || v.core == nil {
		return v
	}
	return &Vault{v.core, v.ledger.In(account).Guarded()}
}

// of returns a handle on an account, whatever its state, for background work, for what
// networks say, and for the operator's calls.
func (c *core) of(account uuid.UUID) *Vault { return &Vault{c, c.ledger.In(account)} }

// whole returns a handle on what belongs to no account.
func (v *Vault) whole() *Vault { return v.In(uuid.Nil) }

// Mode returns the mode of the vault, Live if it was not opened.
func (v *Vault) Mode() Mode { return optionsOf(v).Mode }

// optionsOf returns the options of a vault, none if it was not opened.
func optionsOf(v *Vault) *Options {
	if v == nil || v.core == nil {
		return new(Options)
	}
	return &v.opts
}

// Close makes later calls return ErrClosed. It ends Run, and closes what Open
// opened, which waits for running calls. Closing again returns nil.
func (v *Vault) Close() (err error) {
	defer v.doing(context.Background(), "close vault", &err)
	if v.audit != nil && !v.ledger.Closed() {
		err = v.whole().rows.Note(context.Background(), opAuditStop, uuid.Nil, nil)
		v.audit.Close() // before the ledger, so that the last records have a checkpoint
	}
	v.uses.Close()
	err = errors.Join(err, v.ledger.CloseAnchor())
	if !v.ledger.Close() {
		return nil
	}
	v.jobs.Stop()
	errs := []error{err, v.codes.Close()}
	if v.owned != nil {
		errs = append(errs, ledger.Translate(v.owned.Close()))
	}
	return errors.Join(errs...)
}

// now returns the time in UTC and whole microseconds, as it is stored.
func now() time.Time { return ledger.Now() }
