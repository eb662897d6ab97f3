package main

import (
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"net/http"
	"strconv"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/bench/table"
	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
)

// A request is what a load sends.
type request struct {
	method, path string
	body         []byte
}

// A load is one kind of request. next returns the request of a call, ready prepares some
// of them and may be nil.
type load struct {
	name, what string
	next       func() (request, error)
	ready      func(calls int) error
	goals      map[int]table.Goal // by connections
}

// http compares the REST API with handlers that read as many bytes, answer as many and
// do nothing. Client and server share the machine.
func (b *bench) http(ctx context.Context) error {
	vault, stop, err := b.rest(ctx)
	if err != nil {
		return err
	}
	defer stop()
	for _, l := range b.loads(ctx) {
		at := []int{1, 16, 64, 256}
		if l.name == "list" {
			at = []int{1, 8, 64, 256}
		}
		if err := b.loaded(l, vault, at); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return b.payments(ctx)
}

// loads returns the loads of the filled vault.
func (b *bench) loads(ctx context.Context) []load {
	var tokens supply[uuid.UUID]
	var sessions supply[request]
	token := func() string { return b.ids[rand.IntN(len(b.ids))].String() }

	return []load{
		{name: "read", what: "GET /tokens/{id}", goals: map[int]table.Goal{64: least(.75)},
			next: func() (request, error) { return request{"GET", "/tokens/" + token(), nil}, nil }},
		{name: "import", what: "POST /cde-import", goals: map[int]table.Goal{64: least(.35)},
			next: func() (request, error) { return importing, nil }},
		{name: "list", what: "GET /tokens?limit=50", goals: map[int]table.Goal{8: least(.5)},
			next: func() (request, error) { return request{"GET", "/tokens?limit=50", nil}, nil }},
		{name: "complete", what: "POST /sessions/{id}/complete-action", next: sessions.take,
			ready: func(calls int) error {
				return sessions.fill(calls, func() (request, error) { return completion(ctx, b.vault) })
			}},
		{name: "delete", what: "DELETE /tokens/{id}",
			next: func() (request, error) {
				id, err := tokens.take()
				return request{"DELETE", "/tokens/" + id.String(), nil}, err
			},
			ready: func(calls int) error { return tokens.fill(calls, b.newToken(ctx)) }},
	}
}

// newToken returns a function that imports a card and returns its token's id.
func (b *bench) newToken(ctx context.Context) func() (uuid.UUID, error) {
	return func() (uuid.UUID, error) {
		t, err := b.vault.Import(ctx, testCard(0), bulk)
		if err != nil {
			return uuid.Nil, err
		}
		return t.ID, nil
	}
}

// importing is the import of a card.
var importing = request{"POST", "/cde-import",
	[]byte(`{"cardholder_name":"A Customer","expiry_month":12,"expiry_year":2030,"account_number":"4242424242424242"}`)}

// entered returns a new session, and a card that is encrypted for it as a browser does.
func entered(ctx context.Context, v *cardvault.Vault) (id cardvault.SessionID, payload []byte, err error) {
	created, err := v.CreateSession(ctx, nil)
	if err != nil {
		return id, nil, err
	}
	s, err := v.Session(ctx, created.ID)
	if err != nil {
		return id, nil, err
	}
	text, err := encrypted(s.Key)
	return created.ID, []byte(text), err
}

// completion returns the request that completes a new session.
func completion(ctx context.Context, v *cardvault.Vault) (request, error) {
	id, payload, err := entered(ctx, v)
	return request{"POST", "/sessions/" + id.UUID().String() + "/complete-action",
		fmt.Appendf(nil, `{"action":"tokenize_card","result":{"enc_payload":%q}}`, payload)}, err
}

// encrypted returns a card under the key of a session.
func encrypted(k *cardvault.SessionKey) (string, error) {
	key := &rsa.PublicKey{N: new(big.Int).SetBytes(k.N), E: 65537}
	e, err := jose.NewEncrypter(jose.A256GCM, jose.Recipient{Algorithm: jose.RSA_OAEP_256, Key: key, KeyID: k.ID}, nil)
	if err != nil {
		return "", err
	}
	jwe, err := e.Encrypt([]byte(`{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030,"security_code":"737"}`))
	if err != nil {
		return "", err
	}
	return jwe.CompactSerialize()
}

// loaded compares a load with a bare handler at numbers of connections.
func (b *bench) loaded(l load, vault *caller, at []int) (err error) {
	bare, stop, err := l.bare(vault)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	for _, n := range at {
		lanes, err := b.race(n, l.contender(vault), bare)
		if err != nil {
			return err
		}
		b.ratio(fmt.Sprintf("http-%s/%d", l.name, n), n, l.goals[n], lanes[0], lanes[1])
	}
	return nil
}

// bare returns requests like the load's to a handler that answers with the bytes of
// one answer.
func (l *load) bare(vault *caller) (c contender, stop func() error, err error) {
	sent, answer, err := l.sample(vault)
	if err != nil {
		return c, nil, err
	}
	empty, end, err := client(answering(answer), "")
	if err != nil {
		return c, nil, err
	}
	return contender{name: "bare " + sent.method, run: func(i int) error {
		_, err := empty.do(i, sent.method, sent.path, sent.body)
		return err
	}}, func() error { end(); return nil }, nil
}

// sample makes one request, and returns it with its answer.
func (l *load) sample(vault *caller) (sent request, answer []byte, err error) {
	if l.ready != nil {
		if err := l.ready(1); err != nil {
			return sent, nil, err
		}
	}
	if sent, err = l.next(); err != nil {
		return sent, nil, err
	}
	answer, err = vault.do(0, sent.method, sent.path, sent.body)
	return sent, append([]byte(nil), answer...), err
}

func (l *load) contender(vault *caller) contender {
	return contender{name: l.what, ready: l.ready, run: func(i int) error {
		r, err := l.next()
		if err != nil {
			return err
		}
		_, err = vault.do(i, r.method, r.path, r.body)
		return err
	}}
}

// answering returns a handler that reads the request, and answers with a body.
func answering(answer []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		if len(answer) == 0 {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		w.Write(answer)
	})
}

