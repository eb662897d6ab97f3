// Package simnet simulates the token services of the card schemes, for tests
// and sandboxes.
//
// A [Network] is a [network.Provider] that looks real to a vault: it answers at once, late
// or never, refuses, sends notices twice, in the wrong order or not at all, and continues
// after a restart where it was.
//
//	sim, err := simnet.Open(ctx, "simulator", nil)
//	v, err := cardvault.Open(ctx, "vault", keys, &cardvault.Options{
//		Mode:    cardvault.Sandbox,
//		Network: sim,
//	})
//	go v.Run(ctx)
//
// A live vault refuses it. Tests take [New] with a store in memory; in a bubble of
// testing/synctest the test decides what time it is, elsewhere [Network.Advance]
// moves the clock.
//
// # Scenarios
//
// The card number decides what happens. Any test number that is not listed here
// becomes active at once. [ScenarioPAN] makes a number of a scenario for each
// scheme: the scheme's test IIN, zeros, the scenario's three digits, and the check
// digit, so that the scenario shows in the masked last four. VISA 411111,
// Mastercard 555555, American Express 378282, Discover 601111, Diners Club
// 362272, JCB 356600, UnionPay 620000.
//
//	000  active at once
//	001  pending; active after 2 s, by a notice
//	002  pending; active after 2 s, but the notice is lost: Lookup shows it
//	010  refused: card_not_eligible
//	011  refused: card_not_allowed
//	012  refused: declined
//	013  refused: declined; works under the next idempotency key of the token
//	014  scheme_unavailable under the token's first two keys, then works
//	015  scheme_unavailable always
//	020  refused by configuration: merchant_not_enrolled
//	021  the same; works under the next key of the token
//	030  suspended by the issuer after 2 s
//	031  suspended after 2 s, resumed after 4 s
//	032  deleted by the issuer after 2 s
//	033  the card is invalidated after 2 s
//	034  the card gets a new number and expiry after 2 s
//	035  the card gets a new expiry after 2 s
//	036  the card gets new art after 2 s
//	037  the network token gets a new number and expiry after 2 s
//	040  cryptograms are declined
//	041  cryptograms are refused by configuration: merchant_not_enrolled
//	042  cryptograms take 2 s
//	043  cryptograms never come: the call waits for its deadline
//	044  scheme_unavailable for the first two cryptograms, then works
//	045  cryptograms come without an ECI
//	050  provisioning takes 2 s
//	051  provisioning never answers: the call waits for its deadline
//	060  suspended after 2 s, resumed after 4 s; the notices come then, each twice
//	     and in reverse order
//	061  provisioned, but the answer is lost: the first call under a key waits for
//	     its deadline, later ones answer
//	070  refused unless the cardholder was identified: card_verification_failed;
//	     identified by a challenge and 2 s of waiting
//	071  supports device binding
//	080  a pseudo card number is asked for and made: VALID
//	081  the provider of pseudo card numbers refuses the card: INVALID
//	082  it refuses the request: ERROR
//	090  the account updater reports a new number and expiry
//	091  it reports a new expiry
//	092  it reports that the account is closed
//	093  it reports that the cardholder needs to be asked
//	094  it reports that the cardholder has opted out
//
// [Control] changes cards that are stored already, as schemes and issuers do.
//
// [Network.PPAN] is a [ppan.Provider]; all cards except 081 and 082 are VALID there too.
// Behind the handler of package payonetest it is reached over HTTP. [Network.IDV] is an
// [idv.Provider]: only the holders of 070 cards need to be identified, see
// [Options].ChallengeURL.
//
// [Network.Updater] is an [updater.Provider]. Of a card of 034 it reports the new number that
// the notice leaves out, and of a card of 033 that the account is closed. Any other card is no
// match, unless [Control.Report] has said otherwise.
//
// # Stored data
//
// State is kept in a [store.Store] of the simulator's own, in the clear. A card is kept as
// the last four digits, the expiry and a payment account reference, which is a keyed hash
// of the number; there is no number, security code or name. Numbers of network tokens, new
// numbers of cards and cryptograms are derived from the seed of the state, and not kept either. Provisionings
// are kept for good, even once the network token is deleted, so that an idempotency key
// never makes a second token.
package simnet

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/google/uuid"
)

