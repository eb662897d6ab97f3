package audittest_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/audittest"
	"github.com/cardvault/cardvault/internal/contract"
	"github.com/google/uuid"
)

// A shelf is the storage of a sink.
type shelf struct {
	mu   sync.Mutex
	kept map[uuid.UUID]*audit.Checkpoint
}

func (s *shelf) all(context.Context) (all []*audit.Checkpoint, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.kept {
		all = append(all, c)
	}
	return all, nil
}

// put keeps a checkpoint whatever is kept.
func (s *shelf) put(account uuid.UUID, c *audit.Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[account] = c
}

func (s *shelf) last(account uuid.UUID) *audit.Checkpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[account]
}

// keep keeps the later checkpoint of an account.
func (s *shelf) keep(ctx context.Context, c *audit.Checkpoint) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if former := s.kept[c.AccountID]; former == nil || former.Number < c.Number {
		s.kept[c.AccountID] = c
	}
	return nil
}

// A sink is an audit.Sink.
type sink func(ctx context.Context, c *audit.Checkpoint) error

func (f sink) Keep(ctx context.Context, c *audit.Checkpoint) error { return f(ctx, c) }

// open makes a sink on a shelf, like a starting process.
type open func(s *shelf) sink

func right(s *shelf) sink { return s.keep }

var errRefused = errors.New("the sink does not want it")

// faults lists faults, each with a rule that must detect it.
var faults = []struct {
	fault, rule string
	open        open
}{
	{"it keeps nothing", "Keeps", func(*shelf) sink {
		return func(context.Context, *audit.Checkpoint) error { return nil }
	}},
	{"it cuts off long texts", "Keeps", func(s *shelf) sink {
		return func(ctx context.Context, c *audit.Checkpoint) error {
			c.Digests = c.Digests[:min(len(c.Digests), 4096)]
			return s.keep(ctx, c)
		}
	}},
	{"it forgets a field", "Keeps", func(s *shelf) sink {
		return func(ctx context.Context, c *audit.Checkpoint) error {
			c.Lane = uuid.Nil
			return s.keep(ctx, c)
		}
	}},
	{"the first one stays", "Later", func(s *shelf) sink {
		return func(_ context.Context, c *audit.Checkpoint) error {
			if s.last(c.AccountID) == nil {
				s.put(c.AccountID, c)
			}
			return nil
		}
	}},
	{"a gap is refused", "Later", func(s *shelf) sink {
		return func(ctx context.Context, c *audit.Checkpoint) error {
			if former := s.last(c.AccountID); former != nil && c.Number != former.Number+1 {
				return errRefused
			}
			return s.keep(ctx, c)
		}
	}},
	{"a repetition is refused", "Again", func(s *shelf) sink {
		return func(ctx context.Context, c *audit.Checkpoint) error {
			if former := s.last(c.AccountID); former != nil && former.Number == c.Number {
				return errRefused
			}
			return s.keep(ctx, c)
		}
	}},
	{"the last to come stays", "Earlier", func(s *shelf) sink {
		return func(_ context.Context, c *audit.Checkpoint) error { s.put(c.AccountID, c); return nil }
	}},
	{"an earlier one is refused", "Earlier", func(s *shelf) sink {
		return func(ctx context.Context, c *audit.Checkpoint) error {
			if former := s.last(c.AccountID); former != nil && former.Number > c.Number {
				return errRefused
			}
			return s.keep(ctx, c)
		}
	}},
	{"the present number is known only to the process", "Earlier", func(s *shelf) sink {
		var mu sync.Mutex
		last := map[uuid.UUID]uint64{}
		return func(_ context.Context, c *audit.Checkpoint) error {
			mu.Lock()
			defer mu.Unlock()
			if last[c.AccountID] < c.Number {
				last[c.AccountID] = c.Number
				s.put(c.AccountID, c)
			}
			return nil
		}
	}},
	{"accounts share a place", "Accounts", func(s *shelf) sink {
		return func(_ context.Context, c *audit.Checkpoint) error { s.put(uuid.Nil, c); return nil }
	}},
	{"the whole vault has none", "Accounts", func(s *shelf) sink {
		return func(ctx context.Context, c *audit.Checkpoint) error {
			if c.AccountID == uuid.Nil {
				return nil
			}
			return s.keep(ctx, c)
		}
	}},
	{"it begins anew after a restart", "Restart", func(s *shelf) sink {
		s.mu.Lock()
		clear(s.kept)
		s.mu.Unlock()
		return s.keep
	}},
	{"it hangs", "ContextEnded", func(s *shelf) sink {
		return func(ctx context.Context, c *audit.Checkpoint) error {
			<-time.After(30 * time.Second)
			return s.keep(ctx, c)
		}
	}},
	{"a cut-off call succeeds", "ContextEnded", func(s *shelf) sink {
		return func(ctx context.Context, c *audit.Checkpoint) error {
			if ctx.Err() != nil {
				return nil
			}
			return s.keep(ctx, c)
		}
	}},
	{"one at a time", "Concurrency", func(s *shelf) sink {
		var busy sync.Mutex
		return func(ctx context.Context, c *audit.Checkpoint) error {
			if !busy.TryLock() {
				return errRefused
			}
			defer busy.Unlock()
			<-time.After(10 * time.Millisecond)
			return s.keep(ctx, c)
		}
	}},
	{"it reads first and writes later", "Concurrency", func(s *shelf) sink {
		return func(_ context.Context, c *audit.Checkpoint) error {
			former := s.last(c.AccountID)
			<-time.After(time.Duration(20-c.Number) * 10 * time.Millisecond) // the highest is first
			if former == nil || former.Number < c.Number {
				s.put(c.AccountID, c)
			}
			return nil
		}
	}},
}

func harness(o open) audittest.Harness {
	s := &shelf{kept: map[uuid.UUID]*audit.Checkpoint{}}
	return audittest.Harness{Open: func(testing.TB) audit.Sink { return o(s) }, Kept: s.all}
}

// Every rule must detect its faults.
func TestRulesCanFail(t *testing.T) {
	noticed := contract.Faults(t, audittest.Names())
	for _, f := range faults {
		noticed(f.rule, f.fault, func(t *testing.T) []string {
			return audittest.Failures(t, f.rule, harness(f.open))
		})
	}
}

// A sink without a fault passes, so that a failure is due to the fault.
func TestRulesPassWithoutFault(t *testing.T) { audittest.Run(t, harness(right)) }

// Without Kept only what Keep returns is tested.
func TestWithoutKept(t *testing.T) {
	h := harness(right)
	h.Kept = nil
	audittest.Run(t, h)
}

// A folder keeps each checkpoint in a file of its own, which nothing replaces.
type folder struct{ dir string }

func (f folder) Keep(ctx context.Context, c *audit.Checkpoint) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	hash := c.Hash()
	file, err := os.OpenFile(filepath.Join(f.dir, uuid.UUID(hash[:16]).String()), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Sync(), file.Close())
}

func (f folder) kept(context.Context) (all []*audit.Checkpoint, err error) {
	files, err := filepath.Glob(filepath.Join(f.dir, "*"))
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		c := new(audit.Checkpoint)
		if err := json.Unmarshal(text, c); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, err
}

// TestFolder: a sink that never overwrites passes too.
func TestFolder(t *testing.T) {
	f := folder{t.TempDir()}
	audittest.Run(t, audittest.Harness{Open: func(testing.TB) audit.Sink { return f }, Kept: f.kept})
}
