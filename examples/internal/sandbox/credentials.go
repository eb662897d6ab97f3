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
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// Credentials are the content of sandbox.json: what a client needs. A person and the
// printed lines copy keys and secrets from it, and the vault shows them once. A program that
// has a secret manager needs no such file: see EnsureAPIKey in examples/embed.
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
		return nil, fmt.Errorf("%s cannot be read; remove it to create new keys: %w", file, err)
	}
	for _, a := range box.Accounts {
		if _, err := v.Authenticate(ctx, a.APIKey); err != nil && !errors.Is(err, cardvault.ErrAccountFrozen) {
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
		log.Warn("creating new keys and accounts: the vault does not know those in the file", "old", file+".old")
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
	return replaceFile(file, append(data, '\n'))
}

// Announce prints how to use the sandbox whose credentials are in a file: lines for a shell
// in another terminal, which end with an open cryptogram. They read keys and secrets from
// the file, because output is often stored, as in the log of a container.
func (b *Credentials) Announce(w io.Writer, file string) {
	lines := fromFile(file)
	fmt.Fprintf(w, `Cardvault sandbox: %[1]s
API reference: %[1]s/reference
API keys and secrets: %[2]s
Checkpoints and public keys of the audit log: %[4]s

Paste these lines into another terminal. They import a card, list the tokens, wait for the network token, request payment data and decrypt it:

%[3]s

`, b.BaseURL, lines.file, strings.Join(lines.journey(b.BaseURL), "\n"), auditOf(lines.file))
}

// fromFile returns how a shell reads credentials from a file.
func fromFile(file string) shell {
	if whole, err := filepath.Abs(file); err == nil {
		file = whole // lines are for another terminal
	}
	_, err := exec.LookPath("jq")
	return shell{file, err == nil}
}

// A shell is a POSIX shell, with or without jq.
type shell struct {
	file string // of the credentials
	jq   bool
}

// key returns the line that sets KEY to the API key of the first account.
func (s shell) key() string { return "KEY=" + s.first("api_key") }

// first returns a member of the first account in the file.
func (s shell) first(member string) string {
	if s.jq {
		return "$(jq -r '.accounts[0]." + member + "' " + quoted(s.file) + ")"
	}
	return "$(grep -m1 '\"" + member + "\"' " + quoted(s.file) + " | cut -d'\"' -f4)"
}

// journey returns lines from an import to a cryptogram. Each answer ends with a newline.
func (s shell) journey(baseURL string) []string {
	const auth, body = ` -H "x-api-key: $KEY"`, ` -H 'content-type: application/json' -d `
	curl, shown, id := "curl -s -w '\\n' ", "", ` | sed -n 's/^{"data":\[{"id":"\([^"]*\).*/\1/p'`
	if s.jq {
		curl, shown, id = "curl -s ", " | jq", " | jq -r '.data[0].id // empty'"
	}

	return []string{
		s.key(),
		curl + baseURL + "/cde-import" + auth + body + `'{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030}'` + shown,
		curl + "'" + baseURL + "/tokens?limit=5'" + auth + shown,
		"for i in $(seq 60); do ID=$(curl -s '" + baseURL + "/tokens?limit=1&network_token_status=active'" + auth + id + `); [ "$ID" ] && break; sleep 1; done`,
		"DATA=$(curl -s " + baseURL + "/tokens/$ID/payment-data" + auth + body + `'{"amount":1999,"currency_code":"EUR","reference":"order 7"}'); printf '%s\n' "$DATA"` + shown,
		`printf '%s\n' "$DATA" | PAYMENT_SECRET=` + s.first("payment_secret") + " go run -C " + quoted(checkout()) + " ./examples/open",
	}
}

// checkout returns the directory of the source that this was built of, or "." if it is not
// on this machine.
func checkout() string {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..", "..")
	if _, err := os.Stat(filepath.Join(root, "examples", "open")); err != nil {
		return "."
	}
	return root
}

// quoted returns text as one word of a shell.
func quoted(text string) string {
	if regexp.MustCompile(`^[\w./-]+$`).MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
