package simnet

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/color"
	"image/png"
	"math"
	"strconv"
	"sync"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
)

const artVersions = 2

// artID is the id of a version of the card art of a scheme, from 1.
func artID(s card.Scheme, version int) string {
	return issuers[s].slug + "-" + strconv.Itoa(version)
}

// gallery holds the card art by id, each drawn when it is wanted first.
var gallery = func() map[string]func() ([]byte, error) {
	art := make(map[string]func() ([]byte, error))
	for s := range issuers {
		for version := 1; version <= artVersions && known(card.Scheme(s)); version++ {
			art[artID(card.Scheme(s), version)] = sync.OnceValues(func() ([]byte, error) {
				return draw(palettes[s][version-1])
			})
		}
	}
	return art
}()

// CardArt implements [network.ArtFetcher]: a PNG of 480 by 302.
func (n *Network) CardArt(ctx context.Context, r *network.ArtRequest) (*network.Art, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	art := gallery[r.ID]
	if art == nil {
		return nil, errors.New("simnet: no such card art")
	}
	picture, err := art()
	if err != nil {
		return nil, err
	}
	return &network.Art{MediaType: "image/png", Image: bytes.Clone(picture)}, nil
}

type rgb [3]float64

// palettes hold the colours of each version: the card's from left to right, and the
// emblem's.
var palettes = [len(issuers)][artVersions][3]rgb{
	card.VISA:            {{{20, 30, 105}, {32, 78, 184}, {247, 182, 0}}, {{12, 14, 34}, {56, 62, 110}, {220, 226, 240}}},
	card.Mastercard:      {{{32, 32, 36}, {92, 40, 30}, {247, 158, 27}}, {{150, 24, 20}, {235, 110, 30}, {255, 228, 180}}},
	card.AmericanExpress: {{{0, 98, 160}, {70, 170, 214}, {236, 244, 250}}, {{30, 96, 76}, {130, 170, 120}, {240, 236, 205}}},
	card.Discover:        {{{54, 54, 60}, {120, 120, 128}, {255, 118, 0}}, {{200, 84, 0}, {255, 164, 60}, {60, 44, 36}}},
	card.DinersClub:      {{{0, 60, 110}, {96, 130, 160}, {225, 232, 238}}, {{72, 72, 84}, {170, 172, 180}, {0, 76, 140}}},
	card.JCB:             {{{0, 80, 60}, {40, 150, 90}, {240, 244, 220}}, {{20, 50, 130}, {150, 30, 60}, {250, 230, 200}}},
	card.UnionPay:        {{{150, 10, 30}, {0, 80, 110}, {240, 236, 226}}, {{0, 90, 100}, {10, 150, 140}, {250, 210, 90}}},
}

const width, height = 480, 302

// A shape returns the share of the pixel at a point that it covers, 0 to 1; nothing outside
// of its bounds.
type shape struct {
	bounds image.Rectangle
	cover  func(x, y float64) float64
}

// A layer is a shape in a colour, on top of those before it.
type layer struct {
	shape   shape
	colour  rgb
	opacity float64
}

// draw draws a card: a gradient with waves of light, a chip, lines where number
// and name would be, and a ring with a dot for an emblem.
func draw(palette [3]rgb) ([]byte, error) {
	from, to, accent := palette[0], palette[1], palette[2]
	white, gold, groove := rgb{255, 255, 255}, rgb{232, 206, 140}, rgb{160, 132, 70}
	layers := []layer{
		{disc(150, 430, 330), white, 0.08},
		{disc(420, -120, 300), white, 0.08},
		{box(44, 100, 64, 50, 9), gold, 1},
	}
	for _, y := range []int{110, 124, 138} {
		layers = append(layers, layer{box(44, y, 64, 2, 0), groove, 1})
	}

	layers = append(layers,
		layer{box(63, 107, 26, 36, 4), groove, 1},
		layer{box(65, 109, 22, 32, 3), gold, 1},
	)
	for _, r := range []int{12, 23, 34} {
		layers = append(layers, layer{wave(120, 125, r, r-3), white, 0.75})
	}
	for _, x := range []int{44, 106, 168, 230} {
		layers = append(layers, layer{box(x, 196, 48, 10, 5), white, 0.35})
	}
	layers = append(layers,
		layer{box(44, 238, 120, 8, 4), white, 0.25},
		layer{ring(412, 240, 32, 18), accent, 1},
		layer{disc(412, 240, 9), accent, 0.8},
	)

	m := image.NewNRGBA(image.Rect(0, 0, width, height))
	canvas := make([]rgb, width*height)
	for i := range canvas {
		x, y := i%width, i/width
		canvas[i] = mix(from, to, (float64(x)/width+float64(y)/height)/2)
	}

	for _, l := range layers {
		l.shape.each(func(i int, covered float64) { canvas[i] = mix(canvas[i], l.colour, l.opacity*covered) })
	}
	box(0, 0, width, height, 20).each(func(i int, covered float64) {
		c := canvas[i]
		m.SetNRGBA(i%width, i/width, color.NRGBA{uint8(c[0]), uint8(c[1]), uint8(c[2]), uint8(255 * covered)})
	})

	var b bytes.Buffer
	err := png.Encode(&b, m)
	return b.Bytes(), err
}

// each calls f with each pixel that a shape covers.
func (s shape) each(f func(i int, covered float64)) {
	b := s.bounds.Intersect(image.Rect(0, 0, width, height))
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			if covered := s.cover(float64(x)+0.5, float64(y)+0.5); covered > 0 {
				f(y*width+x, covered)
			}
		}
	}
}

func disc(cx, cy, r int) shape { return box(cx-r, cy-r, 2*r, 2*r, r) }

func ring(cx, cy, outer, inner int) shape {
	full, hole := disc(cx, cy, outer), disc(cx, cy, inner)
	return shape{full.bounds, func(x, y float64) float64 { return full.cover(x, y) - hole.cover(x, y) }}
}

// wave is the part of a ring to the right, within about 40 degrees.
func wave(cx, cy, outer, inner int) shape {
	s := ring(cx, cy, outer, inner)
	return shape{s.bounds, func(x, y float64) float64 {
		return s.cover(x, y) * inside(0.8*(x-float64(cx))-math.Abs(y-float64(cy)))
	}}
}

// box is a rectangle whose corners are round.
func box(left, top, w, h, radius int) shape {
	cx, cy := float64(left)+float64(w)/2, float64(top)+float64(h)/2
	r := float64(radius)
	bx, by := float64(w)/2-r, float64(h)/2-r
	return shape{image.Rect(left, top, left+w, top+h), func(x, y float64) float64 {
		dx, dy := max(math.Abs(x-cx)-bx, 0), max(math.Abs(y-cy)-by, 0)
		return inside(r - math.Sqrt(dx*dx+dy*dy))
	}}
}

// inside returns how much of a pixel is inside whose centre lies so deep in a shape.
func inside(depth float64) float64 { return min(max(depth+0.5, 0), 1) }

// mix goes the share t of the way from a to b.
func mix(a, b rgb, t float64) rgb {
	for k := range a {
		a[k] += (b[k] - a[k]) * t
	}
	return a
}
