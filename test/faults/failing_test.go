package faults_test

import (
	"cmp"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// sortsOfFailure are ways in which a disk fails: from a call on, so many calls of some sorts.
var sortsOfFailure = map[string]struct {
	errno syscall.Errno
	calls int
	sorts []sort
}{
	"EIO once":          {syscall.EIO, 1, []sort{wrote, truncated, synced, linked, unlinked, renamed}},
	"EIO for a while":   {syscall.EIO, 15, []sort{wrote, truncated, synced, linked, unlinked, renamed}},
	"EIO of syncs":      {syscall.EIO, 1, []sort{synced}},
	"EIO of reads":      {syscall.EIO, 15, []sort{read}},
	"full":              {syscall.ENOSPC, 15, []sort{wrote, truncated, linked}},
	"mounted read-only": {syscall.EROFS, 15, []sort{wrote, truncated, linked, unlinked, renamed}},
}

// TestFailingDisk makes calls of the system fail, now and then, while a vault works. The operations
// that fail return documented errors: ErrDamaged if it was a read. The process goes on, and every acknowledged object is there
// later, also after a loss of power. There is
// one life for each sort of failure, and 20 in make faults.
func TestFailingDisk(t *testing.T) {
	for name, failure := range sortsOfFailure {
		t.Run(name, func(t *testing.T) {
			failed, refused, acked, cuts := 0, 0, 0, 0
			for life := range points(1, 20) {
				random := rand.New(rand.NewPCG(uint64(life), uint64(failure.errno)))
				d := mount(t)
				unreadable := slices.Contains(failure.sorts, read)
				d.forgets = unreadable
				from := 1 + random.IntN(120)
				var failures []int // numbers of actions
				d.fail = func(call int, what sort) syscall.Errno {
					for _, s := range failure.sorts {
						if s == what && call >= from {
							failures = append(failures, len(d.actions))
							if failed++; failed%failure.calls == 0 {
								from = call + 60 + random.IntN(120)
							}
							return failure.errno
						}
					}
					return 0
				}
				worked(t, &orders{Dir: d.dir, Log: filepath.Join(d.dir, logName), Sim: filepath.Join(t.TempDir(), "sim"), Random: 60, Seed: uint64(life), Faulty: true, Unreadable: unreadable})

				// The disk as it is, and as losses of power leave it soon after a failure.
				var all []cut
				for range 12 {
					at := failures[random.IntN(len(failures))] + random.IntN(20)
					all = append(all, cut{min(at, len(d.actions)), loss(random.IntN(int(losses))), "the next operation"})
				}
				all = append(all, cut{len(d.actions), kept, "all"})
				slices.SortStableFunc(all, func(a, b cut) int { return cmp.Compare(a.at, b.at) })
				cuts += len(all)
				d.cutAt(t, all, false, false, func(c cut, wrong []string) bool {
					if len(wrong) > 0 {
						t.Errorf("life %d, change %d, in %q, %v:\n%s", life, c.at, c.op, c.how, strings.Join(wrong[:min(5, len(wrong))], "\n"))
					}
					return true
				})
				for _, l := range d.lines {
					switch l.State {
					case undone, unknown:
						refused++
					case done:
						acked++
					}
				}
			}
			t.Logf("%d calls failed, and %d operations; %d were acknowledged; %d states of the disk were checked", failed, refused, acked, cuts)
			if failed == 0 || refused == 0 || acked < 5 {
				t.Error("too little has failed, or too much")
			}
		})
	}
}
