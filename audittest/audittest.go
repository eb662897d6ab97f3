// Package audittest proves that an [audit.Sink] keeps its contract.
//
// The author of one writes one test:
//
//	func TestSink(t *testing.T) {
//		audittest.Run(t, audittest.Harness{
//			Open: func(testing.TB) audit.Sink { return NewSink(bucket) },
//			Kept: func(ctx context.Context) ([]*audit.Checkpoint, error) { return Kept(ctx, bucket) },
//		})
//	}
//
// Each subtest is one rule. When it fails it says the rule and why a vault depends on it.
package audittest

import (
	"context"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/google/uuid"
)

// A Harness says how to test a sink. Open is required.
type Harness struct {
	// Open returns the sink, a new one or the same each time: all work on the same state.
	// It may skip or fail the test that it is given, and uses its Cleanup.
	Open func(t testing.TB) audit.Sink

	// Kept returns the checkpoints that the sink has kept, at least the last one of each
	// account, in any order: what an auditor gives to [audit.Verify]. If nil, only what Keep
	// returns is tested.
	Kept func(ctx context.Context) ([]*audit.Checkpoint, error)
}

// Run checks every rule of the contract.
func Run(t *testing.T, h Harness) { contract.Run(t, rules, h.suite) }

// A suite is a sink under test, and a vault that signs checkpoints.
type suite struct {
	Harness
	sink  audit.Sink
	vault uuid.UUID
	key   ed25519.PrivateKey
}

