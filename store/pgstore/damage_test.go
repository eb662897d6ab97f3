//go:build unix

package pgstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/store"
)

// Each column that a writer of rows can make unreadable is damage of that record alone, to a
// function that reads it and to the others of its transaction. The record can be deleted and
// replaced, and its hashes and its place in a list go with it.
func TestUnreadableColumns(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	for _, partitions := range []int{0, 2} {
		name := divided(t, p, partitions)
		s := open(t, p, name)
		records := pgx.Identifier{name}.Sanitize() + ".records"
		for n, edit := range []string{`due = 'infinity'`, `due = '-infinity'`, `class = 300`, `class = -1`, `lookup = '\xff'`} {
			r := record(3 * n)
			r.Lookup, r.Class = [][]byte{[]byte("h")}, 1
			beside := record(3*n + 1)
			if err := put(s, r, beside); err != nil {
				t.Fatal(err)
			}
			get := func(tx store.ReadTx, id uuid.UUID) error { _, err := tx.Get(kind, id); return err }
			if err := s.Update(t.Context(), func(tx store.Tx) error { return get(tx, r.ID) }); err != nil { // the Store remembers it
				t.Fatal(err)
			}
			if _, err := p.Exec(t.Context(), fmt.Sprintf(`UPDATE %s SET %s WHERE id = '%s'`, records, edit, r.ID)); err != nil {
				t.Fatal(err)
			}

			if err := s.View(t.Context(), func(tx store.ReadTx) error { return get(tx, r.ID) }); !errors.Is(err, store.ErrDamaged) {
				t.Errorf("%s: Get = %v", edit, err)
			}
			if err := s.Update(t.Context(), func(tx store.Tx) error {
				if err := get(tx, r.ID); !errors.Is(err, store.ErrDamaged) {
					t.Errorf("%s: Get in an Update = %v", edit, err)
				}
				tx.Put(record(3*n + 2))
				return get(tx, beside.ID)
			}); err != nil || !has(t, s, 3*n+2) {
				t.Errorf("%s: an Update that reads it = %v", edit, err)
			}
			next := *r
			next.Version = 2
			if err := put(s, &next); !errors.Is(err, store.ErrDamaged) {
				t.Errorf("%s: Put = %v", edit, err)
			}

			if err := s.Update(t.Context(), func(tx store.Tx) error { tx.Delete(kind, r.ID); tx.Put(r); return nil }); err != nil {
				t.Fatalf("%s: Delete and Put = %v", edit, err)
			}
			found := func(want int) {
				t.Helper()
				if err := s.View(t.Context(), func(tx store.ReadTx) error {
					rs, err := tx.Lookup(kind, []byte("h"), 9)
					if len(rs) != want {
						t.Errorf("%s: the hash finds %d records, want %d", edit, len(rs), want)
					}
					return err
				}); err != nil {
					t.Error(err)
				}
			}
			found(1)
			if _, err := p.Exec(t.Context(), fmt.Sprintf(`UPDATE %s SET %s WHERE id = '%s'`, records, edit, r.ID)); err != nil {
				t.Fatal(err)
			}
			if err := remove(s, r); err != nil {
				t.Errorf("%s: Delete = %v", edit, err)
			}
			found(0)
			if l := list(t, s, &store.Query{Kind: kind, Account: account, Count: true}); l.Total != int64(2*n+2) {
				t.Errorf("%s: a list of %d, want %d", edit, l.Total, 2*n+2)
			}
			if d := checked(t, s, 100); len(d) > 0 && edit != `lookup = '\xff'` {
				t.Errorf("%s: %v", edit, d)
			}
		}
	}
}

// A list is its records: a row that someone deletes is gone from it as from all else, and Verify reports
// the hash that is left.
func TestDeletedRow(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := schema(t, p)
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{3}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), open(t, p, name), keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	var ids []uuid.UUID
	for i := range 3 {
		token, err := v.Import(t.Context(), stoppedCard, &cardvault.ImportOptions{BusinessKey: fmt.Sprint("order ", i)})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, token.ID)
	}
	const token = 5 // the kind, as the store has it
	quoted := pgx.Identifier{name}.Sanitize()
	if _, err := p.Exec(t.Context(), fmt.Sprintf(`DELETE FROM %s.records WHERE (kind, id) = (SELECT kind, id FROM %[1]s.records WHERE kind = %d ORDER BY id OFFSET 1 LIMIT 1)`, quoted, token)); err != nil {
		t.Fatal(err)
	}

	if _, err := v.Get(t.Context(), ids[1]); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("Get = %v", err)
	}
	page, err := v.List(t.Context(), nil)
	if err != nil || page.TotalItems != 2 || len(page.Items) != 2 {
		t.Errorf("List = %+v, %v", page, err)
	}
	if page, err := v.List(t.Context(), &cardvault.TokenListOptions{BusinessKey: "order 1"}); err != nil || page.TotalItems != 0 {
		t.Errorf("List by business key = %+v, %v", page, err)
	}
	report, err := v.Verify(t.Context(), nil)
	if err != nil || len(report.Problems) != 1 || report.Problems[0].Kind != cardvault.ProblemIndexStray || report.Problems[0].Count != 1 {
		t.Errorf("Verify = %+v, %v", report, err)
	}
}

