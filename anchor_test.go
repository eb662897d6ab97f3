package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// copied returns a store with the records that s has now, as a copy of its file has.
func copied(t *testing.T, s store.Store) store.Store {
	t.Helper()
	to, all := memstore.New(), recordsOf(t, s)
	noErr(t, to.Update(t.Context(), func(tx store.Tx) error {
		for _, r := range all {
			tx.(store.Loader).Load(r.Clone())
		}
		return nil
	}))
	return to
}

// An anchored vault is opened with an anchor in a folder.
type anchored struct {
	*testing.T
	store  store.Store
	dir    string
	anchor cardvault.Anchor // nil: the folder
	log    sharedLog
	vault  *cardvault.Vault
}

// anchor returns a vault with an anchor, which is open.
func anchor(t *testing.T) *anchored {
	t.Helper()
	a := &anchored{T: t, store: memstore.New(), dir: t.TempDir()}
	a.reopen()
	return a
}

// on opens a store with the anchor.
func (a *anchored) on(s store.Store, accept uuid.UUID) (*cardvault.Vault, error) {
	a.Helper()
	opts := &cardvault.Options{
		Mode: cardvault.Sandbox, Audit: new(cardvault.AuditOptions), AcceptRollback: accept,
		Anchor: a.anchor, Webhooks: &post{t: a.T}, Logger: slog.New(slog.NewTextHandler(&a.log, nil)),
	}
	if opts.Anchor == nil {
		opts.Anchor = cardvault.AnchorDir(a.dir)
	}
	v, err := cardvault.New(a.Context(), s, mustKeyBytes(a.T, goldenKey()), opts)
	if err == nil {
		a.Cleanup(func() { v.Close() })
	}
	return v, err
}

func (a *anchored) reopen() {
	a.Helper()
	if a.vault != nil {
		noErr(a.T, a.vault.Close())
	}
	var err error
	a.vault, err = a.on(a.store, uuid.Nil)
	noErr(a.T, err)
}

func (a *anchored) imports() {
	a.Helper()
	_, err := a.vault.Import(a.Context(), visa, nil)
	noErr(a.T, err)
}

// refused checks that a store is refused, and returns how.
func (a *anchored) refused(s store.Store, reason string) *cardvault.RollbackError {
	a.Helper()
	_, err := a.on(s, uuid.Nil)
	r, ok := errors.AsType[*cardvault.RollbackError](err)
	if !ok || !errors.Is(err, cardvault.ErrRolledBack) {
		a.Fatalf("a store that was rolled back: %v, want %q", err, reason)
	}
	if !strings.Contains(r.Reason, reason) || !strings.Contains(err.Error(), r.ID.String()) {
		a.Errorf("%v, want %q and its ID", err, reason)
	}
	return r
}

// TestAnchor: a store that was rolled back is refused, is taken once by the name of the difference,
// and from then on the copy that went on apart is refused.
func TestAnchor(t *testing.T) {
	a := anchor(t)
	a.imports()
	noErr(t, a.vault.Close())
	former := copied(t, a.store)
	a.reopen()
	a.imports()
	a.reopen() // once without a change too
	noErr(t, a.vault.Close())

	r := a.refused(copied(t, former), "it is older than its anchor")
	if r.Stored == 0 || r.Stored >= r.Anchored || r.StoredAt.IsZero() || r.AnchoredAt.IsZero() {
		t.Errorf("difference %+v", r)
	}
	if again := a.refused(former, "older"); *again != *r {
		t.Errorf("the same difference is %+v, and was %+v", again, r)
	}
	if _, err := a.on(copied(t, former), uuid.New()); !errors.Is(err, cardvault.ErrRolledBack) {
		t.Errorf("with another ID: %v", err)
	}

	spare := copied(t, former)
	v, err := a.on(former, r.ID)
	noErr(t, err)
	_, err = v.Import(t.Context(), visa, nil)
	noErr(t, err)
	page, err := v.In(uuid.Nil).AuditRecords(t.Context(), &cardvault.AuditQuery{Operation: "vault.accept_rollback"})
	if err != nil || len(page.Records) != 1 {
		t.Errorf("the audit log has %v, %v", page, err)
	}
	noErr(t, v.Close())

	again, err := a.on(former, r.ID) // a setting that is left behind
	noErr(t, err)
	noErr(t, again.Close())
	for _, s := range []store.Store{a.store, spare} {
		if _, err := a.on(s, r.ID); !errors.Is(err, cardvault.ErrRolledBack) {
			t.Errorf("a store of before with the same ID: %v", err)
		}
	}
	a.refused(a.store, "apart from this one")
}

