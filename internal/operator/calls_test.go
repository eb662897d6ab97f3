package operator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// wired returns a client of a handler.
func wired(t *testing.T, h http.Handler) *operator.Client {
	t.Helper()
	w, server := bubble.Listen(), &http.Server{Handler: h}
	served := make(chan error, 1)
	go func() { served <- server.Serve(w) }()
	c := operator.NewClient(w.Dial)
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), server.Close()); err != nil {
			t.Error(err)
		}
		<-served
	})
	return c
}

// A slow vault has one call, which takes a while.
type slow struct {
	operator.Vault
	takes time.Duration
}

func (s slow) Scrub(ctx context.Context) error {
	select {
	case <-time.After(s.takes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestSilence: a call may take long as long as the server lives, and ends when it has said nothing for
// a minute.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wired(t, operator.NewHandler(slow{takes: 3 * time.Hour}, slog.New(slog.DiscardHandler)))
		if err := c.Scrub(t.Context()); err != nil {
			t.Errorf("a long call: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := wired(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}))
		began := time.Now()
		err := c.Scrub(t.Context())
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "said nothing for too long") || took != time.Minute {
			t.Errorf("a server that hangs: %v after %v", err, took)
		}
	})
}

// TestTooMany: a server does some calls at a time, and refuses more without doing anything.
func TestTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wired(t, operator.NewHandler(slow{takes: time.Hour}, slog.New(slog.DiscardHandler)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		for range operator.MostCalls {
			go func() { ended <- c.Scrub(ctx) }()
		}
		synctest.Wait()
		if err := c.Scrub(t.Context()); err == nil || !strings.Contains(err.Error(), "too many calls") {
			t.Errorf("one more: %v", err)
		}
		cancel()
		for range operator.MostCalls {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("a call that was given up: %v", err)
			}
		}
		synctest.Wait()
		if err := c.Scrub(t.Context()); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// TestVersion: a call that the server does not have, or arguments that it does not know, are refused
// with a hint.
func TestVersion(t *testing.T) {
	h := operator.NewHandler(slow{}, slog.New(slog.DiscardHandler))
	w := bubble.Listen()
	server := &http.Server{Handler: h}
	go func() { _ = server.Serve(w) }()
	defer server.Close()
	c := http.Client{Transport: &http.Transport{DialContext: w.Dial, DisableKeepAlives: true}}
	for _, body := range []string{
		`{"Call":"explode"}`, `{"Call":"scrub","Later":1}`, `{`, ``, `{"Call":"scrub","Name":"` + strings.Repeat("x", 64<<10) + `"}`,
	} {
		resp, err := c.Post("http://operator/", "", strings.NewReader(body))
		if errors.Is(err, io.ErrClosedPipe) && len(body) > 64<<10 {
			continue // the server has closed the connection before all of it was written
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if resp.Body.Close(); err != nil || resp.StatusCode != 404 || !bytes.Contains(text, []byte("is it of another version?")) {
			t.Errorf("%.40q: status %d, %s, %v", body, resp.StatusCode, text, err)
		}
	}
	if err := wired(t, http.NotFoundHandler()).Scrub(t.Context()); err == nil || !strings.Contains(err.Error(), "404 page not found") {
		t.Errorf("another server: %v", err)
	}
}

// TestMakes: accounts, merchants and keys are made through the socket. Their secrets come once, and are
// in no line of the log.
func TestMakes(t *testing.T) {
	v := vaulttest.New(t)
	var log bytes.Buffer
	c := wired(t, operator.NewHandler(operator.Local{Vault: v}, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))

	a, err := c.CreateAccount(t.Context(), "shop", nil)
	if err != nil || a.Name != "shop" {
		t.Fatalf("%+v, %v", a, err)
	}
	no := false
	a, err = c.UpdateAccount(t.Context(), a.ID, cardvault.AccountUpdate{ImportApproved: &no})
	if err != nil || a.ImportApproved || !a.NetworkTokensActive {
		t.Errorf("%+v, %v", a, err)
	}
	m, err := c.CreateMerchant(t.Context(), a.ID, "books")
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.RotatePaymentSecret(t.Context(), a.ID, m.ID)
	if err != nil || len(s.Secret.Text()) != 43 || s.KeyID == "" {
		t.Errorf("a payment secret: %+v, %v", s, err)
	}
	if all, err := c.Merchants(t.Context(), a.ID); err != nil || len(all) != 2 || all[1].ID != m.ID || len(all[1].Secrets) != 1 || all[1].Secrets[0].KeyID != s.KeyID {
		t.Errorf("merchants %+v, %v", all, err)
	}
	next, err := c.RotatePaymentSecret(t.Context(), a.ID, m.ID)
	if err == nil {
		err = c.RevokePreviousPaymentSecret(t.Context(), a.ID, m.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	if all, err := c.Merchants(t.Context(), a.ID); err != nil || len(all[1].Secrets) != 1 || all[1].Secrets[0].KeyID != next.KeyID || all[1].Secrets[0].ActivateAt.After(time.Now()) {
		t.Errorf("with one secret, in use: %+v, %v", all, err)
	}
	k, err := c.CreateAPIKey(t.Context(), a.ID, "till", []cardvault.Scope{cardvault.ScopeTokensRead}, &cardvault.APIKeyOptions{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := v.Authenticate(t.Context(), k.Text.Text()); err != nil || p.Account.ID != a.ID {
		t.Errorf("the key opens %+v, %v", p, err)
	}
	if all, err := c.APIKeys(t.Context(), a.ID); err != nil || len(all) != 1 || all[0].ID != k.ID || !all[0].Text.IsZero() || all[0].ExpiresAt.IsZero() {
		t.Errorf("keys %+v, %v", all, err)
	}
	for _, secret := range []string{k.Text.Text(), s.Secret.Text(), next.Secret.Text()} {
		if text := log.String(); !strings.Contains(text, "create-key") || !strings.Contains(text, "revoke-previous-secret") || strings.Contains(text, secret) {
			t.Errorf("the log has %s", text)
		}
	}

	if _, err := c.CreateAPIKey(t.Context(), a.ID, "", nil, nil); len(cardvault.FieldErrors(err)) == 0 {
		t.Errorf("a key without scopes: %v", err)
	}
	if _, err := c.RotatePaymentSecret(t.Context(), a.ID, uuid.New()); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("a secret of an unknown merchant: %v", err)
	}
	if err := c.RevokePreviousPaymentSecret(t.Context(), a.ID, uuid.New()); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("the previous secret of an unknown merchant: %v", err)
	}
	if _, err := c.CreateMerchant(t.Context(), uuid.New(), "books"); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("a merchant of an unknown account: %v", err)
	}
}

// A deaf writer has no place for an answer.
type deaf struct{ http.ResponseWriter }

func (deaf) Write([]byte) (int, error) { return 0, errors.New("nobody reads") }

func (d deaf) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// TestSecretWithoutReader: an API key or a payment secret whose text does not reach the client is
// revoked, since nobody has it: the answer cannot be written, or the client dies before it has read it.
func TestSecretWithoutReader(t *testing.T) {
	v := operator.Local{Vault: vaulttest.New(t)}
	h := operator.NewHandler(v, slog.New(slog.DiscardHandler))
	merchants, err := v.Merchants(t.Context(), uuid.Nil)
	if err != nil {
		t.Fatal(err)
	}
	shop := merchants[0].ID
	kept, err := v.RotatePaymentSecret(t.Context(), uuid.Nil, shop)
	if err != nil {
		t.Fatal(err)
	}
	unchanged := func(what string) {
		t.Helper()
		if all, err := v.APIKeys(t.Context(), uuid.Nil); err != nil || len(all) > 0 {
			t.Errorf("%s: keys %+v, %v", what, all, err)
		}
		if all, err := v.Merchants(t.Context(), uuid.Nil); err != nil || len(all[0].Secrets) != 1 || all[0].Secrets[0].KeyID != kept.KeyID {
			t.Errorf("%s: merchants %+v, %v", what, all, err)
		}
	}

	c := wired(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(deaf{w}, r) }))
	if k, err := c.CreateAPIKey(t.Context(), uuid.Nil, "lost", cardvault.AllScopes(), nil); err == nil {
		t.Errorf("key %v without an answer", k.ID)
	}
	if s, err := c.RotatePaymentSecret(t.Context(), uuid.Nil, shop); err == nil {
		t.Errorf("secret %v without an answer", s.KeyID)
	}
	unchanged("not written")

	for _, call := range []string{
		`{"Call":"create-key","Confirm":true,"Name":"lost","Key":{"Scopes":["tokens:read"]}}`,
		fmt.Sprintf(`{"Call":"rotate-secret","Confirm":true,"ID":"%v"}`, shop),
		fmt.Sprintf(`{"Call":"rotate-secret","ID":"%v"}`, shop),
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(dead{w}, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(call)))
		if !bytes.Contains(w.Body.Bytes(), []byte(`"Text":"`)) {
			t.Errorf("%s is answered %q", call, w.Body)
		}
		unchanged(call)
	}

	c = wired(t, h)
	k, err := c.CreateAPIKey(t.Context(), uuid.Nil, "taken", cardvault.AllScopes(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.RotatePaymentSecret(t.Context(), uuid.Nil, shop)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := v.Merchants(t.Context(), uuid.Nil); err != nil || len(all[0].Secrets) != 2 || all[0].Secrets[1].KeyID != s.KeyID {
		t.Errorf("merchants %+v, %v", all, err)
	}
	if err := errors.Join(c.RevokePaymentSecret(t.Context(), uuid.Nil, shop, s.KeyID), c.DeleteAPIKey(t.Context(), uuid.Nil, k.ID)); err != nil {
		t.Error(err)
	}
	unchanged("revoked")
}

// A dead client takes all bytes, and sends no more.
type dead struct{ *httptest.ResponseRecorder }

func (dead) EnableFullDuplex() error          { return nil }
func (dead) SetReadDeadline(time.Time) error  { return nil }
func (dead) SetWriteDeadline(time.Time) error { return nil }

// TestIncrement: the server reads the manifest of the base at the client, piece by piece, and writes
// the manifest of the backup there.
func TestIncrement(t *testing.T) {
	key := bytes.Repeat([]byte{7}, cardvault.KeySize)
	keys, err := cardvault.KeyBytes(key)
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	c := wired(t, operator.NewHandler(operator.Local{Vault: v}, slog.New(slog.DiscardHandler)))
	makes := func(n int) {
		for i := range n {
			if _, err := v.CreateMerchant(t.Context(), fmt.Sprint("merchant ", i), nil); err != nil {
				t.Fatal(err)
			}
		}
	}

	makes(200)
	var full, manifest, increment, later bytes.Buffer
	if _, err := c.Backup(t.Context(), &full, &cardvault.BackupOptions{Manifest: &manifest}); err != nil {
		t.Fatal(err)
	}
	makes(1)
	since := &counted{ReadSeeker: bytes.NewReader(manifest.Bytes())}
	r, err := c.Backup(t.Context(), &increment, &cardvault.BackupOptions{Since: since, Manifest: &later})
	if err != nil || r.Unchanged == 0 || increment.Len() >= full.Len() || later.Len() == 0 || since.read < int64(manifest.Len()) {
		t.Fatalf("%+v, %v, after %d bytes of a manifest", r, err, since.read)
	}
	s := memstore.New()
	restored, err := cardvault.Restore(t.Context(), s, keys, &full, &cardvault.RestoreOptions{Increments: []io.Reader{&increment}})
	if err != nil {
		t.Fatal(err)
	}
	twin, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Mode: cardvault.Sandbox, Thaw: restored.ID})
	if err != nil {
		t.Fatal(err)
	}
	defer twin.Close()
	if all, err := (operator.Local{Vault: twin}).Merchants(t.Context(), uuid.Nil); err != nil || len(all) != 202 {
		t.Errorf("%d merchants are restored, %v", len(all), err)
	}

	edited := bytes.Clone(manifest.Bytes())
	edited[len(edited)-100] ^= 1
	broken := errors.New("broken")
	for name, o := range map[string]*cardvault.BackupOptions{
		"an edited manifest":               {Since: bytes.NewReader(edited)},
		"a manifest that was cut off":      {Since: bytes.NewReader(manifest.Bytes()[:manifest.Len()-1])},
		"a manifest that cannot be read":   {Since: &failingSeeker{err: broken}},
		"a writer of the manifest, broken": {Manifest: failing{broken}},
	} {
		_, err := c.Backup(t.Context(), io.Discard, o)
		if want := cardvault.ErrDamaged; !errors.Is(err, want) && !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Backup(t.Context(), io.Discard, new(cardvault.BackupOptions)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// counted counts the bytes that are read.
type counted struct {
	io.ReadSeeker
	read int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadSeeker.Read(b)
	c.read += int64(n)
	return n, err
}

type failingSeeker struct{ err error }

func (f failingSeeker) Read([]byte) (int, error)       { return 0, f.err }
func (f failingSeeker) Seek(int64, int) (int64, error) { return 0, nil }

// TestServerGone: a server that goes while the client sends a piece of a manifest ends the call.
func TestServerGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wired(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, both, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			wants := append([]byte{'w', 0, 0, 0, 8}, make([]byte, 8)...) // the first piece
			if _, err := fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(wants), wants); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(both, make([]byte, 8<<10)); err != nil {
				t.Error(err)
			}
		}))
		began := time.Now()
		_, err := c.Backup(t.Context(), io.Discard, &cardvault.BackupOptions{Since: bytes.NewReader(make([]byte, 1<<20))})
		if err == nil || time.Since(began) > time.Second {
			t.Errorf("Backup = %v after %v", err, time.Since(began))
		}
	})
}

