package cardvault_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/use"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// vaultsuite.Run tests the use of cards on any store. The tests here take time, kill a
// process, or look at the log.

// outside returns a call of another system that is made by send.
func outside(key string, send func() (*use.Sent, error)) *use.Call {
	return &use.Call{
		Purpose: "forward:outside",
		Admit:   func(uuid.UUID) error { return nil },
		Number:  true,
		Key:     key,
		Request: func() []byte { return []byte("request") },
		Timeout: 30 * time.Second,
		Send: func(_ context.Context, _ *card.Used, _ *receive.Credential) (*use.Sent, error) {
			return send()
		},
	}
}

// never is a call that must not be made.
func never(t testing.TB) *use.Call {
	return outside("key", func() (*use.Sent, error) {
		t.Error("the call is made again")
		return nil, errors.New("made again")
	})
}

// A process that is killed during a call leaves its outcome unknown. No other process makes
// the call again.
func TestForwardKilled(t *testing.T) {
	const child = "CARDVAULT_FORWARD_IN"
	key := make([]byte, cardvault.KeySize)
	open := func(t *testing.T, dir string) *cardvault.Vault {
		keys, err := cardvault.KeyBytes(key)
		if err != nil {
			t.Fatal(err)
		}
		v, err := cardvault.Open(t.Context(), dir, keys, &cardvault.Options{Mode: cardvault.Sandbox})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if dir := os.Getenv(child); dir != "" {
		v := open(t, dir)
		token, err := v.Import(t.Context(), visa, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = v.Forward(t.Context(), token.ID, outside("key", func() (*use.Sent, error) {
			fmt.Println("\nsent", token.ID)
			time.Sleep(time.Hour)
			return nil, nil
		}), nil)
		t.Fatal("not killed:", err)
	}

	dir := filepath.Join(t.TempDir(), "vault")
	process := exec.Command(os.Args[0], "-test.run=^TestForwardKilled$")
	process.Env = append(os.Environ(), child+"="+dir)
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}

	var id uuid.UUID
	for lines := bufio.NewScanner(out); id == uuid.Nil && lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "sent "); ok {
			id = uuid.MustParse(text)
		}
	}
	if err := process.Process.Kill(); err != nil || id == uuid.Nil {
		t.Fatal("nothing was sent:", err)
	}
	_ = process.Wait() // it was killed

	killed := time.Now()
	bubble.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(killed))
		v := open(t, dir)
		defer func() {
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		}()
		for _, step := range []struct {
			pause time.Duration
			want  error
		}{{0, cardvault.ErrIdempotencyInProgress}, {time.Minute, use.ErrUnknown}, {time.Hour, use.ErrUnknown}} {
			time.Sleep(step.pause)
			if _, err := v.Forward(t.Context(), id, never(t), nil); !errors.Is(err, step.want) {
				t.Errorf("%v later: %v, want %v", step.pause, err, step.want)
			}
		}
	})
}

// A call that panics is unknown too, and leaves the card to nobody.
func TestForwardPanics(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id := l.imports(visa)
		func() {
			defer func() {
				if p := recover(); p == nil {
					l.Error("the panic is lost")
				}
			}()
			_, _ = l.Forward(l.Context(), id, outside("key", func() (*use.Sent, error) { panic("4242424242424242") }), nil)
		}()

		replica := l.open()
		for _, step := range []struct {
			pause time.Duration
			want  error
		}{
			{0, cardvault.ErrIdempotencyInProgress},
			{44 * time.Second, cardvault.ErrIdempotencyInProgress},
			{time.Second, use.ErrUnknown},
			{23 * time.Hour, use.ErrUnknown},
		} {
			time.Sleep(step.pause)
			if _, err := replica.Forward(l.Context(), id, never(l), nil); !errors.Is(err, step.want) {
				l.Errorf("after another %v: %v, want %v", step.pause, err, step.want)
			}
		}
		if text := l.log.text(); !strings.Contains(text, "panicked") || strings.Contains(text, "4242424242424242") {
			l.Error(text)
		}
	})
}

