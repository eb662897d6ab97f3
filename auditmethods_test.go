package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// unrecorded are the methods of a vault without a record in the audit log, with the reason.
var unrecorded = map[string]string{
	"Check":           "looks at the card alone",
	"Close":           "is recorded as audit.stop, and ends the vault",
	"Run":             "does background work",
	"Drain":           "does background work",
	"Reseal":          "does background work",
	"RecordRefusal":   "records for others",
	"ExportAudit":     "records itself before it reads: see TestAudit",
	"ChangeKeyring":   "needs a keyring: see TestAuditKeys",
	"Forward":         "needs a call of package forward, which records each use",
	"AuditPublicKeys": "returns keys that are public",
}

// succeeding returns arguments with which methods succeed, behind their context. Others are called
// without any, and most of them are refused.
func (a *audited) succeeding() map[string][]any {
	a.t.Helper()
	ctx := a.t.Context()
	token, gone := a.importCard().ID, a.importCard().ID
	session, err := a.CreateSession(ctx, nil)
	noErr(a.t, err)
	merchant, err := a.PrimaryMerchant(ctx)
	noErr(a.t, err)
	secret, err := a.RotatePaymentSecret(ctx, merchant.ID, nil)
	noErr(a.t, err)
	key, err := a.CreateAPIKey(ctx, "key", cardvault.AllScopes(), nil)
	noErr(a.t, err)
	used := func(context.Context, *cardvault.UsedCard) error { return nil }
	approved := cardvault.AccountUpdate{ImportApproved: new(true)}
	return map[string][]any{
		"APIKey": {key.ID}, "CreateAPIKey": {"other", cardvault.AllScopes()}, "DeleteAPIKey": {key.ID},
		"Account": {}, "CreateAccount": {"second"}, "ListAccounts": {}, "UpdateAccount": {approved},
		"CreateMerchant": {"shop"}, "EnsureMerchant": {"till"}, "ListMerchants": {}, "Merchant": {merchant.ID}, "PrimaryMerchant": {},
		"RotatePaymentSecret": {merchant.ID}, "RevokePaymentSecret": {merchant.ID, secret.KeyID},
		"CreateSession": {}, "Session": {session.ID}, "SessionStatus": {session.ID}, "Tokenize": {session.ID, a.card()},
		"Delete": {gone}, "Get": {token}, "Import": {a.card()}, "List": {}, "ListPaymentData": {token}, "RefreshSession": {token},
		"SecurityCodeStatus": {token}, "Update": {token, cardvault.TokenUpdate{BusinessKey: new("order")}}, "Use": {token, "test", used},
		"Backup": {new(bytes.Buffer)}, "KeyReport": {}, "RotateKeys": {}, "Repair": {}, "Verify": {}, "ListAPIKeys": {}, "ListWebhooks": {},
	}
}

// TestAuditMethods: every method of a vault that can fail has a record, whether it succeeds, is refused
// or reads. A new method needs an entry in recordedCalls, or a reason here.
func TestAuditMethods(t *testing.T) {
	v := openAudited(t, memstore.New(), &cardvault.AuditOptions{Reads: true}, cardvault.Sandbox)
	defer v.Close()
	right, reached := v.succeeding(), map[string]bool{}
	count := func() (n, successes int) {
		for _, handle := range []*cardvault.Vault{v.Vault, v.In(uuid.Nil)} {
			if err := handle.ExportAudit(t.Context(), new(bytes.Buffer), time.Time{}, time.Time{}); err != nil {
				t.Fatal(err)
			}
			page, err := handle.AuditRecords(t.Context(), &cardvault.AuditQuery{Limit: cardvault.MaxLimit})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range page.Records {
				if r.Operation != "audit.export" && r.Operation != "audit.read" {
					n++
					if r.Outcome == audit.Success {
						successes++
					}
				}
			}
		}
		return n, successes
	}

	failure := reflect.TypeFor[error]()
	of := reflect.ValueOf(v.Vault)
	var names []string
	for i := range of.NumMethod() {
		names = append(names, of.Type().Method(i).Name)
	}
	ends := func(name string) bool { return name == "CloseAccount" || name == "FreezeAccount" }
	slices.SortStableFunc(names, func(a, b string) int { // the account is needed before
		switch {
		case ends(a) == ends(b):
			return 0
		case ends(a):
			return 1
		}
		return -1
	})
	for _, name := range names {
		method := of.MethodByName(name)
		typ := method.Type()
		fails := typ.NumOut() > 0 && (typ.Out(typ.NumOut()-1) == failure || typ.Out(0).CanSeq2())
		if reason := unrecorded[name]; reason != "" || !fails || name == "AuditRecords" || name == "AllAuditRecords" {
			continue
		}

		before, successes := count()
		given, succeeds := right[name]
		var args []reflect.Value
		for j := range typ.NumIn() {
			arg := reflect.Zero(typ.In(j))
			if typ.In(j) == reflect.TypeFor[context.Context]() {
				arg = reflect.ValueOf(t.Context())
			} else if len(given) > 0 {
				arg, given = reflect.ValueOf(given[0]), given[1:]
			}
			args = append(args, arg)
		}
		if typ.IsVariadic() {
			args = args[:len(args)-1]
		}
		out := method.Call(args)
		if typ.Out(0).CanSeq2() {
			for range out[0].Seq2() {
			}
		}
		after, now := count()
		if after == before {
			t.Errorf("%s has no record in the audit log", name)
		}
		reached[name] = true
		if err := out[len(out)-1]; succeeds && (!err.IsNil() || now == successes) {
			t.Errorf("%s returned %v, with %d records of success", name, err, now-successes)
		}
	}
	for name := range right {
		if !reached[name] {
			t.Errorf("%s is called without arguments, or is no method", name)
		}
	}
	for name := range unrecorded {
		if _, ok := of.Type().MethodByName(name); !ok {
			t.Errorf("%s is no method of a vault", name)
		}
	}
}

