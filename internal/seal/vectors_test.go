package seal_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/fips140"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// This file holds a second implementation of the format, on primitives alone, written from
// the package comment. Neither implementation may change without the other and the vectors.

type raw []byte

func (b *raw) UnmarshalText(text []byte) (err error) {
	*b, err = hex.AppendDecode(nil, text)
	return err
}

type recordVector struct {
	Name                       string
	Kind                       uint8
	ID, Account, Parent        uuid.UUID
	Class                      uint8
	Due                        string
	Version                    uint64
	Lookup                     []raw
	Part                       string
	Term                       uint32
	Plaintext, Key, Nonce, AAD raw
	Sealed                     raw
}

func (v *recordVector) record(t *testing.T) *store.Record {
	t.Helper()
	r := &store.Record{
		Kind: store.Kind(v.Kind), ID: v.ID, Account: v.Account, Parent: v.Parent, Class: v.Class, Version: v.Version,
	}

	if v.Due != "" {
		due, err := time.Parse(time.RFC3339, v.Due)
		if err != nil {
			t.Fatal(err)
		}
		r.Due = due
	}

	for _, h := range v.Lookup {
		r.Lookup = append(r.Lookup, h)
	}
	return r
}

type vectorFile struct {
	Keys struct {
		Vault      uuid.UUID
		Generation uint32
		Masters    []struct {
			Term uint32
			Key  raw
		}
		ID, Fingerprint, Lookup, Audit raw
	}
	Keyring raw
	Records []recordVector
	Hashes  struct {
		Account     uuid.UUID
		Fingerprint struct {
			PAN string
			Sum raw
		}
		Lookup struct {
			Purpose, Value string
			Sum            raw
		}
		Idempotency struct {
			Parts []string
			Sum   raw
		}
		Count struct {
			Term  uint32
			Count uint64
			Sum   raw
		}
		PRF raw
	}
}

func vectors(t *testing.T) (*vectorFile, *seal.Keys) {
	t.Helper()
	data, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}

	f := new(vectorFile)
	if err := json.Unmarshal(data, f); err != nil {
		t.Fatal(err)
	}

	k := &seal.Keys{
		Vault:        f.Keys.Vault,
		Generation:   f.Keys.Generation,
		IDs:          only(f.Keys.ID),
		Fingerprints: only(f.Keys.Fingerprint),
		Lookups:      only(f.Keys.Lookup),
		Audits:       only(f.Keys.Audit),
		Wrappings:    []seal.Wrapping{{KeyID: "test"}},
	}

	for _, m := range f.Keys.Masters {
		k.Masters = append(k.Masters, seal.Term{Number: m.Term, State: seal.Readable, Key: seal.NewKey(m.Key)})
	}
	k.Masters[len(k.Masters)-1].State = seal.Active
	return f, k
}

// only returns the Series of one key.
func only(key []byte) seal.Series {
	return seal.Series{{Number: 1, State: seal.Active, Key: seal.NewKey(key)}}
}

// made is when the keys of tests are made.
var made = time.Date(2026, 11, 23, 12, 0, 0, 123456000, time.UTC)

func rawHMAC(key, data []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(data)
	return h.Sum(nil)
}

// rawKey computes HKDF-SHA-256 of RFC 5869 with the zero salt and one block of output.
func rawKey(secret []byte, purpose string, vault, account uuid.UUID) []byte {
	prk := rawHMAC(make([]byte, 32), secret)
	info := append([]byte("cardvault 1 "+purpose+"\x00"), vault[:]...)
	info = append(info, account[:]...)
	return rawHMAC(prk, append(info, 1))
}

func rawHeader(term uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{1, 1}, term)
}

func rawAAD(vault uuid.UUID, r *store.Record, part string, term uint32) []byte {
	var b bytes.Buffer
	b.WriteString("CV")
	b.Write(rawHeader(term))
	b.Write([]byte{0, 1})
	b.WriteByte(map[string]byte{"shown": 1, "secret": 2}[part])

	b.Write(vault[:])
	b.WriteByte(byte(r.Kind))
	b.Write(r.Account[:])
	b.Write(r.ID[:])
	b.Write(r.Parent[:])

	if part == "secret" {
		return b.Bytes()
	}

	b.WriteByte(r.Class)
	due := uint64(1) << 63
	if !r.Due.IsZero() {
		due = uint64(r.Due.UnixMicro())
	}
	b.Write(binary.BigEndian.AppendUint64(nil, due))
	b.Write(binary.BigEndian.AppendUint64(nil, r.Version))
	for _, h := range r.Lookup {
		b.WriteByte(byte(len(h)))
		b.Write(h)
	}
	return b.Bytes()
}

