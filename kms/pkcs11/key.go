//go:build cgo

package pkcs11

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/kms/internal/remote"
	"github.com/miekg/pkcs11"
)

// A Key is an AES key in an HSM. It may be used concurrently.
type Key struct {
	wrapper cardvault.KeyWrapper
	calls   remote.Calls

	module       *pkcs11.Ctx
	token, label string
	pin          PIN
	tokenIV      bool

	mu      sync.Mutex
	closed  bool
	refused bool // the token has refused the PIN
	login   *login
}

var _ cardvault.KeyWrapper = (*Key)(nil)

// A login is a connection to the token, until that is lost. Key.mu locks its idle sessions.
type login struct {
	slot   uint
	anchor pkcs11.SessionHandle // stays open: a token logs out with the last session
	object pkcs11.ObjectHandle  // the key
	idle   []pkcs11.SessionHandle
}

// Open returns the AES key with a label, of the token with a label. The library of the HSM
// is the file module. Open logs in, so that a wrong name or PIN is found at once. Its error
// is never ErrWrongKey.
//
// The key has CKA_SENSITIVE, CKA_ENCRYPT and CKA_DECRYPT, and not CKA_EXTRACTABLE: a key that can
// leave the HSM is refused. Token and key are named in the store, in clear.
//
// A lost connection is made anew by the next call, with another login. The library stays
// initialized until the process ends, because other code of the process may use it.
func Open(ctx context.Context, module, token, key string, pin PIN, o *Options) (*Key, error) {
	options, keyID, err := checked(module, token, key, pin, o)
	if err != nil {
		return nil, err
	}
	m, err := load(module)
	if err != nil {
		return nil, err
	}

	k := &Key{calls: make(remote.Calls, options.Sessions), module: m, token: token, label: key, pin: pin, tokenIV: options.TokenIV}
	k.wrapper = remote.New(keyID, k.encrypt, remote.Opaque(k.encrypt, k.decrypt))
	ctx, cancel := context.WithTimeout(ctx, remote.Timeout)
	defer cancel()
	_, err = k.do(ctx, func(pkcs11.SessionHandle, pkcs11.ObjectHandle) ([]byte, error) { return nil, nil })
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// loaded has the libraries of the process, by file. A library has one state in a process.
var loaded = struct {
	sync.Mutex
	modules map[string]*pkcs11.Ctx
}{modules: map[string]*pkcs11.Ctx{}}

func load(file string) (*pkcs11.Ctx, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if m := loaded.modules[file]; m != nil {
		return m, nil
	}
	m := pkcs11.New(file)
	if m == nil {
		return nil, fmt.Errorf("pkcs11: %s is not a PKCS #11 library that can be loaded", file)
	}
	loaded.modules[file] = m
	return m, nil
}

// Close ends all sessions that are not in use. Later calls are errors.
func (k *Key) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	k.drop()
	return nil
}

// KeyID implements [cardvault.KeyWrapper].
func (k *Key) KeyID() string { return k.wrapper.KeyID() }

// Wrap implements [cardvault.KeyWrapper].
func (k *Key) Wrap(ctx context.Context, plaintext, aad []byte) ([]byte, error) {
	return k.wrapper.Wrap(ctx, plaintext, aad)
}

// Unwrap implements [cardvault.KeyWrapper].
func (k *Key) Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error) {
	return k.wrapper.Unwrap(ctx, wrapped, aad)
}

// A wrapped text is its format, the initialization vector, the ciphertext and the tag.
const (
	format  = 1
	ivSize  = 12
	tagSize = 16
	tagBits = 8 * tagSize
)

func (k *Key) encrypt(ctx context.Context, text, aad []byte) ([]byte, error) {
	if len(text) == 0 {
		return nil, errors.New("pkcs11: nothing to wrap")
	}
	iv := make([]byte, ivSize)
	if !k.tokenIV {
		rand.Read(iv)
	}
	text, aad = bytes.Clone(text), bytes.Clone(aad)

	return k.do(ctx, func(session pkcs11.SessionHandle, key pkcs11.ObjectHandle) ([]byte, error) {
		params := pkcs11.NewGCMParams(iv, aad, tagBits)
		defer params.Free()
		if err := k.module.EncryptInit(session, []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_AES_GCM, params)}, key); err != nil {
			return nil, err
		}
		sealed, err := k.module.Encrypt(session, text)
		if err != nil {
			return nil, err
		}

		used := params.IV()
		switch {
		case len(sealed) != len(text)+tagSize || len(used) != ivSize:
			return nil, fmt.Errorf("pkcs11: token encrypted %d bytes in %d, with an initialization vector of %d", len(text), len(sealed), len(used))
		case k.tokenIV && bytes.Equal(used, make([]byte, ivSize)):
			return nil, errors.New("pkcs11: token did not make an initialization vector: set Options.TokenIV to false")
		}
		return slices.Concat([]byte{format}, used, sealed), nil
	})
}

