package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const hook = `{"url":"https://hook.example/204"}`

// newWebhook registers a webhook in v's account and returns its id.
func (r *rig) newWebhook(t testing.TB, v *cardvault.Vault) string {
	t.Helper()
	w, err := v.CreateWebhook(t.Context(), "https://hook.example/204", nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.ID.String()
}

// lastEvent returns the id of the last event of v's account, once it is delivered.
func (r *rig) lastEvent(t testing.TB, v *cardvault.Vault) string {
	t.Helper()
	if err := r.vault.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	webhooks, err := v.ListWebhooks(t.Context(), nil)
	if err != nil || len(webhooks.Items) == 0 {
		t.Fatal("no webhook", err)
	}
	sent, err := v.ListDeliveries(t.Context(), webhooks.Items[0].ID, nil)
	if err != nil || len(sent.Items) == 0 {
		t.Fatal("no delivery", err)
	}
	return sent.Items[0].EventID.String()
}

// A sender is a transcript.Sender that records its deliveries.
type sender struct {
	transcript.Sender

	mu   sync.Mutex
	sent []*cardvault.Delivery
}

func (s *sender) Send(ctx context.Context, d *cardvault.Delivery) (*cardvault.SendResult, error) {
	s.mu.Lock()
	s.sent = append(s.sent, d)
	s.mu.Unlock()
	return s.Sender.Send(ctx, d)
}

// take returns the recorded deliveries and clears them.
func (s *sender) take() []*cardvault.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.sent = nil }()
	return s.sent
}

// Setting a URL needs the scope to read tokens, since events carry them. Secrets, tests and
// the log carry no token, and a redelivery goes to known URLs.
func TestWebhookScopes(t *testing.T) {
	r := newRig(t, &cardvault.Options{Webhooks: &sender{}}, nil)
	path := "/webhooks/" + r.newWebhook(t, r.vault)
	r.importCard(t)
	event := r.lastEvent(t, r.vault)
	_, write := r.newKey(t, r.vault, 0, cardvault.ScopeWebhooksWrite)
	_, read := r.newKey(t, r.vault, 0, cardvault.ScopeTokensRead)
	_, both := r.newKey(t, r.vault, 0, cardvault.ScopeWebhooksWrite, cardvault.ScopeTokensRead)
	for _, test := range []struct {
		method, path, body string
		status             int // with both scopes
		alone              bool
	}{
		{"POST", "/webhooks", hook, 200, false},
		{"PATCH", path, `{"url":"https://hook.example/other"}`, 200, false},
		{"PATCH", path, `{"description":"x"}`, 200, false},
		{"POST", path + "/rotate-secret", "", 200, true},
		{"POST", path + "/test", "", 200, true},
		{"POST", "/events/" + event + "/redeliver", "", 204, true},
		{"DELETE", path, "", 204, true},
	} {
		a := send(t, r.handler, test.method, test.path, test.body, "X-Api-Key", read)
		a.want(t, 403, "INSUFFICIENT_SCOPE")
		if got, want := a.member(t, "message"), "The API key needs the scope webhooks:write."; got != want {
			t.Errorf("%s %s: %s", test.method, test.path, got)
		}
		if !test.alone {
			a := send(t, r.handler, test.method, test.path, test.body, "X-Api-Key", write)
			a.want(t, 403, "INSUFFICIENT_SCOPE")
			if got, want := a.member(t, "message"), "The API key needs the scope tokens:read."; got != want {
				t.Errorf("%s %s: %s", test.method, test.path, got)
			}
		}
		send(t, r.handler, test.method, test.path, test.body, "X-Api-Key", map[bool]string{true: write, false: both}[test.alone]).want(t, test.status)
	}
}

