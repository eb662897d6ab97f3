package auditlog

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/google/uuid"
)

const (
	keepTime   = 10 * time.Second // for one call of a sink
	keepPause  = 5 * time.Second  // after a failure
	mostBehind = time.Minute      // before calls are refused
	mostKeeps  = 16               // at a time
	maxBehind  = 65536            // accounts with a checkpoint to keep
)

// A sink passes the last checkpoint of each account on. It starts goroutines only while there
// are some, at most mostKeeps, even if the sink never returns.
type sink struct {
	to  audit.Sink
	log *slog.Logger

	mu      sync.Mutex
	latest  map[uuid.UUID]*audit.Checkpoint // by account, not passed on
	busy    map[uuid.UUID]bool              // accounts with a call under way
	workers int                             // at most mostKeeps
	since   time.Time                       // of the oldest failure or wait; zero: nothing is waiting
	resume  *time.Timer                     // after a failure
	failing ledger.Seldom
	idle    chan struct{} // closed when nothing is waiting; nil: close does not wait
	ended   bool
}

func newSink(to audit.Sink, log *slog.Logger) *sink {
	return &sink{to: to, log: log, latest: map[uuid.UUID]*audit.Checkpoint{}, busy: map[uuid.UUID]bool{}}
}

// offer passes a checkpoint on, soon. A later one takes its place.
func (s *sink) offer(c *audit.Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.latest) < maxBehind || s.latest[c.AccountID] != nil {
		s.latest[c.AccountID] = c
	}
	if s.since.IsZero() {
		s.since = time.Now()
	}
	s.start()
}

// start begins a worker if there is something to do. The caller holds s.mu.
func (s *sink) start() {
	if s.workers < mostKeeps && s.workers < len(s.latest) && s.resume == nil {
		s.workers++
		go s.work()
	}
}

func (s *sink) work() {
	for c := s.take(); c != nil; c = s.take() {
		s.settle(c, s.keep(c))
	}
}

// take returns a checkpoint to pass on. Without one the worker ends.
func (s *sink) take() *audit.Checkpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resume == nil && !s.ended {
		for account, c := range s.latest {
			if !s.busy[account] {
				s.busy[account] = true
				return c
			}
		}
	}
	s.workers--
	return nil
}

func (s *sink) keep(c *audit.Checkpoint) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), keepTime)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("cardvault: audit sink panicked: %T", r)
		}
	}()
	err = s.to.Keep(ctx, c)
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return err
}

func (s *sink) settle(c *audit.Checkpoint, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, c.AccountID)
	if err != nil {
		if s.failing.Now() {
			s.log.Error("audit sink has not kept a checkpoint", "error", leak.Printable(err))
		}
		if s.resume == nil && !s.ended {
			s.resume = time.AfterFunc(keepPause, s.again)
		}
		return
	}

	if s.latest[c.AccountID] == c {
		delete(s.latest, c.AccountID)
	}
	switch {
	case len(s.latest) > 0:
		s.since = time.Now() // it keeps some
	default:
		s.since = time.Time{}
		if s.idle != nil {
			close(s.idle)
			s.idle = nil
		}
	}
}

func (s *sink) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resume = nil
	s.start()
}

// behind returns ErrFull if the sink has kept nothing for a while.
func (s *sink) behind() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.since.IsZero() && time.Since(s.since) > mostBehind {
		return fmt.Errorf("%w: the audit sink has kept no checkpoint for a minute", ErrFull)
	}
	return nil
}

// close waits until all checkpoints are kept, or ctx ends. A sink that fails has its pauses.
func (s *sink) close(ctx context.Context) {
	defer s.end()
	s.mu.Lock()
	if s.resume != nil {
		s.resume.Stop()
		s.resume = nil
		s.start()
	}
	var idle chan struct{}
	if len(s.latest) > 0 {
		idle = make(chan struct{})
		s.idle = idle
	}
	s.mu.Unlock()
	if idle == nil {
		return
	}

	select {
	case <-idle:
	case <-ctx.Done():
		s.log.Error("audit sink has not kept the last checkpoints")
	}
}

// end lets workers end, and starts none.
func (s *sink) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.resume != nil {
		s.resume.Stop()
	}
}
