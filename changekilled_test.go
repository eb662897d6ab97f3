package cardvault_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/keyfile"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
)

// Steps kill their process at one of them.
type steps struct{ left atomic.Int64 }

func (s *steps) step() {
	if s.left.Add(-1) == 0 {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		panic(fmt.Sprint("not killed: ", err))
	}
}

// A steppedStore counts the calls of a store, before and after each.
type steppedStore struct {
	store.Store
	*steps
}

func (s steppedStore) View(ctx context.Context, fn func(store.ReadTx) error) error {
	s.step()
	defer s.step()
	return s.Store.View(ctx, fn)
}

func (s steppedStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	s.step()
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		s.step()
		err := fn(tx)
		s.step()
		return err
	})
	s.step()
	return err
}

// A steppedKey counts the calls of a key, before and after each.
type steppedKey struct {
	*keyfile.Key
	*steps
}

func (k steppedKey) Wrap(ctx context.Context, key, aad []byte) ([]byte, error) {
	k.step()
	defer k.step()
	return k.Key.Wrap(ctx, key, aad)
}

func (k steppedKey) Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
	k.step()
	defer k.step()
	return k.Key.Unwrap(ctx, wrapped, aad)
}

// keyCalls are the calls that replace the keyring of the vault in a store. They are made with
// the key of testdata/format1, or with another that follows it.
var keyCalls = map[string]func(ctx context.Context, s store.Store, former, next *cardvault.Keyring) error{
	"migrate": func(ctx context.Context, s store.Store, former, _ *cardvault.Keyring) error {
		return openIn(ctx, s, former)
	},
	"open": func(ctx context.Context, s store.Store, former, next *cardvault.Keyring) error {
		return openIn(ctx, s, cardvault.JoinKeyrings(next, former))
	},
	"change": func(ctx context.Context, s store.Store, former, next *cardvault.Keyring) error {
		v, err := cardvault.New(ctx, s, former, nil)
		if err != nil {
			return err
		}
		return errors.Join(v.ChangeKeyring(ctx, next), v.Close())
	},
	"rotate": func(ctx context.Context, s store.Store, former, _ *cardvault.Keyring) error {
		v, err := cardvault.New(ctx, s, former, nil)
		if err != nil {
			return err
		}
		_, err = v.RotateKeys(ctx, nil)
		return errors.Join(err, v.Close())
	},
	"rotate-fingerprint": rotateFingerprint,
	"rotate-lookup":      rotateLookup,
	"rotate-audit": func(ctx context.Context, s store.Store, former, _ *cardvault.Keyring) error {
		v, err := cardvault.New(ctx, s, former, nil)
		if err != nil {
			return err
		}
		_, err = v.RotateSeries(ctx, cardvault.SeriesAudit, nil)
		return errors.Join(err, v.Close())
	},
	"retire": func(ctx context.Context, s store.Store, former, _ *cardvault.Keyring) error {
		v, err := cardvault.New(ctx, s, former, nil)
		if err != nil {
			return err
		}
		_, err = v.RotateKeys(ctx, nil)
		for range 3 {
			if err == nil {
				err = v.RetireTerm(ctx, 1)
			}
			if errors.Is(err, cardvault.ErrTermInUse) {
				err = v.Drain(ctx)
			}
			if _, child := os.LookupEnv(killedChild); child { // in a bubble
				time.Sleep(25 * time.Hour)
			}
		}
		return errors.Join(err, v.Close())
	},
}

const killedChild = "CARDVAULT_KILLED"

// kills returns how many processes a test kills: FAULTS, as make faults sets it, or n. Without FAULTS
// some 210 processes are killed in TestKeyringKilled and 5 in TestResealKilled, at every step of a
// change and of the first part of a rotation. make faults kills 1,000 in each test, and in each part
// of TestKeyringKilled that has more steps than are tried otherwise.
func kills(n int) int {
	if faults, err := strconv.Atoi(os.Getenv("FAULTS")); err == nil {
		return faults
	}
	return n
}

