package simnet_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"image/png"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/google/uuid"
)

var (
	defaults = []card.Scheme{
		card.VISA, card.Mastercard, card.AmericanExpress, card.Discover,
	}
	all = append(slices.Clone(defaults), card.DinersClub, card.JCB, card.UnionPay)
)

const (
	pending  = network.Pending
	active   = network.Active
	inactive = network.Inactive
	deleted  = network.Deleted
)

func newNetwork(t testing.TB, s store.Store, opts *simnet.Options) *simnet.Network {
	t.Helper()
	n, err := simnet.New(t.Context(), s, opts)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// request returns the first request of a new token.
func request(scheme card.Scheme, scenario int) *network.ProvisionRequest {
	token := uuid.New()
	return &network.ProvisionRequest{
		IdempotencyKey: token.String() + ":1",
		TokenID:        token,
		Scheme:         scheme,
		PAN:            simnet.ScenarioPAN(scheme, scenario),
		Expiry:         card.Expiry{Month: 11, Year: 2030},
		Identification: idv.Checked,
	}
}

// again returns the n-th request for the token of r.
func again(r *network.ProvisionRequest, n int) *network.ProvisionRequest {
	next := *r
	next.IdempotencyKey = fmt.Sprintf("%s:%d", r.TokenID, n)
	return &next
}

func provision(t testing.TB, n *simnet.Network, r *network.ProvisionRequest) *network.Token {
	t.Helper()
	got, err := n.Provision(t.Context(), r)
	if err != nil {
		t.Fatalf("Provision = %v", err)
	}
	return got
}

func lookup(t testing.TB, n *simnet.Network, id string) *network.Token {
	t.Helper()
	got, err := n.Lookup(t.Context(), network.Ref{ID: id})
	if err != nil {
		t.Fatalf("Lookup = %v", err)
	}
	return got
}

// cryptogram requests a cryptogram under a new idempotency key.
func cryptogram(ctx context.Context, n *simnet.Network, id string) (*network.Cryptogram, error) {
	return n.Cryptogram(ctx, &network.CryptogramRequest{
		IdempotencyKey: uuid.NewString(),
		Token:          network.Ref{ID: id},
		Amount:         1,
		Currency:       "EUR",
	})
}

func digits(p card.PAN) (s string) {
	p.Expose(func(d []byte) { s = string(d) })
	return s
}

func text(v card.CryptogramValue) (s string) {
	v.Expose(func(b []byte) { s = string(b) })
	return s
}

// wantRefusal checks that err is a refusal with a source and code.
func wantRefusal(t testing.TB, what string, err error, source network.Source, code network.Code) {
	t.Helper()
	var e *network.Error
	if !errors.As(err, &e) || e.Source != source || e.Code != code || e.Retryable != (code == "scheme_unavailable") {
		t.Errorf("%s = %#v, want a refusal of source %v, %s", what, err, source, code)
	}
}

// A mailbox is a sink that keeps its notices, with the time since the mailbox was made.
type mailbox struct {
	start time.Time
	mu    sync.Mutex
	got   []*network.Notice
	at    []time.Duration
}

func (m *mailbox) sink(_ context.Context, n *network.Notice) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.got = append(m.got, n)
	m.at = append(m.at, time.Since(m.start))
	return nil
}

// take returns the notices since its last call, such as "suspended@2s".
func (m *mailbox) take() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var s []string
	for i, n := range m.got {
		s = append(s, fmt.Sprintf("%s@%v", kinds[n.Kind], m.at[i]))
	}
	m.got, m.at = nil, nil
	return s
}

var kinds = map[network.NoticeKind]string{
	network.NoticeActivated: "activated", network.NoticeRefused: "refused",
	network.NoticeSuspended: "suspended", network.NoticeResumed: "resumed",
	network.NoticeDeleted: "deleted", network.NoticeInvalidated: "invalidated",
	network.NoticeCardReplaced: "replaced", network.NoticeCardRenewed: "renewed",
	network.NoticeTokenRenewed: "token renewed", network.NoticeArtChanged: "art changed",
}

