package networktest_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/networktest"
	"github.com/google/uuid"
)

const number = "4111111111111111"

func testCard(digits string) cardvault.Card {
	return cardvault.Card{
		PAN:    card.NewPAN([]byte(digits)),
		Expiry: card.Expiry{Month: 12, Year: 2090},
		Name:   card.NewName([]byte("A Cardholder")),
	}
}

func harness(n network.Provider) networktest.Harness {
	return networktest.Harness{
		Open:    func(testing.TB) network.Provider { return n },
		Card:    testCard(number),
		Scheme:  card.VISA,
		Refused: testCard("4000000000000002"),
	}
}

// An inmem is a network that keeps every rule. It refuses Harness.Refused.
type inmem struct {
	shared  bool // cards with the same number share a network token
	pending bool // network tokens are pending until the first look-up

	mu     sync.Mutex
	byKey  map[string]*network.Token
	byID   map[string]*network.Token
	byCard map[[32]byte]*network.Token
}

func newInmem() *inmem {
	return &inmem{
		byKey:  map[string]*network.Token{},
		byID:   map[string]*network.Token{},
		byCard: map[[32]byte]*network.Token{},
	}
}

func (*inmem) Info() network.Info {
	return network.Info{Name: "inmem", Suspender: true, Feeder: true, ArtFetcher: true, Credentialer: true}
}

func (*inmem) Eligible(r *network.EligibilityRequest) error {
	if r.Scheme != card.VISA {
		return &network.Error{Source: network.SourceConfiguration, Code: "scheme_not_enabled"}
	}
	return nil
}

func declined(code network.Code) error {
	return &network.Error{Source: network.SourceScheme, Code: code}
}

func (n *inmem) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := n.Eligible(&network.EligibilityRequest{Scheme: r.Scheme}); err != nil {
		return nil, err
	}
	var sum [32]byte
	var luhn bool
	var four string
	r.PAN.Expose(func(d []byte) {
		sum, luhn, four = sha256.Sum256(d), iin.Luhn(d), string(d[len(d)-4:])
	})
	if !luhn {
		return nil, declined("invalid_card_data")
	}
	if four == "0002" {
		return nil, declined("card_not_eligible")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.byKey[r.IdempotencyKey]
	if t == nil && n.shared && n.byCard[sum] != nil && n.byCard[sum].State != network.Deleted {
		t = n.byCard[sum]
	}
	if t == nil {
		t = &network.Token{
			ID: uuid.NewString(), State: network.Active, StateAt: time.Now(), Art: "art",
			Card: &network.CardState{LastFour: four, Expiry: r.Expiry},
		}
		if n.pending {
			t.State = network.Pending
		}
	}
	n.byKey[r.IdempotencyKey], n.byID[t.ID], n.byCard[sum] = t, t, t
	c := *t
	return &c, nil
}

// find returns the network token of ref; n is locked.
func (n *inmem) find(ctx context.Context, ref network.Ref) (*network.Token, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	t := n.byID[ref.ID]
	if ref.ID == "" {
		t = n.byKey[ref.IdempotencyKey]
	}
	if t == nil {
		return nil, network.ErrUnknown
	}
	return t, nil
}

func (n *inmem) Lookup(ctx context.Context, ref network.Ref) (*network.Token, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t, err := n.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	if t.State == network.Pending {
		t.State = network.Active
	}
	c := *t
	return &c, nil
}

func (n *inmem) Cryptogram(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t, err := n.find(ctx, r.Token)
	if errors.Is(err, network.ErrUnknown) || err == nil && t.State != network.Active {
		return nil, declined("declined")
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(t.ID + r.IdempotencyKey))
	return &network.Cryptogram{
		TokenID: t.ID,
		Number:  card.NewPAN([]byte("4895370000000007")),
		Expiry:  card.Expiry{Month: 1, Year: 2091},
		Value:   card.NewCryptogramValue([]byte(base64.StdEncoding.EncodeToString(sum[:20]))),
		ECI:     "07",
	}, nil
}

func (n *inmem) Credential(ctx context.Context, r *network.CredentialRequest) (*network.Credential, error) {
	c, err := n.Cryptogram(ctx, &network.CryptogramRequest{Token: r.Token})
	if err != nil {
		return nil, err
	}
	return &network.Credential{TokenID: c.TokenID, Number: c.Number, Expiry: c.Expiry}, nil
}

func (n *inmem) Delete(ctx context.Context, ref network.Ref) error {
	err := n.set(ctx, ref, network.Deleted, 0)
	if errors.Is(err, network.ErrUnknown) {
		return nil
	}
	return err
}

func (n *inmem) set(ctx context.Context, ref network.Ref, state network.Status, by network.Owners) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	t, err := n.find(ctx, ref)
	if err == nil {
		t.State, t.SuspendedBy, t.StateAt = state, by, time.Now()
	}
	return err
}

