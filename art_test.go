package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// png returns n bytes that begin like an image, with other content for each n.
func png(n int) []byte {
	image := append([]byte("\x89PNG\r\n\x1a\n"), bytes.Repeat([]byte{byte(n), byte(n >> 8), byte(n >> 16)}, n/3+1)...)
	return image[:n]
}

const baseURL = "https://vault.example"

var withArt = &cardvault.Options{Mode: cardvault.Sandbox, BaseURL: baseURL + "/"}

// art returns the id of the card art in a token's URL.
func (l *lab) art(id uuid.UUID) uuid.UUID {
	l.Helper()
	url := l.get(id).CardArtURL
	art, ok := strings.CutPrefix(url, baseURL+"/tokens/card-art/")
	parsed, err := uuid.Parse(art)
	if !ok || err != nil || parsed.Version() != 4 || parsed.Variant() != uuid.RFC4122 || parsed == id || parsed.String() != art {
		l.Errorf("card art at %q", url)
	}
	return parsed
}

// shows checks the image that an art id names, across all accounts. With a nil
// want it expects no image.
func (l *lab) shows(what string, art uuid.UUID, want []byte) {
	l.Helper()
	got, err := l.In(uuid.Nil).CardArt(l.Context(), art)
	switch {
	case want == nil:
		if !errors.Is(err, cardvault.ErrNotFound) || got != nil {
			l.Errorf("%s: %v, %v", what, got, err)
		}
	case err != nil:
		l.Errorf("%s: %v", what, err)
	case got.MediaType != "image/png" || !bytes.Equal(got.Image, want):
		l.Errorf("%s: %q, %d bytes", what, got.MediaType, len(got.Image))
	}
}

// TestCardArt: art is stored once for all tokens of an account that show it, and deleted
// with the last of them.
func TestCardArt(t *testing.T) {
	for _, size := range []int{8, 1000, 60 << 10, 60<<10 + 1, 200_000, network.MaxCardArt} {
		inLab(t, withArt, func(l *lab) {
			image := png(size)
			l.net.images = map[string][]byte{"gold": image, "the same": image}
			l.net.like.Art = "gold"
			first, second := l.become(active), l.become(active)
			art := l.art(first)
			if l.art(second) != art || len(l.net.asked("CardArt")) != 1 {
				t.Errorf("fetched %d times, as %v and %v", len(l.net.asked("CardArt")), art, l.art(second))
			}
			l.net.like.Art = "the same"
			third := l.become(active)
			if l.art(third) != art {
				t.Error("the same image has two ids")
			}
			l.shows("shown", art, image)

			// Another account has its own id for the same image.
			a, err := l.CreateAccount(l.Context(), "another", nil)
			l.must(err)
			home := l.Vault
			l.Vault = home.In(a.ID)
			far := l.become(active)
			other := l.art(far)
			if other == art {
				t.Error("two accounts share an id")
			}
			l.shows("in the other account", other, image)
			l.shows("in this account", art, image)
			if _, err := l.CardArt(l.Context(), art); !errors.Is(err, cardvault.ErrNotFound) {
				t.Errorf("the other account finds it: %v", err)
			}
			l.Vault = home

			for i, id := range []uuid.UUID{second, first, third} {
				l.shows(fmt.Sprint("after deletion ", i), art, image)
				l.must(l.Vault.Delete(l.Context(), id))
			}
			l.shows("after the last deletion", art, nil)
			l.shows("the other account's art", other, image)
			l.must(l.In(a.ID).Delete(l.Context(), far))
			l.shows("the other account's art after its last deletion", other, nil)
			l.drain()
			l.rows(kindCardArt, art, 0)
			for i := range 9 {
				part := art
				part[0] ^= byte(i + 1)
				l.rows(kindCardArtPart, part, 0)
			}
		})
	}
	inLab(t, withArt, func(l *lab) {
		l.shows("no id", uuid.Nil, nil)
		l.shows("unknown", uuid.New(), nil)
		l.Vault.Close()
		if _, err := l.CardArt(l.Context(), uuid.New()); !errors.Is(err, cardvault.ErrClosed) {
			t.Errorf("of a closed vault: %v", err)
		}
	})
	// Without a base URL, a token shows no art.
	inLab(t, nil, func(l *lab) {
		l.net.images = map[string][]byte{"gold": png(100)}
		l.net.like.Art = "gold"
		if url := l.get(l.become(active)).CardArtURL; url != "" {
			t.Errorf("card art at %q", url)
		}
	})
}

const (
	kindCardArt     store.Kind = 13
	kindCardArtPart store.Kind = 14
)

// rows checks whether a record is stored: want is 0 or 1.
func (l *lab) rows(kind store.Kind, id uuid.UUID, want int) {
	l.Helper()
	l.must(l.store.View(l.Context(), func(tx store.ReadTx) error {
		_, err := tx.Get(kind, id)
		if got := err == nil; got != (want == 1) {
			l.Errorf("record of kind %d: %v", kind, err)
		}
		return nil
	}))
}