// feed feeds sink until the returned function is called, or the test ends.
func feed(t testing.TB, n *simnet.Network, sink func(context.Context, *network.Notice) error) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Feed(ctx, nil, sink) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Feed = %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestScenarioPAN(t *testing.T) {
	for _, c := range []struct {
		scheme   card.Scheme
		scenario int
		want     string
	}{
		{card.VISA, 0, "4111110000000005"},
		{card.VISA, 1, "4111110000000013"},
		{card.VISA, 60, "4111110000000609"},
		{card.VISA, 71, "4111110000000716"},
		{card.VISA, 82, "4111110000000823"},
		{card.Mastercard, 13, "5555550000000135"},
		{card.Mastercard, 82, "5555550000000820"},
		{card.AmericanExpress, 0, "378282000000008"},
		{card.AmericanExpress, 71, "378282000000719"},
		{card.UnionPay, 0, "6200000000000005"},
		{card.UnionPay, 999, "6200000000009998"},
	} {
		if got := digits(simnet.ScenarioPAN(c.scheme, c.scenario)); got != c.want {
			t.Errorf("ScenarioPAN(%v, %d) = %s, want %s", c.scheme, c.scenario, got, c.want)
		}
	}
	for _, s := range all {
		for code := range 1000 {
			d := []byte(digits(simnet.ScenarioPAN(s, code)))
			scheme, lengthOK := iin.Detect(d)
			if card.Scheme(scheme) != s || !lengthOK || !iin.Luhn(d) || !bytes.HasSuffix(d[:len(d)-1], fmt.Appendf(nil, "%03d", code)) {
				t.Fatalf("ScenarioPAN(%v, %d) is %s, a number of %v", s, code, d, scheme)
			}
		}
	}
	for _, bad := range []func(){
		func() { simnet.ScenarioPAN(card.UnknownScheme, 0) },
		func() { simnet.ScenarioPAN(99, 0) },
		func() { simnet.ScenarioPAN(card.VISA, 1000) },
		func() { simnet.ScenarioPAN(card.VISA, -1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("ScenarioPAN of an unknown scenario did not panic")
				}
			}()
			bad()
		}()
	}
}

// A course is the outcome of a scenario, ten seconds later.
type course struct {
	code    int
	first   network.Status // the state that Provision answers
	notices []string
	then    network.Status
	check   func(t *testing.T, first, then *network.Token)
}

var courses = []course{
	{code: 0, first: active, then: active},
	{code: 1, first: pending, then: active, notices: []string{"activated@2s"}},
	{code: 2, first: pending, then: active},
	{code: 30, first: active, then: inactive, notices: []string{"suspended@2s"},
		check: func(t *testing.T, _, then *network.Token) {
			if then.SuspendedBy != network.OwnersOf(network.OwnerIssuer) || then.Reason == "" {
				t.Errorf("suspended by %b for %q", then.SuspendedBy, then.Reason)
			}
		}},
	{code: 31, first: active, then: active, notices: []string{"suspended@2s", "resumed@4s"}},
	{code: 32, first: active, then: deleted, notices: []string{"deleted@2s"},
		check: func(t *testing.T, _, then *network.Token) {
			if then.Invalidated {
				t.Error("the card is invalidated")
			}
		}},
	{code: 33, first: active, then: deleted, notices: []string{"invalidated@2s"},
		check: func(t *testing.T, _, then *network.Token) {
			if !then.Invalidated {
				t.Error("the card is not invalidated")
			}
		}},
	{code: 34, first: active, then: active, notices: []string{"replaced@2s"},
		check: func(t *testing.T, first, then *network.Token) {
			if *then.Card != (network.CardState{LastFour: "4242", Expiry: card.Expiry{Month: 11, Year: 2034}}) {
				t.Errorf("the card is %v", *then.Card)
			}
		}},
	{code: 35, first: active, then: active, notices: []string{"renewed@2s"},
		check: func(t *testing.T, first, then *network.Token) {
			if *then.Card != (network.CardState{LastFour: first.Card.LastFour, Expiry: card.Expiry{Month: 11, Year: 2033}}) {
				t.Errorf("the card is %v", *then.Card)
			}
		}},
	{code: 36, first: active, then: active, notices: []string{"art changed@2s"},
		check: func(t *testing.T, first, then *network.Token) {
			if then.Art == first.Art || then.Art == "" {
				t.Errorf("art is %q after %q", then.Art, first.Art)
			}
		}},
	{code: 37, first: active, then: active, notices: []string{"token renewed@2s"}},
	{code: 50, first: active, then: active},
	{code: 60, first: active, then: active, notices: []string{"resumed@4s", "resumed@4s", "suspended@4s", "suspended@4s"}},
	{code: 70, first: active, then: active},
	{code: 71, first: active, then: active,
		check: func(t *testing.T, first, then *network.Token) {
			if !first.SupportsDeviceBinding || !then.SupportsDeviceBinding {
				t.Error("device binding is not supported")
			}
		}},
	{code: 80, first: active, then: active},
	{code: 123, first: active, then: active},
}

