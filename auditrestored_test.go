package cardvault_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// state returns all records of the store.
func (a *audited) state() (all []*store.Record) {
	a.t.Helper()
	for kind := store.Kind(1); kind != 0; kind++ {
		for _, r := range a.rows(kind) {
			all = append(all, r.Clone())
		}
	}
	return all
}

// restore replaces all records of the store, as one who puts back a dump of it.
func (a *audited) restore(state []*store.Record) {
	a.t.Helper()
	present := a.state()
	noErr(a.t, a.store.Update(a.t.Context(), func(tx store.Tx) error {
		for _, r := range present {
			tx.Delete(r.Kind, r.ID)
		}
		return nil
	}))
	for version, more := uint64(1), true; more; version++ { // a store takes versions one by one
		more = false
		noErr(a.t, a.store.Update(a.t.Context(), func(tx store.Tx) error {
			for _, r := range state {
				if r.Version < version {
					continue
				}
				more = true
				next := r.Clone()
				next.Version = version
				tx.Put(next)
			}
			return nil
		}))
	}
}

// TestAuditRestored: a store is put back to before a rotation or a revocation, which is undone.
// A process that runs meanwhile notices a rotation: its keyring has no mark in that store. A
// new process does not, since the store of then was in order. Only Verify does, by a
// checkpoint that was kept elsewhere: the log ends before it, and later has another of its number.
func TestAuditRestored(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*audited, uuid.UUID) error // the id is of an API key
		marked bool                            // a running process notices that it is undone
	}{
		"master key": {func(v *audited, _ uuid.UUID) error {
			_, err := v.RotateKeys(v.t.Context(), nil)
			return err
		}, true},
		"audit key": {func(v *audited, _ uuid.UUID) error {
			_, err := v.RotateSeries(v.t.Context(), cardvault.SeriesAudit, nil)
			return err
		}, true},
		"API key": {func(v *audited, key uuid.UUID) error { return v.DeleteAPIKey(v.t.Context(), key) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				k, s, ctx := new(keeper), memstore.New(), t.Context()
				v := openAudited(t, s, &cardvault.AuditOptions{Sink: k}, cardvault.Sandbox)
				key, err := v.CreateAPIKey(ctx, "shop", cardvault.AllScopes(), nil)
				noErr(t, err)
				text := key.Text.Text()
				time.Sleep(2 * time.Second)
				backup := v.state()

				before := len(v.AuditPublicKeys())
				noErr(t, c.change(v, key.ID))
				for range 3 {
					v.importCard()
					time.Sleep(2 * time.Second)
				}
				v.verified(k.all()...)
				keys, kept := v.AuditPublicKeys(), k.all()
				_, err = v.Authenticate(ctx, text)
				if revoked := errors.Is(err, cardvault.ErrUnauthenticated); revoked != (name == "API key") {
					t.Errorf("before the restoration: %v", err)
				}

				v.restore(backup)
				err = v.ExportAudit(ctx, new(bytes.Buffer), time.Time{}, time.Time{})
				if marked := errors.Is(err, cardvault.ErrDamaged); marked != c.marked {
					t.Errorf("the running process returns %v", err)
				}
				_ = v.Close()
				v.restore(backup)

				v = openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox)
				if n := len(v.AuditPublicKeys()); n != before {
					t.Errorf("%d audit keys after the restoration", n)
				}
				if _, err := v.Authenticate(ctx, text); err != nil {
					t.Errorf("the revocation is not undone: %v", err)
				}
				notices := func(want audit.Fault) {
					t.Helper()
					v.importCard()
					var found *audit.VerifyError
					_, err := audit.Verify(bytes.NewReader(v.export()), &audit.VerifyOptions{PublicKeys: keys, Kept: kept})
					if !errors.As(err, &found) || found.Fault != want {
						t.Errorf("Verify returned %v", err)
					}
				}
				v.verified() // in itself it is whole
				notices(audit.CutOff)
				for range 5 {
					v.importCard()
					time.Sleep(2 * time.Second)
				}
				notices(audit.Replayed)
				noErr(t, v.Close())
			})
		})
	}
}
