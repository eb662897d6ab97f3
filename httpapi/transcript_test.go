package httpapi_test

import (
	"context"
	"flag"
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/cardvault/cardvault/store/memstore"
)

var update = flag.Bool("update", false, "rewrite the answers in testdata/transcripts")

// TestTranscripts plays the documented behaviour, which package transcript explains. With
// -update it rewrites the expected answers: review them.
func TestTranscripts(t *testing.T) {
	for _, file := range transcript.Files(t, "testdata/transcripts") {
		t.Run(file.Name, func(t *testing.T) {
			file.Play(t, *update, func(*testing.T) *transcript.Setup {
				return &transcript.Setup{Stores: []store.Store{memstore.New()}}
			})
		})
	}
}

// TestTranscriptsOmitAbsent plays the same without nulls in answers.
func TestTranscriptsOmitAbsent(t *testing.T) {
	playAll(t, transcript.Setup{OmitAbsent: true})
}

// TestTranscriptsIgnoreUnknown plays the same with unknown members and parameters in
// requests: the answers stay the same.
func TestTranscriptsIgnoreUnknown(t *testing.T) {
	playAll(t, transcript.Setup{IgnoreUnknown: true})
}

// playAll plays all transcripts in memory.
func playAll(t *testing.T, s transcript.Setup) {
	for _, file := range transcript.Files(t, "testdata/transcripts") {
		t.Run(file.Name, func(t *testing.T) {
			file.Play(t, false, func(*testing.T) *transcript.Setup {
				s.Stores = []store.Store{memstore.New()}
				return &s
			})
		})
	}
}

// TestTranscriptsOnDisk plays the same on bbolt.
func TestTranscriptsOnDisk(t *testing.T) {
	for i, file := range transcript.Files(t, "testdata/transcripts") {
		if testing.Short() && i%5 > 0 {
			continue
		}
		t.Run(file.Name, func(t *testing.T) {
			dir := t.TempDir()
			file.Play(t, false, func(t *testing.T) *transcript.Setup {
				s, err := boltstore.Open(t.Context(), filepath.Join(dir, "cardvault.db"), nil)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
				return &transcript.Setup{Stores: []store.Store{hasty{s}}}
			})
		})
	}
}

// A hasty store is bbolt whose background work waits for no company, so that what is due is
// done when no goroutine runs.
type hasty struct{ *boltstore.Store }

// Update implements store.Store. Its context has no values, and so is not patient.
func (s hasty) Update(ctx context.Context, f func(store.Tx) error) error {
	apart, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	return s.Store.Update(apart, f)
}