func (k *Key) decrypt(ctx context.Context, text, aad []byte) ([]byte, error) {
	// A library may read beyond the end of a text that is shorter than its tag.
	if len(text) <= 1+ivSize+tagSize || text[0] != format {
		return nil, cardvault.ErrWrongKey
	}
	text, aad = bytes.Clone(text[1:]), bytes.Clone(aad)

	return k.do(ctx, func(session pkcs11.SessionHandle, key pkcs11.ObjectHandle) ([]byte, error) {
		params := pkcs11.NewGCMParams(text[:ivSize], aad, tagBits)
		defer params.Free()
		if err := k.module.DecryptInit(session, []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_AES_GCM, params)}, key); err != nil {
			return nil, err
		}
		return k.module.Decrypt(session, text[ivSize:])
	})
}

// do makes a call, once more if the connection to the token was lost. The library does not
// know of contexts, so a call may outlast ctx.
func (k *Key) do(ctx context.Context, call func(pkcs11.SessionHandle, pkcs11.ObjectHandle) ([]byte, error)) ([]byte, error) {
	return k.calls.Do(ctx, func() ([]byte, error) {
		text, err := k.once(ctx, call)
		if isLost(err) && ctx.Err() == nil {
			text, err = k.once(ctx, call)
		}
		return text, err
	})
}

func (k *Key) once(ctx context.Context, call func(pkcs11.SessionHandle, pkcs11.ObjectHandle) ([]byte, error)) ([]byte, error) {
	l, session, err := k.session(ctx)
	if err != nil {
		return nil, err
	}
	text, err := call(session, l.object)

	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case isLost(err) && k.login == l:
		_ = k.module.CloseSession(session) // it is probably gone
		k.drop()
	case err != nil || k.login != l: // an operation that failed may still be active in its session
		_ = k.module.CloseSession(session)
	default:
		l.idle = append(l.idle, session)
	}
	if err != nil {
		return nil, fmt.Errorf("pkcs11: token %s: %w", k.token, err)
	}
	return text, nil
}

// lost are the errors after which a token needs another login.
var lost = []pkcs11.Error{
	pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED, pkcs11.CKR_SLOT_ID_INVALID, pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_TOKEN_NOT_RECOGNIZED,
	pkcs11.CKR_DEVICE_REMOVED, pkcs11.CKR_DEVICE_ERROR, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_SESSION_HANDLE_INVALID,
	pkcs11.CKR_USER_NOT_LOGGED_IN, pkcs11.CKR_KEY_HANDLE_INVALID, pkcs11.CKR_OBJECT_HANDLE_INVALID,
}

func isLost(err error) bool {
	code, ok := errors.AsType[pkcs11.Error](err)
	return ok && slices.Contains(lost, code)
}

// drop closes the login and its idle sessions. Sessions in use are closed when their call
// returns. The caller holds k.mu.
func (k *Key) drop() {
	if k.login == nil {
		return
	}
	for _, session := range append(k.login.idle, k.login.anchor) {
		_ = k.module.CloseSession(session) // it may be gone
	}
	k.login = nil
}

// session returns a session of the login, and logs in first if necessary.
func (k *Key) session(ctx context.Context) (*login, pkcs11.SessionHandle, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, 0, errors.New("pkcs11: key is closed")
	}
	if k.login == nil {
		l, err := k.connect(ctx)
		if err != nil {
			return nil, 0, fmt.Errorf("pkcs11: token %s: %w", k.token, err)
		}
		k.login = l
	}

	if n := len(k.login.idle); n > 0 {
		session := k.login.idle[n-1]
		k.login.idle = k.login.idle[:n-1]
		return k.login, session, nil
	}
	session, err := k.module.OpenSession(k.login.slot, pkcs11.CKF_SERIAL_SESSION)
	if err != nil {
		if isLost(err) {
			k.drop()
		}
		return nil, 0, fmt.Errorf("pkcs11: token %s: %w", k.token, err)
	}
	return k.login, session, nil
}

