package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// A sandbox is the content of sandbox.json: what a client needs. Keys and
// secrets cannot be read from the vault, so this file is where they are kept.
type sandbox struct {
	BaseURL  string    `json:"base_url"`
	Accounts []account `json:"accounts"`
}

type account struct {
	Name          string    `json:"name"`
	AccountID     uuid.UUID `json:"account_id"`
	APIKey        string    `json:"api_key"`
	MerchantID    uuid.UUID `json:"merchant_id"`
	PaymentSecret string    `json:"payment_secret"`
}

// openSandbox returns the two accounts of the sandbox: one with every approval,
// one with none. What the file holds is kept. Without one, as at the first
// start, they are made anew.
func openSandbox(ctx context.Context, v *cardvault.Vault, file string) (*sandbox, error) {
	box := new(sandbox)
	data, err := os.ReadFile(file)
	switch {
	case err == nil:
		if err := json.Unmarshal(data, box); err != nil {
			return nil, fmt.Errorf("%s is not readable; remove it to have new keys made: %w", file, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	for _, want := range []struct {
		name  string
		grant cardvault.Approvals
	}{
		{"sandbox", cardvault.Approvals{Import: true, NetworkTokens: true}},
		{"restricted", cardvault.Approvals{}},
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

func (b *sandbox) has(name string) bool {
	for _, a := range b.Accounts {
		if a.Name == name {
			return true
		}
	}
	return false
}

func newAccount(ctx context.Context, v *cardvault.Vault, name string, grant cardvault.Approvals) (*account, error) {
	a, err := v.CreateAccount(ctx, name, &grant)
	if err != nil {
		return nil, err
	}
	v = v.In(a.ID)
	_, key, err := v.CreateAPIKey(ctx, "sandbox", cardvault.AllScopes(), nil)
	if err != nil {
		return nil, err
	}
	m, err := v.PrimaryMerchant(ctx)
	if err != nil {
		return nil, err
	}
	secret, err := v.RotatePaymentSecret(ctx, m.ID, time.Time{})
	if err != nil {
		return nil, err
	}
	return &account{name, a.ID, key, m.ID, secret}, nil
}

// write puts the file in place whole, for its owner alone.
func (b *sandbox) write(file string) error {
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