// Options are the optional parts of a simulator.
type Options struct {
	// Seed decides the numbers and cryptograms of a state that is new; it is kept
	// with the state. Defaults to a fixed one: with the same idempotency keys every
	// new simulator makes the same.
	Seed uint64

	// Schemes whose cards can have network tokens; others are scheme_not_enabled.
	// Defaults to VISA, Mastercard, American Express and Discover.
	Schemes []card.Scheme

	// Name is the Name in its [network.Info]. Simulators behind one networks.Route have
	// different names. Defaults to "simulator".
	Name string

	// Shared makes tokens of one card number share one network token.
	Shared bool

	// ChallengeURL is where the shopper confirms or refuses an identification, with
	// its reference appended, which [Control.EndIdentification] takes. If "", there is
	// no challenge, and every identification is passed after two seconds.
	ChallengeURL string
}

// A Network is the simulator. Its methods may be called concurrently. It starts no
// goroutine. Several processes may use one state if its store allows that. Feed looks for
// changes by others whenever something becomes due here, or on [Network.Advance].
type Network struct {
	store     store.Store
	owned     bool // Close closes store
	key       [sha256.Size]byte
	name      string
	enabled   [len(issuers)]bool
	shared    bool
	challenge string
	ahead     atomic.Int64 // of time.Now, in nanoseconds

	mu   sync.Mutex
	news chan struct{} // closed and replaced when Feed has to look again
}

var (
	_ network.Provider     = (*Network)(nil)
	_ network.Feeder       = (*Network)(nil)
	_ network.Suspender    = (*Network)(nil)
	_ network.ArtFetcher   = (*Network)(nil)
	_ network.Credentialer = (*Network)(nil)
)

// Kinds of records. An attempt is the outcome of one idempotency key, and is found by the
// id of its token.
const (
	kindState          store.Kind = iota + 1
	kindAttempt                   // its id is a keyed hash of the idempotency key
	kindCard                      // its id is a keyed hash of a card number that is shared
	kindIdentification            // its id is its reference
	kindSubmitted                 // its id is a keyed hash of the reference of a card at the updater
	kindInquired                  // its id is a keyed hash of the payment account reference of a card at the updater
)

var stateID = uuid.UUID{15: 1}

// A state is what a store of the simulator begins with.
type state struct {
	Format int    `json:"format"`
	Seed   uint64 `json:"seed"`
}

const format = 1

// Open returns a simulator that keeps its state in the folder dir, in the file
// simnet.db, and makes both if they are missing. opts may be nil. Close it after
// the vault.
//
// Errors: as for [boltstore.Open] and [New].
func Open(ctx context.Context, dir string, opts *Options) (*Network, error) {
	s, err := boltstore.Open(ctx, filepath.Join(dir, "simnet.db"), nil)
	if err != nil {
		return nil, err
	}
	n, err := New(ctx, s, opts)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	n.owned = true
	return n, nil
}

// New returns a simulator that keeps its state in s, which nothing else uses and
// which the caller closes after it. opts may be nil.
//
// Errors: an impossible option; store.ErrFormat for a state written by a later version;
// errors of s.
func New(ctx context.Context, s store.Store, opts *Options) (*Network, error) {
	if s == nil {
		return nil, errors.New("simnet: New needs a store")
	}
	var o Options
	if opts != nil {
		o = *opts
	}

	if o.Schemes == nil {
		o.Schemes = []card.Scheme{
			card.VISA, card.Mastercard, card.AmericanExpress, card.Discover,
		}
	}

	n := &Network{name: cmp.Or(o.Name, simulator), store: s, shared: o.Shared, challenge: o.ChallengeURL, news: make(chan struct{})}
	for _, of := range o.Schemes {
		if !known(of) {
			return nil, errors.New("simnet: Options.Schemes has a scheme that the simulator does not know")
		}
		n.enabled[of] = true
	}

	seed, err := seedOf(ctx, s, o.Seed)
	if err != nil {
		return nil, err
	}
	n.key = sha256.Sum256(binary.BigEndian.AppendUint64([]byte("cardvault/simnet"), seed))
	return n, nil
}

