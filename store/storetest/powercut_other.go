//go:build !linux || !(amd64 || arm64)

package storetest

import (
	"errors"
	"os"
)

func unsynced(*os.File, int64, int64) (bool, error) { return false, errors.ErrUnsupported }