func TestCourses(t *testing.T) {
	for _, scheme := range defaults {
		for _, c := range courses {
			t.Run(fmt.Sprintf("%v/%03d", scheme, c.code), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) { c.run(t, scheme) })
			})
		}
	}
}

func (c course) run(t *testing.T, scheme card.Scheme) {
	n := newNetwork(t, memstore.New(), nil)
	m := &mailbox{start: time.Now()}
	feed(t, n, m.sink)
	r := request(scheme, c.code)
	first := provision(t, n, r)
	pan := digits(r.PAN)
	want := network.CardState{LastFour: pan[len(pan)-4:], Expiry: r.Expiry}
	if first.State != c.first || !first.StateAt.Equal(time.Now()) || first.Card == nil || *first.Card != want ||
		first.Art == "" || first.SuspendedBy != 0 || first.Invalidated || first.ID == "" {
		t.Errorf("Provision = %+v", first)
	}
	var number string
	if c.first == active {
		g, err := cryptogram(t.Context(), n, first.ID)
		if err != nil {
			t.Fatalf("Cryptogram at first = %v", err)
		}
		number = digits(g.Number)
	} else {
		_, err := cryptogram(t.Context(), n, first.ID)
		wantRefusal(t, "Cryptogram at first", err, network.SourceScheme, "declined")
	}

	<-time.After(10 * time.Second)
	var events []*network.Notice
	m.mu.Lock()
	events = m.got
	m.mu.Unlock()
	if got := m.take(); !slices.Equal(got, c.notices) {
		t.Errorf("notices are %v, want %v", got, c.notices)
	}
	then := lookup(t, n, first.ID)
	byKey, err := n.Lookup(t.Context(), network.Ref{IdempotencyKey: r.IdempotencyKey})
	if err != nil || !reflect.DeepEqual(then, byKey) {
		t.Errorf("Lookup by key = %+v, %v; by id %+v", byKey, err, then)
	}
	if then.State != c.then || then.ID != first.ID {
		t.Errorf("Lookup = %+v", then)
	}
	if c.check != nil {
		c.check(t, first, then)
	}
	for _, e := range events {
		if e.Token.ID != first.ID || e.ID == "" || e.By != network.OwnerIssuer {
			t.Errorf("notice %+v", e)
		}
		if e.Card != nil && *e.Card != *then.Card || e.Art != "" && e.Art != then.Art {
			t.Errorf("notice has %+v, %q, and Lookup %+v, %q", e.Card, e.Art, then.Card, then.Art)
		}
		if (e.Kind == network.NoticeCardReplaced || e.Kind == network.NoticeCardRenewed) != (e.Card != nil) ||
			(e.Kind == network.NoticeArtChanged) != (e.Art != "") {
			t.Errorf("notice %+v", e)
		}
	}
	if then.State != c.first && c.code != 2 && (len(events) == 0 || !then.StateAt.Equal(events[0].OccurredAt)) {
		t.Errorf("state is of %v, unlike in the notices", then.StateAt)
	}
	g, err := cryptogram(t.Context(), n, first.ID)
	if c.then != active {
		wantRefusal(t, "Cryptogram", err, network.SourceScheme, "declined")
		return
	}
	if err != nil {
		t.Fatalf("Cryptogram = %v", err)
	}
	if renewed := number != "" && digits(g.Number) != number; renewed != (c.code == 37) {
		t.Errorf("whether the network token has a new number is %v", renewed)
	}
}

