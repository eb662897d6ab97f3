package faults_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// everything is a short life that does each kind of operation.
var everything = []string{
	"import", "import", "lapse", "merchant", "session", "tokenize", "sums", "payment", "payment", "apikey", "apikey",
	"update", "replace", "delete", "revoke", "account", "freeze", "thaw", "rotate", "import", "reseal", "retire", "series",
	"changekey", "anchor", "session", "backup", "delete", "import", "increment", "revoke", "delete", "restore", "delete", "import",
	"close", "hour", "scrub", "repair", "compact", "import", "update", "move", "import", "delete", "verify",
}

// points returns how many faults a test makes: n, or with FAULTS, as make faults sets it, a part of
// all: the whole at 100.
func points(n, all int) int {
	if faults, err := strconv.Atoi(os.Getenv("FAULTS")); err == nil {
		return max(n, all*faults/100)
	}
	return n
}

// work starts a process with orders, which inherits files.
func work(o *orders, files ...*os.File) (*exec.Cmd, *bytes.Buffer, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, nil, err
	}
	out := new(bytes.Buffer)
	process := exec.Command(os.Args[0], "-test.run=^TestKilled$", "-test.timeout=10m")
	process.Env = append(os.Environ(), ordersVariable+"="+string(text))
	process.Stdout, process.Stderr, process.ExtraFiles = out, out, files
	return process, out, process.Start()
}

// worked has a process do orders.
func worked(t *testing.T, o *orders) {
	t.Helper()
	process, out, err := work(o)
	if err == nil {
		err = process.Wait()
	}
	if err != nil || strings.Contains(out.String(), "FAIL") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// scratch returns a folder in memory, if there is one.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "faults")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// check opens the vault in a folder as a next process would, verifies it, and compares it with
// the known facts. It returns the differences. A deep check also restores the backup beside the vault.
func check(t *testing.T, dir string, k *known, deep bool) (wrong []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(k.last) + time.Second)
		if err := checkIn(t, dir, k, deep, &wrong); err != nil {
			wrong = append(wrong, err.Error())
		}
	})
	return wrong
}

func checkIn(t *testing.T, dir string, k *known, deep bool, wrong *[]string) (err error) {
	v, shut, err := reopened(t, dir, k, wrong)
	defer func() { err = errors.Join(err, shut()) }()
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}

	if err := whole(t, v, k, wrong); err != nil {
		return err
	}
	for _, l := range k.imports {
		if k.last.Sub(l.At) > 23*time.Hour { // idempotency keys last for a day
			continue
		}
		if err := repeated(t, v, l.Import, k, wrong); err != nil {
			return err
		}
	}
	k.imports = nil

	if !deep {
		return nil
	}
	if err := backedUp(t, dir, k, wrong); err != nil {
		return fmt.Errorf("the backup: %w", err)
	}
	return nil
}

// reopened opens the vault with the keys that it may have, and with one of its two anchors. It ends
// a move that was cut.
func reopened(t *testing.T, dir string, k *known, wrong *[]string) (v *cardvault.Vault, shut func() error, err error) {
	var open []interface{ Close() error }
	shut = func() (err error) {
		for _, c := range slices.Backward(open) {
			err = errors.Join(err, c.Close())
		}
		return err
	}
	at := func(place string) (*boltstore.Store, error) {
		s, err := boltstore.Open(t.Context(), filepath.Join(dir, place, "cardvault.db"), nil)
		if err == nil {
			open = append(open, s)
		}
		return s, err
	}
	s, err := at("vault")
	if err != nil {
		return nil, shut, err
	}

	anchor := cardvault.AnchorDir(filepath.Join(dir, anchorName))
	if k.apart {
		anchor = &apart{[]byte(k.anchor)}
	}
	numbers, opts := k.keys(), vaultOptions(nil, anchor)
	if len(numbers) == 1 && numbers[0] > 0 {
		if _, err := cardvault.New(t.Context(), s, keyring(t, numbers[0]-1), opts); !errors.Is(err, cardvault.ErrWrongKey) {
			*wrong = append(*wrong, fmt.Sprintf("the former key: %v", err))
		}
	}
	v, err = cardvault.New(t.Context(), s, keyring(t, numbers...), opts)
	moved, maybe := k.facts["place"].Text != "", len(k.maybe["place"]) > 0
	switch {
	case moved && !errors.Is(err, cardvault.ErrMoved):
		*wrong = append(*wrong, fmt.Sprintf("the former place of a vault that has moved: %v", err))
	case (moved || maybe) && errors.Is(err, cardvault.ErrMoved):
		to, opened := at(movedName)
		if opened != nil {
			return nil, shut, opened
		}
		if maybe {
			if _, err := cardvault.Move(t.Context(), s, to, keyring(t, numbers...), moveOptions(anchor)); err != nil {
				return nil, shut, fmt.Errorf("move again: %w", err)
			}
		}
		v, err = cardvault.New(t.Context(), to, keyring(t, numbers...), opts)
	}
	if err == nil {
		open = append(open, v)
		k.facts["key"] = fact{Text: strconv.Itoa(numbers[0])} // opening it has changed to that
		delete(k.maybe, "key")
	}
	return v, shut, err
}