// A URL has at most 2048 characters, a description 255, an account 16 webhooks.
func TestWebhookLimits(t *testing.T) {
	r := newRig(t, &cardvault.Options{Webhooks: &sender{}}, nil)
	create := func(key string, url, description int) *answer {
		const begin = "https://hook.example/204?"
		body := fmt.Sprintf(`{"url":%q,"description":%q}`, begin+strings.Repeat("x", url-len(begin)), strings.Repeat("é", description))
		return send(t, r.handler, "POST", "/webhooks", body, "X-Api-Key", key)
	}
	a := create(r.key, 2049, 256)
	a.want(t, 422, "VALIDATION_FAILED")
	if got := a.member(t, "message"); got != "url must have at most 2048 characters. description must have at most 255 characters." {
		t.Error(got)
	}
	create(r.key, 2048, 255).want(t, 200)
	for range 16 - 2 {
		create(r.key, 100, 1).want(t, 200)
	}
	last := create(r.key, 100, 1)
	last.want(t, 200)
	a = create(r.key, 100, 1)
	a.want(t, 409, "QUOTA_EXCEEDED")
	if got := a.member(t, "message"); got != "The account has reached its limit for webhooks: 16." {
		t.Error(got)
	}
	_, other := r.newKey(t, r.newAccount(t, nil), 0, cardvault.ScopeWebhooksWrite, cardvault.ScopeTokensRead)
	create(other, 100, 1).want(t, 200)
	r.do(t, "DELETE", "/webhooks/"+last.member(t, "id"), "").want(t, 204)
	create(r.key, 100, 1).want(t, 200)
}

// A tidy sender accepts only URLs that contain the account's id.
type tidy struct{ sender }

func (*tidy) Check(t *cardvault.Target) error {
	if !strings.HasSuffix(t.URL, t.Account.String()) {
		return errors.New("must name the account")
	}
	return nil
}

// One answer names all violations, including the vault's and the sender's.
func TestViolationsTogether(t *testing.T) {
	r := newRig(t, &cardvault.Options{Webhooks: new(tidy)}, nil)
	a := r.do(t, "POST", "/webhooks", `{"url":"https://hook.example/`+r.account(t).ID.String()+`"}`)
	a.want(t, 200)
	id, token := a.member(t, "id"), r.importCard(t)

	for _, test := range []struct{ method, path, body, fields string }{
		{"POST", "/webhooks", `{"url":"http://hook.example/","description":" ","x":1}`, "description url x"},
		{"POST", "/webhooks", `{"description":"` + strings.Repeat("x", 256) + `","x":1}`, "url description x"},
		{"PATCH", "/webhooks/" + id, `{"url":"http://hook.example/","x":1}`, "url x"},
		{"POST", "/api-keys", `{"label":"","scopes":[],"expiration_time":0,"x":1}`, "label expiration_time scopes x"},
		{"POST", "/tokens/" + token + "/payment-data", `{"merchant_id":"` + uuid.NewString() + `","amount":-1,"x":1}`, "amount currency_code reference merchant_id x"},
	} {
		a := r.do(t, test.method, test.path, test.body)
		a.want(t, 422, "VALIDATION_FAILED")
		var named []string
		for _, m := range regexp.MustCompile(`"field":"([^"]+)"`).FindAllStringSubmatch(a.body, -1) {
			named = append(named, m[1])
		}
		if got := strings.Join(named, " "); got != test.fields {
			t.Errorf("%s %s %s: %s", test.method, test.path, test.body, a.body)
		}
	}
}

// The latest secret signs, earlier ones for one more day, and secrets are shown nowhere
// else.
func TestSigningSecret(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := &sender{}
		r := newRig(t, &cardvault.Options{Webhooks: s}, nil)
		a := r.do(t, "POST", "/webhooks", `{"url":"https://hook.example/204","legacy_hmac":true}`)
		path := "/webhooks/" + a.member(t, "id")
		shown := []string{a.member(t, "signing_secret")}
		others := ""
		check := func(want ...string) {
			t.Helper()
			r.do(t, "POST", path+"/test", "").want(t, 200)
			sent := s.take()
			if len(sent) != 1 || sent[0].Event != nil || !sent[0].Legacy || sent[0].URL != "https://hook.example/204" {
				t.Fatalf("sent: %v", sent)
			}
			var got []string
			for _, secret := range sent[0].Secrets {
				secret.Expose(func(text []byte) { got = append(got, string(text)) })
			}
			if !slices.Equal(got, want) {
				t.Errorf("signed with %q, not %q", got, want)
			}
			for _, e := range [][3]string{{"GET", path, ""}, {"GET", "/webhooks", ""}, {"GET", path + "/deliveries", ""}, {"PATCH", path, `{"description":"d"}`}} {
				others += r.do(t, e[0], e[1], e[2]).body
			}
		}
		rotate := func() {
			t.Helper()
			a := r.do(t, "POST", path+"/rotate-secret", "")
			a.want(t, 200)
			shown = append(shown, a.member(t, "signing_secret"))
		}
		check(shown[0])
		rotate()
		check(shown[0], shown[1])
		time.Sleep(23 * time.Hour)
		check(shown[0], shown[1])
		rotate()
		check(shown[0], shown[1], shown[2])
		time.Sleep(time.Hour)
		check(shown[1], shown[2])
		time.Sleep(23 * time.Hour)
		check(shown[2])
		for range receive.MaxSecrets - 1 {
			rotate()
		}
		check(shown[2:]...)
		r.do(t, "POST", path+"/rotate-secret", "").want(t, 409, "WEBHOOK_STATE_CONFLICT")
		check(shown[2:]...)
		time.Sleep(24 * time.Hour)
		rotate()
		check(shown[len(shown)-2:]...)
		others += r.log.take()
		for _, secret := range shown {
			if strings.Contains(others, secret) {
				t.Error("a secret is shown again")
			}
		}
	})
}

