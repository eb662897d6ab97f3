package keywrappers_test

import (
	"bytes"
	"errors"
	"net/http"
	"testing"

	awskms "github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store/memstore"
	localkms "github.com/nsmithuk/local-kms/src"
	"github.com/nsmithuk/local-kms/src/config"
	"github.com/nsmithuk/local-kms/src/data"
)

// newLocalKMS starts a server of AWS KMS that others have written.
func newLocalKMS(t *testing.T) *cloud {
	config.AWSRegion, config.AWSAccountId = "eu-central-1", "111122223333"
	db := data.NewDatabase(t.TempDir())
	t.Cleanup(db.Close)
	return newCloud(t, func(_ *cloud, w http.ResponseWriter, r *http.Request) { localkms.HandleRequest(w, r, db) })
}

// TestLocalKMS: a vault works with a server of AWS KMS that others have written. keytest.Run is for
// the server of TestAWS, which checks signatures and binds all of a ciphertext: this one does not.
func TestLocalKMS(t *testing.T) {
	c := newLocalKMS(t)
	wrapper := func() cardvault.KeyWrapper {
		t.Helper()
		key, err := clientOf(c, secret).CreateKey(t.Context(), new(awskms.CreateKeyInput))
		if err != nil {
			t.Fatal(err)
		}
		return openAWS(t, c, *key.KeyMetadata.Arn, secret)
	}
	s, w, other := memstore.New(), wrapper(), wrapper()

	v, err := cardvault.New(t.Context(), s, cardvault.WrappedBy(w), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = v.RotateKeys(t.Context(), nil)
	if err := errors.Join(err, v.ChangeKeyring(t.Context(), cardvault.WrappedBy(other)), v.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := cardvault.New(t.Context(), s, cardvault.WrappedBy(w), nil); !errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("the former key: %v", err)
	}
	if v, err = cardvault.New(t.Context(), s, cardvault.WrappedBy(other), nil); err != nil {
		t.Fatal(err)
	}
	defer v.Close()

	wrapped, err := w.Wrap(t.Context(), dataKey, []byte("ours"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Unwrap(t.Context(), wrapped, []byte("others")); !errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("other associated data: %v", err)
	}
	if _, err := other.Unwrap(t.Context(), wrapped, []byte("ours")); !errors.Is(err, cardvault.ErrWrongKey) {
		t.Errorf("another key: %v", err)
	}
	if got, err := w.Unwrap(t.Context(), wrapped, []byte("ours")); !bytes.Equal(got, dataKey) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
