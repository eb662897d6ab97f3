package storetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault/store"
)

var durabilityRules = []harnessRule[*stand]{{
	"Reopened", "Reopen",
	`Records that Update has acknowledged exist after the store is closed and opened again, with
everything by which they are found. Deleted records do not. A restarted vault has no other
copy.`,
	reopened,
}, {
	"CloseKeeps", "Reopen",
	`Writes acknowledged during Close exist afterwards. A call that returned ErrClosed has written
nothing: its caller repeats it.`,
	closeKeeps,
}, {
	"Killed", "Place",
	`Writes that Update has acknowledged to a process survive a kill of that process at any
instant. By then the system or the server has them, not a buffer of the process.`,
	killed,
}, {
	"PowerCut", "Crash",
	`When Update returns nil its writes are durable: a power loss takes no acknowledged record and
brings back no deleted one. A vault relies on this when it acknowledges cards.`,
	powerCut,
}}

func reopened(s *stand) {
	const rounds = 6
	w, m := &walk{Rand: rand.New(rand.NewPCG(1, 2))}, model{}
	open := s.reopened(s.fresh())
	for range rounds {
		after := maps.Clone(m)
		writes := w.writes(after, 200)
		update(s, open, func(tx store.Tx) error {
			for _, write := range writes {
				write(tx)
			}
			return nil
		})

		m = after
		open = s.reopened(open)
		view(s, open, func(tx store.ReadTx) error {
			for range 20 {
				if err := w.ask(tx, m); err != nil {
					s.Errorf("opened again: %v", err)
					break
				}
			}
			return nil
		})
	}

	refused(s, open, store.ErrConflict, func(tx store.Tx) error {
		for _, r := range m {
			tx.Put(r) // has its version already
			break
		}
		return nil
	})

	for k := range m {
		update(s, open, func(tx store.Tx) error { tx.Delete(k.kind, k.id); return nil })
	}
	view(s, s.reopened(open), func(tx store.ReadTx) error {
		none, err := tx.Empty()
		if !none {
			s.Error("opened again: a store whose records were all deleted is not empty")
		}
		return err
	})
}

func closeKeeps(s *stand) {
	const callers = 32
	open := s.fresh()
	put(s, open, row(1))
	var mu sync.Mutex
	outcomes := map[int]error{}
	parallel(s, callers, func(i int) error {
		for n := 2 + i; ; n += callers {
			err := open.Update(background, putting(row(n)))
			mu.Lock()
			outcomes[n] = err
			closing := len(outcomes) == 4*callers
			mu.Unlock()

			if errors.Is(err, store.ErrClosed) {
				return nil
			}
			if err == nil && closing {
				err = open.Close()
			}
			if err != nil {
				return err
			}
		}
	})

	view(s, s.reopened(open), func(tx store.ReadTx) error {
		for n, outcome := range outcomes {
			_, err := tx.Get(kindA, idOf(n))
			if kept := err == nil; kept != (outcome == nil) {
				s.Errorf("opened again: Update returned %v, and Get %v", outcome, err)
			}
		}
		return nil
	})
}

func powerCut(s *stand) {
	const rounds, callers = 3, 16
	open := s.fresh()
	for round := range rounds {
		first := 1 + round*100
		put(s, open, row(first, hashes("h"), due(time.UnixMicro(int64(first)))))
		open = s.crashed(open)
		holds(s, open, row(first, hashes("h"), due(time.UnixMicro(int64(first)))))

		// What commits together is acknowledged together.
		parallel(s, callers, func(i int) error { return open.Update(background, putting(row(first+1+i))) })
		open = s.crashed(open)
		for i := range callers {
			holds(s, open, row(first+1+i))
		}

		update(s, open, deleting(row(first)))
		put(s, open, row(first+1, version(2), shown("changed")))
		open = s.crashed(open)
		lacks(s, open, row(first))
		holds(s, open, row(first+1, version(2), shown("changed")))
		found(s, open, kindA, "h", 9)
	}
}

