package cardvault_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// imported returns the ids of the tokens whose import has a record, sorted.
func (a *audited) imported() (ids []string) {
	a.t.Helper()
	for r, err := range a.AllAuditRecords(a.t.Context(), &cardvault.AuditQuery{Operation: "token.import", Limit: cardvault.MaxLimit}) {
		noErr(a.t, err)
		if r.Outcome == audit.Success {
			ids = append(ids, r.ObjectID.String())
		}
	}
	slices.Sort(ids)
	return ids
}

// stored returns the ids of the stored tokens, sorted.
func (a *audited) stored() (ids []string) {
	a.t.Helper()
	for token, err := range a.All(a.t.Context(), nil) {
		noErr(a.t, err)
		ids = append(ids, token.ID.String())
	}
	slices.Sort(ids)
	return ids
}

// A slowStore takes a second of a bubble for each write.
type slowStore struct{ store.Store }

func (s slowStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	time.Sleep(time.Second)
	return s.Store.Update(ctx, fn)
}

// TestAuditSealWaits: after a rotation the record of a refused call waits until the store grants its
// seal. The next rotation does not wait for a lock that is held meanwhile: time would stand still.
func TestAuditSealWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := openAudited(t, slowStore{memstore.New()}, &cardvault.AuditOptions{}, cardvault.Sandbox)
		for range 3 {
			_, err := v.RotateKeys(t.Context(), nil)
			noErr(t, err)
			if err := v.RetireTerm(t.Context(), 99); !errors.Is(err, cardvault.ErrTermUnknown) {
				t.Errorf("a term that never was: %v", err)
			}
			time.Sleep(1500 * time.Millisecond) // in the bubble: its record is being written at this moment
		}
		noErr(t, v.Close())
	})
}

// An unsureStore loses the answer to writes, while it is on: every other one is made.
type unsureStore struct {
	store.Store
	on    atomic.Bool
	calls atomic.Int64
}

func (s *unsureStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	if !s.on.Load() {
		return s.Store.Update(ctx, fn)
	}
	if s.calls.Add(1)%2 == 0 {
		if err := s.Store.Update(ctx, fn); err != nil {
			return err
		}
	}
	return store.ErrOutcomeUnknown
}

// TestAuditOutcomeUnknown: a change whose commit has an unknown outcome has its record if it was
// made, and no record if it was not.
func TestAuditOutcomeUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &unsureStore{Store: memstore.New()}
		v := openAudited(t, s, &cardvault.AuditOptions{}, cardvault.Sandbox)
		v.importCard()
		time.Sleep(2 * time.Second)

		unknown := 0
		for range 5 {
			s.on.Store(true)
			for range 4 {
				if _, err := v.Import(t.Context(), v.card(), nil); errors.Is(err, cardvault.ErrOutcomeUnknown) {
					unknown++
				}
			}
			time.Sleep(2 * time.Second)
			s.on.Store(false)
			v.importCard()
			time.Sleep(2 * time.Second)
		}
		time.Sleep(3 * time.Minute)
		noErr(t, v.Drain(t.Context()))

		report, records := v.verified()
		seen := map[[audit.MACSize]byte]bool{}
		for _, r := range records {
			if seen[r.MAC] {
				t.Errorf("%s is in the export twice", r.Operation)
			}
			seen[r.MAC] = true
		}
		stored, recorded := v.stored(), v.imported()
		if !slices.Equal(stored, recorded) || unknown == 0 || len(stored) == 6 || len(stored) == 26 || report.Open != 0 {
			t.Errorf("%d tokens, %d records, %d unknown outcomes, report %+v", len(stored), len(recorded), unknown, report)
		}
		noErr(t, v.Close())
	})
}

// TestAuditClockStepsBack: the log of a vault whose clock is set back by hours is whole, and a
// record that is removed from it is noticed.
func TestAuditClockStepsBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cardvault.db")
	k := new(keeper)
	total := 0
	for _, ahead := range []time.Duration{5 * time.Hour, 3 * time.Hour, 0, 4 * time.Hour} { // each bubble begins at the same time
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(ahead)
			s, err := boltstore.Open(t.Context(), path, nil)
			noErr(t, err)
			v := openAudited(t, s, &cardvault.AuditOptions{Sink: k}, cardvault.Sandbox)
			for range 3 {
				v.importCard()
				time.Sleep(1500 * time.Millisecond)
			}
			total += 3
			noErr(t, v.Drain(t.Context()))
			v.verified(k.all()...)
			if n := len(v.imported()); n != total {
				t.Errorf("%d imports have a record, want %d", n, total)
			}
			if ahead == 4*time.Hour {
				v.remove(v.of(auditRecords)[4])
				var found *audit.VerifyError
				if _, _, err := v.verify(k.all()...); !errors.As(err, &found) || found.Fault != audit.Removed {
					t.Errorf("Verify returned %v", err)
				}
			}
			noErr(t, v.Close())
			noErr(t, s.Close())
		})
	}
}

