//go:build unix

package pgstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/pgstore"
)

// A deed is a tap's response to a request, instead of passing it on.
type deed struct {
	drop    bool            // closes the connection instead
	freeze  <-chan struct{} // blocks until this is closed, as if the machine had died
	instead string
}

// tap passes on connections to a server, and asks on about each request. A deed that neither
// drops nor freezes sends instead in place of the answer. tap returns its address.
func tap(t testing.TB, server string, on func(request []byte) *deed) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var waits sync.WaitGroup
	serve := func(client net.Conn) {
		defer client.Close()
		to, err := net.Dial("tcp", server)
		if err != nil {
			return
		}
		defer to.Close()
		var does atomic.Pointer[deed]
		waits.Go(func() {
			for b := make([]byte, 1<<16); ; {
				n, err := to.Read(b)
				d := does.Load()
				if d == nil && err == nil {
					_, err = client.Write(b[:n])
				} else if d == nil || d.freeze == nil {
					if d != nil {
						_, _ = client.Write([]byte(d.instead))
					}
					_ = client.Close()
				}
				if err != nil {
					return
				}
			}
		})
		for b := make([]byte, 1<<16); ; {
			n, err := client.Read(b)
			if err != nil {
				return
			}
			if does.Load() == nil {
				does.Store(on(b[:n]))
			}
			switch d := does.Load(); {
			case d == nil:
			case d.freeze != nil:
				<-d.freeze
				return
			case d.drop:
				return
			}
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
	}
	waits.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			waits.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		waits.Wait()
	})
	return l.Addr().String()
}

// Once armed, a trigger acts on the next call of a function.
type trigger struct {
	calls  *regexp.Regexp
	does   *deed
	always bool // stays armed
	armed  atomic.Bool
	did    atomic.Int64
}

var (
	reads   = regexp.MustCompile(`AS k\(kind, id\)`)
	commits = regexp.MustCompile(`\.(add|apply)\(`)
	settles = regexp.MustCompile(`\.settle\(`)
)

func (g *trigger) on(request []byte) *deed {
	if g.calls.Match(request) && g.armed.CompareAndSwap(true, g.always) {
		g.did.Add(1)
		return g.does
	}
	return nil
}

// tapped returns connections to a server on which triggers act. Statements are sent without
// preparation.
func tapped(t testing.TB, server *realtest.Postgres, triggers ...*trigger) *pgxpool.Pool {
	t.Helper()
	address := tap(t, server.Addr(), func(request []byte) *deed {
		for _, g := range triggers {
			if d := g.on(request); d != nil {
				return d
			}
		}
		return nil
	})
	return pool(t, through(t, server.URL("postgres"), address)+"&default_query_exec_mode=exec")
}

// check puts records with the numbers from n on, and checks that they are there.
func check(t testing.TB, s store.Store, n, records int) {
	t.Helper()
	var rs []*store.Record
	for i := range records {
		rs = append(rs, record(n+i))
	}
	if err := put(s, rs...); err != nil {
		t.Errorf("Update = %v", err)
	}
	if !has(t, s, n+records-1) {
		t.Error("an acknowledged record is missing")
	}
}

// A silent connection fails no Update: the outcome is found on another connection. A change
// by another store meanwhile does not fail it either.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	for what, when := range map[string]*regexp.Regexp{"read": reads, "commit": commits} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			end := make(chan struct{})
			defer close(end)
			dies := &trigger{calls: when, does: &deed{freeze: end}}
			server := postgres.Get(t)
			p, direct := tapped(t, server, dies), pool(t, server.URL("postgres"))
			name := schema(t, direct)
			s, other := open(t, p, name), open(t, direct, name)
			check(t, other, 0, 1)
			dies.armed.Store(true)
			runs := 0
			err := s.Update(t.Context(), func(tx store.Tx) error {
				r, err := tx.Get(kind, id(0))
				if err != nil {
					return err
				}
				if runs++; runs == 2 {
					changed := *r
					changed.Version++
					if err := put(other, &changed); err != nil {
						return err
					}
				}
				r.Version++
				tx.Put(r)
				return nil
			})
			if err != nil {
				t.Errorf("Update = %v after %d runs", err, runs)
			}
			if dies.armed.Load() || runs < 2 && what == "commit" {
				t.Errorf("no connection fell silent in %d runs: the test proves nothing", runs)
			}
		})
	}
}