// connect finds the token, logs in, and finds the key.
func (k *Key) connect(ctx context.Context) (l *login, err error) {
	if err := k.module.Initialize(); err != nil && !is(err, pkcs11.CKR_CRYPTOKI_ALREADY_INITIALIZED) {
		return nil, err
	}
	l = &login{}
	if l.slot, err = k.findSlot(); err != nil {
		return nil, err
	}
	if l.anchor, err = k.module.OpenSession(l.slot, pkcs11.CKF_SERIAL_SESSION); err != nil {
		return nil, err
	}

	if err = k.logIn(ctx, l.anchor); err == nil {
		l.object, err = k.findKey(l.anchor)
	}
	if err != nil {
		_ = k.module.CloseSession(l.anchor)
		return nil, err
	}
	return l, nil
}

func is(err error, code pkcs11.Error) bool { return errors.Is(err, code) }

func (k *Key) findSlot() (uint, error) {
	slots, err := k.module.GetSlotList(true)
	if err != nil {
		return 0, err
	}
	var found []uint
	for _, slot := range slots {
		info, err := k.module.GetTokenInfo(slot)
		if err == nil && info.Label == k.token { // the library has removed the padding
			found = append(found, slot)
		}
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("%d tokens of %d slots have this label, want one", len(found), len(slots))
	}
	return found[0], nil
}

// logIn logs in unless other code of the process has done so.
func (k *Key) logIn(ctx context.Context, session pkcs11.SessionHandle) error {
	if info, err := k.module.GetSessionInfo(session); err == nil && info.State == pkcs11.CKS_RO_USER_FUNCTIONS {
		return nil
	}
	if k.refused {
		return ErrPIN
	}
	pin, err := k.pin(ctx)
	if err != nil {
		return fmt.Errorf("PIN: %w", err)
	}
	defer clear(pin)

	err = k.module.Login(session, pkcs11.CKU_USER, string(bytes.TrimRight(pin, "\r\n")))
	switch {
	case is(err, pkcs11.CKR_USER_ALREADY_LOGGED_IN):
		return nil
	case is(err, pkcs11.CKR_PIN_INCORRECT) || is(err, pkcs11.CKR_PIN_INVALID) || is(err, pkcs11.CKR_PIN_LEN_RANGE) || is(err, pkcs11.CKR_PIN_LOCKED):
		k.refused = true
		return fmt.Errorf("%w: %w", ErrPIN, err)
	}
	return err
}

func (k *Key) findKey(session pkcs11.SessionHandle) (pkcs11.ObjectHandle, error) {
	err := k.module.FindObjectsInit(session, []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_SECRET_KEY),
		pkcs11.NewAttribute(pkcs11.CKA_KEY_TYPE, pkcs11.CKK_AES),
		pkcs11.NewAttribute(pkcs11.CKA_LABEL, k.label),
	})
	if err != nil {
		return 0, err
	}
	found, _, err := k.module.FindObjects(session, 2)
	if err := errors.Join(err, k.module.FindObjectsFinal(session)); err != nil {
		return 0, err
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("%d AES keys have the label %s (more are not counted), want one", len(found), k.label)
	}

	for _, a := range []struct {
		kind uint
		name string
		want byte
	}{
		{pkcs11.CKA_SENSITIVE, "CKA_SENSITIVE", 1},
		{pkcs11.CKA_EXTRACTABLE, "CKA_EXTRACTABLE", 0},
		{pkcs11.CKA_ENCRYPT, "CKA_ENCRYPT", 1},
		{pkcs11.CKA_DECRYPT, "CKA_DECRYPT", 1},
	} {
		got, err := k.module.GetAttributeValue(session, found[0], []*pkcs11.Attribute{pkcs11.NewAttribute(a.kind, nil)})
		if err != nil {
			return 0, fmt.Errorf("%s of key %s: %w", a.name, k.label, err)
		}
		if len(got) != 1 || !bytes.Equal(got[0].Value, []byte{a.want}) {
			return 0, fmt.Errorf("%s of key %s is not %t", a.name, k.label, a.want == 1)
		}
	}
	return found[0], nil
}