// whole verifies a vault and compares it with the known facts.
func whole(t *testing.T, v *cardvault.Vault, k *known, wrong *[]string) error {
	r, err := v.Verify(t.Context(), nil)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	for _, p := range r.Problems {
		if p.Findings[0].Kind == fillerName { // which no vault has written
			continue
		}
		*wrong = append(*wrong, fmt.Sprintf("verify: %d %s: %+v", p.Count, p.Kind, p.Findings))
	}
	if k.facts["sums"].Text != "" && !r.Sums {
		*wrong = append(*wrong, "the vault has lost its sums")
	}
	if k.acked == 0 { // not even the vault
		return nil
	}
	have, err := observe(t.Context(), v, k)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	*wrong = append(*wrong, k.compare(have, time.Now())...)
	return nil
}

// repeated imports a card once more, whose first import has no outcome: it has one token then.
func repeated(t *testing.T, v *cardvault.Vault, i *imported, k *known, wrong *[]string) error {
	token, err := i.do(t.Context(), v)
	if err != nil {
		return fmt.Errorf("import again: %w", err)
	}
	page, err := v.List(t.Context(), &cardvault.TokenListOptions{BusinessKey: i.Order})
	if err != nil {
		return err
	}
	if page.TotalItems != 1 || page.Items[0].ID != token.ID {
		*wrong = append(*wrong, fmt.Sprintf("%d tokens of one import", page.TotalItems))
	}
	account, err := v.Account(t.Context())
	if err != nil {
		return err
	}
	k.facts[name("token", account.ID, token.ID)] = tokenFact(token)
	return nil
}

// backedUp checks the backup that lies beside the vault, and the vault that was restored from it.
func backedUp(t *testing.T, dir string, k *known, wrong *[]string) error {
	c, err := chainIn(dir)
	if err != nil {
		return err
	}
	if c == nil {
		if k.backups > 0 {
			*wrong = append(*wrong, "the backup is lost")
		}
		return nil
	}
	if k.alone && k.increments > 0 && c.increment == nil {
		*wrong = append(*wrong, "the increment is lost")
	}
	had := newKnown()
	had.facts = maps.Clone(k.facts) // unless it was acknowledged
	if k.backups > 0 && (c.increment == nil || k.increments > 0) {
		had.facts = maps.Clone(k.backedUp)
	}
	had.deletedAgain(k.restoring)
	if !k.alone || k.backups > 1 {
		had = nil
	}

	if f := k.facts["restored/"]; f.Text == "" && len(k.maybe["restored/"]) == 0 {
		c.ledger = nil
		m := memstore.New()
		r, err := cardvault.Restore(t.Context(), m, k.everyKey(t), c.backup(), c.options())
		if err != nil {
			return err
		}
		opts := vaultOptions(nil, nil)
		opts.Thaw = r.ID
		v, err := cardvault.New(t.Context(), m, k.everyKey(t), opts)
		if err != nil {
			return err
		}
		return errors.Join(restored(t, v, had, wrong), v.Close())
	}

	place, opts := filepath.Join(dir, restoredName), vaultOptions(nil, nil)
	if id, err := uuid.Parse(k.facts["restored/"].Text); err == nil {
		opts.Thaw = id
	} else if opts.Thaw, err = again(t, place, c, k); err != nil {
		return err
	}
	v, err := cardvault.Open(t.Context(), place, k.everyKey(t), opts)
	if err != nil {
		return err
	}
	return errors.Join(restored(t, v, had, wrong), v.Close())
}

// deletedAgain takes the deletions from the facts of a backup that were made until a restoration.
// Other changes are not repeated.
func (k *known) deletedAgain(until facts) {
	for name := range k.facts {
		parts := strings.Split(name, "/")
		object := name
		switch parts[0] {
		case "payment":
			object = "token/" + parts[1] + "/" + parts[2]
		case "token", "apikey", "secret":
		default:
			continue
		}
		if f, ok := until[object]; ok && f.Text == "" {
			k.facts[name] = fact{}
		}
	}
}

// again repeats a restoration that may have ended, and returns the id for Options.Thaw.
func again(t *testing.T, place string, c *chain, k *known) (uuid.UUID, error) {
	r, err := cardvault.RestoreDir(t.Context(), place, k.everyKey(t), c.backup(), c.options())
	if err == nil {
		return r.ID, nil
	}
	if !errors.Is(err, cardvault.ErrNotEmpty) {
		return uuid.Nil, fmt.Errorf("restore again: %w", err)
	}
	_, err = cardvault.Open(t.Context(), place, k.everyKey(t), vaultOptions(nil, nil))
	_, text, _ := strings.Cut(fmt.Sprint(err), "Options.Thaw to ")
	return uuid.Parse(text[:min(36, len(text))])
}

