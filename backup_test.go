package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/backuptest"
	"github.com/cardvault/cardvault/internal/keyfile"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A backedUp vault has a token, an API key and a merchant.
type backedUp struct {
	store  store.Store
	vault  *cardvault.Vault
	token  *cardvault.Token
	key    string
	stream []byte
	report *cardvault.BackupReport
}

func backUp(t *testing.T) *backedUp {
	t.Helper()
	b := &backedUp{store: memstore.New()}
	var err error
	b.vault, err = cardvault.New(t.Context(), b.store, mustKeyBytes(t, goldenKey()), &cardvault.Options{Purposes: []string{"test"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.vault.Close() })
	if b.token, err = b.vault.Import(t.Context(), visa, &cardvault.ImportOptions{BusinessKey: "order 1"}); err != nil {
		t.Fatal(err)
	}
	key, err := b.vault.CreateAPIKey(t.Context(), "key", []cardvault.Scope{cardvault.ScopeTokensRead}, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	if err != nil {
		t.Fatal(err)
	}
	b.key = key.Text.Text()
	b.again(t)
	return b
}

// again makes the backup anew.
func (b *backedUp) again(t *testing.T) {
	t.Helper()
	var out bytes.Buffer
	var last cardvault.BackupProgress
	report, err := b.vault.Backup(t.Context(), &out, &cardvault.BackupOptions{Progress: func(p cardvault.BackupProgress) { last = p }})
	if err != nil {
		t.Fatal(err)
	}
	if last.Records != report.Records || last.Bytes != report.Bytes || report.Bytes != int64(out.Len()) {
		t.Errorf("progress %+v, report %+v, %d bytes", last, report, out.Len())
	}
	b.stream, b.report = out.Bytes(), report
}

func restore(t *testing.T, s store.Store, stream []byte) (*cardvault.RestoreReport, error) {
	t.Helper()
	return cardvault.Restore(t.Context(), s, mustKeyBytes(t, goldenKey()), bytes.NewReader(stream), nil)
}

// works checks that a restored vault has the content of the one that was backed up.
func (b *backedUp) works(t *testing.T, v *cardvault.Vault) {
	t.Helper()
	token, err := v.Get(t.Context(), b.token.ID)
	if err != nil {
		t.Fatal(err)
	}
	if token.IIN != b.token.IIN || !token.CreatedAt.Equal(b.token.CreatedAt) {
		t.Errorf("token %+v, want %+v", token, b.token)
	}
	err = v.Use(t.Context(), token.ID, "test", func(_ context.Context, c *cardvault.UsedCard) error {
		c.PAN.Expose(func(digits []byte) {
			if string(digits) != "4242424242424242" {
				t.Error("another card number")
			}
		})
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := v.Authenticate(t.Context(), b.key); err != nil {
		t.Error(err)
	}
	page, err := v.List(t.Context(), &cardvault.TokenListOptions{BusinessKey: "order 1"})
	if err != nil || page.TotalItems != 1 {
		t.Errorf("list by business key: %v", err)
	}
}

// thawed opens a restored vault.
func (b *backedUp) thawed(t *testing.T, s store.Store, id uuid.UUID) *cardvault.Vault {
	t.Helper()
	v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{Purposes: []string{"test"}, Thaw: id})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A restored vault is frozen until its twin is named, and then has all of it, under a new term.
func TestBackupRestore(t *testing.T) {
	b := backUp(t)
	keys, dir := mustKeyBytes(t, goldenKey()), filepath.Join(t.TempDir(), "vault")
	report, err := cardvault.RestoreDir(t.Context(), dir, keys, bytes.NewReader(b.stream), nil)
	if err != nil {
		t.Fatal(err)
	}
	if report.Backup.ID != b.report.ID || !report.Backup.At.Equal(b.report.At) || report.Backup.Records != b.report.Records || report.ID == uuid.Nil {
		t.Errorf("report %+v of backup %+v", report, b.report)
	}

	for _, thaw := range []uuid.UUID{{}, b.report.ID, uuid.New()} {
		_, err := cardvault.Open(t.Context(), dir, keys, &cardvault.Options{Thaw: thaw})
		if !errors.Is(err, cardvault.ErrFrozen) || !strings.Contains(err.Error(), report.ID.String()) {
			t.Errorf("Open of a frozen vault = %v", err)
		}
	}
	if _, err := cardvault.RestoreDir(t.Context(), dir, keys, bytes.NewReader(b.stream), nil); !errors.Is(err, cardvault.ErrNotEmpty) {
		t.Errorf("a second Restore = %v", err)
	}

	for _, opts := range []*cardvault.Options{{Purposes: []string{"test"}, Thaw: report.ID}, {Purposes: []string{"test"}}} {
		v, err := cardvault.Open(t.Context(), dir, keys, opts)
		if err != nil {
			t.Fatal(err)
		}
		b.works(t, v)
		if _, err := v.Import(t.Context(), visa, nil); err != nil {
			t.Error(err)
		}
		terms, err := v.KeyReport(t.Context())
		if err != nil || len(terms.Terms) != 2 || terms.Unreadable != 0 {
			t.Errorf("terms %+v, %v", terms, err)
		}
		if err := errors.Join(v.Drain(t.Context()), v.Close()); err != nil {
			t.Error(err)
		}
	}
	if _, err := restore(t, b.store, b.stream); !errors.Is(err, cardvault.ErrNotEmpty) {
		t.Errorf("Restore into the vault = %v", err)
	}
}

// A restored store has the records that were backed up, byte for byte, but for the keyring.
func TestRestoreIsExact(t *testing.T) {
	b := backUp(t)
	want := backuptest.Records(t, b.store)
	for name, s := range map[string]store.Store{"memory": memstore.New(), "bbolt": boltIn(t, t.TempDir())} {
		if _, err := restore(t, s, b.stream); err != nil {
			t.Fatal(err)
		}
		is := backuptest.Records(t, s)
		for k, r := range want {
			if k.Kind != 1 && backuptest.Differs(is[k], r) != "" {
				t.Errorf("%s: record of kind %d: %s", name, k.Kind, backuptest.Differs(is[k], r))
			}
			delete(is, k)
		}
		for k := range is {
			if k.Kind != 1 {
				t.Errorf("%s: one more record of kind %d", name, k.Kind)
			}
		}
	}
}

func boltIn(t *testing.T, dir string) store.Store {
	t.Helper()
	s, err := boltstore.Open(t.Context(), filepath.Join(dir, "cardvault.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// The keys may change at any time: the vault is restored with the keyring of the end.
func TestBackupWhileKeysChange(t *testing.T) {
	b := backUp(t)
	other := goldenKey()
	other[0] ^= 1
	changes := []func() error{
		func() error { _, err := b.vault.RotateKeys(t.Context(), nil); return err },
		func() error { return b.vault.ChangeKeyring(t.Context(), mustKeyBytes(t, other)) },
	}
	var out bytes.Buffer
	report, err := b.vault.Backup(t.Context(), &out, &cardvault.BackupOptions{Progress: func(cardvault.BackupProgress) {
		if len(changes) > 0 {
			if err := changes[0](); err != nil {
				t.Error(err)
			}
			changes = changes[1:]
		}
	}})
	if err != nil {
		t.Fatal(err)
	}

	s := memstore.New()
	keys := cardvault.JoinKeyrings(mustKeyBytes(t, other), mustKeyBytes(t, goldenKey()))
	restored, err := cardvault.Restore(t.Context(), s, keys, bytes.NewReader(out.Bytes()), nil)
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, other), &cardvault.Options{Purposes: []string{"test"}, Thaw: restored.ID})
	if err != nil {
		t.Fatalf("%v, after %+v", err, report)
	}
	defer v.Close()
	b.works(t, v)
}

// Whatever is changed or cut off is refused, and a store is no vault then. The backup itself can
// still be restored into it.
func TestDamagedBackup(t *testing.T) {
	b := backUp(t)
	calls, whole := 0, b.stream
	refused := func(name string, stream []byte, wanted ...error) {
		t.Helper()
		s := memstore.New()
		_, err := restore(t, s, stream)
		is := false
		for _, want := range wanted {
			is = is || errors.Is(err, want)
		}
		if !is {
			t.Fatalf("%s: %v", name, err)
		}
		if errors.Is(err, cardvault.ErrDamaged) && !strings.Contains(err.Error(), "chunk ") {
			t.Errorf("%s: the error names no chunk: %v", name, err)
		}
		if len(backuptest.Records(t, s)) > 0 {
			if _, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), nil); !errors.Is(err, cardvault.ErrFrozen) {
				t.Fatalf("%s: New = %v", name, err)
			}
		}
		if calls++; calls%16 != 0 && calls < len(whole) {
			return
		}
		if restored, err := restore(t, s, whole); err != nil {
			t.Fatalf("%s: the backup itself: %v", name, err)
		} else if v := b.thawed(t, s, restored.ID); v.Close() != nil {
			t.Fatal(name)
		}
	}

	for i := range b.stream {
		edited := bytes.Clone(b.stream)
		edited[i] ^= 1 << (i % 8)
		refused(fmt.Sprint("byte ", i), edited, cardvault.ErrDamaged, cardvault.ErrWrongKey, cardvault.ErrFormat)
		if i%7 == 0 {
			refused(fmt.Sprint("cut at ", i), b.stream[:i], cardvault.ErrDamaged)
		}
	}
	refused("one byte more", append(bytes.Clone(b.stream), 0), cardvault.ErrDamaged)

	first := chunks(b.stream)
	b.again(t)
	second := chunks(b.stream)
	if len(first) < 4 || len(second) != len(first) {
		t.Fatalf("%d and %d chunks", len(first), len(second))
	}
	for i := range len(first) {
		whole = b.stream
		if i == 0 {
			whole = bytes.Join(first, nil)
		}
		mixed := append([][]byte{}, second...)
		mixed[i] = first[i]
		refused(fmt.Sprint("chunk of another backup, ", i), bytes.Join(mixed, nil), cardvault.ErrDamaged)
		whole = b.stream
		refused(fmt.Sprint("a chunk is missing, ", i), bytes.Join(append(append([][]byte{}, second[:i]...), second[i+1:]...), nil), cardvault.ErrDamaged)
		if i > 0 {
			mixed = append([][]byte{}, second...)
			mixed[i], mixed[i-1] = mixed[i-1], mixed[i]
			refused(fmt.Sprint("chunks change places, ", i), bytes.Join(mixed, nil), cardvault.ErrDamaged)
		}
	}
}

// chunks returns the parts of a stream; the first has the text before it.
func chunks(stream []byte) (all [][]byte) {
	from, at := 0, len("cardvault backup")
	for at < len(stream) {
		at += 4 + int(stream[at])<<24 + int(stream[at+1])<<16 + int(stream[at+2])<<8 + int(stream[at+3]) + 32
		all = append(all, stream[from:at])
		from = at
	}
	return all
}

func TestRestoreRefuses(t *testing.T) {
	b := backUp(t)
	s := memstore.New()
	other := goldenKey()
	other[0] ^= 1
	_, err := cardvault.Restore(t.Context(), s, mustKeyBytes(t, other), bytes.NewReader(b.stream), nil)
	if !errors.Is(err, cardvault.ErrWrongKey) || len(backuptest.Records(t, s)) > 0 {
		t.Errorf("Restore with another key = %v", err)
	}

	broken := errors.New("broken")
	_, err = cardvault.Restore(t.Context(), s, mustKeyBytes(t, goldenKey()), io.MultiReader(bytes.NewReader(b.stream[:len(b.stream)/2]), iotest.ErrReader(broken)), nil)
	if !errors.Is(err, broken) || errors.Is(err, cardvault.ErrDamaged) {
		t.Errorf("Restore from a broken reader = %v", err)
	}
	former := b.stream
	b.again(t)
	if _, err := restore(t, s, b.stream); !errors.Is(err, cardvault.ErrNotEmpty) {
		t.Errorf("Restore of another backup = %v", err)
	}
	restored, err := restore(t, s, former)
	if err != nil {
		t.Fatal(err)
	}
	v := b.thawed(t, s, restored.ID)
	b.works(t, v)
	if err := v.Close(); err != nil {
		t.Error(err)
	}

	if _, err := cardvault.Restore(t.Context(), plainStore{memstore.New()}, mustKeyBytes(t, goldenKey()), bytes.NewReader(b.stream), nil); !errors.Is(err, cardvault.ErrNotEnabled) {
		t.Errorf("Restore into a store that loads nothing = %v", err)
	}
	v, err = cardvault.New(t.Context(), plainStore{memstore.New()}, newKey(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if _, err := v.Backup(t.Context(), io.Discard, nil); !errors.Is(err, cardvault.ErrNotEnabled) {
		t.Errorf("Backup of a store that does not name what changes = %v", err)
	}
}

// A plainStore has no powers.
type plainStore struct{ store.Store }

type plainTx struct{ store.Tx }

func (s plainStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(plainTx{tx}) })
}

// A writer that fails or does not return keeps nobody from writing.
func TestBackupWriterFails(t *testing.T) {
	b := backUp(t)
	broken := errors.New("broken")
	for n := range 5 {
		w := &failingWriter{left: n, err: broken, meanwhile: func() {
			if _, err := b.vault.Import(t.Context(), visa, nil); err != nil {
				t.Error(err)
			}
		}}
		if _, err := b.vault.Backup(t.Context(), w, nil); !errors.Is(err, broken) {
			t.Errorf("Backup to a writer that fails at call %d = %v", n, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &failingWriter{left: 3, meanwhile: cancel}
	if _, err := b.vault.Backup(ctx, w, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Backup whose context ends = %v", err)
	}
	w = &failingWriter{left: 3, meanwhile: func() { b.vault.Close() }}
	if _, err := b.vault.Backup(t.Context(), w, nil); !errors.Is(err, cardvault.ErrClosed) {
		t.Errorf("Backup of a vault that is closed meanwhile = %v", err)
	}
}

type failingWriter struct {
	left      int
	err       error
	meanwhile func()
}

func (w *failingWriter) Write(b []byte) (int, error) {
	w.meanwhile()
	if w.left--; w.left < 0 {
		return 0, w.err
	}
	return len(b), nil
}

// TestRestoreKilled kills a process at each step of a restoration. Every time there is no vault,
// or all of it, and the restoration can be repeated.
func TestRestoreKilled(t *testing.T) {
	const child = "CARDVAULT_RESTORED"
	if call, ok := os.LookupEnv(child); ok {
		var left int64
		var dir string
		if _, err := fmt.Sscan(call, &left, &dir); err != nil {
			t.Fatal(err)
		}
		s := new(steps)
		s.left.Store(left)
		stream, err := os.ReadFile(filepath.Join(dir, "backup"))
		if err != nil {
			t.Fatal(err)
		}
		keys := cardvault.WrappedBy(steppedKey{keyfile.NewKey(goldenKey()), s})
		if _, err := cardvault.Restore(t.Context(), steppedStore{boltIn(t, dir), s}, keys, bytes.NewReader(stream), nil); err != nil {
			t.Fatal(err)
		}
		return
	}

	b := backUp(t)
	begun, over := 0, false
	for step := 1; !over; step++ {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "backup"), b.stream, 0o600); err != nil {
			t.Fatal(err)
		}
		process := exec.Command(os.Args[0], "-test.run=^TestRestoreKilled$")
		process.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", child, step, dir))
		out, err := process.CombinedOutput()
		over = err == nil
		if err != nil && (strings.Contains(string(out), "FAIL") || strings.Contains(string(out), "panic")) {
			t.Fatalf("step %d: %v\n%s", step, err, out)
		}

		s := boltIn(t, dir)
		if n := len(backuptest.Records(t, s)); n > 0 {
			begun++
			if _, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), nil); !errors.Is(err, cardvault.ErrFrozen) {
				t.Fatalf("step %d: New = %v", step, err)
			}
		}
		if _, err := restore(t, s, b.stream); err != nil && !errors.Is(err, cardvault.ErrNotEmpty) {
			t.Fatalf("step %d, repeated: %v", step, err)
		}
		_, err = cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), nil)
		var id uuid.UUID
		if _, text, ok := strings.Cut(fmt.Sprint(err), "Options.Thaw to "); ok {
			id, err = uuid.Parse(text)
		}
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		v := b.thawed(t, s, id)
		b.works(t, v)
		if err := errors.Join(v.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	}
	if begun < 10 {
		t.Errorf("%d restorations had begun when they were killed", begun)
	}
}
