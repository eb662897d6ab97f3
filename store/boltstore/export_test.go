package boltstore

import "context"

// OpenRestless opens a store that compacts its file without end.
func OpenRestless(ctx context.Context, path string) (*Store, error) {
	return openWith(ctx, path, nil, restless())
}
