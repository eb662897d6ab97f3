package cardvault_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// vaultsuite.Run tests replacements on any store. The tests here take time, kill a process, or
// look for the former number.

var replacedBy = cardvault.Card{PAN: card.NewPAN([]byte("5555555555554444")), Expiry: card.Expiry{Month: 1, Year: 2031}}

// TestReplaceKilled kills processes amid replacements. Each time the token has the card of the
// last acknowledged replacement, or of the next.
func TestReplaceKilled(t *testing.T) {
	const child = "CARDVAULT_REPLACE_IN"
	key := make([]byte, cardvault.KeySize)
	open := func(t *testing.T, dir string) *cardvault.Vault {
		keys, err := cardvault.KeyBytes(key)
		if err != nil {
			t.Fatal(err)
		}
		v, err := cardvault.Open(t.Context(), dir, keys, &cardvault.Options{Mode: cardvault.Sandbox, Purposes: []string{"test"}})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	cards := []cardvault.Card{visa, replacedBy}
	if text := os.Getenv(child); text != "" {
		dir, id, _ := strings.Cut(text, "\n")
		v := open(t, dir)
		for n := 1; ; n++ {
			if _, err := v.Replace(t.Context(), uuid.MustParse(id), cards[n%2], nil); err != nil {
				t.Fatal(err)
			}
			fmt.Println("\nreplaced", n)
		}
	}

	dir := filepath.Join(t.TempDir(), "vault")
	v := open(t, dir)
	token, err := v.Import(t.Context(), visa, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if _, err = v.Replace(t.Context(), token.ID, visa, nil); err != nil {
			t.Fatal(err)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}

		process := exec.Command(os.Args[0], "-test.run=^TestReplaceKilled$")
		process.Env = append(os.Environ(), child+"="+dir+"\n"+token.ID.String())
		out, err := process.StdoutPipe()
		if err == nil {
			err = process.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		acknowledged, enough := 0, 5+rand.IntN(20)
		for lines := bufio.NewScanner(out); acknowledged < enough && lines.Scan(); {
			_, _ = fmt.Sscanf(lines.Text(), "replaced %d", &acknowledged) // else it is another line
		}
		time.Sleep(rand.N(3 * time.Millisecond))
		if err := process.Process.Kill(); err != nil || acknowledged == 0 {
			t.Fatal("nothing was replaced:", err)
		}
		_ = process.Wait() // it was killed

		v = open(t, dir)
		is, err := v.Get(t.Context(), token.ID)
		if err != nil {
			t.Fatal(err)
		}
		var number string
		err = v.Use(t.Context(), token.ID, "test", func(_ context.Context, c *cardvault.UsedCard) error {
			c.PAN.Expose(func(b []byte) { number = string(b) })
			return nil
		})
		if err != nil || number[len(number)-4:] != is.LastFour || number[:6] != is.IIN {
			t.Errorf("after %d replacements the card is shown as %s, %v", acknowledged, is.MaskedAccountNumber, err)
		}
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// TestReplaceAbsence: the former number is in no log, event, error or file once it is replaced,
// and neither are the numbers of refused replacements.
func TestReplaceAbsence(t *testing.T) {
	const former, next = "4242424242424242", "5555555555554444"
	dir, keys, ids := filled(t, 1)
	var log lockedBuffer
	sink := new(vaulttest.Recorder)
	v, err := cardvault.Open(t.Context(), dir, keys, &cardvault.Options{Events: sink, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	_, err = v.Replace(t.Context(), ids[0], cardvault.Card{PAN: card.NewPAN([]byte("4242424242424241"))}, nil)
	texts := []string{fmt.Sprint(err)}
	for _, c := range []cardvault.Card{replacedBy, visa, replacedBy} {
		token, err := v.Replace(t.Context(), ids[0], c, &cardvault.CallOptions{IdempotencyKey: uuid.NewString()})
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, fmt.Sprintf("%+v", token))
	}
	session, err := v.ReplaceSession(t.Context(), ids[0], nil)
	if err == nil {
		_, err = v.Tokenize(t.Context(), session.ID, visa)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(v.Drain(t.Context()), v.Close()); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.text(), "operation=token.replace "); n != 4 || strings.Contains(log.text(), "operation=token.tokenize") {
		t.Errorf("%d of 4 replacements are logged as such", n)
	}
	for _, e := range sink.Events() {
		texts = append(texts, fmt.Sprintf("%+v %+v", e, e.Token))
	}
	vaulttest.AssertNoLeak(t, []string{former, next, "4242424242424241"}, os.DirFS(dir), log.text(), strings.Join(texts, "\n"))
	if n := len(sink.Events()); n != 4 {
		t.Errorf("%d events", n)
	}
}

// TestReplaceLate: whatever the network tells of the network token before does not concern the
// token any more, and a call that is under way when the process dies leaves nothing behind.
func TestReplaceLate(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id := l.become(active)
		l.must2(l.Replace(l.Context(), id, replacedBy, nil))
		l.is(id, pending, "")
		for _, kind := range []network.NoticeKind{network.NoticeSuspended, network.NoticeDeleted, network.NoticeCardReplaced, network.NoticeInvalidated} {
			l.notify(network.Notice{Kind: kind})
		}
		l.drain()
		if token := l.is(id, active, ""); token.Status != cardvault.StatusActive || token.AccountNumberStale || token.LastFour != "4444" {
			l.Errorf("%+v", token)
		}
		l.held(1)

		// The process dies before the network token of the former card has arrived.
		l.net.script(nil, func(_ context.Context, c call) error {
			if c.method == "Provision" {
				l.store.set(errors.New("killed"), false)
			}
			return nil
		})
		l.must2(l.Replace(l.Context(), id, visa, nil))
		if err := l.Drain(l.Context()); err == nil {
			l.Error("the process lives")
		}
		l.net.script(nil, nil)
		l.restart()
		l.must2(l.Replace(l.Context(), id, replacedBy, nil))
		l.run(func() { l.pass(time.Hour) })
		l.is(id, active, "")
		l.held(1)
		l.must(l.Vault.Delete(l.Context(), id))
		l.run(func() { l.pass(time.Hour) })
		l.held(0)
	})
}

// TestReplaceContact: the contact of the former card does not go to the network with the next.
func TestReplaceContact(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		var contacts []string
		l.net.contact = func(object string) { contacts = append(contacts, object) }
		c := visa
		c.Contact = card.NewContact([]byte(`{"email":"a@example.com"}`))
		id := l.imports(c)
		l.must2(l.Replace(l.Context(), id, replacedBy, nil))
		l.drain()
		c.Contact = card.NewContact([]byte(`{"email":"b@example.com"}`))
		c.SecurityCode = card.NewSecurityCode([]byte("123"))
		l.must2(l.Replace(l.Context(), id, c, nil))
		l.pass(2 * time.Second)
		l.drain()
		if len(contacts) != 2 || contacts[0] != "" || !strings.Contains(contacts[1], "b@example.com") || l.net.codes[1] != "123" {
			l.Errorf("contacts %q, codes %q", contacts, l.net.codes)
		}
	})
}

// A tallying store counts the answers under idempotency keys that one View reads.
type tallying struct {
	store.Store
	most int
}

func (s *tallying) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error {
		c := &tallyingTx{ReadTx: tx}
		err := fn(c)
		s.most = max(s.most, c.answers)
		return err
	})
}