// TestCardArtChanges: changed art has another id. The old art is deleted unless other tokens
// show it.
func TestCardArtChanges(t *testing.T) {
	inLab(t, withArt, func(l *lab) {
		gold, black := png(1000), png(100_000)
		l.net.images = map[string][]byte{"gold": gold, "black": black}
		l.net.like.Art = "gold"
		l.pass(2 * time.Hour)
		first, second := l.become(active), l.become(active)
		old := l.art(first)
		change := func(handle, art string) {
			l.net.set(handle, func(t *network.Token) { t.Art = art })
			l.notify(notice{Kind: network.NoticeArtChanged, Art: art, Token: network.Ref{ID: handle}})
			l.drain()
		}
		change("network-token-1", "black")
		l.shows("the new art", l.art(first), black)
		if l.art(second) != old || l.art(first) == old {
			t.Errorf("art %v and %v, was %v", l.art(first), l.art(second), old)
		}
		l.shows("the old art", old, gold)
		change("network-token-2", "black")
		l.shows("the old art, which no token shows", old, nil)
		l.shows("the new art", l.art(second), black)
		change("network-token-2", "gold")
		if l.art(second) != old {
			t.Error("the former art has another id")
		}

		// A notice without news, or an old one, starts nothing.
		calls := len(l.net.asked("Lookup"))
		l.notify(notice{Kind: network.NoticeArtChanged, Art: "gold", Token: network.Ref{ID: "network-token-2"}})
		l.notify(notice{Kind: network.NoticeArtChanged, Art: "black", OccurredAt: time.Now().Add(-time.Hour), Token: network.Ref{ID: "network-token-2"}})
		l.drain()
		if n := len(l.net.asked("Lookup")); n != calls {
			t.Errorf("%d look-ups", n-calls)
		}
		// Another notice in between does not delay the fetch.
		l.net.set("network-token-2", func(t *network.Token) {
			t.Art, t.State, t.SuspendedBy = "black", inactive, network.OwnersOf(network.OwnerIssuer)
		})
		l.notify(notice{Kind: network.NoticeArtChanged, Art: "black", Token: network.Ref{ID: "network-token-2"}})
		l.notify(notice{Kind: network.NoticeSuspended, Token: network.Ref{ID: "network-token-2"}})
		l.drain()
		l.shows("the new art", l.art(second), black)

		// The network no longer has art.
		change("network-token-1", "")
		if url := l.get(first).CardArtURL; url != "" {
			t.Errorf("card art at %q", url)
		}
	})
	// The notice arrives during a look-up.
	inLab(t, withArt, func(l *lab) {
		l.net.images = map[string][]byte{"gold": png(100), "black": png(200)}
		l.net.like.Art = "gold"
		id := l.become(active)
		l.net.script(nil, func(_ context.Context, c call) error {
			if c.method == "Lookup" && len(l.net.asked("Lookup")) == 1 {
				l.net.set("network-token-1", func(t *network.Token) { t.Art = "black" })
				l.try(l.Notify(l.Context(), l.notice(notice{Kind: network.NoticeArtChanged, Art: "black"})))
			}
			return nil
		})
		l.run(func() { l.pass(29 * time.Hour) })
		l.shows("the new art", l.art(id), png(200))
	})
}

