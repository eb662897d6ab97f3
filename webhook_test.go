package cardvault_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// signing returns the text of a signing secret.
func signing(s receive.WebhookSecret) (text string) {
	s.Expose(func(b []byte) { text = string(b) })
	return text
}

// update changes a webhook.
func (l *lab) update(w *cardvault.Webhook, u cardvault.WebhookUpdate) *cardvault.Webhook {
	l.Helper()
	w, err := l.UpdateWebhook(l.Context(), w.ID, u)
	l.must(err)
	return w
}

// disabled checks whether a webhook is disabled, and why.
func (l *lab) disabled(w *cardvault.Webhook, why string) {
	l.Helper()
	w, err := l.Webhook(l.Context(), w.ID)
	l.must(err)
	if w.Disabled != (why != "") || string(w.DisabledReason) != why {
		l.Errorf("webhook is disabled for %q, want %q", w.DisabledReason, why)
	}
}

// TestWebhookSecretHidesItself: no part of a secret shows, however it is printed.
func TestWebhookSecretHidesItself(t *testing.T) {
	secret := receive.NewWebhookSecret([]byte("whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"))
	d := &cardvault.Delivery{Secrets: []receive.WebhookSecret{secret}}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("secret", "secret", secret, "delivery", d)
	encoded, err := json.Marshal(map[string]any{"secret": secret})
	if err != nil {
		t.Fatal(err)
	}
	vaulttest.AssertNoLeak(t, []string{"c2VjcmV0", "secretsecret"}, log.String(), string(encoded), secret, d,
		fmt.Sprintf("%v %+v %#v %s %q %x %d", secret, secret, secret, secret, secret, secret, secret), fmt.Sprint(d), fmt.Sprintf("%+v", *d))
	if (receive.WebhookSecret{}).String() != "" {
		t.Errorf("the zero secret is %q", receive.WebhookSecret{})
	}
}

// TestSigningSecrets: the secrets that sign during a rotation.
func TestSigningSecrets(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		l.must(l.DeleteWebhook(l.Context(), hook.ID))
		hook, err := l.CreateWebhook(l.Context(), url, nil)
		l.must(err)
		random, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(signing(hook.Secret), "whsec_"))
		if err != nil || len(random) != 32 || !strings.HasPrefix(signing(hook.Secret), "whsec_") {
			t.Errorf("the secret has %d bytes: %v", len(random), err)
		}
		signs := func(want ...receive.WebhookSecret) {
			t.Helper()
			post.forget()
			l.imports(visa)
			l.drain()
			var texts []string
			for _, s := range want {
				texts = append(texts, signing(s))
			}
			if got := post.took(url)[0].secrets; !slices.Equal(got, texts) {
				t.Errorf("%d secrets sign, want %d", len(got), len(texts))
			}
		}
		rotate := func() receive.WebhookSecret {
			secret, err := l.RotateWebhookSecret(l.Context(), hook.ID, nil)
			l.must(err)
			return secret.Secret
		}
		signs(hook.Secret)
		second := rotate()
		signs(hook.Secret, second)
		l.pass(23 * time.Hour)
		signs(hook.Secret, second)
		l.pass(time.Hour)
		signs(second)
		third := rotate()
		l.pass(time.Hour)
		fourth := rotate()
		signs(second, third, fourth) // each lasts for a day
		l.pass(23 * time.Hour)
		signs(third, fourth)
		l.pass(time.Hour)
		signs(fourth)
		l.update(hook, cardvault.WebhookUpdate{Description: new("a")})
		signs(fourth)
		secrets := []receive.WebhookSecret{hook.Secret, second, third, fourth}
		for range receive.MaxSecrets - 1 {
			secrets = append(secrets, rotate())
			l.pass(time.Hour)
		}
		signs(secrets[3:]...)
		if _, err := l.RotateWebhookSecret(l.Context(), hook.ID, nil); !errors.Is(err, cardvault.ErrTooManySecrets) {
			t.Errorf("a ninth active secret: %v", err)
		}
		signs(secrets[3:]...)
		l.pass(17 * time.Hour) // until the first of them expires
		secrets = append(secrets, rotate())
		signs(secrets[4:]...)
		texts := map[string]bool{}
		for _, s := range secrets {
			texts[signing(s)] = true
		}
		if len(texts) != len(secrets) {
			t.Error("a secret was used before")
		}
	})
}

