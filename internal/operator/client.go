package operator

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/receive"
	"github.com/google/uuid"
)

// A Client calls the vault of a server. It has methods of [cardvault.Vault].
type Client struct{ http http.Client }

// Dial returns a Client for the vault in a folder. The error is ErrNoServer if no running server
// offers it.
func Dial(ctx context.Context, dir string) (*Client, error) {
	if _, err := os.Lstat(filepath.Join(dir, socketName)); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoServer
	}
	path, err := check(dir)
	if err != nil {
		return nil, fmt.Errorf("the socket of the server: %w", err)
	}

	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", path)
		if err == nil {
			if err = sameUser(conn); err != nil {
				err = errors.Join(err, conn.Close())
			}
		}
		return conn, err
	}
	conn, err := dial(ctx, "", "")
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist): // it has ended
		return nil, ErrNoServer
	case err != nil:
		return nil, fmt.Errorf("the socket of the server: %w", err)
	}
	_ = conn.Close() // it was only tried
	return newClient(dial), nil
}

func newClient(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *Client {
	return &Client{http.Client{Transport: &http.Transport{DialContext: dial, DisableCompression: true}}}
}

// Close closes the connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// A reply says where the frames of an answer go. Each part may be nil.
type reply struct {
	result   any
	data     io.Writer
	manifest io.Writer
	progress func([]byte) error
	base     io.ReadSeeker  // the manifest, of which the server asks for pieces
	body     *io.PipeWriter // of the request, behind its arguments
}

var errSilent = errors.New("it has said nothing for too long")

// call makes a call and reads its answer to the end.
func (c *Client) call(ctx context.Context, r *request, to reply) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(text) > maxRequest {
		return errors.New("the arguments are too long")
	}
	var body io.Reader = bytes.NewReader(text)
	if to.base != nil || r.Confirm {
		var more *io.PipeReader
		more, to.body = io.Pipe()
		defer to.body.Close()
		body = struct {
			io.Reader
			io.Closer // of http: a piece waits for no server that has gone
		}{io.MultiReader(body, more), more}
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alarm := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer alarm.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://operator/", body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("the server: %w", errors.Join(context.Cause(ctx), err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // it is only shown
		return fmt.Errorf("the server: %s", bytes.TrimSpace(text))
	}

	ended := false
	for {
		kind, content, err := readFrame(resp.Body)
		if kind != frameWant {
			alarm.Stop() // where the frame goes may be slow
		}
		switch {
		case err == io.EOF && ended:
			return nil
		case err == io.EOF:
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("the server has cut its answer off: %w", errors.Join(context.Cause(ctx), err))
		}
		if err := to.take(kind, content); err != nil {
			return err
		}
		if kind == frameResult && r.Confirm {
			if err := writeFrame(to.body, frameTaken, nil); err != nil {
				return fmt.Errorf("the server: %w", err)
			}
		}
		ended = ended || kind == frameResult
		alarm.Reset(silence)
	}
}

// take takes a frame. It returns the error of the call, or of the caller's writer.
func (to reply) take(kind byte, content []byte) error {
	switch {
	case kind == frameData && to.data != nil:
		_, err := to.data.Write(content)
		return err
	case kind == frameManifest && to.manifest != nil:
		_, err := to.manifest.Write(content)
		return err
	case kind == frameWant && to.base != nil:
		return to.send(content)
	case kind == frameProgress && to.progress != nil:
		return to.progress(content)
	case kind == frameResult && to.result != nil:
		return json.Unmarshal(content, to.result)

	case kind == frameError:
		f := new(failure)
		if err := json.Unmarshal(content, f); err != nil {
			return err
		}
		return f
	}
	return nil
}

// send sends the piece from an offset on.
func (to reply) send(offset []byte) error {
	if len(offset) != 8 {
		return errors.New("the server asks for no piece of the manifest")
	}
	if _, err := to.base.Seek(int64(binary.BigEndian.Uint64(offset)), io.SeekStart); err != nil {
		return err
	}
	piece := make([]byte, pieceBytes)
	n, err := io.ReadFull(to.base, piece)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return err
	}
	return writeFrame(to.body, framePiece, piece[:n])
}

// reported returns a function that passes on progress.
func reported[T any](to func(T)) func([]byte) error {
	if to == nil {
		return nil
	}
	return func(text []byte) error {
		var at T
		if err := json.Unmarshal(text, &at); err != nil {
			return err
		}
		to(at)
		return nil
	}
}

