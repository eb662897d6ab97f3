package cardvault_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/keyfile"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// keysOf returns a Keyring of wrappers.
func keysOf(wrappers ...cardvault.KeyWrapper) *cardvault.Keyring {
	keys := cardvault.WrappedBy(wrappers[0])
	for _, w := range wrappers[1:] {
		keys = cardvault.JoinKeyrings(keys, cardvault.WrappedBy(w))
	}
	return keys
}

// opensWith checks that the keys open the vault in s and read a token, or that they are
// wrong.
func opensWith(t *testing.T, s store.Store, token uuid.UUID, want error, keys *cardvault.Keyring) {
	t.Helper()
	v, err := cardvault.New(t.Context(), s, keys, nil)
	if !errors.Is(err, want) {
		t.Errorf("opened with %v, want %v", err, want)
	}
	if err != nil {
		return
	}
	defer v.Close()
	if _, err := v.Get(t.Context(), token); err != nil {
		t.Error(err)
	}
}

func TestChangeKeyring(t *testing.T) {
	s, former, next := memstore.New(), newFakeKMS(t, "kms/former"), newFakeKMS(t, "kms/next")
	v := vaultWith(t, s, keysOf(former))
	token := imported(t, v).ID
	for i := range 2 { // the second time nothing is to be done
		before := keyringOf(t, s).Version
		if err := v.ChangeKeyring(t.Context(), keysOf(next)); err != nil {
			t.Fatal(err)
		}
		if got := keyringOf(t, s).Version - before; got != uint64(1-i) {
			t.Errorf("change %d: %d versions", i, got)
		}
	}
	for _, kms := range []*fakeKMS{former, next} {
		if len(kms.stored) != cardvault.KeySize {
			t.Errorf("%s has wrapped %d bytes", kms.id, len(kms.stored))
		}
	}

	opensWith(t, s, token, cardvault.ErrWrongKey, keysOf(former))
	opensWith(t, s, token, nil, keysOf(next))
	_, err := cardvault.New(t.Context(), s, keysOf(former), nil)
	if said := fmt.Sprint(err); !strings.Contains(said, `needs key "kms/next", not "kms/former"`) {
		t.Error(said)
	}

	// The changed vault works on, and rotates under the next key.
	imported(t, v)
	if _, err := v.RotateKeys(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	opensWith(t, s, imported(t, v).ID, nil, keysOf(next))

	// Back again, because the caller says so.
	if err := v.ChangeKeyring(t.Context(), keysOf(former)); err != nil {
		t.Fatal(err)
	}
	opensWith(t, s, token, cardvault.ErrWrongKey, keysOf(next))
	opensWith(t, s, token, nil, keysOf(former))
}

// TestOpenChanges: opening with several keys has the first wrap the keyring.
func TestOpenChanges(t *testing.T) {
	s, former, next := memstore.New(), newFakeKMS(t, "kms/former"), newFakeKMS(t, "kms/next")
	token := imported(t, vaultWith(t, s, keysOf(former))).ID
	opensWith(t, s, token, nil, keysOf(former, next)) // as it is
	opensWith(t, s, token, nil, keysOf(former))
	opensWith(t, s, token, nil, keysOf(newFakeKMS(t, "kms/other"), next, former))
	opensWith(t, s, token, cardvault.ErrWrongKey, keysOf(former, next))
}

// TestChangeIsNotUndone: a process with the configuration of before a change does not undo
// that by starting.
func TestChangeIsNotUndone(t *testing.T) {
	s, former, next := memstore.New(), newFakeKMS(t, "kms/former"), newFakeKMS(t, "kms/next")
	v := vaultWith(t, s, keysOf(former))
	token := imported(t, v).ID
	if err := v.ChangeKeyring(t.Context(), keysOf(next, former)); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	stale, err := cardvault.New(t.Context(), s, keysOf(former, next), &cardvault.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "the vault was changed from the first key of its Keyring") {
		t.Errorf("the log says %s", &log)
	}
	if _, err := stale.RotateKeys(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	opensWith(t, s, token, cardvault.ErrWrongKey, keysOf(former))
	opensWith(t, s, token, nil, keysOf(next))
}

// TestBadKeyrings: keys that no vault can use are refused before anything is written.
func TestBadKeyrings(t *testing.T) {
	s, kms := memstore.New(), newFakeKMS(t, "kms/1")
	v := vaultWith(t, s, keysOf(kms))
	token := imported(t, v).ID
	before := keyringOf(t, s).Version
	var many []cardvault.KeyWrapper
	for i := range 17 {
		many = append(many, newFakeKMS(t, fmt.Sprint("kms/", i)))
	}
	for name, keys := range map[string]*cardvault.Keyring{
		"none":          nil,
		"empty":         new(cardvault.Keyring),
		"nil":           cardvault.WrappedBy(nil),
		"nil pointer":   cardvault.WrappedBy((*fakeKMS)(nil)),
		"nil in a join": cardvault.JoinKeyrings(keysOf(newFakeKMS(t, "kms/2")), nil),
		"join of nil":   cardvault.JoinKeyrings(nil),
		"no id":         keysOf(newFakeKMS(t, "")),
		"long id":       keysOf(newFakeKMS(t, strings.Repeat("x", 256))),
		"one id twice":  keysOf(newFakeKMS(t, "kms/2"), newFakeKMS(t, "kms/2")),
		"too many":      keysOf(many...),
	} {
		if err := v.ChangeKeyring(t.Context(), keys); err == nil {
			t.Errorf("%s: accepted by ChangeKeyring", name)
		}
		if _, err := cardvault.New(t.Context(), memstore.New(), keys, nil); err == nil {
			t.Errorf("%s: accepted by New", name)
		}
	}
	if keyringOf(t, s).Version != before {
		t.Error("the keyring was written")
	}
	opensWith(t, s, token, nil, keysOf(kms))

	var closed *cardvault.Vault
	if err := closed.ChangeKeyring(t.Context(), keysOf(kms)); err == nil {
		t.Error("a vault that is nil is changed")
	}
}

// A faultyKMS answers as fault says, from the time that it is set.
type faultyKMS struct {
	*fakeKMS
	mu    sync.Mutex
	fault func(ctx context.Context, k *fakeKMS, wrap bool, b, aad []byte) ([]byte, error)
}

func (k *faultyKMS) Wrap(ctx context.Context, b, aad []byte) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fault != nil {
		return k.fault(ctx, k.fakeKMS, true, b, aad)
	}
	return k.fakeKMS.Wrap(ctx, b, aad)
}

func (k *faultyKMS) Unwrap(ctx context.Context, b, aad []byte) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fault != nil {
		return k.fault(ctx, k.fakeKMS, false, b, aad)
	}
	return k.fakeKMS.Unwrap(ctx, b, aad)
}

