package receive_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/wire"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/receive/endpoint"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/cardvault/cardvault/webhook"
	"github.com/google/uuid"
)

// An inbox holds the deliveries that a shop has received.
type inbox struct {
	mu     sync.Mutex
	events []*receive.Event
}

func (i *inbox) take(_ context.Context, e *receive.Event) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.events = append(i.events, e)
	return nil
}

// last returns the newest event.
func (i *inbox) last(t *testing.T) *receive.Event {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.events) == 0 {
		t.Fatal("nothing has arrived")
	}
	return i.events[len(i.events)-1]
}

// TestVault: a vault's sender delivers events of each type, which arrive and parse.
// Requested payment data can be opened.
func TestVault(t *testing.T) {
	ctx := t.Context()
	sim, err := simnet.New(ctx, memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sim.Close()
	sender := webhook.New(&webhook.Options{AllowPrivateTargets: true})
	defer sender.Close()
	v := vaulttest.NewWith(t, &cardvault.Options{Mode: cardvault.Sandbox, Network: sim, Webhooks: sender})

	in := &inbox{}
	var secrets []receive.WebhookSecret
	server := httptest.NewUnstartedServer(nil)
	hook, err := v.CreateWebhook(ctx, "http://"+server.Listener.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	newest, err := v.RotateWebhookSecret(ctx, hook.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	secrets = append(secrets, newest.Secret, hook.Secret)
	if server.Config.Handler, err = endpoint.New(in.take, secrets...); err != nil {
		t.Fatal(err)
	}
	server.Start()
	defer server.Close()

	if result, err := v.TestWebhook(ctx, hook.ID); err != nil || result.StatusCode != 204 {
		t.Fatalf("TestWebhook = %+v, %v", result, err)
	}
	if e := in.last(t); e.Type != receive.WebhookTest || e.ID == uuid.Nil || e.TokenID != uuid.Nil || e.Token != nil || e.Sequence != 0 {
		t.Errorf("test: %+v", e)
	}

	// arrives checks the newest event against the token in the vault.
	var sequence uint64
	arrives := func(typ receive.EventType, why receive.EventReason, id uuid.UUID) *receive.Event {
		t.Helper()
		if err := v.Drain(ctx); err != nil {
			t.Fatal(err)
		}
		e := in.last(t)
		if e.Type != typ || e.Reason != why || e.TokenID != id || e.Sequence <= sequence || time.Since(e.CreatedAt) > time.Minute {
			t.Errorf("%s %s: %+v", typ, why, e)
		}
		sequence = e.Sequence
		return e
	}

	token, err := v.Import(ctx, cardvault.Card{
		PAN:    simnet.ScenarioPAN(card.VISA, 0),
		Expiry: card.Expiry{Month: 12, Year: 2030},
		Name:   card.NewName([]byte("Zoë Quux")),
	}, &cardvault.ImportOptions{BusinessKey: "order 7"})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	in.mu.Lock()
	created := in.events[1]
	in.mu.Unlock()
	if created.Type != receive.TokenCreated || created.Reason != receive.ReasonImported || created.Token.BusinessKey != "order 7" ||
		created.Token.NetworkTokenStatus != receive.NetworkTokenPending {
		t.Errorf("created: %+v", created)
	}
	e := arrives(receive.TokenUpdated, receive.ReasonNetworkTokenStatusChanged, token.ID)
	if token, err = v.Get(ctx, token.ID); err != nil {
		t.Fatal(err)
	}
	sameToken(t, e.Token, token)

	opens(t, v, token.ID)

	key := "order 8"
	if token, err = v.Update(ctx, token.ID, cardvault.TokenUpdate{BusinessKey: &key}); err != nil {
		t.Fatal(err)
	}
	e = arrives(receive.TokenUpdated, receive.ReasonPatched, token.ID)
	sameToken(t, e.Token, token)

	if err := v.Delete(ctx, token.ID); err != nil {
		t.Fatal(err)
	}
	if e := arrives(receive.TokenDeleted, receive.ReasonRequested, token.ID); e.Token != nil {
		t.Errorf("deleted: %+v", e)
	}
}

// sameToken compares a received token with the vault's.
func sameToken(t *testing.T, got *receive.Token, is *cardvault.Token) {
	t.Helper()
	want := receive.Token{
		ID: is.ID, CreatedAt: is.CreatedAt, ExpiresAt: is.ExpiresAt, InvalidatedAt: is.InvalidatedAt, Expiry: is.Expiry,
		IIN: is.IIN, LastFour: is.LastFour, AccountNumberLength: is.AccountNumberLength, MaskedAccountNumber: is.MaskedAccountNumber,
		Scheme: is.Scheme.String(), Type: is.Type, BankName: is.BankName, Segment: is.Segment, CountryCode: is.CountryCode,
		CardArtURL: is.CardArtURL, Status: receive.TokenStatus(is.Status.String()),
		NetworkTokenStatus: receive.NetworkTokenStatus(is.NetworkTokenStatus.String()),
		Identification:     is.Identification.String(), SupportsDeviceBinding: is.SupportsDeviceBinding,
		BusinessKey: is.BusinessKey, ImportProvider: is.ImportProvider,
		UpdatedAt: is.UpdatedAt,
	}
	var name, wantName string
	got.CardholderName.Expose(func(text []byte) { name = string(text) })
	is.CardholderName.Expose(func(text []byte) { wantName = string(text) })
	bare := *got
	bare.CardholderName = card.Name{}
	if !reflect.DeepEqual(bare, want) || name != wantName || name == "" {
		t.Errorf("arrived %+v, %q\nwant    %+v, %q", bare, name, want, wantName)
	}
}

// opens requests payment data and opens it, under each of two secrets.
func opens(t *testing.T, v *cardvault.Vault, token uuid.UUID) {
	t.Helper()
	ctx := t.Context()
	m, err := v.PrimaryMerchant(ctx)
	if err != nil {
		t.Fatal(err)
	}

	var secrets []receive.SharedSecret
	for range 2 {
		secret, err := v.RotatePaymentSecret(ctx, m.ID, &cardvault.PaymentSecretOptions{ActivateAt: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret.Secret)

		data, err := v.RequestPaymentData(ctx, token, cardvault.PaymentRequest{Amount: 1999, Currency: "EUR", Reference: "order 7"})
		if err != nil || !data.Success {
			t.Fatalf("RequestPaymentData = %+v, %v", data, err)
		}
		c, err := receive.OpenPaymentData(data.Encrypted, secrets...)
		if err != nil || c.Number.IsZero() || c.Cryptogram.IsZero() || c.ECI != "07" || c.Expiry.Month == 0 {
			t.Errorf("opened %+v, %v", c, err)
		}
		vaulttest.AssertNoCardNumber(t, nil, fmt.Sprintf("%+v %#v", c, c))
		if c.Wipe(); fmt.Sprint(c.Cryptogram) != "***" {
			t.Errorf("wiped: %+v", c)
		}
	}
}

// TestMembers: a receiver's token has a field for each member that the vault writes.
func TestMembers(t *testing.T) {
	var written map[string]json.RawMessage
	if err := json.Unmarshal(wire.Append(nil, &cardvault.Token{}), &written); err != nil {
		t.Fatal(err)
	}
	for name := range written {
		body := fmt.Sprintf(`{"id":%q,%q:[7]}`, tokenID, name)
		if name == "id" {
			continue
		}
		if err := json.Unmarshal([]byte(body), new(receive.Token)); err == nil {
			t.Errorf("%s is not read", name)
		}
	}
}
