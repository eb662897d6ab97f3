package cardvault_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store/memstore"
)

// damageIndexes takes entries out of all indexes of a file, and adds one that leads to no record.
func damageIndexes(t *testing.T, dir string) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(dir, "cardvault.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range []string{"lists", "due", "lookup"} {
			b := tx.Bucket([]byte(name))
			n := 0
			var gone [][]byte
			_ = b.ForEach(func(k, v []byte) error {
				of := k[0]
				if name == "lists" {
					of = k[17]
				}
				if n++; of == tokenKind && n%3 == 0 {
					gone = append(gone, bytes.Clone(k))
				}
				return nil
			})
			for _, k := range gone {
				if err := b.Delete(k); err != nil {
					return err
				}
			}
		}
		stray := append([]byte{tokenKind, 32}, make([]byte, 32+16)...)
		return tx.Bucket([]byte("lookup")).Put(stray, nil)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

const tokenKind = 5 // of records, as the store has it

// counts returns how many findings there are of each problem.
func counts(problems []cardvault.Problem) string {
	var all []string
	for _, p := range problems {
		all = append(all, fmt.Sprint(p.Kind, " ", p.Count))
	}
	return strings.Join(all, ", ")
}

// TestRepair: damaged indexes are made anew, also by calls of which each goes on where the one
// before was interrupted. A record that cannot be opened stays as it is.
func TestRepair(t *testing.T) {
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{4}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	for _, interrupted := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "vault")
		open := func() *cardvault.Vault {
			t.Helper()
			v, err := cardvault.Open(t.Context(), dir, keys, &cardvault.Options{Mode: cardvault.Sandbox, Audit: new(cardvault.AuditOptions)})
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		v := open()
		const tokens = 300
		for n := range tokens {
			_, err := v.Import(t.Context(), cardvault.Card{PAN: card.NewPAN([]byte(resealed(n))), Expiry: visa.Expiry}, &cardvault.ImportOptions{BusinessKey: fmt.Sprint("order ", n)})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		damageIndexes(t, dir)
		v = open()
		if page, err := v.List(t.Context(), nil); err == nil && page.TotalItems == tokens {
			t.Fatal("nothing is damaged")
		}

		opts, calls := new(cardvault.RepairOptions), 0
		var found, left []cardvault.Problem
		for opts.Position != "" || calls == 0 {
			calls++
			ctx, cancel := context.WithCancel(t.Context())
			pages := 0
			opts.Progress = func(cardvault.RepairProgress) {
				if pages++; interrupted && pages > calls%4 {
					cancel() // each call has records in the audit log, which the next call reads
				}
			}
			report, err := v.Repair(ctx, opts)
			cancel()
			if report == nil || err != nil && !errors.Is(err, context.Canceled) || (err == nil) != (report.Position == "") || report.Mended != (err == nil) {
				t.Fatalf("%+v, %v", report, err)
			}
			found, left = append(found, report.Found...), append(left, report.Left...)
			opts.Position = report.Position
			if calls > 1000 {
				t.Fatal("it does not end")
			}
			if calls%3 == 0 && opts.Position != "" {
				if err := v.Close(); err != nil {
					t.Fatal(err)
				}
				v = open()
			}
		}
		if interrupted && calls < 10 {
			t.Errorf("only %d calls were needed", calls)
		}
		if len(found) == 0 || len(left) > 0 {
			t.Errorf("found %s, left %s", counts(found), counts(left))
		}
		if report, err := v.Verify(t.Context(), nil); err != nil || len(report.Problems) > 0 {
			t.Errorf("after Repair: %v, %s", err, counts(report.Problems))
		}
		if page, err := v.List(t.Context(), nil); err != nil || page.TotalItems != tokens {
			t.Errorf("after Repair: %+v, %v", page, err)
		}
		audit, err := v.In(uuid.Nil).AuditRecords(t.Context(), &cardvault.AuditQuery{Operation: "vault.repair"})
		if err != nil || len(audit.Records) == 0 {
			t.Errorf("the audit log has %+v, %v", audit, err)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRepairNothing: a store without such indexes has nothing to repair.
func TestRepairNothing(t *testing.T) {
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{4}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	v, err := cardvault.New(t.Context(), memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if report, err := v.Repair(t.Context(), nil); err != nil || len(report.Found)+len(report.Left) > 0 || report.Records == 0 || report.Mended || report.Position != "" {
		t.Errorf("%+v, %v", report, err)
	}
	head := func(more ...byte) string { return base64.RawURLEncoding.EncodeToString(append([]byte{3}, more...)) }
	for _, position := range []string{"x", "AAAA", ".", "AgAA", head(0, 0), head(append([]byte{1, 0}, make([]byte, 24)...)...)} {
		if _, err := v.Repair(t.Context(), &cardvault.RepairOptions{Position: position}); len(cardvault.FieldErrors(err)) != 1 {
			t.Errorf("from %q: %v, want a FieldError", position, err)
		}
	}
}

// TestRepairPositions: a position goes on with a repair of the same vault for a day. Later, damage may
// lie before it, and it is refused.
func TestRepairPositions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &furnished{t: t, dir: filepath.Join(t.TempDir(), "vault"), opts: cardvault.Options{Mode: cardvault.Sandbox}}
		v, err := f.open()
		f.must(err)
		for range 3 {
			_, err := v.Import(t.Context(), visa, &cardvault.ImportOptions{BusinessKey: "order"})
			f.must(err)
		}
		position := func(v *cardvault.Vault) string {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			report, err := v.Repair(ctx, &cardvault.RepairOptions{Progress: func(cardvault.RepairProgress) { cancel() }})
			if !errors.Is(err, context.Canceled) || report.Position == "" {
				t.Fatalf("%+v, %v", report, err)
			}
			return report.Position
		}
		other, err := cardvault.New(t.Context(), memstore.New(), mustKeyBytes(t, make([]byte, cardvault.KeySize)), &f.opts)
		f.must(err)
		is := func(what, position string, refused bool) {
			t.Helper()
			_, err := v.Repair(t.Context(), &cardvault.RepairOptions{Position: position})
			if refused != (len(cardvault.FieldErrors(err)) == 1) || !refused && err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		is("of another vault", position(other), true)
		here := position(v)
		time.Sleep(24 * time.Hour)
		is("of a day ago", here, false)
		time.Sleep(time.Second)

		f.must(v.Close())
		damageIndexes(t, f.dir)
		v, err = f.open()
		f.must(err)
		is("of before the damage", here, true)
		report, err := v.Repair(t.Context(), nil)
		if err != nil || !report.Mended || len(report.Found) == 0 {
			t.Errorf("from the beginning: %+v, %v", report, err)
		}
		f.must(errors.Join(v.Close(), other.Close()))
	})
}

// TestRepairKilled: a process is killed while it repairs a vault and writes to it. The next one
// has all acknowledged tokens, and repairs the vault to its end. FAULTS is the number of kills.
func TestRepairKilled(t *testing.T) {
	const child = "CARDVAULT_TEST_REPAIR"
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{5}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	open := func(dir string) *cardvault.Vault {
		v, err := cardvault.Open(context.Background(), dir, keys, nil)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	add := func(v *cardvault.Vault) uuid.UUID {
		token, err := v.Import(context.Background(), visa, nil)
		if err != nil {
			t.Fatal(err)
		}
		return token.ID
	}
	if dir := os.Getenv(child); dir != "" {
		v := open(dir)
		for range 1000 {
			_, err := v.Repair(context.Background(), &cardvault.RepairOptions{Progress: func(p cardvault.RepairProgress) {
				if p.Mending {
					fmt.Println("imported", add(v))
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
			damageIndexes(t, dir)
			v = open(dir)
		}
		t.Fatal("it was not killed")
	}

	var dir string
	var want map[uuid.UUID]bool
	first := 0 // kill of this vault
	for kill := range kills(5) {
		if kill%100 == 0 { // so that the list does not get longer and longer
			dir, want, first = filepath.Join(t.TempDir(), "vault"), map[uuid.UUID]bool{}, kill
			v := open(dir)
			for range 200 {
				want[add(v)] = true
			}
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
		}
		damageIndexes(t, dir)
		for _, id := range killedRepair(t, child+"="+dir) {
			want[id] = true
		}

		v := open(dir)
		report, err := v.Repair(t.Context(), nil)
		if err != nil || len(report.Left) > 0 {
			t.Fatalf("%+v, %v", report, err)
		}
		if report, err := v.Verify(t.Context(), nil); err != nil || len(report.Problems) > 0 {
			t.Fatalf("after Repair: %v, %s", err, counts(report.Problems))
		}
		for id := range want {
			if _, err := v.Get(t.Context(), id); err != nil {
				t.Errorf("token %v: %v", id, err)
			}
		}
		page, err := v.List(t.Context(), nil)
		if err != nil || page.TotalItems < int64(len(want)) || page.TotalItems > int64(len(want)+kill-first+1) { // one may be without acknowledgement
			t.Errorf("%v, %d tokens, want %d", err, page.TotalItems, len(want))
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killedRepair runs TestRepairKilled in a process, kills it soon after a repair writes, and
// returns the tokens that were imported.
func killedRepair(t *testing.T, env string) (ids []uuid.UUID) {
	t.Helper()
	process := exec.Command(os.Args[0], "-test.run=^TestRepairKilled$")
	process.Env = append(os.Environ(), env)
	out, err := process.StdoutPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end := 1 + rand.IntN(6)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if id, err := uuid.Parse(strings.TrimPrefix(lines.Text(), "imported ")); err == nil {
			ids = append(ids, id)
		}
		if len(ids) == end {
			time.Sleep(rand.N(5 * time.Millisecond))
			_ = process.Process.Kill()
		}
	}
	if len(ids) < end {
		t.Fatal("nothing was repaired")
	}
	_ = process.Wait() // it was killed
	return ids
}
