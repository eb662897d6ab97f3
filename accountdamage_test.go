package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
)

// breakable puts the lab on a store with rows that cannot be read, when a test says so.
func (l *lab) breakable() *unreadable {
	s := &unreadable{Store: l.store.on()}
	l.store.rests(s)
	return s
}

// edit changes a row, as a writer of the store may, and not its seals.
func (l *lab) edit(r *store.Record, change func(*store.Record)) {
	l.Helper()
	l.must(l.store.on().Update(l.Context(), func(tx store.Tx) error {
		r := r.Clone()
		change(r)
		r.Version++
		tx.Put(r)
		return nil
	}))
}

// overwrite puts a row in the place of another. Both must be the first version.
func overwrite(l *lab, old, r *store.Record) {
	l.Helper()
	l.must(l.store.on().Update(l.Context(), func(tx store.Tx) error {
		tx.Delete(old.Kind, old.ID)
		tx.Put(r)
		return nil
	}))
}

// TestRetentionOfDamaged: tokens that cannot be read, more of them than are looked at together,
// keep no other token beyond its retention. A card whose row was edited to name the account
// stays: it is another account's.
func TestRetentionOfDamaged(t *testing.T) {
	withSink(t, cardvault.Live, func(l *lab, _ *listener) {
		broken := l.breakable()
		a, err := l.CreateAccount(l.Context(), "another", nil)
		l.must(err)
		l.must2(l.In(a.ID).Import(l.Context(), visa, nil))
		l.crowd(600, visa)
		rows := l.all(kindToken)
		var others *store.Record
		for i, r := range rows { // in the order of their import
			switch {
			case r.Account == a.ID:
				others = r
				named := r.Clone()
				named.Account = l.account().ID
				overwrite(l, r, named)
			case i <= 300:
				broken.rows.Store(store.Key{Kind: kindToken, ID: r.ID}, true)
			case i <= 560:
				l.edit(r, func(r *store.Record) { r.Shown[20] ^= 1 })
			}
		}

		l.change(cardvault.AccountUpdate{TokenRetention: new(time.Hour)})
		for range 4 {
			l.pass(time.Hour)
			l.drain()
		}
		left := l.all(kindToken)
		if len(left) != 561 {
			t.Errorf("%d tokens are left of 560 that cannot be read, 40 others, and one of another account", len(left))
		}
		for _, r := range left {
			if r.ID == others.ID && !bytes.Equal(r.Secret, others.Secret) {
				t.Error("the card of another account was changed")
			}
		}
		if !strings.Contains(l.log.text(), "tokens stay at the end of their retention") {
			t.Error("the log does not say that tokens stay")
		}
	})
}

// TestCloseDamaged: rows that cannot be read do not keep a closed account. Every network token
// whose row can be read is deleted at the network.
func TestCloseDamaged(t *testing.T) {
	inLab(t, live, func(l *lab) {
		broken := l.breakable()
		l.crowd(8, visa)
		l.drain()
		for i, r := range l.all(kindToken) {
			switch i {
			case 1:
				broken.rows.Store(store.Key{Kind: kindToken, ID: r.ID}, true)
			case 3:
				broken.rows.Store(store.Key{Kind: kindNetworkToken, ID: r.ID}, true)
			case 5:
				l.edit(r, func(r *store.Record) { r.Shown[20] ^= 1 })
			}
		}

		l.must2(l.CloseAccount(l.Context()))
		for range 30 {
			l.pass(time.Hour)
			l.drain()
		}
		if a := l.account(); a.State != cardvault.AccountClosed {
			t.Errorf("the account is %v", a.State)
		}
		if n := len(l.all(kindToken)) + len(l.all(kindNetworkToken)); n != 0 {
			t.Errorf("%d rows are left", n)
		}
		l.held(1)
		if n := strings.Count(l.log.text(), "network token is left at the network"); n != 1 {
			t.Errorf("the log names %d network tokens", n)
		}
	})
}

// TestDeleteUnreadableNetworkToken: a card can be deleted although the row of its network token
// cannot be read.
func TestDeleteUnreadableNetworkToken(t *testing.T) {
	inLab(t, live, func(l *lab) {
		broken := l.breakable()
		id := l.imports(visa)
		l.drain()
		broken.rows.Store(store.Key{Kind: kindNetworkToken, ID: l.all(kindToken)[0].ID}, true)
		l.must(l.Vault.Delete(l.Context(), id))
		if _, err := l.Get(l.Context(), id); !errors.Is(err, cardvault.ErrNotFound) {
			t.Errorf("the deleted token: %v", err)
		}
		if n := len(l.all(kindToken)) + len(l.all(kindNetworkToken)); n != 0 {
			t.Errorf("%d rows are left", n)
		}
		if !strings.Contains(l.log.text(), "network token is left at the network") {
			t.Error("the log does not name the network token")
		}
	})
}

// A relabeler is a store whose lists have records that name another account.
type relabeler struct {
	store.Store
	kind store.Kind // 0: it changes none
}

func (s *relabeler) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(relabelerTx{tx, s}) })
}

type relabelerTx struct {
	store.ReadTx
	s *relabeler
}

func (tx relabelerTx) List(q *store.Query) (*store.List, error) {
	list, err := tx.ReadTx.List(q)
	if err == nil && q.Kind == tx.s.kind && len(list.Records) > 0 {
		list.Records[0].Account[0] ^= 1
	}
	return list, err
}

// TestForeignRows: a row in the lists of an account that names another account keeps no token
// there from its network token, nor from being changed.
func TestForeignRows(t *testing.T) {
	post := &post{t: t}
	inLab(t, &cardvault.Options{Mode: cardvault.Live, Webhooks: post}, func(l *lab) {
		s := &relabeler{Store: l.store.on()}
		l.store.rests(s)
		l.activate(false)
		l.hook(url)
		l.hook(url + "/second")
		s.kind = kindWebhook
		l.Vault = l.open() // without the webhooks that this process knows
		l.crowd(3, visa)
		patch(l, l.imports(visa), "a key")
		s.kind = 0
		l.drain()
		if n := len(post.took(url)) + len(post.took(url+"/second")); n < 5 {
			t.Errorf("%d events were sent", n)
		}

		s.kind = kindToken
		l.activate(true)
		l.run(func() { l.pass(10 * time.Minute) })
		s.kind = 0
		if n := l.count(network.Active); n != 4 {
			t.Errorf("%d tokens of 4 have their network token", n)
		}
	})
}