// TestRepairAndAudit: a repair, and the log of an account and of the vault, come through the socket.
func TestRepairAndAudit(t *testing.T) {
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{7}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), memstore.New(), keys, &cardvault.Options{Audit: new(cardvault.AuditOptions)})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	c := wired(t, operator.NewHandler(operator.Local{Vault: v}, slog.New(slog.DiscardHandler)))
	told := 0
	r, err := c.Repair(t.Context(), &cardvault.RepairOptions{Progress: func(cardvault.RepairProgress) { told++ }})
	if err != nil || r.Records == 0 || told == 0 || len(r.Found) > 0 {
		t.Errorf("%+v, %d times of progress, %v", r, told, err)
	}
	if _, err := c.Repair(t.Context(), &cardvault.RepairOptions{Position: "nowhere"}); len(cardvault.FieldErrors(err)) != 1 {
		t.Errorf("an unknown position: %v", err)
	}
	if _, err := c.CreateMerchant(t.Context(), uuid.Nil, "books"); err != nil {
		t.Fatal(err)
	}

	public, err := c.AuditPublicKeys(t.Context())
	if err != nil || len(public) != 1 {
		t.Fatalf("%d keys, %v", len(public), err)
	}
	for operation, log := range map[string]operator.AuditLog{"vault.repair": {Whole: true}, "merchant.create": {}} {
		var export bytes.Buffer
		if err := c.ExportAudit(t.Context(), &export, log); err != nil {
			t.Fatal(err)
		}
		named := 0
		found := func(r *audit.Record) error {
			if r.Operation == operation && strings.HasPrefix(r.Actor.Name, "vaultctl of ") {
				named++
			}
			return nil
		}
		r, err := audit.Verify(&export, &audit.VerifyOptions{PublicKeys: public, Each: found, Open: found})
		if err != nil || named == 0 || (r.AccountID == uuid.Nil) != log.Whole {
			t.Errorf("%s: %d records of account %v, %v", operation, named, r.AccountID, err)
		}
	}
	if err := c.ExportAudit(t.Context(), failing{io.ErrShortWrite}, operator.AuditLog{}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a writer that fails: %v", err)
	}
}

