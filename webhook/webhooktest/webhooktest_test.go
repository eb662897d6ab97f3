package webhooktest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/cardvault/cardvault/webhook"
	"github.com/cardvault/cardvault/webhook/webhooktest"
	"github.com/google/uuid"
)

func TestMain(m *testing.M) { goroutines.Verify(m) }

var secret = receive.NewWebhookSecret([]byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))

func test(url string) *cardvault.Delivery {
	return &cardvault.Delivery{ID: uuid.New(), CreatedAt: time.Now(), URL: url, Secrets: []receive.WebhookSecret{secret}}
}

// A receiver records deliveries and whether they are signed.
func TestDeliveries(t *testing.T) {
	r := webhooktest.New(secret)
	url := r.Start(t)
	s := webhook.New(&webhook.Options{AllowPrivateTargets: true})
	defer s.Close()
	first, second := test(url), test(url)
	second.Secrets = []receive.WebhookSecret{receive.NewWebhookSecret([]byte("whsec_" + strings.Repeat("AAAA", 8)))}
	for _, d := range []*cardvault.Delivery{first, second} {
		if got, err := s.Send(t.Context(), d); err != nil || got.StatusCode != 204 {
			t.Fatalf("Send = %+v, %v", got, err)
		}
	}
	all, err := r.Wait(t.Context(), 2)
	if err != nil || len(all) != 2 || len(r.Deliveries()) != 2 {
		t.Fatalf("%d deliveries, %v", len(all), err)
	}
	if d := all[0]; d.Err != nil || d.Event.ID != first.ID || time.Since(d.At) > time.Minute ||
		d.Header.Get("Webhook-Id") != first.ID.String() || !strings.Contains(string(d.Body), first.ID.String()) {
		t.Errorf("received %+v", d)
	}
	if d := all[1]; !errors.Is(d.Err, receive.ErrSignature) || d.Event != nil || d.Header.Get("Webhook-Id") != second.ID.String() {
		t.Errorf("received %+v", d)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Wait(ctx, 3); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait = %v", err)
	}
}

// In a bubble a vault delivers in memory. A refused delivery is repeated in due time,
// signed with the secret that the receiver meanwhile trusts.
func TestBubble(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := webhooktest.New()
		v := vaulttest.NewNetworkWith(t, &cardvault.Options{Webhooks: webhooktest.NewSender(r)}).Vault
		ctx, stop := context.WithCancel(t.Context())
		hook, err := v.CreateWebhook(ctx, "https://shop.example/hook", nil)
		if err != nil {
			t.Fatal(err)
		}

		token, err := v.Import(ctx, cardvault.Card{
			PAN: simnet.ScenarioPAN(card.VISA, 10), Expiry: card.Expiry{Month: 12, Year: 2090},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Drain(ctx); err != nil {
			t.Fatal(err)
		}
		before := r.Deliveries()
		for _, d := range before {
			if d.Err == nil || d.Event != nil {
				t.Errorf("%v, %v from an untrusted sender", d.Event, d.Err)
			}
		}

		r.Trust(hook.Secret)
		r.Next(webhooktest.Status(http.StatusInternalServerError), webhooktest.Status(http.StatusBadGateway))
		if err := v.Delete(ctx, token.ID); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- v.Run(ctx) }()
		all, err := r.Wait(ctx, len(before)+3)
		if len(before) == 0 || err != nil {
			t.Fatalf("%d deliveries, then %v", len(before), err)
		}
		sent := all[len(before):]
		for _, d := range sent {
			if d.Err != nil || d.Event.Type != receive.TokenDeleted || d.Event.TokenID != token.ID {
				t.Errorf("%v, %v", d.Event, d.Err)
			}
		}
		if waited := sent[2].At.Sub(sent[0].At); waited < time.Second {
			t.Errorf("attempts within %v", waited)
		}

		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// In memory, answers and failures are the same as over a connection.
func TestSender(t *testing.T) {
	r := webhooktest.New(secret)
	s := webhooktest.NewSender(r)
	defer s.Close()
	if s.Check(&cardvault.Target{URL: "https://shop.example/hook"}) != nil || s.Check(&cardvault.Target{URL: "http://127.0.0.1/"}) == nil {
		t.Error("URLs are not checked like in package webhook")
	}

	bubble.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			answer webhooktest.Answer
			code   int
			wait   time.Duration
			err    error
		}{
			"status":       {webhooktest.Status(410), 410, 0, nil},
			"retry after":  {webhooktest.RetryAfter(429, "7"), 429, 7 * time.Second, nil},
			"redirect":     {webhooktest.Redirect(302, "https://shop.example/x"), 302, 0, nil},
			"delay":        {webhooktest.Delay(time.Second, webhooktest.Status(201)), 201, 0, nil},
			"silence":      {webhooktest.Hang, 0, 0, context.DeadlineExceeded},
			"endless body": {webhooktest.Body(-1), 200, 0, nil},
			"endless drip": {webhooktest.Drip, 200, 0, nil},
			"nothing said": {func(http.ResponseWriter, *http.Request) {}, 200, 0, nil},
		} {
			r.Next(c.answer)
			got, err := s.Send(t.Context(), test("https://shop.example/hook?x=1"))
			if !errors.Is(err, c.err) || err == nil && (got.StatusCode != c.code || got.RetryAfter != c.wait) {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}

		r.Next(webhooktest.Cut)
		if got, err := s.Send(t.Context(), test("https://shop.example/")); err == nil || got != nil {
			t.Errorf("cut: %+v, %v", got, err)
		}
		for _, d := range r.Deliveries() {
			if d.Err != nil {
				t.Error(d.Err)
			}
		}
	})
}