// The repeated notices of scenario 060 are identical, and later notices report earlier
// changes.
func TestReversedNotices(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNetwork(t, memstore.New(), nil)
		m := &mailbox{start: time.Now()}
		feed(t, n, m.sink)
		got := provision(t, n, request(card.VISA, 60))
		<-time.After(3 * time.Second)
		if s := lookup(t, n, got.ID).State; s != inactive {
			t.Errorf("state is %v meanwhile", s)
		}
		<-time.After(time.Second)
		synctest.Wait()
		if len(m.got) != 4 {
			t.Fatalf("%d notices", len(m.got))
		}
		if a := m.got; *a[0] != *a[1] || *a[2] != *a[3] || a[0].ID == a[2].ID || !a[2].OccurredAt.Before(a[0].OccurredAt) {
			t.Errorf("notices are %+v, %+v, %+v, %+v", a[0], a[1], a[2], a[3])
		}
	})
}

func TestRefusals(t *testing.T) {
	const scheme, configuration = network.SourceScheme, network.SourceConfiguration
	for _, c := range []struct {
		code   int
		source network.Source
		reason network.Code
		times  int
	}{
		{10, scheme, "card_not_eligible", math.MaxInt},
		{11, scheme, "card_not_allowed", math.MaxInt},
		{12, scheme, "declined", math.MaxInt},
		{13, scheme, "declined", 1},
		{14, scheme, "scheme_unavailable", 2},
		{15, scheme, "scheme_unavailable", math.MaxInt},
		{20, configuration, "merchant_not_enrolled", math.MaxInt},
		{21, configuration, "merchant_not_enrolled", 1},
	} {
		for _, s := range defaults {
			t.Run(fmt.Sprintf("%v/%03d", s, c.code), func(t *testing.T) {
				n := newNetwork(t, memstore.New(), nil)
				r := request(s, c.code)
				for i := 1; i <= 4; i++ {
					r := again(r, i)
					for range 2 { // the same key returns the same answer
						got, err := n.Provision(t.Context(), r)
						if i <= c.times {
							wantRefusal(t, r.IdempotencyKey[36:], err, c.source, c.reason)
							_, err := n.Lookup(t.Context(), network.Ref{IdempotencyKey: r.IdempotencyKey})
							if !errors.Is(err, network.ErrUnknown) {
								t.Errorf("Lookup = %v", err)
							}
						} else if err != nil || got.State != active {
							t.Errorf("Provision %d = %+v, %v", i, got, err)
						}
					}
				}
				// The state of one token does not affect another.
				_, err := n.Provision(t.Context(), request(s, c.code))
				wantRefusal(t, "another token", err, c.source, c.reason)
			})
		}
	}
}

