package vaultsuite

import (
	"slices"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
)

// paymentSecretRevoked: no vault on the store uses a payment secret once it is revoked, also
// for a payment for which the network was asked before.
func paymentSecretRevoked(t *testing.T, s store.Store) {
	n, ctx := new(till), t.Context()
	a, b := paying(t, s, n), paying(t, s, n)
	shop := must(a.PrimaryMerchant(ctx))(t).ID
	revoke := &cardvault.PaymentSecretOptions{RevokePrevious: true}

	noError(t, a.RevokePreviousPaymentSecret(ctx, shop)) // it has none
	first := newSecret(t, a)
	noError(t, a.RevokePreviousPaymentSecret(ctx, shop))
	token := usable(t, a, 1)
	order := examplePayment
	order.IdempotencyKey = idemKey
	old := must(a.RequestPaymentData(ctx, token.ID, order))(t)
	pays(t, old, first)

	// The waiting secret is used at once, and what the former one opens is no longer returned.
	second := newSecret(t, b)
	pays(t, pay(t, a, token), first)
	paid(t, a, token, must(a.ListPaymentData(ctx, token.ID, nil))(t).Items...)
	noError(t, b.RevokePreviousPaymentSecret(ctx, shop))
	withheld(t, a, token)
	if again := must(a.RequestPaymentData(ctx, token.ID, order))(t); again.ID != old.ID || !again.Success || again.Encrypted != "" {
		t.Errorf("a repetition under a revoked secret: %+v", again)
	}
	current := pay(t, a, token)
	pays(t, current, second)
	if got := must(b.PaymentData(ctx, token.ID, current.ID))(t); got.Encrypted != current.Encrypted {
		t.Error("payment data of the present secret is not returned")
	}

	// A secret that is revoked while the network answers is not used.
	var third string
	n.during = func() { third = must(b.RotatePaymentSecret(ctx, shop, revoke))(t).Secret.Text() }
	late := pay(t, a, token)
	pays(t, late, third)
	if got := must(b.PaymentData(ctx, token.ID, late.ID))(t); got.Encrypted != late.Encrypted {
		t.Error("the stored payment data differs from the answer")
	}
	if n.calls() != 4 {
		t.Errorf("the network was asked %d times for 4 payments", n.calls())
	}

	if got := must(a.Merchant(ctx, shop))(t).Secrets; len(got) != 1 || got[0].ActivateAt.After(time.Now()) {
		t.Errorf("%d secrets after the others were revoked", len(got))
	}

	// A secret is taken away whose text was lost: the one that waits, and then the only one.
	last := must(a.Merchant(ctx, shop))(t).Secrets[0].KeyID
	waiting := must(a.RotatePaymentSecret(ctx, shop, nil))(t)
	noError(t, b.RevokePaymentSecret(ctx, shop, waiting.KeyID))
	noError(t, b.RevokePaymentSecret(ctx, shop, waiting.KeyID)) // it has been taken away
	pays(t, pay(t, a, token), third)
	noError(t, b.RevokePaymentSecret(ctx, shop, last))
	withheld(t, a, token)
	if got := must(a.Merchant(ctx, shop))(t).Secrets; len(got) != 0 {
		t.Errorf("%d secrets are left", len(got))
	}
	refuses(t, "both times", errorOf(a.RotatePaymentSecret(ctx, shop, &cardvault.PaymentSecretOptions{RevokePrevious: true, ActivateAt: time.Now()})), "ActivateAt depends_on")
}

// withheld checks that no payment data of a token is returned encrypted.
func withheld(t testing.TB, v *cardvault.Vault, token *cardvault.Token) {
	t.Helper()
	for _, p := range must(v.ListPaymentData(t.Context(), token.ID, nil))(t).Items {
		one := must(v.PaymentData(t.Context(), token.ID, p.ID))(t)
		if p.Encrypted != "" || one.Encrypted != "" || !p.Success || !one.Success {
			t.Errorf("payment data under a revoked secret: %+v, %+v", p, one)
		}
	}
}

// webhookSecretsRevoked: no vault on the store signs with a secret once it is revoked.
func webhookSecretsRevoked(t *testing.T, s store.Store) {
	var mail mailbox
	ctx := t.Context()
	a, b := sending(t, s, &mail), sending(t, s, new(mailbox))
	w := newHook(t, a, receiver)
	texts := func(secrets ...receive.WebhookSecret) (texts []string) {
		for _, s := range secrets {
			s.Expose(func(text []byte) { texts = append(texts, string(text)) })
		}
		return texts
	}
	n := 0
	signs := func(what string, want ...receive.WebhookSecret) {
		t.Helper()
		n++
		importCard(t, a, testCard(n), nil)
		noError(t, a.Drain(ctx))
		if got := texts(mail.taken[len(mail.taken)-1].Secrets...); len(mail.taken) != n || !slices.Equal(got, texts(want...)) {
			t.Errorf("%s: %d secrets sign, want %d others", what, len(got), len(want))
		}
	}

	noError(t, b.RevokePreviousWebhookSecrets(ctx, w.ID))
	signs("one secret", w.Secret)
	second := must(b.RotateWebhookSecret(ctx, w.ID, nil))(t).Secret
	signs("rotated", w.Secret, second)
	noError(t, b.RevokePreviousWebhookSecrets(ctx, w.ID))
	signs("revoked", second)

	for range receive.MaxSecrets - 1 {
		must(b.RotateWebhookSecret(ctx, w.ID, nil))(t)
	}
	fails(t, "one more", errorOf(b.RotateWebhookSecret(ctx, w.ID, nil)), cardvault.ErrTooManySecrets)
	last := must(b.RotateWebhookSecret(ctx, w.ID, &cardvault.WebhookSecretOptions{RevokePrevious: true}))(t).Secret
	signs("rotated and revoked", last)
	noError(t, b.DeleteWebhook(ctx, w.ID))
	fails(t, "of a deleted webhook", b.RevokePreviousWebhookSecrets(ctx, w.ID), cardvault.ErrNotFound)
}
