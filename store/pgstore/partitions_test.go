//go:build unix

package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/pgstore"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/cardvault/cardvault/vaulttest/vaultsuite"
)

// some returns how many partitions a schema of the suites has. Most of the time goes into
// building them.
func some() int {
	if testing.Short() {
		return 4
	}
	return 16
}

// A naming store names the account of each record that it has put, as a vault does, unless
// two accounts were to have the same.
type naming struct {
	*pgstore.Store
	mu       sync.Mutex
	accounts map[store.Key]uuid.UUID // under mu
	shared   map[store.Key]bool      // under mu
}

func openNaming(t testing.TB, p *pgxpool.Pool, schema string) store.Store {
	return &naming{Store: open(t, p, schema), accounts: map[store.Key]uuid.UUID{}, shared: map[store.Key]bool{}}
}

func (s *naming) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(namingReads{tx, s}) })
}

func (s *naming) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(namingTx{namingReads{tx, s}, tx}) })
}

type namingReads struct {
	store.ReadTx
	s *naming
}

// at returns the transaction of a record's account, once it is known.
func (tx namingReads) at(kind store.Kind, id uuid.UUID) store.ReadTx {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	key := store.Key{Kind: kind, ID: id}
	if account, ok := tx.s.accounts[key]; ok && !tx.s.shared[key] {
		return tx.ReadTx.(store.Divided).In(account)
	}
	return tx.ReadTx
}

func (tx namingReads) In(account uuid.UUID) store.ReadTx {
	return tx.ReadTx.(store.Divided).In(account)
}

func (tx namingReads) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	return tx.at(kind, id).Get(kind, id)
}

type namingTx struct {
	namingReads
	tx store.Tx
}

func (tx namingTx) Put(r *store.Record) {
	tx.s.mu.Lock()
	key := store.Key{Kind: r.Kind, ID: r.ID}
	if account, known := tx.s.accounts[key]; known && account != r.Account {
		tx.s.shared[key] = true
	}
	tx.s.accounts[key] = r.Account
	shared := tx.s.shared[key]
	tx.s.mu.Unlock()

	if shared {
		tx.tx.Put(r)
		return
	}
	tx.tx.(store.Divided).In(r.Account).(store.Tx).Put(r)
}

func (tx namingTx) Delete(kind store.Kind, id uuid.UUID) { tx.at(kind, id).(store.Tx).Delete(kind, id) }

// A store with partitions keeps all promises, whether or not calls name the accounts.
func TestStoreInPartitions(t *testing.T) {
	if testing.Short() {
		return // TestPgBouncer has partitions
	}
	t.Run("named", func(t *testing.T) {
		storetest.Run(t, harnessOf(postgres.Get(t).URL("postgres"), openNaming, some))
	})
	t.Run("unnamed", func(t *testing.T) {
		storetest.Run(t, harnessOf(postgres.Get(t).URL("postgres"), openReplicas, some))
	})
}

func TestVaultInPartitions(t *testing.T) {
	if testing.Short() {
		return // TestVaultReplicas has partitions now and then
	}
	vaultsuite.Run(t, harnessOf(postgres.Get(t).URL("postgres"), openReplicas, some))
}

// In finds, puts and deletes records of the account alone.
func TestInAccount(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := divided(t, p, 4)
	s := open(t, p, name)
	one := record(1)
	one.Lookup = [][]byte{[]byte("hash")}
	if err := put(s, one, child(2, 1)); err != nil {
		t.Fatal(err)
	}

	var taken [2]map[uuid.UUID]bool // accounts in whose partition the record is, by View and Update
	look := func(tx store.ReadTx, of uuid.UUID, want bool) {
		t.Helper()
		in := tx.(store.Divided).In(of)
		_, err := in.Get(kind, id(1))
		if want && err != nil || !want && !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Get in %v = %v", of, err)
		}
		if foreign, is := errors.AsType[*store.ForeignError](err); is {
			i := 0
			if _, writes := tx.(store.Tx); writes {
				i = 1
			}
			if taken[i] == nil {
				taken[i] = map[uuid.UUID]bool{}
			}
			taken[i][of] = true
			if foreign.Account != account || !errors.Is(err, store.ErrDamaged) {
				t.Errorf("Get in %v = %v of account %v", of, err, foreign.Account)
			}
		}
		found, err := in.Lookup(kind, []byte("hash"), 9)
		if err != nil || (len(found) > 0) != want {
			t.Errorf("Lookup in %v = %d records, %v", of, len(found), err)
		}
	}
	for n := range 40 { // some in the partition of the account
		other := uuid.UUID{0: 9, 15: byte(n)}
		if err := s.View(t.Context(), func(tx store.ReadTx) error { look(tx, account, true); look(tx, other, false); return nil }); err != nil {
			t.Error(err)
		}
		for _, wide := range []bool{false, true} {
			if err := s.Update(t.Context(), func(tx store.Tx) error {
				if wide {
					_, _ = tx.Get(kind, id(1))
				}
				look(tx, account, true)
				look(tx, other, false)
				tx.(store.Divided).In(other).(store.Tx).Delete(kind, id(1))
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
	}
	if !has(t, s, 1) {
		t.Error("a record was deleted in another account")
	}
	if len(taken[0]) == 0 || len(taken[0]) > 30 || !maps.Equal(taken[0], taken[1]) {
		t.Errorf("the place is taken in %d accounts of 40 by View, in %d by Update", len(taken[0]), len(taken[1]))
	}

	// The place is free when the other account's record is deleted there, and not before. Its list
	// has a block that counts it.
	quoted := pgx.Identifier{name}.Sanitize()
	if _, err := p.Exec(t.Context(), fmt.Sprintf(`INSERT INTO %[1]s.counts (n, kind, level, class, child, scope, first, part)
		SELECT v.n, r.kind, 1, v.class, false, r.account, v.first::uuid, substr(c.relname, length('records_') + 1)::smallint
		FROM (SELECT tableoid, * FROM %[1]s.records WHERE class = 1) r JOIN pg_class c ON c.oid = r.tableoid,
			(VALUES (0, 0, '%[2]s'), (1, 1, '%[2]s'), (0, 0, '%[3]s')) AS v(n, class, first)`, quoted, uuid.Nil, uuid.Max)); err != nil {
		t.Fatal(err)
	}
	for neighbour := range taken[0] {
		into := func(tx store.Tx) store.Tx { return tx.(store.Divided).In(neighbour).(store.Tx) }
		theirs := record(1)
		theirs.Account = neighbour
		if err := s.Update(t.Context(), func(tx store.Tx) error { into(tx).Put(theirs); return nil }); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("Put in a taken place = %v", err)
		}
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			if _, err := into(tx).Get(kind, id(1)); !errors.As(err, new(*store.ForeignError)) {
				t.Errorf("Get in a taken place = %v", err)
			}
			tx.(store.Divided).In(account).(store.Tx).Delete(kind, id(1))
			into(tx).Put(theirs)
			return nil
		}); err != nil {
			t.Errorf("Put in a place that is given back = %v", err)
		}
		for of, want := range map[uuid.UUID]int64{account: 0, neighbour: 1} {
			if l := list(t, s, &store.Query{Kind: kind, Account: of, Limit: 1, Count: true}); l.Total != want || len(l.Records) != int(want) {
				t.Errorf("the list of account %v has %d", of, l.Total)
			}
		}
		if found := checked(t, s, 100); len(found) > 0 {
			t.Errorf("after a place was given back: %v", found)
		}
		if err := errors.Join(remove(s, theirs), put(s, one)); err != nil {
			t.Fatal(err)
		}
		break
	}

	// Without an account the record is found, and another account cannot have its id.
	stolen := record(1)
	stolen.Account = uuid.UUID{0: 9}
	if err := put(s, stolen); !errors.Is(err, store.ErrConflict) {
		t.Errorf("Put of an id that another account has = %v", err)
	}
	if err := remove(s, one); err != nil || has(t, s, 1) {
		t.Errorf("Delete = %v", err)
	}
}

