package vaultsuite

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A listing is a list of objects, some of them damaged.
type listing struct {
	kind string          // as errors call it
	rows []*store.Record // of the objects, oldest first, without earlier ones
	ids  []uuid.UUID     // of all objects, oldest first
	list func(*cardvault.ListOptions) (ids []uuid.UUID, total int64, err error)
}

// lister returns the list of a listing. Without a page the total is -1. An iterator from the
// page on begins with the same, and yields as many as there are.
func lister[T any](t *testing.T, list func(context.Context, *cardvault.ListOptions) (*cardvault.Page[T], error), all func(context.Context, *cardvault.ListOptions) iter.Seq2[T, error], id func(T) uuid.UUID) func(*cardvault.ListOptions) ([]uuid.UUID, int64, error) {
	return func(o *cardvault.ListOptions) (ids []uuid.UUID, total int64, err error) {
		p, err := list(t.Context(), o)
		if p == nil {
			return nil, -1, err
		}
		for _, item := range p.Items {
			ids = append(ids, id(item))
		}

		var on []uuid.UUID
		var named []cardvault.DamagedRecord
		for item, err := range all(t.Context(), o) {
			if err == nil {
				on = append(on, id(item))
			}
			named = append(named, cardvault.Damaged(err)...)
		}
		before := int64((p.Page - 1) * p.Limit)
		if len(on) < len(ids) || !slices.Equal(on[:len(ids)], ids) || int64(len(on)+len(named)) != p.TotalItems-before {
			t.Errorf("%+v: the iterator yields %v and %v, the page has %v of %d", o, on, named, ids, p.TotalItems)
		}
		return ids, p.TotalItems, err
	}
}

// fill creates objects of the list, whose row is in a place of the last write.
func (l *listing) fill(spy *watched, place int, create func(i int) uuid.UUID) *listing {
	for i := range objects {
		l.ids = append(l.ids, create(i))
		l.rows = append(l.rows, spy.last()[place])
	}
	return l
}

// objects is the number of objects of a listing that can be damaged.
const objects = 5

// spoil checks the list while the rows of victims are damaged. The list may begin with
// objects that it was not filled with.
func (l *listing) spoil(t *testing.T, s store.Store, victims ...int) {
	t.Helper()
	older := len(l.ids) - len(l.rows)
	spoiled := map[uuid.UUID]bool{}
	for _, i := range victims {
		spoiled[l.ids[older+i]] = true
		r := l.rows[i].Clone()
		r.Shown[len(r.Shown)-1] ^= 1
		overwrite(t, s, l.rows[i], r)
	}

	newest := slices.Clone(l.ids)
	slices.Reverse(newest)
	for page := range (len(l.ids) + 1) / 2 {
		l.check(t, page+1, true, spoiled, l.ids)
		l.check(t, page+1, false, spoiled, newest)
	}
	for _, i := range victims {
		overwrite(t, s, l.rows[i], l.rows[i])
	}
}

// check checks a page of two objects, of all that are in order.
func (l *listing) check(t *testing.T, page int, ascending bool, spoiled map[uuid.UUID]bool, all []uuid.UUID) {
	t.Helper()
	var want []uuid.UUID
	var named []cardvault.DamagedRecord
	for _, id := range all[2*page-2 : min(len(all), 2*page)] {
		if spoiled[id] {
			named = append(named, cardvault.DamagedRecord{Kind: l.kind, ID: id})
		} else {
			want = append(want, id)
		}
	}

	got, total, err := l.list(&cardvault.ListOptions{Limit: 2, Page: page, Ascending: ascending})
	if !slices.Equal(got, want) || total != int64(len(all)) || !slices.Equal(cardvault.Damaged(err), named) ||
		errors.Is(err, cardvault.ErrDamaged) != (len(named) > 0) {
		t.Errorf("%s, page %d, ascending %v: %v, total %d, error %v; want %v of %d, and %v", l.kind, page, ascending, got, total, err, want, len(all), named)
	}
	for _, d := range named {
		if err != nil && !strings.Contains(err.Error(), d.Kind+" "+d.ID.String()) {
			t.Errorf("error %q does not name %v", err, d)
		}
	}
}

