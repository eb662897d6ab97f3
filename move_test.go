package cardvault_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/backuptest"
	"github.com/cardvault/cardvault/internal/keyfile"
	inside "github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// shown returns what a vault shows of all tokens.
func shown(t *testing.T, v *cardvault.Vault) map[string]string {
	t.Helper()
	all := map[string]string{}
	for a, err := range v.AllAccounts(t.Context(), nil) {
		noErr(t, err)
		if a.State >= cardvault.AccountClosing {
			continue
		}
		for token, err := range v.In(a.ID).All(t.Context(), nil) {
			noErr(t, err)
			text, err := json.Marshal(token)
			noErr(t, err)
			all[fmt.Sprint(a.ID, token.ID)] = string(text)
		}
	}
	return all
}

// movedOptions are those of programs on either place.
func movedOptions(t *testing.T, thaw uuid.UUID) *cardvault.Options {
	return &cardvault.Options{Purposes: []string{"test"}, Webhooks: &post{t: t}, Audit: new(cardvault.AuditOptions), Thaw: thaw}
}

func moveInto(t *testing.T, from, to store.Store) (*cardvault.MoveReport, error) {
	t.Helper()
	return cardvault.Move(t.Context(), from, to, mustKeyBytes(t, goldenKey()), &cardvault.MoveOptions{Audit: new(cardvault.AuditOptions)})
}

// TestMove: what could be read before can be read after, under the same ids, what was deleted is
// gone, and only the new place works.
func TestMove(t *testing.T) {
	for name, places := range map[string]func(t *testing.T) (from, to store.Store){
		"memory to bbolt": func(t *testing.T) (from, to store.Store) { return memstore.New(), boltIn(t, t.TempDir()) },
		"bbolt to memory": func(t *testing.T) (from, to store.Store) { return boltIn(t, t.TempDir()), memstore.New() },
	} {
		synctest.Test(t, func(t *testing.T) {
			t.Log(name)
			from, to := places(t)
			keys := mustKeyBytes(t, goldenKey())
			l := &ledgered{backedUp: backedUp{store: from}}
			l.fillAll(t)
			var log bytes.Buffer
			opts := movedOptions(t, uuid.Nil)
			opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
			v, err := cardvault.New(t.Context(), from, keys, opts)
			noErr(t, err)
			want := shown(t, v)
			running := make(chan error, 1)
			go func() { running <- v.Run(t.Context()) }()

			report, err := moveInto(t, from, to)
			noErr(t, err)
			if report.ID == uuid.Nil || report.Records < 10 || report.Pause < 0 {
				t.Errorf("report %+v", report)
			}
			l.refuses(t, v)
			if err := <-running; !errors.Is(err, cardvault.ErrMoved) {
				t.Errorf("Run = %v", err)
			}
			_ = v.Close()
			if !strings.Contains(log.String(), "have no record in the audit log") {
				t.Errorf("the log does not say that calls have no record:\n%s", log.String())
			}
			for _, thaw := range []uuid.UUID{{}, report.ID} {
				if _, err := cardvault.New(t.Context(), from, keys, movedOptions(t, thaw)); !errors.Is(err, cardvault.ErrMoved) {
					t.Errorf("New of the former place = %v", err)
				}
			}

			after, err := cardvault.New(t.Context(), to, keys, movedOptions(t, uuid.Nil))
			noErr(t, err)
			defer after.Close()
			is := shown(t, after)
			for id, text := range want {
				if is[id] != text {
					t.Errorf("token %s is %s, and was %s", id, is[id], text)
				}
			}
			if len(is) != len(want) {
				t.Errorf("%d tokens of %d", len(is), len(want))
			}
			l.gone(t, after, true)
			l.audited(t, after)
			noErr(t, after.Drain(t.Context()))
			_, err = after.Import(t.Context(), visa, nil)
			noErr(t, err)

			again, err := moveInto(t, from, to)
			if err != nil || again.ID != report.ID {
				t.Errorf("Move once more = %+v, %v", again, err)
			}
			if _, err := moveInto(t, from, memstore.New()); !errors.Is(err, cardvault.ErrMoved) {
				t.Errorf("Move into a third place = %v", err)
			}
		})
	}
}