// rest serves the filled vault.
func (b *bench) rest(ctx context.Context) (*caller, func(), error) {
	return served(ctx, b.vault, cardvault.AccountUpdate{ImportApproved: new(true)})
}

// served serves a vault and updates its account.
func served(ctx context.Context, v *cardvault.Vault, u cardvault.AccountUpdate) (*caller, func(), error) {
	key, err := v.CreateAPIKey(ctx, "bench", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	if err != nil {
		return nil, nil, err
	}
	api, err := httpapi.NewHandler(v, nil)
	if err != nil {
		return nil, nil, err
	}
	if _, err := v.UpdateAccount(ctx, u); err != nil {
		return nil, nil, err
	}
	return client(api, key.Text.Text())
}

// payments compares requests for payment data with a bare handler. The network is a
// simulator in memory, which answers at once.
func (b *bench) payments(ctx context.Context) (err error) {
	s, ids, err := b.paying(ctx, "payments")
	if err != nil {
		return err
	}
	defer s.close(&err)
	l := load{name: "payment", what: "POST /tokens/{id}/payment-data", goals: map[int]table.Goal{64: least(.15)},
		next: func() (request, error) {
			return request{"POST", "/tokens/" + ids[rand.IntN(len(ids))].String() + "/payment-data",
				[]byte(`{"amount":1999,"currency_code":"EUR","reference":"order 1"}`)}, nil
		}}
	return b.loaded(l, s.caller, []int{1, 16, 64, 256})
}

// paying returns a site with tokens for which payment data can be requested. Each has room
// for 10,000 records.
func (b *bench) paying(ctx context.Context, name string) (s *site, ids []uuid.UUID, err error) {
	if s, err = b.newSite(ctx, name, features{network: true}); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			s.close(&err)
		}
	}()
	if err := s.receivesPayments(ctx); err != nil {
		return nil, nil, err
	}

	var tokens supply[uuid.UUID]
	err = tokens.fill(1000, func() (uuid.UUID, error) {
		t, err := s.vault.Import(ctx, testCard(0), bulk)
		if err != nil {
			return uuid.Nil, err
		}
		return t.ID, nil
	})
	if err != nil {
		return nil, nil, err
	}
	if err := s.active(ctx, int64(len(tokens.items))); err != nil {
		return nil, nil, err
	}

	p, err := s.vault.RequestPaymentData(ctx, tokens.items[0], cardvault.PaymentRequest{Amount: 1, Currency: "EUR", Reference: "the first"})
	if err == nil && !p.Success {
		err = fmt.Errorf("no payment data: %v", p.Failures)
	}
	return s, tokens.items, err
}
