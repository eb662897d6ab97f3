// Package keywrappers has the key of a vault held by AWS KMS and by Google Cloud KMS, through
// Tink, and by a keyset of Tink. Each is a few lines, since package kms does the rest: deadlines,
// the check that associated data are bound, and the meaning of errors. A tag of a key can have the
// anchor of a vault.
package keywrappers

import (
	"context"

	"github.com/cardvault/cardvault"
	vaultkms "github.com/cardvault/cardvault/kms"
	"github.com/tink-crypto/tink-go-awskms/v3/integration/awskms"
	"github.com/tink-crypto/tink-go-gcpkms/v2/integration/gcpkms"
	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"google.golang.org/api/option"
)

// AWS wraps under a symmetric key of AWS KMS. The policy of the key and CloudTrail see the
// associated data, in hexadecimal digits, as the encryption context associatedData.
func AWS(ctx context.Context, arn string, client awskms.KMSAPI) (cardvault.KeyWrapper, error) {
	key, err := awskms.NewAEADWithContext(ctx, arn, awskms.WithKMS(client))
	if err != nil {
		return nil, err
	}
	return vaultkms.FromAEADWithContext(arn, key), nil
}

// Google wraps under a symmetric key of Google Cloud KMS, whose name begins with projects/. The
// caller closes the client.
func Google(ctx context.Context, name string, o ...option.ClientOption) (cardvault.KeyWrapper, *gcpkms.Client, error) {
	uri := "gcp-kms://" + name
	client, err := gcpkms.NewClient(ctx, uri, gcpkms.WithTransport(gcpkms.TransportREST), gcpkms.WithGoogleAPIClientOptions(o...))
	if err != nil {
		return nil, nil, err
	}
	key, err := client.GetAEAD(uri)
	if err != nil {
		return nil, nil, err
	}
	return vaultkms.FromAEAD(name, key), client, nil
}

// Tink wraps under a keyset in memory, which its owner keeps as Tink advises.
func Tink(name string, keys *keyset.Handle) (cardvault.KeyWrapper, error) {
	key, err := aead.New(keys)
	if err != nil {
		return nil, err
	}
	return vaultkms.FromAEAD("tink/"+name, key), nil
}
