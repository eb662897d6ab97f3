package cardvault_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/backuptest"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A chained vault has a full backup and increments.
type chained struct {
	*backedUp
	streams   [][]byte
	manifests [][]byte
	reports   []*cardvault.BackupReport
}

func newChained(t *testing.T, s store.Store) *chained {
	t.Helper()
	c := &chained{backedUp: &backedUp{store: s}}
	c.fill(t)
	t.Cleanup(func() { c.vault.Close() })
	c.next(t)
	return c
}

// next adds a backup to the chain.
func (c *chained) next(t *testing.T) *cardvault.BackupReport {
	t.Helper()
	var stream, manifest bytes.Buffer
	opts := &cardvault.BackupOptions{Manifest: &manifest}
	if n := len(c.manifests); n > 0 {
		opts.Since = bytes.NewReader(c.manifests[n-1])
	}
	report, err := c.vault.Backup(t.Context(), &stream, opts)
	noErr(t, err)
	c.streams, c.manifests, c.reports = append(c.streams, stream.Bytes()), append(c.manifests, manifest.Bytes()), append(c.reports, report)
	return report
}

// restoreChain restores backups in their order.
func restoreChain(t *testing.T, s store.Store, key []byte, streams ...[]byte) (*cardvault.RestoreReport, error) {
	t.Helper()
	opts := new(cardvault.RestoreOptions)
	for _, stream := range streams[1:] {
		opts.Increments = append(opts.Increments, bytes.NewReader(stream))
	}
	return cardvault.Restore(t.Context(), s, mustKeyBytes(t, key), bytes.NewReader(streams[0]), opts)
}

// same checks that a restored store has the records of the vault, but for the keyring.
func (c *chained) same(t *testing.T, s store.Store) {
	t.Helper()
	want, is := backuptest.Records(t, c.store), backuptest.Records(t, s)
	for k, r := range want {
		if k.Kind != 1 && backuptest.Differs(is[k], r) != "" {
			t.Errorf("record of kind %d: %s", k.Kind, backuptest.Differs(is[k], r))
		}
		delete(is, k)
	}
	for k := range is {
		if k.Kind != 1 {
			t.Errorf("one more record of kind %d", k.Kind)
		}
	}
}

// TestIncrements: a chain beside rotations, a resealing, a retired term and another key-encryption
// key ends in the vault of its last backup, and needs the key of that time alone. What was deleted
// between two backups stays deleted.
func TestIncrements(t *testing.T) { bubble.Test(t, increments) }

func increments(t *testing.T) {
	c := newChained(t, memstore.New())
	later := goldenKey()
	later[0] ^= 1
	var gone []uuid.UUID
	drop := func() error {
		token, err := c.vault.Import(t.Context(), visa, nil)
		if err == nil {
			gone = append(gone, token.ID)
		}
		return err
	}
	for _, change := range []func() error{
		drop,
		func() error { return c.vault.Delete(t.Context(), gone[0]) },
		drop,
		func() error { _, err := c.vault.RotateKeys(t.Context(), nil); return err },
		func() error { return errors.Join(c.vault.Drain(t.Context()), c.vault.Delete(t.Context(), gone[1])) },
		func() error { retire(t, c.vault); return nil },
		func() error { return c.vault.ChangeKeyring(t.Context(), mustKeyBytes(t, later)) },
		func() error { return nil },
	} {
		noErr(t, change())
		before := c.reports[len(c.reports)-1]
		if r := c.next(t); r.Since != before.ID {
			t.Errorf("report %+v, after %+v", r, before)
		}
	}
	if last, full := c.reports[len(c.reports)-1], c.reports[0]; last.Records >= full.Records || last.Unchanged == 0 || full.Since != uuid.Nil || full.Unchanged != 0 {
		t.Errorf("an increment of no change %+v, the full backup %+v", last, full)
	}

	for _, name := range []string{"once", "again"} {
		s := memstore.New()
		restored, err := restoreChain(t, s, later, c.streams...)
		noErr(t, err)
		if len(restored.Bases) != len(c.reports)-1 || restored.Backup.ID != c.reports[len(c.reports)-1].ID || restored.Bases[1].Since != c.reports[0].ID {
			t.Errorf("%s: report %+v", name, restored)
		}
		c.same(t, s)
		v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, later), &cardvault.Options{Purposes: []string{"test"}, Thaw: restored.ID})
		noErr(t, err)
		c.works(t, v)
		for _, id := range gone {
			if _, err := v.Get(t.Context(), id); !errors.Is(err, cardvault.ErrNotFound) {
				t.Errorf("%s: a deleted token: %v", name, err)
			}
		}
		if report, err := v.Verify(t.Context(), nil); err != nil || len(report.Problems) > 0 {
			t.Errorf("%s: Verify = %+v, %v", name, report, err)
		}
		if terms, err := v.KeyReport(t.Context()); err != nil || terms.Unreadable != 0 {
			t.Errorf("%s: terms %+v, %v", name, terms, err)
		}

		// The restored vault goes on with the chain.
		var stream bytes.Buffer
		report, err := v.Backup(t.Context(), &stream, &cardvault.BackupOptions{Since: bytes.NewReader(c.manifests[len(c.manifests)-1])})
		noErr(t, err)
		if report.Unchanged == 0 {
			t.Errorf("%s: the next increment %+v", name, report)
		}
		noErr(t, v.Close())
		_, err = restoreChain(t, memstore.New(), later, append(append([][]byte{}, c.streams...), stream.Bytes())...)
		noErr(t, err)
	}
}

