// Package audit reads and verifies the audit log of a vault without the vault.
//
// A vault writes a [Record] for each call that changes data, uses a card or is refused. Each
// account has a log of its own; the log of the zero account holds calls on the whole vault
// and calls of unknown callers. A process numbers its records for an account in a lane. Every
// second it writes a [Checkpoint] of the records that were stored. The checkpoints of a log
// are one chain, whichever process wrote them, and each is signed with Ed25519.
//
// Vault.ExportAudit writes the log of an account as lines of JSON: a header, each checkpoint
// followed by its records, the records without a checkpoint, and a signed end.
//
//	{"export":{"format":1,"vault_id":…,"account_id":…,"first":1,"keys":…}}
//	{"checkpoint":{"number":1,"lane":…,"first":1,"digests":…,"signature":…, …}}
//	{"record":{"lane":…,"sequence":1, …}}
//	{"open":{"lane":…,"sequence":2, …}}
//	{"end":{"checkpoints":1,"open":1,"sha256":…,"signature":…}}
//
// [Verify] reads an export and names the first record that was edited, removed or swapped.
// It needs the public keys of the vault, one and another for each rotation of its audit key:
// the keys that an export names prove only that the export agrees with itself. A log that ends
// too soon agrees with itself too. Only a checkpoint that was kept elsewhere shows that: see
// [Sink].
package audit

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"

	"github.com/cardvault/cardvault/internal/enum"
	"github.com/cardvault/cardvault/internal/wire"
	"github.com/google/uuid"
)

// An Outcome says how a call ended.
type Outcome uint8

const (
	Success Outcome = iota + 1
	Refused         // for a reason of the caller: nothing was done
	Failed          // for a reason of the vault, or with an unknown outcome
)

var outcomes = enum.Names{Success: "success", Refused: "refused", Failed: "failed"}

// String returns "success", "refused" or "failed".
func (o Outcome) String() string { return outcomes.Of(uint8(o)) }

// MarshalText returns the name, or an error for a number without one.
func (o Outcome) MarshalText() ([]byte, error) { return enum.Text(o, Outcome.String) }

// UnmarshalText reads what MarshalText writes.
func (o *Outcome) UnmarshalText(text []byte) error { return enum.Read(text, o, Outcome.String) }

// An Actor says on whose behalf a call was made. An empty field is unknown.
type Actor struct {
	KeyID     uuid.UUID `wire:"key_id"`  // of the API key
	Name      string    `wire:"name"`    // of a caller that is authenticated without an API key
	Address   string    `wire:"address"` // of the client
	RequestID string    `wire:"request_id"`
}

// A Record is the entry of one call in the audit log. It has no value that the caller sent.
type Record struct {
	Lane      uuid.UUID `wire:"lane"`     // of the process, for the account
	Sequence  uint64    `wire:"sequence"` // in the lane, from 1
	At        time.Time `wire:"at"`       // by the clock of the process, in microseconds
	AccountID uuid.UUID `wire:"account_id"`
	Actor     Actor     `wire:"actor"`

	Operation string    `wire:"operation"`  // such as "token.import"
	ObjectID  uuid.UUID `wire:"object_id"`  // of the token or other object; zero for none, or for a credential
	Purpose   string    `wire:"purpose"`    // of the use of a card
	Detail    string    `wire:"detail"`     // of that, such as destination and status of a forward
	Outcome   Outcome   `wire:"outcome"`    //
	Error     string    `wire:"classifier"` // of a call that did not succeed, such as "not_found"
	Calls     uint64    `wire:"calls"`      // for which the record stands: 1, or many like it that were refused

	// MAC is an HMAC under a key of the vault. Without that key, a digest of a record does not
	// confirm a guess of its content.
	MAC [MACSize]byte `wire:"mac"`
}

const (
	MACSize    = 16 // bytes of Record.MAC
	DigestSize = 16 // bytes of a digest

	// MaxRecords is the largest number of records of a checkpoint.
	MaxRecords = 1024
)

// AppendContent appends the content of a record without its MAC, which MAC and digest are
// computed of.
func (r *Record) AppendContent(b []byte) []byte {
	b = append(b, "cardvault audit record 1\x00"...)
	b = append(b, r.Lane[:]...)
	b = binary.BigEndian.AppendUint64(b, r.Sequence)
	b = binary.BigEndian.AppendUint64(b, uint64(r.At.UnixMicro()))
	b = append(b, r.AccountID[:]...)
	b = append(b, r.Actor.KeyID[:]...)
	b = append(b, r.ObjectID[:]...)
	b = append(b, byte(r.Outcome))
	b = binary.BigEndian.AppendUint64(b, r.Calls)
	for _, s := range [...]string{r.Actor.Name, r.Actor.Address, r.Actor.RequestID, r.Operation, r.Purpose, r.Detail, r.Error} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return b
}

// Digest returns the digest of a record in its checkpoint: the first half of the SHA-256 of
// content and MAC.
func (r *Record) Digest() [DigestSize]byte {
	return DigestOf(append(r.AppendContent(make([]byte, 0, 512)), r.MAC[:]...))
}

// DigestOf returns the digest of a record whose content and MAC are given.
func DigestOf(content []byte) [DigestSize]byte {
	sum := sha256.Sum256(content)
	return [DigestSize]byte(sum[:DigestSize])
}

// MarshalJSON returns the object of a record as it is in an export and in the REST API.
func (r *Record) MarshalJSON() ([]byte, error) { return wire.Append(nil, r), nil }

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Record) UnmarshalJSON(data []byte) error { return wire.Read("audit record", data, r) }