// Cards without a scenario become active at once, even if they look like one with a
// scenario.
func TestOtherCards(t *testing.T) {
	n := newNetwork(t, memstore.New(), &simnet.Options{Schemes: all})
	for _, c := range []struct {
		scheme card.Scheme
		number string // if "?", the check digit is added
	}{
		{card.VISA, "4242424242424242"},
		{card.VISA, "4111141011111111116"},
		{card.Mastercard, "2223003122003222"},
		{card.AmericanExpress, "378282246310005"},
		{card.Discover, "6011000990139424"},
		{card.DinersClub, "3056930009020004"},
		{card.JCB, "3566002020360505"},
		{card.UnionPay, "6205500000000000004"},
		{card.VISA, "411112000000010?"},    // another IIN
		{card.VISA, "411111000001010?"},    // no zeros
		{card.VISA, "411111000010?"},       // 13 digits
		{card.VISA, "411111000000000010?"}, // 19 digits
		{card.DinersClub, "362272000000010?"},
		{card.Mastercard, "411111000000010?"}, // of another scheme
	} {
		r := request(c.scheme, 0)
		number := []byte(c.number)
		if last := len(number) - 1; number[last] == '?' {
			number[last] = iin.CheckDigit(number[:last])
		}
		r.PAN = card.NewPAN(number)
		if got := provision(t, n, r); got.State != active || got.Card.LastFour != string(number[len(number)-4:]) {
			t.Errorf("%s: %+v", number, got)
		}
	}
}

func TestIdentification(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	for _, s := range defaults {
		for _, id := range []idv.Identification{idv.None, idv.Skipped} {
			r := request(s, 70)
			r.Identification = id
			_, err := n.Provision(t.Context(), r)
			wantRefusal(t, "Provision", err, network.SourceScheme, "card_verification_failed")
			r = request(s, 0)
			r.Identification = id
			provision(t, n, r)
		}
	}
}

// Slow answers take two seconds, unless the caller gives up.
func TestSlow(t *testing.T) {
	for _, s := range defaults {
		bubble.Test(t, func(t *testing.T) {
			n := newNetwork(t, memstore.New(), nil)
			r, start := request(s, 50), time.Now()
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := n.Provision(short, r); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("Provision = %v after %v", err, time.Since(start))
			}
			start = time.Now()
			provision(t, n, r)
			if took := time.Since(start); took != 2*time.Second {
				t.Errorf("provisioning took %v", took)
			}
			start = time.Now()
			if _, err := cryptogram(t.Context(), n, provision(t, n, request(s, 42)).ID); err != nil || time.Since(start) != 2*time.Second {
				t.Errorf("Cryptogram = %v after %v", err, time.Since(start))
			}
		})
	}
}

func TestDeadline(t *testing.T) {
	for _, s := range defaults {
		bubble.Test(t, func(t *testing.T) {
			n := newNetwork(t, memstore.New(), nil)
			call := func(what string, f func(context.Context) error) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				if err := f(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute {
					t.Errorf("%s = %v after %v", what, err, time.Since(start))
				}
			}
			never := request(s, 51)
			for range 2 {
				call("Provision of 051", func(ctx context.Context) error {
					_, err := n.Provision(ctx, never)
					return err
				})
			}
			if _, err := n.Lookup(t.Context(), network.Ref{IdempotencyKey: never.IdempotencyKey}); !errors.Is(err, network.ErrUnknown) {
				t.Errorf("Lookup after 051 = %v", err)
			}
			lost := request(s, 61)
			call("Provision of 061", func(ctx context.Context) error {
				_, err := n.Provision(ctx, lost)
				return err
			})
			found, err := n.Lookup(t.Context(), network.Ref{IdempotencyKey: lost.IdempotencyKey})
			if err != nil || found.State != active {
				t.Errorf("Lookup after 061 = %+v, %v", found, err)
			}
			if got := provision(t, n, lost); got.ID != found.ID {
				t.Errorf("Provision repeated is %s, Lookup was %s", got.ID, found.ID)
			}
			call("Cryptogram of 043", func(ctx context.Context) error {
				_, err := cryptogram(ctx, n, provision(t, n, request(s, 43)).ID)
				return err
			})
		})
	}
}

