package cardvault_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

const kindSum, kindSumChange store.Kind = 42, 43

// TestSumsOfAccounts: the sums of 1,000 accounts, which no record has room for, are folded. A loss is
// found in each account.
func TestSumsOfAccounts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const accounts = 1000
		s, ctx := memstore.New(), t.Context()
		v, err := cardvault.New(ctx, s, mustKeyBytes(t, make([]byte, cardvault.KeySize)), &cardvault.Options{Mode: cardvault.Sandbox})
		noErr(t, err)
		noErr(t, v.BeginSums(ctx, nil))
		lost := map[uuid.UUID]bool{}
		for range accounts {
			a, err := v.CreateAccount(ctx, "", nil)
			noErr(t, err)
			for range 2 {
				_, err = v.In(a.ID).Import(ctx, visa, nil)
				noErr(t, err)
			}
			lost[a.ID] = true
		}
		changes := func() (n int) {
			noErr(t, s.View(ctx, func(tx store.ReadTx) error {
				found, err := tx.Scan(kindSumChange, uuid.Nil, 1000)
				n = len(found)
				return err
			}))
			return n
		}
		if n := changes(); n < 5 {
			t.Fatalf("%d records have the changes of %d accounts", n, accounts)
		}
		noErr(t, v.Drain(ctx))
		if n := changes(); n > 2 {
			t.Errorf("%d records of changes are left once they were folded", n)
		}
		verify := func(v *cardvault.Vault) *cardvault.VerifyReport {
			t.Helper()
			report, err := v.Verify(ctx, &cardvault.VerifyOptions{Most: 2 * accounts})
			noErr(t, err)
			if !report.Sums {
				t.Fatal("the sums were not compared")
			}
			return report
		}
		if report := verify(v); len(report.Problems) > 0 {
			t.Fatalf("a vault that is whole has %+v", report.Problems)
		}
		noErr(t, v.Close())

		seen := map[uuid.UUID]bool{}
		noErr(t, s.Update(ctx, func(tx store.Tx) error {
			for _, r := range recordsOf(t, s) {
				if r.Kind == kindToken && !seen[r.Account] {
					seen[r.Account] = true
					tx.Delete(r.Kind, r.ID)
				}
			}
			return nil
		}))
		v, err = cardvault.New(ctx, s, mustKeyBytes(t, make([]byte, cardvault.KeySize)), &cardvault.Options{Mode: cardvault.Sandbox})
		noErr(t, err)
		report := verify(v)
		if len(report.Problems) != 1 || report.Problems[0].Kind != cardvault.ProblemSum {
			t.Fatalf("found %d problems, want the sums alone", len(report.Problems))
		}
		for _, f := range report.Problems[0].Findings {
			if f.Kind != "token" || f.Surplus != -1 || !lost[f.AccountID] {
				t.Errorf("found %+v", f)
			}
			delete(lost, f.AccountID)
		}
		if len(lost) > 0 {
			t.Errorf("nothing is found in %d accounts", len(lost))
		}
	})
}

// TestSumsModel: after any calls, failed commits and restarts sums agree with all records.
func TestSumsModel(t *testing.T) {
	seed := uint64(rand.Uint32())
	t.Logf("seed %d", seed)
	bubble.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(seed, 0))
		ctx, inner := t.Context(), memstore.New()
		fails := &frail{} // fails before or after a commit
		fails.rests(inner)
		open := func() *cardvault.Vault {
			v, err := cardvault.New(ctx, summing{fails, inner}, mustKeyBytes(t, make([]byte, cardvault.KeySize)), &cardvault.Options{Mode: cardvault.Sandbox})
			noErr(t, err)
			return v
		}
		v := open()
		var tokens []uuid.UUID
		var accounts []uuid.UUID
		begun := false
		for range 400 {
			in := v
			if len(accounts) > 0 && random.IntN(2) == 0 {
				in = v.In(accounts[random.IntN(len(accounts))])
			}
			if random.IntN(8) == 0 {
				fails.set(store.ErrOutcomeUnknown, random.IntN(2) == 0)
			}
			switch n := random.IntN(12); {
			case n < 5:
				if token, err := in.Import(ctx, visa, nil); err == nil {
					tokens = append(tokens, token.ID)
				}
			case n < 8 && len(tokens) > 0:
				_ = in.Delete(ctx, tokens[random.IntN(len(tokens))]) // perhaps of another account
			case n == 8:
				if a, err := v.CreateAccount(ctx, "", nil); err == nil {
					accounts = append(accounts, a.ID)
				}
			case n == 9:
				fails.set(nil, false)
				noErr(t, v.Drain(ctx))
			case n == 10:
				fails.set(nil, false)
				noErr(t, v.Close())
				v = open()
			default:
				fails.set(nil, false)
				if !begun || random.IntN(8) == 0 {
					begun = true
					noErr(t, v.BeginSums(ctx, nil))
				}
				report, err := v.Verify(ctx, nil)
				noErr(t, err)
				if !report.Sums || len(report.Problems) > 0 {
					t.Fatalf("Verify has compared sums: %t, and found %+v", report.Sums, report.Problems)
				}
			}
			fails.set(nil, false)
		}
	})
}

