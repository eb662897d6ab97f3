package seal

import (
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"github.com/cardvault/cardvault/internal/erase"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/google/uuid"
)

// A sealed security code is
//
//	format(1) | term(4) | salt(32) | nonce(12) | ciphertext | tag(16)
//
// under a key of its own, AES-256-GCM with
//
//	HKDF-Expand-SHA256(secret, "cardvault 1 security code" 0 | vault | account | token | salt)
//
// which binds it to its token. The secret is a [CodeKey], and term is 0; or, for a
// cache that several processes share, the master key of the term. The salt is
// nowhere but in the cache: once that has forgotten it, the keyring opens no copy
// of the ciphertext. A key for each code also bounds no number of codes.
const (
	codeSalt   = 32
	codeHeader = 1 + 4 + codeSalt
)

// A CodeKey is a secret that lives as long as this process.
type CodeKey struct{ prf *keyedMAC }

// NewCodeKey returns a random key.
func NewCodeKey() *CodeKey {
	key := make([]byte, KeySize)
	_, _ = rand.Read(key) // it never fails
	return &CodeKey{newMAC(key)}
}

// SealCode returns plain sealed under key, or under the master key of the current
// term if key is nil.
func (b *Box) SealCode(key *CodeKey, account, token uuid.UUID, plain []byte) []byte {
	k := b.Keys()
	sealed := make([]byte, codeHeader, codeHeader+overhead-header+len(plain))
	sealed[0] = format
	if key == nil {
		m := k.Masters.Active()
		binary.BigEndian.PutUint32(sealed[1:], m.Number)
		key = &CodeKey{newMAC(hiding.Of(m.Key))}
	}

	_, _ = rand.Read(sealed[5:codeHeader])
	erase.Do(func() {
		sealed = key.aead(k.Vault, account, token, sealed[5:codeHeader]).Seal(sealed, nil, plain, sealed[:5])
	})
	return sealed
}

// OpenCode returns what SealCode was given, in place like OpenShown.
func (b *Box) OpenCode(key *CodeKey, account, token uuid.UUID, sealed []byte) (plain []byte, err error) {
	if len(sealed) < codeHeader || sealed[0] != format {
		return nil, ErrIntegrity
	}

	k := b.Keys()
	if key == nil {
		m := k.master(binary.BigEndian.Uint32(sealed[1:]))
		if m == nil {
			return nil, ErrUnknownTerm
		}
		key = &CodeKey{newMAC(hiding.Of(m.Key))}
	}

	erase.Do(func() {
		aead := key.aead(k.Vault, account, token, sealed[5:codeHeader])
		plain, err = aead.Open(sealed[codeHeader:codeHeader], nil, sealed[codeHeader:], sealed[:5])
	})
	if err != nil {
		return nil, ErrIntegrity
	}
	return plain, nil
}

func (key *CodeKey) aead(vault, account, token uuid.UUID, salt []byte) cipher.AEAD {
	// The first and only block of HKDF-Expand.
	var derived [sha256.Size]byte
	key.prf.into(&derived, func(h *hasher) {
		for _, part := range [][]byte{[]byte("cardvault 1 security code\x00"), vault[:], account[:], token[:], salt, {1}} {
			h.Write(part)
		}
	})
	aead, err := cipher.NewGCMWithRandomNonce(newAES(derived[:]))
	clear(derived[:])
	if err != nil {
		panic(err) // only for a block that is not AES
	}
	return aead
}
