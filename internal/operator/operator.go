// Package operator lets a program of the operator call the vault of a running server, over a Unix
// socket in the folder of the vault.
//
// The folder has mode 0700 and belongs to the user of the server, the socket has mode 0600, and
// both sides ask the system for the user at the other end. Another user is refused. So is root, whose
// files would not belong to the server.
//
// A call is one HTTP/1.1 request. Its answer is a stream of frames: data of a backup, progress, a
// result, an error. An answer without a result or an error was cut off. A server that has nothing to
// say sends a sign of life every ten seconds. It asks for the manifest of an increment piece by piece,
// and the pieces follow the request on their way to the server. So does the word of a client that it
// has a new API key or payment secret: without it the secret is revoked again.
package operator

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// ErrNoServer is returned by Dial for a vault that no server offers.
var ErrNoServer = errors.New("no server offers the vault")

// socketName is the name of the socket in the folder of a vault.
const socketName = "operator.sock"

// maxPath is the longest path of a socket on every system.
const maxPath = 103

// check returns the path of the socket in the folder of a vault. It is an error if others than the
// user of this process can reach or replace it.
func check(dir string) (string, error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if uid, ok := owner(info); !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ok || uid != os.Geteuid() {
		return "", fmt.Errorf("%s must be a folder of this user with mode 0700", dir)
	}
	path := filepath.Join(dir, socketName)
	if len(path) > maxPath {
		return "", fmt.Errorf("the path of %s is longer than a socket may have: %d bytes", path, maxPath)
	}

	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return path, nil
	case err != nil:
		return "", err
	case info.Mode().Type() != fs.ModeSocket:
		return "", fmt.Errorf("%s is not a socket", path)
	}
	return path, nil
}

// The sorts of frames.
const (
	frameData     = 'd'
	frameProgress = 'p'
	frameResult   = 'r'
	frameError    = 'e'
	frameAlive    = 'a'
	frameManifest = 'm' // data of the manifest of a backup
	frameWant     = 'w' // the server wants a piece of the manifest of the base, from an offset on
	framePiece    = 'b' // which the client sends; without content at the end of the manifest
	frameTaken    = 't' // the client has the result, which it sends for a secret
)

const (
	maxFrame   = 16 << 20 // bytes
	maxRequest = 64 << 10
	pieceBytes = 64 << 10

	mostCalls = 16 // at a time

	aliveEvery = 10 * time.Second
	silence    = time.Minute      // of a server, after which a client gives up
	pieceTime  = time.Minute      // for a piece of a manifest
	takenTime  = 10 * time.Second // for a client to say that it has a secret
	writeTime  = 10 * time.Minute // for a frame: who reads a backup may be slow
)

func writeFrame(w io.Writer, kind byte, content []byte) error {
	head := append([]byte{kind}, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(head[1:], uint32(len(content)))
	frame := append(head, content...)
	defer clear(frame) // it may have a secret
	_, err := w.Write(frame)
	return err
}

func readFrame(r io.Reader) (kind byte, content []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxFrame {
		return 0, nil, errors.New("a frame is too large")
	}
	content = make([]byte, size)
	_, err = io.ReadFull(r, content)
	return head[0], content, err
}

// A search has the options of Verify and Repair.
type search struct {
	Position   string
	Rate, Most int
}

// A newKey has the options of CreateAPIKey.
type newKey struct {
	Scopes []cardvault.Scope
	cardvault.APIKeyOptions
}

// approvals are what UpdateAccount changes. Nil: it stays.
type approvals struct{ Import, NetworkTokens *bool }

// A madeKey is an API key that was made, with the text that its JSON leaves out.
type madeKey struct {
	Key  *cardvault.APIKey
	Text string
}

// A madeSecret is a payment secret that was made, with the text that its JSON leaves out.
type madeSecret struct {
	Secret *cardvault.PaymentSecret
	Text   string
}

// A handed result has a secret that is shown once. It is withdrawn if the client does not say that it
// has the secret.
type handed interface {
	withdraw(ctx context.Context, v Vault, r *request) error
}

func (k *madeKey) withdraw(ctx context.Context, v Vault, r *request) error {
	return v.DeleteAPIKey(ctx, r.Account, k.Key.ID)
}

func (s *madeSecret) withdraw(ctx context.Context, v Vault, r *request) error {
	return v.RevokePaymentSecret(ctx, r.Account, r.ID, s.Secret.KeyID)
}

// A request names a call, and has its arguments.
type request struct {
	Call    string
	Account uuid.UUID           // zero: the first account
	ID      uuid.UUID           `json:",omitzero"` // of an API key or a merchant
	Term    uint32              `json:",omitempty"`
	Series  cardvault.KeySeries `json:",omitempty"`
	Name    string              `json:",omitempty"` // of a new account or merchant, or the label of an API key
	Search  *search             `json:",omitempty"`
	Key     *newKey             `json:",omitempty"`
	Approve *approvals          `json:",omitempty"`
	Audit   *AuditLog           `json:",omitempty"`

	// Increment says that the client has the manifest of the base, and Manifest that it takes the
	// manifest of the backup.
	Increment, Manifest bool `json:",omitempty"`

	Confirm bool   `json:",omitempty"` // the client says when it has the result
	KeyID   string `json:",omitempty"` // of a payment secret
}

// sentinels are the errors that keep their identity.
var sentinels = map[string]error{
	"not_found": cardvault.ErrNotFound, "unavailable": cardvault.ErrUnavailable, "outcome_unknown": cardvault.ErrOutcomeUnknown,
	"damaged": cardvault.ErrDamaged, "storage_full": cardvault.ErrStorageFull, "term_active": cardvault.ErrTermActive,
	"term_in_use": cardvault.ErrTermInUse, "term_unknown": cardvault.ErrTermUnknown, "rotating": cardvault.ErrRotating,
	"not_enabled": cardvault.ErrNotEnabled, "closed": cardvault.ErrClosed, "moved": cardvault.ErrMoved,
	"frozen": cardvault.ErrFrozen, "account_frozen": cardvault.ErrAccountFrozen, "chain": cardvault.ErrChain, "format": cardvault.ErrFormat,
	"ledger_behind": cardvault.ErrLedgerBehind,
}

// A failure is an error of the server's vault.
type failure struct {
	Text   string
	Is     []string                `json:",omitempty"`
	Fields []*cardvault.FieldError `json:",omitempty"`
}

func failureOf(err error) []byte {
	f := failure{Text: err.Error(), Fields: cardvault.FieldErrors(err)}
	for name, is := range sentinels {
		if errors.Is(err, is) {
			f.Is = append(f.Is, name)
		}
	}
	text, err := json.Marshal(f)
	if err != nil {
		return []byte(`{"Text":"an error without a text"}`)
	}
	return text
}

// Error implements error.
func (f *failure) Error() string { return f.Text }

// Unwrap returns the errors that the failure is.
func (f *failure) Unwrap() (all []error) {
	for _, name := range f.Is {
		if is := sentinels[name]; is != nil {
			all = append(all, is)
		}
	}
	for _, field := range f.Fields {
		all = append(all, field)
	}
	return all
}

const dialTimeout = 5 * time.Second

// sameUser returns an error unless the process at the other end has the same user.
func sameUser(conn net.Conn) error {
	uid, err := peer(conn)
	if err == nil && uid != os.Geteuid() {
		err = fmt.Errorf("user %d is at the other end of the socket", uid)
	}
	return err
}
