package cardvault_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// TestResealKilled: a process is killed while it rotates keys and seals records anew. The next
// reads every card, and seals all of them under the present term. FAULTS is the number of
// kills.
func TestResealKilled(t *testing.T) {
	const child, tokens = "CARDVAULT_TEST_RESEAL", 300
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{3}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	open := func(dir string) *cardvault.Vault {
		v, err := cardvault.Open(t.Context(), dir, keys, &cardvault.Options{Purposes: []string{"test"}})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	rotate := func(v *cardvault.Vault) {
		if _, err := v.RotateKeys(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if err := v.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if dir := os.Getenv(child); dir != "" {
		v := open(dir)
		for n := range 1000 {
			fmt.Println("rotates", n)
			rotate(v)
		}
		t.Fatal("it was not killed")
	}

	var dir string
	var ids []uuid.UUID
	for kill := range kills(5) {
		if kill%100 == 0 { // a keyring has room for 475 terms
			dir, ids = filepath.Join(t.TempDir(), "vault"), nil
			v := open(dir)
			for n := range tokens {
				token, err := v.Import(t.Context(), cardvault.Card{PAN: card.NewPAN([]byte(resealed(n))), Expiry: visa.Expiry}, nil)
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, token.ID)
			}
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
		}
		killed(t, child+"="+dir)

		v := open(dir)
		rotate(v)
		for n, id := range ids {
			err := v.Use(t.Context(), id, "test", func(_ context.Context, c *cardvault.UsedCard) error {
				c.PAN.Expose(func(b []byte) {
					if string(b) != resealed(n) {
						t.Errorf("token %d has another card", n)
					}
				})
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if report, err := v.KeyReport(t.Context()); err != nil || report.Unreadable > 0 || len(report.Terms[len(report.Terms)-2].Records) > 0 {
			t.Errorf("%+v, %v", report, err)
		}
		if page, err := v.List(t.Context(), nil); err != nil || page.TotalItems != tokens {
			t.Errorf("%v, %d tokens, want %d", err, page.TotalItems, tokens)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killed runs TestResealKilled in a process, and kills it soon after it has begun to rotate.
func killed(t *testing.T, env string) {
	t.Helper()
	process := exec.Command(os.Args[0], "-test.run=^TestResealKilled$")
	process.Env = append(os.Environ(), env)
	out, err := process.StdoutPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	rotations := 0
	for lines := bufio.NewScanner(out); rotations < 1 && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "rotates %d", &rotations) // else it is another line
	}
	time.Sleep(rand.N(20 * time.Millisecond))
	if err := process.Process.Kill(); err != nil || rotations == 0 {
		t.Fatal("nothing was rotated:", err)
	}
	_ = process.Wait() // it was killed
}

// resealed returns the number of a card.
func resealed(n int) string {
	digits := fmt.Sprintf("41111100%07d", n)
	sum := 0
	for i := range len(digits) {
		d := int(digits[len(digits)-1-i] - '0')
		if i%2 == 0 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
	}
	return digits + strconv.Itoa((10-sum%10)%10)
}

// TestKeyReport: the report has the age of each term, which is warned of once an hour.
func TestKeyReport(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log, s := new(lockedBuffer), memstore.New()
		v, err := cardvault.New(t.Context(), s, newKey(t), &cardvault.Options{
			CryptoPeriod: 48 * time.Hour, Logger: slog.New(slog.NewTextHandler(log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		imported(t, v)
		report := func() []cardvault.KeyTerm {
			t.Helper()
			r, err := v.KeyReport(t.Context())
			if err != nil || r.Unreadable != 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			return r.Terms
		}
		run := func(d time.Duration) (warnings int) {
			t.Helper()
			before := strings.Count(log.text(), "call RotateKeys")
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			if err := v.Run(ctx); err != nil {
				t.Error(err)
			}
			return strings.Count(log.text(), "call RotateKeys") - before
		}

		run(47 * time.Hour)
		if r := report(); len(r) != 1 || r[0].State != cardvault.TermActive || r[0].Age < 47*time.Hour || r[0].Overdue || r[0].Records["token"] != 1 || r[0].Records["account"] != 1 {
			t.Errorf("%+v", r)
		}
		if n := run(3*time.Hour + 30*time.Minute); n != 2 {
			t.Errorf("%d warnings in the first hour and a half that it is overdue, want 2", n)
		}
		if n := strings.Count(log.text(), "call RotateSeries\" series=fingerprint"); n != 2 {
			t.Errorf("%d warnings of the fingerprint key, want 2", n)
		}
		if r := report(); !r[0].Overdue {
			t.Errorf("not overdue: %+v", r)
		}
		if _, err := v.RotateKeys(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if r := report(); len(r) != 2 || r[0].State != cardvault.TermReadable || !r[0].Overdue || r[0].Records["token"] != 1 || r[1].State != cardvault.TermActive || r[1].Records["token"] != 0 {
			t.Errorf("after a rotation: %+v", r)
		}
		if n := run(time.Hour); n != 0 {
			t.Error("warned of a new term")
		}
		if r := report(); r[0].Overdue || len(r[0].Records) != 0 || r[1].Records["token"] != 1 || r[1].Age < time.Hour || r[1].Age > 2*time.Hour {
			t.Errorf("after all was sealed anew: %+v", r)
		}
	})
}

// TestWrappingsReported: key-encryption keys are reported with their age. A vault that goes back to a
// former key does not make it younger.
func TestWrappingsReported(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		former := newKey(t)
		v, err := cardvault.New(t.Context(), memstore.New(), former, &cardvault.Options{CryptoPeriod: 48 * time.Hour})
		noErr(t, err)
		defer v.Close()
		report := func() []cardvault.KeyWrapping {
			t.Helper()
			r, err := v.KeyReport(t.Context())
			noErr(t, err)
			return r.Wrappings
		}

		first := report()
		if len(first) != 1 || first[0].KeyID == "" || first[0].Age > time.Second || first[0].Overdue {
			t.Errorf("at first %+v", first)
		}
		time.Sleep(49*time.Hour + 30*time.Minute)
		if old := report(); !old[0].Overdue || old[0].Age < 49*time.Hour {
			t.Errorf("after 49 hours %+v", old)
		}

		noErr(t, v.ChangeKeyring(t.Context(), newKey(t)))
		time.Sleep(time.Hour)
		both := report()
		if len(both) != 2 || both[0].KeyID != first[0].KeyID || both[1].KeyID == first[0].KeyID {
			t.Fatalf("after the change %+v", both)
		}
		if both[0].Overdue || both[1].Overdue || both[0].Age.Round(time.Minute) != 49*time.Hour+30*time.Minute || both[1].Age.Round(time.Minute) != time.Hour {
			t.Errorf("after the change %+v", both)
		}
		noErr(t, v.ChangeKeyring(t.Context(), former))
		if back := report(); len(back) != 3 || back[2].KeyID != first[0].KeyID || back[2].Age < 50*time.Hour || !back[2].Overdue {
			t.Errorf("after the change back %+v", back)
		}
	})
}

// TestReseal: a program without the sink of the vault seals records anew, and leaves expired
// tokens to a process that passes their events on.
func TestReseal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, keys, sink := memstore.New(), newKey(t), new(vaulttest.Recorder)
		open := func(events cardvault.EventSink) *cardvault.Vault {
			v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Events: events})
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		served := open(sink)
		defer served.Close()
		imported(t, served)
		session, err := served.CreateSession(t.Context(), &cardvault.SessionOptions{TokenTTL: time.Minute})
		if err == nil {
			_, err = served.Tokenize(t.Context(), session.ID, visa)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)

		v := open(nil)
		defer v.Close()
		if _, err := v.RotateKeys(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if err := v.Reseal(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r, err := v.KeyReport(t.Context()); err != nil || len(r.Terms[0].Records) != 0 || r.Terms[1].Records["token"] != 2 {
			t.Errorf("%+v, %v", r, err)
		}
		if err := served.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		var types []string
		for _, e := range sink.Events() {
			types = append(types, string(e.Type)+" "+string(e.Reason))
		}
		if !slices.Contains(types, expiredEvent) {
			t.Errorf("events are %q", types)
		}
	})
}