// TestAnchorInterval: a rollback is noticed ten seconds after the last commit that it undoes, at
// the latest, though the process was killed, and not before.
func TestAnchorInterval(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := anchor(t)
		time.Sleep(time.Minute)
		former := copied(t, a.store)
		a.imports()
		time.Sleep(9 * time.Second)
		v, err := a.on(copied(t, former), uuid.Nil)
		noErr(t, err) // within the interval
		noErr(t, v.Close())

		b := anchor(t)
		time.Sleep(time.Minute)
		former = copied(t, b.store)
		for range 4 {
			b.imports()
			time.Sleep(3 * time.Second)
		}
		b.refused(former, "older")
	})
}

// TestAnchorAtRest: a vault that writes nothing does not advance its anchor.
func TestAnchorAtRest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := anchor(t)
		a.imports()
		time.Sleep(time.Minute)
		before, err := cardvault.AnchorDir(a.dir).Load(t.Context())
		noErr(t, err)
		time.Sleep(time.Hour)
		after, err := cardvault.AnchorDir(a.dir).Load(t.Context())
		noErr(t, err)
		if len(before) == 0 || !bytes.Equal(before, after) {
			t.Errorf("the anchor has %q, and had %q", after, before)
		}
	})
}

// TestAnchorRevocation: the anchor has what ends a right, or changes keys or secrets, before the call
// answers.
func TestAnchorRevocation(t *testing.T) {
	for name, prepare := range map[string]func(ctx context.Context, t *testing.T, v *cardvault.Vault) (end func() error){
		"key": func(ctx context.Context, t *testing.T, v *cardvault.Vault) func() error {
			key := keyOf(t, v)
			return func() error { return v.DeleteAPIKey(ctx, key) }
		},
		"address ranges": func(ctx context.Context, t *testing.T, v *cardvault.Vault) func() error {
			key := keyOf(t, v)
			narrow := cardvault.APIKeyUpdate{AddressRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
			return func() error { return errorOf(v.UpdateAPIKey(ctx, key, narrow)) }
		},
		"payment secret": func(ctx context.Context, t *testing.T, v *cardvault.Vault) func() error {
			m := shopOf(t, v)
			return func() error { return errorOf(v.RotatePaymentSecret(ctx, m.ID, nil)) }
		},
		"payment secret revoked": func(ctx context.Context, t *testing.T, v *cardvault.Vault) func() error {
			m := shopOf(t, v)
			secret, err := v.RotatePaymentSecret(ctx, m.ID, nil)
			noErr(t, err)
			_, err = v.RotatePaymentSecret(ctx, m.ID, nil)
			noErr(t, err)
			return func() error { return v.RevokePaymentSecret(ctx, m.ID, secret.KeyID) }
		},
		"webhook secret": func(ctx context.Context, t *testing.T, v *cardvault.Vault) func() error {
			hook, err := v.CreateWebhook(ctx, "https://shop.example/", nil)
			noErr(t, err)
			return func() error { return errorOf(v.RotateWebhookSecret(ctx, hook.ID, nil)) }
		},
		"webhook secrets revoked": func(ctx context.Context, t *testing.T, v *cardvault.Vault) func() error {
			hook, err := v.CreateWebhook(ctx, "https://shop.example/", nil)
			noErr(t, err)
			noErr(t, errorOf(v.RotateWebhookSecret(ctx, hook.ID, nil)))
			return func() error { return v.RevokePreviousWebhookSecrets(ctx, hook.ID) }
		},
		"keys": func(ctx context.Context, _ *testing.T, v *cardvault.Vault) func() error {
			return func() error { return errorOf(v.RotateKeys(ctx, nil)) }
		},
		"series": func(ctx context.Context, _ *testing.T, v *cardvault.Vault) func() error {
			return func() error { return errorOf(v.RotateSeries(ctx, cardvault.SeriesAudit, nil)) }
		},
		"term": func(ctx context.Context, t *testing.T, v *cardvault.Vault) func() error {
			noErr(t, errorOf(v.RotateKeys(ctx, nil)))
			return func() error {
				if err := v.RetireTerm(ctx, 1); !errors.Is(err, cardvault.ErrTermInUse) {
					return fmt.Errorf("retired at once: %w", err)
				}
				return nil // it is closed
			}
		},
		"key-encryption key": func(ctx context.Context, t *testing.T, v *cardvault.Vault) func() error {
			return func() error { return v.ChangeKeyring(ctx, mustKeyBytes(t, bytes.Repeat([]byte{9}, cardvault.KeySize))) }
		},
		"freeze": func(ctx context.Context, _ *testing.T, v *cardvault.Vault) func() error {
			return func() error { return errorOf(v.FreezeAccount(ctx)) }
		},
		"close": func(_ context.Context, _ *testing.T, v *cardvault.Vault) func() error { return v.Close },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				a := anchor(t)
				end := prepare(t.Context(), t, a.vault)
				time.Sleep(time.Minute)
				a.imports()
				former := copied(t, a.store)
				at := time.Now()
				noErr(t, end())
				if took := time.Since(at); took > time.Second {
					t.Errorf("it took %v", took)
				}
				a.refused(former, "older")
			})
		})
	}
}

