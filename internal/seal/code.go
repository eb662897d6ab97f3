package seal

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"github.com/cardvault/cardvault/internal/erase"
	"github.com/google/uuid"
)

// A sealed security code is
//
//	format(1) | term(4) | salt(32) | nonce(12) | ciphertext | tag(16)
//
// under a key of its own, AES-256-GCM with
//
//	HKDF-SHA256(secret, salt, "cardvault 1 security code" | vault | account | token)
//
// which binds it to its token. The secret is one that the caller keeps in memory
// only, and term is 0; or, for a cache that several processes share, the master
// key of the term. The salt is nowhere but in the cache: once that has forgotten
// it, the keyring opens no copy of the ciphertext.
const (
	codeSalt   = 32
	codeHeader = 1 + 4 + codeSalt
)

// SealCode returns plain sealed under secret, or under the master key of the
// current term if secret is nil.
func (b *Box) SealCode(secret []byte, account, token uuid.UUID, plain []byte) []byte {
	k := b.Keys()
	sealed := make([]byte, codeHeader, codeHeader+overhead-header+len(plain))
	sealed[0] = format
	if secret == nil {
		m := &k.Masters[len(k.Masters)-1]
		binary.BigEndian.PutUint32(sealed[1:], m.Term)
		secret = m.Key[:]
	}
	_, _ = rand.Read(sealed[5:codeHeader]) // it never fails
	erase.Do(func() {
		sealed = codeAEAD(secret, sealed[5:codeHeader], k.Vault, account, token).Seal(sealed, nil, plain, sealed[:5])
	})
	return sealed
}

// OpenCode returns what SealCode was given, in place like OpenShown.
func (b *Box) OpenCode(secret []byte, account, token uuid.UUID, sealed []byte) (plain []byte, err error) {
	if len(sealed) < codeHeader || sealed[0] != format {
		return nil, ErrIntegrity
	}
	k := b.Keys()
	if term := binary.BigEndian.Uint32(sealed[1:]); secret == nil {
		m := k.master(term)
		if m == nil {
			return nil, ErrUnknownTerm
		}
		secret = m.Key[:]
	}
	erase.Do(func() {
		aead := codeAEAD(secret, sealed[5:codeHeader], k.Vault, account, token)
		plain, err = aead.Open(sealed[codeHeader:codeHeader], nil, sealed[codeHeader:], sealed[:5])
	})
	if err != nil {
		return nil, ErrIntegrity
	}
	return plain, nil
}

func codeAEAD(secret, salt []byte, vault, account, token uuid.UUID) cipher.AEAD {
	info := "cardvault 1 security code\x00" + string(vault[:]) + string(account[:]) + string(token[:])
	key, err := hkdf.Key(sha256.New, secret, salt, info, KeySize)
	if err != nil {
		panic(err) // only for a length that HKDF cannot give
	}
	aead, err := cipher.NewGCMWithRandomNonce(newAES(key))
	clear(key)
	if err != nil {
		panic(err) // only for a block that is not AES
	}
	return aead
}
