package audittest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/google/uuid"
)

// A LedgerHarness says how to test an [audit.Ledger]. Open is required.
type LedgerHarness struct {
	// Open returns the ledger, a new one or the same each time: all work on the same state. It
	// may skip or fail the test that it is given, and uses its Cleanup.
	Open func(t testing.TB) audit.Ledger

	// Exports returns the kept exports of all accounts, for cardvault.DeletionLedger. If nil, only
	// the answers of the ledger are tested.
	Exports func(ctx context.Context) ([]io.ReadSeeker, error)
}

// RunLedger checks every rule of the contract of a ledger.
func RunLedger(t *testing.T, h LedgerHarness) { contract.Run(t, ledgerRules, h.suite) }

// A ledgerSuite is a ledger under test, and the chain of a vault.
type ledgerSuite struct {
	LedgerHarness
	ledger audit.Ledger
	vault  uuid.UUID
	key    ed25519.PrivateKey
}

func (h LedgerHarness) suite(t testing.TB) *ledgerSuite {
	if h.Open == nil {
		t.Fatal("audittest: LedgerHarness.Open is missing")
	}
	s := &ledgerSuite{LedgerHarness: h, ledger: h.Open(t), vault: uuid.New()}
	if s.ledger == nil {
		t.Fatal("audittest: LedgerHarness.Open returned nil")
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.key = key
	return s
}

var ledgerRules = []contract.Rule[*ledgerSuite]{{
	Name:  "Keeps",
	Why:   `A part that Append has accepted is kept whole. A restore repeats the deletions in it.`,
	Check: keepsParts,
}, {
	Name: "Again",
	Why: `A part that comes again, or ends no later than what is kept, is accepted and changes nothing:
the vault repeats a call that was late, and two processes export one log.`,
	Check: partsAgain,
}, {
	Name: "Longer",
	Why: `A part may come again with more checkpoints, or begin before the end of what is kept: the rest of
it must not be lost.`,
	Check: longerPart,
}, {
	Name:  "Accounts",
	Why:   `The logs of vaults and accounts are kept apart, and so is the log of the whole vault, whose account is zero.`,
	Check: ledgerAccounts,
}, {
	Name:  "Restart",
	Why:   `After a restart the ledger has what it kept, and says so: the vault goes on from there.`,
	Check: ledgerRestart,
}, {
	Name:  "ContextEnded",
	Why:   `A call whose context has ended returns at once, with an error, or with nil if the part was kept. Deletions wait for it.`,
	Check: ledgerContext,
}, {
	Name:  "Concurrency",
	Why:   `Append is called concurrently for different accounts, and by several processes for one.`,
	Check: ledgerConcurrency,
}}

// chain returns the checkpoints of an account from 1 on.
func (s *ledgerSuite) chain(account uuid.UUID, n int) (all []*audit.Checkpoint) {
	var before [32]byte
	for number := range n {
		c := &audit.Checkpoint{VaultID: s.vault, AccountID: account, Number: uint64(number + 1), At: time.Now().UTC().Truncate(time.Microsecond), Previous: before}
		c.Sign(s.key)
		before = c.Hash()
		all = append(all, c)
	}
	return all
}

// part returns the part with some checkpoints of a chain.
func (s *ledgerSuite) part(t testing.TB, chain []*audit.Checkpoint, first, last int) *audit.Part {
	t.Helper()
	var out bytes.Buffer
	keys := []audit.Signer{{PublicKey: [ed25519.PublicKeySize]byte(s.key.Public().(ed25519.PublicKey)), First: 1}}
	x := audit.NewWriter(&out, s.vault, chain[0].AccountID, uint64(first), false, keys, s.key)
	for _, c := range chain[first-1 : last] {
		if err := x.Checkpoint(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	return &audit.Part{VaultID: s.vault, AccountID: chain[0].AccountID, First: uint64(first), Last: audit.Mark{Number: uint64(last), Hash: chain[last-1].Hash()}, Export: out.Bytes()}
}

func (s *ledgerSuite) appends(t testing.TB, ledger audit.Ledger, what string, p *audit.Part) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := ledger.Append(ctx, p); err != nil {
		t.Fatalf("Append of %s = %v, want nil", what, err)
	}
}

// reaches checks that the ledger has a chain from 1 on to a checkpoint.
func (s *ledgerSuite) reaches(t testing.TB, ledger audit.Ledger, what string, chain []*audit.Checkpoint, last int) {
	t.Helper()
	want := audit.Mark{}
	if last > 0 {
		want = audit.Mark{Number: uint64(last), Hash: chain[last-1].Hash()}
	}
	mark, err := ledger.Last(t.Context(), s.vault, chain[0].AccountID)
	if err != nil {
		t.Fatalf("%s: Last: %v", what, err)
	}
	if mark != want {
		t.Errorf("%s: Last is checkpoint %d, want %d and its hash", what, mark.Number, last)
	}
	if s.Exports == nil {
		return
	}

	exports, err := s.Exports(t.Context())
	if err != nil {
		t.Fatalf("LedgerHarness.Exports: %v", err)
	}
	has := make([]bool, last)
	for _, r := range exports {
		report, err := audit.Verify(r, nil)
		if err != nil {
			t.Fatalf("%s: an export that was kept: %v", what, err)
		}
		if report.VaultID != s.vault || report.AccountID != chain[0].AccountID || report.Last == nil {
			continue
		}
		for n := report.First; n <= report.Last.Number && n <= uint64(last); n++ {
			has[n-1] = true
		}
	}
	for n, is := range has {
		if !is {
			t.Errorf("%s: no export has checkpoint %d", what, n+1)
		}
	}
}

func keepsParts(t testing.TB, s *ledgerSuite) {
	chain := s.chain(uuid.New(), 12)
	s.reaches(t, s.ledger, "before the first part", chain, 0)
	for i, at := range [][2]int{{1, 1}, {2, 9}, {10, 12}} {
		s.appends(t, s.ledger, "a part", s.part(t, chain, at[0], at[1]))
		s.reaches(t, s.ledger, "after a part", chain, []int{1, 9, 12}[i])
	}
}

func partsAgain(t testing.TB, s *ledgerSuite) {
	chain := s.chain(uuid.New(), 300)
	s.appends(t, s.ledger, "a part", s.part(t, chain, 1, 9))
	s.appends(t, s.ledger, "a part", s.part(t, chain, 10, 300))
	for _, at := range [][2]int{{10, 300}, {1, 9}, {10, 44}, {5, 99}} {
		s.appends(t, s.ledger, "a part that is kept", s.part(t, chain, at[0], at[1]))
		s.reaches(t, s.ledger, "after a part that was kept", chain, 300)
	}
}

func longerPart(t testing.TB, s *ledgerSuite) {
	chain := s.chain(uuid.New(), 20)
	for _, at := range [][2]int{{1, 3}, {1, 5}, {3, 12}, {13, 13}, {13, 20}} {
		s.appends(t, s.ledger, "a longer part", s.part(t, chain, at[0], at[1]))
		s.reaches(t, s.ledger, "after a longer part", chain, at[1])
	}
}

func ledgerAccounts(t testing.TB, s *ledgerSuite) {
	whole, own, other := s.chain(uuid.Nil, 3), s.chain(uuid.New(), 5), s.chain(uuid.New(), 1)
	s.appends(t, s.ledger, "a part", s.part(t, own, 1, 5))
	s.reaches(t, s.ledger, "the log of the vault, without a part", whole, 0)
	s.appends(t, s.ledger, "a part of the vault", s.part(t, whole, 1, 3))
	s.reaches(t, s.ledger, "the log of the vault", whole, 3)
	s.reaches(t, s.ledger, "another account", other, 0)
	s.reaches(t, s.ledger, "the account", own, 5)
	if mark, err := s.ledger.Last(t.Context(), uuid.New(), own[0].AccountID); err != nil || mark.Number != 0 {
		t.Errorf("Last of another vault = %d, %v, want 0", mark.Number, err)
	}
}

func ledgerRestart(t testing.TB, s *ledgerSuite) {
	chain := s.chain(uuid.New(), 4)
	s.appends(t, s.ledger, "a part", s.part(t, chain, 1, 2))
	restarted := s.Open(t)
	s.reaches(t, restarted, "after a restart", chain, 2)
	s.appends(t, restarted, "a part after a restart", s.part(t, chain, 3, 4))
	s.reaches(t, restarted, "after a restart and a part", chain, 4)
}

func ledgerContext(t testing.TB, s *ledgerSuite) {
	chain := s.chain(uuid.New(), 2)
	s.appends(t, s.ledger, "a part", s.part(t, chain, 1, 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error, 1)
	go func() { done <- s.ledger.Append(ctx, s.part(t, chain, 2, 2)) }()
	select {
	case err := <-done:
		if err == nil {
			s.reaches(t, s.ledger, "after a call that has returned nil", chain, 2)
		} else {
			s.appends(t, s.ledger, "the part again", s.part(t, chain, 2, 2))
			s.reaches(t, s.ledger, "after the part has come again", chain, 2)
		}
	case <-time.After(contract.Promptness(t)):
		t.Error("Append does not return although its context has ended")
	}
}

func ledgerConcurrency(t testing.TB, s *ledgerSuite) {
	const chains, parts = 4, 6

	var group sync.WaitGroup
	var all [][]*audit.Checkpoint
	errs := make(chan error, 2*chains*parts)
	for range chains {
		chain := s.chain(uuid.New(), parts)
		all = append(all, chain)
		var pieces []*audit.Part
		for n := range parts {
			pieces = append(pieces, s.part(t, chain, n+1, n+1))
		}
		for range 2 { // processes
			group.Go(func() {
				for _, p := range pieces {
					errs <- s.ledger.Append(t.Context(), p)
				}
			})
		}
	}
	group.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatalf("Append = %v, want nil", err)
		}
	}
	for _, chain := range all {
		s.reaches(t, s.ledger, "after concurrent calls", chain, parts)
	}
}