// A schema keeps its number of partitions.
func TestPartitions(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	migrate := func(name string, n int) error {
		return pgstore.Migrate(t.Context(), p, &pgstore.Options{Schema: name, Partitions: n})
	}
	for _, n := range []int{-1, 3, 65, 128} {
		if err := migrate("never", n); err == nil {
			t.Errorf("Migrate with %d partitions succeeds", n)
		}
	}
	whole, four := schema(t, p), divided(t, p, 4)
	for _, test := range []struct {
		name string
		n    int
		want error
	}{{whole, 0, nil}, {whole, 1, nil}, {whole, 4, pgstore.ErrPartitions}, {four, 0, nil}, {four, 4, nil}, {four, 8, pgstore.ErrPartitions}} {
		if err := migrate(test.name, test.n); !errors.Is(err, test.want) {
			t.Errorf("Migrate with %d partitions = %v, want %v", test.n, err, test.want)
		}
	}
	if err := put(open(t, p, whole), record(1)); err != nil {
		t.Errorf("Update after a refused migration = %v", err)
	}
	for name, want := range map[string]bool{whole: false, four: true} {
		isDivided := func(tx store.ReadTx) error {
			if _, is := tx.(store.Divided); is != want {
				t.Errorf("a transaction of %s is divided: %t", name, is)
			}
			return nil
		}
		s := open(t, p, name)
		if err := errors.Join(s.View(t.Context(), isDivided), s.Update(t.Context(), func(tx store.Tx) error { return isDivided(tx) })); err != nil {
			t.Error(err)
		}
	}
}

// The statements of docs/postgresql.md copy a vault's rows to a schema with partitions.
func TestCopyToPartitions(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	from, to := schema(t, p), divided(t, p, 4)
	s := open(t, p, from)
	var rs []*store.Record
	for n := range 300 {
		r := record(n)
		r.Account = uuid.UUID{0: byte(n % 7)}
		r.Lookup = [][]byte{{byte(n % 3)}}
		rs = append(rs, r)
	}
	if err := put(s, rs...); err != nil {
		t.Fatal(err)
	}
	old, fresh := pgx.Identifier{from}.Sanitize(), pgx.Identifier{to}.Sanitize()
	if _, err := p.Exec(t.Context(), `BEGIN;
		INSERT INTO `+fresh+`.records SELECT * FROM `+old+`.records;
		INSERT INTO `+fresh+`.lookups (kind, hash, id, account)
			SELECT l.kind, l.hash, l.id, r.account FROM `+old+`.lookups l JOIN `+old+`.records r USING (kind, id);
		COMMIT`); err != nil {
		t.Fatal(err)
	}

	moved := open(t, p, to)
	for n := range 7 {
		if got := list(t, moved, &store.Query{Kind: kind, Account: uuid.UUID{0: byte(n)}, Count: true}).Total; got != int64((299-n)/7+1) {
			t.Errorf("account %d has %d records", n, got)
		}
	}
	if err := moved.View(t.Context(), func(tx store.ReadTx) error {
		found, err := tx.Lookup(kind, []byte{1}, 500)
		if err == nil && len(found) != 100 {
			t.Errorf("Lookup finds %d records", len(found))
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