// A Checkpoint is a signed list of the records of a lane that are in the log. The
// checkpoints of an account are numbered from 1, and each has the hash of the one before.
type Checkpoint struct {
	VaultID   uuid.UUID `wire:"vault_id"`
	AccountID uuid.UUID `wire:"account_id"`
	Number    uint64    `wire:"number"`
	At        time.Time `wire:"at"` // by the clock of the process, in microseconds

	// Previous is the Hash of the checkpoint before, zero for the first.
	Previous [sha256.Size]byte `wire:"previous"`

	// Erased is the number of the last checkpoint that was erased with its records because
	// of their age, 0 if none was.
	Erased uint64 `wire:"erased"`

	// Lane and First name the first record: each digest is of the next one in the lane. Both
	// are zero for a checkpoint without records.
	Lane  uuid.UUID `wire:"lane"`
	First uint64    `wire:"first"`

	// Digests has the digests of the records in base64. A digest of zeros says that the
	// sequence number is void: no record was stored under it.
	Digests string `wire:"digests"`

	// Break says that proof is missing before this checkpoint. Nil: none is.
	Break *Break `wire:"break,left_out"`

	Signature [ed25519.SignatureSize]byte `wire:"signature"`
}

// A Break in the chain of checkpoints says where proof is missing. The record that names the
// last checkpoint was damaged or missing, so a checkpoint that was removed with it leaves no
// other trace in the store. Or damage hides which records of a process that died had no
// checkpoint. A vault writes a break and goes on, and [Verify] names it.
type Break struct {
	// Last is the number of the last checkpoint that could be read, whose hash is Previous. 0:
	// none could, and Previous is zero.
	Last uint64 `wire:"last"`

	// Records counts the stored records that no checkpoint proves, at most 20,000 of them. They
	// are not in exports.
	Records uint64 `wire:"records"`
}

// SetDigests sets Digests.
func (c *Checkpoint) SetDigests(digests [][DigestSize]byte) {
	raw := make([]byte, 0, DigestSize*len(digests))
	for _, d := range digests {
		raw = append(raw, d[:]...)
	}
	c.Digests = base64.StdEncoding.EncodeToString(raw)
}

// digests returns the digests of c.
func (c *Checkpoint) digests() ([][DigestSize]byte, error) {
	raw, err := base64.StdEncoding.Strict().DecodeString(c.Digests)
	if err != nil || len(raw)%DigestSize != 0 || len(raw) > MaxRecords*DigestSize {
		return nil, errors.New("audit: digests of a checkpoint are malformed")
	}
	digests := make([][DigestSize]byte, len(raw)/DigestSize)
	for i := range digests {
		copy(digests[i][:], raw[i*DigestSize:])
	}
	return digests, nil
}

// content returns the signed bytes.
func (c *Checkpoint) content() []byte {
	b := append(make([]byte, 0, 256+len(c.Digests)), "cardvault audit checkpoint 1\x00"...)
	b = append(b, c.VaultID[:]...)
	b = append(b, c.AccountID[:]...)
	b = binary.BigEndian.AppendUint64(b, c.Number)
	b = binary.BigEndian.AppendUint64(b, uint64(c.At.UnixMicro()))
	b = append(b, c.Previous[:]...)
	b = binary.BigEndian.AppendUint64(b, c.Erased)
	b = append(b, c.Lane[:]...)
	b = binary.BigEndian.AppendUint64(b, c.First)
	b = append(b, c.Digests...)
	if c.Break != nil { // a zero byte ends the digests, which have none
		b = binary.BigEndian.AppendUint64(append(b, "\x00break"...), c.Break.Last)
		b = binary.BigEndian.AppendUint64(b, c.Break.Records)
	}
	return b
}

// Sign signs a checkpoint.
func (c *Checkpoint) Sign(key ed25519.PrivateKey) {
	c.Signature = [ed25519.SignatureSize]byte(ed25519.Sign(key, c.content()))
}

// SignedBy reports whether one of some keys has signed the checkpoint.
func (c *Checkpoint) SignedBy(keys ...ed25519.PublicKey) bool {
	return signed(keys, c.content(), c.Signature[:])
}

func signed(keys []ed25519.PublicKey, content, signature []byte) bool {
	for _, k := range keys {
		if len(k) == ed25519.PublicKeySize && ed25519.Verify(k, content, signature) {
			return true
		}
	}
	return false
}

// Hash returns the SHA-256 of the checkpoint, by which the next one names it.
func (c *Checkpoint) Hash() [sha256.Size]byte { return sha256.Sum256(c.content()) }

// MarshalJSON returns the object of a checkpoint as it is in an export.
func (c *Checkpoint) MarshalJSON() ([]byte, error) { return wire.Append(nil, c), nil }

// UnmarshalJSON reads what MarshalJSON writes.
func (c *Checkpoint) UnmarshalJSON(data []byte) error { return wire.Read("checkpoint", data, c) }

// A Sink keeps checkpoints outside the reach of everyone who can write to the store.
// The last checkpoint of each account is enough to find with [Verify] that a log was cut
// off, that a store was restored from a backup, or that a whole log is missing.
type Sink interface {
	// Keep keeps a checkpoint until a later one of the account has been kept. A vault
	// passes the checkpoints of an account in their order and may leave some out: the later
	// one stands for them. It may pass one again. Checkpoints of several processes arrive in
	// any order: one with a lower Number than the kept one is not an error and changes
	// nothing. ctx ends after 10 seconds. After an error, a panic or a late return the vault
	// tries again. It is called concurrently for different accounts.
	Keep(ctx context.Context, c *Checkpoint) error
}