// seedOf returns the seed of the state in s, which begins with this one if it is new.
func seedOf(ctx context.Context, s store.Store, seed uint64) (uint64, error) {
	shown, err := json.Marshal(state{format, seed})
	if err != nil {
		return 0, err
	}

	var st state
	err = s.Update(ctx, func(tx store.Tx) error {
		r, err := tx.Get(kindState, stateID)
		if errors.Is(err, store.ErrNotFound) {
			r = &store.Record{Kind: kindState, ID: stateID, Version: 1, Shown: shown}
			tx.Put(r)
		} else if err != nil {
			return err
		}
		return decode(r, &st)
	})

	if err == nil && st.Format > format {
		err = fmt.Errorf("simnet: %w", store.ErrFormat)
	}
	return st.Seed, err
}

// Close ends the simulator. Feed returns, and later calls fail.
func (n *Network) Close() error {
	if !n.owned {
		return nil
	}
	defer n.wake()
	return n.store.Close()
}

// Advance moves the simulator's clock ahead of time.Now by d more, which must not be
// negative, until the process ends. Events that become due by it happen at once. Slow
// answers stay as slow as they are.
func (n *Network) Advance(d time.Duration) {
	n.ahead.Add(int64(d))
	n.wake()
}

// now is the time of the simulator in microseconds.
func (n *Network) now() int64 {
	return time.Now().Add(time.Duration(n.ahead.Load())).UnixMicro()
}

// wake makes every Feed look for notices.
func (n *Network) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.news)
	n.news = make(chan struct{})
}

// woken returns what the next wake closes.
func (n *Network) woken() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.news
}

// simulator is the name of a Network as each of its four adapters.
const simulator = "simulator"

// Info implements [network.Provider]: a simulator is for sandboxes and can do everything.
func (n *Network) Info() network.Info {
	return network.Info{Name: n.name, SandboxOnly: true, Suspender: true, Feeder: true, ArtFetcher: true, Credentialer: true}
}

// Eligible implements [network.Provider]: every merchant is enrolled for the
// schemes of [Options].
func (n *Network) Eligible(r *network.EligibilityRequest) error {
	if !known(r.Scheme) || !n.enabled[r.Scheme] {
		return &network.Error{Source: network.SourceConfiguration, Code: network.CodeSchemeNotEnabled}
	}
	return nil
}

// Provision implements [network.Provider]. Repeated under the same key it reports the
// present state, and the card as first reported.
func (n *Network) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	if err := n.Eligible(&network.EligibilityRequest{Scheme: r.Scheme, Merchant: r.Merchant}); err != nil {
		return nil, err
	}
	if !keyOK(r.IdempotencyKey) {
		return nil, badRequest()
	}
	c, code, cardID, ok := n.card(r)
	if !ok {
		return nil, &network.Error{
			Source: network.SourceScheme, Code: network.CodeInvalidCardData, SchemeCode: "INVALID_PAN",
		}
	}

	s := scenarios[code]
	switch {
	case s.refused == always, s.identified && r.Identification != idv.Checked:
		return nil, s.refusal()
	case s.hangs:
		<-ctx.Done()
		return nil, ctx.Err()
	case s.slow:
		if err := sleep(ctx, slowness); err != nil {
			return nil, err
		}
	}

	row, now := n.row(r.IdempotencyKey), n.now()
	fresh := newToken(r.Scheme, code, c, now)
	var h *held
	err := n.store.Update(ctx, func(tx store.Tx) (err error) {
		if h, err = n.find(tx, row, now); !errors.Is(err, store.ErrNotFound) {
			return err // or nil: the key was used before
		}
		record := &store.Record{Kind: kindAttempt, ID: row, Lookup: [][]byte{r.TokenID[:]}}
		h, err = n.attempt(tx, record, fresh, cardID)
		return err
	})

	switch {
	case err != nil:
		return nil, err
	case h.token == nil:
		return nil, s.refusal()
	case h.token == fresh && s.lost:
		<-ctx.Done()
		return nil, ctx.Err()
	}

	if len(fresh.Outbox) > 0 {
		n.wake()
	}
	return h.token.view(h.record.ID, h.token.First), nil
}

