//go:build unix

package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A shelf keeps the parts of a ledger, which may do badly first.
type shelf struct {
	mu    sync.Mutex
	parts []*audit.Part
	calls int
	badly func(ctx context.Context, keep func()) error // nil: it keeps parts
}

func (s *shelf) Append(ctx context.Context, p *audit.Part) error {
	s.mu.Lock()
	s.calls++
	badly := s.badly
	s.mu.Unlock()
	keep := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.parts = append(s.parts, p)
	}
	if badly != nil {
		return badly(ctx, keep)
	}
	keep()
	return nil
}

func (s *shelf) Last(_ context.Context, _, account uuid.UUID) (m audit.Mark, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parts {
		if p.AccountID == account && p.Last.Number > m.Number {
			m = p.Last
		}
	}
	return m, nil
}

func (s *shelf) does(badly func(context.Context, func()) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.badly = badly
}

// has reports whether the ledger has the deletion of an object.
func (s *shelf) has(t *testing.T, id uuid.UUID) bool {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	found := false
	for _, p := range s.parts {
		r, err := audit.Verify(bytes.NewReader(p.Export), &audit.VerifyOptions{Each: func(r *audit.Record) error {
			found = found || r.ObjectID == id && strings.HasSuffix(r.Operation, ".delete")
			return nil
		}})
		noErr(t, err)
		if r.AccountID != p.AccountID || r.First != p.First || r.Last.Number != p.Last.Number || r.Last.Hash() != p.Last.Hash {
			t.Errorf("part %d to %d is the export %+v", p.First, p.Last.Number, r)
		}
	}
	return found
}

// ledger returns what a restore takes, the last part first.
func (s *shelf) ledger() *cardvault.DeletionLedger {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := new(cardvault.DeletionLedger)
	for _, p := range slices.Backward(s.parts) {
		l.Exports = append(l.Exports, bytes.NewReader(p.Export))
	}
	return l
}

func ledgerVault(t *testing.T, s store.Store, to audit.Ledger, sync time.Duration) *cardvault.Vault {
	t.Helper()
	v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{
		Purposes: []string{"test"}, Webhooks: &post{t: t}, Audit: &cardvault.AuditOptions{Ledger: to, LedgerSync: sync},
	})
	noErr(t, err)
	return v
}

// A deletable is an object, and the call that ends it.
type deletable struct {
	id  uuid.UUID
	end func() error
}

// deletables makes one object for each call that waits for the ledger.
func deletables(t *testing.T, v *cardvault.Vault) map[string]deletable {
	t.Helper()
	token, err := v.Import(t.Context(), visa, nil)
	noErr(t, err)
	key, err := v.CreateAPIKey(t.Context(), "key", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: time.Hour})
	noErr(t, err)
	hook, err := v.CreateWebhook(t.Context(), "https://shop.example/hook", nil)
	noErr(t, err)
	return map[string]deletable{
		"token":   {token.ID, func() error { return v.Delete(t.Context(), token.ID) }},
		"API key": {key.ID, func() error { return v.DeleteAPIKey(t.Context(), key.ID) }},
		"webhook": {hook.ID, func() error { return v.DeleteWebhook(t.Context(), hook.ID) }},
	}
}

