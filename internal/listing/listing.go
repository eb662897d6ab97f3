// Package listing reads lists of records: a page of them, or one after the other.
package listing

import (
	"context"
	"iter"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
)

// A List is the list of one sort of records, as a caller asks for it.
type List[T any] struct {
	Rows ledger.Account
	Kind store.Kind
	Open func(context.Context, *store.Record) (T, error)

	Limit     int // records of a page, or of one read of All
	Page      int // from 1; All begins with it
	Ascending bool
	From, To  time.Time // both inclusive; zero: no bound

	Lasting bool // the Due of a record says when there is work, not when it lapses

	// The following may be nil.
	Narrow func(context.Context, *store.Query) error // selects among the records
	Also   []func(store.ReadTx, *store.List) error   // read more with each page
	Keep   func(T) bool                              // selects among the items of All
	Failed func(error) error                         // returns the error of a read as the caller reports it
}

// query returns the query for the page.
func (l *List[T]) query(ctx context.Context) (*store.Query, error) {
	q := &store.Query{
		Kind:    l.Kind,
		Account: l.Rows.ID,
		Desc:    !l.Ascending,
		Offset:  int64(l.Page-1) * int64(l.Limit),
		Limit:   l.Limit,
	}
	if !l.From.IsZero() {
		// Keys hold whole microseconds: take the first one not before From.
		q.Min = rowkey.First(l.From.Add(time.Microsecond - 1))
	}
	if !l.To.IsZero() {
		q.Max = rowkey.Last(l.To)
	}
	if l.Narrow == nil {
		return q, nil
	}
	return q, l.Narrow(ctx, q)
}

// read reads what a query selects now.
func (l *List[T]) read(ctx context.Context, q *store.Query) (*store.List, error) {
	if !l.Lasting {
		q.Live = ledger.Now()
	}
	further := false
	list, err := ledger.Retry(ctx, func() (*store.List, error) {
		if further && l.Narrow != nil { // its hash is of a former key
			if err := l.Narrow(ctx, q); err != nil {
				return nil, err
			}
		}
		further = true
		return l.Rows.List(ctx, q, l.Also...)
	})
	if err != nil && l.Failed != nil {
		err = l.Failed(err)
	}
	return list, err
}

// Read returns the items of the page, and how many records the list has. Damaged records do
// not fail it: it returns the others, with the errors of these. With any other error items
// is nil.
func (l *List[T]) Read(ctx context.Context) (items []T, total int64, err error) {
	q, err := l.query(ctx)
	if err != nil {
		return nil, 0, err
	}
	q.Count = true
	list, err := l.read(ctx, q)
	if list == nil {
		return nil, 0, err
	}

	items = make([]T, 0, len(list.Records))
	damaged := []error{err}
	for _, r := range list.Records {
		if ledger.Foreign(r) {
			continue
		}
		item, err := l.Open(ctx, r)
		switch err = l.Rows.Named(r, err); {
		case err == nil:
			items = append(items, item)
		case ledger.RowDamaged(err):
			damaged = append(damaged, err)
		default:
			return nil, 0, err
		}
	}
	return items, list.Total, ledger.JoinDamages(damaged...)
}

// All iterates over the items from the page on to the end. It holds no transaction while
// the caller works. An item that is deleted meanwhile may still be seen; a lapsed item is
// not. For a damaged record it yields the error and continues with the next. It ends after
// any other error.
func (l *List[T]) All(ctx context.Context) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		q, err := l.query(ctx)
		if err != nil {
			yield(none, err)
			return
		}

		for {
			list, err := l.read(ctx, q)
			if err != nil && (!yield(none, err) || list == nil || !ledger.RowDamaged(err)) {
				return
			}
			if !l.each(ctx, list.Records, yield) || len(list.Records) == 0 {
				return
			}
			if q.Lookup == nil && len(list.Records) < q.Limit { // by a hash a store may pass over some
				return
			}

			// The next page begins after the last item, which may be gone by then.
			last := list.Records[len(list.Records)-1].ID
			if q.Offset = 0; q.Desc {
				q.Max = rowkey.Below(last)
			} else {
				q.Min = rowkey.Above(last)
			}
		}
	}
}

// each yields the items of some records, and reports whether the iteration continues.
func (l *List[T]) each(ctx context.Context, records []*store.Record, yield func(T, error) bool) bool {
	var none T
	for _, r := range records {
		if ledger.Foreign(r) || !l.Lasting && !ledger.Lives(r, ledger.Now()) {
			continue
		}
		item, err := l.Open(ctx, r)
		switch err = l.Rows.Named(r, err); {
		case err == nil && l.Keep != nil && !l.Keep(item):
		case err == nil && !yield(item, nil):
			return false
		case err != nil && (!yield(none, err) || !ledger.RowDamaged(err)):
			return false
		}
	}
	return true
}