// TestChainRefused: each fault of a chain is refused by its name. A store is no vault then, and takes
// the chain itself.
func TestChainRefused(t *testing.T) {
	c := newChained(t, memstore.New())
	for range 3 {
		_, err := c.vault.Import(t.Context(), visa, nil)
		noErr(t, err)
		c.next(t)
	}
	full, a, b, d := c.streams[0], c.streams[1], c.streams[2], c.streams[3]
	other := newChained(t, memstore.New())
	other.next(t)
	var fork bytes.Buffer
	_, err := c.vault.Backup(t.Context(), &fork, &cardvault.BackupOptions{Since: bytes.NewReader(c.manifests[0])})
	noErr(t, err)
	edited := bytes.Clone(a)
	edited[len(edited)/2] ^= 1
	id := func(n int) string { return c.reports[n].ID.String() }

	for name, test := range map[string]struct {
		streams [][]byte
		err     error
		names   []string
	}{
		"no full backup": {[][]byte{a, b}, cardvault.ErrChain, []string{"backup 1 of 2", id(0), "begin with the full one"}},
		"alone":          {[][]byte{d}, cardvault.ErrChain, []string{"the backup", id(3), id(2), "begin with the full one"}},
		"missing":        {[][]byte{full, a, d}, cardvault.ErrChain, []string{"backup 3 of 3", id(3), id(2), id(1)}},
		"swapped":        {[][]byte{full, b, a, d}, cardvault.ErrChain, []string{"backup 2 of 4", id(2), id(1), id(0)}},
		"repeated":       {[][]byte{full, a, a, b}, cardvault.ErrChain, []string{"backup 3 of 4", id(1), id(0)}},
		"two full ones":  {[][]byte{full, full}, cardvault.ErrChain, []string{"backup 2 of 2", "is full"}},
		"a fork":         {[][]byte{full, a, fork.Bytes()}, cardvault.ErrChain, []string{"backup 3 of 3", id(0), id(1)}},
		"foreign":        {[][]byte{full, other.streams[1]}, cardvault.ErrChain, []string{"backup 1 of 2", "another vault"}},
		"foreign base":   {[][]byte{other.streams[0], a}, cardvault.ErrChain, []string{"backup 1 of 2", "another vault"}},
		"cut off":        {[][]byte{full, a[:len(a)-1], b}, cardvault.ErrDamaged, []string{"backup 2 of 3", "chunk "}},
		"empty":          {[][]byte{full, a, nil}, cardvault.ErrDamaged, []string{"backup 3 of 3", "chunk 0"}},
		"edited":         {[][]byte{full, edited, b}, cardvault.ErrDamaged, []string{"backup 2 of 3", "chunk "}},
		"longer":         {[][]byte{full, append(bytes.Clone(a), 0), b}, cardvault.ErrDamaged, []string{"backup 2 of 3", "something follows"}},
	} {
		s := memstore.New()
		_, err := restoreChain(t, s, goldenKey(), test.streams...)
		if !errors.Is(err, test.err) {
			t.Errorf("%s: %v", name, err)
		}
		for _, part := range test.names {
			if !strings.Contains(fmt.Sprint(err), part) {
				t.Errorf("%s: %v, without %q", name, err, part)
			}
		}
		if n := len(backuptest.Records(t, s)); errors.Is(test.err, cardvault.ErrChain) && n != 1 { // the mark
			t.Errorf("%s: %d records were written", name, n)
		}
		if _, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), nil); !errors.Is(err, cardvault.ErrFrozen) {
			t.Errorf("%s: New = %v", name, err)
		}
		_, err = restoreChain(t, s, goldenKey(), full, a, b, d)
		noErr(t, err)
		c.same(t, s)
	}

	// An increment that names the base, and was made of another end of it, has no forger but the vault.
	s := memstore.New()
	_, err = restoreChain(t, s, goldenKey(), full, a)
	noErr(t, err)
	if _, err := restoreChain(t, s, goldenKey(), full, a, b); !errors.Is(err, cardvault.ErrNotEmpty) {
		t.Errorf("a longer chain into a restored vault: %v", err)
	}
	if _, err := cardvault.Restore(t.Context(), memstore.New(), mustKeyBytes(t, goldenKey()), bytes.NewReader(full), &cardvault.RestoreOptions{Increments: []io.Reader{nil}}); len(cardvault.FieldErrors(err)) != 1 {
		t.Errorf("a nil increment: %v", err)
	}
}