// TestLedgerSync: a deletion returns once the ledger has it. Out of the parts, in any order, a backup
// from before is restored without what was deleted.
func TestLedgerSync(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kept := new(shelf)
		v := ledgerVault(t, memstore.New(), kept, time.Minute)
		objects := deletables(t, v)
		ended, err := v.CreateAccount(t.Context(), "ended", nil)
		noErr(t, err)
		var backup bytes.Buffer
		_, err = v.Backup(t.Context(), &backup, nil)
		noErr(t, err)

		for name, o := range objects {
			noErr(t, o.end())
			if !kept.has(t, o.id) {
				t.Errorf("%s: the ledger has no record of the deletion", name)
			}
			_, err := v.Import(t.Context(), visa, nil)
			noErr(t, err)
		}
		_, err = v.In(ended.ID).CloseAccount(t.Context())
		noErr(t, err)
		if r := v.LedgerReport(); r != (cardvault.LedgerReport{}) {
			t.Errorf("%+v after all calls have waited", r)
		}

		s := memstore.New()
		r, err := cardvault.Restore(t.Context(), s, mustKeyBytes(t, goldenKey()), bytes.NewReader(backup.Bytes()), &cardvault.RestoreOptions{Ledger: kept.ledger()})
		noErr(t, err)
		if r.Deleted != 4 || r.Lost["token.import"] != 2 && r.Lost["token.import"] != 3 { // the last one may have come too late
			t.Errorf("restored %+v", r)
		}
		noErr(t, v.Close())
		restored, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{Thaw: r.ID})
		noErr(t, err)
		defer restored.Close()
		if _, err := restored.Get(t.Context(), objects["token"].id); !errors.Is(err, cardvault.ErrNotFound) {
			t.Errorf("the deleted token: %v", err)
		}

		for i, p := range kept.parts { // a missing part is noticed
			if p.AccountID == uuid.Nil {
				continue
			}
			l := new(cardvault.DeletionLedger)
			for j, p := range kept.parts {
				if j != i {
					l.Exports = append(l.Exports, bytes.NewReader(p.Export))
				}
			}
			last, err := kept.Last(t.Context(), p.VaultID, p.AccountID)
			noErr(t, err)
			_, err = cardvault.Restore(t.Context(), memstore.New(), mustKeyBytes(t, goldenKey()), bytes.NewReader(backup.Bytes()), &cardvault.RestoreOptions{Ledger: l})
			if fine := err == nil || errors.Is(err, cardvault.ErrDamaged); !fine || err == nil && p.Last != last && p.First > 2 {
				t.Errorf("without part %d to %d: %v", p.First, p.Last.Number, err)
			}
		}
	})
}

// TestLedgerFails: while the ledger does badly, a deletion takes effect and says that it is not in
// the ledger, after its time. Nothing else is held up. Once it does well it has everything, whatever
// it had of it before.
func TestLedgerFails(t *testing.T) {
	for name, badly := range map[string]func(ctx context.Context, keep func()) error{
		"hangs":           func(context.Context, func()) error { time.Sleep(2 * time.Minute); return nil },
		"refuses":         func(context.Context, func()) error { return errors.New("no 4242424242424242") },
		"panics":          func(context.Context, func()) error { panic("no") },
		"keeps, too late": func(ctx context.Context, keep func()) error { keep(); <-ctx.Done(); return nil },
		"keeps, and says that it has not": func(_ context.Context, keep func()) error {
			keep()
			return errors.New("no")
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				kept := new(shelf)
				v := ledgerVault(t, memstore.New(), kept, 5*time.Second)
				objects := deletables(t, v)
				time.Sleep(3 * time.Second)
				kept.does(badly)
				for name, o := range objects {
					began := time.Now()
					if err := o.end(); !errors.Is(err, cardvault.ErrLedgerBehind) || errors.Is(err, cardvault.ErrUnavailable) {
						t.Errorf("%s: %v", name, err)
					}
					if took := time.Since(began); took > 6*time.Second {
						t.Errorf("%s took %v", name, took)
					}
					if err := o.end(); !errors.Is(err, cardvault.ErrNotFound) {
						t.Errorf("%s, again: %v", name, err)
					}
				}
				_, err := v.Import(t.Context(), visa, nil)
				noErr(t, err)
				if r := v.LedgerReport(); r.Accounts == 0 || r.Since.IsZero() {
					t.Errorf("%+v while the ledger is behind", r)
				}

				kept.does(nil)
				time.Sleep(5 * time.Minute)
				for name, o := range objects {
					if !kept.has(t, o.id) {
						t.Errorf("%s: the ledger has no record of the deletion", name)
					}
				}
				if r := v.LedgerReport(); r != (cardvault.LedgerReport{}) {
					t.Errorf("%+v after all", r)
				}
				noErr(t, v.Close())
			})
		})
	}
}

