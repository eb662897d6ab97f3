package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/keyfile"
	inside "github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A ledgered vault was backed up, and has lost something of each sort since.
type ledgered struct {
	backedUp
	account      uuid.UUID // another one
	closed       uuid.UUID // a third one
	tokens       []*cardvault.Token
	keyText      string
	webhook      uuid.UUID
	before       [][]byte // exports from before the backup
	after, later [][]byte // exports whose last records have no checkpoint, and have one
}

func auditedOn(t *testing.T, s store.Store) *cardvault.Vault {
	t.Helper()
	v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{
		Purposes: []string{"test"}, Webhooks: &post{t: t}, Audit: new(cardvault.AuditOptions),
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func exportsOf(t *testing.T, v *cardvault.Vault) (all [][]byte) {
	t.Helper()
	for a, err := range v.AllAccounts(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := v.In(a.ID).ExportAudit(t.Context(), &b, time.Time{}, time.Time{}); err != nil {
			t.Fatal(err)
		}
		all = append(all, b.Bytes())
	}
	return all
}

func newLedgered(t *testing.T) *ledgered {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l := new(ledgered)
	l.store = memstore.New()
	v := auditedOn(t, l.store)
	ctx := t.Context()
	account, err := v.CreateAccount(ctx, "second", nil)
	must(err)
	closed, err := v.CreateAccount(ctx, "closed", nil)
	must(err)
	l.closed = closed.ID
	imported := func(v *cardvault.Vault, business string) *cardvault.Token {
		token, err := v.Import(ctx, visa, &cardvault.ImportOptions{BusinessKey: business})
		must(err)
		return token
	}
	l.token = imported(v, "order 1")
	key, err := v.CreateAPIKey(ctx, "key", []cardvault.Scope{cardvault.ScopeTokensRead}, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	must(err)
	l.key = key.Text.Text()
	gone, err := v.CreateAPIKey(ctx, "gone", cardvault.AllScopes(), &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
	must(err)
	l.keyText = gone.Text.Text()
	hook, err := v.CreateWebhook(ctx, "https://shop.example/hook", nil)
	must(err)
	l.webhook = hook.ID
	l.tokens = []*cardvault.Token{imported(v, ""), imported(v.In(account.ID), "")}
	must(v.Close())

	v = auditedOn(t, l.store)
	l.before = exportsOf(t, v)
	imported(v, "")
	imported(v.In(account.ID), "")
	must(v.Close()) // writes checkpoints
	v = auditedOn(t, l.store)
	l.vault, l.account = v, account.ID
	l.again(t)
	must(v.Delete(ctx, l.tokens[0].ID))
	must(v.In(l.account).Delete(ctx, l.tokens[1].ID))
	must(v.DeleteAPIKey(ctx, gone.ID))
	must(v.DeleteWebhook(ctx, hook.ID))
	_, err = v.In(closed.ID).CloseAccount(ctx)
	must(err)
	late := imported(v, "")
	must(v.Delete(ctx, late.ID))
	imported(v, "")
	l.after = exportsOf(t, v)
	must(v.Close())
	v = auditedOn(t, l.store)
	l.later = exportsOf(t, v)
	must(v.Close())
	return l
}

func ledgerOf(exports ...[]byte) *cardvault.DeletionLedger {
	l := new(cardvault.DeletionLedger)
	for _, e := range exports {
		l.Exports = append(l.Exports, bytes.NewReader(e))
	}
	return l
}

func (l *ledgered) restore(t *testing.T, s store.Store, ledger *cardvault.DeletionLedger) (*cardvault.RestoreReport, error) {
	t.Helper()
	return cardvault.Restore(t.Context(), s, mustKeyBytes(t, goldenKey()), bytes.NewReader(l.stream), &cardvault.RestoreOptions{Ledger: ledger})
}

// gone checks what is left in a restored vault of what was deleted after the backup.
func (l *ledgered) gone(t *testing.T, v *cardvault.Vault, want bool) {
	t.Helper()
	check := func(what string, err, is error) {
		t.Helper()
		if want != errors.Is(err, is) || !want && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := v.Get(t.Context(), l.tokens[0].ID)
	check("token", err, cardvault.ErrNotFound)
	_, err = v.In(l.account).Get(t.Context(), l.tokens[1].ID)
	check("token of the second account", err, cardvault.ErrNotFound)
	_, err = v.Authenticate(t.Context(), l.keyText)
	check("API key", err, cardvault.ErrUnauthenticated)
	_, err = v.Webhook(t.Context(), l.webhook)
	check("webhook", err, cardvault.ErrNotFound)
	closed, err := v.In(l.closed).Account(t.Context())
	if err != nil || want != (closed.State >= cardvault.AccountClosing) {
		t.Errorf("closed account: %v, %v", closed.State, err)
	}
	l.works(t, v)
}

// What was deleted after the backup stays deleted, and what was revoked stays revoked.
func TestRestoreWithLedger(t *testing.T) {
	l := newLedgered(t)
	for name, exports := range map[string][][]byte{"none": nil, "open records": l.after, "checkpoints": l.later} {
		s := memstore.New()
		var ledger *cardvault.DeletionLedger
		if exports != nil {
			ledger = ledgerOf(exports...)
		}
		r, err := l.restore(t, s, ledger)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if want := int64(5); exports != nil && (r.Deleted != want || r.Lost["token.import"] != 2) {
			t.Errorf("%s: %d deleted, want %d; lost %v", name, r.Deleted, want, r.Lost)
		}
		v := l.thawed(t, s, r.ID)
		l.gone(t, v, exports != nil)
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		if exports != nil { // the log goes on from the backup
			v = auditedOn(t, s)
			for _, e := range exportsOf(t, v) {
				if _, err := audit.Verify(bytes.NewReader(e), &audit.VerifyOptions{PublicKeys: v.AuditPublicKeys()}); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestLedgerFrozen: a restored account is frozen if it was at the end of its ledger, and deletions are
// repeated in accounts that were frozen at the backup.
func TestLedgerFrozen(t *testing.T) {
	l := &ledgered{backedUp: backedUp{store: memstore.New()}}
	l.vault = auditedOn(t, l.store)
	ctx := t.Context()
	made := func(name string) uuid.UUID {
		a, err := l.vault.CreateAccount(ctx, name, nil)
		noErr(t, err)
		return a.ID
	}
	change := func(account uuid.UUID, call func(*cardvault.Vault, context.Context) (*cardvault.Account, error)) {
		t.Helper()
		_, err := call(l.vault.In(account), ctx)
		noErr(t, err)
	}
	freeze, thaw := (*cardvault.Vault).FreezeAccount, (*cardvault.Vault).ThawAccount
	thawed, frozen, both, closed, again := made("thawed"), made("frozen"), made("both"), made("closed"), made("frozen again")
	token, err := l.vault.In(thawed).Import(ctx, visa, nil)
	noErr(t, err)
	change(thawed, freeze)
	change(again, freeze)
	change(again, thaw)
	noErr(t, l.vault.Close())
	l.vault = auditedOn(t, l.store)
	early := exportsOf(t, l.vault) // of the seconds before the backup
	change(again, freeze)
	l.again(t)

	change(thawed, thaw)
	noErr(t, l.vault.In(thawed).Delete(ctx, token.ID))
	change(frozen, freeze)
	change(both, freeze)
	change(both, thaw)
	change(closed, freeze)
	change(closed, (*cardvault.Vault).CloseAccount)
	exports := exportsOf(t, l.vault)
	noErr(t, l.vault.Close())

	s := memstore.New()
	r, err := l.restore(t, s, ledgerOf(exports...))
	noErr(t, err)
	if r.Deleted != 2 || r.Lost["account.freeze"]+r.Lost["account.thaw"]+r.Lost["token.delete"] > 0 {
		t.Errorf("%d deleted, want a token and an account; lost %v", r.Deleted, r.Lost)
	}
	v := l.thawed(t, s, r.ID)
	for account, want := range map[uuid.UUID]cardvault.AccountState{
		thawed: cardvault.AccountOpen, frozen: cardvault.AccountFrozen, both: cardvault.AccountOpen, closed: cardvault.AccountClosing,
		again: cardvault.AccountFrozen,
	} {
		if a, err := v.In(account).Account(ctx); err != nil || a.State != want {
			t.Errorf("the account is %v, want %v, %v", a.State, want, err)
		}
	}
	if _, err := v.In(thawed).Get(ctx, token.ID); !errors.Is(err, cardvault.ErrNotFound) {
		t.Errorf("the deleted token: %v", err)
	}
	noErr(t, v.Close())

	s = memstore.New()
	r, err = l.restore(t, s, ledgerOf(early...))
	noErr(t, err)
	v = l.thawed(t, s, r.ID)
	if a, err := v.In(again).Account(ctx); err != nil || a.State != cardvault.AccountFrozen {
		t.Errorf("a freeze of the backup, behind the ledger, is %v, %v", a.State, err)
	}
	noErr(t, v.Close())
}

// A ledger with a break is refused, unless the caller accepts that.
func TestLedgerBroken(t *testing.T) {
	l := newLedgered(t)
	a := &audited{auditedOn(t, l.store), t, l.store}
	a.remove(a.of(auditChains)[0])
	exports := exportsOf(t, a.Vault)
	noErr(t, a.Close())

	s := memstore.New()
	if _, err := l.restore(t, s, ledgerOf(exports...)); !errors.Is(err, cardvault.ErrDamaged) || !strings.Contains(err.Error(), "broken") {
		t.Fatalf("Restore returned %v", err)
	}
	ledger := ledgerOf(exports...)
	for _, e := range exports {
		report, _ := audit.Verify(bytes.NewReader(e), nil)
		ledger.Known = append(ledger.Known, report.Gaps...)
	}
	s = memstore.New()
	r, err := l.restore(t, s, ledger)
	noErr(t, err)
	v := l.thawed(t, s, r.ID)
	l.gone(t, v, true)
	noErr(t, v.Close())
}

// A ledger that was edited, cut off or is another vault's is refused, and the vault does not
// open until the right one was read.
func TestLedgerRefused(t *testing.T) {
	l := newLedgered(t)
	foreign := newLedgered(t)
	s := memstore.New()
	refused := func(name string, log *cardvault.DeletionLedger, texts ...string) {
		t.Helper()
		_, err := l.restore(t, s, log)
		if !errors.Is(err, cardvault.ErrDamaged) || !strings.Contains(err.Error(), "ledger") {
			t.Fatalf("%s: %v", name, err)
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: the error lacks %q: %v", name, text, err)
			}
		}
		var mark *inside.Restoration
		if err := s.View(t.Context(), func(tx store.ReadTx) (err error) { mark, err = inside.RestorationOf(tx); return err }); err != nil {
			t.Fatal(err)
		}
		for _, thaw := range []uuid.UUID{{}, mark.ID} {
			_, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{Thaw: thaw})
			if !errors.Is(err, cardvault.ErrFrozen) {
				t.Fatalf("%s: New = %v", name, err)
			}
		}
	}

	first := l.later[0]
	for i := range first {
		if i%5 == 0 {
			edited := bytes.Clone(first)
			edited[i] ^= 1
			refused(fmt.Sprint("byte ", i), ledgerOf(edited, l.later[1], l.later[2]), "export 1")
		}
		if i%97 == 0 {
			refused(fmt.Sprint("cut at ", i), ledgerOf(first[:i], l.later[1], l.later[2]), "export 1")
		}
	}
	lines := bytes.SplitAfter(first, []byte("\n"))
	for i := range lines[:len(lines)-1] {
		without := bytes.Join(append(append([][]byte{}, lines[:i]...), lines[i+1:]...), nil)
		refused(fmt.Sprint("without line ", i), ledgerOf(without, l.later[1], l.later[2]), "export 1")
	}
	refused("another vault's", ledgerOf(foreign.later...), "signed")
	refused("from before the backup", ledgerOf(l.before...), "cut off")
	refused("one account's", ledgerOf(first), "no export of account")
	refused("one account's twice", ledgerOf(first, first), "no export of account")
	refused("none", ledgerOf(), "no export")

	var last *audit.Checkpoint
	report, err := audit.Verify(bytes.NewReader(l.later[0]), nil)
	if err != nil {
		t.Fatal(err)
	}
	last = report.Last
	cut := ledgerOf(l.after...)
	cut.Kept = []*audit.Checkpoint{last}
	refused("ends before a kept checkpoint", cut, "cut off")

	if _, err := l.restore(t, s, nil); !errors.Is(err, cardvault.ErrNotEmpty) {
		t.Errorf("without the ledger: %v", err)
	}
	other := *l
	other.stream = foreign.stream
	if _, err := other.restore(t, s, ledgerOf(l.later...)); !errors.Is(err, cardvault.ErrNotEmpty) {
		t.Errorf("another backup: %v", err)
	}
	whole := ledgerOf(l.later...)
	whole.Kept = []*audit.Checkpoint{last}
	r, err := l.restore(t, s, whole)
	if err != nil {
		t.Fatal(err)
	}
	v := l.thawed(t, s, r.ID)
	defer v.Close()
	l.gone(t, v, true)

	s = memstore.New()
	broken := errors.New("broken")
	if _, err := l.restore(t, s, &cardvault.DeletionLedger{Exports: []io.ReadSeeker{brokenSeeker{broken}}}); !errors.Is(err, broken) || errors.Is(err, cardvault.ErrDamaged) {
		t.Errorf("an export that cannot be read: %v", err)
	}
}

type brokenSeeker struct{ error }

func (b brokenSeeker) Read([]byte) (int, error)       { return 0, b.error }
func (b brokenSeeker) Seek(int64, int) (int64, error) { return 0, nil }

// A later audit key is named by the operator: the backup does not have it. An export that
// begins too late is refused.
func TestLedgerOfLaterKey(t *testing.T) {
	l := newLedgered(t)
	v := auditedOn(t, l.store)
	defer v.Close()
	if _, err := v.RotateSeries(t.Context(), cardvault.SeriesAudit, nil); err != nil {
		t.Fatal(err)
	}
	token, err := v.Import(t.Context(), visa, nil)
	if err == nil {
		err = v.Delete(t.Context(), token.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	exports := exportsOf(t, v)
	s := memstore.New()
	if _, err := l.restore(t, s, ledgerOf(exports...)); !errors.Is(err, cardvault.ErrDamaged) {
		t.Errorf("without the later key: %v", err)
	}
	late := ledgerOf()
	late.PublicKeys = v.AuditPublicKeys()
	for _, account := range []*cardvault.Vault{v, v.In(l.account), v.In(l.closed)} {
		var b bytes.Buffer
		if err := account.ExportAudit(t.Context(), &b, time.Now(), time.Time{}); err != nil {
			t.Fatal(err)
		}
		late.Exports = append(late.Exports, bytes.NewReader(b.Bytes()))
	}
	if _, err := l.restore(t, s, late); !errors.Is(err, cardvault.ErrDamaged) {
		t.Errorf("exports from now on: %v", err)
	}
	right := ledgerOf(exports...)
	right.PublicKeys = v.AuditPublicKeys()
	r, err := l.restore(t, s, right)
	if err != nil {
		t.Fatal(err)
	}
	restored := l.thawed(t, s, r.ID)
	defer restored.Close()
	l.gone(t, restored, true)
}

// TestLedgerKilled kills a process at every seventh step of a restoration with a ledger, or FAULTS
// processes, at each step in turn. Every time the vault does not open before the restoration was
// repeated, and then has nothing that was deleted.
func TestLedgerKilled(t *testing.T) {
	const child = "CARDVAULT_LEDGER"
	if call, ok := os.LookupEnv(child); ok {
		var left int64
		var dir string
		if _, err := fmt.Sscan(call, &left, &dir); err != nil {
			t.Fatal(err)
		}
		s := new(steps)
		s.left.Store(left)
		read := func(name string) []byte {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		keys := cardvault.WrappedBy(steppedKey{keyfile.NewKey(goldenKey()), s})
		_, err := cardvault.Restore(context.Background(), steppedStore{boltIn(t, dir), s}, keys, bytes.NewReader(read("backup")),
			&cardvault.RestoreOptions{Ledger: ledgerOf(read("first"), read("second"), read("third"))})
		if err != nil {
			t.Fatal(err)
		}
		return
	}

	l := newLedgered(t)
	half, stride := 0, 7
	if kills(0) > 0 {
		stride = 1
	}
steps:
	for step, n := 1, 0; ; step, n = step+stride, n+1 {
		dir := t.TempDir()
		for name, b := range map[string][]byte{"backup": l.stream, "first": l.later[0], "second": l.later[1], "third": l.later[2]} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, over := childKilled(t, "TestLedgerKilled", child, fmt.Sprint(step, " ", dir))

		s := boltIn(t, dir)
		r, err := l.restore(t, s, ledgerOf(l.later...))
		var id uuid.UUID
		switch {
		case err == nil:
			id = r.ID
			if r.Deleted < 5 {
				half++
			}
		case errors.Is(err, cardvault.ErrNotEmpty): // it had ended
			_, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), nil)
			_, text, _ := strings.Cut(fmt.Sprint(err), "Options.Thaw to ")
			if id, err = uuid.Parse(text); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
		default:
			t.Fatalf("step %d, repeated: %v", step, err)
		}
		v := l.thawed(t, s, id)
		l.gone(t, v, true)
		if err := errors.Join(v.Close(), s.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
		switch {
		case over && n >= kills(0):
			break steps
		case over:
			step = 0
		}
	}
	t.Logf("%d restorations were killed in the midst of their deletions", half)
	if half == 0 {
		t.Error("no restoration was killed in the midst of its deletions")
	}
}
