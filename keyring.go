package cardvault

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cardvault/cardvault/internal/adapter"
	"github.com/cardvault/cardvault/internal/keyfile"
	"github.com/cardvault/cardvault/internal/ledger"
)

// Sizes of keys.
const (
	// KeySize is the size of a key-encryption key: 32 bytes.
	KeySize = keyfile.Size

	// MinPassphrase is the least number of characters in the passphrase of a new key file:
	// 12. Argon2id makes each guess cost a few milliseconds, which does not save a word.
	MinPassphrase = keyfile.MinPassphrase

	// MaxWrapped is the most bytes that a [KeyWrapper] may wrap a data key in: 8 KiB.
	MaxWrapped = ledger.MaxWrapped

	maxKeys  = 16  // in a Keyring
	maxKeyID = 255 // bytes of KeyWrapper.KeyID
)

// A KeyWrapper holds a key-encryption key, such as one in a KMS. It encrypts a data key of
// [KeySize] bytes, under which the keys of the vault are sealed. It is called when a vault
// is opened, and when its keys are rotated or its keyring is changed, never for a single
// card. Each call has a context that ends after 10 seconds at most, and has to return then:
// the vault waits for it. Package keytest tests a KeyWrapper.
type KeyWrapper interface {
	// KeyID names the key, in 1 to 255 bytes. The name is stored with the output of Wrap,
	// in clear, and must be the same whenever the vault is opened. No other key has it.
	KeyID() string

	// Wrap encrypts a data key, in 1 to [MaxWrapped] bytes, bound to aad. The vault has
	// Unwrap decrypt the result before it stores that.
	//
	// A KMS without associated data may ignore aad: the vault binds the keys that it seals
	// under the data key as well. With such a KMS, anybody who may encrypt can make a data
	// key and a keyring. So the public key of a key pair must be as hard to get as the
	// private one.
	Wrap(ctx context.Context, key, aad []byte) ([]byte, error)

	// Unwrap returns the data key of wrapped, if it was wrapped by this key with the same
	// aad: otherwise an error that wraps ErrWrongKey. Any other error is treated as
	// transient: the call may be repeated.
	Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error)
}

// A Keyring gives a vault its key-encryption key. That key wraps the vault's own keys,
// which are stored with the records; without it nothing stored can be read, by anyone. Keep
// a copy of it apart from the backups of the vault. Several keys are joined by
// [JoinKeyrings], for a vault that moves from one to another.
type Keyring struct{ held []heldKey }

// A heldKey is one key of a Keyring.
type heldKey struct {
	wrapper KeyWrapper
	file    string // path of the key file, if there is one
	made    bool   // KeyFile made it just now
}

// WrappedBy returns a Keyring whose key is held elsewhere.
func WrappedBy(w KeyWrapper) *Keyring { return &Keyring{[]heldKey{{wrapper: w}}} }

// JoinKeyrings returns a Keyring with the keys of all, 16 at most. A vault is opened by
// whichever of them wraps its keys. If that is not the first, [Open] and [New] have the
// first wrap them anew, in one transaction. From then on the vault needs the first.
//
// A vault that was changed from a key does not return to it by being opened, even if that
// key is the first: a process with an older configuration must not undo a change. It stays
// with its key, and logs a warning. [Vault.ChangeKeyring] changes to any key. So processes
// on one store are first given the new key behind the former, one by one, and then the
// former behind the new.
func JoinKeyrings(first *Keyring, others ...*Keyring) *Keyring {
	joined := new(Keyring)
	for _, k := range append([]*Keyring{first}, others...) {
		if k == nil {
			k = WrappedBy(nil) // check refuses it
		}
		joined.held = append(joined.held, k.held...)
	}
	return joined
}

// check returns an error for a Keyring that no vault can use.
func (k *Keyring) check() error {
	if k == nil || len(k.held) == 0 || slices.ContainsFunc(k.held, func(h heldKey) bool { return adapter.IsNil(h.wrapper) }) {
		return errors.New("cardvault: a vault needs a Keyring with a non-nil KeyWrapper: see KeyFile, KeyBytes and WrappedBy")
	}
	if len(k.held) > maxKeys {
		return fmt.Errorf("cardvault: a Keyring has %d keys, and may have %d", len(k.held), maxKeys)
	}
	seen := map[string]bool{}
	for _, h := range k.held {
		switch id := h.wrapper.KeyID(); {
		case id == "" || len(id) > maxKeyID:
			return fmt.Errorf("cardvault: KeyID of a KeyWrapper has %d bytes: it has 1 to %d", len(id), maxKeyID)
		case seen[id]:
			return fmt.Errorf("cardvault: two keys of a Keyring have the id %q", id)
		default:
			seen[id] = true
		}
	}
	return nil
}

