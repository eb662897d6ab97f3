package cardvault

import (
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/internal/images"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// CardArt returns the image of an id in Token.CardArtURL. The image of an id never changes.
// The handle In(uuid.Nil) has the art of every account: the id is unguessable, and says
// nothing of a card. The error is ErrNotFound for an id that no token shows.
func (v *Vault) CardArt(ctx context.Context, id uuid.UUID) (_ *network.Art, err error) {
	defer v.doing(ctx, "get card art", &err)
	if v.ledger.Closed() {
		return nil, ErrClosed
	}
	if id == uuid.Nil {
		return nil, ErrNotFound
	}

	mediaType, image, err := shelf.Open(ctx, v.rows, id)
	if err != nil {
		return nil, err
	}
	return &network.Art{MediaType: mediaType, Image: image}, nil
}

// shelf holds card art.
var shelf = images.Shelf{Images: kindCardArt, Parts: kindCardArtPart}

// An art is card art of an account, and how it is stored.
type art struct {
	id      uuid.UUID
	asset   string          // the network's id of it
	records []*store.Record // empty if it is stored already
}

// art returns the art of an asset of a network, fetched unless it is there,
// or nil: a card does without.
func (v *Vault) art(ctx context.Context, name, asset string) *art {
	if can, _ := v.opts.powers.Of(name); asset == "" || !can.ArtFetcher {
		return nil
	}

	source := v.rows.Box.Stable(v.rows.ID, "card art source", []byte(name+"\x00"+asset))
	id, err := shelf.Find(ctx, v.rows, source)
	if id != uuid.Nil {
		return &art{id: id, asset: asset}
	}

	var got *network.Art
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, artTimeout)
		defer cancel()
		err = v.ask(ctx, func(ctx context.Context) (err error) {
			got, err = v.opts.powers.ArtFetcher.CardArt(ctx, &network.ArtRequest{Network: name, ID: asset})
			return err
		})
	}

	if err == nil && (got == nil || len(got.Image) > network.MaxCardArt || !images.Valid(got.MediaType, got.Image)) {
		err = errGarbage
	}

	a := &art{asset: asset}
	if err == nil {
		a.id, a.records, err = shelf.New(v.rows, got.MediaType, got.Image, source)
	}
	if err != nil {
		v.log.Warn("card art could not be fetched", "error", leak.Printable(err))
		return nil
	}
	return a
}

// artTimeout limits how long a ready network token waits for its art. Art that was missed
// is fetched at the next look-up.
const artTimeout = 2 * time.Second

// errArtGone is returned in a transaction that finds art gone that was there.
var errArtGone = errors.New("cardvault: card art was deleted meanwhile")

// show makes h show art, which belongs to an asset of the network, and returns the write to
// store with it. A nil art leaves the shown art, unless the network no longer has any.
func (v *Vault) show(h *holding, asset string, a *art) func(store.Tx) error {
	former := h.net.artID
	switch {
	case asset == "":
		h.net.art, h.net.artID = "", uuid.Nil
	case a != nil:
		h.net.art, h.net.artID = a.asset, a.id
	}

	h.token.artID = h.net.artID
	h.token.CardArtURL = v.opts.artURL(h.net.artID)
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
	return func(tx store.Tx) error {
		users, err := tx.Lookup(kindNetworkToken, v.artHash(id), 2)
		switch {
		case errors.Is(err, ErrDamaged): // it stays: a token may show it
			return nil
		case err == nil && len(users) == 1 && users[0].ID == row:
			shelf.Delete(tx, id)
		}
		return err
	}
}

// artURL returns where art is served, or "".
func (o *Options) artURL(id uuid.UUID) string {
	if id == uuid.Nil || o.BaseURL == "" {
		return ""
	}
	return o.BaseURL + "/tokens/card-art/" + id.String()
}