// rotateFingerprint does a whole rotation of the fingerprint key.
func rotateFingerprint(ctx context.Context, s store.Store, former, _ *cardvault.Keyring) error {
	v, err := cardvault.New(ctx, s, former, nil)
	if err != nil {
		return err
	}
	if _, err = v.RotateSeries(ctx, cardvault.SeriesFingerprint, nil); errors.Is(err, cardvault.ErrRotating) { // it was killed
		err = nil
	}
	if err == nil {
		err = v.Drain(ctx)
	}
	if err == nil {
		_, err = v.RotateKeys(ctx, nil) // has the next round begin now
	}
	if err == nil {
		err = v.Drain(ctx)
	}
	return errors.Join(err, v.Close())
}

// rotateLookup does a whole rotation of the lookup key.
func rotateLookup(ctx context.Context, s store.Store, former, _ *cardvault.Keyring) error {
	v, err := cardvault.New(ctx, s, former, nil)
	if err != nil {
		return err
	}
	if _, err = v.RotateSeries(ctx, cardvault.SeriesLookup, nil); errors.Is(err, cardvault.ErrRotating) { // it was killed
		err = nil
	}
	for range 3 {
		if err == nil {
			err = v.Drain(ctx)
		}
		if _, child := os.LookupEnv(killedChild); child { // in a bubble
			time.Sleep(3 * time.Minute)
		}
	}
	return errors.Join(err, v.Close())
}

// A kept vault is one of testdata.
type keptVault interface {
	check(t *testing.T, v *cardvault.Vault) // reads all of it
}

// unpackKept makes a folder with the vault on which a call is tried: one of format 1 for calls that
// change the format or the key-encryption key. The other has what is found by hashes.
func unpackKept(t *testing.T, call string) (dir string, f keptVault) {
	t.Helper()
	if call == "migrate" || call == "open" || call == "change" {
		return unpackFormat1(t, "keybytes")
	}
	g := readGolden(t, 2)
	g.reprinted = call == "rotate-fingerprint"
	return unpacked(t, goldenName(2, "db.gz")), g
}

// TestKeyringKilled kills a process at each step of what replaces a keyring. Every time one key
// opens the vault, all of it is there and found, the call can be repeated, and what it began ends.
func TestKeyringKilled(t *testing.T) {
	formerKey, nextKey := goldenKey(), goldenKey()
	nextKey[0] ^= 1
	if call, ok := os.LookupEnv(killedChild); ok {
		bubble.Test(t, func(t *testing.T) { killedCall(t, call, formerKey, nextKey) })
		return
	}

	for name := range keyCalls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opened := map[bool]int{} // by the next key, after a kill
			n, most, at := 0, math.MaxInt, func(n int) int { return n + 1 }
			if name == "retire" || name == "rotate-fingerprint" || name == "rotate-lookup" { // which has too many steps for each run of the tests
				dir, _ := unpackKept(t, name)
				out, steps := killedAt(t, name, dir, 0), 0
				if _, err := fmt.Sscanf(out, "steps %d", &steps); err != nil {
					t.Fatal(err, out)
				}
				most = kills(10)
				at = func(n int) int { return n*max(steps, most)/most%steps + 1 }
			}

			for over := false; !over && n < most; n++ {
				dir, f := unpackKept(t, name)
				over = killedAt(t, name, dir, at(n)) != ""
				opened[opensAfterKill(t, f, dir, formerKey, nextKey)]++
				repeated(t, f, dir, name, mustKeyBytes(t, formerKey), mustKeyBytes(t, nextKey))
				if _, golden := f.(*goldenVault); golden && killedAt(t, settles, dir, 0) == "" {
					t.Error("it was killed while it settled")
				}
			}
			t.Logf("killed at %d steps: %d times the former key opened the vault, %d times the next", n, opened[false], opened[true])
			moves := name == "open" || name == "change"
			if n < 10 || opened[false] < 5 || moves != (opened[true] > 1) { // also when it was over
				t.Error("the kills were not in between")
			}
		})
	}
}

// childKilled runs a test in another process, whose orders are in a variable, and which is killed at
// one of its steps. It returns the output, and whether the process ended by itself instead.
func childKilled(t *testing.T, test, variable, orders string) (out string, over bool) {
	t.Helper()
	process := exec.Command(os.Args[0], "-test.run=^"+test+"$")
	process.Env = append(os.Environ(), variable+"="+orders)
	text, err := process.CombinedOutput()
	if err != nil && (strings.Contains(string(text), "FAIL") || strings.Contains(string(text), "panic")) {
		t.Fatalf("%s: %v\n%s", orders, err, text)
	}
	return string(text), err == nil
}