// keyOf returns the id of a new API key.
func keyOf(t *testing.T, v *cardvault.Vault) uuid.UUID {
	t.Helper()
	key, err := v.CreateAPIKey(t.Context(), "key", []cardvault.Scope{cardvault.ScopeTokensRead}, nil)
	noErr(t, err)
	return key.ID
}

// shopOf returns a new merchant.
func shopOf(t *testing.T, v *cardvault.Vault) *cardvault.Merchant {
	t.Helper()
	m, err := v.CreateMerchant(t.Context(), "shop", nil)
	noErr(t, err)
	return m
}

// TestAnchorKeyring: a keyring that was put back with all records of its kind, but the point of the
// store, is noticed.
func TestAnchorKeyring(t *testing.T) {
	a := anchor(t)
	former := editedCopy(t, a.store)
	_, err := a.vault.RotateKeys(t.Context(), nil)
	noErr(t, err)
	noErr(t, a.vault.Close())
	e := editedCopy(t, a.store)
	point := *e.rows[e.at(kindMeta, uuid.UUID{0: 4})]
	e.rows = append([]*store.Record{&point}, former.rows...)
	e.rows = append(e.rows[:former.at(kindMeta, uuid.UUID{0: 4})+1], e.rows[former.at(kindMeta, uuid.UUID{0: 4})+2:]...)
	a.refused(e, "the keyring has generation 0, and had 1")
}

