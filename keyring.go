package cardvault

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/fips140"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"
)

// KeySize is the size of a key-encryption key, in bytes.
const KeySize = 32

// MinPassphrase is how many characters the passphrase of a new key file has at least.
// Argon2id makes each guess cost some milliseconds, which does not save a word.
const MinPassphrase = 12

// A KeyWrapper holds a key-encryption key, such as one in a KMS. It is called
// when a vault is opened and when keys are rotated, never for a single card.
type KeyWrapper interface {
	// KeyID names the key. The name is stored with what Wrap returns, in clear,
	// and must be the same whenever the vault is opened.
	KeyID() string

	// Wrap encrypts plaintext, of at most some kilobytes, bound to aad.
	Wrap(ctx context.Context, plaintext, aad []byte) ([]byte, error)

	// Unwrap returns what was wrapped, if it was wrapped by this key with the
	// same aad: else an error that wraps ErrWrongKey. Any other error counts
	// as passing.
	Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error)
}

// A Keyring gives a vault its key-encryption key. That key wraps the vault's
// own keys, which are stored with the records; without it nothing stored can
// be read, by anybody. Keep a copy of it apart from the backups of the vault.
type Keyring struct {
	wrapper KeyWrapper
	file    string // path of the key file, if there is one
	made    bool   // KeyFile made it just now
}

// WrappedBy returns a Keyring of a key that is held elsewhere.
func WrappedBy(w KeyWrapper) *Keyring { return &Keyring{wrapper: w} }

// check returns an error for a Keyring that none of the functions here made.
func (k *Keyring) check() error {
	if k == nil || k.wrapper == nil {
		return errors.New("cardvault: a Keyring is needed: see KeyFile, KeyBytes and WrappedBy")
	}
	return nil
}

// source says where the key is from, for an error.
func (k *Keyring) source() string {
	switch {
	case k.made:
		return fmt.Sprintf(" of %s, which was not there and has just been made: is the path right?", k.file)
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
	return &Keyring{wrapper: newLocalKey(key)}, nil
}

// KeyFile returns a Keyring of the key in the file at path. If there is no such
// file, it makes one with a random key, and the last element of its directory
// too. The file is in clear, unless passphrase is not empty: then it is sealed
// under a key made from that with Argon2id. A new file takes a passphrase of
// [MinPassphrase] characters at least.
//
// KeyFile refuses a file that others may use, one of somebody else than this user or
// root, in a folder of somebody else, or one that others may write to; one that has
// another name besides, a symlink; and a passphrase for a file in clear or none for a
// sealed one. Owners and names are not looked at on Windows. [Open] refuses a key
// file that lies in the folder of the vault, where a backup would take both.
//
// A path that is mistyped makes a new key too. It opens no vault that exists:
// [ErrWrongKey] says so then.
func KeyFile(path string, passphrase []byte) (*Keyring, error) {
	if path == "" {
		return nil, fmt.Errorf("%w: the path is empty", ErrKeyFile)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, keyFileError(path, err)
	}
	text, err := readKeyFile(path)
	made := errors.Is(err, fs.ErrNotExist)
	if made {
		if text, err = newKeyFile(passphrase); err == nil {
			text, err = writeKeyFile(path, text)
		}
	}
	if err != nil {
		return nil, keyFileError(path, err)
	}
	key, err := parseKeyFile(text, passphrase)
	if err != nil {
		return nil, keyFileError(path, err)
	}
	return &Keyring{wrapper: newLocalKey(key), file: path, made: made}, nil
}

func keyFileError(path string, err error) error {
	return fmt.Errorf("%w %s: %w", ErrKeyFile, path, err)
}

// A localKey is a KeyWrapper of a key in memory.
type localKey struct {
	aead cipher.AEAD
	id   string
}

func newLocalKey(key []byte) *localKey {
	return &localKey{newAEAD(key), keyID(key)}
}

func newAEAD(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // only for a key that is not of an AES size
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // only for a block that is not AES
	}
	return aead
}

// keyID names a key by a hash: of 256 random bits it tells nothing.
func keyID(key []byte) string {
	sum := sha256.Sum256(append([]byte("cardvault key id\x00"), key...))
	return hex.EncodeToString(sum[:8])
}

func (k *localKey) KeyID() string { return k.id }

func (k *localKey) Wrap(_ context.Context, plaintext, aad []byte) ([]byte, error) {
	return k.aead.Seal(nil, nil, plaintext, aad), nil
}

func (k *localKey) Unwrap(_ context.Context, wrapped, aad []byte) ([]byte, error) {
	plaintext, err := k.aead.Open(nil, nil, wrapped, aad)
	if err != nil {
		return nil, ErrWrongKey
	}
	return plaintext, nil
}

// A key file is a few lines of text:
//
//	cardvault key 1
//	id: 0123456789abcdef
//	kdf: argon2id time=3 memory=65536 threads=4 salt=<base64>
//	key: <base64>
//
// Without the line kdf, key is the key itself. With it, key is nonce,
// ciphertext and tag of AES-256-GCM under the key that Argon2id makes from the
// passphrase; the lines before are the associated data. Memory is in KiB.
// Base64 is the standard alphabet with padding.
const (
	keyFileMagic   = "cardvault key 1\n"
	maxKeyFile     = 4 << 10
	keyFileID      = "id: %s\n"
	keyFileKDF     = "kdf: argon2id time=%d memory=%d threads=%d salt=%s\n"
	keyFileKey     = "key: %s\n"
	maxArgonTime   = 64
	maxArgonMemory = 1 << 20 // 1 GiB: a changed file must not exhaust the machine
	saltSize       = 16
)

var errKeyFileForm = errors.New("is not a key file, or is damaged")

