package cardvault_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

const kindMeta store.Kind = 1

// An edited store keeps the records of kindMeta apart. A test can change them in ways that a
// store would refuse, such as setting another version.
type edited struct {
	store.Store
	mu   sync.Mutex
	rows []*store.Record
}

// recordsOf returns all records of a small store.
func recordsOf(t *testing.T, s store.Store) (all []*store.Record) {
	t.Helper()
	noErr(t, s.View(t.Context(), func(tx store.ReadTx) error {
		all = nil
		for kind := range 256 {
			found, err := tx.Scan(store.Kind(kind), uuid.Nil, 10_000)
			if err != nil {
				return err
			}
			all = append(all, found...)
		}
		return nil
	}))
	return all
}

// editedCopy returns a store with the same records as s.
func editedCopy(t *testing.T, s store.Store) *edited {
	t.Helper()
	e := &edited{Store: memstore.New()}
	all := recordsOf(t, s)
	noErr(t, e.Store.Update(t.Context(), func(tx store.Tx) error {
		for _, r := range all {
			if r.Kind == kindMeta {
				e.rows = append(e.rows, r)
			} else {
				r.Version = 1
				tx.Put(r)
			}
		}
		return nil
	}))
	return e
}

func (e *edited) at(kind store.Kind, id uuid.UUID) int {
	return slices.IndexFunc(e.rows, func(r *store.Record) bool { return r.Kind == kind && r.ID == id })
}

func (e *edited) View(ctx context.Context, fn func(store.ReadTx) error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.Store.View(ctx, func(tx store.ReadTx) error { return fn(editedTx{tx, e}) })
}

func (e *edited) Update(ctx context.Context, fn func(store.Tx) error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var after []*store.Record
	err := e.Store.Update(ctx, func(tx store.Tx) error {
		after = slices.Clone(e.rows)
		w := &editedWrites{editedTx{tx, e}, tx, &after, false}
		if err := fn(w); err != nil {
			return err
		}
		if w.conflict {
			return store.ErrConflict
		}
		return nil
	})
	if err == nil {
		e.rows = after
	}
	return err
}

type editedTx struct {
	store.ReadTx
	e *edited
}

func (tx editedTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	if kind != kindMeta {
		return tx.ReadTx.Get(kind, id)
	}
	if i := tx.e.at(kind, id); i >= 0 {
		r := *tx.e.rows[i]
		return &r, nil
	}
	return nil, store.ErrNotFound
}

func (tx editedTx) Scan(kind store.Kind, after uuid.UUID, limit int) (found []*store.Record, err error) {
	if kind != kindMeta {
		return tx.ReadTx.Scan(kind, after, limit)
	}
	for _, r := range tx.e.rows {
		if r.Kind == kind && bytes.Compare(r.ID[:], after[:]) > 0 {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *store.Record) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return found[:min(limit, len(found))], nil
}

func (tx editedTx) Empty() (bool, error) {
	empty, err := tx.ReadTx.Empty()
	return empty && len(tx.e.rows) == 0, err
}

type editedWrites struct {
	editedTx
	store.Tx
	after    *[]*store.Record
	conflict bool
}

func (tx *editedWrites) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	return tx.editedTx.Get(kind, id)
}
func (tx *editedWrites) Scan(kind store.Kind, after uuid.UUID, limit int) ([]*store.Record, error) {
	return tx.editedTx.Scan(kind, after, limit)
}
func (tx *editedWrites) Empty() (bool, error)                     { return tx.editedTx.Empty() }
func (tx *editedWrites) List(q *store.Query) (*store.List, error) { return tx.Tx.List(q) }
func (tx *editedWrites) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	return tx.Tx.Lookup(kind, hash, limit)
}
func (tx *editedWrites) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	return tx.Tx.Due(kind, shards, until, limit)
}
func (tx *editedWrites) Next(kind store.Kind, shards store.Shards) (time.Time, error) {
	return tx.Tx.Next(kind, shards)
}
func (tx *editedWrites) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	return tx.Tx.Children(parent, limit)
}

func (tx *editedWrites) Put(r *store.Record) {
	if r.Kind != kindMeta {
		tx.Tx.Put(r)
		return
	}
	i, was := tx.e.at(r.Kind, r.ID), uint64(0)
	if i >= 0 {
		was = tx.e.rows[i].Version
	}
	if tx.conflict = tx.conflict || r.Version != was+1; tx.conflict {
		return
	}
	c := *r
	if i >= 0 {
		(*tx.after)[i] = &c
	} else {
		*tx.after = append(*tx.after, &c)
	}
}

