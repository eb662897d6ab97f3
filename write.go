package cardvault

import (
	"context"
	"crypto/sha256"
	"log/slog"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/google/uuid"
)

// An Actor says on whose behalf calls are made. A zero field is unknown.
type Actor struct {
	KeyID     uuid.UUID // of the API key
	RootKeyID uuid.UUID // of the first key in its chain of creators: [APIKey.Root]
	Name      string    // of a caller that is authenticated without an API key
	Address   string    // of the client
	RequestID string
}

// root returns the id under which mistakes count together: of the first key of a chain, or
// of a name.
func (a Actor) root() uuid.UUID {
	if a.RootKeyID != uuid.Nil || a.Name == "" {
		return a.RootKeyID
	}
	sum := sha256.Sum256([]byte("actor\x00" + a.Name))
	return uuid.UUID(sum[:16])
}

// log returns a as it is logged.
func (a Actor) log() slog.Attr {
	return slog.GroupAttrs("",
		slog.Any("key_id", a.KeyID),
		slog.Any("root_key_id", a.RootKeyID),
		slog.String("actor", a.Name),
		slog.String("address", a.Address),
		slog.String("request_id", a.RequestID))
}

type actorKey struct{}

// WithActor returns a context whose calls are made on behalf of a.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// Operations, by which the log names writes.
var (
	opImport              = ledger.Adds("token.import")
	opTokenize            = ledger.Adds("token.tokenize")
	opReplace             = ledger.Adds("token.replace")
	opUpdate              = ledger.Adds("token.update")
	opDelete              = ledger.Takes("token.delete")
	opProvision           = ledger.Adds("token.provision")
	opNetworkToken        = ledger.Adds("network_token.update")
	opNotice              = ledger.Adds("network_token.notice")
	opRenew               = ledger.Adds("card.renew")
	opRelease             = ledger.Adds("network_token.release")
	opPaymentData         = ledger.Adds("payment_data.create")
	opCreateSession       = ledger.Adds("session.create")
	opIdentify            = ledger.Adds("session.identify")
	opRefuseCard          = ledger.Adds("session.refuse")
	opRefreshSession      = ledger.Adds("session.refresh")
	opReplaceSession      = ledger.Adds("session.replace")
	opRefreshSecurityCode = ledger.Adds("security_code.refresh")
	opConsume             = ledger.Takes("security_code.consume")
	opObtainPPAN          = ledger.Adds("ppan.obtain").For("ppan")
	opUse                 = ledger.Adds("card.use")
	opUseCredential       = ledger.Adds("network_token.use")
	opForward             = ledger.Adds("card.forward")
	opSetCredential       = ledger.Adds("credential.set")
	opDeleteCredential    = ledger.Ends("credential.delete")
	opCreateAccount       = ledger.Adds("account.create")
	opUpdateAccount       = ledger.Ends("account.update")
	opFreezeAccount       = ledger.Ends("account.freeze")
	opThawAccount         = ledger.Ends("account.thaw")
	opCloseAccount        = ledger.Ends("account.close")
	opAccountClosed       = ledger.Takes("account.closed") // all is erased
	opRetain              = ledger.Takes("token.retention")
	opPinProviderAccount  = ledger.Adds("account.pin_provider_account")
	opCreateMerchant      = ledger.Adds("merchant.create")
	opRotateSecret        = ledger.Ends("merchant.rotate_secret")
	opRevokeSecret        = ledger.Ends("merchant.revoke_previous_secret")
	opCreateAPIKey        = ledger.Adds("api_key.create")
	opUpdateAPIKey        = ledger.Revokes("api_key.update")
	opDeleteAPIKey        = ledger.Ends("api_key.delete")
	opCreateWebhook       = ledger.Adds("webhook.create")
	opUpdateWebhook       = ledger.Adds("webhook.update")
	opDeleteWebhook       = ledger.Revokes("webhook.delete")
	opRotateWebhook       = ledger.Revokes("webhook.rotate_secret")
	opRevokeWebhookSecret = ledger.Revokes("webhook.revoke_previous_secrets")
	opRedeliver           = ledger.Adds("event.redeliver")
	opBackup              = ledger.Takes("vault.backup")
	opRepair              = ledger.Takes("vault.repair")
)

// wrote logs a write that a caller asked for, or the use of a card: on whose behalf, which
// operation, on which object, and how it ended.
func (c *core) wrote(ctx context.Context, op ledger.Operation, account, object uuid.UUID, err error) {
	level, what := slog.LevelDebug, "write"
	if op.Purpose != "" {
		level, what = slog.LevelInfo, "card used"
	}
	if !c.log.Enabled(ctx, level) {
		return
	}
	actor, _ := ctx.Value(actorKey{}).(Actor)
	c.log.LogAttrs(ctx, level, what,
		slog.String("operation", op.Name),
		slog.String("purpose", op.Purpose),
		slog.String("detail", op.Detail),
		slog.Any("account", account),
		slog.Any("object", object),
		actor.log(),
		slog.Any("error", err))
}