// attempt puts the first attempt under a key, and returns the network token that it
// leads to: fresh, another one of the same card, or none if the scenario refuses it.
func (n *Network) attempt(tx store.Tx, record *store.Record, fresh *token, cardID uuid.UUID) (*held, error) {
	if refused := scenarios[fresh.Scenario].refused; refused > 0 {
		before, err := tx.Lookup(kindAttempt, record.Lookup[0], refused)
		if err != nil {
			return nil, err
		}
		if len(before) < refused {
			return &held{record: record}, put(tx, record, &attempt{Refused: true})
		}
	}

	if n.shared {
		h, err := n.share(tx, cardID, record.ID, fresh.Made)
		if err != nil {
			return nil, err
		}
		if h != nil {
			return h, put(tx, record, &attempt{Of: h.record.ID})
		}
	}
	return &held{record, fresh}, put(tx, record, &attempt{Token: fresh})
}

// Lookup implements [network.Provider].
func (n *Network) Lookup(ctx context.Context, ref network.Ref) (*network.Token, error) {
	h, err := n.look(ctx, ref)
	if err != nil {
		return nil, err
	}
	return h.token.view(h.record.ID, h.token.Card), nil
}

// Cryptogram implements [network.Provider]. Two idempotency keys never have the
// same cryptogram, and one always has the same.
func (n *Network) Cryptogram(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
	if !keyOK(r.IdempotencyKey) {
		return nil, badRequest()
	}

	h, err := n.usable(ctx, r.Token)
	if err != nil {
		return nil, err
	}

	t, s := h.token, scenarios[h.token.Scenario].cryptogram
	switch {
	case s.hangs:
		<-ctx.Done()
		return nil, ctx.Err()
	case s.slow:
		if err := sleep(ctx, slowness); err != nil {
			return nil, err
		}
	case s.refused == always:
		return nil, s.refusal()
	case t.Refusals < s.refused:
		refused, err := n.countRefusal(ctx, h.record.ID, s.refused)
		if err != nil {
			return nil, err
		}
		if refused {
			return nil, s.refusal()
		}
	}

	size, eci := 20, "07"
	if t.Scheme == scheme(card.Mastercard) {
		size, eci = 19, "06"
	}
	if s.noECI {
		eci = ""
	}

	value := n.mac("cryptogram", h.record.ID[:], []byte(r.IdempotencyKey))
	return &network.Cryptogram{
		TokenID: tokenID(h.record.ID),
		Number:  n.number(h.record.ID, t),
		Expiry:  t.Expiry,
		Value:   card.NewCryptogramValue(base64.StdEncoding.AppendEncode(nil, value[:size])),
		ECI:     eci,
	}, nil
}

// Credential implements [network.Credentialer]: the number that the next cryptogram would have.
func (n *Network) Credential(ctx context.Context, r *network.CredentialRequest) (*network.Credential, error) {
	h, err := n.usable(ctx, r.Token)
	if err != nil {
		return nil, err
	}
	return &network.Credential{TokenID: tokenID(h.record.ID), Number: n.number(h.record.ID, h.token), Expiry: h.token.Expiry}, nil
}

// usable returns a network token that is active.
func (n *Network) usable(ctx context.Context, ref network.Ref) (*held, error) {
	h, err := n.look(ctx, ref)
	switch {
	case errors.Is(err, network.ErrUnknown):
		return nil, &network.Error{
			Source: network.SourceScheme, Code: network.CodeDeclined, SchemeCode: "TOKEN_NOT_FOUND",
		}
	case err != nil:
		return nil, err
	case h.token.State != active:
		return nil, badState()
	}
	return h, nil
}

// countRefusal counts a cryptogram that is refused, up to a limit, and reports whether
// it was counted.
func (n *Network) countRefusal(ctx context.Context, row uuid.UUID, limit int) (counted bool, err error) {
	err = n.update(ctx, row, func(t *token) (changed bool, err error) {
		if counted = t.Refusals < limit; counted {
			t.Refusals++
		}
		return counted, nil
	})
	return counted, err
}

