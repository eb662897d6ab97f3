package seal

import (
	"crypto/hmac"
	"crypto/sha256"
	"hash"

	"github.com/google/uuid"
)

// BackupMAC returns the MAC that authenticates a backup of the vault. Its key derives from the
// id key, which never changes: a backup can be verified after any number of rotations.
func (k *Keys) BackupMAC(backup uuid.UUID) hash.Hash {
	return hmac.New(sha256.New, derive(k.IDs.key(), "backup", k.Vault, backup))
}