func TestCryptogramRefusals(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	for _, s := range defaults {
		call := func(id string) error {
			_, err := cryptogram(t.Context(), n, id)
			return err
		}
		scheme, configured := provision(t, n, request(s, 40)).ID, provision(t, n, request(s, 41)).ID
		transient := provision(t, n, request(s, 44)).ID
		for range 3 {
			wantRefusal(t, "Cryptogram of 040", call(scheme), network.SourceScheme, "declined")
			wantRefusal(t, "Cryptogram of 041", call(configured), network.SourceConfiguration, "merchant_not_enrolled")
		}
		for range 2 {
			wantRefusal(t, "Cryptogram of 044", call(transient), network.SourceScheme, "scheme_unavailable")
		}
		for range 2 {
			if err := call(transient); err != nil {
				t.Errorf("Cryptogram of 044 at last = %v", err)
			}
		}
		g, err := cryptogram(t.Context(), n, provision(t, n, request(s, 45)).ID)
		if err != nil || g.ECI != "" || g.Value.IsZero() {
			t.Errorf("Cryptogram of 045 = %+v, %v", g, err)
		}
	}
	_, err := cryptogram(t.Context(), n, "none")
	wantRefusal(t, "Cryptogram of an unknown token", err, network.SourceScheme, "declined")
}

