package goroutines

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestSlowGoroutines(t *testing.T) {
	end := make(chan struct{})
	go func() { <-end }()
	if goleak.Find() == nil {
		t.Fatal("goleak waits longer itself")
	}
	time.AfterFunc(3*time.Second, func() { close(end) })
	patient{tests(0)}.Run()
	if err := goleak.Find(); err != nil {
		t.Error(err)
	}
}

type tests int

func (status tests) Run() int { return int(status) }
