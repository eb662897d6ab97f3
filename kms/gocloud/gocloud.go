// Package gocloud wraps the keys of a vault under a Keeper of gocloud.dev/secrets, whose drivers
// reach Azure Key Vault, AWS KMS, Google Cloud KMS and others.
//
// A Keeper has no associated data and no name, and its drivers differ in their errors. This
// package makes up for all three. AWS, Google and the transit engine have wrappers in package
// kms that bind associated data in the service itself: prefer those.
package gocloud

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"slices"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/kms/internal/remote"
	"gocloud.dev/gcerrors"
	"gocloud.dev/secrets"
)

// FromKeeper returns a wrapper of the key of a Keeper. The Keeper stays open, and its owner
// closes it.
//
// The name must be the same whenever the vault is opened, and has 1 to 255 bytes. It is
// stored in clear, so it is not the URL of a Keeper that holds the key itself, such as one
// that begins with base64key.
//
// A hash of the associated data is encrypted in front of the text. So the service cannot show
// or restrict associated data, but a text is not unwrapped with others. With a key pair, such as
// RSA in Azure, an attacker with the public key can wrap keys of their own: guard the public key
// like the private one.
//
// ErrWrongKey means that the driver says so, or that its error has no code, and the key encrypts
// and decrypts a text of its own, but not this one. A missing permission, a quota or a
// missing key are other errors.
func FromKeeper(keyID string, k *secrets.Keeper) cardvault.KeyWrapper {
	b := binding{k}
	return remote.New(keyID, b.encrypt, b.decrypt)
}

// A binding binds associated data to the texts of a Keeper.
type binding struct{ keeper *secrets.Keeper }

func (b binding) encrypt(ctx context.Context, text, aad []byte) ([]byte, error) {
	sum := sha256.Sum256(aad)
	bound := slices.Concat(sum[:], text)
	defer clear(bound)
	return b.keeper.Encrypt(ctx, bound)
}

func (b binding) decrypt(ctx context.Context, text, aad []byte) ([]byte, error) {
	bound, err := b.open(ctx, text)
	if err != nil {
		return nil, err
	}
	defer clear(bound)
	sum := sha256.Sum256(aad)
	if len(bound) < len(sum) || subtle.ConstantTimeCompare(bound[:len(sum)], sum[:]) != 1 {
		return nil, cardvault.ErrWrongKey
	}
	return slices.Clone(bound[len(sum):]), nil
}

// open decrypts a text, and finds out whether an error is the key's.
func (b binding) open(ctx context.Context, text []byte) ([]byte, error) {
	opaque := remote.Opaque(
		func(ctx context.Context, text, _ []byte) ([]byte, error) { return b.keeper.Encrypt(ctx, text) },
		func(ctx context.Context, text, _ []byte) ([]byte, error) { return b.keeper.Decrypt(ctx, text) },
	)

	bound, err := b.keeper.Decrypt(ctx, text)
	switch code := gcerrors.Code(err); {
	case err == nil:
		return bound, nil
	case code == gcerrors.InvalidArgument:
		return nil, remote.WrongKey(err)
	case code == gcerrors.Unknown && ctx.Err() == nil:
		return opaque(ctx, text, nil)
	}
	return nil, err
}
