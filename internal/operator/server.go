package operator

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
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
	actor := "vaultctl"
	if u, err := user.Current(); err == nil {
		actor += " of " + u.Username
	}
	h := &handler{vault: Local{v}, log: log, actor: actor}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10,
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
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req request
	d := json.NewDecoder(io.LimitReader(r.Body, 64<<10))
	d.DisallowUnknownFields()
	err := d.Decode(&req)
	call := calls[req.Call]
	if err != nil || r.Method != http.MethodPost || call == nil {
		http.Error(w, "the server does not have this call: is it of another version?", http.StatusNotFound)
		return
	}

	h.log.Info("call of an operator", "call", req.Call)
	ctx := cardvault.WithActor(r.Context(), cardvault.Actor{Name: h.actor})
	a := &answer{w: w}
	result, err := call(ctx, h.vault, &req, a)
	if result != nil {
		text, failed := json.Marshal(result)
		err = errors.Join(err, failed)
		if failed == nil {
			_ = a.frame(frameResult, text) // else the caller has gone
		}
	}
	if err != nil {
		_ = a.frame(frameError, failureOf(err))
	} else if result == nil {
		_ = a.frame(frameResult, []byte("null"))
	}
}

// An answer is written in frames. An error of it ends the context of the call.
type answer struct{ w http.ResponseWriter }

func (a *answer) frame(kind byte, content []byte) error {
	if err := writeFrame(a.w, kind, content); err != nil {
		return err
	}
	return http.NewResponseController(a.w).Flush()
}

// Write implements io.Writer: it writes data of a backup.
func (a *answer) Write(b []byte) (int, error) {
	for from := 0; from < len(b); from += maxFrame {
		if err := a.frame(frameData, b[from:min(from+maxFrame, len(b))]); err != nil {
			return from, err
		}
	}
	return len(b), nil
}

func (a *answer) progress(at any) {
	if text, err := json.Marshal(at); err == nil {
		_ = a.frame(frameProgress, text) // else the context ends
	}
}

// calls are the calls that are safe while a server works. The result may be nil.
var calls = map[string]func(context.Context, Vault, *request, *answer) (any, error){
	"report": func(ctx context.Context, v Vault, _ *request, _ *answer) (any, error) {
		return given(v.KeyReport(ctx))
	},
	"verify": func(ctx context.Context, v Vault, r *request, a *answer) (any, error) {
		opts := &cardvault.VerifyOptions{Progress: func(at cardvault.VerifyProgress) { a.progress(at) }}
		if r.Verify != nil {
			opts.Position, opts.Rate, opts.Most = r.Verify.Position, r.Verify.Rate, r.Verify.Most
		}
		return given(v.Verify(ctx, opts))
	},
	"backup": func(ctx context.Context, v Vault, _ *request, a *answer) (any, error) {
		return given(v.Backup(ctx, a, &cardvault.BackupOptions{Progress: func(at cardvault.BackupProgress) { a.progress(at) }}))
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
	"freeze": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return given(v.FreezeAccount(ctx, r.Account))
	},
	"unfreeze": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return given(v.ThawAccount(ctx, r.Account))
	},
	"close": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return given(v.CloseAccount(ctx, r.Account))
	},
	"accounts": func(ctx context.Context, v Vault, _ *request, _ *answer) (any, error) {
		return v.Accounts(ctx)
	},
	"api-keys": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return v.APIKeys(ctx, r.Account)
	},
	"revoke": func(ctx context.Context, v Vault, r *request, _ *answer) (any, error) {
		return nil, v.DeleteAPIKey(ctx, r.Account, r.ID)
	},
}

// given returns the result of a call, which may come with an error.
func given[T any](result *T, err error) (any, error) {
	if result == nil {
		return nil, err
	}
	return result, err
}