// Commits that never arrive are not retried for ever.
func TestEachCommitLost(t *testing.T) {
	lost := &trigger{calls: commits, does: &deed{drop: true}, always: true}
	p := tapped(t, postgres.Get(t), lost)
	s := open(t, p, schema(t, p))
	lost.armed.Store(true)
	if err := put(s, record(1)); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Update = %v, want ErrUnavailable", err)
	}
	if n := lost.did.Load(); n > 20 {
		t.Errorf("%d attempts", n)
	}
	lost.armed.Store(false)
	check(t, s, 10, 1)
}

// If a function leaves its goroutine, that is its outcome only if its reads were answered.
func TestExitAfterUnwind(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	s, other := open(t, p, name), open(t, p, name)
	check(t, other, 0, 1)
	runs, answered := 0, false
	done := make(chan bool)
	go func() { // the function may end its goroutine
		defer close(done)
		_ = together(s, func(tx store.Tx) error {
			runs++
			var r *store.Record
			func() {
				defer func() { _ = recover() }()
				r, _ = tx.Get(kind, id(0))
			}()
			answered = r != nil
			if !answered {
				runtime.Goexit()
			}
			return nil
		}, func(tx store.Tx) error { tx.Put(record(5)); return nil }, true)
	}()
	<-done
	if runs < 2 || !answered {
		t.Errorf("%d runs, the last one had an answer: %t", runs, answered)
	}
	check(t, s, 100, 1)
}

// A group that never reached the server is not considered committed, even if the answer
// about its outcome is lost too.
func TestSettleLost(t *testing.T) {
	lost, asked := &trigger{calls: commits, does: &deed{drop: true}}, &trigger{calls: settles, does: &deed{}}
	p := tapped(t, postgres.Get(t), lost, asked)
	s := open(t, p, schema(t, p))
	for _, records := range []int{1, 2} {
		lost.armed.Store(true)
		asked.armed.Store(true)
		check(t, s, 10*records, records)
		if lost.armed.Load() || asked.armed.Load() {
			t.Error("no answer was lost: the test proves nothing")
		}
	}
}

// An error about a lost server after the commit does not mean that the commit failed.
func TestServerLostAfterCommit(t *testing.T) {
	for name, text := range map[string]string{
		"PgBouncer":  "SFATAL\x00C08P01\x00Mserver conn crashed?\x00\x00",
		"pooler":     "SERROR\x00C58000\x00Mserver closed the connection\x00\x00",
		"proxy":      "SERROR\x00VERROR\x00C08006\x00Mconnection failure\x00\x00",
		"compatible": "SERROR\x00VERROR\x00C40003\x00Mstatement completion unknown\x00\x00",
		"PostgreSQL": "SFATAL\x00VFATAL\x00C57P01\x00Mterminating connection\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			message := binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(text)))
			loses := &trigger{calls: commits, does: &deed{instead: string(message) + text}}
			p := tapped(t, postgres.Get(t), loses)
			s := open(t, p, schema(t, p))
			for _, records := range []int{1, 2} {
				loses.armed.Store(true)
				check(t, s, 10*records, records)
				if loses.armed.Load() {
					t.Error("no answer was lost: the test proves nothing")
				}
			}
		})
	}
}