// TestCardArtThatCannotBeHad: a card is usable without art that cannot be fetched. The art
// is fetched on the next day.
func TestCardArtThatCannotBeHad(t *testing.T) {
	for what, spoil := range map[string]func(n *artist){
		"too large":    func(n *artist) { n.image = png(network.MaxCardArt + 1) },
		"empty":        func(n *artist) { n.image = nil },
		"no image":     func(n *artist) { n.image = []byte("<svg onload=alert(1)>") },
		"another type": func(n *artist) { n.mediaType = "image/svg+xml" },
		"a JPEG":       func(n *artist) { n.mediaType = "image/jpeg" },
		"no type":      func(n *artist) { n.mediaType = "" },
		"an error":     func(n *artist) { n.err = errors.New("down") },
		"a panic":      func(n *artist) { n.err = errPanic },
		"no answer":    func(n *artist) { n.err = context.DeadlineExceeded },
	} {
		t.Run(what, func(t *testing.T) {
			inLab(t, withArt, func(l *lab) {
				good := artist{mediaType: "image/png", image: png(100)}
				bad := good
				spoil(&bad)
				n := &bad
				n.scripted = l.net
				l.opts.Network = n
				l.restart()
				l.net.like.Art = "gold"
				id := l.imports(visa)
				l.drain()
				if url := l.is(id, active, "").CardArtURL; url != "" {
					t.Errorf("card art at %q", url)
				}
				n.mediaType, n.image, n.err = good.mediaType, good.image, nil
				l.run(func() { l.pass(29 * time.Hour) })
				l.shows("the next day", l.art(id), good.image)
			})
		})
	}
	inLab(t, withArt, func(l *lab) {
		l.opts.Network = &artist{scripted: l.net, mediaType: "image/jpeg", image: []byte("\xff\xd8\xff\xe0...")}
		l.restart()
		l.net.like.Art = "gold"
		id := l.imports(visa)
		l.drain()
		if got, err := l.CardArt(l.Context(), l.art(id)); err != nil || got.MediaType != "image/jpeg" {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// An artist is a network with a single image.
type artist struct {
	*scripted
	mediaType string
	image     []byte
	err       error
}

func (n *artist) CardArt(ctx context.Context, _ *network.ArtRequest) (*network.Art, error) {
	switch n.err {
	case errPanic:
		panic("4242424242424242")
	case context.DeadlineExceeded:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &network.Art{MediaType: n.mediaType, Image: n.image}, n.err
}

// TestCardArtGoneMeanwhile: art is fetched again if it was deleted between the look-up and
// the write.
func TestCardArtGoneMeanwhile(t *testing.T) {
	inLab(t, withArt, func(l *lab) {
		l.net.images = map[string][]byte{"gold": png(1000)}
		l.net.like.Art = "gold"
		old := l.become(active)
		art := l.art(old)
		l.net.script(nil, func(_ context.Context, c call) error {
			if c.method == "Provision" {
				// Runs between the next read and the write.
				l.store.hook(func() error {
					l.store.hook(nil)
					return l.Vault.Delete(l.Context(), old)
				})
			}
			return nil
		})
		id := l.imports(visa)
		l.drain()
		if l.art(id) != art || len(l.net.asked("CardArt")) != 2 {
			t.Errorf("art %v, was %v, fetched %d times", l.art(id), art, len(l.net.asked("CardArt")))
		}
		l.shows("fetched again", art, png(1000))
	})
}

// Damaged art is an error, not another image.
func TestDamagedCardArt(t *testing.T) {
	inLab(t, withArt, func(l *lab) {
		l.net.images = map[string][]byte{"gold": png(100_000)}
		l.net.like.Art = "gold"
		art := l.art(l.become(active))
		part := func(n int) uuid.UUID {
			id := art
			id[0] ^= byte(n + 1)
			return id
		}
		for what, damage := range map[string]func(tx store.Tx) error{
			"head":        l.flip(kindCardArt, art),
			"first part":  l.flip(kindCardArtPart, part(0)),
			"second part": l.flip(kindCardArtPart, part(1)),
			"part lost": func(tx store.Tx) error {
				tx.Delete(kindCardArtPart, part(1))
				return nil
			},
			"all parts lost": func(tx store.Tx) error {
				tx.Delete(kindCardArtPart, part(0))
				tx.Delete(kindCardArtPart, part(1))
				return nil
			},
			"part of another": func(tx store.Tx) error {
				r, err := tx.Get(kindCardArtPart, part(0))
				if err == nil {
					r.ID, r.Version = part(2), 1
					tx.Put(r)
				}
				return err
			},
		} {
			before := l.storedArt(art, part(0), part(1))
			l.must(l.store.on().Update(l.Context(), damage))
			if got, err := l.CardArt(l.Context(), art); !errors.Is(err, cardvault.ErrDamaged) || got != nil {
				t.Errorf("%s: %v, %v", what, got, err)
			}
			l.must(l.store.on().Update(l.Context(), func(tx store.Tx) error {
				tx.Delete(kindCardArt, art)
				for i := range 3 {
					tx.Delete(kindCardArtPart, part(i))
				}
				for _, r := range before {
					tx.Put(r)
				}
				return nil
			}))
		}
		l.shows("the restored parts", art, png(100_000))
	})
}

// flip changes a bit of a record.
func (l *lab) flip(kind store.Kind, id uuid.UUID) func(store.Tx) error {
	return func(tx store.Tx) error {
		r, err := tx.Get(kind, id)
		if err != nil {
			return err
		}
		tx.Delete(kind, id)
		r.Shown[len(r.Shown)/2] ^= 1
		tx.Put(r)
		return nil
	}
}

// storedArt returns the records of an art and its parts.
func (l *lab) storedArt(art uuid.UUID, parts ...uuid.UUID) (all []*store.Record) {
	l.Helper()
	l.must(l.store.View(l.Context(), func(tx store.ReadTx) error {
		r, err := tx.Get(kindCardArt, art)
		all = append(all, r)
		for _, id := range parts {
			part, partErr := tx.Get(kindCardArtPart, id)
			all, err = append(all, part), errors.Join(err, partErr)
		}
		return err
	}))
	return all
}

// TestSlowCardArt: a network token becomes active without its art if that is slow, and shows
// the art later.
func TestSlowCardArt(t *testing.T) {
	inLab(t, withArt, func(l *lab) {
		l.net.like.Art = "slow"
		l.net.images = map[string][]byte{"slow": png(1000)}
		l.net.script(func(ctx context.Context, c call) error {
			if c.method == "CardArt" {
				<-ctx.Done()
			}
			return ctx.Err()
		}, nil)
		id := l.imports(visa)
		begun := time.Now()
		l.drain()
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("active after %v", took)
		}
		if got := l.is(id, active, ""); got.CardArtURL != "" {
			t.Errorf("art at %q", got.CardArtURL)
		}
		l.net.script(nil, nil)
		l.run(func() { l.pass(29 * time.Hour) })
		l.shows("art", l.art(id), png(1000))
	})
}