func (n *inmem) Suspend(ctx context.Context, ref network.Ref) error {
	return n.set(ctx, ref, network.Inactive, network.OwnersOf(network.OwnerCardholder))
}

func (n *inmem) Resume(ctx context.Context, ref network.Ref) error {
	return n.set(ctx, ref, network.Active, 0)
}

func (n *inmem) CardArt(ctx context.Context, r *network.ArtRequest) (*network.Art, error) {
	if r.ID != "art" {
		return nil, errors.New("inmem: no such art")
	}
	return &network.Art{MediaType: "image/png", Image: []byte("\x89PNG\r\n\x1a\n")}, ctx.Err()
}

func notice() *network.Notice {
	return &network.Notice{
		ID: "1", Kind: network.NoticeTokenRenewed, OccurredAt: time.Now(), Token: network.Ref{ID: "x"},
	}
}

func (n *inmem) Feed(ctx context.Context, r *network.FeedRequest, sink func(context.Context, *network.Notice) error) error {
	if err := sink(ctx, notice()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// A mutant is an inmem with a fault in one of its methods. A nil method is inmem's own.
type mutant struct {
	*inmem
	info       func() network.Info
	eligible   func(scheme card.Scheme) error
	provision  func(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error)
	lookup     func(ctx context.Context, ref network.Ref) (*network.Token, error)
	cryptogram func(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error)
	credential func(ctx context.Context, r *network.CredentialRequest) (*network.Credential, error)
	delete     func(ctx context.Context, ref network.Ref) error
	suspend    func(ctx context.Context, ref network.Ref) error
	resume     func(ctx context.Context, ref network.Ref) error
	art        func(ctx context.Context, r *network.ArtRequest) (*network.Art, error)
	feed       func(ctx context.Context, sink func(context.Context, *network.Notice) error) error
}

func (m *mutant) Info() network.Info {
	if m.info != nil {
		return m.info()
	}
	return m.inmem.Info()
}

func (m *mutant) Eligible(r *network.EligibilityRequest) error {
	if m.eligible != nil {
		return m.eligible(r.Scheme)
	}
	return m.inmem.Eligible(r)
}

func (m *mutant) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	if m.provision != nil {
		return m.provision(ctx, r)
	}
	return m.inmem.Provision(ctx, r)
}

func (m *mutant) Lookup(ctx context.Context, ref network.Ref) (*network.Token, error) {
	if m.lookup != nil {
		return m.lookup(ctx, ref)
	}
	return m.inmem.Lookup(ctx, ref)
}

func (m *mutant) Cryptogram(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
	if m.cryptogram != nil {
		return m.cryptogram(ctx, r)
	}
	return m.inmem.Cryptogram(ctx, r)
}

func (m *mutant) Credential(ctx context.Context, r *network.CredentialRequest) (*network.Credential, error) {
	if m.credential != nil {
		return m.credential(ctx, r)
	}
	return m.inmem.Credential(ctx, r)
}

func (m *mutant) Delete(ctx context.Context, ref network.Ref) error {
	if m.delete != nil {
		return m.delete(ctx, ref)
	}
	return m.inmem.Delete(ctx, ref)
}

func (m *mutant) Suspend(ctx context.Context, ref network.Ref) error {
	if m.suspend != nil {
		return m.suspend(ctx, ref)
	}
	return m.inmem.Suspend(ctx, ref)
}

func (m *mutant) Resume(ctx context.Context, ref network.Ref) error {
	if m.resume != nil {
		return m.resume(ctx, ref)
	}
	return m.inmem.Resume(ctx, ref)
}

func (m *mutant) CardArt(ctx context.Context, r *network.ArtRequest) (*network.Art, error) {
	if m.art != nil {
		return m.art(ctx, r)
	}
	return m.inmem.CardArt(ctx, r)
}

func (m *mutant) Feed(ctx context.Context, r *network.FeedRequest, sink func(context.Context, *network.Notice) error) error {
	if m.feed != nil {
		return m.feed(ctx, sink)
	}
	return m.inmem.Feed(ctx, r, sink)
}

// describing changes the result of Info.
func describing(edit func(*network.Info)) func(*mutant) {
	return func(m *mutant) {
		m.info = func() network.Info {
			said := m.inmem.Info()
			edit(&said)
			return said
		}
	}
}

// provisioning changes answers to Provision.
func provisioning(edit func(*network.Token)) func(*mutant) {
	return func(m *mutant) {
		m.provision = func(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
			t, err := m.inmem.Provision(ctx, r)
			if err == nil {
				edit(t)
			}
			return t, err
		}
	}
}

// rekeyed changes the idempotency key of each Provision.
func rekeyed(edit func(key string) string) func(*mutant) {
	return func(m *mutant) {
		m.provision = func(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
			c := *r
			c.IdempotencyKey = edit(r.IdempotencyKey)
			return m.inmem.Provision(ctx, &c)
		}
	}
}

// paying changes cryptograms.
func paying(edit func(*network.Cryptogram)) func(*mutant) {
	return func(m *mutant) {
		m.cryptogram = func(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
			c, err := m.inmem.Cryptogram(ctx, r)
			if err == nil {
				edit(c)
			}
			return c, err
		}
	}
}

// crediting changes credentials.
func crediting(edit func(*network.Credential)) func(*mutant) {
	return func(m *mutant) {
		m.credential = func(ctx context.Context, r *network.CredentialRequest) (*network.Credential, error) {
			c, err := m.inmem.Credential(ctx, r)
			if err == nil {
				edit(c)
			}
			return c, err
		}
	}
}

// refusing replaces refusals of Provision.
func refusing(other func() error) func(*mutant) {
	return func(m *mutant) {
		m.provision = func(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
			t, err := m.inmem.Provision(ctx, r)
			var e *network.Error
			if errors.As(err, &e) && r.Scheme == card.VISA {
				return nil, other()
			}
			return t, err
		}
	}
}

func drawing(mediaType, image string) func(*mutant) {
	return func(m *mutant) {
		m.art = func(context.Context, *network.ArtRequest) (*network.Art, error) {
			return &network.Art{MediaType: mediaType, Image: []byte(image)}, nil
		}
	}
}

func notifying(edit func(*network.Notice)) func(*mutant) {
	return func(m *mutant) {
		m.feed = func(ctx context.Context, sink func(context.Context, *network.Notice) error) error {
			n := notice()
			edit(n)
			if err := sink(ctx, n); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		}
	}
}

var errDown = errors.New("mutant: no connection")

// faults lists faults, each with a rule that must detect it.
var faults = []struct {
	fault string
	rule  string
	seed  func(m *mutant)
}{
	{"the name has a space", "Info", describing(func(said *network.Info) { said.Name = "my network" })},
	{"the name changes", "Info", func(m *mutant) {
		n := 0
		describing(func(said *network.Info) { n++; said.Name = fmt.Sprint("n", n) })(m)
	}},
	{"two members have one name", "Info", describing(func(said *network.Info) {
		*said = network.Info{Members: []network.Member{{Info: *said, Schemes: []card.Scheme{card.VISA}}, {Info: *said}}}
	})},
	{"two members have one scheme", "Info", describing(func(said *network.Info) {
		other := *said
		other.Name, said.Members = "other", []network.Member{{Info: *said, Schemes: []card.Scheme{card.VISA}}, {Info: other, Schemes: []card.Scheme{card.VISA}}}
	})},
	{"a member can do what the whole cannot", "Info", describing(func(said *network.Info) {
		said.Members = []network.Member{{Info: network.Info{Name: "member", SandboxOnly: true}, Schemes: []card.Scheme{card.VISA}}}
	})},
	{"a member has no name", "Info", describing(func(said *network.Info) {
		said.Members = []network.Member{{Schemes: []card.Scheme{card.VISA}}}
	})},
	{"a notice of another network", "Feeder", notifying(func(n *network.Notice) { n.Token.Network = "other" })},
	{"Info does not say that it is a Suspender", "Info", describing(func(said *network.Info) { said.Suspender = false })},
	{"Info does not say that it is a Feeder", "Info", describing(func(said *network.Info) { said.Feeder = false })},
	{"Info does not say that it is an ArtFetcher", "Info", describing(func(said *network.Info) { said.ArtFetcher = false })},
	{"Info does not say that it is a Credentialer", "Info", describing(func(said *network.Info) { said.Credentialer = false })},
	{"Eligible asks the network", "Eligible", func(m *mutant) {
		m.eligible = func(card.Scheme) error { <-time.After(50 * time.Millisecond); return nil }
	}},
	{"a card that is not eligible is an unknown error", "Eligible", func(m *mutant) {
		m.eligible = func(s card.Scheme) error {
			if s > card.UnionPay {
				return errors.New("mutant: no such scheme")
			}
			return m.inmem.Eligible(&network.EligibilityRequest{Scheme: s})
		}
	}},
	{"a card that is not eligible is blamed on the scheme", "Eligible", func(m *mutant) {
		m.eligible = func(s card.Scheme) error {
			if s != card.VISA {
				return declined("declined")
			}
			return nil
		}
	}},
	{"nothing is eligible", "Eligible", func(m *mutant) {
		m.eligible = func(s card.Scheme) error { return m.inmem.Eligible(&network.EligibilityRequest{}) }
	}},
	{"there is no id", "Provision", provisioning(func(t *network.Token) { t.ID = "" })},
	{"the id is long", "Provision", provisioning(func(t *network.Token) { t.ID = strings.Repeat("x", 256) })},
	{"the state is failed", "Provision", provisioning(func(t *network.Token) { t.State = network.Failed })},
	{"it belongs to another card", "Provision", provisioning(func(t *network.Token) { t.Card = &network.CardState{LastFour: "9999"} })},
	{"the last four are masked", "Provision", provisioning(func(t *network.Token) { t.Card = &network.CardState{LastFour: "**11"} })},
	{"the expiry has two digits", "Provision", provisioning(func(t *network.Token) {
		t.Card = &network.CardState{Expiry: card.Expiry{Month: 12, Year: 30}}
	})},
	{"the clock is ahead", "Provision", provisioning(func(t *network.Token) { t.StateAt = time.Now().AddDate(1, 0, 0) })},
	{"active and suspended", "Provision", provisioning(func(t *network.Token) { t.SuspendedBy = 1 })},
	{"suspended by an unknown owner", "Provision", provisioning(func(t *network.Token) {
		t.State, t.SuspendedBy = network.Inactive, 128
	})},
	{"active and dead", "Provision", provisioning(func(t *network.Token) { t.Invalidated = true })},
	{"the reason is long", "Provision", provisioning(func(t *network.Token) { t.Reason = strings.Repeat("x", 256) })},
	{"the id of the art is long", "Provision", provisioning(func(t *network.Token) { t.Art = strings.Repeat("x", 256) })},
	{"the id is the card number", "Provision", provisioning(func(t *network.Token) { t.ID = number })},
	{"neither answer nor error", "Provision", func(m *mutant) {
		m.provision = func(context.Context, *network.ProvisionRequest) (*network.Token, error) { return nil, nil }
	}},
	{"it stays pending", "Provision", func(m *mutant) {
		m.pending = true
		m.lookup = func(context.Context, network.Ref) (*network.Token, error) {
			return nil, declined("declined")
		}
	}},
	{"the card is kept for later", "Provision", func(m *mutant) {
		m.pending = true
		var kept *network.ProvisionRequest
		m.provision = func(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
			kept = r
			return m.inmem.Provision(ctx, r)
		}
		m.lookup = func(ctx context.Context, ref network.Ref) (*network.Token, error) {
			if _, err := m.inmem.Provision(ctx, kept); err != nil {
				return nil, err
			}
			return m.inmem.Lookup(ctx, ref)
		}
	}},
	{"keys are ignored", "ProvisionAgain", rekeyed(func(string) string { return uuid.NewString() })},
	{"a key is looked for before the call, not after", "ProvisionAtOnce", func(m *mutant) {
		m.provision = func(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
			if t, err := m.inmem.Lookup(ctx, network.Ref{IdempotencyKey: r.IdempotencyKey}); err == nil {
				return t, nil
			}
			<-time.After(10 * time.Millisecond)
			c := *r
			c.IdempotencyKey = uuid.NewString()
			t, err := m.inmem.Provision(ctx, &c)
			m.mu.Lock()
			defer m.mu.Unlock()
			m.byKey[r.IdempotencyKey] = m.byKey[c.IdempotencyKey]
			return t, err
		}
	}},
	{"keys are cut", "ProvisionAnother", func(m *mutant) {
		rekeyed(func(key string) string { return key[:36] })(m)
		m.lookup = func(ctx context.Context, ref network.Ref) (*network.Token, error) {
			t, err := m.inmem.Lookup(ctx, network.Ref{ID: ref.ID, IdempotencyKey: ref.IdempotencyKey[:36]})
			if err == nil && strings.HasSuffix(ref.IdempotencyKey, "1") {
				t.ID = uuid.NewString()
			}
			return t, err
		}
	}},
	{"a second key is refused", "ProvisionAnother", func(m *mutant) {
		m.provision = func(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
			if strings.HasSuffix(r.IdempotencyKey, "2") {
				return nil, declined("declined")
			}
			return m.inmem.Provision(ctx, r)
		}
	}},
	{"a key is spent by a timeout", "ProvisionAfterTimeout", func(m *mutant) {
		spent := map[string]bool{}
		m.provision = func(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
			if ctx.Err() != nil {
				spent[r.IdempotencyKey] = true
			}
			if spent[r.IdempotencyKey] {
				return nil, declined("declined")
			}
			return m.inmem.Provision(ctx, r)
		}
	}},
	{"a key makes a new network token after each timeout", "ProvisionAfterTimeout", func(m *mutant) {
		seen := map[string]bool{}
		m.provision = func(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
			if ctx.Err() != nil {
				seen[r.IdempotencyKey] = true
			}
			c := *r
			if seen[r.IdempotencyKey] {
				c.IdempotencyKey = uuid.NewString()
			}
			return m.inmem.Provision(ctx, &c)
		}
	}},
	{"refusals are unknown errors", "Refused", refusing(func() error { return errDown })},
	{"refusals have no source", "Refused", refusing(func() error { return &network.Error{Code: "declined"} })},
	{"refusals have the network's own code", "Refused", refusing(func() error { return declined("PAN_INELIGIBLE") })},
	{"refusals have a code of the other source", "Refused", refusing(func() error { return declined("invalid_request") })},
	{"refusals have long codes", "Refused", refusing(func() error {
		return &network.Error{Source: network.SourceScheme, Code: "declined", SchemeCode: strings.Repeat("x", 256)}
	})},
	{"refusals have a negative RetryAfter", "Refused", refusing(func() error {
		return &network.Error{Source: network.SourceScheme, Code: "declined", RetryAfter: -1}
	})},
	{"refusals change", "Refused", func(m *mutant) {
		n := 0
		refusing(func() error { n++; return declined([]network.Code{"declined", "card_not_allowed"}[n%2]) })(m)
	}},
	{"nothing is refused", "Refused", func(m *mutant) {
		m.provision = func(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
			c := *r
			c.PAN = testCard(number).PAN
			t, err := m.inmem.Provision(ctx, &c)
			if err == nil {
				t.Card = nil
			}
			return t, err
		}
	}},
	{"only ids are found", "Lookup", func(m *mutant) {
		m.lookup = func(ctx context.Context, ref network.Ref) (*network.Token, error) {
			if ref.ID == "" {
				return nil, network.ErrUnknown
			}
			return m.inmem.Lookup(ctx, ref)
		}
	}},
	{"a key finds any network token", "Lookup", func(m *mutant) {
		m.lookup = func(ctx context.Context, ref network.Ref) (*network.Token, error) {
			t, err := m.inmem.Lookup(ctx, ref)
			if err == nil && ref.ID == "" {
				t.ID = uuid.NewString()
			}
			return t, err
		}
	}},
	{"an unknown id is an unknown error", "LookupUnknown", func(m *mutant) {
		m.lookup = func(ctx context.Context, ref network.Ref) (*network.Token, error) {
			t, err := m.inmem.Lookup(ctx, ref)
			if err != nil {
				err = errDown
			}
			return t, err
		}
	}},
	{"an unknown id is reported as deleted", "LookupUnknown", func(m *mutant) {
		m.lookup = func(ctx context.Context, ref network.Ref) (*network.Token, error) {
			t, err := m.inmem.Lookup(ctx, ref)
			if errors.Is(err, network.ErrUnknown) {
				return &network.Token{ID: "x", State: network.Deleted}, nil
			}
			return t, err
		}
	}},
	{"it is for another network token", "Cryptogram", paying(func(c *network.Cryptogram) { c.TokenID += "x" })},
	{"the number is the card's", "Cryptogram", paying(func(c *network.Cryptogram) { c.Number = testCard(number).PAN })},
	{"the number fails the Luhn check", "Cryptogram", paying(func(c *network.Cryptogram) { c.Number = card.NewPAN([]byte("4895370000000006")) })},
	{"there is no number", "Cryptogram", paying(func(c *network.Cryptogram) { c.Number = card.PAN{} })},
	{"the network token has expired", "Cryptogram", paying(func(c *network.Cryptogram) { c.Expiry.Year = 2020 })},
	{"there is no expiry", "Cryptogram", paying(func(c *network.Cryptogram) { c.Expiry = card.Expiry{} })},
	{"the value is raw", "Cryptogram", paying(func(c *network.Cryptogram) { c.Value = card.NewCryptogramValue(make([]byte, 20)) })},
	{"there is no value", "Cryptogram", paying(func(c *network.Cryptogram) { c.Value = card.CryptogramValue{} })},
	{"the ECI is one digit", "Cryptogram", paying(func(c *network.Cryptogram) { c.ECI = "7" })},
	{"the ECI is a word", "Cryptogram", paying(func(c *network.Cryptogram) { c.ECI = "no" })},
	{"neither answer nor error", "Cryptogram", func(m *mutant) {
		m.cryptogram = func(context.Context, *network.CryptogramRequest) (*network.Cryptogram, error) { return nil, nil }
	}},
	{"keys are cut", "CryptogramKeys", func(m *mutant) {
		m.cryptogram = func(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
			c := *r
			c.IdempotencyKey = r.IdempotencyKey[:36]
			return m.inmem.Cryptogram(ctx, &c)
		}
	}},
	{"keys are ignored", "CryptogramKeys", func(m *mutant) {
		m.cryptogram = func(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
			c := *r
			c.IdempotencyKey = uuid.NewString()
			return m.inmem.Cryptogram(ctx, &c)
		}
	}},
	{"a used key is an unknown error", "CryptogramKeys", func(m *mutant) {
		seen := map[string]bool{}
		m.cryptogram = func(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
			if seen[r.IdempotencyKey] {
				return nil, errDown
			}
			seen[r.IdempotencyKey] = true
			return m.inmem.Cryptogram(ctx, r)
		}
	}},
	{"an unknown id is an unknown error", "CryptogramUnknown", func(m *mutant) {
		m.cryptogram = func(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
			c, err := m.inmem.Cryptogram(ctx, r)
			if err != nil {
				err = network.ErrUnknown
			}
			return c, err
		}
	}},
	{"nothing is deleted", "Delete", func(m *mutant) {
		m.delete = func(ctx context.Context, _ network.Ref) error { return ctx.Err() }
	}},
	{"deleting forgets the key", "Delete", func(m *mutant) {
		m.delete = func(ctx context.Context, ref network.Ref) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.byID, ref.ID)
			delete(m.byKey, ref.IdempotencyKey)
			return ctx.Err()
		}
	}},
	{"a deleted network token still pays", "Delete", func(m *mutant) {
		m.cryptogram = func(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
			c, err := m.inmem.Cryptogram(ctx, r)
			if err == nil {
				return c, nil
			}
			t, _ := m.Provision(ctx, &network.ProvisionRequest{
				IdempotencyKey: uuid.NewString(), Scheme: r.Scheme, PAN: testCard(number).PAN,
			})
			pay := *r
			pay.Token.ID = t.ID
			c, err = m.inmem.Cryptogram(ctx, &pay)
			c.TokenID = r.Token.ID
			return c, err
		}
	}},
	{"a deleted network token comes back with its card", "Delete", func(m *mutant) {
		m.shared = true
		m.provision = func(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
			t, err := m.inmem.Provision(ctx, r)
			if err == nil && strings.HasSuffix(r.IdempotencyKey, "2") {
				return m.inmem.Lookup(ctx, network.Ref{
					IdempotencyKey: strings.TrimSuffix(r.IdempotencyKey, "2") + "1",
				})
			}
			return t, err
		}
	}},
	{"deleting an unknown network token fails", "DeleteAgain", func(m *mutant) {
		m.delete = func(ctx context.Context, ref network.Ref) error {
			return m.set(ctx, ref, network.Deleted, 0)
		}
	}},
	{"deleting again fails", "DeleteAgain", func(m *mutant) {
		m.delete = func(ctx context.Context, ref network.Ref) error {
			if t, err := m.inmem.Lookup(ctx, ref); err == nil && t.State == network.Deleted {
				return declined("declined")
			}
			return m.inmem.Delete(ctx, ref)
		}
	}},
	{"Provision ignores ctx", "ContextEnded", func(m *mutant) {
		m.provision = func(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
			return m.inmem.Provision(context.WithoutCancel(ctx), r)
		}
	}},
	{"Lookup hides why it ended", "ContextEnded", func(m *mutant) {
		m.lookup = func(ctx context.Context, ref network.Ref) (*network.Token, error) {
			if ctx.Err() != nil {
				return nil, errDown
			}
			return m.inmem.Lookup(ctx, ref)
		}
	}},
	{"Lookup takes a timeout for unknown", "ContextEnded", func(m *mutant) {
		m.lookup = func(ctx context.Context, ref network.Ref) (*network.Token, error) {
			t, err := m.inmem.Lookup(ctx, ref)
			if err != nil {
				err = network.ErrUnknown
			}
			return t, err
		}
	}},
	{"Cryptogram takes a timeout for a refusal", "ContextEnded", func(m *mutant) {
		m.cryptogram = func(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
			c, err := m.inmem.Cryptogram(ctx, r)
			if err != nil {
				err = declined("timeout")
			}
			return c, err
		}
	}},
	{"Delete ignores ctx", "ContextEnded", func(m *mutant) {
		m.delete = func(ctx context.Context, ref network.Ref) error {
			return m.inmem.Delete(context.WithoutCancel(ctx), ref)
		}
	}},
	{"Suspend ignores ctx", "ContextEnded", func(m *mutant) {
		m.suspend = func(ctx context.Context, ref network.Ref) error {
			return m.inmem.Suspend(context.WithoutCancel(ctx), ref)
		}
	}},
	{"Resume ignores ctx", "ContextEnded", func(m *mutant) {
		m.resume = func(ctx context.Context, ref network.Ref) error {
			return m.inmem.Resume(context.WithoutCancel(ctx), ref)
		}
	}},
	{"CardArt ignores ctx", "ContextEnded", func(m *mutant) {
		m.art = func(ctx context.Context, r *network.ArtRequest) (*network.Art, error) {
			return m.inmem.CardArt(context.WithoutCancel(ctx), r)
		}
	}},
	{"Cryptogram goes on after ctx", "ContextEnds", func(m *mutant) {
		m.cryptogram = func(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
			<-time.After(30 * time.Second)
			return nil, ctx.Err()
		}
	}},
	{"Delete takes a timeout for a refusal", "ContextEnds", func(m *mutant) {
		m.delete = func(ctx context.Context, _ network.Ref) error {
			<-ctx.Done()
			return declined("timeout")
		}
	}},
	{"errors quote the request", "NoCardData", refusing(func() error { return errors.New("mutant: bad number " + number[:15] + "2") })},
	{"errors quote a short card number", "NoCardData", refusing(func() error { return errors.New(`mutant: {"pan":"` + number[:15] + `"}`) })},
	{"concurrent calls share an answer", "Concurrency", func(m *mutant) {
		var mu sync.Mutex
		var last *network.Cryptogram
		m.cryptogram = func(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
			mu.Lock()
			defer mu.Unlock()
			if last != nil {
				return last, nil
			}
			c, err := m.inmem.Cryptogram(ctx, r)
			last = c
			return c, err
		}
	}},
	{"a concurrent call fails", "Concurrency", func(m *mutant) {
		var mu sync.Mutex
		m.lookup = func(ctx context.Context, ref network.Ref) (*network.Token, error) {
			if !mu.TryLock() {
				return nil, errDown
			}
			defer mu.Unlock()
			<-time.After(time.Millisecond)
			return m.inmem.Lookup(ctx, ref)
		}
	}},
	{"suspending again fails", "Suspender", func(m *mutant) {
		m.suspend = func(ctx context.Context, ref network.Ref) error {
			if t, err := m.inmem.Lookup(ctx, ref); err == nil && t.State == network.Inactive {
				return declined("declined")
			}
			return m.inmem.Suspend(ctx, ref)
		}
	}},
	{"suspended by the issuer", "Suspender", func(m *mutant) {
		m.suspend = func(ctx context.Context, ref network.Ref) error {
			return m.set(ctx, ref, network.Inactive, network.OwnersOf(network.OwnerIssuer))
		}
	}},
	{"nothing is resumed", "Suspender", func(m *mutant) {
		m.resume = func(ctx context.Context, ref network.Ref) error { return ctx.Err() }
	}},
	{"the art is a GIF", "ArtFetcher", drawing("image/gif", "GIF89a")},
	{"the art is not of its type", "ArtFetcher", drawing("image/png", "\xff\xd8\xff")},
	{"the art is large", "ArtFetcher", drawing("image/jpeg", "\xff\xd8\xff"+strings.Repeat("x", network.MaxCardArt))},
	{"all ids have the same art", "ArtFetcher", drawing("image/jpeg", "\xff\xd8\xff")},
	{"the art changes with each call", "ArtFetcher", func(m *mutant) {
		m.art = func(_ context.Context, r *network.ArtRequest) (*network.Art, error) {
			if r.ID != "art" {
				return nil, errDown
			}
			return &network.Art{MediaType: "image/png", Image: []byte("\x89PNG\r\n\x1a\n" + uuid.NewString())}, nil
		}
	}},
	{"the art is shared memory", "ArtFetcher", func(m *mutant) {
		image := []byte("\x89PNG\r\n\x1a\n")
		m.art = func(_ context.Context, r *network.ArtRequest) (*network.Art, error) {
			if r.ID != "art" {
				return nil, errDown
			}
			return &network.Art{MediaType: "image/png", Image: image}, nil
		}
	}},
	{"a credential is of another network token", "Credentialer", crediting(func(c *network.Credential) { c.TokenID += "x" })},
	{"a credential has the number of the card", "Credentialer", crediting(func(c *network.Credential) { c.Number = testCard(number).PAN })},
	{"a credential has no number", "Credentialer", crediting(func(c *network.Credential) { c.Number = card.PAN{} })},
	{"a credential has expired", "Credentialer", crediting(func(c *network.Credential) { c.Expiry.Year = 2020 })},
	{"a credential has another number than a cryptogram", "Credentialer", crediting(func(c *network.Credential) { c.Number = card.NewPAN([]byte("4895370012003478")) })},
	{"a credential has another expiry than a cryptogram", "Credentialer", crediting(func(c *network.Credential) { c.Expiry.Year++ })},
	{"a credential is neither answer nor error", "Credentialer", func(m *mutant) {
		m.credential = func(context.Context, *network.CredentialRequest) (*network.Credential, error) { return nil, nil }
	}},
	{"a credential of a deleted network token", "Credentialer", func(m *mutant) {
		m.credential = func(_ context.Context, r *network.CredentialRequest) (*network.Credential, error) {
			return &network.Credential{TokenID: r.Token.ID, Number: card.NewPAN([]byte("4895370000000007")), Expiry: card.Expiry{Month: 1, Year: 2091}}, nil
		}
	}},
	{"Credential ignores ctx", "ContextEnded", func(m *mutant) {
		m.credential = func(ctx context.Context, r *network.CredentialRequest) (*network.Credential, error) {
			return m.inmem.Credential(context.WithoutCancel(ctx), r)
		}
	}},
	{"a payment account reference is in lower case", "Provision", provisioning(func(t *network.Token) { t.PaymentAccountReference = "v0010013021293752946528134567" + "a" })},
	{"Feed returns the end of ctx", "Feeder", func(m *mutant) {
		m.feed = func(ctx context.Context, _ func(context.Context, *network.Notice) error) error {
			<-ctx.Done()
			return ctx.Err()
		}
	}},
	{"Feed returns at once", "Feeder", func(m *mutant) {
		m.feed = func(context.Context, func(context.Context, *network.Notice) error) error { return nil }
	}},
	{"Feed ends late", "Feeder", func(m *mutant) {
		m.feed = func(ctx context.Context, _ func(context.Context, *network.Notice) error) error {
			<-ctx.Done()
			<-time.After(30 * time.Second)
			return nil
		}
	}},
	{"notices have no id", "Feeder", notifying(func(n *network.Notice) { n.ID = "" })},
	{"notices have no kind", "Feeder", notifying(func(n *network.Notice) { n.Kind = 0 })},
	{"notices have no time", "Feeder", notifying(func(n *network.Notice) { n.OccurredAt = time.Time{} })},
	{"notices have no token", "Feeder", notifying(func(n *network.Notice) { n.Token = network.Ref{} })},
	{"notices have an unknown owner", "Feeder", notifying(func(n *network.Notice) { n.By = 4 })},
	{"notices have no owner", "Feeder", notifying(func(n *network.Notice) { n.Kind, n.By = network.NoticeSuspended, 0 })},
	{"notices of a refusal have none", "Feeder", notifying(func(n *network.Notice) { n.Kind = network.NoticeRefused })},
	{"notices hold a card number", "Feeder", notifying(func(n *network.Notice) { n.SchemeCode = number })},
}

