package cardvault

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

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

	// MaxWrapped is the size that a [KeyWrapper] must accept: 16 KiB. The keys of a vault have 191
	// bytes at first, and 37 or 38 more with each rotation.
	MaxWrapped = ledger.MaxWrapped
)

// A KeyWrapper holds a key-encryption key, such as one in a KMS. It is called when a vault
// is opened and when keys are rotated, never for a single card. Package envelope makes one
// from a KMS that encrypts little.
type KeyWrapper interface {
	// KeyID names the key. The name is stored with the output of Wrap, in clear, and must
	// be the same whenever the vault is opened.
	KeyID() string

	// Wrap encrypts plaintext, of up to [MaxWrapped] bytes, bound to aad.
	Wrap(ctx context.Context, plaintext, aad []byte) ([]byte, error)

	// Unwrap returns the plaintext of wrapped, if it was wrapped by this key with the same
	// aad: otherwise an error that wraps ErrWrongKey. Any other error is treated as
	// transient: the call may be repeated.
	Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error)
}

// A Keyring gives a vault its key-encryption key. That key wraps the vault's own keys,
// which are stored with the records; without it nothing stored can be read, by anyone. Keep
// a copy of it apart from the backups of the vault.
type Keyring struct {
	wrapper KeyWrapper
	file    string // path of the key file, if there is one
	made    bool   // KeyFile made it just now
}

// WrappedBy returns a Keyring whose key is held elsewhere.
func WrappedBy(w KeyWrapper) *Keyring { return &Keyring{wrapper: w} }

// check returns an error for a Keyring that none of the functions here made.
func (k *Keyring) check() error {
	if k == nil || adapter.IsNil(k.wrapper) {
		return errors.New("cardvault: a vault needs a Keyring with a non-nil KeyWrapper: see KeyFile, KeyBytes and WrappedBy")
	}
	return nil
}

// source says where the key is from, for an error.
func (k *Keyring) source() string {
	switch {
	case k.made:
		return fmt.Sprintf(" of %s, which did not exist and was just created: is the path right?", k.file)
	case k.file != "":
		return " of " + k.file
	}
	return ""
}

// KeyBytes returns a Keyring of a key of [KeySize] random bytes that the caller
// keeps. It copies key.
func KeyBytes(key []byte) (*Keyring, error) {
	if len(key) != KeySize {
		return nil, fmt.Errorf("cardvault: a key has %d bytes, not %d", KeySize, len(key))
	}
	return &Keyring{wrapper: keyfile.NewKey(key)}, nil
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
	return &Keyring{wrapper: key, file: path, made: made}, nil
}

func keyFileError(path string, err error) error {
	return fmt.Errorf("%w %s: %w", ErrKeyFile, path, err)
}

// apartFrom returns an error if the key file lies in dir or below it.
func (k *Keyring) apartFrom(dir string) error {
	if k.file == "" {
		return nil
	}
	if err := keyfile.Apart(k.file, dir); err != nil {
		return keyFileError(k.file, err)
	}
	return nil
}
