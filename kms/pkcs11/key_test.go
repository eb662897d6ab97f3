//go:build cgo

package pkcs11_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/keytest"
	"github.com/cardvault/cardvault/kms/pkcs11"
	"github.com/cardvault/cardvault/store/memstore"
	library "github.com/miekg/pkcs11"
)

const (
	userPIN     = "4711-user"
	officersPIN = "0815-officer"
)

var (
	module string // the file of SoftHSM
	tokens string // the folder of its tokens

	dataKey = bytes.Repeat([]byte{7}, 32)
	aad     = []byte("live")
)

// The tokens of SoftHSM are made before the library is initialized, once a process.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "softhsm")
		if err != nil {
			log.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if module, err = softHSM(dir); err != nil {
			log.Fatal(err)
		}
		return m.Run()
	}())
}

// softHSM makes tokens in a folder and returns the library of SoftHSM, "" if that is not
// installed.
func softHSM(dir string) (string, error) {
	for _, pattern := range []string{"/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/*/softhsm/libsofthsm2.so", "/usr/lib64/libsofthsm2.so", "/opt/homebrew/lib/softhsm/libsofthsm2.so"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			continue
		}
		tokens = filepath.Join(dir, "tokens")
		file := filepath.Join(dir, "softhsm2.conf")
		settings := fmt.Sprintf("directories.tokendir = %s\nobjectstore.backend = file\nlog.level = ERROR\n", tokens)
		if err := errors.Join(os.Mkdir(tokens, 0o700), os.WriteFile(file, []byte(settings), 0o600), os.Setenv("SOFTHSM2_CONF", file)); err != nil {
			return "", err
		}
		for _, label := range []string{"vault", "twins", "twins", "locked"} {
			out, err := exec.Command("softhsm2-util", "--init-token", "--free", "--label", label, "--so-pin", officersPIN, "--pin", userPIN).CombinedOutput()
			if err != nil {
				return "", fmt.Errorf("softhsm2-util: %w: %s", err, out)
			}
		}
		return found[0], nil
	}
	return "", nil
}

// An hsm is the library as an operator uses it, beside the code under test.
type hsm struct {
	*library.Ctx
	slot uint
}

