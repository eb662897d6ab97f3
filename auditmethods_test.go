package cardvault_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
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

// TestAuditMethods: every method of a vault that can fail has a record, whether it is refused
// or reads. A new method needs an entry in recordedCalls, or a reason here.
func TestAuditMethods(t *testing.T) {
	v := openAudited(t, memstore.New(), &cardvault.AuditOptions{Reads: true}, cardvault.Sandbox)
	defer v.Close()
	count := func() (n int) {
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
				}
			}
		}
		return n
	}

	failure := reflect.TypeFor[error]()
	of := reflect.ValueOf(v.Vault)
	for i := range of.NumMethod() {
		name, method := of.Type().Method(i).Name, of.Method(i)
		typ := method.Type()
		fails := typ.NumOut() > 0 && (typ.Out(typ.NumOut()-1) == failure || typ.Out(0).CanSeq2())
		if reason := unrecorded[name]; reason != "" || !fails || name == "AuditRecords" || name == "AllAuditRecords" {
			continue
		}

		before := count()
		var args []reflect.Value
		for j := range typ.NumIn() {
			arg := reflect.Zero(typ.In(j))
			if typ.In(j) == reflect.TypeFor[context.Context]() {
				arg = reflect.ValueOf(t.Context())
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
		if after := count(); after == before {
			t.Errorf("%s has no record in the audit log", name)
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
