package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/google/uuid"
)

// A shop is a vault on a lying store, with a few records of every kind.
type shop struct {
	*lab
	liar  *storetest.LyingStore
	other *cardvault.Vault // another account

	alice, bob, carol, theirs uuid.UUID // tokens; alice and carol have the same card, theirs is in the other account
	root, child, next         *cardvault.APIKey
	texts                     []cardvault.APIKeyText // texts of the keys, and of one key of the other account
	hook                      *cardvault.Webhook
	session                   cardvault.SessionID
}

// inShop runs f in a bubble with a shop on s. Each of its tokens has its network token.
func inShop(t *testing.T, s store.Store, f func(s *shop)) {
	t.Helper()
	liar := storetest.Liar(s)
	outside := bubble.Outside(t, liar)
	bubble.Test(t, func(t *testing.T) {
		l := &lab{TB: t, net: &scripted{shared: true}, store: &frail{base: outside}}
		l.opts = cardvault.Options{Mode: cardvault.Sandbox, Network: l.net, Webhooks: &post{t: t}}
		l.Vault = l.open()
		s := &shop{lab: l, liar: liar}
		ctx := t.Context()
		a, err := s.CreateAccount(ctx, "other", nil)
		s.must(err)
		s.other = s.In(a.ID)
		s.hook = s.lab.hook(url)
		imports := func(v *cardvault.Vault, c cardvault.Card, key string) uuid.UUID {
			token, err := v.Import(ctx, c, &cardvault.ImportOptions{BusinessKey: key})
			s.must(err)
			return token.ID
		}
		s.alice = imports(s.Vault, visa, "alice")
		s.bob = imports(s.Vault, mastercard, "bob")
		s.carol = imports(s.Vault, visa, "carol")
		s.theirs = imports(s.other, mastercard, "alice")
		makes := func(v *cardvault.Vault, creator uuid.UUID) *cardvault.APIKey {
			k, err := v.CreateAPIKey(ctx, "a key", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL, Creator: creator})
			s.must(err)
			s.texts = append(s.texts, k.Text)
			return k
		}
		s.root = makes(s.Vault, uuid.Nil)
		s.child = makes(s.Vault, s.root.ID)
		s.next = makes(s.Vault, s.root.ID)
		makes(s.other, uuid.Nil)
		made, err := s.CreateSession(ctx, nil)
		s.must(err)
		s.session = made.ID
		_, err = s.other.CreateWebhook(ctx, url+"other", nil)
		s.must(err)
		imports(s.other, visa, "dave")
		s.drain()
		f(s)
	})
}

