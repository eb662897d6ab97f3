// Package payload opens payloads that browsers have encrypted for sessions, and keeps the
// keys for that. It does not read their content.
//
// A payload is a compact JWE (RFC 7516) with the algorithms RSA-OAEP-256 and A256GCM. Its
// header has alg and enc, and may name the key, kid, and the session, sid. A payload is good
// for one session: its content-encryption key is remembered as long as the RSA key is
// honoured.
package payload

import (
	"bytes"
	"context"
	"crypto/fips140"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"log/slog"
	"runtime"
	"strings"

	"github.com/cardvault/cardvault/internal/erase"
	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/jsontext"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
)

// MaxSize bounds a payload, in bytes.
const MaxSize = 8 << 10

// Errors of Open. They hold nothing of the payload.
var (
	ErrTooLong       = errors.New("cardvault: payload is too long")
	ErrUndecryptable = errors.New("cardvault: payload cannot be decrypted")
	ErrUnbound       = errors.New("cardvault: payload does not name its session")
)

// A Config says what Keys work with. All fields are needed.
type Config struct {
	Ledger *ledger.Ledger
	Jobs   *jobs.Engine // erases lapsed records
	Log    *slog.Logger

	Keys store.Kind // of records of the whole vault that hold a key
	Used store.Kind // of records that note that a payload was used
}

// Keys are the keys of one vault under which browsers encrypt. All methods may be called
// concurrently.
type Keys struct {
	config Config
	rows   ledger.Account // of the whole vault
	known  known
	making making

	// turns has a place for each payload that is being decrypted. An RSA decryption takes a
	// processor for a millisecond: without a bound, shoppers who come together keep out all
	// other calls, and the goroutine that commits what they have entered.
	turns chan struct{}
}

// New returns the Keys of a vault. It reads nothing.
func New(c Config) *Keys {
	return &Keys{
		config: c,
		rows:   c.Ledger.In(uuid.Nil),
		known:  known{byID: map[string]*Key{}},
		making: making{turn: make(chan struct{}, 1)},
		turns:  make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1)),
	}
}

// A Session is the session for which a payload is opened.
type Session struct {
	ID       uuid.UUID // as the header names it
	Row      uuid.UUID // its row key
	MustBind bool      // refuse a payload whose header names no session
}

// Open decrypts a payload for a session. used is the record that notes its use, for the
// caller to write with the change that the payload makes. It has one record, or none if the
// use in this session is noted already.
//
// Errors: ErrTooLong, ErrUnbound; ErrUndecryptable, also for a payload that was used in
// another session; errors of the ledger; the error of ctx, which may end while other
// payloads are decrypted.
func (k *Keys) Open(ctx context.Context, s Session, payload []byte) (plain []byte, used []*store.Record, err error) {
	if len(payload) > MaxSize {
		return nil, nil, ErrTooLong
	}
	h, ok := readHeader(payload, s.ID)
	if !ok {
		return nil, nil, ErrUndecryptable
	}
	if s.MustBind && !h.bound {
		return nil, nil, ErrUnbound
	}

	keys, err := k.toTry(ctx, h)
	if err != nil {
		return nil, nil, err
	}
	var d decryption
	defer func() { clear(d.contentKey) }()
	if plain, err = k.decrypt(ctx, &d, keys, payload); err != nil {
		return nil, nil, err
	}

	if used, err = k.use(ctx, s.Row, &d); err != nil {
		clear(plain)
		return nil, nil, err
	}
	return plain, used, nil
}

