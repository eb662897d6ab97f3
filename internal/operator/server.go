package operator

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"sync"
	"time"

	"github.com/cardvault/cardvault"
)

// Listen makes the socket in the folder of a vault that this process has open. It removes a socket
// that a killed process has left.
func Listen(dir string) (net.Listener, error) {
	path, err := check(dir)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// trusted accepts connections of processes of the same user alone.
type trusted struct {
	net.Listener
	log *slog.Logger
}

func (l trusted) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		err = sameUser(conn)
		if err == nil {
			return conn, nil
		}
		l.log.Warn("a connection to the operator's socket was refused", "error", err)
		_ = conn.Close()
	}
}

// Serve answers calls for the vault until ctx ends, and closes the listener of Listen. Calls under
// way are cut off then.
func Serve(ctx context.Context, listener net.Listener, v *cardvault.Vault, log *slog.Logger) error {
	server := &http.Server{Handler: newHandler(Local{v}, log), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(trusted{listener, log}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

type handler struct {
	vault Vault
	log   *slog.Logger
	actor string
	calls chan struct{} // has the calls under way
}

func newHandler(v Vault, log *slog.Logger) *handler {
	actor := "vaultctl"
	if u, err := user.Current(); err == nil {
		actor += " of " + u.Username
	}
	return &handler{vault: v, log: log, actor: actor, calls: make(chan struct{}, mostCalls)}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req request
	d := json.NewDecoder(io.LimitReader(r.Body, maxRequest))
	d.DisallowUnknownFields()
	err := d.Decode(&req)
	call := calls[req.Call]
	if err != nil || r.Method != http.MethodPost || call == nil {
		http.Error(w, "the server does not have this call: is it of another version?", http.StatusNotFound)
		return
	}
	select {
	case h.calls <- struct{}{}:
		defer func() { <-h.calls }()
	default:
		http.Error(w, "the server has too many calls of operators under way: repeat this later", http.StatusServiceUnavailable)
		return
	}

	h.log.Info("call of an operator", "call", req.Call)
	a := &answer{w: w, control: http.NewResponseController(w), body: io.MultiReader(d.Buffered(), r.Body)}
	if req.Increment || req.Confirm {
		err = a.control.EnableFullDuplex()
	}
	if err == nil {
		err = a.answers(cardvault.WithActor(r.Context(), cardvault.Actor{Name: h.actor}), call, h.vault, &req)
	}
	if err != nil {
		_ = a.frame(frameError, failureOf(err)) // else the caller has gone
	}
}

// An answer is written in frames. An error of it ends the context of the call.
type answer struct {
	w       http.ResponseWriter
	control *http.ResponseController
	body    io.Reader // of the request, behind its arguments

	mu sync.Mutex // held while a frame is written
}

// answers makes a call, and writes its result.
func (a *answer) answers(ctx context.Context, call method, v Vault, req *request) error {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		a.lives(over)
	}()
	defer func() {
		close(over)
		<-ended
	}()

	result, err := call(ctx, v, req, a)
	if err != nil && result == nil {
		return err
	}
	text, failed := json.Marshal(result)
	defer clear(text) // it may have a secret
	if failed == nil {
		failed = a.frame(frameResult, text)
	}
	if secret, ok := result.(handed); ok {
		if failed == nil {
			failed = a.taken()
		}
		if failed != nil { // the secret is lost
			failed = errors.Join(failed, secret.withdraw(context.WithoutCancel(ctx), v, req))
		}
	}
	return errors.Join(err, failed)
}

// taken waits until the client says that it has the result.
func (a *answer) taken() error {
	if err := a.control.SetReadDeadline(time.Now().Add(takenTime)); err != nil {
		return err
	}
	kind, _, err := readFrame(a.body)
	if err == nil && kind != frameTaken {
		err = errors.New("the client has not said that it has the result")
	}
	return err
}

// lives sends signs of life until over is closed.
func (a *answer) lives(over <-chan struct{}) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if a.mu.TryLock() { // else a frame is under way
				_ = a.write(frameAlive, nil) // else the context ends
				a.mu.Unlock()
			}
		case <-over:
			return
		}
	}
}

func (a *answer) frame(kind byte, content []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.write(kind, content)
}

// write writes a frame. The caller holds a.mu.
func (a *answer) write(kind byte, content []byte) error {
	if err := a.control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	if err := writeFrame(a.w, kind, content); err != nil {
		return err
	}
	return a.control.Flush()
}

// A sink writes frames of one sort, such as the data of a backup.
type sink struct {
	a    *answer
	kind byte
}

// Write implements io.Writer.
func (s sink) Write(b []byte) (int, error) {
	for from := 0; from < len(b); from += maxFrame {
		if err := s.a.frame(s.kind, b[from:min(from+maxFrame, len(b))]); err != nil {
			return from, err
		}
	}
	return len(b), nil
}

// A base is the manifest of the base of an increment. The client has it, and sends a piece of it
// whenever the server asks.
type base struct {
	a     *answer
	at    int64  // of the next piece
	piece []byte // that was not read yet
}

// Seek implements io.Seeker, from the beginning alone.
func (b *base) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart || offset < 0 {
		return 0, errors.ErrUnsupported
	}
	b.at, b.piece = offset, nil
	return offset, nil
}

// Read implements io.Reader.
func (b *base) Read(to []byte) (int, error) {
	if len(b.piece) == 0 {
		if err := b.ask(); err != nil {
			return 0, err
		}
	}
	n := copy(to, b.piece)
	b.piece = b.piece[n:]
	return n, nil
}

