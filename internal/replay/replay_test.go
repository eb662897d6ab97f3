package replay_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/ledgertest"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	kindKey store.Kind = iota + 10
	kindAnswer
	kindMistakes
	kindThing // parent of answers
)

var opMake = ledger.Adds("test.make")

// A bench makes calls on an account.
type bench struct {
	*testing.T
	ledger.Account
	calls *replay.Calls
}

func inBench(t *testing.T, f func(b *bench)) {
	bubble.Test(t, func(t *testing.T) {
		l := ledgertest.New(t, ledger.Families{kindAnswer: {Parent: kindThing}})
		calls := replay.New(replay.Config{Keys: kindKey, Answers: kindAnswer, Mistakes: kindMistakes, Keep: time.Hour, Log: slog.New(slog.DiscardHandler),
			Check: func(string) error { return nil }, Root: func(context.Context) uuid.UUID { return uuid.Nil }})
		f(&bench{t, l.In(l.First), calls})
	})
}

// begin begins a call with a body on behalf of a root.
func (b *bench) begin(body string, root byte) (*replay.Call, *replay.Answer, error) {
	r := replay.Request{Operation: opMake, Key: "key", Body: func() []byte { return []byte(body) }, Root: uuid.UUID{root}}
	return b.calls.Begin(b.Context(), b.Account, r)
}

// make completes a call: it writes a thing and the answer of the call.
func (b *bench) make(c *replay.Call, row uuid.UUID) error {
	thing := b.NewRecord(kindThing, row)
	if err := errors.Join(b.SealShown(thing, nil), c.Seal([]byte("made"), row)); err != nil {
		b.Fatal(err)
	}
	return b.Write(b.Context(), opMake, uuid.Nil, func(tx store.Tx) error {
		if err := c.Put(tx); err != nil {
			return err
		}
		tx.Put(thing)
		return nil
	})
}

// begun begins a call that has no answer yet.
func (b *bench) begun() *replay.Call {
	b.Helper()
	c, answer, err := b.begin("request", 1)
	if c == nil || answer != nil || err != nil {
		b.Fatalf("call: %v %v %v", c, answer, err)
	}
	return c
}

func (b *bench) row() uuid.UUID {
	b.Helper()
	row, err := b.NewRow()
	if err != nil {
		b.Fatal(err)
	}
	return row
}

func TestAnswer(t *testing.T) {
	inBench(t, func(b *bench) {
		row := b.row()
		if err := b.make(b.begun(), row); err != nil {
			b.Fatal(err)
		}
		c, answer, err := b.begin("request", 1)
		if c != nil || answer == nil || string(answer.Result()[:4]) != "made" || answer.Refused || err != nil {
			b.Fatalf("repeated: %v %v %v", c, answer, err)
		}

		err = b.Write(b.Context(), opMake, uuid.Nil, func(tx store.Tx) error {
			tx.Delete(kindThing, row)
			return nil
		})
		if _, _, gone := b.begin("request", 1); err != nil || !errors.Is(gone, ledger.ErrNotFound) {
			b.Errorf("without its parent: %v %v", err, gone)
		}

		time.Sleep(time.Hour)
		if err := b.make(b.begun(), b.row()); err != nil {
			b.Error("once the key has lapsed:", err)
		}
	})
}

// TestBorderIsOfOneCall: another call made with the context of a call is a call of its own,
// even under the same key.
func TestBorderIsOfOneCall(t *testing.T) {
	inBench(t, func(b *bench) {
		border := &replay.Border{Request: func() []byte { return []byte("request") }}
		ctx := replay.WithBorder(b.Context(), border)
		once := func(body string) error {
			r := replay.Request{Operation: opMake, Key: "key", Body: func() []byte { return []byte(body) }}
			again := func([]byte) (uuid.UUID, error) { return uuid.Nil, nil }
			_, err := replay.Once(ctx, b.calls, b.Account, r, again, func(c *replay.Call) (uuid.UUID, error) { row := b.row(); return row, b.make(c, row) })
			return err
		}

		if err := once("alice"); err != nil {
			b.Fatal(err)
		}
		if err := once("bob"); !errors.Is(err, replay.ErrReused) || border.Replayed {
			b.Errorf("another call: %v, replayed %t", err, border.Replayed)
		}
	})
}

// TestRace: when two equal calls run at the same time, only one succeeds.
func TestRace(t *testing.T) {
	inBench(t, func(b *bench) {
		one, other := b.begun(), b.begun()
		if err := b.make(one, b.row()); err != nil {
			b.Fatal(err)
		}
		if err := b.make(other, b.row()); !errors.Is(err, replay.ErrRepeated) {
			b.Error(err)
		}
	})
}

