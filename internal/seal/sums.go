package seal

import (
	"crypto/cipher"
	"encoding/binary"
	"math"

	"github.com/cardvault/cardvault/internal/erase"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Sums are begun, then stand, and may end and begin again. Each is a step.
const sumStates = 3

// Summed reports whether each process writes sums with its changes. They may not have all records
// yet: see SumsStand.
func (k *Keys) Summed() bool { return k.SumSteps%sumStates != 0 }

// SumsStand reports whether the sums have all records.
func (k *Keys) SumsStand() bool { return k.SumSteps%sumStates == 2 }

// SumBegins returns how often sums were begun.
func (k *Keys) SumBegins() uint32 { return (k.SumSteps + 2) / sumStates }

// NextSums returns a copy of k after the next step of sums.
func (k *Keys) NextSums() *Keys {
	next := k.after()
	next.SumSteps++
	return next
}

// WithoutSums returns a copy of k in which sums have ended.
func (k *Keys) WithoutSums() *Keys {
	next := k.after()
	for next.Summed() {
		next.SumSteps++
	}
	return next
}

// SumKeys make the elements of the sums of a vault, and seal sums. They derive from the id key,
// which never changes: a sum needs no new elements when other keys are rotated.
type SumKeys struct {
	mac func(*[elementSize]byte) [16]byte // CMAC
	row func(id uuid.UUID) cipher.AEAD
}

// SumKeys returns the keys of sums.
func (k *Keys) SumKeys() *SumKeys {
	vault, secret := k.Vault, derive(k.IDs.key(), "sum rows", k.Vault, uuid.Nil)
	block := newAES(derive(k.IDs.key(), "sum elements", k.Vault, uuid.Nil))
	var last [16]byte // K1 of CMAC
	block.Encrypt(last[:], last[:])
	carry := byte(0)
	for i := len(last) - 1; i >= 0; i-- {
		last[i], carry = last[i]<<1|carry, last[i]>>7
	}
	last[15] ^= carry * 0x87

	return &SumKeys{
		mac: func(b *[elementSize]byte) [16]byte { return cmac(block, &last, b) },
		row: func(id uuid.UUID) cipher.AEAD {
			aead, err := cipher.NewGCMWithRandomNonce(newAES(derive(secret, "sum row", vault, id)))
			if err != nil {
				panic(err) // only for a block that is not AES
			}
			return aead
		},
	}
}

// elementSize is a multiple of the block size of AES: CMAC needs no padding then.
const elementSize = 96

// Element returns the element of a record: the AES-CMAC (NIST SP 800-38B) of
//
//	kind(1) | class(1) | zero(2) | length of shown(4) | length of secret(4) | zero(4)
//	| due(8) | version(8) | id(16) | account(16) | last 16 bytes of shown | last 16 bytes of secret
//
// Integers are big-endian. The last bytes of a sealed part are its tag, which depends on all of
// it and of the columns that it binds. Bytes that a shorter part lacks are zero.
func (s *SumKeys) Element(r *store.Record) (element [16]byte) {
	var b [elementSize]byte
	b[0], b[1] = byte(r.Kind), r.Class
	binary.BigEndian.PutUint32(b[4:], uint32(len(r.Shown)))
	binary.BigEndian.PutUint32(b[8:], uint32(len(r.Secret)))
	due := int64(math.MinInt64)
	if !r.Due.IsZero() {
		due = r.Due.UnixMicro()
	}
	binary.BigEndian.PutUint64(b[16:], uint64(due))
	binary.BigEndian.PutUint64(b[24:], r.Version)
	copy(b[32:], r.ID[:])
	copy(b[48:], r.Account[:])
	copy(b[64:80], r.Shown[max(0, len(r.Shown)-16):])
	copy(b[80:], r.Secret[max(0, len(r.Secret)-16):])
	return s.mac(&b)
}

func cmac(block cipher.Block, last *[16]byte, b *[elementSize]byte) (mac [16]byte) {
	for at := 0; at < len(b); at += len(mac) {
		for i := range mac {
			mac[i] ^= b[at+i]
		}
		if at+len(mac) == len(b) {
			for i := range mac {
				mac[i] ^= last[i]
			}
		}
		block.Encrypt(mac[:], mac[:])
	}
	return mac
}

// sumFormat is the first byte of a sealed row of sums. No sealed part of another record begins
// with it.
const sumFormat = 0x53

// SumRow returns the cipher of a row of sums.
func (s *SumKeys) SumRow(kind store.Kind, id uuid.UUID) *SumRow {
	return &SumRow{kind, id, s.row(id)}
}

// A SumRow seals and opens the versions of one row of sums, under a key of its own: so the number
// of versions of a row is bounded by the seals under one key, 2^32. A seal needs no grant of a
// Box.
type SumRow struct {
	kind store.Kind
	id   uuid.UUID
	aead cipher.AEAD
}

func (s *SumRow) associated(version uint64) []byte {
	b := append([]byte{'C', 'V', sumFormat, byte(s.kind)}, s.id[:]...)
	return binary.BigEndian.AppendUint64(b, version)
}

// Seal returns a version of the row, sealed.
func (s *SumRow) Seal(version uint64, plain []byte) (sealed []byte) {
	sealed = make([]byte, 1, 1+12+len(plain)+16)
	sealed[0] = sumFormat
	erase.Do(func() { sealed = s.aead.Seal(sealed, nil, plain, s.associated(version)) })
	return sealed
}

// Open returns the plaintext of a version of the row, or ErrIntegrity.
func (s *SumRow) Open(version uint64, sealed []byte) (plain []byte, err error) {
	if len(sealed) == 0 || sealed[0] != sumFormat {
		return nil, ErrIntegrity
	}
	erase.Do(func() { plain, err = s.aead.Open(nil, nil, sealed[1:], s.associated(version)) })
	if err != nil {
		return nil, ErrIntegrity
	}
	return plain, nil
}