// onStores runs f on every store that these tests use.
func onStores(t *testing.T, f func(t *testing.T, s store.Store)) {
	t.Run("memstore", func(t *testing.T) { f(t, memstore.New()) })
	t.Run("boltstore", func(t *testing.T) {
		s, err := boltstore.Open(t.Context(), t.TempDir()+"/lies.db", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		f(t, s)
	})
}

// lies returns the lies that a vault notices. It leaves out former rows, which no single
// answer reveals as a lie.
func lies() []storetest.Lie {
	return slices.DeleteFunc(storetest.Lies(), func(l storetest.Lie) bool { return l == storetest.Stale })
}

// TestReadsOfALiar: whatever a store answers, a call gives the right answer or ErrDamaged.
func TestReadsOfALiar(t *testing.T) {
	onStores(t, func(t *testing.T, st store.Store) {
		inShop(t, st, func(s *shop) {
			ctx := s.Context()
			guest, err := s.CreateSession(ctx, &cardvault.SessionOptions{TokenTTL: time.Second})
			s.must(err)
			s.must2(s.Tokenize(ctx, guest.ID, visa))
			s.pass(2 * time.Second)
			one := func(x any, err error) (string, error) { return fmt.Sprintf("%+v", x), err }
			name := func(w *cardvault.Webhook, err error) (string, error) {
				if err != nil {
					return "", err
				}
				return fmt.Sprint(w.ID, w.URL), nil
			}
			tokens := func(v *cardvault.Vault, o *cardvault.TokenListOptions) (string, error) {
				page, err := v.List(ctx, o)
				if err != nil {
					return "", err
				}
				text := fmt.Sprint(page.TotalItems, page.TotalPages)
				for _, t := range page.Items {
					text += fmt.Sprint(" ", t.ID, t.BusinessKey)
				}
				return text, nil
			}
			calls := map[string]func() (string, error){
				"Get": func() (string, error) {
					t, err := s.Get(ctx, s.alice)
					if err != nil {
						return "", err
					}
					return fmt.Sprint(t.ID, t.BusinessKey, t.MaskedAccountNumber), nil
				},
				"List": func() (string, error) { return tokens(s.Vault, nil) },
				"List by business key": func() (string, error) {
					return tokens(s.Vault, &cardvault.TokenListOptions{BusinessKey: "alice"})
				},
				"List by another business key": func() (string, error) {
					return tokens(s.Vault, &cardvault.TokenListOptions{BusinessKey: "nobody"})
				},
				"List by scheme": func() (string, error) {
					return tokens(s.Vault, &cardvault.TokenListOptions{Scheme: []card.Scheme{card.VISA}})
				},
				"List by status": func() (string, error) {
					return tokens(s.Vault, &cardvault.TokenListOptions{NetworkTokenStatus: []network.Status{network.Failed}})
				},
				"List, pages": func() (string, error) {
					return tokens(s.Vault, &cardvault.TokenListOptions{Limit: 2, Page: 2, Ascending: true})
				},
				"List, first page": func() (string, error) { return tokens(s.Vault, &cardvault.TokenListOptions{Limit: 2}) },
				"List, bounds": func() (string, error) {
					return tokens(s.Vault, &cardvault.TokenListOptions{From: time.Now().Add(-time.Hour), To: time.Now().Add(-time.Minute)})
				},
				"List, another account": func() (string, error) { return tokens(s.other, nil) },
				"All": func() (text string, err error) {
					for t, err := range s.All(ctx, nil) {
						if err != nil {
							return "", err
						}
						text += fmt.Sprint(" ", t.ID)
					}
					return text, nil
				},
				"Account":         func() (string, error) { return one(s.Account(ctx)) },
				"PrimaryMerchant": func() (string, error) { return one(s.PrimaryMerchant(ctx)) },
				"Webhook":         func() (string, error) { w, err := s.Webhook(ctx, s.hook.ID); return name(w, err) },
				"Session": func() (string, error) {
					d, err := s.Session(ctx, s.session)
					if err != nil {
						return "", err
					}
					return fmt.Sprint(d.State, d.TokenID), nil
				},
				"ListAccounts": func() (string, error) {
					p, err := s.ListAccounts(ctx, nil)
					if err != nil {
						return "", err
					}
					return fmt.Sprint(p.TotalItems, *p.Items[0]), nil
				},
				"ListAPIKeys": func() (string, error) {
					p, err := s.ListAPIKeys(ctx, nil)
					if err != nil {
						return "", err
					}
					return fmt.Sprint(p.TotalItems, p.Items[0].ID), nil
				},
				"ListWebhooks": func() (string, error) {
					p, err := s.ListWebhooks(ctx, nil)
					if err != nil {
						return "", err
					}
					return fmt.Sprint(p.TotalItems, p.Items[0].ID), nil
				},
				"ListPaymentData": func() (string, error) {
					p, err := s.ListPaymentData(ctx, s.alice, nil)
					if err != nil {
						return "", err
					}
					return fmt.Sprint(p.TotalItems), nil
				},
				"ListDeliveries": func() (string, error) {
					p, err := s.ListDeliveries(ctx, s.hook.ID, nil)
					if err != nil {
						return "", err
					}
					text := fmt.Sprint(p.TotalItems)
					for _, d := range p.Items {
						text += fmt.Sprint(" ", d.ID, d.TokenID)
					}
					return text, nil
				},
			}
			for i, text := range s.texts {
				calls[fmt.Sprint("Authenticate ", i)] = func() (string, error) {
					p, err := s.Authenticate(ctx, text.Text())
					if err != nil {
						return "", err
					}
					return fmt.Sprint(p.Key.ID, p.Account.ID), nil
				}
			}
			told, found := map[storetest.Lie]int{}, map[storetest.Lie]int{}
			for name, call := range calls {
				s.liar.Tell(0)
				want, err := call()
				s.must(err)
				for _, lie := range lies() {
					s.liar.Tell(lie)
					got, err := call()
					n := s.liar.Told()
					told[lie] += n
					switch {
					case errors.Is(err, cardvault.ErrDamaged):
						found[lie]++
					case err != nil || got != want:
						s.Errorf("%s, lie %d, %d times: %s, %v; want %s", name, lie, n, got, err, want)
					}
				}
			}
			s.liar.Tell(0)
			for _, lie := range lies() {
				// A vault uses Next to look for work, and Children to find the records of
				// another.
				if lie < storetest.NextEarlier && lie != storetest.NotDue && (told[lie] == 0 || found[lie] == 0) {
					s.Errorf("lie %d was used %d times and found %d times", lie, told[lie], found[lie])
				}
			}
		})
	})
}

// TestWritesOnALiar: whatever a store answers, a call changes its own records or none.
func TestWritesOnALiar(t *testing.T) {
	for _, lie := range lies() {
		onStores(t, func(t *testing.T, st store.Store) {
			inShop(t, st, func(s *shop) {
				ctx, cancel := context.WithTimeout(s.Context(), 100*time.Millisecond) // ends repeated tries that find another version
				defer cancel()
				name := card.NewName([]byte("Bobby"))
				s.liar.Tell(lie)
				for what, call := range map[string]func() error{
					"Update": func() error {
						_, err := s.Update(ctx, s.bob, cardvault.TokenUpdate{CardholderName: &name})
						return err
					},
					"DeleteAPIKey": func() error { return s.DeleteAPIKey(ctx, s.child.ID) },
					"Delete":       func() error { return s.Delete(ctx, s.carol) },
					"Notify": func() error {
						return s.Notify(ctx, &network.Notice{ID: "1", Token: network.Ref{ID: s.net.keyOf(s, s.theirs)},
							Kind: network.NoticeSuspended, OccurredAt: time.Now(), By: network.OwnerIssuer})
					},
					"CreateMerchant": func() error { _, err := s.CreateMerchant(ctx, "m", nil); return err },
					"DeleteWebhook":  func() error { return s.DeleteWebhook(ctx, s.hook.ID) },
					"Tokenize":       func() error { _, err := s.Tokenize(ctx, s.session, visa); return err },
					"Drain":          func() error { return s.Drain(ctx) },
				} {
					// A record that looks lapsed, or seems to belong to another account, is not
					// found.
					if err := call(); err != nil && !errors.Is(err, cardvault.ErrDamaged) && !errors.Is(err, cardvault.ErrNotFound) &&
						!errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s, lie %d: %v", what, lie, err)
					}
				}
				s.liar.Tell(0)
				s.pass(time.Minute)
				s.drain()
				s.unharmed(lie)
			})
		})
	}
}

