package cardvault_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
)

const goldenPassphrase = "correct horse battery staple"

// goldenKey returns the key in every file of testdata/keyfile. Another program wrote those
// files, following the comment on the format.
func goldenKey() []byte {
	key := make([]byte, cardvault.KeySize)
	for i := range key {
		key[i] = byte(i + 1)
	}
	return key
}

func goldenFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "keyfile", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// keyFileOf puts text into a key file that only its owner may use.
func keyFileOf(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "vault.key")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func mustKeyFile(t *testing.T, path, passphrase string) *cardvault.Keyring {
	t.Helper()
	keys, err := cardvault.KeyFile(path, []byte(passphrase))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func mustKeyBytes(t *testing.T, key []byte) *cardvault.Keyring {
	t.Helper()
	keys, err := cardvault.KeyBytes(key)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// openIn opens or creates the vault in s, and closes it.
func openIn(ctx context.Context, s store.Store, keys *cardvault.Keyring) error {
	v, err := cardvault.New(ctx, s, keys, nil)
	if err != nil {
		return err
	}
	return v.Close()
}

// sameKey reports whether b opens a vault made with a.
func sameKey(t *testing.T, a, b *cardvault.Keyring) bool {
	t.Helper()
	s := memstore.New()
	if err := openIn(t.Context(), s, a); err != nil {
		t.Fatal(err)
	}
	err := openIn(t.Context(), s, b)
	if err != nil && !errors.Is(err, cardvault.ErrWrongKey) {
		t.Fatal(err)
	}
	return err == nil
}

// refusesKeyFile checks that KeyFile returns an error that reveals no secret.
func refusesKeyFile(t *testing.T, path, passphrase string) error {
	t.Helper()
	keys, err := cardvault.KeyFile(path, []byte(passphrase))
	if !errors.Is(err, cardvault.ErrKeyFile) || keys != nil {
		t.Errorf("%v, want ErrKeyFile", err)
		return err
	}
	// The error may contain the path, which the caller chose.
	said := strings.ReplaceAll(fmt.Sprintf("%v %+v", err, err), path, "")
	for _, part := range keyFileSecrets() {
		if strings.Contains(said, part) {
			t.Errorf("the error reveals a secret")
		}
	}
	return err
}

// keyFileSecrets returns the parts that no error may contain: any eight consecutive
// characters of the passphrase, of the golden key and of its sealed forms.
var keyFileSecrets = sync.OnceValue(func() (parts []string) {
	secrets := []string{goldenPassphrase, hex.EncodeToString(goldenKey()), string(goldenKey())}
	for _, name := range []string{"plain.key", "sealed.key", "sealed-fast.key"} {
		text, err := os.ReadFile(filepath.Join("testdata", "keyfile", name))
		if err != nil {
			panic(err)
		}
		_, key, _ := strings.Cut(string(text), "\nkey: ")
		secrets = append(secrets, strings.TrimSpace(key))
	}
	for _, secret := range secrets {
		for i := range len(secret) - 7 {
			parts = append(parts, secret[i:i+8])
		}
	}
	return parts
})

func TestKeyBytes(t *testing.T) {
	key := goldenKey()
	keys := mustKeyBytes(t, key)
	clear(key) // it was copied
	if !sameKey(t, keys, mustKeyBytes(t, goldenKey())) {
		t.Error("the same bytes are not the same key")
	}
	if sameKey(t, keys, mustKeyBytes(t, key)) {
		t.Error("other bytes are the same key")
	}
	for _, n := range []int{0, 1, 16, 31, 33, 64} {
		if _, err := cardvault.KeyBytes(make([]byte, n)); err == nil {
			t.Errorf("a key of %d bytes is accepted", n)
		}
	}
}

func TestKeyFileIsMade(t *testing.T) {
	form := map[string]*regexp.Regexp{
		"": regexp.MustCompile(`^cardvault key 1\nid: [0-9a-f]{16}\nkey: [A-Za-z0-9+/]{43}=\n$`),
		goldenPassphrase: regexp.MustCompile(`^cardvault key 1\nid: [0-9a-f]{16}\n` +
			`kdf: argon2id time=3 memory=65536 threads=4 salt=[A-Za-z0-9+/]{22}==\nkey: [A-Za-z0-9+/]{80}\n$`),
	}
	for passphrase, form := range form {
		dir := filepath.Join(t.TempDir(), "keys") // created as well
		path := filepath.Join(dir, "vault.key")
		made := mustKeyFile(t, path, passphrase)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !form.Match(text) {
			t.Errorf("passphrase %q: unknown form of %d bytes", passphrase, len(text))
		}
		if !sameKey(t, made, mustKeyFile(t, path, passphrase)) {
			t.Errorf("passphrase %q: another key is read back", passphrase)
		}
		if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, text) {
			t.Errorf("passphrase %q: reading changed the file, %v", passphrase, err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("passphrase %q: %d files in the folder, %v", passphrase, len(entries), err)
		}
		other := mustKeyFile(t, filepath.Join(dir, "other.key"), passphrase)
		if sameKey(t, made, other) {
			t.Errorf("passphrase %q: two files have one key", passphrase)
		}
	}
}

// The umask belongs to the process, so each umask is tested in its own process.
func TestKeyFileModeWhateverUmask(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no umask")
	}
	if path := os.Getenv("CARDVAULT_TEST_KEYFILE"); path != "" {
		mustKeyFile(t, path, "")
		return
	}
	for _, umask := range []string{"000", "002", "022", "077", "277", "777"} {
		path := filepath.Join(t.TempDir(), "vault.key")
		cmd := exec.Command("sh", "-c", `umask "$1" && exec "$0" -test.run='^TestKeyFileModeWhateverUmask$'`, os.Args[0], umask)
		cmd.Env = append(os.Environ(), "CARDVAULT_TEST_KEYFILE="+path)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("umask %s: %v\n%s", umask, err, out)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("umask %s: mode %v", umask, info.Mode())
		}
	}
}