// TestSecretRotatedInFlight: a receiver that knows either the former or the new secret can
// verify every delivery. Retries are signed again.
func TestSecretRotatedInFlight(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		knows := "" // the secret that the receiver accepts, or "" for any
		post.set(func(_ context.Context, d *cardvault.Delivery) (int, error) {
			<-time.After(time.Second)
			var secrets []string
			for _, s := range d.Secrets {
				secrets = append(secrets, signing(s))
			}
			if knows != "" && !slices.Contains(secrets, knows) {
				return 401, nil
			}
			return 200, nil
		})
		ids := l.crowd(100, visa)
		l.run(func() {
			l.pass(2500 * time.Millisecond)
			secret, err := l.RotateWebhookSecret(l.Context(), hook.ID, nil)
			l.must(err)
			knows = signing(secret.Secret) // at once
			for _, id := range ids {
				patch(l, id, "a")
			}
			l.pass(time.Minute)
		})
		refused := 0
		for _, s := range post.tried(url) {
			if s.code == 401 {
				refused++
			}
		}
		if refused == 0 || refused > 8 {
			t.Errorf("%d deliveries were refused, want only those in progress", refused)
		}
		if n, again := post.inOrder(url); n != 200 || again != 0 {
			t.Errorf("%d events have arrived, want 200; %d of them again", n, again)
		}
	})
}

// TestWebhookWithoutSuccess: after five days without success a webhook is disabled, and its
// due deliveries fail. Once it is enabled again, the five days start over.
func TestWebhookWithoutSuccess(t *testing.T) {
	const day = 24 * time.Hour
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		const other = "https://other.example/"
		healthy := l.hook(other)
		post.set(func(_ context.Context, d *cardvault.Delivery) (int, error) {
			if d.URL == url {
				return 500, nil
			}
			return 200, nil
		})
		l.run(func() {
			l.pass(10 * day) // idle time is not a failure
			l.imports(visa)
			l.pass(4 * day)
			l.imports(visa)
			l.pass(23 * time.Hour)
			l.disabled(hook, "")
			l.pass(2 * day) // includes an attempt for the second event after five days
			l.disabled(hook, "failing")
			l.disabled(healthy, "")
			if strings.Count(l.log.text(), "webhook is disabled") != 1 {
				t.Error("the log does not mention the disabled webhook exactly once")
			}
			before := len(post.tried(url))
			missed := l.imports(visa)
			l.pass(2 * day)
			if n := len(post.tried(url)); n != before {
				t.Errorf("%d attempts while it is disabled", n-before)
			}
			l.statuses(hook, lost, lost)

			w := l.update(hook, cardvault.WebhookUpdate{Disabled: new(false)})
			if w.Disabled || w.DisabledReason != "" {
				t.Errorf("enabled again: %+v", w)
			}
			id := l.imports(visa)
			l.pass(4 * day)
			l.imports(visa)
			l.pass(time.Hour)
			l.disabled(hook, "")
			post.set(nil)
			patch(l, id, "a")
			l.pass(time.Second)
			l.disabled(hook, "")
			post.has(url, missed)
			post.has(url, id, patchedEvent) // the creation event has failed for good
			post.set(func(context.Context, *cardvault.Delivery) (int, error) { return 500, nil })
			l.imports(visa)
			l.pass(4 * day)
			l.imports(visa)
			l.pass(time.Hour)
			l.disabled(hook, "") // because of the success in between
		})
	})
}

