// Package shares divides the key-encryption key of a vault among custodians. Any k of n shares
// give the key back, and fewer say nothing about it.
//
// A ceremony begins with [Generate], which makes a key and never shows it. Each custodian writes
// down the text of one share, alone. Whenever the vault is opened, k custodians enter their
// shares one after another, and [Collect] returns the key to the process that opens. docs/custody.md
// describes the steps.
//
// The scheme is Shamir's, over the field of the order of P-256. A share has 32 bytes besides its
// label, as many as the key: each share alone is as random as the key. The arithmetic of
// github.com/cloudflare/circl takes other times for other keys: run a ceremony on a machine that
// no other user or program shares.
//
// The package erases keys and shares when it is done with them. Intermediate results of the
// arithmetic are erased only in a program that is built with GOEXPERIMENT=runtimesecret.
package shares

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/erase"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cloudflare/circl/group"
	"github.com/cloudflare/circl/secretsharing"
)

// Limits of a set of shares.
const (
	MinNeeded = 2  // shares that give the key back, at least: one custodian alone never has it
	MaxShares = 32 // shares of a key, at most
)

// Errors of a share that is entered.
var (
	// ErrMistyped is returned for a text that is not a share, such as one with a wrong
	// character.
	ErrMistyped = errors.New("shares: mistyped: the checksum does not match")

	// ErrOtherSet is returned for a share of another set than the shares before it. Each
	// Split makes a new set, also of the same key.
	ErrOtherSet = errors.New("shares: share belongs to another set")

	// ErrTwice is returned for a share that has been entered before.
	ErrTwice = errors.New("shares: share was entered before")

	// ErrForged is returned when shares without a typing error do not give the key of their
	// set. One of them was not made by Split.
	ErrForged = errors.New("shares: these shares do not give the key of their set")
)

// The layout of a share, in bytes.
const (
	version   = 1
	labelSize = 4 // version, needed, total, number
	saltSize  = 4
	checkSize = 6
	setEnd    = labelSize + saltSize + checkSize
	valueEnd  = setEnd + cardvault.KeySize
	sumSize   = 4
	shareSize = valueEnd + sumSize
)

var field = group.P256

// hidden is the embedded value of a Share.
type hidden = hiding.Bytes

// A Share is one custodian's part of a key. It prints nothing, and its methods show what may
// be known. The zero Share belongs to no set.
type Share struct{ hidden }

// label returns byte i of the label.
func (s Share) label(i int) int {
	if b := hiding.Of(s.hidden); b != nil {
		return int(b[i])
	}
	return 0
}

// Needed returns how many shares of the set give the key back.
func (s Share) Needed() int { return s.label(1) }

// Total returns how many shares the set has.
func (s Share) Total() int { return s.label(2) }

// Number returns the number of the share in its set, from 1.
func (s Share) Number() int { return s.label(3) }

// Set names the set, in 20 hexadecimal digits. It is not a secret.
func (s Share) Set() string {
	b := hiding.Of(s.hidden)
	if b == nil {
		return ""
	}
	return hex.EncodeToString(b[labelSize:setEnd])
}

// alphabet has no letters that look like digits. Parse reads I and L as 1, and O as 0.
var alphabet = base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ").WithPadding(base32.NoPadding)

// Text returns the share for its custodian, to be erased by the caller: four lines of five
// groups of four characters.
func (s Share) Text() []byte {
	b := hiding.Of(s.hidden)
	if b == nil {
		return nil
	}
	digits := alphabet.AppendEncode(nil, b)
	defer clear(digits)
	text := make([]byte, 0, 2*len(digits)) // nothing is moved, so nothing stays behind
	for i, c := range digits {
		switch {
		case i > 0 && i%20 == 0:
			text = append(text, '\n')
		case i > 0 && i%4 == 0:
			text = append(text, ' ')
		}
		text = append(text, c)
	}
	return text
}

// maxText limits the text of a share with its spaces, in bytes.
const maxText = 512

// Parse returns the share of a text. Case, spaces, line breaks and dashes do not count. The
// error is [ErrMistyped].
func Parse(text []byte) (Share, error) {
	if len(text) > maxText {
		return Share{}, ErrMistyped
	}
	digits := make([]byte, 0, maxText)
	defer func() { clear(digits[:cap(digits)]) }()
	for _, c := range text {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		switch c {
		case ' ', '\t', '\r', '\n', '-':
		case 'O':
			digits = append(digits, '0')
		case 'I', 'L':
			digits = append(digits, '1')
		default:
			digits = append(digits, c)
		}
	}

	b := make([]byte, alphabet.DecodedLen(len(digits)))
	defer clear(b)
	n, err := alphabet.Decode(b, digits)
	if err != nil || len(digits) != alphabet.EncodedLen(shareSize) || n != shareSize || subtle.ConstantTimeCompare(b[valueEnd:n], checksum(b[:valueEnd])) != 1 {
		return Share{}, ErrMistyped
	}
	s := Share{hiding.New(b[:n])}
	if b[0] != version || !possible(s.Total(), s.Needed()) || s.Number() < 1 || s.Number() > s.Total() {
		s.Wipe()
		return Share{}, fmt.Errorf("%w, or it is the share of another program", ErrMistyped)
	}
	return s, nil
}

