package keyfile

import (
	"bytes"
	"crypto/fips140"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/cardvault/cardvault/internal/ledger"
	"golang.org/x/crypto/argon2"
)

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
	magic          = "cardvault key 1\n"
	idLine         = "id: %s\n"
	kdfLine        = "kdf: argon2id time=%d memory=%d threads=%d salt=%s\n"
	keyLine        = "key: %s\n"
	maxSize        = 4 << 10
	maxArgonTime   = 64
	maxArgonMemory = 1 << 20 // 1 GiB: a changed file must not exhaust the machine
	saltSize       = 16
)

var errForm = errors.New("is not a key file, or is damaged")

// ErrSealed is returned for a file that is sealed, without a passphrase.
var ErrSealed = errors.New("is sealed: a passphrase is needed")

// newText returns the text of a file with a new key.
func newText(passphrase []byte) ([]byte, error) {
	key := make([]byte, Size)
	rand.Read(key)
	return textOf(key, passphrase)
}

// textOf returns the text of a new file with a key.
func textOf(key, passphrase []byte) ([]byte, error) {
	head := magic + fmt.Sprintf(idLine, keyID(key))

	if len(passphrase) > 0 {
		if utf8.RuneCount(passphrase) < MinPassphrase {
			return nil, fmt.Errorf("the passphrase of a new file must have %d characters or more", MinPassphrase)
		}
		salt := make([]byte, saltSize)
		rand.Read(salt)
		k := kdf{3, 64 << 10, 4, salt} // RFC 9106, second recommended option
		head += fmt.Sprintf(kdfLine, k.time, k.memory, k.threads, base64.StdEncoding.EncodeToString(salt))
		key = newAEAD(k.key(passphrase)).Seal(nil, nil, key, []byte(head))
	}

	return []byte(head + fmt.Sprintf(keyLine, base64.StdEncoding.EncodeToString(key))), nil
}

// parse returns the key in the text of a file.
func parse(text, passphrase []byte) ([]byte, error) {
	rest, ok := strings.CutPrefix(string(text), magic)
	if !ok {
		return nil, errForm
	}

	// The lines are read as they are written, and the last one is all that is left.
	var id, salt64, key64 string
	var k kdf
	if _, err := fmt.Sscanf(rest, idLine, &id); err != nil {
		return nil, errForm
	}
	_, rest, _ = strings.Cut(rest, "\n")
	sealed := strings.HasPrefix(rest, "kdf:")
	if sealed {
		if _, err := fmt.Sscanf(rest, kdfLine, &k.time, &k.memory, &k.threads, &salt64); err != nil {
			return nil, errForm
		}
		_, rest, _ = strings.Cut(rest, "\n")
	}
	if _, err := fmt.Sscanf(rest, keyLine, &key64); err != nil {
		return nil, errForm
	}

	head, _ := bytes.CutSuffix(text, []byte(rest))
	key, err := base64.StdEncoding.Strict().DecodeString(key64)
	if err != nil || rest != fmt.Sprintf(keyLine, key64) {
		return nil, errForm
	}

	switch {
	case sealed && len(passphrase) == 0:
		return nil, ErrSealed
	case !sealed && len(passphrase) > 0:
		return nil, errors.New("is not sealed, but a passphrase was given")
	case sealed:
		if k.salt, err = base64.StdEncoding.Strict().DecodeString(salt64); err != nil || !k.valid() {
			return nil, errForm
		}
		if key, err = newAEAD(k.key(passphrase)).Open(nil, nil, key, head); err != nil {
			return nil, fmt.Errorf("%w: the passphrase is wrong, or the file is damaged", ledger.ErrWrongKey)
		}
	}

	if len(key) != Size || keyID(key) != id {
		return nil, errForm
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
	// Argon2id is not a FIPS algorithm. It guards a file; the key in it is random.
	fips140.WithoutEnforcement(func() {
		key = argon2.IDKey(passphrase, k.salt, k.time, k.memory, k.threads, Size)
	})
	return key
}