// Network tokens and cryptograms have the form of their scheme.
func TestForms(t *testing.T) {
	n := newNetwork(t, memstore.New(), &simnet.Options{Schemes: all})
	prefix := map[card.Scheme]string{
		card.VISA: "489500", card.Mastercard: "548098",
		card.AmericanExpress: "379900", card.Discover: "601100",
	}
	seen := map[string]bool{}
	for _, s := range all {
		length, size, eci, expiry := 16, 20, "07", card.Expiry{Month: 11, Year: 2033}
		switch s {
		case card.Mastercard:
			size, eci = 19, "06"
		case card.AmericanExpress:
			length = 15
		case card.VISA:
			expiry.Year = 2030 // the card's
		}
		for range 100 {
			r := request(s, 0)
			id := provision(t, n, r).ID
			c := &network.CryptogramRequest{IdempotencyKey: uuid.NewString(), Token: network.Ref{ID: id}}
			g, err := n.Cryptogram(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			same, err := n.Cryptogram(t.Context(), c)
			if err != nil || text(same.Value) != text(g.Value) || digits(same.Number) != digits(g.Number) {
				t.Fatalf("the same key has another cryptogram, or %v", err)
			}
			other, err := cryptogram(t.Context(), n, id)
			if err != nil || digits(other.Number) != digits(g.Number) || other.Expiry != g.Expiry {
				t.Fatalf("another cryptogram has another number, or %v", err)
			}
			for _, v := range []string{text(g.Value), text(other.Value)} {
				b, err := base64.StdEncoding.DecodeString(v)
				if err != nil || len(b) != size || len(v) != 28 || seen[v] {
					t.Fatalf("%v: cryptogram of %d characters, %d bytes, seen before: %v", s, len(v), len(b), seen[v])
				}
				seen[v] = true
			}
			number, own := digits(g.Number), digits(r.PAN)
			scheme, lengthOK := iin.Detect([]byte(number))
			if len(number) != length || !lengthOK || card.Scheme(scheme) != s || !iin.Luhn([]byte(number)) ||
				number[:6] == own[:6] || number[len(number)-4:] == own[len(own)-4:] || !strings.HasPrefix(number, prefix[s]) {
				t.Fatalf("%v: network token number %s", s, number)
			}
			if g.TokenID != id || g.ECI != eci || g.Expiry != expiry {
				t.Fatalf("%v: %+v", s, g)
			}
		}
	}
}

// Replacing a card always changes its last four digits. Its network token never ends in the
// digits of the card, before or after.
func TestLastFour(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	r := request(card.VISA, 0)
	r.PAN = card.NewPAN([]byte("4242424242424242"))
	id := provision(t, n, r).ID
	for _, want := range []string{"2424", "4242", "2424"} {
		if err := n.Control().Replace(t.Context(), r.TokenID); err != nil {
			t.Fatal(err)
		}
		if got := lookup(t, n, id).Card.LastFour; got != want {
			t.Errorf("the card ends in %s, want %s", got, want)
		}
	}
	// Under these keys the first drawn number ends in these digits.
	for key, four := range map[string]string{"draw-550": "0005", "draw-3114": "4242", "draw-211": "2424"} {
		r := request(card.VISA, 0)
		r.IdempotencyKey = key
		g, err := cryptogram(t.Context(), n, provision(t, n, r).ID)
		if err != nil || digits(g.Number)[12:] == four {
			t.Errorf("the network token ends in %s as the card does or will, or %v", four, err)
		}
	}
}

func TestEligible(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	for s := range card.Scheme(20) {
		err := n.Eligible(&network.EligibilityRequest{Scheme: s, Merchant: uuid.New()})
		if slices.Contains(defaults, s) {
			if err != nil {
				t.Errorf("Eligible(%v) = %v", s, err)
			}
			continue
		}
		wantRefusal(t, "Eligible", err, network.SourceConfiguration, "scheme_not_enabled")
	}
	_, err := n.Provision(t.Context(), request(card.JCB, 0))
	wantRefusal(t, "Provision", err, network.SourceConfiguration, "scheme_not_enabled")
	n = newNetwork(t, memstore.New(), &simnet.Options{Schemes: []card.Scheme{card.JCB}})
	provision(t, n, request(card.JCB, 0))
	wantRefusal(t, "Eligible", n.Eligible(&network.EligibilityRequest{Scheme: card.VISA}), network.SourceConfiguration, "scheme_not_enabled")
}

func TestBadRequests(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	for _, change := range []func(*network.ProvisionRequest){
		func(r *network.ProvisionRequest) { r.IdempotencyKey = "" },
		func(r *network.ProvisionRequest) { r.IdempotencyKey = strings.Repeat("a", 65) },
	} {
		r := request(card.VISA, 0)
		change(r)
		_, err := n.Provision(t.Context(), r)
		wantRefusal(t, "Provision", err, network.SourceConfiguration, "invalid_request")
	}
	for _, change := range []func(*network.ProvisionRequest){
		func(r *network.ProvisionRequest) { r.PAN = card.PAN{} },
		func(r *network.ProvisionRequest) { r.PAN = card.NewPAN([]byte("4111110000000006")) },
		func(r *network.ProvisionRequest) { r.PAN = card.NewPAN([]byte("41111100000")) },
		func(r *network.ProvisionRequest) { r.Expiry = card.Expiry{} },
		func(r *network.ProvisionRequest) { r.Expiry.Month = 13 },
		func(r *network.ProvisionRequest) { r.Expiry.Year = 2100 },
	} {
		r := request(card.VISA, 0)
		change(r)
		_, err := n.Provision(t.Context(), r)
		wantRefusal(t, "Provision", err, network.SourceScheme, "invalid_card_data")
	}
	_, err := n.Cryptogram(t.Context(), &network.CryptogramRequest{})
	wantRefusal(t, "Cryptogram", err, network.SourceConfiguration, "invalid_request")
}

func TestUnknown(t *testing.T) {
	n := newNetwork(t, memstore.New(), nil)
	for _, ref := range []network.Ref{
		{ID: "none", IdempotencyKey: "k"}, {ID: strings.Repeat("A", 26)}, {ID: strings.Repeat("A", 300)}, {IdempotencyKey: "k"}, {},
	} {
		if _, err := n.Lookup(t.Context(), ref); !errors.Is(err, network.ErrUnknown) {
			t.Errorf("Lookup = %v", err)
		}
		if err := n.Suspend(t.Context(), ref); !errors.Is(err, network.ErrUnknown) {
			t.Errorf("Suspend = %v", err)
		}
		if err := n.Delete(t.Context(), ref); err != nil {
			t.Errorf("Delete = %v", err)
		}
	}
}

// No stored record contains a card number, whatever is done with the card.
func TestNoCardData(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var forbidden [][]byte
		var requests []*network.ProvisionRequest
		for _, code := range []int{0, 1, 13, 14, 31, 34, 44} {
			for _, s := range defaults {
				r := request(s, code)
				r.Name = card.NewName([]byte("cardholder name"))
				// Not a real code: its digits would occur in stored data by chance.
				r.SecurityCode = card.NewSecurityCode([]byte("code 7391"))
				requests = append(requests, r)
				forbidden = append(forbidden, []byte(digits(r.PAN)))
			}
		}
		forbidden = append(forbidden, []byte("cardholder name"), []byte("code 7391"))
		n := newNetwork(t, storetest.Canary(t, memstore.New(), forbidden...), &simnet.Options{Shared: true})
		feed(t, n, (&mailbox{start: time.Now()}).sink)
		for _, r := range requests {
			for i := range 3 {
				got, err := n.Provision(t.Context(), again(r, i))
				if err != nil {
					continue
				}
				if _, err := cryptogram(t.Context(), n, got.ID); err == nil {
					if err := n.Control().Renew(t.Context(), r.TokenID); err != nil {
						t.Error(err)
					}
				}
			}
		}
		<-time.After(time.Minute)
	})
}

