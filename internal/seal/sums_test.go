package seal_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// cmac is AES-CMAC for whole blocks, through CBC.
func cmac(t *testing.T, key, message []byte) []byte {
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	sub := make([]byte, 16)
	block.Encrypt(sub, sub)
	high := sub[0] >> 7
	for i := range sub {
		sub[i] <<= 1
		if i < 15 {
			sub[i] |= sub[i+1] >> 7
		}
	}
	sub[15] ^= high * 0x87
	b := bytes.Clone(message)
	for i := range sub {
		b[len(b)-16+i] ^= sub[i]
	}
	cipher.NewCBCEncrypter(block, make([]byte, 16)).CryptBlocks(b, b)
	return b[len(b)-16:]
}

// The second implementation of CMAC agrees with the example for AES-256 and 64 bytes of NIST
// SP 800-38B, and the first one with it.
func TestElement(t *testing.T) {
	h := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	key := h("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
	message := h("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710")
	if mac := cmac(t, key, message); !bytes.Equal(mac, h("e1992190549f6ed5696a2c056c315410")) {
		t.Fatalf("CMAC = %x", mac)
	}

	keys := seal.NewKeys(time.Unix(1e9, 0))
	of, err := hkdf.Key(sha256.New, hiding.Of(keys.IDs.Active().Key), nil, "cardvault 1 sum elements\x00"+string(keys.Vault[:])+string(uuid.Nil[:]), 32)
	if err != nil {
		t.Fatal(err)
	}
	r := &store.Record{
		Kind: 5, Class: 3, ID: uuid.UUID{1}, Account: uuid.UUID{2}, Version: 7, Due: time.Unix(1e9, 0),
		Shown: bytes.Repeat([]byte{8}, 40), Secret: []byte{9},
	}
	b := append([]byte{5, 3, 0, 0, 0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0, 0}, binary.BigEndian.AppendUint64(nil, 1e15)...)
	b = binary.BigEndian.AppendUint64(b, 7)
	b = append(append(b, r.ID[:]...), r.Account[:]...)
	b = append(append(b, r.Shown[24:]...), append([]byte{9}, make([]byte, 15)...)...)
	element := keys.SumKeys().Element(r)
	if want := cmac(t, of, b); !bytes.Equal(element[:], want) {
		t.Errorf("element %x, want %x", element, want)
	}
}

// Each column in which two versions of a record can differ changes its element.
func TestElementsDiffer(t *testing.T) {
	keys := seal.NewKeys(time.Unix(1e9, 0)).SumKeys()
	seen := map[[16]byte]int{}
	for i, edit := range []func(*store.Record){
		func(*store.Record) {},
		func(r *store.Record) { r.Kind++ },
		func(r *store.Record) { r.ID[15]++ },
		func(r *store.Record) { r.Account[15]++ },
		func(r *store.Record) { r.Version++ },
		func(r *store.Record) { r.Class++ },
		func(r *store.Record) { r.Due = time.Unix(1, 0) },
		func(r *store.Record) { r.Shown[39]++ },
		func(r *store.Record) { r.Shown = r.Shown[1:] },
		func(r *store.Record) { r.Secret[39]++ },
		func(r *store.Record) { r.Secret = nil },
	} {
		r := &store.Record{Kind: 5, ID: uuid.UUID{1}, Account: uuid.UUID{2}, Version: 1, Shown: make([]byte, 40), Secret: make([]byte, 40)}
		edit(r)
		if other, twice := seen[keys.Element(r)]; twice {
			t.Errorf("records %d and %d have the same element", i, other)
		}
		seen[keys.Element(r)] = i
	}
}

func TestSumRow(t *testing.T) {
	keys := seal.NewKeys(time.Unix(1e9, 0)).SumKeys()
	row := keys.SumRow(5, uuid.UUID{1})
	sealed := row.Seal(3, []byte("sums"))
	if _, is := seal.TermOf(sealed); is {
		t.Error("a row of sums looks like a part that a Box has sealed")
	}
	if plain, err := row.Open(3, sealed); err != nil || string(plain) != "sums" {
		t.Errorf("Open = %q, %v", plain, err)
	}
	for name, open := range map[string]func() ([]byte, error){
		"another version":  func() ([]byte, error) { return row.Open(2, sealed) },
		"another row":      func() ([]byte, error) { return keys.SumRow(5, uuid.UUID{2}).Open(3, sealed) },
		"another kind":     func() ([]byte, error) { return keys.SumRow(6, uuid.UUID{1}).Open(3, sealed) },
		"a part of it":     func() ([]byte, error) { return row.Open(3, sealed[:20]) },
		"nothing":          func() ([]byte, error) { return row.Open(3, nil) },
		"an edited format": func() ([]byte, error) { return row.Open(3, append([]byte{1}, sealed[1:]...)) },
	} {
		if _, err := open(); !errors.Is(err, seal.ErrIntegrity) {
			t.Errorf("Open of %s = %v", name, err)
		}
	}
}