// childEnv makes the test binary act as a process that writes: from which number on, and
// where.
const childEnv = "CARDVAULT_STORETEST_CHILD"

// Child makes the test binary the process that the rule Killed kills. TestMain calls it
// before anything else:
//
//	func TestMain(m *testing.M) {
//		storetest.Child(func(place string) (store.Store, error) { return mystore.Open(place) })
//		os.Exit(m.Run())
//	}
//
// open opens what Harness.Place has named. In a process that is not that child, Child
// returns at once.
func Child(open func(place string) (store.Store, error)) {
	from, place, isChild := strings.Cut(os.Getenv(childEnv), " ")
	if !isChild {
		return
	}

	err := os.Unsetenv(childEnv)
	n, numberErr := strconv.Atoi(from)
	if err = errors.Join(err, numberErr); err == nil {
		err = work(n, place, open)
	}
	fmt.Fprintln(os.Stderr, "storetest: the process that was to be killed:", err)
	os.Exit(1)
}

const childWorkers = 8

// work writes records until it is killed. Each line of its output is whole, and is written
// before the next step begins.
func work(from int, place string, open func(place string) (store.Store, error)) error {
	s, err := open(place)
	if err != nil {
		return err
	}

	failed := make(chan error)
	for i := range childWorkers {
		go func() {
			for n := from + i; ; n += childWorkers {
				r := row(n, class(uint8(n%3+1)), due(time.UnixMicro(int64(n))), hashes(strconv.Itoa(n%7)), shown(strings.Repeat("x", 300)))
				err := s.Update(context.Background(), putting(r))
				if err == nil {
					fmt.Fprintln(os.Stdout, "put", n)
				}
				if err == nil && n%3 == 0 {
					fmt.Fprintln(os.Stdout, "deleting", n)
					if err = s.Update(context.Background(), deleting(r)); err == nil {
						fmt.Fprintln(os.Stdout, "deleted", n)
					}
				}
				if err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}

func killed(s *stand) {
	kills := 20
	if testing.Short() {
		kills = 3
	}
	if s.Reopen == nil {
		s.Fatal("Harness.Place needs Harness.Reopen")
	}
	open := s.fresh()
	place := s.Place(open)
	states, from := map[int]string{}, 0

	for range kills {
		s.closes(open)
		from = s.killAfter(rand.IntN(400), from, place, states)
		again, err := s.Reopen(s, open)
		open = s.opened("after a process was killed", again, err)
		view(s, open, func(tx store.ReadTx) error {
			for n, state := range states {
				_, err := tx.Get(kindA, idOf(n))
				switch {
				case state == "put" && err != nil:
					s.Errorf("record %d, which was acknowledged before the process was killed: %v", n, err)
				case state == "deleted" && !errors.Is(err, store.ErrNotFound):
					s.Errorf("record %d, which was deleted before the process was killed: %v", n, err)
				}
			}
			return nil
		})

		if s.Failed() {
			return
		}
	}
}

// killAfter has a process write from a number on, and kills it when it has acknowledged some
// steps. It notes the state of each record, and returns the next number.
func (s *stand) killAfter(steps, from int, place string, states map[int]string) int {
	s.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", childEnv, from, place))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.Fatal(err)
	}

	ended, lines := false, bufio.NewScanner(out)
	for i := 0; lines.Scan(); i++ {
		state, digits, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.Atoi(digits)
		if err != nil {
			break // of the last line, or of a binary that does not call Child
		}
		states[n] = state
		from = max(from, n+childWorkers)
		if i == steps {
			ended = cmd.Process.Kill() == nil
		}
	}

	if err := cmd.Wait(); err == nil || !ended {
		s.Fatalf("the process that was to be killed has ended by itself (%v): does TestMain call storetest.Child?", err)
	}
	return from + childWorkers - from%childWorkers + 8*childWorkers // past the records that were not acknowledged
}
