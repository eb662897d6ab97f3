package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// Credentials are the content of sandbox.json: what a client needs. Keys and
// secrets cannot be read from the vault, so this file is where they are kept.
type Credentials struct {
	BaseURL  string    `json:"base_url"`
	Accounts []Account `json:"accounts"`
}

// An Account is one of the sandbox, with an API key that has every scope.
type Account struct {
	Name          string    `json:"name"`
	AccountID     uuid.UUID `json:"account_id"`
	APIKey        string    `json:"api_key"`
	MerchantID    uuid.UUID `json:"merchant_id"`
	PaymentSecret string    `json:"payment_secret"`
}

// Read returns what the file holds. The error is [cardvault.ErrUnauthenticated] if it is
// of another vault than v, or its keys are no longer valid.
func Read(ctx context.Context, v *cardvault.Vault, file string) (*Credentials, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	box := new(Credentials)
	err = json.Unmarshal(data, box)
	if err == nil && len(box.Accounts) == 0 {
		err = errors.New("it has no accounts")
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not readable; remove it to have new keys made: %w", file, err)
	}
	for _, a := range box.Accounts {
		if _, err := v.Authenticate(ctx, a.APIKey); err != nil {
			return nil, fmt.Errorf("the keys in %s: %w", file, err)
		}
	}
	return box, nil
}

// Open returns the two accounts of the sandbox in v: one with every approval, one
// with none. What the file holds is kept. Without one, as at the first start, or with
// keys that v does not know, they are made anew; that file then has .old behind its name.
// Only one process at a time may do that.
func Open(ctx context.Context, v *cardvault.Vault, file string, log *slog.Logger) (*Credentials, error) {
	box, err := Read(ctx, v, file)
	switch {
	case errors.Is(err, cardvault.ErrUnauthenticated):
		log.Warn("keys and accounts are made anew: the vault does not know those in the file", "old", file+".old")
		if err := os.Rename(file, file+".old"); err != nil {
			return nil, err
		}
		box = new(Credentials)
	case errors.Is(err, fs.ErrNotExist):
		box = new(Credentials)
	case err != nil:
		return nil, err
	}

	for _, want := range []struct {
		name  string
		grant bool
	}{
		{"sandbox", true},
		{"restricted", false},
	} {
		if box.has(want.name) {
			continue
		}
		a, err := newAccount(ctx, v, want.name, want.grant)
		if err != nil {
			return nil, err
		}
		box.Accounts = append(box.Accounts, *a)
	}

	return box, nil
}

func (b *Credentials) has(name string) bool {
	for _, a := range b.Accounts {
		if a.Name == name {
			return true
		}
	}
	return false
}

func newAccount(ctx context.Context, v *cardvault.Vault, name string, grant bool) (*Account, error) {
	a, err := v.CreateAccount(ctx, name, &cardvault.AccountOptions{ImportApproved: &grant, NetworkTokensActive: &grant})
	if err != nil {
		return nil, err
	}
	v = v.In(a.ID)
	key, err := v.CreateAPIKey(ctx, "sandbox", cardvault.AllScopes(), nil)
	if err != nil {
		return nil, err
	}
	m, err := v.PrimaryMerchant(ctx)
	if err != nil {
		return nil, err
	}
	secret, err := v.RotatePaymentSecret(ctx, m.ID, nil)
	if err != nil {
		return nil, err
	}
	return &Account{name, a.ID, key.Text.Text(), m.ID, secret.Secret.Text()}, nil
}

// Write puts the file in place whole, for its owner alone.
func (b *Credentials) Write(file string) error {
	data, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".sandbox-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// Announce prints how to use the sandbox whose credentials are in a file. The lines read
// the key from there: what is printed is often kept, as the log of a container.
func (b *Credentials) Announce(w io.Writer, file string) {
	if whole, err := filepath.Abs(file); err == nil {
		file = whole // the lines are for another terminal
	}
	// The first key in the file is that of the first account.
	key := `"x-api-key: $(grep -om1 'vk_test_[^"]*' ` + quoted(file) + `)"`
	fmt.Fprintf(w, `Cardvault sandbox on %[1]s
API keys and secrets are in %[2]s. Import a card, look at it, and get a payment cryptogram for the latest one:

curl -s %[1]s/cde-import -H %[3]s -H 'content-type: application/json' -d '{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030}'
curl -s '%[1]s/tokens?limit=5' -H %[3]s
curl -s %[1]s/tokens/$(sleep 1; curl -s '%[1]s/tokens?limit=1' -H %[3]s | cut -d'"' -f6)/payment-data -H %[3]s -H 'content-type: application/json' -d '{"amount":1999,"currency_code":"EUR","reference":"order 7"}'

`, b.BaseURL, file, key)
}

// quoted returns text as one word of a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