// A rotated secret must be shown: an unknown new secret would replace the one in use. So
// nothing is read after it is made.
func TestRotationIsLast(t *testing.T) {
	r := newRig(t, &cardvault.Options{Webhooks: &sender{}}, nil)
	path := "/webhooks/" + r.newWebhook(t, r.vault) + "/rotate-secret"
	h := newHandler(t, openVault(t, mute{r.store}, &r.opts), nil)
	send(t, h, "POST", path, "", "X-Api-Key", r.key).want(t, 200)
	send(t, h, "POST", path, "", "X-Api-Key", r.key).want(t, 503)
}

// A mute store cannot be read after a write.
type mute struct{ *faultyStore }

func (s mute) Update(ctx context.Context, fn func(store.Tx) error) error {
	defer s.view.Store(pointer(store.ErrUnavailable))
	return s.faultyStore.Update(ctx, fn)
}

// A webhook can be tested by one request at a time.
func TestWebhookTestsAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, &cardvault.Options{Webhooks: &sender{}}, nil)
		path := "/webhooks/" + r.do(t, "POST", "/webhooks", `{"url":"https://hook.example/204?after=6s"}`).member(t, "id") + "/test"
		var first sync.WaitGroup
		first.Go(func() { r.do(t, "POST", path, "").want(t, 200) })
		time.Sleep(time.Second)
		a := r.do(t, "POST", path, "")
		a.want(t, 429, "RATE_LIMITED")
		if got := a.header["Retry-After"]; len(got) != 1 || got[0] != "5" {
			t.Errorf("Retry-After is %q", got)
		}
		time.Sleep(5 * time.Second)
		first.Wait()
		r.do(t, "POST", path, "").want(t, 200)
	})
}

// An event without an enabled webhook is not delivered again. The error is not stored: the
// same idempotency key works once there is a webhook.
func TestRedeliverToNobody(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := &sender{}
		r := newRig(t, &cardvault.Options{Webhooks: s}, nil)
		hook := "/webhooks/" + r.newWebhook(t, r.vault)
		r.importCard(t)
		time.Sleep(time.Second) // events of the same microsecond are due a little later
		path := "/events/" + r.lastEvent(t, r.vault) + "/redeliver"
		r.do(t, "PATCH", hook, `{"status":"disabled"}`).want(t, 200)
		s.take()
		r.do(t, "POST", path, "").want(t, 409, "WEBHOOK_STATE_CONFLICT")
		r.do(t, "POST", path, "", "Idempotency-Key", "again").want(t, 409, "WEBHOOK_STATE_CONFLICT")
		r.do(t, "PATCH", hook, `{"status":"enabled"}`).want(t, 200)
		r.do(t, "POST", path, "", "Idempotency-Key", "again").want(t, 204)
		r.lastEvent(t, r.vault)
		if n := len(s.take()); n != 1 {
			t.Errorf("%d deliveries, want 1", n)
		}
	})
}

// A test of a webhook ends with its request.
func TestWebhookTestThatIsLate(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, &cardvault.Options{Webhooks: &sender{}}, &httpapi.Options{Timeout: 5 * time.Second})
		a := r.do(t, "POST", "/webhooks", `{"url":"https://hook.example/204?after=6s"}`)
		begin := time.Now()
		r.do(t, "POST", "/webhooks/"+a.member(t, "id")+"/test", "").want(t, 503, "SERVICE_UNAVAILABLE")
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