// TestKeyProviderFaults: whatever the key provider does when a vault is opened, rotated or
// changed, the error says it and nothing is written.
func TestKeyProviderFaults(t *testing.T) {
	other := newFakeKMS(t, "other")
	pass := func(ctx context.Context, k *fakeKMS, wrap bool, b, aad []byte) ([]byte, error) {
		if wrap {
			return k.Wrap(ctx, b, aad)
		}
		return k.Unwrap(ctx, b, aad)
	}
	for _, fault := range []struct {
		name         string
		opens, write error // of Open, and of RotateKeys and ChangeKeyring
		fault        func(ctx context.Context, k *fakeKMS, wrap bool, b, aad []byte) ([]byte, error)
	}{
		{"down", cardvault.ErrUnavailable, cardvault.ErrUnavailable, func(context.Context, *fakeKMS, bool, []byte, []byte) ([]byte, error) {
			return nil, errors.New("connection refused")
		}},
		{"slow", cardvault.ErrUnavailable, cardvault.ErrUnavailable, func(ctx context.Context, _ *fakeKMS, _ bool, _, _ []byte) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}},
		{"another key", cardvault.ErrWrongKey, cardvault.ErrWrongKey, func(ctx context.Context, k *fakeKMS, wrap bool, b, aad []byte) ([]byte, error) {
			if wrap {
				return pass(ctx, other, wrap, b, aad)
			}
			return pass(ctx, k, wrap, b, append(aad, 1))
		}},
		{"may only encrypt", cardvault.ErrUnavailable, cardvault.ErrUnavailable, func(ctx context.Context, k *fakeKMS, wrap bool, b, aad []byte) ([]byte, error) {
			if wrap {
				return pass(ctx, k, wrap, b, aad)
			}
			return nil, errors.New("access denied")
		}},
		{"answers with another data key", cardvault.ErrDamaged, cardvault.ErrWrongKey, func(ctx context.Context, k *fakeKMS, wrap bool, b, aad []byte) ([]byte, error) {
			if wrap {
				return pass(ctx, k, wrap, b, aad)
			}
			return make([]byte, cardvault.KeySize), nil
		}},
		{"answers with a short data key", cardvault.ErrWrongKey, cardvault.ErrWrongKey, func(ctx context.Context, k *fakeKMS, wrap bool, b, aad []byte) ([]byte, error) {
			if wrap {
				return pass(ctx, k, wrap, b, aad)
			}
			return make([]byte, 16), nil
		}},
		{"wraps another data key", nil, cardvault.ErrWrongKey, func(ctx context.Context, k *fakeKMS, wrap bool, b, aad []byte) ([]byte, error) {
			if wrap {
				b = make([]byte, len(b))
			}
			return pass(ctx, k, wrap, b, aad)
		}},
		{"wipes the data key", nil, cardvault.ErrWrongKey, func(ctx context.Context, k *fakeKMS, wrap bool, b, aad []byte) ([]byte, error) {
			out, err := pass(ctx, k, wrap, b, aad)
			if wrap {
				clear(b)
			}
			return out, err
		}},
		{"wraps in nothing", nil, errAny, func(ctx context.Context, k *fakeKMS, wrap bool, b, aad []byte) ([]byte, error) {
			if wrap {
				return nil, nil
			}
			return pass(ctx, k, wrap, b, aad)
		}},
		{"wraps in too much", nil, errAny, func(ctx context.Context, k *fakeKMS, wrap bool, b, aad []byte) ([]byte, error) {
			if wrap {
				return make([]byte, cardvault.MaxWrapped+1), nil
			}
			return pass(ctx, k, wrap, b, aad)
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, present, next := memstore.New(), &faultyKMS{fakeKMS: newFakeKMS(t, "kms/1")}, &faultyKMS{fakeKMS: newFakeKMS(t, "kms/2")}
				v := vaultWith(t, s, keysOf(present))
				token := imported(t, v).ID
				before := keyringOf(t, s)
				present.fault, next.fault = fault.fault, fault.fault

				begin := time.Now()
				wants := func(what string, err, want error) {
					t.Helper()
					if !errors.Is(err, want) && (want != errAny || err == nil) {
						t.Errorf("%s: %v, want %v", what, err, want)
					}
					if d := time.Since(begin); d > 20*time.Second {
						t.Errorf("%s: after %v", what, d)
					}
					begin = time.Now()
				}
				opened, err := cardvault.New(t.Context(), s, keysOf(present), nil)
				wants("open", err, fault.opens)
				if err == nil {
					opened.Close()
				}
				_, err = v.RotateKeys(t.Context(), nil)
				wants("rotate", err, fault.write)
				wants("change", v.ChangeKeyring(t.Context(), keysOf(next)), fault.write)

				present.fault = nil // the former key is there, and the first key is not
				_, err = cardvault.New(t.Context(), s, keysOf(next, present), nil)
				wants("open and change", err, fault.write)

				if now := keyringOf(t, s); now.Version != before.Version || !bytes.Equal(now.Shown, before.Shown) {
					t.Error("the keyring was written")
				}
				imported(t, v)
				opensWith(t, s, token, nil, keysOf(present))
				if _, err := v.RotateKeys(t.Context(), nil); err != nil {
					t.Errorf("once it is over: %v", err)
				}
				next.fault = nil
				if err := v.ChangeKeyring(t.Context(), keysOf(next)); err != nil {
					t.Errorf("once it is over: %v", err)
				}
				opensWith(t, s, token, nil, keysOf(next))
			})
		})
	}
}

