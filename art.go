package cardvault

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// CardArt returns the image of an id in Token.CardArtURL. What an id stands for
// never changes. The handle In(uuid.Nil) has the art of every account: the id is
// unguessable, and says nothing of a card. The error is ErrNotFound for an id
// that no token shows.
func (v *Vault) CardArt(ctx context.Context, id uuid.UUID) (mediaType string, image []byte, err error) {
	defer doing("get card art", &err)
	if v.ledger.Closed() {
		return "", nil, ErrClosed
	}
	if id == uuid.Nil {
		return "", nil, ErrNotFound
	}

	var head *store.Record
	var parts []*store.Record
	err = v.rows.View(ctx, func(tx store.ReadTx) (err error) {
		parts = nil
		if head, err = tx.Get(kindCardArt, id); err != nil {
			return err
		}
		for i := range artParts {
			part, err := tx.Get(kindCardArtPart, artPart(id, i))
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
	if err == nil && v.rows.ID != uuid.Nil && head.Account != v.rows.ID {
		err = ErrNotFound
	}
	if err != nil {
		return "", nil, err
	}

	plain, err := v.rows.OpenShown(ctx, head)
	if err != nil {
		return "", nil, err
	}
	var sum []byte
	r := tlv.Read(plain)
	for r.Next() {
		switch r.Tag {
		case artType:
			mediaType = string(r.Value)
		case artSum:
			sum = r.Value
		}
	}

	for i, part := range parts {
		if part.Parent != id || part.Account != head.Account {
			return "", nil, fmt.Errorf("%w: part %d of card art is another's", ErrDamaged, i)
		}
		plain, err := v.rows.OpenShown(ctx, part)
		if err != nil {
			return "", nil, err
		}
		image = append(image, plain...)
	}

	if got := sha256.Sum256(image); r.Err() != nil || !bytes.Equal(got[:], sum) {
		return "", nil, fmt.Errorf("%w: card art cannot be read", ErrDamaged)
	}
	return mediaType, image, nil
}

const (
	artType = iota + 1
	artSum  // SHA-256 of the image
)

// A record holds no more than this much of an image.
const (
	artPartSize = 60 << 10
	artParts    = (MaxCardArt + artPartSize - 1) / artPartSize
)

// artPart is the id of the n-th part of an image.
func artPart(id uuid.UUID, n int) uuid.UUID {
	id[0] ^= byte(n + 1)
	return id
}

// An art is card art of an account, and how it is stored.
type art struct {
	id      uuid.UUID
	asset   string          // the network's id of it
	records []*store.Record // empty if it is stored already
}

// art returns the art of an asset of the network, fetched unless it is there,
// or nil: a card does without.
func (v *Vault) art(ctx context.Context, asset string) *art {
	fetcher, ok := v.opts.Network.(ArtFetcher)
	if asset == "" || !ok {
		return nil
	}

	source := v.rows.Box.Lookup(v.rows.ID, "card art source", []byte(v.opts.Network.Name()+"\x00"+asset))
	var known *art
	err := v.rows.FindBy(ctx, kindCardArt, source, artHeads, func(r *store.Record, readable bool) bool {
		if readable && r.Account == v.rows.ID {
			known = &art{id: r.ID, asset: asset}
		}
		return known == nil
	})

	if known != nil {
		return known
	}
	if errors.Is(err, ErrDamaged) {
		err = nil // it is fetched anew
	}

	var mediaType string
	var image []byte
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, artTimeout)
		defer cancel()
		err = v.ask(ctx, func(ctx context.Context) (err error) {
			mediaType, image, err = fetcher.CardArt(ctx, asset)
			return err
		})
	}

	if err == nil && (len(image) > MaxCardArt || !isImage(mediaType, image)) {
		err = errGarbage
	}

	var a *art
	if err == nil {
		a, err = v.newArt(asset, mediaType, image, source)
	}
	if err != nil {
		v.log.Warn("card art could not be had", "error", leak.Printable(err))
		return nil
	}
	return a
}

// artTimeout is how long a network token that is ready waits for its art. What
// is missed is fetched when it is next looked up.
const artTimeout = 2 * time.Second

// artHeads bounds how many images are looked at to find the one of an asset.
const artHeads = 16

// isImage reports whether an image is of one of the two types, and says so.
func isImage(mediaType string, image []byte) bool {
	switch mediaType {
	case "image/png":
		return bytes.HasPrefix(image, []byte("\x89PNG\r\n\x1a\n"))
	case "image/jpeg":
		return bytes.HasPrefix(image, []byte("\xff\xd8\xff"))
	}
	return false
}

// newArt returns the records of an image. Its id is a keyed hash of what it
// shows: unguessable, the same for the same image, and another for another.
func (v *Vault) newArt(asset, mediaType string, image, source []byte) (*art, error) {
	sum := sha256.Sum256(image)
	id := uuid.UUID(v.rows.Box.Lookup(v.rows.ID, "card art content", sum[:])[:16])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // looks like any version 4

	head := &store.Record{Kind: kindCardArt, ID: id, Account: v.rows.ID, Version: 1, Lookup: [][]byte{source}}
	err := v.rows.SealShown(head, tlv.Append(tlv.Append(nil, artType, mediaType), artSum, sum[:]))
	a := &art{id: id, asset: asset, records: []*store.Record{head}}

	for chunk := range slices.Chunk(image, artPartSize) {
		part := &store.Record{Kind: kindCardArtPart, ID: artPart(id, len(a.records)-1), Account: v.rows.ID, Parent: id, Version: 1}
		if err == nil {
			err = v.rows.SealShown(part, chunk)
		}
		a.records = append(a.records, part)
	}
	return a, err
}

// errArtGone is returned in a transaction that finds art gone that was there.
var errArtGone = errors.New("cardvault: card art has gone meanwhile")

// show makes h show art, which is that of an asset of the network, and returns
// what is to be stored with it. A nil art leaves what is shown, unless the
// network has none any more.
func (v *Vault) show(h *holding, asset string, a *art) func(store.Tx) error {
	former := h.net.artID
	switch {
	case asset == "":
		h.net.art, h.net.artID = "", uuid.Nil
	case a != nil:
		h.net.art, h.net.artID = a.asset, a.id
	}

	h.token.artID = h.net.artID
	h.token.CardArtURL = v.artURL(h.net.artID)
	drop := v.dropArt(h.card.ID, former)

	stays := former == h.net.artID
	return func(tx store.Tx) error {
		if stays {
			return nil
		}
		if a != nil {
			_, err := tx.Get(kindCardArt, a.id)
			switch {
			case err == nil:
			case !errors.Is(err, store.ErrNotFound):
				return err
			case len(a.records) == 0:
				return errArtGone
			default:
				for _, r := range a.records {
					tx.Put(r)
				}
			}
		}
		return drop(tx)
	}
}

// dropArt returns what deletes art with the last token that shows it.
func (v *Vault) dropArt(row, id uuid.UUID) func(store.Tx) error {
	if id == uuid.Nil {
		return func(store.Tx) error { return nil }
	}
	hash := v.artHash(id)
	return func(tx store.Tx) error {
		users, err := tx.Lookup(kindNetworkToken, hash, 2)
		switch {
		case errors.Is(err, ErrDamaged): // it stays: somebody may show it
			return nil
		case err == nil && len(users) == 1 && users[0].ID == row:
			tx.Delete(kindCardArt, id)
			for i := range artParts { // not more: what shows the same makes the same records again
				tx.Delete(kindCardArtPart, artPart(id, i))
			}
		}
		return err
	}
}

// artURL is where art is served.
func (c *core) artURL(id uuid.UUID) string {
	if id == uuid.Nil || c.opts.BaseURL == "" {
		return ""
	}
	return c.opts.BaseURL + "/tokens/card-art/" + id.String()
}