// TestLedgerOfTwo: two processes pass one log on, and one goes on for the other when that has died.
func TestLedgerOfTwo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, kept := memstore.New(), new(shelf)
		first, second := ledgerVault(t, s, kept, time.Minute), ledgerVault(t, s, kept, time.Minute)
		defer first.Close()
		var tokens []*cardvault.Token
		for range 8 {
			token, err := first.Import(t.Context(), visa, nil)
			noErr(t, err)
			tokens = append(tokens, token)
		}
		var backup bytes.Buffer
		_, err := first.Backup(t.Context(), &backup, nil)
		noErr(t, err)
		var group sync.WaitGroup
		for i, token := range tokens[:6] {
			v := []*cardvault.Vault{first, second}[i%2]
			group.Go(func() {
				if err := v.Delete(t.Context(), token.ID); err != nil {
					t.Error(err)
				}
				if !kept.has(t, token.ID) {
					t.Error("the ledger has no record of a deletion")
				}
			})
		}
		group.Wait()

		// The ledger hangs for the process that dies, with one log that has a checkpoint and one record
		// that has none.
		released := make(chan struct{})
		dying := ledgerVault(t, s, &shelf{badly: func(context.Context, func()) error { <-released; return errors.New("dead") }}, 3*time.Second)
		if err := dying.Delete(t.Context(), tokens[6].ID); !errors.Is(err, cardvault.ErrLedgerBehind) {
			t.Error(err)
		}
		noErr(t, second.Close())
		alive := ledgerVault(t, s, kept, time.Minute)
		ctx, stop := context.WithCancel(t.Context())
		group.Go(func() { _ = alive.Run(ctx) })
		time.Sleep(2 * time.Minute)
		if !kept.has(t, tokens[6].ID) {
			t.Error("the ledger has no record of the deletion of a process that has died")
		}
		stop()
		group.Wait()
		noErr(t, alive.Close())

		r, err := cardvault.Restore(t.Context(), memstore.New(), mustKeyBytes(t, goldenKey()), bytes.NewReader(backup.Bytes()), &cardvault.RestoreOptions{Ledger: kept.ledger()})
		noErr(t, err)
		if r.Deleted != 7 {
			t.Errorf("restored %+v", r)
		}
		close(released)
		_ = dying.Close()
	})
}

// TestLedgerBegun: the first program with a ledger passes on the logs of all accounts when it ends, also
// without Run. A later one passes on what it has written.
func TestLedgerBegun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		v := ledgerVault(t, s, nil, 0)
		var accounts []uuid.UUID
		for _, name := range []string{"one", "two"} {
			a, err := v.CreateAccount(t.Context(), name, nil)
			noErr(t, err)
			accounts = append(accounts, a.ID)
			_, err = v.In(a.ID).Import(t.Context(), visa, nil)
			noErr(t, err)
		}
		noErr(t, v.Close())

		kept := new(shelf)
		for calls := range 2 {
			before := kept.calls
			noErr(t, ledgerVault(t, s, kept, 0).Close())
			for _, a := range accounts {
				if m, err := kept.Last(t.Context(), uuid.Nil, a); err != nil || m.Number == 0 {
					t.Errorf("the ledger has nothing of account %v", a)
				}
			}
			if n := kept.calls - before; calls > 0 && n > 1 {
				t.Errorf("the second program has passed on %d parts", n)
			}
		}
	})
}

