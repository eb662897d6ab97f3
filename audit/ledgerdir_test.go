package audit_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/audittest"
	"github.com/google/uuid"
)

func TestLedgerDir(t *testing.T) {
	dir := t.TempDir()
	audittest.RunLedger(t, audittest.LedgerHarness{
		Open:    func(testing.TB) audit.Ledger { return audit.NewLedgerDir(dir) },
		Exports: audit.NewLedgerDir(dir).Exports,
	})
}

// TestLedgerDirModes: a folder that others may write to takes no part, and says what to do. A folder that
// they may read does, and is logged once.
func TestLedgerDirModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no modes")
	}
	for mode, want := range map[fs.FileMode]struct {
		refused bool
		lines   int
	}{0o700: {}, 0o750: {lines: 1}, 0o701: {lines: 1}, 0o755: {lines: 1}, 0o770: {refused: true}, 0o702: {refused: true}, 0o777: {refused: true}} {
		dir, c := t.TempDir(), newChain()
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		l := audit.NewLedgerDir(dir)
		l.Logger = slog.New(slog.NewTextHandler(&log, nil))
		for range 2 {
			err := l.Append(t.Context(), c.part(1))
			if want.refused != (err != nil) || err != nil && !strings.Contains(err.Error(), "make it 0700") {
				t.Errorf("mode %#o: %v", mode, err)
			}
			if _, err := l.Last(t.Context(), c.vault, c.account); want.refused != (err != nil) {
				t.Errorf("mode %#o: Last: %v", mode, err)
			}
		}
		if n := strings.Count(log.String(), "set its mode to 0700"); n != want.lines {
			t.Errorf("mode %#o: %d warnings", mode, n)
		}
	}

	dir, c := t.TempDir(), newChain()
	l := audit.NewLedgerDir(dir)
	if err := errors.Join(l.Append(t.Context(), c.part(1)), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(t.Context(), c.part(1)); err == nil {
		t.Error("a folder that was opened to others takes a part")
	}
	if all, err := l.Exports(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("its exports: %d, %v", len(all), err)
	}
}

// A chain is the log of an account that a test writes.
type chain struct {
	vault, account uuid.UUID
	key            ed25519.PrivateKey
	all            []*audit.Checkpoint
}

func newChain() *chain {
	return &chain{vault: uuid.New(), account: uuid.New(), key: ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))}
}

// part returns the part with the next n checkpoints, the last one with a record for each detail.
func (c *chain) part(n int, details ...string) *audit.Part {
	var out bytes.Buffer
	first := uint64(len(c.all) + 1)
	keys := []audit.Signer{{PublicKey: [ed25519.PublicKeySize]byte(c.key.Public().(ed25519.PublicKey)), First: 1}}
	x := audit.NewWriter(&out, c.vault, c.account, first, false, keys, c.key)
	for range n {
		k := &audit.Checkpoint{VaultID: c.vault, AccountID: c.account, Number: uint64(len(c.all) + 1), At: time.Now().UTC().Truncate(time.Microsecond)}
		if len(c.all) > 0 {
			k.Previous = c.all[len(c.all)-1].Hash()
		}
		k.Sign(c.key)
		c.all = append(c.all, k)
		_ = x.Checkpoint(k) // a Buffer takes all
	}
	for _, d := range details {
		_ = x.Record(&audit.Record{Detail: d})
	}
	_ = x.Close()
	last := c.all[len(c.all)-1]
	return &audit.Part{VaultID: c.vault, AccountID: c.account, First: first, Last: audit.Mark{Number: last.Number, Hash: last.Hash()}, Export: out.Bytes()}
}

// kept returns how far the ledger in a folder is with a chain. Its exports have to be whole, and to
// follow each other so far.
func (c *chain) kept(t *testing.T, dir string) uint64 {
	t.Helper()
	l := audit.NewLedgerDir(dir)
	last, err := l.Last(t.Context(), c.vault, c.account)
	if err != nil {
		t.Fatal(err)
	}
	exports, err := l.Exports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	has := map[uint64]bool{}
	for _, e := range exports {
		r, err := audit.Verify(e, nil)
		if err != nil {
			t.Fatalf("an export of %d: %v", len(exports), err)
		}
		for n := r.First; n <= r.Last.Number; n++ {
			has[n] = true
		}
	}
	for n := range last.Number {
		if !has[n+1] {
			t.Errorf("checkpoint %d of %d is in no export", n+1, last.Number)
		}
	}
	if has[last.Number+1] {
		t.Errorf("an export ends behind checkpoint %d, the last one", last.Number)
	}
	return last.Number
}

