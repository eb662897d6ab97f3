package keywrappers_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awskms "github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/kms/types"
	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/examples/keywrappers"
)

// TestAWSAnchor: a vault whose anchor is a tag refuses a former store, and nothing lowers the tag.
func TestAWSAnchor(t *testing.T) {
	c := newLocalKMS(t)
	ctx, client, dir := t.Context(), clientOf(c, secret), t.TempDir()
	created, err := client.CreateKey(ctx, &awskms.CreateKeyInput{Tags: []types.Tag{{TagKey: aws.String("owner"), TagValue: aws.String("ours")}}})
	if err != nil {
		t.Fatal(err)
	}
	key := *created.KeyMetadata.Arn
	opts := &cardvault.Options{Anchor: keywrappers.AWSAnchor(client, key)}
	use := func() error {
		t.Helper()
		v, err := cardvault.Open(ctx, filepath.Join(dir, "vault"), cardvault.WrappedBy(openAWS(t, c, key, secret)), opts)
		if err != nil {
			return err
		}
		_, err = v.RotateKeys(ctx, nil)
		return errors.Join(err, v.Close())
	}

	file := filepath.Join(dir, "vault", "cardvault.db")
	first := use()
	former, err := os.ReadFile(file)
	if err := errors.Join(first, err, use()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, former, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := use(); !errors.Is(err, cardvault.ErrRolledBack) {
		t.Errorf("a former store: %v", err)
	}

	before, err := opts.Anchor.Load(ctx)
	if err != nil || len(before) == 0 || len(before) > 240 {
		t.Fatalf("the anchor is %q, %v", before, err)
	}
	fresh := keywrappers.AWSAnchor(client, key)
	if err := fresh.Advance(ctx, 1, []byte("lower")); err != nil {
		t.Error(err)
	}
	if is, err := fresh.Load(ctx); string(is) != string(before) || err != nil {
		t.Errorf("after a lower number the anchor is %q, %v", is, err)
	}

	c.breaks(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	if text, err := fresh.Load(ctx); err == nil || text != nil {
		t.Errorf("a service that fails: %q, %v", text, err)
	}
	if err := use(); err == nil || errors.Is(err, cardvault.ErrRolledBack) {
		t.Errorf("a service that fails: %v", err)
	}
}
