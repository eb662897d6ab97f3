package httpapi_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
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

// TestTranscriptsUpdate: -update restores answers that are wrong, under the names that later
// requests use.
func TestTranscriptsUpdate(t *testing.T) {
	const name = "identification.txt"
	text, err := os.ReadFile(filepath.Join("testdata/transcripts", name))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	wrong := strings.NewReplacer("\n= 200", "\n= 299", "payment_account_reference", "reference").Replace(string(text))
	if err := os.WriteFile(filepath.Join(dir, name), []byte(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, update := range []bool{true, false} {
		transcript.Files(t, dir)[0].Play(t, update, func(*testing.T) *transcript.Setup {
			return &transcript.Setup{Stores: []store.Store{memstore.New()}}
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