// files returns the files of a ledger with one account, the first one first.
func (c *chain) files(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, c.vault.String(), c.account.String(), "*.ledger"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func appends(t *testing.T, l *audit.LedgerDir, p *audit.Part) {
	t.Helper()
	if err := l.Append(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

// TestLedgerDirTorn: wherever the last write has ended, or whatever it has left, the part counts for
// nothing, and comes again.
func TestLedgerDirTorn(t *testing.T) {
	c := newChain()
	first, second := c.part(3), c.part(2)
	size := len(first.Export)
	torn := map[string][]byte{
		"zeros":                 slices.Concat(first.Export, make([]byte, 4096)),
		"a hole":                slices.Concat(first.Export, second.Export[:100], make([]byte, 100), second.Export[200:]),
		"without its beginning": slices.Concat(first.Export, second.Export[100:]),
	}
	for n := 0; n < len(second.Export); n += 97 {
		torn[fmt.Sprint(n, " bytes")] = slices.Concat(first.Export, second.Export[:n])
	}
	torn["all but the end of the line"] = slices.Concat(first.Export, second.Export[:len(second.Export)-1])

	t.Logf("%d torn ends", len(torn))
	for name, text := range torn {
		dir := t.TempDir()
		appends(t, audit.NewLedgerDir(dir), first)
		if err := os.WriteFile(c.files(t, dir)[0], text, 0o600); err != nil {
			t.Fatal(err)
		}
		if n := c.kept(t, dir); n != 3 {
			t.Errorf("%s: %d checkpoints are kept of 3, in %d bytes of %d", name, n, len(text), size)
		}
		appends(t, audit.NewLedgerDir(dir), second)
		if n := c.kept(t, dir); n != 5 {
			t.Errorf("%s, and again: %d checkpoints are kept of 5", name, n)
		}
	}
}

// TestLedgerDirEdited: a part that was changed or removed in the midst of a file is given to the
// restore, which refuses it.
func TestLedgerDirEdited(t *testing.T) {
	c, dir := newChain(), t.TempDir()
	l := audit.NewLedgerDir(dir)
	parts := []*audit.Part{c.part(1), c.part(2), c.part(1)}
	for _, p := range parts {
		appends(t, l, p)
	}
	files := c.files(t, dir)
	if len(files) != 1 {
		t.Fatalf("%d files", len(files))
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}

	at := len(parts[0].Export)
	for name, text := range map[string][]byte{
		"a byte":      slices.Concat(whole[:at+200], []byte{whole[at+200] ^ 1}, whole[at+201:]),
		"a line":      slices.Concat(whole[:at], whole[at+bytes.IndexByte(whole[at:], '\n')+1:]),
		"more text":   slices.Concat(whole[:at], []byte("{}\n"), whole[at:]),
		"the first 9": whole[9:],
	} {
		if err := os.WriteFile(files[0], text, 0o600); err != nil {
			t.Fatal(err)
		}
		exports, err := audit.NewLedgerDir(dir).Exports(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		for _, e := range exports {
			if _, err := audit.Verify(e, nil); err != nil {
				refused++
			}
		}
		if refused != 1 {
			t.Errorf("%s: %d of %d exports are refused", name, refused, len(exports))
		}
	}
}

// TestLedgerDirFiles: a file has an end, a removed one is replaced, and an error leaves no piece of a
// part behind.
func TestLedgerDirFiles(t *testing.T) {
	c, dir := newChain(), t.TempDir()
	l := audit.NewLedgerDir(filepath.Join(dir, "missing"))
	p := c.part(1)
	if err := l.Append(t.Context(), p); err == nil {
		t.Error("a ledger without its folder keeps a part")
	}
	if _, err := l.Last(t.Context(), c.vault, c.account); err == nil {
		t.Error("a ledger without its folder knows the last part")
	}
	l = audit.NewLedgerDir(dir)
	cut := *p
	cut.Export = p.Export[:len(p.Export)-1]
	if err := l.Append(t.Context(), &cut); err == nil {
		t.Error("a part without its end is kept")
	}
	appends(t, l, p)
	if err := os.Truncate(c.files(t, dir)[0], 16<<20); err != nil { // with zeros, which count for nothing
		t.Fatal(err)
	}
	l = audit.NewLedgerDir(dir)
	appends(t, l, c.part(1))
	appends(t, l, c.part(1))
	appends(t, audit.NewLedgerDir(dir), p) // which is kept
	if n, files := c.kept(t, dir), c.files(t, dir); n != 3 || len(files) != 2 {
		t.Errorf("%d checkpoints in %d files, want 3 in 2", n, len(files))
	}
	if err := os.Remove(c.files(t, dir)[1]); err != nil {
		t.Fatal(err)
	}
	appends(t, l, c.part(1))
	if files := c.files(t, dir); len(files) != 2 || !strings.Contains(files[1], "0004-") {
		t.Errorf("files %q", files)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(t.Context(), c.part(1)); err == nil {
		t.Error("a ledger whose folder is gone keeps a part")
	}
}

// TestLedgerDirReplaced: what stands in the place of a file or of the ledger gets no part.
func TestLedgerDirReplaced(t *testing.T) {
	c, dir, elsewhere := newChain(), t.TempDir(), filepath.Join(t.TempDir(), "other")
	l := audit.NewLedgerDir(dir)
	appends(t, l, c.part(1))
	file := c.files(t, dir)[0]
	if err := errors.Join(os.Rename(file, elsewhere), os.Symlink(elsewhere, file)); err != nil {
		t.Skipf("no symbolic links here: %v", err)
	}
	before, err := os.Stat(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	appends(t, l, c.part(1))
	if after, err := os.Stat(elsewhere); err != nil || after.Size() != before.Size() {
		t.Errorf("a part went through a symbolic link: %v", err)
	}

	away := dir + "-away"
	folder := filepath.Dir(filepath.Dir(file))
	if err := os.Rename(folder, away); err != nil { // as an unmount does
		t.Fatal(err)
	}
	p := c.part(1)
	if err := l.Append(t.Context(), p); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Append = %v to what is no ledger any more", err)
	}
	if err := os.Rename(away, folder); err != nil {
		t.Fatal(err)
	}
	appends(t, l, p)
}

// TestLedgerDirLong: the mark is found whatever the size of the last part, and a long log is in
// several files.
func TestLedgerDirLong(t *testing.T) {
	c, dir := newChain(), t.TempDir()
	l := audit.NewLedgerDir(dir)
	for range 3 {
		appends(t, l, c.part(1, strings.Repeat("x", 9<<20)))
	}
	last, err := audit.NewLedgerDir(dir).Last(t.Context(), c.vault, c.account)
	if files := c.files(t, dir); err != nil || last.Number != 3 || len(files) != 2 {
		t.Errorf("%d checkpoints in %d files, want 3 in 2, %v", last.Number, len(files), err)
	}
}

// TestLedgerDirKilled kills a process that keeps parts: each part that it called kept is there.
func TestLedgerDirKilled(t *testing.T) {
	const child = "CARDVAULT_LEDGER_DIR"
	if dir, ok := os.LookupEnv(child); ok {
		keepUntilKilled(dir)
	}
	dir := t.TempDir()
	for range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLedgerDirKilled$")
		cmd.Env = append(os.Environ(), child+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		var vault, account string
		var kept uint64
		for kept < 20 && lines.Scan() {
			if _, err := fmt.Sscan(lines.Text(), &vault, &account, &kept); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // kept before the kill
			_, _ = fmt.Sscan(lines.Text(), &vault, &account, &kept)
		}
		_ = cmd.Wait() // it was killed
		last, err := audit.NewLedgerDir(dir).Last(t.Context(), uuid.MustParse(vault), uuid.MustParse(account))
		if err != nil || last.Number < kept || kept < 20 {
			t.Errorf("%d checkpoints, want %d at least, %v", last.Number, kept, err)
		}
	}
	exports, err := audit.NewLedgerDir(dir).Exports(t.Context())
	if err != nil || len(exports) < 60 {
		t.Fatalf("%d exports, %v", len(exports), err)
	}
	for _, e := range exports {
		if _, err := audit.Verify(e, nil); err != nil {
			t.Error(err)
		}
	}
	t.Logf("3 kills amid %d parts", len(exports))
}

func keepUntilKilled(dir string) {
	c, l := newChain(), audit.NewLedgerDir(dir)
	for {
		if err := l.Append(context.Background(), c.part(1)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if _, err := fmt.Println(c.vault, c.account, len(c.all)); err != nil {
			os.Exit(1)
		}
	}
}

// TestLedgerDirExports: exports that were put into the folder are given to the restore as they are.
func TestLedgerDirExports(t *testing.T) {
	c, dir := newChain(), t.TempDir()
	p := c.part(2)
	for name, text := range map[string][]byte{"whole.jsonl": p.Export, "cut.jsonl": p.Export[:100], "note.txt": nil, ".part.jsonl": nil} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	exports, err := audit.NewLedgerDir(dir).Exports(t.Context())
	if err != nil || len(exports) != 2 {
		t.Fatalf("%d exports, %v", len(exports), err)
	}
	for i, want := range [][]byte{p.Export[:100], p.Export} {
		for range 2 {
			if _, err := exports[i].Seek(0, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(exports[i]); err != nil || !bytes.Equal(got, want) {
				t.Errorf("export %d: %d bytes, want %d, %v", i, len(got), len(want), err)
			}
		}
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := audit.NewLedgerDir(dir).Exports(ended); err == nil {
		t.Error("a call whose context has ended goes on")
	}
	if _, err := audit.NewLedgerDir(filepath.Join(dir, "missing")).Exports(t.Context()); err == nil {
		t.Error("a folder that is missing has exports")
	}
}
