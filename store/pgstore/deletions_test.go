//go:build unix

package pgstore_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
)

// A deletion touches the same number of rows and index entries, however many records belong
// to the deleted one. Other Updates continue meanwhile.
func TestDeletions(t *testing.T) {
	server := postgres.Get(t)
	direct := pool(t, server.URL("postgres"))
	name := schema(t, direct)
	// Right before the commit of each group of writes, this counts the rows that the
	// session has touched.
	if _, err := direct.Exec(t.Context(), strings.ReplaceAll(`CREATE TABLE "s".cost (who text, n bigint);
		CREATE FUNCTION "s".count_cost() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO "s".cost SELECT current_setting('application_name'),
				(SELECT sum(pg_stat_get_xact_tuples_inserted(oid) + pg_stat_get_xact_tuples_updated(oid) + pg_stat_get_xact_tuples_deleted(oid)
					+ pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid))
				FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = TG_TABLE_SCHEMA) AND relkind IN ('r', 'i'));
			RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER cost AFTER INSERT ON "s".groups DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION "s".count_cost()`,
		`"s"`, pgx.Identifier{name}.Sanitize()), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	p := pool(t, server.URL("postgres")+"&application_name=deletes")
	s, other := open(t, p, name), open(t, direct, name)

	stop := make(chan bool)
	var beside sync.WaitGroup
	var slowest time.Duration
	n := 0
	beside.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			began := time.Now()
			if err := put(other, record(1<<40+n)); err != nil {
				t.Errorf("concurrent Update = %v", err)
				return
			}
			slowest = max(slowest, time.Since(began))
			n++
		}
	})
	cost := pgx.Identifier{name, "cost"}.Sanitize()
	storetest.Deletions(t, s, func(fn func(store.Tx) error) (rows int) {
		if _, err := direct.Exec(t.Context(), "DELETE FROM "+cost); err != nil {
			t.Fatal(err)
		}
		p.Reset() // its next session has touched nothing
		if err := s.Update(context.Background(), fn); err != nil {
			t.Fatal(err)
		}
		if err := direct.QueryRow(t.Context(), "SELECT coalesce(sum(n), 0) FROM "+cost+" WHERE who = 'deletes'").Scan(&rows); err != nil {
			t.Fatal(err)
		}
		return rows
	})
	close(stop)
	beside.Wait()
	t.Logf("%d concurrent Updates, the slowest took %v", n, slowest)
	if n == 0 {
		t.Error("no concurrent Update ran: the test proves nothing")
	}
}