// A summing store is a decorator that shows its store.
type summing struct {
	*frail
	inner store.Store
}

func (s summing) Unwrap() store.Store { return s.inner }

// TestSumsRestored: a backup has the sums of its instant. So a vault that was restored from it, or
// moved, has sums that are right, also with increments, and which find a later loss.
func TestSumsRestored(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, keys, opts := t.Context(), mustKeyBytes(t, make([]byte, cardvault.KeySize)), &cardvault.Options{Mode: cardvault.Sandbox}
		s := memstore.New()
		v, err := cardvault.New(ctx, s, keys, opts)
		noErr(t, err)
		imports := func(n int) {
			for range n {
				_, err := v.Import(ctx, visa, nil)
				noErr(t, err)
			}
		}
		whole := func(s store.Store, o *cardvault.Options, problems int) {
			t.Helper()
			v, err := cardvault.New(ctx, s, keys, o)
			noErr(t, err)
			_, err = v.Import(ctx, visa, nil)
			noErr(t, err)
			report, err := v.Verify(ctx, nil)
			noErr(t, err)
			if !report.Sums || len(report.Problems) != problems {
				t.Errorf("sums were compared: %t, found %+v", report.Sums, report.Problems)
			}
			noErr(t, v.Close())
		}
		imports(10)
		noErr(t, v.BeginSums(ctx, nil))
		imports(1)
		var full, manifest, increment bytes.Buffer
		_, err = v.Backup(ctx, &full, &cardvault.BackupOptions{Manifest: &manifest})
		noErr(t, err)
		imports(300)
		_, err = v.Backup(ctx, &increment, &cardvault.BackupOptions{Since: bytes.NewReader(manifest.Bytes())})
		noErr(t, err)

		to := memstore.New()
		report, err := cardvault.Restore(ctx, to, keys, bytes.NewReader(full.Bytes()), &cardvault.RestoreOptions{Increments: []io.Reader{&increment}})
		noErr(t, err)
		whole(to, &cardvault.Options{Mode: cardvault.Sandbox, Thaw: report.ID}, 0)
		noErr(t, v.Close())

		there := memstore.New()
		moved, err := cardvault.Move(ctx, s, there, keys, nil)
		noErr(t, err)
		opts = &cardvault.Options{Mode: cardvault.Sandbox, Thaw: moved.ID}
		whole(there, opts, 0)
		noErr(t, there.Update(ctx, func(tx store.Tx) error {
			found, err := tx.Scan(kindToken, uuid.Nil, 1)
			tx.Delete(kindToken, found[0].ID)
			return err
		}))
		whole(there, opts, 1)
	})
}