// ask asks for the next piece.
func (b *base) ask() error {
	if err := b.a.frame(frameWant, binary.BigEndian.AppendUint64(nil, uint64(b.at))); err != nil {
		return err
	}
	if err := b.a.control.SetReadDeadline(time.Now().Add(pieceTime)); err != nil {
		return err
	}
	kind, piece, err := readFrame(b.a.body)
	switch {
	case err != nil:
		return err
	case kind != framePiece:
		return errors.New("the client has not sent a piece of the manifest")
	case len(piece) == 0:
		return io.EOF
	}
	b.at, b.piece = b.at+int64(len(piece)), piece
	return nil
}

func (a *answer) progress(at any) {
	if text, err := json.Marshal(at); err == nil {
		_ = a.frame(frameProgress, text) // else the context ends
	}
}

// A method returns the result of a call, which may come with an error.
type method func(context.Context, Vault, *request, *answer) (any, error)

// calls are the calls that are safe while a server works.
var calls = map[string]method{
	"report": func(ctx context.Context, v Vault, _ *request, _ *answer) (any, error) {
		return given(v.KeyReport(ctx))
	},
	"verify": func(ctx context.Context, v Vault, r *request, a *answer) (any, error) {
		opts := &cardvault.VerifyOptions{Progress: func(at cardvault.VerifyProgress) { a.progress(at) }}
		if r.Search != nil {
			opts.Position, opts.Rate, opts.Most = r.Search.Position, r.Search.Rate, r.Search.Most
		}
		return given(v.Verify(ctx, opts))
	},
	"repair": func(ctx context.Context, v Vault, r *request, a *answer) (any, error) {
		opts := &cardvault.RepairOptions{Progress: func(at cardvault.RepairProgress) { a.progress(at) }}
		if r.Search != nil {
			opts.Position, opts.Rate, opts.Most = r.Search.Position, r.Search.Rate, r.Search.Most
		}
		return given(v.Repair(ctx, opts))
	},
	"backup": func(ctx context.Context, v Vault, r *request, a *answer) (any, error) {
		opts := &cardvault.BackupOptions{Progress: func(at cardvault.BackupProgress) { a.progress(at) }}
		if r.Increment {
			opts.Since = &base{a: a}
		}
		if r.Manifest {
			opts.Manifest = sink{a, frameManifest}
		}
		return given(v.Backup(ctx, sink{a, frameData}, opts))
	},
	"rotate": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		if r.Series == "" {
			return given(v.RotateKeys(ctx, nil))
		}
		return given(v.RotateSeries(ctx, r.Series, nil))
	},
	"reseal": func(ctx context.Context, v Vault, _ *request, _ *answer) (any, error) {
		return nil, v.Reseal(ctx)
	},
	"retire": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return nil, v.RetireTerm(ctx, r.Term)
	},
	"scrub": func(ctx context.Context, v Vault, _ *request, _ *answer) (any, error) {
		return nil, v.Scrub(ctx)
	},
	"begin-sums": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		opts := new(cardvault.BeginSumsOptions)
		if r.Search != nil {
			opts.Rate = r.Search.Rate
		}
		return nil, v.BeginSums(ctx, opts)
	},
	"freeze": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return given(v.FreezeAccount(ctx, r.Account))
	},
	"unfreeze": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return given(v.ThawAccount(ctx, r.Account))
	},
	"close": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return given(v.CloseAccount(ctx, r.Account))
	},
	"create-account": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return given(v.CreateAccount(ctx, r.Name, nil))
	},
	"approve": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		var u cardvault.AccountUpdate
		if r.Approve != nil {
			u.ImportApproved, u.NetworkTokensActive = r.Approve.Import, r.Approve.NetworkTokens
		}
		return given(v.UpdateAccount(ctx, r.Account, u))
	},
	"accounts": func(ctx context.Context, v Vault, _ *request, _ *answer) (any, error) {
		return v.Accounts(ctx)
	},
	"merchants": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return v.Merchants(ctx, r.Account)
	},
	"create-merchant": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return given(v.CreateMerchant(ctx, r.Account, r.Name))
	},
	"rotate-secret": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		s, err := v.RotatePaymentSecret(ctx, r.Account, r.ID)
		if err != nil {
			return nil, err
		}
		return &madeSecret{s, s.Secret.Text()}, nil
	},
	"revoke-secret": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return nil, v.RevokePaymentSecret(ctx, r.Account, r.ID, r.KeyID)
	},
	"revoke-previous-secret": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return nil, v.RevokePreviousPaymentSecret(ctx, r.Account, r.ID)
	},
	"create-key": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		if r.Key == nil {
			r.Key = new(newKey)
		}
		k, err := v.CreateAPIKey(ctx, r.Account, r.Name, r.Key.Scopes, &r.Key.APIKeyOptions)
		if err != nil {
			return nil, err
		}
		return &madeKey{k, k.Text.Text()}, nil
	},
	"api-keys": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return v.APIKeys(ctx, r.Account)
	},
	"revoke": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return nil, v.DeleteAPIKey(ctx, r.Account, r.ID)
	},
	"audit-keys": func(ctx context.Context, v Vault, _ *request, _ *answer) (any, error) {
		return v.AuditPublicKeys(ctx)
	},
	"audit": func(ctx context.Context, v Vault, r *request, a *answer) (any, error) {
		if r.Audit == nil {
			r.Audit = new(AuditLog)
		}
		return nil, v.ExportAudit(ctx, sink{a, frameData}, *r.Audit)
	},
}

// given returns the result of a call, which may come with an error.
func given[T any](result *T, err error) (any, error) {
	if result == nil {
		return nil, err
	}
	return result, err
}
