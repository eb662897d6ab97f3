package cardvault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
)

// ListOptions select and order what a list shows. The zero value selects
// everything, newest first.
type ListOptions struct {
	Limit     int  // items a page, 1 to 500; 0 means 50
	Page      int  // from 1; 0 means 1
	Ascending bool // oldest first

	// From and To bound the time of creation, both inclusive. Zero: no bound.
	From, To time.Time

	// The following are for tokens. Values of one field are alternatives;
	// fields add up. Empty: any.
	NetworkTokenStatus []network.Status
	Scheme             []card.Scheme
	BusinessKey        string // exact; of at most [store.MaxShared] tokens
}

// A Page is a part of a list.
//
// A call that lists returns the page and an error if records on it are damaged. Items are
// the others then, so that they are fewer than Limit. The error wraps [ErrDamaged], and
// [Damaged] returns kind and id of each such record. Those that name another account or
// parent than the list are one of them, without an id. With any other error there is no page.
type Page[T any] struct {
	Items      []T
	Page       int   // its number, from 1
	Limit      int   // most items on a page
	TotalItems int64 // in the whole list, damaged ones too, exact at the instant of the page
	TotalPages int64 // 0 for an empty list
}

func (o *ListOptions) check() error {
	var errs []error
	if o.Limit != 0 {
		errs = append(errs, checkRange("query.limit", o.Limit, 1, MaxLimit))
	}
	if o.Page != 0 {
		errs = append(errs, checkRange("query.page", o.Page, 1, MaxPage))
	}
	if !o.From.IsZero() && !o.To.IsZero() && o.From.After(o.To) {
		errs = append(errs, &FieldError{"query.from", "invalid_range", "must not be after to"})
	}
	// Classes of none of the schemes would be those of all.
	if slices.ContainsFunc(o.Scheme, func(s card.Scheme) bool { return s >= schemes }) {
		errs = append(errs, &FieldError{"query.scheme", "invalid_enum", "must name schemes that exist"})
	}
	if slices.ContainsFunc(o.NetworkTokenStatus, func(s network.Status) bool { return s >= networkTokenStatuses }) {
		errs = append(errs, &FieldError{"query.network_token_status", "invalid_enum", "must name statuses that exist"})
	}
	return errors.Join(errs...)
}

// query returns the query for a page of records of a kind, and the options
// with their defaults.
func (v *Vault) query(kind store.Kind, o *ListOptions) (*store.Query, ListOptions, error) {
	opts := ListOptions{}
	if o != nil {
		opts = *o
	}
	if err := opts.check(); err != nil {
		return nil, opts, err
	}

	if opts.Limit == 0 {
		opts.Limit = DefaultLimit
	}
	if opts.Page == 0 {
		opts.Page = 1
	}

	q := &store.Query{
		Kind:    kind,
		Account: v.rows.ID,
		Live:    now(),
		Desc:    !opts.Ascending,
		Offset:  int64(opts.Page-1) * int64(opts.Limit),
		Limit:   opts.Limit,
		Count:   true,
	}

	if !opts.From.IsZero() {
		// Keys hold whole microseconds: the first one that is not before From.
		q.Min = rowkey.First(opts.From.Add(time.Microsecond - 1))
	}
	if !opts.To.IsZero() {
		q.Max = rowkey.Last(opts.To)
	}

	return q, opts, nil
}

// list answers a query for records of the account.
func (v *Vault) list(ctx context.Context, q *store.Query, also ...func(store.ReadTx, *store.List) error) (*store.List, error) {
	list, err := v.rows.List(ctx, q, also...)
	if errors.Is(err, store.ErrTooMany) {
		return nil, &FieldError{"query.business_key", "out_of_range", fmt.Sprintf("must be that of at most %d tokens", store.MaxShared)}
	}
	return list, err
}

// page answers a query with one page of a list. Damaged records do not fail it: the page
// comes with the rest, and with the errors of these.
func page[T any](ctx context.Context, v *Vault, q *store.Query, o ListOptions, open func(context.Context, *store.Record) (T, error), also ...func(store.ReadTx, *store.List) error) (*Page[T], error) {
	list, err := v.list(ctx, q, also...)
	if list == nil {
		return nil, err
	}

	p := &Page[T]{
		Items:      make([]T, 0, len(list.Records)),
		Page:       o.Page,
		Limit:      o.Limit,
		TotalItems: list.Total,
		TotalPages: (list.Total + int64(o.Limit) - 1) / int64(o.Limit),
	}

	damaged := []error{err}
	for _, r := range list.Records {
		if ledger.Foreign(r) {
			continue
		}
		item, err := open(ctx, r)
		switch err = v.rows.Named(r, err); {
		case err == nil:
			p.Items = append(p.Items, item)
		case ledger.RowDamaged(err):
			damaged = append(damaged, err)
		default:
			return nil, err
		}
	}
	return p, ledger.JoinDamages(damaged...)
}

// in reports whether one of values is x, or there are none.
func in[T comparable](values []T, x T) bool {
	return len(values) == 0 || slices.Contains(values, x)
}