func TestMistakes(t *testing.T) {
	inBench(t, func(b *bench) {
		if err := b.make(b.begun(), b.row()); err != nil {
			b.Fatal(err)
		}
		for range 4 {
			if _, _, err := b.begin("another", 1); !errors.Is(err, replay.ErrReused) {
				b.Fatal(err)
			}
		}
		if _, answer, err := b.begin("request", 1); answer == nil || err != nil {
			b.Error("after four mistakes:", err)
		}

		if _, _, err := b.begin("another", 1); !errors.Is(err, replay.ErrReused) {
			b.Fatal(err)
		}
		if _, _, err := b.begin("request", 1); !errors.Is(err, replay.ErrReused) {
			b.Error("after five mistakes:", err)
		}
		if _, answer, err := b.begin("request", 2); answer == nil || err != nil {
			b.Error("another root:", err)
		}
	})
}

// TestClaim: a claim keeps other calls out until its lease ends. Then one of them continues.
func TestClaim(t *testing.T) {
	inBench(t, func(b *bench) {
		row, first := b.row(), b.begun()
		if err := first.Claim(b.Context(), row); err != nil {
			b.Fatal(err)
		}
		if _, _, err := b.begin("request", 1); !errors.Is(err, replay.ErrInProgress) {
			b.Error("while it is claimed:", err)
		}

		time.Sleep(time.Minute)
		second := b.begun()
		if second.Row() != row {
			b.Error("the second call makes another record")
		}
		if err := second.Claim(b.Context(), row); err != nil {
			b.Fatal(err)
		}
		if err := b.make(first, row); !errors.Is(err, replay.ErrRepeated) {
			b.Error("the first call, too late:", err)
		}

		second.Abandon(b.Context())
		if err := b.make(b.begun(), row); err != nil {
			b.Error("after the claim was abandoned:", err)
		}
	})
}

// TestNoKey: without a key, no call is claimed, written or kept.
func TestNoKey(t *testing.T) {
	var c *replay.Call
	c.Abandon(t.Context())
	if err := errors.Join(c.Claim(t.Context(), uuid.New()), c.Put(nil)); err != nil || c.Row() != uuid.Nil {
		t.Error(err, c.Row())
	}
}

// A call that may be made once only is taken over by nobody. Its outcome is unknown when its
// time has passed, and known when it comes all the same.
func TestClaimOnce(t *testing.T) {
	inBench(t, func(b *bench) {
		first := b.begun()
		if err := first.ClaimOnce(b.Context(), time.Now().Add(time.Minute)); err != nil {
			b.Fatal(err)
		}
		for _, test := range []struct {
			body string
			want error
		}{{"request", replay.ErrInProgress}, {"another", replay.ErrReused}} {
			if c, _, err := b.begin(test.body, 1); c != nil || !errors.Is(err, test.want) {
				b.Errorf("%s meanwhile: %v, want %v", test.body, err, test.want)
			}
		}

		time.Sleep(time.Minute)
		for range 2 {
			if c, _, err := b.begin("request", 1); c != nil || !errors.Is(err, replay.ErrUnknown) {
				b.Error("once its time has passed:", err)
			}
		}
		if err := b.make(first, b.row()); err != nil {
			b.Fatal("late:", err)
		}
		if _, answer, err := b.begin("request", 1); answer == nil || err != nil {
			b.Error("once it is made:", err)
		}
	})
}

// A call that is abandoned can be made again at once, and only once more.
func TestClaimOnceAbandoned(t *testing.T) {
	inBench(t, func(b *bench) {
		for range 2 {
			c := b.begun()
			if err := c.ClaimOnce(b.Context(), time.Now().Add(time.Minute)); err != nil {
				b.Fatal(err)
			}
			c.Abandon(b.Context())
		}
		one, other := b.begun(), b.begun()
		if err := one.ClaimOnce(b.Context(), time.Now().Add(time.Minute)); err != nil {
			b.Fatal(err)
		}
		if err := other.ClaimOnce(b.Context(), time.Now().Add(time.Minute)); !errors.Is(err, replay.ErrRepeated) {
			b.Error("side by side:", err)
		}
	})
}

// Without its result a call that was made is not found, and is not made anew.
func TestPutKey(t *testing.T) {
	inBench(t, func(b *bench) {
		c := b.begun()
		if err := c.Seal([]byte("made"), b.row()); err != nil {
			b.Fatal(err)
		}
		if err := b.Write(b.Context(), opMake, uuid.Nil, c.PutKey); err != nil {
			b.Fatal(err)
		}
		if c, answer, err := b.begin("request", 1); c != nil || answer != nil || !errors.Is(err, ledger.ErrNotFound) {
			b.Error(err)
		}
	})
}