// TestAuditKeys: each change of the vault's keys has its record, with the caller, and a term that
// cannot be retired yet has one of a refused call.
func TestAuditKeys(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := openAudited(t, memstore.New(), &cardvault.AuditOptions{}, cardvault.Sandbox)
		v.importCard()
		ctx := cardvault.WithActor(t.Context(), cardvault.Actor{Name: "operator"})
		for _, s := range []cardvault.KeySeries{cardvault.SeriesAudit, cardvault.SeriesFingerprint, cardvault.SeriesLookup} {
			_, err := v.RotateSeries(ctx, s, nil)
			noErr(t, err)
		}
		_, err := v.RotateKeys(ctx, nil)
		noErr(t, err)
		noErr(t, v.ChangeKeyring(ctx, mustKeyBytes(t, bytes.Repeat([]byte{9}, cardvault.KeySize))))
		for range 2 { // the first one closes the term, the second does nothing
			var inUse *cardvault.TermInUseError
			if err := v.RetireTerm(ctx, 1); !errors.As(err, &inUse) {
				t.Fatal(err)
			}
		}
		for range 4 {
			noErr(t, v.Drain(t.Context()))
			time.Sleep(25 * time.Hour)
		}
		noErr(t, v.RetireTerm(ctx, 1))

		want := map[string]bool{"keys.rotate_audit success": true, "keys.rotate_fingerprint success": true, "keys.rotate_lookup success": true,
			"keys.rotate success": true, "keys.change success": true, "keys.retire refused TERM_IN_USE": true, "keys.retire success": true}
		_, records := (&audited{v.In(uuid.Nil), t, v.store}).verified()
		for _, r := range records {
			if r.Actor.Name == "operator" {
				delete(want, ops([]*audit.Record{r})[0])
			}
		}
		if len(want) > 0 {
			t.Errorf("no records of the operator: %v; there are %q", want, ops(records))
		}
		noErr(t, v.Close())
	})
}

// TestAuditCredentials: so has each call for a credential of a destination.
func TestAuditCredentials(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := openAudited(t, memstore.New(), &cardvault.AuditOptions{Reads: true}, cardvault.Sandbox)
		c := v.ForwardCredentials()
		noErr(t, c.Set(t.Context(), "psp", "key", []byte("a secret")))
		_, err := c.Get(t.Context(), "psp", "key")
		noErr(t, err)
		noErr(t, c.Delete(t.Context(), "psp", "key"))
		if err := c.Delete(t.Context(), "psp", "key"); !errors.Is(err, cardvault.ErrNotFound) {
			t.Fatal(err)
		}

		_, records := v.verified()
		got := ops(records)
		for _, want := range []string{"credential.set success", "credential.read success", "credential.delete success", "credential.delete refused NOT_FOUND"} {
			if !slices.Contains(got, want) {
				t.Errorf("no record %q; there are %q", want, got)
			}
		}
		noErr(t, v.Close())
	})
}