func TestGoldenKeyFiles(t *testing.T) {
	want := mustKeyBytes(t, goldenKey())
	for name, passphrase := range map[string]string{
		"plain.key": "", "sealed.key": goldenPassphrase, "sealed-fast.key": goldenPassphrase,
	} {
		text := goldenFile(t, name)
		path := keyFileOf(t, text)
		if !sameKey(t, want, mustKeyFile(t, path, passphrase)) {
			t.Errorf("%s: not the known key", name)
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != text {
			t.Errorf("%s: the file was changed, %v", name, err)
		}
	}
}

func TestKeyFilePassphrase(t *testing.T) {
	sealed, plain := keyFileOf(t, goldenFile(t, "sealed-fast.key")), keyFileOf(t, goldenFile(t, "plain.key"))
	for _, other := range []string{"x", goldenPassphrase + " ", goldenPassphrase[1:], strings.ToUpper(goldenPassphrase)} {
		if err := refusesKeyFile(t, sealed, other); !errors.Is(err, cardvault.ErrWrongKey) {
			t.Errorf("another passphrase: %v", err)
		}
	}
	refusesKeyFile(t, sealed, "")
	refusesKeyFile(t, plain, goldenPassphrase)
}

func TestKeyFileRefusesWhatIsNoFileOfItsOwner(t *testing.T) {
	plain := goldenFile(t, "plain.key")
	t.Run("directory", func(t *testing.T) {
		refusesKeyFile(t, t.TempDir(), "")
	})
	t.Run("symlink", func(t *testing.T) {
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(keyFileOf(t, plain), link); err != nil {
			t.Skip(err)
		}
		refusesKeyFile(t, link, "")
	})
	t.Run("dangling symlink", func(t *testing.T) {
		dir := t.TempDir()
		link, target := filepath.Join(dir, "link"), filepath.Join(dir, "target")
		if err := os.Symlink(target, link); err != nil {
			t.Skip(err)
		}
		refusesKeyFile(t, link, "")
		if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
			t.Error("the target was made")
		}
	})
	for bit := range 6 {
		mode := fs.FileMode(0o600 | 1<<bit)
		t.Run(mode.String(), func(t *testing.T) {
			if runtime.GOOS == "windows" {
				t.Skip("no such modes")
			}
			path := keyFileOf(t, plain)
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			refusesKeyFile(t, path, "")
		})
	}
	t.Run("0400", func(t *testing.T) {
		path := keyFileOf(t, plain)
		if err := os.Chmod(path, 0o400); err != nil {
			t.Fatal(err)
		}
		mustKeyFile(t, path, "")
	})
}