// fillAll makes the vault, and deletes something of each sort.
func (l *ledgered) fillAll(t *testing.T) {
	t.Helper()
	v := auditedOn(t, l.store)
	ctx := t.Context()
	account, err := v.CreateAccount(ctx, "second", nil)
	noErr(t, err)
	closed, err := v.CreateAccount(ctx, "closed", nil)
	noErr(t, err)
	l.account, l.closed = account.ID, closed.ID
	imported := func(v *cardvault.Vault, business string) *cardvault.Token {
		token, err := v.Import(ctx, visa, &cardvault.ImportOptions{BusinessKey: business})
		noErr(t, err)
		return token
	}
	l.token = imported(v, "order 1")
	for range 5 {
		imported(v.In(account.ID), "")
	}
	key, err := v.CreateAPIKey(ctx, "key", []cardvault.Scope{cardvault.ScopeTokensRead}, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	noErr(t, err)
	l.key = key.Text.Text()
	gone, err := v.CreateAPIKey(ctx, "gone", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	noErr(t, err)
	l.keyText = gone.Text.Text()
	hook, err := v.CreateWebhook(ctx, "https://shop.example/hook", nil)
	noErr(t, err)
	l.webhook = hook.ID
	l.tokens = []*cardvault.Token{imported(v, ""), imported(v.In(account.ID), "")}
	noErr(t, v.Delete(ctx, l.tokens[0].ID))
	noErr(t, v.In(l.account).Delete(ctx, l.tokens[1].ID))
	noErr(t, v.DeleteAPIKey(ctx, gone.ID))
	noErr(t, v.DeleteWebhook(ctx, hook.ID))
	_, err = v.In(closed.ID).CloseAccount(ctx)
	noErr(t, err)
	_, err = v.RotateKeys(ctx, nil)
	noErr(t, err)
	noErr(t, v.Close())
}

// refuses checks that a vault which was open while it moved refuses calls of each sort.
func (l *ledgered) refuses(t *testing.T, v *cardvault.Vault) {
	t.Helper()
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"Get":    func() error { _, err := v.Get(ctx, l.token.ID); return err },
		"List":   func() error { _, err := v.List(ctx, nil); return err },
		"Import": func() error { _, err := v.Import(ctx, visa, nil); return err },
		"Delete": func() error { return v.Delete(ctx, l.token.ID) },
		"Use": func() error {
			return v.Use(ctx, l.token.ID, "test", func(context.Context, *cardvault.UsedCard) error { return nil })
		},
		"Key":     func() error { _, err := v.Authenticate(ctx, l.key); return err },
		"Account": func() error { _, err := v.Account(ctx); return err },
		"Rotate":  func() error { _, err := v.RotateKeys(ctx, nil); return err },
		"Freeze":  func() error { _, err := v.In(l.account).FreezeAccount(ctx); return err },
		"Backup":  func() error { _, err := v.Backup(ctx, new(bytes.Buffer), nil); return err },
		"Drain":   func() error { return v.Drain(ctx) },
	} {
		if err := call(); !errors.Is(err, cardvault.ErrMoved) {
			t.Errorf("%s in the former place = %v", name, err)
		}
	}
}

// audited checks that the log of the moved vault is whole, and has the move.
func (l *ledgered) audited(t *testing.T, v *cardvault.Vault) {
	t.Helper()
	var b bytes.Buffer
	noErr(t, v.In(uuid.Nil).ExportAudit(t.Context(), &b, time.Time{}, time.Time{}))
	calls := map[string]int{}
	_, err := audit.Verify(&b, &audit.VerifyOptions{PublicKeys: v.AuditPublicKeys(), Each: func(r *audit.Record) error { calls[r.Operation]++; return nil },
		Open: func(r *audit.Record) error { calls[r.Operation]++; return nil }})
	noErr(t, err)
	if calls["vault.move"] != 1 || calls["vault.thaw"] != 1 {
		t.Errorf("the log has %v", calls)
	}
}

// A movingStore counts the Updates of a store that names its changes, as steps.
type movingStore struct {
	store.Store
	store.Watcher
	*steps
}

func (s movingStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	return steppedStore{s.Store, s.steps}.Update(ctx, fn)
}

func movingSteps(s store.Store, at *steps) store.Store { return movingStore{s, s.(store.Watcher), at} }

// idIn returns the id that an error names after a text.
func idIn(err error, text string) uuid.UUID {
	_, rest, _ := strings.Cut(fmt.Sprint(err), text)
	id, _ := uuid.Parse(rest[:min(36, len(rest))])
	return id
}

// TestMoveKilled kills a process at every seventh step of a move, or FAULTS processes, at each step in
// turn. Every time one place can work and not both, the move goes on, and it can be taken back while
// the former place says so.
func TestMoveKilled(t *testing.T) {
	const child = "CARDVAULT_MOVED"
	if call, ok := os.LookupEnv(child); ok {
		var left int64
		var dir string
		if _, err := fmt.Sscan(call, &left, &dir); err != nil {
			t.Fatal(err)
		}
		s := new(steps)
		s.left.Store(left)
		keys := cardvault.WrappedBy(steppedKey{keyfile.NewKey(goldenKey()), s})
		_, err := cardvault.Move(context.Background(), movingSteps(boltIn(t, dir), s), movingSteps(boltIn(t, dir+"/new"), s), keys, &cardvault.MoveOptions{Audit: new(cardvault.AuditOptions)})
		if err != nil {
			t.Fatal(err)
		}
		return
	}

	first := t.TempDir()
	s := boltIn(t, first)
	l := &ledgered{backedUp: backedUp{store: s}}
	l.fillAll(t)
	noErr(t, s.Close())
	file, err := os.ReadFile(filepath.Join(first, "cardvault.db"))
	noErr(t, err)

	var before, fenced, after int // where the former place works, none does, the new place does
	stride := 7
	if kills(0) > 0 {
		stride = 1
	}
steps:
	for step, n := 1, 0; ; step, n = step+stride, n+1 {
		dir := t.TempDir()
		noErr(t, errors.Join(os.WriteFile(filepath.Join(dir, "cardvault.db"), file, 0o600), os.Mkdir(filepath.Join(dir, "new"), 0o700)))
		_, over := childKilled(t, "TestMoveKilled", child, fmt.Sprint(step, " ", dir))
		l.afterKill(t, step, boltIn(t, dir), boltIn(t, filepath.Join(dir, "new")), &before, &fenced, &after)
		switch {
		case over && n >= kills(0):
			break steps
		case over:
			step = 0
		}
		noErr(t, os.RemoveAll(dir))
	}
	t.Logf("killed %d times before the fence, %d times behind it, and %d times after the move", before, fenced, after)
	if before < 2 || fenced < 5 || after < 1 {
		t.Errorf("killed %d times before the fence, %d times behind it, and %d times after the move", before, fenced, after)
	}
}

// afterKill checks both places of a move that was killed, and ends it.
func (l *ledgered) afterKill(t *testing.T, step int, from, to store.Store, before, fenced, after *int) {
	t.Helper()
	keys := mustKeyBytes(t, goldenKey())
	opens := func(s store.Store, thaw uuid.UUID) error {
		v, err := cardvault.New(t.Context(), s, keys, movedOptions(t, thaw))
		if err == nil {
			l.gone(t, v, true)
			err = v.Close()
		}
		return err
	}
	marked := len(backuptest.Records(t, to)) > 0
	old, now := opens(from, uuid.Nil), error(cardvault.ErrFrozen)
	if marked { // otherwise a vault would be made in it
		now = opens(to, uuid.Nil)
	}
	switch {
	case old == nil && errors.Is(now, cardvault.ErrFrozen):
		*before++
	case errors.Is(old, cardvault.ErrMoved) && errors.Is(now, cardvault.ErrFrozen):
		*fenced++
	case errors.Is(old, cardvault.ErrMoved) && now == nil:
		*after++
	default:
		t.Fatalf("step %d: the former place: %v; the new one: %v", step, old, now)
	}

	move := idIn(old, "Options.Thaw to ")
	if back := move != uuid.Nil && step%2 == 0; back {
		noErr(t, opens(from, move))
		noErr(t, opens(from, uuid.Nil))
		if err := opens(to, move); !errors.Is(err, cardvault.ErrFrozen) {
			t.Fatalf("step %d: the new place of a move that was taken back: %v", step, err)
		}
	}
	if _, err := moveInto(t, from, to); err != nil {
		t.Fatalf("step %d, repeated: %v", step, err)
	}
	noErr(t, opens(to, uuid.Nil))
	for _, thaw := range []uuid.UUID{{}, move} {
		if err := opens(from, thaw); !errors.Is(err, cardvault.ErrMoved) {
			t.Fatalf("step %d: the former place after the move: %v", step, err)
		}
	}
	noErr(t, errors.Join(from.Close(), to.Close()))
}

// A keepsMark store keeps the mark of a restoration.
type keepsMark struct {
	store.Store
	on atomic.Bool
}

func (s *keepsMark) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error {
		w := &keepsMarkTx{Tx: tx}
		if err := fn(w); err != nil {
			return err
		}
		if w.thaws && s.on.Load() {
			return store.ErrUnavailable
		}
		return nil
	})
}