// A stuck store does nothing until its caller gives up, or for an hour.
type stuck struct{ store.Store }

func (stuck) Update(ctx context.Context, _ func(store.Tx) error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Hour):
		return store.ErrUnavailable
	}
}

// Under a key a call goes on when its caller has left, and still ends if the store is stuck
// while the credential is asked for.
func TestForwardCredentialOfAStuckStore(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id := l.become(active)
		c := never(l)
		whole := l.store.on()
		claimed := false
		l.store.hook(func() error {
			if claimed {
				l.store.rests(stuck{whole})
			}
			claimed = true
			return nil
		})
		began := time.Now()
		if _, err := l.Forward(l.Context(), id, c, &cardvault.PaymentRequest{Amount: 1, Currency: "EUR", Reference: "7"}); err == nil {
			l.Error("no error")
		}
		if took := time.Since(began); took > time.Minute {
			l.Errorf("it took %v", took)
		}
		l.store.hook(nil)
		l.store.rests(whole)
	})
}

// A result that cannot be stored reaches the caller all the same, and is unknown afterwards.
func TestForwardUnkept(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id := l.imports(visa)
		long := outside("key", func() (*use.Sent, error) {
			return &use.Sent{Answer: func() []byte { return make([]byte, use.MaxAnswer+1) }}, nil
		})
		if sent, err := l.Forward(l.Context(), id, long, nil); err != nil || len(sent.Answer()) != use.MaxAnswer+1 {
			l.Error(err)
		}
		time.Sleep(time.Minute)
		if _, err := l.Forward(l.Context(), id, never(l), nil); !errors.Is(err, use.ErrUnknown) {
			l.Error(err)
		}
		whole := outside("whole", func() (*use.Sent, error) {
			return &use.Sent{Answer: func() []byte { return make([]byte, use.MaxAnswer) }}, nil
		})
		for range 2 {
			if sent, err := l.Forward(l.Context(), id, whole, nil); err != nil || len(sent.Answer()) != use.MaxAnswer {
				l.Error(err)
			}
		}
	})
}

// A card that the scheme has replaced or ended is not used. A network token outlives the
// number.
func TestUseOfAnEndedCard(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Purposes: []string{"test"}}, func(l *lab) {
		id := l.become(active)
		try := func(what string, card, credential, number, none error) {
			l.Helper()
			ofCard := func(context.Context, *cardvault.UsedCard) error { return nil }
			ofCredential := func(context.Context, *receive.Credential) error { return nil }
			send := outside("", func() (*use.Sent, error) { return &use.Sent{}, nil })
			plain := outside("", func() (*use.Sent, error) { return &use.Sent{}, nil })
			plain.Number = false
			payment := cardvault.PaymentRequest{Amount: 1, Currency: "EUR", Reference: "7"}
			_, numbered := l.Forward(l.Context(), id, send, nil)
			_, numberless := l.Forward(l.Context(), id, plain, nil)
			for i, got := range []error{l.Use(l.Context(), id, "test", ofCard), l.UseCredential(l.Context(), id, "test", payment, ofCredential), numbered, numberless} {
				if want := []error{card, credential, number, none}[i]; !errors.Is(got, want) || want == nil && got != nil {
					l.Errorf("%s, call %d: %v, want %v", what, i, got, want)
				}
			}
		}
		try("a valid card", nil, cardvault.ErrCryptogramDeclined, nil, nil)
		l.notify(network.Notice{Kind: network.NoticeCardReplaced, Card: &network.CardState{LastFour: "0000"}})
		try("a replaced number", cardvault.ErrCardDataStale, cardvault.ErrCryptogramDeclined, cardvault.ErrCardDataStale, nil)
		l.notify(network.Notice{Kind: network.NoticeInvalidated, OccurredAt: time.Now().Add(time.Second)})
		ended := cardvault.ErrTokenInvalidated
		try("an invalid card", ended, ended, ended, ended)
	})
}