// A keptFolder keeps each checkpoint in a file that nothing replaces.
type keptFolder string

func (dir keptFolder) Keep(_ context.Context, c *audit.Checkpoint) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	name := filepath.Join(string(dir), fmt.Sprintf("%v-%d", c.AccountID, c.Number))
	if err := os.WriteFile(name+".part", text, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".part", name)
}

func (dir keptFolder) all(t *testing.T) (all []*audit.Checkpoint) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(string(dir), "*-*[0-9]"))
	noErr(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		noErr(t, err)
		c := new(audit.Checkpoint)
		noErr(t, json.Unmarshal(text, c))
		all = append(all, c)
	}
	return all
}

// TestAuditKilled: a process is killed while it imports. Each acknowledged import has its record
// and its token, none has one without the other, and the log is whole by all checkpoints that
// were kept. FAULTS is the number of kills.
func TestAuditKilled(t *testing.T) {
	const child = "CARDVAULT_TEST_AUDIT"
	open := func(dir string) *audited {
		v, err := cardvault.Open(t.Context(), filepath.Join(dir, "vault"), mustKeyBytes(t, goldenKey()), &cardvault.Options{
			Mode: cardvault.Sandbox, Audit: &cardvault.AuditOptions{Sink: keptFolder(filepath.Join(dir, "kept")), Failure: cardvault.AuditRefuse},
		})
		noErr(t, err)
		return &audited{Vault: v, t: t}
	}
	if dir := os.Getenv(child); dir != "" {
		v := open(dir)
		for range 100_000 {
			fmt.Println("imported", v.importCard().ID)
		}
		t.Fatal("it was not killed")
	}

	kills := kills(5)
	var dir string
	var acknowledged []string
	for kill := range kills {
		if kill%50 == 0 {
			dir, acknowledged = t.TempDir(), nil
			noErr(t, os.Mkdir(filepath.Join(dir, "kept"), 0o700))
		}
		acknowledged = append(acknowledged, importUntilKilled(t, child+"="+dir)...)

		v := open(dir)
		v.verified(keptFolder(filepath.Join(dir, "kept")).all(t)...)
		stored, recorded := v.stored(), v.imported()
		if !slices.Equal(stored, recorded) {
			t.Fatalf("kill %d: %d tokens, %d records", kill, len(stored), len(recorded))
		}
		for _, id := range acknowledged {
			if _, found := slices.BinarySearch(recorded, id); !found {
				t.Fatalf("kill %d: an acknowledged import has no record", kill)
			}
		}
		noErr(t, v.Close())
	}
	t.Logf("%d kills, %d imports acknowledged since the last new vault", kills, len(acknowledged))
}

// importUntilKilled runs TestAuditKilled in a process that is killed soon after its first
// import, and returns the ids of the tokens that it has acknowledged.
func importUntilKilled(t *testing.T, env string) (ids []string) {
	t.Helper()
	process := exec.Command(os.Args[0], "-test.run=^TestAuditKilled$")
	process.Env = append(os.Environ(), env)
	out, err := process.StdoutPipe()
	noErr(t, err)
	noErr(t, process.Start())
	var text strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		text.WriteString(lines.Text() + "\n")
		id, ok := strings.CutPrefix(lines.Text(), "imported ")
		if _, err := uuid.Parse(id); !ok || err != nil {
			continue
		}
		if ids = append(ids, id); len(ids) == 1 {
			time.AfterFunc(rand.N(1500*time.Millisecond), func() { _ = process.Process.Kill() }) // also between checkpoints
		}
	}
	if err := process.Wait(); err == nil || len(ids) == 0 {
		t.Fatalf("nothing was imported: %v\n%s", err, text.String())
	}
	return ids
}