// TestManifestRefused: a manifest that was edited, cut off, or is of another vault or of an
// incomplete backup makes no increment.
func TestManifestRefused(t *testing.T) {
	c := newChained(t, memstore.New())
	for range 40 {
		_, err := c.vault.Import(t.Context(), visa, nil)
		noErr(t, err)
	}
	c.next(t)
	whole := c.manifests[1]
	refused := func(name string, manifest []byte, wanted ...error) {
		t.Helper()
		_, err := c.vault.Backup(t.Context(), io.Discard, &cardvault.BackupOptions{Since: bytes.NewReader(manifest)})
		for _, want := range wanted {
			if errors.Is(err, want) {
				return
			}
		}
		t.Errorf("%s: %v", name, err)
	}
	for i := range whole {
		edited := bytes.Clone(whole)
		edited[i] ^= 1 << (i % 8)
		refused(fmt.Sprint("byte ", i), edited, cardvault.ErrDamaged, cardvault.ErrFormat, cardvault.ErrChain)
		if i%7 == 0 {
			refused(fmt.Sprint("cut at ", i), whole[:i], cardvault.ErrDamaged)
		}
	}
	refused("one byte more", append(bytes.Clone(whole), 0), cardvault.ErrDamaged)
	refused("a backup", c.streams[1], cardvault.ErrDamaged)
	refused("another vault", newChained(t, memstore.New()).manifests[0], cardvault.ErrChain)

	broken := errors.New("broken")
	var manifest bytes.Buffer
	w := &failingWriter{left: 3, err: broken, meanwhile: func() {}}
	if _, err := c.vault.Backup(t.Context(), w, &cardvault.BackupOptions{Manifest: &manifest}); !errors.Is(err, broken) {
		t.Errorf("a backup that fails: %v", err)
	}
	refused("the manifest of a backup that has failed", manifest.Bytes(), cardvault.ErrDamaged)
	w = &failingWriter{left: 1, err: broken, meanwhile: func() {}}
	if _, err := c.vault.Backup(t.Context(), io.Discard, &cardvault.BackupOptions{Manifest: w}); !errors.Is(err, broken) {
		t.Errorf("a manifest that cannot be written: %v", err)
	}
	since := struct {
		io.Reader
		io.Seeker
	}{iotest.ErrReader(broken), bytes.NewReader(nil)}
	if _, err := c.vault.Backup(t.Context(), io.Discard, &cardvault.BackupOptions{Since: since}); !errors.Is(err, broken) || errors.Is(err, cardvault.ErrDamaged) {
		t.Errorf("a manifest that cannot be read: %v", err)
	}
}

// A failingStore fails from its n-th Update on.
type failingStore struct {
	store.Store
	left int
}

var errNoUpdate = errors.New("no update")

func (s *failingStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.left--; s.left < 0 {
		return errNoUpdate
	}
	return s.Store.Update(ctx, fn)
}

// TestChainResumed: a restoration that ends at any of its writes leaves no vault, and goes on.
func TestChainResumed(t *testing.T) {
	c := newChained(t, memstore.New())
	for range 2 {
		noErr(t, c.vault.Delete(t.Context(), c.token.ID))
		token, err := c.vault.Import(t.Context(), visa, &cardvault.ImportOptions{BusinessKey: "order 1"})
		noErr(t, err)
		c.token = token
		c.next(t)
	}
	for n := 1; ; n++ {
		s := memstore.New()
		_, err := restoreChain(t, &failingStore{Store: s, left: n}, goldenKey(), c.streams...)
		if err == nil {
			if n < 3*len(c.streams) {
				t.Errorf("only %d Updates", n)
			}
			break
		}
		if !errors.Is(err, errNoUpdate) {
			t.Fatal(err)
		}
		if _, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), nil); !errors.Is(err, cardvault.ErrFrozen) {
			t.Fatalf("after %d Updates: New = %v", n, err)
		}
		restored, err := restoreChain(t, s, goldenKey(), c.streams...)
		noErr(t, err)
		c.same(t, s)
		v := c.thawed(t, s, restored.ID)
		c.works(t, v)
		noErr(t, v.Close())
	}
}

// A goldenChain is what testdata/backup2 has, the first chain.
type goldenChain struct {
	Full, Increment uuid.UUID
	Unchanged       int64
	Token           uuid.UUID
	Removed         uuid.UUID // in the full backup alone
	Added           uuid.UUID // in the increment alone
}

