package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// vaultsuite.Run tests ends of accounts on any store. The tests here take time, look at the
// background work, or kill a process.

// TestFrozenWork: background work of a frozen account waits, except for what networks report,
// and goes on after the thaw.
func TestFrozenWork(t *testing.T) {
	post := &post{t: t}
	inLab(t, &cardvault.Options{Mode: cardvault.Live, Webhooks: post}, func(l *lab) {
		l.hook(url)
		old := l.imports(visa)
		l.drain()
		l.is(old, network.Active, "")
		fresh := l.imports(visa)
		l.must2(l.FreezeAccount(l.Context()))
		asked, told := len(l.net.asked()), len(post.took(url))
		waits := func() {
			t.Helper()
			l.drain()
			if n := len(l.net.asked()); n != asked {
				t.Errorf("the network was called for a frozen account: %v", l.net.asked()[asked:])
			}
			if n := len(post.took(url)); n != told {
				t.Errorf("%d events were sent for a frozen account", n-told)
			}
		}
		waits()
		l.pass(2 * time.Hour)
		l.notify(network.Notice{Kind: network.NoticeSuspended, Token: network.Ref{ID: "network-token-1"}})
		waits()

		l.must2(l.CreateAccount(l.Context(), "another", nil))
		l.must2(l.ListAccounts(l.Context(), nil))
		l.must2(l.RotateKeys(l.Context(), nil))
		l.must2(l.KeyReport(l.Context()))
		l.must2(l.ThawAccount(l.Context()))
		l.pass(16 * time.Minute)
		l.drain()
		l.is(old, network.Inactive, "suspended_by_issuer")
		l.is(fresh, network.Active, "")
		if len(post.took(url)) < told+3 {
			t.Errorf("%d events after the thaw", len(post.took(url))-told)
		}
	})
}

// TestCloseAccount: a closed account is closed for good once its network tokens are deleted at
// the network, however long that takes, and its events are not sent.
func TestCloseAccount(t *testing.T) {
	post := &post{t: t}
	inLab(t, &cardvault.Options{Mode: cardvault.Live, Webhooks: post}, func(l *lab) {
		l.hook(url)
		for range 3 {
			l.imports(visa)
		}
		l.drain()
		l.imports(visa) // whose network token is pending
		told, rows := len(post.took(url)), l.all(5)
		l.net.script(func(_ context.Context, c call) error {
			if c.method == "Delete" {
				return errNotNow
			}
			return nil
		}, nil)

		l.must2(l.CloseAccount(l.Context()))
		for range 5 {
			l.try(l.Drain(l.Context()))
			l.pass(time.Hour)
		}
		if a := l.account(); a.State != cardvault.AccountClosing {
			t.Errorf("the account is %v while its network tokens cannot be deleted", a.State)
		}
		for _, kind := range []store.Kind{3, 5, 9, 20} {
			if n := len(l.all(kind)); n != 0 {
				t.Errorf("%d records of kind %d are left", n, kind)
			}
		}

		l.net.script(nil, nil)
		for range 30 {
			l.pass(time.Hour)
			l.drain()
		}
		if a := l.account(); a.State != cardvault.AccountClosed || a.Name != "" || a.Since.IsZero() || a.ImportApproved {
			t.Errorf("the account: %+v", a)
		}
		if left := l.net.left(); len(left) != 0 {
			t.Errorf("the network still has %v", left)
		}
		if n := len(post.took(url)); n != told {
			t.Errorf("%d events of a closed account were sent", n-told)
		}
		if r, err := l.Verify(l.Context(), nil); err != nil || len(r.Problems) != 0 {
			t.Errorf("Verify of a closed account: %+v, %v", r, err)
		}
		l.must(l.store.base.Update(l.Context(), func(tx store.Tx) error {
			for _, r := range rows {
				tx.(store.Loader).Load(r)
			}
			return nil
		}))
		r, err := l.Verify(l.Context(), nil)
		l.must(err)
		if p := r.Problems; len(p) != 1 || p[0].Kind != cardvault.ProblemClosedAccount || p[0].Count != 4 || p[0].Findings[0].Kind != "token" {
			t.Errorf("records that a closed account has anew: %+v", p)
		}
		l.must2(l.CloseAccount(l.Context()))
		for range 30 {
			l.pass(time.Hour)
			l.drain()
		}
		if r, err := l.Verify(l.Context(), nil); err != nil || len(r.Problems) != 0 || l.account().State != cardvault.AccountClosed {
			t.Errorf("closed once more: %+v, %v", r, err)
		}
		t.Logf("nothing is left of an account of 4 tokens, and %d rows that were put back are reported", len(rows))
		if !strings.Contains(l.log.text(), "an account is closed") {
			t.Error("the log does not say that the account is closed")
		}
	})
}

