package cardvault_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store/memstore"
)

// TestAuditClockStepsBackMeanwhile: the clock of a process steps back while records wait for
// their checkpoint, and later forward. Their sequence is kept, their times show the steps, and
// a record that is removed is noticed. A bubble has a clock of its own, which here stands behind
// that of the machine.
func TestAuditClockStepsBackMeanwhile(t *testing.T) {
	for _, step := range []time.Duration{200 * time.Millisecond, 5 * time.Second, 3 * time.Hour, 20 * 365 * 24 * time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			k := new(keeper)
			v := openAudited(t, memstore.New(), &cardvault.AuditOptions{Sink: k}, cardvault.Sandbox)
			defer v.Close()
			var tokens []string
			imports := func() {
				for range 3 {
					tokens = append(tokens, v.importCard().ID.String())
				}
			}
			imports()

			before := time.Now()
			bubble.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(before.Add(-step)))
				imports()
				time.Sleep(1500 * time.Millisecond)
				imports()
				time.Sleep(5 * time.Second) // no timer of the bubble is left
				v := &audited{v.Vault, t, v.store}
				v.verified(k.all()...)
			})
			imports()

			var in, back []string
			var last *audit.Record
			sequences := map[[16]byte]uint64{}
			_, records := v.verified(k.all()...)
			for _, r := range records {
				if former := sequences[r.Lane]; r.Sequence <= former {
					t.Errorf("record %d comes after %d", r.Sequence, former)
				}
				sequences[r.Lane] = r.Sequence
				if r.Operation != "token.import" {
					continue
				}
				in = append(in, r.ObjectID.String())
				if last != nil && r.At.Before(last.At) {
					back = append(back, r.ObjectID.String())
				}
				last = r
			}
			if !slices.Equal(in, tokens) || len(back) == 0 || back[0] != tokens[3] {
				t.Errorf("records of %q, and back in time at %q, want %q", in, back, tokens)
			}

			v.remove(v.of(auditRecords)[4])
			var found *audit.VerifyError
			if _, _, err := v.verify(k.all()...); !errors.As(err, &found) || found.Fault != audit.Removed || found.Sequence == 0 {
				t.Errorf("Verify returned %v", err)
			}
		})
	}
}
