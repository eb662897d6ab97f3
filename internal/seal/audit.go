package seal

import (
	"crypto/ed25519"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/google/uuid"
)

// AuditMACSize is the size of AuditMAC's result, in bytes.
const AuditMACSize = 16

// AuditMAC returns the MAC of the content of a record in the audit log of an account.
func (b *Box) AuditMAC(account uuid.UUID, content []byte) [AuditMACSize]byte {
	sum := b.account(b.Keys(), account).audit.sum(content)
	return [AuditMACSize]byte(sum[:])
}

// AuditSigner returns the key that signs the checkpoints of the audit log. Who has its
// public part cannot forge a checkpoint, unlike the holder of a MAC's key.
func (k *Keys) AuditSigner() ed25519.PrivateKey { return k.Audits.Active().signer(k.Vault) }

// AuditPublic returns the public keys of all terms of the audit log, in their order.
func (k *Keys) AuditPublic() []ed25519.PublicKey {
	all := make([]ed25519.PublicKey, len(k.Audits))
	for i := range k.Audits {
		t := &k.Audits[i]
		if all[i] = t.Public; t.State != Destroyed {
			all[i] = t.signer(k.Vault).Public().(ed25519.PublicKey)
		}
	}
	return all
}

func (t *Term) signer(vault uuid.UUID) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(derive(hiding.Of(t.Key), "audit signing", vault, uuid.Nil))
}