// record checks a rule and returns its failures.
func record(t testing.TB, rule string, n network.Provider) []string {
	return contract.Record(t, func(t testing.TB) { networktest.Check(t, rule, harness(n)) })
}

// Every rule must detect its faults.
func TestRulesCanFail(t *testing.T) {
	noticed := contract.Faults(t, networktest.Names())
	for _, f := range faults {
		noticed(f.rule, f.fault, func(t *testing.T) []string {
			m := &mutant{inmem: newInmem()}
			f.seed(m)
			return record(t, f.rule, m)
		})
	}
}

// A decorator without Unwrap hides the other capabilities of its network. A decorator with
// Unwrap does not.
func TestInfoOfDecorator(t *testing.T) {
	lost := record(t, "Info", struct{ network.Provider }{newInmem()})
	if len(lost) != 4 {
		t.Errorf("a decorator without Unwrap: %q", lost)
	}
	if kept := record(t, "Info", wrapper{wrapper{newInmem()}}); len(kept) > 0 {
		t.Errorf("a decorator with Unwrap: %q", kept)
	}
}

// A wrapper is a decorator that keeps the capabilities of the network.
type wrapper struct{ network.Provider }

func (w wrapper) Unwrap() network.Provider { return w.Provider }

// Networks that keep the rules in other ways pass, so that a failure is due to the fault.
func TestRulesPassWithoutFault(t *testing.T) {
	for name, edit := range map[string]func(*inmem){
		"own tokens":    func(*inmem) {},
		"shared tokens": func(n *inmem) { n.shared = true },
		"pending":       func(n *inmem) { n.pending = true },
	} {
		t.Run(name, func(t *testing.T) {
			n := newInmem()
			edit(n)
			networktest.Run(t, harness(&mutant{inmem: n}))
		})
	}
	t.Run("activated", func(t *testing.T) {
		n := newInmem()
		n.pending = true
		h := harness(plain{n})
		h.Refused = cardvault.Card{}
		h.Activate = func(ctx context.Context, _ network.Provider, ref network.Ref) error {
			return n.Resume(ctx, ref)
		}
		networktest.Run(t, h)
	})
}

// plain has none of the optional interfaces.
type plain struct{ network.Provider }

func (n plain) Info() network.Info { return network.Info{Name: n.Provider.Info().Name} }
