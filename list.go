package cardvault

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"time"

	"github.com/cardvault/cardvault/internal/listing"
	"github.com/cardvault/cardvault/invalid"
	"github.com/google/uuid"
)

// ListOptions select and order what a list shows. The zero value selects
// everything, newest first.
type ListOptions struct {
	// Limit bounds the items of a page, 1 to [MaxLimit]. 0 means [DefaultLimit]. An
	// iterator reads as many at a time, and for 0 MaxLimit.
	Limit int

	// Page is the number of a page, from 1. 0 means 1. An iterator goes on to the end.
	Page int

	Ascending bool // oldest first

	// From and To bound the time of creation, both inclusive. Zero: no bound.
	From, To time.Time
}

// A Page is a part of a list.
//
// A call that lists returns the page and an error if records on it are damaged. Items then
// contains only the others, fewer than Limit. The error wraps [ErrDamaged], and [Damaged]
// returns kind and id of each such record. Records that name another account or parent than
// the list are one entry, without an id. With any other error there is no page.
type Page[T any] struct {
	Items      []T
	Page       int   // its number, from 1
	Limit      int   // most items on a page
	TotalItems int64 // in the whole list, damaged ones too, exact at the instant of the page
	TotalPages int64 // 0 for an empty list

	damaged []uuid.UUID // of the records that the error names, as far as they have ids
}

func (o *ListOptions) check() error {
	var errs []error
	if o.Limit != 0 {
		errs = append(errs, checkRange("Limit", o.Limit, 1, MaxLimit))
	}
	if o.Page != 0 {
		errs = append(errs, checkRange("Page", o.Page, 1, MaxPage))
	}
	if !o.From.IsZero() && !o.To.IsZero() && o.From.After(o.To) {
		errs = append(errs, &FieldError{"From", invalid.Range, "must not be after to"})
	}
	return errors.Join(errs...)
}

// A listed is a list by the options of a caller.
type listed[T any] struct {
	listing.List[T]
	verb    string // for errors
	invalid error  // of the options
}

// listedBy completes a list by options, which may be nil.
func listedBy[T any](o *ListOptions, verb string, l listing.List[T]) *listed[T] {
	l.Page = 1
	if o == nil {
		return &listed[T]{l, verb, nil}
	}
	l.Limit, l.Page = o.Limit, cmp.Or(o.Page, 1)
	l.Ascending, l.From, l.To = o.Ascending, o.From, o.To
	return &listed[T]{l, verb, o.check()}
}

// page returns the page that the options name.
func (l *listed[T]) page(ctx context.Context) (_ *Page[T], err error) {
	defer doing(l.verb, &err)
	if l.invalid != nil {
		return nil, l.invalid
	}

	l.Limit = cmp.Or(l.Limit, DefaultLimit)
	items, total, err := l.Read(ctx)
	if items == nil {
		return nil, err
	}
	most := int64(l.Limit)
	p := &Page[T]{Items: items, Page: l.Page, Limit: l.Limit, TotalItems: total, TotalPages: (total + most - 1) / most}
	for _, d := range Damaged(err) {
		if d.ID != uuid.Nil {
			p.damaged = append(p.damaged, d.ID)
		}
	}
	return p, err
}

// iterate iterates over the items of a list from the page on that its options name. Each loop
// has a list of its own.
func iterate[T any](ctx context.Context, v *Vault, list func() *listed[T]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		if v == nil || v.core == nil {
			yield(none, errNotOpened)
			return
		}
		l := list()
		err := l.invalid
		if record(ctx, v.rows, l.verb, &err); err != nil {
			doing(l.verb, &err)
			yield(none, err)
			return
		}

		l.Limit = cmp.Or(l.Limit, MaxLimit)
		for item, err := range l.All(ctx) {
			doing(l.verb, &err)
			if !yield(item, err) {
				return
			}
		}
	}
}
