package goroutines

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestSlowGoroutines(t *testing.T) {
	go time.Sleep(3 * time.Second)
	if goleak.Find() == nil {
		t.Fatal("goleak waits longer itself")
	}
	patient{tests(0)}.Run()
	if err := goleak.Find(); err != nil {
		t.Error(err)
	}
}

type tests int

func (status tests) Run() int { return int(status) }