func (k *Keyring) ring() ledger.Ring {
	ring := make(ledger.Ring, len(k.held))
	for i, h := range k.held {
		ring[i] = ledger.KEK{Wrapper: h.wrapper, Source: h.source()}
	}
	return ring
}

// source says where the key is from, for an error.
func (h *heldKey) source() string {
	switch {
	case h.made:
		return fmt.Sprintf(" of %s, which did not exist and was just created: is the path right?", h.file)
	case h.file != "":
		return " of " + h.file
	}
	return ""
}

// KeyBytes returns a Keyring of a key of [KeySize] random bytes that the caller
// keeps. It copies key.
func KeyBytes(key []byte) (*Keyring, error) {
	if len(key) != KeySize {
		return nil, fmt.Errorf("cardvault: a key has %d bytes, not %d", KeySize, len(key))
	}
	return WrappedBy(keyfile.NewKey(key)), nil
}

// KeyFile returns a Keyring of the key in the file at path. If there is no such
// file, it makes one with a random key, and the last element of its directory
// too. The file is in clear if passphrase is empty. Otherwise it is sealed under a key
// derived from passphrase with Argon2id. A new file needs a passphrase of at least
// [MinPassphrase] characters.
//
// KeyFile refuses a file that other users can access, or that belongs to a user other than
// this one or root. It refuses a folder that belongs to such a user, or that others can
// write to. It refuses a file that has a second name, a symlink, a passphrase for a file in
// clear, and a missing one for a sealed file. Owners and names are not checked on Windows.
// [Open] refuses a key file that lies in the folder of the vault, where a backup would take
// both.
//
// A mistyped path makes a new key too. That key opens no existing vault: the error is
// [ErrWrongKey] then.
func KeyFile(path string, passphrase []byte) (*Keyring, error) {
	if path == "" {
		return nil, fmt.Errorf("%w: the path is empty", ErrKeyFile)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, keyFileError(path, err)
	}
	key, made, err := keyfile.Open(path, passphrase)
	if err != nil {
		return nil, keyFileError(path, err)
	}
	return &Keyring{[]heldKey{{key, path, made}}}, nil
}

func keyFileError(path string, err error) error {
	return fmt.Errorf("%w %s: %w", ErrKeyFile, path, err)
}

// apartFrom returns an error if a key file lies in dir or below it.
func (k *Keyring) apartFrom(dir string) error {
	for _, h := range k.held {
		if h.file == "" {
			continue
		}
		if err := keyfile.Apart(h.file, dir); err != nil {
			return keyFileError(h.file, err)
		}
	}
	return nil
}

// ChangeKeyring has the first key of a Keyring wrap the vault's keys, and the Keyring take
// the place of the one with which the vault was opened. It writes once, in one transaction:
// until then the former key opens the vault, and from then on the first key of keys. The
// change may be repeated. After an error that wraps [ErrOutcomeUnknown] either key may be
// the one.
//
// Other processes on the same store notice within 30 seconds in [Vault.Run]. With the new
// key they follow. Without it they go on with the keys that they have in memory and log an
// error; what needs another term, and every RotateKeys, is ErrWrongKey for them.
//
// The former key still opens every backup from before the change. Whoever may have it, and
// a backup, has the keys of the vault: call RotateKeys too, and RotateSeries for each but SeriesID.
//
// Errors: [ErrKeyFile] for a key file inside the folder of a vault of Open; ErrWrongKey for a
// key that does not unwrap what it has wrapped; ErrUnavailable for a key provider that does
// not answer; ErrDamaged for a keyring that was lost or put back.
func (v *Vault) ChangeKeyring(ctx context.Context, keys *Keyring) (err error) {
	defer v.whole().doing(ctx, "change keyring", &err)
	dir := v.dir
	if err := keys.check(); err != nil {
		return err
	}
	if dir != "" {
		if err := keys.apartFrom(dir); err != nil {
			return err
		}
	}
	return v.ledger.ChangeKeyring(ctx, keys.ring())
}