// TestLedgerOfIdle: an account that had nothing to record is in no part, and no backup lacks it. Once
// a checkpoint of its log is known, the parts of it must not be missing.
func TestLedgerOfIdle(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kept := new(shelf)
		v := ledgerVault(t, memstore.New(), kept, time.Minute)
		defer v.Close()
		idle, err := v.CreateAccount(t.Context(), "idle", nil)
		noErr(t, err)
		token, err := v.Import(t.Context(), visa, nil)
		noErr(t, err)
		var backup bytes.Buffer
		_, err = v.Backup(t.Context(), &backup, nil)
		noErr(t, err)
		noErr(t, v.Delete(t.Context(), token.ID))
		restored := func(what string, l *cardvault.DeletionLedger, deleted int64) {
			t.Helper()
			r, err := cardvault.Restore(t.Context(), memstore.New(), mustKeyBytes(t, goldenKey()), bytes.NewReader(backup.Bytes()), &cardvault.RestoreOptions{Ledger: l})
			if deleted < 0 && !errors.Is(err, cardvault.ErrDamaged) || deleted >= 0 && (err != nil || r.Deleted != deleted) {
				t.Errorf("%s: %+v, %v", what, r, err)
			}
			if missing := what == "an idle account"; err == nil && slices.Contains(r.NotInLedger, idle.ID) != missing {
				t.Errorf("%s: %v are not in the ledger", what, r.NotInLedger)
			}
		}
		restored("an idle account", kept.ledger(), 1)
		restored("no part at all", new(cardvault.DeletionLedger), -1)

		before := kept.ledger()
		of := v.In(idle.ID)
		key, err := of.CreateAPIKey(t.Context(), "key", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: time.Hour})
		noErr(t, err)
		noErr(t, of.DeleteAPIKey(t.Context(), key.ID))
		restored("an account that has begun its log", kept.ledger(), 1)
		last := kept.parts[len(kept.parts)-1]
		r, err := audit.Verify(bytes.NewReader(last.Export), nil)
		noErr(t, err)
		if last.AccountID != idle.ID {
			t.Fatalf("the last part is of account %v", last.AccountID)
		}
		before.Kept = []*audit.Checkpoint{r.Last}
		restored("a missing account", before, -1)
	})
}

// TestLedgerForked: a restored vault does not go on with the ledger of its twin, which has another
// log under the same numbers.
func TestLedgerForked(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kept := new(shelf)
		v := ledgerVault(t, memstore.New(), kept, time.Minute)
		token, err := v.Import(t.Context(), visa, nil)
		noErr(t, err)
		var backup bytes.Buffer
		_, err = v.Backup(t.Context(), &backup, nil)
		noErr(t, err)
		for range 3 {
			_, err := v.Import(t.Context(), visa, nil)
			noErr(t, err)
			time.Sleep(2 * time.Second)
		}
		noErr(t, v.Close())

		s, twins := memstore.New(), new(shelf)
		r, err := cardvault.Restore(t.Context(), s, mustKeyBytes(t, goldenKey()), bytes.NewReader(backup.Bytes()), nil)
		noErr(t, err)
		for _, of := range []struct {
			*shelf
			want error
		}{{kept, cardvault.ErrLedgerBehind}, {twins, nil}} {
			v, err = cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{
				Thaw: r.ID, Audit: &cardvault.AuditOptions{Ledger: of.shelf, LedgerSync: 10 * time.Second},
			})
			noErr(t, err)
			if err := v.Delete(t.Context(), token.ID); !errors.Is(err, of.want) {
				t.Errorf("Delete = %v, want %v", err, of.want)
			}
			token, err = v.Import(t.Context(), visa, nil)
			noErr(t, err)
			noErr(t, v.Close())
		}

		both := kept.ledger()
		both.Exports = append(both.Exports, twins.ledger().Exports...)
		for l, fine := range map[*cardvault.DeletionLedger]bool{kept.ledger(): true, twins.ledger(): true, both: false} {
			_, err := cardvault.Restore(t.Context(), memstore.New(), mustKeyBytes(t, goldenKey()), bytes.NewReader(backup.Bytes()), &cardvault.RestoreOptions{Ledger: l})
			if (err == nil) != fine || !fine && !errors.Is(err, cardvault.ErrDamaged) {
				t.Errorf("restored with %d parts: %v", len(l.Exports), err)
			}
		}
	})
}

// A deadly ledger kills its process instead of keeping a deletion.
type deadly struct{ audit.Ledger }

func (d deadly) Append(ctx context.Context, p *audit.Part) error {
	if bytes.Contains(p.Export, []byte("token.delete")) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return d.Ledger.Append(ctx, p)
}