func TestKeyFileRefusesOtherContent(t *testing.T) {
	plain, sealed := goldenFile(t, "plain.key"), goldenFile(t, "sealed-fast.key")
	swap := func(text, old, new string) string {
		if !strings.Contains(text, old) {
			t.Fatalf("%q is not in the file", old)
		}
		return strings.Replace(text, old, new, 1)
	}
	for name, text := range map[string]string{
		"empty":          "",
		"blank":          "\n",
		"other text":     "-----BEGIN PRIVATE KEY-----\n",
		"later version":  swap(plain, "key 1", "key 2"),
		"no id":          swap(plain, "id: cecb062f4194540c\n", ""),
		"other id":       swap(plain, "cecb", "cecc"),
		"id in capitals": swap(plain, "cecb", "CECB"),
		"other key":      swap(plain, "AQID", "AQIE"),
		"short key":      swap(plain, "HyA=", "Hw=="),
		"loose base64":   swap(plain, "HyA=", "HyB="),
		"no key":         plain[:strings.Index(plain, "key: ")],
		"two keys":       plain + plain[strings.Index(plain, "key: "):],
		"more text":      plain + "\n",
		"text before":    "\n" + plain,
		"too large":      plain + strings.Repeat("\n", 5<<10),
		"huge":           strings.Repeat("A", 1<<20),
	} {
		t.Run(name, func(t *testing.T) { refusesKeyFile(t, keyFileOf(t, text), "") })
	}
	kdf := "time=1 memory=64 threads=1"
	for name, text := range map[string]string{
		"other kdf":      swap(sealed, "argon2id", "argon2i"),
		"no time":        swap(sealed, kdf, "time=0 memory=64 threads=1"),
		"no threads":     swap(sealed, kdf, "time=1 memory=64 threads=0"),
		"little memory":  swap(sealed, kdf, "time=1 memory=7 threads=1"),
		"negative":       swap(sealed, kdf, "time=-1 memory=64 threads=1"),
		"short salt":     swap(sealed, "c2FsdCBvZiAxNiBieXRlcw==", "c2FsdA=="),
		"no kdf":         swap(sealed, "kdf: argon2id "+kdf+" salt=c2FsdCBvZiAxNiBieXRlcw==\n", ""),
		"plain key":      swap(sealed, sealed[strings.Index(sealed, "key: "):], plain[strings.Index(plain, "key: "):]),
		"sealed, no key": sealed[:strings.Index(sealed, "key: ")],
	} {
		t.Run(name, func(t *testing.T) { refusesKeyFile(t, keyFileOf(t, text), goldenPassphrase) })
	}
}

func TestKeyFileRefusesTruncation(t *testing.T) {
	for name, passphrase := range map[string]string{"plain.key": "", "sealed-fast.key": goldenPassphrase} {
		text := goldenFile(t, name)
		path := keyFileOf(t, text)
		for n := range len(text) {
			if err := os.WriteFile(path, []byte(text[:n]), 0o600); err != nil {
				t.Fatal(err)
			}
			if refusesKeyFile(t, path, passphrase); t.Failed() {
				t.Fatalf("%s cut to %d of %d bytes", name, n, len(text))
			}
		}
	}
}

