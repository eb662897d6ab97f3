package vaultsuite

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var verifyBehaviours = []behaviour{
	{"Verify", verified},
	{"VerifyResumed", verifiedInPieces},
	{"VerifyWhileUsed", verifiedWhileUsed},
}

// inAccount returns the transaction for the records of an account.
func inAccount(tx store.Tx, account uuid.UUID) store.Tx {
	if d, ok := tx.(store.Divided); ok {
		return d.In(account).(store.Tx)
	}
	return tx
}

// removeRow deletes a record behind the vault's back.
func removeRow(t testing.TB, s store.Store, r *store.Record) {
	t.Helper()
	noError(t, s.Update(t.Context(), func(tx store.Tx) error { inAccount(tx, r.Account).Delete(r.Kind, r.ID); return nil }))
}

// loadRow puts a record, of any version, in the place of the one with its key.
func loadRow(t testing.TB, s store.Store, r *store.Record) {
	t.Helper()
	noError(t, s.Update(t.Context(), func(tx store.Tx) error {
		tx = inAccount(tx, r.Account)
		tx.Delete(r.Kind, r.ID)
		for version := range r.Version {
			next := r.Clone()
			next.Version = version + 1
			tx.Put(next)
		}
		return nil
	}))
}

func scanned(t testing.TB, s store.Store, kind store.Kind) (rows []*store.Record) {
	t.Helper()
	noError(t, s.View(t.Context(), func(tx store.ReadTx) (err error) {
		rows, err = tx.Scan(kind, uuid.Nil, 1000)
		return err
	}))
	return rows
}

// problems returns what Verify finds, by kind.
func problems(t testing.TB, v *cardvault.Vault) map[cardvault.ProblemKind]cardvault.Problem {
	t.Helper()
	report := must(v.Verify(t.Context(), nil))(t)
	all := map[cardvault.ProblemKind]cardvault.Problem{}
	for _, p := range report.Problems {
		all[p.Kind] = p
		if p.Hurt == "" || p.Safe == "" || p.Remedy == "" || p.Count < int64(len(p.Findings)) {
			t.Errorf("no advice, or a wrong count: %+v", p)
		}
	}
	if report.Position != "" || report.Records == 0 {
		t.Errorf("Verify ended early: %+v", report)
	}
	return all
}

// Verify finds nothing in a vault with records of every kind. It names each that is damaged.
func verified(t *testing.T, s store.Store) {
	fillKinds(t, s)
	v := vaultOn(t, s, nil)
	if p := problems(t, v); len(p) > 0 {
		t.Fatalf("a vault that is whole has %+v", p)
	}

	// One record of each kind is altered, and all are found at once.
	alter := func(change func(*store.Record) bool, want cardvault.ProblemKind, kinds ...store.Kind) {
		t.Helper()
		var whole []*store.Record
		accounts := map[uuid.UUID]int{}
		for _, kind := range kinds {
			rows := scanned(t, s, kind)
			if len(rows) == 0 {
				t.Errorf("no record of kind %d", kind)
				continue
			}
			if r := rows[0].Clone(); change(r) {
				loadRow(t, s, r)
				whole = append(whole, rows[0])
				accounts[r.Account]++
			}
		}

		found := problems(t, v)
		for _, f := range found[want].Findings {
			accounts[f.AccountID]--
		}
		if p := found[want]; len(found) != 1 || p.Count != int64(len(whole)) || len(p.Findings) != len(whole) {
			t.Errorf("%d kinds altered: %+v, want one %s of each", len(whole), found, want)
		}
		for account, missing := range accounts {
			if missing != 0 {
				t.Errorf("%d more findings wanted of account %v", missing, account)
			}
		}
		for _, r := range whole {
			loadRow(t, s, r)
		}
	}
	flip := func(part func(*store.Record) []byte) func(*store.Record) bool {
		return func(r *store.Record) bool {
			b := part(r)
			if len(b) > 0 {
				b[len(b)/2] ^= 4
			}
			return len(b) > 0
		}
	}
	shown := func(r *store.Record) []byte { return r.Shown }
	secret := func(r *store.Record) []byte { return r.Secret }

	alter(flip(shown), cardvault.ProblemAltered, fullKinds...)
	alter(flip(secret), cardvault.ProblemAltered, fullKinds...)
	alter(func(r *store.Record) bool { r.Version++; return true }, cardvault.ProblemAltered, kindToken)
	alter(func(r *store.Record) bool { r.Class++; return true }, cardvault.ProblemAltered, kindToken)
	alter(func(r *store.Record) bool { r.Class = 4; return true }, cardvault.ProblemAltered, 2) // an account that would be closed
	alter(func(r *store.Record) bool { r.Lookup = [][]byte{{1, 2, 3}}; return true }, cardvault.ProblemAltered, kindToken)
	alter(func(r *store.Record) bool { r.Shown[2] ^= 1; return true }, cardvault.ProblemUnknownTerm, kindToken)
	alter(func(r *store.Record) bool { r.Secret = nil; return true }, cardvault.ProblemMissingPart, kindToken)
	alter(func(r *store.Record) bool { r.Shown = nil; return true }, cardvault.ProblemMissingPart, kindToken)
	if p := problems(t, v); len(p) > 0 {
		t.Fatalf("damage stays after the repair: %+v", p)
	}

	verifiedLinks(t, s, v)
}