func newKeyFile(passphrase []byte) ([]byte, error) {
	key := make([]byte, KeySize)
	rand.Read(key)
	head := keyFileMagic + fmt.Sprintf(keyFileID, keyID(key))
	if len(passphrase) > 0 {
		if utf8.RuneCount(passphrase) < MinPassphrase {
			return nil, fmt.Errorf("the passphrase of a new file must have %d characters or more", MinPassphrase)
		}
		salt := make([]byte, saltSize)
		rand.Read(salt)
		k := kdf{3, 64 << 10, 4, salt} // RFC 9106, second recommended option
		head += fmt.Sprintf(keyFileKDF, k.time, k.memory, k.threads, base64.StdEncoding.EncodeToString(salt))
		key = newAEAD(k.key(passphrase)).Seal(nil, nil, key, []byte(head))
	}
	return []byte(head + fmt.Sprintf(keyFileKey, base64.StdEncoding.EncodeToString(key))), nil
}

func parseKeyFile(text, passphrase []byte) ([]byte, error) {
	rest, ok := strings.CutPrefix(string(text), keyFileMagic)
	if !ok {
		return nil, errKeyFileForm
	}
	var id, salt64, key64 string
	var k kdf
	if _, err := fmt.Sscanf(rest, keyFileID, &id); err != nil {
		return nil, errKeyFileForm
	}
	_, rest, _ = strings.Cut(rest, "\n")
	sealed := strings.HasPrefix(rest, "kdf:")
	if sealed {
		if _, err := fmt.Sscanf(rest, keyFileKDF, &k.time, &k.memory, &k.threads, &salt64); err != nil {
			return nil, errKeyFileForm
		}
		_, rest, _ = strings.Cut(rest, "\n")
	}
	if _, err := fmt.Sscanf(rest, keyFileKey, &key64); err != nil {
		return nil, errKeyFileForm
	}
	head, _ := bytes.CutSuffix(text, []byte(rest))
	key, err := base64.StdEncoding.Strict().DecodeString(key64)
	if err != nil || rest != fmt.Sprintf(keyFileKey, key64) {
		return nil, errKeyFileForm
	}
	switch {
	case sealed && len(passphrase) == 0:
		return nil, errors.New("is sealed: a passphrase is needed")
	case !sealed && len(passphrase) > 0:
		return nil, errors.New("is not sealed, but a passphrase was given")
	case sealed:
		if k.salt, err = base64.StdEncoding.Strict().DecodeString(salt64); err != nil || !k.valid() {
			return nil, errKeyFileForm
		}
		if key, err = newAEAD(k.key(passphrase)).Open(nil, nil, key, head); err != nil {
			return nil, fmt.Errorf("%w: the passphrase is another, or the file is damaged", ErrWrongKey)
		}
	}
	if len(key) != KeySize || keyID(key) != id {
		return nil, errKeyFileForm
	}
	return key, nil
}

// A kdf holds the parameters of Argon2id.
type kdf struct {
	time, memory uint32
	threads      uint8
	salt         []byte
}

func (k *kdf) valid() bool {
	return k.time >= 1 && k.time <= maxArgonTime && k.threads >= 1 &&
		k.memory >= 8*uint32(k.threads) && k.memory <= maxArgonMemory && len(k.salt) == saltSize
}

func (k *kdf) key(passphrase []byte) (key []byte) {
	// Argon2id is no FIPS algorithm. It guards a file; the key in it is random.
	fips140.WithoutEnforcement(func() {
		key = argon2.IDKey(passphrase, k.salt, k.time, k.memory, k.threads, KeySize)
	})
	return key
}

// readKeyFile reads a regular file that only its owner may use.
func readKeyFile(path string) ([]byte, error) {
	link, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !link.Mode().IsRegular() {
		return nil, errors.New("must be a regular file and no symlink")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// What was opened must be what was looked at.
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !os.SameFile(link, info) {
		return nil, errors.New("was replaced while it was opened")
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("may be used by others (mode %#o): make it 0600", info.Mode().Perm())
	}
	if err := checkOwners(path, f); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err == nil && len(text) > maxKeyFile {
		err = errKeyFileForm
	}
	return text, err
}

// newKeyName begins the name of a key file that is being written.
const newKeyName = ".key-"

// writeKeyFile puts a new key file in place whole and durable, or not at all.
// If another process was faster, it returns the content of that file.
func writeKeyFile(path string, text []byte) ([]byte, error) {
	dir := filepath.Dir(path)
	switch err := os.Mkdir(dir, 0o700); {
	case err == nil:
		if err := syncDir(filepath.Dir(dir)); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrExist):
		return nil, err
	}
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	// A crash leaves this name beside the other, or alone, with a key that nobody uses.
	f, err := os.CreateTemp(dir, newKeyName+"*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	err = f.Chmod(0o600) // a umask may have taken the owner's bits too
	if err == nil {
		_, err = f.Write(text)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(f.Name(), path); errors.Is(err, fs.ErrExist) {
		return readKeyFile(path)
	} else if err != nil {
		return nil, err
	}
	return text, syncDir(dir)
}

// syncDir makes a new name in a directory durable.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // directories cannot be synced there
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// apartFrom returns an error if the key file lies in dir or below it.
func (k *Keyring) apartFrom(dir string) error {
	if k.file == "" {
		return nil
	}
	rel, err := filepath.Rel(resolved(dir), resolved(filepath.Dir(k.file)))
	if err == nil && (rel == "." || filepath.IsLocal(rel)) {
		return keyFileError(k.file, errors.New("must not lie in the folder of the vault: a copy of that folder would take the key along; move it out"))
	}
	return nil
}

// resolved follows the symlinks of a path as far as it exists.
func resolved(path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(resolved(parent), filepath.Base(path))
	}
	return path
}
