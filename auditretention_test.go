package cardvault_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
)

// A sharedLog is a log that is read while it is written.
type sharedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *sharedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *sharedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// spoil flips a bit of stored records.
func (a *audited) spoil(records ...*store.Record) {
	for _, r := range records {
		r = r.Clone()
		r.Shown[len(r.Shown)-20] ^= 1
		a.put(r)
	}
}

// TestAuditRetentionDamaged: damage of the log does not keep records beyond their age, and is
// logged before it is forgotten. What is left is whole.
func TestAuditRetentionDamaged(t *testing.T) {
	const retention = time.Hour
	for name, c := range map[string]struct {
		damage func(*audited)
		says   []string
	}{
		"a checkpoint is removed": {func(v *audited) { v.remove(v.of(auditCheckpoints)[0]) }, []string{"from=1 to=1", "without a checkpoint"}},
		"a checkpoint is damaged": {func(v *audited) { v.spoil(v.of(auditCheckpoints)[2]) }, []string{"from=3 to=3", "without a checkpoint"}},
		"many are removed": {func(v *audited) {
			for _, r := range v.of(auditCheckpoints)[1:5] {
				v.remove(r)
			}
		}, []string{"from=2", "without a checkpoint"}},
		"all are damaged":     {func(v *audited) { v.spoil(v.of(auditCheckpoints)...) }, []string{"from=1", "without a checkpoint"}},
		"a record is damaged": {func(v *audited) { v.spoil(v.of(auditRecords)[3]) }, []string{"without a checkpoint"}},
		"all of it": {func(v *audited) {
			v.spoil(v.of(auditRecords)...)
			v.spoil(v.of(auditCheckpoints)...)
		}, []string{"from=1", "without a checkpoint"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				log := new(sharedLog)
				s := memstore.New()
				v, err := cardvault.New(t.Context(), s, mustKeyBytes(t, goldenKey()), &cardvault.Options{
					Mode: cardvault.Sandbox, Audit: &cardvault.AuditOptions{Retention: retention}, Logger: slog.New(slog.NewTextHandler(log, nil)),
				})
				noErr(t, err)
				a := &audited{v, t, s}
				for range 6 {
					a.importCard()
					time.Sleep(5 * time.Minute)
				}
				c.damage(a)
				for range 12 * 3 {
					time.Sleep(5 * time.Minute)
					noErr(t, v.Drain(t.Context()))
				}

				for _, r := range a.of(auditRecords) {
					if time.Since(rowkey.Time(r.ID)) > retention+15*time.Minute {
						t.Errorf("a record of %v is left", rowkey.Time(r.ID))
					}
				}
				for _, want := range c.says {
					if !strings.Contains(log.String(), want) {
						t.Errorf("the log does not say %q: %s", want, log)
					}
				}
				a.importCard()
				if report, _ := a.verified(); report.First <= 6 {
					t.Errorf("the log begins with checkpoint %d", report.First)
				}
				noErr(t, v.Close())
			})
		})
	}
}

// TestAuditRetentionLate: records whose checkpoint was written long after them, because no
// process worked, are not taken for left over: the log is whole at any time.
func TestAuditRetentionLate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		dying := &killable{Store: s}
		first := openAudited(t, dying, &cardvault.AuditOptions{}, cardvault.Sandbox)
		v := openAudited(t, s, &cardvault.AuditOptions{Retention: time.Hour}, cardvault.Sandbox)
		v.importCard()
		for range 5 {
			first.importCard()
		}
		dying.dead.Store(true)
		time.Sleep(20 * time.Minute)
		v.importCard() // and no process calls Run
		time.Sleep(20 * time.Minute)
		for range 40 {
			v.importCard()
			noErr(t, v.Drain(t.Context()))
			v.verified()
			time.Sleep(5 * time.Minute)
		}
		for _, r := range v.of(auditRecords) {
			if time.Since(rowkey.Time(r.ID)) > 2*time.Hour {
				t.Errorf("a record of %v is left", rowkey.Time(r.ID))
			}
		}
		noErr(t, v.Close())
		_ = first.Close()
	})
}