// TestSumsKilled: a process that is killed leaves sums that agree with the records.
func TestSumsKilled(t *testing.T) {
	const child = "CARDVAULT_TEST_SUMS"
	open := func(dir string) *cardvault.Vault {
		v, err := cardvault.Open(t.Context(), dir, mustKeyBytes(t, make([]byte, cardvault.KeySize)), &cardvault.Options{Mode: cardvault.Sandbox})
		noErr(t, err)
		return v
	}
	if dir := os.Getenv(child); dir != "" {
		v := open(dir)
		for g := range 8 {
			go func() {
				for n := 0; ; n++ {
					token, err := v.Import(context.Background(), visa, nil)
					if err == nil && n%3 == 0 {
						err = v.Delete(context.Background(), token.ID)
					}
					if err == nil && n%20 == 19 {
						_, err = v.CreateAccount(context.Background(), "", nil)
					}
					if err == nil && g == 0 {
						err = v.Drain(context.Background())
					}
					if err != nil {
						os.Exit(1)
					}
					fmt.Println("imported", n+1)
				}
			}()
		}
		select {}
	}

	dir := filepath.Join(t.TempDir(), "vault")
	v := open(dir)
	noErr(t, v.BeginSums(t.Context(), nil))
	for range 4 {
		noErr(t, v.Close())
		process := exec.Command(os.Args[0], "-test.run=^TestSumsKilled$")
		process.Env = append(os.Environ(), child+"="+dir)
		out, err := process.StdoutPipe()
		noErr(t, err)
		noErr(t, process.Start())
		made, enough := 0, 5+rand.IntN(60)
		for lines := bufio.NewScanner(out); made < enough && lines.Scan(); {
			_, _ = fmt.Sscanf(lines.Text(), "imported %d", &made) // else it is another line
		}
		if err := process.Process.Kill(); err != nil || made == 0 {
			t.Fatal("nothing was imported:", err)
		}
		_ = process.Wait() // it was killed

		v = open(dir)
		report, err := v.Verify(t.Context(), nil)
		noErr(t, err)
		if !report.Sums || len(report.Problems) > 0 {
			t.Errorf("sums were compared: %t, found %+v", report.Sums, report.Problems)
		}
	}
	noErr(t, v.Close())
}

// TestSumsClosed: a vault is closed while calls are at its store. Their writes are in the sums.
func TestSumsClosed(t *testing.T) {
	ctx, s := t.Context(), memstore.New()
	open := func() *cardvault.Vault {
		v, err := cardvault.New(ctx, s, mustKeyBytes(t, make([]byte, cardvault.KeySize)), &cardvault.Options{Mode: cardvault.Sandbox})
		noErr(t, err)
		return v
	}
	v := open()
	noErr(t, v.BeginSums(ctx, nil))

	for range 20 {
		var calls sync.WaitGroup
		imported := make(chan struct{}, 1)
		for range 16 {
			calls.Go(func() {
				for {
					if _, err := v.Import(ctx, visa, nil); err != nil {
						return
					}
					select {
					case imported <- struct{}{}:
					default:
					}
				}
			})
		}
		<-imported
		noErr(t, v.Close())
		calls.Wait()
		v = open()
	}

	report, err := v.Verify(ctx, nil)
	noErr(t, err)
	if !report.Sums || len(report.Problems) > 0 {
		t.Errorf("sums were compared: %t, found %+v", report.Sums, report.Problems)
	}
	noErr(t, v.Close())
}

// TestSumsWithout: a vault that has not begun sums writes nothing of them, and a store that does not
// show its changes keeps none.
func TestSumsWithout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, keys := t.Context(), mustKeyBytes(t, make([]byte, cardvault.KeySize))
		s := memstore.New()
		opts := &cardvault.Options{Mode: cardvault.Sandbox}
		v, err := cardvault.New(ctx, s, keys, opts)
		noErr(t, err)
		_, err = v.Import(ctx, visa, nil)
		noErr(t, err)
		for _, r := range recordsOf(t, s) {
			if r.Kind >= 42 {
				t.Errorf("there is a record of kind %d before sums were begun", r.Kind)
			}
		}
		noErr(t, v.BeginSums(ctx, nil))
		noErr(t, v.Close())

		plain := struct{ store.Store }{s}
		v, err = cardvault.New(ctx, plain, keys, opts)
		noErr(t, err)
		if err := v.BeginSums(ctx, nil); !errors.Is(err, cardvault.ErrNotEnabled) {
			t.Errorf("BeginSums on a store that shows no changes: %v", err)
		}
		_, err = v.Import(ctx, visa, nil)
		noErr(t, err)
		report, err := v.Verify(ctx, nil)
		noErr(t, err)
		if report.Sums || report.SumsMissed || len(report.Problems) > 0 {
			t.Errorf("on a store that shows no changes: %+v", report)
		}
		noErr(t, v.Close())

		v, err = cardvault.New(ctx, s, keys, opts)
		noErr(t, err)
		report, err = v.Verify(ctx, nil)
		noErr(t, err)
		if report.Sums || len(report.Problems) > 0 {
			t.Errorf("sums go on that have ended: %+v", report)
		}
		noErr(t, v.BeginSums(ctx, nil))
		report, err = v.Verify(ctx, nil)
		noErr(t, err)
		if !report.Sums || len(report.Problems) > 0 {
			t.Errorf("begun again: %+v", report)
		}
		noErr(t, v.Close())
	})
}

// ofMeta reports whether a record is of the keyring, or is the point of the anchor.
func ofMeta(r *store.Record) bool { return r.Kind == 1 }

