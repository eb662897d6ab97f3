package seal

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/google/uuid"
)

// AnchorMAC authenticates what an anchor says of the vault, or for a purpose a part of that. Its
// key derives from the id key, which never changes: an anchor can be verified after any number of
// rotations.
func (k *Keys) AnchorMAC(purpose string, content ...[]byte) []byte {
	mac := hmac.New(sha256.New, derive(k.IDs.key(), purpose, k.Vault, uuid.Nil))
	for _, c := range content {
		mac.Write(c)
	}
	return mac.Sum(nil)
}