// A backingUp vault has one call.
type backingUp struct {
	operator.Vault
	backup func(ctx context.Context, w io.Writer, opts *cardvault.BackupOptions) error
}

func (b backingUp) Backup(ctx context.Context, w io.Writer, opts *cardvault.BackupOptions) (*cardvault.BackupReport, error) {
	return nil, b.backup(ctx, w, opts)
}

// TestDeadlines: a client that sends no piece of its manifest, or reads no data, is given up.
func TestDeadlines(t *testing.T) {
	for name, of := range map[string]struct {
		request string
		rest    string // of the body
		backup  func(ctx context.Context, w io.Writer, opts *cardvault.BackupOptions) error
		reads   bool
		after   time.Duration
	}{
		"no piece": {`{"Call":"backup","Increment":true}`, "", func(_ context.Context, _ io.Writer, opts *cardvault.BackupOptions) error {
			_, err := opts.Since.Read(make([]byte, 1))
			return err
		}, true, time.Minute},
		"no reader": {`{"Call":"backup"}`, "0\r\n\r\n", func(ctx context.Context, w io.Writer, _ *cardvault.BackupOptions) error {
			for {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return errors.Join(err, ctx.Err())
				}
			}
		}, false, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan error, 1)
				v := backingUp{backup: func(ctx context.Context, w io.Writer, opts *cardvault.BackupOptions) error {
					err := of.backup(ctx, w, opts)
					ended <- err
					return err
				}}
				w, server := bubble.Listen(), &http.Server{Handler: operator.NewHandler(v, slog.New(slog.DiscardHandler))}
				go func() { _ = server.Serve(w) }()
				defer server.Close()
				conn, err := w.Dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				began := time.Now()
				if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: operator\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n%s", len(of.request), of.request, of.rest); err != nil {
					t.Fatal(err)
				}
				if of.reads {
					go func() { _, _ = io.Copy(io.Discard, conn) }()
				}
				if err := <-ended; err == nil || time.Since(began) != of.after {
					t.Errorf("the call ends with %v after %v, want %v", err, time.Since(began), of.after)
				}
			})
		})
	}
}