// TestAnchorEdited: a text that is not the vault's is refused, and so is an anchor that was emptied.
func TestAnchorEdited(t *testing.T) {
	a := anchor(t)
	noErr(t, a.vault.Close())
	files, err := filepath.Glob(filepath.Join(a.dir, "*.anchor"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	noErr(t, err)
	if len(text) > 256 || strings.ContainsFunc(string(text), func(r rune) bool {
		return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", r)
	}) {
		t.Errorf("text %q", text)
	}
	refused := func(text []byte, want error) {
		t.Helper()
		noErr(t, os.WriteFile(files[0], text, 0o600))
		if _, err := a.on(a.store, uuid.Nil); !errors.Is(err, want) {
			t.Errorf("text %q: %v", text, err)
		}
	}

	for i := range text {
		edited := bytes.Clone(text)
		edited[i] ^= 1
		refused(edited, cardvault.ErrAnchor)
	}
	for n := range text {
		refused(text[:n], cardvault.ErrAnchor)
	}
	refused(append(bytes.Clone(text), 'A'), cardvault.ErrAnchor)
	refused(bytes.Repeat([]byte("A"), 1<<20), cardvault.ErrAnchor)

	other := anchor(t)
	noErr(t, other.vault.Close())
	theirs, err := cardvault.AnchorDir(other.dir).Load(t.Context())
	noErr(t, err)
	refused(theirs, cardvault.ErrAnchor)
	if _, err := a.on(a.store, uuid.Nil); err == nil || !strings.Contains(err.Error(), "belongs to another vault") {
		t.Errorf("another vault's anchor: %v", err)
	}

	noErr(t, os.Remove(files[0]))
	r := a.refused(a.store, "the anchor is empty")
	v, err := a.on(a.store, r.ID)
	noErr(t, err)
	noErr(t, v.Close())
	a.vault = nil
	a.reopen()
	noErr(t, os.RemoveAll(a.dir))
	if _, err := a.on(a.store, uuid.Nil); !errors.Is(err, cardvault.ErrUnavailable) {
		t.Errorf("a folder that is missing: %v", err)
	}
}

// TestAnchorOfEmptyStore: a vault whose store is gone does not become another one.
func TestAnchorOfEmptyStore(t *testing.T) {
	a := anchor(t)
	noErr(t, a.vault.Close())
	s := memstore.New()
	if _, err := a.on(s, uuid.Nil); !errors.Is(err, cardvault.ErrRolledBack) {
		t.Errorf("an empty store: %v", err)
	}
	noErr(t, s.View(t.Context(), func(tx store.ReadTx) error {
		if empty, err := tx.Empty(); !empty || err != nil {
			t.Errorf("something was made: %v", err)
		}
		return nil
	}))
}

// TestAnchorInFolder: an anchor that would be rolled back with the vault is refused.
func TestAnchorInFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "vault")
	for _, in := range []string{dir, filepath.Join(dir, "anchor"), ""} {
		_, err := cardvault.Open(t.Context(), dir, newKey(t), &cardvault.Options{Anchor: cardvault.AnchorDir(in)})
		if !errors.Is(err, cardvault.ErrAnchor) {
			t.Errorf("in %q: %v", in, err)
		}
	}
}

// TestAnchorFile: a former copy of the file of a vault is refused.
func TestAnchorFile(t *testing.T) {
	dir, keys := filepath.Join(t.TempDir(), "vault"), newKey(t)
	opts := &cardvault.Options{Anchor: cardvault.AnchorDir(t.TempDir())}
	file := filepath.Join(dir, "cardvault.db")
	use := func() {
		t.Helper()
		v, err := cardvault.Open(t.Context(), dir, keys, opts)
		noErr(t, err)
		_, err = v.Import(t.Context(), visa, nil)
		noErr(t, errors.Join(err, v.Close()))
	}
	use()
	former, err := os.ReadFile(file)
	noErr(t, err)
	use()
	latest, err := os.ReadFile(file)
	noErr(t, err)

	noErr(t, os.WriteFile(file, former, 0o600))
	if _, err := cardvault.Open(t.Context(), dir, keys, opts); !errors.Is(err, cardvault.ErrRolledBack) {
		t.Errorf("a former copy: %v", err)
	}
	noErr(t, os.WriteFile(file, latest, 0o600))
	use()
}

// A moody anchor fails when a test says so.
type moody struct {
	cardvault.Anchor
	mu   sync.Mutex
	call func(ctx context.Context, advance func() error) error // of each call; nil: all is well
}

func (m *moody) set(call func(ctx context.Context, advance func() error) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.call = call
}

func (m *moody) ask(ctx context.Context, do func() error) error {
	m.mu.Lock()
	call := m.call
	m.mu.Unlock()
	if call == nil {
		return do()
	}
	return call(ctx, do)
}

func (m *moody) Load(ctx context.Context) (text []byte, err error) {
	err = m.ask(ctx, func() (err error) {
		text, err = m.Anchor.Load(ctx)
		return err
	})
	return text, err
}

func (m *moody) Advance(ctx context.Context, number uint64, text []byte) error {
	return m.ask(ctx, func() error { return m.Anchor.Advance(ctx, number, text) })
}

