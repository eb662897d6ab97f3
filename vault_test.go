package cardvault_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// vaultsuite.Run tests a vault on any store. The tests here cover the folder of Open and
// whether secrets show outside.

func TestMain(m *testing.M) { goroutines.Verify(m) }

const (
	secretNumber = "4532015112830366"
	secretName   = "Zoë Verysecret"
	secretCode   = "7391"
	secretKey    = "customer-no-8812-secret"
)

func secretCard() cardvault.Card {
	return cardvault.Card{
		PAN:          card.NewPAN([]byte(secretNumber)),
		Expiry:       card.Expiry{Month: 12, Year: 2090},
		SecurityCode: card.NewSecurityCode([]byte(secretCode)),
		Name:         card.NewName([]byte(secretName)),
	}
}

// A lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestOpen takes a vault on disk through closing and reopening. It finds no secret in the
// folder or the log.
func TestOpen(t *testing.T) {
	ctx := cardvault.WithActor(t.Context(), cardvault.Actor{Address: "192.0.2.7", RequestID: "request-1"})
	base := t.TempDir()
	dir := filepath.Join(base, "vault")
	var log lockedBuffer
	opts := &cardvault.Options{
		Mode:   cardvault.Sandbox,
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	open := func() *cardvault.Vault {
		t.Helper()
		keys, err := cardvault.KeyFile(filepath.Join(base, "keys", "vault.key"), nil)
		if err != nil {
			t.Fatal(err)
		}
		v, err := cardvault.Open(ctx, dir, keys, opts)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}

	v := open()
	token, err := v.Import(ctx, secretCard(),
		&cardvault.ImportOptions{BusinessKey: secretKey, ImportProvider: "p", IdempotencyKey: "idempotency-secret"})
	if err != nil {
		t.Fatal(err)
	}
	session, err := v.CreateSession(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Tokenize(ctx, session.ID, secretCard()); err != nil {
		t.Fatal(err)
	}
	key, err := v.CreateAPIKey(ctx, "label-secret", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	if err != nil {
		t.Fatal(err)
	}
	merchant, err := v.PrimaryMerchant(ctx)
	if err != nil {
		t.Fatal(err)
	}
	payment, err := v.RotatePaymentSecret(ctx, merchant.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	bad := secretCard()
	bad.Expiry.Month = 13
	_, refused := v.Import(ctx, bad, nil)
	_, unknown := v.Get(ctx, uuid.New())
	if refused == nil || unknown == nil {
		t.Fatalf("errors %v, %v", refused, unknown)
	}
	if err := v.Delete(ctx, token.ID); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}

	v = open()
	if p, err := v.Authenticate(ctx, key.Text.Text()); err != nil || p.Key.Label != "label-secret" {
		t.Errorf("the key after reopening: %v", err)
	}
	if p, err := v.List(ctx, nil); err != nil || p.TotalItems != 1 || p.Items[0].LastFour != secretNumber[12:] {
		t.Errorf("List after reopening: %v", err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}

	secrets := []string{
		secretNumber, secretNumber[:12], secretName, secretKey, key.Text.Text(), key.Text.Text()[17:60], payment.Secret.Text(), "idempotency-secret", "label-secret",
		secretCode, token.Fingerprint.String(),
	}
	vaulttest.AssertNoLeak(t, secrets, log.text(), refused, unknown)
	vaulttest.AssertNoLeak(t, append(secrets, token.ID.String(), string(token.ID[:])), os.DirFS(dir))
	if text := log.text(); !strings.Contains(text, "operation=token.import") || !strings.Contains(text, "request_id=request-1") ||
		!strings.Contains(text, "address=192.0.2.7") || !strings.Contains(text, "object="+token.ID.String()) {
		t.Error("the log does not show who did which operation on which token")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "cardvault.db" {
		t.Errorf("the folder holds %v, error %v", entries, err)
	}
}

// TestLogHidesSessions: a session id is a credential, so a reader of the log must not be
// able to use it.
func TestLogHidesSessions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log lockedBuffer
		v := vaulttest.NewWith(t, &cardvault.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		session, err := v.CreateSession(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.Tokenize(t.Context(), session.ID, secretCard()); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if err := v.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, operation := range []string{"session.create", "token.tokenize", "expire"} {
			if !strings.Contains(log.text(), operation) {
				t.Errorf("%s is not logged", operation)
			}
		}
		vaulttest.AssertNoLeak(t, []string{session.ID.UUID().String()}, log.text())
	})
}

// TestNeverPrints prints card data in every way in which a program might.
func TestNeverPrints(t *testing.T) {
	c := secretCard()
	type wrapper struct {
		Card    cardvault.Card
		Pointer *card.PAN
		List    []card.PAN
		Map     map[string]card.Name
		Any     any
		hidden  card.SecurityCode
	}
	w := wrapper{c, &c.PAN, []card.PAN{c.PAN}, map[string]card.Name{"k": c.Name}, c.SecurityCode, c.SecurityCode}
	values := []any{
		c, &c, c.PAN, &c.PAN, c.SecurityCode, &c.SecurityCode, c.Name, &c.Name, w, &w, []any{c.PAN, w},
		cardvault.Token{CardholderName: c.Name}, &cardvault.Token{CardholderName: c.Name},
		cardvault.TokenUpdate{CardholderName: &c.Name},
	}
	var out bytes.Buffer
	text := slog.New(slog.NewTextHandler(&out, nil))
	jsonLog := slog.New(slog.NewJSONHandler(&out, nil))
	for _, value := range values {
		for _, verb := range "vsdxXqTpbcoOtUeEfFgGw!" {
			for _, flags := range []string{"", "+", "#", "-40", "040", " ", "# 10.3"} {
				fmt.Fprintf(&out, "%"+flags+string(verb)+"\n", value)
			}
		}
		fmt.Fprintln(&out, value, errors.Join(fmt.Errorf("about %v", value)))
		text.Info("x", "value", value, slog.Group("g", "value", value))
		jsonLog.Info("x", "value", value, slog.Group("g", "value", value))
		switch value.(type) {
		case cardvault.Token, *cardvault.Token: // with the name, as in REST
		default:
			if b, err := json.Marshal(value); err == nil {
				out.Write(b)
			}
		}
		if b, err := xml.Marshal(value); err == nil {
			out.Write(b)
		}
		func() {
			defer func() { fmt.Fprintf(&out, "%v", recover()) }()
			panic(value)
		}()
	}
	if out.Len() < 10_000 {
		t.Errorf("only %d bytes printed", out.Len())
	}
	vaulttest.AssertNoLeak(t, []string{secretNumber, secretNumber[:12], secretName, secretName[5:], secretCode}, out.Bytes())
	if !strings.Contains(out.String(), "453201******0366") {
		t.Error("the masked form does not appear either")
	}
	c.Wipe()
	for i, expose := range []func(func([]byte)){c.PAN.Expose, c.SecurityCode.Expose, c.Name.Expose} {
		expose(func(b []byte) {
			if len(b) == 0 || slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
				t.Errorf("value %d is not wiped", i)
			}
		})
	}
}

// TestCardIsCopied: values passed in belong to the caller, who may change and wipe them.
func TestCardIsCopied(t *testing.T) {
	v := vaulttest.New(t)
	digits, holder := []byte(secretNumber), []byte(secretName)
	c := cardvault.Card{PAN: card.NewPAN(digits), Name: card.NewName(holder), Expiry: card.Expiry{Month: 1, Year: 2030}}
	clear(digits)
	clear(holder)
	token, err := v.Import(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	u := card.NewName([]byte(secretName))
	updated, err := v.Update(t.Context(), token.ID, cardvault.TokenUpdate{CardholderName: &u})
	if err != nil {
		t.Fatal(err)
	}
	c.Wipe()
	u.Wipe()
	for _, token := range []*cardvault.Token{token, updated} {
		token.CardholderName.Expose(func(b []byte) {
			if string(b) != secretName {
				t.Error("the name of a token was wiped with the card")
			}
		})
	}
}

func TestFieldErrors(t *testing.T) {
	one, two := &cardvault.FieldError{Field: "a"}, &cardvault.FieldError{Field: "b"}
	for i, test := range []struct {
		err  error
		want []*cardvault.FieldError
	}{
		{nil, nil},
		{errors.New("x"), nil},
		{one, []*cardvault.FieldError{one}},
		{fmt.Errorf("x: %w", errors.Join(one, errors.New("y"), fmt.Errorf("z: %w", two))), []*cardvault.FieldError{one, two}},
		{fmt.Errorf("%w, %w", two, one), []*cardvault.FieldError{two, one}},
	} {
		if got := cardvault.FieldErrors(test.err); !slices.Equal(got, test.want) {
			t.Errorf("%d: %v, want %v", i, got, test.want)
		}
	}
}

// TestCloseEndsRun: Close does not wait for Run, which ends with it.
func TestCloseEndsRun(t *testing.T) {
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.Open(t.Context(), t.TempDir(), keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	for range 2 {
		go func() { ended <- v.Run(context.Background()) }()
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; !errors.Is(err, cardvault.ErrClosed) {
			t.Errorf("Run = %v, want %v", err, cardvault.ErrClosed)
		}
	}
}