// verifiedLinks checks that findings have the ids that calls take, and that a lost record shows
// by the records that belong to it.
func verifiedLinks(t *testing.T, s store.Store, v *cardvault.Vault) {
	token := importCard(t, v, testCard(77), nil)
	rows := scanned(t, s, kindToken)
	row := rows[len(rows)-1]
	edited := row.Clone()
	edited.Secret[40] ^= 1
	loadRow(t, s, edited)
	if p := problems(t, v)[cardvault.ProblemAltered]; len(p.Findings) != 1 || p.Findings[0].ID != token.ID || p.Findings[0].Kind != "token" {
		t.Errorf("found %+v, want token %v", p, token.ID)
	}
	loadRow(t, s, row)

	foreign := row.Clone()
	foreign.ID, foreign.Account = uuid.New(), uuid.New()
	loadRow(t, s, foreign)
	if p := problems(t, v); p[cardvault.ProblemMissingAccount].Count != 1 {
		t.Errorf("a record of no account: %+v", p)
	}
	removeRow(t, s, foreign)

	for _, child := range []store.Kind{kindPaymentData, kindNetworkToken} {
		below := scanned(t, s, child)
		parent := below[0].Parent
		if child == kindNetworkToken {
			parent = below[0].ID
		}
		i := slices.IndexFunc(rows, func(r *store.Record) bool { return r.ID == parent })
		removeRow(t, s, rows[i])
		if p := problems(t, v); p[cardvault.ProblemMissingParent].Count == 0 || len(p) != 1 {
			t.Errorf("children of kind %d without their parent: %+v", child, p)
		}
		loadRow(t, s, rows[i])
	}
	if p := problems(t, v); len(p) > 0 {
		t.Errorf("in the end: %+v", p)
	}
}

// A Verify that ends early goes on from its position, also from one page to the next.
func verifiedInPieces(t *testing.T, s store.Store) {
	fillKinds(t, s)
	v := vaultOn(t, s, nil)
	rows := scanned(t, s, kindToken)
	edited := rows[0].Clone()
	edited.Shown[30] ^= 1
	loadRow(t, s, edited)

	var records, found int64
	o := new(cardvault.VerifyOptions)
	for range 10_000 {
		ctx, cancel := context.WithCancel(t.Context())
		o.Progress = func(cardvault.VerifyProgress) { cancel() }
		report, err := v.Verify(ctx, o)
		cancel()
		if report == nil {
			t.Fatal(err)
		}
		records += report.Records
		for _, p := range report.Problems {
			found += p.Count
		}
		if o.Position = report.Position; o.Position == "" {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("ended early with %v", err)
		}
	}
	if o.Position != "" || records == 0 || found != 1 { // how many records there are changes: other replicas work
		t.Errorf("in pieces: %d records, %d problems, position %q", records, found, o.Position)
	}

	for _, o := range []*cardvault.VerifyOptions{{Position: "x"}, {Position: "AAAA"}} {
		_, err := v.Verify(t.Context(), o)
		if _, ok := errors.AsType[*cardvault.FieldError](err); !ok {
			t.Errorf("%+v: %v, want a FieldError", o, err)
		}
	}
}

// Verify finds nothing in a vault that is in use.
func verifiedWhileUsed(t *testing.T, s store.Store) {
	v := vaultOn(t, s, &cardvault.Options{Mode: cardvault.Sandbox, Network: new(till), Webhooks: new(mailbox)})
	newHook(t, v, receiver)
	newSecret(t, v)
	for n := range 40 {
		importCard(t, v, testCard(n), &cardvault.ImportOptions{BusinessKey: canary + uuid.NewString()})
	}

	whileUsed(t, v, func() {
		if p := problems(t, v); len(p) > 0 {
			t.Errorf("while in use: %+v", p)
		}
	})
	if p := problems(t, v); len(p) > 0 {
		t.Errorf("afterwards: %+v", p)
	}
}

// whileUsed uses a vault, and does work a few times meanwhile: tokens are imported and deleted, events
// are delivered, and records are sealed anew under other terms. The use is bounded too, since work
// that looks at all records would take longer each time.
func whileUsed(t *testing.T, v *cardvault.Vault, work func()) {
	rounds, times := 100, 8
	if testing.Short() {
		rounds, times = 40, 4
	}
	var running atomic.Int64
	var over atomic.Bool
	var used sync.WaitGroup

	for g := range 4 {
		running.Add(1)
		used.Go(func() {
			defer running.Add(-1)
			for n := 0; n < rounds && !over.Load(); n++ {
				token, err := v.Import(t.Context(), testCard(g*rounds+n), &cardvault.ImportOptions{BusinessKey: canary + uuid.NewString()})
				if err == nil && n%2 == 0 {
					err = v.Delete(t.Context(), token.ID)
				}
				if err == nil && g == 0 {
					err = v.Drain(t.Context())
				}
				if err == nil && g == 0 && n%8 == 7 {
					_, err = v.RotateKeys(t.Context(), nil)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}

	for n := 0; n < times && running.Load() > 0; n++ {
		work()
	}
	over.Store(true)
	used.Wait()
}
