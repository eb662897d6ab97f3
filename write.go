package cardvault

import (
	"context"
	"errors"
	"log/slog"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// An Actor says on whose behalf calls are made. What is zero is not known.
type Actor struct {
	KeyID     uuid.UUID // of the API key
	RootKeyID uuid.UUID // of the first of the chain of keys that made it: [APIKey.Root]
	Address   string    // of the client
	RequestID string
}

type actorKey struct{}

// WithActor returns a context whose calls are made on behalf of a.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// An operation names a write for the log.
type operation string

const (
	opImport              operation = "token.import"
	opTokenize            operation = "token.tokenize"
	opUpdate              operation = "token.update"
	opDelete              operation = "token.delete"
	opProvision           operation = "token.provision"
	opNetworkToken        operation = "network_token.update"
	opNotice              operation = "network_token.notice"
	opRelease             operation = "network_token.release"
	opPaymentData         operation = "payment_data.create"
	opCreateSession       operation = "session.create"
	opSessionKey          operation = "session_key.create"
	opIdentify            operation = "session.identify"
	opRefuseCard          operation = "session.refuse"
	opRefreshSession      operation = "session.refresh"
	opRefreshSecurityCode operation = "security_code.refresh"
	opConsume             operation = "security_code.consume"
	opObtainPPAN          operation = "ppan.obtain"
	opCreateAccount       operation = "account.create"
	opApprove             operation = "account.approve"
	opSetQuotas           operation = "account.set_quotas"
	opSetProviderAccounts operation = "account.set_provider_accounts"
	opPinProviderAccount  operation = "account.pin_provider_account"
	opCreateMerchant      operation = "merchant.create"
	opRotateSecret        operation = "merchant.rotate_secret"
	opCreateAPIKey        operation = "api_key.create"
	opDeleteAPIKey        operation = "api_key.delete"
	opCreateWebhook       operation = "webhook.create"
	opUpdateWebhook       operation = "webhook.update"
	opDeleteWebhook       operation = "webhook.delete"
	opRotateWebhook       operation = "webhook.rotate_secret"
	opRedeliver           operation = "event.redeliver"
	opRotateKeys          operation = "keys.rotate"
	opExpire              operation = "expire"
	opStep                operation = "step" // of a call or of background work: not logged
)

// An urgency says behind what an operation does not wait: see lane.
type urgency uint8

const (
	adds  urgency = iota
	takes         // what is stored, or a secret: most keys may do that
	ends          // a right; an account has no more of them to end than its quota of API keys
)

func (o operation) urgency() urgency {
	switch o {
	case opDeleteAPIKey, opApprove, opSetQuotas, opSetProviderAccounts, opRotateSecret, opRotateKeys:
		return ends
	case opDelete, opConsume, opDeleteWebhook, opRotateWebhook, opExpire:
		return takes
	}
	return adds
}

// write is the one way in which a call changes the store.
func (v *Vault) write(ctx context.Context, op operation, object uuid.UUID, fn func(store.Tx) error) error {
	if v.closed.Load() {
		return ErrClosed
	}
	err := wrapped(v.update(ctx, op, fn))
	if errors.Is(err, errRepeated) || errors.Is(err, errKeyMade) || errors.Is(err, store.ErrConflict) {
		return err // the caller looks again: not an outcome yet
	}
	v.wrote(ctx, op, v.account, object, err)
	return err
}

// wrote is told of every write that was asked for: who, what, to which object,
// and how it ended.
func (c *core) wrote(ctx context.Context, op operation, account, object uuid.UUID, err error) {
	if !c.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	actor, _ := ctx.Value(actorKey{}).(Actor)
	c.log.LogAttrs(ctx, slog.LevelDebug, "write",
		slog.String("operation", string(op)),
		slog.Any("account", account),
		slog.Any("object", object),
		slog.Any("key_id", actor.KeyID),
		slog.Any("root_key_id", actor.RootKeyID),
		slog.String("address", actor.Address),
		slog.String("request_id", actor.RequestID),
		slog.Any("error", err))
}
