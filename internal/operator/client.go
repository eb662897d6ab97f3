package operator

import (
	"bytes"
	"context"
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

	"github.com/cardvault/cardvault"
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
	return &Client{http.Client{Transport: &http.Transport{DialContext: dial, DisableCompression: true}}}, nil
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
	progress func([]byte) error
}

// call makes a call and reads its answer to the end.
func (c *Client) call(ctx context.Context, r *request, to reply) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://operator/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("the server: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // it is only shown
		return fmt.Errorf("the server: %s", bytes.TrimSpace(text))
	}

	ended := false
	for {
		kind, content, err := readFrame(resp.Body)
		switch {
		case err == io.EOF && ended:
			return nil
		case err == io.EOF:
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("the server has cut its answer off: %w", errors.Join(ctx.Err(), err))
		}
		if err := to.take(kind, content); err != nil {
			return err
		}
		ended = ended || kind == frameResult
	}
}

// take takes a frame. It returns the error of the call, or of the caller's writer.
func (to reply) take(kind byte, content []byte) error {
	switch {
	case kind == frameData && to.data != nil:
		_, err := to.data.Write(content)
		return err
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
	req := &request{Call: "verify", Verify: &verification{opts.Position, opts.Rate, opts.Most}}
	err = c.call(ctx, req, reply{result: &r, progress: reported(opts.Progress)})
	return r, err
}

// Backup is [cardvault.Vault.Backup], of a full backup without a manifest.
func (c *Client) Backup(ctx context.Context, w io.Writer, opts *cardvault.BackupOptions) (r *cardvault.BackupReport, err error) {
	if opts.Since != nil || opts.Manifest != nil {
		return nil, errors.New("a running server makes full backups without a manifest: stop it for others, or have it make them")
	}
	err = c.call(ctx, &request{Call: "backup"}, reply{result: &r, data: w, progress: reported(opts.Progress)})
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