// A handler sees the same request as on a server.
func TestSenderOfHandler(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST shop.example/hook/{id}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") != "7" || r.URL.Query().Get("x") != "1" || r.Host != "shop.example:8443" || r.RequestURI != "/hook/7?x=1" || r.URL.Host != "" {
			t.Errorf("%s %s of %s", r.Method, r.URL, r.Host)
		}
		w.WriteHeader(http.StatusProcessing)
		w.WriteHeader(http.StatusAccepted)
		w.Header().Set("Retry-After", "7") // too late
	})
	s := webhooktest.NewSender(mux)
	defer s.Close()
	got, err := s.Send(t.Context(), test("https://shop.example:8443/hook/7?x=1"))
	if err != nil || got.StatusCode != http.StatusAccepted || got.RetryAfter != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a panic of the handler is swallowed")
		}
	}()
	s = webhooktest.NewSender(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a fault") }))
	_, _ = s.Send(t.Context(), test("https://shop.example/"))
}

// Answers are given in order, then the default for all others. A client that waits for a
// missing or endless answer gives up once the receiver has its delivery.
func TestAnswers(t *testing.T) {
	r := webhooktest.New(secret)
	url := r.Start(t)
	sent := 0
	post := func(leaves bool) (code int, header http.Header, body string, err error) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		sent++
		if leaves {
			go func(sent int) {
				_, _ = r.Wait(ctx, sent)
				leave()
			}(sent)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{DisableKeepAlives: true}
		resp, err := transport.RoundTrip(request)
		if err != nil {
			return 0, nil, "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return resp.StatusCode, resp.Header, string(b), err
	}
	r.Next(
		webhooktest.Status(410),
		webhooktest.RetryAfter(429, "7"),
		webhooktest.Redirect(302, "https://shop.example/"),
		webhooktest.Delay(time.Microsecond, webhooktest.Status(201)),
		webhooktest.Delay(time.Hour, webhooktest.Status(201)),
		webhooktest.Hang,
		webhooktest.Cut,
		webhooktest.Body(70000),
		webhooktest.Body(-1),
		webhooktest.Raw("HTTP/1.1 299 x\r\n\r\nraw"),
	)
	for i, want := range []struct {
		code         int
		header, text string
		body         func(string) bool
		err          error
	}{
		{code: 410},
		{code: 429, header: "Retry-After", text: "7"},
		{code: 302, header: "Location", text: "https://shop.example/"},
		{code: 201},
		{err: context.Canceled},
		{err: context.Canceled},
		{err: io.EOF},
		{code: 200, body: func(s string) bool { return len(s) == 70000 }},
		{code: 200, body: func(s string) bool { return len(s) == 1<<20 }},
		{code: 299, body: func(s string) bool { return s == "raw" }},
		{code: 204},
	} {
		code, header, body, err := post(want.err == context.Canceled)
		if code != want.code || !errors.Is(err, want.err) || want.header != "" && header.Get(want.header) != want.text ||
			want.body != nil && !want.body(body) {
			t.Errorf("answer %d: %d, %v, %d bytes, %v", i, code, header, len(body), err)
		}
	}
	r.Always(webhooktest.Status(503))
	for range 2 {
		if code, _, _, err := post(false); code != 503 || err != nil {
			t.Errorf("%d, %v", code, err)
		}
	}
	if n := len(r.Deliveries()); n != 13 {
		t.Errorf("%d deliveries", n)
	}
}

// A drip consists of blanks, and continues until the sender is gone.
func TestDrip(t *testing.T) {
	r := webhooktest.New(secret)
	r.Always(webhooktest.Drip)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.Start(t), strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b := make([]byte, 10)
	if _, err := io.ReadFull(resp.Body, b); err != nil || resp.StatusCode != 200 || strings.Trim(string(b), " ") != "" {
		t.Errorf("%d, %q, %v", resp.StatusCode, b, err)
	}
	leave()
	if _, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("after the sender has gone: %v", err)
	}
}
