package jobs_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/jobs"
)

func TestEach(t *testing.T) { bubble.Test(t, each) }

func each(t *testing.T) {
	items := make([]int, 500)
	for i := range items {
		items[i] = i
	}
	var now, most, sum atomic.Int64
	odd := errors.New("odd")
	err := jobs.Each(items, func(n int) error {
		for at := now.Add(1); ; {
			if m := most.Load(); at <= m || most.CompareAndSwap(m, at) {
				break
			}
		}
		defer now.Add(-1)
		time.Sleep(time.Second)
		sum.Add(int64(n))
		if n == 7 {
			return odd
		}
		return nil
	})
	if !errors.Is(err, odd) || sum.Load() != 500*499/2 || most.Load() != 32 {
		t.Errorf("%v, sum %d, up to %d at the same time", err, sum.Load(), most.Load())
	}
	if err := jobs.Each([]int(nil), func(int) error { return odd }); err != nil {
		t.Error(err)
	}
}
