package payone_test

import (
	"testing"

	"github.com/cardvault/cardvault/internal/goroutines"
)

func TestMain(m *testing.M) { goroutines.Verify(m) }
