//go:build unix

package pgstore_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/cardvault/cardvault/vaulttest/vaultsuite"
)

func TestSums(t *testing.T) {
	for _, partitions := range []int{0, 4} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			h := storetest.Harness{Open: func(t testing.TB) store.Store {
				p := pool(t, postgres.Get(t).URL("postgres"))
				return open(t, p, divided(t, p, partitions))
			}}
			storetest.Sums(t, h)
			vaultsuite.Sums(t, h)
		})
	}
}

// TestSumsOfReplicas: two processes keep sums of the records that both write, while the server
// drops their connections. A row that is lost or put back by SQL is found then, and named.
func TestSumsOfReplicas(t *testing.T) {
	for _, partitions := range []int{0, 4} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) { sumsOfReplicas(t, partitions) })
	}
}

const kindToken = 5

var replicasOfSums = []string{"sums-1", "sums-2"}

func sumsOfReplicas(t *testing.T, partitions int) {
	ctx, url := t.Context(), postgres.Get(t).URL("postgres")
	direct := pool(t, url)
	name := divided(t, direct, partitions)
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}

	var vaults []*cardvault.Vault
	for _, process := range replicasOfSums {
		p := pool(t, url+"&application_name="+process)
		v, err := cardvault.New(ctx, open(t, p, name), keys, &cardvault.Options{Mode: cardvault.Sandbox, Replicas: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		vaults = append(vaults, v)
	}
	if err := vaults[0].BeginSums(ctx, nil); err != nil {
		t.Fatal(err)
	}

	found := func(when string, want ...int64) {
		t.Helper()
		for i, v := range vaults {
			report, err := v.Verify(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			var surplus []int64
			for _, p := range report.Problems {
				for _, f := range p.Findings {
					if p.Kind == cardvault.ProblemSum && f.Kind == "token" {
						surplus = append(surplus, f.Surplus)
					} else if len(want) == 0 {
						t.Errorf("%s, vault %d finds %s: %+v", when, i, p.Kind, f)
					}
				}
			}
			if !report.Sums || !slices.Equal(surplus, want) {
				t.Errorf("%s, vault %d finds %v, want %v, in %+v", when, i, surplus, want, report)
			}
		}
	}
	token := busy(t, vaults, direct)
	found("after writes")

	in := func(sql ...string) {
		t.Helper()
		for _, sql := range sql {
			sql = strings.ReplaceAll(sql, "s.", pgx.Identifier{name}.Sanitize()+".")
			if _, err := direct.Exec(ctx, strings.ReplaceAll(sql, "#", fmt.Sprint(kindToken))); err != nil {
				t.Fatal(err)
			}
		}
	}
	back := []string{
		"DELETE FROM s.records WHERE kind = #", "INSERT INTO s.records SELECT * FROM s.former",
		"DELETE FROM s.lookups WHERE kind = #", "INSERT INTO s.lookups SELECT * FROM s.found",
	}
	in("CREATE TABLE s.former AS SELECT * FROM s.records WHERE kind = #", "CREATE TABLE s.found AS SELECT * FROM s.lookups WHERE kind = #")
	key := "another"
	if _, err := vaults[1].Update(ctx, token, cardvault.TokenUpdate{BusinessKey: &key}); err != nil {
		t.Fatal(err)
	}
	found("after one more write")

	in(back...)
	found("a token is put back as it was", 0)
	in("DELETE FROM s.former WHERE id = (SELECT id FROM s.former ORDER BY id LIMIT 1)", "DELETE FROM s.found f WHERE NOT EXISTS (SELECT FROM s.former r WHERE r.id = f.id)")
	in(back...)
	in("DELETE FROM s.counts WHERE kind = #")
	found("and another one is lost", -1)
}

// busy imports, changes and deletes tokens in all vaults, and drops a connection after some calls each.
// It returns a token that is there.
func busy(t *testing.T, vaults []*cardvault.Vault, direct *pgxpool.Pool) (id uuid.UUID) {
	t.Helper()
	ctx, c := t.Context(), cardvault.Card{PAN: card.NewPAN([]byte("4111110000000005")), Expiry: card.Expiry{Month: 12, Year: 2090}}
	calls := make(chan error)
	var all sync.WaitGroup
	var last atomic.Pointer[cardvault.Token]

	for _, v := range vaults {
		for range 4 {
			all.Go(func() {
				for n := range 30 {
					token, err := v.Import(ctx, c, nil)
					if err == nil && n%3 == 0 {
						err = v.Delete(ctx, token.ID)
					} else if err == nil {
						key := uuid.NewString()
						token, err = v.Update(ctx, token.ID, cardvault.TokenUpdate{BusinessKey: &key})
						last.Store(cmp.Or(token, last.Load()))
					}
					calls <- err // set if a connection was dropped
				}
			})
		}
	}
	go func() {
		all.Wait()
		close(calls)
	}()

	made, failed, drops := 0, 0, 0
	for err := range calls {
		if made++; err != nil {
			failed++
		}
		if made%16 != 0 {
			continue
		}
		tag, err := direct.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ANY ($1)
			ORDER BY random() LIMIT 1`, replicasOfSums)
		if err != nil {
			t.Error(err)
		}
		drops += int(tag.RowsAffected())
	}
	t.Logf("%d of %d calls failed, %d connections were dropped", failed, made, drops)
	if failed == made || drops == 0 || last.Load() == nil {
		t.Fatal("nothing was written, or no connection was dropped")
	}
	return last.Load().ID
}