// damagedInLists: a page comes with the items that are whole, and with an error that names
// the others. All of them count, and the next page is there.
func damagedInLists(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := paying(t, spy, new(till)), t.Context()
	account := must(v.CreateAccount(ctx, canary, nil))(t)
	other := v.In(account.ID)

	tokens := &listing{kind: "token", list: lister(t, tokensListed(other), tokensAll(other), func(t *cardvault.Token) uuid.UUID { return t.ID })}
	keys := &listing{kind: "API key", list: lister(t, v.ListAPIKeys, v.AllAPIKeys, func(k *cardvault.APIKey) uuid.UUID { return k.ID })}
	hooks := &listing{kind: "webhook", list: lister(t, other.ListWebhooks, other.AllWebhooks, func(w *cardvault.Webhook) uuid.UUID { return w.ID })}
	merchants := &listing{kind: "merchant", list: lister(t, v.ListMerchants, v.AllMerchants, func(m *cardvault.Merchant) uuid.UUID { return m.ID })}
	accounts := &listing{kind: "account", list: lister(t, v.ListAccounts, v.AllAccounts, func(a *cardvault.Account) uuid.UUID { return a.ID })}
	for _, l := range []*listing{merchants, accounts} { // the primary merchant and two accounts
		ids, _, err := l.list(&cardvault.ListOptions{Ascending: true})
		noError(t, err)
		l.ids = ids
	}

	all := append(paymentsListed(t, v, spy), deliveriesListed(t, v, spy),
		tokens.fill(spy, 0, func(i int) uuid.UUID { return importCard(t, other, testCard(i), nil).ID }),
		keys.fill(spy, 0, func(int) uuid.UUID { return must(v.CreateAPIKey(ctx, canary, cardvault.AllScopes(), nil))(t).ID }),
		hooks.fill(spy, 1, func(int) uuid.UUID { return newHook(t, other, receiver).ID }),
		merchants.fill(spy, 0, func(int) uuid.UUID { return must(v.CreateMerchant(ctx, canary, nil))(t).ID }),
		accounts.fill(spy, 0, func(int) uuid.UUID { return must(v.CreateAccount(ctx, canary, nil))(t).ID }))
	for _, l := range all {
		l.spoil(t, s)
		l.spoil(t, s, objects-1)
		l.spoil(t, s, 1, 2)
		l.spoil(t, s, 0, 1, 2, 3, 4)
	}

	for _, r := range merchants.rows {
		r.Shown[0] ^= 1
		overwrite(t, s, r, r)
	}
	if m := must(v.PrimaryMerchant(ctx))(t); !m.Primary {
		t.Error("the primary merchant has changed")
	}
}

// tokensListed and tokensAll list tokens by the options that all lists have.
func tokensListed(v *cardvault.Vault) func(context.Context, *cardvault.ListOptions) (*cardvault.Page[*cardvault.Token], error) {
	return func(ctx context.Context, o *cardvault.ListOptions) (*cardvault.Page[*cardvault.Token], error) {
		return v.List(ctx, ofTokens(o))
	}
}

func tokensAll(v *cardvault.Vault) func(context.Context, *cardvault.ListOptions) iter.Seq2[*cardvault.Token, error] {
	return func(ctx context.Context, o *cardvault.ListOptions) iter.Seq2[*cardvault.Token, error] {
		return v.All(ctx, ofTokens(o))
	}
}

func ofTokens(o *cardvault.ListOptions) *cardvault.TokenListOptions {
	if o == nil {
		return nil
	}
	return &cardvault.TokenListOptions{Limit: o.Limit, Page: o.Page, Ascending: o.Ascending, From: o.From, To: o.To}
}

