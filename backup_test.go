package cardvault_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/backuptest"
	"github.com/cardvault/cardvault/internal/keyfile"
	inside "github.com/cardvault/cardvault/internal/ledger"
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
	b.fill(t)
	t.Cleanup(func() { b.vault.Close() })
	b.again(t)
	return b
}

// fill makes the vault in the store, with its token and key.
func (b *backedUp) fill(t *testing.T) {
	t.Helper()
	var err error
	b.vault, err = cardvault.New(t.Context(), b.store, mustKeyBytes(t, goldenKey()), &cardvault.Options{Purposes: []string{"test"}})
	if err != nil {
		t.Fatal(err)
	}
	if b.token, err = b.vault.Import(t.Context(), visa, &cardvault.ImportOptions{BusinessKey: "order 1"}); err != nil {
		t.Fatal(err)
	}
	key, err := b.vault.CreateAPIKey(t.Context(), "key", []cardvault.Scope{cardvault.ScopeTokensRead}, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	if err != nil {
		t.Fatal(err)
	}
	b.key = key.Text.Text()
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

// A restored store has the records that were backed up, byte for byte, except the keyring.
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

// TestRestoreBeginsAgain: a restoration that fails before its first record leaves a place that
// does not open as a new vault, and that takes a backup.
func TestRestoreBeginsAgain(t *testing.T) {
	b := backUp(t)
	for name, begin := range map[string]func(dir string) error{
		"another key": func(dir string) error {
			_, err := cardvault.RestoreDir(t.Context(), dir, mustKeyBytes(t, make([]byte, 32)), bytes.NewReader(b.stream), nil)
			return err
		},
		"cut off": func(dir string) error {
			_, err := cardvault.RestoreDir(t.Context(), dir, mustKeyBytes(t, goldenKey()), bytes.NewReader(b.stream[:60]), nil)
			return err
		},
	} {
		dir := filepath.Join(t.TempDir(), "vault")
		if begin(dir) == nil {
			t.Fatalf("%s: no error", name)
		}
		if _, err := cardvault.Open(t.Context(), dir, mustKeyBytes(t, goldenKey()), nil); !errors.Is(err, cardvault.ErrFrozen) {
			t.Errorf("%s: Open = %v", name, err)
		}
		if _, err := cardvault.RestoreDir(t.Context(), dir, mustKeyBytes(t, goldenKey()), bytes.NewReader(b.stream), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBackupOfPlantedTerm: a record in the place of the next term, which is no one's yet, keeps
// no backup from being restored.
func TestBackupOfPlantedTerm(t *testing.T) {
	b := backUp(t)
	err := b.store.Update(t.Context(), func(tx store.Tx) error {
		tx.Put(&store.Record{Kind: inside.KindMeta, ID: uuid.UUID{0: 1, 15: 2}, Version: 1, Shown: []byte("planted")}) // the count of term 2
		return nil
	})
	noErr(t, err)
	b.again(t)
	s := memstore.New()
	restored, err := restore(t, s, b.stream)
	noErr(t, err)
	noErr(t, b.thawed(t, s, restored.ID).Close())
}

// openGroup is a store with a commit of many records that stays under way for a while.
type openGroup struct {
	*memstore.Store
	views atomic.Int64
}

const openFor = 10 * time.Second

func (s *openGroup) View(ctx context.Context, fn func(store.ReadTx) error) error {
	s.views.Add(1)
	return s.Store.View(ctx, fn)
}

func (s *openGroup) Watch(changing func([]store.Key) func()) func() {
	var keys []store.Key
	for i := range byte(200) {
		keys = append(keys, store.Key{Kind: 200, ID: uuid.UUID{i}}, store.Key{Kind: 200, ID: uuid.UUID{i, 1}})
	}
	changed := changing(keys)
	time.AfterFunc(openFor, changed)
	return s.Store.Watch(changing)
}

// TestBackupDuringLargeCommit: a backup waits for a commit of more records than it reads at a
// time, and does not read on and on.
func TestBackupDuringLargeCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &openGroup{Store: memstore.New()}
		v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), nil)
		noErr(t, err)
		began := time.Now()
		_, err = v.Backup(t.Context(), io.Discard, nil)
		noErr(t, err)
		if took := time.Since(began); took < openFor || s.views.Load() > 3000 {
			t.Errorf("%d Views in %v", s.views.Load(), took)
		}

		ctx, cancel := context.WithTimeout(t.Context(), openFor/2)
		defer cancel()
		if _, err := v.Backup(ctx, io.Discard, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a backup whose time is over during the commit: %v", err)
		}
		time.Sleep(openFor)
		noErr(t, v.Close())
	})
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
		if _, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), nil); !errors.Is(err, cardvault.ErrFrozen) {
			t.Fatalf("%s: New = %v", name, err)
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
	if !errors.Is(err, cardvault.ErrWrongKey) || len(backuptest.Records(t, s)) != 1 { // the mark
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
		_, over = childKilled(t, "TestRestoreKilled", child, fmt.Sprint(step, " ", dir))

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
		_, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), nil)
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
	t.Logf("%d of the killed restorations had begun", begun)
	if begun < 10 {
		t.Errorf("%d restorations had begun when they were killed", begun)
	}
}