// TestWebhookAfterAQuietTime: an event failed for good long ago, and another one is sent
// twice now. This does not disable the webhook.
func TestWebhookAfterAQuietTime(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		l.run(func() {
			post.says(400)
			l.imports(visa)
			l.pass(10 * 24 * time.Hour)
			var blip sync.Once
			post.set(func(context.Context, *cardvault.Delivery) (code int, _ error) {
				code = 200
				blip.Do(func() { code = 503 })
				return code, nil
			})
			id := l.imports(visa)
			l.pass(time.Minute)
			l.disabled(hook, "")
			post.has(url, id, createdEvent)
		})
	})
}

// TestWebhookFailsNowAndThen: time without attempts is not counted as time without success.
func TestWebhookFailsNowAndThen(t *testing.T) {
	const day = 24 * time.Hour
	for _, code := range []int{500, 503} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
				post.says(code)
				l.run(func() {
					l.imports(visa)
					l.pass(10 * day) // the delivery has failed for good after three
					l.imports(visa)
					l.pass(4 * day)
					l.disabled(hook, "")
					l.imports(visa)
					l.pass(2 * day)
					l.disabled(hook, "failing")
				})
			})
		})
	}
}

// TestWebhookIsGone: a webhook that answers 410 is disabled at once.
func TestWebhookIsGone(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		post.says(410)
		id := l.imports(visa)
		patch(l, id, "a")
		l.crowd(100, visa)
		l.run(func() { l.pass(time.Hour) })
		l.disabled(hook, "gone")
		if n := len(post.tried(url)); n > 8 {
			t.Errorf("%d attempts, most of them after status 410", n)
		}
		for _, d := range l.deliveries(hook) {
			if d.Status != lost {
				t.Errorf("%+v", d)
			}
		}
		post.set(nil)
		first := l.deliveries(hook)[0].EventID
		l.update(hook, cardvault.WebhookUpdate{Disabled: new(false)})
		l.must2(l.Redeliver(l.Context(), first, nil))
		l.run(func() { l.pass(time.Hour) })
		post.has(url, id, createdEvent)
	})
}

// TestURLChangedInFlight: an answer from a former URL does not disable the new one.
func TestURLChangedInFlight(t *testing.T) {
	const moved = "https://moved.example/"
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		post.set(func(_ context.Context, d *cardvault.Delivery) (int, error) {
			if d.URL == moved {
				return 200, nil
			}
			l.update(hook, cardvault.WebhookUpdate{URL: new(moved)})
			return 410, nil
		})
		id := l.imports(visa)
		patch(l, id, "a")
		l.run(func() { l.pass(time.Hour) })
		l.disabled(hook, "")
		post.has(moved, id, patchedEvent)
		l.statuses(hook, lost, delivered)
	})
}

// TestDisabledWhileUnderWay: no attempt starts once a webhook is disabled. Deliveries not
// yet due continue when it is enabled again.
func TestDisabledWhileUnderWay(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		post.set(func(context.Context, *cardvault.Delivery) (int, error) {
			<-time.After(time.Second)
			return 500, nil
		})
		l.crowd(100, visa)
		l.run(func() {
			l.pass(1500 * time.Millisecond) // 16 attempts
			l.update(hook, cardvault.WebhookUpdate{Disabled: new(true)})
			l.disabled(hook, "requested")
			l.pass(time.Second)
			if n := len(post.tried(url)); n != 16 {
				t.Errorf("%d attempts, want 16", n)
			}
			failed, waiting := 0, 0
			for _, d := range l.deliveries(hook) {
				switch d.Status {
				case lost:
					failed++
				case underWay:
					waiting++
				}
			}
			if failed != 84 || waiting != 16 {
				t.Errorf("%d failed, %d pending, want 84 and 16", failed, waiting)
			}
			l.update(hook, cardvault.WebhookUpdate{Disabled: new(false)})
			post.set(nil)
			l.pass(10 * time.Second)
			if n := len(post.took(url)); n != 16 {
				t.Errorf("%d events have arrived, want 16", n)
			}
		})
	})
}