const goldenChainDir = "testdata/backup2"

// writeGoldenChain writes testdata/backup2 anew, which only a new format needs:
//
//	GOLDEN=1 go test -run TestChainFormat .
func writeGoldenChain(t *testing.T) {
	t.Helper()
	c := newChained(t, memstore.New())
	removed, err := c.vault.Import(t.Context(), visa, nil)
	noErr(t, err)
	c.streams, c.manifests, c.reports = nil, nil, nil
	c.next(t)
	noErr(t, c.vault.Delete(t.Context(), removed.ID))
	added, err := c.vault.Import(t.Context(), visa, nil)
	noErr(t, err)
	c.next(t)
	g := goldenChain{c.reports[0].ID, c.reports[1].ID, c.reports[1].Unchanged, c.token.ID, removed.ID, added.ID}
	text, err := json.MarshalIndent(g, "", "\t")
	noErr(t, err)
	for name, data := range map[string][]byte{
		"vault.json": append(text, '\n'), "full": c.streams[0], "increment": c.streams[1], "manifest": c.manifests[1],
	} {
		noErr(t, os.WriteFile(filepath.Join(goldenChainDir, name), data, 0o644))
	}
}

// An increment of format 2, and a manifest of format 1, can be used by every later version.
func TestChainFormat(t *testing.T) {
	if os.Getenv("GOLDEN") != "" {
		writeGoldenChain(t)
	}
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(goldenChainDir, name))
		noErr(t, err)
		return data
	}
	var g goldenChain
	noErr(t, json.Unmarshal(read("vault.json"), &g))

	s := boltIn(t, t.TempDir())
	r, err := restoreChain(t, s, goldenKey(), read("full"), read("increment"))
	noErr(t, err)
	if r.Backup.ID != g.Increment || r.Backup.Since != g.Full || len(r.Bases) != 1 || r.Bases[0].ID != g.Full || g.Unchanged == 0 {
		t.Errorf("restored %+v of %+v", r, g)
	}
	v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{Thaw: r.ID})
	noErr(t, err)
	defer v.Close()
	for id, want := range map[uuid.UUID]error{g.Token: nil, g.Added: nil, g.Removed: cardvault.ErrNotFound} {
		if _, err := v.Get(t.Context(), id); !errors.Is(err, want) {
			t.Errorf("token %v: %v, want %v", id, err, want)
		}
	}
	report, err := v.Backup(t.Context(), io.Discard, &cardvault.BackupOptions{Since: bytes.NewReader(read("manifest"))})
	noErr(t, err)
	if report.Since != g.Increment || report.Unchanged == 0 {
		t.Errorf("the next increment %+v", report)
	}
}

// BenchmarkIncrement prints the size of an increment beside the full backup of 100,000 tokens, after
// 1,000 of them were changed, chosen at random, and after 1,000 others were imported:
//
//	go test -run '^$' -bench BenchmarkIncrement -benchtime 1x .
func BenchmarkIncrement(b *testing.B) {
	const tokens, hundredth = 100_000, 1000
	keys, err := cardvault.KeyBytes(goldenKey())
	noErr(b, err)
	for b.Loop() {
		v, err := cardvault.New(b.Context(), memstore.New(), keys, &cardvault.Options{Audit: new(cardvault.AuditOptions)})
		noErr(b, err)
		var ids []uuid.UUID
		imports := func(n int) {
			for range n {
				token, err := v.Import(b.Context(), visa, &cardvault.ImportOptions{BusinessKey: "order"})
				noErr(b, err)
				ids = append(ids, token.ID)
			}
		}
		var manifest []byte
		backup := func() *cardvault.BackupReport {
			noErr(b, v.Drain(b.Context()))
			var next bytes.Buffer
			opts := &cardvault.BackupOptions{Manifest: &next}
			if manifest != nil {
				opts.Since = bytes.NewReader(manifest)
			}
			report, err := v.Backup(b.Context(), io.Discard, opts)
			noErr(b, err)
			manifest = next.Bytes()
			return report
		}

		imports(tokens)
		full := backup()
		size := func(name string, bytes int64) {
			b.ReportMetric(float64(bytes)/(1<<20), name+"-MiB")
			b.ReportMetric(100*float64(bytes)/float64(full.Bytes), name+"-%")
		}
		size("full", full.Bytes)
		size("manifest", int64(len(manifest)))
		key := "changed"
		for _, i := range rand.Perm(tokens)[:hundredth] {
			_, err := v.Update(b.Context(), ids[i], cardvault.TokenUpdate{BusinessKey: &key})
			noErr(b, err)
		}
		size("changed", backup().Bytes)
		imports(hundredth)
		size("imported", backup().Bytes)
		noErr(b, v.Close())
	}
}
