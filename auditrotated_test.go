package cardvault_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// A keptSink keeps all checkpoints, which Verify compares with the log.
type keptSink struct{ kept chan *audit.Checkpoint }

func (s keptSink) Keep(_ context.Context, c *audit.Checkpoint) error {
	s.kept <- c
	return nil
}

// TestAuditRotated: what a former audit key has signed stays verifiable, in the accounts of
// before and of after a rotation, and that key signs nothing more. That holds for a process that
// has not followed too.
func TestAuditRotated(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, sink := memstore.New(), keptSink{make(chan *audit.Checkpoint, 100)}
		v := openAudited(t, s, &cardvault.AuditOptions{Sink: sink}, cardvault.Sandbox)
		slow := openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox)
		former := v.AuditPublicKeys()
		v.importCard()
		v.verified()
		kept := <-sink.kept

		rotate := func() {
			t.Helper()
			if made, err := v.RotateSeries(t.Context(), cardvault.SeriesAudit, nil); err != nil || made.Replayed {
				t.Fatal(made, err)
			}
		}
		rotate()
		rotate()
		present := v.AuditPublicKeys()
		if len(former) != 1 || len(present) != 3 || !present[0].Equal(former[0]) || present[1].Equal(present[0]) || present[2].Equal(present[1]) {
			t.Fatalf("keys are %x, and were %x", present, former)
		}

		// The log of the account, and that of an account made since, whose log begins with the third key.
		v.importCard()
		report, _ := v.verified(kept)
		if want := []uint64{1, 2, 2}; !slices.EqualFunc(report.Keys, want, func(k audit.Signer, first uint64) bool { return k.First == first }) {
			t.Errorf("keys sign from %+v", report.Keys)
		}
		other, err := v.CreateAccount(t.Context(), "other", nil)
		noErr(t, err)
		of := &audited{v.In(other.ID), t, s}
		of.importCard()
		if report, _ := of.verified(kept); report.Keys[0].First != 1 || report.Keys[2].First != 1 {
			t.Errorf("keys of a later log sign from %+v", report.Keys)
		}

		// The slow process has the first key still, and follows before it signs.
		if _, err := slow.Get(t.Context(), uuid.New()); !errors.Is(err, cardvault.ErrNotFound) {
			t.Error(err)
		}
		if keys := slow.AuditPublicKeys(); len(keys) != 1 {
			t.Fatal("the process has followed too soon")
		}
		slow.verified(kept)
		if report, _ := v.verified(kept); report.Keys[2].First != 2 || report.Last.Number < 3 {
			t.Errorf("after checkpoint %d keys sign from %+v", report.Last.Number, report.Keys)
		}
		noErr(t, slow.Close())

		keys, err := v.KeyReport(t.Context())
		noErr(t, err)
		for i, want := range []cardvault.TermState{cardvault.TermDestroyed, cardvault.TermDestroyed, cardvault.TermActive} {
			if k := keys.Others[i]; k.Series != cardvault.SeriesAudit || k.State != want || int(k.Number) != i+1 {
				t.Errorf("%+v", k)
			}
		}
		if _, records := (&audited{v.In(uuid.Nil), t, s}).verified(); strings.Count(strings.Join(ops(records), ","), "keys.rotate_audit success") != 2 {
			t.Errorf("records of the rotations: %q", ops(records))
		}

		// After a restart all is as it was.
		noErr(t, v.Close())
		v = openAudited(t, s, &cardvault.AuditOptions{Sink: sink}, cardvault.Sandbox)
		v.importCard()
		v.verified(kept)
		for _, series := range []cardvault.KeySeries{"card", cardvault.SeriesID} {
			if _, err := v.RotateSeries(t.Context(), series, nil); len(cardvault.FieldErrors(err)) != 1 {
				t.Errorf("rotates series %q: %v", series, err)
			}
		}
		noErr(t, v.Close())
	})
}

// TestUnmarked: without the mark of the keyring no checkpoint is written, until a rotation
// writes the mark again.
func TestUnmarked(t *testing.T) {
	s := memstore.New()
	v := openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox)
	defer v.Close()
	v.importCard()
	noErr(t, s.Update(t.Context(), func(tx store.Tx) error {
		marks, err := tx.Scan(1, uuid.UUID{0: 2}, 9)
		if len(marks) == 0 { // of generation 0
			_, err = tx.Get(1, uuid.UUID{0: 2})
			marks = []*store.Record{{Kind: 1, ID: uuid.UUID{0: 2}}}
		}
		for _, m := range marks {
			tx.Delete(m.Kind, m.ID)
		}
		return err
	}))
	if err := v.ExportAudit(t.Context(), io.Discard, time.Time{}, time.Time{}); !errors.Is(err, cardvault.ErrDamaged) || !strings.Contains(err.Error(), "RotateKeys") {
		t.Errorf("an export without a mark: %v", err)
	}
	_, err := v.RotateKeys(t.Context(), nil)
	noErr(t, err)
	v.verified()
}