// A mourner is a sink that hears of the end of accounts, at first badly.
type mourner struct {
	vaulttest.Recorder
	calls []func(context.Context) error
	heard []uuid.UUID
}

func (m *mourner) AccountClosed(ctx context.Context, account uuid.UUID) error {
	m.heard = append(m.heard, account)
	if len(m.heard) > len(m.calls) {
		return nil
	}
	return m.calls[len(m.heard)-1](ctx)
}

// TestAccountSink: the sink hears of the end of an account when nothing of it is left, and again until
// it has taken that. Only then is the account closed.
func TestAccountSink(t *testing.T) {
	sink := &mourner{calls: []func(context.Context) error{
		func(context.Context) error { return errNotNow },
		func(context.Context) error { panic("no") },
		func(ctx context.Context) error { <-ctx.Done(); return nil },
	}}
	inLab(t, &cardvault.Options{Mode: cardvault.Live, Events: sink}, func(l *lab) {
		l.imports(visa)
		l.drain()
		id := l.account().ID
		l.must2(l.CloseAccount(l.Context()))
		for l.account().State != cardvault.AccountClosed {
			if n := len(sink.heard); n > len(sink.calls) {
				t.Fatalf("the sink has heard of it %d times, and the account is %v", n, l.account().State)
			}
			l.try(l.Drain(l.Context()))
			if n := len(l.all(5)); n > 0 && len(sink.heard) > 0 {
				t.Errorf("the sink has heard of the end, and %d tokens are left", n)
			}
			l.pass(10 * time.Minute)
		}
		l.drain()
		if len(sink.heard) != len(sink.calls)+1 || slices.ContainsFunc(sink.heard, func(a uuid.UUID) bool { return a != id }) {
			t.Errorf("the sink has heard of %v", sink.heard)
		}
	})
}

func (l *lab) account() *cardvault.Account {
	l.Helper()
	a, err := l.Account(l.Context())
	l.must(err)
	return a
}

// TestTokenRetention: tokens are deleted at the age that the account says, with an event, and
// no sooner.
func TestTokenRetention(t *testing.T) {
	withSink(t, cardvault.Live, func(l *lab, sink *listener) {
		old := l.imports(visa)
		l.pass(time.Hour)
		l.change(cardvault.AccountUpdate{TokenRetention: new(2 * time.Hour)})
		l.pass(59 * time.Minute)
		young := l.imports(visa)
		l.drain()
		l.get(old)
		l.run(func() { l.pass(2 * time.Minute) })
		l.pass(time.Hour)
		l.drain()
		if _, err := l.Get(l.Context(), old); !errors.Is(err, cardvault.ErrNotFound) {
			t.Errorf("a token whose retention has ended: %v", err)
		}
		l.get(young)

		l.change(cardvault.AccountUpdate{TokenRetention: new(time.Duration(0))})
		l.pass(24 * time.Hour)
		l.drain()
		l.get(young)
		ended := 0
		for _, p := range sink.passed() {
			if p.TokenID == old && p.Type == "token.deleted" && p.Reason == "expired" {
				ended++
			}
		}
		if ended != 1 {
			t.Errorf("%d events for the end of the token", ended)
		}
	})
}