// keyOf returns the id of the network token of a token.
func (n *scripted) keyOf(s *shop, token uuid.UUID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.keys[token.String()+":1"]
}

// unharmed checks the records that no call has touched.
func (s *shop) unharmed(lie storetest.Lie) {
	s.Helper()
	for id, key := range map[uuid.UUID]string{s.alice: "alice", s.bob: "bob"} {
		token, err := s.Get(s.Context(), id)
		if err != nil || token.BusinessKey != key {
			s.Errorf("lie %d: token of %s: %v", lie, key, err)
		}
	}
	if token, err := s.other.Get(s.Context(), s.theirs); err != nil || token.BusinessKey != "alice" {
		s.Errorf("lie %d: token of the other account: %v", lie, err)
	}
	if token := s.get(s.alice); token.NetworkTokenStatus != network.Active {
		s.Errorf("lie %d: network token of alice is %v", lie, token.NetworkTokenStatus)
	}
	for i, text := range s.texts {
		if _, err := s.Authenticate(s.Context(), text.Text()); err != nil && i != 1 {
			s.Errorf("lie %d: key %d: %v", lie, i, err)
		}
	}
	if left := s.net.left(); len(left) != 2 { // one of alice and carol, and one of bob
		s.Errorf("lie %d: network tokens left: %v", lie, left)
	}
}

// TestSweepOfALiar: unexpired tokens are not erased. Lapsed tokens are, at the latest when
// the lies have ended.
func TestSweepOfALiar(t *testing.T) {
	for _, lie := range lies() {
		onStores(t, func(t *testing.T, st store.Store) {
			inShop(t, st, func(s *shop) {
				short, err := s.CreateSession(s.Context(), &cardvault.SessionOptions{TokenTTL: time.Second})
				s.must(err)
				guest, err := s.Tokenize(s.Context(), short.ID, visa)
				s.must(err)
				long, err := s.CreateSession(s.Context(), &cardvault.SessionOptions{TokenTTL: time.Hour})
				s.must(err)
				later, err := s.Tokenize(s.Context(), long.ID, visa)
				s.must(err)
				s.pass(time.Minute)
				s.liar.Tell(lie)
				s.run(func() { s.pass(10 * time.Second) })
				s.liar.Tell(0)
				if _, err := s.Get(s.Context(), later.ID); err != nil {
					t.Errorf("lie %d: an unexpired token: %v", lie, err)
				}
				s.unharmed(lie)
				s.pass(time.Minute)
				s.drain()
				s.unharmed(lie)
				for _, r := range s.all(kindToken) {
					if !r.Due.IsZero() && r.Due.Before(time.Now()) {
						t.Errorf("lie %d: %v still exists", lie, guest.ID)
					}
				}
			})
		})
	}
}

