// Package images keeps images in sealed parts, each image of an account once.
//
// The id of an image is a keyed hash of its content: unguessable, and the same for the same
// image of an account. Its record has the hash of a source, which finds the image before it
// is fetched again. Parts are its children, and their ids follow from its id.
package images

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// MaxSize bounds an image, in bytes.
const MaxSize = network.MaxCardArt

// A record holds no more than this much of an image.
const (
	partSize = 60 << 10
	maxParts = (MaxSize + partSize - 1) / partSize
)

// maxFound bounds how many images are looked at to find the one of a source.
const maxFound = 16

// A Shelf names the kinds of the records of images, and of their parts.
type Shelf struct{ Images, Parts store.Kind }

const (
	imageType = iota + 1
	imageSum  // SHA-256 of the image
)

// Valid reports whether an image has one of the two media types that are kept, and the
// first bytes of that type.
func Valid(mediaType string, image []byte) bool {
	switch mediaType {
	case "image/png":
		return bytes.HasPrefix(image, []byte("\x89PNG\r\n\x1a\n"))
	case "image/jpeg":
		return bytes.HasPrefix(image, []byte("\xff\xd8\xff"))
	}
	return false
}

// New returns the id of an image and its records, the image's own first.
func (s Shelf) New(rows ledger.Account, mediaType string, image, source []byte) (uuid.UUID, []*store.Record, error) {
	sum := sha256.Sum256(image)
	id := uuid.UUID(rows.Box.Stable(rows.ID, "card art content", sum[:])[:16])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // looks like any version 4

	head := &store.Record{Kind: s.Images, ID: id, Account: rows.ID, Version: 1, Lookup: [][]byte{source}}
	if err := rows.SealShown(head, tlv.Append(tlv.Append(nil, imageType, mediaType), imageSum, sum[:])); err != nil {
		return uuid.Nil, nil, err
	}

	records := []*store.Record{head}
	for chunk := range slices.Chunk(image, partSize) {
		part := &store.Record{Kind: s.Parts, ID: partID(id, len(records)-1), Account: rows.ID, Parent: id, Version: 1}
		if err := rows.SealShown(part, chunk); err != nil {
			return uuid.Nil, nil, err
		}
		records = append(records, part)
	}
	return id, records, nil
}

// partID returns the id of the n-th part of an image.
func partID(id uuid.UUID, n int) uuid.UUID {
	id[0] ^= byte(n + 1)
	return id
}

// Find returns the id of the image of a source, or zero. Images that cannot be read do not
// count.
func (s Shelf) Find(ctx context.Context, rows ledger.Account, source []byte) (id uuid.UUID, err error) {
	err = rows.FindBy(ctx, s.Images, source, maxFound, func(r *store.Record, readable bool) bool {
		if readable && r.Account == rows.ID {
			id = r.ID
		}
		return id == uuid.Nil
	})
	if errors.Is(err, ledger.ErrDamaged) {
		err = nil
	}
	return id, err
}

// Open returns an image. The zero account sees the images of all accounts. The error is
// ledger.ErrNotFound for an id that the account does not have.
func (s Shelf) Open(ctx context.Context, rows ledger.Account, id uuid.UUID) (mediaType string, image []byte, err error) {
	var head *store.Record
	var parts []*store.Record
	err = rows.View(ctx, func(tx store.ReadTx) (err error) {
		parts = nil
		head, err = tx.Get(s.Images, id)
		if errors.Is(err, store.ErrNotFound) && !ledger.Unreadable(err) {
			if left, damaged := tx.Children(id, 1); damaged != nil || len(left) > 0 { // no image is deleted without its parts
				err = cmp.Or(damaged, fmt.Errorf("%w: the parts of an image are there, and it is not", ledger.ErrDamaged))
			}
		}
		if err != nil {
			return err
		}
		for i := range maxParts {
			part, err := tx.Get(s.Parts, partID(id, i))
			if errors.Is(err, store.ErrNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			parts = append(parts, part)
		}
		return nil
	})
	if err == nil && (rows.ID != uuid.Nil && head.Account != rows.ID || errors.Is(rows.In(head.Account).Usable(ctx), ledger.ErrAccountFrozen)) {
		err = ledger.ErrNotFound
	}
	if err != nil {
		return "", nil, err
	}

	r, err := rows.Read(ctx, head)
	if err != nil {
		return "", nil, err
	}
	var sum []byte
	for r.Next() {
		switch r.Tag {
		case imageType:
			mediaType = string(r.Value)
		case imageSum:
			sum = r.Value
		}
	}

	for i, part := range parts {
		if part.Parent != id || part.Account != head.Account {
			return "", nil, fmt.Errorf("%w: part %d of an image belongs to another image", ledger.ErrDamaged, i)
		}
		plain, err := rows.OpenShown(ctx, part)
		if err != nil {
			return "", nil, err
		}
		image = append(image, plain...)
	}

	if got := sha256.Sum256(image); r.Err() != nil || !bytes.Equal(got[:], sum) {
		return "", nil, fmt.Errorf("%w: image cannot be read", ledger.ErrDamaged)
	}
	return mediaType, image, nil
}

// Delete deletes an image. It deletes at most as many parts as an image can have, and no
// parts of another image: the same image has the same parts.
func (s Shelf) Delete(tx store.Tx, id uuid.UUID) {
	tx.Delete(s.Images, id)
	for i := range maxParts {
		tx.Delete(s.Parts, partID(id, i))
	}
}