// A golden is what the vault of testdata/backup1 has, the first backup in format 1.
type golden struct {
	Backup  uuid.UUID
	Records int64
	Deleted int64
	Chunks  uint64
	Token   uuid.UUID
	Changed uuid.UUID // a token that was updated while the backup was made
	Removed uuid.UUID // a token that was deleted meanwhile
	APIKey  string
}

const goldenBackup = "testdata/backup1"

// writeGolden writes testdata/backup1 anew, which only a new format needs:
//
//	GOLDEN=1 go test -run TestBackupFormat .
func writeGolden(t *testing.T) {
	t.Helper()
	v, err := cardvault.New(t.Context(), memstore.New(), mustKeyBytes(t, goldenKey()), &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	var g golden
	for _, id := range []*uuid.UUID{&g.Token, &g.Changed, &g.Removed} {
		token, err := v.Import(t.Context(), visa, &cardvault.ImportOptions{BusinessKey: "order 1"})
		if err != nil {
			t.Fatal(err)
		}
		*id = token.ID
	}
	if _, err := v.RotateKeys(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	key, err := v.CreateAPIKey(t.Context(), "key", []cardvault.Scope{cardvault.ScopeTokensRead}, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.APIKey = key.Text.Text()

	var out bytes.Buffer
	meanwhile := func() error {
		next := "order 2"
		_, err := v.Update(t.Context(), g.Changed, cardvault.TokenUpdate{BusinessKey: &next})
		return errors.Join(err, v.Delete(t.Context(), g.Removed))
	}
	report, err := v.Backup(t.Context(), &out, &cardvault.BackupOptions{Progress: func(at cardvault.BackupProgress) {
		if meanwhile != nil && at.Records > 8 {
			if err := meanwhile(); err != nil {
				t.Error(err)
			}
			meanwhile = nil
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	g.Backup, g.Records, g.Deleted, g.Chunks = report.ID, report.Records, report.Deleted, report.Chunks
	text, err := json.MarshalIndent(g, "", "\t")
	if err == nil {
		err = errors.Join(os.WriteFile(goldenBackup+"/vault.json", append(text, '\n'), 0o644), os.WriteFile(goldenBackup+"/backup", out.Bytes(), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A backup of format 1 can be restored by every later version.
func TestBackupFormat(t *testing.T) {
	if os.Getenv("GOLDEN") != "" {
		writeGolden(t)
	}
	var g golden
	text, err := os.ReadFile(goldenBackup + "/vault.json")
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	stream, err := os.ReadFile(goldenBackup + "/backup")
	if err != nil {
		t.Fatal(err)
	}

	for name, s := range map[string]store.Store{"memory": memstore.New(), "bbolt": boltIn(t, t.TempDir())} {
		r, err := restore(t, s, stream)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b := r.Backup
		if b.ID != g.Backup || b.Records != g.Records || b.Deleted != g.Deleted || b.Chunks != g.Chunks || b.Deleted == 0 ||
			b.Bytes != int64(len(stream)) || b.At.IsZero() || !slices.Equal(b.Terms, []uint32{1, 2}) {
			t.Errorf("%s: restored %+v of %+v", name, b, g)
		}
		v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{Mode: cardvault.Sandbox, Purposes: []string{"test"}, Thaw: r.ID})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer v.Close()
		if _, err := v.Authenticate(t.Context(), g.APIKey); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := v.Get(t.Context(), g.Removed); !errors.Is(err, cardvault.ErrNotFound) {
			t.Errorf("%s: a token that was deleted meanwhile: %v", name, err)
		}
		for id, key := range map[uuid.UUID]string{g.Token: "order 1", g.Changed: "order 2"} {
			page, err := v.List(t.Context(), &cardvault.TokenListOptions{BusinessKey: key})
			if err != nil || page.TotalItems != 1 || page.Items[0].ID != id {
				t.Errorf("%s: list by %s: %v", name, key, err)
			}
			err = v.Use(t.Context(), id, "test", func(_ context.Context, c *cardvault.UsedCard) error {
				c.PAN.Expose(func(digits []byte) {
					if string(digits) != "4242424242424242" {
						t.Errorf("%s: another card number", name)
					}
				})
				return nil
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// A watchedStore is a steppedStore that names what changes.
type watchedStore struct {
	steppedStore
	store.Watcher
}

// A steppedWriter may be killed before, in the middle of and after each Write.
type steppedWriter struct {
	w io.Writer
	*steps
}

func (w steppedWriter) Write(b []byte) (int, error) {
	w.step()
	if _, err := w.w.Write(b[:len(b)/2]); err != nil {
		return 0, err
	}
	w.step()
	_, err := w.w.Write(b[len(b)/2:])
	w.step()
	return len(b), err
}

// TestBackupKilled kills a process at each step of a backup beside imports. Every time the vault
// has what was acknowledged, and the stream that is left is refused unless it is whole.
func TestBackupKilled(t *testing.T) {
	const child = "CARDVAULT_BACKED_UP"
	if call, ok := os.LookupEnv(child); ok {
		var left int64
		var dir string
		if _, err := fmt.Sscan(call, &left, &dir); err != nil {
			t.Fatal(err)
		}
		out, err := os.Create(filepath.Join(dir, "backup"))
		if err != nil {
			t.Fatal(err)
		}
		bolt, s := boltIn(t, dir), new(steps)
		v, err := cardvault.New(t.Context(), watchedStore{steppedStore{bolt, s}, bolt.(store.Watcher)}, mustKeyBytes(t, goldenKey()), nil)
		if err != nil {
			t.Fatal(err)
		}
		s.left.Store(left)
		_, err = v.Backup(t.Context(), steppedWriter{out, s}, &cardvault.BackupOptions{Progress: func(at cardvault.BackupProgress) {
			if at.Records == 0 || at.Records > 12 {
				return
			}
			token, err := v.Import(t.Context(), visa, nil)
			if err != nil {
				t.Error(err)
				return
			}
			fmt.Println("imported", token.ID)
		}})
		if err != nil {
			t.Fatal(err)
		}
		return
	}

	stepsOf, whole := 0, false
	for step := 1; !whole; step++ {
		dir := t.TempDir()
		s := boltIn(t, dir)
		b := &backedUp{store: s}
		b.fill(t)
		if err := errors.Join(b.vault.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
		var out string
		out, whole = childKilled(t, "TestBackupKilled", child, fmt.Sprint(step, " ", dir))
		stepsOf = step

		stream, err := os.ReadFile(filepath.Join(dir, "backup"))
		if err != nil {
			t.Fatal(err)
		}
		restored, err := restore(t, memstore.New(), stream)
		if err != nil && (whole || !errors.Is(err, cardvault.ErrDamaged)) {
			t.Fatalf("step %d: restore of %d bytes = %v", step, len(stream), err)
		}
		if whole && restored.Backup.Records == 0 {
			t.Errorf("step %d: %+v", step, restored)
		}

		s = boltIn(t, dir)
		v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{Purposes: []string{"test"}})
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		b.works(t, v)
		for line := range strings.Lines(out) {
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), "imported "); ok {
				if _, err := v.Get(t.Context(), uuid.MustParse(text)); err != nil {
					t.Errorf("step %d: a token that was acknowledged: %v", step, err)
				}
			}
		}
		b.vault = v
		b.again(t)
		if err := errors.Join(v.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	}
	t.Logf("killed at %d steps", stepsOf-1)
	if stepsOf < 30 {
		t.Errorf("%d steps", stepsOf)
	}
}