// TestLedgerKilledBetween: a process is killed between commit and export. The next one exports it.
func TestLedgerKilledBetween(t *testing.T) {
	const child = "CARDVAULT_LEDGER_KILLED"
	if dir, ok := os.LookupEnv(child); ok {
		v := ledgerVault(t, boltIn(t, dir), deadly{audit.NewLedgerDir(dir)}, time.Minute)
		token, err := v.Import(t.Context(), visa, nil)
		noErr(t, err)
		fmt.Println("imported", token.ID)
		t.Fatal(v.Delete(t.Context(), token.ID))
	}

	dir := t.TempDir()
	process := exec.Command(os.Args[0], "-test.run=^TestLedgerKilledBetween$")
	process.Env = append(os.Environ(), child+"="+dir)
	out, err := process.CombinedOutput()
	var id uuid.UUID
	if _, text, ok := strings.Cut(string(out), "imported "); err == nil || !ok || id.UnmarshalText([]byte(text[:36])) != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	kept := audit.NewLedgerDir(dir)
	v := ledgerVault(t, boltIn(t, dir), kept, time.Minute)
	if _, err := v.Get(t.Context(), id); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("the token: %v", err)
	}
	noErr(t, v.Drain(t.Context()))
	noErr(t, v.Close()) // waits for the ledger
	exports, err := kept.Exports(t.Context())
	noErr(t, err)
	found := map[uuid.UUID]bool{}
	for _, export := range exports {
		_, err = audit.Verify(export, &audit.VerifyOptions{Each: func(r *audit.Record) error {
			found[r.ObjectID] = found[r.ObjectID] || r.Operation == "token.delete"
			return nil
		}})
		noErr(t, err)
	}
	if !found[id] {
		t.Errorf("%d parts without the deletion", len(exports))
	}
}

// TestLedgerRotated: the audit key is rotated between parts. A restore repeats the deletions of all
// times with the keys of all, and refuses the parts whose key it does not know.
func TestLedgerRotated(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kept := new(shelf)
		v := ledgerVault(t, memstore.New(), kept, time.Minute)
		defer v.Close()
		var tokens []uuid.UUID
		for range 3 {
			token, err := v.Import(t.Context(), visa, nil)
			noErr(t, err)
			tokens = append(tokens, token.ID)
		}
		var backup bytes.Buffer
		_, err := v.Backup(t.Context(), &backup, nil)
		noErr(t, err)

		for i, id := range tokens {
			if i > 0 {
				_, err := v.RotateSeries(t.Context(), cardvault.SeriesAudit, nil)
				noErr(t, err)
			}
			noErr(t, v.Delete(t.Context(), id))
			if !kept.has(t, id) {
				t.Errorf("the ledger has no record of deletion %d", i+1)
			}
		}
		keys := v.AuditPublicKeys()
		if len(keys) != 3 {
			t.Fatalf("%d keys", len(keys))
		}
		for n, fine := range []bool{false, false, true} { // the first one is in the backup
			l := kept.ledger()
			l.PublicKeys = keys[1 : n+1]
			r, err := cardvault.Restore(t.Context(), memstore.New(), mustKeyBytes(t, goldenKey()), bytes.NewReader(backup.Bytes()), &cardvault.RestoreOptions{Ledger: l})
			if fine && (err != nil || r.Deleted != 3) || !fine && !errors.Is(err, cardvault.ErrDamaged) {
				t.Errorf("with %d keys: %+v, %v", n+1, r, err)
			}
		}
	})
}

// TestAuditOptions: LedgerSync needs a ledger, and records without which nothing is deleted. A live
// vault keeps records for a year at least.
func TestAuditOptions(t *testing.T) {
	kept := new(shelf)
	for name, o := range map[string]*cardvault.AuditOptions{
		"LedgerSync must be between":       {Ledger: kept, LedgerSync: time.Millisecond},
		"LedgerSync must be between 100ms": {Ledger: kept, LedgerSync: time.Hour},
		"LedgerSync needs":                 {LedgerSync: time.Second},
		"and AuditRefuse":                  {Ledger: kept, LedgerSync: time.Second, Failure: cardvault.AuditContinue},
		"Retention must be at least 8760h": {Retention: 365*24*time.Hour - 1},
	} {
		if _, err := cardvault.New(t.Context(), memstore.New(), newKey(t), &cardvault.Options{Audit: o}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