func TestKeyFileRefusesBitFlips(t *testing.T) {
	for name, passphrase := range map[string]string{"plain.key": "", "sealed-fast.key": goldenPassphrase} {
		text := []byte(goldenFile(t, name))
		path := keyFileOf(t, string(text))
		mustKeyFile(t, path, passphrase)
		for bit := range len(text) * 8 {
			text[bit/8] ^= 1 << (bit % 8)
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			if refusesKeyFile(t, path, passphrase); t.Failed() {
				t.Fatalf("%s with bit %d of byte %d flipped", name, bit%8, bit/8)
			}
			text[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// TestKeyFileRefusesHugeParameters: a changed file must not exhaust memory or time. Such
// parameters are refused before Argon2id sees them.
func TestKeyFileRefusesHugeParameters(t *testing.T) {
	sealed := goldenFile(t, "sealed-fast.key")
	for _, kdf := range []string{
		"time=65 memory=64 threads=1",
		"time=4294967295 memory=64 threads=1",
		"time=1 memory=1048577 threads=1",
		"time=1 memory=4294967295 threads=1",
		"time=1 memory=4294967296 threads=1",
		"time=1 memory=18446744073709551615 threads=1",
		"time=1 memory=64 threads=255",
		"time=1 memory=64 threads=256",
	} {
		path := keyFileOf(t, strings.Replace(sealed, "time=1 memory=64 threads=1", kdf, 1))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := refusesKeyFile(t, path, goldenPassphrase)
		runtime.ReadMemStats(&after)
		if errors.Is(err, cardvault.ErrWrongKey) {
			t.Errorf("%s: a key was derived", kdf)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
			t.Errorf("%s: %d bytes were used", kdf, n)
		}
	}
}

func TestKeyFileRacingCreators(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "keys", "vault.key")
		keys := make([]*cardvault.Keyring, 8)
		errs := make([]error, len(keys))
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				<-start
				keys[i], errs[i] = cardvault.KeyFile(path, nil)
			})
		}
		close(start)
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for _, k := range keys[1:] {
			if !sameKey(t, keys[0], k) {
				t.Fatal("two creators have two keys")
			}
		}
		if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
			t.Errorf("%d files are left, %v", len(entries), err)
		}
	}
}

// TestKeyFilePassphraseTooShort: a new file needs a long passphrase, and an existing file
// opens with its own.
func TestKeyFilePassphraseTooShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vault.key")
	for _, short := range []string{"x", "elevenchars", "\xc3\xa4\xc3\xb6\xc3\xbc"} {
		refusesKeyFile(t, path, short)
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("a file was made: %v", err)
		}
	}
	made := mustKeyFile(t, path, "twelve chars")
	if !sameKey(t, made, mustKeyFile(t, path, "twelve chars")) {
		t.Error("another key is read back")
	}
}

func TestKeyFileWhereNoneCanBe(t *testing.T) {
	t.Run("missing folders", func(t *testing.T) {
		refusesKeyFile(t, filepath.Join(t.TempDir(), "a", "b", "vault.key"), "")
	})
	t.Run("below a file", func(t *testing.T) {
		refusesKeyFile(t, filepath.Join(keyFileOf(t, "x"), "vault.key"), "")
	})
	t.Run("unwritable folder", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		if f, err := os.CreateTemp(dir, ""); err == nil {
			f.Close()
			dir = "/proc/self" // even root cannot create files there
			if _, err := os.Stat(dir); err != nil {
				t.Skip("everything can be written here")
			}
		}
		refusesKeyFile(t, filepath.Join(dir, "vault.key"), "")
	})
}

