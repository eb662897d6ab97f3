package httpapi_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// The rows of the table of POST /forward are in the transcripts. The tests here have a
// provider that is slow, and requests that are large or many.

// newForwarding returns a rig that forwards to a provider.
func newForwarding(t testing.TB, provider http.HandlerFunc, timeout time.Duration, opts httpapi.Options) (*rig, string) {
	t.Helper()
	r := newRig(t, nil, nil)
	server := httptest.NewServer(provider)
	to := forward.Destination{Name: "psp", URL: server.URL + "/", Timeout: timeout}
	f, err := forward.New(r.vault, []forward.Destination{to}, &forward.Options{AllowLoopback: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		server.Close()
	})
	opts.Forward = f
	r.handler = newHandler(t, r.vault, &opts)
	return r, server.URL
}

func otherCard() cardvault.Card {
	return cardvault.Card{PAN: card.NewPAN([]byte("5555555555554444")), Expiry: card.Expiry{Month: 4, Year: 2031}}
}

// forwardBody returns the body of a forward.
func forwardBody(t testing.TB, token, url, body string) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{"token_id": token, "request": map[string]any{
		"method": "POST", "url": url, "headers": map[string]string{"content-type": "application/json"}, "body": body,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestForwardRoom: forwards that are under way have room for all accounts. One account fills
// a quarter, and large bodies count more.
func TestForwardRoom(t *testing.T) {
	waiting, release := make(chan struct{}), make(chan struct{})
	r, url := newForwarding(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case waiting <- struct{}{}:
		case <-release:
		}
		<-release
	}, time.Minute, httpapi.Options{MaxForwards: 128})
	token := r.importCard(t)
	other := r.newAccount(t, nil)
	_, otherKey := r.newKey(t, other, 0, cardvault.AllScopes()...)
	theirs, err := other.Import(t.Context(), otherCard(), nil)
	if err != nil {
		t.Fatal(err)
	}

	small := forwardBody(t, token, url, `{"number":"{{ account_number }}"}`)
	large := forwardBody(t, token, url, `{"a":"`+strings.Repeat("a", 1000<<10)+`"}`)
	var group sync.WaitGroup
	begin := func(body, key string) {
		t.Helper()
		group.Go(func() {
			if a := send(t, r.handler, "POST", "/forward", body, "X-Api-Key", key); a.status != 200 {
				t.Errorf("a forward that waits: %d %s", a.status, a.body)
			}
		})
		<-waiting
	}
	begin(large, r.key) // 16
	for range 16 {
		begin(small, r.key)
	}
	for _, body := range []string{small, large} {
		a := r.do(t, "POST", "/forward", body)
		a.want(t, 429, "RATE_LIMITED")
		if a.header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After: %s", a.header.Get("Retry-After"))
		}
	}
	begin(forwardBody(t, theirs.ID.String(), url, ""), otherKey)
	r.do(t, "GET", "/tokens/"+token, "").want(t, 200)

	close(release)
	group.Wait()
	for range 130 { // more than there is room for: each gives its room back, also after an error
		r.do(t, "POST", "/forward", small).want(t, 200)
		r.do(t, "POST", "/forward", `{}`).want(t, 422)
	}
	if _, err := httpapi.NewHandler(r.vault, &httpapi.Options{MaxForwards: 127}); err == nil {
		t.Error("an account has no room for the largest body")
	}
}