// rawGCM calls f with AES-256-GCM under key. The caller chooses the nonce, which FIPS mode
// forbids.
func rawGCM(key []byte, f func(cipher.AEAD)) {
	fips140.WithoutEnforcement(func() {
		block, err := aes.NewCipher(key)
		if err != nil {
			panic(err)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			panic(err)
		}
		f(aead)
	})
}

func rawSeal(key, nonce, plain, aad []byte, term uint32) (sealed []byte) {
	rawGCM(key, func(aead cipher.AEAD) {
		sealed = aead.Seal(append(rawHeader(term), nonce...), nonce, plain, aad)
	})
	return sealed
}

func rawOpen(key, sealed, aad []byte) (plain []byte, err error) {
	rawGCM(key, func(aead cipher.AEAD) {
		plain, err = aead.Open(nil, sealed[6:18], sealed[18:], aad)
	})
	return plain, err
}

func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s\n is %x\nnot %x", what, got, want)
	}
}

func TestRecordVectors(t *testing.T) {
	f, k := vectors(t)
	if len(f.Records) == 0 {
		t.Fatal("no vectors")
	}
	for _, v := range f.Records {
		t.Run(v.Name, func(t *testing.T) {
			r := v.record(t)
			key := rawKey(hiding.Of(k.Masters[v.Term-1].Key), v.Part, k.Vault, r.Account)
			aad := rawAAD(k.Vault, r, v.Part, v.Term)
			same(t, "key", key, v.Key)
			same(t, "associated data", aad, v.AAD)
			same(t, "sealed", rawSeal(key, v.Nonce, v.Plaintext, aad, v.Term), v.Sealed)

			box := boxOf(k)
			plain, err := open(box, r, v.Part, v.Sealed)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "plaintext of the vector", plain, v.Plaintext)

			// The package seals only under its last term.
			now := *k
			now.Masters = slices.Clone(k.Masters[:v.Term])
			now.Masters[v.Term-1].State = seal.Active
			sealed := sealPart(t, boxOf(&now), r, v.Part, v.Plaintext)
			if plain, err = rawOpen(key, sealed, aad); err != nil {
				t.Fatal(err)
			}
			same(t, "plaintext of a new seal", plain, v.Plaintext)
			if got, want := len(sealed), len(plain)+overhead; got != want {
				t.Errorf("%d bytes sealed, want %d", got, want)
			}
			if bytes.Equal(sealed[6:18], v.Nonce) {
				t.Error("the nonce is not random")
			}
		})
	}
}

func TestHashVectors(t *testing.T) {
	f, k := vectors(t)
	box, v := boxOf(k), f.Hashes
	derived := func(secret seal.Key, purpose string) []byte {
		return rawKey(hiding.Of(secret), purpose, k.Vault, v.Account)
	}

	want := rawHMAC(derived(k.Fingerprints[0].Key, "fingerprint"), []byte(v.Fingerprint.PAN))
	same(t, "fingerprint", want, v.Fingerprint.Sum)
	same(t, "Fingerprint", box.Fingerprint(v.Account, []byte(v.Fingerprint.PAN)), want)

	want = rawHMAC(derived(k.Lookups[0].Key, "lookup"), []byte(v.Lookup.Purpose+"\x00"+v.Lookup.Value))[:16]
	same(t, "lookup", want, v.Lookup.Sum)
	same(t, "Lookup", box.Lookup(v.Account, v.Lookup.Purpose, []byte(v.Lookup.Value)), want)

	var framed []byte
	var parts [][]byte
	for _, p := range v.Idempotency.Parts {
		if len(p) > 127 {
			t.Fatal("this test only supports lengths of one byte")
		}
		framed = append(append(framed, byte(len(p))), p...)
		parts = append(parts, []byte(p))
	}
	want = rawHMAC(derived(k.Lookups[0].Key, "idempotency"), framed)
	same(t, "idempotency", want, v.Idempotency.Sum)
	same(t, "Idempotency", box.Idempotency(v.Account, parts...), want)

	master := k.Masters[v.Count.Term-1].Key
	want = rawHMAC(rawKey(hiding.Of(master), "count", k.Vault, uuid.Nil), binary.BigEndian.AppendUint64(nil, v.Count.Count))
	same(t, "count", want, v.Count.Sum)
	same(t, "CountMAC", k.CountMAC(v.Count.Term, v.Count.Count), want)

	block, err := aes.NewCipher(derived(k.IDs[0].Key, "id"))
	if err != nil {
		t.Fatal(err)
	}
	got, want := make([]byte, 16), make([]byte, 16)
	block.Encrypt(want, make([]byte, 16))
	box.PRF(v.Account).Encrypt(got, make([]byte, 16))
	same(t, "prf", want, v.PRF)
	same(t, "PRF", got, want)
}