func TestCardArt(t *testing.T) {
	n := newNetwork(t, memstore.New(), &simnet.Options{Schemes: all})
	images := map[string]string{}
	for _, s := range all {
		for _, code := range []int{0, 36} {
			first := provision(t, n, request(s, code))
			if code == 36 {
				n.Advance(2 * time.Second)
			}
			id := lookup(t, n, first.ID).Art
			got, err := n.CardArt(t.Context(), &network.ArtRequest{ID: id})
			if err != nil || got.MediaType != "image/png" || len(got.Image) > network.MaxCardArt {
				t.Fatalf("CardArt = %+v, %v", got, err)
			}
			b := got.Image
			if m, err := png.Decode(bytes.NewReader(b)); err != nil || m.Bounds().Dx() != 480 || m.Bounds().Dy() != 302 {
				t.Fatalf("art is not a PNG of 480 by 302: %v", err)
			}
			if other, ok := images[string(b)]; ok {
				t.Errorf("%s looks like %s", id, other)
			}
			images[string(b)] = id
			clear(b)
			if same, err := n.CardArt(t.Context(), &network.ArtRequest{ID: id}); err != nil || images[string(same.Image)] != id {
				t.Errorf("%s has changed, or %v", id, err)
			}
			if second := provision(t, n, request(s, 0)); code == 0 && second.Art != id {
				t.Errorf("cards of %v have the art %s and %s", s, id, second.Art)
			}
		}
	}
	if _, err := n.CardArt(t.Context(), &network.ArtRequest{ID: "none"}); err == nil {
		t.Error("an unknown id has art")
	}
}

func TestOptions(t *testing.T) {
	if _, err := simnet.New(t.Context(), memstore.New(), &simnet.Options{Schemes: []card.Scheme{card.UnknownScheme}}); err == nil {
		t.Error("New accepted an unknown scheme")
	}
	number := func(s store.Store, seed uint64) string {
		n := newNetwork(t, s, &simnet.Options{Seed: seed})
		r := request(card.VISA, 0)
		r.IdempotencyKey = "same"
		g, err := cryptogram(t.Context(), n, provision(t, n, r).ID)
		if err != nil {
			t.Fatal(err)
		}
		return digits(g.Number)
	}
	s := memstore.New()
	first := number(s, 0)
	if number(s, 1) != first {
		t.Error("the seed of a state has changed")
	}
	if number(memstore.New(), 0) != first || number(memstore.New(), 1) == first {
		t.Error("numbers do not follow from the seed alone")
	}
	newer := memstore.New()
	err := newer.Update(t.Context(), func(tx store.Tx) error {
		tx.Put(&store.Record{Kind: 1, ID: uuid.UUID{15: 1}, Version: 1, Shown: []byte(`{"format":2}`)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := simnet.New(t.Context(), newer, nil); !errors.Is(err, store.ErrFormat) {
		t.Errorf("New on a newer state = %v", err)
	}
}