// decrypt decrypts a payload with the first key that fits, which d has then.
func (k *Keys) decrypt(ctx context.Context, d *decryption, keys []*Key, payload []byte) (plain []byte, err error) {
	select {
	case k.turns <- struct{}{}:
		defer func() { <-k.turns }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	// go-jose takes an IV from outside, as every receiver does, which FIPS 140-3 does not know.
	fips140.WithoutEnforcement(func() {
		var jwe *jose.JSONWebEncryption
		jwe, err = jose.ParseEncryptedCompact(string(payload), []jose.KeyAlgorithm{jose.RSA_OAEP_256}, []jose.ContentEncryption{jose.A256GCM})
		if err != nil {
			return
		}
		// Whichever key fails and how, the error is the same, and no other key was meant.
		err = ErrUndecryptable
		for _, key := range keys {
			clear(d.contentKey)
			*d = decryption{key: key}
			erase.Do(func() { plain, err = jwe.Decrypt(d) })
			if err == nil {
				return
			}
		}
	})
	if err != nil {
		return nil, ErrUndecryptable
	}
	return plain, nil
}

// toTry returns the keys to try on a payload: the key that its header names, else the keys
// still honoured, at most maxTried.
func (k *Keys) toTry(ctx context.Context, h header) ([]*Key, error) {
	if !h.named {
		return k.honoured(ctx)
	}
	key, err := k.find(ctx, h.key)
	if errors.Is(err, ledger.ErrNotFound) {
		err = ErrUndecryptable
	}
	return []*Key{key}, err
}

// A header is the header of a payload besides its algorithms.
type header struct {
	key   string // id of the key, if named
	named bool
	bound bool // names its session
}

// readHeader reads the header of a payload for a session, and returns whether it has only
// members that it may have.
func readHeader(payload []byte, session uuid.UUID) (h header, ok bool) {
	// Decoders of base64 pass over line breaks.
	if bytes.ContainsAny(payload, "\r\n") {
		return h, false
	}

	encoded, _, found := bytes.Cut(payload, []byte("."))
	text := make([]byte, base64.RawURLEncoding.DecodedLen(len(encoded)))
	n, err := base64.RawURLEncoding.Strict().Decode(text, encoded)
	if !found || err != nil {
		return h, false
	}

	values, err := jsontext.Parse(text[:n])
	if err != nil {
		return h, false
	}

	members := values[1:]
	for i := 0; i < len(members); i += members[i].Size {
		m := &members[i]
		if m.Kind != '"' {
			return h, false
		}
		switch text := string(m.Text); string(m.Name) {
		case "alg":
			ok = text == string(jose.RSA_OAEP_256)
		case "enc":
			ok = text == string(jose.A256GCM)
		case "kid":
			h.key, h.named, ok = text, true, true
		case "sid":
			h.bound = strings.EqualFold(text, session.String())
			ok = h.bound
		case "typ":
			ok = true
		default:
			ok = false
		}
		if !ok {
			return h, false
		}
	}

	return h, jsontext.Find(members, "alg") >= 0 && jsontext.Find(members, "enc") >= 0
}

// A decryption opens one payload.
type decryption struct {
	key        *Key
	contentKey []byte
}

// DecryptKey opens the content-encryption key of a payload, and keeps it.
func (d *decryption) DecryptKey(encrypted []byte, _ jose.Header) (key []byte, err error) {
	if key, err = rsa.DecryptOAEP(sha256.New(), nil, d.key.private, encrypted, nil); err == nil && len(key) != 32 {
		err = ErrUndecryptable
	}
	d.contentKey = key
	return key, err
}

// use returns the record that a payload was used in a session, or none if there is one.
func (k *Keys) use(ctx context.Context, session uuid.UUID, d *decryption) ([]*store.Record, error) {
	id := uuid.UUID(k.rows.Box.Stable(uuid.Nil, "session payload", d.contentKey))
	r, err := k.rows.GetRow(ctx, k.config.Used, id)
	if errors.Is(err, ledger.ErrNotFound) {
		// Longer than the key, also by the clock of another process that erases it.
		r = &store.Record{Kind: k.config.Used, ID: id, Due: d.key.due.Add(honouredLonger), Version: 1}
		return []*store.Record{r}, k.rows.SealShown(r, session[:])
	}
	if err != nil {
		return nil, err
	}

	by, err := k.rows.OpenShown(ctx, r)
	if err == nil && !bytes.Equal(by, session[:]) {
		err = ErrUndecryptable
	}
	return nil, err
}