// putBack has a store hold the records of before, but for those that stay.
func putBack(t *testing.T, s store.Store, before []*store.Record, stays func(*store.Record) bool) {
	t.Helper()
	noErr(t, s.Update(t.Context(), func(tx store.Tx) error {
		for _, r := range recordsOf(t, s) {
			if !stays(r) {
				tx.Delete(r.Kind, r.ID)
			}
		}
		for _, r := range before {
			if !stays(r) {
				tx.(store.Loader).Load(r.Clone())
			}
		}
		return nil
	}))
}

// TestSumsHoldNothingUp: however slowly Verify compares sums, a revocation is in the anchor when it
// answers, at once.
func TestSumsHoldNothingUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx := t.Context()
		opts := &cardvault.Options{Mode: cardvault.Sandbox, Anchor: cardvault.AnchorDir(t.TempDir())}
		v, err := cardvault.New(ctx, memstore.New(), mustKeyBytes(t, make([]byte, cardvault.KeySize)), opts)
		noErr(t, err)
		noErr(t, v.BeginSums(ctx, nil))
		for range 900 {
			_, err := v.CreateAccount(ctx, "", nil)
			noErr(t, err)
		}

		verified := make(chan error, 1)
		go func() {
			r, err := v.Verify(ctx, &cardvault.VerifyOptions{Rate: 200})
			if err == nil && !r.Sums {
				err = errors.New("the sums were not compared")
			}
			verified <- err
		}()
		for over := false; !over; {
			key, err := v.CreateAPIKey(ctx, "key", cardvault.AllScopes(), nil)
			noErr(t, err)
			began := time.Now()
			noErr(t, v.DeleteAPIKey(ctx, key.ID))
			if took := time.Since(began); took >= time.Second {
				t.Errorf("a revocation takes %v", took)
			}
			select {
			case err := <-verified:
				noErr(t, err)
				over = true
			case <-time.After(100 * time.Millisecond):
			}
		}
		noErr(t, v.Close())
	})
}

// TestSumsAnchored: whoever puts back all records beside the newest point of the anchor is noticed by
// the sums, which the point has counted.
func TestSumsAnchored(t *testing.T) {
	for _, summed := range []bool{true, false} {
		t.Run(fmt.Sprint(summed), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ctx, s := t.Context(), memstore.New()
				opts := &cardvault.Options{Mode: cardvault.Sandbox, Anchor: cardvault.AnchorDir(t.TempDir())}
				open := func() (*cardvault.Vault, error) {
					return cardvault.New(ctx, s, mustKeyBytes(t, make([]byte, cardvault.KeySize)), opts)
				}
				v, err := open()
				noErr(t, err)
				if summed {
					noErr(t, v.BeginSums(ctx, nil))
				}
				token, err := v.Import(ctx, visa, nil)
				noErr(t, err)
				time.Sleep(time.Minute)
				before := recordsOf(t, s)
				noErr(t, v.Delete(ctx, token.ID))
				time.Sleep(time.Minute)
				last := recordsOf(t, s)
				noErr(t, v.Close())

				putBack(t, s, before, ofMeta)
				v, err = open()
				rolledBack, is := errors.AsType[*cardvault.RollbackError](err)
				if is != summed {
					t.Fatalf("Open after all else was put back = %v", err)
				}
				if !summed {
					noErr(t, v.Close())
					return
				}

				// A process without the anchor does not come up with it.
				anchor := opts.Anchor
				opts.Anchor = nil
				v, err = open()
				noErr(t, err)
				for range 300 { // more than a row of changes has room for
					_, err := v.CreateAccount(ctx, "", nil)
					noErr(t, err)
				}
				if err := v.Drain(ctx); !errors.Is(err, cardvault.ErrRolledBack) {
					t.Errorf("sums are folded, whose count would come up with the anchor: %v", err)
				}
				noErr(t, v.Close())
				opts.Anchor = anchor
				if _, err := open(); !errors.Is(err, cardvault.ErrRolledBack) {
					t.Errorf("Open after another process = %v", err)
				}

				// Nor does damage make it look whole.
				putBack(t, s, before, ofMeta)
				noErr(t, s.Update(ctx, func(tx store.Tx) error {
					r, err := tx.Get(kindSum, uuid.Max)
					tx.Delete(kindSum, uuid.Max)
					r.Shown[9] ^= 1
					tx.(store.Loader).Load(r)
					return err
				}))
				if _, err := open(); !errors.Is(err, cardvault.ErrRolledBack) {
					t.Errorf("Open with a damaged count = %v", err)
				}

				// With the newest count all else is found to be put back.
				putBack(t, s, last, ofMeta)
				putBack(t, s, before, func(r *store.Record) bool { return ofMeta(r) || r.Kind == kindSum && r.ID == uuid.Max })
				noErr(t, s.Update(ctx, func(tx store.Tx) error {
					for _, r := range recordsOf(t, s) {
						if r.Kind == kindSumChange {
							tx.Delete(r.Kind, r.ID)
						}
					}
					return nil
				}))
				v, err = open()
				noErr(t, err)
				report, err := v.Verify(ctx, nil)
				noErr(t, err)
				if !report.Sums || len(report.Problems) == 0 {
					t.Errorf("the newest count beside former records: %+v", report)
				}
				noErr(t, v.Close())

				putBack(t, s, last, ofMeta)
				v, err = open()
				noErr(t, err)
				noErr(t, v.Close())
				putBack(t, s, before, ofMeta)
				opts.AcceptRollback = rolledBack.ID
				if _, err := open(); !errors.Is(err, cardvault.ErrRolledBack) {
					t.Errorf("Open with a former acceptance = %v", err)
				}
			})
		})
	}
}