// TestAccountEndsInAudit: the audit log of an account tells how it ended, also when it is closed.
func TestAccountEndsInAudit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := openAudited(t, memstore.New(), new(cardvault.AuditOptions), cardvault.Live)
		defer a.Close()
		ctx := t.Context()
		token := a.importCard()
		for _, call := range []func(context.Context) (*cardvault.Account, error){a.FreezeAccount, a.ThawAccount, a.CloseAccount} {
			if _, err := call(ctx); err != nil {
				t.Fatal(err)
			}
			_, _ = a.Get(ctx, token.ID)
		}
		for range 3 {
			if err := a.Drain(ctx); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
		}
		var all bytes.Buffer
		if err := a.ExportAudit(ctx, &all, time.Time{}, time.Time{}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"account.freeze", "account.thaw", "account.close", "account.closed", "ACCOUNT_FROZEN"} {
			if !strings.Contains(all.String(), `"`+want+`"`) {
				t.Errorf("the log does not have %s", want)
			}
		}
		if _, err := a.AuditRecords(ctx, nil); err != nil {
			t.Errorf("the log of a closed account: %v", err)
		}
	})
}

const closedChild = "CARDVAULT_CLOSED"

// TestCloseKilled kills a process at steps of the closing of an account. Every time the account
// is refused or as it was, and another process closes it.
func TestCloseKilled(t *testing.T) {
	opened := func(t *testing.T, s store.Store) *cardvault.Vault {
		t.Helper()
		v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), nil)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	closes := func(t *testing.T, s store.Store) {
		v := opened(t, s)
		defer v.Close()
		if _, err := v.CloseAccount(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := v.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Minute)
		}
	}
	open := func(t *testing.T, dir string) store.Store {
		s, err := boltstore.Open(t.Context(), filepath.Join(dir, "cardvault.db"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if call, ok := os.LookupEnv(closedChild); ok {
		bubble.Test(t, func(t *testing.T) {
			var dir string
			s := new(steps)
			var left int64
			if _, err := fmt.Sscan(call, &left, &dir); err != nil {
				t.Fatal(err)
			}
			s.left.Store(left)
			file := open(t, dir)
			defer file.Close()
			closes(t, steppedStore{file, s})
			fmt.Println("steps", -s.left.Load())
		})
		return
	}

	most, all := kills(6), 0
	for n := range most + 1 {
		dir := t.TempDir()
		bubble.Test(t, func(t *testing.T) {
			file := open(t, dir)
			v := opened(t, file)
			for range 8 {
				imported(t, v)
			}
			if err := errors.Join(v.Close(), file.Close()); err != nil {
				t.Fatal(err)
			}
		})

		step := 0 // never, at first
		if n > 0 {
			step = 1 + (n-1)*max(all, most)/most%(all-10) // of the last ones there may be fewer
		}
		out, over := childKilled(t, "TestCloseKilled", closedChild, fmt.Sprint(step, " ", dir))
		if n == 0 {
			if _, err := fmt.Sscanf(out, "steps %d", &all); !over || err != nil || all < 50 {
				t.Fatalf("%v, %v\n%s", over, err, out)
			}
		} else if over {
			t.Fatalf("it was not killed\n%s", out)
		}

		bubble.Test(t, func(t *testing.T) {
			file := open(t, dir)
			defer file.Close()
			closes(t, file)
			v := opened(t, file)
			defer v.Close()
			if a, err := v.Account(t.Context()); err != nil || a.State != cardvault.AccountClosed {
				t.Errorf("killed at %d of %d: %+v, %v", step, all, a, err)
			}
			left := 0
			err := file.View(t.Context(), func(tx store.ReadTx) error {
				for kind := store.Kind(3); kind != 0; kind++ {
					found, err := tx.Scan(kind, uuid.Nil, 10)
					if err != nil {
						return err
					}
					for _, r := range found {
						if r.Account != uuid.Nil {
							left++
						}
					}
				}
				return nil
			})
			if err != nil || left != 0 {
				t.Errorf("%d records are left, %v", left, err)
			}
		})
	}
	t.Logf("killed at %d of %d steps", most, all)
}