var errMoody = errors.New("the volume is read-only")

// TestAnchorUnreachable: without its anchor a vault does not open. An open vault works on, calls
// that end rights wait for five seconds at most, and the anchor follows once it answers.
func TestAnchorUnreachable(t *testing.T) {
	for name, call := range map[string]func(context.Context, func() error) error{
		"fails":  func(context.Context, func() error) error { return errMoody },
		"panics": func(context.Context, func() error) error { panic("anchor") },
		"hangs": func(ctx context.Context, _ func() error) error {
			<-ctx.Done()
			return ctx.Err()
		},
		"ignores its deadline": func(context.Context, func() error) error {
			time.Sleep(time.Minute)
			return errMoody
		},
	} {
		bubble.Test(t, func(t *testing.T) {
			m := &moody{}
			a := &anchored{T: t, store: memstore.New(), anchor: m}
			m.Anchor = cardvault.AnchorDir(t.TempDir())
			a.reopen()
			key, err := a.vault.CreateAPIKey(t.Context(), "key", []cardvault.Scope{cardvault.ScopeTokensRead}, nil)
			noErr(t, err)
			noErr(t, a.vault.Close())

			m.set(call)
			_, err = a.on(a.store, uuid.Nil)
			if !errors.Is(err, cardvault.ErrUnavailable) || !strings.Contains(err.Error(), "without Options.Anchor") {
				t.Errorf("%s: opened with %v", name, err)
			}
			m.set(nil)
			a.vault, err = a.on(a.store, uuid.Nil)
			noErr(t, err)
			before := copied(t, a.store)

			m.set(call)
			logged := len(a.log.String())
			at := time.Now()
			noErr(t, a.vault.DeleteAPIKey(t.Context(), key.ID))
			if took := time.Since(at); took > 6*time.Second {
				t.Errorf("%s: a revocation took %v", name, took)
			}
			a.imports()
			synctest.Wait() // a call that hangs ends with the patience of the revocation
			if n := strings.Count(a.log.String()[logged:], "the anchor does not follow the vault"); n != 1 {
				t.Errorf("%s: logged %d times: %s", name, n, a.log.String())
			}

			time.Sleep(25 * time.Second) // it is tried again, more than once
			m.set(nil)
			time.Sleep(75 * time.Second) // the call that ignores its deadline, and the interval
			a.refused(before, "older")

			m.set(call)
			a.imports()
			if err := a.vault.Close(); !errors.Is(err, cardvault.ErrUnavailable) {
				t.Errorf("%s: closed with %v", name, err)
			}
			m.set(nil)
			time.Sleep(time.Minute)
			a.vault = nil
			a.reopen()
		})
	}
}

// TestAnchorLeft: a process that is killed, or whose calls fail, at any step of opening, accepting
// and following leaves a vault that opens, and is not refused as rolled back.
func TestAnchorLeft(t *testing.T) {
	type step struct {
		store bool // a write of the store, else a call of the anchor
		done  bool // it had its effect
		n     int
	}
	for _, accepts := range []bool{false, true} {
		for _, s := range []step{{false, false, 0}, {false, true, 0}, {true, false, 0}, {true, true, 0}} {
			for over := false; !over; s.n++ {
				a := &anchored{T: t, store: memstore.New(), dir: t.TempDir()}
				var id uuid.UUID
				if accepts {
					a.reopen()
					former := copied(t, a.store)
					a.reopen()
					noErr(t, a.vault.Close())
					a.store = former
					id = a.refused(former, "older").ID
				}

				var steps atomic.Int64 // of the test, and of rounds of the anchor
				most := int64(s.n)
				fails := func() error {
					if steps.Add(1) > most {
						return errMoody
					}
					return nil
				}
				m, f := &moody{Anchor: cardvault.AnchorDir(a.dir)}, &frail{base: a.store}
				if s.store {
					f.hook(func() error {
						if fails() != nil {
							return store.ErrOutcomeUnknown
						}
						return nil
					})
					f.done = s.done
				} else {
					m.set(func(_ context.Context, do func() error) error {
						err := fails()
						if err == nil || s.done {
							return errors.Join(err, do())
						}
						return err
					})
				}
				a.anchor = m
				v, err := a.on(f, id)
				if err == nil {
					_, err = v.Import(t.Context(), visa, nil)
					err = errors.Join(err, v.Close())
				}
				over = err == nil

				a.anchor = nil
				v, err = a.on(a.store, id)
				if err != nil {
					t.Fatalf("accepts %v, %+v: %v", accepts, s, err)
				}
				noErr(t, v.Close())
				v, err = a.on(a.store, uuid.Nil)
				if err != nil {
					t.Fatalf("accepts %v, %+v, without the ID: %v", accepts, s, err)
				}
				noErr(t, v.Close())
			}
			if s.n < 3 {
				t.Errorf("accepts %v, %+v: too few steps", accepts, s)
			}
		}
	}
}