func (h Harness) suite(t testing.TB) *suite {
	if h.Open == nil {
		t.Fatal("audittest: Harness.Open is missing")
	}
	s := &suite{Harness: h, sink: h.Open(t), vault: uuid.New()}
	if s.sink == nil {
		t.Fatal("audittest: Harness.Open returned nil")
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.key = key
	return s
}

var rules = []contract.Rule[*suite]{{
	Name: "Keeps",
	Why: `A checkpoint that Keep has accepted is kept whole, the largest too. An auditor who
receives another one cannot verify its signature, and finds nothing.`,
	Check: keeps,
}, {
	Name: "Later",
	Why: `A later checkpoint takes the place of the former, also if those between never came: the vault
passes on the last one when it is busy.`,
	Check: later,
}, {
	Name: "Again",
	Why: `A checkpoint that comes again is accepted, and stays. The vault repeats a call that was late, or
whose process has died.`,
	Check: again,
}, {
	Name: "Earlier",
	Why: `A checkpoint with a lower number than the kept one is accepted, and changes nothing. Several
processes pass on checkpoints in any order. If the lower one were kept, a log that was cut off would
agree with it.`,
	Check: earlier,
}, {
	Name: "Accounts",
	Why: `The checkpoints of each account are kept apart, those of the whole vault too, whose account is
zero. Otherwise a log can disappear without a trace.`,
	Check: accounts,
}, {
	Name:  "Restart",
	Why:   `After a restart the sink still has what it kept: it outlives the store, and every process.`,
	Check: restart,
}, {
	Name: "ContextEnded",
	Why: `A call whose context has ended returns at once, with an error, or with nil if the checkpoint was
kept. While calls hang, a vault refuses others after a minute.`,
	Check: contextEnded,
}, {
	Name: "Concurrency",
	Why: `Keep is called concurrently for different accounts, and by several processes for one. The
highest number stays.`,
	Check: concurrency,
}}

// checkpoint returns a signed checkpoint of an account.
func (s *suite) checkpoint(account uuid.UUID, number uint64, records int) *audit.Checkpoint {
	c := &audit.Checkpoint{
		VaultID: s.vault, AccountID: account, Number: number, At: time.Now().UTC().Truncate(time.Microsecond),
		Lane: uuid.New(), First: 1,
	}
	if number > 1 {
		c.Previous = [32]byte{1, 2, 3}
	}
	digests := make([][audit.DigestSize]byte, records)
	for i := range digests {
		digests[i] = [audit.DigestSize]byte{byte(i), byte(i >> 8), 7}
	}
	c.SetDigests(digests)
	c.Sign(s.key)
	return c
}

// keep passes a checkpoint on as a vault does.
func keep(ctx context.Context, sink audit.Sink, c *audit.Checkpoint) error {
	const deadline = time.Minute // more than a vault gives: the machine may be slow
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	own := *c
	return sink.Keep(ctx, &own)
}

func (s *suite) keeps(t testing.TB, sink audit.Sink, what string, c *audit.Checkpoint) {
	t.Helper()
	if err := keep(t.Context(), sink, c); err != nil {
		t.Fatalf("Keep of %s = %v, want nil", what, err)
	}
}

// has checks that a checkpoint is the last of its account that is kept.
func (s *suite) has(t testing.TB, what string, want *audit.Checkpoint) {
	t.Helper()
	if s.Kept == nil {
		return
	}
	all, err := s.Kept(t.Context())
	if err != nil {
		t.Fatalf("Harness.Kept: %v", err)
	}

	var last *audit.Checkpoint
	for _, c := range all {
		if c.VaultID == s.vault && c.AccountID == want.AccountID && (last == nil || c.Number > last.Number) {
			last = c
		}
	}

	switch {
	case last == nil:
		t.Errorf("%s: no checkpoint of the account is kept", what)
	case last.Number != want.Number:
		t.Errorf("%s: number %d is kept, want %d", what, last.Number, want.Number)
	case last.Hash() != want.Hash() || !last.SignedBy(s.key.Public().(ed25519.PublicKey)):
		t.Errorf("%s: another checkpoint is kept, or its signature is not valid", what)
	}
}

func keeps(t testing.TB, s *suite) {
	for what, records := range map[string]int{"a checkpoint": 3, "one without records": 0, "the largest": audit.MaxRecords} {
		c := s.checkpoint(uuid.New(), 1, records)
		s.keeps(t, s.sink, what, c)
		s.has(t, what, c)
	}
}

func later(t testing.TB, s *suite) {
	account := uuid.New()
	for _, number := range []uint64{1, 2, 7, 1 << 40} {
		c := s.checkpoint(account, number, 1)
		s.keeps(t, s.sink, "a later checkpoint", c)
		s.has(t, "after a later checkpoint", c)
	}
}

func again(t testing.TB, s *suite) {
	c := s.checkpoint(uuid.New(), 3, 1)
	for range 3 {
		s.keeps(t, s.sink, "a repeated checkpoint", c)
		s.has(t, "after a repetition", c)
	}
}

func earlier(t testing.TB, s *suite) {
	account := uuid.New()
	last := s.checkpoint(account, 300, 1)
	s.keeps(t, s.sink, "a checkpoint", last)
	for _, number := range []uint64{299, 44, 1} { // 44: the lowest byte of 300
		s.keeps(t, s.sink, "an earlier checkpoint", s.checkpoint(account, number, 1))
		s.has(t, "after an earlier checkpoint", last)
	}
	s.keeps(t, s.Open(t), "an earlier checkpoint after a restart", s.checkpoint(account, 9, 1))
	s.has(t, "after an earlier checkpoint and a restart", last)
}

func accounts(t testing.TB, s *suite) {
	var last []*audit.Checkpoint
	for _, account := range []uuid.UUID{uuid.Nil, uuid.New(), uuid.New()} {
		last = append(last, s.checkpoint(account, uint64(9-len(last)), 1))
	}
	for _, c := range last {
		s.keeps(t, s.sink, "a checkpoint of one of several accounts", c)
	}
	for _, c := range last {
		s.has(t, "one of several accounts", c)
	}
}

func restart(t testing.TB, s *suite) {
	account := uuid.New()
	first, second := s.checkpoint(account, 1, 1), s.checkpoint(account, 2, 1)
	s.keeps(t, s.sink, "a checkpoint", first)
	s.has(t, "before a restart", first)
	sink := s.Open(t)
	s.has(t, "after a restart", first)
	s.keeps(t, sink, "a checkpoint after a restart", second)
	s.has(t, "after a restart and a checkpoint", second)
}

func contextEnded(t testing.TB, s *suite) {
	c := s.checkpoint(uuid.New(), 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error, 1)
	go func() { done <- keep(ctx, s.sink, c) }()
	select {
	case err := <-done:
		if err == nil {
			s.has(t, "accepted after its context had ended", c)
		}
	case <-time.After(contract.Promptness(t)):
		t.Fatalf("Keep with a context that has ended: still waiting after %v", contract.Promptness(t))
	}
	s.keeps(t, s.sink, "a checkpoint whose first call was cut off", c)
	s.has(t, "after a call that was cut off", c)
}

func concurrency(t testing.TB, s *suite) {
	const each = 8
	other := s.Open(t)
	account := uuid.New()
	var last []*audit.Checkpoint
	for n := range uint64(each) {
		last = append(last, s.checkpoint(uuid.New(), n+1, 1))
	}
	var numbers []*audit.Checkpoint
	for n := range uint64(each) {
		numbers = append(numbers, s.checkpoint(account, n+1, 1))
	}

	contract.Parallel(t, 2*each, func(i int) error {
		if i < each {
			return keep(t.Context(), s.sink, last[i])
		}
		sink := s.sink
		if i%2 == 0 {
			sink = other
		}
		return keep(t.Context(), sink, numbers[i-each])
	})
	for _, c := range append(last, numbers[each-1]) {
		s.has(t, "after concurrent calls", c)
	}
}