// errAny stands for any error.
var errAny = errors.New("any error")

// An interrupted store runs a function, once, after a number of reads.
type interrupted struct {
	store.Store
	after int
	with  func()
}

func (s *interrupted) View(ctx context.Context, fn func(store.ReadTx) error) error {
	err := s.Store.View(ctx, fn)
	if s.after--; s.after == 0 {
		s.with()
	}
	return err
}

// TestChangeWhileAnotherCallFollows: another process changes the key, and another call loads
// that keyring, after a call has read the one before. It takes neither for the other.
func TestChangeWhileAnotherCallFollows(t *testing.T) {
	for reads := 1; ; reads++ {
		former, next := newFakeKMS(t, "kms/former"), newFakeKMS(t, "kms/next")
		s := &interrupted{Store: memstore.New()}
		v := vaultWith(t, s, keysOf(former, next))
		token := imported(t, v).ID
		other := vaultWith(t, s.Store, keysOf(former, next))

		interrupted := false
		s.after, s.with = reads, func() {
			interrupted = true
			if err := other.ChangeKeyring(t.Context(), keysOf(next)); err != nil {
				t.Fatal(err)
			}
			if _, err := v.RotateKeys(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := v.ChangeKeyring(t.Context(), keysOf(next)); err != nil {
			t.Errorf("interrupted after %d reads: %v", reads, err)
		}
		if !interrupted {
			break
		}
		opensWith(t, s.Store, token, nil, keysOf(next))
		opensWith(t, s.Store, token, cardvault.ErrWrongKey, keysOf(former))
	}
}

// TestChangeFollowed: a process that has the new key follows a change within 30 seconds. One
// without works on, says so, and refuses what it cannot do.
func TestChangeFollowed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, former, next := memstore.New(), newFakeKMS(t, "kms/former"), newFakeKMS(t, "kms/next")
		var logs [2]lockedBuffer
		runs := func(i int, keys *cardvault.Keyring) *cardvault.Vault {
			v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Logger: slog.New(slog.NewTextHandler(&logs[i], nil))})
			if err != nil {
				t.Fatal(err)
			}
			var group sync.WaitGroup
			ctx, stop := context.WithCancel(t.Context())
			group.Go(func() { _ = v.Run(ctx) })
			t.Cleanup(func() { stop(); group.Wait(); v.Close() })
			return v
		}
		changes := vaultWith(t, s, keysOf(former))
		follows, behind := runs(0, keysOf(former, next)), runs(1, keysOf(former))
		token := imported(t, behind).ID
		if err := changes.ChangeKeyring(t.Context(), keysOf(next)); err != nil {
			t.Fatal(err)
		}
		<-time.After(30 * time.Second)

		if said := logs[0].text(); !strings.Contains(said, "keys of another process were loaded") || strings.Contains(said, "cannot be loaded") {
			t.Errorf("the process with both keys says %s", said)
		}
		if said := logs[1].text(); !strings.Contains(said, "the keyring in the store cannot be loaded") || !strings.Contains(said, "kms/next") {
			t.Errorf("the process without the new key says %s", said)
		}
		for _, v := range []*cardvault.Vault{follows, behind} {
			if _, err := v.Get(t.Context(), token); err != nil {
				t.Error(err)
			}
			imported(t, v)
		}

		calls := former.opens + next.opens
		if _, err := behind.RotateKeys(t.Context(), nil); !errors.Is(err, cardvault.ErrWrongKey) {
			t.Errorf("a rotation without the key: %v", err)
		}
		if err := behind.ChangeKeyring(t.Context(), keysOf(former)); !errors.Is(err, cardvault.ErrWrongKey) {
			t.Errorf("a change without the key: %v", err)
		}
		if calls != former.opens+next.opens {
			t.Error("a key provider was asked for the key of another")
		}

		if _, err := follows.RotateKeys(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		young := imported(t, follows).ID
		if _, err := behind.Get(t.Context(), young); !errors.Is(err, cardvault.ErrWrongKey) {
			t.Errorf("a record of a later term, without the key: %v", err)
		}
		if _, err := changes.Get(t.Context(), young); err != nil {
			t.Error(err)
		}

		// It is given the key, and goes on.
		if err := behind.ChangeKeyring(t.Context(), keysOf(next)); err != nil {
			t.Fatal(err)
		}
		if _, err := behind.Get(t.Context(), young); err != nil {
			t.Error(err)
		}
		opensWith(t, s, token, cardvault.ErrWrongKey, keysOf(former))
	})
}