// TestAnchorAbandoned: a vault that has begun to work and does not open writes no more.
func TestAnchorAbandoned(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := &anchored{T: t, store: memstore.New(), dir: t.TempDir()}
		a.reopen()
		former := copied(t, a.store)
		a.reopen()
		noErr(t, a.vault.Close())
		id := a.refused(former, "older").ID

		var writes atomic.Int64
		f := &frail{base: former}
		f.hook(func() error { writes.Add(1); return nil })
		m := &moody{Anchor: cardvault.AnchorDir(a.dir)}
		m.set(func(_ context.Context, do func() error) error {
			if writes.Load() > 0 { // the rollback was accepted, as the audit log says
				return errMoody
			}
			return do()
		})
		a.anchor = m
		if _, err := a.on(f, id); !errors.Is(err, errMoody) {
			t.Fatalf("New = %v", err)
		}
		before := writes.Load()
		time.Sleep(time.Hour)
		if n := writes.Load() - before; before == 0 || n > 0 {
			t.Errorf("%d writes before New failed, %d since", before, n)
		}
	})
}

// TestAnchorOfTwo: two processes on one store share an anchor, whatever each of them does.
func TestAnchorOfTwo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := &anchored{T: t, store: struct{ store.Store }{memstore.New()}, dir: t.TempDir()} // which counts no changes
		a.reopen()
		b, err := a.on(a.store, uuid.Nil)
		noErr(t, err)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				v := []*cardvault.Vault{a.vault, b}[i%2]
				if i < 4 {
					noErr(t, errorOf(v.RotateKeys(t.Context(), nil))) // which the other has not followed
					return
				}
				key, err := v.CreateAPIKey(t.Context(), fmt.Sprint("key ", i), []cardvault.Scope{cardvault.ScopeTokensRead}, nil)
				noErr(t, err)
				noErr(t, v.DeleteAPIKey(t.Context(), key.ID))
			})
		}
		all.Wait()

		key, err := b.CreateAPIKey(t.Context(), "key", []cardvault.Scope{cardvault.ScopeTokensRead}, nil)
		noErr(t, err)
		time.Sleep(time.Minute)
		_, err = b.APIKey(t.Context(), key.ID) // it looks for a later keyring, and not again within a second
		noErr(t, err)
		noErr(t, errorOf(a.vault.RotateKeys(t.Context(), nil)))
		noErr(t, b.DeleteAPIKey(t.Context(), key.ID))

		time.Sleep(time.Minute)
		former := copied(t, a.store)
		a.imports()
		time.Sleep(5 * time.Second)
		_, err = b.Import(t.Context(), visa, nil)
		noErr(t, err)
		noErr(t, b.Close())
		a.refused(former, "older")
		if strings.Contains(a.log.String(), "does not follow") {
			t.Errorf("log: %s", a.log.String())
		}
		a.reopen()
	})
}

// TestAnchorOfTwins: two processes on two copies of a store, with one anchor, notice each other.
func TestAnchorOfTwins(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := anchor(t)
		twin, err := a.on(copied(t, a.store), uuid.Nil)
		noErr(t, err)
		a.imports()
		time.Sleep(11 * time.Second)
		_, err = twin.Import(t.Context(), visa, nil)
		noErr(t, err)
		time.Sleep(11 * time.Second)
		a.imports()
		time.Sleep(11 * time.Second)
		if !strings.Contains(a.log.String(), "vault was rolled back") {
			t.Errorf("log: %s", a.log.String())
		}
	})
}

