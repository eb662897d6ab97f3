package jobs

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
)

// TestLateTimer: a timer that fires while watch replaces it leaves the next one as it is, so
// that stop still ends it.
func TestLateTimer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var n neglect
		n.watch(time.Hour, func() { t.Error("the first timer was not stopped") })
		late := n.turn
		n.watch(time.Minute, func() { t.Error("the second timer was not stopped") })
		n.fired(late)
		n.stop()
		time.Sleep(2 * time.Hour)
	})
}

// TestTimerThatFired: after a timer has fired, the next watch sets another, however late.
func TestTimerThatFired(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var n neglect
		var looks atomic.Int64
		n.watch(time.Minute, func() { looks.Add(1) })
		time.Sleep(2 * time.Minute)
		n.watch(time.Hour, func() { looks.Add(1) })
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if looks.Load() != 2 {
			t.Errorf("%d looks, want 2", looks.Load())
		}
	})
}