// operator returns the token named vault. It skips the test without SoftHSM.
func operator(t testing.TB, token string) *hsm {
	t.Helper()
	if module == "" {
		const reason = "SoftHSM is not installed: apt-get install softhsm2"
		if os.Getenv("CI") == "true" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	h := &hsm{Ctx: library.New(module)}
	_ = h.Initialize() // it may be initialized
	slots, err := h.GetSlotList(true)
	if err != nil {
		t.Fatal(err)
	}
	for _, slot := range slots {
		if info, err := h.GetTokenInfo(slot); err == nil && info.Label == token {
			h.slot = slot
			return h
		}
	}
	t.Fatalf("there is no token %s", token)
	return nil
}

// generate makes an AES key with a label, and attributes that differ from those of a good
// one.
func (h *hsm) generate(t testing.TB, label string, other ...*library.Attribute) {
	t.Helper()
	session, err := h.OpenSession(h.slot, library.CKF_SERIAL_SESSION|library.CKF_RW_SESSION)
	if err != nil {
		t.Fatal(err)
	}
	defer h.CloseSession(session)
	if err := h.Login(session, library.CKU_USER, userPIN); err != nil && !errors.Is(err, library.Error(library.CKR_USER_ALREADY_LOGGED_IN)) {
		t.Fatal(err)
	}
	template := append(other,
		library.NewAttribute(library.CKA_LABEL, label), library.NewAttribute(library.CKA_TOKEN, true),
		library.NewAttribute(library.CKA_VALUE_LEN, 32), library.NewAttribute(library.CKA_PRIVATE, true))
	for kind, value := range map[uint]bool{library.CKA_SENSITIVE: true, library.CKA_EXTRACTABLE: false, library.CKA_ENCRYPT: true, library.CKA_DECRYPT: true} {
		given := false
		for _, a := range other {
			given = given || a.Type == kind
		}
		if !given {
			template = append(template, library.NewAttribute(kind, value))
		}
	}
	if _, err := h.GenerateKey(session, []*library.Mechanism{library.NewMechanism(library.CKM_AES_KEY_GEN, nil)}, template); err != nil {
		t.Fatal(err)
	}
}

// erase removes all keys with a label.
func (h *hsm) erase(t testing.TB, label string) {
	session, err := h.OpenSession(h.slot, library.CKF_SERIAL_SESSION|library.CKF_RW_SESSION)
	if err != nil {
		t.Fatal(err)
	}
	defer h.CloseSession(session)
	_ = h.Login(session, library.CKU_USER, userPIN)
	if err := h.FindObjectsInit(session, []*library.Attribute{library.NewAttribute(library.CKA_LABEL, label)}); err != nil {
		t.Fatal(err)
	}
	found, _, err := h.FindObjects(session, 10)
	if err := errors.Join(err, h.FindObjectsFinal(session)); err != nil {
		t.Fatal(err)
	}
	for _, object := range found {
		if err := h.DestroyObject(session, object); err != nil {
			t.Fatal(err)
		}
	}
}

func pin(context.Context) ([]byte, error) { return []byte(userPIN + "\n"), nil }

func open(t testing.TB, key string, o *pkcs11.Options) *pkcs11.Key {
	t.Helper()
	k, err := pkcs11.Open(t.Context(), module, "vault", key, pin, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

// made returns the token named vault with fresh keys.
func made(t *testing.T, labels ...string) *hsm {
	t.Helper()
	h := operator(t, "vault")
	for _, label := range labels {
		h.generate(t, label)
		t.Cleanup(func() { h.erase(t, label) })
	}
	return h
}

func TestContract(t *testing.T) {
	made(t, "cards", "other")
	keytest.Run(t, keytest.Harness{
		Open:  func(t testing.TB) cardvault.KeyWrapper { return open(t, "cards", nil) },
		Other: func(t testing.TB) cardvault.KeyWrapper { return open(t, "other", nil) },
	})
}

// TestVault: a vault opens again with the key in the HSM.
func TestVault(t *testing.T) {
	made(t, "cards")
	s := memstore.New()
	for range 2 {
		v, err := cardvault.New(t.Context(), s, cardvault.WrappedBy(open(t, "cards", nil)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.RotateKeys(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNames: the name in the store has no separator of its own in a label.
func TestNames(t *testing.T) {
	made(t, "cards/2026 a;b")
	if id := open(t, "cards/2026 a;b", nil).KeyID(); id != "pkcs11:token=vault;object=cards%2F2026%20a%3Bb" {
		t.Error(id)
	}
}

// TestRefusedKeys: a key that may leave the HSM, or that is not the only one of its name,
// opens no vault.
func TestRefusedKeys(t *testing.T) {
	h := operator(t, "vault")
	h.generate(t, "visible", library.NewAttribute(library.CKA_SENSITIVE, false))
	h.generate(t, "extractable", library.NewAttribute(library.CKA_EXTRACTABLE, true))
	h.generate(t, "seals", library.NewAttribute(library.CKA_DECRYPT, false))
	h.generate(t, "opens", library.NewAttribute(library.CKA_ENCRYPT, false))
	h.generate(t, "double")
	h.generate(t, "double")
	for label, says := range map[string]string{
		"visible":     "CKA_SENSITIVE of key visible is not true",
		"extractable": "CKA_EXTRACTABLE of key extractable is not false",
		"seals":       "CKA_DECRYPT of key seals is not true",
		"opens":       "CKA_ENCRYPT of key opens is not true",
		"double":      "2 AES keys have the label double",
		"missing":     "0 AES keys have the label missing",
	} {
		t.Cleanup(func() { h.erase(t, label) })
		_, err := pkcs11.Open(t.Context(), module, "vault", label, pin, nil)
		if err == nil || errors.Is(err, cardvault.ErrWrongKey) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", label, err)
		}
	}
}

func TestRefusedPlaces(t *testing.T) {
	made(t, "cards")
	for _, c := range []struct{ module, token, key, says string }{
		{"", "vault", "cards", "need a name each"},
		{module, "", "cards", "need a name each"},
		{module, "vault", "", "need a name each"},
		{module, "vault", strings.Repeat("x", 250), "too long"},
		{filepath.Join(tokens, "none.so"), "vault", "cards", "can be loaded"},
		{module, "nowhere", "cards", "0 tokens of"},
		{module, "twins", "cards", "2 tokens of"},
	} {
		_, err := pkcs11.Open(t.Context(), c.module, c.token, c.key, pin, nil)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if _, err := pkcs11.Open(t.Context(), module, "vault", "cards", nil, nil); err == nil {
		t.Error("a missing PIN is allowed")
	}
	if _, err := pkcs11.Open(t.Context(), module, "vault", "cards", pin, &pkcs11.Options{Sessions: -1}); err == nil {
		t.Error("a negative number of sessions is allowed")
	}
}

// TestPIN: a PIN that the token refuses is offered once, since the token would lock. The PIN
// is erased, and in no error.
func TestPIN(t *testing.T) {
	operator(t, "locked")
	asked, errNone := 0, errors.New("nobody is there")
	given := []byte("wrong-PIN")
	try := func(p pkcs11.PIN) error {
		k, err := pkcs11.Open(t.Context(), module, "locked", "cards", p, nil)
		if err == nil {
			k.Close()
		}
		return err
	}
	err := try(func(context.Context) ([]byte, error) { asked++; return given, nil })
	if !errors.Is(err, pkcs11.ErrPIN) || asked != 1 || strings.Contains(err.Error(), "wrong-PIN") || !bytes.Equal(given, make([]byte, len(given))) {
		t.Errorf("asked %d times, left %q: %v", asked, given, err)
	}
	if err := try(func(context.Context) ([]byte, error) { return nil, errNone }); !errors.Is(err, errNone) {
		t.Error(err)
	}
	if err := try(pin); err == nil || !strings.Contains(err.Error(), "0 AES keys") {
		t.Errorf("with the right PIN: %v", err)
	}
}

// TestPINChanged: after a lost login the new PIN counts, and a refused one is not offered
// again.
func TestPINChanged(t *testing.T) {
	h := made(t, "cards")
	asked, current := 0, userPIN
	k, err := pkcs11.Open(t.Context(), module, "vault", "cards", func(context.Context) ([]byte, error) {
		asked++
		return []byte(current), nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	wrapped, err := k.Wrap(t.Context(), dataKey, aad)
	if err != nil {
		t.Fatal(err)
	}

	current = "former-PIN"
	before := asked
	for range 5 {
		if err := h.CloseAllSessions(h.slot); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Unwrap(t.Context(), wrapped, aad); !errors.Is(err, pkcs11.ErrPIN) || errors.Is(err, cardvault.ErrWrongKey) {
			t.Error(err)
		}
	}
	if asked != before+1 {
		t.Errorf("a refused PIN was asked for %d times", asked-before)
	}
}

// TestLost: after the token is lost, a call logs in again and succeeds.
func TestLost(t *testing.T) {
	h := made(t, "cards")
	k := open(t, "cards", nil)
	wrapped, err := k.Wrap(t.Context(), dataKey, aad)
	if err != nil {
		t.Fatal(err)
	}
	for what, lose := range map[string]func() error{
		"sessions closed": func() error { return h.CloseAllSessions(h.slot) },
		"logged out": func() error {
			session, err := h.OpenSession(h.slot, library.CKF_SERIAL_SESSION)
			return errors.Join(err, h.Logout(session), h.CloseSession(session))
		},
		"library ended": func() error { return h.Finalize() },
	} {
		for range 2 {
			if err := lose(); err != nil {
				t.Fatal(what, err)
			}
			if got, err := k.Unwrap(t.Context(), wrapped, aad); err != nil || !bytes.Equal(got, dataKey) {
				t.Errorf("Unwrap, %s: %v", what, err)
			}
			if err := lose(); err != nil {
				t.Fatal(what, err)
			}
			if _, err := k.Wrap(t.Context(), dataKey, aad); err != nil {
				t.Errorf("Wrap, %s: %v", what, err)
			}
		}
	}
}

// TestGone: a token that is not there, or a key that was removed, is not a wrong key, and
// everything works once it is back.
func TestGone(t *testing.T) {
	h := made(t, "cards")
	k := open(t, "cards", nil)
	wrapped, err := k.Wrap(t.Context(), dataKey, aad)
	if err != nil {
		t.Fatal(err)
	}
	away := tokens + "-away"
	if err := errors.Join(h.Finalize(), os.Rename(tokens, away), os.Mkdir(tokens, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Unwrap(t.Context(), wrapped, aad); err == nil || errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("without the token: %v", err)
	}
	if err := errors.Join(h.Finalize(), os.Remove(tokens), os.Rename(away, tokens)); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Unwrap(t.Context(), wrapped, aad); err != nil || !bytes.Equal(got, dataKey) {
		t.Errorf("with the token again: %v", err)
	}

	operator(t, "vault").erase(t, "cards")
	if _, err := k.Unwrap(t.Context(), wrapped, aad); err == nil || errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("without the key: %v", err)
	}
	operator(t, "vault").generate(t, "cards")
	if _, err := open(t, "cards", nil).Unwrap(t.Context(), wrapped, aad); !errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("with another key of the same name: %v", err)
	}
}

// TestSessions: more calls than sessions wait for each other, and all succeed, also when the token
// is lost again and again.
func TestSessions(t *testing.T) {
	h := made(t, "cards")
	k := open(t, "cards", &pkcs11.Options{Sessions: 2})
	wrapped, err := k.Wrap(t.Context(), dataKey, aad)
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.RWMutex // SoftHSM crashes if a session is closed amid a call in it
	var group sync.WaitGroup
	for caller := range 16 {
		group.Go(func() {
			for n := range 20 {
				if caller == 0 && n%4 == 3 {
					calls.Lock()
					if err := h.CloseAllSessions(h.slot); err != nil {
						t.Error(err)
					}
					calls.Unlock()
				}
				calls.RLock()
				got, err := k.Unwrap(t.Context(), wrapped, aad)
				calls.RUnlock()
				if err != nil || !bytes.Equal(got, dataKey) {
					t.Errorf("Unwrap = %v, or the plaintext of another call", err)
				}
			}
		})
	}
	group.Wait()
}

// TestClose: a closed key leaves no session behind, also of calls that failed: a token logs
// out with the last one.
func TestClose(t *testing.T) {
	h := made(t, "cards")
	state := func() uint {
		session, err := h.OpenSession(h.slot, library.CKF_SERIAL_SESSION)
		if err != nil {
			t.Fatal(err)
		}
		defer h.CloseSession(session)
		info, err := h.GetSessionInfo(session)
		if err != nil {
			t.Fatal(err)
		}
		return info.State
	}
	k := open(t, "cards", nil)
	for range 10 {
		wrapped, err := k.Wrap(t.Context(), dataKey, aad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Unwrap(t.Context(), wrapped, nil); !errors.Is(err, cardvault.ErrWrongKey) {
			t.Error(err)
		}
	}
	if state() != library.CKS_RO_USER_FUNCTIONS {
		t.Error("an open key is not logged in")
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if state() != library.CKS_RO_PUBLIC_SESSION {
		t.Error("a closed key is logged in")
	}
	if _, err := k.Wrap(t.Context(), dataKey, aad); err == nil {
		t.Error("a closed key wraps")
	}
}

// TestTokenIV: a token that is to make the initialization vector, and does not, seals
// nothing.
func TestTokenIV(t *testing.T) {
	made(t, "cards")
	_, err := open(t, "cards", &pkcs11.Options{TokenIV: true}).Wrap(t.Context(), dataKey, aad)
	if err == nil || !strings.Contains(err.Error(), "did not make an initialization vector") {
		t.Error(err)
	}
}

// TestFormat: a text that is too short or of another format does not reach the library,
// which reads beyond the end of short ones.
func TestFormat(t *testing.T) {
	made(t, "cards")
	k := open(t, "cards", nil)
	wrapped, err := k.Wrap(t.Context(), dataKey, aad)
	if err != nil || len(wrapped) != 1+12+32+16 {
		t.Fatalf("%d bytes, %v", len(wrapped), err)
	}
	again, err := k.Wrap(t.Context(), dataKey, aad)
	if err != nil || bytes.Equal(wrapped[:13], again[:13]) {
		t.Errorf("two texts have one initialization vector: %v", err)
	}
	for n := range wrapped {
		if _, err := k.Unwrap(t.Context(), wrapped[:n], aad); !errors.Is(err, cardvault.ErrWrongKey) {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
	wrapped[0] = 2
	if _, err := k.Unwrap(t.Context(), wrapped, aad); !errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("another format: %v", err)
	}
}