func TestOpenRefusesKeyInVaultFolder(t *testing.T) {
	symlink := func(t *testing.T, target string) string {
		t.Helper()
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(target, link); err != nil {
			t.Skip(err)
		}
		return link
	}
	mkdir := func(t *testing.T, path ...string) string {
		t.Helper()
		dir := filepath.Join(path...)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for _, c := range []struct {
		name    string
		paths   func(t *testing.T, root string) (vault, key string)
		refused bool
	}{
		{"inside", func(t *testing.T, root string) (string, string) {
			return root, filepath.Join(root, "vault.key")
		}, true},
		{"in a folder inside", func(t *testing.T, root string) (string, string) {
			return root, filepath.Join(mkdir(t, root, "keys"), "vault.key")
		}, true},
		{"in a folder inside that begins with dots", func(t *testing.T, root string) (string, string) {
			return root, filepath.Join(mkdir(t, root, "..keys"), "vault.key")
		}, true},
		{"inside, the key through a symlink", func(t *testing.T, root string) (string, string) {
			return root, filepath.Join(symlink(t, root), "vault.key")
		}, true},
		{"inside, the vault through a symlink", func(t *testing.T, root string) (string, string) {
			return symlink(t, root), filepath.Join(root, "vault.key")
		}, true},
		{"inside, written another way", func(t *testing.T, root string) (string, string) {
			return root, root + "/x/../vault.key"
		}, true},
		{"above", func(t *testing.T, root string) (string, string) {
			return filepath.Join(root, "vault"), filepath.Join(root, "vault.key")
		}, false},
		{"beside, with a name that begins alike", func(t *testing.T, root string) (string, string) {
			return filepath.Join(root, "vault"), filepath.Join(root, "vault-keys", "vault.key")
		}, false},
		{"outside, the key through a symlink inside", func(t *testing.T, root string) (string, string) {
			vault := mkdir(t, root, "vault")
			link := filepath.Join(vault, "keys")
			if err := os.Symlink(mkdir(t, root, "keys"), link); err != nil {
				t.Skip(err)
			}
			return vault, filepath.Join(link, "vault.key")
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			vault, key := c.paths(t, t.TempDir())
			v, err := cardvault.Open(t.Context(), vault, mustKeyFile(t, key, ""), nil)
			if !c.refused {
				if err != nil {
					t.Fatal(err)
				}
				if err := v.Close(); err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, cardvault.ErrKeyFile) || v != nil {
				t.Errorf("%v, want ErrKeyFile", err)
			}
			if files, err := filepath.Glob(filepath.Join(vault, "*.db*")); err != nil || len(files) > 0 {
				t.Errorf("%v were written, %v", files, err)
			}
		})
	}
}

// A fakeKMS is a KeyWrapper of the kind that users write.
type fakeKMS struct {
	id     string
	aead   cipher.AEAD
	down   error // returned by both calls, if not nil
	wraps  int
	opens  int
	stored []byte // the last plaintext
}

func newFakeKMS(t *testing.T, id string) *fakeKMS {
	t.Helper()
	key := make([]byte, 16)
	rand.Read(key)
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}
	return &fakeKMS{id: id, aead: aead}
}

func (k *fakeKMS) KeyID() string { return k.id }

func (k *fakeKMS) Wrap(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
	k.wraps++
	if err := errors.Join(ctx.Err(), k.down); err != nil {
		return nil, err
	}
	k.stored = bytes.Clone(plaintext)
	return k.aead.Seal([]byte("kms:"), nil, plaintext, aad), nil
}

func (k *fakeKMS) Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
	k.opens++
	if err := errors.Join(ctx.Err(), k.down); err != nil {
		return nil, err
	}
	sealed, ok := bytes.CutPrefix(wrapped, []byte("kms:"))
	if !ok {
		return nil, fmt.Errorf("no such ciphertext: %w", cardvault.ErrWrongKey)
	}
	plaintext, err := k.aead.Open(nil, nil, sealed, aad)
	if err != nil {
		return nil, fmt.Errorf("access denied: %w", cardvault.ErrWrongKey)
	}
	return plaintext, nil
}