type keepsMarkTx struct {
	store.Tx
	thaws bool
}

func (tx *keepsMarkTx) Load(r *store.Record) { tx.Tx.(store.Loader).Load(r) }

func (tx *keepsMarkTx) Delete(kind store.Kind, id uuid.UUID) {
	tx.thaws = tx.thaws || inside.IsRestoration(&store.Record{Kind: kind, ID: id})
	tx.Tx.Delete(kind, id)
}

// TestMoveFollows: another move has begun a copy just as the first one left the former place, and
// has died. The move goes on nevertheless, and until then no place opens.
func TestMoveFollows(t *testing.T) {
	from, to := memstore.New(), &keepsMark{Store: memstore.New()}
	l := &ledgered{backedUp: backedUp{store: from}}
	l.fillAll(t)
	to.on.Store(true)
	if _, err := moveInto(t, from, to); !errors.Is(err, cardvault.ErrUnavailable) {
		t.Fatalf("Move = %v", err)
	}
	keys := mustKeyBytes(t, goldenKey())
	_, err := cardvault.New(t.Context(), from, keys, movedOptions(t, uuid.Nil))
	opener := idIn(err, "Options.Thaw ")
	if opener == uuid.Nil {
		t.Fatalf("the former place: %v", err)
	}

	noErr(t, to.Update(t.Context(), func(tx store.Tx) error {
		mark, err := inside.RestorationOf(tx)
		if err != nil {
			return err
		}
		rows, err := tx.Scan(inside.KindMeta, uuid.Nil, 100)
		for _, r := range rows {
			if !inside.IsRestoration(r) {
				tx.Delete(r.Kind, r.ID)
			}
		}
		mark.Ended = false
		tx.Put(mark.Next())
		return err
	}))
	to.on.Store(false)
	if _, err := cardvault.New(t.Context(), to, keys, movedOptions(t, opener)); !errors.Is(err, cardvault.ErrFrozen) {
		t.Errorf("the incomplete place = %v", err)
	}
	_, err = moveInto(t, from, to)
	noErr(t, err)
	v, err := cardvault.New(t.Context(), to, keys, movedOptions(t, uuid.Nil))
	noErr(t, err)
	l.gone(t, v, true)
	noErr(t, v.Close())
}

// TestMoveRefused: a move that cannot end fences nothing.
func TestMoveRefused(t *testing.T) {
	b := backUp(t)
	other := memstore.New()
	v, err := cardvault.New(t.Context(), other, newKey(t), nil)
	noErr(t, err)
	defer v.Close()
	failed := memstore.New()
	if _, err := restore(t, failed, b.stream[:len(b.stream)/2]); err == nil {
		t.Fatal("half a backup was restored")
	}
	for name, to := range map[string]store.Store{"another vault": other, "itself": b.store, "half a backup": failed, "no store.Loader": plainStore{memstore.New()}} {
		if _, err := moveInto(t, b.store, to); !errors.Is(err, cardvault.ErrNotEmpty) && !errors.Is(err, cardvault.ErrNotEnabled) {
			t.Errorf("Move into %s = %v", name, err)
		}
		b.works(t, b.vault)
	}
	if _, err := moveInto(t, memstore.New(), memstore.New()); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("Move of an empty store = %v", err)
	}
}