// all returns the records of a kind, at most a thousand.
func (l *lab) all(kind store.Kind) (all []*store.Record) {
	l.Helper()
	l.must(l.store.View(l.Context(), func(tx store.ReadTx) (err error) {
		all, err = tx.Scan(kind, uuid.Nil, 1000)
		return err
	}))
	return all
}

// A spinner counts the reads of a store.
type spinner struct {
	store.Store
	views atomic.Int64
}

func (s *spinner) View(ctx context.Context, fn func(store.ReadTx) error) error {
	s.views.Add(1)
	return s.Store.View(ctx, fn)
}

// TestRunDoesNotSpin: due work that cannot be done is retried only now and then.
func TestRunDoesNotSpin(t *testing.T) {
	for _, lie := range []storetest.Lie{0, storetest.NextEarlier, storetest.NotDue, storetest.Dressed} {
		bubble.Test(t, func(t *testing.T) {
			s := &spinner{Store: storetest.Liar(memstore.New())}
			l := &lab{TB: t, net: new(scripted), store: &frail{base: s}}
			l.opts = cardvault.Options{Mode: cardvault.Sandbox, Network: l.net}
			l.Vault = l.open()
			l.imports(visa)
			_, err := l.CreateSession(l.Context(), nil)
			l.must(err)
			l.drain()
			s.Store.(*storetest.LyingStore).Tell(lie)
			l.run(func() {
				l.pass(time.Minute)
				s.views.Store(0)
				l.pass(20 * time.Minute)
			})
			synctest.Wait()
			if n := s.views.Load(); n > 20*60*100 { // ten tasks, each of them looking at a few kinds every second
				t.Errorf("lie %d: %d reads in 20 minutes", lie, n)
			}
		})
	}
}

// TestDuePoison: an edited due time does not erase a card, and a damaged card does not keep
// others from being erased.
func TestDuePoison(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		l.imports(visa)
		var lapsing []uuid.UUID
		for range 20 {
			id, err := l.CreateSession(l.Context(), &cardvault.SessionOptions{TokenTTL: time.Minute})
			l.must(err)
			token, err := l.Tokenize(l.Context(), id.ID, visa)
			l.must(err)
			lapsing = append(lapsing, token.ID)
		}
		var poisoned *store.Record
		for _, r := range l.all(kindToken) {
			if r.Due.IsZero() {
				poisoned = r
			}
		}
		was := *poisoned
		poisoned.Due = time.Now().Add(-time.Hour)
		poisoned.Version++
		l.must(l.store.Update(l.Context(), func(tx store.Tx) error { tx.Put(poisoned); return nil }))
		l.pass(2 * time.Minute)
		if err := l.Drain(l.Context()); !errors.Is(err, cardvault.ErrDamaged) {
			t.Errorf("Drain: %v", err)
		}
		left := l.all(kindToken)
		if len(left) != 1 || left[0].ID != poisoned.ID {
			t.Errorf("%d cards are left of %d lapsed ones and one unexpired", len(left), len(lapsing))
		}
		if len(left) == 1 && string(left[0].Secret) != string(was.Secret) {
			t.Error("the card was changed")
		}
	})
}

// TestIdempotencyKeyMadeToLapse: a call is not made twice after the due time of its
// idempotency key was edited.
func TestIdempotencyKeyMadeToLapse(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		repeats := func() (*cardvault.Token, error) {
			return l.Import(l.Context(), visa, &cardvault.ImportOptions{IdempotencyKey: "order 1"})
		}
		first, err := repeats()
		l.must(err)
		l.pass(time.Minute)
		key := l.all(kindIdempotency)[0]
		key.Due = time.Now().Add(-time.Second)
		key.Version++
		l.must(l.store.Update(l.Context(), func(tx store.Tx) error { tx.Put(key); return nil }))
		if token, err := repeats(); !errors.Is(err, cardvault.ErrDamaged) {
			t.Errorf("the repeated call returns %+v, %v; the first token was %v", token, err, first.ID)
		}
		if n := len(l.all(kindToken)); n != 1 {
			t.Errorf("%d tokens", n)
		}
	})
}