// A store goes on writing after the rollback of a group with locked rows, and after its
// rows of groups were deleted.
func TestGroupsGone(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	other, s := open(t, p, name), open(t, p, name)
	check(t, other, 0, 1)
	runs := 0
	err := s.Update(t.Context(), func(tx store.Tx) error {
		if _, err := tx.Due(kind, store.AllShards, time.Now(), 1); err != nil {
			return err
		}
		r, err := tx.Get(kind, id(0))
		if err != nil {
			return err
		}
		if runs++; runs == 1 {
			changed := *r
			changed.Version++
			if err := put(other, &changed); err != nil {
				return err
			}
		}
		r.Version++
		tx.Put(r)
		return nil
	})
	if err != nil || runs < 2 {
		t.Errorf("Update = %v after %d runs", err, runs)
	}
	check(t, s, 1, 1)
	if _, err := p.Exec(t.Context(), "DELETE FROM "+pgx.Identifier{name, "groups"}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	check(t, s, 2, 1)
}

// A call that puts a record as new does not overwrite it after another call of the group
// has found it.
func TestPutOfFound(t *testing.T) {
	for how, find := range map[string]func(store.Tx) error{
		"Get":    func(tx store.Tx) error { _, err := tx.Get(kind, id(1)); return err },
		"Lookup": func(tx store.Tx) error { _, err := tx.Lookup(kind, []byte("hash"), 1); return err },
		"Delete": func(tx store.Tx) error { tx.Delete(kind, id(3)); return nil }, // finds its child
	} {
		for _, putFirst := range []bool{true, false} {
			t.Run(how, func(t *testing.T) {
				p := pool(t, postgres.Get(t).URL("postgres"))
				name := schema(t, p)
				other, s := open(t, p, name), open(t, p, name)
				first := record(1)
				first.Lookup, first.Parent = [][]byte{[]byte("hash")}, id(3)
				if err := put(other, first, record(3)); err != nil {
					t.Fatal(err)
				}
				second := record(1)
				second.Secret, second.Parent = []byte("second"), id(3)
				err := together(s,
					func(tx store.Tx) error { tx.Put(second); return nil },
					func(tx store.Tx) error { tx.Put(record(2)); return find(tx) }, putFirst)
				switch {
				case how == "Delete" && !putFirst && err == nil: // the record is deleted by now
				case !errors.Is(err, store.ErrConflict):
					t.Errorf("Put of an existing record = %v, want ErrConflict", err)
				}
			})
		}
	}
}

// A queuing context calls queued once a call with it waits in the queue of a store: only then
// is it asked for its end.
type queuing struct {
	context.Context
	queued func()
}

func (c queuing) Done() <-chan struct{} {
	c.queued()
	return c.Context.Done()
}

// together runs two functions in one group, and returns the outcome of the first.
func together(s store.Store, a, b func(store.Tx) error, order bool) error {
	begun, release := make(chan bool), make(chan bool)
	var group sync.WaitGroup
	group.Go(func() {
		once := sync.OnceFunc(func() { close(begun); <-release })
		_ = s.Update(context.Background(), func(store.Tx) error { once(); return nil })
	})
	<-begun
	fns := []func(store.Tx) error{a, b}
	if !order {
		fns[0], fns[1] = b, a
	}
	errs := make([]error, 2)
	for i, fn := range fns {
		queued := make(chan bool)
		ctx := queuing{context.Background(), sync.OnceFunc(func() { close(queued) })}
		group.Go(func() { errs[i] = s.Update(ctx, fn) })
		<-queued
	}
	close(release)
	group.Wait()
	if !order {
		return errs[1]
	}
	return errs[0]
}

// A store does not write by a row that it remembers, if another store has changed the row
// since.
func TestRemembered(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	other, s := open(t, p, name), open(t, p, name)
	check(t, other, 0, 1)
	for n := range 3 {
		for m := range 1 + n { // one or more rows at once
			var seen uint64
			err := s.Update(t.Context(), func(tx store.Tx) error {
				r, err := tx.Get(kind, id(0))
				if err != nil {
					return err
				}
				seen = r.Version
				for i := range 1 + m {
					tx.Put(record(1 + 100*n + 10*m + i))
				}
				return nil
			})
			if err != nil || seen != uint64(1+n) {
				t.Errorf("Update = %v by version %d, want %d", err, seen, 1+n)
			}
		}
		r := record(0)
		r.Version = uint64(2 + n)
		if err := put(other, r); err != nil {
			t.Fatal(err)
		}
	}
}

// When a machine dies in the middle of a transaction, its locks are free within seconds.
func TestMachineDies(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	dies := &trigger{calls: commits, does: &deed{freeze: end}}
	server := postgres.Get(t)
	direct := pool(t, server.URL("postgres"))
	name := schema(t, direct)
	s, dead := open(t, direct, name), open(t, tapped(t, server, dies), name)
	check(t, dead, 0, 1)
	dies.armed.Store(true)
	began := time.Now() // the locks are taken later, and the test waits for them even if it comes late
	var group sync.WaitGroup
	defer group.Wait()
	defer close(end)
	group.Go(func() {
		_ = dead.Update(context.Background(), func(tx store.Tx) error { // it asks for the locked rows first
			_, err := tx.List(&store.Query{Kind: kind, Account: account, Limit: 1})
			tx.Put(record(1))
			return err
		})
	})
	for dies.armed.Load() {
		<-time.After(time.Millisecond)
	}
	check(t, s, 2, 1)
	took := time.Since(began)
	if t.Logf("another Update has ended after %v", took); took < time.Second {
		t.Error("it has not waited for a lock of the machine that died")
	}
}

// A commit waits for the disks of the primary and the standby, whatever the session's
// setting.
func TestSynchronousCommit(t *testing.T) {
	server := postgres.Get(t)
	for setting, want := range map[string]string{"off": "on", "local": "on", "remote_write": "on", "on": "on", "remote_apply": "remote_apply"} {
		lost := &trigger{calls: commits, does: &deed{drop: true}}
		p := tapped(t, server, lost)
		name := schema(t, p)
		config := p.Config()
		config.ConnConfig.RuntimeParams["synchronous_commit"] = setting
		p, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		s := open(t, p, name)
		if _, err := p.Exec(t.Context(), strings.ReplaceAll(`CREATE TABLE "s".seen (setting text);
			CREATE FUNCTION "s".see() RETURNS trigger LANGUAGE plpgsql AS $$
				BEGIN INSERT INTO "s".seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;
			CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON "s".groups DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW EXECUTE FUNCTION "s".see()`, `"s"`, pgx.Identifier{name}.Sanitize()), pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		for _, records := range []int{1, 2} {
			check(t, s, 20*records, records)
			lost.armed.Store(true)
			check(t, s, 20*records+10, records)
		}
		var n int
		var seen, after string
		if err := p.QueryRow(t.Context(), "SELECT count(*), string_agg(DISTINCT setting, ' '), current_setting('synchronous_commit') FROM "+
			pgx.Identifier{name, "seen"}.Sanitize()).Scan(&n, &seen, &after); err != nil {
			t.Fatal(err)
		}
		if n != 6 || seen != want || after != setting {
			t.Errorf("in sessions with %s %d transactions commit with %s, and leave %s; want 6 with %s", setting, n, seen, after, want)
		}
	}
}

// A commit without its copy on the standby is not acknowledged, even if its server is lost,
// until the standby has it. No timeout of the session cuts the wait short.
func TestWaitsForStandby(t *testing.T) {
	t.Parallel()
	primary := realtest.PostgreSQL(t, nil)
	standby := primary.Standby(t)
	primary.SQL(t, "postgres", "CREATE DATABASE hasty")
	p := pool(t, primary.URL("hasty")+"&synchronous_commit=local")
	s := open(t, p, schema(t, p))
	// What makes the tables and opens the store is not tried again.
	primary.SQL(t, "postgres", "ALTER DATABASE hasty SET statement_timeout = 500")
	p.Reset()
	check(t, s, 0, 1)
	for n, update := range []func(n int) error{
		func(n int) error { return put(s, record(n)) },
		func(n int) error { // with a transaction that was opened before
			return s.Update(context.Background(), func(tx store.Tx) error {
				_, err := tx.List(&store.Query{Kind: kind, Account: account, Limit: 1})
				tx.Put(record(n))
				return err
			})
		},
	} {
		for _, terminates := range []bool{false, true} {
			n := 10*(n+1) + len(list(t, s, &store.Query{Kind: kind, Account: account, Limit: 100}).Records)
			standby.Stop()
			done := make(chan error, 1)
			go func() { done <- update(n) }()
			waiting := "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
			for primary.SQL(t, "postgres", waiting) == "0" {
				<-time.After(10 * time.Millisecond)
			}
			if terminates {
				primary.SQL(t, "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			}
			select {
			case err := <-done:
				t.Errorf("Update = %v while the standby hangs", err)
				done <- err
			case <-time.After(700 * time.Millisecond):
			}
			standby.Continue()
			if err := <-done; err != nil {
				t.Errorf("Update = %v", err)
			}
			if !has(t, s, n) {
				t.Error("an acknowledged record is missing")
			}
		}
	}
}

// Rows of groups are few, after any number of groups.
func TestTidy(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	groups := pgx.Identifier{name, "groups"}.Sanitize()
	if _, err := p.Exec(t.Context(), `INSERT INTO `+groups+` (store, turn, done, at)
		SELECT gen_random_uuid(), n, n % 2 = 0, now() - n * interval '7 hours' FROM generate_series(1, 6) AS n`); err != nil {
		t.Fatal(err)
	}
	s := open(t, p, name)
	for n := range 600 {
		if err := put(s, record(n)); err != nil {
			t.Fatal(err)
		}
	}
	var own, others int
	if err := p.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE at > now() - interval '1 hour'), count(*) FILTER (WHERE at < now() - interval '1 hour')
		FROM `+groups).Scan(&own, &others); err != nil {
		t.Fatal(err)
	}
	if own == 0 || own > 2*256 { // the last ones may be about to be deleted
		t.Errorf("%d rows of 600 groups", own)
	}
	if others != 3 {
		t.Errorf("%d rows of other stores, want the 3 that are younger than a day", others)
	}
}

// After a statement timeout, neither the Update nor its connection fails if the statement
// can soon be executed.
func TestStatementTimeout(t *testing.T) {
	url := postgres.Get(t).URL("postgres")
	others := pool(t, url)
	name := schema(t, others)
	p := pool(t, url+"&statement_timeout=2000&application_name=impatient")
	s := open(t, p, name)
	check(t, s, 0, 1)

	// On a slow machine the store may give up before this test unlocks the table.
	for try := 1; ; try++ {
		before := p.Stat().NewConnsCount()
		err := putLocked(t, s, others, name, try)
		if errors.Is(err, store.ErrUnavailable) && try < 10 {
			continue
		}
		if err != nil {
			t.Errorf("Update = %v", err)
		}
		if made := p.Stat().NewConnsCount() - before; made > 1 {
			t.Errorf("%d new connections", made)
		}
		return
	}
}

// putLocked puts the n-th record while the table is locked, until a statement of the
// impatient sessions has timed out.
func putLocked(t testing.TB, s store.Store, others *pgxpool.Pool, name string, n int) error {
	t.Helper()
	block, err := others.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer block.Rollback(context.Background())
	if _, err := block.Exec(t.Context(), "LOCK TABLE "+pgx.Identifier{name, "records"}.Sanitize()+" IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- put(s, record(n)) }()

	// The second waiting statement comes after the timeout of the first.
	waiting := func() (since time.Time) {
		err := others.QueryRow(t.Context(), `SELECT coalesce(max(query_start), 'epoch') FROM pg_stat_activity
			WHERE application_name = 'impatient' AND wait_event_type = 'Lock'`).Scan(&since)
		if err != nil {
			t.Fatal(err)
		}
		return since
	}
	var first time.Time
	for {
		since := waiting()
		if since.Unix() > 0 && first.IsZero() {
			first = since
		}
		if since.Unix() > 0 && since.After(first) {
			break
		}
		select {
		case err := <-done:
			return fmt.Errorf("%w while the table is locked", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	if err := block.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	return <-done
}

// A role needs only the rights that the package lists.
func TestRights(t *testing.T) {
	server := postgres.Get(t)
	p := pool(t, server.URL("postgres"))
	name := schema(t, p)
	if _, err := p.Exec(t.Context(), strings.ReplaceAll(`CREATE ROLE vault LOGIN; GRANT USAGE ON SCHEMA "s" TO vault;
		GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "s" TO vault; REVOKE INSERT, UPDATE, DELETE ON "s".migrations, "s".seed FROM vault`,
		`"s"`, pgx.Identifier{name}.Sanitize()), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	s, err := pgstore.New(t.Context(), pool(t, strings.Replace(server.URL("postgres"), "cardvault@", "vault@", 1)), &pgstore.Options{Schema: name})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for n := range 600 { // so that a list is divided into blocks
		if err := put(s, record(n)); err != nil {
			t.Fatal(err)
		}
	}
	if total := list(t, s, &store.Query{Kind: kind, Account: account, Count: true}).Total; total != 600 {
		t.Errorf("Total = %d", total)
	}
	err = s.Update(t.Context(), func(tx store.Tx) error { tx.Delete(kind, id(0)); return nil })
	if err != nil || has(t, s, 0) {
		t.Errorf("deletion = %v", err)
	}
}

// An Update with too many writes for one transaction is refused as a whole.
func TestTooMuch(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	s := open(t, p, schema(t, p))
	large := make([]byte, store.MaxRecord)
	for what, write := range map[string]func(tx store.Tx, n int){
		"deletions": func(tx store.Tx, n int) { tx.Delete(kind, id(n)) },
		"records":   func(tx store.Tx, n int) { tx.Put(record(n)) },
		"bytes": func(tx store.Tx, n int) {
			r := record(n)
			r.Shown, r.Secret = nil, large
			tx.Put(r)
		},
	} {
		most := 1 << 16
		if what == "bytes" {
			most = 64 << 20 / store.MaxRecord
		}
		err := s.Update(t.Context(), func(tx store.Tx) error {
			for n := range most + 1 {
				write(tx, n)
			}
			return nil
		})
		if !errors.Is(err, store.ErrInvalid) || has(t, s, 0) {
			t.Errorf("Update of too many %s = %v, want ErrInvalid", what, err)
		}
	}
	check(t, s, 0, 2000)
}