// KeyReport is [cardvault.Vault.KeyReport].
func (c *Client) KeyReport(ctx context.Context) (r *cardvault.KeyReport, err error) {
	err = c.call(ctx, &request{Call: "report"}, reply{result: &r})
	return r, err
}

// Verify is [cardvault.Vault.Verify]. A call that ends early has no report.
func (c *Client) Verify(ctx context.Context, opts *cardvault.VerifyOptions) (r *cardvault.VerifyReport, err error) {
	req := &request{Call: "verify", Search: &search{opts.Position, opts.Rate, opts.Most}}
	err = c.call(ctx, req, reply{result: &r, progress: reported(opts.Progress)})
	return r, err
}

// Repair is [cardvault.Vault.Repair]. A call that ends early has no report.
func (c *Client) Repair(ctx context.Context, opts *cardvault.RepairOptions) (r *cardvault.RepairReport, err error) {
	req := &request{Call: "repair", Search: &search{opts.Position, opts.Rate, opts.Most}}
	err = c.call(ctx, req, reply{result: &r, progress: reported(opts.Progress)})
	return r, err
}

// Backup is [cardvault.Vault.Backup]. The server reads opts.Since through the socket.
func (c *Client) Backup(ctx context.Context, w io.Writer, opts *cardvault.BackupOptions) (r *cardvault.BackupReport, err error) {
	req := &request{Call: "backup", Increment: opts.Since != nil, Manifest: opts.Manifest != nil}
	to := reply{result: &r, data: w, manifest: opts.Manifest, progress: reported(opts.Progress)}
	if req.Increment {
		to.base = opts.Since
	}
	err = c.call(ctx, req, to)
	return r, err
}

// RotateKeys is [cardvault.Vault.RotateKeys].
func (c *Client) RotateKeys(ctx context.Context, _ *cardvault.CallOptions) (*cardvault.Outcome, error) {
	return new(cardvault.Outcome), c.call(ctx, &request{Call: "rotate"}, reply{})
}

// RotateSeries is [cardvault.Vault.RotateSeries].
func (c *Client) RotateSeries(ctx context.Context, s cardvault.KeySeries, _ *cardvault.CallOptions) (*cardvault.Outcome, error) {
	return new(cardvault.Outcome), c.call(ctx, &request{Call: "rotate", Series: s}, reply{})
}

// Reseal is [cardvault.Vault.Reseal].
func (c *Client) Reseal(ctx context.Context) error {
	return c.call(ctx, &request{Call: "reseal"}, reply{})
}

// RetireTerm is [cardvault.Vault.RetireTerm].
func (c *Client) RetireTerm(ctx context.Context, term uint32) error {
	return c.call(ctx, &request{Call: "retire", Term: term}, reply{})
}

// Scrub is [cardvault.Vault.Scrub].
func (c *Client) Scrub(ctx context.Context) error {
	return c.call(ctx, &request{Call: "scrub"}, reply{})
}

// BeginSums is [cardvault.Vault.BeginSums].
func (c *Client) BeginSums(ctx context.Context, opts *cardvault.BeginSumsOptions) error {
	if opts == nil {
		opts = new(cardvault.BeginSumsOptions)
	}
	return c.call(ctx, &request{Call: "begin-sums", Search: &search{Rate: opts.Rate}}, reply{})
}

// CreateAccount is [cardvault.Vault.CreateAccount], without options.
func (c *Client) CreateAccount(ctx context.Context, name string, _ *cardvault.AccountOptions) (a *cardvault.Account, err error) {
	err = c.call(ctx, &request{Call: "create-account", Name: name}, reply{result: &a})
	return a, err
}

// UpdateAccount is [cardvault.Vault.UpdateAccount] of an account, for its approvals alone.
func (c *Client) UpdateAccount(ctx context.Context, id uuid.UUID, u cardvault.AccountUpdate) (a *cardvault.Account, err error) {
	err = c.call(ctx, &request{Call: "approve", Account: id, Approve: &approvals{u.ImportApproved, u.NetworkTokensActive}}, reply{result: &a})
	return a, err
}

// FreezeAccount is [cardvault.Vault.FreezeAccount] of an account.
func (c *Client) FreezeAccount(ctx context.Context, id uuid.UUID) (a *cardvault.Account, err error) {
	err = c.call(ctx, &request{Call: "freeze", Account: id}, reply{result: &a})
	return a, err
}

// ThawAccount is [cardvault.Vault.ThawAccount] of an account.
func (c *Client) ThawAccount(ctx context.Context, id uuid.UUID) (a *cardvault.Account, err error) {
	err = c.call(ctx, &request{Call: "unfreeze", Account: id}, reply{result: &a})
	return a, err
}