// TestForwardSize: a forward may have a megabyte, other bodies as much as before.
func TestForwardSize(t *testing.T) {
	var got atomic.Int64
	r, url := newForwarding(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got.Store(int64(len(body)))
		_, _ = w.Write(body)
	}, time.Minute, httpapi.Options{})
	token := r.importCard(t)
	sized := func(size int) string {
		body := forwardBody(t, token, url, "")
		return strings.Replace(body, `"body":""`, `"body":"`+strings.Repeat("a", size-len(body))+`"`, 1)
	}

	a := r.do(t, "POST", "/forward", sized(forward.MaxBody))
	a.want(t, 200)
	if text, _ := a.object(t)["body"].(string); int64(len(text)) != got.Load() || len(text) < 1<<19 {
		t.Errorf("%d bytes are sent, %d come back", got.Load(), len(text))
	}
	r.do(t, "POST", "/forward", sized(forward.MaxBody+1)).want(t, 413, "PAYLOAD_TOO_LARGE")
	r.do(t, "POST", "/forward", sized(forward.MaxBody+1), "Transfer-Encoding", "chunked").want(t, 413, "PAYLOAD_TOO_LARGE")
	r.do(t, "POST", "/forward", sized(forward.MaxBody), "Transfer-Encoding", "chunked").want(t, 200)
	r.do(t, "POST", "/cde-import", sized(64<<10+1)).want(t, 413, "PAYLOAD_TOO_LARGE")
}

// TestForwardTimeout: no answer in time is an unknown outcome, and stays one.
func TestForwardTimeout(t *testing.T) {
	var r *rig
	var calls *atomic.Int64
	var body string
	var first *answer
	// On a slow machine the time may pass before the request arrives.
	for timeout := 200 * time.Millisecond; calls == nil || calls.Load() == 0; timeout *= 2 {
		arrived, hang := new(atomic.Int64), make(chan struct{})
		var url string
		r, url = newForwarding(t, func(w http.ResponseWriter, r *http.Request) {
			arrived.Add(1)
			_, _ = io.Copy(io.Discard, r.Body)
			<-hang
		}, timeout, httpapi.Options{})
		t.Cleanup(func() { close(hang) })
		calls, body = arrived, forwardBody(t, r.importCard(t), url, `{"number":"{{ account_number }}"}`)
		first = r.do(t, "POST", "/forward", body, "Idempotency-Key", "a")
	}

	for i := range 3 {
		a := first
		if i > 0 {
			a = r.do(t, "POST", "/forward", body, "Idempotency-Key", "a")
		}
		a.want(t, 504, "PROVIDER_TIMEOUT")
		if !strings.Contains(strings.ToLower(a.body), "outcome unknown") || (a.header.Get("Idempotency-Replayed") == "true") != (i > 0) {
			t.Errorf("call %d: %v %s", i, a.header, a.body)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// TestForwardKey: what a key without any other scope can find out. A token of another account
// has the answer of one that never was, whatever the request, and answers show no more of a
// card than its mask.
func TestForwardKey(t *testing.T) {
	r, url := newForwarding(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	}, time.Minute, httpapi.Options{})
	_, key := r.newKey(t, r.vault, 0, cardvault.ScopeForwardCreate)
	foreign, err := r.newAccount(t, nil).Import(t.Context(), otherCard(), nil)
	if err != nil {
		t.Fatal(err)
	}

	for _, body := range []string{``, `{"n":"{{ account_number }}"}`, `{"n":"{{ security_code }}"}`} {
		for _, headers := range [][]string{nil, {"Idempotency-Key", "a"}} {
			var answers []string
			for _, id := range []string{foreign.ID.String(), uuid.NewString()} {
				a := send(t, r.handler, "POST", "/forward", forwardBody(t, id, url, body), append([]string{"X-Api-Key", key}, headers...)...)
				a.want(t, 404, "NOT_FOUND")
				answers = append(answers, a.body)
			}
			if answers[0] != answers[1] {
				t.Errorf("%s: answers differ: %q", body, answers)
			}
		}
	}

	id := r.importCard(t)
	a := send(t, r.handler, "POST", "/forward", forwardBody(t, id, url, `{"n":["{{ account_number }}","4242 4200 0000 4242",4242429999994242]}`), "X-Api-Key", key)
	a.want(t, 200)
	vaulttest.AssertNoLeak(t, []string{pan, "4242420000004242", "4242429999994242"}, a.body, r.log.take())
}