type tallyingTx struct {
	store.ReadTx
	answers int
}

func (tx *tallyingTx) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	if kind == kindAnswer {
		tx.answers++
	}
	return tx.ReadTx.Get(kind, id)
}

// TestReplaceAnswers: a replacement erases all answers that show the card, and has few in memory
// at a time: each may be as long as a record.
func TestReplaceAnswers(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		s := &tallying{Store: l.store}
		v := l.on(s)
		token, err := v.Import(l.Context(), visa, nil)
		l.must(err)
		key := func(i int) *cardvault.CallOptions { return &cardvault.CallOptions{IdempotencyKey: fmt.Sprint(i)} }
		for i := range 50 {
			l.must2(v.Provision(l.Context(), token.ID, key(i)))
		}
		s.most = 0
		l.must2(v.Replace(l.Context(), token.ID, replacedBy, nil))
		if s.most == 0 || s.most > 16 {
			l.Errorf("%d answers are read at a time", s.most)
		}
		for i := range 50 {
			if _, err := v.Provision(l.Context(), token.ID, key(i)); !errors.Is(err, cardvault.ErrNotFound) {
				l.Fatalf("repeated: %v", err)
			}
		}
	})
}

// TestReplaceGuesses: numbers that replacements pass in count as imported ones do.
func TestReplaceGuesses(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id := l.imports(visa)
		var err error
		for _, c := range behindMask("1234", 101) {
			if _, err = l.Replace(l.Context(), id, c, nil); err != nil {
				break
			}
		}
		if !errors.Is(err, cardvault.ErrTooManyNumbers) {
			l.Errorf("guessing ends with %v", err)
		}
	})
}

// TestUpdatedAt: updated_at is the time of the last change that an event reports.
func TestUpdatedAt(t *testing.T) {
	withSink(t, cardvault.Sandbox, func(l *lab, sink *listener) {
		id := l.imports(visa)
		if token := l.get(id); !token.UpdatedAt.Equal(token.CreatedAt) {
			l.Errorf("created at %v, updated at %v", token.CreatedAt, token.UpdatedAt)
		}
		l.pass(time.Hour)
		patch(l, id, "a")
		patched := l.get(id)
		l.pass(time.Hour)
		l.must2(l.Consume(l.Context(), id, nil)) // without an event
		if token := l.get(id); token.UpdatedAt.Sub(token.CreatedAt) < time.Hour || !token.UpdatedAt.Equal(patched.UpdatedAt) {
			l.Errorf("created at %v, updated at %v, then %v", token.CreatedAt, patched.UpdatedAt, token.UpdatedAt)
		}
		l.must2(l.Replace(l.Context(), id, replacedBy, nil))
		l.drain()
		events := about(sink, id)
		if last := events[len(events)-1]; last.Reason != receive.ReasonCardReplaced || !last.Token.UpdatedAt.Equal(l.get(id).UpdatedAt) || last.PreviousLastFour != "4242" {
			l.Errorf("event %+v", last.Event)
		}
	})
}