// CloseAccount is [cardvault.Vault.CloseAccount] of an account.
func (c *Client) CloseAccount(ctx context.Context, id uuid.UUID) (a *cardvault.Account, err error) {
	err = c.call(ctx, &request{Call: "close", Account: id}, reply{result: &a})
	return a, err
}

// Accounts returns the accounts that can be read, oldest first.
func (c *Client) Accounts(ctx context.Context) (all []*cardvault.Account, err error) {
	err = c.call(ctx, &request{Call: "accounts"}, reply{result: &all})
	return all, err
}

// Merchants returns the merchants of an account that can be read, oldest first. The zero id is the
// first account.
func (c *Client) Merchants(ctx context.Context, account uuid.UUID) (all []*cardvault.Merchant, err error) {
	err = c.call(ctx, &request{Call: "merchants", Account: account}, reply{result: &all})
	return all, err
}

// CreateMerchant is [cardvault.Vault.CreateMerchant] of an account.
func (c *Client) CreateMerchant(ctx context.Context, account uuid.UUID, name string) (m *cardvault.Merchant, err error) {
	err = c.call(ctx, &request{Call: "create-merchant", Account: account, Name: name}, reply{result: &m})
	return m, err
}

// RotatePaymentSecret is [cardvault.Vault.RotatePaymentSecret] of an account.
func (c *Client) RotatePaymentSecret(ctx context.Context, account, merchant uuid.UUID) (*cardvault.PaymentSecret, error) {
	var made madeSecret
	if err := c.call(ctx, &request{Call: "rotate-secret", Account: account, ID: merchant, Confirm: true}, reply{result: &made}); err != nil {
		return nil, err
	}
	if made.Secret == nil {
		return nil, errNoResult
	}
	made.Secret.Secret = receive.NewSharedSecret([]byte(made.Text))
	return made.Secret, nil
}

// RevokePaymentSecret is [cardvault.Vault.RevokePaymentSecret] of an account.
func (c *Client) RevokePaymentSecret(ctx context.Context, account, merchant uuid.UUID, keyID string) error {
	return c.call(ctx, &request{Call: "revoke-secret", Account: account, ID: merchant, KeyID: keyID}, reply{})
}

// RevokePreviousPaymentSecret is [cardvault.Vault.RevokePreviousPaymentSecret] of an account.
func (c *Client) RevokePreviousPaymentSecret(ctx context.Context, account, merchant uuid.UUID) error {
	return c.call(ctx, &request{Call: "revoke-previous-secret", Account: account, ID: merchant}, reply{})
}

// CreateAPIKey is [cardvault.Vault.CreateAPIKey] of an account.
func (c *Client) CreateAPIKey(ctx context.Context, account uuid.UUID, label string, scopes []cardvault.Scope, opts *cardvault.APIKeyOptions) (*cardvault.APIKey, error) {
	if opts == nil {
		opts = new(cardvault.APIKeyOptions)
	}
	var made madeKey
	if err := c.call(ctx, &request{Call: "create-key", Account: account, Name: label, Key: &newKey{scopes, *opts}, Confirm: true}, reply{result: &made}); err != nil {
		return nil, err
	}
	if made.Key == nil {
		return nil, errNoResult
	}
	made.Key.Text = cardvault.NewAPIKeyText([]byte(made.Text))
	return made.Key, nil
}

var errNoResult = errors.New("the server has given no result")

// APIKeys returns the API keys of an account that can be read, oldest first. The zero id is the
// first account.
func (c *Client) APIKeys(ctx context.Context, account uuid.UUID) (all []*cardvault.APIKey, err error) {
	err = c.call(ctx, &request{Call: "api-keys", Account: account}, reply{result: &all})
	return all, err
}

// DeleteAPIKey is [cardvault.Vault.DeleteAPIKey] of an account.
func (c *Client) DeleteAPIKey(ctx context.Context, account, id uuid.UUID) error {
	return c.call(ctx, &request{Call: "revoke", Account: account, ID: id}, reply{})
}

// AuditPublicKeys is [cardvault.Vault.AuditPublicKeys].
func (c *Client) AuditPublicKeys(ctx context.Context) (keys []ed25519.PublicKey, err error) {
	err = c.call(ctx, &request{Call: "audit-keys"}, reply{result: &keys})
	return keys, err
}

// ExportAudit is [cardvault.Vault.ExportAudit].
func (c *Client) ExportAudit(ctx context.Context, w io.Writer, log AuditLog) error {
	return c.call(ctx, &request{Call: "audit", Audit: &log}, reply{data: w})
}