// checksum finds typing errors: it misses one in four billion.
func checksum(b []byte) []byte {
	sum := sha256.Sum256(append([]byte("cardvault share\x00"), b...))
	return sum[:sumSize]
}

func possible(n, k int) bool { return MinNeeded <= k && k <= n && n <= MaxShares }

// Generate makes a random key and returns n shares of it. Any k of them give it back. Nothing
// else has the key.
func Generate(n, k int) ([]Share, error) {
	key, err := field.RandomNonZeroScalar(rand.Reader).MarshalBinary()
	if err != nil {
		return nil, err
	}
	defer clear(key)
	return Split(key, n, k)
}

// Split returns n shares of a key of [cardvault.KeySize] random bytes. Any k of them give it back.
// The number k is at least [MinNeeded], and n at most [MaxShares]. The caller erases the key.
//
// One random key in four billion is not a number of the field. Split refuses such a key.
func Split(key []byte, n, k int) ([]Share, error) {
	if len(key) != cardvault.KeySize {
		return nil, fmt.Errorf("shares: a key has %d bytes, not %d", cardvault.KeySize, len(key))
	}
	if !possible(n, k) {
		return nil, fmt.Errorf("shares: %d of %d shares: want %d to %d shares, and at least %d needed", k, n, MinNeeded, MaxShares, MinNeeded)
	}
	secret := field.NewScalar()
	if err := secret.UnmarshalBinary(key); err != nil || secret.IsZero() {
		return nil, errors.New("shares: this key cannot be split: take another random key")
	}

	head := make([]byte, setEnd)
	head[0], head[1], head[2] = version, byte(k), byte(n)
	rand.Read(head[labelSize : labelSize+saltSize])
	copy(head[labelSize+saltSize:], check(key, head))
	var all []Share
	var err error
	erase.Do(func() { all, err = divide(secret, head) })
	return all, err
}

// divide returns the shares of a secret. The head of each has the label and the set.
func divide(secret group.Scalar, head []byte) ([]Share, error) {
	defer secret.SetUint64(0)
	k, n := uint(head[1]), uint(head[2])
	var all []Share
	for i, part := range secretsharing.New(rand.Reader, k-1, secret).Share(n) {
		value, err := part.Value.MarshalBinary()
		if err != nil {
			return nil, err
		}
		b := make([]byte, 0, shareSize)
		b = append(append(b, head...), value...)
		b[3] = byte(i + 1)
		b = append(b, checksum(b)...)
		all = append(all, Share{hiding.New(b)})
		clear(value)
		clear(b)
		part.Value.SetUint64(0)
	}
	return all, nil
}

// check returns the part of a set's name that depends on the key. It distinguishes the key from
// any other, and says nothing else of a key of 256 random bits.
func check(key, head []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("cardvault set of shares\x00"))
	mac.Write(head[:labelSize-1])
	mac.Write(head[labelSize : labelSize+saltSize])
	return mac.Sum(nil)[:checkSize]
}

// combine returns the key of shares, as many as are needed, of one set.
func combine(all []Share) (key []byte, err error) {
	erase.Do(func() {
		parts := make([]secretsharing.Share, len(all))
		for i, s := range all {
			parts[i] = secretsharing.Share{ID: field.NewScalar().SetUint64(uint64(s.Number())), Value: field.NewScalar()}
			if err = parts[i].Value.UnmarshalBinary(hiding.Of(s.hidden)[setEnd:valueEnd]); err != nil {
				err = ErrForged
				return
			}
			defer parts[i].Value.SetUint64(0)
		}
		secret, failure := secretsharing.Recover(uint(len(all)-1), parts)
		if failure != nil {
			err = failure
			return
		}
		defer secret.SetUint64(0)
		key, err = secret.MarshalBinary()
	})
	if err != nil {
		return nil, err
	}

	head := hiding.Of(all[0].hidden)
	if subtle.ConstantTimeCompare(check(key, head), head[labelSize+saltSize:setEnd]) != 1 {
		clear(key)
		return nil, ErrForged
	}
	return key, nil
}