// TestSumsFoldedPutBack: a row of changes that was folded does not count when it is put back together
// with the record that it has added, which was deleted since.
func TestSumsFoldedPutBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, s := t.Context(), memstore.New()
		opts := &cardvault.Options{Mode: cardvault.Sandbox, Anchor: cardvault.AnchorDir(t.TempDir())}
		v, err := cardvault.New(ctx, s, mustKeyBytes(t, make([]byte, cardvault.KeySize)), opts)
		noErr(t, err)
		noErr(t, v.BeginSums(ctx, nil))
		time.Sleep(time.Minute)
		there := map[store.Key]bool{}
		for _, r := range recordsOf(t, s) {
			there[store.Key{Kind: r.Kind, ID: r.ID}] = true
		}
		token, err := v.Import(ctx, visa, nil)
		noErr(t, err)
		var back []*store.Record
		for _, r := range recordsOf(t, s) {
			if !there[store.Key{Kind: r.Kind, ID: r.ID}] {
				back = append(back, r)
			}
		}
		time.Sleep(time.Minute)
		noErr(t, v.Delete(ctx, token.ID))
		for range 4 {
			time.Sleep(time.Hour)
			_, err := v.CreateAccount(ctx, "", nil)
			noErr(t, err)
			time.Sleep(time.Minute)
		}

		surplus := func(when string, want int64) {
			t.Helper()
			report, err := v.Verify(ctx, nil)
			noErr(t, err)
			var n int64
			for _, p := range report.Problems {
				for _, f := range p.Findings {
					n += f.Surplus
				}
			}
			if !report.Sums || n != want {
				t.Errorf("%s, Verify finds %+v", when, report)
			}
		}
		surplus("before", 0)
		noErr(t, v.Close()) // else the store would show these changes
		noErr(t, s.Update(ctx, func(tx store.Tx) error {
			for _, r := range back {
				tx.(store.Loader).Load(r)
			}
			return nil
		}))
		v, err = cardvault.New(ctx, s, mustKeyBytes(t, make([]byte, cardvault.KeySize)), opts)
		noErr(t, err)
		kinds := map[store.Kind]bool{}
		for _, r := range back {
			kinds[r.Kind] = true
		}
		if !kinds[kindToken] || !kinds[kindSumChange] {
			t.Fatalf("kinds %v were put back", kinds)
		}
		surplus("put back", 1)
		time.Sleep(time.Hour) // a row of another process would be folded
		noErr(t, v.Drain(ctx))
		surplus("an hour later", 1)
		noErr(t, v.BeginSums(ctx, nil))
		surplus("begun anew", 0)
		noErr(t, v.Close())
	})
}

// TestSumsAtOpen: what the opening of a vault writes is in its sums, such as the record of a change of
// the key that wraps its keys.
func TestSumsAtOpen(t *testing.T) {
	s, former, next := memstore.New(), newFakeKMS(t, "kms/former"), newFakeKMS(t, "kms/next")
	open := func(keys *cardvault.Keyring) *cardvault.Vault {
		v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Mode: cardvault.Sandbox, Audit: new(cardvault.AuditOptions)})
		noErr(t, err)
		return v
	}
	v := open(keysOf(former))
	noErr(t, v.BeginSums(t.Context(), nil))
	noErr(t, v.Close())

	v = open(keysOf(next, former))
	report, err := v.Verify(t.Context(), nil)
	noErr(t, err)
	if !report.Sums || len(report.Problems) > 0 {
		t.Errorf("Verify finds %+v", report)
	}
	noErr(t, v.Close())
}