// killedAt makes a call in a process that is killed at a step. If it was not, the result is the
// text of the process.
func killedAt(t *testing.T, name, dir string, step int) string {
	t.Helper()
	if out, over := childKilled(t, "TestKeyringKilled", killedChild, fmt.Sprint(name, " ", step, " ", time.Now().Unix(), " ", dir)); over {
		return out
	}
	return ""
}

// killedCall makes a call that is killed at a step.
func killedCall(t *testing.T, call string, former, next []byte) {
	var name, dir string
	var left, now int64
	if _, err := fmt.Sscan(call, &name, &left, &now, &dir); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(time.Unix(now, 0))) // the bubble began long before what is stored
	file, err := boltstore.Open(t.Context(), filepath.Join(dir, "cardvault.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if name == settles {
		settled(t, file, former)
		return
	}
	s := new(steps)
	s.left.Store(left)
	keys := func(key []byte) *cardvault.Keyring { return cardvault.WrappedBy(steppedKey{keyfile.NewKey(key), s}) }
	if err := keyCalls[name](t.Context(), steppedStore{file, s}, keys(former), keys(next)); err != nil {
		t.Fatal(err)
	}
	fmt.Println("steps", -s.left.Load())
}

// settles is the call that only does the background work.
const settles = "settle"

// settled has the background work end what calls have begun, and checks that nothing remains of it:
// one key of each purpose is in use, and no record needs another one.
func settled(t *testing.T, s store.Store, key []byte) {
	v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, key), testPurpose)
	noErr(t, err)
	for range 4 {
		noErr(t, v.Drain(t.Context()))
		time.Sleep(25 * time.Hour)
	}
	report, err := v.KeyReport(t.Context())
	noErr(t, err)
	if report.Terms[0].State == cardvault.TermClosed {
		noErr(t, v.RetireTerm(t.Context(), 1))
	}
	for _, term := range slices.Concat(report.Terms, report.Others) {
		first := term.Series == cardvault.SeriesLookup && term.Number == 1 && term.State == cardvault.TermClosed // keeps what cannot change
		rests := term.Series == "" && len(term.Records) == 0
		if term.State != cardvault.TermActive && term.State != cardvault.TermDestroyed && !first && !rests {
			t.Errorf("%+v", term)
		}
	}

	checked, err := v.Verify(t.Context(), nil)
	if err != nil || len(checked.Problems) > 0 {
		t.Errorf("verified: %+v, %v", checked, err)
	}
	g := readGolden(t, 2)
	g.reprinted = true
	g.check(t, v)
	noErr(t, v.Close())
	fmt.Println("settled")
}

// testPurpose is the purpose for which golden vaults are used.
var testPurpose = &cardvault.Options{Purposes: []string{"test"}}

// opensAfterKill reports which one of two keys opens the vault, and reads all of it.
func opensAfterKill(t *testing.T, f keptVault, dir string, former, next []byte) (byNext bool) {
	t.Helper()
	opened := 0
	for i, key := range [][]byte{former, next} {
		copied := t.TempDir() // opening may bring it to another format
		data, err := os.ReadFile(filepath.Join(dir, "cardvault.db"))
		if err == nil {
			err = os.WriteFile(filepath.Join(copied, "cardvault.db"), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		v, err := cardvault.Open(t.Context(), copied, mustKeyBytes(t, key), testPurpose)
		if errors.Is(err, cardvault.ErrWrongKey) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		opened++
		byNext = i == 1
		f.check(t, v)
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
	if opened != 1 {
		t.Fatalf("%d keys open the vault", opened)
	}
	return byNext
}

// repeated makes a call again, and reads all of the vault.
func repeated(t *testing.T, f keptVault, dir, name string, former, next *cardvault.Keyring) {
	t.Helper()
	s, err := boltstore.Open(t.Context(), filepath.Join(dir, "cardvault.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	either := cardvault.JoinKeyrings(former, next)
	with := either
	if name == "open" { // joins them itself
		with = former
	}
	if err := keyCalls[name](t.Context(), s, with, next); err != nil {
		t.Errorf("repeated: %v", err)
	}
	v, err := cardvault.New(t.Context(), s, either, testPurpose)
	if err != nil {
		t.Fatal(err)
	}
	f.check(t, v)
	if err := errors.Join(v.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}