// TestDeleteWebhook: nothing more is sent, and only the records of other webhooks are left.
func TestDeleteWebhook(t *testing.T) {
	const other = "https://other.example/"
	inPost(t, livePost, func(l *lab, post *post, first *cardvault.Webhook) {
		l.keepBooksWithout(first)
		hook, kept := l.hook(url), l.hook(other)
		post.set(func(_ context.Context, d *cardvault.Delivery) (int, error) {
			<-time.After(time.Second)
			return 500, nil
		})
		l.crowd(400, visa)
		l.run(func() {
			l.pass(1500 * time.Millisecond)
			l.must(l.DeleteWebhook(l.Context(), hook.ID))
			l.pass(5 * time.Minute)
		})
		if n := len(post.tried(url)); n != 16 {
			t.Errorf("%d attempts, want only those in progress", n)
		}
		if _, err := l.Webhook(l.Context(), hook.ID); !errors.Is(err, cardvault.ErrNotFound) {
			t.Errorf("Webhook = %v", err)
		}
		if _, err := l.ListDeliveries(l.Context(), hook.ID, nil); !errors.Is(err, cardvault.ErrNotFound) {
			t.Errorf("ListDeliveries = %v", err)
		}
		a, b, c := len(l.stored(kindWebhook)), len(l.stored(kindQueue)), len(l.stored(kindDelivery))
		if a != 1 || b != 1 || c != 400 {
			t.Errorf("%d webhooks, %d queues, %d deliveries are left, want only the other webhook's", a, b, c)
		}
		l.must(l.DeleteWebhook(l.Context(), kept.ID))
		l.run(func() { l.pass(2 * time.Minute) })
		for _, kind := range []store.Kind{kindWebhook, kindQueue, kindDelivery} {
			if n := len(l.stored(kind)); n != 0 {
				t.Errorf("%d records of kind %d are left", n, kind)
			}
		}
	})
}

// TestDeleteWebhookAtRest: the log of an idle webhook is erased too. So are waiting
// deliveries in a vault without a sender.
func TestDeleteWebhookAtRest(t *testing.T) {
	for _, sends := range []bool{true, false} {
		t.Run(fmt.Sprint("sender ", sends), func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, first *cardvault.Webhook) {
				l.keepBooksWithout(first)
				hook := l.hook(url)
				l.crowd(300, visa)
				l.drain()
				if !sends {
					l.crowd(300, visa)
					l.opts.Webhooks = nil
					l.restart()
				}
				l.must(l.DeleteWebhook(l.Context(), hook.ID))
				l.run(func() { l.pass(time.Second) })
				for _, kind := range []store.Kind{kindWebhook, kindQueue, kindDelivery, kindRemains} {
					if n := len(l.stored(kind)); n != 0 {
						t.Errorf("%d records of kind %d are left", n, kind)
					}
				}
			})
		})
	}
}