// Delete implements [network.Provider]. No more notices of the network token follow.
func (n *Network) Delete(ctx context.Context, ref network.Ref) error {
	now := n.now()
	err := n.updateRef(ctx, ref, func(t *token) (changed bool, err error) {
		changed = t.apply(t.next(network.NoticeDeleted, network.OwnerScheme, now)) || len(t.Outbox) > 0
		t.Outbox = nil
		return changed, nil
	})
	if errors.Is(err, network.ErrUnknown) {
		return nil
	}
	return err
}

// Suspend implements [network.Suspender]. A notice reports it too.
func (n *Network) Suspend(ctx context.Context, ref network.Ref) error {
	return n.byCardholder(ctx, ref, network.NoticeSuspended)
}

// Resume implements [network.Suspender]. A notice reports it too.
func (n *Network) Resume(ctx context.Context, ref network.Ref) error {
	return n.byCardholder(ctx, ref, network.NoticeResumed)
}

func (n *Network) byCardholder(ctx context.Context, ref network.Ref, kind network.NoticeKind) error {
	now := n.now()
	defer n.wake()
	return n.updateRef(ctx, ref, func(t *token) (changed bool, err error) {
		if t.State != active && t.State != inactive {
			return false, badState()
		}
		return t.happen(kind, network.OwnerCardholder, now), nil
	})
}

func badRequest() error {
	return &network.Error{Source: network.SourceConfiguration, Code: network.CodeInvalidRequest}
}

func badState() error {
	return &network.Error{
		Source: network.SourceScheme, Code: network.CodeDeclined, SchemeCode: "INVALID_TOKEN_STATUS",
	}
}

func keyOK(key string) bool { return len(key) >= 1 && len(key) <= 64 }

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// card returns the stored part of the card of r, its scenario, and the id of its number
// among shared numbers. ok reports whether it can be a card.
func (n *Network) card(r *network.ProvisionRequest) (c numbered, code int, id uuid.UUID, ok bool) {
	r.PAN.Expose(func(digits []byte) {
		if ok = len(digits) >= 12 && len(digits) <= 19 && iin.Luhn(digits); !ok {
			return
		}
		c = numbered{string(digits[len(digits)-4:]), r.Expiry, n.accountReference(digits)}
		code = scenarioOf(r.Scheme, digits)
		if n.shared {
			id = uuid.UUID(n.mac("card", digits)[:16])
		}
	})
	e := r.Expiry
	return c, code, id, ok && e.Month >= 1 && e.Month <= 12 && e.Year >= 2000 && e.Year <= lastYear
}

// accountReference returns the PAR of a card number.
func (n *Network) accountReference(digits []byte) string {
	return ("SIM1" + ids.EncodeToString(n.mac("account reference", digits)))[:29]
}

// mac derives bytes from the seed. Only the last part may differ in length.
func (n *Network) mac(purpose string, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, n.key[:])
	h.Write([]byte(purpose + "\x00"))
	for _, p := range parts {
		h.Write(p)
	}

	sum := h.Sum(nil)
	h.Write(make([]byte, sha256.BlockSize)) // over the parts, such as a card number, in its buffer
	return sum
}

// row is the id of the attempt of an idempotency key.
func (n *Network) row(key string) uuid.UUID { return uuid.UUID(n.mac("attempt", []byte(key))[:16]) }

// number returns the number of a network token. Its last four digits never equal the
// card's, even after the card changes.
func (n *Network) number(row uuid.UUID, t *token) card.PAN {
	is := issuers[t.Scheme]
	digits := make([]byte, is.tokenDigits)
	for try := range byte(10) { // one in 3,000 is drawn again
		bytes := n.mac("number", row[:], []byte{byte(t.Generation), try})
		copy(digits, is.tokens)
		end := len(digits) - 1
		for i := len(is.tokens); i < end; i++ {
			digits[i] = '0' + bytes[i]%10
		}
		digits[end] = iin.CheckDigit(digits[:end])
		if four := string(digits[end-3:]); four != t.First.LastFour && four != newLastFours[0] && four != newLastFours[1] {
			break
		}
	}
	return card.NewPAN(digits)
}
