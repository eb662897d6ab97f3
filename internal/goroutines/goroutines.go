// Package goroutines fails the tests of a package that leave a goroutine behind.
package goroutines

import "go.uber.org/goleak"

// Verify is [goleak.VerifyTestMain], but goroutines have half a minute to end instead of
// half a second: no test depends on how fast the machine is.
func Verify(m goleak.TestingM) { goleak.VerifyTestMain(patient{m}) }

type patient struct{ goleak.TestingM }

func (p patient) Run() int {
	status := p.TestingM.Run()
	for n := 0; status == 0 && n < 60 && goleak.Find() != nil; n++ {
	}
	return status
}