// paymentsListed returns the list of payment data, and a list with damaged JWEs.
func paymentsListed(t *testing.T, v *cardvault.Vault, spy *watched) []*listing {
	token := usable(t, v, 1)
	newSecret(t, v)
	payments := &listing{kind: "payment data", list: lister(t, func(ctx context.Context, o *cardvault.ListOptions) (*cardvault.Page[*cardvault.PaymentData], error) {
		return v.ListPaymentData(ctx, token.ID, o)
	}, func(ctx context.Context, o *cardvault.ListOptions) iter.Seq2[*cardvault.PaymentData, error] {
		return v.AllPaymentData(ctx, token.ID, o)
	}, func(p *cardvault.PaymentData) uuid.UUID { return p.ID })}

	jwes := &listing{kind: payments.kind, list: payments.list}
	payments.fill(spy, 0, func(int) uuid.UUID {
		id := pay(t, v, token).ID
		jwes.ids, jwes.rows = append(jwes.ids, id), append(jwes.rows, spy.last()[1])
		return id
	})
	return []*listing{payments, jwes}
}

// deliveriesListed returns the list of the deliveries to a webhook.
func deliveriesListed(t *testing.T, v *cardvault.Vault, spy *watched) *listing {
	hook := newHook(t, v, receiver)
	l := &listing{kind: "delivery", list: lister(t, func(ctx context.Context, o *cardvault.ListOptions) (*cardvault.Page[*cardvault.DeliveryRecord], error) {
		return v.ListDeliveries(ctx, hook.ID, o)
	}, func(ctx context.Context, o *cardvault.ListOptions) iter.Seq2[*cardvault.DeliveryRecord, error] {
		return v.AllDeliveries(ctx, hook.ID, o)
	}, func(d *cardvault.DeliveryRecord) uuid.UUID { return d.ID })}

	return l.fill(spy, 2, func(i int) uuid.UUID {
		importCard(t, v, testCard(2+i), nil)
		ids, _, err := l.list(nil)
		noError(t, err)
		return ids[0]
	})
}

// damagedElsewhere: an account hears of no record that another has lost, by the id that
// this one knows it by, wherever the row is put.
func damagedElsewhere(t *testing.T, s store.Store) {
	spy := &watched{Store: s}
	v, ctx := paying(t, spy, new(till)), t.Context()
	account := must(v.CreateAccount(ctx, canary, nil))(t)
	thief := v.In(account.ID)

	newSecret(t, v)
	newSecret(t, thief)
	token, theirs := usable(t, v, 1), usable(t, thief, 2)
	pay(t, thief, theirs)
	payment := pay(t, v, token)
	row := spy.last()[0]
	mine := importCard(t, v, testCard(3), nil)
	tokenRow := spy.last()[0]

	moved := tokenRow.Clone()
	moved.Account = account.ID
	overwrite(t, s, tokenRow, moved)
	for _, d := range notListed(t, "a token that names another account", thief, nil, mine.ID) {
		if d.ID == mine.ID {
			t.Error("another account sees the id of a token")
		}
	}
	if d := notListed(t, "a token that names another account", v, nil, mine.ID); len(d) > 0 {
		t.Errorf("a list names %v, which do not exist", d)
	}
	overwrite(t, s, moved, tokenRow)

	for what, change := range map[string]func(*store.Record){
		"that names another account": func(r *store.Record) { r.Account = account.ID },
		"of a token of another":      func(r *store.Record) { r.Parent = tokenRow.ID; r.Parent[15] ^= 1 },
	} {
		spoiled := row.Clone()
		change(spoiled)
		overwrite(t, s, row, spoiled)
		p, err := v.ListPaymentData(ctx, token.ID, nil)
		switch {
		case p == nil || len(p.Items) > 0:
			t.Errorf("payment data %s: %+v, %v", what, p, err)
		case p.TotalItems == 1:
			fails(t, "payment data "+what, err, cardvault.ErrDamaged)
		}
		for _, d := range cardvault.Damaged(err) {
			if d != (cardvault.DamagedRecord{Kind: "payment data"}) {
				t.Errorf("payment data %s is named: %v", what, d)
			}
		}
		for _, d := range cardvault.Damaged(errorOf(thief.ListPaymentData(ctx, theirs.ID, nil))) {
			t.Errorf("payment data %s is named to the other: %v", what, d)
		}
		overwrite(t, s, spoiled, row)
	}
	if p := must(v.ListPaymentData(ctx, token.ID, nil))(t); p.Items[0].ID != payment.ID {
		t.Error("payment data that was put back is not listed")
	}
}