// restored checks a vault that was restored. A restoration begins another term. had is nil if its
// content is not known.
func restored(t *testing.T, v *cardvault.Vault, had *known, wrong *[]string) error {
	r, err := v.Verify(t.Context(), nil)
	if err != nil {
		return err
	}
	if len(r.Problems) > 0 {
		*wrong = append(*wrong, fmt.Sprintf("verify what was restored: %+v", r.Problems))
	}
	if had == nil {
		return nil
	}
	delete(had.facts, "terms")
	have, err := observe(t.Context(), v, had)
	if err != nil {
		return err
	}
	delete(have, "terms")
	*wrong = append(*wrong, had.compare(have, time.Now())...)
	return nil
}

// TestPowerCut cuts the power at any change of the disk in a short life of a vault that does each
// kind of operation. Changes that were not synced are lost, kept, torn or reordered. Every time the
// vault opens, is whole, has every acknowledged object, and has no deleted one. There are 500 cuts,
// and 10,000 in make faults.
func TestPowerCut(t *testing.T) {
	d := mount(t)
	begun := time.Now()
	worked(t, &orders{Dir: d.dir, Log: filepath.Join(d.dir, logName), Sim: filepath.Join(t.TempDir(), "sim"), Script: everything})
	t.Logf("%d changes of the disk and %d lines of the log in %v", len(d.actions), len(d.lines), time.Since(begun))

	cuts := d.cuts(points(500, 10_000), rand.New(rand.NewPCG(1, 2)))
	found, differ := map[string]int{}, 0
	d.cutAt(t, cuts, true, false, func(c cut, wrong []string) bool {
		found[c.op]++
		if len(wrong) > 0 {
			differ++
			t.Errorf("cut before change %d, in %q, %v:\n%s", c.at, c.op, c.how, strings.Join(wrong[:min(5, len(wrong))], "\n"))
		}
		return true
	})
	t.Logf("%d cuts, after %d of which something was lost, came back or did not agree: %v", len(cuts), differ, found)
	for _, op := range append(everything, "open") {
		if found[op] == 0 {
			t.Errorf("%s was never cut", op)
		}
	}

	// A disk that syncs nothing has to be noticed, or else this test proves nothing.
	after, noticed := 0, false
	d.cutAt(t, d.cuts(50, rand.New(rand.NewPCG(7, 8))), true, true, func(_ cut, wrong []string) bool {
		after++
		noticed = len(wrong) > 0
		return !noticed
	})
	if !noticed {
		t.Error("a disk that syncs nothing was not noticed")
	}
	t.Logf("a disk that syncs nothing is noticed after %d cuts", after)
}

// restorations are operations whose cuts need a deep check.
var restorations = []string{"backup", "increment", "restore"}

// cutAt replays the changes of the disk, and checks the files that each cut leaves. A disk that lies
// does not sync.
func (d *disk) cutAt(t *testing.T, cuts []cut, alone, lies bool, checked func(cut, []string) (goOn bool)) {
	t.Helper()
	place := filepath.Join(scratch(t), "cut")
	p, random, next := newPlatter(rand.New(rand.NewPCG(3, 4))), rand.New(rand.NewPCG(5, 6)), 0
	for n, c := range cuts {
		for ; next < c.at; next++ {
			if a := d.actions[next]; !lies || a.what != synced {
				p.do(a)
			}
		}
		if err := errors.Join(os.RemoveAll(place), os.Mkdir(place, 0o700)); err != nil {
			t.Fatal(err)
		}
		copyOut(t, place, p.lose(c.how, d.folders, random))
		k := d.known(c.at)
		k.alone, k.apart = alone, n%2 == 0
		if !checked(c, check(t, place, k, n%10 == 0 || slices.Contains(restorations, c.op))) {
			return
		}
	}
}

// A cut is a loss of power before an action.
type cut struct {
	at  int
	how loss
	op  string // that was under way
}

// cuts returns times at which the power is cut, in their order: as many in each operation.
func (d *disk) cuts(n int, random *rand.Rand) (cuts []cut) {
	var starts []int // of operations
	var names []string
	for i, a := range d.actions {
		if a.what == logged && d.lines[a.line].State == begun {
			starts, names = append(starts, i), append(names, d.lines[a.line].Op)
		}
	}
	for range n {
		op := random.IntN(len(starts))
		end := len(d.actions)
		if op+1 < len(starts) {
			end = starts[op+1]
		}
		cuts = append(cuts, cut{starts[op] + 1 + random.IntN(end-starts[op]), loss(random.IntN(int(losses))), names[op]})
	}
	slices.SortStableFunc(cuts, func(a, b cut) int { return cmp.Compare(a.at, b.at) })
	return cuts
}

// known returns what the log says before an action.
func (d *disk) known(before int) *known {
	k := newKnown()
	for _, a := range d.actions[:before] {
		if a.what == logged {
			k.take(d.lines[a.line])
		}
	}
	k.died()
	return k
}