// TestUnknownWebhooks: calls for a webhook that does not exist.
func TestUnknownWebhooks(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		a, err := l.CreateAccount(l.Context(), "", nil)
		l.must(err)
		theirs, err := l.In(a.ID).CreateWebhook(l.Context(), "https://theirs.example/", nil)
		l.must(err)
		for _, id := range []uuid.UUID{uuid.New(), uuid.Nil, theirs.ID} {
			for what, call := range map[string]func() error{
				"Webhook": func() error { _, err := l.Webhook(l.Context(), id); return err },
				"UpdateWebhook": func() error {
					_, err := l.UpdateWebhook(l.Context(), id, cardvault.WebhookUpdate{Disabled: new(true)})
					return err
				},
				"DeleteWebhook":       func() error { return l.DeleteWebhook(l.Context(), id) },
				"RotateWebhookSecret": func() error { _, err := l.RotateWebhookSecret(l.Context(), id, nil); return err },
				"TestWebhook":         func() error { _, err := l.TestWebhook(l.Context(), id); return err },
				"ListDeliveries":      func() error { _, err := l.ListDeliveries(l.Context(), id, nil); return err },
			} {
				if err := call(); !errors.Is(err, cardvault.ErrNotFound) {
					t.Errorf("%s = %v", what, err)
				}
			}
		}
		w, err := l.In(a.ID).Webhook(l.Context(), theirs.ID)
		l.must(err)
		if w.Disabled || len(post.sent) != 0 {
			t.Error("a webhook of another account was touched")
		}
		if _, err := l.In(uuid.New()).CreateWebhook(l.Context(), url, nil); !errors.Is(err, cardvault.ErrNotFound) {
			t.Errorf("CreateWebhook for an unknown account = %v", err)
		}
	})
}

// TestTestWebhook: a test is sent exactly once and at once, even to a disabled webhook.
func TestTestWebhook(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		l.update(hook, cardvault.WebhookUpdate{Disabled: new(true), LegacyHMAC: new(true)})
		for want, answer := range map[int]func(context.Context, *cardvault.Delivery) (int, error){
			200: func(context.Context, *cardvault.Delivery) (int, error) { <-time.After(time.Second); return 200, nil },
			404: func(context.Context, *cardvault.Delivery) (int, error) { <-time.After(time.Second); return 404, nil },
			410: func(context.Context, *cardvault.Delivery) (int, error) { <-time.After(time.Second); return 410, nil },
			0:   func(context.Context, *cardvault.Delivery) (int, error) { <-time.After(time.Second); return 0, errDown },
		} {
			post.forget()
			post.set(answer)
			got, err := l.TestWebhook(l.Context(), hook.ID)
			l.must(err)
			if got.StatusCode != want || got.Duration != time.Second {
				t.Errorf("%+v, want %d", got, want)
			}
			sent := post.tried(url)
			if len(sent) != 1 || sent[0].Event != nil || sent[0].ID == uuid.Nil || time.Since(sent[0].CreatedAt) > 2*time.Second ||
				len(sent[0].secrets) != 1 || !sent[0].Legacy {
				t.Errorf("sent %+v", sent)
			}
		}
		l.disabled(hook, "requested")
		l.statuses(hook)
		post.set(func(ctx context.Context, _ *cardvault.Delivery) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		got, err := l.TestWebhook(l.Context(), hook.ID)
		l.must(err)
		if got.StatusCode != 0 || got.Duration != 15*time.Second {
			t.Errorf("no answer: %+v", got)
		}
		ctx, cancel := context.WithCancel(l.Context())
		post.set(func(ctx context.Context, _ *cardvault.Delivery) (int, error) { cancel(); return 0, ctx.Err() })
		if _, err := l.TestWebhook(ctx, hook.ID); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled TestWebhook = %v", err)
		}
	})
}

// TestOneTestAtATime: each webhook runs one test at a time.
func TestOneTestAtATime(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		other := l.hook("https://other.example/")
		post.set(func(ctx context.Context, d *cardvault.Delivery) (int, error) {
			if d.URL != url {
				return 200, nil
			}
			<-ctx.Done()
			return 0, ctx.Err()
		})
		ctx, cancel := context.WithCancel(l.Context())
		ended := make(chan error)
		go func() { _, err := l.TestWebhook(ctx, hook.ID); ended <- err }()
		l.pass(time.Second)
		for range 2 {
			if _, err := l.TestWebhook(l.Context(), hook.ID); !errors.Is(err, cardvault.ErrTestInProgress) {
				t.Errorf("a second test = %v", err)
			}
		}
		_, err := l.TestWebhook(l.Context(), other.ID)
		l.must(err)
		cancel()
		if err := <-ended; err == nil {
			t.Error("the first test was not ended")
		}
		_, err = l.TestWebhook(l.Context(), hook.ID)
		l.must(err)
	})
}