// TestChangeRollback: a keyring from before a change that was put back is noticed when the
// vault is opened, and repaired by a process that has the later one.
func TestChangeRollback(t *testing.T) {
	s, former, next := memstore.New(), newFakeKMS(t, "kms/former"), newFakeKMS(t, "kms/next")
	v := vaultWith(t, s, keysOf(former))
	token := imported(t, v).ID
	old := keyringOf(t, s)
	if err := v.ChangeKeyring(t.Context(), keysOf(next)); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		r := *old
		r.Version = old.Version + 2
		tx.Put(&r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	opensWith(t, s, token, cardvault.ErrDamaged, keysOf(former))
	opensWith(t, s, token, cardvault.ErrDamaged, keysOf(next, former))
	opensWith(t, s, token, cardvault.ErrWrongKey, keysOf(next))
	if err := v.ChangeKeyring(t.Context(), keysOf(former)); !errors.Is(err, cardvault.ErrDamaged) {
		t.Errorf("a change: %v", err)
	}

	if _, err := v.RotateKeys(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	opensWith(t, s, token, cardvault.ErrWrongKey, keysOf(former))
	opensWith(t, s, token, nil, keysOf(next))
}

// TestKeyringSubstituted: a wrapped data key, or sealed keys, of another vault or another time
// do not open, even under a key that binds no associated data.
func TestKeyringSubstituted(t *testing.T) {
	kms := &unboundKMS{newFakeKMS(t, "rsa")}
	made := func(mode cardvault.Mode) (*memstore.Store, *cardvault.Vault) {
		s := memstore.New()
		v, err := cardvault.New(t.Context(), s, keysOf(kms), &cardvault.Options{Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { v.Close() })
		imported(t, v)
		return s, v
	}
	s, v := made(cardvault.Live)
	other, _ := made(cardvault.Sandbox)
	before := fieldsOf(keyringOf(t, s))
	if _, err := v.RotateKeys(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	now := fieldsOf(keyringOf(t, s))
	if opened, err := cardvault.New(t.Context(), editedCopy(t, s), keysOf(kms), nil); err != nil {
		t.Fatal(err)
	} else {
		opened.Close()
	}

	const mode, account, vault, generation, keyID, dataKey, sealed = 1, 2, 3, 4, 8, 9, 10
	for _, from := range []map[byte][]byte{before, fieldsOf(keyringOf(t, other))} {
		for set := 1; set < 1<<7; set++ {
			fields := map[byte][]byte{}
			for tag, value := range now {
				fields[tag] = value
			}
			changed := false
			for i, tag := range []byte{mode, account, vault, generation, keyID, dataKey, sealed} {
				if set&(1<<i) != 0 {
					changed = changed || !bytes.Equal(fields[tag], from[tag])
					fields[tag] = from[tag]
				}
			}
			if !changed {
				continue
			}
			e := editedCopy(t, s)
			row := e.rows[e.at(kindMeta, keyringID)].Clone()
			row.Shown = recordOf(fields)
			e.rows[e.at(kindMeta, keyringID)] = row
			for _, m := range []cardvault.Mode{cardvault.Live, cardvault.Sandbox} {
				opened, err := cardvault.New(t.Context(), e, keysOf(kms), &cardvault.Options{Mode: m})
				if !errors.Is(err, cardvault.ErrDamaged) && (!errors.Is(err, cardvault.ErrWrongMode) || (len(fields[mode]) > 0) == (m == cardvault.Sandbox)) {
					t.Errorf("fields %b are replaced, in %v mode: %v", set, m, err)
				}
				if err == nil {
					opened.Close()
				}
			}
		}
	}
}

// An unboundKMS has no associated data.
type unboundKMS struct{ *fakeKMS }

func (k *unboundKMS) Wrap(ctx context.Context, b, _ []byte) ([]byte, error) {
	return k.fakeKMS.Wrap(ctx, b, nil)
}

func (k *unboundKMS) Unwrap(ctx context.Context, b, _ []byte) ([]byte, error) {
	return k.fakeKMS.Unwrap(ctx, b, nil)
}

// fieldsOf returns the fields of a keyring record by their tags, and recordOf what has them.
func fieldsOf(r *store.Record) map[byte][]byte {
	fields := map[byte][]byte{}
	reader := tlv.Read(r.Shown)
	for reader.Next() {
		fields[reader.Tag] = reader.Value
	}
	return fields
}

func recordOf(fields map[byte][]byte) (b []byte) {
	for tag := range byte(16) {
		b = tlv.Append(b, tag, fields[tag])
	}
	return b
}

// TestChangesAtOnce: processes that rotate and change at once leave a vault that one of the
// keys opens, with every token.
func TestChangesAtOnce(t *testing.T) {
	for range 20 {
		s := memstore.New()
		kms := []*fakeKMS{newFakeKMS(t, "kms/0"), newFakeKMS(t, "kms/1"), newFakeKMS(t, "kms/2")}
		all := func(first int) *cardvault.Keyring {
			return keysOf(lockedKMS{kms[first]}, lockedKMS{kms[(first+1)%3]}, lockedKMS{kms[(first+2)%3]})
		}
		var group sync.WaitGroup
		var mu sync.Mutex
		var tokens []uuid.UUID
		vaults := make([]*cardvault.Vault, 3)
		for i := range vaults {
			vaults[i] = vaultWith(t, s, all(0))
		}
		for i, v := range vaults {
			group.Go(func() {
				for range 5 {
					if err := v.ChangeKeyring(t.Context(), all(i)); err != nil {
						t.Error(err)
					}
					token, err := v.Import(t.Context(), visa, nil)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					tokens = append(tokens, token.ID)
					mu.Unlock()
					if _, err := v.RotateKeys(t.Context(), nil); err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()

		opened := 0
		for i := range kms {
			v, err := cardvault.New(t.Context(), s, keysOf(lockedKMS{kms[i]}), nil)
			if errors.Is(err, cardvault.ErrWrongKey) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			opened++
			for _, id := range tokens {
				if _, err := v.Get(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
			v.Close()
		}
		if opened != 1 {
			t.Fatalf("%d keys open the vault", opened)
		}
	}
}

// A lockedKMS can be called concurrently, which a fakeKMS counts wrongly.
type lockedKMS struct{ k *fakeKMS }

var kmsLock sync.Mutex

func (k lockedKMS) KeyID() string { return k.k.KeyID() }

func (k lockedKMS) Wrap(ctx context.Context, b, aad []byte) ([]byte, error) {
	kmsLock.Lock()
	defer kmsLock.Unlock()
	return k.k.Wrap(ctx, b, aad)
}

func (k lockedKMS) Unwrap(ctx context.Context, b, aad []byte) ([]byte, error) {
	kmsLock.Lock()
	defer kmsLock.Unlock()
	return k.k.Unwrap(ctx, b, aad)
}

// TestChangeToKeyInVaultFolder: a key file does not move into the folder of the vault.
func TestChangeToKeyInVaultFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "vault")
	v, err := cardvault.Open(t.Context(), dir, newKey(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if err := v.ChangeKeyring(t.Context(), mustKeyFile(t, filepath.Join(dir, "vault.key"), "")); !errors.Is(err, cardvault.ErrKeyFile) {
		t.Errorf("%v, want ErrKeyFile", err)
	}
	next := mustKeyFile(t, filepath.Join(t.TempDir(), "vault.key"), "")
	if err := v.ChangeKeyring(t.Context(), next); err != nil {
		t.Error(err)
	}
}

// A format1 is a vault that a program of format 1 has stored in a bbolt file. Its keys were
// rotated twice, and it has a token of each term.
type format1 struct {
	Account uuid.UUID
	Tokens  map[uuid.UUID]cardvault.Fingerprint
	APIKey  string

	reprinted bool // the fingerprint key was rotated, perhaps
}

// unpackFormat1 makes a folder with the vault of testdata/format1.
func unpackFormat1(t *testing.T, name string) (dir string, f *format1) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "format1", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var said struct {
		Account uuid.UUID
		Tokens  map[uuid.UUID]string
		APIKey  string
	}
	if err := json.Unmarshal(text, &said); err != nil {
		t.Fatal(err)
	}
	f = &format1{Account: said.Account, Tokens: map[uuid.UUID]cardvault.Fingerprint{}, APIKey: said.APIKey}
	for id, text := range said.Tokens {
		var fp cardvault.Fingerprint
		if err := fp.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		f.Tokens[id] = fp
	}

	return unpacked(t, filepath.Join("testdata", "format1", name+".db.gz")), f
}

// unpacked makes a folder with a vault, of which a file is the compressed store.
func unpacked(t *testing.T, name string) (dir string) {
	t.Helper()
	packed, err := os.Open(name)
	noErr(t, err)
	defer packed.Close()
	r, err := gzip.NewReader(packed)
	noErr(t, err)
	data, err := io.ReadAll(r)
	noErr(t, err)
	dir = t.TempDir()
	noErr(t, os.WriteFile(filepath.Join(dir, "cardvault.db"), data, 0o600))
	return dir
}

// check reads all of the vault.
func (f *format1) check(t *testing.T, v *cardvault.Vault) {
	t.Helper()
	if a, err := v.Account(t.Context()); err != nil || a.ID != f.Account {
		t.Errorf("the account: %v", err)
	}
	want := anyOf(f.Tokens) // all are of one card
	for id := range f.Tokens {
		token, err := v.Get(t.Context(), id)
		if err == nil && f.reprinted {
			want = token.Fingerprint
		}
		if err != nil || token.Fingerprint != want {
			t.Errorf("a token: %v", err)
		}
	}
	if p, err := v.Authenticate(t.Context(), f.APIKey); err != nil || p == nil {
		t.Errorf("the API key: %v", err)
	}
	if again := imported(t, v); len(f.Tokens) != 3 || again.Fingerprint != want {
		t.Error("the same card has another fingerprint")
	}
}

func anyOf[K comparable, V any](m map[K]V) (v V) {
	for _, v = range m {
		break
	}
	return v
}

// keysOfFormat1 are the keys under which the vaults of testdata/format1 are stored: one was
// wrapped whole, the other by package envelope, which is gone.
func keysOfFormat1(t *testing.T, name string) *cardvault.Keyring {
	if name == "envelope" {
		return cardvault.WrappedBy(renamedKey{keyfile.NewKey(goldenKey()), "kms/cards"})
	}
	return mustKeyBytes(t, goldenKey())
}

// A renamedKey has another id.
type renamedKey struct {
	cardvault.KeyWrapper
	id string
}

func (r renamedKey) KeyID() string { return r.id }

// TestFormat1: a vault of format 1 is brought to the present format once, when it is opened,
// and opens again.
func TestFormat1(t *testing.T) {
	for _, name := range []string{"keybytes", "envelope"} {
		t.Run(name, func(t *testing.T) {
			dir, f := unpackFormat1(t, name)
			var versions []uint64
			for range 3 {
				v, err := cardvault.Open(t.Context(), dir, keysOfFormat1(t, name), nil)
				if err != nil {
					t.Fatal(err)
				}
				f.check(t, v)
				if err := v.Close(); err != nil {
					t.Fatal(err)
				}
				versions = append(versions, storedKeyring(t, dir).Version)
			}
			if versions[0] != 4 || versions[2] != 4 { // the first, two rotations, and the new format
				t.Errorf("versions of the keyring: %v", versions)
			}

			// A program of format 1 finds this where it looks for the id of the key.
			if said := string(fieldsOf(storedKeyring(t, dir))[5]); !strings.Contains(said, "later version of cardvault") {
				t.Errorf("it says %q", said)
			}

			v, err := cardvault.Open(t.Context(), dir, cardvault.JoinKeyrings(newKey(t), keysOfFormat1(t, name)), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			f.check(t, v)
		})
	}
}

// TestFormat1Audited: a vault of format 1 opens with an audit log, which has the change.
func TestFormat1Audited(t *testing.T) {
	dir, f := unpackFormat1(t, "keybytes")
	v, err := cardvault.Open(t.Context(), dir, cardvault.JoinKeyrings(newKey(t), keysOfFormat1(t, "keybytes")), &cardvault.Options{Audit: &cardvault.AuditOptions{}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	f.check(t, v)
	if err := v.ChangeKeyring(t.Context(), newKey(t)); err != nil {
		t.Error(err)
	}
}

// TestFormat1Changed: a vault of format 1 changes its key-encryption key in the same step.
func TestFormat1Changed(t *testing.T) {
	dir, f := unpackFormat1(t, "keybytes")
	if _, err := cardvault.Open(t.Context(), dir, newKey(t), nil); !errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("with another key: %v", err)
	}
	next := newKey(t)
	v, err := cardvault.Open(t.Context(), dir, cardvault.JoinKeyrings(next, keysOfFormat1(t, "keybytes")), nil)
	if err != nil {
		t.Fatal(err)
	}
	f.check(t, v)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if got := storedKeyring(t, dir).Version; got != 4 {
		t.Errorf("version %d of the keyring", got)
	}
	if _, err := cardvault.Open(t.Context(), dir, keysOfFormat1(t, "keybytes"), nil); !errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("with the former key: %v", err)
	}
	v, err = cardvault.Open(t.Context(), dir, next, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	f.check(t, v)
}

// TestLaterFormat: a keyring of a later format is refused, also by a vault that is open, and
// is not written over.
func TestLaterFormat(t *testing.T) {
	s, kms := memstore.New(), newFakeKMS(t, "kms/1")
	v := vaultWith(t, s, keysOf(kms))
	imported(t, v)
	e := editedCopy(t, s)
	open := vaultWith(t, e, keysOf(kms))
	row := e.rows[e.at(kindMeta, keyringID)].Clone()
	fields := fieldsOf(row)
	fields[7] = []byte{6}
	row.Shown = recordOf(fields)
	e.rows[e.at(kindMeta, keyringID)] = row
	if _, err := cardvault.New(t.Context(), e, keysOf(kms), nil); !errors.Is(err, cardvault.ErrFormat) {
		t.Errorf("opening: %v", err)
	}
	if _, err := open.RotateKeys(t.Context(), nil); !errors.Is(err, cardvault.ErrFormat) {
		t.Errorf("rotating: %v", err)
	}
	imported(t, open)
}

// storedKeyring returns the keyring of a vault that is closed.
func storedKeyring(t *testing.T, dir string) *store.Record {
	t.Helper()
	s, err := boltstore.Open(t.Context(), filepath.Join(dir, "cardvault.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return keyringOf(t, s)
}
