package sandbox

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/audittest"
	"github.com/google/uuid"
)

func (dir Checkpoints) kept(context.Context) (all []*audit.Checkpoint, err error) {
	files, err := os.ReadDir(string(dir))
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(string(dir), f.Name()))
		if err != nil {
			return nil, err
		}
		c := new(audit.Checkpoint)
		if err := json.Unmarshal(text, c); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, err
}

func TestCheckpoints(t *testing.T) {
	dir := Checkpoints(t.TempDir())
	audittest.Run(t, audittest.Harness{Open: func(testing.TB) audit.Sink { return dir }, Kept: dir.kept})

	all, err := dir.kept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	of := map[uuid.UUID]bool{}
	for _, c := range all {
		if of[c.AccountID] {
			t.Errorf("the folder has several checkpoints of account %v", c.AccountID)
		}
		of[c.AccountID] = true
	}
}
