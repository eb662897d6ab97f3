package seal

import (
	"crypto/ed25519"
	"crypto/hmac"

	"github.com/google/uuid"
)

// AuditMACSize is the size of AuditMAC's result, in bytes.
const AuditMACSize = 16

// AuditMAC returns the MAC of the content of a record in the audit log of an account.
func (b *Box) AuditMAC(account uuid.UUID, content []byte) []byte {
	return b.account(account).audit.sum(content)[:AuditMACSize]
}

// ValidAuditMAC reports whether mac is the AuditMAC of content.
func (b *Box) ValidAuditMAC(account uuid.UUID, content, mac []byte) bool {
	return hmac.Equal(mac, b.AuditMAC(account, content))
}

// AuditSigner returns the key that signs the checkpoints of the audit log. Who has its
// public part cannot forge a checkpoint, unlike the holder of a MAC's key.
func (b *Box) AuditSigner() ed25519.PrivateKey {
	k := b.Keys()
	return ed25519.NewKeyFromSeed(derive(k.Audits.key(), "audit signing", k.Vault, uuid.Nil))
}