func TestKeyWrapper(t *testing.T) {
	ctx, s, kms := t.Context(), memstore.New(), newFakeKMS(t, "arn:key/1")
	if err := openIn(ctx, s, cardvault.WrappedBy(kms)); err != nil {
		t.Fatal(err)
	}
	if len(kms.stored) != cardvault.KeySize {
		t.Errorf("%d bytes were wrapped", len(kms.stored))
	}
	v, err := cardvault.New(ctx, s, cardvault.WrappedBy(kms), nil)
	if err != nil {
		t.Fatal(err)
	}
	wraps, opens := kms.wraps, kms.opens
	given := cardvault.Card{
		PAN:    card.NewPAN([]byte("4242424242424242")),
		Expiry: card.Expiry{Month: 12, Year: 2030},
	}
	for range 100 {
		if _, err := v.Import(ctx, given, nil); err != nil {
			t.Fatal(err)
		}
	}
	if kms.wraps != wraps || kms.opens != opens {
		t.Error("the provider was called for a card")
	}
	if _, err := v.RotateKeys(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if kms.wraps != wraps+1 {
		t.Errorf("a rotation calls Wrap %d times", kms.wraps-wraps)
	}
	kms.down = errors.New("connection refused")
	if _, err := v.RotateKeys(ctx, nil); !errors.Is(err, cardvault.ErrUnavailable) || !errors.Is(err, kms.down) {
		t.Errorf("rotation while the provider is down: %v", err)
	}
	if _, err := v.Import(ctx, given, nil); err != nil {
		t.Errorf("import while the provider is down: %v", err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	kms.down = nil
	if err := openIn(ctx, s, cardvault.WrappedBy(kms)); err != nil {
		t.Errorf("after a failed rotation: %v", err)
	}
}

// TestMostRotations: the keyring never grows beyond the size of a record, and a KeyWrapper
// never sees more than a data key. Rotations end earlier, with room left to rewrite a lost
// keyring.
func TestMostRotations(t *testing.T) {
	ctx, s, kms := t.Context(), memstore.New(), newFakeKMS(t, "arn:key/1")
	v, err := cardvault.New(ctx, s, cardvault.WrappedBy(kms), nil)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; n < 1000 && err == nil; n++ {
		_, err = v.RotateKeys(ctx, nil)
	}
	if err == nil || n != 476 {
		t.Fatalf("%d rotations, %v", n-1, err)
	}

	again, err := cardvault.New(ctx, s, cardvault.WrappedBy(kms), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Update(ctx, func(tx store.Tx) error {
		tx.Delete(kindMeta, keyringID)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := again.RotateKeys(ctx, nil); err != nil {
		t.Errorf("a lost keyring: %v", err)
	}
	if len(kms.stored) != cardvault.KeySize {
		t.Errorf("the key provider has wrapped %d bytes", len(kms.stored))
	}
}

func TestKeyWrapperErrors(t *testing.T) {
	down := errors.New("connection refused")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	s, kms := memstore.New(), newFakeKMS(t, "arn:key/1")

	kms.down = down
	if err := openIn(t.Context(), s, cardvault.WrappedBy(kms)); !errors.Is(err, cardvault.ErrUnavailable) || !errors.Is(err, down) {
		t.Errorf("making a vault while the provider is down: %v", err)
	}
	kms.down = nil
	if err := openIn(t.Context(), s, cardvault.WrappedBy(kms)); err != nil {
		t.Fatalf("the failed attempt left data: %v", err)
	}

	another := newFakeKMS(t, "arn:key/1") // another key with the same name
	renamed := newFakeKMS(t, "arn:key/2")
	unreachable := &fakeKMS{id: "arn:key/1", down: down}
	late := &fakeKMS{id: "arn:key/1", down: fmt.Errorf("request: %w", context.DeadlineExceeded)}
	for _, c := range []struct {
		name     string
		ctx      context.Context
		kms      *fakeKMS
		is, isNo error
	}{
		{"another key", t.Context(), another, cardvault.ErrWrongKey, cardvault.ErrUnavailable},
		{"another name", t.Context(), renamed, cardvault.ErrWrongKey, cardvault.ErrUnavailable},
		{"down", t.Context(), unreachable, cardvault.ErrUnavailable, cardvault.ErrWrongKey},
		{"down, cause", t.Context(), unreachable, down, cardvault.ErrWrongKey},
		{"deadline", t.Context(), late, context.DeadlineExceeded, cardvault.ErrWrongKey},
		{"canceled", canceled, kms, context.Canceled, cardvault.ErrWrongKey},
	} {
		if err := openIn(c.ctx, s, cardvault.WrappedBy(c.kms)); !errors.Is(err, c.is) || errors.Is(err, c.isNo) {
			t.Errorf("%s: %v, want %v", c.name, err, c.is)
		}
	}
	if renamed.opens != 0 {
		t.Error("a key of another name was tried")
	}
	if err := openIn(t.Context(), s, mustKeyBytes(t, goldenKey())); !errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("key of another kind: %v", err)
	}
}

func TestLocalKeyUnwrapsOnlyItsOwn(t *testing.T) {
	s := memstore.New()
	if err := openIn(t.Context(), s, mustKeyBytes(t, goldenKey())); err != nil {
		t.Fatal(err)
	}
	other := goldenKey()
	other[0] ^= 1
	err := openIn(t.Context(), s, mustKeyBytes(t, other))
	if !errors.Is(err, cardvault.ErrWrongKey) {
		t.Fatalf("%v, want ErrWrongKey", err)
	}
	for _, key := range [][]byte{goldenKey(), other} {
		if said := err.Error(); strings.Contains(said, hex.EncodeToString(key[:4])) ||
			strings.Contains(said, base64.StdEncoding.EncodeToString(key)[:8]) {
			t.Error("the error reveals a key")
		}
	}
}
