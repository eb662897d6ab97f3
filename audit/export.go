package audit

import (
	"bufio"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"

	"github.com/cardvault/cardvault/internal/wire"
	"github.com/google/uuid"
)

// Format is the version of exports.
const Format = 1

// A header is the first line of an export.
type header struct {
	Format    uint64    `wire:"format"`
	VaultID   uuid.UUID `wire:"vault_id"`
	AccountID uuid.UUID `wire:"account_id"`

	// First is the number of the first checkpoint, 0 without any.
	First uint64 `wire:"first"`

	// Whole says that no checkpoint before First was left out on request.
	Whole bool `wire:"whole"`

	// Keys are the keys of the vault, in their order. The last one signs the end.
	Keys []Signer `wire:"keys"`
}

// A Signer is a key that signs checkpoints: those from First on, up to First of the next key.
type Signer struct {
	PublicKey [ed25519.PublicKeySize]byte `wire:"public_key"`
	First     uint64                      `wire:"first"`
}

// An end is the last line of an export.
type end struct {
	Checkpoints uint64                      `wire:"checkpoints"` // lines
	Open        uint64                      `wire:"open"`        // lines
	Sum         string                      `wire:"sha256"`      // of all lines before this one
	Signature   [ed25519.SignatureSize]byte `wire:"signature"`
}

func (e *end) content() []byte { return []byte("cardvault audit export 1\x00" + e.Sum) }

// A line is one line of an export: one of its fields.
type line struct {
	Export     *header     `wire:"export,left_out"`
	Checkpoint *Checkpoint `wire:"checkpoint,left_out"`
	Record     *Record     `wire:"record,left_out"`
	Open       *Record     `wire:"open,left_out"`
	End        *end        `wire:"end,left_out"`
}

// maxLine bounds a line of an export, in bytes.
const maxLine = 128 << 10

// A Writer writes an export. A vault uses it for ExportAudit.
type Writer struct {
	w    *bufio.Writer
	sign func([]byte) []byte
	sum  hash.Hash
	end  end
	text []byte // of the last line
	err  error
}

// NewWriter begins the export of an account. first is the number of the first checkpoint, 0
// without any. whole says that no checkpoint before it was left out on request. keys are all
// keys of the vault, in their order. key is the last of them, and signs the end.
func NewWriter(w io.Writer, vault, account uuid.UUID, first uint64, whole bool, keys []Signer, key ed25519.PrivateKey) *Writer {
	x := &Writer{w: bufio.NewWriterSize(w, 64<<10), sum: sha256.New()}
	x.sign = func(content []byte) []byte { return ed25519.Sign(key, content) }
	x.write(&line{Export: &header{Format: Format, VaultID: vault, AccountID: account, First: first, Whole: whole, Keys: keys}})
	return x
}

func (x *Writer) write(l *line) {
	if x.err != nil {
		return
	}
	x.text = append(wire.Append(x.text[:0], l), '\n')
	x.sum.Write(x.text)
	_, x.err = x.w.Write(x.text)
}

// Checkpoint writes a checkpoint. Its records follow, in the order of their digests.
func (x *Writer) Checkpoint(c *Checkpoint) error {
	x.end.Checkpoints++
	x.write(&line{Checkpoint: c})
	return x.err
}

// Record writes a record of the last checkpoint.
func (x *Writer) Record(r *Record) error {
	x.write(&line{Record: r})
	return x.err
}

// Open writes a record without a checkpoint. These follow all others.
func (x *Writer) Open(r *Record) error {
	x.end.Open++
	x.write(&line{Open: r})
	return x.err
}

// Close writes the end of the export. It does not close the underlying writer.
func (x *Writer) Close() error {
	x.end.Sum = hex.EncodeToString(x.sum.Sum(nil))
	x.end.Signature = [ed25519.SignatureSize]byte(x.sign(x.end.content()))
	x.write(&line{End: &x.end})
	if x.err == nil {
		x.err = x.w.Flush()
	}
	return x.err
}