// TestFormat1Vector: a keyring of format 1 has the same keys, of which no time is known.
func TestFormat1Vector(t *testing.T) {
	f, k := vectors(t)
	parsed, err := seal.ParseFormat1(f.Keyring, "test")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "ParseFormat1", parsed.Marshal(), k.Marshal())
	for n := range f.Keyring {
		if _, err := seal.ParseFormat1(f.Keyring[:n], "test"); err == nil {
			t.Errorf("cut to %d of %d bytes: accepted", n, len(f.Keyring))
		}
	}
}

// keyring2 is testdata/keyring2.json.
type keyring2 struct {
	Keys struct {
		Vault                                       uuid.UUID
		Generation                                  uint32
		Masters, IDs, Fingerprints, Lookups, Audits []termVector
		Wrappings                                   []seal.Wrapping
	}
	Plain, DataKey, Nonce, AAD, Sealed raw
}

type termVector struct {
	Number                     uint32
	State                      string
	Key                        raw
	Created, Closed, Destroyed time.Time
}

// keys returns what ParseKeys should.
func (f *keyring2) keys() *seal.Keys {
	states := map[string]seal.State{"pending": seal.Pending, "active": seal.Active, "readable": seal.Readable, "closed": seal.Closed, "destroyed": seal.Destroyed}
	k := &seal.Keys{Vault: f.Keys.Vault, Generation: f.Keys.Generation, Wrappings: f.Keys.Wrappings}
	for i, s := range []*seal.Series{&k.Masters, &k.IDs, &k.Fingerprints, &k.Lookups, &k.Audits} {
		for _, t := range [][]termVector{f.Keys.Masters, f.Keys.IDs, f.Keys.Fingerprints, f.Keys.Lookups, f.Keys.Audits}[i] {
			*s = append(*s, seal.Term{Number: t.Number, State: states[t.State], Key: seal.NewKey(t.Key), Created: t.Created, Closed: t.Closed, Destroyed: t.Destroyed})
		}
	}
	return k
}

// TestKeyringVector: a keyring of format 2 is read and written as another program does.
func TestKeyringVector(t *testing.T) {
	data, err := os.ReadFile("testdata/keyring2.json")
	if err != nil {
		t.Fatal(err)
	}
	f := new(keyring2)
	if err := json.Unmarshal(data, f); err != nil {
		t.Fatal(err)
	}
	same(t, "Marshal", f.keys().Marshal(), f.Plain)

	parsed, err := seal.ParseKeys(f.Plain)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "ParseKeys", parsed.Marshal(), f.Plain)
	if !slices.Equal(plainly(parsed), plainly(f.keys())) {
		t.Errorf("ParseKeys\n is %v\nnot %v", plainly(parsed), plainly(f.keys()))
	}

	opened, err := seal.OpenKeys(f.DataKey, f.Sealed, f.AAD)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "OpenKeys", opened.Marshal(), f.Plain)
	sealed := seal.SealKeys(f.DataKey, parsed, f.AAD)
	rawGCM(f.DataKey, func(aead cipher.AEAD) {
		plain, err := aead.Open(nil, sealed[:12], sealed[12:], f.AAD)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "plaintext of SealKeys", plain, f.Plain)
	})
}

// plainly returns the keys as values that can be compared.
func plainly(k *seal.Keys) (all []string) {
	all = append(all, fmt.Sprint(k.Vault, k.Generation, k.Wrappings))
	for _, s := range []seal.Series{k.Masters, k.IDs, k.Fingerprints, k.Lookups, k.Audits} {
		for _, t := range s {
			all = append(all, fmt.Sprintf("%d %d %x %v %v %v", t.Number, t.State, hiding.Of(t.Key), t.Created, t.Closed, t.Destroyed))
		}
	}
	return all
}