// TestNoSender: a vault without a sender registers no webhooks. Its deliveries wait for a
// vault with a sender.
func TestNoSender(t *testing.T) {
	inPost(t, livePost, func(l *lab, post *post, hook *cardvault.Webhook) {
		opts := l.opts
		opts.Webhooks = nil
		keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
		l.must(err)
		silent, err := cardvault.New(l.Context(), l.store, keys, &opts)
		l.must(err)
		_, err = silent.CreateWebhook(l.Context(), url, nil)
		_, err2 := silent.UpdateWebhook(l.Context(), hook.ID, cardvault.WebhookUpdate{Disabled: new(true)})
		_, err3 := silent.TestWebhook(l.Context(), hook.ID)
		for _, err := range []error{err, err2, err3} {
			if !errors.Is(err, cardvault.ErrNotEnabled) {
				t.Errorf("without a sender: %v", err)
			}
		}
		page, err := silent.ListWebhooks(l.Context(), nil)
		l.must(err)
		if len(page.Items) != 1 {
			t.Errorf("%d webhooks", len(page.Items))
		}
		ctx, stop := context.WithCancel(l.Context())
		ended := make(chan error)
		go func() { ended <- silent.Run(ctx) }()
		token, err := silent.Import(l.Context(), visa, nil)
		l.must(err)
		l.pass(30 * 24 * time.Hour)
		stop()
		l.must(<-ended)
		if len(post.sent) != 0 {
			t.Error("a vault without a sender sends")
		}
		l.run(func() { l.pass(time.Second) })
		post.has(url, token.ID, createdEvent)
		l.must(silent.DeleteWebhook(l.Context(), hook.ID))
		l.must(silent.Close())
	})
}

// TestSecretsOfAWebhookAreExchanged: nothing is sent with missing secrets or secrets other
// than the webhook's own. Such secrets are never stored as its own.
func TestSecretsOfAWebhookAreExchanged(t *testing.T) {
	for what, secret := range map[string]func(former *store.Record) []byte{
		"none":   func(*store.Record) []byte { return nil },
		"former": func(former *store.Record) []byte { return former.Secret },
	} {
		t.Run(what, func(t *testing.T) {
			inPost(t, livePost, func(l *lab, post *post, first *cardvault.Webhook) {
				books := l.keepBooksWithout(first)
				hook := l.hook(url)
				former := l.stored(kindWebhook)[0]
				_, err := l.RotateWebhookSecret(l.Context(), hook.ID, nil)
				l.must(err)
				whole := l.stored(kindWebhook)[0]
				put := func(r store.Record) {
					for _, write := range []func(store.Tx){
						func(tx store.Tx) { tx.Delete(kindWebhook, r.ID) },
						func(tx store.Tx) { tx.Put(former) }, // the first version
						func(tx store.Tx) { tx.Put(&r) },
					} {
						l.must(books.Store.Update(l.Context(), func(tx store.Tx) error { write(tx); return nil }))
					}
				}
				bad := *whole
				bad.Secret = secret(former)
				put(bad)
				l.imports(visa)
				l.drain()
				if !strings.Contains(l.log.text(), "damaged") {
					t.Error("the log does not mention it")
				}
				if sent := post.tried(url); len(sent) > 0 {
					t.Errorf("sent with wrong secrets: %v", sent)
				}
				if _, err := l.RotateWebhookSecret(l.Context(), hook.ID, nil); !errors.Is(err, cardvault.ErrDamaged) {
					t.Errorf("rotation of wrong secrets: %v", err)
				}
				put(*whole)
				l.run(func() { l.pass(2 * time.Minute) })
				if sent := post.took(url); len(sent) != 1 || len(sent[0].secrets) != 2 {
					t.Errorf("after the repair: %v", sent)
				}
			})
		})
	}
}