// A snapshotted store reads snapshots, and calls taken once it has one.
type snapshotted struct {
	*memstore.Store
	taken *func()
}

func (s snapshotted) Snapshot(ctx context.Context, fn func(store.ReadTx) error) error {
	all := memstore.New()
	var records []*store.Record
	if err := s.View(ctx, func(tx store.ReadTx) error {
		for kind := store.Kind(1); kind != 0; kind++ {
			found, err := tx.Scan(kind, uuid.Nil, 1000)
			if err != nil {
				return err
			}
			records = append(records, found...)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := all.Update(ctx, func(tx store.Tx) error {
		for _, r := range records {
			tx.(store.Loader).Load(r)
		}
		return nil
	}); err != nil {
		return err
	}
	(*s.taken)()
	return all.View(ctx, fn)
}

// TestSumsFoldedMeanwhile: rows of changes that are folded while Verify reads a snapshot, in which they
// are old, are not taken for rows that were put back.
func TestSumsFoldedMeanwhile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, taken := t.Context(), func() {}
		s := snapshotted{memstore.New(), &taken}
		open := func() *cardvault.Vault {
			v, err := cardvault.New(ctx, s, mustKeyBytes(t, make([]byte, cardvault.KeySize)), &cardvault.Options{Mode: cardvault.Sandbox})
			noErr(t, err)
			return v
		}
		v := open()
		noErr(t, v.BeginSums(ctx, nil))
		for range 20 {
			_, err := v.Import(ctx, visa, nil)
			noErr(t, err)
		}
		noErr(t, v.Close()) // and leaves a row of changes
		time.Sleep(3 * time.Hour)
		v = open()
		noErr(t, v.Drain(ctx))
		time.Sleep(3 * time.Minute)

		changes := func() (n int) {
			for _, r := range recordsOf(t, s) {
				if r.Kind == kindSumChange && r.Version > 10 {
					n++
				}
			}
			return n
		}
		if changes() == 0 {
			t.Fatal("the row of changes is not there")
		}
		taken = func() { noErr(t, v.Drain(ctx)) }
		report, err := v.Verify(ctx, nil)
		noErr(t, err)
		if !report.Sums || len(report.Problems) > 0 {
			t.Errorf("Verify finds %+v", report)
		}
		if changes() > 0 {
			t.Error("the row of changes was not folded")
		}
		noErr(t, v.Close())
	})
}

// A blurred store cannot read the last record of sums.
type blurred struct {
	*memstore.Store
	id uuid.UUID // its id, once it is known
	on bool
}

func (s *blurred) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(blurredReads{tx, s}) })
}

type blurredReads struct {
	store.ReadTx
	of *blurred
}

func (tx blurredReads) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	if tx.of.on && kind == 42 && id == tx.of.id {
		return nil, store.ErrDamaged
	}
	return tx.ReadTx.Get(kind, id)
}

func (tx blurredReads) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	rows, err := tx.ReadTx.Scan(kind, after, limit)
	if n := len(rows); tx.of.on && kind == 42 && n > 0 {
		tx.of.id = rows[n-1].ID
		rows[n-1] = &store.Record{Kind: kind, ID: tx.of.id}
	}
	return rows, err
}

// TestSumsUnreadable: a record of sums that the store cannot read is reported once.
func TestSumsUnreadable(t *testing.T) {
	ctx, s := t.Context(), &blurred{Store: memstore.New()}
	v, err := cardvault.New(ctx, s, mustKeyBytes(t, make([]byte, cardvault.KeySize)), &cardvault.Options{Mode: cardvault.Sandbox})
	noErr(t, err)
	_, err = v.Import(ctx, visa, nil)
	noErr(t, err)
	noErr(t, v.BeginSums(ctx, nil))
	s.on = true
	report, err := v.Verify(ctx, nil)
	noErr(t, err)
	if p := report.Problems; len(p) != 1 || p[0].Kind != cardvault.ProblemUnreadable || p[0].Count != 1 || !report.Sums {
		t.Errorf("sums were compared: %t, found %+v", report.Sums, p)
	}
	noErr(t, v.Close())
}