// rotated returns a store with a vault that was rotated twice, and the keyring records after
// each rotation. It also returns the vault's key and a token.
func rotated(t *testing.T) (s *memstore.Store, keyrings []*store.Record, kms *fakeKMS, token uuid.UUID) {
	t.Helper()
	s, kms = memstore.New(), newFakeKMS(t, "arn:key/1")
	v, err := cardvault.New(t.Context(), s, cardvault.WrappedBy(kms), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for i := range 3 {
		if i > 0 {
			if _, err := v.RotateKeys(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		token = imported(t, v).ID
		keyrings = append(keyrings, keyringOf(t, s))
	}
	return s, keyrings, kms, token
}

var keyringID = uuid.UUID{15: 1}

func keyringOf(t *testing.T, s store.Store) (r *store.Record) {
	t.Helper()
	err := s.View(t.Context(), func(tx store.ReadTx) (err error) {
		r, err = tx.Get(kindMeta, keyringID)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestKeyringMutated: however the records of keyring and counts are edited, a vault either
// opens unchanged or reports the damage. It makes only a few calls of the key provider.
func TestKeyringMutated(t *testing.T) {
	s, keyrings, kms, token := rotated(t)
	n := 2000
	if testing.Short() {
		n = 200
	}
	opened, refused := 0, 0
	for seed := range n {
		r := rand.New(rand.NewPCG(uint64(seed), 16))
		e := editedCopy(t, s)
		what := ""
		for range 1 + r.IntN(2) {
			what += mutate(r, e, keyrings) + "; "
		}
		func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			calls := kms.wraps + kms.opens
			defer func() {
				if ctx.Err() != nil {
					t.Errorf("seed %d: %sNew hangs", seed, what)
				}
				if calls = kms.wraps + kms.opens - calls; calls > 10 {
					t.Errorf("seed %d: %s%d calls of the key provider", seed, what, calls)
				}
			}()
			v, err := cardvault.New(ctx, e, cardvault.WrappedBy(kms), nil)
			if err != nil {
				if !slices.ContainsFunc([]error{cardvault.ErrDamaged, cardvault.ErrWrongKey, cardvault.ErrWrongMode, cardvault.ErrFormat}, func(e error) bool { return errors.Is(err, e) }) {
					t.Errorf("seed %d: %s%v", seed, what, err)
				}
				refused++
				return
			}
			opened++
			defer v.Close()
			// If the count of the last term is gone too, its keyring is not missed until
			// something sealed under it is read.
			if _, err := v.Get(ctx, token); err != nil && !errors.Is(err, cardvault.ErrDamaged) {
				t.Errorf("seed %d: %sthe vault opens, and the token is lost: %v", seed, what, err)
			}
			if _, err := v.Import(ctx, visa, nil); err != nil && !errors.Is(err, cardvault.ErrDamaged) {
				t.Errorf("seed %d: %simporting: %v", seed, what, err)
			}
			if _, err := v.RotateKeys(ctx, nil); err != nil && !errors.Is(err, cardvault.ErrDamaged) && !errors.Is(err, cardvault.ErrFormat) {
				t.Errorf("seed %d: %srotating: %v", seed, what, err)
			}
		}()
	}
	if opened == 0 || refused < n/4 {
		t.Errorf("%d of %d opened, %d were refused", opened, n, refused)
	}
	t.Logf("%d mutations: %d opened, %d refused", n, opened, refused)
}

// mutate edits the rows of e, and returns a description.
func mutate(r *rand.Rand, e *edited, keyrings []*store.Record) string {
	if len(e.rows) == 0 {
		return "nothing left"
	}
	i := r.IntN(len(e.rows))
	row := *e.rows[i]
	row.Shown = bytes.Clone(row.Shown)
	defer func() {
		if i < len(e.rows) {
			e.rows[i] = &row
		}
		slices.SortStableFunc(e.rows, func(a, b *store.Record) int { return cmp.Compare(a.Kind, b.Kind) })
	}()
	remove := func(which func(*store.Record) bool) {
		e.rows = slices.DeleteFunc(e.rows, which)
		i = len(e.rows)
	}
	switch r.IntN(12) {
	case 0:
		bit := r.IntN(128)
		row.ID[bit/8] ^= 1 << (bit % 8)
		return fmt.Sprintf("bit %d of the key of row %d", bit, i)
	case 1, 2:
		bit := r.IntN(8 * len(row.Shown))
		row.Shown[bit/8] ^= 1 << (bit % 8)
		return fmt.Sprintf("bit %d of row %d", bit, i)
	case 3:
		row.Shown = row.Shown[:r.IntN(len(row.Shown))]
		return fmt.Sprintf("row %d is cut to %d bytes", i, len(row.Shown))
	case 4:
		j := r.IntN(len(e.rows))
		other := *e.rows[j]
		row.Shown, other.Shown = other.Shown, row.Shown
		e.rows[j] = &other
		return fmt.Sprintf("rows %d and %d are swapped", i, j)
	case 5:
		row.Version = []uint64{0, 1, row.Version - 1, row.Version + 1, math.MaxUint64, r.Uint64()}[r.IntN(6)]
		return fmt.Sprintf("version of row %d is %d", i, row.Version)
	case 6:
		id := row.ID
		remove(func(o *store.Record) bool { return o.ID == id })
		return fmt.Sprintf("row %v is gone", id)
	case 7:
		remove(func(*store.Record) bool { return true })
		return "all rows are gone"
	case 8:
		former := *keyrings[r.IntN(len(keyrings))]
		if j := e.at(kindMeta, keyringID); j >= 0 {
			i = j
			row = former
		} else {
			e.rows = append(e.rows, &former)
		}
		return fmt.Sprintf("the keyring of version %d is put back", former.Version)
	case 9:
		c := row
		c.ID[15-r.IntN(4)] += byte(1 + r.IntN(255))
		e.rows = append(e.rows, &c)
		return fmt.Sprintf("row %d is there again as %v", i, c.ID)
	case 10:
		row.Account, row.Parent, row.Class, row.Due = uuid.UUID{9: byte(r.Uint32())}, uuid.UUID{1}, uint8(r.Uint32()), time.UnixMicro(int64(r.Uint32()))
		return fmt.Sprintf("columns of row %d", i)
	default:
		i = len(e.rows) - 1
		row = *e.rows[i]
		row.Kind = store.Kind(2 + r.IntN(60))
		return fmt.Sprintf("kind of row %d is %d", i, row.Kind)
	}
}

// TestKeyringRollback: a keyring from before a rotation does not make the vault seal under a
// rotated key.
func TestKeyringRollback(t *testing.T) {
	s, keyrings, kms, token := rotated(t)
	v, err := cardvault.New(t.Context(), s, cardvault.WrappedBy(kms), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for _, former := range keyrings[:2] {
		e := editedCopy(t, s)
		e.rows[e.at(kindMeta, keyringID)] = former
		calls := kms.wraps + kms.opens
		if _, err := cardvault.New(t.Context(), e, cardvault.WrappedBy(kms), nil); !errors.Is(err, cardvault.ErrDamaged) {
			t.Errorf("with the keyring of version %d: %v", former.Version, err)
		}
		if calls = kms.wraps + kms.opens - calls; calls > 2 {
			t.Errorf("%d calls of the key provider", calls)
		}
	}

	// An open vault notices it on rotation, and repairs it.
	for _, put := range map[string]func(tx store.Tx){
		"former": func(tx store.Tx) {
			r := *keyrings[0]
			r.Version = keyringOf(t, s).Version + 1
			tx.Put(&r)
		},
		"none": func(tx store.Tx) { tx.Delete(kindMeta, keyringID) },
	} {
		if err := s.Update(t.Context(), func(tx store.Tx) error { put(tx); return nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := cardvault.New(t.Context(), s, cardvault.WrappedBy(kms), nil); !errors.Is(err, cardvault.ErrDamaged) {
			t.Errorf("another vault: %v", err)
		}
		if _, err := v.RotateKeys(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		again, err := cardvault.New(t.Context(), s, cardvault.WrappedBy(kms), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := again.Get(t.Context(), token); err != nil {
			t.Error(err)
		}
		again.Close()
	}
}

// TestKeyringGone: no new vault is made over the data of an existing one.
func TestKeyringGone(t *testing.T) {
	dir, keys, ids := filled(t, 1)
	path := filepath.Join(dir, "cardvault.db")
	for _, gone := range [][]uuid.UUID{{keyringID}, {keyringID, {0: 1, 15: 1}}} {
		s, err := boltstore.Open(t.Context(), path, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Update(t.Context(), func(tx store.Tx) error {
			for _, id := range gone {
				tx.Delete(kindMeta, id)
			}
			return nil
		})
		if err = errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		if v, err := cardvault.Open(t.Context(), dir, keys, nil); !errors.Is(err, cardvault.ErrDamaged) {
			_, lost := v.Get(t.Context(), ids[0])
			t.Errorf("%d rows are missing: opened with %v, the token: %v", len(gone), err, lost)
		}
	}
}

// TestCountLost: without the count of its seals a vault can read, and its errors say what to
// do. A rotation starts a new count.
func TestCountLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, keys := memstore.New(), newKey(t)
		first := vaultWith(t, s, keys)
		token := imported(t, first)
		first.Close()
		if err := s.Update(t.Context(), func(tx store.Tx) error { tx.Delete(kindMeta, uuid.UUID{0: 1, 15: 1}); return nil }); err != nil {
			t.Fatal(err)
		}
		v := vaultWith(t, s, keys)
		if _, err := v.Get(t.Context(), token.ID); err != nil {
			t.Error(err)
		}
		if _, err := v.Import(t.Context(), visa, nil); !errors.Is(err, cardvault.ErrDamaged) {
			t.Errorf("importing: %v", err)
		}
		if _, err := v.RotateKeys(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second) // a failed attempt is not repeated sooner
		imported(t, v)
	})
}

func vaultWith(t *testing.T, s store.Store, keys *cardvault.Keyring) *cardvault.Vault {
	t.Helper()
	v, err := cardvault.New(t.Context(), s, keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

// TestVaultMadeTwiceAtOnce: when several processes find a store empty, one makes the vault
// and all open it.
func TestVaultMadeTwiceAtOnce(t *testing.T) {
	for range 20 {
		s, keys := memstore.New(), newKey(t)
		accounts := make([]uuid.UUID, 8)
		var group sync.WaitGroup
		for i := range accounts {
			group.Go(func() {
				v, err := cardvault.New(t.Context(), s, keys, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer v.Close()
				a, err := v.Account(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				accounts[i] = a.ID
			})
		}
		group.Wait()
		if len(slices.Compact(accounts)) != 1 {
			t.Fatalf("different vaults: %v", accounts)
		}
	}
}

// TestKeyringOfAnotherVault: a vault does not open with the keyring of another vault, even
// under the same key-encryption key. It would seal under that keyring.
func TestKeyringOfAnotherVault(t *testing.T) {
	kms := newFakeKMS(t, "arn:key/1")
	made := func() store.Store {
		s := memstore.New()
		imported(t, vaultWith(t, s, cardvault.WrappedBy(kms)))
		return s
	}
	e, other := editedCopy(t, made()), editedCopy(t, made())
	e.rows[e.at(kindMeta, keyringID)] = other.rows[other.at(kindMeta, keyringID)]
	if _, err := cardvault.New(t.Context(), e, cardvault.WrappedBy(kms), nil); !errors.Is(err, cardvault.ErrDamaged) {
		t.Errorf("with the keyring of another vault: %v", err)
	}
	e.rows = other.rows
	if _, err := cardvault.New(t.Context(), e, cardvault.WrappedBy(kms), nil); !errors.Is(err, cardvault.ErrDamaged) {
		t.Errorf("with the keyring and count of another vault: %v", err)
	}
}

// TestKeyringNeverUnwrapped: a forged later keyring that cannot be unwrapped does not make
// every read call the key provider.
func TestKeyringNeverUnwrapped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, keyrings, kms, token := rotated(t)
		e := editedCopy(t, s)
		e.rows = slices.DeleteFunc(e.rows, func(r *store.Record) bool { return r.ID[0] == 1 && r.ID[15] > 1 || r.ID[0] == 2 })
		e.rows[e.at(kindMeta, keyringID)] = keyrings[0]
		v := vaultWith(t, e, cardvault.WrappedBy(kms))
		forged := *keyrings[2]
		forged.Shown = bytes.Clone(forged.Shown)
		forged.Shown[len(forged.Shown)-1] ^= 1
		e.rows[e.at(kindMeta, keyringID)] = &forged
		calls := kms.opens
		for range 100 {
			if _, err := v.Get(t.Context(), token); !errors.Is(err, cardvault.ErrDamaged) {
				t.Fatal(err)
			}
		}
		if calls = kms.opens - calls; calls > 1 {
			t.Errorf("%d calls of the key provider", calls)
		}
		e.rows[e.at(kindMeta, keyringID)] = keyrings[2]
		<-time.After(time.Second)
		if _, err := v.Get(t.Context(), token); err != nil {
			t.Errorf("after a second, with the keyring restored: %v", err)
		}
	})
}

// A restless store, once it is on, changes the version of the keyring after every read.
type restless struct {
	*edited
	on bool
}

func (s *restless) View(ctx context.Context, fn func(store.ReadTx) error) error {
	err := s.edited.View(ctx, fn)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.at(kindMeta, keyringID); s.on && i >= 0 {
		r := *s.rows[i]
		r.Version++
		s.rows[i] = &r
	}
	return err
}

// TestKeyringRestless: repeated writes to the keyring do not keep a rotation going, and do
// not cause calls of the key provider.
func TestKeyringRestless(t *testing.T) {
	s, _, kms, _ := rotated(t)
	e := &restless{edited: editedCopy(t, s)}
	v := vaultWith(t, e, cardvault.WrappedBy(kms))
	e.on = true
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	calls := kms.wraps + kms.opens
	if _, err := v.RotateKeys(ctx, nil); !errors.Is(err, cardvault.ErrDamaged) {
		t.Errorf("rotating: %v", err)
	}
	if calls = kms.wraps + kms.opens - calls; calls > 10 {
		t.Errorf("%d calls of the key provider", calls)
	}
}