// TestAnchorAndClock: a clock that steps back does not look like a rollback, nor hide one.
func TestAnchorAndClock(t *testing.T) {
	a := anchor(t)
	noErr(t, a.vault.Close())
	former := copied(t, a.store)
	bubble.Test(t, func(t *testing.T) { // in the year 2000
		b := &anchored{T: t, store: copied(t, a.store), dir: a.dir}
		b.reopen()
		b.imports()
		time.Sleep(11 * time.Second)
		b.refused(former, "older")
	})
}

// TestAnchorLeftOut: a vault that is opened without its anchor warns, and is ahead afterwards.
func TestAnchorLeftOut(t *testing.T) {
	a := anchor(t)
	noErr(t, a.vault.Close())
	v, err := cardvault.New(t.Context(), a.store, mustKeyBytes(t, goldenKey()), &cardvault.Options{Mode: cardvault.Sandbox, Logger: slog.New(slog.NewTextHandler(&a.log, nil))})
	noErr(t, err)
	_, err = v.RotateKeys(t.Context(), nil)
	noErr(t, errors.Join(err, v.Close()))
	if !strings.Contains(a.log.String(), "opened without it") {
		t.Errorf("log: %s", a.log.String())
	}
	a.vault = nil
	a.reopen()
}

// TestAnchorOfRestored: a restored vault is refused until the difference is accepted, also if it has
// all that its anchor says.
func TestAnchorOfRestored(t *testing.T) {
	for name, since := range map[string]func(a *anchored){
		"at once": func(*anchored) {},
		"later":   func(a *anchored) { a.imports(); a.reopen() },
	} {
		a := anchor(t)
		var out bytes.Buffer
		_, err := a.vault.Backup(t.Context(), &out, nil)
		noErr(t, err)
		since(a)
		s := memstore.New()
		report, err := restore(t, s, out.Bytes())
		noErr(t, err)
		opens := func(accept uuid.UUID) (*cardvault.Vault, error) {
			return cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{
				Mode: cardvault.Sandbox, Anchor: cardvault.AnchorDir(a.dir), Thaw: report.ID, AcceptRollback: accept,
			})
		}
		if name == "at once" { // the anchor is where the backup was
			a.anchor = nil
		}
		_, err = opens(uuid.Nil)
		r, ok := errors.AsType[*cardvault.RollbackError](err)
		if !ok || !strings.Contains(r.Reason, "restored from a backup") {
			t.Fatalf("%s: a restored vault: %v", name, err)
		}

		v, err := opens(r.ID)
		noErr(t, err)
		noErr(t, v.Close())
		v, err = opens(uuid.Nil)
		noErr(t, err)
		noErr(t, v.Close())
		_ = a.vault.Close()
		a.refused(a.store, "apart from this one")
	}
}

// TestAnchorOfMoved: a move carries on, and the former place cannot come back from before its fence.
func TestAnchorOfMoved(t *testing.T) {
	a := anchor(t)
	a.imports()
	noErr(t, a.vault.Close())
	former, to, keys := copied(t, a.store), memstore.New(), mustKeyBytes(t, goldenKey())
	opts := &cardvault.MoveOptions{Anchor: cardvault.AnchorDir(a.dir), Audit: new(cardvault.AuditOptions)}
	_, err := cardvault.Move(t.Context(), a.store, to, keys, opts)
	noErr(t, err)
	if _, err := a.on(a.store, uuid.Nil); !errors.Is(err, cardvault.ErrMoved) {
		t.Errorf("the former place: %v", err)
	}
	a.refused(former, "older")
	if _, err := cardvault.Move(t.Context(), former, memstore.New(), keys, opts); !errors.Is(err, cardvault.ErrRolledBack) {
		t.Errorf("a move of a place that was rolled back: %v", err)
	}
	a.refused(former, "older") // it was not fenced
	a.store, a.vault = to, nil
	a.reopen()
	a.imports()
}