// Kinds of records of the audit log: see the table of kinds of a vault.
const auditRecord, auditCheckpoint, auditChain, auditPromise = 34, 35, 36, 37

// Whatever a writer of rows does to the records that hold the audit log of an account together, the
// account's calls are recorded, its log is exported, and the export shows a break and no other fault.
func TestAuditLogGoesOn(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	for _, partitions := range []int{0, 4} {
		name := divided(t, p, partitions)
		v := auditedVault(t, open(t, p, name))
		a, err := v.Account(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		records := pgx.Identifier{name}.Sanitize() + ".records"

		// Of 64 accounts that a row names, some are in the partition of the account.
		plant := fmt.Sprintf(`INSERT INTO %s SELECT r.version, r.stamp, %%s, %%d, %%s, r.child, %%s, x.account, %%s, r.lookup, r.shown, r.secret
			FROM (SELECT * FROM %[1]s WHERE kind = %%d AND account = $1 AND class >= 0 LIMIT 1) AS r, %%s AS x(account) ON CONFLICT DO NOTHING`, records)
		const own, others = `(SELECT $1::uuid)`, `(SELECT md5(i::text)::uuid FROM generate_series(1, 64) AS i)`
		nextID := fmt.Sprintf(`overlay(r.id::text placing lpad(to_hex((SELECT count(DISTINCT id) FROM %s WHERE kind = %d AND account = $1) + 1), 4, '0') from 33)::uuid`, records, auditCheckpoint)
		checkpoint := func(due, account, scope string) string {
			return fmt.Sprintf(plant, due, auditCheckpoint, "0", nextID, scope, auditCheckpoint, account)
		}
		promise := func(due, class, id, account string) string {
			return fmt.Sprintf(plant, due, auditPromise, class, `'`+id+`'::uuid`, "r.scope", auditRecord, account)
		}
		set := func(column string) string {
			return fmt.Sprintf(`UPDATE %s SET %s WHERE kind = %d AND account = $1`, records, column, auditChain)
		}
		for _, edit := range []struct {
			what, sql string
			unseen    bool // not a fault of this account's log
		}{
			{"a chain that is due at no time", set(`due = 'infinity'`), false},
			{"a chain of an unknown class", set(`class = 300`), false},
			{"a chain of other accounts", fmt.Sprintf(`WITH gone AS (DELETE FROM %[1]s WHERE kind = %[2]d AND account = $1 RETURNING *)
				INSERT INTO %[1]s SELECT r.version, r.stamp, NULL, r.kind, r.class, r.child, r.id, x.account, x.account, r.lookup, r.shown, r.secret
				FROM gone r, %[3]s AS x(account) ON CONFLICT DO NOTHING`, records, auditChain, others), false},
			{"an unreadable checkpoint in the next place", checkpoint(`'infinity'`, own, "x.account"), false},
			{"checkpoints of other accounts in the next place", checkpoint(`NULL`, others, "x.account"), false},
			{"an unreadable promise", promise(`'-infinity'`, "1", "00e00000-0000-7000-8000-000000000001", own), false},
			{"a promise of an unknown class", promise(`NULL`, "-1", "00e00000-0000-7000-8000-000000000002", own), false},
			{"promises of other accounts", promise(`NULL`, "1", "00e00000-0000-7000-8000-000000000003", others), true},
		} {
			what := fmt.Sprintf("%d partitions: %s", partitions, edit.what)
			before := export(t, v)
			tag, err := p.Exec(t.Context(), edit.sql, pgx.QueryExecModeExec, a.ID)
			if err != nil || tag.RowsAffected() == 0 {
				t.Fatalf("%s: %v, %v", what, tag, err)
			}
			for range 2 {
				if _, err := v.CreateSession(t.Context(), nil); err != nil {
					t.Errorf("%s: a call = %v", what, err)
				}
				if err := v.Drain(t.Context()); err != nil {
					t.Logf("%s: Drain = %v", what, err) // it says what is damaged
				}
				after := export(t, v)
				if len(after.Gaps) == len(before.Gaps) && !edit.unseen || after.Records <= before.Records {
					t.Errorf("%s: %d records and %d breaks after %d and %d", what, after.Records, len(after.Gaps), before.Records, len(before.Gaps))
				}
			}
			if again := export(t, v); len(again.Gaps) != len(export(t, v).Gaps) {
				t.Errorf("%s: each export has another break", what)
			}
		}
	}
}

// auditedVault returns a vault with an audit log.
func auditedVault(t *testing.T, s store.Store) *cardvault.Vault {
	t.Helper()
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{7}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{
		Mode: cardvault.Sandbox, Audit: &cardvault.AuditOptions{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// export returns the report on the audit log of a vault, which may have breaks.
func export(t *testing.T, v *cardvault.Vault) *audit.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var b bytes.Buffer
	if err := v.ExportAudit(ctx, &b, time.Time{}, time.Time{}); err != nil {
		t.Fatalf("ExportAudit = %v", err)
	}
	opts := &audit.VerifyOptions{PublicKeys: v.AuditPublicKeys()}
	report, _ := audit.Verify(bytes.NewReader(b.Bytes()), opts)
	opts.Known = report.Gaps
	if _, err := audit.Verify(&b, opts); err != nil {
		t.Errorf("the export has another fault than breaks: %v", err)
	}
	return report
}

// TestAuditLogEdited: rows of the audit log that a DBA deletes, moves or puts back are named by
// Verify. Two processes have a lane each; the rows of one can go altogether.
func TestAuditLogEdited(t *testing.T) {
	p := pool(t, postgres.Get(t).URL("postgres"))
	name := divided(t, p, 2)
	s := open(t, p, name)
	first, second := auditedVault(t, s), auditedVault(t, s)
	records := pgx.Identifier{name}.Sanitize() + ".records"
	rows := func(account uuid.UUID) (ids []uuid.UUID) {
		t.Helper()
		found, err := p.Query(t.Context(), fmt.Sprintf(`SELECT id FROM %s WHERE account = $1 AND kind IN (%d, %d, %d)`, records, auditRecord, auditCheckpoint, auditPromise), account)
		if err == nil {
			ids, err = pgx.CollectRows(found, pgx.RowTo[uuid.UUID])
		}
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	// The n-th row of a kind, and a statement that gives the sealed part of one to another.
	nth := func(kind, n int) string {
		return fmt.Sprintf(`(SELECT id FROM %s WHERE kind = %d AND account = $1 ORDER BY id LIMIT 1 OFFSET %d)`, records, kind, n)
	}
	over := func(kind, from, to int) string {
		return fmt.Sprintf(`UPDATE %[1]s SET shown = (SELECT f.shown FROM %[1]s AS f WHERE f.kind = %[2]d AND f.account = $1 AND f.id = %[3]s) WHERE kind = %[2]d AND account = $1 AND id = %[4]s`,
			records, kind, nth(kind, from), nth(kind, to))
	}
	for what, edit := range map[string]struct {
		sql  string
		lane bool // its parameters are the rows of the lane
	}{
		"a record is deleted":       {sql: fmt.Sprintf(`DELETE FROM %s WHERE kind = %d AND account = $1 AND id = %s`, records, auditRecord, nth(auditRecord, 2))},
		"a record is replaced":      {sql: over(auditRecord, 2, 1)},
		"a record is edited":        {sql: fmt.Sprintf(`UPDATE %s SET shown = set_byte(shown, 40, get_byte(shown, 40) # 1) WHERE kind = %d AND account = $1 AND id = %s`, records, auditRecord, nth(auditRecord, 1))},
		"a checkpoint is deleted":   {sql: fmt.Sprintf(`DELETE FROM %s WHERE kind = %d AND account = $1 AND id = %s`, records, auditCheckpoint, nth(auditCheckpoint, 1))},
		"a checkpoint is replayed":  {sql: over(auditCheckpoint, 1, 2)},
		"the last one is deleted":   {sql: fmt.Sprintf(`DELETE FROM %s WHERE kind = %d AND account = $1 AND id = (SELECT max(id::text)::uuid FROM %[1]s WHERE kind = %[2]d AND account = $1)`, records, auditCheckpoint)},
		"a lane is removed":         {sql: fmt.Sprintf(`DELETE FROM %s WHERE account = $1 AND id = ANY($2)`, records), lane: true},
		"records of a lane go only": {sql: fmt.Sprintf(`DELETE FROM %s WHERE account = $1 AND id = ANY($2) AND kind = %d`, records, auditRecord), lane: true},
	} {
		a, err := first.CreateAccount(t.Context(), what, nil)
		if err != nil {
			t.Fatal(err)
		}
		var before, lane []uuid.UUID
		for n, v := range []*cardvault.Vault{first, second, first} { // a checkpoint each
			before = rows(a.ID)
			if _, err := v.In(a.ID).CreateSession(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if r := export(t, v.In(a.ID)); len(r.Gaps) > 0 {
				t.Fatalf("%s: before there are breaks %+v", what, r.Gaps)
			}
			if n == 1 {
				lane = slices.DeleteFunc(rows(a.ID), func(id uuid.UUID) bool { return slices.Contains(before, id) })
			}
		}

		args := []any{a.ID}
		if edit.lane {
			args = append(args, lane)
		}
		if tag, err := p.Exec(t.Context(), edit.sql, args...); err != nil || tag.RowsAffected() == 0 {
			t.Fatalf("%s: %v, %v", what, tag, err)
		}
		var b bytes.Buffer
		if err := first.In(a.ID).ExportAudit(t.Context(), &b, time.Time{}, time.Time{}); err != nil {
			t.Fatal(err)
		}
		_, err = audit.Verify(&b, &audit.VerifyOptions{PublicKeys: first.AuditPublicKeys()})
		if found, is := errors.AsType[*audit.VerifyError](err); !is || found.Fault != audit.Removed {
			t.Errorf("%s: Verify returned %v", what, err)
		}
	}
}