// Each use is logged with who, what and why, and without anything of the card.
func TestUseLog(t *testing.T) {
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Purposes: []string{"fraud-check"}}, func(l *lab) {
		c := coded(visa, "737")
		c.Name = card.NewName([]byte(secretName))
		id := l.imports(c)
		key := uuid.New()
		ctx := cardvault.WithActor(l.Context(), cardvault.Actor{KeyID: key})
		last := func(parts ...string) {
			l.Helper()
			lines := strings.Split(strings.TrimSpace(l.log.text()), "\n")
			for _, part := range append(parts, "level=INFO", `"card used"`, key.String()) {
				if !strings.Contains(lines[len(lines)-1], part) {
					l.Errorf("the log lacks %s: %s", part, lines[len(lines)-1])
				}
			}
		}

		used := func(_ context.Context, c *cardvault.UsedCard) (err error) {
			c.PAN.Expose(func(digits []byte) { err = fmt.Errorf("cannot use %s", digits) })
			return err
		}
		if err := l.Use(ctx, id, "fraud-check", used); err == nil || !strings.Contains(err.Error(), "cannot use 4") {
			l.Error(err)
		}
		last("operation=card.use", "purpose=fraud-check", id.String(), "returned an error")
		l.must(l.Use(ctx, id, "fraud-check", func(context.Context, *cardvault.UsedCard) error { return nil }))
		last("operation=card.use", "error=<nil>")
		if err := l.Use(ctx, uuid.New(), "fraud-check", used); err == nil {
			l.Error("an unknown token is used")
		}
		last("operation=card.use", "not found")

		for range 2 {
			l.must2(l.Forward(ctx, id, outside("key", func() (*use.Sent, error) {
				return &use.Sent{Answer: func() []byte { return nil }, Detail: "POST 201"}, nil
			}), nil))
		}
		last("operation=card.forward", "purpose=forward:outside", "detail=repetition", id.String())
		if !strings.Contains(l.log.text(), `detail="POST 201"`) {
			l.Error("the log lacks the status")
		}
		lost := outside("lost", func() (*use.Sent, error) {
			return &use.Sent{Answer: func() []byte { return nil }, Detail: "POST without an answer"}, errors.New("4242424242424242")
		})
		if _, err := l.Forward(ctx, id, lost, nil); err == nil {
			l.Error("a call without an answer succeeds")
		}
		last("operation=card.forward", `detail="POST without an answer"`, "returned an error")
		vaulttest.AssertNoLeak(t, []string{"4242424242424242", "737", secretName}, l.log.text())
	})
}

// The purposes are those of the options when the vault was opened.
func TestPurposes(t *testing.T) {
	for _, bad := range []string{"", "Export", "7days", "_x", "forward:psp", "fraud check", strings.Repeat("a", 41)} {
		if v, err := cardvault.New(t.Context(), nil, newKey(t), &cardvault.Options{Purposes: []string{"export", bad}}); v != nil || err == nil || !strings.Contains(err.Error(), "Options.Purposes") {
			t.Errorf("%q: %v", bad, err)
		}
	}

	list := []string{"fraud-check", "a", "x_9"}
	inLab(t, &cardvault.Options{Mode: cardvault.Sandbox, Purposes: list}, func(l *lab) {
		list[0] = "export"
		id := l.imports(visa)
		for purpose, ok := range map[string]bool{"fraud-check": true, "x_9": true, "export": false, "": false, "forward:outside": false} {
			err := l.Use(l.Context(), id, purpose, func(context.Context, *cardvault.UsedCard) error { return nil })
			if (err == nil) != ok || !ok && len(cardvault.FieldErrors(err)) != 1 {
				l.Errorf("%q: %v", purpose, err)
			}
		}
	})
}
